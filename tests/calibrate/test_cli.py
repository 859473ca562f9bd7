"""``inferplan calibrate`` as a user meets it: a short run on this CPU, and every way in which it cannot run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from inferplan.catalog.files import load_hardware, read_yaml, validate
from inferplan.cli import main
from inferplan.cli.calibrate import Duration, ShareType
from inferplan.devices.constants import Calibration
from tests.cases import for_each


def call(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command line."""
    monkeypatch.setattr(sys, "argv", ["inferplan", "calibrate", *arguments])
    try:
        main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def test_without_torch_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("inferplan.cli.calibrate.find_spec", lambda name: None)
    assert call(monkeypatch=monkeypatch) == 2
    shown = capsys.readouterr()
    assert "pip install 'torch>=2.11' 'scipy>=1.12' 'pandas>=2.2' 'matplotlib>=3.8'" in shown.err
    assert shown.out == ""


def test_without_matplotlib_it_is_said_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page of the report draws with it, at the end of the run."""
    monkeypatch.setattr("inferplan.cli.calibrate.find_spec", lambda name: None if name == "matplotlib" else object())
    assert call("--device", "cpu", monkeypatch=monkeypatch) == 2
    shown = capsys.readouterr().err
    assert "calibrate needs matplotlib\n" in shown and "pip install 'torch>=2.11' 'scipy>=1.12' 'pandas>=2.2'" in shown


def test_the_command_is_listed_without_loading_torch() -> None:
    code = "import sys; from inferplan.cli import cli; import inferplan.cli.calibrate; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


@for_each(
    ("arguments", "says"),
    [
        (["--device", "abacus"], "no kind of device"),
        (["--device", "tpu"], "a TPU (tpu) cannot be calibrated"),
        (["--budget", "soon"], "is not a time"),
        (["--tolerance", "much"], "is not a share"),
        (["--device", "cpu", "--check", "--calibration", "missing.yaml"], "cannot read missing.yaml"),
        (["--device", "cpu", "--fit-only", "--out", "missing.yaml"], "cannot read missing.jsonl"),
        (["--device", "cpu", "--budget", "20s", "--model", "llama-9.9-8b"], "llama-9.9-8b"),
    ],
)
def test_what_cannot_run_is_one_message(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    assert call(*arguments, monkeypatch=monkeypatch) in (2, 4)
    shown = capsys.readouterr().err
    assert says in shown
    assert "Traceback" not in shown


def test_durations_and_shares() -> None:
    duration, share = Duration(), ShareType()
    assert [duration.convert(text, None, None) for text in ("90s", "5m", "8m30s", "1.5m")] == [90, 300, 510, 90]
    assert [share.convert(text, None, None) for text in ("20%", "0.2")] == [0.2, 0.2]


@pytest.mark.slow
def test_a_short_run_on_this_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """End to end: measured, fitted, reported, used by an estimate, and checked.

    Other tests share the cores, so nothing is said of errors here, and little of time.
    """
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        out, hardware = tmp_path / "cpu.yaml", tmp_path / "cpu-hardware.yaml"
        begun = time.monotonic()
        files = ["--out", str(out), "--new-hardware", str(hardware)]
        anyhow = ["--tolerance", "900%", "--keep-disturbed"]
        assert call("--device", "cpu", "--budget", "20s", *files, *anyhow, monkeypatch=monkeypatch) == 0
        assert time.monotonic() - begun < 90
        shown = capsys.readouterr()
        assert "Held-out error" in shown.out
        found = validate(out, read_yaml(out), Calibration)
        assert "matmul" in found.constants
        assert found.provenance["hardware"]["name"] == load_hardware(str(hardware)).name
        for suffix in (".jsonl", ".md", ".html"):
            assert out.with_suffix(suffix).stat().st_size > 1000
        check = ["--check", "--calibration", str(out), "--tolerance", "900%", "--budget", "4s"]
        assert call("--device", "cpu", *check, monkeypatch=monkeypatch) in (0, 6)
        monkeypatch.setattr(
            sys,
            "argv",
            [
                "inferplan",
                "estimate",
                "qwen2.5-0.5b",
                "--gpu",
                str(hardware),
                "--calibration",
                str(out),
                "--engine",
                "none",
            ],
        )
        main()
        assert "calibrated" in capsys.readouterr().out
    finally:
        torch.set_num_threads(threads)
