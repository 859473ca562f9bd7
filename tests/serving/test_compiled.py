"""The event loop in machine code: the same results to the last bit, and never of sources that have changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from inferplan import compiled
from inferplan.errors import UsageError
from tests.cases import for_each
from tests.serving.native_build import c_compiler

ROOT = Path(__file__).parents[2]
MADE = (*compiled.MODULES, compiled.NATIVE, "inferplan_event_loop__mypyc")


def _call(at: Path, *words: str, use: bool = True) -> str:
    """What Python prints with the package of a folder."""
    environment = {name: value for name, value in os.environ.items() if name != compiled.OFF}
    environment |= {"PYTHONPATH": str(at)} | ({} if use else {compiled.OFF: "0"})
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _copied(into: Path) -> Path:
    """A copy of the package, in which nothing is compiled; the folder for what is."""
    for name in ("inferplan", "configs"):
        shutil.copytree(ROOT / name, into / name, ignore=shutil.ignore_patterns("__pycache__", "machine_code"))
    made = into / Path(compiled.FOLDER).relative_to(ROOT)
    made.mkdir(parents=True)
    return made


@pytest.fixture(scope="module")
def files() -> list[str]:
    """Those that what is compiled depends on: a second or two."""
    return compiled.sources()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A copy of the package; skips where there is no C compiler."""
    c_compiler()
    _copied(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    return tmp_path


def test_what_is_compiled_gives_the_same_to_the_last_bit_and_goes_with_its_sources(place: Path) -> None:
    """Simulations of 28 kinds with random loads, in two processes: their JSON is the same text."""
    pytest.importorskip("mypy")
    pytest.importorskip("setuptools")
    _call(place, "-m", "inferplan", "compile", "--all")
    words = ("-m", "tests.serving.compiled_runs", "1")
    machine, python = json.loads(_call(place, *words)), json.loads(_call(place, *words, use=False))
    assert machine["from"].endswith(EXTENSION_SUFFIXES[0]) and python["from"].endswith(".py")
    assert sum(isinstance(run, dict) for run in python["runs"].values()) > 20
    for name, run in python["runs"].items():
        assert json.dumps(machine["runs"][name]) == json.dumps(run), name
    assert (
        _call(place, "-m", "inferplan", "--version")
        .strip()
        .endswith(", event loop compiled by inferplan compile --all")
    )
    assert "not used: INFERPLAN_COMPILED=0" in _call(place, "-m", "inferplan", "--version", use=False)
    with (place / "inferplan" / "serving" / "replica.py").open("a", encoding="utf-8") as file:
        file.write("# an edit\n")
    assert "from other sources, and not used: inferplan compile --all" in _call(place, "-m", "inferplan", "--version")
    found = _call(place, "-c", "from inferplan.serving import clients; print(clients.__file__)")
    assert found.strip().endswith("clients.py")


def test_plain_replicas_are_compiled_without_mypy(place: Path) -> None:
    """In C alone, where neither mypy nor setuptools can be imported; and the same answer to the last digit."""
    for name in ("mypy", "setuptools"):
        (place / f"{name}.py").write_text("raise ImportError", encoding="ascii")
    _call(place, "-m", "inferplan", "compile")
    assert _call(place, "-m", "inferplan", "--version").strip().endswith(", event loop compiled by inferplan compile")
    probe = "from inferplan.serving import clients, plain_replica as p; print(p.NATIVE is not None, clients.__file__)"
    assert _call(place, "-c", probe).split() == ["True", str(place / "inferplan" / "serving" / "clients.py")]
    assert _call(place, "-c", probe, use=False).startswith("False")
    words = "simulate llama-3.1-8b --gpu h100-sxm --rate 20 --prompt 512 --output 64 --requests 300 --format json"
    machine, python = (_call(place, "-m", "inferplan", *words.split(), use=use) for use in (True, False))
    assert json.loads(machine)["verdict"] == "stable" and machine == python
    error = subprocess.run(
        [sys.executable, "-m", "inferplan", "compile", "--all"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert error.returncode == 2 and "mypy" in error.stderr


@for_each(
    ("made_from", "set_to", "expected"),
    [("now", None, "in use"), ("now", "0", "off"), ("before", None, "of other sources"), (None, None, "none")],
)
def test_what_is_compiled_is_used_for_the_sources_it_was_made_from(
    made_from: str | None,
    set_to: str | None,
    expected: str,
    files: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled, "FOLDER", str(tmp_path))
    monkeypatch.setattr(compiled, "_loads", lambda made_from: True)
    monkeypatch.delenv(compiled.OFF, raising=False)
    if set_to is not None:
        monkeypatch.setenv(compiled.OFF, set_to)
    if made_from is not None:
        text = compiled.record("mypy 2.4.0", files)
        text += "\n\n" + "\n".join(f"{name}{EXTENSION_SUFFIXES[0]} 4" for name in MADE)
        (tmp_path / compiled.RECORD).write_text(text if made_from == "now" else "0" * 64 + text[64:], encoding="ascii")
    assert compiled.state() == expected
    found: Any = compiled.CompiledFinder().find_spec("inferplan.serving.replica")
    assert (found is not None) == (expected == "in use")
    if found is not None:
        assert Path(found.origin).parent == tmp_path
    assert compiled.CompiledFinder().find_spec("inferplan.serving.steady") is None


@for_each(
    "edited",
    [
        "compiled.py",
        "serving/plain_native.c",
        "traffic/requests.py",
        "estimate/roofline.py",
        "work/ops.py",
        "work/parallel.py",
    ],
)
def test_it_is_of_other_sources_once_what_it_was_compiled_against_is_edited(
    edited: str, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one is imported by what the event loop imports, not by itself."""
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(compiled.__file__).parent / name, tmp_path / name)
    monkeypatch.setattr(compiled, "_PACKAGE", str(tmp_path))
    monkeypatch.setattr(compiled, "FOLDER", str(tmp_path))
    monkeypatch.setattr(compiled, "_loads", lambda made_from: True)
    monkeypatch.delenv(compiled.OFF, raising=False)
    (tmp_path / compiled.RECORD).write_text(compiled.record("mypy 2.4.0", files), encoding="ascii")
    assert compiled.state() == "in use"
    with (tmp_path / edited).open("a", encoding="utf-8") as file:
        file.write("# an edit\n")
    assert compiled.state() == "of other sources"


def test_the_release_of_the_compiler_is_recorded(files: list[str]) -> None:
    digest, made_with, *named = compiled.record("mypy 2.4.0", files).split("\n")
    assert (len(digest), made_with, named) == (64, "mypy 2.4.0", files)
    assert compiled.record("mypy 2.5.0", files)[:64] != digest


def test_files_that_cannot_be_used_leave_the_sources_in_use(files: list[str], tmp_path: Path) -> None:
    """No files with the right record, a library that is none, a record that is no text."""
    made = _copied(tmp_path)
    text = b"no library"
    names = [f"{module}{EXTENSION_SUFFIXES[0]}" for module in MADE]
    head = compiled.record("mypy 2.4.0", files).encode()
    right = head + b"\n\n" + "\n".join(f"{name} {len(text)}" for name in names).encode()
    probe = (
        "from inferplan.compiled import state; from inferplan.serving import clients; print(clients.__file__, state())"
    )
    for made_from, there, said in (
        (right, [], "unusable"),
        (right, names, "unusable"),
        (b"\xff\xfe", names, "of other"),
    ):
        (made / compiled.RECORD).write_bytes(made_from)
        for name in there:
            (made / name).write_bytes(text)
        origin, found = _call(tmp_path, "-c", probe).split(maxsplit=1)
        assert Path(origin).name == "clients.py" and found.startswith(said)
    (made / compiled.RECORD).write_bytes(right)
    assert "not used, because it does not load" in _call(tmp_path, "-m", "inferplan", "--version")


def test_a_library_that_is_cut_off_is_not_loaded(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To load it would end the process (a bus error)."""
    loaded: list[bool] = []
    monkeypatch.setattr(compiled, "FOLDER", str(tmp_path))
    monkeypatch.setattr(compiled, "_load_library", lambda: loaded.append(True))
    monkeypatch.delenv(compiled.OFF, raising=False)
    names = [f"{module}{EXTENSION_SUFFIXES[0]}" for module in MADE]
    for name in names:
        (tmp_path / name).write_bytes(b"1234")
    made = "\n".join(f"{name} 4" for name in names)
    (tmp_path / compiled.RECORD).write_text(f"{compiled.record('mypy 2.4.0', files)}\n\n{made}", encoding="ascii")
    assert compiled.state() == "in use" and loaded == [True]
    (tmp_path / names[-1]).write_bytes(b"123")
    assert compiled.state() == "unusable" and loaded == [True]


class _Child:
    """Stands for the process that compiles: what it would import where it runs, and the record that it leaves."""

    def __init__(self, made_from: str) -> None:
        self.made_from, self.run = made_from, subprocess.run
        self.imports: list[str] = []

    def __call__(self, command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        names = ("inferplan", "mypyc", "setuptools")
        probe = (
            f"from importlib.util import find_spec as f; print(*(s.origin for n in {names} if (s := f(n))), sep='\\n')"
        )
        self.imports = self.run([sys.executable, "-c", probe], **how).stdout.splitlines()  # as -m: the current folder
        work = Path(command[-1])
        (work / compiled.RECORD).write_text(self.made_from, encoding="ascii")
        (work / "made").mkdir()
        for module in MADE:
            (work / "made" / f"{module}{EXTENSION_SUFFIXES[0]}").touch()
        return subprocess.CompletedProcess(command, 0, "", "")


def test_only_the_package_that_asks_is_compiled(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules of the current folder are not run, and what another package's sources gave is not kept."""
    for name in ("inferplan", "mypyc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "setuptools.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compiled, "FOLDER", str(tmp_path / "made"))
    monkeypatch.setattr("inferplan.extras.require", lambda extra, task: None)
    right = compiled.record("mypy 2.4.0", files)
    child = _Child(right)
    monkeypatch.setattr(subprocess, "run", child)
    assert compiled.compile_modules(everything=True) == str(tmp_path / "made")
    assert (tmp_path / "made" / compiled.RECORD).read_text(encoding="ascii").startswith(right + "\n\n")
    assert Path(child.imports[0]).parent == Path(compiled.__file__).parent
    assert not [origin for origin in child.imports if Path(origin).is_relative_to(tmp_path)]
    child.made_from = "0" * 64 + right[64:]
    with pytest.raises(UsageError, match="cannot be used"):
        compiled.compile_modules(everything=True)
    assert (tmp_path / "made" / compiled.RECORD).read_text(encoding="ascii").startswith(right + "\n\n")


def test_the_list_names_modules_that_are_there() -> None:
    assert all(Path(compiled.source(module)).is_file() for module in (*compiled.MODULES, compiled.NATIVE))
    assert list(compiled.MODULES) == sorted(set(compiled.MODULES))
