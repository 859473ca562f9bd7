"""Errors that name all that is missing at once: the hint is a command line, and it is not refused."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from inferplan.errors import InfeasibleError
from tests.cases import for_each
from tests.cli.conftest import Run


@pytest.fixture(autouse=True)
def unsimulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a search or a day, which come after all refusals of a question."""

    def accepted(*_: object, **__: object) -> None:
        raise InfeasibleError("the question was accepted")

    for place in ("plan.plan", "day.simulate_days"):
        monkeypatch.setattr(f"inferplan.cli.{place}", accepted)


LOG = "timestamp,prompt_tokens,output_tokens\n" + "".join(f"{second},{100 * second},50\n" for second in range(1, 9))
WHOLE = [
    (
        "day llama-3.1-8b --gpu h100 --workload chat --peak 40",
        ["a profile of its load", "time that a replica takes to start"],
    ),
    ("day llama-3.1-8b --gpu h100", ["a profile", "the lengths of requests", "a limit on latency", "to start"]),
    ("day llama-3.1-8b --gpu h100 --workload chat --policy static --prompt 1k", []),
    ("plan llama-3.1-8b --trace log.csv", ["a limit on latency"]),
    ("plan llama-3.1-8b", ["the lengths of requests", "a limit on latency", "a load"]),
    ("plan llama-3.1-8b --prompt 100 --rate 2", ["the lengths of requests and a limit on latency"]),
    ("plan bge-m3 --rate 500", ["the lengths of requests and a limit on latency"]),
]


@for_each(("line", "named"), WHOLE)
def test_the_whole_line(line: str, named: list[str], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(LOG)
    said = run(*line.split())
    assert said.code == 2 and [one for one in named if one not in said.err.splitlines()[0]] == [], said.err
    if not named:  # one thing alone is asked for as before
        assert said.err.startswith("error: a day needs a profile of its load\n")
        return
    hint = said.err.partition("hint: ")[2].strip()
    assert hint.startswith(f"inferplan {line} --"), hint
    again = run(*shlex.split(hint)[1:])
    assert again.code == 3 and "the question was accepted" in again.err, again.err


OPTIONS = [
    ("estimate llama-3.1-70b --gpu 4x-h100 --draft eagle", "", r"(--draft llama-3.2-1b --draft-tokens 3 .*?) \("),
    ("estimate llama-3.1-70b --gpu 4x-h100 --draft eagle", "", r"(--draft free --draft-tokens 3 .*?) for"),
    (
        "estimate llama-3.1-8b --gpu h100 --top-p 0.9 --top-k 40 --json-schema",
        "No such option '--top-p'",
        r"(--sampling top-p,top-k --structured-share .*) here",
    ),
    ("estimate llama-3.1-8b --gpu h100 --top-k 40", "", r"(--sampling top-k) here"),
    (
        "estimate llama-3.1-8b --gpu h100 --structured-share 1",
        "needs --host-cores and --mask-time or --mask-library",
        r"(--structured-share 0.3 .*?) \(",
    ),
    (
        "plan llama-3.1-8b --gpu h100 --workload chat --rate 5 --currency EUR --prices aws-us-east-1",
        "EUR and USD cannot be compared",
        "(--currency USD)",
    ),
]


@for_each(("line", "what", "hint"), OPTIONS)
def test_options_that_work(line: str, what: str, hint: str, run: Run) -> None:
    said = run(*line.split())
    found = re.search(hint, said.err)
    assert said.code != 0 and what in said.err and found is not None, said.err
    name = found[1].split()[0]
    kept = re.sub(rf" {name} \S+| --(top-[pk] \S+|json-schema)", "", line)
    again = run(*kept.split(), *found[1].split())
    assert again.code == (0 if line.startswith("estimate") else 3), again.err
    assert again.code == 0 or "the question was accepted" in again.err


def test_prices_in_another_currency(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No list on file is in euros: a price of one's own, or dollars."""
    monkeypatch.undo()
    line = "plan llama-3.1-8b --gpu h100 --workload chat --rate 1 --currency EUR"
    said = run(*line.split())
    own, others = said.err.partition("hint: ")[2].split(" (yours, in EUR for a GPU hour), or ")
    assert said.code == 3 and others == "without --currency: prices on file are in USD\n"
    monkeypatch.setattr("inferplan.cli.plan.plan", lambda *_, **__: (_ for _ in ()).throw(InfeasibleError("accepted")))
    assert run(*line.split(), *own.split()).err == "error: accepted\n"


def test_carbon_of_a_plan(run: Run) -> None:
    said = run(*["plan", "llama-3.1-8b", "--gpu", "h100", "--workload", "chat", "--rate", "5", "--carbon", "DEU"])
    found = re.search(r"inferplan (simulate llama-3.1-8b --gpu GPU .*? --carbon DEU)", said.err)
    assert said.code == 2 and found is not None, said.err
    words = found[1].replace("GPU", "h100").split()
    assert run(*words, "--requests", "50").code == 0


def test_an_encoder_is_offered_no_chat(run: Run) -> None:
    said = run(*["plan", "bge-m3", "--rate", "500", "--e2e", "200ms"])
    assert said.code == 2 and "chat" not in said.err and "--prompt 1024" in said.err


def test_a_short_trace_is_told_how_long_it_has_to_be(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight requests in seven seconds; one of 50 tokens takes some 0.35 s (TPOT 6.7 ms, by the bandwidth), and five
    of those at 80 % of the load are 2.2 s."""
    monkeypatch.undo()
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    words = ["plan", "llama-3.1-8b", "--gpu", "h100", "--quant", "native", "--slo", "chat"]
    said = run(*words, "--trace", str(path))
    assert said.code == 3 and "the trace has 8 requests in 7.00 s" in said.err, said.err
    told = re.search(r"a longer trace: 20 requests or more over ([\d.]+) s or more", said.err)
    assert told is not None and 1.5 < float(told[1]) < 3


def test_which_ttft(run: Run) -> None:
    first = run("explain", "ttft", "llama-3.1-8b", "--gpu", "h100").out.splitlines()[0]
    assert first == "ttft of the batch alone; at the server: ttft_at_server"
