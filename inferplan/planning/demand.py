"""What is asked of a service: requests of a length, so many of them, and the latencies that are acceptable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np
import numpy.typing as npt

from inferplan.errors import UsageError
from inferplan.estimate.structured import Structured
from inferplan.features import require_together, those
from inferplan.serving.batch_means import RunPrecision, fewest_values
from inferplan.serving.class_results import METRICS
from inferplan.serving.waiting import QueueOrder
from inferplan.traffic.many import Many
from inferplan.traffic.people import People, in_flight_line
from inferplan.traffic.popularity import Popularity
from inferplan.traffic.reasoning import ReasoningLengths
from inferplan.traffic.requests import (
    LEAST_RATE,
    ArrivalKind,
    ClosedLoop,
    Lengths,
    Media,
    OpenLoop,
    Requests,
    SharedPrefix,
    Slo,
    Traffic,
    TrafficClass,
)
from inferplan.traffic.sessions import SessionTraffic
from inferplan.units import format_time

_MOST = 1e9
"""No service has more users, or requests a second."""
METRIC_NAMES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "e2el": "end-to-end latency",
    "answer_ttft": "TTFT of the answer",
    "session": "time of a session",
}
_COUNTED_OF_CLASSES = 0.65
"""Of a run the share of the requests that is counted in any case, with room for the chance of which class they are."""
_MANY = 1 << 16
"""Requests whose lengths stay in an array."""
_MIXED = 8192
"""Draws of which the mix of several classes is made."""
_LEAST = 10 * LEAST_RATE
"""The least rate of prompts: about one a day. Capacity is looked for below the rate asked for too, by simulation."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The load to be served. Exactly one of ``rate``, ``users`` and ``deadline`` says how much of it there is.

    prompt, output: lengths of a request in tokens. cached: leading prompt tokens that are always found in a prefix
    cache. rate: requests a second. users: clients that each have one request at a time and send the next one a think
    time (of ``prefix``) after its answer. deadline: seconds in which
    ``requests`` of an offline job must be done. trace: requests with arrival times, which the simulation replays.
    arrivals, burstiness: of an open loop. own, prefix, samples: where prompts share text (:func:`sharing`), the tokens
    that are a request's own, what it shares, and how many completions a prompt has, each of which is a request of its
    own in all numbers here; ``prompt`` is then the whole.
    """

    prompt: Lengths
    output: Lengths
    cached: int = 0
    rate: float | None = None
    users: int | None = None
    requests: int | None = None
    deadline: float | None = None
    trace: Requests | None = None
    arrivals: ArrivalKind = "poisson"
    burstiness: float = 1.0
    own: Lengths | None = None
    prefix: SharedPrefix = field(default_factory=SharedPrefix)
    samples: int = 1
    media: Media | None = None
    """What requests carry beside text, whose tokens are part of ``prompt``."""
    text: Lengths | None = None
    """Their prompts without it."""
    classes: tuple[TrafficClass, ...] = ()
    """Kinds of traffic, where there are several: ``prompt`` and ``output`` are those of all of them."""
    queue: QueueOrder = "fcfs"
    """Which of the waiting requests an engine admits next."""
    adapters: Popularity | None = None
    """LoRA adapters that requests name."""
    sessions: SessionTraffic | None = None
    """Sessions of agents, whose calls the requests are; ``rate`` is that of calls."""
    lora_bandwidth: float | None = None
    """Bytes a second that bring one to a device; ``None`` for the host link on file."""
    structured: Structured | None = None
    """Requests that follow a grammar, and what their masks take."""
    chat: bool = False
    """Somebody says that requests are messages; :attr:`of_messages` is what a plan goes by."""
    people: People | None = None
    """Those who make the load, where it was asked for by them."""

    def __post_init__(self) -> None:
        given = [name for name in ("rate", "users", "deadline") if getattr(self, name) is not None]
        if len(given) != 1:
            raise UsageError(
                "a plan needs one kind of demand" + (f", not {' and '.join(given)}" if given else ""),
                hint="--people 2000, --rate 50, --in-flight 200, --trace FILE, or --requests 1M --deadline 24h; "
                "what GPUs serve at most: --gpu 2x-h100 --people most",
            )
        if self.prefix.think.mean and self.prefix.turns == 1 and self.users is None:
            raise UsageError(
                "a think time needs users, or turns that follow an answer",
                because="no user waits for the answers of this load",
                hint="--people 200 instead of --rate, or --rate with --turns 4; in Python people=200",
            )
        for name in (*given, "burstiness"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"--{name} must be more than 0")
            if getattr(self, name) > _MOST:
                raise UsageError(f"--{name} {getattr(self, name):g} is too large", hint="at most 1e9")
        if self.rate is not None and self.rate / self.samples < _LEAST:
            of = "--rate" if self.trace is None else "the mean rate of the trace,"
            raise UsageError(
                f"{of} {self.rate / self.samples:g} requests/s is less than can be planned for",
                hint=f"at least {_LEAST:g} requests/s",
            )
        require_together("load", self.features)
        if self.lora_bandwidth is not None and not self.lora_bandwidth > 0:
            raise UsageError("--lora-bandwidth must be more than 0")
        if self.fewest > RunPrecision().most:
            raise UsageError(
                "a class is too rare for its percentile to be planned for",
                because=f"a run with enough of it takes {self.fewest:,} requests; {RunPrecision().most:,} are the most",
                hint="a larger share, a lower percentile, or none of its limits",
            )
        if (self.deadline is None) != (self.requests is None):
            raise UsageError("an offline job needs both --requests and --deadline")
        if not 0 <= self.cached < self.prompt.average:
            raise UsageError("--cached-prefix must be less than the prompt")

    @property
    def offline(self) -> bool:
        """A batch job: only its end matters."""
        return self.deadline is not None

    @property
    def requests_per_second(self) -> float | None:
        """The rate that must be served; ``None`` where users wait for their answers before they ask again."""
        if self.deadline is not None and self.requests is not None:
            return self.requests / self.deadline
        return self.rate

    @property
    def counted(self) -> str:
        """What the rate counts."""
        return "requests" if self.samples == 1 else "answers"

    @property
    def think(self) -> float:
        """Mean seconds from a user's answer to that user's next request; 0 where the load is not of users."""
        return self.prefix.think.mean if self.users is not None else 0.0

    @property
    def of_messages(self) -> bool:
        """Whether what is started has to have a chat template: somebody says so, a class of the traffic does, turns
        follow answers, or users think between an answer and their next request."""
        return self.chat or self.prefix.turns > 1 or self.think > 0 or any(one.chat for one in self.classes)

    def waiting_share(self, response: float) -> float:
        """The share of users who wait for an answer, where one takes ``response`` seconds: ``R/(R + Z)``.

        By the interactive response time law ``N = X (R + Z)`` (Denning and Buzen, 1978, The operational analysis of
        queueing network models), and Little's law for those in the system, ``X R``.
        """
        return response / (response + self.think) if self.think else 1.0

    @property
    def fewest(self) -> int:
        """Requests of a run to quote from that hold enough of the rarest class for its percentile; 0 for no classes."""
        least = [fewest_values(one.slo.percentile) / one.share for one in self.classes if one.slo.limits]
        return ceil(max(least, default=0.0) / _COUNTED_OF_CLASSES)

    @property
    def hit_rate(self) -> float:
        """The share of a prompt to take as cached where the simulation cannot see which tokens are shared."""
        known = self.own is not None or self.trace is not None or self.sessions is not None
        return 0.0 if known else self.cached / self.prompt.average

    @property
    def features(self) -> set[str]:
        """As :mod:`inferplan.features` names them."""
        return those(
            classes=bool(self.classes),
            queue=self.queue != "fcfs",
            fair_queue=self.queue == "fair",
            adapters=self.adapters is not None,
            thoughts=self.output.kind == "reasoning",
            turns=self.prefix.turns > 1,
            think_time=self.prefix.think.mean > 0,
            shared_text=self.prefix.tokens > 0,
            samples=self.samples > 1,
            hit_rate=self.cached > 0,
            sessions=self.of_sessions,
            structured=self.structured is not None,
            media=self.media is not None,
            users=self.users is not None,
            trace=self.trace is not None,
            job=self.offline,
        )

    @property
    def of_sessions(self) -> bool:
        """Whether requests are calls of sessions of agents, drawn or of a trace."""
        return self.sessions is not None or (self.trace is not None and self.trace.sessions is not None)

    def traffic(self, load: float, count: int, ramp: float = 0.0, seed: int = 0) -> Traffic:
        """``count`` requests of ``load`` users (who begin over ``ramp`` seconds; where they think, over a cycle that
        the simulation finds), or ``load`` requests a second."""
        loop: ClosedLoop | OpenLoop
        if self.users is not None:
            loop = ClosedLoop(concurrency=round(load), burst=False, ramp=None if self.think else ramp)
        else:
            loop = OpenLoop(rate=load / self.samples, kind=self.arrivals, burstiness=self.burstiness)
        return Traffic(
            arrivals=loop,
            prompt=self.own or self.text or self.prompt,
            media=self.media,
            output=self.output,
            requests_count=ceil(count / self.samples),
            prefix=self.prefix,
            samples=self.samples,
            seed=seed,
            classes=self.classes,
            adapters=self.adapters,
        )

    def one_of(self, replicas: int) -> Demand:
        """The demand as one of so many replicas sees it that are fed in turn: every n-th request of the stream, or
        every n-th conversation, all of whose turns stay on one replica.

        Sums of n gamma distributed gaps are gamma distributed with n times the shape; a Poisson stream has shape 1.
        """
        if replicas == 1 or self.arrivals == "constant":
            return self
        shape = 1.0 if self.arrivals == "poisson" else self.burstiness
        return replace(self, arrivals="gamma", burstiness=shape * replicas)

    def describe(self) -> str:
        """The load in words: ``"50 requests/s, 1,024 tokens in, 256 out"``."""
        known = f" ({self.cached:,} of them cached)" if self.cached else ""
        beside = ""
        if self.media is not None:
            beside = f" ({self.media.tokens * self.media.sets.average:,.0f} of them media)"
        answers = f"{self.samples} answers each, " if self.samples > 1 else ""
        lengths = f"{answers}{self.prompt.average:,.0f} tokens in{known}{beside}"
        if self.classes:
            kinds = ", ".join(f"{one.share:.3g} {one.name}" for one in self.classes)
            lengths = f"{len(self.classes)} classes ({kinds}), {lengths}"
        if self.output.average > 1:
            lengths += f", {self.output.average:,.0f} out"
        if isinstance(self.output, ReasoningLengths):
            lengths += f" ({self.output.before[0]:,.0f} of them before the answer)"
        if self.adapters is not None:
            lengths += f", {self.adapters.describe()}"
        if self.structured is not None:
            lengths += f", {self.structured.share:.3g} of them structured"
        return f"{self.loaded()}, {lengths}"

    def loaded(self) -> str:
        """How much there is of it: ``"50 requests/s"``."""
        if self.sessions is not None:
            begin = self.sessions.arrivals.rate  # type: ignore[union-attr]  # plans are for open loops
            return f"{begin:.4g} sessions/s of {self.sessions.name}, {self.rate:.4g} calls/s"
        unit = "requests" if self.samples == 1 else "prompts"
        if self.deadline is not None:
            span = f"{self.deadline / 3600:,g} h" if self.deadline >= 3600 else format_time(self.deadline)
            return f"{(self.requests or 0) // self.samples:,} {unit} in {span}"
        return (
            f"{_rate_in_words((self.rate or 0.0) / self.samples)} {unit}/s"
            if self.users is None
            else users_in_words(self)
        )


def _rate_in_words(rate: float) -> str:
    """As it was asked for where that is a round number, else in three digits: ``"12.5"``, ``"4.93"``, ``"1,234"``."""
    return f"{rate:g}" if float(f"{rate:.4g}") == rate else f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"


def require_decodes(demand: Demand, encodes: bool, what: str) -> None:
    """Raise ``UsageError`` for answers of one token, which have no time per output token to size by. encodes: whether
    the model makes none by its nature. what: needs more, ``"a plan"``."""
    if demand.output.average < 2 and not encodes:
        raise UsageError(f"{what} needs two output tokens or more", hint="--output 2, or inferplan sweep")


def users_in_words(demand: Demand) -> str:
    """``"2,000 users who think 60 s between an answer and the next request"``."""
    users, think = demand.users or 0, demand.prefix.think
    if not think.mean:
        return in_flight_line(users, chat=False)
    kind = "users" if demand.people is None else "people"
    who = f"1 {'user' if kind == 'users' else 'person'} who" if users == 1 else f"{users:,} {kind} who"
    mean = "" if think.kind == "constant" else " on average"
    return f"{who} {'thinks' if users == 1 else 'think'} {think.mean:g} s{mean} between an answer and the next request"


_BLOCK, _COUNT = 16, 4000
"""Tokens of a block, and prompts that are drawn, to see what prompts share."""
_MOST_NAMES = 1e8
"""Blocks of prompts that are named to see what they share: more are longer prompts than any model reads."""


def require_turns(own: Lengths, output: Lengths, prefix: SharedPrefix, context: int | None = None) -> None:
    """Raise ``UsageError`` for turns whose prompts exceed a context, or any."""
    each = own.average + output.average
    longest = prefix.tokens + prefix.turns * each - output.average
    mean = prefix.tokens + (min(prefix.turns, _COUNT) + 1) / 2 * each
    beyond = context is not None and prefix.turns > 1 and longest > context
    if beyond or _COUNT * mean / _BLOCK > _MOST_NAMES:
        context_said = f"a context of {context:,}" if beyond else "any context"
        raise UsageError(
            f"{prefix.turns:,} turns make prompts of {longest:,.0f} tokens, beyond {context_said}", hint="fewer --turns"
        )


def sharing(own: Lengths, output: Lengths, prefix: SharedPrefix, samples: int) -> tuple[Lengths, int]:
    """Whole prompts where ``own`` tokens of each follow text that is shared, and the tokens of a prompt that a prefix
    cache finds on average when it forgets nothing. Raises ``UsageError`` for turns beyond any context.
    """
    if not prefix.tokens and prefix.turns == 1 and samples == 1:
        return own, 0
    require_turns(own, output, prefix)
    recipe = Traffic(
        arrivals=OpenLoop(rate=1.0),
        prompt=own,
        output=output,
        requests_count=ceil(_COUNT / samples),
        prefix=prefix,
        samples=samples,
    )
    requests = recipe.requests(_BLOCK)
    return drawn_lengths(requests.prompt), found_again(requests)


def found_again(requests: Requests) -> int:
    """Tokens of a prompt that a cache which forgets nothing finds, on average: those of blocks that are known; its last
    token is always computed."""
    seen: set[int] = set()
    found, block = 0, requests.hash_block
    for tokens, names in zip(requests.prompt.tolist(), requests.hashes or ()):
        known = next((index for index, name in enumerate(names) if name not in seen), len(names))
        found += min(known, (tokens - 1) // block) * block
        seen.update(names)
    return found // len(requests)


def drawn_lengths(values: npt.ArrayLike) -> Lengths:
    """Lengths that are those of some requests."""
    array = np.asarray(values, dtype=np.int64)
    return Lengths(kind="empirical", values=tuple(array.tolist()) if len(array) < _MANY else Many(array))


def lengths_of_classes(classes: Sequence[TrafficClass]) -> tuple[Lengths, Lengths]:
    """Prompts and outputs of all classes together, each by its share: what the closed form sees of them."""
    rng = np.random.default_rng(0)
    counts = [max(round(_MIXED * one.share), 1) for one in classes]
    drawn = [[getattr(one, name).sample(rng, n) for one, n in zip(classes, counts)] for name in ("prompt", "output")]
    prompt, output = (drawn_lengths(np.concatenate(of)) for of in drawn)
    return prompt, output


def screened_by(classes: Sequence[TrafficClass]) -> Slo:
    """The limits to which the closed form, which only sees the mix of some classes, guesses fleets; the simulation
    holds each class to its own.

    Waits differ between classes, by their rank and by their prompts: the mix is only held to the loosest limit on TTFT
    and on end-to-end latency. The steps of a batch are everybody's, so that the tightest limit on TPOT holds for all.
    Each at the least percentile: a mix that misses a limit further out may still keep that of every class at its own.
    """
    found = {name: [one.slo.limits[name] for one in classes if name in one.slo.limits] for name in METRICS}
    return Slo(
        ttft=max(found["ttft"], default=None),
        tpot=min(found["tpot"], default=None),
        e2el=max(found["e2el"], default=None),
        percentile=min(one.slo.percentile for one in classes if one.slo.limits),
    )


def ruling(slo: Slo, classes: Sequence[TrafficClass]) -> Slo:
    """The limits that rule a fleet out without a simulation: ``slo``; of a mix of classes no more than all of them say.

    Where every class keeps a limit ``L_i`` with a share ``p_i`` of its requests, the mix keeps the loosest of them with
    the least of the shares. Where one class has no such limit its requests may be as late as they like, and the mix
    says nothing.
    """
    if not classes:
        return slo
    held = {name: [one.slo.limits[name] for one in classes if name in one.slo.limits] for name in METRICS}
    ttft, tpot, e2el = (max(held[name]) if len(held[name]) == len(classes) else None for name in METRICS)
    return replace(slo, ttft=ttft, tpot=tpot, e2el=e2el)


def demand_of_trace(trace: Requests) -> Demand:
    """The demand of a trace: its mean rate and its lengths. What a cache finds of it is left to simulation.

    Raises ``UsageError`` when it has no arrival times, or when no time passes from the first to the last: no rate.
    """
    hint = "--rate with --prompt and --output instead"
    if trace.arrival is None:
        raise UsageError("a plan needs a trace with arrival times", hint=hint)
    if len(trace) < 2:
        raise UsageError("a plan needs a trace of two requests or more: one has no rate", hint=hint)
    span = float(trace.arrival[-1] - trace.arrival[0])
    if span <= 0:
        raise UsageError(
            f"the {len(trace):,} requests of the trace arrive at the same time, so they have no rate",
            hint=f"{hint}, or --requests with --deadline for a job",
        )
    return Demand(
        prompt=drawn_lengths(trace.prompt),
        output=drawn_lengths(trace.output if np.min(trace.output) >= 1 else np.maximum(trace.output, 1)),
        rate=(len(trace) - 1) / span,
        trace=trace,
    )


def tail(percentile: float) -> float:
    """The share of requests that may be slower."""
    return max(1.0 - percentile / 100.0, 1e-6)


def percentile_of(slo: Slo) -> str:
    """``"p95"``."""
    return f"p{np.round(slo.percentile, 3):g}"


def limits_in_words(slo: Slo, classes: Sequence[TrafficClass]) -> str:
    """``"TTFT p95 < 500 ms"``; of each class where there are some."""

    def words(held: Slo) -> str:
        names, at = held.all_limits.items(), percentile_of(held)
        return ", ".join(f"{METRIC_NAMES[name]} {at} < {format_time(limit, 3)}" for name, limit in names)

    return "; ".join(f"{one.name} {words(one.slo)}" for one in classes if one.slo.limits) if classes else words(slo)
