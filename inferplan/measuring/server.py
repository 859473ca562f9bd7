"""What a server says of itself: model, engine, version, longest sequence, and whether it is at work for others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from inferplan.errors import NetworkError, UsageError
from inferplan.measuring.client import Answer, Client, unreachable
from inferplan.measuring.stream import MOST_TOKENS

_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp", "tensorrt_llm": "trtllm", "atom": "atom"}
"""``owned_by`` of a model, in lower case, to the engine's name in the catalogue."""
_RUNNING = (
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
    "atom:requests_running",
)
_LAGGING = "sglang:"
"""Engines that write their gauges down now and then: what they say just after a load is of the load itself."""
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred", "atom:requests_waiting")
_FINISHED = ("vllm:request_success_total", "atom:requests_finished_total")
"""Metrics of the engines: requests that run, that wait, and that were answered since the start."""
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\S+)")
_SETTLE = 2.0
"""Seconds in which a gauge must have fallen to zero after the last reply."""
_SHOWN = 8
"""Models that are named where a server has many."""
_NAME = 200
"""Characters of a name that are shown."""
_VERSION = 40


@dataclass(frozen=True, kw_only=True)
class Server:
    """model: its name for people and files; id: the same as requests must say it, whatever is in it; source: the
    checkpoint that it says it loaded; engine: in the catalogue's words.

    context: tokens of its longest sequence; tp: its tensor parallelism. ``None`` and empty: it does not say.
    """

    model: str
    id: str
    source: str = ""
    engine: str = ""
    version: str = ""
    context: int | None = None
    tp: int | None = None
    listed: bool = True
    """Whether it has a list of its models."""


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """Requests in the server and answered by it, of whomever; ``None`` where it has no such metric.

    lagging: ``running`` may be that of half a minute ago.
    """

    running: float | None = None
    finished: float | None = None
    lagging: bool = False


async def describe(client: Client, wanted: str | None) -> Server:
    """The model to ask for (``wanted``, else the only one there), and all that the server says of it.

    Raises ``NetworkError`` where it does not answer or refuses the key, ``UsageError`` for a model it has not.
    """
    address = client.address
    answer = await client.get(f"{address.api}/models")
    require_answer(client, answer)
    entries = [one for one in _entries(answer.json) if isinstance(one.get("id"), str)]
    if not entries:
        if wanted is None:
            raise UsageError(
                f"{address.root} has no list of models",
                because=answer.error or "/v1/models names none",
                hint="--served-model NAME",
            )
        return Server(model=client.shown(wanted, _NAME), id=wanted, listed=False)
    entry = _chosen(client, entries, wanted)
    engine = _OWNERS.get(str(entry.get("owned_by", "")).lower().replace("-", "_"), "")
    source = entry.get("root")
    server = Server(
        model=client.shown(entry["id"], _NAME),
        id=entry["id"],
        source=client.shown(source, _NAME) if isinstance(source, str) else "",
        engine=engine,
        context=_whole(entry.get("max_model_len")),
    )
    return await _completed(client, server)


def require_answer(client: Client, answer: Answer) -> None:
    """Raise ``NetworkError`` where a server is not there, or wants another key."""
    if answer.status == 0:
        raise unreachable(client.address, answer.error)
    if answer.status in (401, 403):
        raise NetworkError(
            f"{client.address.root} refuses the key",
            because=answer.error,
            hint="the variable that --api-key-env names (OPENAI_API_KEY) must hold its key",
        )
    if 300 <= answer.status < 400:
        raise NetworkError(f"{client.address.root} does not answer as it should", because=answer.error)


def _entries(body: Any) -> list[dict[str, Any]]:
    listed = body.get("data") if isinstance(body, dict) else None
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _chosen(client: Client, entries: list[dict[str, Any]], wanted: str | None) -> dict[str, Any]:
    """The entry that was asked for, else the only model (adapters have a parent). Raises ``UsageError``."""
    names = [entry["id"] for entry in entries]
    shown = ", ".join(client.shown(name, _NAME) for name in names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    if wanted is not None:
        if wanted not in names:
            raise UsageError(f"the server has no model {wanted!r}", because=f"it has {shown}", hint="--served-model")
        return entries[names.index(wanted)]
    whole = [entry for entry in entries if not entry.get("parent")]
    if len(whole) != 1:
        raise UsageError("the server has several models", because=shown, hint="--served-model NAME")
    return whole[0]


async def _completed(client: Client, server: Server) -> Server:
    """The server with what its engine's own pages say."""
    root = client.address.root
    facts: dict[str, Any] = dict(vars(server))
    if server.engine in ("", "vllm"):
        version = (await client.get(f"{root}/version")).json
        if isinstance(version, dict) and isinstance(version.get("version"), str):
            facts["version"] = client.shown(version["version"], _VERSION)
    if server.engine == "sglang":
        info = (await client.get(f"{root}/server_info")).json or (await client.get(f"{root}/get_server_info")).json
        info = info if isinstance(info, dict) else {}
        facts["version"] = client.shown(str(info.get("version") or ""), _VERSION)
        facts["tp"] = _whole(info.get("tp_size"))
        facts["context"] = server.context or _whole(info.get("context_length"))
    if server.engine == "llama.cpp":
        info = (await client.get(f"{root}/props")).json
        info = info if isinstance(info, dict) else {}
        settings = info.get("default_generation_settings")
        facts["version"] = client.shown(str(info.get("build_info") or ""), _VERSION)
        facts["context"] = server.context or _whole(settings.get("n_ctx") if isinstance(settings, dict) else None)
    return Server(**facts)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_TOKENS else None


async def occupancy(client: Client) -> Occupancy:
    """The requests in the server now; nothing known where it has no ``/metrics`` of a known engine."""
    answer = await client.get(f"{client.address.root}/metrics")
    if answer.status != 200:
        return Occupancy()
    samples = list(_samples(answer.text.splitlines()))
    running, waiting, finished = (_total(samples, names) for names in (_RUNNING, _WAITING, _FINISHED))
    return Occupancy(
        running=None if running is None else running + (waiting or 0.0),
        finished=finished,
        lagging=any(name.startswith(_LAGGING) for name, _ in samples),
    )


async def settled(client: Client) -> Occupancy:
    """The same, once the server has had time to count its last replies as done."""
    found = await occupancy(client)
    for _ in range(4):
        if not found.running or found.lagging:
            break
        await asyncio.sleep(_SETTLE / 4)
        found = await occupancy(client)
    return found


def _samples(lines: Iterable[str]) -> Iterable[tuple[str, float]]:
    """Names and values of the Prometheus text format."""
    for line in lines:
        match = _SAMPLE.match(line)
        if match:
            try:
                value = float(match[2])
            except ValueError:
                continue
            if isfinite(value) and value >= 0:  # a gauge without a value is NaN
                yield match[1], value


def _total(samples: list[tuple[str, float]], names: tuple[str, ...]) -> float | None:
    values = [value for name, value in samples if name in names]
    return sum(values) if values else None
