"""Every command line in the documentation runs and prints what stands below it; the reference is that of the commands.

``INFERPLAN_UPDATE_DOCS=1`` writes the lines that have changed anew, and the pictures that commands of pages draw.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

import pytest

from inferplan.cli import COMMANDS
from tests.cases import for_each
from tests.command import exit_code

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
IMAGES = ROOT / "docs" / "images"
BLOCK = re.compile(r"^```console\n(?P<text>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
"""Commands, and the part of their output that the page shows right below them; ``...`` stands for lines left out."""
RUN = ("inferplan ", "printf ")
"""What is run: our commands, and those that write the file that one of them reads."""


class Example(NamedTuple):
    """A console block: its page, its commands, the output below it."""

    page: Path
    lines: list[str]
    shown: list[str]


def examples(page: Path) -> list[Example]:
    """The console blocks of a page that have an ``inferplan`` command, also after ``&&``."""
    found = []
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        lines = [line[2:] for line in block["text"].replace("\\\n", " ").splitlines() if line.startswith("$ ")]
        parts = [part.strip() for line in lines for part in line.split("&&")]
        commands = [part for part in parts if part.startswith(RUN)]
        if any(part.startswith("inferplan ") for part in commands):
            found.append(Example(page, commands, (block["shown"] or "").splitlines()))
    return found


EXAMPLES = [example for page in PAGES for example in examples(page)]


def run(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints on stdout: in this process where it is ours."""
    if not line.startswith("inferplan "):
        subprocess.run(line, shell=True, cwd=folder, check=True)
        return ""
    arguments = shlex.split(line)
    target = arguments.pop() if arguments[-2:-1] == [">"] else None
    code = exit_code(monkeypatch, *(arguments if target is None else arguments[:-1])[1:])
    captured = capsys.readouterr()
    assert code == 0, f"{line}\n{captured.err}"
    if target is not None:
        (folder / target).write_text(captured.out, encoding="utf-8")
    assert captured.out or list(folder.iterdir())
    return captured.out


def absent(shown: list[str], output: list[str]) -> list[str]:
    """The lines of a page that the output does not have, in their order."""
    rest = iter(output)
    return [line for line in shown if line.strip() not in ("", "...") and line not in rest]


def rewrite(example: Example, output: list[str], drawn: Path) -> None:
    """Each line of the page becomes the likest of the output's; its pictures those in the folder ``drawn``."""
    for picture in IMAGES.iterdir():
        if (drawn / picture.name).exists():
            shutil.copyfile(drawn / picture.name, picture)
    text = example.page.read_text(encoding="utf-8")
    for line in absent(example.shown, output):
        likest = max(output, key=lambda printed: SequenceMatcher(None, line, printed).ratio())
        text = text.replace(f"\n{line}\n", f"\n{likest}\n")
    example.page.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("example", EXAMPLES, ids=[f"{one.page.relative_to(ROOT)}: {one.lines[0]}" for one in EXAMPLES])
def test_command_lines_of_the_docs_run(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A block's lines one after another in one folder: exit 0, and printed is what is shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    printed = [run(line, tmp_path, monkeypatch, capsys) for line in example.lines]
    output = "".join(printed).splitlines()
    if os.environ.get("INFERPLAN_UPDATE_DOCS") and example.page.name != "README.md":
        rewrite(example, output, tmp_path)
    else:
        assert not absent(example.shown, output), f"{example.page.name}: not printed (INFERPLAN_UPDATE_DOCS=1)"


def test_output_that_is_not_printed_is_seen() -> None:
    assert absent(["a 1", "...", "b 2"], ["a 1", "x", "b 2"]) == []
    assert absent(["a 1", "b 3"], ["a 1", "x", "b 2"]) == ["b 3"]
    assert absent(["b 2", "a 1"], ["a 1", "b 2"]) == ["a 1"]


NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
SECTION = re.compile(r"^## (?P<title>.*?)\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```.*?^```\n", re.MULTILINE | re.DOTALL)
ELSEWHERE = re.compile(r"\]\([^)]*\)|`[^`]*`")
"""Targets of links, and code in a sentence: what may be typed, not what was answered."""


@for_each("page", ["questions.md", "cases.md"])
def test_numbers_of_the_prose_are_printed_above_it(page: str) -> None:
    """A sentence cannot be staler than the output beside it: what it says in figures stands in its section's blocks."""
    for section in SECTION.finditer((ROOT / "docs" / page).read_text(encoding="utf-8")):
        printed = {number for block in FENCE.findall(section["text"]) for number in NUMBER.findall(block)}
        said = set(NUMBER.findall(ELSEWHERE.sub("", FENCE.sub("", section["text"]))))
        assert said <= printed, f"{page}, {section['title']}"


def test_every_picture_is_small_and_drawn_by_a_command() -> None:
    screenshots = re.findall(r'^    "([\w-]+)": \(', (ROOT / "docs/generate_screenshots.py").read_text(), re.MULTILINE)
    written = {f"{name}.png" for name in screenshots}
    written |= {word for example in EXAMPLES for line in example.lines for word in line.split()}
    notebook = runpy.run_path(str(ROOT / "docs" / "generate_notebook.py"))
    written |= set(notebook["page"](notebook["read"]())[1])
    named = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for picture in IMAGES.iterdir():
        assert picture.name in written
        assert f"images/{picture.name}" in named
        assert picture.stat().st_size < 200_000


@for_each("script", ["generate_cli.py", "generate_combinations.py"])
def test_the_reference_is_current(script: str) -> None:
    module = runpy.run_path(str(ROOT / "docs" / script))
    assert module["PAGE"].read_text(encoding="utf-8") == module["page"](), f"run: python docs/{script}"


def test_the_reference_names_every_command_and_option() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"\n## inferplan {name}\n" in text


@for_each("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links of the documentation point at files that exist."""
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing
