"""A deployment: a model on hardware, in formats, divided, under an engine, priced with constants; checked together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from inferplan.devices.cadence import Cadence, cadence_of
from inferplan.devices.constants import IDEAL, Calibration, StepConstants
from inferplan.devices.engine import CADENCE, Engine
from inferplan.devices.hardware import HardwareSpec, Link
from inferplan.devices.power import PowerCap
from inferplan.errors import MissingFactError, UsageError
from inferplan.estimate.formats import names_cache
from inferplan.estimate.resting import (
    PARTS,
    Kind,
    Resting,
    adapters_rest_on,
    collectives_rest_on,
    host_rests_on,
    kernels_rest_on,
)
from inferplan.estimate.towers import Carried
from inferplan.features import require_together, those
from inferplan.models.layers.moe import MoeLayer
from inferplan.models.spec import LayerGroup, ModelSpec, require_experts, uncounted_notes
from inferplan.shown import Shown
from inferplan.terms import Term, name_term
from inferplan.units import format_bytes
from inferplan.work.adapters import Adapters
from inferplan.work.filters import Filters
from inferplan.work.formats import Precision, arithmetic
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism, require_even, split_layers
from inferplan.work.routing import UNIFORM, Routing

_SIXTEEN_BITS = 16
_More = ParamSpec("_More")
_Found = TypeVar("_Found")
UNMEASURED_ADAPTERS = (
    "LoRA: no adapter kernel was measured; the times count launches and bytes, and no error band applies (docs/lora.md)"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Offload:
    """What of a model lies in the host's memory, where the host's processor computes it (docs/offload.md).

    host: the same model on the host alone. link: between device and host. layers: the first so many are the host's,
    with their cache. head: so is the last matmul, over the vocabulary. experts: of the first so many layers the routed
    experts are. The embedding table always is. waits: seconds of each layer whose experts alone are the host's, beyond
    the kernels of both sides.
    """

    host: Deployment
    link: Link
    layers: int = 0
    head: bool = False
    experts: int = 0
    waits: float = 0.0

    @property
    def apart(self) -> int:
        """Layers on the device whose experts are the host's."""
        return sum(bool(moe_parts(layer)) for layer in self.host.model.sequence[self.layers : self.experts])

    def keeping(self, here: int) -> Offload:
        """The same with ``here`` layers on the device, as llama.cpp counts and places them.

        The head is the layer behind the last, and layers go to the device from the end (``llama_model::load_tensors``,
        src/llama-model.cpp at 360e134: ``i_gpu_start = max(n_layer + 1 - n_gpu_layers, 0)``): 1 is the head alone.
        """
        whole = len(self.host.model.sequence)
        return replace(self, layers=min(max(whole + 1 - here, 0), whole), head=here == 0)

    @property
    def wire(self) -> HardwareSpec:
        """The host with this link alone, to price what crosses."""
        return self.host.hardware.model_copy(update={"links": [self.link.model_copy(update={"domain": None})]})

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "host": self.host.hardware.name,
            "host_layers": self.layers,
            "head_on_host": self.head,
            "cpu_moe_layers": self.experts,
            "link": self.link.name,
            "link_bytes_per_s": self.link.bandwidth,
        }

    def describe(self) -> str:
        """In words: ``"40 of 80 layers on epyc-9654"``."""
        whole = len(self.host.model.sequence)
        parts = [f"{self.layers} of {whole} layers"] if self.layers else []
        parts += [f"experts of the first {self.experts} layers"] if self.experts > self.layers else []
        return f"{', '.join(parts) or 'embedding'} on {self.host.hardware.name}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Streamed:
    """Weights in the host's memory that the devices read over their links in every step (docs/offload.md).

    bytes: of each device's layers, the first so many. link: of one device to the host.
    """

    host: HardwareSpec
    link: Link
    bytes: float

    def over(self, hardware: HardwareSpec, ranks: int) -> HardwareSpec:
        """A device with what its link brings it while all read: the host's memory is shared by ``ranks``."""
        rate = min(self.link.bandwidth, self.host.memory.bandwidth / ranks)
        return hardware.model_copy(update={"host_link": self.link.model_copy(update={"bandwidth": rate})})

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "host": self.host.name,
            "streamed_bytes": self.bytes,
            "link": self.link.name,
            "link_bytes_per_s": self.link.bandwidth,
        }

    def describe(self) -> str:
        """In words."""
        return f"up to {format_bytes(self.bytes)} of the layers of each in the memory of {self.host.name}"


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
    offload: Offload | None = None
    """What of it the host computes."""
    streamed: Streamed | None = None
    """What of its weights is read from the host's memory."""
    cap: PowerCap | None = None
    """On the watts of each device; none is its TDP."""
    filters: Filters | None = None
    """What requests sample with beyond a temperature."""

    def __post_init__(self) -> None:
        require_together("deployment", self.features)
        self.engine.require_device(self.hardware)
        self.hardware.require_one_socket(self.parallel.devices)
        self.engine.require_division(self.parallel, self.hardware.name)
        if names_cache(self.model, self.precision):
            self.engine.require_cache(self.precision.kv.name, self.hardware)
        if self.parallel.redundant:
            require_experts(self.model, "--redundant-experts")
            if self.parallel.ep == 1:
                raise UsageError(
                    "--redundant-experts balance several expert groups, and --ep 1 is one", hint="a larger --ep"
                )
        if self.model.encoder is not None or self.model.encodes:
            self._read_whole()
        self.model.check(self.parallel)
        split_layers(max(len(self.model.sequence), 1), self.parallel.pp)
        self._check_arithmetic()
        self._check_experts()
        _ = self.cadence  # which raises for what the engine does not heed
        if self.parallel.ranks > 1:
            self.hardware.link(min(self.parallel.ranks, max(self.parallel.stage_ranks, 2)))
        if self.offload is not None and self.model.bare:
            raise UsageError(
                f"{self.model.name} is part of a model, and layers on the host need a whole one",
                hint="leave --gpu-layers and --cpu-moe-layers out",
            )

    @cached_property
    def found(self) -> dict[Any, Any]:
        """What :func:`found_once` has worked out of it."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "found"}

    @cached_property
    def features(self) -> set[str]:
        """As :mod:`inferplan.features` names them."""
        parallel = self.parallel
        return self.model.features | those(
            several_devices=parallel.ranks > 1,
            pipelines=parallel.pp > 1,
            attention_dp=parallel.dp > 1,
            coupled_ranks=self.coupled_ranks > 1,
            context_parallel=parallel.cp > 1,
            spread_dense=parallel.spread_dense,
            replicas=parallel.replicas > 1,
            adapters=self.lora is not None,
            media=self.media is not None,
            static_batches=self.engine.policy == "static",
            anchor=self.calibration.anchor is not None,
            mig=self.hardware.part is not None,
            host_layers=self.offload is not None and (self.offload.layers > 0 or self.offload.head),
            host_experts=self.offload is not None and self.offload.experts > 0,
            streamed=self.streamed is not None,
            two_batches=self.engine.defaults.two_batch_overlap,
            cadence=self.cadence.any,
            power_cap=self.cap is not None,
            filters=self.filters is not None,
        )

    @cached_property
    def _over_link(self) -> HardwareSpec:
        assert self.streamed is not None  # nothing else leaves weights elsewhere
        return self.streamed.over(self.hardware, self.parallel.ranks)

    def runs_on(self, op: Op) -> tuple[HardwareSpec, Calibration, PowerCap | None]:
        """The device that runs an operator, the constants that price it there, and the cap on what it draws; a link has
        no constants but its rate."""
        if op.place == "device":
            return self._over_link if op.far else self.hardware, self.calibration, self.cap
        assert self.offload is not None  # nothing else puts an operator elsewhere
        if op.place == "link":
            return self.offload.wire, IDEAL, None
        return self.offload.host.hardware, self.offload.host.calibration, None

    def _read_whole(self) -> None:
        """Take the engine as it serves a model with an encoder: a prompt is read in one pass."""
        defaults = self.engine.defaults
        if defaults.scheduler != (scheduler := defaults.scheduler.whole_prompts()):
            defaults = defaults.model_copy(update={"scheduler": scheduler})
            object.__setattr__(self, "engine", self.engine.model_copy(update={"defaults": defaults}))

    @cached_property
    def step(self) -> StepConstants:
        """What a step costs beyond its kernels: shared constants, with the engine's own host where it was measured."""
        if self.offload is not None and self.offload.head:
            return self.offload.host.step
        shared, own = self.calibration.step, self.engine.step
        if own is None or not self.calibration.shares_step:
            return shared
        return shared.model_copy(update=own.model_dump(include={"host", "sequence"}, exclude_none=True))

    @property
    def two_batches(self) -> tuple[int, int] | None:
        """Tokens of a rank from which a step that decodes, and one with prompts, is cut into two overlapping halves."""
        return self.engine.defaults.wide.two_batches if self.engine.defaults.two_batch_overlap else None

    @property
    def coupled_ranks(self) -> int:
        """Attention ranks that make every step together, which ends with the slowest: all of a replica where they share
        experts, else each for itself. Ranks without requests take part (vLLM's engines run dummy batches)."""
        return self.parallel.dp if self.model.has_experts else 1

    @cached_property
    def cadence(self) -> Cadence:
        """How prompts are kept out of most steps; raises as :func:`inferplan.devices.cadence.cadence_of`."""
        return cadence_of(self.engine, self.coupled_ranks)

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
        """What stands for the checkpoint's 16-bit format on a device without it, or for 32 bits in the engine."""
        native, base = self.model.native.base, self.precision.base
        if narrows(self):
            return f"16 bits: {self.engine.name} runs this checkpoint of fp32 in {base.name} (as it is: --quant fp32)"
        if base.name == native or base.bits != _SIXTEEN_BITS or native in self.hardware.peak:
            return ""
        return f"16 bits are {base.name}: {self.hardware.name} has no {native} arithmetic on file"

    @property
    def warnings(self) -> list[str]:
        """What its figures do not count, or rest on that nobody has said."""
        formats = dict.fromkeys((self.precision.weights, self.precision.experts))
        caveats = [f"{one.name}: {one.caveat}" for one in formats if one.caveat]
        unmeasured = [UNMEASURED_ADAPTERS] if self.adapters_unmeasured else []
        bridge = filter(None, [self.hardware.bridge_line(self.parallel.ranks)])
        media = [] if self.media is None else self.media.notes
        return [*uncounted_notes(self.model), *media, *caveats, *unmeasured, *bridge]

    @property
    def model_lines(self) -> list[str]:
        """How far the counts of its model can be trusted, then each warning: what every command shows of it."""
        kept = [*filter(None, [self.formats_note]), *([self.cadence.words] if self.cadence.any else [])]
        return [self.model.made_from.line, *kept, *(f"note: {text}" for text in self.warnings)]

    @property
    def adapters_unmeasured(self) -> bool:
        """Whether its steps run LoRA kernels that have no constants of their own; an ideal device has none at all."""
        none = self.lora is None or self.lora.active == 0 or self.calibration.basis == "roofline"
        return not none and "grouped_matmul.adapter" not in self.calibration.constants

    @property
    def math(self) -> str:
        """The arithmetic of its linear layers, which sets the ridge point."""
        return arithmetic(self.running.weights, self.running.linear_input(self.running.weights))

    @property
    def ridge(self) -> float:
        """FLOP per byte above which its linear layers are limited by arithmetic."""
        return self.hardware.ridge(self.math)

    def further(self) -> dict[str, Any]:
        """What else its figures are conditional on beside names, formats and degrees, as JSON holds it."""
        return _further(self)

    @property
    def division(self) -> str:
        """How it is divided, in words: ``"ep 8, dp 8, two half batches"``."""
        return self.parallel.describe() + (", two half batches" if self.two_batches else "")

    @property
    def elsewhere(self) -> list[Offload | Streamed]:
        """What of it lies in the memory of its host."""
        return [one for one in (self.offload, self.streamed) if one is not None]

    def describe(self) -> str:
        devices = f"{self.parallel.devices} x {self.hardware.name}"
        division = f" ({self.division})" if self.parallel.devices > 1 else ""
        there = "".join(f", {one.describe()}" for one in self.elsewhere)
        there += "" if self.cap is None else f", {self.cap.watts:g} W each"
        return f"{self.model.name} in {self.formats} on {devices}{division}{there}"

    def replicated(self, replicas: int) -> str:
        """So many of it: ``"7 replicas of llama-3.1-8b in fp8, each on 1 x h100-sxm"``; of one, itself."""
        if replicas == 1:
            return self.describe()
        what = self.describe().removeprefix(f"{self.model.name} in {self.formats} on ")
        return f"{replicas} replicas of {self.model.name} in {self.formats}, each on {what}"


def found_once(
    work: Callable[Concatenate[Deployment, _More], _Found],
) -> Callable[Concatenate[Deployment, _More], _Found]:
    """The same function, which works once for a deployment and further arguments, which can be hashed. What it found
    lives as long as the deployment.
    """

    @wraps(work)
    def known(deployment: Deployment, /, *args: _More.args, **kwargs: _More.kwargs) -> _Found:
        key = work, args, *kwargs.items()
        if key not in deployment.found:
            deployment.found[key] = work(deployment, *args, **kwargs)
        found: _Found = deployment.found[key]
        return found

    return known


def ridge_terms(deployment: Deployment) -> Term:
    """The ridge point with its formula."""
    hardware, math = deployment.hardware, deployment.math
    peak = name_term(hardware.peak_of(math), "peak", "FLOP/s", ("hardware", "peak", math))
    bandwidth = name_term(hardware.memory.bandwidth, "bandwidth", "B/s", ("hardware", "memory", "bandwidth"))
    term: Term = name_term(peak / bandwidth, "ridge", "FLOP/B")
    return term


def _further(deployment: Deployment) -> dict[str, Any]:
    """See :meth:`Deployment.further`."""
    return {
        "expert_skew": deployment.routing.asked,
        "two_batch_overlap": deployment.two_batches is not None,
        **{name: getattr(deployment.engine.defaults, name) for name in CADENCE},
        "unfused_attention": deployment.unfused_attention,
        **{name: one and one.to_dict() for name, one in (("media", deployment.media), ("lora", deployment.lora))},
        **{
            name: one and one.to_dict()
            for name, one in (("offload", deployment.offload), ("streamed", deployment.streamed))
        },
        "host_s": _host_seconds(deployment),
        "power_cap_w": None if deployment.cap is None else deployment.cap.watts,
        "sampling": None if deployment.filters is None else ",".join(deployment.filters.asked),
        "model_counts": deployment.model.made_from.to_dict(),
        "model_notes": deployment.warnings,
        "rests_on": parts_rest_on(deployment),
        "generates": not deployment.model.encodes,
        "gpu_memory_utilization": deployment.engine.defaults.memory_fraction,
        "block_size": deployment.engine.defaults.block_size,
    }


def moe_parts(layer: LayerGroup) -> list[MoeLayer]:
    """The parts of a layer that have experts."""
    return [one for one in layer.parts if isinstance(one, MoeLayer)]


def _host_seconds(deployment: Deployment) -> dict[str, float] | None:
    """What a deployment's host takes beside kernels; ``None`` where no host is counted."""
    if deployment.calibration.basis == "roofline":
        return None
    serving = deployment.engine.serving
    return {"step": deployment.step.host, "layer": serving.eager_layer, "request": serving.latency}


def parts_rest_on(deployment: Deployment) -> dict[str, Resting]:
    """What the price of each part of a deployment rests on (:data:`inferplan.estimate.resting.PARTS`)."""
    calibration, hardware, part = deployment.calibration, deployment.hardware, deployment.hardware.part
    found, ideal = {"kernels": kernels_rest_on(calibration, hardware)}, calibration.basis == "roofline"
    if deployment.parallel.ranks > 1:
        found["collectives"] = collectives_rest_on(calibration, hardware)
    if not ideal:
        found["step"] = PARTS["step"].on("published")
    experts = [one for layer, _ in deployment.model.distinct for one in moe_parts(layer)]
    if experts:
        known = any(one.skew is not None for one in experts)
        usual: Kind = "published" if deployment.routing.usual else "formula"
        kind: Kind = "formula" if deployment.routing.asked is not None else "measured" if known else usual
        found["routing"] = PARTS["routing"].on(kind)
    if deployment.lora is not None and deployment.lora.active:
        found["adapters"] = adapters_rest_on(deployment.adapters_unmeasured, ideal)
    if deployment.offload is not None:
        host = deployment.offload.host
        found["host"] = host_rests_on(host.calibration, host.hardware)
    if deployment.offload is not None or deployment.streamed is not None:
        found["link"] = PARTS["link"].on("formula")
    if part is not None:
        found["mig"] = PARTS["mig"].on("formula" if ideal else "carried", device=part.of)
    if deployment.cap is not None:
        found["power_cap"] = PARTS["power_cap"].on("published")
    if deployment.filters is not None:
        timed = bool(deployment.filters.kernel) and not ideal
        found["sampling"] = PARTS["sampling"].on("published" if timed else "formula")
    return found


def narrows(deployment: Deployment) -> bool:
    """Whether the engine reads a checkpoint of 32 bits and keeps 16."""
    wide = deployment.model.native.base == "fp32" and deployment.precision.base.bits == _SIXTEEN_BITS
    return wide and deployment.engine.narrows is not None
