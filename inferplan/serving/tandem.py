"""Models that answer one after another: a cascade, or a router in front of several (docs/several-models.md).

Every request goes to the first model of its stream; a share of the answers goes on to a second one, and so on down a
tree. Loops are open, so that no model knows of those behind it: each is simulated by itself, in the order of the tree,
and what arrives at one are the departures of the one before it, at the time at which they leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from inferplan.estimate.deployment import Deployment
from inferplan.serving.class_results import percentile_with_lost
from inferplan.serving.options import Options
from inferplan.serving.records import FINISHED
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import simulate
from inferplan.serving.time_shared import Swap, simulate_shared
from inferplan.traffic.conversations import Ints
from inferplan.traffic.requests import Requests, Slo
from inferplan.traffic.stages import Draw, ModelStage, draws, host_of, root_of
from inferplan.units import Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """One stage after its simulation. who: which request of the stream each request of the run is. finish, first: when
    each request of the stream has its answer, and its first token; NaN for those that do not come here, infinite for
    those that are refused. run: ``None`` where nobody comes.
    """

    run: SimulationResult | None
    finish: Array
    first: Array


def simulate_stage(deployment: Deployment, draw: Draw, limits: Slo, before: Asked | None = None) -> Asked:
    """Simulate one stage. before: the stage whose answers come here; without one requests come from outside.

    Of the run the first quarter, and what runs empty at the end, are in no figure of it.
    """
    who, requests = _coming(draw, before)
    if not len(who):
        return _answered(draw, who, None)
    options = Options(slo=limits, trim=True, lora_bandwidth=draw.lora_bandwidth)
    return _answered(draw, who, simulate(deployment, requests, options=options))


def ask_together(members: Sequence[tuple[Deployment, Draw, Slo]], swap: Swap | None = None) -> list[Asked]:
    """:func:`simulate_stage` of stages that share GPUs by time, to all of which requests come from outside. swap:
    where one at a time is awake.
    """
    coming = [_coming(draw, None) for _, draw, _ in members]
    runs = simulate_shared([(one, requests, slo) for (one, _, slo), (_, requests) in zip(members, coming)], swap)
    return [_answered(draw, who, run) for (_, draw, _), (who, _), run in zip(members, coming, runs)]


def _coming(draw: Draw, before: Asked | None) -> tuple[Ints, Requests]:
    """Which requests of the stream come to a stage, in order of time, and those requests."""
    sent = draw.arrival if before is None else before.finish
    coming = np.flatnonzero(draw.asked & np.isfinite(sent))
    who = coming[np.argsort(sent[coming], kind="stable")]
    named = None if draw.adapters is None else draw.adapters[who]
    return who, Requests(prompt=draw.prompt[who], output=draw.output[who], arrival=sent[who], adapters=named)


def _answered(draw: Draw, who: Ints, run: SimulationResult | None) -> Asked:
    first, finish = (np.where(draw.asked, inf, np.nan) for _ in range(2))
    if run is not None:
        done = run.records.outcome == FINISHED
        finish[who[done]] = np.asarray(run.records.finish)[done]
        first[who[done]] = np.asarray(run.records.first)[done]
    return Asked(run=run, finish=finish, first=first)


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """What users see of one stream, of the requests that count: seconds from the arrival until anything is seen, until
    the whole answer is there, infinite for those that are refused; and whether the whole run was steady.
    """

    ttft: Array
    e2el: Array
    window: float
    """Seconds over which these requests came."""
    steady: bool
    slo: Slo

    def at(self, name: str, percentile: float) -> float:
        """A latency at a percentile; infinite where a queue grows."""
        values: Array = getattr(self, name)
        if not self.steady or not len(values):
            return inf
        return percentile_with_lost(values, percentile)

    def mean(self, name: str) -> float:
        """The mean of a latency, likewise."""
        values: Array = getattr(self, name)
        return float(np.mean(values)) if self.steady and len(values) else inf

    @property
    def keeps(self) -> bool:
        """Whether each limit is kept at the percentile."""
        return self.steady and all(self.at(name, self.slo.percentile) <= most for name, most in self.slo.limits.items())

    @property
    def attained(self) -> float:
        """The share of the answers within all limits."""
        good = np.isfinite(self.e2el)
        for name, most in self.slo.limits.items():
            good &= getattr(self, name) <= most
        return float(np.mean(good)) if len(good) else 0.0

    @property
    def goodput(self) -> float:
        """Answers a second within all limits, of the counted arrivals."""
        return self.attained * len(self.e2el) / self.window if self.window > 0 else 0.0


def answers(stages: Sequence[ModelStage], drawn: Sequence[Draw], asked: Sequence[Asked], root: int) -> Answers:
    """The stream of a stage with a rate, as its users see it.

    The whole answer is there when the last model that was asked has finished. A model whose answers may go on to
    another one shows nothing before its answer is whole and judged (Chen et al., FrugalGPT, arXiv 2305.05176: the score
    is of the whole answer), so that its ``ttft`` is its end; one that nobody follows shows its tokens as they come. The
    first quarter of the stream is in no figure, and so are requests that come less than the mean time of one before the
    last, beside which the system runs empty.
    """
    arrival = drawn[root].arrival
    shown, end = np.full(len(arrival), inf), np.full(len(arrival), inf)
    mine = [place for place in range(len(stages)) if root_of(stages, place) == root]
    for place in mine:
        followed = any(one.after == place and one.share > 0 for one in stages)
        here = drawn[place].asked
        end[here] = asked[place].finish[here]
        shown[here] = (asked[place].finish if followed else asked[place].first)[here]
    for place in mine:  # one that was refused on its way is lost, whatever stage it never reached
        lost = drawn[place].asked & np.isinf(asked[place].finish)
        end[lost] = shown[lost] = inf
    whole, seen = end - arrival, shown - arrival
    begin = len(arrival) // 4
    known = whole[begin:][np.isfinite(whole[begin:])]
    late = int(np.sum(arrival > arrival[-1] - float(np.mean(known)))) if len(known) else 0
    counted = slice(begin, len(arrival) - min(late, begin))
    times = arrival[counted]
    return Answers(
        ttft=seen[counted],
        e2el=whole[counted],
        window=float(times[-1] - times[0]) * len(times) / max(len(times) - 1, 1),
        steady=all(one.run is None or one.run.steady for one in (asked[place] for place in mine)),
        slo=stages[root].answer,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class TandemRun:
    """All stages of a run, and what users see of each stream: by the place of its first stage."""

    stages: tuple[ModelStage, ...]
    asked: tuple[Asked, ...]
    answers: dict[int, Answers]


def simulate_tandem(
    stages: Sequence[ModelStage],
    served: Sequence[Deployment],
    counts: Sequence[int],
    seed: int = 0,
    swaps: Mapping[int, Swap] | None = None,
) -> TandemRun:
    """Simulate every stage, each before those that follow it.

    served: the deployment of each stage with its replicas. counts: requests of the stream that each
    stage belongs to. swaps: of the stages on whose GPUs one model at a time is awake, by place. Raises ``UsageError``
    for a tree that is none, and what :func:`inferplan.serving.simulator.simulate` does.
    """
    drawn, asked = draws(stages, counts, seed=seed), dict[int, Asked]()
    for place, stage in enumerate(stages):
        together = [one for one in range(len(stages)) if host_of(stages, one) == host_of(stages, place)]
        if place in asked:
            continue
        if len(together) > 1:
            own = [(served[one], drawn[one], stages[one].limits) for one in together]
            asked |= dict(zip(together, ask_together(own, (swaps or {}).get(place))))
        else:
            before = None if stage.after is None else asked[stage.after]
            asked[place] = simulate_stage(served[place], drawn[place], stage.limits, before)
    found = [asked[place] for place in range(len(stages))]
    roots = [place for place, stage in enumerate(stages) if stage.after is None]
    return TandemRun(
        stages=tuple(stages),
        asked=tuple(found),
        answers={root: answers(stages, drawn, found, root) for root in roots},
    )
