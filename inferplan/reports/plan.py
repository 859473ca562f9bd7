"""A :class:`Plan` as the tables of one screen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inferplan.estimate.structured import mask_filling
from inferplan.figures import Figure, bar, labelled_texts, record, short_time, side_by_side, text
from inferplan.planning.beside import Step
from inferplan.planning.confidence import MIDDLE
from inferplan.planning.demand import METRIC_NAMES, limits_in_words, percentile_of
from inferplan.planning.infeasible import REASONS
from inferplan.planning.option import PlanOption
from inferplan.planning.plan import Plan
from inferplan.planning.search import point
from inferplan.planning.sizing import CAPACITY_TOLERANCE
from inferplan.planning.verify import TOO_SHORT
from inferplan.reports.cost import cost_energy_table, load_cost_table
from inferplan.reports.plan_figures import (
    CERTAIN,
    alike_steps,
    candidates,
    cost_of,
    dated_money,
    devices,
    energy_of,
    formats,
    load_of_users,
    money,
    opening,
    power,
    quants,
    replicas_given,
    runners,
    served_line,
    session_rate,
    shape,
    terms_of,
)
from inferplan.reports.plan_notes import answer, beside_api, error_unknown, limit_line, notes, quality_headline
from inferplan.reports.plan_record import plan_record
from inferplan.reports.plan_survival import survival_table
from inferplan.reports.plan_tiers import chain_text, tiers_table
from inferplan.reports.simulation import in_slots
from inferplan.serving.result import adapters_found
from inferplan.table import Report, Table
from inferplan.units import format_time

_RIGHT = frozenset({"value", "GPUs", "cost", "TTFT", "TPOT", "candidates", "tokens/s/GPU", "tokens/s/user", "load"})
_RIGHT |= {"latency", "requests/s/GPU", "hours"}
_TERMS = "the same replicas on other terms, each at its cheapest seller; whole instances are paid for"
_YEARS = {"1-year": "1 year", "3-year": "3 years"}
BOTTLENECKS = {
    "ttft": "the limit on TTFT",
    "tpot": "the limit on TPOT",
    "e2el": "the limit on end-to-end latency",
    "answer_ttft": "the limit on the TTFT of the answer",
    "session": "the limit on the time of a session",
    "memory": "the memory left for the cache",
    "slots": "the engine's limit on sequences",
    "adapters": "the slots of LoRA adapters",
    "prefill": "the token budget per step",
    "nothing": "none found: it carries many times the load",
}


def plan_report(plan: Plan, command: str | None = None) -> Report:
    """One screen: the plan, what it costs, what else there is, and why not less. command: which asked for it."""
    tables = [summary_table(plan)]
    tables += [survival_table(plan)] if plan.best.survival is not None else []
    tables += [tiers_table(plan)] if plan.tiered else []
    tables += [confidence_table(plan)] if plan.curve else []
    cost, energy = cost_of(plan), energy_of(plan)
    tables += [load_cost_table(cost, beside_api(plan)), *terms_tables(plan)] if cost else []
    tables += [cost_energy_table(energy)] if energy else []
    tables += [alternatives_table(plan)] if plan.alternatives else []
    tables += [runners_table(plan)] if plan.runners else []
    if plan.sensitivity:
        tables.append(sensitivity_table(plan))
    tables.append(rejections_table(plan))
    rows = [record(row) for row in candidates(plan)]
    return Report(
        record=plan_record(plan),
        opening=[*filter(None, [limit_line(plan), served_line(plan)]), *opening(plan)],
        tables=tables,
        notes=notes(plan, command),
        rows=rows,
        headline=answer(plan),
    )


def summary_table(plan: Plan) -> Table:
    """The plan in one table: what to buy, how to run it, what it keeps and costs."""
    option, question = plan.option, plan.question
    simulated = "simulated" if plan.best.result is not None else "closed form"
    rows = [
        *([["caution", unknown]] if (unknown := error_unknown(plan)) else []),
        *([["load", load]] if (load := load_of_users(plan)) else []),
        [
            "deployment",
            f"{devices(option)}, {formats(option)}",
        ],
        ["replicas", shape(option) + (f" + {option.spare} spare" if option.spare else "")],
        [
            "engine",
            f"{option.deployment.engine.describe()}, {_budgets(option)} tokens per step, {plan.best.slots} sequences",
        ],
        *([["cache tiers per device", chain_text(option.tiers)]] if option.tiers else []),
        ["cost", dated_money(option)],
        *([headline.split(": ", 1)] if (headline := quality_headline(plan)) else []),
    ]
    if option.hours is not None:
        rows.append(["time, GPU-hours", f"{option.hours:,.2f} h, {option.hours * option.devices:,.1f}"])
    for one in plan.best.kept(question.slo):
        whose = f"{one.name}: " if one.name else ""
        for name, limit in one.slo.all_limits.items():
            what = f"{whose}{METRIC_NAMES[name]} {percentile_of(one.slo)} ({simulated})"
            rows.append([what, f"{format_time(one.achieved[name])}, limit {format_time(limit, 3)}"])
    rows += [["confidence", _confidence(plan)]] if plan.supported and plan.has_confidences else []
    rows += [*_adapters(plan), *_masks(plan), *capacity_rows(plan), *power_rows(plan)]
    asked = limits_in_words(question.slo, question.demand.classes)
    title = f"{question.space.base.model}: {question.demand.describe()}" + (f"; {asked}" if asked else "")
    return Table(title=title, columns=["plan", "value"], rows=rows)


def _confidence(plan: Plan) -> str:
    """``"0.8 for each limit by itself; under the load itself the chance of missing any of them is at most 1%"``."""
    risk = ""
    if plan.miss is not None and plan.miss.chance < CERTAIN:
        risk = f"; under the load itself the chance of missing any of them is at most {plan.miss.chance:.0%}"
    return f"{plan.confidence:g} for each limit by itself{risk}"


def terms_tables(plan: Plan) -> list[Table]:
    """What is bought on each of the terms that it is sold on; nothing where those of the plan are the only ones."""
    sold = terms_of(plan)
    return [side_by_side(_TERMS + _beside_terms(plan, sold), sold)] if len(sold) > 1 else []


def _beside_terms(plan: Plan, sold: list[list[Figure]]) -> str:
    """What a table of terms does not compare: plans of their own, and lengths without a price."""
    prices = plan.question.prices
    if prices.term == "on-demand":
        return ""
    text = f"; without --term the best plan may need fewer than these {plan.option.devices} GPUs"
    terms = {str(figure.value) for row in sold for figure in row if figure.key == "term"}
    lacking = [each for each, sold_as in _YEARS.items() if f"reserved, {sold_as}" not in terms]
    if prices.term == "reserved" and lacking:
        text += f"; no {' or '.join(lacking)} price {'in the lists asked' if prices.named else 'on file'}"
    return text


def _adapters(plan: Plan) -> list[list[str]]:
    """The slots of LoRA adapters, and how often the simulation found one in them; empty without adapters."""
    lora, result = plan.option.deployment.lora, plan.best.result
    if lora is None:
        return []
    found = None if result is None else adapters_found(result)
    if found is None or found["hit_rate"] is None:
        return [["LoRA adapters", f"rank {lora.rank} in {lora.slots} slots per replica"]]
    return [["LoRA adapters", f"rank {lora.rank}; {in_slots(found, lora.slots)}"]]


def _masks(plan: Plan) -> list[list[str]]:
    """What masks of structured decoding add to a mean step of the plan; empty without them."""
    demand, option = plan.question.demand, plan.option
    if demand.structured is None:
        return []
    asked, at = demand.structured, (plan.question.slo.percentile, option.batch, option.budget)
    with_and_without = (point(option.deployment, one, *at).tpot for one in (demand, replace(demand, structured=None)))
    masked, plain = (float(tpot[0, 0]) for tpot in with_and_without)
    filling = mask_filling(option.deployment.engine)
    each = f"{format_time(asked.each(filling))} per mask, {asked.cores} cores"
    added = f"{format_time(masked - plain)} on {format_time(plain)} a step of {option.batch} sequences, closed form"
    return [["structured decoding", f"{asked.share:.0%} of the requests, {each}; adds {added}"]]


def _budgets(option: PlanOption) -> str:
    """Tokens of a step, where prompts are computed and where they are decoded."""
    if option.prompt_budget is None:
        return f"{option.budget:,}"
    return f"{option.prompt_budget:,} (prefill) and {option.budget:,} (decode)"


def capacity_rows(plan: Plan) -> list[list[str]]:
    """What the replicas carry, by simulation, and how much of that they are given."""
    option, found = plan.option, plan.capacity
    served = f"{'requests' if option.deployment.model.encodes else 'output tokens'}/s per GPU"
    if found is None:
        return [[f"{served}, closed form", f"{option.per_device:,.0f}"]]
    least = "at least " if found.open else ""
    carried = plan.load * found.factor
    demand = plan.question.demand
    unit = (
        f"{demand.counted}/s"
        if demand.users is None
        else "people"
        if demand.people
        else "users"
        if demand.think
        else "in flight"
    )
    whole = demand.users is not None
    each = "" if option.pools else f", {least}{carried / option.replicas:,.{0 if whole else 2}f} per replica"
    return [
        [
            f"capacity of these settings (simulated, within {100 * CAPACITY_TOLERANCE:g} %)",
            f"{least}{carried:,.{0 if whole else 1}f} {unit}{_of_sessions(plan, found.factor)}{each}",
        ],
        ["load over capacity", f"{1 / found.factor:.0%} (limit {plan.question.sizing.utilisation:.0%})"],
        [f"{served} at this load", f"{plan.rate * option.output / option.devices:,.0f}"],
        ["bottleneck", BOTTLENECKS[plan.binding]],
    ]


def _of_sessions(plan: Plan, factor: float) -> str:
    """A capacity in sessions of agents, whose calls the requests are, at so many times the load; empty without them."""
    rate = session_rate(plan)
    return "" if rate is None else f" ({rate * factor:,.3g} sessions/s)"


def power_rows(plan: Plan) -> list[list[str]]:
    """Watts of all devices, where a plan was asked about them."""
    if plan.question.sizing.power is None and not plan.question.space.caps:
        return []
    return labelled_texts(power(plan) or [])


def confidence_table(plan: Plan) -> Table:
    """The least cost at each confidence, with bars: under the load with the reserve that is planned."""
    most = max((step.cost for step in plan.curve if step.option is not None), default=None)
    rows = [
        [
            text("confidence", _from_to([f"{one.confidence:g}" for one in alike])),
            text("cost", _cost_of_step(step)),
            text("", bar(step.cost / most, 12) if step.option is not None and most else "", left=True),
            text("step times", _from_to([_slowness(one) for one in alike]), left=True),
            text("GPUs", "no option meets the limits" if step.option is None else devices(step.option), left=True),
            text("replicas", "" if step.option is None else shape(step.option), left=True),
            text("format", "" if step.option is None else quants(step.option), left=True),
        ]
        for alike in alike_steps(plan)
        for step in alike[:1]
    ]
    loaded = 1 / plan.question.sizing.utilisation
    at = f", at {loaded:.0%} of the load" if loaded > 1 else ""
    return side_by_side(f"Cost of safety: each limit kept at {_at(plan)} with this confidence{at}", rows)


def _from_to(texts: list[str]) -> str:
    """The first and the last, where they differ: ``"0.5 to 0.8"``."""
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def _cost_of_step(step: Step) -> str:
    if step.option is None:
        return "-"
    return money(step.option) if step.exact else f"at most {money(step.option)}"


def _slowness(step: Step) -> str:
    if step.option is None:
        return ""
    return "as predicted" if step.confidence == MIDDLE else f"x {step.option.slow.step:.2f}"


def alternatives_table(plan: Plan) -> Table:
    """The plan and the other finalists that meet the limits, cheapest first."""
    title = "the plan and the alternatives that meet the limits"
    title += "" if plan.option.hours is not None else f" ({_at(plan)})"
    return side_by_side(title, candidates(plan))


def runners_table(plan: Plan) -> Table:
    """What other GPUs carry within the bound of a plan for the most."""
    title = f"other GPUs for {plan.question.bound}, at the same limits"
    return side_by_side(f"{title} (closed form: times what simulation makes of the plan's)", runners(plan))


def _at(plan: Plan) -> str:
    """The percentile that the latencies of a table are at, and whose they are where there are classes."""
    percentile = percentile_of(plan.question.slo)
    return f"{percentile} of all classes together" if plan.question.demand.classes else percentile


def sensitivity_table(plan: Plan) -> Table:
    """The same replicas under less and more load."""
    title = f"the same replicas under other loads (simulated), and the {replicas_given(plan)}"
    title += f"; {_at(plan)}" if plan.question.demand.classes else ""
    return side_by_side(title, [_load(plan, entry) for entry in plan.sensitivity])


def _load(plan: Plan, entry: dict[str, Any]) -> list[Figure]:
    """The replicas under another load."""
    over, verdict = entry["verdict"] == "overloaded", entry["verdict"]
    meets = "yes" if entry["meets"] else verdict if over or verdict == TOO_SHORT else "no"
    return [
        Figure("", entry["load"], "load", ".0%"),
        *(
            Figure("", None if over else entry[f"{name}_s"], METRIC_NAMES[name], short_time)
            for name in plan.question.slo.limits
        ),
        text("meets", meets, left=True),
        Figure("", entry["replicas_needed"] or None, "replicas for this load"),
    ]


def rejections_table(plan: Plan) -> Table:
    """How many candidates each reason ruled out."""
    searched = plan.searched
    rows = [[REASONS[reason], f"{count:,}"] for reason, count in searched.rejections.counts.most_common()]
    title = f"{searched.evaluated:,} candidates in {searched.structures:,} structures; ruled out, by first reason"
    return Table(title=title, columns=["reason", "candidates"], rows=rows, right=_RIGHT)
