"""Fixtures that several tests share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SECONDS = {"ms": 1e-3, "us": 1e-6}

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # started in the background by a shell: what the tests start would ignore Ctrl-C too, and some tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["INFERPLAN_CACHE"] = ""  # every test reads the YAML, with the code as it is, bugs planted in it included


def fitted(engine: str, name: str) -> float:
    """A serving constant as it stands in the engine's file, in seconds or bare: read here by other means than ours."""
    serving = yaml.safe_load((ROOT / "configs/engines" / f"{engine}.yaml").read_text())["serving"]
    number, _, unit = str(serving[name]).partition(" ")
    return float(number) * SECONDS.get(unit, 1.0)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the checkout (or ``$INFERPLAN_SHARED``); skips where there is none."""
    folder = Path(os.environ.get("INFERPLAN_SHARED") or ROOT.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"no reference data at {folder}; set INFERPLAN_SHARED to the folder that holds it")
    return folder
