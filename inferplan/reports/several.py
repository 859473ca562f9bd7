"""A :class:`SeveralPlan` as JSON and as tables."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

from inferplan.answers.cost import HOURS_PER_MONTH
from inferplan.catalog.bills import price_text
from inferplan.planning.packing import Packing, Pattern
from inferplan.planning.several import Alone, Member, SeveralPlan, keeps_own
from inferplan.reports.estimate import deployment_record
from inferplan.reports.known_error import Served, error_notes, error_record
from inferplan.serving.class_results import PERCENTILES, at_percentile
from inferplan.serving.tandem import Answers
from inferplan.table import Report, Table
from inferplan.traffic.stages import host_of, rate_of, reach
from inferplan.units import format_time

_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "end to end"}
_WHOLE = {"ttft": "anything seen", "e2el": "end to end"}


def several_report(plan: SeveralPlan) -> Report:
    """The models, what users of each stream see, the machines, and each cascade against its last model alone."""
    models = [_model(plan, place) for place in range(len(plan.replicas))]
    record = {
        "utilisation": plan.asked.utilisation,
        "currency": plan.asked.prices.currency,
        "cost_per_hour": plan.cost,
        "cost_per_month": plan.cost * HOURS_PER_MONTH,
        "devices": plan.devices,
        "devices_bought": plan.gpus,
        "proven_cheapest_packing": all(packing.gap == 0.0 for packing in plan.packings.values()),
        "keeps_the_limits": plan.keeps,
        "models": models,
        "known_error": error_record(_served(plan)),
        "answers": [_answers(plan, root, seen) for root, seen in plan.run.answers.items()],
        "machines": _machines(plan),
        "alone": [_alone(one) for one in plan.alone],
    }
    tables = [_models_table(plan, models), _answers_table(plan), _machine_table(plan)]
    tables += [_alone_table(plan)] if plan.alone else []
    rows = [{name: value for name, value in one.items() if name != "replica"} for one in models]
    return Report(record=record, tables=tables, notes=_notes(plan), rows=rows)


def _model(plan: SeveralPlan, place: int) -> dict[str, Any]:
    member, stage, run = plan.asked.members[place], plan.run.stages[place], plan.run.asked[place].run
    percentile = stage.limits.percentile
    steady = run is not None and run.steady
    return {
        "name": stage.name,
        "model": member.deployment.model.name,
        "gpu": member.gpu,
        "replicas": plan.replicas[place],
        "given": plan.asked.members[host_of(plan.run.stages, place)].replicas is not None,
        "shares_gpus_of": None if stage.shares is None else plan.run.stages[stage.shares].name,
        "devices": plan.replicas[place] * member.size.devices,
        "after": None if stage.after is None else plan.run.stages[stage.after].name,
        "share": stage.share,
        "share_of_stream": reach(plan.run.stages)[place],
        "requests_per_s": rate_of(plan.run.stages, place),
        "requests": None if run is None else run.counts,
        "verdict": None if run is None else run.verdict,
        "percentile": percentile,
        **{f"{n}_s": _finite(at_percentile(run, n, percentile)) if steady and run else None for n in _NAMES},
        **{f"{n}_mean_s": run.percentiles(f"{n}_s")["mean"] if run else None for n in _NAMES},
        "slo": {f"{name}_s": limit for name, limit in stage.limits.limits.items()},
        "goodput_requests_per_s": None if run is None else run.goodput,
        "keeps_the_limits": keeps_own(run, stage),
        "replica": deployment_record(member.deployment),
    }


def _answers(plan: SeveralPlan, root: int, seen: Answers) -> dict[str, Any]:
    return {
        "stream": plan.run.stages[root].name,
        "requests": len(seen.e2el),
        **{
            f"{name}_s": {"mean": _finite(seen.mean(name)), **{f"p{q}": _finite(seen.at(name, q)) for q in PERCENTILES}}
            for name in _WHOLE
        },
        "slo": {f"{name}_s": limit for name, limit in seen.slo.limits.items()},
        "percentile": seen.slo.percentile,
        "at_percentile": {f"{name}_s": _finite(seen.at(name, seen.slo.percentile)) for name in _WHOLE},
        "slo_attained": seen.attained if seen.slo.limits else None,
        "goodput_requests_per_s": seen.goodput if seen.slo.limits else None,
        "keeps_the_limits": seen.keeps,
    }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _contents(plan: SeveralPlan) -> list[tuple[str, Pattern, int, dict[str, int]]]:
    """Of each kind of machine: the GPU, the pattern, how many, and how many replicas of each model all of them hold.

    Replicas of one size are interchangeable: they are handed out in the order of the file.
    """
    found = []
    for gpu, packing in plan.packings.items():
        every = zip(plan.asked.members, plan.replicas)
        mine = [(member, n) for member, n in every if member.gpu == gpu and member.stage.shares is None]
        left = {member.stage.name: count for member, count in mine}
        for pattern, count in packing.used:
            inside: dict[str, int] = {}
            for size, room in zip(packing.sizes, pattern.holds):
                places = room * count
                for name in [member.stage.name for member, _ in mine if member.size == size]:
                    taken = min(places, left[name])
                    places, left[name] = places - taken, left[name] - taken
                    if taken:
                        inside[name] = inside.get(name, 0) + taken
            found.append((gpu, pattern, count, inside))
    return found


def _machines(plan: SeveralPlan) -> list[dict[str, Any]]:
    return [
        {
            "gpu": gpu,
            "source": "owned" if pattern.offer.term == "owned" and not pattern.offer.gpu else "rented",
            "instance": pattern.offer.instance or None,
            "machines": pattern.units * count,
            "gpus": pattern.gpus * count,
            "idle_gpus": pattern.gpus * count - _busy(plan, gpu, inside),
            "replicas": inside,
            "cost_per_hour": pattern.price * count,
        }
        for gpu, pattern, count, inside in _contents(plan)
    ]


def _busy(plan: SeveralPlan, gpu: str, inside: dict[str, int]) -> int:
    sizes = {member.stage.name: member.size.devices for member in plan.asked.members if member.gpu == gpu}
    return sum(sizes[name] * count for name, count in inside.items())


def _alone(one: Alone) -> dict[str, Any]:
    return {
        "model": one.member.stage.name,
        "replicas": one.replicas,
        "cost_per_hour": _finite(one.cost),
        "cascade_cost_per_hour": one.cascade,
        "models_before_it_cost_per_hour": one.before,
        "break_even_share": one.break_even,
        "missing": one.missing or None,
    }


def _models_table(plan: SeveralPlan, models: list[dict[str, Any]]) -> Table:
    unit = plan.asked.prices.currency
    columns = ["model", "replica", "asked", "requests/s", "replicas", "GPUs", "TTFT", "TPOT", "end to end", "keeps"]
    rows = []
    for member, one in zip(plan.asked.members, models):
        times = [_limited(one[f"{name}_s"], member.stage.limits.limits.get(name)) for name in _NAMES]
        asked = "by users" if one["after"] is None else f"{one['share']:.3g} of {one['after']}"
        limits = bool(member.stage.limits.limits)
        rows.append(
            [
                one["name"],
                _replica(member),
                asked,
                f"{one['requests_per_s']:,.4g}",
                f"{one['replicas']:,}",
                f"{one['devices']:,}" if one["shares_gpus_of"] is None else f"with {one['shares_gpus_of']}",
                *times,
                "-" if not limits and one["keeps_the_limits"] else "yes" if one["keeps_the_limits"] else "no",
            ]
        )
    month = plan.cost * HOURS_PER_MONTH
    title = (
        f"{len(rows)} model{'s' if len(rows) > 1 else ''} on {plan.devices:,} of {plan.gpus:,} GPUs: "
        f"{plan.cost:,.2f} {unit}/h, {month:,.0f} {unit} a month"
    )
    return Table(title=title, columns=columns, rows=rows, right=frozenset(columns[3:]))


def _replica(member: Member) -> str:
    quant = member.request.quant or "native"
    shape = member.deployment.parallel.describe()
    return ", ".join(part for part in (member.deployment.model.name, member.gpu, shape, quant) if part)


def _limited(value: float | None, limit: float | None) -> str:
    """A latency, marked where it is over its limit."""
    text = "-" if value is None else format_time(value, 3)
    over = limit is not None and (inf if value is None else value) > limit
    return f"{text} (< {format_time(limit, 3)})" + " !" * over if limit is not None else text


def _answers_table(plan: SeveralPlan) -> Table:
    columns = ["stream", "", "mean", *(f"p{q}" for q in PERCENTILES), "limit", "within limits", "goodput, requests/s"]
    rows = []
    for root, seen in plan.run.answers.items():
        limits = seen.slo.limits
        for name, text in _WHOLE.items():
            first = name == "ttft"
            values = [seen.mean(name), *(seen.at(name, q) for q in PERCENTILES)]
            limit = f"p{seen.slo.percentile:g} < {format_time(limits[name], 3)}" if name in limits else ""
            good = [f"{seen.attained:.1%}", f"{seen.goodput:.4g}"] if limits and first else ["", ""]
            times = ["-" if value == inf else format_time(value) for value in values]
            rows.append([plan.run.stages[root].name if first else "", text, *times, limit, *good])
    return Table(title="What users see of whole answers", columns=columns, rows=rows, right=frozenset(columns[2:]))


def _machine_table(plan: SeveralPlan) -> Table:
    columns = ["machines", "what", "replicas on them", "GPUs", "idle", f"{plan.asked.prices.currency}/h"]
    rows = []
    for one, (gpu, pattern, count, inside) in zip(_machines(plan), _contents(plan)):
        rented = one["source"] == "rented"
        rows.append(
            [
                f"{pattern.units * count:,}",
                pattern.offer.what if rented else f"{gpu}, owned",
                ", ".join(f"{number} x {_with_sharers(plan, name)}" for name, number in inside.items()),
                f"{one['gpus']:,}",
                f"{one['idle_gpus']:,}",
                f"{one['cost_per_hour']:,.2f}",
            ]
        )
    return Table(title="Machines", columns=columns, rows=rows, right=frozenset((columns[0], *columns[3:])))


def _with_sharers(plan: SeveralPlan, name: str) -> str:
    """The model and those on the same GPUs: ``"chat + titles"``."""
    stages = plan.run.stages
    place = next(index for index, stage in enumerate(stages) if stage.name == name)
    return " + ".join(stages[one].name for one in plan.asked.together(place))


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
            f"replicas are sized for {1 / asked.utilisation:.3g} times the load (--utilisation {asked.utilisation:g}); "
            "latencies are of the load itself, in simulation"
        )
    if any(stage.after is not None for stage in asked.stages):
        lines.append("a model whose answers may go on shows nothing before its answer is whole and judged")
    if any(stage.shares is not None for stage in asked.stages):
        lines += _turns(plan)
    if any(stage.shares is not None and asked.swap(place) is None for place, stage in enumerate(asked.stages)):
        lines.append(
            "models on the same GPUs take turns: each of those that have a step under way proceeds at its share of the "
            "pace; a whole step needs the GPU, and a switch takes no time"
        )
    if not plan.keeps:
        lines.append("! a limit is missed, or a queue grows: more replicas, or a lower --utilisation")
    if plan.too_short:
        lines.append("! a run is too short to tell whether a queue grows: a lower rate, with fewer replicas")
    for one in plan.alone:
        if one.break_even is not None:
            lines.append(
                f"break-even: 1 - {one.before:,.2f}/{one.cost:,.2f} = {one.break_even:.3g} of the requests may reach "
                f"{one.member.stage.name} before it alone is cheaper, if its machines go with its share of the requests"
            )
        if one.missing:
            lines.append(f"{one.member.stage.name} alone keeps its limits with no number of replicas: {one.missing}")
    if any(packing.gap > 0 for packing in plan.packings.values()):
        lines.append("! the solver was stopped: cheaper machines may exist")
    lines += error_notes(_served(plan), "models behind each other, or on the same GPUs" if _entangled(plan) else "")
    lines += [line for packing in plan.packings.values() for line in _offers(packing)]
    return [*dict.fromkeys(lines), *asked.prices.remarks(dict.fromkeys(member.gpu for member in asked.members))]


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
            f"one of {', '.join(names)} at a time is awake, and stays {format_time(swap.keep_alive, 3)} after its last "
            f"request; a switch: {said}"
        )
    return lines


def _offers(packing: Packing) -> list[str]:
    lines = []
    for pattern, count in packing.used:
        if pattern.offer.gpu:
            lines.append(f"{pattern.units * count:,} x {pattern.offer.describe()}")
            lines += pattern.offer.remarks
        elif pattern.offer.per_hour:
            lines.append(f"an owned GPU costs {price_text(pattern.offer.per_hour)} an hour while it works")
        else:
            lines.append("owned GPUs cost nothing more than they do anyway (--own-price)")
    return lines
