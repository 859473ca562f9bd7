"""A server that records its steps: a loop of an engine of its own, timed by the simulator's tables.

Users of a closed loop: each request is a prompt, then so many tokens. ``mixed`` engines (vLLM) compute the prompts that
wait in the same step as the decodes, others (SGLang) before them. What the steps took is written as engines write it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from inferplan.estimate.deployment import Deployment
from inferplan.serving.step_times import Chunk, Reach, StepTimes, step_times

MOST, LONGEST = 160, 9000


class Recorded(NamedTuple):
    """A step: new tokens of each prompt, tokens behind each sequence that decodes, and seconds."""

    prompts: list[int]
    behind: list[int]
    seconds: float


class Users(NamedTuple):
    """A load: how many at once, tokens of a prompt and of an answer, drawn from half to one and a half of it."""

    number: int
    prompt: int
    output: int


def tables(deployment: Deployment) -> StepTimes:
    """The simulator's own step times."""
    return step_times(deployment, Reach(sequences=MOST, tokens=LONGEST, context=LONGEST))


def served(times: StepTimes, users: Users, steps: int, mixed: bool, seed: int, noise: float) -> Iterator[Recorded]:
    """So many steps under a load; each time is off by a log-normal ``noise``."""
    draw = np.random.default_rng(seed)

    def drawn(mean: int) -> int:
        return int(draw.integers(mean // 2, mean + mean // 2 + 1))

    running: list[list[int]] = []  # tokens behind it, and tokens to come
    for _ in range(steps):
        lacking = users.number - len(running)
        coming = [drawn(users.prompt) for _ in range(min(lacking, 2))]
        decoding = running if mixed or not coming else []
        behind = [one[0] for one in decoding]
        context = float(np.mean(behind)) if behind else 0.0
        pairs = sum(one * (one + 1) / 2 for one in coming)
        chunk = Chunk(len(coming), float(sum(coming)), pairs)
        seconds = times.mixed(len(behind), context, chunk) if coming else times.decode(len(behind), context)
        yield Recorded(coming, behind, float(seconds * np.exp(draw.normal(0.0, noise))))
        for one in decoding:
            one[0] += 1
            one[1] -= 1
        running = [one for one in running if one[1] > 0]
        running += [[one, drawn(users.output)] for one in coming]


def forward_pass_metrics(steps: list[Recorded]) -> str:
    """JSON lines of ai-dynamo's ``ForwardPassMetrics``."""
    lines = []
    for step in steps:
        scheduled = {
            "num_prefill_requests": len(step.prompts),
            "sum_prefill_tokens": sum(step.prompts),
            "var_prefill_length": 0.0,
            "sum_prefill_kv_tokens": 0,
            "num_decode_requests": len(step.behind),
            "sum_decode_kv_tokens": sum(step.behind),
            "var_decode_kv_tokens": 0.0,
        }
        lines.append({"worker_id": "w", "dp_rank": 0, "wall_time": step.seconds, "scheduled_requests": scheduled})
    lines.append({"worker_id": "w", "dp_rank": 0, "wall_time": 0.0, "scheduled_requests": dict.fromkeys(scheduled, 0)})
    return "".join(json.dumps(line) + "\n" for line in lines)


def sglang_log(steps: list[Recorded]) -> str:
    """The lines of SGLang's scheduler (``log_prefill_stats``, ``log_decode_stats``), each 40 decode steps."""
    lines = ["[2026-11-29 10:00:00] server_args=ServerArgs(model_path='own', decode_log_interval=40, tp_size=1)"]
    clock, made, decodes, last = 0.0, 0, 0, 0.0
    running = 0
    for step in steps:
        stamp = f"[2026-11-29 10:{int(clock) // 60:02d}:{int(clock) % 60:02d} TP0]"
        if step.prompts:
            lines.append(
                f"{stamp} Prefill batch, #new-seq: {len(step.prompts)}, #new-token: {sum(step.prompts)}, "
                f"#cached-token: 0, token usage: 0.10, #running-req: {running}, #queue-req: 0, "
            )
        clock += step.seconds
        if step.behind:
            made, decodes, running = made + len(step.behind), decodes + 1, len(step.behind)
            if decodes % 40 == 0:
                lines.append(
                    f"{stamp} Decode batch, #running-req: {len(step.behind)}, #token: {sum(step.behind)}, "
                    f"token usage: 0.10, cuda graph: True, gen throughput (token/s): {made / (clock - last):.2f}, "
                    "#queue-req: 0, "
                )
                made, last = 0, clock
    return "\n".join(lines) + "\n"


def vllm_metrics(steps: list[Recorded], every: int, pool: int = 400_000) -> str:
    """Scrapes of vLLM's ``/metrics`` after ``every`` steps each, of the series that are read and some that are not."""
    counted = dict.fromkeys(("steps", "gaps", "gap_seconds", "prompts", "prompt_tokens", "tokens"), 0.0)
    scrapes = []
    for number, step in enumerate(steps):
        counted["steps"] += 1
        counted["gaps"] += len(step.behind)
        counted["gap_seconds"] += len(step.behind) * step.seconds
        counted["prompts"] += len(step.prompts)
        counted["prompt_tokens"] += sum(step.prompts)
        counted["tokens"] += len(step.behind) + len(step.prompts)
        if number % every == every - 1:
            scrapes.append(_scrape(counted, step, pool))
    return "".join(scrapes)


def _scrape(counted: dict[str, float], step: Recorded, pool: int) -> str:
    series = {
        "vllm:num_requests_running": len(step.behind),
        "vllm:num_requests_waiting": 0.0,
        "vllm:kv_cache_usage_perc": sum(step.behind) / pool,
        "vllm:prompt_tokens_total": counted["prompt_tokens"],
        "vllm:generation_tokens_total": counted["tokens"],
        "vllm:iteration_tokens_total_count": counted["steps"],
        "vllm:iteration_tokens_total_sum": counted["prompt_tokens"] + counted["tokens"],
        "vllm:inter_token_latency_seconds_count": counted["gaps"],
        "vllm:inter_token_latency_seconds_sum": counted["gap_seconds"],
        "vllm:time_to_first_token_seconds_count": counted["prompts"],
    }
    text = "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
    text += "# TYPE vllm:num_requests_running gauge\n"
    text += "".join(f'{name}{{engine="0",model_name="own"}} {value!r}\n' for name, value in series.items())
    return text + f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{pool // 16}"}} 1.0\n'
