"""Whole attention modules, priced from the operators with one GPU left out, against what engines measured.

``python -m tests.benchmarks.compare_modules [FOLDER of the kernel tables]``

Every row of the newest release of each framework: the constants of the kernels are those that a device has which
nobody measured, of its nearest relative's tables and else of all other GPUs', and so is the time of the host. No table
of the GPU itself is used, of modules or of kernels. A module that is launched kernel by kernel takes
``(t^4 + (c*n + e)^4)^(1/4)``: t seconds of its n operators, c seconds a launch and e seconds that the host spends on
scores of an indexer, constants of the prompts and of the decodes of a framework. What is replayed from graphs has no
launches (:func:`tools.fitting.tables.modules.in_graphs`). The last columns are the same with the constants of the GPU
itself, as shipped; launches are still those of the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from inferplan.affine import dense
from inferplan.catalog.calibrations import load_calibration, shared_step
from inferplan.catalog.files import load_hardware
from inferplan.devices.constants import Calibration
from inferplan.devices.hardware import HardwareSpec
from inferplan.estimate.roofline import price
from inferplan.work.ops import IndexSelect, Op
from inferplan.work.step import WIDE, Segment
from tools.fitting.tables.calibrations import calibrate_device, vector_constants
from tools.fitting.tables.choose import DeviceTables
from tools.fitting.tables.devices import devices_of
from tools.fitting.tables.modules import in_graphs, module_ops, module_rows, newest
from tools.fitting.tables.transfer import calibrate_unmeasured

KERNELS = ("matmul", "mla", "index_select", "top_k", "conv")
START = (np.log(4e-5), np.log(4e-4))
"""Where the seconds of a launch and of scores are looked for first (logarithms)."""
KINDS = [
    "table",
    "framework",
    "version",
    "kernel_source",
    "glm",
    "shared",
    "wide",
    "num_heads",
    "gemm_type",
    "kv_cache_dtype",
    "gpu",
]
"""Columns that decide the operators: rows that agree in them are priced as one grid."""


def left_out(devices: list[DeviceTables], gpu: str, engines: Iterable[str]) -> dict[str, Calibration]:
    """Constants for ``gpu`` by engine: its nearest relative's where that was measured, beside those of all other
    devices with stacked memory (as ``inferplan.catalog.assemble`` carries them)."""
    others = [device for device in devices if device.hardware.name != gpu]
    vector = vector_constants(others)
    everyone = calibrate_unmeasured(others, "hbm", vector, {})
    relative = next((device for device in others if device.hardware.name == load_hardware(gpu).relative), None)
    if relative is None:
        return {engine: everyone.for_engine(engine).with_step(shared_step()) for engine in engines}
    near = calibrate_device(relative, vector, {}).borrowed()
    return {
        engine: near.for_engine(engine).beside(everyone.for_engine(engine)).with_step(shared_step())
        for engine in engines
    }


def device_seconds(
    rows: pd.DataFrame, hardware: HardwareSpec, calibration: Calibration, name: str = "device"
) -> pd.DataFrame:
    """The rows with ``device`` seconds (``name``), the number of operators and how many of them score.

    What the device has no arithmetic for is left out.
    """

    def seconds(op: Op) -> Any:
        return dense(price(op, hardware, calibration).all_runs)

    rows = rows.assign(**{name: np.nan}, launches=np.nan, scored=np.nan, wide=rows.isl > WIDE)
    for _, group in rows.groupby(KINDS):
        row: Any = next(group.itertuples(index=False))
        if row.gemm_type == "nvfp4" and "fp4" not in hardware.peak:
            continue
        loads = (group[name].to_numpy(dtype=float) for name in ("batch_size", "isl", "step"))
        segment = Segment(**dict(zip(("batch", "new", "past"), loads)))
        ops = module_ops(row, segment, peaks=frozenset(hardware.peak), time=seconds)
        rows.loc[group.index, name] = sum((seconds(op) for op in ops), start=np.zeros(len(group)))
        rows.loc[group.index, "launches"] = sum((op.count for op in ops), start=np.zeros(len(group)))
        scores = (op.count for op in ops if isinstance(op, IndexSelect))
        rows.loc[group.index, "scored"] = sum(scores, start=np.zeros(len(group)))
    return rows[rows[name].notna()]


def unexplained(rows: pd.DataFrame) -> Any:
    """Modules that take far longer than their kernels though a graph replays them: TRT-LLM's sparse ones on Hopper (no
    smaller than 240 us, three times those of B200), vLLM's sparse decodes. A time for each operator stands for it."""
    hopper = (rows.framework == "trtllm") & (rows.gpu != "b200-hgx")
    return rows["indexed"] & (hopper | (rows.framework == "vllm"))


def launched(rows: pd.DataFrame, host: Sequence[float], name: str = "device") -> Any:
    """Seconds of modules that the host launches kernel by kernel; host: seconds of a launch, and of scores."""
    launch, scoring = host
    graphs = in_graphs(rows) & ~unexplained(rows)
    floor = np.where(graphs, 0.0, launch * rows.launches + scoring * rows.scored)
    return (rows[name] ** 4 + floor**4) ** 0.25


def host_seconds(rows: pd.DataFrame) -> tuple[float, float]:
    """Seconds of a launch and of an indexer's scores on the host: the least mean error of the logarithm. The second is
    zero where all rows score or none does: nothing tells it from launches."""

    def loss(host: Sequence[float]) -> float:
        return float(np.mean(np.abs(np.log(launched(rows, host) / rows.seconds))))

    told_apart = rows.scored.nunique() > 1
    found = minimize(lambda x: loss((np.exp(x[0]), np.exp(x[1]) if told_apart else 0.0)), START, method="Nelder-Mead")
    launch, scoring = np.exp(found.x)
    return float(launch), float(scoring) if told_apart else 0.0


def predicted(folder: Path) -> pd.DataFrame:
    """Every row with ``seconds`` measured and ``predicted`` with its GPU left out."""
    found = module_rows(folder)
    if found is None:
        raise SystemExit(f"no module tables in {folder}")
    rows = newest(found[found.gpu != "l40s"]).assign(seconds=lambda all_rows: all_rows.latency_ms * 1e-3)
    devices = devices_of(folder, lambda row: row.measurement.op.kernel.startswith(KERNELS))
    carried = {gpu: left_out(devices, gpu, rows.framework.unique()) for gpu in rows.gpu.unique()}
    priced = pd.concat(
        both(group, str(gpu), str(engine), carried[gpu][engine])
        for (gpu, engine), group in rows.groupby(["gpu", "framework"])
    )
    for (_, gpu), group in priced.groupby([priced.table + priced.framework, "gpu"]):
        beside = priced[(priced.table == group.table.iloc[0]) & (priced.framework == group.framework.iloc[0])]
        host = host_seconds(beside[beside.gpu != gpu])
        priced.loc[group.index, "predicted"] = launched(group, host)
        priced.loc[group.index, "calibrated"] = launched(group, host, "own")
    return priced


def both(rows: pd.DataFrame, gpu: str, engine: str, carried: Calibration) -> pd.DataFrame:
    """The rows of one GPU and framework with seconds by carried constants, and by those shipped for the GPU."""
    own = load_calibration(load_hardware(gpu), None, False, engine)
    priced = device_seconds(rows, load_hardware(gpu), carried)
    return device_seconds(priced, load_hardware(gpu), own, "own")


def table(rows: pd.DataFrame) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield "| modules | framework | left out | rows | median % | MAPE % | bias % | own: median % | MAPE % |"
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|"
    error = rows.predicted / rows.seconds - 1.0
    rows = rows.assign(error=error, miss=error.abs(), own_miss=(rows.calibrated / rows.seconds - 1.0).abs())
    for (name, framework, gpu), group in rows.groupby(["table", "framework", "gpu"]):
        yield line(f"{name} | {framework} | {gpu}", group)
    for name, group in rows.groupby(np.where(rows.indexed, "sparse (DSA)", "dense (MLA)")):
        for what, part in (("prompts", group[group.wide]), ("decodes", group[~group.wide]), ("all", group)):
            yield line(f"**{name}, {what}** | |", part)


def line(title: str, rows: pd.DataFrame) -> str:
    """One line: rows, median and mean size of the error, its median."""
    figures = (rows.miss.median(), rows.miss.mean(), rows.error.median(), rows.own_miss.median(), rows.own_miss.mean())
    return f"| {title} | {len(rows)} | " + " | ".join(f"{100 * figure:.1f}" for figure in figures) + " |"


if __name__ == "__main__":
    shared = Path(os.environ.get("INFERPLAN_SHARED") or Path(__file__).parents[3] / "shared")
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else shared / "measured/kernels"
    print("\n".join(table(predicted(chosen))))
