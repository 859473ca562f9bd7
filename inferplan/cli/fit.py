"""``inferplan fit``."""

from __future__ import annotations

from typing import Any

import click

from inferplan.answers.fit import FitAsked, FitLoad, fit_asked, fit_everywhere, fit_on
from inferplan.answers.fit_models import models_that_fit
from inferplan.answers.fit_owned import fit_owned
from inferplan.catalog.counted import counted
from inferplan.catalog.price_lists import PricesAsked
from inferplan.cli.declared import asks, gets
from inferplan.cli.layers import Layered
from inferplan.cli.options import ENGINES, counting, engine_is_named, engine_option, report_options
from inferplan.errors import UsageError
from inferplan.fields import option_values, question_of
from inferplan.reports.fit import memory_report, options_report
from inferplan.reports.fit_models import models_report
from inferplan.reports.fit_owned import owned_report
from inferplan.table import Report


@click.command("fit", cls=Layered)
@click.argument("model", required=False)
@click.option(
    "--gpu",
    help="One accelerator: its memory in full; 2x-a6000: what two hold [every accelerator on file].",
)
@click.option(
    "--have",
    metavar="GPUS",
    help="GPUs that you have: 2x-a6000, or 2x24GB for every GPU on file with that memory.",
)
@engine_option(ENGINES)
@asks(FitLoad, FitAsked)
@gets(prices=PricesAsked)
@report_options
def fit_command(gpu: str | None, have: str | None, **values: Any) -> Report:
    """Which GPUs hold MODEL, in which format, with what context and how many requests; or which models run on GPUs.

    Memory is counted. First come the cheapest GPU per format and the one with the most requests for the money, then
    one line per GPU, the cheapest first. With --gpu the answer is one screen, with the two lines that vLLM would log.
    With a number of GPUs (--gpu 2x-a6000, --have 2x24GB) the answer is what they hold together, by format, with the
    predicted time per token. Prices are for the instances that hold one replica. Without MODEL, --have says which
    models on file run there.

    Example: inferplan fit llama-3.1-70b --context 32k --in-flight 8
    """
    engine = values["engine"] if engine_is_named() else ""
    asked = fit_asked(question_of(FitLoad, values), **option_values(FitAsked, values), engine=engine)
    model, prices = values["model"], values["prices"].book
    if gpu and have:
        raise UsageError("--gpu and --have both name GPUs", hint="leave one of them out")
    if model is None:
        if have is None and gpu is None:
            context = click.get_current_context()
            said = "Or which models run on your GPUs: --have 2x24GB"
            raise click.MissingParameter(said, context, context.command.params[0], "'MODEL'", "argument")
        return models_report(models_that_fit(have or f"{gpu}", asked, prices))
    have = have or (gpu if gpu and counted(gpu).number is not None else None)
    if have is not None:
        return owned_report(fit_owned(model, have, asked, prices))
    if not gpu:
        return options_report(fit_everywhere(model, asked, prices, lambda total: counting("GPUs and formats", total)))
    return memory_report(fit_on(model, gpu, asked, prices))
