"""Plans at a confidence: the quantiles of an error band, and what slower devices need."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.price_lists import price_book
from inferplan.devices.constants import late_share, late_together
from inferplan.errors import InfeasibleError, UsageError
from inferplan.estimate.bands import quantile, serving_bands, slow_end
from inferplan.estimate.support import DRAFTS, POOLS, measured_tail
from inferplan.planning.confidence import AS_PREDICTED, Slowness, slow_grid, slowness
from inferplan.planning.demand import Demand
from inferplan.planning.finalists import carried_over
from inferplan.planning.grid import axes_for, load_grid
from inferplan.planning.option import Sizing
from inferplan.planning.plan import plan
from inferplan.planning.question import Question
from inferplan.planning.search import point
from inferplan.planning.space import Space
from inferplan.planning.verify import flags_of
from inferplan.reports.plan import plan_report
from inferplan.reports.plan_notes import error_unknown, miss_line, unknown_line
from inferplan.reports.plan_record import plan_record
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.speculation import Speculation
from inferplan.table import render
from inferplan.traffic.requests import Lengths, OpenLoop, Slo, Traffic
from tests.cases import for_each

DEMAND = Demand(prompt=Lengths(mean=700), output=Lengths(mean=200), rate=30.0)
SLO = Slo(ttft=0.4, tpot=0.03, percentile=95.0)


def asked(**changes: object) -> Question:
    space = Space(
        base=Request(model="llama-3.1-8b", gpu=""),
        gpus=("h100-sxm",),
        quants=("fp8",),
        most=1,
        disaggregate=False,
    )
    values = {
        "space": space,
        "demand": DEMAND,
        "slo": SLO,
        "sizing": Sizing(),
        "prices": price_book(stated=["l40s=1", "h100-sxm=3", "tpu-v7=0.5", "b200-hgx=6"]),
    }
    return Question(**(values | changes))  # type: ignore[arg-type]


def test_limits_see_the_text_at_the_percentile() -> None:
    """TPOT and what follows the first token take its pace; the mean, and so rate and load, are those of all texts."""
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    drafts = Speculation(length=3, acceptance=0.7)
    alike, apart = (point(deployment, DEMAND, 95.0, 8, 2048, replace(drafts, texts=texts)) for texts in (0.0, 0.2))
    pace = replace(drafts, texts=0.2).pace(95.0)
    assert pace > 1.1 and apart.tpot == pytest.approx(alike.tpot * pace)
    assert apart.e2el - apart.ttft == pytest.approx((alike.e2el - alike.ttft) * pace)
    assert np.array_equal(apart.ttft, alike.ttft) and np.array_equal(apart.rate, alike.rate)
    assert np.array_equal(apart.concurrency, alike.concurrency)


def test_the_quantiles_of_a_log_normal_error_are_found_again() -> None:
    """Of an error exp(N(0, 0.3)) 80 % lie within exp(+-0.3*1.2816) (standard normal tables: 1.2816, 1.6449, 0.8416)."""
    band = exp(-0.3 * 1.2816), exp(0.3 * 1.2816)
    assert quantile(band, 0.9) == pytest.approx(band[1], rel=1e-4)
    assert quantile(band, 0.1) == pytest.approx(band[0], rel=1e-4)
    assert quantile(band, 0.5) == pytest.approx(1.0)
    assert quantile(band, 0.95) == pytest.approx(exp(0.3 * 1.6449), rel=1e-4)
    assert quantile(band, 0.8) == pytest.approx(exp(0.3 * 0.8416), rel=1e-4)
    drawn = np.random.default_rng(0).lognormal(0.0, 0.3, 400_000)
    for share in (0.6, 0.9, 0.95):
        assert float(np.mean(drawn < quantile(band, share))) == pytest.approx(share, abs=0.003)


def test_each_side_of_a_band_has_its_own_spread() -> None:
    assert quantile((0.9, 2.0), 0.9) == pytest.approx(2.0)
    assert quantile((0.9, 2.0), 0.1) == pytest.approx(0.9)


def test_a_limit_without_a_band_has_no_slow_end() -> None:
    assert slow_end({"tpot": (0.8, 1.3)}, {"tpot"}, 0.9) == {"tpot": pytest.approx(1.3)}
    assert slow_end({"tpot": (0.8, 1.3)}, {"tpot", "ttft"}, 0.9) is None
    ideal = assemble(Request(model="llama-3.1-8b", gpu="l40s", ideal=True))
    assert slowness(ideal, 700.0, SLO, 0.9) is None
    assert slowness(ideal, 700.0, SLO, 0.5) == AS_PREDICTED


def test_what_ttft_is_off_by_beyond_the_steps_is_added_to_it_alone() -> None:
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    bands = serving_bands(deployment, 700.0)
    slow = slowness(deployment, 700.0, SLO, 0.9)
    assert slow is not None
    assert slow.step == pytest.approx(bands["tpot"][1])
    assert slow.step * slow.first == pytest.approx(max(bands["ttft"][1], bands["tpot"][1]))
    steps_only = slowness(deployment, 700.0, Slo(tpot=0.03), 0.9)
    assert steps_only == Slowness(slow.step, 1.0)


def test_beyond_the_95th_percentile_first_tokens_are_late_by_a_share_of_the_99th() -> None:
    """Between 5 and 1 in 100 requests the logarithm is halved at sqrt(5) in 100: p = 100 - sqrt(5)."""
    shares = [late_share(percentile) for percentile in (50.0, 95.0, 100 - 5**0.5, 99.0, 99.9, 100.0)]
    assert shares == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0, 1.0])
    slow, latencies = Slowness(2.0, 1.5, 0.3), {"ttft": 0.2, "tpot": 0.01, "e2el": 1.0}
    assert slow.of(latencies, 95.0) == pytest.approx({"ttft": 0.6, "tpot": 0.02, "e2el": 2.2})
    assert slow.of(latencies, 99.0) == pytest.approx({"ttft": 0.9, "tpot": 0.02, "e2el": 2.5})


def test_calls_of_a_session_are_late_together() -> None:
    """A call is late with 0.05, by min(-ln(u)/ln(5), 1) of the seconds of the 99th. Two calls
    are on time with 0.95**2 = 0.9025; of a hundred the mean is 100*0.05*(1 - 1/5)/ln(5) = 2.485 of those seconds."""
    percentiles = (50.0, 95.0, 100 - 5**0.5, 99.0, 99.9)
    assert [late_together(1, p) for p in percentiles] == pytest.approx([late_share(p) for p in percentiles])
    assert late_together(2, 90.2) == 0.0 < late_together(2, 90.3)
    draws = np.random.default_rng(7)
    for calls in (3, 20, 100):
        late = draws.random((40_000, calls)) < 0.05
        sums = np.sum(late * np.minimum(-np.log(draws.random(late.shape)) / np.log(5.0), 1.0), axis=1)
        for percentile in (50.0, 95.0, 99.0):
            drawn = float(np.percentile(sums, percentile))
            assert late_together(calls, percentile) == pytest.approx(drawn, abs=0.02 + 0.015 * calls**0.5)
    mean = float(np.mean([late_together(100, p) for p in np.linspace(0.05, 99.95, 1000)]))
    assert mean == pytest.approx(2.485, abs=0.05)


def test_the_time_of_a_session_has_the_seconds_of_its_calls() -> None:
    """100 s at half the speed are 200; 3 calls of 0.2 s whose first tokens are half as slow again, 0.2 s each; at the
    99th percentile one call alone is late by the 0.3 s of its tail, as a request is."""
    slow = Slowness(2.0, 1.5, 0.3)
    assert slow.of_session(100.0, 3.0, 0.2, 50.0) == pytest.approx(200.6)
    assert slow.of_session(100.0, 1.0, 0.2, 99.0) == pytest.approx(200.2 + 0.3)
    assert slow.of_session(100.0, 2.4, 0.2, 99.0) == pytest.approx(200.48 + 0.3 * late_together(3, 99.0))
    assert AS_PREDICTED.of_session(100.0, 3.0, 0.2, 99.0) == 100.0


@for_each(("engine", "seconds"), [("vllm", 0.278), ("sglang", 0.0)])
def test_seconds_are_of_the_engine_that_was_measured(engine: str, seconds: float) -> None:
    """Ten stages of four models under vLLM have 278 ms at 0.8 (tests/tools/test_late.py makes them again); SGLang has
    no open loop on file. A limit on TPOT alone sees none of it."""
    deployment = assemble(Request(model="llama-3.1-70b", gpu="b200-hgx", engine=engine, quant="fp8"))
    found = measured_tail(deployment, "steady")
    assert (0.0 if found is None else found.at(0.8)) == seconds
    assert measured_tail(deployment, "steady", (DRAFTS,)) is None
    own = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    tails = [slowness(own, 700.0, slo, at) for slo in (SLO, Slo(tpot=0.03)) for at in (0.5, 0.8)]
    assert [one.tail for one in tails if one is not None] == [0.0, 0.278, 0.0, 0.0]


def test_a_plan_of_the_99th_percentile_keeps_seconds_free() -> None:
    """The simulated p99 is at least 278 ms below the limit, the plan says so, and in closed form it is late too."""
    slo = Slo(ttft=0.6, tpot=0.03, percentile=99.0)
    safe = plan(asked(slo=slo, sizing=Sizing(confidence=0.8)))
    slow, result = safe.option.slow, safe.best.result
    assert result is not None and slow.tail == 0.278
    predicted = float(np.percentile(result.ttft, 99.0)) * slow.step * slow.first
    assert safe.best.achieved["ttft"] == pytest.approx(predicted + 0.278, rel=1e-6)
    assert safe.best.achieved["ttft"] < 0.6
    text = " ".join(render(plan_report(safe), "table").split())
    assert "p99: in the middle of 10 measured rows (4 systems) first tokens come 24 ms later than predicted" in text
    assert "in 1 of 10 more than 681 ms later; 278 ms are kept free for it" in text
    assert plan_record(safe)["plan"]["late_at_p99_s"] == 0.278
    grid = load_grid(safe.option.deployment, DEMAND, 99.0, axes_for(safe.option.deployment, [2048]))
    late = slow_grid(grid, slow, 99.0).ttft - slow_grid(grid, slow._replace(tail=0.0), 99.0).ttft
    assert np.allclose(late[np.isfinite(late)], 0.278)


def test_a_slower_device_in_closed_form() -> None:
    """Every time doubles and TTFT triples, so the rate halves at the same batch."""
    deployment = assemble(Request(model="llama-3.1-8b", gpu="l40s"))
    grid = load_grid(deployment, DEMAND, 95.0, axes_for(deployment, [2048]))
    slow = slow_grid(grid, Slowness(2.0, 1.5), 95.0)
    assert np.allclose(slow.rate, grid.rate / 2)
    assert np.allclose(slow.tpot, grid.tpot * 2)
    assert np.allclose(slow.ttft, grid.ttft * 3)
    assert np.allclose(slow.e2el, grid.ttft * 3 + (grid.e2el - grid.ttft) * 2)
    assert np.allclose(slow.concurrency, grid.concurrency)


def test_both_plans_are_shown_and_the_safe_one_is_sized_for_slower_devices() -> None:
    """200 requests/s keep six GPUs busy as predicted; on devices 1.09 times as slow they take 6.5, so seven."""
    busy = replace(DEMAND, rate=200.0)
    middle = plan(asked(demand=busy))
    safe = plan(asked(demand=busy, sizing=Sizing(confidence=0.8)))
    assert middle.other is not None and safe.other is not None
    assert middle.option.slow == AS_PREDICTED and safe.option.slow.step > 1.05
    assert (middle.other.option.replicas, safe.other.option.replicas) == (safe.option.replicas, middle.option.replicas)
    assert safe.option.replicas > middle.option.replicas
    assert not safe.best.violations(SLO)
    record = plan_record(middle)
    assert record["at_the_other_confidence"]["confidence"] == 0.8
    assert record["at_the_other_confidence"]["cost"] > record["plan"]["cost"]
    text = render(plan_report(middle), "table")
    assert "Cost of safety" in text
    assert "--confidence 0.8" in text


def test_what_a_service_is_held_to_are_runs_at_both_ends_of_the_band() -> None:
    """Devices whose steps take f times as long under so many requests per second are predicted ones under f times as
    many, each of whose seconds lasts f: simulated here by themselves, another seed, 12,000 requests."""
    safe = plan(asked(sizing=Sizing(confidence=0.8)))
    (low, high), option = safe.measured_between["tpot"], safe.option
    deployment = replace(option.deployment, parallel=replace(option.deployment.parallel, replicas=option.replicas))
    rate, band = safe.question.demand.rate or 0.0, safe.bands["tpot"]
    assert high is not None and low < safe.best.achieved["tpot"] / option.slow.step < safe.best.achieved["tpot"] < high
    for seconds, factor in zip((low, high), band):
        traffic = Traffic(
            prompt=safe.question.demand.prompt,
            output=safe.question.demand.output,
            arrivals=OpenLoop(rate=rate * factor),
            requests_count=12_000,
            seed=3,
        )
        found = simulate(deployment, traffic, flags_of(option, safe.question), Options())
        assert seconds == pytest.approx(factor * np.percentile(found.tpot, safe.question.slo.percentile), rel=0.05)


def test_more_confidence_never_costs_less() -> None:
    costs = [plan(asked(sizing=Sizing(confidence=confidence))).option.cost for confidence in (0.5, 0.7, 0.9, 0.97)]
    assert costs == sorted(costs)
    assert costs[-1] > costs[0]


@for_each("confidence", [0.0, 0.49, 1.0, float("nan")])
def test_a_confidence_is_a_chance_of_a_half_or_more(confidence: float) -> None:
    with pytest.raises(UsageError, match="--confidence"):
        asked(sizing=Sizing(confidence=confidence))


def test_no_error_no_confidence() -> None:
    """No TPU and no L40S was measured under load: there is nothing to be confident in, and the plan says what is
    missing; a looser limit would not help."""
    for gpu in ("tpu-v7", "l40s"):
        with pytest.raises(InfeasibleError, match="no error band is known of any candidate") as refused:
            plan(asked(space=replace(asked().space, gpus=(gpu,)), sizing=Sizing(confidence=0.9)))
        assert f"0 of vllm on {gpu}" in refused.value.because and "--confidence 0.5" in refused.value.hint
    found = plan(asked(space=replace(asked().space, gpus=("l40s",))))
    assert not found.supported and found.measured is None and found.other is None
    assert "3 measured systems or models of each; there are 0 of vllm on l40s" in render(plan_report(found), "table")
    assert plan_record(found)["plan"]["measured"] is False


def test_without_a_known_error_the_plan_is_for_the_prediction_and_says_so_first() -> None:
    """Where nobody asked for a confidence; the plan is that of 0.5, and its first line is that nothing was measured."""
    unknown = asked(space=replace(asked().space, gpus=("l40s",)), sizing=Sizing(confidence=0.8, insists=False))
    found, middle = plan(unknown), plan(replace(unknown, sizing=Sizing()))
    assert found.confidence == 0.5 and found.unkept is not None and found.other is None and not found.curve
    assert found.option.cost == middle.option.cost
    report = plan_report(found)
    assert report.headline.startswith("The error of this plan is not known: no measurements support vllm on l40s")
    assert report.tables[0].rows[0][1] == error_unknown(found)
    assert not miss_line(found)
    stated = replace(found, question=replace(found.question, sizing=replace(found.question.sizing, miss_cost=50.0)))
    assert miss_line(stated).startswith("--miss-cost changes nothing")


@for_each("price, told", [(0.4, True), (0.8, False)])
def test_what_is_known_to_hold_comes_before_what_is_cheaper_and_unknown(price: float, told: bool) -> None:
    """L40S are cheaper than H100 at 3 by a prediction that nobody has checked. What they save is counted against H100
    by the same prediction: 4 H100 at 0.8 are 3 at 0.5, and 13 L40S at 0.80 save nothing beside those."""
    both = asked(
        space=replace(asked().space, gpus=("l40s", "h100-sxm")),
        demand=replace(DEMAND, rate=100.0),
        sizing=Sizing(confidence=0.8, insists=False),
        prices=price_book(stated=[f"l40s={price}", "h100-sxm=3"]),
    )
    found = plan(both)
    assert found.option.deployment.hardware.name == "h100-sxm" and found.confidence == 0.8
    as_predicted = replace(both, sizing=Sizing(confidence=0.5))
    ours, other = (
        plan(replace(as_predicted, space=replace(both.space, gpus=(gpu,)))).option.cost or 0.0
        for gpu in ("l40s", "h100-sxm")
    )
    assert other < (found.option.cost or 0.0) and (ours < other) is told
    line = unknown_line(found)
    if told:
        assert found.unknown is not None and found.unknown.option.cost == ours
        assert line.startswith(f"cheaper by {other - ours:,.2f} USD/h than 3 x (1 device) on h100-sxm at {other:.2f}")
        assert line in render(plan_report(found), "table")
    else:
        assert found.unknown is None and not line


def test_pools_and_drafts_have_no_confidence_of_their_own() -> None:
    """The error of replicas that do both, without drafts, says nothing of them."""
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    assert slowness(deployment, 700.0, SLO, 0.9) is not None
    assert slowness(deployment, 700.0, SLO, 0.9, (POOLS,)) is None
    assert slowness(deployment, 700.0, SLO, 0.9, (DRAFTS,)) is None


def test_another_makers_constants_do_not_beat_measured_ones() -> None:
    """At a sixth of the price tpu-v7 would win on constants that were carried over; it is named, and left out."""
    both = replace(asked().space, gpus=("tpu-v7", "h100-sxm"))
    found = plan(asked(space=both))
    assert found.option.deployment.hardware.name == "h100-sxm"
    assert any(carried_over(option) for option in plan(asked(space=replace(both, gpus=("tpu-v7",)))).searched.options)
    assert found.searched.rejections.examples["unmeasured"] == "tpu-v7"
    assert "tpu-v7" in render(plan_report(found), "table")
