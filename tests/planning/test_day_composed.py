"""A day with thoughts, drafts, adapters, masks and weights on the host: figures by hand, beside the plain day."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from inferplan.cli import cli
from inferplan.planning.day import DayAsked, day_requests
from inferplan.traffic.reasoning import outputs_of
from inferplan.traffic.requests import Lengths
from inferplan.traffic.thoughts import ThoughtsAsked
from tests.cases import for_each
from tests.planning.test_day import PEAKS, question

DAY = (
    "day llama-3.1-8b --ideal --gpu l40s --price l40s=2 --profile 00:00=0.05 --duration 4h --prompt 64 --output 65 "
    "--ttft 3s --tpot 500ms --policy static --percentile 50 --confidence 0.5 --format json"
)
"""One request in twenty seconds, so that nearly every one is alone: 64 tokens behind the first."""


@cache
def report(more: str = "") -> Any:
    return json.loads(CliRunner().invoke(cli, [*DAY.split(), *more.split()], catch_exceptions=False).stdout)


def tpot(more: str = "") -> float:
    found: float = report(more)["policies"][0]["tpot_s"]
    return found


def test_thoughts_take_their_tokens() -> None:
    """40 tokens and the marker before an answer of 65: 105 steps behind the first token, where there were 64."""
    plain, thinking = (report(more)["policies"][0] for more in ("", "--thinking-tokens 40"))
    assert plain["e2el_s"] == pytest.approx(plain["ttft_s"] + 64 * plain["tpot_s"], rel=1e-6)
    assert thinking["e2el_s"] == pytest.approx(plain["ttft_s"] + 105 * plain["tpot_s"], rel=1e-3)


def test_drafts_that_cost_nothing_save_what_they_yield() -> None:
    """Three drafts, each accepted with 0.7: ``(1 - 0.7^4)/0.3`` tokens of a step (Leviathan, arXiv 2211.17192, equation
    1). A step of four tokens reads what a step of one does, and some tokens of the last are not needed."""
    fast = tpot("--draft free --draft-tokens 3 --acceptance 0.7")
    assert tpot() / fast == pytest.approx((1 - 0.7**4) / 0.3, rel=0.05)


def test_weights_on_the_host_come_over_the_link_in_every_step() -> None:
    """4 GiB at 25 GB/s in the place of the 864 GB/s of the L40S."""
    far = "--cpu-offload-gb 4 --host epyc-9654 --host-memory 384GB --host-link 25GB/s"
    assert tpot(far) - tpot() == pytest.approx(4 * 2**30 * (1 / 25e9 - 1 / 864e9), rel=1e-3)


def test_a_mask_that_takes_longer_than_a_step_is_the_step() -> None:
    assert tpot("--structured-share 1 --mask-time 50ms --host-cores 1") == pytest.approx(0.05, rel=1e-3)


def test_requests_of_a_day_name_adapters() -> None:
    """Shares of 6/11, 3/11 and 2/11 of three adapters: one slot has the next with the sum of their squares, 49/121."""
    words = "--lora-rank 16 --loras 3 --lora-skew 1 --max-loras 1 --lora-bandwidth 20GB/s"
    found = report(f"{words} --peak 0.2")
    assert found["lora"]["rank"] == 16
    (policy,) = found["policies"]
    assert policy["adapters"]["hit_rate"] == pytest.approx(49 / 121, abs=0.03)


@for_each(("budget", "before"), [(None, 41), (30, 31)])
def test_thoughts_of_drawn_requests(budget: int | None, before: int) -> None:
    """A thought of 40 tokens and its marker; one that is cut at 30 has a marker too."""
    asked, plain = DayAsked(profile=PEAKS, span=600.0, policies=("static",)), question()
    output = outputs_of(ThoughtsAsked(tokens="40", budget=budget), Lengths(mean=20))
    sent = day_requests(replace(plain, demand=replace(plain.demand, output=output)), asked)
    assert sent.before is not None
    assert set(sent.before.tolist()) == {before} and set(sent.output.tolist()) == {before + 20}
    assert np.array_equal(sent.arrival, day_requests(plain, asked).arrival)
