"""What the browser has, built once a session."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from browser import build

ROOT = Path(__file__).parents[2]


def lacking(why: str) -> None:
    """Skips at home, fails where CI runs."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the interpreter finds, as this Python finds them."""
    folder = tmp_path_factory.mktemp("browser")
    for name, text in build.files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(text[7:]) if text.startswith("base64:") else text.encode())
    return folder


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``make site`` builds."""
    folder = tmp_path_factory.mktemp("site") / "run"
    try:
        build.build(folder, ROOT / "build")
    except build.BuildError as error:
        if "could not be started" in str(error) or "pinned" in str(error):
            raise
        lacking(str(error))
    return folder
