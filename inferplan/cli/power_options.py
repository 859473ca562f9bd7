"""The options that ask for energy, cap the watts of devices and say what a kWh emits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferplan.cli.options import Pue, noted
from inferplan.errors import UsageError
from inferplan.units import parse_quantity

if TYPE_CHECKING:
    from inferplan.answers.energy import EnergyAsked
    from inferplan.catalog.assemble import Request
    from inferplan.planning.power import PowerBudget

MOST_HOST_WATTS = 1e5


def parse_watts(text: str | None, option: str) -> float | None:
    """Watts with their unit. Raises ``UsageError`` that names the option."""
    try:
        watts = None if text is None else parse_quantity(text, "watts")
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if watts == 0.0:
        raise UsageError(f"{option} {text} leaves no power at all", hint=f"{option} 500W")
    return watts


_CAP: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--power-cap", metavar="WATTS", help="Of each device, such as 500W: nvidia-smi -pl [its TDP]. Slows arithmetic."
    ),
)
_ENERGY: tuple[Callable[[Any], Any], ...] = (
    click.option("--energy", "energy_asked", is_flag=True, help="Joules by phase; the other options ask for it too."),
    click.option("--pue", type=Pue(), help="Power of the facility over that of what is in it [GPUs alone]."),
    click.option(
        "--host-watts", metavar="WATTS", help="Of the host, for each GPU: processor, memory, network [GPUs alone]."
    ),
    click.option(
        "--carbon",
        metavar="GRAMS",
        help="CO2 of a kWh: grams, or a country whose mean is on file, such as DEU [not counted].",
    ),
)


BUDGET: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--power-cap",), {"metavar": "LIST", "help": "Watts of each device to try, instead of its TDP: 700W,500W,400W."}),
    (("--power-budget",), {"metavar": "WATTS", "help": "The most of all devices, spare ones too, such as 40kW."}),
    (
        ("--provision",),
        {
            "type": click.Choice(["tdp", "mean"]),
            "help": "What is held to it: nameplates (TDP, or the cap), or what devices draw on average [tdp].",
        },
    ),
    (
        ("--pue",),
        {"type": Pue(), "help": "Power of the facility over what is in it, in the budget [GPUs alone]."},
    ),
    (("--host-watts",), {"metavar": "WATTS", "help": "Of the host, for each GPU, in the budget [GPUs alone]."}),
)
"""What a plan is asked of watts."""


def caps_of(values: dict[str, Any]) -> tuple[float, ...]:
    """The caps that a plan tries. Raises ``UsageError`` for a list of nothing."""
    if values["power_cap"] is None:
        return ()
    named = [one.strip() for one in values["power_cap"].split(",") if one.strip()]
    found = tuple(watts for one in named if (watts := parse_watts(one, "--power-cap")) is not None)
    if not found:
        raise UsageError(f"--power-cap {values['power_cap']!r} names no watts", hint="--power-cap 700W,500W")
    return found


def budget_of(values: dict[str, Any]) -> PowerBudget | None:
    """The power budget of a plan. Raises ``UsageError`` for what describes one where there is none."""
    watts = parse_watts(values["power_budget"], "--power-budget")
    given = [name for name in ("provision", "pue", "host_watts") if values[name] is not None]
    if watts is None:
        if given:
            option = f"--{given[0].replace('_', '-')}"
            raise UsageError(f"{option} describes a power budget, and none is given", hint="--power-budget 40kW")
        return None
    from inferplan.answers.energy import EnergyAsked
    from inferplan.planning.power import PowerBudget

    beside = EnergyAsked(pue=values["pue"] or 1.0, host_watts=parse_watts(values["host_watts"], "--host-watts") or 0.0)
    return PowerBudget(watts=watts, provision=values["provision"] or "tdp", beside=beside)


def _added(command: Callable[..., Any], options: tuple[Callable[[Any], Any], ...]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


def cap_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--power-cap`` to a command that gets a request: it becomes part of it."""

    @functools.wraps(command)
    def wrapper(request: Request, **values: Any) -> Any:
        watts = parse_watts(values.pop("power_cap"), "--power-cap")
        return command(request=request if watts is None else noted(replace(request, power_cap=watts)), **values)

    return _added(wrapper, _CAP)


def energy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what asks for energy: the command gets ``energy``, ``None`` where nothing asks for it."""

    @functools.wraps(command)
    def wrapper(**values: Any) -> Any:
        return command(energy=energy_of(values), **values)

    return _added(wrapper, _ENERGY)


def grid_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--grid``, beneath :func:`energy_options`: CO2 by the time of day, instead of ``--carbon``."""

    @functools.wraps(command)
    def wrapper(energy: EnergyAsked | None, **values: Any) -> Any:
        path = values.pop("grid")
        if path is None:
            return command(energy=energy, **values)
        from inferplan.answers.energy import EnergyAsked
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
    pue, host, carbon = (values.pop(name) for name in ("pue", "host_watts", "carbon"))
    if not asked and pue is None and host is None and carbon is None:
        return None
    from inferplan.answers.energy import EnergyAsked
    from inferplan.catalog.carbon import carbon_of

    watts = parse_watts(host, "--host-watts")
    return EnergyAsked(pue=pue or 1.0, host_watts=watts or 0.0, carbon=carbon_of(carbon))
