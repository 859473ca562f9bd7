"""What each class of traffic has of a :class:`Day`, as JSON and as a table."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from inferplan.answers.emit import queue_note
from inferplan.planning.day import Day, PolicyDay
from inferplan.planning.day_work import RARE
from inferplan.planning.demand import METRIC_NAMES, percentile_of
from inferplan.serving.class_results import METRICS, at_percentile
from inferplan.table import Table
from inferplan.traffic.requests import Slo
from inferplan.units import format_time


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
        {"shares": list(one.shares), "requests_per_s": one.replica.rate, "breaks_first": one.replica.broken}
        for one in day.work.mixes
    ]
    return {"simulated": found, "apart": day.work.apart}


def kept(one: PolicyDay) -> list[dict[str, Any]]:
    """What each class has of a policy; latencies at the percentile of the class, null for one that nobody has."""
    found = []
    for kind, part in one.parts:
        arrived = part.counts["arrived"]
        missed = 1.0 - float(np.sum(part.attained)) / arrived if arrived else None
        at = {name: at_percentile(part, name, kind.slo.percentile) for name in METRICS}
        found.append(
            {
                "name": kind.name,
                "requests": arrived,
                "missed": missed,
                "meets": None if missed is None else meets_percentile(missed, kind.slo),
                **{f"{name}_s": value if isfinite(value) else None for name, value in at.items()},
            }
        )
    return found


def meets_percentile(missed: float, slo: Slo) -> bool:
    """Whether no more miss a limit than the percentile allows; who has none is never late."""
    return not slo.limits or missed <= 1 - slo.percentile / 100 + 1e-12


def by_class(day: Day) -> Table:
    """Every policy as each class sees it: requests, the share that is late, latencies beside their limits."""
    kinds = {one.name: one for one in day.question.demand.classes}
    names = [name for name in METRICS if any(name in one.slo.limits for one in kinds.values())]
    columns = [
        "policy",
        "class",
        "requests",
        "miss",
        *(METRIC_NAMES[name].replace("end-to-end ", "") for name in names),
    ]
    rows = []
    for policy in day.policies:
        for place, of in enumerate(kept(policy)):
            slo = kinds[of["name"]].slo
            miss = "-" if of["missed"] is None else f"{of['missed']:.2%}" + ("" if of["meets"] else " !")
            rows.append(
                [
                    "" if place else policy.policy,
                    of["name"],
                    f"{of['requests']:,}",
                    miss,
                    *(_beside_limit(of[f"{name}_s"], slo, name) for name in names),
                ]
            )
    return Table(title="Classes, against their own limits", columns=columns, rows=rows, right=frozenset(columns[2:]))


def _beside_limit(value: float | None, slo: Slo, name: str) -> str:
    """``"437 ms, p95 < 600 ms"``; the latency alone without a limit."""
    said = "-" if value is None else format_time(value, 3)
    if name not in slo.limits:
        return said
    return f"{said}, {percentile_of(slo)} < {format_time(slo.limits[name], 3)}"


def mix_notes(day: Day) -> list[str]:
    """How replicas were counted for a mix that changes with the hour."""
    kinds, work = day.question.demand.classes, day.work
    shares = ", ".join(f"{one.share:.3g} {one.name}" for one in kinds)
    order, engine = day.question.demand.queue, work.replica.deployment.engine.name
    told = queue_note(order, engine)
    lines = [f"classes: {shares} of the requests of the day; queue of a replica: {order}{'; ' if told else ''}{told}"]
    found = "; ".join(
        f"{one.replica.rate:.3g} of {' and '.join(f'{share:.3g}' for share in one.shares)}" for one in work.mixes
    )
    apart = f"; the others are taken for the nearest, at most {work.apart:.1%} of the requests away"
    lines.append(f"requests/s that a replica carries, by mix: {found}{apart if work.apart > 1e-9 else ''}")
    rare = [one.name for place, one in enumerate(kinds) if any(0 < mix.shares[place] < RARE for mix in work.mixes)]
    if rare:
        lines.append(f"limits of {', '.join(rare)} are not looked at in mixes with less than {RARE:.0%} of it")
    return lines
