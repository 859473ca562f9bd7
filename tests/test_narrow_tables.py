"""Tables in terminals of 80 columns: no name is cut off, and columns that are left out are named."""

from __future__ import annotations

from inferplan.table import Report, Table, render
from tests.cases import for_each

NAMES = ["a100-80gb-sxm", "rtx-pro-6000-server", "deepseek-r1-distill-qwen-32b"]


def table(spare: tuple[str, ...] = ()) -> Report:
    columns = ["GPU", "requests", "bought", "note"]
    rows = [
        [name, "1,234", "2 x gpu_8x_h100_sxm5 (8 x h100-sxm)", "as the source prints it, for one"] for name in NAMES
    ]
    return Report(record={}, tables=[Table(title="t", columns=columns, rows=rows, spare=spare)])


@for_each("width", [40, 60, 80, 100, 200])
def test_no_word_is_cut_off(width: int) -> None:
    text = render(table(), "table", width=width)
    assert "…" not in text
    assert all(name in text for name in NAMES)
    assert "gpu_8x_h100_sxm5" in text


def test_spare_columns_leave_in_their_order() -> None:
    """28 + 8 + 24 + 24 characters and three gaps of 2 are 90; without the note 64."""
    wide, narrow, tight = (render(table(("note", "bought")), "table", width=width) for width in (100, 80, 50))
    assert "left out" not in wide
    assert "left out for 80 columns: note (" in narrow and "gpu_8x_h100_sxm5" in narrow
    assert "left out for 50 columns: note, bought (" in tight and "gpu_8x_h100_sxm5" not in tight
    assert all(name in tight for name in NAMES)
