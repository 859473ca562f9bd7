"""Energy as it is asked for: whether it is, what is counted beside the devices, what a kWh emits (docs/power.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from inferplan.catalog.carbon import Carbon, carbon_of, grid_of
from inferplan.errors import UsageError
from inferplan.fields import Quantity, Real, Switch, Text, Topic, ask
from inferplan.units import MOST_PUE


def require_pue(pue: float) -> None:
    """Raise ``UsageError`` for what is no power usage effectiveness."""
    if not 1 <= pue <= MOST_PUE:
        raise UsageError(
            f"a PUE is 1 to {MOST_PUE:g}, not {pue:g}",
            because="it is the energy of a data centre over the energy of its IT equipment (ISO/IEC 30134-2)",
            hint="--pue 1.2",
        )


@dataclass(frozen=True, kw_only=True)
class EnergyAsked:
    """Energy as it is asked for, and what is counted beside the devices. pue: power of the facility over that of what
    stands in it; 1 counts none. host_watts: of the host, for each device; 0 counts none. carbon: of the electricity;
    ``None`` where nobody says.
    """

    topic: ClassVar = Topic("energy", by_any=True)
    asked: bool = ask("--energy", Switch(), "Joules by phase; the other options imply it.", False)
    pue: float = ask(
        "--pue", Real(1, MOST_PUE), "PUE: power of the facility over the power of its IT equipment [GPUs only].", 1.0
    )
    host_watts: float = ask(
        "--host-watts",
        Quantity("watts", above=True),
        "Watts of the host per GPU: processor, memory, network [GPUs only].",
        0.0,
    )
    carbon: Carbon | None = ask(
        "--carbon",
        Text(carbon_of),
        "CO2 per kWh: grams, or a country whose mean is on file, such as DEU [not counted].",
        None,
        metavar="GRAMS",
    )

    def __post_init__(self) -> None:
        require_pue(self.pue)

    def whole(self, joules: float, devices: int, seconds: float) -> float:
        """Joules with what is counted beside the devices, of which so many take ``joules`` in ``seconds``."""
        return self.pue * (joules + self.host_watts * devices * seconds)

    @property
    def scope(self) -> str:
        """What is counted."""
        host = f" + {self.host_watts:g} W of the host each" if self.host_watts else ""
        facility = f", x PUE {self.pue:g}" if self.pue != 1 else ""
        return f"GPUs{host}{facility}" if host or facility else "GPUs alone"


@dataclass(frozen=True, kw_only=True)
class EnergyOfDay(EnergyAsked):
    """The same of a day, in which a kWh may emit more at one hour than at another."""

    grid: Carbon | None = ask(
        "--grid",
        Text(lambda path: grid_of(Path(path))),
        "CO2 per kWh by time of day: a CSV with the columns time and grams.",
        None,
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grid is not None:
            if self.carbon is not None:
                raise UsageError("--grid and --carbon both state the CO2 per kWh", hint="leave one of them out")
            object.__setattr__(self, "carbon", self.grid)
