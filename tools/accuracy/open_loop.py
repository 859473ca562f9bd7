"""Open-loop serving rows: requests that arrive at a rate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from inferplan.validation.deploy import deployment_of
from inferplan.validation.importers import read_file
from inferplan.validation.predict import served_run
from inferplan.validation.run import Pricing, price_rows
from inferplan.validation.score import Scored
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
    tails = scored_lines(_percentiles(steady))
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
            "Percentiles of the stages under capacity. Steps always take as long here, and only waits differ: most of "
            "what varies up to the 90th percentile of the first token. The 99th is 2 to 470 ms beyond the 95th, by "
            "stage; in the first stages of two runs one request in a hundred takes 2 s more than the others, as on a "
            "server that is still cold. No constant is fitted to stages that disagree so much; a "
            "[band in seconds](validate.md#percentiles) is.\n",
            markdown(("", *HEADS), tails),
        ]
    )


def _percentiles(stages: Sequence[Scored]) -> dict[str, list[tuple[float, float]]]:
    """Predicted and measured percentiles of TTFT and of the whole request, in seconds."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in stages:
        assert one.row.run is not None
        result = served_run(deployment_of(one.row.run)[0], one.row.run)
        for metric, name in (("ttft", "TTFT"), ("e2el", "end-to-end")):
            for statistic, percentile in _PERCENTILES.items():
                predicted = float(np.percentile(getattr(result, metric), percentile))
                found[f"{name} {statistic}"].append((predicted, float(one.row.cells[f"{metric}_{statistic}_s"])))
    return found


_PERCENTILES = {"median": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}
