"""``inferplan mcp`` asked by the client of the protocol's own SDK, over stdin and stdout of a process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

ROOT = Path(__file__).parents[1]


class Assistant:
    """A client that has connected, for code that does not await."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self._portal, self.client = portal, client

    def tools(self) -> dict[str, Any]:
        """The tools by name."""
        return {tool.name: tool for tool in self._portal.call(self.client.list_tools).tools}

    def call(self, name: str, arguments: dict[str, Any], progress: list[float] | None = None) -> Any:
        """The result of a tool. Raises ``MCPError`` where the protocol refuses. progress: gets what is done."""

        async def told(done: float, total: float | None, text: str | None) -> None:
            if progress is not None:
                progress.append(done)

        async def ask() -> Any:
            return await self.client.call_tool(name, arguments, progress_callback=told)

        return self._portal.call(ask)


def command(*options: str) -> list[str]:
    """The words that start the server."""
    return [sys.executable, "-m", "inferplan", "mcp", *options]


def environment() -> dict[str, str]:
    """What the server needs to know to be of this checkout, and what tests/conftest.py fixes: the client of the SDK
    hands no other variables on."""
    fixed = {name: value for name, value in os.environ.items() if name.startswith("INFERPLAN_")}
    day = {name: os.environ[name] for name in ("SOURCE_DATE_EPOCH",) if name in os.environ}
    return {**fixed, **day, "PYTHONPATH": str(ROOT)}


@contextmanager
def assistant(*options: str) -> Iterator[Assistant]:
    """A server with these options, and its client."""
    first, *rest = command(*options)
    server = StdioServerParameters(command=first, args=rest, env=environment())
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(stdio_client(server))) as client,
    ):
        yield Assistant(portal, client)
