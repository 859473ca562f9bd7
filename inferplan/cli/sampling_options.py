"""The option that says how many answers a prompt gets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from inferplan.cli.options import Count

if TYPE_CHECKING:
    from inferplan.estimate.load import StaticLoad


def samples_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--samples`` to a command that gets a load, which then has them."""

    @functools.wraps(command)
    def wrapper(load: StaticLoad, **values: Any) -> Any:
        return command(load=replace(load, samples=float(values.pop("samples"))), **values)

    decorated: Callable[..., Any] = click.option(
        "--samples",
        type=Count(),
        default=1,
        show_default=True,
        help="Answers of each prompt, which share it (n of the OpenAI API).",
    )(wrapper)
    return decorated
