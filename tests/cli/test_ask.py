"""``inferplan ask``: from flags and at a prompt; what it says is the command that answers."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from inferplan.answers.fit import FitLoad, fit_asked
from inferplan.answers.fit_models import models_that_fit
from inferplan.answers.fit_owned import fit_owned
from inferplan.catalog.files import config_root, load_model, names
from inferplan.catalog.price_lists import price_book
from inferplan.cli.ask import QUESTIONS
from tests.cases import for_each
from tests.cli.conftest import Run

SAID = {
    "run": ("--model llama-3.1-70b --have 2x-a6000", "fit llama-3.1-70b --have 2x-a6000"),
    "people": (
        "--model llama-3.1-8b --have l40s --people 40",
        "plan llama-3.1-8b --gpu 1x-l40s --workload chat --people 40",
    ),
    "buy": (
        "--model llama-3.1-8b --people 2k --workload code",
        "plan llama-3.1-8b --workload code --people 2000",
    ),
    # the A6000 computes in int8 and not in fp8 (NVIDIA's data sheet of Ampere); 4-bit weights run on every GPU
    "format": (
        "--model llama-3.1-8b --have 2x-a6000",
        "compare llama-3.1-8b --gpu 2x-a6000 --quant native,int8,w4a16",
    ),
    "slow": (
        "--model llama-3.1-8b --have 2x-h100 --server bench.csv",
        "validate bench.csv --model llama-3.1-8b --gpu h100 --tp 2 --quant native",
    ),
}


@for_each("name", SAID)
def test_flags_become_the_command_that_answers(name: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("inferplan.cli.ask._answer", asked.append)
    flags, command = SAID[name]
    said = run("ask", name, *flags.split())
    assert (said.code, asked) == (0, [command.split()])
    assert said.err.splitlines()[-1].endswith(f": inferplan {command}")


@for_each("server", ["bench.csv", "http://localhost:8000"])
def test_what_a_server_is_taken_for_is_said(server: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferplan.cli.ask._answer", lambda words: None)
    said = run("ask", "slow", "--model", "llama-3.1-8b", "--have", "2x-h100", "--server", server)
    assert said.err.splitlines()[0] == (
        "note: the server is taken to run llama-3.1-8b on 2 GPUs by tensor parallelism, in the formats of its "
        "checkpoint, unless it says others: --quant"
    )


def test_the_answer_is_that_of_the_command(run: Run) -> None:
    said = run("ask", "run", "--model", "llama-3.1-70b", "--have", "2x-a6000")
    command = said.err.splitlines()[-1].partition(": inferplan ")[2]
    assert (said.code, said.out) == (0, run(*shlex.split(command)).out)
    assert len(said.out) > 300


def piped(words: str, write: Callable[[int], None]) -> tuple[int, str]:
    """Exit code and stderr of a command whose answers come through a pipe, however late."""
    out, into = os.pipe()
    command = [sys.executable, "-m", "inferplan", *words.split()]
    with subprocess.Popen(command, stdin=out, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        os.close(out)
        write(into)
        err = process.communicate(timeout=120)[1]
    return process.returncode, err


@pytest.mark.slow
def test_answers_through_a_pipe_may_be_late() -> None:
    """The second line is written when the first was asked for long ago: the time of it changes nothing."""

    def late(into: int) -> None:
        time.sleep(1.5)
        os.write(into, b"run\n")
        time.sleep(1.5)
        os.write(into, b"llama-3.1-8b\n2x24GB\n")
        os.close(into)

    code, err = piped("ask", late)
    assert code == 0 and err.splitlines()[-1].endswith(": inferplan fit llama-3.1-8b --have 2x24GB")


@pytest.mark.slow
def test_an_open_pipe_that_says_nothing_is_not_waited_for() -> None:
    """All that is needed is given; what people do has its usual value."""
    left: list[int] = []
    code, err = piped("ask people --model llama-3.1-8b --have 1x-l4 --people 1", left.append)
    os.close(left[0])
    assert code in (0, 3) and "--workload chat" in err


@pytest.mark.slow
def test_a_pipe_that_ends_early_is_an_error() -> None:
    code, err = piped("ask format --have a6000", os.close)
    assert code == 2 and "--model" in err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_program_asks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """`inferplan` alone; a typing error is said, and the same is asked again."""
    asked: list[list[str]] = []
    monkeypatch.setattr("inferplan.cli.ask._answer", asked.append)
    monkeypatch.setattr("sys.stdin", Terminal("4\nllama-9000\nllama-3.1-8b\nnope\na6000\n"))
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    assert run().code == 0
    assert asked == [["compare", "llama-3.1-8b", "--gpu", "a6000", "--quant", "native,int8,w4a16"]]
    assert all(question.title in out.getvalue() for question in QUESTIONS.values())
    assert "no model named 'llama-9000'" in out.getvalue() and "no GPU named 'nope'" in out.getvalue()


def test_without_a_terminal_the_program_prints_its_help(run: Run) -> None:
    said = run()
    assert (said.code, said.out) == (2, "")
    assert "What do I buy" in said.err


def test_the_help_has_the_questions(run: Run) -> None:
    text = " ".join(run("ask", "--help").out.split())
    assert all(f"{name} {question.title}" in text for name, question in QUESTIONS.items())


def test_every_model_on_file_is_tried_on_gpus_of_a_size(run: Run) -> None:
    """What runs in 48 GB: Llama-3.1-70B has 70.6 G weights, so 141 GB in bf16, 71 GB in 8 bits and 35 GB in 4; 8B has
    16 GB in bf16. An answer for one model by `fit MODEL --have` agrees."""
    said = run("fit", "--have", "48GB", "--format", "json").json
    found = {one["model"]: one for one in said["models"]}
    assert (found["llama-3.1-8b"]["quant"], found["llama-3.1-8b"]["fits"]) == ("native", True)
    assert found["llama-3.1-70b"]["quant"] in ("w4a16", "nvfp4")
    assert not found["llama-3.1-405b"]["fits"] and "GB" in found["llama-3.1-405b"]["reason"]
    assert len(said["models"]) > 300
    owned = fit_owned("llama-3.1-70b", "48GB", fit_asked(FitLoad(), engine="vllm"), price_book())
    most = max(one.fitting.requests for one in owned.options if one.fitting)
    assert found["llama-3.1-70b"]["max_requests"] == most


def test_models_are_listed_by_size_and_age(run: Run) -> None:
    """opt-66b (2205.01068) is of 2022, Llama 3.3 70B's card says December 2024, gpt-oss-120b is of 2025 and Mistral
    Small 4 of 2026: with half the parameters for 16 months 66 * 2^-3, 71 * 2^-1.5, 117 * 2^-0.75 and 119."""
    said = run("fit", "--have", "4x3090", "--format", "json").json["models"]
    ranked = [one["model"] for one in said if one["fits"]]
    asked = ["mistral-small-4-119b", "gpt-oss-120b", "llama-3.3-70b", "opt-66b"]
    assert sorted(asked, key=ranked.index) == asked
    years = {one["model"]: one["year"] for one in said if one["fits"]}
    assert [years[name] for name in asked] == [2026, 2025, 2024, 2022]
    shown = run("fit", "--have", "4x3090").out
    assert "opt-66b" not in shown and "gpt-oss-120b" in shown
    assert "overheads: what vllm sets aside by default" in shown


def test_the_years_on_file_are_of_models_on_file() -> None:
    """A name that is none would leave its model with the year of its family; each model on file has a year."""
    years: dict[str, Any] = yaml.safe_load((config_root() / "years.yaml").read_text(encoding="utf-8"))
    specs = {name: load_model(name) for name in names("models")}
    named = [name for known in years["models"].values() for name in known]
    assert set(named) <= set(specs) and len(named) == len(set(named))
    families = {name for known in years["families"].values() for name in known}
    assert [name for name, spec in specs.items() if name not in named and spec.family not in families] == []


def test_a_table_shows_the_largest_models_first(run: Run) -> None:
    lines = run("fit", "--have", "1x-h200-sxm").out.splitlines()
    assert lines[0].endswith("models on file fit 1x-h200-sxm, the largest for their year first")
    assert "GPU" not in lines[1].split() and "format" in lines[1].split()
    found = models_that_fit("1x-h200-sxm", fit_asked(FitLoad(), engine=""), price_book())
    assert lines[0].startswith(f"{len(found.fitting)} of {len(found.models)} ")


def test_nothing_fits_is_exit_3_with_the_smallest(run: Run) -> None:
    said = run("fit", "--have", "1x-l4", "--in-flight", "100000000")
    assert (said.code, "the smallest" in said.err) == (3, True)


def test_a_refusal_of_memory_has_bars(run: Run) -> None:
    """141.1 GB of weights on 25.76 GB usable: bars of 50 letters for the longest, so nine for what is usable."""
    lines = run("estimate", "llama-3.1-70b", "--gpu", "rtx-4090").err.splitlines()
    drawn = {line.split()[0]: line.count("#") for line in lines if line.startswith("  ")}
    assert list(drawn)[:2] == ["usable", "weights"]
    assert (drawn["weights"], drawn["usable"], drawn["state"]) == (50, round(50 * 25.76 / 141.1), 1)
    assert lines[-1].startswith("hint: ")


def test_without_a_number_of_people_the_most_is_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("inferplan.cli.ask._answer", asked.append)
    assert run("ask", "people", "--model", "llama-3.1-8b", "--have", "2x-l40s").code == 0
    assert asked == [["plan", "llama-3.1-8b", "--gpu", "2x-l40s", "--workload", "chat", "--people", "most"]]
    asked.clear()
    assert run("ask", "people", "--model", "llama-3.1-8b", "--have", "2x24GB").code == 2  # 15 GPUs of other speeds
    assert asked == []
