"""One point of a priced grid with its replicas: what a plan is before it is simulated, and its bill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from inferplan.catalog.assemble import Request
from inferplan.catalog.bills import Bill as Purchase
from inferplan.catalog.bills import Tariff
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.support import DRAFTS, POOLS, lacking
from inferplan.planning.confidence import AS_PREDICTED, MIDDLE, Slowness
from inferplan.planning.demand import Demand, ruling
from inferplan.planning.grid import LoadGrid
from inferplan.planning.power import PowerBudget
from inferplan.planning.redundancy import Survive
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.serving.techniques.tiers import CacheTier
from inferplan.terms import ceil
from inferplan.traffic.requests import Slo
from inferplan.units import Array, Num


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """How replicas are counted. utilisation: the share of its capacity that a replica is given. spare: more of them.

    confidence: the chance that the limits are kept, as far as the error of the prediction is known
    (:mod:`inferplan.planning.confidence`). insists: a plan that cannot keep them at that confidence is refused; else it
    is for the prediction itself, and says so. miss_cost: of an hour in which a limit is missed, in the currency of the
    prices; ``None``: as :mod:`inferplan.planning.miss` derives it. power: the most watts of all devices.
    owned: the most GPUs. max_cost: the most per hour, of a job in all, in the currency of the prices. survive: what may
    be lost at a time, with the limits kept through it (:mod:`inferplan.planning.survival`).
    """

    utilisation: float = 0.8
    spare: int = 0
    confidence: float = MIDDLE
    insists: bool = True
    miss_cost: float | None = None
    power: PowerBudget | None = None
    owned: OwnedGpus | None = None
    max_cost: float | None = None
    survive: Survive | None = None

    @property
    def limits(self) -> tuple[SizeLimit, ...]:
        """What bounds a size before it is run."""
        return tuple(limit for limit in (self.power, self.owned) if limit is not None)

    def lost(self, deployment: Deployment) -> int:
        """Replicas that may be lost at a time."""
        return 0 if self.survive is None else self.survive.lost(deployment)

    def replicas(self, load: float, capacity: Num) -> Num:
        """Replicas, without the spare ones, that carry ``load``: ``max(ceil(load/(utilisation*capacity)), 1)``.

        load, capacity: both in requests a second, or both in users; of one point, or an array over a grid.
        """
        replicas: Num = np.maximum(ceil(load / (capacity * self.utilisation)), 1.0)
        return replicas


@dataclass(frozen=True)
class OwnedGpus:
    """The most GPUs of each kind that a plan may take, spare ones too; of kinds that are not named, any number."""

    counts: Mapping[str, int]
    fills: ClassVar = True

    @classmethod
    def of(cls, kinds: Iterable[tuple[Deployment, int]]) -> OwnedGpus:
        """No more than deployments on so many devices take."""
        return cls(_by_gpu(kinds))

    @property
    def names(self) -> list[str]:
        """``["2x-rtx-a6000"]``, as options name them."""
        return [f"{count}x-{gpu}" for gpu, count in self.counts.items()]

    def allows(self, kinds: Iterable[tuple[Deployment, int]]) -> bool:
        """Whether deployments on so many devices take no more."""
        return all(count <= self.counts.get(gpu, count) for gpu, count in _by_gpu(kinds).items())

    def over(self, kinds: Iterable[tuple[Deployment, int]]) -> int:
        """GPUs that they take beyond those."""
        taken = _by_gpu(kinds)
        return sum(max(count - self.counts.get(gpu, count), 0) for gpu, count in taken.items())

    def describe(self) -> str:
        """``"2 x rtx-a6000"``."""
        return ", ".join(f"{count} x {gpu}" for gpu, count in self.counts.items())


def _by_gpu(kinds: Iterable[tuple[Deployment, int]]) -> Counter[str]:
    found = Counter[str]()
    for deployment, count in kinds:
        found[deployment.hardware.name] += count
    return found


class Stream(NamedTuple):
    """What replicas are looked for: a load, the limits on its latencies, and how replicas are counted for it."""

    demand: Demand
    slo: Slo
    sizing: Sizing

    @property
    def little(self) -> Stream:
        """Of a rate that one replica of anything carries, so that the cheapest point is the one that carries most."""
        return self._replace(demand=replace(self.demand, rate=1e-3))

    @property
    def ruling(self) -> Stream:
        """With the limits that rule a fleet out without a simulation."""
        return self._replace(slo=ruling(self.slo, self.demand.classes))


class SizeLimit(Protocol):
    """What a number of replicas may break without a run."""

    @property
    def fills(self) -> bool:
        """Whether replicas that the same bill holds besides may run too."""

    def allows(self, kinds: list[tuple[Deployment, int]]) -> bool:
        """Whether deployments on so many devices keep it."""


class PromptPool(NamedTuple):
    """What computes prompts where that is another deployment than what decodes."""

    request: Request
    deployment: Deployment
    tariff: Tariff


RELEASE = "engine release"
"""A release that is named (``vllm@0.19``), beside the newest: the form of an option."""
_CALLED = {POOLS: "pools for prompts and for decodes", RELEASE: "another engine release"}
"""Forms whose name does not say what they are, as a note calls them."""


@dataclass(frozen=True, kw_only=True)
class Forgone:
    """What a less simple form might be worth that was not chosen.

    advantage: the share by which it is predicted to carry more for the same money. error: by how much that ratio may be
    off, as a share. pairs: measured ones behind the error, the fewest where forms go together.
    """

    forms: tuple[str, ...]
    advantage: float
    error: float
    pairs: int

    @property
    def text(self) -> str:
        """In a sentence: what it might be worth, and why it was not chosen."""
        what = " and ".join(_CALLED.get(form, form) for form in self.forms)
        return (
            f"{what} might carry {self.advantage:.0%} more for the same money, but is not chosen: "
            f"in {self.pairs} measured pairs, 1 in 5 predicted ratios was off by more than {self.error:.0%}"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanOption:
    """One point of one grid with its replicas: a plan before it is simulated. Of pools apart it is what decodes.

    rate: requests a second of one replica at this point, which is its capacity under the limits. output: mean output
    tokens of a request. ttft, tpot, e2el, answer_ttft: seconds at the percentile asked for. replicas: without the spare
    ones. cost: the bill of an hour, or of the whole job where it is offline; ``None`` without a price.
    """

    request: Request
    deployment: Deployment
    budget: int
    batch: int
    concurrency: float
    ttft: float
    tpot: float
    e2el: float
    answer_ttft: float
    rate: float
    output: float
    replicas: int
    spare: int
    tariff: Tariff | None
    cost: float | None
    hours: float | None = None
    """Hours of an offline job."""
    pools: tuple[int, int] | None = None
    """Replicas that compute prompts and replicas that decode, where they are apart."""
    prompt_budget: int | None = None
    """Tokens of a step of the replicas that compute prompts, where they are apart; ``budget`` is of the others."""
    prompts: PromptPool | None = None
    """What computes prompts, where it is not what decodes; each pool then has the spare replicas."""
    speculation: Speculation = PLAIN
    bound: float = 0.0
    """The least that this structure may cost, as far as the closed form can be wrong."""
    least: tuple[int, int] = (1, 1)
    """The replicas of each pool that are taken for this, where they are apart."""
    screened: bool = True
    """Whether the closed form meets the limits; if not, it misses them by less than it can be wrong."""
    slow: Slowness = AS_PREDICTED
    """How much slower than predicted the devices are taken to be."""
    slots: int | None = None
    """Sequences that one replica is started with; ``None``: as its load takes."""
    limits: tuple[SizeLimit, ...] = ()
    """What bounds its size; one that breaks any costs infinitely much."""
    forgone: Forgone | None = None
    """What a less simple form might be worth, whose advantage over this one is within the error of their ratio."""
    tiers: tuple[CacheTier, ...] = ()
    """Cache tiers beside the devices, the nearest first; those without a price cost nothing here."""

    @property
    def narrowness(self) -> tuple[bool, float, bool]:
        """Grows with how far its formats are from the checkpoint's: of what costs the same the least of it is taken. Of
        as many bits floating point goes first: engines make fp8 of the released checkpoint, and it keeps more of the
        answers (arXiv 2411.02355)."""
        requests = [self.request] if self.prompts is None else [self.prompts.request, self.request]
        formats = [fmt for one, _, _ in self.sold for fmt in (one.precision.weights, one.precision.experts)]
        least = min(formats, key=lambda fmt: (fmt.bits, fmt.math.startswith("fp")))
        return any(request.quant is not None for request in requests), -least.bits, least.math.startswith("int")

    @property
    def forms(self) -> tuple[str, ...]:
        """What it has beyond its deployment that measured systems must have had too (:func:`lacking`)."""
        forms = {DRAFTS: self.speculation.length > 0, POOLS: self.pools is not None}
        return tuple(form for form, has in forms.items() if has)

    @property
    def lacking(self) -> dict[str, int]:
        """Of what too few systems were measured for an error band, with how many; of both its kinds of replicas."""
        return {name: count for one, _ in self.kinds for name, count in lacking(one, self.forms).items()}

    def sized(self, replicas: int, pools: tuple[int, int] | None = None) -> PlanOption:
        """The same with so many replicas, and its bill."""
        found = replace(self, replicas=replicas, pools=pools)
        if not found.allowed:
            vars(found)["cost"] = (
                inf  # nobody has seen it yet, and another copy of all fields takes as long as the bill
            )
        elif self.tariff is not None:
            vars(found)["cost"] = found._per_hour * (1.0 if self.hours is None else self.hours)
        return found

    @property
    def sold(self) -> list[tuple[Deployment, Tariff | None, int]]:
        """Each deployment, how its replicas are sold and their number, the spare ones too; what computes prompts first:
        replicas of two kinds have instances of their own.
        """
        if self.prompts is None or self.pools is None:
            return [(self.deployment, self.tariff, self.replicas + self.spare)]
        prefill, decode = (size + self.spare for size in self.pools)
        first = self.prompts
        return [(first.deployment, first.tariff, prefill), (self.deployment, self.tariff, decode)]

    @property
    def _per_hour(self) -> float:
        """The bill of an hour, as far as there are prices."""
        return sum(float(tariff.cost(paid)) for _, tariff, paid in self.sold if tariff is not None) + self.tier_cost

    @property
    def allowed(self) -> bool:
        """Whether its devices, the spare ones too, keep what bounds its size, as far as that is known without a run."""
        return all(limit.allows(self.kinds) for limit in self.limits)

    def filled(self, replicas: int) -> int:
        """So many replicas, and those that the same bill holds besides: an instance is paid for whole. No more of those
        than what bounds its size allows, and none that have tiers of their own to pay for.
        """
        if any(tier.price is not None and not tier.shared for tier in self.tiers):
            return replicas
        if self.tariff is None or not all(limit.fills for limit in self.limits):
            return replicas
        most = self.tariff.filled(replicas + self.spare) - self.spare
        while most > replicas and not replace(self, replicas=most).allowed:
            most -= 1
        return most

    def tier_bill(self, devices: int) -> float:
        """What the tiers cost an hour beside so many devices, as far as they have prices."""
        return sum(tier.cost(devices) or 0.0 for tier in self.tiers)

    @property
    def tier_cost(self) -> float:
        """What they cost an hour beside all replicas, the spare ones too."""
        return self.tier_bill(self.devices)

    @property
    def gpu_cost(self) -> float:
        """What the instances cost an hour, without the tiers."""
        return sum(bill.per_hour for bill in self.purchases)

    @property
    def devices(self) -> int:
        """Devices of all replicas, the spare ones too."""
        return sum(count for _, count in self.kinds)

    @property
    def kinds(self) -> list[tuple[Deployment, int]]:
        """Each deployment with the devices of all its replicas, the spare ones too; what computes prompts first."""
        return [(one, one.parallel.ranks * count) for one, _, count in self.sold]

    @property
    def purchases(self) -> list[Purchase]:
        """What is bought for the replicas of each deployment, the spare ones too; nothing without a price."""
        return [tariff.bill(count) for _, tariff, count in self.sold if tariff is not None]

    @property
    def per_device(self) -> float:
        """Output tokens a second and device at capacity."""
        ranks = float(self.deployment.parallel.ranks)
        if self.prompts is not None and self.pools is not None:  # of a replica of either kind, on average
            first = self.prompts.deployment.parallel.ranks
            ranks = (self.pools[0] * first + self.pools[1] * ranks) / self.replicas
        return self.rate * self.output / ranks

    @property
    def per_user(self) -> float:
        """Output tokens a second and user."""
        return 1.0 / self.tpot

    def violations(self, slo: Slo) -> dict[str, float]:
        """Each limit that is not met, with the factor by which it would have to be relaxed."""
        return {name: getattr(self, name) / limit for name, limit in slo.limits.items() if getattr(self, name) > limit}


class PricedGrid(NamedTuple):
    """A grid, how it is asked for, and how its replicas are sold where somebody sells them."""

    request: Request
    grid: LoadGrid
    tariff: Tariff | None


class GridCosts(NamedTuple):
    """What each point of a grid takes and costs; arrays of the grid's shape, batch down and budget across."""

    replicas: Array
    """Without the spare ones."""
    cost: Array
    """Of an hour, or of the whole job where it is offline."""
    hours: Array
    """Of an offline job, else one."""


def bill(demand: Demand, sizing: Sizing, priced: PricedGrid, at: Any = ...) -> GridCosts:
    """Replicas and cost of every point of a grid, or of those ``at`` an index; without a price, devices are counted."""
    grid, tariff = priced.grid, priced.tariff
    rate = grid.rate[at]
    load, capacity = demand.requests_per_second or 0.0, rate
    if demand.users is not None:  # N = X R + X Z: those who wait, and those who think meanwhile
        load, capacity = demand.users, grid.concurrency[at] + rate * demand.think
    if demand.requests is not None and demand.deadline is not None:
        replicas, seconds = _of_a_job(demand, sizing, rate, grid.concurrency[at] / rate)
    else:
        replicas, seconds = np.asarray(sizing.replicas(load, capacity)), np.full_like(np.asarray(rate), 3600.0)
    hours = seconds / 3600
    paid = replicas + sizing.spare
    cost = paid * grid.devices if tariff is None else tariff.cost(paid)
    return GridCosts(replicas, np.asarray(cost * hours), hours)


def _of_a_job(demand: Demand, sizing: Sizing, rate: Array, lasting: Array) -> tuple[Array, Array]:
    """Replicas that finish an offline job, and the seconds that it takes: its requests at full speed, and one more that
    begins last, which takes ``lasting`` seconds. Infinitely many where one request alone takes too long.
    """
    requests, deadline = float(demand.requests or 0), float(demand.deadline or 0.0)
    left = np.maximum(deadline - lasting, 0.0)
    with np.errstate(divide="ignore"):
        needed = np.maximum(np.ceil(requests / (rate * left * sizing.utilisation) - 1e-9), 1.0)
    replicas = np.where(left > 0, np.minimum(needed, requests), np.inf)
    return np.asarray(replicas), np.asarray(requests / (rate * replicas) + lasting)


def figures_at(grid: LoadGrid, at: tuple[int, int]) -> dict[str, Any]:
    """What an option says of a point of its grid, by field: ``at`` is (index of the batch, index of the budget)."""
    names = ("concurrency", "ttft", "tpot", "e2el", "answer_ttft", "rate")
    axes = {"budget": int(grid.axes.budget[at[1]]), "batch": int(grid.axes.batch[at[0]])}
    return {**axes, **{name: float(getattr(grid, name)[at]) for name in names}}


def option_at(priced: PricedGrid, demand: Demand, sizing: Sizing, at: tuple[int, int]) -> PlanOption:
    """The option at one point of a grid."""
    grid, tariff = priced.grid, priced.tariff
    billed = bill(demand, sizing, priced, at)
    return PlanOption(
        request=priced.request,
        deployment=grid.deployment,
        **figures_at(grid, at),
        output=demand.output.average,
        replicas=int(np.minimum(billed.replicas, demand.requests or np.inf)),  # of a job that is late: one a request
        spare=sizing.spare,
        tariff=tariff,
        cost=None if tariff is None else float(billed.cost),
        hours=float(billed.hours) if demand.offline else None,
        speculation=grid.speculation,
        limits=sizing.limits,
    )
