"""Drafts: how many times faster tokens come with multi-token prediction than without, in pairs of runs."""

from __future__ import annotations

from pathlib import Path

from inferplan.validation.importers import read_file
from inferplan.validation.rows import Row
from inferplan.validation.run import Pricing, price_rows
from tools.accuracy.parts.rows import Part, PartRow

RESTS = """Acceptance on file (`configs/acceptance.yaml`), passes of the draft and of the verification priced as any step
([speculation](techniques/speculation.md))."""
FOUND = """Pairs of InferenceX's runs of DeepSeek-R1 that differ in nothing but MTP, each ratio that of two simulations, so that the error of the
step without drafts is left out. Where both arms were not run at one load there is no pair. Runs of club-3090 and GB10 are
left out: their acceptance is not told, and no second arm."""
ALIKE = ("model", "gpu", "engine", "weights", "experts", "kv", "isl", "osl", "concurrency", "tp", "ep", "dp_attention")
MOST_USERS = 64
"""Larger loads take minutes to simulate."""


def speculation_part(shared: Path) -> Part:
    """Pairs of rows of ``serving_inferencex.csv`` with and without drafts."""
    return Part(name="Speculation", rests=RESTS, rows=_rows(shared), found=FOUND)


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
        measured, predicted = [], []
        for one in (plain, drafted):
            statistic = one.row.measured.statistic
            measured.append(one.row.measured.at("tpot", statistic))
            predicted.append(one.prediction.at("tpot", statistic) if one.prediction else None)
        if None in measured or None in predicted:
            continue
        case = f"{key[0]}, {key[1]}, {key[2]}, {key[3]}, {key[6]}/{key[7]} tokens, {key[8]} users, tp {key[9]}: TPOT without over with"
        found.append(
            PartRow(
                source="InferenceX",
                case=case,
                measured=measured[0] / measured[1],
                predicted=predicted[0] / predicted[1],
                unit="speed",
            )
        )
    return found
