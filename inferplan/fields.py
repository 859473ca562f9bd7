"""Fields of a question that say how they are asked: the option, its unit or kind, its limits, its help.

A question is a dataclass. What ``ask(...)`` of a field says is read by every face: the options of a command
and docs/cli.md (inferplan/cli/declared.py), the JSON schema of the page (inferplan/cli/programs.py), the keyword
arguments of Python (inferplan/arguments.py), and the errors, which name the option. An option is added by a field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from math import inf
from typing import Any, ClassVar, Protocol, TypeVar

from inferplan.errors import UsageError
from inferplan.spec import Spec
from inferplan.units import MOST, parse_quantity

_Asked = TypeVar("_Asked")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Quantity:
    """Text with a unit of a ``dimension`` (a key of :data:`inferplan.units.UNITS`), or a number in SI units. above: 0
    itself is refused."""

    dimension: str
    above: bool = False

    def read(self, name: str, value: Any) -> float:
        try:
            found = parse_quantity(value, self.dimension) if isinstance(value, str) else float(value)
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from None
        self.require(name, found)
        return found

    def require(self, name: str, value: float) -> None:
        if not value >= 0 or (self.above and value == 0):
            raise UsageError(f"{name} must be {'more than 0' if self.above else '0 or more'}, not {value:g}")


@dataclass(frozen=True)
class Whole:
    """A whole number from ``low`` to ``most``; text such as ``8k`` is read too."""

    low: int = 1
    most: int = MOST

    def read(self, name: str, value: Any) -> int:
        return int(value)

    def require(self, name: str, value: int) -> None:
        if value < self.low:
            raise UsageError(f"{name} must be {self.low} or more, not {value}")
        if value > self.most:
            shown = f"{value:,}"
            shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
            raise UsageError(f"{name} must be at most {self.most:,}, not {shown}")


@dataclass(frozen=True)
class Real:
    """A finite number in these limits; above: ``low`` itself is refused."""

    low: float = -inf
    high: float = inf
    above: bool = False

    def read(self, name: str, value: Any) -> float:
        return float(value)

    def require(self, name: str, value: float) -> None:
        least = value > self.low if self.above else value >= self.low
        if least and value <= self.high and abs(value) < inf:
            return
        if self.high < inf:
            raise UsageError(f"{name} is in {'(' if self.above else '['}{self.low:g}, {self.high:g}], not {value:g}")
        limit = "a finite number" if self.low == -inf else f"{self.low:g} or more"
        raise UsageError(f"{name} must be {f'more than {self.low:g}' if self.above else limit}, not {value:g}")


@dataclass(frozen=True)
class Share(Real):
    """A share, such as ``0.99`` or ``99%``."""

    low: float = 0
    high: float = 1
    above: bool = True

    def read(self, name: str, value: Any) -> float:
        per_cent = isinstance(value, str) and value.endswith("%")
        return float(value[:-1]) / 100 if per_cent else float(value)


SHARE = Share()
"""A number above 0 and up to 1."""


@dataclass(frozen=True)
class Words:
    """One of these words."""

    words: tuple[str, ...]

    def read(self, name: str, value: Any) -> str:
        return str(value)

    def require(self, name: str, value: str) -> None:
        if value not in self.words:
            raise UsageError(f"{name} is {value!r:.60}", hint=", ".join(self.words))


@dataclass(frozen=True)
class Text:
    """Text, as it is or as ``parse`` reads it, which raises ``UsageError``."""

    parse: Callable[[str], Any] = str

    def read(self, name: str, value: Any) -> Any:
        return self.parse(value) if isinstance(value, str) else value

    def require(self, name: str, value: Any) -> None:
        """Whatever it makes checks itself."""


@dataclass(frozen=True)
class Switch:
    """True where it is given. both: ``--no-...`` says false, and neither word leaves it open."""

    both: bool = False

    def read(self, name: str, value: Any) -> bool:
        return bool(value)

    def require(self, name: str, value: bool) -> None:
        """Both are fine."""


Kind = Quantity | Whole | Real | Words | Text | Switch
_METAVARS = {"seconds": "TIME", "bytes": "SIZE", "bytes/s": "RATE", "watts": "WATTS"}
_SUFFIXES = {"seconds": "_s", "bytes": "_bytes", "bytes/s": "_bytes_per_s", "watts": "_w"}


@dataclass(frozen=True, kw_only=True)
class Option:
    """How a field is asked. name: of the option. also: synonyms. shown: help shows the default of the field; other
    defaults stand in brackets at the end of ``help``. several: it may be given again. record: its key in JSON, where
    that is not its name with the unit."""

    name: str
    kind: Kind
    help: str
    metavar: str | None = None
    also: tuple[str, ...] = ()
    shown: bool = False
    several: bool = False
    record: str | None = None

    @property
    def key(self) -> str:
        """Its name as a word of Python: of a keyword argument, and of the value in a command."""
        return self.name.removeprefix("--").replace("-", "_")

    def given(self, value: Any) -> bool:
        """Whether a value was given: flags are ``False`` and repeated options empty where they were not."""
        return value is not None and value != () and (value is not False or self.kind == Switch(both=True))

    def read(self, value: Any) -> Any:
        """The value that was given, in SI units."""
        if self.several:
            return tuple(self.kind.read(self.name, one) for one in value)
        return self.kind.read(self.name, value)


def need(name: str, kind: Kind, text: str, metavar: str | None = None, **more: Any) -> dict[str, Option]:
    """The metadata of a field without a default, ``field(metadata=need(...))``. text: its help. more: fields of
    :class:`Option`."""
    if metavar is None and isinstance(kind, Quantity):
        metavar = _METAVARS[kind.dimension]
    return {"option": Option(name=name, kind=kind, help=text, metavar=metavar, **more)}


def ask(name: str, kind: Kind, text: str, default: _Value, **more: Any) -> _Value:
    """A field with a default that is an option: :func:`dataclasses.field`, for a type checker the default."""
    made: _Value = field(default=default, metadata=need(name, kind, text, **more))
    return made


@dataclass(frozen=True)
class Part:
    """A field that is a question of its own, of which all fields are asked here, or those named in ``only``."""

    kind: type[Any]
    only: tuple[str, ...] = ()


def part(kind: type[Any], default: _Value, *only: str) -> _Value:
    """A field that is a question of its own, whose options are those of the whole."""
    made: _Value = field(default=default, metadata={"part": Part(kind, only)})
    return made


@dataclass(frozen=True)
class Topic:
    """What options are about, for the errors that say so.

    name: such as ``structured decoding``. absent: why an option of it says nothing alone. because: why nothing stands
    in for a part that is not given. hint: words that ask for the whole. by_any: every option asks for it. either:
    options of which one is needed.
    """

    name: str
    absent: str = ""
    hint: str = ""
    because: str = ""
    by_any: bool = False
    either: tuple[str, ...] = ()


class OptionalQuestion(Protocol):
    """A dataclass whose fields are options. Its first one, or any, says whether it is asked for at all."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    topic: ClassVar[Topic]


_Part = TypeVar("_Part", bound=OptionalQuestion)


def asked_fields(kind: type[Any]) -> dict[str, tuple[Option | Part, Any]]:
    """The fields that are asked, in order, each with its default (``MISSING`` where it has none).

    kind: a dataclass, or a spec whose annotations hold what :func:`need` makes.
    """
    if issubclass(kind, Spec):
        named = (
            (name, [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, dict)])
            for name, hint in kind.spec_hints().items()
        )
        return {name: (said[0]["option"], kind.spec_default(name)) for name, said in named if said}
    found = {}
    for one in fields(kind):
        said = one.metadata.get("option") or one.metadata.get("part")
        if said is not None:
            found[one.name] = said, one.default
    return found


def option_fields(kind: type[Any]) -> dict[str, Option]:
    """The fields of a question that are options, in order."""
    return {name: one for name, (one, _) in asked_fields(kind).items() if isinstance(one, Option)}


def question_parts(kind: type[Any]) -> dict[str, Part]:
    """The fields of a question that are questions."""
    return {name: one for name, (one, _) in asked_fields(kind).items() if isinstance(one, Part)}


def option_values(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that ``values`` of options, by their keys, say something of."""
    options = {name: one for name, one in option_fields(kind).items() if one.key in values}
    found = {name: one.read(values[one.key]) for name, one in options.items() if one.given(values[one.key])}
    for name, inner in question_parts(kind).items():
        if hasattr(inner.kind, "topic"):
            whole = question_if_asked(inner.kind, values)
            found |= {} if whole is None else {name: whole}
        elif given := option_values(inner.kind, values):
            found[name] = inner.kind(**given)
    return found


def _given_in(kind: type[Any], values: Mapping[str, Any]) -> list[Option]:
    """The options of a question that are given."""
    return [one for one in option_fields(kind).values() if one.given(values.get(one.key))]


def declared_keys(kind: type[Any]) -> tuple[str, ...]:
    """The keys of a question's own options."""
    return tuple(one.key for one in option_fields(kind).values())


def first_given(values: Mapping[str, Any], keys: Iterable[str]) -> str:
    """The first of these options that asks for something, as it is typed; empty where none does."""
    return next((f"--{key.replace('_', '-')}" for key in keys if values.get(key)), "")


def question_of(kind: type[_Asked], values: Mapping[str, Any]) -> _Asked:
    """The question that options ask; fields that are not given have their defaults."""
    return kind(**option_values(kind, values))


def question_if_asked(kind: type[_Part], values: Mapping[str, Any]) -> _Part | None:
    """The question that options ask, ``None`` where its first field is not given.

    Raises ``UsageError`` for others of its options without the first, and for one that is missing.
    """
    options, given, topic = option_fields(kind), option_values(kind, values), kind.topic
    if topic.by_any:
        return kind(**given) if given else None
    if next(iter(options)) not in given:
        usual = {name: default for name, (one, default) in asked_fields(kind).items() if getattr(one, "shown", False)}
        alone = [name for name in given if name not in usual or given[name] != usual[name]]
        if alone:
            said = options.get(alone[0]) or next(iter(_given_in(question_parts(kind)[alone[0]].kind, values)))
            what = f"{said.name} belongs to {topic.name}, and {topic.absent}"
            raise UsageError(what, hint=f"{topic.hint}, or leave it out")
        return None
    needed = [one.name for one in fields(kind) if one.default is one.default_factory is MISSING]
    if missing := [options[name].name for name in needed if name not in given]:
        if topic.either and not any(options[name].name in topic.either for name in given):
            missing.append(" or ".join(topic.either))
        raise UsageError(f"{topic.name} needs {' and '.join(missing)}", because=topic.because, hint=topic.hint)
    return kind(**given)


def question_asked(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """The question that options ask; ``None`` for one of a topic that they do not ask for."""
    return question_if_asked(kind, values) if hasattr(kind, "topic") else question_of(kind, values)


def question_record(question: Any) -> dict[str, Any]:
    """A question as JSON has it; units are in the keys."""
    found = {}
    for name, one in option_fields(type(question)).items():
        unit = _SUFFIXES[one.kind.dimension] if isinstance(one.kind, Quantity) else ""
        found[one.record or one.key + unit] = getattr(question, name)
    return found


def words_given(question: Any) -> dict[str, Any]:
    """What the options of a question and of its parts say beside their defaults, by their keys."""
    found: dict[str, Any] = {}
    for name, (one, default) in asked_fields(type(question)).items():
        value = getattr(question, name)
        if isinstance(one, Part):
            found |= words_given(value)
        elif value != default:
            found[one.key] = value
    return found


def require_limits(question: Any) -> None:
    """Raise ``UsageError`` for a field of a question that is not of its kind's limits; ``None`` is none of them."""
    for name, one in option_fields(type(question)).items():
        value = getattr(question, name)
        for each in value if one.several else (value,):
            if each is not None:
                one.kind.require(one.name, each)
