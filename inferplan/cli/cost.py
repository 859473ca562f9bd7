"""``inferplan cost`` and ``inferplan prices``."""

from __future__ import annotations

from typing import Any

import click

from inferplan.answers.cost import OUTPUT_TO_INPUT, Cost, Energy, Rates, power_of
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load, load_hardware, names
from inferplan.catalog.price_lists import PriceBook, PriceList
from inferplan.cli.options import deployment_options, load_options, report_options
from inferplan.cli.price_options import parse_api_price, price_options
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.reports.cost import cost_record, cost_table, energy_record, energy_table
from inferplan.reports.estimate import basis_note, deployment_record
from inferplan.table import Report, Table


@click.command("cost")
@deployment_options
@load_options
@price_options
@click.option("--utilisation", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="Share of time busy [1].")
@click.option(
    "--ratio", type=float, default=OUTPUT_TO_INPUT, help="Price of an output token over that of an input token [4]."
)
@click.option("--api-price", metavar="IN/OUT", help="An API's price of a million input/output tokens, for break-even.")
@click.option("--user-requests", type=float, help="Requests of one user a day, for the price of a user-month.")
@click.option("--power-share", type=float, default=1.0, help="Share of TDP drawn on average [1].")
@click.option("--pue", type=float, default=1.0, help="Power of the facility over that of the GPUs [1: GPUs only].")
@click.option("--grid", type=float, metavar="G/KWH", help="Grams of CO2 a kWh of your grid.")
@report_options
def cost_command(request: Request, load: StaticLoad, prices: PriceBook, **values: Any) -> Report:
    """What a static batch costs, in money and energy: for an hour, a token, a request, a user.

    The batch runs again and again for --utilisation of the time; the devices are paid for all of it. Plan sizes a
    service under live traffic.

    Example: inferplan cost llama-3.1-8b --gpu h100-sxm --batch 64 --prompt 1024 --output 256 --price h100-sxm=2.49
    """
    deployment = assemble(request)
    result = estimate(deployment, load)
    served = float(result.request_rate) * values["utilisation"]
    rates = Rates(requests=served, prompt=float(load.prompt), output=float(load.output))
    tag = prices.require(deployment.hardware.name)
    cost = Cost(tag=tag, devices=deployment.parallel.devices, rates=rates, ratio=values["ratio"])
    energy = Energy(
        power=power_of(deployment.hardware),
        devices=deployment.parallel.devices,
        rates=rates,
        share=values["power_share"],
        pue=values["pue"],
        grid=values["grid"],
    )
    api = parse_api_price(values["api_price"])
    record = {
        **deployment_record(deployment),
        "requests_per_s": rates.requests,
        "utilisation": values["utilisation"],
        "output_tokens_per_s": rates.generated,
        "cost": cost_record(cost, api, values["user_requests"]),
        "energy": energy_record(energy),
    }
    title = f"{deployment.describe()}: batch {load.batch:.0f}, {load.prompt:.0f} tokens in, {load.output:.0f} out"
    served_table = Table(
        title=title,
        columns=["", "value"],
        rows=[
            ["requests a second", f"{rates.requests:,.2f}"],
            ["output tokens a second", f"{rates.generated:,.0f}"],
            ["busy", f"{values['utilisation']:.0%} of the time"],
        ],
        right=frozenset({"value"}),
    )
    return Report(
        record=record,
        tables=[served_table, cost_table(cost, api, values["user_requests"]), energy_table(energy)],
        notes=[basis_note(result)],
    )


@click.command("prices")
@click.argument("gpu", required=False)
@report_options
def prices_command(gpu: str | None) -> Report:
    """The prices on file, with their dates and sources; of one GPU when it is named."""
    wanted = load_hardware(gpu).name if gpu else None
    rows = []
    for name in names("prices"):
        listing = load("prices", name, PriceList)
        for price in listing.prices:
            if wanted in (None, price.gpu):
                rows.append(
                    {
                        "gpu": price.gpu,
                        "per_hour": price.per_hour,
                        "currency": listing.currency,
                        "term": price.term,
                        "list": name,
                        "date": str(price.date or listing.date),
                        "confidence": listing.confidence,
                        "note": price.note,
                        "source": listing.source,
                    }
                )
    rows.sort(key=lambda row: (str(row["gpu"]), row["per_hour"]))
    shown = ["gpu", "per_hour", "currency", "term", "list", "date", "confidence", "note"]
    table = Table(
        title=f"{len(rows)} prices of one device hour" + (f": {wanted}" if wanted else ""),
        columns=shown,
        rows=[[f"{row[key]:.3f}" if key == "per_hour" else str(row[key]) for key in shown] for row in rows],
        right=frozenset({"per_hour"}),
    )
    note = "prices move within weeks; state your own with --price gpu=2.49"
    return Report(record={"prices": rows}, tables=[table], notes=[note], rows=rows)
