"""What stands behind the figures of jobs: estimates that explain them, terms, bills, words, the data of pictures."""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from inferplan.answers.fit import Fits
from inferplan.reports.cost import bill_record
from inferplan.traffic.profile import BIN, DAY
from inferplan.units import Array
from inferplan.web.commands import Commands, Options
from inferplan.work.parallel import Parallelism

if TYPE_CHECKING:  # plans and simulations are made by jobs alone
    from inferplan.planning.day import Day
    from inferplan.planning.option import PlanOption
    from inferplan.planning.plan import Plan
    from inferplan.serving.result import SimulationResult

_DEGREES = ("tp", "pp", "ep", "dp", "cp")
_SHARES = np.concatenate([np.arange(100) / 100, [0.995, 0.999, 1.0]])
"""Of the requests, from the fastest on: where the distribution of a latency is drawn."""
_SPANS = 240
"""Of a run, all of one length: over each of them the picture of queue and batch has mean and most."""


def fit_views(model: str, found: Fits) -> list[Options | None]:
    """For each row the options of an estimate with the same footprint; ``None`` where nothing fits.

    One request whose last token is the last of the context that was asked for. Memory needs no constants: ``ideal``.
    """
    load = {"batch": 1, "prompt": max(found.context - 1, 1), "output": 1}
    own = {"model": model, "ideal": True, **load}
    return [
        None
        if one.fitting is None
        else {
            **own,
            "engine": found.asked.engine or one.fitting.deployment.engine.name,
            **_where(one.gpu, one.quant, one.fitting.deployment.parallel),
        }
        for one in found.options
    ]


def _where(gpu: str, quant: str | None, parallel: Parallelism) -> dict[str, Any]:
    """Accelerator, format and division by the options that name them; those at their defaults are left out."""
    degrees = {name: getattr(parallel, name) for name in _DEGREES if getattr(parallel, name) > 1}
    return {"gpu": gpu, **({} if quant in (None, "native") else {"quant": quant}), **degrees}


def plan_behind(plan: Plan, commands: Commands) -> dict[str, Any]:
    """What the page says of a plan beyond its JSON.

    terms, screening: the formulas at the chosen point and what they are, as the report prints them. view: the replica
    as an estimate, without a batch; ``None`` where it has options that a static estimate does not take. memory: one
    device at the capacity of a replica, with the view that explains it. frontiers, chosen: output tokens/s of one
    device against those of one user, by GPU and of the plan, in closed form. bills: of each row what is bought, by the
    row's key in the JSON.
    """
    from inferplan.planning.infeasible import REASONS
    from inferplan.reports.plan import BOTTLENECKS
    from inferplan.reports.plan_page import screening
    from inferplan.reports.plan_pictures import frontier_curves
    from inferplan.reports.plan_terms import plan_terms

    view, encodes = _replica(plan), plan.option.deployment.model.encodes
    return {
        "terms": [
            {"name": term.name, "value": term.shown, "formula": term.formula, "numbers": term.numbers}
            for term in plan_terms(plan)
        ],
        "screening": screening(plan),
        "view": view,
        "memory": None if view is None else _memory(plan, view, commands),
        "frontiers": []
        if encodes
        else [_rates(curve.x, curve.y) | {"gpu": curve.label} for curve in frontier_curves(plan)],
        "chosen": None if encodes else _rates(plan.option.per_user, plan.option.per_device),
        "bottleneck": BOTTLENECKS[plan.binding],
        "reasons": {reason: REASONS[reason] for reason in plan.searched.rejections.counts},
        "bills": {
            "plan": _bills(plan.option),
            "at_the_other_confidence": [] if plan.other is None else _bills(plan.other.option),
            "measured_alternative": [] if plan.measured is None else _bills(plan.measured.option),
            "native_alternative": [] if plan.native is None else _bills(plan.native.option),
            "unknown_alternative": [] if plan.unknown is None else _bills(plan.unknown.option),
            "alternatives": [_bills(verified.option) for verified in plan.alternatives],
        },
    }


def _rates(user: npt.ArrayLike, device: npt.ArrayLike) -> dict[str, Any]:
    return {"output_tokens_per_s_per_user": user, "output_tokens_per_s_per_device": device}


def _bills(option: PlanOption) -> list[dict[str, Any]]:
    """What is bought, prompts' accelerators first where they are apart; empty without a price."""
    return [{**bill_record(bill), "per_hour": bill.per_hour} for bill in option.purchases]


def _replica(plan: Plan) -> dict[str, Any] | None:
    """One replica (of pools apart, what decodes) as options of an estimate, at the mean lengths."""
    from inferplan.reports.plan_record import launch_record

    option, demand = plan.option, plan.question.demand
    parallel, request = option.deployment.parallel, option.request
    if launch_record(plan)["options"] or option.speculation.length or parallel.spread_dense or parallel.redundant:
        return None
    lengths = {"prompt": round(demand.prompt.average)}
    if not option.deployment.model.encodes:
        lengths["output"] = max(round(demand.output.average), 1)
    return {
        "model": request.model,
        "engine": request.engine,
        "max-num-batched-tokens": option.budget,
        **lengths,
        **_where(request.gpu, request.quant, parallel),
    }


def _memory(plan: Plan, view: Options, commands: Commands) -> dict[str, Any] | None:
    """The memory of one device with as many requests as a replica at its capacity has, half of their output written:
    as the report draws it."""
    at = {**view, "batch": max(round(plan.option.concurrency), 1)}
    if "output" in view:
        at["output"] = max(round(view["output"] / 2), 1)
    answered = commands.run("explain", {"number": "memory.total", **at})
    if answered.report is None:  # rounded up, the last request may be one too many
        return None
    usable = plan.option.deployment.hardware.memory.usable
    return {"view": at, "bytes": answered.report.record["value"], "usable_bytes": usable}


def simulation_behind(result: SimulationResult) -> dict[str, Any]:
    """What the page draws of a simulation beyond its JSON.

    shares, latencies: of the requests that count, in how many seconds each share of them is done, by latency; nothing
    where the queue grows. spans: ``start_s`` of each, and how many requests were in the batch (``running``: admitted,
    not yet finished) and in the queue (``waiting``) over it, on average and at most, over all replicas. counted_s:
    between which seconds figures count.
    """
    values = {name: getattr(result, name) for name in ("ttft", "tpot", "e2el")} if result.steady else {}
    return {
        "shares": _SHARES,
        "latencies": {f"{name}_s": np.quantile(found, _SHARES) for name, found in values.items() if len(found)},
        "counted_s": result.window,
        "spans": _spans(result),
    }


def parts_of(span: float) -> list[float]:
    """Where parts of five minutes begin, of more than a day as many as a day has; and the end [s]. None is so short
    that rounding made it."""
    step = max(BIN, span * BIN / DAY)
    return [*(step * part for part in range(max(ceil(span / step - 1e-6), 1))), span]


def day_behind(day: Day) -> dict[str, Any]:
    """What the page draws of a day beyond its JSON.

    start_s, end_s: parts of five minutes, of more than a day as many as a day has; requests_per_s: that came in each,
    under the first policy; replicas: paid for in each, on average, by policy.
    """
    edges = parts_of(day.asked.span)
    parts = list(pairwise(edges))
    came = np.diff(np.searchsorted(np.asarray(day.policies[0].result.records.arrival), edges))
    return {
        "start_s": edges[:-1],
        "end_s": edges[-1],
        "requests_per_s": came / np.diff(edges),
        "replicas": {one.policy: [one.mean_replicas(*part) for part in parts] for one in day.policies},
    }


def _spans(result: SimulationResult) -> dict[str, Any]:
    """The run in :data:`_SPANS` parts."""
    from inferplan.serving.records import REJECTED

    records = result.records
    arrival, admitted, finish = (np.asarray(getattr(records, name)) for name in ("arrival", "admitted", "finish"))
    edges = np.linspace(float(np.nanmin(arrival)), result.end, _SPANS + 1)  # the warm-up and all
    seen = ~np.isnan(arrival) & (records.outcome != REJECTED)
    left = np.where(np.isnan(finish), np.inf, finish)
    begun = seen & ~np.isnan(admitted)
    waiting = _held(arrival[seen], np.where(np.isnan(admitted), left, admitted)[seen], edges)
    running = _held(admitted[begun], left[begun], edges)
    return {"start_s": edges[:-1], "running": running, "waiting": waiting}


def _held(begin: Array, end: Array, edges: Array) -> dict[str, Array]:
    """How many intervals hold each moment, on average and at most between two edges."""
    times = np.concatenate([begin, end[np.isfinite(end)], edges])
    steps = np.concatenate([np.ones(len(begin)), -np.ones(int(np.sum(np.isfinite(end)))), np.zeros(len(edges))])
    order = np.lexsort((steps, times))  # of what begins as another ends only one is there at a time
    times, level = times[order], np.cumsum(steps[order])
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times))])
    at = np.searchsorted(times, edges, side="right") - 1
    return {
        "mean": np.diff(area[at]) / np.maximum(np.diff(edges), 1e-12),
        "most": np.array([np.max(level[first : last + 1]) for first, last in pairwise(at)]),
    }
