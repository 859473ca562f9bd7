"""Which tests run which lines, recorded once a test file: the tests that may judge a mutant follow from it.

A file's record holds, for each line of each function of ours, tests that run it, from those of few lines to the widest.
It is made anew when the test file changes. Lines count from the first of their function: edits elsewhere do not age it.
"""

from __future__ import annotations

import ast
import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from time import process_time
from types import CodeType, FrameType
from typing import Any

import pytest

from tools.mutants.judge import Chosen, forks, run_tests
from tools.mutants.source import PACKAGES, ROOT, Mutant, first_line, functions, modules, path_of

KEPT = ROOT / "build" / "mutants"
MOST_TESTS = 16
"""Held for a line, of each test file."""
CLOSEST = 6
"""Test files whose tests of a line all judge it."""
CALLS = 100
"""Calls of one function that are traced in one test: a loop of a million runs the same lines."""
SLOWEST = 2.0
"""CPU seconds, traced: a slower test is no judge."""
CPU_SECONDS = 40
"""For one test file; what ran until then is held."""
NOT_JUDGES = (
    "tests/test_docs",
    "tests/test_readme",
    "tests/test_notebook",
    "tests/web/test_page.py",
    "tests/oracle/test_tr",
)
"""Tests of documents, of pages in a browser and of whole models in transformers: slow, and of no formula."""

Record = dict[str, Any]
"""digest: of the test file. tests: (name, traced seconds). lines: ``module:function`` -> line -> indices of tests."""


Lines = set[tuple[str, int]]


class Recorder(Chosen):
    """Notes the lines of ours that each passing test runs, and its CPU seconds."""

    def __init__(self) -> None:
        super().__init__(None)
        self.ours = tuple(str(ROOT / package) + "/" for package in PACKAGES)
        self.lines: Lines = set()
        self.calls: Counter[CodeType] = Counter()
        self.rows: list[tuple[str, float, Lines]] = []

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.lines, self.calls, start = set(), Counter(), process_time()
        signal.signal(signal.SIGPROF, lambda number, frame: pytest.fail("too slow to judge"))
        signal.setitimer(signal.ITIMER_PROF, SLOWEST)
        sys.settrace(self._call)
        yield
        sys.settrace(None)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        if item.nodeid in self.passed:
            self.rows.append((item.nodeid, round(process_time() - start, 3), self.lines))
        if process_time() > CPU_SECONDS:
            item.session.shouldstop = "the time for one file is over"

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(self.ours) or self.calls[code] >= CALLS:
            return None
        self.calls[code] += 1
        return self._line

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line


def test_files() -> list[str]:
    found = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    return [name for name in found if not name.startswith(NOT_JUDGES)]


def _kept(name: str) -> Path:
    return KEPT / (name.replace("/", ".") + ".json")


def _digest(name: str) -> str:
    return sha256((ROOT / name).read_bytes()).hexdigest()[:16]


def records(jobs: int, only: tuple[str, ...] = ()) -> dict[str, Record]:
    """The record of each test file (of those that begin with ``only``); makes those that are missing or old."""
    KEPT.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in test_files() if name.startswith(only or "tests/")]
    found = {name: json.loads(_kept(name).read_text()) for name in wanted if _kept(name).exists()}
    old = [name for name in wanted if name not in found or found[name]["digest"] != _digest(name)]
    for count, (name, judged) in enumerate(forks(old, _recorded, jobs, 2 * CPU_SECONDS), 1):
        _kept(name).write_text(judged.word or json.dumps({"digest": _digest(name), "tests": [], "lines": {}}))
        found[name] = json.loads(_kept(name).read_text())
        says = f"{len(found[name]['tests'])} tests, {judged.seconds:.0f} s"
        print(f"recorded {count}/{len(old)} {name}: {says}", file=sys.stderr, flush=True)
    return found


def _recorded(name: str) -> str:
    """A test file's record as JSON: the lines of every function with the tests that run them."""
    recorder = Recorder()
    run_tests([name], recorder, "-m", "not slow and not network", "--maxfail=1000")
    rows = sorted(recorder.rows, key=lambda row: (len(row[2]), row[1]))
    at: dict[str, dict[int, list[int]]] = {}
    for index, (_, _, lines) in enumerate(rows):
        for path, line in lines:
            at.setdefault(path, {}).setdefault(line, []).append(index)
    found: dict[str, dict[int, list[int]]] = {}
    for module in modules():
        if ran := at.get(str(path_of(module))):
            for function, node in functions(ast.parse(path_of(module).read_text(encoding="utf-8"))):
                first, last = first_line(node), node.end_lineno or node.lineno
                if own := {line - first: _spread(tests) for line, tests in ran.items() if first <= line <= last}:
                    found[f"{module}:{function}"] = own
    return json.dumps({"digest": _digest(name), "tests": [row[:2] for row in rows], "lines": found})


def _spread(tests: list[int]) -> list[int]:
    """Some of a line's tests, from the narrowest (often a refusal) to the widest, both of them among these."""
    last = len(tests) - 1
    return [tests[index * last // (MOST_TESTS - 1)] for index in range(MOST_TESTS)] if tests[MOST_TESTS:] else tests


def judges(mutant: Mutant, found: dict[str, Record]) -> list[tuple[float, str]]:
    """(seconds, test) of the tests that run the changed line: those of the files that are most about its module first.

    Of the first ``CLOSEST`` files all that are held, of the others one each; a test that runs more lines goes first.
    """
    first, last, statement = (line - mutant.first for line in mutant.lines)
    files: list[tuple[float, list[tuple[float, str]]]] = []
    for record in found.values():
        lines = record["lines"].get(f"{mutant.module}:{mutant.function}", {})
        ran = {index for line in range(first, last + 1) for index in lines.get(str(line), [])}
        ran = ran or set(lines.get(str(statement), []))
        if ran:
            tests = [(record["tests"][index][1], record["tests"][index][0]) for index in sorted(ran, reverse=True)]
            files.append((_share(record, mutant.module), tests))
    files.sort(reverse=True)
    every = [tests if place < CLOSEST else tests[:1] for place, (_, tests) in enumerate(files)]
    return [test for tests in every for test in tests]


def _share(record: Record, module: str) -> float:
    """Of the lines that a test file runs, those in a module."""
    ours = sum(len(lines) for function, lines in record["lines"].items() if function.startswith(f"{module}:"))
    return ours / sum(map(len, record["lines"].values()))
