"""``inferplan estimate``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from inferplan.answers.drafting import DraftsAsked
from inferplan.catalog.assemble import Request, assemble, assembled
from inferplan.catalog.energy import EnergyAsked
from inferplan.catalog.host_times import HostTimes
from inferplan.cli.declared import (
    asks,
    gets,
    options_of,
    quantity,
    techniques_of,
    with_options,
)
from inferplan.cli.layers import Layered
from inferplan.cli.numbers import Count
from inferplan.cli.options import asks_of_request, deployment_options, report_options
from inferplan.cli.unheard import asked_again, unheard
from inferplan.errors import UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import SampledBatch
from inferplan.estimate.run import carrying, estimate, estimate_unchecked, without_cadence
from inferplan.estimate.structured import Structured, StructuredEstimate, mask_filling
from inferplan.features import require_together, those
from inferplan.fields import option_fields, question_if_asked
from inferplan.reports.estimate import estimate_report, pruning_table
from inferplan.serving.techniques.applied import ServedEstimate, Techniques, served_estimate
from inferplan.table import Report
from inferplan.traffic.people import IN_FLIGHT
from inferplan.traffic.thoughts import ThoughtsAsked


def with_energy(report: Report, result: Estimate, asked: EnergyAsked) -> Report:
    """The report with the joules of its phases."""
    from inferplan.answers.energy import StaticEnergy
    from inferplan.reports.energy import WATTS, energy_notes, energy_record, energy_table

    found = StaticEnergy(estimate=result, asked=asked)
    rests_on = report.record["rests_on"] | {"energy": WATTS}
    record = {**report.record, "rests_on": rests_on, "energy": energy_record(found)}
    tables = [*report.tables[:1], energy_table(found), *report.tables[1:]]
    return replace(report, record=record, tables=tables, notes=[*report.notes, *energy_notes(found)])


@click.command("estimate", cls=Layered)
@deployment_options
@asks_of_request("offload")
@gets(batch=SampledBatch)
@asks(ThoughtsAsked)
@asks(Structured)
@click.option("--beams", type=Count(2), help="Beam search of this width: hypotheses per answer (docs/beams.md).")
@click.option(
    "--grammar-compile", metavar="TIME", help="Time that the first request of a schema waits for its grammar."
)
@asks_of_request("media")
@asks_of_request("lora")
@asks(DraftsAsked)
@with_options(options_of(Techniques, "hit_rate", "host"))
@click.option(
    *(*IN_FLIGHT, "concurrency"),
    type=Count(),
    help="Show the steady state of this many requests in flight first. Also --users or --concurrency.",
)
@with_options(options_of(Techniques, "chunk"))
@asks_of_request("host", "power_cap", "sampling")
@gets(energy=EnergyAsked)
@report_options
def estimate_command(request: Request, batch: SampledBatch, energy: EnergyAsked | None, **serving: Any) -> Report:
    """Memory and times of one static batch on a deployment.

    MODEL is a name (inferplan models), a path to a YAML or a Hugging Face config. The batch is prefilled together,
    then decoded together: the TTFT of the batch alone is the prefill, TPOT the mean of the decode steps, total
    latency TTFT + (output - 1) TPOT. The TTFT at the server is that of one request on an idle server: front end,
    launches and scheduling are added. Drafts, a hit rate, chunks and KV offload change all figures; the column
    "without" shows the figures without them. --in-flight is answered first; the batch alone stands below.

    Example: inferplan estimate llama-3.1-8b --gpu h100-sxm --batch 8 --prompt 1024 --output 256
    """
    load, thoughts, lengths = batch.load, question_if_asked(ThoughtsAsked, serving), None
    if thoughts is not None:
        from inferplan.traffic.reasoning import outputs_of
        from inferplan.traffic.requests import Lengths

        lengths = outputs_of(thoughts, Lengths(mean=float(load.output)))
        load = replace(load, output=load.output + lengths.mean_before, before=lengths.mean_before)
    deployment = assembled(request, held=(float(load.batch), float(load.prompt + load.output)))
    users, techniques = serving.pop("concurrency"), techniques_of(serving, request)
    asked = those(
        users=users is not None,
        energy=energy is not None,
        structured=serving["structured_share"] is not None,
        beams=serving["beams"] is not None,
    )
    require_together("estimate", deployment.features | load.features | techniques.features | asked)
    deployment, load = carrying(deployment, load)
    batch_alone = deployment if users is None else without_cadence(deployment)
    result = served_estimate(batch_alone, load, techniques) if techniques.any else estimate(batch_alone, load)
    other = _masked_or_searched(result, serving)
    if other is not None:
        return _heard(other, request)
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
        from inferplan.reports.techniques import with_steady

        served = ServedEstimate(deployment=deployment, load=load, techniques=techniques)
        report = with_steady(report, result, served, users)
    if request.prune:
        whole = estimate_unchecked(replace(assemble(replace(request, prune=None)), media=deployment.media), load)
        report = replace(report, tables=[*report.tables, pruning_table(result, whole)])
    return _heard(report, request)


def _heard(report: Report, request: Request) -> Report:
    """The report with notes on options that changed nothing: a token budget, where no request at a server is priced
    that it would cut, and the seconds of a host that no figure waits for."""
    notes = [*report.notes]
    if request.flags.token_budget is not None and report.record.get("ttft_at_server_s") is None:
        notes.append("--max-num-batched-tokens changes memory at most: no prompt here is long enough to be cut")
    if request.host.option or asked_again():
        shown = [[*map(tuple, table.rows)] for table in report.tables]
        notes += [f"{option} changes no figure here" for option in unheard(shown, _OF_THE_HOST)]
    return replace(report, notes=notes)


_OF_THE_HOST = frozenset(one.name for one in option_fields(HostTimes).values())


def _masked_or_searched(result: Estimate, values: dict[str, Any]) -> Report | None:
    """The report of structured decoding or of beams, where either is asked for: they change what a step is.

    Raises ``UsageError`` for a grammar of nobody.
    """
    beams, structured = values["beams"], question_if_asked(Structured, values)
    compiling = quantity(values["grammar_compile"], "seconds", "--grammar-compile")
    if structured is not None:
        from inferplan.reports.structured import masked_report

        found = StructuredEstimate(deployment=result.deployment, load=result.load, structured=structured)
        if compiling is None and structured.library is not None:
            compiling = structured.published(mask_filling(result.deployment.engine)).first
        return masked_report(found, compiling)
    if compiling is not None:
        raise UsageError(
            "--grammar-compile needs structured decoding, and no request is structured",
            hint="--structured-share 0.3 --mask-time 40us --host-cores 32 as well, or leave it out",
        )
    if beams is None:
        return None
    from inferplan.reports.beams import beams_report
    from inferplan.serving.techniques.beams import BeamSearch

    search = BeamSearch(deployment=result.deployment, load=result.load, width=beams)
    estimate(result.deployment, search.inside.load)  # which refuses what does not fit, or shares nothing
    return beams_report(search)
