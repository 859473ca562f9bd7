"""Limits that an idle replica barely keeps: near them a replica carries little, and a fleet grows without bound."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from inferplan.planning.demand import METRIC_NAMES, percentile_of
from inferplan.planning.design import Design, carried_by, mean_request
from inferplan.planning.option import PlanOption
from inferplan.planning.question import Question
from inferplan.planning.sizing import Simulations
from inferplan.traffic.requests import Lengths, Slo
from inferplan.units import format_time

_NEAR = {"ttft": 0.5, "tpot": 0.8}
"""Share of a limit that an idle replica takes, from which it is said. Prompts queue: where one takes half of its limit,
the next may not wait for it. Decodes share a step."""
LOOSER, LITTLE = 2.0, 1.1
"""Times the limit with which what a replica carries is compared; times as much that is not worth a word."""


class Edge(NamedTuple):
    """A limit near what an idle replica takes, in seconds."""

    name: str
    alone: float
    limit: float

    @property
    def looser(self) -> str:
        """The option with twice the limit."""
        return f"--{self.name} {format_time(LOOSER * self.limit, 3).replace(' ', '')}"

    def describe(self, slo: Slo) -> str:
        """In words."""
        whose = f"the prompt of {percentile_of(slo)} alone" if self.name == "ttft" else "a request alone"
        return (
            f"! the limit on {METRIC_NAMES[self.name]} is near what an idle replica takes, "
            f"{format_time(self.alone, 3)} of {format_time(self.limit, 3)} for {whose}: try a faster --gpu"
        )


def edges(option: PlanOption, question: Question) -> list[Edge]:
    """The limits of a question that an idle replica of an option barely keeps; none for classes, traces and sessions,
    whose requests differ."""
    demand, slo = question.demand, question.slo
    unlike = (demand.own is not None, demand.trace is not None, demand.classes, demand.of_sessions)
    if any(unlike) or demand.cached or demand.offline:
        return []
    takes, slow = dict[str, float](), option.slow
    if slo.ttft is not None:
        prompt = Lengths(mean=max(round(demand.prompt.quantile(slo.percentile / 100)), 1))
        alone = mean_request((option.prompts or option).deployment, prompt, demand.output).ttft
        takes["ttft"] = float(alone.sum()) * slow.step * slow.first
    if slo.tpot is not None and demand.output.average > 1 and not option.speculation.length:
        takes["tpot"] = float(mean_request(option.deployment, demand.prompt, demand.output).tpot.sum()) * slow.step
    limits = slo.limits
    near = [name for name, seconds in takes.items() if _NEAR[name] * limits[name] < seconds]
    return [Edge(name, takes[name], limits[name]) for name in near]


def loosened(question: Question, edge: Edge) -> Question:
    """The question with twice that limit."""
    return replace(question, slo=replace(question.slo, **{edge.name: LOOSER * edge.limit}), borrowed=None)


def edge_lines(design: Design, question: Question) -> list[str]:
    """Those limits in words, with what a replica carries with twice the limit, by simulation."""
    lines = []
    for edge in edges(design.option, question):
        more = carried_by(design.option, loosened(question, edge), Simulations(most=0)).rate / design.rate
        gain = f"; with {edge.looser} a replica carries {more:.3g} times as much" if more > LITTLE else ""
        lines.append(edge.describe(question.slo) + gain)
    return lines
