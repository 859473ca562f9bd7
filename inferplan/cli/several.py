"""``inferplan several``."""

from __future__ import annotations

from typing import Any

import click

from inferplan.catalog.price_lists import PricesAsked
from inferplan.catalog.services import load_service
from inferplan.cli.declared import gets, options_of, with_options
from inferplan.cli.layers import Layered
from inferplan.cli.options import counting, report_options
from inferplan.extras import require
from inferplan.fields import option_values
from inferplan.planning.machines import Stocks
from inferplan.planning.several import SeveralAsked, members_of, plan_several
from inferplan.reports.several import several_report
from inferplan.steps import Steps
from inferplan.table import Report


@click.command("several", cls=Layered)
@click.argument("service", metavar="FILE")
@with_options(options_of(SeveralAsked))
@gets(stocks=Stocks)
@gets(prices=PricesAsked)
@report_options
def several_command(service: str, stocks: Stocks, prices: PricesAsked, **values: Any) -> Report:
    """Several models on one fleet: replicas of each, side by side or one after another (a cascade, a router).

    FILE names the models: where each runs, its load (a rate, or a share of another model's answers), its limits. A
    model with a number of replicas is simulated with that number; for the others the smallest number is found. All
    replicas are packed on whole machines by an integer programme (HiGHS, extra "fleet"). Without --own all GPUs are
    rented.

    Example: inferplan several cascade
    """
    require("fleet", "an integer programme")
    asked = SeveralAsked(
        members=members_of(load_service(service)),
        prices=prices.book,
        kinds=stocks.kinds,
        own_price=stocks.own_price(prices.book),
        **option_values(SeveralAsked, values),
    )
    asked.prices.check(member.gpu for member in asked.members)
    with counting("steps") as progress:
        return several_report(plan_several(asked, Steps(progress)))
