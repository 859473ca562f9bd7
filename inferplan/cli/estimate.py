"""``inferplan estimate``."""

from __future__ import annotations

import click

from inferplan.assemble import Request, assemble
from inferplan.cli.options import deployment_options, load_options, report_options
from inferplan.estimate import StaticLoad, estimate
from inferplan.estimate_report import estimate_report
from inferplan.report import Report


@click.command("estimate")
@deployment_options
@load_options
@report_options
def estimate_command(request: Request, load: StaticLoad) -> Report:
    """What one static batch costs on a deployment.

    MODEL is a name (inferplan models), a path to a YAML or a Hugging Face config. The batch is prefilled together, then
    decoded together: TTFT is the prefill, TPOT the mean of the decode steps, total latency TTFT + (output - 1) TPOT.

    Example: inferplan estimate llama-3.1-8b --gpu h100-sxm --batch 8 --prompt 1024 --output 256
    """
    return estimate_report(estimate(assemble(request), load))
