"""A log replayed: its requests as they came, what happened by hand, the same in any number of processes."""

from __future__ import annotations

import json
import mmap
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferplan.catalog.assemble import assemble
from inferplan.errors import InputFileError, UsageError
from inferplan.mapped import Spool
from inferplan.planning.day import DayAsked, DayDesign, Policy, scaling_of, simulate_days
from inferplan.planning.day_work import DayWork
from inferplan.planning.demand import demand_of_trace
from inferplan.planning.happened import Happened
from inferplan.reports.day import days_report
from inferplan.serving.autoscaling import Schedule
from inferplan.serving.cold_start import ColdStart
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.tiers import CacheTier, TierPrice
from inferplan.table import plain
from inferplan.traffic.profile import profile_of
from inferplan.traffic.request_log import read_replicas
from inferplan.traffic.requests import Requests, Slo
from inferplan.traffic.traces import Recorded, read_recorded
from tests.cases import for_each
from tests.planning.test_day import REQUEST, busy, question


def log_of(count: int = 3000, seconds: float = 9000.0) -> Recorded:
    """Requests that come most in the middle of two hours and a half; what was measured is made up."""
    rng = np.random.default_rng(7)
    arrival = np.sort(np.concatenate([[0.0], rng.triangular(0.0, seconds / 2, seconds, count - 1)]))
    prompt, output = rng.integers(64, 512, count), rng.integers(1, 64, count)
    ttft = rng.exponential(0.2, count)
    return Recorded(
        requests=Requests(prompt=prompt, output=output, arrival=arrival),
        measured={"ttft": ttft, "e2el": ttft + 0.01 * (output - 1)},
    )


def design(log: Recorded, policies: tuple[Policy, ...], label: str = "", **more: Any) -> DayDesign:
    profile = profile_of(log.requests, "log")
    asked = DayAsked(
        profile=profile, span=profile.end, policies=policies, replay=log, cold_start=ColdStart(rest=60.0), **more
    )
    return DayDesign(request=REQUEST, deployment=assemble(REQUEST), question=question(), asked=asked, label=label)


def test_what_a_log_says(tmp_path: Path) -> None:
    """Sorted by time; an empty latency is an answer that never came; the first request is on the clock of the file."""
    path = tmp_path / "log.csv"
    path.write_text(
        "timestamp,prompt,output,ttft_s,latency_s\n2026-05-04T00:00:10Z,7,3,0.5,2.5\n2026-05-04T02:00:00+02:00,9,1,,\n"
    )
    found = read_recorded(path)
    assert found.requests.arrival is not None
    assert (found.dated, found.began) == (True, 1_777_852_800.0)  # date -u -d 2026-05-04 +%s
    assert (found.requests.arrival.tolist(), found.requests.prompt.tolist()) == ([0.0, 10.0], [9, 7])
    assert found.measured["ttft"].tolist() == [float("inf"), 0.5]
    assert found.first(10.0).requests.prompt.tolist() == [9]
    path.write_text("arrival_s,prompt,output,latency_s\n5,7,3,1\n4,7,3,2\n")
    found = read_recorded(path)
    assert (found.dated, found.began, found.measured["e2el"].tolist()) == (False, 4.0, [2.0, 1.0])


def test_replicas_on_the_clock_of_the_log(tmp_path: Path) -> None:
    """The log begins at 100 s: two are there then; the row at 250 s changes nothing."""
    path = tmp_path / "replicas.csv"
    path.write_text("timestamp,replicas\n0,1\n60,2\n250,2\n400,5\n")
    assert read_replicas(path, 100.0, False) == ((0.0, 2), (300.0, 5))
    path.write_text("timestamp,replicas\n2026-05-04T00:00:00Z,3\n2026-05-04T01:00:00Z,0\n")
    assert read_replicas(path, 1_777_852_800.0 + 600, True) == ((0.0, 3), (3000.0, 0))


@for_each(
    ("text", "said"),
    [
        ("time,replicas\n0,1\n", "timestamp"),
        ("timestamp,replicas\n500,1\n", "400 s after"),
        ("timestamp,replicas\n0,1\n0,2\n", ":3"),
        ("timestamp,replicas\n0,1.5\n", ":2"),
        (f"timestamp,replicas\n0,{'9' * 5000}\n", ":2"),
        ("timestamp,replicas\n2026-05-04,1\n", ":2"),
        ("timestamp,replicas\n0\n", ":2"),
        ("timestamp,replicas\n0,0\n200,0\n", "0 stands in every row"),
        ("timestamp,replicas\n0,1\n1e308,2\n", "seconds after the year 2999"),
        ("timestamp,replicas\n0,٣\n", ":2"),
        ("", "empty"),
    ],
)
def test_replicas_that_cannot_be_read(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "replicas.csv"
    path.write_text(text)
    with pytest.raises(InputFileError) as refused:
        read_replicas(path, 100.0, False)
    assert said in str(refused.value)


def test_an_answer_does_not_end_before_its_first_token(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("arrival_s,prompt,output,ttft_s,latency_s\n0,7,3,0.5,\n1,7,1,0.5,0.5\n2,7,3,0.5,0.4\n")
    with pytest.raises(InputFileError, match=r"log\.csv:4: latency_s is less than ttft_s"):
        read_recorded(path)


@for_each(("arrival", "said"), [([0.0], "two arrival times"), ([0.0, 1e300], "days"), ([0.0, 3e7], "347 are the most")])
def test_logs_that_have_no_rates(arrival: list[float], said: str) -> None:
    """100,000 steps of 300 s are 347 days; 3e7 s, and a mean gap behind them, are 694."""
    tokens = np.full(len(arrival), 9)
    with pytest.raises(UsageError) as refused:
        profile_of(Requests(prompt=tokens, output=tokens, arrival=np.array(arrival)))
    assert said in str(refused.value)


def test_recorded_replicas_by_hand() -> None:
    """1 replica, 3 from 1,000 s on, 2 from 4,000 s on: two are ordered a minute ahead, and one leaves at 4,000 s."""
    asked = design(log_of(), ("recorded",), ran=((0.0, 1), (1000.0, 3), (4000.0, 2))).asked
    found = scaling_of("recorded", asked, question(), busy(asked.profile, 1.0), 3.0)
    assert found == Schedule(changes=((0.0, 1), (940.0, 3), (4000.0, 2)), cold_start=60.0)
    with pytest.raises(UsageError):
        replace(asked, ran=())


def test_what_happened_by_hand() -> None:
    """Replicas as in the test above: 1,000 + 3 x 3,000 s, and 2 until the end, at 2.00 an hour. Late is who had a first
    token after 0.5 s: every gap is 10 ms of at most 20."""
    log = log_of()
    (day,) = simulate_days([design(log, ("recorded",), ran=((0.0, 1), (1000.0, 3), (4000.0, 2)))])
    found, span = day.happened, day.asked.span
    assert found is not None
    assert found.replica_hours * 3600 == pytest.approx(1000 + 9000 + 2 * (span - 4000))
    assert found.cost == pytest.approx(found.replica_hours * 2.00)
    assert found.peak == 3
    assert found.late is not None
    ttft = log.measured["ttft"]
    assert found.late.tolist() == (ttft > 0.5).tolist()
    assert found.percentile("ttft") == pytest.approx(np.percentile(ttft, 95))
    assert found.percentile("tpot") == pytest.approx(0.01)
    record = json.loads(json.dumps(plain(days_report([day]).record["recorded"])))
    arrival = log.requests.arrival
    assert arrival is not None
    for hour in record["hours"]:
        mine = (arrival // 3600) == hour["hour"]
        assert hour["missed"] == pytest.approx(np.mean(ttft[mine] > 0.5))
    assert record["hours"][0]["replicas"] == pytest.approx((1000 + 3 * 2600) / 3600)
    # two replicas of the policy were ordered a minute before: 120 s more, and one that leaves finishes what it has
    (recorded,) = day.policies
    assert 120 - 1e-6 <= recorded.replica_hours * 3600 - found.replica_hours * 3600 < 130


def test_an_answer_of_one_token_is_not_late_with_the_next() -> None:
    """Its stream ended 0.1 s behind it, and the limit on TPOT is 20 ms; of six tokens 0.099/5 s keeps it. One never
    came."""
    requests = Requests(prompt=np.full(3, 8), output=np.array([1, 6, 1]), arrival=np.arange(3.0))
    measured = {"ttft": np.array([0.2, 0.2, np.inf]), "e2el": np.array([0.3, 0.299, np.inf])}
    log = Recorded(requests=requests, measured=measured)
    slo, tariff = Slo(tpot=0.020), question().prices.require("h100-sxm", 1, 1)
    found = Happened(log=log, ran=(), span=3.0, slo=slo, tariff=tariff)
    assert found.late is not None and found.late.tolist() == [False, False, True]


def test_static_replicas_are_those_of_simulate() -> None:
    """The requests of the log, to the last bit, on as many replicas behind the same router; and who is late."""
    log = log_of(40_000, 150.0)
    (day,) = simulate_days([design(log, ("static",))])
    (static,) = day.policies
    replicas = static.peak
    assert replicas > 1
    fixed = assemble(replace(REQUEST, parallel=replace(REQUEST.parallel, replicas=replicas)))
    options = Options(slo=question().slo, fleet=Fleet(routing="least-loaded"))
    whole = simulate(fixed, log.requests, day.work.design.flags, options)
    assert static.result.ttft.tolist() == whole.ttft.tolist()
    assert static.result.e2el.tolist() == whole.e2el.tolist()
    output = log.requests.output
    tpot = (whole.e2el - whole.ttft) / np.maximum(output - 1, 1)
    assert static.late.tolist() == ((whole.ttft > 0.5) | (tpot > 0.02)).tolist()


def test_the_same_in_any_number_of_processes() -> None:
    """Two designs with three policies each."""
    policies: tuple[Policy, ...] = ("static", "scheduled", "reactive")
    log = log_of(1500)
    designs = [design(log, policies, "one"), design(log, policies, "another", routing="round-robin")]
    first, second = (plain(days_report(simulate_days(designs, jobs=jobs)).record) for jobs in (1, 2))
    assert first == second
    assert [one["policy"] for one in first["others"][0]["policies"]] == list(policies)
    heard: list[int] = []
    simulate_days(designs[:1], heard.append, jobs=2)
    assert heard == sorted(heard) and 0.9 * 3 * 1500 < heard[-1] <= 3 * 1500


class _Stopped(DayDesign):
    """Somebody presses Ctrl-C while the third policy runs."""

    def served(
        self,
        policy: Policy,
        work: DayWork,
        requests: Requests,
        spool: Spool | None,
        progress: Callable[[int], None] | None,
    ) -> SimulationResult:
        if policy == self.asked.policies[-1]:
            raise KeyboardInterrupt
        return super().served(policy, work, requests, spool, progress)


def test_ctrl_c_keeps_the_policies_that_are_done() -> None:
    made = vars(design(log_of(1000), ("static", "scheduled", "reactive")))
    (day,) = simulate_days([_Stopped(**made)])
    assert [one.policy for one in day.policies] == ["static", "scheduled"]
    assert list(day.undone) == days_report([day]).record["undone"] == ["reactive"]
    alone = vars(design(log_of(1000), ("static",)))
    with pytest.raises(KeyboardInterrupt):
        simulate_days([_Stopped(**alone)])


class _Interrupted(DayDesign):
    """Somebody presses Ctrl-C when the third policy has served 400 of its requests, and the others are done."""

    def served(
        self,
        policy: Policy,
        work: DayWork,
        requests: Requests,
        spool: Spool | None,
        progress: Callable[[int], None] | None,
    ) -> SimulationResult:
        if policy != self.asked.policies[-1]:
            result = super().served(policy, work, requests, spool, progress)
            _DONE[self.asked.policies.index(policy)] = 1
            return result
        assert progress is not None
        progress(400)
        while _DONE[:] != b"\1\1":
            progress(400)
            time.sleep(0.01)
        time.sleep(0.5)  # they have said so
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)
        raise AssertionError


_DONE = mmap.mmap(-1, 2)
"""A byte for each policy that is done, which forked processes share."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_ctrl_c_in_processes_says_how_far_the_lost_ones_were() -> None:
    made = vars(design(log_of(1000), ("static", "scheduled", "reactive")))
    (day,) = simulate_days([_Interrupted(**made)], jobs=2)
    assert [one.policy for one in day.policies] == ["static", "scheduled"]
    assert day.undone == {"reactive": 0.4}
    assert any("reactive" in note and "40%" in note for note in days_report([day]).notes)


def test_a_span_of_the_log() -> None:
    """The first hour: the requests before it, and no more than the log lasts."""
    log = log_of()
    whole = design(log, ("static",)).asked
    hour = replace(whole, span=3600.0)
    assert log.requests.arrival is not None
    assert hour.arrived is not None and len(hour.arrived) == int(np.sum(log.requests.arrival < 3600.0))
    with pytest.raises(UsageError):
        replace(whole, span=whole.profile.end + 1)


def test_a_log_whose_prompts_share_text_finds_it() -> None:
    """Two texts of 2,048 tokens in turns, 5 s apart, and a tier below: all but the first two find 2,032 tokens, for the
    last block is computed. A replica is sized on the log, faster: it carries more than one in 5 s."""
    count = 40
    sent = Requests(
        prompt=np.full(count, 2048),
        output=np.full(count, 64),
        arrival=np.arange(0.0, 5.0 * count, 5.0),
        hashes=[tuple(range(128 * (place % 2), 128 * (place % 2 + 1))) for place in range(count)],
        hash_block=16,
    )
    tier = CacheTier(name="host", capacity=100e9, bandwidth=50e9)
    made = design(Recorded(requests=sent), ("static",), tiers=(tier,))
    asks = replace(made.question, demand=demand_of_trace(sent), slo=Slo(ttft=2.0, percentile=95.0))
    (day,) = simulate_days([replace(made, question=asks)])
    (static,) = day.policies
    cached = static.result.records.cached
    assert [cached.get(place, 0) for place in range(count)] == [0, 0, *[2032] * (count - 2)]
    record = days_report([day]).record["policies"][0]
    assert record["prefix_cache_hit_rate"] == pytest.approx(38 * 2032 / (40 * 2048))
    assert [one["name"] for one in record["cache_tiers"]] == ["device", "host"]
    assert day.work.design.rate > 2 / 5
    euros = replace(made.asked, tiers=(replace(tier, price=TierPrice(0.004, "EUR")),))
    with pytest.raises(UsageError):
        simulate_days([replace(made, question=asks, asked=euros)])
