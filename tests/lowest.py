"""The lowest releases that pyproject.toml admits, as constraints for pip: ``python tests/lowest.py > lowest.txt``.

The minima stand in pyproject.toml alone; ``make minimum`` installs them and runs the README's command with them. The
extras whose tools are always taken new (``compiled``, ``dev``, ``docs``) are left out, and ``calibrate``: torch alone
is large.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
LEFT_OUT = {"calibrate", "compiled", "dev", "docs"}


def lowest() -> dict[str, str]:
    """Package name to its lowest release. Raises ``ValueError`` for a requirement without one."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = [
        text
        for extra, texts in project["optional-dependencies"].items()
        if extra not in LEFT_OUT
        for text in texts
        if not text.startswith(f"{project['name']}[")
    ]
    found = {}
    for text in [*project["dependencies"], *extras]:
        stated = re.fullmatch(r"([A-Za-z0-9_.-]+)>=([0-9.]+)(?:,<[0-9.]+)?", text)
        if stated is None:
            raise ValueError(f"{text!r} states no minimum such as name>=1.2")
        found[stated[1]] = stated[2]
    return found


if __name__ == "__main__":
    print("\n".join(f"{name}=={release}" for name, release in lowest().items()))
