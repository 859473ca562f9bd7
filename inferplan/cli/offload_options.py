"""The options that say what of a model lies in host memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click

from inferplan.catalog.offload import OffloadAsked
from inferplan.cli.options import Count, Within, noted

if TYPE_CHECKING:
    from inferplan.catalog.assemble import Request

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--gpu-layers",
        type=Count(0),
        help="llama.cpp -ngl: layers on the GPU, the head counted as one; the host computes the others [all].",
    ),
    click.option(
        "--cpu-moe-layers",
        type=Count(0),
        default=0,
        show_default=True,
        help="llama.cpp -ncmoe: of the first so many layers the host computes the routed experts.",
    ),
    click.option(
        "--cpu-offload-gb",
        type=Within(0, 4096),
        default=0.0,
        metavar="GIB",
        help="vLLM: GiB of each GPU's layers in host memory, read over the link in every step. [0]",
    ),
    click.option("--host", help="The host of both: a CPU (inferplan gpus) or a path to a YAML."),
    click.option("--host-memory", metavar="SIZE", help="Usable memory of the host, such as 384GB."),
    click.option("--host-link", metavar="RATE", help="Of the link to it, in one direction, such as 63GB/s [on file]."),
)


def offload_asked(values: dict[str, Any]) -> OffloadAsked:
    """What is asked for; it is taken out of ``values``."""
    return OffloadAsked(**{field.name: values.pop(field.name) for field in fields(OffloadAsked)})


def add_offload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options alone, in the order in which help shows them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def offload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds them to a command that gets a request: what is asked for becomes part of it."""

    @functools.wraps(command)
    def wrapper(request: Request, **values: Any) -> Any:
        asked = offload_asked(values)
        return command(request=noted(replace(request, offload=asked)) if asked.any else request, **values)

    return add_offload_options(wrapper)
