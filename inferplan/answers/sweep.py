"""A grid of deployments and loads: every point priced, on all cores or on a cluster, resumable (docs/planning.md).

A task is one structure (model, GPU, formats, division, engine) with its whole grid of loads, whose axes stay axes: what
depends on the batch alone is priced once for each batch. Rows are kept by column (:mod:`inferplan.columns`).
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from inferplan.answers.drafting import Drafting
from inferplan.answers.journal import Journal
from inferplan.catalog.assemble import Request, assemble, load_engine, quant_meant, require_precision
from inferplan.catalog.files import load_hardware, load_model
from inferplan.cluster import client_of
from inferplan.columns import Block, Column, Columns, Row, blocks_of, compact, one_value
from inferplan.errors import InferplanError, MissingExtraError, NotFiniteError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate_unchecked
from inferplan.extras import require
from inferplan.features import require_together
from inferplan.fields import Text, Whole, Words, ask
from inferplan.files import save
from inferplan.lists import MOST_LISTED
from inferplan.serving.options import MOST_PROCESSES
from inferplan.serving.techniques.applied import ServedEstimate, Techniques
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.shown import Shown
from inferplan.table import frame
from inferplan.units import Num
from inferplan.work.parallel import Parallelism
from inferplan.work.step import WIDE

if TYPE_CHECKING:
    import pandas as pd

Backend = Literal["serial", "joblib", "dask"]
BACKENDS: tuple[Backend, ...] = ("serial", "joblib", "dask")
DEGREES = tuple(field.name for field in fields(Parallelism) if field.type == "int" and field.name != "redundant")
SPREAD = {
    "redundant": "redundant_experts",
    "two_batch_overlap": "two_batch_overlap",
    "expert_skew": "expert_skew",
}
"""Axes of experts that are spread (slots for copies, half batches that overlap, their popularity), to their columns,
which rows have where the axis is asked for."""
STRUCTURE = ("model", "gpu", "quant", "engine", *DEGREES, *SPREAD)
LOAD = ("batch", "prompt", "output")
NO_DRAFTS = Drafting(model=None, length=0, acceptance=0.0)
"""Plain decoding, beside drafts."""
MOST_POINTS = MOST_LISTED
"""Points of the largest grid that one sweep takes: its rows are held in memory, 0.1 kB for each."""
MOST_STRUCTURES = 100_000
"""Structures of the largest grid, and points of the largest that is simulated: each takes some milliseconds or more."""
_POINTS_AT_ONCE = 65536
"""Points that are priced together: few enough that their arrays stay in the cache of a core."""


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
    drafting: Mapping[str, tuple[Drafting, ...]] = field(default_factory=dict)
    """Speculation by model, each tried on every structure of it beside none."""

    def __post_init__(self) -> None:
        unknown = set(self.structure) - set(STRUCTURE)
        if unknown:
            raise UsageError(f"no axis named {', '.join(sorted(unknown))}", hint=", ".join((*STRUCTURE, *LOAD)))
        empty = [name for name, values in self._axes().items() if not len(values)]
        if empty:
            raise UsageError(f"no values for {', '.join(empty)}", hint="at least one value on each axis")
        if self.size > MOST_POINTS:
            raise UsageError(
                f"a grid of {self.size:,} points",
                because=f"one sweep takes at most {MOST_POINTS:,}: "
                + " x ".join(f"{len(values):,} {name}" for name, values in self._axes().items() if len(values) > 1),
                hint="a wider step, such as 1-1M*2, or several sweeps",
            )
        for what, count in (("structures", self._structures), ("simulated points", self.size * self.simulated)):
            if count > MOST_STRUCTURES:
                raise UsageError(
                    f"a grid of {count:,} {what}",
                    because=f"each is computed alone; one sweep takes at most {MOST_STRUCTURES:,}",
                    hint="fewer values, or several sweeps",
                )

    @property
    def _structures(self) -> int:
        return prod(len(values) for values in self.structure.values())

    def _axes(self) -> dict[str, Sequence[Any]]:
        return {**self.structure, **{name: getattr(self, name) for name in LOAD}}

    @property
    def size(self) -> int:
        """Points of the grid."""
        return prod(map(len, self._axes().values()))

    def tasks(self) -> list[Task]:
        """One task a structure, in the order of the axes."""
        names = list(self.structure)
        load: dict[str, Any] = {name: tuple(getattr(self, name)) for name in LOAD}
        digest = hashlib.sha256(repr(load).encode()).hexdigest()
        tasks = []
        for values in itertools.product(*self.structure.values()):
            point = dict(zip(names, values))
            degrees = {name: point.pop(name) for name in (*DEGREES, "redundant") if name in point}
            halves = {"two_batch_overlap": point.pop("two_batch_overlap", self.base.flags.two_batch_overlap)}
            task = Task(
                request=replace(self.base, **point, flags=self.base.flags.model_copy(update=halves)),
                degrees=tuple(degrees.items()),
                **load,
                digest=digest,
                simulated=self.simulated,
                spread=tuple(name for name in SPREAD if name in self.structure),
            )
            drafting = self.drafting.get(task.request.model)
            tasks += [task] if drafting is None else [replace(task, drafting=one) for one in (NO_DRAFTS, *drafting)]
        return tasks


@dataclass(frozen=True, kw_only=True)
class Task:
    """One structure with its grid of loads; small enough to send to another machine."""

    request: Request
    degrees: tuple[tuple[str, int], ...]
    batch: tuple[int, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    digest: str
    """What identifies the loads."""
    simulated: bool = False
    drafting: Drafting | None = None
    """Speculation; ``None`` where the sweep has none."""
    spread: tuple[str, ...] = ()
    """Axes of :data:`SPREAD` that the sweep has."""

    @property
    def key(self) -> str:
        """What identifies the task in a journal."""
        drafts = [] if self.drafting is None else [repr(self.drafting)]
        structure = json.dumps([repr(self.request), self.degrees, self.digest, self.simulated, *drafts])
        return hashlib.sha256(structure.encode()).hexdigest()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Points along the axes of the load."""
        return len(self.batch), len(self.prompt), len(self.output)

    def labels(self) -> Row:
        """The structure, as columns of its rows."""
        request, named = self.request, (*DEGREES, "redundant")
        parallel = {name: getattr(request.parallel, name) for name in named} | dict(self.degrees)
        redundant, flags = parallel.pop("redundant"), request.flags
        spread = redundant, flags.two_batch_overlap, request.expert_skew
        named_spread = dict(zip(SPREAD, spread, strict=True))
        return {
            "model": request.model,
            "gpu": request.gpu,
            "quant": request.quant or "native",
            "engine": request.engine,
            **parallel,
            **{column: named_spread[axis] for axis, column in SPREAD.items() if axis in self.spread},
            **({} if self.drafting is None else {"draft_tokens": self.drafting.length}),
        }

    def loads(self) -> Iterator[Row]:
        """The loads, as columns of the rows, in the order of the axes."""
        for batch, prompt, output in itertools.product(self.batch, self.prompt, self.output):
            yield {"batch": batch, "prompt_tokens": prompt, "output_tokens": output}

    def block(self, figures: dict[str, Column]) -> Block:
        """Its rows: the structure, the loads, and figures by column."""
        axes = {"batch": self.batch, "prompt_tokens": self.prompt, "output_tokens": self.output}
        loads = {
            name: compact(np.array(values).reshape(tuple(-1 if axis == place else 1 for axis in range(3))))
            for place, (name, values) in enumerate(axes.items())
        }
        labels = {name: one_value(value, 3) for name, value in self.labels().items()}
        return Block(shape=self.shape, columns={**labels, **loads, **figures})


def structure_rows(task: Task) -> list[Block]:
    """Every row of one structure; a structure that cannot exist gives rows that say why.

    Raises ``NotFiniteError`` for a price that is no number.
    """
    try:
        degrees: dict[str, Any] = dict(task.degrees)
        parallel = replace(task.request.parallel, **degrees)
        deployment = assemble(replace(task.request, parallel=parallel))
        drafting = task.drafting or NO_DRAFTS
        speculation = drafting.on(task.request, parallel) if drafting.length else PLAIN
        if drafting.length:
            require_together("estimate", deployment.features | {"drafts"})
        if task.simulated:
            return blocks_of(_simulated(deployment, task, load, speculation) for load in task.loads())
        return [task.block(_priced(deployment, task, speculation))]
    except NotFiniteError:
        raise
    except InferplanError as error:
        return [task.block({"status": one_value(error.what, 3)})]


def _priced(deployment: Deployment, task: Task, speculation: Speculation) -> dict[str, Column]:
    """Figures of every point of a task, by column.

    Prompts that are shaped like a decode run through other kernels than longer ones and are priced apart from them.
    """
    prompt = np.array(task.prompt, dtype=float)
    order = np.argsort(prompt > WIDE, kind="stable")
    narrow = int(np.sum(prompt <= WIDE))
    axes = [np.array(task.batch, dtype=float), prompt[order], np.array(task.output, dtype=float)]
    found: dict[str, Column] = {}
    for part in _parts(task.shape, narrow):
        batch, prompts, output = np.ix_(*(axis[chosen] for axis, chosen in zip(axes, part, strict=True)))
        load = StaticLoad(batch=batch, prompt=prompts, output=output)
        for name, value in _figures(deployment, load, speculation).items():
            found.setdefault(name, np.empty(task.shape))[part] = value
    statuses = np.array(["ok", "does not fit", "longer than the model's context"], dtype=object)
    batch, prompts, output = np.ix_(*axes)
    status = np.where(found["max_batch"] >= batch, 0, 1)
    if deployment.model.max_context is not None:
        generated = 0.0 if deployment.model.encodes else output
        status = np.where(prompts + generated > deployment.model.max_context, 2, status)
    if 0 < narrow < len(prompt):
        back = np.argsort(order)
        found, status = {name: values[:, back] for name, values in found.items()}, status[:, back]
    return {**{name: compact(values) for name, values in found.items()}, "status": statuses[compact(status)]}


def _parts(shape: tuple[int, int, int], narrow: int) -> Iterator[tuple[slice, slice, slice]]:
    """A grid of loads in parts of at most :data:`_POINTS_AT_ONCE` points; the first prompts lie apart from the rest."""
    batches, prompts, outputs = shape
    third = min(outputs, _POINTS_AT_ONCE)
    second = min(prompts, max(_POINTS_AT_ONCE // third, 1))
    first = min(batches, max(_POINTS_AT_ONCE // (third * second), 1))
    bounds = sorted({*range(0, narrow, second), *range(narrow, prompts, second), prompts})
    for low, high in itertools.pairwise(bounds):
        for batch, output in itertools.product(range(0, batches, first), range(0, outputs, third)):
            yield slice(batch, batch + first), slice(low, high), slice(output, output + third)


def _figures(deployment: Deployment, load: StaticLoad, speculation: Speculation) -> dict[str, Num]:
    """Figures of a grid of loads by column, each along the axes that it depends on."""
    result = estimate_unchecked(deployment, load)
    if speculation.length:
        result = ServedEstimate(deployment=deployment, load=load, techniques=Techniques(speculation=speculation))
    footprint = result.footprint
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
        "weights_bytes": footprint.of_fullest(lambda stage: stage.weights),
        "kv_bytes": footprint.of_fullest(footprint.state_of),
        "max_batch": footprint.max_batch(),
    }


def _simulated(deployment: Deployment, task: Task, load: Row, speculation: Speculation) -> Row:
    """One point under the simulator: mean and 95th percentile of what users see."""
    from inferplan.serving.options import Options
    from inferplan.serving.simulator import simulate
    from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic

    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=load["batch"], burst=False, ramp=None),
        prompt=Lengths(mean=load["prompt_tokens"]),
        output=Lengths(mean=load["output_tokens"]),
    )
    row = {**task.labels(), **load}
    try:
        result = simulate(deployment, traffic, options=Options(trim=True, speculation=speculation))
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


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where a sweep runs. jobs: processes (``None``: all cores). scheduler: the address of a dask cluster.

    journal: a file that every finished structure is added to; those found in it are not run again. progress: called
    with the number of structures done.
    """

    backend: Backend = ask("--executor", Words(BACKENDS), "Where it runs. [joblib]", "joblib")
    jobs: int | None = ask("--jobs", Whole(most=MOST_PROCESSES), "Processes. [all cores]", None)
    scheduler: str | None = ask(
        "--scheduler",
        Text(),
        "dask: tcp://host:8786 of a running cluster [a local one].",
        None,
        metavar="ADDRESS",
    )
    journal: Path | None = ask(
        "--resume",
        Text(Path),
        "Journal of finished points: those in it are not run again, new ones are added.",
        None,
        metavar="FILE",
    )
    progress: Callable[[int], None] | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Sweep(Shown):
    """The points of a grid, in the order of its axes."""

    columns: Columns

    @cached_property
    def refused(self) -> Counter[str]:
        """How many points have no valid figures, by the reason: the column ``status`` where it is not ``ok``."""
        found: Counter[str] = Counter()
        for block in self.columns.blocks:
            found.update(block.full("status").tolist())
        del found["ok"]
        return found

    @cached_property
    def impossible(self) -> Counter[str]:
        """Those of them that cannot exist, and have no figures at all."""
        found: Counter[str] = Counter()
        for block in self.columns.blocks:
            if "ttft_s" not in block.columns:
                found.update(block.full("status").tolist())
        return found

    def require_points(self) -> None:
        """Raise ``UsageError`` with the reasons where no point of the grid can exist."""
        if self.impossible.total() == len(self.columns):
            raise UsageError("no point of this grid can exist", because="; ".join(self.impossible))

    @property
    def rows(self) -> list[Row]:
        """One record a point, made anew each time: they take some thirty times the memory of the columns."""
        return list(self.columns)

    def to_frame(self) -> pd.DataFrame:
        """One row a point."""
        return frame(self.columns)


Runner = Callable[[Task], list[Block]]


def sweep(grid: Grid, execution: Execution = Execution(backend="serial"), runner: Runner = structure_rows) -> Sweep:
    """Run every task of a grid.

    Raises ``MissingExtraError`` when the backend is not installed, ``UnknownNameError`` for a model, GPU or engine that
    is not on file, ``SpecError`` for a journal that is none.
    """
    if execution.scheduler is not None and execution.backend != "dask":
        raise UsageError(
            "--scheduler needs --executor dask",
            because=f"the grid runs with {execution.backend}",
            hint="--executor dask, or leave --scheduler out",
        )
    tasks = grid.tasks()
    _require_names(grid)
    with Journal(execution.journal) as journal:
        waiting = [task for task in tasks if task.key not in journal.done]
        count = len(tasks) - len(waiting)
        if execution.progress:
            execution.progress(count)
        for key, blocks in _execute(waiting, execution, runner):
            journal.add(key, blocks)
            count += 1
            if execution.progress:
                execution.progress(count)
        return Sweep(columns=Columns(blocks=[block for task in tasks for block in journal.done[task.key]]))


def _require_names(grid: Grid) -> None:
    """Raise ``UnknownNameError`` for a name on an axis that nothing answers to: that is no point of any grid."""
    named: dict[str, Callable[[Any], object]] = {
        "model": load_model,
        "gpu": load_hardware,
        "engine": load_engine,
        "quant": lambda name: require_precision(_meant(name, *(axes[axis] for axis in ("engine", "gpu")))),
    }
    axes = {axis: grid.structure.get(axis, [getattr(grid.base, axis)]) for axis in named}
    for axis, find in named.items():
        for name in axes[axis]:
            find(name)


def _meant(quant: str | None, engines: Sequence[Any], gpus: Sequence[Any]) -> str | None:
    """What a short name of a format means to one of the engines on one of the devices; any other text as it is."""
    each = (quant and quant_meant(quant, engine, gpu) for engine, gpu in itertools.product(engines, gpus))
    return next((meant for meant in each if meant != quant), quant)


def _execute(tasks: list[Task], execution: Execution, runner: Runner) -> Iterator[tuple[str, list[Block]]]:
    if execution.backend == "dask":
        yield from _on_dask(tasks, execution, runner)
    elif execution.backend == "joblib" and len(tasks) > 1 and execution.jobs != 1:
        yield from _on_joblib(tasks, execution.jobs, runner)
    else:
        yield from ((task.key, runner(task)) for task in tasks)


def _keyed(runner: Runner, task: Task) -> tuple[str, list[Block]]:
    return task.key, runner(task)


def _on_joblib(tasks: list[Task], jobs: int | None, runner: Runner) -> Iterator[tuple[str, list[Block]]]:
    try:
        from joblib import Parallel, delayed
    except ImportError:
        raise MissingExtraError("joblib is not installed", hint="pip install joblib, or --jobs 1") from None
    parallel = Parallel(n_jobs=jobs or -1, return_as="generator_unordered")
    yield from parallel(delayed(_keyed)(runner, task) for task in tasks)


def _on_dask(tasks: list[Task], execution: Execution, runner: Runner) -> Iterator[tuple[str, list[Block]]]:
    with client_of(execution.scheduler, execution.jobs) as client:
        from dask.distributed import as_completed

        futures = client.map(lambda task: _keyed(runner, task), tasks, pure=False)
        for future in as_completed(futures):
            yield future.result()


def save_parquet(result: Sweep, path: str) -> None:
    """Write the rows as Parquet. Raises ``MissingExtraError`` without pandas and pyarrow."""
    require("parquet", "a Parquet file")
    buffer = io.BytesIO()
    result.to_frame().to_parquet(buffer, index=False)
    save(path, buffer.getvalue())
