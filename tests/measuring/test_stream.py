"""Server-sent events, whatever the pieces they are read in, and what is a token in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferplan.measuring.client import Reply
from inferplan.measuring.figures import load_figures
from inferplan.measuring.loads import UsersLoad
from inferplan.measuring.prompts import PromptSizing
from inferplan.measuring.session import MeasuredLoad
from inferplan.measuring.stream import EventLines, StreamError, Transcript, error_text
from tests.cases import for_each

BYTES = 'event: x\r\ndata: {"a": "é"}\r\n\r\n: ping\n\ndata:{"b": 2}\n\nid: 7\ndata: [DONE]\n\n'.encode()
PAYLOADS = ['{"a": "é"}'.encode(), b'{"b": 2}', b"[DONE]"]


@for_each("size", [1, 2, 3, 5, 17, len(BYTES)])
def test_events_do_not_depend_on_how_they_are_cut(size: int) -> None:
    lines = EventLines()
    found = [payload for at in range(0, len(BYTES), size) for payload in lines.feed(BYTES[at : at + size])]
    assert found == PAYLOADS


ENDS: dict[str, tuple[bytes, list[bytes]]] = {
    "CR alone": (b'data: {"a": 1}\r\rdata: {"b": 2}\r\r', [b'{"a": 1}', b'{"b": 2}']),
    "CR and LF": (b'data: {"a": 1}\r\n\r\ndata: [DONE]\r\n\r\n', [b'{"a": 1}', b"[DONE]"]),
    "several lines": (b'data: {"a":\ndata: 1}\n\ndata: {"b": 2}\n\n', [b'{"a":\n1}', b'{"b": 2}']),
    "a line that looks whole": (b'data: {"a": {}\ndata: }\n\n', [b'{"a": {}\n}']),
    "no empty lines": (b'data: {"a": 1}\ndata: {"b": 2}\ndata: [DONE]\n', [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]),
    "an end without an empty line": (b'data: {"a": 1}\n\ndata: {oh', [b'{"a": 1}']),
    "no JSON": (b"data: oh\n\n", [b"oh"]),
}


@for_each("name", ENDS)
def test_lines_and_events_end_as_the_standard_says(name: str) -> None:
    """HTML standard, 9.2.6: CR, LF or both; ``data`` lines of an event are joined by LF."""
    text, expected = ENDS[name]
    for size in range(1, len(text) + 1):
        lines = EventLines()
        found = [payload for at in range(0, len(text), size) for payload in lines.feed(text[at : at + size])]
        assert [*found, *lines.end()] == expected, size


def test_an_empty_first_event_is_no_token_where_the_server_counts_fewer() -> None:
    """Three pieces, the first blank: with two tokens by usage the first text is the first token, with three it is."""
    for tokens, first in ((2, 0.4), (3, 0.2)):
        script = Transcript()
        for text, at in (("", 0.2), ("a", 0.4), ("b", 0.5)):
            script.add(json.dumps(choice(text=text)).encode(), at)
        script.add(
            json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}).encode(), 0.5
        )
        assert script.token_times[0] == first
    assert Transcript(times=[0.2, 0.4], blank=1).token_times == (0.2, 0.4)  # nobody counts


def test_a_line_without_an_end_is_refused() -> None:
    lines = EventLines()
    with pytest.raises(StreamError, match="a line of more than"):
        for _ in range(20):
            lines.feed(b"x" * (1 << 20))


def choice(**fields: Any) -> dict[str, Any]:
    return {"choices": [fields]}


STREAMS: dict[str, tuple[list[dict[str, Any]], list[int]]] = {
    "completions": ([choice(text="a"), choice(text="b", finish_reason="length")], [0, 1]),
    "a token without text": ([choice(text=""), choice(text="b", finish_reason="stop")], [0, 1]),
    "an end of its own": ([choice(text="a"), choice(text="b"), choice(text="", finish_reason="stop")], [0, 1]),
    "chat": (
        [
            choice(delta={"role": "assistant", "content": ""}),
            choice(delta={"content": "a"}),
            choice(delta={"content": ""}),
            choice(delta={}, finish_reason="stop"),
        ],
        [1, 2],
    ),
    "reasoning": ([choice(delta={"reasoning_content": "a"}), choice(delta={"reasoning": "b"})], [0, 1]),
    "a tool": ([choice(delta={"tool_calls": [{"index": 0}]}), choice(delta={}, finish_reason="tool_calls")], [0]),
    "usage alone": ([choice(text="a"), {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}], [0]),
}


@for_each("name", STREAMS)
def test_which_events_bring_a_token(name: str) -> None:
    events, times = STREAMS[name]
    script = Transcript()
    for at, one in enumerate(events):
        script.add(json.dumps(one).encode(), float(at))
    assert script.times == [float(at) for at in times]


def test_the_last_usage_counts() -> None:
    """vLLM's continuous_usage_stats repeats it with every event; a null takes nothing back."""
    script = Transcript()
    for made in (1, 2, 3):
        usage = {"prompt_tokens": 9, "completion_tokens": made, "prompt_tokens_details": {"cached_tokens": 4}}
        script.add(json.dumps({**choice(text="a"), "usage": usage}).encode(), 0.0)
    script.add(json.dumps({"choices": [], "usage": None}).encode(), 0.0)
    assert (script.prompt, script.output, script.cached) == (9, 3, 4)
    assert not script.complete
    script.add(b"[DONE]", 0.0)
    assert script.complete


@for_each("payload", [b"{", b"[1]", b'{"error": {"message": "no memory"}}', b'{"error": "no memory"}'])
def test_what_is_no_event_fails_the_request(payload: bytes) -> None:
    with pytest.raises(StreamError):
        Transcript().add(payload, 0.0)


ERRORS: list[tuple[Any, str]] = [
    ({"error": {"message": "too long"}}, "too long"),  # OpenAI, vLLM
    ({"object": "error", "message": "too\nlong"}, "too long"),  # vLLM before 0.10
    ({"detail": [{"msg": "field required"}, {"msg": "no int"}]}, "field required; no int"),  # FastAPI
    ({"error": "too long"}, "too long"),
    (None, ""),
]


@for_each(("body", "words"), ERRORS)
def test_errors_of_several_servers(body: Any, words: str) -> None:
    assert error_text(body) == words


def test_words_of_a_prompt_follow_from_two_that_were_counted() -> None:
    """40 words were 65 tokens and 400 words 605: 1.5 tokens a word and 5 of a template; 1000 tokens are 663.3 words."""
    sizing = PromptSizing()
    assert sizing.words(100) == 100
    sizing.learn(40, 65)
    assert sizing.words(650) == 400
    sizing.learn(400, 605)
    assert sizing.words(1000) == 663
    assert sizing.words(1) == 1


def test_a_further_token_takes_what_lies_between_the_first_and_the_last() -> None:
    """Five tokens in pieces at 1, 2 and 3 s: (3 - 1)/4. Tokens that all came at once, and a single one, say nothing."""

    def tpot(output: int | None, *times: float) -> float | None:
        return Reply(sent=0.0, ended=times[-1], times=times, prompt=8, output=output).tpot

    assert tpot(5, 1.0, 2.0, 3.0) == 0.5
    assert tpot(5, 1.0, 1.0) is tpot(5, 1.0) is tpot(1, 1.0, 2.0) is tpot(None, 1.0, 2.0) is None


def test_the_rate_of_a_load_is_from_the_first_request_to_the_last_token() -> None:
    """Two requests sent at 10 and 11 s, first tokens at 12 and 14 s, the last of 3 + 5 tokens at 18 s: 8 tokens in 8 s,
    not in the 6 s since the first token. TTFT 2 and 3 s; TPOT (14 - 12)/2 and (18 - 14)/4 s."""
    replies = [
        Reply(sent=10.0, ended=14.0, times=(12.0, 13.0, 14.0), prompt=7, output=3),
        Reply(sent=11.0, ended=18.0, times=(14.0, 15.0, 16.0, 17.0, 18.0), prompt=9, output=5),
    ]
    found = load_figures(MeasuredLoad(load=UsersLoad(users=2, requests=2, prompt=8, output=4), replies=replies))
    assert found is not None
    assert found.rate == 1.0
    assert (found.isl, found.osl, found.requests) == (8.0, 4.0, 2)
    means = {name: values["mean"] for name, values in found.latencies.items()}
    assert means == {"ttft": 2.5, "tpot": 1.0, "itl": 1.0, "e2el": 5.5}
