"""The options that say what requests carry beside text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from inferplan.cli.options import Count, Positive, part_of_request
from inferplan.errors import UsageError
from inferplan.models.media import MediaAsked

if TYPE_CHECKING:
    from inferplan.catalog.assemble import Request
    from inferplan.catalog.workloads import WorkloadSpec
    from inferplan.estimate.deployment import Deployment
    from inferplan.traffic.requests import Lengths, Media

Command = Callable[..., Any]


if TYPE_CHECKING:
    _Pair = click.ParamType[tuple[int, int]]
else:
    _Pair = click.ParamType  # generic from click 8.3 on


class Size(_Pair):
    """Width and height in pixels: 1024x768."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", str(value), re.ASCII)
        if match is None:
            self.fail(f"{value} is no WxH such as 1024x768", param, ctx)
        return int(match[1]), int(match[2])


def asked_of(request: Request, named: WorkloadSpec | None, text: float | None) -> tuple[Request, Lengths]:
    """The request with what is asked for, or what the workload's requests carry, and how many sets of it they have.

    text: mean prompt tokens beside it; ``None`` for requests of a trace, to which nothing is added.
    """
    from inferplan.traffic.requests import Lengths

    asked, sets = request.media, Lengths()
    if not asked.any and named is not None and named.media is not None:
        asked, sets = named.media.asked()
    if not asked.any:
        return request, sets
    if text is None:
        raise UsageError(
            "a trace says what its prompts are: no images are added to them",
            hint="--prompt and --output with --rate or --concurrency, or leave the media out",
        )
    return replace(request, media=replace(asked, text=text)), sets


def media_of(deployment: Deployment, sets: Lengths) -> Media | None:
    """What the requests that a deployment serves carry; ``None`` for text alone."""
    from inferplan.traffic.requests import Media

    return None if deployment.media is None else Media(tokens=deployment.media.tokens, sets=sets)


MEDIA: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("--images",), {"type": Count(0), "help": "Images in every request: their tokens are added to the prompt."}),
    (
        ("--image-size",),
        {"type": Size(), "metavar": "WxH", "help": "Of images and frames, in pixels [the tower's own]."},
    ),
    (("--video-frames",), {"type": Count(0), "help": "Frames of a video in every request, as sampled."}),
    (("--audio-seconds",), {"type": Positive(), "help": "Seconds of sound in every request."}),
]
"""The options as data."""


def media_values(values: dict[str, Any]) -> MediaAsked:
    """What the options say, which are taken out of ``values``."""
    names: dict[str, Any] = {"images": 0, "image_size": None, "video_frames": 0, "audio_seconds": 0.0}
    given: dict[str, Any] = {name: values.pop(name) or usual for name, usual in names.items()}
    return MediaAsked(**given)


media_options = part_of_request(MEDIA, "media", media_values)
"""Adds images, video and sound of a request; the command's ``request`` then has them."""
