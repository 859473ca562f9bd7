"""Which experts tokens reach, and what the busiest of the ranks that hold them gets (docs/formulas/moe.md).

A router is described by how popular its experts are: expert ``e`` is among the k of a token with probability ``p_e``,
``sum(p_e) = k``. Popularity is log-normal, ``p_e ~ exp(skew*z_e)`` with ``z_e`` the normal quantiles and no ``p_e``
above one; ``skew = 0`` is uniform routing. A step waits for its busiest rank, so what counts is the expectation of the
largest of the ranks, not the mean:

    E[max] = sum over x >= 0 of (1 - prod over ranks of P(X_rank <= x))

with binomial ``X_rank`` (:func:`at_most`) of the rank's own mean and variance. Popular experts lie anywhere: the
product is averaged over fixed shuffles. Slots beyond the experts hold copies of the most popular ones, packed as the
load balancers of engines do (:func:`balance_experts`).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from inferplan.affine import dense
from inferplan.units import Array, Num

_TOKENS = np.concatenate([[0.0], 2.0 ** np.arange(-3.0, 22.5, 0.5)])
"""Tokens at which the busiest rank is computed; between them it is a line, beyond the last in proportion."""
_NODES = 48
"""Points of the sum over x."""
_STEPS = 8
"""Steps that are drawn, each with a popularity of its own."""
_DRAWS = 128
"""Ranks that are looked at, over all shuffles."""


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How a router spreads tokens over experts.

    asked: the standard deviation of the logarithm of the experts' popularity, as a user states it. usual: that of
    models for which none was measured. even: every rank gets the mean, as under a perfect balance (an ideal device, and
    sums of work over all ranks). unforeseen: of the skew the share that belongs to the prompts of a step, which no
    balancer of copies knows; many decodes are many texts. in_order: copies are those of the first experts, whatever
    their popularity (:func:`place_in_order`).
    """

    asked: float | None = None
    usual: float = 0.0
    even: bool = False
    unforeseen: float = 0.0
    in_order: bool = False

    def skew_of(self, measured: float | None) -> float:
        """What is asked for, else what was measured of the layer's own experts, else the usual."""
        known = self.asked if self.asked is not None else measured
        return self.usual if known is None else known


UNIFORM = Routing()


def distinct_experts_uniform(experts: int, top_k: float, tokens: Num) -> Num:
    """Distinct experts that ``tokens`` tokens reach under uniform routing: ``E*(1 - (1 - k/E)^T)``."""
    reached: Num = experts * -np.expm1(tokens * np.log1p(-min(top_k / experts, 1.0 - 1e-15)))
    return reached


@lru_cache(maxsize=64)
def popularity(experts: int, top_k: float, skew: float) -> tuple[float, ...]:
    """Probability of each expert to be among the ``top_k`` of a token, the most popular first: they add up to it."""
    if skew == 0.0 or top_k == experts:
        return (top_k / experts,) * experts
    return tuple(float(p) for p in _chances(np.exp(skew * _deviates(experts)), top_k))


def _deviates(experts: int) -> Array:
    """The normal quantiles of so many experts, falling."""
    from statistics import NormalDist  # (takes 4 ms to import, and most models have no experts)

    return np.array([NormalDist().inv_cdf((rank + 0.5) / experts) for rank in reversed(range(experts))])


def _chances(weights: Array, top_k: float) -> Array:
    """Probabilities in proportion to ``weights``, the largest first: none above one, ``top_k`` in all."""
    chance = np.ones(len(weights))
    certain = 0  # experts that every token reaches
    while True:
        chance[certain:] = weights[certain:] * (top_k - certain) / weights[certain:].sum()
        above = int((chance > 1.0 + 1e-12).sum())
        if not above:
            return np.minimum(chance, 1.0)
        chance[: certain + above] = 1.0
        certain += above


def distinct_experts(experts: int, top_k: float, tokens: Num, skew: float = 0.0) -> Num:
    """Distinct experts that ``tokens`` tokens reach: ``sum(1 - (1 - p_e)^T)``."""
    if skew == 0.0:
        return distinct_experts_uniform(experts, top_k, tokens)
    return _read(dense(tokens), _touched_of_all(experts, top_k, skew), flat=True)


@lru_cache(maxsize=64)
def _touched_of_all(experts: int, top_k: float, skew: float) -> Array:
    return _distinct(np.array(popularity(experts, top_k, skew))[None, None, :])[0][:, 0, 0]


def _read(tokens: Num, table: Array, flat: bool) -> Num:
    """A table over :data:`_TOKENS`; beyond its end the last value (``flat``), or in proportion."""
    last = _TOKENS[-1]
    inside = np.interp(np.minimum(tokens, last), _TOKENS, table)
    found: Num = inside if flat else inside * np.maximum(tokens / last, 1.0)
    return found


def at_most(x: Array, mean: Array, spread: Array) -> Array:
    """``P(X <= x)`` of a binomial with a mean and a variance of ``spread`` times it (below one).

    Camp and Paulson's approximation (Biometrika 38, 1951): within 0.01 of a binomial's distribution.
    """
    chance = np.clip(1.0 - spread, 1e-9, 1.0 - 1e-9)
    left = np.maximum(mean / chance - x, 1e-9)  # trials that are no hits
    a, b = 1.0 / (9.0 * left), 1.0 / (9.0 * (x + 1.0))
    ratio = np.cbrt((x + 1.0) * (1.0 - chance) / (chance * left))
    below = _normal(((1.0 - b) * ratio - 1.0 + a) / np.sqrt(a + b * ratio * ratio))
    return np.where(x >= mean / chance - 1e-6, 1.0, below)


def _normal(z: Array) -> Array:
    """The normal distribution function (Abramowitz and Stegun 26.2.17, within 7.5e-8)."""
    t = 1.0 / (1.0 + 0.2316419 * np.abs(z))
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = series * np.exp(-0.5 * z * z) * 0.3989422804014327
    return np.where(z > 0, 1.0 - tail, tail)


def expected_most(mean: Array, spread: Array) -> Array:
    """Expectation of the largest of the ranks, averaged over shuffles: shape (tokens,) of (tokens, shuffles, ranks)."""
    top = mean.max(axis=(1, 2))
    deviation = np.sqrt(np.max(mean * spread, axis=(1, 2)))
    low = np.floor(np.maximum(mean.max(axis=2).min(axis=1) - 6.0 * deviation, 0.0))
    step = np.maximum((top + 7.0 * deviation + 6.0 - low) / _NODES, 1.0)
    total = low.copy()
    for node in range(_NODES):
        x = low + step * (node + 0.5) - 0.5
        inside = np.exp(np.log(np.maximum(at_most(x[:, None, None], mean, spread), 1e-300)).sum(axis=2))
        total += step * (1.0 - inside.mean(axis=1))
    most: Array = np.maximum(total, mean.mean(axis=(1, 2)))
    return most


@dataclass(frozen=True)
class Busiest:
    """The rows and the distinct experts of the busiest of the ranks that hold the experts, by tokens of them all.

    chances: popularity of the slots of each rank, by shuffle: shape (shuffles, ranks, slots of a rank), empty slots
    zero. A step whose experts are read from memory waits for the rank that touches most of them, one bound by
    arithmetic for the rank with most rows: each is an expectation of its own.
    """

    chances: Array

    @cached_property
    def _rows(self) -> Array:
        share = self.chances.sum(axis=2)
        slots = np.count_nonzero(self.chances[0])
        # a token reaches different experts: what one rank gets, another does not
        exclusive = (1.0 - (self.chances**2).sum(axis=2) / share) * slots / max(slots - 1, 1)
        spread = np.clip(exclusive, 1e-6, 1.0 - 1e-6)[None]
        mean = _TOKENS[1:, None, None] * share[None]
        most = expected_most(mean, np.broadcast_to(spread, mean.shape))
        room = np.minimum(np.ceil(self.chances).sum(axis=2).max(), share.sum(axis=1).max())
        most = np.minimum(most, np.maximum(_TOKENS[1:], 1.0) * room)
        return np.concatenate([[0.0], np.maximum(most, np.minimum(_TOKENS[1:], 1.0))])  # one token reaches some rank

    @cached_property
    def _touched(self) -> Array:
        found, variance = _distinct(self.chances)
        spread = np.clip(variance / np.maximum(found, 1e-300), 1e-6, 1.0 - 1e-6)
        most = np.maximum(expected_most(found[1:], spread[1:]), np.minimum(_TOKENS[1:], 1.0))
        held = np.count_nonzero(self.chances, axis=2).max()
        return np.concatenate([[0.0], np.minimum(most, np.minimum(held, self._rows[1:]))])

    def rows(self, tokens: Num) -> Num:
        """Rows of the busiest rank."""
        return _read(dense(tokens), self._rows, flat=False)

    def touched(self, tokens: Num) -> Num:
        """Distinct slots that have work on the rank that has most of them."""
        return _read(dense(tokens), self._touched, flat=True)


def _distinct(chances: Array) -> tuple[Array, Array]:
    """Mean and variance of the slots of each rank that some token reaches, by :data:`_TOKENS`."""
    tokens = _TOKENS[:, None, None]
    mean, variance = [], []
    logarithm = np.log1p(-np.minimum(chances, 1.0 - 1e-15))
    for count in tokens[:, 0, 0]:
        idle = np.exp(count * logarithm)
        mean.append((1.0 - idle).sum(axis=-1))
        variance.append((idle * (1.0 - idle)).sum(axis=-1))
    return np.array(mean), np.array(variance)


@lru_cache(maxsize=256)
def busiest(
    experts: int, top_k: float, ranks: int, redundant: int = 0, skew: float = 0.0, unforeseen: float = 0.0
) -> Busiest:
    """The busiest of ``ranks`` that hold ``experts`` and ``redundant`` copies of the most popular ones.

    unforeseen: of the ``skew`` the share that is the step's own, which the balancer of the copies does not know
    (:func:`unforeseen_chances`).
    """
    if not redundant:
        return place_in_order(experts, top_k, ranks, 0, skew)
    known = np.array(popularity(experts, top_k, skew * (1.0 - unforeseen**2) ** 0.5))
    slots, copies = balance_experts(known, ranks, redundant)
    draws = range(_STEPS) if unforeseen and skew else ()
    own, generator = skew * unforeseen * _deviates(experts), np.random.default_rng(0)
    steps = [unforeseen_chances(known, top_k, generator.permutation(own)) for _ in draws]
    return Busiest(np.array([(step / copies)[slots] for step in steps or [known]]))


@lru_cache(maxsize=256)
def place_in_order(experts: int, top_k: float, ranks: int, redundant: int = 0, skew: float = 0.0) -> Busiest:
    """The busiest of ``ranks`` that hold experts in their order, then those from the first on again, whatever their
    popularity: engines without a balancer. An expert's rows are spread over its copies.

    SGLang with ``--ep-dispatch-algorithm`` and without ``--enable-eplb`` and ``--init-expert-location``:
    ``srt/eplb/expert_location.py``, ``init_trivial`` and ``compute_logical_to_rank_dispatch_physical_map``.
    """
    chances, generator = np.array(popularity(experts, top_k, skew)), np.random.default_rng(0)
    slots = np.arange(experts + redundant) % experts
    copies = np.bincount(slots)
    held = -(-len(slots) // ranks)
    base, more = divmod(len(slots), ranks)
    ends = np.cumsum([base + (rank < more) for rank in range(ranks)])
    shuffles = [] if skew else [chances]
    while len(shuffles) * ranks < _DRAWS and skew:
        shuffles.append(generator.permutation(chances))
    placed = np.zeros((len(shuffles), ranks, held))
    for shuffle, order in zip(placed, shuffles):
        for rank, part in enumerate(np.split((order / copies)[slots], ends[:-1])):
            shuffle[rank, : len(part)] = part
    return Busiest(placed)


def unforeseen_chances(known: Array, top_k: float, deviations: Array) -> Array:
    """Popularity in one step of experts that are ``known`` to be so popular on average.

    deviations: of the logarithm of each expert's popularity in that step.
    """
    weights = known * np.exp(deviations)
    falling = np.argsort(-weights, kind="stable")
    chances = np.empty(len(known))
    chances[falling] = _chances(weights[falling], top_k)
    return chances


def balance_experts(chances: Array, ranks: int, redundant: int) -> tuple[Array, Array]:
    """The expert in each slot of each rank, of shape (ranks, slots of a rank), and the copies of each expert.

    DeepSeek's balancer (github.com/deepseek-ai/EPLB, ``replicate_experts`` and ``balanced_packing``): one copy more of
    the expert that has most work a copy, ``redundant`` times; then each slot, the heaviest first, to the rank with the
    least work that has a free one. vLLM and SGLang run the same.
    """
    queue = [(-chance, 1, expert) for expert, chance in enumerate(chances)]
    heapq.heapify(queue)
    for _ in range(redundant):
        _, count, expert = queue[0]
        heapq.heapreplace(queue, (-chances[expert] / (count + 1), count + 1, expert))
    slots = sorted(((-work, expert) for work, count, expert in queue for _ in range(count)), reverse=True)
    room = len(slots) // ranks
    packed: list[list[int]] = [[] for _ in range(ranks)]
    free = [(0.0, rank) for rank in range(ranks)]
    for chance, expert in slots:
        work, rank = heapq.heappop(free)
        packed[rank].append(expert)
        if len(packed[rank]) < room:
            heapq.heappush(free, (work + chance, rank))
    copies = np.ones(len(chances))
    for _, count, expert in queue:
        copies[expert] = count
    return np.array(packed), copies
