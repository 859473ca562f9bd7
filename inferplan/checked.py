"""How specs are checked: by a pydantic model of the same fields, made of a spec when the first one of its kind is."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from functools import reduce
from operator import or_
from types import UnionType, new_class
from typing import Annotated, Any, Union, cast, get_args, get_origin

import pydantic
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from inferplan.validators import AfterValidator, BeforeValidator, Limits

_strict: ContextVar[bool | None] = ContextVar("strict", default=None)
"""As the outermost check was asked for, for those of specs in it."""


def checked(spec: type[Any], data: Any, *, strict: bool | None = None, into: Any = None) -> Any:
    """A spec (:class:`inferplan.spec.Spec`) of what was given, or that itself where it is one.

    into: one that is made, of fields by name.

    Raises ``ValidationError``, with the place of every fault.
    """
    if into is None and isinstance(data, spec):
        return data
    before = [name for name, check in spec.spec_checks.items() if check.mode == "before"]
    try:
        for name in reversed(before):
            data = getattr(spec, name)(data)
    except ValueError as error:
        raise _fault(spec, error, data) from error
    _refuse_what_no_field_means(spec, data)
    model = model_of(spec)
    token = _strict.set(strict)
    try:
        found = model.model_validate(data, strict=strict) if into is None else model(**data)
    finally:
        _strict.reset(token)
    made = object.__new__(spec) if into is None else into
    made.spec_hold(vars(found), frozenset(found.model_fields_set))
    try:
        for name, check in spec.spec_checks.items():
            if check.mode == "after" and not check.fields:
                getattr(made, name)()
    except ValueError as error:
        raise _fault(spec, error, data) from error
    return made


def nested(spec: type[Any]) -> core_schema.CoreSchema:
    """The check of a field that holds a spec."""
    return core_schema.no_info_plain_validator_function(lambda value: checked(spec, value, strict=_strict.get()))


def model_of(spec: type[Any]) -> type[BaseModel]:
    """The pydantic model of the fields of a spec."""
    if spec not in _models:
        _models[spec] = _made_of(spec)
    return _models[spec]


_models: dict[type[Any], type[BaseModel]] = {}


def _made_of(spec: type[Any]) -> type[BaseModel]:
    config: dict[str, Any] = {"extra": "forbid", "protected_namespaces": ()}
    for base in reversed(spec.__mro__):
        config |= vars(base).get("model_config", {})
    body: dict[str, Any] = {
        "__module__": spec.__module__,
        "__annotations__": {name: _meant(hint) for name, hint in spec.spec_hints().items()},
        "model_config": ConfigDict(**config),  # type: ignore[typeddict-item]
    }
    body |= spec.spec_defaults
    body |= {name: pydantic.Field(**limits.given) for name, limits in spec.spec_limits.items()}
    for name, check in spec.spec_checks.items():
        if check.fields:
            method = getattr(spec, name)
            body[name] = pydantic.field_validator(*check.fields)(_of_value(method))
    return cast(type[BaseModel], new_class(spec.__name__, (BaseModel,), exec_body=lambda names: names.update(body)))


def _of_value(method: Any) -> Any:
    return classmethod(lambda _, value: method(value))


def _meant(hint: Any) -> Any:
    """A type as pydantic has it: with its own validators and limits."""
    if isinstance(hint, BeforeValidator):
        return pydantic.BeforeValidator(hint.function)
    if isinstance(hint, AfterValidator):
        return pydantic.AfterValidator(hint.function)
    if isinstance(hint, Limits):
        return pydantic.Field(**hint.given)
    origin, parts = get_origin(hint), get_args(hint)
    found = tuple(_meant(part) for part in parts)
    if origin not in (Union, UnionType) and all(one is part for one, part in zip(found, parts)):
        return hint
    if origin is Annotated:
        return Annotated[found]
    if origin in (Union, UnionType):  # faults name a spec of several types, not the function that checks it
        return reduce(
            or_, (Annotated[one, pydantic.Tag(one.__name__)] if hasattr(one, "spec_hold") else one for one in found)
        )
    return origin[found]


def _refuse_what_no_field_means(spec: type[Any], data: Any) -> None:
    """Raise ``ValidationError``, at the field, for a value that pydantic would take and that means nothing."""
    if isinstance(data, Mapping):
        problems = [(name, value, why) for name, value in data.items() if (why := spec.spec_wrong(name, value))]
        if problems:
            found = [
                InitErrorDetails(
                    type=PydanticCustomError("meaningless", "{why}", {"why": why}), loc=(name,), input=value
                )
                for name, value, why in problems
            ]
            raise ValidationError.from_exception_data(spec.__name__, found)


def _fault(spec: type[Any], error: ValueError, data: Any) -> ValidationError:
    """What a check says, as a fault of the whole."""
    if isinstance(error, ValidationError):
        return error
    fault = InitErrorDetails(type="value_error", loc=(), input=data, ctx={"error": error})
    return ValidationError.from_exception_data(spec.__name__, [fault])
