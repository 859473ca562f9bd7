"""``inferplan estimate``."""

from __future__ import annotations

from dataclasses import replace

import click

from inferplan.assemble import Request, assemble
from inferplan.cli.options import deployment_options, load_options, report_options
from inferplan.estimate import Estimate, StaticLoad, estimate
from inferplan.estimate_report import estimate_report, pruning_table
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
    result = estimate(assemble(request), load)
    report = estimate_report(result)
    if request.prune:
        whole = Estimate(deployment=assemble(replace(request, prune=None)), load=load)
        return replace(report, tables=[*report.tables, pruning_table(result, whole)])
    return report
