"""Writes docs/combinations.md from the table of features: ``python docs/generate_combinations.py``.

A test says when it is stale.
"""

from __future__ import annotations

from pathlib import Path

from inferplan.features import FEATURES, OBJECTS, QUESTIONS, REFUSALS, Refusal

PAGE = Path(__file__).with_name("combinations.md")
SHOWN = {"estimate": "E", "simulate": "S", "plan": "P"}
HEAD = """# Which features go together

Written by `python docs/generate_combinations.py` from `inferplan/features.py`; do not edit.

A feature is something beyond a plain request on a plain replica. Any two go together, but for the pairs of this page:
the command line, the Python API and the page in the browser read the same table. What is refused exits 2 and says why:

    error: LoRA adapters (--lora-rank) and drafts (--draft) do not go together in simulate

"""
MATRIX = """## The matrix

E, S, P: refused in `estimate`, `simulate`, `plan`; X: refused everywhere. An empty cell: the two go together, or one of
them has no meaning in a question and no option there. Columns are rows by number.
"""
REASONS = """## The reasons

Each pair stands once. *Everywhere* is a pair that no deployment or no load can have.
"""


def links() -> list[str]:
    """Every feature that stands in a pair, with its page, by number."""
    return [f"[{feature.words}]({feature.page})" for feature in map(FEATURES.__getitem__, shown())]


def shown() -> list[str]:
    """The names of the features that stand in a pair, in the order of the table."""
    pairs = {name for row in REFUSALS for name in (row.one, row.other)}
    return [name for name in FEATURES if name in pairs]


def marks(one: str, other: str) -> str:
    """The letters of a cell."""
    rows = [row for row in REFUSALS if {row.one, row.other} == {one, other}]
    asked = {question for row in rows for question in row.questions}
    return "X" if asked & set(OBJECTS) else "".join(mark for question, mark in SHOWN.items() if question in asked)


def matrix() -> list[str]:
    """The lower half of features by features."""
    names = shown()
    lines = ["| | | " + " | ".join(str(column + 1) for column in range(len(names) - 1)) + " |"]
    lines.append("|---:|---|" + ":---:|" * (len(names) - 1))
    for row, (name, link) in enumerate(zip(names, links())):
        cells = [marks(name, other) for other in names[:row]]
        lines.append(" | ".join([f"| {row + 1}", link, *cells]) + " |")
    return lines


def where(row: Refusal) -> str:
    """The questions of a pair, in words."""
    return "everywhere" if set(row.questions) & set(OBJECTS) else ", ".join(q for q in QUESTIONS if q in row.questions)


def reasons() -> list[str]:
    """The pairs of each feature with their reasons."""
    lines = []
    for name in shown():
        rows = [row for row in REFUSALS if row.one == name]
        if not rows:
            continue
        feature = FEATURES[name]
        lines += [f"### {feature.words[0].upper()}{feature.words[1:]}", ""]
        if feature.option:
            lines += [f"`{feature.option}`, see [{feature.page}]({feature.page}).", ""]
        lines += ["| with | not in | because | what works |", "|---|---|---|---|"]
        for row in rows:
            lines.append(f"| {FEATURES[row.other].words} | {where(row)} | {row.because} | {row.hint} |")
        lines.append("")
    return lines


def page() -> str:
    """The whole page."""
    lines = [MATRIX, *matrix(), "", REASONS, *reasons()]
    return HEAD + "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
