"""What published figures of single kernels say of a maker's devices, beside the constants carried from others.

A table of kernels tells every constant of one (:mod:`tools.fitting.tables`); a figure for each of a few kernels tells
how far the carried constants are off, kind by kind: the share of the peak that matmuls and attention reach, the
memory's bandwidth that any kernel can reach, the links. Those are taken over; how a kernel depends on its shape is
carried.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibrate.fit import Measurement, fit_kernel, stack
from inferplan.catalog.files import load_hardware, read_yaml, validate
from inferplan.devices.constants import Calibration, Fit
from inferplan.spec import Spec
from inferplan.work.formats import find_format
from inferplan.work.ops import Attention, Collective, Mask, Matmul, Op

FIGURES = Path(__file__).parent / "cdna.yaml"
BF16 = find_format("bf16")
HEADS = 32
"""Of the published attention: enough that the rate no longer depends on it."""


class Rates(Spec):
    """Rates by shape on one device."""

    gpu: str
    source: str
    format: str = "bf16"
    group: int = 1
    rates: dict[str | int, float]


class AttentionRate(Spec):
    """FLOP/s of one attention."""

    gpu: str
    source: str
    batch: int
    tokens: int
    head_dim: int
    rate: float


class Figures(Spec):
    """``cdna.yaml``: TFLOP/s of matmuls and attention, TB/s of streams, GB/s of bus bandwidth of all-reduces."""

    azure: str
    matmuls: list[Rates]
    streams: list[Rates]
    attention: list[AttentionRate]
    all_reduce: list[Rates]


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How the published kernels compare.

    matmul: measured over carried rates by arithmetic; attention: the same of prompts. stream: the largest share of the
    memory's bandwidth that was reached, which no kernel exceeds; copy: the mean of it. all_reduce: the constants of the
    library's own collective.
    """

    matmul: dict[str, float]
    attention: float
    stream: float
    copy: float
    all_reduce: Fit
    sources: list[str]


def figures() -> Figures:
    """The published figures on file."""
    return validate(FIGURES, read_yaml(FIGURES), Figures)


def matmuls(found: Figures) -> list[tuple[str, str, Measurement]]:
    """(device, arithmetic, measurement) of each published matmul."""
    rows = []
    for entry in found.matmuls:
        fmt = find_format(entry.format)
        for shape, rate in entry.rates.items():
            m, n, k = map(int, str(shape).split("x"))
            op = Matmul(name="gemm", m=float(m), n=n, k=k, weight=fmt, input=fmt, output=BF16)
            rows.append((entry.gpu, entry.format, _timed(op, rate, entry.source)))
    return rows


def attentions(found: Figures) -> list[tuple[str, str, Measurement]]:
    """(device, format, measurement) of each published attention of prompts."""
    rows = []
    for entry in found.attention:
        op = Attention(
            name="attention",
            batch=float(entry.batch),
            new=float(entry.tokens),
            past=0.0,
            heads=HEADS,
            kv_heads=HEADS,
            key_dim=entry.head_dim,
            value_dim=entry.head_dim,
            mask=Mask(),
            base=BF16,
            kv=BF16,
        )
        rows.append((entry.gpu, "bf16", _timed(op, entry.rate, entry.source)))
    return rows


def _timed(op: Op, rate: float, source: str) -> Measurement:
    return Measurement(op=op, seconds=float(op.work().flop) / (rate * 1e12), source=source)


def all_reduces(found: Figures) -> list[Measurement]:
    """Each published all-reduce, of bf16 elements."""
    rows = []
    for entry in found.all_reduce:
        for size, rate in entry.rates.items():
            group, sent = entry.group, float(size)
            seconds = 2.0 * (group - 1) / group * sent / (rate * 1e9)
            op = Collective(
                name="all_reduce", pattern="all_reduce", elements=sent / 2.0, group=group, format=BF16, span=group
            )
            rows.append(Measurement(op=op, seconds=seconds, source=entry.source))
    return rows


def slower(rows: list[tuple[str, str, Measurement]], carried: Calibration) -> float:
    """The factor on the carried share of the peak that brings the predicted times to the measured ones.

    Least absolute error of the logarithm; every other constant as carried.
    """
    factors = np.exp(np.linspace(np.log(0.2), np.log(1.3), 400))
    cost = np.zeros_like(factors)
    for gpu, _, measurement in rows:
        fit = carried.fit(measurement.op.kernel, measurement.op.label)
        assert fit is not None
        stacked = stack([measurement], load_hardware(gpu), tuple(fit.terms))
        for index, factor in enumerate(factors):
            changed = fit.model_copy(update={"math": min(1.0, fit.math * factor)})
            cost[index] += abs(float(np.log(stacked.predict(changed)[0] / measurement.seconds)))
    return float(factors[np.argmin(cost)])


def shares(carried: Calibration, found: Figures | None = None) -> Shares:
    """What the published figures say, beside ``carried`` constants that an engine was chosen of."""
    found = found or figures()
    products = matmuls(found)
    streams = [
        rate * 1e12 / load_hardware(entry.gpu).memory.bandwidth
        for entry in found.streams
        for rate in entry.rates.values()
    ]
    reduces = all_reduces(found)
    device = load_hardware(found.all_reduce[0].gpu)
    fitted = fit_kernel(reduces, device, ("ramp",))
    return Shares(
        matmul={name: slower([row for row in products if row[1] == name], carried) for name in ("bf16", "fp8")},
        attention=slower(attentions(found), carried),
        stream=max(streams),
        copy=float(np.mean(streams)),
        all_reduce=fitted.model_copy(update={"source": "RCCL's published bus bandwidth"}),
        sources=sorted({entry.source for entry in (*found.matmuls, *found.streams, *found.all_reduce)}),
    )
