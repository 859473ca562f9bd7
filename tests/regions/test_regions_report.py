"""The report on a day in several regions, of an answer that is written down here: every cell by hand."""

from __future__ import annotations

from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from inferplan.figures import record
from inferplan.planning.design import Design
from inferplan.regions.answer import Pool, Reason, Without
from inferplan.regions.check import Checked
from inferplan.regions.question import HOURS, Arc, Users
from inferplan.reports import regions as report
from inferplan.traffic.requests import Slo

FILE = """service:
  model: m
regions:
  west:
    access: 20 ms
    stays: true
    most: 8
  east:
    hired: 1
network:
  - {between: [west, east]}
"""


def hours(**values: float) -> np.ndarray:
    """Zero, but for the hours named ``h9=...``."""
    found = np.zeros(HOURS)
    for name, value in values.items():
        found[int(name[1:])] = value
    return found


class Nearest(Design):
    """A replica that was sized."""

    broken: Any = "ttft"
    rate: Any = 12.345
    deployment: Any = SimpleNamespace(describe=lambda: "8 x l4")

    def __repr__(self) -> str:
        return "nearest"


class Sized(NamedTuple):
    slo: Slo
    nearest: Design


SOLD = SimpleNamespace(said="l4 of a list, 2026-01-01")
WEST = Users("west", most=hours(h9=40.0, h10=4.0), mean=hours(h9=2.0, h10=0.5))
EAST = Users("east", most=hours(h3=1234.5), mean=hours(h3=0.25))
ARCS = (
    Arc(0, 0, 0.02, 5.0),
    Arc(0, 1, 0.1, 4.0, open=False),
    Arc(1, 1, 0.0, 0.0, because="a prompt takes longer"),
    Arc(1, 0, 0.125, 1 / 3),
)


def asked(**more: Any) -> Any:
    sites = (
        SimpleNamespace(name="west", hired=(SOLD,), held=(SimpleNamespace(said=""),)),
        SimpleNamespace(name="east", hired=(SOLD, SOLD), held=()),
    )
    found = {"currency": "EUR", "sites": sites, "users": (WEST, EAST), "arcs": ARCS, "paths": (ARCS[0], ARCS[3])}
    return SimpleNamespace(**found | {"pools": lambda site: [5.0], "routings": ("nearest", "carbon")} | more)


def routed(**more: Any) -> Any:
    """16 GPUs held in the west, 2 hired at 09:00 and 1 in the east at 03:00."""
    found = {
        "asked": asked(), "routing": "nearest", "whole_cost": 2000.0, "whole_grams": 5000.0, "whole_kwh": 40.0,
        "gpus_held": lambda site: [16.0, 0.0][site], "all_gpus": hours(h9=18.0, h3=1001.0), "away": 0.125,
        "delay": 0.05, "gap": 0.0, "load": lambda site: [hours(h9=40.0), hours(h3=1234.5, h4=2.0)][site],
        "gpus": lambda site: [hours(h9=18.0, h10=16.0), hours(h3=1.0)][site], "up": lambda site: hours(h9=9.0),
        "cost": lambda site: [1500.0, 500.5][site], "kwh": lambda site: [hours(h9=30.0, h10=9.5), hours(h3=0.5)][site],
        "grams": lambda site: [hours(h9=4000.0, h10=900.0), None][site],
        "share": lambda users, site: [[1.0, 5e-7], [0.25, 0.75]][users][site],
        "flow": np.stack([hours(h9=40.0), hours(h3=1234.5, h9=1e-6)]),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def read(tmp_path: Path, slo: Slo | None = None, **more: Any) -> Any:
    path = tmp_path / "day.yaml"
    path.write_text(FILE, encoding="utf-8")
    slo = slo or Slo(ttft=0.5, percentile=95.0)
    replicas = Sized(slo, Nearest.__new__(Nearest))
    region = SimpleNamespace(pue=1.0, host_watts=0.0)
    spec = SimpleNamespace(
        service=SimpleNamespace(model="m", percentile=95.0, utilisation=0.8),
        regions={"west": region, "east": SimpleNamespace(**vars(region) | more)},
        network=[SimpleNamespace(between=["west", "east"])],
        round_trips=1,
    )  # fmt: skip
    return SimpleNamespace(spec=spec, replicas=[replicas, replicas], slo=slo, question=asked(), path=path)


def seen(ttft: float, verdict: str = "stable", **more: float) -> Any:
    return SimpleNamespace(**{"ttft": ttft, "tpot": 0.02, "e2el": 2.5, "verdict": verdict} | more)


def busy(site: int, ttft: float, delay: float, users: set[int], **more: Any) -> Checked:
    """9 replicas at 09:00 with 40 requests/s."""
    pool = Pool(5.0, hours(h9=40.0), hours(h9=9.0), delay, frozenset(users))
    return Checked("nearest", site, pool, 9, seen(ttft, **more))


def answer(*routes: Any, **more: Any) -> Any:
    found = {"asked": asked(), "routed": routes or (routed(),), "lost": [], "reasons": []}
    return SimpleNamespace(**found | more)


def cells(row: Any) -> dict[str, str]:
    return {one.label: one.shown for one in row if one.seen and one.label is not None}


def test_a_routing(tmp_path: Path) -> None:
    """5,000 g over 40 kWh are 125 g/kWh; 1,019 GPU-hours; 1,500 is a quarter less than 2,000."""
    asks, first, cheap = read(tmp_path), routed(), routed(routing="cost", whole_cost=1500.0)
    whole = answer(first, cheap)
    checked = [busy(0, 0.25, 0.25, {0}), busy(1, 0.1, 0.0, {1})]
    assert cells(report._routing(asks, whole, first, checked)) == {
        "routing": "nearest", "EUR per day": "2,000.00", "saving": "", "GPUs held": "16", "at most": "1,001",
        "GPU-hours": "1,019", "kWh per day": "40.0", "kg CO2": "5.0", "g/kWh": "125", "served away": "12.5%",
        "network, mean": "50.0 ms", "TTFT p95": "500 ms",
    }  # fmt: skip
    assert cells(report._routing(asks, whole, cheap, checked))["saving"] == "25.0%"
    assert cells(report._routing(asks, whole, cheap, checked))["TTFT p95"] == "0 s"  # no hour of it was simulated
    late = [busy(0, 0.2501, 0.25, {0}), busy(1, inf, 0.0, {1})]
    row = report._routing(asks, whole, first, late[:1])
    assert cells(row)["TTFT p95"] == "500 ms !" and record(row)["keeps_the_limits"] is False
    assert cells(report._routing(asks, whole, first, late))["TTFT p95"] == "grows !"
    assert record(report._routing(asks, whole, first, late))["ttft_s"] is None
    free = answer(routed(whole_cost=0.0))
    assert cells(report._routing(asks, free, cheap, []))["saving"] == ""
    dark = report._routing(asks, whole, routed(whole_grams=None), [])
    assert not {"kg CO2", "g/kWh"} & cells(dark).keys() and record(dark)["carbon_g_per_kwh"] is None
    assert cells(dark)["TTFT p95"] == "0 s"


def test_a_region_of_a_routing() -> None:
    assert cells(report._region(routed(), 0)) == {
        "routing": "nearest", "region": "west", "requests/s at most": "40.0", "GPUs held": "16", "at most": "18",
        "GPU-hours": "34", "EUR per day": "1,500.00", "kWh": "39.5", "kg CO2": "4.9",
    }  # fmt: skip
    assert cells(report._region(routed(), 1)) == {
        "routing": "", "region": "east", "requests/s at most": "1,234.5", "GPUs held": "0", "at most": "1",
        "GPU-hours": "1", "EUR per day": "500.50", "kWh": "0.5", "kg CO2": "-",
    }  # fmt: skip
    assert record(report._region(routed(), 1))["routing"] == "nearest"


def test_the_busiest_hour_of_a_region(tmp_path: Path) -> None:
    """The network is not in the time at the server: 250 and 250 ms are the limit, a tenth of one more is over it."""
    row = report._busiest(read(tmp_path), busy(0, 0.25, 0.25, {1, 0}))
    assert cells(row) == {
        "routing": "nearest", "region": "west", "for users of": "west, east", "hour": "09:00 UTC",
        "requests/s": "40.0", "replicas": "9", "TTFT p95 at the server": "250 ms", "with the network": "500 ms",
        "TPOT": "20.0 ms",
    }  # fmt: skip
    assert record(row)["keeps_the_limits"] is True and record(row)["e2el_s"] == 2.75
    limited = read(tmp_path, Slo(ttft=0.5, e2el=2.5, percentile=99.0))
    row = report._busiest(limited, busy(1, 0.25, 0.25, {1}))
    shown = cells(row)
    assert (shown["latency"], shown["with the network"], shown["for users of"]) == ("2.75 s", "500 ms !", "east")
    assert "TTFT p99 at the server" in shown and record(row)["keeps_the_limits"] is False


def test_users_of_a_routing(tmp_path: Path) -> None:
    """2.5 requests/s for an hour are 9,000. Replicas that serve two kinds of users: each with its own network, 0.02 and
    0.125 s, on top of 0.25 and 0.375 s; replicas of others and other routings say nothing of them."""
    pools = [busy(0, 0.25, 0.25, {0, 1}), busy(0, 0.375, 0.25, {1}), busy(1, 0.9, 0.0, set()), busy(1, 0.1, 0.0, {1})]
    other = busy(0, 5.0, 0.25, {0, 1})._replace(routing="cost")
    asks = read(tmp_path)
    assert cells(report._users(asks, routed(), 0, [*pools, other])) == {
        "routing": "nearest", "users": "west", "requests per day": "9,000", "served in": "west 100%",
        "network at most": "20.0 ms", "TTFT p95": "270 ms",
    }  # fmt: skip
    row = report._users(asks, routed(), 1, [*pools, other])
    assert cells(row) == {
        "routing": "", "users": "east", "requests per day": "900", "served in": "west 25%, east 75%",
        "network at most": "125 ms", "TTFT p95": "500 ms",
    }  # fmt: skip
    assert record(row)["routing"] == "nearest" and record(row)["served_in"] == {"west": 0.25, "east": 0.75}
    late = report._users(read(tmp_path, Slo(ttft=0.4999, percentile=95.0)), routed(), 1, pools)
    assert cells(late)["TTFT p95"] == "500 ms !"
    free = report._users(read(tmp_path, Slo(tpot=0.05, percentile=95.0)), routed(), 1, pools)
    assert cells(free)["TTFT p95"] == "500 ms"
    nobody = cells(report._users(asks, routed(), 0, []))
    assert (nobody["network at most"], nobody["TTFT p95"]) == ("0 s", "0 s")


def test_ways_and_why_they_are_closed(tmp_path: Path) -> None:
    """Lines of the file: access of the west in 5, its stays in 6, the round trip in 11."""
    asks = read(tmp_path)
    rows = [cells(report._way(asks, arc)) for arc in ARCS]
    assert rows[0] == {
        "from": "west", "to": "west", "network": "20.0 ms", "said in": "day.yaml:5",
        "requests/s of a replica": "5", "closed": "",
    }  # fmt: skip
    assert rows[1] == {
        "from": "west", "to": "east", "network": "100 ms", "said in": "day.yaml:11",
        "requests/s of a replica": "-", "closed": "the data of west stay (day.yaml:6)",
    }  # fmt: skip
    assert record(report._way(asks, ARCS[0]))["closed"] is None
    assert (rows[2]["requests/s of a replica"], rows[2]["closed"]) == ("-", "a prompt takes longer")
    assert (rows[3]["to"], rows[3]["requests/s of a replica"]) == ("west", "0.333")


LOST = Without("cost", 0, 0.5, 0.25, 0.75, 9, (0.0, 4.0), 0.125, 96.5)


def test_a_lost_region() -> None:
    whole = answer()
    row = report._lost(whole, LOST)
    assert cells(row) == {
        "routing": "cost", "lost": "west", "of all requests": "50.0%", "the others hold it": "no",
        "not served": "25.0%", "at worst": "75%", "": "09:00 UTC", "GPUs that are lacking": "east 4",
        "EUR per day": "96.50", "not served with these": "12.5%",
    }  # fmt: skip
    assert record(row)["more_gpus"] == {"east": 4.0}
    held = report._lost(whole, LOST._replace(site=1, missed=1e-6, more=(0.0, 0.0), price=inf))
    assert cells(held) | {"not served": "", "at worst": ""} == {
        "routing": "", "lost": "east", "of all requests": "50.0%", "the others hold it": "yes", "not served": "",
        "at worst": "", "": "-", "GPUs that are lacking": "", "EUR per day": "not sold",
        "not served with these": "12.5%",
    }  # fmt: skip
    assert record(held)["routing"] == "cost" and record(held)["more_cost_per_day"] is None


def test_rows_that_cost_something(tmp_path: Path) -> None:
    asks, whole = read(tmp_path), answer()
    money = report._reason(asks, whole, Reason("cost", "most", "west", 1234.5))
    assert cells(money) == {
        "routing": "cost", "said in": "day.yaml:7", "row": "most", "region": "west",
        "saved without it": "1,234.50 EUR per day",
    }  # fmt: skip
    carbon = report._reason(asks, whole, Reason("carbon", "stays", "west", 2e6))
    assert cells(carbon)["saved without it"] == "2,000.00 kg CO2 per day" and cells(carbon)["said in"] == "day.yaml:6"
    assert record(carbon)["saved_without"] == 2e6


def test_hours_of_a_day() -> None:
    """A flow of a millionth of a request/s is the solver's rounding."""
    found = report._hours(answer())
    assert len(found) == 24 and [one["hour_utc"] for one in found] == list(range(24))
    assert found[9]["requests_per_s"] == {"west": 40.0, "east": 0.0}
    assert found[9]["nearest"]["west"] == {
        "gpus": 18.0, "replicas": 9.0, "requests_per_s": 40.0, "kwh": 30.0, "carbon_g": 4000.0, "from": {"west": 40.0},
    }  # fmt: skip
    assert found[9]["nearest"]["east"]["from"] == {} and found[9]["nearest"]["east"]["carbon_g"] is None
    assert found[3]["nearest"]["west"]["from"] == {"east": 1234.5}
    table = report._by_hour(answer())
    assert list(table.columns) == ["UTC", "west, requests/s", "east, requests/s", "nearest: west", "nearest: east"]
    rows = list(table.rows)
    assert rows[3] == ["03:00", "0.0", "1,234.5", "0", "1"] and rows[10] == ["10:00", "4.0", "0.0", "16", "0"]
    assert len(rows) == 24 and table.right == frozenset(table.columns) - {"UTC"}


def test_sentences_below_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = read(tmp_path)
    carried, network, busiest, energy, *sold = report._notes(asks, answer())
    assert carried == (
        "a replica on 8 x l4 carries 12.3 requests/s of the nearest users within the limits (the limit on TTFT breaks "
        "first), by simulation, and is loaded to 80% of that"
    )
    assert network.startswith("the network adds one round trip to TTFT: ")
    assert busiest.startswith("TTFT and TPOT: the busiest hour of each region")
    assert energy.startswith("energy: GPUs alone; a replica")
    assert sold == ["west: l4 of a list, 2026-01-01", "east: l4 of a list, 2026-01-01"]
    asks.spec.round_trips = 3
    monkeypatch.setattr(Nearest, "broken", "else")
    first, second, *_ = report._notes(asks, answer())
    assert "within the limits, by simulation" in first and "adds 3 round trips to TTFT" in second
    for beside, said in (
        ({"pue": 1.5}, "GPUs with PUE;"), ({"host_watts": 300.0}, "GPUs with hosts;"),
        ({"pue": 1.5, "host_watts": 300.0}, "GPUs with PUE and hosts;"), ({"pue": 0.0}, "GPUs alone;"),
    ):  # fmt: skip
        assert f"energy: {said}" in report._notes(read(tmp_path, **beside), answer())[3]
    several = asked(pools=lambda site: [5.0, 4.0] if site else [5.0], routings=("nearest", "cost"))
    near = report._notes(asks, answer(routed(gap=2e-6), routed(gap=0.0125), asked=several))
    assert near[4:] == [
        "users whose limits the network leaves less of have replicas of their own, which are loaded less",
        "no routing by carbon: carbon: is not stated of every region with machines",
        "west: l4 of a list, 2026-01-01",
        "east: l4 of a list, 2026-01-01",
        "a better answer is better by 1.250% at most",
    ]
    assert len(report._notes(asks, answer(routed(gap=1e-6)))) == 6


def test_the_whole_report(tmp_path: Path) -> None:
    """Two routings of two regions and two kinds of users; parts that are empty have no table."""
    asks = read(tmp_path, Slo(ttft=0.5, tpot=0.05, percentile=95.0))
    checked = [busy(0, 0.25, 0.25, {0, 1})]
    two = answer(routed(), routed(routing="cost"), lost=[LOST], reasons=[Reason("cost", "most", "west", 1.0)])
    whole = report.regions_report(asks, two, checked)
    assert [table.title for table in whole.tables] == [
        "m, 2 regions, a day: TTFT p95 < 500 ms, TPOT p95 < 50.0 ms, the network included", "Regions", "Users",
        "The busiest hour of each region, simulated", "GPUs paid for by hour", "Ways", "One region lost",
        "Rows of the file that limit the answer",
    ]  # fmt: skip
    sizes = {name: len(part) for name, part in whole.record.items() if isinstance(part, list)}
    assert sizes == {
        "routings": 2, "regions": 4, "users": 4, "busiest": 1, "ways": 4, "lost": 1, "limits": 1, "hours": 24
    }  # fmt: skip
    assert whole.record["slo"] == {"ttft_s": 0.5, "tpot_s": 0.05}
    head = ("currency", "percentile", "utilisation", "round_trips")
    assert [whole.record[name] for name in head] == ["EUR", 95.0, 0.8, 1]
    assert [table.title for table in report.regions_report(asks, answer(), checked).tables][5:] == ["Ways"]
