"""Open loops beside closed ones, and prompts of which a chosen share is repeated: sent as asked, priced as sent."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferplan.measuring.address import address_of
from inferplan.measuring.figures import load_figures
from inferplan.measuring.loads import LoadChoice, UsersLoad
from inferplan.measuring.planned import PlannedLoad, open_loop
from inferplan.measuring.session import MeasuringSettings, Session, measure, start
from inferplan.traffic.requests import Traffic
from inferplan.validation.held_out import choose
from inferplan.validation.importers import read_file
from inferplan.validation.predict import row_traffic
from inferplan.validation.rows import Row, interpret, measured_values
from inferplan.validation.run import Pricing, price_rows
from tests.measuring.stand_in import StandIn, tokens_of
from tests.measuring.wire import served

FACTS = ["--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--tp", "1", "--quant", "bf16"]
BRIEF = ["--lengths", "64", "--concurrency", "2", "--prompt", "64", "--output", "4", "--warmup", "1",
         "--single-requests", "2", "--rounds", "2"]  # fmt: skip


def run(server: StandIn, **changes: Any) -> Session:
    session = start(MeasuringSettings(**{"address": address_of(server.url), "warmup": 1, **changes}))
    asyncio.run(measure(session, lambda *_: None))
    return session


def test_one_load_of_each_kind_comes_first() -> None:
    loads = LoadChoice(lengths=(128, 64), concurrency=(16, 1, 4), rates=(4.0, 1.0), shared_prompt=256).loads()
    said = [one.describe() for one in loads]
    assert said[:3] == [
        "1 user, 64 tokens in, 128 out",
        "4 users, 256 tokens in, 128 out",
        "1 requests/s, 256 tokens in, 128 out",
    ]
    assert said[3:] == [
        "1 user, 128 tokens in, 128 out",
        "1 user, 256 tokens in, 128 out",
        "16 users, 256 tokens in, 128 out",
        "4 requests/s, 256 tokens in, 128 out",
    ]


def test_arrivals_are_those_of_a_poisson_process_and_of_its_prediction() -> None:
    """Gaps of mean and deviation 1/rate; and what `validate` predicts such a row with comes at the same times."""
    load = open_loop(8.0, 4000, 100, 4)
    gaps = np.diff(load.arrivals)
    assert np.mean(gaps) == pytest.approx(1 / 8, rel=0.05)  # 3,999 gaps: 1.6 % of standard error
    assert np.std(gaps) == pytest.approx(1 / 8, rel=0.07)
    assert load == open_loop(8.0, 4000, 100, 4)
    facts = {"model": "m", "gpu": "g", "engine": "vllm", "weights": "bf16", "tp": "1", "isl": "100", "osl": "4",
             "rate_per_s": "8", "requests": "4000"}  # fmt: skip
    traffic = row_traffic(interpret(facts)[0])
    assert isinstance(traffic, Traffic)
    predicted = np.asarray(traffic.requests().arrival)
    assert np.diff(predicted) == pytest.approx(gaps)


def test_an_open_loop_waits_for_no_answer() -> None:
    """Five requests at 1,000 a second are in a server whose first token takes half a second before it answers one."""
    choice = LoadChoice(lengths=(), concurrency=(), rates=(1000.0,), shared_prompt=64, output=2, rate_requests=5)
    with served(StandIn(counts=True, first=0.5)) as server:
        session = run(server, choice=choice, warmup=0)
    (one,) = session.loads
    mine = server.seen[-5:]
    assert max(seen.read for seen in mine) < min(seen.written[0] for seen in mine)
    assert one.load.tokens == 5 * (round(64 * 1.05) + 2)  # as bounds count them
    assert [reply.ok for reply in one.replies] == [True] * 5


def test_rates_have_rows_that_validate_prices_and_one_is_held_out(call: Callable[..., Any]) -> None:
    with served(StandIn(fast=True)) as server:
        code, out, err = call(server.url, *BRIEF, "--rate", "50,100", "--rate-requests", "4", *FACTS, "--out",
                              "own.csv", "--definition", "vllm", "--format", "json")  # fmt: skip
    assert (code, err) == (0, "")
    record = json.loads(out)
    asked = [
        (one["asked"]["users"], one["asked"]["requests_per_s"], one["asked"]["requests"]) for one in record["loads"]
    ]
    assert asked == [(1, None, 2), (2, None, 4), (None, 50.0, 4), (None, 100.0, 4)]
    with Path("own.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["concurrency"], row["rate_per_s"], row["requests"]) for row in rows] == [
        ("1", "", "2"), ("2", "", "4"), ("", "50", "4"), ("", "100", "4"),
    ]  # fmt: skip
    assert "prefix_hit_rate" not in rows[0]
    assert {one["requests_per_s"] for one in record["defined_by"]["rows"]} == {None, 50.0, 100.0}
    read = read_file(Path("own.csv"), {})[1]
    scored = price_rows(read, Pricing())
    assert [one.refused for one in scored] == [""] * 4
    assert scored[2].row.run is not None and scored[2].row.run.rate == 50.0


def test_a_rate_counts_as_several_users_where_one_load_is_held_out() -> None:
    """Two of several users or a rate: the last but one of them."""
    plain = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": "vllm", "weights": "bf16", "tp": "1", "isl": "256",
             "osl": "16", "requests": "8", "ttft_mean_ms": "60", "tpot_mean_ms": "12"}  # fmt: skip
    loads = [{"concurrency": "1"}, {"concurrency": "4"}, {"rate_per_s": "2"}, {"concurrency": "1", "isl": "512"}]
    rows = []
    for load in loads:
        facts = {**plain, **load}
        rows.append(Row(where="", cells={}, run=interpret(facts)[0], measured=measured_values(facts)))
    assert choose(price_rows(rows, Pricing())) == 1


def test_the_time_of_a_rate_is_bounded_before_it_begins() -> None:
    """Thirty requests, one every hundred seconds."""
    (load,) = LoadChoice(lengths=(), concurrency=(), rates=(0.01,)).loads()
    assert isinstance(load, PlannedLoad)
    assert load.requests == 30
    assert load.seconds > 1000


def test_a_share_of_each_prompt_is_repeated() -> None:
    """Of 128 tokens 96: in all prompts of a load the same words, in no two loads; what follows differs."""
    choice = LoadChoice(lengths=(128,), concurrency=(2,), rates=(200.0,), shared_prompt=128, output=2,
                        single_requests=3, rounds=2, rate_requests=4, repeated=0.75)  # fmt: skip
    with served(StandIn(fast=True, counts=True, cached=0.7)) as server:
        session = run(server, choice=choice)
    words = [seen.body["prompt"].split() for seen in server.seen]
    loads = [words[-14:-10], words[-10:-5], words[-5:]]  # each with a warm-up
    heads = set()
    for load, count in zip(loads, (4, 5, 5)):
        assert len(load) == count
        alike = next(at for at, all_at in enumerate(zip(*load)) if len(set(all_at)) > 1)
        assert tokens_of(alike) == pytest.approx(96, abs=4)  # a word is two tokens, and random words may agree
        heads.add(tuple(load[0][:alike]))
    assert len(heads) == 3
    for one in session.loads:
        found = load_figures(one)
        assert found is not None
        assert one.suspect == []  # cached as it was meant to be
        assert found.hits == pytest.approx(0.7, abs=0.01)  # as the server counts
        assert found.isl == pytest.approx(128, abs=1)


def test_a_server_that_counts_no_hits_is_taken_at_what_was_sent(call: Callable[..., Any]) -> None:
    with served(StandIn(fast=True)) as server:
        code, out, _ = call(server.url, *BRIEF, "--prefix-hit-rate", "0.5", "--out", "own.csv")
    assert code == 0
    assert "does not count hits" in out
    with Path("own.csv").open(encoding="utf-8") as file:
        assert [row["prefix_hit_rate"] for row in csv.DictReader(file)] == ["0.5"] * 2


def test_more_hits_than_were_sent_are_suspect() -> None:
    choice = LoadChoice(lengths=(128,), concurrency=(), output=2, single_requests=2, repeated=0.5)
    with served(StandIn(fast=True, counts=True, cached=0.8)) as server:
        (one,) = run(server, choice=choice).loads
    assert len(one.suspect) == 1
    assert UsersLoad(users=1, prompt=128, output=2, requests=2, head_tokens=64).repeated == 0.5


def test_hits_of_a_row_are_priced() -> None:
    """A prompt of 2,048 tokens of which three quarters are cached takes about as long as one of 512, and what the front
    end takes to read them, 1.6 us each; a first token too early for an ideal prefill of the whole is then not
    impossible."""
    plain = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": "vllm", "weights": "bf16", "tp": "1", "osl": "8",
             "concurrency": "1", "requests": "4", "ttft_mean_ms": "25", "tpot_mean_ms": "9"}  # fmt: skip
    hit, short, whole = {"isl": "2048", "prefix_hit_rate": "0.75"}, {"isl": "512"}, {"isl": "2048"}
    rows = [
        Row(where="", cells={}, run=interpret({**plain, **one})[0], measured=measured_values(plain))
        for one in (hit, short, whole)
    ]
    cached, brief, full = price_rows(rows, Pricing())
    assert cached.prediction and brief.prediction and full.prediction
    assert brief.prediction.ttft is not None
    assert cached.prediction.ttft == pytest.approx(brief.prediction.ttft + 1536 * 1.6e-6, rel=0.05)
    assert full.prediction.ttft and cached.prediction.ttft
    least = 2 * 7e9 * 1536 / 989e12  # FLOP of the further tokens, without head and embedding, at the datasheet's peak
    assert full.prediction.ttft - cached.prediction.ttft > least
    assert full.impossible == ("ttft",)  # of 2,048 tokens they are 29 ms
    assert cached.impossible == ()
