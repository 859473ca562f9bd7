"""The options that say which LoRA adapters are served beside a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from inferplan.cli.options import Count, Finite, part_of_request
from inferplan.errors import UsageError
from inferplan.traffic.popularity import Popularity
from inferplan.work.adapters import MODULES, LoraAsked

Command = Callable[..., Any]

LORA: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("--lora-rank",), {"type": Count(), "help": "Serve LoRA adapters of this rank (max_lora_rank)."}),
    (
        ("--lora-modules",),
        {"metavar": "LIST", "help": f"Matrices that they change, of {','.join(MODULES)}. [every linear layer]"},
    ),
    (("--max-loras",), {"type": Count(), "help": "Adapters in device memory at once. [1, as vLLM]"}),
    (("--active-loras",), {"type": Count(0), "help": "Different adapters in a batch, at most. [--max-loras]"}),
    (("--lora-folder",), {"metavar": "DIR", "help": "An adapter as PEFT saves it, which says rank and matrices."}),
]
"""The options as data."""
SLOTS = [one for one in LORA if "--active-loras" not in one[0]]
"""Those that slots follow from."""


def lora_values(values: dict[str, Any]) -> LoraAsked:
    """What the options say, which are taken out of ``values``."""
    text = values.pop("lora_modules")
    modules = tuple(name.strip().removesuffix("_proj") for name in (text or "").split(",") if name.strip())
    if text is not None and not modules:
        raise UsageError(f"--lora-modules {text!r} names nothing", hint="--lora-modules q,v")
    return LoraAsked(
        rank=values.pop("lora_rank"),
        modules=modules,
        slots=values.pop("max_loras"),
        active=values.pop("active_loras"),
        folder=values.pop("lora_folder"),
    )


NAMED: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (
        ("--loras",),
        {"type": Count(), "help": "LoRA adapters that requests name, with --lora-rank or --lora-folder."},
    ),
    (
        ("--lora-skew",),
        {"type": Finite(), "help": "The i-th most popular of them has a share of i^-SKEW (Zipf); 0: all alike."},
    ),
    (
        ("--lora-bandwidth",),
        {"metavar": "RATE", "help": "From the host to one device, for an adapter that is loaded [on file]."},
    ),
]
"""What requests name of them under load, as data."""


def popularity_of(values: dict[str, Any]) -> Popularity | None:
    """How popular the adapters are that requests name; ``None`` where they name none."""
    count, skew = values["loras"], values["lora_skew"]
    if (count is None) != (skew is None):
        raise UsageError(
            "adapters need their number and how popular they are: --loras and --lora-skew",
            hint="--loras 100 --lora-skew 1, or --lora-skew 0 for all alike",
        )
    if count is None and values["lora_bandwidth"] is not None:
        raise UsageError("--lora-bandwidth is of adapters, and requests name none", hint="--loras 100 --lora-skew 1")
    return None if count is None else Popularity(count=count, skew=skew)


def slot_options(command: Command) -> Command:
    """Adds what the slots of adapters follow from, as values of the command."""
    for declarations, keywords in reversed(SLOTS):
        command = click.option(*declarations, **keywords)(command)
    return command


lora_options = part_of_request(LORA, "lora", lora_values)
"""Adds the adapters; the command's ``request`` then has them."""
