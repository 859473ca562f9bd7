"""Plain CSV: the columns of :data:`inferplan.validation.rows.INPUTS` and ``MEASURES``, in any order; others are kept.

The open-loop form has a stage a row: ``rate_per_s``, ``duration_s``, percentiles in seconds (``ttft_mean_s``), prompts
made of a shared system prompt and a question.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from inferplan.errors import InputFileError
from inferplan.validation.importers.inferencex import version_of
from inferplan.validation.rows import Facts, Row, Run, interpret, row_of, text_of

TOOL = "csv"
_RENAMED = {
    "output_tokens_requested": "osl",
    "prompt_tokens_mean": "isl",
    "output_tokens_per_s": "output_tokens_per_s",
    "rate": "rate_per_s",
    "expert_parallel": "ep",
    "measured": "date",
}
_SECONDS = {"ttft_mean_s": "ttft_ms", "tpot_mean_s": "tpot_ms", "e2el_mean_s": "e2el_ms"}
_ANSWERS = ("ttft_predicted_ms", "tpot_predicted_ms", "refused")


def read(path: Path, text: str, supplied: Mapping[str, str]) -> list[Row]:
    """A row for each line. Raises ``InputFileError`` for a file without the columns of a measured row."""
    reader = csv.DictReader(io.StringIO(text, newline=""))
    columns = [name for name in reader.fieldnames or [] if name is not None]
    known = {_RENAMED.get(name, _SECONDS.get(name, name)) for name in columns}
    if not {"model", "isl", "osl"} & known or not known & {"model", "gpu", "concurrency", "rate_per_s", "tp"}:
        raise InputFileError(
            f"{path} is no table of measured rows",
            because=f"its first line is {', '.join(columns[:8])}",
            hint="columns model, gpu, engine, weights, isl, osl, concurrency, tp, ttft_ms, tpot_ms (docs/validate.md)",
        )
    rows = []
    for cells in reader:
        where = f"{path}:{reader.line_num}"
        if None in cells:
            kept = {name: value for name, value in cells.items() if name is not None}
            rows.append(Row(where=where, cells=kept, run=None, measured=_NOTHING, refused="more cells than columns"))
            continue
        clean = {name: value or "" for name, value in cells.items()}
        rows.append(row_of(where, _facts(clean), supplied, clean))
    if not rows:
        raise InputFileError(f"{path} has a heading and no rows")
    return rows


def stated_run(row: Row) -> Run:
    """The run as the cells of a row state it, without what the run script of its campaign sets otherwise.

    Raises ``Unusable`` where they say too little.
    """
    return interpret(_facts(row.cells))[0]


def _facts(cells: dict[str, str]) -> Facts:
    facts = {_RENAMED.get(name, name): value for name, value in cells.items() if name not in _ANSWERS}
    for name, target in _SECONDS.items():
        value = text_of(cells, name)
        if value is not None and text_of(facts, target) is None:
            facts[target] = _milliseconds(value)
    if text_of(facts, "engine_version") is None and "image" in cells:
        facts["engine_version"] = version_of(cells["image"])
    if text_of(facts, "campaign") is None and {"framework", "image", "decode_ranks"} <= cells.keys():
        facts["campaign"] = "inferencex"
    if "arrival" in cells and text_of(facts, "weights") is None and text_of(facts, "precision") is None:
        facts["precision"] = "native"
    if "arrival" in cells and text_of(facts, "campaign") is None:
        facts["campaign"] = "open-loop"
    if text_of(facts, "concurrency") is None and text_of(facts, "rate_per_s") is not None:
        facts.pop("concurrency", None)
    return facts


def _milliseconds(text: str) -> str:
    try:
        return repr(float(text) * 1e3)
    except ValueError:
        return text


_NOTHING = row_of("", {}, {}).measured
