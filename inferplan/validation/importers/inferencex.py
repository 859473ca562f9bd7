"""InferenceX (formerly InferenceMAX) ``agg_*.json``: vLLM's keys without ``_ms``, in seconds.

``isl`` and ``osl`` are nominal: lengths are drawn between 0.8 of them and the whole, by 10 requests a user after 2 of
warm-up. On one node the GPUs are tp x pp, data-parallel attention over the tp where ``dp_attention``; over several
nodes each pool has its own (``prefill_tp``, ``decode_tp``, ...) and number of workers.
"""

from __future__ import annotations

import re
from typing import Any

from inferplan.validation.importers.record import Malformed, Record
from inferplan.validation.rows import LATENCIES, STATISTICS, Facts, fact_of

TOOL = "inferencex"
_ATOM = re.compile(r"atom(\d+(?:\.\d+)+)")
_FRAMEWORKS = {"trt": "trtllm", "trt-llm": "trtllm", "tensorrt-llm": "trtllm"}
_SAME = {
    "model": "model",
    "hw": "gpu",
    "precision": "precision",
    "isl": "isl",
    "osl": "osl",
    "conc": "concurrency",
    "tput_per_gpu": "tokens_per_s_per_gpu",
    "output_tput_per_gpu": "output_tokens_per_s_per_gpu",
    "avg_power_w": "power_w",
    "joules_per_output_token": "joules_per_output_token",
}
"""Their keys whose values need no conversion, and ours."""


def matches(record: dict[str, Any]) -> bool:
    return "conc" in record and "hw" in record and "framework" in record


def read(record: Record) -> list[Facts]:
    framework = str(record["framework"]).lower().removeprefix("dynamo-")
    users = record.count("conc")
    if users is None:
        raise Malformed("conc is nothing, not a number of users")
    facts = {
        **{ours: fact_of(record.get(theirs)) for theirs, ours in _SAME.items()},
        "engine": _FRAMEWORKS.get(framework, framework),
        "engine_version": version_of(str(record.get("image") or "")),
        "requests": fact_of(10 * users),
        "length_ratio_min": "0.8",
        "warmup_requests": fact_of(2 * users),
        "campaign": "inferencex",
        **(_pools(record) if _yes(record, "disagg") or _yes(record, "is_multinode") else _node(record)),
        **_drafts(record),
    }
    for metric in LATENCIES:
        for statistic in STATISTICS:
            value = record.number(f"{statistic}_{metric}")
            if value is not None:
                facts[f"{metric}_{statistic}_ms"] = fact_of(value * 1e3)
    return [facts]


def _node(record: dict[str, Any]) -> Facts:
    """The division of one server, in the columns of the table of the campaign."""
    facts = {name: fact_of(record.get(name)) for name in ("tp", "pp", "ep")}
    return facts | {"decode_ranks": facts["tp"], "dp_attention": _flag(record, "dp_attention"), "disaggregated": "0"}


def _pools(record: dict[str, Any]) -> Facts:
    """The divisions and numbers of the workers; without ``disagg`` the decode's alone are the servers'."""
    decode = "decode_" if record.get("decode_tp") is not None else ""
    facts = {
        "disaggregated": "1" if _yes(record, "disagg") else "0",
        "tp": fact_of(record.get(f"{decode}tp")),
        "ep": fact_of(record.get(f"{decode}ep")),
        "pp": fact_of(record.get("pp")),
        "decode_ranks": fact_of(record.get(f"{decode}tp")),
        "dp_attention": _flag(record, f"{decode}dp_attention"),
        "workers": fact_of(record.get("decode_num_workers")),
    }
    if facts["disaggregated"] == "1":
        facts |= {
            "prefill_tp": fact_of(record.get("prefill_tp")),
            "prefill_ep": fact_of(record.get("prefill_ep")),
            "prefill_ranks": fact_of(record.get("prefill_tp")),
            "prefill_dp_attention": _flag(record, "prefill_dp_attention"),
            "prefill_workers": fact_of(record.get("prefill_num_workers")),
        }
    return facts


def _drafts(record: dict[str, Any]) -> Facts:
    """The head that drafts; the file does not say how many tokens."""
    drafting = str(record.get("spec_decoding", "none")).lower()
    return {} if drafting in ("none", "", "false") else {"speculation": drafting}


def _yes(record: dict[str, Any], name: str) -> bool:
    return str(record.get(name, "false")).lower() in ("true", "1")


def _flag(record: dict[str, Any], name: str) -> str:
    return "1" if _yes(record, name) else "0"


def version_of(image: str) -> str:
    """The engine's version out of a container image's tag, where it has one; Dynamo's images have Dynamo's.

    ATOM's stands behind its name (``rocm7.2.4_..._atom0.1.3``).
    """
    tag = image.rsplit(":", 1)[-1].lstrip("v") if ":" in image else ""
    named = _ATOM.search(tag)
    if named is not None:
        return named[1]
    return tag if tag[:1].isdigit() and "dynamo" not in image else ""
