"""Fixtures that several tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the checkout (or ``$INFERPLAN_SHARED``); skips where there is none."""
    folder = Path(os.environ.get("INFERPLAN_SHARED") or ROOT.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"no reference data at {folder}; set INFERPLAN_SHARED to the folder that holds it")
    return folder
