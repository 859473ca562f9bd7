"""GuideLLM ``benchmarks.json``: one benchmark a rate or concurrency.

``inter_token_latency_ms`` is our TPOT, (last - first)/(output - 1); GuideLLM's own ``time_per_output_token_ms``
includes the first token. ``request_latency`` is in seconds. Only the status ``successful`` counts.
"""

from __future__ import annotations

from typing import Any

from inferplan.validation.importers.record import Record
from inferplan.validation.rows import Facts, fact_of

TOOL = "guidellm"
_CLOSED = ("concurrent", "synchronous", "throughput")


def matches(record: dict[str, Any]) -> bool:
    runs = record.get("benchmarks")
    return isinstance(runs, list) and any(isinstance(run, dict) and "metrics" in run for run in runs)


def read(record: Record) -> list[Facts]:
    return [_benchmark(run, record) for run in record.objects("benchmarks")]


def _benchmark(run: Record, record: Record) -> Facts:
    metrics, config = run.object("metrics"), run.object("config")
    facts = {
        "isl": _mean(metrics, "prompt_token_count"),
        "osl": _mean(metrics, "output_token_count"),
        "ttft_ms": _mean(metrics, "time_to_first_token_ms"),
        "tpot_ms": _mean(metrics, "inter_token_latency_ms"),
        "e2el_ms": _mean(metrics, "request_latency", 1e3),
        "output_tokens_per_s": _mean(metrics, "output_tokens_per_second"),
        "requests": fact_of(metrics.object("request_totals").number("successful")),
        "model": _model(config, record),
    }
    strategy = config.object("strategy") or run.object("args").object("strategy")
    kind = str(strategy.get("type_") or "")
    if kind in _CLOSED:
        streams = strategy.count("streams") or strategy.count("max_concurrency")
        streams = streams or (1 if kind == "synchronous" else None)
        facts["concurrency"] = fact_of(streams) or _mean(metrics, "request_concurrency")
    else:
        facts["rate_per_s"] = fact_of(strategy.number("rate"))
        facts["duration_s"] = fact_of(run.number("duration"))
    return facts


def _mean(metrics: Record, name: str, scale: float = 1.0) -> str:
    value = metrics.object(name).object("successful").number("mean")
    return "" if value is None else fact_of(value * scale)


def _model(config: Record, record: Record) -> str:
    backend = config.get("backend")
    places = [backend] if isinstance(backend, dict) else []  # a name in some versions
    places.append(record.object("config") or record.object("args"))
    return next((fact_of(place["model"]) for place in places if place.get("model")), "")
