"""Functions of whole arrays: made, put together, reduced, sorted, searched."""

from __future__ import annotations

import math
import operator
from bisect import bisect_left, bisect_right
from itertools import accumulate, chain
from itertools import pairwise as neighbours
from math import inf, nan

from .arrays import (
    _SCALARS,
    BOOL,
    FLOAT,
    INT,
    OBJECT,
    UFUNCS,
    _cast,
    _divide,
    _offsets,
    _plain,
    _promoted,
    _spread,
    _strides,
    array,
    asarray,
    broadcast_shapes,
    divide,
    dtype,
    generic,
    maximum,
    minimum,
    multiply,
    ndarray,
    rint,
    sqrt,
    subtract,
)

# Made


def full(shape, value, dtype=None):
    shape = _shape(shape)
    one = asarray(value, dtype)
    return ndarray(list(_spread(one, shape)), shape, one.dtype)


def zeros(shape, dtype=float):
    return full(shape, 0, _type(dtype))


def ones(shape, dtype=float):
    return full(shape, 1, _type(dtype))


_type = dtype
empty = zeros


def full_like(like, value, dtype=None):
    like = asarray(like)
    return full(like.shape, value, dtype or like.dtype)


def zeros_like(like, dtype=None):
    return full_like(like, 0, dtype)


def ones_like(like, dtype=None):
    return full_like(like, 1, dtype)


def _shape(shape):
    return tuple(map(int, shape)) if isinstance(shape, (tuple, list)) else (int(shape),)


def arange(start, stop=None, step=1, dtype=None):
    start, stop = (0, start) if stop is None else (start, stop)
    whole = all(isinstance(one, int) or getattr(one, "dtype", FLOAT).kind in "iu" for one in (start, stop, step))
    if whole:
        made = list(range(int(start), int(stop), int(step)))
    else:
        start, step = float(start), float(step)
        count = max(math.ceil((float(stop) - start) / step), 0)
        second = start + step
        made = [start + place * (second - start) for place in range(count)]
    own = INT if whole else FLOAT
    kind = own if dtype is None else _type(dtype)
    return ndarray(_cast(made, own, kind), (len(made),), kind)


def linspace(start, stop, num=50, endpoint=True, dtype=None):
    start, stop, gaps = float(start), float(stop), num - 1 if endpoint else num
    if gaps < 1:
        return array([start][:num], dtype or float)
    step = (stop - start) / gaps
    made = [place * step + start if step else place / gaps * (stop - start) + start for place in range(num)]
    if endpoint:
        made[-1] = stop
    return array(made, dtype or float)


def geomspace(start, stop, num=50):
    start, stop = float(start), float(stop)
    made = [math.pow(10.0, one) for one in linspace(math.log10(start), math.log10(stop), num).data]
    if made:
        made[0] = start
    if len(made) > 1:
        made[-1] = stop
    return array(made, float)


def eye(count):
    return array([[float(row == column) for column in range(count)] for row in range(count)], float).reshape(
        count, count
    )


def diag(given):
    given = asarray(given)
    if given.ndim == 1:
        count = len(given)
        made = zeros((count, count), given.dtype)
        made.data[:: count + 1] = given.data
        return made
    return array(given.data[:: given.shape[1] + 1][: min(given.shape)], given.dtype)


def frombuffer(buffer, dtype=float):
    kind = _type(dtype)
    view = memoryview(buffer)
    data = view.cast("B").cast(kind.code).tolist() if kind.code not in "B" else view.cast("B").tolist()
    return ndarray(data, (len(data),), kind, buffer if isinstance(buffer, bytearray) else "bytes")


def ascontiguousarray(given, dtype=None):
    return asarray(given, dtype)


def copy(given):
    return array(given)


# Shapes


def shape(given):
    own = getattr(given, "shape", None)
    return own if own is not None else () if type(given) in _SCALARS else asarray(given).shape


def ndim(given):
    return 0 if type(given) in _SCALARS else len(shape(given))


def size(given):
    return math.prod(shape(given))


def reshape(given, shape):
    return asarray(given).reshape(shape)


def ravel(given):
    return asarray(given).ravel()


def transpose(given, axes=None):
    return asarray(given).transpose(*(() if axes is None else (tuple(axes),)))


def squeeze(given):
    return asarray(given).squeeze()


def expand_dims(given, axis):
    given = asarray(given)
    axis = axis % (given.ndim + 1)
    return given.reshape((*given.shape[:axis], 1, *given.shape[axis:]))


def atleast_1d(given):
    given = asarray(given)
    return given if given.shape else given.reshape(1)


def broadcast_to(given, shape):
    given, shape = asarray(given), _shape(shape)
    return ndarray(list(_spread(given, shape)), shape, given.dtype, given)


def broadcast_arrays(*given):
    arrays = [asarray(one) for one in given]
    common = broadcast_shapes(*(one.shape for one in arrays))
    return tuple(broadcast_to(one, common) for one in arrays)


def ix_(*axes):
    """Each along an axis of its own."""
    return tuple(
        asarray(one).reshape([-1 if at == place else 1 for at in range(len(axes))]) for place, one in enumerate(axes)
    )


class broadcast:
    """The shape that arrays have together."""

    def __init__(self, *given):
        self.shape = broadcast_shapes(*map(shape, given))
        self.size, self.ndim = math.prod(self.shape), len(self.shape)


def concatenate(parts, axis=0, dtype=None):
    arrays = [asarray(one) for one in parts]
    kind = _promoted(*(one.dtype for one in arrays)) if dtype is None else _type(dtype)
    axis %= arrays[0].ndim
    first = arrays[0].shape
    if any(
        one.ndim != len(first) or one.shape[:axis] + one.shape[axis + 1 :] != first[:axis] + first[axis + 1 :]
        for one in arrays
    ):
        raise ValueError("all the input array dimensions except for the concatenation axis must match exactly")
    made, widths = [], [math.prod(one.shape[axis:]) for one in arrays]
    lists = [_cast(one.data, one.dtype, kind) for one in arrays]
    for row in range(math.prod(first[:axis])):
        for data, width in zip(lists, widths):
            made += data[row * width : (row + 1) * width]
    whole = (*first[:axis], sum(one.shape[axis] for one in arrays), *first[axis + 1 :])
    return ndarray(made, whole, kind)


def stack(parts, axis=0):
    arrays = [asarray(one) for one in parts]
    axis %= arrays[0].ndim + 1
    return concatenate([expand_dims(one, axis) for one in arrays], axis)


def column_stack(parts):
    return stack(parts, axis=1)


def append(given, values, axis=None):
    return concatenate([ravel(given), ravel(values)]) if axis is None else concatenate([given, values], axis)


def tile(given, times):
    _line(given)
    return array(list(asarray(given).data) * int(times), asarray(given).dtype)


def repeat(given, repeats, axis=None):
    given = asarray(given)
    if axis is not None and given.ndim > 1:
        places = repeat(arange(given.shape[axis]), repeats)
        return take(given, places, axis)
    times = _spread(asarray(repeats), (len(given.data),))
    made = [value for value, count in zip(given.data, times) for _ in range(count)]
    return ndarray(made, (len(made),), given.dtype)


def _line(given):
    given = asarray(given)
    if given.ndim > 1:
        raise NotImplementedError("this function of several axes is not in the browser's stand-in for numpy")
    return given


def split(given, places):
    given = asarray(given)
    if isinstance(places, int):
        places = [given.shape[0] // places * place for place in range(1, places)]
    edges = [0, *(int(place) for place in places), given.shape[0]]
    return [given[start:stop] for start, stop in neighbours(edges)]


def array_split(given, count):
    each, more = divmod(len(given), count)
    return split(asarray(given), list(accumulate([each + 1] * more + [each] * (count - more)))[:-1])


def take(given, places, axis=None):
    given = asarray(given)
    if axis is None:
        return given.ravel()[asarray(places)]
    return given[(slice(None),) * (axis % given.ndim) + (asarray(places),)]


def roll(given, by):
    given = _line(given)
    by = int(by) % max(len(given), 1)
    return concatenate([given[len(given) - by :], given[: len(given) - by]])


def where(condition, one=None, other=None):
    condition = asarray(condition)
    if one is None:
        from .arrays import nonzero

        return nonzero(condition)
    from .arrays import _weak

    one, other, given = asarray(one), asarray(other), (one, other)
    common = broadcast_shapes(condition.shape, one.shape, other.shape)
    kind = _promoted(*_weak(given, [one, other]))
    lists = [_spread(part, common) for part in (condition, one, other)]
    made = [x if which else y for which, x, y in zip(*lists)]
    if one.dtype is not other.dtype and kind is not OBJECT:
        made = list(map(kind.plain, made))
    return ndarray(made, common, kind)


def flatnonzero(given):
    made = [place for place, value in enumerate(asarray(given).data) if value]
    return ndarray(made, (len(made),), INT)


def unravel_index(places, shape):
    found, places = [], asarray(places)
    for step, length in zip(_strides(shape), shape):
        found.append(places // step % length)
    return tuple(found)


def clip(given, low=None, high=None):
    made = given if low is None else maximum(given, low)
    return made if high is None else minimum(made, high)


def round_(given, decimals=0):
    if decimals == 0:
        return rint(given) if asarray(given).dtype.kind == "f" else given
    scale = 10.0**decimals
    return divide(rint(multiply(given, scale)), scale)


def nan_to_num(given, nan=0.0, posinf=None, neginf=None):
    most = 1.7976931348623157e308
    high, low = most if posinf is None else posinf, -most if neginf is None else neginf
    given = asarray(given)
    made = [nan if x != x else high if x == inf else low if x == -inf else x for x in given.data]
    made = ndarray(made, given.shape, given.dtype)
    return made if made.shape else made[()]


# Reduced


def pairwise(values):
    """The sum of floats in the order in which numpy adds them: eight at a time, of halves beyond 128."""
    count = len(values)
    if count < 8:
        found = -0.0
        for value in values:
            found += value
        return found
    if count <= 128:
        whole = count - count % 8
        parts = [values[place] for place in range(8)]
        for start in range(8, whole, 8):
            parts = list(map(operator.add, parts, values[start : start + 8]))
        found = ((parts[0] + parts[1]) + (parts[2] + parts[3])) + ((parts[4] + parts[5]) + (parts[6] + parts[7]))
        for value in values[whole:]:
            found += value
        return found
    half = count // 2
    half -= half % 8
    return pairwise(values[:half]) + pairwise(values[half:])


def in_turn(values):
    """The sum one after another, as numpy has it along an axis that is not the last."""
    found = values[0] if values else 0.0
    for value in values[1:]:
        found += value
    return found


def _axes(given, axis):
    if axis is None:
        return tuple(range(given.ndim))
    return tuple(sorted(one % given.ndim for one in (axis if isinstance(axis, tuple) else (axis,))))


def reduced(given, axis, keepdims, function, kind=None):
    """``function`` of the list of elements along axes, in row order."""
    axes, steps = _axes(given, axis), _strides(given.shape)
    kind = kind or given.dtype
    if len(axes) == given.ndim:
        made, rest = [function(given.data)], ()
    else:
        others = [one for one in range(given.ndim) if one not in axes]
        rest = tuple(given.shape[one] for one in others)
        starts = _offsets([range(0, given.shape[one] * steps[one], steps[one]) for one in others])
        data = given.data
        if axes == (given.ndim - 1,):
            made = [function(data[start : start + given.shape[-1]]) for start in starts]
        else:
            inner = _offsets([range(0, given.shape[one] * steps[one], steps[one]) for one in axes])
            made = [function([data[start + place] for place in inner]) for start in starts]
    if keepdims:
        rest = tuple(1 if place in axes else length for place, length in enumerate(given.shape))
    return kind.scalar(made[0]) if not rest else ndarray(list(map(kind.plain, made)), rest, kind)


def along(given, axis, function, kind=None):
    """``function`` of the list of elements along an axis, a list in its place."""
    if axis is None:
        given, axis = given.ravel(), 0
    axis %= given.ndim
    kind = kind or given.dtype
    if axis == given.ndim - 1:
        width = given.shape[-1]
        made = list(
            chain.from_iterable(function(given.data[at : at + width]) for at in range(0, len(given.data), width or 1))
        )
        wide = len(made) // max(math.prod(given.shape[:-1]), 1)
        return ndarray(made, (*given.shape[:-1], wide), kind)
    return along(given.swapaxes(axis, -1), -1, function, kind).swapaxes(axis, -1).copy()


def _added(given, dtype=None):
    """What is added up, and the type of the sum."""
    given = asarray(given) if dtype is None else asarray(given).astype(dtype)
    if given.dtype.name == "float32":
        raise NotImplementedError("a sum that is rounded to float32 is not in the browser's stand-in for numpy")
    return given, _type("uint64") if given.dtype.kind == "u" else INT if given.dtype.kind in "bi" else given.dtype


def sum_(given, axis=None, dtype=None, keepdims=False):
    given, kind = _added(given, dtype)
    if given.dtype.kind in "iub":
        add = sum
    elif given.dtype is OBJECT:
        return reduced(given, axis, keepdims, lambda values: sum(values[1:], start=values[0]) if values else 0)
    else:
        last = _axes(given, axis)[-1:] == (given.ndim - 1,)
        add = pairwise if last or not given.ndim else in_turn
        add = (lambda values, of=add: of(values) + 0.0) if given.dtype.kind == "f" else in_turn
    return reduced(given, axis, keepdims, add, kind)


def prod(given, axis=None):
    given, kind = _added(given)
    return reduced(given, axis, False, math.prod, kind)


def mean(given, axis=None, keepdims=False):
    given, _ = _added(given)
    count = math.prod(given.shape[one] for one in _axes(given, axis))
    return divide(sum_(given.astype(FLOAT), axis, keepdims=keepdims), count)


def var(given, axis=None, ddof=0):
    given = asarray(_added(given)[0], float)
    off = subtract(given, mean(given, axis, keepdims=True))
    count = math.prod(given.shape[one] for one in _axes(given, axis))
    return divide(sum_(multiply(off, off), axis), max(count - ddof, 0))


def std(given, axis=None, ddof=0):
    return sqrt(var(given, axis, ddof))


def average(given, axis=None, weights=None):
    if weights is None:
        return mean(given, axis)
    given, weights = asarray(given), asarray(weights)
    if weights.shape == given.shape:
        return divide(sum_(multiply(given, weights), axis), sum_(weights, axis))
    if weights.ndim != 1 or type(axis) is not int or len(weights) != given.shape[axis]:
        raise TypeError("weights of another shape than the array need one axis as long as they are")
    own = weights.reshape([-1 if one == axis % given.ndim else 1 for one in range(given.ndim)])
    return divide(sum_(multiply(given, own), axis), sum_(weights))


def _extreme(of, best):
    def reduce_all(given, axis=None, keepdims=False, initial=None):
        given = asarray(given)

        def function(values):
            if not values:
                if initial is None:
                    raise ValueError("zero-size array to reduction operation which has no identity")
                return _plain(initial)
            found = of(values)
            if given.dtype.kind == "f":
                for value in values:
                    if value != value:
                        return nan
            return found if initial is None else best(found, _plain(initial))

        return reduced(given, axis, keepdims, function)

    return reduce_all


max_, min_ = _extreme(max, max), _extreme(min, min)


def any_(given, axis=None, keepdims=False):
    if type(given) is bool:
        return BOOL.scalar(given)
    return reduced(asarray(given), axis, keepdims, any, BOOL)


def all_(given, axis=None, keepdims=False):
    if type(given) is bool:
        return BOOL.scalar(given)
    return reduced(asarray(given), axis, keepdims, all, BOOL)


def count_nonzero(given, axis=None):
    return reduced(asarray(given), axis, False, lambda values: sum(map(bool, values)), INT)


def _argument(best):
    def places(given, axis=None):
        given = asarray(given)

        def function(values):
            if not values:
                raise ValueError("attempt to get argmax of an empty sequence")
            for place, value in enumerate(values):
                if value != value:
                    return place
            return values.index(best(values))

        return reduced(given, axis, False, function, INT)

    return places


argmax, argmin = _argument(max), _argument(min)


def cumsum(given, axis=None, dtype=None):
    given, kind = _added(given, dtype)
    return along(given, axis, lambda values: list(accumulate(map(kind.plain, values))), kind)


def cumprod(given, axis=None):
    given, kind = _added(given)
    return along(given, axis, lambda values: list(accumulate(map(kind.plain, values), operator.mul)), kind)


def diff(given, axis=-1):
    given = asarray(given)
    if given.dtype.kind == "u" or given.dtype.name == "float32":
        raise NotImplementedError(f"differences of {given.dtype} are not in the browser's stand-in for numpy")
    less = operator.ne if given.dtype is BOOL else operator.sub
    return along(given, axis, lambda values: list(map(less, values[1:], values)))


def dot(one, other):
    one, other = asarray(one), asarray(other)
    return one @ other if one.ndim and other.ndim else multiply(one, other)


def outer(one, other):
    return UFUNCS["multiply"].outer(ravel(one), ravel(other))


def convolve(one, other):
    one, other = asarray(one).data, asarray(other).data
    if len(other) > len(one):
        one, other = other, one
    made = [0.0] * (len(one) + len(other) - 1)
    for shift, factor in enumerate(other):
        for place, value in enumerate(one):
            made[place + shift] += value * factor
    return array(made)


def _without_nan(given):
    given = asarray(given, float)
    return array([value for value in given.data if value == value], float)


def _skips(function):
    def skipping(given, axis=None, **rest):
        given = asarray(given, float)
        if axis is None:
            return function(_without_nan(given), **rest)
        return reduced(
            given, axis, False, lambda values: float(function(_without_nan(values), **rest)) if values else nan
        )

    return skipping


def _lerp(low, high, share):
    return high - (high - low) * (1 - share) if share >= 0.5 else low + (high - low) * share


def quantile(given, share, axis=None):
    given = asarray(given, float)
    shares = asarray(share, float)

    def at(values, one):
        if not values:
            return nan
        if any(value != value for value in values):
            return nan
        place = one * (len(values) - 1)
        low = min(math.floor(place), len(values) - 1)
        high = min(low + 1, len(values) - 1)
        return _lerp(values[low], values[high], place - low)

    if shares.ndim == 0:
        return reduced(given, axis, False, lambda values: at(sorted(values), shares.data[0]))
    if axis is None:
        ordered = sorted(given.data)
        return array([at(ordered, one) for one in shares.data], float)
    return stack([quantile(given, one, axis) for one in shares.data])


def percentile(given, percent, axis=None):
    return quantile(given, divide(percent, 100), axis)


def median(given, axis=None):
    def middle(values):
        if not values or any(value != value for value in values):
            return nan
        values, half = sorted(values), len(values) // 2
        return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2

    return reduced(asarray(given, float), axis, False, middle)


nansum, nanmax, nanmin, nanmean, nanmedian = map(_skips, (sum_, max_, min_, mean, median))
nanpercentile = _skips(percentile)


# Sorted and searched


def _ordered(value):
    """A key that puts what is no number last."""
    return (value != value, value)


def sort(given, axis=-1, kind=None):
    return along(asarray(given), axis, _sorted)


def _sorted(values):
    return sorted(values, key=_ordered) if any(value != value for value in values) else sorted(values)


def argsort(given, axis=-1, kind=None):
    return along(
        asarray(given), axis, lambda values: sorted(range(len(values)), key=lambda place: _ordered(values[place])), INT
    )


def lexsort(keys):
    lists = [asarray(one).data for one in keys]
    order = sorted(range(len(lists[0])), key=lambda place: tuple(one[place] for one in reversed(lists)))
    return array(order, INT)


def searchsorted(given, values, side="left"):
    data, find = asarray(given).data, bisect_left if side == "left" else bisect_right
    if type(values) in _SCALARS:
        return INT.scalar(find(data, values) if values == values else len(data))
    values = asarray(values)
    made = [find(data, value) if value == value else len(data) for value in values.data]
    return ndarray(made, values.shape, INT) if values.shape else INT.scalar(made[0])


def unique(given, return_index=False, return_inverse=False, return_counts=False):
    given = asarray(given)
    places, counts = {}, {}
    for place, value in enumerate(given.data):
        places.setdefault(value, place)
        counts[value] = counts.get(value, 0) + 1
    values = _sorted(list(places))
    if any(value != value for value in values):
        values = [value for value in values if value == value] + [nan]
    found = [array(values, given.dtype)]
    if return_index:
        found.append(array([places[value] for value in values], INT))
    if return_inverse:
        which = {value: place for place, value in enumerate(values)}
        found.append(array([which[value] for value in given.data], INT))
    if return_counts:
        found.append(array([counts[value] for value in values], INT))
    return found[0] if len(found) == 1 else tuple(found)


def isin(given, among):
    given, known = asarray(given), set(asarray(among).data)
    return ndarray([value in known for value in given.data], given.shape, BOOL)


def bincount(places, weights=None, minlength=0):
    places = asarray(places).data
    made = [0 if weights is None else 0.0] * max([minlength, *(place + 1 for place in places)], default=0)
    for place, weight in zip(places, [1] * len(places) if weights is None else asarray(weights, float).data):
        made[place] += weight
    return array(made, INT if weights is None else FLOAT)


def histogram(given, bins=10, range=None, weights=None):
    given = asarray(given)
    if isinstance(bins, int):
        low, high = range or ((min(given.data), max(given.data)) if given.data else (0.0, 1.0))
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        bins = linspace(low, high, bins + 1)
    edges = asarray(bins)
    counts = [0 if weights is None else 0.0] * (len(edges) - 1)
    for value, weight in zip(given.data, [1] * len(given.data) if weights is None else asarray(weights).data):
        if edges.data[0] <= value <= edges.data[-1]:
            counts[min(bisect_right(edges.data, value) - 1, len(counts) - 1)] += weight
    return array(counts), edges


def interp(at, x, y, left=None, right=None):
    xs, ys = asarray(x, float).data, asarray(y, float).data
    low, high = ys[0] if left is None else float(left), ys[-1] if right is None else float(right)
    last = len(xs) - 1

    def value(one):
        if one != one:
            return nan
        if one > xs[-1]:
            return high
        if one < xs[0]:
            return low
        place = bisect_right(xs, one) - 1
        if place == last or xs[place] == one:
            return ys[place]
        slope = _divide(ys[place + 1] - ys[place], xs[place + 1] - xs[place])
        found = slope * (one - xs[place]) + ys[place]
        if found != found:
            found = slope * (one - xs[place + 1]) + ys[place + 1]
            if found != found and ys[place] == ys[place + 1]:
                found = ys[place]
        return found

    if type(at) in _SCALARS:
        return FLOAT.scalar(value(float(at)))
    at = asarray(at, float)
    made = list(map(value, at.data))
    return ndarray(made, at.shape, FLOAT) if at.shape else FLOAT.scalar(made[0])


def array_equal(one, other, equal_nan=False):
    one, other = asarray(one), asarray(other)
    if one.shape != other.shape:
        return False
    return all(a == b or (equal_nan and a != a and b != b) for a, b in zip(one.data, other.data))


def polyfit(x, y, degree):
    """The line of least squares: highest power first."""
    if degree != 1:
        raise NotImplementedError("polyfit of another degree than 1 in the browser")
    x, y = asarray(x, float), asarray(y, float)
    off = x - mean(x)
    rise = float(sum_(off * y)) / float(sum_(off * off))
    return array([rise, float(mean(y)) - rise * float(mean(x))])


# Methods of arrays that are these functions

_NAMES = (
    "sum_ prod mean var std max_ min_ any_ all_ argmax argmin cumsum cumprod argsort searchsorted repeat take clip dot"
)
for _name in _NAMES.split():
    setattr(ndarray, _name.rstrip("_"), globals()[_name])
for _name in ("sum_", "max_", "min_", "mean", "round_"):
    setattr(generic, _name.rstrip("_"), globals()[_name])


def _sort_in_place(self, axis=-1, kind=None):
    self[...] = sort(self, axis)


def _nonzero(self):
    from .arrays import nonzero

    return nonzero(self)


ndarray.sort = _sort_in_place
ndarray.round = round_
ndarray.nonzero = _nonzero
