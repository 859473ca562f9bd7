"""The options that say what of a model lies in host memory."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click

from inferplan.catalog.offload import OffloadAsked
from inferplan.cli.options import Count, Within, noted
from inferplan.errors import UsageError
from inferplan.units import parse_number

if TYPE_CHECKING:
    from inferplan.catalog.assemble import Request

_MOST_GIB = 4096
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
        type=Within(0, _MOST_GIB),
        default=0.0,
        metavar="GIB",
        help="vLLM: GiB of each GPU's layers in host memory, read over the link in every step. [0]",
    ),
    click.option("--host", help="The host of both: a CPU (inferplan gpus) or a path to a YAML."),
    click.option("--host-memory", metavar="SIZE", help="Usable memory of the host, such as 384GB."),
    click.option("--host-link", metavar="RATE", help="Of the link to it, in one direction, such as 63GB/s [on file]."),
)


SEVERAL: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (
        ("--gpu-layers",),
        {
            "metavar": "COUNTS",
            "help": "llama.cpp -ngl: layers on the GPU, each tried beside all of them.",
        },
    ),
    (
        ("--cpu-moe-layers",),
        {
            "metavar": "COUNTS",
            "help": "llama.cpp -ncmoe: experts of so many layers on the host, each beside none.",
        },
    ),
    (
        ("--cpu-offload-gb",),
        {"metavar": "GIBS", "help": "vLLM: GiB of each GPU's layers in host memory, each tried beside none."},
    ),
    (("--host",), {"help": "The host of all: a CPU (inferplan gpus) or a path to a YAML."}),
    (("--host-memory",), {"metavar": "SIZE", "help": "Usable memory of the host of a replica, such as 384GB."}),
    (("--host-link",), {"metavar": "RATE", "help": "Of the link to it, in one direction, such as 63GB/s [on file]."}),
]
"""The options as data, where several values are tried."""


def placed_of(values: dict[str, Any]) -> tuple[OffloadAsked, ...]:
    """What lies on the host, each to be tried; nothing where none of the options is given.

    Raises ``UsageError`` for a host that holds nothing, and for a list that is none.
    """
    from inferplan.answers.sweep import parse_copies, parse_values

    given = {name: values[name] for name in ("host", "host_memory", "host_link")}
    counts = {name: parse_copies(text) if (text := values[name]) else None for name in ("gpu_layers", "cpu_moe_layers")}
    sizes = [_gib(text) for text in parse_values(values["cpu_offload_gb"] or "")]
    found = [OffloadAsked(cpu_offload_gb=size, **given) for size in sizes if size]
    if any(counts.values()):
        layers, experts = counts["gpu_layers"] or (None,), counts["cpu_moe_layers"] or (0,)
        pairs = itertools.product(layers, experts)
        found += [OffloadAsked(gpu_layers=here, cpu_moe_layers=away, **given) for here, away in pairs]
    found = [one for one in found if one.computes or one.cpu_offload_gb]
    if not found and any(given.values()):
        raise UsageError(
            "nothing is to lie on the host",
            because="--host, --host-memory and --host-link say what it is, and no option says what it holds",
            hint="--gpu-layers, --cpu-moe-layers or --cpu-offload-gb, or leave them out",
        )
    if found and not given["host"]:
        raise UsageError("what lies on the host needs a host", hint="--host epyc-9654 --host-memory 384GB")
    return tuple(dict.fromkeys(found))


def _gib(text: str) -> float:
    try:
        size = parse_number(text)
    except ValueError as error:
        raise UsageError(f"--cpu-offload-gb: {error}", hint="--cpu-offload-gb 20,40") from None
    if not 0 <= size <= _MOST_GIB:
        raise UsageError(f"--cpu-offload-gb is 0 to {_MOST_GIB:,} GiB, not {text}")
    return size


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
