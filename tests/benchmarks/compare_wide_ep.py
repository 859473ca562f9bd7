"""Experts of one rank under wide expert parallelism: how far off the constants are on a GPU that they never saw.

    python -m tests.benchmarks.compare_wide_ep DIR

DIR holds the kernel tables (docs/calibration.md). Prints the error on each GPU with constants fitted to the others, of
TensorRT-LLM's experts with redundant slots apart by balancing, and that of one library's constants on the other's rows.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from calibrate.fit import TERMS_OF, Measurement, Stack, fit_stack, join, ratio_errors, stack
from inferplan.catalog.calibrations import load_kernels
from inferplan.catalog.files import load_hardware
from inferplan.units import Array
from tools.fitting.tables import read
from tools.fitting.tables.calibrations import rest_calibration
from tools.fitting.tables.choose import gather
from tools.fitting.tables.row import Row

KERNEL = "grouped_matmul.exchanged"
TABLES = ("moe_wide_ep", "moe_deepep_decode", "moe_deepep_prefill")
REST = rest_calibration(load_kernels(load_hardware("h200-sxm"), None).constants["copy"]["any"])


def rows(folder: Path) -> list[Row]:
    """The rows of the tables of wide expert parallelism."""
    return [row for name in TABLES for row in read._read(folder, name)]


def line(what: str, ratios: Array) -> None:
    found = ratio_errors(ratios)
    figures = "".join(f"{100 * found[name]:>9.1f}" for name in ("median", "mape", "p90", "bias"))
    print(f"{what:<58}{len(ratios):>7}{figures}")


def main(folder: Path) -> None:
    pools: dict[tuple[str, str], dict[str, list[Measurement]]] = defaultdict(dict)
    for device in gather(rows(folder), load_hardware):
        for library, pool in device.libraries.items():
            for (_, label), measured in pool.items():
                pools[library, label][device.hardware.name] = measured
    print(f"{'one GPU left out':<58}{'rows':>7}{'median':>9}{'mean':>9}{'p90':>9}{'bias':>9}  percent")
    stacks: dict[tuple[str, str], dict[str, Stack]] = {}
    for key, gpus in sorted(pools.items()):
        terms = TERMS_OF[KERNEL]
        own = stacks[key] = {gpu: stack(one, load_hardware(gpu), terms, REST) for gpu, one in gpus.items()}
        for gpu, one in own.items():
            others = [other for name, other in own.items() if name != gpu]
            line(f"{' '.join(key)} on {gpu}", one.seconds / one.predict(fit_stack(join(others))))
    print("\none library left out: the constants of the other")
    for (library, label), own in stacks.items():
        for (other, same), theirs in stacks.items():
            if other != library and same == label:
                fit = fit_stack(join(list(theirs.values())))
                ratios = np.concatenate([one.seconds / one.predict(fit) for one in own.values()])
                line(f"{library} {label} with {other}'s", ratios)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
