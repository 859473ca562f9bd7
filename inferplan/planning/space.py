"""Which deployments are candidates: every way to divide the model over up to so many devices of each GPU."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from inferplan.answers.drafting import Drafting
from inferplan.catalog.assemble import (
    Request,
    adapters_asked,
    assemble,
    bridges,
    load_anchor,
    load_engine,
    precision_of,
    with_host_memory,
)
from inferplan.catalog.backends import Backends, kernels_run, with_backends
from inferplan.catalog.files import load_hardware, load_model
from inferplan.catalog.offload import OffloadAsked
from inferplan.catalog.power import power_cap
from inferplan.catalog.price_lists import PriceBook
from inferplan.catalog.quality import left_out, require_kept
from inferplan.devices.anchors import Anchor, System
from inferplan.devices.cadence import cadence_of, require_closed_form
from inferplan.devices.engine import EngineFlags
from inferplan.devices.releases import REDUCED, role_of
from inferplan.errors import InferplanError, MissingFactError, UsageError
from inferplan.estimate.anchoring import system_of, with_anchor
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.formats import default_quants, native_precision
from inferplan.features import require_together, those
from inferplan.models.spec import ModelSpec, require_experts
from inferplan.planning.adapters import with_slots
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.work.formats import find_format
from inferplan.work.parallel import Parallelism


@dataclass(frozen=True, kw_only=True)
class Space:
    """What may be chosen from. ``base`` holds everything else (model, engine defaults, constants).

    quants: formats to try; ``None`` for those of each device (:func:`default_quants`). most: devices of one replica.
    budgets: token budgets to try; ``None`` for powers of two about the engine's own.
    drafting: speculation, each tried on every structure beside plain decoding; they differ in the number of drafts.
    redundant: copies of experts to try where they are spread. two_batches: overlapping half batches are tried beside
    whole ones where attention ranks exchange. prefill_redundant, prefill_two_batches: the same of the pool that
    computes prompts; ``None`` for those of the others.
    """

    base: Request
    gpus: tuple[str, ...]
    quants: tuple[str | None, ...] | None = None
    quality: float | None = None
    """The least share of every published score that a narrower format keeps; one without scores is not tried."""
    engines: tuple[str, ...] = ("vllm",)
    most: int = 8
    tp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    dp: tuple[int, ...] | None = None
    budgets: tuple[int, ...] | None = None
    disaggregate: bool = True
    drafting: tuple[Drafting, ...] = ()
    redundant: tuple[int, ...] = (0,)
    two_batches: bool = False
    prefill_redundant: tuple[int, ...] | None = None
    prefill_two_batches: bool | None = None
    slots: tuple[int, ...] = ()
    """Slots of LoRA adapters to try (``max_loras``); none: those of ``base``."""
    caps: tuple[float, ...] = ()
    """Watts of each device to try, instead of none; on a device whose TDP is no more it is none."""
    placed: tuple[OffloadAsked, ...] = ()
    """What of the model lies in host memory, each tried beside all of it on the devices."""
    anchor: str | Anchor | None = None
    """Measured runs of one of the systems, which are that system's alone, or a file of them."""

    def __post_init__(self) -> None:
        """Raise ``UsageError`` for options about experts that no candidate can have."""
        if self.slots and not self.base.lora.any:
            raise UsageError("no adapters were asked for", hint="--lora-rank 16, or --lora-folder DIR")
        if self.placed:
            self._require_placed()
        self._require_cadence()
        self._require_caps()
        if self.quality is not None:
            require_kept(_model(self.base.model), self.quants or (), self.quality)
        if self.base.lora.any:
            model = _model(self.base.model)
            for engine in self.engines:
                adapters_asked(replace(self.base, engine=engine), model, native_precision(model).base)
        if self.base.expert_skew is not None:
            require_experts(_model(self.base.model), "--expert-skew")
        engines = [load_engine(name) for name in self.engines]
        kv, on = find_format(dict(self.base.roles).get("kv", "fp32")), [load_hardware(gpu) for gpu in self.gpus]
        if kv.bits < 16 and on and not any(engine.keeps(kv.name, gpu) for engine in engines for gpu in on):
            engines[0].require_cache(kv.name, on[0])
        for prefix, prompts in (("--", False), ("--prefill-", True)):
            copies, halves = any(self.copies(prompts)), self.halves(prompts)
            for option, asked in (("redundant-experts", copies), ("two-batch-overlap", halves)):
                if asked:
                    require_experts(_model(self.base.model), f"{prefix}{option}")
            if copies and not any(engine.defaults.wide.redundant for engine in engines):
                engines[0].require_copies(prefix)
            if halves and not any(engine.defaults.wide.two_batches for engine in engines):
                engines[0].require_halves(prefix)
        if (self.prefill_redundant or self.prefill_two_batches is not None) and not self.disaggregate:
            raise UsageError(
                "the --prefill-... options describe a pool of its own for prompts, and --aggregated has none",
                hint="leave one of them out",
            )

    def _require_caps(self) -> None:
        """Raise ``UsageError`` where every cap is below what can be set on any of the devices."""
        refused: list[UsageError] = []
        for cap, gpu in itertools.product(self.caps, self.gpus):
            with suppress(MissingFactError):
                hardware = load_hardware(gpu)
                if cap >= hardware.tdp:
                    return
                try:
                    power_cap(hardware, cap)
                    return
                except UsageError as error:
                    refused.append(error)
        if refused:
            raise refused[0]

    def _require_cadence(self) -> None:
        """Raise ``UsageError`` for flags about the cadence of prompts that no engine of the space heeds."""
        refused = []
        for name in self.engines if self.base.flags.keeps_prompts_out else ():
            try:
                found = cadence_of(load_engine(name, self.base.flags), 2)  # ranks that share experts heed most
                require_closed_form(found, "plan")
                return
            except UsageError as error:
                refused.append(error)
        if refused:
            raise refused[0]

    def _require_placed(self) -> None:
        """Raise ``UsageError`` for what no engine of the space leaves on the host."""
        engines = [load_engine(name) for name in self.engines]
        for one in self.placed:
            engine = "llama.cpp" if one.computes else "vllm"
            if not any(made.computes_on_host if one.computes else made.streams_weights for made in engines):
                option = "--gpu-layers and --cpu-moe-layers are" if one.computes else "--cpu-offload-gb is"
                raise UsageError(f"{option} of {engine}, which is no candidate", hint=f"--engine {engine}")

    @property
    def features(self) -> set[str]:
        """As :mod:`inferplan.features` names them."""
        return those(
            drafts=bool(self.drafting),
            adapters=self.base.lora.any,
            pools=self.disaggregate,
            prompt_pool=bool(self.prefill_redundant) or self.prefill_two_batches is not None,
            host_layers=any(one.gpu_layers is not None for one in self.placed),
            host_experts=any(one.cpu_moe_layers > 0 for one in self.placed),
            streamed=any(not one.computes for one in self.placed),
            anchor=self.anchor is not None,
            cadence=self.base.flags.keeps_prompts_out,
            power_cap=bool(self.caps),
            filters=self.base.sampling is not None,
            ideal=self.base.ideal,
        )

    @property
    def runs(self) -> Anchor | None:
        """The measured runs. Raises ``UsageError`` for a file of fitted constants."""
        return load_anchor(self.anchor) if isinstance(self.anchor, str) else self.anchor

    @property
    def anchor_name(self) -> str:
        """Where they are from, for messages."""
        return self.anchor.origin if isinstance(self.anchor, Anchor) else str(self.anchor)

    def copies(self, prompts: bool) -> tuple[int, ...]:
        """Redundant experts to try, of what computes ``prompts`` alone or of the others."""
        own = self.prefill_redundant if prompts else None
        return self.redundant if own is None else own

    def halves(self, prompts: bool) -> bool:
        """Whether overlapping half batches are tried, as above."""
        own = self.prefill_two_batches if prompts else None
        return self.two_batches if own is None else own

    def quants_of(self, gpu: str, engine: str) -> tuple[str | None, ...]:
        """The formats asked for, else those of a device under an engine."""
        return self.quants or default_quants(_model(self.base.model), load_hardware(gpu), load_engine(engine))

    @property
    def all_quants(self) -> tuple[str | None, ...]:
        """The formats of all devices under all engines, each once."""
        each = itertools.product(self.gpus, self.engines)
        return tuple(dict.fromkeys(quant for gpu, engine in each for quant in self.quants_of(gpu, engine)))

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Formats that :attr:`quality` leaves out, with the reason."""
        return left_out(_model(self.base.model), self.all_quants, self.quality)

    def tries(self, deployment: Deployment, prompts: bool = False) -> bool:
        """Whether a candidate is one for the pool of ``prompts``, or for decodes and for both in one pool."""
        parallel = deployment.parallel
        copied = parallel.ep == 1 or parallel.redundant in self.copies(prompts)
        return copied and (deployment.two_batches is None or self.halves(prompts))

    def caps_of(self, gpu: str) -> tuple[float | None, ...]:
        """The caps to try on a device, each once: one at its TDP or above is none."""
        tdp = load_hardware(gpu).power
        return tuple(dict.fromkeys(None if tdp is not None and cap >= tdp else cap for cap in self.caps)) or (None,)

    def drafting_of(self, speculation: Speculation) -> Drafting | None:
        """The drafting that an option was priced with; ``None`` for plain decoding."""
        return next((one for one in self.drafting if one.length == speculation.length), None)


@dataclass(kw_only=True)
class Rejections:
    """How many candidates each reason ruled out, and one example of every message."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, number: int, example: str = "") -> None:
        """Count ``number`` candidates under a reason; the first example of each reason is kept."""
        if number:
            self.counts[reason] += number
            self.examples.setdefault(reason, example)


def default_gpus(prices: PriceBook) -> tuple[str, ...]:
    """Devices whose price the user states, and those sold for data centres (``segment`` of the hardware file).

    Raises ``UnknownNameError`` for a price of a device that is not on file.
    """
    return tuple(gpu for gpu in prices.gpus if load_hardware(gpu).segment == "datacenter" or gpu in prices.stated)


def divisions(model: ModelSpec, space: Space) -> list[Parallelism]:
    """Ways to divide a model over 1, 2, 4, ... devices: tp x pp; for experts attention dp, and ep in {1, tp x dp}."""
    experts = model.has_experts
    powers = [1 << n for n in range(space.most.bit_length()) if 1 << n <= space.most]
    found = []
    ranks = space.dp or (powers if experts else [1])
    for tp, pp, dp in itertools.product(space.tp or powers, space.pp or powers, ranks):
        if tp * pp * dp > space.most:
            continue
        groups = space.ep or ((1, tp * dp) if experts else (1,))
        for ep in dict.fromkeys(groups):
            if (tp * dp) % ep == 0 and (experts or ep == 1):
                copies = dict.fromkeys((*space.copies(False), *space.copies(True))) if ep > 1 else (0,)
                found += [Parallelism(tp=tp, pp=pp, dp=dp, ep=ep, redundant=number) for number in copies]
    return found


@lru_cache(maxsize=256)
def _model(name: str) -> ModelSpec:
    return load_model(name)


def candidates(space: Space, rejections: Rejections) -> Iterator[tuple[Request, Deployment]]:
    """Every deployment that can exist, with the request that makes it; the others are counted as ``impossible``."""
    model = _model(space.base.model)
    shapes = divisions(model, space)
    runs, seen = space.runs, set[System]()
    bridged = bridges(space.base, space.gpus)
    each = (itertools.product((gpu,), space.engines, space.caps_of(gpu)) for gpu in space.gpus)
    for gpu, engine, cap in itertools.chain.from_iterable(each):
        plain: Deployment | None = None
        bare = replace(space.base, gpu=gpu, engine=engine, parallel=Parallelism(), power_cap=cap)
        bare = replace(bare, nvlink_bridge=bridged[gpu])
        for quant in space.quants_of(gpu, engine):
            if quant is not None and (why := space.left_out.get(quant)):
                rejections.add("quality", len(shapes), f"{quant}: {why}")
                continue
            request = replace(bare, quant=quant)
            try:
                plain = _in_format(request, plain)
                known = _with_backends(request, plain)
                _ = known.hardware.usable
            except InferplanError as error:
                rejections.add("impossible", len(shapes), error.what)
                continue
            base = known
            if runs is not None:
                seen.add(system := system_of(known))
                base = with_anchor(known, runs, space.anchor_name) if runs.system.same(system) else known
            for (asked, whole), parallel in itertools.product(_with_slots(space, request, base), shapes):
                for flags in _flags(space, asked, parallel):
                    try:
                        own = load_engine(engine, flags) if flags.of_ranks else known.engine
                        made = replace(whole, parallel=parallel, engine=own)
                        if made.lora is not None or made.cadence.any:
                            require_together("plan", made.features)
                        one = replace(asked, parallel=parallel, flags=_own_backends(flags, made))
                    except InferplanError as error:
                        rejections.add("impossible", 1, error.what)
                        continue
                    yield one, made
                    yield from _placed(space, one, made, rejections)
    if runs is not None and not any(runs.system.same(system) for system in seen):
        raise UsageError(
            f"{space.anchor_name} is anchored to {runs.system.describe()}, which is no candidate",
            because=f"candidates are {'; '.join(sorted(system.describe() for system in seen))}",
        )


def _placed(
    space: Space, request: Request, deployment: Deployment, rejections: Rejections
) -> Iterator[tuple[Request, Deployment]]:
    """The candidate with what lies in host memory; what cannot lie there is counted as ``host``."""
    for offload in space.placed:
        if offload.computes != bool(deployment.engine.computes_on_host):
            continue  # of another engine
        asked = replace(request, offload=offload)
        try:
            yield asked, with_host_memory(asked, deployment, _model)
        except InferplanError as error:
            rejections.add("host", 1, error.what)


def _with_slots(space: Space, request: Request, deployment: Deployment) -> list[tuple[Request, Deployment]]:
    """The candidate with each number of slots for adapters that is tried; as it is where none are named."""
    return [
        (replace(request, lora=replace(request.lora, slots=slots)), with_slots(deployment, slots))
        for slots in space.slots
    ] or [(request, deployment)]


def _flags(space: Space, request: Request, parallel: Parallelism) -> list[EngineFlags]:
    """The engine's flags to try: with overlapping half batches too where asked for and there is an exchange."""
    if not (space.halves(False) or space.halves(True)) or parallel.dp == 1:
        return [request.flags]
    return [request.flags, request.flags.model_copy(update={"two_batch_overlap": True})]


def _in_format(request: Request, known: Deployment | None) -> Deployment:
    """The deployment on one device; from one in another format everything but the formats is taken over."""
    if known is None:
        return assemble(replace(request, flags=request.flags.of_one_device), model_loader=_model)
    return replace(known, precision=precision_of(request, known.model, known.hardware))


def _with_backends(request: Request, deployment: Deployment) -> Deployment:
    """The deployment with the kernels that the request chooses; those of an all-reduce wait for a division."""
    for reduced in (False, True):
        chosen = tuple(one for one in request.flags.backends if (one[0] == REDUCED) == reduced)
        asked = Backends(engine=request.engine, chosen=chosen, path=request.calibration)
        deployment = with_backends(deployment, asked, strict=not reduced)
    return deployment


def _own_backends(flags: EngineFlags, deployment: Deployment) -> EngineFlags:
    """The flags without the kernels of an all-reduce where the division has none."""
    if REDUCED not in dict(flags.backends) or any(role_of(kernel) == REDUCED for kernel, _ in kernels_run(deployment)):
        return flags
    return flags.model_copy(update={"backends": tuple(one for one in flags.backends if one[0] != REDUCED)})


def speculations(space: Space, request: Request, deployment: Deployment, rejections: Rejections) -> list[Speculation]:
    """Plain decoding, and the draftings of the space on the devices of ``deployment`` where they can be divided so."""
    try:
        return [PLAIN, *(drafting.on(request, deployment.parallel) for drafting in space.drafting)]
    except InferplanError as error:
        rejections.add("drafts", len(space.drafting), error.what)
        return [PLAIN]
