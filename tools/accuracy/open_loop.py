"""Open-loop serving rows: requests that arrive at a rate."""

from __future__ import annotations

from pathlib import Path

from inferplan.validation.importers import read_file
from inferplan.validation.run import Pricing, price_rows
from tools.accuracy.scores import HEADS, markdown, pairs_of, scored_lines
from tools.fitting.serving_host import overloaded


def open_loop_section(path: Path) -> str:
    """Errors of mean TTFT, TPOT and end-to-end latency, over all stages and stage by stage."""
    scored = price_rows(read_file(path, {})[1], Pricing())
    lines, steady = [], []
    for one in scored:
        run, found, measured = one.row.run, one.prediction, one.row.measured
        if run is None or found is None:
            continue
        behind = overloaded(one.row)
        if not behind:
            steady.append(one)
        cells = [f"{one.row.cells['experiment']}, {run.rate:g}/s" + (" (overloaded)" if behind else "")]
        for metric in ("ttft", "tpot", "e2el"):
            value, real = getattr(found, metric), getattr(measured, metric)
            error = one.error(metric)
            shown = "-" if error is None else f"{100 * error:+.0f}"
            cells += [*("-" if seconds is None else f"{seconds * 1e3:,.1f}" for seconds in (real, value)), shown]
        lines.append(cells)
    heads = ["stage", "TTFT ms", "predicted", "%", "TPOT ms", "predicted", "%", "end-to-end ms", "predicted", "%"]
    table = {
        f"{name}, {label}": pairs_of(rows, metric)
        for metric, name in (
            ("ttft", "mean TTFT"),
            ("tpot", "mean TPOT"),
            ("e2el", "mean end-to-end"),
        )
        for label, rows in (("all stages", scored), ("under capacity", steady))
    }
    return "\n".join(
        [
            "## Serving, open loop\n",
            "Constant rate, prompts that cycle and are found in the prefix cache. Nothing is fitted to these rows, but "
            "vLLM's host for a sequence is chosen in their sight: they ask for less than TensorRT-LLM's, which is "
            "[taken](calibration.md#the-host-of-a-step). "
            "The latency of their client is that of the fixed-length campaign's, a choice that these rows agree with. "
            "The peer: mean TTFT off by 650 %, end-to-end by 18 %.\n",
            markdown(("", *HEADS), scored_lines(table)),
            markdown(heads, lines),
        ]
    )
