"""Sweeps: the same numbers as one estimate at a time, on every backend, and resumable."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferplan.answers.sweep import Execution, Grid, Row, Sweep, Task, parse_counts, run, save_parquet, sweep
from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import SpecError, UsageError
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.work.parallel import Parallelism

GRID = Grid(
    base=Request(model="llama-3.1-8b", gpu="", ideal=True),
    structure={"gpu": ["h100-sxm", "a100-80gb-sxm"], "quant": [None, "fp8"], "tp": [1, 2, 3]},
    batch=[1, 8, 4096],
    prompt=[128, 1024],
    output=[16, 200000],
)


@pytest.fixture(scope="module")
def result() -> Sweep:
    return sweep(GRID)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("1,2,8k", [1, 2, 8000]),
        ("1-4", [1, 2, 3, 4]),
        ("128-512+128", [128, 256, 384, 512]),
        ("1-100*10", [1, 10, 100]),
        ("2,1-3", [2, 1, 3]),
        ("1Ki-2Ki+1Ki", [1024, 2048]),
    ],
)
def test_counts(text: str, counts: list[int]) -> None:
    assert parse_counts(text) == counts


@pytest.mark.parametrize("text", ["", "0", "a", "8-1", "1-8*1", "0-8*2", "1-8+0"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_counts(text)


def test_every_point_equals_its_own_estimate(result: Sweep) -> None:
    assert len(result.rows) == GRID.size == 2 * 2 * 3 * 3 * 2 * 2
    checked = 0
    for row in result.rows:
        if row["status"] != "ok":
            continue
        quant = None if row["quant"] == "native" else row["quant"]
        request = Request(
            model=row["model"], gpu=row["gpu"], quant=quant, ideal=True, parallel=Parallelism(tp=row["tp"])
        )
        load = StaticLoad(
            batch=float(row["batch"]), prompt=float(row["prompt_tokens"]), output=float(row["output_tokens"])
        )
        one = estimate(assemble(request), load)
        assert row["ttft_s"] == pytest.approx(float(one.ttft), rel=1e-12)
        assert row["tpot_s"] == pytest.approx(float(one.tpot), rel=1e-12)
        assert row["output_tokens_per_s"] == pytest.approx(float(one.output_rate), rel=1e-12)
        checked += 1
    assert checked >= 20


def test_what_cannot_run_says_why(result: Sweep) -> None:
    reasons = {row["status"] for row in result.rows} - {"ok"}
    assert any("--tp 3 does not divide" in reason for reason in reasons)
    assert any("no fp8" in reason for reason in reasons)
    assert {"does not fit", "longer than the model's context"} <= reasons


def test_an_unknown_axis_is_refused() -> None:
    with pytest.raises(UsageError, match="no axis"):
        Grid(base=GRID.base, structure={"colour": ["red"]})


def test_all_cores_give_the_same_rows(result: Sweep) -> None:
    assert sweep(GRID, Execution(backend="joblib", jobs=2)).rows == result.rows


def test_two_dask_workers_give_the_same_rows(result: Sweep) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        execution = Execution(backend="dask", scheduler=cluster.scheduler_address)
        assert sweep(GRID, execution).rows == result.rows


def test_points_can_be_simulated() -> None:
    grid = Grid(
        base=GRID.base, structure={"gpu": ["h100-sxm", "t4"]}, batch=[1, 16], prompt=[256], output=[32], simulated=True
    )
    rows = sweep(grid).rows
    assert [row["status"] == "ok" for row in rows] == [True, True, False, False]
    assert rows[1]["ttft_p95_s"] >= rows[1]["ttft_s"] * 0.99
    assert rows[1]["output_tokens_per_s"] > rows[0]["output_tokens_per_s"]
    static = sweep(Grid(base=GRID.base, structure={"gpu": ["h100-sxm"]}, batch=[1], prompt=[256], output=[32])).rows[0]
    assert rows[0]["tpot_s"] == pytest.approx(static["tpot_s"], rel=0.05)


def test_a_cut_off_sweep_goes_on_where_it_was(tmp_path: Path, result: Sweep) -> None:
    journal = tmp_path / "grid.jsonl"
    ran: list[Task] = []

    def counting(task: Task) -> list[Row]:
        if len(ran) == 5:
            raise KeyboardInterrupt
        ran.append(task)
        return run(task)

    with pytest.raises(KeyboardInterrupt):
        sweep(GRID, Execution(backend="serial", journal=journal), counting)
    with journal.open("a") as file:
        file.write('{"key": "half a li')
    again: list[Task] = []

    def recording(task: Task) -> list[Row]:
        again.append(task)
        return run(task)

    resumed = sweep(GRID, Execution(backend="serial", journal=journal), recording)
    assert len(again) == len(GRID.tasks()) - 5
    assert resumed.rows == result.rows
    assert sweep(GRID, Execution(backend="serial", journal=journal), counting).rows == result.rows


def test_a_journal_that_is_none_is_refused(tmp_path: Path) -> None:
    journal = tmp_path / "notes.txt"
    journal.write_text("hello\nworld\n")
    with pytest.raises(SpecError, match=r"notes\.txt:1"):
        sweep(GRID, Execution(backend="serial", journal=journal))


def test_frames_and_parquet(tmp_path: Path, result: Sweep) -> None:
    frame = result.to_frame()
    assert len(frame) == len(result.rows)
    pytest.importorskip("pyarrow")
    import pandas as pd

    save_parquet(result, str(tmp_path / "grid.parquet"))
    assert len(pd.read_parquet(tmp_path / "grid.parquet")) == len(frame)
