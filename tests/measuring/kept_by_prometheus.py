"""A small Prometheus: answers ``/api/v1/query`` of range selectors as prometheus.io's HTTP API documents it."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.measuring.wire import answer, read_request

_SELECTOR = re.compile(r"^\{(?P<matchers>.*)\}\[(?P<seconds>\d+)s\]$")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"(?:,|$)')


@dataclass
class Prometheus:
    """series: as :mod:`tests.measuring.kept` makes them. under: its path, as behind a proxy. key: which it wants.
    warnings: what it says beside its answers. asked: the queries, with their times."""

    series: list[dict[str, Any]]
    under: str = ""
    key: str = ""
    warnings: list[str] = field(default_factory=list)
    asked: list[tuple[str, float]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.under}/api/v1/query"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        try:
            while True:
                request = await read_request(reader)
                parts = urlsplit(request.path)
                if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
                    answer(writer, 401, "Unauthorized")
                elif parts.path != f"{self.under}/api/v1/query":
                    answer(writer, 404, "404 page not found\n")
                else:
                    self._query(writer, **{name: one for name, (one,) in parse_qs(parts.query).items()})
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _query(self, writer: asyncio.StreamWriter, query: str, time: str) -> None:
        self.asked.append((query, float(time)))
        selector = _SELECTOR.match(query)
        if selector is None or _MATCHER.sub("", selector["matchers"]):
            said = {"status": "error", "errorType": "bad_data", "error": f"1:1: parse error: {query}"}
            answer(writer, 400, said)
            return
        matchers = [
            (name, sign, json.loads(f'"{value}"')) for name, sign, value in _MATCHER.findall(selector["matchers"])
        ]
        since, until = float(time) - int(selector["seconds"]), float(time)
        found = []
        for one in self.series:
            if all(_matches(one["metric"].get(name, ""), sign, value) for name, sign, value in matchers):
                values = [[at, value] for at, value in one["values"] if since <= at <= until]
                found += [{"metric": one["metric"], "values": values}] if values else []
        said = {"status": "success", "data": {"resultType": "matrix", "result": found}}
        answer(writer, 200, said | ({"warnings": self.warnings} if self.warnings else {}))


def _matches(label: str, sign: str, value: str) -> bool:
    equal = re.fullmatch(value, label) is not None if "~" in sign else label == value
    return equal != sign.startswith("!")
