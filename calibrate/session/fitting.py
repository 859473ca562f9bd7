"""From a raw file to constants: what counts as measured, which terms pay, the held-out errors, the provenance."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from calibrate.device.device import Device
from calibrate.fit import (
    TERMS_OF,
    Measurement,
    errors,
    factors,
    fit_kernel,
    mean_factor,
    p90_factor,
    ratio_errors,
    refit,
    shape_of,
    split,
    stack,
    truth_band,
)
from calibrate.samples import WARM
from calibrate.session.hardware import hardware_of
from calibrate.session.raw_file import Session
from calibrate.session.settings import DISTURBED, FEWEST, Settings
from calibrate.shapes import Group, held_out_shapes
from inferplan.catalog.overlay import RUN
from inferplan.devices.constants import Calibration, Fit
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import ToleranceError
from inferplan.estimate.roofline import price
from inferplan.units import Array
from inferplan.work.ops import Op

HELD_OUT = 0.25
LEAST_HELD_OUT = 8
"""Shapes held out at the least; where a quarter is fewer, each shape is held out in turn, and all are fitted."""
FOLDS = 3
MORE_TERMS = {"attention.prefill": ("padding",), "matmul": ("packing",)}
"""Terms of torch's kernels beside those that kernel libraries showed."""
ENOUGH_FOR_TERMS = 12
"""Shapes of a fit from which all terms are tried; from :data:`ENOUGH` on those of torch's kernels."""


ENOUGH = 8
"""Undisturbed shapes of a kernel and format from which the disturbed ones are left out."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a fit may see: one measurement a shape.

    strangers: those of the model that nothing is fitted to. left_out: shapes that were disturbed in all visits but one.
    disturbed: such shapes that count all the same, because their kernel would have fewer than :data:`ENOUGH` without.
    """

    rows: list[Measurement]
    strangers: list[Measurement]
    left_out: int
    disturbed: int


def measurements(session: Session, strangers: frozenset[str] = frozenset()) -> Measured:
    """The measurements of a session: the median of each shape's visits, disturbed ones set aside where they can be.

    strangers: keys of shapes that are no fit's to see.
    """
    groups: dict[tuple[bool, Group], list[tuple[bool, Measurement]]] = defaultdict(list)
    for key, samples in session.samples.items():
        calm = sum(sample.calm for sample in samples) >= min(2, len(samples))
        measured = Measurement(op=session.shapes[key], seconds=session.seconds(key), source=key)
        groups[key in strangers, measured.group].append((calm, measured))
    kept: dict[bool, list[Measurement]] = {True: [], False: []}
    left_out = disturbed = 0
    for (strange, _), rows in groups.items():
        calm_rows = [measured for calm, measured in rows if calm]
        if len(calm_rows) >= ENOUGH:
            kept[strange] += calm_rows
            left_out += len(rows) - len(calm_rows)
        else:
            kept[strange] += [measured for _, measured in rows]
            disturbed += len(rows) - len(calm_rows)
    return Measured(rows=kept[False], strangers=kept[True], left_out=left_out, disturbed=disturbed)


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """A fitted run: the constants, the hardware they refer to, and the measurements of those, fitted to and held out.

    ratios: measured over predicted of the shapes held out, by kernel and format: of all that were fitted, also of those
    that are too far off to be written. unfitted: how many shapes were measured of each that was not fitted.
    """

    calibration: Calibration
    hardware: HardwareSpec
    new_hardware: dict[str, Any] | None
    train: list[Measurement]
    test: list[Measurement]
    session: Session
    ratios: Mapping[Group, Array] = field(default_factory=dict)
    unfitted: Mapping[Group, int] = field(default_factory=dict)

    def predicted(self, op: Op) -> float:
        """Seconds of one run of an operator by the fitted constants."""
        return float(price(op, self.hardware, self.calibration).time)


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedGroup:
    """One kernel and format: its constants with their error, and the shapes that they are from and were held to.

    ratios: measured over predicted of each of ``held``, by constants that it had no part in.
    """

    fit: Fit
    train: list[Measurement]
    held: list[Measurement]
    ratios: Array

    @property
    def held_out(self) -> dict[str, Any]:
        """The errors on the shapes held out, how many they are, and the worst of them."""
        facts = {"mean_factor": mean_factor(self.ratios), "p90_factor": p90_factor(self.ratios), "n": len(self.held)}
        return {**self.fit.error, **facts, "worst_shape": describe(self.held[self._worst].op)}

    @property
    def _worst(self) -> int:
        return int(np.argmax(factors(self.ratios)))

    def refusal(self, settings: Settings) -> str:
        """Why the constants are too far off on the shapes held out to be written; empty where they are not."""
        told = (("mean", mean_factor(self.ratios)), ("90th percentile", p90_factor(self.ratios)))
        for (what, factor), largest in zip(told, settings.largest, strict=True):
            if factor > largest:
                worst = f"the worst: {factors(self.ratios)[self._worst]:.3g} on {describe(self.held[self._worst].op)}"
                off = f"a factor of {factor:.3g} off over {len(self.held)} held-out shapes ({what})"
                return f"{off}, more than {largest:.3g}; {worst}"
        return ""

    def spans(self) -> dict[str, list[float]]:
        """The FLOP and bytes that the fit saw."""
        spans = {"flop": self.fit.flop_range, "bytes": self.fit.bytes_range}
        return {name: list(span) for name, span in spans.items() if span is not None}


def fit(session: Session, device: Device, settings: Settings) -> Outcome:
    """Constants of every kernel and format with shapes enough; errors on shapes that they are not from.

    Those that are too far off on the others are left out, and why is in the provenance. Raises ``ToleranceError`` when
    most of the run was disturbed, and when neither matmul nor attention is left.
    """
    require_calm(session, settings)
    hardware, data = hardware_of(device, session, settings.gpu)
    asked = [name for record in session.provenance for name in record.get("models", ())]
    design = settings.design_on(device.kind).on(hardware).fitted_to(asked)
    seen = measurements(session, held_out_shapes(design, hardware))
    tried, not_written = _fitted(session, seen, hardware, settings)
    fitted = {group: one for group, one in tried.items() if " ".join(group) not in not_written}
    require_enough(fitted, not_written, len(seen.rows))
    constants: dict[str, dict[str, Fit]] = defaultdict(dict)
    held_out: dict[str, dict[str, Any]] = defaultdict(dict)
    ranges: dict[str, dict[str, Any]] = defaultdict(dict)
    for (kernel, label), group in fitted.items():
        constants[kernel][label] = group.fit
        held_out[kernel][label] = group.held_out
        ranges[kernel][label] = group.spans()
    facts = _provenance(session, settings, data, seen) | {"not_written": not_written}
    if design.stranger is not None:
        facts["held_out_model"] = {"model": design.stranger} | strange_errors(seen.strangers, tried, fitted, hardware)
    calibration = Calibration(
        name=hardware.name,
        provenance=facts,
        constants={kernel: dict(formats) for kernel, formats in constants.items()},
        held_out=dict(held_out),
        range=dict(ranges),
    )
    return Outcome(
        calibration=calibration,
        hardware=hardware,
        new_hardware=data,
        train=[measured for group in fitted.values() for measured in group.train],
        test=[measured for group in fitted.values() if group.held is not group.train for measured in group.held],
        session=session,
        ratios={group: one.ratios for group, one in tried.items()},
        unfitted=Counter(row.group for row in seen.rows if row.group not in tried),
    )


def _fitted(
    session: Session, seen: Measured, hardware: HardwareSpec, settings: Settings
) -> tuple[dict[Group, FittedGroup], dict[str, str]]:
    """The kernels and formats that were fitted, and why some of them, or of the others, are not written."""
    groups: dict[Group, list[Measurement]] = defaultdict(list)
    for measured in seen.rows:
        groups[measured.group].append(measured)
    fitted: dict[Group, FittedGroup] = {}
    not_written: dict[str, str] = {}
    for (kernel, label), rows in sorted(groups.items()):
        if kernel.startswith("collective") and not hardware.links:
            not_written[f"{kernel} {label}"] = f"{hardware.name} states no link between devices to compare with"
            continue
        if len(rows) < FEWEST:
            not_written[f"{kernel} {label}"] = f"{len(rows)} shapes; a fit needs {FEWEST}"
            continue
        found = held_to(kernel, rows, hardware, settings)
        low, high = stated_band(session, found)
        stated = {"library": library_of(session, rows), "error": found.fit.error | {"low": low, "high": high}}
        fitted[kernel, label] = found = replace(found, fit=found.fit.model_copy(update=stated))
        if why := found.refusal(settings):
            not_written[f"{kernel} {label}"] = why
    return fitted, not_written


def held_to(kernel: str, rows: list[Measurement], hardware: HardwareSpec, settings: Settings) -> FittedGroup:
    """The constants of a kernel and format, and how far shapes are off that they are not from.

    Fitted to three quarters of the shapes and held to the others where those are :data:`LEAST_HELD_OUT`; else fitted to
    all, and each held to a fit of the others.
    """
    train, held = split(rows, HELD_OUT, settings.seed)
    further = terms_for(kernel, train, hardware, settings)
    apart = len(held) >= LEAST_HELD_OUT
    if not apart:
        train, held = rows, rows
    found = fit_kernel(train, hardware, further)
    terms = tuple(found.terms)

    def off(some: list[Measurement], constants: Fit) -> Array:
        stacked = stack(some, hardware, terms)
        return np.asarray(stacked.seconds / stacked.predict(constants))

    def without(one: Measurement) -> Fit:
        others = [row for row in rows if shape_of(row.op) != shape_of(one.op)]
        return refit(stack(others, hardware, terms), found)

    ratios = off(held, found) if apart else np.concatenate([off([one], without(one)) for one in held])
    return FittedGroup(
        fit=found.model_copy(update={"error": ratio_errors(ratios)}), train=train, held=held, ratios=ratios
    )


def stated_band(session: Session, found: FittedGroup) -> tuple[float, float]:
    """The 80 % band of undisturbed times that a group states (:func:`calibrate.fit.truth_band`).

    A disturbance only lengthens (but for a warm cache), and not all of it is noticed. So each visit to a shape that was
    no longer than the time that the fit sees may be the undisturbed one: where visits agree that is the same, where
    they do not the band reaches as far down as they do.
    """
    possible = []
    for row, ratio in zip(found.held, found.ratios, strict=True):
        cold = [s.seconds for s in session.samples[row.source] if WARM not in s.disturbed]
        possible.append(ratio * np.array([s for s in cold if s <= row.seconds] or [row.seconds]) / row.seconds)
    return truth_band(possible)


def library_of(session: Session, rows: Sequence[Measurement]) -> str:
    """The kernel libraries that ran the shapes, with ``+`` between several; empty where the raw file does not say."""
    return "+".join(sorted({s.library for row in rows for s in session.samples[row.source] if s.library}))


def require_calm(session: Session, settings: Settings) -> None:
    """Raise ``ToleranceError`` where most visits were disturbed and nobody asked for constants all the same."""
    samples = [sample for visits in session.samples.values() for sample in visits]
    disturbed = [sample for sample in samples if not sample.calm]
    if settings.keep_disturbed or len(disturbed) <= DISTURBED * len(samples):
        return
    told = Counter(sample.disturbed or "threads waited for a core" for sample in disturbed)
    threads = [sample for sample in disturbed if not sample.disturbed]
    anew = "; or anew, to another --out, with OMP_NUM_THREADS=1: one thread waits for no other" if threads else ""
    raise ToleranceError(
        f"{len(disturbed)} of {len(samples)} visits were disturbed, so that no constants are written",
        because="; ".join(f"{why} ({count})" for why, count in told.most_common(3)),
        hint=f"the same with --resume on a quieter machine{anew}; --fit-only --keep-disturbed writes what there is",
    )


def require_enough(fitted: Iterable[Group], not_written: Mapping[str, str], shapes: int) -> None:
    """Raise ``ToleranceError`` where neither a matmul nor an attention is left."""
    if any(kernel.partition(".")[0] in ("matmul", "attention", "mla") for kernel, _ in fitted):
        return
    first = {what: why for what, why in not_written.items() if what.startswith(("matmul", "attention", "mla"))}
    raise ToleranceError(
        "too little was measured for constants of a matmul or an attention, so that none are written",
        because="; ".join(f"{what}: {why}" for what, why in list((first or not_written).items())[:3])
        or f"{shapes} shapes were measured",
        hint="a longer --budget, or --resume on a quieter machine; every measurement is kept in the raw file",
    )


def strange_errors(
    rows: Sequence[Measurement], tried: Mapping[Group, FittedGroup], written: Iterable[Group], hardware: HardwareSpec
) -> dict[str, Any]:
    """The errors on the shapes of a whole model that nothing is fitted to: together, and by kernel and format.

    All shapes count whose kernel and format were fitted, ``unwritten`` of them by constants too far off to be written;
    ``unfitted`` are those without constants, which have no error.
    """
    groups: dict[Group, list[Measurement]] = defaultdict(list)
    for measured in rows:
        if measured.group in tried:
            groups[measured.group].append(measured)
    kernels: dict[str, dict[str, Any]] = defaultdict(dict)
    ratios = []
    for (kernel, label), own in sorted(groups.items()):
        stacked = stack(own, hardware, tuple(tried[kernel, label].fit.terms))
        ratios.append(stacked.seconds / stacked.predict(tried[kernel, label].fit))
        kernels[kernel][label] = ratio_errors(ratios[-1]) | {"n": len(own)}
    together = ratio_errors(np.concatenate(ratios)) if ratios else {}
    shapes, kept = sum(map(len, ratios)), set(written)
    unwritten = sum(len(own) for group, own in groups.items() if group not in kept)
    counts = {"shapes": shapes, "unwritten": unwritten, "unfitted": len(rows) - shapes}
    return {**counts, **together, "kernels": dict(kernels)}


def terms_for(kernel: str, train: Sequence[Measurement], hardware: HardwareSpec, settings: Settings) -> tuple[str, ...]:
    """The further terms that pay: one or all of the kernel's, if they make the error over folds smaller by a tenth."""
    more = MORE_TERMS.get(kernel, ())
    further = more if len(train) < ENOUGH_FOR_TERMS else TERMS_OF.get(kernel, ()) + more
    if settings.quick or not further or len(train) < ENOUGH:
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


SIZES = (
    *("batch", "new", "past", "m", "k", "n", "heads", "kv_heads", "key_dim", "experts"),
    *("tokens", "width", "elements", "channels", "state", "group"),
)


def describe(op: Op) -> str:
    """A shape in a few words: the sizes that are its load and its structure."""
    return ", ".join(f"{name} {float(getattr(op, name)):.12g}" for name in SIZES if hasattr(op, name))


def _provenance(session: Session, settings: Settings, data: dict[str, Any] | None, seen: Measured) -> dict[str, Any]:
    first, last = session.provenance[0], session.provenance[-1]
    models = "".join(f" --model {name}" for name in last.get("models", ()))
    facts: dict[str, Any] = {
        "source": f"{RUN}: kernels that torch reaches, on this device",
        "device": last["device"],
        "date": last["date"],
        "begun": first["date"],
        "inferplan": last["inferplan"],
        "command": f"inferplan calibrate --device {last['device']['kind']} --budget {last['budget']:g}s{models}",
        "shapes": len(session.samples),
        "samples": sum(map(len, session.samples.values())),
        "visits_disturbed": sum(not sample.calm for visits in session.samples.values() for sample in visits),
        "shapes_disturbed": seen.left_out + seen.disturbed,
        "shapes_disturbed_left_out": seen.left_out,
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


class Pooled(NamedTuple):
    """How far kernels of one kind are off on held-out shapes, in every format that was fitted, written or not."""

    median: float
    factor: float
    shapes: int
    unwritten: int
    """Those of them whose constants are too far off to be written."""
    unfitted: int
    """Shapes that were measured beside them, of formats with too few for constants."""

    def describe(self) -> str:
        """``median 12.0 %, mean factor 1.18 over 20 held-out shapes``."""
        rest = unwritten_of(self.unwritten, self.unfitted)
        return (
            f"median {100 * self.median:.1f} %, mean factor {self.factor:.3g} over {self.shapes} held-out shapes{rest}"
        )


def unwritten_of(unwritten: int, unfitted: int) -> str:
    """What of a set of errors is of constants that are not written, and how many shapes have no error, as words."""
    lost = f", {unwritten} of them of constants that are not written" if unwritten else ""
    return lost + (f"; {unfitted} more have no constants" if unfitted else "")


def pooled_errors(outcome: Outcome) -> dict[str, Pooled]:
    """Held-out error of matmuls and of attention, whatever the format."""
    found = {}
    for kind in ("matmul", "attention"):
        groups = {group: ratios for group, ratios in outcome.ratios.items() if group[0].split(".")[0] == kind}
        if groups:
            ratios = np.concatenate(list(groups.values()))
            written = outcome.calibration.constants
            lost = sum(len(one) for (kernel, label), one in groups.items() if label not in written.get(kernel, {}))
            bare = sum(count for (kernel, _), count in outcome.unfitted.items() if kernel.split(".")[0] == kind)
            median = float(np.median(np.abs(1.0 / ratios - 1.0)))
            found[kind] = Pooled(median, mean_factor(ratios), len(ratios), lost, bare)
    return found
