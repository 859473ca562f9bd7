"""A calibration of the user's own over the constants on file: kernel by kernel and format by format, the nearer one."""

from __future__ import annotations

from collections import defaultdict
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

from inferplan.catalog.files import config_root, load, names, spec_of
from inferplan.devices.constants import ANY, Calibration, Constants, Fit, Overlay, StepConstants, alike
from inferplan.devices.engine import EngineSpec, Libraries
from inferplan.devices.hardware import HardwareSpec
from inferplan.spec import Spec

RUN = "inferplan calibrate"
"""How the source of a file of ``inferplan calibrate`` begins (``provenance.source``)."""


class Nearness(IntEnum):
    """How near constants are to the kernel that an engine runs on a device; of two the nearer price, of equals those
    that were asked for."""

    FAR = -1
    """Measured on another device, of a library that the engine does not call for it."""
    CARRIED = 0
    """Measured on another device, in another format, or of another kind of kernel."""
    STAND_IN = 1
    """Measured here, of a library that the engine does not call for it."""
    LENT = 2
    """On file for this device, of another engine's kernel."""
    ON_FILE = 3
    """On file for this device, of the engine's own kernel."""
    OWN = 4
    """Measured here, of a library that the engine calls for it."""


_WHY = {
    Nearness.CARRIED: "an engine's kernel, carried from another device, is nearer than another library's from there",
    Nearness.LENT: "another engine's kernel of this device is nearer to the engine's own",
    Nearness.ON_FILE: "the engine's own kernel was timed on this device",
}


class LibraryErrors(Spec):
    """``configs/libraries.yaml``: how far constants of one library's kernel are off on another library's."""

    source: str
    vendors: list[str]
    """Makers of the devices that were measured; of others no error is known."""
    provenance: dict[str, Any] = {}
    errors: dict[str, dict[str, dict[str, float]]]
    """By kernel and format."""

    def of(self, kernel: str, label: str, vendor: str) -> dict[str, float]:
        """The error of a kernel in a format or, where nobody compared it, in the next one like it; empty: unknown."""
        formats = self.errors.get(kernel, {}) if vendor in self.vendors else {}
        return next((formats[name] for name in alike(label) if name in formats), {})


@cache
def library_errors() -> LibraryErrors:
    """The errors of constants that are carried from one library's kernel to another's."""
    path = config_root() / "libraries.yaml"
    return spec_of(path, LibraryErrors)


def overlaid(below: Calibration, found: Calibration, file: Path, hardware: HardwareSpec, engine: str) -> Calibration:
    """``below`` with the constants of ``found`` where these are as near to the kernel of ``engine``, or nearer.

    below: what prices without the file, for the engine. found: what the file holds, for the engine, measured on
    ``hardware`` or carried to it. What it does not hold stays, with its own basis and band.
    """
    libraries = load("engines", engine, EngineSpec).libraries if engine in names("engines") else Libraries()
    step = _step(found, libraries) or below.step
    launch = {} if step == StepConstants() else {"launch": step.launch}
    carried = {"basis": "transferred"} if below.basis == "transferred" else {}
    constants: Constants = {
        kernel: {label: fit.model_copy(update=launch | carried) for label, fit in formats.items()}
        for kernel, formats in below.constants.items()
    }
    used: dict[str, list[str]] = defaultdict(list)
    unused: dict[str, dict[str, str]] = defaultdict(dict)
    for kernel, formats in found.constants.items():
        for label, fit in formats.items():
            near, taken = _judged(fit, (kernel, label), libraries, hardware)
            there = _on_file(below, kernel, label)
            if near < there:
                unused[kernel][label] = _WHY[there]
                continue
            used[kernel].append(label)
            if label == ANY and fit.basis == "calibrated":
                _clear(constants.get(kernel, {}), set(formats), below, (kernel, near))
            constants.setdefault(kernel, {})[label] = taken.model_copy(update=launch)
    overlay = Overlay(file=str(file), over=below.basis, used=dict(used), unused=dict(unused))
    if not used:
        return below.model_copy(update={"step": step, "overlay": overlay})
    here = found.basis == "calibrated" or not below.constants
    update = {
        "constants": constants,
        "basis": found.basis if here else below.basis,
        "fused": below.fused if below.constants else found.fused,
        "step": step,
        "overlay": overlay,
    }
    return below.model_copy(update=update)


def _step(found: Calibration, libraries: Libraries) -> StepConstants | None:
    """The file's constants of a step, where it has some. Those of a run are of torch's own loop: no engine's."""
    foreign = is_run(found.provenance) and not libraries.every
    return None if foreign or found.step == StepConstants() else found.step


def is_run(provenance: dict[str, Any]) -> bool:
    """Whether constants are those of ``inferplan calibrate``, of torch on the device itself."""
    return str(provenance.get("source", "")).startswith(RUN)


def _clear(formats: dict[str, Fit], own: set[str], below: Calibration, found: tuple[str, Nearness]) -> None:
    """Take away formats on file for which a file states no more than one set of constants for all formats."""
    kernel, near = found
    for label in [label for label in formats if label not in own and _on_file(below, kernel, label) <= near]:
        del formats[label]


def _judged(fit: Fit, place: tuple[str, str], libraries: Libraries, hardware: HardwareSpec) -> tuple[Nearness, Fit]:
    """How near a constant of the file is, and as what it prices: a stand-in with the error of stand-ins."""
    if not fit.library:
        return (Nearness.OWN if fit.basis == "calibrated" else _lent(fit, *place, place[1])), fit
    called = libraries.hold(fit.library, *place, hardware.name)
    if fit.basis == "transferred":
        return Nearness.CARRIED if called else Nearness.FAR, fit
    if called:
        return Nearness.OWN, fit
    error = library_errors().of(*place, hardware.vendor)
    update = {"basis": "transferred", "source": f"{fit.library}'s kernel", "error": error}
    return Nearness.STAND_IN, fit.model_copy(update=update)


def _on_file(below: Calibration, kernel: str, label: str) -> Nearness:
    """How near the constant is that prices a kernel in a format without the file, as far as there is one."""
    place = below.place(kernel, label)
    if place is None:  # the datasheet alone: whatever was measured is nearer
        return Nearness.FAR
    if below.basis != "calibrated":
        return Nearness.CARRIED
    fit = below.constants[place[0]][place[1]]
    return Nearness.ON_FILE if fit.basis == "calibrated" else _lent(fit, kernel, label, place[1])


def _lent(fit: Fit, kernel: str, label: str, stands: str) -> Nearness:
    """Of a constant that is ``transferred``: whether it is another engine's kernel in the very format."""
    general = stands.startswith(ANY) and stands != label
    lent = fit.source.endswith("'s kernel") and not general and label != ANY
    return Nearness.LENT if lent else Nearness.CARRIED
