"""Numbers of arrays are written as Python writes each of them, to the last byte."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from inferplan import decimals
from inferplan.decimals import float_texts

COUNT = 20_000


def _same(values: npt.NDArray[np.float64]) -> None:
    wrong = [(ours, repr(value)) for ours, value in zip(float_texts(values), values.tolist(), strict=True)]
    assert not [pair for pair in wrong if pair[0] != pair[1]][:5]


def _neighbours(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Numbers with the three floats below and above each."""
    return (values.view(np.int64)[:, None] + np.arange(-3, 4)).view(np.float64).reshape(-1)


@pytest.fixture(params=range(4))
def draw(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(request.param)


def test_any_float(draw: np.random.Generator) -> None:
    """Drawn from all bits: nan, infinities and numbers too small for a full fraction among them."""
    _same(draw.integers(0, 2**64 - 1, COUNT, dtype=np.uint64).view(np.float64))


def test_floats_of_usual_size(draw: np.random.Generator) -> None:
    values = 10 ** draw.uniform(-5, 17, COUNT)
    _same(values)
    _same(-values)


@pytest.mark.parametrize("places", range(18))
def test_short_decimals_and_their_neighbours(places: int, draw: np.random.Generator) -> None:
    """Texts of few digits, and the floats beside them, which need all 16 or 17."""
    _same(_neighbours(np.array([float(f"{value:.{places}g}") for value in 10 ** draw.uniform(-5, 17, COUNT // 20)])))


def test_ends_of_lengths_and_of_halves() -> None:
    """Powers of ten (where the text gets longer) and of two (where neighbours are not equally far)."""
    tens = np.array([float(f"1e{exponent}") for exponent in range(-9, 23)])
    _same(_neighbours(np.concatenate([tens, 5 * tens, 2.0 ** np.arange(-40, 70), 3 * 2.0 ** np.arange(-40, 70)])))


def test_ties(draw: np.random.Generator) -> None:
    """Quarters at 2**49 to 2**50: 16 digits are enough, and two texts of 16 are equally near. 600000000000000.25 is
    written ...000.2."""
    quarters = draw.integers(2**49, 2**50, COUNT) + draw.integers(0, 8, COUNT) / 8
    _same(np.append(quarters, 600000000000000.25))
    assert float_texts(np.full(decimals.FEW, 600000000000000.25))[0] == "600000000000000.2"


def test_whole_numbers(draw: np.random.Generator) -> None:
    for digits in range(1, 18):
        _same(draw.integers(0, 10**digits, COUNT // 10).astype(float))


def test_awkward_numbers_among_others() -> None:
    awkward = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7, 1e16, 1e22, 5e-324, 1.7976931348623157e308, 9999999999999998.0]
    awkward += [0.1, 0.30000000000000004, 2 / 3, 1e-4, 9.999999999999999e-05, 1e15, 123456789012345.6, 5e-5, 1.0, 100.0]
    _same(np.array(awkward * 20))
    _same(np.array(awkward))


def test_most_numbers_are_written_without_asking_python() -> None:
    values = 10 ** np.random.default_rng(0).uniform(-3, 12, COUNT)
    row = np.floor(np.log10(values)).astype(np.int64)
    assert np.mean(decimals._shortest(values, 16 - row)[1]) > 0.999
