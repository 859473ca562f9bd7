"""Which devices hold a model: how many, in which format, with what context and how many requests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import InferplanError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.memory import Footprint
from inferplan.models.spec import ModelSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitting:
    """A model that fits: on how many devices, and the room that is left."""

    deployment: Deployment
    footprint: Footprint
    context: int

    @property
    def requests(self) -> int:
        """Concurrent requests of ``context`` tokens that the cache holds."""
        return int(np.floor(float(self.footprint.max_batch())))

    @property
    def longest(self) -> float:
        """Tokens that one request may reach; infinite where neither the model nor its memory sets a limit."""
        return self.footprint.max_context()


def footprint_at(deployment: Deployment, context: int) -> Footprint:
    """The footprint of one request of ``context`` tokens."""
    return Footprint(deployment=deployment, batch=1.0, prompt=float(context), context=float(context))


def smallest(request: Request, context: int, users: int, most: int = 8, least: int = 1) -> Fitting | str:
    """The fewest devices (``least``, twice that, ... up to ``most``) that hold the load, or why none does.

    The load is ``users`` requests of ``context`` tokens.
    """
    reason, stopped = f"does not fit on {most}", ""
    degree = least
    while degree <= most:
        try:
            deployment = assemble(replace(request, parallel=replace(request.parallel, tp=degree)))
            footprint = footprint_at(deployment, context)
            if float(footprint.max_batch()) >= users:
                return Fitting(deployment=deployment, footprint=footprint, context=context)
            short = footprint.kv_pool
            reason = f"does not fit on {degree}" + (": the weights alone are too large" if short < 0 else "")
        except InferplanError as error:
            if degree == least:
                reason = error.what
            elif error.what != reason:
                stopped = stopped or f"; {error.what}"
        degree *= 2
    return reason + stopped


def asked_context(model: ModelSpec, tokens: int | None) -> int:
    """The context to fit: 8192 tokens when none is given, or the model's own limit when that is shorter.

    Raises ``UsageError`` for more than the model can attend to.
    """
    limit = model.max_context
    if tokens is None:
        return min(8192, limit or 8192)
    if limit is not None and tokens > limit:
        raise UsageError(
            f"{tokens:,} tokens are more than {model.name} can attend to",
            because=f"its context is {limit:,} tokens",
            hint=f"--context {limit}, or a model with a longer context",
        )
    return tokens
