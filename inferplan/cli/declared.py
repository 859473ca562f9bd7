"""Options of commands made from the fields of questions (inferplan/fields.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, replace
from math import inf
from typing import TYPE_CHECKING, Any

import click

from inferplan.cli.options import Count, Finite, Positive, Within, noted
from inferplan.fields import Option, Quantity, Real, Switch, Text, Whole, Words, made_if_asked, made_of, option_values

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


def options_of(kind: type[Any], *only: str) -> list[Declared]:
    """The options of a question, or of some of its fields, in the order in which help shows them."""
    found: list[Declared] = []
    for field in fields(kind):
        one, part = field.metadata.get("option"), field.metadata.get("part")
        if part is not None and (not only or field.name in only):
            found += options_of(part.kind, *part.only)
        elif one is not None and (not only or field.name in only):
            found.append(_option(one, None if field.default is MISSING else field.default))
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


def asks_in_request(field: str, kind: type[Any]) -> Callable[[Command], Command]:
    """A decorator that adds the options of a question, which is a field of the command's request."""

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(request: Request, **values: Any) -> Any:
            given = {one.name: values.pop(one.name) for one in options_of(kind)}
            changed: dict[str, Any] = {field: made_of(kind, given)}
            return command(request=noted(replace(request, **changed)), **values)

        return asks(kind)(wrapper)

    return add


def asks_of_request(*names: str) -> Callable[[Command], Command]:
    """A decorator that adds the options of fields of the command's request."""

    def add(command: Command) -> Command:
        from inferplan.catalog.assemble import Request

        options = options_of(Request, *names)

        @functools.wraps(command)
        def wrapper(request: Request, **values: Any) -> Any:
            given = {one.name: values.pop(one.name) for one in options}
            changed = option_values(Request, given)
            return command(request=noted(replace(request, **changed)) if changed else request, **values)

        return with_options(options)(wrapper)

    return add


def techniques_of(values: Mapping[str, Any], request: Request) -> Techniques:
    """What is asked for beside a static batch: speculation, a hit rate, a chunk, a host tier."""
    from inferplan.serving.techniques.applied import Techniques

    return Techniques(speculation=speculation_of(values, request), **option_values(Techniques, values))


def speculation_of(values: Mapping[str, Any], request: Request) -> Speculation:
    """The speculation that is asked for, on the devices of ``request``; none without drafts."""
    from inferplan.answers.drafting import DraftsAsked
    from inferplan.serving.techniques.speculation import PLAIN

    asked = made_if_asked(DraftsAsked, values)
    return PLAIN if asked is None else asked.on(request)
