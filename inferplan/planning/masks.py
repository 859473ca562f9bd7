"""Structured decoding in the closed form of a plan: what masks add to its rounds, and beside what it is not planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from inferplan.catalog.assemble import load_engine
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import StepTime, host_seconds
from inferplan.estimate.structured import MaskedSteps, Structured, mask_filling, require_one_engine
from inferplan.planning.demand import Demand
from inferplan.serving.rounds import LoadedRounds
from inferplan.traffic.reasoning import ReasoningLengths
from inferplan.units import Array, Num

if TYPE_CHECKING:
    from inferplan.planning.space import Space


def require_plannable(space: Space, demand: Demand) -> None:
    """Raise ``UsageError`` for structured decoding under another engine, or beside what it is not planned with."""
    if demand.structured is None:
        return
    for engine in space.engines:
        mask_filling(load_engine(engine))
    beside = [("drafts", bool(space.drafting)), ("LoRA adapters", demand.adapters is not None)]
    beside += [("thoughts", isinstance(demand.output, ReasoningLengths)), ("several samples", demand.samples > 1)]
    beside += [("pools apart", space.disaggregate), ("weights on the host", bool(space.placed))]
    if found := [name for name, there in beside if there]:
        raise UsageError(
            f"structured decoding with {' and '.join(found)} is not planned",
            because="a mask belongs to a step that writes one token of each sequence of one pool, by its own chance",
            hint="--aggregated" if found == ["pools apart"] else "leave one of them out",
        )


def masks_of(deployments: Sequence[Deployment], structured: Structured | None) -> list[MaskedSteps | None]:
    """What masks add to the steps of each deployment; ``None`` where no request has any.

    Raises ``UsageError`` for a division that is not modelled.
    """
    if structured is None:
        return [None] * len(deployments)
    for one in deployments:
        require_one_engine(one)
    return [MaskedSteps(deployment=one, structured=structured) for one in deployments]


def with_masks(rounds: LoadedRounds, masked: MaskedSteps | None, batch: Array, coming: Array) -> LoadedRounds:
    """The rounds with what masks add to them, as :class:`inferplan.serving.masked_times.MaskedTimes` adds it to steps.

    batch: sequences that decode. coming: prompts of every round, which all end in those that hold prompts and have a
    mask there for their first token.
    """
    if masked is None:
        return rounds
    ending = coming / np.asarray(rounds.held.share)
    decode = _added(masked, batch, rounds.decode, batch)
    own = _added(masked, batch + ending, rounds.own, batch + rounds.held.number)
    return rounds._replace(decode=decode, own=own)


def _added(masked: MaskedSteps, rows: Num, time: StepTime, sequences: Num) -> StepTime:
    """The time of a round with ``rows`` that get a token; of a mean between two numbers the mean of both."""
    forward = np.asarray(time.total - host_seconds(masked.deployment, sequences))
    forward, rows = np.broadcast_arrays(forward, rows)
    low = np.floor(rows)
    more = rows - low
    added = (1.0 - more) * _beyond(masked, low, forward) + more * _beyond(masked, low + 1.0, forward)
    stations: tuple[Num, ...] = (0.0, added)
    return time.plus(StepTime(fullest=stations, mean=stations))


def _beyond(masked: MaskedSteps, rows: Array, forward: Array) -> Array:
    """:meth:`MaskedSteps.beyond` of whole numbers of rows."""
    found = np.empty(rows.shape)
    for count in np.unique(rows):
        here = rows == count
        found[here] = masked.beyond(int(count), forward[here])
    return found
