"""``inferplan regions``."""

from __future__ import annotations

import click

from inferplan.cli.layers import Layered
from inferplan.cli.options import counting, report_options
from inferplan.extras import require
from inferplan.regions.answer import answer
from inferplan.regions.check import check
from inferplan.regions.reading import load_regions, read_regions
from inferplan.reports.regions import regions_report
from inferplan.steps import Steps
from inferplan.table import Report


@click.command("regions", cls=Layered)
@click.argument("regions", metavar="FILE")
@report_options
def regions_command(regions: str) -> Report:
    """Several regions over a day: GPUs, cost, CO2 and latency by routing, and what the loss of a region takes.

    FILE names the regions with their clocks, users, prices, grids and round trips, and the service that runs in them.
    Routing is to the nearest region, by cost, or by carbon, hour by hour, within the limits on latency (the network
    included) and where data may go. It is solved as an integer programme (HiGHS, extra "fleet"); the busiest hour of
    each region is simulated.

    Example: inferplan regions three
    """
    require("fleet", "an integer programme")
    path, spec = load_regions(regions)
    with counting("steps") as progress:
        steps = Steps(progress)
        read = read_regions(path, spec, steps)
        found = answer(read.question, steps)
    return regions_report(read, found, check(read, found))
