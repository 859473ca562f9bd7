"""Top-k, top-p and penalties as asked for: the engine's kernels and their constants (``configs/filters.yaml``)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from inferplan.catalog.files import config_root, load_hardware, spec_of
from inferplan.devices.constants import Calibration, Fit
from inferplan.devices.engine import TokenFilters
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.spec import Field, Spec
from inferplan.work.filters import ASKED, PENALTIES, Filters, label_of

FILE = "filters.yaml"


class KernelTimes(Spec):
    """Constants of a kernel for some filters: seconds of a run, seconds for each number of a thread block's row, how
    far rows differ in them, thread blocks of a multiprocessor at once, and the share of the memory's bandwidth at which
    it reads and writes the logits once. few: rows below which ``KERNEL-few`` has the constants. error: its own."""

    overhead: float = Field(ge=0.0)
    swept: float = Field(default=0.0, ge=0.0)
    spread: float = Field(default=0.0, ge=0.0)
    resident: int = Field(default=1, ge=1)
    few: int = Field(default=0, ge=0)
    memory: float = Field(gt=0.0, le=1.0)
    error: dict[str, float] | None = None


class _OnFile(Spec):
    """The file: one source, the constants of each kernel by what it filters for, and their error on other rows."""

    source: str
    error: dict[str, float]
    kernels: dict[str, dict[str, KernelTimes]]


def filter_place(label: str, constant: str) -> tuple[str, ...] | None:
    """Where a constant of a kernel for filters stands in the file; ``None`` for other kernels."""
    kernel, _, filters = label.partition(".")
    if label not in filter_constants().constants["elementwise"]:
        return None
    return ("kernels", kernel, filters, constant)


def as_filed(chosen: Filters, multiprocessors: int) -> Filters:
    """Filters whose kernel runs as the file says."""
    kernel, _, filters = chosen.label.partition(".")
    times = spec_of(config_root() / FILE, _OnFile).kernels[kernel][filters]
    return replace(chosen, blocks=times.resident * multiprocessors, spread=times.spread, few=times.few)


@cache
def filter_constants() -> Calibration:
    """The kernels on file as constants of pointwise maps."""
    found = spec_of(config_root() / FILE, _OnFile)
    fits = {
        label_of(kernel, filters): Fit(
            overhead=one.overhead,
            memory=one.memory,
            sharpness=1.0,
            terms={"swept": one.swept},
            basis="transferred",
            source=found.source,
            error=one.error or found.error,
        )
        for kernel, each in found.kernels.items()
        for filters, one in each.items()
    }
    return Calibration(name="public times of filters:", constants={"elementwise": fits})


def asked_filters(text: str) -> tuple[str, ...]:
    """The parts of ``--sampling``, each once and in one order. Raises ``UsageError`` for what is none."""
    named = [part.strip().lower() for part in text.split(",") if part.strip()]
    unknown = [name for name in named if name not in ASKED]
    if unknown or not named:
        raise UsageError(
            f"--sampling {unknown[0] if unknown else repr(text)} is not known",
            because=f"what is priced of sampling is {', '.join(ASKED)}",
            hint="--sampling top-k,top-p; leave it out for a temperature alone, or greedy",
        )
    return tuple(name for name in ASKED if name in named)


def with_filters(deployment: Deployment, text: str) -> Deployment:
    """The deployment whose requests sample so, with the constants of the engine's kernels.

    Raises ``UsageError`` for an engine, or a device under it, of whose kernels nothing is on file.
    """
    asked = asked_filters(text)
    if deployment.model.bare:
        raise UsageError(
            f"{deployment.model.name} is part of a model, and --sampling needs one with logits",
            hint="leave --sampling out",
        )
    rules, kept = deployment.engine.defaults.filters, tuple(name for name in asked if name != PENALTIES)
    if rules is None:
        raise _unknown(deployment, "its kernels for top-k, top-p and penalties")
    penalty = 0.0
    if PENALTIES in asked:
        if rules.penalty_bytes is None:
            what = "its way with penalties, or their time grows with the answer"
            raise _unknown(deployment, what, "the newest vLLM (--engine vllm), or leave penalties out")
        penalty = rules.penalty_bytes
    chosen = Filters(asked=asked, penalty_bytes=penalty)
    if kept:
        chosen = as_filed(replace(chosen, kernel=_kernel(deployment, rules, kept)), _multiprocessors(deployment))
    calibration = deployment.calibration
    if calibration.basis != "roofline":
        calibration = calibration.beside(filter_constants())
    return replace(deployment, filters=chosen, calibration=calibration)


def _kernel(deployment: Deployment, rules: TokenFilters, kept: tuple[str, ...]) -> str:
    """The kernel for some filters on a device."""
    found = rules.kernels.get(deployment.hardware.vendor)
    if found is None:
        raise _unknown(deployment, f"its kernel on devices of {deployment.hardware.vendor}")
    if "+".join(kept) in rules.untimed:
        raise _unknown(deployment, f"its kernel for {kept[0]} alone", "a newer version, or leave --sampling out")
    return found


def blocks_of(hardware: HardwareSpec) -> int | None:
    """Multiprocessors, each of which takes a thread block: its own, or those of a relative where none are on file."""
    if hardware.multiprocessors or not hardware.relative:
        return hardware.multiprocessors
    return load_hardware(hardware.relative).multiprocessors


def _multiprocessors(deployment: Deployment) -> int:
    found = blocks_of(deployment.hardware)
    if found is None:
        raise _unknown(deployment, "its multiprocessors")
    return found


_ELSEWHERE = "--engine vllm on NVIDIA or AMD, --engine sglang on NVIDIA, or leave --sampling out"


def _unknown(deployment: Deployment, what: str, hint: str = _ELSEWHERE) -> UsageError:
    return UsageError(
        f"the time of --sampling under {deployment.engine.describe()} on {deployment.hardware.name} is not known",
        because=f"nothing is on file of {what}",
        hint=hint,
    )
