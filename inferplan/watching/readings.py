"""A server that was read for some minutes as measured rows: each stretch of time is a load and its mean latencies.

The columns are those of `validate` (docs/validate.md). A stretch is an open loop at the rate at which answers began, of
the mean lengths in it; TTFT is the server's own, from a request's arrival there to its first token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from inferplan.measuring.scrapes import Scraped
from inferplan.watching.counters import Counters, Span, read_counters

STRETCHES = 6
"""Stretches of equal length into which what was read is cut."""
_FEWEST = 20
"""Answers that begin, and that end, in a stretch of which means are taken."""
_CACHED = 0.25
"""Share of prompt tokens from the prefix cache above which a stretch is suspect, as of a load of `measure`."""
_ALIKE = 1.25
"""Times the least rate that the most is, up to which all stretches are one load."""


@dataclass(kw_only=True)
class Readings:
    """lines: a row for each stretch that says something. engine: in the catalogue's words. left_out: how many stretches
    say nothing, by reason. alike: whether all are of about the same load."""

    engine: str = ""
    lines: list[dict[str, str]] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    alike: bool = False

    def skip(self, why: str) -> None:
        """Count a stretch that says nothing."""
        self.left_out[why] = self.left_out.get(why, 0) + 1


def readings(scraped: Scraped, lasting: float, facts: Mapping[str, str]) -> Readings:
    """The rows of a server that was to be read for ``lasting`` seconds; facts: what they say of what runs there.

    Raises ``InputFileError`` for metrics that do not say what is needed.
    """
    found, rates = Readings(), list[float]()
    where = f"{scraped.address.root}/metrics"
    for stretch in _stretches(scraped, lasting / STRETCHES):
        ends = _counted([text for _, text in stretch], where)
        if ends is None:
            found.skip("stretches in which a counter fell or the metrics were cut: the server restarted")
            continue
        found.engine = ends[1].engine
        span = Span.between(stretch[-1][0] - stretch[0][0], [ends])
        cells = _cells(span)
        if cells is None:
            found.skip(f"stretches in which fewer than {_FEWEST} answers began or ended")
            continue
        rates.append(span.rate)
        found.lines.append({**facts, **cells})
    found.alike = bool(rates) and max(rates) <= _ALIKE * min(rates)
    return found


def _stretches(scraped: Scraped, each: float) -> Iterator[Sequence[tuple[float, str]]]:
    """Scrapes with their times, of stretches of ``each`` seconds; the last of one is the first of the next."""
    pairs = list(zip(scraped.at, scraped.texts))
    number = [int(at / each + 1e-9) for at in scraped.at]
    for first, last in pairwise([0, *(n for n in range(1, len(pairs)) if number[n] > number[n - 1])]):
        yield pairs[first : last + 1]


def _counted(texts: Sequence[str], where: str) -> tuple[Counters, Counters] | None:
    """The counters at both ends of a stretch; ``None`` where the server did not count on in between."""
    counted = [read_counters(text, where) for text in texts]
    return None if any(after.falls(before) for before, after in pairwise(counted)) else (counted[0], counted[-1])


def _cells(span: Span) -> dict[str, str] | None:
    """The load and the latencies of a stretch; ``None`` where too little happened in it."""
    ttft, tpot = span.ttft.mean, span.tpot.mean if span.tpot.count else span.gap.mean
    prompt, output = span.prompt_tokens, span.output_tokens
    if min(span.begun, span.done) < _FEWEST or not (ttft and tpot and prompt and output):
        return None
    cached = span.hits or 0.0
    return {
        "isl": f"{prompt:.6g}",
        "osl": f"{max(output, 1.0):.6g}",
        "rate_per_s": f"{span.rate:.6g}",
        "ttft_mean_ms": f"{ttft * 1e3:.6g}",
        "tpot_mean_ms": f"{tpot * 1e3:.6g}",
        "suspect": f"{cached:.0%} of prompt tokens came from a cache" if cached > _CACHED else "",
    }
