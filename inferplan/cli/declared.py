"""Options of commands made from the fields of questions (inferplan/fields.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any

import click

from inferplan.cli.numbers import Count, Finite, Positive, ShareWithin, Within
from inferplan.fields import (
    Option,
    Part,
    Quantity,
    Real,
    Share,
    Switch,
    Text,
    Whole,
    Words,
    asked_fields,
    option_values,
    question_asked,
    question_if_asked,
)

if TYPE_CHECKING:
    from inferplan.catalog.assemble import Request
    from inferplan.serving.techniques.applied import Techniques
    from inferplan.serving.techniques.speculation import Speculation

Command = Callable[..., Any]


class Declared:
    """An option of a command as data, so that its name is known before a command has it."""

    def __init__(self, *names: str, **keywords: Any) -> None:
        self.names, self.keywords = names, keywords
        word = next((name for name in names if not name.startswith("-")), names[0].partition("/")[0].lstrip("-"))
        self.name = word.replace("-", "_")


def options_of(kind: type[Any], *only: str, without: Collection[str] = ()) -> list[Declared]:
    """The options of a question, or of some of its fields, in the order in which help shows them."""
    found: list[Declared] = []
    for name, (one, default) in asked_fields(kind).items():
        if (only and name not in only) or name in without:
            continue
        found += options_of(one.kind, *one.only) if isinstance(one, Part) else [_option(one, default)]
    return found


def _option(one: Option, default: Any) -> Declared:
    keywords: dict[str, Any] = {"help": one.help, "metavar": one.metavar, "multiple": one.several}
    if one.shown:
        keywords |= {"default": default, "show_default": True}
    name = one.name
    if isinstance(one.kind, Switch):
        keywords |= {"default": None} if one.kind.both else {"is_flag": True}
        name = f"{name}/--no-{name.removeprefix('--')}" if one.kind.both else name
    else:
        keywords |= {"type": _click_type(one.kind)}
    return Declared(name, *one.also, one.key, **keywords)


def _click_type(kind: Quantity | Whole | Real | Words | Text) -> Any:
    """How click reads the text of an option; what has a unit is read with the question."""
    if isinstance(kind, Whole):
        return Count(kind.low, kind.most)
    if isinstance(kind, Words):
        return click.Choice(kind.words)
    if not isinstance(kind, Real):
        return None
    if isinstance(kind, Share):
        return ShareWithin(kind.low, kind.high, min_open=kind.above)
    if kind.high < inf:
        return Within(kind.low, kind.high, min_open=kind.above)
    return Finite() if kind.low == -inf else Positive(None if kind.above else kind.low)


def quantity(text: str | None, dimension: str, name: str) -> float | None:
    """A quantity with its unit. Raises ``UsageError`` that names the option."""
    return None if text is None else Quantity(dimension).read(name, text)


def with_options(options: Iterable[Declared]) -> Callable[[Command], Command]:
    """A decorator that adds options to a command."""

    def add(command: Command) -> Command:
        for one in reversed([*options]):
            command = click.option(*one.names, **one.keywords)(command)
        return command

    return add


def asks(*kinds: type[Any]) -> Callable[[Command], Command]:
    """A decorator that adds the options of questions to a command, which gets their values by name."""
    return with_options([one for kind in kinds for one in options_of(kind)])


def gets(**kinds: type[Any]) -> Callable[[Command], Command]:
    """A decorator that adds the options of questions to a command, which gets each of them, made, by its name."""
    options = {name: options_of(kind) for name, kind in kinds.items()}

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(**values: Any) -> Any:
            given = {name: {one.name: values.pop(one.name) for one in of} for name, of in options.items()}
            return command(**{name: question_asked(kinds[name], of) for name, of in given.items()}, **values)

        return with_options([one for of in options.values() for one in of])(wrapper)

    return add


def techniques_of(values: Mapping[str, Any], request: Request) -> Techniques:
    """What is asked for beside a static batch: speculation, a hit rate, a chunk, a host tier."""
    from inferplan.serving.techniques.applied import Techniques

    return Techniques(speculation=speculation_of(values, request), **option_values(Techniques, values))


def speculation_of(values: Mapping[str, Any], request: Request) -> Speculation:
    """The speculation that is asked for, on the devices of ``request``; none without drafts."""
    from inferplan.answers.drafting import DraftsAsked
    from inferplan.serving.techniques.speculation import PLAIN

    asked = question_if_asked(DraftsAsked, values)
    return PLAIN if asked is None else asked.on(request)
