"""Kernels that a benchmark timed off their fast path, found beside their neighbours, and what stands in for them.

vLLM 0.24's experts in plain fp8 took 3.2 to 3.5 times as long on Hopper as those of 0.19 at the same shapes, a sixth of
the memory's bandwidth where every neighbour reached half of it: constants of such rows make a device three times too
slow, and every device that they are carried to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from calibrate.fit import Group, Measurement
from inferplan.devices.hardware import HardwareSpec
from inferplan.estimate.roofline import ideal_time
from inferplan.units import Array
from tools.fitting.tables.choose import ENGINES, DeviceTables, Pool, chosen

GUARDED = ("matmul", "grouped_matmul", "mla.decode", "mla.prefill")
"""Kernels whose shapes are much the same for all formats. Attention's are not: few rows of a head size are large."""
FASTER = 2.0
"""A kernel is refused that reaches less than one part in so many of what its neighbours reach in the median."""
ROWS = 20
"""Rows bound by memory, or by arithmetic, below which nothing is said of them."""
Reached = tuple[float, float]
"""Shares of the bandwidth and of the peak."""
Older = Callable[[str, str, Group], Iterator[tuple[str, str, list[Measurement]]]]
"""Of a GPU, library and group: release, kernel and rows of each older release, the newest first."""


def reached(rows: Sequence[Measurement], hardware: HardwareSpec) -> Reached:
    """What share of the memory's bandwidth, and of the peak, the kernel reaches: the median over the larger half of the
    rows which each binds; ``nan`` where that are too few to say."""
    asked: Array = np.array([_asked(measurement, hardware) for measurement in rows])
    seconds = np.array([measurement.seconds for measurement in rows])
    math, memory = asked.T
    return _share(memory, seconds, memory > math), _share(math, seconds, math >= memory)


def _asked(measurement: Measurement, hardware: HardwareSpec) -> tuple[float, float]:
    """Seconds of arithmetic and of memory traffic at the datasheet's rates."""
    kernel = measurement.op.kernel
    ops = (measurement.op, *(op for op in measurement.rest if op.kernel == kernel))
    times = [ideal_time(op, op.work(), hardware) for op in ops]
    return sum(float(time.math) for time in times), sum(float(time.memory) for time in times)


def _share(ideal: Array, seconds: Array, bound: Array) -> float:
    if np.sum(bound) < ROWS:
        return float("nan")
    large = bound & (ideal >= np.median(ideal[bound]))
    return float(np.median(ideal[large] / seconds[large]))


def behind(own: Reached, beside: Sequence[Reached]) -> float:
    """How many times as much the neighbours reach in the median, of the memory or of the arithmetic."""
    ratios = [1.0]
    for share, others in zip(own, zip(*beside)):
        known = [other / share for other in others if np.isfinite(other / share)]
        ratios += [float(np.median(known))] if known else []
    return max(ratios)


def neighbours(library: str, group: Group, shares: dict[tuple[str, Group], Reached]) -> list[Reached]:
    """The same kernel in the same format of other libraries, and in other formats of the same library."""
    return [
        share
        for (other, (kernel, label)), share in shares.items()
        if kernel == group[0] and ((other != library and label == group[1]) or (other == library and label != group[1]))
    ]


def guarded(device: DeviceTables, older: Older) -> tuple[DeviceTables, list[str]]:
    """The rows of a device without kernels that are more than :data:`FASTER` times behind their neighbours, and what
    was refused. Rows of the newest older release that is not stand in; without one a neighbour's kernel is borrowed.
    """
    libraries: dict[str, Pool] = {name: dict(pool) for name, pool in device.libraries.items()}
    sources = {name: dict(kernels) for name, kernels in device.sources.items()}
    groups = [(name, group) for name in ENGINES for group in libraries.get(name, {}) if group[0] in GUARDED]
    shares = {(name, group): reached(libraries[name][group], device.hardware) for name, group in groups}
    notes: dict[tuple[str, Group], str] = {}
    for name, group in groups:
        beside = neighbours(name, group, shares)
        times = behind(shares[name, group], beside)
        if times <= FASTER:
            continue
        where = "/".join(group)
        refused = (
            f"{sources[name][where]} reaches {_percent(shares[name, group])}, {times:.1f} times behind its neighbours"
        )
        del libraries[name][group], sources[name][where]
        for release, kernel, rows in older(device.hardware.name, name, group):
            kept = chosen(rows, device.hardware)
            if kept and behind(reached(kept, device.hardware), beside) <= FASTER:
                libraries[name][group], sources[name][where] = kept, f"{kernel} of {release}"
                notes[name, group] = f"{kernel} of {name} {release}: the newest, {refused}"
                break
        else:
            notes[name, group] = f"none, so a neighbour's: {refused}"
    found = [f"{device.hardware.name}: {name} {'/'.join(group)}: {note}" for (name, group), note in notes.items()]
    return replace(device, libraries=libraries, sources=sources, refused=notes), found


def _percent(share: Reached) -> str:
    called = zip(share, ("of the bandwidth", "of the peak"))
    return " and ".join(f"{value:.0%} {what}" for value, what in called if np.isfinite(value))
