"""The command line in this process, exactly as ``inferplan`` runs it."""

from __future__ import annotations

import sys

import pytest

from inferplan.cli import main


def exit_code(patch: pytest.MonkeyPatch, *words: str) -> int:
    """Of ``inferplan`` with these words behind it; what it prints is left to be captured."""
    patch.setattr(sys, "argv", ["inferplan", *words])
    try:
        main()
    except SystemExit as leave:
        return int(leave.code or 0)
    return 0
