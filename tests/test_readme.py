"""The README's output is what the README's command prints. ``INFERPLAN_UPDATE_DOCS=1`` writes it anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

from click.testing import CliRunner

from inferplan.cli import cli

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"(?<=```text\n).*?(?=```\n)", re.DOTALL)


def test_the_output_shown_is_the_output() -> None:
    text = README.read_text(encoding="utf-8")
    command = re.search(r"&& inferplan (.*)", text)
    assert command, "the README shows its main command"
    result = CliRunner().invoke(cli, command[1].split(), catch_exceptions=False)
    assert result.exit_code == 0
    if os.environ.get("INFERPLAN_UPDATE_DOCS"):
        README.write_text(BLOCK.sub(lambda _: result.stdout, text, count=1), encoding="utf-8")
        return
    shown = BLOCK.search(text)
    assert shown
    assert shown[0] == result.stdout
