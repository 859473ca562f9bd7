"""Shipped specs that one process keeps for the next are those that the YAML gives, and of the YAML as it is now."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inferplan import packed
from inferplan.catalog import file_cache, files
from inferplan.devices.constants import Calibration
from inferplan.devices.engine import EngineSpec
from inferplan.devices.hardware import HardwareSpec
from tests.cases import for_each

PARSED = (
    "import sys; sys.argv = ['inferplan', 'estimate', 'tiny', '--gpu', 'h100-sxm'];"
    "from inferplan.cli import main; main(); print('yaml' in sys.modules, file=sys.stderr)"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "cache"
    monkeypatch.setenv("INFERPLAN_CACHE", str(place))
    file_cache._folder.cache_clear()
    yield place
    file_cache._folder.cache_clear()


class Reads:
    """A file that is read, with how often it was."""

    def __init__(self, path: Path, *further: Path) -> None:
        self.paths, self.count = [path, *further], 0

    def __call__(self) -> tuple[str, list[Path]]:
        self.count += 1
        return "".join(path.read_text() for path in self.paths), self.paths


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text("one")
    return path


def again(reads: Reads) -> str:
    """As another process would."""
    file_cache._held.clear()
    return within(reads)


def within(reads: Reads) -> str:
    """As the same process does."""
    found: str = file_cache.read_cached(reads.paths[0], "text", reads)
    return found


def test_a_file_is_read_once(folder: Path, source: Path) -> None:
    reads = Reads(source)
    assert [again(reads), again(reads)] == ["one", "one"]
    assert reads.count == 1
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_file_that_has_changed_is_read_again(folder: Path, source: Path) -> None:
    reads = Reads(source)
    again(reads)
    source.write_text("four")  # another size, whatever the clock of the file system
    assert again(reads) == "four"


def test_a_process_reads_a_file_once_and_again_when_it_has_changed(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_cache, "_folder", lambda: None)
    reads = Reads(source)
    assert [within(reads), within(reads)] == ["one", "one"]
    assert reads.count == 1
    source.write_text("four")
    assert [within(reads), within(reads)] == ["four", "four"]
    assert reads.count == 2


def test_a_change_that_leaves_size_and_time_as_they_were_is_seen(folder: Path, source: Path) -> None:
    """Archives and mirrors that set the times of their files do this: one digit of a YAML is another."""
    reads = Reads(source)
    again(reads)
    about = source.stat()
    while source.stat().st_ctime_ns == about.st_ctime_ns:  # a tick of the file system's clock
        source.write_text("two")
        os.utime(source, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert [within(reads), again(reads)] == ["two", "two"]


def test_what_is_written_while_it_is_read_is_read_again(folder: Path, source: Path) -> None:
    class Overtaken(Reads):
        def __call__(self) -> tuple[str, list[Path]]:
            found = super().__call__()
            if self.count == 1:
                source.write_text("four")
            return found

    reads = Overtaken(source)
    assert [again(reads), within(reads)] == ["one", "four"]
    assert again(reads) == "four"
    assert reads.count == 2


def test_the_code_of_a_spec_counts_where_it_stands_in_another_room(
    folder: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_is_shipped", lambda path: True)
    source.write_text("size: 1")
    (tmp_path / "room_of_a_spec.py").write_text("from inferplan.spec import Spec\nclass Own(Spec):\n    size: int\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    room = importlib.import_module("room_of_a_spec")
    assert files.spec_of(source, room.Own).size == 1
    (tmp_path / "room_of_a_spec.py").write_text(Path(room.__file__).read_text() + "    new: int = 3\n")
    file_cache._held.clear()
    assert files.spec_of(source, importlib.reload(room).Own).new == 3
    del sys.modules["room_of_a_spec"]


def test_what_a_file_refers_to_counts_as_the_file(folder: Path, source: Path) -> None:
    base = source.with_name("base.yaml")
    base.write_text("base")
    reads = Reads(source, base)
    again(reads)
    base.write_text("other base")
    assert again(reads) == "oneother base"
    base.unlink()
    reads.paths.pop()
    assert again(reads) == "one"


def test_a_base_that_is_gone_is_no_error_of_the_process_that_has_read_it(folder: Path, source: Path) -> None:
    base = source.with_name("base.yaml")
    base.write_text("base")
    reads = Reads(source, base)
    again(reads)
    base.unlink()
    reads.paths.pop()
    assert within(reads) == "one"


def test_other_code_reads_again(folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(source)
    again(reads)
    monkeypatch.setattr(file_cache, "_code", lambda: ("another",))
    again(reads)
    assert reads.count == 2


def test_code_is_known_by_every_file_that_reads_a_spec() -> None:
    said = str(dict(packed.code_files()))
    for part in ("spec.py", "units.py", "catalog/files.py", "devices/engine.py", "models/layers/mla.py", "work/ops.py"):
        assert f"inferplan/{part}" in said


@pytest.mark.parametrize("content", [b"", b"no pickle", b"\x80\x05]", pickle.dumps(("code", [], "wrong"))])
def test_what_is_damaged_is_made_again(folder: Path, source: Path, content: bytes) -> None:
    reads = Reads(source)
    again(reads)
    (file,) = folder.iterdir()
    file.write_bytes(content)
    assert again(reads) == "one"
    assert again(reads) == "one"
    assert reads.count == 2


def test_nothing_is_kept_where_it_is_not_wanted(folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERPLAN_CACHE", "")
    file_cache._folder.cache_clear()
    reads = Reads(source)
    again(reads)
    again(reads)
    assert reads.count == 2
    assert not folder.exists()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners of files on this system")
def test_what_others_could_have_put_there_is_not_read(folder: Path, source: Path) -> None:
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    reads = Reads(source)
    again(reads)
    again(reads)
    assert reads.count == 2
    assert not list(folder.iterdir())


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners of files on this system")
def test_a_folder_is_made_before_anybody_else_can_make_it(folder: Path) -> None:
    assert file_cache._folder() == folder
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (os.getuid(), 0o700)


def test_a_cache_of_no_whole_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the XDG Base Directory Specification says of all its variables; it would be another one in every directory."""
    monkeypatch.delenv("INFERPLAN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    file_cache._folder.cache_clear()
    found = file_cache._folder()
    file_cache._folder.cache_clear()
    assert found == tmp_path / ".cache" / "inferplan"


def test_a_folder_that_cannot_be_made_is_no_error(folder: Path, source: Path) -> None:
    folder.write_text("a file")
    assert again(Reads(source)) == "one"


def test_two_sources_of_one_name_are_two(folder: Path, source: Path) -> None:
    other = source.parent / "b" / "a.yaml"
    other.parent.mkdir()
    other.write_text("other")
    assert again(Reads(source)) == "one"
    assert again(Reads(other)) == "other"


def from_the_wheel(made: Any) -> Any:
    """What a wheel's file of specs says of one."""
    return json.loads(json.dumps(packed._encoded(made)), object_hook=packed._decoded)


@for_each(("kind", "spec"), [("hardware", HardwareSpec), ("engines", EngineSpec), ("calibration", Calibration)])
def test_every_shipped_spec_survives(kind: str, spec: type) -> None:
    for name in files.names(kind):
        read = files.load(kind, name, spec)  # no cache here: as the file says
        assert pickle.loads(pickle.dumps(read)) == read
        assert from_the_wheel(read) == read


def test_every_model_survives() -> None:
    for name in files.names("models"):
        read = files._from_yaml(files.config_root() / "models" / f"{name}.yaml")
        again = pickle.loads(pickle.dumps(read))
        assert again == read == from_the_wheel(read)
        assert again.parameters == read.parameters == from_the_wheel(read).parameters


def test_the_second_estimate_parses_no_yaml_and_says_the_same(folder: Path) -> None:
    words = PARSED.replace("tiny", "gemma-3-1b")
    first, second = (
        subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True) for _ in range(2)
    )
    assert first.stdout == second.stdout
    assert [first.stderr, second.stderr] == ["True\n", "False\n"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one engine, whose spec is packed."""
    place = tmp_path / "package"
    for name in packed._READERS:
        (place / name).mkdir(parents=True)
    (place / "work" / "reader.py").write_text("reads")
    engine = place / "configs" / "engines" / "vllm.yaml"
    engine.parent.mkdir(parents=True)
    engine.write_text((files.config_root() / "engines" / "vllm.yaml").read_text())
    monkeypatch.setattr(packed, "_PACKAGE", place)
    made = files.load("engines", "vllm", EngineSpec)
    held = {(str(engine), "EngineSpec"): ([engine, place / "work" / "reader.py"], made)}
    packed._places.cache_clear()
    (place / "configs" / packed.NAME).write_bytes(packed.packed(held, place / "configs"))
    yield place
    packed._places.cache_clear()


def test_a_packed_spec_is_not_read(package: Path) -> None:
    engine = package / "configs" / "engines" / "vllm.yaml"
    found = file_cache.read_cached(engine, "EngineSpec", lambda: pytest.fail("the wheel has it"))
    assert found == files.load("engines", "vllm", EngineSpec)
    assert packed.unpacked(engine, "other") is None
    assert packed.unpacked(package.parent / "vllm.yaml", "EngineSpec") is None


@for_each("changed", ["configs/engines/vllm.yaml", "work/reader.py", "work/new.py", "configs/specs.jsonl"])
def test_a_packed_spec_is_read_anew_where_something_changed(package: Path, changed: str) -> None:
    """A YAML with one letter more, its reader, the code as a whole, and a file of specs that says nothing."""
    engine, file = package / "configs" / "engines" / "vllm.yaml", package / changed
    before = file.read_bytes() if file.exists() else b""
    assert packed.unpacked(engine, "EngineSpec") is not None
    file.write_bytes(b"#" + before[1:] + b"#")
    packed._places.cache_clear()
    assert packed.unpacked(engine, "EngineSpec") is None
    file.write_bytes(before) if before else file.unlink()
    packed._places.cache_clear()


def test_what_nobody_packs_is_no_file_of_specs() -> None:
    with pytest.raises(TypeError, match="complex"):
        packed._encoded({"one": [1j]})
