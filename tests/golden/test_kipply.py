"""kipply, "Transformer Inference Arithmetic" (repository kipply/blog), through our graph.

Its models are multi-head, ungated, ``F = 4 D``, and rounded to a name: a tied vocabulary fills each up to the size it
states. Its A100-40GB has 1.5e12 B/s, 312e12 FLOP/s and 300e9 B/s of links.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from inferplan.devices.constants import IDEAL, Calibration, Fit
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.phase import Phase, decode_phase, prefill_phase
from inferplan.estimate.roofline import price
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import FORMATS
from inferplan.work.ops import Matmul
from tests.builders import chip, dense, deploy, of_size
from tests.cases import for_each
from tests.golden.registry import Golden, Row

KIP = Golden("KIP", "kipply, Transformer Inference Arithmetic")
FP16 = FORMATS["fp16"]
A100 = chip(1.5e12, 312e12, usable=40e9, link=300e9)
RING_16 = 15 / 16
"""kipply sends every activation whole; a ring of n sends (n - 1)/n of it."""


def shape(layers: int, d_model: int, heads: int, **more: Any) -> dict[str, Any]:
    return {"layers": layers, "d_model": d_model, "heads": heads, "d_ff": 4 * d_model, "gated": False} | more


_SHAPES = {
    "13B": (12.6e9, shape(40, 5120, 40)),
    "52B": (52e9, shape(64, 8192, 64)),
    "260B": (260e9, shape(80, 16384, 128)),
    "530B": (530e9, shape(105, 20480, 128)),
}


@cache
def model(name: str) -> ModelSpec:
    """A model of the stated size; ``name*`` has next to no vocabulary, so it is its matrices: 12 L D^2."""
    if name.endswith("*"):
        return dense(**_SHAPES[name[:-1]][1], vocab=16, tied=True)
    size, dimensions = _SHAPES[name]
    return of_size(size, **dimensions)


def deployment(name: str, gpus: int = 1, calibration: Calibration = IDEAL) -> Deployment:
    return deploy(model(name), A100, "fp16", gpus, calibration)


def step(name: str, gpus: int, batch: float, past: float = 0.0, calibration: Calibration = IDEAL) -> Phase:
    load = StaticLoad(batch=batch, prompt=max(past, 1.0), output=2.0)
    return decode_phase(deployment(name, gpus, calibration), load, past)


def math_seconds(phase: Phase) -> float:
    return sum(float(cost.time_math * cost.op.count) for cost in phase.costs if cost.op.kind == "matmul")


def wire_ms(name: str, gpus: int, batch: float) -> float:
    """Milliseconds of the two all-reduces of each layer, as kipply counts them (whole activations)."""
    costs = [cost for cost in step(name, gpus, batch).costs if cost.op.name in ("attn.all_reduce", "ffn.all_reduce")]
    return sum(float(cost.total) for cost in costs) * 1e3 * gpus / (gpus - 1)


def key_value_flop() -> float:
    """FLOP of the key and value projections: what a model loses that attends to another layer's cache."""
    sharing = dense(**_SHAPES["52B"][1], vocab=16, tied=True, mixer={"shares_cache": True})
    flop = []
    for spec in (model("52B*"), sharing):
        phase = decode_phase(deploy(spec, A100, "fp16"), StaticLoad(prompt=1.0, output=2.0), 0.0)
        flop.append(sum(float(cost.work.flop * cost.op.count) for cost in phase.costs if cost.op.name == "attn.qkv"))
    return flop[0] - flop[1]


def matrix_flop() -> float:
    return sum(
        float(cost.work.flop * cost.op.count)
        for cost in step("52B*", 1, 1.0).costs
        if cost.op.kind == "matmul" and cost.op.name != "head"
    )


def forward_of_208() -> float:
    phase = prefill_phase(deployment("52B*"), StaticLoad(prompt=208.0))
    return sum(float(c.time_math * c.op.count) for c in phase.costs if c.op.kind == "matmul") * 1e3


def footprint(gpus: int) -> Footprint:
    whole = chip(1.5e12 * gpus, 312e12 * gpus, usable=40e9 * gpus)
    return Footprint(deployment=deploy(model("52B"), whole, "fp16"), batch=1.0, prompt=1.0, context=1.0)


def streaming_ms(name: str, gpus: int) -> float:
    phase = step(name, gpus, 1.0)
    return float(phase.mbu * phase.time) * 1e3


def small_messages() -> float:
    """Four messages of 8 us a layer: an all-reduce is a reduce-scatter and an all-gather."""
    constants = Calibration(name="t", constants={"collective.all_reduce": {"any": Fit(overhead=16e-6)}}, fused=True)
    costs = step("260B", 16, 1.0, calibration=constants).costs
    return (
        sum(float(c.overhead * c.op.count) for c in costs if c.op.name in ("attn.all_reduce", "ffn.all_reduce")) * 1e3
    )


def matmul_us(n: int) -> float:
    op = Matmul(name="x", m=512.0, k=5120, n=n, weight=FP16, input=FP16, output=FP16)
    return float(price(op, A100, IDEAL).time) * 1e6


def request(gpus: int) -> Estimate:
    """The benchmark's request: 512 tokens in, ten decode steps."""
    return Estimate(deployment=deployment("13B*", gpus), load=StaticLoad(prompt=512.0, output=11.0))


KIP.row("001", "FLOP of k and v a token", key_value_flop, printed=17_179_869_184)
KIP.row("002", "A100-40GB ridge", lambda: A100.ridge("fp16"), printed=208)
KIP.row("003", "forward pass of 208 tokens", forward_of_208, printed=69, value=68.72, rel=1e-4)
KIP.row("004", "weights", lambda: footprint(8).weights, printed=104e9, rel=1e-6)
KIP.row("005", "KV a token", lambda: footprint(8).kv_per_token, printed=2_097_152)
KIP.row("006", "tokens in 3 x 40 - 104 GB", lambda: footprint(3).max_context(), printed=8000, value=7629)
KIP.row("007", "tokens in 4 x 40 - 104 GB", lambda: footprint(4).max_context(), printed=23000, value=26_703, rel=1e-4)
KIP.row("008", "260B step, batch 1", lambda: streaming_ms("260B", 16), printed=22, value=21.67, rel=1e-3)
KIP.row("009", "260B messages, batch 1", small_messages, printed=2.56)
KIP.row(
    "010", "260B step, batch 512", lambda: math_seconds(step("260B", 16, 512)) * 1e3, printed=53, value=53.33, rel=1e-3
)
KIP.row("011", "260B wire, batch 512", lambda: wire_ms("260B", 16, 512), printed=18, value=17.9, rel=1e-3)
KIP.row("012", "FLOP a byte on the wire", lambda: A100.peak_of("fp16") / A100.link(2).bandwidth, printed=1040)
KIP.row("013", "FLOP a token", matrix_flop, printed=103_079_215_104)
KIP.row(
    "014",
    "52B compute, batch 256",
    lambda: math_seconds(step("52B", 4, 256)) * 1e3,
    printed="21 / 4",
    value=21.33,
    rel=1e-3,
)
for _number, _gpus, _printed, _floor in (("015", 1, 22.0, 16.8), ("018", 2, 13.5, 8.4)):
    KIP.row(
        _number,
        f"13B decode on {_gpus}: its roofline",
        lambda g=_gpus: streaming_ms("13B*", g),
        printed=_printed,
        value=_floor,
        rel=2e-3,
    )
for _number, _gpus, _printed in (("016", 1, 63.17), ("019", 2, 45.45)):
    KIP.row(_number, f"13B prefill on {_gpus}", lambda g=_gpus: request(g).ttft * 1e3, printed=_printed, floor=True)
for _number, _gpus, _printed in (("017", 1, 283.6), ("020", 2, 180.86)):
    KIP.row(_number, f"13B request on {_gpus}", lambda g=_gpus: request(g).e2el * 1e3, printed=_printed, floor=True)
KIP.leave_out("021", "a measured fraction of bandwidth; calibration, not arithmetic")
KIP.row("022", "MLP matmul, 512 rows", lambda: matmul_us(20480), printed=476, value=344, rel=1e-3)
KIP.row("023", "attention projection, 512 rows", lambda: matmul_us(5120), printed=159, value=86, rel=1e-3)
KIP.row(
    "024",
    "TP 2 messages of a layer, 512 rows [us]: the wire alone",
    lambda: (
        sum(
            float(cost.time_wire)
            for cost in prefill_phase(deployment("13B*", 2), StaticLoad(prompt=512.0)).costs
            if cost.op.name in ("attn.all_reduce", "ffn.all_reduce")
        )
        * 1e6
    ),
    printed=45,
    floor=True,
)
KIP.row(
    "025",
    "530B compute, batch 512",
    lambda: math_seconds(step("530B", 16, 512)) * 1e3,
    printed=109,
    value=108.7,
    rel=1e-3,
)
KIP.row("026", "530B wire, batch 512", lambda: wire_ms("530B", 16, 512), printed=29, value=29.36, rel=1e-3)
KIP.row(
    "027",
    "530B KV of 148 tokens",
    lambda: float(
        Footprint(
            deployment=deploy(model("530B"), chip(1e15, 1e18, usable=1e15), "fp16"),
            batch=1.0,
            prompt=1.0,
            context=148.0,
        ).state
    ),
    printed=1.27e9,
    value=1_273_036_800,
)


@for_each("row", KIP.rows, ids=lambda row: row.id)
def test_kipply_value(row: Row) -> None:
    assert not row.failure()


def test_a_ring_sends_a_sixteenth_less() -> None:
    """What KIP-011 leaves out: 15/16 of 17.9 ms are on the wire."""
    costs = [c for c in step("260B", 16, 512).costs if c.op.name in ("attn.all_reduce", "ffn.all_reduce")]
    assert sum(float(c.total) for c in costs) == pytest.approx(17.9e-3 * RING_16, rel=1e-3)


def test_exercise_7_messages() -> None:
    """KIP-014: 3.58 ms of messages for 52B at batch 256 on four GPUs."""
    assert wire_ms("52B", 4, 256) == pytest.approx(3.58, rel=1e-3)


def test_measured_matmuls_are_slower_than_the_roofline() -> None:
    """KIP-022 and 023: 476 and 159 us measured, 72 % and 54 % of the peak."""
    assert matmul_us(20480) / 476 == pytest.approx(0.72, abs=0.01)
    assert matmul_us(5120) / 159 == pytest.approx(0.54, abs=0.01)
