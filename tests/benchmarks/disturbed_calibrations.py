"""Whether bands of disturbed calibrations hold the truth: ``python -m tests.benchmarks.disturbed_calibrations``.

A device of known times stands behind the measurer's interface: a CPU of two threads whose kernels follow the roofline
but for steps of whole tiles and a scatter of their own, which no constant can follow. Twenty calibrations are made on
it by the program's own run and fit, each disturbed in one of five ways at a severity of its own. Every written kernel
and format then states a band; the truth it is held to is the undisturbed time of shapes that the run did not measure.
Beside it stands the band of measured over predicted alone, without what may have been undisturbed.

``--seed`` draws other disturbances, ``--calm`` none. Two minutes of one core.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from calibrate.designs import CPU, Design, Loads
from calibrate.device.device import Device, as_hardware
from calibrate.fit import ratio_errors
from calibrate.samples import Sample, StepSample, key_of
from calibrate.session.fitting import Outcome, fit
from calibrate.session.raw_file import RawFile, read
from calibrate.session.run import Run
from calibrate.session.settings import SLACK, Settings
from calibrate.shapes import UNFUSED, Group, candidates, group_of
from inferplan.devices.constants import Calibration, Fit
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import ToleranceError
from inferplan.estimate.roofline import price
from inferplan.work.ops import Op

BUDGET = 55.0
"""Seconds of the device's own clock: a quick run, which tries no further terms."""
VISIT = 0.03
"""Seconds of that clock in a visit."""
SCATTER = 0.06
"""Standard deviation of the logarithm of a kernel's time around the roofline, shape by shape."""
TILE = 32
"""Rows of a tile: a matmul of one row more than a multiple of it takes as long as one of all rows of the next."""
NOISE = 0.02
"""Standard deviation of the logarithm of a visit that nothing disturbs."""
UNSEEN = 60
"""Shapes of a kernel and format whose truth is compared, at most."""
DESIGN = Design(
    models=CPU.models,
    tp=(1,),
    base="bf16",
    others=("fp32",),
    quantised=(),
    quantised_models=(),
    prompts=(24, 48, 96, 192, 384, 768),
    prefill_batches=(1, 4),
    decode_batches=(1, 2, 4, 8, 16, 32),
    contexts=(64, 192, 512, 1536, 4096, 12288),
    chunks=False,
    served=Loads(
        prompts=(20, 50, 120, 250, 500, 1000),
        prefill_batches=(1, 2),
        decode_batches=(1, 2, 3, 4, 6, 8, 12, 16, 24),
        contexts=(100, 300, 800, 2000, 5000),
        apart=2,
    ),
    held_out=("qwen2.5-0.5b",),
)
TRUE = Calibration(
    name="truth",
    constants={
        "matmul": {
            "bf16": Fit(math=0.7, memory=0.85, overhead=4e-6, sharpness=2.0),
            "fp32": Fit(math=0.8, memory=0.8, overhead=4e-6, sharpness=1.5),
        },
        "attention.prefill": {"any": Fit(math=0.4, memory=0.6, overhead=9e-6, sharpness=1.5)},
        "attention.decode": {"any": Fit(math=0.3, memory=0.85, overhead=7e-6, sharpness=4.0)},
        "norm": {"any": Fit(memory=0.5, overhead=5e-6, sharpness=1.0)},
        "elementwise": {"any": Fit(memory=0.6, overhead=3e-6, sharpness=1.0)},
        "copy": {"any": Fit(memory=0.6, overhead=3e-6, sharpness=1.0)},
        "gather": {"any": Fit(memory=0.4, overhead=3e-6, sharpness=1.0)},
    },
)


@cache
def machine() -> tuple[Device, HardwareSpec]:
    """The device, and its peaks as they are: a calibration sees those that it measures."""
    device = Device(
        kind="cpu", name="Known times", memory=16e9, units=2, cache=32e6, software={"torch": "none", "python": "none"}
    )
    data = {
        "name": device.slug,
        "vendor": "Known",
        "product": device.name,
        "unit": "per process of 2 threads",
        "source": "made for this benchmark",
        "confidence": "high",
        "memory": {"label": "16 GB", "bandwidth": "30 GB/s", "usable": "16 GB", "usable_basis": "made"},
        "peak": {"fp32": "100 GFLOP/s", "bf16": "200 GFLOP/s"},
        "units": 2,
        "thread_blocks": False,
    }
    return device, as_hardware(data)


def true_seconds(op: Op, seed: int) -> float:
    """The undisturbed time of an operator: its price, in whole tiles, times a scatter of its own, which is another on
    the device of each calibration (``seed``)."""
    return _steps(op) * float(np.exp(SCATTER * np.random.default_rng([int(key_of(op), 16), seed]).normal()))


@cache
def _steps(op: Op) -> float:
    m = float(getattr(op, "m", 0.0))
    return float(price(op, machine()[1], TRUE).time) * float(np.ceil(m / TILE) * TILE / m if m > TILE else 1.0)


@cache
def memory_share(op: Op) -> float:
    """The share of an operator's ideal time that its traffic takes."""
    hardware, work = machine()[1], op.work()
    math = float(work.flop) / hardware.peak["bf16"]
    moved = float(work.bytes) / hardware.memory.bandwidth
    return moved / (math + moved)


@dataclass(frozen=True, kw_only=True)
class Slowed:
    """What a disturbance makes of one visit: how many times as long it takes, and what the machine tells of it."""

    factor: float = 1.0
    waited: float = 0.0


Disturbance = Callable[[float, Op], Slowed]
"""What happens at a time of the clock [s] to an operator."""


def bursts(chance: np.random.Generator, busy: float, dwell: float) -> Callable[[float], int]:
    """Which burst of another program a time lies in, from 1 on; 0 between two. busy: its share of the time; dwell: the
    mean length of a burst [s]."""
    edges, now = [], 0.0
    while now < 2 * BUDGET:
        now += chance.exponential(dwell * (1 - busy) / busy)
        edges.append((now, now := now + chance.exponential(dwell)))
    starts = np.array([begin for begin, _ in edges])

    def burst(at: float) -> int:
        index = int(np.searchsorted(starts, at)) - 1
        return index + 1 if index >= 0 and at < edges[index][1] else 0

    return burst


def calm(chance: np.random.Generator) -> Disturbance:
    return lambda at, op: Slowed()


def busy_neighbour(chance: np.random.Generator) -> Disturbance:
    """A program that wants the cores 20 to 50 % of the time. Threads wait for them, and half of the visits find laps
    between its turns."""
    burst, slowest = bursts(chance, chance.uniform(0.2, 0.5), 4.0), chance.uniform(1.5, 4.0)

    def disturb(at: float, op: Op) -> Slowed:
        if not burst(at):
            return Slowed()
        if chance.random() < 0.5:
            return Slowed(factor=chance.uniform(1.0, 1.1))
        factor = chance.uniform(1.2, slowest)
        return Slowed(factor=factor, waited=1 - 1 / factor)

    return disturb


def memory_neighbour(chance: np.random.Generator) -> Disturbance:
    """A program on other cores that takes of the memory's bandwidth, 20 to 50 % of the time: no thread waits."""
    burst, strength = bursts(chance, chance.uniform(0.2, 0.5), 8.0), chance.uniform(1.2, 2.0, 10_000)
    return lambda at, op: Slowed(factor=strength[burst(at)] ** memory_share(op) if burst(at) else 1.0)


def falling_clock(chance: np.random.Generator) -> Disturbance:
    """The clock falls by 5 to 30 % between two times of the run, and nothing says so."""
    lost, begin = chance.uniform(0.05, 0.3), chance.uniform(0.1, 0.6) * BUDGET
    end = begin + chance.uniform(0.05, 0.4) * BUDGET

    def disturb(at: float, op: Op) -> Slowed:
        clock = 1 - lost * np.clip((at - begin) / (end - begin), 0.0, 1.0)
        return Slowed(factor=float(1 / clock) ** (1 - memory_share(op)))

    return disturb


def outliers(chance: np.random.Generator) -> Disturbance:
    """One visit in 6 to 20 takes 1.5 to 50 times as long, and nothing says why."""
    often = chance.uniform(0.05, 0.16)
    return lambda at, op: Slowed(
        factor=float(np.exp(chance.uniform(np.log(1.5), np.log(50)))) if chance.random() < often else 1.0
    )


def crowd(chance: np.random.Generator) -> Disturbance:
    """More to do than cores, most of the time: of three disturbed visits two are noticed."""
    burst, slowest = bursts(chance, chance.uniform(0.5, 0.75), 12.0), chance.uniform(1.4, 2.5)

    def disturb(at: float, op: Op) -> Slowed:
        if not burst(at):
            return Slowed()
        factor = chance.uniform(1.05, slowest)
        return Slowed(factor=factor, waited=(1 - 1 / factor) * (chance.random() < 2 / 3))

    return disturb


KINDS = {
    "busy neighbour": busy_neighbour,
    "memory neighbour": memory_neighbour,
    "falling clock": falling_clock,
    "outliers": outliers,
    "crowd": crowd,
}
EACH = 4
"""Calibrations of each kind."""


@dataclass(eq=False)
class DisturbedMeasurer:
    """The device with a disturbance on it, as a run sees it."""

    disturbance: Disturbance
    chance: np.random.Generator
    seed: int
    largest: float = 4e9
    device: Device = field(default_factory=lambda: machine()[0])
    now: float = 0.0

    def clock(self) -> float:
        return self.now

    def prepare(self, seconds: float) -> None:
        """Nothing: the first visits are as the others."""

    def synchronize(self) -> None:
        pass

    def passed_over(self) -> dict[str, str]:
        return {}

    def refusal(self, op: Op) -> str | None:
        known = TRUE.fit(op.kernel, op.label)
        return None if known is not None else "no time of it is known"

    def measure(self, op: Op, seconds: float) -> Sample:
        slowed = self.disturbance(self.now, op)
        self.now += VISIT
        took = true_seconds(op, self.seed) * slowed.factor * float(np.exp(NOISE * self.chance.normal()))
        return Sample(seconds=took, spread=NOISE, laps=20, waited=slowed.waited, kernel="known")

    def ceilings(self, seconds: float) -> Iterator[tuple[str, float]]:
        """The fastest of ten tries at the peaks, each of which reaches 90 to 97 % of them undisturbed."""
        hardware = machine()[1]
        (large, *_), (copy, *_) = _of("matmul"), _of("copy")
        rates = {"copy": (hardware.memory.bandwidth, copy)}
        rates |= {f"matmul.{name}": (rate, large) for name, rate in hardware.peak.items()}
        for name, (rate, op) in rates.items():
            tries = [self.disturbance(self.now + seconds * i / 30, op).factor for i in range(10)]
            self.now += seconds / len(rates)
            yield name, rate * self.chance.uniform(0.9, 0.97) / min(tries)

    def steps(self, own: object = ()) -> list[StepSample]:
        return []

    def step(self, asked: StepSample) -> StepSample:
        raise MemoryError("no whole models here")

    def collectives(self, seconds: float) -> Iterator[tuple[Op, Sample]]:
        yield from ()


@cache
def shapes() -> dict[str, Op]:
    """Every shape of the design that a visit has time for."""
    hardware = machine()[1]
    found = candidates(DESIGN, hardware)
    longest = Settings(budget=BUDGET).visit / SLACK
    return {key: one.op for key, one in found.items() if float(price(one.op, hardware, UNFUSED).time) <= longest}


def _of(kernel: str) -> list[Op]:
    return sorted((op for op in shapes().values() if op.kernel == kernel), key=lambda op: -float(op.work().flop))


def calibrated(disturbance: Disturbance, seed: int, folder: Path) -> Outcome:
    """A run on the disturbed device and its fit, both the program's own."""
    settings = Settings(budget=BUDGET, seed=seed, design=DESIGN, keep_disturbed=True)
    measurer = DisturbedMeasurer(disturbance, np.random.default_rng([seed, 1]), seed)
    file = RawFile.open(folder / f"{seed}.jsonl")
    Run(measurer, file, settings, lambda what, part: None).measure()
    file.close()
    return fit(read(file.path), measurer.device, settings)


@dataclass(frozen=True, kw_only=True)
class Held:
    """Truths of one kernel and format: true over predicted time of each unseen shape, and the band that was stated.

    plain: the band of measured over predicted alone.
    """

    group: Group
    ratios: tuple[float, ...]
    band: tuple[float, float]
    plain: tuple[float, float]

    def inside(self, band: tuple[float, float]) -> int:
        return sum(band[0] <= ratio <= band[1] for ratio in self.ratios)


def held_to_truth(outcome: Outcome, seed: int) -> list[Held]:
    """Every written kernel and format against true times of shapes that the run did not measure."""
    chance, unseen = np.random.default_rng([seed, 2]), defaultdict(list)
    for key, op in shapes().items():
        if key not in outcome.session.samples:
            unseen[group_of(op)].append(op)
    found = []
    for kernel, formats in outcome.calibration.constants.items():
        for label, constants in formats.items():
            ops = unseen[kernel, label]
            chosen = [ops[i] for i in chance.permutation(len(ops))[:UNSEEN]]
            assert constants.band is not None
            ratios = tuple(true_seconds(op, seed) / outcome.predicted(op) for op in chosen)
            if ratios:
                plain = ratio_errors(outcome.ratios[kernel, label])
                ends = plain["low"], plain["high"]
                found.append(Held(group=(kernel, label), ratios=ratios, band=constants.band, plain=ends))
    return found


def shown(name: str, held: list[Held], rest: str = "") -> str:
    """One line: the shares of truths inside, below and above, the mean width of a band; inside the plain one."""
    count = sum(len(one.ratios) for one in held)
    below = sum(ratio < one.band[0] for one in held for ratio in one.ratios)
    inside, plain = sum(one.inside(one.band) for one in held), sum(one.inside(one.plain) for one in held)
    width = float(np.mean([np.log(one.band[1] / one.band[0]) for one in held]))
    return (
        f"{name:28s} {100 * inside / count:5.1f} % of {count} inside, {100 * below / count:4.1f} % below, "
        f"{100 * (count - inside - below) / count:4.1f} % above; band x{np.exp(width):.2f}; "
        f"plain {100 * plain / count:5.1f} %{rest}"
    )


def main() -> None:
    """Coverage by calibration, by kind and in all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calm", action="store_true", help="four calibrations that nothing disturbs, for comparison")
    asked = parser.parse_args()
    kinds = {"calm": calm} if asked.calm else KINDS
    every: list[Held] = []
    by_group: dict[Group, list[Held]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for place, (name, kind) in enumerate(kinds.items()):
            own: list[Held] = []
            for number in range(EACH):
                seed = 100 * asked.seed + EACH * place + number
                try:
                    outcome = calibrated(kind(np.random.default_rng([seed, 0])), seed, Path(folder))
                except ToleranceError as error:
                    print(f"{name} {number + 1}: refused, {error.what}: {error.because}")
                    continue
                held = held_to_truth(outcome, seed)
                facts = outcome.calibration.provenance
                rest = f"; {facts['visits_disturbed']} of {facts['samples']} visits noticed"
                rest += f", {len(facts['not_written'])} not written" if facts["not_written"] else ""
                print(shown(f"{name} {number + 1}", held, rest), flush=True)
                own += held
            print(shown(f"  {name}, all", own) if own else f"  {name}: none written")
            every += own
    for one in every:
        by_group[one.group].append(one)
    for group, held in sorted(by_group.items()):
        print(shown(" ".join(group), held))
    print(shown("all", every))


if __name__ == "__main__":
    main()
