"""A deployment as the command that starts it, or as a Kubernetes manifest: what was modelled, flag by flag.

Flags are those of the versions in ``configs/engines`` (docs/planning.md lists where each was read).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from inferplan.errors import InfeasibleError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.memory import Footprint
from inferplan.serving.flags import Flags, rules_of, with_flags
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.units import format_bytes

_REPOSITORY = re.compile(r"https://huggingface\.co/([\w.-]+/[\w.-]+)")
IMAGES = {
    ("vllm", "0.18"): "vllm/vllm-openai:v0.18.1",
    ("vllm", "0.20"): "vllm/vllm-openai:v0.20.2",
    ("vllm", "0.33"): "vllm/vllm-openai:v0.33.0",
    ("sglang", "0.5"): "lmsysorg/sglang:v0.5.23",
    ("trtllm", "1.0"): "nvcr.io/nvidia/tensorrt-llm/release:1.0.0",
}
"""Container images of the versions whose defaults are on file."""
PORTS = {"vllm": 8000, "sglang": 30000, "trtllm": 8000, "llama.cpp": 8080}
RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu", "Intel": "gpu.intel.com/xe"}
"""The resource name that each vendor's device plugin registers."""

_MOUNT, _CONFIG = "/etc/inferplan", "trtllm.yaml"


@dataclass(frozen=True, kw_only=True, eq=False)
class Launch:
    """What one replica is started with: ``slots`` sequences at once over all its ranks, each up to ``context`` tokens.

    checkpoint: the repository or path that holds the weights in the formats of the deployment. speculation: its drafts.
    """

    deployment: Deployment
    context: int
    slots: int
    token_budget: int
    checkpoint: str
    extra: str | None = None
    """A file for what has no flag (TensorRT-LLM's ``--config``)."""
    speculation: Speculation = PLAIN

    @property
    def footprint(self) -> Footprint:
        return Footprint(deployment=self.deployment, batch=1.0, prompt=float(self.context), context=float(self.context))

    @property
    def fraction(self) -> float:
        return self.footprint.memory_fraction


def launch(
    deployment: Deployment,
    context: int | None = None,
    slots: int | None = None,
    token_budget: int | None = None,
    checkpoint: str | None = None,
    speculation: Speculation = PLAIN,
) -> Launch:
    """A launch with the engine's own defaults where nothing is given; the context is the longest that fits.

    Raises ``InfeasibleError`` when not even one request of ``context`` tokens fits.
    """
    tier = deployment.engine.defaults.tier(deployment.hardware)
    longest = _longest(deployment, speculation)
    wanted = context or longest
    if longest < max(wanted, 1):
        pool = Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0).kv_pool
        raise InfeasibleError(
            f"{deployment.describe()} does not hold one request of {max(wanted, 1):,} tokens",
            because=f"the cache pool is {format_bytes(pool)}, room for {longest:,} tokens",
            hint="a shorter --context, a larger --tp or a narrower --quant",
        )
    return Launch(
        deployment=deployment,
        context=wanted,
        slots=slots or tier.max_sequences * deployment.parallel.dp,
        token_budget=token_budget or tier.token_budget,
        checkpoint=checkpoint or _repository(deployment),
        speculation=speculation,
    )


def _repository(deployment: Deployment) -> str:
    found = _REPOSITORY.match(deployment.model.source)
    return found[1] if found else deployment.model.name


def _longest(deployment: Deployment, speculation: Speculation) -> int:
    """Tokens of the longest request that fits, beside a draft model if there is one."""
    longest = Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0).max_context()
    if speculation.draft is None:
        return longest
    flags = Flags()
    rules = rules_of(with_flags(deployment, flags), flags, 1.0, 1.0, speculation.draft)
    limits = [longest, int(rules.capacity), speculation.draft.model.max_context or longest]
    return min(limits)


def _refuse(launch: Launch, **degrees: str) -> None:
    """Raise ``UsageError`` for a degree of parallelism the engine's command line cannot express."""
    for name, hint in degrees.items():
        if getattr(launch.deployment.parallel, name) > 1:
            engine = launch.deployment.engine.name
            raise UsageError(f"--{name} cannot be written as flags of {engine}", hint=hint)


def _slots_per_rank(launch: Launch) -> int:
    return -(-launch.slots // launch.deployment.parallel.dp)


def _dtype(launch: Launch, names: dict[str, str]) -> str:
    kv = launch.deployment.precision.kv
    if kv == launch.deployment.precision.base:
        return "auto"
    if kv.name not in names:
        raise UsageError(
            f"{launch.deployment.engine.name} has no KV cache in {kv.name} that is modelled here",
            hint=f"--kv {' or '.join(names)}, or leave it at {launch.deployment.precision.base.name}",
        )
    return names[kv.name]


def _online(launch: Launch) -> str | None:
    """The format that an engine makes from a wide checkpoint as it loads; others need a checkpoint already in them."""
    precision = launch.deployment.precision
    native = launch.deployment.model.native.weights
    if precision.weights.name in ("fp8",) and native is None:
        return "fp8"
    return None


def quantised_checkpoint(launch: Launch) -> str | None:
    """What the checkpoint must already hold, where the engine cannot make it on loading."""
    precision, native = launch.deployment.precision, launch.deployment.model.native
    held = {fmt for fmt in (native.weights, native.experts) if fmt} | {native.base}
    online = {"fp8"} if launch.deployment.engine.name in ("vllm", "sglang") else set()
    needed = {precision.weights.name, precision.experts.name} - held - online
    return ", ".join(sorted(needed)) or None


def _vllm(launch: Launch) -> list[str]:
    parallel = launch.deployment.parallel
    _refuse(launch, cp="vLLM's context parallelism is not modelled flag by flag; leave --cp at 1")
    if parallel.ep not in (1, parallel.tp * parallel.dp):
        raise UsageError("vLLM spreads experts over all ranks or none", hint=f"--ep {parallel.tp * parallel.dp}, or 1")
    flags = ["vllm", "serve", launch.checkpoint]
    flags += [] if parallel.tp == 1 else ["--tensor-parallel-size", str(parallel.tp)]
    flags += [] if parallel.pp == 1 else ["--pipeline-parallel-size", str(parallel.pp)]
    flags += [] if parallel.dp == 1 else ["--data-parallel-size", str(parallel.dp)]
    flags += [] if parallel.ep == 1 else ["--enable-expert-parallel"]
    flags += ["--max-model-len", str(launch.context), "--max-num-seqs", str(_slots_per_rank(launch))]
    flags += ["--max-num-batched-tokens", str(launch.token_budget)]
    flags += ["--gpu-memory-utilization", f"{launch.fraction:g}"]
    flags += ["--kv-cache-dtype", _dtype(launch, {"fp8": "fp8", "nvfp4": "nvfp4"})]
    online = _online(launch)
    flags += ["--quantization", online] if online else []
    return flags + _vllm_drafts(launch)


def _vllm_drafts(launch: Launch) -> list[str]:
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
        "model": _repository(speculation.draft),
        "num_speculative_tokens": speculation.length,
        "draft_tensor_parallel_size": parallel.tp,
    }
    return ["--speculative-config", json.dumps(config)]


def _sglang(launch: Launch) -> list[str]:
    parallel = launch.deployment.parallel
    _refuse(launch, cp="SGLang's context parallelism is not modelled flag by flag; leave --cp at 1")
    flags = ["python", "-m", "sglang.launch_server", "--model-path", launch.checkpoint]
    ranks = parallel.tp * parallel.dp
    flags += [] if ranks == 1 else ["--tp-size", str(ranks)]
    flags += [] if parallel.pp == 1 else ["--pp-size", str(parallel.pp)]
    flags += [] if parallel.dp == 1 else ["--attn-dp-size", str(parallel.dp)]
    flags += [] if parallel.ep == 1 else ["--ep-size", str(parallel.ep)]
    flags += ["--context-length", str(launch.context), "--max-running-requests", str(launch.slots)]
    flags += ["--chunked-prefill-size", str(launch.token_budget), "--mem-fraction-static", f"{launch.fraction:g}"]
    flags += ["--kv-cache-dtype", _dtype(launch, {"fp8": "fp8_e4m3"})]
    online = _online(launch)
    return flags + (["--quantization", online] if online else [])


def trtllm_config(launch: Launch) -> dict[str, Any]:
    """What TensorRT-LLM takes from a file only."""
    config: dict[str, Any] = {}
    kv = _dtype(launch, {"fp8": "fp8"})
    if kv != "auto":
        config["kv_cache_config"] = {"dtype": kv, "free_gpu_memory_fraction": launch.fraction}
    if launch.deployment.parallel.dp > 1:
        config["enable_attention_dp"] = True
    return config


def _trtllm(launch: Launch) -> list[str]:
    parallel = launch.deployment.parallel
    _refuse(launch, cp="leave --cp at 1")
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
    flags += ["--max_seq_len", str(launch.context), "--max_batch_size", str(_slots_per_rank(launch))]
    flags += ["--max_num_tokens", str(launch.token_budget)]
    flags += ["--kv_cache_free_gpu_memory_fraction", f"{launch.fraction:g}"]
    return flags + (["--config", launch.extra] if config and launch.extra else [])


def _llama_cpp(launch: Launch) -> list[str]:
    hint = "llama.cpp divides a model by layers: --pp instead"
    _refuse(launch, tp=hint, ep=hint, dp=hint, cp=hint)
    names = {"fp16": "f16", "bf16": "bf16", "fp32": "f32", "q8_0": "q8_0", "q4_0": "q4_0"}
    kv = launch.deployment.precision.kv.name
    if kv not in names:
        raise UsageError(f"llama.cpp has no KV cache in {kv}", hint=f"--kv {', '.join(names)}")
    file = launch.checkpoint if launch.checkpoint.endswith(".gguf") else f"{launch.checkpoint.rsplit('/', 1)[-1]}.gguf"
    flags = ["llama-server", "-m", file, "-c", str(launch.context * launch.slots), "-np", str(launch.slots)]
    flags += ["-ngl", "all", "-b", str(launch.token_budget), "-ctk", names[kv], "-ctv", names[kv]]
    return flags + (["-sm", "layer"] if launch.deployment.parallel.pp > 1 else [])


ENGINES: dict[str, Callable[[Launch], list[str]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
    "llama.cpp": _llama_cpp,
}


def command(launch: Launch) -> list[str]:
    """The words of the command that starts one replica. Raises ``UsageError`` for what its flags cannot say."""
    engine = launch.deployment.engine.name
    if engine not in ENGINES:
        raise UsageError(f"{engine!r} is no engine that can be started", hint=f"--engine {', '.join(ENGINES)}")
    if launch.speculation.length and engine != "vllm":
        raise UsageError(f"drafts cannot be written as flags of {engine} here", hint="--engine vllm, or no drafts")
    return ENGINES[engine](launch)


def command_line(launch: Launch) -> str:
    """:func:`command` as one shell line."""
    return shlex.join(command(launch))


def manifest(launch: Launch, image: str | None = None, name: str | None = None) -> list[dict[str, Any]]:
    """A Kubernetes Deployment and its Service: one pod a replica, probes on the engine's health path; and a ConfigMap
    for what TensorRT-LLM takes from a file.

    Raises ``UsageError`` when a replica spans several nodes (one pod cannot), or no image is known.
    """
    deployment = launch.deployment
    engine, ranks = deployment.engine, deployment.parallel.ranks
    image = image or IMAGES.get((engine.name, engine.defaults.version))
    if image is None:
        raise UsageError(f"no container image of {engine.describe()} is on file", hint="--image REPOSITORY:TAG")
    if ranks > 8:
        raise UsageError(
            f"one replica has {ranks} devices, more than one node holds",
            because="a Deployment gives each pod to one node",
            hint="fewer devices a replica, or a LeaderWorkerSet written by hand",
        )
    resource = RESOURCES.get(deployment.hardware.vendor)
    if resource is None:
        raise UsageError(f"no Kubernetes resource name of {deployment.hardware.vendor} devices is known")
    label = name or re.sub(r"[^a-z0-9]+", "-", deployment.model.name.lower()).strip("-")
    port = PORTS[engine.name]
    config = trtllm_config(launch) if engine.name == "trtllm" else {}
    launch = replace(launch, extra=f"{_MOUNT}/{_CONFIG}") if config else launch
    words = command(launch) + ([] if engine.name == "vllm" else ["--host", "0.0.0.0"])
    container: dict[str, Any] = {
        "name": engine.name.replace(".", "-"),
        "image": image,
        "command": words,
        "ports": [{"name": "http", "containerPort": port}],
        "resources": {"limits": {resource: ranks}, "requests": {resource: ranks}},
        "startupProbe": _probe(period=10, failures=180),
        "readinessProbe": _probe(period=5, failures=3),
        "livenessProbe": _probe(period=15, failures=4),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    labels = {"app": label}
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    files: list[dict[str, Any]] = []
    if config:
        held = f"{label}-config"
        container["volumeMounts"] += [{"name": "config", "mountPath": _MOUNT}]
        volumes.append({"name": "config", "configMap": {"name": held}})
        data = {_CONFIG: json.dumps(config)}
        files = [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": held, "labels": dict(labels)}, "data": data}
        ]
    pod = {"containers": [container], "volumes": volumes}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": label, "labels": dict(labels)},
            "spec": {
                "replicas": deployment.parallel.replicas,
                "selector": {"matchLabels": dict(labels)},
                "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": label, "labels": dict(labels)},
            "spec": {
                "selector": dict(labels),
                "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
            },
        },
        *files,
    ]


def _probe(period: int, failures: int) -> dict[str, Any]:
    check = {"path": "/health", "port": "http"}
    return {"httpGet": check, "periodSeconds": period, "failureThreshold": failures}
