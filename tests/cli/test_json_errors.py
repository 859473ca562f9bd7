"""With ``--format json`` an error is one line of JSON on stderr; exit codes are as always, and stdout holds no half."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from inferplan.cli import COMMANDS
from tests.cases import for_each
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
ON_H100 = ("llama-3.1-8b", "--gpu", "h100-sxm")


@for_each(
    ("words", "code", "said"),
    [
        (("estimate", "nope", "--gpu", "h100-sxm"), 2, "no model named 'nope'"),
        (("estimate", "llama-3.1-8b"), 2, "--gpu"),
        (("estimate", *ON_H100, "--batch", "1.5"), 2, "1.5"),
        (("estimate", *ON_H100, "--nonsense"), 2, "--nonsense"),
        (("estimate", *ON_H100, "--batch", "2", "--batch", "3"), 2, "2 times"),
        (("estimate", *ON_H100, "--quant", ""), 2, "--quant"),
        (("estimate", *ON_H100, "--calibration", "absent.yaml"), 4, "absent.yaml"),
        (("estimate", "llama-3.1-70b", "--gpu", "l4"), 3, "does not fit"),
        (("fit", "llama-3.1-70b", "--gpu", "h100-sxm", "--have", "2x24GB"), 2, "--have"),
        (("simulate", *ON_H100), 2, "load"),
        (("plan", "llama-3.1-8b", "--rate", "1"), 2, "lengths"),
        (("compare", *ON_H100, "--gpu", "x"), 2, "2 times"),
        (("validate", "absent.csv"), 4, "absent.csv"),
        (("anchor", "host", "absent.csv"), 4, "absent.csv"),
        (("explain", "nope", *ON_H100), 2, "nope"),
        (("show", "nope"), 2, "nope"),
        (("nonsense",), 2, "nonsense"),
        (("models", "\x1b[31m"), 2, "control"),
    ],
)
def test_every_error_is_one_object(words: tuple[str, ...], code: int, said: str, run: Run) -> None:
    plain = run(*words)
    assert plain.code == code
    for option in (("--format", "json"), ("--format=json",), ("--format", "jsonl")):
        if words[0] == "anchor" and option[-1] == "jsonl":
            continue  # it has no such format
        ran = run(*words, *option)
        assert (ran.code, ran.out) == (code, "")
        record = json.loads(ran.err.splitlines()[-1])
        assert set(record) == {"schema_version", "error"} and record["schema_version"] == 2
        error = record["error"]
        assert set(error) - {"picture"} == {"what", "because", "hint", "exit_code"}
        assert error["exit_code"] == code and said in error["what"] + error["because"]
        for text in filter(None, (error["what"], error["because"], error["hint"])):
            first = text.splitlines()[0].split("\x1b")[0]  # a whole line in a hint is asked for in the same format
            assert first.replace(f" {' '.join(option)}", "") in plain.err


def test_an_answer_that_was_not_to_be_stands_on_stdout(run: Run) -> None:
    load = ("--rate", "90", "--prompt", "900", "--output", "90", "--requests", "200")
    ran = run("simulate", "llama-3.1-8b", "--gpu", "l4", *load, "--format", "json")
    assert ran.code == 3 and json.loads(ran.out)["verdict"]
    assert json.loads(ran.err.splitlines()[-1])["error"]["exit_code"] == 3


def test_a_default_of_json_is_asked_for_as_well(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERPLAN_FORMAT", "json")
    command = [sys.executable, "-m", "inferplan", "estimate", "nope", "--gpu", "l4"]
    for more, is_json in (((), True), (("--format", "table"), False), (("--batch", "1", "--batch", "2"), True)):
        ran = subprocess.run([*command, *more], check=False, capture_output=True, text=True, cwd=ROOT)
        assert ran.returncode == 2 and ran.stderr.startswith("{" if is_json else "error: "), ran.stderr


def test_without_it_errors_are_as_they_were(run: Run) -> None:
    for more in ((), ("--format", "table"), ("--format", "csv")):
        assert run("estimate", "nope", "--gpu", "l4", *more).err.startswith("error: no model named 'nope'\n")
    # behind -- nothing is an option
    assert run("show", "--", "--format", "json").err.startswith("error: ")


def test_the_format_itself_is_refused_in_the_same_form(run: Run) -> None:
    for name in ("estimate", "fit", "plan"):
        assert name in COMMANDS
        assert "yaml" in run(name, "llama-3.1-8b", "--format", "yaml").err
