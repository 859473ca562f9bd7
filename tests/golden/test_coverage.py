"""Every row of the four sources is computed or left out with a reason, and says what the reference table says."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from tests.cases import for_each
from tests.golden.registry import Golden
from tests.golden.test_cs336 import CS336
from tests.golden.test_kipply import KIP
from tests.golden.test_scaling_book import SB
from tests.golden.test_seeds import SEED

SOURCES = [SEED, CS336, SB, KIP]
COUNTS = {"SEED": 30, "CS336": 33, "SB": 92, "KIP": 27}
ERRATA = Path(__file__).parents[2] / "docs" / "errata.md"


@for_each("golden", SOURCES, ids=lambda golden: golden.prefix)
def test_every_row_is_here(golden: Golden) -> None:
    assert len(golden.ids) == len(golden.rows) + len(golden.left_out) == COUNTS[golden.prefix]
    assert all(reason for reason in golden.left_out.values())


def reference(shared: Path) -> dict[str, dict[str, str]]:
    with (shared / "reference" / "truths.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file) if row["id"].split("-")[0] in COUNTS}


def test_reference_table_says_the_same(shared: Path) -> None:
    """The values typed here are those of the table, and no row of it is missing here."""
    table = reference(shared)
    assert set(table) == set().union(*(golden.ids for golden in SOURCES))
    wrong = []
    for row in (row for golden in SOURCES for row in golden.rows):
        theirs = table[row.id]
        if isinstance(row.printed, str):
            same = row.printed in ("", theirs["value"])
        else:
            same = float(theirs["value"]) == pytest.approx(row.printed, rel=1e-12)
        if not same:
            wrong.append(f"{row.id}: {theirs['value']} in the table, {row.printed} here")
    assert not wrong


def test_recomputed_values_are_those_of_the_table(shared: Path) -> None:
    """Where the table recomputes a plain number, it is the one that we hold ourselves to."""
    table = reference(shared)
    wrong = []
    for row in (row for golden in SOURCES for row in golden.rows if not row.floor):
        recomputed = table[row.id]["recomputed"]
        if re.fullmatch(r"[\d.]+(e[+-]?\d+)?", recomputed) and float(recomputed) != pytest.approx(
            row.expected, rel=max(0.02, row.rel)
        ):
            wrong.append(f"{row.id}: {recomputed} in the table, {row.expected} here")
    assert not wrong


def test_wrong_rows_have_their_errata(shared: Path) -> None:
    """Each row whose verdict is WRONG, OLD, sloppy, incomplete or unsupported is explained in docs/errata.md."""
    errata = ERRATA.read_text(encoding="utf-8")
    bad = re.compile("WRONG|OLD|sloppy|incomplete|unsupported")
    missing = [name for name, row in reference(shared).items() if bad.match(row["verdict"]) and name not in errata]
    assert not missing


def test_errata_name_rows_that_exist() -> None:
    known = set().union(*(golden.ids for golden in SOURCES))
    named = set(re.findall(r"\b(?:SEED|CS336|SB|KIP)-\d+[a-d]?\b", ERRATA.read_text(encoding="utf-8")))
    assert named
    assert named <= known
