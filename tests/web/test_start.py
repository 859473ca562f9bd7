"""Starting the server: what stands in its way is one error, before anything runs."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import for_each
from tests.web.conftest import ROOT, started, stopped
from tests.web.test_contract import typed


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ran = typed("web", "--no-browser", "--port", str(port), cwd=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr.splitlines() == [
        f"error: cannot listen on 127.0.0.1:{port}",
        "because: Address already in use",
        "hint: another --port",
    ]


@for_each("folder", ["nothing", "file.txt"])
def test_a_folder_that_is_none(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file.txt").write_text("")
    ran = typed("web", "--no-browser", "--port", "0", "--folder", folder, cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (4, f"error: cannot read {folder}\nbecause: it is no folder\n")


@for_each("option", [("--port", "65536"), ("--port", "-1"), ("--port", "x"), ("--host", "no host")])
def test_an_address_that_is_none(tmp_path: Path, option: tuple[str, str]) -> None:
    ran = typed("web", "--no-browser", *option, cwd=tmp_path)
    assert ran.returncode == 2 and ran.stderr.startswith("error: ")
    assert "Traceback" not in ran.stderr


def test_settings_that_are_wrong_are_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "inferplan.yaml").write_text("estimate: {bach: 4}\n- x")
    ran = typed("web", "--no-browser", "--port", "0", cwd=tmp_path)
    assert ran.returncode == 2 and "inferplan.yaml" in ran.stderr


def test_nothing_is_kept_of_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other commands keep specs in the user's cache (``catalog/file_cache.py``); the server writes nothing there."""
    (tmp_path / "kept").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    web = started(None, tmp_path)
    try:
        options = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
        assert web.post("/api/view", options).status == 200
        assert web.wait(web.start("simulate", **options, concurrency=2, requests=20))["state"] == "done"
    finally:
        stopped(web)
    assert not (tmp_path / "kept" / "inferplan").exists()
    environment = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "kept")}
    command = [sys.executable, "-m", "inferplan", "estimate", "llama-3.1-8b", "--gpu", "h100-sxm"]
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert list((tmp_path / "kept" / "inferplan").iterdir())  # where it would have been


def test_two_servers_beside_each_other(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = started(None, tmp_path / "a"), started(None, tmp_path / "b")
    try:
        assert first.port != second.port and first.answers()
        assert second.answers()
        first.port, own = second.port, first.port
        assert first.get("/api/openapi.json").status == 401  # each has a token of its own
        first.port = own
    finally:
        stopped(first)
        stopped(second)
