"""The body of a request as JSON, or a refusal: strict, small, shallow."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from inferplan.errors import UsageError
from inferplan.web.limits import Limits


def parse_body(body: bytes, limits: Limits) -> dict[str, Any]:
    """The object that a body holds. Raises ``UsageError`` for anything else, NaN and keys given twice among it."""
    try:
        _require_shallow(body, limits.depth)
        value = json.loads(body.decode("utf-8"), parse_constant=_no_number, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise UsageError("the body is not JSON", because=str(error)[:200]) from None
    if not isinstance(value, dict):
        raise UsageError("the body is not an object", hint='{"model": "llama-3.1-8b", "gpu": "h100-sxm"}')
    require_few(value, limits)
    return value


def require_few(value: Any, limits: Limits) -> None:
    """Raise ``UsageError`` for JSON of more values than a request may have."""
    if _count(value) > limits.items:
        raise UsageError(f"the request has more than {limits.items:,} values")


def _require_shallow(body: bytes, most: int) -> None:
    """Raise ``ValueError`` for deep nesting, before anything that recurses reads it; brackets in texts count too."""
    depth = 0
    for byte in body:
        depth += (byte in b"[{") - (byte in b"]}")
        if depth > most:
            raise ValueError(f"nested more than {most} deep")


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_count, value.values()))
    return len(value) + sum(map(_count, value)) if isinstance(value, list) else 0
