"""A deployment whose steps can be timed in the head: one second a step and a tenth for each token in it.

The host takes the second. All arithmetic is in square matrices, and the device is so fast at moving bytes that only
FLOP take time; attention is one head of one channel, for the sake of a cache of 4 bytes a token. What this leaves out
(attention, the head) is less than 1e-4 of a step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from inferplan.devices.constants import Calibration, StepConstants
from inferplan.devices.engine import Batching, Engine, EngineVersion, MemoryTier, SchedulerDefaults, ServingConstants
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.memory import Footprint
from inferplan.models.spec import ModelSpec
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import Requests
from inferplan.work.formats import uniform
from inferplan.work.parallel import Parallelism
from tests.builders import SOURCE, chip

HOST, EACH = 1.0, 0.1
"""Seconds of a step, and of a token in it."""
KV_BYTES = 4
WIDTH, LAYERS = 1024, 64
CLOSE = 2e-4


def seconds(*tokens: float) -> float:
    """Steps one after another, each of so many tokens."""
    return sum(HOST + EACH * count for count in tokens)


def model() -> ModelSpec:
    matrix: dict[str, Any] = {"kind": "linear"}
    attention = {"kind": "attention", "heads": 1, "kv_heads": 1, "head_dim": 1, "rotary": False}
    layers = [{"mixer": attention, "ffn": matrix}, {"repeat": LAYERS, "mixer": matrix, "ffn": matrix}]
    return ModelSpec.model_validate(
        {"name": "plain", "source": SOURCE, "norm": "plain", "d_model": WIDTH, "vocab": 1, "layers": layers}
    )


BATCHING = {
    "vllm": Batching(mixed=True),
    "sglang": Batching(lanes_share_slots=True),
    "trtllm": Batching(mixed=True, pieces_apart=True, holds_prompts_for_ranks=True),
    "static": Batching(),
}
"""How the engines of each policy fill their steps (docs/serving.md)."""


def plain(
    capacity: int = 1 << 20,
    policy: str = "vllm",
    slots: int = 64,
    budget: int = 4096,
    parallel: Parallelism | None = None,
    serving: dict[str, Any] | None = None,
    **scheduler: Any,
) -> Deployment:
    """The deployment with a cache of ``capacity`` tokens in blocks of one.

    ``serving`` and ``scheduler`` set fields of the engine's serving constants and of its scheduler.
    """
    peak = 2.0 * (2 * LAYERS + 1) * WIDTH * WIDTH / EACH
    tier = MemoryTier(memory_at_least="0 B", token_budget=budget, max_sequences=slots)
    version = EngineVersion(
        version="1",
        source=SOURCE,
        kv_rule="all",
        block_size=1,
        tiers=[tier],
        scheduler=SchedulerDefaults(source=SOURCE, **scheduler),
    )
    made = Deployment(
        model=model(),
        hardware=chip(1e22, peak, usable=1e12, link=1e22),
        precision=uniform(),
        parallel=parallel or Parallelism(),
        engine=Engine(
            name="plain",
            policy=policy,
            batching=BATCHING[policy],
            defaults=version,
            serving=ServingConstants(**serving or {}),
        ),
        calibration=Calibration(name="plain", constants={}, step=StepConstants(host=HOST), fused=True),
    )
    spare = Footprint(deployment=made, batch=1.0, prompt=1.0, context=1.0).kv_pool
    memory = made.hardware.memory.model_copy(update={"usable": 1e12 - spare + KV_BYTES * capacity})
    return replace(made, hardware=made.hardware.model_copy(update={"memory": memory}))


def requests(*rows: tuple[float, int, int], **more: Any) -> Requests:
    """Rows of (arrival, prompt, output)."""
    arrival, prompt, output = zip(*rows)
    return Requests(prompt=np.array(prompt), output=np.array(output), arrival=np.array(arrival, dtype=float), **more)


def served(deployment: Deployment, sent: Requests, **options: Any) -> tuple[list[float], list[float]]:
    """Seconds at which each request's first and last token was seen."""
    run = simulate(deployment, sent, options=Options(**options))
    return list(run.records.first), list(run.records.finish)
