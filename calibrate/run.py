"""A calibration from end to end: ceilings, operators in rounds, whole models, fit; and the check of a stored one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from calibrate.device import Device, as_hardware, match, measured_hardware
from calibrate.fit import TERMS_OF, Measurement, errors, fit_kernel, split
from calibrate.measure import Measurer, ceilings_of
from calibrate.record import QUIET, RawFile, Session, StepSample, key_of
from calibrate.shapes import (
    CPU,
    GPU,
    PLAIN,
    UNFUSED,
    Design,
    Group,
    candidates,
    choose,
    find_model,
    group_of,
    importance,
    operand_bytes,
)
from calibrate.whole import GRAPH, shortened
from inferplan import __version__
from inferplan.catalog.assemble import load_engine
from inferplan.catalog.files import load_hardware
from inferplan.devices.constants import Calibration, Fit
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import MissingFactError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import Phase, run_step
from inferplan.estimate.roofline import price
from inferplan.work.formats import uniform
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment, Step

Progress = Callable[[str, float], None]
HELD_OUT = 0.25
QUICK = 60.0
"""Seconds below which a run leaves out whole models, collectives and further terms."""
FOLDS = 3
MORE_TERMS = {"attention.prefill": ("padding",)}
"""Terms of torch's kernels beside those that kernel libraries showed."""
SLACK = 5.0
"""A visit takes this many times the roofline of its shape at least: shapes that would take longer are left out."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run may spend and where it begins.

    budget: wall seconds of the whole run. spent: seconds gone before it began (imports). gpu: the catalogue entry that
    the device is, whatever it calls itself. tolerance: largest median error of a kernel that ``check`` accepts.
    """

    budget: float
    spent: float = 0.0
    seed: int = 0
    gpu: str | None = None
    tolerance: float = 0.2
    design: Design | None = None

    @property
    def quick(self) -> bool:
        return self.budget < QUICK

    @property
    def rounds(self) -> int:
        """How often every shape is visited at least, when all goes to plan."""
        return 3 if self.quick else 5

    @property
    def visit(self) -> float:
        """Seconds of laps in one visit."""
        return 0.015 if self.quick else 0.04


class Budget:
    """A deadline on the measurer's own clock."""

    def __init__(self, measurer: Measurer, settings: Settings) -> None:
        self._clock = measurer.clock
        self._end = measurer.clock() - settings.spent + settings.budget

    @property
    def left(self) -> float:
        return self._end - self._clock()


def hardware_of(device: Device, session: Session, gpu: str | None) -> tuple[HardwareSpec, dict[str, Any] | None]:
    """The hardware to compare with: the catalogue's, or what the measured ceilings describe (and its mapping)."""
    found = load_hardware(gpu) if gpu else match(device)
    if found is not None:
        return found, None
    data = measured_hardware(device, ceilings_of(session.ceilings), _today())
    return as_hardware(data), data


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


class Run:
    """One pass over a device: what is measured goes into the raw file, within the budget."""

    def __init__(self, measurer: Measurer, raw: RawFile, settings: Settings, progress: Progress) -> None:
        self.measurer, self.raw, self.settings, self.progress = measurer, raw, settings, progress
        self.session, self.budget = raw.session, Budget(measurer, settings)

    @property
    def design(self) -> Design:
        """The graphs that shapes come from."""
        return self.settings.design or (GPU if self.measurer.device.kind == "cuda" else CPU)

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
            op
            for op in candidates(design, hardware).values()
            if operand_bytes(op) <= self.measurer.largest and float(price(op, hardware, UNFUSED).time) <= longest
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


def measurements(session: Session) -> tuple[list[Measurement], int]:
    """One measurement a shape, and how many shapes are left out because other programs disturbed all visits but one.

    Disturbed shapes stay when their kernel would have fewer than eight without them.
    """
    groups: dict[Group, list[tuple[bool, Measurement]]] = defaultdict(list)
    for key, samples in session.samples.items():
        calm = sum(sample.waited <= QUIET for sample in samples) >= min(2, len(samples))
        measured = Measurement(op=session.shapes[key], seconds=session.seconds(key), source=key)
        groups[measured.group].append((calm, measured))
    kept: list[Measurement] = []
    for rows in groups.values():
        calm_rows = [measured for calm, measured in rows if calm]
        kept += calm_rows if len(calm_rows) >= 8 else [measured for _, measured in rows]
    return kept, sum(map(len, groups.values())) - len(kept)


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
        return float(price(op, self.hardware, self.calibration).time)


def fit(session: Session, device: Device, settings: Settings) -> Outcome:
    """Constants of every kernel and format with shapes enough, on three quarters of them; errors on the others.

    Raises ``MissingFactError`` when nothing could be fitted.
    """
    hardware, data = hardware_of(device, session, settings.gpu)
    rows, disturbed = measurements(session)
    groups: dict[Group, list[Measurement]] = defaultdict(list)
    for measured in rows:
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
            because=f"{len(rows)} shapes of {len(groups)} kernels; a fit needs five of one",
            hint="a longer --budget, or --resume",
        )
    calibration = Calibration(
        name=hardware.name,
        provenance=_provenance(session, settings, data, disturbed),
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


def _provenance(session: Session, settings: Settings, data: dict[str, Any] | None, disturbed: int) -> dict[str, Any]:
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
        "shapes_disturbed": disturbed,
        "seed": settings.seed,
        "ceilings": {name: float(f"{rate:.4g}") for name, rate in sorted(session.ceilings.items())},
        "kernels": _kernels(session),
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


# Whole models


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One step of a whole model, predicted and measured [s]; the share of it that no constants stand behind."""

    step: StepSample
    measured: float
    predicted: float
    uncalibrated: float
    disturbed: bool
    """Other programs held a core during every repeat."""

    @property
    def off(self) -> float:
        return self.predicted / self.measured - 1.0


def step_rows(outcome: Outcome) -> list[StepRow]:
    """Every whole-model step against the price of the same model's graph. Nothing is fitted to these."""
    rows = []
    host = _host_seconds(outcome.session)
    for samples in outcome.session.steps.values():
        calm = [s for s in samples if s.waited <= QUIET]
        step, measured = samples[0], float(np.median([s.seconds for s in calm or samples]))
        phase = predict(step, outcome)
        predicted = float(phase.time)
        if step.mode != GRAPH and host:
            predicted = max(predicted, sum(host.get(c.op.kernel, 0.0) * float(c.op.count) for c in phase.costs))
        shares = phase.by_basis()
        rows.append(
            StepRow(
                step=step,
                measured=measured,
                predicted=predicted,
                uncalibrated=shares.get("roofline", 0.0),
                disturbed=not calm,
            )
        )
    return rows


def predict(step: StepSample, outcome: Outcome) -> Phase:
    """The price of a step, through the graph and the estimate that every command uses."""
    deployment = Deployment(
        model=shortened(find_model(step.model), step.layers),
        hardware=outcome.hardware,
        precision=uniform(step.format),
        parallel=Parallelism(),
        engine=load_engine("none"),
        calibration=outcome.calibration,
    )
    segment = Segment(batch=float(step.batch), new=float(step.new), past=float(step.past))
    return run_step(deployment, Step(segments=(segment,)))


def _host_seconds(session: Session) -> dict[str, float]:
    """Seconds the host needs to launch each kernel, where a device runs behind it."""
    table: dict[str, list[float]] = defaultdict(list)
    for key, samples in session.samples.items():
        table[session.shapes[key].kernel] += [s.host for s in samples if s.host is not None]
    return {kernel: float(np.median(seconds)) for kernel, seconds in table.items() if seconds}


def pooled(outcome: Outcome) -> dict[str, tuple[float, int]]:
    """Median held-out error of matmuls and of attention, whatever the format, and over how many shapes."""
    off: dict[str, list[float]] = defaultdict(list)
    for measured in outcome.test:
        kernel = measured.op.kernel.split(".")[0]
        off[kernel].append(abs(outcome.predicted(measured.op) / measured.seconds - 1.0))
    return {
        kernel: (float(np.median(off[kernel])), len(off[kernel])) for kernel in ("matmul", "attention") if off[kernel]
    }
