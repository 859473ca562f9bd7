"""The Scaling Book (jax-ml/scaling-book): chapter 7 and 8 at commit 0819a7d, the GPU chapter at 1a55377.

Its step time is ``B*KV/BW + max(2*B*P/FLOPs, bytes(P)/BW)``. Where it rounds a model to 26 GB or 70e9 parameters, our
spec has that many (a tied vocabulary of the right length fills it up), so that what is compared is the arithmetic and
not the rounding; the real models of the catalogue are checked beside it.
"""

from __future__ import annotations

from functools import cache

import pytest

from inferplan.catalog.files import load_hardware, load_model
from inferplan.devices.constants import IDEAL, Calibration, Fit
from inferplan.devices.hardware import HardwareSpec
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.phase import decode_phase, prefill_phase
from inferplan.estimate.roofline import price
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import FORMATS, Format, Precision, uniform
from inferplan.work.ops import Collective, Elementwise, GroupedMatmul, Matmul
from inferplan.work.parallel import Parallelism
from tests.builders import Q4, all_in, chip, dense, deploy, of_size
from tests.cases import for_each
from tests.golden.registry import Golden, Row

SB = Golden("SB", "jax-ml/scaling-book")
BF16, INT8, FP32 = FORMATS["bf16"], FORMATS["int8"], FORMATS["fp32"]
PEAK = 1.97e14
FREE_LINK = 1e30


def v5e(chips: int = 1, bandwidth: float = 8.2e11, link: float = FREE_LINK) -> HardwareSpec:
    """One TPU v5e; ``chips`` of them as one device where the book has nothing to say about the links."""
    peaks = {"bf16": PEAK * chips, "int8": 2 * PEAK * chips, "int4": 4 * PEAK * chips}
    return chip(bandwidth * chips, peaks, usable=16e9 * chips, link=link)


# Linear layers and step times -----------------------------------------------------------------------------------------


def critical_batch(weight: Format, inputs: Format) -> float:
    """Rows at which a huge matmul's arithmetic takes as long as the reading of its weights."""
    device = v5e()
    op = Matmul(name="x", m=1.0, k=1 << 20, n=1 << 20, weight=weight, input=inputs, output=BF16)
    cost = price(op, device, IDEAL)
    return float(op.resident() / device.memory.bandwidth / cost.time_math)


SB.row("001", "critical batch, bf16", lambda: critical_batch(BF16, BF16), printed=240, rel=0.002)


def streaming(deployment: Deployment, batch: float, context: float) -> float:
    """Seconds to read the weights and the cache of ``batch`` sequences once: MBU times time."""
    phase = decode_phase(deployment, StaticLoad(batch=batch, prompt=context, output=2.0), context - 1.0)
    return float(phase.mbu * phase.time)


def step_time(deployment: Deployment, batch: float, context: float) -> float:
    load = StaticLoad(batch=batch, prompt=context, output=2.0)
    return float(decode_phase(deployment, load, context - 1.0).time)


@cache
def pop_quiz() -> Deployment:
    """30e9 int8 parameters, 100 kB of KV a token, sixteen chips at 8.1e11 B/s."""
    model = of_size(30e9, layers=50, d_model=6400, heads=64, kv_heads=8, head_dim=125, d_ff=24500)
    return deploy(model, v5e(16, 8.1e11), all_in(INT8))


SB.row("002", "30B step, batch 4", lambda: step_time(pop_quiz(), 4, 8192) * 1e3, printed=2.5, value=2.568, rel=2e-3)
SB.row("003", "30B step, batch 256", lambda: step_time(pop_quiz(), 256, 8192) * 1e3, printed=21, rel=0.01)


# Llama-2-13B ----------------------------------------------------------------------------------------------------------


def llama_13b() -> ModelSpec:
    return load_model("llama-2-13b")


def llama_13b_kv(context: float = 8192.0) -> float:
    deployment = deploy(llama_13b(), v5e(8))
    return float(Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=context).state)


def residual_of_a_prefill() -> float:
    phase = prefill_phase(deploy(llama_13b(), v5e(8)), StaticLoad(prompt=8192.0))
    return next(float(cost.work.write) for cost in phase.costs if cost.op.name == "embedding")


SB.row("004", "parameters", lambda: llama_13b().parameters["total"], printed=13e9, value=13_015_449_600, rel=4e-5)
SB.row("005", "KV of 8192 tokens", llama_13b_kv, printed=6.7e9, value=6_710_886_400)
SB.row("006", "residual stream of an 8k prefill", residual_of_a_prefill, printed=80e6, value=83_886_080)


@cache
def book_13b(kv_heads: int) -> Deployment:
    """26.0 GB of weights whatever the KV heads, on eight chips with links that cost nothing."""
    model = of_size(13.0e9, layers=40, d_model=5120, heads=40, kv_heads=kv_heads, head_dim=128, d_ff=13824)
    return deploy(model, v5e(), parallel=8)


def book_context(kv_heads: int) -> float:
    """Tokens that take the book's rounded 6.7 GB (1.34 GB with 8 KV heads)."""
    return 6.7e9 * kv_heads / 40 / (book_13b(kv_heads).model.kv_elements_per_token * 2)


def table_ms(kv_heads: int, batch: float) -> float:
    return streaming(book_13b(kv_heads), batch, book_context(kv_heads)) * 1e3


_MHA = [(1, 4.98, 200.61), (8, 12.13, 659.30), (16, 20.30, 787.99), (32, 36.65, 873.21), (64, 69.33, 923.13)]
_MHA += [(240, 249.09, 963.53)]
_GQA = [(1, 4.17, 239.94), (8, 5.60, 1429.19), (16, 7.23, 2212.48), (32, 10.50, 3047.62), (64, 17.04, 3756.62)]
_GQA += [(240, 52.99, 4529.34)]
for _start, _k, _table in ((7, 40, _MHA), (19, 8, _GQA)):
    for _index, (_batch, _ms, _rate) in enumerate(_table):
        SB.row(
            f"{_start + 2 * _index:03}",
            f"13B, K {_k}, B {_batch}: step time",
            lambda k=_k, b=_batch: table_ms(k, b),
            printed=_ms,
            rel=0.0051 / _ms,
        )
        SB.row(
            f"{_start + 2 * _index + 1:03}",
            f"13B, K {_k}, B {_batch}: tokens per second",
            lambda k=_k, b=_batch: 1e3 * b / table_ms(k, b),
            printed=_rate,
            rel=2e-5,
        )

# The worked model of chapter 7 ----------------------------------------------------------------------------------------

_WORKED = {"layers": 64, "d_model": 4096, "heads": 32, "kv_heads": 8, "head_dim": 256}


@cache
def worked_model() -> ModelSpec:
    return dense(**_WORKED, d_ff=16384, vocab=32128, tied=True)


def worked_weight_load() -> float:
    """Milliseconds in which sixteen chips read the int8 weights (and the one token's cache entry, 3e-5 of it)."""
    deployment = deploy(worked_model(), v5e(16, 8.1e11), all_in(INT8))
    return streaming(deployment, 1.0, 1.0) * 1e3


@cache
def worked_moe() -> ModelSpec:
    ffn = {"kind": "moe", "experts": 16, "top_k": 2, "d_ff": 16384}
    return dense(**_WORKED, d_ff=1, vocab=32128, tied=True, ffn=ffn)


def without_router(share: bool) -> float:
    return sum(
        weight.elements * (weight.active if share else 1.0) * count
        for weight, count in worked_moe().weights()
        if weight.name != "router"
    )


def expert_critical_batch() -> float:
    """Tokens at which all experts' int8 weights take as long to read as their arithmetic: 240 E/k."""
    device = chip(1.0, {"bf16": 240.0, "int8": 480.0})
    op = GroupedMatmul(name="x", m=2.0, k=4096, n=16384, experts=16, touched=16.0, weight=INT8, input=INT8, output=BF16)
    return float(op.resident() / device.memory.bandwidth / price(op, device, IDEAL).time_math)


def kv_bytes(model: ModelSpec, precision: Precision) -> float:
    deployment = deploy(model, v5e(1024), precision)
    return Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0).kv_per_token


SB.row("031", "worked model: parameters", lambda: worked_model().parameters["total"], printed=18.4e9, value=18385207296)
SB.row("032", "worked model: int8 KV a token", lambda: kv_bytes(worked_model(), all_in(INT8)), printed="", value=262144)
SB.row("033", "worked model: weight load", worked_weight_load, printed="", value=1.419, rel=3e-4)
SB.row("034", "worked MoE: active parameters", lambda: without_router(True), printed="", value=31_270_109_184)

# Limits of sharding ---------------------------------------------------------------------------------------------------


def mlp_over_wire(d_ff: int, tokens: float, device: HardwareSpec, read: bool) -> float:
    """How many ways a plain MLP can be cut before its all-reduce takes longer than its weights (or its arithmetic)."""
    sizes = ((8192, d_ff), (d_ff, 8192))
    ops = [Matmul(name="x", m=tokens, k=k, n=n, weight=BF16, input=BF16, output=BF16) for k, n in sizes]
    wire = Collective(name="x", pattern="all_reduce", elements=tokens * 8192, group=1 << 20, format=BF16, span=1 << 20)
    own = sum(
        float(op.resident()) / device.memory.bandwidth if read else float(price(op, device, IDEAL).time_math)
        for op in ops
    )
    return own / float(price(wire, device, IDEAL).time_wire)


def latency_bound_message() -> float:
    """Bytes that a 4.5e10 B/s link carries in eight hops of a microsecond."""
    device = chip(1e12, 1e12, link=4.5e10)
    op = Collective(name="x", pattern="send", elements=1e6, group=2, format=INT8, span=2)
    return 8e-6 / float(price(op, device, IDEAL).time_wire) * 1e6


SB.row(
    "035",
    "generation: ways to shard F 16384 at B 32 when HBM is 8 times the link",
    lambda: mlp_over_wire(16384, 32.0, chip(8e11, 1e20, link=1e11), read=True),
    printed=64,
    rel=1e-5,
)
SB.row("036", "latency-bound message", latency_bound_message, printed=360_000)
SB.leave_out("037", "two-dimensional weight sharding is not modelled; docs/errata.md has the right bound, N > 72")

# Llama-3-70B ----------------------------------------------------------------------------------------------------------

LLAMA_70B = "llama-3-70b"
_SHAPE_70B = {"layers": 80, "d_model": 8192, "heads": 64, "kv_heads": 8, "head_dim": 128, "d_ff": 28672}


@cache
def book_70b() -> ModelSpec:
    """70e9 parameters, as the book rounds them."""
    return of_size(70e9, **_SHAPE_70B)


def footprint_70b(precision: Precision, chips: int, batch: float = 1.0, context: float = 8192.0) -> Footprint:
    deployment = deploy(book_70b(), v5e(chips), precision)
    return Footprint(deployment=deployment, batch=batch, prompt=1.0, context=context)


def kv_70b(context: float) -> float:
    deployment = deploy(load_model(LLAMA_70B), v5e(1024), all_in(INT8))
    return float(Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=context).state)


def held_70b(batch: float, context: float) -> float:
    footprint = footprint_70b(all_in(INT8), 1024, batch, context)
    return footprint.weights + float(footprint.state)


SB.row("038", "70B int8 KV a token", lambda: kv_70b(1.0), printed=160e3, value=163_840)
SB.row("039", "70B int8 KV of 32k tokens", lambda: kv_70b(32768.0), printed=5.3e9, value=5_368_709_120)
SB.row("040", "70B: chips for 240 x 32k", lambda: held_70b(240, 32768) / 16e9, printed=86, value=84.91, rel=1e-4)
SB.row("041", "70B: memory of 32 x 8k", lambda: held_70b(32, 8192), printed=112e9, value=112_949_672_960, rel=1e-6)


@cache
def int8_70b() -> Deployment:
    return deploy(book_70b(), v5e(1, 8.1e11), all_in(INT8), parallel=8)


SB.row("042", "70B: step on 8 chips", lambda: streaming(int8_70b(), 32, 8192) * 1e3, printed=17, value=17.43, rel=1e-3)
SB.row("043", "70B: tokens per second", lambda: 32 / streaming(int8_70b(), 32, 8192), printed=1882, rel=0.03)
SB.row(
    "044",
    "70B: ways to shard F over two axes of links, compute/link = 2550",
    lambda: mlp_over_wire(28672, 64.0, chip(1e12, 2550e10, link=2e10), read=False),
    printed=22,
    value=22.49,
    rel=2e-4,
)

_FORMATS = {"bf16": uniform("bf16"), "int8": all_in(INT8), "int4": all_in(Q4)}


def caches(name: str, chips: int) -> float:
    return float(footprint_70b(_FORMATS[name], chips).max_batch())


def queries_per_chip(name: str, chips: int) -> float:
    """Requests of 512 tokens per second and chip, at the largest batch."""
    batch = caches(name, chips)
    deployment = deploy(book_70b(), v5e(chips), _FORMATS[name])
    return batch / (streaming(deployment, batch, 8192) * 512 * chips)


for _number, _name, _chips, _printed in (("045", "bf16", 16, 43), ("046", "int8", 8, 52), ("047", "int4", 4, 67)):
    SB.row(_number, f"70B {_name}: caches of 8k", lambda n=_name, c=_chips: caches(n, c), printed=_printed, value=43)
_QPS = [("048", "bf16", 16, 0.27, 0.276), ("049", "int8", 8, 0.66, 0.553), ("050", "int4", 4, 1.72, 1.11)]
_QPS += [("051", "bf16", 32, 0.51, 0.45), ("052", "int8", 16, 1.03, 0.899), ("053", "int4", 8, 2.06, 1.80)]
for _number, _name, _chips, _printed_qps, _value in _QPS:
    SB.row(
        _number,
        f"70B {_name} on {_chips}: queries a second and chip (the book rounds the step to 19 ms)",
        lambda n=_name, c=_chips: queries_per_chip(n, c),
        printed=_printed_qps,
        value=_value,
        rel=0.04,
    )


def one_matrix() -> Matmul:
    """A chip's share of one MLP matrix on 4x8 chips, 64 rows."""
    return Matmul(name="x", m=64.0, k=8192, n=28672 // 32, weight=BF16, input=BF16, output=BF16)


def ici_time() -> float:
    op = Collective(name="x", pattern="send", elements=64.0 * 8192, group=2, format=BF16, span=2)
    return float(price(op, v5e(link=9e10), IDEAL).time) * 1e6


SB.row("054", "4x8: one activation over ICI", ici_time, printed=11, value=11.65, rel=1e-3)
SB.row("055", "4x8: weights", lambda: float(one_matrix().resident()) / 8.1e11 * 1e6, printed=18, value=18.12, rel=1e-3)
SB.row(
    "056",
    "4x8: arithmetic",
    lambda: float(price(one_matrix(), v5e(), IDEAL).time_math) * 1e6,
    printed=4,
    value=4.769,
    rel=1e-3,
)


def prefill_70b() -> float:
    """Matmul seconds of an 8k prefill at 40 % of the peak, the head over every position, no attention (as the book)."""
    constants = Calibration(name="t", constants={"matmul": {"bf16": Fit(math=0.4)}}, fused=True)
    deployment = deploy(book_70b(), v5e(16), calibration=constants)
    phase = prefill_phase(deployment, StaticLoad(prompt=8192.0, all_logits=True))
    return sum(float(cost.total) for cost in phase.costs if cost.op.kind == "matmul")


def evicted_tokens() -> float:
    """KV tokens that leave a steady batch of 32 in each step: (input + output tokens per second) x seconds a step.

    Our rate also waits for the prefill (here limited by memory alone), 0.6 % of the time.
    """
    deployment = deploy(book_70b(), chip(1.0, 1e30, usable=1e30))
    estimate = Estimate(deployment=deployment, load=StaticLoad(batch=32.0, prompt=8192.0, output=4096.0))
    return float(estimate.total_rate * estimate.tpot)


def servers() -> float:
    """Prefill servers for each generating server: a prefill's seconds x requests a second that a generator finishes."""
    deployment = deploy(book_70b(), v5e(16))
    return prefill_70b() * 32 / (streaming(deployment, 43, 8192) * 512)


SB.row("057", "70B: prefill of 8192 at 40 % MFU", prefill_70b, printed=0.91, value=0.9096, rel=2e-3)
SB.row("058", "KV tokens evicted a step", evicted_tokens, printed=96, rel=0.01)
SB.row("059", "prefill servers for a generator", servers, printed=3, rel=0.04)

# Hardware -------------------------------------------------------------------------------------------------------------

SB.row(
    "060",
    "H100: bf16 FLOP/s for a dollar an hour",
    lambda: load_hardware("h100-sxm").peak_of("bf16") / 10.8,
    printed="9.1e13 / 1.09e14 / 1.64e14",
    value=9.17e13,
    rel=2e-3,
)
_SUMMARY: list[tuple[str, str, str, float, float]] = [
    # row, device, what, printed, how far the book rounds
    ("061a", "a100-80gb-sxm", "bandwidth", 2e12, 0.02),
    ("061b", "a100-80gb-sxm", "bf16", 3.1e14, 0.01),
    ("061c", "a100-80gb-sxm", "int8", 6.2e14, 0.01),  # printed in the fp8 column: the A100 has no fp8
    ("061d", "a100-80gb-sxm", "label", 80, 0),
    ("062a", "h100-sxm", "bandwidth", 3.4e12, 0.02),
    ("062b", "h100-sxm", "bf16", 9.9e14, 0.01),
    ("062c", "h100-sxm", "fp8", 2e15, 0.02),
    ("062d", "h100-sxm", "label", 80, 0),
    ("063a", "h200-sxm", "bandwidth", 4.8e12, 0),
    ("063b", "h200-sxm", "bf16", 9.9e14, 0.01),
    ("063c", "h200-sxm", "fp8", 2e15, 0.02),
    ("063d", "h200-sxm", "label", 141, 0),
    ("064a", "b200-hgx", "bandwidth", 8e12, 0.04),  # the headline; system data sheets give 7.7
    ("064b", "b200-hgx", "bf16", 2.3e15, 0.03),
    ("064c", "b200-hgx", "fp8", 4.5e15, 0),
    ("064d", "b200-hgx", "label", 192, 0),
]


def fact(device: str, what: str) -> float:
    hardware = load_hardware(device)
    if what == "bandwidth":
        return hardware.memory.bandwidth
    if what == "label":  # "180 GB (die: 192 GB)": the largest figure is the die's
        return max(float(word) for word in hardware.memory.label.replace(")", "").split() if word.isdigit())
    return hardware.peak_of(what)


for _number, _device, _what, _figure, _rounding in _SUMMARY:
    SB.row(
        _number,
        f"{_device} {_what}",
        lambda d=_device, w=_what: fact(d, w),
        printed=_figure,
        rel=_rounding * 1.001 or 1e-9,
    )


def cores(device: str) -> float:
    return (load_hardware(device).units or 0) * 128


SB.row("065", "H100: fp32 lanes, 128 in each SM", lambda: cores("h100-sxm"), printed="16896 / 18944", value=16896)
SB.row(
    "066",
    "H100: fp32 without fused multiply-add, at the boost clock",
    lambda: load_hardware("h100-sxm").peak_of("fp32") / 2 / 1e12,
    printed="26.9 / 33.5",
    value=33.5,
    rel=2e-3,
)
SB.row(
    "067", "H100: fp16 ridge", lambda: load_hardware("h100").ridge("fp16"), printed="295 / 281", value=295.5, rel=1e-3
)


def b200_matmul(rows: float) -> float:
    op = Matmul(name="x", m=rows, k=4096, n=8192, weight=BF16, input=BF16, output=BF16)
    return float(price(op, chip(8e12, 2.3e15), IDEAL).time) * 1e6


def vector_add(elements: float) -> float:
    op = Elementwise(name="x", tokens=elements, width=1, base=FP32, reads=2.0)
    return float(price(op, chip(3.35e12, 1e15), IDEAL).time)


SB.row("068", "B200: 64 rows [us]", lambda: b200_matmul(64), printed=8.6, value=8.585, rel=1e-4)
SB.row("069", "B200: 512 rows [us]", lambda: b200_matmul(512), printed=15, value=14.94, rel=1e-3)
SB.row("070", "vector add of 2^30 [ms]", lambda: vector_add(2**30) * 1e3, printed=4.1, floor=True)
SB.row("071", "vector add of 65536 [us]", lambda: vector_add(65536) * 1e6, printed=1.5, floor=True)


def collective_time(pattern: str, elements: float, device: str = "h100-sxm") -> float:
    op = Collective(name="x", pattern=pattern, elements=elements, group=8, format=BF16, span=8)
    return float(price(op, load_hardware(device), IDEAL).time)


SB.row("072", "all-gather of 512 MiB [ms]", lambda: collective_time("all_gather", 2**28) * 1e3, printed=1.04, rel=5e-3)
SB.row("073", "all-gather of 512 MiB [ms]", lambda: collective_time("all_gather", 2**28) * 1e3, printed=1.5, floor=True)
SB.row(
    "074", "all-gather of [1024, 16384] [us]", lambda: collective_time("all_gather", 2**24) * 1e6, printed=65, rel=5e-3
)


def ring_time(message: float) -> float:
    """The bus bandwidth that a measured all-reduce reports is its ring's: 2(n - 1)/n of the message over the time."""
    op = Collective(name="x", pattern="all_reduce", elements=message / 2, group=8, format=BF16, span=8)
    return float(op.work().wire) / load_hardware("h100-sxm").link(8).bandwidth


for _number, _message, _measured in (("075", 10e9, 370e9), ("076", 58e6, 150e9)):
    SB.row(
        _number,
        f"all-reduce of {_message:g} B, in seconds of its measured bus bandwidth",
        lambda m=_message: ring_time(m),
        printed=_measured,
        value=_message * 1.75 / _measured,
        floor=True,
    )


def switch_gain() -> float:
    op = Collective(name="x", pattern="all_reduce", elements=1.0, group=8, format=BF16, span=8)
    return op.factor(False) / op.factor(True) - 1


SB.row("077", "gain of a reducing switch (theory)", switch_gain, printed=0.3, value=0.75)
SB.row(
    "078",
    "H100: tokens a GPU at which arithmetic hides the link: ridge of the link",
    lambda: load_hardware("h100-sxm").peak_of("bf16") / load_hardware("h100-sxm").link(8).bandwidth,
    printed="2200 / 2475",
    value=2200,
    rel=1e-3,
)
SB.row(
    "079",
    "H100: ways to shard F 28672 within a node",
    lambda: mlp_over_wire(28672, 64.0, chip(1e12, 990e12, link=450e9), read=False),
    printed="F/2200 in node, F/2475 beyond",
    value=28672 / 2200,
    rel=1e-5,
)
SB.row(
    "080",
    "H100: NVLink out of a GPU [GB/s]",
    lambda: load_hardware("h100-sxm").link(8).bandwidth / 1e9,
    printed="300 / 450 / 900",
    value=450,
)


@for_each("row", SB.rows, ids=lambda row: row.id)
def test_book_value(row: Row) -> None:
    assert not row.failure()


@for_each(("weight", "inputs", "tokens"), [(INT8, BF16, 120.12), (INT8, INT8, 240.24)], ids=["w8a16", "w8a8"])
def test_critical_batch_of_int8(weight: Format, inputs: Format, tokens: float) -> None:
    """SB-001: int8 weights halve the critical batch; int8 arithmetic doubles it again."""
    assert critical_batch(weight, inputs) == pytest.approx(tokens, rel=1e-4)


def test_parameters_of_13b_by_part() -> None:
    """SB-004: feed-forward 8.5e9, attention 4.2e9, vocabulary 0.3e9."""
    sums = {"ffn": 0, "attn": 0, "vocab": 0}
    for weight, count in llama_13b().weights():
        part = {"gate": "ffn", "up": "ffn", "down": "ffn", "embedding": "vocab", "head": "vocab"}.get(weight.name)
        if part or weight.name in ("q", "k", "v", "o"):
            sums[part or "attn"] += weight.elements * count
    assert sums == {"ffn": 8_493_465_600, "attn": 4_194_304_000, "vocab": 327_680_000}


@for_each("batch", [1, 8, 16, 32, 64, 240])
def test_catalogue_13b_is_near_the_table(batch: int) -> None:
    """The real model, 26.03 GB and 6.711 GB of KV, is within 0.3 % of the table that rounds to 26 and 6.7 GB."""
    printed = {b: ms for b, ms, _ in _MHA}[batch]
    deployment = deploy(llama_13b(), v5e(), parallel=8)
    table = float(llama_13b().vocab * llama_13b().d_model * 2)  # the book reads the embedding table too
    ours = streaming(deployment, batch, 8192) + table / (8 * 8.2e11)
    assert ours * 1e3 == pytest.approx(printed, rel=3e-3)


def test_13b_out_of_memory_beyond_16() -> None:
    """SB-011: "OOM beyond B=16" on 8 x 16 GB."""
    footprint = Footprint(deployment=deploy(llama_13b(), v5e(8)), batch=16.0, prompt=1.0, context=8192.0)
    assert footprint.max_batch() < 16  # the book's table is beyond even that: 107 + 26 GB are more than 128


def test_moe_totals_and_its_critical_batch() -> None:
    """SB-034: 211,658,735,616 parameters without the router; 240 E/k = 1920 tokens to be limited by arithmetic."""
    assert without_router(False) == 211_658_735_616
    assert expert_critical_batch() == pytest.approx(1920)


def test_doubled_slice_holds_138_caches() -> None:
    """SB-051 to 053: 512 - 140 = 372 GB; at 327,680 B a token that is 138 caches of 8192 (the book: 186 GB, 161)."""
    assert caches("bf16", 32) == 138


def test_step_law_on_both_sides_of_the_ridge() -> None:
    """The pop quiz's law: KV is always read; the weights cost the larger of their bytes and their arithmetic."""
    parameters = pop_quiz().model.parameters["total"]
    kv = pop_quiz().model.kv_elements_per_token * 8192
    for batch in (1, 4, 64, 256, 1024):
        law = batch * kv / (16 * 8.1e11) + max(2 * batch * parameters / (16 * PEAK), parameters / (16 * 8.1e11))
        assert step_time(pop_quiz(), batch, 8192) == pytest.approx(law, rel=0.015)  # we also move activations


def test_fast_links_make_sharding_perfect() -> None:
    """Eight chips with free links step in an eighth of the time of one."""
    one = deploy(book_13b(40).model, v5e())
    assert streaming(book_13b(40), 8, 8192) == pytest.approx(streaming(one, 8, 8192) / 8, rel=1e-5)
    eight = Parallelism(tp=8)
    assert book_13b(40).parallel == eight


def test_second_figures_of_the_hardware_rows() -> None:
    """The figures that rows 065, 067 and 080 print after their first."""
    assert cores("b200-hgx") == 18944
    assert chip(8e12, 2.25e15).ridge("bf16") == 281.25
    assert load_hardware("a100-80gb-sxm").link(8).bandwidth == 300e9
    assert load_hardware("b200-hgx").link(8).bandwidth == 900e9
