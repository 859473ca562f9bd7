"""No option in vain: what a command was given changes its answer, is refused, or is noted.

All lines of ``bases.txt``, those of simulations and plans too, are asked by ``make silent-options``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from inferplan.cli import COMMANDS, cli, cost
from tests.cases import for_each
from tests.silent_options.files import place
from tests.silent_options.scan import NOT_SCANNED, _values, command_of, excused, lines, options_of, scan, trials

QUICK = (
    "cost llama-3.1-8b --gpu h100-sxm --batch",
    "emit vllm llama-3.1-8b --gpu h100-sxm --lora",
    "emit trtllm llama-3.1-8b",
    "emit k8s llama-3.1-70b",
    *("anchor suggest", "prices", "formats", "show", "settings"),
)
"""How lines begin that take less than two seconds with all options."""
LONGER = (
    "estimate",
    "explain",
    "compare",
    "cost",
    "sweep",
    "recipe",
    "fit",
    "emit",
    "validate",
    "import",
    "models",
    "gpus",
)


@pytest.fixture
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    place(tmp_path)
    yield


def _silent(line: str, *only: str) -> list[str]:
    return [one.option for one in scan(line, only) if not one.how]


@for_each("line", lambda: lines(QUICK))
def test_no_option_is_silent(line: str, _files: None) -> None:
    assert not _silent(line)


@pytest.mark.parametrize("command", LONGER)
def test_no_option_of_a_command_is_silent(command: str, _files: None) -> None:
    found = {line: silent for line in lines((f"{command} ",)) if (silent := _silent(line))}
    assert not found


@for_each(
    ("line", "options"),
    [
        ("simulate llama-3.1-8b --gpu l40s --in-flight 4 --requests 12", ("--seed", "--prefix-caching", "--ramp")),
        ("simulate llama-3.1-8b --gpu l40s --rate 2 --requests 12", ("--burst", "--batch-wait-steps", "--kv-link")),
        ("simulate llama-3.1-8b --gpu l40s --trace trace.csv", ("--seed", "--length-ratio-min", "--turns")),
    ],
)
def test_no_option_of_a_load_is_silent(line: str, options: tuple[str, ...], _files: None) -> None:
    assert not _silent(line, *options)


def test_an_option_that_nobody_reads_is_found(_files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    unread = click.Option(["--unread"], expose_value=False)
    monkeypatch.setattr(cost.cost_command, "params", [*cost.cost_command.params, unread])
    monkeypatch.setitem(_values(), "--unread", ["5", "7"])
    line = "cost llama-3.1-8b --gpu h100-sxm --batch 8"
    assert _silent(line, "--unread", "--kv") == ["--unread"]


def _commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    for below, one in command.commands.items():
        yield from _commands(f"{name} {below}", one)


def test_every_option_of_every_command_is_scanned() -> None:
    context = click.Context(cli)
    scanned = {command_of(line.split())[0] for line in lines()}
    for first in COMMANDS.keys() - NOT_SCANNED.keys():
        found = cli.get_command(context, first)
        assert found is not None
        for name, command in _commands(first, found):
            assert name in scanned, name
            assert all(trials(name, one) for one in options_of(command) if not excused(name, one.opts[0]))
