"""What happened to each request: plain arrays, eight bytes a figure, because event loops read and write single ones."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from math import ceil, isnan
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from inferplan.mapped import Spool, put_aside
from inferplan.traffic.block_names import names_at
from inferplan.traffic.requests import TrafficClass
from inferplan.traffic.session_columns import Sessions

NAN = float("nan")
WAITING, FINISHED, REJECTED, TIMED_OUT, CANCELLED = 0, 1, 2, 3, 4
"""What became of a request: still in the system (or never sent), finished, refused, given up by its client, aborted
with its session."""


class Records:
    """Per request: times in seconds (NaN until they happen), token counts, and what became of it.

    ``hashes``: names of the blocks of prompt and output, where the traffic knows them. ``follows``: the request whose
    answer each waits for, -1 for none. ``think``: seconds from an answer to the request that follows it. ``before``:
    output tokens before the first of an answer, absent where nobody thinks; ``answered``: when that came. ``classes``,
    ``of``: kinds of traffic, and which of them each request is, by place. ``served_by``: whose replica got it, where
    replicas are not alike: 0 those of the run, then the fleet's ``others`` in order, -1 where it was never sent.
    ``sessions``: of agents, where requests are of some; ``left``: when the user of a session gave up, by session.
    ``samples``: answers of each prompt, requests in a row. ``paces``: factors on the seconds from the first token to
    the last, for steps are those of the mean text (:mod:`inferplan.serving.techniques.speculation`). Inter-token gaps
    are kept with their weights.

    spool: where columns are, if not in memory.
    """

    __slots__ = (
        *("admitted", "anew", "answered", "arrival", "before", "cached", "classes", "finish", "first", "follows"),
        *("gap_weights", "gaps", "hashes", "left", "loaded", "of", "output", "paces", "preempted", "prompt"),
        *("refused", "samples", "served_by", "sessions", "spool", "status", "think", "tokens_timed"),
    )

    def __init__(
        self,
        *,
        arrival: npt.ArrayLike,
        prompt: npt.ArrayLike,
        output: npt.ArrayLike,
        hashes: Sequence[Sequence[int]] | None = None,
        follows: npt.ArrayLike | None = None,
        spool: Spool | None = None,
    ) -> None:
        self.spool = spool
        if spool is None:
            self.arrival, self.prompt, self.output = _packed("d", arrival), _packed("q", prompt), _packed("q", output)
        else:
            self.arrival, self.prompt, self.output = (cast("array[Any]", column) for column in spool.given)
        self.hashes = hashes
        self.follows = None if follows is None else _packed("q", follows)
        self.think: array[float] | None = None
        self.before: array[int] | None = None
        self.answered = array("d")
        self.classes: tuple[TrafficClass, ...] = ()
        self.of: array[int] | None = None
        self.served_by: Sequence[int] | None = None
        self.sessions: Sessions | None = None
        self.left: dict[int, float] = {}
        self.samples = 1
        self.paces: npt.NDArray[np.float64] | None = None
        count = len(self.prompt)
        if spool is None:
            self.admitted = array("d", [NAN]) * count
            self.first = array("d", [NAN]) * count
            self.finish = array("d", [NAN]) * count
            self.status = _codes(bytes(count))
        else:
            spool.clear()
            self.admitted, self.first, self.finish = (cast("array[float]", column) for column in spool.times)
            self.status = cast("array[int]", spool.codes)
        self.preempted: dict[int, int] = {}
        self.anew: dict[int, int] = {}
        """How often a request began anew because its replica was lost."""
        self.cached: dict[int, int] = {}
        """Prompt tokens found in a prefix cache when a request was first admitted."""
        self.loaded: dict[int, tuple[int, ...]] = {}
        """Of those tokens, how many came from each tier below the device, for requests that loaded any."""
        self.refused: dict[str, int] = {}
        """Requests that could never run, by reason."""
        self.gaps = array("d")
        self.gap_weights = array("d")
        self.tokens_timed = True
        """Whether anybody wants the gaps."""

    def put_aside(self) -> None:
        """What has happened need not be at hand."""
        if self.spool is not None:
            put_aside()
        if not self.tokens_timed:
            del self.gaps[:], self.gap_weights[:]

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        """What makes a copy in another process begin, before it gets the rest: a compiled class asks for it."""
        return (), {"arrival": (), "prompt": (), "output": ()}

    @property
    def outcome(self) -> npt.NDArray[np.uint8]:
        """What became of each request, as codes."""
        return np.frombuffer(bytes(self.status), dtype=np.uint8)

    @property
    def turns(self) -> float:
        """Requests of a conversation, on average; 1 where nothing follows an answer."""
        return 1.0 if self.follows is None else len(self.prompt) / max(int(np.sum(self.begins)), 1)

    @property
    def begins(self) -> npt.NDArray[np.bool_]:
        """Which requests begin a conversation, or are one of their own."""
        return np.ones(len(self.prompt), dtype=bool) if self.follows is None else np.less(self.follows, 0)

    def conversation(self, request: float) -> float:
        """Mean seconds of a conversation whose requests take ``request`` each, with the thinking between its turns; of
        sessions what they took."""
        if self.sessions is not None:
            return self._session()
        later = ~self.begins
        think = float(np.mean(np.asarray(self.think)[later])) if self.think is not None and np.any(later) else 0.0
        return self.turns * request + (self.turns - 1) * think

    def _session(self) -> float:
        """Mean seconds of the sessions that were begun, from their first request to their last answer."""
        assert self.sessions is not None
        arrival, finish = np.asarray(self.arrival), np.asarray(self.finish)
        start, end = np.full(len(self.sessions), np.nan), np.full(len(self.sessions), -np.inf)
        start[self.sessions.of[self.begins]] = arrival[self.begins]
        np.maximum.at(end, self.sessions.of, np.where(np.isnan(finish), -np.inf, finish))
        lasted = (end - start)[np.isfinite(end) & np.isfinite(start)]
        return float(np.mean(lasted)) if len(lasted) else 0.0

    def begin_anew(self, request: int) -> None:
        """A request has lost its replica: nothing that it had happened."""
        self.admitted[request] = self.first[request] = NAN
        if self.before is not None:
            self.answered[request] = NAN
        self.anew[request] = self.anew.get(request, 0) + 1
        self.cached.pop(request, None)
        self.loaded.pop(request, None)

    def until_answer(self, request: int, left: int) -> int | None:
        """Tokens that a request with ``left`` more to write has yet to write up to the first of its answer, that one
        included; 0 where the last one written was it, ``None`` where it came before, or nobody thinks.
        """
        if self.before is None:
            return None
        until = left + 1 - (self.output[request] - self.before[request])
        return until if until >= 0 else None

    def excerpt(self, requests: npt.NDArray[np.int64]) -> Excerpt:
        """What became of some of the requests, with everything that is not by request."""
        times = tuple(np.asarray(getattr(self, name))[requests] for name in self._times)
        mine = set(requests.tolist()) if self.preempted or self.cached else set()
        counts = ({key: value for key, value in getattr(self, name).items() if key in mine} for name in _COUNTS)
        status = np.frombuffer(self.status, dtype=np.uint8)[requests]
        return Excerpt(requests, times, status, tuple(counts), self.refused, (self.gaps, self.gap_weights))

    def hits(self, counted: slice) -> tuple[int, float]:
        """Prompt tokens of admitted requests that were found in the prefix cache, and all of them."""
        prompt, admitted = (np.asarray(of[counted], dtype=np.float64) for of in (self.prompt, self.admitted))
        those = range(len(self.prompt))[counted]
        found = sum(count for request, count in self.cached.items() if request in those)
        return found, float(np.sum(prompt[~np.isnan(admitted)]))

    def pausing(self, think: npt.ArrayLike) -> None:
        """Set of each request the seconds before what follows its answer."""
        self.think = _packed("d", think)

    def thinking(self, before: npt.ArrayLike) -> None:
        """Set of each request the output tokens before the first of its answer."""
        self.before = _packed("q", before)
        self.answered = array("d", [NAN]) * len(self.prompt)

    def classed(self, classes: tuple[TrafficClass, ...], of: npt.ArrayLike) -> None:
        """Set of which kind of traffic each request is."""
        self.classes, self.of = classes, _packed("q", of)

    def only(self, which: npt.NDArray[np.bool_] | slice) -> Records:
        """A copy of what happened to some of the requests; tokens are not by request, and are left out."""
        arrival, prompt, output = (np.asarray(getattr(self, name))[which] for name in ("arrival", "prompt", "output"))
        before = None if self.before is None else np.asarray(self.before)[which]
        part = Records(arrival=arrival, prompt=prompt, output=output)
        if before is not None:
            part.thinking(before)
        for name in self._times:
            setattr(part, name, _packed("d", np.asarray(getattr(self, name))[which]))
        part.status = _codes(np.frombuffer(self.status, dtype=np.uint8)[which].tobytes())
        part.paces = None if self.paces is None else self.paces[which]
        if self.of is not None:
            part.classed(self.classes, np.asarray(self.of)[which])
        return part

    def in_order(self) -> None:
        """Number the requests anew in the order in which they were sent, which answers have decided."""
        order = np.argsort(np.asarray(self.arrival), kind="stable")
        place = np.argsort(order)
        for name, code in (*((name, "d") for name in ("arrival", *self._times)), ("prompt", "q"), ("output", "q")):
            setattr(self, name, _packed("d" if code == "d" else "q", np.asarray(getattr(self, name))[order]))
        self.status = _codes(np.frombuffer(self.status, dtype=np.uint8)[order].tobytes())
        for name in _COUNTS:
            setattr(self, name, {int(place[request]): count for request, count in getattr(self, name).items()})
        if self.hashes is not None:
            self.hashes = names_at(self.hashes, order.tolist())
        if self.served_by is not None:
            self.served_by = [self.served_by[request] for request in order]
        if self.think is not None:
            self.think = _packed("d", np.asarray(self.think)[order])
        if self.of is not None:
            self.of = _packed("q", np.asarray(self.of)[order])
        if self.paces is not None:
            self.paces = self.paces[order]
        if self.before is not None:
            self.before = _packed("q", np.asarray(self.before)[order])
        if self.follows is not None:
            before = np.asarray(self.follows)[order]
            self.follows = _packed("q", np.where(before >= 0, place[before], -1))
        if self.sessions is not None:
            self.sessions = self.sessions.renumbered(order, place)

    @property
    def _times(self) -> tuple[str, ...]:
        """Columns of times that happen to requests after they are sent."""
        return ("admitted", "first", "finish", *(() if self.before is None else ("answered",)))

    def merge(self, part: Excerpt) -> None:
        """Take over what another process has recorded, from empty gaps and refusals on."""
        for name, column in zip(self._times, part.times):
            np.asarray(getattr(self, name))[part.requests] = column
        np.frombuffer(self.status, dtype=np.uint8)[part.requests] = part.status
        for name, counts in zip(_COUNTS, part.counts):
            getattr(self, name).update(counts)
        for reason, count in part.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count
        self.gaps.extend(part.gaps[0])
        self.gap_weights.extend(part.gaps[1])


_COUNTS = ("preempted", "anew", "cached", "loaded")
"""What is counted of some requests, by request."""


class Excerpt(NamedTuple):
    """Records of some requests, as they travel between processes."""

    requests: npt.NDArray[np.int64]
    times: tuple[npt.NDArray[np.float64], ...]
    """Admitted, first, finish, and answered where anybody thinks."""
    status: npt.NDArray[np.uint8]
    counts: tuple[dict[int, Any], ...]
    """Preempted, begun anew, cached, loaded."""
    refused: dict[str, int]
    gaps: tuple[array[Any], array[Any]]


def _packed(code: Literal["d", "q"], values: npt.ArrayLike) -> array[Any]:
    """Floats (``d``) or whole numbers (``q``) of eight bytes each."""
    return array(code, np.ascontiguousarray(values, np.float64 if code == "d" else np.int64).tobytes())


def _codes(values: bytes) -> array[int]:
    """A column of bytes; no type tells it from one that lies in a file, for compiled code holds to types."""
    return cast("array[int]", bytearray(values))


_DRAWN_APART = 0.01
"""Share of the cache by which a run of steps may grow in one entry of a timeline."""


@dataclass(kw_only=True, eq=False)
class Meter:
    """Sums over the steps of one replica."""

    steps: int = 0
    prompt_steps: int = 0
    busy: float = 0.0
    """Seconds in steps."""
    prompt_tokens: float = 0.0
    """Prompt tokens computed, recomputation included."""
    decode_tokens: float = 0.0
    batch_seconds: float = 0.0
    """Integral of the decode batch over time."""
    kv_seconds: float = 0.0
    """Integral of the share of the cache in use over time."""
    kv_peak: float = 0.0
    largest_step: float = 0.0
    """Tokens of the largest step that held prompts, with its decodes; it is not cleared."""
    preemptions: int = 0
    adapters_found: int = 0
    """Admissions of requests whose LoRA adapter was in device memory."""
    adapters_loaded: int = 0
    """Those whose adapter had to be copied there."""
    adapters_reloaded: int = 0
    """Adapters that were copied again, because another batch in flight took their slot."""
    blocked_by: dict[str, int] = field(default_factory=dict)
    """Plans in which the first waiting request had to wait, by reason."""
    waited: dict[str, float] = field(default_factory=dict)
    """Seconds that requests waited, summed over the requests, by what the first of them waited for: that of the
    scheduler (:data:`inferplan.serving.admission.Reason`), ``front end``, or ``link`` between two pools."""
    timeline: list[tuple[float, float, int, int, float, int, float]] | None = None
    """Start, duration, steps, decodes, prompt tokens, waiting requests and share of the cache, where it is recorded."""
    blocking: str = "batch"
    """Why the first waiting request had to wait last."""
    paused: dict[str, Any] | None = None
    """What was counted when it was paused: nothing that follows shall count."""

    def count_prompts(self, tokens: float, beside: float) -> None:
        """Another step holds so many tokens of prompts, and others of those that decode ``beside`` them."""
        self.prompt_steps += 1
        self.prompt_tokens += tokens
        self.largest_step = max(self.largest_step, tokens + beside)

    def block(self, reason: str) -> None:
        """The first waiting request has to wait, in one more plan."""
        self.blocking = reason
        self.blocked_by[reason] = self.blocked_by.get(reason, 0) + 1

    def wait(self, reason: str, seconds: float) -> None:
        """Add request-seconds of waiting."""
        self.waited[reason] = self.waited.get(reason, 0.0) + seconds

    def book(self, start: float, duration: float, steps: int, now: tuple[int, float, int, float], grown: float) -> None:
        """Count ``duration`` seconds from ``start`` in which ``steps`` steps ran.

        now: decodes, prompt tokens, waiting requests, and share of the cache that is in use in the last of them. grown:
        by how much all of them have raised it; each step takes its part when it begins.
        """
        decodes, _, waiting, share = now
        self.steps += steps
        self.busy += duration
        self.batch_seconds += decodes * duration
        self.kv_seconds += (share - grown * (steps - 1) / (2 * steps) if steps > 1 else share) * duration
        if share > self.kv_peak:  # noqa: PLR1730 (a call takes five times as long)
            self.kv_peak = share
        if waiting:
            self.wait(self.blocking, waiting * duration)
        if self.timeline is not None:
            self._draw(start, duration, steps, now, grown)

    def _draw(
        self, start: float, duration: float, steps: int, now: tuple[int, float, int, float], grown: float
    ) -> None:
        """Append these steps to the timeline, in as many pieces as show how the cache fills."""
        assert self.timeline is not None
        pieces = min(steps, ceil(grown / _DRAWN_APART)) or 1
        for piece in range(pieces):
            first, last = steps * piece // pieces, steps * (piece + 1) // pieces
            before, after = (first / steps, last / steps) if steps else (0.0, 1.0)
            at, each = start + duration * before, duration * (after - before)
            self.timeline.append((at, each, last - first, *now[:3], now[3] - grown * (1 - after)))

    def pause(self) -> None:
        """Nothing from now on counts, whatever is still added before :meth:`end_pause`; a timeline goes on."""
        self.paused = {name: copy(getattr(self, name)) for name in self._counted()}

    def end_pause(self) -> None:
        """Forget what was added since :meth:`pause`, if it was called."""
        for name, value in (self.paused or {}).items():
            setattr(self, name, value)
        self.paused = None

    def clear(self) -> None:
        """Forget everything but the timeline, in place: what was counted so far belongs to the warm-up."""
        for name in self._counted():
            setattr(self, name, type(getattr(self, name))())

    def _counted(self) -> list[str]:
        kept = ("timeline", "blocking", "paused", "largest_step")
        return [entry.name for entry in fields(self) if entry.name not in kept]


class Metering:
    """Between which requests of a run the meters count.

    fill: requests at the head of the run that only fill the system: meters begin with the one after them, and end with
    the last one that is sent. 0: they see the whole run. ``span``: the seconds between the two. Gaps between tokens
    that are there already are kept.
    """

    def __init__(self, records: Records, fill: int) -> None:
        self.records, self.fill, self.kept = records, fill, len(records.gaps)
        self.span = [NAN, NAN]
        self.gaps: int | None = None
        """Gaps between tokens until the meters stopped."""

    def begin(self, time: float, meters: Iterable[Meter]) -> None:
        """What was counted so far belongs to the fill."""
        self.span[0] = time
        for meter in meters:
            meter.clear()
        del self.records.gaps[self.kept :], self.records.gap_weights[self.kept :]

    def end(self, time: float, meters: Iterable[Meter]) -> None:
        """What is still to come belongs to the drain."""
        self.span[1] = time
        for meter in meters:
            meter.pause()
        self.gaps = len(self.records.gaps)

    @property
    def ended(self) -> bool:
        return self.gaps is not None

    def close(self, meters: Iterable[Meter]) -> None:
        """The run is over: drop what the drain has added.

        Where requests that are never sent, of sessions given up or refused, kept the meters from stopping, they have
        counted to the last finish.
        """
        for meter in meters:
            meter.end_pause()
        if isnan(self.span[1]) and not isnan(self.span[0]):
            self.span[1] = float(np.nanmax(self.records.finish))
        if self.gaps is not None:
            del self.records.gaps[self.gaps :], self.records.gap_weights[self.gaps :]
