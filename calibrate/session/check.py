"""Stored constants against what the device does now: a sample of shapes repeated, nothing fitted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrate.designs import Design
from calibrate.device.measurer import Measurer
from calibrate.kernels.choice import first_line
from calibrate.samples import Sample, key_of
from calibrate.session.attempts import DeviceLostError
from calibrate.session.hardware import hardware_behind
from calibrate.session.settings import SLACK, WARM_UP, Budget, Progress, Settings
from calibrate.shapes import Candidate, Group, candidates, choose, group_of, operand_bytes
from inferplan.devices.constants import Calibration
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import MissingFactError
from inferplan.estimate.roofline import price
from inferplan.work.ops import Op

SHAPES = 8
"""Shapes of each kernel and format that a check repeats."""
NOT_REPEATED = "no shape that a check repeats is inside its range"
"""Of a collective, too: a check starts no group of devices."""
KEPT_BACK = 0.05
"""Share of the budget that is left when the last visit begins."""


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    """One kernel and format: how far the stored constants are off on what the device does now.

    median: of |predicted/measured - 1| over ``shapes`` shapes. bias: the mean of predicted/measured - 1. within: the
    median is at most the tolerance. disturbed: shapes of which other work disturbed every repeat.
    """

    kernel: str
    label: str
    shapes: int
    median: float
    bias: float
    within: bool
    disturbed: int = 0


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a check found. unchecked: why the other stored kernels and formats were not repeated."""

    rows: list[CheckRow]
    unchecked: Mapping[Group, str]


def check(measurer: Measurer, stored: Calibration, settings: Settings, progress: Progress) -> Checked:
    """Repeat a sample of shapes inside the fitted range and compare with the stored constants; nothing is fitted.

    Every kernel and format is visited once even when the budget is over before that. Raises ``MissingFactError`` when
    none of them can be measured here, ``DeviceLostError`` when the device answers no more.
    """
    repeats = Repeats(measurer, settings, progress)
    repeats.warm_up()
    hardware = hardware_behind(stored, measurer.device, settings.gpu)
    design = settings.design_on(measurer.device.kind).on(hardware)
    inside = _inside(measurer, stored, hardware, settings, design)
    chosen = choose(
        inside, SHAPES * len({group_of(candidate.op) for candidate in inside}), design.base, settings.seed + 1
    )
    repeats.run(chosen)
    groups: dict[Group, list[float]] = defaultdict(list)
    lost: Counter[Group] = Counter()
    for op in chosen:
        seconds = repeats.seconds.get(key_of(op))
        if seconds:
            predicted = float(price(op, hardware, stored).time)
            groups[group_of(op)].append(predicted / float(np.median(seconds)) - 1.0)
            lost[group_of(op)] += key_of(op) in repeats.disturbed
    if not groups:
        raise MissingFactError(
            "none of the stored kernels can be measured here",
            because="; ".join(sorted(set(repeats.failures.values()))) or "no shape is inside their range",
            hint="run the calibration itself",
        )
    rows = (_row(group, off, settings.tolerance) for group, off in sorted(groups.items()))
    return Checked(
        rows=[replace(row, disturbed=lost[row.kernel, row.label]) for row in rows],
        unchecked={
            (kernel, label): repeats.failures.get((kernel, label), NOT_REPEATED)
            for kernel, formats in stored.constants.items()
            for label in formats
            if (kernel, label) not in groups
        },
    )


def _row(group: Group, off: Sequence[float], tolerance: float) -> CheckRow:
    median = float(np.median(np.abs(off)))
    bias = float(np.mean(off))
    kernel, label = group
    return CheckRow(kernel=kernel, label=label, shapes=len(off), median=median, bias=bias, within=median <= tolerance)


def _inside(
    measurer: Measurer, stored: Calibration, hardware: HardwareSpec, settings: Settings, design: Design
) -> list[Candidate]:
    """Shapes inside the range of their stored constants, small enough for the memory and the time of a visit."""
    longest = settings.visit / SLACK
    inside = []
    for candidate in candidates(design, hardware).values():
        op = candidate.op
        fitted = stored.constants.get(op.kernel, {}).get(op.label)
        cost = price(op, hardware, stored)
        if fitted is None or operand_bytes(op) > measurer.largest or float(cost.time) > longest:
            continue
        if fitted.covers(cost.work.flop, cost.work.bytes + cost.work.wire):
            inside.append(candidate)
    return inside


class Repeats:
    """Visits to shapes of stored kernels.

    seconds: of the visits to each shape that nothing disturbed, by its key; of the first one where all were disturbed,
    whose keys are in ``disturbed``. refused: kernels and formats that cannot be measured. failures: why they cannot,
    and why a shape of another could not.
    """

    def __init__(self, measurer: Measurer, settings: Settings, progress: Progress) -> None:
        self.measurer, self.settings, self.progress = measurer, settings, progress
        self.budget = Budget(measurer, settings)
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.disturbed: set[str] = set()
        self.refused: set[Group] = set()
        self.failures: dict[Group, str] = {}
        self._tried: set[Group] = set()
        self._measured: set[Group] = set()

    @property
    def _over(self) -> bool:
        return self.budget.left <= KEPT_BACK * self.settings.budget

    def warm_up(self) -> None:
        """Warm the device up; one on which that fails is checked as it is. Raises ``DeviceLostError``."""
        try:
            self.measurer.prepare(WARM_UP * self.settings.budget)
        except Exception:  # too little memory, say
            self._require_device(("the", "warm-up"))

    def run(self, chosen: Sequence[Op]) -> None:
        """Rounds over the shapes until the budget is over, the first one through to a shape of every kernel."""
        ready = [op for op in chosen if self._visit(op)]
        while ready and not self._over:
            ready = [op for op in ready if self._visit(op)]

    def _visit(self, op: Op) -> bool:
        """Measure a shape once, unless the time is over and its kernel has been measured; whether it may come again."""
        group = group_of(op)
        if self._over and group in self._measured:
            return True
        if group not in self._tried:
            self._tried.add(group)
            why = self.measurer.refusal(op)
            if why is not None:
                self._require_device(group)
                self.refused.add(group)
                self.failures[group] = why
        if group in self.refused:
            return False
        self.progress(f"{op.kernel} {op.label}", 1.0 - max(self.budget.left, 0.0) / self.settings.budget)
        try:
            sample = self.measurer.measure(op, self.settings.visit)
        except Exception as failed:  # an optional library fails in any way it likes; the other shapes go on
            self._require_device(group)
            self.failures[group] = first_line(failed)
            return False
        self._keep(key_of(op), sample)
        self._measured.add(group)
        return True

    def _require_device(self, group: Group) -> None:
        """Raise ``DeviceLostError`` when the device answers no more: what is left would fail, too."""
        try:
            self.measurer.synchronize()
        except RuntimeError as error:
            raise DeviceLostError(
                f"the device was lost at {' '.join(group)}: {first_line(error)}",
                because="such an error stays until the process ends, so that no other kernel can be checked",
                hint="the same command again, which is a fresh process",
            ) from error

    def _keep(self, key: str, sample: Sample) -> None:
        """A calm visit takes the place of a disturbed one."""
        if sample.calm and key in self.disturbed:
            self.disturbed.remove(key)
            self.seconds[key].clear()
        if sample.calm or not self.seconds[key]:
            self.seconds[key].append(sample.seconds)
            self.disturbed |= set() if sample.calm else {key}
