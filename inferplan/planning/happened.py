"""What a log says became of its requests: replicas that took them, latencies that were measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from inferplan.planning.paid import Paid
from inferplan.serving.class_results import percentile_with_lost
from inferplan.traffic.requests import Slo
from inferplan.traffic.traces import Recorded
from inferplan.units import Array, BoolArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Happened(Paid):
    """What happened in a span, as far as the log says: an answer that never came took for ever. ran: seconds, and the
    replicas that took requests from then on; none where nobody says so. log: of the span alone.
    """

    log: Recorded
    ran: tuple[tuple[float, int], ...]
    slo: Slo

    @property
    def known(self) -> bool:
        """Whether the log says anything of it."""
        return bool(self.ran or self.measured)

    @cached_property
    def paid(self) -> tuple[Array, Array]:
        """The replicas that took requests."""
        there = [(seconds, count) for seconds, count in self.ran if seconds < self.span]
        return np.array([*(seconds for seconds, _ in there), self.span]), np.array([count for _, count in there])

    @cached_property
    def measured(self) -> dict[str, Array]:
        """Seconds of ``ttft``, ``e2el`` and ``tpot`` by request, as far as they were measured. An answer of
        one token has no further token to be late with, whatever its stream took to end."""
        found = dict(self.log.measured)
        if {"ttft", "e2el"} <= found.keys():
            with np.errstate(invalid="ignore"):  # of an answer that never came
                rest = found["e2el"] - found["ttft"]
            further = self.log.requests.output - 1
            found["tpot"] = np.where(np.isnan(rest), np.inf, np.where(further, rest, 0.0) / np.maximum(further, 1))
        return found

    def percentile(self, name: str) -> float | None:
        """A latency at the percentile of the limits, of ``tpot`` over the answers of several tokens; ``None`` where it
        is not known or infinite."""
        if name not in self.measured:
            return None
        values = self.measured[name]
        if name == "tpot":
            values = values[self.log.requests.output > 1]
        found = percentile_with_lost(values, self.slo.percentile)
        return found if np.isfinite(found) else None

    @cached_property
    def late(self) -> BoolArray | None:
        """Which requests were over a limit; ``None`` where a latency with a limit was not measured."""
        limits = self.slo.limits
        if not limits.keys() <= self.measured.keys():
            return None
        late = np.zeros(len(self.log.requests), dtype=bool)
        for name, limit in limits.items():
            late |= self.measured[name] > limit
        return late
