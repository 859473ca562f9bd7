"""The event loop in machine code: the same results to the last bit, and never of sources that have changed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from inferplan import compiled
from tests.cases import for_each

ROOT = Path(__file__).parents[2]


def _call(at: Path, *words: str, use: bool = True) -> str:
    """What Python prints with the package of a folder."""
    environment = {name: value for name, value in os.environ.items() if name != compiled.OFF}
    environment |= {"PYTHONPATH": str(at)} | ({} if use else {compiled.OFF: "0"})
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A copy of the package, its event loop compiled; skips where that cannot be done."""
    pytest.importorskip("mypy")
    pytest.importorskip("setuptools")
    compiler = shlex.split(sysconfig.get_config_var("CC") or "")
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not compiler or shutil.which(compiler[0]) is None or not headers.exists():
        pytest.skip("no C compiler, or no headers of this Python")
    ignored = shutil.ignore_patterns("__pycache__", "machine_code")
    shutil.copytree(ROOT / "inferplan", tmp_path / "inferplan", ignore=ignored)
    for name in ("configs", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    _call(tmp_path, "-m", "inferplan", "compile")
    return tmp_path


def test_what_is_compiled_gives_the_same_to_the_last_bit_and_goes_with_its_sources(place: Path) -> None:
    """Simulations of 28 kinds with random loads, in two processes: their JSON is the same text."""
    words = ("-m", "tests.serving.compiled_runs", "1")
    machine, python = json.loads(_call(place, *words)), json.loads(_call(place, *words, use=False))
    assert machine["from"].endswith(EXTENSION_SUFFIXES[0]) and python["from"].endswith(".py")
    assert sum(isinstance(run, dict) for run in python["runs"].values()) > 20
    for name, run in python["runs"].items():
        assert json.dumps(machine["runs"][name]) == json.dumps(run), name
    assert _call(place, "-m", "inferplan", "--version").strip().endswith(", event loop compiled")
    assert "not used: INFERPLAN_COMPILED=0" in _call(place, "-m", "inferplan", "--version", use=False)
    with (place / "inferplan" / "serving" / "replica.py").open("a", encoding="utf-8") as file:
        file.write("# an edit\n")
    assert "from other sources, and not used" in _call(place, "-m", "inferplan", "--version")
    found = _call(place, "-c", "from inferplan.serving import clients; print(clients.__file__)")
    assert found.strip().endswith("clients.py")


@for_each(
    ("made_from", "set_to", "expected"),
    [("now", None, "in use"), ("now", "0", "off"), ("before", None, "of other sources"), (None, None, "none")],
)
def test_what_is_compiled_is_used_for_the_sources_it_was_made_from(
    made_from: str | None, set_to: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "FOLDER", str(tmp_path))
    monkeypatch.setattr(compiled, "_load_library", lambda: None)
    monkeypatch.delenv(compiled.OFF, raising=False)
    if set_to is not None:
        monkeypatch.setenv(compiled.OFF, set_to)
    if made_from is not None:
        text = compiled.digest() if made_from == "now" else "0" * 64
        (tmp_path / compiled.DIGEST).write_text(text, encoding="ascii")
    assert compiled.state() == expected
    found: Any = compiled.CompiledFinder().find_spec("inferplan.serving.replica")
    assert (found is not None) == (expected == "in use")
    if found is not None:
        assert Path(found.origin).parent == tmp_path
    assert compiled.CompiledFinder().find_spec("inferplan.serving.steady") is None


def test_the_list_names_modules_that_are_there() -> None:
    assert all(Path(compiled.source(module)).is_file() for module in compiled.MODULES)
    assert list(compiled.MODULES) == sorted(set(compiled.MODULES))
