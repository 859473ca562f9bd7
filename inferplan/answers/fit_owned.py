"""What the GPUs that somebody has hold of a model: in which format, divided how, with how many requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import itemgetter
from typing import Any

from inferplan.answers.fit import (
    FitAsked,
    FitOption,
    Fitting,
    asked_context,
    bill_of,
    footprint_at,
    quants_tried,
    requests_in_words,
    require_format,
    weights_short,
)
from inferplan.catalog.assemble import NATIVE, Request, assemble, load_engine
from inferplan.catalog.counted import Counted, devices_meant
from inferplan.catalog.files import load_hardware, load_model
from inferplan.catalog.price_lists import PriceBook
from inferplan.devices.engine import Engine
from inferplan.errors import InfeasibleError, InferplanError, UsageError
from inferplan.models.gguf_formats import narrow_types
from inferplan.models.spec import ModelSpec
from inferplan.shown import Shown
from inferplan.work.parallel import Parallelism, divisors


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OwnedFits(Shown):
    """Each kind of GPU that was meant, in each format that was asked for, all of them together holding one replica."""

    model: ModelSpec
    asked: FitAsked
    have: str
    """As it was typed: ``"2x-a6000"``, ``"2x24GB"``."""
    count: int
    """GPUs of a kind."""
    context: int
    """Tokens of a request."""
    options: Sequence[FitOption]
    remarks: Sequence[str] = ()
    """Of the prices."""

    @property
    def fitting(self) -> list[FitOption]:
        """Those that hold what was asked for."""
        return [option for option in self.options if option.fitting is not None]


def fit_owned(model: str, have: str, asked: FitAsked, prices: PriceBook) -> OwnedFits:
    """What ``have`` holds over all of the GPUs, in the formats of :func:`inferplan.answers.fit.quants_tried`.

    Raises ``InfeasibleError`` where nothing of it holds one request, ``UsageError`` beside layers on the host.
    """
    if asked.offload.any:
        raise UsageError("layers on the host need a GPU named without a number", hint="--gpu NAME --tp N")
    if asked.most != FitAsked.most:
        raise UsageError(f"{have} and --most {asked.most} both state the number of GPUs", hint="leave one of them out")
    meant, spec = devices_meant(have), load_model(model)
    prices.check(one.gpu for one in meant)
    require_format(asked, spec, meant[0].gpu)
    tokens = asked_context(spec, asked.context)
    options = _options(spec, model, meant, (tokens, asked, prices))
    if not any(option.fitting for option in options):
        small = min(options, key=lambda option: option.short)
        hold = "does" if (meant[0].number or 1) == 1 else "do"
        raise InfeasibleError(
            f"{have} {hold} not hold {spec.name} with {requests_in_words(asked.held, tokens)}",
            because=f"{small.gpu}{' comes nearest' if len(meant) > 1 else ''}: "
            + "; ".join(dict.fromkeys(f"{one.quant}: {one.reason}" for one in options if one.gpu == small.gpu)),
            hint=", or ".join([*_would_do(spec, model, meant, (tokens, asked, prices)), f"inferplan fit {model}"]),
        )
    remarks = prices.remarks(option.gpu for option in options)
    whole = meant[0].number or 1
    return OwnedFits(model=spec, asked=asked, have=have, count=whole, context=tokens, options=options, remarks=remarks)


Asked = tuple[int, FitAsked, PriceBook]
"""Tokens of a request, what is asked, and prices."""
_MANY_MORE = 1.25
"""Times the requests of a division for which another is worth a word."""
_SHORTEST = 512
"""Tokens of the shortest context that a hint names."""


def _options(spec: ModelSpec, model: str, meant: Sequence[Counted], load: Asked) -> list[FitOption]:
    """Each kind of GPU in each format, all of them together."""
    requests = {one.gpu: load[1].request(model, one.gpu) for one in meant}
    return [
        best_division(one, requests[one.gpu], quant, load)
        for one in meant
        for quant in quants_tried(requests[one.gpu], spec)
    ]


def _would_do(spec: ModelSpec, model: str, meant: Sequence[Counted], load: Asked) -> Iterator[str]:
    """What of it would fit: fewer requests, a shorter context, llama.cpp's formats; each tried."""
    tokens, asked, prices = load

    def first(context: int, **changed: Any) -> FitOption | None:
        found = _options(spec, model, meant, (context, replace(asked, **changed), prices))
        return next((one for one in found if one.fitting), None)

    if asked.held > 1 and first(tokens, users=1, people=None, think_time=0.0):
        yield "fewer --people" if asked.people is not None else "less --in-flight"
    lengths = [tokens >> halvings for halvings in range(1, tokens.bit_length()) if tokens >> halvings >= _SHORTEST]
    for length in lengths:
        if (found := first(length)) is not None:
            yield f"--context {length} (in {found.quant})"
            break
    if asked.tp is not None:
        return
    if not asked.engine and not asked.quant and (found := first(tokens, engine="llama.cpp")) is not None:
        yield f"--engine llama.cpp (in {found.quant})"
    elif (found := next(_narrower(spec, model, meant, load), None)) is not None:
        engine = "" if asked.engine else "--engine llama.cpp "
        on = f" on {found.gpu}" if len(meant) > 1 else ""
        yield f"{engine}--quant {found.quant}{on} (so few bits make answers worse: try them first)"


def _narrower(spec: ModelSpec, model: str, meant: Sequence[Counted], load: Asked) -> Iterator[FitOption]:
    """What holds the load in GGUF formats under 4 bits, the widest first, on the GPUs of one kind with most memory."""
    asked = replace(load[1], engine=load[1].engine or "llama.cpp", quant=None)
    have = max(meant, key=lambda one: load_hardware(one.gpu).memory.most)
    request, hardware = asked.request(model, have.gpu), load_hardware(have.gpu)
    if spec.native.packed or not load_engine(request.engine).loads("q4_k_m", hardware):
        return
    most = (have.number or 1) * hardware.memory.most * 8 / spec.parameters["total"]
    for quant in narrow_types(most):
        option = best_division(have, request, quant, (load[0], asked, load[2]))
        if option.fitting is not None:
            yield option


def best_division(have: Counted, request: Request, quant: str | None, load: Asked) -> FitOption:
    """The division over all of them with the fewest stages, and with tensor parallelism within a node: each token takes
    least time there. One that holds many more requests stands beside it.
    """
    tokens, asked, prices = load
    named, found, reasons = quant or NATIVE, list[Fitting](), list[tuple[float, str]]()
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
            reason = weights_short(footprint) or f"holds {fitting.requests} of {asked.held} requests"
            reasons.append((needed - footprint.kv_pool, reason))
        except InferplanError as error:
            reasons.append((inf, error.what))
    if not found:
        short, reason = min(reasons, key=itemgetter(0))
        return FitOption(gpu=have.gpu, quant=named, reason=reason, short=short)
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
