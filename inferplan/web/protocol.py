"""The Model Context Protocol on stdin and stdout, by the SDK of the protocol, over the tools of an assistant."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from inferplan import __version__
from inferplan.errors import InputFileError, UnknownNameError
from inferplan.web.assistants import Tool, Tools
from inferplan.web.commands import Commands
from inferplan.web.limits import LIMITS
from inferplan.web.pricing import PricingProcesses
from inferplan.web.worker import WorkerSetting

INSTRUCTIONS = (
    "inferplan predicts how large language models run on GPUs, from formulas and measurements on file. "
    "Begin with the tool ask, which takes five questions: run (will it run on the GPUs that I have), people (how many "
    "people can they serve), buy (what do I buy), format (which number format), slow (is my server slow). "
    "The others answer the same in detail: fit, estimate, compare, simulate, plan, cost. Names are listed by models, "
    "gpus, formats and prices. Each figure has a band where its error is known: pass it on."
)


@dataclass(frozen=True, kw_only=True)
class Served:
    """folder: whose files questions may name, ``None``: nobody's. seconds: of one answer at most."""

    folder: str | None
    seconds: float


def serve_tools(served: Served, commands: Commands, ready: Callable[[str], None]) -> None:
    """Serve until stdin ends. ``ready`` is told what is served. Raises ``InputFileError`` for a folder that is none."""
    if served.folder is not None and not Path(served.folder).is_dir():
        raise InputFileError(f"cannot read {served.folder}", because="it is no folder")
    limits = replace(LIMITS, seconds=served.seconds)
    with tempfile.TemporaryDirectory(prefix="inferplan-mcp-") if served.folder is None else nullcontext() as nothing:
        folder = Path(served.folder or nothing or "").resolve()
        setting = WorkerSetting(folder=folder, commands=commands, limits=limits)
        files = "no files" if served.folder is None else f"files of {folder}"
        ready(
            f"tools on stdin and stdout, {files}, {served.seconds:g} s for an answer; the client starts and ends this"
        )
        try:
            anyio.run(_serve, setting, served.folder is not None)
        except* BrokenPipeError:  # the client has left while an answer was written
            pass


async def _serve(setting: WorkerSetting, files: bool) -> None:
    processes = PricingProcesses(setting)
    tools = Tools(setting=setting, processes=processes, files=files)
    server = _server(tools)
    # stdout is the protocol's: processes that start in here have stderr for it
    async with stdio_server() as (read, write):
        await processes.start()
        try:
            await server.run(_Lines(read, write), write, server.create_initialization_options())
        finally:
            processes.stop()


def _server(tools: Tools) -> Server[Any]:
    listed: list[types.Tool] = []

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        listed[:] = listed or map(_as_listed, tools.listed())
        return types.ListToolsResult(tools=listed)

    async def call_tool(context: ServerRequestContext[Any], asked: types.CallToolRequestParams) -> types.CallToolResult:
        loop = asyncio.get_running_loop()

        def told(said: dict[str, Any]) -> None:
            reported = context.session.report_progress(said["done"], said["total"], said["text"])
            asyncio.run_coroutine_threadsafe(reported, loop)

        try:
            said = await tools.call(asked.name, asked.arguments or {}, told)
        except UnknownNameError as error:
            raise MCPError(types.INVALID_PARAMS, error.what, error.record()) from None
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=text) for text in said.texts]
        return types.CallToolResult(content=content, structured_content=said.record, is_error=said.failed)

    return Server(
        "inferplan",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _as_listed(tool: Tool) -> types.Tool:
    """A tool as the protocol lists it: it changes nothing, and reaches nothing outside."""
    hints = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    return types.Tool(name=tool.name, description=tool.about, input_schema=tool.schema, annotations=hints)


class _Lines:
    """The messages that a stream of the SDK holds; a line that is none is answered, which the SDK leaves to others."""

    def __init__(self, read: Any, write: Any) -> None:
        self._read, self._write = read, write

    async def receive(self) -> SessionMessage | Exception:
        while isinstance(item := await self._read.receive(), Exception):
            await self._write.send(SessionMessage(_refused(item)))
        message: SessionMessage = item
        return message

    @property
    def last_context(self) -> Any:
        """Of who sent the last one, which the SDK restores."""
        return self._read.last_context

    async def aclose(self) -> None:
        await self._read.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _refused(error: Exception) -> types.JSONRPCError:
    """What JSON-RPC answers to a line that is no JSON, or no message."""
    problems = error.errors(include_input=False) if isinstance(error, ValidationError) else []
    unread = any(problem["type"] == "json_invalid" for problem in problems)
    code, what = (types.PARSE_ERROR, "no JSON") if unread else (types.INVALID_REQUEST, "no message of JSON-RPC")
    return types.JSONRPCError(jsonrpc="2.0", id=None, error=types.ErrorData(code=code, message=f"the line is {what}"))
