"""``python -m sglang.bench_serving --output-file``: one object a line.

As vLLM's, but the latency key is ``e2e_latency`` and ``server_info`` holds the server's arguments. A bare ``Infinity``
is not strict JSON and is read all the same.
"""

from __future__ import annotations

from typing import Any

from inferplan.validation.importers import vllm_bench
from inferplan.validation.importers.record import Record
from inferplan.validation.rows import Facts, fact_of

TOOL = "sglang bench_serving"
_SERVER = {
    "model_path": "model",
    "tp_size": "tp",
    "pp_size": "pp",
    "ep_size": "ep",
    "attn_dp_size": "dp",
    "version": "engine_version",
    "chunked_prefill_size": "max_num_batched_tokens",
    "max_running_requests": "max_num_seqs",
    "mem_fraction_static": "memory_fraction",
    "context_length": "max_model_len",
    "quantization": "precision",
}


def matches(record: dict[str, Any]) -> bool:
    return "mean_ttft_ms" in record and ("mean_e2e_latency_ms" in record or "random_input_len" in record)


def read(record: Record) -> list[Facts]:
    server = record.object("server_info")
    facts = {"engine": "sglang", "model": fact_of(record.get("model_id") or record.get("model"))}
    facts |= {name: fact_of(server[key]) for key, name in _SERVER.items() if server.get(key) not in (None, "")}
    if str(facts.get("max_num_batched_tokens", "")).startswith("-"):
        del facts["max_num_batched_tokens"]
    ranks = server.count("dp_size")
    if not server.get("attn_dp_size") and server.get("enable_dp_attention") and ranks:
        facts |= {"dp": fact_of(ranks), "tp": fact_of((server.count("tp_size") or 1) // ranks)}
    if server.get("kv_cache_dtype") not in (None, "auto"):
        facts["kv"] = "fp8" if "fp8" in str(server["kv_cache_dtype"]) else fact_of(server["kv_cache_dtype"])
    load = vllm_bench.load(Record({"num_prompts": record.get("completed"), **record}))
    return [facts | vllm_bench.lengths(record) | load | vllm_bench.latencies(record)]
