"""``inferplan horizon``: its record, its rows, its picture, and files that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import for_each
from tests.cli.conftest import Run
from tests.json_page import listed

FILE = """
begin: 2027-01
months: 3
hours: {busy: 84, night: 84}
scenarios:
  low: {chance: 0.5}
  high: {chance: 0.5}
kinds:
  h100: {gpus: 8, gpu: h100-sxm}
models:
  chat:
    replicas: {h100: {gpus: 4, rate: 5}}
    penalty: 1
demand:
  - {model: chat, region: eu, rate: 10, growth: {low: 0, high: 0.1}, levels: {busy: 1, night: 0.5}}
offers:
  - {kind: h100, region: eu, term: on-demand, per_hour: 50}
  - {kind: h100, region: eu, term: reserved, months: 3, per_hour: 20}
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The file with some lines replaced, in the folder of the test."""
    monkeypatch.chdir(tmp_path)

    def file(*changes: tuple[str, str]) -> str:
        text = FILE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "own.yaml").write_text(text)
        return "own.yaml"

    return file


def test_the_record_adds_up(run: Run, write) -> None:
    """One machine carries 10 requests/s: it is reserved at 20 x 730 x 3 = 43,800. From the second month on the high
    future needs two machines for half of the hours: 0.5 x 0.5 x 730 x 50 = 9,125 in each of two months."""
    record = run("horizon", write(), "--format", "json", "--check", "1").json
    for part in ("actions", "months", "demand", "offers", "check"):
        assert sorted(record[part][0]) == sorted(listed("horizon", f"{part}[]"))
    assert record["expected_cost"] == pytest.approx(43_800 + 2 * 9_125)
    assert record["expected_bill"] == pytest.approx(sum(month["bill_expected"] for month in record["months"]))
    (action,) = record["actions"]
    assert (action["month"], action["action"], action["machines"], action["term"]) == (
        "2027-01",
        "reserve",
        1,
        "reserved",
    )
    assert record["months"][1]["bill_most"] == pytest.approx(14_600 + 18_250)
    assert record["demand"][0]["requests_per_s_last_most"] == pytest.approx(12.1)
    # all on demand: a machine is up all hours, for 10 requests/s are one machine and 5 are one, too
    assert record["all_on_demand"] == pytest.approx(3 * 730 * 50 + 2 * 9_125)
    planned = [(one["bill_planned"], one["bill_simulated"]) for one in record["check"]]
    assert all(one == pytest.approx(other) for one, other in planned)


def test_rows_are_the_actions_and_a_picture_is_drawn(run: Run, write, tmp_path: Path) -> None:
    lines = run("horizon", write(), "--format", "csv", "--plot", "own.svg").out.splitlines()
    assert lines[0] == "month,action,machines,kind,region,term,months,until"
    assert lines[1].startswith("2027-01,reserve,1.0,h100,eu,reserved,3,")
    assert "<svg" in (tmp_path / "own.svg").read_text()
    shown = run("horizon", write(), "--jobs", "2").out
    assert shown == run("horizon", write(), "--jobs", "1").out
    assert "own.yaml:18" in shown
    checked = [run("horizon", write(), "--check", "1", "--seed", seed).out for seed in ("0", "0", "1")]
    assert checked[0] == checked[1] != checked[2]


def test_people_steps_lists_and_planned_replicas(run: Run, write) -> None:
    """7,200 people with 5 requests an hour are 10 requests/s, doubled in the third month; the price is of a list."""
    record = run(
        "horizon",
        write(
            ("rate: 10, growth: {low: 0, high: 0.1}", "people: 7200, requests_an_hour: 5"),
            ("night: 0.5}}", "night: 0.5}, steps: [{month: 2027-03, factor: 2}]}"),
            ("per_hour: 50", "prices: aws-us-east-1"),
        ),
        "--format",
        "json",
    ).json
    demand = record["demand"][0]
    assert (demand["requests_per_s_first"], demand["requests_per_s_last"]) == pytest.approx((10.0, 20.0))
    assert record["offers"][0]["cost_per_month"] == pytest.approx(55.04 * 730)


def test_a_replica_without_a_rate_is_planned(run: Run, write) -> None:
    """What it is given is the utilisation's share of what it carries."""
    planned = ("replicas: {h100: {gpus: 4, rate: 5}}", "replicas: {h100: {gpus: 1}}\n    model: llama-3.2-1b")
    lengths = ("penalty: 1", "penalty: 1\n    prompt: '256'\n    output: '16'\n    ttft: 1 s\n    utilisation: USED")
    few = ("rate: 10", "rate: 100")
    costs = {
        used: run(
            "horizon", write(planned, (lengths[0], lengths[1].replace("USED", used)), few), "--format", "json"
        ).json
        for used in ("0.8", "0.4")
    }
    marginal = [costs[used]["demand"][0]["cost_of_one_more_request"] for used in ("0.8", "0.4")]
    assert marginal[1] == pytest.approx(2 * marginal[0], rel=1e-6)


HIGH, LEVELS = "high: 0.1", "levels: {busy: 1, night: 0.5}"
REFUSED = [
    ("rate: 10", "rate: -1", "demand.0.rate"),
    ("rate: 10", "rate: .nan", "demand.0.rate"),
    ("rate: 10", "rate: .inf", "demand.0.rate"),
    ("rate: 10", "rate: true", "true is not a number"),
    ("rate: 10, ", "", "not at all"),
    ("rate: 10", "rate: 10, people: 5", "twice"),
    ("rate: 10", "people: 5", "requests_an_hour"),
    ("rate: 10", "log: absent.csv", "leave growth out"),
    (HIGH, "high: -1", "growth"),
    (HIGH, "high: .nan", "growth"),
    (", high: 0.1", "", "'high'"),
    (HIGH, "high: 0.1, mid: 0", "'mid' is no scenario"),
    ("months: 3\nhours", "months: 120\nhours", "own.yaml"),
    ("begin: 2027-01", "begin: 2027-13", "begin"),
    ("begin: 2027-01", "begin: 2027", "begin"),
    ("months: 3\nhours", "months: 0\nhours", "months"),
    ("chance: 0.5}\n  high", "chance: 0.4}\n  high", "0.9, not 1"),
    ("night: 84}", "night: 80}", "164 in a week"),
    ("night: 84}", "night: .nan}", "hours"),
    ("night: 0.5}", "noon: 0.5}", "'noon' is no level"),
    (LEVELS, "levels: {busy: 1}", "'night'"),
    (", " + LEVELS, "", "load of each level"),
    ("gpus: 4", "gpus: 16", "larger than a machine of 8"),
    ("rate: 5", "rate: 0", "rate"),
    ("h100: {gpus: 4, rate: 5}", "h200: {gpus: 4, rate: 5}", "no machine in eu"),
    ("rate: 5}}", "rate: 5}, h200: {rate: 2}}", "'h200' is no kind"),
    (", rate: 5", "", "model of chat"),
    ("model: chat,", "model: talk,", "'talk' is no model"),
    ("region: eu, rate", "region: us, rate", "us: there are no machines"),
    ("region: eu, rate", "region: eu, served_in: [us], rate", "'us' is no region"),
    ("kind: h100, region: eu, term: on-demand", "kind: l4, region: eu, term: on-demand", "'l4' is no kind"),
    ("per_hour: 50", "per_hour: 50, months: 3", "months does not apply"),
    ("per_hour: 50", "per_hour: 50, interruptions: 1", "interruptions does not apply"),
    ("per_hour: 50", "per_hour: 50, prices: lambda", "twice"),
    (", per_hour: 50", "", "not at all"),
    ("per_hour: 50", "prices: nope", "no prices named 'nope'"),
    ("per_hour: 50", "per_hour: 50, from: 2027-04", "after the last month"),
    ("per_hour: 50", "per_hour: 50, until: 2026-12", "before the first"),
    ("per_hour: 50", "per_hour: 50, from: 2027-03, until: 2027-02", "before it begins"),
    ("term: on-demand", "term: spot", "needs interruptions"),
    ("term: on-demand", "term: spot, interruptions: 50, restart: 6 min", "is up for 0.0067"),
    ("term: reserved, months: 3", "term: reserved", "needs months"),
    ("months: 3, per_hour", "months: 0, per_hour", "months"),
    ("term: reserved, months: 3, per_hour: 20", "term: owned, months: 3, price: 9", "needs power"),
    ("term: reserved, months: 3, per_hour: 20", "term: on-demand, per_hour: 50", "the same offer is given twice"),
    ("offers:", "quotas: [{kind: l4, region: eu, machines: 1}]\noffers:", "no offer sells"),
    ("offers:", "power: {eu: 10 kW}\noffers:", "no machine in eu states its power"),
    ("offers:", "power: {us: 10 kW}\noffers:", "'us' is no region"),
    ("offers:", "power: {eu: 10}\noffers:", "has no unit"),
    ("offers:", "have: [{kind: h100, region: eu, machines: 1, until: 2027-01}]\noffers:", "they are gone by"),
    ("offers:", "have: [{kind: h100, region: eu, machines: 1, release: true}]\noffers:", "saves nothing"),
    ("offers:", "have: [{kind: h100, region: eu, machines: -1}]\noffers:", "have.0.machines"),
    ("  h100: {gpus: 8, gpu: h100-sxm}", "  h100: {gpus: 8}\n  h100: {gpus: 4}", "given twice"),
    ("offers:", "demands: []\noffers:", "did you mean demand"),
    ("  low: {chance: 0.5}", "  low: {chance: 0.5, spot: 2}", "spot"),
    ("  low: {chance: 0.5}", "  low: {chance: 0.5, spot: 0.5}", "no offer has any"),
    ("  low: {chance: 0.5}", "  low: {chance: 0.5, quantile: 0.5}", "there is none"),
    ("  h100: {gpus: 8, gpu: h100-sxm}", "  h100: {gpus: 8}\n  l4: {gpus: 1}", "no offer sells l4"),
    ("penalty: 1", "penalty: 1\n    ttft: 1 s", "all of chat have a rate"),
    ("rate: 5}}", "rate: 5, quant: fp8}}", "this one has a rate"),
    ("night: 0.5}}", "night: 0.5}, steps: [{month: 2027-04, factor: 2}]}", "a step in 2027-04"),
    ("night: 0.5}}", "night: 0.5}, steps: [{month: 2027-01, factor: 2}]}", "a step in 2027-01"),
    ("per_hour: 50", "per_hour: 50, pue: 1.2", "pue does not apply"),
    ("term: reserved,", "term: reserved, lead: 3,", "after the last month"),
]


@for_each("old, new, words", REFUSED)
def test_files_that_are_refused(run: Run, tmp_path: Path, old: str, new: str, words: str) -> None:
    """One error that names the line."""
    assert old in FILE
    text = FILE.replace(old, new, 1)
    if "120" in new:
        text = text.replace(HIGH, "high: 9")
    (tmp_path / "own.yaml").write_text(text)
    ran = run("horizon", str(tmp_path / "own.yaml"))
    assert ran.code == 2, (new, ran.code, ran.err)
    assert words in ran.err
    assert "own.yaml" in ran.err
    assert "Traceback" not in ran.err


def test_demand_for_one_model_from_one_region_is_one_row(run: Run, write) -> None:
    row = FILE[FILE.index("  - {model") : FILE.index("offers:")]
    ran = run("horizon", write((row, row * 2)))
    assert (ran.code, "own.yaml:16" in ran.err, "given twice" in ran.err) == (2, True, True)


@for_each(
    "old, new, words",
    [
        ("    penalty: 1\n", "", "most of the offers"),
        ("offers:", "budget: {month: 100}\noffers:", "budget"),
    ],
)
def test_no_plan_is_exit_code_3(run: Run, tmp_path: Path, old: str, new: str, words: str) -> None:
    """Nothing is sold beyond one machine, or the budget pays for none, and every request has to be served."""
    text = FILE.replace("    penalty: 1\n", "").replace(old, new, 1).replace("per_hour: 50", "per_hour: 50, most: 0")
    (tmp_path / "own.yaml").write_text(text.replace("per_hour: 20", "per_hour: 20, most: 1"))
    ran = run("horizon", str(tmp_path / "own.yaml"))
    assert ran.code == 3
    assert "no machines keep the limits" in ran.err
    assert words in ran.err or "all of them together" in ran.err


def test_no_demand_needs_nothing(run: Run, write) -> None:
    record = run("horizon", write(("rate: 10", "rate: 0")), "--format", "json").json
    assert record["expected_cost"] == 0
    assert record["actions"] == []
    assert run("horizon", write(("rate: 10", "rate: 0"))).code == 0


def test_extreme_loads(run: Run, write) -> None:
    """A million requests per second are 100,000 machines; a request in a thousand years is one."""
    record = run("horizon", write(("rate: 10", "rate: 1000000")), "--format", "json").json
    assert record["months"][0]["machines_held"] + record["months"][0]["machines_hired_most"] == pytest.approx(100_000)
    record = run(
        "horizon", write(("rate: 10", "rate: 1.0e-10"), ("penalty: 1", "unserved: 0")), "--format", "json"
    ).json
    assert record["months"][0]["machines_held"] in (0, 1)
