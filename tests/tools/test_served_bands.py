"""Bands of served latencies: left-out systems by hand, and how many measured runs lie beyond the bands on file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import inferplan
from inferplan.catalog.calibrations import measured_bands
from inferplan.estimate.bands import quantile
from inferplan.estimate.support import FEWEST_SYSTEMS
from tools.fitting import priced
from tools.fitting.bands import (
    METRICS,
    Cell,
    Deviation,
    Spread,
    beyond_the_slow_end,
    fitted,
    read_deviations,
    weighted_quantiles,
    write_deviations,
)

RUNS = Path(__file__).parents[1] / "fixtures" / "served_deviations.csv"
"""How far 2,000 measured runs were off, written by ``python -m tools.fitting bands FOLDER --deviations``."""
CELL = Cell("h100-sxm", "vllm", ())


def runs(logs: dict[str, list[float]], cell: Cell = CELL) -> list[Deviation]:
    return [
        Deviation(cell=cell, model=model, logs=(log, log), least=(1.0, 1.0))
        for model, some in logs.items()
        for log in some
    ]


def test_a_left_out_system_is_judged_by_the_others() -> None:
    """Systems at 0.1, 0.3 and 0.5. For the first the others lie at 0.4, with a scatter of sqrt(1 + 1/2) of theirs; each
    of those lies 0.2 above or below the other alone, over sqrt(1 + 1). Of all three the centre is 0.3 and the root
    sqrt(1 + 1/3)."""
    spread = Spread.of(runs({"a": [0.1], "b": [0.3], "c": [0.5]}), "tpot")
    wide = np.sqrt(1.5)
    assert spread.centre(CELL, "a") == pytest.approx((0.4, wide))
    assert {model: float(u[0]) * wide for (_, model), u in spread.residuals().items()} == pytest.approx(
        {"a": -0.3, "b": 0.0, "c": 0.3}
    )
    # of "b" and "c" alike in weight the middles of their shares are 1/4 and 3/4: beyond them the ends
    low, high = spread.band(CELL, "a")
    assert (low, high) == pytest.approx((1.0, np.exp(0.4 + 0.2 / np.sqrt(2) * wide)))
    low, high = spread.band(CELL)
    assert high == pytest.approx(np.exp(0.3 + 0.3 / wide * np.sqrt(4 / 3)))
    assert low == pytest.approx(np.exp(min(0.3 - 0.3 / wide * np.sqrt(4 / 3), 0.0)))


def test_no_row_of_a_left_out_system_has_a_part_in_its_band() -> None:
    """Wherever the rows of "a" lie, in this cell or another form of it, its band stays."""
    others = {"b": [0.3], "c": [0.5], "d": [0.1]}
    bands = {
        Spread.of(
            [*runs({"a": [at], **others}), *runs({"a": [2 * at], **others}, Cell("h100-sxm", "vllm", ("drafts",)))],
            "tpot",
        ).band(CELL, "a")
        for at in (0.1, 5.0)
    }
    assert len(bands) == 1


def test_rows_of_a_system_count_by_their_root() -> None:
    """Four rows at 0 count twice as much as one at 1: the middle of their shares is a third, and 0.5 lies between."""
    assert weighted_quantiles(np.array([0.0, 1.0]), np.array([2.0, 1.0]), (1 / 3, 5 / 6, 7 / 12)) == pytest.approx(
        [0.0, 1.0, 0.5]
    )


def test_two_systems_have_no_band() -> None:
    few = runs({"llama-3.1-8b": [0.1], "qwen3-32b": [0.2]}, Cell("h200-sxm", "sglang", ("drafts",)))
    many = runs({"llama-3.1-8b": [0.0], "qwen3-32b": [0.1, 0.1], "mixtral-8x7b-v0.1": [0.2]})
    known, unknown = fitted([*few, *many], "").cells
    assert (known.systems, known.rows, set(known.bands)) == (3, 4, {"ttft", "tpot"})
    assert (unknown.systems, unknown.rows, unknown.forms, unknown.bands) == (2, 2, ("drafts",), {})
    assert beyond_the_slow_end(few, "ttft", 0.9) == {}
    assert fitted([*few, *many], "").families == {"attention": 3, "mlp": 2, "moe": 1}, "models, in any form"


def test_what_is_slower_than_the_band_of_the_others_is_counted() -> None:
    """The band of "c" is that of "a" and "b", exp(0.1 + 0) at most: both its runs lie beyond; none of the others' do,
    whose bands reach to what "c" says."""
    found = runs({"a": [0.0], "b": [0.0], "c": [0.5, 0.6]})
    counted = beyond_the_slow_end(found, "tpot", 0.9)[CELL]
    assert (counted.beyond, counted.runs, counted.systems) == (2, 4, 3)
    held = [Deviation(cell=one.cell, model=one.model, logs=one.logs, least=(1.0, 2.0)) for one in found]
    assert beyond_the_slow_end(held, "tpot", 0.9)[CELL].beyond == 0  # exp(0.6) is less than 2
    unknown = [Deviation(cell=one.cell, model=one.model, logs=one.logs, least=(1.0, np.nan)) for one in found]
    assert beyond_the_slow_end(unknown, "tpot", 0.9) == {}


def test_a_file_of_deviations_is_read_back(tmp_path: Path) -> None:
    found = runs({"a": [0.125]}, Cell("b200-hgx", "trtllm", ("drafts", "expert parallelism")))
    write_deviations(found, tmp_path / "x.csv")
    assert read_deviations(tmp_path / "x.csv") == found


def test_the_bands_on_file_are_those_of_the_measured_runs() -> None:
    found, on_file = read_deviations(RUNS), measured_bands()
    made = fitted(found, "")
    assert [one.model_dump(exclude={"ttft", "tpot"}) for one in made.cells] == [
        one.model_dump(exclude={"ttft", "tpot"}) for one in on_file.cells
    ]
    for ours, theirs in zip(made.cells, on_file.cells):
        assert (ours.tpot is None) == (theirs.systems < FEWEST_SYSTEMS)
        for metric, band in theirs.bands.items():
            assert ours.bands[metric] == pytest.approx(band, rel=3e-3), (theirs, metric)
    assert made.families == on_file.families


@pytest.mark.parametrize("metric", METRICS)
def test_bands_cover_systems_that_had_no_part_in_them(metric: str) -> None:
    """Of runs whose system was left out, at most 12 % are slower than 9 in 10 should be, and 15 % in a cell. One cell
    misses that by two runs: vLLM on H200, 12 of 69 (docs/accuracy-plans.md)."""
    counted = beyond_the_slow_end(read_deviations(RUNS), metric, 0.9)
    beyond, every = sum(one.beyond for one in counted.values()), sum(one.runs for one in counted.values())
    assert 0.05 <= beyond / every <= 0.12
    over = {
        (cell.device, cell.engine): (one.beyond, one.runs)
        for cell, one in counted.items()
        if one.runs >= 10 and one.beyond > 0.15 * one.runs
    }
    assert over == ({("h200-sxm", "vllm"): (12, 69)} if metric == "ttft" else {})


def test_four_in_five_is_a_narrower_end_than_nine_in_ten() -> None:
    """Of a normal error of which a tenth lies beyond 1.2: Phi^-1(0.8) / Phi^-1(0.9) = 0.6567 of its logarithm."""
    assert quantile((0.9, 1.2), 0.8) == pytest.approx(1.2**0.6567, rel=1e-4)


def test_kept_predictions_depend_on_all_code_that_makes_them() -> None:
    """What the interpreter loads to price rows, but for what is made of the predictions."""
    told = (
        "import sys, inferplan.validation.run; print(*(getattr(m, '__file__', 0) for m in list(sys.modules.values())))"
    )
    loaded = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout.split()
    package = Path(inferplan.__file__).parent
    asked = {file for file in map(Path, loaded) if package in file.parents}
    assert len(asked) > 50
    left_out = {file.relative_to(package).as_posix() for file in asked - set(priced._sources())}
    assert left_out <= {"estimate/bands.py", "estimate/support.py"}
