"""The file of ``inferplan horizon``, field by field (docs/horizon.md has a table of them)."""

from __future__ import annotations

from typing import Annotated, Literal

from inferplan.catalog.limits import LengthsText, LimitsSpec
from inferplan.spec import Field, Spec
from inferplan.units import MOST_PUE, Seconds, Watts

HOURS_OF_A_WEEK = 168.0
MOST_MONTHS = 120

Name = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^\S(.*\S)?$")]
Month = Annotated[str, Field(pattern=r"^[12]\d{3}-(0[1-9]|1[0-2])$")]
"""``2027-01``."""
Money = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
"""Requests a second."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Growth = Annotated[float, Field(gt=-1, le=10, allow_inf_nan=False)]
"""A month over the one before it, less one."""
Factor = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
Machines = Annotated[int, Field(ge=0, le=1_000_000)]


class ScenarioSpec(Spec):
    """One future. quantile: of the forecast of a log. spot: the share of each stock of spot machines that is there.
    price: the factor on prices of on-demand and spot."""

    chance: float = Field(gt=0, le=1, allow_inf_nan=False)
    quantile: float | None = Field(default=None, gt=0, lt=1, allow_inf_nan=False)
    spot: Share = 1.0
    price: Factor = 1.0


class KindSpec(Spec):
    """A machine: so many GPUs that are had together. gpu: its name on file, for replicas that are planned and prices
    that are looked up."""

    gpus: int = Field(ge=1, le=1024)
    gpu: str | None = None


class ReplicaSpec(Spec):
    """A replica on one kind of machine. rate: requests a second that it carries within its limits; absent: planned, on
    ``gpus`` in tensor parallel."""

    gpus: int = Field(default=1, ge=1, le=1024)
    rate: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)
    quant: str | None = None


class ModelSpec(LimitsSpec):
    """One model: its replicas by kind, and what a request costs that is not served."""

    replicas: dict[Name, ReplicaSpec] = Field(min_length=1)
    penalty: Money | None = None
    unserved: Share | None = None
    utilisation: float = Field(default=0.8, gt=0, le=1, allow_inf_nan=False)
    model: str | None = None
    prompt: LengthsText | None = None
    output: LengthsText | None = None


class StepSpec(Spec):
    """From a month on so many times the demand."""

    month: Month
    factor: Factor | dict[Name, Factor]


class DemandSpec(Spec):
    """Requests for a model from a region, in the busy hour of the first month: a rate, people, or those of a log."""

    model: Name
    region: Name
    rate: Rate | None = None
    people: int | None = Field(default=None, ge=1, le=10**9)
    requests_an_hour: float | None = Field(default=None, gt=0, le=3600, allow_inf_nan=False)
    log: str | None = None
    growth: Growth | dict[Name, Growth] = 0.0
    steps: list[StepSpec] = []
    levels: dict[Name, Share] = {}
    served_in: list[Name] | None = None


class OfferSpec(Spec):
    """A way to have machines of a kind in some regions."""

    kind: Name
    region: Name | list[Name]
    term: Literal["on-demand", "spot", "reserved", "owned"]
    per_hour: Money | None = None
    prices: str | None = None
    months: int | None = Field(default=None, ge=1, le=MOST_MONTHS)
    price: Money | None = None
    hosting: Money = 0.0
    power: Watts | None = None
    pue: float = Field(default=1.0, ge=1, le=MOST_PUE, allow_inf_nan=False)
    energy: Money | None = None
    first: Month | None = Field(default=None, alias="from")
    last: Month | None = Field(default=None, alias="until")
    lead: int = Field(default=0, ge=0, le=MOST_MONTHS)
    most: Machines | None = None
    interruptions: float | None = Field(default=None, ge=0, le=60, allow_inf_nan=False)
    restart: Seconds | None = None


class HaveSpec(Spec):
    """Machines that are there at the beginning. until: the first month without them."""

    kind: Name
    region: Name
    machines: Machines
    until: Month | None = None
    per_hour: Money = 0.0
    power: Watts | None = None
    release: bool = False


class QuotaSpec(Spec):
    """Machines of a kind in a region at most, on all terms together."""

    kind: Name
    region: Name
    machines: Machines


class BudgetSpec(Spec):
    """The bill of a month, and of all months, at most, in every scenario."""

    month: Money | None = None
    whole: Money | None = None


class HorizonSpec(Spec):
    """A file."""

    name: str = ""
    source: str = ""
    currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$")
    begin: Month
    months: int = Field(ge=1, le=MOST_MONTHS)
    beyond: Literal["paid", "prorated"] = "paid"
    hours: dict[Name, float] = {}
    scenarios: dict[Name, ScenarioSpec] = Field(min_length=1, max_length=50)
    kinds: dict[Name, KindSpec] = Field(min_length=1)
    models: dict[Name, ModelSpec] = Field(min_length=1)
    demand: list[DemandSpec] = Field(min_length=1, max_length=1000)
    offers: list[OfferSpec] = Field(min_length=1, max_length=1000)
    have: list[HaveSpec] = Field(default=[], max_length=1000)
    quotas: list[QuotaSpec] = []
    power: dict[Name, Watts] = {}
    budget: BudgetSpec = BudgetSpec()
