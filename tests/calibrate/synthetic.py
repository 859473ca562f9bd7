"""A device of known constants behind the measurer's interface, with a clock of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from calibrate.designs import Design
from calibrate.device.device import Device
from calibrate.samples import Sample, StepSample
from inferplan.catalog.files import load_hardware
from inferplan.devices.constants import Calibration, Fit
from inferplan.devices.hardware import HardwareSpec
from inferplan.estimate.roofline import price
from inferplan.work.formats import find_format
from inferplan.work.ops import Collective, Op

TRUTH = Calibration(
    name="truth",
    constants={
        "matmul": {"bf16": Fit(math=0.7, memory=0.8, overhead=4e-6, sharpness=2.0)},
        "attention.prefill": {"bf16": Fit(math=0.5, memory=0.6, overhead=8e-6, sharpness=1.5)},
        "attention.decode": {"bf16": Fit(math=0.4, memory=0.9, overhead=6e-6, sharpness=4.0)},
        "norm": {"any": Fit(memory=0.6, overhead=3e-6, sharpness=1.0)},
        "elementwise": {"any": Fit(memory=0.7, overhead=2e-6, sharpness=1.0)},
        "copy": {"any": Fit(memory=0.7, overhead=2e-6, sharpness=1.0)},
        "gather": {"any": Fit(memory=0.5, overhead=2e-6, sharpness=1.0)},
    },
)
DESIGN = Design(
    models=("llama-3.1-8b",),
    tp=(1, 2),
    base="bf16",
    others=(),
    quantised=(),
    quantised_models=(),
    prompts=(64, 256, 1024, 4096),
    prefill_batches=(1, 8),
    decode_batches=(1, 8, 64),
    contexts=(256, 2048, 16384),
)


@dataclass(eq=False)
class SyntheticMeasurer:
    """``truth`` times noise. A visit takes ``visit`` seconds of its clock; shapes above ``memory`` bytes do not fit."""

    truth: Calibration = TRUTH
    noise: float = 0.0
    visit: float = 0.1
    largest: float = 1e15
    memory: float = 1e15
    stop_after: int | None = None
    refuse: str = ""
    device: Device = field(
        default_factory=lambda: Device(
            kind="cuda",
            name="NVIDIA H200",
            memory=150109945856.0,
            units=132,
            cache=50 << 20,
            software={"torch": "none"},
        )
    )

    def __post_init__(self) -> None:
        self.now, self.visits = 0.0, 0
        self.chance = np.random.default_rng(5)
        self.hardware: HardwareSpec = load_hardware("h200-sxm")

    def clock(self) -> float:
        return self.now

    def passed_over(self) -> dict[str, str]:
        return {}

    def prepare(self, seconds: float) -> None:
        """Nothing: its constants are the same from the first visit on."""

    def synchronize(self) -> None:
        pass

    def refusal(self, op: Op) -> str | None:
        return f"no {op.kernel} here" if op.kernel == self.refuse else None

    def _seconds(self, op: Op) -> float:
        return float(price(op, self.hardware, self.truth).time) * float(np.exp(self.noise * self.chance.normal()))

    def measure(self, op: Op, seconds: float) -> Sample:
        if self.stop_after is not None and self.visits >= self.stop_after:
            raise KeyboardInterrupt
        self.visits += 1
        self.now += self.visit
        if float(op.work().bytes) > self.memory:
            raise MemoryError("tried to allocate more than there is")
        return Sample(seconds=self._seconds(op), host=5e-6, kernel="synthetic", method="graph")

    def ceilings(self, seconds: float) -> Iterator[tuple[str, float]]:
        self.now += seconds
        yield "copy", 0.9 * self.hardware.memory.bandwidth
        yield "matmul.bf16", 0.8 * self.hardware.peak["bf16"]

    def steps(self, own: Sequence[str] = ()) -> list[StepSample]:
        loads = [(1, 512, 0), (8, 1, 2047)]
        return [
            StepSample(
                model="llama-3.1-8b", layers=32, mode="graph", batch=b, new=n, past=p, format="bf16", seconds=0.0
            )
            for b, n, p in loads
        ]

    def step(self, asked: StepSample) -> StepSample:
        from dataclasses import replace

        from calibrate.session.fitting import Outcome
        from calibrate.session.steps import predict

        self.now += 0.5
        outcome = Outcome(
            calibration=self.truth,
            hardware=self.hardware,
            new_hardware=None,
            train=[],
            test=[],
            session=None,  # type: ignore[arg-type]
        )
        return replace(asked, seconds=float(predict(asked, outcome).time))

    def collectives(self, seconds: float) -> Iterator[tuple[Op, Sample]]:
        self.now += seconds
        for power in range(10, 24, 2):
            op = Collective(
                name="c", pattern="all_reduce", elements=2.0**power, group=2, span=2, format=find_format("bf16")
            )
            yield op, Sample(seconds=self._seconds(op), kernel="synthetic")
