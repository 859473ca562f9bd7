"""Every command line in the documentation runs, and the reference is that of the commands as they are."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from inferplan.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```console\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)


def command_lines(page: Path) -> list[list[str]]:
    """For each console block of a page, its ``$ inferplan ...`` lines, also after ``&&``."""
    blocks = []
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        lines = [line[2:] for line in block["text"].replace("\\\n", " ").splitlines() if line.startswith("$ ")]
        parts = [part.strip() for line in lines for part in line.split("&&")]
        blocks.append([part for part in parts if part.startswith("inferplan ")])
    return [block for block in blocks if block]


EXAMPLES = [(page, lines) for page in PAGES for lines in command_lines(page)]


@pytest.mark.parametrize(
    ("page", "lines"), EXAMPLES, ids=[f"{page.relative_to(ROOT)}: {lines[0]}" for page, lines in EXAMPLES]
)
def test_command_lines_of_the_docs_run(
    page: Path, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A block's lines one after another in one folder: exit 0, and something on stdout or in a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for line in lines:
        arguments = shlex.split(line)
        target = arguments.pop() if arguments[-2:-1] == [">"] else None
        monkeypatch.setattr(sys, "argv", arguments if target is None else arguments[:-1])
        code = 0
        try:
            main()
        except SystemExit as leave:
            code = int(leave.code or 0)
        captured = capsys.readouterr()
        assert code == 0, f"{page.name}: {line}\n{captured.err}"
        if target is not None:
            (tmp_path / target).write_text(captured.out, encoding="utf-8")
        assert captured.out or list(tmp_path.iterdir())


def test_the_reference_is_current() -> None:
    module = runpy.run_path(str(ROOT / "docs" / "generate_cli.py"))
    assert module["PAGE"].read_text(encoding="utf-8") == module["page"](), "run: python docs/generate_cli.py"


def test_the_reference_names_every_command_and_option() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"\n## inferplan {name}\n" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links of the documentation point at files that exist."""
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing
