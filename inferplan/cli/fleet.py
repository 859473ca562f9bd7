"""``inferplan fleet``."""

from __future__ import annotations

from typing import Any

import click

from inferplan.cli.declared import gets, options_of, with_options
from inferplan.cli.layers import Layered
from inferplan.cli.options import counting, report_options, worker_options
from inferplan.cli.plan import question_options_without
from inferplan.errors import UsageError
from inferplan.extras import require
from inferplan.fields import option_values, question_of
from inferplan.planning.fleet import FleetAsked, plan_fleet
from inferplan.planning.machines import Stocks
from inferplan.planning.power import PowerBudget
from inferplan.planning.processes import Jobs
from inferplan.planning.question import Question
from inferplan.reports.fleet import fleet_report
from inferplan.serving.cold_start import StartAsked
from inferplan.steps import Steps
from inferplan.table import Report

_NOT_HERE = (
    *(one.name for kind in (PowerBudget, StartAsked) for one in options_of(kind)),
    *("routing", "users", "trace", "requests", "deadline", "gpu"),
    *("redundant_experts", "two_batch_overlap", "prefill_redundant_experts", "prefill_two_batch_overlap"),
    *("aggregated", "confidence", "miss_cost", "spare", "anchor"),
    *("survive", "restart", "mtbf", "max_cost", "api_price"),
)
"""Options of a plan that a fleet has not: it is of a rate or people, on GPUs that are named, none of which fails."""


def _gpus(values: dict[str, Any]) -> list[str]:
    """Those that may be used. Raises ``UsageError`` without any, and without a load."""
    kinds = FleetAsked(kinds=question_of(Stocks, {"own": values["own"], "rent": values["rent"]}).kinds).kinds
    if all(values[name] is None for name in ("rate", "people", "session_rate")):
        hint = "--session-rate 0.2/s" if values["sessions"] else "--rate 20, in requests/s, or --people 2000"
        raise UsageError("a fleet needs a rate, or people", hint=hint)
    return [kind.gpu for kind in kinds]


@click.command("fleet", cls=Layered)
@question_options_without(*_NOT_HERE, gpus=_gpus)
@gets(stocks=Stocks)
@with_options(options_of(FleetAsked))
@worker_options
@report_options
def fleet_command(question: Question, stocks: Stocks, jobs: Jobs, **values: Any) -> Report:
    """GPUs that are owned and GPUs to rent behind one router: the cheapest mix that carries a rate within the limits.

    The capacity of a replica of each kind is found by simulation, as in plan. How many of each to run is an integer
    programme (HiGHS, extra "fleet") over the stocks and the prices of whole instances. Owned GPUs cost
    nothing extra unless a price is stated. The mix is then simulated, each kind at its share of the load.

    Example: inferplan fleet llama-3.1-70b --rate 20 --workload chat --own a100-80gb-sxm=16 --rent h200-sxm
    """
    asked = FleetAsked(
        kinds=stocks.kinds, own_price=stocks.own_price(question.prices), **option_values(FleetAsked, values)
    )
    require("fleet", "an integer programme")
    with counting("steps") as progress:
        return fleet_report(plan_fleet(question, asked, Steps(progress), jobs))
