"""The command of llama.cpp (README of ``llama-server``)."""

from __future__ import annotations

from inferplan.answers.emit.replica import Launch, refuse_degrees
from inferplan.errors import UsageError


def llama_cpp(launch: Launch) -> list[str]:
    """``llama-server``. Raises ``UsageError`` for every division but by layers, and for a cache format it lacks."""
    hint = "llama.cpp divides a model by layers: --pp instead"
    refuse_degrees(launch, tp=hint, ep=hint, dp=hint, cp=hint)
    names = {"fp16": "f16", "bf16": "bf16", "fp32": "f32", "q8_0": "q8_0", "q4_0": "q4_0"}
    kv = launch.deployment.precision.kv.name
    if kv not in names:
        raise UsageError(f"llama.cpp has no KV cache in {kv}", hint=f"--kv {', '.join(names)}")
    file = launch.checkpoint if launch.checkpoint.endswith(".gguf") else f"{launch.checkpoint.rsplit('/', 1)[-1]}.gguf"
    flags = ["llama-server", "-m", file, "-c", str(launch.context * launch.slots), "-np", str(launch.slots)]
    flags += ["-ngl", "all", "-b", str(launch.token_budget), "-ctk", names[kv], "-ctv", names[kv]]
    return flags + (["-sm", "layer"] if launch.deployment.parallel.pp > 1 else [])
