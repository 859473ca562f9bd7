"""Laws of the roofline for every operator and every fit that the bounds allow.

``INFERPLAN_LAW_EXAMPLES=10000 python -m pytest tests/properties/test_roofline_laws.py`` tries the full number.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferplan.devices.constants import IDEAL, Calibration, Fit
from inferplan.devices.hardware import HardwareSpec, Link
from inferplan.estimate.roofline import TERMS, price
from inferplan.work.formats import FORMATS
from inferplan.work.ops import (
    Attention,
    Collective,
    Conv,
    Copy,
    Elementwise,
    Gather,
    GroupedMatmul,
    Mask,
    Matmul,
    Norm,
    Op,
    Scan,
)
from tests.builders import chip

law = settings(
    max_examples=int(os.environ.get("INFERPLAN_LAW_EXAMPLES", "300")),
    deadline=None,
    derandomize="INFERPLAN_LAW_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
SLACK = 1 + 1e-12
PEAKS = {"fp32": 1e13, "bf16": 1e14, "fp8": 2e14, "int8": 2e14, "fp4": 4e14, "int4": 4e14}
formats = st.sampled_from([FORMATS[name] for name in ("bf16", "fp8", "fp8-block", "int8", "nvfp4")])
wide = st.just(FORMATS["bf16"])
counts = st.integers(1, 5000).map(float)
widths = st.sampled_from([16, 64, 100, 128, 576, 4096, 14336])


def hardware(factor: float = 1.0, units: int | None = 100) -> HardwareSpec:
    link = Link(name="wire", bandwidth=f"{1e11 * factor!r} B/s", switch_reduces=True)
    peaks = {math: peak * factor for math, peak in PEAKS.items()}
    return chip(1e12 * factor, peaks, link=[link]).model_copy(update={"units": units})


fits = st.builds(
    Fit,
    math=st.floats(0.01, 1.0),
    memory=st.floats(0.01, 1.0),
    overhead=st.floats(0.0, 1e-4),
    sharpness=st.sampled_from([1.0, 1.5, 2.0, 3.3, 4.0, float("inf")]),
    terms=st.dictionaries(st.sampled_from(sorted(TERMS)), st.floats(0.0, 1.0), max_size=4).map(
        lambda drawn: {name: share * min(TERMS[name].limit, 10 * TERMS[name].scale) for name, share in drawn.items()}
    ),
)
masks = st.one_of(
    st.just(Mask()), st.just(Mask(kind="full")), st.builds(Mask, kind=st.just("window"), size=st.integers(1, 4096))
)


@st.composite
def attentions(draw: st.DrawFn) -> Op:
    kv_heads, dim = draw(st.integers(1, 16)), draw(widths)
    return Attention(
        name="attention",
        batch=draw(counts),
        new=draw(st.one_of(st.just(1.0), counts)),
        past=draw(st.one_of(st.just(0.0), counts)),
        heads=kv_heads * draw(st.integers(1, 16)),
        kv_heads=kv_heads,
        key_dim=dim,
        value_dim=dim,
        mask=draw(masks),
        base=FORMATS["bf16"],
        kv=draw(formats),
        shared_value=draw(st.booleans()),
    )


@st.composite
def grouped(draw: st.DrawFn) -> Op:
    rows, experts = draw(counts), draw(st.integers(1, 256))
    touched = float(np.minimum(rows, experts)) * draw(st.floats(0.05, 1.0))
    inputs = draw(formats)
    shape = {"k": draw(widths), "n": draw(widths), "experts": experts}
    if draw(st.booleans()):
        shape |= {"adapter": draw(st.sampled_from(["shrink", "expand"])), "slices": draw(st.integers(1, 3))}
    return GroupedMatmul(
        name="experts", m=rows, touched=touched, weight=inputs, input=inputs, output=FORMATS["bf16"], **shape
    )


matmuls = st.builds(
    Matmul, name=st.just("matmul"), m=counts, k=widths, n=widths, weight=formats, input=formats, output=wide
)
collectives = st.builds(
    Collective,
    name=st.just("collective"),
    pattern=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]),
    elements=counts,
    group=st.integers(2, 64),
    format=wide,
    span=st.just(8),
)
scans = st.builds(
    Scan,
    name=st.just("scan"),
    batch=counts,
    new=counts,
    state=st.integers(1, 10**6),
    flops=st.floats(1.0, 1e6),
    inputs=widths,
    outputs=widths,
    base=wide,
    state_format=wide,
    tensor=st.booleans(),
)
plain: list[st.SearchStrategy[Op]] = [
    st.builds(Norm, name=st.just("norm"), tokens=counts, width=widths, base=wide),
    st.builds(Elementwise, name=st.just("pointwise"), tokens=counts, width=widths, base=wide),
    st.builds(Gather, name=st.just("gather"), tokens=counts, width=widths, table=formats, output=wide),
    st.builds(Copy, name=st.just("copy"), elements=counts, source=wide, target=formats),
    st.builds(Conv, name=st.just("conv"), batch=counts, new=counts, channels=widths, taps=st.just(4), base=wide),
]
ops = st.one_of(matmuls, grouped(), attentions(), collectives, scans, *plain)
GROWING: dict[str, tuple[str, ...]] = {
    "matmul": ("m",),
    "attention": ("batch", "past", "new"),
    "norm": ("tokens",),
    "copy": ("elements",),
    "scan": ("batch", "new"),
    "collective": ("elements",),
}


def fitted(op: Op, fit: Fit) -> Calibration:
    return Calibration(name="drawn", constants={op.kernel: {"any": fit}})


@law
@given(ops, fits)
def test_calibrated_is_never_faster_than_ideal(op: Op, fit: Fit) -> None:
    assert price(op, hardware(), fitted(op, fit)).time * SLACK >= price(op, hardware(), IDEAL).time


@law
@given(ops)
def test_ideal_saturates_a_resource(op: Op) -> None:
    cost = price(op, hardware(), IDEAL)
    assert cost.time == max(cost.time_math, cost.time_memory, cost.time_wire)
    assert cost.overhead == 0.0 and cost.time > 0.0


@law
@given(ops, fits, st.floats(0.1, 10.0))
def test_all_rates_times_c_divide_the_busy_time_by_c(op: Op, fit: Fit, factor: float) -> None:
    """Constants in seconds do not belong to the rates, so they are left out; the idle share does not change."""
    bare = fit.model_copy(
        update={"overhead": 0.0, "terms": {name: c for name, c in fit.terms.items() if TERMS[name].effect == "math"}}
    )
    slow, fast = (price(op, hardware(f), fitted(op, bare)).time for f in (1.0, factor))
    assert np.isclose(fast, slow / factor, rtol=1e-9)


@law
@given(ops, fits, st.lists(counts, min_size=2, max_size=5))
def test_scalar_equals_array_element(op: Op, fit: Fit, values: list[float]) -> None:
    for name in GROWING.get(op.kind, ()):
        if name == "new" and len({value > 16 for value in values}) > 1:
            continue  # one array is one kernel: of prefill or of decode
        changed: dict[str, Any] = {name: np.array(values)}
        whole = np.broadcast_to(_time(replace(op, **changed), fit), len(values))
        for index, value in enumerate(values):
            single: dict[str, Any] = {name: value}
            one = _time(replace(op, **single), fit)
            assert np.isclose(whole[index], one, rtol=1e-12)


def _time(op: Op, fit: Fit) -> Any:
    return price(op, hardware(), fitted(op, fit)).time


@law
@given(ops, fits, st.integers(0, 4000))
def test_more_work_never_takes_less_time(op: Op, fit: Fit, start: int) -> None:
    """Within one kernel: few new tokens and many are two. A full mask over few new tokens is one."""
    for name in GROWING.get(op.kind, ()):
        grid = np.arange(0.0, 300.0) + max(start, 17)
        changed: dict[str, Any] = {name: grid}
        seconds = np.broadcast_to(_time(replace(op, **changed), fit), len(grid))
        assert np.all(np.diff(seconds) >= -1e-9 * seconds[1:]), name


@law
@given(ops, fits)
def test_unknown_units_are_never_slower(op: Op, fit: Fit) -> None:
    """Terms that need the number of units are left out where nobody knows it."""
    known, unknown = (price(op, hardware(units=units), fitted(op, fit)).time for units in (100, None))
    assert unknown <= known * SLACK
