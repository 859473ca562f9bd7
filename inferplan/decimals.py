"""Arrays of numbers as the text that ``repr`` writes of each: the fewest digits that mean it, and the nearest of those.

A number times a power of ten that makes it a whole number of 17 digits and a fraction is two floats, exactly (T. J.
Dekker, "A floating-point technique for extending the available precision", Numer. Math. 18, 1971). So is the distance
up to which decimals mean this float and no other. Of what is near that end, a tie, or a power of two, whose neighbours
are not equally far, ``repr`` itself is asked.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
_LEAST, _MOST = -4, 15
"""Exponents of ten of the numbers that ``repr`` writes without one."""
FEW = 256
"""Numbers for which arrays are slower than ``repr``."""
_SPLIT = 2.0**27 + 1
_DIGITS, _AHEAD, _WIDTH = 17, 6, 24
"""Bytes of a text: a line's end and ``0.000`` before the digits, the digits and the point. Zero bytes are left out."""


def float_texts(values: Floats) -> list[str]:
    """``list(map(repr, values.tolist()))`` of an array with one axis."""
    if values.size < FEW:
        return list(map(repr, values.tolist()))
    common = (values >= _TABLES.starts[0]) & (values < 10.0 ** (_MOST + 1))
    some = np.where(common, values, 3.0)
    row = np.searchsorted(_TABLES.starts, some, "right") - 1
    digits, sure = _shortest(some, _MOST + 1 - _LEAST - row)
    texts = _written(digits, row)
    places = np.flatnonzero(~(sure & common))
    for place, value in zip(places.tolist(), values[places].tolist(), strict=True):
        texts[place] = repr(value)
    return texts


def _shortest(number: Floats, power: Whole) -> tuple[Whole, npt.NDArray[np.bool_]]:
    """The decimals of numbers, times 10**power, as whole numbers of 17 digits; and of which they are sure."""
    ten, ten_high, ten_low = _TABLES.tens.take(power, 1)
    high, low = _split(number)
    product = number * ten
    error = ((high * ten_high - product) + high * ten_low + low * ten_high) + low * ten_low
    below = np.floor(error)
    part = error - below
    whole = product.astype(np.int64) + below.astype(np.int64)
    reach = np.spacing(number) * 0.5 * ten
    digits = whole + (part > 0.5)
    sure = (part != 0.5) & (np.frexp(number)[0] != 0.5)
    for step in (10, 100):
        rest = _parted(whole, step)[1]
        up = rest >= step // 2
        distance = np.where(up, (step - rest) - part, rest + part)
        digits = np.where(distance < reach, whole - rest + up * step, digits)
        sure &= (distance != reach) & (distance != 5)
    return digits, sure


def _split(number: Floats) -> tuple[Floats, Floats]:
    """Two numbers of half the bits that add up to it."""
    turned = number * _SPLIT
    high = turned - (turned - number)
    return high, number - high


def _parted(number: Whole, by: int) -> tuple[Whole, Whole]:
    """``divmod``, which takes longer."""
    quotient = number // by
    return quotient, number - quotient * by


def _written(digits: Whole, row: Whole) -> list[str]:
    """Texts of numbers of 17 digits; row: of :class:`_Tables`, by exponent."""
    upper, lower = _parted(digits, 10**8)
    first, middle = _parted(upper, 10**8)
    groups = [first, *_parted(middle, 10**4), *_parted(lower, 10**4)]
    plain = np.zeros((len(digits), _WIDTH // 4), dtype=np.uint32)
    for place, group in enumerate(groups, 1):
        plain[:, place] = _TABLES.fours[group]
    zeros = _TABLES.zeros[groups[-1]]
    left = np.flatnonzero(zeros == 4)
    for group in groups[-2:0:-1]:
        zeros[left] += _TABLES.zeros[group[left]]
        left = left[group[left] == 0]
    earlier = np.zeros((len(digits), _WIDTH), dtype=np.uint8)  # the same digits one byte before
    earlier.reshape(-1)[:-1] = plain.view(np.uint8).reshape(-1)[1:]
    text = plain.view(np.uint64) & _TABLES.after.take(row * _DIGITS + zeros, 0)
    text |= earlier.view(np.uint64) & _TABLES.before.take(row, 0)
    text |= _TABLES.fixed.take(row, 0)
    bare: bytes = text.tobytes().translate(None, b"\0")
    return bare.decode("ascii").split("\n")[1:]


class _Tables:
    """What is looked up, made when first asked for. Rows are exponents from the least."""

    @cached_property
    def starts(self) -> Floats:
        """The least number of each exponent."""
        return np.array([float(f"1e{exponent}") for exponent in range(_LEAST, _MOST + 1)])

    @cached_property
    def tens(self) -> Floats:
        """Powers of ten from the zeroth, and their two halves: as far as 10**22 they are floats."""
        tens = np.array([float(10**power) for power in range(_MOST - _LEAST + 2)])
        return np.array([tens, *_split(tens)])

    @cached_property
    def fours(self) -> npt.NDArray[np.uint32]:
        """The text of four digits."""
        numbers = np.arange(10_000)[:, None] // [1000, 100, 10, 1] % 10 + ord("0")
        return numbers.astype(np.uint8).view(np.uint32).reshape(-1)

    @cached_property
    def zeros(self) -> Whole:
        """With how many zeros four digits end."""
        counts = [sum(number % 10**count == 0 for count in (1, 2, 3, 4)) for number in range(10_000)]
        return np.array(counts, dtype=np.int64)

    @cached_property
    def fixed(self) -> npt.NDArray[np.uint64]:
        """What is no digit of the number."""
        ahead = (b"0." + b"0" * (-1 - exponent) for exponent in range(_LEAST, 0))
        behind = (b"\0" * (_AHEAD + exponent) + b"." for exponent in range(_MOST + 1))
        return _words([b"\n" + text for text in (*ahead, *behind)])

    @cached_property
    def before(self) -> npt.NDArray[np.uint64]:
        """Ones where digits before the point are, one byte early."""
        counts = [max(exponent + 1, 0) for exponent in range(_LEAST, _MOST + 1)]
        return _words([b"\0" * _AHEAD + b"\xff" * count for count in counts])

    @cached_property
    def after(self) -> npt.NDArray[np.uint64]:
        """The same for digits behind the point, in :data:`_DIGITS` rows each: by zeros at the end, which are left out
        but for one behind a point."""
        found = []
        for exponent in range(_LEAST, _MOST + 1):
            start, least = _AHEAD + 1 + max(exponent + 1, 0), int(exponent >= 0)
            counts = (max(_WIDTH - zeros - start, least) for zeros in range(_DIGITS))
            found += [b"\0" * start + b"\xff" * count for count in counts]
        return _words(found)


def _words(texts: list[bytes]) -> npt.NDArray[np.uint64]:
    """Bytes of numbers, eight at a time."""
    return np.frombuffer(b"".join(text.ljust(_WIDTH, b"\0") for text in texts), dtype=np.uint64).reshape(len(texts), -1)


_TABLES = _Tables()
