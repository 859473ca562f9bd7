"""The plan that the service of :mod:`tests.watching.service` is held to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STILL = {"kind": "constant", "mean_s": 0.0, "spread": 0.0}


def plan_file(folder: Path, **plan: Any) -> Path:
    """Two replicas of Llama-3.1-8B on an H100 each: 20 requests/s of 1,000 tokens in and 200 out; p95 of TTFT within
    400 ms and of TPOT within 30."""
    load = {
        "prompt": {"kind": "lognormal", "mean": 1000, "spread": 0.66, "most": None},
        "output": {"kind": "gamma", "mean": 200, "spread": 1.0, "most": None},
        "requests_per_s": 20.0,
        "users": None,
        "arrivals": "poisson",
        "burstiness": 1.0,
        "think_time": STILL,
        "shared_prefix_tokens": 0,
        "distinct_prefixes": 1,
        "not_sent": [],
    }
    deployment = {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "quant": None,
        "engine": "vllm 0.33",
        "parallel": {"tp": 1, "pp": 1, "ep": 1, "dp": 1, "cp": 1, "replicas": 2},
        "pools": None,
        "context_tokens": 16384,
        "concurrency": 256,
        "token_budget": 8192,
        "speculation": None,
        **plan,
    }
    data = {
        "question": {"percentile": 95.0, "slo": {"ttft_s": 0.4, "tpot_s": 0.03}, "load": load},
        "plan": {"ttft_s": 0.2, "tpot_s": 0.015, "replicas": 2, "deployment": deployment},
    }
    path = folder / "plan.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path
