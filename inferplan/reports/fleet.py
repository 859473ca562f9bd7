"""A :class:`FleetPlan` as JSON and as tables."""

from __future__ import annotations

from typing import Any

from inferplan.catalog.bills import no_month, price_text
from inferplan.catalog.quality import cache_line, floor_line
from inferplan.figures import Figure, finite, record, short_time, side_by_side, text
from inferplan.planning.demand import METRIC_NAMES, limits_in_words, percentile_of
from inferplan.planning.design import Design
from inferplan.planning.edges import edge_lines
from inferplan.planning.finalists import carried_over
from inferplan.planning.fleet import FleetPlan, ReplicaGroup, Single
from inferplan.planning.machines import Kind
from inferplan.planning.question import Question
from inferplan.planning.sizing import CAPACITY_TOLERANCE
from inferplan.reports.classes import class_tables
from inferplan.reports.cost import bill_record
from inferplan.reports.estimate import deployment_record
from inferplan.reports.known_error import Served, error_notes, error_record
from inferplan.reports.people import with_people
from inferplan.reports.plan import BOTTLENECKS
from inferplan.reports.plan_figures import quants, with_them
from inferplan.serving.class_results import METRICS
from inferplan.serving.result import SimulationResult
from inferplan.serving.techniques.tiers import tier_records
from inferplan.table import Report
from inferplan.units import HOURS_PER_MONTH


def fleet_report(plan: FleetPlan) -> Report:
    """The mix, what one kind of GPU would cost alone, the stocks, and the replicas that were tried."""
    question, best, unit = plan.question, plan.best_single, plan.question.prices.currency
    parts, stocks = [_part(plan, part) for part in plan.parts], [_stock(plan, kind) for kind in plan.asked.kinds]
    counted = question.demand.counted
    designs = [_design(one, counted) for one in _designs(plan)]
    told = plan.run.to_dict()
    mix = {
        "model": question.space.base.model,
        "requests_per_s": question.demand.rate,
        "slo": None if question.demand.classes else {f"{name}_s": limit for name, limit in question.slo.limits.items()},
        "percentile": question.slo.percentile,
        "utilisation": question.sizing.utilisation,
        "own_price_per_device_hour": plan.asked.own_price,
        "currency": unit,
        "cost_per_hour": plan.cost,
        "cost_per_month": plan.cost * HOURS_PER_MONTH,
        "devices": plan.devices,
        "carries_requests_per_s": plan.given,
        "proven_cheapest": plan.bought.gap == 0.0,
        "saving_per_hour": None if best is None else best.cost - plan.cost,
        **record(_latencies(plan, plan.run)),
        "verdict": plan.run.verdict,
        "requests": plan.run.counts,
        "keeps_the_limits": plan.keeps(plan.run),
        "parts": [record(part) for part in parts],
        "known_error": error_record(_served(plan)),
        "alone": [record(_single(plan, single)) for single in plan.singles],
        "stock": [record(stock) for stock in stocks],
        "designs": [record(design) for design in designs],
        **{key: told[key] for key in ("prefix_cache_hit_rate", "cache_tiers", "classes")},
    }
    dearest_last = sorted(plan.singles, key=lambda single: single.cost)
    whole = [text("fleet", "the mix", left=True), Figure("", plan.devices, "GPUs", ",")]
    whole += [Figure("", plan.cost, f"{unit}/h", ",.2f"), text("against the mix", "", left=True)]
    carried = f"What a replica carries within the limits (simulated, within {100 * CAPACITY_TOLERANCE:g} %)"
    tables = [
        side_by_side(_title(plan), [*parts, _whole(plan)]),
        side_by_side("One kind of GPU alone", [whole, *(_single(plan, single) for single in dearest_last)]),
        side_by_side("Stock, in GPUs", stocks),
        side_by_side(carried, designs),
        *(class_tables(mix["classes"]) if mix["classes"] else ()),
    ]
    flat = [record(figure for figure in part if figure.key not in ("replica", "bill")) for part in parts]
    opening = [] if question.borrowed is None else [question.borrowed.choice()]
    report = Report(record=mix, opening=opening, tables=tables, notes=_notes(plan), rows=flat)
    rate, response = question.demand.rate or 0.0, float(plan.run.e2el.mean())
    return with_people(report, question.demand.people, rate, response, most=True)


def _title(plan: FleetPlan) -> str:
    unit = plan.question.prices.currency
    asked = limits_in_words(plan.question.slo, plan.question.demand.classes)
    month, short = plan.cost * HOURS_PER_MONTH, no_month(part.bill for part in plan.parts)
    return (
        f"{plan.question.space.base.model}: {plan.question.demand.describe()}; {asked}: {plan.cost:,.2f} {unit}/h, "
        f"{month:,.0f} {unit} per month{f' ({short})' if short else ''}"
    )


def _latencies(plan: FleetPlan, run: SimulationResult) -> list[Figure]:
    """At the percentile, those over their limit marked; none where the queue grows."""
    percentile, limits = percentile_of(plan.question.slo), plan.question.slo.limits
    held = {} if plan.question.demand.classes else limits  # each class has limits of its own
    figures, at = [], plan.at_percentile(run)
    for name in (*METRICS, "answer_ttft"):
        value = at.get(name)
        if value is None:
            figures.append(Figure(f"{name}_s", None))
            continue
        over = " !" * (name in held and value > held[name])
        said = f"{short_time(value)}{over}" if run.steady else "-"
        label, kept = f"{METRIC_NAMES[name]} {percentile}", value if run.steady else None
        figures.append(Figure(f"{name}_s", kept, label, text=said, seen=name in limits))
    return figures


def _part(plan: FleetPlan, part: ReplicaGroup) -> list[Figure]:
    """Replicas of one design on one kind of GPU."""
    deployment, bill, counted = part.way.design.deployment, part.bill, plan.question.demand.counted
    of = f" of {bill.bought:,}" if bill.idle else ""
    return [
        Figure("gpu", deployment.hardware.name, "GPU", text=part.way.kind.name, left=True),
        Figure("source", part.way.kind.source, "from", left=True),
        text("replica", _shape(part.way.design), left=True),
        Figure("replicas", part.replicas, "replicas", ","),
        Figure("devices", part.devices, "GPUs", text=f"{part.devices:,}{of}"),
        Figure("requests_per_s", part.load, f"{counted}/s", ",.2f"),
        Figure("share", part.share, "share", ".1%"),
        Figure("cost_per_hour", bill.per_hour, f"{plan.question.prices.currency}/h", ",.2f"),
        Figure("max_num_seqs", part.way.design.flags.max_num_seqs),
        Figure("max_num_batched_tokens", part.way.design.flags.max_num_batched_tokens),
        *_latencies(plan, part.run),
        Figure("keeps_the_limits", plan.keeps(part.run)),
        Figure("replica", _replica(part.way.design)),
        Figure("bill", bill_record(bill)),
    ]


def _whole(plan: FleetPlan) -> list[Figure]:
    """The last line of the table of parts."""
    return [
        text("GPU", "all", left=True),
        text("from", "", left=True),
        text("replica", "", left=True),
        Figure("", sum(part.replicas for part in plan.parts), "replicas", ","),
        Figure("", plan.devices, "GPUs", ","),
        Figure("", plan.question.demand.rate or 0.0, f"{plan.question.demand.counted}/s", ",.2f"),
        text("share", "100.0%"),
        Figure("", plan.cost, f"{plan.question.prices.currency}/h", ",.2f"),
        *_latencies(plan, plan.run),
    ]


def _single(plan: FleetPlan, single: Single) -> list[Figure]:
    """What one kind of GPU alone would cost, or the most that it carries."""
    unit, possible = plan.question.prices.currency, single.bought is not None
    name = next(kind.name for kind in plan.asked.kinds if kind.gpu == single.gpu)
    more = single.cost - plan.cost
    said = f"{more:,.2f} {unit}/h more" if more > 0.005 else "the same"
    return [
        Figure("gpu", single.gpu, "fleet", text=f"{name} alone", left=True),
        Figure("devices", single.devices if possible else None, "GPUs", ","),
        Figure("cost_per_hour", single.cost if possible else None, f"{unit}/h", ",.2f"),
        Figure(
            "most_requests_per_s",
            finite(single.most),
            "against the mix",
            text=said if possible else f"carries {single.most:.3g} {plan.question.demand.counted}/s at most",
            left=True,
        ),
    ]


def _stock(plan: FleetPlan, kind: Kind) -> list[Figure]:
    taken = plan.taken(kind)
    return [
        Figure("gpu", kind.name, "GPU", left=True),
        Figure("source", kind.source, "from", left=True),
        Figure("most", kind.most, "stock", ",", absent="no limit"),
        Figure("taken", taken, "taken", ","),
        Figure("left", None if kind.most is None else kind.most - taken, "left", ","),
    ]


def _design(design: Design, counted: str) -> list[Figure]:
    """What one replica carries."""
    broken, each = design.broken, design.rate / design.size.devices
    return [
        Figure("gpu", design.deployment.hardware.name, "GPU", left=True),
        Figure("replica", _replica(design), "replica", text=_shape(design), left=True),
        Figure("devices", design.size.devices, "GPUs"),
        Figure("requests_per_s", design.rate, f"{counted}/s", ".3f"),
        Figure("requests_per_s_and_device", each, "per GPU", ".3f"),
        Figure("breaks_first", broken, "breaks first", text=BOTTLENECKS.get(broken, "-"), left=True),
    ]


def _replica(design: Design) -> dict[str, Any]:
    """What one runs, with the sequences and the token budget that it is started with."""
    return deployment_record(design.deployment) | {
        "max_num_seqs": design.flags.max_num_seqs,
        "max_num_batched_tokens": design.flags.max_num_batched_tokens,
        "draft_tokens": design.option.speculation.length or None,
    }


def _shape(design: Design) -> str:
    """``"tp2, fp8"``."""
    cap = "" if design.deployment.cap is None else f", {design.deployment.cap.watts:g} W"
    return f"{design.deployment.parallel.describe()}{with_them(design.option)}{cap}, {quants(design.option)}"


def _served(plan: FleetPlan) -> Served:
    """What each kind of GPU runs, with the mean prompt."""
    prompt = plan.question.demand.prompt.average
    return {part.way.design.gpu: (part.way.design.deployment, prompt) for part in plan.parts}


def _spread(question: Question) -> str:
    """What the router sends whole."""
    demand = question.demand
    return "sessions" if demand.of_sessions else "conversations" if demand.prefix.turns > 1 else "requests"


def _designs(plan: FleetPlan) -> list[Design]:
    """Those that were simulated, each once."""
    return list({id(way.design): way.design for way in plan.ways}.values())


def _left_out(plan: FleetPlan, design: Design) -> list[str]:
    """Why a replica has no drafts, or nothing on its host, where some were asked for."""
    space, option, lines = plan.question.space, design.option, list[str]()
    if space.drafting and not option.speculation.length:
        lines.append("a replica carries no more with drafts" if option.forgone is None else option.forgone.text)
    if space.placed and not design.deployment.elsewhere:
        lines.append("a replica carries no more with weights on its host")
    return [f"{design.gpu}: {line}" for line in lines]


def _found(plan: FleetPlan) -> str:
    """What caches found of the prompts, where these share text."""
    demand, tiers = plan.question.demand, tier_records(plan.run)
    if demand.own is None and not demand.of_sessions:
        return ""
    by_tier = [f"{one['hit_rate']:.1%} in {one['name']}" for one in tiers or ()]
    return f"found of the prompt tokens: {', '.join(by_tier) or f'{plan.run.hit_rate:.1%}'}"


def _notes(plan: FleetPlan) -> list[str]:
    question, asked = plan.question, plan.asked
    unit, used = question.prices.currency, question.sizing.utilisation
    lines = [
        f"each replica is loaded to {used:.0%} of its capacity: the mix takes {plan.given:,.2f} "
        f"{question.demand.counted}/s",
        f"one router spreads the {_spread(question)} over the replicas, in proportion to their capacity; the "
        f"percentiles are over {plan.run.counts['arrived']:,} requests to the whole mix, in simulation",
    ]
    for design in {id(part.way.design): part.way.design for part in plan.parts}.values():
        lines += [f"{design.gpu}: {line}" for line in edge_lines(design, question)]
    if plan.run.converged is False:
        lines.append("this number of requests does not settle the percentiles: they are less sure than 3 %")
    if plan.bought.gap > 0:
        lines.append(f"! the solver was stopped: a mix that costs up to {plan.bought.gap:.1%} less may exist")
    if not all(plan.keeps(run) for run in (plan.run, *(part.run for part in plan.parts))):
        lines.append("! a limit is missed in this run: a lower --utilisation leaves more room")
    if any(kind.owned for kind in asked.kinds):
        price = price_text(asked.own_price) if asked.own_price else ""
        said = f"{price} {unit}/h while it works" if price else "nothing extra (--own-price)"
        lines.append(f"an owned GPU costs {said}" if price else f"owned GPUs cost {said}")
    formats = {quants(part.way.design.option): part.way.kind.name for part in plan.parts}
    if len(formats) > 1:
        listed = ", ".join(f"{name} on {gpu}" for name, gpu in formats.items())
        lines.append(f"replicas differ in format ({listed}), so their answers may differ: --quant native avoids it")
    space, model = question.space, plan.ways[0].design.deployment.model
    kv = dict(space.base.roles).get("kv")
    lines += filter(None, [floor_line(model, space.all_quants, space.quality), cache_line(kv, space.quality)])
    lines += [*filter(None, [_found(plan)]), *(line for design in _designs(plan) for line in _left_out(plan, design))]
    lines += [f"{gpu} is not used: {why}" for gpu, why in plan.unusable.items()]
    for design in {part.way.design.gpu: part.way.design for part in plan.parts}.values():
        if carried_over(design.option):
            lines.append(f"{design.gpu}: not measured, nor is any device of its maker; it may carry less")
    lines += error_notes(_served(plan), "unlike replicas behind one router" if len(_served(plan)) > 1 else "")
    bought = [part.bill for part in plan.parts if not part.way.kind.owned]
    lines += [bill.line for bill in bought]
    remarks = [remark for bill in bought for remark in bill.remarks]
    rented = [kind.name for kind in asked.kinds if not kind.owned]
    return [*lines, *dict.fromkeys(remarks), *question.prices.remarks(rented)]
