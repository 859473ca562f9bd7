"""``inferplan several``."""

from __future__ import annotations

import click

from inferplan.catalog.price_lists import PriceBook
from inferplan.catalog.services import load_service
from inferplan.cli.fleet import stock_kinds
from inferplan.cli.numbers import Fraction, Positive, Whole
from inferplan.cli.options import report_options
from inferplan.cli.plan import simulations_so_far
from inferplan.cli.price_options import price_options
from inferplan.extras import require
from inferplan.planning.fleet import Kind
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
@click.option(
    "--own", multiple=True, metavar="GPU=N", callback=stock_kinds, help="GPUs that you have; again for others."
)
@click.option(
    "--rent",
    multiple=True,
    metavar="GPU[=N]",
    callback=stock_kinds,
    help="GPUs that may be rented beside those, up to a number [without --own, as many as are needed].",
)
@click.option(
    "--own-price",
    type=Positive(0.0),
    default=0.0,
    metavar="PRICE",
    help="What an hour of an owned GPU that works costs more than of one that is idle, such as power [0].",
)
@click.option("--seed", type=Whole(0, 2**31 - 1), default=0, help="Of lengths, arrivals, and who is asked again. [0]")
@price_options
@report_options
def several_command(
    service: str, own: tuple[Kind, ...], rent: tuple[Kind, ...], prices: PriceBook, **values: float
) -> Report:
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
        kinds=(*own, *rent),
        own_price=values["own_price"],
        seed=int(values["seed"]),
    )
    prices.check(member.gpu for member in asked.members)
    with simulations_so_far() as progress:
        return several_report(plan_several(asked, progress))
