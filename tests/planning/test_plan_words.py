"""The manager's page: its sentences and pictures say what the plan's JSON and tables say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

import inferplan
from inferplan.cli import cli
from inferplan.planning.plan import Plan
from inferplan.reports import plan_pictures
from inferplan.reports.glossary import WORDS, glossary
from inferplan.reports.plan_figures import other_format
from inferplan.reports.plan_notes import alternative, key_figures, recommendation, risk
from tests.cases import for_each

LIMITS = ["--ttft", "800ms", "--tpot", "50ms"]
RATE = 8.0
LOAD = ["--rate", f"{RATE:g}", "--prompt", "1024", "--output", "200", *LIMITS]
MEASURED = ["--gpu", "h100-sxm", "--most", "2", "--aggregated", "--prices", "aws-us-east-1"]
SMALL = ["--gpu", "h100-sxm,l40s", "--most", "2", "--aggregated", "--prices", "aws-us-east-1"]


def planned(tmp_path: Path, *words: str) -> tuple[str, dict[str, Any]]:
    """The page of a plan as HTML, and its record."""
    page = tmp_path / "plan.html"
    result = CliRunner().invoke(cli, ["plan", *words, "--report", str(page), "-o", str(tmp_path / "plan.json")])
    assert result.exit_code == 0, result.output
    return page.read_text(encoding="utf-8"), json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))


def part(html: str, name: str) -> str:
    found = re.search(rf'id="{name}">(.*?)</p>', html, re.DOTALL)
    assert found is not None, name
    return found[1]


def test_the_first_sentence_is_the_plan_and_its_month(tmp_path: Path) -> None:
    html, record = planned(tmp_path, "llama-3.1-8b", *LOAD, *MEASURED)
    month = record["cost"]["per_hour"] * 730
    answer = part(html, "answer")
    assert f"{month:,.0f} USD per month" in answer
    assert "At 8 requests per second, 95 of 100 requests" in answer
    low, high = re.findall(r"between ([\d.]+) and ([\d.]+) times", part(html, "risk"))[0]
    assert float(low) < 1 < float(high)
    assert "If the prediction is right, this would do" in part(html, "alternative")
    assert html.index('id="answer"') < html.index("<h2>Pictures") < html.index("<table")
    for label in ("Cost of safety.", "Replicas against load.", "TTFT against load.", "TPOT against load.", "Memory."):
        assert f'aria-label="{label}' in html
    assert "#767676" not in html, "text in the pictures has the colour of the page's own"


@for_each(
    ("words", "said"),
    [
        (["--users", "40", "--workload", "chat", *SMALL], "With 40 requests in flight at all times"),
        (["--requests", "2000", "--deadline", "8h", "--prompt", "512", "--output", "64", *SMALL], "The job is done in"),
        ([*LOAD, *SMALL, "--confidence", "0.9"], "If the prediction is right, this would do"),
        ([*LOAD, *MEASURED, "--confidence", "0.5"], "To keep each limit with a chance of 80%"),
        ([*LOAD, "--gpu", "h100-sxm", "--most", "1", "--ideal", "--price", "h100-sxm=2"], "No measurement exists"),
    ],
)
def test_other_questions_have_their_own_words(tmp_path: Path, words: list[str], said: str) -> None:
    html, _ = planned(tmp_path, "llama-3.1-8b", *words)
    assert said in html
    assert "None" not in re.sub(r"<svg.*?</svg>|<style.*?</style>", "", html, flags=re.DOTALL)


def test_pictures_have_the_figures_of_the_tables(small_plan: Plan) -> None:
    """Dots at the loads of the table, the bars of a month; the steps are never below what a replica carries."""
    drawn = {title: figure.axes[0] for title, _, figure in plan_pictures._figures(small_plan)}
    table = {row["load"]: row for row in small_plan.sensitivity}
    dots = drawn["Replicas against load"].lines[1].get_xydata()
    assert dots.tolist() == [[load * RATE, row["replicas_needed"]] for load, row in table.items()]
    capacity = small_plan.capacity
    assert capacity is not None
    for load, count in drawn["Replicas against load"].lines[0].get_xydata().tolist():
        carried = capacity.factor * RATE / small_plan.option.replicas
        assert load <= count * carried * small_plan.question.sizing.utilisation * (1 + 1e-9)
    ttft = dict(drawn["TTFT against load"].lines[0].get_xydata().tolist())
    assert ttft[RATE] == pytest.approx(1e3 * small_plan.best.achieved["ttft"], rel=1e-12)
    assert ttft[0.8 * RATE] == pytest.approx(1e3 * table[0.8]["ttft_s"], rel=1e-12)
    assert drawn["Cost"].patches[0].get_width() == pytest.approx(730 * (small_plan.option.cost or 0), rel=1e-12)


@pytest.fixture(scope="module")
def small_plan() -> Plan:
    limits = {"ttft": 0.8, "tpot": 0.05}
    return inferplan.make_plan("llama-3.1-8b", 1024, 200, ["h100-sxm", "l40s"], rate=RATE, most=2, **limits)


def test_key_figures_are_the_plan(small_plan: Plan) -> None:
    said = {figure.name: figure for figure in key_figures(small_plan)}
    assert said["first token, p95"].beside == "limit 800 ms"
    assert said["GPUs"].value in recommendation(small_plan)
    assert said["cost"].value in recommendation(small_plan)
    assert risk(small_plan) and alternative(small_plan)


def test_another_format_is_named() -> None:
    """A safe plan on as many GPUs of the same kind is another plan where its weights are in fp8."""
    native, fp8 = (SimpleNamespace(request=SimpleNamespace(quant=quant), prompts=None) for quant in (None, "fp8"))
    assert other_format(fp8, native) == ", in fp8"  # type: ignore[arg-type]
    assert other_format(native, fp8) == ", in the checkpoint's format"  # type: ignore[arg-type]
    assert other_format(fp8, fp8) == ""  # type: ignore[arg-type]


def test_only_words_of_the_page_are_explained() -> None:
    """``tp`` of ``http`` is none, and a plural is its word."""
    assert [word for word, _ in glossary("replicas of http; TTFT p95")] == ["TTFT", "p95", "replica"]
    assert all(meant.endswith(".") for meant in WORDS.values())


def test_a_job_has_its_own_captions_and_no_band_of_latencies(tmp_path: Path) -> None:
    job = ["--requests", "2000", "--deadline", "8h", "--prompt", "512", "--output", "64", *MEASURED]
    html, _ = planned(tmp_path, "llama-3.1-8b", *job)
    assert "The bill per month" not in html
    assert "within  of" not in html, "no band is not an empty one"
    assert "no error band is known for the time of a job" in html
    assert "These are predictions. No error band is known for the time of a job." in part(html, "risk")
    assert "<dt>time of the job</dt>" in html and "<small>limit 8 h</small>" in html


def test_more_replicas_than_the_formula_says_are_explained(tmp_path: Path) -> None:
    """Fewer would do at this load, but the one instance on sale (p5en.48xlarge) holds eight devices."""
    words = [*LOAD, "--gpu", "h200-sxm", "--most", "1", "--aggregated", "--prices", "aws-us-east-1"]
    html, _ = planned(tmp_path, "llama-3.1-8b", *words)
    found = re.search(r"The load needs (\d+) replicas; the plan runs 8: whole instances are paid for", html)
    assert found is not None and int(found[1]) < 8


def test_the_first_screen_names_a_format_that_was_chosen(tmp_path: Path) -> None:
    """Rounding the weights is the planner's choice; whether answers stay good is the reader's to check."""
    checked = "The model runs in fp8: check that its answers are good enough."
    for quant, said in (("fp8", True), ("native", False)):
        html, _ = planned(tmp_path, "llama-3.1-8b", *LOAD, *SMALL, "--quant", quant)
        assert (checked in part(html, "risk")) == said


def test_terms_beside_a_reservation_say_what_they_do_not_compare(tmp_path: Path) -> None:
    """Lists sell an H100 for 3 years, none for 1; the other rows are of the GPUs that the reserved plan has."""
    asked = ["plan", "llama-3.1-8b", *LOAD, "--gpu", "h100-sxm", "--most", "8", "--aggregated"]
    reserved = CliRunner().invoke(cli, [*asked, "--term", "reserved-3y"]).output
    title = "; without --term the best plan may need fewer than these 8 GPUs; no 1-year price on file\n"
    assert title in reserved
    assert "without --term the best" not in CliRunner().invoke(cli, asked).output
