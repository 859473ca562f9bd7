"""The command of vLLM (flags: ``config/{cache,parallel,speculative}.py``, ``engine/arg_utils.py``)."""

from __future__ import annotations

import json

from inferplan.answers.emit.replica import Launch, kv_dtype, online_format, refuse_degrees, repository, slots_per_rank
from inferplan.errors import UsageError


def vllm(launch: Launch) -> list[str]:
    """``vllm serve``. Raises ``UsageError`` for context parallelism and for experts over some of the ranks."""
    parallel = launch.deployment.parallel
    refuse_degrees(launch, cp="vLLM's context parallelism is not modelled flag by flag; leave --cp at 1")
    if parallel.ep not in (1, parallel.tp * parallel.dp):
        raise UsageError("vLLM spreads experts over all ranks or none", hint=f"--ep {parallel.tp * parallel.dp}, or 1")
    flags = ["vllm", "serve", launch.checkpoint]
    flags += [] if parallel.tp == 1 else ["--tensor-parallel-size", str(parallel.tp)]
    flags += [] if parallel.pp == 1 else ["--pipeline-parallel-size", str(parallel.pp)]
    flags += [] if parallel.dp == 1 else ["--data-parallel-size", str(parallel.dp)]
    flags += [] if parallel.ep == 1 else ["--enable-expert-parallel"]
    flags += ["--max-model-len", str(launch.context), "--max-num-seqs", str(slots_per_rank(launch))]
    flags += ["--max-num-batched-tokens", str(launch.token_budget)]
    flags += ["--gpu-memory-utilization", f"{launch.fraction:g}"]
    flags += ["--kv-cache-dtype", kv_dtype(launch, {"fp8": "fp8", "nvfp4": "nvfp4"})]
    online = online_format(launch)
    flags += ["--quantization", online] if online else []
    return flags + _drafts(launch)


def _drafts(launch: Launch) -> list[str]:
    speculation, parallel = launch.speculation, launch.deployment.parallel
    if not speculation.length:
        return []
    if speculation.draft is None or speculation.branches > 1:
        raise UsageError(
            "vLLM drafts from a model, one candidate at each depth, as modelled here",
            hint="--draft-model NAME with --draft-branches 1",
        )
    config = {
        "method": "draft_model",
        "model": repository(speculation.draft),
        "num_speculative_tokens": speculation.length,
        "draft_tensor_parallel_size": parallel.tp,
    }
    return ["--speculative-config", json.dumps(config)]
