"""What a number rests on: the parts of its price, each with its kind and its share of the seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from inferplan.estimate.batch import Estimate
from inferplan.estimate.phase import Phase
from inferplan.estimate.resting import KINDS, PARTS, Kind, Resting
from inferplan.estimate.roofline import OpCost
from inferplan.work.ops import Collective

_SHAPES = ("flop", "bytes", "intensity")
"""Numbers of a phase that no time is in."""
_COUNTED = ("memory.weights", "memory.kv", "memory.kv_per_token", "memory.adapters", "ridge", "cold_start")
"""Numbers that follow from shapes and datasheets alone."""
STEPS = {"ttft": "prefill", "tpot": "decode"}
"""Latencies, and the step whose shares stand for theirs."""
_TIMED = ("kernels", "collectives", "step", "adapters", "host", "link")
"""Parts that have seconds of a step of their own; a number that has none of them does not rest on them."""


@dataclass(frozen=True, kw_only=True)
class Basis:
    """One part of a number's price. share: of the seconds of its step; ``None`` where the part is in no kernel."""

    part: str
    kind: str
    said: str
    page: str
    share: float | None = None


def bases(estimate: Estimate, number: str) -> tuple[Basis, ...]:
    """What a number of an estimate rests on, the most of its seconds first. number: as ``explain`` names it."""
    first, _, rest = number.removeprefix("host.").partition(".")
    whole = f"{first}.{rest}" if rest else first
    if whole in _COUNTED or rest in _SHAPES:
        return (_basis("work", PARTS["work"].on("formula")),)
    if first == "memory" or whole in ("max_batch", "max_context"):
        return _basis("work", PARTS["work"].on("formula")), _basis("memory", PARTS["memory"].on("published"))
    parts = estimate.rests_on
    if first in ("energy", "watts"):
        parts = parts | {"energy": PARTS["energy"].on("published")}
    step = STEPS.get(whole, first)
    if step == "prefill" or (step == "decode" and not estimate.deployment.model.encodes):
        phase = estimate.prefill if step == "prefill" else estimate.decode
        if rest not in ("", "time", "mfu", "mbu"):
            return tuple(basis for _, basis in _of_operators(estimate, phase, {rest}))
        timed = [basis for _, basis in _of_operators(estimate, phase, set(phase.by_operator()))]
        beside = [_basis(name, one) for name, one in parts.items() if name not in _TIMED]
        return (*timed, *beside)
    return tuple(_basis(name, one) for name, one in parts.items())


def _basis(name: str, one: Resting, share: float | None = None) -> Basis:
    return Basis(part=name, kind=one["kind"], said=one["said"], page=one["page"], share=share)


def _of_operators(estimate: Estimate, phase: Phase, names: set[str]) -> Iterator[tuple[float, Basis]]:
    """The parts of these operators of a phase, by their share of the seconds of all of them."""
    costs = {cost.op.name: cost for cost in phase.costs}
    seconds: dict[tuple[str, Kind], float] = defaultdict(float)
    for name, spent in phase.by_operator().items():
        if name in names:
            seconds[_part(estimate, costs.get(name))] += float(np.sum(spent))
    whole = sum(seconds.values()) or 1.0
    parts, deployment = estimate.rests_on, estimate.deployment
    for (part, kind), spent in sorted(seconds.items(), key=lambda entry: -entry[1]):
        known = parts.get(part)
        if known is None or known["kind"] != kind:
            words = {"device": deployment.hardware.name, "constants": deployment.calibration.described}
            known = PARTS[part].on(kind, **words)
        yield spent, _basis(part, known, spent / whole)


def _part(estimate: Estimate, cost: OpCost | None) -> tuple[str, Kind]:
    """The part that a kernel belongs to, and what its constants are; the host's share of a step is no kernel."""
    if cost is None:
        return "step", "published" if "step" in estimate.rests_on else "formula"
    own = "adapters" if cost.op.kernel.endswith(".adapter") else cost.op.place
    own = "link" if cost.op.far else own
    if own in estimate.rests_on:
        return own, estimate.rests_on[own]["kind"]
    return "collectives" if isinstance(cost.op, Collective) else "kernels", KINDS[cost.basis]
