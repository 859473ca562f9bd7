"""Plain loops that count floating-point operations, for what torch does not count."""

from __future__ import annotations

from itertools import combinations
from math import prod


class Counter:
    """How many operations its arrays have done."""

    def __init__(self) -> None:
        self.flop = 0

    def array(self, *shape: int) -> Counted:
        return Counted(self, shape)


class Counted:
    """A shape that counts: each pointwise operation costs one for every element of its result."""

    def __init__(self, counter: Counter, shape: tuple[int, ...]) -> None:
        self.counter, self.shape = counter, shape

    def _result(self, *others: object) -> Counted:
        shape = self.shape
        for other in others:
            if isinstance(other, Counted):
                shape = _broadcast(shape, other.shape)
        self.counter.flop += prod(shape)
        return Counted(self.counter, shape)

    def __add__(self, other: object) -> Counted:
        return self._result(other)

    __sub__ = __mul__ = __truediv__ = __radd__ = __rmul__ = __rsub__ = __rtruediv__ = __add__

    def exp(self) -> Counted:
        return self._result()

    sqrt = square = exp

    def maximum(self, other: Counted) -> Counted:
        return self._result(other)

    def sum(self, axis: int) -> Counted:
        """One addition for every element that goes in."""
        self.counter.flop += prod(self.shape)
        return Counted(self.counter, tuple(n for i, n in enumerate(self.shape) if i != axis % len(self.shape)))

    def new(self, *shape: int) -> Counted:
        """The same elements in another shape, for nothing."""
        assert prod(shape) == prod(self.shape)
        return Counted(self.counter, shape)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    size = max(len(a), len(b))
    a, b = (1,) * (size - len(a)) + a, (1,) * (size - len(b)) + b
    assert all(x == y or 1 in (x, y) for x, y in zip(a, b, strict=True))
    return tuple(max(x, y) for x, y in zip(a, b, strict=True))


def norm(rows: int, width: int, style: str) -> int:
    """A norm element by element; what is done once a row is not counted."""
    count = 0
    for _ in range(rows):
        for _ in range(width):
            if style.startswith("layer"):
                count += 2  # mean: add; centre: subtract
            count += 2  # square, add
            count += 1  # times the reciprocal root
            if style.startswith("layer"):
                count += 2  # weight, bias (a norm without one of them is charged alike)
            else:
                count += 1  # weight
    return count


def pointwise(elements: int, flops: float) -> float:
    count = 0.0
    for _ in range(elements):
        count += flops
    return count


def mamba1_step(inner: int, state: int) -> int:
    """One token of the selective scan: ``h = exp(dt A) h + (dt x) B``, ``y = C h + D x``."""
    counter = Counter()
    a, h = counter.array(inner, state), counter.array(inner, state)
    dt, x, d = (counter.array(inner, 1) for _ in range(3))
    b, c = counter.array(1, state), counter.array(1, state)
    h = (dt * a).exp() * h + (dt * x) * b
    y = (h * c).sum(1).new(inner, 1)
    _ = y + d * x
    return counter.flop


def mamba2_step(heads: int, width: int, state: int) -> int:
    """One token of the state space with one decay a head; the decay itself (2 a head) is left out."""
    counter = Counter()
    h = counter.array(heads, width, state)
    decay, dt = counter.array(heads, 1, 1), counter.array(heads, 1, 1)
    x, d = counter.array(heads, width, 1), counter.array(heads, 1, 1)
    b, c = counter.array(1, 1, state), counter.array(1, 1, state)
    h = decay * h + (dt * x) * b
    y = (h * c).sum(2).new(heads, width, 1)
    _ = y + d * x
    return counter.flop


def delta_step(heads: int, key: int, value: int) -> int:
    """One token of the gated delta rule; the decay itself (a few a head) is left out."""
    counter = Counter()
    s = counter.array(heads, key, value)
    decay, beta = counter.array(heads, 1, 1), counter.array(heads, 1, 1)
    k, q = counter.array(heads, key, 1), counter.array(heads, key, 1)
    v = counter.array(heads, 1, value)
    s = decay * s
    known = (s * k).sum(1).new(heads, 1, value)
    s = s + k * ((v - known) * beta)
    (s * q).sum(1)
    return counter.flop


def lightning_step(rows: int, columns: int) -> int:
    """One token of linear attention with a fixed decay."""
    counter = Counter()
    s = counter.array(rows, columns)
    decay, k, q, v = counter.array(1, 1), counter.array(rows, 1), counter.array(rows, 1), counter.array(1, columns)
    s = decay * s + k * v
    (s * q).sum(0)
    return counter.flop


def rwkv4_step(channels: int) -> int:
    """One token of wkv in its stable form (2305.13048, the RNN cell)."""
    counter = Counter()
    k, v, u, w, num, den, top = (counter.array(channels) for _ in range(7))
    bonus = u + k
    high = top.maximum(bonus)
    old, now = (top - high).exp(), (bonus - high).exp()
    _ = (old * num + now * v) / (old * den + now)
    faded = top + w
    high = faded.maximum(k)
    old, now = (faded - high).exp(), (k - high).exp()
    num = old * num + now * v
    den = old * den + now
    return counter.flop


def rwkv7_step(heads: int, width: int) -> int:
    """One token of 2503.14456's recurrence: the state decays, forgets along one key and learns along another."""
    counter = Counter()
    s = counter.array(heads, width, width)
    w, k, forgotten, rate, r = (counter.array(heads, 1, width) for _ in range(5))
    v = counter.array(heads, width, 1)
    known = (s * forgotten).sum(2).new(heads, width, 1)
    s = w * s + known * rate + v * k
    (s * r).sum(2)
    return counter.flop


def rglru_step(channels: int) -> int:
    """One token of the real-gated linear recurrent unit; signs and ``8 softplus(L)`` are constants."""
    counter = Counter()
    h, x, r, i, c = (counter.array(channels) for _ in range(5))
    r = 1 / (r.exp() + 1)
    i = 1 / (i.exp() + 1)
    a = (c * r).exp()
    h = a * h + (1 - a.square()).sqrt() * (i * x)
    return counter.flop


def wire_bytes(pattern: str, message: int, group: int) -> float:
    """Bytes that rank 0 sends, message by message, on a ring."""
    sent, shard = 0.0, message / group
    if pattern == "send":
        return float(message)
    for phase in ("reduce_scatter", "all_gather"):
        if pattern in ("all_reduce", phase):
            for _ in range(group - 1):
                sent += shard
    if pattern == "all_to_all":
        for _ in range(1, group):
            sent += shard
    return sent


def fft(n: int) -> int:
    """Radix-2 Cooley-Tukey on ``n`` complex points: a butterfly is one complex product (6) and two sums (4)."""
    return 0 if n == 1 else 2 * fft(n // 2) + n // 2 * 10


def fft_convolution(n: int) -> float:
    """Two transforms of ``n`` real points (half the work of complex ones), ``n/2`` products, and one back."""
    return 3 * fft(n) / 2 + n // 2 * 6


def ranks_of_a_token(experts: int, top_k: int, parts: int, groups: int, top_groups: int, each_expert: bool) -> float:
    """The mean number of parts (or of experts) that a token goes to, over every way to choose its experts."""
    each = experts // groups
    counts = []
    for chosen in combinations(range(groups), top_groups):
        allowed = [expert for expert in range(experts) if expert // each in chosen]
        for own in combinations(allowed, top_k):
            counts.append(len(own) if each_expert else len({expert * parts // experts for expert in own}))
    return sum(counts) / len(counts)
