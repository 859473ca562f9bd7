"""A :class:`Plan` as tables, as JSON, and as the pieces of a written report."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from typing import Any

from inferplan.answers.cost import Cost, Energy, Rates, power_of
from inferplan.answers.emit import Launch, command_line, launch, quantised_checkpoint
from inferplan.errors import InferplanError
from inferplan.planning.demand import percentile_of
from inferplan.planning.infeasible import METRIC_NAMES, REASONS
from inferplan.planning.option import Option
from inferplan.planning.plan import Plan, row
from inferplan.planning.verify import Verified
from inferplan.reports.cost import cost_record, cost_table, energy_record, energy_table
from inferplan.serving.techniques.speculation import break_even
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


def launch_of(plan: Plan) -> Launch:
    """How one replica of a plan is started."""
    option = plan.option
    return launch(option.deployment, slots=plan.best.slots, token_budget=option.budget, speculation=option.speculation)


def cost_of(plan: Plan) -> Cost | None:
    """The bill at the load that is served."""
    demand, option = plan.question.demand, plan.option
    if option.tag is None:
        return None
    rates = Rates(requests=max(plan.rate, 1e-12), prompt=demand.prompt.average, output=demand.output.average)
    return Cost(tag=option.tag, devices=option.devices, rates=rates)


def energy_of(plan: Plan) -> Energy | None:
    """Energy at full TDP; ``None`` where the power is not on file."""
    demand, option = plan.question.demand, plan.option
    try:
        power = power_of(option.deployment.hardware)
    except InferplanError:
        return None
    rates = Rates(requests=max(plan.rate, 1e-12), prompt=demand.prompt.average, output=demand.output.average)
    return Energy(power=power, devices=option.devices, rates=rates)


def deployment_record(plan: Plan) -> dict[str, Any]:
    """What ``inferplan emit`` needs to start the plan."""
    option = plan.option
    started = launch_of(plan)
    engine = option.deployment.engine
    return {
        "model": option.request.model,
        "gpu": option.request.gpu,
        "quant": option.request.quant,
        "engine": f"{engine.name} {engine.defaults.version}",
        "parallel": asdict(plan.deployment.parallel),
        "pools": {"prefill": option.pools[0], "decode": option.pools[1]} if option.pools else None,
        "context_tokens": started.context,
        "concurrency": plan.best.slots,
        "token_budget": option.budget,
        "speculation": asdict(plan.question.space.drafting)
        if option.speculation.length and plan.question.space.drafting
        else None,
    }


def frontier_rows(plan: Plan) -> list[dict[str, Any]]:
    """The Pareto frontier over the whole space, SLO or not."""
    limits = plan.question.slo.limits
    return [
        {
            "gpu": option.deployment.hardware.name,
            "precision": option.deployment.precision.describe(),
            "parallel": option.deployment.parallel.describe(),
            "batch": option.batch,
            "output_tokens_per_s_per_user": option.per_user,
            "output_tokens_per_s_per_device": option.per_device,
            "meets_the_limits": all(getattr(option, name) <= limit for name, limit in limits.items()),
            "priced": option.tag is not None,
        }
        for option in plan.searched.frontier
    ]


def plan_record(plan: Plan) -> dict[str, Any]:
    """The JSON of ``inferplan plan`` (docs/planning.md)."""
    question, found = plan.question, plan.searched
    cost, energy = cost_of(plan), energy_of(plan)
    return {
        "question": {
            "model": question.space.base.model,
            "demand": question.demand.describe(),
            "prompt_tokens": question.demand.prompt.average,
            "output_tokens": question.demand.output.average,
            "requests_per_s": question.demand.requests_per_second,
            "users": question.demand.users,
            "slo": {f"{name}_s": limit for name, limit in question.slo.limits.items()},
            "percentile": question.slo.percentile,
            "utilisation": question.sizing.utilisation,
            "spare": question.sizing.spare,
        },
        "plan": {
            **row(plan.best),
            "deployment": deployment_record(plan),
            "launch": _launch_line(plan),
            "binding": plan.binding,
            "simulation": plan.best.result.to_dict() if plan.best.result else None,
        },
        "cost": cost_record(cost) if cost else None,
        "energy": energy_record(energy) if energy else None,
        "alternatives": [row(verified) for verified in plan.alternatives],
        "frontier": frontier_rows(plan),
        "candidates": {"evaluated": found.evaluated, "structures": found.structures},
        "speculation": speculation_record(plan),
        "rejected": dict(found.rejections.counts.most_common()),
        "next_cheaper": _cheaper_record(plan),
        "sensitivity": [] if question.demand.offline else plan.sensitivity,
        "bands": plan.bands,
        "meets_at_the_slow_end": plan.holds_at_the_far_end,
    }


def _launch_line(plan: Plan) -> str | None:
    if plan.option.pools:
        return None
    try:
        return command_line(launch_of(plan))
    except InferplanError:
        return None


def speculation_record(plan: Plan) -> dict[str, Any] | None:
    """The cheapest plan with drafts beside the cheapest without; ``None`` where no draft was named."""
    drafting = plan.question.space.drafting
    if drafting is None:
        return None
    sides = {"with": plan.cheapest(True), "without": plan.cheapest(False)}
    return {
        **asdict(drafting),
        "helps": bool(plan.option.speculation.length),
        **{f"cost_{side}": found.option.cost if found else None for side, found in sides.items()},
        **{f"tpot_{side}_s": found.achieved["tpot"] if found else None for side, found in sides.items()},
        "break_even_batch": _break_even(plan, sides["with"] or sides["without"]),
    }


def _break_even(plan: Plan, found: Verified | None) -> int | None:
    """The batch from which on the drafts lose on the devices of a finalist; ``None`` when they never do."""
    if found is None or not found.option.speculation.length:
        return None
    demand = plan.question.demand
    context = demand.prompt.average + demand.output.average / 2
    return break_even(found.option.deployment, found.option.speculation, context)


def speculation_line(plan: Plan) -> str:
    """Whether the named drafts help at this load."""
    drafting = plan.question.space.drafting
    if drafting is None:
        return ""
    drafted, plain = plan.cheapest(True), plan.cheapest(False)
    helps = bool(plan.option.speculation.length)
    percentile, verdict = percentile_of(plan.question.slo), "helps" if helps else "does not help"
    texts = [
        f"{money(found.option)} and TPOT {percentile} {format_time(found.achieved['tpot'], 3)} {side}"
        if found
        else f"nothing meets the limits {side}"
        for found, side in ((drafted, "with them"), (plain, "without"))
    ]
    line = f"speculation ({drafting.describe()}) {verdict} at this load: {'; '.join(texts)}"
    batch = _break_even(plan, drafted)
    if batch is None or drafted is None:
        return line
    option = drafted.option
    where = f"{option.deployment.hardware.name}, {option.deployment.parallel.describe()}"
    return f"{line}; on {where} the drafts slow down a batch of {batch:,} or more (here {option.batch:,} a rank)"


def _cheaper_record(plan: Plan) -> dict[str, Any] | None:
    checked = plan.cheaper_verified
    if checked is None:
        return None
    return {
        "deployment": checked.option.deployment.describe(),
        "replicas": checked.option.replicas,
        "cost": checked.option.cost,
        "relax": {name: factor if isfinite(factor) else None for name, factor in _relaxed(plan, checked).items()},
        "simulated": checked.result is not None and bool(checked.violations(plan.question.slo)),
    }


def _relaxed(plan: Plan, checked: Verified) -> dict[str, float]:
    """The factors by which the limits would have to grow: those of the simulation, where it sees a miss."""
    slo = plan.question.slo
    return checked.violations(slo) or checked.option.violations(slo)


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


def money(option: Option) -> str:
    if option.cost is None or option.tag is None:
        return "no price"
    return f"{option.cost:,.2f} {option.tag.currency}" + ("" if option.hours is not None else "/h")


def shape(option: Option) -> str:
    """``"2 x tp 4, fp8"``: replicas and how each is divided."""
    parallel = option.deployment.parallel.describe()
    drafts = f", {option.speculation.length} drafts" if option.speculation.length else ""
    if option.pools:
        return f"{option.pools[0]} prefill + {option.pools[1]} decode, each {parallel}{drafts}"
    return f"{option.replicas} x ({parallel}{drafts})"


def summary_table(plan: Plan) -> Table:
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
    found = plan.searched
    rows = [[REASONS[reason], f"{count:,}"] for reason, count in found.rejections.counts.most_common()]
    title = f"{found.evaluated:,} candidates in {found.structures} structures; ruled out, under the first reason"
    return Table(title=title, columns=["reason", "candidates"], rows=rows, right=_RIGHT)


def notes(plan: Plan) -> list[str]:
    """What the figures rest on, what would be cheaper, how to start it."""
    option = plan.option
    lines = [speculation_line(plan), cheaper_line(plan), basis_line(plan), price_line(plan)]
    line = _launch_line(plan)
    if line:
        lines.append(f"start each replica: {line}")
        needed = quantised_checkpoint(launch_of(plan))
        lines.append(f"the checkpoint must hold weights in {needed}" if needed else "")
    if option.pools:
        lines.append(
            "prompts and decodes are on pools of their own, which the engine's cache connector joins; its set-up "
            "depends on the network and is not emitted (--aggregated: the cheapest plan without pools)"
        )
    unmeasured = plan.searched.rejections.examples.get("unmeasured")
    if unmeasured:
        lines.append(f"not compared, because nothing was measured on it or its like: {unmeasured} (alone: --gpu NAME)")
    unpriced = sorted(
        {e.grid.deployment.hardware.name for e in plan.searched.grids if e.tag is None} - {option.request.gpu}
    )
    if unpriced:
        lines.append(f"without a price, on the frontier only: {', '.join(unpriced)} (--price {unpriced[0]}=...)")
    return [text for text in lines if text]


def cheaper_line(plan: Plan) -> str:
    """What would have to change for the next-cheaper plan."""
    checked = plan.cheaper_verified
    if checked is None:
        return "this is the cheapest candidate, with or without the limits"
    option, factors = checked.option, _relaxed(plan, checked)
    drafts = f" with {option.speculation.length} drafts" if option.speculation.length else ""
    what = f"{option.replicas} x {option.deployment.describe()}{drafts} at {money(option)}"
    if not all(isfinite(factor) for factor in factors.values()):
        return f"the cheaper candidate that comes closest, {what}, does not keep up with the load"
    relaxed = " and ".join(
        f"{METRIC_NAMES[name]} were {format_time(plan.question.slo.limits[name] * factor, 3)} (x {factor:.2f})"
        for name, factor in factors.items()
    )
    how = "simulated" if checked.result is not None and checked.violations(plan.question.slo) else "closed form"
    return f"cheaper if the limit on {relaxed}: {what} ({how})"


def basis_line(plan: Plan) -> str:
    """What the times rest on, and whether the limits hold at the slow end of the error band."""
    calibration = plan.option.deployment.calibration
    if calibration.basis == "roofline":
        return (
            "basis: roofline of an ideal device: no measurement stands behind these times, and real ones are longer; "
            "the plan is a lower bound on what to buy"
        )
    if plan.holds_at_the_far_end is None:
        return f"basis: {calibration.name} constants ({calibration.basis}); no error band is known for this mixture"
    bands = ", ".join(f"{METRIC_NAMES[name]} x {low:.2f} to x {high:.2f}" for name, (low, high) in plan.bands.items())
    verdict = (
        "the limits hold at its slow end too"
        if plan.holds_at_the_far_end
        else "at the slow end the limits do NOT hold: this plan needs the optimistic end, measure before buying"
    )
    name = f"{calibration.name} constants ({calibration.basis})"
    return f"basis: {name}; 80 % of held-out rows lie within {bands} of the prediction; {verdict}"


def price_line(plan: Plan) -> str:
    tags = {option.tag.describe(): option for option in [plan.option] if option.tag is not None}
    return "; ".join(f"price of {option.deployment.hardware.name}: {text}" for text, option in tags.items())
