"""AIPerf and genai-perf: one object a run, ``{unit, avg, p50, ...}`` by metric.

Units stand in the file and are converted from there. ``inter_token_latency`` is (latency - TTFT)/(output - 1): our
TPOT.
"""

from __future__ import annotations

from typing import Any

from inferplan.validation.importers.record import Record
from inferplan.validation.rows import Facts, fact_of

TOOL = "aiperf or genai-perf"
_MILLISECONDS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6, "milliseconds": 1.0}
_METRICS = {"ttft_ms": "time_to_first_token", "tpot_ms": "inter_token_latency", "e2el_ms": "request_latency"}


def matches(record: dict[str, Any]) -> bool:
    return "input_config" in record and isinstance(
        record.get("request_latency", record.get("request_throughput")), dict
    )


def read(record: Record) -> list[Facts]:
    config = record.object("input_config")
    facts = {
        "isl": _average(record, "input_sequence_length"),
        "osl": _average(record, "output_sequence_length"),
        "requests": _average(record, "request_count"),
        "output_tokens_per_s": _average(record, "output_token_throughput"),
        **{name: _milliseconds(record, metric) for name, metric in _METRICS.items()},
    }
    models = _dig(config, "model_names") or _dig(config, "endpoint", "model_names") or _dig(config, "models")
    if isinstance(models, list) and models and not isinstance(models[0], dict):
        facts["model"] = fact_of(models[0])
    concurrency = (
        _dig(config, "loadgen", "concurrency")
        or _dig(config, "perf_analyzer", "stimulus", "concurrency")
        or _dig(config, "stimulus", "concurrency")
    )
    rate = _dig(config, "loadgen", "request_rate") or _dig(config, "perf_analyzer", "stimulus", "request_rate")
    if concurrency:
        facts["concurrency"] = fact_of(concurrency)
    elif rate:
        facts |= {"rate_per_s": fact_of(rate), "duration_s": _average(record, "benchmark_duration")}
    return [facts]


def _dig(record: Any, *path: str) -> Any:
    for key in path:
        record = record.get(key) if isinstance(record, dict) else None
    return record


def _average(record: Record, name: str) -> str:
    return fact_of(record.object(name).number("avg"))


def _milliseconds(record: Record, name: str) -> str:
    metric = record.object(name)
    average, unit = metric.number("avg"), str(metric.get("unit", "")).lower()
    if average is None:
        return ""
    if unit not in _MILLISECONDS:
        return f"{average} {unit or 'without a unit'}"
    return fact_of(average * _MILLISECONDS[unit])
