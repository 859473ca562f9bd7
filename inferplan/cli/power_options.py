"""Options that ask for energy and say what a kWh emits; the caps on the watts of devices that a plan tries."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from inferplan.answers.energy import EnergyAsked
from inferplan.cli.declared import asks
from inferplan.errors import UsageError
from inferplan.fields import Quantity, option_values


def caps_of(values: dict[str, Any]) -> tuple[float, ...]:
    """The caps that a plan tries. Raises ``UsageError`` for a list of nothing."""
    if values["power_cap"] is None:
        return ()
    named = [one.strip() for one in values["power_cap"].split(",") if one.strip()]
    found = tuple(Quantity("watts", above=True).read("--power-cap", one) for one in named)
    if not found:
        raise UsageError(f"--power-cap {values['power_cap']!r} names no watts", hint="--power-cap 700W,500W")
    return found


def energy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what asks for energy: the command gets ``energy``, ``None`` where nothing asks for it."""

    @functools.wraps(command)
    def wrapper(**values: Any) -> Any:
        return command(energy=energy_of(values), **values)

    asked = click.option(
        "--energy", "energy_asked", is_flag=True, help="Joules by phase; the other options ask for it too."
    )
    return asked(asks(EnergyAsked)(wrapper))


def grid_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--grid``, beneath :func:`energy_options`: CO2 by the time of day, instead of ``--carbon``."""

    @functools.wraps(command)
    def wrapper(energy: EnergyAsked | None, **values: Any) -> Any:
        path = values.pop("grid")
        if path is None:
            return command(energy=energy, **values)
        from inferplan.catalog.carbon import grid_of

        asked = energy or EnergyAsked()
        if asked.carbon is not None:
            raise UsageError("--grid and --carbon say what a kWh emits both", hint="leave one of them out")
        return command(energy=replace(asked, carbon=grid_of(Path(path))), **values)

    text = "CO2 of a kWh by the time of day: a CSV with the columns time and grams."
    return click.option("--grid", metavar="FILE", help=text)(wrapper)


def energy_of(values: dict[str, Any]) -> EnergyAsked | None:
    """What is asked for; it is taken out of ``values``. Raises what its options are no values of."""
    asked = values.pop("energy_asked")
    given = option_values(EnergyAsked, {name: values.pop(name) for name in ("pue", "host_watts", "carbon")})
    return EnergyAsked(**given) if asked or given else None
