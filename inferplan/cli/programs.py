"""Commands that a program runs: options by name in, a report or an error out, by the code that reads typed ones."""

from __future__ import annotations

import io
import os
import re
import shlex
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from inspect import cleandoc
from typing import Any

import click

from inferplan.catalog.price_lists import PriceBook, PricesAsked
from inferplan.cli import COMMANDS, cli, refusal
from inferplan.cli.declared import gets
from inferplan.cli.defaults import current
from inferplan.cli.layers import COMMON
from inferplan.cli.numbers import Count
from inferplan.cli.options import PROGRESS, REQUEST, TAKEN, WORDS
from inferplan.cli.settings import FILE, PREFIX
from inferplan.errors import UsageError
from inferplan.table import Report
from inferplan.units import MOST
from inferplan.web.commands import Answered, Options, Progress

WITHHELD = frozenset(
    {"help", "format", "timeline", "plot", "report", "rows", "update", "extra", "jobs", "scheduler"}
) | {*("from", "from-facts", "from-seconds", "send-load", "served-model", "api-key-env", "anchor-out")}
"""Options that write a file, print help, start processes or ask a server: a program that runs a command has none."""
_NAME = re.compile(r"[a-z][a-z0-9-]*")


def run_command(name: str, options: Options, progress: Progress | None = None) -> Answered:
    """Run a command of ``inferplan`` with options by name; nothing is printed, and no error is raised."""
    taken: list[Report] = []
    said, printed, error, meta, words = io.StringIO(), io.StringIO(), None, {}, [name]
    try:
        words += words_of(_command(name), options)
        with redirect_stderr(said), redirect_stdout(printed), cli.make_context("inferplan", list(words)) as context:
            meta = context.meta
            meta.update({TAKEN: taken, WORDS: words, PROGRESS: progress})
            cli.invoke(context)
    except Exception as found:
        error = refusal(found)
    return Answered(
        command=shlex.join(["inferplan", *words]),
        report=taken[0] if taken else None,
        error=error,
        printed=printed.getvalue(),
        notes=tuple(said.getvalue().splitlines()),
        request=meta.get(REQUEST),
    )


@click.command("prices")
@gets(prices=PricesAsked)
def _priced(prices: PricesAsked) -> PriceBook:
    return prices.book


def prices(options: Options) -> PriceBook:
    """The prices that the options of ``inferplan cost`` name. Raises ``InferplanError``."""
    try:
        book: PriceBook = _priced.main(words_of(_priced, options), "inferplan cost", standalone_mode=False)
    except click.ClickException as error:
        raise refusal(error) from None
    return book


def _command(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli, info_name="inferplan"), name)
    assert command is not None
    return command


def words_of(command: click.Command, options: Options) -> list[str]:
    """Options by name as the words that would be typed; what is ``None`` is left out.

    Raises ``UsageError`` for a name or a value that no word can be.
    """
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    places = [param.name or "" for param in arguments]
    first = [text for param in arguments for text in _argument(param, options.get(param.name or ""))]
    words = [] if any(word.startswith("-") for word in first) else first
    for key, value in options.items():
        if key not in places and value is not None:
            words += _option(command, key.replace("_", "-"), value)
    return words if words[: len(first)] == first else [*words, "--", *first]


def _argument(param: click.Argument, value: Any) -> list[str]:
    """The words of an argument, which some commands take several of."""
    each = value if param.nargs != 1 and isinstance(value, list) else [] if value is None else [value]
    return [_text(param.name or "", one) for one in each]


def _option(command: click.Command, name: str, value: Any) -> list[str]:
    if name in WITHHELD or not _NAME.fullmatch(name):
        raise UsageError(f"No such option '--{name[:40]}'.", hint=f"inferplan {command.name} --help")
    options = [option for option in command.params if isinstance(option, click.Option) and f"--{name}" in option.opts]
    if isinstance(value, bool):
        return _switch(options, name, value)
    if options and options[0].is_flag:
        raise UsageError(f"--{name} is true or false, not {str(value)[:40]!r}")
    words = []
    for one in value if isinstance(value, list) else [value]:
        text = _text(name, one)
        words += [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
    return words


def _switch(options: list[click.Option], name: str, on: bool) -> list[str]:
    """The word that switches a flag on or off, where it has one."""
    if options and not options[0].is_flag:
        raise UsageError(f"--{name}: {on} is neither a text nor a number")
    return options[0].secondary_opts[:1] if options and not on else [f"--{name}"]


def _text(name: str, value: Any) -> str:
    if isinstance(value, (bool, Mapping, list)) or value is None:
        raise UsageError(f"{name}: {str(value)[:40]} is neither a text nor a number")
    if isinstance(value, int) and abs(value) > MOST:  # Python writes no number of more than 4300 digits
        raise UsageError(f"{name}: a number that large is more than anything here")
    return str(value)


def schema(name: str) -> dict[str, Any]:
    """The options of a command as a JSON schema, with their help."""
    command = _command(name)
    found, required = {}, []
    for param in command.params:
        names = [param.name or ""] if isinstance(param, click.Argument) else param.opts
        key = next((text.removeprefix("--") for text in names if not text.startswith("-") or text[:2] == "--"), "")
        if key and key not in WITHHELD and not getattr(param, "hidden", False):
            found[key] = _schema(param)
            required += [key] if param.required else []
    about = cleandoc(command.help or "")
    own = {"type": "object", "description": about, "properties": found, "required": required}
    return {**own, "additionalProperties": False}


def common(name: str) -> frozenset[str]:
    """The options of a command that help shows first, and its arguments; empty where it shows all."""
    own = COMMON.get(name, "").split()
    arguments = (param.name or "" for param in _command(name).params if isinstance(param, click.Argument))
    return frozenset([*own, *arguments]) if own else frozenset()


def _schema(param: click.Parameter) -> dict[str, Any]:
    kind = param.type
    one: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "number"}]}
    if isinstance(kind, click.Choice):
        one = {"type": "string", "enum": [str(choice) for choice in kind.choices]}
    elif isinstance(kind, Count):
        one = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    elif getattr(param, "is_flag", False):
        one = {"type": "boolean"}
    if param.multiple or param.nargs != 1:
        one = {"anyOf": [one, {"type": "array", "items": one}]}
    text = getattr(param, "help", None)
    return {**one, "description": text} if text else one


def prepare() -> None:
    """Keep the defaults in force here (``inferplan settings``), whatever folder the process works in later."""
    if os.path.isfile(FILE):
        os.environ.setdefault(f"{PREFIX}CONFIG", FILE)
    named = os.environ.get(f"{PREFIX}CONFIG")
    if named:
        os.environ[f"{PREFIX}CONFIG"] = os.path.abspath(named)
    current(frozenset(COMMANDS))


class CommandLine:
    """This module as an object that another process can be handed (:class:`inferplan.web.commands.Commands`)."""

    prepare = staticmethod(prepare)
    run = staticmethod(run_command)
    prices = staticmethod(prices)
    schema = staticmethod(schema)
    common = staticmethod(common)
