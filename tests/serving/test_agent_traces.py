"""Traces of agents by hand: who follows whom and when, what the cache finds, and a clear word about broken files.

The device is that of ``plain_time``: one second a step and a tenth for each token in it that is not cached.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferplan.errors import InputFileError
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import simulate
from inferplan.traffic import traces
from inferplan.traffic.agent_traces import first_sessions, sessions_in_open_loop
from inferplan.traffic.requests import ClosedLoop, OpenLoop
from tests.cases import for_each
from tests.serving.plain_time import CLOSE, plain


def chat(number: int, parent: int, time: float, sizes: tuple[int, int], hashes: list[int]) -> dict[str, Any]:
    return {
        "chat_id": number,
        "parent_chat_id": parent,
        "timestamp": time,
        "input_length": sizes[0],
        "output_length": sizes[1],
        "type": "text",
        "turn": 1,
        "hash_ids": hashes,
    }


BAILIAN = [
    chat(1, -1, 100.0, (40, 2), [1, 2, 3]),
    chat(2, 1, 110.0, (70, 1), [1, 2, 9, 4, 5]),
    chat(7, -1, 106.0, (33, 1), [1, 7, 8]),
    chat(3, 2, 111.0, (80, 1), [1, 2, 9, 4, 5]),
    chat(8, 99, 130.0, (16, 3), [1]),
]


def lines(rows: list[dict[str, Any]], folder: Path, name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def by_prompt(run: SimulationResult, name: str) -> dict[int, float]:
    return dict(zip(run.records.prompt, getattr(run.records, name)))


def test_bailian_by_hand(tmp_path: Path) -> None:
    """Chat 1: 40 tokens in 5.0 s and one more, 6.1 s. Chat 7, sent at 6.0 s, finds a block of 16: 17 tokens, 2.7 s,
    8.8 s. Chat 2 at 10.0 s finds two blocks: 38 tokens, 4.8 s, 14.8 s. Chat 3 was sent 11 s after chat 1, but here its
    parent's answer comes later: it is sent then, and finds four blocks: 16 tokens, 2.6 s, 17.4 s. Chat 8 has no parent
    in the file: a session of its own at 30 s.
    """
    trace = traces.read_trace(lines(BAILIAN, tmp_path))
    assert trace.sessions is not None
    assert trace.sessions.of.tolist() == [0, 0, 0, 1, 2]
    assert trace.sessions.note == "1 calls whose parent is not in the file begin sessions of their own"
    run = simulate(plain(prefix_caching=True), trace)
    assert by_prompt(run, "arrival") == pytest.approx({40: 0.0, 33: 6.0, 70: 10.0, 80: 14.8, 16: 30.0}, rel=CLOSE)
    assert by_prompt(run, "finish") == pytest.approx({40: 6.1, 33: 8.8, 70: 14.8, 80: 17.4, 16: 34.8}, rel=CLOSE)
    found = {run.records.prompt[call]: tokens for call, tokens in run.records.cached.items()}
    assert found == {33: 16, 70: 32, 80: 64}


def replayed(run: SimulationResult) -> list[int]:
    """Tokens that a cache which forgets nothing finds of each call, in the order in which they were sent; the engine
    has blocks of 16."""
    block, seen, found = 16, set[int](), []
    hashes = run.records.hashes
    assert hashes is not None
    for prompt, names in zip(run.records.prompt, hashes):
        leading = 0
        while leading < min(len(names), (prompt - 1) // block) and names[leading] in seen:
            leading += 1
        seen.update(names)
        found.append(leading * block)
    return found


def session(times: tuple[float, float], **more: Any) -> dict[str, Any]:
    """A session whose sub-agent's calls have these times; a second sub-agent runs in the background at the end."""
    below = [
        {"t": times[0], "type": "n", "model": "m", "in": 70, "out": 1, "hash_ids": [50, 51], "api_time": 2.0},
        {"t": times[1], "type": "n", "model": "m", "in": 140, "out": 1, "hash_ids": [50, 52, 53], "api_time": 1.0},
    ]
    last = [{**below[0], "t": times[0] + 9.0, "in": 65}]
    return {
        "id": "a",
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [
            {"t": 0.0, "type": "n", "model": "m", "in": 130, "out": 2, "hash_ids": [1, 2, 3], "api_time": 3.0},
            {"t": 4.0, "type": "subagent", "agent_id": "x", "duration_ms": 6000, "requests": below},
            {
                "t": 12.0,
                "type": "s",
                "model": "m",
                "in": 200,
                "out": 1,
                "hash_ids": [1, 2, 4, 5],
                "api_time": 0.4,
                "think_time": 9.0,
                "input_types": ["tool_result"],
            },
            {"t": 13.0, "type": "subagent", "agent_id": "y", "status": "completed", "requests": last},
        ],
        **more,
    }


RELATIVE, ABSOLUTE = session((0.5, 3.5)), session((4.5, 7.5))


@for_each(("trace", "said"), [(RELATIVE, "from the sub-agent"), (ABSOLUTE, "of the session")])
def test_weka_by_hand(trace: dict[str, Any], said: str, tmp_path: Path) -> None:
    """130 tokens and one more: 15.1 s. The sub-agent begins 1.5 s after that, as recorded: 70 tokens, 8.0 s, 24.6 s;
    its second call a second later finds a block of 64: 76 tokens, 8.6 s, 34.2 s. The second call of the agent comes
    3.5 s after that (12.0 less 8.5, not the 9 s since its own answer) and finds 128 tokens: 72, 8.2 s, 45.9 s. The
    other sub-agent begins at 13.5 s, 1.1 s after that answer, where times are those of the session, and at 22.5 s where
    they count from its own; it finds 64 of 65 tokens: 1.1 s.
    """
    requests = traces.read_trace(lines([trace], tmp_path))
    assert requests.sessions is not None
    assert said in requests.sessions.note
    assert requests.think is not None
    gaps = [0.0, 1.5, 1.0, 3.5, 1.1 if trace is ABSOLUTE else 10.1]
    assert requests.think.tolist() == pytest.approx(gaps)
    assert requests.sessions.by_user.tolist() == [True, False, False, False, False]
    started = first_sessions(requests, 1)
    run = simulate(plain(prefix_caching=True), sessions_in_open_loop(started, OpenLoop(rate=1e-3, kind="constant"), 0))
    finish = by_prompt(run, "finish")
    assert [finish[prompt] for prompt in (130, 70, 140, 200)] == pytest.approx([15.1, 24.6, 34.2, 45.9], rel=CLOSE)
    assert finish[65] == pytest.approx(45.9 + gaps[4] + 1.1, rel=CLOSE)
    assert [run.records.cached.get(call, 0) for call in range(5)] == replayed(run) == [0, 0, 64, 128, 64]


@for_each(("scope", "found"), [("local", 0), ("global", 128)])
def test_equal_names_of_two_sessions_are_one_text_only_where_the_file_says_so(
    scope: str, found: int, tmp_path: Path
) -> None:
    (tmp_path / "sessions").mkdir()
    for name in ("a.json", "b.json"):
        text = json.dumps(session((4.5, 7.5), hash_id_scope=scope), indent=1)
        (tmp_path / "sessions" / name).write_text(text, encoding="utf-8")
    trace = traces.read_trace(tmp_path / "sessions")
    assert trace.sessions is not None
    assert len(trace.sessions) == 2
    run = simulate(plain(prefix_caching=True), trace.in_loop(ClosedLoop(concurrency=1)))
    assert [run.records.cached.get(call, 0) for call in range(10)] == replayed(run)
    assert run.records.cached.get(5, 0) == found
    assert run.sessions is not None
    assert run.sessions.counts["finished"] == 2
    assert run.sessions.start[1] == pytest.approx(run.sessions.duration[0], rel=1e-9)  # one at a time


def test_calls_whose_server_time_is_not_recorded_are_sent_when_they_were(tmp_path: Path) -> None:
    calls = [{"t": t, "type": "n", "in": 10, "out": 1, "hash_ids": []} for t in (0.0, 9.0, 9.5)]
    trace = {"block_size": 64, "hash_id_scope": "local", "requests": calls}
    requests = traces.read_trace(lines([trace], tmp_path)).in_loop(ClosedLoop(concurrency=1))
    run = simulate(plain(), requests)
    assert list(run.records.arrival) == pytest.approx([0.0, 9.0, 11.0], rel=CLOSE)  # the last after 2 s of the second


def test_what_is_not_recorded_is_said(tmp_path: Path) -> None:
    """Of two models, and one call of the agent's own that does not say what it brings."""
    trace = json.loads(json.dumps(ABSOLUTE))
    trace["requests"].insert(3, {**trace["requests"][0], "t": 12.5, "model": "other"})
    sessions = traces.read_trace(lines([trace], tmp_path)).sessions
    assert sessions is not None
    assert sessions.by_user.tolist() == [True, False, False, False, True, False]
    assert "gaps of 1 calls whose input_types are not recorded count as their users'" in sessions.note
    assert "calls of 2 models (m, other) are all served by this one" in sessions.note


def _without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


@for_each(
    ("rows", "said"),
    [
        ([BAILIAN[0], {**BAILIAN[1], "chat_id": 1}], "trace.jsonl:2: chat_id 1 is there already"),
        ([BAILIAN[0], {**BAILIAN[1], "timestamp": 90.0}], "trace.jsonl:2: chat 2 is sent before its parent 1"),
        ([_without(BAILIAN[0], "parent_chat_id")], "trace.jsonl:1 has no chat_id and parent_chat_id"),
        ([{**BAILIAN[0], "hash_ids": [1]}], "trace.jsonl:1: hash_ids names 1 blocks of a prompt that fills 2"),
        ([{**BAILIAN[0], "hash_ids": [1, "a"]}], "trace.jsonl:1: hash_ids is not a list of whole numbers"),
        ([{**BAILIAN[0], "timestamp": -1}], "trace.jsonl:1: timestamp is -1, not a number of 0 or more"),
        ([{**BAILIAN[0], "output_length": 0}], "trace.jsonl:1: output_length is 0, not a whole number of tokens"),
        ([_without(ABSOLUTE, "hash_id_scope")], "trace.jsonl:1: hash_id_scope is None, not local or global"),
        ([_without(ABSOLUTE, "block_size")], "trace.jsonl:1 has no block_size"),
        ([ABSOLUTE, session((4.5, 7.5), block_size=32)], "sessions with blocks of 32 and 64 tokens"),
        ([{**ABSOLUTE, "requests": ABSOLUTE["requests"][1:]}], "trace.jsonl:1: does not begin with a call of its own"),
        ([session((0.5, 7.5))], "times inside sub-agents follow no one convention"),
        ([{**ABSOLUTE, "requests": [{"t": 1, "type": "x"}]}], "request 1: type is 'x', not n, s or subagent"),
        ([{**ABSOLUTE, "requests": []}], "does not begin with a call of its own"),
        ([{**ABSOLUTE, "requests": 5}], "trace.jsonl:1: requests is not a list of objects"),
    ],
)
def test_a_broken_file_is_refused_where_it_is_broken(rows: list[dict[str, Any]], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputFileError) as error:
        traces.read_trace(lines(rows, tmp_path))
    assert said in str(error.value)


def test_an_empty_folder_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=r"holds no \.json or \.jsonl file"):
        traces.read_trace(tmp_path)


def test_the_first_sessions_of_a_trace_are_whole(tmp_path: Path) -> None:
    trace = first_sessions(traces.read_trace(lines([ABSOLUTE, RELATIVE, ABSOLUTE][::2], tmp_path)), 1)
    assert trace.sessions is not None
    assert len(trace) == 5
    assert len(trace.sessions) == 1
    assert trace.sessions.joins.tolist() == [[3, 2]]
    assert np.isinf(trace.sessions.patience).all()
