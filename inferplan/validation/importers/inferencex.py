"""InferenceX (formerly InferenceMAX) ``agg_*.json``: vLLM's keys without ``_ms``, in seconds.

``isl`` and ``osl`` are nominal: lengths are drawn between 0.8 of them and the whole, by 10 requests a user after 2 of
warm-up. The number of GPUs is tp x pp.
"""

from __future__ import annotations

from typing import Any

from inferplan.validation.rows import Facts, stated

TOOL = "inferencex"
_FRAMEWORKS = {"trt": "trtllm", "trt-llm": "trtllm", "tensorrt-llm": "trtllm"}


def matches(record: dict[str, Any]) -> bool:
    return "conc" in record and "hw" in record and "framework" in record


def read(record: dict[str, Any]) -> list[Facts]:
    framework = str(record["framework"]).lower()
    facts = {
        "model": stated(record.get("model")),
        "gpu": stated(record.get("hw")),
        "engine": _FRAMEWORKS.get(framework, framework),
        "engine_version": _tag(str(record.get("image") or "")),
        "precision": stated(record.get("precision")),
        "isl": stated(record.get("isl")),
        "osl": stated(record.get("osl")),
        "concurrency": stated(record.get("conc")),
        "requests": stated(10 * int(record["conc"])),
        "length_ratio_min": "0.8",
        "warmup_requests": stated(2 * int(record["conc"])),
        "pp": stated(record.get("pp")),
        "ep": stated(record.get("ep")),
        "ttft_ms": _milliseconds(record, "ttft"),
        "tpot_ms": _milliseconds(record, "tpot"),
        "e2el_ms": _milliseconds(record, "e2el"),
        "campaign": "inferencex",
    }
    tp = stated(record.get("tp"))
    facts["tp"] = tp
    if str(record.get("dp_attention", "false")).lower() == "true" and tp:
        facts |= {"tp": "1", "dp": tp}
    suspects = []
    if str(record.get("spec_decoding", "none")).lower() not in ("none", "", "false"):
        suspects.append("speculation")
    if record.get("disagg") in (True, "true", "True"):
        suspects.append("disaggregated")
    facts["suspect"] = ", ".join(suspects)
    if all(record.get(f"mean_{name}") is None for name in ("ttft", "tpot")):
        facts["statistic"] = "median"
    return [facts]


def _milliseconds(record: dict[str, Any], name: str) -> str:
    value = record.get(f"mean_{name}", record.get(f"median_{name}"))
    return "" if value is None else stated(value * 1e3)


def _tag(image: str) -> str:
    """A version out of a container image's tag, where it has one."""
    tag = image.rsplit(":", 1)[-1].lstrip("v") if ":" in image else ""
    return tag if tag[:1].isdigit() else ""
