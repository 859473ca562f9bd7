"""What a plan survives, as a table and as JSON: replicas lost at a time, what that costs, how often it happens."""

from __future__ import annotations

from math import isfinite
from typing import Any

from inferplan.figures import Figure, finite, labelled_texts, record, text
from inferplan.planning.demand import METRIC_NAMES, percentile_of
from inferplan.planning.option import PlanOption
from inferplan.planning.plan import Plan
from inferplan.planning.redundancy import YEAR, Survive
from inferplan.planning.verify import Kept, Survival
from inferplan.reports.plan_figures import devices, money, shape
from inferplan.table import Table
from inferplan.units import format_time

_DAY = 86400.0


def survival_table(plan: Plan) -> Table:
    """The limits while replicas are missing, beside the plan that would do without failures."""
    rows = [*labelled_texts(_survived(plan)), *labelled_texts(_expected(plan))]
    return Table(title="survival of failures (simulated)", columns=["while replicas are lost", "value"], rows=rows)


def survival_record(plan: Plan) -> dict[str, Any] | None:
    """The same as JSON; ``None`` where nobody asks."""
    return record(_survived(plan)) or None


def _survived(plan: Plan) -> list[Figure]:
    """What is lost, the limits meanwhile, what that costs; nothing where nobody asks."""
    survive, found, option = plan.question.sizing.survive, plan.best.survival, plan.option
    if survive is None or found is None:
        return []
    failures = "1 failure" if found.failures == 1 else f"{found.failures} failures"
    return [
        Figure("asked", "node" if survive.replicas is None else survive.replicas),
        Figure("replicas_lost", found.lost, "lost at a time", text=_lost(survive, found, option)),
        Figure("restart_s", finite(found.restart)),
        Figure("failures_simulated", found.failures),
        Figure("requests_judged", found.judged),
        Figure("kept", [_kept(one) for one in found.kept]),
        *(
            text(
                f"{one.name}{': ' if one.name else ''}{METRIC_NAMES[name]} {percentile_of(one.slo)} meanwhile",
                f"{format_time(one.achieved[name])}, limit {format_time(limit, 3)}",
            )
            for one in found.kept
            for name, limit in one.slo.limits.items()
        ),
        text("judged", f"{found.judged:,} requests that arrive meanwhile, over {failures}"),
        Figure("began_anew_each", found.anew / found.failures, "in flight when they are lost", text=_anew(found)),
        Figure("began_anew_late", found.late / found.anew if found.anew else None),
        *_without_failures(plan),
        Figure("mtbf_s", survive.mtbf),
        Figure("expected", record(_expected(plan)) or None),
    ]


def _kept(one: Kept) -> dict[str, Any]:
    """The latencies of a class, or of all traffic."""
    times = {f"{name}_s": finite(value) for name, value in one.achieved.items()}
    return {"name": one.name or None, "percentile": one.slo.percentile, **times}


def _lost(survive: Survive, found: Survival, option: PlanOption) -> str:
    what = "one node: " if survive.replicas is None else ""
    gpus = found.lost * option.deployment.parallel.ranks
    gone = f"{found.lost} of {option.replicas} replicas ({gpus} GPU{'s' if gpus > 1 else ''})"
    return f"{what}{gone}, {f'back after {format_time(found.restart, 4)}' if isfinite(found.restart) else 'for good'}"


def _anew(found: Survival) -> str:
    each = found.anew / found.failures
    late = f", {found.late / found.anew:.0%} of them over a limit" if found.anew else ""
    return f"{each:,.1f} requests per failure restart{late}"


def _without_failures(plan: Plan) -> list[Figure]:
    """What would do without failures, and what surviving costs more."""
    free, option = None if plan.failure_free is None else plan.failure_free.option, plan.option
    if free is None:
        return [Figure("failure_free", None)]
    row = {
        "deployment": free.deployment.describe(),
        "replicas": free.replicas,
        "devices": free.devices,
        "cost": free.cost,
    }
    figures = [Figure("failure_free", row, "without failures", text=f"{devices(free)}: {shape(free)} at {money(free)}")]
    if option.cost is not None and free.cost:
        more, currency = option.cost - free.cost, option.tariff.currency if option.tariff else ""
        figures.append(text("surviving costs more", f"{more:,.2f} {currency}/h ({more / free.cost:.1%})"))
    return figures


def _expected(plan: Plan) -> list[Figure]:
    """How often that happens; nothing without a mean time between failures."""
    survive, option = plan.question.sizing.survive, plan.option
    expected = None if survive is None else survive.availability(option.deployment, option.replicas)
    if expected is None or survive is None or survive.mtbf is None:
        return []
    what, share = "nodes" if survive.replicas is None else "replicas", expected.degraded
    return [
        Figure(
            "failures_per_year",
            expected.failures,
            f"expected, at {survive.mtbf / _DAY:,.4g} days between failures of a GPU",
            text=f"{expected.failures:,.3g} {what} lost per year",
        ),
        Figure(
            "degraded_share", share, "time with any missing, per year", text=f"{_a_year(share)} ({share:.2g} of it)"
        ),
        Figure(
            "beyond_share",
            expected.beyond,
            "time with more missing than survived",
            text=f"{_a_year(expected.beyond)} ({expected.beyond:.2g})",
        ),
    ]


def _a_year(share: float) -> str:
    """A share of the time in seconds of a year."""
    return format_time(share * YEAR, 3)
