"""What each option of a command changes: it is given a value that should matter, and the answer looked at.

``python -m tests.silent_options`` (``make silent-options``) asks every line of ``bases.txt`` with each option of its
command, and prints those that nobody hears: the answer is as it was, and nothing is refused or noted.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import click
import pytest

from inferplan.cli import cli, main, options, sweep
from inferplan.table import Report
from inferplan.units import UNITS, parse_quantity

HERE = Path(__file__).parent
JSON = ("--format", "json")
_WRITE = options.write
ECHOES = ("command",)
"""Keys of a record that hold what was asked."""
EXEMPT = {
    "--jobs": "processes: the answer is the same for any number, as its help says",
    "sweep --executor": "where the grid runs",
    "emit --host": "what it holds is checked against --host-memory; no flag of an engine names the host",
    **dict.fromkeys(
        ("emit --host-link", "fit --host-link"),
        "needed where none is on file for the GPU; memory and flags ask no more",
    ),
    **dict.fromkeys(
        (
            *("plan --from", "plan --from-facts", "plan --from-seconds", "plan --send-load", "plan --served-model"),
            *("plan --api-key-env", "plan --anchor-out"),
        ),
        "of a server that runs, which the lines have none of",
    ),
}
"""Options that change no answer, and why they are there."""


@dataclass(frozen=True)
class Answer:
    """What a command line leaves behind."""

    code: int
    out: str
    said: str
    files: frozenset[str] = frozenset()

    @property
    def record(self) -> Any:
        try:
            return json.loads(self.out)
        except ValueError:
            return self.out


def ask(words: list[str], keep: bool = False) -> Answer:
    """The answer to ``inferplan`` with these words, in this process and this folder. keep: the files that it wrote."""
    before, out, err, code = set(os.listdir()), io.StringIO(), io.StringIO(), 0
    notes: list[str] = []

    def write(report: Report, *rest: Any) -> None:
        notes.extend([*report.notes, *report.opening, str([len(table.rows) for table in report.tables])])
        _WRITE(report, *rest)

    argv, sys.argv = sys.argv, ["inferplan", *words]
    stdout, stderr = sys.stdout, sys.stderr
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
            patch.setattr(options, "write", write)
            patch.setattr(sweep, "write", write)
            main()
    except SystemExit as left:
        code = int(left.code or 0)
    finally:
        sys.argv, sys.stdout, sys.stderr = argv, stdout, stderr
    made = {name: Path(name) for name in set(os.listdir()) - before}
    written = frozenset(f"{name} {crc32(path.read_bytes())}" for name, path in made.items() if path.is_file())
    for path in () if keep else made.values():
        path.unlink()
    return Answer(code, out.getvalue(), "\n".join([err.getvalue(), *notes]), written)


def command_of(words: list[str]) -> tuple[str, click.Command]:
    """The command of a line, and its name."""
    context = click.Context(cli, info_name="inferplan")
    found = cli.get_command(context, words[0])
    assert found is not None, words[0]
    if isinstance(found, click.Group):
        return f"{words[0]} {words[1]}", found.commands[words[1]]
    return words[0], found


def options_of(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option)]


@cache
def _values() -> dict[str, list[str]]:
    lines = (HERE / "values.txt").read_text(encoding="utf-8").splitlines()
    rows = [[part.strip() for part in line.split(" | ")] for line in lines if line and not line.startswith("#")]
    return {row[0]: row[1:] for row in rows}


@dataclass(frozen=True)
class Trial:
    """Words that set an option.

    limit: a command that heeds it refuses this value, and takes another one (``!`` behind the value, and the second
    word of a switch, where the first says what is usual). bound: it need
    not matter to every line, as long as it does to another line of the command (``~``).
    """

    words: tuple[str, ...]
    limit: bool = False
    bound: bool = False


def trials(name: str, option: click.Option) -> list[Trial]:
    """What to try of an option of the command ``name``, one after another."""
    said = _values().get(f"{name} {option.opts[0]}") or _values().get(option.opts[0])
    if option.is_flag:
        words = (*option.opts[:1], *option.secondary_opts[:1])
        return [Trial((word,), limit=word in option.secondary_opts, bound=said == ["~"]) for word in words]
    if said is None and isinstance(option.type, click.Choice):
        said = [str(one) for one in option.type.choices]
    assert said is not None, f"no value for {option.opts[0]} of {name} in values.txt"
    return [Trial((option.opts[0], one.rstrip("!~")), one.endswith("!"), one.endswith("~")) for one in said]


def with_option(words: list[str], option: click.Option, trial: Trial) -> list[str]:
    """A line with an option set to what is tried, in place of what the line says of it."""
    names, left, skip = {*option.opts, *option.secondary_opts}, list[str](), False
    for word in words:
        if not skip and word not in names:
            left.append(word)
        skip = not skip and word in names and not option.is_flag
    return [*left, *trial.words]


def _says_already(words: list[str], option: click.Option, trial: Trial) -> bool:
    """Whether a line, or the default of the option, is what is tried."""
    value = trial.words[-1]
    if option.is_flag:
        return value in words
    there = [words[place + 1] for place, word in enumerate(words[:-1]) if word in option.opts]
    return value in there if there else value == str(option.default)


def leaves(record: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(record, dict):
        for key, value in record.items():
            yield from leaves(value, (*path, str(key)))
    elif isinstance(record, list):
        for place, value in enumerate(record):
            yield from leaves(value, (*path, str(place)))
    else:
        yield path, record


def differing(old: Any, new: Any) -> list[tuple[str, ...]]:
    before, after = dict(leaves(old)), dict(leaves(new))
    return [path for path in {**before, **after} if before.get(path, ...) != after.get(path, ...)]


_UNITS = re.compile(r"_(s|bytes|w|tokens|bytes_per_s)$")


def _given(trial: Trial) -> set[str]:
    """The value of an option as a record may repeat it."""
    text = trial.words[-1]
    found = {text}
    with contextlib.suppress(ValueError):
        found.add(f"{float(text):g}")
    for dimension in UNITS:
        with contextlib.suppress(ValueError):
            found.add(f"{parse_quantity(text, dimension):g}")
    return found


def _echo(path: tuple[str, ...], value: Any, names: set[str], given: set[str]) -> bool:
    """Whether a leaf of a record says what was asked, and not what came of it."""
    if any(part in ECHOES for part in path):
        return True
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:g}" in given
    return path[-1] in names or _UNITS.sub("", path[-1]) in names or str(value) in given


def heard(base: Answer, found: Answer, option: click.Option, trial: Trial) -> str:
    """How a command takes an option: ``refused``, ``changed``, ``noted``; empty where nobody hears it."""
    if found.code not in (base.code, 0, 3, 6):
        return "refused"
    if found.files != base.files or found.code != base.code:
        return "changed"
    old, new = base.record, found.record
    if isinstance(old, str) or isinstance(new, str):
        if base.out != found.out:
            return "changed"
    else:
        names = {
            word.lstrip("-").replace("-", "_") for word in (*option.opts, *option.secondary_opts, option.name or "")
        }
        after, given = dict(leaves(new)), _given(trial)
        if any(not _echo(path, after.get(path), names, given) for path in differing(old, new)):
            return "changed"
    return "noted" if base.said != found.said else ""


@dataclass(frozen=True)
class Heard:
    """How a command line takes an option.

    how: ``changed``, ``noted``, ``refused`` (why), ``unbound`` where it is a bound that this line does not reach, or
    empty: in silence.
    """

    option: str
    how: str
    why: str = ""


def scan(line: str, only: Collection[str] = ()) -> Iterator[Heard]:
    """Each option of the command of a line, or those named, and how it takes them; not what EXEMPT excuses."""
    words = line.split()
    name, command = command_of(words)
    style = JSON if any("--format" in one.opts for one in command.params) else ()
    base = ask([*words, *style])
    assert base.code == 0 or (base.code == 3 and base.out), (line, base.said)
    for option in options_of(command):
        if option.opts[0] in only if only else not excused(name, option.opts[0]):
            tried = [one for one in trials(name, option) if not _says_already(words, option, one)]
            if tried:
                yield _one(base, with_style(words, option, style), option, tried)


def with_style(words: list[str], option: click.Option, style: Sequence[str]) -> list[str]:
    """A line that asks for JSON, but where the format is what is tried."""
    return words if option.opts[0] == "--format" else [*words, *style]


def _one(base: Answer, words: list[str], option: click.Option, tried: list[Trial]) -> Heard:
    found, why, silent = "", "", False
    for trial in tried:
        answer = ask(with_option(words, option, trial))
        found = heard(base, answer, option, trial)
        if found in ("changed", "noted"):
            break
        if found == "refused":
            why = answer.said
            if trial.limit and silent:
                break
        silent |= not found
    else:
        found = ("unbound" if any(one.bound for one in tried) else "") if silent else "refused"
    return Heard(option.opts[0], found, why if found == "refused" else "")


NOT_SCANNED = {
    "calibrate": "measures a device",
    "measure": "measures a server",
    "learn": "reads what a server recorded of its steps",
    "watch": "reads what servers count",
    "web": "runs until it is stopped",
    "mcp": "answers a client until that ends it",
    "compile": "compiles the installed package",
    "completion": "has no option",
    "ask": "asks other commands, which are scanned",
}
"""Commands that answer nothing that could be compared."""


def excused(name: str, option: str) -> bool:
    return option in EXEMPT or f"{name} {option}" in EXEMPT


def lines(beginning: Collection[str] = ()) -> list[str]:
    """The lines of ``bases.txt``, or those that begin with one of these words."""
    found = (HERE / "bases.txt").read_text(encoding="utf-8").splitlines()
    found = [line for line in found if line and not line.startswith("#")]
    return [line for line in found if not beginning or line.startswith(tuple(beginning))]
