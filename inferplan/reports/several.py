"""A :class:`SeveralPlan` as JSON and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

from inferplan.catalog.bills import Bill, Tariff, price_text
from inferplan.catalog.price_lists import PriceBook
from inferplan.figures import Figure, finite, record, short_time, side_by_side, text
from inferplan.planning.machines import OWNED, Machine
from inferplan.planning.several import Alone, Member, SeveralPlan, Tried, keeps_own
from inferplan.reports.estimate import deployment_record
from inferplan.reports.known_error import Served, error_notes, error_record
from inferplan.reports.simulation import in_slots
from inferplan.serving.class_results import PERCENTILES, at_percentile
from inferplan.serving.result import adapters_found
from inferplan.serving.tandem import Answers
from inferplan.table import Report, Table
from inferplan.traffic.stages import host_of, rate_of_stage, reach
from inferplan.units import HOURS_PER_MONTH, format_time

_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "end to end"}
_BINDING = {
    **{name: f"the limit on {said}" for name, said in _NAMES.items()},
    "answer": "the limit of the whole answer",
    "memory": "memory for the cache",
    "slots": "sequences of the engine",
    "prefill": "tokens per step",
    "adapters": "slots of LoRA adapters",
    "beside": "a model on the same GPUs",
    "nothing": "nothing, at many times the load",
}
_WHOLE = {"ttft": "anything seen", "e2el": "end to end"}


def several_report(plan: SeveralPlan) -> Report:
    """The models, what users of each stream see, the machines, and each cascade against its last model alone."""
    models, machines = [_model(plan, place) for place in range(len(plan.replicas))], _machines(plan)
    whole = {
        "utilisation": plan.asked.utilisation,
        "domains": plan.asked.domains,
        "surge": plan.asked.surge,
        "currency": plan.asked.prices.currency,
        "cost_per_hour": plan.cost,
        "cost_per_month": plan.cost * HOURS_PER_MONTH,
        "devices": plan.devices,
        "devices_bought": plan.gpus,
        "proven_cheapest_packing": plan.bought.gap == 0.0,
        "keeps_the_limits": plan.keeps,
        "models": [record(model) for model in models],
        "known_error": error_record(_served(plan)),
        "answers": [_answers(plan, root, seen) for root, seen in plan.run.answers.items()],
        "machines": [record(machine) for machine in machines],
        "kinds": [_kind(one) for one in plan.tried],
        "alone": [_alone(one) for one in plan.alone],
    }
    seen = [row for root, seen in plan.run.answers.items() for row in _seen(plan, root, seen)]
    tables = [
        side_by_side(_title(plan), models),
        side_by_side("Latency of whole answers, as users see it", seen),
        side_by_side("Machines", machines),
        *([_kinds_table(plan)] if plan.tried else []),
        *([_alone_table(plan)] if plan.alone else []),
    ]
    rows = [record(figure for figure in model if figure.key != "replica") for model in models]
    return Report(record=whole, tables=tables, notes=[_bottleneck(plan), *_notes(plan)], rows=rows)


def _bottleneck(plan: SeveralPlan) -> str:
    first = [f"{stage.name}, {_BINDING[one]}" for stage, one in zip(plan.asked.stages, plan.binding)]
    return f"bottleneck, the first that more load of all breaks: {'; '.join(first)}"


def _title(plan: SeveralPlan) -> str:
    models, unit, month = len(plan.replicas), plan.asked.prices.currency, plan.cost * HOURS_PER_MONTH
    return (
        f"{models} model{'s' if models > 1 else ''} on {plan.devices:,} of {plan.gpus:,} GPUs: {plan.cost:,.2f} "
        f"{unit}/h, {month:,.0f} {unit} per month"
    )


def _model(plan: SeveralPlan, place: int) -> list[Figure]:
    """One model: its replicas, what comes to it, its latencies."""
    member, stage, run = plan.asked.members[place], plan.run.stages[place], plan.run.asked[place].run
    stages, limits, percentile = plan.run.stages, stage.limits.limits, stage.limits.percentile
    after = None if stage.after is None else stages[stage.after].name
    shares = None if stage.shares is None else stages[stage.shares].name
    keeps, steady = keeps_own(run, stage), run if run is not None and run.steady else None
    at = {n: None if steady is None else finite(at_percentile(steady, n, percentile)) for n in _NAMES}
    devices = plan.replicas[place] * member.size.devices
    return [
        Figure("name", stage.name, "model", left=True),
        Figure("model", member.deployment.model.name, "replica", text=_replica(member), left=True),
        text("asked", "by users" if after is None else f"{stage.share:.3g} of {after}", left=True),
        Figure("gpu", member.gpu),
        Figure("replicas", plan.replicas[place]),
        Figure("given", plan.asked.members[host_of(stages, place)].replicas is not None),
        Figure("shares_gpus_of", shares),
        Figure("devices", devices),
        Figure("after", after),
        Figure("share", stage.share),
        Figure("share_of_stream", reach(stages)[place]),
        Figure("requests_per_s", rate_of_stage(stages, place), "requests/s", ",.4g"),
        text("replicas", f"{plan.replicas[place]:,}"),
        text("GPUs", f"{devices:,}" if shares is None else f"with {shares}"),
        Figure("requests", run and run.counts),
        Figure("verdict", run and run.verdict),
        Figure("percentile", percentile, "percentile" if len(_percentiles(plan)) > 1 else None, "g"),
        *(
            Figure(f"{n}_s", at[n], _at_percentile(plan, label), text=_limited(at[n], limits.get(n)))
            for n, label in _NAMES.items()
        ),
        *(Figure(f"{n}_mean_s", run and run.percentiles(f"{n}_s")["mean"]) for n in _NAMES),
        Figure("slo", {f"{name}_s": limit for name, limit in limits.items()}),
        Figure("goodput_requests_per_s", run and run.goodput),
        Figure("adapters", run and adapters_found(run)),
        Figure("keeps_the_limits", keeps, "keeps", text=("yes" if limits else "-") if keeps else "no"),
        Figure("binding", plan.binding[place]),
        *_while_lost(plan, place),
        Figure("replica", deployment_record(member.deployment)),
    ]


def _while_lost(plan: SeveralPlan, place: int) -> list[Figure]:
    """Replicas of a model that are needed, and left at least, while a domain is lost."""
    host, several = host_of(plan.run.stages, place), plan.asked.domains > 1
    return [
        Figure("replicas_needed_while_lost", plan.lost[host] if several else None),
        Figure("replicas_left_while_lost", plan.bought.least_left(host) if several else None),
    ]


def _percentiles(plan: SeveralPlan) -> set[float]:
    """Those of the latencies of models."""
    return {stage.limits.percentile for stage in plan.run.stages}


def _at_percentile(plan: SeveralPlan, label: str) -> str:
    """The head of a column, with the percentile where it is that of all models."""
    own = _percentiles(plan)
    return label if len(own) > 1 else f"{label} p{own.pop():g}"


def _replica(member: Member) -> str:
    quant = member.request.quant or "native"
    shape = member.deployment.parallel.describe()
    return ", ".join(part for part in (member.deployment.model.name, member.gpu, shape, quant) if part)


def _limited(value: float | None, limit: float | None) -> str:
    """A latency, marked where it is over its limit."""
    said = "-" if value is None else format_time(value, 3)
    over = limit is not None and (inf if value is None else value) > limit
    return f"{said} (< {format_time(limit, 3)})" + " !" * over if limit is not None else said


def _answers(plan: SeveralPlan, root: int, seen: Answers) -> dict[str, Any]:
    """What users see of whole answers."""
    limits, percentile = seen.slo.limits, seen.slo.percentile
    return {
        "stream": plan.run.stages[root].name,
        "requests": len(seen.e2el),
        **{
            f"{name}_s": {"mean": finite(seen.mean(name)), **{f"p{q}": finite(seen.at(name, q)) for q in PERCENTILES}}
            for name in _WHOLE
        },
        "slo": {f"{name}_s": limit for name, limit in limits.items()},
        "percentile": percentile,
        "at_percentile": {f"{name}_s": finite(seen.at(name, percentile)) for name in _WHOLE},
        "slo_attained": seen.attained if limits else None,
        "goodput_requests_per_s": seen.goodput if limits else None,
        "keeps_the_limits": seen.keeps,
    }


def _seen(plan: SeveralPlan, root: int, seen: Answers) -> Iterator[list[Figure]]:
    """The same for people: a line until anything is seen, and one of the whole answer."""
    limits, percentile = seen.slo.limits, seen.slo.percentile
    for name, what in _WHOLE.items():
        first = name == "ttft"
        good = first and bool(limits)
        yield [
            text("stream", plan.run.stages[root].name if first else "", left=True),
            text("", what, left=True),
            Figure("", finite(seen.mean(name)), "mean", format_time),
            *(Figure("", finite(seen.at(name, q)), f"p{q}", format_time) for q in PERCENTILES),
            text("limit", f"p{percentile:g} < {short_time(limits[name])}" if name in limits else ""),
            text("within limits", f"{seen.attained:.1%}" if good else ""),
            text("goodput, requests/s", f"{seen.goodput:.4g}" if good else ""),
        ]


class _Content(NamedTuple):
    """Machines of one kind in one domain. number: how many. inside: replicas of each model that all of them hold."""

    domain: int
    machine: Machine
    number: int
    inside: dict[str, int]


def _contents(plan: SeveralPlan) -> list[_Content]:
    """What stands on the machines. In a domain replicas of one size are interchangeable: they are handed out in the
    order of the file.
    """
    found = []
    for number, domain in enumerate(plan.bought.domains):
        left = dict(domain.replicas)
        for machine, count in domain.used:
            inside: dict[str, int] = {}
            for size, room in machine.holds.items():
                places = room * count
                for model in [model for model in left if plan.asked.members[model].size == size]:
                    taken = min(places, left[model])
                    places, left[model] = places - taken, left[model] - taken
                    if taken:
                        inside[plan.asked.stages[model].name] = taken
            found.append(_Content(number + 1, machine, count, inside))
    return found


def _machines(plan: SeveralPlan) -> list[list[Figure]]:
    """What is bought, and whose replicas stand on it."""
    return [_machine(plan, one) for one in _contents(plan)]


def _machine(plan: SeveralPlan, content: _Content) -> list[Figure]:
    machine, several = content.machine, plan.asked.domains > 1
    gpu = next(iter(machine.holds)).gpu
    if any(size.gpu != gpu for size in machine.holds):
        gpu = gpu.partition(":")[0]
    offer, gpus, owned = machine.offer, machine.gpus * content.number, machine.offer.source == OWNED
    sizes = {member.stage.name: member.size.devices for member in plan.asked.members if member.size in machine.holds}
    idle = gpus - sum(sizes[name] * number for name, number in content.inside.items())
    held = ", ".join(f"{number} x {_with_sharers(plan, name)}" for name, number in content.inside.items())
    return [
        Figure("domain", content.domain if several else None, "domain" if several else None),
        text("machines", f"{machine.units * content.number:,}"),
        Figure("gpu", gpu, "what", text=f"{gpu}, owned" if owned else offer.what, left=True),
        text("replicas there", held, left=True),
        Figure("source", "owned" if owned else "rented"),
        Figure("instance", offer.instance or None),
        Figure("machines", machine.units * content.number),
        Figure("gpus", gpus, "GPUs", ","),
        Figure("idle_gpus", idle, "idle", ","),
        Figure("replicas", content.inside),
        Figure("cost_per_hour", machine.price * content.number, f"{plan.asked.prices.currency}/h", ",.2f"),
    ]


def _with_sharers(plan: SeveralPlan, name: str) -> str:
    """The model and those on the same GPUs: ``"chat + titles"``."""
    stages = plan.run.stages
    place = next(index for index, stage in enumerate(stages) if stage.name == name)
    return " + ".join(stages[one].name for one in plan.asked.together(place))


def _kind(one: Tried) -> dict[str, Any]:
    """A kind of replica of a model that has several."""
    member = one.member
    return {
        "model": member.stage.name,
        "gpu": member.gpu,
        "devices": member.size.devices,
        "replicas": one.replicas or None,
        "taken": one.taken,
        "missing": one.missing or None,
        "replica": deployment_record(member.deployment),
    }


def _kinds_table(plan: SeveralPlan) -> Table:
    """Which kinds of replica would do for which model, and what was taken."""
    columns = ["model", "replica", "replicas", "GPUs", ""]
    rows = [
        [
            one.member.stage.name,
            _replica(one.member),
            f"{one.replicas:,}" if one.replicas else "none",
            f"{one.replicas * one.member.size.devices:,}" if one.replicas else "",
            "taken" if one.taken else one.missing,
        ]
        for one in plan.tried
    ]
    return Table(title="Kinds of replica", columns=columns, rows=rows, right=frozenset(columns[2:4]))


def _alone(one: Alone) -> dict[str, Any]:
    return {
        "model": one.member.stage.name,
        "replicas": one.replicas,
        "cost_per_hour": finite(one.cost),
        "cascade_cost_per_hour": one.cascade,
        "models_before_it_cost_per_hour": one.before,
        "break_even_share": one.break_even,
        "missing": one.missing or None,
    }


def _alone_table(plan: SeveralPlan) -> Table:
    unit = plan.asked.prices.currency
    columns = ["the cascade, or its last model alone", "replicas", f"{unit}/h", "break-even share"]
    rows = []
    for one in plan.alone:
        name = one.member.stage.name
        share = f"{one.break_even:.3g}" if one.break_even is not None else "-"
        rows.append([f"cascade up to {name}", "", f"{one.cascade:,.2f}", share])
        found = [f"{one.replicas:,}", f"{one.cost:,.2f}"] if one.replicas is not None else ["keeps no limit", "-"]
        rows.append([f"{name} alone", *found, ""])
    return Table(title="Is the cascade worth it?", columns=columns, rows=rows, right=frozenset(columns[1:]))


def _served(plan: SeveralPlan) -> Served:
    """A replica of each model, with the mean prompt that comes to it."""
    return {one.stage.name: (one.deployment, one.prompt.average) for one in plan.asked.members}


def _entangled(plan: SeveralPlan) -> bool:
    """Whether a model's answers or its GPUs have to do with those of another."""
    return any(stage.after is not None or stage.shares is not None for stage in plan.asked.stages)


def _notes(plan: SeveralPlan) -> list[str]:
    asked = plan.asked
    lines = []
    if any(member.replicas is None and member.stage.shares is None for member in asked.members):
        lines.append(
            f"replicas are sized for {1 / asked.utilisation:.3g} times the load (--utilisation "
            f"{asked.utilisation:g}); latencies are for the load itself, in simulation"
        )
    lines += [*_spread(plan), *_adapters(plan)]
    if any(stage.after is not None for stage in asked.stages):
        lines.append("a model whose answers may be passed on shows nothing until its answer is complete and judged")
    lines += _turns(plan)
    if any(stage.shares is not None and asked.swap(place) is None for place, stage in enumerate(asked.stages)):
        lines.append(
            "models on the same GPUs take turns: each model with a step in progress runs at its share of the pace; a "
            "whole step needs the GPU, and a switch takes no time"
        )
    if not plan.keeps:
        lines.append("! a limit is missed, or a queue grows: more replicas, or a lower --utilisation")
    if plan.too_short:
        lines.append("! a run is too short to tell whether a queue grows: a lower rate, with fewer replicas")
    for one in plan.alone:
        name, alone = one.member.stage.name, f"{one.cost:,.2f}"
        if one.break_even is not None and one.cascade > one.cost:
            more = f"{one.cascade - one.cost:,.2f} {asked.prices.currency}/h more"
            lines.append(f"! {name} alone keeps the limits and is cheaper: the cascade costs {more}")
        if one.break_even == 0:
            lines.append(
                f"no share pays: the models before {name} cost {one.before:,.2f} without it, {name} alone {alone}"
            )
        elif one.break_even is not None:
            lines.append(
                f"break-even: 1 - {one.before:,.2f}/{alone} = {one.break_even:.3g} of the requests may reach "
                f"{name} before it alone is cheaper, if its machines go with its share of the requests"
            )
        if one.missing:
            lines.append(f"{name} alone keeps its limits with no number of replicas: {one.missing}")
    if plan.bought.gap > 0:
        lines.append("! the solver was stopped: cheaper machines may exist")
    lines += error_notes(_served(plan), "models in sequence, or on the same GPUs" if _entangled(plan) else "")
    lines += _offers(plan.bought.used, asked.prices)
    return [*dict.fromkeys(lines), *asked.prices.remarks(dict.fromkeys(member.gpu for member in asked.members))]


def _spread(plan: SeveralPlan) -> list[str]:
    """What is bought for a domain that is lost, and for rollouts."""
    asked, lines = plan.asked, []
    hosts = [place for place, stage in enumerate(asked.stages) if stage.shares is None and plan.replicas[place]]
    if asked.domains > 1:
        left = ", ".join(
            f"{asked.stages[place].name} {plan.bought.least_left(place)} ({plan.lost[place]})" for place in hosts
        )
        lines.append(
            f"while any one of {asked.domains} domains is lost, replicas left (needed by the load itself): {left}"
        )
    if asked.surge:
        lines.append(
            f"idle GPUs hold {asked.surge} more replica{'s' if asked.surge > 1 else ''} of any one model for a rollout"
        )
    return lines


def _adapters(plan: SeveralPlan) -> list[str]:
    """Of models whose requests name adapters: how often these were there."""
    lines = []
    for member, one in zip(plan.asked.members, plan.run.asked):
        named, lora = member.stage.adapters, member.deployment.lora
        found = None if one.run is None else adapters_found(one.run)
        if named is not None and lora is not None and found is not None and found["hit_rate"] is not None:
            lines.append(f"{member.stage.name}: {named.describe()}, of rank {lora.rank}; {in_slots(found, lora.slots)}")
    return lines


def _turns(plan: SeveralPlan) -> list[str]:
    """Of models of which one at a time is awake: what a switch takes."""
    lines = []
    for place, stage in enumerate(plan.asked.stages):
        swap, together = plan.asked.swap(place), plan.asked.together(place)
        if swap is None or stage.shares is not None:
            continue
        names = [plan.asked.stages[one].name for one in together]
        pairs = [(gone, come) for gone in range(len(names)) for come in range(len(names)) if gone != come]
        said = ", ".join(f"{names[a]} to {names[b]} {format_time(swap.seconds(a, b), 3)}" for a, b in pairs)
        lines.append(
            f"one of {', '.join(names)} is awake at a time, and stays awake for {format_time(swap.keep_alive, 3)} "
            f"after its last request; a switch: {said}"
        )
    return lines


def _offers(used: Sequence[tuple[Machine, int]], prices: PriceBook) -> list[str]:
    lines = []
    for machine, count in used:
        if machine.offer.source != OWNED:
            lines.append(_sold(machine, count, prices).line)
            lines += machine.offer.remarks
        elif machine.offer.per_hour:
            lines.append(f"an owned GPU costs {price_text(machine.offer.per_hour)} {prices.currency}/h while it works")
        else:
            lines.append("owned GPUs cost nothing extra (--own-price)")
    return lines


def _sold(machine: Machine, count: int, prices: PriceBook) -> Bill:
    """Machines as they are sold, beside as many GPUs together at the list that bills are compared with."""
    offer = machine.offer
    cut = len({size.gpu for size in machine.holds}) > 1  # no list has such a machine
    sold = Tariff(offers=(offer,), devices=offer.size, listed=() if cut else prices.listed(offer.gpu))
    return sold.bill(machine.units * count)
