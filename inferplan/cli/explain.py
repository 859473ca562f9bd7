"""``inferplan explain``."""

from __future__ import annotations

from typing import Any

import click

from inferplan.answers.explain import Explainer, Explanation
from inferplan.catalog.assemble import Request
from inferplan.cli.media_options import media_options
from inferplan.cli.options import Count, deployment_options, load_options, report_options
from inferplan.cli.technique_options import technique_options, techniques_of
from inferplan.estimate.load import StaticLoad
from inferplan.table import Report, Table


@click.command("explain")
@click.argument("number")
@deployment_options
@load_options
@media_options
@technique_options
@click.option("--chunk", type=Count(), help="Compute the prompt in chunks of this many tokens.")
@report_options
def explain_command(number: str, request: Request, load: StaticLoad, **serving: Any) -> Report:
    """Where NUMBER of an estimate of MODEL comes from: formula, inputs, YAML lines, sources, page.

    NUMBER is ttft (of the batch alone), ttft_at_server (of one request on an idle server), tpot, e2el,
    output_tokens_per_s, ridge, max_batch, max_context, memory.weights, memory.kv, memory.activations, memory.reserve,
    memory.total, prefill.PART or decode.PART with PART one of time, flop, bytes, intensity, mfu, mbu or an operator
    such as ffn.down; `list` lists them all. With --draft and the others they are those of the batch with them.

    Example: inferplan explain decode.ffn.down llama-3.1-8b --gpu h100-sxm --batch 8
    """
    explainer = Explainer(request=request, load=load, techniques=techniques_of(serving, request))
    if number == "list":
        names = explainer.names()
        table = Table(title="numbers that can be explained", columns=["number"], rows=[[name] for name in names])
        return Report(record={"numbers": names}, tables=[table])
    return explanation_report(explainer.explain(number))


def explanation_report(found: Explanation) -> Report:
    """An explanation for people, and as JSON."""
    facts = [["value", found.shown], ["formula", found.formula], ["numbers", found.substituted], ["page", found.page]]
    tables = [Table(title=found.name, columns=["", ""], rows=facts)]
    if found.parts:
        rows = [[part.name, part.value, part.how] for part in found.parts]
        tables.append(Table(title="made of", columns=["part", "value", "how"], rows=rows))
    if found.inputs:
        rows = [[entry.symbol, entry.value, entry.origin] for entry in found.inputs]
        tables.append(Table(title="inputs", columns=["input", "value", "where"], rows=rows))
    sources = list(dict.fromkeys(entry.source for entry in found.inputs if entry.source))
    record = {
        "number": found.name,
        "value": found.value,
        "unit": found.unit,
        "formula": found.formula,
        "substituted": found.substituted,
        "page": found.page,
        "inputs": [vars(entry) for entry in found.inputs],
        "parts": {part.name: part.value for part in reversed(found.parts)},
        "made_of": [vars(part) for part in found.parts],
    }
    return Report(record=record, tables=tables, notes=[f"source: {source}" for source in sources])
