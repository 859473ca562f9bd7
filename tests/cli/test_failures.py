"""``inferplan simulate --fail`` as a user types it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.cases import for_each
from tests.cli.conftest import Run

BASE = ("simulate", "llama-3.1-8b", "--gpu", "h100-sxm", "--ideal", "--prompt", "512", "--output", "32")
LOAD = (*BASE, "--replicas", "3", "--rate", "20")


def test_a_failure_is_told(run: Run) -> None:
    """Of 20 requests/s: what comes in 20 s before (without the first 5 s), and in 30 s with one of three missing."""
    asked = (*LOAD, "--ttft", "500ms", "--arrivals", "constant")
    record = run(*asked, "--fail", "20s", "--restart", "30s", "--format", "json").json
    assert record["recovered"] is True and record["percentile"] == 95.0
    (failure,) = record["failures"]
    assert (failure["at_s"], failure["replicas_lost"], failure["back_s"]) == (20.0, 1, 50.0)
    assert failure["began_anew"] == record["began_anew"] > 0
    assert failure["recovered_after_s"] == failure["backlog_gone_s"] - 20.0 >= 30.0
    stretches = {one["name"]: one for one in record["stretches"]}
    assert (stretches["before"]["start_s"], stretches["before"]["requests"]) == (5.0, 300)
    assert (stretches["replicas missing"]["requests"], stretches["replicas missing"]["replicas"]) == (600, 2.0)
    assert stretches["after"]["replicas"] == pytest.approx(3.0)
    assert record["timeline"][0]["start_s"] == pytest.approx(5.0)  # bins of 7.5 s; before that the run is not there
    assert sum(one["began_anew"] for one in record["timeline"]) == record["began_anew"]
    assert record["conditions"]["failures"] == {"mode": "cut", "restart_s": 30.0, "replicas_per_node": None}
    rows = list(csv.DictReader(run(*asked, "--fail", "20s", "--restart", "30s", "--format", "csv").out.splitlines()))
    assert [row["name"] for row in rows] == list(stretches)


def test_what_a_start_is_made_of_and_a_node(run: Run) -> None:
    """16.06 GB at 1 GB/s and 14 s; four replicas of two GPUs stand on a node of eight."""
    asked = (*LOAD[:-4], "--replicas", "6", "--tp", "2", "--rate", "20", "--fail", "node@10s", "--fail-mode", "drain")
    record = run(*asked, "--storage-bandwidth", "1GB/s", "--engine-start", "14s", "--format", "json").json
    (failure,) = record["failures"]
    assert failure["replicas_lost"] == 4 and failure["began_anew"] == 0
    assert record["conditions"]["failures"]["restart_s"] == pytest.approx(14 + 2 * 8.030261248, rel=1e-3)
    assert record["conditions"]["failures"]["replicas_per_node"] == 4
    own = run(*asked[:-4], "--fail", "node@10s", "--replicas-per-node", "2", "--restart", "9s", "--format", "json").json
    assert own["failures"][0]["replicas_lost"] == 2


def test_users_and_classes(run: Run, tmp_path: Path) -> None:
    """Forty users who all are always in the fleet: as before as soon as the replica is back."""
    asked = (*BASE, "--replicas", "2", "--concurrency", "40", "--fail", "10s", "--restart", "5s", "--format", "json")
    record = run(*asked).json
    assert record["failures"][0]["recovered_after_s"] == pytest.approx(5.0)
    assert record["in_fleet_before"] == pytest.approx(40.0)
    classes = tmp_path / "classes.yaml"
    classes.write_text(
        "classes:\n"
        "  - {name: quick, rate: 5, prompt: '256', output: '8', ttft: 1ms}\n"
        "  - {name: slow, rate: 5, prompt: '256', output: '8', ttft: 1min}\n"
    )
    mixed = ("simulate", "llama-3.1-8b", "--gpu", "h100-sxm", "--ideal", "--replicas", "2", "--classes", str(classes))
    ran = run(*mixed, "--fail", "50s", "--restart", "20s", "--format", "json")
    within = {one["name"]: one["within"] for one in ran.json["stretches"]}
    assert within["before"] == pytest.approx(0.5, abs=0.1)  # nobody is as quick as a millisecond


def test_an_overload_does_not_recover(run: Run) -> None:
    ran = run(*BASE, "--replicas", "1", "--rate", "200", "--requests", "2000", "--fail", "2s", "--restart", "3s")
    assert ran.code == 3
    assert "not recovered" in ran.err and "not in this run" in ran.out
    again = run(*BASE, "--rate", "200", "--requests", "2000", "--fail", "2s", "--restart", "3s", "--format", "json")
    assert json.loads(again.out)["failures"][0]["recovered_after_s"] is None


@for_each(
    ("arguments", "said"),
    [
        (("--fail", "20s"), "--restart 3min"),
        (("--restart", "20s"), "time to restart needs replicas that fail"),
        (("--fail-mode", "drain"), "--fail-mode belongs to replicas that fail"),
        (("--fail", "9s", "--restart", "1s", "--replicas-per-node", "2"), "needs a node that fails"),
        (("--fail", "soon", "--restart", "1s"), "--fail"),
        (("--fail", "9s:0", "--restart", "1s"), "is not a failure"),
        (("--fail", "node@9s:2", "--restart", "1s"), "is not a failure"),
        (("--fail", "9s", "--restart", "1s", "--warmup", "3"), "requests sent ahead (--warmup)"),
        (("--fail", "9s", "--restart", "1s", "--hit-curve"), "(--hit-curve) and replicas that fail"),
        (("--fail", "9s", "--restart", "1s", "--jobs", "2"), "what a replica loses goes to another"),
        (("--fail", "9s", "--restart", "1s", "--engine-start", "3s"), "--restart is the whole time"),
        (("--fail", "9s", "--engine-start", "3s"), "a restart is the weights and the engine"),
        (("--fail", "900s", "--restart", "1s", "--requests", "40"), "before the failure"),
    ],
)
def test_what_is_refused(run: Run, arguments: tuple[str, ...], said: str) -> None:
    ran = run(*LOAD, *arguments)
    assert ran.code == 2
    assert said in ran.err


def test_sessions_of_agents_go_on_after_a_failure(run: Run) -> None:
    """Every call is sent and answered as without, but for who gives up; those that begin while the only replica is
    away wait for its return at 69 s, up to a minute."""
    asked = (*BASE[:-4], "--sessions", "coding-agent", "--session-rate", "1/s", "--session-count", "100")
    plain = run(*asked, "--format", "json").json
    failed = run(*asked, "--fail", "9s", "--restart", "60s", "--format", "json").json
    requests, (loss,) = failed["requests"], failed["failures"]
    assert requests["arrived"] == requests["finished"] + requests["cancelled"]
    assert requests["arrived"] <= plain["run"]["sent"]
    assert (loss["replicas_lost"], loss["back_s"]) == (1, 69.0)
    missing = next(one for one in failed["stretches"] if one["name"] == "replicas missing")
    assert missing["replicas"] == 0.0 and 20.0 < missing["ttft_s"] < 62.0


def test_a_day_with_a_failure(run: Run, tmp_path: Path) -> None:
    """Two replicas all day; one is gone for 60 s from 10 min on. The bill is as without: one replaces the other."""
    profile = tmp_path / "flat.csv"
    profile.write_text("time,rate\n0,2\n", encoding="utf-8")
    asked = ("day", "llama-3.1-8b", "--gpu", "l4", "--prompt", "512", "--output", "32", "--price", "l4=1.00")
    asked += ("--ttft", "2s", "--tpot", "120ms", "--profile", str(profile), "--duration", "20min", "--format", "json")
    without = run(*asked, "--policy", "static").json
    record = run(*asked, "--policy", "static", "--cold-start", "60s", "--fail", "10min").json
    assert without["failures"] is None and "failures" not in without["policies"][0]
    assert record["failures"] == {"mode": "cut", "replicas_per_node": None}
    (static,) = record["policies"]
    (failure,) = static["failures"]
    assert (failure["at_s"], failure["back_s"], failure["replicas_lost"]) == (600.0, 660.0, 1)
    assert static["cost_per_day"] == without["policies"][0]["cost_per_day"]
    assert static["begun_anew"] == failure["began_anew"]
    assert failure["within_while_missing"] <= 1.0
    late = run(*asked, "--policy", "static", "--cold-start", "60s", "--fail", "30min")
    assert late.code == 2 and "outside the simulated time" in late.err
    unknown = run(*asked, "--policy", "static", "--fail", "10min")
    assert unknown.code == 2 and "start-up time" in unknown.err


PLAN = ("plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--ideal", "--prompt", "2048", "--output", "32", "--most", "1")
PLAN += ("--quant", "native", "--token-budget", "8192", "--price", "h100-sxm=2", "--ttft", "500ms")


def test_a_plan_that_survives_says_what_that_costs(run: Run) -> None:
    """Two carry the load; one of two does not, and two of three do."""
    asked = (*PLAN, "--rate", "40", "--survive", "1", "--storage-bandwidth", "2GB/s", "--engine-start", "4s")
    ran = run(*asked, "--mtbf", "2111d", "--format", "json")
    survival = ran.json["plan"]["survival"]
    assert survival["restart_s"] == pytest.approx(4 + 8.030261248, rel=1e-3)
    assert (survival["failure_free"]["replicas"], ran.json["plan"]["replicas"]) == (2, 3)
    assert survival["requests_judged"] >= 4000
    table = run(*asked, "--mtbf", "2111d").out
    assert "1 of 3 replicas (1 GPU), back after 12.03 s" in table
    assert "surviving costs more" in table and "2.00 USD/h (50.0%)" in table
    assert "0.519 replicas lost per year" in table  # 3 x 365.25/2111


@for_each(
    ("arguments", "said"),
    [
        (("--survive", "0", "--restart", "1min"), "neither a number of replicas nor a node"),
        (("--survive", "rack", "--restart", "1min"), "neither a number of replicas nor a node"),
        (("--restart", "1min"), "needs --survive"),
        (("--mtbf", "2000d"), "needs --survive"),
        (("--survive", "1", "--restart", "0s"), "--restart must be more than 0"),
        (("--survive", "1", "--restart", "1min", "--spare", "1"), "spare replicas (--spare)"),
    ],
)
def test_what_a_plan_does_not_survive(run: Run, arguments: tuple[str, ...], said: str) -> None:
    ran = run(*PLAN, "--rate", "40", *arguments)
    assert ran.code == 2
    assert said in ran.err
    card = run(*PLAN[:2], "--gpu", "l4,h100-sxm", *PLAN[4:], "--rate", "40", "--survive", "node", "--restart", "1min")
    assert card.code == 2 and "number of l4" in card.err


def test_nobody_says_how_many_cards_are_in_a_host(run: Run) -> None:
    asked = ("simulate", "llama-3.1-8b", "--gpu", "l4", "--prompt", "512", "--output", "32", "--rate", "1")
    ran = run(*asked, "--fail", "node@9s", "--restart", "1s")
    assert ran.code == 2 and "--replicas-per-node" in ran.err
    apart = run(*asked, "--prefill-replicas", "1", "--decode-replicas", "1", "--fail", "9s", "--restart", "1s")
    assert apart.code == 2 and "pools of their own for prompts and decodes" in apart.err


@for_each(
    ("load", "said"),
    [
        ("--rate 100 --fail 0s --restart 10s", "no request was done before the failure at 0 s"),
        ("--concurrency 8 --fail 10ms --restart 10s", "no request was done before the failure at 0.01 s"),
        ("--rate 2 --fail 20s --restart 10s --max-model-len 500", "101 of 101 requests can never run"),
    ],
)
def test_a_fleet_that_was_never_full_has_no_backlog_to_lose(load: str, said: str, run: Run) -> None:
    """The run is not made longer for it; 101 requests are the 50 s until three restarts after the failure, and one."""
    asked = run(*BASE, "--replicas", "2", *load.split())
    assert asked.code == 3
    assert said in asked.err
