"""The keys that docs/json.md lists."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "json.md"


def listed(command: str, part: str) -> list[str]:
    """The keys of a part of a command's JSON, such as ``"parts[]"``, in the order of the page."""
    section = PAGE.read_text("utf-8").partition(f"\n## inferplan {command}")[2].partition("\n## ")[0]
    first = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    names = [name for cell in first for text in re.findall(r"`([^`]+)`", cell) for name in _spelt_out(text)]
    start = f"{part}."
    return list(dict.fromkeys(re.split(r"[.\[]", name[len(start) :])[0] for name in names if name.startswith(start)))


def _spelt_out(text: str) -> list[str]:
    """``"a.{b,c}_s"`` is ``a.b_s`` and ``a.c_s``."""
    parts = [part.split(",") for part in re.split(r"[{}]", text)]
    return ["".join(words) for words in product(*parts)]
