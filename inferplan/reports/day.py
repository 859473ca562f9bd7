"""A :class:`Day` as JSON and as tables: its policies, its classes of traffic, its energy and CO2 (docs/power.md)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np

from inferplan.answers.emit import queue_note
from inferplan.catalog.energy import EnergyAsked
from inferplan.catalog.power import power_shares
from inferplan.devices.power import UNMEASURED
from inferplan.estimate.deployment import parts_rest_on
from inferplan.estimate.resting import Resting, outside_band
from inferplan.figures import Figure, finite, record, short_time, side_by_side, text
from inferplan.planning.confidence import MIDDLE, USUAL
from inferplan.planning.day import Day, DayAsked, DayEnergy, PolicyDay, scattered
from inferplan.planning.day_work import RARE
from inferplan.planning.demand import METRIC_NAMES, limits_in_words, percentile_of
from inferplan.planning.design import alone
from inferplan.planning.edges import edge_lines
from inferplan.planning.paid import HOUR
from inferplan.reports.cost import bill_record
from inferplan.reports.energy import WATTS, asked_record, carbon_notes, error_note, joules
from inferplan.reports.estimate import deployment_record
from inferplan.reports.failures import episode_records, failure_table
from inferplan.reports.known_error import Served, error_notes, error_record
from inferplan.reports.plan import BOTTLENECKS
from inferplan.reports.replay import (
    NAMES,
    by_day,
    happened_record,
    happened_rows,
    hours_over,
    meets_percentile,
    missed_share,
    moment,
    replay_notes,
    tiers_figure,
    with_designs,
)
from inferplan.reports.simulation import in_slots
from inferplan.serving.autoscaling import Reactive
from inferplan.serving.class_results import METRICS, at_percentile
from inferplan.serving.result import adapters_found
from inferplan.serving.techniques.tiers import tier_records
from inferplan.table import Report, Table
from inferplan.traffic.profile import DAY
from inferplan.traffic.reasoning import ReasoningLengths
from inferplan.traffic.requests import Slo
from inferplan.units import format_bytes, format_time


def days_report(days: Sequence[Day], energy: EnergyAsked | None = None) -> Report:
    """The report of a day, with the other designs beside it where there are any."""
    priced = list(dict.fromkeys(day.work.design.deployment.hardware.name for day in days))
    reports = [day_report(day, priced) for day in days]
    if energy is not None:
        reports = [with_day_energy(report, day, energy) for report, day in zip(reports, days)]
    if len(days) == 1:
        return reports[0]
    return with_designs(reports, days, [_row(day, one, days[0].policies[0]) for day in days for one in day.policies])


def day_report(day: Day, priced: Sequence[str] = ()) -> Report:
    """The policies side by side, and the replicas of each by the hour. priced: devices whose prices are of use here,
    where it is not this one alone."""
    rows, classes, replica = [_row(day, one) for one in day.policies], day.question.demand.classes, day.work.design
    asked, policies = day.asked, [record(row) for row in rows]
    whole = {
        **deployment_record(day.work.design.deployment),
        "rests_on": _rests_on(day),
        "profile": _profile(day),
        "slo": None if classes else {f"{name}_s": limit for name, limit in day.question.slo.limits.items()},
        "percentile": None if classes else day.question.slo.percentile,
        "replica": {
            "requests_per_s": replica.rate,
            "breaks_first": replica.broken,
            "confidence": day.work.confidence,
            "step_times": replica.option.slow.step,
            "utilisation": day.question.sizing.utilisation,
            "requests_in_it": replica.requests,
            "max_num_seqs": replica.flags.max_num_seqs,
            "max_num_batched_tokens": replica.flags.max_num_batched_tokens,
            "queue": replica.flags.queue,
            "draft_tokens": replica.option.speculation.length or None,
            "bill": bill_record(day.tariff.bill(1)),
        },
        "classes": classes_record(day),
        "mixes": mixes_record(day),
        "cold_start": _cold_start(day),
        "preemptions": asked.losses and {"per_replica_hour": asked.losses.rate * HOUR, "notice_s": asked.losses.notice},
        "known_error": error_record(_served(day)),
        "routing": asked.routing,
        "minimum_bill_s": asked.minimum_bill,
        "failures": asked.failures and {"mode": asked.failures.mode, "replicas_per_node": asked.failures.per_node},
        "recorded": happened_record(day),
        "undone": list(day.undone),
        "policies": [{**row, **_more(day, one)} for row, one in zip(policies, day.policies)],
    }
    tables = [
        side_by_side(_title(day), [*happened_rows(day), *rows]),
        *([by_class(day)] if classes else []),
        *_times(day),
    ]
    if asked.failures is not None:
        tables.insert(2 if classes else 1, failure_table([(one.policy, one.outages) for one in day.policies], "policy"))
    flat = [
        {**row, "classes": {of["name"]: of for of in class_records(one)}} for row, one in zip(policies, day.policies)
    ]
    return Report(record=whole, tables=tables, notes=_notes(day, priced), rows=flat, of=day, opening=_no_day(day))


def _no_day(day: Day) -> list[str]:
    """That a profile of less than a day repeats, and says nothing of a night; of a recorded log nothing repeats."""
    profile, asked = day.asked.profile, day.asked
    if asked.replay is not None or profile.end >= min(asked.span, DAY):
        return []
    lasts = f"profile {profile.name} lasts {format_time(profile.end, 4)} and repeats, with no night in it"
    return [
        f"no day: {lasts}; what autoscaling saves in a day cannot be read from it "
        "(state a day: --profile 00:00=5,08:00=40,20:00=15)"
    ]


def _title(day: Day) -> str:
    slo, classes = day.question.slo, day.question.demand.classes
    limits = ", ".join(f"{NAMES[name]} {short_time(limit)}" for name, limit in slo.limits.items())
    asked = limits_in_words(slo, classes) if classes else f"{limits} at {percentile_of(slo)}"
    sure = f", replicas for a confidence of {day.work.confidence:g}" if day.work.confidence > MIDDLE else ""
    return f"{day.work.design.deployment.describe()}: {_what(day)}, {asked}{sure}"


def _what(day: Day) -> str:
    """What is served, and for how long."""
    if day.asked.replay is None:
        return f"{_span(day)}, profile {day.asked.profile.name}"
    return f"{day.asked.span / HOUR:.3g} h of {day.asked.profile.name} from {moment(day, 0.0)} on"


def _span(day: Day) -> str:
    """The time simulated; of a part of the day that leaves the busiest step out, what is missing."""
    profile, span = day.asked.profile, day.asked.span
    each = day.question.demand.samples  # a profile counts prompts
    seen = max(rate for start, rate in zip(profile.starts, profile.rates, strict=True) if start < span) / each
    hours = f"{span / HOUR:.3g} h"
    peak = profile.peak / each
    if seen >= peak:
        return hours
    return f"the first {hours} alone, with {seen:g} requests/s at most, not the peak of {peak:g}"


def _times(day: Day) -> list[Table]:
    """The hours; of more than a day the days, and of a replay the hours over the limits."""
    over = None if day.asked.replay is None else hours_over(day)
    return [_by_hour(day) if day.asked.span <= DAY else by_day(day), *([] if over is None else [over])]


def _more(day: Day, one: PolicyDay) -> dict[str, Any]:
    """What of a policy is no single figure."""
    failures = {} if day.asked.failures is None else {"failures": episode_records(one.outages)}
    found = {"classes": class_records(one) or None, "cache_tiers": tier_records(one.result), "hours": _hours(day, one)}
    adapters = None if day.question.demand.adapters is None else adapters_found(one.result)
    return {**found, "adapters": adapters, **failures}


def _profile(day: Day) -> dict[str, Any]:
    profile, span = day.asked.profile, day.asked.span
    return {
        "name": profile.name,
        "source": profile.source,
        "classes": list(profile.classes),
        "steps": len(profile.rates),
        "period_s": profile.end,
        "peak_requests_per_s": profile.peak,
        "mean_requests_per_s": profile.mean,
        "simulated_s": span,
        "requests": len(day.requests),
    }


def _rests_on(day: Day) -> dict[str, Resting]:
    """What the price of each part of a day rests on."""
    start, found = day.asked.cold_start, parts_rest_on(day.work.design.deployment)
    return found if start is None else found | {"cold_start": start.part}


def _cold_start(day: Day) -> dict[str, Any] | None:
    start = day.asked.cold_start
    if start is None:
        return None
    finite = isfinite(start.bandwidth)
    return {
        "seconds": start.seconds,
        "weights_bytes": start.weights if finite else None,
        "storage_bytes_per_s": start.rate if finite else None,
        "loader": start.loader or None,
        "loader_start_s": start.start,
        "rest_s": start.rest,
        "rest_is": start.measured or None,
    }


def _row(day: Day, one: PolicyDay, beside: PolicyDay | None = None) -> list[Figure]:
    """One policy; GPU-hours and cost are of a day, whatever the span. beside: the one that it saves against, of another
    design."""
    slo = day.question.slo
    first, classes, spot = beside or day.policies[0], class_records(one), day.asked.losses is not None
    shared = day.requests.hashes is not None
    meets = all(of["meets"] is not False for of in classes) if classes else meets_percentile(one.missed, slo)
    saving = 1.0 - one.cost / first.cost if first.cost else None
    return [
        Figure("policy", one.policy, "policy", left=True),
        Figure("peak_replicas", one.peak, "peak replicas"),
        Figure("gpu_hours", one.device_hours * day.days, "GPU-hours", ",.1f"),
        Figure("cost_per_day", one.cost * day.days, f"{day.tariff.currency} per day", ",.2f"),
        Figure("currency", day.tariff.currency),
        tiers_figure(day, one),
        Figure("saving", saving, "saving", ".1%", text="" if one is first else None, absent=""),
        Figure("missed", one.missed, "miss", text=f"{one.missed:.2%}{'' if meets else ' !'}"),
        Figure("meets", meets),
        Figure("prefix_cache_hit_rate", one.result.hit_rate if shared else None, "hits", ".1%", seen=shared),
        Figure("utilisation", one.utilisation),
        Figure("taken_away", one.taken),
        Figure("begun_anew", one.resent),
        *(
            Figure(
                f"{name}_s",
                None if classes else one.percentile(name, slo.percentile),
                f"{NAMES[name]} {percentile_of(slo)}",
                short_time,
                seen=name in slo.limits and not classes,
            )
            for name in METRICS
        ),
        text("used", f"{one.utilisation:.0%}"),
        text("taken", f"{one.taken:,}", seen=spot),
        text("restarted", f"{one.resent:,}", seen=spot),
        Figure("requests", one.result.counts),
    ]


def _hours(day: Day, one: PolicyDay) -> list[dict[str, Any]]:
    """The replicas that are paid for, the requests that come and how many of them are late, hour by hour."""
    found = []
    names, of = [kind.name for kind in day.requests.classes], day.requests.of
    for hour, (start, stop, _) in enumerate(day.hourly):
        which = one.within(start, stop)
        row: dict[str, Any] = {
            "hour": hour,
            "requests_per_s": (which.stop - which.start) / (stop - start),
            "replicas": one.mean_replicas(start, stop),
            "replicas_needed": day.needed(start, stop),
            "missed": missed_share(one.late, which),
        }
        if of is not None:
            counts = np.bincount(of[which], minlength=len(names)) / (stop - start)
            row["of_class"] = dict(zip(names, counts.tolist()))
        found.append(row)
    return found


def _by_hour(day: Day) -> Table:
    policies, names = [_hours(day, one) for one in day.policies], [one.name for one in day.requests.classes]
    columns = ["hour", "requests/s", *names, *(one.policy for one in day.policies)]
    rows = [
        [
            f"{hour['hour']:02d}:00" if day.asked.replay is None else moment(day, hour["hour"] * HOUR),
            f"{hour['requests_per_s']:,.2f}",
            *(f"{hour['of_class'][name]:,.2f}" for name in names),
            *(f"{of[index]['replicas']:.2f}" for of in policies),
        ]
        for index, hour in enumerate(policies[0])
    ]
    return Table(title="Replicas paid for, mean of the hour", columns=columns, rows=rows, right=frozenset(columns[1:]))


def _served(day: Day) -> Served:
    """The replica, with the mean prompt of the day."""
    return {"a replica": (day.work.design.deployment, float(np.mean(day.requests.prompt)))}


def _counted(day: Day) -> str:
    """At which confidence replicas are counted, and that the figures are those of the prediction."""
    asked, found, step = day.question.sizing.confidence, day.work.confidence, day.work.design.option.slow.step
    if found > MIDDLE:
        return (
            f"replicas are counted at a confidence of {found:g}, as in plan: for steps x {step:.2f} of the predicted "
            "ones, but by the load of one replica alone, so that plan may take fewer for a pool; latencies and late "
            f"requests are those of the prediction, and so are replicas with --confidence {MIDDLE:g}"
        )
    if asked == MIDDLE:
        return f"replicas are counted as predicted; plan keeps a confidence of {USUAL:g} where the error is known"
    why = "" if day.work.unkept is None else day.work.unkept.what.removeprefix(f"no day at a confidence of {asked:g}: ")
    return f"replicas are counted as predicted, for at a confidence of {asked:g} {why}"


def _of_media(day: Day) -> str:
    """How many of the tokens of a prompt are of images, video or sound."""
    media, sets = day.question.demand.media, day.requests.media
    return "" if media is None or sets is None else f" ({media.tokens * np.mean(sets):,.0f} of them media)"


def _scattered(day: Day) -> list[str]:
    if not scattered(day.asked, day.question):
        return []
    kept = "one is sized as if they found nothing of the turns before (--routing sticky keeps them together)"
    return [f"{day.asked.routing} routing sends later turns to any replica, so {kept}"]


def _notes(day: Day, priced: Sequence[str]) -> list[str]:
    asked, replica = day.asked, day.work.design
    sizing, percentile, classes = day.question.sizing, day.question.slo.percentile, day.question.demand.classes
    of = " of the most demanding mix" if len(day.work.mixes) > 1 else ""
    why = f" ({BOTTLENECKS[replica.broken]} breaks first)" if replica.broken in BOTTLENECKS else ""
    lines = [
        f"a replica carries {replica.rate:.3g} requests/s{of} within the limits{why}, by simulation, and is loaded "
        f"to {sizing.utilisation:.0%} of that; it runs with --max-num-seqs {replica.flags.max_num_seqs} "
        f"--max-num-batched-tokens {replica.flags.max_num_batched_tokens}",
        f"{len(day.requests):,} requests in {asked.span / HOUR:.3g} h, of {np.mean(day.requests.prompt):,.0f} tokens "
        f"in{_of_media(day)} and {np.mean(day.requests.output):,.0f} out on average, {_arrivals(day)}, the "
        f"same for every policy; {asked.routing} routing; used: requests, over the capacity of the replicas paid for",
        *edge_lines(replica, alone(replica.option, day.question)),
        _counted(day),
        *(mix_notes(day) if classes else []),
        *replay_notes(day),
        *_scattered(day),
        *_carried(day),
    ]
    lines += _profile_notes(day)
    if asked.cold_start is not None:
        start = asked.cold_start
        read = f"{format_bytes(start.weights)} of weights at {format_bytes(start.rate)}/s, and "
        opens = f"{format_time(start.start, 3)} before {start.loader} reads, " if start.start else ""
        read = opens + read if isfinite(start.bandwidth) else ""
        of = f" of {start.measured}, by its log: no pod, no image" if start.measured else ""
        parts = f" = {read}{format_time(start.rest, 3)}" if read else ""
        lines.append(f"cold start: {format_time(start.seconds, 3)}{parts}{of}")
    rule = next((one.scaling for one in day.policies if isinstance(one.scaling, Reactive)), None)
    if rule is not None:
        whose = "" if asked.autoscaler.target else ", as many as a replica has at its share of its capacity"
        lines.append(
            f"reactive: {rule.target:.3g} requests in a replica{whose}; checked every {rule.interval:g} s, tolerance "
            f"{rule.tolerance:g}, {rule.stabilisation:g} s before fewer, {rule.least} to {rule.most} replicas"
        )
    lines += _loss_notes(asked)
    if day.undone:
        lost = ", ".join(f"{policy} ({share:.0%} was)" if share else policy for policy, share in day.undone.items())
        lines.append(f"interrupted: not simulated to the end, and lost: {lost}")
    if asked.span != 24 * HOUR:
        lines.append(
            f"GPU-hours and cost are per day, over {asked.span / HOUR:.3g} h simulated; all of it costs "
            + ", ".join(f"{one.policy} {one.cost:,.2f} {day.tariff.currency}" for one in day.policies)
        )
    if classes and any(of["meets"] is False for one in day.policies for of in class_records(one)):
        lines.append(
            "! more requests of a class miss a limit than its percentile allows; miss: share of the class's requests"
        )
    elif not classes and any(one.missed > 1 - percentile / 100 for one in day.policies):
        lines.append(f"! more than {100 - percentile:g} % of the requests miss a limit")
    least = f", at least {asked.minimum_bill:g} s" if asked.minimum_bill else ""
    lines.append(f"a replica is billed from its order until its last request is done, by the second{least}")
    lines += _tier_notes(asked)
    lines += error_notes(_served(day), "a service whose replicas come and go")
    lines += filter(None, [outside_band(_rests_on(day))])
    lines += day.tariff.bill(1).remarks
    return [*lines, *day.question.prices.remarks(priced or [replica.deployment.hardware.name])]


def _carried(day: Day) -> list[str]:
    """Thoughts, drafts and adapters of the requests."""
    demand, option, lines = day.question.demand, day.work.design.option, list[str]()
    if isinstance(demand.output, ReasoningLengths):
        before = f"{demand.output.before[0]:,.0f} tokens"
        lines.append(f"a request writes {before} before its answer on average, and TTFT is that of the first of them")
    if drafts := option.speculation.length:
        lines.append(
            f"a step verifies {drafts} drafts of each request, and yields {option.speculation.tokens:.3g} tokens"
        )
    lora = option.deployment.lora
    if demand.adapters is not None and lora is not None:
        lines.append(f"requests name {demand.adapters.describe()}, of rank {lora.rank}")
        each = [(one.policy, adapters_found(one.result)) for one in day.policies]
        lines += [f"{name}: {in_slots(found, lora.slots)}" for name, found in each if found and found["hit_rate"]]
    return lines


def _profile_notes(day: Day) -> list[str]:
    """What a profile counts, and where it is from."""
    profile, lines = day.asked.profile, list[str]()
    if (sessions := day.requests.sessions) is not None:
        calls = len(day.requests) / len(sessions)
        lines.append(f"{len(sessions):,} sessions of {calls:.3g} calls; the profile counts calls, each a request here")
    if (samples := day.requests.samples) > 1:
        lines.append(f"{samples} answers per prompt, each a request here; the profile states prompts")
    if profile.source:
        lines.append(f"profile: {profile.source}")
    if profile.classes and not day.question.demand.classes:
        lines.append(f"the rates of {', '.join(profile.classes)} are added: all have the lengths stated here")
    return lines


def _tier_notes(asked: DayAsked) -> list[str]:
    """How tiers are paid for."""
    if not asked.tiers:
        return []
    free = [tier.name for tier in asked.tiers if tier.price is None]
    lacks = f"; not priced: {', '.join(free)}" if free else ""
    return [f"a cache tier is billed with its replica, a shared one all day{lacks}"]


def _loss_notes(asked: DayAsked) -> list[str]:
    """What is taken away, and what fails."""
    lines = []
    if asked.losses is not None:
        lines.append(
            f"each replica is taken away {asked.losses.rate * HOUR:g} times per hour, {asked.losses.notice:g} s after "
            "a notice; a replacement is ordered at the notice; restarted: requests it still had"
        )
    if asked.failures is not None:
        how = "gone at once" if asked.failures.mode == "cut" else "drained first"
        lines.append(
            f"a replica that fails is {how}, and back after a cold start; the backlog is gone when the fleet holds no "
            "more requests than it did on average before the failure"
        )
    return lines


def _arrivals(day: Day) -> str:
    return f"{day.question.demand.arrivals} arrivals" if day.asked.replay is None else "as they came"


def classes_record(day: Day) -> list[dict[str, Any]] | None:
    """The classes as they are asked for; ``None`` without any."""
    return [
        {
            "name": one.name,
            "share": one.share,
            "priority": one.priority,
            "weight": one.weight,
            "slo": {f"{name}_s": limit for name, limit in one.slo.limits.items()},
            "percentile": one.slo.percentile,
        }
        for one in day.question.demand.classes
    ] or None


def mixes_record(day: Day) -> dict[str, Any] | None:
    """What a replica carries of the mixes of the day, by simulation; ``None`` without classes."""
    if not day.question.demand.classes:
        return None
    found = [
        {"shares": list(one.shares), "requests_per_s": one.design.rate, "breaks_first": one.design.broken}
        for one in day.work.mixes
    ]
    return {"simulated": found, "apart": day.work.apart}


def class_records(one: PolicyDay) -> list[dict[str, Any]]:
    """What each class has of a policy; latencies at the percentile of the class, null for one that nobody has."""
    return [record(_class(one, place)) for place in range(len(one.parts))]


def by_class(day: Day) -> Table:
    """Every policy as each class sees it: requests, the share that is late, latencies beside their limits."""
    limited = {name for kind in day.question.demand.classes for name in kind.slo.limits}
    rows = [_class(policy, place, limited) for policy in day.policies for place in range(len(policy.parts))]
    return side_by_side("Classes, against their own limits", rows)


def _class(one: PolicyDay, place: int, limited: Collection[str] = ()) -> list[Figure]:
    """What a class has of a policy. limited: latencies that people see."""
    kind, part = one.parts[place]
    arrived = part.counts["arrived"]
    missed = 1.0 - float(np.sum(part.attained)) / arrived if arrived else None
    meets = None if missed is None else meets_percentile(missed, kind.slo)
    at = {name: finite(at_percentile(part, name, kind.slo.percentile)) for name in METRICS}
    return [
        text("policy", "" if place else one.policy, left=True),
        Figure("name", kind.name, "class", left=True),
        Figure("requests", arrived, "requests", ","),
        Figure("missed", missed, "miss", lambda share: f"{share:.2%}{'' if meets else ' !'}"),
        Figure("meets", meets),
        *(
            Figure(
                f"{name}_s",
                value,
                METRIC_NAMES[name].replace("end-to-end ", ""),
                text=_beside_limit(value, kind.slo, name),
                seen=name in limited,
            )
            for name, value in at.items()
        ),
    ]


def _beside_limit(value: float | None, slo: Slo, name: str) -> str:
    """``"437 ms, p95 < 600 ms"``; the latency alone without a limit."""
    said = "-" if value is None else short_time(value)
    return f"{said}, {percentile_of(slo)} < {short_time(slo.limits[name])}" if name in slo.limits else said


def mix_notes(day: Day) -> list[str]:
    """How replicas were counted for a mix that changes with the hour."""
    kinds, work = day.question.demand.classes, day.work
    shares = ", ".join(f"{one.share:.3g} {one.name}" for one in kinds)
    order, engine = day.question.demand.queue, work.design.deployment.engine.name
    told = queue_note(order, engine)
    lines = [f"classes: {shares} of the requests of the day; queue per replica: {order}{'; ' if told else ''}{told}"]
    found = "; ".join(
        f"{one.design.rate:.3g} of {' and '.join(f'{share:.3g}' for share in one.shares)}" for one in work.mixes
    )
    apart = f"; other mixes use the nearest of these, at most {work.apart:.1%} of the requests away"
    lines.append(f"requests/s that a replica carries, by mix: {found}{apart if work.apart > 1e-9 else ''}")
    rare = [one.name for place, one in enumerate(kinds) if any(0 < mix.shares[place] < RARE for mix in work.mixes)]
    if rare:
        lines.append(f"limits of {', '.join(rare)} are not checked in mixes with less than {RARE:.0%} of it")
    return lines


def with_day_energy(report: Report, day: Day, asked: EnergyAsked) -> Report:
    """The report of a day with the energy of each policy; kWh and CO2 are of a day, whatever the span."""
    found = [DayEnergy(day=day, policy=one, asked=asked) for one in day.policies]
    rows = [_energy(day, one, found[0]) for one in found]
    energy = {
        **asked_record(asked),
        "policies": [{**record(row), "hours": _energy_by_hour(one)} for row, one in zip(rows, found)],
    }
    deployment = day.work.design.deployment
    cap, shares = deployment.cap, power_shares(deployment.hardware)
    standing = (
        f"a GPU without work draws {shares.standing:.1%} of TDP, from the order of its replica on "
        f"({shares.standing_source})"
    )
    notes = [*report.notes, error_note(deployment), standing, *carbon_notes(asked)]
    notes += [] if cap is None or not cap.holds else [f"cap of {cap.watts:g} W: {UNMEASURED}"]
    tables = [*report.tables, side_by_side(f"Energy ({asked.scope})", rows)]
    rests_on = report.record["rests_on"] | {"energy": WATTS}
    return replace(report, record={**report.record, "rests_on": rests_on, "energy": energy}, tables=tables, notes=notes)


def _energy(day: Day, one: DayEnergy, first: DayEnergy) -> list[Figure]:
    """The energy of a policy beside that of the first."""
    kwh, grams = sum(one.kwh), None if one.grams is None else sum(one.grams)
    carbon = one.asked.carbon is not None
    return [
        Figure("policy", one.policy.policy, "policy", left=True),
        Figure("kwh_per_day", kwh * day.days, "kWh per day", ",.2f"),
        text("saving", "" if one is first else f"{1.0 - kwh / sum(first.kwh):.1%}"),
        Figure("idle_share", one.idle_share, "for being on", ".0%"),
        Figure("j_per_output_token", one.per_output_token, "per output token", joules),
        Figure(
            "carbon_g_per_day",
            None if grams is None else grams * day.days,
            "kg CO2 per day",
            lambda g: f"{g / 1e3:,.3f}",
            seen=carbon,
        ),
        Figure("carbon_g_per_kwh", None if grams is None else grams / kwh, "g/kWh", ",.1f", seen=carbon),
        Figure(
            "request_g",
            None if grams is None else grams / len(day.requests),
            "CO2 per request",
            lambda g: f"{g * 1e3:,.3g} mg",
            seen=carbon,
        ),
    ]


def _energy_by_hour(one: DayEnergy) -> list[dict[str, Any]]:
    grams: list[float | None] = [*one.grams] if one.grams is not None else [None for _ in one.kwh]
    return [{"hour": hour, "kwh": kwh, "carbon_g": of} for hour, (kwh, of) in enumerate(zip(one.kwh, grams))]
