"""What a plan survives, as a table and as JSON: replicas lost at a time, what that costs, how often it happens."""

from __future__ import annotations

from math import isfinite
from typing import Any

from inferplan.planning.demand import METRIC_NAMES, percentile_of
from inferplan.planning.option import Option
from inferplan.planning.plan import Plan
from inferplan.planning.redundancy import YEAR, Survive
from inferplan.planning.verify import Survival
from inferplan.reports.plan_figures import devices, money, shape
from inferplan.table import Table
from inferplan.units import format_time

_DAY = 86400.0


def survival_table(plan: Plan) -> Table:
    """The limits while replicas are missing, beside the plan that would do without failures."""
    survive, found = _asked(plan)
    option = plan.option
    rows = [["lost at a time", _lost(survive, found, option)]]
    for one in found.kept:
        whose = f"{one.name}: " if one.name else ""
        rows += [
            [
                f"{whose}{METRIC_NAMES[name]} {percentile_of(one.slo)} meanwhile",
                f"{format_time(one.achieved[name])}, limit {format_time(limit, 3)}",
            ]
            for name, limit in one.slo.limits.items()
        ]
    rows += [
        ["judged", f"{found.judged:,} requests that arrive meanwhile, of {found.failures} failures"],
        ["in flight when they are lost", _anew(found)],
        *_dearer(plan),
        *_expected(survive, option),
    ]
    return Table(title="what is survived (simulated)", columns=["while replicas are lost", "value"], rows=rows)


def _asked(plan: Plan) -> tuple[Survive, Survival]:
    survive, found = plan.question.sizing.survive, plan.best.survival
    assert survive is not None and found is not None
    return survive, found


def _lost(survive: Survive, found: Survival, option: Option) -> str:
    what = "one node: " if survive.replicas is None else ""
    gpus = found.lost * option.deployment.parallel.ranks
    gone = f"{found.lost} of {option.replicas} replicas ({gpus} GPU{'s' if gpus > 1 else ''})"
    return f"{what}{gone}, back after {format_time(found.restart, 4)}"


def _anew(found: Survival) -> str:
    each = found.anew / found.failures
    late = f", {found.late / found.anew:.0%} of them over a limit" if found.anew else ""
    return f"{each:,.1f} requests a failure begin anew{late}"


def _dearer(plan: Plan) -> list[list[str]]:
    """What would do without failures, and what surviving costs more."""
    free, option = plan.failure_free, plan.option
    if free is None:
        return []
    rows = [["without failures", f"{devices(free.option)}: {shape(free.option)} at {money(free.option)}"]]
    if option.cost is not None and free.option.cost:
        more = option.cost - free.option.cost
        currency = option.tariff.currency if option.tariff else ""
        rows.append(["surviving costs more", f"{more:,.2f} {currency}/h ({more / free.option.cost:.1%})"])
    return rows


def _expected(survive: Survive, option: Option) -> list[list[str]]:
    expected = survive.availability(option.deployment, option.replicas)
    if expected is None or survive.mtbf is None:
        return []
    unit = "nodes" if survive.replicas is None else "replicas"
    return [
        [
            f"expected, at {survive.mtbf / _DAY:,.4g} days between failures of a GPU",
            f"{expected.failures:,.3g} {unit} lost a year",
        ],
        [
            "time with any missing, a year",
            f"{format_time(expected.degraded * YEAR, 3)} ({expected.degraded:.2g} of it)",
        ],
        ["time with more missing than survived", f"{format_time(expected.beyond * YEAR, 3)} ({expected.beyond:.2g})"],
    ]


def survival_record(plan: Plan) -> dict[str, Any] | None:
    """The same as JSON; ``None`` where nobody asks."""
    survive, found = plan.question.sizing.survive, plan.best.survival
    if survive is None or found is None:
        return None
    option, free = plan.option, plan.failure_free
    expected = survive.availability(option.deployment, option.replicas)
    return {
        "asked": "node" if survive.replicas is None else survive.replicas,
        "replicas_lost": found.lost,
        "restart_s": found.restart,
        "failures_simulated": found.failures,
        "requests_judged": found.judged,
        "kept": [
            {
                "name": one.name or None,
                "percentile": one.slo.percentile,
                **{f"{name}_s": value if isfinite(value) else None for name, value in one.achieved.items()},
            }
            for one in found.kept
        ],
        "began_anew_each": found.anew / found.failures,
        "began_anew_late": found.late / found.anew if found.anew else None,
        "failure_free": None
        if free is None
        else {
            "deployment": free.option.deployment.describe(),
            "replicas": free.option.replicas,
            "devices": free.option.devices,
            "cost": free.option.cost,
        },
        "mtbf_s": survive.mtbf,
        "expected": None
        if expected is None
        else {
            "failures_per_year": expected.failures,
            "degraded_share": expected.degraded,
            "beyond_share": expected.beyond,
        },
    }
