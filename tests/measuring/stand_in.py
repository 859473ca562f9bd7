"""A stand-in for a server: an OpenAI-compatible API on loopback whose timings are its own and known.

It takes ``FIRST + PER_TOKEN * prompt`` seconds to the first token and ``STEP + PER_USER * running`` for each further
one, holds ``slots`` requests at a time and lets the others wait in order. Every request is noted with the time at which
it was read and those at which its pieces were written (``time.perf_counter``, which the client shares): the truth.
A word of a prompt is two tokens, a prompt has three more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from tests.measuring.wire import Request, answer, event, read_request

FIRST, PER_TOKEN, STEP, PER_USER = 0.15, 0.0002, 0.008, 0.002
KEY = "sk-secret/+key-of-a-test"


def tokens_of(words: int) -> int:
    return 3 + 2 * words


@dataclass
class Seen(Request):
    """A request, when its pieces were written, its tokens."""

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
    all, what goes wrong: an HTTP status, ``reset``, ``cut``, ``garbage``, ``error``, ``silent``, ``plain`` or
    ``unended``. refuses: options that it answers with 400. usage: whether it counts. others: requests of others in its
    metrics.
    retry_after: what it says beside a status. hold: so many pieces are written at once, as a proxy that buffers does.
    cached: the share of prompt tokens that it says came from a cache.
    fast: no waiting at all. pace: times as long for everything. pages: further documents by their path.
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
    retry_after: str = ""
    hold: int = 1
    cached: float | None = None
    fast: bool = False
    first: float = FIRST
    pace: float = 1.0
    redirect: str = ""
    pages: dict[str, Any] = field(default_factory=dict)
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
        seen = Seen(**vars(await read_request(reader)))
        path, headers = seen.path, seen.headers
        if self.redirect:
            writer.write(f"HTTP/1.1 307 x\r\nLocation: {self.redirect}\r\nContent-Length: 0\r\n\r\n".encode())
            return True
        if self.key and headers.get("authorization") != f"Bearer {self.key}":
            said = f"Incorrect API key provided: {headers.get('authorization', '').removeprefix('Bearer ')}"
            return answer(writer, 401, {"error": {"message": said}})
        if path in self.apis:
            return await self._reply(seen, writer)
        return self._page(path, seen, writer)

    def _page(self, path: str, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if path in self.pages:
            return answer(writer, 200, self.pages[path])
        if path == "/v1/models":
            listed = [{"id": n, "owned_by": self.owner, "root": n, "max_model_len": self.context} for n in self.models]
            return answer(writer, 200, {"object": "list", "data": listed})
        if path == "/version" and self.owner == "vllm":
            return answer(writer, 200, {"version": "0.20.1"})
        if path == "/metrics" and self.owner == "vllm":
            gauge = 'vllm:num_requests_running{engine="0",model_name="tiny"}'
            total = 'vllm:request_success_total{finished_reason="length"}'
            text = f"# HELP x\n# TYPE x gauge\n{gauge} {self.running + self.others}.0\n{total} {self.finished}.0\n"
            return answer(writer, 200, text)
        if path == "/tokenize" and self.counts:
            return answer(writer, 200, {"count": tokens_of(len(seen.body["prompt"].split()))})
        return answer(writer, 404, {"detail": "Not Found"})

    async def _reply(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        number, body = len(self.seen), seen.body
        self.seen.append(seen)
        bad = next((name for name in self.refuses if name in body), None)
        fault = self.faults.get(number, self.faults.get(-1))
        if bad is not None:
            said = f"Unsupported parameter: {bad}."
            if bad == "max_tokens":
                said += " Use 'max_completion_tokens' instead."
            return answer(writer, 400, {"error": {"message": said}})
        if isinstance(fault, int):
            said = {"error": {"message": f"the key {self.key or KEY} is not liked"}}
            return answer(writer, fault, said, f"Retry-After: {self.retry_after}" if self.retry_after else "")
        if fault == "reset":
            writer.transport.abort()
            return False
        text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        asked = body.get("max_tokens") or body["max_completion_tokens"]
        seen.prompt = tokens_of(len(text.split()))
        seen.output = asked if body.get("ignore_eos") or self.ends_after is None else min(asked, self.ends_after)
        if fault == "plain":
            return answer(writer, 200, {"choices": [{"text": "all at once"}]})
        if fault == "silent":
            await asyncio.sleep(30)
            return False
        framing = b"Connection: close" if seen.old else b"Transfer-Encoding: chunked"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n%b\r\n\r\n" % framing)
        held: list[bytes] = []
        async for sent in self._events(seen, fault):
            held.append(sent if seen.old else b"%x\r\n%b\r\n" % (len(sent), sent))
            if len(held) >= self.hold:
                await self._written(writer, held)
        await self._written(writer, held)
        if fault == "cut":
            writer.transport.abort()
            return False
        self.finished += 1
        if not seen.old:
            writer.write(b"0\r\n\r\n")
        return not seen.old

    async def _written(self, writer: asyncio.StreamWriter, held: list[bytes]) -> None:
        for sent in held:
            writer.write(sent)
        held.clear()
        await writer.drain()

    async def _events(self, seen: Seen, fault: int | str | None) -> AsyncIterator[bytes]:
        """The pieces of a reply, each noted when it is written."""
        chat = "chat" in seen.path
        yield b": a comment that keeps the connection open\n\n"
        if chat:
            yield event({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        while self.running >= self.slots:
            await asyncio.sleep(0.001)
        self.running += 1
        try:
            await asyncio.sleep(0 if self.fast else self.pace * (self.first + PER_TOKEN * seen.prompt))
            for made in range(0, seen.output, self.piece):
                count = min(self.piece, seen.output - made)
                if made:
                    await asyncio.sleep(0 if self.fast else self.pace * count * (STEP + PER_USER * self.running))
                if made and fault == "garbage":
                    yield f"data: {{not json, {self.key or KEY}{'x' * 999}\n\n".encode()
                if made and fault == "error":
                    yield event({"error": {"message": f"out of memory, key {self.key or KEY}", "code": 500}})
                if made and fault in ("cut", "unended"):
                    return
                seen.written.append(perf_counter())
                words = "word " * count
                last = made + count >= seen.output
                choice = {"delta": {"content": words}} if chat else {"text": words}
                yield event({"choices": [{**choice, "finish_reason": "length" if last else None}]})
        finally:
            self.running -= 1
        if self.usage and "stream_options" in seen.body:
            counts: dict[str, Any] = {"prompt_tokens": seen.prompt, "completion_tokens": seen.output}
            if self.cached is not None:
                counts["prompt_tokens_details"] = {"cached_tokens": int(self.cached * seen.prompt)}
            yield event({"choices": [], "usage": counts})
        yield b"data: [DONE]\n\n"
