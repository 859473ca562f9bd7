"""``inferplan fit``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from inferplan.answers.fit import FitAsked, fit_everywhere, fit_on
from inferplan.cli.lora_options import lora_values, slot_options
from inferplan.cli.offload_options import add_offload_options, offload_asked
from inferplan.cli.options import USUAL, Count, engine_option, report_options, usual_engine
from inferplan.cli.price_options import price_options
from inferplan.cli.technique_options import quantity
from inferplan.reports.fit import memory_report, options_report
from inferplan.table import Report
from inferplan.traffic.conversations import parse_think_time


@click.command("fit")
@click.argument("model")
@click.option("--gpu", help="One accelerator: its whole memory picture. Without it, every accelerator on file.")
@click.option("--quant", help="Formats [native; without --gpu also fp8 and int4].")
@click.option("--tp", type=Count(), help="Tensor parallelism [the fewest GPUs that fit].")
@click.option("--context", type=Count(), help="Tokens of a request, prompt and output [8192].")
@click.option(
    *("--users", "--concurrency", "users"),
    type=Count(),
    default=1,
    show_default=True,
    help="Users, each with one request at a time. Without --think-time all requests must fit at once.",
)
@click.option("--think-time", metavar="TIME", help="From an answer to the user's next request, such as 60s. [0 s]")
@click.option("--answer-time", metavar="TIME", help="How long an answer takes; needed with --think-time.")
@click.option("--most", type=Count(), default=8, show_default=True, help="Largest number of GPUs to try.")
@engine_option("Engine and version: vllm, vllm@0.20, sglang, llama.cpp, none.", show_default=USUAL)
@click.option(
    "--memory",
    metavar="SIZE",
    help="With --gpu: usable memory of one device, such as 64GB. Without: GPUs that together have no more than that.",
)
@slot_options
@add_offload_options
@price_options
@report_options
def fit_command(gpu: str | None, **values: Any) -> Report:
    """Which GPUs hold MODEL, how many, in which format, with what context and how many requests.

    Memory only, so no GPU is needed. The cheapest of each format and the one with the most requests for the money come
    first, then a line for each GPU, the cheapest first. With --gpu the answer is one screen, with the two lines that
    vLLM would log. Where a price is on file, it is that of the instances that hold one replica.

    Example: inferplan fit llama-3.1-70b --context 32k --users 8
    """
    values["offload"] = offload_asked(values)
    if not gpu:
        return options_report(fit_everywhere(values["model"], _asked(values), values["prices"]))
    values["engine"] = usual_engine(values | {"gpu": gpu})
    return memory_report(fit_on(values["model"], gpu, _asked(values), values["prices"]))


def _asked(values: dict[str, Any]) -> FitAsked:
    values["lora"] = lora_values({"active_loras": None, **values})
    think = values["think_time"]
    values["think_time"] = parse_think_time(think).mean if think else None
    values["answer_time"] = quantity(values["answer_time"], "seconds", "--answer-time")
    return FitAsked(**{field.name: values[field.name] for field in fields(FitAsked)})
