"""Whole attention modules, priced from the operators with one GPU left out, against what engines measured.

``python -m tests.benchmarks.compare_modules [FOLDER of the kernel tables]``

Every row of the newest release of each framework: the constants of the kernels are fitted to the other GPUs' tables, as
for a device that nobody measured, and so is the time of a launch from the host. A module that is launched kernel by
kernel takes ``(t^4 + (c*n)^4)^(1/4)``: t seconds of its n operators, c seconds a launch, one constant for the prompts
and one for the decodes of a framework. What is replayed from graphs has no launches
(:func:`calibrate.tables.modules.in_graphs`). The last columns are the same with the constants of the GPU itself, as
shipped; launches are still those of the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar

from calibrate.tables.calibrations import vector_constants
from calibrate.tables.choose import DeviceTables
from calibrate.tables.devices import devices_of
from calibrate.tables.modules import in_graphs, module_ops, module_rows, newest
from calibrate.tables.transfer import calibrate_unmeasured
from inferplan.affine import dense
from inferplan.catalog.assemble import load_calibration, shared_step
from inferplan.catalog.files import load_hardware
from inferplan.devices.constants import Calibration
from inferplan.devices.hardware import HardwareSpec
from inferplan.estimate.roofline import price
from inferplan.work.ops import Op
from inferplan.work.step import WIDE, Segment

KERNELS = ("matmul", "mla", "index_select", "top_k", "conv")
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


def left_out(devices: list[DeviceTables], gpu: str) -> Calibration:
    """Constants for ``gpu`` from the other devices with stacked memory."""
    others = [device for device in devices if device.hardware.name != gpu]
    return calibrate_unmeasured(others, "hbm", vector_constants(others), {}).with_step(shared_step())


def device_seconds(
    rows: pd.DataFrame, hardware: HardwareSpec, calibration: Calibration, name: str = "device"
) -> pd.DataFrame:
    """The rows with ``device`` seconds (``name``) and the number of operators.

    What the device has no arithmetic for is left out.
    """

    def seconds(op: Op) -> Any:
        return dense(price(op, hardware, calibration).all_runs)

    rows = rows.assign(**{name: np.nan}, launches=np.nan, wide=rows.isl > WIDE)
    for _, group in rows.groupby(KINDS):
        row: Any = next(group.itertuples(index=False))
        if row.gemm_type == "nvfp4" and "fp4" not in hardware.peak:
            continue
        loads = (group[name].to_numpy(dtype=float) for name in ("batch_size", "isl", "step"))
        segment = Segment(**dict(zip(("batch", "new", "past"), loads)))
        ops = module_ops(row, segment, peaks=frozenset(hardware.peak), time=seconds)
        rows.loc[group.index, name] = sum((seconds(op) for op in ops), start=np.zeros(len(group)))
        rows.loc[group.index, "launches"] = sum((op.count for op in ops), start=np.zeros(len(group)))
    return rows[rows[name].notna()]


def unexplained(rows: pd.DataFrame) -> Any:
    """Modules that take far longer than their kernels though a graph replays them: TRT-LLM's sparse ones on Hopper (no
    smaller than 240 us, three times those of B200), vLLM's sparse decodes. A time for each operator stands for it."""
    hopper = (rows.framework == "trtllm") & (rows.gpu != "b200-hgx")
    return rows["indexed"] & (hopper | (rows.framework == "vllm"))


def launched(rows: pd.DataFrame, launch: float, name: str = "device") -> Any:
    """Seconds of modules whose kernels the host launches one by one, ``launch`` seconds each."""
    graphs = in_graphs(rows) & ~unexplained(rows)
    floor = np.where(graphs, 0.0, launch * rows.launches)
    return (rows[name] ** 4 + floor**4) ** 0.25


def launch_seconds(rows: pd.DataFrame) -> float:
    """Seconds of a launch: the least mean error of the logarithm."""

    def loss(exponent: float) -> float:
        return float(np.mean(np.abs(np.log(launched(rows, np.exp(exponent)) / rows.seconds))))

    return float(np.exp(minimize_scalar(loss, bounds=(np.log(1e-7), np.log(3e-4)), method="bounded").x))


def predicted(folder: Path) -> pd.DataFrame:
    """Every row with ``seconds`` measured and ``predicted`` with its GPU left out."""
    found = module_rows(folder)
    if found is None:
        raise SystemExit(f"no module tables in {folder}")
    rows = newest(found[found.gpu != "l40s"]).assign(seconds=lambda all_rows: all_rows.latency_ms * 1e-3)
    devices = devices_of(folder, lambda row: row.measurement.op.kernel.startswith(KERNELS))
    carried = {gpu: left_out(devices, gpu) for gpu in rows.gpu.unique()}
    priced = pd.concat(
        both(group, str(gpu), str(engine), carried[gpu]) for (gpu, engine), group in rows.groupby(["gpu", "framework"])
    )
    for (_, gpu), group in priced.groupby([priced.table + priced.framework, "gpu"]):
        beside = priced[(priced.table == group.table.iloc[0]) & (priced.framework == group.framework.iloc[0])]
        launch = launch_seconds(beside[beside.gpu != gpu])
        priced.loc[group.index, "predicted"] = launched(group, launch)
        priced.loc[group.index, "calibrated"] = launched(group, launch, "own")
    return priced


def both(rows: pd.DataFrame, gpu: str, engine: str, carried: Calibration) -> pd.DataFrame:
    """The rows of one GPU and framework with seconds by carried constants, and by those shipped for the GPU."""
    own = load_calibration(load_hardware(gpu), None, False, engine)
    priced = device_seconds(rows, load_hardware(gpu), carried.for_engine(engine))
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
