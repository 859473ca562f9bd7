"""The report on a log replayed, of a day that is written down here: its tables and sentences worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from inferplan.figures import record, text
from inferplan.reports.replay import (
    by_day,
    happened_record,
    happened_rows,
    hours_over,
    meets_percentile,
    missed_share,
    moment,
    replay_notes,
    with_designs,
)
from inferplan.table import Report, Table
from inferplan.traffic.requests import Slo

HOUR, DAY = 3600.0, 86400.0
MONDAY = 1_777_852_800.0
"""2026-05-04T00:00:00Z (date -u -d 2026-05-04 +%s)."""


@dataclass
class Replicas:
    """As many replicas as there are of a policy (or of the log) at all times, and who was late."""

    policy: str
    count: float
    late: Any
    peak: int = 4
    device_hours: float = 100.0
    cost: float = 100.0
    tier_cost: float | None = None
    measured: tuple[str, ...] = ("ttft", "e2el")
    result = SimpleNamespace(records=SimpleNamespace(hashes=None, prompt=[1]), conditions={"prefix_caching": True})

    def mean_replicas(self, start: float, stop: float) -> float:
        assert start < stop
        return self.count

    def percentile(self, name: str) -> float | None:
        return {"ttft": 0.25}.get(name)


def late(count: int, *which: int) -> Any:
    found = np.zeros(count, dtype=bool)
    found[list(which)] = True
    return found


def day(hours: int = 30, **more: Any) -> Any:
    """A request each quarter of an hour; a limit on TTFT for 95 in 100. Two GPUs a replica, which carries 2.5
    requests/s; the busiest five minutes of a span take as much as it has hours. One replica more is needed each
    ten hours."""
    arrival = np.arange(hours * 4) * 900.0
    shown: dict[str, Any] = {"happened": None, "policies": [], "label": "first"} | more
    asked: dict[str, Any] = {
        "ran": (), "losses": None, "tiers": (), "span": hours * HOUR, "timetable": None,
        "replay": SimpleNamespace(dated=True, began=MONDAY), "profile": SimpleNamespace(name="log.csv"),
    }  # fmt: skip
    asked |= shown.pop("asked", {})
    slo = shown.pop("slo", Slo(ttft=0.5, percentile=95.0))
    return SimpleNamespace(
        question=SimpleNamespace(slo=slo),
        asked=SimpleNamespace(**asked),
        requests=Sent(arrival, shown.pop("hashes", None)),
        days=24 / hours,
        tariff=SimpleNamespace(currency="EUR"),
        work=SimpleNamespace(
            design=SimpleNamespace(
                rate=2.5,
                deployment=SimpleNamespace(parallel=SimpleNamespace(ranks=2)),
                flags=SimpleNamespace(max_num_seqs=48, max_num_batched_tokens=2048),
            ),
            load=SimpleNamespace(most=lambda start, stop: round((stop - start) / HOUR)),
        ),
        hourly=[(hour * HOUR, (hour + 1) * HOUR, slice(hour * 4, hour * 4 + 4)) for hour in range(hours)],
        needed=lambda start, stop: 1 + int(start // (10 * HOUR)),
        **shown,
    )


class Sent:
    hash_block = 16

    def __init__(self, arrival: Any, hashes: Any) -> None:
        self.arrival, self.hashes = arrival, hashes

    def __len__(self) -> int:
        return len(self.arrival)


RAN = {"ran": ((0.0, 3),)}


def test_how_many_may_miss() -> None:
    """One in twenty, and nobody counts where there is no limit."""
    slo = Slo(ttft=0.5, percentile=95.0)
    assert [meets_percentile(missed, slo) for missed in (0.0, 0.05, 1 - 0.95, 0.0501, 1.0)] == [True] * 3 + [False] * 2
    assert meets_percentile(1.0, Slo(percentile=95.0))


def test_a_share_of_those_who_came() -> None:
    assert missed_share(late(8, 1, 2), slice(0, 4)) == 0.5
    assert missed_share(late(8, 1, 2), slice(4, 8)) == 0.0
    assert missed_share(late(8, 1, 2), slice(3, 3)) is None
    assert missed_share(None, slice(0, 4)) is None


def test_what_happened_as_a_row() -> None:
    """30 hours are 1.25 days: 50 replica-hours on two GPUs are 80 GPU-hours a day; 100 EUR are 80. Seven of 120 are
    late, which is more than 5 %."""
    assert happened_rows(day()) == []
    was = Replicas("", 3.0, late(120, *range(7)))
    (row,) = happened_rows(day(happened=was, asked=RAN))
    shown = {one.key: one.shown for one in row}
    assert shown["peak_replicas"] == "4"
    assert shown["gpu_hours"] == "80.0" and shown["cost_per_day"] == "80.00"
    assert shown["missed"] == "5.83% !" and shown["ttft_s"] == "250 ms"
    said = record(row)
    assert said["missed"] == 7 / 120 and said["gpu_hours"] == 80.0 and said["cost_per_day"] == 80.0
    labels = [one.label for one in row if one.seen]
    assert labels == [
        "policy", "peak replicas", "GPU-hours", "EUR per day", "saving", "miss", "TTFT p95", "used"
    ]  # fmt: skip
    (row,) = happened_rows(day(happened=Replicas("", 3.0, late(120, *range(6))), asked=RAN))
    assert {one.key: one.shown for one in row}["missed"] == "5.00%"


def test_what_nobody_recorded_is_left_open() -> None:
    was = Replicas("", 3.0, None, measured=())
    (row,) = happened_rows(day(happened=was, hashes=[()], asked={"losses": object()}))
    shown = {one.key: one.shown for one in row}
    assert (shown["peak_replicas"], shown["gpu_hours"], shown["cost_per_day"], shown["missed"]) == ("", "", "", "")
    assert record(row)["peak_replicas"] is None and record(row)["gpu_hours"] is None
    seen = {one.label for one in row if one.seen}
    assert {"hits", "taken", "restarted"} <= seen


def test_hours_for_programs() -> None:
    assert happened_record(day()) is None
    was = Replicas("", 3.0, late(120, 0, 1, 4))
    found = happened_record(day(happened=was, asked=RAN))
    assert found is not None and found["peak_replicas"] == 4
    assert found["hours"][0] == {"hour": 0, "replicas": 3.0, "missed": 0.5}
    assert [hour["missed"] for hour in found["hours"][1:3]] == [0.25, 0.0] and len(found["hours"]) == 30
    unknown = happened_record(day(happened=was))
    assert unknown is not None and unknown["hours"][1]["replicas"] is None


def test_a_moment_by_the_clock_of_the_log_or_its_day() -> None:
    assert moment(day(), 0.0) == "Mon 04 00:00"
    assert moment(day(), 26 * HOUR + 59 * 60) == "Tue 05 02:59"
    bare = day(asked={"replay": SimpleNamespace(dated=False, began=MONDAY)})
    assert moment(bare, 0.0) == "day 1 00:00"
    assert moment(bare, DAY + 7 * HOUR + 5 * 60 + 59) == "day 2 07:05"
    assert moment(day(asked={"replay": None}), 2 * DAY - 60) == "day 2 23:59"


def test_days_of_a_long_replay() -> None:
    """30 hours are a day of 96 requests, and six hours of 24: 0.00111/s in both. The busiest five minutes are drawn as
    24 and 6 replicas of 2.5 requests/s."""
    policies = [Replicas("static", 4.0, late(120, 0, 96)), Replicas("reactive", 2.5, None)]
    found = by_day(day(policies=policies))
    assert found.columns == ["from", "requests/s", "busiest 5 min", "static", "miss", "reactive", "miss"]
    assert found.rows == [
        ["Mon 04 00:00", "0.00", "60.00", "4.00", "1.04%", "2.50", ""],
        ["Tue 05 00:00", "0.00", "15.00", "4.00", "4.17%", "2.50", ""],
    ]
    assert found.right == frozenset(found.columns[1:])
    assert found.title == "By day: replicas paid for, on average, and the share over a limit"


def test_the_rate_of_a_day_is_over_its_seconds() -> None:
    whole = day(policies=[])
    whole.requests.arrival = np.concatenate([np.linspace(0.0, 3599.0, 1800), np.linspace(90000.0, 93600.0, 5400)])
    assert [row[1] for row in by_day(whole).rows] == ["0.02", "0.25"]  # 1,800/86,400 and 5,400/21,600


def test_hours_over_the_limits_the_worst_first() -> None:
    """Hour 20 has one late of four under a policy, hour 3 two as measured, hour 5 one as measured: by how many, then by
    time. Three replicas are needed from hour 20 on."""
    policies = [Replicas("static", 4.0, late(120, 80)), Replicas("reactive", 2.5, late(120))]
    was = Replicas("", 3.0, late(120, 12, 13, 20))
    found = hours_over(day(policies=policies, happened=was))
    assert found is not None and found.title == "Hours over the limits: 3"
    assert found.columns == ["hour from", "requests/s", "needs", "as it was", "static", "miss", "reactive", "miss"]
    assert found.rows == [
        ["Mon 04 03:00", "0.00", "1", "50.0%", "4.00", "0.0%", "2.50", "0.0%"],
        ["Mon 04 05:00", "0.00", "1", "25.0%", "4.00", "0.0%", "2.50", "0.0%"],
        ["Mon 04 20:00", "0.00", "3", "0.0%", "4.00", "25.0%", "2.50", "0.0%"],
    ]
    assert found.right == frozenset(found.columns[1:])


def test_hours_of_what_was_not_measured() -> None:
    found = hours_over(day(policies=[Replicas("static", 4.0, late(120, 80)), Replicas("reactive", 2.5, None)]))
    assert found is not None
    assert found.columns == ["hour from", "requests/s", "needs", "static", "miss", "reactive", "miss"]
    assert found.rows == [["Mon 04 20:00", "0.00", "3", "4.00", "25.0%", "2.50", ""]]
    assert hours_over(day(policies=[Replicas("static", 4.0, late(120))])) is None
    assert hours_over(day(policies=[Replicas("reactive", 4.0, None)])) is None


def test_an_hour_at_the_percentile_is_not_over_it() -> None:
    """One in four is late, and three in four have to be in time."""
    loose = Slo(ttft=0.5, percentile=75.0)
    assert hours_over(day(policies=[Replicas("static", 4.0, late(120, 80))], slo=loose)) is None
    assert hours_over(day(policies=[Replicas("static", 4.0, late(120, 80, 81))], slo=loose)) is not None


def test_people_see_twelve_hours() -> None:
    """All of 30 hours have one late; the rate of an hour is over its 3,600 s."""
    whole = day(policies=[Replicas("static", 4.0, late(120, *range(0, 120, 4)))])
    found = hours_over(whole)
    assert found is not None and found.title == "Hours over the limits: 30, the worst 12"
    assert [row[0] for row in found.rows] == [f"Mon 04 {hour:02d}:00" for hour in range(12)]
    twelve = hours_over(day(hours=12, policies=[Replicas("static", 4.0, late(48, *range(0, 48, 4)))]))
    assert twelve is not None and twelve.title == "Hours over the limits: 12" and len(twelve.rows) == 12
    many = SimpleNamespace(**{**vars(whole), "hourly": [(0.0, HOUR, slice(0, 120))]})
    (row,) = hours_over(many).rows  # type: ignore[union-attr]
    assert row[1] == "0.03"  # 120 requests in 3,600 s


def test_what_was_replayed_in_sentences() -> None:
    """Static pays for four, reactive for two: too few in the ten hours from hour 20 on, which take three."""
    policies = [Replicas("scheduled", 4.0, None), Replicas("reactive", 2.0, None)]
    assert replay_notes(day(policies=policies)) == [
        "log.csv is replayed: its requests come at the times and with the lengths of the log; a replica is sized for "
        "Poisson arrivals of them",
        "scheduled follows the log itself, five minutes by five minutes: no timetable made ahead can cost less",
        "needs: replicas for the busiest five minutes of the hour; fewer are paid for under some policy in 10 of "
        "30 hours",
    ]
    assert replay_notes(day(asked={"replay": None})) == []


def test_what_was_recorded_and_shared_in_sentences() -> None:
    was = Replicas("", 3.0, None)
    table = SimpleNamespace(source="the mean of 3 days")
    found = replay_notes(
        day(
            policies=[Replicas("scheduled", 3.0, None), Replicas("static", 3.0, None)],
            happened=was,
            hashes=[()],
            asked=RAN | {"timetable": table},
        )
    )
    assert found == [
        "log.csv is replayed: its requests come at the times and with the lengths of the log, and find the text that "
        "they share in the caches; a replica is sized on the log itself, faster or slower, as "
        "if it alone had all of it",
        "scheduled follows one day made of those of the log (the mean of 3 days)",
        "recorded: the replicas of --replay-replicas, each ordered a cold start before it took requests",
        "as it was: TTFT, latency as measured; replicas at the price of this design",
        "needs: replicas for the busiest five minutes of the hour; fewer are paid for under some policy in 0 of "
        "30 hours",
    ]
    off = Replicas("static", 3.0, None)
    off.result = SimpleNamespace(records=was.result.records, conditions={"prefix_caching": False})
    on = Replicas("scheduled", 3.0, None)
    for policies in ([off], [on, off]):
        assert "in the caches" not in replay_notes(day(policies=policies, hashes=[()]))[0]
    nothing = Replicas("", 3.0, None, measured=())
    found = replay_notes(day(policies=[Replicas("static", 3.0, None)], happened=nothing))
    assert len(found) == 3 and found[1] == "as it was: no latency was measured"


def test_designs_beside_each_other() -> None:
    """The first one's report, with the others in its record, the label of each in each row, and each sentence once."""
    policy = Replicas("static", 4.0, None)
    days = [day(policies=[policy, policy]), day(policies=[policy], label="second")]
    first = Report(
        record={"gpu": "a"}, tables=[Table(title="own", columns=["x"], rows=[["1"]])], notes=["same"], rows=[{"x": 1}]
    )
    second = Report(record={"gpu": "b"}, tables=[], notes=[], rows=None)
    rows = [[text("policy", name)] for name in ("p1", "p2", "p3")]
    found = with_designs([first, second], days, rows)
    assert found.record == {"gpu": "a", "design": "first", "others": [{"design": "second", "gpu": "b"}]}
    assert [table.title for table in found.tables] == ["Designs side by side", "own"]
    assert found.tables[0].rows == [["first", "p1"], ["first", "p2"], ["second", "p3"]]
    assert found.rows == [{"design": "first", "x": 1}]
    assert found.notes == [
        "same",
        "second: a replica carries 2.5 requests/s; --max-num-seqs 48 --max-num-batched-tokens 2048",
    ]
