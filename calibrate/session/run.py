"""One pass over a device: ceilings, collectives, operators in rounds, whole models, each into the raw file at once.

What comes next follows from what has been measured, never from chance or from how often a run was begun: a run that is
killed and resumed measures what it would have measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

import numpy as np

from calibrate.device.device import Device
from calibrate.device.measurer import Measurer
from calibrate.kernels.choice import first_line
from calibrate.samples import StepSample, key_of
from calibrate.session.attempts import TRIES, Attempts
from calibrate.session.hardware import hardware_of
from calibrate.session.raw_file import RawFile, Session
from calibrate.session.settings import LONGEST_STEP, SLACK, WARM_UP, Budget, Progress, Settings
from calibrate.session.steps import price_step
from calibrate.shapes import (
    PLAIN,
    UNFUSED,
    Group,
    candidates,
    choose,
    group_of,
    importance,
    operand_bytes,
)
from inferplan import __version__
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import InferplanError, MissingFactError, UsageError
from inferplan.estimate.roofline import price
from inferplan.work.formats import find_format
from inferplan.work.ops import Op

T = TypeVar("T")


class Run:
    """One pass over a device: what is measured goes into the raw file, within the budget.

    A run that was cut short goes on with what is left of its budget; one that finished is given all of it again.
    """

    def __init__(self, measurer: Measurer, raw: RawFile, settings: Settings, progress: Progress) -> None:
        self.measurer, self.raw, self.settings, self.progress = measurer, raw, settings, progress
        self.session = raw.session
        self.budget = Budget(measurer, replace(settings, spent=settings.spent + self.session.spent))
        self.design = settings.design_on(measurer.device.kind)
        self.attempts = Attempts(measurer, raw)
        self._refusals: dict[tuple[str, Group], str | None] = {}
        self._short: Counter[str] = Counter()

    def measure(self) -> None:
        """Everything there is to measure. What is in the raw file already is not begun again, only repeated.

        Raises ``DeviceLostError`` when the device answers no more, ``UsageError`` when the file is of another device or
        other software.
        """
        settings, measurer = self.settings, self.measurer
        self.attempts.attempt(lambda: "warm-up", "the warm-up", lambda: measurer.prepare(WARM_UP * settings.budget))
        _require_same_device(self.session, measurer.device)
        self.raw.clock = lambda: settings.budget - self.budget.left
        self.raw.add(
            "provenance",
            device=measurer.device.record(),
            date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            inferplan=__version__,
            budget=settings.budget,
            seed=settings.seed,
            models=self.design.own_names,
        )
        self.progress("ceilings", 0.0)
        if "ceilings" not in self.session.done:
            self.attempts.attempt(lambda: "ceilings", "the ceilings", self.ceilings)
        hardware, _ = hardware_of(measurer.device, self.session, settings.gpu)
        self.design = self.design.on(hardware)
        reserve = 5.0 + 0.05 * settings.budget
        if settings.quick:
            self.operators(hardware, reserve)
        else:
            self.collectives()
            self.operators(hardware, reserve + 0.18 * settings.budget)
            self.steps(hardware, reserve)
        self._note_passed_over()
        self.raw.add("finished")

    def _note_passed_over(self) -> None:
        for what, why in self.measurer.passed_over().items():
            if self.session.passed_over.get(what) != why:
                self.raw.add("passed_over", what=what, why=why)

    def _say(self, what: str) -> None:
        self.progress(what, 1.0 - max(self.budget.left, 0.0) / self.settings.budget)

    def ceilings(self) -> None:
        """Memory traffic and matmuls, at their fastest."""
        for name, rate in self.measurer.ceilings(0.06 * self.settings.budget):
            self.raw.add("ceiling", name=name, value=float(f"{rate:.6g}"))
        self.attempts.require_device(lambda: "ceilings", "the ceilings")
        self.raw.add("done", what="ceilings")

    def collectives(self) -> None:
        """Between devices, or two processes; the largest message gives the link's ceiling.

        Whatever keeps a group from starting costs only that: it is noted, and tried again when the run is resumed.
        """
        self._say("collectives")
        if "collectives" in self.session.done:
            return
        link = 0.0
        try:
            for op, sample in self.measurer.collectives(0.05 * self.settings.budget):
                self.raw.add_sample(self.raw.add_shape(op), sample)
                link = max(link, float(op.work().wire) / sample.seconds)
        except Exception as error:  # what a library that starts processes raises has no common type
            self.attempts.require_device(lambda: "collectives", "the collectives")
            self._refuse("collectives", error.what if isinstance(error, InferplanError) else first_line(error))
        else:
            if link:
                self._allow("collectives")
            self.raw.add("done", what="collectives")
        if link:
            self.raw.add("ceiling", name="link", value=float(f"{link:.6g}"))

    def _refuse(self, what: str, why: str) -> None:
        if self.session.refused.get(what) != why:
            self.raw.add("refused", what=what, why=why)

    def _allow(self, what: str) -> None:
        if what in self.session.refused:
            self.raw.add("allowed", what=what)

    def operators(self, hardware: HardwareSpec, reserve: float) -> None:
        """Rounds over every shape, each in another order, until the time for operators is over.

        A disturbance then falls on different shapes in different rounds, and a run cut short has some of each kernel.
        When the time is over before that, the most important kernel still gets shapes enough for a fit.
        """
        self._say("shapes")
        shapes = self._designed(hardware, reserve)
        number = 0
        while self.budget.left > reserve:
            ready = [op for op in self._round(shapes, number) if self._worth_trying(op)]
            if not ready:
                break
            for op in ready:
                if self.budget.left <= reserve:
                    break
                if self._visits(op) <= number and self._worth_trying(op):
                    self._visit(op)
            number += 1
        first = min(map(group_of, shapes), key=lambda group: importance(group, self.design.base), default=None)
        for op in [op for op in shapes if group_of(op) == first][:PLAIN]:
            if not self._visits(op) and self._worth_trying(op):
                self._visit(op)

    def _designed(self, hardware: HardwareSpec, reserve: float) -> list[Op]:
        """Shapes that the device has memory and the run has time for: as many as the same run began with."""
        settings, design, plan = self.settings, self.design, self.session.plan
        longest = settings.visit / SLACK
        found = [
            candidate
            for candidate in candidates(design, hardware).values()
            if operand_bytes(candidate.op) <= self.measurer.largest
            and float(price(candidate.op, hardware, UNFUSED).time) <= longest
        ]
        asked = {"budget": settings.budget, "seed": settings.seed}
        if not plan or {name: plan[name] for name in asked} != asked:
            count = int(max(0.0, self.budget.left - reserve) / (settings.rounds * 2.5 * settings.visit))
            self.raw.add("plan", count=max(count, PLAIN), **asked)
        return choose(found, self.session.plan["count"], design.base, settings.seed)

    def _round(self, things: list[T], number: int) -> list[T]:
        """The order of a round, the first as they are; what a device was lost with comes last."""
        if number == 0:
            return sorted(things, key=self._lost_before)
        order = np.random.default_rng([self.settings.seed, number]).permutation(len(things))
        return sorted((things[index] for index in order), key=self._lost_before)

    def _lost_before(self, thing: object) -> bool:
        if isinstance(thing, StepSample):
            return self.attempts.lost_before(str(thing.key))
        return isinstance(thing, Op) and (
            self.attempts.lost_before(key_of(thing)) or self.attempts.lost_before(_named(thing))
        )

    def _visits(self, op: Op) -> int:
        return len(self.session.samples.get(key_of(op), ()))

    def _worth_trying(self, op: Op) -> bool:
        return self._refusals.get(_kind(op)) is None and not self.attempts.passed_over(key_of(op))

    def _visit(self, op: Op) -> None:
        self._say(f"{op.kernel} {op.label}")
        if not self._runs_here(op):
            return
        sample = self.attempts.attempt(
            lambda: self.raw.add_shape(op),
            f"{_named(op)} ({op.work().flop:.3g} FLOP)",
            lambda: self.measurer.measure(op, self.settings.visit),
        )
        if sample is not None:
            self.raw.add_sample(self.raw.add_shape(op), sample)

    def _runs_here(self, op: Op) -> bool:
        """Whether the operator's kernel and format are right on this device: asked once, twice if memory was short."""
        kind, named = _kind(op), _named(op)
        if kind in self._refusals:
            return self._refusals[kind] is None
        why: str | None = self.session.failed.get(named) if self.attempts.passed_over(named) else None
        if why is None:
            why = self.measurer.refusal(op)
            self._note_passed_over()
            if why is not None:
                self.attempts.require_device(lambda: named, f"the check of {named}")
        if why is None:
            self._allow(named)
        else:
            self._refuse(named, why)
            self._short[named] += 1
        if why is None or "out of memory" not in why.lower() or self._short[named] >= TRIES:
            self._refusals[kind] = why
        return why is None

    def steps(self, hardware: HardwareSpec, reserve: float) -> None:
        """Whole models, in rounds as long as there is time; models that torch cannot run are refused, not skipped."""
        asked = list(self._priced(self.measurer.steps(self.design.own), hardware))
        number, done = 0, False
        while not done and self.budget.left > reserve:
            done = True
            for step in self._round(asked, number):
                if self.budget.left <= reserve:
                    break
                if step.model in self.session.refused or self.attempts.passed_over(str(step.key)):
                    continue
                done = False
                if len(self.session.steps.get(step.key, ())) <= number:
                    self._step(step)
            number += 1

    def _priced(self, asked: Iterable[StepSample], hardware: HardwareSpec) -> Iterable[StepSample]:
        """The steps in formats that the hardware has a peak for, as there is no prediction to compare others with; and
        that the run has time for."""
        longest = LONGEST_STEP * self.settings.budget
        for step in asked:
            if find_format(step.format).math not in hardware.peak:
                self._refuse(f"{step.model} in {step.format}", f"{hardware.name} has no {step.format} arithmetic")
            elif (least := float(price_step(step, hardware, UNFUSED).time)) > longest:
                self._refuse(
                    f"{step.model}, {step.batch} x {step.new} tokens after {step.past}",
                    f"it takes {least:.2g} s at least, more than {longest:.2g} s: a longer --budget",
                )
            else:
                yield step

    def _step(self, step: StepSample) -> None:
        doing = f"{step.model} {'prefill' if step.new > 1 else 'decode'} batch {step.batch}"
        self._say(doing)

        def timed() -> StepSample | None:
            try:
                return self.measurer.step(step)
            except MissingFactError as error:
                self._refuse(step.model, error.what)
                return None

        found = self.attempts.attempt(lambda: str(step.key), doing, timed)
        if found is not None:
            self.raw.add_step(found)


def _kind(op: Op) -> tuple[str, Group]:
    return type(op).__name__, group_of(op)


def _named(op: Op) -> str:
    return " ".join(group_of(op))


def _require_same_device(session: Session, device: Device) -> None:
    """Raise ``UsageError`` when a raw file was measured on another device, or with other software than now."""
    for record in session.provenance:
        then, now = record["device"], device.record()
        for name in ("kind", "name", "units"):
            if then[name] != now[name]:
                raise UsageError(
                    f"the measurements to resume are of {then['name']} ({then['units']} units)",
                    because=f"this is {device.name} ({device.units} units)",
                    hint="another --raw, or run it there",
                )
        before = then["software"] | {"inferplan": record["inferplan"]}
        after = device.software | {"inferplan": __version__}
        other = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
        if other:
            raise UsageError(
                f"the measurements to resume were made with {_told(before, other)}",
                because=f"this is {_told(after, other)}, and one set of constants cannot stand for both",
                hint="start anew with another --raw,\nor install those versions again to go on with this one",
            )


def _told(software: dict[str, str], names: list[str]) -> str:
    return ", ".join(f"{name} {software.get(name, 'unknown')}" for name in names)
