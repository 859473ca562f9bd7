"""The base of every value that is read from YAML: frozen, and strict about fields it does not know.

Fields are declared as pydantic has them, and pydantic checks them (:mod:`inferplan.checked`). It is imported with the
first value that has to be checked: a start reads specs that were checked before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from operator import itemgetter
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar, dataclass_transform, get_type_hints

from inferplan.errors import has_control, printable
from inferplan.units import MOST
from inferplan.validators import Limits

_Method = TypeVar("_Method")


def Field(**given: Any) -> Any:
    """The default and the limits of a field: ``default``, ``ge``, ``min_length``, ``pattern`` and others of pydantic's
    ``Field``."""
    return Limits(given)


class Check(NamedTuple):
    """A method that checks fields. fields: those of a value each; none for the whole."""

    mode: Literal["before", "after"]
    fields: tuple[str, ...] = ()


def model_validator(*, mode: Literal["before", "after"]) -> Callable[[_Method], _Method]:
    """A check of the whole, with pydantic's meaning: before, a class method of what was given; after, a method."""
    return _marked(Check(mode))


def field_validator(*names: str) -> Callable[[_Method], _Method]:
    """A class method that checks the value of fields and gives what stands in its place."""
    return _marked(Check("after", names))


def _marked(check: Check) -> Callable[[_Method], _Method]:
    def mark(method: _Method) -> _Method:
        method.check = check  # type: ignore[attr-defined]
        return method

    return mark


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class Spec:
    """A frozen value that refuses unknown fields."""

    __slots__ = ("__dict__", "__weakref__", "model_fields_set")
    model_config: ClassVar[dict[str, Any]] = {}
    """Settings of pydantic beside those of every spec; those of a base class hold too."""
    spec_fields: ClassVar[tuple[str, ...]] = ()
    spec_defaults: ClassVar[dict[str, Any]] = {}
    """By field; none of one that has to be given."""
    spec_limits: ClassVar[dict[str, Limits]] = {}
    """By field, where it is declared with :func:`Field`."""
    spec_checks: ClassVar[dict[str, Check]] = {}
    """By the name of the method, those of base classes first."""
    _values: ClassVar[Callable[[dict[str, Any]], Any]]
    model_fields_set: frozenset[str]
    """Fields that were given."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        fields: dict[str, None] = {}
        defaults: dict[str, Any] = {}
        limits: dict[str, Limits] = {}
        checks: dict[str, Check] = {}
        for base in reversed(cls.__mro__[1:]):
            if base is not Spec and issubclass(base, Spec):
                fields.update(dict.fromkeys(base.spec_fields))
                defaults.update(base.spec_defaults)
                limits.update(base.spec_limits)
                checks.update(base.spec_checks)
        own = vars(cls)
        for name, annotation in _annotations(cls).items():
            if name.startswith("_") or str(annotation).removeprefix("typing.").startswith("ClassVar"):
                continue
            fields[name] = None
            for kept in (defaults, limits):
                kept.pop(name, None)
            if name not in own:
                continue
            if isinstance(own[name], Limits):
                limits[name] = own[name]
                if "default" in own[name].given:
                    defaults[name] = own[name].given["default"]
            else:
                defaults[name] = own[name]
            delattr(cls, name)
        checks |= {name: made.check for name, made in own.items() if isinstance(getattr(made, "check", None), Check)}
        cls.spec_fields, cls.spec_defaults, cls.spec_limits, cls.spec_checks = tuple(fields), defaults, limits, checks
        if fields:
            cls._values = itemgetter(*fields)

    def __init__(self, **given: Any) -> None:
        """Raises ``ValidationError`` for fields that cannot be."""
        if given or type(self)._lacking():
            from inferplan.checked import checked

            checked(type(self), given, into=self)
        else:
            self.spec_hold(type(self)._defaults(), frozenset())

    def spec_hold(self, values: dict[str, Any], given: frozenset[str]) -> None:
        """Have these values, of a spec that is made."""
        object.__setattr__(self, "__dict__", values)
        object.__setattr__(self, "model_fields_set", given)

    @classmethod
    def default(cls) -> Self:
        """The one whose fields all have their defaults. Raises ``TypeError`` where a field has none."""
        if lacking := cls._lacking():
            raise TypeError(f"{cls.__name__} has no default: {', '.join(lacking)} is required")
        return cls.model_construct()

    @classmethod
    def _lacking(cls) -> list[str]:
        """The fields that have to be given."""
        return [name for name in cls.spec_fields if name not in cls.spec_defaults]

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        return {name: cls.spec_default(name) for name in cls.spec_fields if name in cls.spec_defaults}

    @classmethod
    def model_construct(cls, **values: Any) -> Self:
        """One of values that need no check."""
        made = object.__new__(cls)
        made.spec_hold(cls._defaults() | values, frozenset(values))
        return made

    @classmethod
    def model_validate(cls, data: Any, *, strict: bool | None = None) -> Self:
        """One from a mapping of its fields, or one that is there. Raises ``ValidationError``.

        strict: a number is no text, and the reverse.
        """
        from inferplan.checked import checked

        made: Self = checked(cls, data, strict=strict)
        return made

    @classmethod
    def spec_default(cls, name: str) -> Any:
        """The default of a field that has one, which nobody else may change."""
        value = cls.spec_defaults[name]
        return deepcopy(value) if isinstance(value, list | dict | set) else value

    @classmethod
    def spec_hints(cls) -> dict[str, Any]:
        """The type of each field, with what it is annotated with."""
        if "_hints" not in vars(cls):
            found = get_type_hints(cls, include_extras=True)
            cls._hints = {name: found[name] for name in cls.spec_fields}
        return cls._hints

    _hints: ClassVar[dict[str, Any]]

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        """How pydantic checks a field that holds one: as it is checked by itself."""
        from inferplan.checked import nested

        return nested(cls)

    @classmethod
    def spec_wrong(cls, name: str, value: Any) -> str:
        """An integer on which arithmetic would overflow; a switch where a number belongs, which pydantic takes for 1
        or 0; control characters, which would reach a terminal with the text.
        """
        if isinstance(value, int):
            if abs(value) > MOST:
                return f"more than anything here can count ({MOST:.0e})"
            return (
                f"{str(value).lower()} is not a number" if isinstance(value, bool) and not cls._is_switch(name) else ""
            )
        if isinstance(value, str):
            wrong = has_control(value) or (name == "name" and not value.isprintable())
            return f"control characters in {printable(value)[:40]}" if wrong else ""
        if isinstance(value, list) and any(one is True or one is False for one in value) and not cls._is_switch(name):
            return "true and false are not numbers"
        return ""

    @classmethod
    def _is_switch(cls, name: str) -> bool:
        """Whether a field may be true or false."""
        return name not in cls.spec_fields or "bool" in repr(cls.spec_hints()[name])

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """The same with some fields changed, unchecked. What it had worked out from its fields is not carried over.

        deep: with lists and mappings of its own.
        """
        if deep:
            return deepcopy(self).model_copy(update=update)
        held, update = vars(self), update or {}
        made = object.__new__(type(self))
        kept = {name: held[name] for name in type(self).spec_fields if name in held} if update else dict(held)
        made.spec_hold({**kept, **update}, self.model_fields_set | frozenset(update))
        return made

    def model_dump(
        self,
        *,
        mode: Literal["python", "json"] = "python",
        include: set[str] | None = None,
        exclude: set[str] | None = None,
        exclude_defaults: bool = False,
        exclude_none: bool = False,
    ) -> dict[str, Any]:
        """Its fields as a mapping, those of specs in it too. mode: ``json`` has lists and numbers alone."""

        def dumped(value: Any) -> Any:
            if isinstance(value, Spec):
                return value.model_dump(mode=mode, exclude_defaults=exclude_defaults, exclude_none=exclude_none)
            if isinstance(value, Mapping):
                return {key: dumped(one) for key, one in value.items()}
            if isinstance(value, list | tuple):
                parts = [dumped(one) for one in value]
                return tuple(parts) if isinstance(value, tuple) and mode == "python" else parts
            if mode == "json" and isinstance(value, set | frozenset):
                return [dumped(one) for one in value]
            if mode == "json" and hasattr(value, "isoformat"):
                return value.isoformat()
            return value

        found: dict[str, Any] = {}
        for name in type(self).spec_fields:
            value = vars(self)[name]
            left_out = (include is not None and name not in include) or name in (exclude or ())
            if left_out or (exclude_none and value is None):
                continue
            if exclude_defaults and name in type(self).spec_defaults and value == type(self).spec_defaults[name]:
                continue
            found[name] = dumped(value)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be removed")

    def __getstate__(self) -> tuple[dict[str, Any], frozenset[str]]:
        return dict(vars(self)), self.model_fields_set

    def __setstate__(self, state: tuple[dict[str, Any], frozenset[str]]) -> None:
        self.spec_hold(*state)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        mine, others = vars(self), vars(other)
        return mine == others or all(mine[name] == others[name] for name in type(self).spec_fields)

    def __hash__(self) -> int:
        return hash(type(self)._values(vars(self))) if type(self).spec_fields else hash(type(self))

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, vars(self)[name]) for name in type(self).spec_fields)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self)})"


def _annotations(cls: type) -> Mapping[str, Any]:
    """What a class itself annotates; of names that are not there yet a stand-in. From Python 3.14 on they are made when
    they are asked for (PEP 649)."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        return get_annotations(cls, format=Format.FORWARDREF)
    found: dict[str, Any] = vars(cls).get("__annotations__", {})
    return found
