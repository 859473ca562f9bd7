"""Requests that were good before something was changed in them: bytes, parts of the head, values of the body.

``python -m tests.web.test_mutated 5000`` sends so many and prints what they were answered.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.web.conftest import Web, started, stopped

VIEW = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "batch": 4, "prompt": 128, "output": 16, "points": 10}
GOOD: list[tuple[str, str, Any]] = [
    ("POST", "/api/view", VIEW),
    ("POST", "/api/compare", {"views": [VIEW, {**VIEW, "gpu": "l40s"}]}),
    ("POST", "/api/explain", {"view": VIEW, "term": "ttft"}),
    ("POST", "/api/export", {"view": VIEW, "format": "csv"}),
    ("POST", "/api/jobs", {"kind": "simulate", "options": {**VIEW, "requests": 10, "rate": 1}}),
    ("GET", "/api/catalog", None),
    ("GET", "/api/jobs/0123456789abcdef", None),
    ("GET", "/?token=abc&x=%20", None),
    ("GET", "/static/app.js", None),
]
HOSTILE = [
    None,
    True,
    -1,
    0,
    10**30,
    1e308,
    "",
    " ",
    "\x00",
    "-",
    "--help",
    "é" * 300,
    "../../etc/passwd",
    "nan",
    [],
    {},
    [[]],
    "a,b",
    "1e9",
    2**63,
]
LINES = [
    "Content-Length: -1",
    "Content-Length: 99999999999",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip",
    "Host: evil",
    "Host:",
    "Origin: null",
    "Cookie: =;;=;inferplan-1=x",
    "Cookie: inferplan-8765=" + "a" * 300,
    "Authorization: Bearer",
    "Authorization: Basic YTpi",
    "Content-Type: text/plain",
    "Expect: 100-continue",
    "Upgrade: websocket",
    "X: " + "y" * 9000,
    "Sec-Fetch-Site: cross-site",
    "Connection: upgrade",
    ":",
    " folded",
]


def mutated(drawn: random.Random, authorization: str) -> bytes:
    """One request, with one to three changes."""
    method, path, body = drawn.choice(GOOD)
    lines = ["Host: localhost", f"Authorization: {authorization}", "Content-Type: application/json"]
    flips = 0
    for _ in range(drawn.randint(1, 3)):
        how = drawn.randrange(6)
        if how == 0 and body:
            body = _other(drawn, body)
        elif how == 1:
            lines.insert(drawn.randrange(len(lines) + 1), drawn.choice(LINES))
        elif how == 2:
            lines.pop(drawn.randrange(len(lines))) if lines else None
        elif how == 3:
            method = drawn.choice(["PUT", "DELETE", "HEAD", "OPTIONS", "get", "", "\x00", "POST" * 50])
        elif how == 4:
            path = drawn.choice(
                [
                    path + "/",
                    path * 300,
                    path.upper(),
                    "//",
                    "*",
                    "/%00",
                    "/..%2f..%2fetc/passwd",
                    "/api/jobs/%ff",
                    path + "?" + "a=" * 400,
                ]
            )
        else:
            flips += drawn.randint(1, 8)
    content = b"" if body is None else json.dumps(body).encode()
    if content and not any(line.startswith(("Content-Length", "Transfer")) for line in lines):
        lines.append(f"Content-Length: {len(content)}")
    sent = bytearray("\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode() + content)
    for _ in range(flips):
        at = drawn.randrange(len(sent))
        change = drawn.randrange(3)
        if change == 0:
            sent[at] = drawn.randrange(256)
        elif change == 1:
            del sent[at]
        else:
            sent[at:at] = sent[at : at + drawn.randint(1, 20)]
    return bytes(sent)


def _other(drawn: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """The same with a value, a key or a part of it changed, somewhere inside."""
    found = json.loads(json.dumps(body))
    inside = found
    while (
        deeper := [one for one in _values(inside) if isinstance(one, (dict, list)) and one]
    ) and drawn.random() < 0.7:
        inside = drawn.choice(deeper)
    if isinstance(inside, list):
        inside[drawn.randrange(len(inside))] = drawn.choice(HOSTILE)
    else:
        name = drawn.choice(list(inside))
        change: list[Callable[[], Any]] = [
            lambda: inside.update({name: drawn.choice(HOSTILE)}),
            lambda: inside.pop(name),
            lambda: inside.update({str(drawn.choice(HOSTILE)): inside[name]}),
        ]
        drawn.choice(change)()
    return found  # type: ignore[no-any-return]


def _values(inside: Any) -> list[Any]:
    return list(inside.values()) if isinstance(inside, dict) else inside


def answered(web: Web, sent: bytes) -> str:
    """The status of the answer; "closed" where the connection was, "waits" where more is expected."""
    with socket.create_connection(("127.0.0.1", web.port), timeout=20) as wire:
        with contextlib.suppress(ConnectionError):
            wire.sendall(sent)
            wire.settimeout(1.0 if _unfinished(sent) else 30.0)
        try:
            got = wire.recv(400)
        except TimeoutError:
            return "waits"
        except ConnectionError:
            return "closed"
    return got.split(b" ", 2)[1].decode("latin-1") if got.startswith(b"HTTP/1.1 ") else "closed"


def _unfinished(sent: bytes) -> bool:
    """Whether a server may rightly wait for more: its head has no end, or says nothing sure of its body."""
    head, _, body = sent.partition(b"\r\n\r\n")
    lengths = [
        line.partition(b":")[2].strip() for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
    ]
    exact = lengths == [str(len(body)).encode()] or (not lengths and not body)
    return b"\r\n\r\n" not in sent or not exact or b"transfer" in head.lower()


def outcomes(web: Web, count: int, seed: int) -> Counter[str]:
    """What so many were answered; raises ``AssertionError`` with the request behind which the server fails."""
    drawn, found = random.Random(seed), Counter[str]()
    for _ in range(count):
        sent = mutated(drawn, web.headers["Authorization"])
        status = answered(web, sent)
        found[status] += 1
        assert status in {"closed", "waits", "503", "504"} or 100 <= int(status) < 500, (status, sent)
        if status == "waits":
            assert _unfinished(sent), sent
    assert web.answers()
    return found


def test_mutated_requests(web: Web) -> None:
    """None is a bug (500), none takes the server down or leaves it without an answer that it owes."""
    found = outcomes(web, 200, seed=20261130)
    assert {"200", "400", "401", "404", "405"} <= set(found), found


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        web = started(None, Path(place))
        try:
            for status, number in sorted(outcomes(web, count, seed=1).items()):
                print(f"{status:>8} {number:>6,}")
        finally:
            stopped(web)
        assert "Traceback" not in (Path(place) / "stderr.txt").read_text()


if __name__ == "__main__":
    main(int(sys.argv[1]))
