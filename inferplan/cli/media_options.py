"""The options that say what requests carry beside text."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from inferplan.cli.options import Count, Positive
from inferplan.models.media import MediaAsked

Command = Callable[..., Any]


class Size(click.ParamType[tuple[int, int]]):
    """Width and height in pixels: 1024x768."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", str(value))
        if match is None:
            self.fail(f"{value} is no WxH such as 1024x768", param, ctx)
        return int(match[1]), int(match[2])


def media_options(command: Command) -> Command:
    """Adds images, video and sound of a request; the command's ``request`` then has them."""

    @functools.wraps(command)
    def wrapper(**values: Any) -> Any:
        names: dict[str, Any] = {"images": 0, "image_size": None, "video_frames": 0, "audio_seconds": 0.0}
        given: dict[str, Any] = {name: values.pop(name) or usual for name, usual in names.items()}
        request = values.pop("request")
        return command(request=replace(request, media=MediaAsked(**given)), **values)

    decorated: Command = wrapper
    for option in reversed(
        [
            click.option(
                "--images", type=Count(0), help="Images in every request: their tokens are added to the prompt."
            ),
            click.option(
                "--image-size", type=Size(), metavar="WxH", help="Of images and frames, in pixels [the tower's own]."
            ),
            click.option("--video-frames", type=Count(0), help="Frames of a video in every request, as sampled."),
            click.option("--audio-seconds", type=Positive(), help="Seconds of sound in every request."),
        ]
    ):
        decorated = option(decorated)
    return decorated
