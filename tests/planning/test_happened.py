"""What a log says became of its requests, and what replicas that come and go cost: worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inferplan.catalog.bills import Offer, Tariff
from inferplan.planning.happened import Happened
from inferplan.serving.techniques.tiers import parse_tier
from inferplan.traffic.requests import Requests, Slo
from inferplan.traffic.traces import Recorded
from inferplan.units import Array

SOLD = Offer(gpu="h100-sxm", gpus=8, per_hour=30.0, currency="USD", term="stated", source="--price")
EIGHTS = Tariff(offers=(SOLD,), devices=4)
"""Two replicas of four GPUs fill an instance at 30 USD an hour."""
NEVER = np.inf


def happened(
    output: list[int],
    ttft: list[float] | None = None,
    e2el: list[float] | None = None,
    ran: tuple[tuple[float, int], ...] = (),
    **slo: float,
) -> Happened:
    count = len(output)
    requests = Requests(prompt=np.full(count, 8), output=np.array(output), arrival=np.arange(float(count)))
    measured: dict[str, Array] = {}
    if ttft is not None:
        measured["ttft"] = np.array(ttft)
    if e2el is not None:
        measured["e2el"] = np.array(e2el)
    limits: dict[str, Any] = slo
    log = Recorded(requests=requests, measured=measured)
    return Happened(log=log, ran=ran, span=7200.0, slo=Slo(**limits), tariff=EIGHTS)


def test_the_bill_is_of_whole_instances() -> None:
    """One replica for half an hour, three for an hour, two for the rest; what changes at the end changes nothing. 1, 2
    and 1 instances are 0.5 + 2 + 0.5 instance-hours."""
    found = happened([2], ran=((0.0, 1), (1800.0, 3), (5400.0, 2), (7200.0, 50), (9000.0, 60)))
    assert [one.tolist() for one in found.paid] == [[0.0, 1800.0, 5400.0, 7200.0], [1, 3, 2]]
    assert found.peak == 3
    assert found.replica_hours == 0.5 * 1 + 1.0 * 3 + 0.5 * 2
    assert found.cost == 30.0 * (0.5 + 2 + 0.5)
    assert found.mean_replicas(0.0, 3600.0) == (1800 * 1 + 1800 * 3) / 3600
    assert found.mean_replicas(1800.0, 2700.0) == 3.0
    assert found.mean_replicas(4500.0, 7200.0) == (900 * 3 + 1800 * 2) / 2700


def test_the_bill_has_the_tiers_of_its_devices() -> None:
    """Two replicas of four GPUs for two hours, with 10 GB at 0.5 an hour beside each GPU: 80 on 60 for an instance."""
    host = parse_tier("host:10GB:5GB/s:0.5USD/GB-hour")
    found = replace(happened([2], ran=((0.0, 2),)), ranks=4, tiers=(host,))
    assert (found.device_hours, found.tier_cost, found.cost) == (16.0, 80.0, 140.0)


def test_further_tokens_share_the_time_behind_the_first() -> None:
    """2.5 s - 0.5 s over four gaps; a single token has none; what never came took for ever."""
    found = happened([5, 1, 3, 1], [0.5, 0.2, NEVER, NEVER], [2.5, 0.9, NEVER, NEVER])
    assert found.measured["tpot"].tolist() == [0.5, 0.0, NEVER, NEVER]
    assert found.measured["ttft"].tolist() == [0.5, 0.2, NEVER, NEVER]
    assert found.measured["e2el"].tolist() == [2.5, 0.9, NEVER, NEVER]


def test_one_latency_alone_has_no_gaps() -> None:
    assert happened([2], [0.5], [2.5]).measured["tpot"].tolist() == [2.0]
    assert set(happened([5], ttft=[0.5]).measured) == {"ttft"}
    assert set(happened([5], e2el=[0.5]).measured) == {"e2el"}


def test_what_is_known() -> None:
    nothing = happened([5])
    assert not nothing.known and nothing.percentile("ttft") is None
    assert nothing.late is not None and nothing.late.tolist() == [False]  # without a limit nobody is late
    assert happened([5], ttft=[0.5]).known
    assert happened([5], ran=((0.0, 1),)).known


def test_percentiles_of_what_was_measured() -> None:
    """The median of 0.1, 0.2 and 0.6 s; of gaps only two answers have some, 0.1 and 0.2 s."""
    found = happened([1, 5, 11], [0.1, 0.2, 0.6], [0.1, 0.6, 2.6], percentile=50.0)
    assert found.percentile("ttft") == 0.2
    assert found.percentile("e2el") == 0.6
    assert found.percentile("tpot") == pytest.approx(0.15)
    assert found.percentile("answer_ttft") is None


def test_a_percentile_beyond_what_came_is_not_known() -> None:
    """Of four answers two never came: the median lies between one that came and one that did not."""
    found = happened([5, 5, 5, 5], [0.1, 0.2, NEVER, NEVER], percentile=50.0)
    assert found.percentile("ttft") is None
    early = happened([5, 5, 5, 5], [0.1, 0.2, NEVER, NEVER], percentile=10.0)
    assert early.percentile("ttft") == pytest.approx(0.13)


def test_who_is_late() -> None:
    """Over one limit or the other; a latency at its limit keeps it."""
    log = happened([5, 5, 5, 5], [0.5, 0.6, 0.1, NEVER], [0.9, 1.0, 2.5, NEVER]).log
    both = Happened(log=log, ran=(), span=10.0, slo=Slo(ttft=0.5, tpot=0.2), tariff=EIGHTS)
    assert both.late is not None and both.late.tolist() == [False, True, True, True]
    first = Happened(log=log, ran=(), span=10.0, slo=Slo(ttft=0.5), tariff=EIGHTS)
    assert first.late is not None and first.late.tolist() == [False, True, False, True]
    alone = Recorded(requests=log.requests, measured={"ttft": log.measured["ttft"]})
    unknown = Happened(log=alone, ran=(), span=10.0, slo=Slo(ttft=0.5, tpot=0.2), tariff=EIGHTS)
    assert unknown.late is None
