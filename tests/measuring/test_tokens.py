"""Tokens of a text as servers count them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from inferplan.measuring.address import address_of
from inferplan.measuring.client import Answer
from inferplan.measuring.dialect import Api
from inferplan.measuring.tokens import remote_counter
from tests.cases import for_each


class Asked:
    """A client whose server answers by what it is asked for."""

    address = address_of("http://127.0.0.1:1")

    def __init__(self, engine: str) -> None:
        self.engine = engine

    async def post(self, url: str, body: dict[str, Any]) -> Answer:
        assert url.endswith("/tokenize")
        if self.engine == "vllm":  # (entrypoints/serve/tokenize/protocol.py)
            return Answer(status=200, text=json.dumps({"count": 7, "max_model_len": 9, "tokens": [1] * 7}))
        if self.engine == "llama.cpp":  # (tools/server: content, add_special; anything else is ignored)
            return Answer(status=200, text=json.dumps({"tokens": list(range(len(body.get("content", "").split())))}))
        return Answer(status=404, error="HTTP 404")


COUNTS: list[tuple[str, Api, int | None]] = [
    ("vllm", "completions", 7),
    ("vllm", "chat", 7),
    ("llama.cpp", "completions", 3),
    ("llama.cpp", "chat", None),  # what its template adds is in no count
    ("other", "completions", None),
]


@for_each(("engine", "api", "count"), COUNTS)
def test_a_server_counts_a_text(engine: str, api: Api, count: int | None) -> None:
    counter = remote_counter(Asked(engine), "m", api)  # type: ignore[arg-type]
    assert asyncio.run(counter("able about above")) == count
