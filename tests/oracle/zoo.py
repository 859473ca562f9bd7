"""Every model that transformers builds is the zoo: ``make test`` takes a sample of it, ``make zoo`` all of it.

``zoo.sha256`` holds the hash of what the tests of this folder depend on, as it was when they passed on the whole zoo.
``make zoo`` writes it. ``python -m tests.oracle.zoo`` exits with 1 where the hash is another one: then ``.ci/run`` runs
``make zoo``.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).with_suffix(".sha256")
FOLDERS = ("inferplan/models", "inferplan/work", "tests/oracle", "tests/fixtures")
PACKAGES = ("gguf", "torch", "transformers")
EACH = 10
"""A sample is each tenth model."""
Case = TypeVar("Case")


def sample(cases: Iterable[Case]) -> list[Case]:
    """All cases where ``INFERPLAN_ZOO`` is ``whole``, else some."""
    return list(cases)[:: 1 if os.environ.get("INFERPLAN_ZOO") == "whole" else EACH]


def contents() -> Iterator[bytes]:
    """What the tests of this folder depend on."""
    for package in PACKAGES:
        yield f"{package} {version(package)}".encode()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".json", ".txt"):
                yield str(path.relative_to(ROOT)).encode()
                yield path.read_bytes()


def digest() -> str:
    whole = hashlib.sha256()
    for part in contents():
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        KEPT.write_text(digest() + "\n", encoding="utf-8")
    elif not KEPT.exists() or KEPT.read_text(encoding="utf-8").strip() != digest():
        sys.exit("the tests of tests/oracle have not passed on the whole zoo with this code")
