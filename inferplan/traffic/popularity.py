"""Which LoRA adapter each request names: drawn by popularity, one for a whole conversation; how many different ones so
many requests name, and how often one of a few slots holds the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from inferplan.errors import UsageError
from inferplan.fields import Quantity, Real, Topic, Whole, ask, need
from inferplan.traffic.conversations import Floats, Ints
from inferplan.units import Num

MOST_ADAPTERS = 10_000_000
_SINGLY = 4096
"""Adapters that are counted one by one; less popular ones in groups of ranks 1 % apart, each at its mean chance."""
_DENSE, _MOST_REQUESTS = 256, 1 << 20
"""Numbers of requests that are tabulated one by one, and the most; between these they are 1 % apart."""


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

    def describe(self) -> str:
        """In words: ``"100 adapters of popularity rank^-1"``, ``"100 adapters, all asked for alike"``."""
        spread = f" of popularity rank^-{self.skew:g}" if self.skew else ", all asked for alike"
        return f"{self.count:,} adapters{spread}"

    def different(self, requests: Num) -> Num:
        """How many different adapters so many requests name on average: ``sum(1 - (1 - p_i)**n)``.

        requests: any shape; between whole numbers a line, as of a mix of both. Tabulated (:data:`_DENSE`), off by less
        than 1e-4 of the value.
        """
        counts, found = self._different
        named: Num = np.interp(requests, counts, found)
        return named

    def missed(self, slots: int) -> float:
        """The share of requests whose adapter is in none of so many slots; the least recently used one is replaced.

        ``sum(p_i (1 - p_i)**t)`` with ``t`` such that ``t`` requests name as many different ones as there are slots.

        That is Fagin 1977 (J. Computer and System Sciences 14, 222, independent references); with an exponential for
        the power it is the approximation of Che, Tung and Wang 2002 (IEEE JSAC 20, 1305). 0 where there is a slot for
        each; exact for one slot, ``1 - sum(p_i**2)``.
        """
        if slots >= self.count:
            return 0.0
        counts, found = self._different
        window = float(np.interp(slots, found, counts))
        chance, number = self._grouped
        return float(np.sum(number * chance * (1.0 - chance) ** window))

    @cached_property
    def few(self) -> tuple[Floats, Floats]:
        """Chances, and how many adapters have each: those of the first ranks singly, of others in wide groups."""
        return self._groups(64, 1.1)

    @cached_property
    def _grouped(self) -> tuple[Floats, Floats]:
        """The same in narrow groups."""
        return self._groups(_SINGLY, 1.01)

    def _groups(self, singly: int, apart: float) -> tuple[Floats, Floats]:
        """Chances, and how many adapters have each: ``singly`` many, then in groups of ranks a factor ``apart``."""
        steps = np.arange(max(np.log(self.count / singly) / np.log(apart), 0.0))
        edges = np.concatenate([np.arange(min(self.count, singly)), np.rint(singly * apart**steps), [self.count]])
        edges = np.unique(edges[edges <= self.count]).astype(np.int64)
        whole = np.append(0.0, np.cumsum(self.chances))
        number = np.diff(edges).astype(np.float64)
        return np.diff(whole[edges]) / number, number

    @cached_property
    def _different(self) -> tuple[Floats, Floats]:
        """Numbers of requests, and how many different adapters they name."""
        chance, number = self._grouped
        steps = round(np.log(_MOST_REQUESTS / _DENSE) * 100)
        counts = np.unique(np.concatenate([np.arange(_DENSE), np.rint(np.geomspace(_DENSE, _MOST_REQUESTS, steps))]))
        return counts, np.array([float(np.sum(number * (1.0 - (1.0 - chance) ** count))) for count in counts])

    def draw(self, count: int, seed: int, follows: Ints | None = None, samples: int = 1) -> Ints:
        """The adapter of each of ``count`` requests, from 0; what ``follows`` an answer, and all samples of a prompt,
        have that of the first."""
        rng = np.random.default_rng((seed, 5))  # of nothing else: classes have 2, sessions 3 and 4
        drawn = np.searchsorted(np.cumsum(self.chances)[:-1], rng.random(-(-count // samples)), side="right")
        adapters: Ints = np.repeat(drawn, samples)[:count].astype(np.int64)
        for request, before in enumerate(() if follows is None else follows.tolist()):
            if before >= 0:
                adapters[request] = adapters[before]
        return adapters


@dataclass(frozen=True, kw_only=True)
class AdaptersNamed:
    """The adapters that requests name, as they are asked for. bandwidth: bytes a second from the host to one device;
    ``None`` for its host link on file."""

    topic: ClassVar = Topic(
        "adapters",
        "requests name none",
        "--loras 100 --lora-skew 1",
    )
    count: int = field(
        metadata=need(
            "--loras", Whole(), "Number of LoRA adapters that requests name, with --lora-rank or --lora-folder."
        )
    )
    skew: float = ask(
        "--lora-skew",
        Real(),
        "The i-th most popular adapter has a share of i^-SKEW (Zipf) [0: all alike, of which most must be loaded].",
        0.0,
    )
    bandwidth: float | None = ask(
        "--lora-bandwidth",
        Quantity("bytes/s", above=True),
        "Bandwidth from the host to one device, to load adapters [on file].",
        None,
    )

    @property
    def popularity(self) -> Popularity:
        return Popularity(count=self.count, skew=self.skew)
