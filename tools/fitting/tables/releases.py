"""Kernel tables by engine release into ``configs/calibration/releases``: what a release's kernels took otherwise."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from calibrate.fit import Group, Measurement, Stack, fit_all, shape_of, split, stack, stack_errors
from inferplan.devices.constants import ANY, Calibration, Fit
from inferplan.devices.hardware import HardwareSpec
from inferplan.devices.releases import Release, Releases, release_order
from inferplan.units import Array
from tools.fitting.tables.calibrations import VECTOR, rest_calibration
from tools.fitting.tables.choose import EAGER, ENGINES, falls_back, roofline_seconds
from tools.fitting.tables.fastest import KERNEL, WIDE
from tools.fitting.tables.read import measurement_of, refusal, without_scales

TABLES = {
    "gemm": "gemm",
    "moe": "moe",
    "context_attention": "attention_prefill",
    "generation_attention": "attention_decode",
    "context_mla": "mla_prefill",
    "generation_mla": "mla_decode",
    "custom_allreduce": "allreduce_custom",
}
"""Files by release, and the table (:data:`tools.fitting.tables.read.READERS`) whose columns they have."""
FEWEST = 150
"""Rows of a format below which nothing is fitted: with 60, DeepSeek-R1 on B200 came out at 65 % for 15."""
FEWEST_COLLECTIVE = 60
"""The same of an all-reduce, whose one variable is timed at 23 sizes over 2, 4 and 8 devices."""
SHARE = 0.05
"""The median difference over shapes, to the newest release, from which a release has constants of its own."""
SHARED = 15
"""Shapes in common below which the fits are compared instead of the times."""
FAR, NEAR = np.log(1.5), np.log(1.25)
"""A release is off its fast path where its times are further than ``FAR`` above those of an earlier and a later release
that are within ``NEAR`` of each other."""


PLAIN = "fp8"
"""Matmuls of TensorRT-LLM whose search for a scale is timed alone and taken off the rows of every release."""
PULL = 1.0
"""How strongly a factor on a constant is held to 1: one e away costs as much as one row does."""
REACH = np.log(8.0)
"""The largest factor on a constant."""


class Key(NamedTuple):
    """One kernel of one release on one device."""

    gpu: str
    engine: str
    version: str
    group: Group
    source: str


Timed = dict[Key, list[Measurement]]


def read_releases(folder: Path) -> tuple[Timed, Counter[str]]:
    """Rows by kernel of the tables by release in ``folder``, and what was skipped, by reason.

    Kernels that were launched from the host, shapes faster than the roofline and kernels with too few rows are left out
    by :func:`usable`.
    """
    found: Timed = defaultdict(list)
    skipped: Counter[str] = Counter()
    for file, table in TABLES.items():
        path = folder / "releases" / f"{file}.csv.gz"
        if not path.is_file():
            continue
        frame = pd.read_csv(path, low_memory=False)
        for row in _records(without_scales(folder, frame) if file == "gemm" else frame):
            reason = refusal(table, row)
            if reason is not None:
                if reason:
                    skipped[f"{file}: {reason}"] += 1
                continue
            measured = measurement_of(table, row)
            key = Key(str(row.gpu), str(row.framework).lower(), str(row.version), measured.group, measured.source)
            found[key].append(measured)
    return dict(found), skipped


def _records(frame: pd.DataFrame) -> Iterator[Any]:
    yield from frame.itertuples(index=False)


def usable(rows: Iterable[Measurement], hardware: HardwareSpec) -> list[Measurement]:
    """The rows that a fit may see; none where there are too few or all were launched from the host."""
    rows = [m for m in rows if not falls_back(m.op)]
    if not rows:
        return []
    collective = rows[0].op.kernel.startswith("collective")
    if len(rows) < (FEWEST_COLLECTIVE if collective else FEWEST) or min(m.seconds for m in rows) > EAGER:
        return []
    return [m for m in rows if m.seconds > roofline_seconds(m, hardware)]


def _times(rows: Iterable[Measurement]) -> dict[str, float]:
    """Mean logarithm of the seconds of each shape."""
    shapes: dict[str, list[float]] = defaultdict(list)
    for m in rows:
        shapes[shape_of(m.op) + "".join(shape_of(op) for op in m.rest[:1])].append(float(np.log(m.seconds)))
    return {shape: float(np.mean(logs)) for shape, logs in shapes.items()}


def difference(rows: Iterable[Measurement], others: Iterable[Measurement]) -> tuple[float, float, int]:
    """Median of the logarithm of the ratio over shapes in common, median of its size, and how many shapes."""
    one, other = _times(rows), _times(others)
    ratios = np.array([one[shape] - other[shape] for shape in one.keys() & other.keys()])
    return (float(np.median(ratios)), float(np.median(abs(ratios))), len(ratios)) if len(ratios) else (0.0, 0.0, 0)


def _ordered(versions: Iterable[str]) -> list[str]:
    return sorted(versions, key=lambda name: release_order(name) or ((), 0, 0))


def off_the_fast_path(kernels: Mapping[str, list[Measurement]]) -> list[str]:
    """Releases of one kernel that stand out between releases that agree, newest first."""
    names, found = _ordered(kernels), []
    for index, name in enumerate(names):
        for before in names[:index]:
            for after in names[index + 1 :]:
                slower = [difference(kernels[name], kernels[other]) for other in (before, after)]
                agree = difference(kernels[before], kernels[after])
                if min(s[0] for s in slower) > FAR and agree[2] >= SHARED and agree[1] < NEAR:
                    found.append(name)
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Context:
    """The device whose releases are fitted, and what prices the other operators of a measurement."""

    hardware: HardwareSpec
    rest: Calibration


def _fit(rows: list[Measurement], given: Context) -> Fit | None:
    """The constants of one kernel with its held-out error."""
    constants, _, _ = fit_all(rows, given.hardware, rest=given.rest)
    return next((fit for formats in constants.values() for fit in formats.values()), None)


def _usual(kernels: Mapping[str, list[Measurement]], hardware: HardwareSpec) -> list[str]:
    """Sources of one release and format, the one nearest to the roofline first (:mod:`tools.fitting.tables.choose`)."""

    def distance(source: str) -> float:
        return float(np.mean([np.log(m.seconds / roofline_seconds(m, hardware)) for m in kernels[source]]))

    return sorted(kernels, key=distance)


def fitted_releases(timed: Timed, hardware: HardwareSpec, calibration: Calibration) -> Releases:
    """The releases of one device beside the constants on file, ``calibration``: kernels of the newest release that are
    not the usual one, and of earlier releases whatever differs."""
    kept = {key: rows for key, given in timed.items() if key.gpu == hardware.name and (rows := usable(given, hardware))}
    by_format: dict[tuple[str, Group], dict[str, dict[str, list[Measurement]]]] = defaultdict(lambda: defaultdict(dict))
    for key, rows in kept.items():
        by_format[key.engine, key.group][key.version][key.source] = rows
    newest = {
        engine: _ordered({key.version for key in kept if key.engine == engine})[-1]
        for engine in ENGINES
        if any(key.engine == engine for key in kept)
    }
    given = Context(hardware, rest_calibration(calibration.constants[VECTOR[0]][ANY]))
    engines: dict[str, dict[str, Release]] = defaultdict(lambda: defaultdict(Release))
    dropped: dict[str, list[str]] = {}
    for (engine, group), versions in sorted(by_format.items()):
        if engine == "trtllm" and group[0] == KERNEL and group[1] not in (WIDE, PLAIN):
            continue  # its tables time the quantisation with them; those on file are the fastest library's
        order = {version: _usual(sources, hardware) for version, sources in versions.items()}
        usual = {version: versions[version][order[version][0]] for version in versions}
        slow = off_the_fast_path(usual)
        if slow:
            dropped[f"{engine} {'/'.join(group)}"] = slow
        on_file = calibration.libraries.get(engine, {}).get(group[0], {}).get(group[1])
        for version in _ordered(set(versions) - set(slow)):
            fits: dict[str, Fit | None] = {}
            if on_file is not None and version == newest[engine]:
                named = calibration.provenance.get("kernels", {}).get(engine, {}).get("/".join(group), "")
                fits = {source: None for source in order[version] if source in named}
            elif on_file is not None:
                own = _own(usual[version], usual.get(newest[engine]), on_file, given)
                fits[order[version][0]] = own
                if own is None:
                    engines[engine][version].same.setdefault(group[0], []).append(group[1])
            fits |= {name: _fit(versions[version][name], given) for name in order[version] if name not in fits}
            found = {name: fit for name, fit in fits.items() if fit is not None}
            if found:
                engines[engine][version].kernels.setdefault(group[0], {})[group[1]] = found
    return Releases(
        name=hardware.name,
        share=SHARE,
        newest=newest,
        engines={name: dict(found) for name, found in engines.items()},
        provenance={"off_the_fast_path": dropped} if dropped else {},
    )


def _own(rows: list[Measurement], newest: list[Measurement] | None, on_file: Fit, given: Context) -> Fit | None:
    """A release's own constants where its times differ and they are that much nearer to them than those on file.

    Both by more than ``SHARE``: the times at shapes in common (unless there are too few), the median error on the rows.
    """
    if newest:
        _, size, shared = difference(rows, newest)
        if shared >= SHARED and size <= SHARE:
            return None
    train, test = split(rows)
    terms = tuple(on_file.terms)
    held_out = stack(test, given.hardware, terms, given.rest)
    fit = changed(on_file, stack(train, given.hardware, terms, given.rest))
    figures = stack_errors(held_out, fit)
    now = stack_errors(held_out, on_file)["median"]
    return fit.model_copy(update={"error": figures}) if now - figures["median"] > SHARE else None


def changed(on_file: Fit, stacked: Stack) -> Fit:
    """``on_file`` with its two efficiencies, its fixed part and its further terms each multiplied by one factor.

    Soft-L1 least squares on the logarithm of predicted over measured, every factor held to 1. The rows of a release are
    too few to tell a dozen constants apart: fitted anew, the largest shapes came out a third too slow.
    """
    measured = np.log(stacked.seconds)

    def moved(x: Array) -> Fit:
        math, memory, fixed, terms = (float(value) for value in np.exp(x))
        update = {"math": min(1.0, on_file.math * math), "memory": min(1.0, on_file.memory * memory)}
        further = {name: value * terms for name, value in on_file.terms.items()}
        return on_file.model_copy(update=update | {"overhead": on_file.overhead * fixed, "terms": further})

    def residuals(x: Array) -> Array:
        return np.concatenate([np.log(stacked.predict(moved(x))) - measured, PULL * x])

    found = least_squares(residuals, np.zeros(4), bounds=(-REACH, REACH), loss="soft_l1", f_scale=0.1)
    fit = moved(found.x)
    update: dict[str, Any] = {name: _rounded(getattr(fit, name)) for name in ("math", "memory", "overhead")}
    update["terms"] = {name: _rounded(value) for name, value in fit.terms.items()}
    return fit.model_copy(update=update | {"n": len(stacked.seconds)})


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
