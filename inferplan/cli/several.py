"""``inferplan several``."""

from __future__ import annotations

from typing import Any

import click

from inferplan.catalog.price_lists import PriceBook
from inferplan.catalog.services import load_service
from inferplan.cli.numbers import Fraction, Whole
from inferplan.cli.options import report_options
from inferplan.cli.plan import simulations_so_far
from inferplan.cli.price_options import price_options
from inferplan.cli.stock_options import stock_of, stock_options
from inferplan.extras import require
from inferplan.planning.several import SeveralAsked, members_of, plan_several
from inferplan.reports.several import several_report
from inferplan.table import Report


@click.command("several")
@click.argument("service", metavar="FILE")
@click.option(
    "--utilisation",
    type=Fraction(),
    default=0.8,
    show_default=True,
    help="Share of what it carries that a replica is given, where replicas are counted.",
)
@stock_options
@click.option("--seed", type=Whole(0, 2**31 - 1), default=0, help="Of lengths, arrivals, and who is asked again. [0]")
@price_options
@report_options
def several_command(service: str, prices: PriceBook, **values: Any) -> Report:
    """Several models on one fleet: replicas of each, side by side or one after another (a cascade, a router).

    FILE names the models: where each runs, what comes to it (a rate, or a share of another one's answers), its limits.
    A model with a number of replicas is simulated with those; for the others the fewest are found. Replicas of all of
    them are packed on machines that are bought whole, by an integer programme (HiGHS, extra "fleet").

    Example: inferplan several cascade
    """
    require("fleet", "an integer programme")
    asked = SeveralAsked(
        members=members_of(load_service(service)),
        prices=prices,
        utilisation=values["utilisation"],
        seed=values["seed"],
        **stock_of(values),
    )
    prices.check(member.gpu for member in asked.members)
    with simulations_so_far() as progress:
        return several_report(plan_several(asked, progress))
