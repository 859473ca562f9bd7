"""Which models on file run on the GPUs that somebody has, each in the widest format that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from inferplan.answers.division import best_division, require_possible
from inferplan.answers.fit import FitAsked, FitOption, asked_context, quants_tried
from inferplan.catalog.counted import Counted, devices_meant
from inferplan.catalog.files import load_hardware, load_model, names
from inferplan.catalog.price_lists import PriceBook
from inferplan.catalog.years import size_by_age
from inferplan.errors import InfeasibleError, InferplanError, UsageError
from inferplan.estimate.formats import NATIVE, native_precision
from inferplan.models.spec import ModelSpec
from inferplan.shown import Shown
from inferplan.units import format_bytes
from inferplan.work.adapters import LoraAsked


@dataclass(frozen=True, kw_only=True)
class ModelFit:
    """One model: where and how it fits best, or why it does not."""

    model: ModelSpec
    option: FitOption


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ModelsThatFit(Shown):
    """Every model on file, the largest for its year first."""

    asked: FitAsked
    have: str
    """As it was typed: ``"2x24GB"``, ``"48GB"``, ``"2x-a6000"``."""
    meant: Sequence[Counted]
    """The GPUs on file that it means."""
    models: Sequence[ModelFit]

    @property
    def fitting(self) -> list[ModelFit]:
        """Those that fit."""
        return [one for one in self.models if one.option.fitting is not None]


def models_that_fit(have: str, asked: FitAsked, prices: PriceBook) -> ModelsThatFit:
    """Each model on file on ``have``, over all of the GPUs, in the widest of its formats that leaves room for the load.

    Where a size means several GPUs, those that compute in the same formats count as one, that with the most usable
    memory. A model is shown on the GPU that holds it in the widest format, and of those on the one with room for most
    requests. Raises ``InfeasibleError`` where no model fits.
    """
    if asked.offload.any or asked.lora != LoraAsked():
        raise UsageError("adapters and layers on the host need one MODEL", hint="name the MODEL as well")
    if asked.most != FitAsked.most:
        raise UsageError(f"{have} and --most {asked.most} both state the number of GPUs", hint="leave one of them out")
    meant = devices_meant(have)
    prices.check(one.gpu for one in meant)
    roomy = sorted(meant, key=lambda one: -(load_hardware(one.gpu).memory.usable or 0.0))
    distinct = list({_formats_of(one): one for one in reversed(roomy)}.values())[::-1]
    specs = _by_use()
    wide = {_shape(spec) for spec in specs if not _narrow(spec)}
    found = list[ModelFit]()
    for spec in specs:
        copy = _narrow(spec) and _shape(spec) in wide
        own = replace(asked, quant=asked.quant or NATIVE) if copy else asked
        found.append(ModelFit(model=spec, option=_widest(spec, distinct, own, prices)))
    if not any(one.option.fitting for one in found):
        least = min(found, key=lambda one: one.model.parameters["total"])
        require_possible([least.option])
        raise InfeasibleError(
            f"{have} hold none of the {len(found)} models on file with {asked.held:,} requests at once",
            because=f"the smallest, {least.model.name}: {least.option.reason}",
            hint="a shorter --context, less --in-flight, a narrower --quant",
        )
    return ModelsThatFit(asked=asked, have=have, meant=meant, models=found)


def _narrow(spec: ModelSpec) -> bool:
    return min((native := native_precision(spec)).weights.bits, native.experts.bits) < 16


def _shape(spec: ModelSpec) -> tuple[object, ...]:
    """What a model has in common with its quantised copies, which stay in the formats that their names say."""
    return spec.family, spec.parameters["total"], spec.d_model, spec.vocab, len(spec.sequence)


def _by_use() -> list[ModelSpec]:
    return sorted(map(load_model, names("models")), key=lambda spec: (-size_by_age(spec), spec.name))


def _formats_of(have: Counted) -> tuple[object, ...]:
    """What decides which formats a GPU has: of those that are alike in it, the one with most memory is asked."""
    hardware = load_hardware(have.gpu)
    return hardware.vendor, frozenset(hardware.peak)


_NARROWEST = 4.0
"""Bits of the narrowest of the formats that :func:`inferplan.answers.fit.quants_tried` adds to a model's own."""


def _widest(spec: ModelSpec, meant: Sequence[Counted], asked: FitAsked, prices: PriceBook) -> FitOption:
    """The option with most bytes of weights, and of those with most requests; what lacks least where nothing fits."""
    fewest, largest = _fewest_bytes(spec, asked), meant[0]
    if fewest > (room := (largest.number or 1) * load_hardware(largest.gpu).memory.most):
        reason = f"{_NARROWEST:g} bits a weight are {format_bytes(fewest, 3)}, more than {format_bytes(room, 3)}"
        return FitOption(gpu=largest.gpu, quant="native", reason=reason, short=fewest - room)
    tried: list[FitOption] = []
    for one in meant:
        tried.append(_first_that_fits(spec, one, asked, prices))
        if tried[-1].fitting is not None and tried[-1].quant == "native":
            return tried[-1]  # nothing is wider, and the GPUs after it have less memory
    if fitting := [(one, one.fitting) for one in tried if one.fitting is not None]:
        return max(fitting, key=lambda one: (round(one[0].devices * one[1].footprint.weights), one[1].requests))[0]
    return min(tried, key=lambda one: one.short)


def _fewest_bytes(spec: ModelSpec, asked: FitAsked) -> float:
    """Bytes that no format of a model is below; 0 where somebody has named the format."""
    if asked.quant:
        return 0.0
    native = native_precision(spec)
    bits = min(_NARROWEST, native.weights.bits, native.experts.bits, native.embedding.bits)
    return float(spec.parameters["total"]) * bits / 8


def _first_that_fits(spec: ModelSpec, have: Counted, asked: FitAsked, prices: PriceBook) -> FitOption:
    """The widest format of a model that a kind of GPU holds, or what the narrowest lacks."""
    request = asked.request(spec.name, have.gpu)
    option = FitOption(gpu=have.gpu, quant="native", reason="no format")
    try:
        tokens = asked_context(spec, asked.context)
        for quant in quants_tried(asked, request, spec):
            option = best_division(have, request, quant, (tokens, asked, prices))
            if option.fitting is not None:
                return option
    except InferplanError as error:
        return FitOption(gpu=have.gpu, quant="native", reason=error.what, refused=error)
    return option
