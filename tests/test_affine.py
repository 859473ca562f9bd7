"""Lines over arrays: the same numbers as arrays give, for every operation and for every kind of model."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inferplan import affine as module
from inferplan.affine import Affine, affine, dense, maximum, root, root_of_squares, sum_arrays
from inferplan.catalog.assemble import Request, assemble
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from inferplan.work.parallel import Parallelism
from tests.cases import for_each

ONE, OTHER = np.array([[1.0], [2.0], [7.0]]), np.array([[3.0, 0.0]])


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEWEST", 1)


def lines() -> list[tuple[Any, Any]]:
    """Lines and sums of them, each with the array that it stands for."""
    a, b = affine(ONE), affine(OTHER)
    return [
        (a, ONE),
        (a * 2.0 + 1, ONE * 2.0 + 1),
        (np.float64(3.0) * (5.0 + a) / 4, 3.0 * (5.0 + ONE) / 4),
        (a / 3.0 + a * 2 + b * 5.0 + 0.5, ONE / 3.0 + ONE * 2 + OTHER * 5.0 + 0.5),
        (b * 0.25, OTHER * 0.25),
    ]


def test_sums_and_multiples_stay_lines() -> None:
    for line, array in lines():
        assert type(line) is Affine
        assert np.shape(line) == array.shape
        assert line.ndim == 2
        assert len(line) == len(array)
        assert dense(line) == pytest.approx(array, rel=1e-15)
        assert np.asarray(line) == pytest.approx(array, rel=1e-15)
        assert line[0] == pytest.approx(array[0], rel=1e-15)
    assert not np.any(ONE != [[1.0], [2.0], [7.0]])


@for_each(
    "operation",
    [
        operator.add,
        operator.sub,
        operator.mul,
        operator.gt,
        lambda x, y: x / (y + 1.0),
        np.maximum,
        lambda x, y: np.where(x > 2, x, y),
        lambda x, y: np.ceil(x / 2.0) * y,
        lambda x, y: np.log2(1.0 + x) + np.max(y),
        lambda x, y: np.sum(x) - np.sqrt(y),
        lambda x, y: np.float64(2.0) / (x + 1.0) * y,
        maximum,
        root_of_squares,
        lambda x, y: sum_arrays([x, 1.0, y, x, 2.0, ONE]),
        lambda x, y: root(x) + root(y),
        lambda x, y: np.broadcast_to(x, (2, 3, 2)) - y,
    ],
)
def test_whatever_is_asked_of_a_line_is_answered_for_its_array(operation: Callable[[Any, Any], Any]) -> None:
    for first, one in lines():
        for second, other in lines():
            for x, y in ((first, second), (first, other), (one, second), (first, 2.0)):
                found = dense(operation(x, y))
                expected = operation(*(np.asarray(value) if np.ndim(value) else value for value in (x, y)))
                assert np.asarray(found) == pytest.approx(np.asarray(dense(expected)), rel=1e-14)


IN_PLACE = [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod]


@for_each("in_place", [*IN_PLACE, operator.ipow], ids=lambda chosen: chosen.__name__)
@for_each("other", [2.0, np.array([[2.0, 4.0]])], ids=["number", "array"])
def test_in_place_is_as_without(in_place: Callable[[Any, Any], Any], other: Any) -> None:
    """``x += y`` gives ``x + y`` and leaves whoever else holds the line, and its array, as they were."""
    array = np.array([[3.0], [5.0]])
    line = kept = affine(array)
    line = in_place(line, other)
    expected = in_place(np.array([[3.0, 3.0], [5.0, 5.0]]), other)
    assert np.array_equal(np.broadcast_to(dense(line), (2, 2)), expected)
    assert dense(kept).tolist() == array.tolist() == [[3.0], [5.0]]
    doubled = in_place(affine(array), affine(array))
    assert np.array_equal(dense(doubled), in_place(array.copy(), array))


def test_an_array_takes_a_line_in_place_and_a_line_takes_nothing() -> None:
    array = np.array([1.0, 2.0])
    line: Any = affine(np.array([10.0, 20.0]))
    array += line * 2.0
    assert array.tolist() == [21.0, 42.0]
    with pytest.raises(TypeError):
        np.add(array, 1.0, out=line)
    with pytest.raises(TypeError):
        line &= 1


def test_the_larger_of_two_lines_by_hand() -> None:
    x = affine(np.array([0.0, 1.0, 2.0, 3.0]))
    assert type(maximum(x * 2.0 + 1.0, x + 1.0)) is Affine
    assert dense(maximum(x * 2.0, x + 1.0)).tolist() == [1.0, 2.0, 4.0, 6.0]
    assert dense(maximum(x + 1.0, x * 2.0)).tolist() == [1.0, 2.0, 4.0, 6.0]
    assert dense(root_of_squares(x * 3.0 + 3.0, x * 4.0 + 4.0)).tolist() == pytest.approx([5.0, 10.0, 15.0, 20.0])
    assert dense(root(x * 9.0)).tolist() == pytest.approx([0.0, 3.0, 3.0 * 2**0.5, 3.0 * 3**0.5])


@for_each("division", [{}, {"tp": 2}, {"tp": 2, "pp": 2}, {"dp": 2}], ids=str)
@for_each("model", ["llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b", "deepseek-v3.2", "mixtral-8x7b-v0.1", "zamba2-7b"])
def test_a_grid_is_priced_as_without_lines(
    model: str, division: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    deployments = [
        assemble(Request(model=model, gpu="h200-sxm", ideal=ideal, parallel=Parallelism(**division)))
        for ideal in (True, False)
    ]
    points = np.random.default_rng(11)
    batch, prompt = points.integers(1, 300, 40).astype(float), points.integers(1, 20_000, 40).astype(float)
    load = StaticLoad(batch=batch, prompt=prompt, output=points.integers(1, 400, 40).astype(float))
    for deployment in deployments:
        found = []
        for fewest in (1, 10**9):
            monkeypatch.setattr(module, "FEWEST", fewest)
            found.append(figures(Estimate(deployment=deployment, load=load)))
        for with_lines, without in zip(*found, strict=True):
            assert type(with_lines) is type(without)
            np.testing.assert_allclose(with_lines, without, rtol=1e-12)


def figures(estimate: Estimate) -> list[Any]:
    """What an estimate gives away: no line is among it."""
    phases = [estimate.prefill, estimate.decode]
    return [
        estimate.ttft,
        estimate.tpot,
        estimate.e2el,
        *(getattr(phase, name) for phase in phases for name in ("flop", "bytes", "wire", "resident", "mfu", "mbu")),
        *(seconds for phase in phases for seconds in phase.by_operator().values()),
        *(cost.total for phase in phases for cost in phase.costs),
    ]
