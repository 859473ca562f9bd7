"""What a server has counted since it began, and what it holds now: read off one scrape of ``/metrics``, of the server
itself or as a Prometheus server kept it.

| figure | vLLM (``vllm/v1/metrics/loggers.py``) | SGLang (``srt/observability/metrics_collector.py``) |
|---|---|---|
| answers begun, seconds until then | ``vllm:time_to_first_token_seconds`` | ``sglang:time_to_first_token_seconds`` |
| gaps between tokens | ``vllm:inter_token_latency_seconds`` (``vllm:time_per_output_token_seconds`` before 0.11) |
  ``sglang:inter_token_latency_seconds`` |
| seconds of a further token, of a whole request | ``vllm:request_time_per_output_token_seconds``,
  ``vllm:e2e_request_latency_seconds`` | the same |
| requests done | ``vllm:request_success_total`` | ``sglang:num_requests_total`` |
| tokens of prompts | ``vllm:prompt_tokens_total``, as an answer begins | ``sglang:prompt_tokens_total``, as it ends |
| tokens of answers that ended | ``vllm:request_generation_tokens`` | ``sglang:generation_tokens_total`` |
| of those found in the prefix cache | ``vllm:prefix_cache_hits_total`` | ``sglang:cached_tokens_total`` |
| requests that run, that wait | ``vllm:num_requests_running``, ``vllm:num_requests_waiting`` |
  ``sglang:num_running_reqs``, ``sglang:num_queue_reqs`` |
| share of the KV cache in use | ``vllm:kv_cache_usage_perc`` | ``sglang:token_usage`` |

TensorRT-LLM, TGI and llama.cpp count no tokens of requests beside times of first tokens, so they cannot be watched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf, isfinite
from typing import NamedTuple

from inferplan.errors import InputFileError
from inferplan.measuring.exposition import Sample, samples

_BUCKET = "_bucket"
Names = tuple[str, ...]
_ENGINES: dict[str, dict[str, Names]] = {
    "vllm": {
        "ttft": ("vllm:time_to_first_token_seconds",),
        "gap": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "tpot": ("vllm:request_time_per_output_token_seconds",),
        "e2el": ("vllm:e2e_request_latency_seconds",),
        "done": ("vllm:request_success_total",),
        "prompt": ("vllm:prompt_tokens_total",),
        "output": ("vllm:request_generation_tokens_sum", "vllm:generation_tokens_total"),
        "cached": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "cache": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    },
    "sglang": {
        "ttft": ("sglang:time_to_first_token_seconds",),
        "gap": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        "tpot": ("sglang:request_time_per_output_token_seconds",),
        "e2el": ("sglang:e2e_request_latency_seconds",),
        "done": ("sglang:num_requests_total",),
        "prompt": ("sglang:prompt_tokens_total",),
        "output": ("sglang:generation_tokens_total",),
        "cached": ("sglang:cached_tokens_total",),
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "cache": ("sglang:token_usage",),
    },
}
"""Metrics by engine and figure; of several names the first that is there counts."""
_COUNTED_AT_THE_END = {"sglang"}
"""Engines that count the tokens of a prompt as its answer ends; others as it begins."""
_SHARES = {name for figures in _ENGINES.values() for name in figures["cache"]}
_OTHERS = {"trtllm_": "TensorRT-LLM", "tgi_": "TGI", "llamacpp:": "llama.cpp", "atom:": "ATOM"}
_EXPORTED = ("ttft", "gap", "done", "prompt", "output", "running", "waiting")
"""Without these an export says nothing of a service."""
_ENDS = {"ttft": ("_count", "_sum"), "gap": ("_count", "_sum"), "tpot": ("_bucket",), "e2el": ("_bucket",)}
"""Series of a histogram that are read: means of some, percentiles of others."""
_NEEDED = ("running", "waiting")
"""A scrape without one of these says too little. Counters of no event yet are missing under SGLang: they are zero."""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Seconds of events: how many, all of them together, and how many took no longer than each edge."""

    count: float = 0.0
    total: float = 0.0
    within: Mapping[float, float] = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        """Mean seconds; ``None`` without an event."""
        return self.total / self.count if self.count > 0 else None

    def since(self, before: Histogram) -> Histogram:
        """What was added after ``before``."""
        return Histogram(
            count=self.count - before.count,
            total=self.total - before.total,
            within={edge: most - before.within.get(edge, 0.0) for edge, most in self.within.items()},
        )

    def plus(self, other: Histogram) -> Histogram:
        """The events of both; edges that only one has are left out."""
        if not self.count:
            return other
        if not other.count:
            return self
        return Histogram(
            count=self.count + other.count,
            total=self.total + other.total,
            within={edge: most + other.within[edge] for edge, most in self.within.items() if edge in other.within},
        )

    def bounds(self, percentile: float) -> tuple[float, float] | None:
        """The edges between which a percentile lies, in seconds; infinity above the last edge. ``None`` without events
        or buckets.
        """
        if not self.count or not self.within:
            return None
        low = 0.0
        for edge, most in sorted(self.within.items()):
            if most >= percentile / 100 * self.count:
                return low, edge
            low = edge
        return low, inf

    def percentile(self, percentile: float) -> float | None:
        """A percentile in seconds, by a straight line inside its bucket, as Prometheus' ``histogram_quantile`` has it;
        the last edge where it lies above. ``None`` without events or buckets.
        """
        bounds = self.bounds(percentile)
        if bounds is None:
            return None
        low, high = bounds
        if not isfinite(high):
            return low
        below, most = self.within.get(low, 0.0), self.within[high]
        share = (percentile / 100 * self.count - below) / (most - below) if most > below else 1.0
        return low + (high - low) * share


class Counters(NamedTuple):
    """One server at one moment.

    ttft, gap, tpot, e2el: seconds until a first token, between tokens, of each of a request's further tokens, of all of
    a request; empty where the server does not say. done: requests. prompt, output, cached: tokens; prompts: requests
    whose prompts are counted. running, waiting: requests now. cache: share of the KV cache in use, ``None`` where the
    server does not say.
    """

    engine: str
    ttft: Histogram
    gap: Histogram
    tpot: Histogram
    e2el: Histogram
    done: float
    prompts: float
    prompt: float
    output: float
    cached: float
    running: float
    waiting: float
    cache: float | None

    def falls(self, before: Counters) -> bool:
        """Whether it has counted less than before, as a server that began anew has."""
        now = (self.ttft.count, self.gap.count, self.done, self.prompt, self.output, self.cached)
        then = (before.ttft.count, before.gap.count, before.done, before.prompt, before.output, before.cached)
        return any(one < other for one, other in zip(now, then))


def read_counters(scrape: str | Iterable[Sample], where: str) -> Counters:
    """What a scrape says, its text or its samples. Raises ``InputFileError`` for another engine's, and for one that
    lacks what is needed.
    """
    values, buckets = dict[str, float](), dict[str, dict[float, float]]()
    for sample in samples(scrape) if isinstance(scrape, str) else scrape:
        value = _number(sample.value)
        if value is None:
            continue
        if sample.name.endswith(_BUCKET):
            edge = _number(sample.known.get("le", ""), infinite=True)
            if edge is not None:
                within = buckets.setdefault(sample.name.removesuffix(_BUCKET), {})
                within[edge] = within.get(edge, 0.0) + value
        else:
            held = values.get(sample.name, 0.0)
            values[sample.name] = max(held, value) if sample.name in _SHARES else held + value  # of several ranks
    engine = engine_of(values, where)
    return _counters(engine, values, buckets, where)


def engine_of(names: Iterable[str], where: str) -> str:
    """Whose metrics these are. Raises ``InputFileError`` for an engine that cannot be watched, and for none."""
    values = list(names)
    engine = next((one for one in _ENGINES if any(name.startswith(f"{one}:") for name in values)), None)
    if engine is None:
        other = next((said for prefix, said in _OTHERS.items() if any(name.startswith(prefix) for name in values)), "")
        raise InputFileError(
            f"{where} has no metrics that can be watched",
            because=f"{other} counts no tokens of requests with the times of first tokens"
            if other
            else "no metric of vLLM or SGLang is there",
            hint="the address of a vLLM or SGLang server; SGLang takes --enable-metrics",
        )
    return engine


def lacking(engine: str, names: Collection[str]) -> tuple[list[str], list[str]]:
    """The metrics without which an export says too little of a service, and those without which it says less; each by
    its first name.

    A server itself lacks counters of what never happened; in an export they may be missing because nobody asked for
    them.
    """

    def missing(figures: Iterable[str]) -> list[str]:
        wanted = [(_ENGINES[engine][figure], end) for figure in figures for end in _ENDS.get(figure, ("",))]
        return [f"{known[0]}{end}" for known, end in wanted if not any(f"{name}{end}" in names for name in known)]

    return missing(_EXPORTED), missing(figure for figure in _ENGINES[engine] if figure not in _EXPORTED)


def _counters(
    engine: str, values: Mapping[str, float], buckets: Mapping[str, Mapping[float, float]], where: str
) -> Counters:
    names = _ENGINES[engine]
    there = {*values, *(name.removesuffix("_count") for name in values if name.endswith("_count"))}
    found = {figure: next((name for name in known if name in there), None) for figure, known in names.items()}
    lacking = [names[figure][0] for figure in _NEEDED if found[figure] is None]
    if lacking:
        raise InputFileError(
            f"{where} lacks {', '.join(lacking)}",
            because=f"a scrape of {engine} was cut, or the server writes no such metrics",
            hint="SGLang takes --enable-metrics",
        )

    def histogram(figure: str) -> Histogram:
        name = found[figure]
        return Histogram(
            count=values.get(f"{name}_count", 0.0),
            total=values.get(f"{name}_sum", 0.0),
            within=dict(buckets.get(str(name), {})),
        )

    def value(figure: str) -> float:
        return values.get(str(found[figure]), 0.0)

    ttft, done = histogram("ttft"), value("done")
    prompts = done if engine in _COUNTED_AT_THE_END else ttft.count
    return Counters(
        engine=engine,
        ttft=ttft,
        gap=histogram("gap"),
        tpot=histogram("tpot"),
        e2el=histogram("e2el"),
        done=done,
        prompts=prompts,
        prompt=value("prompt"),
        output=value("output"),
        cached=value("cached"),
        running=value("running"),
        waiting=value("waiting"),
        cache=None if found["cache"] is None else value("cache"),
    )


def _number(text: str, infinite: bool = False) -> float | None:
    """A number of zero or more; ``None`` for what is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value >= 0 and (infinite or isfinite(value)) else None


@dataclass(frozen=True, kw_only=True)
class Span:
    """What servers did in a span of time.

    seconds: how long. servers: how many answered at its end. done: requests. prompts: those whose prompts are counted.
    prompt, output, cached: tokens. running, waiting: requests at its end, all servers together. cache: the share of the
    KV cache in use, of the fullest server.
    """

    seconds: float
    servers: int
    ttft: Histogram = field(default_factory=Histogram)
    gap: Histogram = field(default_factory=Histogram)
    tpot: Histogram = field(default_factory=Histogram)
    e2el: Histogram = field(default_factory=Histogram)
    done: float = 0.0
    prompts: float = 0.0
    prompt: float = 0.0
    output: float = 0.0
    cached: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    cache: float | None = None

    @property
    def begun(self) -> float:
        """Requests whose first token came."""
        return self.ttft.count

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.begun / self.seconds if self.seconds > 0 else 0.0

    @property
    def prompt_tokens(self) -> float | None:
        """Mean tokens of a prompt; ``None`` without a request."""
        return self.prompt / self.prompts if self.prompts > 0 and self.prompt > 0 else None

    @property
    def output_tokens(self) -> float | None:
        """Mean tokens of the answers that ended; ``None`` without one."""
        return self.output / self.done if self.done > 0 and self.output > 0 else None

    @property
    def hits(self) -> float | None:
        """Share of the prompts' tokens that was found in the prefix cache; ``None`` without prompts."""
        return min(self.cached / self.prompt, 1.0) if self.prompt > 0 else None

    @classmethod
    def between(cls, seconds: float, pairs: Sequence[tuple[Counters, Counters]]) -> Span:
        """What each server added from one scrape to the next."""
        found = cls(seconds=seconds, servers=len(pairs))
        for before, after in pairs:
            found = found.plus(_rise(before, after))
        return found

    def plus(self, other: Span) -> Span:
        """Both together: of servers in the same time where ``other`` has no time of its own, else one after another."""
        later = other.seconds > 0
        caches = [one for one in (self.cache, other.cache) if one is not None]
        sums = {one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(Span)
                if one.name in ("done", "prompts", "prompt", "output", "cached")}  # fmt: skip
        return Span(
            seconds=self.seconds + other.seconds,
            servers=other.servers if later else self.servers,
            ttft=self.ttft.plus(other.ttft),
            gap=self.gap.plus(other.gap),
            tpot=self.tpot.plus(other.tpot),
            e2el=self.e2el.plus(other.e2el),
            running=other.running if later else self.running + other.running,
            waiting=other.waiting if later else self.waiting + other.waiting,
            cache=max(caches, default=None),
            **sums,
        )


def _rise(before: Counters, after: Counters) -> Span:
    """What one server added; it has no time of its own."""
    return Span(
        seconds=0.0, servers=1, ttft=after.ttft.since(before.ttft), gap=after.gap.since(before.gap),
        tpot=after.tpot.since(before.tpot), e2el=after.e2el.since(before.e2el),
        done=after.done - before.done, prompts=after.prompts - before.prompts, prompt=after.prompt - before.prompt,
        output=after.output - before.output, cached=after.cached - before.cached, running=after.running,
        waiting=after.waiting, cache=after.cache,
    )  # fmt: skip
