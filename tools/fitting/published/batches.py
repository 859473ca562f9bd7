"""Published tables of batches and of maximum throughput: what each row was run on."""

from __future__ import annotations

from typing import Any

from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from inferplan.validation.rows import Run

DEVICES = {
    "H100-80GB": "h100-sxm",
    "H100-80GB SXM": "h100-sxm",
    "H100": "h100-sxm",
    "A100-40GB": "a100-40gb-pcie",
    "A100-80GB SXM": "a100-80gb-sxm",
    "A100-80GB": "a100-80gb-sxm",
    "A100": "a100-80gb-sxm",
    "L40S": "l40s",
    "H200": "h200-sxm",
    "H200-141GB": "h200-sxm",
    "GH200": "gh200-96gb",
    "MI300X": "mi300x",
}
_MODELS = {
    "LLaMA 7B": "llama-2-7b",
    "LLaMA 70B": "llama-2-70b",
    "GPT-J 6B": "gpt-j-6b",
    "Falcon 180B": "falcon-180b",
    "Mixtral-8x7B": "mixtral-8x7b-v0.1",
    "Mixtral-8x22B": "mixtral-8x22b-v0.1",
}
VERSIONS = {"vllm": "0.5", "trtllm": "0.17"}
"""What the tables ran, all of 2023 and 2024, or the nearest to it that is on file."""
ENGINES = {"vLLM": "vllm", "TensorRT-LLM": "trtllm", "llama.cpp": "llama.cpp"}


def static_run(row: dict[str, str], engine: str) -> Run:
    """What a row of a published table of batches was run on."""
    return run_of(row, engine, batch=int(float(row["batch"])))


def run_of(row: dict[str, str], engine: str, **load: Any) -> Run:
    """What a row of a published table was run on; ``load``: the batch or the users of a :class:`Run`."""
    hardware = row["hardware"].split("x ", 1)[-1]
    eight = row["precision"] == "fp8"
    return Run(
        model=_MODELS.get(row["model"], row["model"]),
        gpu=DEVICES[hardware],
        engine=engine,
        engine_version=VERSIONS.get(engine),
        precision=None,
        weights="fp8" if eight else "fp16",
        experts=None,
        kv="fp8" if eight else None,
        activations=None,
        prompt=float(row["isl"]),
        output=max(float(row["osl"] or 1), 1.0),
        tp=int(float(row["tp"])),
        kernels=f"{engine}@{VERSIONS[engine]}" if engine in VERSIONS else None,
        **load,
    )


def batch_traffic(run: Run) -> Traffic:
    """The batch of such a run, or its users, all at once."""
    count = run.batch or run.concurrency or 1
    return Traffic(
        arrivals=ClosedLoop(concurrency=count),
        prompt=Lengths(mean=run.prompt),
        output=Lengths(mean=run.output),
        requests_count=count,
    )
