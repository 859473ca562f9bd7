"""Numbers of a grid that are sums of a few arrays, each times a factor, multiplied out when they must be.

Most work of a step is such a number of its tokens: FLOP, bytes and seconds of an operator are sums and multiples of
them, so that a grid is gone through once for all operators in place of several times for each.

>>> import numpy as np
>>> from inferplan.affine import affine, dense
>>> tokens = affine(np.arange(1.0, 10_001.0))
>>> seconds = tokens * 2e-9 + 1e-6 + tokens * 3e-9
>>> type(seconds).__name__, float(dense(seconds)[99])
('Affine', 1.5e-06)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from inferplan.units import Array, Num

FEWEST = 512
"""Points of the smallest array that is worth it."""


class Affine(NDArrayOperatorsMixin):
    """``constant + sum(factor*array)``, of arrays that are never written to.

    Whatever is neither a sum nor a multiple of it is done on the array that it stands for.
    """

    __slots__ = ("constant", "factors")

    def __init__(self, factors: dict[int, tuple[Array, float]], constant: float = 0.0) -> None:
        self.factors, self.constant = factors, constant
        """factors: by the ``id`` of each array."""

    @property
    def value(self) -> Array:
        """The array that it stands for; not to be written to."""
        if len(self.factors) == 1 and self.constant == 0.0:
            ((array, factor),) = self.factors.values()
            if factor == 1.0:
                return array
        return self.new()

    def new(self) -> Array:
        """The same in memory of its own."""
        (first, times), *others = self.factors.values()
        made: Array = first * times
        part: Array | None = None
        for array, factor in others:
            if array.shape == made.shape:
                part = np.multiply(array, factor, out=part)
                made += part
            else:
                made, part = made + array * factor, None
        if self.constant:
            made += self.constant
        return made

    @property
    def shape(self) -> tuple[int, ...]:
        return np.broadcast_shapes(*(array.shape for array, _ in self.factors.values()))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: Any) -> Any:
        return self.value[where]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.value, dtype=dtype) if copy else np.asarray(self.value, dtype=dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "__call__" and ufunc in _LAZY and not options:
            return _LAZY[ufunc](*inputs)
        if any(type(out) is Affine for out in options.get("out", ())):
            return NotImplemented  # no memory to write to: numpy says so in a TypeError
        return getattr(ufunc, method)(*map(_plain, inputs), **options)

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, (float, int)):
            return np.multiply(self.value, _plain(other))
        factors = {key: (array, factor * other) for key, (array, factor) in self.factors.items()}
        return Affine(factors, self.constant * other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        if not isinstance(other, (float, int)):
            return np.true_divide(self.value, _plain(other))
        factors = {key: (array, factor / other) for key, (array, factor) in self.factors.items()}
        return Affine(factors, self.constant / other)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, (float, int)):
            return Affine(self.factors, self.constant + other)
        if type(other) is not Affine:
            return np.add(self.value, other)
        factors = dict(self.factors)
        for key, (array, factor) in other.factors.items():
            factors[key] = (array, factor + factors[key][1] if key in factors else factor)
        return Affine(factors, self.constant + other.constant)

    __radd__ = __add__

    def _as_without_place(self, other: Any) -> Any:
        """``x += y`` is ``x = x + y``: nothing is written in place, where others may hold the same line."""
        return NotImplemented

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = __ipow__ = _as_without_place
    __imatmul__ = __ilshift__ = __irshift__ = __iand__ = __ior__ = __ixor__ = _as_without_place


def _plain(value: Any) -> Any:
    return value.value if type(value) is Affine else value


def _of(ufunc: Any, first: Any, second: Any) -> Any:
    """A sum, product or quotient of which one is :class:`Affine`, the other a number or an array of numpy's."""
    if type(first) is Affine:
        operate = {np.multiply: Affine.__mul__, np.add: Affine.__add__, np.true_divide: Affine.__truediv__}[ufunc]
        return operate(first, second)
    return ufunc(first, second.value) if ufunc is np.true_divide else _of(ufunc, second, first)


_LAZY = {ufunc: lambda *given, ufunc=ufunc: _of(ufunc, *given) for ufunc in (np.multiply, np.add, np.true_divide)}
"""What numpy's own numbers ask for when they stand on the left."""


def affine(value: Num) -> Num:
    """The number for use in sums and multiples; typed as what it stands for. Small arrays and single numbers stay."""
    if isinstance(value, np.ndarray) and value.size >= FEWEST:
        line: Any = Affine({id(value): (value, 1.0)})
        value = line
    return value


def dense(value: Num) -> Num:
    """The number multiplied out."""
    found: Num = _plain(value)
    return found


def take_rows(value: Num, chosen: slice) -> Num:
    """Some of the rows of a number along its first axis; an array that has one row keeps it, as it stands for all."""

    def part(array: Array) -> Array:
        return array if len(array) == 1 else array[chosen]

    given: Any = value
    if type(given) is Affine:
        parts = [(part(array), factor) for array, factor in given.factors.values()]
        return cast("Num", Affine({id(array): (array, factor) for array, factor in parts}, given.constant))
    return part(value) if isinstance(value, np.ndarray) else value


def sum_arrays(values: Iterable[Num]) -> Num:
    """The sum, for use in sums and multiples: each array of them is gone through once."""
    found: list[Any] = list(map(affine, values))
    if not all(type(one) is Affine or type(one) is float for one in found):
        return sum(found, start=0.0)
    factors, constant = dict[int, tuple[Array, float]](), 0.0
    for one in found:
        if type(one) is float:
            constant += one
            continue
        constant += one.constant
        for key, (array, factor) in one.factors.items():
            factors[key] = (array, factor + factors[key][1] if key in factors else factor)
    made: Any = Affine(factors, constant) if factors else constant
    whole: Num = made
    return whole


def _line(a: Any, b: Any) -> tuple[Array, float, float] | None:
    """The one array that both are a line over, and their factors; ``None`` where they are not."""
    if type(a) is type(b) is Affine and len(a.factors) == 1 and a.factors.keys() == b.factors.keys():
        ((array, first),), ((_, second),) = a.factors.values(), b.factors.values()
        return array, first, second
    return None


def maximum(a: Num, b: Num) -> Num:
    """The larger at each point; where one line lies above the other (no array is negative) it stays a line."""
    line, first, second = _line(a, b), cast("Any", a), cast("Any", b)
    if line is not None:
        _, rise, other = line
        if rise >= other and first.constant >= second.constant:
            return a
        if rise <= other and first.constant <= second.constant:
            return b
    return np.maximum(dense(a), dense(b))


def minimum(a: Num, b: Num) -> Num:
    """The smaller at each point; where one line lies below the other (no array is negative) it stays a line."""
    line, first, second = _line(a, b), cast("Any", a), cast("Any", b)
    if line is not None:
        _, rise, other = line
        if rise <= other and first.constant <= second.constant:
            return a
        if rise >= other and first.constant >= second.constant:
            return b
    return np.minimum(dense(a), dense(b))


def root_of_squares(a: Num, b: Num) -> Num:
    """``sqrt(a^2 + b^2)``: of two lines over one array the root of a polynomial of it."""
    line = _line(a, b)
    if line is not None:
        array, rise, other = line
        start, begin = cast("Any", a).constant, cast("Any", b).constant
        made = array * (rise * rise + other * other)
        made += 2.0 * (rise * start + other * begin)
        made *= array
        made += start * start + begin * begin
        return np.sqrt(made, out=made)
    a, b = dense(a), dense(b)
    whole = a * a + b * b
    return np.sqrt(whole, out=whole) if isinstance(whole, np.ndarray) else cast("Num", np.sqrt(whole))


def root(value: Num) -> Num:
    """The square root; of a multiple of an array a multiple of the array's root."""
    given: Any = value
    if type(given) is Affine and len(given.factors) == 1 and given.constant == 0.0:
        ((array, factor),) = given.factors.values()
        return affine(np.sqrt(array)) * float(np.sqrt(factor))
    return np.sqrt(dense(value))
