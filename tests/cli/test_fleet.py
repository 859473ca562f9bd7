"""``inferplan fleet``: its record, its rows, and what it says without its extra."""

from __future__ import annotations

import re
import sys

import pytest

from tests.cli.conftest import Run
from tests.json_page import listed

ASKED = (
    *(
        "fleet",
        "llama-3.1-8b",
        "--rate",
        "60",
        "--prompt",
        "256",
        "--output",
        "64",
        "--ttft",
        "500ms",
        "--tpot",
        "80ms",
    ),
    *("--own", "l4=4", "--rent", "l40s=2", "--price", "l40s=1.00", "--quant", "native", "--most", "1", "--ideal"),
    *("--token-budget", "2048"),
)


def test_the_record_adds_up(run: Run) -> None:
    """l4 at 18.7 and l40s at 63.8 requests/s, of which 0.8 are used: 60 = 4 x 14.9 and a bit, so that one is rented.

    One L40S is given 51 and cannot do it alone; on fewest GPUs at that cost one L4 stands beside it.
    """
    record = run(*ASKED, "--format", "json").json
    for part in ("parts", "alone", "stock", "designs"):
        assert sorted(record[part][0]) == sorted(listed("fleet", f"{part}[]"))
    carried = {one["gpu"]: 0.8 * one["requests_per_s"] for one in record["designs"]}
    assert 4 * carried["l4"] < 60.0 < carried["l4"] + carried["l40s"]
    assert {part["gpu"]: (part["source"], part["replicas"]) for part in record["parts"]} == {
        "l4": ("owned", 1),
        "l40s": ("rented", 1),
    }
    assert record["cost_per_hour"] == pytest.approx(1.00)
    assert record["cost_per_month"] == pytest.approx(730.0)
    assert record["saving_per_hour"] == pytest.approx(1.00)
    assert record["carries_requests_per_s"] == pytest.approx(sum(carried.values()))
    assert record["proven_cheapest"] is True
    assert record["keeps_the_limits"] is True
    assert sum(part["share"] for part in record["parts"]) == pytest.approx(1.0)
    alone = {one["gpu"]: one for one in record["alone"]}
    assert alone["l4"]["cost_per_hour"] is None
    assert alone["l4"]["most_requests_per_s"] == pytest.approx(4 * carried["l4"])
    assert alone["l40s"]["cost_per_hour"] == pytest.approx(2.00)
    assert [(one["gpu"], one["most"], one["taken"], one["left"]) for one in record["stock"]] == [
        ("l4", 4, 1, 3),
        ("l40s", 2, 1, 1),
    ]


def test_what_was_asked_for_in_vain_is_said(run: Run) -> None:
    """One draft of two is accepted, at the price of a wider step; conversations share text that caches find: of turns
    of 64, then 64 + 8 + 64 tokens the second finds 64 + 7 in pages of 16: 64 of all 200."""
    asked = ("fleet", "llama-3.1-8b", "--rate", "20", "--prompt", "64", "--output", "8", "--turns", "2", "--ttft", "1s")
    asked += ("--own", "l40s=2", "--quant", "native", "--most", "1", "--ideal", "--token-budget", "2048")
    asked += ("--draft", "free", "--draft-tokens", "2", "--acceptance", "0.1", "--designs", "1", "--tpot", "50ms")
    record = run(*asked, "--format", "json").json
    assert record["parts"][0]["replica"]["draft_tokens"] is None
    assert record["prefix_cache_hit_rate"] == pytest.approx(64 / 200, abs=0.002)
    assert record["cache_tiers"] is record["classes"] is None
    ran = run(*asked)
    assert "spreads the conversations" in ran.out
    assert f"found of the prompt tokens: {record['prefix_cache_hit_rate']:.1%}" in ran.out
    assert "l40s: " in ran.out and "drafts" in ran.out


def test_rows_are_the_parts(run: Run) -> None:
    lines = run(*ASKED, "--format", "csv").out.splitlines()
    assert lines[0].startswith("gpu,source,replicas,devices,requests_per_s,share,cost_per_hour")
    assert [line.split(",")[0] for line in lines[1:]] == ["l4", "l40s"]


def test_an_owned_gpu_costs_what_is_said(run: Run) -> None:
    """Two dollars an hour are dearer than two L40S; then nothing that is owned works."""
    ran = run(*ASKED, "--own-price", "2")
    assert ran.code == 0, ran.err
    assert "an owned GPU costs 2.00 USD/h while it works" in ran.out
    assert "2.00 USD/h, 1,460 USD per month" in ran.out.splitlines()[0]


def test_without_the_solver(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    ran = run(*ASKED)
    assert ran.code == 2
    assert ran.err.splitlines() == ["error: an integer programme needs scipy", "hint: pip install 'scipy>=1.12'"]


def test_what_does_not_run_at_all_is_no_missed_limit(run: Run) -> None:
    """A 70B in bf16 is 141 GB, beside which an L4 has 24; a T4 has no arithmetic in fp8. An hour is a limit for any."""
    limits = [
        "--rate",
        "1",
        "--prompt",
        "100",
        "--output",
        "10",
        "--ttft",
        "1h",
        "--tpot",
        "1h",
        "--rent",
        "h100-sxm",
        "--token-budget",
        "2048",
    ]
    small = run("fleet", "llama-3.1-70b", "--own", "l4=4", *limits, "--most", "4", "--quant", "native").out
    assert re.search(r"l4 is not used: .* the weights do not fit$", small, re.M)
    none = run("fleet", "llama-3.1-8b", "--own", "t4=4", *limits, "--most", "1", "--quant", "fp8").out
    assert re.search(r"t4 is not used: .* t4 has no fp8 arithmetic", none)
    alone = [*limits[:10], "--own", "l4=4", "--most", "4", "--quant", "native", "--token-budget", "2048"]
    refused = run("fleet", "llama-3.1-70b", *alone)
    assert refused.code == 3 and "the weights do not fit" in refused.err
