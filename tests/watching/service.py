"""A service of known behaviour: two vLLM servers by a page of arithmetic, and what they would count.

A step reads the weights (16.06 GB) and the cache of what decodes (131 kB a token of Llama-3.1-8B) at 2.6 TB/s, and
takes 1 ms on the host; prompts take 16 GFLOP a token that is not cached at 600 TFLOP/s, in which nobody decodes.
Nothing of inferplan is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

WEIGHTS, TOKEN, BANDWIDTH, HOST = 16.06e9, 131_072.0, 2.6e12, 1e-3
FLOP, RATE = 16.06e9, 600e12
EDGES = {
    "vllm:time_to_first_token_seconds": (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5),
    "vllm:inter_token_latency_seconds": (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    "vllm:request_time_per_output_token_seconds": (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 1.0),
    "vllm:e2e_request_latency_seconds": (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0),
}  # fmt: skip
"""The edges of vLLM's histograms (``vllm/v1/metrics/loggers.py``)."""


@dataclass(frozen=True)
class Does:
    """What a server has to do and how: requests a second, mean tokens, share of them that is cached, times as slow."""

    rate: float = 10.0
    prompt: float = 1000.0
    output: float = 200.0
    hits: float = 0.5
    slow: float = 1.0

    @property
    def gap(self) -> float:
        """Seconds between tokens: the fixed point of batch and step."""
        busy, gap = min(self.rate * self.prompt_seconds, 0.95), 0.01
        for _ in range(100):
            batch = self.rate * self.output * gap
            read = WEIGHTS + batch * (self.prompt + self.output / 2) * TOKEN
            gap = self.slow * (read / BANDWIDTH + HOST) / (1 - busy)
        return gap

    @property
    def prompt_seconds(self) -> float:
        return self.slow * self.prompt * (1 - self.hits) * FLOP / RATE

    @property
    def ttft(self) -> float:
        """A prompt, the step before it, and the queue of a server with a fixed time of service (M/D/1)."""
        busy = min(self.rate * self.prompt_seconds, 0.95)
        return self.prompt_seconds * (1 + busy / (2 * (1 - busy))) + self.gap + 0.02


@dataclass
class Server:
    """What one server has counted."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    within: dict[str, Any] = field(default_factory=dict)
    running: float = 0.0

    def work(self, does: Does, seconds: float, draw: np.random.Generator) -> None:
        """Serve for a while."""
        number = int(draw.poisson(does.rate * seconds))
        prompts = draw.lognormal(np.log(does.prompt) - 0.18, 0.6, number)  # standard deviation over mean 0.66
        outputs = np.maximum(draw.exponential(does.output, number), 1.0)
        ttft = does.ttft * draw.gamma(4.0, 0.25, number)
        gaps = does.gap * np.exp(draw.normal(-0.00125, 0.05, number))
        self._add("vllm:time_to_first_token_seconds", ttft)
        self._add("vllm:request_time_per_output_token_seconds", gaps)
        self._add("vllm:e2e_request_latency_seconds", ttft + outputs * gaps)
        self._add("vllm:inter_token_latency_seconds", gaps, outputs)
        for name, value in {
            "vllm:prompt_tokens_total": prompts.sum(),
            "vllm:request_generation_tokens_sum": outputs.sum(),
            "vllm:request_success_total": number,
            "vllm:prefix_cache_hits_total": (prompts * does.hits).sum(),
        }.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)
        self.running = does.rate * does.output * does.gap

    def _add(self, name: str, values: Any, weights: Any = None) -> None:
        weights = np.ones(len(values)) if weights is None else weights
        self.counts[name] = self.counts.get(name, 0.0) + float(weights.sum())
        self.sums[f"{name}_sum"] = self.sums.get(f"{name}_sum", 0.0) + float((values * weights).sum())
        found = np.array([weights[values <= edge].sum() for edge in EDGES[name]])
        self.within[name] = self.within.get(name, 0.0) + found

    def metrics(self) -> str:
        """The text at ``/metrics``."""
        labels = 'engine="0",model_name="llama"'
        lines = ["# TYPE vllm:num_requests_running gauge"]
        gauges = {
            "vllm:num_requests_running": round(self.running),
            "vllm:num_requests_waiting": 0,
            "vllm:kv_cache_usage_perc": self.running * 1100 / 426_052,
        }
        lines += [f"{name}{{{labels}}} {value}" for name, value in {**gauges, **self.sums}.items()]
        for name, count in self.counts.items():
            edges = zip(EDGES[name], self.within[name])
            lines += [f'{name}_bucket{{{labels},le="{edge}"}} {most}' for edge, most in edges]
            lines += [f'{name}_bucket{{{labels},le="+Inf"}} {count}', f"{name}_count{{{labels}}} {count}"]
        return "\n".join(lines) + "\n"


@dataclass
class Service:
    """Servers that share a load. changes: at which minute something is different from then on; lost: minutes between
    which the last server does not answer, and the others have its load."""

    servers: int = 2
    load: Does = field(default_factory=lambda: Does(rate=20.0))
    changes: dict[int, Does] = field(default_factory=dict)
    lost: tuple[int, int] = (1 << 30, 1 << 30)
    seed: int = 0

    def scrapes(self, minutes: int, every: float = 20.0) -> Any:
        """``(seconds, text of each server, None where it does not answer)``, one after another."""
        draw, fleet = np.random.default_rng(self.seed), [Server() for _ in range(self.servers)]
        load, times = self.load, [index * every for index in range(int(minutes * 60 / every) + 1)]
        yield 0.0, [one.metrics() for one in fleet]
        for before, now in pairwise(times):
            load = self.changes.get(round(before / 60), load) if before % 60 == 0 else load
            gone = self.lost[0] <= before / 60 < self.lost[1]
            there = fleet[: self.servers - gone]
            if before / 60 == self.lost[1]:
                fleet[-1] = Server()  # it restarted
            for one in there:
                one.work(replace(load, rate=load.rate / len(there)), now - before, draw)
            yield now, [one.metrics() if one in there else None for one in fleet]
