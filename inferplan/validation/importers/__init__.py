"""Benchmark files to rows: one module a tool, each with ``matches`` and ``read``.

Fields and traps of every format are listed in docs/validate.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from inferplan.errors import InputFileError
from inferplan.files import parse_json, read_text
from inferplan.validation.importers import (
    aiperf,
    guidellm,
    inferencex,
    llama_bench,
    mlperf,
    plain,
    sglang_bench,
    vllm_bench,
)
from inferplan.validation.importers.record import Malformed, Record
from inferplan.validation.rows import Facts, Row, row_of


class JsonImporter(Protocol):
    """A tool that writes JSON objects."""

    TOOL: str

    @staticmethod
    def matches(record: dict[str, Any]) -> bool:
        """Whether an object is of this tool."""

    @staticmethod
    def read(record: Record) -> list[Facts]:
        """The facts of each run in the object."""


JSON_IMPORTERS: tuple[Any, ...] = (guidellm, aiperf, llama_bench, inferencex, sglang_bench, vllm_bench)
"""Those whose signature is the most particular come first."""
TOOLS = (plain.TOOL, mlperf.TOOL, *(module.TOOL for module in JSON_IMPORTERS))


def read_file(path: Path, supplied: Mapping[str, str]) -> tuple[str, list[Row]]:
    """The tool that wrote a file, and its rows; ``supplied`` fills facts that a row leaves empty.

    Raises ``InputFileError`` for a file that is missing, empty, or of no known tool.
    """
    text = read_text(path, encoding="utf-8-sig")
    if not text.strip():
        raise InputFileError(f"{path} is empty")
    if text.lstrip()[0] in "[{":
        return _read_json(path, text, supplied)
    if mlperf.matches(text):
        return mlperf.TOOL, [row_of(str(path), mlperf.read(text), supplied)]
    return plain.TOOL, plain.read(path, text, supplied)


def _read_json(path: Path, text: str, supplied: Mapping[str, str]) -> tuple[str, list[Row]]:
    records = _objects(path, text)
    rows, tools = [], []
    for index, record in enumerate(records):
        importer = next((module for module in JSON_IMPORTERS if module.matches(record)), None)
        if importer is None:
            keys = ", ".join(list(record)[:8])
            raise InputFileError(
                f"{path}: record {index + 1} is from no tool that validate knows",
                because=f"its keys are {keys}{', ...' if len(record) > 8 else ''}",
                hint=f"known: {', '.join(TOOLS)}",
            )
        tools.append(importer.TOOL)
        try:
            parts = importer.read(Record(record))
        except Malformed as error:
            raise InputFileError(
                f"{path}: record {index + 1} is not as {importer.TOOL} writes it", because=str(error)
            ) from None
        for part, facts in enumerate(parts):
            where = f"{path}#{index + 1}" + (f".{part + 1}" if part else "")
            rows.append(row_of(where, facts, supplied))
    return " and ".join(dict.fromkeys(tools)), rows


_BEGIN = re.compile(r"[ \t\r\n,]*(?=[^ \t\r\n,])")
"""What stands before an object, where there is another."""


def _objects(path: Path, text: str) -> list[dict[str, Any]]:
    """The objects of a JSON document, an array of objects, or objects one after the other (JSON lines)."""
    records: list[Any] = []
    at = 0
    while found := _BEGIN.match(text, at):
        value, at = parse_json(text, str(path), InputFileError, found.end())
        records += value if isinstance(value, list) else [value]
    if not records or not all(isinstance(record, dict) for record in records):
        raise InputFileError(f"{path} holds no JSON objects")
    return records
