"""The part of the CPU's page that is about a server of llama.cpp: two commands write that page."""

from __future__ import annotations

from pathlib import Path

HEADING = "## A server of llama.cpp"


def with_part(page: Path, new: str) -> str:
    """A page with this part in place of the one that it has, or at its end."""
    before = page.read_text(encoding="utf-8").partition(f"\n{HEADING}\n")[0].rstrip("\n")
    return f"{before}\n\n{new}"


def part_of(page: Path) -> str:
    """The part that a page has, to keep it where the rest is written anew; empty without one."""
    whole = page.read_text(encoding="utf-8") if page.exists() else ""
    _, found, rest = whole.partition(f"\n{HEADING}\n")
    return f"\n{HEADING}\n{rest}" if found else ""
