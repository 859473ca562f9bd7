"""Laws of the process behind anchors, tried on random rows; values by hand; the textbook's formulas written out."""

from __future__ import annotations

from dataclasses import replace
from math import e, exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferplan.catalog.assemble import anchor_process
from inferplan.devices.anchors import (
    AXES,
    METRICS,
    Anchor,
    AnchorLoad,
    AnchorRow,
    ErrorKernel,
    Metric,
    System,
    next_runs,
)
from inferplan.estimate.anchoring import fingerprint, system_of, with_anchor
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.units import Array
from inferplan.validation.anchor import anchor_of
from inferplan.validation.predict import Prediction
from inferplan.validation.rows import Measured, row_of
from inferplan.validation.run import Pricing
from inferplan.validation.score import Scored
from inferplan.work.parallel import Parallelism
from tests.properties.test_laws import law
from tests.strategies import deployments, loads

SYSTEM = System(model="m", gpu="g", engine="e", weights="bf16")
ratios = st.floats(-0.45, 0.45)
anchor_rows = st.builds(
    AnchorRow,
    users=st.integers(1, 512).map(float),
    prompt=st.integers(1, 32768).map(float),
    output=st.integers(1, 8192).map(float),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2]),
    ttft_ln_ratio=ratios,
    tpot_ln_ratio=ratios,
)
metrics: st.SearchStrategy[Metric] = st.sampled_from(METRICS)


def an_anchor(rows: list[AnchorRow], noise: float | None = None) -> Anchor:
    process = anchor_process()
    if noise is not None:
        quiet = {metric: process.kernel(metric).model_copy(update={"noise": noise}) for metric in METRICS}
        process = process.model_copy(update=quiet)
    return Anchor(system=SYSTEM, priced_with="", process=process, rows=tuple(rows))


def on_axis(*places: float) -> Array:
    """Points that differ in their first coordinate."""
    points = np.zeros((len(places), AXES))
    points[:, 0] = places
    return points


def test_two_rows_by_hand() -> None:
    # k = exp(-d^2/2), noise^2 = 1/4, rows at 0 and 1 with errors 0.2 and 0.4, asked at 1/2: both weigh
    # k(1/2)/(1 + 1/4 + k(1)) = 0.882497/(1.25 + 0.606531) = 0.475347; mean 0.6 x it; variance 1 - 2 x 0.882497 x it.
    kernel = ErrorKernel(shared=0.0, local=1.0, length=1.0, noise=0.5, band=(-1.0, 2.0))
    mean, variance = kernel.posterior(on_axis(0.0, 1.0), np.array([0.2, 0.4]), on_axis(0.5))
    assert mean[0] == pytest.approx(0.285208, abs=1e-6)
    assert variance[0] == pytest.approx(0.161015, abs=1e-6)
    low, high = kernel.factors(variance)  # deviation sqrt(0.161015 + 0.25) = 0.641105
    assert low[0] == pytest.approx(exp(-0.641105), rel=1e-5)
    assert high[0] == pytest.approx(exp(2 * 0.641105), rel=1e-5)


def test_one_row_by_hand() -> None:
    # what all loads share: one row of error 1 and noise as large as that says one half everywhere, however far
    kernel = ErrorKernel(shared=0.3, local=0.0, length=1.0, noise=0.3, band=(-1.0, 1.0))
    mean, variance = kernel.posterior(on_axis(0.0), np.array([1.0]), on_axis(0.0, 50.0))
    assert mean == pytest.approx([0.5, 0.5])
    assert variance == pytest.approx([0.045, 0.045])


def test_coordinates_by_hand() -> None:
    load = AnchorLoad(e, np.array([e**2, e**3]), e**2, Parallelism(tp=4, ep=2, pp=8))
    expected = [[1.0, 2.0, 1.0, 2.3, 1.15, 0.0, 3.45], [1.0, 3.0, 1.0, 2.3, 1.15, 0.0, 3.45]]
    assert anchor_process().points(load) == pytest.approx(np.array(expected))


@law
@given(st.lists(anchor_rows, min_size=1, max_size=5), anchor_rows, metrics)
def test_the_textbook_written_out(rows: list[AnchorRow], asked: AnchorRow, metric: Metric) -> None:
    """Rasmussen and Williams, equations 2.25 and 2.26, number by number and with an explicit inverse."""

    def place(one: AnchorRow) -> list[float]:
        halves = [np.log(one.users), np.log(one.prompt), 0.5 * np.log(one.output)]
        return [*halves, *(1.15 * np.log2(degree) for degree in (one.tp, one.ep, one.dp, one.pp))]

    shared, local, length, noise = (0.25, 0.45, 1.5, 0.15) if metric == "ttft" else (0.15, 0.12, 2.0, 0.05)

    def k(a: AnchorRow, b: AnchorRow) -> float:
        square = sum((x - y) ** 2 for x, y in zip(place(a), place(b)))
        return float(shared**2 + local**2 * np.exp(-square / length**2 / 2))

    within = np.array(
        [[k(a, b) + (noise**2 if i == j else 0.0) for j, b in enumerate(rows)] for i, a in enumerate(rows)]
    )
    across = np.array([k(asked, one) for one in rows])
    weights = np.linalg.inv(within) @ across
    mean, variance = an_anchor(rows).error(metric, asked.load)
    assert mean[0] == pytest.approx(weights @ [getattr(one, f"{metric}_ln_ratio") for one in rows], abs=1e-9)
    assert variance[0] == pytest.approx(k(asked, asked) - weights @ across, abs=1e-9)


@law
@given(anchor_rows, metrics)
def test_a_repeat_of_a_run_without_noise_gives_its_ratio(row: AnchorRow, metric: Metric) -> None:
    anchor = an_anchor([row], noise=1e-6)
    assert anchor.factor(metric, row.load) == pytest.approx(exp(getattr(row, f"{metric}_ln_ratio")), rel=1e-6)
    low, high = anchor.band(metric, row.load)
    assert low == pytest.approx(1.0, abs=1e-4)
    assert high == pytest.approx(1.0, abs=1e-4)


@law
@given(anchor_rows, st.floats(0.5, 9.0), metrics)
def test_a_run_that_is_far_off_counts_as_one_that_is_less_so(row: AnchorRow, error: float, metric: Metric) -> None:
    """``exp(0.5)`` is the most that any number of runs makes of a prediction; what is unknown stays as it is."""
    far, near = (row.model_copy(update={f"{metric}_ln_ratio": value}) for value in (error, 0.5))
    assert an_anchor([far]).factor(metric, row.load) == an_anchor([near]).factor(metric, row.load)
    assert an_anchor([far] * 9, noise=1e-3).factor(metric, row.load) <= exp(0.5) * (1 + 1e-6)


@law
@given(st.lists(anchor_rows, min_size=1, max_size=5), anchor_rows, anchor_rows, metrics)
def test_another_run_leaves_no_more_unknown(
    rows: list[AnchorRow], more: AnchorRow, asked: AnchorRow, metric: Metric
) -> None:
    before, after = (an_anchor(each).error(metric, asked.load)[1][0] for each in (rows, [*rows, more]))
    prior = anchor_process().kernel(metric).prior
    assert 0.0 <= after <= before + 1e-12
    assert before <= prior + 1e-12


@law
@given(st.lists(anchor_rows, min_size=2, max_size=6), metrics)
def test_the_order_of_runs_does_not_matter(rows: list[AnchorRow], metric: Metric) -> None:
    load = rows[0].load
    one, other = (an_anchor(each).error(metric, load) for each in (rows, rows[::-1]))
    assert one[0] == pytest.approx(other[0], abs=1e-9)
    assert one[1] == pytest.approx(other[1], abs=1e-9)


@law
@given(deployments(), loads)
def test_runs_as_predicted_change_nothing(deployment: Deployment, load: dict[str, float]) -> None:
    """Neither no runs at all, of which the mean is zero, nor runs that took what was predicted."""
    kernel = anchor_process().tpot
    mean, variance = kernel.posterior(np.empty((0, AXES)), np.empty(0), np.zeros((1, AXES)))
    assert (mean[0], variance[0]) == (0.0, pytest.approx(0.15**2 + 0.12**2))
    rows = (AnchorRow(users=8, prompt=512, output=64, ttft_ln_ratio=0.0, tpot_ln_ratio=0.0),)
    facts = {"system": system_of(deployment), "priced_with": fingerprint(deployment), "process": anchor_process()}
    moved = with_anchor(deployment, Anchor(rows=rows, **facts), "own.yaml")  # type: ignore[arg-type]
    one, other = (Estimate(deployment=each, load=StaticLoad(**load)) for each in (deployment, moved))
    for name in ("ttft", "tpot", "e2el", "output_rate"):
        assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True)


@law
@given(st.floats(1e-3, 1e3), st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_another_unit_of_time_is_the_same_anchor(scale: float, ttft: float, tpot: float) -> None:
    facts = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": "vllm", "weights": "bf16", "tp": "1"}
    row = row_of("here", {**facts, "isl": "256", "osl": "32", "concurrency": "2"}, {})

    def rows(unit: float) -> tuple[AnchorRow, ...]:
        predicted = {("ttft", "mean"): 0.04 * unit, ("tpot", "mean"): 0.008 * unit}
        measured = {("ttft", "mean"): 0.04 * ttft * unit, ("tpot", "mean"): 0.008 * tpot * unit}
        one = replace(row, measured=Measured(figures=measured))
        return anchor_of([Scored(row=one, prediction=Prediction(figures=predicted))], Pricing(), "").anchor.rows

    (here,), (there,) = rows(1.0), rows(scale)
    for name in ("ttft_ln_ratio", "tpot_ln_ratio"):
        assert getattr(there, name) == pytest.approx(getattr(here, name), abs=1e-5)
    assert here.tpot_ln_ratio == pytest.approx(np.log(tpot), abs=1e-5)


@law
@given(st.lists(anchor_rows, min_size=2, max_size=12), st.lists(anchor_rows, max_size=3))
def test_the_next_run_is_the_best_of_all(candidates: list[AnchorRow], done: list[AnchorRow]) -> None:
    """Each candidate is tried: none leaves less variance, as a share of the prior, than the one that is named."""
    process = anchor_process()
    points = np.concatenate([process.points(row.load) for row in candidates])
    known = np.concatenate([np.empty((0, AXES)), *(process.points(row.load) for row in done)])

    def left(index: int) -> float:
        rows = np.concatenate([known, points[index : index + 1]])
        kernels = [process.kernel(metric) for metric in METRICS]
        return sum(float(np.mean(k.posterior(rows, np.zeros(len(rows)), points)[1])) / k.prior for k in kernels)

    (chosen,) = next_runs(process, points, known, 1)
    assert left(chosen) <= min(map(left, range(len(points)))) + 1e-9
    several = next_runs(process, points, known, 3)
    assert several[0] == chosen
    assert len(set(several)) == min(3, len(points))
