"""Data-centre devices without tables of kernels: AMD's, Intel's Gaudi 3 and Google's TPU v6e, by engine and model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from inferplan.validation.run import price_rows
from inferplan.validation.score import Scored
from tools.accuracy.published_rows import serving_rows
from tools.accuracy.scores import HEADS, Line, figures, markdown, pairs_of, score_cells, scored_lines

FILES = ("mi300x.csv", "gaudi3.csv", "tpu_v6e.csv")
METRICS = {"ttft": "TTFT", "tpot": "TPOT", "rate": "output rate"}
VINTAGES = {
    "Azure AI-benchmarking-guide": "Azure, published in February 2025",
    "dstackai/benchmarks 06c957a": "dstack, November 2024",
    "dstackai/benchmarks 7f37e66": "dstack, March 2025",
    "intel.com": "Intel, SynapseAI 1.18",
    "sgl-project/sglang-jax": "SGL-JAX, September 2025",
}
Pairs = list[tuple[float, float]]
Campaign = tuple[str, str]
"""A device, and an engine with the source of its rows."""


def data_centre_section(shared: Path) -> str:
    """The section of the page: errors by device, engine, source and model, and what one model tells of the others."""
    rows = [row for name in FILES for row in serving_rows(shared / "measured" / "published" / name)]
    return section_of(price_rows(rows))


def section_of(scored: Iterable[Scored]) -> str:
    """The same for rows that are priced."""
    found: dict[tuple[Campaign, str, str], Pairs] = defaultdict(list)
    refused = 0
    for one in scored:
        refused += one.prediction is None
        for metric, name in METRICS.items():
            if metric != "ttft" or stated(one):
                found[campaign(one), name, one.row.cells["model"]] += pairs_of([one], metric, "mean")
    groups = {f"{device}, {by}, {model}: {name}": pairs for ((device, by), name, model), pairs in found.items()}
    whole: dict[str, Pairs] = defaultdict(list)
    for ((device, by), name, _), pairs in found.items():
        whole[f"{device}, {by}: {name}"] += pairs
    return "\n".join(
        [
            "## Data centres: MI300X, Gaudi 3, TPU v6e\n",
            NOTES,
            markdown(("device, engine and source", *HEADS), scored_lines(whole)),
            f"Refused: {refused} rows. By model:\n",
            markdown(("device, engine and source, model", *HEADS), scored_lines(groups)),
            ONE_FACTOR,
            markdown(("device, engine and source", *HEADS), one_factor(found)),
        ]
    )


def stated(one: Scored) -> bool:
    """Whether its source says how many requests were sent: without it nobody knows how long they waited at first."""
    return one.row.run is not None and one.row.run.requests is not None


def campaign(one: Scored) -> Campaign:
    """Whose rows they are."""
    cells = one.row.cells
    source = next(words for start, words in VINTAGES.items() if cells["source"].startswith(start))
    return cells["hardware"], f"{cells['engine']} ({source})"


def one_factor(found: Mapping[tuple[Campaign, str, str], Pairs]) -> list[Line]:
    """Errors of every model once its predictions are times the geometric mean of measured over predicted of the others.

    Only campaigns of several models.
    """
    groups: dict[str, Pairs] = defaultdict(list)
    for (whose, name, model), pairs in found.items():
        others = [
            pair for (by, what, other), rest in found.items() if (by, what) == (whose, name) and other != model
            for pair in rest
        ]  # fmt: skip
        if pairs and others:
            factor = float(np.exp(np.mean([np.log(measured / predicted) for predicted, measured in others])))
            groups[f"{whose[0]}, {whose[1]}: {name}"] += [(predicted * factor, value) for predicted, value in pairs]
    return [[name, *score_cells(value)] for name, pairs in groups.items() if (value := figures(pairs)) is not None]


NOTES = """Constants of MI300X are [those of AMD](calibration.md#amd), fitted to DeepSeek-R1 under SGLang 0.5.12 of
May 2026; nothing was fitted to the rows below. Gaudi 3 and TPU v6e have the constants carried from NVIDIA's devices
with stacked memory, without any measurement of their own, and their band is unknown. Engines are priced
by their kind: Optimum Habana as a loop over static batches (no engine), SGL-JAX with SGLang's scheduler and its
constants of a step. What scripts of a source set is taken from them: Azure's MI300X runs used a container of
21 November 2024 (vLLM 0.6.4) with fp8 caches and ten steps for each look of the host, which hide most of what that
version's host costs: they are priced as the newest version. dstack's rows of that month are priced with the host of
vLLM before 0.8.
DeepSeek-R1 in its first two months ran at half of today's rate on both makers' GPUs (H200 beside MI300X). Times to
the first token are left out where the source does not say how many requests were sent.
"""
ONE_FACTOR = """What one factor for each campaign and metric leaves, each model with the factor that the campaign's
other models tell: how much of the error is the software of a date, and not the model of the device.
"""
