"""A pass of a tower as operators: what images, videos and sound cost before their tokens reach the decoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

import numpy as np

from inferplan.errors import MissingFactError, UsageError
from inferplan.estimate.layers import add_op, layer_ops
from inferplan.models.layers import LayerContext
from inferplan.models.media import Item, MediaAsked, MediaRule
from inferplan.models.spec import LayerGroup, ModelSpec, Tower, count_distinct, uncounted_notes
from inferplan.units import Num
from inferplan.work.formats import uniform
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment


@dataclass(frozen=True, kw_only=True, eq=False)
class Carried:
    """What every request carries beside text, as the towers of its model take it.

    parts: a tower, one item, and how many of those a set has. prompt: mean tokens of a whole prompt, theirs included,
    of which each token brings its share of them: an encoder runs in the step in which the tokens are first needed
    (vLLM, v1/core/sched/scheduler.py, ``_try_schedule_encoder_inputs``).
    """

    asked: MediaAsked
    parts: tuple[tuple[Tower, Item, int], ...]
    prompt: Num = np.nan

    @property
    def tokens(self) -> int:
        """Prompt tokens that stand for one set of them."""
        return sum(number * item.tokens for _, item, number in self.parts)

    def describe(self) -> str:
        """What a request carries, in words."""
        often = "" if self.asked.sets == 1 else f", {self.asked.sets:g} times on average"
        return f"{self.asked.describe()}{often}: {self.tokens * self.asked.sets:,.0f} tokens"

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        return {
            "described": self.describe(),
            "sets_per_request": self.asked.sets,
            "tokens_per_set": self.tokens,
            "towers": [
                {"tower": tower.name, "items": number, "sequences": item.units, "positions": item.positions}
                for tower, item, number in self.parts
            ],
        }

    @property
    def notes(self) -> list[str]:
        """What is not known of the towers that take them."""
        asked = (("image", self.asked.images), ("video", self.asked.video_frames), ("audio", self.asked.audio_seconds))
        rules = [
            (tower.name, getattr(tower.media, kind)) for tower, _, _ in self.parts for kind, given in asked if given
        ]
        return list(
            dict.fromkeys(f"{name}: {text}" for name, rule in rules if rule is not None for text in rule.unknown)
        )

    def within(self, prompt: Num) -> Carried:
        """The same in prompts of so many tokens."""
        return replace(self, prompt=prompt)

    def sets(self, tokens: Num) -> Num:
        """How many of them come with so many tokens of prompts."""
        return tokens * (self.asked.sets / self.prompt)

    def ops(self, sets: Num, context: LayerContext) -> Iterator[Op]:
        """The operators of a rank for so many of them; less than one item is a share of a pass over one."""
        for tower, item, number in self.parts:
            items = sets * number
            together = np.maximum(items, 1.0)
            yield from (op.repeated(items / together) for op in tower_ops(tower, item, together, context))


def media_of_requests(model: ModelSpec, asked: MediaAsked) -> Carried | None:
    """What requests carry, on a model's towers; ``None`` for text alone.

    Raises ``UsageError`` where no tower takes it, ``MissingFactError`` for one of which the rule is not known.
    """
    if not asked.any:
        return None
    if model.generation.kind == "diffusion":
        raise UsageError(f"{model.name} denoises blocks: images are not known of such a model")
    if model.encoder is not None:
        _require_heard(model, asked)
        return None
    parts: list[tuple[Tower, Item, int]] = []
    if asked.images:
        tower, rule = _taking(model, "image", "--images")
        assert rule.image is not None
        parts.append((tower, rule.image.item(asked.image_size), asked.images))
    if asked.video_frames:
        tower, rule = _taking(model, "video", "--video-frames")
        assert rule.image is not None and rule.video is not None and asked.image_size is not None
        parts.append((tower, rule.video.item(rule.image, asked.video_frames, asked.image_size), 1))
    if asked.audio_seconds:
        tower, rule = _taking(model, "audio", "--audio-seconds")
        assert rule.audio is not None
        parts.append((tower, rule.audio.item(asked.audio_seconds), 1))
    found = Carried(asked=asked, parts=tuple(parts))
    return found if asked.text is None else found.within(asked.text + asked.sets * found.tokens)


def _require_heard(model: ModelSpec, asked: MediaAsked) -> None:
    """Raise ``UsageError`` for what the encoder of an encoder-decoder does not read; it reads sound itself."""
    assert model.encoder is not None
    frames, longest = model.encoder.frames, model.encoder.seconds
    if asked.images or asked.video_frames or frames is None or longest is None:
        raise UsageError(
            f"{model.name}: its encoder reads {'tokens' if model.encoder.embedding != 'none' else 'positions'}",
            hint="--prompt says how many",
        )
    if asked.audio_seconds > longest:
        raise UsageError(
            f"--audio-seconds {asked.audio_seconds:g} is more than {model.name} reads at once",
            because=f"a request is {longest:g} s of sound, {frames} positions",
            hint=f"--audio-seconds {longest:g} --batch {ceil(asked.audio_seconds / longest)}: as many requests",
        )


def _taking(model: ModelSpec, kind: str, option: str) -> tuple[Tower, MediaRule]:
    """The tower that takes a kind of media, and its rule."""
    for tower in model.towers:
        if tower.media is not None and getattr(tower.media, kind) is not None:
            return tower, tower.media
    without = [tower.name for tower in model.towers if tower.media is None]
    said = uncounted_notes(model)
    if without or said:
        which = f"the tower {without[0]!r}" if without else f"its tower ({said[0]})"
        raise MissingFactError(
            f"{option}: {model.name} takes {_KINDS[kind]}, but what {which} makes of them is not known",
            because="the rule (patch size, merging, limits on pixels) is in no config on file",
            hint="write it as a YAML: towers: media: (docs/media.md), or --image-tokens without the encoder's time",
        )
    raise UsageError(f"{option}: {model.name} has no tower that takes {_KINDS[kind]}", hint="inferplan show MODEL")


_KINDS = {"image": "images", "video": "videos", "audio": "sound"}


def tower_ops(tower: Tower, item: Item, number: Num, context: LayerContext) -> Iterator[Op]:
    """The operators of one rank for ``number`` items alike; ``context`` is that of the model beside it.

    The tower runs in the base format, its heads and columns over the tensor-parallel ranks as vLLM divides them (whole
    on each where they do not divide). Nothing is cached. Names begin with that of the tower. Raises
    ``MissingFactError`` for a tower of which nobody said what a pass costs.
    """
    if tower.media is None:
        raise MissingFactError(
            f"what a pass of the tower {tower.name!r} costs is not known",
            because="its YAML has no media table",
            hint="towers: media: (docs/media.md)",
        )
    inside = _context(tower, item, number, context, 1)
    for op in (*_around(tower, inside), *_layers(tower, item, number, context)):
        yield replace(op, name=f"{tower.name}.{op.name}")


def _context(tower: Tower, item: Item, number: Num, context: LayerContext, windows: int) -> LayerContext:
    """The tower's own, with every sequence cut into so many windows."""
    segment = Segment(
        batch=number * item.units * windows, new=item.positions / windows, past=number * 0.0, causal=False
    )
    return replace(
        context,
        d_model=tower.d_model,
        precision=uniform(context.precision.base.name),
        parallel=_division(tower, context.parallel),
        segments=(segment,),
        mean_segments=None,
        norm=tower.norm,
        one_kernel=False,
        keeps=False,
        adapters=None,
    )


def _division(tower: Tower, parallel: Parallelism) -> Parallelism:
    """Over the tensor-parallel ranks where every divided tensor has as many whole units, else none."""
    units = {weight.units for weight, _ in tower.weights() if weight.shard != "none"}
    return Parallelism(tp=parallel.tp if all(unit % parallel.tp == 0 for unit in units) else 1)


def _layers(tower: Tower, item: Item, number: Num, context: LayerContext) -> Iterator[Op]:
    assert tower.media is not None
    layers = [one for group in tower.layers for one in group.sequence()]
    whole = tower.media.full if item.windows > 1 else range(len(layers))
    parts: tuple[list[LayerGroup], list[LayerGroup]] = ([], [])
    for index, layer in enumerate(layers):
        parts[index not in (whole or ())].append(layer)
    for windows, chosen in zip((1, item.windows), parts):
        inside = _context(tower, item, number, context, windows)
        for layer, count in count_distinct(chosen):
            yield from (op.repeated(count) for op in layer_ops(layer, inside))


def _around(tower: Tower, context: LayerContext) -> Iterator[Op]:
    """What is multiplied, normalised and added outside the layers."""
    assert tower.media is not None
    for name, shape in tower.tensors.items():
        rows = tower.media.rows.get(name)
        if name == "positions":
            yield add_op(name, context, tower.d_model)
        if rows is None:
            continue
        if "norm" in name.split("."):
            style = "layer" if len(shape) == 2 else "rms"
            yield context.normalise(name, shape[-1], rows=context.tokens * rows, style=style)
        else:
            yield from context.linear(name, prod(shape[1:]), shape[0], rows=context.tokens * rows, role="base")
