"""What one replica of a given deployment carries within the limits, by the simulations that size a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from inferplan.catalog.assemble import Request
from inferplan.errors import InfeasibleError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate, without_cadence
from inferplan.planning.confidence import AS_PREDICTED, Slowness, slow_grid
from inferplan.planning.demand import METRIC_NAMES, Demand, limits_in_words
from inferplan.planning.grid import axes_for, load_grid, longest_whole
from inferplan.planning.machines import Size, size_of
from inferplan.planning.option import PlanOption, PricedGrid
from inferplan.planning.question import Question
from inferplan.planning.search import cheapest_point
from inferplan.planning.sizing import Simulations, capacity
from inferplan.planning.verify import Verified, flags_of
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.traffic.requests import Lengths, Requests
from inferplan.units import format_time

MOST_LOADS = 60
"""Loads that are tried to find a capacity: a bisection takes about ten."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Design:
    """A replica: where it runs, how, and what it carries by simulation. option: with the replicas that it was simulated
    as one of. rate: the most requests a second within the limits. broken: what breaks first beyond it. requests: those
    in it, on average, at the share of that rate that it is given.
    """

    option: PlanOption
    flags: Flags
    rate: float
    broken: str
    requests: float

    @property
    def deployment(self) -> Deployment:
        return self.option.deployment

    @property
    def gpu(self) -> str:
        """As it was asked for: a name, or a file."""
        return self.option.request.gpu

    @property
    def size(self) -> Size:
        return size_of(self.deployment)


def answer_alone(deployment: Deployment, demand: Demand) -> float:
    """Seconds of a mean request of a demand on a replica that does nothing else: people wait no shorter for one."""
    prompt = max(demand.prompt.average - demand.cached, 1.0)
    load = StaticLoad(batch=1.0, prompt=prompt, output=demand.output.average)
    return float(estimate(without_cadence(deployment), load).e2el)


def design_at(option: PlanOption, question: Question) -> Design:
    """A replica at a point, with slots for the share of its capacity that it is given
    (:func:`inferplan.planning.verify.slots_for`). The rate of the question's demand does not matter.

    Raises ``InfeasibleError`` where no load is small enough for the limits.
    """
    found = carried_by(option, alone(option, question), Simulations(most=MOST_LOADS))
    if not found.rate:
        raise never(question, option.deployment)
    return found


def alone(option: PlanOption, question: Question) -> Question:
    """The question under the load that one replica is given, in closed form; a trace comes as fast as that."""
    rate, trace = option.rate * question.sizing.utilisation, question.demand.trace
    if trace is not None and trace.arrival is not None:
        trace = replace(trace, arrival=trace.arrival * (question.demand.rate or 0.0) / rate)
    return replace(question, demand=replace(question.demand, rate=rate, trace=trace))


def carried_by(option: PlanOption, question: Question, simulations: Simulations) -> Design:
    """What each of an option's replicas carries, fed in turn (:func:`inferplan.planning.sizing.capacity`); a rate of 0
    where it keeps the limits under no load near the question's.
    """

    def at(factor: float) -> Verified:
        return simulations.long(option, question, factor)

    found = capacity(at, question)
    rate = found.factor * (question.demand.rate or 0.0) / option.replicas
    sized = at(found.factor * question.sizing.utilisation) if rate else at(1.0)
    held = 0.0 if sized.result is None else sized.result.in_system
    return Design(option=option, flags=flags_of(option, question), rate=rate, broken=found.broken, requests=held)


def best_point(
    request: Request,
    deployment: Deployment,
    question: Question,
    slow: Slowness = AS_PREDICTED,
    speculation: Speculation = PLAIN,
) -> PlanOption:
    """The batch with which one replica carries most within the limits, in closed form, under the token budget of its
    engine. slow: of its devices. speculation: its drafts. Raises ``InfeasibleError`` where none keeps them."""
    little, budget = question.stream.little, deployment.engine.defaults.tier(deployment.hardware).token_budget
    percentile = little.slo.percentile
    axes = axes_for(deployment, [budget], longest_whole(deployment, little.demand, percentile))
    grid = slow_grid(load_grid(deployment, little.demand, percentile, axes, speculation), slow, percentile)
    option = cheapest_point(PricedGrid(request, grid, None), little)
    if option is None:
        raise never(question, deployment)
    return replace(option.sized(1), slow=slow)


def never(question: Question, deployment: Deployment) -> InfeasibleError:
    """The error that says so, with what a typical request takes alone. Raises what the simulation of that does."""
    slo, demand = question.slo, question.demand
    limits = limits_in_words(slo, demand.classes)
    alone = mean_request(deployment, demand.prompt, demand.output, demand.lora_bandwidth)
    seconds = {METRIC_NAMES[name]: float(np.sum(getattr(alone, name))) for name in slo.limits}
    takes = " and ".join(f"{name} {format_time(value, 3)}" for name, value in seconds.items())
    return InfeasibleError(
        f"a replica of {deployment.describe()} keeps {limits} under no load",
        because=f"a mean request takes {takes} alone" if len(alone.e2el) else "; ".join(alone.records.refused),
        hint="longer limits, another --gpu or --tp, or inferplan plan for what would do",
    )


def mean_request(
    deployment: Deployment, prompt: Lengths, output: Lengths, lora_bandwidth: float | None = None
) -> SimulationResult:
    """One request of mean lengths with nobody beside it, simulated; it loads its adapter, where there are any."""
    tokens = [np.array([max(round(lengths.average), 1)]) for lengths in (prompt, output)]
    adapters = None if deployment.lora is None else np.zeros(1, dtype=np.int64)
    alone = Requests(prompt=tokens[0], output=tokens[1], arrival=np.zeros(1), adapters=adapters)
    return simulate(deployment, alone, options=Options(lora_bandwidth=lora_bandwidth))
