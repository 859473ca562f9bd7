"""From what a user types to a :class:`Deployment`: names, formats, divisions, engine and constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from inferplan.catalog.backends import Backends, with_backends
from inferplan.catalog.calibrations import load_calibration, own_kernels, release_dates
from inferplan.catalog.counted import counted
from inferplan.catalog.files import config_root, load, load_hardware, load_model, names, read_yaml, spec_of, validate
from inferplan.catalog.filters import with_filters
from inferplan.catalog.host_times import HostTimes, with_host_times
from inferplan.catalog.masks import with_mask_times
from inferplan.catalog.offload import OffloadAsked, host_named, with_offload
from inferplan.devices.anchors import Anchor, ErrorProcess
from inferplan.devices.engine import Engine, EngineFlags, EngineSpec, EngineVersion
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import InferplanError, MissingFactError, UsageError
from inferplan.estimate.anchoring import with_anchor
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.formats import NATIVE, default_quants, is_file, native_precision, quantised
from inferplan.estimate.memory import Footprint
from inferplan.estimate.remedies import that_run
from inferplan.estimate.towers import media_of_requests
from inferplan.fields import Quantity, Real, Switch, Text, ask, part
from inferplan.models.layers.mla import MlaLayer
from inferplan.models.media import MediaAsked
from inferplan.models.spec import ModelSpec, require_experts
from inferplan.spec import Field, Spec
from inferplan.units import parse_quantity
from inferplan.work.adapters import Adapters, LoraAsked
from inferplan.work.formats import (
    GGUF_BLOCKS,
    WIDE,
    Format,
    Precision,
    find_format,
    held_by,
    narrowed,
    parse_precision,
)
from inferplan.work.parallel import MOST_DEGREE, Parallelism
from inferplan.work.routing import Routing


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a command line asks for. ``roles`` maps a tensor role to a format name and wins over ``quant``.

    quant: formats; ``None``, or ``native``, for those of the checkpoint. engine: ``name`` or ``name@version``.
    calibration: a file; ``None`` takes the hardware's own when there is one. anchor: a file of measured runs of this
    system. media: what every request carries beside text. lora: adapters beside the model. offload: what of the model
    lies in host memory. host: seconds of a host of one's own. power_cap: watts of each device. sampling: what requests
    sample with, ``top-k,top-p``. memory: usable memory as text, for devices whose reading is not on file.
    nvlink_bridge: whether bridges, which are sold apart, join the cards. prune: axes
    to cut, ``layers=24,d_ff=0.75``. generation: fields of a diffusion model's generation that differ from its YAML.
    """

    model: str
    gpu: str
    quant: str | None = ask(
        "--quant", Text(), "Formats of all roles: bf16, fp8, w4a16kv8, q4_k_m ... (inferplan formats) [native]", None
    )
    roles: tuple[tuple[str, str], ...] = ()
    parallel: Parallelism = part(Parallelism, Parallelism())
    engine: str = "vllm"
    calibration: str | None = ask(
        "--calibration",
        Text(),
        "Constants measured on this device (inferplan calibrate), added to those on file. For each kernel and "
        "format the closest match to the engine's kernel is used (docs/calibrate.md).",
        None,
        metavar="FILE",
    )
    anchor: str | None = ask(
        "--anchor",
        Text(),
        "Measured runs of this system, to correct its prediction (inferplan anchor fit).",
        None,
        metavar="FILE",
    )
    ideal: bool = ask(
        "--ideal", Switch(), "No losses: every efficiency 1, every overhead 0; times are lower bounds.", False
    )
    memory: str | None = ask(
        "--memory",
        Text(),
        "Usable memory per device, such as 64GB, at most what it is sold with; the size on the box of a Mac.",
        None,
        metavar="SIZE",
    )
    nvlink_bridge: bool = ask(
        "--nvlink-bridge", Switch(), "The cards have NVLink bridges, which are sold apart [joined by PCIe].", False
    )
    unfused_attention: bool = ask(
        "--unfused-attention",
        Switch(),
        "Attention without a fused kernel: scores are written to memory and read back.",
        False,
    )
    prune: str | None = ask(
        "--prune", Text(), "Prune the model first: layers=24,d_ff=0.75 (sizes or shares).", None, metavar="AXES"
    )
    generation: tuple[tuple[str, int | bool], ...] = ()
    flags: EngineFlags = part(EngineFlags, EngineFlags.default())
    expert_skew: float | None = ask(
        "--expert-skew",
        Real(0, 3),
        "Expert imbalance: sigma of a log-normal, 0 is even [measured, or configs/routing.yaml].",
        None,
        metavar="SKEW",
    )
    media: MediaAsked = part(MediaAsked, MediaAsked())
    lora: LoraAsked = part(LoraAsked, LoraAsked())
    offload: OffloadAsked = part(OffloadAsked, OffloadAsked())
    host: HostTimes = part(HostTimes, HostTimes())
    power_cap: float | None = ask(
        "--power-cap",
        Quantity("watts", above=True),
        "Power cap per device, such as 500W: nvidia-smi -pl [its TDP]. Slows arithmetic.",
        None,
    )
    sampling: str | None = ask(
        "--sampling",
        Text(),
        "What requests sample with: top-k, top-p, penalties, as a list [a temperature alone, or greedy].",
        None,
        metavar="LIST",
    )

    unnamed: Parallelism | None = field(default=None, compare=False, repr=False)
    """The division that a number of GPUs has brought; another engine may divide otherwise."""

    def __post_init__(self) -> None:
        if self.quant is not None and self.quant.lower().strip() == NATIVE:
            object.__setattr__(self, "quant", None)
        self._divide()
        if self.quant is not None and self.gpu:
            object.__setattr__(self, "quant", quant_meant(self.quant, self.engine, self.gpu))
        if self.roles and self.gpu:
            roles = ((role, quant_meant(name, self.engine, self.gpu, role)) for role, name in self.roles)
            object.__setattr__(self, "roles", tuple(roles))

    def _divide(self) -> None:
        """Divide the model over the number of GPUs that are named; with another engine again, as that one divides."""
        count, gpu = counted(self.gpu) if self.gpu else (None, self.gpu)  # of a plan that is read back there is none
        before = self.unnamed
        free = self.parallel == before
        if count is None and before is not None and free:
            count = before.devices
        if count is not None:
            named = Parallelism() if free else self.parallel
            over = over_all(named, count, gpu, self.engine)
            object.__setattr__(self, "gpu", gpu)
            object.__setattr__(self, "parallel", over)
            object.__setattr__(self, "unnamed", over if named.devices == 1 else None)


_SHORT = {
    **dict.fromkeys(("q4", "4bit", "4-bit"), (("q4_k_m", "w4a16"), ("q4_k", "int4"))),
    **dict.fromkeys(("q8", "8bit", "8-bit"), (("q8_0", None), ("q8_0", None))),
}
"""What people call a format, of all roles and of one: what of GGUF it means, and what to engines that read no GGUF."""


def _short(text: str, role: str) -> tuple[str, str | None] | None:
    """Both of a role."""
    found = _SHORT.get(text.lower().strip()) if role in ("quant", "weights", "experts") else None
    return None if found is None else found[role != "quant"]


def quant_meant(text: str, engine: str, gpu: str, role: str = "quant") -> str:
    """The format that a short name (``q4``) means to an engine on a device; any other text as it is."""
    if (short := _short(text, role)) is None:
        return text
    of_gguf, other = short
    runs = load_engine(engine)
    return of_gguf if runs.files_alone or (role == "experts" and runs.experts_alone) else other or text


def short_format(text: str, role: str) -> str:
    """What a short name stands for, in words: ``"w4a16, or q4_k_m where the engine reads GGUF files alone"``; empty for
    any other text."""
    if (short := _short(text, role)) is None:
        return ""
    of_gguf, other = short
    gguf = f"{of_gguf} where the engine reads GGUF files alone"
    return f"{gguf} (others have no format of that name)" if other is None else f"{other}, or {gguf}"


def over_all(parallel: Parallelism, count: int, gpu: str, engine: str) -> Parallelism:
    """A division over all of ``count`` GPUs: where none is named tensor parallelism, or stages of an engine that has
    no other. Raises ``UsageError`` for one that needs another number of them.
    """
    over = load_engine(engine).over
    if parallel.devices == 1 and count <= MOST_DEGREE:
        return replace(parallel, tp=over(count).tp, pp=over(count).pp)
    if parallel.devices != count:
        rest = count // parallel.devices if count % parallel.devices == 0 else 0
        copies = f", with --replicas {parallel.replicas * rest}" if rest else ""
        raise UsageError(
            f"{count} x {gpu} are named, but the division uses {parallel.devices} ({parallel.describe()})",
            because="the number before a GPU counts all GPUs that run the model",
            hint=f"{'--tp' if over(2).tp > 1 else '--pp'} {count}{copies}, or {gpu} without a number",
        )
    return parallel


def load_engine(name: str, flags: EngineFlags | None = None) -> Engine:
    """An engine's defaults by ``name`` or ``name@version``, with the flags that replace some of them.

    Raises ``UnknownNameError`` for a version of which nothing is known.
    """
    bare, at, version = name.partition("@")
    if at and not version:
        raise UsageError(f"{name} names no version", hint=f"{bare} for the newest, or {bare}@VERSION")
    spec = load("engines", bare, EngineSpec)
    flags, (defaults, note) = flags or EngineFlags.default(), _defaults(spec, version or None)
    if defaults.kv_rule == "all" and flags.memory_fraction is not None:
        raise UsageError(f"{name} sets no share of the memory aside", hint="leave --gpu-memory-utilization out")
    return with_mask_times(spec.running(flags.applied(defaults), version if note else "", note, version))


def usual_engine(model: str, gpu: str, quant: str | None = None) -> str:
    """The engine where none is named: the one that is usual for a device's maker or a checkpoint's form, which a GGUF
    file type is, else vLLM."""
    try:
        device = load_hardware(counted(gpu).gpu)
    except InferplanError:
        return "vllm"  # whoever reads the name again says what is wrong with it
    specs = (load("engines", name, EngineSpec) for name in names("engines"))
    usual = (
        one.name
        for one in specs
        if device.vendor in one.usual_for.vendors
        or (one.usual_for.processors and device.memory.dimms)
        or (".gguf" if is_file(quant) else model).endswith(tuple(one.usual_for.suffixes))
    )
    return next(usual, "vllm")


def engines_beside(hardware: HardwareSpec) -> tuple[str, ...]:
    """Engines that are tried beside the usual one where somebody asks what their GPUs hold."""
    specs = (load("engines", name, EngineSpec) for name in names("engines"))
    return tuple(one.name for one in specs if hardware.segment in one.usual_for.beside)


def usual_engines(
    models: Sequence[str], gpus: Sequence[str], quants: Sequence[str | None] | None = None
) -> tuple[str, ...]:
    """:func:`usual_engine` of all of them together. Raises ``UsageError`` where they have several."""
    every = product(models, gpus, quants or (None,))
    usual = {usual_engine(*one): f"{one[0]} on {one[1]}" + (f" in {one[2]}" if one[2] else "") for one in every}
    if len(usual) > 1:
        raise UsageError(
            "no engine is the usual one for all of them",
            because="; ".join(f"{engine} for {where}" for engine, where in usual.items()),
            hint="name the engine (--engine NAME), or fewer devices or formats",
        )
    return tuple(usual)


def _defaults(spec: EngineSpec, version: str | None) -> tuple[EngineVersion, str]:
    """:meth:`EngineSpec.at`; for a release beyond all on file whose day is known, the oldest or the newest."""
    dates = release_dates().get(spec.name) if version else None
    if version and dates is not None:
        oldest, newest = spec.versions[0].version, spec.versions[-1].version
        if spec.predates(version) and dates.day(version) is not None:
            return spec.versions[0], f"{spec.name} {version}: defaults of {oldest}, the oldest on file"
        if spec.follows(version) and dates.lists(version):
            return spec.versions[-1], f"{spec.name} {version}: defaults of {newest}, the newest on file"
    return spec.at(version)


def load_anchor(path: str) -> Anchor:
    """The measured runs in a file of ``inferplan anchor fit``. Raises ``UsageError`` for one of fitted constants."""
    data = read_yaml(Path(path))
    if isinstance(data, dict) and "constants" in data:
        raise UsageError(
            f"{path} holds fitted constants, no measured runs", hint="inferplan anchor fit RESULTS -o own.yaml"
        )
    return validate(Path(path), data, Anchor)


@cache
def anchor_process() -> ErrorProcess:
    """How the errors of a system's loads go together."""
    path = config_root() / "anchors.yaml"
    return spec_of(path, ErrorProcess)


class SharedRouting(Spec):
    """``configs/routing.yaml``: how popular experts are in models for which nobody has measured it."""

    source: str
    skew: float = Field(ge=0.0)
    unforeseen: float = Field(default=0.0, ge=0.0, le=1.0)
    """Of the skew the share that belongs to the prompts of a step, and that no balancer of copies knows."""


@cache
def shared_routing() -> SharedRouting:
    """The usual popularity of experts."""
    path = config_root() / "routing.yaml"
    return spec_of(path, SharedRouting)


def routing_of(asked: float | None = None) -> Routing:
    """How routers spread tokens: as asked for, with the usual skew of ``configs/routing.yaml`` where none is known."""
    return Routing(asked=asked, usual=shared_routing().skew, unforeseen=shared_routing().unforeseen)


def engine_base(model: ModelSpec, engine: str) -> str:
    """The checkpoint's widest format as the engine runs it where nobody names one: for fp32 the 16 bits it takes."""
    if model.native.base != "fp32" or (narrows := load_engine(engine).narrows) is None:
        return model.native.base
    return narrows.wide(model.family, model.encodes)


def precision_of(request: Request, model: ModelSpec, hardware: HardwareSpec) -> Precision:
    """The formats asked for; without ``--quant`` those in which the engine runs the released checkpoint.

    Where the device lacks the checkpoint's 16-bit format they are in the other one (:func:`held_by`).
    """
    peaks = frozenset(hardware.peak)
    native = engine_base(model, request.engine)
    base = native_precision(model) if native == model.native.base else narrowed(native_precision(model), native)
    if model.native.packed and (request.quant is not None or any(role != "kv" for role, _ in request.roles)):
        raise UsageError(
            f"{model.name} has only the formats of its checkpoint",
            because="packed tensors are counted as stored, not by their elements",
            hint="leave --quant, --weights and similar options out; --kv is allowed",
        )
    if request.quant is not None:
        base = _shorthand(request, model, hardware, native)
    if (request.quant or "").lower().strip() not in WIDE:
        base = held_by(base, peaks)
    chosen: dict[str, Any] = {}
    _require_roles(request, model)
    for role, name in request.roles:
        chosen[role] = find_format(name)
        if role == "weights" and not any(other == "experts" for other, _ in request.roles):
            chosen["experts"] = chosen[role]
    if "weights" in chosen:
        base = replace(base, exceptions=())
    if model.encodes:
        base = _without_cache(base, chosen, model)
    kv = cache_format(chosen.pop("kv", base.kv), model)
    precision = replace(replace(base, **chosen), kv=kv)
    _require_loaded(request, model, hardware, precision)
    asked = chosen.get("activations")
    if asked and asked.bits < precision.base.bits <= min(precision.weights.bits, precision.experts.bits):
        raise UsageError(
            f"--activations {asked.name} would do nothing",
            because=f"the inputs of {precision.weights.name} weights stay {precision.base.name}",
            hint=f"narrower weights too: --quant fp8, or --weights {asked.name}",
        )
    return precision


def _shorthand(request: Request, model: ModelSpec, hardware: HardwareSpec, native: str) -> Precision:
    """The formats of ``--quant``; the 8 bits of a cache are those that the engine keeps.

    Raises ``UsageError`` where another option says another format of the cache.
    """
    quant, own = request.quant or NATIVE, dict(request.roles).get("kv")
    found, engine = quantised(model, quant, hardware, native), load_engine(request.engine)
    if found.kv.bits == 8 and not engine.keeps(found.kv.name, hardware):
        found = replace(found, kv=find_format(engine.narrow_cache(hardware) or found.kv.name))
    if own is not None and "kv" in quant.lower() and find_format(own) != found.kv:
        raise UsageError(
            f"--quant {quant} and --kv {own} say two formats of the KV cache",
            hint=f"--quant {quant.lower().partition('kv')[0]} --kv {own}",
        )
    return found


def _require_loaded(request: Request, model: ModelSpec, hardware: HardwareSpec, precision: Precision) -> None:
    """Raise ``UsageError`` for GGUF files where the engine reads none, and for others where it reads those alone."""
    engine, roles = load_engine(request.engine), dict(request.roles)
    for role in ("weights", "experts"):
        fmt: Format = getattr(precision, role)
        if fmt.bits >= 16 or not (request.quant or role in roles or "weights" in roles):
            continue
        file = fmt.name in GGUF_BLOCKS
        if file and not (engine.loads("gguf", hardware) or (role == "experts" and engine.experts_alone)):
            usual = [f"--engine {usual_engine(request.model, request.gpu, 'q8_0')}"]
            usual += [f"--quant {one}" for one in default_quants(model, hardware, engine) if one is not None]
            experts = [f"--experts {fmt.name} without --quant", f"--engine {engine.name}@0.2, which reads whole files"]
            raise UsageError(
                f"{engine.describe()} reads no GGUF file, and {request.quant or fmt.name} is a format of one",
                because="GGUF files are those of the experts alone (--kt-weight-path)" if engine.experts_alone else "",
                hint=", or ".join(experts if engine.experts_alone else usual),
            )
        if not file and engine.files_alone:
            raise UsageError(
                f"{engine.describe()} reads GGUF files, and {request.quant or fmt.name} is a format of none",
                hint="--quant q8_0 or q4_k_m",
            )


def require_precision(text: str | None) -> None:
    """Raise ``UsageError`` for a shorthand of formats that none has, on any device."""
    name = (text or NATIVE).lower().strip()
    if name != NATIVE and not is_file(name):
        parse_precision(name, frozenset())


def _without_cache(precision: Precision, chosen: dict[str, Any], model: ModelSpec) -> Precision:
    """The formats of a model that keeps no keys and values: they are read as they were computed.

    Raises ``UsageError`` for a format of theirs, of its own or in a shorthand.
    """
    if "kv" in chosen or precision.kv not in (precision.base, native_precision(model).kv):
        raise UsageError(
            f"{model.name} keeps no keys and values",
            because="one pass over a request is all of its work",
            hint="a format without kv, such as --quant fp8",
        )
    return replace(precision, kv=precision.base)


def _require_pages(model: ModelSpec) -> None:
    """Raise ``UsageError`` for the pages of a cache that the model does not keep."""
    passes = model.generation.kind == "diffusion" and not model.generation.block_cache
    if model.encodes or passes or not model.kv_elements_per_token:
        because = (
            "its state is one piece" if not (model.encodes or passes) else "no state of a pass is kept for the next"
        )
        raise UsageError(
            f"--block-size needs a cache in pages, and {model.name} has none", because=because, hint="leave it out"
        )


def _require_roles(request: Request, model: ModelSpec) -> None:
    """Raise ``UsageError`` for the format of a tensor that the model does not have."""
    asked = {role for role, _ in request.roles}
    if "head" in asked and not model.predicts:
        raise UsageError(f"{model.name} has no head over the vocabulary", hint="leave --head out")
    if "head" in asked and model.tied:
        raise UsageError(f"{model.name} has no head of its own: it is the embedding table", hint="--embedding FORMAT")
    if "experts" in asked and not any(weight.role == "experts" for weight, _ in model.weights()):
        raise UsageError(f"{model.name} has no routed experts", hint="leave --experts out")


def cache_format(fmt: Format, model: ModelSpec) -> Format:
    """A KV format with the scales that this model's heads need.

    Raises ``UsageError`` where a cache of latents and a format of heads, or the other way round, do not go together.
    """
    if fmt.name != "fp8-ds-mla" and not fmt.per_head:
        return fmt
    described = [part.described for layer in model.sequence for part in layer.parts]
    latent = [part for part in described if isinstance(part, MlaLayer)]
    if fmt.name == "fp8-ds-mla":
        if not latent or any((part.kv_lora, part.rope_dim) != (512, 64) for part in latent):
            raise UsageError(f"{model.name} has no latents of 512 + 64 to keep in fp8-ds-mla", hint="--kv fp8")
        apart = sum(part.cache().apart for part in latent)
        indexed = sum(part.cache().per_token - part.latent_dim for part in latent) - apart
        size = 656 * len(latent) + indexed * (1 + 4 / 128)  # an index key of 128 has one fp32 scale
        return replace(fmt, bits=8 * size / (model.kv_elements_per_token - apart))
    if latent:
        raise UsageError(f"{model.name} caches latents, not heads: no {fmt.name}", hint="--kv fp8 or fp8-ds-mla")
    scales = sum(2 * cache.units * count for cache, count in model.caches() if cache.per_token)
    return replace(fmt, group=model.kv_elements_per_token / scales) if scales else fmt


def assemble(
    request: Request,
    model_loader: Callable[[str], ModelSpec] = load_model,
    hardware_loader: Callable[[str], HardwareSpec] = load_hardware,
) -> Deployment:
    """The deployment that a request describes. Raises the errors of whatever cannot be found or cannot work."""
    model, hardware = model_loader(request.model), hardware_loader(request.gpu)
    if request.prune:
        from inferplan.models.prune import parse_prune, prune

        model = prune(model, parse_prune(request.prune))
    if request.generation:
        model = with_generation(model, dict(request.generation))
    if request.flags.block_size is not None:
        _require_pages(model)
    if request.memory:
        hardware = with_memory(hardware, request.memory)
    if request.nvlink_bridge:
        hardware = hardware.bridged
    if request.expert_skew is not None:
        require_experts(model, "--expert-skew")
    if any(role == "experts" for role, _ in request.flags.backends):
        require_experts(model, "--backend experts")
    precision = precision_of(request, model, hardware)
    deployment = Deployment(
        model=model,
        hardware=hardware,
        precision=precision,
        parallel=request.parallel,
        engine=_engine_for(request, model, hardware),
        calibration=load_calibration(hardware, request.calibration, request.ideal, request.engine),
        unfused_attention=request.unfused_attention,
        routing=routing_of(request.expert_skew),
        media=media_of_requests(model, request.media),
        lora=adapters_asked(request, model, precision.base),
    )
    backends = Backends(engine=request.engine, chosen=request.flags.backends, path=request.calibration)
    deployment = with_host_times(with_backends(deployment, backends), request.host)
    if request.sampling is not None:
        deployment = with_filters(deployment, request.sampling)
    if request.anchor is not None:
        deployment = with_anchor(deployment, load_anchor(request.anchor), request.anchor)
    if request.power_cap is not None:
        deployment = capped(deployment, request.power_cap)
    return with_host_memory(request, deployment, model_loader, hardware_loader)


def assembled(request: Request, roles: bool = True, held: tuple[float, float] = (1.0, 1.0)) -> Deployment:
    """As :func:`assemble_with_request`; where the device lacks the arithmetic, what is said to do instead was tried and
    fits.

    roles: whether the command has options for the formats of single roles. held: the load that has to fit, requests
    and tokens of each; where it is not known, one of one token.
    """
    try:
        return assemble_with_request(request)
    except MissingFactError as error:
        model, hardware, engine = load_model(request.model), load_hardware(request.gpu), load_engine(request.engine)
        tried, wide = dict[str, Request](), next((name for name in WIDE if name in hardware.peak), "")
        if roles and wide and not engine.files_alone:
            own = dict(request.roles) | {"activations": wide}
            tried[f"--activations {wide}"] = replace(request, roles=tuple(own.items()))
        for name in default_quants(model, hardware, engine):
            if name not in (None, request.quant):
                tried[f"--quant {name}"] = replace(request, quant=name, roles=())
        load: dict[str, Any] = {"batch": held[0], "prompt": held[1], "context": held[1]}
        made = {said: partial(assemble, one) for said, one in tried.items()}
        found = that_run(made, lambda deployment: Footprint(deployment=deployment, **load).fits)
        if not found:
            raise
        fitting = ", or ".join(said for said, fits in found.items() if fits)
        more = f" --tp {request.parallel.tp}" if request.parallel.tp > 1 else ""
        more += "" if held == (1.0, 1.0) else f" --context {held[1]:.0f} --in-flight {held[0]:.0f}"
        hint = fitting or f"no format that runs there fits; GPUs that hold it: inferplan fit {request.model}{more}"
        raise MissingFactError(error.what, error.because, hint) from None


def bridges(request: Request, gpus: Sequence[str]) -> dict[str, bool]:
    """Whether each of several GPUs has the NVLink bridge that is asked for. Raises ``MissingFactError`` where none is
    sold for any of them."""
    found = {gpu: request.nvlink_bridge and load_hardware(counted(gpu).gpu).bridge is not None for gpu in gpus}
    if request.nvlink_bridge and not any(found.values()):
        _ = load_hardware(counted(gpus[0]).gpu).bridged
    return found


def with_host_memory(
    request: Request,
    deployment: Deployment,
    model_loader: Callable[[str], ModelSpec] = load_model,
    hardware_loader: Callable[[str], HardwareSpec] = load_hardware,
) -> Deployment:
    """The deployment of a request with what is asked for in host memory; raises what ``with_offload`` does."""
    if not request.offload.any:
        return deployment

    def on_host(name: str) -> Deployment:
        there = replace(request, gpu=counted(name).gpu, memory=None, calibration=None, anchor=None)
        there = replace(
            there, nvlink_bridge=False, power_cap=None, sampling=None, host=HostTimes(), offload=OffloadAsked()
        )
        own = own_kernels(host_hardware(name), request.engine.partition("@")[0])
        if own is not None and own.flop:  # its kernels widen what they read
            roles = {**dict(request.roles), "activations": "bf16"}
            there = replace(there, roles=tuple(roles.items()))
        there = replace(there, parallel=Parallelism())
        return assemble(there, model_loader, lambda _: host_hardware(name))

    def host_hardware(name: str) -> HardwareSpec:
        (sockets, bare), memory = counted(name), request.offload.host_memory
        one = host_named(bare, hardware_loader)
        host = one if sockets in (None, 1) else one.joined(sockets)
        return with_memory(host, memory, "--host-memory") if memory else host

    return with_offload(deployment, request.offload, on_host, host_hardware)


def capped(deployment: Deployment, watts: float) -> Deployment:
    """The deployment under a cap on each device."""
    from inferplan.catalog.power import power_cap

    return replace(deployment, cap=power_cap(deployment.hardware, watts))


_ADAPTING = ("vllm", "none")
"""Engines whose slots of adapters are known here."""


def adapters_asked(request: Request, model: ModelSpec, base: Format) -> Adapters | None:
    """The adapters asked for; their module is read only where there are any. Raises ``UsageError`` for an engine that
    keeps them in another way, which is not known here."""
    asked = request.lora
    if not asked.any:
        return None
    if request.engine.partition("@")[0] not in _ADAPTING:
        raise UsageError(
            f"LoRA adapters in {request.engine} are not supported",
            because="slots, their ranks and their matrices are modelled after vLLM",
            hint="--engine vllm, or --engine none",
        )
    from inferplan.models.adapter_folder import read_adapter
    from inferplan.models.lora import adapters_of

    return adapters_of(model, asked, base, None if asked.folder is None else read_adapter(Path(asked.folder)))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Deployed(Deployment):
    """A deployment that knows what was asked for, so that it can be explained and started."""

    request: Request


def assemble_with_request(request: Request) -> Deployed:
    """As :func:`assemble`, with the request kept."""
    found = assemble(request)
    return Deployed(**{field.name: getattr(found, field.name) for field in fields(found)}, request=request)


def request_of(deployment: Deployment) -> Request:
    """What a deployment was made from.

    Raises ``UsageError`` for one that somebody made or changed by hand: no request says what it is.
    """
    if not isinstance(deployment, Deployed):
        raise UsageError(
            f"{deployment.describe()} does not come from inferplan.deploy",
            hint="a deployment of inferplan.deploy(model, gpu)",
        )
    again = assemble(deployment.request)
    made = ("media", "offload", "streamed")  # for each deployment anew
    names = [field.name for field in fields(again) if field.name not in made]
    changed = [name for name in names if getattr(again, name) != getattr(deployment, name)]
    if changed:
        raise UsageError(
            f"{deployment.describe()} differs from its request",
            because=f"changed since: {', '.join(changed)}",
            hint="a deployment of inferplan.deploy(model, gpu), as it is",
        )
    return deployment.request


def _engine_for(request: Request, model: ModelSpec, hardware: HardwareSpec) -> Engine:
    """The engine of a request; where prompts are not cut, its step holds the longest that the model reads.

    As vLLM sets ``max_num_batched_tokens`` without chunked prefill where nobody does: ``max(max_model_len, default)``.
    """
    engine, flags = load_engine(request.engine, request.flags), request.flags
    longest = model.max_context if model.encodes else None
    if flags.token_budget is not None or longest is None:
        return engine
    if longest <= engine.defaults.tier(hardware).token_budget:
        return engine
    return load_engine(request.engine, flags.model_copy(update={"token_budget": longest}))


def with_generation(model: ModelSpec, fields: dict[str, int | bool]) -> ModelSpec:
    """The model with other denoising blocks or steps.

    Raises ``UsageError`` for a model that is not a diffusion model.
    """
    if model.generation.kind != "diffusion":
        raise UsageError(f"{model.name} is no diffusion model", hint="leave the --block-... options out")
    return model.model_copy(update={"generation": model.generation.model_copy(update=fields)})


def parse_memory(text: str, option: str = "--memory") -> float:
    """Bytes of memory. Raises ``UsageError`` for what is no size, and for none."""
    try:
        size = parse_quantity(text, "bytes")
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if size == 0.0:
        raise UsageError(f"{option}: {text!r} is no memory at all", hint=f"{option} 64GB")
    return size


def with_memory(hardware: HardwareSpec, text: str, option: str = "--memory") -> HardwareSpec:
    """The hardware with the usable memory that a user states. Raises ``UsageError`` for more than it is sold with."""
    usable, own = parse_memory(text, option), hardware.memory
    if usable > own.most:
        because, most = own.most_in_words
        whose = "host" if own.labelled is None else "device, not of all of them"
        raise UsageError(
            f"{option} {text} is more than {hardware.name} has",
            because=because,
            hint=f"{option} {most} or less: the memory of one {whose}",
        )
    basis = option
    if own.wired is not None:
        from inferplan.catalog.wired import usable_of

        usable, basis = usable_of(text, own.wired)
    memory = own.model_copy(update={"usable": usable, "usable_basis": basis})
    return hardware.model_copy(update={"memory": memory})
