"""Every percentile that a plan states comes from a run that is long enough for it, or is not stated as kept."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from inferplan.catalog.assemble import Request
from inferplan.catalog.price_lists import price_book
from inferplan.errors import InfeasibleError, UsageError
from inferplan.planning.demand import Demand, demand_of_trace
from inferplan.planning.option import Sizing, Stream
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.planning.search import search
from inferplan.planning.sizing import Simulations
from inferplan.planning.space import Space
from inferplan.planning.verify import QUOTED, SHOWN, Verified, beyond_doubt, traffic_of, verify
from inferplan.reports.plan import plan_report
from inferplan.reports.plan_notes import context_line
from inferplan.table import render
from inferplan.traffic.requests import Lengths, Requests, Slo
from tests.cases import for_each

SLO = Slo(ttft=0.8, tpot=0.05, percentile=99.0)
DEMAND = Demand(prompt=Lengths(mean=512), output=Lengths(mean=64), rate=20.0)


def asked(demand: Demand = DEMAND, slo: Slo = SLO, gpus: tuple[str, ...] = ("l40s",)) -> Question:
    space = Space(base=Request(model="llama-3.1-8b", gpu=""), gpus=gpus, quants=("fp8",), most=1, disaggregate=False)
    prices = price_book(stated=["l40s=1", "h100-sxm=3"])
    return Question(space=space, demand=demand, slo=slo, sizing=Sizing(), prices=prices)


@pytest.fixture(scope="module")
def found() -> Plan:
    return plan(asked(gpus=("l40s", "h100-sxm")))


def test_every_quoted_plan_comes_from_a_run_long_enough_for_its_percentile(found: Plan) -> None:
    """Batch means take five batches, and one of the 99th percentile holds ten values beyond it: 5 x 10/0.01 = 5,000."""
    assert found.other is not None and found.alternatives
    for quoted in (found.best, found.other, *found.alternatives):
        assert quoted.result is not None and len(quoted.result.ttft) >= 5000
        assert quoted.verdict in ("stable", "saturated")
        for name, limit in SLO.limits.items():
            assert quoted.achieved[name] <= limit
            assert quoted.result.interval(name, 99.0) is not None


def test_other_loads_and_the_capacity_come_from_runs_as_long(found: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def kept(*arguments: object, **named: object) -> Verified:
        seen = verify(*arguments, **named)  # type: ignore[arg-type]
        assert seen.result is not None
        lengths.append(len(seen.result.ttft))
        return seen

    monkeypatch.setattr("inferplan.planning.sizing.verify", kept)
    fresh = replace(found, known={})
    assert fresh.sensitivity and fresh.capacity and fresh.capacity.factor >= 1.25
    assert len(lengths) > 4 and min(lengths) >= 5000


def test_a_run_that_is_too_short_to_tell_keeps_no_limit(found: Plan) -> None:
    best = found.best
    assert best.meets(SLO)
    assert not replace(best, verdict="too short to tell").meets(SLO)
    shown = replace(found)
    vars(shown)["sensitivity"] = [
        {"load": 1.1, "ttft_s": 0.1, "tpot_s": 0.01, "meets": False, "verdict": "too short to tell"}
        | {"replicas_needed": 2}
    ]
    assert "too short to tell" in render(plan_report(shown), "table")


@for_each(
    ("prompt", "each"),
    [
        # ln 20,000 - ln(2)/2 = 9.557, and ln(131,072 - 64) = 11.783 is 2.674 times sqrt(ln 2) above it: 0.375 %
        (Lengths(kind="lognormal", mean=20_000, spread=1.0), "1 request in 300 "),
        (Lengths(kind="lognormal", mean=20_000, spread=1.0, most=131_000), ""),
        (Lengths(mean=512), ""),
    ],
)
def test_requests_beyond_the_context_are_counted(found: Plan, prompt: Lengths, each: str) -> None:
    line = context_line(replace(found, question=replace(found.question, demand=replace(DEMAND, prompt=prompt))))
    assert each in line and bool(each) == bool(line)


def test_a_run_goes_on_until_it_holds_five_times_one_request() -> None:
    """An answer of 64 tokens takes a second or so. Were the closed form to say a thousandth of that, 2,000 requests at
    1,000 a second would be over in two seconds, before a steady state is seen.
    """
    question = asked(replace(DEMAND, rate=1000.0), replace(SLO, percentile=95.0), ("h100-sxm",))
    space, slo, prices = question.space, question.slo, question.prices
    option = search(space, Stream(question.demand, slo, question.sizing), prices).options[0].sized(1)
    hasty = replace(option, replicas=40, e2el=option.e2el / 1000)
    assert traffic_of(question.demand, hasty).requests_count == 2000
    for precision in (None, SHOWN):
        seen = verify(hasty, question, precision=precision)
        assert seen.result is not None and seen.verdict != "too short to tell"
        start, end = seen.result.window
        arrivals = np.asarray(seen.result.records.arrival)
        assert (min(end, float(np.nanmax(arrivals))) - start) / float(np.mean(seen.result.e2el)) > 3.5


def test_a_part_of_a_run_goes_on_to_what_a_run_of_its_own_says() -> None:
    """Of the same 4,000 requests; a size that keeps its limits with a doubt is seen in all of them, and of another
    process comes what was seen, not the run."""
    question = asked(replace(DEMAND, rate=100.0), replace(SLO, percentile=95.0), ("h100-sxm",))
    option = search(question.space, question.stream, question.prices).options[0].sized(2)
    seen, shown = verify(option, question), verify(option, question, precision=SHOWN)
    assert seen.rest is not None and seen.result is not None and shown.result is not None
    assert len(seen.result.records.prompt) <= 2000 < len(shown.result.records.prompt) == 4000
    assert pickle.loads(pickle.dumps(seen.rest)) is None
    whole = seen.rest.whole
    assert whole is not None and whole.result is not None and whole.verdict == shown.verdict
    assert whole.achieved == pytest.approx(shown.achieved, rel=1e-6)
    assert whole.result.converged == shown.result.converged and whole.result.precision == shown.result.precision
    assert Simulations(most=1, known={}).long(option, question).achieved == shown.achieved
    limit = Slo(percentile=95.0, ttft=SLO.ttft, tpot=shown.achieved["tpot"] / 0.98)  # closer than a part of a run tells
    assert beyond_doubt(seen, limit).achieved == whole.achieved
    assert beyond_doubt(seen, replace(limit, tpot=10.0)) is seen


def _trace(count: int, seconds: float) -> Requests:
    """So many requests of 512/64 tokens, evenly spread."""
    arrival = np.linspace(0.0, seconds, count)
    return Requests(arrival=arrival, prompt=np.full(count, 512), output=np.full(count, 64))


def test_a_trace_that_ends_before_the_system_is_full_is_no_basis_for_a_plan() -> None:
    """40 requests in a second are gone before the first of them is answered."""
    with pytest.raises(InfeasibleError, match="no plan") as caught:
        plan(asked(demand_of_trace(_trace(40, 1.0))))
    assert "no run is long enough to tell" in str(caught.value.because)
    assert "a longer trace" in str(caught.value.hint)


def test_a_trace_is_quoted_from_all_of_its_requests() -> None:
    """3,000 requests in 30 s: every replica counts, not one of them."""
    found = plan(asked(demand_of_trace(_trace(3000, 30.0)), replace(SLO, percentile=95.0)))
    assert found.option.replicas > 1
    assert found.best.result is not None and len(found.best.result.ttft) == 3000


def test_the_slowest_of_all_requests_is_no_percentile() -> None:
    with pytest.raises(UsageError, match="slowest of all requests"):
        asked(slo=replace(SLO, percentile=100.0))


def test_a_quote_that_begins_at_the_run_before_it_is_the_quote_itself() -> None:
    """Runs of a quote are repeated from their beginning, so that where the first was ends up in no figure: a fleet that
    was simulated for what is shown gives the same requests and latencies as one that was not.
    """
    question = asked(DEMAND, replace(SLO, percentile=95.0), ("h100-sxm",))
    option = search(question.space, question.stream, question.prices).options[0]
    alone, after = Simulations(most=0), Simulations(most=0)
    after.long(option, question)
    fresh, known = (simulations.long(option, question, precision=QUOTED) for simulations in (alone, after))
    assert fresh.result is not None and known.result is not None
    assert known.achieved == fresh.achieved and known.verdict == fresh.verdict
    assert known.result.converged == fresh.result.converged
    assert len(known.result.records.prompt) == len(fresh.result.records.prompt) >= QUOTED.fewest
