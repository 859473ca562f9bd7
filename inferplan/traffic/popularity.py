"""Which LoRA adapter each request names: drawn by popularity, one for a whole conversation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferplan.errors import UsageError
from inferplan.traffic.conversations import Floats, Ints

MOST_ADAPTERS = 10_000_000


@dataclass(frozen=True, kw_only=True)
class Popularity:
    """``count`` adapters, the i-th most popular with a chance in proportion to ``i**-skew`` (Zipf; 0: all alike)."""

    count: int
    skew: float

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST_ADAPTERS:
            raise UsageError(f"--loras is 1 to {MOST_ADAPTERS:,}, not {self.count:,}")
        if not 0 <= self.skew < float("inf"):
            raise UsageError(f"--lora-skew is 0 or more, not {self.skew:g}")

    @property
    def chances(self) -> Floats:
        """Of each adapter, the most popular first."""
        weights = np.arange(1, self.count + 1, dtype=np.float64) ** -self.skew
        chances: Floats = weights / weights.sum()
        return chances

    def draw(self, count: int, seed: int, follows: Ints | None = None, samples: int = 1) -> Ints:
        """The adapter of each of ``count`` requests, from 0; what ``follows`` an answer, and all samples of a prompt,
        have that of the first."""
        rng = np.random.default_rng((seed, 2))
        drawn = np.searchsorted(np.cumsum(self.chances)[:-1], rng.random(-(-count // samples)), side="right")
        adapters: Ints = np.repeat(drawn, samples)[:count].astype(np.int64)
        for request, before in enumerate(() if follows is None else follows.tolist()):
            if before >= 0:
                adapters[request] = adapters[before]
        return adapters
