"""Sessions of agents: calls whose prompts grow, tools and users between them, sub-agents side by side, users who leave.

An agent has a context of its own. The prompt of each of its calls is all that it has so far, the answers included, and
some new text: what a tool has found, or what its user writes. What both take is a gap before the call. A call may start
sub-agents, each with a context of its own; the next call of the agent that started them waits for all of them, and
reads the last answer of each.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from inferplan.errors import UsageError
from inferplan.traffic.block_names import Streams
from inferplan.traffic.conversations import Floats, Ints, ThinkTime
from inferplan.traffic.reasoning import ReasoningLengths
from inferplan.traffic.requests import MOST_REQUESTS, ClosedLoop, Lengths, OpenLoop, Requests, Slo
from inferplan.traffic.session_columns import Bools, Sessions

SAMPLE_SESSIONS = 1000
"""Sessions of which the means of a kind are taken."""
USUAL_SESSIONS, USUAL_OF_A_USER = 400, 10
"""Sessions of a run whose length nobody gave: of an open loop, and for each place of a closed one."""
_MOST_SUBAGENTS = 64
NAMED_BLOCK = 64
"""Tokens of a block that the text of sessions is named in, four pages of vLLM: names of single pages take four times as
long to look for, and find some 24 tokens more of a prompt."""


@dataclass(frozen=True, kw_only=True)
class NextCall:
    """What brings the next call of an agent: so many new tokens, ``time`` after its answer."""

    prompt: Lengths
    time: ThinkTime


@dataclass(frozen=True, kw_only=True)
class Agent:
    """One context. turns: its calls. system: tokens at the head of every prompt, the same in every session. first: new
    tokens of its first call. output: of every call. tool, user: what brings later calls; ``user_share`` of them is the
    user's.
    """

    turns: Lengths
    first: Lengths
    output: Lengths
    system: int = 0
    tool: NextCall | None = None
    user: NextCall | None = None
    user_share: float = 0.0

    def __post_init__(self) -> None:
        if self.system < 0:
            raise UsageError("a system prompt has 0 tokens or more")
        if not 0 <= self.user_share <= 1:
            raise UsageError(f"a share is from 0 to 1, not {self.user_share:g}")
        several = self.turns.kind != "fixed" or self.turns.mean > 1
        if several and ((self.user_share < 1 and self.tool is None) or (self.user_share > 0 and self.user is None)):
            raise UsageError("later turns of an agent need what brings them", hint="tool: {prompt: 800, time: 5s}")


@dataclass(frozen=True, kw_only=True)
class Subagents:
    """Sub-agents that a call starts with this ``probability``, unless it is the last of its session: ``number`` of them
    at once."""

    probability: float
    number: Lengths
    agent: Agent

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise UsageError(f"a probability is above 0 and at most 1, not {self.probability:g}")


@dataclass(frozen=True, kw_only=True)
class SessionKind:
    """One kind of session: its share of all, the agent that its user talks to, sub-agents, and when users give up:
    ``gives_up`` of them ``patience`` after the session began, if it is not done by then."""

    name: str
    share: float
    agent: Agent
    subagents: Subagents | None = None
    patience: ThinkTime | None = None
    gives_up: float = 1.0


class _Calls(NamedTuple):
    """Calls of several streams, each stream's in order, one stream after another. thought: tokens of each before its
    answer (``output``)."""

    stream: Ints
    turn: Ints
    last: Bools
    new: Ints
    output: Ints
    gap: Floats
    by_user: Bools
    thought: Ints

    def prompts(self, system: int) -> tuple[Ints, Ints, Ints]:
        """Of each call all that its stream has so far and the new text; how much of it has no thought before it; and
        in which stretch it is, between one message of a user and the next.

        Thoughts stay in the context until the user writes again, and are left out from then on, as in the chat template
        of Qwen3 (``last_query_index``: ``reasoning_content`` of messages behind the last query alone).
        """
        grown = np.cumsum(self.new + self.output)
        starts = np.flatnonzero(self.turn == 0)
        before = (grown - self.new - self.output)[starts]
        clean = system + grown - self.output - before[self.stream]
        asks = (self.turn == 0) | self.by_user
        stretch = np.cumsum(asks) - 1
        first = np.flatnonzero(asks)[stretch]
        thought = np.cumsum(self.thought) - self.thought
        return clean + thought - thought[first], clean[first], stretch


def _calls(agent: Agent, rng: np.random.Generator, streams: int) -> _Calls:
    turns = agent.turns.sample(rng, streams)
    total = int(np.sum(turns))
    _require_room(total)
    stream = np.repeat(np.arange(streams), turns)
    turn = np.arange(total) - np.repeat(np.cumsum(turns) - turns, turns)
    new, gap = np.zeros(total, dtype=np.int64), np.zeros(total)
    new[turn == 0] = agent.first.sample(rng, streams)
    by_user = (turn > 0) & (rng.random(total) < agent.user_share)
    for reply, mine in ((agent.user, by_user), (agent.tool, (turn > 0) & ~by_user)):
        if reply is not None:
            new[mine] = reply.prompt.sample(rng, int(np.sum(mine)))
            gap[mine] = reply.time.sample(rng, int(np.sum(mine)))
    none = np.zeros(total, dtype=np.int64)
    return _Calls(stream, turn, turn == turns[stream] - 1, new, agent.output.sample(rng, total), gap, by_user, none)


def _require_room(requests: int) -> None:
    if requests > MOST_REQUESTS:
        raise UsageError(
            f"{requests:,} requests are more than a run can hold",
            because=f"each request is kept in memory; at most {MOST_REQUESTS:,} are the most",
            hint="fewer sessions",
        )


_COLUMNS = (
    *("session", "turn", "below", "stream", "within", "prompt", "output", "gap", "by_user", "text", "system"),
    *("thought", "clean", "stretch"),
)


class _Drawn(NamedTuple):
    """Requests of one kind: columns by request; whom each follows and who joins whom, by place in them; streams."""

    columns: dict[str, npt.NDArray[Any]]
    follows: Ints
    joins: Ints
    streams: int


def _drawn(
    kind: SessionKind, place: int, sessions: Ints, seed: int, thoughts: ReasoningLengths | None = None
) -> _Drawn:
    """All requests of the ``sessions`` of a kind; ``place`` is that of the kind."""
    rng, own_rng = np.random.default_rng((seed, 4, place)), np.random.default_rng((seed, 6, place))
    main = _thinking(_calls(kind.agent, rng, len(sessions)), thoughts, own_rng)
    count, follows = len(main.stream), np.where(main.turn > 0, np.arange(len(main.stream)) - 1, -1)
    parent = _started(kind, main, rng)
    if kind.subagents is None or not len(parent):
        return _Drawn(_columns(kind.agent, main, (sessions, 0, 2 * place)), follows, _PAIRS, len(sessions))
    below = _thinking(_calls(kind.subagents.agent, rng, len(parent)), thoughts, own_rng)
    resumed, last = parent + 1, np.flatnonzero(below.last)  # who waits for each sub-agent, and for which of its calls
    main.new[resumed], main.gap[resumed], main.by_user[resumed] = 0, 0.0, False
    np.add.at(main.new, resumed, below.output[last])
    own = _columns(kind.agent, main, (sessions, 0, 2 * place))
    others = _columns(kind.subagents.agent, below, (sessions[main.stream[parent]], 1, 2 * place + 1))
    others["turn"], others["stream"] = main.turn[parent][below.stream], below.stream + len(sessions)
    others["stretch"] = others["stretch"] + own["stretch"][-1] + 1
    whom = np.where(below.turn > 0, count + np.arange(len(below.turn)) - 1, parent[below.stream])
    return _Drawn(
        {name: np.concatenate([own[name], others[name]]) for name in _COLUMNS},
        np.concatenate([follows, whom]),
        np.stack([resumed, count + last], axis=1),
        len(sessions) + len(parent),
    )


def _thinking(calls: _Calls, thoughts: ReasoningLengths | None, rng: np.random.Generator) -> _Calls:
    """The calls with a thought before each answer, where anybody thinks."""
    return calls if thoughts is None else calls._replace(thought=thoughts.thoughts(rng, len(calls.turn)))


_PAIRS: Ints = np.zeros((0, 2), dtype=np.int64)
"""No joins."""


def _started(kind: SessionKind, main: _Calls, rng: np.random.Generator) -> Ints:
    """The call that starts each sub-agent."""
    extra = kind.subagents
    if extra is None:
        return np.zeros(0, dtype=np.int64)
    starting = np.flatnonzero(~main.last & (rng.random(len(main.last)) < extra.probability))
    number = extra.number.sample(rng, len(starting))
    if np.max(number, initial=0) > _MOST_SUBAGENTS:
        raise UsageError(f"a call starts {_MOST_SUBAGENTS} sub-agents at most, not {np.max(number)}")
    started: Ints = np.repeat(starting, number)
    return started


def _columns(agent: Agent, calls: _Calls, where: tuple[Ints, int, int]) -> dict[str, npt.NDArray[Any]]:
    """``where``: the session of each stream, whether it is below another, the text of its system prompt."""
    session, below, text = where
    prompt, clean, stretch = calls.prompts(agent.system)
    same = {name: np.full(len(calls.turn), value) for name, value in (("below", below), ("text", text))}
    return {
        "session": session[calls.stream],
        "turn": calls.turn.copy(),
        "stream": calls.stream,
        "within": calls.turn,
        "prompt": prompt,
        "output": calls.output + calls.thought,
        "thought": calls.thought,
        "clean": clean,
        "stretch": stretch,
        "gap": calls.gap,
        "by_user": calls.by_user,
        "system": np.full(len(calls.turn), agent.system),
        **same,
    }


@dataclass(frozen=True, kw_only=True)
class SessionTraffic:
    """A load of sessions: kinds by their shares, arrivals of sessions (not of requests), how many, and the seed.

    A closed loop has so many sessions at a time: as one ends, the next begins. thoughts: before the answer of each
    call, whose lengths are those of the agents. usual: the limits of a plan for which nobody states any. Raises
    ``UsageError`` for no kinds and for fewer than one session.
    """

    kinds: tuple[SessionKind, ...]
    arrivals: ClosedLoop | OpenLoop
    sessions_count: int | None = None
    seed: int = 0
    name: str = ""
    thoughts: ReasoningLengths | None = None
    usual: Slo | None = None

    def __post_init__(self) -> None:
        if not self.kinds:
            raise UsageError("sessions need one kind at least")
        if self.sessions_count is not None and self.sessions_count < 1:
            raise UsageError(f"a run has 1 session or more, not {self.sessions_count}")

    @property
    def count(self) -> int:
        """Sessions of a run."""
        if self.sessions_count is not None:
            return self.sessions_count
        return USUAL_OF_A_USER * self.arrivals.concurrency if isinstance(self.arrivals, ClosedLoop) else USUAL_SESSIONS

    def requests(self, block: int = NAMED_BLOCK) -> Requests:
        """The requests, session by session, each after those that it waits for; blocks of ``block`` tokens are named.

        Every session's first request has the time at which it begins, in an open loop; all others follow answers.
        """
        count, rng = self.count, np.random.default_rng((self.seed, 3))
        shares = np.array([kind.share for kind in self.kinds])
        kind = rng.choice(len(self.kinds), count, p=shares / np.sum(shares)).astype(np.int64)
        patience = np.full(count, np.inf)
        parts, streams, stretches = [], 0, 0
        for place, one in enumerate(self.kinds):
            mine = np.flatnonzero(kind == place)
            if one.patience is not None:
                waits, leaves = one.patience.sample(rng, len(mine)), rng.random(len(mine)) < one.gives_up
                patience[mine] = np.where(leaves, waits, np.inf)
            part = _drawn(one, place, mine, self.seed, self.thoughts)
            part.columns["stream"] = part.columns["stream"] + streams
            part.columns["stretch"] = part.columns["stretch"] + stretches
            parts.append(part)
            streams += part.streams
            stretches = int(np.max(part.columns["stretch"], initial=stretches - 1)) + 1
        column = {name: np.concatenate([part.columns[name] for part in parts]) for name in _COLUMNS}
        _require_room(len(column["prompt"]))
        order = np.lexsort([column[name] for name in ("within", "stream", "below", "turn", "session")])
        place_of = np.argsort(order)
        offsets = np.cumsum([0, *(len(part.follows) for part in parts[:-1])])
        follows = np.concatenate([np.where(p.follows >= 0, p.follows + o, -1) for p, o in zip(parts, offsets)])
        joins = np.concatenate([part.joins + offset for part, offset in zip(parts, offsets)])
        column = {name: values[order] for name, values in column.items()}
        before = follows[order]
        return Requests(
            prompt=column["prompt"],
            output=column["output"],
            arrival=self._starts(column["session"], before < 0),
            hashes=_blocks(column, block, None if self.thoughts is None else streams),
            before=None if self.thoughts is None else column["thought"],
            hash_block=block,
            follows=np.where(before >= 0, place_of[before], -1),
            think=column["gap"],
            loop=self.arrivals if isinstance(self.arrivals, ClosedLoop) else None,
            sessions=Sessions(
                of=column["session"],
                joins=place_of[joins],
                by_user=column["by_user"].astype(bool),
                patience=patience,
                kind=kind,
                names=tuple(one.name for one in self.kinds),
                recipe=self.describe(),
            ),
        )

    def beginning(self, starts: Floats) -> Requests:
        """The requests of sessions that begin at these times, in seconds, in the place of those that are drawn."""
        made = replace(self, sessions_count=len(starts)).requests()
        assert made.arrival is not None
        assert made.sessions is not None
        return replace(made, arrival=np.where(np.isnan(made.arrival), np.nan, starts[made.sessions.of]))

    def _starts(self, session: Ints, begins: Bools) -> Floats | None:
        if isinstance(self.arrivals, ClosedLoop):
            return None
        starts = self.arrivals.sample(np.random.default_rng(self.seed), self.count)
        return np.where(begins, starts[session], np.nan)

    def describe(self) -> dict[str, Any]:
        """What the load is, for the record of a run."""
        return {
            "arrivals": asdict(self.arrivals),
            "sessions": self.count,
            "kinds": [asdict(kind) for kind in self.kinds],
            "name": self.name,
            "seed": self.seed,
            **({} if self.thoughts is None else {"thoughts": self.thoughts.describe()}),
        }


def _blocks(column: dict[str, npt.NDArray[Any]], block: int, streams: int | None) -> Streams:
    """The blocks of prompt and output; the last token of an answer is never computed. streams: how many there are,
    where calls think: what is behind a thought is text of its stretch alone."""
    full = (column["prompt"] + column["output"] - 1) // block
    common, behind = column["system"] // block, None
    if streams is not None:
        behind = (column["clean"] // block).tolist(), (column["stretch"] + streams).tolist()
    return Streams(column["text"].tolist(), common.tolist(), column["stream"].tolist(), full.tolist(), behind)
