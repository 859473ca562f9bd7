"""The command of SGLang (``srt/arg_groups/fields/*.py``; tests/planning/test_emit_flags.py cites each by line), and of
its fork with kt-kernel (kvcache-ai/ktransformers, issue 1608; Kimi-K2-Thinking-Native.md and MiniMax-M2.1-Tutorial.md
of ``doc/en/kt-kernel`` at 15c624d)."""

from __future__ import annotations

import json
from dataclasses import replace

from inferplan.answers.emit.checkpoint import checkpoint, draft_checkpoint, online
from inferplan.answers.emit.replica import Launch, dtype, head_of, kv_dtype, refuse_degrees
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Offload, moe_parts
from inferplan.estimate.formats import native_precision
from inferplan.models.prediction import MTP

TAKES = frozenset(
    {f"parallel.{degree}" for degree in ("tp", "pp", "dp", "ep", "cp")}
    | {
        "model.yarn",
        "parallel.redundant",
        "parallel.spread_dense",
        "flags.memory_fraction",
        "flags.block_size",
        "flags.two_batch_overlap",
        "flags.prefill_decode_interval",
        "flags.enable_prefill_delayer",
        "flags.prefill_delayer_max_delay_passes",
        "flags.backends.experts",
        "flags.backends.attention",
    }
    | {f"speculation.{field}" for field in ("length", "branches", "draft", "first", "later", "block")}
)
TAKES_EXPERTS = TAKES | {"offload.cpu_moe_layers"}
PORT, BOOTSTRAP_PORT = 30000, 8998
ROUTER = "sglang-router 0.3.2"
_GGUF, _NATIVE = "LLAMAFILE", "FP8"
METHODS = {"q4_k": _GGUF, "q8_0": _GGUF, "fp8-block": _NATIVE}
_FOLDER = {_GGUF: "${KT_WEIGHTS:?folder with the GGUF files of the experts}"}
_FOLDER |= {_NATIVE: "${KT_WEIGHTS:?folder of the checkpoint}"}
_HEADS = {MTP: "NEXTN", "eagle": "EAGLE", "eagle3": "EAGLE3"}


def sglang(launch: Launch) -> list[str]:
    """``python -m sglang.launch_server``. Raises ``UsageError`` for context parallelism.

    With attention data parallelism SGLang divides both ``--max-running-requests`` (``moe_hook.py:669``) and
    ``--chunked-prefill-size`` (``parallel_hook.py:331``) by the ranks: both are written for all of them together.
    The sequences are left to it where none were asked for: it derives them from its cache.
    """
    parallel, asked = launch.deployment.parallel, launch.request.flags
    refuse_degrees(launch, cp="SGLang's context parallelism is not modelled flag by flag; leave --cp at 1")
    flags = ["python", "-m", "sglang.launch_server", "--model-path", checkpoint(launch)]
    ranks = parallel.tp * parallel.dp
    flags += [] if ranks == 1 else ["--tp-size", str(ranks)]
    flags += [] if parallel.pp == 1 else ["--pp-size", str(parallel.pp)]
    flags += [] if parallel.dp == 1 else ["--attn-dp-size", str(parallel.dp)]
    flags += [] if parallel.dp == 1 else _own_rank(launch)
    flags += [] if parallel.ep == 1 else ["--ep-size", str(parallel.ep)]
    if parallel.dp > 1 and parallel.ep == ranks:  # as it is priced; without a backend two batches do not start
        modes = {"prefill": "normal", "decode": "low_latency"}
        flags += ["--moe-a2a-backend", "deepep", "--deepep-mode", modes.get(launch.role or "", "auto")]
    if parallel.redundant:
        flags += ["--enable-eplb", "--ep-num-redundant-experts", str(parallel.redundant)]
    flags += ["--enable-two-batch-overlap"] if asked.two_batch_overlap else []
    flags += _cadence(launch)
    for role, name in asked.backends:
        if name.startswith("@"):
            raise UsageError(
                f"--backend {role}={name} is no flag of sglang: a release has the kernels that it has",
                hint=f"--engine sglang{name}, or the name of a kernel",
            )
        flags += [{"experts": "--moe-runner-backend", "attention": "--attention-backend"}[role], name]
    if launch.yarn is not None:  # the model cards of Qwen3, "Processing Long Texts"
        flags += ["--json-model-override-args", json.dumps({"rope_scaling": launch.yarn.rope})]
    flags += [] if launch.context is None else ["--context-length", str(launch.context)]
    if asked.max_sequences is not None:
        flags += ["--max-running-requests", str(launch.sequences * parallel.dp)]
    flags += ["--chunked-prefill-size", str(launch.token_budget * parallel.dp)]
    flags += ["--mem-fraction-static", f"{launch.fraction:g}"]
    flags += [] if asked.block_size is None else ["--page-size", str(asked.block_size)]
    flags += ["--kv-cache-dtype", kv_dtype(launch)]
    made, base = online(launch), dtype(launch)
    flags += ["--quantization", made] if made and not launch.holds else []
    flags += ["--dtype", base] if base else []
    flags += _drafts(launch)
    return flags + (["--disaggregation-mode", launch.role] if launch.role else [])


def _cadence(launch: Launch) -> list[str]:
    """What keeps prompts out of steps; an interval of none is written too, for some models have another default."""
    asked = launch.request.flags
    interval, passes = asked.prefill_decode_interval, asked.prefill_delayer_max_delay_passes
    flags = [] if interval is None else ["--prefill-decode-interval", str(interval)]
    flags += ["--enable-prefill-delayer"] if asked.enable_prefill_delayer else []
    return flags if passes is None else [*flags, "--prefill-delayer-max-delay-passes", str(passes)]


def sglang_router(prefill: list[str], decode: list[str]) -> list[str]:
    """The router in front of the pools: :data:`ROUTER`; decodes find a prompt's server at its bootstrap port."""
    words = ["sglang-router", "launch", "--pd-disaggregation"]
    words += [word for url in prefill for word in ("--prefill", url, str(BOOTSTRAP_PORT))]
    words += [word for url in decode for word in ("--decode", url)]
    return [*words, "--host", "0.0.0.0", "--port", str(PORT)]


def _own_rank(launch: Launch) -> list[str]:
    """The head on the attention rank's own tokens, as it is priced, and dense layers unless they are to be spread.

    ``--moe-dense-tp-size`` takes 1 or all (``validation_hook.py:207``): with several tensor-parallel ranks to an
    attention rank SGLang has dense layers divided over all of them.
    """
    parallel = launch.deployment.parallel
    own = parallel.tp == 1 and not parallel.spread_dense
    return ["--enable-dp-lm-head"] + (["--moe-dense-tp-size", "1"] if own else [])


def _drafts(launch: Launch) -> list[str]:
    """Drafts of a smaller model (STANDALONE), of the model's own module (NEXTN) or head (EAGLE3), one at each depth."""
    speculation = launch.drafts.speculation
    if not speculation.length:
        return []
    head = head_of(launch)
    if head is not None and head not in _HEADS:
        raise UsageError(f"SGLang has no algorithm for {head} drafts that is modelled here", hint="--engine vllm")
    small = head is None
    if speculation.draft is None or speculation.branches > 1 or (launch.deployment.parallel.dp > 1 and small):
        raise UsageError(
            "SGLang drafts from a model, one candidate at each depth, without attention data parallelism",
            because="STANDALONE refuses it (speculative_hook.py:1078), and its n-grams are trees",
            hint="--draft-model NAME with --draft-branches 1 and --dp 1, or --engine vllm",
        )
    flags = ["--speculative-algorithm", _HEADS[head] if head else "STANDALONE"]
    flags += [] if head == MTP else ["--speculative-draft-model-path", draft_checkpoint(launch)]
    flags += ["--speculative-num-steps", str(speculation.length), "--speculative-eagle-topk", "1"]
    flags += ["--speculative-num-draft-tokens", str(speculation.length + 1)]
    if head == MTP:
        return flags
    made = None if launch.holds else online(launch, speculation.draft)
    own = made or (
        "unquant" if online(launch) and not launch.holds else None
    )  # else it takes over that of the model: serving_hook.py:685
    return flags + (["--speculative-draft-model-quantization", own] if own else [])


def ktransformers(launch: Launch) -> list[str]:
    """``python -m sglang.launch_server`` of the fork that has ``--kt-...``; without experts on the host it is SGLang.

    Raises ``UsageError`` for experts of some layers, and for GGUF files of what the GPU holds: SGLang reads that from
    the checkpoint.
    """
    deployment, offload = launch.deployment, launch.deployment.offload
    layers = len(deployment.model.sequence)
    if offload is None:
        return sglang(launch)
    if any(moe_parts(layer) for layer in deployment.model.sequence[offload.experts :]):
        raise UsageError(
            "ktransformers is started with the experts of every layer on the host",
            because="--kt-num-gpu-experts counts experts of each layer, not layers",
            hint=f"--cpu-moe-layers {layers} --host 2x-xeon-8452y --host-memory 1TB, or emit sglang",
        )
    experts, native = deployment.precision.experts, native_precision(deployment.model)
    method = METHODS[experts.name]
    if method == _GGUF and deployment.precision.weights != native.weights:
        raise UsageError(
            f"SGLang reads what the GPU holds from the checkpoint, not in {deployment.precision.weights.name}",
            because="GGUF files are those of the experts alone (--kt-weight-path)",
            hint=f"--experts {experts.name} without --quant",
        )
    kept = replace(deployment, precision=replace(deployment.precision, experts=native.experts), offload=None)
    plain = replace(launch, deployment=kept)
    words = [*sglang(plain), "--kt-method", method, "--kt-weight-path", _FOLDER[method]]
    return words + _threads(offload)


def _threads(offload: Offload) -> list[str]:
    """One thread a core, and a pool of them for each socket, which reads its own part of every expert."""
    host = offload.host.hardware
    flags = ["--kt-cpuinfer", str(host.units), "--kt-threadpool-count", str(host.sockets)]
    return [*flags, "--kt-num-gpu-experts", "0", "--disable-shared-experts-fusion"]
