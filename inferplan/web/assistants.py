"""The tools of an assistant: commands by name, answered in the processes that answer the page (docs/mcp.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from inferplan.errors import InferplanError, UnknownNameError, UsageError
from inferplan.table import SCHEMA_VERSION
from inferplan.web.body import require_few
from inferplan.web.folder import Folder
from inferplan.web.limits import MOST_SECONDS
from inferplan.web.pricing import NO_ANSWER, PricingProcesses
from inferplan.web.tasks import error_record
from inferplan.web.worker import WorkerSetting

COMMANDS = (
    *("ask", "fit", "estimate", "compare", "simulate", "plan", "cost", "recipe", "explain", "emit", "validate"),
    *("models", "gpus", "formats", "prices", "show"),
)
"""Commands that are tools: they answer from what is on file, or from files of the folder, and change nothing."""
OPTIONS = "options"
"""The tool that lists every option of another."""
FORMAT = {
    "type": "string",
    "enum": ["table", "json"],
    "description": "table: the text that people read, short; json: every figure, docs/json.md names the keys [table].",
}
_FORMATS = tuple(FORMAT["enum"])
_NAMES = "Options are named as on the command line, without dashes; quantities are text with a unit."
STARTED = "inferplan mcp --folder DIR"


class Tool(NamedTuple):
    """name; about: what it answers, in words; schema: of its arguments."""

    name: str
    about: str
    schema: dict[str, Any]


class Said(NamedTuple):
    """texts: what is said, in order. record: the same as JSON, where it was asked for, or the error. failed: an error
    is among it."""

    texts: tuple[str, ...]
    record: dict[str, Any] | None
    failed: bool


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The tools of one server. files: whether a folder was named; without, ``setting.folder`` is an empty one."""

    setting: WorkerSetting
    processes: PricingProcesses
    files: bool

    def listed(self) -> list[Tool]:
        """Every tool, with the options that most people need."""
        own = {"tool": {"type": "string", "enum": [*COMMANDS]}}
        about = "Every option of another tool: its name, its kind, what it does."
        last = Tool(OPTIONS, about, {"type": "object", "properties": own, "required": ["tool"]})
        return [*map(self._tool, COMMANDS), last]

    def _tool(self, name: str) -> Tool:
        schema, common = self._schema(name), self.setting.commands.common(name)
        whole = schema["properties"]
        first = {key: one for key, one in whole.items() if not common or key in common or key in schema["required"]}
        left = len(whole) - len(first)
        more = f" It takes {left} more options, which the tool {OPTIONS} lists." if left else ""
        own = {"type": "object", "properties": {**first, "format": FORMAT}, "required": schema["required"]}
        return Tool(name, f"{schema['description']}\n\n{_NAMES}{more}", own if left else _closed(own))

    def _schema(self, name: str) -> dict[str, Any]:
        return self.setting.commands.schema(name)

    async def call(self, name: str, arguments: Mapping[str, Any], told: Callable[[dict[str, Any]], None]) -> Said:
        """The answer of a tool, an error of the question among them. told: what hears of the progress of a command.

        Raises ``UnknownNameError`` for a tool that there is not.
        """
        if name not in (*COMMANDS, OPTIONS):
            raise UnknownNameError(f"no tool named {name[:40]!r}", hint=f"one of {', '.join((*COMMANDS, OPTIONS))}")
        try:
            if name == OPTIONS:
                return self._options(arguments)
            return await self._command(name, arguments, told)
        except InferplanError as error:
            return _failed(error_record(error))

    def _options(self, arguments: Mapping[str, Any]) -> Said:
        asked = arguments.get("tool")
        if asked not in COMMANDS or set(arguments) != {"tool"}:
            raise UsageError("options takes the name of a tool", hint=f'{{"tool": "plan"}}, of {", ".join(COMMANDS)}')
        schema = self._schema(asked)
        return Said((json.dumps(schema),), schema, False)

    async def _command(self, name: str, arguments: Mapping[str, Any], told: Callable[[dict[str, Any]], None]) -> Said:
        options = dict(arguments)
        style = options.pop("format", "table")
        if style not in _FORMATS:
            raise UsageError(f"format: {str(style)[:40]!r}", hint=f"one of {', '.join(_FORMATS)}")
        limits = self.setting.limits
        require_few(options, limits)
        server = str(options.get("server", ""))
        if server.startswith(("http://", "https://")):
            raise UsageError(
                f"no server is asked from here: {server[:80]}",
                because="the processes that answer reach no network",
                hint=f"in a terminal: inferplan ask slow --server {server[:80]}; or a file of its benchmark, {STARTED}",
            )
        Folder(root=self.setting.folder, limits=limits, started=STARTED).require_inside(options)
        body = {"name": name, "options": options}
        status, _, content = await self.processes.ask("tool", body, limits.seconds, told)
        found = json.loads(content) if isinstance(content, bytes) else content
        if status == NO_ANSWER:
            longer = f"inferplan mcp --seconds {min(2 * round(limits.seconds), MOST_SECONDS)}"
            found["error"]["hint"] = f"a smaller question; {longer}; inferplan {name} in a terminal has no limit"
        if "error" in found and found["error"]["exit_code"] == 4 and not self.files:
            found["error"]["because"] = "this server was given no files"
            found["error"]["hint"] = STARTED
        return _said(found, style)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "additionalProperties": False}


def _said(found: dict[str, Any], style: str) -> Said:
    """What a process has answered; a simulation that is overloaded has figures and an error."""
    failed = _failed({"error": found["error"]}) if "error" in found else None
    if failed is not None and "record" not in found:
        return failed
    record = {"command": found["command"], "result": found["record"], "notes": found["notes"]}
    text = json.dumps(record) if style == "json" else "\n".join([found["text"].rstrip(), *found["notes"]])
    if failed is not None:
        return Said((text, *failed.texts), failed.record, True)
    return Said((text,), record if style == "json" else None, False)


def _failed(error: Mapping[str, Any]) -> Said:
    record = {"schema_version": SCHEMA_VERSION, **error}
    return Said((json.dumps(record),), record, True)
