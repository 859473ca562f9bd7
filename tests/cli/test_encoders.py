"""What the commands say of models that generate nothing: no row counts tokens that nobody generates."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import for_each
from tests.cli.conftest import Run

BERT = ("bert-base-uncased", "--gpu", "l4", "--prompt", "256")
FOREIGN = ("output token", "TPOT", "ITL", "KV cache", "first token", "decode", " out\n")


@for_each(
    "words",
    [
        ("cost", *BERT),
        ("simulate", *BERT, "--rate", "100", "--requests", "40"),
        ("plan", *BERT, "--rate", "500", "--e2e", "60ms", "--quant", "native"),
        ("estimate", *BERT),
        ("compare", *BERT),
    ],
)
def test_no_row_is_of_generated_tokens(run: Run, words: tuple[str, ...]) -> None:
    said = run(*words)
    assert said.code == 0
    assert not [word for word in FOREIGN if word in said.out]


def test_the_page_of_a_plan_has_no_round_of_decodes(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    asked = ("plan", *BERT, "--rate", "500", "--e2e", "60ms", "--quant", "native", "--report", str(page))
    assert run(*asked).code == 0
    text = page.read_text(encoding="utf-8")
    assert not [word for word in (*FOREIGN, "per output token", "inf requests") if word in text]
    assert "(largest operator of a pass), one run" in text


def test_a_bill_is_divided_by_requests_and_by_what_they_read(run: Run) -> None:
    """At 2 USD/h: 2/3600 USD a second over the requests of a second, and over 256 tokens of each."""
    record = run("cost", *BERT, "--price", "l4=2", "--batch", "1", "--format", "json").json
    cost, energy, rate = record["cost"], record["energy"], record["requests_per_s"]
    assert cost["per_request"] == pytest.approx(2 / 3600 / rate)
    assert cost["per_million_input_tokens"] == pytest.approx(1e6 * 2 / 3600 / rate / 256)
    assert cost["per_million_tokens_whole_bill"] == pytest.approx(cost["per_million_input_tokens"])
    nothing = ("per_million_output_tokens", "per_million_output_tokens_whole_bill")
    assert [cost[key] for key in nothing] == [None, None]
    assert (record["output_tokens_per_s"], record["load"]["output_tokens"]) == (None, 0)
    assert (energy["per_output_token_j"], energy["per_million_output_tokens_kwh"]) == (None, None)
    assert energy["per_token_j"] == pytest.approx(72 / rate / 256)  # an L4 is a card of 72 W


def test_a_simulation_counts_what_is_read(run: Run) -> None:
    said = run("simulate", *BERT, "--rate", "100", "--requests", "40")
    record = run("simulate", *BERT, "--rate", "100", "--requests", "40", "--format", "json").json
    assert record["conditions"]["generates"] is False
    assert f"tokens read/s         {256 * record['throughput']['requests_per_s']:,.1f}" in said.out


def test_a_sweep_counts_requests(run: Run) -> None:
    grid = ("--gpu", "l4", "--batch", "1,8", "--prompt", "128")
    assert "requests/s/device" in run("sweep", "bert-base-uncased", *grid).out
    both = run("sweep", "bert-base-uncased,llama-3.2-1b", *grid, "--output", "1").out
    assert "tokens/s/device" in both
    assert "bert-base-uncased: nothing is generated, and a request counts as one token" in both


def test_a_phase_that_an_operator_is_not_in_has_dashes(run: Run) -> None:
    """The encoder of Whisper runs before the first token, and in no step of its decoder."""
    lines = run("estimate", "whisper-tiny", "--gpu", "l4").out.splitlines()
    (core,) = (line.split() for line in lines if line.startswith("encoder.attn.core"))
    assert core[-3:] == ["-", "-", "-"]


@for_each("kind", ["tradeoff", "kv", "rate", "timeline"])
def test_a_picture_of_generated_tokens_is_refused(run: Run, tmp_path: Path, kind: str) -> None:
    drawn = tmp_path / "drawn.svg"
    said = run("plot", kind, *BERT, "-o", str(drawn))
    assert (said.code, drawn.exists()) == (2, False)
    assert "plot roofline, operators or memory" in said.err


@for_each(
    "words",
    [
        "plan bge-m3",
        "plan bge-m3 --gpu l4 --rate 50",
        "plan bge-m3 --gpu l4 --workload rag --rate 10",
        "plan bge-m3 --gpu l4 --workload chat --rate 10 --prompt 300",
        "plan bge-m3 --gpu l4 --people 100",
    ],
)
def test_a_newcomer_is_led_to_a_line_that_runs(run: Run, words: str) -> None:
    """A workload has answers, and a limit on the time of their tokens: no plan of a model that writes none keeps it."""
    said = run(*words.split())
    assert said.code == 2
    (line,) = [line.removeprefix("hint: ") for line in said.err.splitlines() if line.startswith("hint: ")]
    again = run(*line.split()[1:], "--tp", "1", "--quant", "native")
    assert again.code == 0 and "bge-m3" in again.out
