"""What 4-bit weights would cost on devices that do not multiply in 4 bits, where a search does not try them."""

from __future__ import annotations

from dataclasses import replace

from inferplan.catalog.assemble import NATIVE, load_engine, native_precision
from inferplan.catalog.files import load_hardware, load_model
from inferplan.planning.finalists import (
    Finalists,
    carried_over,
    options_at,
    size_one,
    too_long_alone,
)
from inferplan.planning.option import PlanOption
from inferplan.planning.question import Question
from inferplan.planning.search import cheapest_of_each_structure, search
from inferplan.planning.sizing import Simulations
from inferplan.planning.space import default_quants
from inferplan.planning.verify import Verified
from inferplan.work.formats import FORMATS

FORMAT = "w4a16"
"""4-bit weights that kernels widen to 16 bits: AWQ and GPTQ. They need no 4-bit arithmetic, but an
engine that loads them (``packed_weights`` of its file)."""
WORTH = 0.02
"""A plan that costs less by a smaller share is not named."""
_STRUCTURES = 2
_SIMULATIONS = 12
"""Structures that are sized at most, and short simulations of all of them: a line beside a plan, not a second plan."""


def asked_with(question: Question) -> str | None:
    """The ``--quant`` that tries 4-bit weights too; ``None`` where formats were named, all devices try them, or no
    engine loads them."""
    space = question.space
    if space.quants is not None or space.anchor is not None:
        return None
    model = load_model(space.base.model)
    each = dict.fromkeys(quant for gpu in space.gpus for quant in default_quants(model, load_hardware(gpu)))
    return ",".join([*(quant or NATIVE for quant in each), FORMAT]) if _without(question) else None


def in_four_bits(question: Question, cost: float | None) -> Verified | None:
    """A plan in 4-bit weights that is cheaper than ``cost``, on devices that none were tried on; ``None`` without one.

    One pool without drafts; of the cheapest structures the first that keeps the limits in simulation, which need not be
    the cheapest of all.
    """
    if cost is None or question.chains or asked_with(question) is None:
        return None
    below = cost * (1 - WORTH)
    gpus, engines = _without(question), _loading(question)
    space = replace(question.space, gpus=gpus, engines=engines, quants=(FORMAT,), disaggregate=False, drafting=())
    asked = replace(question, space=space)
    searched = search(space, asked.stream, asked.prices)
    options = options_at(searched, asked, asked.sizing.confidence)
    found, simulations = Finalists(), Simulations(most=_SIMULATIONS)
    for option in _promising(options, asked, below)[:_STRUCTURES]:
        if size_one(option, asked, below, (found, simulations)):
            return found.cheapest
    return None


def _without(question: Question) -> tuple[str, ...]:
    """The devices on which no 4-bit weights were tried; none for a model that is stored in them,
    and where no engine loads them."""
    model = load_model(question.space.base.model)
    native = native_precision(model)
    if min(native.weights.bits, native.experts.bits) < 8 or not _loading(question):
        return ()
    fourth = {name for name, fmt in FORMATS.items() if fmt.bits < 8}
    return tuple(gpu for gpu in question.space.gpus if not fourth & {*default_quants(model, load_hardware(gpu))})


def _loading(question: Question) -> tuple[str, ...]:
    """The engines that load such checkpoints."""
    return tuple(name for name in question.space.engines if load_engine(name).packed_weights)


def _promising(options: list[PlanOption], question: Question, below: float) -> list[PlanOption]:
    """Structures on devices that were measured which may cost less, as their least size says."""
    return [
        option
        for option in cheapest_of_each_structure(options)
        if option.bound < below and not carried_over(option) and not too_long_alone(option, question)
    ]
