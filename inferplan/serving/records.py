"""What happened to each request: plain lists, because event loops read and write single floats."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

NAN = float("nan")
WAITING, FINISHED, REJECTED, TIMED_OUT = 0, 1, 2, 3
"""What became of a request: still in the system (or never sent), finished, refused, given up by its client."""


@dataclass(kw_only=True, eq=False)
class Records:
    """Per request: times in seconds (NaN until they happen), token counts, and what became of it.

    ``hashes``: block hashes of prompts, where the traffic knows them. Inter-token gaps are kept with their weights.
    """

    arrival: list[float]
    prompt: list[int]
    output: list[int]
    hashes: Sequence[Sequence[int]] | None = None
    admitted: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    finish: list[float] = field(default_factory=list)
    status: bytearray = field(default_factory=bytearray)
    preempted: dict[int, int] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    """Prompt tokens found in a prefix cache, by request."""
    refused: dict[str, int] = field(default_factory=dict)
    """Requests that could never run, by reason."""
    gaps: array[float] = field(default_factory=lambda: array("d"))
    gap_weights: array[float] = field(default_factory=lambda: array("d"))

    def __post_init__(self) -> None:
        count = len(self.prompt)
        self.admitted = [NAN] * count
        self.first = [NAN] * count
        self.finish = [NAN] * count
        self.status = bytearray(count)


@dataclass(kw_only=True, eq=False)
class Meter:
    """Sums over the steps of one replica."""

    steps: int = 0
    prompt_steps: int = 0
    busy: float = 0.0
    """Seconds in steps."""
    backlogged: float = 0.0
    """Seconds in steps while requests that had been seen were waiting to be admitted."""
    front_backlogged: float = 0.0
    """Seconds of the front end with requests that waited for it."""
    backlogged_finishes: int = 0
    prompt_tokens: float = 0.0
    """Prompt tokens computed, recomputation included."""
    decode_tokens: float = 0.0
    batch_seconds: float = 0.0
    """Integral of the decode batch over time."""
    kv_seconds: float = 0.0
    """Integral of the share of the cache in use over time."""
    kv_peak: float = 0.0
    preemptions: int = 0
    blocked_by: dict[str, int] = field(default_factory=dict)
    """Plans in which the first waiting request had to wait, by reason."""
    timeline: list[tuple[float, float, int, int, float, int, float]] | None = None
    """Start, duration, steps, decodes, prompt tokens, waiting requests and share of the cache, where it is recorded."""

    def clear(self) -> None:
        """Forget everything, in place: what was counted so far belongs to the warm-up."""
        for entry in fields(self):
            if entry.name == "timeline":
                self.timeline = None if self.timeline is None else []
            else:
                setattr(self, entry.name, {} if entry.name == "blocked_by" else type(getattr(self, entry.name))())
