"""GuideLLM ``benchmarks.json``: one benchmark a rate or concurrency.

``inter_token_latency_ms`` is our TPOT, (last - first)/(output - 1); GuideLLM's own ``time_per_output_token_ms``
includes the first token. ``request_latency`` is in seconds. Only the status ``successful`` counts.
"""

from __future__ import annotations

from typing import Any

from inferplan.validation.rows import Facts, stated

TOOL = "guidellm"
_CLOSED = ("concurrent", "synchronous", "throughput")


def matches(record: dict[str, Any]) -> bool:
    runs = record.get("benchmarks")
    return isinstance(runs, list) and bool(runs) and "metrics" in runs[0]


def read(record: dict[str, Any]) -> list[Facts]:
    return [_benchmark(run, record) for run in record["benchmarks"]]


def _benchmark(run: dict[str, Any], record: dict[str, Any]) -> Facts:
    metrics, config = run["metrics"], run.get("config") or {}
    facts = {
        "isl": _mean(metrics, "prompt_token_count"),
        "osl": _mean(metrics, "output_token_count"),
        "ttft_ms": _mean(metrics, "time_to_first_token_ms"),
        "tpot_ms": _mean(metrics, "inter_token_latency_ms"),
        "e2el_ms": _mean(metrics, "request_latency", 1e3),
        "output_tokens_per_s": _mean(metrics, "output_tokens_per_second"),
        "requests": stated((metrics.get("request_totals") or {}).get("successful")),
        "model": _model(config, record),
    }
    strategy = config.get("strategy") or (run.get("args") or {}).get("strategy") or {}
    kind = str(strategy.get("type_") or "")
    if kind in _CLOSED:
        streams = strategy.get("streams") or strategy.get("max_concurrency") or (1 if kind == "synchronous" else None)
        facts["concurrency"] = stated(streams) or _mean(metrics, "request_concurrency")
    else:
        facts["rate_per_s"] = stated(strategy.get("rate"))
        facts["duration_s"] = stated(run.get("duration"))
    return facts


def _mean(metrics: dict[str, Any], name: str, scale: float = 1.0) -> str:
    value = ((metrics.get(name) or {}).get("successful") or {}).get("mean")
    return "" if value is None else stated(value * scale)


def _model(config: dict[str, Any], record: dict[str, Any]) -> str:
    places = (config.get("backend"), (record.get("config") or record.get("args") or {}))
    for place in places:
        if isinstance(place, dict) and place.get("model"):
            return stated(place["model"])
    return ""
