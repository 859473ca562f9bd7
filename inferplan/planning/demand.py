"""What is asked of a service: requests of a length, so many of them, and the latencies that are acceptable."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferplan.errors import UsageError
from inferplan.traffic import Lengths, Requests, Slo


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The load to be served. Exactly one of ``rate``, ``users`` and ``deadline`` says how much of it there is.

    prompt, output: lengths of a request in tokens. cached: leading prompt tokens that are always found in a prefix
    cache. rate: requests a second. users: clients that each have one request at a time. deadline: seconds in which
    ``requests`` of an offline job must be done. trace: requests with arrival times, which the simulation replays.
    """

    prompt: Lengths
    output: Lengths
    cached: int = 0
    rate: float | None = None
    users: int | None = None
    requests: int | None = None
    deadline: float | None = None
    trace: Requests | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("rate", "users", "deadline") if getattr(self, name) is not None]
        if len(given) != 1:
            raise UsageError(
                "a plan needs one kind of demand" + (f", not {' and '.join(given)}" if given else ""),
                hint="--rate 50, or --users 200, or --trace FILE, or --requests 1M --deadline 24h",
            )
        for name in given:
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"--{name} must be more than 0")
        if (self.deadline is None) != (self.requests is None):
            raise UsageError("an offline job needs both --requests and --deadline")
        if self.output.average < 2:
            raise UsageError("a plan needs two output tokens or more", hint="--output 2, or inferplan sweep")
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

    def describe(self) -> str:
        lengths = f"{self.prompt.average:,.0f} tokens in, {self.output.average:,.0f} out"
        if self.deadline is not None:
            return f"{self.requests:,} requests in {self.deadline / 3600:g} h, {lengths}"
        if self.users is not None:
            return f"{self.users:,} users, {lengths}"
        return f"{self.rate:g} requests/s, {lengths}"


def demand_of_trace(trace: Requests) -> Demand:
    """The demand of a trace: its mean rate and its lengths. Raises ``UsageError`` when it has no arrival times."""
    if trace.arrival is None or len(trace) < 2 or float(trace.arrival[-1] - trace.arrival[0]) <= 0:
        raise UsageError("a plan needs a trace with arrival times", hint="--rate with --prompt and --output instead")
    span = float(trace.arrival[-1] - trace.arrival[0])
    return Demand(
        prompt=Lengths(kind="empirical", values=tuple(int(x) for x in trace.prompt)),
        output=Lengths(kind="empirical", values=tuple(int(max(x, 1)) for x in trace.output)),
        rate=(len(trace) - 1) / span,
        trace=trace,
    )


def variance(lengths: Lengths) -> float:
    """The variance of a length distribution, in tokens squared."""
    if lengths.kind == "fixed":
        return 0.0
    if lengths.kind == "empirical":
        return float(np.var(lengths.values))
    if lengths.kind == "uniform":
        return float((lengths.mean - np.floor(lengths.spread * lengths.mean)) ** 2 / 12)
    return (lengths.spread * lengths.mean) ** 2


def tail(percentile: float) -> float:
    """The share of requests that may be slower."""
    return max(1.0 - percentile / 100.0, 1e-6)


def percentile_of(slo: Slo) -> str:
    """``"p95"``."""
    return f"p{np.round(slo.percentile, 3):g}"
