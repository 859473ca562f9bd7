"""How a model is best divided over all of some GPUs, in which format, by which engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from operator import itemgetter

from inferplan.answers.fit import (
    FitAsked,
    FitOption,
    Fitting,
    bill_of,
    footprint_at,
    held_in_words,
    longest_held,
    narrow_cache,
    quants_tried,
    weights_short,
)
from inferplan.catalog.assemble import Request, assemble, engines_beside, load_engine, usual_engine
from inferplan.catalog.counted import Counted
from inferplan.catalog.files import load_hardware
from inferplan.catalog.price_lists import PriceBook
from inferplan.devices.engine import Engine
from inferplan.errors import InfeasibleError, InferplanError, MissingFactError, UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.formats import NATIVE
from inferplan.estimate.load import StaticLoad
from inferplan.models.gguf_formats import is_file_type
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import find_format
from inferplan.work.parallel import Parallelism, divisors

Asked = tuple[int, FitAsked, PriceBook]
"""Tokens of a request, what is asked, and prices."""
_MANY_MORE = 1.25
"""Times the requests of a division for which another is worth a word."""
RULE = "the one that runs the format; where several do, the one with the lower predicted TPOT for that load"
"""How the engine of each format is chosen where nobody names one."""


def options_on(spec: ModelSpec, model: str, meant: Sequence[Counted], load: Asked) -> list[FitOption]:
    """Each kind of GPU in each format, all of them together; of several engines that run one by :data:`RULE`."""
    asked, found = load[1], list[FitOption]()
    for one in meant:
        formats: dict[str | None, list[Request]] = {}
        for engine in engines_tried(spec, model, one, asked):
            request = asked.request(model, one.gpu, engine)
            for quant in quants_tried(asked, request, spec):
                formats.setdefault(quant, []).append(request)
        for quant, requests in formats.items():
            found.append(_fastest([_timed(one, request, quant, load) for request in requests]))
    return found


def require_possible(options: Sequence[FitOption]) -> None:
    """Raise the error of options that all fail by the same one, whatever the format: no other load would do."""
    refused = [one.refused for one in options]
    if refused and refused[0] is not None and len({one and one.what for one in refused}) == 1:
        raise refused[0]


def engines_tried(spec: ModelSpec, model: str, have: Counted, asked: FitAsked) -> list[str]:
    """The engine that is named; else the usual one, and those that are tried beside it on such GPUs.

    GGUF files are for those that read them, other formats for the others. Alone stays the usual one where the question
    is of its kind: adapters, a degree of tensor parallelism, a model that generates nothing.
    """
    usual, hardware = asked.engine or usual_engine(model, have.gpu, asked.quant), load_hardware(have.gpu)
    if asked.engine or asked.lora.any or asked.tp is not None or spec.encodes or spec.encoder is not None:
        return [usual]
    found = list(dict.fromkeys((usual, *engines_beside(hardware))))
    if asked.kv is not None:
        kv = find_format(asked.kv).name
        found = [one for one in found if load_engine(one).keeps(kv, hardware)] or [usual]
    if asked.quant is None or asked.quant.lower() == NATIVE:
        return found
    file = is_file_type(asked.request(model, have.gpu).quant or "")
    return [one for one in found if load_engine(one).files_alone == file] or [usual]


def _fastest(options: Sequence[FitOption]) -> FitOption:
    """By :data:`RULE`; the first of those that lack least where none fits."""
    fitting = [one for one in options if one.fitting is not None]
    if not fitting:
        return min(options, key=lambda one: one.short)
    return min(fitting, key=lambda one: inf if one.tpot is None else one.tpot)


def _timed(have: Counted, request: Request, quant: str | None, load: Asked) -> FitOption:
    """:func:`best_division` with its time per token: a step of all requests that are held, each at its full length."""
    option, (tokens, asked, _) = best_division(have, request, quant, load), load
    if option.fitting is None or option.fitting.deployment.model.encodes or tokens < 3:
        return option
    tpot, basis = tpot_of(replace(request, quant=quant), option.fitting, asked, tokens)
    return replace(option, tpot=tpot, basis=basis)


def tpot_of(request: Request, fitting: Fitting, asked: FitAsked, tokens: int) -> tuple[float | None, str]:
    """Predicted seconds of such a step, and what its constants rest on; ``None`` where it has no prediction."""
    try:
        deployment = assemble(replace(request, parallel=fitting.deployment.parallel, ideal=False))
        at = StaticLoad(batch=float(asked.held), prompt=tokens - 2.0, output=2.0)
        return float(Estimate(deployment=deployment, load=at).tpot), deployment.calibration.basis
    except (UsageError, InfeasibleError, MissingFactError):
        return None, ""


def best_division(have: Counted, request: Request, quant: str | None, load: Asked) -> FitOption:
    """The division over all of them with the fewest stages, and with tensor parallelism within a node: each token takes
    least time there. One that holds many more requests stands beside it.
    """
    tokens, asked, prices = load
    named, found, reasons = quant or NATIVE, list[Fitting](), list[tuple[float, str, int]]()
    refused: InferplanError | None = None
    if low := asked.too_low(replace(request, quant=quant)):
        return FitOption(gpu=have.gpu, quant=named, reason=low)
    for parallel in _divisions(have.number or 1, asked.tp, load_engine(request.engine)):
        try:
            deployment = assemble(replace(request, quant=quant, parallel=parallel))
            footprint = footprint_at(deployment, tokens)
            fitting = Fitting(deployment=deployment, footprint=footprint, context=tokens, users=asked.held)
            if fitting.requests >= asked.held:
                found.append(fitting)
                continue
            needed = float(replace(footprint, batch=float(asked.held)).state_allocated)
            reason = weights_short(footprint) or held_in_words(footprint, asked.held, tokens)
            reasons.append((needed - footprint.kv_pool, reason, longest_held(footprint, asked.held)))
        except InferplanError as error:
            refused = refused or error
            reasons.append((inf, error.what, 0))
    if not found:
        short, reason, longest = min(reasons, key=itemgetter(0))
        if longest and (kv := narrow_cache(request, asked.kv)):
            narrow = replace(request, roles=(("kv", kv),)), quant, (tokens, replace(asked, kv=kv), prices)
            reason += f" (with --kv {kv} it does)" if best_division(have, *narrow).fitting is not None else ""
        why = refused if short == inf else None
        return FitOption(gpu=have.gpu, quant=named, reason=reason, short=short, refused=why, longest=longest)
    best = min(found, key=_stages)
    most = max(found, key=lambda one: (one.requests, -one.deployment.parallel.pp))
    roomier = most if most.requests > _MANY_MORE * best.requests else None
    return FitOption(gpu=have.gpu, quant=named, fitting=best, roomier=roomier, bill=bill_of(best, prices))


def _stages(fitting: Fitting) -> tuple[bool, int]:
    """Whether tensor parallelism leaves the node, and the stages."""
    parallel, node = fitting.deployment.parallel, fitting.deployment.hardware.node
    return node is not None and parallel.tp > node, parallel.pp


def _divisions(count: int, tp: int | None, engine: Engine) -> Iterator[Parallelism]:
    """Tensor parallelism times stages over so many GPUs, the fewest stages first; of an engine that divides by layers
    alone the one that it has. Raises ``UsageError`` for a degree that does not divide them.
    """
    if tp is None and engine.layers_alone:
        yield engine.over(count)
        return
    if tp is not None and count % tp:
        raise UsageError(f"--tp {tp} does not divide {count} GPUs", hint=f"--tp {count}")
    for stages in divisors(count):
        if tp in (None, count // stages):
            yield Parallelism(tp=count // stages, pp=stages)
