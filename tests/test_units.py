"""Units: text in, SI out; a bare number is refused."""

from __future__ import annotations

import pytest

from inferplan.units import format_bytes, format_parameters, format_quantity, format_time, parse_count, parse_quantity
from tests.cases import for_each


@for_each(
    ("text", "dimension", "value"),
    [
        ("80 GB", "bytes", 80e9),
        ("80 GiB", "bytes", 80 * 2**30),
        ("4.8 TB/s", "bytes/s", 4.8e12),
        ("400 Gb/s", "bytes/s", 50e9),
        ("989.4 TFLOP/s", "FLOP/s", 989.4e12),
        ("2 POP/s", "FLOP/s", 2e15),
        ("5 us", "seconds", 5e-6),
        ("500ms", "seconds", 0.5),
        ("700 W", "watts", 700.0),
        ("1.83 GHz", "hertz", 1.83e9),
        ("85_020_639_232 B", "bytes", 85020639232.0),
        ("1e3 MB", "bytes", 1e9),
    ],
)
def test_text_with_a_unit_is_si(text: str, dimension: str, value: float) -> None:
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-15)


@for_each("bad", [4.8, 80, "80", "", "GB", "80 GB/s", "-1 GB", "1e400 GB", "nan GB", None, True])
def test_what_is_no_quantity_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match=r"unit|quantity|finite"):
        parse_quantity(bad, "bytes")


@for_each(
    ("text", "meant"),
    [("2,5s", ["2.5s"]), ("20,55 s", ["20.55 s"]), ("1,2345s", ["1.2345s"]), ("2,500s", ["2500s", "2.500s"])],
)
def test_a_comma_that_may_stand_before_decimals_is_not_read(text: str, meant: list[str]) -> None:
    """Much of Europe writes 2,5 s for two seconds and a half, and 2.500 s for 2500."""
    with pytest.raises(ValueError, match="comma") as refused:
        parse_quantity(text, "seconds")
    assert all(one in str(refused.value) for one in meant)


def test_commas_before_thousands_are_read() -> None:
    assert parse_quantity("1,234,567 B", "bytes") == 1_234_567
    assert parse_quantity("1,234.5 GB", "bytes") == 1_234.5e9


def test_people_read_decimal_prefixes() -> None:
    assert format_bytes(85020639232.0) == "85.02 GB"
    assert format_bytes(999.96e6) == "1.000 GB"
    assert format_time(0.0048536) == "4.854 ms"
    assert format_time(39.13e-9) == "39.13 ns"
    assert format_quantity(989.4e12, "FLOP/s") == "989.4 TFLOP/s"
    assert [format_parameters(n) for n in (8.03e9, 1.04e12, 22.71e6)] == ["8.03B", "1.04T", "22.7M"]
    assert format_bytes(0.0) == "0 B"


@for_each(("text", "count"), [("4096", 4096), ("8k", 8000), ("8Ki", 8192), ("1.5M", 1_500_000)])
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


@for_each("bad", ["", "k", "-4", "8 tokens", "1e3"])
def test_bad_counts(bad: str) -> None:
    with pytest.raises(ValueError, match="not a count"):
        parse_count(bad)
