"""A stand-in for a server: an OpenAI-compatible API on loopback whose timings are its own and known.

It takes ``FIRST + PER_TOKEN * prompt`` seconds to the first token and ``STEP + PER_USER * running`` for each further
one, holds ``slots`` requests at a time and lets the others wait in order. Every request is noted with the time at which
it was read and those at which its pieces were written (``time.perf_counter``, which the client shares): the truth.
A word of a prompt is two tokens, a prompt has three more.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

FIRST, PER_TOKEN, STEP, PER_USER = 0.15, 0.0002, 0.008, 0.002
KEY = "sk-secret/+key-of-a-test"


def tokens_of(words: int) -> int:
    return 3 + 2 * words


@dataclass
class Seen:
    """A request: when it was read, when its pieces were written, its tokens."""

    read: float
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    written: list[float] = field(default_factory=list)
    prompt: int = 0
    output: int = 0

    @property
    def ttft(self) -> float:
        return self.written[0] - self.read

    @property
    def tpot(self) -> float:
        return (self.written[-1] - self.written[0]) / (self.output - 1)


@dataclass
class StandIn:
    """What the server does. piece: tokens written at once. faults: by the number of the request (from 0), or ``-1`` for
    all, what goes wrong: an HTTP status, ``cut``, ``garbage``, ``error``, ``silent``, ``plain`` or ``unended``.
    refuses: options that it answers with 400. usage: whether it counts. others: requests of others in its metrics.
    """

    piece: int = 1
    slots: int = 64
    apis: tuple[str, ...] = ("/v1/completions", "/v1/chat/completions")
    models: tuple[str, ...] = ("tiny",)
    owner: str = "vllm"
    context: int | None = 4096
    faults: dict[int, int | str] = field(default_factory=dict)
    refuses: tuple[str, ...] = ()
    usage: bool = True
    others: int = 0
    key: str = ""
    counts: bool = False
    ends_after: int | None = None
    fast: bool = False
    redirect: str = ""
    seen: list[Seen] = field(default_factory=list)
    running: int = 0
    finished: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        _, path, _ = first.split(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        data = await reader.readexactly(int(headers.get("content-length", "0")))
        seen = Seen(read=perf_counter(), path=path, headers=headers, body=json.loads(data) if data else {})
        if self.redirect:
            writer.write(f"HTTP/1.1 307 x\r\nLocation: {self.redirect}\r\nContent-Length: 0\r\n\r\n".encode())
            return True
        if self.key and headers.get("authorization") != f"Bearer {self.key}":
            said = f"Incorrect API key provided: {headers.get('authorization', '').removeprefix('Bearer ')}"
            return _answer(writer, 401, {"error": {"message": said}})
        if path in self.apis:
            return await self._reply(seen, writer)
        return self._page(path, seen, writer)

    def _page(self, path: str, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if path == "/v1/models":
            listed = [{"id": n, "owned_by": self.owner, "root": n, "max_model_len": self.context} for n in self.models]
            return _answer(writer, 200, {"object": "list", "data": listed})
        if path == "/version" and self.owner == "vllm":
            return _answer(writer, 200, {"version": "0.20.1"})
        if path == "/metrics" and self.owner == "vllm":
            gauge = 'vllm:num_requests_running{engine="0",model_name="tiny"}'
            total = 'vllm:request_success_total{finished_reason="length"}'
            text = f"# HELP x\n# TYPE x gauge\n{gauge} {self.running + self.others}.0\n{total} {self.finished}.0\n"
            return _answer(writer, 200, text)
        if path == "/tokenize" and self.counts:
            return _answer(writer, 200, {"count": tokens_of(len(seen.body["prompt"].split()))})
        return _answer(writer, 404, {"detail": "Not Found"})

    async def _reply(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        number, body = len(self.seen), seen.body
        self.seen.append(seen)
        bad = next((name for name in self.refuses if name in body), None)
        fault = self.faults.get(number, self.faults.get(-1))
        if bad is not None:
            said = f"Unsupported parameter: {bad}."
            if bad == "max_tokens":
                said += " Use 'max_completion_tokens' instead."
            return _answer(writer, 400, {"error": {"message": said}})
        if isinstance(fault, int):
            return _answer(writer, fault, {"error": {"message": f"the key {self.key or KEY} is not liked"}})
        text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        asked = body.get("max_tokens") or body["max_completion_tokens"]
        seen.prompt = tokens_of(len(text.split()))
        seen.output = asked if body.get("ignore_eos") or self.ends_after is None else min(asked, self.ends_after)
        if fault == "plain":
            return _answer(writer, 200, {"choices": [{"text": "all at once"}]})
        if fault == "silent":
            await asyncio.sleep(30)
            return False
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        async for event in self._events(seen, fault):
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
        if fault == "cut":
            writer.transport.abort()
            return False
        self.finished += 1
        writer.write(b"0\r\n\r\n")
        return True

    async def _events(self, seen: Seen, fault: int | str | None) -> AsyncIterator[bytes]:
        """The pieces of a reply, each noted when it is written."""
        chat = "chat" in seen.path
        yield b": a comment that keeps the connection open\n\n"
        if chat:
            yield _event({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        while self.running >= self.slots:
            await asyncio.sleep(0.001)
        self.running += 1
        try:
            await asyncio.sleep(0 if self.fast else FIRST + PER_TOKEN * seen.prompt)
            for made in range(0, seen.output, self.piece):
                count = min(self.piece, seen.output - made)
                if made:
                    await asyncio.sleep(0 if self.fast else count * (STEP + PER_USER * self.running))
                if made and fault == "garbage":
                    yield b"data: {not json\n\n"
                if made and fault == "error":
                    yield _event({"error": {"message": f"out of memory, key {self.key or KEY}", "code": 500}})
                if made and fault in ("cut", "unended"):
                    return
                seen.written.append(perf_counter())
                words = "word " * count
                last = made + count >= seen.output
                choice = {"delta": {"content": words}} if chat else {"text": words}
                yield _event({"choices": [{**choice, "finish_reason": "length" if last else None}]})
        finally:
            self.running -= 1
        if self.usage and "stream_options" in seen.body:
            counts = {"prompt_tokens": seen.prompt, "completion_tokens": seen.output}
            yield _event({"choices": [], "usage": counts})
        yield b"data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\r\n\r\n"


def _answer(writer: asyncio.StreamWriter, status: int, value: Any) -> bool:
    data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    kind = "text/plain" if isinstance(value, str) else "application/json"
    writer.write(f"HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return True


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
