"""Every hint of ``bad_inputs.txt`` that can be followed is: what it names is not refused for the same reason again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferplan.cli import COMMANDS
from tests.cli.bad_input_files import placed
from tests.cli.conftest import Run
from tests.cli.test_bad_inputs import Case, cases

_MEANT = re.compile(r"did you mean ([^?]+)\?")
_NAMED = re.compile(r"no (?:model|GPU|engine|workload|number format) named '([^']+)'")
_COMMAND = re.compile(r"(?:hint: |see |, )inferplan ([a-z]+)(?: --help)?\b(?! \w)")
_OPTION = re.compile(r"(--[a-z][\w-]*)(?: ([^\s(]+))?(?: \(.*\))?")
_SLOW = ("calibrate", "day", "fleet", "measure", "plan", "report", "web")
"""Commands whose answer takes seconds, or that measure."""


def followed(words: list[str], error: str) -> Iterator[list[str]]:
    """The command lines that a hint asks for."""
    meant, named = _MEANT.search(error), _NAMED.search(error)
    if meant and named:
        for name in meant[1].split(", "):
            yield [word.replace(named[1], name) for word in words]
    hint = error.partition("hint: ")[2].strip()
    if hint.startswith("--") and "..." not in hint:
        for part in re.split(r", or |, ", hint):
            option = _OPTION.fullmatch(part)
            if option and not (option[2] or "").isupper() and "=" not in part:
                yield replaced(words, option[1], option[2])


def replaced(words: list[str], option: str, value: str | None) -> list[str]:
    """The command line with an option set."""
    if option in words:
        at = words.index(option)
        return [*words[:at], option, *([value] if value else []), *words[at + 2 :]]
    return [*words, option, *([value] if value else [])]


HINTED = [case for case in cases() if case.words[0] not in _SLOW and not case.words[0].startswith("-")]


@pytest.mark.parametrize("case", HINTED, ids=lambda case: case.command[:70])
def test_a_hint_works(case: Case, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [placed(word, tmp_path) for word in case.words]
    said = run(*words).err
    assert set(_COMMAND.findall(said)) <= set(COMMANDS)
    for again in followed(words, said):
        assert said.splitlines()[0] not in run(*again).err, again
