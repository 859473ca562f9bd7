"""LoRA adapters: throughput with them over throughput without, and with many over one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from inferplan.catalog.assemble import Request, assemble
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import run_step
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.traffic.popularity import Popularity
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from inferplan.work.adapters import LoraAsked
from inferplan.work.parallel import Parallelism
from inferplan.work.step import decode
from tools.accuracy.parts.rows import Part, PartRow, published

SHAREGPT = (Lengths(kind="lognormal", mean=246.0, spread=1.2), Lengths(kind="lognormal", mean=235.0, spread=1.2))
"""Means of vLLM 11267 (tokens over requests); the spread is a usual one of ShareGPT."""


def lora_part(shared: Path) -> Part:
    """The rows of ``lora.csv`` that can be priced, and those of issues and pull requests that are named here."""
    return Part(name="LoRA", rows=[*_offline(shared), *_steps(shared), *_many(shared)])


def _deploy(model: str, gpu: str, lora: LoraAsked, engine: str, tp: int = 1) -> Deployment:
    return assemble(Request(model=model, gpu=gpu, engine=engine, lora=lora, parallel=Parallelism(tp=tp)))


def _offline(shared: Path) -> list[PartRow]:
    """1,000 prompts of ShareGPT at once, with one adapter of rank 8 over without."""
    rows = [row for row in published(shared, "lora") if row["source"] == "vllm-project/vllm#11267"]
    rates = {row["max_loras"]: float(row["value"]) for row in rows if row["quantity"] == "request_throughput"}
    found = []
    for slots in (1, 4):
        predicted = _rate(LoraAsked(rank=8, slots=slots)) / _rate(LoraAsked())
        case = f"vLLM V0, Llama 2 7B, A100, ShareGPT, max_loras {slots}: with over without"
        measured = rates[str(slots)] / rates[""]
        found.append(PartRow(source="vllm 11267", case=case, measured=measured, predicted=predicted, unit="throughput"))
    return found


def _rate(lora: LoraAsked) -> float:
    load = Traffic(
        arrivals=ClosedLoop(concurrency=1000),
        requests_count=1000,
        prompt=SHAREGPT[0],
        output=SHAREGPT[1],
        adapters=Popularity(count=1, skew=0.0) if lora.any else None,
    )
    options = Options(lora_bandwidth=20e9) if lora.any else Options()
    return simulate(_deploy("llama-2-7b", "a100-80gb-sxm", lora, "vllm@0.6.4"), load, options=options).request_rate


class _Step(NamedTuple):
    """A decode step of so many sequences behind so many tokens, and how many times as fast it was without adapters."""

    source: str
    case: str
    measured: float
    model: str
    gpu: str
    engine: str = "vllm"
    tp: int = 1
    batch: float = 1.0
    past: float = 128.0
    rank: int = 16

    @property
    def ratio(self) -> float:
        """Seconds without adapters over those with one."""
        step = decode(self.batch, self.past, self.past)
        asked = (LoraAsked(), LoraAsked(rank=self.rank))
        none, one = (run_step(_deploy(self.model, self.gpu, lora, self.engine, self.tp), step).time for lora in asked)
        return float(none) / float(one)


STEPS = (
    _Step(
        "vllm 25914",
        "vLLM V1, Llama 2 7B, 8 sequences; GPU not said, 6.6 ms a step: H100",
        1 / 1.105,
        "llama-2-7b",
        "h100-sxm",
        batch=8.0,
        past=96.0,
    ),
    _Step(
        "vllm 10898",
        "vLLM V0, Llama 2 7B, 8 x A100, one sequence",
        15.0 / 23.0,
        "llama-2-7b",
        "a100-80gb-sxm",
        engine="vllm@0.6.4",
        tp=8,
        past=1500.0,
    ),
    _Step(
        "lorax 333",
        "LoRAX (priced as vLLM), Mistral 7B, L40S, one request at a time",
        35.0 / 69.0,
        "mistral-7b-v0.1",
        "l40s",
        past=460.0,
    ),
)
"""Of issues and pull requests that name seconds with one adapter and without. Ranks that are not told are 16."""


def _steps(shared: Path) -> list[PartRow]:
    """Decode steps with one adapter over those without."""
    rows = [row for row in published(shared, "lora") if row["source"] == "sgl-project/sglang#4274"]
    speeds = {(row["tp"], row["lora_enabled"]): float(row["value"]) for row in rows}
    cards = [
        _Step(
            "sglang 4274",
            f"SGLang (priced as vLLM), 7B, {tp} x RTX 3090, one sequence",
            speeds[tp, "True"] / speeds[tp, "False"],
            "llama-2-7b",
            "rtx-3090",
            tp=int(tp),
        )
        for tp in ("1", "2", "4")
    ]
    return [
        PartRow(
            source=step.source,
            case=f"{step.case}: with over without",
            measured=step.measured,
            predicted=step.ratio,
            unit="speed",
        )
        for step in (*cards, *STEPS)
    ]


def _many(shared: Path) -> list[PartRow]:
    """Saturated runs of S-LoRA: throughput with many adapters over that with one."""
    rows = [row for row in published(shared, "lora") if row["source"].endswith(("_S2_slora.jsonl", "_S4_slora.jsonl"))]
    runs: dict[tuple[str, int, str], dict[str, float]] = {}
    for row in rows:
        if row["gpu"] == "A100-80GB":
            key = (row["model"], int(row["adapters_total"]), row["rank"])
            runs.setdefault(key, {})[row["quantity"]] = float(row["value"])
    found = []
    for (model, count, ranks), run in runs.items():
        if count <= 1:
            continue
        first = runs[model, 1, ranks]
        sequences = run["request_throughput"] * (run["mean_e2e_latency"] - run["mean_first_token_latency"])
        rank = round(sum(int(one) for one in ranks.split(",")) / len(ranks.split(",")))
        different = float(Popularity(count=count, skew=1.0).different(sequences))
        deployed = [
            _deploy({"7": "llama-2-7b", "1": "llama-2-13b"}[model[-2].replace("3", "1")], "a100-80gb-sxm", lora, "vllm")
            for lora in (LoraAsked(rank=rank), LoraAsked(rank=rank, slots=count, active=max(round(different), 1)))
        ]
        one, many = (float(run_step(each, decode(sequences, 388.0, 388.0)).time) for each in deployed)
        case = f"S-LoRA, {model.partition('/')[2]}, A100, {count} adapters over one"
        measured = run["request_throughput"] / first["request_throughput"]
        found.append(PartRow(source="S-LoRA", case=case, measured=measured, predicted=one / many, unit="throughput"))
    return found
