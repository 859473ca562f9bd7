"""The command of TensorRT-LLM, and the files for what has no flag (``commands/serve.py``, ``llmapi/llm_args.py``)."""

from __future__ import annotations

from typing import Any

from inferplan.answers.emit.checkpoint import checkpoint
from inferplan.answers.emit.replica import Launch, dtype, head_of, kv_dtype, refuse_degrees
from inferplan.errors import UsageError
from inferplan.models.prediction import MTP

TAKES = frozenset(
    {f"parallel.{degree}" for degree in ("tp", "pp", "dp", "ep", "cp")}
    | {"flags.memory_fraction", "flags.block_size"}
    | {f"speculation.{field}" for field in ("length", "branches", "draft", "first", "later", "block")}
)
PORT = 8000
ROUTER = "trtllm-serve disaggregated"


def trtllm_config(launch: Launch) -> dict[str, Any]:
    """What TensorRT-LLM takes from a file only. A server of a pool sends or receives the cache
    (``cache_transceiver_config``); one that computes prompts cannot overlap its scheduler with that
    (``examples/disaggregated/README.md``)."""
    config: dict[str, Any] = {}
    kv, block, base = kv_dtype(launch), launch.request.flags.block_size, dtype(launch)
    cache: dict[str, Any] = {} if kv == "auto" else {"dtype": kv}
    cache |= {"tokens_per_block": block} if block is not None else {}
    if cache:
        config["kv_cache_config"] = {**cache, "free_gpu_memory_fraction": launch.fraction}
    if launch.deployment.parallel.dp > 1:
        config["enable_attention_dp"] = True
    if base:
        config["dtype"] = base
    if launch.drafts.speculation.length:
        config["speculative_config"] = _drafts(launch)
    if launch.role:
        config["cache_transceiver_config"] = {"backend": "DEFAULT"}
    if launch.role == "prefill":
        config["disable_overlap_scheduler"] = True
    return config


def _drafts(launch: Launch) -> dict[str, Any]:
    """``MTPDecodingConfig``: the model's own module, one candidate at each depth (the "MTP Eagle" of its blog)."""
    speculation = launch.drafts.speculation
    if head_of(launch) != MTP or speculation.branches > 1:
        raise UsageError(
            "TensorRT-LLM drafts from the model's own prediction module, as modelled here",
            hint="--draft mtp with --draft-branches 1, or --engine vllm",
        )
    return {"decoding_type": "MTP", "num_nextn_predict_layers": speculation.length}


def trtllm(launch: Launch) -> list[str]:
    """``trtllm-serve``. Raises ``UsageError`` for context parallelism, and where a file is needed and none is named."""
    parallel = launch.deployment.parallel
    if launch.deployment.hardware.vendor != "NVIDIA":
        raise UsageError(
            f"TensorRT-LLM runs on NVIDIA devices, not on {launch.deployment.hardware.name}", hint="--engine vllm"
        )
    refuse_degrees(launch, cp="leave --cp at 1")
    config = trtllm_config(launch)
    if config and launch.extra is None:
        raise UsageError(
            f"TensorRT-LLM takes {', '.join(config)} from a file only",
            hint="--extra trtllm.yaml, which is then written",
        )
    ranks = parallel.tp * parallel.dp
    flags = ["trtllm-serve", checkpoint(launch), "--tp_size", str(ranks)]
    flags += [] if parallel.pp == 1 else ["--pp_size", str(parallel.pp)]
    flags += [] if parallel.ep == 1 else ["--ep_size", str(parallel.ep)]
    flags += [] if launch.context is None else ["--max_seq_len", str(launch.context)]
    flags += ["--max_batch_size", str(launch.sequences), "--max_num_tokens", str(launch.token_budget)]
    flags += ["--kv_cache_free_gpu_memory_fraction", f"{launch.fraction:g}"]
    return flags + (["--extra_llm_api_options", launch.extra] if config and launch.extra else [])


def slurm(nodes: int, each: int) -> list[str]:
    """What starts a server over several nodes: a process for each of its devices in one MPI world, of which the first
    serves (``examples/llm-api/llm_mgmn_trtllm_serve.sh`` at 0bd8871). Weights lie in a folder that all nodes see."""
    ranks = ["--nodes", str(nodes), "--ntasks", str(nodes * each), "--ntasks-per-node", str(each)]
    return ["srun", *ranks, "--mpi=pmix", "trtllm-llmapi-launch"]


def trtllm_router_config(prefill: list[str], decode: list[str]) -> dict[str, Any]:
    """The file of ``trtllm-serve disaggregated -c``: where the servers of both pools are, as ``host:port``."""
    pools = {"context_servers": prefill, "generation_servers": decode}
    servers = {name: {"num_instances": len(urls), "urls": urls} for name, urls in pools.items()}
    return {"hostname": "0.0.0.0", "port": PORT, "backend": "pytorch", **servers}
