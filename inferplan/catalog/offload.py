"""What of a model lies in host memory as a user says it, and the deployment that this makes (docs/offload.md)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from inferplan.catalog.calibrations import own_kernels
from inferplan.catalog.files import load_hardware, names
from inferplan.devices.engine import OwnKernels
from inferplan.devices.hardware import HardwareSpec, Link
from inferplan.errors import InfeasibleError, MissingFactError, UnknownNameError, UsageError
from inferplan.estimate.deployment import Deployment, Offload, Streamed
from inferplan.estimate.memory import Footprint
from inferplan.fields import Real, Text, Whole, ask, need
from inferplan.lists import parse_copies, parse_values
from inferplan.models.spec import require_experts
from inferplan.units import format_bytes, parse_number, parse_quantity

MOST_GIB = 4096
"""GiB of a host that can lie beside one GPU."""
_HOST = need("--host", Text(), "The host that holds the rest: a CPU (inferplan gpus; 2x-NAME: two sockets) or a YAML.")
_MEMORY = need("--host-memory", Text(), "Usable memory of the host per replica, such as 384GB.", "SIZE")
_LINK = need(
    "--host-link", Text(), "Bandwidth of the link to the host, in one direction, such as 63GB/s [on file].", "RATE"
)


@dataclass(frozen=True, kw_only=True)
class OffloadAsked:
    """What is to lie in the host's memory; nothing where all fields have their defaults.

    gpu_layers: as llama.cpp's ``-ngl``, ``None`` for all. cpu_moe_layers: as its ``-ncmoe``. host: a CPU, by name or
    file. host_memory: how much of it a program has, as text. host_link: bandwidth of the way there in one direction, as
    text, where the device's file does not say it. cpu_offload_gb: as vLLM's ``--cpu-offload-gb``, GiB of each device.
    """

    gpu_layers: int | None = ask(
        "--gpu-layers",
        Whole(0),
        "llama.cpp -ngl: layers on the GPU, the head counted as one; the host computes the others [all].",
        None,
    )
    cpu_moe_layers: int = ask(
        "--cpu-moe-layers",
        Whole(0),
        "llama.cpp -ncmoe, or ktransformers: the host computes the routed experts of this many first layers.",
        0,
        shown=True,
    )
    cpu_offload_gb: float = ask(
        "--cpu-offload-gb",
        Real(0, MOST_GIB),
        "vLLM: GiB of each GPU's layers in host memory, read over the link in every step. [0]",
        0.0,
        metavar="GIB",
    )
    host: str | None = field(default=None, metadata=_HOST)
    host_memory: str | None = field(default=None, metadata=_MEMORY)
    host_link: str | None = field(default=None, metadata=_LINK)

    @property
    def any(self) -> bool:
        """Whether anything is asked for."""
        return self != OffloadAsked()

    @property
    def computes(self) -> bool:
        """Whether the host is to compute something."""
        return self.gpu_layers is not None or self.cpu_moe_layers > 0


@dataclass(frozen=True, kw_only=True)
class OffloadsTried:
    """What is to lie in the host's memory where a search tries several values, each beside none."""

    gpu_layers: tuple[int | None, ...] = ask(
        "--gpu-layers",
        Text(parse_copies),
        "llama.cpp -ngl: layers on the GPU, each number compared with all layers.",
        (),
        metavar="COUNTS",
    )
    cpu_moe_layers: tuple[int, ...] = ask(
        "--cpu-moe-layers",
        Text(parse_copies),
        "llama.cpp -ncmoe, or ktransformers: experts of this many layers on the host, each compared with none.",
        (),
        metavar="COUNTS",
    )
    cpu_offload_gb: tuple[float, ...] = ask(
        "--cpu-offload-gb",
        Text(lambda text: tuple(map(_gib, parse_values(text)))),
        "vLLM: GiB of each GPU's layers in host memory, each number compared with none.",
        (),
        metavar="GIBS",
    )
    host: str | None = field(default=None, metadata=_HOST)
    host_memory: str | None = field(default=None, metadata=_MEMORY)
    host_link: str | None = field(default=None, metadata=_LINK)

    def each(self) -> tuple[OffloadAsked, ...]:
        """What lies on the host, each to be tried; nothing where nothing is asked for.

        Raises ``UsageError`` for a host that holds nothing, and for what has no host.
        """
        where = OffloadAsked(host=self.host, host_memory=self.host_memory, host_link=self.host_link)
        sizes = [size for size in self.cpu_offload_gb if size]
        found = [replace(where, cpu_offload_gb=size) for size in sizes]
        pairs = itertools.product(self.gpu_layers or (None,), self.cpu_moe_layers or (0,))
        found += [replace(where, gpu_layers=here, cpu_moe_layers=away) for here, away in pairs]
        found = [one for one in found if one.computes or one.cpu_offload_gb]
        if not found and where.any:
            raise UsageError(*_NOTHING, "--gpu-layers, --cpu-moe-layers or --cpu-offload-gb, or leave them out")
        if found and not self.host:
            raise UsageError("weights on the host need a host", hint="--host epyc-9654 --host-memory 384GB")
        return tuple(dict.fromkeys(found))


def _gib(text: str) -> float:
    try:
        size = parse_number(text)
    except ValueError as error:
        raise UsageError(f"--cpu-offload-gb: {error}", hint="--cpu-offload-gb 20,40") from None
    if not 0 <= size <= MOST_GIB:
        raise UsageError(f"--cpu-offload-gb is 0 to {MOST_GIB:,} GiB, not {text}")
    return size


EXAMPLE_HOST = "core-i9-14900k"
"""A host for hints, with 128 GB: a usual one at home."""
_NOTHING = (
    "no option places weights on the host",
    "--host, --host-memory and --host-link only describe the host",
)
HostLoader = Callable[[str], Deployment]
"""The same request on its host, by name or file."""


def host_named(name: str, hardware_loader: Callable[[str], HardwareSpec]) -> HardwareSpec:
    """A host by name. Raises ``UnknownNameError`` for what is none, with those that have such memory."""
    try:
        return hardware_loader(name)
    except UnknownNameError as error:
        if name.endswith((".yaml", ".yml")):
            raise
        from difflib import get_close_matches

        hosts = {one: spec for one in names("hardware") if (spec := load_hardware(one)).memory.dimms}
        alike = [one for one, spec in hosts.items() if spec.memory.kind.lower().startswith(name.lower())]
        alike = alike or get_close_matches(name, hosts, 3)
        raise UnknownNameError(
            f"no host named {name!r}",
            because="a host is a processor, whose cores and memory channels set its times",
            hint=f"--host {', '.join(alike) or 'core-i9-14900k'} (2x-NAME: two sockets), or a copy of its YAML with "
            "memory.bandwidth of your DIMMs: inferplan show NAME",
        ) from error


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
        experts, engine = deployment.model.has_experts, deployment.engine
        placed = f"--cpu-moe-layers {layers}" if experts else f"--gpu-layers {layers // 2}"
        name = engine.name if engine.experts_alone and experts else "llama.cpp"
        where = f"--host {asked.host or EXAMPLE_HOST} --host-memory {asked.host_memory or '128GB'}"
        raise UsageError(*_NOTHING, f"--engine {name} {placed} {where}, or vLLM's --cpu-offload-gb (docs/offload.md)")
    if not deployment.engine.computes_on_host:
        raise UsageError(
            f"{deployment.engine.describe()} computes no layers on the host, as far as modelled",
            hint="--engine llama.cpp or ktransformers, or leave --gpu-layers and --cpu-moe-layers out",
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
    host = on_host(_named(asked))
    _require_size(host.hardware)
    own = _own(host, asked)
    waits = own.waits if host.calibration.basis != "roofline" else 0.0
    found = Offload(host=host, link=_link(deployment, asked), experts=asked.cpu_moe_layers, waits=waits)
    return replace(deployment, offload=found.keeping(here))


def _own(host: Deployment, asked: OffloadAsked) -> OwnKernels:
    """The engine's kernels on a host. Raises ``UsageError`` for what nobody has measured of them."""
    engine, hardware = host.engine, host.hardware
    own = own_kernels(hardware, engine.name)
    if own is None:
        raise UsageError(
            f"what {engine.describe()} reads of the memory of {hardware.name} is not known",
            because="no share of such sockets and memory is on file (docs/offload.md#ktransformers-and-two-sockets)",
            hint="one socket, or --engine ktransformers with two",
        )
    if engine.experts_alone and asked.gpu_layers is not None:
        raise UsageError(f"{engine.name} computes experts alone on the host", hint="leave --gpu-layers out")
    if not own.flop:
        return own
    name = host.precision.experts.name
    if name not in own.flop:
        raise UsageError(
            f"how fast {engine.name} multiplies by experts in {name} on a host is not on file",
            because=f"formats with published rates: {', '.join(own.flop)}",
            hint="--experts q4_k, or --engine llama.cpp",
        )
    _require_core(own, hardware, name)
    return own


def _require_core(own: OwnKernels, hardware: HardwareSpec, experts: str) -> None:
    """Raise where it is not known what a core of the host does with experts in that format."""
    if hardware.core_cycles is None:
        raise MissingFactError(
            f"cores and base clock of {hardware.name} are not on file",
            because="kernels of experts are priced by FLOP of a core and cycle",
            hint="units and derivation.bf16 in a copy of its hardware YAML, or another --host",
        )
    needs, has = own.flop_needs.get(experts, 0.0), hardware.peak_of("bf16") / hardware.core_cycles
    if has < 0.99 * needs:
        raise UsageError(
            f"how fast {hardware.name} multiplies by experts in {experts} is not on file",
            because=f"its cores have {has:.0f} FLOP a cycle; the published speed is of AVX-512, {needs:.0f} or more",
            hint="--experts q4_k, or --host xeon-8452y",
        )


def _named(asked: OffloadAsked) -> str:
    """The host. Raises ``UsageError`` where nobody names one."""
    if asked.host is None:
        raise UsageError(
            "weights on the host need a host",
            because="its memory and processor set its capacity and its times",
            hint="--host epyc-9654 --host-memory 384GB, or a hardware YAML of your own",
        )
    return asked.host


def _require_size(host: HardwareSpec) -> None:
    if host.memory.usable is None:
        raise MissingFactError(
            f"the memory of the host {host.name} is not on file",
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
            f"{engine.describe()} reads no weights from the host, as far as modelled",
            hint="--engine vllm, or leave --cpu-offload-gb out",
        )
    if asked.computes:
        raise UsageError("--cpu-offload-gb is vLLM's, --gpu-layers and --cpu-moe-layers are llama.cpp's")
    if any(layer.shared for layer in model.sequence):
        raise UsageError("--cpu-offload-gb is not modelled for shared blocks", hint="leave it out")
    if parallel.ranks > (most := _of_one_host(deployment.hardware)):
        raise UsageError(
            f"--cpu-offload-gb is modelled for the devices of one host, not for {parallel.ranks}",
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
            f"{host.name} does not hold the weights of {deployment.describe()} placed there",
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
