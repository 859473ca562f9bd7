"""A run killed at drawn points of a stand-in and resumed: the same constants, to the last digit, as in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

from calibrate.cli import Options, execute
from calibrate.device.torch_measurer import TorchMeasurer
from calibrate.samples import StepSample
from calibrate.session.attempts import DeviceLostError
from calibrate.session.raw_file import Session, read
from inferplan.catalog.files import read_yaml
from tests.calibrate.conftest import draw_nothing, fit_main_constants
from tests.calibrate.standin import Failure, dies_after, interrupted, standin
from tests.calibrate.standin.designs import SMALL_GPU
from tests.cases import for_each

DESIGN = replace(
    SMALL_GPU,
    models=("llama-3.1-8b",),
    tp=(1,),
    others=(),
    quantised=(),
    prompts=(128, 1024),
    decode_batches=(1, 16),
    served=replace(SMALL_GPU.served, prompts=(250,), decode_batches=(1, 64)),
)
"""Few enough shapes for more than one round of them."""
STEPS = TorchMeasurer.steps


def two_steps(measurer: TorchMeasurer, own: Sequence[str] = ()) -> list[StepSample]:
    """A decode step, replayed and eager: each takes CPU time at every visit."""
    return [step for step in STEPS(measurer) if step.new == 1 and step.batch == 8][:2]


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few shapes, two steps, no figures and no further terms."""
    monkeypatch.setattr("calibrate.session.settings.GPU", DESIGN)
    monkeypatch.setattr(TorchMeasurer, "steps", two_steps)
    draw_nothing(monkeypatch)
    fit_main_constants(monkeypatch)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)


def calibrate(out: Path, *failures: Failure, resume: bool = False) -> int:
    """The command in a process of its own, as it were; how many calls to the device it made."""
    with standin("h200-sxm", *failures, launch=5e-4, instantiate=0.4) as device:
        execute(Options(device="cuda", budget=90.0, out=out, resume=resume))
    return device.calls


def constants(out: Path) -> dict[str, Any]:
    """The file without what counts runs and visits."""
    data = read_yaml(out)
    facts = data.pop("provenance")
    facts["passed_over"] = sorted(facts["passed_over"])  # for how many operators is that of the last process
    return data | {
        f"provenance {name}": fact for name, fact in facts.items() if name not in ("date", "begun", "samples")
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Session, int]:
    """An undisturbed run: its constants, its measurements, its calls."""
    out = tmp_path_factory.mktemp("whole") / "out.yaml"
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        calls = calibrate(out)
    return constants(out), read(out.with_suffix(".jsonl")), calls


@for_each("point", (0, 5))
def test_a_kill_loses_nothing(point: int, whole: tuple[dict[str, Any], Session, int], tmp_path: Path) -> None:
    expected, session, calls = whole
    out, error = tmp_path / "out.yaml", (KeyboardInterrupt, SystemExit)[point % 2]
    after = int(np.random.default_rng(14).integers(1, calls, 10)[point])
    with pytest.raises(error):
        calibrate(out, interrupted(after, error))
    assert not out.exists(), "a run that was killed writes no constants"
    calibrate(out, resume=True)
    assert constants(out) == expected
    again = read(out.with_suffix(".jsonl"))
    assert set(again.samples) == set(session.samples) and set(again.steps) == set(session.steps)


def test_a_lost_device_loses_nothing(whole: tuple[dict[str, Any], Session, int], tmp_path: Path) -> None:
    expected, _, calls = whole
    out = tmp_path / "out.yaml"
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        calibrate(out, dies_after(calls // 2))
    assert sum(read(out.with_suffix(".jsonl")).causes.popitem()[1].values()) == 1, "one shape is blamed, once"
    calibrate(out, resume=True)
    assert constants(out) == expected
