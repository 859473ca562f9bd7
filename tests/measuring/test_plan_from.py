"""A plan that begins from a running server, on servers of known times.

They take 1.3 times as long as is predicted for each load, so that the plan is that of a factor of 1.3 which was set by
hand: an anchor of one run and no doubt, whose mean error is ln 1.3 at every load.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import cache
from math import log
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import yaml

from inferplan.cli import from_server
from inferplan.cli.from_server import loads_around
from inferplan.validation.deploy import deployment_of
from inferplan.validation.predict import predict_run
from inferplan.validation.rows import row_of
from tests.cli.conftest import Ran, Run
from tests.measuring.reading import Read, clock
from tests.measuring.stand_in import Seen, StandIn
from tests.measuring.wire import event, served

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
VLLM = {"id": MODEL, "owned_by": "vllm", "root": MODEL}
PAGES = {"/version": {"version": "0.20.1"}}
FACTS = {
    "model": "llama-3.1-8b",
    "gpu": "l4",
    "engine": "vllm",
    "engine_version": "0.20.1",
    "precision": "native",
    "tp": "1",
}


def line(*changes: str, **other: str) -> tuple[str, ...]:
    """A plan for L4s with options of its own behind it, or others in the place of its own."""
    own = {"gpu": "l4", "tp": "1", "quant": "native", "rate": "12", "ttft": "2s", "tpot": "120ms", "format": "json",
           "prompt": "512", "output": "128", "token_budget": "2048"} | other  # fmt: skip
    return ("plan", "llama-3.1-8b", *(f"--{name.replace('_', '-')}={value}" for name, value in own.items()), *changes)


RELEASE = ("--engine", "vllm@0.20.1")
SLOW = 1.3


@cache
def predicted(**load: float) -> tuple[float, float]:
    """Mean TTFT and TPOT of a load without an anchor, as `validate` predicts them."""
    row = row_of("own", {**FACTS, **{name: str(value) for name, value in load.items()}}, {})
    assert row.run is not None, row.refused
    found = predict_run(row.run, deployment_of(row.run)[0])
    assert found.ttft and found.tpot
    return found.ttft, found.tpot


@dataclass
class Counted:
    """What a vLLM server has counted after so many scrapes, five seconds apart; six make a stretch of half a minute.

    rates: requests a second in each stretch; slow: times as long as predicted that it takes there. cached: share of the
    prompts that it found in its cache. ends: scrapes after which it answers no more.
    """

    rates: tuple[float, ...] = (0.8, 1.2, 1.6, 2.0, 1.0, 1.4)
    slow: tuple[float, ...] = (SLOW,) * 6
    cached: float = 0.0
    ends: int = 999

    def __call__(self, number: int) -> str | None:
        if number >= self.ends:
            return None
        requests = ttft = gap = 0.0
        for scrape in range(number):
            stretch = min(scrape // 6, 5)
            times = predicted(rate_per_s=self.rates[stretch], isl=512, osl=128) if self.rates[stretch] else (0, 0)
            came = 5 * self.rates[stretch]
            requests, ttft = requests + came, ttft + came * self.slow[stretch] * times[0]
            gap += came * 127 * self.slow[stretch] * times[1]
        series = {
            "vllm:num_requests_running": 3,
            "vllm:num_requests_waiting": 0,
            "vllm:time_to_first_token_seconds_count": requests,
            "vllm:time_to_first_token_seconds_sum": ttft,
            "vllm:inter_token_latency_seconds_count": 127 * requests,
            "vllm:inter_token_latency_seconds_sum": gap,
            "vllm:request_success_total": requests,
            "vllm:prompt_tokens_total": 512 * requests,
            "vllm:prefix_cache_hits_total": 512 * requests * self.cached,
            "vllm:request_generation_tokens_sum": 128 * requests,
        }
        return "".join(f'{name}{{engine="0"}} {value!r}\n' for name, value in series.items())


Reads = Callable[..., tuple[Ran, Read]]


@pytest.fixture
def reads(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reads:
    """A plan from a server that is read, whose three minutes pass at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    clock(monkeypatch)

    def call(counted: Callable[[int], str | None], *words: str, **server: Any) -> Any:
        with served(Read(counted, **{"models": (VLLM,), "pages": PAGES, **server})) as read:
            return run(*(words if words[:1] == ("plan",) else line(*words)), "--from", read.url), read

    return call


def by_hand(own: Path, ratio: float) -> str:
    """The anchor of the same system whose factor is ``ratio`` at all loads."""
    anchor = yaml.safe_load(own.read_text("utf-8"))
    for metric in ("ttft", "tpot"):
        anchor["process"][metric] |= {"shared": 10.0, "local": 0.0, "noise": 0.001}
    row = {"users": 8.0, "prompt": 512.0, "output": 128.0, "ttft_ln_ratio": log(ratio), "tpot_ln_ratio": log(ratio)}
    path = own.with_name(f"{ratio}.yaml")
    path.write_text(yaml.safe_dump({**anchor, "rows": [row], "provenance": {}}), encoding="utf-8")
    return str(path)


def test_a_server_that_is_read_gives_the_plan_of_its_factor(reads: Reads, run: Run, tmp_path: Path) -> None:
    """Six GPUs, as by a factor of 1.3 that was set by hand, where constants alone say five. No request is sent."""
    own, page = tmp_path / "own.yaml", tmp_path / "plan.md"
    done, server = reads(Counted(), "--anchor-out", str(own), "--report", str(page))
    assert done.code == 0, done.err
    assert set(server.asked) == {"/v1/models", "/version", "/metrics"}
    assert server.read == 37
    hand = run(*line(*RELEASE, "--anchor", by_hand(own, SLOW))).json["plan"]
    plain = run(*line(*RELEASE, "--aggregated")).json["plan"]
    plan, anchor = done.json["plan"], done.json["anchor"]
    assert (plan["devices"], hand["devices"], plain["devices"]) == (6, 6, 5)
    assert plan["ttft_s"] == pytest.approx(hand["ttft_s"], rel=0.02)
    assert plan["tpot_s"] == pytest.approx(hand["tpot_s"], rel=0.02)
    assert (anchor["runs"], anchor["corrects_the_plan"]) == (6, True)
    held = anchor["provenance"]["held_out"]
    for name, one in zip(("ttft", "tpot"), predicted(rate_per_s=1.0, isl=512, osl=128)):  # the last stretch but one
        assert held[name]["measured_s"] == pytest.approx(SLOW * one, rel=1e-4)
        assert held[name]["error_predicted"] == pytest.approx(1 / SLOW - 1, abs=1e-3)
        assert abs(held[name]["error_anchored"]) < 0.03
    for text in (done.err, page.read_text("utf-8"), "\n".join(anchor["provenance"]["told"])):
        assert f"found {MODEL} under vllm 0.20" in text
        assert "assumed: its formats are those of the checkpoint" in text
        assert "held out: 1 requests/s, 512 tokens in, 128 out: TPOT measured" in text
    assert f"read from {server.url} on 20" in page.read_text("utf-8")
    told = run("explain", "tpot", "llama-3.1-8b", "--gpu", "l4", *RELEASE, "--anchor", str(own))
    assert f"read from {server.url} on 20" in told.out


def test_the_line_of_the_page(reads: Reads) -> None:
    page = (Path(__file__).parents[2] / "docs" / "measure.md").read_text("utf-8")
    (typed,) = [one for one in page.splitlines() if one.startswith("    inferplan plan llama-3.1-8b ")]
    words = typed.split()[1:]
    at = words.index("--from")
    done, server = reads(Counted(), *words[:at], *words[at + 2 :])
    assert done.code == 0, done.err
    written = json.loads(Path("plan.json").read_text("utf-8"))["anchor"]["provenance"]
    assert written["runs"].startswith(f"read from {server.url} on 20")
    assert yaml.safe_load(Path("own.yaml").read_text("utf-8"))["provenance"] == written


def test_a_server_that_ends_midway_says_what_it_said(reads: Reads) -> None:
    """Four stretches of half a minute are enough, one is not."""
    done, _ = reads(Counted(ends=25))
    assert done.json["anchor"]["runs"] == 4
    assert "it stopped answering after 120 s" in done.err
    short, _ = reads(Counted(ends=8))
    assert short.code == 3
    assert "1 stretches have figures" in short.err and "stopped answering after 35 s" in short.err


def test_what_an_anchor_would_make_worse_is_refused(reads: Reads) -> None:
    """The stretch that is held out takes what is predicted, the others 1.4 times as long."""
    done, _ = reads(Counted(slow=(1.4, 1.4, 1.4, 1.4, 1.0, 1.4)))
    assert done.code == 6
    assert "worse: its error was +0.0%" in done.err
    far, _ = reads(Counted(slow=(3.0,) * 6))
    assert far.code == 6
    assert "of most loads is off by more than 1.65 times" in far.err and "--from-facts" in far.err


def test_what_says_too_little_is_refused(reads: Reads) -> None:
    """A server that is idle, one whose prompts came from its cache, one whose counters fall each half minute."""
    idle, _ = reads(Counted(rates=(0.0,) * 6))
    assert idle.code == 3
    assert "6 stretches in which fewer than 20 answers began or ended" in idle.err and "--send-load" in idle.err
    cached, _ = reads(Counted(cached=0.5))
    assert cached.code == 3
    assert "50% of prompt tokens came from a cache" in cached.err
    counted = Counted()
    fallen, _ = reads(lambda number: counted(number % 6 + 1))
    assert fallen.code == 3
    assert "6 stretches in which a counter fell" in fallen.err
    same, _ = reads(Counted(rates=(1.0,) * 6))
    assert same.code == 0
    assert "every stretch had about the same load" in same.err


def test_servers_of_another_model_and_with_a_key(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"id": "x", "owned_by": "vllm", "root": "Qwen/Qwen3-32B"}
    done, server = reads(Counted(), models=(other,))
    assert done.code == 2
    assert "serves qwen3-32b, not llama-3.1-8b" in done.err
    assert "/metrics" not in server.asked
    alias, _ = reads(Counted(), models=({**VLLM, "id": "chat", "root": "/models/own"},))
    assert "assumed: chat is llama-3.1-8b" in alias.err
    secret = "sk-key-of-a-test"
    refused, _ = reads(Counted(), key=secret)
    assert refused.code == 5 and "--api-key-env" in refused.err
    monkeypatch.setenv("OWN_KEY", secret)
    held, _ = reads(Counted(), "--api-key-env", "OWN_KEY", key=secret)
    assert held.code == 0
    assert secret not in held.out + held.err


def test_what_is_not_known_of_a_server_is_asked_for(reads: Reads, run: Run) -> None:
    """And what does not fit is refused before its three minutes."""
    lines: list[tuple[tuple[str, ...], str]] = [
        (line(gpu="l4,a10"), "--from-facts gpu=h100-sxm"),
        (line(tp="1,2"), "--from-facts tp=1"),
        (line("--from-facts", "engine=sglang"), "the server says engine vllm, not sglang"),
        (line("--from-facts", "gpu=h100-sxm"), "which is no candidate"),
        (line("--from-facts", "wheels=4"), "is no fact of a server"),
        (line("--engine", "sglang"), "which is no candidate"),
        (line("--anchor", "own.yaml"), "are two anchors"),
        (line("--from-seconds", "0"), "--from-seconds"),
        (line("--served-model", "y"), "has no model 'y'"),
    ]
    for words, said in lines:
        done, server = reads(Counted(), *words)
        assert (done.code, "/metrics" in server.asked) == (2, False), (words, done.err)
        assert said in done.err, (words, done.err)
    told, _ = reads(Counted(), *line("--from-facts", "gpu=l4,tp=1,quant=native", gpu="l4,a10"))
    assert told.code == 0, told.err
    assert "assumed" not in told.err
    for words in (("--send-load",), ("--from-seconds", "60s"), ("--anchor-out", "own.yaml"), ("--api-key-env", "X")):
        alone = run(*line(*words))
        assert alone.code == 2 and "--from http://localhost:8000" in alone.err, alone.err


USERS = (1, 2, 1, 4, 8)
"""Of the loads around prompts of 64 tokens, one of each kind first; the first has prompts of 16."""


def requests(users: int) -> int:
    """Of a load: three of one user, two of each of several."""
    return 3 if users == 1 else 2 * users


@dataclass
class Paced(StandIn):
    """A server whose replies to a load take :data:`SLOW` times as long as is predicted for it.

    It knows the load of a request by its number: behind the probes each load has two to warm up, or one.
    """

    models: tuple[str, ...] = (MODEL,)
    probes: int = 3

    def times(self, seen: Seen) -> tuple[float, float]:
        """Mean TTFT and TPOT of the load of a request, of the tokens that its prompt really has."""
        number, ends = self.seen.index(seen), self.probes
        for users in USERS:
            ends += min(users, 2) + requests(users)
            if self.probes <= number < ends:
                return predicted(isl=seen.prompt, osl=8, concurrency=users, requests=requests(users))
        return 0.01, 0.01

    async def _events(self, seen: Seen, fault: int | str | None) -> AsyncIterator[bytes]:
        ttft, tpot = (SLOW * one for one in self.times(seen))
        for made in range(seen.output):
            await asyncio.sleep(seen.read + ttft + made * tpot - perf_counter())
            last = made + 1 == seen.output
            yield event({"choices": [{"text": "word ", "finish_reason": "length" if last else None}]})
        counts = {"prompt_tokens": seen.prompt, "completion_tokens": seen.output}
        yield event({"choices": [], "usage": counts}) + b"data: [DONE]\n\n"


SHORT = {"prompt": "64", "output": "8", "rate": "200"}
SENT = line("--send-load", **SHORT)


def test_a_server_that_is_measured_gives_the_plan_of_its_factor(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, by loads that are sent; the first request is turned away and sent again. Measured again where this
    machine was at other work."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    fewer = replace(loads_around(64.0, 8.0), concurrency=(2, 4, 8))  # more are too many beside a server in one process
    monkeypatch.setattr(from_server, "loads_around", lambda *_: fewer)
    for users in USERS:  # before the clock runs; a word is two tokens, a prompt has three more
        for prompt in (15, 17, 63, 65) if users == 1 else (63, 65):
            predicted(isl=prompt, osl=8, concurrency=users, requests=requests(users))
    for _ in range(3):
        with served(Paced(faults={0: 429}, retry_after="0", probes=4)) as server:
            done = run(*SENT, "--from", server.url, "--anchor-out", "own.yaml")
        rows = yaml.safe_load(Path("own.yaml").read_text("utf-8"))["rows"] if done.code == 0 else []
        ratios = [row[f"{metric}_ln_ratio"] for row in rows for metric in ("ttft", "tpot")]
        if ratios and all(abs(one - log(SLOW)) < 0.05 for one in ratios):
            break
    assert done.code == 0, done.err
    assert len(server.seen) == 4 + sum(min(users, 2) + requests(users) for users in USERS)
    assert ratios == pytest.approx([log(SLOW)] * 10, abs=0.05)
    plan, anchor = done.json["plan"], done.json["anchor"]
    assert anchor["provenance"]["runs"].startswith(f"measured at {server.url} on 20")
    asked = line(*RELEASE, **SHORT)
    hand = run(*asked, "--anchor", by_hand(Path("own.yaml"), SLOW)).json["plan"]
    plain = run(*asked, "--aggregated").json["plan"]
    assert plan["devices"] == hand["devices"] > plain["devices"]


def test_loads_lie_around_those_of_the_plan() -> None:
    loads = loads_around(1000.4, 300.0).loads()
    assert [(one.users, one.prompt, one.output, one.requests) for one in loads] == [
        (1, 250, 128, 3), (4, 1000, 128, 8), (1, 1000, 128, 3), (16, 1000, 128, 32), (64, 1000, 128, 128),
    ]  # fmt: skip
    assert {(one.prompt, one.output) for one in loads_around(1.0, 1.0).loads()} == {(1, 2), (4, 2)}


def test_servers_that_are_not_measured(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One behind a proxy that buffers, one at work for others, one that breaks off, one that turns everything away."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def sent(server: StandIn) -> Ran:
        with served(server):
            return run(*SENT, "--from", server.url)

    held = sent(StandIn(hold=8, first=0.02, models=(MODEL,)))
    assert held.code == 3
    assert "pieces come at once" in held.err
    busy = StandIn(others=3, models=(MODEL,))
    done = sent(busy)
    assert done.code == 2
    assert "3 requests are in it" in done.err and "leave --send-load out" in done.err
    assert not busy.seen
    broken = sent(StandIn(fast=True, models=(MODEL,), faults=dict.fromkeys(range(12, 99), "cut")))
    assert broken.code == 5
    assert "was not measured" in broken.err
    away = sent(StandIn(fast=True, models=(MODEL,), faults={-1: 429}, retry_after="0"))
    assert away.code == 5
    assert "429" in away.err
