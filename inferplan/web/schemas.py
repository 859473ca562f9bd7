"""The OpenAPI description: bodies are the options of the commands, as the command line itself lists them."""

from __future__ import annotations

from typing import Any

from inferplan import __version__
from inferplan.web.commands import Commands
from inferplan.web.jobs import KINDS
from inferplan.web.limits import Limits
from inferplan.web.tasks import EXPORTS, PRICES

_TEXT = {"type": "string"}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["what", "because", "hint", "exit_code"],
            "properties": {
                "what": _TEXT,
                "because": _TEXT,
                "hint": _TEXT,
                "picture": _TEXT,
                "exit_code": {"type": "integer"},
            },
        }
    },
}
_REFUSALS = {
    "400": "options that the command line refuses (exit code 2), or no JSON",
    "401": "no token of this server",
    "403": "a name that is not this server's, or another site's page",
    "404": "no such job, or a file that cannot be read (exit code 4)",
    "409": "it does not fit, or nothing meets the limits (exit code 3)",
    "413": "a body that is too large",
    "429": "as many jobs as may run at once, or as many requests of a person as may wait",
    "503": "too many requests",
    "504": "no answer in time",
}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _operation(summary: str, body: dict[str, Any] | None = None, **answer: Any) -> dict[str, Any]:
    """One operation; ``answer``: its status and the content of what it answers."""
    status, content = answer.get("status", "200"), answer.get("content", _json({"type": "object"}))
    refusals = {code: {"description": text, "content": _json(_ref("Error"))} for code, text in _REFUSALS.items()}
    found: dict[str, Any] = {
        "summary": summary,
        "responses": {status: {"description": "the answer", "content": content}, **refusals},
    }
    if body is not None:
        found["requestBody"] = {"required": True, "content": _json(body)}
    if "path" in answer:
        found["parameters"] = [{"name": answer["path"], "in": "path", "required": True, "schema": _TEXT}]
    return found


def _with(schema: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "properties": {**schema["properties"], **more}}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def describe(commands: Commands, limits: Limits) -> dict[str, Any]:
    """The whole description, in OpenAPI 3.1."""
    cost = commands.schema("cost")["properties"]
    points = {"type": "integer", "minimum": 1, "maximum": limits.points, "default": 500}
    view = _with(commands.schema("estimate"), {**{key: cost[key] for key in PRICES}, "points": points})
    page, events = {"text/html": {"schema": _TEXT}}, {"text/event-stream": {"schema": _TEXT}}
    kinds = [
        _object(["kind", "options"], kind={"const": kind}, options=_ref(command.title()))
        for kind, command in KINDS.items()
    ]
    views = {"type": "array", "items": _ref("View"), "minItems": 1, "maxItems": limits.views}
    export = _object(["view", "format"], view=_ref("View"), format={"enum": list(EXPORTS)})
    paths = {
        "/api/catalog": {"get": _operation("Models, accelerators, engines, workloads and formats on file.")},
        "/api/view": {"post": _operation("One deployment under one static batch: inferplan estimate.", _ref("View"))},
        "/api/compare": {
            "post": _operation(
                "Several views, without operators.", _object(["views"], views=views), content=_json({"type": "array"})
            )
        },
        "/api/explain": {
            "post": _operation(
                "Where a number comes from: inferplan explain.",
                _object(["view", "term"], view=_ref("View"), term=_TEXT),
            )
        },
        "/api/export": {"post": _operation("A view as a file.", export, content={"*/*": {"schema": _TEXT}})},
        "/api/jobs": {
            "post": _operation("Start a fit, a simulation, a plan or a day.", {"oneOf": kinds}, status="202")
        },
        "/api/jobs/{id}": {
            "get": _operation("How far it is, and its result.", path="id"),
            "delete": _operation("Cancel it.", path="id"),
        },
        "/api/jobs/{id}/events": {"get": _operation("The same as it changes.", path="id", content=events)},
        "/api/report/{id}": {"get": _operation("The page of a plan.", path="id", content=page)},
    }
    components = {
        "View": view,
        **{command.title(): commands.schema(command) for command in KINDS.values()},
        "Error": _ERROR,
    }
    about = {"title": "inferplan", "version": __version__, "description": "The commands of inferplan as JSON."}
    return {
        "openapi": "3.1.0",
        "info": about,
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "of inferplan web"}},
        },
    }
