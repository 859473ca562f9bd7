"""What the times of a report rest on, and how far off they are known to be, where no plan of one deployment says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferplan.devices.constants import Calibration, LateTokens
from inferplan.estimate.bands import serving_bands
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.support import lacking, too_few
from inferplan.planning.demand import METRIC_NAMES
from inferplan.units import format_time

Served = Mapping[str, tuple[Deployment, float]]
"""Deployments by what they are called, each with the tokens of its mean prompt."""


def constants_of(calibration: Calibration) -> str:
    """Which constants priced it; those that are carried over from other devices say so in their name."""
    said = "" if calibration.basis in calibration.name else f" ({calibration.basis})"
    return f"{calibration.described} constants{said}"


def late_tokens(tail: LateTokens, share: float) -> str:
    """How late measured first tokens were, of which a percentile has a share."""
    middle, most = (format_time(share * max(tail.at(at), 0.0), 2) for at in (0.5, 0.9))
    return (
        f"in the middle of {tail.rows} measured rows ({tail.systems} systems) first tokens come {middle} later than "
        f"predicted, in 1 of 10 more than {most} later"
    )


def error_notes(served: Served, unmeasured: str = "") -> list[str]:
    """A line for each basis: whose times rest on it, and between which factors 80 % of what was left out lies.

    unmeasured: what of the report nobody has measured, beyond replicas that serve a steady load; empty for nothing.
    """
    whose: dict[str, list[str]] = {}
    for name, (deployment, prompt) in served.items():
        whose.setdefault(_basis(deployment, prompt), []).append(name)
    lines = [f"basis: {basis}" for basis in whose]
    if len(whose) > 1:
        lines = [f"basis of {', '.join(names)}: {basis}" for basis, names in whose.items()]
    if unmeasured:
        lines.append(f"no measurement of {unmeasured} is on file: how much this adds to the error is not known")
    return lines


def _basis(deployment: Deployment, prompt: float) -> str:
    calibration = deployment.calibration
    if calibration.basis == "roofline":
        return "roofline of an ideal device: no measurement supports these times, and real ones are longer"
    bands = serving_bands(deployment, prompt)
    if not bands:
        why = too_few(missing) if (missing := lacking(deployment)) else "none is known for replicas like these"
        return f"{constants_of(calibration)}; no error band: {why}"
    within = ", ".join(f"{METRIC_NAMES[name]} x {low:.2f} to x {high:.2f}" for name, (low, high) in bands.items())
    known = f"80 % of held-out means of steady loads lie within {within} of the predicted means"
    return f"{constants_of(calibration)}; {known}"


def error_record(served: Served) -> list[dict[str, Any]]:
    """The same for programs: the factors are those of measured over predicted, null where none are known."""
    rows = []
    for name, (deployment, prompt) in served.items():
        bands = serving_bands(deployment, prompt)
        row = {metric: bands.get(metric) for metric in ("ttft", "tpot")}
        rows.append({"name": name, "basis": deployment.calibration.basis, **row})
    return rows
