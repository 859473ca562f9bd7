"""The command, run as a user runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import run  # noqa: F401  (a fixture)
from tests.command import exit_code


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Any]:
    """``call("http://...", "--out", "own.csv")``: exit code, stdout, stderr of ``inferplan measure`` in an empty
    folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def command(*arguments: str) -> tuple[int, str, str]:
        code = exit_code(monkeypatch, "measure", *arguments)
        said = capsys.readouterr()
        assert "a bug in inferplan" not in said.err, said.err
        return code, said.out, said.err

    return command
