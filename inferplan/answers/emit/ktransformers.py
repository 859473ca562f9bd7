"""The command of SGLang with kt-kernel (``kvcache-ai/ktransformers``, ``kt-kernel/README_zh.md`` and
``doc/en/kt-kernel/Kimi-K2-Thinking-Native.md`` at 15c624d)."""

from __future__ import annotations

from dataclasses import replace

from inferplan.answers.emit import sglang
from inferplan.answers.emit.replica import Launch
from inferplan.catalog.assemble import native_precision
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Offload, moe_parts

TAKES = sglang.TAKES | {"offload.cpu_moe_layers"}
_GGUF, _NATIVE = "LLAMAFILE", "FP8"
_METHODS = {"q4_k": _GGUF, "q8_0": _GGUF, "fp8-block": _NATIVE}
_FOLDER = {_GGUF: "${KT_WEIGHTS:?folder with the GGUF files of the experts}"}
_FOLDER |= {_NATIVE: "${KT_WEIGHTS:?folder of the checkpoint}"}


def ktransformers(launch: Launch) -> list[str]:
    """``python -m sglang.launch_server`` of the fork that has ``--kt-...``.

    Raises ``UsageError`` without experts on the host, for those of some layers, and for GGUF files of what the GPU
    holds: SGLang reads that from the checkpoint.
    """
    deployment, offload = launch.deployment, launch.deployment.offload
    layers = len(deployment.model.sequence)
    if offload is None or any(moe_parts(layer) for layer in deployment.model.sequence[offload.experts :]):
        raise UsageError(
            "ktransformers is started with the experts of every layer on the host",
            because="--kt-num-gpu-experts counts experts of each layer, not layers",
            hint=f"--cpu-moe-layers {layers} --host 2x-xeon-8452y --host-memory 1TB, or emit sglang",
        )
    experts, native = deployment.precision.experts, native_precision(deployment.model)
    method = _METHODS[experts.name]
    if method == _GGUF and deployment.precision.weights != native.weights:
        raise UsageError(
            f"SGLang reads what the GPU holds from the checkpoint, not in {deployment.precision.weights.name}",
            because="GGUF files are those of the experts alone (--kt-weight-path)",
            hint=f"--experts {experts.name} without --quant",
        )
    kept = replace(deployment, precision=replace(deployment.precision, experts=native.experts), offload=None)
    plain = replace(launch, deployment=kept)
    words = [*sglang.sglang(plain), "--kt-method", method, "--kt-weight-path", _FOLDER[method]]
    return words + _threads(offload)


def _threads(offload: Offload) -> list[str]:
    """One thread a core, and a pool of them for each socket, which reads its own part of every expert."""
    host = offload.host.hardware
    flags = ["--kt-cpuinfer", str(host.units), "--kt-threadpool-count", str(host.sockets)]
    return [*flags, "--kt-num-gpu-experts", "0", "--disable-shared-experts-fusion"]
