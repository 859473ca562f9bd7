"""A row of figures as programs and as people read it, by hand."""

from __future__ import annotations

import pytest

from inferplan.figures import Figure, finite, labelled_texts, record, short_time, side_by_side, text
from inferplan.table import Report, render


def row(name: str, ttft: float | None, priced: bool) -> list[Figure]:
    return [
        Figure("name", name, "model", left=True),
        Figure("ttft_s", ttft, "TTFT", short_time),
        Figure("share", 0.125, "share", ".1%"),
        Figure("currency", "USD"),
        text("GPUs", f"2 x {name}", left=True),
        Figure("cost", 3.5, "USD/h", ",.2f", seen=priced),
        Figure("watts", 1234.5, "draw", "{:,.0f} W", seen=priced),
        Figure("most", None, "stock", absent="no limit"),
    ]


def test_programs_read_every_key_and_people_every_label_that_is_seen() -> None:
    one = row("a", 0.04321, priced=False)
    assert record(one) == {
        "name": "a",
        "ttft_s": 0.04321,
        "share": 0.125,
        "currency": "USD",
        "cost": 3.5,
        "watts": 1234.5,
        "most": None,
    }
    assert labelled_texts(one) == [
        ["model", "a"],
        ["TTFT", "43.2 ms"],
        ["share", "12.5%"],
        ["GPUs", "2 x a"],
        ["stock", "no limit"],
    ]


def test_rows_side_by_side() -> None:
    """Columns of numbers to the right, of text to the left; what has no value is a dash, or what stands for it."""
    table = side_by_side("models", [row("a", 0.04321, priced=True), row("b", None, priced=True)])
    assert render(Report(record={}, tables=[table]), "markdown") == (
        "### models\n\n"
        "| model | TTFT | share | GPUs | USD/h | draw | stock |\n"
        "| --- | ---: | ---: | --- | ---: | ---: | ---: |\n"
        "| a | 43.2 ms | 12.5% | 2 x a | 3.50 | 1,234 W | no limit |\n"
        "| b | - | 12.5% | 2 x b | 3.50 | 1,234 W | no limit |\n"
    )


def test_rows_with_other_columns_are_no_table() -> None:
    with pytest.raises(AssertionError, match="TTFT"):
        side_by_side("models", [row("a", 0.04321, priced=True), row("b", None, priced=False)])


@pytest.mark.parametrize(("value", "kept"), [(1.5, 1.5), (float("inf"), None), (float("nan"), None)])
def test_json_has_no_infinity(value: float, kept: float | None) -> None:
    assert finite(value) == kept
