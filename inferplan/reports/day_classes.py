"""What each class of traffic has of a :class:`Day`, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from inferplan.answers.emit import queue_note
from inferplan.figures import Figure, finite, record, short_time, side_by_side, text
from inferplan.planning.day import Day, PolicyDay
from inferplan.planning.day_work import RARE
from inferplan.planning.demand import METRIC_NAMES, percentile_of
from inferplan.serving.class_results import METRICS, at_percentile
from inferplan.table import Table
from inferplan.traffic.requests import Slo


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
    return [record(_class(one, place)) for place in range(len(one.parts))]


def meets_percentile(missed: float, slo: Slo) -> bool:
    """Whether no more miss a limit than the percentile allows; who has none is never late."""
    return not slo.limits or missed <= 1 - slo.percentile / 100 + 1e-12


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
