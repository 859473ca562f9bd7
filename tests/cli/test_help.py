"""Help in layers: short first, every option in one group, examples that run."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from inferplan.cli import COMMANDS, QUESTIONS, cli
from inferplan.cli.layers import COMMON, GROUPS, group_of, show_all
from tests.cases import for_each
from tests.cli.conftest import Run

LIKE_IT: dict[str, Any] = {"terminal_width": 80, "help_option_names": ["-h", "--help"]}
"""A context as the program makes it: click keeps the option of help that it made first."""
NOT_RUN = {
    "calibrate": "measures this machine for three minutes",
    "measure": "needs a server",
    "watch": "needs a server",
    "learn": "needs the records of a server",
    "validate": "needs a benchmark file; docs/validate.md runs one",
    "anchor fit": "needs measured runs; docs/anchors.md runs it",
    "anchor host": "needs measured runs of one user",
    "import": "needs a config; docs/models.md runs it",
    "compile": "compiles",
    "web": "serves until it is stopped",
    "mcp": "serves until its client leaves",
    "completion": "writes into the home folder",
    "settings": "sets a variable of the shell",
    **dict.fromkeys(("plan", "report", "fleet", "day", "several"), "takes long; pages of the documentation run others"),
}


def every() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Each command with its path and a context 80 columns wide; those below a group too."""
    root = click.Context(cli, info_name="inferplan", help_option_names=["-h", "--help"])
    for name in COMMANDS:
        command = cli.get_command(root, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=root, terminal_width=80)
        yield name, command, context
        for below, one in getattr(command, "commands", {}).items():
            yield f"{name} {below}", one, click.Context(one, info_name=below, parent=context, terminal_width=80)


def plain(option: click.Parameter) -> str:
    return next((name for name in option.opts if name.startswith("--")), option.opts[0]).lstrip("-")


def test_no_help_is_longer_than_a_screen_and_a_half(run: Run) -> None:
    """60 lines of 80 columns, of every command and of the program itself."""
    helps = {name: command.get_help(context) for name, command, context in every()}
    helps["inferplan"] = cli.get_help(click.Context(cli, info_name="inferplan", **LIKE_IT))
    lines = {name: text.splitlines() for name, text in helps.items()}
    assert {name: len(found) for name, found in lines.items() if len(found) > 60} == {}
    assert {name: line for name, found in lines.items() for line in found if len(line) > 80} == {}


def test_every_option_is_in_one_group() -> None:
    listed = Counter(name for group in GROUPS.values() for name in group.options.split())
    assert [name for name, times in listed.items() if times > 1] == []
    options = [(path, one) for path, command, _ in every() for one in command.params if isinstance(one, click.Option)]
    assert [(path, one.opts) for path, one in options if group_of(one) is None] == []
    assert set(listed) - {plain(one) for _, one in options} == {"help"}


def test_a_dozen_options_come_first() -> None:
    """Those that COMMON names are there and are what help shows; a required option is one of them."""
    there = {path: (command, context) for path, command, context in every()}
    assert set(COMMON) <= set(there)
    for path, (command, context) in there.items():
        options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
        if path not in COMMON:
            assert len(options) <= 14, path
            continue
        common = COMMON[path].split()
        assert len([one for one in common if one not in GROUPS["output"].options.split()]) <= 12, path
        assert set(common) <= {plain(one) for one in options}, path
        assert {plain(one) for one in options if one.required} <= set(common), path
        text = command.get_help(context)
        shown = {
            plain(one)
            for one in options
            if re.search(rf"^  (?:-\S+, )*{re.escape(one.opts[0])}[ ,]", text, re.MULTILINE)
        }
        assert shown == set(common), path
        assert f"{len(options) - len(common)} more options: inferplan {path} --help GROUP" in text


def test_a_group_and_all(run: Run) -> None:
    power, whole = run("plan", "--help", "power"), run("plan", "--help", "all")
    assert (power.code, whole.code) == (0, 0)
    assert "--power-cap" in power.out and "--workload" not in power.out
    assert run("plan", "-h", "power").out == run("plan", "--help=power").out == power.out
    assert all(option in whole.out for option in ("--power-cap", "--workload", "--spare", "Power and carbon"))
    refused = run("plan", "--help", "nothing")
    assert (refused.code, "power, basis" in refused.err, "--help all" in refused.err) == (2, True, True)
    for _, command, context in every():
        show_all(context)
        text = command.get_help(context)
        options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
        assert [one.opts for one in options if f"{one.opts[0]}" not in text] == []


def test_the_program_lists_commands_by_question(run: Run) -> None:
    lines = run("--help").out.splitlines()
    assert [line for line in lines if line in QUESTIONS] == list(QUESTIONS)
    assert [line.split()[0] for line in lines if re.match(r"  [a-z]+ {2,}\S", line)] == list(COMMANDS)


def example(command: click.Command) -> list[str]:
    """The example in a command's help, as a shell reads it."""
    text = command.get_help(click.Context(command, info_name="x", **LIKE_IT))
    found = re.search(r"^Example:\n((?:    .*\n?)+)", text, re.MULTILINE)
    return [] if found is None else shlex.split(found[1].replace("\\\n", " "))


EXAMPLES = {path: example(command) for path, command, _ in every()}


def test_commands_have_examples_that_are_of_them() -> None:
    without = {path for path, words in EXAMPLES.items() if not words}
    assert without == {"anchor"}
    for path, words in EXAMPLES.items():
        assert path in without or " ".join(words[words.index("inferplan") :]).startswith(f"inferplan {path}"), path
    assert NOT_RUN.keys() <= EXAMPLES.keys()


@for_each("path", [path for path in EXAMPLES if path not in NOT_RUN and path != "anchor"])
def test_the_example_runs(path: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*EXAMPLES[path][1:])
    assert ran.code == 0, ran.err
    assert ran.out or list(tmp_path.iterdir())
