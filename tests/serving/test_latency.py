"""The terms of the first token under load by hand; against the simulator: tests/serving/test_steady_state.py."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from inferplan.serving.latency import BUSIEST, Company, PromptPath, front_end, open_company, user_company
from tests.serving.plain_time import plain


def path(busy: float = 0.5, **serving: object) -> PromptPath:
    """Rounds of 2 s, prompts of 3 s whose pieces keep the next one waiting for 4 s."""
    deployment = plain(serving={"latency": "250 ms", "front_request": "125 ms", "front_token": "1 ms", **serving})
    return PromptPath(
        deployment=deployment,
        front_end=front_end(deployment, 100.0).seconds,
        round=2.0,
        residual=1.0,
        line=4.0,
        own=3.0,
        queued=True,
        busy=busy,
        filled=busy,
    )


def test_each_term_by_hand() -> None:
    """0.25 + 0.125 + 0.1 s in front, half of a round, an M/D/1 queue of 4 s at 0.5 in half of the rounds."""
    terms = path().mean(Company())
    assert terms.front_end == pytest.approx(0.475)
    assert (terms.running_step, terms.next_step, terms.queue, terms.own_prompt, terms.seen_late) == (1, 0, 1, 3, 0)
    assert terms.total == pytest.approx(5.475)
    late = path(overlapped=True, seen_late=True).mean(Company(running=0.25))
    assert (late.running_step, late.next_step, late.seen_late) == (0.25, 0.5, 2.0)
    assert late.before == pytest.approx(0.475 + 0.25 + 0.5 + 1) and late.own == 5


def test_the_request_at_a_percentile() -> None:
    """Behind a step that has just begun, and the tail of M/D/1: 4/(2 x 0.5) ln(0.5/0.05)."""
    slow = path().slow(1.9, 0.05)
    assert slow.total == pytest.approx(0.475 + 1.9 + 4 * log(10) + 3)


def test_a_queue_is_bounded_near_capacity_and_by_who_is_there() -> None:
    """Rounds that always hold prompts wait as at 0.98: 0.98 x 4/(2 x 0.02) x 0.98 s; one other user, 2 s at most."""
    assert BUSIEST == 0.98
    assert float(np.asarray(path(busy=1.0).mean(Company()).queue)) == pytest.approx(0.98**2 * 4 / 0.04)
    assert float(np.asarray(path(busy=1.0).mean(Company(ahead=1.0)).queue)) == pytest.approx(2.0)


def test_whom_an_arrival_meets() -> None:
    """M/G/infinity with 0.5 on each of two ranks is empty with exp(-1); of four users, three decode: 3 x (1 - 1/4)."""
    assert open_company(np.array([0.5]), 2).running == pytest.approx(1 - exp(-1))
    assert user_company(0.4, 4.0, 1) == pytest.approx((0.4 * 0.75, 3.0))
    assert user_company(3.0, 4.0, 1).running == 1.0
    assert user_company(0.9, 1.0, 1) == pytest.approx((0.0, 0.0))
