"""This CPU: steps of a Llama that the calibrator has never seen, measured and predicted in one run.

``python -m tools.accuracy cpu``. The model is ``tools/accuracy/independent_llama.py``: plain torch that shares no
line with the calibrator. It is timed before and after a calibration whose shapes come from other models; what the
constants of that calibration say of its steps is compared with both timings together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrate.cli import progress_bar, torch_measurer
from calibrate.designs import CPU
from calibrate.device.device import Device, identify
from calibrate.device.timing import waited
from calibrate.device.whole_models import EAGER
from calibrate.samples import QUIET, StepSample, key_of
from calibrate.session.fitting import Outcome, fit
from calibrate.session.glue import with_glue
from calibrate.session.raw_file import RawFile, Session
from calibrate.session.run import Run
from calibrate.session.settings import Settings
from calibrate.session.steps import StepRow, load_of, row_of, timed_deployment
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build
from inferplan.estimate.phase import Phase, run_step
from inferplan.models.layers import parse_layer
from inferplan.models.spec import LayerGroup, ModelSpec
from inferplan.work.formats import find_format
from inferplan.work.ops import Attention, Matmul
from tools.accuracy.independent_llama import Llama, Shape

Load = tuple[int, int, int]
"""Sequences, new tokens of each, tokens before them."""
LOADS: tuple[Load, ...] = ((1, 128, 0), (1, 512, 0), (4, 128, 0), (1, 1, 255), (8, 1, 255), (1, 1, 2047), (16, 1, 1023))
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
DESIGN = replace(
    CPU, models=("qwen2.5-0.5b", "qwen2.5-1.5b", "tiny-dense"), quantised=(), quantised_models=(), held_out=()
)
"""Of none of these models is any width one of the independent model's."""
DRIFT = 0.15
"""How far a step may be from its own time a few minutes earlier before the run counts as disturbed."""
LAPS = (3, 9)
"""Laps of a step at least, and at most."""


@dataclass(frozen=True, kw_only=True)
class Sizes(Shape):
    """The sizes of the independent model."""

    @property
    def name(self) -> str:
        return f"independent Llama, width {self.width}"

    def spec(self) -> ModelSpec:
        """The model as its graph is built."""
        mixer = {"kind": "attention", "heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim}
        layer = LayerGroup.model_validate(
            {
                "repeat": self.layers,
                "mixer": parse_layer(mixer),
                "ffn": parse_layer({"kind": "mlp", "d_ff": self.inner}),
            }
        )
        return ModelSpec(
            name=self.name, source="written for a test", d_model=self.width, vocab=self.vocab, layers=[layer]
        )


def independent_model(sizes: Sizes, dtype: torch.dtype) -> Any:
    """The independent implementation with random weights."""
    return Llama(sizes, dtype).eval()


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Laps of one step [s], and the share of each that threads of this process waited for a core."""

    fmt: str
    load: Load
    seconds: tuple[float, ...]
    waiting: tuple[float, ...]

    @property
    def calm(self) -> tuple[float, ...]:
        """The laps that nothing is known to have disturbed."""
        return tuple(s for s, w in zip(self.seconds, self.waiting) if w <= QUIET)

    @property
    def disturbed(self) -> bool:
        """Fewer than :data:`LAPS` [0] calm laps are left of it."""
        return len(self.calm) < LAPS[0]

    @property
    def time(self) -> float:
        """The median of the calm laps; where too few are calm the fastest, of one thread without the time it waited."""
        if not self.disturbed:
            return float(np.median(self.calm))
        waits = self.waiting if torch.get_num_threads() == 1 else (0.0,) * len(self.seconds)
        return min(s * (1.0 - min(w, 1.0)) for s, w in zip(self.seconds, waits))

    def with_laps(self, other: Timed) -> Timed:
        """The laps of both."""
        return replace(self, seconds=self.seconds + other.seconds, waiting=self.waiting + other.waiting)


def time_steps(model: Any, sizes: Sizes, fmt: str, loads: Iterable[Load], seconds: float) -> list[Timed]:
    """Each step for about ``seconds``, its first run left out, on a cache that is filled with random tokens."""
    found = []
    with torch.inference_mode():
        for batch, new, past in loads:
            cache = model.cache(batch, past + new)
            tokens = torch.randint(sizes.vocab, (batch, new))
            model(tokens, cache, past)
            times: list[float] = []
            waiting: list[float] = []
            while len(times) < LAPS[0] or (sum(times) < seconds and len(times) < LAPS[1]):
                before, begun = waited(), time.perf_counter()
                model(tokens, cache, past)
                times.append(time.perf_counter() - begun)
                waiting.append((waited() - before) / times[-1])
            found.append(Timed(fmt=fmt, load=(batch, new, past), seconds=tuple(times), waiting=tuple(waiting)))
    return found


def deployment(sizes: Sizes, fmt: str, outcome: Outcome) -> Deployment:
    """The independent model on the measured device, with the constants of this run and no engine."""
    return timed_deployment(sizes.spec(), fmt, outcome.hardware, outcome.calibration)


def step_of(sizes: Sizes, fmt: str, load: Load, seconds: float = 0.0) -> StepSample:
    """A step of the independent model, and its time."""
    batch, new, past = load
    return StepSample(
        model=f"{sizes.name}, {fmt}",
        layers=sizes.layers,
        mode=EAGER,
        batch=batch,
        new=new,
        past=past,
        format=fmt,
        seconds=seconds,
    )


def phase_of(sizes: Sizes, step: StepSample, outcome: Outcome) -> Phase:
    """The price of a step of the independent model by the constants."""
    return run_step(deployment(sizes, step.format, outcome), load_of(step))


def predicted(sizes: Sizes, step: StepSample, outcome: Outcome) -> float:
    """Its seconds."""
    return float(phase_of(sizes, step, outcome).time)


def shared_shapes(sizes: Sizes, formats: Iterable[str], session: Session, outcome: Outcome) -> int:
    """How many of the shapes that were measured are operators of the compared steps; zero, or the claim is wrong.

    Of matmuls and attention: maps of equal size are the same operator in any model.
    """
    own = {
        key_of(op)
        for fmt in formats
        for load in LOADS
        for stage in build(deployment(sizes, fmt, outcome), load_of(step_of(sizes, fmt, load)))
        for op in stage.ops
        if isinstance(op, (Matmul, Attention))
    }
    return len(own & set(session.samples))


def compared(sizes: Sizes, before: Sequence[Timed], after: Sequence[Timed], outcome: Outcome) -> list[StepRow]:
    """Every step: the laps of both timings together, and what the constants say."""
    rows = []
    for early, late in zip(before, after, strict=True):
        timed = early.with_laps(late)
        step = step_of(sizes, timed.fmt, timed.load, timed.time)
        phase = phase_of(sizes, step, outcome)
        rows.append(row_of(step, phase, float(phase.time), timed.disturbed))
    return rows


def drift(before: Sequence[Timed], after: Sequence[Timed]) -> float:
    """The median over steps of how far the second timing is from the first."""
    return float(np.median([abs(late.time / early.time - 1.0) for early, late in zip(before, after, strict=True)]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """What one run found. shared: shapes that were measured although the model has them; drift: as :func:`drift`."""

    device: Device
    outcome: Outcome
    sizes: Sizes
    rows: list[StepRow]
    drift: float
    shared: int
    laps: int
    laps_disturbed: int

    @property
    def disturbances(self) -> list[str]:
        """Why the figures say little, if they do."""
        lost = [row for row in self.rows if row.disturbed]
        visits = [sample for samples in self.outcome.session.samples.values() for sample in samples]
        bad = sum(not sample.calm for sample in visits)
        found = []
        if len(lost) * 2 > len(self.rows):
            found.append(f"other work disturbed {len(lost)} of {len(self.rows)} steps in most laps")
        if bad * 2 > len(visits):
            found.append(f"other work disturbed {bad} of {len(visits)} visits of the calibration")
        if self.drift > DRIFT:
            found.append(f"the same steps took {100 * self.drift:.0f} % more or less time after the calibration")
        return found


def compare(budget: float, raw: Path, formats: Sequence[str], sizes: Sizes, say: Callable[[str], None]) -> Comparison:
    """Time the model, calibrate for ``budget`` seconds, time the model again, predict. Everything in this process."""
    device = identify("cpu")
    say(device.describe())

    def timed() -> list[Timed]:
        found = []
        for fmt in formats:
            say(f"timing {sizes.name}, {fmt}")
            torch.manual_seed(0)
            found += time_steps(independent_model(sizes, TYPES[fmt]), sizes, fmt, LOADS, 1.5)
        return found

    before = timed()
    session, settings = calibrated(device, budget, raw)
    after = timed()
    outcome = with_glue(fit(session, device, settings))
    laps = [share for one in (*before, *after) for share in one.waiting]
    return Comparison(
        device=device,
        outcome=outcome,
        sizes=sizes,
        rows=compared(sizes, before, after, outcome),
        drift=drift(before, after),
        shared=shared_shapes(sizes, formats, session, outcome),
        laps=len(laps),
        laps_disturbed=sum(share > QUIET for share in laps),
    )


def calibrated(device: Device, budget: float, raw: Path) -> tuple[Session, Settings]:
    """A calibration on shapes of :data:`DESIGN`, whose measurements go into ``raw``.

    A disturbed one is fitted, too: the page says that it was.
    """
    settings = Settings(budget=budget, design=DESIGN, keep_disturbed=True)
    raw.unlink(missing_ok=True)
    file = RawFile.open(raw)
    try:
        with progress_bar() as progress:
            Run(torch_measurer(device, budget, 0), file, settings, progress).measure()
    finally:
        file.close()
    return file.session, settings


def base_formats(text: str) -> list[str]:
    """Formats in a list with commas. Raises ``ValueError`` for one that the model is not run in."""
    found = [find_format(name).name for name in text.split(",")]
    for name in found:
        if name not in TYPES:
            raise ValueError(f"{name}: the model is run in {' and '.join(TYPES)}")
    return found
