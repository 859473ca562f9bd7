"""Which deployments are candidates: every way to divide the model over up to so many devices of each GPU."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from inferplan.catalog.assemble import Request, assemble, native_precision, precision_of
from inferplan.catalog.drafts import draft_beside
from inferplan.catalog.files import load_hardware, load_model
from inferplan.catalog.price_lists import PriceBook
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import InferplanError
from inferplan.estimate.deployment import Deployment
from inferplan.models.spec import ModelSpec
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.work.parallel import Parallelism


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """Speculative decoding to be tried beside plain decoding; ``model`` is absent for drafts that cost nothing."""

    model: str | None
    length: int
    acceptance: float
    branches: int = 1

    def __post_init__(self) -> None:
        self.beside(None)

    def beside(self, draft: Deployment | None) -> Speculation:
        """The drafting with its model on given devices; ``None`` for drafts that cost nothing."""
        return Speculation(length=self.length, acceptance=self.acceptance, branches=self.branches, draft=draft)

    def on(self, request: Request, deployment: Deployment) -> Speculation:
        """The drafting on the devices of ``deployment``. Raises ``InferplanError`` where it cannot be divided so."""
        return self.beside(None if self.model is None else _draft(self.model, request, deployment))

    def describe(self) -> str:
        """The drafting in words: ``"llama-3.2-1b drafts of 4 tokens, acceptance 0.7"``."""
        tree = f" x {self.branches}" if self.branches > 1 else ""
        return f"{self.model or 'free'} drafts of {self.length}{tree} tokens, acceptance {self.acceptance:g}"


@dataclass(frozen=True, kw_only=True)
class Space:
    """What may be chosen from. ``base`` holds everything else (model, engine defaults, constants).

    quants: formats to try; ``None`` for those of each device (:func:`default_quants`). most: devices of one replica.
    budgets: token budgets to try; ``None`` for powers of two about the engine's own.
    drafting: speculation, tried on every structure beside plain decoding.
    """

    base: Request
    gpus: tuple[str, ...]
    quants: tuple[str | None, ...] | None = None
    engines: tuple[str, ...] = ("vllm",)
    most: int = 8
    tp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    dp: tuple[int, ...] | None = None
    budgets: tuple[int, ...] | None = None
    disaggregate: bool = True
    drafting: Drafting | None = None


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


def default_quants(model: ModelSpec, hardware: HardwareSpec) -> tuple[str | None, ...]:
    """The checkpoint's own formats and the narrower ones that the device computes in: fp8, and its maker's 4 bits.

    Whether an answer in a narrower format is good enough is not counted here: that is the user's to judge.
    """
    native = native_precision(model)
    bits = min(native.weights.bits, native.experts.bits)
    fourth = "nvfp4" if hardware.vendor == "NVIDIA" else "mxfp4"
    narrower = [(name, peak) for name, peak, width in (("fp8", "fp8", 16), (fourth, "fp4", 8)) if bits >= width]
    return (None, *(name for name, peak in narrower if peak in hardware.peak))


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
                found.append(Parallelism(tp=tp, pp=pp, dp=dp, ep=ep))
    return found


@lru_cache(maxsize=256)
def _model(name: str) -> ModelSpec:
    return load_model(name)


def candidates(space: Space, rejections: Rejections) -> Iterator[tuple[Request, Deployment]]:
    """Every deployment that can exist, with the request that makes it; the others are counted as ``impossible``."""
    model = _model(space.base.model)
    shapes = divisions(model, space)
    for gpu, engine in itertools.product(space.gpus, space.engines):
        known: Deployment | None = None
        for quant in space.quants or default_quants(model, load_hardware(gpu)):
            request = replace(space.base, gpu=gpu, engine=engine, quant=quant, parallel=Parallelism())
            try:
                known = _in_format(request, known)
                _ = known.hardware.usable
            except InferplanError as error:
                rejections.add("impossible", len(shapes), error.what)
                continue
            for parallel in shapes:
                try:
                    yield replace(request, parallel=parallel), replace(known, parallel=parallel)
                except InferplanError as error:
                    rejections.add("impossible", 1, error.what)


def _in_format(request: Request, known: Deployment | None) -> Deployment:
    """The deployment on one device; from one in another format everything but the formats is taken over."""
    if known is None:
        return assemble(request, model_loader=_model)
    return replace(known, precision=precision_of(request, known.model, known.hardware))


def speculations(space: Space, request: Request, deployment: Deployment, rejections: Rejections) -> list[Speculation]:
    """Plain decoding, and the drafting of the space on the devices of ``deployment`` where that can be divided so."""
    drafting = space.drafting
    if drafting is None:
        return [PLAIN]
    try:
        return [PLAIN, drafting.on(request, deployment)]
    except InferplanError as error:
        rejections.add("drafts", 1, error.what)
        return [PLAIN]


def _draft(name: str, request: Request, deployment: Deployment) -> Deployment:
    """The draft model in the formats, and divided as, the model that it drafts for."""
    alone = _draft_alone(name, replace(request, parallel=Parallelism()))
    parallel = deployment.parallel
    return replace(alone, parallel=parallel if alone.model.has_experts else replace(parallel, ep=1))


@lru_cache(maxsize=256)
def _draft_alone(name: str, request: Request) -> Deployment:
    return draft_beside(request, name, request.parallel, _model)
