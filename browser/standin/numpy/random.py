"""numpy's ``default_rng``: the same stream, number by number, for the distributions that are drawn from.

Seeds and PCG64 as numpy has them (O'Neill, PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms,
2014); exponential and normal deviates by ziggurats (Marsaglia and Tsang, Journal of Statistical Software 5(8), 2000);
gamma deviates by Marsaglia and Tsang (ACM Transactions on Mathematical Software 26, 363, 2000). numpy's table for
normal deviates is rounded otherwise: they agree to 1e-12.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import cache
from itertools import cycle

from .arrays import _SCALARS, FLOAT, INT, asarray, ndarray

_WORD, _LONG, _WIDE = (1 << 32) - 1, (1 << 64) - 1, (1 << 128) - 1
_STEP = (2549297995355413924 << 64) + 4865540595714422341
_LEVELS = 256


def _words(seed):
    """The 32-bit words of a seed, lowest first."""
    if isinstance(seed, (tuple, list)):
        return [word for one in seed for word in _words(one)]
    seed, found = int(seed), []
    while seed or not found:
        found.append(seed & _WORD)
        seed >>= 32
    return found


def _state(seed, count):
    """numpy's ``SeedSequence``: so many 64-bit words of a seed."""
    given, constant = _words(seed), 0x43B0D7E5

    def mixed(value):
        nonlocal constant
        value ^= constant
        constant = constant * 0x931E8875 & _WORD
        value = value * constant & _WORD
        return value ^ value >> 16

    def both(one, other):
        made = (0xCA01F9DD * one - 0x4973F715 * other) & _WORD
        return made ^ made >> 16

    pool = [mixed(given[place] if place < len(given) else 0) for place in range(4)]
    for source in range(4):
        for place in range(4):
            if place != source:
                pool[place] = both(pool[place], mixed(pool[source]))
    for word in given[4:]:
        for place in range(4):
            pool[place] = both(pool[place], mixed(word))
    constant, found = 0x8B51F9DD, []
    for _, word in zip(range(2 * count), cycle(pool)):
        turned = word ^ constant
        constant = constant * 0x58F38DED & _WORD
        turned = turned * constant & _WORD
        found.append(turned ^ turned >> 16)
    return [low | high << 32 for low, high in zip(found[::2], found[1::2])]


@cache
def _ziggurat(edge, bits, height, area):
    """Widths of the layers over ``2**bits``, the part of each that lies under the next, and their heights."""
    with localcontext() as context:
        context.prec = 40
        edge, scale = Decimal(edge), Decimal(1 << bits)
        area = area(edge)
        bottom = area / height(edge)
        widths, inside, heights = [0.0] * _LEVELS, [0] * _LEVELS, [1.0] * _LEVELS
        widths[0], inside[0] = float(bottom / scale), int(edge / bottom * scale)
        widths[-1], heights[-1] = float(edge / scale), float(height(edge))
        width = above = edge
        for layer in range(_LEVELS - 2, 0, -1):
            width = _inverse(height, area / width + height(width))
            inside[layer + 1], above = int(width / above * scale), width
            widths[layer], heights[layer] = float(width / scale), float(height(width))
    return widths, inside, heights


def _exponential(x):
    return (-x).exp()


def _normal(x):
    return (-x * x / 2).exp()


def _inverse(height, value):
    return -value.ln() if height is _exponential else (-2 * value.ln()).sqrt()


def _exponential_area(edge):
    return (1 + edge) * _exponential(edge)


def _normal_area(edge):
    tail = Decimal(0)  # the continued fraction of what lies beyond the edge
    for step in range(400, 0, -1):
        tail = step / (edge + tail)
    return edge * _normal(edge) + _normal(edge) / (edge + tail)


_EXPONENTIAL_EDGE, _NORMAL_EDGE = "7.6971174701310497140446280481", "3.6541528853610087963519472518"


class Generator:
    """Draws from one stream; the methods are numpy's."""

    def __init__(self, seed=None):
        if seed is None:
            seed = 0  # nothing here is drawn without a seed
        high, low, first, second = _state(seed, 4)
        self._step = ((first << 64 | second) << 1 | 1) & _WIDE
        self._at = ((self._step + (high << 64 | low)) * _STEP + self._step) & _WIDE
        self._half = None

    def _next(self):
        self._at = at = (self._at * _STEP + self._step) & _WIDE
        value, turn = (at >> 64) ^ (at & _LONG), at >> 122
        return (value >> turn | value << (64 - turn)) & _LONG

    def _next_half(self):
        if self._half is not None:
            value, self._half = self._half, None
            return value
        value = self._next()
        self._half = value >> 32
        return value & _WORD

    def _uniform(self):
        return (self._next() >> 11) * (1.0 / 9007199254740992.0)

    def _below(self, count):
        """A whole number from 0 up to one less than ``count`` (Lemire, ACM TOMACS 29(1), 2019)."""
        if count <= 1:
            return 0
        if count > _WORD + 1:
            raise NotImplementedError("integers over more than 32 bits in the browser")
        if count == _WORD + 1:
            return self._next_half()
        found = self._next_half() * count
        if found & _WORD < count:
            threshold = ((_WORD + 1) - count) % count
            while found & _WORD < threshold:
                found = self._next_half() * count
        return found >> 32

    def _standard_exponential(self):
        widths, inside, heights = _ziggurat(_EXPONENTIAL_EDGE, 53, _exponential, _exponential_area)
        while True:
            drawn = self._next() >> 3
            layer, drawn = drawn & 0xFF, drawn >> 8
            x = drawn * widths[layer]
            if drawn < inside[layer]:
                return x
            if layer == 0:
                return float(_EXPONENTIAL_EDGE) - math.log1p(-self._uniform())
            if (heights[layer - 1] - heights[layer]) * self._uniform() + heights[layer] < math.exp(-x):
                return x

    def _standard_normal(self):
        widths, inside, heights = _ziggurat(_NORMAL_EDGE, 52, _normal, _normal_area)
        while True:
            drawn = self._next()
            layer, drawn = drawn & 0xFF, drawn >> 8
            negative, drawn = drawn & 1, drawn >> 1 & 0x000FFFFFFFFFFFFF
            x = -drawn * widths[layer] if negative else drawn * widths[layer]
            if drawn < inside[layer]:
                return x
            if layer == 0:
                edge = float(_NORMAL_EDGE)
                while True:
                    beyond, other = -math.log1p(-self._uniform()) / edge, -math.log1p(-self._uniform())
                    if other + other > beyond * beyond:
                        return -(edge + beyond) if drawn >> 8 & 1 else edge + beyond
            if (heights[layer - 1] - heights[layer]) * self._uniform() + heights[layer] < math.exp(-0.5 * x * x):
                return x

    def _standard_gamma(self, shape):
        if shape == 1.0:
            return self._standard_exponential()
        if shape == 0.0:
            return 0.0
        if shape < 1.0:
            while True:
                u, v = self._uniform(), self._standard_exponential()
                if u <= 1.0 - shape:
                    x = math.pow(u, 1.0 / shape)
                    if x <= v:
                        return x
                else:
                    y = -math.log((1 - u) / shape)
                    x = math.pow(1.0 - shape + shape * y, 1.0 / shape)
                    if x <= v + y:
                        return x
        b = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9 * b)
        while True:
            v = 0.0
            while v <= 0.0:
                x = self._standard_normal()
                v = 1.0 + c * x
            v, u = v * v * v, self._uniform()
            if u < 1.0 - 0.0331 * (x * x) * (x * x) or math.log(u) < 0.5 * x * x + b * (1.0 - v + math.log(v)):
                return b * v

    def random(self, size=None):
        return _drawn(self._uniform, size)

    def exponential(self, scale=1.0, size=None):
        return _drawn(lambda: float(scale) * self._standard_exponential(), size)

    def normal(self, loc=0.0, scale=1.0, size=None):
        return _drawn(lambda: float(loc) + float(scale) * self._standard_normal(), size)

    def lognormal(self, mean=0.0, sigma=1.0, size=None):
        return _drawn(lambda: math.exp(float(mean) + float(sigma) * self._standard_normal()), size)

    def gamma(self, shape, scale=1.0, size=None):
        return _drawn(lambda: float(scale) * self._standard_gamma(float(shape)), size)

    def integers(self, low, high=None, size=None):
        low, high = (0, low) if high is None else (low, high)
        if int(high) <= int(low):
            raise ValueError("low >= high")
        return _drawn(lambda: int(low) + self._below(int(high) - int(low)), size, INT)

    def choice(self, among, size=None, p=None):
        pool = range(int(among)) if type(among) in _SCALARS else asarray(among)
        if p is None:
            places = self.integers(0, len(pool), size)
        else:
            bounds = asarray(p).cumsum()
            places = (bounds / bounds[-1]).searchsorted(self.random(size), side="right")
        return places if isinstance(pool, range) else pool[places]

    def permutation(self, given):
        among = list(range(int(given))) if type(given) in _SCALARS else list(asarray(given).data)
        for place in range(len(among) - 1, 0, -1):
            other, mask = place + 1, (1 << place.bit_length()) - 1
            while other > place:
                other = self._next_half() & mask
            among[place], among[other] = among[other], among[place]
        return ndarray(among, (len(among),), INT if type(given) in _SCALARS else asarray(given).dtype)


def _drawn(draw, size, kind=FLOAT):
    if size is None:
        return kind.scalar(draw())
    shape = tuple(map(int, size)) if isinstance(size, (tuple, list)) else (int(size),)
    return ndarray([draw() for _ in range(math.prod(shape))], shape, kind)


def default_rng(seed=None):
    return seed if isinstance(seed, Generator) else Generator(seed)
