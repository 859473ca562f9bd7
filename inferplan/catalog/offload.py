"""What of a model lies in host memory as a user says it, and the deployment that this makes (docs/offload.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from inferplan.devices.hardware import Link
from inferplan.errors import MissingFactError, UsageError
from inferplan.estimate.deployment import Deployment, Offload
from inferplan.models.spec import require_experts
from inferplan.units import parse_quantity


@dataclass(frozen=True, kw_only=True)
class OffloadAsked:
    """What is to lie in the host's memory; nothing where all fields have their defaults.

    gpu_layers: as llama.cpp's ``-ngl``, ``None`` for all. cpu_moe_layers: as its ``-ncmoe``. host: a CPU, by name or
    file. host_memory: how much of it a program has, as text. host_link: bandwidth of the way there in one direction, as
    text, where the device's file does not say it.
    """

    gpu_layers: int | None = None
    cpu_moe_layers: int = 0
    host: str | None = None
    host_memory: str | None = None
    host_link: str | None = None

    @property
    def any(self) -> bool:
        """Whether anything is asked for."""
        return self != OffloadAsked()

    @property
    def computes(self) -> bool:
        """Whether the host is to compute something."""
        return self.gpu_layers is not None or self.cpu_moe_layers > 0


HostLoader = Callable[[str, str | None], Deployment]
"""The same request on another device: its name or file, and the memory that a program has of it."""


def with_offload(deployment: Deployment, asked: OffloadAsked, on_host: HostLoader) -> Deployment:
    """The deployment with layers or experts on its host; as it is where the device keeps everything.

    Raises ``UsageError`` for another engine, and without a host.
    """
    layers = len(deployment.model.sequence)
    if not asked.computes:
        raise UsageError(
            "nothing is to lie on the host",
            because="--host, --host-memory and --host-link say what it is, and no option says what it holds",
            hint="--gpu-layers or --cpu-moe-layers, or leave them out",
        )
    if deployment.engine.name != "llama.cpp":
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
        return deployment
    if asked.host is None:
        raise UsageError(
            "layers on the host need a host",
            because="what it computes takes as long as its processor and memory need",
            hint="--host epyc-9654 --host-memory 384GB, or a hardware YAML of your own",
        )
    if deployment.calibration.anchor is not None:
        raise UsageError("measured runs correct no deployment with layers on the host", hint="leave --anchor out")
    host = on_host(asked.host, asked.host_memory)
    if host.hardware.memory.usable is None:
        raise MissingFactError(
            f"how much memory the host {host.hardware.name} has is not on file",
            because=f"the label says {host.hardware.memory.label}",
            hint="give it: --host-memory 384GB",
        )
    found = Offload(host=host, link=_link(deployment, asked), experts=asked.cpu_moe_layers)
    return replace(deployment, offload=found.keeping(here))


def _link(deployment: Deployment, asked: OffloadAsked) -> Link:
    """The way to the host's memory: as the user says, else as on file."""
    if asked.host_link is None:
        return deployment.hardware.to_host
    try:
        parse_quantity(asked.host_link, "bytes/s")
    except ValueError as error:
        raise UsageError(f"--host-link: {error}") from None
    return Link.model_validate({"name": "--host-link", "bandwidth": asked.host_link})
