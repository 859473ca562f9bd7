"""What a Prometheus server answers that scraped some servers: their texts as the JSON of its queries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def series(name: str, values: Sequence[tuple[float, str]], **labels: str) -> dict[str, Any]:
    """One series of a matrix."""
    return {"metric": {"__name__": name, **labels}, "values": [[at, value] for at, value in values]}


def answer(found: Sequence[Any], kind: str = "matrix") -> str:
    """The answer of ``/api/v1/query_range``."""
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": list(found)}})


def scraped(texts: Sequence[tuple[float, str]], target: Mapping[str, str]) -> list[dict[str, Any]]:
    """The series of a server: its texts of ``/metrics`` (lines ``name{a="b"} value``) and when each was read."""
    found: dict[str, dict[str, Any]] = {}
    for at, text in texts:
        for line in text.splitlines():
            if line.startswith("#"):
                continue
            key, _, value = line.rpartition(" ")
            name, _, rest = key.partition("{")
            pairs = (pair.split("=") for pair in rest.rstrip("}").split(",") if pair)
            labels = {label: said.strip('"') for label, said in pairs}
            one = found.setdefault(key, {"metric": {"__name__": name, **labels, **target}, "values": []})
            one["values"].append([at, value])
    return list(found.values())
