"""Raw files that are cut, edited or of something else, and runs whose files or devices are mixed up: each is one error,
and no measurement is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

from calibrate.cli import Options, execute
from calibrate.samples import Sample
from calibrate.session.raw_file import RawFile, read
from inferplan.errors import InputFileError, UsageError
from tests.calibrate.synthetic import SyntheticMeasurer
from tests.calibrate.test_cli import call
from tests.calibrate.test_kernels import matmul
from tests.cases import for_each


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A raw file with a record of each kind that is checked."""
    path = tmp_path / "raw.jsonl"
    file = RawFile.open(path)
    file.add("provenance", device=SyntheticMeasurer().device.record(), date="d", inferplan="0", budget=60.0, seed=0)
    file.add("ceiling", name="read", value=4e12)
    key = file.add_shape(matmul("bf16", "bf16"))
    file.add_sample(key, Sample(seconds=1e-3))
    file.add("finished")
    file.close()
    return path


def edited(path: Path, kind: str, **values: Any) -> None:
    """The file with values of its first record of a kind replaced; those in ``sample`` and ``op`` are inside it."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    record = next(line for line in lines if line["record"] == kind)
    (record.get({"sample": "sample", "shape": "op"}.get(kind, ""), record)).update(values)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


NAN, INFINITE = float("nan"), float("inf")


@for_each(
    ("kind", "values"),
    [
        *[("sample", {"seconds": value}) for value in ("abc", NAN, INFINITE, -1.0, 0.0, None, [1], True, 10**40)],
        ("sample", {"waited": "x"}),
        ("sample", {"library": 5}),
        ("sample", {"bogus": 1}),
        *[("ceiling", {"value": value}) for value in (0, -1.0, NAN, "x", 10**40)],
        *[("shape", {"m": value}) for value in ("x", -1.0, NAN, None, 10**40)],
        ("shape", {"type": "nothing"}),
        ("shape", {"weight": "bf99"}),
        *[("provenance", {"device": value}) for value in ("x", None, [], {})],
        ("provenance", {"budget": "x"}),
        ("provenance", {"models": -1}),
        ("sample", {"seconds": json.loads("1e300")}),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_values_that_nothing_can_measure_are_refused_by_their_line(
    kind: str, values: dict[str, Any], raw: Path
) -> None:
    whole = raw.read_text()
    edited(raw, kind, **values)
    line = {"provenance": 1, "ceiling": 2, "shape": 3, "sample": 4}[kind]
    with pytest.raises(InputFileError, match=rf"raw.jsonl:{line}: not a record of a calibration"):
        read(raw)
    raw.write_text(whole)


def test_a_sample_without_its_shape_is_refused(raw: Path) -> None:
    raw.write_text("".join(line for line in raw.read_text().splitlines(True) if '"shape"' not in line))
    with pytest.raises(InputFileError, match="which no line before it describes"):
        read(raw)


def test_nesting_without_end_is_refused(raw: Path) -> None:
    raw.write_text(raw.read_text() + "[" * 200_000 + "\n")
    with pytest.raises(InputFileError, match="nested too deeply"):
        read(raw)


def test_a_file_cut_at_any_place_is_read_and_resumed_alike(raw: Path) -> None:
    """A line whose end is missing is dropped from the session as from the file, even where all but the end is there."""
    content = raw.read_bytes()
    for end in range(0, len(content), 7):
        raw.write_bytes(content[:end])
        seen = read(raw)
        file = RawFile.open(raw, resume=True)
        file.close()
        assert content[:end].startswith(raw.read_bytes())
        again = read(raw)
        assert (list(seen.shapes), seen.samples, seen.ceilings) == (list(again.shapes), again.samples, again.ceilings)


@for_each("content", ["a diary, and its only copy", '{"a": 1}\n{"b": 2}\n', "name: x\nconstants: {}\n"])
def test_a_file_of_something_else_is_left_as_it_is(content: str, tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text(content)
    for resume in (True, False):
        with pytest.raises(InputFileError, match="no raw file of a calibration"):
            RawFile.open(path, resume)
    assert path.read_text() == content


@for_each(
    ("named", "words"),
    [
        ({"out": "h.jsonl"}, "--out and --raw are the same file"),
        ({"out": "h.yaml", "report": "h.jsonl"}, "--raw and --report are the same file"),
        ({"out": "h.md"}, "--out and --report are the same file"),
        ({"out": "h.yaml", "report": "r.html"}, "--report and the page beside --report are the same file"),
        ({"out": "h.yaml", "report": "r.png"}, "--report and the picture beside --report are the same file"),
        ({"out": "h.yaml", "new_hardware": "h.yaml"}, "--out and --new-hardware are the same file"),
    ],
)
def test_no_file_of_a_run_is_written_over_another(named: dict[str, str], words: str, tmp_path: Path) -> None:
    kept = tmp_path / "h.jsonl"
    kept.write_text("kept")
    options = replace(Options(budget=60.0, only_fit=True), **{name: tmp_path / file for name, file in named.items()})
    with pytest.raises(UsageError, match=words):
        execute(options, SyntheticMeasurer())
    assert kept.read_text() == "kept"


def test_a_slow_device_is_not_taken_for_the_one_that_it_is_said_to_be(tmp_path: Path) -> None:
    """The 4 TB/s of an H200 are no T4's (320 GB/s): constants would be lies about it."""
    options = Options(budget=60.0, out=tmp_path / "a.yaml", gpu="t4")
    with pytest.raises(UsageError, match=r"no t4") as refused:
        execute(options, SyntheticMeasurer())
    assert "TB/s, and the memory of t4 has 320" in refused.value.because
    assert not (tmp_path / "a.yaml").exists()


@for_each("seed", ["-1", "99999999999999999999"])
def test_a_seed_that_no_generator_takes_is_refused(
    seed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--seed", seed, monkeypatch=monkeypatch) == 2
    assert "Invalid value for '--seed'" in capsys.readouterr().err


def test_two_runs_at_once_do_not_write_to_one_file(raw: Path) -> None:
    first = RawFile.open(raw, resume=True)
    with pytest.raises(InputFileError, match="another run writes to"):
        RawFile.open(raw, resume=True)
    first.close()
    RawFile.open(raw, resume=True).close()
    RawFile.open(raw).close()
    assert raw.read_text() == "", "a run that ended may be followed by another in its file"
