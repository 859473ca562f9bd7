"""What fails in a run, by its cause: passed over, tried again, or the end of it; and what a resume makes of each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

from calibrate.kernels.operands import NoKernelError
from calibrate.samples import Sample, StepSample, key_of
from calibrate.session.attempts import DeviceLostError
from calibrate.session.fitting import fit
from calibrate.session.raw_file import RawFile, Session, read
from calibrate.session.run import Run
from calibrate.session.settings import Settings
from calibrate.shapes import candidates
from inferplan.catalog.files import load_hardware
from inferplan.errors import InputFileError, UsageError
from inferplan.work.ops import Op
from tests.calibrate.synthetic import DESIGN, SyntheticMeasurer
from tests.cases import for_each

HARDWARE = load_hardware("h200-sxm")
FOUND = cache(lambda design: candidates(design, HARDWARE))
"""Shapes of a design, found once for all tests."""
STICKY = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronous"


@pytest.fixture(autouse=True)
def _found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrate.session.run.candidates", lambda design, hardware: FOUND(design))


def run(measurer: SyntheticMeasurer, path: Path, budget: float = 120.0, resume: bool = False) -> Session:
    raw = RawFile.open(path, resume)
    try:
        Run(measurer, raw, Settings(budget=budget, design=DESIGN), lambda what, part: None).measure()
    finally:
        raw.close()
    return raw.session


@dataclass(eq=False)
class Faulty(SyntheticMeasurer):
    """Raises what ``faults`` says at a visit, by its number from 1 on; from ``dies_at`` on the device is lost."""

    visit: float = 0.1
    faults: dict[int, BaseException] = field(default_factory=dict)
    dies_at: float = float("inf")
    tried: int = 0
    waits: int = 0
    keys: list[str] = field(default_factory=list)

    def _answer(self) -> None:
        if self.tried >= self.dies_at:
            raise RuntimeError(STICKY)

    def synchronize(self) -> None:
        self.waits += 1
        self._answer()

    def measure(self, op: Op, seconds: float) -> Sample:
        self.tried += 1
        self.keys.append(key_of(op))
        self._answer()
        if self.tried in self.faults:
            raise self.faults[self.tried]
        return super().measure(op, seconds)

    def step(self, asked: StepSample) -> StepSample:
        self._answer()
        return super().step(asked)


class OutOfResources(Exception):
    """As Triton raises it for tiles that do not fit: no RuntimeError."""


def test_a_shape_that_no_kernel_takes_is_passed_over_and_the_run_goes_on(tmp_path: Path) -> None:
    """The fp8-block shape of 96 columns: refused as its operands are made, long after its group was found right."""
    refused = NoKernelError("torch's fp8-block matmul wants multiples of 128, not 2048 x 96")
    faults = {5: refused, 9: RuntimeError("shape '[2, 3]' is invalid"), 12: TypeError("no such type")}
    faults |= {
        14: OutOfResources("shared memory, Required: 245760"),
        16: AssertionError(),
        18: KeyError("BLOCK_SIZE_M"),
    }
    measurer = Faulty(faults=faults)
    session = run(measurer, tmp_path / "raw.jsonl")
    assert session.finished and len(session.steps) == 2
    lost = [measurer.keys[number - 1] for number in faults]
    assert {key: session.causes[key] for key in lost} == {key: Counter(shape=1) for key in lost}
    assert "multiples of 128" in session.failed[lost[0]]
    assert [measurer.keys.count(key) for key in lost] == 6 * [1], "never tried again"
    assert [session.failed[key] for key in lost[3:5]] == ["shared memory, Required: 245760", "AssertionError"]
    assert max(Counter(measurer.keys).values()) > 5, "while the others were"
    again = Faulty()
    run(again, tmp_path / "raw.jsonl", resume=True)
    assert not set(lost) & set(again.keys), "nor by a later run"


def test_a_lost_device_ends_the_run_and_a_healthy_one_measures_the_rest(tmp_path: Path) -> None:
    raw = tmp_path / "raw.jsonl"
    measurer = Faulty(dies_at=41)
    with pytest.raises(DeviceLostError) as caught:
        run(measurer, raw)
    assert "illegal memory access" in caught.value.what and "asynchronous" not in caught.value.what
    assert "47 samples" in caught.value.because and str(raw) in caught.value.because, "forty visits, seven messages"
    assert "--resume" in caught.value.hint
    assert measurer.tried == 41, "nothing is tried on a lost device"
    broken = read(raw)
    culprit = measurer.keys[-1]
    assert not broken.finished
    assert broken.causes == {culprit: Counter(device=1)}, "no other shape is blamed"
    healthy = Faulty()
    session = run(healthy, raw, resume=True)
    whole = run(Faulty(), tmp_path / "whole.jsonl")
    assert session.finished and not session.failed
    assert set(session.samples) == set(whole.samples) and set(session.steps) == set(whole.steps)
    assert culprit in healthy.keys


def test_what_the_device_was_lost_with_comes_last_and_is_given_up_the_second_time(tmp_path: Path) -> None:
    raw = tmp_path / "raw.jsonl"
    with pytest.raises(DeviceLostError):
        run(Faulty(dies_at=4), raw)
    culprit = next(iter(read(raw).causes))

    @dataclass(eq=False)
    class Deadly(Faulty):
        def measure(self, op: Op, seconds: float) -> Sample:
            if key_of(op) == culprit:
                self.dies_at = 0
            return super().measure(op, seconds)

    second = Deadly()
    with pytest.raises(DeviceLostError):
        run(second, raw, resume=True)
    assert len(set(second.keys)) > 50 and second.keys[-1] == culprit, "after a round of all others"
    third = Deadly()
    session = run(third, raw, resume=True)
    assert session.finished and culprit not in third.keys
    assert "lost" in session.failed[culprit]


def test_a_device_lost_while_a_kernel_is_checked_refuses_nothing(tmp_path: Path) -> None:
    @dataclass(eq=False)
    class InCheck(Faulty):
        def refusal(self, op: Op) -> str | None:
            if op.kernel == "norm":
                self.dies_at = 0
                return "torch cannot run it here: " + STICKY.splitlines()[0]
            return super().refusal(op)

    with pytest.raises(DeviceLostError, match="check of norm any"):
        run(InCheck(), tmp_path / "raw.jsonl")
    assert not read(tmp_path / "raw.jsonl").refused
    assert any(op.kernel == "norm" for op in run(Faulty(), tmp_path / "raw.jsonl", resume=True).shapes.values())


def test_a_shape_without_memory_is_tried_twice_a_run_and_again_in_the_next(tmp_path: Path) -> None:
    raw = tmp_path / "raw.jsonl"
    passing = Faulty(faults={3: MemoryError("tried to allocate 2 GiB")})
    session = run(passing, raw)
    assert not session.failed, "a neighbour's memory came back: the shape was measured in the next round"
    small = Faulty(memory=1e8)
    session = run(small, tmp_path / "small.jsonl")
    assert session.failed
    for key in session.failed:
        assert session.causes[key] == Counter(memory=small.keys.count(key)) and small.keys.count(key) == 2
    session = run(Faulty(), tmp_path / "small.jsonl", resume=True)
    assert not session.failed, "on a device with room everything is measured"


def test_a_run_of_which_everything_fails_ends(tmp_path: Path) -> None:
    """Visits that fail take no time here: the run must end by itself, and not by its budget."""
    measurer = Faulty(memory=0.0, visit=0.0)
    measurer.steps = list  # type: ignore[method-assign]
    session = run(measurer, tmp_path / "raw.jsonl")
    assert session.finished and set(Counter(measurer.keys).values()) == {2}
    assert measurer.clock() < 20.0, "the ceilings, and the messages"


def test_collectives_that_cannot_start_cost_only_the_collectives(tmp_path: Path) -> None:
    class NoGroup(Faulty):
        def collectives(self, seconds: float) -> Iterator[tuple[Op, Sample]]:
            raise OSError("NCCL error: unhandled system error\n/dev/shm is 64 MB")
            yield  # a generator, as the real one is

    session = run(NoGroup(), tmp_path / "raw.jsonl")
    assert session.refused["collectives"] == "NCCL error: unhandled system error"
    assert session.finished and len(session.samples) > 50 and session.steps
    session = run(Faulty(), tmp_path / "raw.jsonl", resume=True)
    assert "collectives" not in session.refused and "link" in session.ceilings


def test_steps_in_a_format_without_arithmetic_are_refused_not_timed(tmp_path: Path) -> None:
    class OldSteps(Faulty):
        def steps(self, own: Sequence[str] = ()) -> list[StepSample]:
            return [replace(step, format="nvfp4") for step in super().steps(own)]

    session = run(OldSteps(), tmp_path / "raw.jsonl")
    assert session.refused["llama-3.1-8b in nvfp4"] == "h200-sxm has no nvfp4 arithmetic"
    assert session.finished and not session.steps


def test_steps_too_long_for_the_budget_are_refused_with_what_they_take(tmp_path: Path) -> None:
    """4,000 x 512 tokens of Llama-3.1-8B are 2 x 7.0e9 x 2.05e6 FLOP: 29 s at 989 TFLOP/s, of 400 s of budget."""

    class LongSteps(Faulty):
        def steps(self, own: Sequence[str] = ()) -> list[StepSample]:
            return [replace(step, batch=4000) if step.new > 1 else step for step in super().steps(own)]

    session = run(LongSteps(), tmp_path / "raw.jsonl")
    (why,) = (why for what, why in session.refused.items() if what.startswith("llama-3.1-8b, 4000 x 512 tokens"))
    assert 28.0 < float(why.split()[2]) < 36.0
    assert all(step.new == 1 for steps in session.steps.values() for step in steps) and session.steps


@for_each("name", ["torch", "driver", "inferplan"])
def test_other_versions_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    raw = tmp_path / "raw.jsonl"
    measurer = Faulty()
    measurer.device = replace(measurer.device, software={"torch": "2.12.0", "driver": "580.65"})
    run(measurer, raw, 60.0)
    before = raw.read_bytes()
    if name == "inferplan":
        monkeypatch.setattr("calibrate.session.run.__version__", "99.0")
    else:
        measurer.device = replace(measurer.device, software=measurer.device.software | {name: "99.0"})
    with pytest.raises(UsageError) as caught:
        run(measurer, raw, 60.0, resume=True)
    assert f"{name} 99.0" in caught.value.because and name in caught.value.what
    assert len(caught.value.hint.splitlines()) == 2
    assert raw.read_bytes() == before, "nothing was added"


@for_each("stop", [1, 40, 300, 600])
def test_a_run_that_was_cut_short_spends_what_is_left_of_its_budget(tmp_path: Path, stop: int) -> None:
    """And measures, shape by shape and visit by visit, what it would have measured in one go."""
    whole = run(Faulty(), tmp_path / "whole.jsonl")
    first = Faulty(stop_after=stop)
    with pytest.raises(KeyboardInterrupt):
        run(first, tmp_path / "cut.jsonl")
    second = Faulty()
    cut = run(second, tmp_path / "cut.jsonl", resume=True)
    assert first.now + second.now <= 120.0
    assert list(cut.samples) == list(whole.samples), "in the same order"
    visits = [sum(map(len, session.samples.values())) for session in (cut, whole)]
    assert abs(visits[0] - visits[1]) <= 1, "sums of seconds are rounded at the end of the budget"
    assert all(abs(len(cut.samples[key]) - len(found)) <= 1 for key, found in whole.samples.items())


def test_a_last_line_that_lacks_its_end_alone_is_dropped_too(tmp_path: Path) -> None:
    """A kill between a shape and the end of its line: the shape is written again, before its first visit."""
    raw = tmp_path / "raw.jsonl"
    run(Faulty(), raw)
    lines = raw.read_text().splitlines()
    last = [json.loads(line)["record"] for line in lines].index("shape", 60)
    raw.write_text("\n".join(lines[: last + 1]))
    run(Faulty(), raw, resume=True)
    found = read(raw)
    assert found.finished and set(found.samples) <= set(found.shapes)


def test_of_visits_of_which_most_were_disturbed_the_calm_one_counts_first() -> None:
    """An accelerator's are marked in words, and none of them waited for a core: (1 + 8) / 2, not (8 + 9) / 2."""
    session = Session()
    session.samples["a"] = [Sample(seconds=s, disturbed="another process") for s in (8.0, 9.0)] + [Sample(seconds=1.0)]
    assert session.seconds("a") == 4.5


def test_a_finished_run_is_given_its_budget_again(tmp_path: Path) -> None:
    first = run(Faulty(), tmp_path / "raw.jsonl")
    visits = sum(map(len, first.samples.values()))
    measurer = Faulty()
    second = run(measurer, tmp_path / "raw.jsonl", resume=True)
    assert measurer.now > 0.8 * 120.0
    assert sum(map(len, second.samples.values())) > 1.8 * visits


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(InputFileError, match="cannot write /dev/full") as caught:
        run(Faulty(), full)
    assert caught.value.because == "No space left on device"


def test_what_failed_is_in_the_provenance(tmp_path: Path) -> None:
    raw = tmp_path / "raw.jsonl"
    measurer = Faulty(faults={5: RuntimeError("no such size")})
    session = run(measurer, raw)
    facts: dict[str, Any] = fit(session, measurer.device, Settings(budget=120.0)).calibration.provenance
    assert list(facts["failed"].values()) == ["no such size"]
    records = [json.loads(line) for line in raw.read_text().splitlines()]
    assert [r["cause"] for r in records if r["record"] == "failed"] == ["shape"]
