"""Leviathan's formulas and printed points, and where speculation starts to lose."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferplan.catalog.acceptance import texts_apart
from inferplan.errors import UsageError
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.serving.steady import UserLoad, steady_state
from inferplan.serving.techniques.speculation import (
    Speculation,
    break_even,
    expected_tokens,
    operations,
    speculate,
    speedup,
)
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from tests.benchmarks.compare_speculation import ROWS, Published, predicted
from tests.cases import for_each
from tests.serving.conftest import deployment


@for_each(
    ("acceptance", "length", "cost", "printed"),
    [(0.2, 3, 0.0, 1.248), (0.75, 8, 0.015, 3.303), (0.8, 8, 0.015, 3.865), (0.87, 8, 0.015, 4.907)],
)
def test_printed_improvements(acceptance: float, length: int, cost: float, printed: float) -> None:
    assert speedup(acceptance, length, cost) == pytest.approx(printed, abs=5e-4)


def test_the_table_of_truths(shared: Path) -> None:
    checked = 0
    with (shared / "reference" / "truths.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            inputs = re.match(r"alpha=([\d.]+) gamma=(\d+)$", row["inputs"])
            if not row["id"].startswith("SPECX-") or not inputs:
                continue
            acceptance, length = float(inputs[1]), int(inputs[2])
            if row["quantity"] == "expected tokens per step":
                value = expected_tokens(acceptance, length)
            elif row["quantity"] == "speed-up c=0.05":
                value = speedup(acceptance, length, 0.05)
            else:
                continue
            assert value == pytest.approx(float(row["value"]), abs=1e-6)
            checked += 1
    assert checked >= 20


def test_limits_of_the_formulas() -> None:
    assert expected_tokens(0.0, 5) == 1.0
    assert expected_tokens(1.0, 5) == 6.0
    assert expected_tokens(0.9, 10_000) == pytest.approx(1 / (1 - 0.9))  # the oracle's bound
    assert operations(0.8, 4, 0.0) == pytest.approx(5 / expected_tokens(0.8, 4))
    assert Speculation(length=3, acceptance=0.5, branches=2).tokens == pytest.approx(expected_tokens(0.75, 3))
    with pytest.raises(UsageError):
        Speculation(length=2, acceptance=1.5)


def test_it_gains_at_batch_1_and_loses_at_load() -> None:
    # vLLM reports 1.5x at one request a second on 4 x H100 and a loss of 1.4x at a high rate (70B, a draft model)
    served = deployment("llama-3.1-70b", "h100-sxm", ideal=False, parallel=_tp(4))
    draft = deployment("llama-3.2-3b", "h100-sxm", ideal=False, parallel=_tp(4))
    speculation = Speculation(length=5, acceptance=0.7, draft=draft)
    gain = speculate(served, speculation, np.array([1.0, 512.0]), 1000.0).speedup
    assert gain[0] > 1.2
    assert gain[1] < 1.0
    losing = break_even(served, speculation, 1000.0)
    assert losing is not None and 8 < losing <= 512


@for_each("row", ROWS, ids=lambda row: row.source)
def test_published_speed_ups(row: Published) -> None:
    """Measured ones of DeepSeek-V3 and R1; what drafts add to a step is nearer than the step itself."""
    _, found, added = predicted(row)
    assert found == pytest.approx(row.speedup, rel=0.2)
    if row.added is not None:
        assert added == pytest.approx(row.added, rel=0.1)


def test_texts_of_which_less_is_accepted_take_longer() -> None:
    """One draft, accepted by half, exponent 1: the text that a share ``p`` is worse than accepts ``p`` of them, a token
    takes ``1/(1 + p)`` verifications, and the mean over all texts is ``ln 2``."""
    drafts = Speculation(length=1, acceptance=0.5, texts=1.0)
    paces = drafts.paces(2, 0)  # of p = 1/4 and 3/4: 4/5 and 4/7 verifications, 24/35 on average
    assert paces is not None and sorted(paces) == pytest.approx([20 / 24, 28 / 24])
    assert drafts.pace(75.0) == pytest.approx(0.8 / np.log(2), rel=1e-6)
    assert Speculation(length=1, acceptance=0.5).paces(2, 0) is None
    assert Speculation(length=3, acceptance=1.0, texts=1.0).pace(99.0) == pytest.approx(
        1.0
    )  # nothing is left to differ


@for_each(("length", "acceptance", "measured"), [(1, 0.875, 1.081), (3, 0.675, 1.327)])
def test_texts_differ_as_measured(length: int, acceptance: float, measured: float) -> None:
    """TPOT at the 99th percentile over the median, InferenceX, DeepSeek-R1 on B200 under TensorRT-LLM, 1,024 tokens for
    8,192, where a first burst is 2 % of a request at the most: mean of three rows of 256 users with one draft (1.084,
    1.075, 1.083) and of four of 32 with three (1.340, 1.331, 1.305, 1.330). The exponent is fitted in their sight."""
    drafts = Speculation(length=length, acceptance=acceptance, texts=texts_apart("mtp"))
    assert drafts.pace(99.0) / drafts.pace(50.0) == pytest.approx(measured, rel=0.03)
    assert texts_apart("eagle3") == texts_apart(None) == 0.0  # nobody measured them


def test_texts_move_percentiles_and_no_mean() -> None:
    """Twenty users who ask for the same: without texts all take the same time."""
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=20, burst=True),
        prompt=Lengths(mean=512),
        output=Lengths(mean=129),
        requests_count=400,
    )
    drafts = Speculation(length=3, acceptance=0.7, texts=0.2)
    alike, apart = (
        simulate(deployment(ideal=False), traffic, options=Options(speculation=replace(drafts, texts=texts)))
        for texts in (0.0, 0.2)
    )
    assert np.array_equal(alike.ttft, apart.ttft)
    assert np.mean(apart.tpot) == pytest.approx(np.mean(alike.tpot), rel=1e-3)
    assert apart.output_rate == alike.output_rate
    slow = np.percentile(apart.tpot, 95) / np.median(apart.tpot) * np.median(alike.tpot) / np.percentile(alike.tpot, 95)
    assert slow == pytest.approx(drafts.pace(95.0) / drafts.pace(50.0), rel=0.02)
    assert apart.e2el == pytest.approx(apart.ttft + apart.tpot * 128)
    assert 128 * apart.tpot / (128 * alike.tpot) == pytest.approx(apart.records.paces)
    half = np.arange(400) < 200
    assert apart.records.only(half).paces == pytest.approx(apart.records.paces[:200])


def test_free_drafts_that_always_fail_only_cost_time() -> None:
    served = deployment(ideal=False)
    assert speculate(served, Speculation(length=4, acceptance=0.0), 256.0, 4000.0).speedup < 1.0


def test_simulator_and_steady_state_agree_with_drafts() -> None:
    served = deployment("llama-3.1-70b", "h100-sxm", ideal=False, parallel=_tp(4))
    draft = deployment("llama-3.2-3b", "h100-sxm", ideal=False, parallel=_tp(4))
    speculation = Speculation(length=3, acceptance=0.7, draft=draft)
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=8),
        prompt=Lengths(kind="uniform", mean=1024, spread=0.5),
        output=Lengths(kind="uniform", mean=512, spread=0.5),
        requests_count=160,
    )
    run = simulate(served, traffic, options=Options(speculation=speculation))
    state = steady_state(served, UserLoad(concurrency=8.0, prompt=768.0, output=384.0), speculation=speculation)
    assert float(run.tpot.mean()) == pytest.approx(state.tpot, rel=0.05)
    plain = simulate(served, traffic)
    assert float(run.tpot.mean()) < float(plain.tpot.mean())


def _tp(degree: int) -> object:
    from inferplan.work.parallel import Parallelism

    return Parallelism(tp=degree)
