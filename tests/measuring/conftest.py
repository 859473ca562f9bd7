"""The command, run as a user runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferplan.cli import main


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Any]:
    """``call("http://...", "--out", "own.csv")``: exit code, stdout, stderr of ``inferplan measure`` in an empty
    folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["inferplan", "measure", *arguments])
        code = 0
        try:
            main()
        except SystemExit as leave:
            code = int(leave.code or 0)
        said = capsys.readouterr()
        assert "a bug in inferplan" not in said.err, said.err
        return code, said.out, said.err

    return command
