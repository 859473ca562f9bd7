"""A grid of deployments and loads: every point priced, on all cores or on a cluster, resumable (docs/planning.md).

A task is one structure (model, GPU, formats, division, engine); its whole grid of loads is one array through one graph.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import (
    InferplanError,
    InputFileError,
    MissingExtraError,
    NotFiniteError,
    SpecError,
    UsageError,
)
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.extras import require
from inferplan.table import frame, plain
from inferplan.units import parse_count
from inferplan.work.parallel import Parallelism

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
Backend = Literal["serial", "joblib", "dask"]
BACKENDS: tuple[Backend, ...] = ("serial", "joblib", "dask")
DEGREES = tuple(field.name for field in fields(Parallelism))
STRUCTURE = ("model", "gpu", "quant", "engine", *DEGREES)
LOAD = ("batch", "prompt", "output")
_RANGE = re.compile(r"(?P<first>[\d.]+[kKM]?i?)-(?P<last>[\d.]+[kKM]?i?)(?:(?P<how>[+*])(?P<step>[\d.]+[kKM]?i?))?")


def parse_values(text: str) -> list[str]:
    """A comma list of names."""
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_counts(text: str) -> list[int]:
    """Counts as ``1,2,8k``, ranges as ``1-8``, ``128-1024+128`` (add) or ``1-256*2`` (multiply).

    Raises ``UsageError`` for what is neither.
    """
    counts: list[int] = []
    for part in parse_values(text):
        match = _RANGE.fullmatch(part)
        try:
            if match is None:
                counts.append(parse_count(part))
                continue
            value, last = parse_count(match["first"]), parse_count(match["last"])
            step = parse_count(match["step"]) if match["step"] else 1
        except ValueError as error:
            raise UsageError(str(error), hint="1,2,8k or 1-8 or 128-1024+128 or 1-256*2") from None
        multiply = match["how"] == "*"
        if value < 1 or step < (2 if multiply else 1):
            raise UsageError(f"{part!r} does not end", hint="1-8, 128-1024+128, 1-256*2")
        while value <= last:
            counts.append(value)
            value = value * step if multiply else value + step
    if not counts or min(counts) < 1:
        raise UsageError(f"{text!r} holds no counts", hint="1,2,8k or 1-8 or 128-1024+128 or 1-256*2")
    return list(dict.fromkeys(counts))


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The axes of a sweep. ``structure`` values vary the deployment, ``load`` values the static batch."""

    base: Request
    structure: dict[str, list[Any]] = field(default_factory=dict)
    batch: Sequence[int] = (1,)
    prompt: Sequence[int] = (1024,)
    output: Sequence[int] = (256,)
    simulated: bool = False
    """Simulate each point as a closed loop of ``batch`` users, instead of pricing a static batch."""

    def __post_init__(self) -> None:
        unknown = set(self.structure) - set(STRUCTURE)
        if unknown:
            raise UsageError(f"no axis named {', '.join(sorted(unknown))}", hint=", ".join((*STRUCTURE, *LOAD)))

    @property
    def size(self) -> int:
        """Points of the grid."""
        return len(self.tasks()) * len(self.batch) * len(self.prompt) * len(self.output)

    def tasks(self) -> list[Task]:
        """One task a structure, in the order of the axes."""
        names = list(self.structure)
        tasks = []
        for values in itertools.product(*self.structure.values()):
            point = dict(zip(names, values))
            degrees = {name: point.pop(name) for name in DEGREES if name in point}
            tasks.append(
                Task(
                    request=replace(self.base, **point),
                    degrees=tuple(degrees.items()),
                    batch=tuple(self.batch),
                    prompt=tuple(self.prompt),
                    output=tuple(self.output),
                    simulated=self.simulated,
                )
            )
        return tasks


@dataclass(frozen=True, kw_only=True)
class Task:
    """One structure with its grid of loads; small enough to send to another machine."""

    request: Request
    degrees: tuple[tuple[str, int], ...]
    batch: tuple[int, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    simulated: bool = False

    @property
    def key(self) -> str:
        """What identifies the task in a journal."""
        return json.dumps([repr(self.request), self.degrees, self.batch, self.prompt, self.output, self.simulated])

    def labels(self) -> Row:
        """The structure, as columns of its rows."""
        parallel = {name: getattr(self.request.parallel, name) for name in DEGREES} | dict(self.degrees)
        request = self.request
        return {
            "model": request.model,
            "gpu": request.gpu,
            "quant": request.quant or "native",
            "engine": request.engine,
            **parallel,
        }

    def loads(self) -> Iterator[Row]:
        """The loads, as columns of the rows, in the order of the axes."""
        for batch, prompt, output in itertools.product(self.batch, self.prompt, self.output):
            yield {"batch": batch, "prompt_tokens": prompt, "output_tokens": output}


def run(task: Task) -> list[Row]:
    """Every row of one structure; a structure that cannot exist gives rows that say why.

    Raises ``NotFiniteError`` for a price that is no number.
    """
    try:
        parallel = replace(task.request.parallel, **dict(task.degrees))
        deployment = assemble(replace(task.request, parallel=parallel))
        if task.simulated:
            return [_simulated(deployment, task, load) for load in task.loads()]
        priced = [_price(deployment, task, prompt) for prompt in task.prompt]
    except NotFiniteError:
        raise
    except InferplanError as error:
        return [{**task.labels(), **load, "status": error.what} for load in task.loads()]
    rows = []
    shape = (len(task.batch), len(task.output))
    for index, load in enumerate(task.loads()):
        b, p, o = np.unravel_index(index, (len(task.batch), len(task.prompt), len(task.output)))
        table = priced[p]
        values = {name: plain(np.broadcast_to(value, shape)[b, o]) for name, value in table.items()}
        values["status"] = _status(values, load, deployment.model.max_context)
        rows.append({**task.labels(), **load, **values})
    return rows


def _simulated(deployment: Deployment, task: Task, load: Row) -> Row:
    """One point under the simulator: mean and 95th percentile of what users see."""
    from inferplan.serving.simulator import simulate
    from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic

    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=load["batch"]),
        prompt=Lengths(mean=load["prompt_tokens"]),
        output=Lengths(mean=load["output_tokens"]),
    )
    row = {**task.labels(), **load}
    try:
        result = simulate(deployment, traffic)
    except NotFiniteError:
        raise
    except InferplanError as error:
        return {**row, "status": error.what}
    if not len(result.ttft):
        return {**row, "status": "does not fit"}
    values: dict[str, Any] = {
        "ttft_s": float(np.mean(result.ttft)),
        "tpot_s": float(np.mean(result.tpot)) if len(result.tpot) else None,
        "e2el_s": float(np.mean(result.e2el)),
        "ttft_p95_s": float(np.percentile(result.ttft, 95)),
        "tpot_p95_s": float(np.percentile(result.tpot, 95)) if len(result.tpot) else None,
        "output_tokens_per_s": result.output_rate,
        "output_tokens_per_s_per_device": result.output_rate / deployment.parallel.devices,
        "preemptions": result.preemptions,
        "verdict": result.verdict,
    }
    return {**row, **values, "status": "ok"}


def _status(values: Row, load: Row, longest: int | None) -> str:
    if longest is not None and load["prompt_tokens"] + load["output_tokens"] > longest:
        return "longer than the model's context"
    return "ok" if values["max_batch"] >= load["batch"] else "does not fit"


def _price(deployment: Deployment, task: Task, prompt: int) -> Row:
    """Figures of a (batch, output) grid at one prompt length."""
    batch = np.array(task.batch, dtype=float)[:, None]
    output = np.array(task.output, dtype=float)[None, :]
    batch, output = np.broadcast_arrays(batch, output)
    load = StaticLoad(batch=batch, prompt=float(prompt), output=output)
    result = Estimate(deployment=deployment, load=load)
    footprint: Footprint = result.footprint
    rate = result.output_rate
    return {
        "ttft_s": result.ttft,
        "tpot_s": result.tpot,
        "e2el_s": result.e2el,
        "output_tokens_per_s": rate,
        "output_tokens_per_s_per_device": rate / deployment.parallel.devices,
        "total_tokens_per_s": result.total_rate,
        "prefill_mfu": result.prefill.mfu,
        "decode_mbu": result.decode.mbu,
        "weights_bytes": footprint.weights,
        "kv_bytes": footprint.state,
        "max_batch": footprint.max_batch(),
    }


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where a sweep runs. jobs: processes (``None``: all cores). scheduler: the address of a dask cluster.

    journal: a file that every finished structure is added to; those found in it are not run again. progress: called
    with the number of structures done.
    """

    backend: Backend = "joblib"
    jobs: int | None = None
    scheduler: str | None = None
    journal: Path | None = None
    progress: Callable[[int], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The rows of a grid, in the order of its axes."""

    rows: list[Row]

    def to_frame(self) -> pd.DataFrame:
        """One row a point."""
        return frame(self.rows)


def sweep(
    grid: Grid, execution: Execution = Execution(backend="serial"), runner: Callable[[Task], list[Row]] = run
) -> Sweep:
    """Run every task of a grid. Raises ``MissingExtraError`` when the backend is not installed."""
    tasks = grid.tasks()
    done = _read_journal(execution.journal)
    waiting = [task for task in tasks if task.key not in done]
    count = len(tasks) - len(waiting)
    if execution.progress:
        execution.progress(count)
    for key, rows in _execute(waiting, execution, runner):
        done[key] = rows
        count += 1
        _append(execution.journal, key, rows)
        if execution.progress:
            execution.progress(count)
    return Sweep(rows=[row for task in tasks for row in done[task.key]])


def _execute(
    tasks: list[Task], execution: Execution, runner: Callable[[Task], list[Row]]
) -> Iterator[tuple[str, list[Row]]]:
    if execution.backend == "dask":
        yield from _on_dask(tasks, execution, runner)
    elif execution.backend == "joblib" and len(tasks) > 1 and execution.jobs != 1:
        yield from _on_joblib(tasks, execution.jobs, runner)
    else:
        yield from ((task.key, runner(task)) for task in tasks)


def _keyed(runner: Callable[[Task], list[Row]], task: Task) -> tuple[str, list[Row]]:
    return task.key, runner(task)


def _on_joblib(
    tasks: list[Task], jobs: int | None, runner: Callable[[Task], list[Row]]
) -> Iterator[tuple[str, list[Row]]]:
    try:
        from joblib import Parallel, delayed
    except ImportError:
        raise MissingExtraError("joblib is not installed", hint="pip install joblib, or --jobs 1") from None
    parallel = Parallel(n_jobs=jobs or -1, return_as="generator_unordered")
    yield from parallel(delayed(_keyed)(runner, task) for task in tasks)


def _on_dask(
    tasks: list[Task], execution: Execution, runner: Callable[[Task], list[Row]]
) -> Iterator[tuple[str, list[Row]]]:
    try:
        from dask.distributed import Client, as_completed
    except ImportError:
        raise MissingExtraError("dask is not installed", hint="pip install 'inferplan[dask]'") from None
    try:
        where: dict[str, Any] = {"address": execution.scheduler} if execution.scheduler else {}
        if not where and execution.jobs:
            where = {"n_workers": execution.jobs, "threads_per_worker": 1}
        client = Client(**where, dashboard_address=None) if "address" not in where else Client(**where, timeout=20)
    except (OSError, ValueError) as error:
        raise UsageError(f"no dask scheduler answers at {execution.scheduler}", because=str(error)) from None
    with client:
        futures = client.map(lambda task: _keyed(runner, task), tasks, pure=False)
        for future in as_completed(futures):
            yield future.result()


def _read_journal(path: Path | None) -> dict[str, list[Row]]:
    if path is None or not path.exists():
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputFileError(f"cannot read {path}", because=str(error)) from None
    done = {}
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            done[entry["key"]] = entry["rows"]
        except (ValueError, KeyError, TypeError):
            if number == len(lines):  # the line that was being written when the run was cut off
                break
            raise SpecError(f"{path}:{number}: not a line of a sweep journal", hint="another --resume FILE") from None
    return done


def _append(path: Path | None, key: str, rows: list[Row]) -> None:
    if path is None:
        return
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if text and not text.endswith("\n"):
            path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "rows": plain(rows)}) + "\n")
    except OSError as error:
        raise InputFileError(f"cannot write {path}", because=error.strerror or str(error)) from None


def save_parquet(result: Sweep, path: str) -> None:
    """Write the rows as Parquet. Raises ``MissingExtraError`` without pandas and pyarrow."""
    require("parquet", "a Parquet file")
    try:
        result.to_frame().to_parquet(path, index=False)
    except OSError as error:
        raise InputFileError(f"cannot write {path}", because=error.strerror or str(error)) from None
