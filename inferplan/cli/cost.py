"""``inferplan cost`` and ``inferplan prices``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import click

from inferplan.answers.cost import CostAsked, cost_of_batch
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.bills import PRICE_AGE
from inferplan.catalog.files import load_hardware
from inferplan.catalog.price_lists import PriceBook, every_list
from inferplan.cli.declared import asks
from inferplan.cli.options import deployment_options, load_options, report_options, without
from inferplan.cli.price_options import price_options
from inferplan.estimate.load import StaticLoad
from inferplan.fields import made_of
from inferplan.reports.cost import batch_cost_report, price_record
from inferplan.table import Report, Table


@click.command("cost")
@deployment_options
@partial(load_options, batch=None)
@price_options
@asks(CostAsked)
@report_options
def cost_command(request: Request, load: StaticLoad, prices: PriceBook, **values: Any) -> Report:
    """What a static batch costs, in money and energy: for an hour, a token, a request, a user.

    The batch runs again and again for --utilisation of the time; whole instances are paid for all of it. Without
    --batch it is the largest that memory and engine hold: the least a token can cost, with no limit on latency. Plan
    sizes a service under live traffic.

    Example: inferplan cost llama-3.1-8b --gpu h100-sxm --prompt 1024 --output 256 --price h100-sxm=2.49
    """
    asked = made_of(CostAsked, values)
    largest = click.get_current_context().params["batch"] is None
    report = batch_cost_report(cost_of_batch(assemble(request), load, prices, asked, largest))
    return report if request.flags.token_budget is None else replace(report, notes=[*report.notes, _BUDGET])


_BUDGET = (
    "--max-num-batched-tokens changes only the activation memory, and so the largest batch. A static batch computes "
    "each prompt in one step."
)
without(cost_command, "block_size")  # no figure here is rounded to pages


@click.command("prices")
@click.argument("gpu", required=False)
@report_options
def prices_command(gpu: str | None) -> Report:
    """The prices on file, with their dates and sources; of one GPU when it is named."""
    wanted = load_hardware(gpu).name if gpu else None
    rows = [
        {**price_record(offer), "confidence": listing.confidence, "source": listing.source}
        for listing in every_list()
        for offer in listing.offers(wanted)
    ]
    rows.sort(key=lambda row: (row["gpu"], row["per_hour"]))
    table = Table(
        title=f"{len(rows)} prices of an hour" + (f": {wanted}" if wanted else ""),
        columns=[
            "gpu",
            "instance",
            "GPUs",
            "an hour",
            "a GPU",
            "currency",
            "term",
            "list",
            "date",
            "confidence",
            "note",
        ],
        rows=[_price_row(row) for row in rows],
        right=frozenset({"GPUs", "an hour", "a GPU"}),
    )
    notes = [
        "GPUs: of one instance; any: sold one by one; unknown: the source does not say how many are sold together",
        f"prices move within weeks (* marks those older than {PRICE_AGE.days} days); state your own: --price gpu=2.49, "
        "or --price gpu=19.92/8 for an instance of 8",
    ]
    return Report(record={"prices": rows}, tables=[table], notes=notes, rows=rows)


def _price_row(row: dict[str, Any]) -> list[str]:
    term = f"{row['term']}, {row['length']}" if row["length"] else row["term"]
    date = row["date"] + (" *" if row["old"] else "")
    figures = [f"{row[key]:,.3f}" for key in ("per_instance_hour", "per_hour")]
    sold = [row["gpu"], row["instance"] or "", str(row["instance_gpus"])]
    return [*sold, *figures, row["currency"], term, row["list"], date, row["confidence"], row["note"]]
