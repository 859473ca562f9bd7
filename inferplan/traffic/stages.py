"""Requests that go from one model to another: who is asked first, and which share of the answers goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from inferplan.errors import UsageError
from inferplan.traffic.conversations import Ints
from inferplan.traffic.popularity import Popularity
from inferplan.traffic.requests import Lengths, OpenLoop, Slo
from inferplan.units import Array, BoolArray

SUM_TOLERANCE = 1e-9
"""Shares that follow one model may exceed 1 by so much, which is rounding."""


@dataclass(frozen=True, kw_only=True)
class ModelStage:
    """A model as requests see it.

    rate: requests a second that come to it first; ``None`` for one that is asked after another. after: which stage that
    is, by place, before this one. share: of that stage's answers, those that come here. prompt: ``None`` where the same
    prompt is asked again. limits: of this model alone. answer: of the whole, from the arrival at the first model on, of
    a stage with a rate: ``ttft`` is the time until its user sees anything
    (:func:`inferplan.serving.tandem.answers`).
    """

    name: str
    output: Lengths
    prompt: Lengths | None = None
    rate: float | None = None
    after: int | None = None
    share: float = 1.0
    adapters: Popularity | None = None
    """Which adapters its requests name, each of them one."""
    lora_bandwidth: float | None = None
    """Bytes a second at which a device loads one; ``None``: its host link on file."""
    limits: Slo = field(default_factory=Slo)
    answer: Slo = field(default_factory=Slo)
    shares: int | None = None
    """Which stage's GPUs it runs on too, by place, before this one; ``None``: on GPUs of its own."""


def require_tree(stages: Sequence[ModelStage]) -> None:
    """Raise ``UsageError`` unless every stage has a rate or follows one before it, and shares are at most a whole."""
    names = [stage.name for stage in stages]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"two models are named {twice[0]!r}", hint="a name of its own for each")
    for place, stage in enumerate(stages):
        if (stage.rate is None) == (stage.after is None):
            raise UsageError(
                f"{stage.name} needs either a rate or a model that it is asked after", hint="rate: 20, or after: NAME"
            )
        if stage.after is not None and not 0 <= stage.after < place:
            raise UsageError(f"{stage.name} follows a model that comes later", hint="in the order of the requests")
        if stage.rate is not None and stage.prompt is None:
            raise UsageError(f"the prompts of {stage.name} have no length", hint="prompt: 1024")
        if not 0 <= stage.share <= 1:
            raise UsageError(f"{stage.name}: a share is in [0, 1], not {stage.share:g}")
        if stage.answer.tpot is not None:
            raise UsageError("an answer of several models has no time per output token", hint="tpot: of one model")
        _require_sharing(stages, place)
        followers = [one for one in stages if one.after == place]
        total = sum(one.share for one in followers)
        if total > 1 + SUM_TOLERANCE:
            raise UsageError(
                f"{total:g} of the answers of {stage.name} go on to other models",
                because=", ".join(f"{one.share:g} to {one.name}" for one in followers),
                hint="shares that follow one model add up to 1 at most",
            )


def _require_sharing(stages: Sequence[ModelStage], place: int) -> None:
    """Raise ``UsageError`` for a stage whose GPUs are those of none, or of one that is asked after another."""
    host = stages[place].shares
    if host is None:
        return
    if not 0 <= host < place or stages[host].shares is not None:
        raise UsageError(
            f"{stages[place].name} shares the GPUs of a model that has none of its own before it",
            hint="the first model of those that share",
        )
    late = next((one for one in (stages[place], stages[host]) if one.rate is None), None)
    if late is not None:
        raise UsageError(
            f"{late.name} is asked after another model and shares GPUs",
            because="models that share GPUs are simulated together, and their requests must be known in advance",
            hint="models with a rate of their own, or GPUs of its own",
        )


def host_of(stages: Sequence[ModelStage], place: int) -> int:
    """The stage on whose GPUs a stage runs: itself, or the one that it shares them with."""
    shares = stages[place].shares
    return place if shares is None else shares


def reach(stages: Sequence[ModelStage]) -> list[float]:
    """The share of the requests of its stream that comes to each stage."""
    found: list[float] = []
    for stage in stages:
        found.append(1.0 if stage.after is None else found[stage.after] * stage.share)
    return found


def root_of(stages: Sequence[ModelStage], place: int) -> int:
    """The stage at which the requests of a stage arrive first."""
    after = stages[place].after
    return place if after is None else root_of(stages, after)


def rate_of_stage(stages: Sequence[ModelStage], place: int) -> float:
    """Requests a second that come to a stage."""
    return (stages[root_of(stages, place)].rate or 0.0) * reach(stages)[place]


@dataclass(frozen=True, kw_only=True, eq=False)
class Draw:
    """What is drawn once for a stage and does not depend on who serves it, for each request of its stream.

    asked: whether the request comes to this stage. prompt, output: tokens. arrival: of the stream, in seconds.
    adapters: that each names, where they name any, and bytes a second at which one is loaded.
    """

    asked: BoolArray
    prompt: Ints
    output: Ints
    arrival: Array
    adapters: Ints | None = None
    lora_bandwidth: float | None = None


def draws(stages: Sequence[ModelStage], counts: Sequence[int], seed: int = 0) -> list[Draw]:
    """The requests of every stage. counts: of the stream that each stage belongs to.

    A number that is uniform on [0, 1) is drawn for each answer of a stage; stages that follow it have intervals of it
    as long as their shares, one behind the other, so that each request is asked again at most once.
    """
    require_tree(stages)
    found: list[Draw] = []
    taken = [0.0] * len(stages)
    chance = [np.random.default_rng((seed, place, 1)).random(counts[place]) for place in range(len(stages))]
    for place, stage in enumerate(stages):
        rng, count = np.random.default_rng((seed, place)), counts[place]
        if stage.after is None:
            assert stage.prompt is not None and stage.rate is not None
            arrival = OpenLoop(rate=stage.rate, exact=True).sample(rng, count)
            asked, prompt = np.ones(count, dtype=bool), stage.prompt.sample(rng, count)
        else:
            before, low = found[stage.after], taken[stage.after]
            taken[stage.after] = high = low + stage.share
            drawn = chance[stage.after]
            arrival, asked = before.arrival, before.asked & (drawn >= low) & (drawn < high)
            prompt = before.prompt if stage.prompt is None else stage.prompt.sample(rng, count)
        found.append(
            Draw(
                asked=asked,
                prompt=prompt,
                output=stage.output.sample(rng, count),
                arrival=arrival,
                adapters=None if stage.adapters is None else stage.adapters.draw(count, seed * len(stages) + place),
                lora_bandwidth=stage.lora_bandwidth,
            )
        )
    return found


def scale_rates(stages: Sequence[ModelStage], factor: float) -> tuple[ModelStage, ...]:
    """The stages with every rate multiplied."""
    return tuple(stage if stage.rate is None else replace(stage, rate=stage.rate * factor) for stage in stages)
