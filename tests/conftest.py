"""Fixtures that several tests share."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from zlib import crc32

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SECONDS = {"ms": 1e-3, "us": 1e-6}

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # started in the background by a shell: what the tests start would ignore Ctrl-C too, and some tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["SOURCE_DATE_EPOCH"] = "1795305600"  # 2026-11-22: prices are as old in every run
os.environ["INFERPLAN_PRICE_FOLDER"] = ""  # no price lists of whoever runs the tests
os.environ["INFERPLAN_COMPILED"] = "0"  # tests replace functions, and run the sources as they are
os.environ["INFERPLAN_CACHE"] = ""  # every test reads the YAML, with the code as it is, bugs planted in it included

DEAR = Path(__file__).with_name("dear.txt")
"""Tests that each take more than a 1,500th of what all of them take together. ``make whole`` runs all and writes it."""
EACH = 20
"""With ``DEAR_TESTS=drawn`` a commit draws one in so many of the dear tests, the next one anew."""
_seconds: Counter[str] = Counter()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """``make test`` leaves out nineteen in twenty of the dear tests; called by themselves, tests run."""
    if os.environ.get("DEAR_TESTS") != "drawn":
        return
    asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(asked, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):  # no repository: nothing tells what is whose turn
        return
    dear = DEAR.read_text(encoding="utf-8").splitlines()
    left_out = {name for name in dear if crc32(f"{commit}{name}".encode()) % EACH}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Writes the list of dear tests where ``DEAR_TESTS`` is ``measured`` and all passed."""
    if os.environ.get("DEAR_TESTS") != "measured" or exitstatus or hasattr(session.config, "workerinput"):
        return
    least = sum(_seconds.values()) / 1500
    dear = sorted(name for name, seconds in _seconds.items() if seconds > least)
    DEAR.write_text("".join(f"{name}\n" for name in dear), encoding="utf-8")


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
