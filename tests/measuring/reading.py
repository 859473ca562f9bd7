"""A server that is read: its ``/metrics`` are those of a record, one scrape after another, whatever time it is.

:func:`clock` has a reader wait for nothing: its seconds pass as soon as it asks for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from inferplan.measuring import scrapes
from tests.measuring.wire import answer, read_request


@dataclass
class Read:
    """scrape: the text of the n-th reading; ``None`` closes the connection. models: entries of ``/v1/models``.
    key: which it wants. pages: further documents by path. asked: every path that was asked for."""

    scrape: Callable[[int], str | None]
    models: tuple[dict[str, Any], ...] = ()
    key: str = ""
    pages: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    read: int = 0
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
        request = await read_request(reader)
        self.asked.append(request.path)
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return answer(writer, 401, {"error": {"message": "no key"}})
        if request.path == "/metrics":
            text, self.read = self.scrape(self.read), self.read + 1
            if text is None:
                writer.transport.abort()
                return False
            return answer(writer, 200, text)
        if request.path == "/v1/models" and self.models:
            return answer(writer, 200, {"object": "list", "data": list(self.models)})
        found = self.pages.get(request.path)
        return answer(writer, 404, {"detail": "Not Found"}) if found is None else answer(writer, 200, found)


def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock of its own for who reads; the one number is its time."""
    now = [0.0]

    async def passed(seconds: float) -> None:
        now[0] += max(seconds, 0.0)

    monkeypatch.setattr(scrapes, "monotonic", lambda: now[0])
    monkeypatch.setattr(scrapes, "sleep", passed)
    return now
