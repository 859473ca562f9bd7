"""A whole budget on a stand-in of each kind of device: all of it measured or refused, and the files written."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")
pytest.importorskip("matplotlib")

from calibrate.cli import Options, execute
from calibrate.session.raw_file import Session, read
from calibrate.shapes import candidates, group_of
from inferplan.catalog.files import load_hardware, read_yaml, validate
from inferplan.devices.constants import Calibration
from inferplan.estimate.roofline import price
from tests.calibrate.standin import CHIPS, KNOWN, SEVEN, standin
from tests.calibrate.standin.designs import SMALL_GPU, SMALL_MPS

BUDGET = {"cuda": 450.0, "mps": 320.0}
"""Seconds of a run by kind of device; on the last, steps of whole models fill what is left."""
LAUNCH = 5e-4
"""Seconds of a launch; that of a replay is as short as ever."""


@pytest.fixture(autouse=True)
def _small_designs(monkeypatch: pytest.MonkeyPatch, undrawn: None, main_constants: None) -> None:
    monkeypatch.setattr("calibrate.session.settings.GPU", SMALL_GPU)
    monkeypatch.setattr("calibrate.session.settings.CPU", SMALL_MPS)


def calibrate(name: str, out: Path) -> tuple[Session, Calibration]:
    """The command on a stand-in whose launches and captures are slow, so that the budget holds fewer visits."""
    with standin(name, launch=LAUNCH, instantiate=5.0) as device:
        budget = BUDGET[device.chip.kind]
        execute(Options(device=device.chip.kind, budget=budget, out=out))
        assert device.clock() <= budget, "in time, by the device's own clock"
    return read(out.with_suffix(".jsonl")), validate(out, read_yaml(out), Calibration)


@pytest.mark.parametrize("name", SEVEN)
def test_a_whole_budget(name: str, tmp_path: Path) -> None:
    session, found = calibrate(name, tmp_path / "out.yaml")
    assert session.finished and {"ceilings", "collectives"} <= session.done
    assert {path.suffix for path in tmp_path.iterdir()} >= {".yaml", ".jsonl", ".md", ".html"}
    assert found.provenance["device"]["name"] == CHIPS[name].product

    design = SMALL_MPS if CHIPS[name].kind == "mps" else SMALL_GPU
    asked = {group_of(c.op) for c in candidates(design, load_hardware(name)).values()}
    measured = {group_of(session.shapes[key]) for key in session.samples}
    refused = {what for what, why in session.refused.items() if why}
    assert not {" ".join(group) for group in asked - measured} - refused, "measured, or refused with a reason"
    assert not any(causes["device"] for causes in session.causes.values())

    if name == "t4":  # no bf16: nothing may be timed in it, or there is no price to compare it with
        assert session.steps and {key[-1] for key in session.steps} == {"fp16"}
    for key, samples in session.samples.items():
        op, kernel = session.shapes[key], session.shapes[key].kernel
        constants = Calibration(name="truth", constants={kernel: {op.label: KNOWN}})
        true = float(price(op, load_hardware(name), constants).time)
        if kernel in ("matmul", "attention.decode") and (samples[0].method == "graph" or true > 10 * LAUNCH):
            assert samples[0].seconds == pytest.approx(true, rel=0.05), (kernel, op.label)
