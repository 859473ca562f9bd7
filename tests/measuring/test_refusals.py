"""A server that turns requests away, and a proxy that holds replies back: neither ends a run, both are said."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from inferplan.errors import UsageError
from inferplan.measuring.address import address_of
from inferplan.measuring.client import Reply, lateness
from inferplan.measuring.figures import figure_rows, load_figures
from inferplan.measuring.loads import LoadChoice, UsersLoad
from inferplan.measuring.server import Server, _completed
from inferplan.measuring.session import (
    MeasuredLoad,
    MeasuringSettings,
    Session,
    _miscounted,
    _patiently,
    measure,
    start,
)
from inferplan.measuring.tokens import remote_counter
from tests.measuring.stand_in import StandIn
from tests.measuring.wire import served

QUICK = LoadChoice(lengths=(64,), concurrency=(4,), shared_prompt=64, output=4, single_requests=4, rounds=5)
PROBES = 3
"""Requests before the first load: one that learns how to ask, two that learn how long a word is."""


def run(server: StandIn, **changes: Any) -> Session:
    settings = MeasuringSettings(**{"address": address_of(server.url), "choice": QUICK, "warmup": 0, **changes})
    session = start(settings)
    asyncio.run(measure(session, lambda *_: None))
    return session


@pytest.mark.parametrize("fault", [429, "reset"])
def test_a_twentieth_of_refusals_does_not_end_a_run(fault: int | str) -> None:
    """Among them the very first request, and one in the middle of each load: all are sent again and have figures."""
    with served(StandIn(fast=True, retry_after="0", faults=dict.fromkeys((0, 2, 6, 20), fault))) as server:
        session = run(server)
    assert session.ended == ""
    assert [len(one.good) for one in session.loads] == [4, 20]
    assert [sum(reply.refused for reply in one.replies) for one in session.loads] == [1, 1]
    assert session.loads[0].suspect == ["1 of 4 requests were refused at first and sent again"]
    assert session.loads[1].suspect == []
    assert [line["refused_requests"] for line in figure_rows(session, {})] == ["1", "1"]
    assert len(server.seen) == PROBES + 4 + 20 + 4 == session.budget.requests


def test_a_wait_that_is_asked_for_is_waited() -> None:
    with served(StandIn(fast=True, retry_after="1", faults={PROBES: 429})) as server:
        began = time.monotonic()
        session = run(server, choice=LoadChoice(lengths=(64,), concurrency=(), output=4, single_requests=2))
        assert time.monotonic() - began > 1.0
    refused, again = server.seen[PROBES : PROBES + 2]
    assert again.read - refused.read >= 1.0
    assert refused.body == again.body
    assert session.loads[0].good[0].ttft < 0.5  # from when it was sent again


@pytest.mark.parametrize("said", ["Wed, 21 Oct 2015 07:28:00 GMT", "soon", "-1"])
def test_a_wait_may_be_a_date_and_has_a_length_of_its_own(said: str) -> None:
    """A date that is past is no wait (RFC 9110, 10.2.3); what is neither seconds nor a date says nothing: half a second
    then."""
    with served(StandIn(fast=True, retry_after=said, faults={PROBES: 429})) as server:
        session = run(server, choice=LoadChoice(lengths=(64,), concurrency=(), output=4, single_requests=2))
    refused, again = server.seen[PROBES : PROBES + 2]
    assert (again.read - refused.read >= 0.5) == (said[0] != "W")
    assert len(session.loads[0].good) == 2


def test_a_server_that_turns_everything_away_is_not_asked_without_end() -> None:
    """Three times for each request; a wait beyond the run's own bound is not waited at all."""
    with served(StandIn(fast=True, retry_after="0", faults=dict.fromkeys(range(PROBES, 99), 429))) as server:
        session = run(server)
    assert session.ended.startswith("no reply")
    assert len(server.seen) == PROBES + 3 * 3
    with served(StandIn(fast=True, retry_after="86400", faults=dict.fromkeys(range(PROBES, 99), 429))) as server:
        assert run(server).ended.startswith("no reply")
    assert len(server.seen) == PROBES + 3


@pytest.mark.parametrize("hold", [4, 99])
def test_a_proxy_that_buffers_makes_rows_suspect(hold: int) -> None:
    """Pieces that leave the server each 10 ms come four at a time, or all at the end."""
    choice = LoadChoice(lengths=(64,), concurrency=(), output=16, single_requests=2)
    with served(StandIn(first=0.05, hold=hold)) as server:
        session = run(server, choice=choice)
    (one,) = session.loads
    assert one.pieces_at_once > 2
    assert len(one.suspect) == 1 and "pieces come at once" in one.suspect[0]
    found = load_figures(one)
    assert found is not None and found.latencies["itl"] == {}
    with served(StandIn(first=0.05)) as server:
        assert run(server, choice=choice).loads[0].suspect == []


def test_pieces_that_come_at_once_by_hand() -> None:
    """Eight pieces in two arrivals; one long stall among even gaps is none; whole replies of 40 ms tell nothing."""

    def load(*times: float) -> MeasuredLoad:
        reply = Reply(sent=0.0, ended=times[-1], times=times, prompt=8, output=len(times))
        return MeasuredLoad(load=UsersLoad(users=1, requests=1, prompt=8, output=8), replies=[reply])

    assert load(0.4, 0.4001, 0.4002, 0.4002, 0.56, 0.5601, 0.5601, 0.5602).pieces_at_once == 4.0
    assert load(0.2, 0.22, 0.24, 5.26, 5.28, 5.30, 5.32).pieces_at_once == 1.0
    assert load(0.04, 0.04, 0.04).pieces_at_once == 1.0
    assert load(0.4, 0.4, 0.4).pieces_at_once == 3.0
    assert load(0.4, 0.4).pieces_at_once == 2.0
    assert load(0.4).pieces_at_once == 1.0
    assert [Reply(sent=0.0, ended=1.0, times=times).arrivals for times in ((), (0.4,))] == [0, 1]


def test_a_load_of_which_half_failed_has_no_figures() -> None:
    """And what is asked again waits half a second, then twice as long; the third try is the last."""
    good = Reply(sent=0.0, ended=1.0, times=(0.5, 1.0), prompt=8, output=2)
    failed = Reply(sent=0.0, ended=0.1, status=500, failure="status")
    asked = UsersLoad(users=1, requests=3, prompt=8, output=2)
    assert load_figures(MeasuredLoad(load=asked, replies=[good, failed])) is None
    assert load_figures(MeasuredLoad(load=asked, replies=[good, good, failed])) is not None


def test_a_client_that_is_never_late_notes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that each sleep moves by what it asks for, and in one place by 2 ms more."""
    now, late = [100.0], iter([0.0, 0.0, 0.002, 0.0])

    async def sleep(seconds: float) -> None:
        more = next(late, None)
        if more is None:
            raise asyncio.CancelledError
        now[0] += seconds + more

    async def look() -> list[float]:
        seen: list[float] = []
        with lateness(seen):
            await real(0.01)
        return seen

    real = asyncio.sleep
    monkeypatch.setattr("inferplan.measuring.client.perf_counter", lambda: now[0])
    monkeypatch.setattr("inferplan.measuring.client.asyncio.sleep", sleep)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert asyncio.run(look()) == pytest.approx([0.0, 0.0, 0.002, 0.0], abs=1e-9)


class Pages:
    """A client of a server whose pages are these."""

    def __init__(self, **pages: Any) -> None:
        self.address, self.pages, self.sent = address_of("http://host"), pages, dict[str, Any]()

    async def get(self, url: str) -> Any:
        return SimpleNamespace(json=self.pages.get(url.rpartition("/")[2]))

    async def post(self, url: str, body: dict[str, Any]) -> Any:
        self.sent = body
        return SimpleNamespace(json=self.pages.get(url.rpartition("/")[2]))

    def shown(self, text: str, most: int) -> str:
        return text[:most]


@pytest.mark.parametrize(
    ("engine", "pages", "found"),
    [
        ("vllm", {"version": {"version": "0.19.1"}}, ("0.19.1", None, None)),
        ("", {"version": {"version": 19}}, ("", None, None)),
        ("sglang", {"server_info": {"version": "0.5.9", "tp_size": 4, "context_length": 8192}}, ("0.5.9", 4, 8192)),
        ("sglang", {"get_server_info": {"version": "0.5.9", "tp_size": True}}, ("0.5.9", None, None)),
        (
            "llama.cpp",
            {"props": {"build_info": "b1", "default_generation_settings": {"n_ctx": 4096}}},
            ("b1", None, 4096),
        ),
        ("llama.cpp", {"props": {"build_info": "b1", "default_generation_settings": [4096]}}, ("b1", None, None)),
        ("llama.cpp", {"props": [1]}, ("", None, None)),
    ],
)
def test_what_pages_of_engines_say(engine: str, pages: dict[str, Any], found: tuple[Any, ...]) -> None:
    """vLLM's /version, SGLang's /server_info (and its older name), llama.cpp's /props."""
    client: Any = Pages(**pages)
    said = asyncio.run(_completed(client, Server(model="m", id="m", engine=engine)))
    assert (said.version, said.tp, said.context) == found


def test_a_chat_is_counted_with_its_template() -> None:
    client: Any = Pages(tokenize={"count": 7})
    for api, body in (
        ("completions", {"model": "m", "prompt": "hello"}),
        ("chat", {"model": "m", "messages": [{"role": "user", "content": "hello"}]}),
    ):
        assert asyncio.run(remote_counter(client, "m", api)("hello")) == 7  # type: ignore[arg-type]
        assert client.sent == body
    for count in (0, -1, "7", None):
        client.pages = {"tokenize": {"count": count}}
        assert asyncio.run(remote_counter(client, "m", "chat")("hello")) is None


def test_pauses_between_tries_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second, then one: the third try is the last, whatever comes of it."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def send() -> Reply:
        return Reply(sent=0.0, ended=0.1, status=429, failure="status")

    monkeypatch.setattr("inferplan.measuring.session.asyncio.sleep", sleep)
    session = start(MeasuringSettings(address=address_of("http://127.0.0.1:9"), choice=QUICK, warmup=0))
    reply = asyncio.run(_patiently(session, 10, send, probing=False))
    assert (waited, reply.refused) == ([0.5, 1.0], 2)


def test_an_address_has_the_port_of_its_scheme() -> None:
    """80 and 443 (RFC 9110, 4.2); what else stands in a URL leaks into logs."""
    found = address_of("http://host/v1/chat/completions")
    assert (found.host, found.port, found.api, found.encrypted) == ("host", 80, "http://host/v1", False)
    assert (address_of("https://host").port, address_of("https://host:8443/v1").port) == (443, 8443)
    assert address_of("https://host/v1").encrypted
    for more in ("http://host#key", "http://host?key=1", "http://me@host", "http://:secret@host"):
        with pytest.raises(UsageError, match="more than an address"):
            address_of(more)


def test_a_reply_without_a_count_of_its_prompt_is_no_short_prompt() -> None:
    """Asked for 100: counts of 60 and of nothing pass, one of 40 is less than half."""

    def said(*prompts: int | None) -> list[str]:
        replies = [Reply(sent=0.0, ended=1.0, times=(0.5, 1.0), prompt=one, output=2) for one in prompts]
        return _miscounted(MeasuredLoad(load=UsersLoad(users=1, requests=2, prompt=100, output=2), replies=replies))

    assert said(60, None) == said(None) == said(100, 50) == []
    assert said(100, 49) == ["a prompt of 100 tokens counts as 49"]
