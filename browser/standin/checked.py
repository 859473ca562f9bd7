"""In the place of ``inferplan.checked`` in the browser, without pydantic: specs of values of the right types.

It has the results of the other, for every shipped file and for every option (tests/browser). It has no words for what
is wrong: what the other would refuse or turn into another type raises :class:`NotImplementedError` here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from math import isfinite
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from inferplan.validators import AfterValidator, BeforeValidator, Limits


def checked(spec: type[Any], data: Any, *, strict: bool | None = None, into: Any = None) -> Any:
    """A spec of a mapping of its fields, or that itself where it is one. into: one that is made."""
    if into is None and isinstance(data, spec):
        return data
    for name in reversed([name for name, check in spec.spec_checks.items() if check.mode == "before"]):
        data = getattr(spec, name)(data)
    if not isinstance(data, Mapping) or not set(data) <= set(spec.spec_fields):
        raise NotImplementedError(f"{spec.__name__} of {data!r}"[:200])
    hints, values = spec.spec_hints(), {}
    for name in spec.spec_fields:
        if name not in data:
            if name not in spec.spec_defaults:
                raise NotImplementedError(f"{spec.__name__} without {name}")
            values[name] = spec.spec_default(name)
            continue
        if spec.spec_wrong(name, data[name]):
            raise _unlike(name, data[name])
        value = _of_type(hints[name], data[name])
        if name in spec.spec_limits:
            _require(spec.spec_limits[name].given, name, value)
        for check, how in spec.spec_checks.items():
            if how.mode == "after" and name in how.fields:
                value = getattr(spec, check)(value)
        values[name] = value
    made = object.__new__(spec) if into is None else into
    made.spec_hold(values, frozenset(data))
    for name, check in spec.spec_checks.items():
        if check.mode == "after" and not check.fields:
            getattr(made, name)()
    return made


def _unlike(what: Any, value: Any) -> NotImplementedError:
    return NotImplementedError(f"{value!r}"[:100] + f" as {getattr(what, '__name__', what)}")


def _of_type(hint: Any, value: Any) -> Any:
    """A value as its type has it. Raises ``NotImplementedError`` where it is of another."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(parts[0], parts[1:], value)
    if origin in (Union, UnionType):
        return _of_one(parts, value)
    if origin is Literal:
        if not any(value == one and type(value) is type(one) for one in parts):
            raise _unlike(hint, value)
        return value
    if origin is not None:
        return _of_several(origin, parts, value)
    if hint is Any:
        return value
    if hint is float and type(value) is not bool and isinstance(value, (int, float)):
        return float(value)
    if hint is int and type(value) is not bool and isinstance(value, (int, float)) and value == int(value):
        return int(value)
    if hint in (str, bool, date) or hint is None or hint is type(None):
        if type(value) is not (type(None) if hint is None else hint):
            raise _unlike(hint, value)
        return value
    if hasattr(hint, "spec_fields"):
        return checked(hint, value)
    if hint in (dict, list, tuple, object) and isinstance(value, hint):
        return value
    raise _unlike(hint, value)


def _annotated(hint: Any, notes: Sequence[Any], value: Any) -> Any:
    for note in reversed(notes):
        if isinstance(note, BeforeValidator):
            value = note.function(value)
    value = _of_type(hint, value)
    for note in notes:
        if isinstance(note, AfterValidator):
            value = note.function(value)
        elif isinstance(note, Limits):
            _require(note.given, "a value", value)
    return value


def _of_one(parts: Sequence[Any], value: Any) -> Any:
    """Of the first type that the value is of, without turning it into another where one does not have to."""
    for part in parts:
        if (isinstance(part, type) and type(value) is part) or (part is type(None) and value is None):
            return _of_type(part, value)
    for part in parts:
        try:
            return _of_type(part, value)
        except (NotImplementedError, ValueError, TypeError):
            continue
    raise _unlike("one of several", value)


def _of_several(origin: Any, parts: Sequence[Any], value: Any) -> Any:
    if issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _unlike(origin, value)
        return {_of_type(parts[0], key): _of_type(parts[1], one) for key, one in value.items()}
    if issubclass(origin, tuple) and isinstance(value, (list, tuple)):
        kinds = [parts[0]] * len(value) if len(parts) == 2 and parts[1] is ... else list(parts)
        if len(kinds) != len(value):
            raise _unlike(origin, value)
        return tuple(_of_type(kind, one) for kind, one in zip(kinds, value))
    if issubclass(origin, (list, set, frozenset, Sequence)) and isinstance(value, (list, tuple, set, frozenset)):
        return (list if issubclass(origin, (list, Sequence)) else origin)([_of_type(parts[0], one) for one in value])
    raise _unlike(origin, value)


_LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "ge": lambda value, limit: value >= limit,
    "gt": lambda value, limit: value > limit,
    "le": lambda value, limit: value <= limit,
    "lt": lambda value, limit: value < limit,
    "min_length": lambda value, limit: len(value) >= limit,
    "max_length": lambda value, limit: len(value) <= limit,
    "multiple_of": lambda value, limit: value % limit == 0,
    "pattern": lambda value, limit: re.search(limit, value) is not None,
    "allow_inf_nan": lambda value, limit: limit or isfinite(value),
    "default": lambda value, limit: True,
    "alias": lambda value, limit: True,
}


def _require(given: Mapping[str, Any], name: str, value: Any) -> None:
    """Raise ``NotImplementedError`` for a value beyond what pydantic's ``Field`` was given."""
    if value is not None and not all(_LIMITS[key](value, limit) for key, limit in given.items()):
        raise _unlike(name, value)
