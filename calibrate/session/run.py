"""One pass over a device: ceilings, collectives, operators in rounds, whole models, each into the raw file at once."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from calibrate.device.device import Device
from calibrate.device.measurer import Measurer
from calibrate.samples import StepSample, key_of
from calibrate.session.hardware import hardware_of
from calibrate.session.raw_file import RawFile, Session
from calibrate.session.settings import SLACK, Budget, Progress, Settings
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
from inferplan.errors import MissingFactError, UsageError
from inferplan.estimate.roofline import price
from inferplan.work.ops import Op


class Run:
    """One pass over a device: what is measured goes into the raw file, within the budget."""

    def __init__(self, measurer: Measurer, raw: RawFile, settings: Settings, progress: Progress) -> None:
        self.measurer, self.raw, self.settings, self.progress = measurer, raw, settings, progress
        self.session, self.budget = raw.session, Budget(measurer, settings)
        self.design = settings.design_on(measurer.device.kind)

    def measure(self) -> None:
        """Everything there is to measure. What is in the raw file already is not begun again, only repeated."""
        settings, measurer = self.settings, self.measurer
        _require_same_device(self.session, measurer.device)
        self.raw.add(
            "provenance",
            device=measurer.device.record(),
            date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            inferplan=__version__,
            budget=settings.budget,
            seed=settings.seed,
        )
        self.progress("ceilings", 0.0)
        if not any(name.startswith("matmul.") for name in self.session.ceilings):
            for name, rate in measurer.ceilings(0.06 * settings.budget):
                self.raw.add("ceiling", name=name, value=float(f"{rate:.6g}"))
        hardware, _ = hardware_of(measurer.device, self.session, settings.gpu)
        self.design = self.design.on(hardware)
        reserve = 5.0 + 0.05 * settings.budget
        if settings.quick:
            self.operators(hardware, reserve)
        else:
            self.collectives()
            self.operators(hardware, reserve + 0.18 * settings.budget)
            self.steps(reserve)
        self.raw.add("finished")

    def _say(self, what: str) -> None:
        self.progress(what, 1.0 - max(self.budget.left, 0.0) / self.settings.budget)

    def collectives(self) -> None:
        """Between devices, or two processes; the largest message gives the link's ceiling."""
        self._say("collectives")
        if "link" in self.session.ceilings:
            return
        link = 0.0
        for op, sample in self.measurer.collectives(0.05 * self.settings.budget):
            self.raw.add_sample(self.raw.add_shape(op), sample)
            link = max(link, float(op.work().wire) / sample.seconds)
        if link:
            self.raw.add("ceiling", name="link", value=float(f"{link:.6g}"))

    def operators(self, hardware: HardwareSpec, reserve: float) -> None:
        """Rounds over every shape, each in another order, until the time for operators is over.

        A disturbance then falls on different shapes in different rounds, and a run cut short has some of each kernel.
        When the time is over before that, the most important kernel still gets shapes enough for a fit.
        """
        self._say("shapes")
        shapes = self._designed(hardware, reserve)
        order = list(shapes)
        chance = np.random.default_rng(self.settings.seed + len(self.session.provenance))
        refusals: dict[tuple[str, Group], str | None] = {}
        while self.budget.left > reserve and order:
            for op in order:
                if self.budget.left <= reserve:
                    break
                self._visit(op, refusals)
            order = [op for op in order if key_of(op) in self.session.samples]
            order = [order[index] for index in chance.permutation(len(order))]
        first = min(map(group_of, shapes), key=lambda group: importance(group, self.design.base), default=None)
        for op in [op for op in shapes if group_of(op) == first][:PLAIN]:
            if key_of(op) not in self.session.samples:
                self._visit(op, refusals)

    def _designed(self, hardware: HardwareSpec, reserve: float) -> list[Op]:
        """Shapes that the device has memory and the run has time for."""
        settings, design = self.settings, self.design
        longest = settings.visit / SLACK
        found = [
            candidate
            for candidate in candidates(design, hardware).values()
            if operand_bytes(candidate.op) <= self.measurer.largest
            and float(price(candidate.op, hardware, UNFUSED).time) <= longest
        ]
        count = int(max(0.0, self.budget.left - reserve) / (settings.rounds * 2.5 * settings.visit))
        return choose(found, max(count, PLAIN), design.base, settings.seed)

    def _visit(self, op: Op, refusals: dict[tuple[str, Group], str | None]) -> None:
        kind = (type(op).__name__, group_of(op))
        if kind not in refusals:
            refusals[kind] = self.measurer.refusal(op)
            if refusals[kind] is not None:
                self.raw.add("refused", what=f"{group_of(op)[0]} {group_of(op)[1]}", why=refusals[kind])
        if refusals[kind] is not None or key_of(op) in self.session.failed:
            return
        self._say(f"{op.kernel} {op.label}")
        try:
            sample = self.measurer.measure(op, self.settings.visit)
        except MemoryError as error:
            self.raw.add("failed", key=self.raw.add_shape(op), why=f"out of memory: {error}")
        except RuntimeError as error:
            self.raw.add("failed", key=self.raw.add_shape(op), why=str(error).splitlines()[0])
        else:
            self.raw.add_sample(self.raw.add_shape(op), sample)

    def steps(self, reserve: float) -> None:
        """Whole models, in rounds as long as there is time; models that torch cannot run are refused, not skipped."""
        asked = self.measurer.steps()
        done = False
        while not done and self.budget.left > reserve:
            before = sum(map(len, self.session.steps.values()))
            for step in asked:
                if self.budget.left <= reserve:
                    break
                if step.model not in self.session.refused and str(step.key) not in self.session.failed:
                    self._step(step)
            done = sum(map(len, self.session.steps.values())) == before

    def _step(self, step: StepSample) -> None:
        self._say(f"{step.model} {'prefill' if step.new > 1 else 'decode'} batch {step.batch}")
        try:
            self.raw.add_step(self.measurer.step(step))
        except MissingFactError as error:
            self.raw.add("refused", what=step.model, why=error.what)
        except MemoryError as error:
            self.raw.add("failed", key=str(step.key), why=f"out of memory: {error}")
        except RuntimeError as error:
            self.raw.add("failed", key=str(step.key), why=str(error).splitlines()[0])


def _require_same_device(session: Session, device: Device) -> None:
    """Raise ``UsageError`` when a raw file was measured on another device or with other software."""
    for record in session.provenance:
        then, now = record["device"], device.record()
        for name in ("kind", "name", "units"):
            if then[name] != now[name]:
                raise UsageError(
                    f"the measurements to resume are of {then['name']} ({then['units']} units)",
                    because=f"this is {device.name} ({device.units} units)",
                    hint="another --raw, or run it there",
                )
