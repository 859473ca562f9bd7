"""``inferplan learn``: what a server recorded of its steps, as constants for the other commands."""

from __future__ import annotations

import click

from inferplan.catalog.assemble import Request, assemble
from inferplan.cli.layers import Layered
from inferplan.cli.numbers import Count
from inferplan.cli.options import deployment_of, report_options, without, writable
from inferplan.errors import InfeasibleError, ToleranceError, UsageError
from inferplan.files import save
from inferplan.learning.factors import FACTORS, USUAL
from inferplan.table import Report


def _factors(ctx: click.Context, _: click.Parameter, given: str | None) -> tuple[str, ...]:
    """Callback of ``--factors``. Raises ``UsageError`` for a name that is none."""
    names = USUAL if given is None else tuple(dict.fromkeys(one.strip() for one in given.split(",")))
    for name in names:
        if name not in FACTORS:
            raise UsageError(f"--factors: {name or 'nothing'} is no factor", hint=", ".join(FACTORS))
    return names


@click.command("learn", cls=Layered)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
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
@report_options
def learn_command(
    files: tuple[str, ...], request: Request, learned_file: str | None, factors: tuple[str, ...], context: int | None
) -> Report:
    """Read what a server recorded of its steps, and correct the model's step by it.

    FILE is iteration records (forward-pass metrics as JSON lines), a log of SGLang, vLLM or TensorRT-LLM, or scrapes
    of /metrics. A few physical factors are fitted to the prediction of the same steps: the host's seconds, prompts,
    what decodes read, experts. The last fifth in time is held out, and both errors are reported. Factors that the
    record cannot tell apart are refused, with the load that could. Every command takes the file of --out as
    --calibration. No text of users is read.

    Example: inferplan learn steps.jsonl --model llama-3.1-8b --gpu h100-sxm --engine vllm --quant bf16 --out own.yaml
    """
    from inferplan.learning.document import learned_yaml
    from inferplan.learning.fit import learn
    from inferplan.learning.records import read_records
    from inferplan.reports.learning import learned_report

    deployment = assemble(request)
    records = read_records(files, deployment, context)
    try:
        found = learn(deployment, [one.observed for one in records], factors)
    except (InfeasibleError, ToleranceError) as error:
        passed = [f"passed over: {one.reasons} ({one.kind})" for one in records if one.passed_over]
        raise type(error)(error.what, "; ".join(filter(None, (error.because, *passed))), error.hint) from None
    if learned_file is not None:
        save(learned_file, learned_yaml(found, files))
    return learned_report(found, records, learned_file)


without(learn_command, "calibration", "anchor", "ideal")
