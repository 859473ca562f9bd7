"""``inferplan estimate``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from inferplan.answers.drafting import DraftsAsked
from inferplan.catalog.assemble import Request, assemble
from inferplan.cli.declared import (
    asks,
    options_of,
    quantity,
    techniques_of,
    with_options,
)
from inferplan.cli.numbers import Count
from inferplan.cli.options import asks_of_request, deployment_options, load_options, report_options
from inferplan.cli.power_options import energy_options
from inferplan.cli.sampling_options import samples_option, searched
from inferplan.cli.structured_options import structured_report
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import carrying, estimate, unchecked
from inferplan.estimate.structured import Structured
from inferplan.features import require_together, those
from inferplan.fields import made_if_asked
from inferplan.reports.estimate import estimate_report, pruning_table
from inferplan.serving.techniques.applied import ServedEstimate, Techniques, served_estimate
from inferplan.table import Report
from inferplan.traffic.reasoning import ThoughtsAsked
from inferplan.traffic.requests import Lengths

if TYPE_CHECKING:
    from inferplan.answers.energy import EnergyAsked


def with_energy(report: Report, result: Estimate, asked: EnergyAsked) -> Report:
    """The report with the joules of its phases."""
    from inferplan.answers.energy import StaticEnergy
    from inferplan.reports.energy import energy_notes, energy_record, energy_table

    found = StaticEnergy(estimate=result, asked=asked)
    record = {**report.record, "energy": energy_record(found)}
    tables = [*report.tables[:1], energy_table(found), *report.tables[1:]]
    return replace(report, record=record, tables=tables, notes=[*report.notes, *energy_notes(found)])


@click.command("estimate")
@deployment_options
@asks_of_request("offload")
@load_options
@samples_option
@asks(ThoughtsAsked)
@asks(Structured)
@click.option("--beams", type=Count(2), help="Beam search of this width: hypotheses of every answer (docs/beams.md).")
@click.option("--grammar-compile", metavar="TIME", help="What the first request of a schema waits for its grammar.")
@asks_of_request("media")
@asks_of_request("lora")
@asks(DraftsAsked)
@with_options(options_of(Techniques, "hit_rate", "host"))
@click.option(
    "--concurrency",
    "--users",
    "concurrency",
    type=Count(),
    help="First the steady state of this many concurrent users.",
)
@with_options(options_of(Techniques, "chunk"))
@asks_of_request("power_cap")
@energy_options
@report_options
def estimate_command(request: Request, load: StaticLoad, energy: EnergyAsked | None, **serving: Any) -> Report:
    """What one static batch costs on a deployment.

    MODEL is a name (inferplan models), a path to a YAML or a Hugging Face config. The batch is prefilled together, then
    decoded together: the TTFT of the batch alone is the prefill, TPOT the mean of the decode steps, total latency
    TTFT + (output - 1) TPOT. The TTFT at the server is that of one request when nobody else is there, with what front
    end, launches and scheduling add. Drafts, a hit rate, chunks and KV offload change all figures; "without" stands
    beside them. --concurrency is answered first; the batch alone stands below.

    Example: inferplan estimate llama-3.1-8b --gpu h100-sxm --batch 8 --prompt 1024 --output 256
    """
    thoughts = made_if_asked(ThoughtsAsked, serving)
    lengths = None if thoughts is None else thoughts.before(Lengths(mean=float(load.output)))
    if lengths is not None:
        load = replace(load, output=load.output + lengths.mean_before, before=lengths.mean_before)
    deployment = assemble(request)
    users, techniques = serving.pop("concurrency"), techniques_of(serving, request)
    asked = those(
        users=users is not None,
        energy=energy is not None,
        structured=serving["structured_share"] is not None,
        beams=serving["beams"] is not None,
    )
    require_together("estimate", deployment.features | load.features | techniques.features | asked)
    deployment, load = carrying(deployment, load)
    result = served_estimate(deployment, load, techniques) if techniques.any else estimate(deployment, load)
    other = _masked_or_searched(result, serving)
    if other is not None:
        return other
    if isinstance(result, ServedEstimate):
        from inferplan.reports.techniques import served_report

        report = served_report(result)
    else:
        report = estimate_report(result)
    if energy is not None:
        report = with_energy(report, result, energy)
    if lengths is not None:
        report = replace(
            report,
            record={**report.record, "reasoning": lengths.describe()},
            notes=[*report.notes, lengths.said()],
        )
    if users:
        from inferplan.reports.techniques import steady_record

        served = ServedEstimate(deployment=deployment, load=load, techniques=techniques)
        state, table = steady_record(served, users)
        report = replace(report, record={**report.record, "steady_state": state}, tables=[table, *report.tables])
    if request.prune:
        whole = unchecked(replace(assemble(replace(request, prune=None)), media=deployment.media), load)
        return replace(report, tables=[*report.tables, pruning_table(result, whole)])
    return report


def _masked_or_searched(result: Estimate, values: dict[str, Any]) -> Report | None:
    """The report of structured decoding or of beams, where either is asked for: they change what a step is."""
    beams, compiling, structured = values["beams"], values["grammar_compile"], made_if_asked(Structured, values)
    if structured is not None or compiling is not None:
        return structured_report(result, structured, quantity(compiling, "seconds", "--grammar-compile"))
    return None if beams is None else searched(result, beams)
