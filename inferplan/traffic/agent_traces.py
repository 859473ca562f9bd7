"""Traces of agents with the names of their blocks, read into sessions: Bailian and Weka (AgentX).

- Bailian (github.com/alibaba-edu/qwen-bailian-usagetraces-anon): JSON lines, a request each: ``chat_id``,
  ``parent_chat_id`` (-1 for none), ``timestamp`` (s), ``input_length``, ``output_length``, ``hash_ids`` of 16 tokens
  each, of which equal ones are the same text in the whole file. How long the server took is not recorded: a call is
  sent when it was, counted from the first of its session, or with the answer that it waits for where that is later.
- Weka (github.com/callanjfox/kv-cache-tester): a JSON object for each session, in a file, in lines, or in files of a
  folder: ``requests`` in order, each ``t`` (s), ``in``, ``out``, ``hash_ids`` of ``block_size`` tokens, ``think_time``
  and ``api_time`` (s); among them sub-agents with ``requests`` of their own. A call follows the one before it in its
  list, and waits for the sub-agents between the two; those that nobody waits for run in the background.

Blocks of answers have no names of their own: they are found once a later prompt has brought them. Every problem is an
``InputFileError`` that names file and line, or session.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from inferplan.errors import InputFileError, UsageError
from inferplan.files import read_text
from inferplan.traffic.block_names import FileNames
from inferplan.traffic.requests import OpenLoop, Requests
from inferplan.traffic.session_columns import Sessions

BAILIAN_BLOCK = 16
_LARGEST = 2**40
_NAMES = 1 << 64
"""Names of the blocks of one session, where equal ones of two sessions are different text."""


@dataclass(kw_only=True)
class _Call:
    """A request of a session: places are in the list of that session's."""

    prompt: int
    output: int
    names: tuple[int, ...]
    follows: int = -1
    gap: float = 0.0
    earliest: float = 0.0
    joins: list[int] = field(default_factory=list)
    by_user: bool = True


def _value(where: str, row: dict[str, Any], name: str) -> float:
    """A number that is finite and not negative. Raises ``InputFileError``."""
    value = row.get(name)
    if value is None:
        raise InputFileError(f"{where} has no {name}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InputFileError(f"{where}: {name} is {value!r:.40}, not a number of 0 or more")
    return float(value)


def _tokens(where: str, row: dict[str, Any], name: str) -> int:
    value = _value(where, row, name)
    if not 1 <= value < _LARGEST or value != int(value):
        raise InputFileError(f"{where}: {name} is {value:g}, not a whole number of tokens of 1 or more")
    return int(value)


def _hashes(where: str, row: dict[str, Any], full: int) -> tuple[int, ...]:
    """The names of the full blocks of a prompt."""
    names = row.get("hash_ids")
    if not isinstance(names, list) or not all(isinstance(name, int) and 0 <= name < _NAMES for name in names):
        raise InputFileError(f"{where}: hash_ids is not a list of whole numbers")
    if len(names) < full:
        raise InputFileError(f"{where}: hash_ids names {len(names)} blocks of a prompt that fills {full}")
    return tuple(names[:full])


def bailian(path: Path, rows: Iterable[tuple[int, dict[str, Any]]]) -> Requests:
    """The sessions of a Bailian trace: ``rows`` are its lines with their numbers."""
    found: dict[int, tuple[str, dict[str, Any], float]] = {}
    for line, row in rows:
        where = f"{path}:{line}"
        chat = row.get("chat_id")
        if not isinstance(chat, int) or not isinstance(row.get("parent_chat_id"), int):
            raise InputFileError(f"{where} has no chat_id and parent_chat_id that are whole numbers")
        if chat in found:
            raise InputFileError(f"{where}: chat_id {chat} is there already", because=f"in {found[chat][0]}")
        found[chat] = where, row, _value(where, row, "timestamp")
    begun: dict[int, tuple[int, int]] = {}
    sessions: list[list[_Call]] = []
    starts: list[float] = []
    orphans = 0
    for chat, (where, row, time) in sorted(found.items(), key=lambda item: item[1][2]):
        prompt, parent = _tokens(where, row, "input_length"), row["parent_chat_id"]
        call = _Call(
            prompt=prompt,
            output=_tokens(where, row, "output_length"),
            names=_hashes(where, row, prompt // BAILIAN_BLOCK),
        )
        if parent in found and parent not in begun:
            raise InputFileError(f"{where}: chat {chat} is sent before its parent {parent}")
        if parent in begun:
            session, call.follows = begun[parent]
            call.earliest = time - starts[session]
        else:
            orphans += parent != -1
            session = len(sessions)
            sessions.append([])
            starts.append(time)
        begun[chat] = session, len(sessions[session])
        sessions[session].append(call)
    note = f"{orphans:,} calls whose parent is not in the file begin sessions of their own" if orphans else ""
    first = min(starts, default=0.0)
    return _requests(path, sessions, BAILIAN_BLOCK, note, [start - first for start in starts])


def weka(path: Path, traces: list[tuple[str, dict[str, Any]]]) -> Requests:
    """The sessions of a Weka trace: objects, each with where it is from. They have no time at which they begin."""
    blocks = {_tokens(where, trace, "block_size") for where, trace in traces}
    if len(blocks) > 1:
        raise InputFileError(f"{path}: sessions with blocks of {min(blocks)} and {max(blocks)} tokens")
    relative, note = _convention(path, traces)
    models: Counter[str] = Counter()
    sessions, unsaid = [], 0
    for number, (where, trace) in enumerate(traces):
        scope = trace.get("hash_id_scope")
        if scope not in ("local", "global"):
            raise InputFileError(f"{where}: hash_id_scope is {scope!r:.40}, not local or global")
        reader = _Weka(where, min(blocks), relative, (number + 1) * _NAMES if scope == "local" else 0, models)
        reader.read(trace["requests"], 0.0)
        if sum(call.follows < 0 for call in reader.calls) != 1:
            raise InputFileError(f"{where}: does not begin with a call of its own", because="a sub-agent is the first")
        sessions.append(reader.calls)
        unsaid += reader.unsaid
    notes = [note] if note else []
    if unsaid:
        notes.append(f"gaps of {unsaid:,} calls whose input_types are not recorded count as their users'")
    if len(models) > 1:
        notes.append(f"calls of {len(models)} models ({', '.join(sorted(models))}) are all served by this one")
    return _requests(path, sessions, min(blocks, default=1), "; ".join(notes), None)


def _entries(where: str, requests: Any) -> list[dict[str, Any]]:
    if not isinstance(requests, list) or not all(isinstance(entry, dict) for entry in requests):
        raise InputFileError(f"{where}: requests is not a list of objects")
    return requests


def _markers(where: str, requests: Any) -> list[tuple[str, dict[str, Any]]]:
    """All sub-agents of a session that have calls, those of sub-agents too."""
    found = []
    for place, entry in enumerate(_entries(where, requests)):
        at = f"{where}, request {place + 1}"
        if entry.get("type") == "subagent" and entry.get("requests"):
            found += [(at, entry), *_markers(at, entry["requests"])]
    return found


def _convention(path: Path, traces: list[tuple[str, dict[str, Any]]]) -> tuple[bool, str]:
    """Whether times inside sub-agents count from the sub-agent's own, and what that is concluded from.

    They cannot count from the session's begin where one is before its sub-agent's, nor from the sub-agent's own where
    one is beyond its duration. Where neither is so they are taken as published, from the session's begin.
    """
    before = beyond = count = 0
    for trace_at, trace in traces:
        for where, marker in _markers(trace_at, trace["requests"]):
            inner = [_value(where, entry, "t") for entry in _entries(where, marker["requests"])]
            count += 1
            before += min(inner) < _value(where, marker, "t") - 1e-6
            beyond += "duration_ms" in marker and max(inner) > _value(where, marker, "duration_ms") / 1e3 + 1e-3
    if before and beyond:
        raise InputFileError(
            f"{path}: times inside sub-agents follow no one convention",
            because=f"of {count}, {before} begin before their sub-agent, {beyond} would outlast it if counted from it",
        )
    if not count:
        return False, ""
    if before:
        return True, f"times inside sub-agents count from the sub-agent ({before} of {count} are before it otherwise)"
    why = f"{beyond} of {count} outlast it otherwise" if beyond else f"none of {count} is before its sub-agent"
    return False, f"times inside sub-agents count from the begin of the session ({why})"


class _Weka:
    """Reads one session. ``base`` is added to the names of its blocks, ``models`` counts who was called."""

    def __init__(self, where: str, block: int, relative: bool, base: int, models: Counter[str]) -> None:
        self.where, self.block, self.relative, self.base, self.models = where, block, relative, base, models
        self.calls: list[_Call] = []
        self.ends: list[float] = []
        """When each answer was there, as recorded; not a number where that is not known."""
        self.depth = self.unsaid = 0
        """Sub-agents around the list that is read; calls that do not say whether they bring what a tool has found."""

    def read(self, requests: Any, origin: float, parent: int = -1) -> int:
        """The calls of one list, whose times count from ``origin``; the first follows ``parent``. Gives the last."""
        last, below = parent, list[int]()
        for place, entry in enumerate(_entries(self.where, requests)):
            where = f"{self.where}, request {place + 1}"
            time = origin + _value(where, entry, "t")
            if entry.get("type") == "subagent":
                self.depth += 1
                end = self.read(entry.get("requests", []), time if self.relative else 0.0, last)
                self.depth -= 1
                if end != last:
                    below.append(end)
            elif entry.get("type") in ("n", "s"):
                last, below = self._call(where, entry, time, (last, below)), []
            else:
                raise InputFileError(f"{where}: type is {entry.get('type')!r:.40}, not n, s or subagent")
        return last

    def _call(self, where: str, entry: dict[str, Any], time: float, before: tuple[int, list[int]]) -> int:
        """One call, which follows one and waits for others. Its gap is what is recorded, else what the times leave."""
        last, below = before
        prompt = _tokens(where, entry, "in")
        names = _hashes(where, entry, prompt // self.block)
        call = _Call(
            prompt=prompt,
            output=_tokens(where, entry, "out"),
            names=tuple(self.base + name for name in names),
            follows=last,
            joins=below,
            by_user=not (self.depth or below or "tool_result" in entry.get("input_types", ())),
        )
        if last >= 0:
            self.unsaid += call.by_user and "input_types" not in entry
            ready = float(np.max([self.ends[one] for one in (last, *below)]))
            if not below and entry.get("think_time") is not None:
                call.gap = _value(where, entry, "think_time")
            elif isnan(ready):
                call.earliest = time
            else:
                call.gap = max(time - ready, 0.0)
        self.models[str(entry.get("model"))] += 1
        took = _value(where, entry, "api_time") if entry.get("api_time") is not None else float("nan")
        self.calls.append(call)
        self.ends.append(time + took)
        return len(self.calls) - 1


def _requests(path: Path, sessions: list[list[_Call]], block: int, note: str, starts: list[float] | None) -> Requests:
    """Sessions one after another as requests; ``starts`` in seconds, where they are known."""
    calls = [call for session in sessions for call in session]
    if not calls:
        raise InputFileError(f"{path} holds no request")
    sizes = [len(session) for session in sessions]
    base = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
    follows = np.array([call.follows for call in calls])
    of = np.repeat(np.arange(len(sessions)), sizes)
    joins = [(i, int(base[i]) + other) for i, call in enumerate(calls) for other in call.joins]
    return Requests(
        prompt=np.array([call.prompt for call in calls]),
        output=np.array([call.output for call in calls]),
        arrival=None if starts is None else np.where(follows < 0, np.array(starts)[of], np.nan),
        hashes=FileNames.of([call.names for call in calls], [len(call.names) * block for call in calls], block),
        hash_block=block,
        follows=np.where(follows >= 0, follows + base, -1),
        think=np.array([call.gap for call in calls]),
        sessions=Sessions(
            of=of,
            joins=np.array(joins, dtype=np.int64).reshape(-1, 2),
            by_user=np.array([call.by_user for call in calls]),
            patience=np.full(len(sessions), np.inf),
            kind=np.zeros(len(sessions), dtype=np.int64),
            names=(path.name,),
            earliest=np.array([call.earliest for call in calls]),
            note=note,
        ),
    )


def read_agent_folder(path: Path) -> Requests:
    """The sessions of all ``.json`` and ``.jsonl`` files of a folder, by name. Raises ``InputFileError``."""
    files = sorted(file for file in path.iterdir() if file.suffix in (".json", ".jsonl"))
    if not files:
        raise InputFileError(f"{path} holds no .json or .jsonl file", hint="a folder of Weka sessions, one a file")
    found: list[tuple[str, dict[str, Any]]] = []
    for file in files:
        found += objects(file, read_text(file, encoding="utf-8-sig"))
    return weka(path, found)


def objects(path: Path, text: str) -> list[tuple[str, dict[str, Any]]]:
    """The sessions of a file, one object or one a line, each with where it is. Raises ``InputFileError``."""
    parts = [(str(path), text)]
    lines = [(f"{path}:{number}", line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if lines and _is_whole(lines[0][1]):
        parts = lines
    found = []
    for where, part in parts:
        try:
            trace = json.loads(part)
        except (ValueError, RecursionError) as error:
            raise InputFileError(f"{where}: not JSON: {getattr(error, 'msg', error)}") from None
        if not isinstance(trace, dict) or "requests" not in trace:
            raise InputFileError(f"{where}: not a session with requests")
        found.append((where, trace))
    return found


def _is_whole(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def first_sessions(trace: Requests, count: int) -> Requests:
    """The first ``count`` sessions of a trace."""
    sessions = trace.sessions
    assert sessions is not None
    cut = trace.head(int(np.searchsorted(sessions.of, count)))
    assert cut.sessions is not None
    kept = replace(cut.sessions, patience=sessions.patience[:count], kind=sessions.kind[:count])
    return replace(cut, sessions=kept)


def sessions_in_open_loop(trace: Requests, arrivals: OpenLoop, seed: int) -> Requests:
    """The sessions of a trace, in its order, at times of an open loop of sessions."""
    sessions, follows = trace.sessions, trace.follows
    if sessions is None or follows is None:
        raise UsageError("only sessions begin at a rate of sessions", hint="a trace of agents (docs/agents.md)")
    starts = arrivals.sample(np.random.default_rng(seed), len(sessions))
    recipe = {
        "arrivals": asdict(arrivals),
        "sessions": len(sessions),
        "kinds": [{"name": "of the trace", "share": 1.0}],
        "name": sessions.names[0],
        "seed": seed,
    }
    arrival = np.where(follows < 0, starts[sessions.of], np.nan)
    return replace(trace, arrival=arrival, sessions=replace(sessions, recipe=recipe))
