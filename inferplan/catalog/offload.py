"""What of a model lies in host memory as a user says it, and the deployment that this makes (docs/offload.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from inferplan.devices.hardware import HardwareSpec, Link
from inferplan.errors import InfeasibleError, MissingFactError, UsageError
from inferplan.estimate.deployment import Deployment, Offload, Streamed
from inferplan.estimate.memory import Footprint
from inferplan.models.spec import require_experts
from inferplan.units import format_bytes, parse_quantity


@dataclass(frozen=True, kw_only=True)
class OffloadAsked:
    """What is to lie in the host's memory; nothing where all fields have their defaults.

    gpu_layers: as llama.cpp's ``-ngl``, ``None`` for all. cpu_moe_layers: as its ``-ncmoe``. host: a CPU, by name or
    file. host_memory: how much of it a program has, as text. host_link: bandwidth of the way there in one direction, as
    text, where the device's file does not say it. cpu_offload_gb: as vLLM's ``--cpu-offload-gb``, GiB of each device.
    """

    gpu_layers: int | None = None
    cpu_moe_layers: int = 0
    host: str | None = None
    host_memory: str | None = None
    host_link: str | None = None
    cpu_offload_gb: float = 0.0

    @property
    def any(self) -> bool:
        """Whether anything is asked for."""
        return self != OffloadAsked()

    @property
    def computes(self) -> bool:
        """Whether the host is to compute something."""
        return self.gpu_layers is not None or self.cpu_moe_layers > 0


HostLoader = Callable[[str], Deployment]
"""The same request on its host, by name or file."""


def with_offload(
    deployment: Deployment, asked: OffloadAsked, on_host: HostLoader, host_hardware: Callable[[str], HardwareSpec]
) -> Deployment:
    """The deployment with layers or experts on its host; as it is where the device keeps everything.

    Raises ``UsageError`` for another engine, and without a host.
    """
    layers = len(deployment.model.sequence)
    if asked.cpu_offload_gb:
        return _with_streamed(deployment, asked, host_hardware)
    if not asked.computes:
        raise UsageError(
            "nothing is to lie on the host",
            because="--host, --host-memory and --host-link say what it is, and no option says what it holds",
            hint="--gpu-layers, --cpu-moe-layers or --cpu-offload-gb, or leave them out",
        )
    if not deployment.engine.computes_on_host:
        raise UsageError(
            f"{deployment.engine.describe()} computes no layers on the host that is known here",
            hint="--engine llama.cpp, or leave --gpu-layers and --cpu-moe-layers out",
        )
    if asked.cpu_moe_layers:
        require_experts(deployment.model, "--cpu-moe-layers")
    if asked.cpu_moe_layers > layers:
        raise UsageError(f"{deployment.model.name} has {layers} layers", hint=f"--cpu-moe-layers {layers} or fewer")
    here = layers + 1 if asked.gpu_layers is None else asked.gpu_layers
    if here > layers and not asked.cpu_moe_layers:
        if asked.host is not None:
            host_hardware(asked.host)  # it holds nothing, and is a host all the same
        return deployment
    named = _named(asked)
    host = on_host(named)
    _require_size(host.hardware)
    found = Offload(host=host, link=_link(deployment, asked), experts=asked.cpu_moe_layers)
    return replace(deployment, offload=found.keeping(here))


def _named(asked: OffloadAsked) -> str:
    """The host. Raises ``UsageError`` where nobody names one."""
    if asked.host is None:
        raise UsageError(
            "what lies on the host needs a host",
            because="its memory and processor say how much it holds and how long it takes",
            hint="--host epyc-9654 --host-memory 384GB, or a hardware YAML of your own",
        )
    return asked.host


def _require_size(host: HardwareSpec) -> None:
    if host.memory.usable is None:
        raise MissingFactError(
            f"how much memory the host {host.name} has is not on file",
            because=f"the label says {host.memory.label}",
            hint="give it: --host-memory 384GB",
        )


def _with_streamed(
    deployment: Deployment, asked: OffloadAsked, host_hardware: Callable[[str], HardwareSpec]
) -> Deployment:
    """The deployment with weights of its first layers in the host's memory, which vLLM's kernels read over the link.

    vllm/config/offload.py, ``UVAOffloadConfig``: "space in GiB to offload to CPU, per GPU", "zero-copy access from
    CPU-pinned memory". Raises ``InfeasibleError`` where the host does not hold them.
    """
    model, parallel, engine = deployment.model, deployment.parallel, deployment.engine
    if not engine.streams_weights:
        raise UsageError(
            f"{engine.describe()} reads no weights from the host that is known here",
            hint="--engine vllm, or leave --cpu-offload-gb out",
        )
    if asked.computes:
        raise UsageError("--cpu-offload-gb is vLLM's, --gpu-layers and --cpu-moe-layers are llama.cpp's")
    if any(layer.shared for layer in model.sequence):
        raise UsageError("--cpu-offload-gb is not known of shared blocks", hint="leave it out")
    if parallel.ranks > (most := _of_one_host(deployment.hardware)):
        raise UsageError(
            f"--cpu-offload-gb is known for the devices of one host, not for {parallel.ranks}",
            because=f"a host of {deployment.hardware.name} has up to {most}, by its node or its links on file",
            hint="a smaller --tp or --pp",
        )
    host = host_hardware(_named(asked))
    _require_size(host)
    streamed = Streamed(host=host, link=_link(deployment, asked), bytes=asked.cpu_offload_gb * 2.0**30)
    found = replace(deployment, streamed=streamed)
    held = Footprint(deployment=found, batch=1.0, prompt=1.0, context=1.0).streamed
    if held > host.usable:
        raise InfeasibleError(
            f"{host.name} does not hold the weights of {deployment.describe()} that are to lie there",
            because=f"{format_bytes(held)} of all devices > {format_bytes(host.usable)} usable",
            hint="a smaller --cpu-offload-gb, or a host with more memory",
        )
    return found


def _of_one_host(hardware: HardwareSpec) -> int:
    """The most devices of one host: those of a node; where sites differ (cards in slots) those that the widest link on
    file joins; 1 where nothing says so."""
    return hardware.node or max((link.domain or 1 for link in hardware.links), default=1)


def _link(deployment: Deployment, asked: OffloadAsked) -> Link:
    """The way to the host's memory: as the user says, else as on file."""
    if asked.host_link is None:
        return deployment.hardware.to_host
    try:
        parse_quantity(asked.host_link, "bytes/s")
    except ValueError as error:
        raise UsageError(f"--host-link: {error}") from None
    return Link.model_validate({"name": "--host-link", "bandwidth": asked.host_link})
