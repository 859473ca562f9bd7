"""The browser's stand-in for numpy against numpy: the same arrays, types, shapes and streams of draws."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from browser.standin import numpy as stand_in
from tests.cases import for_each

SHAPES = ((), (1,), (7,), (300,), (3, 4), (4, 1), (1, 5), (2, 3, 4), (0,), (2, 0))


def both(values: Any, dtype: Any = float) -> tuple[Any, Any]:
    return np.asarray(values, dtype=dtype), stand_in.asarray(values, dtype=dtype)


def same(mine: Any, other: Any, exactly: bool = True) -> None:
    """The stand-in's result is numpy's: shape, kind, elements."""
    if isinstance(mine, (tuple, list)):
        assert len(mine) == len(other)
        for one, two in zip(mine, other):
            same(one, two, exactly)
        return
    expected = np.asarray(mine)
    assert np.shape(mine) == stand_in.shape(other), (mine, other)
    found = stand_in.asarray(other)
    assert expected.dtype.kind == found.dtype.kind, (mine, other)
    given, got = expected.ravel().tolist(), list(found.data)
    for one, two in zip(given, got, strict=True):
        agree = one == two or (math.isnan(one) and math.isnan(two))
        assert agree or (not exactly and math.isclose(one, two, rel_tol=4e-16 * 8)), (mine, other)


def arrays(seed: int, shape: tuple[int, ...], low: float = -3.0, high: float = 3.0) -> tuple[Any, Any]:
    values = np.random.default_rng(seed).uniform(low, high, shape)
    return values, stand_in.asarray(values.tolist()).reshape(shape)


BINARY = ["add", "subtract", "multiply", "true_divide", "maximum", "minimum", "mod", "floor_divide", "less"]
UNARY = ["negative", "absolute", "floor", "ceil", "rint", "sign", "square", "isnan", "isfinite", "sqrt"]
NEARLY = ["exp", "log", "log2", "log10", "log1p", "expm1", "cbrt"]


@for_each("name", BINARY)
def test_functions_of_two_arrays_broadcast_as_numpy_has_them(name: str) -> None:
    for place, shape in enumerate(SHAPES):
        for other in SHAPES[: place + 1]:
            a, mine = arrays(1, shape)
            b, yours = arrays(2, other)
            try:
                expected = getattr(np, name)(a, b)
            except ValueError:
                with pytest.raises(ValueError):
                    getattr(stand_in, name)(mine, yours)
                continue
            same(expected, getattr(stand_in, name)(mine, yours))


@for_each("name", UNARY + NEARLY)
def test_functions_of_one_array(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for shape in SHAPES:
            a, mine = arrays(3, shape, -0.9, 4.0)
            same(getattr(np, name)(a), getattr(stand_in, name)(mine), exactly=name in UNARY)
        for value in (0.0, -0.0, -1.0, math.inf, -math.inf, math.nan, 1e308, 710.0):
            same(getattr(np, name)(np.float64(value)), getattr(stand_in, name)(value), exactly=name in UNARY)


def test_numbers_divide_by_zero_as_numpy_has_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one, other in ((1.0, 0.0), (-1.0, 0.0), (0.0, 0.0), (5.0, math.inf), (-8.0, 1 / 3), (0.0, -1.0)):
            for operate in (lambda x, y: x / y, lambda x, y: x % y, lambda x, y: x**y, lambda x, y: x // y):
                same(operate(np.float64(one), other), operate(stand_in.float64(one), other))


REDUCTIONS: list[tuple[str, dict[str, Any]]] = [
    (name, options)
    for name in ("sum", "mean", "max", "min", "std", "any", "all", "argmax", "cumsum", "median")
    for options in ({}, {"axis": 0}, {"axis": -1})
]


@for_each("name, options", REDUCTIONS)
def test_reductions_round_as_numpy_does(name: str, options: dict[str, Any]) -> None:
    for shape in ((7,), (129,), (1000,), (5, 40), (300, 3), (4, 5, 6)):
        a, mine = arrays(4, shape)
        exactly = name not in ("std",) and not (name in ("sum", "mean") and len(shape) == 3)
        same(getattr(np, name)(a, **options), getattr(stand_in, name)(mine, **options), exactly)


INDEXES: list[Callable[[Any], Any]] = [
    lambda np: 1,
    lambda np: -1,
    lambda np: slice(1, None),
    lambda np: slice(None, None, -1),
    lambda np: (slice(None), 2),
    lambda np: (1, slice(0, 3)),
    lambda np: (Ellipsis, 0),
    lambda np: (None, Ellipsis),
    lambda np: (slice(None), None),
    lambda np: np.asarray([2, 0, -1]),
    lambda np: (np.asarray([2, 0]), np.asarray([1, 3])),
    lambda np: (slice(None), np.asarray([[1, 0], [3, 3]])),
    lambda np: (1, np.asarray([2, 0])),
    lambda np: np.asarray([True, False, True]),
    lambda np: (np.asarray([True, False, True]), slice(1, 3)),
    lambda np: [0, 2],
]


@for_each("index", INDEXES)
def test_parts_of_arrays(index: Callable[[Any], Any]) -> None:
    for shape in ((3, 4), (3, 4, 2)):
        a, mine = arrays(5, shape)
        expected = a[index(np)]
        same(expected, mine[index(stand_in)])
        a[index(np)], mine[index(stand_in)] = 7.0, 7.0
        same(a, mine)


def grown(whole: Any) -> None:
    part = whole[2:]
    part += 1.0


def grown_by_name(whole: Any) -> None:
    parts = {"end": whole[2:]}
    parts["end"] += 1.0
    parts["end"] + 1.0


def grown_into_a_part(whole: Any) -> None:
    stand_in.add(whole[:2], 1.0, out=whole[2:4])


def grown_at_a_part(whole: Any) -> None:
    stand_in.add.at(whole[2:], [0, 0], 1.0)


def read_late(whole: Any) -> None:
    part, same_part = whole[1:3], whole[1:4].reshape(-1)[:1]
    whole.reshape(2, 3)[0] = 99.0
    with pytest.raises(NotImplementedError, match="is not as the array is"):
        same_part.tolist()
    part + 1.0


@for_each("write", [grown, grown_by_name, grown_into_a_part, grown_at_a_part, read_late])
def test_a_part_of_an_array_is_not_a_copy_in_silence(write: Callable[[Any], None]) -> None:
    """In numpy each of these changes both."""
    with pytest.raises(NotImplementedError, match="part of an array"):
        write(stand_in.arange(6.0))


def test_parts_of_an_array_that_are_written_at_once() -> None:
    def write(module: Any) -> Any:
        whole, table = module.arange(6.0), module.zeros((2, 3))
        whole[2:] += 1.0
        whole[[0, 1]] *= 2.0
        table[0] += whole[:3]
        table[:, 1] -= 7.0
        module.maximum.at(whole, [1, 1], [5.0, 3.0])
        module.divide(1.0, whole, out=table.reshape(-1), where=whole > 0)
        sums = module.cumsum(table, axis=0)
        sums += 1.0
        return whole, table, sums

    same(write(np), write(stand_in))


WRONG: list[Callable[[Any], Any]] = [
    lambda np: operator.iadd(np.asarray([1, 2]), 0.5),
    lambda np: np.add([1, 2], 0.5, out=np.asarray([1, 2])),
    lambda np: np.add([1, 2], 1, out=np.asarray([1, 2, 3])),
    lambda np: np.asarray([2]) ** -1,
    lambda np: np.power(2, np.asarray([-1, 2])),
    lambda np: np.asarray([True]) - np.asarray([True]),
    lambda np: np.average(np.asarray([[1.0, 2.0]]), weights=np.asarray([1.0, 2.0])),
]


@for_each("call", WRONG)
def test_what_numpy_refuses_is_refused(call: Callable[[Any], Any]) -> None:
    for module in (np, stand_in):
        with pytest.raises((TypeError, ValueError)):
            call(module)


UNKNOWN: list[Callable[[Any], Any]] = [
    lambda np: np.add.at(np.asarray([1, 2]), [0], 0.5),
    lambda np: np.mean([1.0, 2.0], where=[True, False]),
    lambda np: np.sum([1.0, 2.0], where=[True, False]),
    lambda np: np.clip([1.0, 2.0], 0.0, 1.0, out=np.zeros(2)),
    lambda np: np.add([1.0], 1.0, where=[False]),
    lambda np: np.add([1.0], 1.0, dtype=int),
    lambda np: np.asarray([0.1, 0.2], dtype="float32").sum(),
    lambda np: np.tile(np.eye(2), 2),
]


@for_each("call", UNKNOWN)
def test_what_would_be_answered_otherwise_is_refused(call: Callable[[Any], Any]) -> None:
    with pytest.raises((TypeError, NotImplementedError)):
        call(stand_in)


def calls(module: Any, given: Callable[[Any], Any]) -> list[Any]:
    """Functions of whole arrays."""
    a, b, whole = given([3.0, 1.0, 2.0, 2.0]), given([0.5, 1.5, 2.5, 9.0]), module.asarray([3, 1, 2, 2])
    return [
        module.concatenate([a, b]), module.stack([a, b], axis=1), module.where(a > 1.5, a, 0.0), module.sort(a),
        module.argsort(a, kind="stable"), module.searchsorted(b, a), module.searchsorted(b, 1.5, side="right"),
        module.unique(a, return_inverse=True, return_counts=True), module.interp(a, b, a), module.interp(0.7, b, a),
        module.diff(a), module.repeat(a, whole), module.tile(a, 2), module.cumprod(a), module.clip(a, 1.5, 2.5),
        module.bincount(whole, minlength=6), module.bincount(whole, a), module.histogram(a, bins=b)[0],
        module.percentile(a, [5.0, 50.0, 99.0]), module.quantile(a, 0.4), module.linspace(1.0, 9.0, 7),
        module.arange(0.0, 1.0, 0.1), module.convolve(a, b), module.dot(a, b), module.outer(a, b),
        module.flatnonzero(a > 1.5), module.lexsort([a, b]), module.array_split(a, 3),
        module.split(a, [1, 3]), module.isin(whole, [1, 2]),
        module.append(a, 5.0), module.nanmax(a), module.nansum(a), module.count_nonzero(a),
        module.broadcast_to(a, (2, 4)), module.full((2, 2), 3), module.eye(3),
        module.asarray([[1.0, 2.0], [3.0, 4.0]]) @ module.asarray([1.0, 1.0]),
        module.maximum.accumulate(a), module.subtract.outer(a, b), module.round(a / 3.0, 2), module.nan_to_num(a / 3.0),
        module.float64(2.5) * a, 2 * whole, whole / 2, whole // 2, whole * 1.5, module.unravel_index(whole, (2, 2)),
        module.array([1, 2.5]), module.array([True, False]), ~(a > 1.5), module.zeros((2, 3), dtype=int), a.astype(int),
        module.prod(a > 1.5), module.diff(a > 1.5), module.sum(a, dtype=int), module.cumsum(a, dtype=int),
        module.cumprod(a > 0.5), module.float64(2.567).round(2), module.max(2.0, initial=3.0), module.ix_(a, b),
        module.average(module.stack([a, b]), axis=0, weights=module.asarray([0.25, 0.5])),
        module.average(module.stack([a, b]), axis=-1, weights=b), module.power(whole, -1.0), a**-1,
        module.add(module.asarray(a, dtype="float32"), module.asarray(b, dtype="float32")),
    ]  # fmt: skip


def test_functions_of_whole_arrays() -> None:
    for mine, other in zip(calls(np, np.asarray), calls(stand_in, stand_in.asarray), strict=True):
        same(mine, other)


def test_equations_and_transforms_are_nearly_numpys() -> None:
    a, mine = arrays(6, (5, 5))
    b, right = arrays(7, (5, 2))
    assert np.allclose(np.linalg.solve(a, b), stand_in.linalg.solve(mine, right).tolist(), rtol=1e-10)
    line, own = arrays(8, (40,))
    expected = np.fft.irfft(np.fft.rfft(line, 80) ** 3, 80)
    assert np.allclose(expected, stand_in.fft.irfft(stand_in.fft.rfft(own, 80) ** 3, 80).tolist())
    assert np.allclose(np.geomspace(1, 900, 30), stand_in.geomspace(1, 900, 30).tolist(), rtol=1e-14)


SEEDS: list[Any] = [0, 7, (0, 3), (5, 2, 2**40), 123456789012]


@for_each("seed", SEEDS)
def test_draws_are_those_of_numpy(seed: Any) -> None:
    """In one stream, one after another; normal deviates, whose tables are rounded otherwise, to 1e-12."""
    a, b = np.random.default_rng(seed), stand_in.random.default_rng(seed)
    for name, given in (
        ("random", ()), ("exponential", (2.0,)), ("gamma", (1.0, 0.5)), ("gamma", (0.3, 2.0)), ("integers", (3, 900)),
        ("normal", (10, 3)), ("gamma", (4.0, 2.0)), ("lognormal", (2, 0.5)), ("integers", (7,)), ("random", ()),
    ):  # fmt: skip
        expected = np.asarray(getattr(a, name)(*given, size=700))
        found = getattr(b, name)(*given, size=700).tolist()
        if name in ("normal", "lognormal") or given == (4.0, 2.0):
            assert np.allclose(expected, found, rtol=1e-12, atol=1e-12)
        else:
            assert expected.tolist() == found, name
    assert a.choice(3, 50, p=[0.2, 0.5, 0.3]).tolist() == b.choice(3, 50, p=[0.2, 0.5, 0.3]).tolist()
    assert a.choice([1.5, 2.5, 9.0], 50).tolist() == b.choice([1.5, 2.5, 9.0], 50).tolist()
    assert a.permutation(100).tolist() == b.permutation(100).tolist()
    assert int(a.integers(9)) == int(b.integers(9)) and float(a.random()) == float(b.random())


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(NotImplementedError, match="einsum"):
        stand_in.einsum
