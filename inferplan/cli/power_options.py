"""The options that ask for energy, cap the watts of devices and say what a kWh emits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from inferplan.cli.options import Positive, noted
from inferplan.errors import UsageError
from inferplan.units import parse_quantity

if TYPE_CHECKING:
    from inferplan.answers.energy import EnergyAsked
    from inferplan.catalog.assemble import Request

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
    click.option("--pue", type=Positive(1.0), help="Power of the facility over that of what is in it [GPUs alone]."),
    click.option(
        "--host-watts", metavar="WATTS", help="Of the host, for each GPU: processor, memory, network [GPUs alone]."
    ),
    click.option(
        "--carbon",
        metavar="GRAMS",
        help="CO2 of a kWh: grams, or a country whose mean is on file, such as DEU [not counted].",
    ),
)


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
