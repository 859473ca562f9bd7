"""Modules of DeepSeek-V4, MiniMax-M3 and Kimi-K3, priced from their operators with one GPU left out, against what ran.

``python -m tests.benchmarks.compare_mechanisms [FOLDER of the kernel tables] [shipped] [long]``

``shipped``: what the constants on file give, each device's own (with most of these rows among those that they were
fitted to) and, with that device's own mechanisms taken away, those of its class fitted to the others: the table of
docs/accuracy-mechanisms.md. ``long``: with MAPE and the number of rows.

Matmuls have the constants that a device has which nobody measured (:func:`tests.benchmarks.compare_modules.left_out`).
The kernels of the mechanisms have a few constants each, by engine and cache format, fitted to the other GPUs' rows of
these tables alone: what each adds to a module is a sum of :data:`ASKED`. A module takes
``((t + o)^4 + (c*n)^4)^(1/4)``: t seconds of its operators, o constant ones, c for the launch of each of n operators.
Where an engine ran on one GPU only, nothing is left out: its line says so and is in no total.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from inferplan.affine import dense
from inferplan.catalog.calibrations import shared_step
from inferplan.catalog.files import config_root, load_hardware, read_yaml, validate
from inferplan.devices.constants import Calibration
from inferplan.devices.hardware import HardwareSpec
from inferplan.estimate.roofline import TILE, price
from inferplan.units import Array, Num
from inferplan.work.ops import Attention, Op, Scan, TopK
from inferplan.work.step import WIDE, Segment
from tests.benchmarks.compare_modules import left_out
from tools.fitting.tables.devices import devices_of
from tools.fitting.tables.mechanism_fit import EAGER, fitted_class, read_mechanisms
from tools.fitting.tables.mechanisms import DELTA, HYPER, mechanism_ops, mechanism_rows

KERNELS = {
    "attn.core": ("math", "memory", "rows", "depth"),
    "attn.index.select": ("math", "memory", "moved", "rows"),
    "attn.index.top_k": ("moved",),
    "attn.compress.pool": ("moved",),
    "attn.index.pool": ("moved",),
    "kda.scan": ("math", "memory", "moved", "depth"),
    "kda.conv": ("memory", "rows"),
    "hyper.mix": ("memory", "moved"),
    "hyper.collapse": ("memory", "moved"),
    "hyper.expand": ("memory", "moved"),
}
"""The operators of the mechanisms, and what each has constants for."""
ASKED = {
    "math": "seconds of its FLOP at the peak; rows of a key head are padded to 16, as tensor cores take them",
    "memory": "seconds of its bytes at the bandwidth",
    "moved": "bytes for each multiprocessor, in nanoseconds of 1 B/ns",
    "rows": "rows (of 64 heads, 1024 channels) for each multiprocessor, in microseconds",
    "depth": "steps of 128 keys, or of 64 tokens of a recurrence, that one thread block takes, in microseconds",
}
ROWS, CHANNELS, CHUNK, LEAST_ROWS = 64, 1024, 64, 16
KINDS = ["table", "framework", "gpu", "kernel_source", "num_heads", "gemm_type", "kv_cache_dtype", "hidden_size"]
"""Columns that decide the operators: rows that agree in them, and in the phase, are priced as one grid."""
TOGETHER = ["mechanism", "framework", "kv_cache_dtype"]
"""Rows that agree in these share their constants, kernel by kernel where other GPUs ran the same one."""
FEWEST = 30
"""Rows of other GPUs below which nothing is left out."""


def padded(op: Op) -> Num:
    """FLOP with the rows of a key head padded."""
    flop = op.work().flop
    if not isinstance(op, Attention):
        return flop
    shared = op.heads / op.kv_heads
    return flop * max(shared, LEAST_ROWS) / shared


def rows_of(op: Any) -> Num:
    """Rows that thread blocks take by themselves."""
    if isinstance(op, Attention):
        return op.batch * op.new * (op.kv_heads if op.mask.kind == "blocks" else np.ceil(op.heads / ROWS))
    return op.batch * op.new * getattr(op, "channels", CHANNELS) / CHANNELS


def depth_of(op: Any, units: float) -> Num:
    """Steps that one thread block takes after each other."""
    if isinstance(op, Scan):
        heads = op.batch * op.state / (128 * 128)
        steps = np.ceil(op.new / CHUNK) if op.tensor else op.new
        return steps * np.maximum(heads / units, 1.0)
    if op.mask.kind == "blocks":
        return np.minimum(op.mask.size * op.mask.top, op.past + op.new) / TILE
    return op.mask.taken(op.new, op.past) / TILE


def asked(op: Op, what: str, hardware: HardwareSpec) -> Num:
    """One of :data:`ASKED` of all runs of an operator."""
    work, units = op.work(), float(hardware.multiprocessors or 1)
    if what == "math":
        recurrent = isinstance(op, Scan) and not op.tensor
        return 0.0 if recurrent else padded(op) / hardware.peak[op.math or "bf16"] * op.count
    if what == "memory":
        return work.bytes / hardware.memory.bandwidth * op.count
    if what == "moved":
        moved = op.scores * op.base.width if isinstance(op, TopK) else work.bytes
        return moved / units * 1e-9 * op.count
    return (rows_of(op) / units if what == "rows" else depth_of(op, units)) * 1e-6 * op.count


def features(rows: pd.DataFrame, hardware: HardwareSpec, calibration: Calibration) -> pd.DataFrame:
    """The rows of one GPU and engine with ``fixed`` seconds, ``small`` ones, operators ``n``, and what kernels ask for.

    ``small``: norms, rotary embedding, copies, which engines fuse to different degrees. What the device has no
    arithmetic for is left out.
    """
    found = []
    for _, group in rows.groupby([*KINDS, rows.isl > WIDE]):
        row: Any = next(group.itertuples(index=False))
        if row.gemm_type == "nvfp4" and "fp4" not in hardware.peak:
            continue
        loads = (group[name].to_numpy(dtype=float) for name in ("batch_size", "isl", "step"))
        segment = Segment(**dict(zip(("batch", "new", "past"), loads)))
        sums: dict[str, Array] = {}

        def add(name: str, value: Num, sums: dict[str, Array] = sums, size: int = len(group)) -> None:
            sums[name] = sums.get(name, np.zeros(size)) + dense(value)

        for op in mechanism_ops(row, segment, peaks=frozenset(hardware.peak)):
            add("n", op.count)
            if op.name in KERNELS:
                for what in KERNELS[op.name]:
                    add(f"{op.name} {what}", asked(op, what, hardware))
            else:
                small = op.kind in ("norm", "elementwise", "copy")
                add("small" if small else "fixed", price(op, hardware, calibration).all_runs)
        found.append(group.join(pd.DataFrame(sums, index=group.index)))
    return pd.concat(found)


def seconds_of(rows: pd.DataFrame, names: list[str], constants: Array) -> Array:
    """Seconds of modules; constants: logarithms of one for each name, of the constant seconds and of a launch."""
    *factors, fixed, launch = np.exp(constants)
    taken = rows.fixed.to_numpy() + sum(factor * rows[name].to_numpy() for factor, name in zip(factors, names)) + fixed
    return np.asarray((taken**4 + (launch * rows.n.to_numpy()) ** 4) ** 0.25)


def fitted(rows: pd.DataFrame) -> tuple[list[str], Array]:
    """Names and constants of the least robust error of the logarithm of the seconds."""
    names = ["small", *(f"{kernel} {what}" for kernel, parts in KERNELS.items() for what in parts)]
    names = [name for name in names if name in rows and rows[name].max() > 0.0]
    start = np.log([*[0.5] * len(names), 5e-6, 2e-6])
    least, most = np.log([*[1e-4] * len(names), 1e-8, 1e-8]), np.log([*[1e3] * len(names), 3e-3, 1e-3])
    measured = np.log(rows.seconds.to_numpy())
    found = least_squares(
        lambda x: np.log(seconds_of(rows, names, x)) - measured,
        start,
        bounds=(least, most),
        loss="soft_l1",
        f_scale=0.1,
    )
    return names, np.asarray(found.x)


def mechanism_of(rows: pd.DataFrame) -> Any:
    """What a row times: its table, and the phase, the kernel or the side of the streams."""
    short = rows.table.str.replace("_module|_context|_generation", "", regex=True)
    phase = np.where(rows.isl > WIDE, "prompts", "few tokens")
    phase = np.where(rows.table.str.contains("generation"), "decodes", phase)
    phase = np.where(rows.table == DELTA, rows.kernel_source, phase)
    side = np.where(rows.kernel_source.str.contains("post"), "post", "pre")
    return short + " " + np.where(rows.table == HYPER, side, phase)


def predicted(folder: Path) -> pd.DataFrame:
    """Every row with ``seconds`` measured, ``predicted``, and whether its GPU was ``left_out``."""
    rows = mechanism_rows(folder).reset_index(drop=True)
    devices = devices_of(
        folder, lambda row: row.measurement.op.kernel.startswith(("matmul", "norm", "mla", "attention"))
    )
    engines = list(rows.framework.unique())
    carried = {str(gpu): left_out(devices, str(gpu), engines) for gpu in rows.gpu.unique()}
    priced = pd.concat(
        features(group, load_hardware(str(gpu)), carried[str(gpu)][str(engine)])
        for (gpu, engine), group in rows.groupby(["gpu", "framework"])
    )
    numbers = [name for name in priced if name in ("fixed", "small", "n") or str(name).split(" ")[0] in KERNELS]
    priced[numbers] = priced[numbers].fillna(0.0)
    priced = priced.assign(mechanism=mechanism_of(priced), predicted=np.nan, left_out=True)
    for _, group in priced.groupby(TOGETHER):
        for (gpu, kernel), own in group.groupby(["gpu", "kernel_source"]):
            others = group[group.gpu != gpu]
            same = others[others.kernel_source == kernel]
            taken = next((some for some in (same, others) if len(some) >= FEWEST), own)
            names, constants = fitted(taken)
            priced.loc[own.index, "predicted"] = seconds_of(own, names, constants)
            priced.loc[own.index, "left_out"] = taken is not own
    return priced


def table(rows: pd.DataFrame) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield "| mechanism | framework | left out | rows | median % | MAPE % | bias % |"
    yield "|---|---|---|---:|---:|---:|---:|"
    error = rows.predicted / rows.seconds - 1.0
    rows = rows.assign(error=error, miss=error.abs())
    for (name, framework, gpu), group in rows.groupby(["mechanism", "framework", "gpu"]):
        yield line(f"{name} | {framework} | {gpu if group.left_out.all() else f'none ({gpu} alone)'}", group)
    kept = rows[rows.left_out]
    for name, group in kept.groupby(kept.table.str.split("_").str[0]):
        yield line(f"**{name}** | |", group)
    for gpu, group in kept.groupby("gpu"):
        yield line(f"**all** | | {gpu}", group)
    yield line("**all** | |", kept)


def line(title: str, rows: pd.DataFrame) -> str:
    """One line: rows, median and mean size of the error, its median."""
    figures = (rows.miss.median(), rows.miss.mean(), rows.error.median())
    return f"| {title} | {len(rows)} | " + " | ".join(f"{100 * figure:.1f}" for figure in figures) + " |"


def shipped(folder: Path) -> pd.DataFrame:
    """Every row that a step of the fit takes with ``seconds``, ``predicted`` by the device's own constants on file, and
    ``carried``: by constants fitted to the other devices."""
    rows, devices = read_mechanisms(folder), {}
    for gpu in rows:
        file = config_root() / "calibration" / f"{gpu}.yaml"
        devices[gpu] = load_hardware(gpu), validate(file, read_yaml(file), Calibration)
    found = []
    for gpu, (hardware, own) in devices.items():
        others = {name: one for name, one in devices.items() if name != gpu}
        carried = fitted_class(rows, others, own)
        for engine, some in rows[gpu].groupby("framework"):
            priced = [priced_by(some, constants, hardware, str(engine)) for constants in (own, carried)]
            found.append(some.assign(predicted=priced[0], carried=priced[1]))
    result = pd.concat(found).dropna(subset=["predicted"])
    return result.assign(mechanism=mechanism_of(result))


def priced_by(rows: pd.DataFrame, constants: Calibration, hardware: HardwareSpec, engine: str) -> Array:
    """Seconds of each row of one engine on one device by constants as they are on file; not a number where the device
    lacks the arithmetic, or a module of few tokens waited for the host."""
    chosen = constants.for_engine(engine).with_step(shared_step())
    result = pd.Series(np.nan, index=rows.index)
    for _, group in rows.groupby([*KINDS, rows.isl > WIDE]):
        row: Any = next(group.itertuples(index=False))
        eager = row.isl <= WIDE and row.table in EAGER
        if eager or (row.gemm_type == "nvfp4" and "fp4" not in hardware.peak):
            continue
        loads = (group[name].to_numpy(dtype=float) for name in ("batch_size", "isl", "step"))
        segment = Segment(**dict(zip(("batch", "new", "past"), loads)))
        ops = mechanism_ops(row, segment, peaks=frozenset(hardware.peak))
        result[group.index] = sum(dense(price(op, hardware, chosen).all_runs) for op in ops)
    return result.to_numpy()


def page_table(rows: pd.DataFrame) -> Iterator[str]:
    """Lines of the table of docs/accuracy-mechanisms.md, and of its sentence on all rows."""
    gpus = sorted(rows.gpu.unique())
    yield "| mechanism | framework | " + " | ".join(gpu.split("-")[0].upper() for gpu in gpus) + " |"
    yield "|---|---|" + "---:|" * len(gpus)
    parts = [(f"| {name} | {engine}", some) for (name, engine), some in rows.groupby(["mechanism", "framework"])]
    for title, some in [*parts, ("| **all** | ", rows)]:
        yield f"{title} | " + " | ".join(_cell(some[some.gpu == gpu]) for gpu in gpus) + " |"
    yield f"all rows: {_cell(rows)}"


def _cell(rows: pd.DataFrame) -> str:
    """The median error in percent, its bias in brackets, and the median error carried."""
    if not len(rows):
        return "-"
    own, carried = (100 * (rows[column] / rows.seconds - 1.0) for column in ("predicted", "carried"))
    return f"{own.abs().median():.1f} ({own.median():+.1f}), {carried.abs().median():.1f}"


def shipped_table(rows: pd.DataFrame) -> Iterator[str]:
    """Lines of a Markdown table of :func:`shipped`, with MAPE and the number of rows."""
    yield "| mechanism | framework | GPU | rows | median % | MAPE % | bias % | carried: median % | MAPE % | bias % |"
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|---:|"
    whole = [("**all**", "", gpu, some) for gpu, some in rows.groupby("gpu")] + [("**all**", "", "", rows)]
    parts = rows.groupby(["mechanism", "framework", "gpu"])
    for name, engine, gpu, some in [(*key, part) for key, part in parts] + whole:
        figures = []
        for column in ("predicted", "carried"):
            error = some[column] / some.seconds - 1.0
            figures += [error.abs().median(), error.abs().mean(), error.median()]
        yield f"| {name} | {engine} | {gpu} | {len(some)} | " + " | ".join(f"{100 * one:.1f}" for one in figures) + " |"


if __name__ == "__main__":
    shared = Path(os.environ.get("INFERPLAN_SHARED") or Path(__file__).parents[3] / "shared")
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else shared / "measured/kernels"
    if "shipped" in sys.argv:
        print("\n".join((shipped_table if "long" in sys.argv else page_table)(shipped(chosen))))
    else:
        print("\n".join(table(predicted(chosen))))
