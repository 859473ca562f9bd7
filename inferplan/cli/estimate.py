"""``inferplan estimate``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from inferplan.catalog.assemble import Request, assemble
from inferplan.cli.options import Count, deployment_options, load_options, report_options
from inferplan.cli.technique_options import host_of, speculation_of, technique_options
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.reports.estimate import estimate_report, pruning_table
from inferplan.table import Report

_SERVING = (
    *("concurrency", "chunk", "draft_model", "draft_tokens", "acceptance", "prefix_hit_rate"),
    *("kv_offload", "offload_bandwidth"),
)
"""Options of which any one asks for what serving does to the batch, if only to be refused."""


@click.command("estimate")
@deployment_options
@load_options
@technique_options
@click.option("--concurrency", type=Count(), help="Also the steady state of this many concurrent users.")
@click.option("--chunk", type=Count(), help="Compute the prompt in chunks of this many tokens.")
@report_options
def estimate_command(request: Request, load: StaticLoad, **serving: Any) -> Report:
    """What one static batch costs on a deployment.

    MODEL is a name (inferplan models), a path to a YAML or a Hugging Face config. The batch is prefilled together, then
    decoded together: TTFT is the prefill, TPOT the mean of the decode steps, total latency TTFT + (output - 1) TPOT.

    Example: inferplan estimate llama-3.1-8b --gpu h100-sxm --batch 8 --prompt 1024 --output 256
    """
    result = estimate(assemble(request), load)
    report = estimate_report(result)
    if any(serving[name] for name in _SERVING):
        report = _with_serving(report, result, request, serving)
    if request.prune:
        whole = Estimate(deployment=assemble(replace(request, prune=None)), load=load)
        return replace(report, tables=[*report.tables, pruning_table(result, whole)])
    return report


def _with_serving(report: Report, result: Estimate, request: Request, serving: dict[str, Any]) -> Report:
    """The report with what serving techniques do to the batch, and with the steady state."""
    from inferplan.reports.techniques import Serving, serving_summary

    asked = Serving(
        speculation=speculation_of(serving, request),
        hit_rate=serving["prefix_hit_rate"],
        chunk=serving["chunk"],
        host=host_of(serving),
        users=serving["concurrency"],
    )
    record, tables = serving_summary(result, asked)
    return replace(report, record={**report.record, **record}, tables=[*report.tables, *tables])
