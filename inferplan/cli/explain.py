"""``inferplan explain``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from inferplan.answers.drafting import DraftsAsked
from inferplan.answers.explain import Explainer
from inferplan.catalog.assemble import Request
from inferplan.cli.declared import asks, gets, options_of, techniques_of, with_options
from inferplan.cli.layers import Layered
from inferplan.cli.options import asks_of_request, deployment_options, report_options
from inferplan.cli.unheard import unheard
from inferplan.estimate.load import SampledBatch
from inferplan.reports.explain import explanation_report
from inferplan.serving.techniques.applied import Techniques
from inferplan.table import Report, Table


@click.command("explain", cls=Layered)
@click.argument("number")
@deployment_options
@asks_of_request("offload")
@gets(batch=SampledBatch)
@asks_of_request("media")
@asks_of_request("lora")
@asks(DraftsAsked)
@with_options(options_of(Techniques, "hit_rate", "host"))
@with_options(options_of(Techniques, "chunk"))
@asks_of_request("host", "power_cap", "sampling")
@report_options
def explain_command(number: str, request: Request, batch: SampledBatch, **serving: Any) -> Report:
    """How NUMBER of an estimate of MODEL comes about: formula, inputs, YAML lines, sources, page.

    NUMBER is ttft (of the batch alone), ttft_at_server (of one request on an idle server), tpot, e2el,
    output_tokens_per_s, ridge, cold_start (bytes read), max_batch, max_context, memory.weights, memory.kv,
    memory.activations, memory.reserve, memory.total, energy.prefill, energy.decode, energy.request, watts.prefill,
    watts.decode, prefill.PART or decode.PART with PART one of time, flop, bytes, intensity, mfu, mbu or an operator
    such as ffn.down; `list` lists them all. With --draft and similar options, the numbers are those of the batch with
    them.

    Example: inferplan explain decode.ffn.down llama-3.1-8b --gpu h100-sxm --batch 8
    """
    explainer = Explainer(request=request, load=batch.load, techniques=techniques_of(serving, request))
    if number == "list":
        names = explainer.names()
        table = Table(title="numbers that can be explained", columns=["number"], rows=[[name] for name in names])
        return Report(record={"numbers": names}, tables=[table])
    report = explanation_report(explainer.explain(number))
    vain = unheard(report.record)
    said = f"{number} is the same without {', '.join(vain)}"
    return replace(report, notes=[*report.notes, *([said] if vain else [])])
