"""Traffic: lengths of prompts and outputs, arrivals, shared prefixes, conversations, traces; and what users accept.

A :class:`Traffic` is a recipe with a seed; :meth:`Traffic.requests` makes the list of requests, the same one each time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from inferplan.errors import UsageError
from inferplan.features import require_together, those
from inferplan.fields import Quantity, Real, Text, Whole, Words, ask
from inferplan.traffic.block_names import FINEST, FileNames, OfAdapters, Streams, of_file
from inferplan.traffic.clipped import gamma_moments, lognormal_moments, normal_moments
from inferplan.traffic.conversations import Floats, Ints, ThinkTime, block_names, parse_think_time, turns_of
from inferplan.traffic.many import Many
from inferplan.traffic.popularity import Popularity
from inferplan.traffic.session_columns import Sessions

LEAST_RATE = 1e-6
"""Requests a second: with fewer, a clock that counts seconds since the start cannot tell the steps of one request."""
MOST_REQUESTS = 20_000_000
"""Requests of one run: each takes some 500 bytes of memory, but of a day, whose requests lie in files."""
_PIECE = 1 << 16
"""Requests that are looked at together."""
LengthKind = Literal["fixed", "uniform", "normal", "lognormal", "gamma", "empirical", "reasoning"]
ArrivalKind = Literal["poisson", "constant", "gamma"]


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """A distribution of token counts; every draw is rounded to a whole number of at least 1.

    fixed: ``mean``. uniform: whole numbers from ``spread*mean`` to ``mean``, ends included: ``mean`` is then the
    nominal length and ``spread`` the smallest ratio (``random_range_ratio`` of vLLM's benchmark client). normal,
    lognormal, gamma: mean and standard deviation ``spread*mean``, of which draws beyond ``most`` tokens are cut to it.
    empirical: the ``values``, drawn with replacement. reasoning:
    :class:`inferplan.traffic.reasoning.ReasoningLengths`.
    """

    kind: LengthKind = "fixed"
    mean: float = 1.0
    spread: float = 0.0
    values: tuple[int, ...] | Many = ()
    most: int | None = None

    def __post_init__(self) -> None:
        if self.most is not None and (self.kind not in ("normal", "lognormal", "gamma") or self.most < self.mean):
            raise UsageError(
                f"lengths cannot be cut to {self.most:,} tokens",
                because=f"only spread ones that may be longer are, to more than their mean of {self.mean:g}",
                hint="lognormal:8000:1.3:120000",
            )
        if self.kind == "empirical" and not self.values:
            raise UsageError("an empirical length distribution needs at least one value")
        if self.kind != "empirical" and self.mean < 1:
            raise UsageError(f"a length must be 1 token or more, not {self.mean:g}")
        if self.spread < 0 or (self.kind == "uniform" and not 0 < self.spread <= 1):
            limits = "in (0, 1]" if self.kind == "uniform" else "0 or more"
            raise UsageError(f"the spread of a {self.kind} length must be {limits}, not {self.spread:g}")

    def sample_parts(self, rng: np.random.Generator, count: int) -> tuple[Ints, Ints | None]:
        """``count`` lengths, and of each the tokens before the first of an answer; ``None`` where all are answers."""
        return self.sample(rng, count), None

    def thoughts(self, rng: np.random.Generator, count: int) -> Ints | None:
        """Of ``count`` requests the tokens before the first of an answer; ``None`` where all are answers."""
        return None

    def sample(self, rng: np.random.Generator, count: int) -> Ints:
        """``count`` lengths."""
        mean, deviation = self.mean, self.spread * self.mean
        if self.kind == "fixed" or (self.kind in ("normal", "lognormal", "gamma") and deviation == 0):
            draws: npt.NDArray[np.generic] = np.full(count, mean)
        elif self.kind == "uniform":
            draws = rng.integers(max(1, int(np.floor(self.spread * mean))), int(mean) + 1, count)
        elif self.kind == "normal":
            draws = rng.normal(mean, deviation, count)
        elif self.kind == "lognormal":
            variance = np.log1p(self.spread**2)
            draws = rng.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), count)
        elif self.kind == "gamma":
            draws = rng.gamma(1 / self.spread**2, mean * self.spread**2, count)
        else:
            draws = rng.choice(np.asarray(self.values), count)
        return np.clip(np.rint(draws.astype(np.float64)), 1, self.most).astype(np.int64)

    @property
    def average(self) -> float:
        """The mean of the distribution before rounding (a normal's cut at 1 is not counted, one at ``most`` is)."""
        return self._moments[0]

    @property
    def variance(self) -> float:
        """The variance, in tokens squared, likewise."""
        return max(self._moments[1] - self._moments[0] ** 2, 0.0)

    @cached_property
    def _moments(self) -> tuple[float, float]:
        """Mean and mean square: a search asks each of its structures for those of thousands of lengths."""
        mean, deviation = self.mean, self.spread * self.mean
        if self.kind == "uniform":  # n whole numbers in a row: a variance of (n^2 - 1)/12
            first, last = max(1.0, float(np.floor(deviation))), float(np.floor(mean))
            middle = (first + last) / 2
            return middle, middle**2 + ((last - first + 1) ** 2 - 1) / 12
        if self.kind == "empirical":
            values = np.asarray(self.values)
            parts = (values[at : at + _PIECE].astype(np.float64) for at in range(0, len(values), _PIECE))
            return float(np.mean(values)), sum([float(np.sum(np.square(part))) for part in parts]) / len(values)
        if self.kind == "fixed" or not deviation:
            return mean, mean**2
        if self.most is None:
            return mean, mean**2 + deviation**2
        if self.kind == "normal":
            return normal_moments(mean, deviation, self.most)
        return (lognormal_moments if self.kind == "lognormal" else gamma_moments)(mean, self.spread, self.most)

    def quantile(self, share: float) -> float:
        """The length that a ``share`` of the requests does not exceed, of a sample of 4,096 draws."""
        if self.kind == "fixed":
            return self.mean
        if share not in self._quantiles:
            self._quantiles[share] = float(np.quantile(self.sample(np.random.default_rng(0), 4096), share))
        return self._quantiles[share]

    @cached_property
    def _quantiles(self) -> dict[float, float]:
        """Those that were asked for: a search asks each of its structures for the same."""
        return {}


_LENGTHS = re.compile(
    r"^(?:(uniform|normal|lognormal|gamma)\s*[:(])?\s*([\d_.]+[kKMG]?i?)\s*"
    r"(?:[:,]\s*([\d.]+)\s*(?:[:,]\s*([\d_.]+[kKMG]?i?)\s*)?\)?)?$",
    re.ASCII,
)


def parse_lengths(text: str, ratio_min: float = 1.0) -> Lengths:
    """``1024``, ``uniform:1024:0.8``, ``normal:1024:0.3``, ``lognormal:1024:0.8``, ``gamma:1024:0.5:8192``.

    The second number is the smallest ratio (uniform) or the standard deviation over the mean; the third, the most
    tokens of a draw. ``ratio_min`` below 1 makes a plain number uniform. Raises ``UsageError``.
    """
    from inferplan.units import parse_count

    match = _LENGTHS.match(text.strip())
    if not match:
        raise UsageError(
            f"{text!r} is not a length",
            hint="1024, uniform:1024:0.8, normal:1024:0.3, lognormal:1024:0.8, gamma:1024:0.5:8192",
        )
    name, mean, spread, most = match.groups()
    try:
        tokens, cut = float(parse_count(mean)), None if most is None else parse_count(most)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if name is None:
        return Lengths(kind="fixed" if ratio_min >= 1 else "uniform", mean=tokens, spread=min(ratio_min, 1.0))
    if spread is None:
        raise UsageError(f"{text!r} has no spread", hint=f"{name}:{mean}:0.5")
    kind: LengthKind = name  # type: ignore[assignment]  # the pattern lets no other pass
    return Lengths(kind=kind, mean=tokens, spread=_spread(spread, text), most=cut)


def _spread(value: str, text: str) -> float:
    from inferplan.units import parse_number

    try:
        return parse_number(value)
    except ValueError as error:
        raise UsageError(f"{text!r} is not a length", because=str(error)) from None


def arrivals_of(kind: ArrivalKind | None, burstiness: float | None, usual: float = 1.0) -> tuple[ArrivalKind, float]:
    """Kind and burstiness of an open loop where either may be left open: a burstiness asks for gamma arrivals, which
    those of a load of ``usual`` burstiness are too. Raises ``UsageError`` for one that the kind knows nothing of.
    """
    if kind is None:
        shape = usual if burstiness is None else burstiness
        return ("poisson" if shape == 1.0 else "gamma"), shape
    if burstiness is not None and kind != "gamma":
        raise UsageError(f"--burstiness does not apply to {kind} arrivals", hint="--arrivals gamma, or leave one out")
    return kind, usual if burstiness is None else burstiness


@dataclass(frozen=True, kw_only=True)
class Media:
    """What requests carry beside text: ``sets`` of it each, of ``tokens`` prompt tokens."""

    tokens: int
    sets: Lengths = field(default_factory=Lengths)

    def beside(self, text: Lengths) -> Lengths:
        """Whole prompts of so much text; of distributions a sample of 4,096."""
        if text.kind == self.sets.kind == "fixed":
            return replace(text, mean=text.mean + self.sets.mean * self.tokens)
        rng = np.random.default_rng(0)
        whole = text.sample(rng, _SAMPLE) + self.tokens * self.sets.sample(rng, _SAMPLE)
        return Lengths(kind="empirical", values=tuple(whole.tolist()))


_SAMPLE = 4096


@dataclass(frozen=True, kw_only=True)
class ClosedLoop:
    """``concurrency`` users, each with one request at a time. burst: all begin at once; else one after another over
    ``ramp`` seconds, or, without them, over the time that one request takes.
    """

    concurrency: int
    burst: bool = True
    ramp: float | None = 0.0

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UsageError(f"--in-flight must be 1 or more, not {self.concurrency}")


@dataclass(frozen=True, kw_only=True)
class OpenLoop:
    """``rate`` requests a second, whatever the system does.

    constant: one every ``1/rate``. poisson: exponential gaps. gamma: gaps of coefficient of variation ``1/sqrt(b)``
    with ``b = burstiness`` (1 is Poisson, less is burstier: ``--burstiness`` of vLLM's benchmark client). exact: each
    quarter of the requests comes at just ``rate`` on average, as one draw in many does (a Poisson process given how
    many come in a quarter): a short run then errs less.
    """

    rate: float
    kind: ArrivalKind = ask(
        "--arrivals",
        Words(get_args(ArrivalKind)),
        "Gaps between requests [poisson; gamma if a burstiness is given or in the workload].",
        "poisson",
    )
    burstiness: float = ask(
        "--burstiness",
        Real(),
        "Shape of gamma arrivals: 1 is Poisson, less is burstier. [1, or as the workload]",
        1.0,
    )
    exact: bool = False

    def __post_init__(self) -> None:
        for name in ("rate", "burstiness"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"--{name} must be more than 0, not {getattr(self, name):g}")
        if not LEAST_RATE <= self.rate <= 1 / LEAST_RATE:
            raise UsageError(
                f"--rate {self.rate:g} is out of range",
                hint=f"{LEAST_RATE:g} to {1 / LEAST_RATE:g} requests/s",
            )

    def sample(self, rng: np.random.Generator, count: int) -> Floats:
        """Arrival times in seconds; the first gap comes before the first arrival."""
        if self.kind == "constant":
            return np.arange(count) / self.rate
        shape = 1.0 if self.kind == "poisson" else self.burstiness
        gaps = rng.gamma(shape, 1.0 / (self.rate * shape), count)
        if self.exact:
            quarters = [part for part in np.array_split(gaps, 4) if len(part)]
            gaps = np.concatenate([part * (len(part) / self.rate / float(np.sum(part))) for part in quarters])
        return np.cumsum(gaps)


@dataclass(frozen=True, kw_only=True)
class SharedPrefix:
    """What prompts have in common. ``tokens`` at the head of every prompt are one of ``distinct`` texts; ``turns`` of a
    conversation each carry all that was said before, and follow the answer before them after ``think``; so does every
    request of a closed loop.
    """

    tokens: int = ask(
        "--shared-prefix",
        Whole(0),
        "Tokens shared at the start of every prompt, in addition to --prompt.",
        0,
    )
    distinct: int = ask("--distinct-prefixes", Whole(), "Number of such shared texts. [1]", 1)
    turns: int = ask("--turns", Whole(), "Turns per conversation; each prompt contains all turns before it. [1]", 1)
    think: ThinkTime = ask(
        "--think-time",
        Text(parse_think_time),
        "From an answer to the next turn (--turns), or the next request of --people and --in-flight: 30s, "
        "exponential:30s, lognormal:30s:0.8. [0 s]",
        ThinkTime(),
        metavar="TIME",
    )

    def __post_init__(self) -> None:
        if self.tokens < 0 or self.distinct < 1 or self.turns < 1:
            raise UsageError("a shared prefix has 0 or more tokens, and 1 or more texts and turns")


@dataclass(frozen=True, kw_only=True)
class Slo:
    """What users accept, in seconds; ``percentile`` percent of the requests have to meet all that is set.

    answer_ttft: until the first token after the thought of a reasoning model.
    """

    ttft: float | None = ask("--ttft", Quantity("seconds"), "Limit on the TTFT at the server, such as 500ms.", None)
    tpot: float | None = ask("--tpot", Quantity("seconds"), "Limit on the time per output token.", None)
    e2el: float | None = ask("--e2e", Quantity("seconds"), "Limit on the end-to-end latency.", None)
    answer_ttft: float | None = ask(
        "--answer-ttft", Quantity("seconds"), "Limit on the first token after the thought.", None
    )
    session: float | None = ask(
        "--session-time",
        Quantity("seconds"),
        "Limit on the duration of a session, from its first call to its last answer.",
        None,
    )
    """On the time of a whole session; ``limits`` are those of requests."""
    percentile: float = ask(
        "--percentile", Real(), "Percent of requests that must meet the limits [95, or as --slo].", 90.0
    )

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot", "e2el", "session", "answer_ttft"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise UsageError(f"an SLO must be more than 0 seconds: {name} {limit:g}")
        if not 0 < self.percentile <= 100:
            raise UsageError(f"an SLO percentile is in (0, 100], not {self.percentile:g}")

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by metric."""
        pairs = (("ttft", self.ttft), ("tpot", self.tpot), ("e2el", self.e2el), ("answer_ttft", self.answer_ttft))
        return {name: limit for name, limit in pairs if limit is not None}

    @property
    def all_limits(self) -> dict[str, float]:
        """Those of requests and that of sessions."""
        return self.limits if self.session is None else {**self.limits, "session": self.session}


@dataclass(frozen=True, kw_only=True)
class TrafficClass:
    """One kind of traffic.

    share: of all requests. priority: lower goes first, as in vLLM (``Request.priority``, ``v1/core/sched/
    request_queue.py``: a heap of priority and arrival). weight: service that it is due beside the others, under fair
    queueing. chat: requests are messages, which a checkpoint tuned on instructions takes by its chat template.
    """

    name: str
    share: float
    prompt: Lengths
    output: Lengths
    slo: Slo = field(default_factory=Slo)
    priority: int = 0
    weight: float = 1.0
    chat: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Requests:
    """Requests in the order in which they are sent.

    arrival: seconds, absent in a closed loop (that of ``loop``, if it is known); NaN for a request that follows an
    answer. hashes: the blocks of each prompt and of its output, as far as they are known, every one named by all that
    precedes it, ``hash_block`` tokens each; absent where prompts share nothing. follows: the request whose answer each
    waits for, which comes before it here; -1 for none. think: seconds from the answer that a request waits for until it
    is sent.
    """

    prompt: Ints
    output: Ints
    arrival: Floats | None = None
    hashes: Sequence[Sequence[int]] | None = None
    hash_block: int = 0
    follows: Ints | None = None
    think: Floats | None = None
    loop: ClosedLoop | None = None
    media: Ints | None = None
    """Sets of images, videos or sound in each; absent where requests are text alone."""
    classes: tuple[TrafficClass, ...] = ()
    """Kinds of traffic, where there are several."""
    of: Ints | None = None
    """Which of them each request is, by place."""
    adapters: Ints | None = None
    """The LoRA adapter of each, from 0; absent where they name none."""
    sessions: Sessions | None = None
    """Sessions of agents that they are of, where they are."""
    before: Ints | None = None
    """Output tokens of each before the first of its answer; absent where nobody thinks."""
    samples: int = 1
    """Answers of each prompt: so many requests in a row."""
    phases: Floats | None = None
    """Of a closed loop of users who think, two numbers from 0 to 1 for each: where they are as the load begins."""

    def __len__(self) -> int:
        return len(self.prompt)

    @property
    def mean_tokens(self) -> float:
        """Of a request, prompt and output together; the sums are whole numbers, so that they lose nothing."""
        return float(np.sum(self.prompt) + np.sum(self.output)) / len(self)

    @property
    def most_tokens(self) -> int:
        """Of a request, prompt and output together."""
        starts = range(0, len(self), _PIECE)
        return max(int(np.max(self.prompt[at : at + _PIECE] + self.output[at : at + _PIECE])) for at in starts)

    @property
    def turns(self) -> int:
        """The most requests of a conversation; 1 where nothing follows an answer. Of sessions the mean, rounded up."""
        if self.follows is None:
            return 1
        if self.sessions is not None:
            return -(-len(self) // max(int(np.sum(self.follows < 0)), 1))
        turn = np.ones(len(self), dtype=np.int64)
        for request, before in enumerate(self.follows.tolist()):
            if before >= 0:
                turn[request] = turn[before] + 1
        return int(np.max(turn, initial=1))

    @property
    def features(self) -> set[str]:
        """As :mod:`inferplan.features` names them."""
        sessions, follows = self.sessions, self.follows
        return those(
            classes=self.of is not None,
            adapters=self.adapters is not None,
            thoughts=self.before is not None,
            turns=sessions is None and follows is not None and bool(np.any(follows >= 0)),
            samples=self.samples > 1,
            sessions=sessions is not None,
            patience=sessions is not None and bool(np.any(np.isfinite(sessions.patience))),
            media=self.media is not None,
            users=self.loop is not None,
        )

    def head(self, count: int) -> Requests:
        """The first ``count`` requests."""
        return Requests(
            prompt=self.prompt[:count],
            output=self.output[:count],
            arrival=None if self.arrival is None else self.arrival[:count],
            hashes=None if self.hashes is None else self.hashes[:count],
            hash_block=self.hash_block,
            follows=None if self.follows is None else self.follows[:count],
            think=None if self.think is None else self.think[:count],
            loop=self.loop,
            media=None if self.media is None else self.media[:count],
            classes=self.classes,
            of=None if self.of is None else self.of[:count],
            adapters=None if self.adapters is None else self.adapters[:count],
            sessions=None if self.sessions is None else self.sessions.head(count),
            before=None if self.before is None else self.before[:count],
            samples=self.samples,
            phases=self.phases,
        )

    def naming(self, popularity: Popularity, seed: int, samples: int = 1) -> Requests:
        """The same requests, each with an adapter. Blocks of a cache are those of one adapter alone: what was computed
        with another one is of no use (vLLM, ``v1/core/kv_cache_utils.py``, ``_gen_lora_extra_hash_keys``).
        """
        adapters = popularity.draw(len(self), seed, self.follows, samples)
        hashes = self.hashes
        if hashes is not None:
            lazy = self.sessions is not None or isinstance(hashes, FileNames)
            hashes = OfAdapters(hashes, adapters.tolist(), popularity.count)
            hashes = hashes if lazy else list(hashes)
        return replace(self, adapters=adapters, hashes=hashes)

    def in_blocks(self, block: int) -> Requests:
        """The same requests for an engine with blocks of so many tokens: names of a file are cut into them, pages of
        fewer than :data:`FINEST` tokens into as many as make up that; others stay as they were made.
        """
        names, block = self.hashes, -(-FINEST // block) * block
        if block == self.hash_block or of_file(names) is None or not isinstance(names, (FileNames, OfAdapters)):
            return self
        return replace(self, hashes=names.cut(block), hash_block=block)

    def in_loop(self, loop: ClosedLoop) -> Requests:
        """The same requests sent by users who wait for their answers, whenever they were sent before."""
        phases = self.phases if self.phases is not None and self.phases.shape[1] == loop.concurrency else None
        return replace(self, arrival=None, loop=loop, phases=phases)


class _Drawn(NamedTuple):
    """Columns of the requests of a load as they are drawn: tokens; those of the output before an answer; places of
    classes; sets of media."""

    prompt: Ints
    output: Ints
    before: Ints | None = None
    of: Ints | None = None
    media: Ints | None = None


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """A load generator: arrivals, lengths, what prompts share, how many requests, the seed.

    samples: completions of each prompt; each is a request of its own with the same prompt, sent at the same time.
    classes: kinds of traffic of which each request is one, by their shares; they have the lengths of prompts and
    answers, and of ``prompt`` and ``output`` only thoughts are used, which are before the answers of all classes. All
    turns of a conversation are of the class of the first. Later prompts do not repeat thoughts, as chat templates leave
    them out: of the answers before them nothing is found in a cache, for it was computed behind thoughts. Raises
    ``UsageError`` for classes beside media.
    """

    arrivals: ClosedLoop | OpenLoop
    prompt: Lengths
    output: Lengths
    requests_count: int | None = None
    """``None``: ten for each user, as the usual closed-loop clients do, or ten conversations. An open loop without a
    number is for :func:`inferplan.serving.run_length.simulate_steady`, which finds one; where it is asked for all the
    same, 1000."""
    prefix: SharedPrefix = field(default_factory=SharedPrefix)
    samples: int = 1
    seed: int = 0
    media: Media | None = None
    classes: tuple[TrafficClass, ...] = ()
    adapters: Popularity | None = None

    def __post_init__(self) -> None:
        require_together("load", self.features)

    @property
    def features(self) -> set[str]:
        """As :mod:`inferplan.features` names them."""
        return those(
            classes=bool(self.classes),
            adapters=self.adapters is not None,
            thoughts=self.output.kind == "reasoning",
            turns=self.prefix.turns > 1,
            shared_text=self.prefix.tokens > 0,
            samples=self.samples > 1,
            media=self.media is not None,
            users=isinstance(self.arrivals, ClosedLoop),
        )

    @property
    def count(self) -> int:
        if self.requests_count is not None and self.requests_count < 1:
            raise UsageError(f"--requests must be 1 or more, not {self.requests_count}")
        rounds = self.arrivals.concurrency * self.prefix.turns if isinstance(self.arrivals, ClosedLoop) else 100
        count = self.requests_count or 10 * rounds
        if count * self.samples > MOST_REQUESTS:
            raise UsageError(
                f"{count * self.samples:,} requests are more than a run can hold",
                because=f"each request is kept in memory; at most {MOST_REQUESTS:,} are the most",
                hint="fewer --requests, --people or --in-flight",
            )
        return count

    def requests(self, block: int = 16) -> Requests:
        """The requests; ``block`` is the page of the cache that shared prompts are cut into."""
        made = self._made(block)
        return made if self.adapters is None else made.naming(self.adapters, self.seed, self.samples)

    def beginning(self, starts: Floats, block: int = 16) -> Requests:
        """The requests of conversations that begin at these times, in seconds, in the place of those that are drawn;
        names of blocks are made late, for those of a whole day."""
        return self._made(block, np.repeat(starts, self.prefix.turns)[: self.count])

    def _made(self, block: int, starts: Floats | None = None) -> Requests:
        rng = np.random.default_rng(self.seed)
        count = self.count
        drawn = self._lengths(rng, count)
        if self.media is not None:
            sets = self.media.sets.sample(np.random.default_rng((self.seed, 1)), count)
            drawn = drawn._replace(prompt=drawn.prompt + sets * self.media.tokens, media=sets)
        arrival = starts
        if starts is None and isinstance(self.arrivals, OpenLoop):
            arrival = self._open_arrivals(rng, count)
        if self.prefix.tokens or self.prefix.turns > 1 or self.samples > 1:
            return self._shared(rng, block, drawn, arrival, starts is not None)
        given = {**drawn._asdict(), "think": self._think(rng, count), "classes": self.classes}
        return Requests(arrival=arrival, phases=self._phases, **given)

    def _lengths(self, rng: np.random.Generator, count: int) -> _Drawn:
        """Prompts and outputs, with the classes and thoughts of their requests."""
        if not self.classes:
            prompt, (output, before) = self.prompt.sample(rng, count), self.output.sample_parts(rng, count)
            return _Drawn(prompt, output, before)
        shares, first = np.array([[one.share for one in self.classes]]), None
        if self.prefix.turns > 1:
            conversation, _, _ = turns_of(count, self.prefix.turns, self._users)
            first = np.unique(conversation, return_index=True)[1][conversation]
        steps = np.zeros(count, dtype=np.int64)
        of, prompt, output = drawn_of(self.classes, self.seed, shares, steps, first)
        before = self.output.thoughts(np.random.default_rng((self.seed, 6)), count)
        return _Drawn(prompt, output if before is None else output + before, before, of)

    @property
    def _users(self) -> int | None:
        """Conversations side by side in a closed loop, each of all samples of its prompts; ``None`` for an open one."""
        closed = isinstance(self.arrivals, ClosedLoop)
        return -(-self.arrivals.concurrency // self.samples) if closed else None  # type: ignore[union-attr]

    def _think(self, rng: np.random.Generator, count: int) -> Floats | None:
        """Seconds from an answer to each request, or from that of each to the next; absent where nobody waits."""
        think = self.prefix.think
        if not think.mean:
            return None
        if isinstance(self.arrivals, OpenLoop) and self.prefix.turns == 1:
            raise UsageError(
                "a think time needs users who wait for answers", hint="--turns 4, or --people instead of --rate"
            )
        return think.sample(rng, count)

    @property
    def _phases(self) -> Floats | None:
        """Where users who think are as the load begins."""
        if not isinstance(self.arrivals, ClosedLoop) or not self.prefix.think.mean:
            return None
        return np.random.default_rng((self.seed, 8)).random((2, self.arrivals.concurrency))

    def _open_arrivals(self, rng: np.random.Generator, count: int) -> Floats:
        """When the conversation of each prompt begins, in seconds; ``rate`` counts requests, all turns together."""
        arrivals, turns = self.arrivals, self.prefix.turns
        assert isinstance(arrivals, OpenLoop)
        starts = replace(arrivals, rate=arrivals.rate / turns).sample(rng, -(-count // turns))
        return np.repeat(starts, turns)[:count]

    def _shared(
        self, rng: np.random.Generator, block: int, drawn: _Drawn, begin: Floats | None, late: bool
    ) -> Requests:
        """Name the blocks of every prompt and its output, and lengthen later turns by what was said before.

        With several samples each is a conversation of its own, with the same lengths as the others. late: names are
        made when somebody asks for them.
        """
        prompt, output, thought = drawn.prompt, drawn.output, drawn.before
        prefix, count, samples = self.prefix, len(prompt), self.samples
        said = output if thought is None else output - thought
        conversation, turn, before = turns_of(count, prefix.turns, self._users)
        order = np.arange(count) if begin is None else np.argsort(begin + turn * prefix.think.mean, kind="stable")
        lengths, texts, first = prompt + prefix.tokens, np.zeros(count, dtype=np.int64), np.arange(count)
        for index, last in enumerate(before):
            if last >= 0:
                lengths[index] = lengths[last] + said[last] + prompt[index]
                texts[index], first[index] = texts[last], first[last]
            elif prefix.tokens:
                texts[index] = rng.integers(prefix.distinct)
        place = np.argsort(order)
        # the last token of an answer is never computed; of a later turn nobody finds an answer behind its thought
        named = lengths + output - 1 if thought is None or prefix.turns == 1 else lengths
        each = np.repeat(order, samples)
        twin, sample = conversation[each] * samples, np.tile(np.arange(samples), count)
        columns = [one.tolist() for one in (texts[each], twin, twin + sample, lengths[first][each], named[each])]
        hashes: Sequence[Sequence[int]]
        if late:  # the same names, made when somebody asks
            text, of, own, alike, full = columns
            behind = [tokens // block for tokens in alike], own
            common = [prefix.tokens // block] * len(each)
            hashes = Streams(text, common, of, [tokens // block for tokens in full], behind)
        else:
            hashes = [
                block_names(text, prefix.tokens, (own, of, begins), tokens, block)
                for text, of, own, begins, tokens in zip(*columns)
            ]
        follows = np.where(before[each] >= 0, place[before[each]] * samples + sample, -1)
        arrival = None if begin is None else np.where(follows >= 0, np.nan, begin[each])
        sets = drawn.media
        return Requests(
            prompt=lengths[each],
            output=output[each],
            arrival=arrival,
            hashes=hashes,
            hash_block=block,
            follows=follows if prefix.turns > 1 else None,
            think=self._think(rng, len(each)),
            media=None if sets is None else np.where(sample == 0, sets[each], 0),
            classes=self.classes,
            of=None if drawn.of is None else drawn.of[each],
            before=None if thought is None else thought[each],
            samples=samples,
            phases=self._phases,
        )


def drawn_of(
    classes: Sequence[TrafficClass], seed: int, shares: Floats, step: Ints, first: Ints | None = None
) -> tuple[Ints, Ints, Ints]:
    """The class of each request, by its place, and their prompts and outputs in tokens.

    shares: of each class at each step of a load, ``(steps, classes)``, as numbers in proportion; step: that in which
    each request comes; first: the request that each has the class of. Each is drawn by the shares of its step, whatever
    the others are: of Poisson arrivals each class then gets Poisson arrivals of its own. The stream of random numbers
    is their own, so that arrivals are those of a load without classes.
    """
    rng, count = np.random.default_rng((seed, 2)), len(step)
    bounds = np.cumsum(shares / np.maximum(np.sum(shares, axis=1, keepdims=True), 1e-300), axis=1)
    bounds /= np.maximum(bounds[:, -1:], 1e-300)
    chance, of = rng.random(count), np.zeros(count, dtype=np.int64)
    for place in range(len(classes) - 1):
        of += bounds[step, place] <= chance
    of = of if first is None else of[first]
    prompt, output = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for place, one in enumerate(classes):
        mine = of == place
        prompt[mine] = one.prompt.sample(rng, int(np.sum(mine)))
        output[mine] = one.output.sample(rng, int(np.sum(mine)))
    return of, prompt, output
