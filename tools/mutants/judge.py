"""Tests that run in forks of this process, where everything is imported already: with a mistake, or traced.

A fork has its own folder for what tests write, a limit of CPU time and one of wall time.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

from tools.mutants.source import ROOT

Key = TypeVar("Key")
WALL_SECONDS = 400
FATES = {"passed": "survives", "": "timed out", "gone": "not run"}
"""Answers of :func:`verdict` that are not the name of a test."""
ALONE = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore", "--no-header", "--tb=no")


class Judged(NamedTuple):
    """What a fork answered (nothing where a limit ended it), and the CPU seconds that it took."""

    word: str
    seconds: float

    @property
    def fate(self) -> str:
        return FATES.get(self.word, "killed")


class Chosen:
    """A plugin of pytest: runs the tests of these names, in their order, and remembers the first that fails.

    A name without a test behind it is passed over; ``tests`` None runs all.
    """

    def __init__(self, tests: list[str] | None) -> None:
        self.place = None if tests is None else {test: place for place, test in enumerate(tests)}
        self.failed = ""
        self.passed: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.place is not None:
            place = self.place
            items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)


def run_tests(tests: Iterable[str], plugin: object, *words: str) -> None:
    """The test files of these tests by pytest, in this process."""
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    pytest.main([*ALONE, *words, *(name for name in files if (ROOT / name).exists())], plugins=[plugin])


def verdict(stages: list[list[str]]) -> str:
    """The test that fails, ``passed`` where none does, ``gone`` where there is none of them any more."""
    ran = 0
    for tests in stages:
        plugin = Chosen(tests)
        run_tests(tests, plugin)
        if plugin.failed:
            return plugin.failed
        ran += len(plugin.passed)
    return "passed" if ran else "gone"


def forked(work: Callable[[], str], seconds: float) -> tuple[int, Path]:
    """Start ``work`` in a fork; its process and the folder where its answer will be."""
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    process = os.fork()
    if process:
        return process, folder
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 5))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(WALL_SECONDS)
        _quiet(folder)
        (folder / "part").write_text(work())
        (folder / "part").rename(folder / "answer")
    finally:
        os._exit(0)


def _quiet(folder: Path) -> None:
    """Nothing on the terminal, nothing in the working tree."""
    (folder / "tmp").mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
    sys.dont_write_bytecode = True
    with open(os.devnull, "r+b") as nowhere:
        for stream in (0, 1, 2):
            os.dup2(nowhere.fileno(), stream)


def forks(keys: Sequence[Key], work: Callable[[Key], str], jobs: int, seconds: float) -> Iterator[tuple[Key, Judged]]:
    """What ``work`` answers for each key, as they end; in ``jobs`` forks at a time of so many CPU seconds each."""
    running: dict[int, tuple[Key, Path]] = {}
    waiting = list(reversed(keys))
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                process, folder = forked(partial(work, waiting[-1]), seconds)
                running[process] = waiting.pop(), folder
            process, _, used = os.wait3(0)
            if process in running:
                key, folder = running.pop(process)
                _end(process)
                answer = folder / "answer"
                word = answer.read_text() if answer.exists() else ""
                shutil.rmtree(folder, ignore_errors=True)
                yield key, Judged(word, used.ru_utime + used.ru_stime)
    finally:
        for process, (_, folder) in running.items():
            _end(process)
            shutil.rmtree(folder, ignore_errors=True)


def _end(group: int) -> None:
    """What a fork has started and left."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
