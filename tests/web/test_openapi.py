"""The description of the API is OpenAPI, and of the API that there is."""

from __future__ import annotations

import json
import re
from typing import Any

import click
import pytest

from inferplan.cli import cli
from inferplan.cli.programs import WITHHELD, CommandLine
from inferplan.web.assistants import COMMANDS
from tests.cases import for_each
from tests.web.conftest import Web

WRITES = {"-o", "--timeline", "--plot", "--report", "--rows", "--update", "--extra", "--anchor-out"}
"""Options of commands of the page and of tools that write a file."""
READS = {"--calibration", "--anchor", "--trace", "--classes", "--sessions", "--startup-log", "--against"}
"""Options that name a file to read: the folder's check holds for every text, these are known to be files."""


@pytest.fixture(scope="module")
def described(web: Web) -> dict[str, Any]:
    found: dict[str, Any] = web.get("/api/openapi.json").json
    return found


def test_it_is_openapi(described: dict[str, Any]) -> None:
    """As FastAPI's own model of OpenAPI 3.1 reads it, with nothing left out."""
    from fastapi.openapi.models import OpenAPI

    read = OpenAPI.model_validate(described)
    assert read.openapi == "3.1.0"
    assert set(read.paths or {}) == set(described["paths"])


def test_every_reference_is_there(described: dict[str, Any]) -> None:
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(described)))
    assert named == set(described["components"]["schemas"])


def test_it_has_every_route(web: Web, described: dict[str, Any]) -> None:
    for path, operations in described["paths"].items():
        for method in ("get", "post", "delete", "put", "patch"):
            got = web.ask(method.upper(), path.replace("{id}", "0"), b"{}" if method == "post" else None)
            assert (got.status == 405) is (method not in operations), (method, path, got.status)


def test_bodies_have_the_options_of_the_commands(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    for name in ("View", "Fit", "Simulate", "Plan"):
        command = cli.get_command(click.Context(cli), {"View": "estimate"}.get(name, name.lower()))
        assert command is not None
        options = {
            next(text[2:] for text in param.opts if text.startswith("--"))
            for param in command.params
            if isinstance(param, click.Option) and not param.hidden and any(t.startswith("--") for t in param.opts)
        }
        assert options - WITHHELD <= set(schemas[name]["properties"]), name
        assert not WITHHELD & set(schemas[name]["properties"])
    assert schemas["View"]["required"] == ["model", "gpu"]


@for_each("name", COMMANDS)
def test_no_option_that_writes_a_file_is_taken(name: str) -> None:
    """A new option that names a file has to be put into one of the two lists above, and withheld if it writes."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    files = {
        option
        for param in command.params
        if isinstance(param, click.Option) and (param.metavar or "").startswith("FILE")
        for option in param.opts
    }
    assert files <= WRITES | READS
    for option in files & WRITES:
        assert option == "-o" or option[2:] in WITHHELD
        answered = CommandLine.run(name, {option.lstrip("-"): "out.csv", "model": "llama-3.1-8b", "gpu": "h100-sxm"})
        assert answered.error is not None and answered.error.what.startswith("No such option")
