"""A server of ``inferplan web`` as a process of its own, on a free port of this machine."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

collect_ignore_glob = [] if find_spec("fastapi") and find_spec("uvicorn") else ["test_*.py"]
if not Path("/proc/self/stat").exists():  # where processes are counted
    collect_ignore_glob += ["test_hostile.py", "test_jobs.py"]

ROOT = Path(__file__).parents[2]
MODEL = "derive: {from: llama-3.1-8b}\nname: own-8b\n"


@dataclass(frozen=True, kw_only=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        assert self.status >= 400, self.body[:300]
        found: dict[str, Any] = self.json["error"]
        assert set(found) - {"picture"} == {"what", "because", "hint", "exit_code"}
        return found


@dataclass(kw_only=True)
class Web:
    """A server that runs. folder: where the files are that its requests may name."""

    process: subprocess.Popen[str]
    port: int
    folder: Path
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})

    def ask(self, method: str, path: str, body: bytes | None = None, timeout: float = 60, **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, {**self.headers, **named})
            got = connection.getresponse()
            return Reply(status=got.status, headers={k.lower(): v for k, v in got.getheaders()}, body=got.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        return self.ask("POST", path, json.dumps(body).encode(), **headers)

    def start(self, kind: str, **options: Any) -> str:
        got = self.post("/api/jobs", {"kind": kind, "options": options})
        assert got.status == 202, got.body
        name: str = got.json["id"]
        return name

    def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/api/jobs/{name}").json
        return found

    def wait(self, name: str, seconds: float = 120) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while (found := self.job(name))["state"] == "running":
            assert time.monotonic() < end, found
            time.sleep(0.1)
        return found

    def processes(self) -> set[int]:
        """Those that it has started and that run, the tracker of Python's multiprocessing aside."""
        return children(self.process.pid)

    def answers(self) -> bool:
        return self.get("/api/openapi.json").status == 200


def running() -> Iterator[tuple[int, int, str]]:
    """Number, parent and command line of every process that has not ended."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if state != "Z":
                yield int(folder.name), int(parent), (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue  # it has ended meanwhile


def children(parent: int) -> set[int]:
    return {pid for pid, above, words in running() if above == parent and "resource_tracker" not in words}


def alive(pids: set[int]) -> set[int]:
    return pids & {pid for pid, _, _ in running()} if pids else set()


def gone(pids: set[int], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while alive(pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


SECRET = "a-secret-of-16-or-more"
"""Of servers with limits of their own."""
SCRIPT = f"""
import sys
from inferplan.cli.programs import CommandLine
from inferplan.web.keys import Keys
from inferplan.web.limits import Limits
from inferplan.web.serve import Place, serve

if __name__ == "__main__":
    keys = Keys(token="{SECRET}", people=("ada", "bo"))
    place = Place(port=0, folder=sys.argv[1], limits=Limits({{limits}}), keys=keys)
    say = lambda address: print("listening on", keys.link(address), file=sys.stderr, flush=True)
    serve(place, CommandLine(), say)
"""


def started(folder: Path | None, cwd: Path, limits: str = "") -> Web:
    """A server; with the ``limits`` that are named (``"seconds=1"``) in place of the usual ones."""
    command = [sys.executable, "-m", "inferplan", "web", "--port", "0", "--no-browser"]
    command += [] if folder is None else ["--folder", str(folder)]
    if limits:
        script = cwd / "server.py"
        script.write_text(SCRIPT.format(limits=limits))
        command = [sys.executable, str(script), str(folder)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("INFERPLAN_")}
    environment |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(cwd)}
    log = (cwd / "stderr.txt").open("w")
    process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=log, stderr=log, text=True)
    end = time.monotonic() + 60
    while (
        found := re.search(r"listening on http://127.0.0.1:(\d+)/\?token=(\S+)", (cwd / "stderr.txt").read_text())
    ) is None:
        assert process.poll() is None and time.monotonic() < end, (cwd / "stderr.txt").read_text()
        time.sleep(0.05)
    web = Web(process=process, port=int(found[1]), folder=folder or cwd)
    web.headers["Authorization"] = f"Bearer {found[2]}"
    assert web.answers()  # its processes are there from then on
    return web


def stopped(web: Web) -> None:
    pids = web.processes() if Path("/proc/self/stat").exists() else set()
    web.process.send_signal(signal.SIGTERM)
    web.process.wait(20)
    assert gone(pids)


@pytest.fixture(scope="session")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """One server for all tests that leave it as it was."""
    cwd = tmp_path_factory.mktemp("web")
    folder = cwd / "files"
    folder.mkdir()
    (folder / "own.yaml").write_text(MODEL)
    found = started(folder, cwd)
    yield found
    stopped(found)
    assert "Traceback" not in (cwd / "stderr.txt").read_text()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[[str], Web]]:
    """Starts a server with limits of its own."""
    running = []

    def start(limits: str) -> Web:
        folder = tmp_path / "files"
        folder.mkdir()
        running.append(started(folder, tmp_path, limits))
        return running[-1]

    yield start
    for one in running:
        if one.process.poll() is None:
            stopped(one)
