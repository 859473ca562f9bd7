"""A run and a check on devices of known constants: what is fitted, what is kept, what is refused, how long it takes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("torch")
pytest.importorskip("scipy")

from calibrate.cli import CheckFailedError, Options, check_report, execute
from calibrate.files import write_calibration
from calibrate.samples import Sample, decode, encode, key_of
from calibrate.session.attempts import DeviceLostError
from calibrate.session.check import check
from calibrate.session.fitting import Outcome, fit, measurements
from calibrate.session.raw_file import RawFile, read
from calibrate.session.run import Run
from calibrate.session.settings import Settings
from calibrate.session.steps import step_rows
from inferplan.catalog.files import load_hardware, read_yaml, validate
from inferplan.devices.constants import Calibration, Fit
from inferplan.errors import InputFileError, MissingFactError, ToleranceError, UsageError
from inferplan.estimate.roofline import price
from inferplan.work.formats import find_format
from inferplan.work.ops import Op
from tests.calibrate.conftest import draw_nothing
from tests.calibrate.synthetic import DESIGN, TRUTH, SyntheticMeasurer
from tests.calibrate.test_kernels import SAMPLES, matmul
from tests.cases import for_each

BF16 = find_format("bf16")


def quiet(what: str, part: float) -> None:
    pass


def run(measurer: SyntheticMeasurer, raw: Path, budget: float = 120.0, **changes: Any) -> Outcome:
    settings = Settings(budget=budget, design=DESIGN, **changes)
    file = RawFile.open(raw)
    Run(measurer, file, settings, quiet).measure()
    file.close()
    return fit(read(raw), measurer.device, settings)


@pytest.fixture
def gpu_design(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command takes the small design."""
    monkeypatch.setattr("calibrate.session.settings.GPU", DESIGN)


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Of a run in which nothing happens."""
    return run(SyntheticMeasurer(), tmp_path_factory.mktemp("ordinary") / "raw.jsonl")


def test_fit_recovers_the_constants_of_a_device(ordinary: Outcome) -> None:
    for kernel in ("matmul", "attention.prefill", "attention.decode"):
        found, true = ordinary.calibration.constants[kernel]["bf16"], TRUTH.constants[kernel]["bf16"]
        assert found.overhead == pytest.approx(true.overhead, rel=0.05), kernel
        assert found.sharpness == true.sharpness, kernel
        assert found.memory == pytest.approx(true.memory, rel=0.02), kernel
        assert ordinary.calibration.held_out[kernel]["bf16"]["median"] < 0.01, kernel
    assert ordinary.calibration.constants["matmul"]["bf16"].math == pytest.approx(0.7, rel=0.02)
    assert ordinary.calibration.constants["attention.prefill"]["bf16"].math == pytest.approx(0.5, rel=0.02)


def test_noise_of_five_percent_moves_predictions_by_less(tmp_path: Path) -> None:
    """Constants trade against each other where a shape tells them apart poorly; what they predict must not move."""
    outcome = run(SyntheticMeasurer(noise=0.05, visit=0.02), tmp_path / "raw.jsonl")
    hardware = load_hardware("h200-sxm")
    for measured in outcome.train + outcome.test:
        if measured.op.kernel in ("matmul", "attention.prefill", "attention.decode"):
            true = float(price(measured.op, hardware, TRUTH).time)
            assert outcome.predicted(measured.op) == pytest.approx(true, rel=0.08), measured.op.kernel
    matmul_fit = outcome.calibration.constants["matmul"]["bf16"]
    assert matmul_fit.math == pytest.approx(0.7, rel=0.05)
    assert matmul_fit.memory == pytest.approx(0.8, rel=0.05)


def test_whole_models_are_predicted_from_operators_alone(ordinary: Outcome) -> None:
    rows = step_rows(ordinary)
    assert {row.step.new > 1 for row in rows} == {True, False}
    for row in rows:
        assert row.off == pytest.approx(0.0, abs=0.02)
        assert row.uncalibrated == pytest.approx(0.0, abs=1e-9)


@pytest.mark.usefixtures("main_constants")
def test_calibration_file_loads_and_says_where_it_is_from(tmp_path: Path) -> None:
    outcome = run(SyntheticMeasurer(refuse="gather"), tmp_path / "raw.jsonl")
    write_calibration(outcome.calibration, tmp_path / "out.yaml")
    data = yaml.safe_load((tmp_path / "out.yaml").read_text())
    assert {"provenance", "constants", "held_out", "range"} <= set(data)
    loaded = validate(tmp_path / "out.yaml", read_yaml(tmp_path / "out.yaml"), Calibration)
    assert loaded.constants["matmul"]["bf16"] == outcome.calibration.constants["matmul"]["bf16"]
    facts = loaded.provenance
    assert facts["device"]["name"] == "NVIDIA H200"
    assert facts["shapes"] > 50
    assert "gather any" in facts["refused"], "what has no kernel is listed"
    assert loaded.range["matmul"]["bf16"]["flop"][0] < loaded.range["matmul"]["bf16"]["flop"][1]
    assert {"median", "mape", "p90", "worst", "bias", "n", "worst_shape"} <= set(loaded.held_out["matmul"]["bf16"])


@for_each("budget", [30.0, 120.0, 600.0])
def test_budget_is_honoured(tmp_path: Path, budget: float) -> None:
    """By the device's clock; what is kept back (a few seconds) is for the fit and the report."""
    measurer = SyntheticMeasurer(visit=0.1)
    file = RawFile.open(tmp_path / "raw.jsonl")
    Run(measurer, file, Settings(budget=budget, design=DESIGN), quiet).measure()
    file.close()
    assert measurer.now <= budget
    assert measurer.now >= 0.85 * budget - 5.0


@pytest.mark.usefixtures("main_constants")
def test_a_shape_that_does_not_fit_is_noted_and_the_run_goes_on(tmp_path: Path) -> None:
    outcome = run(SyntheticMeasurer(memory=1e8), tmp_path / "raw.jsonl")
    failed = outcome.calibration.provenance["failed"]
    assert failed
    assert all("out of memory" in why for why in failed.values())
    assert "matmul" in outcome.calibration.constants


@pytest.mark.usefixtures("main_constants")
def test_interrupted_run_is_kept_and_resumed(tmp_path: Path) -> None:
    raw = tmp_path / "raw.jsonl"
    settings = Settings(budget=120.0, design=DESIGN)
    first = RawFile.open(raw)
    with pytest.raises(KeyboardInterrupt):
        Run(SyntheticMeasurer(stop_after=30), first, settings, quiet).measure()
    first.close()
    assert sum(map(len, read(raw).samples.values())) == 30 + 7, "thirty visits and seven messages"
    with raw.open("a") as file:
        file.write('{"record": "sample", "key": "cut sho')
    with pytest.raises(InputFileError, match="would be lost"):
        RawFile.open(raw)
    second = RawFile.open(raw, resume=True)
    Run(SyntheticMeasurer(), second, settings, quiet).measure()
    second.close()
    session = read(raw)
    assert session.finished
    assert len(session.provenance) == 2
    assert sum(1 for line in raw.read_text().splitlines() if json.loads(line)["record"] == "ceiling") == 3
    assert "matmul" in fit(session, SyntheticMeasurer().device, settings).calibration.constants


@pytest.mark.usefixtures("main_constants")
def test_resuming_on_another_device_is_refused(tmp_path: Path) -> None:
    raw = tmp_path / "raw.jsonl"
    run(SyntheticMeasurer(), raw, 60.0)
    other = SyntheticMeasurer()
    other.device = replace(other.device, name="NVIDIA H20")
    with pytest.raises(UsageError, match="NVIDIA H200"):
        Run(other, RawFile.open(raw, resume=True), Settings(budget=60.0, design=DESIGN), quiet).measure()


@pytest.mark.usefixtures("main_constants")
def test_check_passes_on_the_same_device_and_reports_a_wrong_constant(tmp_path: Path) -> None:
    outcome = run(SyntheticMeasurer(noise=0.02), tmp_path / "raw.jsonl")
    settings = Settings(budget=30.0, design=DESIGN, tolerance=0.1)
    rows = check(SyntheticMeasurer(noise=0.02), outcome.calibration, settings, quiet).rows
    assert all(row.within for row in rows)
    slower = TRUTH.model_copy(
        update={"constants": TRUTH.constants | {"matmul": {"bf16": Fit(math=0.4, memory=0.5, overhead=4e-6)}}}
    )
    rows = check(SyntheticMeasurer(truth=slower), outcome.calibration, settings, quiet).rows
    wrong = {row.kernel for row in rows if not row.within}
    assert wrong == {"matmul"}
    assert next(row.bias for row in rows if row.kernel == "matmul") < -0.2, "predicted is faster than measured"


def test_a_check_goes_on_after_a_shape_that_does_not_fit(
    ordinary: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = SyntheticMeasurer.measure

    def tight(self: SyntheticMeasurer, op: Op, seconds: float) -> Sample:
        if op.kernel == "norm":
            raise MemoryError("out of memory")
        return measure(self, op, seconds)

    monkeypatch.setattr(SyntheticMeasurer, "measure", tight)
    found = check(SyntheticMeasurer(), ordinary.calibration, Settings(budget=30.0, design=DESIGN), quiet)
    kernels = {row.kernel for row in found.rows}
    assert "matmul" in kernels and "norm" not in kernels
    assert found.unchecked[("norm", "any")] == "out of memory"
    assert set(found.unchecked) == {("norm", "any"), ("collective.all_reduce", "any")}, "none is dropped in silence"
    report = check_report(found, tmp_path / "c.yaml", 0.2)
    assert report.record["not_checked"]["norm any"] == "out of memory"
    assert "Not checked: norm any: out of memory." in report.notes


def test_a_check_ends_when_the_device_is_lost(ordinary: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:

    def lost(*_: object) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    measurer = SyntheticMeasurer()
    monkeypatch.setattr(measurer, "measure", lost)
    monkeypatch.setattr(measurer, "synchronize", lost)
    with pytest.raises(DeviceLostError, match="illegal memory access") as caught:
        check(measurer, ordinary.calibration, Settings(budget=30.0, design=DESIGN), quiet)
    assert caught.value.exit_code == 2


@dataclass(eq=False)
class SlowToBegin(SyntheticMeasurer):
    """Every kernel takes 3 s until it is known to run here; each visit takes a second."""

    visit: float = 1.0

    def refusal(self, op: Op) -> str | None:
        self.now += 3.0
        return super().refusal(op)


def test_a_check_too_short_for_a_slow_machine_still_visits_every_kernel(ordinary: Outcome) -> None:
    """4 s of budget, 4 s to the end of the first visit: seven kernels take 28 s, and not one of them twice."""
    measurer = SlowToBegin()
    rows = check(measurer, ordinary.calibration, Settings(budget=4.0, design=DESIGN), quiet).rows
    stored = {(kernel, label) for kernel, formats in ordinary.calibration.constants.items() for label in formats}
    assert {(row.kernel, row.label) for row in rows} == stored - {("collective.all_reduce", "any")}
    assert {row.shapes for row in rows} == {1}
    assert measurer.now == 4.0 * len(rows)


@pytest.mark.usefixtures("main_constants")
def test_a_run_too_short_for_a_slow_machine_still_fits_the_matmul(tmp_path: Path) -> None:
    """Kernels of 3 s each until they run: no time is left for a visit, and the matmul gets its seven shapes anyhow."""
    outcome = run(SlowToBegin(), tmp_path / "raw.jsonl", budget=8.0)
    assert set(outcome.calibration.constants) == {"matmul"}
    assert len(outcome.train) + len(outcome.test) == 7


def test_a_check_of_kernels_that_do_not_run_here_says_why(ordinary: Outcome) -> None:
    only = ordinary.calibration.constants["matmul"]
    stored = ordinary.calibration.model_copy(update={"constants": {"matmul": only}})
    with pytest.raises(MissingFactError, match="none of the stored kernels") as caught:
        check(SyntheticMeasurer(refuse="matmul"), stored, Settings(budget=4.0, design=DESIGN), quiet)
    assert caught.value.because == "no matmul here"


def test_a_raw_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputFileError, match="cannot read"):
        read(path)


@pytest.mark.usefixtures("gpu_design")
def test_check_on_the_command_line_exits_6(ordinary: Outcome, tmp_path: Path) -> None:
    write_calibration(ordinary.calibration, tmp_path / "out.yaml")
    options = Options(budget=20.0, calibration=tmp_path / "out.yaml", only_check=True)
    assert "matmul" in json.dumps(execute(options, SyntheticMeasurer()).record)
    slow = SyntheticMeasurer(truth=Calibration(name="slow", constants={"norm": {"any": Fit(memory=0.1)}}))
    with pytest.raises(CheckFailedError, match="norm any") as caught:
        execute(options, slow)
    assert caught.value.exit_code == 6


@pytest.mark.usefixtures("gpu_design", "main_constants")
def test_files_and_report_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "h200.yaml"
    report = execute(Options(budget=60.0, out=out), SyntheticMeasurer())
    endings = ("yaml", "jsonl", "md", "html", "png")
    assert {path.name for path in tmp_path.iterdir()} == {f"h200.{end}" for end in endings}
    text, page = (tmp_path / "h200.md").read_text(), (tmp_path / "h200.html").read_text()
    for heading in ("Whole models: predicted and measured", "Ceilings", "Held-out error", "Constants"):
        assert heading in text
        assert heading in page
    assert "TTFT" in text
    assert "TPOT" in text
    assert page.count("<svg") == 4
    assert page.index("Whole models: predicted and measured") < page.index("Held-out error")
    assert "h200.png" in text
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert report.record["held_out"]
    draw_nothing(monkeypatch)
    again = execute(Options(budget=60.0, out=out, only_fit=True), SyntheticMeasurer())
    assert again.record["held_out"] == report.record["held_out"], "a fit of the raw file is the fit of the run"


@pytest.mark.usefixtures("gpu_design", "main_constants", "undrawn")
def test_a_raw_file_is_fitted_as_of_its_own_device(tmp_path: Path) -> None:
    """On a laptop, from the measurements of an H200: they are held against the H200, not against the laptop."""
    out = tmp_path / "own.yaml"
    first = execute(Options(budget=60.0, out=out), SyntheticMeasurer())
    laptop = SyntheticMeasurer()
    laptop.device = replace(laptop.device, kind="cpu", name="A laptop", units=4, memory=16e9)
    again = execute(Options(budget=60.0, out=out, only_fit=True), laptop)
    assert again.record["hardware"] == first.record["hardware"] == "h200-sxm"
    assert again.record["held_out"] == first.record["held_out"]
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputFileError, match="holds no measurements"):
        execute(Options(budget=60.0, out=out, raw=tmp_path / "empty.jsonl", only_fit=True), laptop)


def test_too_little_is_said(tmp_path: Path) -> None:
    measurer = SyntheticMeasurer(refuse="matmul")
    raw = RawFile.open(tmp_path / "raw.jsonl")
    raw.add("provenance", device=measurer.device.record(), date="d", inferplan="0", budget=1.0, seed=0)
    raw.close()
    with pytest.raises(ToleranceError, match="too little"):
        fit(read(tmp_path / "raw.jsonl"), measurer.device, Settings(budget=1.0))


@for_each("name", SAMPLES)
def test_operators_survive_the_raw_file(name: str) -> None:
    op = SAMPLES[name]
    again = decode(json.loads(json.dumps(encode(op))))
    assert encode(again) == encode(op)
    assert float(again.work().flop) == float(op.work().flop)
    assert key_of(again) == key_of(op)


def test_a_key_is_of_the_shape_not_of_the_name() -> None:
    op = matmul(BF16, BF16)
    assert key_of(op) == key_of(replace(op, name="other", count=32.0, ranks=4, fusible=True))
    assert key_of(op) != key_of(replace(op, m=21.0))


def test_disturbed_visits_are_set_aside(tmp_path: Path) -> None:
    from calibrate.samples import Sample

    raw = RawFile.open(tmp_path / "raw.jsonl")
    keys = [raw.add_shape(matmul(BF16, BF16, m=float(m))) for m in range(1, 12)]
    for key in keys:
        for seconds, waited in ((1.0, 0.0), (1.2, 0.01), (9.0, 0.9), (8.0, 0.7)):
            raw.add_sample(key, Sample(seconds=seconds, waited=waited))
    lost = raw.add_shape(matmul(BF16, BF16, m=99.0))
    raw.add_sample(lost, Sample(seconds=9.0, waited=1.5))
    assert raw.session.seconds(keys[0]) == pytest.approx(1.1)
    seen = measurements(raw.session)
    assert (len(seen.rows), seen.left_out, seen.disturbed) == (11, 1, 0)
    raw.close()
