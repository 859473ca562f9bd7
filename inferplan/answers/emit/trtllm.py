"""The command of TensorRT-LLM, and the file for what has no flag (``commands/serve.py``, ``llm_args.py``)."""

from __future__ import annotations

from typing import Any

from inferplan.answers.emit.replica import Launch, kv_dtype, refuse_degrees, slots_per_rank
from inferplan.errors import UsageError


def trtllm_config(launch: Launch) -> dict[str, Any]:
    """What TensorRT-LLM takes from a file only."""
    config: dict[str, Any] = {}
    kv = kv_dtype(launch, {"fp8": "fp8"})
    if kv != "auto":
        config["kv_cache_config"] = {"dtype": kv, "free_gpu_memory_fraction": launch.fraction}
    if launch.deployment.parallel.dp > 1:
        config["enable_attention_dp"] = True
    return config


def trtllm(launch: Launch) -> list[str]:
    """``trtllm-serve``. Raises ``UsageError`` for context parallelism, and where a file is needed and none is named."""
    parallel = launch.deployment.parallel
    refuse_degrees(launch, cp="leave --cp at 1")
    config = trtllm_config(launch)
    if config and launch.extra is None:
        raise UsageError(
            f"TensorRT-LLM takes {', '.join(config)} from a file only",
            hint="--extra trtllm.yaml, which is then written",
        )
    ranks = parallel.tp * parallel.dp
    flags = ["trtllm-serve", launch.checkpoint, "--tp_size", str(ranks)]
    flags += [] if parallel.pp == 1 else ["--pp_size", str(parallel.pp)]
    flags += [] if parallel.ep == 1 else ["--ep_size", str(parallel.ep)]
    flags += ["--max_seq_len", str(launch.context), "--max_batch_size", str(slots_per_rank(launch))]
    flags += ["--max_num_tokens", str(launch.token_budget)]
    flags += ["--kv_cache_free_gpu_memory_fraction", f"{launch.fraction:g}"]
    return flags + (["--config", launch.extra] if config and launch.extra else [])
