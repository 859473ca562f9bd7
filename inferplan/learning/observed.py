"""What a server recorded of its steps: how long they took and what they held, whatever file said so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import expm1, isfinite
from typing import NamedTuple

from inferplan.errors import InputFileError
from inferplan.units import MOST

STEADY = 0.1
"""How far, as a share of the most, the sequences of a window may differ, beyond one: beyond, how many decoded in each
step is not known."""
NEAR = 50
"""Measurements within which one that states its context says that of another."""
_NUMBER = re.compile(r"\+?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)


def figure(said: object, whole: bool = False) -> float | None:
    """A number of a record, or its text; ``None`` for what is no number of 0 to :data:`inferplan.units.MOST`.

    whole: whether it counts something, so that 4 and 4.0 are numbers and 4.5 is none.
    """
    if isinstance(said, str):
        said = float(said) if _NUMBER.fullmatch(said) else None
    if isinstance(said, bool) or not isinstance(said, (int, float)) or not 0 <= said <= MOST:
        return None
    return None if whole and said != int(said) else float(said)


def differ(sequences: Sequence[float]) -> bool:
    """Whether the sequences of a window are too many in one place and too few in another to say how a step was."""
    return max(sequences) - min(sequences) > max(STEADY * max(sequences), 1.0)


class StepLoad(NamedTuple):
    """What one step holds: ``prompts`` with ``new`` tokens each behind ``past`` cached ones, and sequences that decode
    with a mean of ``context`` tokens behind them; ``None`` where the record does not say how many."""

    prompts: float = 0.0
    new: float = 0.0
    past: float = 0.0
    decodes: float = 0.0
    context: float | None = 0.0


def steps_of_gaps(
    sequences: float, coming: float, prompt: tuple[float, float], context: float | None, mixed: bool
) -> list[tuple[float, StepLoad]]:
    """The steps that the mean gap between two tokens is made of, where so many ``sequences`` are served at any time.

    coming: prompts for each step that decodes, each of ``prompt`` new and cached tokens, independent of each other: the
    share ``1 - exp(-coming)`` of the steps holds some. mixed: prompts are in the same step as decodes; else in one of
    their own before it. A gap counts once for each sequence that waits for it, and a sequence whose prompt is computed
    does not.
    """
    if not coming:
        return [(1.0, StepLoad(decodes=sequences, context=context))]
    share = -expm1(-coming)
    number, (new, past) = coming / share, prompt
    beside = sequences - number
    if not mixed:
        own = (share * max(beside, 0.0) / sequences, StepLoad(number, new, past))
        return [(1.0, StepLoad(decodes=sequences, context=context)), own]
    gaps = sequences - coming
    alone = ((1.0 - share) * sequences / gaps, StepLoad(decodes=sequences, context=context))
    if beside <= 0.0:
        return [(1.0, alone[1])]
    return [alone, (share * beside / gaps, StepLoad(number, new, past, beside, context))]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Measured ``seconds`` of a sum of steps: each load with how often it counts (1 of a single step).

    where: file and line, for messages.
    """

    seconds: float
    steps: tuple[tuple[float, StepLoad], ...]
    where: str


@dataclass(kw_only=True)
class Recorded:
    """What one file says: its steps in their order, and how much was passed over, by reason."""

    kind: str
    """What wrote it, in words."""
    engine: str
    """The catalogue's name of the engine that wrote it; empty where a record of its kind may be of several."""
    observed: list[Observed]
    passed_over: dict[str, int]

    @classmethod
    def of(cls, kind: str, engine: str = "") -> Recorded:
        """An empty one."""
        return cls(kind=kind, engine=engine, observed=[], passed_over={})

    def keep(self, seconds: float, steps: Sequence[tuple[float, StepLoad]], where: str) -> None:
        """Add a measurement, unless it measures nothing."""
        if not (isfinite(seconds) and seconds > 0.0):
            self.skip("steps without a time")
        else:
            self.observed.append(Observed(seconds=seconds, steps=tuple(steps), where=where))

    def skip(self, why: str) -> None:
        """Count what says nothing of a step."""
        self.passed_over[why] = self.passed_over.get(why, 0) + 1

    @property
    def reasons(self) -> str:
        """What was passed over, in words; empty where nothing was."""
        return ", ".join(f"{count:,} {why}" for why, count in self.passed_over.items())


def with_context(recorded: Recorded, context: float | None) -> Recorded:
    """The same where decodes of unknown context have that of the nearest of about as many, else ``context`` tokens.

    ``context`` stands for a whole record, and would be wrong of some lines of a record that states it elsewhere. Raises
    ``InputFileError`` where decodes are left without one.
    """
    said = [_decodes(one) for one in recorded.observed]
    lacking = [place for place, load in enumerate(said) if load is not None and load.context is None]
    stated = any(load is not None and load.context is not None for load in said)
    known: dict[int, float] = {}
    for place in lacking:
        nearest = _nearest(said, place) if stated else None
        near = context if nearest is None else nearest
        if near is None:
            raise InputFileError(
                f"{recorded.observed[place].where}: {recorded.kind} does not state the context of a decode",
                because="attention reads them in every step, and their number is not guessed",
                hint="--context 1500, the mean of prompt and half of the output; or records that say it "
                "(docs/learn.md)",
            )
        known[place] = near
    observed = [
        replace(one, steps=_filled(one.steps, known[place])) if place in known else one
        for place, one in enumerate(recorded.observed)
    ]
    return replace(recorded, observed=observed)


def _decodes(one: Observed) -> StepLoad | None:
    """Of a measurement the load that decodes, with an unknown context where there is one."""
    decoding = [load for _, load in one.steps if load.decodes]
    return min(decoding, key=lambda load: load.context is not None, default=None)


def _nearest(said: Sequence[StepLoad | None], place: int) -> float | None:
    """The context of the nearest measurement of about as many decodes, the earlier of two."""
    own = said[place]
    for away in range(1, NEAR + 1):
        for other in (place - away, place + away):
            load = said[other] if 0 <= other < len(said) else None
            if own and load and load.context is not None and not differ((own.decodes, load.decodes)):
                return load.context
    return None


def _filled(steps: Sequence[tuple[float, StepLoad]], context: float) -> tuple[tuple[float, StepLoad], ...]:
    return tuple((times, load._replace(context=context) if load.context is None else load) for times, load in steps)
