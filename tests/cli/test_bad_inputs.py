"""Every line of ``bad_inputs.txt``: one clear error, the exit code of the design, no file made or changed, and a hint
that helps: what it names is not refused for the same reason again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from inferplan.cli import COMMANDS
from inferplan.errors import InfeasibleError
from tests.cases import for_each
from tests.cli.bad_input_files import placed
from tests.cli.conftest import Run

TABLE = Path(__file__).with_name("bad_inputs.txt")
_WORD = re.compile(r'\S+\.(?:json|yaml)\[\S+\](?=\s|$)|"(?P<quoted>[^"]*)"|\S+')
_ESCAPES = {r"\e": "\x1b", r"\a": "\a", r"\r": "\r", r"\n": "\n", r"\t": "\t"}


class Case(NamedTuple):
    """A line of the table."""

    code: int
    command: str
    said: list[str]

    @property
    def words(self) -> list[str]:
        """The arguments, in which a backslash and a letter stand for a control character."""
        text = self.command.replace("8B", "llama-3.1-8b --gpu h100-sxm")
        found = [word[0] if word["quoted"] is None else word["quoted"] for word in _WORD.finditer(text)]
        return [word if "[" in word and word.endswith("]") else _escaped(word) for word in found]


def _escaped(word: str) -> str:
    for written, meant in _ESCAPES.items():
        word = word.replace(written, meant)
    return word


def cases() -> list[Case]:
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    columns = [[part.strip() for part in line.split(" | ")] for line in lines]
    return [Case(int(code), command, said.split(" & ")) for code, command, said in columns]


def state(folder: Path) -> dict[str, bytes]:
    """The files of a folder with their content."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


MEANT = re.compile(r"did you mean ([^?]+)\?")
NAMED = re.compile(r"no (?:model|GPU|engine|workload|number format) named '([^']+)'")
COMMAND = re.compile(r"(?:hint: |see |, )inferplan ([a-z]+)(?: --help)?\b(?! \w)")
OPTION = re.compile(r"(--[a-z][\w-]*)(?: ([^\s(]+))?(?: \(.*\))?")
SLOW = ("calibrate", "day", "fleet", "mcp", "measure", "plan", "report", "web")
"""Commands whose answer takes seconds, or that measure."""


def followed(words: list[str], error: str) -> Iterator[list[str]]:
    """The command lines that a hint asks for."""
    meant, named = MEANT.search(error), NAMED.search(error)
    if meant and named:
        for name in meant[1].split(", "):
            yield [word.replace(named[1], name) for word in words]
    hint = error.partition("hint: ")[2].strip()
    if hint.startswith("--") and "..." not in hint:
        for part in re.split(r", or |, ", hint):
            option = OPTION.fullmatch(part)
            if option and not (option[2] or "").isupper() and "=" not in part:
                yield replaced(words, option[1], option[2])


def replaced(words: list[str], option: str, value: str | None) -> list[str]:
    """The command line with an option set."""
    if option in words:
        at = words.index(option)
        return [*words[:at], option, *([value] if value else []), *words[at + 2 :]]
    return [*words, option, *([value] if value else [])]


ANY = re.compile(r"\S*\d\S*|'[^']*'")
"""A number or a name in a hint."""
tried: set[str] = set()
"""Hints that were followed, whatever number or name they propose: none is followed anew for each line that gets it."""


def accepted(*_: object, **__: object) -> None:
    """In place of a simulation, which comes after all refusals of a question."""
    raise InfeasibleError("the question was accepted")


@for_each("case", cases, ids=lambda case: case.command)
def test_bad_input(case: Case, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if case.words[0] == "calibrate":
        pytest.importorskip("torch")
        pytest.importorskip("scipy")
    folder = tmp_path / "here"  # beside it libraries keep what is theirs
    folder.mkdir()
    monkeypatch.chdir(folder)
    words = [placed(word, folder) for word in case.words]
    before = state(folder)
    ran = run(*words)
    assert ran.code == case.code, ran.err
    lines = ran.err.splitlines()
    assert sum(line.startswith(("error: ", '{"schema_version": ')) for line in lines) == 1, ran.err
    assert [word for word in case.said if word not in ran.err] == [], ran.err
    assert "\x1b" not in ran.out + ran.err
    assert "\a" not in ran.out + ran.err
    assert state(folder) == before
    if case.words[0] != "validate":  # whose report says why each row is refused
        assert ran.out == ""
    assert set(COMMAND.findall(ran.err)) <= set(COMMANDS)
    hint = ANY.sub("...", ran.err.partition("hint: ")[2])
    if case.words[0] not in SLOW and not case.words[0].startswith("-") and hint not in tried:
        tried.add(hint)
        monkeypatch.setattr("inferplan.serving.cluster_run.ClusterRun.run", accepted)
        for again in followed(words, ran.err):
            assert lines[0] not in run(*again).err, again


def test_the_table_is_long_and_tries_every_command() -> None:
    assert len(cases()) >= 330
    commands = [case.command for case in cases()]
    assert sorted(set(commands)) == sorted(commands)
    assert set(COMMANDS) - {case.words[0] for case in cases()} == set()
