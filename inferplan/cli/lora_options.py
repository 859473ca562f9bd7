"""The options that say which LoRA adapters are served beside a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from inferplan.cli.options import Count, part_of_request
from inferplan.errors import UsageError
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


def slot_options(command: Command) -> Command:
    """Adds what the slots of adapters follow from, as values of the command."""
    for declarations, keywords in reversed(LORA):
        if "--active-loras" not in declarations:
            command = click.option(*declarations, **keywords)(command)
    return command


lora_options = part_of_request(LORA, "lora", lora_values)
"""Adds the adapters; the command's ``request`` then has them."""
