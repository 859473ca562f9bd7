"""The documentation runs: every ``>>>`` example in README.md and docs/ gives what it says."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

from inferplan.models.layers import kinds
from inferplan.work import ops
from tests.cases import for_each

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)


def examples(page: Path) -> list[tuple[int, str]]:
    """Each python block with examples, and the line it starts on."""
    text = page.read_text(encoding="utf-8")
    found = [(text[: match.start()].count("\n") + 1, match["code"]) for match in BLOCK.finditer(text)]
    return [(line, code) for line, code in found if ">>>" in code]


RUNNABLE = [page for page in PAGES if examples(page)]


@for_each("page", RUNNABLE, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page: Path):
    """The blocks of one page share their names, top to bottom."""
    names: dict[str, Any] = {}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for line, code in examples(page):
        test = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), line)
        runner.run(test, out=report.append, clear_globs=False)
        names = test.globs
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


@for_each("kind", kinds())
def test_every_layer_kind_has_a_page_with_a_worked_number(kind: str):
    page = ROOT / "docs" / "formulas" / f"{kind}.md"
    assert page in RUNNABLE
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {kind}: ")
    assert "Source" in text


def operators() -> list[str]:
    """Every operator kind: the concrete classes of ops.py."""
    classes = [c for c in vars(ops).values() if isinstance(c, type) and issubclass(c, ops.Op)]
    return sorted({c.kind for c in classes} - {ops.Op.kind})


@for_each("kind", operators())
def test_every_operator_has_a_page_with_a_worked_number(kind: str):
    page = ROOT / "docs" / "operators" / f"{kind}.md"
    assert page in RUNNABLE
    assert "Source" in page.read_text(encoding="utf-8")
