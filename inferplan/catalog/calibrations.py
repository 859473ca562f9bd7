"""Which fitted constants price a device: those asked for, its own, a relative's, or those of its class of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from inferplan.catalog.file_cache import read_cached
from inferplan.catalog.files import config_root, load, load_hardware, names, read_yaml, spec_of, validate
from inferplan.catalog.overlay import is_run, overlaid
from inferplan.devices.constants import (
    ANY,
    IDEAL,
    SHARED,
    Calibration,
    Errors,
    Fit,
    MeasuredBands,
    MeasuredTails,
    Overlay,
    SharedStep,
    memory_class,
)
from inferplan.devices.engine import EngineSpec, OwnKernels
from inferplan.devices.hardware import HardwareSpec
from inferplan.devices.releases import ReleaseDates, Releases
from inferplan.errors import InferplanError, UnknownNameError, UsageError
from inferplan.spec import Spec
from inferplan.work.formats import WIDE

IN_SLOTS = "hops of cards in slots"


def load_calibration(hardware: HardwareSpec, path: str | None, ideal: bool, engine: str = "vllm") -> Calibration:
    """The constants to price with, of the kernels that ``engine`` brings (``name`` or ``name@version``) and of a step.

    The hardware's own, else those of its nearest relative, else of all measured devices of its class of memory, and
    over them those of ``path`` (:mod:`inferplan.catalog.overlay`); :data:`IDEAL` when asked for or when there are none.
    What a version has its own kernels for says :func:`with_release`.
    """
    if ideal:
        if path:
            raise UsageError("--ideal and --calibration exclude each other", hint="leave one out")
        return IDEAL
    return load_kernels(hardware, path, engine).with_step(shared_step(), measured_bands(), measured_tails())


def load_kernels(hardware: HardwareSpec, path: str | None, engine: str = "vllm") -> Calibration:
    """:func:`load_calibration` without the constants of a step."""
    file = own_run(hardware) if path is None else Path(path)
    return _on_file(hardware, engine) if file is None else _asked_for(hardware, file, engine)


def _on_file(hardware: HardwareSpec, engine: str) -> Calibration:
    """The constants on file for a device, of the kernels that the engine brings."""
    name = engine.partition("@")[0]
    found = _over_slots(_of_file(hardware, engine), hardware, name)
    if not hardware.memory.dimms or own_kernels(hardware, name) is not None:
        return found
    return _noting(
        found, f"no kernels of {name} were timed on processors: those of GPUs stand for them; llama.cpp has its own"
    )


def _noting(found: Calibration, said: str) -> Calibration:
    """The constants with one more note."""
    return found.model_copy(update={"note": f"{found.note}; {said}" if found.note else said})


def _over_slots(found: Calibration, hardware: HardwareSpec, engine: str) -> Calibration:
    """The same with the seconds before bytes flow in collectives as they were measured between cards in slots, where
    constants of a device that NVLink joins are carried to a card: hops over PCIe are many times longer.

    So with a bridge: it joins two cards, and larger groups go through the slots. Shares of the link's rate stay: NCCL
    reached 20 GB/s between A100s over PCIe 4.0 (nccl-tests issue 178), 0.65 of it.
    """
    if found.basis != "transferred" or not hardware.in_slots or not _joined_by_nvlink(found, hardware):
        return found
    slots = _of_engine(spec_of(slots_file(), Calibration).for_vendor(hardware.vendor), engine)
    constants = dict(found.constants)
    for kernel, fits in constants.items():
        if kernel.startswith("collective."):
            constants[kernel] = {label: _begun_as(fit, slots.constants[kernel][ANY]) for label, fit in fits.items()}
    return found.model_copy(update={"constants": constants})


def _begun_as(fit: Fit, other: Fit) -> Fit:
    """A collective's constants with the overhead and hops of another, whose error is not known together."""
    source = f"{fit.source}, {IN_SLOTS}"
    terms = fit.terms | {"hops": other.terms["hops"]}
    return fit.model_copy(update={"overhead": other.overhead, "terms": terms, "error": {}, "source": source})


def _joined_by_nvlink(found: Calibration, hardware: HardwareSpec) -> bool:
    """Whether constants are of a device without slots, or of the class of memory whose measured devices have none."""
    measured = found.name in names("hardware")
    return not load_hardware(found.name).in_slots if measured else memory_class(hardware) == "hbm"


def _of_file(hardware: HardwareSpec, engine: str) -> Calibration:
    file = calibration_file(hardware, engine)
    if file is None:
        return IDEAL
    found = spec_of(file, Calibration)
    name, _, version = engine.partition("@")
    if version:
        found = with_release(found, name, version)
    if hardware.preliminary:
        said = f"announced figures of {hardware.name}, which may change; nothing was measured on it"
        found = _noting(found.for_vendor(""), said)
    if hardware.part is not None:
        said = (
            f"no MIG instance was measured: the constants of the whole {hardware.part.of} are used, and their error "
            "is not known"
        )
        found = _noting(found.for_vendor(""), said)
    own = own_kernels(hardware, name)
    if own is not None and constants_file(own) == file:
        found = _beside_class(found.for_vendor(hardware.vendor), hardware, name)
        found = found if own.reads is None else found.reading(own.reads, own.experts_of(hardware))
        return _computing(found, own, hardware)
    if _of_another(found, hardware):
        return _carried(found, hardware, name)
    return _of_engine(found.for_vendor(hardware.vendor), name)


WIDE_CORE = 64
"""FLOP a core and cycle in 16 bits from which a processor is taken to have AVX-512."""


def _computing(found: Calibration, own: OwnKernels, hardware: HardwareSpec) -> Calibration:
    """The constants where kernels compute so many FLOP of a core and cycle; those of experts alone of inputs in 16
    bits."""
    cycles = hardware.core_cycles
    if cycles is None:
        said = f"cores and clock of {hardware.name} are not on file: its kernels are taken to reach its peaks"
        return _noting(found, said) if own.cores else found
    slower = own.narrow if hardware.peak_of("bf16") < 0.99 * WIDE_CORE * cycles else 1.0
    constants = {kernel: dict(fits) for kernel, fits in found.constants.items()}
    experts = {"grouped_matmul": own.flop} if own.flop else {}
    for kernel, formats in (own.cores or experts).items():
        for name, each in formats.items():
            for label, math in _labels(name):
                if math in hardware.peak:
                    share = min(slower * each * cycles / hardware.peak[math], 1.0)
                    fit = constants[kernel][ANY].model_copy(update={"math": share, "source": ""})
                    constants[kernel][label] = fit
    return found.model_copy(update={"constants": constants})


def _labels(name: str) -> Iterator[tuple[str, str]]:
    """The labels of constants for weights in a format, and the arithmetic in which they multiply."""
    if name == ANY:
        yield from ((f"{ANY}xq8_1", "int8"), ("fp32", "fp32"), (ANY, "bf16"))
    elif name in WIDE:
        yield name, name
    else:
        yield from ((f"{name}xbf16", "bf16"), (f"{name}xq8_1", "int8"))


def _asked_for(hardware: HardwareSpec, file: Path, engine: str) -> Calibration:
    """A calibration over the constants on file.

    One of another device prices nothing, with a note, unless this one has none of its own and that is its nearest
    relative: then it is carried as those on file are.
    """
    data = read_yaml(file)
    if isinstance(data, dict) and "anchor" in data:
        raise UsageError(
            f"{file} holds an anchor of one scalar a phase, which is no longer read",
            because="an anchor is a file of measured runs of its own",
            hint="inferplan anchor fit RESULTS -o own.yaml, then --anchor own.yaml",
        )
    found, below = _by_catalogue_name(validate(file, data, Calibration)), _on_file(hardware, engine)
    name = engine.partition("@")[0]
    if found.engine not in ("", name):
        raise UsageError(
            f"{file} was learned from steps of {found.engine}, not of {name}",
            because="another engine has other kernels and host times",
            hint=f"--engine {found.engine}, or inferplan learn with a record of {name}",
        )
    if not _of_another(found, hardware):
        here = _of_engine(found.for_vendor(hardware.vendor), name, shared_first=True)
        return overlaid(below, here, file, hardware, name)
    if below.basis == "calibrated" or found.name != hardware.relative:
        own = "has its own constants" if below.basis == "calibrated" else "is none whose nearest relative that is"
        said = f"{file} is not used here: it was measured on {found.name}, and {hardware.name} {own}"
        overlay = Overlay(file=str(file), over=below.basis)
        return below.model_copy(update={"overlay": overlay, "note": f"{below.note}; {said}" if below.note else said})
    known, otherwise = _carried_errors(found, hardware)
    of_engine = [{SHARED: {**errors.get(name, {}), **errors.get(SHARED, {})}} for errors in known]
    return overlaid(below, _of_engine(found.borrowed(of_engine, otherwise), name), file, hardware, name)


def _by_catalogue_name(found: Calibration) -> Calibration:
    """The same under the name that the catalogue has for its device, where the file has an alias."""
    try:
        return found.model_copy(update={"name": load_hardware(found.name).name})
    except InferplanError:  # of several devices, or of none in the catalogue
        return found


def _of_another(found: Calibration, hardware: HardwareSpec) -> bool:
    """Whether constants were measured on another device: of the catalogue, or described by its calibration (a CPU).

    The latter is another than every device of the catalogue; under a hardware YAML of one's own, whose name may be any,
    its constants hold.
    """
    measured, catalogue = found.name.partition(",")[0], names("hardware")
    run = is_run(found.provenance)
    return measured != hardware.name and (measured in catalogue or (run and hardware.name in catalogue))


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


def releases_file(device: str) -> Path:
    """The file of a device's kernels by engine release; it need not be there."""
    return config_root() / "calibration" / "releases" / f"{device}.yaml"


@cache
def device_releases(device: str) -> Releases | None:
    """Kernels by engine release on a device; ``None`` where nothing was timed by release."""
    path = releases_file(device)
    return spec_of(path, Releases) if path.is_file() else None


@cache
def release_dates() -> dict[str, ReleaseDates]:
    """The days of the releases of each engine (``configs/releases.yaml``)."""
    path = config_root() / "releases.yaml"
    return read_cached(path, "dates", lambda: (_dates(path), [path]))


def _dates(path: Path) -> dict[str, ReleaseDates]:
    return {name: validate(path, entry, ReleaseDates) for name, entry in read_yaml(path).items()}


def _carried(found: Calibration, hardware: HardwareSpec, engine: str) -> Calibration:
    """Another device's constants.

    Those of the nearest relative have the errors with which constants were carried between measured devices of the same
    chip, or of another one as the two are, else between devices of the class; where it lacks a kernel or a format, the
    class's stand in.
    """
    borrowed = _of_engine(found.borrowed(*_carried_errors(found, hardware)), engine)
    return (
        borrowed.beside(_of_engine(_class_constants(hardware), engine)) if found.name == hardware.relative else borrowed
    )


def _carried_errors(found: Calibration, hardware: HardwareSpec) -> tuple[Sequence[Errors], dict[str, float] | None]:
    """What :meth:`Calibration.borrowed` knows of errors: nothing where the other device is no relative, and of parts of
    a device.
    """
    if found.name != hardware.relative or hardware.part is not None:
        return (), None
    pairs = relatives()
    alike = pairs.same_chip if hardware.same_chip else pairs.other_chip
    known = (alike, _class_constants(hardware).errors) if hardware.vendor in pairs.vendors else ()
    return known, found.carried


def _of_engine(found: Calibration, engine: str, shared_first: bool = False) -> Calibration:
    """The constants with an engine's kernels chosen: its own, or those that stand for them where nobody timed any.

    shared_first: before those that stand for them comes what belongs to no engine: a user measured it here.
    """
    spec = engine_spec(engine)
    if spec is None or spec.lent is None:
        return found.for_engine(engine)
    return found.lent(spec.lent.engine, engine, shared_first)


def engine_spec(engine: str) -> EngineSpec | None:
    """An engine on file; ``None`` for another name."""
    return load("engines", engine, EngineSpec) if engine in names("engines") else None


def _beside_class(found: Calibration, hardware: HardwareSpec, engine: str) -> Calibration:
    """An engine's own constants; kernels that nobody measured in it are those of the device's class."""
    rest = _of_engine(_class_constants(hardware), engine)
    lacking = {kernel: fits for kernel, fits in rest.constants.items() if kernel not in found.constants}
    return found.beside(rest.model_copy(update={"constants": lacking}))


def _class_constants(hardware: HardwareSpec) -> Calibration:
    """Those that are carried over from measured devices of the same class of memory."""
    file = class_file(hardware)
    return spec_of(file, Calibration).for_vendor(hardware.vendor if hardware.part is None else "")


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
    return spec_of(config_root() / "relatives.yaml", Relatives)


def calibration_file(hardware: HardwareSpec, engine: str = "vllm") -> Path | None:
    """The constants on file: of the engine's own kernels, the device's own, its nearest relative's, its class's.

    Runs of ``inferplan calibrate`` aside, which lie over these (:func:`own_run`).
    """
    own = own_kernels(hardware, engine.partition("@")[0])
    if hardware.relative is not None and hardware.relative not in names("hardware"):
        raise UnknownNameError(
            f"{hardware.name} has relative {hardware.relative!r}, which is not a device on file",
            hint="a name as inferplan gpus prints it, no alias, or leave relative out",
        )
    named = (_of_device(name) for name in (hardware.name, hardware.relative) if name)
    files = (*(() if own is None else (constants_file(own),)), *named, class_file(hardware))
    return next((file for file in files if file.is_file() and not _is_run(file)), None)


def own_run(hardware: HardwareSpec) -> Path | None:
    """The file of ``inferplan calibrate`` under the name of the device, where it wrote to ``configs/calibration``."""
    file = _of_device(hardware.name)
    return file if file.is_file() and _is_run(file) else None


def _of_device(name: str) -> Path:
    return config_root() / "calibration" / f"{name}.yaml"


@cache
def _is_run(file: Path) -> bool:
    return is_run(spec_of(file, Calibration).provenance)


def own_kernels(hardware: HardwareSpec, engine: str) -> OwnKernels | None:
    """An engine's own kernels on a device; ``None`` where it runs those of a library of the device."""
    spec = engine_spec(engine)
    return None if spec is None else next((own for own in spec.kernels if own.hold_for(hardware)), None)


def constants_file(own: OwnKernels) -> Path:
    """The file of the constants of an engine's own kernels."""
    return config_root() / "calibration" / f"{own.file}.yaml"


def class_file(hardware: HardwareSpec) -> Path:
    """The file of the constants that are carried over from measured devices of the same class of memory."""
    return config_root() / "calibration" / f"_transferred-{memory_class(hardware)}.yaml"


def slots_file() -> Path:
    """The file of the constants of cards whose collectives were measured over PCIe."""
    return config_root() / "calibration" / "_transferred-other.yaml"


def shared_step() -> SharedStep:
    """What a step costs beyond its kernels, on every device."""
    return spec_of(config_root() / "step.yaml", SharedStep)


def measured_bands() -> MeasuredBands:
    """How far measured serving was from its prediction, by device, engine and form."""
    return spec_of(config_root() / "bands.yaml", MeasuredBands)


def measured_tails() -> MeasuredTails:
    """What measured percentiles of the first token hold beyond steps and queues."""
    return spec_of(config_root() / "tails.yaml", MeasuredTails)
