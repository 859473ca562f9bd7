"""Watts: the shares of TDP, fitted to measured matmuls, and what they are off on the GPU that is left out."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from inferplan.catalog.files import load_hardware
from inferplan.units import Array
from inferplan.work.formats import find_format
from tools.accuracy.scores import HEADS, Line, figures, markdown, score_cells

_FORMATS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8-block", "nvfp4": "nvfp4"}
_SHARES = ("idle", "arithmetic", "memory")


class Watts(NamedTuple):
    """Measured kernels: their GPU, the two utilisations and one, and the share of the power limit that they draw."""

    gpu: list[str]
    use: Array
    drawn: Array

    def of(self, gpus: set[str]) -> Watts:
        """Those of some GPUs."""
        kept = np.array([gpu in gpus for gpu in self.gpu])
        return Watts([gpu for gpu in self.gpu if gpu in gpus], self.use[kept], self.drawn[kept])

    def shares(self) -> Array:
        """Idle, arithmetic and memory: non-negative least squares."""
        found: Array = nnls(self.use, self.drawn)[0]
        return found


def matmul_watts(path: Path) -> Watts:
    """The matmuls of a table whose power was measured (columns gpu, gemm_dtype, m, n, k, latency_ms, power in watts).

    FLOP ``2mnk`` and bytes of both operands in their format and of the result in 16 bits, over latency and peak.
    """
    gpus, use, drawn = [], [], []
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if not float(row["power"] or 0) > 0 or row["gemm_dtype"] not in _FORMATS:
                continue
            hardware, fmt = load_hardware(row["gpu"]), find_format(_FORMATS[row["gemm_dtype"]])
            m, n, k, seconds = (float(row[name]) for name in ("m", "n", "k", "latency_ms"))
            seconds *= 1e-3
            size = (n + m) * k * fmt.bits / 8 + 2 * m * n
            flop_share = 2 * m * n * k / seconds / hardware.peak_of(fmt.math)
            use.append((1.0, flop_share, size / seconds / hardware.memory.bandwidth))
            drawn.append(float(row["power"]) / float(row["power_limit"]))
            gpus.append(row["gpu"])
    return Watts(gpus, np.array(use), np.array(drawn))


def power_section(shared: Path) -> str:
    """The shares fitted to all matmuls, and the errors of those fitted without a GPU on its own."""
    found = matmul_watts(shared / "measured" / "kernels" / "releases" / "gemm.csv.gz")
    gpus = sorted(set(found.gpu))
    lines: list[Line] = []
    for gpu in gpus:
        own = found.of({gpu})
        errors = figures(zip(np.minimum(own.use @ found.of(set(gpus) - {gpu}).shares(), 1.0), own.drawn))
        if errors is not None:
            lines.append([gpu, *score_cells(errors)])
    fitted = ", ".join(f"{name} {value:.3f}" for name, value in zip(_SHARES, found.shares()))
    return "\n".join(
        [
            "## Power\n",
            f"Shares of TDP fitted to {len(found.gpu)} matmuls on {' and '.join(gpus)}: {fitted}. Watts of single "
            "kernels on the GPU that is left out of the fit:\n",
            markdown(("left out", *HEADS), lines),
            "No serving row is in this fit, so those above with watts come from a device that it did not see. It "
            "prices other makers than NVIDIA, whose shares are fitted to runs of vLLM "
            "([power](power.md#how-far-off-it-is)).\n",
        ]
    )
