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


def command_lines(page: Path) -> list[str]:
    """The ``$ inferplan ...`` lines of a page's console blocks, also after ``&&``."""
    found = []
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        text = block["text"].replace("\\\n", " ")
        for line in text.splitlines():
            if line.startswith("$ "):
                found += [part.strip() for part in line[2:].split("&&") if part.strip().startswith("inferplan ")]
    return found


EXAMPLES = [(page, line) for page in PAGES for line in command_lines(page)]


@pytest.mark.parametrize(
    ("page", "line"), EXAMPLES, ids=[f"{page.relative_to(ROOT)}: {line}" for page, line in EXAMPLES]
)
def test_command_line_of_the_docs_runs(
    page: Path, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 0 and something on stdout or in a file, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    arguments = shlex.split(line)
    if arguments[-2:-1] == [">"]:
        arguments = arguments[:-2]
    monkeypatch.setattr(sys, "argv", arguments)
    code = 0
    try:
        main()
    except SystemExit as leave:
        code = int(leave.code or 0)
    captured = capsys.readouterr()
    assert code == 0, f"{page.name}: {line}\n{captured.err}"
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
