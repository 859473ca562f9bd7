"""A :class:`Plan` as the tables of one screen."""

from __future__ import annotations

from inferplan.planning.demand import percentile_of
from inferplan.planning.infeasible import METRIC_NAMES, REASONS
from inferplan.planning.option import Option
from inferplan.planning.plan import Plan, row
from inferplan.planning.verify import Verified
from inferplan.reports.cost import cost_table, energy_table
from inferplan.reports.plan_figures import cost_of, energy_of, money
from inferplan.reports.plan_notes import notes
from inferplan.reports.plan_record import plan_record
from inferplan.table import Report, Table
from inferplan.units import format_time

_RIGHT = frozenset({"value", "GPUs", "cost", "TTFT", "TPOT", "candidates", "tokens/s/GPU", "tokens/s/user", "load"})
BOTTLENECKS = {
    "ttft": "the limit on TTFT",
    "tpot": "the limit on TPOT",
    "e2el": "the limit on end-to-end latency",
    "memory": "the memory left for the cache",
    "slots": "the engine's limit on sequences",
    "prefill": "the token budget of a step",
}


def plan_report(plan: Plan) -> Report:
    """One screen: the plan, what it costs, what else there is, and why not less."""
    tables = [summary_table(plan)]
    cost, energy = cost_of(plan), energy_of(plan)
    tables += [cost_table(cost)] if cost else []
    tables += [energy_table(energy)] if energy else []
    tables += [alternatives_table(plan)] if plan.alternatives else []
    if not plan.question.demand.offline:
        tables.append(sensitivity_table(plan))
    tables.append(rejections_table(plan))
    record = plan_record(plan)
    rows = [row(verified) for verified in [plan.best, *plan.alternatives]]
    return Report(record=record, tables=tables, notes=notes(plan), rows=rows)


def summary_table(plan: Plan) -> Table:
    """The plan in one table: what to buy, how to run it, what it keeps and costs."""
    option, question = plan.option, plan.question
    percentile = percentile_of(question.slo)
    simulated = "simulated" if plan.best.result is not None else "closed form"
    rows = [
        [
            "deployment",
            f"{option.devices} x {option.deployment.hardware.name}, {option.deployment.precision.describe()}",
        ],
        ["replicas", shape(option) + (f" + {option.spare} spare" if option.spare else "")],
        [
            "engine",
            f"{option.deployment.engine.describe()}, {option.budget:,} tokens a step, {plan.best.slots} sequences",
        ],
        ["cost", money(option)],
    ]
    if option.hours is not None:
        rows.append(["time, GPU-hours", f"{option.hours:,.2f} h, {option.hours * option.devices:,.1f}"])
    for name, limit in question.slo.limits.items():
        value = plan.best.achieved[name]
        rows.append(
            [f"{METRIC_NAMES[name]} {percentile} ({simulated})", f"{format_time(value)}, limit {format_time(limit, 3)}"]
        )
    rows += [
        ["capacity of a replica under the limits", f"{option.rate:,.2f} requests/s"],
        ["given to it", f"{given_share(plan):.0%} of that, at most {question.sizing.utilisation:.0%}"],
        ["output tokens a second and GPU at capacity", f"{option.per_device:,.0f}"],
        ["bottleneck", BOTTLENECKS[plan.binding]],
    ]
    asked = ", ".join(f"{METRIC_NAMES[n]} {percentile} < {format_time(v, 3)}" for n, v in question.slo.limits.items())
    title = f"{question.space.base.model}: {question.demand.describe()}" + (f"; {asked}" if asked else "")
    return Table(title=title, columns=["plan", "value"], rows=rows)


def given_share(plan: Plan) -> float:
    """The share of its capacity that a replica is given."""
    option, demand = plan.option, plan.question.demand
    if demand.users is not None:
        return demand.users / option.replicas / option.concurrency
    return (demand.requests_per_second or 0.0) / (option.rate * option.replicas)


def alternatives_table(plan: Plan) -> Table:
    """The plan and the other finalists that meet the limits, cheapest first."""
    percentile = percentile_of(plan.question.slo)
    rows = [_alternative(verified) for verified in [plan.best, *plan.alternatives]]
    columns = ["GPU", "GPUs", "replicas", "format", "TTFT", "TPOT", "tokens/s/GPU", "cost"]
    return Table(
        title=f"the plan and the alternatives that meet the limits ({percentile})",
        columns=columns,
        rows=rows,
        right=_RIGHT,
    )


def _alternative(verified: Verified) -> list[str]:
    option = verified.option
    return [
        option.deployment.hardware.name,
        str(option.devices),
        shape(option),
        option.request.quant or "native",
        format_time(verified.achieved["ttft"], 3),
        format_time(verified.achieved["tpot"], 3),
        f"{option.per_device:,.0f}",
        money(option),
    ]


def sensitivity_table(plan: Plan) -> Table:
    """The same replicas under less and more load."""
    limits = plan.question.slo.limits
    rows = []
    for entry in plan.sensitivity:
        cells = [f"{entry['load']:.0%}"]
        cells += ["-" if entry["verdict"] == "overloaded" else format_time(entry[f"{name}_s"], 3) for name in limits]
        verdict = "yes" if entry["meets"] else "overloaded" if entry["verdict"] == "overloaded" else "no"
        rows.append([*cells, verdict, str(entry["replicas_needed"])])
    names = [METRIC_NAMES[name] for name in limits]
    columns = ["load", *names, "meets", "replicas for this load"]
    title = "the same replicas under other loads (simulated), and the replicas each load would be given"
    return Table(title=title, columns=columns, rows=rows, right=frozenset({"load", *names, "replicas for this load"}))


def rejections_table(plan: Plan) -> Table:
    """How many candidates each reason ruled out."""
    searched = plan.searched
    rows = [[REASONS[reason], f"{count:,}"] for reason, count in searched.rejections.counts.most_common()]
    title = f"{searched.evaluated:,} candidates in {searched.structures} structures; ruled out, under the first reason"
    return Table(title=title, columns=["reason", "candidates"], rows=rows, right=_RIGHT)


def shape(option: Option) -> str:
    """``"2 x tp 4, fp8"``: replicas and how each is divided."""
    parallel = option.deployment.parallel.describe()
    drafts = f", {option.speculation.length} drafts" if option.speculation.length else ""
    if option.pools:
        return f"{option.pools[0]} prefill + {option.pools[1]} decode, each {parallel}{drafts}"
    return f"{option.replicas} x ({parallel}{drafts})"
