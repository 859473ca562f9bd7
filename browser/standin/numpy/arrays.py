"""Arrays over a flat list, in row order, and the functions that go over them element by element.

Results are numpy's: types, shapes, broadcasting, what is no number, sums by pairs. A part of an array that a slice
names is a copy that cannot be written to: where numpy would write to the whole, this raises. So does a part that is
read after its whole was written to.
"""

from __future__ import annotations

import array as buffers
import math
import operator
import struct
import sys
from dis import opname
from itertools import repeat
from math import inf, nan
from weakref import ref

NEWAXIS = None
_KINDS = "buifcO"
"""Kinds of numbers; those behind one do not go into it in place."""


class generic:
    """A number of numpy's."""

    def __class_getitem__(cls, item):
        return cls

    ndim, shape, size = 0, (), 1

    def item(self):
        return _plain(self)

    tolist = item

    @property
    def dtype(self):
        return dtype(type(self))

    def astype(self, kind):
        return dtype(kind).scalar(self)

    def copy(self):
        return self

    def __getitem__(self, key):
        return asarray(self)[key]

    def reshape(self, *shape):
        return asarray(self).reshape(*shape)

    def __array__(self, dtype=None, copy=None):
        return asarray(_plain(self), dtype)


class number(generic):
    pass


def _op(symbol, name, mirrored=True):
    """Methods of a scalar for an operator: with a number, by the ufunc; with anything else it is asked."""

    def forward(self, other):
        return UFUNCS[name](self, other) if isinstance(other, _NUMBERS) else NotImplemented

    def backward(self, other):
        return UFUNCS[name](other, self) if isinstance(other, _NUMBERS) else NotImplemented

    return {f"__{symbol}__": forward} | ({f"__r{symbol}__": backward} if mirrored else {})


_OPERATORS = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "mod",
    "pow": "power",
    "divmod": "divmod",
}
_COMPARED = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal"}
_LOGIC = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
_METHODS = {}
for _symbol, _name in _OPERATORS.items():
    _METHODS |= _op(_symbol, _name)
for _symbol, _name in _COMPARED.items():
    _METHODS |= _op(_symbol, _name, mirrored=False)


class floating(number):
    pass


class integer(number):
    pass


class float64(float, floating):
    """A float whose division by zero is infinite or no number."""

    __slots__ = ()
    __hash__ = float.__hash__
    __repr__ = float.__repr__
    __str__ = float.__repr__

    def __neg__(self):
        return float64(-float(self))

    def __abs__(self):
        return float64(abs(float(self)))

    def __round__(self, digits=None):
        return round(float(self)) if digits is None else float64(round(float(self), digits))

    locals().update(_METHODS)


class float32(float64):
    __slots__ = ()

    def __new__(cls, of=0.0):
        return float.__new__(cls, struct.unpack("f", struct.pack("f", of))[0])


class int64(int, integer):
    """An integer of numpy's; no number of this stand-in overflows."""

    __slots__ = ()
    __hash__ = int.__hash__
    __repr__ = int.__repr__
    __str__ = int.__repr__

    def __neg__(self):
        return int64(-int(self))

    def __abs__(self):
        return int64(abs(int(self)))

    def is_integer(self):
        return True

    locals().update(_METHODS | _op("and", "bitwise_and") | _op("or", "bitwise_or"))


class int32(int64):
    __slots__ = ()


class uint8(int64):
    __slots__ = ()


class uint64(int64):
    __slots__ = ()


class complex128(complex, number):
    __slots__ = ()


class bool_(generic):
    """True or false; ``~`` is not."""

    __slots__ = ("_of",)

    def __init__(self, of=False):
        self._of = bool(of)

    def __bool__(self):
        return self._of

    def __int__(self):
        return int(self._of)

    __index__ = __int__

    def __float__(self):
        return float(self._of)

    def __hash__(self):
        return hash(self._of)

    def __repr__(self):
        return repr(self._of)

    def __invert__(self):
        return bool_(not self._of)

    locals().update(_METHODS)
    for _symbol, _name in _LOGIC.items():
        locals().update(_op(_symbol, _name))


str_ = str
intp = int64


class dtype:
    """The type of an array's elements. kind: b, i, u, f, c, O or U, as numpy has it."""

    _made = {}

    def __class_getitem__(cls, item):
        return cls

    def __new__(cls, of=float):
        if isinstance(of, dtype):
            return of
        name = _NAMES.get(of if isinstance(of, (str, type)) else None)
        if name is None:
            raise TypeError(f"no type of arrays in the browser: {of!r}")
        if name not in cls._made:
            self = cls._made[name] = object.__new__(cls)
            self.name, (self.kind, self.itemsize, self.code, self.plain, self.scalar) = name, _TYPES[name]
        return cls._made[name]

    @property
    def type(self):
        return self.scalar

    def __eq__(self, other):
        try:
            return self is dtype(other)
        except TypeError:
            return False

    def __hash__(self):
        return hash(self.name)

    def __repr__(self):
        return f"dtype('{self.name}')"

    def __str__(self):
        return self.name

    def __reduce__(self):
        return dtype, (self.name,)


_TYPES = {
    "bool": ("b", 1, "?", bool, bool_),
    "uint8": ("u", 1, "B", int, uint8),
    "int32": ("i", 4, "i", int, int32),
    "int64": ("i", 8, "q", int, int64),
    "uint64": ("u", 8, "Q", int, uint64),
    "float32": ("f", 4, "f", float, float32),
    "float64": ("f", 8, "d", float, float64),
    "complex128": ("c", 16, "", complex, complex128),
    "str": ("U", 0, "", str, str),
    "object": ("O", 8, "", lambda value: value, lambda value: value),
}
"""Name to kind, bytes, code of :mod:`struct`, type of the elements in the list, type of one that is taken out."""
_RANK = {
    "bool": 0,
    "uint8": 1,
    "int32": 2,
    "int64": 3,
    "uint64": 4,
    "float32": 5,
    "float64": 6,
    "complex128": 7,
    "str": 8,
    "object": 9,
}
_NAMES = {name: name for name in _TYPES}
_NAMES |= {bool: "bool", int: "int64", float: "float64", complex: "complex128", object: "object", str: "str"}
_NAMES |= {
    bool_: "bool",
    uint8: "uint8",
    int32: "int32",
    int64: "int64",
    uint64: "uint64",
    float32: "float32",
    float64: "float64",
}
_NAMES |= {
    "<i4": "int32",
    "<i8": "int64",
    "<f8": "float64",
    "d": "float64",
    "q": "int64",
    "float": "float64",
    "int": "int64",
}
FLOAT, INT, BOOL, OBJECT, COMPLEX = (dtype(one) for one in ("float64", "int64", "bool", "object", "complex128"))
_NUMBERS = (float, int, bool_)
_SCALARS = {kind.scalar: kind for kind in map(dtype, _TYPES) if kind.kind not in "OU"}
_SCALARS |= {float: FLOAT, int: INT, bool: BOOL, complex: COMPLEX}


def _plain(value):
    """A scalar as Python has it."""
    kind = _SCALARS.get(type(value))
    return value if kind is None else kind.plain(value)


def _strides(shape):
    steps, step = [], 1
    for length in reversed(shape):
        steps.append(step)
        step *= length
    return steps[::-1]


class ndarray:
    """An array. data: its elements in row order; a reshaped one shares them."""

    __slots__ = ("__weakref__", "data", "dtype", "of", "parts", "shape")
    __hash__ = None

    def __class_getitem__(cls, item):
        return cls

    def __init__(self, data, shape, kind, of=None, parts=None):
        self.data, self.shape, self.dtype, self.of = data, shape, kind, of
        """of: ``None`` for one that is written to; a buffer that is written to as well; else the whole that this is a
        part of, and writing raises."""
        self.parts = parts = [] if parts is None else parts
        """Parts of these elements, weakly."""
        if type(of) is ndarray:
            parts = of.parts
            parts.append(ref(self))
            if not len(parts) & (len(parts) - 1) and len(parts) > 8:
                parts[:] = [one for one in parts if one() is not None]

    def _written(self):
        """Said before elements change. Raises ``NotImplementedError`` for a part."""
        if self.of is not None and type(self.of) is not bytearray:
            raise NotImplementedError("this part of an array cannot be written to in the browser's stand-in for numpy")
        if self.parts:
            _outdate(self.parts)

    @property
    def size(self):
        return len(self.data)

    @property
    def ndim(self):
        return len(self.shape)

    @property
    def nbytes(self):
        return len(self.data) * self.dtype.itemsize

    @property
    def T(self):
        return self.transpose()

    @property
    def flat(self):
        return iter(self.ravel())

    def __len__(self):
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self):
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        if len(self.shape) == 1:
            return map(self.dtype.scalar, self.data)
        return (self[place] for place in range(self.shape[0]))

    def __bool__(self):
        return bool(self._single("the truth value of an array is ambiguous: any() or all()"))

    def __float__(self):
        return float(self._single("only an array of one element is a number"))

    def __int__(self):
        return int(self._single("only an array of one element is a number"))

    def __index__(self):
        if self.shape or self.dtype.kind not in "iu":
            raise TypeError("only an integer array without axes is an index")
        return self.data[0]

    def _single(self, why):
        if len(self.data) != 1:
            raise (TypeError if "number" in why else ValueError)(why)
        return self.data[0]

    def __contains__(self, value):
        return any(one == value for one in self.data)

    def __repr__(self):
        return f"array({self.tolist()!r})"

    def __str__(self):
        return str(self.tolist())

    def __format__(self, spec):
        return format(self.item(), spec) if not self.shape else format(str(self), spec)

    def __array__(self, dtype=None, copy=None):
        return asarray(self, dtype)

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memory):
        return self.copy()

    def __reduce__(self):
        return ndarray, (list(self.data), self.shape, self.dtype)

    def item(self, *at):
        return self[at].item() if at else self._single("only an array of one element is a number")

    def tolist(self):
        data = self.data
        if not self.shape:
            return data[0]
        for length in reversed(self.shape[1:]):
            data = [data[place : place + length] for place in range(0, len(data), length)] if length else []
        if len(self.shape) > 1 and not len(self.data):
            return _empty(self.shape)
        return list(data)

    def tobytes(self):
        return struct.pack(f"<{len(self.data)}{self.dtype.code}", *self.data)

    def astype(self, kind, copy=True):
        return ndarray(_cast(self.data, self.dtype, kind := dtype(kind)), self.shape, kind)

    def copy(self):
        return ndarray(list(self.data), self.shape, self.dtype)

    def reshape(self, *shape, order="C"):
        shape = (
            tuple(map(int, shape[0]))
            if len(shape) == 1 and isinstance(shape[0], (tuple, list))
            else tuple(map(int, shape))
        )
        if -1 in shape:
            others = math.prod(length for length in shape if length != -1)
            shape = tuple(len(self.data) // max(others, 1) if length == -1 else length for length in shape)
        if math.prod(shape) != len(self.data):
            raise ValueError(f"cannot reshape array of size {len(self.data)} into shape {shape}")
        return ndarray(self.data, shape, self.dtype, self.of, self.parts)

    def ravel(self):
        return self.reshape(-1)

    def flatten(self):
        return self.ravel().copy()

    def squeeze(self):
        return self.reshape(tuple(length for length in self.shape if length != 1))

    def transpose(self, *axes):
        if len(self.shape) < 2:
            return self
        axes = (
            axes[0]
            if len(axes) == 1 and isinstance(axes[0], tuple)
            else axes or tuple(reversed(range(len(self.shape))))
        )
        steps, shape = _strides(self.shape), tuple(self.shape[axis] for axis in axes)
        at = _offsets(
            [range(0, length * steps[axis], steps[axis]) if length else () for axis, length in zip(axes, shape)]
        )
        return ndarray([self.data[place] for place in at], shape, self.dtype, self)

    def swapaxes(self, one, other):
        axes = list(range(len(self.shape)))
        axes[one], axes[other] = axes[other], axes[one]
        return self.transpose(tuple(axes))

    def fill(self, value):
        self[...] = value

    def __getitem__(self, key):
        data, shape = self.data, self.shape
        if len(shape) == 1:
            kind = type(key)
            if kind is int or kind is int64:
                return self.dtype.scalar(data[key])
            if kind is slice:
                part = data[key]
                return ndarray(part, (len(part),), self.dtype, self)
            if kind is ndarray and key.dtype is BOOL and key.shape == shape:
                part = [value for value, chosen in zip(data, key.data) if chosen]
                return ndarray(part, (len(part),), self.dtype)
        at, made, copied = _where(self, key)
        if at is None:
            return self.dtype.scalar(data[made])
        return ndarray([data[place] for place in at], made, self.dtype, None if copied else self)

    def __setitem__(self, key, value):
        if type(value) is ndarray and type(value.data) is _Outdated and value.data.made is not None:
            value = ndarray(value.data.made, value.shape, value.dtype)
        at, shape, _ = (range(len(self.data)), self.shape, False) if key is Ellipsis else _where(self, key)
        if at is None:
            at, shape = [shape], ()
        if type(value) in _SCALARS:
            given = repeat(_cast([value], _SCALARS[type(value)], self.dtype)[0])
        else:
            whole = (
                asarray(value)
                if self.dtype is not OBJECT or isinstance(value, (ndarray, list, tuple))
                else ndarray([value], (), OBJECT)
            )
            given = _cast(_spread(_no_wider(whole, shape), shape), whole.dtype, self.dtype)
        self._written()
        data = self.data
        for place, one in zip(at, given):
            data[place] = one
        if isinstance(self.of, bytearray):
            self.of[:] = bytes(data)

    def __invert__(self):
        return UFUNCS["logical_not"](self) if self.dtype is BOOL else UFUNCS["invert"](self)

    def __neg__(self):
        return UFUNCS["negative"](self)

    def __pos__(self):
        return self.copy()

    def __abs__(self):
        return UFUNCS["absolute"](self)

    def __matmul__(self, other):
        return matmul(self, other)

    def __rmatmul__(self, other):
        return matmul(other, self)


def _empty(shape):
    return [] if shape[0] == 0 else [_empty(shape[1:]) for _ in range(shape[0])] if len(shape) > 1 else []


class _Outdated:
    """Elements of a part whose whole was written to: whatever is asked of them raises. made: those that an operator in
    place made, until they are put into the whole."""

    def __init__(self, made=None):
        self.made = made

    def _raises(self, *_):
        raise NotImplementedError("a part of an array is not as the array is by now")

    __len__ = __iter__ = __getitem__ = __contains__ = __add__ = __mul__ = _raises


def _outdate(parts):
    for one in parts:
        part = one()
        if part is not None:
            part.data = _Outdated()
            _outdate(part.parts)
    parts.clear()


def _kept(frame):
    """Whether the result of the operator that a frame is at goes back into an array: ``a[0] += 1``."""
    code, at = frame.f_code.co_code, frame.f_lasti + 2
    while opname[code[at]] in ("CACHE", "SWAP"):
        at += 2
    return opname[code[at]] in ("STORE_SUBSCR", "STORE_SLICE")


def _in_place(of, to):
    """Raises ``TypeError`` where numpy puts no element of a type into an array of another in place."""
    if of.kind != to.kind and (of.kind not in _KINDS or _KINDS.find(to.kind) < _KINDS.find(of.kind)):
        raise TypeError(f"cannot cast from {of!r} to {to!r} with casting rule 'same_kind'")


def _methods(symbol, name):
    def forward(self, other):
        if not _taken(other):
            return NotImplemented
        return UFUNCS[name](self, other)

    def backward(self, other):
        return UFUNCS[name](other, self) if _taken(other) else NotImplemented

    def inplace(self, other):
        made = UFUNCS[name](self, other)
        if not isinstance(made, (ndarray, generic)):
            return made
        _in_place(made.dtype, self.dtype)
        if type(self.of) is not ndarray or not _kept(sys._getframe(1)):
            self[...] = made
            return self
        if type(made) is ndarray:
            made.data = _Outdated(made.data)
        return made

    setattr(ndarray, f"__{symbol}__", forward)
    setattr(ndarray, f"__r{symbol}__", backward)
    if symbol not in ("divmod",):
        setattr(ndarray, f"__i{symbol}__", inplace)


def _taken(other):
    """Whether an operator of an array is its own, not the other's."""
    return getattr(type(other), "__array_ufunc__", True) is not None


for _symbol, _name in (_OPERATORS | _LOGIC).items():
    _methods(_symbol, _name)
for _symbol, _name in _COMPARED.items():

    def _compare(self, other, name=_name):
        return UFUNCS[name](self, other)

    setattr(ndarray, f"__{_symbol}__", _compare)


def _offsets(places):
    """The sum of one offset of each axis, in row order."""
    found = [0]
    for part in places:
        found = [start + place for start in found for place in part] if len(found) > 1 or found[0] else list(part)
    return found


def _where(whole, key):
    """Places in the flat list that a key names, the shape of the result, and whether numpy copies.

    One place alone: ``(None, place, True)``.
    """
    shape = whole.shape
    keys = list(key) if isinstance(key, tuple) else [key]
    keys = [asarray(one) if isinstance(one, (list, range)) else one for one in keys]
    keys = [one if type(one) is not ndarray or one.size or one.dtype.kind in "biu" else one.astype(INT) for one in keys]
    axes = sum(
        0 if one is None or one is Ellipsis else one.ndim if type(one) is ndarray and one.dtype is BOOL else 1
        for one in keys
    )
    if axes > len(shape):
        raise IndexError("too many indices for array")
    rest = [slice(None)] * (len(shape) - axes)
    if any(one is Ellipsis for one in keys):
        (at,) = [place for place, one in enumerate(keys) if one is Ellipsis]
        keys[at : at + 1] = rest
    else:
        keys += rest
    advanced = any(type(one) is ndarray for one in keys)
    parts, arrays, firsts, axis, steps = [], [], [], 0, _strides(shape)
    for one in keys:  # parts: (places, length) by axis of the result; one of an integer has no length
        if one is None:
            parts.append((None, 1))
            continue
        length, step = (shape[axis], steps[axis]) if axis < len(shape) else (1, 1)
        if isinstance(one, slice):
            chosen = range(*one.indices(length))
            parts.append((range(chosen.start * step, chosen.stop * step, chosen.step * step), len(chosen)))
        elif type(one) is ndarray and one.dtype is BOOL:
            if one.shape != shape[axis : axis + one.ndim]:
                raise IndexError("boolean index did not match indexed array")
            firsts.append(len(parts))
            for places, apart in zip(nonzero(one), steps[axis : axis + one.ndim]):
                arrays.append((places, apart, None))
            axis += one.ndim - 1
        elif type(one) is ndarray:
            if one.dtype.kind not in "iu":
                raise IndexError("arrays used as indices must be of integer (or boolean) type")
            firsts.append(len(parts))
            arrays.append((one, step, length))
        else:
            place = operator.index(one)
            if not -length <= place < length:
                raise IndexError(f"index {place} is out of bounds for axis {axis} with size {length}")
            place %= length
            if advanced:
                firsts.append(len(parts))
                arrays.append((ndarray([place], (), INT), step, length))
            else:
                parts.append((range(place * step, place * step + 1), None))
        axis += 1
    if arrays:
        common = broadcast_shapes(*(one.shape for one, _, _ in arrays))
        at = [0] * math.prod(common)
        for one, step, length in arrays:
            places = _spread(one, common)
            if length is not None and any(not -length <= place < length for place in places):
                raise IndexError("index is out of bounds")
            at = [start + (place if place >= 0 else place + length) * step for start, place in zip(at, places)]
        front = firsts[0] if len(set(firsts)) == 1 else 0
        made = [(places, (length,)) for places, length in parts]
        made.insert(front, (at, common))
        found = _offsets([(0,) if places is None else places for places, _ in made])
        return found, tuple(length for _, lengths in made for length in lengths), True
    found = _offsets([(0,) if places is None else places for places, _ in parts])
    made = tuple(length for _, length in parts if length is not None)
    if not made and not any(one is Ellipsis for one in (key if isinstance(key, tuple) else (key,))):
        return (None, found[0], True) if key != () or not shape else (found, made, False)
    return found, made, False


def _no_wider(given, shape):
    """Without axes of length one in front that the place has not."""
    while given.ndim > len(shape) and given.shape[0] == 1:
        given = given.reshape(given.shape[1:])
    return given


def _cast(data, of, to):
    """Elements of one type as those of another."""
    if of is to or to is OBJECT:
        return list(data)
    if to.name == "float32":
        return [struct.unpack("f", struct.pack("f", value))[0] for value in data]
    if to.kind in "iu" and of.kind == "f":
        low = -(1 << 63)  # what a processor makes of a number that is none
        return [int(value) if math.isfinite(value) else low for value in data]
    if to.kind == "f" and of is OBJECT:
        return [nan if value is None else float(value) for value in data]
    return list(map(to.plain, data))


def asarray(given, dtype_=None, dtype=None, order=None):
    wanted = dtype if dtype is not None else dtype_
    if type(given) is ndarray and (wanted is None or given.dtype == wanted):
        return given
    return array(given, wanted)


def array(given, dtype=None, copy=True, ndmin=0):
    kind = None if dtype is None else _dtype(dtype)
    if type(given) in _SCALARS:
        own = _SCALARS[type(given)]
        return ndarray(_cast([own.plain(given)], own, kind or own), (), kind or own)
    if type(given) is ndarray:
        return ndarray(_cast(given.data, given.dtype, kind or given.dtype), given.shape, kind or given.dtype)
    if isinstance(given, buffers.array):
        own = _dtype(
            {"d": "float64", "q": "int64", "l": "int64", "i": "int32", "B": "uint8", "b": "int64", "f": "float32"}[
                given.typecode
            ]
        )
        return ndarray(_cast(given.tolist(), own, kind or own), (len(given),), kind or own)
    if hasattr(given, "__array__"):
        return array(given.__array__(), dtype)
    if isinstance(given, range):
        return ndarray(_cast(list(given), INT, kind or INT), (len(given),), kind or INT)
    if not isinstance(given, (list, tuple)):
        own = _kind_of([given])
        return ndarray(_cast([given], own, kind or own), (), kind or own)
    data, shape, own = _flattened(given, kind is OBJECT)
    if kind is OBJECT:
        own = OBJECT
    return ndarray(_cast(data, own, kind or own), shape, kind or own)


_dtype = dtype


def _flattened(given, objects=False):
    """Elements, shape and type of nested sequences."""
    kinds = set(map(type, given))
    if not kinds:
        return [], (0,), FLOAT
    if kinds <= _SCALARS.keys():
        own = _promoted(*(_SCALARS[kind] for kind in kinds))
        return list(map(own.plain, given)), (len(given),), own
    if any(
        issubclass(kind, (list, tuple, ndarray, range, buffers.array)) or hasattr(kind, "__array__") for kind in kinds
    ):
        try:
            parts = [array(one, OBJECT if objects else None) for one in given]
            shape = parts[0].shape
            if any(part.shape != shape for part in parts):
                raise ValueError("the requested array has an inhomogeneous shape")
        except ValueError:
            if not objects:
                raise
        else:
            own = _promoted(*(part.dtype for part in parts))
            data = []
            for part in parts:
                data += part.data if part.dtype is own else _cast(part.data, part.dtype, own)
            return data, (len(given), *shape), own
    own = _kind_of(given)
    return list(given), (len(given),), own


def _kind_of(values):
    return _dtype("str") if all(isinstance(value, str) for value in values) else OBJECT


def _promoted(*kinds):
    found = max(kinds, key=lambda kind: _RANK[kind.name])
    if found.kind == "u" and found.itemsize == 8 and any(kind.kind == "i" for kind in kinds):
        return FLOAT
    if found.name == "float32" and any(kind.itemsize > 2 and kind.kind in "iu" for kind in kinds):
        return FLOAT
    return found


def broadcast_shapes(*shapes):
    """The shape of all together. Raises ``ValueError`` where they do not go together."""
    first = shapes[0] if shapes else ()
    if all(shape == first for shape in shapes):
        return tuple(first)
    made = [1] * max(map(len, shapes))
    for shape in shapes:
        for place in range(-len(shape), 0):
            if made[place] == 1:
                made[place] = shape[place]
            elif shape[place] not in (1, made[place]):
                raise ValueError(f"shape mismatch: objects cannot be broadcast to a single shape: {shapes}")
    return tuple(made)


def _spread(one, shape):
    """Elements of an array in a shape that it is broadcast to."""
    if one.shape == shape:
        return one.data
    if len(one.data) == 1 and len(one.shape) <= len(shape):
        return one.data * math.prod(shape)
    if broadcast_shapes(one.shape, shape) != shape:
        raise ValueError(f"could not broadcast input array from shape {one.shape} into shape {shape}")
    own = (1,) * (len(shape) - len(one.shape)) + one.shape
    lasting = 0  # axes at the end that are whole
    while lasting < len(shape) and own[-1 - lasting] == shape[-1 - lasting]:
        lasting += 1
    outer, block = len(shape) - lasting, math.prod(shape[len(shape) - lasting :])
    steps = [0 if length == 1 else step for length, step in zip(own, _strides(own))]
    found, data = [], one.data
    for start in _offsets(
        [[place * step for place in range(length)] for length, step in zip(shape[:outer], steps[:outer])]
    ):
        found += data[start : start + block]
    return found


def nonzero(one):
    one = asarray(one)
    flat = [place for place, value in enumerate(one.data) if value]
    if one.ndim == 1:
        return (ndarray(flat, (len(flat),), INT),)
    found = []
    for step, length in zip(_strides(one.shape), one.shape):
        found.append(ndarray([place // step % length for place in flat], (len(flat),), INT))
    return tuple(found)


def matmul(one, other):
    one, other = asarray(one), asarray(other)
    if other.ndim == 1:
        rows = [one.data[place : place + len(other.data)] for place in range(0, len(one.data), len(other.data))] or [[]]
        if one.shape[-1] != other.shape[0]:
            raise ValueError("matmul: mismatch in its core dimension")
        made = [
            sum(map(operator.mul, row, other.data), 0.0 if FLOAT in (one.dtype, other.dtype) else 0) for row in rows
        ]
        kind = _promoted(one.dtype, other.dtype)
        return kind.scalar(made[0]) if one.ndim == 1 else ndarray(made, one.shape[:-1], kind)
    if one.ndim == 1:
        return matmul(other.transpose(), one)
    if one.ndim > 2 or other.ndim > 2 or one.shape[1] != other.shape[0]:
        raise ValueError("matmul: mismatch in its core dimension")
    columns = [other.data[place :: other.shape[1]] for place in range(other.shape[1])]
    rows = [one.data[place * one.shape[1] : (place + 1) * one.shape[1]] for place in range(one.shape[0])]
    kind = _promoted(one.dtype, other.dtype)
    return ndarray(
        [kind.plain(sum(map(operator.mul, row, column))) for row in rows for column in columns],
        (len(rows), len(columns)),
        kind,
    )


# Functions of elements


class ufunc:
    """A function of numbers, element by element. many: of lists of plain numbers, as fast as Python has it; kind: the
    type of the result from those of the arguments."""

    def __init__(self, name, function, kind, many=None):
        self.__name__, self.function, self.kind, self.many = (
            name,
            function,
            kind,
            many or (lambda *lists: list(map(function, *lists))),
        )
        UFUNCS[name] = self

    def __repr__(self):
        return f"<ufunc '{self.__name__}'>"

    def __call__(self, *given, out=None, where=True):
        kinds = [_SCALARS.get(type(one)) for one in given]
        if None not in kinds:
            kind = self.kind(*kinds)
            if out is None and where is True:
                made = self.function(*[own.plain(one) for own, one in zip(kinds, given)])
                return kind.scalar(made)
        asked = self._asked(given, out)
        if asked is not NotImplemented:
            return asked
        arrays = [asarray(one) for one in given]
        objects = any(one.dtype is OBJECT for one in arrays)
        kind = OBJECT if objects and self.kind is not _boolean else self.kind(*_weak(given, arrays))
        shape = broadcast_shapes(*(one.shape for one in arrays))
        if out is None and where is not True:
            raise NotImplementedError("where without out in the browser's stand-in for numpy")
        lists = [_spread(one, shape) for one in arrays]
        many = self.many
        if len(arrays) == 2 and shape and not arrays[1].shape and self.__name__ == "power":
            many = _power_of(lists[1][0] if lists[1] else 1, self.many)
        made = many(*lists) if not objects else [_of_objects(self, *values) for values in zip(*lists)]
        if (
            kind.kind in "fiub"
            and made
            and (kind.plain is not type(made[0]) or any(one.dtype is not kind for one in arrays))
        ):
            made = list(map(kind.plain, made))
        if kind.name == "float32":
            made = _cast(made, FLOAT, kind)
        if out is not None:
            out = out[0] if isinstance(out, tuple) else out
            _in_place(kind, out.dtype)
            if out.shape != shape:
                raise ValueError(f"the result has the shape {shape}, out has {out.shape}")
            if where is not True:
                made, kind = _cast(made, kind, out.dtype), out.dtype
                made = [
                    new if which else old for new, old, which in zip(made, out.data, _spread(asarray(where), shape))
                ]
            out[...] = ndarray(made, shape, kind)
            return out
        return kind.scalar(made[0]) if not shape else ndarray(made, shape, kind)

    def _asked(self, given, out=None, method="__call__", **options):
        """What an argument with a say of its own makes of it."""
        outs = () if out is None else out if isinstance(out, tuple) else (out,)
        for one in (*given, *outs):
            own = getattr(type(one), "__array_ufunc__", None)
            if own is not None:
                said = own(one, self, method, *given, **options, **({"out": outs} if outs else {}))
                if said is not NotImplemented:
                    return said
                raise TypeError(
                    f"operand type(s) all returned NotImplemented from __array_ufunc__({self!r}, '{method}')"
                )
        return NotImplemented

    def outer(self, one, other):
        one, other = asarray(one), asarray(other)
        return self(one.reshape(*one.shape, *[1] * other.ndim), other)

    def at(self, whole, places, values=None):
        """In place, one after another: an element that is named twice is changed twice."""
        where, shape, _ = _where(whole, places)
        values = asarray(values)
        _in_place(self.kind(whole.dtype, values.dtype), whole.dtype)
        whole._written()
        data, function, plain = whole.data, self.function, whole.dtype.plain
        for place, value in zip(where, _spread(values, shape)):
            data[place] = plain(function(data[place], value))

    def accumulate(self, given, axis=0):
        from .functions import along

        def run(values):
            found = values[:1]
            for value in values[1:]:
                found.append(self.function(found[-1], value))
            return found

        return along(asarray(given), axis, run)

    def reduce(self, given, axis=0, initial=None):
        from .functions import reduced

        def all_of(values):
            found = values[0] if initial is None else initial
            for value in values[1:] if initial is None else values:
                found = self.function(found, value)
            return found

        return reduced(asarray(given), axis, False, all_of)


UFUNCS: dict = {}


def _weak(given, arrays):
    """Types of arguments; a Python number has no more than the kind of its own beside an array."""
    kinds = [one.dtype for one in arrays]
    strong = [kind for kind, one in zip(kinds, given) if type(one) not in (int, float, bool)]
    found = []
    for kind, one in zip(kinds, given):
        if strong and type(one) is int and any(other.kind in "iufcO" for other in strong):
            found.append(max(strong, key=lambda other: _RANK[other.name]))
        elif strong and type(one) is float and any(other.name == "float32" for other in strong):
            found.append(_dtype("float32"))
        else:
            found.append(kind)
    return found


def _of_objects(function, *values):
    own = _PYTHON.get(function.__name__)
    return own(*values) if own is not None else function.function(*values)


_PYTHON = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "true_divide": operator.truediv,
           "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt, "greater": operator.gt}  # fmt: skip


def _common(*kinds):
    return _promoted(*kinds)


def _counted(*kinds):
    """As :func:`_common`; booleans are no numbers."""
    found = _promoted(*kinds)
    if found is BOOL:
        raise TypeError("this function of booleans is not in the browser's stand-in for numpy")
    return found


def _boolean(*kinds):
    return BOOL


def _real(*kinds):
    found = _promoted(*kinds)
    return found if found.kind in "fc" or found is OBJECT else FLOAT


def _divide(x, y):
    try:
        return x / y
    except ZeroDivisionError:
        return nan if x == 0 or x != x else math.copysign(inf, x) * math.copysign(1.0, y)


def _divide_all(xs, ys):
    try:
        return list(map(operator.truediv, xs, ys))
    except ZeroDivisionError:
        return list(map(_divide, xs, ys))


def _power(x, y):
    if type(x) is int and type(y) is int:
        if y < 0:
            raise ValueError("Integers to negative integer powers are not allowed.")
        return x**y
    try:
        return math.pow(x, y)
    except OverflowError:
        return -inf if x < 0 and y % 2 == 1 else inf
    except ValueError:
        return inf if x == 0 else nan
    except TypeError:
        return x**y


def _power_of(exponent, usual):
    """Powers that numpy has a function of its own for."""
    if exponent == 2:
        return lambda xs, ys: [x * x for x in xs]
    if exponent == 0.5:
        return lambda xs, ys: sqrt.many(xs)
    if exponent == 1:
        return lambda xs, ys: list(xs)
    if exponent == -1:
        return lambda xs, ys: [_power(x, y) if type(x) is type(y) is int else _divide(1.0, x) for x, y in zip(xs, ys)]
    return usual


def _floor_divide(x, y):
    try:
        return x // y
    except ZeroDivisionError:
        return 0 if type(x) is int and type(y) is int else _divide(x, y)


def _mod(x, y):
    try:
        return x % y
    except ZeroDivisionError:
        return 0 if type(x) is int and type(y) is int else nan


def _checked(function, low=nan, high=inf):
    """A function of :mod:`math` that raises nothing. low: where it is not defined; high: where it is too large."""

    def calls(x):
        try:
            return function(x)
        except ValueError:
            return low(x) if callable(low) else low
        except OverflowError:
            return high

    def many(xs):
        try:
            return list(map(function, xs))
        except (ValueError, OverflowError):
            return list(map(calls, xs))

    return calls, many


def _log_at(x):
    return -inf if x == 0 else nan


def _whole(function):
    """Rounded to a whole number, as a float; what is none stays."""

    def calls(x):
        if type(x) is not float:
            return int(x)
        try:
            return float(function(x))
        except (OverflowError, ValueError):
            return x

    return calls


def _maximum(x, y):
    return x if x >= y or x != x else y


def _minimum(x, y):
    return x if x <= y or x != x else y


def _hypot(x, y):
    return math.hypot(x, y)


def _sign(x):
    return x if x != x else type(x)((x > 0) - (x < 0))


def _of_math(name, function, low=nan):
    one, many = _checked(function, low)
    return ufunc(name, one, _real, many)


add = ufunc("add", operator.add, _common)
subtract = ufunc("subtract", operator.sub, _counted)
multiply = ufunc("multiply", operator.mul, _common)
true_divide = divide = ufunc("true_divide", _divide, _real, _divide_all)
floor_divide = ufunc("floor_divide", _floor_divide, _counted)
mod = ufunc("mod", _mod, _counted)
power = ufunc("power", _power, _counted)
negative = ufunc("negative", operator.neg, _counted)
absolute = ufunc("absolute", abs, _common)
maximum = ufunc("maximum", _maximum, _common)
minimum = ufunc("minimum", _minimum, _common)
square = ufunc("square", lambda x: x * x, _counted)
sign = ufunc("sign", _sign, _counted)
floor = ufunc("floor", _whole(math.floor), _common)
ceil = ufunc("ceil", _whole(math.ceil), _common)
rint = ufunc("rint", _whole(round), _real)
sqrt = _of_math("sqrt", math.sqrt)
exp = _of_math("exp", math.exp)
log = _of_math("log", math.log, _log_at)
log2 = _of_math("log2", math.log2, _log_at)
log10 = _of_math("log10", math.log10, _log_at)
log1p = _of_math("log1p", math.log1p, lambda x: -inf if x == -1 else nan)
expm1 = _of_math("expm1", math.expm1)
cbrt = ufunc("cbrt", math.cbrt, _real)
hypot = ufunc("hypot", _hypot, _real)
logaddexp = ufunc(
    "logaddexp",
    lambda x, y: x if x == y == -inf else max(x, y) + math.log1p(math.exp(-abs(x - y))) if x != y else x + math.log(2),
    _real,
)
nextafter = ufunc("nextafter", math.nextafter, _real)
isnan = ufunc("isnan", lambda x: x != x, _boolean)
isfinite = ufunc("isfinite", math.isfinite, _boolean)
isinf = ufunc("isinf", math.isinf, _boolean)
less = ufunc("less", operator.lt, _boolean)
less_equal = ufunc("less_equal", operator.le, _boolean)
greater = ufunc("greater", operator.gt, _boolean)
greater_equal = ufunc("greater_equal", operator.ge, _boolean)
equal = ufunc("equal", operator.eq, _boolean)
not_equal = ufunc("not_equal", operator.ne, _boolean)
logical_not = ufunc("logical_not", operator.not_, _boolean)
bitwise_and = ufunc("bitwise_and", operator.and_, _common)
bitwise_or = ufunc("bitwise_or", operator.or_, _common)
bitwise_xor = ufunc("bitwise_xor", operator.xor, _common)
invert = ufunc("invert", operator.invert, _common)


def divmod_(one, other):
    return floor_divide(one, other), mod(one, other)


UFUNCS["divmod"] = divmod_
