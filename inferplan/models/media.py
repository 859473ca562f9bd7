"""What an image, a video or a second of sound becomes in a tower: positions that it works on, tokens for the decoder.

Every rule is that of a preprocessor of transformers 5.23, which the docstrings name by file and function;
``tests/models/test_media.py`` compares them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil, floor, prod, sqrt
from typing import Literal, Self

from inferplan.errors import UsageError
from inferplan.fields import Real, Text, Whole, ask
from inferplan.spec import Field, Spec, model_validator

Pixels = tuple[int, int]
"""Width and height."""
_RATIO = 200
"""Sides further apart are refused (``smart_resize``)."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """What one item (an image, a video, a clip) puts through a tower.

    units: sequences whose positions attend to each other. positions: of one of them. tokens: what the decoder gets, of
    all of them. windows: parts of a sequence in layers whose attention stays inside windows.
    """

    units: int
    positions: int
    tokens: int
    windows: int = 1

    def __post_init__(self) -> None:
        if min(self.units, self.positions, self.tokens, self.windows) < 1:
            raise UsageError("an image, a video or a clip has at least one position and one token")


def parse_pixels(text: str) -> Pixels:
    """Width and height: ``1024x768``. Raises ``UsageError``."""
    match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", text, re.ASCII)
    if match is None:
        raise UsageError(f"--image-size: {text} is not WxH such as 1024x768")
    return int(match[1]), int(match[2])


@dataclass(frozen=True, kw_only=True)
class MediaAsked:
    """What one request carries beside its text: images of one size, frames of one video, seconds of one clip.

    sets: how often a request has all of that on average. text: its mean prompt tokens beside them, where that is known.
    """

    images: int = ask("--images", Whole(0), "Images per request: their tokens are added to the prompt.", 0)
    image_size: Pixels | None = ask(
        "--image-size",
        Text(parse_pixels),
        "Size of images and frames, in pixels [the tower's own].",
        None,
        metavar="WxH",
    )
    video_frames: int = ask("--video-frames", Whole(0), "Sampled video frames per request.", 0)
    audio_seconds: float = ask("--audio-seconds", Real(0, above=True), "Seconds of sound per request.", 0.0)
    sets: float = 1.0
    text: float | None = None

    def __post_init__(self) -> None:
        if self.video_frames and self.image_size is None:
            raise UsageError(
                "--video-frames needs --image-size",
                because="larger frames have more patches",
                hint="--image-size 1280x720, their width and height in pixels",
            )
        if self.image_size is not None and not (self.images or self.video_frames):
            raise UsageError("--image-size says nothing without images", hint="--images 1, or leave it out")

    @property
    def any(self) -> bool:
        """Whether there is anything but text."""
        return bool(self.images or self.video_frames or self.audio_seconds)

    def describe(self) -> str:
        """In words: ``"2 images of 1024x1024"``."""
        size = "" if self.image_size is None else f" of {self.image_size[0]}x{self.image_size[1]}"
        parts = [f"{self.images} image{'s' if self.images > 1 else ''}{size}"] if self.images else []
        parts += [f"{self.video_frames} video frames{size}"] if self.video_frames else []
        parts += [f"{self.audio_seconds:g} s of audio"] if self.audio_seconds else []
        return ", ".join(parts)


class TakenRule(Spec):
    """How one kind of media is taken in."""

    unknown: list[str] = []
    """What neither the config nor a preprocessor's file beside it says, in words; shown by every command."""


class ImageRule(TakenRule):
    """An image of any size becomes a grid of patches.

    smart: the nearest multiples of ``patch*merge``, the number of pixels between the ``pixels`` (``smart_resize``,
    models/qwen2_vl/image_processing_qwen2_vl.py; also models/glm4v, models/qwen3_vl). fixed: always ``size`` x ``size``
    (SigLIP, CLIP). longest: no side beyond ``size``, then up to multiples of ``patch*merge``
    (``get_resize_output_image_size``, models/pixtral/image_processing_pixtral.py). patches: at most ``patches`` in all
    and ``side`` along a side, padded to multiples of ``patch*merge`` (``navit_resize``,
    models/kimi_k25/image_processing_kimi_k25.py). tiles: cut into at most ``tiles`` squares of ``size``, with the whole
    image as one more where there are several (``get_optimal_tiled_canvas``,
    models/got_ocr2/image_processing_got_ocr2.py, which InternVL uses). budget: the largest multiples of ``patch*merge``
    in its shape with at most ``patches``, to which number the tower's input is padded
    (``get_aspect_ratio_preserving_size``, models/gemma4/image_processing_gemma4.py).
    """

    resize: Literal["smart", "fixed", "longest", "patches", "tiles", "budget"]
    patch: int = Field(ge=1)
    merge: int = Field(default=1, ge=1)
    """Patches along a side of one token."""
    size: int | None = Field(default=None, ge=1)
    pixels: tuple[int, int] | None = None
    """Fewest and most pixels of an image (smart); without them no image is taken as too small or too large."""
    frames: int = Field(default=1, ge=1)
    """How often an image counts in those limits: GLM's takes it as a video of two frames."""
    patches: int | None = Field(default=None, ge=1)
    side: int | None = Field(default=None, ge=1)
    tiles: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    """Tokens of an image of fixed size, or of a tile, where they are pooled to another number."""
    row_ends: bool = False
    """Every row of tokens ends with one more (Pixtral's [IMG_BREAK] and [IMG_END])."""
    extra: int = Field(default=0, ge=0)
    """Positions of the tower beside the patches: a class token."""
    window: int | None = Field(default=None, ge=1)
    """Patches along a side of a window that attention stays inside."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = {
            "smart": [],
            "fixed": ["size"],
            "longest": ["size"],
            "patches": ["patches", "side"],
            "tiles": ["size", "tiles"],
            "budget": ["patches"],
        }[self.resize]
        missing = [name for name in needed if getattr(self, name) is None]
        if missing:
            raise ValueError(f"resize: {self.resize} needs {' and '.join(missing)}")
        return self

    def resized(self, size: Pixels) -> Pixels:
        """Width and height of the image as it is cut into patches."""
        width, height = size
        unit = self.patch * self.merge
        if self.resize in ("fixed", "tiles"):
            assert self.size is not None
            return self.size, self.size
        if self.resize == "smart":
            return smart(size, unit, self.pixels, (self.frames, self.frames))
        if self.resize == "budget":
            assert self.patches is not None
            return fit_to_budget(size, self.patch, self.merge, self.patches)
        if self.resize == "longest":
            assert self.size is not None
            ratio = max(width / self.size, height / self.size)
            if ratio > 1:
                width, height = floor(width / ratio), floor(height / ratio)
            return ceil(width / unit) * unit, ceil(height / unit) * unit
        assert self.patches is not None and self.side is not None
        count = max(1.0, height // self.patch) * max(1.0, width // self.patch)
        limit = self.side * self.patch
        scale = min(1.0, sqrt(self.patches / count), limit / height, limit / width)
        width, height = (min(max(1, int(length * scale)), limit) for length in (width, height))
        return ceil(width / unit) * unit, ceil(height / unit) * unit

    def item(self, size: Pixels | None) -> Item:
        """What an image of ``size`` becomes; ``None`` only where every image becomes the same.

        Raises ``UsageError`` for a size that is missing, or that no preprocessor takes.
        """
        if size is None and self.resize != "fixed":
            raise UsageError(
                "--images needs --image-size",
                because="larger images have more patches here",
                hint="--image-size 1024x768, their width and height in pixels",
            )
        width, height = self.resized(size or (1, 1))
        across, down = width // self.patch, height // self.patch
        rows, columns = down // self.merge, across // self.merge
        tokens = self.tokens or rows * (columns + (1 if self.row_ends else 0))
        windows = 1 if self.window is None else ceil(across / self.window) * ceil(down / self.window)
        units = 1
        if self.resize == "tiles" and size is not None:
            assert self.size is not None and self.tiles is not None
            cut = prod(tile_counts(size, self.size, self.tiles))
            units = cut + 1 if cut > 1 else 1
        positions = across * down + self.extra
        if self.resize == "budget":
            positions = self.patches or positions
        return Item(units=units, positions=positions, tokens=units * tokens, windows=windows)


class VideoRule(TakenRule):
    """A video becomes grids of patches, one for every ``temporal`` frames; each attends to itself alone.

    ``pixels`` bound those of a frame (``Qwen2VLVideoProcessor``, models/qwen2_vl/video_processing_qwen2_vl.py), or with
    ``whole`` those of all frames (``smart_resize``, models/qwen3_vl/video_processing_qwen3_vl.py).
    """

    temporal: int = Field(ge=1)
    pixels: tuple[int, int] | None = None
    whole: bool = False

    def item(self, image: ImageRule, frames: int, size: Pixels) -> Item:
        """What ``frames`` frames of ``size`` become; ``image`` says how a frame is cut."""
        width, height = size
        unit, limits = image.patch * image.merge, self.pixels
        if self.whole and limits is not None:
            made = round(frames / self.temporal) * self.temporal
            width, height = smart(size, unit, limits, (frames, max(made, self.temporal)))
        else:
            width, height = smart(size, unit, limits)
        grids = ceil(frames / self.temporal)
        one = image.model_copy(update={"resize": "smart", "pixels": None}).item((width, height))
        return Item(units=grids, positions=one.positions, tokens=grids * one.tokens, windows=one.windows)


class AudioRule(TakenRule):
    """A second of sound becomes ``rate`` frames of a spectrogram, ``stride`` of which are one position of the tower.

    ``merge`` positions are one token. whole: every clip is padded to, and cut into, so many seconds (Whisper's 30);
    without it a clip is as long as it is. window: positions that attend to each other.
    """

    rate: float = Field(gt=0)
    stride: int = Field(ge=1)
    merge: int = Field(default=1, ge=1)
    whole: float | None = Field(default=None, gt=0)
    window: int | None = Field(default=None, ge=1)

    def item(self, seconds: float) -> Item:
        """What a clip of so many seconds becomes."""
        if self.whole is not None:
            units = ceil(seconds / self.whole)
            positions = ceil(self.whole * self.rate / self.stride)
            return Item(units=units, positions=positions, tokens=units * (positions // self.merge))
        positions = ceil(ceil(seconds * self.rate) / self.stride)
        windows = 1 if self.window is None else ceil(positions / self.window)
        return Item(units=1, positions=positions, tokens=max(positions // self.merge, 1), windows=windows)


class MediaRule(Spec):
    """What a tower takes in, and what a pass over one position costs beside its layers.

    rows: for each tensor outside the layers that a pass multiplies with, or normalises by, how many rows it sees for
    one position: a patch embedding 1, a merger of four patches 0.25. Others (position tables) are added, or looked up.
    """

    source: str
    image: ImageRule | None = None
    video: VideoRule | None = None
    audio: AudioRule | None = None
    rows: dict[str, float] = {}
    full: list[int] | None = None
    """Where attention stays inside windows: the layers that see everything all the same, counted from 0."""


def tile_counts(size: Pixels, tile: int, most: int) -> Pixels:
    """Tiles across and down whose canvas is nearest in shape to an image; of several, more while the image fills half
    of them (``get_optimal_tiled_canvas``)."""
    width, height = size
    grids = [(across, down) for across in range(1, most + 1) for down in range(1, most + 1) if across * down <= most]
    nearest, best = float("inf"), (1, 1)
    for grid in sorted(grids, key=prod):
        off = abs(width / height - grid[0] / grid[1])
        if off < nearest or (off == nearest and width * height > 0.5 * tile * tile * prod(grid)):
            nearest, best = off, grid
    return best


def fit_to_budget(size: Pixels, patch: int, merge: int, most: int) -> Pixels:
    """Width and height as multiples of ``patch*merge`` in the shape of the image, of at most so many patches."""
    unit = patch * merge
    factor = sqrt(most * patch**2 / (size[0] * size[1]))
    width, height = (floor(factor * side / unit) * unit for side in size)
    longest = most // merge**2 * unit
    if height == 0:
        return min(size[0] // size[1] * unit, longest), unit
    if width == 0:
        return unit, min(size[1] // size[0] * unit, longest)
    return width, height


def smart(size: Pixels, unit: int, limits: tuple[int, int] | None, frames: tuple[int, int] = (1, 1)) -> Pixels:
    """Width and height as multiples of ``unit``, their pixels between ``limits`` (``smart_resize``).

    frames: as given and as rounded, where the limits are those of a whole video. Raises ``UsageError`` for sides more
    than 200 times apart.
    """
    width, height = size
    if max(size) / min(size) > _RATIO:
        because = f"one side is more than {_RATIO} times the other"
        raise UsageError(f"an image of {width}x{height} pixels is refused", because=because)
    across, down = round(width / unit) * unit, round(height / unit) * unit
    if limits is None:
        return max(across, unit), max(down, unit)
    fewest, most = limits
    given, made = frames
    if made * across * down > most:
        beta = sqrt(given * width * height / most)
        across, down = (max(unit, floor(side / beta / unit) * unit) for side in size)
    elif made * across * down < fewest:
        beta = sqrt(fewest / (given * width * height))
        across, down = (ceil(side * beta / unit) * unit for side in size)
    return across, down
