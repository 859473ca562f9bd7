"""Reports on what is written down here (months of machines, measured rows, bills, days): cells and lines by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.answers.cost import ApiPrice, Cost, Rates
from inferplan.catalog.bills import Offer, Tariff
from inferplan.figures import record
from inferplan.reports import cost as costs
from inferplan.reports import day as days
from inferplan.reports import fit, horizon, several, validation
from inferplan.reports.hosted import same_load
from inferplan.traffic.profile import Profile
from inferplan.traffic.requests import Slo
from tests.cases import for_each
from tests.validate.test_facts import ROWS, scored


def cells(row: Any) -> dict[str, str]:
    """What people see of a row, by the heads of its columns."""
    return {one.label: one.shown for one in row if one.seen and one.label is not None}


FILE = """currency: EUR
models:
  chat: {}
offers:
  - a
  - b
power: 5
"""


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "months.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


def months(**more: Any) -> Any:
    """Two months of two levels (730 and 70 h), two scenarios of a half each; one stream, 1 and 3 requests/s and 2 and 4
    in the second scenario."""
    rates = np.array([[[[1.0, 2.0], [3.0, 3.0]], [[2.0, 1.0], [4.0, 4.0]]]])
    found: dict[str, Any] = {
        "currency": "EUR",
        "months": ("2027-01", "2027-02"),
        "scenarios": ("s", "t"),
        "chance": np.array([0.5, 0.5]),
        "hours": np.array([0.75, 0.25]),
        "rates": rates,
        "paid": False,
        "streams": (SimpleNamespace(model="chat", region="eu", penalty=None),),
        "pools": (
            SimpleNamespace(kind="h100", region="eu", name="h100 in eu"),
            SimpleNamespace(kind="l4", region="us", name="l4 in us"),
        ),
        "offers": (
            SimpleNamespace(row=0, months=12, term="reserved", pool=0),
            SimpleNamespace(row=1, months=None, term="spot", pool=1),
        ),
    }
    return SimpleNamespace(**found | more)


def answer(**more: Any) -> Any:
    asked = more.pop("asked", months())
    found: dict[str, Any] = {
        "asked": asked, "cost": 2000.0, "penalties": 100.0, "beyond": 50.0, "whole": True, "gap": 0.0,
        "rounded_up": None, "on_demand": 2500.0, "reserved": 2000.0, "mean": None, "certain": 1900.0,
        "stochastic_value": 30.0, "information_value": 100.0, "actions": [], "reasons": [], "bindings": [],
        "bills": np.array([[800.0, 1000.0], [900.0, 1300.0]]),
        "hired": np.array([[[1.0, 2.0], [0.0, 1.0]]]),
        "most_hired": np.array([[[2.0, 3.0], [0.0, 1.5]]]),
        "solved": SimpleNamespace(machines=np.array([[2.0, 3.0], [0.0, 0.0]]), missed=np.zeros((1, 2, 2, 2)),
                                  programme=SimpleNamespace(flexibles=[1])),
        "served_by": lambda place: {0: 0.75, 1: 0.25}, "expected_missed": lambda place: 0.01,
        "chance_missed": lambda place: 0.5, "marginal": lambda place: 0.0123,
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def test_what_to_do_by_month(plan_file: Path) -> None:
    """The first offer stands in line 5 of the file, the second in line 6."""
    buy = SimpleNamespace(month=0, pool=0, term="reserved", machines=3.0, offer=0, until=1, goes=False)
    assert cells(horizon._action(answer(), plan_file, buy)) == {
        "month": "2027-01", "": "reserve", "machines": "3", "kind": "h100", "region": "eu", "term": "reserved",
        "months": "12", "until": "2027-02", "said in": "months.yaml:5",
    }  # fmt: skip
    for change, expected in (
        ({"until": None}, {"until": "after the end", "": "reserve"}),
        ({"goes": True, "until": None}, {"until": "", "": "release", "said in": ""}),
        (
            {"term": "owned", "offer": None, "machines": 2.5},
            {"": "buy", "months": "-", "said in": "", "machines": "2.50"},
        ),
    ):
        row = cells(horizon._action(answer(), plan_file, SimpleNamespace(**vars(buy) | change)))
        assert {name: row[name] for name in expected} == expected


def test_months_and_their_bills() -> None:
    """1 and 2 machines are hired in the first month, half of the time each: 1.5. Of 1.25 requests/s x 0.5 and 3 x 0.5 a
    quarter of a request/s is lost in one scenario."""
    shown = [one.shown for one in horizon._month(answer(), 0)]
    assert shown == ["2027-01", "2", "1.50", "3", "900", "800", "1,000", "0.00%"]
    row = record(horizon._month(answer(), 0))
    assert (row["machines_hired_most"], row["bill_most"], row["machines_held"]) == (3.0, 1000.0, 2.0)
    lost = np.zeros((1, 2, 2, 2))
    lost[0, 0, 1, 1] = 1.0
    some = answer(solved=SimpleNamespace(machines=np.array([[2.0, 3.0]]), missed=lost))
    assert record(horizon._month(some, 0))["unserved_share"] == pytest.approx(0.25 * 0.5 / (1.25 * 0.5 + 3 * 0.5))
    assert record(horizon._month(some, 1))["unserved_share"] == 0.0
    none = answer(asked=months(rates=np.zeros((1, 2, 2, 2))))
    assert record(horizon._month(none, 0))["unserved_share"] == 0.0


def test_requests_of_a_stream() -> None:
    """The busiest level: 2 and 3 requests/s in the first month, 2 and 4 in the last."""
    row = cells(horizon._demand(answer(), 0))
    assert row == {
        "model": "chat", "from": "eu", "requests/s, first": "2.5", "last": "3", "least": "2", "most": "4",
        "unserved": "1.00%", "chance of any": "50%", "1,000 more cost": "12.3", "1,000 lost cost": "not allowed",
        "served by": "h100 in eu 75%, l4 in us 25%",
    }  # fmt: skip
    stream = (SimpleNamespace(model="chat", region="eu", penalty=0.5),)
    assert cells(horizon._demand(answer(asked=months(streams=stream)), 0))["1,000 lost cost"] == "500"


def reason(plan_file: Path, machines: float, worth: float, flexible: bool = False) -> dict[str, str]:
    offer = SimpleNamespace(pool=0, flexible=flexible, row=1, term="spot", months=3, cost=10.0, ratio=1.5)
    one = SimpleNamespace(offer=offer, machines=machines, worth=worth, months=2)
    return cells(horizon._reason(answer(), plan_file, one))


def test_why_an_offer_is_taken(plan_file: Path) -> None:
    row = reason(plan_file, 2.0, 1.25)
    assert row == {
        "said in": "months.yaml:6", "kind": "h100", "region": "eu", "term": "spot", "months": "3",
        "EUR per month": "15", "machines": "2", "why": "at its limit: one more saves 25% of its price",
    }  # fmt: skip
    assert reason(plan_file, 2.0, 1.0, flexible=True)["machines"] == "2.00 on average"
    assert reason(plan_file, 2.0, 1.0)["why"] == "taken"
    assert reason(plan_file, 0.0, 1.0)["why"] == "as good as the chosen ones"
    assert reason(plan_file, 0.0, 0.75)["why"] == "too expensive: chosen at 75% of its price"
    assert reason(plan_file, 0.0, 0.0)["why"] == "no use"


def test_limits_that_are_reached(plan_file: Path) -> None:
    def limit(name: str, row: Any) -> dict[str, str]:
        return cells(horizon._binding(plan_file, SimpleNamespace(name=name, row=row, months=2, saved=0.125)))

    assert limit("power", None) == {
        "said in": "months.yaml:7", "limit": "power", "": "-", "months": "2", "one more saves": "0.125",
        "of one more": "watt",
    }  # fmt: skip
    units = {name: limit(name, None)["of one more"] for name in ("budget", "unserved", "stock")}
    assert units == {"budget": "unit of money", "unserved": "request", "stock": "machine"}
    assert limit("offers", 1)["said in"] == "months.yaml:6" and limit("unserved", "chat")["said in"] == "months.yaml:3"


def test_an_answer_against_others() -> None:
    rows = [list(cells(row).values()) for row in horizon._alternatives(answer())]
    assert rows == [
        ["this answer", "2,000", ""], ["all on demand", "2,500", "+25.0%"], ["all reserved", "2,000", ""],
        ["the answer to the mean demand", "-", ""], ["with the scenario known beforehand", "1,900", "-5.0%"],
    ]  # fmt: skip
    assert [list(cells(row).values())[2] for row in horizon._alternatives(answer(cost=0.0))] == [""] * 5
    title = "2 months from 2027-01, 2 scenarios: 2,000 EUR expected"
    assert horizon._title(answer()) == title
    one = answer(asked=months(months=("2027-01",), scenarios=("s",)))
    assert horizon._title(one) == "1 month from 2027-01, 1 scenario: 2,000 EUR expected"


def test_sentences_about_months() -> None:
    prorated = "beyond: prorated: a term counts with its months up to the last one, as if the load went on after it"
    spot = (
        "spot machines are also paid for while they restart: exp(interruptions x restart) machines per machine needed"
    )
    values = ["value of the stochastic solution: 30 EUR", "expected value of perfect information: 100 EUR"]
    assert horizon._notes(answer()) == [prorated, *values, spot]
    bare = {"stochastic_value": None, "information_value": None}
    paid = months(paid=True, offers=(), scenarios=("s",))
    assert horizon._notes(answer(asked=paid, **bare)) == ["50 EUR of it are paid after the last month (beyond: paid)"]
    assert horizon._notes(answer(asked=paid, beyond=0.0, **bare)) == []
    both = months(paid=True, offers=())
    assert horizon._notes(answer(asked=both, beyond=0.0, **bare)) == [
        "the answer to the mean demand does not keep the limits in every scenario"
    ]
    large = horizon._notes(answer(asked=paid, beyond=0.0, whole=False, rounded_up=30.0, gap=0.0123, **bare))
    assert large[1:] == [
        "rounding each of these up at all times costs 1.50% more at most, if stocks have them",
        "a cheaper answer saves 1.23% at most",
    ]
    assert len(horizon._notes(answer(asked=paid, beyond=0.0, whole=False, gap=1e-7, **bare))) == 1
    assert [horizon._count(machines) for machines in (1234.0, 2.5, 3.0000001)] == ["1,234", "2.50", "3"]


def test_the_picture_of_months() -> None:
    """2 and 3 machines are held, and 1.5 and 0.5 hired on average."""
    figure = horizon.horizon_picture(answer())
    bars = [tuple(round(float(part), 6) for part in bar.get_bbox().bounds) for bar in figure.axes[0].patches]
    assert bars == [(-0.45, 0, 0.9, 2), (0.55, 0, 0.9, 3), (-0.45, 2, 0.9, 1.5), (0.55, 3, 0.9, 0.5)]
    names = [one.get_text() for one in figure.axes[0].get_legend().get_texts()]
    assert names == ["h100 in eu, held", "l4 in us, spot"]
    assert figure.axes[1].lines[0].get_ydata().tolist() == [900.0, 1100.0]
    late = horizon.horizon_picture(answer(hired=np.array([[[0.0, 0.0], [0.0, 1.0]]])))
    assert [one.get_text() for one in late.axes[0].get_legend().get_texts()] == names  # hired in one of two months
    never = horizon.horizon_picture(answer(hired=np.zeros((1, 2, 2))))
    assert [one.get_text() for one in never.axes[0].get_legend().get_texts()] == names[:1]


def test_a_month_without_requests() -> None:
    """None is missed of none; nothing is hired where nothing can be."""
    idle = months(rates=np.zeros((1, 2, 2, 2)))
    found = record(horizon._month(answer(asked=idle, hired=np.zeros((0, 2, 2)), most_hired=np.zeros((0, 2, 2))), 0))
    assert (found["machines_held"], found["machines_hired_mean"], found["machines_hired_most"]) == (2.0, 0.0, 0.0)
    assert found["unserved_share"] == 0.0


def checked_row(**more: Any) -> Any:
    found: dict[str, Any] = {
        "month": "2027-01", "scenario": "s", "chance": 0.5, "planned": 900.0, "bill": 950.0, "missed_planned": 0.01,
        "missed": 0.02, "interruptions": 3.5,
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def test_a_check_of_months() -> None:
    (row,) = horizon._checks(SimpleNamespace(rows=[checked_row()]))  # type: ignore[arg-type]
    assert [one.shown for one in row] == ["2027-01", "s", "50%", "900", "950", "1.000%", "2.000%", "3.5"]


def test_the_whole_report_on_months(plan_file: Path) -> None:
    buy = SimpleNamespace(month=0, pool=0, term="reserved", machines=3.0, offer=0, until=1, goes=False)
    bound = SimpleNamespace(name="power", row=None, months=2, saved=0.125)
    report = horizon.horizon_report(
        answer(actions=[buy], bindings=[bound]), plan_file, SimpleNamespace(weeks=2, rows=[checked_row()])
    )  # type: ignore[arg-type]
    assert [table.title for table in report.tables][1:] == [
        "What to do", "Months", "Requests", "Why: offers of the file", "Limits that are reached",
        "Check: 2 weeks, hour by hour",
    ]  # fmt: skip
    assert report.record["expected_bill"] == 2000 - 100 - 50 and report.record["rounded_up"] is None
    assert [len(report.record[name]) for name in ("actions", "months", "demand", "offers", "limits", "check")] == [
        1, 2, 1, 0, 1, 1
    ]  # fmt: skip
    bare = horizon.horizon_report(answer(whole=False, rounded_up=30.0), plan_file)
    assert [table.title for table in bare.tables][1:3] == ["Nothing is held", "Months"] and len(bare.tables) == 5
    assert bare.record["check"] is None and bare.record["rounded_up"] == 30.0
    assert horizon.horizon_report(answer(rounded_up=30.0), plan_file).record["rounded_up"] is None


def row(place: int, **more: Any) -> Any:
    """One of the rows of the scores, with what its report needs."""
    one = ROWS[place] if not more.get("refused") else scored({("ttft", "mean"): 1.0}, {})
    found: dict[str, Any] = {
        "row": SimpleNamespace(**vars(one.row), where=f"file:{place}"), "error": one.error, "refused": "",
        "impossible": (), "above_uncertain": (), "suspect": False,
        "prediction": SimpleNamespace(**vars(one.prediction), basis="measured", notes=[]),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def test_sentences_about_rows() -> None:
    """1/1.2 and 1/0.95 of the prediction: the median is 0.943."""
    refused = [row(4, refused=f"why {place}", prediction=None) for place in (1, 2, 3, 4, 5, 6, 6)]
    notes = validation._notes([row(0), row(1), *refused])
    assert notes[:2] == ["answered: 2 of 9 rows", "refused: 2 rows: why 6"]
    assert notes[2] == "refused: 1 row: why 1" and notes[6] == "refused: 1 further reasons; --rows FILE.csv lists all"
    assert notes[7] == "measured over predicted, median: TTFT 0.943 times"
    assert notes[-1] == "basis: measured 2"
    five = validation._notes([row(0), *refused[:5]])
    assert not any("further reasons" in line for line in five)


def test_rows_that_are_faster_than_can_be() -> None:
    fast = [row(0, impossible=("ttft",)) for _ in range(6)]
    (said,) = [line for line in validation._notes(fast) if "impossible" in line]
    assert said.startswith(
        "physically impossible (faster than a perfect device, more than memory holds): 6 rows (file:0, "
    )
    assert said.count("file:0") == 5 and "file:0, ...)" in said
    assert "file:0)" in next(line for line in validation._notes(fast[:5]) if "impossible" in line)
    above = [row(0, above_uncertain=("ttft",)) for _ in range(6)]
    (said,) = validation.above_notes(above)
    assert said.startswith("peaks of g are measured lower bounds, or of low confidence: 6 rows (file:0, ")
    assert "file:0, ...) are faster" in said and "file:0) are faster" in validation.above_notes(above[:5])[0]
    assert validation.above_notes([row(0)]) == []


def test_rows_that_are_much_slower() -> None:
    def said(ratio: float) -> list[str]:
        return validation._ratio_notes([scored({("tpot", "mean"): ratio}, {("tpot", "mean"): 1.0})])

    assert said(1.5) == ["measured over predicted, median: TPOT 1.5 times"]
    assert len(said(1.51)) == 2 and said(1.51)[1].startswith("much slower than predicted: compare")
    assert validation._ratio_notes([]) == []


def test_rows_as_people_and_programs_see_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        validation, "prediction_cells", lambda one: {"ttft_predicted_ms": "1200", "tpot_predicted_ms": ""}
    )
    shown = [one.shown for one in validation._row(row(0))]
    assert shown == ["file:0", "1,000.0", "1200", "+20.0%", "", "", "", ""]
    assert validation._row(row(0, impossible=("ttft",)))[-1].shown == "impossible"
    assert validation._row(row(0, above_uncertain=("ttft",)))[-1].shown == "above peaks"
    assert validation._row(row(0, refused="why"))[-1].shown == "why"
    assert validation._ends(None, "ttft", None, "_s") == {"low_s": None, "high_s": None}
    assert validation._ends(ROWS[1].prediction, "ttft", None, "_s") == {"low_s": 0.9 * 0.95, "high_s": 1.1 * 0.95}
    assert [validation._quantity(3 * 2**30, "bytes"), validation._quantity(1234.5, "tokens")] == [
        "3.00 GiB",
        "1,234.50 tokens",
    ]
    line = SimpleNamespace(name="weights", unit="bytes", logged=2.0**30, predicted=1.5 * 2**30, error=0.5)
    report = validation.log_report([line], "title")  # type: ignore[list-item]
    assert report.tables[0].rows == [["weights", "1.00 GiB", "1.50 GiB", "+50.0%"]]
    assert report.rows == report.record["lines"] == [
        {"name": "weights", "unit": "bytes", "logged": 2.0**30, "predicted": 1.5 * 2**30, "error": 0.5}
    ]  # fmt: skip


def test_rows_are_listed_where_they_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve, or all of them where somebody asks."""
    monkeypatch.setattr(
        validation, "prediction_cells", lambda one: dict.fromkeys(("ttft_predicted_ms", "tpot_predicted_ms"), "")
    )
    monkeypatch.setattr(validation, "row_record", lambda one: {})
    for count, each, listed in ((12, False, True), (13, False, False), (13, True, True)):
        found = SimpleNamespace(logs=[], scored=[row(0)] * count, title="title")
        report = validation.files_report(found, each)  # type: ignore[arg-type]
        assert ("rows" in [table.title for table in report.tables]) is listed


def test_logs_beside_each_other() -> None:
    line = SimpleNamespace(name="weights", unit="bytes", logged=1.0, predicted=1.5, error=0.5)
    one = SimpleNamespace(path="a.log", described="m", lines=[line])
    alone = validation.files_report(SimpleNamespace(logs=[one]))  # type: ignore[arg-type]
    assert [table.title for table in alone.tables] == ["a.log: memory of m"] and "lines" in alone.record
    two = validation.files_report(SimpleNamespace(logs=[one, one]))  # type: ignore[arg-type]
    assert [log["file"] for log in two.record["logs"]] == ["a.log", "a.log"] and len(two.tables) == 2


def test_suspect_rows_are_scored_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "row_record", lambda one: {})
    whole = [row(0), row(1, suspect=True), row(2, impossible=("ttft",)), row(4, refused="why", prediction=None)]
    report = validation.validation_report(whole, "title")
    assert report.record["rows"] == 4 and report.record["answered"] == 3
    assert report.record["refused"] == [{"row": "file:4", "reason": "why"}]
    assert report.record["faster_than_light"] == [{"row": "file:2", "metrics": ["ttft"]}]
    assert report.record["above_uncertain_peaks"] == []
    assert list(report.record["scores"]) == ["without suspect rows", "all rows"]
    assert [report.record["scores"][name]["ttft"]["n"] for name in report.record["scores"]] == [1, 2]
    assert list(validation.validation_report([row(0)], "title").record["scores"]) == ["all rows"]


def test_scores_of_sets_and_groups() -> None:
    """A latency with two statistics is named with each; a group of one member is no group."""
    table = validation._overall([("all rows", ROWS)], "title")
    assert [list(line) for line in table.rows] == [
        ["TTFT mean, all rows", "2", "12.5%", "12.5%", "18.5%", "+7.5%", "50%"],
        ["TTFT p99, all rows", "1", "0.0%", "0.0%", "0.0%", "+0.0%", "100%"],
    ]
    one = validation._overall([("all rows", ROWS[1:])], "title")
    assert [line[0] for line in one.rows] == ["TTFT, all rows"]
    groups = validation._groups(ROWS)
    assert [table.title for table in groups] == ["by model"]
    assert [list(line)[:3] for line in groups[0].rows] == [["m", "TTFT", "1"], ["n", "TTFT", "1"]]


SOLD = Offer(gpu="h100-sxm", gpus=8, per_hour=30.0, currency="EUR", term="on demand", source="list")
COST = Cost(bill=Tariff(offers=(SOLD,), devices=4).bill(1), rates=Rates(requests=0.5, prompt=1000.0, output=100.0))


def test_a_bill_in_lines() -> None:
    """30 an hour, half of it idle; 0.5 requests/s are 1,800 an hour: 16.6667 thousandths each. 21,900 a month."""
    rows = cells(costs._bill(COST, None, None))
    assert rows["idle GPUs you pay for"] == "4 of 8 (50% of the bill)"
    assert rows["per month of 730 hours"] == "21,900 EUR" and rows["a request"] == "0.016667 EUR"
    assert "per million requests" not in rows and "together" not in rows and "cache tiers" not in rows
    assert rows["per million output tokens, counting input as free"] == "166.6667 EUR"
    user = cells(costs._bill(COST, None, 40.0))
    assert user["per user per month, at 40 requests per day"] == f"{30 / 1800 * 40 * 730 / 24:,.4f} EUR"
    encoder = cells(costs._bill(Cost(bill=COST.bill, rates=Rates(requests=0.5, prompt=1000.0, output=0.0)), None, None))
    assert encoder["per million requests"] == "16,666.6667 EUR" and encoder["per million tokens"] == "16.6667 EUR"
    assert "a request" not in encoder
    tiers = cells(costs._bill(Cost(bill=COST.bill, rates=COST.rates, tiers=5.0), None, None))
    assert (tiers["cache tiers"], tiers["together"]) == ("5.00 EUR/h", "35.00 EUR/h")


def test_a_bill_beside_that_of_an_api() -> None:
    """1 and 2 for a million tokens in and out: a request of 1,000 and 100 is 0.0012; 21,900 are 18.25 million of them,
    13.9 times what 1,800 an hour make in a month."""
    rows = cells(costs._bill(COST, ApiPrice(input=1.0, output=2.0), None))
    many = 21900 / 0.0012
    said = f"{many:,.0f} requests per month, 20.1B tokens ({many / (1800 * 730):.1f} x capacity: the API costs less"
    said += " at any load)"
    said += ", 6.94 per second on average"  # 18,250,000 in 730 hours of 3,600 s
    assert rows["break-even with an API at 1/2"] == said
    cheap = cells(costs._bill(COST, ApiPrice(input=20.0, output=20.0), None))
    assert cheap["break-even with an API at 20/20"].endswith(
        " requests per month, 1.09B tokens (76% of capacity), 0.379 per second on average"
    )


@for_each(
    ("most", "said"),
    [
        (inf, "as much as it at 6.94 requests/s"),
        (7.0, "as much as it at 6.94 requests/s"),
        (6.9, "the API stays cheaper at any load these replicas carry (up to 6.9 requests/s)"),
        (0.5, "the API stays cheaper at any load these replicas carry (up to 0.5 requests/s)"),
    ],
)
def test_nothing_breaks_even_beyond_what_is_carried(most: float, said: str) -> None:
    """0.0012 a request: 0.5 of them a second are 1,314,000 a month, 1,577 EUR of 21,900; 18,250,000 are 6.944 a second,
    and a fleet that carries fewer than that is never full enough."""
    same = same_load(COST, ApiPrice(input=1.0, output=2.0), most)
    label = "an API at 1/2 for this load, all month"
    assert cells(same) == {label: f"1,577 EUR per month, 0.072 times this bill; {said}"}
    never = said.startswith("the API")
    rate = None if never else pytest.approx(18_250_000 / (730 * 3600))
    why = said if never else None
    assert record(same) == {
        "api_per_month": pytest.approx(1576.8), "break_even_requests_per_s": rate, "no_break_even": why
    }  # fmt: skip


def test_a_free_api_is_never_dearer() -> None:
    figures = same_load(COST, ApiPrice(input=0.0, output=0.0), inf)
    assert record(figures) == {"api_per_month": 0.0, "break_even_requests_per_s": None, "no_break_even": None}


@for_each(
    ("length", "said"),
    [
        ("flex start of up to 7 days", "21,900 EUR (7 days at most, so not on offer)"),
        ("30 days", "21,900 EUR (30 days at most, so not on offer)"),  # a month is 30.4
        ("capacity block of 1 to 182 days", "21,900 EUR"),
        ("3 years", "21,900 EUR"),
    ],
)
def test_days_are_no_month(length: str, said: str) -> None:
    offer = replace(SOLD, term="reserved", length=length)
    days = Cost(bill=Tariff(offers=(offer,), devices=4).bill(1), rates=COST.rates)
    assert cells(costs._bill(days, None, None))["per month of 730 hours"] == said
    assert any("days at most" in remark for remark in days.bill.remarks) is ("so not" in said)


def test_prices_for_programs() -> None:
    found = costs.bill_record(COST.bill)
    assert (found["price_per_device_hour"], found["price_per_instance_hour"], found["devices_idle"]) == (3.75, 30.0, 4)
    assert (found["instances"], found["devices"], found["devices_bought"], found["list_price_per_hour"]) == (
        1,
        4,
        8,
        None,
    )
    single = costs.price_record(
        Offer(gpu="l4", gpus=None, per_hour=1.0, currency="EUR", term="t", source="s", sized=False)
    )
    assert (single["instance_gpus"], single["instance"], single["date"], single["list_kind"]) == (
        "unknown",
        None,
        None,
        "provider",
    )


def test_what_is_bought_for_a_model() -> None:
    across = Tariff(offers=(replace(SOLD, kind="marketplace"),), devices=16).bill(1)
    assert fit._bought(None) == ("", "")
    assert fit._bought(COST.bill) == ("30.00 EUR", "1 x instance (8 x h100-sxm), list")
    hourly, bought = fit._bought(across)
    assert hourly == "60.00 EUR (marketplace)" and bought.startswith("2 x instance (8 x h100-sxm)")
    assert bought.endswith(", marketplace list")


def test_latencies_beside_their_limits() -> None:
    slo = Slo(ttft=0.6, percentile=95.0)
    assert days._beside_limit(0.437, slo, "ttft") == "437 ms, p95 < 600 ms"
    assert (
        days._beside_limit(0.437, slo, "tpot") == "437 ms"
        and days._beside_limit(None, slo, "ttft") == "-, p95 < 600 ms"
    )
    assert several._limited(0.437, 0.6) == "437 ms (< 600 ms)" and several._limited(0.6, 0.6) == "600 ms (< 600 ms)"
    assert several._limited(0.601, 0.6) == "601 ms (< 600 ms) !" and several._limited(None, 0.6) == "- (< 600 ms) !"
    assert several._limited(None, None) == "-" and several._limited(0.5, None) == "500 ms"


def day(**more: Any) -> Any:
    start = SimpleNamespace(
        bandwidth=2e9, seconds=76.0, weights=16e9, rate=2e9, loader="", start=0.0, rest=68.0, measured=""
    )  # fmt: skip
    asked: dict[str, Any] = {"cold_start": start, "losses": None, "failures": None, "replay": None, "span": 86400.0}
    asked |= more.pop("asked", {})
    kinds = more.pop("classes", ())
    found: dict[str, Any] = {
        "asked": SimpleNamespace(**asked, profile=Profile(name="day.csv", starts=(0.0, 28800.0), rates=(1.0, 2.0))),
        "question": SimpleNamespace(
            slo=Slo(ttft=0.5, tpot=0.02, percentile=95.0),
            demand=SimpleNamespace(classes=kinds, queue="fcfs", arrivals="poisson", samples=1),
        ),
        "hourly": [(0.0, 3600.0, slice(0, 7200)), (3600.0, 7200.0, slice(7200, 7200))],
        "needed": lambda start, stop: 3,
        "requests": SimpleNamespace(classes=[], of=None),
        "policies": [],
        "work": SimpleNamespace(
            design=SimpleNamespace(
                deployment=SimpleNamespace(describe=lambda: "a model", engine=SimpleNamespace(name="vllm"))
            ),
            mixes=[],
            apart=0.0,
            confidence=0.5,
        ),
    }
    return SimpleNamespace(**found | more)


def test_a_day_and_its_start() -> None:
    assert days._title(day()) == "a model: 24 h, profile day.csv, TTFT 500 ms, TPOT 20.0 ms at p95"
    part = "a model: the first 2 h alone, with 1 requests/s at most, not the peak of 2, profile day.csv"
    assert days._title(day(asked={"span": 7200.0})).startswith(part)
    assert days._cold_start(day()) == {
        "seconds": 76.0, "weights_bytes": 16e9, "storage_bytes_per_s": 2e9, "loader": None, "loader_start_s": 0.0,
        "rest_s": 68.0, "rest_is": None,
    }  # fmt: skip
    endless = day()
    endless.asked.cold_start.bandwidth = float("inf")
    found = days._cold_start(endless)
    assert found is not None and found["weights_bytes"] is found["storage_bytes_per_s"] is None
    assert days._cold_start(day(asked={"cold_start": None})) is None


def test_hours_of_a_day() -> None:
    late = np.zeros(7200, dtype=bool)
    late[:72] = True
    one = SimpleNamespace(
        policy="static", mean_replicas=lambda start, stop: 2.5, late=late,
        within=lambda start, stop: slice(0, 7200) if start == 0.0 else slice(7200, 7200),
    )  # fmt: skip
    hours = days._hours(day(), one)  # type: ignore[arg-type]
    assert hours[0] == {"hour": 0, "requests_per_s": 2.0, "replicas": 2.5, "replicas_needed": 3, "missed": 0.01}
    assert (hours[1]["requests_per_s"], hours[1]["missed"]) == (0.0, None)
    table = days._by_hour(day(policies=[one]))
    assert table.columns == ["hour", "requests/s", "static"] and table.title == "Replicas paid for, mean of the hour"
    assert table.rows == [["00:00", "2.00", "2.50"], ["01:00", "0.00", "2.50"]]
    replayed = day(policies=[one], asked={"replay": SimpleNamespace(dated=False, began=0.0)})
    assert [line[0] for line in days._by_hour(replayed).rows] == ["day 1 00:00", "day 1 01:00"]
    kinds = [SimpleNamespace(name="chat"), SimpleNamespace(name="batch")]
    mixed = day(policies=[one], requests=SimpleNamespace(classes=kinds, of=np.array([0] * 5400 + [1] * 1800)))
    table = days._by_hour(mixed)
    assert table.columns == ["hour", "requests/s", "chat", "batch", "static"]
    assert table.rows[0] == ["00:00", "2.00", "1.50", "0.50", "2.50"]


def test_what_is_taken_away_or_fails() -> None:
    assert days._loss_notes(day().asked) == []
    losses, failures = SimpleNamespace(rate=2 / 3600, notice=30.0), SimpleNamespace(mode="cut")
    taken, fails = days._loss_notes(SimpleNamespace(losses=losses, failures=failures))
    assert taken.startswith("each replica is taken away 2 times per hour, 30 s after a notice;")
    assert fails.startswith("a replica that fails is gone at once, and back")
    (drained,) = days._loss_notes(SimpleNamespace(losses=None, failures=SimpleNamespace(mode="drain")))
    assert drained.startswith("a replica that fails is drained first")


def test_mixes_of_classes() -> None:
    kinds = [SimpleNamespace(name="chat", share=0.75), SimpleNamespace(name="batch", share=0.25)]
    mixes = [
        SimpleNamespace(design=SimpleNamespace(rate=4.0, broken="ttft"), shares=(0.98, 0.02)),
        SimpleNamespace(design=SimpleNamespace(rate=3.0, broken=""), shares=(0.5, 0.5)),
    ]
    one = day(classes=kinds)
    one.work.mixes, one.work.apart = mixes, 0.1
    first, second, *rest = days.mix_notes(one)
    assert first.startswith("classes: 0.75 chat, 0.25 batch of the requests of the day; queue per replica: fcfs")
    assert second == (
        "requests/s that a replica carries, by mix: 4 of 0.98 and 0.02; 3 of 0.5 and 0.5; other mixes use the "
        "nearest of "
        "these, at most 10.0% of the requests away"
    )
    assert rest == ["limits of batch are not checked in mixes with less than 5% of it"]
    for share, told in ((0.0, 0), (0.049, 1), (0.05, 0)):
        mixes[0].shares = (1.0 - share, share)
        assert len(days.mix_notes(one)) == 2 + told
    mixes[0].shares = (0.98, 0.02)
    assert days.mixes_record(one) == {
        "simulated": [
            {"shares": [0.98, 0.02], "requests_per_s": 4.0, "breaks_first": "ttft"},
            {"shares": [0.5, 0.5], "requests_per_s": 3.0, "breaks_first": ""},
        ],
        "apart": 0.1,
    }
    one.work.apart = 0.0
    assert days.mix_notes(one)[1].endswith("3 of 0.5 and 0.5") and days.mixes_record(day()) is None


def test_classes_against_their_limits() -> None:
    """8 of 10 are in time, and 9 have to be."""
    part = SimpleNamespace(counts={"arrived": 10}, attained=np.array([1] * 8 + [0] * 2))
    kind = SimpleNamespace(name="chat", slo=Slo(ttft=0.5, percentile=90.0))
    policy = SimpleNamespace(policy="static", parts=[(kind, part), (kind, SimpleNamespace(counts={"arrived": 0}))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(days, "at_percentile", lambda part, name, percentile: 0.25)
        seen = cells(days._class(policy, 0, {"ttft"}))  # type: ignore[arg-type]
        assert seen == {
            "policy": "static", "class": "chat", "requests": "10", "miss": "20.00% !", "TTFT": "250 ms, p90 < 500 ms"
        }  # fmt: skip
        nobody = record(days._class(policy, 1))  # type: ignore[arg-type]
        assert (nobody["missed"], nobody["meets"], nobody["requests"]) == (None, None, 0)
        assert cells(days._class(policy, 1))["policy"] == ""  # type: ignore[arg-type]
        kind.slo = Slo(ttft=0.5, percentile=80.0)
        assert cells(days._class(policy, 0))["miss"] == "20.00%"  # type: ignore[arg-type]
