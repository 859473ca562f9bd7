"""The few lines of HTTP that servers of tests speak."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any


@dataclass
class Request:
    """What a client sent, and when it was read (``time.perf_counter``). old: by HTTP/1.0, as nginx asks unless told
    otherwise: no chunks then, and the connection's end is the reply's."""

    read: float
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    old: bool = False


def headers_of(head: bytes) -> dict[str, str]:
    """The headers of a request or an answer, by their names in lower case."""
    lines = head.decode().strip().split("\r\n")[1:]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def read_request(reader: asyncio.StreamReader) -> Request:
    """The next request of a connection. Raises ``asyncio.IncompleteReadError`` at its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, headers = head.decode().partition("\r\n")[0], headers_of(head)
    data = await reader.readexactly(int(headers.get("content-length", "0")))
    _, path, version = first.split(" ")
    return Request(perf_counter(), path, headers, json.loads(data) if data else {}, version == "HTTP/1.0")


def answer(writer: asyncio.StreamWriter, status: int, value: Any, header: str = "") -> bool:
    """A whole reply: JSON, or text as it is; ``header``: a further line of its head. True: the connection stays."""
    data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    kind = "text/plain" if isinstance(value, str) else "application/json"
    head = f"HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n"
    head += f"{header}\r\n\r\n" if header else "\r\n"
    writer.write(head.encode() + data)
    return True


def event(value: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\r\n\r\n"


@contextmanager
def served(server: Any) -> Iterator[Any]:
    """The server (anything with ``serve`` and ``port``) on a port of loopback, in a thread of its own, until the block
    ends."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        server.port = listening.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        listening.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
