"""The command of vLLM (flags: ``engine/arg_utils.py``; tests/planning/test_emit_flags.py cites each by line)."""

from __future__ import annotations

import json

from inferplan.answers.emit.checkpoint import checkpoint, draft_checkpoint, online
from inferplan.answers.emit.replica import Launch, dtype, head_of, kv_dtype, refuse_degrees
from inferplan.errors import UsageError
from inferplan.models.prediction import MTP
from inferplan.work.adapters import MODULES

TAKES = frozenset(
    {f"parallel.{degree}" for degree in ("tp", "pp", "dp", "ep", "cp")}
    | {"parallel.redundant", "flags.memory_fraction", "flags.block_size", "flags.two_batch_overlap"}
    | {"flags.prefill_schedule_interval"}
    | {"offload.cpu_offload_gb", "model.yarn"}
    | {f"lora.{field}" for field in ("rank", "modules", "slots", "folder")}
    | {f"speculation.{field}" for field in ("length", "branches", "draft", "first", "later", "block")}
)
PORT = 8000
SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_HOST"
"""The address at which the other servers of the pools reach this one's cache (``vllm/envs.py``)."""
ROUTER = "vllm-router 0.1.17"
_HEADS = ("eagle", "eagle3", "dflash", "dspark")
"""``method`` of heads in checkpoints of their own (``config/speculative.py:74``)."""


def vllm(launch: Launch) -> list[str]:
    """``vllm serve``. Raises ``UsageError`` for context parallelism and for experts over some of the ranks.

    ``--max-num-seqs`` and ``--max-num-batched-tokens`` are of one data-parallel rank (``config/scheduler.py:99``).
    It refuses more sequences than tokens (``config/scheduler.py:331``), and lowers its own default to them.
    """
    parallel, asked = launch.deployment.parallel, launch.request.flags
    sequences = launch.sequences if asked.max_sequences else min(launch.sequences, launch.token_budget)
    if sequences > launch.token_budget:
        raise UsageError(
            f"vLLM does not start with {sequences} sequences and {launch.token_budget} tokens in a step",
            hint=f"--max-num-batched-tokens {sequences} or more",
        )
    refuse_degrees(launch, cp="vLLM's context parallelism is not modelled flag by flag; leave --cp at 1")
    if parallel.ep not in (1, parallel.tp * parallel.dp):
        raise UsageError("vLLM spreads experts over all ranks or none", hint=f"--ep {parallel.tp * parallel.dp}, or 1")
    flags = ["vllm", "serve", checkpoint(launch)]
    flags += [] if parallel.tp == 1 else ["--tensor-parallel-size", str(parallel.tp)]
    flags += [] if parallel.pp == 1 else ["--pipeline-parallel-size", str(parallel.pp)]
    flags += [] if parallel.dp == 1 else ["--data-parallel-size", str(parallel.dp)]
    flags += [] if parallel.ep == 1 else ["--enable-expert-parallel"]
    if parallel.dp > 1 and parallel.ep > 1:  # one of the two modes that are priced; --enable-dbo starts with no other
        kernels = "deepep_high_throughput" if launch.role == "prefill" else "deepep_low_latency"
        flags += ["--all2all-backend", kernels]
    if parallel.redundant:
        flags += ["--enable-eplb", "--eplb-config", json.dumps({"num_redundant_experts": parallel.redundant})]
    flags += ["--enable-dbo"] if asked.two_batch_overlap else []
    interval = asked.prefill_schedule_interval
    flags += [] if interval is None else ["--prefill-schedule-interval", str(interval)]
    if (yarn := launch.yarn) is not None:  # docs.vllm.ai, "Context Extension"; the table replaces that of the config
        flags += ["--hf-overrides", json.dumps({"rope_parameters": yarn.rope | {"rope_theta": yarn.theta}})]
    flags += [] if launch.context is None else ["--max-model-len", str(launch.context)]
    flags += ["--max-num-seqs", str(sequences), "--max-num-batched-tokens", str(launch.token_budget)]
    flags += ["--scheduling-policy", "priority"] if launch.queue == "priority" else []
    flags += ["--gpu-memory-utilization", f"{launch.fraction:g}"]
    away = launch.request.offload.cpu_offload_gb
    flags += ["--cpu-offload-gb", f"{away:g}"] if away else []
    flags += [] if asked.block_size is None else ["--block-size", str(asked.block_size)]
    if not launch.deployment.model.encodes:  # by its class vLLM takes the runner that pools, which keeps no cache
        flags += ["--kv-cache-dtype", kv_dtype(launch)]
    made, base = online(launch), dtype(launch)
    flags += ["--quantization", made] if made and not launch.holds else []
    flags += ["--dtype", base] if base else []
    flags += _adapters(launch) + _drafts(launch)
    if launch.role:
        role = {"prefill": "kv_producer", "decode": "kv_consumer"}[launch.role]
        flags += ["--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": role})]
    return flags


def vllm_router(prefill: list[str], decode: list[str]) -> list[str]:
    """The router in front of the pools: :data:`ROUTER`, its README's "Prefill-Decode Disaggregation"."""
    words = ["vllm-router", "--vllm-pd-disaggregation", "--kv-connector", "nixl"]
    words += [word for url in prefill for word in ("--prefill", url)]
    words += [word for url in decode for word in ("--decode", url)]
    return [*words, "--host", "0.0.0.0", "--port", str(PORT)]


_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""``MaxLoRARanks`` (``config/lora.py:26`` of 0.20.2)."""


def _adapters(launch: Launch) -> list[str]:
    """Slots of LoRA adapters, for the matrices modelled alone: vLLM's default are embedding and head too.

    Raises ``UsageError`` for a rank that vLLM has no slots of, and for some matrices in a version without the flag.
    """
    lora = launch.deployment.lora
    if lora is None:
        return []
    if lora.rank not in _RANKS:
        larger = min((rank for rank in _RANKS if rank >= lora.rank), default=_RANKS[-1])
        raise UsageError(f"vLLM has no slots of rank {lora.rank}", hint=f"--lora-rank {larger}")
    flags = ["--enable-lora", "--max-loras", str(lora.slots), "--max-lora-rank", str(lora.rank)]
    if launch.deployment.engine.defaults.version == "0.18":
        if launch.request.lora.modules or lora.stored is not None:
            raise UsageError("vLLM 0.18 cannot choose matrices for adapters", hint="--engine vllm@0.20")
        return flags
    return [*flags, "--lora-target-modules", *(long for short, long in MODULES.items() if short in lora.modules)]


def _drafts(launch: Launch) -> list[str]:
    """Drafts of a model, of the model's own prediction module, or without a model: n-grams of the prompt."""
    speculation, parallel = launch.drafts.speculation, launch.deployment.parallel
    if not speculation.length:
        return []
    if speculation.branches > 1:
        raise UsageError("vLLM drafts one candidate at each depth, as modelled here", hint="--draft-branches 1")
    config: dict[str, str | int] = {"method": "ngram", "num_speculative_tokens": speculation.length}
    head = head_of(launch)
    if head == MTP:
        config["method"] = "mtp"  # of the model's own checkpoint and quantisation: config/speculative.py:1253
    elif head is not None:
        if head not in _HEADS:
            raise UsageError(f"vLLM has no method {head!r} of drafting", hint=f"a head named {', '.join(_HEADS)}")
        config |= {"method": head, "model": draft_checkpoint(launch), "draft_tensor_parallel_size": parallel.tp}
    elif speculation.draft is not None:
        config |= {
            "method": "draft_model",
            "model": draft_checkpoint(launch),
            "draft_tensor_parallel_size": parallel.tp,
        }
        made = online(launch, speculation.draft)
        if made and not launch.holds:
            config["quantization"] = made
    return ["--speculative-config", json.dumps(config)]
