"""llama-bench ``-o json`` or ``jsonl``: batch 1, a prefill (``n_prompt``), a decode (``n_gen``) or both.

``avg_ns`` is the whole test. Neither tokenising nor sampling is in it. ``n_depth`` tokens are in the cache before.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from inferplan.validation.importers.record import Malformed, Record
from inferplan.validation.rows import Facts, fact_of

TOOL = "llama-bench"
_KINDS = re.compile(r"\b(iq\d_\w+|q\d_\d|q\d_k|f16|bf16|f32)\b(?: - (small|medium|large)\b)?", re.IGNORECASE)
_FORMATS = {"f16": "fp16", "f32": "fp32", "bf16": "bf16"}


def matches(record: dict[str, Any]) -> bool:
    return "n_gen" in record and "avg_ns" in record


def read(record: Record) -> list[Facts]:
    prompt, output, depth = (record.count(name) or 0 for name in ("n_prompt", "n_gen", "n_depth"))
    nanoseconds = record.number("avg_ns")
    if nanoseconds is None:
        raise Malformed("avg_ns is nothing, not a time")
    gpus = [name.strip() for name in str(record.get("gpu_info") or "").split(",") if name.strip()]
    facts = {
        "model": _model(record),
        "gpu": gpus[0] if len(set(gpus)) == 1 else "",
        "engine": "llama.cpp",
        "weights": _weights(record),
        "kv": _FORMATS.get(str(record.get("type_k")), str(record.get("type_k") or "")),
        "tp": "1",
        "pp": fact_of(len(gpus)) if len(gpus) > 1 else "",
        "batch": "1",
        "max_num_batched_tokens": fact_of(record.get("n_ubatch")),
    }
    if prompt and output:
        return [
            facts | {"isl": fact_of(prompt + depth), "osl": fact_of(output), "e2el_ms": fact_of(nanoseconds * 1e-6)}
        ]
    if prompt and not depth:
        return [facts | {"isl": fact_of(prompt), "osl": "1", "ttft_ms": fact_of(nanoseconds * 1e-6)}]
    if output:
        # n_gen steps, the first of which sees an empty cache (or the depth) before it
        return [
            facts
            | {
                "isl": fact_of(max(depth, 1)),
                "osl": fact_of(output + 1),
                "tpot_ms": fact_of(nanoseconds * 1e-6 / output),
            }
        ]
    return [facts | {"isl": "", "osl": "", "suspect": "a prefill behind a filled cache"}]


def _model(record: dict[str, Any]) -> str:
    """The file's name without its quantisation: a name of the catalogue, or none."""
    stem = PurePosixPath(str(record.get("model_filename") or "")).stem
    return re.sub(r"[-.](iq|q|f|bf)\d\w*$", "", stem, flags=re.IGNORECASE)


def _weights(record: dict[str, Any]) -> str:
    """The file type: ``q4_k_m`` where it says ``Q4_K - Medium``."""
    found = _KINDS.search(str(record.get("model_type") or ""))
    name = found[1].lower() if found else ""
    size = f"_{found[2][0].lower()}" if found and found[2] else ""
    return _FORMATS.get(name, name) + size
