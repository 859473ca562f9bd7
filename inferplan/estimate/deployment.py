"""A deployment: a model on hardware, in formats, divided, under an engine, priced with constants; checked together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inferplan.devices.constants import IDEAL, Calibration, StepConstants
from inferplan.devices.engine import Engine
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import MissingFactError, UsageError
from inferplan.estimate.towers import Carried
from inferplan.models.spec import ModelSpec, require_experts, uncounted
from inferplan.shown import Shown
from inferplan.terms import Term, named
from inferplan.work.adapters import Adapters
from inferplan.work.formats import Precision, arithmetic
from inferplan.work.parallel import Parallelism, require_even, split_layers
from inferplan.work.routing import UNIFORM, Routing

_SIXTEEN_BITS = 16


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Deployment(Shown):
    """The argument of every calculation.

    Raises on creation what can never work: an indivisible layer, no arithmetic.
    """

    model: ModelSpec
    hardware: HardwareSpec
    precision: Precision
    parallel: Parallelism
    engine: Engine
    calibration: Calibration = IDEAL
    unfused_attention: bool = False
    routing: Routing = UNIFORM
    media: Carried | None = None
    """What every request carries beside text."""
    lora: Adapters | None = None
    """LoRA adapters beside its matrices."""

    def __post_init__(self) -> None:
        if self.parallel.redundant:
            require_experts(self.model, "--redundant-experts")
            if self.parallel.ep == 1:
                raise UsageError(
                    "--redundant-experts balance expert groups, and --ep 1 is a single one", hint="a larger --ep"
                )
        if self.model.encoder is not None:
            self._one_stage()
        if self.model.encoder is not None or self.model.encodes:
            self._read_whole()
        self.model.check(self.parallel)
        split_layers(max(len(self.model.sequence), 1), self.parallel.pp)
        self._check_arithmetic()
        self._check_experts()
        if self.lora is not None and self.parallel.spread_dense:
            raise UsageError("adapters of dense layers that are spread over attention ranks are not known here")
        if self.parallel.ranks > 1:
            self.hardware.link(min(self.parallel.ranks, max(self.parallel.stage_ranks, 2)))

    def _one_stage(self) -> None:
        """Raise ``UsageError`` for a division of an encoder-decoder that is not known."""
        for option, degree in (("--pp", self.parallel.pp), ("--dp", self.parallel.dp), ("--cp", self.parallel.cp)):
            if degree > 1:
                raise UsageError(
                    f"{option} {degree} of an encoder-decoder is not known here",
                    because=f"{self.model.name} has an encoder, whose output every layer of its decoder reads",
                    hint="--tp, or --replicas",
                )

    def _read_whole(self) -> None:
        """Take the engine as it serves a model with an encoder: a prompt is read in one pass."""
        defaults = self.engine.defaults
        if defaults.scheduler != (scheduler := defaults.scheduler.whole_prompts()):
            defaults = defaults.model_copy(update={"scheduler": scheduler})
            object.__setattr__(self, "engine", self.engine.model_copy(update={"defaults": defaults}))

    @property
    def step(self) -> StepConstants:
        """What a step costs beyond its kernels: shared constants, with the engine's own host where it was measured."""
        shared, own = self.calibration.step, self.engine.step
        if own is None or not self.calibration.shares_step:
            return shared
        return shared.model_copy(update=own.model_dump(include={"host", "sequence"}, exclude_none=True))

    @property
    def two_batches(self) -> tuple[int, int] | None:
        """Tokens of a rank from which a step that decodes, and one with prompts, is cut into two overlapping halves."""
        return self.engine.defaults.wide.two_batches if self.engine.defaults.two_batch_overlap else None

    def _check_experts(self) -> None:
        """Raise what the engine cannot do with experts that are spread over ranks."""
        engine, wide, parallel = self.engine, self.engine.defaults.wide, self.parallel
        if parallel.redundant:
            engine.require_copies()
        if parallel.spread_dense and not wide.spread_dense:
            raise UsageError(
                f"{engine.describe()} keeps dense layers with their attention ranks", hint="leave --spread-dense out"
            )
        if parallel.ep > 1 and not wide.uneven:
            for experts in {weight.units for weight, _ in self.model.weights() if weight.shard == "experts"}:
                require_even(parallel, experts, engine.describe(), wide.redundant)
        if engine.defaults.two_batch_overlap:
            require_experts(self.model, "--two-batch-overlap")
            engine.require_halves()
            if parallel.dp == 1:
                raise UsageError(
                    "--two-batch-overlap hides the exchange between attention ranks and experts",
                    because="--dp 1 exchanges nothing",
                    hint="--dp 2 or more, or leave it out",
                )

    @property
    def running(self) -> Precision:
        """Its formats as the engine multiplies them (:meth:`Engine.inputs`)."""
        return self.engine.inputs(self.precision, self.hardware)

    def _check_arithmetic(self) -> None:
        precision = self.running
        for weights in dict.fromkeys((precision.weights, precision.experts, precision.base, precision.head)):
            math = arithmetic(weights, precision.linear_input(weights))
            try:
                self.hardware.peak_of(math)
            except MissingFactError as error:
                inputs = precision.activations
                odd = inputs.bits == _SIXTEEN_BITS and math == inputs.math != precision.base.math
                hint = f"--activations {precision.base.name}" if odd else error.hint
                raise MissingFactError(f"{error.what}, which {self.formats} needs", error.because, hint) from None

    @property
    def formats(self) -> str:
        """Its formats in words, of the roles that its model has: ``"weights fp8, activations fp8"``."""
        return self.precision.describe(self.model.has_experts)

    @property
    def formats_note(self) -> str:
        """What stands for the checkpoint's 16-bit format where the device multiplies only the other one; else empty."""
        native, base = self.model.native.base, self.precision.base
        if base.name == native or base.bits != _SIXTEEN_BITS or native in self.hardware.peak:
            return ""
        return f"16 bits are {base.name}: {self.hardware.name} has no {native} arithmetic on file"

    @property
    def warnings(self) -> list[str]:
        """What its figures do not count, or rest on that nobody has said: every command shows it."""
        formats = dict.fromkeys((self.precision.weights, self.precision.experts))
        caveats = [f"{one.name}: {one.caveat}" for one in formats if one.caveat]
        return [*uncounted(self.model), *([] if self.media is None else self.media.notes), *caveats]

    @property
    def math(self) -> str:
        """The arithmetic of its linear layers, which sets the ridge point."""
        return arithmetic(self.running.weights, self.running.linear_input(self.running.weights))

    @property
    def ridge(self) -> float:
        """FLOP per byte above which its linear layers are limited by arithmetic."""
        return self.hardware.ridge(self.math)

    def ridge_terms(self) -> Term:
        """The ridge point with its formula."""
        peak = named(self.hardware.peak_of(self.math), "peak", "FLOP/s", ("hardware", "peak", self.math))
        bandwidth = named(self.hardware.memory.bandwidth, "bandwidth", "B/s", ("hardware", "memory", "bandwidth"))
        term: Term = named(peak / bandwidth, "ridge", "FLOP/B")
        return term

    def further(self) -> dict[str, Any]:
        """What else its figures are conditional on beside names, formats and degrees, as JSON holds it."""
        defaults = self.engine.defaults
        return {
            "expert_skew": self.routing.asked,
            "two_batch_overlap": self.two_batches is not None,
            "unfused_attention": self.unfused_attention,
            "media": None if self.media is None else self.media.to_dict(),
            "lora": None if self.lora is None else self.lora.to_dict(),
            "model_notes": self.warnings,
            "generates": not self.model.encodes,
            "gpu_memory_utilization": defaults.memory_fraction,
            "block_size": defaults.block_size,
        }

    @property
    def division(self) -> str:
        """How it is divided, in words: ``"ep 8, dp 8, two half batches"``."""
        return self.parallel.describe() + (", two half batches" if self.two_batches else "")

    def describe(self) -> str:
        devices = f"{self.parallel.devices} x {self.hardware.name}"
        division = f" ({self.division})" if self.parallel.devices > 1 else ""
        return f"{self.model.name} in {self.formats} on {devices}{division}"
