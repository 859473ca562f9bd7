"""A :class:`FleetPlan` as JSON and as tables."""

from __future__ import annotations

from math import isfinite
from typing import Any

from inferplan.answers.cost import HOURS_PER_MONTH
from inferplan.catalog.bills import price_text
from inferplan.planning.demand import METRIC_NAMES, percentile_of
from inferplan.planning.finalists import carried_over
from inferplan.planning.fleet import Design, FleetPlan, Kind, Part, Single
from inferplan.planning.sizing import CAPACITY_TOLERANCE
from inferplan.reports.cost import bill_record
from inferplan.reports.estimate import deployment_record
from inferplan.reports.known_error import Served, error_notes, error_record
from inferplan.reports.plan import BOTTLENECKS
from inferplan.reports.plan_figures import quants
from inferplan.serving.result import SimulationResult
from inferplan.table import Report, Table
from inferplan.units import format_time


def fleet_report(plan: FleetPlan) -> Report:
    """The mix, what one kind of GPU would cost alone, the stocks, and the replicas that were tried."""
    parts = [_part(plan, part) for part in plan.parts]
    question, best = plan.question, plan.best_single
    record = {
        "model": question.space.base.model,
        "requests_per_s": question.demand.rate,
        "slo": {f"{name}_s": limit for name, limit in question.slo.limits.items()},
        "percentile": question.slo.percentile,
        "utilisation": question.sizing.utilisation,
        "own_price_per_device_hour": plan.asked.own_price,
        "currency": question.prices.currency,
        "cost_per_hour": plan.cost,
        "cost_per_month": plan.cost * HOURS_PER_MONTH,
        "devices": plan.devices,
        "carries_requests_per_s": plan.given,
        "proven_cheapest": plan.mix.gap == 0.0,
        "saving_per_hour": None if best is None else best.cost - plan.cost,
        **_latencies(plan, plan.run),
        "verdict": plan.run.verdict,
        "requests": plan.run.counts,
        "keeps_the_limits": plan.keeps(plan.run),
        "parts": parts,
        "known_error": error_record(_served(plan)),
        "alone": [_single(single) for single in plan.singles],
        "stock": [_stock(plan, kind) for kind in plan.asked.kinds],
        "designs": [_design(design) for design in _designs(plan)],
    }
    tables = [_mix_table(plan), _alone_table(plan), _stock_table(plan), _design_table(plan)]
    return Report(record=record, tables=tables, notes=_notes(plan), rows=[_flat(part) for part in parts])


def _flat(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in ("replica", "bill")}


def _latencies(plan: FleetPlan, run: SimulationResult) -> dict[str, float | None]:
    """At the percentile; none where the queue grows."""
    return {f"{name}_s": value if plan.run.steady else None for name, value in plan.at_percentile(run).items()}


def _part(plan: FleetPlan, part: Part) -> dict[str, Any]:
    deployment, bill = part.way.design.option.deployment, part.bill
    return {
        "gpu": deployment.hardware.name,
        "source": part.way.kind.source,
        "replicas": part.replicas,
        "devices": part.devices,
        "requests_per_s": part.load,
        "share": part.share,
        "cost_per_hour": bill.per_hour,
        "max_num_seqs": part.way.design.replica.flags.max_num_seqs,
        "max_num_batched_tokens": part.way.design.replica.flags.max_num_batched_tokens,
        **_latencies(plan, part.run),
        "keeps_the_limits": plan.keeps(part.run),
        "replica": deployment_record(deployment),
        "bill": bill_record(bill),
    }


def _single(single: Single) -> dict[str, Any]:
    possible = single.mix is not None
    return {
        "gpu": single.gpu,
        "devices": single.devices if possible else None,
        "cost_per_hour": single.cost if possible else None,
        "most_requests_per_s": single.most if isfinite(single.most) else None,
    }


def _stock(plan: FleetPlan, kind: Kind) -> dict[str, Any]:
    taken = plan.taken(kind)
    return {
        "gpu": kind.name,
        "source": kind.source,
        "most": kind.most,
        "taken": taken,
        "left": None if kind.most is None else kind.most - taken,
    }


def _designs(plan: FleetPlan) -> list[Design]:
    return list({id(way.design): way.design for way in plan.ways}.values())


def _design(design: Design) -> dict[str, Any]:
    return {
        "gpu": design.option.deployment.hardware.name,
        "replica": deployment_record(design.option.deployment),
        "devices": design.devices,
        "requests_per_s": design.replica.rate,
        "requests_per_s_and_device": design.replica.rate / design.devices,
        "breaks_first": design.replica.broken,
    }


def _shape(design: Design) -> str:
    """``"tp2, fp8"``."""
    parallel = design.option.deployment.parallel
    return f"{parallel.describe()}, {quants(design.option)}"


def _mix_table(plan: FleetPlan) -> Table:
    percentile, limits = percentile_of(plan.question.slo), plan.question.slo.limits
    latencies = [f"{METRIC_NAMES[name]} {percentile}" for name in limits]
    unit = plan.question.prices.currency
    columns = ["GPU", "from", "replica", "replicas", "GPUs", "requests/s", "share", f"{unit}/h", *latencies]
    rows = [
        [
            part.way.kind.name,
            part.way.kind.source,
            _shape(part.way.design),
            f"{part.replicas:,}",
            f"{part.devices:,}" + (f" of {part.bill.bought:,}" if part.bill.idle else ""),
            f"{part.load:,.2f}",
            f"{part.share:.1%}",
            f"{part.bill.per_hour:,.2f}",
            *_times(plan, part.run),
        ]
        for part in plan.parts
    ]
    load = plan.question.demand.rate or 0.0
    replicas = sum(part.replicas for part in plan.parts)
    whole = ["all", "", "", f"{replicas:,}", f"{plan.devices:,}", f"{load:,.2f}", "100.0%", f"{plan.cost:,.2f}"]
    rows.append([*whole, *_times(plan, plan.run)])
    asked = ", ".join(f"{METRIC_NAMES[name]} {percentile} < {format_time(v, 3)}" for name, v in limits.items())
    month = plan.cost * HOURS_PER_MONTH
    title = (
        f"{plan.question.space.base.model}: {plan.question.demand.describe()}; {asked}: "
        f"{plan.cost:,.2f} {unit}/h, {month:,.0f} {unit} a month"
    )
    return Table(title=title, columns=columns, rows=rows, right=frozenset(columns[3:]))


def _times(plan: FleetPlan, run: SimulationResult) -> list[str]:
    """The limited latencies at the percentile, those over their limit marked."""
    found, limits = plan.at_percentile(run), plan.question.slo.limits
    if not plan.run.steady:
        return ["-"] * len(limits)
    return [format_time(found[name], 3) + " !" * (found[name] > limit) for name, limit in limits.items()]


def _alone_table(plan: FleetPlan) -> Table:
    unit = plan.question.prices.currency
    rows = [["the mix", f"{plan.devices:,}", f"{plan.cost:,.2f}", ""]]
    for single in sorted(plan.singles, key=lambda single: single.cost):
        name = next(kind.name for kind in plan.asked.kinds if kind.gpu == single.gpu)
        if single.mix is None:
            rows.append([f"{name} alone", "-", "-", f"carries {single.most:.3g} requests/s at most"])
            continue
        more = single.cost - plan.cost
        said = f"{more:,.2f} {unit}/h more" if more > 0.005 else "the same"
        rows.append([f"{name} alone", f"{single.devices:,}", f"{single.cost:,.2f}", said])
    columns = ["fleet", "GPUs", f"{unit}/h", "against the mix"]
    return Table(title="One kind of GPU alone", columns=columns, rows=rows, right=frozenset(columns[1:3]))


def _stock_table(plan: FleetPlan) -> Table:
    rows = []
    for kind in plan.asked.kinds:
        taken = plan.taken(kind)
        most, left = ("no limit", "-") if kind.most is None else (f"{kind.most:,}", f"{kind.most - taken:,}")
        rows.append([kind.name, kind.source, most, f"{taken:,}", left])
    columns = ["GPU", "from", "stock", "taken", "left"]
    return Table(title="Stock, in GPUs", columns=columns, rows=rows, right=frozenset(columns[2:]))


def _design_table(plan: FleetPlan) -> Table:
    columns = ["GPU", "replica", "GPUs", "requests/s", "a GPU", "breaks first"]
    rows = [
        [
            design.option.deployment.hardware.name,
            _shape(design),
            str(design.devices),
            f"{design.replica.rate:.3f}",
            f"{design.replica.rate / design.devices:.3f}",
            BOTTLENECKS.get(design.replica.broken, "-"),
        ]
        for design in _designs(plan)
    ]
    title = f"What a replica carries within the limits (simulated, within {100 * CAPACITY_TOLERANCE:g} %)"
    return Table(title=title, columns=columns, rows=rows, right=frozenset(columns[2:5]))


def _served(plan: FleetPlan) -> Served:
    """What each kind of GPU runs, with the mean prompt."""
    prompt = plan.question.demand.prompt.average
    return {part.way.design.gpu: (part.way.design.option.deployment, prompt) for part in plan.parts}


def _notes(plan: FleetPlan) -> list[str]:
    question, asked = plan.question, plan.asked
    unit, used = question.prices.currency, question.sizing.utilisation
    lines = [
        f"a replica is given {used:.0%} of what it carries: the mix may be sent {plan.given:,.2f} requests/s",
        "one router sends each replica its turns of the requests, in proportion to what it carries; the percentiles "
        f"are of {plan.run.counts['arrived']:,} requests to the whole mix, in simulation",
    ]
    if plan.mix.gap > 0:
        lines.append(f"! the solver was stopped: a mix that costs up to {plan.mix.gap:.1%} less may exist")
    if not all(plan.keeps(run) for run in (plan.run, *(part.run for part in plan.parts))):
        lines.append("! a limit is missed in this run: a lower --utilisation leaves more room")
    if any(kind.owned for kind in asked.kinds):
        price = price_text(asked.own_price) if asked.own_price else ""
        said = f"{price} {unit}/h while it works" if price else "nothing more than they do anyway (--own-price)"
        lines.append(f"an owned GPU costs {said}" if price else f"owned GPUs cost {said}")
    formats = {quants(part.way.design.option): part.way.kind.name for part in plan.parts}
    if len(formats) > 1:
        listed = ", ".join(f"{name} on {gpu}" for name, gpu in formats.items())
        lines.append(f"replicas differ in format ({listed}), and so may their answers: --quant native")
    lines += [f"{gpu} is not used: {why}" for gpu, why in plan.unusable.items()]
    for design in {part.way.design.gpu: part.way.design for part in plan.parts}.values():
        if carried_over(design.option):
            lines.append(f"{design.gpu}: nobody has measured it, nor one of its maker; it may carry less")
    lines += error_notes(_served(plan), "unlike replicas behind one router" if len(_served(plan)) > 1 else "")
    bought = [part.bill for part in plan.parts if not part.way.kind.owned]
    lines += [bill.describe() for bill in bought]
    remarks = [remark for bill in bought for remark in bill.remarks]
    rented = [kind.name for kind in asked.kinds if not kind.owned]
    return [*lines, *dict.fromkeys(remarks), *question.prices.remarks(rented)]
