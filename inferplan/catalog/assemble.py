"""From what a user types to a :class:`Deployment`: names, formats, divisions, engine and constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from inferplan.catalog.files import config_root, load, load_hardware, load_model, names, read_yaml, validate
from inferplan.devices.anchors import Anchor, Process
from inferplan.devices.constants import IDEAL, Calibration, Constants, SharedStep, memory_class
from inferplan.devices.engine import Engine, EngineFlags, EngineSpec, EngineVersion
from inferplan.devices.hardware import HardwareSpec
from inferplan.devices.releases import OnFile, ReleaseDates, Releases, own_source, role_of
from inferplan.errors import InferplanError, UnknownNameError, UsageError
from inferplan.estimate.anchoring import anchored
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build_rank
from inferplan.models.layers.mla import MlaLayer
from inferplan.models.prune import parse_prune, prune
from inferplan.models.spec import ModelSpec, require_experts
from inferplan.spec import Spec
from inferplan.units import parse_quantity
from inferplan.work.formats import WIDE, Format, Precision, find_format, held_by, parse_precision, uniform
from inferplan.work.parallel import Parallelism
from inferplan.work.routing import Routing
from inferplan.work.step import Segment, Step

ROLES = ("weights", "activations", "kv", "experts", "embedding", "head")
NATIVE = "native"
"""The word for the formats that the released checkpoint stores; the same as none."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a command line asks for. ``roles`` maps a tensor role to a format name and wins over ``quant``.

    quant: formats; ``None``, or ``native``, for those of the checkpoint. engine: ``name`` or ``name@version``.
    calibration: a file; ``None`` takes the hardware's own when there is one. anchor: a file of measured runs of this
    system. memory: usable memory as text, for devices whose reading is not on file. prune: axes to cut,
    ``layers=24,d_ff=0.75``. generation: fields of a diffusion model's generation that differ from its YAML.
    """

    model: str
    gpu: str
    quant: str | None = None
    roles: tuple[tuple[str, str], ...] = ()
    parallel: Parallelism = Parallelism()
    engine: str = "vllm"
    calibration: str | None = None
    ideal: bool = False
    memory: str | None = None
    unfused_attention: bool = False
    prune: str | None = None
    generation: tuple[tuple[str, int | bool], ...] = ()
    flags: EngineFlags = EngineFlags()
    expert_skew: float | None = None
    anchor: str | None = None

    def __post_init__(self) -> None:
        if self.quant is not None and self.quant.lower().strip() == NATIVE:
            object.__setattr__(self, "quant", None)


def load_engine(name: str, flags: EngineFlags | None = None) -> Engine:
    """An engine's defaults by ``name`` or ``name@version``, with the flags that replace some of them.

    Raises ``UnknownNameError`` for a version of which nothing is known.
    """
    bare, at, version = name.partition("@")
    if at and not version:
        raise UsageError(f"{name} names no version", hint=f"{bare} for the newest, or {bare}@VERSION")
    spec = load("engines", bare, EngineSpec)
    flags, (defaults, note) = flags or EngineFlags(), _defaults(spec, version or None)
    if defaults.kv_rule == "all" and flags.memory_fraction is not None:
        raise UsageError(f"{name} sets no share of the memory aside", hint="leave --gpu-memory-utilization out")
    return spec.running(flags.applied(defaults), version if note else "", note)


def usual_engine(model: str, gpu: str) -> str:
    """The engine where none is named: the one that is usual for a device's maker or a checkpoint's form, else vLLM."""
    try:
        vendor = load_hardware(gpu).vendor
    except InferplanError:
        return "vllm"  # whoever reads the name again says what is wrong with it
    specs = (load("engines", name, EngineSpec) for name in names("engines"))
    usual = (one for one in specs if vendor in one.usual_for.vendors or model.endswith(tuple(one.usual_for.suffixes)))
    return next((one.name for one in usual), "vllm")


def _defaults(spec: EngineSpec, version: str | None) -> tuple[EngineVersion, str]:
    """:meth:`EngineSpec.at`; for a release beyond all on file whose day is known, the oldest or the newest."""
    dates = release_dates().get(spec.name)
    if version and dates is not None:
        oldest, newest = spec.versions[0].version, spec.versions[-1].version
        if spec.predates(version) and dates.day(version) is not None:
            return spec.versions[0], f"{spec.name} {version}: defaults of {oldest}, the oldest on file"
        if spec.follows(version) and dates.lists(version):
            return spec.versions[-1], f"{spec.name} {version}: defaults of {newest}, the newest on file"
    return spec.at(version)


def load_calibration(hardware: HardwareSpec, path: str | None, ideal: bool, engine: str = "vllm") -> Calibration:
    """The constants to price with, of the kernels that ``engine`` brings (``name`` or ``name@version``) and of a step.

    Those asked for, else the hardware's own, else those of its nearest relative, else of all measured devices of its
    class of memory; :data:`IDEAL` when asked for or when there are none. What a version has its own kernels for says
    :func:`with_release`.
    """
    if ideal:
        if path:
            raise UsageError("--ideal and --calibration exclude each other", hint="leave one out")
        return IDEAL
    return load_kernels(hardware, path, engine).with_step(shared_step())


def load_kernels(hardware: HardwareSpec, path: str | None, engine: str = "vllm") -> Calibration:
    """:func:`load_calibration` without the constants of a step."""
    file = calibration_file(hardware, path, engine)
    if file is None:
        return IDEAL
    data = read_yaml(file)
    if isinstance(data, dict) and "anchor" in data:
        raise UsageError(
            f"{file} holds an anchor of one scalar a phase, which is no longer read",
            because="an anchor is a file of measured runs of its own",
            hint="inferplan anchor fit RESULTS -o own.yaml, then --anchor own.yaml",
        )
    found = validate(file, data, Calibration)
    name, _, version = engine.partition("@")
    if version and path is None:
        found = with_release(found, name, version)
    if hardware.preliminary:
        said = f"announced figures of {hardware.name}, which may change; nothing was measured on it"
        found = found.for_vendor("").model_copy(update={"note": f"{found.note}; {said}" if found.note else said})
    if path is None and own_kernels(hardware, name) == file:
        return _beside_class(found.for_vendor(hardware.vendor), hardware, name)
    measured = found.name.partition(",")[0]
    if measured != hardware.name and measured in names("hardware"):
        return _carried(found, hardware, name)
    return found.for_vendor(hardware.vendor).for_engine(name)


def with_release(calibration: Calibration, engine: str, version: str) -> Calibration:
    """The constants with an engine release's kernels where they were timed on the device, and a note about them.

    Of the roles that ``own`` of ``configs/releases.yaml`` lists for the engine, whoever asks: deployments, measured
    rows and anchors have one price. Unchanged where nothing is known.
    """
    releases, dates = device_releases(calibration.name), release_dates().get(engine)
    if releases is None or dates is None or engine not in releases.newest:
        return calibration
    own = dates.own if dates.day(version) is not None else ()  # one before all known days has no nearest
    chosen = releases.chosen(calibration, engine, version, dates, own)
    return chosen.calibration.model_copy(update={"release": f"{engine}@{version}", "note": chosen.note})


@dataclass(frozen=True, kw_only=True)
class Backends:
    """Kernels that flags of an engine choose: pairs of a role and a name, of ``engine`` (``name`` or
    ``name@version``). path: a file of constants that was asked for."""

    engine: str
    chosen: Sequence[tuple[str, str]]
    path: str | None = None


def with_backends(deployment: Deployment, asked: Backends, strict: bool = True) -> Deployment:
    """The deployment with the kernels asked for in place of the usual ones.

    Those of the release that is nearest to the engine's version, by default the newest; ``@RELEASE`` for a name is
    that release's usual kernel. Raises ``UsageError`` where nothing was timed by backend, where constants of a file
    would be replaced, and where nothing that it runs was timed so (unless not ``strict``: that keeps its usual
    kernels); ``UnknownNameError`` for a backend that nobody timed.
    """
    if not asked.chosen:
        return deployment
    releases, dates, calibration = _timed(deployment, asked)
    name, _, version = asked.engine.partition("@")
    on_file_for = load_kernels(deployment.hardware, None, name)
    named = on_file_for.provenance.get("kernels", {}).get(name, {})
    usual = {place: own_source(source, name) for place, source in named.items()}
    on_file = OnFile(dates, usual, on_file_for.constants)
    words = [calibration.note or f"{name} {version or releases.newest[name]}"]
    for role, backend in asked.chosen:
        found = releases.backend(name, version or releases.newest[name], role, backend, on_file)
        calibration, left = _replaced(deployment, calibration, role, found)
        formats = ", ".join(sorted({label for labels in found.values() for label in labels}))
        if strict and left is None:
            raise UsageError(
                f"--backend {role}={backend} would do nothing: timed in {formats} on {deployment.hardware.name}",
                because=f"{deployment.describe()} runs no such kernel in a format that was timed",
                hint="another format, or leave it out",
            )
        kept = f"; {', '.join(left)} as usual" if left else ""
        words += [] if left is None else [f"{role} by {backend} (timed in {formats}{kept})"]
    return replace(deployment, calibration=calibration.model_copy(update={"note": "; ".join(words)}))


def _replaced(
    deployment: Deployment, calibration: Calibration, role: str, found: Constants
) -> tuple[Calibration, list[str] | None]:
    """``calibration`` with other kernels of a role, and what the deployment runs of it that keeps its own; ``None``
    where that is all of it, or where it runs none."""
    launch = {"launch": calibration.step.launch}
    own = {
        kernel: {label: fit.model_copy(update=launch) for label, fit in fits.items()} for kernel, fits in found.items()
    }
    constants = {kernel: {**calibration.constants.get(kernel, {}), **fits} for kernel, fits in own.items()}
    changed = calibration.model_copy(update={"constants": {**calibration.constants, **constants}})
    run = sorted(place for place in kernels_run(deployment) if role_of(place[0]) == role)
    fits = [fit for labels in own.values() for fit in labels.values()]
    left = [place for place in run if not any(changed.fit(*place) is fit for fit in fits)]
    return changed, None if len(left) == len(run) else [f"{kernel} in {label}" for kernel, label in left]


def _timed(deployment: Deployment, asked: Backends) -> tuple[Releases, ReleaseDates, Calibration]:
    """What was timed by backend on the device. Raises ``UsageError`` where nothing was, or where it may not price."""
    calibration, name = deployment.calibration, asked.engine.partition("@")[0]
    releases, dates = device_releases(deployment.hardware.name), release_dates().get(name)
    role, backend = asked.chosen[0]
    if asked.path is not None:
        raise UsageError(
            f"--backend {role}={backend} would replace constants of {asked.path}",
            because="kernels by backend were timed elsewhere, and those of --calibration are what this device took",
            hint="leave one of them out",
        )
    if calibration.basis == "roofline":
        why = "an ideal device runs no kernel"
    elif releases is None or dates is None or name not in releases.newest:
        why = f"no kernels of {name} by backend are on file for {deployment.hardware.name}"
    else:
        return releases, dates, calibration
    raise UsageError(f"--backend {role}={backend} would do nothing", because=why, hint="leave --backend out")


def kernels_run(deployment: Deployment) -> set[tuple[str, str]]:
    """Kernels, each with its format, of a step that computes prompts and of one that decodes."""
    segments = (Segment(batch=1.0, new=1024.0, past=0.0), Segment(batch=1.0, new=1.0, past=1024.0))
    stages = [
        stage for segment in segments for stage in build_rank(deployment, Step(segments=(segment,)), alternatives=True)
    ]
    return {(op.kernel, op.label) for stage in stages for op in stage.ops}


def releases_file(device: str) -> Path:
    """The file of a device's kernels by engine release; it need not be there."""
    return config_root() / "calibration" / "releases" / f"{device}.yaml"


@cache
def device_releases(device: str) -> Releases | None:
    """Kernels by engine release on a device; ``None`` where nothing was timed by release."""
    path = releases_file(device)
    return validate(path, read_yaml(path), Releases) if path.is_file() else None


@cache
def release_dates() -> dict[str, ReleaseDates]:
    """The days of the releases of each engine (``configs/releases.yaml``)."""
    path = config_root() / "releases.yaml"
    return {name: validate(path, entry, ReleaseDates) for name, entry in read_yaml(path).items()}


def _carried(found: Calibration, hardware: HardwareSpec, engine: str) -> Calibration:
    """Another device's constants.

    Those of the nearest relative have the errors with which constants were carried between measured devices of the same
    chip, or of another one as the two are, else between devices of the class; where it lacks a kernel or a format, the
    class's stand in.
    """
    if found.name != hardware.relative:
        return found.borrowed().for_engine(engine)
    rest, pairs = _class_constants(hardware), relatives()
    alike = pairs.same_chip if hardware.same_chip else pairs.other_chip
    known = (alike, rest.errors) if hardware.vendor in pairs.vendors else ()
    return found.borrowed(known, found.carried).for_engine(engine).beside(rest.for_engine(engine))


def _beside_class(found: Calibration, hardware: HardwareSpec, engine: str) -> Calibration:
    """An engine's own constants; kernels that nobody measured in it are those of the device's class."""
    rest = _class_constants(hardware).for_engine(engine)
    lacking = {kernel: fits for kernel, fits in rest.constants.items() if kernel not in found.constants}
    return found.beside(rest.model_copy(update={"constants": lacking}))


def _class_constants(hardware: HardwareSpec) -> Calibration:
    """Those that are carried over from measured devices of the same class of memory."""
    file = class_file(hardware)
    return validate(file, read_yaml(file), Calibration).for_vendor(hardware.vendor)


class Relatives(Spec):
    """``configs/relatives.yaml``: how far constants are off that are carried to a measured relative."""

    source: str
    vendors: list[str]
    """Makers of the devices that were measured; of others no error is known."""
    provenance: dict[str, Any] = {}
    same_chip: dict[str, dict[str, dict[str, dict[str, float]]]]
    """By library, kernel and format: between devices of one chip."""
    other_chip: dict[str, dict[str, dict[str, dict[str, float]]]]
    """The same between chips of neighbouring generations."""


@cache
def relatives() -> Relatives:
    """The errors of constants that are carried from one device to another."""
    path = config_root() / "relatives.yaml"
    return validate(path, read_yaml(path), Relatives)


def calibration_file(hardware: HardwareSpec, path: str | None, engine: str = "vllm") -> Path | None:
    """The file of the constants: the one asked for, that of the engine's own kernels, the device's own, its nearest
    relative's, its class of memory's."""
    if path:
        return Path(path)
    own = own_kernels(hardware, engine.partition("@")[0])
    if hardware.relative is not None and hardware.relative not in names("hardware"):
        raise UnknownNameError(
            f"{hardware.name} has relative {hardware.relative!r}, which is no device on file",
            hint="a name as inferplan gpus prints it, no alias, or leave relative out",
        )
    named = (config_root() / "calibration" / f"{name}.yaml" for name in (hardware.name, hardware.relative) if name)
    files = (*(() if own is None else (own,)), *named, class_file(hardware))
    return next((file for file in files if file.is_file()), None)


def own_kernels(hardware: HardwareSpec, engine: str) -> Path | None:
    """The file of an engine's own kernels on a device; ``None`` where it runs those of a library of the device."""
    if engine not in names("engines"):
        return None
    spec = load("engines", engine, EngineSpec)
    file = next((own.file for own in spec.kernels if own.hold_for(hardware)), None)
    return None if file is None else config_root() / "calibration" / f"{file}.yaml"


def class_file(hardware: HardwareSpec) -> Path:
    """The file of the constants that are carried over from measured devices of the same class of memory."""
    return config_root() / "calibration" / f"_transferred-{memory_class(hardware)}.yaml"


def load_anchor(path: str) -> Anchor:
    """The measured runs in a file of ``inferplan anchor fit``. Raises ``UsageError`` for one of fitted constants."""
    data = read_yaml(Path(path))
    if isinstance(data, dict) and "constants" in data:
        raise UsageError(
            f"{path} holds fitted constants, no measured runs", hint="inferplan anchor fit RESULTS -o own.yaml"
        )
    return validate(Path(path), data, Anchor)


@cache
def anchor_process() -> Process:
    """How the errors of a system's loads go together."""
    path = config_root() / "anchors.yaml"
    return validate(path, read_yaml(path), Process)


def shared_step() -> SharedStep:
    """What a step costs beyond its kernels, on every device."""
    path = config_root() / "step.yaml"
    return validate(path, read_yaml(path), SharedStep)


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
    return validate(path, read_yaml(path), SharedRouting)


def routing_of(asked: float | None = None) -> Routing:
    """How routers spread tokens: as asked for, with the usual skew of ``configs/routing.yaml`` where none is known."""
    return Routing(asked=asked, usual=shared_routing().skew, unforeseen=shared_routing().unforeseen)


def native_precision(model: ModelSpec) -> Precision:
    """The formats that the released checkpoint stores."""
    native = model.native
    wide = uniform(native.base)
    given = {role: getattr(native, role, None) for role in ROLES}
    chosen = {role: find_format(name) for role, name in given.items() if name}
    if "weights" in chosen and "experts" not in chosen:
        chosen["experts"] = chosen["weights"]
    exceptions = tuple(
        (tensor, find_format(entry.format), frozenset(entry.layers))
        for entry in native.exceptions
        for tensor in entry.tensors
    )
    return replace(wide, exceptions=exceptions, **chosen)


def precision_of(request: Request, model: ModelSpec, hardware: HardwareSpec) -> Precision:
    """The formats asked for; without ``--quant`` those of the released checkpoint.

    Where the device lacks the checkpoint's 16-bit format they are in the other one (:func:`held_by`).
    """
    peaks = frozenset(hardware.peak)
    base = native_precision(model)
    if request.quant:
        from inferplan.models.gguf_formats import file_precision, is_file_type

        name = request.quant.lower().strip()
        if is_file_type(name):
            base = file_precision(model, name)
        else:
            base = parse_precision(request.quant, peaks, model.native.base)
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
    kv = cache_format(chosen.pop("kv", base.kv), model)
    precision = replace(replace(base, **chosen), kv=kv)
    asked = chosen.get("activations")
    if asked and asked.bits < precision.base.bits <= min(precision.weights.bits, precision.experts.bits):
        raise UsageError(
            f"--activations {asked.name} would do nothing",
            because=f"the inputs of {precision.weights.name} weights stay {precision.base.name}",
            hint=f"narrower weights too: --quant fp8, or --weights {asked.name}",
        )
    return precision


def _require_roles(request: Request, model: ModelSpec) -> None:
    """Raise ``UsageError`` for the format of a tensor that the model does not have."""
    asked = {role for role, _ in request.roles}
    if "head" in asked and model.tied:
        raise UsageError(f"{model.name} has no head of its own: it is the embedding table", hint="--embedding FORMAT")
    if "experts" in asked and not any(weight.role == "experts" for weight, _ in model.weights()):
        raise UsageError(f"{model.name} has no routed experts", hint="leave --experts out")


def cache_format(fmt: Format, model: ModelSpec) -> Format:
    """A KV format with the scales that this model's heads need.

    Raises ``UsageError`` where a cache of latents and a format of heads, or the other way round, do not go together.
    """
    latent = [part for layer in model.sequence for part in layer.parts if isinstance(part, MlaLayer)]
    if fmt.name == "fp8-ds-mla":
        if not latent or any((part.kv_lora, part.rope_dim) != (512, 64) for part in latent):
            raise UsageError(f"{model.name} has no latents of 512 + 64 to keep in fp8-ds-mla", hint="--kv fp8")
        apart = sum(part.cache().apart for part in latent)
        indexed = sum(part.cache().per_token - part.latent_dim for part in latent) - apart
        size = 656 * len(latent) + indexed * (1 + 4 / 128)  # an index key of 128 has one fp32 scale
        return replace(fmt, bits=8 * size / (model.kv_elements_per_token - apart))
    if not fmt.per_head:
        return fmt
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
        model = prune(model, parse_prune(request.prune))
    if request.generation:
        model = with_generation(model, dict(request.generation))
    if request.memory:
        hardware = with_memory(hardware, request.memory)
    if request.expert_skew is not None:
        require_experts(model, "--expert-skew")
    if any(role == "experts" for role, _ in request.flags.backends):
        require_experts(model, "--backend experts")
    deployment = Deployment(
        model=model,
        hardware=hardware,
        precision=precision_of(request, model, hardware),
        parallel=request.parallel,
        engine=load_engine(request.engine, request.flags),
        calibration=load_calibration(hardware, request.calibration, request.ideal, request.engine),
        unfused_attention=request.unfused_attention,
        routing=routing_of(request.expert_skew),
    )
    backends = Backends(engine=request.engine, chosen=request.flags.backends, path=request.calibration)
    deployment = with_backends(deployment, backends)
    return deployment if request.anchor is None else anchored(deployment, load_anchor(request.anchor), request.anchor)


def with_generation(model: ModelSpec, fields: dict[str, int | bool]) -> ModelSpec:
    """The model with other denoising blocks or steps.

    Raises ``UsageError`` for a model that is not a diffusion model.
    """
    if model.generation.kind != "diffusion":
        raise UsageError(f"{model.name} is no diffusion model", hint="leave the --block-... options out")
    return model.model_copy(update={"generation": model.generation.model_copy(update=fields)})


def with_memory(hardware: HardwareSpec, text: str) -> HardwareSpec:
    """The hardware with the usable memory that a user states."""
    try:
        usable = parse_quantity(text, "bytes")
    except ValueError as error:
        raise UsageError(f"--memory: {error}") from None
    if usable == 0.0:
        raise UsageError(f"--memory: {text!r} is no memory at all", hint="--memory 64GB")
    memory = hardware.memory.model_copy(update={"usable": usable, "usable_basis": "--memory"})
    return hardware.model_copy(update={"memory": memory})
