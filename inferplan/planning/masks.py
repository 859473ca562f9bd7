"""Structured decoding in the closed form of a plan: what masks add to its rounds, and beside what it is not planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import StepTime, host_seconds
from inferplan.estimate.structured import MaskedSteps, Structured
from inferplan.serving.rounds import LoadedRounds
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.units import Array, Num


def masks_of(
    deployments: Sequence[Deployment], structured: Structured | None, speculation: Speculation = PLAIN
) -> list[MaskedSteps | None]:
    """What masks add to the steps of each deployment; ``None`` where no request has any.

    The grammar steps through drafts, so that masks of a verification are filled one after another (docs/structured.md).
    """
    if structured is None:
        return [None] * len(deployments)
    filled = structured if speculation.width == 1 else replace(structured, cores=1)
    return [MaskedSteps(deployment=one, structured=filled) for one in deployments]


def with_masks(
    rounds: LoadedRounds, masked: MaskedSteps | None, batch: Array, coming: Array, width: int = 1
) -> LoadedRounds:
    """The rounds with what masks add to them, as :class:`inferplan.serving.masked_times.MaskedTimes` adds it to steps.

    batch: sequences of a rank that decode, each with a mask for ``width`` tokens. coming: prompts of every round, which
    all end in those that hold prompts and have a mask there for their first token. On the safe side, thoughts have
    masks that are filled, and a batch in flight that holds prompts ends all of a round.
    """
    if masked is None:
        return rounds
    each = batch / rounds.decode.microbatches
    ending = coming / np.asarray(rounds.held.share)
    decode = _added(masked, each * width, rounds.decode, each)
    own = _added(masked, each * width + ending, rounds.own, each + rounds.held.number)
    return rounds._replace(decode=decode, own=own)


def _added(masked: MaskedSteps, rows: Num, time: StepTime, sequences: Num) -> StepTime:
    """The time of a round with ``rows`` in each batch that get a token; of a mean between two numbers the mean of both.
    The last stage samples, and waits for masks."""
    forward = np.asarray(time.passage - host_seconds(masked.deployment, sequences))
    forward, rows = np.broadcast_arrays(forward, rows)
    low = np.floor(rows)
    more = rows - low
    added = (1.0 - more) * _beyond(masked, low, forward) + more * _beyond(masked, low + 1.0, forward)
    stations: tuple[Num, ...] = (*(0.0 for _ in time.fullest[1:]), added)
    return time.plus(StepTime(fullest=stations, mean=stations))


def _beyond(masked: MaskedSteps, rows: Array, forward: Array) -> Array:
    """:meth:`MaskedSteps.beyond` of whole numbers of rows."""
    found = np.empty(rows.shape)
    for count in np.unique(rows):
        here = rows == count
        found[here] = masked.beyond(int(count), forward[here])
    return found
