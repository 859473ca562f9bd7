"""Fitted constants: how far kernels stay from the datasheet, per operator, format and kernel library.

With :data:`IDEAL` every constant is one or zero: an ideal device. A :class:`Calibration` read from
``configs/calibration`` says where it was measured, over which shapes it holds and how far off it was on shapes that it
was not fitted to.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf, isfinite, log
from typing import Annotated, Any, Literal, Self

import numpy as np

from inferplan.devices.anchors import Anchor
from inferplan.devices.hardware import HardwareSpec
from inferplan.spec import Field, Spec, model_validator
from inferplan.units import Num
from inferplan.validators import AfterValidator
from inferplan.work.ops import BLOCKS, COMPRESSED, KERNELS, MULTI_HEAD


def _known(kernel: str) -> str:
    """Raise ``ValueError`` for a kernel that no operator is: constants of it would price nothing."""
    if kernel not in KERNELS:
        from difflib import get_close_matches

        close = get_close_matches(kernel, KERNELS, n=1)
        raise ValueError(f"{kernel} is not a kernel{f'; did you mean {close[0]}?' if close else ''}")
    return kernel


Constants = dict[Annotated[str, AfterValidator(_known)], dict[str, "Fit"]]
"""``constants[kernel][label]``: the fit of a kernel in a format; the label ``any`` is for all others."""

Errors = Mapping[str, Mapping[str, Mapping[str, dict[str, float]]]]
"""``errors[library][kernel][label]``: held-out errors (:attr:`Fit.error`); :data:`SHARED`: what all engines share."""

ANY = "any"
SHARED = "shared"
MEMORY_CLASSES = ("hbm", "other")
"""Stacked memory on data-centre devices, and everything else: what constants are carried within."""


def memory_class(hardware: HardwareSpec) -> str:
    """Which of :data:`MEMORY_CLASSES` a device belongs to."""
    return "hbm" if hardware.memory.kind.upper().startswith("HBM") else "other"


class Fit(Spec):
    """The constants of one kernel (docs/formulas/roofline.md).

    ``t = overhead + sum(c*count) + ((F/math)^p + (B/memory)^p)^(1/p)`` with ``p = sharpness``, F and B the seconds at
    the datasheet's rates; on links ``((W/memory)^p + (O/scale_out)^p)^(1/p)``, O the seconds on links beyond the
    innermost, those of thread blocks that carry them a third part. Efficiencies are in (0, 1], sharpness is at least
    1 and every further constant is at least 0, so no constant makes a kernel faster than its roofline.
    """

    math: float = Field(default=1.0, gt=0.0, le=1.0)
    memory: float = Field(default=1.0, gt=0.0, le=1.0)
    overhead: float = Field(default=0.0, ge=0.0, le=10.0)
    """Seconds a run, whatever its size."""
    launch: float = Field(default=1.0, ge=0.0, le=1.0)
    """The share of ``overhead`` that is left when kernels follow each other in a step (:class:`StepConstants`)."""
    sharpness: float = Field(default=float("inf"), ge=1.0)
    """How sharply the slower resource hides the faster one: 1 adds them, infinity takes the larger."""
    scale_out: float = Field(default=1.0, gt=0.0, le=1.0)
    """The share of the bandwidth of links beyond the innermost that a group uses; ``memory`` is that of the
    innermost."""
    terms: dict[str, float] = {}
    """Further physical constants by the name of their term in :data:`inferplan.estimate.roofline.TERMS`."""
    basis: Literal["calibrated", "transferred"] = "calibrated"
    """Transferred: measured on another device, or on another kernel of the same class."""
    source: str = ""
    """What was measured, where it was not this kernel in this library on this device."""
    library: str = ""
    """Whose kernels were timed (``cublas``, ``flash-attention-3``, ``torch``), with ``+`` between several; empty where
    the file does not say, and its ``basis`` holds for every engine."""
    n: int = 0
    """Measurements fitted."""
    error: dict[str, float] = {}
    """Held-out error as fractions (mape, median, p90, worst, bias) and the band: 80 % of measurements lie between
    ``low`` and ``high`` times the prediction."""
    flop_range: tuple[float, float] | None = None
    """Smallest and largest FLOP of the shapes that the fit saw."""
    bytes_range: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _numbers(self) -> Self:
        if not all(0.0 <= value < inf for value in self.terms.values()):
            raise ValueError(f"terms must be numbers of zero or more: {self.terms}")
        if not all(map(isfinite, self.error.values())):
            raise ValueError(f"errors must be numbers: {self.error}")
        if self.band is not None and not 0.0 < self.band[0] <= self.band[1]:
            raise ValueError(f"a band must go from low to high, above 0: {self.error}")
        return self

    def covers(self, flop: Num, moved: Num) -> bool:
        """Whether the work lies in the range that the fit saw."""
        for value, bounds in ((flop, self.flop_range), (moved, self.bytes_range)):
            if bounds is not None and (np.min(value) < bounds[0] or np.max(value) > bounds[1]):
                return False
        return True

    @property
    def band(self) -> tuple[float, float] | None:
        """Factors on a predicted time between which 80 % of the held-out measurements lie; ``None`` when unknown."""
        if "low" not in self.error or "high" not in self.error:
            return None
        return self.error["low"], self.error["high"]


def alike(label: str) -> tuple[str, ...]:
    """The labels whose constants stand for those of ``label``, the nearest first (:meth:`Calibration.fit`)."""
    formats = label.removesuffix(MULTI_HEAD).removesuffix(BLOCKS).removesuffix(COMPRESSED)
    size = formats.rsplit("-d", 1)[0]
    return label, formats, size, f"{size}{MULTI_HEAD}", f"{ANY}x{label.rpartition('x')[2]}", ANY


def _of_adapters(matmul: Fit) -> Fit:
    """The constants of LoRA kernels that nobody has measured, from those of a plain matmul of the same format.

    Launches and shares of the peaks are the matmul's, its further terms count tiles that these kernels do not have.
    ``alone`` is 1, not fitted: a thread block by itself has its multiprocessor's share of the bandwidth.
    """
    kept = {name: getattr(matmul, name) for name in ("math", "memory", "overhead", "launch", "sharpness")}
    return Fit(**kept, terms={"alone": 1.0}, basis="transferred", source="a plain matmul's launch and shares")


def _error(known: Sequence[Errors], library: str, kernel: str, label: str) -> dict[str, float]:
    """The first known error of a kernel in a format; empty where there is none."""
    found = (errors.get(library, {}).get(kernel, {}).get(label) for errors in known)
    return next((error for error in found if error), {})


class StepConstants(Spec):
    """What a step costs beyond its kernels, in seconds."""

    host: float = Field(default=0.0, ge=0.0, le=10.0)
    """Scheduling, input preparation and sampling, for each step."""
    layer: float = Field(default=0.0, ge=0.0, le=10.0)
    """Launches and synchronisation, for each layer."""
    sequence: float = Field(default=0.0, ge=0.0, le=10.0)
    """Bookkeeping and detokenising, for each sequence in the step."""
    launch: float = Field(default=1.0, ge=0.0, le=1.0)
    """The share of a kernel's fixed overhead that is left when kernels follow each other in a step."""


class SharedStep(Spec):
    """``configs/step.yaml``: what a step costs on every device, fitted to serving rows."""

    source: str
    provenance: dict[str, Any] = {}
    step: StepConstants


class MeasuredCell(Spec):
    """How far latencies of one kind were off: an engine on a device, serving in one form.

    systems: models that were measured so. ttft, tpot: the factors of measured over predicted between which 80 % of a
    further system's rows are expected; empty where too few systems were measured to say.
    """

    device: str
    engine: str
    forms: tuple[str, ...] = ()
    systems: int = Field(ge=1)
    rows: int = Field(ge=1)
    ttft: tuple[float, float] | None = None
    tpot: tuple[float, float] | None = None

    @property
    def bands(self) -> dict[str, tuple[float, float]]:
        """The factors by metric; a metric without them is left out."""
        return {name: ends for name, ends in (("ttft", self.ttft), ("tpot", self.tpot)) if ends is not None}


class MeasuredBands(Spec):
    """``configs/bands.yaml``: how far measured serving was from its prediction (:mod:`inferplan.estimate.support`).

    families: how many models were measured with each kind of layer, over all cells.
    """

    source: str
    provenance: dict[str, Any] = {}
    cells: tuple[MeasuredCell, ...]
    families: dict[str, int]


AS_THE_MEAN, IN_THE_TAIL = 95.0, 99.0
"""Up to the first percentile measured first tokens are off as their mean is; at the second some are late by seconds
that no step takes: pauses of a host, kernels that are run for the first time (docs/accuracy-percentiles.md)."""


def late_share(percentile: float) -> float:
    """The share of the seconds of the 99th percentile by which a percentile is late: none up to the 95th, all from the
    99th on, and between them linear in the logarithm of the share of requests beyond it."""
    if percentile >= IN_THE_TAIL:
        return 1.0
    beyond = (100.0 - AS_THE_MEAN) / (100.0 - percentile)
    return max(log(beyond), 0.0) / log((100.0 - AS_THE_MEAN) / (100.0 - IN_THE_TAIL))


_PLACES = 64
"""Equal steps up to the seconds of the 99th percentile, between which sums of late calls are told apart."""


def late_together(calls: int, percentile: float) -> float:
    """The seconds of the 99th percentile of one call, so many times, by which the first tokens of ``calls`` that do not
    depend on each other are late in all, at a percentile of such sums; of one call :func:`late_share`.

    One call is late by more than a share ``x < 1`` of those seconds with ``0.05*5**-x``, the same law from its other
    end, and never by more than all; the law of the sum is the power of its Fourier transform.
    """
    often = (100.0 - AS_THE_MEAN) / 100.0
    beyond = often * ((100.0 - IN_THE_TAIL) / (100.0 - AS_THE_MEAN)) ** (np.arange(_PLACES) / _PLACES)
    one = -np.diff([1.0, *beyond, 0.0])  # none; up to each place; the seconds of the 99th or more
    size = calls * _PLACES + 1
    law = np.fft.irfft(np.fft.rfft(one, 2 * size) ** calls, 2 * size)[:size]
    return float(np.searchsorted(np.cumsum(law), percentile / 100.0 - 1e-9)) / _PLACES


BeginsAs = Literal["burst", "steady"]
"""burst: all users begin at once, so that the first requests are the slowest. steady: any other load."""
QUANTILES = (0.1, 0.5, 0.8, 0.9, 0.95, 0.99)
"""At which shares of measured rows :class:`LateTokens` knows its seconds."""


class LateTokens(Spec):
    """How much later than predicted first tokens were at the 99th percentile: an engine that serves in one form.

    systems: models on devices that were measured so. seconds: measured less predicted, at :data:`QUANTILES` of the
    rows, each system weighted by the root of its number of rows; empty for too few systems.
    """

    engine: str
    load: BeginsAs
    forms: tuple[str, ...] = ()
    systems: int = Field(ge=1)
    rows: int = Field(ge=1)
    seconds: tuple[float, ...] = ()

    def at(self, share: float) -> float:
        """The seconds that this share of rows stays below, linear between the quantiles; those of the last beyond."""
        return float(np.interp(share, QUANTILES, self.seconds))

    def between(self, percentile: float) -> tuple[float, float] | None:
        """Seconds by which 80 % of measured first tokens are late at a percentile, from and to, 0 among them; ``None``
        up to the 95th."""
        share = late_share(percentile)
        return (share * min(self.at(0.1), 0.0), share * max(self.at(0.9), 0.0)) if share else None


class MeasuredTails(Spec):
    """``configs/tails.yaml``: what measured percentiles of the first token hold beyond steps and queues.

    first_burst: by which share of their time requests take longer to their first token which find a server without
    traffic, all at once. It is part of the ``latency`` that was fitted to means of runs in which such requests are a
    tenth, so the others take less.
    vendors: of the devices on which that is so.
    """

    source: str
    provenance: dict[str, Any] = {}
    first_burst: float = Field(ge=0)
    vendors: tuple[str, ...]
    kinds: tuple[LateTokens, ...]


class Overlay(Spec):
    """A calibration that was asked for and lies over the constants on file (:mod:`inferplan.catalog.overlay`)."""

    file: str
    over: Literal["roofline", "calibrated", "transferred"]
    """The basis of the constants below it."""
    used: dict[str, list[str]] = {}
    """By kernel the formats whose constants are the file's."""
    unused: dict[str, dict[str, str]] = {}
    """By kernel and format, which constants on file stand before those of the file."""


class Calibration(Spec):
    """Constants by kernel: ``constants["matmul"]["bf16"]``, with ``"any"`` for kernels whose format does not matter.

    libraries: constants of the kernels that an engine brings; :meth:`for_engine` merges them into ``constants``, which
    holds what every engine shares.
    """

    name: str = Field(min_length=1)
    basis: Literal["roofline", "calibrated", "transferred"] = "calibrated"
    provenance: dict[str, Any] = {}
    constants: Constants = {}
    libraries: dict[str, Constants] = {}
    vendors: list[str] = []
    """Makers of the devices that were measured; empty for constants that belong to one device."""
    step: StepConstants = StepConstants.default()
    engine: str = ""
    """Whose steps they were learned from (``inferplan learn``); empty where they are of kernels, or of all engines."""
    shares_step: bool = False
    """Whether ``step`` is that of all devices and engines; an engine whose own host was measured takes that."""
    bands: dict[str, tuple[float, float]] = {}
    """What serving adds to the bands of the kernels, by metric, where a file of constants has bands of its own."""
    systems: dict[str, dict[str, int]] = {}
    """How many systems stand behind those, by ``device``, ``form`` and ``family``."""
    measured: MeasuredBands | None = None
    tails: MeasuredTails | None = None
    """How far serving was off on devices, engines and forms that share the constants of a step."""
    anchor: Anchor | None = None
    """Measured runs of the system that is priced, from a file of its own (``--anchor``)."""
    held_out: dict[str, Any] = {}
    carried: dict[str, float] = {}
    """The error that these constants and those of a relative had on each other's device, where no kernel was timed."""
    range: dict[str, Any] = {}
    fused: bool = False
    """Epilogues (residuals, rotary, activation products, KV writes, norms) cost nothing of their own."""
    release: str = ""
    """The engine release whose kernels were asked for (``vllm@0.19``), and in ``note`` what they are, for people."""
    note: str = ""
    overlay: Overlay | None = None
    """What of the constants is of a calibration that was asked for."""

    def fit(self, kernel: str, label: str) -> Fit | None:
        """The constants of a kernel in a format; ``None`` when nobody has measured it or anything like it.

        A head size that nobody has measured (``bf16-d64``) takes the format's own constants, weights in a format that
        nobody has those of any weights with their inputs (``anyxq8_1``), a format the kernel's; experts whose rows are
        exchanged those of experts; attention both ways that of prompts. LoRA adapters take of a plain matmul what its
        launch costs and what it reaches of the peaks (:func:`_of_adapters`): what error that has nobody has measured.
        """
        if (kernel, label) not in self._fits:
            self._fits[kernel, label] = self._fit(kernel, label)
        return self._fits[kernel, label]

    @cached_property
    def _fits(self) -> dict[tuple[str, str], Fit | None]:
        return {}

    def _fit(self, kernel: str, label: str) -> Fit | None:
        place = self.place(kernel, label)
        if place is None:
            return None
        found = self.constants[place[0]][place[1]]
        if kernel == "grouped_matmul.adapter" != place[0]:
            return _of_adapters(found)
        stands_in = kernel == "attention.encoder" != place[0]
        return found.model_copy(update={"basis": "transferred"}) if stands_in else found

    def place(self, kernel: str, label: str) -> tuple[str, str] | None:
        """The kernel and the format under which the constants of :meth:`fit` stand."""
        general, _, form = kernel.partition(".")
        if form in ("exchanged", "adapter"):
            own = label in self.constants.get(kernel, {})
            return (kernel, label) if own else self.place("matmul" if form == "adapter" else general, label)
        formats = self.constants.get(kernel, {})
        if form == "encoder" and not formats:
            return self.place("attention.prefill", label)
        return next(((kernel, name) for name in alike(label) if name in formats), None)

    @property
    def described(self) -> str:
        """Whose constants these are: the name of those on file and, over them, the file that was asked for."""
        over = self.overlay is not None and any(self.overlay.used.values())
        return f"{self.overlay.file} over {self.name}" if over and self.overlay is not None else self.name

    def of_file(self, kernel: str, label: str) -> bool:
        """Whether the constants of a kernel in a format are those of the calibration that was asked for."""
        place = self.place(kernel, label) if self.overlay else None
        return place is not None and self.overlay is not None and place[1] in self.overlay.used.get(place[0], ())

    def for_engine(self, engine: str, lender: str = "") -> Self:
        """The same with the kernels of ``engine`` chosen.

        Kernel by kernel and format by format: the engine's own library; else that of ``lender``, then the first of the
        others that has it, in the file's order, as ``transferred``; else what all engines share. Where there is a
        lender, no error is known of another engine's kernels.
        """
        if not self.libraries:
            return self
        chosen: dict[str, dict[str, Fit]] = {kernel: dict(formats) for kernel, formats in self.constants.items()}
        others = [name for name in self.libraries if name not in (engine, lender)]
        for name in [*reversed(others), lender, engine]:
            borrowed: dict[str, Any] = {"basis": "transferred"}
            borrowed |= {} if name == lender else {"source": f"{name}'s kernel"}
            borrowed |= {"error": {}} if lender else {}
            for kernel, formats in self.libraries.get(name, {}).items():
                for label, fit in formats.items():
                    own = fit if name == engine else fit.model_copy(update=borrowed)
                    chosen.setdefault(kernel, {})[label] = own
        return self.model_copy(update={"constants": chosen, "libraries": {}})

    def lent(self, lender: str, engine: str, shared_first: bool = False) -> Self:
        """The same with the kernels of ``lender`` for those of ``engine`` that nobody has timed, and a note of it.

        What belongs to no engine, and what ``engine`` has of its own, stays as it was measured. shared_first: nothing
        is lent for what belongs to no engine.
        """
        taken = self.constants if shared_first else {}
        libraries = {
            name: {
                kernel: {label: fit for label, fit in formats.items() if label not in taken.get(kernel, {})}
                for kernel, formats in constants.items()
            }
            for name, constants in self.libraries.items()
            if name != engine
        }
        own = {engine: self.libraries[engine]} if engine in self.libraries else {}
        chosen = self.model_copy(update={"libraries": libraries | own}).for_engine(engine, lender)
        if not libraries:
            return chosen
        said = f"no kernels of {engine} are on file: {lender}'s stand for them, with no error known"
        return chosen.model_copy(update={"note": f"{chosen.note}; {said}" if chosen.note else said})

    def for_vendor(self, vendor: str) -> Self:
        """The same for a device of ``vendor``: where none of its devices was measured, no error is known."""
        return self if not self.vendors or vendor in self.vendors else self._each({"error": {}})

    def borrowed(self, known: Sequence[Errors] = (), otherwise: dict[str, float] | None = None) -> Self:
        """The same for another device than the one that was measured.

        known: errors that constants carried like this had on measured devices; the first that has the kernel in the
        format counts. Where none has, it is ``otherwise`` for a constant that has an error on its own device; else no
        error is known.
        """

        def error(library: str, kernel: str, label: str, fit: Fit) -> dict[str, float]:
            return _error(known, library, kernel, label) or (fit.error and otherwise) or {}

        def carried(library: str, constants: Constants) -> Constants:
            return {
                kernel: {
                    label: fit.model_copy(update=carried_on | {"error": error(library, kernel, label, fit)})
                    for label, fit in formats.items()
                }
                for kernel, formats in constants.items()
            }

        carried_on = {"basis": "transferred", "source": f"{self.name}'s constants"}
        libraries = {name: carried(name, constants) for name, constants in self.libraries.items()}
        constants = carried(SHARED, self.constants)
        return self.model_copy(update={"constants": constants, "libraries": libraries, "basis": "transferred"})

    def reading(self, most: float, experts: float | None = None) -> Self:
        """The same where kernels reach no more than such a share of the memory's bandwidth, and those of experts
        ``experts``, ``None`` for the same; how far off it is, nobody has measured."""

        def slower(constants: Constants) -> Constants:
            shares = {
                kernel: experts if experts and kernel.startswith("grouped_matmul") else most for kernel in constants
            }
            return {
                kernel: {
                    label: fit.model_copy(update={"memory": min(fit.memory, shares[kernel]), "error": {}})
                    for label, fit in formats.items()
                }
                for kernel, formats in constants.items()
            }

        libraries = {name: slower(constants) for name, constants in self.libraries.items()}
        return self.model_copy(update={"constants": slower(self.constants), "libraries": libraries})

    def beside(self, other: Self) -> Self:
        """The same with the constants of ``other`` for kernels and formats that it lacks, once an engine is chosen."""
        constants = {kernel: dict(formats) for kernel, formats in self.constants.items()}
        for kernel, formats in other.constants.items():
            for label, fit in formats.items():
                if label not in constants.get(kernel, {}):
                    source = f"{other.name} constants{fit.source and ', '}{fit.source}"
                    constants.setdefault(kernel, {})[label] = fit.model_copy(update={"source": source})
        return self.model_copy(update={"constants": constants})

    @property
    def errors(self) -> Errors:
        """The error of every constant that has one, by library, kernel and format."""
        parts = {SHARED: self.constants, **self.libraries}
        return {
            library: {
                kernel: {label: fit.error for label, fit in formats.items() if fit.error}
                for kernel, formats in constants.items()
            }
            for library, constants in parts.items()
        }

    def _each(self, update: dict[str, Any]) -> Self:
        """The same with every kernel's fit changed so."""

        def changed(constants: Constants) -> Constants:
            return {
                kernel: {label: fit.model_copy(update=update) for label, fit in formats.items()}
                for kernel, formats in constants.items()
            }

        libraries = {name: changed(constants) for name, constants in self.libraries.items()}
        return self.model_copy(update={"constants": changed(self.constants), "libraries": libraries})

    @property
    def has_bands(self) -> bool:
        """Whether any error of serving is known."""
        return bool(self.bands) or self.measured is not None

    def with_step(
        self, shared: SharedStep, measured: MeasuredBands | None = None, tails: MeasuredTails | None = None
    ) -> Self:
        """The same with the shared constants of a step, unless it has its own or is the bare roofline; ``measured``,
        ``tails``: how far serving with these was off, in the mean and in percentiles."""
        if self.basis == "roofline" or self.step != StepConstants.default():
            return self
        launch = shared.step.launch

        def replayed(constants: Constants) -> Constants:
            return {
                kernel: {label: fit.model_copy(update={"launch": launch}) for label, fit in fits.items()}
                for kernel, fits in constants.items()
            }

        libraries = {name: replayed(constants) for name, constants in self.libraries.items()}
        update = {"constants": replayed(self.constants), "libraries": libraries}
        update |= {"step": shared.step, "shares_step": True, "measured": measured, "tails": tails}
        return self.model_copy(update=update)

    def band(self, kernel: str, label: str) -> tuple[float, float] | None:
        """The 80 % band of a kernel, as factors on its time; ``None`` when no held-out error stands behind it."""
        fit = self.fit(kernel, label)
        return None if fit is None else fit.band


IDEAL = Calibration.model_construct(name="ideal", basis="roofline", fused=True)
"""An ideal device: every kernel saturates the resource that binds it, epilogues are free, nothing else costs."""
