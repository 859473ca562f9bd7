"""Replies, loads and bounds that are written down here: their figures, doubts and words, worked out by hand."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from inferplan.errors import NetworkError, UsageError
from inferplan.measuring.address import Address, Key, address_of
from inferplan.measuring.client import Answer, Reply
from inferplan.measuring.dialect import Dialect
from inferplan.measuring.figures import load_figures, row
from inferplan.measuring.loads import Bounds, Budget, LoadChoice, UsersLoad, _minutes, _rates, _users, too_long
from inferplan.measuring.planned import PlannedLoad, open_loop
from inferplan.measuring.prompts import Prompts, PromptSizing
from inferplan.measuring.scrapes import _MOST, ScrapesAsked
from inferplan.measuring.server import Occupancy, _whole, describe, occupancy
from inferplan.measuring.session import MeasuredLoad, MeasuringSettings, Session, _miscounted, _Runner
from inferplan.measuring.stream import EventLines, StreamError, Transcript, error_text
from tests.cases import for_each


def reply(sent: float = 0.0, times: tuple[float, ...] = (0.5, 0.75, 1.0), **more: Any) -> Reply:
    """A first token after 0.5 s, and two more a quarter of a second apart."""
    found: dict[str, Any] = {"prompt": 100, "output": 3, "finish": "length"} | more
    return Reply(sent=sent, ended=9.0, times=tuple(sent + at for at in times), **found)


FAILED = Reply(sent=0.0, ended=1.0, status=500, failure="status", error="HTTP 500")
LOAD = UsersLoad(users=2, prompt=100, output=3, requests=4)


def test_a_reply() -> None:
    one = reply(sent=2.0)
    assert (one.ok, one.ttft, one.tpot, one.e2el, one.gaps, one.arrivals) == (True, 0.5, 0.25, 1.0, [0.25, 0.25], 3)
    assert reply(output=1).tpot is reply(output=None).tpot is reply(times=(0.5, 0.5)).tpot is None
    assert reply(output=5).tpot == 0.125
    assert reply(times=(0.5,)).arrivals == 1 and reply(times=()).arrivals == 0


def test_pieces_that_come_at_once() -> None:
    """Gaps of less than a tenth of the mean, or of 250 us, and never of more than 2 ms."""
    assert reply(times=(0.0, 0.0001, 1.0)).arrivals == 2
    assert reply(times=(0.0, 0.0019, 1.0)).arrivals == 2
    assert reply(times=(0.0, 0.0021, 1.0)).arrivals == 3
    assert reply(times=(0.0, 0.0004, 0.0008)).arrivals == 3
    assert reply(times=(0.0, 0.0002, 0.0004)).arrivals == 1


def test_who_was_turned_away() -> None:
    turned = Reply(sent=0.0, ended=0.0, status=429, failure="status")
    assert turned.unserved and replace(turned, status=503, wait=1.0).unserved
    assert not replace(turned, status=503).unserved and not replace(turned, status=500, wait=1.0).unserved
    assert replace(turned, status=0, failure="connection").unserved and not replace(turned, status=0).unserved


def measured(*replies: Reply, load: Any = LOAD, late: tuple[float, ...] = ()) -> MeasuredLoad:
    return MeasuredLoad(load=load, replies=list(replies), late=list(late))


def test_figures_of_a_load() -> None:
    """Two replies of 3 and 5 tokens from 0 to 2.5 s, one that failed: 8/2.5 tokens a second."""
    other = reply(sent=1.0, times=(0.5, 0.75, 1.0, 1.25, 1.5), output=5, prompt=140, refused=1)
    found = load_figures(measured(reply(), other, FAILED, late=(0.0, 0.01)))
    assert found is not None
    assert (found.requests, found.failed, found.isl, found.osl, found.osl_spread) == (2, 1, 120.0, 4.0, 1.0)
    assert (found.rate, found.pieces, found.at_once, found.refused) == (8 / 2.5, 1.0, 1.0, 1)
    assert found.late == pytest.approx(0.0099) and found.hits == 0.0 and found.varied
    assert found.latencies["ttft"] == {"mean": 0.5, "median": 0.5}
    assert found.latencies["tpot"] == {"mean": 0.25, "median": 0.25}
    assert found.latencies["itl"]["mean"] == 0.25 and found.latencies["e2el"] == {"mean": 1.25, "median": 1.25}
    assert not replace(found, osl_spread=0.08).varied and replace(found, osl_spread=0.081).varied


def test_loads_without_figures() -> None:
    assert load_figures(measured()) is load_figures(measured(reply(), FAILED)) is None
    assert (
        load_figures(measured(reply(prompt=None))) is load_figures(measured(reply(output=None, finish="stop"))) is None
    )
    limit = load_figures(measured(reply(output=None)))  # one that ended at its limit has what was asked for
    assert limit is not None and limit.osl == 3.0
    none = load_figures(measured(reply(), reply(), reply(prompt=None)))
    assert none is not None and (none.requests, none.failed, none.late) == (2, 1, 0.0)


def test_statistics_of_what_there_is_enough_of() -> None:
    """A 90th percentile of ten, a 95th of twenty; gaps where a piece is a token."""
    for count, names in (
        (9, ["mean", "median"]),
        (10, ["mean", "median", "p90"]),
        (20, ["mean", "median", "p90", "p95"]),
    ):
        found = load_figures(measured(*[reply()] * count))
        assert found is not None and list(found.latencies["ttft"]) == names
    ten = load_figures(measured(*(reply(times=(at / 10, 9.0, 10.0)) for at in range(1, 11))))
    assert ten is not None and ten.latencies["ttft"]["p90"] == pytest.approx(0.91)
    for output, gaps in ((306, {"mean", "median", "p90", "p95", "p99"}), (309, set())):
        long = reply(times=tuple(0.5 + 0.01 * place for place in range(300)), output=output)
        found = load_figures(measured(long))
        assert found is not None and set(found.latencies["itl"]) == gaps


def test_tokens_from_a_cache() -> None:
    """Half of each prompt is shared; the server says that 40 of 200 tokens were found, or nothing."""
    load = replace(LOAD, head_tokens=50)
    assert load.repeated == 0.5 and load.heads == (0, 0, 0, 0) and LOAD.heads == ()
    told = load_figures(measured(reply(cached=40), reply(), load=load))
    assert told is not None and told.hits == 0.2
    silent = load_figures(measured(reply(), load=load))
    assert silent is not None and silent.hits == 0.5


def test_a_row_of_a_load() -> None:
    found = load_figures(measured(reply()))
    assert found is not None
    session = Session(settings=MeasuringSettings(address=address_of("http://localhost:8000")), round_trip=0.00012345)
    load = measured(reply())
    load.suspect = ["one", "two"]
    cells = row(session, load, found, {"model": "m"})
    assert cells == {
        "model": "m", "isl": "100", "osl": "3", "concurrency": "2", "requests": "1", "suspect": "one; two",
        **{f"{name}_{what}_ms": "" for name in ("ttft", "tpot", "itl", "e2el") for what in ("p90", "p95", "p99")},
        **{f"ttft_{what}_ms": "500" for what in ("mean", "median")},
        **{f"{name}_{what}_ms": "250" for name in ("tpot", "itl") for what in ("mean", "median")},
        **{f"e2el_{what}_ms": "1000" for what in ("mean", "median")},
        "output_tokens_per_s": "3", "failed_requests": "0", "network_round_trip_ms": "0.1234",
        "refused_requests": "0", "tokens_per_piece": "1", "pieces_at_once": "1", "client_late_ms": "0",
    }  # fmt: skip
    session.round_trip = None
    planned = PlannedLoad(
        prompts=(50, 50), outputs=(3, 3), arrivals=(0.0, 4.0), heads=(0, 0), head_tokens=50, seconds=4.0
    )
    cells = row(session, measured(reply(), load=planned), replace(found, hits=0.25), {})
    assert (cells["rate_per_s"], cells["duration_s"], cells["prefix_hit_rate"]) == ("0.5", "4", "0.25")
    assert (cells["concurrency"], cells["network_round_trip_ms"]) == ("", "")


def test_replies_of_a_load() -> None:
    load = measured(reply(), FAILED, FAILED)
    assert (len(load.good), len(load.failed), load.usable, load.hopeless) == (1, 2, False, False)
    assert not measured(reply(), FAILED).usable and measured(reply()).usable
    assert measured(FAILED, FAILED, FAILED).hopeless and not measured(FAILED, FAILED).hopeless
    assert measured(FAILED, load=replace(LOAD, requests=1)).hopeless
    slow, burst = reply(), reply(times=(0.5, 0.5, 0.5, 1.0))
    assert measured(slow, burst).pieces_at_once == (3 + 4) / (3 + 2)
    assert measured(reply(times=(0.5,))).pieces_at_once == measured(reply(times=(0.01, 0.02))).pieces_at_once == 1.0
    planned = PlannedLoad(prompts=(9,) * 3, outputs=(3,) * 3, fill=1)
    first, last = reply(sent=0.0), reply(sent=5.0)
    assert measured(last, replace(FAILED, sent=7.0), first, load=planned).judged == [last]


def test_a_planned_load() -> None:
    """Prompts of 100 and 200 tokens behind 50 shared ones: at most 5 % longer than they were meant to be."""
    load = PlannedLoad(prompts=(100, 200), outputs=(30, 10), head_tokens=50, seconds=8.0, arrivals=(0.0, 8.0))
    assert (load.requests, load.prompt, load.output) == (2, 150, 30)
    assert load.request_tokens == 272 and load.tokens == (158 + 30) + (262 + 10)
    assert load.requests_per_s == 0.25 and replace(load, rate=3.0).requests_per_s == 3.0
    assert load.repeated == 100 / 400 and PlannedLoad(prompts=(9,), outputs=(1,)).repeated == 0.0
    assert load.describe() == "0.25 requests/s, 2 requests of the plan's load"
    assert replace(load, users=7).describe() == "7 users, 2 requests of the plan's load"
    assert replace(load, rate=2.5).describe() == "2.5 requests/s, 150 tokens in, 30 out"


def test_an_open_loop() -> None:
    load = open_loop(4.0, 2000, 100, 30, head_tokens=40)
    assert (set(load.prompts), set(load.outputs), load.head_tokens, load.rate) == ({60}, {30}, 40, 4.0)
    assert load.heads == (0,) * 2000 and open_loop(4.0, 3, 100, 30).heads == ()
    assert load.arrivals[0] == 0.0 and list(load.arrivals) == sorted(load.arrivals)
    assert load.seconds == load.arrivals[-1] == pytest.approx(500, rel=0.07)  # 2,000 at 4 a second, +-3 deviations


def test_loads_in_their_order() -> None:
    """One of each kind first."""
    choice = LoadChoice(
        lengths=[4000, 128], concurrency=[4, 1, 2], rates=[2.0, 1.0], shared_prompt=1000, output=64, single_requests=5,
        rounds=3, rate_requests=7, repeated=0.25,
    )  # fmt: skip
    loads = choice.loads()
    told = [(one.users, one.prompt, one.requests) for one in loads]
    assert told == [
        (1, 128, 5), (2, 1000, 6), (0, 1000, 7), (1, 4000, 5), (1, 1000, 5), (4, 1000, 12), (0, 1000, 7)
    ]  # fmt: skip
    assert [one.head_tokens for one in loads] == [32, 250, 250, 1000, 250, 250, 250]
    assert [one.rate for one in loads if isinstance(one, PlannedLoad)] == [1.0, 2.0]
    assert LOAD.describe() == "2 users, 100 tokens in, 3 out" and LOAD.request_tokens == 108 and LOAD.tokens == 432
    assert replace(LOAD, users=1).describe() == "1 user, 100 tokens in, 3 out"


def test_bounds_of_a_run() -> None:
    """Four requests of at most 108 tokens, and two for warm-up."""
    budget = Budget(bounds=Bounds(requests=10, tokens=1000, seconds=60.0), requests=4, tokens=352)
    assert budget.refuses(LOAD, 2) == ""
    assert replace(budget, requests=5).refuses(LOAD, 2) == "6 requests more than --max-requests 10 leaves"
    assert replace(budget, tokens=353).refuses(LOAD, 2) == "648 tokens more than --max-tokens 1000 leaves"
    long = PlannedLoad(prompts=(9,), outputs=(1,), seconds=90.0)
    assert budget.refuses(long, 0) == "it takes 1.5 minutes, and --max-minutes is 1"
    assert budget.refuses(replace(long, seconds=60.0), 0) == ""
    assert budget.admits(6, 648) and not budget.admits(7, 0) and not budget.admits(0, 649)
    budget.spend(6, 648)
    assert (budget.requests, budget.tokens) == (10, 1000)
    with pytest.raises(UsageError):
        budget.spend(1, 0)
    assert too_long(LOAD, 108) == too_long(LOAD, None) == ""
    assert too_long(LOAD, 107) == "up to 108 tokens of a request, and the server takes 107"


def test_options_as_they_are_read() -> None:
    assert _minutes("1.5") == 90.0 and _rates("1,2.5") == [1.0, 2.5] and _rates("0.001,1000") == [0.001, 1000.0]
    for wrong in ("0", "-1", "inf", "x"):
        with pytest.raises(UsageError):
            _minutes(wrong)
    assert _users("1,50000") == [1, 50_000]
    with pytest.raises(UsageError):
        _users("1,50001")
    ScrapesAsked(every=10.0, lasting=10.0 * _MOST)
    with pytest.raises(UsageError):
        ScrapesAsked(every=10.0, lasting=10.0 * _MOST + 1.0)
    for wrong in ("0.0009", "1001", "1,x", ""):
        with pytest.raises(UsageError):
            _rates(wrong)


def test_tokens_that_cannot_be_right() -> None:
    assert _miscounted(measured(reply(prompt=50), FAILED)) == _miscounted(measured(FAILED)) == []
    silent = reply(prompt=None, output=None)
    assert _miscounted(measured(silent)) == []
    fewer = measured(silent, reply(prompt=90), reply(prompt=49), reply(prompt=80))
    assert _miscounted(fewer) == ["a prompt of 100 tokens counts as 49"]
    more = measured(silent, reply(output=2), reply(output=4))
    assert _miscounted(more) == ["a reply has 4 tokens by the server's count, 3 were asked for"]
    pieces = tuple(0.1 * place for place in range(6))
    assert _miscounted(measured(reply(times=pieces[:5]))) == []
    assert _miscounted(measured(reply(times=pieces))) == ["3 tokens by the server's count came in 6 pieces"]


def judged(load: MeasuredLoad, before: Occupancy, after: Occupancy, start: Occupancy | None = None) -> list[str]:
    session = Session(settings=MeasuringSettings(address=address_of("http://localhost:8000")))
    session.before = start or Occupancy()
    _Runner(session, None, Dialect(api="chat"), None, lambda *_: None)._judge(load, before, after)  # type: ignore[arg-type]
    return load.suspect


def test_doubts_about_a_load() -> None:
    quiet = Occupancy(running=0.0, finished=10.0)
    after = Occupancy(running=0.0, finished=12.0)
    assert judged(measured(reply(), reply()), quiet, after) == []
    assert judged(measured(reply()), quiet, replace(after, finished=13.0)) == [
        "2 requests of others were answered meanwhile"
    ]
    busy = Occupancy(running=3.0, finished=10.0)
    for looks in ((busy, quiet, None), (quiet, busy, None), (quiet, quiet, busy)):
        assert judged(measured(reply()), *looks) == ["3 requests of others were in the server"]
    assert judged(measured(reply()), quiet, replace(busy, lagging=True)) == []
    assert judged(measured(reply()), Occupancy(), after) == []
    nine = [reply()] * 9
    assert judged(measured(*nine, FAILED), Occupancy(), Occupancy()) == []
    assert judged(measured(*nine, FAILED, FAILED), Occupancy(), Occupancy()) == ["2 of 11 requests failed"]
    assert judged(measured(*nine, reply(refused=1)), Occupancy(), Occupancy()) == []
    assert judged(measured(*nine, reply(refused=1), reply(refused=2)), Occupancy(), Occupancy()) == [
        "2 of 11 requests were refused at first and sent again"
    ]
    assert judged(measured(reply(cached=25)), Occupancy(), Occupancy()) == []
    assert judged(measured(reply(cached=26)), Occupancy(), Occupancy()) == ["26% of prompt tokens came from a cache"]
    assert judged(measured(reply(prompt=None, cached=26)), Occupancy(), Occupancy()) == []
    shared = replace(LOAD, head_tokens=50)
    assert judged(measured(reply(cached=75), load=shared), Occupancy(), Occupancy()) == []
    bursts = reply(times=(0.5, 0.5, 0.5, 1.0))
    (said,) = judged(measured(bursts, load=replace(LOAD, output=4)), Occupancy(), Occupancy())
    assert said == "2.0 pieces come at once: a proxy or the engine holds them back, or this client is late"


def events(*pieces: bytes) -> list[bytes]:
    lines, found = EventLines(), list[bytes]()
    for piece in pieces:
        found += lines.feed(piece)
    return found + lines.end()


def test_events_of_a_stream() -> None:
    assert events(b'data: {"a": 1}\n\ndata: [DONE]\n\n') == [b'{"a": 1}', b"[DONE]"]
    assert events(b"data: {", b'"a": 1}\r', b"\n\r\n: comment\r\nevent: x\r\ndata:[DONE]") == [b'{"a": 1}']
    assert events(b'data: {"a":\ndata: 1}\n\n') == [b'{"a":\n1}']
    assert events(b'data: {"a": 1}\ndata: {"b": 2}\n') == [b'{"a": 1}', b'{"b": 2}']
    assert events(b"data: x\r\rdata: y\r\r") == [b"x", b"y"] and events(b"data: x\n") == [b"x"] and events(b"") == []
    with pytest.raises(StreamError):
        EventLines().feed(b"x" * ((1 << 24) + 1))
    assert EventLines().feed(b"x" * (1 << 24)) == []


def said(*events: Any, **more: Any) -> Transcript:
    found = Transcript(**more)
    for at, event in enumerate(events, 1):
        found.add(event if isinstance(event, bytes) else json.dumps(event).encode(), float(at))
    return found


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": fields, "finish_reason": finish}]}


def text(words: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": words, "finish_reason": finish}]}


def test_what_a_stream_said() -> None:
    """The role alone and the end alone bring no token; a blank piece in between is one."""
    usage = {
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}},
    }
    chat = said(
        delta(role="assistant", content=""), delta(content="a"), delta(content=""), delta("stop"), usage, b"[DONE]"
    )
    assert (chat.times, chat.finish, chat.prompt, chat.output, chat.cached) == ([2.0, 3.0], "stop", 9, 2, 0)
    assert (chat.done, chat.complete, chat.blank) == (True, True, 0)
    plain = said(text(""), text("a"), text("", "length"))
    assert (plain.times, plain.blank, plain.finish, plain.done, plain.complete) == (
        [1.0, 2.0],
        1,
        "length",
        False,
        True,
    )
    assert plain.token_times == (1.0, 2.0) and replace(plain, output=1).token_times == (2.0,)
    assert replace(plain, output=2).token_times == (1.0, 2.0) and not said(text("a")).complete
    for name in ("reasoning_content", "reasoning", "tool_calls"):
        assert said(delta(**{name: "x"})).times == [1.0] and said(delta(**{name: "x"})).blank == 0
    assert said(text("a", "stop")).times == [1.0] and said({"choices": [{"text": None}]}).times == []
    assert said(delta(content="")).blank == 1 and said(delta("stop", content="")).times == []


def test_counts_of_a_stream() -> None:
    """The last usage that has them counts; what is no count is none."""

    def usage(**counts: Any) -> dict[str, Any]:
        return {"usage": counts}

    found = said(usage(prompt_tokens=9, completion_tokens=1), usage(prompt_tokens=0, completion_tokens=3))
    assert (found.prompt, found.output, found.cached) == (9, 3, None)
    for wrong in (True, -1, 10**12 + 1, "9", 2.0):
        assert said(usage(prompt_tokens=wrong)).prompt is None
    assert said(usage(prompt_tokens=10**12)).prompt == 10**12
    details = [usage(prompt_tokens_details={"cached_tokens": 7}), usage(prompt_tokens_details={}), {"usage": 3}]
    assert said(*details).cached == 7 and said(usage(prompt_tokens_details=[])).cached is None


def test_streams_that_are_none() -> None:
    for event, words in (
        (b"<html>", "an event that is not JSON: <html>"),
        ([1], "an event that is not a JSON object"),
        ({"error": {"message": "too  long"}}, "the server says: too long"),
    ):
        with pytest.raises(StreamError, match=words):
            said(event)
    assert said(text("a"), text("b"), most=2).times == [1.0, 2.0]
    with pytest.raises(StreamError, match="more than 1 pieces"):
        said(text("a"), text("b"), most=1)


def test_what_an_error_says() -> None:
    assert error_text({"error": {"message": "a\n b"}}) == error_text({"message": "a b"}) == "a b"
    assert error_text({"detail": [{"msg": "x"}, {"loc": 1}, "y"]}) == "x; {'loc': 1}; y"
    assert error_text({"error": ""}) == error_text(None) == error_text({}) == "" and error_text({"error": 5}) == "5"


def test_how_a_server_is_asked() -> None:
    chat = json.loads(Dialect(api="chat").body("m", "hello", 7))
    assert chat == {
        "model": "m", "max_tokens": 7, "stream": True, "messages": [{"role": "user", "content": "hello"}],
        "stream_options": {"include_usage": True}, "ignore_eos": True, "temperature": 0,
    }  # fmt: skip
    bare = Dialect(api="completions", usage=False, ignore_eos=False, greedy=False, limit="max_completion_tokens")
    asked = {"model": "m", "max_completion_tokens": 7, "stream": True, "prompt": "hello"}
    assert json.loads(bare.body("m", "hello", 7)) == asked and bare.path == "/completions"
    assert bare.left_out == ["ignore_eos", "stream_options", "temperature"] and Dialect(api="chat").left_out == []


def test_what_a_server_refuses_is_left_out() -> None:
    """The option that it names; else the least usual one, until nothing is left."""
    whole = Dialect(api="chat")
    assert whole.without("use max_completion_tokens") == replace(whole, limit="max_completion_tokens")
    limited = replace(whole, limit="max_completion_tokens")
    assert limited.without("max_completion_tokens") == replace(limited, ignore_eos=False)
    assert whole.without("temperature must be 1") == replace(whole, greedy=False)
    assert whole.without("stream_options, temperature") == replace(whole, usage=False)
    left = [whole]
    while (found := left[-1].without("no")) is not None:
        left.append(found)
    assert [one.left_out for one in left] == [
        [], ["ignore_eos"], ["ignore_eos", "stream_options"], ["ignore_eos", "stream_options", "temperature"]
    ]  # fmt: skip


ADDRESSES = {
    "http://host:8000": ("http://host:8000", "host", 8000, False),
    " https://host/v1/ ": ("https://host", "host", 443, True),
    "http://host/a/v1/chat/completions": ("http://host/a", "host", 80, False),
    "http://host/v1/completions": ("http://host", "host", 80, False),
    "http://[::1]:1": ("http://[::1]:1", "::1", 1, False),
}


@for_each("url", ADDRESSES)
def test_addresses(url: str) -> None:
    root, host, port, encrypted = ADDRESSES[url]
    assert address_of(url) == Address(root=root, api=f"{root}/v1", host=host, port=port, encrypted=encrypted)


def test_this_machine_and_others() -> None:
    for url, here in (
        ("http://localhost", True),
        ("http://127.1.2.3", True),
        ("http://[::1]", True),
        ("http://h", False),
    ):
        assert address_of(url).loopback is here
    assert not address_of("http://10.0.0.1").loopback


@for_each(
    "url", ["host:8000", "ftp://h", "http://", "http://u:p@h", "http://h?x=1", "http://h#x", "http://h:99999", "u:p@h"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        address_of(url)
    assert "p@h" not in str(refused.value)


def test_a_key_is_hidden() -> None:
    assert Key("12345678").hidden("a 12345678 b") == "a *** b" and Key("1234567").hidden("1234567") == "1234567"
    assert Key("abc").headers() == {"Authorization": "Bearer abc"} and Key().headers() == {} and not Key() and Key("x")
    assert (repr(Key("abc")), repr(Key())) == ("Key(***)", "Key()")


def test_words_of_a_prompt() -> None:
    """Two prompts of 48 and 384 words with 106 and 778 tokens: 2 a word and 10 of a template."""
    sizing = PromptSizing()
    assert (sizing.each, sizing.words(100)) == (1.0, 100)
    sizing.learn(48, 106)
    assert sizing.each == pytest.approx(106 / 48)
    sizing.learn(384, 778)
    assert sizing.each == pytest.approx(2.0) and sizing.words(1010) == 500 and sizing.words(3) == 1
    assert [len(Prompts().text(words).split()) for words in (0, 1, 3)] == [1, 1, 3]
    sizing = PromptSizing()
    sizing.learn(1000, 1)
    assert sizing.words(100) == 400  # four words a token are the most


class _Server:
    """A client of a server that answers so."""

    def __init__(self, **answers: Any) -> None:
        self.address = address_of("http://localhost:8000")
        self.answers = answers
        self.asked: list[str] = []

    async def get(self, url: str) -> Answer:
        name = url.rsplit("/", 1)[1]
        self.asked.append(name)
        found = self.answers.get(name, 404)
        if isinstance(found, int):
            return Answer(status=found, error=f"HTTP {found}")
        return Answer(status=200, text=found if isinstance(found, str) else json.dumps(found))

    def shown(self, text: str, most: int) -> str:
        return text[:most]


def described(wanted: str | None = None, **answers: Any) -> Any:
    return asyncio.run(describe(_Server(**answers), wanted))  # type: ignore[arg-type]


def test_what_a_server_says_of_itself() -> None:
    models = {
        "data": [{"id": "a", "owned_by": "vLLM", "root": "org/a", "max_model_len": 8192}, {"id": "b", "parent": "a"}, 3]
    }
    found = described(models=models, version={"version": "0.19.0"})
    assert (found.model, found.id, found.source, found.engine) == ("a", "a", "org/a", "vllm")
    assert (found.version, found.context, found.tp, found.listed) == ("0.19.0", 8192, None, True)
    adapter = described("b", models=models, version=[])
    assert (adapter.id, adapter.engine, adapter.version, adapter.context) == ("b", "", "", None)
    info = {"version": "0.5", "tp_size": 4, "context_length": 4096}
    sglang = {"data": [{"id": "s", "owned_by": "sglang"}]}
    for page in ("server_info", "get_server_info"):
        found = described(models=sglang, **{page: info})
        assert (found.engine, found.version, found.tp, found.context) == ("sglang", "0.5", 4, 4096)
    stated = described(models={"data": [{"id": "s", "owned_by": "sglang", "max_model_len": 7}]}, server_info=info)
    assert stated.context == 7
    props = {"build_info": "b1", "default_generation_settings": {"n_ctx": 2048}}
    found = described(models={"data": [{"id": "l", "owned_by": "llamacpp"}]}, props=props)
    assert (found.engine, found.version, found.context) == ("llama.cpp", "b1", 2048)
    bare = described(models={"data": [{"id": "l", "owned_by": "tensorrt-llm", "max_model_len": True}]})
    assert (bare.engine, bare.context, bare.version) == ("trtllm", None, "")
    assert [_whole(value) for value in (1, 10**12, 0, 10**12 + 1, True, "3", 2.0)] == [1, 10**12] + [None] * 5


def test_servers_with_no_model_or_several() -> None:
    found = described("m", models={"data": {}})
    assert (found.id, found.listed) == ("m", False)
    for models in (404, {"data": []}, [1], {"data": [{"id": 3}]}):
        with pytest.raises(UsageError, match="has no list of models"):
            described(models=models)
    many = {"data": [{"id": name} for name in "abcdefghi"]}
    with pytest.raises(UsageError, match="the server has several models") as refused:
        described(models=many)
    assert refused.value.because == "a, b, c, d, e, f, g, h, ..."
    with pytest.raises(UsageError, match="no model 'x'"):
        described("x", models=many)
    eight = {"data": many["data"][:8]}
    with pytest.raises(UsageError) as refused:
        described(models=eight)
    assert refused.value.because == "a, b, c, d, e, f, g, h"


@for_each("status", [0, 401, 403, 300, 399])
def test_servers_that_do_not_answer(status: int) -> None:
    with pytest.raises(NetworkError):
        described(models=status)
    if status == 399:
        assert described("m", models=400).id == "m"


def at_work(text: str | int) -> Occupancy:
    return asyncio.run(occupancy(_Server(metrics=text)))  # type: ignore[arg-type]


def test_requests_in_a_server() -> None:
    lines = (
        '# HELP x\nvllm:num_requests_running{model="a"} 2\nvllm:num_requests_running{model="b"} 1\n'
        "vllm:num_requests_waiting 4\nvllm:request_success_total 10\nvllm:request_success_total 5\nother 9\n"
    )
    assert at_work(lines) == Occupancy(running=7.0, finished=15.0)
    assert at_work("sglang:num_running_reqs 3\n") == Occupancy(running=3.0, lagging=True)
    assert (
        at_work("vllm:num_requests_running NaN\nvllm:num_requests_running -1\nvllm:num_requests_running x\n")
        == Occupancy()
    )
    assert at_work("vllm:num_requests_waiting 4\n") == at_work(404) == Occupancy()


def test_a_server_has_time_to_count_its_last_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most four looks more, half a second apart, until nothing runs."""
    from inferplan.measuring import server as module

    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))

    def settled(*running: float, lagging: bool = False) -> Occupancy:
        left = iter(running)
        slept.clear()

        async def look(client: Any) -> Occupancy:
            return Occupancy(running=next(left), lagging=lagging)

        monkeypatch.setattr(module, "occupancy", look)
        return asyncio.run(module.settled(None))  # type: ignore[arg-type]

    assert settled(0.0).running == 0.0 and slept == []
    assert settled(2.0, 1.0, 0.0).running == 0.0 and slept == [0.5, 0.5]
    assert settled(1.0, 1.0, 1.0, 1.0, 3.0).running == 3.0 and slept == [0.5] * 4
    assert settled(5.0, lagging=True).running == 5.0 and slept == []


def client(text: str = "12345678") -> Any:
    from inferplan.measuring.client import Client

    return Client(address_of("http://localhost:8000"), Key(text), 7.0)


def test_a_servers_words_are_repeated_in_one_line() -> None:
    """Without the key, without what a terminal obeys, and no more than 300 characters."""
    said = client().shown
    assert said("a\n  b\x1b[1m 12345678") == "a b[1m ***"
    assert said("x" * 300) == "x" * 300 and said("x" * 301) == "x" * 300 + "..." and said("abc", 2) == "ab..."


def test_refusals_in_words() -> None:
    said = client()._refusal
    assert said(SimpleNamespace(status_code=400), '{"error": {"message": "too long"}}') == "HTTP 400: too long"
    assert said(SimpleNamespace(status_code=500), " broken ") == "HTTP 500: broken"
    assert said(SimpleNamespace(status_code=502), "<html>x</html>") == "HTTP 502"
    for status, elsewhere in ((299, False), (300, True), (399, True), (400, False)):
        assert ("sends elsewhere" in said(SimpleNamespace(status_code=status), "x")) is elsewhere


def test_failures_of_the_network_in_words() -> None:
    one = client()
    kinds = one._errors
    assert one._words(kinds.ConnectTimeout("x")) == "no connection within 10 s"
    assert one._words(kinds.ReadTimeout("x")) == "nothing came for 7 s"
    assert one._words(OSError("no route")) == "no route" and one._words(OSError()) == "OSError"


def test_when_to_ask_again() -> None:
    from datetime import UTC, datetime, timedelta
    from email.utils import format_datetime

    from inferplan.measuring.client import _incomplete, _wait

    assert [_wait(text) for text in ("3", " 12 ", "soon", "", "-1", "1" * 12)] == [3.0, 12.0] + [None] * 4
    later = datetime.now(UTC) + timedelta(seconds=60)
    assert _wait(format_datetime(later)) == pytest.approx(60, abs=5)
    assert _wait(format_datetime(later - timedelta(hours=1))) == 0.0
    assert _incomplete(said(text("a", "stop"))) == (None, "")
    assert _incomplete(said(text("a"))) == ("stream", "the stream ended before the reply was complete")
    assert _incomplete(said(b"[DONE]")) == ("stream", "the reply holds no token")
    assert Answer(status=200, text='{"a": 1}').json == {"a": 1} and Answer(status=500, text="{}").json is None
