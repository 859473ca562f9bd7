"""How well decisions are taken: ``python -m tests.benchmarks.bench_decisions [FOLDER] [PART ...]``.

FOLDER holds ``measured/`` with the closed-loop rows, for parts that need them. Each part is a module beside this one
with a function ``figures`` of the folder that prints what it measured; all are run unless some are named.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

PARTS = {
    "people": "decisions_people",
    "pairs": "decisions_pairs",
    "choices": "decisions_choices",
    "coverage": "decisions_coverage",
    "limits": "decisions_limits",
}
"""By name the module of each part."""


def main(arguments: list[str]) -> None:
    """Print the figures of each part."""
    named = bool(arguments) and arguments[0] in PARTS
    folder, *names = ["../shared", *arguments] if named or not arguments else arguments
    for name in names or PARTS:
        print(f"# {name}", flush=True)
        import_module(f"tests.benchmarks.{PARTS[name]}").figures(Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
