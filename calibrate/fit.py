"""Constants from measurements: robust least squares on the log of predicted over measured, through the roofline itself.

The prediction is :func:`inferplan.estimate.roofline.fitted_time` on the ideal times of the measured operators; nothing
here knows a formula.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from inferplan.devices.constants import IDEAL, Calibration, Constants, Fit
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import UsageError
from inferplan.estimate.roofline import TERMS, IdealTime, fitted_time, ideal_time, price
from inferplan.units import Array
from inferplan.work.ops import Op

Group = tuple[str, str]
MAIN = ("math", "memory", "overhead", "sharpness", "scale_out")
SHARPNESS = (1.0, 1.5, 2.0, 4.0)
"""The p-norms that need roots only; a fitted sharpness is moved to the nearest and the rest is fitted again."""
TERMS_OF: dict[str, tuple[str, ...]] = {
    "matmul": ("depth", "rows", "spread", "padding"),
    "grouped_matmul": ("experts", "spread", "depth", "sorting"),
    "grouped_matmul.exchanged": ("experts", "depth"),
    "attention.decode": ("merges", "items", "windowed"),
    "attention.prefill": ("spread", "blocks", "items"),
    "attention.encoder": ("depth", "spread", "blocks"),
    "mla.decode": ("padding", "merges", "items", "depth"),
    "mla.prefill": ("padding", "spread"),
    "mla.sparse": ("padding", "spread"),
    "mla.sparse.decode": ("padding",),
    "index_select": ("spread",),
    "top_k": ("depth", "rows"),
    "collective.all_reduce": ("hops", "second", "pieces"),
    "collective.all_gather": ("hops", "ramp"),
    "collective.reduce_scatter": ("hops", "ramp"),
    "collective.all_to_all": ("hops", "ramp"),
    "dispatch.low_latency": ("nodes", "handled", "experts"),
    "combine.low_latency": ("nodes", "handled", "experts"),
    "dispatch.normal": ("nodes", "handled", "copied", "forwarded"),
    "combine.normal": ("nodes", "handled", "copied", "forwarded"),
    "dispatch.nvlink": ("hops", "handled"),
    "combine.nvlink": ("hops", "handled"),
    "scan.prefill": ("depth",),
}
"""The further terms of each kernel that earned their place on held-out shapes (docs/calibration.md)."""


SOFT = 0.15
"""Errors of rows beyond this size (of the logarithm) count in proportion, smaller ones by their square."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One timed kernel. ``rest`` are operators whose time ``seconds`` includes (the second half of a fused kernel)."""

    op: Op
    seconds: float
    source: str = ""
    rest: tuple[Op, ...] = field(default=())

    @property
    def group(self) -> Group:
        """The constants it belongs to."""
        return self.op.kernel, self.op.label


def split(
    measurements: Sequence[Measurement], share: float = 0.2, seed: int = 0
) -> tuple[list[Measurement], list[Measurement]]:
    """Training and held-out parts, by shape: repeats of a shape are on the same side."""
    keys = [shape_of(m.op) for m in measurements]
    unique = sorted(set(keys))
    order = np.random.default_rng(seed).permutation(len(unique))
    held = {unique[index] for index in order[: round(share * len(unique))]}
    return (
        [m for m, key in zip(measurements, keys) if key not in held],
        [m for m, key in zip(measurements, keys) if key in held],
    )


def shape_of(op: Op) -> str:
    """What tells an operator from others, as text: every size and format."""
    return repr([(f.name, getattr(op, f.name)) for f in fields(op) if f.name not in ("name", "count", "ranks")])


@dataclass(frozen=True, kw_only=True, eq=False)
class Stack:
    """Measurements as arrays: the demands that a fit prices, and the seconds of everything else they include.

    flop, moved: the smallest and largest work of one run.
    """

    demands: list[IdealTime]
    other: Array
    seconds: Array
    flop: tuple[float, float]
    moved: tuple[float, float]

    def predict(self, fit: Fit) -> Array:
        """Seconds of each measurement by a kernel's constants, with all else it includes: shape (measurements,)."""
        total: Array = self.other + sum((fitted_time(asked, fit).total for asked in self.demands), start=0.0)
        return total


def stack(
    measurements: Sequence[Measurement], hardware: HardwareSpec, terms: Sequence[str], rest: Calibration = IDEAL
) -> Stack:
    """The demands of ``measurements`` as arrays. Raises ``UsageError`` unless all are of one kernel and format."""
    groups = {m.group for m in measurements}
    if len(groups) != 1:
        raise UsageError(f"a fit is of one kernel and format, not {sorted(groups)}")
    group = groups.pop()
    slots: dict[int, list[tuple[int, IdealTime]]] = defaultdict(list)
    other = np.zeros(len(measurements))
    works = []
    for row, measurement in enumerate(measurements):
        slot = 0
        for op in (measurement.op, *measurement.rest):
            if (op.kernel, op.label) == group:
                works.append(op.work())
                slots[slot].append((row, ideal_time(op, works[-1], hardware, terms)))
                slot += 1
            else:
                other[row] += float(price(op, hardware, rest).total)
    return Stack(
        demands=[_column(rows, len(measurements), terms) for rows in slots.values()],
        other=other,
        seconds=np.array([m.seconds for m in measurements]),
        flop=_span([float(work.flop) for work in works]),
        moved=_span([float(work.bytes + work.wire) for work in works]),
    )


def _span(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def join(stacks: Sequence[Stack]) -> Stack:
    """Measurements of several devices, each priced on its own: what their common constants are fitted to."""
    demands = [
        IdealTime(
            math=np.concatenate([asked.math for asked in column]),
            memory=np.concatenate([asked.memory for asked in column]),
            wire=np.concatenate([asked.wire for asked in column]),
            counts={name: np.concatenate([asked.counts[name] for asked in column]) for name in column[0].counts},
            outer=np.concatenate([asked.outer for asked in column]),
            direct=np.concatenate([asked.direct for asked in column]),
        )
        for column in zip(*(one.demands for one in stacks), strict=True)
    ]
    return Stack(
        demands=demands,
        other=np.concatenate([one.other for one in stacks]),
        seconds=np.concatenate([one.seconds for one in stacks]),
        flop=_span([value for one in stacks for value in one.flop]),
        moved=_span([value for one in stacks for value in one.moved]),
    )


def _column(rows: list[tuple[int, IdealTime]], size: int, terms: Sequence[str]) -> IdealTime:
    """Demands of several measurements side by side. Raises ``UsageError`` when one of them has none."""
    if len(rows) != size:
        raise UsageError("measurements of one kernel must hold equally many runs of it")

    def gather(values: list[Any]) -> Array:
        return np.array([float(value) for value in values])

    return IdealTime(
        math=gather([asked.math for _, asked in rows]),
        memory=gather([asked.memory for _, asked in rows]),
        wire=gather([asked.wire for _, asked in rows]),
        counts={name: gather([asked.counts[name] for _, asked in rows]) for name in terms},
        outer=gather([asked.outer for _, asked in rows]),
        direct=gather([asked.direct for _, asked in rows]),
    )


@dataclass(frozen=True, kw_only=True)
class _Unknowns:
    """Which constants a fit looks for: their names, sizes and physical bounds."""

    names: tuple[str, ...]
    fixed: dict[str, float]

    def bounds(self) -> tuple[list[float], list[float]]:
        limits = {"math": (0.005, 1.0), "memory": (0.005, 1.0), "overhead": (0.0, 1.0)}
        limits["sharpness"] = SHARPNESS[0], SHARPNESS[-1]
        limits["scale_out"] = limits["memory"]
        pairs = [limits.get(name) or (0.0, TERMS[name].limit) for name in self.names]
        scales = self.scales()
        return [low / s for (low, _), s in zip(pairs, scales)], [high / s for (_, high), s in zip(pairs, scales)]

    def scales(self) -> list[float]:
        usual = {"math": 1.0, "memory": 1.0, "overhead": 1e-5, "sharpness": 1.0, "scale_out": 1.0}
        return [usual[name] if name in usual else TERMS[name].scale for name in self.names]

    def fit(self, x: Array) -> Fit:
        values = self.fixed | {name: float(v * s) for name, v, s in zip(self.names, x, self.scales())}
        main: dict[str, Any] = {name: values.pop(name) for name in MAIN if name in values}
        return Fit.model_construct(**main, terms=values)


def fit_kernel(
    measurements: Sequence[Measurement],
    hardware: HardwareSpec,
    terms: Sequence[str] = (),
    rest: Calibration = IDEAL,
) -> Fit:
    """The constants of one kernel and format: soft-L1 least squares on log error, inside the physical bounds.

    ``rest`` prices the operators that measurements include besides the kernel.
    """
    return fit_stack(stack(measurements, hardware, terms, rest))


def fit_stack(stacked: Stack) -> Fit:
    """The constants of stacked measurements. Terms that nothing in them counts are left out."""
    terms = [name for name, counts in stacked.demands[0].counts.items() if np.any(counts > 0)]
    main = _main(stacked)
    dead = dict.fromkeys((name for name in stacked.demands[0].counts if name not in terms), 0.0)
    sharp = "sharpness" in main
    starts: list[dict[str, float]] = [{"sharpness": 1.2}, {"sharpness": 3.0}] if sharp else [{}]
    free = _Unknowns(names=(*main, *terms), fixed=dead | ({} if sharp else {"sharpness": 1.0}))
    solutions = [_solve(stacked, free, start) for start in starts]
    best = min(solutions, key=lambda solution: solution[1])[0]
    if sharp:
        candidates = sorted(SHARPNESS, key=lambda p: abs(np.log(p / best.sharpness)))[:2]
        names = tuple(name for name in free.names if name != "sharpness")
        again = [_solve(stacked, _Unknowns(names=names, fixed=dead | {"sharpness": p}), {}) for p in candidates]
        best = min(again, key=lambda solution: solution[1])[0]
    return _finished(best, stacked)


def refit(stacked: Stack, near: Fit) -> Fit:
    """The constants of some of the measurements that ``near`` is fitted to, with its terms and its sharpness.

    They begin where every fit begins, not at ``near``: a constant that only the shapes left out can tell would stay
    what those made of it.
    """
    names = tuple(name for name in _main(stacked) if name != "sharpness")
    return _solve(stacked, _Unknowns(names=(*names, *near.terms), fixed={"sharpness": near.sharpness}), {})[0]


def factors(ratios: Array) -> Array:
    """How far apart measured and predicted are, as factors of 1 or more: half as long and twice as long are as far off.
    A relative error never says more than 100 % of what is predicted too short."""
    return np.maximum(ratios, 1.0 / ratios)


def mean_factor(ratios: Array) -> float:
    """The mean of :func:`factors`. One shape of 29 at 250 times makes it 9.6; the exponential of a mean of logarithms
    is 1.2 there, and a median 1."""
    return _rounded(float(np.mean(factors(ratios))))


def p90_factor(ratios: Array) -> float:
    """The 90th percentile of :func:`factors` by Weibull's rule: up to nine shapes it is the largest."""
    return _rounded(float(np.quantile(factors(ratios), 0.9, method="weibull")))


def _main(stacked: Stack) -> tuple[str, ...]:
    """The main constants that the measurements can tell apart."""
    math = any(np.any(asked.math > 0) for asked in stacked.demands)
    memory = any(np.any(asked.memory + asked.wire > 0) for asked in stacked.demands)
    both = math and memory
    beyond = any(np.any(asked.outer > 0) for asked in stacked.demands)
    blocks = any(TERMS[name].effect == "blocks" and np.any(count) for name, count in stacked.demands[0].counts.items())
    sharp = both or beyond or blocks
    present = {"math": math, "memory": memory, "overhead": True, "sharpness": sharp, "scale_out": beyond}
    return tuple(name for name, there in present.items() if there)


def _solve(stacked: Stack, unknowns: _Unknowns, start: dict[str, float]) -> tuple[Fit, float]:
    usual = {
        "math": 0.6,
        "memory": 0.8,
        "scale_out": 0.8,
        "overhead": float(np.min(stacked.seconds)) / 2 / len(stacked.demands),
    } | start
    scales = unknowns.scales()
    x0 = [usual.get(name, 0.3 * scale) / scale for name, scale in zip(unknowns.names, scales)]
    measured = np.log(stacked.seconds)

    def residuals(x: Array) -> Array:
        off: Array = np.log(stacked.predict(unknowns.fit(x))) - measured
        return off

    low, high = unknowns.bounds()
    x0 = [min(max(v, lo + 1e-9), hi - 1e-9) for v, lo, hi in zip(x0, low, high)]
    result = least_squares(residuals, x0, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=200)
    return unknowns.fit(result.x), float(result.cost)


def _finished(fit: Fit, stacked: Stack) -> Fit:
    """A validated fit with its range, its constants to four digits; terms that came out as nothing are left out."""
    terms = {name: _rounded(v) for name, v in fit.terms.items() if v > 1e-4 * TERMS[name].scale}
    return Fit(
        math=min(1.0, _rounded(fit.math)),
        memory=min(1.0, _rounded(fit.memory)),
        overhead=_rounded(fit.overhead),
        sharpness=fit.sharpness,
        scale_out=min(1.0, _rounded(fit.scale_out)),
        terms=terms,
        n=len(stacked.seconds),
        flop_range=stacked.flop if stacked.flop[1] > 0 else None,
        bytes_range=stacked.moved,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def errors(
    measurements: Sequence[Measurement], hardware: HardwareSpec, fit: Fit, rest: Calibration = IDEAL
) -> dict[str, float]:
    """How far a fit is off, as fractions of the measured time: mape, median, p90, worst, bias (mean signed error).

    ``low`` and ``high`` are the band: the 10 % and 90 % quantiles of measured over predicted.
    """
    return stack_errors(stack(measurements, hardware, tuple(fit.terms), rest), fit)


def stack_errors(stacked: Stack, fit: Fit) -> dict[str, float]:
    """:func:`errors` of stacked measurements."""
    return ratio_errors(stacked.seconds / stacked.predict(fit))


def ratio_errors(ratios: Array) -> dict[str, float]:
    """:func:`errors` of measured over predicted. Weibull quantiles: of few rows too, the band holds 80 % of others."""
    off = 1.0 / ratios - 1.0
    size = np.abs(off)
    low, high = np.quantile(ratios, (0.1, 0.9), method="weibull")
    return {
        "mape": _rounded(float(np.mean(size))),
        "median": _rounded(float(np.median(size))),
        "p90": _rounded(float(np.quantile(size, 0.9))),
        "worst": _rounded(float(np.max(size))),
        "bias": _rounded(float(np.mean(off))),
        "low": _rounded(float(low)),
        "high": _rounded(float(high)),
    }


def truth_band(possible: Sequence[Array]) -> tuple[float, float]:
    """The factors on a prediction between which 80 % of undisturbed times are expected.

    possible: for each shape held out, what it may take undisturbed over what is predicted, at least one value. The
    10 % and 90 % quantiles over all of them, where each shape counts as one and its values share that; with one value
    a shape they are those whose median error is nil whatever the distribution (Hyndman and Fan, Sample Quantiles in
    Statistical Packages, 1996, definition 8). Weibull's (:func:`ratio_errors`) hold some 3 points more of 100.
    """
    weights = np.concatenate([np.full(len(values), 1.0 / len(values)) for values in possible])
    logs = np.log(np.concatenate([np.asarray(values) for values in possible]))
    order = np.argsort(logs)
    weights = weights[order]
    places = (np.cumsum(weights) - weights / 2 + 1 / 6) / (len(possible) + 1 / 3)
    low, high = np.exp(np.interp((0.1, 0.9), places, logs[order]))
    return _rounded(float(low)), _rounded(float(high))


HeldOut = dict[str, dict[str, dict[str, float]]]
Ranges = dict[str, dict[str, dict[str, tuple[float, float]]]]


def fit_all(
    measurements: Sequence[Measurement], hardware: HardwareSpec, held_out: float = 0.2, rest: Calibration = IDEAL
) -> tuple[Constants, HeldOut, Ranges]:
    """Every kernel and format: constants fitted on one part of the shapes, errors on the other, and the ranges covered.

    Groups of fewer than five shapes are left out: nothing could be held out of them.
    """
    groups: dict[Group, list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        groups[measurement.group].append(measurement)
    constants: Constants = defaultdict(dict)
    figures: HeldOut = defaultdict(dict)
    ranges: Ranges = defaultdict(dict)
    for (kernel, label), rows in sorted(groups.items()):
        train, test = split(rows, held_out)
        if not test or len(train) < 4:
            continue
        fit = fit_kernel(train, hardware, TERMS_OF.get(kernel, ()), rest)
        figure = errors(test, hardware, fit, rest)
        constants[kernel][label] = fit.model_copy(update={"error": figure})
        figures[kernel][label] = figure | {"n": len(test)}
        spans = {"flop": fit.flop_range, "bytes": fit.bytes_range}
        ranges[kernel][label] = {name: span for name, span in spans.items() if span is not None}
    return dict(constants), dict(figures), dict(ranges)
