"""``inferplan learn``: what a server recorded of its steps, as constants for the other commands."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import time
from typing import TYPE_CHECKING, Any

import click

from inferplan.catalog.assemble import Request, assemble
from inferplan.cli.declared import options_of, with_options
from inferplan.cli.layers import Layered
from inferplan.cli.numbers import Count
from inferplan.cli.options import API_KEY, deployment_of, key_asked, report_options, typed, watching, without, writable
from inferplan.errors import InfeasibleError, ToleranceError, UsageError
from inferplan.extras import require
from inferplan.fields import question_of
from inferplan.files import save
from inferplan.learning.factors import FACTORS, USUAL
from inferplan.measuring.prometheus_api import is_prometheus, matchers
from inferplan.measuring.scrapes import ScrapesAsked
from inferplan.table import Report

if TYPE_CHECKING:
    from inferplan.measuring.address import Key


def _factors(ctx: click.Context, _: click.Parameter, given: str | None) -> tuple[str, ...]:
    """Callback of ``--factors``. Raises ``UsageError`` for a name that is none."""
    names = USUAL if given is None else tuple(dict.fromkeys(one.strip() for one in given.split(",")))
    for name in names:
        if name not in FACTORS:
            raise UsageError(f"--factors: {name or 'nothing'} is no factor", hint=", ".join(FACTORS))
    return names


@click.command("learn", cls=Layered)
@click.argument("files", nargs=-1, required=True, metavar="FILE...|URL")
@deployment_of(click.option("--model", required=True, help="As estimate takes it: a name, or a path."))
@click.option(
    "--out",
    "learned_file",
    metavar="FILE.yaml",
    callback=writable,
    help="File to write, for --calibration of other commands.",
)
@click.option(
    "--factors",
    metavar="NAMES",
    callback=_factors,
    help=f"Factors to fit, of {', '.join(FACTORS)} [{','.join(USUAL)}].",
)
@click.option(
    "--context", type=Count(), metavar="TOKENS",
    help="Mean context of a decoding sequence, where a record does not state it.",
)  # fmt: skip
@with_options(options_of(ScrapesAsked))
@click.option(
    "--record", metavar="FILE", callback=writable, help="With a URL: file for what was read, to give to learn again."
)
@click.option(
    "--labels", metavar="NAME=VALUE,...", callback=lambda _, __, given: matchers(given),
    help="With a Prometheus URL: labels of the servers to learn from, as job=vllm.",
)  # fmt: skip
@with_options([API_KEY])
@report_options
def learn_command(
    files: tuple[str, ...], request: Request, learned_file: str | None, factors: tuple[str, ...], context: int | None,
    **values: Any,
) -> Report:  # fmt: skip
    """Read what a server recorded of its steps, and correct the model's step by it.

    FILE is iteration records (forward-pass metrics as JSON lines), a log of SGLang, vLLM, TensorRT-LLM or llama.cpp,
    scrapes of /metrics, or what a Prometheus server kept of them. A URL is read for ten minutes; no request is sent.
    One that ends in /api/v1/query is a Prometheus server, asked for its last ten. A few physical factors are fitted
    to the prediction of the same steps: the host's seconds, prompts, what decodes read, experts. The last fifth in
    time is held out, and both errors are reported. Factors that the record cannot tell apart are refused, with the
    load that could. Every command takes the file of --out as --calibration. No text of users is read.

    Example: inferplan learn steps.jsonl --model llama-3.1-8b --gpu h100-sxm --engine vllm --quant bf16 --out own.yaml
    """
    from inferplan.learning.document import learned_yaml
    from inferplan.learning.fit import learn
    from inferplan.learning.records import read_records
    from inferplan.reports.learning import learned_report

    deployment = assemble(request)
    urls = [one for one in files if one.startswith(("http://", "https://"))]
    scraped = _scraped(urls, values)
    records = read_records([one for one in files if one not in urls], deployment, context, scraped)
    try:
        found = learn(deployment, [one.observed for one in records], factors)
    except (InfeasibleError, ToleranceError) as error:
        passed = [f"passed over: {one.reasons} ({one.kind})" for one in records if one.passed_over]
        raise type(error)(error.what, "; ".join(filter(None, (error.because, *passed))), error.hint) from None
    if learned_file is not None:
        save(learned_file, learned_yaml(found, files))
    return learned_report(found, records, learned_file)


def _scraped(urls: Sequence[str], values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The addresses with what their servers said of themselves, one scrape after another."""
    if not urls:
        if given := typed(["every", "for", "record", "labels", "api_key_env"]):
            raise UsageError(f"{', '.join(given)} without an address", hint="inferplan learn http://localhost:8000 ...")
        return []
    require("measure", "learn from an address")
    asked = question_of(ScrapesAsked, values)
    if len(urls) > 1 and values["record"] is not None:
        raise UsageError("--record takes one server", because=", ".join(urls), hint="one address for each file")
    kept = [url for url in urls if is_prometheus(url)]
    live = [url for url in urls if url not in kept]
    for name, needs in (("labels", kept), ("every", live)):
        if typed([name]) and not needs:
            what = "a server's own address" if name == "labels" else "a Prometheus server, which has scraped already"
            raise UsageError(f"--{name} with {what}", hint=f"leave --{name} out, or give the other address")
    texts = _kept(kept, asked, values) if kept else []
    texts += _live(live, asked, key_asked(values["api_key_env"])) if live else []
    if values["record"] is not None:
        save(values["record"], texts[0][1])
    return texts


def _kept(urls: Sequence[str], asked: ScrapesAsked, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What Prometheus servers kept until now. A key is sent where it was named for them."""
    from inferplan.measuring.address import Key
    from inferplan.measuring.prometheus_api import Kept, ask_kept

    key, texts = key_asked(values["api_key_env"]) if typed(["api_key_env"]) else Key(), []
    for url in urls:
        one = Kept(url=url, lasting=asked.lasting, until=time(), labels=values["labels"])
        with watching() as watch:
            text, warned = asyncio.run(ask_kept(one, key, watch))
        for said in warned:
            click.echo(f"note: {one.root} warns: {said}", err=True)
        texts.append((one.root, text))
    return texts


def _live(urls: Sequence[str], asked: ScrapesAsked, key: Key) -> list[tuple[str, str]]:
    """What servers say of themselves from now on."""
    from inferplan.measuring.address import address_of
    from inferplan.measuring.scrapes import Scraped, scrape

    found = [Scraped(address=address_of(url)) for url in urls]
    with watching() as watch:
        try:
            asyncio.run(scrape(found, key, asked, watch))
        except KeyboardInterrupt:  # what was read until then is read
            if not all(one.texts for one in found):
                raise
    for one in found:
        if one.gone:
            click.echo(f"note: {one.address.root}: {one.gone}", err=True)
    return [(one.address.root, "\n".join(one.texts)) for one in found]


without(learn_command, "anchor", "ideal")
