"""``inferplan validate``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from inferplan.cli.options import Count, anchor_option, backend_option, picture, report_options, write_text
from inferplan.errors import InputFileError, ToleranceError, UsageError
from inferplan.table import Report

_SUPPLIED = {
    "model": "Model of the rows, where the file does not say: a name, or a path to a YAML or a config.",
    "gpu": "Accelerator.",
    "engine": "Engine and version: vllm, vllm@0.20, sglang, trtllm, llama.cpp.",
    "quant": "Formats as a label: bf16, fp8, fp4, int4, nvfp4, w4a16, native.",
    "weights": "Format of the linear weights.",
    "experts": "Format of the routed experts [that of the weights].",
    "kv": "Format of the KV cache [the base format].",
    "tp": "Tensor parallelism.",
    "pp": "Pipeline stages.",
    "ep": "Expert groups.",
    "dp": "Attention data parallelism.",
    "isl": "Prompt tokens.",
    "osl": "Output tokens.",
    "concurrency": "Users of a closed loop.",
    "requests": "Requests of the run.",
    "length-ratio-min": "Lengths are uniform from this share of the nominal ones.",
    "max-num-batched-tokens": "Token budget of a step.",
    "max-num-seqs": "Most sequences in a step.",
    "max-model-len": "Longest sequence that the server takes.",
    "memory-fraction": "Share of memory that the engine works with.",
}
_FACTS = {"quant": "precision"}


_OF_THE_LOAD = frozenset({"isl", "osl", "concurrency", "requests", "length-ratio-min"})


def supplied_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the facts that a file may leave out."""
    return _supplied(command, _SUPPLIED)


def deployment_facts(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds those of them that say what is deployed, and not under which load."""
    return _supplied(command, [name for name in _SUPPLIED if name not in _OF_THE_LOAD])


def _supplied(command: Callable[..., Any], names: Iterable[str]) -> Callable[..., Any]:
    command = backend_option()(command)
    for name in reversed(list(names)):
        command = click.option(f"--{name}", metavar="VALUE", help=_SUPPLIED[name])(command)
    return command


@click.command("validate")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@supplied_options
@click.option("--rows", "rows_file", metavar="FILE.csv", help="Write every row with its predictions.")
@click.option("--show-rows", is_flag=True, help="List every row in the table.")
@click.option("--plot", metavar="FILE", callback=picture, help="Write a scatter plot: PNG, SVG or PDF.")
@click.option("--max-error", metavar="SHARE", help="Exit 6 when TPOT's or TTFT's mean error is above: 15% or 0.15.")
@click.option("--calibration", metavar="FILE", help="Fitted constants [those of each row's GPU].")
@anchor_option()
@click.option("--ideal", is_flag=True, help="Price without fitted constants: every efficiency 1, every overhead 0.")
@click.option("--jobs", type=Count(), help="Processes that simulate rows. [all cores]")
@report_options
def validate_command(files: tuple[str, ...], **values: Any) -> Report:
    """Predicted against measured for every row of benchmark FILEs.

    Reads plain CSV, vLLM bench serve, SGLang bench_serving, GuideLLM, AIPerf, genai-perf, InferenceX and llama-bench
    JSON, MLPerf summaries, and start-up logs of vLLM and SGLang (docs/validate.md). The options below fill what a file
    does not record; what is still missing is refused with its reason, never guessed. Suspect rows (hidden speculation,
    cold starts) are scored apart.

    Example: inferplan validate bench.json --gpu h100-sxm --tp 2 --quant fp8 --rows predicted.csv
    """
    supplied = facts_of(values)
    logs = [path for path in files if _is_log(Path(path))]
    if logs:
        if len(logs) < len(files):
            raise UsageError("start-up logs and benchmark files do not mix", hint=f"leave out {', '.join(logs)}")
        return _logs(logs, supplied)
    return _benchmarks(files, supplied, values)


def facts_of(values: dict[str, Any]) -> dict[str, str]:
    """The facts that :func:`supplied_options` or :func:`deployment_facts` state, taken from ``values``."""
    named = {name: values.pop(name.replace("-", "_"), None) for name in _SUPPLIED}
    facts = {_FACTS.get(name, name).replace("-", "_"): value for name, value in named.items() if value is not None}
    backends = values.pop("backend")
    if backends:
        facts["backends"] = ",".join("=".join(pair) for pair in backends)
    if "@" in facts.get("engine", ""):
        facts["engine"], _, facts["engine_version"] = facts["engine"].partition("@")
    return facts


def _is_log(path: Path) -> bool:
    from inferplan.validation.startup_logs import is_startup_log

    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.lstrip()[:1] not in ("{", "[") and is_startup_log(text)


def _logs(files: list[str], supplied: dict[str, str]) -> Report:
    from inferplan.reports.validation import log_report
    from inferplan.validation.startup_logs import compare, read_log

    reports = []
    for path in files:
        run, startup = read_log(Path(path), supplied)
        reports.append(
            log_report(compare(run, startup), f"{path}: memory of {run.model} on {run.gpu} under {run.engine}")
        )
    if len(reports) == 1:
        return reports[0]
    record = {"logs": [{"file": path, **report.record} for path, report in zip(files, reports)]}
    return Report(record=record, tables=[table for report in reports for table in report.tables])


def _benchmarks(files: tuple[str, ...], supplied: dict[str, str], values: dict[str, Any]) -> Report:
    from inferplan.reports.validation import rows_csv, scatter, validation_report
    from inferplan.validation.importers import read_file
    from inferplan.validation.run import Pricing

    limit = _share(values["max_error"])
    rows: list[Any] = []
    tools: list[str] = []
    for path in files:
        tool, found = read_file(Path(path), supplied)
        tools.append(tool)
        rows += found
    pricing = Pricing(
        calibration=values["calibration"], ideal=values["ideal"], processes=values["jobs"], anchor=values["anchor"]
    )
    scored = priced(rows, pricing)
    title = f"{', '.join(files)} ({', '.join(dict.fromkeys(tools))})"
    report = validation_report(scored, title, per_row=values["show_rows"] or len(rows) <= 12)
    if values["rows_file"]:
        write_text(values["rows_file"], rows_csv(scored))
    if values["plot"]:
        from inferplan.reports.plots import save

        save(scatter(scored, title), values["plot"])
    # checked when the report has been written
    click.get_current_context().call_on_close(lambda: _check(scored, report.record, limit))
    return report


def priced(rows: list[Any], pricing: Any) -> Any:
    """Rows with their predictions; a bar says how far that is."""
    from rich.console import Console
    from rich.progress import Progress

    from inferplan.validation.run import price_rows

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("rows", total=len(rows))
        return price_rows(rows, pricing, lambda done: bar.update(task, completed=done))


def _share(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text.rstrip("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        raise UsageError(f"--max-error {text} is no share", hint="15% or 0.15") from None
    if not value >= 0:
        raise UsageError(f"--max-error {text} must be 0 or more")
    return value


def _check(scored: Any, record: dict[str, Any], limit: float | None) -> None:
    """Raise ``InputFileError`` when no row has a prediction, ``ToleranceError`` when the mean error of TTFT or TPOT is
    above ``limit``.
    """
    if all(one.prediction is None for one in scored):
        raise InputFileError(
            "no row can be priced",
            because=f"{len(scored)} of {len(scored)} are refused: {scored[0].refused}" if scored else "there is none",
            hint="docs/validate.md has the columns; options such as --gpu fill empty cells",
        )
    if limit is None:
        return
    scores: dict[str, Any] = next(iter(record["scores"].values()), {})
    found = {metric: scores[metric]["mape"] for metric in ("ttft", "tpot") if metric in scores}
    if not found:
        raise InputFileError("no row could be scored, so --max-error cannot be checked")
    above = {metric: value for metric, value in found.items() if value > limit}
    if above:
        raise ToleranceError(
            f"mean error above {limit:.1%}",
            because=", ".join(f"{metric.upper()} {value:.1%}" for metric, value in above.items()),
        )
