"""LoRA under load: which adapter a request names, slots on the device, adapters that come from the host on a miss.

Every adapter lies in the host's memory (vLLM's ``max_cpu_loras`` of as many as there are); each device loads its own
part over its own link. Times of steps are those of :mod:`inferplan.serving.step_times` at a few numbers of adapters,
with a line between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import MissingFactError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.models.lora import loaded_bytes
from inferplan.serving.adapter_slots import AdapterPool
from inferplan.serving.step_times import StepTimes
from inferplan.traffic.requests import Requests
from inferplan.work.parallel import split_layers


def require_adapters(deployment: Deployment, requests: Requests) -> None:
    """Raise ``UsageError`` for adapters of which only one half is said."""
    lora, named = deployment.lora, requests.adapters is not None
    if lora is None and named:
        raise UsageError("requests name adapters, and the deployment has none", hint="--lora-rank 16")
    if lora is None:
        return
    if not named:
        raise UsageError("the popularity of adapters is missing", hint="--loras 100 --lora-skew 1")
    if lora.active != lora.slots:
        raise UsageError("--active-loras is counted in a simulation", hint="leave it out: --max-loras is the most")


def adapter_bytes(deployment: Deployment) -> float:
    """Bytes that one device gets of one adapter, of the pipeline stage that gets most."""
    return max(stage_bytes(deployment))


def stage_bytes(deployment: Deployment) -> tuple[float, ...]:
    """Bytes that one device of each pipeline stage gets of one adapter: the part of the layers that it has."""
    lora, model, parallel = deployment.lora, deployment.model, deployment.parallel
    if lora is None:
        return (0.0,) * parallel.pp
    found, start = [], 0
    for layers in split_layers(len(model.sequence), parallel.pp):
        found.append(loaded_bytes(lora, model, model.sequence[start : start + layers], parallel))
        start += layers
    return tuple(found)


def host_bandwidth(hardware: HardwareSpec, given: float | None) -> float:
    """Bytes a second from the host's memory to a device. Raises ``MissingFactError`` where nobody says."""
    if given is not None:
        return given
    if hardware.host_link is None:
        raise MissingFactError(
            f"the bandwidth from the host to {hardware.name} is not on file",
            because="host_link of its hardware YAML is absent",
            hint="--lora-bandwidth 63GB/s (PCIe 5.0 x16, one direction)",
        )
    return hardware.to_host.bandwidth


def adapter_pool(
    deployment: Deployment,
    requests: Requests,
    bandwidth: float | None,
    times: Callable[[Deployment], StepTimes],
) -> AdapterPool | None:
    """The adapters of every engine of a run; ``None`` without any.

    bandwidth: bytes a second that bring one to a device, where somebody says. times: of the steps of a deployment.
    Raises what :func:`require_adapters` and :func:`host_bandwidth` do.
    """
    require_adapters(deployment, requests)
    lora = deployment.lora
    if lora is None or requests.adapters is None:
        return None
    made: dict[int, StepTimes] = {}

    def of(count: int) -> StepTimes:
        if count not in made:
            made[count] = times(replace(deployment, lora=replace(lora, active=float(count), in_step=True)))
        return made[count]

    stages = tuple(size / host_bandwidth(deployment.hardware, bandwidth) for size in stage_bytes(deployment))
    return AdapterPool(of=requests.adapters.tolist(), slots=lora.slots, stages=stages, times=of)
