"""Numbers that remember how they were made: what they print, and that reading it back gives the number."""

from __future__ import annotations

import numpy as np
import pytest

from inferplan.terms import Term, floor, name_term, plain, total
from tests.cases import for_each
from tests.printed import Between, read


def sizes() -> tuple[Term, Term, Term]:
    return name_term(80e9, "usable", "B"), name_term(16e9, "weights", "B"), name_term(3.0, "count")


def test_a_formula_is_printed_in_names_and_in_numbers() -> None:
    usable, weights, count = sizes()
    found = floor((usable - (weights - 1.0)) / (count * weights))
    assert found.formula == "floor((usable - (weights - 1)) / (count * weights))"
    assert found.numbers == "floor((80 GB - (16 GB - 1)) / (3 * 16 GB))"
    assert found.value == found.evaluate() == 1.0


@for_each(
    ("made", "formula"),
    [
        (lambda a, b, c: 0.0 + a, "usable"),
        (lambda a, b, c: a * 1.0 + 0.0, "usable"),
        (lambda a, b, c: a - b - c, "usable - weights - count"),
        (lambda a, b, c: a - (b - c), "usable - (weights - count)"),
        (lambda a, b, c: a / (b * c), "usable / (weights * count)"),
        (lambda a, b, c: a * (1.0 / c), "usable / count"),
        (lambda a, b, c: np.maximum(a, b) ** (1.0 / c), "max(usable, weights)^(1 / count)"),
        (lambda a, b, c: (a + b) ** c, "(usable + weights)^count"),
        (lambda a, b, c: np.float64(2.0) * a, "2 * usable"),
        (lambda a, b, c: np.array(1.0) * a / c, "usable / count"),
    ],
)
def test_parentheses_stand_where_they_must(made: object, formula: str) -> None:
    found = made(*sizes())  # type: ignore[operator]
    assert (found.formula if found.operation else found.name) == formula
    printed = read(found.numbers)
    assert printed.low <= float(found.value) * (1 + 1e-12)
    assert float(found.value) <= printed.high * (1 + 1e-12)


def test_what_is_multiplied_by_nothing_is_nothing() -> None:
    usable, _, _ = sizes()
    assert usable * 0.0 == 0.0
    assert 0.0 / usable == 0.0


def test_like_terms_have_one_formula() -> None:
    tensors = (name_term(name_term(n, "copies") * name_term(2.0, "width"), f"t{n}", "B") for n in (1, 2, 3))
    found: Term = name_term(total(tensors, "tensors"), "weights", "B")  # type: ignore[arg-type]
    assert found.formula == "sum over tensors of (copies * width)"
    assert found.numbers == "2 B + 4 B + 6 B"
    assert [(part.name, part.numbers) for part in found.parts()] == [("t1", "1 * 2"), ("t2", "2 * 2"), ("t3", "3 * 2")]
    assert total([1.0, 2.0], "numbers") == 3.0
    assert plain(2.0, "two") == 2.0


def test_a_second_name_keeps_the_first() -> None:
    again = name_term(name_term(5.0, "limit"), "longest", "tokens")
    assert (again.name, again.formula, again.numbers) == ("longest", "limit", "5")


def test_a_function_that_no_formula_uses_is_refused() -> None:
    with pytest.raises(TypeError):
        np.sin(name_term(1.0, "x"))


def test_printed_numbers_stand_for_what_rounds_to_them() -> None:
    """1.23456 kB is 1,234.555 to 1,234.565 B; 3 is 3."""
    found = read("1.23456 kB * 3")
    assert (found.low, found.high) == pytest.approx((3 * 1234.555, 3 * 1234.565), rel=1e-12)
    assert read("floor(7 / 2) + ceil(7 / 2)^2") == Between(19.0, 19.0)


def test_a_number_that_is_not_whole_is_not_printed_as_one() -> None:
    """Six digits of 123,456.4 are those of a whole number, which stands for itself alone."""
    count, each = name_term(123456.4, "count"), name_term(2.0, "each")
    assert (count * each).numbers == "123456.0 * 2"
    assert read((count * each).numbers).low <= 123456.4 * 2 <= read((count * each).numbers).high
