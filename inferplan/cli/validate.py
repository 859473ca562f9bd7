"""``inferplan validate``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from inferplan.catalog.counted import counted
from inferplan.cli.declared import Declared, gets, with_options
from inferplan.cli.layers import Layered
from inferplan.cli.numbers import share
from inferplan.cli.options import BACKEND, picture, report_options, typed, writable
from inferplan.errors import InputFileError, ToleranceError, UsageError
from inferplan.files import save
from inferplan.reports.progress import progress_counter
from inferplan.table import Report
from inferplan.validation.run import Pricing

if TYPE_CHECKING:
    from inferplan.validation.files import Validation

_SUPPLIED = {
    "model": "Model of the rows, if the file does not say: a name, or a path to a YAML or a config.",
    "gpu": "Accelerator.",
    "engine": "Engine and version: vllm, vllm@0.20, sglang, trtllm, atom, llama.cpp.",
    "quant": "Formats as a label: bf16, fp8, fp4, int4, nvfp4, w4a16, native.",
    "weights": "Format of the linear weights.",
    "experts": "Format of the routed experts [as the weights].",
    "kv": "Format of the KV cache [the base format].",
    "tp": "Tensor parallelism.",
    "pp": "Pipeline stages.",
    "ep": "Expert groups.",
    "dp": "Attention data parallelism.",
    "isl": "Prompt tokens.",
    "osl": "Output tokens.",
    "concurrency": "Users in a closed loop.",
    "requests": "Requests in the run.",
    "length-ratio-min": "Lengths are uniform, from this share of the nominal ones up.",
    "max-num-batched-tokens": "Token budget of a step.",
    "max-num-seqs": "Most sequences in a step.",
    "max-model-len": "Longest sequence that the server takes.",
    "memory-fraction": "Share of memory that the engine may use.",
}


_OF_THE_LOAD = frozenset({"isl", "osl", "concurrency", "requests", "length-ratio-min"})


FACTS_OF_DEPLOYMENT = [name for name in _SUPPLIED if name not in _OF_THE_LOAD]
"""Those that say what is deployed."""


def supplied_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the facts that a file may leave out."""
    return _supplied(command, _SUPPLIED)


def deployment_facts(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds those of them that say what is deployed, and not under which load."""
    return _supplied(command, FACTS_OF_DEPLOYMENT)


def _supplied(command: Callable[..., Any], names: Iterable[str]) -> Callable[..., Any]:
    facts = [Declared(f"--{name}", metavar="VALUE", help=_SUPPLIED[name]) for name in names]
    return with_options([*facts, BACKEND])(command)


@click.command("validate", cls=Layered)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@supplied_options
@click.option(
    "--rows", "rows_file", metavar="FILE.csv", callback=writable, help="Write every row with its predictions."
)
@click.option("--show-rows", is_flag=True, help="List every row in the table.")
@click.option("--plot", metavar="FILE", callback=picture, help="Write a scatter plot: PNG, SVG or PDF.")
@click.option(
    "--max-error", metavar="SHARE", help="Exit 6 if the mean error of TPOT or TTFT is above this: 15% or 0.15."
)
@gets(pricing=Pricing)
@report_options
def validate_command(files: tuple[str, ...], pricing: Pricing, **values: Any) -> Report:
    """Predicted against measured, for every row of benchmark FILEs.

    Reads plain CSV, vLLM bench serve, SGLang bench_serving, GuideLLM, AIPerf, genai-perf, InferenceX and llama-bench
    JSON, MLPerf summaries, and start-up logs of vLLM and SGLang (docs/validate.md). The options below fill in facts
    that a file lacks; a row that still lacks one is refused with its reason, never guessed. Suspect rows (hidden
    speculation, cold starts) are scored separately. A plan's JSON is compared with measurements of its service:
    inferplan validate plan.json own.csv, or the copy that inferplan measure plan.json wrote. The exit code is 3 if
    the service does not perform as planned.

    Example: inferplan validate bench.json --gpu h100-sxm --tp 2 --quant fp8 --rows predicted.csv
    """
    if files[0].startswith(("http://", "https://")):
        raise UsageError(
            f"{files[0]} is a server, and validate reads files of its benchmark",
            hint=f"inferplan measure {files[0]} --model MODEL --gpu GPU",
        )
    if files[0].lower().endswith(".json"):
        from inferplan.reports.plan_measured import is_plan

        if is_plan(files[0]):
            return _plan_held_to(files)
    from inferplan.reports.validation import files_report, rows_csv, scatter
    from inferplan.validation.files import validate_files

    supplied, limit = facts_of(values), share("--max-error", values["max_error"])
    found = validate_files(files, supplied, pricing, progress_counter)
    report = files_report(found, each=values["show_rows"])
    if found.logs:
        return report
    if values["rows_file"]:
        save(values["rows_file"], rows_csv(found.scored))
    if values["plot"]:
        from inferplan.reports import plots

        plots.save(scatter(found.scored, found.title), values["plot"])
    return replace(report, ends=lambda: _check(found, limit))


def _plan_held_to(files: tuple[str, ...]) -> Report:
    """A plan beside the measurements of its service: of further files, or of its own."""
    from inferplan.reports.plan_measured import measurements_of, require_as_planned, verdict_report

    if given := typed(without=("files", "style", "report_file")):
        raise UsageError(
            f"{', '.join(given)} does not change the verdict on {files[0]}",
            because="it is a plan, with its own deployment, load and limits",
            hint="leave it out, or inferplan validate with the measured files alone",
        )
    plan, found = measurements_of(files)
    return replace(verdict_report(plan, found), ends=lambda: require_as_planned(plan, found))


def facts_of(values: dict[str, Any], loaded: bool = True) -> dict[str, str]:
    """The facts that :func:`supplied_options` state, taken from ``values``; loaded: those of the load too, else those
    of :func:`deployment_facts`."""
    from inferplan.validation.files import facts

    keys = [name.replace("-", "_") for name in _SUPPLIED if loaded or name not in _OF_THE_LOAD]
    given = {key: values.pop(key, None) for key in keys}
    stated = {name: value for name, value in given.items() if value is not None}
    if (number := counted(stated.get("gpu", "")).number) is not None:
        stated = {"tp": str(number), **stated, "gpu": counted(stated["gpu"]).gpu}
    found = facts(stated)
    backends = values.pop("backend")
    return found | ({"backends": ",".join("=".join(pair) for pair in backends)} if backends else {})


def predict_rows(rows: list[Any], pricing: Any) -> Any:
    """Rows with their predictions; a bar says how far that is."""
    from inferplan.validation.run import price_rows

    with progress_counter("rows", len(rows)) as progress:
        return price_rows(rows, pricing, progress)


def _check(found: Validation, limit: float | None) -> None:
    """Raise as ``Validation.require_answers``, and ``ToleranceError`` when the mean error of TTFT or TPOT is above
    ``limit``.
    """
    from inferplan.reports.validation import clean
    from inferplan.validation.score import score

    found.require_answers()
    if limit is None:
        return
    scores = {metric: score(clean(found.scored), metric) for metric in ("ttft", "tpot")}
    errors = {metric: one.mape for metric, one in scores.items() if one is not None}
    if not errors:
        raise InputFileError("no row could be scored, so --max-error cannot be checked")
    above = {metric: value for metric, value in errors.items() if value > limit}
    if above:
        raise ToleranceError(
            f"mean error above {limit:.1%}",
            because=", ".join(f"{metric.upper()} {value:.1%}" for metric, value in above.items()),
        )
