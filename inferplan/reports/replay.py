"""A recorded span beside what policies make of it: what happened, days and hours over the limits, designs in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np

from inferplan.figures import Figure, record, short_time, side_by_side, text
from inferplan.planning.day import Day, PolicyDay
from inferplan.planning.demand import METRIC_NAMES, percentile_of
from inferplan.planning.paid import Paid
from inferplan.reports.simulation import named_blocks
from inferplan.serving.class_results import METRICS
from inferplan.table import Report, Table
from inferplan.traffic.profile import DAY
from inferplan.traffic.requests import Slo
from inferplan.units import BoolArray

NAMES = METRIC_NAMES | {"e2el": "latency"}
_MOST_HOURS = 12
"""Hours over the limits that people see; programs see all."""


def meets_percentile(missed: float, slo: Slo) -> bool:
    """Whether no more miss a limit than the percentile allows; who has none is never late."""
    return not slo.limits or missed <= 1 - slo.percentile / 100 + 1e-12


def missed_share(late: BoolArray | None, which: slice) -> float | None:
    """The share of some requests that are late; ``None`` for none, and where nobody knows."""
    return None if late is None or which.stop == which.start else float(np.mean(late[which]))


def happened_rows(day: Day) -> list[list[Figure]]:
    """What the log says, as a row beside the policies; none where it says nothing."""
    found, slo, ran = day.happened, day.question.slo, bool(day.asked.ran)
    if found is None:
        return []
    missed = missed_share(found.late, slice(0, len(day.requests)))
    late = "" if missed is None else f"{missed:.2%}{'' if meets_percentile(missed, slo) else ' !'}"
    cost = found.cost * day.days if ran else None
    row = [
        text("policy", "as it was", left=True),
        Figure("peak_replicas", found.peak if ran else None, "peak replicas", absent=""),
        Figure("gpu_hours", found.device_hours * day.days if ran else None, "GPU-hours", ",.1f", absent=""),
        Figure("cost_per_day", cost, f"{day.tariff.currency} per day", ",.2f", absent=""),
        tiers_figure(day, found if ran else None),
        text("saving", ""),
        Figure("missed", missed, "miss", text=late),
        text("hits", "", seen=day.requests.hashes is not None),
        *(
            Figure(
                f"{name}_s",
                found.percentile(name),
                f"{NAMES[name]} {percentile_of(slo)}",
                short_time,
                seen=name in slo.limits,
                absent="" if name not in found.measured else "-",
            )
            for name in METRICS
        ),
        text("used", ""),
        text("taken", "", seen=day.asked.losses is not None),
        text("restarted", "", seen=day.asked.losses is not None),
    ]
    return [row]


def tiers_figure(day: Day, one: Paid | None) -> Figure:
    """What of a cost is that of cache tiers."""
    cost = None if one is None or one.tier_cost is None else one.tier_cost * day.days
    priced = any(tier.price is not None for tier in day.asked.tiers)
    return Figure("cache_tiers_per_day", cost, "of it tiers", ",.2f", seen=priced, absent="")


def happened_record(day: Day) -> dict[str, Any] | None:
    """The same for programs, with its hours; ``None`` where nothing is known of it."""
    found = day.happened
    if found is None:
        return None
    hours = [
        {
            "hour": hour,
            "replicas": found.mean_replicas(start, stop) if day.asked.ran else None,
            "missed": missed_share(found.late, which),
        }
        for hour, (start, stop, which) in enumerate(day.hourly)
    ]
    return {**record(happened_rows(day)[0]), "hours": hours}


def moment(day: Day, seconds: float) -> str:
    """A time of the replay: by the clock of the log where that has dates, else its day and the time of that."""
    replay = day.asked.replay
    if replay is not None and replay.dated:
        return datetime.fromtimestamp(replay.began + seconds, UTC).strftime("%a %d %H:%M")
    rest = int(seconds % DAY) // 60
    return f"day {int(seconds // DAY) + 1} {rest // 60:02d}:{rest % 60:02d}"


def by_day(day: Day) -> Table:
    """Days of a long replay: the load, and of each policy the replicas that are paid for and the share that is late."""
    ends = [*np.arange(0.0, day.asked.span, DAY), day.asked.span]
    arrival = day.requests.arrival
    assert arrival is not None
    rows = []
    for start, stop in pairwise(ends):
        which = slice(*np.searchsorted(arrival, (start, stop)).tolist())
        rate = (which.stop - which.start) / (stop - start)
        busiest = day.work.load.most(start, stop - 1e-6) * day.work.design.rate
        policies = [cell for one in day.policies for cell in _cells(one, start, stop, which)]
        rows.append([moment(day, start), f"{rate:,.2f}", f"{busiest:,.2f}", *policies])
    columns = ["from", "requests/s", "busiest 5 min", *(name for one in day.policies for name in (one.policy, "miss"))]
    title = "By day: replicas paid for, on average, and the share over a limit"
    return Table(title=title, columns=columns, rows=rows, right=frozenset(columns[1:]))


def _cells(one: PolicyDay, start: float, stop: float, which: slice) -> list[str]:
    missed = missed_share(one.late, which)
    return [f"{one.mean_replicas(start, stop):.2f}", "" if missed is None else f"{missed:.2%}"]


def hours_over(day: Day) -> Table | None:
    """The hours in which a policy, or what was measured, has more late requests than the percentile allows, the worst
    first; ``None`` without any."""
    measured = None if day.happened is None else day.happened.late
    allowed = 1 - day.question.slo.percentile / 100
    found = []
    for start, stop, which in day.hourly:
        lates = [measured, *(one.late for one in day.policies)]
        missed = [missed_share(late, which) for late in lates]
        worst = max((share for share in missed if share is not None), default=0.0)
        if worst > allowed:
            found.append((worst, start, stop, which, missed))
    if not found:
        return None
    found.sort(key=lambda one: (-one[0], one[1]))
    rows = []
    for _, start, stop, which, missed in found[:_MOST_HOURS]:
        said = ["" if share is None else f"{share:.1%}" for share in missed]
        policies = [
            cell
            for one, share in zip(day.policies, said[1:])
            for cell in (f"{one.mean_replicas(start, stop):.2f}", share)
        ]
        was = said[:1] if measured is not None else []
        rate = (which.stop - which.start) / (stop - start)
        rows.append([moment(day, start), f"{rate:,.2f}", f"{day.needed(start, stop)}", *was, *policies])
    was = [] if measured is None else ["as it was"]
    names = [name for one in day.policies for name in (one.policy, "miss")]
    columns = ["hour from", "requests/s", "needs", *was, *names]
    title = f"Hours over the limits: {len(found)}{f', the worst {len(rows)}' if len(rows) < len(found) else ''}"
    return Table(title=title, columns=columns, rows=rows, right=frozenset(columns[1:]))


def replay_notes(day: Day) -> list[str]:
    """What was replayed, and what the row of what happened rests on."""
    replay = day.asked.replay
    if replay is None:
        return []
    found, lines = day.happened, []
    came, sized = "its requests come at the times and with the lengths of the log", "for Poisson arrivals of them"
    if day.requests.hashes is not None:
        if all(one.result.conditions["prefix_caching"] for one in day.policies):
            came += ", and find the text that they share in the caches"
        sized = "on the log itself, faster or slower, as if it alone had all of it"
    lines.append(f"{day.asked.profile.name} is replayed: {came}; a replica is sized {sized}")
    for one in day.policies[:1]:
        lines += named_blocks(one.result)
    if "scheduled" in [one.policy for one in day.policies]:
        table = day.asked.timetable
        follows = "the log itself, five minutes by five minutes: no timetable made ahead can cost less"
        follows = follows if table is None else f"one day made of those of the log ({table.source})"
        lines.append(f"scheduled follows {follows}")
    if day.asked.ran:
        lines.append("recorded: the replicas of --replay-replicas, each ordered a cold start before it took requests")
    if found is not None:
        of = [NAMES[name] for name in METRICS if name in found.measured]
        said = f"{', '.join(of)} as measured" if of else "no latency was measured"
        lines.append(
            f"as it was: {said}; replicas at the price of this design" if day.asked.ran else f"as it was: {said}"
        )
    short = sum(1 for start, stop, _ in day.hourly if any(_short(day, one, start, stop) for one in day.policies))
    lines.append(
        f"needs: replicas for the busiest five minutes of the hour; fewer are paid for under some policy in {short} of "
        f"{len(day.hourly)} hours"
    )
    return lines


def _short(day: Day, one: PolicyDay, start: float, stop: float) -> bool:
    """Whether a policy pays for fewer replicas in an hour, on average, than its busiest five minutes take."""
    return one.mean_replicas(start, stop) < day.needed(start, stop) - 1e-9


def with_designs(reports: Sequence[Report], days: Sequence[Day], rows: Sequence[list[Figure]]) -> Report:
    """The report of the first design, and its policies beside those of the others; ``rows`` are those of all designs
    in order."""
    first, others = reports[0], reports[1:]
    labels = [day.label for day in days for _ in day.policies]
    named = [[text("design", label, left=True), *row] for label, row in zip(labels, rows)]
    tables = [side_by_side("Designs side by side", named), *first.tables]
    whole = {
        **first.record,
        "design": days[0].label,
        "others": [{"design": day.label, **one.record} for day, one in zip(days[1:], others)],
    }
    flat = [
        {"design": day.label, **row}
        for day, one in zip(days, reports)
        for row in (one.rows if one.rows is not None else [])
    ]
    notes = list(dict.fromkeys([*first.notes, *(f"{day.label}: {_carries(day)}" for day in days[1:])]))
    return replace(first, record=whole, tables=tables, notes=notes, rows=flat)


def _carries(day: Day) -> str:
    flags = day.work.design.flags
    return (
        f"a replica carries {day.work.design.rate:.3g} requests/s; --max-num-seqs {flags.max_num_seqs} "
        f"--max-num-batched-tokens {flags.max_num_batched_tokens}"
    )
