"""A server of its own, the system's Chromium, and what the command line prints: for the tests of the page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from inferplan.cli import cli

ROOT = Path(__file__).parents[2]
CHROMIUM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome", "chrome") if (p := shutil.which(n))), None
)
APART = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
"""Before click 8.2 what went to stderr stood in stdout too, unless one asked."""


@contextmanager
def serving(port: int = 0, *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``inferplan web`` as a process, its address beside it; ended when the block is left. words: options, in place of
    one that asks for no token."""
    command = [sys.executable, "-m", "inferplan", "web", "--no-browser", "--port", str(port)]
    command += words or ["--no-token"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = ""
            for line in process.stderr:
                said += line
                if found := re.search(r"listening on (http://\S+)", line):
                    yield found[1], process
                    break
            else:
                raise AssertionError(f"the server did not start:\n{said}")
        finally:
            process.terminate()
            process.wait(timeout=30)


def printed(*words: str, exit_code: int = 0) -> str:
    """What ``inferplan`` prints for people."""
    result = CliRunner(**APART).invoke(cli, list(words))
    code = getattr(result.exception, "exit_code", result.exit_code)
    assert code == exit_code, result.output
    return result.stdout


def rows(text: str) -> list[list[str]]:
    """The cells of printed tables, line by line: columns stand two blanks apart."""
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if line.strip()]


def row(text: str, *begin: str) -> list[str]:
    """The one printed row that begins with these cells and goes on."""
    (found,) = [cells for cells in rows(text) if cells[: len(begin)] == list(begin) and len(cells) > len(begin)]
    return found


def fragment(**values: Any) -> str:
    """The part of an address behind #; ``b__gpu`` is ``b.gpu``."""
    return "#" + "&".join(f"{key.replace('__', '.')}={value}" for key, value in values.items())
