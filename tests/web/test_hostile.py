"""Requests that mean harm: each is refused in one form, nothing outside the folder is read, the server answers on."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cases import for_each
from tests.web.conftest import Web, alive, gone, started, stopped

SECRET = "canary-7f3a"
GOOD: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "points": 5}


@pytest.fixture(scope="module")
def outside(web: Web) -> Iterator[Path]:
    """A file beside the folder, which links in the folder point to; it is a model, so that reading it would show."""
    path = web.folder.parent / "outside.yaml"
    path.write_text(f"derive: {{from: llama-3.1-8b}}\nname: {SECRET}\n")
    links = {"link.yaml": path, "linked": path.parent, "circle.yaml": web.folder / "circle.yaml"}
    for name, target in links.items():
        (web.folder / name).symlink_to(target)
    yield path
    for name in links:
        (web.folder / name).unlink()


def places(outside: Path) -> list[str]:
    """Names of that file and of others that are not in the folder."""
    deep = "../" * 12
    return [
        str(outside),
        "../outside.yaml",
        "./../outside.yaml",
        "x/../../outside.yaml",
        "..\\outside.yaml",
        "link.yaml",
        "./link.yaml",
        "linked/outside.yaml",
        "linked/files/../outside.yaml",
        "circle.yaml",
        f"{deep}etc/passwd",
        "/etc/passwd",
        "~/outside.yaml",
        "C:\\Windows\\win.ini",
        "\\\\host\\share\\x.yaml",
        "//host/x.yaml",
        "/proc/self/environ",
        f"llama-3.1-8b,{outside}",
        f"gpu={outside}",
        f"./{'a/' * 900}../x.yaml",
    ]


OPTIONS = ["model", "gpu", "calibration", "anchor", "draft", "prices", "memory", "engine"]


def test_nothing_outside_the_folder_is_read(web: Web, outside: Path) -> None:
    """160 requests: each option with each place, and none has the name that stands in that file."""
    for option, place in itertools.product(OPTIONS, places(outside)):
        got = web.post("/api/view", {**GOOD, option: place})
        assert SECRET not in got.body.decode().replace(place, ""), (option, place)
        assert got.error["exit_code"] in (2, 4), (option, place)
        assert "outside the folder" in got.error["what"] or got.status in (400, 404)
    for kind, option, place in itertools.product(("simulate", "plan"), ("trace", "workload"), places(outside)[:8]):
        got = web.post("/api/jobs", {"kind": kind, "options": {**GOOD, "rate": 1, option: place}})
        assert "outside the folder" in got.error["what"]
    assert web.answers()


def test_a_file_of_the_folder_is_read(web: Web) -> None:
    for name in ("own.yaml", "./own.yaml"):
        assert web.post("/api/view", {**GOOD, "model": name}).json["estimate"]["model"] == "own-8b"


def test_a_file_of_the_folder_reads_no_other(web: Web, outside: Path) -> None:
    """One that derives from a file outside, and a checkpoint whose index names its parts there."""
    (web.folder / "derived.yaml").write_text(f"derive: {{from: {outside}}}\nname: x\n")
    (web.folder / "upwards.yaml").write_text("derive: {from: ../outside.yaml}\nname: x\n")
    bare = outside.with_name("token")  # no suffix that inferplan knows: what keys and passwords have
    bare.write_text(SECRET)
    names = ["derived.yaml", "upwards.yaml"]
    for index, path in enumerate((bare, "../token", "/etc/passwd")):
        names.append(f"bare{index}.yaml")
        (web.folder / names[-1]).write_text(f"derive: {{from: {path}}}\nname: x\n")
    try:
        for name in names:
            got = web.post("/api/view", {**GOOD, "model": name})
            assert got.error["because"] == "it is outside the folder of this server", got.body
            assert SECRET not in str(got.error)
    finally:
        for name in names:
            (web.folder / name).unlink()


def test_a_named_pipe_holds_no_process(web: Web) -> None:
    """To open it would be to wait for somebody who writes: it is refused before, alone, as a base and in a job."""
    pipes = [web.folder / name for name in ("pipe.yaml", "pipe.csv", "pipe")]
    for pipe in pipes:
        os.mkfifo(pipe)
    (web.folder / "over.yaml").write_text("derive: {from: ./pipe}\nname: x\n")
    try:
        pids = web.processes()
        for options in ({"model": "pipe.yaml"}, {"model": "over.yaml"}, {"gpu": "pipe.yaml"}, {"anchor": "pipe.yaml"}):
            got = web.post("/api/view", {**GOOD, **options})
            assert got.error["because"] == "it is no regular file", got.body
        for load in ({"trace": "pipe.csv"}, {"trace": "pipe"}, {"workload": "pipe.yaml", "rate": 1}):
            found = web.wait(web.start("simulate", model="llama-3.1-8b", gpu="h100-sxm", **load), 20)
            assert found["error"]["because"] == "it is no regular file", found
        assert pids <= web.processes()  # none was ended because it did not answer
    finally:
        for path in (*pipes, web.folder / "over.yaml"):
            path.unlink()


def test_the_user_s_own_places_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches and settings, which the libraries of the server need, hold tokens too: the hub's lies beside its cache."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "files"
    tokens = [tmp_path / "hf" / "token", tmp_path / "config" / "tool" / "token.json"]
    for path in (folder, *(token.parent for token in tokens)):
        path.mkdir(parents=True)
    for index, token in enumerate(tokens):
        token.write_text(f'"{SECRET}"')
        (folder / f"{index}.yaml").write_text(f"derive: {{from: {token}}}\nname: x\n")
    web = started(folder, tmp_path)
    for index in range(len(tokens)):
        got = web.post("/api/view", {**GOOD, "model": f"{index}.yaml"})
        assert got.error["because"] == "it is outside the folder of this server", got.body
    stopped(web)


@for_each("how", [signal.SIGTERM, signal.SIGINT])
def test_without_a_folder_no_file_can_be_named(tmp_path: Path, how: signal.Signals) -> None:
    """Not even one where it was started; the empty folder in its place goes with it."""
    (tmp_path / "own.yaml").write_text(f"derive: {{from: llama-3.1-8b}}\nname: {SECRET}\n")
    web = started(None, tmp_path)
    for name in ("own.yaml", "./own.yaml", str(tmp_path / "own.yaml")):
        got = web.post("/api/view", {**GOOD, "model": name})
        assert got.status == 404 and got.error["exit_code"] == 4, got.body
    assert web.post("/api/view", GOOD).status == 200
    assert list(tmp_path.glob("inferplan-web-*"))
    web.process.send_signal(how)
    assert web.process.wait(20) == {signal.SIGTERM: 143, signal.SIGINT: 130}[how]
    assert not list(tmp_path.glob("inferplan-web-*"))


def test_static_files_are_those_of_the_page(web: Web) -> None:
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd", "/static"):
        got = web.get(path)
        assert got.status in (400, 404, 405, 307), path
        assert b"FastAPI" not in got.body and b"root:" not in got.body


BODIES: dict[str, bytes] = {
    "nothing": b"",
    "a text": b'"llama"',
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "no json": b"{model: x}",
    "no utf-8": b'{"model": "\xff\xfe"}',
    "half": b'{"model": "llama-3.1-8b"',
    "deep lists": b'{"model": ' + b"[" * 30000 + b"]" * 30000 + b"}",
    "deep objects": b'{"a":' * 9000 + b"1" + b"}" * 9000,
    "open brackets": b"[" * 60000,
    "a key twice": b'{"model": "llama-3.1-8b", "model": "llama-3.1-70b", "gpu": "h100-sxm"}',
    "nan": b'{"model": "llama-3.1-8b", "gpu": "h100-sxm", "batch": NaN}',
    "inf": b'{"model": "llama-3.1-8b", "gpu": "h100-sxm", "batch": -Infinity}',
    "a number of 5000 digits": b'{"model": "llama-3.1-8b", "gpu": "h100-sxm", "batch": ' + b"9" * 5000 + b"}",
    "many keys": json.dumps({f"k{i}": i for i in range(4000)}).encode(),
    "many names": json.dumps({f"k{i}": ",".join(f"{i}{j:03}" for j in range(300)) for i in range(30)}).encode(),
}


@for_each("name", BODIES)
def test_bodies_that_are_no_options(web: Web, name: str) -> None:
    for path in ("/api/view", "/api/compare", "/api/explain", "/api/export", "/api/jobs"):
        got = web.ask("POST", path, BODIES[name])
        assert (got.status, got.error["exit_code"]) == (400, 2), path


VALUES: dict[str, list[Any]] = {
    "model": [1, True, [], {}, "", " ", "\x00", "a" * 5000, "a\nb", "-x", "--help", "🦙", "\ud800", "%s%n", ["x", "y"]],
    "gpu": [0, False, {"a": 1}, "-", "--", "h100-sxm\x00", [["h100-sxm"]]],
    "tp": [0, -1, 1.5, 1e308, 10**30, "1e400", "nan", "inf", True, "2;rm -rf /", {}, [1, 2]],
    "batch": [-1, 0, 1e300, 10**18, "∞", "1_000_000_000_000_000_000"],
    "prompt": [0, 10**15, "9" * 400, "0x10", "1k1"],
    "output": [0, "-5", 2**63],
    "memory": ["1e999GB", "nanGB", "-1GB", "64", 64, "0B"],
    "gpu-memory-utilization": [0, 2, "nan", -0.5],
    "points": [0, -1, 10**9, 1.5, "5", True],
    "price": ["h100-sxm=nan", "h100-sxm=1e-300", "=1", 5, "h100-sxm=1/0"],
    "expert-skew": ["nan", 1e9],
    "prune": ["layers=0", "layers=nan", "d_ff=1e-300", "=", "layers=1e308"],
    "generation": ["x"],
    "format": ["json"],
    "o": ["/tmp/x"],
    "help": [True],
    "report": ["x.html"],
    "timeline": ["x.csv"],
    "jobs": [64],
    "__class__": ["x"],
    "a b": [1],
    "": [1],
    "tp=8 --gpu": [1],
}


@for_each("option", VALUES)
def test_values_that_no_option_has(web: Web, option: str) -> None:
    for value in VALUES[option]:
        got = web.ask("POST", "/api/view", json.dumps({**GOOD, option: value}).encode())
        if option == "price" and got.status == 200:
            assert got.json["cost"] is None  # said in cost_why
            continue
        assert got.status in (400, 404, 409), (option, value, got.body[:300])
        assert got.error["exit_code"] in (2, 3, 4), (option, value, got.error)
        assert "a bug" not in got.error["what"]


def known(web: Web) -> str:
    """The headers of somebody who has the token, as they are sent."""
    return f"Host: localhost\r\nAuthorization: {web.headers['Authorization']}\r\n"


def test_too_large_is_said_before_it_is_read(web: Web) -> None:
    assert web.ask("POST", "/api/view", b" " * (64 * 1024 + 1)).status == 413
    with socket.create_connection(("127.0.0.1", web.port), timeout=10) as wire:
        wire.sendall(f"POST /api/view HTTP/1.1\r\n{known(web)}Content-Length: {10**15}\r\n\r\n".encode())
        assert wire.recv(100).startswith(b"HTTP/1.1 413")
    with socket.create_connection(("127.0.0.1", web.port), timeout=10) as wire:  # no length said: counted as it comes
        wire.sendall(f"POST /api/view HTTP/1.1\r\n{known(web)}Transfer-Encoding: chunked\r\n\r\n".encode())
        with contextlib.suppress(ConnectionError):
            for _ in range(40):
                wire.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")
        assert wire.recv(100).startswith(b"HTTP/1.1 413")


def test_methods_and_types(web: Web) -> None:
    body = json.dumps(GOOD).encode()
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert web.ask(method, "/api/view").status == 405
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert web.ask("POST", "/api/view", body, Content_Type=kind).status == 415
    assert web.get("/api/jobs/0").status == 404
    assert web.get("/api/report/../../etc/passwd").status == 404
    assert web.get("/nothing").error["exit_code"] == 2


def raw(web: Web, text: str) -> bytes:
    with socket.create_connection(("127.0.0.1", web.port), timeout=10) as wire:
        wire.sendall(text.encode("latin-1"))
        with contextlib.suppress(TimeoutError, ConnectionError):
            return wire.recv(4000)
    return b""


@for_each("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "a" * 500])
def test_names_that_are_not_this_server(web: Web, host: str) -> None:
    """What a page has whose name was made to point here (DNS rebinding)."""
    assert raw(web, f"GET /api/catalog HTTP/1.1\r\nHost: {host}\r\n\r\n")[:12] in (b"HTTP/1.1 403", b"HTTP/1.1 400")


@for_each(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://localhost:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_other_sites_are_not_answered(web: Web, headers: dict[str, str]) -> None:
    got = web.ask("POST", "/api/view", json.dumps(GOOD).encode(), **headers)
    assert got.status == 403 and got.error["what"] == "this server answers its own page only"
    assert "access-control-allow-origin" not in got.headers


def test_links_to_the_page_are_followed(web: Web) -> None:
    """From a mail or another page to the page itself, which nobody can frame; and to nothing else."""
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    got = web.get("/", **link)
    assert got.status == 200 and got.headers["x-frame-options"] == "DENY"
    assert web.get("/api/catalog", **link).status == 403
    assert web.ask("POST", "/", b"{}", **link).status == 403


def test_its_own_page_is_answered(web: Web) -> None:
    for name in (f"127.0.0.1:{web.port}", f"localhost:{web.port}", f"[::1]:{web.port}"):
        assert web.post("/api/view", GOOD, Host=name, Origin=f"http://{name}").status == 200


def test_headers_of_every_answer(web: Web) -> None:
    for got in (web.get("/api/catalog"), web.post("/api/view", {}), web.get("/nothing")):
        assert got.headers["content-security-policy"].startswith("default-src 'self'")
        assert "unsafe" not in got.headers["content-security-policy"]
        assert got.headers["x-content-type-options"] == "nosniff"
        assert got.headers["referrer-policy"] == "no-referrer"


def test_what_is_not_http(web: Web) -> None:
    for text in ("\r\n\r\n", "x" * 70000, "GET / HTTP/9.9\r\n\r\n", "GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        raw(web, text)
    raw(web, "POST /api/view HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n{}")
    raw(web, "GET /api/view HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    assert web.answers()


def test_fifty_at_once(web: Web) -> None:
    """All are answered, or told that too many wait; each answer is its own."""
    batches = list(range(1, 151))
    with ThreadPoolExecutor(50) as threads:
        replies = list(threads.map(lambda batch: web.post("/api/view", {**GOOD, "batch": batch}), batches))
    assert {got.status for got in replies} <= {200, 503}
    for batch, got in zip(batches, replies, strict=True):
        if got.status == 200:
            assert got.json["estimate"]["load"]["batch"] == batch
    assert sum(got.status == 200 for got in replies) > 50
    assert web.answers()


def test_clients_that_go_away(web: Web) -> None:
    body = json.dumps(GOOD).encode()
    head = (
        f"POST /api/view HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", web.port), timeout=10) as wire:
            wire.sendall(f"{head}\r\n\r\n".encode() + body)
    assert web.post("/api/view", GOOD).status == 200
    assert len(web.processes()) <= 2


def test_slow_bodies_are_cut_off(server: Callable[[str], Web]) -> None:
    """A hundred that send a byte and wait: others are answered meanwhile, and they are told after a second."""
    web = server("body_seconds=1.0")
    head = (
        f"POST /api/view HTTP/1.1\r\n{known(web)}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    ).encode()
    wires = [socket.create_connection(("127.0.0.1", web.port), timeout=10) for _ in range(100)]
    for wire in wires:
        wire.sendall(head)
    assert web.post("/api/view", GOOD).status == 200
    assert all(wire.recv(20).startswith(b"HTTP/1.1 408") for wire in wires)
    for wire in wires:
        wire.close()


def test_headers_that_never_end_are_cut_off(server: Callable[[str], Web]) -> None:
    web = server("body_seconds=1.0")
    wires = [socket.create_connection(("127.0.0.1", web.port), timeout=10) for _ in range(100)]
    for wire in wires[1:]:
        wire.sendall(b"GET / HTTP/1.1\r\nHost: loc")
    assert web.post("/api/view", GOOD).status == 200
    started = time.monotonic()
    for wire in wires:
        with contextlib.suppress(ConnectionError):
            assert wire.recv(20) == b""
        wire.close()
    assert time.monotonic() - started < 8


def test_an_answer_has_a_time_limit(server: Callable[[str], Web]) -> None:
    """What takes longer is ended with its process, and another one stands ready."""
    web = server("seconds=0.02, pricing=1")
    before = web.processes()
    assert len(before) == 1
    got = web.post("/api/view", GOOD)
    assert got.status == 504 and "no answer within" in got.error["what"]
    assert gone(before)


def test_more_than_wait_are_refused(server: Callable[[str], Web]) -> None:
    web = server("pricing=1, waiting=1")
    with ThreadPoolExecutor(20) as threads:
        replies = list(threads.map(lambda _: web.post("/api/view", GOOD), range(20)))
    assert {got.status for got in replies} == {200, 503}
    assert any("are waiting already" in got.error["what"] for got in replies if got.status == 503)


def test_memory_has_a_limit(server: Callable[[str], Web]) -> None:
    """Ten million users: lists of them would take all memory; here the process is told that there is no more."""
    web = server(f"memory={2**31}")
    name = web.start("simulate", model="llama-3.1-8b", gpu="h100-sxm", concurrency=10**9)
    found = web.wait(name)
    assert found["state"] == "failed" and found["error"]["exit_code"] == 2, found
    assert web.post("/api/view", GOOD).status == 200


def test_no_network(web: Web) -> None:
    """A hub id that was never downloaded is refused, and not after the time in which a hub does not answer."""
    got = web.post("/api/view", {**GOOD, "model": "nobody/no-such-model"})
    assert (got.status, got.error["exit_code"]) == (400, 2), got.body
    assert "no model named 'nobody/no-such-model'" in got.error["what"]


def test_as_it_began(web: Web, outside: Path) -> None:
    """Last: the same processes or as many, no file that was not there."""
    assert web.post("/api/view", GOOD).status == 200
    assert len(web.processes()) == 2 and alive(web.processes()) == web.processes()
    assert {path.name for path in web.folder.iterdir()} == {"own.yaml", "link.yaml", "linked", "circle.yaml"}
    assert threading.active_count() < 60 and os.path.exists(outside)
