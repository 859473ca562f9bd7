"""The options that say how many answers a prompt gets, and how many beams an answer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from inferplan.cli.numbers import Count

if TYPE_CHECKING:
    from inferplan.estimate.batch import Estimate
    from inferplan.estimate.load import StaticLoad
    from inferplan.table import Report


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


def searched(result: Estimate, width: int) -> Report:
    """The report of beams of a static batch."""
    from inferplan.estimate.run import estimate
    from inferplan.reports.beams import beams_report
    from inferplan.serving.techniques.beams import BeamSearch

    search = BeamSearch(deployment=result.deployment, load=result.load, width=width)
    estimate(result.deployment, search.inside.load)  # which refuses what does not fit, or shares nothing
    return beams_report(search)
