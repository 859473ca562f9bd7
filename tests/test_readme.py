"""The README's output is what the README's command prints. ``INFERPLAN_UPDATE_DOCS=1`` writes it anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

from click.testing import CliRunner

from inferplan.cli import cli

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"(?<=```text\n).*?(?=```\n)", re.DOTALL)


def printed(text: str, pattern: str) -> str:
    """What the README's command prints on stdout; ``pattern`` finds its words."""
    command = re.search(pattern, text)
    assert command, pattern
    result = CliRunner().invoke(cli, command[1].split(), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_output_shown_is_the_output() -> None:
    text = README.read_text(encoding="utf-8")
    output = printed(text, r"&& inferplan (.*)")
    if os.environ.get("INFERPLAN_UPDATE_DOCS"):
        README.write_text(BLOCK.sub(lambda _: output, text, count=1), encoding="utf-8")
        return
    shown = BLOCK.search(text)
    assert shown
    assert shown[0] == output


def test_the_plan_shown_is_the_plan() -> None:
    """The first table of what the README's plan prints without a file to write it to."""
    text = README.read_text(encoding="utf-8")
    answer = printed(text, r"\$ inferplan (plan .*) --report plan.html -o plan.json").partition("\n\n")[0] + "\n"
    blocks = BLOCK.findall(text)
    if os.environ.get("INFERPLAN_UPDATE_DOCS"):
        README.write_text(text.replace(blocks[1], answer), encoding="utf-8")
        return
    assert blocks[1] == answer
