"""What of a result is priced by the calibration that was asked for, and what by the constants on file."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferplan.devices.constants import Calibration
from inferplan.estimate.batch import Estimate
from inferplan.estimate.phase import Phase

ROOFLINE = "by the datasheet alone"


def overlay_record(calibration: Calibration) -> dict[str, Any] | None:
    """The file, the kernels and formats that it prices, and those of its own that constants on file stand before."""
    overlay = calibration.overlay
    if overlay is None:
        return None
    return {"file": overlay.file, "prices": overlay.used, "does_not_price": overlay.unused}


def file_share(phase: Phase) -> float:
    """The share of kernel time whose constants are the file's."""
    calibration, own, whole = phase.deployment.calibration, 0.0, 0.0
    for cost in phase.costs:
        time = float(np.sum(cost.total))
        whole += time
        own += time if calibration.of_file(cost.op.kernel, cost.op.label) else 0.0
    return own / whole


def file_shares(estimate: Estimate) -> dict[str, float] | None:
    """:func:`file_share` of prefill and decode; ``None`` without a file."""
    if estimate.deployment.calibration.overlay is None:
        return None
    return {"prefill": file_share(estimate.prefill), "decode": file_share(estimate.decode)}


def overlay_note(estimate: Estimate) -> str:
    """Which of the kernels that run the file prices, and which the constants on file do; empty without a file."""
    calibration = estimate.deployment.calibration
    if calibration.overlay is None:
        return ""
    on_file = f"the constants on file ({calibration.name})"
    whose: dict[str, set[str]] = {calibration.overlay.file: set(), on_file: set(), ROOFLINE: set()}
    for phase in (estimate.prefill, estimate.decode):
        for cost in phase.costs:
            kernel, label = cost.op.kernel, cost.op.label
            by_file = calibration.of_file(kernel, label)
            name = ROOFLINE if cost.fit is None else calibration.overlay.file if by_file else on_file
            whose[name].add(f"{kernel} {label}")
    parts = [f"{name}: {', '.join(sorted(kernels))}" for name, kernels in whose.items() if kernels]
    return f"kernels by {'; by '.join(parts)}"
