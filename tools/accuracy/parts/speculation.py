"""Drafts: how many times faster tokens come with them than without, in pairs of runs."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.drafts import draft_alone
from inferplan.catalog.files import config_root
from inferplan.serving.techniques.speculation import Speculation, speculate
from inferplan.validation.importers import read_file
from inferplan.validation.rows import Row
from inferplan.validation.run import Pricing, price_rows
from inferplan.validation.score import Scored
from tools.accuracy.parts.rows import Part, PartRow

ALIKE = ("model", "gpu", "engine", "weights", "experts", "kv", "isl", "osl", "concurrency", "tp", "ep", "dp_attention")
HEADS = config_root().parent / "tests" / "benchmarks" / "eagle3.csv"
MOST_USERS = 64
"""Larger loads take minutes to simulate."""


def speculation_part(shared: Path) -> Part:
    """Pairs of rows of ``serving_inferencex.csv`` with and without drafts."""
    return Part(name="Speculation", rows=_rows(shared))


def heads_part(shared: Path) -> Part:
    """EAGLE-3 heads at one request, of ``tests/benchmarks/eagle3.csv``."""
    with HEADS.open(encoding="utf-8", newline="") as file:
        return Part(name="EAGLE-3 heads", rows=[_head_row(cells) for cells in csv.DictReader(file)])


def _head_row(cells: dict[str, str]) -> PartRow:
    request = Request(model=cells["model"], gpu=cells["gpu"], engine=cells["engine"])
    drafts = draft_alone(request, "eagle3")
    asked = Speculation.of_length(float(cells["acceptance_length"]), int(cells["drafts"]), draft=drafts.whole)
    asked = replace(asked, first=drafts.first, later=drafts.later)
    gain = speculate(assemble(request), asked, 1.0, float(cells["context"]))
    measured = float(cells["drafted_tokens_per_s"]) / float(cells["plain_tokens_per_s"])
    where = ", ".join(cells[name] for name in ("model", "gpu", "engine", "data"))
    case = f"{where}, {cells['drafts']} drafts: tokens/s with over without"
    return PartRow(source=cells["source"], case=case, measured=measured, predicted=float(gain.speedup), unit="speed")


def _rows(shared: Path) -> list[PartRow]:
    with_drafts: dict[tuple[str, ...], Row] = {}
    without: dict[tuple[str, ...], Row] = {}
    for row in read_file(shared / "measured" / "serving_inferencex.csv", {})[1]:
        cells = row.cells
        if cells["disaggregated"] == "0" and float(cells["concurrency"]) <= MOST_USERS:
            kind = without if cells["speculation"] in ("", "none") else with_drafts
            kind[tuple(cells[name] for name in ALIKE)] = row
    both = sorted(with_drafts.keys() & without.keys())
    priced = price_rows([kind[key] for key in both for kind in (without, with_drafts)], Pricing())
    found = []
    for key, plain, drafted in zip(both, priced[::2], priced[1::2]):
        (before, guessed), (after, guess) = _tpot(plain), _tpot(drafted)
        if before is None or after is None or guessed is None or guess is None:
            continue
        load = f"{key[6]}/{key[7]} tokens, {key[8]} users, tp {key[9]}"
        case = f"{', '.join(key[:4])}, {load}: TPOT without over with"
        found.append(
            PartRow(source="InferenceX", case=case, measured=before / after, predicted=guessed / guess, unit="speed")
        )
    return found


def _tpot(scored: Scored) -> tuple[float | None, float | None]:
    """Measured and predicted seconds of a token, at the row's headline."""
    statistic = scored.row.measured.statistic
    predicted = None if scored.prediction is None else scored.prediction.at("tpot", statistic)
    return scored.row.measured.at("tpot", statistic), predicted
