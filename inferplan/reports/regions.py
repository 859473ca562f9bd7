"""An :class:`inferplan.regions.answer.Answer` as JSON and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferplan.figures import Figure, finite, record, short_time, side_by_side, text
from inferplan.planning.demand import METRIC_NAMES, limits_in_words, percentile_of
from inferplan.planning.design import Design
from inferplan.regions.answer import Answer, Reason, Routed, Without
from inferplan.regions.check import Checked
from inferplan.regions.question import HOURS, Arc
from inferplan.regions.reading import Read, pair_of, row_of
from inferplan.reports.plan import BOTTLENECKS
from inferplan.table import Report, Table


def regions_report(read: Read, answer: Answer, checked: Sequence[Checked]) -> Report:
    """Each routing, its regions and users, the loss of each region, and the rows of the file that decide."""
    asked = answer.asked
    routings = [_routing(read, answer, one, checked) for one in answer.routed]
    regions = [_region(one, site) for one in answer.routed for site in range(len(asked.sites))]
    busiest = [_busiest(read, one) for one in checked]
    users = [_users(read, one, place, checked) for one in answer.routed for place in range(len(asked.users))]
    ways = [_way(read, arc) for arc in asked.arcs]
    lost = [_lost(answer, one) for one in answer.lost]
    reasons = [_reason(read, answer, one) for one in answer.reasons]
    parts = {"routings": routings, "regions": regions, "users": users, "busiest": busiest, "ways": ways}
    parts |= {"lost": lost, "limits": reasons}
    whole: dict[str, Any] = {
        "currency": asked.currency,
        "percentile": read.spec.service.percentile,
        "slo": {f"{name}_s": limit for name, limit in read.slo.limits.items()},
        "utilisation": read.spec.service.utilisation,
        "round_trips": read.spec.round_trips,
        **{name: [record(row) for row in rows] for name, rows in parts.items()},
        "hours": _hours(answer),
    }
    tables = [
        side_by_side(_title(read), routings),
        side_by_side("Regions", regions),
        side_by_side("Users", users),
        side_by_side("The busiest hour of each region, simulated", busiest),
        _by_hour(answer),
        side_by_side("Ways", ways),
        *([side_by_side("One region lost", lost)] if lost else []),
        *([side_by_side("Rows of the file that limit the answer", reasons)] if reasons else []),
    ]
    return Report(record=whole, tables=tables, notes=_notes(read, answer), rows=whole["routings"], of=answer)


def _title(read: Read) -> str:
    slo, spec = read.slo, read.spec
    return f"{spec.service.model}, {len(spec.regions)} regions, a day: {limits_in_words(slo, ())}, the network included"


def _mark(value: float, kept: bool) -> str:
    return f"{short_time(value) if finite(value) is not None else 'grows'}{'' if kept else ' !'}"


def _routing(read: Read, answer: Answer, one: Routed, checked: Sequence[Checked]) -> list[Figure]:
    asked, first, limits = answer.asked, answer.routed[0], read.slo.limits
    mine = [row for row in checked if row.routing == one.routing]
    kept = all(row.keeps(limits) for row in mine)
    saving = 1 - one.whole_cost / first.whole_cost if first.whole_cost else None
    grams, kwh = one.whole_grams, one.whole_kwh
    seen = max((row.ttft for row in mine), default=0.0)
    return [
        Figure("routing", one.routing, "routing", left=True),
        Figure("cost_per_day", one.whole_cost, f"{asked.currency} per day", ",.2f"),
        Figure("saving", saving, "saving", ".1%", text="" if one is first else None, absent=""),
        Figure("gpus_held", sum(one.gpus_held(site) for site in range(len(asked.sites))), "GPUs held", ",.0f"),
        Figure("gpus_most", float(one.all_gpus.max()), "at most", ",.0f"),
        Figure("gpu_hours", float(one.all_gpus.sum()), "GPU-hours", ",.0f"),
        Figure("kwh_per_day", kwh, "kWh per day", ",.1f"),
        Figure("carbon_g_per_day", grams, "kg CO2", lambda g: f"{g / 1e3:,.1f}", seen=grams is not None),
        Figure("carbon_g_per_kwh", grams and grams / kwh, "g/kWh", ",.0f", seen=grams is not None),
        Figure("served_away", one.away, "served away", ".1%"),
        Figure("network_mean_s", one.delay, "network, mean", short_time),
        Figure("ttft_s", finite(seen), f"TTFT {percentile_of(read.slo)}", text=_mark(seen, kept)),
        Figure("keeps_the_limits", kept),
        Figure("gap", one.gap),
    ]


def _region(one: Routed, site: int) -> list[Figure]:
    grams, gpus = one.grams(site), one.gpus(site)
    return [
        text("routing", "" if site else one.routing, left=True),
        Figure("routing", one.routing),
        Figure("region", one.asked.sites[site].name, "region", left=True),
        Figure("requests_per_s_most", float(one.load(site).max()), "requests/s at most", ",.1f"),
        Figure("gpus_held", one.gpus_held(site), "GPUs held", ",.0f"),
        Figure("gpus_most", float(gpus.max()), "at most", ",.0f"),
        Figure("gpu_hours", float(gpus.sum()), "GPU-hours", ",.0f"),
        Figure("cost_per_day", one.cost(site), f"{one.asked.currency} per day", ",.2f"),
        Figure("kwh_per_day", float(one.kwh(site).sum()), "kWh", ",.1f"),
        Figure(
            "carbon_g_per_day",
            None if grams is None else float(grams.sum()),
            "kg CO2",
            lambda g: f"{g / 1e3:,.1f}",
        ),
    ]


def _busiest(read: Read, one: Checked) -> list[Figure]:
    asked = read.question
    names = [asked.users[place].name for place in sorted(one.pool.users)]
    slo = read.replicas[one.site].slo
    kept, limited = one.keeps(slo.limits), slo.limits
    return [
        Figure("routing", one.routing, "routing", left=True),
        Figure("region", asked.sites[one.site].name, "region", left=True),
        Figure("users", names, "for users of", text=", ".join(names), left=True),
        Figure("hour_utc", one.hour, "hour", lambda hour: f"{hour:02d}:00 UTC"),
        Figure("requests_per_s", one.load, "requests/s", ",.1f"),
        Figure("replicas", one.replicas, "replicas", ",.0f"),
        Figure("server_ttft_s", finite(one.seen.ttft), f"TTFT {percentile_of(slo)} at the server", short_time),
        Figure("ttft_s", finite(one.ttft), "with the network", text=_mark(one.ttft, kept)),
        Figure("tpot_s", finite(one.seen.tpot), "TPOT", short_time),
        Figure("e2el_s", finite(one.e2el), "latency", short_time, seen="e2el" in limited),
        Figure("keeps_the_limits", kept),
    ]


def _users(read: Read, one: Routed, place: int, checked: Sequence[Checked]) -> list[Figure]:
    asked, users = one.asked, one.asked.users[place]
    shares = {site.name: one.share(place, index) for index, site in enumerate(asked.sites)}
    shares = {name: share for name, share in shares.items() if share > 5e-7}
    mine = [row for row in checked if row.routing == one.routing and place in row.pool.users]
    seen = {id(row): row.seen.ttft + _delay(one, place, row.site) for row in mine}
    limit = read.slo.ttft
    slow = max(seen.values(), default=0.0)
    far = max((_delay(one, place, row.site) for row in mine), default=0.0)
    return [
        text("routing", "" if place else one.routing, left=True),
        Figure("routing", one.routing),
        Figure("users", users.name, "users", left=True),
        Figure("requests_per_day", float(users.mean.sum() * 3600), "requests per day", ",.0f"),
        Figure("served_in", shares, "served in", text=", ".join(f"{n} {s:.0%}" for n, s in shares.items()), left=True),
        Figure("network_most_s", far, "network at most", short_time),
        Figure(
            "ttft_s",
            finite(slow),
            f"TTFT {percentile_of(read.slo)}",
            text=_mark(slow, limit is None or slow <= limit),
        ),
    ]


def _delay(one: Routed, users: int, site: int) -> float:
    return next(arc.delay for arc in one.asked.arcs if (arc.users, arc.site) == (users, site))


def _way(read: Read, arc: Arc) -> list[Figure]:
    asked = read.question
    users, site = asked.users[arc.users].name, asked.sites[arc.site].name
    pair = pair_of(read, users, site)
    said = row_of(read, "regions", users, "access") if pair is None else row_of(read, "network", pair)
    why = arc.because
    if not arc.open:
        why = f"the data of {users} stay ({row_of(read, 'regions', users, 'stays')})"
    return [
        Figure("users", users, "from", left=True),
        Figure("region", site, "to", left=True),
        Figure("network_s", arc.delay, "network", short_time),
        text("said in", said, left=True),
        Figure("requests_per_s", arc.rate if arc.open and arc.rate else None, "requests/s of a replica", ",.3g"),
        Figure("closed", why or None, "closed", absent="", left=True),
    ]


def _lost(answer: Answer, one: Without) -> list[Figure]:
    asked = answer.asked
    more = {site.name: count for site, count in zip(asked.sites, one.more) if count}
    first = one.site == 0
    return [
        text("routing", one.routing if first else "", left=True),
        Figure("routing", one.routing),
        Figure("region", asked.sites[one.site].name, "lost", left=True),
        Figure("served_share", one.served, "of all requests", ".1%"),
        Figure("others_hold", one.held, "the others hold it", text="yes" if one.held else "no", left=True),
        Figure("missed_share", one.missed, "not served", ".1%"),
        Figure("missed_most", one.missed_most, "at worst", ".0%"),
        Figure("missed_hour_utc", None if one.held else one.missed_hour, "", lambda hour: f"{hour:02d}:00 UTC"),
        Figure(
            "more_gpus",
            more,
            "GPUs that are lacking",
            text=", ".join(f"{n} {c:.0f}" for n, c in more.items()),
            left=True,
        ),
        Figure("more_cost_per_day", finite(one.price), f"{asked.currency} per day", ",.2f", absent="not sold"),
        Figure("missed_with_more", one.missed_still, "not served with these", ".1%"),
    ]


def _reason(read: Read, answer: Answer, one: Reason) -> list[Figure]:
    carbon = one.routing == "carbon"
    saved = one.saved / 1000 if carbon else one.saved
    unit = "kg CO2" if carbon else answer.asked.currency
    return [
        Figure("routing", one.routing, "routing", left=True),
        text("said in", row_of(read, "regions", one.name, one.row), left=True),
        Figure("row", one.row, "row", left=True),
        Figure("region", one.name, "region", left=True),
        Figure("saved_without", one.saved, "saved without it", text=f"{saved:,.2f} {unit} per day"),
    ]


def _hours(answer: Answer) -> list[dict[str, Any]]:
    """By hour of UTC: what comes, and the GPUs and requests of each routing and region."""
    asked = answer.asked
    return [
        {
            "hour_utc": hour,
            "requests_per_s": {one.name: float(one.most[hour]) for one in asked.users},
            **{
                routed.routing: {
                    site.name: {
                        "gpus": float(routed.gpus(place)[hour]),
                        "replicas": float(routed.up(place)[hour]),
                        "requests_per_s": float(routed.load(place)[hour]),
                        "kwh": float(routed.kwh(place)[hour]),
                        "carbon_g": _grams(routed, place, hour),
                        "from": {
                            asked.users[arc.users].name: float(routed.flow[path, hour])
                            for path, arc in enumerate(asked.paths)
                            if arc.site == place and routed.flow[path, hour] > 1e-6
                        },
                    }
                    for place, site in enumerate(asked.sites)
                }
                for routed in answer.routed
            },
        }
        for hour in range(HOURS)
    ]


def _grams(routed: Routed, place: int, hour: int) -> float | None:
    grams = routed.grams(place)
    return None if grams is None else float(grams[hour])


def _by_hour(answer: Answer) -> Table:
    asked = answer.asked
    columns = ["UTC", *(f"{one.name}, requests/s" for one in asked.users)]
    columns += [f"{one.routing}: {site.name}" for one in answer.routed for site in asked.sites]
    gpus = [one.gpus(place) for one in answer.routed for place in range(len(asked.sites))]
    rows = [
        [
            f"{hour:02d}:00",
            *(f"{one.most[hour]:,.1f}" for one in asked.users),
            *(f"{one[hour]:,.0f}" for one in gpus),
        ]
        for hour in range(HOURS)
    ]
    return Table(title="GPUs paid for by hour", columns=columns, rows=rows, right=frozenset(columns[1:]))


def _notes(read: Read, answer: Answer) -> list[str]:
    spec, lines = read.spec, list[str]()
    for replicas in dict.fromkeys(read.replicas):
        design = replicas.nearest
        assert isinstance(design, Design)
        why = f" ({BOTTLENECKS[design.broken]} breaks first)" if design.broken in BOTTLENECKS else ""
        lines.append(
            f"a replica on {design.deployment.describe()} carries {design.rate:.3g} requests/s of the nearest users "
            f"within the limits{why}, by simulation, and is loaded to {spec.service.utilisation:.0%} of that"
        )
    trips = "one round trip" if spec.round_trips == 1 else f"{spec.round_trips} round trips"
    lines.append(
        f"the network adds {trips} to {METRIC_NAMES['ttft']}: from users to their region (access), and on to the "
        "region that serves them"
    )
    lines.append(
        "TTFT and TPOT: the busiest hour of each region, simulated, for the farthest users it serves; ! over a limit"
    )
    beside = {
        "PUE": [one.pue for one in spec.regions.values()],
        "hosts": [one.host_watts for one in spec.regions.values()],
    }
    counted = [name for name, values in beside.items() if any(value not in (0.0, 1.0) for value in values)]
    lines.append(
        f"energy: GPUs{' with ' + ' and '.join(counted) if counted else ' alone'}; a replica that is up draws standing "
        "power, and each request adds what it does at the load a replica is given"
    )
    if any(len(answer.asked.pools(site)) > 1 for site in range(len(answer.asked.sites))):
        lines.append("users whose limits the network leaves less of have replicas of their own, which are loaded less")
    if "carbon" not in answer.asked.routings:
        lines.append("no routing by carbon: carbon: is not stated of every region with machines")
    sold = [(site.name, one.said) for site in answer.asked.sites for one in (*site.hired, *site.held) if one.said]
    lines += [f"{name}: {said}" for name, said in dict.fromkeys(sold)]
    gap = max(one.gap for one in answer.routed)
    if gap > 1e-6:
        lines.append(f"a better answer is better by {gap:.3%} at most")
    return lines
