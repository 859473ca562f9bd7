"""Drafts: how many times faster tokens come with multi-token prediction than without, in pairs of runs."""

from __future__ import annotations

from pathlib import Path

from inferplan.validation.importers import read_file
from inferplan.validation.rows import Row
from inferplan.validation.run import Pricing, price_rows
from inferplan.validation.score import Scored
from tools.accuracy.parts.rows import Part, PartRow

ALIKE = ("model", "gpu", "engine", "weights", "experts", "kv", "isl", "osl", "concurrency", "tp", "ep", "dp_attention")
MOST_USERS = 64
"""Larger loads take minutes to simulate."""


def speculation_part(shared: Path) -> Part:
    """Pairs of rows of ``serving_inferencex.csv`` with and without drafts."""
    return Part(name="Speculation", rows=_rows(shared))


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
