"""``inferplan horizon``."""

from __future__ import annotations

import click

from inferplan.catalog.price_lists import price_book
from inferplan.cli.declared import gets
from inferplan.cli.layers import Layered
from inferplan.cli.options import counting, picture, report_options, worker_options
from inferplan.extras import require
from inferplan.horizon.answer import plan_months
from inferplan.horizon.capacity import Capacities
from inferplan.horizon.check import CheckAsked, check
from inferplan.horizon.reading import load_horizon, question_of
from inferplan.planning.processes import Jobs
from inferplan.reports import plots
from inferplan.reports.horizon import horizon_picture, horizon_report
from inferplan.steps import Steps
from inferplan.table import Report


@click.command("horizon", cls=Layered)
@click.argument("horizon", metavar="FILE")
@gets(asked=CheckAsked)
@click.option("--plot", metavar="FILE", callback=picture, help="Machines and bills by month as PNG, SVG or PDF.")
@worker_options
@report_options
def horizon_command(horizon: str, asked: CheckAsked | None, plot: str | None, jobs: Jobs) -> Report:
    """Months to come: what to buy, reserve and release, under demand that is not known yet.

    FILE states the demand by model and region in several scenarios, the offers (on-demand, spot, reserved, owned),
    the machines at hand, and limits. The answer comes from a two-stage stochastic programme (HiGHS, extra "fleet"):
    terms are decided now, machines for some hours once the demand is known. It is compared with all on demand, all
    reserved, and the answer to the mean demand.

    Example: inferplan horizon growth
    """
    require("fleet", "a stochastic programme")
    path, spec = load_horizon(horizon)
    with counting("replicas") as progress:
        question = question_of(path, spec, Capacities(price_book(), Steps(progress)))
    answer = plan_months(question, jobs)
    checked = None if asked is None else check(answer, asked)
    if plot is not None:
        plots.save(horizon_picture(answer), plot)
    return horizon_report(answer, path, checked)
