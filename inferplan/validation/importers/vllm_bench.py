"""``vllm bench serve --save-result``: one object a file, or one a line with ``--append-result``.

Means of ``*_ms`` keys are milliseconds, arrays are seconds. Nothing says which GPU or how many: ``--metadata gpu=H100
tp=2`` does, else flags. Files of old versions have no ``failed``, and a key ``request_goodput:`` with a colon.
"""

from __future__ import annotations

from typing import Any

from inferplan.validation.importers.record import Record
from inferplan.validation.rows import INPUTS, Facts, fact_of

TOOL = "vllm bench serve"
_METADATA = {"tensor_parallel_size": "tp", "gpu_type": "gpu", "hw": "gpu", "quantization": "precision"}


def matches(record: dict[str, Any]) -> bool:
    return "mean_ttft_ms" in record and "num_prompts" in record


def read(record: Record) -> list[Facts]:
    return [lengths(record) | load(record) | metadata(record) | latencies(record) | _engine(record)]


def latencies(record: Record) -> Facts:
    """Means, in milliseconds."""
    return {
        "ttft_ms": fact_of(record.number("mean_ttft_ms")),
        "tpot_ms": fact_of(record.number("mean_tpot_ms")),
        "e2el_ms": fact_of(record.number("mean_e2el_ms" if "mean_e2el_ms" in record else "mean_e2e_latency_ms")),
        "output_tokens_per_s": fact_of(record.number("output_throughput")),
    }


def lengths(record: Record) -> Facts:
    """Mean tokens of a finished request: the totals over the requests that completed, not what was asked for."""
    completed = record.count("completed")
    if not completed:
        return {}
    totals = {"isl": record.number("total_input_tokens"), "osl": record.number("total_output_tokens")}
    return {name: fact_of(total / completed) for name, total in totals.items() if total}


def load(record: Record) -> Facts:
    """Closed loop where a concurrency is stated; all at once for an infinite rate without one; else an open loop."""
    facts = {"requests": fact_of(record.count("num_prompts") or record.count("completed"))}
    rate, limit = record.get("request_rate"), record.count("max_concurrency")
    unlimited = rate is None or str(rate).lower() in ("inf", "infinity")
    if limit:
        facts["concurrency"] = fact_of(limit)
    elif unlimited:
        facts["concurrency"] = facts["requests"]
    else:
        facts |= {"rate_per_s": fact_of(rate), "duration_s": fact_of(record.number("duration"))}
    return facts


def metadata(record: Record) -> Facts:
    """What ``--metadata KEY=VALUE`` put at the top level, by our names."""
    found = {
        _METADATA.get(key, key): fact_of(value) for key, value in record.items() if not isinstance(value, (dict, list))
    }
    wanted = set(INPUTS) - {"isl", "osl", "requests", "concurrency", "duration_s"}
    return {name: value for name, value in found.items() if name in wanted and value}


def _engine(record: Record) -> Facts:
    backend = str(record.get("backend") or record.get("endpoint_type") or "").lower()
    engine = "sglang" if "sglang" in backend else "trtllm" if "tensorrt" in backend else ""
    engine = engine or ("vllm" if backend == "vllm" else "")
    facts = {"model": fact_of(record.get("model_id"))}
    return facts | ({"engine": engine} if engine and "engine" not in record else {})
