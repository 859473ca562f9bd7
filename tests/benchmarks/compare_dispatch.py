"""Dispatch, combine and all-to-all against their kernel tables, with what was left out of the fit.

``python -m tests.benchmarks.compare_dispatch FOLDER``, FOLDER with ``deepep_low_latency``, ``deepep_normal`` and
``alltoall_nvlink``. Prints the page's tables (docs/formulas/collectives.md).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from calibrate.fit import TERMS_OF, Measurement, fit_stack, join, stack
from inferplan.catalog.calibrations import load_calibration
from inferplan.catalog.files import load_hardware
from inferplan.estimate.roofline import price
from inferplan.units import Array
from inferplan.work.ops import Exchange
from inferplan.work.routes import chance_reached
from tools.fitting.tables import exchanges
from tools.fitting.tables.read import EXCHANGES, _frame, _records

Rows = dict[str, list[Measurement]]
"""Measurements of one kernel and format by GPU."""
Pools = dict[tuple[str, str, str], Rows]
"""Rows by kernel, format and the source's name of the kernel."""
NODE = 8


def off(rows: Rows, fitted: Rows) -> Array:
    """Predicted over measured, minus one, of ``rows`` with constants fitted to ``fitted``."""

    def stacked(those: Rows) -> list[tuple[str, list[Measurement]]]:
        return [(gpu, found) for gpu, found in those.items() if found]

    terms = TERMS_OF[next(found for found in rows.values() if found)[0].op.kernel]
    fit = fit_stack(join([stack(found, load_hardware(gpu), terms) for gpu, found in stacked(fitted)]))
    return np.concatenate(
        [
            (one := stack(found, load_hardware(gpu), terms)).predict(fit) / one.seconds - 1.0
            for gpu, found in stacked(rows)
        ]
    )


def only(rows: Rows, wanted: Callable[[Exchange], bool]) -> Rows:
    """Those rows whose exchange is wanted."""
    found = {gpu: [m for m in those if isinstance(m.op, Exchange) and wanted(m.op)] for gpu, those in rows.items()}
    return {gpu: those for gpu, those in found.items() if those}


def line(what: str, *cells: str) -> None:
    print("| " + " | ".join([what, *cells]) + " |")


def cell(errors: Array) -> str:
    """Median and 90 % quantile of the size of the error, in percent, and the rows behind it."""
    size = 100 * np.abs(errors)
    return f"{np.median(size):.0f} / {np.quantile(size, 0.9):.0f} ({len(size)})"


def left_out(pools: Pools) -> None:
    """One GPU left out at a time, in one node; the kernel's own constants beside it."""
    gpus = ("h100-sxm", "h200-sxm", "b200-hgx", "gb200")
    line("kernel", "fitted to all", *gpus, "all left out")
    line(*["---"] * 7)
    for (kernel, _, _), rows in pools.items():
        near = only(rows, lambda op: op.group <= NODE)
        if len(near) < 2:
            continue
        alone = {gpu: off({gpu: near[gpu]}, {g: r for g, r in rows.items() if g != gpu}) for gpu in gpus}
        whole = np.concatenate(list(alone.values()))
        line(kernel, cell(off(near, rows)), *(cell(alone[gpu]) for gpu in gpus), cell(whole))


def eight_nodes(pools: Pools, congested: Rows, bare: Rows) -> None:
    """Eight nodes with constants fitted to one, two and four.

    congested: eight nodes of normal mode. bare: all nodes of normal mode without the notifications.
    """
    line("kernel", "2 nodes, fitted", "4 nodes, fitted", "8 nodes, predicted", "without notifications")
    line(*["---"] * 5)
    for (kernel, _, _), rows in pools.items():
        if not only(rows, lambda op: op.group > NODE) or kernel.endswith("nvlink"):
            continue
        known = only(rows, lambda op: op.group <= 4 * NODE)
        fitted = [cell(off(only(rows, lambda op, n=n: op.group == n * NODE), known)) for n in (2, 4)]
        far = only(rows, lambda op: op.group == 8 * NODE) or only(
            congested, lambda op, kernel=kernel: op.kernel == kernel
        )
        own = only(bare, lambda op, kernel=kernel: op.kernel == kernel)
        apart = only(own, lambda op: op.group == 8 * NODE)
        line(
            kernel,
            *fitted,
            cell(off(far, known)),
            cell(off(apart, only(own, lambda op: op.group < 64))) if own else "-",
        )


PUBLISHED = {
    "low_latency": {2: (118, 195), 4: (155, 273), 8: (173, 314), 16: (192, 369), 32: (194, 360)},
    "normal": {2: (43, 43), 4: (58, 57), 8: (51, 50)},
}
"""DeepEP docs/legacy.md, H800 with a 400 Gb/s port each: microseconds of 128 tokens by nodes, and GB/s of 4,096 tokens,
whose bytes count the copy that stays on the own node."""


def published() -> None:
    """What DeepEP publishes, with the H100's constants on file."""
    line("kernel", "nodes", "published", "predicted")
    line(*["---"] * 4)
    hardware = load_hardware("h100-sxm")
    calibration = load_calibration(hardware, None, False)
    for mode, figures in PUBLISHED.items():
        for nodes, pair in figures.items():
            for direction, figure in zip(exchanges.DIRECTIONS, pair):
                row = SimpleNamespace(node_num=nodes, num_token=128 if mode == "low_latency" else 4096)
                vars(row).update(hidden_size=7168, num_experts=256, num_topk=8)
                op = exchanges.deepep(row, direction, mode)
                seconds = figure * 1e-6
                if mode == "normal":
                    chance = chance_reached(256, 8, 1 / nodes, op.groups, op.top_groups)
                    seconds = op.tokens * op.width * op.format.width * nodes * chance / (figure * 1e9)
                predicted = float(price(op, hardware, calibration).time)
                line(op.kernel, str(nodes), f"{seconds * 1e6:.0f} us", f"{predicted * 1e6:.0f} us")


def more_ranks(pools: Pools) -> None:
    """NVLink's all-to-all of most ranks with constants fitted to fewer."""
    line("kernel", "format", "fitted to all", "largest group, from smaller ones")
    line(*["---"] * 4)
    for (kernel, label, source), rows in pools.items():
        if kernel.endswith("nvlink"):
            most = max(m.op.group for those in rows.values() for m in those if isinstance(m.op, Exchange))
            far, near = (
                only(rows, lambda op, most=most: op.group == most),
                only(rows, lambda op, most=most: op.group < most),
            )
            line(f"{kernel}, {source}", label, cell(off(rows, rows)), f"{most} ranks: {cell(off(far, near))}")


def pooled(found: Iterable[exchanges.Row]) -> Pools:
    pools: defaultdict[tuple[str, str, str], Rows] = defaultdict(lambda: defaultdict(list))
    for row in found:
        pools[(*row.measurement.group, row.kernel)][row.gpu].append(row.measurement)
    return dict(sorted(pools.items()))


def by_gpu(found: Iterable[exchanges.Row]) -> Rows:
    rows: Rows = defaultdict(list)
    for row in found:
        rows[row.gpu].append(row.measurement)
    return rows


def main() -> None:
    folder = Path(sys.argv[1])
    tables = {name: list(_records(_frame(folder, name))) for name in EXCHANGES}
    pools = pooled(row for name, reader in EXCHANGES.items() for row in reader(iter(tables[name])))
    left_out(pools)
    print()
    far = list(exchanges.normal(tables["deepep_normal"], congested=True))
    bare = [row._replace(dispatch_notify_us=0.0, combine_notify_us=0.0) for row in tables["deepep_normal"]]
    eight_nodes(pools, by_gpu(far), by_gpu(row for far in (False, True) for row in exchanges.normal(bare, far)))
    print()
    more_ranks(pools)
    print()
    published()


if __name__ == "__main__":
    main()
