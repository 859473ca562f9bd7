"""Latencies of a load as other clients define them, from the times of the same replies.

``s``: when a request was sent; ``t1``, ``t2``, ``tn``: its first, second and last piece of text; ``end``: when the
stream was over; ``n``: its output tokens. Read in November 2026 in vllm-project/vllm (``vllm/benchmarks/serve.py``),
vllm-project/guidellm (``schemas/base/request_stats.py``, ``statistics.py``), ai-dynamo/aiperf
(``src/aiperf/metrics/types``) and triton-inference-server/perf_analyzer (``llm_profile_data_parser.py``: genai-perf).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from inferplan.measuring.client import Reply

Tool = Literal["vllm", "guidellm", "aiperf", "genai-perf"]
PERCENTILES = {"median": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}
Values = list[tuple[float, float]]
"""Seconds with their weights."""


class Definition(NamedTuple):
    """A latency of a client: its name there, in words how it is computed, and its values of replies."""

    name: str
    formula: str
    values: Callable[[Sequence[Reply]], Values]


def _first(replies: Sequence[Reply]) -> Values:
    return [(one.ttft, 1.0) for one in replies]


def _further(weighted: bool) -> Callable[[Sequence[Reply]], Values]:
    def values(replies: Sequence[Reply]) -> Values:
        return [
            ((one.times[-1] - one.times[0]) / (n - 1), n - 1.0 if weighted else 1.0)
            for one in replies
            if (n := one.output or 0) > 1
        ]

    return values


def _gaps(replies: Sequence[Reply]) -> Values:
    return [(gap, 1.0) for one in replies for gap in one.gaps]


def _each(replies: Sequence[Reply]) -> Values:
    return [(one.e2el / n, float(n)) for one in replies if (n := one.output or 0)]


def _second(replies: Sequence[Reply]) -> Values:
    return [(one.gaps[0], 1.0) for one in replies if one.gaps]


def _whole(replies: Sequence[Reply]) -> Values:
    return [(one.e2el, 1.0) for one in replies]


def _stream(replies: Sequence[Reply]) -> Values:
    return [(one.ended - one.sent, 1.0) for one in replies]


_A_TOKEN = "(tn - t1)/(n - 1)"
DEFINITIONS: dict[Tool, tuple[Definition, ...]] = {
    "vllm": (
        Definition("ttft", "t1 - s", _first),
        Definition("tpot", _A_TOKEN, _further(False)),
        Definition("itl", "gaps between pieces, of all replies", _gaps),
        Definition("e2el", "tn - s", _whole),
    ),
    "guidellm": (
        Definition("time_to_first_token", "t1 - s", _first),
        Definition("time_per_output_token", "(tn - s)/n, weight n", _each),
        Definition("inter_token_latency", f"{_A_TOKEN}, weight n - 1", _further(True)),
        Definition("request_latency", "end - s", _stream),
    ),
    "aiperf": (
        Definition("time_to_first_token", "t1 - s", _first),
        Definition("time_to_second_token", "t2 - t1", _second),
        Definition("inter_token_latency", _A_TOKEN, _further(False)),
        Definition("inter_chunk_latency", "gaps between pieces, of all replies", _gaps),
        Definition("request_latency", "tn - s", _whole),
    ),
    "genai-perf": (
        Definition("time_to_first_token", "t1 - s", _first),
        Definition("inter_token_latency", _A_TOKEN, _further(False)),
        Definition("request_latency", "tn - s", _whole),
    ),
}
"""By client, the latencies that it prints."""


def statistics(tool: Tool, values: Values) -> dict[str, float]:
    """Mean and percentiles as the client takes them; empty without values."""
    if not values:
        return {}
    seconds, weights = (np.array(column) for column in zip(*sorted(values)))
    found = {"mean": float(np.average(seconds, weights=weights))}
    shares = np.cumsum(weights / weights.sum())
    for name, point in PERCENTILES.items():
        if tool == "guidellm":
            place = min(int(np.searchsorted(shares, point / 100)), len(seconds) - 1)  # shares may end below 1
            found[name] = float(seconds[place])
        else:
            found[name] = float(np.percentile(seconds, point))
    return found
