"""Sweeps: the same numbers as one estimate at a time, on every backend, and resumable."""

from __future__ import annotations

import itertools
import json
import pickle
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferplan.answers import journal
from inferplan.answers import sweep as module
from inferplan.answers.sweep import Execution, Grid, Sweep, Task, save_parquet, structure_rows, sweep
from inferplan.catalog.assemble import Request, assemble
from inferplan.columns import Block
from inferplan.devices.engine import EngineFlags
from inferplan.errors import SpecError, UnknownNameError, UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.lists import parse_copies, parse_counts
from inferplan.work.parallel import Parallelism
from tests.cases import for_each

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


@for_each(
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


@for_each("text", ["", "0", "a", "8-1", "1-8*1", "0-8*2", "1-8+0"])
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


SAMPLES = {
    "two stages": {"model": ["llama-3.1-8b"], "pp": [1, 2], "quant": [None, "fp8"]},
    "windows": {"model": ["gemma-3-27b", "gpt-oss-20b"], "engine": ["vllm", "sglang"]},
    "chunks": {"model": ["llama-4-scout"], "tp": [4], "engine": ["vllm", "none"]},
    "experts on ranks": {"model": ["deepseek-v2-lite"], "tp": [2], "dp": [1, 2], "ep": [2], "replicas": [3]},
    "states": {"model": ["mamba-2.8b", "zamba2-7b"], "tp": [1, 2]},
}


@for_each("name", SAMPLES)
def test_rows_are_those_of_one_point_after_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POINTS_AT_ONCE", 11)  # parts that end inside every axis
    grid = Grid(
        base=Request(model="", gpu="h200-sxm"),
        structure=SAMPLES[name],
        batch=[1, 64, 100000],
        prompt=[5000, 16, 17, 70000],
        output=[1, 300, 100000],
    )
    rows = sweep(grid).rows
    assert len(rows) == grid.size
    expected = [row for task in grid.tasks() for row in point_by_point(task)]
    for row, one in zip(rows, expected, strict=True):
        assert list(row) == list(one)
        for column, value in one.items():
            wanted = pytest.approx(value, rel=1e-12) if isinstance(value, float) else value
            assert row[column] == wanted, (column, one)
            assert type(row[column]) is type(value), column


def point_by_point(task: Task) -> list[dict[str, Any]]:
    """Rows of a task without grids: one scalar estimate a point."""
    deployment = assemble(replace(task.request, parallel=Parallelism(**dict(task.degrees))))
    rows = []
    for batch, prompt, output in itertools.product(task.batch, task.prompt, task.output):
        one = Estimate(
            deployment=deployment, load=StaticLoad(batch=float(batch), prompt=float(prompt), output=float(output))
        )
        longest, most = deployment.model.max_context, float(one.footprint.max_batch())
        too_long = longest is not None and prompt + output > longest
        figures = {
            "ttft_s": one.ttft,
            "tpot_s": one.tpot if output > 1 else None,
            "e2el_s": one.e2el,
            "output_tokens_per_s": one.output_rate,
            "output_tokens_per_s_per_device": one.output_rate / deployment.parallel.devices,
            "total_tokens_per_s": one.total_rate,
            "prefill_mfu": one.prefill.mfu,
            "decode_mbu": one.decode.mbu,
            "weights_bytes": one.footprint.weights,
            "kv_bytes": one.footprint.state,
            "max_batch": most,
        }
        load = {"batch": batch, "prompt_tokens": prompt, "output_tokens": output}
        figures = {column: None if value is None else float(value) for column, value in figures.items()}
        status = "longer than the model's context" if too_long else "ok" if most >= batch else "does not fit"
        rows.append({**task.labels(), **load, **figures, "status": status})
    return rows


def test_a_name_that_nothing_answers_to_is_no_point() -> None:
    for axis, known in {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": "vllm"}.items():
        with pytest.raises(UnknownNameError, match="nope") as refused:
            sweep(Grid(base=replace(GRID.base, gpu="h100-sxm"), structure={axis: [known, "nope"]}))
        assert pickle.loads(pickle.dumps(refused.value)).render() == refused.value.render()


def test_a_grid_without_end_is_refused() -> None:
    with pytest.raises(UsageError, match="1,000,000,000 counts"):
        parse_counts("1-1000000000")
    with pytest.raises(UsageError, match=r"100,000,000,000 points(.|\n)*1,000,000 batch"):
        Grid(base=GRID.base, batch=range(10**6), prompt=range(10**5))
    with pytest.raises(UsageError, match="no values for batch"):
        Grid(base=GRID.base, batch=[])


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
    path = tmp_path / "grid.jsonl"
    ran: list[Task] = []

    def counting(task: Task) -> list[Block]:
        if len(ran) == 5:
            raise KeyboardInterrupt
        ran.append(task)
        return structure_rows(task)

    with pytest.raises(KeyboardInterrupt):
        sweep(GRID, Execution(backend="serial", journal=path), counting)
    with path.open("a") as file:
        file.write('{"key": "half a li')
    again: list[Task] = []

    def recording(task: Task) -> list[Block]:
        again.append(task)
        return structure_rows(task)

    resumed = sweep(GRID, Execution(backend="serial", journal=path), recording)
    assert len(again) == len(GRID.tasks()) - 5
    assert resumed.rows == result.rows
    assert sweep(GRID, Execution(backend="serial", journal=path), counting).rows == result.rows


@for_each("text", ["hello", "hello\nworld\n", '{"key": "a", "rows": []}\n', "\n"])
def test_a_file_that_is_no_journal_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"notes\.txt is not a journal"):
        sweep(GRID, Execution(backend="serial", journal=path))
    assert path.read_text() == text


def test_a_journal_with_a_spoilt_line_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    sweep(GRID, Execution(backend="serial", journal=path))
    lines = path.read_bytes().splitlines(keepends=True)
    for spoilt in (b"{}\n", b"nothing\n", lines[2][: len(lines[2]) // 2] + b"\n"):
        path.write_bytes(b"".join([*lines[:2], spoilt, *lines[3:]]))
        with pytest.raises(SpecError, match="journal:3: not a line"):
            sweep(GRID, Execution(backend="serial", journal=path))
        assert path.read_bytes() == b"".join([*lines[:2], spoilt, *lines[3:]])


def test_a_journal_with_changed_bytes_is_refused_or_its_last_task_run_again(tmp_path: Path, result: Sweep) -> None:
    """Damage that is JSON still: another column name, another code of a value, another figure in base64."""
    path = tmp_path / "journal"
    sweep(GRID, Execution(backend="serial", journal=path))
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for old, new in ((b'"tpot_s"', b'"tpot_x"'), (b"h100-sxm", b"h200-sxm"), (b'"f": "', b'"f": "A')):
        middle, last = (lines[at].replace(old, new, 1) for at in (1, -1))
        if middle != lines[1]:
            path.write_bytes(b"".join([lines[0], middle, *lines[2:]]))
            with pytest.raises(SpecError, match="journal:2: not a line"):
                sweep(GRID, Execution(backend="serial", journal=path))
        path.write_bytes(b"".join([*lines[:-1], last]))
        assert sweep(GRID, Execution(backend="serial", journal=path)).rows == result.rows
        assert path.read_bytes() == whole


def test_a_line_of_a_journal_begins_with_the_crc_of_the_rest(tmp_path: Path) -> None:
    """CRC-32 of "123456789" is cbf43926 (ITU-T V.42): the checksum is that one, of all that follows the space."""
    assert journal._checksum(b"123456789") == b"cbf43926 "
    path = tmp_path / "journal"
    with journal.Journal(path) as opened:
        opened.add("task", [])
    _, line = path.read_bytes().splitlines()
    assert line == f"{zlib.crc32(line[9:]):08x} ".encode() + line[9:]
    assert json.loads(line[9:]) == {"key": "task", "blocks": []}


def test_a_journal_may_be_cut_off_anywhere(tmp_path: Path, result: Sweep) -> None:
    path = tmp_path / "journal"
    sweep(GRID, Execution(backend="serial", journal=path))
    whole = path.read_bytes()
    ends = np.cumsum([len(line) for line in whole.splitlines(keepends=True)])
    for length in (0, 1, int(ends[0]) - 1, int(ends[0]), int(ends[0]) + 7, int(ends[3]), int(ends[3]) - 1):
        path.write_bytes(whole[:length])
        done: list[int] = []
        resumed = sweep(GRID, Execution(backend="serial", journal=path, progress=done.append))
        assert len(GRID.tasks()) - done[0] == len(GRID.tasks()) - max(sum(ends <= length) - 1, 0)
        assert resumed.rows == result.rows
        assert path.read_bytes() == whole


def test_another_grid_may_use_the_same_journal(tmp_path: Path, result: Sweep) -> None:
    execution = Execution(backend="serial", journal=tmp_path / "journal")
    longer = replace(GRID, output=[16, 32])
    assert sweep(GRID, execution).rows == result.rows
    assert sweep(longer, execution).rows == sweep(longer).rows


def test_frames_and_parquet(tmp_path: Path, result: Sweep) -> None:
    import pandas as pd

    frame = result.to_frame()
    assert len(frame) == len(result.rows)
    pd.testing.assert_frame_equal(frame, pd.DataFrame(result.rows))
    pytest.importorskip("pyarrow")
    save_parquet(result, str(tmp_path / "grid.parquet"))
    assert len(pd.read_parquet(tmp_path / "grid.parquet")) == len(frame)


def test_experts_are_spread_along_axes_too() -> None:
    axes = {"redundant": [0, 32], "two_batch_overlap": [False, True], "expert_skew": [0.0, 1.0]}
    base = Request(model="deepseek-v3", gpu="h200-sxm", engine="sglang", parallel=Parallelism(dp=8, ep=8))
    rows = sweep(Grid(base=base, structure=axes, batch=(256,))).rows
    assert len({row["tpot_s"] for row in rows}) == len(rows) == 8
    for row in rows:
        parallel = replace(base.parallel, redundant=row["redundant_experts"])
        flags = EngineFlags(two_batch_overlap=row["two_batch_overlap"])
        asked = replace(base, parallel=parallel, flags=flags, expert_skew=row["expert_skew"])
        assert row["tpot_s"] == pytest.approx(estimate(assemble(asked), StaticLoad(batch=256.0, output=256.0)).tpot)
    assert parse_copies("0,32") == (0, 32) and parse_copies("0") == (0,)
