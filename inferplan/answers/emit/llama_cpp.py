"""The command of llama.cpp (README of ``llama-server`` at 00dc805)."""

from __future__ import annotations

from inferplan.answers.emit.checkpoint import checkpoint
from inferplan.answers.emit.replica import Launch, kv_dtype
from inferplan.errors import UsageError

TAKES = frozenset(
    {f"parallel.{degree}" for degree in ("tp", "pp", "dp", "ep", "cp")}
    | {"model.yarn", "offload.gpu_layers", "offload.cpu_moe_layers"}
)
PORT = 8080


def llama_cpp(launch: Launch) -> list[str]:
    """``llama-server``. Raises ``UsageError`` for pools of their own, and a context that is not known: it is the memory
    that is set aside at the start.

    A checkpoint that is no ``.gguf`` file is a repository that holds one: ``-hf ORG/NAME[:QUANT]``.
    """
    kv = kv_dtype(launch, None)
    if launch.role:
        raise UsageError("llama.cpp has no pools of its own for prompts and decodes", hint="--aggregated")
    if launch.context is None:
        raise UsageError(f"the longest context of {launch.deployment.model.name} is not known", hint="--context 4096")
    file = checkpoint(launch)
    flags = ["llama-server", "-m" if file.endswith(".gguf") else "-hf", file]
    flags += ["-c", str(launch.context * launch.sequences), "-np", str(launch.sequences)]
    if (yarn := launch.yarn) is not None:
        flags += ["--rope-scaling", "yarn", "--rope-scale", f"{yarn.factor:g}", "--yarn-orig-ctx", str(yarn.original)]
    flags += [*_layers(launch), "-b", str(launch.token_budget), "-ctk", kv, "-ctv", kv]
    return flags + (["-sm", "layer"] if launch.deployment.parallel.pp > 1 else [])


def _layers(launch: Launch) -> list[str]:
    """What lies on the device; for prompts the engine copies the rest there by itself (``--op-offload``)."""
    offload = launch.deployment.offload
    if offload is None:
        return ["-ngl", "all"]
    layers = "all" if not offload.layers else str(launch.request.offload.gpu_layers)
    return ["-ngl", layers, *(["-ncmoe", str(offload.experts)] if offload.experts else [])]
