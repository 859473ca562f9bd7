"""Arguments of the Python API, each read as its type says; text as the command line reads it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from inferplan.errors import UsageError
from inferplan.lists import parse_copies, parse_counts, parse_values
from inferplan.units import MOST, parse_count, parse_number, parse_quantity

Seconds = Annotated[float | str, "seconds"]
"""Seconds, or text with a unit: ``0.5`` or ``"500ms"``."""
Watts = Annotated[float | str, "watts"]
"""Watts, or text with a unit: ``500`` or ``"500W"``."""
Count = Annotated[int | str, 1]
"""A whole number from 1, or text such as ``"8k"``."""
Few = Annotated[int | str, 0]
"""The same from 0."""
Counts = Annotated[Sequence[int] | int | str, tuple[Count, ...]]
"""Counts, one, or text as the command line writes lists: ``"1-256*2"``."""
Fews = Annotated[Sequence[int] | int | str, tuple[Few, ...]]
"""The same from 0."""
Names = Annotated[Sequence[str] | str, tuple[str, ...]]
"""Names, one, or text with commas between them."""
Formats = Annotated[Sequence[str | None] | str | None, tuple[str | None, ...]]
"""Formats, ``None`` for those of the checkpoint."""
Flags = Annotated[Sequence[bool] | bool, tuple[bool, ...]]
Numbers = Annotated[Sequence[float] | float | str, tuple[float, ...]]

_Value = TypeVar("_Value")


def instance(value: object, kind: type[_Value], hint: str = "") -> _Value:
    """A value of a type. Raises ``UsageError`` for another."""
    if not isinstance(value, kind):
        raise UsageError(f"a {kind.__name__} is needed here, not a {type(value).__name__}", hint=hint)
    return value


def check_arguments(given: Mapping[str, Any], kind: type, unknown: str) -> dict[str, Any]:
    """Keyword options as the types of a ``TypedDict`` say.

    Raises ``UsageError`` for a name that it has not (``unknown`` starts the sentence) and for a value of another type.
    """
    hints = _hints(kind)
    wrong = sorted(set(given) - set(hints))
    if wrong:
        near = [match for name in wrong for match in get_close_matches(name, hints, n=2)]
        hint = f"did you mean {', '.join(near)}?" if near else ", ".join(sorted(hints))
        raise UsageError(f"{unknown} {', '.join(wrong)}", hint=hint)
    return {name: read_argument(name, value, hints[name]) for name, value in given.items()}


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def read_argument(name: str, value: Any, kind: Any) -> Any:
    """A value as a type. Raises ``UsageError`` that names the argument for one that is not of it."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotated(name, value, inner[1])
    if origin in (Union, UnionType):
        return _either(name, value, inner)
    if origin is Literal:
        if value not in inner:
            raise UsageError(f"{name} is {value!r:.60}", hint=", ".join(map(str, inner)))
        return value
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _not(name, value, "a dict")
        return {
            read_argument(name, key, inner[0]): read_argument(f"{name}[{key!r}]", one, inner[1])
            for key, one in value.items()
        }
    if origin is tuple and inner[-1] is not Ellipsis:
        if not isinstance(value, (tuple, list)) or len(value) != len(inner):
            raise _not(name, value, f"{len(inner)} values")
        return tuple(read_argument(name, one, each) for one, each in zip(value, inner))
    if origin is not None:
        return _several(name, value, inner[0])
    return _one(name, value, kind)


def _annotated(name: str, value: Any, kind: Any) -> Any:
    """What the second part of an annotation says: a dimension, the smallest count, or what the value becomes."""
    if isinstance(kind, str):
        return _quantity(name, value, kind)
    return count(name, value, kind) if isinstance(kind, int) else read_argument(name, value, kind)


def _not(name: str, value: Any, wanted: str, hint: str = "") -> UsageError:
    what = f"{name} is {wanted}, not {type(value).__name__}"
    return UsageError(what, because=f"{value!r:.60}" if isinstance(value, (str, Real)) else "", hint=hint)


def _either(name: str, value: Any, kinds: Sequence[Any]) -> Any:
    """The first of the types that takes the value; that of its own type before the others."""
    if value is None and NoneType in kinds:
        return None
    others = [kind for kind in kinds if kind is not NoneType]
    exact = [kind for kind in others if isinstance(kind, type) and isinstance(value, kind)]
    for kind in (*exact, *others):
        try:
            return read_argument(name, value, kind)
        except UsageError as error:
            refused = error
            if len(others) == 1:
                raise
    words = [word for kind in others if get_origin(kind) is Literal for word in get_args(kind)]
    if words and isinstance(value, str):
        raise UsageError(
            f"{name}: {value!r:.60} is not a number", hint=f"a number, or {' or '.join(words)}"
        ) from refused
    names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in others)
    raise _not(name, value, names) from refused


def _several(name: str, value: Any, kind: Any) -> tuple[Any, ...]:
    """One value or several: a list, an array, or text as the command line writes lists."""
    if isinstance(value, str):
        if kind in (Count, Few):
            return tuple(parse_counts(value, name)) if kind == Count else parse_copies(value)
        return tuple(read_argument(name, part, kind) for part in parse_values(value))
    if isinstance(value, Mapping) and get_origin(kind) is tuple:
        return tuple(read_argument(name, pair, kind) for pair in value.items())
    if isinstance(value, (Mapping, set, frozenset)):
        raise _not(name, value, "one value or a list")
    found = list(value) if isinstance(value, Iterable) else [value]
    if not found:
        raise UsageError(f"{name} holds no values", hint="at least one value")
    return tuple(read_argument(name, one, kind) for one in found)


def _one(name: str, value: Any, kind: Any) -> Any:
    if kind is Any:
        return value
    if kind is bool:
        if not isinstance(value, (bool, np.bool_)):
            raise _not(name, value, "True or False")
        return bool(value)
    if kind is int:
        return _whole(name, value)
    if kind is float:
        return _number(name, value)
    if kind is str:
        if not isinstance(value, (str, os.PathLike)):
            raise _not(name, value, "text")
        return os.fspath(value)
    if not isinstance(value, kind):
        raise _not(name, value, f"a {kind.__name__}")
    return value


def count(name: str, value: Any, low: int = 1) -> int:
    """A whole number from ``low``, also as text such as ``"8k"``. Raises ``UsageError`` for what is none."""
    found = _whole(name, value)
    if not low <= found <= MOST:
        raise UsageError(f"{name} is {value}", hint=f"{low} or more, and at most {MOST:.0e}")
    return found


def _whole(name: str, value: Any) -> int:
    if isinstance(value, str):
        try:
            return parse_count(value)
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise _not(name, value, "a count", "4096, or text such as '8k'")
    if not isinstance(value, Integral) and not float(value).is_integer():
        raise UsageError(f"{name} is a count, not {value!r}", because="it must be whole", hint=f"{name}=8")
    return int(float(value)) if not isinstance(value, Integral) else int(value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, str):
        try:
            value = parse_number(value)
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise _not(name, value, "a number")
    if not math.isfinite(value):
        raise UsageError(f"{name} is {value}, which is not a finite number")
    return float(value)


def _quantity(name: str, value: Any, dimension: str) -> float:
    if not isinstance(value, str):
        return _number(name, value)
    try:
        return parse_quantity(value, dimension)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None
