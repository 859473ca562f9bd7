"""``inferplan cost``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from inferplan.answers.cost import CostAsked, cost_of_batch
from inferplan.catalog.assemble import Request, assembled
from inferplan.catalog.price_lists import PricesAsked
from inferplan.cli.declared import asks, gets
from inferplan.cli.layers import Layered
from inferplan.cli.options import deployment_options, report_options, typed, without
from inferplan.estimate.load import OpenBatch
from inferplan.fields import question_of
from inferplan.reports.cost import batch_cost_report
from inferplan.table import Report


@click.command("cost", cls=Layered)
@deployment_options
@gets(batch=OpenBatch)
@gets(prices=PricesAsked)
@asks(CostAsked)
@report_options
def cost_command(request: Request, batch: OpenBatch, prices: PricesAsked, **values: Any) -> Report:
    """Cost and energy of a static batch: per hour, token, request, user.

    The batch runs back to back for --utilisation of the time; whole instances are paid for all the time. Without
    --batch it is the largest that memory and engine hold, which gives the lowest cost per token, with no limit on
    latency. To size a service under live traffic, use plan.

    Example: inferplan cost llama-3.1-8b --gpu h100-sxm --prompt 1024 --output 256 --price h100-sxm=2.49
    """
    asked = question_of(CostAsked, values)
    held = float(batch.batch or 1), float(batch.load.prompt + batch.load.output)
    found = cost_of_batch(assembled(request, held=held), batch.load, prices.book, asked, batch.batch is None)
    report = batch_cost_report(found)
    notes = [_BUDGET] if request.flags.token_budget is not None else []
    notes += [_BATCH.format(", ".join(bounds))] if batch.batch and (bounds := typed(_BOUNDS)) else []
    return replace(report, notes=[*report.notes, *notes])


_BUDGET = (
    "--max-num-batched-tokens changes only the activation memory, and so the largest batch. A static batch computes "
    "each prompt in one step."
)
_BOUNDS = ("gpu_memory_utilization", "max_num_seqs")
_BATCH = "{} bound the largest batch; --batch states another, so they change nothing here."
without(cost_command, "block_size")  # no figure here is rounded to pages
