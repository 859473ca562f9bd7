"""What a plan keeps, one class each, and that a search and a sizing hold a new one without knowing it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.price_lists import price_book
from inferplan.planning import constraints, search
from inferplan.planning.constraints import Constraint, WithinOwned, WithinPower, constraints_of
from inferplan.planning.demand import Demand
from inferplan.planning.grid import LoadGrid
from inferplan.planning.option import OwnedGpus, Sizing, Stream
from inferplan.planning.power import PowerBudget
from inferplan.planning.question import Question
from inferplan.planning.search import keeping
from inferplan.planning.sizing import Sizer
from inferplan.planning.space import Space
from inferplan.planning.verify import Verified
from inferplan.traffic.requests import Lengths, Slo
from inferplan.units import BoolArray
from inferplan.work.parallel import Parallelism

LIMITS = Slo(ttft=0.5, tpot=0.05, percentile=95.0)


def test_points_keep_what_each_constraint_says() -> None:
    """Five points: a cache that is too full, too many requests, no room for prompts, a late token, and one that keeps
    everything."""
    grid: Any = SimpleNamespace(
        rate=np.ones(5),
        memory_use=np.array([1.1, 1.0, 1.0, 1.0, 1.0]),
        concurrency=np.array([1.0, 9.0, 8.0, 8.0, 8.0]),
        slots=8.0,
        prefill_use=np.array([0.5, 0.5, 1.0, 0.5, 0.5]),
        ttft=np.array([0.1, 0.1, 0.1, 0.1, 0.5]),
        tpot=np.array([0.01, 0.01, 0.01, 0.06, 0.05]),
    )
    held = constraints_of(LIMITS, Sizing())
    assert [one.reason for one in held] == ["memory", "slots", "prefill", "ttft", "tpot"]
    assert keeping(grid, held).tolist() == [False, False, False, False, True]
    misses = [np.flatnonzero(~np.asarray(one.points(grid))).tolist() for one in held]
    assert misses == [[0], [1], [2], [], [3]]


def test_a_device_without_a_nameplate_cannot_be_held_to_watts() -> None:
    known = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    nobody: Any = SimpleNamespace(hardware=SimpleNamespace(power=None, name="x"))
    limit = WithinPower(PowerBudget(watts=1e3))
    assert not limit.unknown(known) and limit.unknown(nobody) == "the power of x is not on file"
    assert limit.describe() == "within 1 kW (nameplate, GPUs alone)"


def test_too_few_gpus_are_counted_by_kind() -> None:
    """Prompts on 4 A100, decoding on 3 replicas of 2 H100."""
    prompts = assemble(Request(model="llama-3.1-8b", gpu="a100-80gb-sxm", parallel=Parallelism(tp=4)))
    decode = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", parallel=Parallelism(tp=2)))
    least: Any = SimpleNamespace(kinds=[(prompts, 4), (decode, 6)], replicas=3, deployment=decode, devices=10)
    because, hint = WithinOwned(OwnedGpus({"h100-sxm": 4})).ruled_out(least, SimpleNamespace())  # type: ignore[arg-type]
    assert because == (
        "the cheapest that keep the limits are 4 x a100-80gb-sxm, 6 x h100-sxm: "
        "3 replicas of llama-3.1-8b in bf16, each on 2 x h100-sxm (tp 2)"
    )
    assert hint.startswith("--gpu 4x-a100-80gb-sxm,6x-h100-sxm, ")


class SmallBatches(Constraint):
    """No more than eight sequences at once."""

    reason, counted = "batch", "more than eight sequences"

    def points(self, grid: LoadGrid) -> BoolArray:
        return np.broadcast_to(grid.axes.batch[:, None] <= 8, grid.rate.shape)


def test_a_new_constraint_is_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its points are counted under its own reason, and no option has others."""

    def with_it(slo: Slo, sizing: Sizing) -> list[Constraint]:
        return [SmallBatches(), *constraints.constraints_of(slo, sizing)]

    monkeypatch.setattr(search, "constraints_of", with_it)
    space = Space(
        base=Request(model="llama-3.1-8b", gpu="", ideal=True),
        gpus=("h100-sxm",),
        quants=(None,),
        most=1,
        budgets=(2048, 8192),
        disaggregate=False,
    )
    demand = Demand(prompt=Lengths(mean=1024), output=Lengths(mean=128), rate=5.0)
    found = search.search(space, Stream(demand, LIMITS, Sizing()), price_book(stated=["h100-sxm=3"]))
    (priced,) = found.grids
    assert found.rejections.counts["batch"] == 2 * (len(priced.grid.axes.batch) - 8)
    assert 1 <= found.options[0].batch <= 8


class TwiceAsMany(Constraint):
    """Asks for a size of twice the cost."""

    grows = True

    def grown(self, run: Verified, question: Question) -> Verified | None:
        return replace(run, option=priced(2 * (run.option.cost or 0.0)))


class AtMost(Constraint):
    """A run is held to a cost."""

    def __init__(self, most: float) -> None:
        self.most = most

    def kept(self, run: Verified) -> bool:
        return (run.option.cost or 0.0) <= self.most


def priced(cost: float) -> Any:
    return SimpleNamespace(cost=cost)


@pytest.mark.parametrize(("most", "below", "there"), [(6.0, 9.0, True), (5.0, 9.0, False), (6.0, 6.0, False)])
def test_a_size_that_grew_is_held_to_everything_else(most: float, below: float, there: bool) -> None:
    """Three dollars become six: one constraint bounds it, and so does what others cost."""
    long: Any = SimpleNamespace(long=lambda option, question: Verified(option=option, slots=1, achieved={}))
    anything: Any = SimpleNamespace()
    sizer = Sizer(option=anything, question=anything, simulations=long)
    sizer.constraints = [TwiceAsMany(), AtMost(most)]
    found = sizer.grown(Verified(option=priced(3.0), slots=1, achieved={}), below)
    assert (found is not None) == there
    assert found is None or found.option.cost == 6.0
