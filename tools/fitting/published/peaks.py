"""Published maximum throughput of TensorRT-LLM 0.17, as its benchmark made it: rows, requests and flags.

The tables are those of docs/source/performance/perf-overview.md (258c754): all requests at once, output tokens a second
of all devices. ``trtllm-bench build`` chose the largest batch and the token budget from the lengths
(tensorrt_llm/bench/build/tuning.py), ``throughput`` cut prompts and reused no cache
(bench/dataclasses/configuration.py), and the share of the free memory that holds the cache was 0.95 (perf-overview.md).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from inferplan.serving.flags import Flags
from inferplan.traffic.requests import Traffic
from inferplan.validation.deploy import deployment_of
from inferplan.validation.rows import Run
from tools.fitting.published.batches import batch_traffic, run_of

FRACTION = 0.95
REQUESTS = {
    (128, 128): 30000,
    (128, 2048): 3000,
    (128, 4096): 1500,
    (500, 2000): 3000,
    (1000, 1000): 3000,
    (2048, 128): 3000,
    (2048, 2048): 1500,
    (5000, 500): 1500,
    (20000, 2000): 1000,
}
"""Requests of each (prompt, output), of the same page."""
_MODELS = {"Mistral-7B": "mistral-7b-v0.3"}
"""Mistral 7B without the window of its first release, with which prompts of 20,000 tokens would run twice as fast."""
_GIB = 2.0**30


@dataclass(frozen=True, kw_only=True)
class Peak:
    """A row: what was run, and output tokens a second of all devices."""

    run: Run
    rate: float

    @property
    def requests(self) -> int:
        """How many were sent, all at once."""
        return REQUESTS[int(self.run.prompt), int(self.run.output)]

    @property
    def seconds(self) -> float:
        """How long they took."""
        return self.requests * self.run.output / self.rate

    @property
    def over_pcie(self) -> bool:
        """Whether devices exchange sums over PCIe, whose speed is that of the host that they stand in."""
        return self.run.gpu == "l40s" and self.run.tp > 1

    def traffic(self) -> Traffic:
        """All requests at once."""
        return batch_traffic(self.run)

    def flags(self) -> Flags:
        """What the benchmark chose."""
        deployment, _ = deployment_of(self.run)
        model, precision = deployment.model, deployment.precision
        cached = model.kv_elements_per_token * precision.kv.bits / 8 / _GIB
        weights = model.parameters["total"] * precision.weights.bits / 8 / 1e9  # counted in 10^9, memory in 2^30
        room = deployment.hardware.usable / _GIB * self.run.tp - weights
        batch, tokens = tuned(room * FRACTION / cached, self.run.prompt, self.run.output)
        return Flags(
            max_num_seqs=batch,
            max_num_batched_tokens=tokens,
            gpu_memory_utilization=FRACTION,
            chunked_prefill=True,
            prefix_caching=False,
        )


def tuned(tokens: float, prompt: float, output: float) -> tuple[int, int]:
    """Largest batch and token budget that ``trtllm-bench build`` chooses for a cache of ``tokens`` (tuning.py)."""
    batch = min(tokens / (prompt + output), 4096.0)
    budget = min(batch * (1 + prompt / output), 32768.0)
    largest = _up(batch, ((256, 32), (1024, 128)), 256, least=64)
    return largest, _up(budget, ((4096, 256), (8192, 512)), 1024, least=2048)


def _up(value: float, steps: Sequence[tuple[int, int]], last: int, least: int) -> int:
    """``value`` rounded up to a multiple: of the first step whose bound is above it, else of ``last``."""
    step = next((step for bound, step in steps if value < bound), last)
    return max(least, step * ceil(value / step))


def read_peaks(path: Path) -> list[Peak]:
    """The rows of ``truths.csv`` that come from those tables."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["id"].startswith("TRT17-")]
    return [Peak(run=_run(row), rate=float(row["value"])) for row in rows]


def _run(row: dict[str, str]) -> Run:
    users = REQUESTS[int(row["isl"]), int(float(row["osl"]))]
    run = run_of(row, "trtllm", concurrency=users)
    return replace(run, model=_MODELS.get(row["model"], run.model))
