"""What the shipped constants say of themselves: kernels on shapes and devices they did not see, and serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inferplan.catalog.calibrations import measured_bands, shared_step
from inferplan.catalog.files import load, names
from inferplan.devices.constants import Calibration
from tools.accuracy.scores import Line, markdown

KERNELS = {
    "GEMM": ("matmul",),
    "decode attention": ("attention.decode",),
    "prefill attention": ("attention.prefill",),
    "MLA": ("mla.decode", "mla.prefill"),
    "experts": ("grouped_matmul",),
    "all-reduce": ("collective.all_reduce",),
    "state space": ("scan.decode", "scan.prefill", "conv"),
}


def _medians(held_out: dict[str, Any], kernels: Sequence[str], device: str | None = None) -> list[float]:
    """The median errors of kernels over libraries and formats; of a left-out ``device`` where the entries name them."""
    found = []
    for library in held_out.values():
        for kernel in kernels:
            for entry in library.get(kernel, {}).values():
                figure = entry if device is None else entry.get(device, {})
                if "median" in figure:
                    found.append(float(figure["median"]))
    return found


def kernel_section() -> str:
    """Median held-out errors of kernels: on shapes of the same device, and on devices left out of the fit."""
    own = {name: load("calibration", name, Calibration) for name in names("calibration")}
    devices = [name for name, found in own.items() if found.basis == "calibrated"]
    carried = [found for found in own.values() if found.basis == "transferred"]

    def shown(values: list[float]) -> str:
        return f"{100 * float(np.median(values)):.1f}" if values else "-"

    unseen = [
        [label, *(shown(_medians(own[device].held_out, kernels)) for device in devices)]
        for label, kernels in KERNELS.items()
    ]
    left_out = [
        [label, *(shown([v for f in carried for v in _medians(f.held_out, kernels, device)]) for device in devices)]
        for label, kernels in KERNELS.items()
    ]
    return "\n".join(
        [
            "## Kernels\n",
            "Median over kernel libraries and formats of the median error in percent, from the calibration files. On "
            "shapes held out of the fit of the same GPU:\n",
            markdown(("unseen shapes", *devices), unseen),
            "With constants carried over from the other GPUs, as a device without measurements gets them:\n",
            markdown(("unseen GPU", *devices), left_out),
        ]
    )


def _ends(band: tuple[float, float] | None) -> str:
    return "-" if band is None else f"x {band[0]:.2f} to x {band[1]:.2f}"


def constants_section() -> str:
    """The shared constants with the range that they take over the folds."""
    shared = shared_step()
    spread = shared.provenance.get("range_over_folds", {})
    bands = [
        [one.device, one.engine, " and ".join(one.forms) or "none", str(one.systems), *map(_ends, (one.ttft, one.tpot))]
        for one in measured_bands().cells
        if one.bands
    ]
    lines = [[name, f"{low:g}", f"{high:g}"] for name, (low, high) in spread.items()]
    decided = shared.provenance.get("decided", {})
    return "\n".join(
        [
            "## What serving rows decided\n",
            f"{len(lines)} constants are fitted to serving rows. All are shared by every model, device and engine (in "
            "seconds, or a ratio). The range is over the fits that each leave one model out on all GPUs and engines: a "
            "wide range says that the rows hold little evidence of the constant.\n",
            markdown(("constant", "least", "most"), lines),
            f"{len(decided)} choices rest on such rows, too. The fold that leaves a model out makes each of them again "
            "from the rows of the others: it stands where it brings those nearer to what was measured, else what "
            "*otherwise* says. They are judged at the constants of all rows, and a value (the skew of 0.8, three "
            "launches) is kept or dropped, not sought again. The last column names the models in whose folds a choice "
            "did not stand. Run scripts name models, so that no fold knows those of its own.\n",
            markdown(
                ("choice", "where", "rows that decided it", "otherwise", "does not stand without"), _choices(decided)
            ),
            "Between which factors of the prediction 80 % of the rows of a further system are expected, by what it is "
            "served on; other kinds in `configs/bands.yaml` have fewer than three systems and no band "
            "([how](validate.md#bands)):\n",
            markdown(("GPU", "engine", "forms", "systems", "TTFT", "TPOT"), bands),
        ]
    )


def _choices(decided: Mapping[str, Mapping[str, Any]]) -> list[Line]:
    """A line for each choice."""
    return [
        [
            name,
            one["where"],
            ", ".join(f"{model} {rows}" for model, rows in one["rows"].items()) or "none of this file",
            one["otherwise"],
            ", ".join(one["undone_without"]) or "none",
        ]
        for name, one in decided.items()
    ]
