"""From a raw file to constants: what counts as measured, which terms pay, the held-out errors, the provenance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrate.device.device import Device
from calibrate.fit import TERMS_OF, Measurement, errors, fit_kernel, split
from calibrate.session.hardware import hardware_of
from calibrate.session.raw_file import Session
from calibrate.session.settings import Settings
from calibrate.shapes import Group
from inferplan.devices.constants import Calibration, Fit
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import MissingFactError
from inferplan.estimate.roofline import price
from inferplan.work.ops import Op

HELD_OUT = 0.25
FOLDS = 3
MORE_TERMS = {"attention.prefill": ("padding",)}
"""Terms of torch's kernels beside those that kernel libraries showed."""


ENOUGH = 8
"""Undisturbed shapes of a kernel and format from which the disturbed ones are left out."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a fit may see: one measurement a shape.

    left_out: shapes that other programs disturbed in all visits but one. disturbed: such shapes that count all the
    same, because their kernel would have fewer than :data:`ENOUGH` without them.
    """

    rows: list[Measurement]
    left_out: int
    disturbed: int


def measurements(session: Session) -> Measured:
    """The measurements of a session: the median of each shape's visits, disturbed ones set aside where they can be."""
    groups: dict[Group, list[tuple[bool, Measurement]]] = defaultdict(list)
    for key, samples in session.samples.items():
        calm = sum(sample.calm for sample in samples) >= min(2, len(samples))
        measured = Measurement(op=session.shapes[key], seconds=session.seconds(key), source=key)
        groups[measured.group].append((calm, measured))
    kept: list[Measurement] = []
    left_out = disturbed = 0
    for rows in groups.values():
        calm_rows = [measured for calm, measured in rows if calm]
        if len(calm_rows) >= ENOUGH:
            kept += calm_rows
            left_out += len(rows) - len(calm_rows)
        else:
            kept += [measured for _, measured in rows]
            disturbed += len(rows) - len(calm_rows)
    return Measured(rows=kept, left_out=left_out, disturbed=disturbed)


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """A fitted run: the constants, the hardware they refer to, and the measurements, training and held out."""

    calibration: Calibration
    hardware: HardwareSpec
    new_hardware: dict[str, Any] | None
    train: list[Measurement]
    test: list[Measurement]
    session: Session

    def predicted(self, op: Op) -> float:
        """Seconds of one run of an operator by the fitted constants."""
        return float(price(op, self.hardware, self.calibration).time)


def fit(session: Session, device: Device, settings: Settings) -> Outcome:
    """Constants of every kernel and format with shapes enough, on three quarters of them; errors on the others.

    Raises ``MissingFactError`` when nothing could be fitted.
    """
    hardware, data = hardware_of(device, session, settings.gpu)
    seen = measurements(session)
    groups: dict[Group, list[Measurement]] = defaultdict(list)
    for measured in seen.rows:
        groups[measured.group].append(measured)
    constants: dict[str, dict[str, Fit]] = defaultdict(dict)
    held_out: dict[str, dict[str, Any]] = defaultdict(dict)
    ranges: dict[str, dict[str, Any]] = defaultdict(dict)
    train_all: list[Measurement] = []
    test_all: list[Measurement] = []
    for (kernel, label), group in sorted(groups.items()):
        train, test = split(group, HELD_OUT, settings.seed)
        if len(train) < 4 or not test or (kernel.startswith("collective") and not hardware.links):
            continue
        fitted = fit_kernel(train, hardware, terms_for(kernel, train, hardware, settings))
        figures = errors(test, hardware, fitted)
        constants[kernel][label] = fitted.model_copy(update={"error": figures})
        held_out[kernel][label] = figures | {"n": len(test), "worst_shape": _worst(test, hardware, fitted)}
        spans = {"flop": fitted.flop_range, "bytes": fitted.bytes_range}
        ranges[kernel][label] = {name: list(span) for name, span in spans.items() if span is not None}
        train_all += train
        test_all += test
    if not constants:
        raise MissingFactError(
            "too little was measured to fit anything",
            because=f"{len(seen.rows)} shapes of {len(groups)} kernels; a fit needs five of one",
            hint="a longer --budget, or --resume",
        )
    calibration = Calibration(
        name=hardware.name,
        provenance=_provenance(session, settings, data, seen),
        constants={kernel: dict(formats) for kernel, formats in constants.items()},
        held_out=dict(held_out),
        range=dict(ranges),
    )
    return Outcome(
        calibration=calibration,
        hardware=hardware,
        new_hardware=data,
        train=train_all,
        test=test_all,
        session=session,
    )


def terms_for(kernel: str, train: Sequence[Measurement], hardware: HardwareSpec, settings: Settings) -> tuple[str, ...]:
    """The further terms that pay: one or all of the kernel's, if they make the error over folds smaller by a tenth."""
    further = TERMS_OF.get(kernel, ()) + MORE_TERMS.get(kernel, ())
    if settings.quick or not further or len(train) < 12:
        return ()
    sets = [(), *((name,) for name in further), *([further] if len(train) >= 8 * len(further) else [])]
    off = {terms: _folded(train, hardware, terms, settings.seed) for terms in sets}
    best = min(sets, key=lambda terms: off[terms])
    return best if off[best] < 0.9 * off[()] else ()


def _folded(train: Sequence[Measurement], hardware: HardwareSpec, terms: tuple[str, ...], seed: int) -> float:
    off = []
    for fold in range(FOLDS):
        inside, outside = split(train, 1 / FOLDS, seed + 1 + fold)
        off.append(errors(outside, hardware, fit_kernel(inside, hardware, terms))["mape"])
    return float(np.mean(off))


def _worst(test: Sequence[Measurement], hardware: HardwareSpec, fitted: Fit) -> str:
    off = [abs(errors([measured], hardware, fitted)["bias"]) for measured in test]
    return describe(test[int(np.argmax(off))].op)


SIZES = (
    *("batch", "new", "past", "m", "k", "n", "heads", "kv_heads", "key_dim", "experts"),
    *("tokens", "width", "elements", "channels", "state", "group"),
)


def describe(op: Op) -> str:
    """A shape in a few words: the sizes that are its load and its structure."""
    return ", ".join(f"{name} {float(getattr(op, name)):g}" for name in SIZES if hasattr(op, name))


def _provenance(session: Session, settings: Settings, data: dict[str, Any] | None, seen: Measured) -> dict[str, Any]:
    first, last = session.provenance[0], session.provenance[-1]
    facts: dict[str, Any] = {
        "source": "inferplan calibrate: torch kernels on this device",
        "device": last["device"],
        "date": last["date"],
        "begun": first["date"],
        "inferplan": last["inferplan"],
        "command": f"inferplan calibrate --device {last['device']['kind']} --budget {last['budget']:g}s",
        "shapes": len(session.samples),
        "samples": sum(map(len, session.samples.values())),
        "shapes_disturbed": seen.left_out,
        "shapes_disturbed_used": seen.disturbed,
        "seed": settings.seed,
        "ceilings": {name: float(f"{rate:.4g}") for name, rate in sorted(session.ceilings.items())},
        "kernels": _kernels(session),
        "passed_over": dict(sorted(session.passed_over.items())),
        "refused": dict(sorted(session.refused.items())),
        "failed": {_described(session, key): why for key, why in sorted(session.failed.items())},
    }
    return facts if data is None else facts | {"hardware": data}


def _described(session: Session, key: str) -> str:
    op = session.shapes.get(key)
    return key if op is None else f"{op.kernel} {op.label}: {describe(op)}"


def _kernels(session: Session) -> dict[str, str]:
    """The library call behind each kernel and format."""
    table: dict[str, set[str]] = defaultdict(set)
    for key, samples in session.samples.items():
        op = session.shapes[key]
        table[f"{op.kernel}/{op.label}"] |= {sample.kernel for sample in samples if sample.kernel}
    return {name: "; ".join(sorted(calls)) for name, calls in sorted(table.items())}


def pooled_errors(outcome: Outcome) -> dict[str, tuple[float, int]]:
    """Median held-out error of matmuls and of attention, whatever the format, and over how many shapes."""
    off: dict[str, list[float]] = defaultdict(list)
    for measured in outcome.test:
        kernel = measured.op.kernel.split(".")[0]
        off[kernel].append(abs(outcome.predicted(measured.op) / measured.seconds - 1.0))
    return {
        kernel: (float(np.median(off[kernel])), len(off[kernel])) for kernel in ("matmul", "attention") if off[kernel]
    }
