"""The file of ``inferplan regions``, field by field (docs/regions.md has a table of them)."""

from __future__ import annotations

from typing import Annotated, Literal

from inferplan.catalog.limits import LengthsText, LimitsSpec
from inferplan.catalog.services import ReplicaSpec
from inferplan.horizon.file import Factor, Money, Name
from inferplan.spec import Field, Spec
from inferplan.units import MOST_PUE, Seconds, Watts

HOURS = 24
MOST_REGIONS = 12

ByHour = Annotated[
    list[Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]], Field(min_length=24, max_length=24)
]
"""A value of each hour of a day, from midnight on."""


class ServiceSpec(ReplicaSpec, LimitsSpec):
    """What runs in every region: the model, its replica, its requests and their limits."""

    model: str
    prompt: LengthsText
    output: LengthsText
    utilisation: float = Field(default=0.8, gt=0, le=1, allow_inf_nan=False)


class PriceSpec(Spec):
    """What a machine costs. per_hour: of one of ``gpus``; or the machines of a list on file. factor: on that price, for
    all hours or each of the region's."""

    per_hour: Money | None = None
    gpus: int = Field(default=1, ge=1, le=1024)
    prices: str | None = None
    term: Literal["on-demand", "reserved"] = "on-demand"
    length: str | None = None
    factor: Factor | ByHour = 1.0


class RegionSpec(Spec):
    """A region: its users, its machines, or both. Hours are those of its clock, which is ``utc`` hours ahead of UTC."""

    utc: float = Field(default=0.0, ge=-12, le=14, allow_inf_nan=False, multiple_of=0.25)
    load: str | ByHour | None = None
    peak: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)
    access: Seconds | None = Field(default=None, ge=0)
    stays: bool | list[Name] = False
    hired: PriceSpec | None = None
    held: PriceSpec | None = None
    most: int | None = Field(default=None, ge=0, le=1_000_000)
    replica: ReplicaSpec | None = None
    carbon: float | str | ByHour | None = None
    pue: float = Field(default=1.0, ge=1, le=MOST_PUE, allow_inf_nan=False)
    host_watts: Watts = Field(default=0.0, ge=0)


class NetworkSpec(Spec):
    """The round trip between two regions."""

    between: list[Name] = Field(min_length=2, max_length=2)
    rtt: Seconds = Field(ge=0)


class RegionsSpec(Spec):
    """A file."""

    name: str = ""
    source: str = ""
    currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$")
    service: ServiceSpec
    round_trips: int = Field(default=1, ge=1, le=10)
    regions: dict[Name, RegionSpec] = Field(min_length=1, max_length=MOST_REGIONS)
    network: list[NetworkSpec] = Field(default=[], max_length=200)
