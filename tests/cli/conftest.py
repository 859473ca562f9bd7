"""Runs the command line in this process, exactly as ``inferplan`` does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.command import exit_code


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any) -> Run:
    """``run("estimate", "llama-3.1-8b", "--gpu", "h100")``: exit code, stdout and stderr; no traceback, no warning."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("INFERPLAN_TRACEBACK", raising=False)

    def call(*arguments: str) -> Ran:
        code = exit_code(monkeypatch, *arguments)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert "Warning" not in captured.err
        assert "a bug in inferplan" not in captured.err, captured.err
        return Ran(code=code, out=captured.out, err=captured.err)

    return call
