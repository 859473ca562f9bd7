"""The numbers of a plan with the formulas that made them: what the page prints in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from inferplan.answers.cost import Cost
from inferplan.estimate.phase import run_step
from inferplan.estimate.roofline import time_terms
from inferplan.planning.grid import LoadGrid
from inferplan.planning.option import Sizing
from inferplan.planning.plan import Plan
from inferplan.planning.search import point
from inferplan.reports.plan_figures import cost_of
from inferplan.serving.rounds import departures, in_system, mean_round
from inferplan.terms import Term, name_term
from inferplan.work.step import decode, prefill


def plan_terms(plan: Plan) -> list[Term]:
    """One term for each formula at the chosen point: operator, round, capacity, requests, replicas, cost."""
    option, question = plan.option, plan.question
    if option.deployment.model.encodes:
        rate = name_term(option.rate, "capacity per replica, closed form", "requests/s")
        return [_largest_operator(plan), _replicas(plan, rate), *_cost(plan)]
    demand, percentile = question.demand, question.slo.percentile
    grid = point(option.deployment, demand, percentile, option.batch, option.budget, option.speculation)
    return [_largest_operator(plan), *_capacity(plan, grid), *_cost(plan)]


def _capacity(plan: Plan, grid: LoadGrid) -> Iterator[Term]:
    """Rounds, what a replica takes of the load, and how many replicas that makes."""
    demand, apart = plan.question.demand, plan.option.pools is not None
    decodes = name_term(float(grid.step_decode[0]), "round of decodes", "s")
    mean: Any = decodes if apart else _mean_round(plan, grid, decodes)
    drafts = grid.speculation.length
    tokens = name_term(grid.speculation.tokens, "tokens per round") if drafts else 1.0
    if not apart:
        yield mean
    if drafts:
        yield cast("Term", name_term(mean / tokens, "time per output token", "s"))
    batch, ranks = name_term(plan.option.batch, "batch"), name_term(plan.deployment.parallel.dp, "attention ranks")
    steps: Any = name_term(demand.output.average - 1.0, "decoded tokens") / tokens
    rate = name_term(departures(batch, steps, mean) * ranks, "capacity per replica, closed form", "requests/s")
    yield rate
    if not apart:
        ttft = name_term(float(grid.ttft_mean[0, 0]), "mean TTFT", "s")
        yield name_term(in_system(rate, ttft, steps, mean), "requests per replica", "requests")
    yield _replicas(plan, rate)


def _replicas(plan: Plan, screened: Any) -> Term:
    """Replicas for the load by the capacity that simulation found; by the screened one where nothing was simulated, and
    for the pool of decodes, of which simulation finds no capacity of its own.
    """
    demand, found, apart = plan.question.demand, plan.capacity, plan.option.pools is not None
    many: float | None = demand.users
    name, unit = "users", "users"
    if many is None:
        many, name, unit = demand.requests_per_second, "rate", "requests/s"
    load = name_term(many, name, unit)
    carried = screened
    if found is not None and not apart:
        each = plan.load * found.factor / plan.option.replicas
        carried = name_term(each, "capacity per replica, simulated", unit)
    utilisation = name_term(plan.question.sizing.utilisation, "utilisation")
    of = "decode replicas, before simulation" if apart else "replicas"
    return cast("Term", name_term(Sizing(utilisation=utilisation).replicas(load, carried), of))


def _mean_round(plan: Plan, grid: LoadGrid, decodes: Term) -> Term:
    """The mean round of replicas that compute prompts and decode: without drafts, the time per output token."""
    mixed = plan.option.deployment.engine.batching.mixed
    share = name_term(float(grid.share[0, 0]), "share of rounds with prompts")
    prompts = name_term(float(grid.step_mixed[0, 0]), "round with prompts" if mixed else "step of prompts", "s")
    name = "mean round" if grid.speculation.length else "time per output token"
    return cast("Term", name_term(mean_round(share, cast("Any", decodes), prompts, mixed), name, "s"))


def _largest_operator(plan: Plan) -> Term:
    """The operator that takes most of a step of decodes, run once; of a pass where nothing is generated."""
    option, demand = plan.option, plan.question.demand
    batch, encodes = float(option.batch * option.deployment.parallel.dp), option.deployment.model.encodes
    context = demand.prompt.average + demand.output.average / 2
    step = prefill(batch, demand.prompt.average) if encodes else decode(batch, context)
    phase = run_step(option.deployment, step)
    largest = max((cost for stage in phase.stages for cost in stage), key=lambda cost: float(cost.total))
    time = time_terms(largest.op, option.deployment.hardware, option.deployment.calibration)
    of = "pass" if encodes else "decode step"
    return cast("Term", name_term(time, f"{largest.op.name} (largest operator of a {of}), one run", "s"))


def _cost(plan: Plan) -> Iterator[Term]:
    cost = cost_of(plan)
    if cost is None:
        return
    bill: Any = SimpleNamespace(per_hour=name_term(cost.per_hour, "bill per hour", cost.bill.offer.currency))
    read, currency = name_term(cost.rates.input, "input tokens/s"), cost.bill.offer.currency
    if not cost.rates.output:
        rates: Any = SimpleNamespace(input=read, generated=0.0)
        yield cast("Term", name_term(Cost(bill=bill, rates=rates).per_million_total, "per million tokens", currency))
        return
    rates = SimpleNamespace(input=read, generated=name_term(cost.rates.generated, "output tokens/s"))
    price = Cost(bill=bill, rates=rates, ratio=cost.ratio).per_million_output
    yield cast("Term", name_term(price, "per million output tokens", currency))
