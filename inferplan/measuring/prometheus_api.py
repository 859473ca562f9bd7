"""What a Prometheus server kept of engines' ``/metrics``, asked of it by its HTTP API.

``GET /api/v1/query`` of a range selector (``{...}[600s]``) answers with the samples as they were scraped, each at its
own time (prometheus.io/docs/prometheus/latest/querying/api). ``query_range`` would repeat the latest sample at every
step. Thanos, Mimir and VictoriaMetrics answer alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any
from urllib.parse import urlencode

from inferplan.errors import InputFileError, NetworkError, UsageError
from inferplan.measuring.address import Key, address_of
from inferplan.measuring.client import Client
from inferplan.measuring.range_export import ENGINES
from inferplan.measuring.scrapes import Watch
from inferplan.measuring.server import require_answer
from inferplan.measuring.stream import error_text

_ENDPOINT = re.compile(r"^(https?://.*)/api/v1/query(?:_range)?/?$")
_LABEL = re.compile(r"[a-zA-Z_]\w*")
_PART = 600
"""Seconds that are asked for at once: of forty servers, scraped each five seconds, some 10 MB."""
_TIMEOUT = 60.0


def is_prometheus(url: str) -> bool:
    """Whether an address is that of the queries of a Prometheus server."""
    return _ENDPOINT.match(url) is not None


def matchers(given: str | None) -> dict[str, str]:
    """Labels of ``job=vllm,namespace=prod``. Raises ``UsageError``."""
    found = dict[str, str]()
    for part in given.split(",") if given is not None else ():
        name, sign, value = (text.strip() for text in part.partition("="))
        value = value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
        if not sign or not _LABEL.fullmatch(name) or name.startswith("__"):
            raise UsageError(f"--labels: {part.strip() or 'nothing'} is no label", hint="--labels job=vllm")
        if name in found:
            raise UsageError(f"--labels: {name} twice", because="a server has one value of each label")
        found[name] = value
    return found


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What was asked for. url: of the queries; labels: of the servers, all of them must match; lasting: seconds before
    ``until`` (seconds since 1970)."""

    url: str
    lasting: float
    until: float
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> str:
        """The address of the server itself."""
        match = _ENDPOINT.match(self.url)
        assert match is not None
        return match[1]

    def query(self, seconds: int) -> str:
        """The selector in Prometheus' words: metrics of engines without the buckets, which nothing here reads."""
        names = [f'__name__=~"({"|".join(ENGINES)}).+"', '__name__!~".+_(bucket|created)"']
        quoted = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in self.labels.items()]
        return f"{{{','.join([*names, *quoted])}}}[{seconds}s]"

    def parts(self) -> list[tuple[float, int]]:
        """Ends and seconds of what is asked for at once, in the order of time."""
        whole = ceil(self.lasting)
        return [(self.until - left, min(_PART, whole - left)) for left in range(0, whole, _PART)][::-1]


async def ask_kept(asked: Kept, key: Key, watch: Watch) -> tuple[str, list[str]]:
    """The series of engines as one JSON text, as ``promtool query`` prints them, and what the server warns of.

    Raises ``NetworkError`` for a server that does not answer or refuses, ``InputFileError`` where it kept nothing.
    """
    found, warned = list[Any](), dict[str, None]()
    parts = asked.parts()
    async with Client(address_of(asked.root), key, _TIMEOUT) as client:
        for number, (until, seconds) in enumerate(parts):
            watch("asking Prometheus", number * _PART, len(parts) * _PART)
            words = urlencode({"query": asked.query(seconds), "time": f"{until:.3f}"})
            answer = await client.get(f"{client.address.root}/api/v1/query?{words}")
            require_answer(client, answer)
            said = answer.json
            data = said.get("data") if isinstance(said, dict) else None
            result = data.get("result") if isinstance(data, dict) else None
            if not isinstance(result, list):
                raise NetworkError(
                    f"{client.address.root} does not answer as a Prometheus server",
                    because=answer.error or client.shown(error_text(said)) or "its answer has no data.result",
                    hint="the address whose /api/v1/query answers queries",
                )
            found += result
            warned |= dict.fromkeys(client.shown(str(one)) for one in said.get("warnings") or ())
    if not found:
        what = "".join(f', {name}="{value}"' for name, value in asked.labels.items())
        raise InputFileError(
            f"{asked.root} kept no series of an engine",
            because=f"none in the last {ceil(asked.lasting):,} s whose name begins with {', '.join(ENGINES)}{what}",
            hint="--for, --labels; does it scrape the servers?",
        )
    return json.dumps(found), list(warned)
