"""Memory against start-up logs."""

from __future__ import annotations

from dataclasses import replace

from inferplan.devices.engine import EngineFlags
from inferplan.estimate.memory import Footprint
from inferplan.validation.deploy import deployment_of, engine_of
from inferplan.validation.rows import Run
from tools.accuracy.scores import markdown

_LOGS = (
    ("vLLM, Llama-3.1-8B bf16, 79.14 GiB at 0.90, 256 sequences (in sample): KV pool", "h100-sxm", "0.18", 256, 54.93),
    ("vLLM, Llama-3.1-8B bf16, 22.07 GiB at 0.90, 256 sequences: KV pool", "a10g", "0.18", 256, 4.6),
)


_RUN = Run(
    model="llama-3.1-8b",
    gpu="h100-sxm",
    engine="vllm",
    engine_version=None,
    precision="bf16",
    weights=None,
    experts=None,
    kv=None,
    activations=None,
    prompt=1.0,
    output=1.0,
)
"""The run that the logs are of."""


def memory_section() -> str:
    """KV pools and weights that engines logged at start-up, and those predicted."""
    lines = []
    for name, gpu, version, sequences, logged in _LOGS:
        run = replace(_RUN, gpu=gpu, engine_version=version, slots=sequences)
        deployment, _ = deployment_of(run)
        engine, _ = engine_of("vllm", version, EngineFlags(max_sequences=sequences))
        footprint = Footprint(deployment=replace(deployment, engine=engine), batch=1.0, prompt=1.0, context=131072.0)
        pool = footprint.kv_pool / 2**30
        lines.append([name, f"{logged:.2f} GiB", f"{pool:.2f} GiB", f"{100 * (pool / logged - 1):+.1f}"])
        weights = footprint.weights / 2**30
        lines.append(
            [
                name.replace(" (in sample)", "").replace("KV pool", "weights"),
                "14.99 GiB",
                f"{weights:.2f} GiB",
                f"{weights / 14.99 - 1:+.2%}",
            ]
        )
    name, logged = "vLLM 0.24, Gemma 4 31B bf16, H200, 262,144 tokens: pool over tokens", 108.2  # configiq issue 112
    run = replace(_RUN, model="gemma-4-31b", gpu="h200-sxm", engine_version="0.24")
    footprint = Footprint(deployment=deployment_of(run)[0], batch=1.0, prompt=1.0, context=262144.0)
    each = footprint.kv_pool / footprint.cache_tokens(262144) / 2**10
    lines.append([name, f"{logged:.1f} KiB", f"{each:.1f} KiB", f"{100 * (each / logged - 1):+.1f}"])
    lines.append(_blocks())
    return "\n".join(
        [
            "## Memory\n",
            "Start-up logs; `inferplan validate LOG --gpu ...` makes the same comparison with any other. The "
            "activation peak of the log in sample is one of those that the bytes of a logit are from "
            "(`configs/engines/vllm.yaml`).\n",
            markdown(("log", "logged", "predicted", "%"), lines),
        ]
    )


def _blocks() -> list[str]:
    """Tokens of the blocks of a pool that was logged: Eole's benchmark of gemma-3-1b-it, 2026-01-16."""
    run = replace(_RUN, model="gemma-3-1b", engine_version="0.18")
    footprint = Footprint(deployment=deployment_of(run)[0], batch=1.0, prompt=1.0, context=2048.0)
    logged, found = 950_864, footprint.stage.logged_tokens(25.39 * 2**30, 16)
    name = "vLLM 0.13, Gemma 3 1B bf16, 25.39 GiB of cache: tokens"
    return [name, f"{logged:,}", f"{found:,.0f}", f"{100 * (found / logged - 1):+.2f}"]
