"""The options of what GPUs may be had, for ``fleet`` and ``several``."""

from __future__ import annotations

from typing import Any

import click

from inferplan.cli.numbers import Positive
from inferplan.cli.options import option_group
from inferplan.cli.plan import gpu_name
from inferplan.errors import UsageError
from inferplan.planning.machines import Kind
from inferplan.units import parse_whole

_MOST = 1_000_000
"""GPUs of one stock."""


def stocks_of(text: str, owned: bool) -> Kind:
    """``"a100-80gb-sxm=16"``, or ``"h200-sxm"``, of which there are as many as are wanted.

    Raises ``UsageError`` for what is no number of GPUs, ``UnknownNameError`` for no GPU.
    """
    name, given, number = text.rpartition("=")
    option = "--own" if owned else "--rent"
    if not given and owned:
        raise UsageError(
            f"--own {text} does not say how many", because="GPUs that are owned are counted", hint=f"--own {text}=16"
        )
    count = None
    if given:
        try:
            count = parse_whole(number)
        except ValueError:
            count = 0
        if not 0 < count <= _MOST:
            raise UsageError(
                f"{option} {text}: {number!r} is no number of GPUs", hint=f"{option} {name}=16, a count up to {_MOST:,}"
            )
    return Kind(gpu=gpu_name(name if given else text), owned=owned, most=count)


def stock_kinds(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[Kind, ...]:
    """Callback of --own and --rent."""
    if ctx.resilient_parsing:
        return ()
    return tuple(stocks_of(text, param.name == "own") for text in values)


stock_options = option_group(
    click.option(
        "--own", multiple=True, metavar="GPU=N", callback=stock_kinds, help="GPUs that you have; again for others."
    ),
    click.option(
        "--rent",
        multiple=True,
        metavar="GPU[=N]",
        callback=stock_kinds,
        help="GPUs that may be rented, up to a number; again for others [several without --own: as many as it needs].",
    ),
    click.option(
        "--own-price",
        type=Positive(0.0),
        default=0.0,
        metavar="PRICE",
        help="What an hour of an owned GPU that works costs more than of one that is idle, such as power [0].",
    ),
)


def stock_of(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of a :class:`inferplan.planning.machines.Stock`."""
    return {"kinds": (*values["own"], *values["rent"]), "own_price": values["own_price"]}
