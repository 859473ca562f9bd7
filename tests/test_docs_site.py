"""The documentation as a site: no page outside its navigation, none that the front page does not name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

import inferplan
from tests.cases import for_each

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
PATH = r"`((?:calibrate|configs|docs|inferplan|tests|tools/(?:accuracy|fitting|same_answers))/[\w./*-]+)`"
NOT_YET = {"configs/calibration/h200-sxm-torch.yaml"}
"""Files that a page says a later run will write."""
LINK = re.compile(r"\]\(([^)#]+\.md)\)")


def pages(entry: Any) -> Iterator[str]:
    """Every file of a navigation tree."""
    if isinstance(entry, str):
        yield entry
        return
    for inner in entry.values() if isinstance(entry, dict) else entry:
        yield from pages(inner)


def test_the_navigation_holds_every_page_once() -> None:
    assert sorted(pages(SETTINGS["nav"])) == PAGES


def test_the_front_page_names_every_page() -> None:
    named = set(LINK.findall((DOCS / "index.md").read_text(encoding="utf-8")))
    assert named == set(PAGES) - {"index.md"}


@for_each("name", inferplan.PUBLIC)
def test_the_reference_documents_every_public_name(name: str) -> None:
    text = (DOCS / "python-reference.md").read_text(encoding="utf-8")
    module = inferplan.PUBLIC[name]
    members = re.findall(r"::: inferplan\.api\n.*?members: \[(.*?)\]", text, re.DOTALL)
    listed = {f"inferplan.api.{one}" for functions in members for one in re.split(r",\s*", functions)}
    assert f"inferplan.{module}.{name}" in listed | set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))


@for_each("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{page}" for page in PAGES)])
def test_paths_that_pages_name_exist(page: str) -> None:
    named = re.findall(PATH, (ROOT / page).read_text(encoding="utf-8"))
    assert [name for name in named if not any(ROOT.glob(name.rstrip("/"))) and name not in NOT_YET] == []


def moved() -> list[str]:
    """Every module in the right column of the changelog's tables; ``.name`` stands in the folder of the one before."""
    rows = re.findall(r"^\| .*? \| (.*?) \|$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    found: list[str] = []
    for cell in rows:
        for name in re.findall(r"`(\.?[a-z][\w.]*)`", cell):
            found.append(f"{found[-1].rpartition('.')[0]}{name}" if name.startswith(".") else name)
    return found


@for_each("module", moved())
def test_modules_are_where_the_changelog_says(module: str) -> None:
    assert find_spec(module)
