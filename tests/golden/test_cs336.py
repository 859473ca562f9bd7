"""Stanford CS336 lecture 10, "Inference" (stanford-cs336/spring2025-lectures, commit bbdbc9c), through our graph.

The lecture reads both vocabulary tables in full at every step and counts no norms: here that is a tied table of twice
the rows, which costs the same parameters and the same bytes. ``MBU * time`` of our decode step is the time that its
weights and cache take at the full bandwidth, which is the lecture's latency.
"""

from __future__ import annotations

import numpy as np
import pytest

from inferplan.estimate.graph import build
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.phase import Phase, decode_phase
from inferplan.estimate.roofline import price
from inferplan.models.layers.attention import AttentionLayer
from inferplan.models.layers.mla import MlaLayer
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import FORMATS
from inferplan.work.ops import Attention, Mask, Matmul
from inferplan.work.step import Segment, Step, prefill
from tests.builders import chip, dense, deploy
from tests.cases import for_each
from tests.golden.registry import Golden, Row

CS336 = Golden("CS336", "Stanford CS336 lecture 10")
BF16 = FORMATS["bf16"]
H100 = chip(3.35e12, 989e12, usable=1e12)
S = 1024


def lecture_model(kv_heads: int) -> ModelSpec:
    """Llama-2-13B as the lecture counts it; ``2V`` rows stand for its two tables."""
    return dense(
        layers=40, d_model=5120, heads=40, kv_heads=kv_heads, head_dim=128, d_ff=13824, vocab=2 * 32000, tied=True
    )


def step(kv_heads: int, batch: float) -> Phase:
    """The decode step whose new token is number S: it reads S cached positions."""
    load = StaticLoad(batch=batch, prompt=S - 1.0, output=2.0)
    return decode_phase(deploy(lecture_model(kv_heads), H100), load, S - 1.0)


def memory(kv_heads: int, batch: float) -> float:
    footprint = Footprint(deployment=deploy(lecture_model(kv_heads), H100), batch=batch, prompt=1.0, context=float(S))
    return footprint.weights + float(footprint.state)


def latency(kv_heads: int, batch: float) -> float:
    phase = step(kv_heads, batch)
    return float(phase.mbu * phase.time)


def kv_per_sequence(kv_heads: int) -> float:
    return memory(kv_heads, 2.0) - memory(kv_heads, 1.0)


CS336.row("001", "parameters, K = 40", lambda: lecture_model(40).parameters["total"], printed=13_015_449_600)
CS336.row("002", "KV of a sequence, K = 40", lambda: kv_per_sequence(40), printed=838_860_800)
CS336.row("003", "parameters, K = 8", lambda: lecture_model(8).parameters["total"], printed=11_337_728_000)
CS336.row("004", "KV of a sequence, K = 8", lambda: kv_per_sequence(8), printed=167_772_160)

_TABLE = [
    # first id, K, B, memory [B], latency [s], throughput [tok/s]
    (5, 40, 1, 26_869_760_000, 0.008020823880597015, 124.6754716082317),
    (8, 40, 64, 79_717_990_400, 0.02379641504477612, 2689.480742354489),
    (11, 40, 256, 240_779_264_000, 0.0718744071641791, 3561.7685084376703),
    (14, 8, 64, 33_412_874_240, 0.00997399231044776, 6416.688323787855),
    (17, 8, 256, 65_625_128_960, 0.01958959073432836, 13068.164795877605),
]
for _first, _k, _b, _memory, _latency, _rate in _TABLE:
    CS336.row(f"{_first:03}", f"memory, K {_k}, B {_b}", lambda k=_k, b=_b: memory(k, b), printed=_memory)
    CS336.row(
        f"{_first + 1:03}", f"latency, K {_k}, B {_b}", lambda k=_k, b=_b: latency(k, b), printed=_latency, rel=1e-12
    )
    CS336.row(
        f"{_first + 2:03}",
        f"throughput, K {_k}, B {_b}",
        lambda k=_k, b=_b: b / latency(k, b),
        printed=_rate,
        rel=1e-12,
    )


def matmul_intensity(batch: float, d: int, f: int) -> float:
    op = Matmul(name="x", m=batch, k=d, n=f, weight=BF16, input=BF16, output=BF16)
    return float(price(op, H100, deploy(lecture_model(40), H100).calibration).intensity)


def mlp_intensity(tokens: float, d: int, f: int) -> float:
    """FLOP per byte of our feed-forward, without the re-reading of the gated product, which the lecture leaves out."""
    model = dense(layers=1, d_model=d, heads=1, d_ff=f, vocab=1)
    ops = [op for op in build(deploy(model, H100), prefill(tokens, 1.0))[0].ops if op.name.startswith("ffn.")]
    product = tokens * f * BF16.width
    return sum(op.work().flop for op in ops) / (sum(op.work().bytes for op in ops) - product)


def attention_intensity(keys: float, queries: float, heads: int = 40, kv_heads: int = 40) -> float:
    """FLOP per byte when ``queries`` new tokens all look at ``keys`` positions (no causal mask: the lecture)."""
    op = Attention(
        name="x",
        batch=3.0,
        new=queries,
        past=keys - queries,
        heads=heads,
        kv_heads=kv_heads,
        key_dim=128,
        value_dim=128,
        mask=Mask(kind="full"),
        base=BF16,
        kv=BF16,
    )
    return float(op.work().flop / op.work().bytes)


CS336.row(
    "020",
    "matmul intensity BDF/(BD + DF + BF) at B 64, D 5120, F 13824",
    lambda: matmul_intensity(64, 5120, 13824),
    printed="BDF/(BD+DF+BF)",
    value=64 * 5120 * 13824 / (64 * 5120 + 5120 * 13824 + 64 * 13824),
)
CS336.row(
    "021",
    "gated MLP intensity 3BTDF/(2BTD + 2BTF + 3DF) at BT 512",
    lambda: mlp_intensity(512, 5120, 13824),
    printed="3BTDF/(2BTD+2BTF+3DF)",
    value=3 * 512 * 5120 * 13824 / (2 * 512 * 5120 + 2 * 512 * 13824 + 3 * 5120 * 13824),
)
CS336.row(
    "022",
    "attention intensity ST/(S + T) at S 1024, T 1",
    lambda: attention_intensity(1024, 1),
    printed="ST/(S+T)",
    value=1024 / 1025,
)


def slope_and_constant(values: np.ndarray, at: np.ndarray) -> tuple[float, float]:
    slope, constant = np.polyfit(at, values, 1)
    return float(slope), float(constant)


BATCHES = np.array([1.0, 64.0, 256.0])


def linear(quantity: str) -> tuple[float, float]:
    deployment = deploy(lecture_model(40), H100)
    if quantity == "memory":
        footprint = Footprint(deployment=deployment, batch=BATCHES, prompt=1.0, context=float(S))
        return slope_and_constant(footprint.weights + np.asarray(footprint.state), BATCHES)
    phase = decode_phase(deployment, StaticLoad(batch=BATCHES, prompt=S - 1.0, output=2.0), S - 1.0)
    return slope_and_constant(np.asarray(phase.mbu * phase.time), BATCHES)


CS336.row(
    "023",
    "memory(B): slope",
    lambda: linear("memory")[0],
    printed="838860800*B + 26030899200",
    value=838_860_800,
)
CS336.row(
    "024",
    "latency(B): slope",
    lambda: linear("latency")[0],
    printed="0.000250406208955224*B + 0.00777041767164179",
    value=0.000250406208955224,
)
CS336.row(
    "025",
    "throughput(B) at B 100: 127792.358398438*B/(32*B + 993)",
    lambda: 100 / latency(40, 100),
    printed="127792.358398438*B/(32*B+993)",
    value=127792.358398438 * 100 / (32 * 100 + 993),
)
CS336.row("026", "H100 intensity", lambda: H100.ridge("bf16"), printed=295.2238805970149)


def flop_per_parameter() -> float:
    """FLOP of a step's matmuls for each token and each parameter that a matmul holds."""
    phase = step(40, 64)
    flop = sum(float(cost.work.flop * cost.op.count) for cost in phase.costs if cost.op.kind == "matmul")
    return flop / 64 / lecture_model(40).parameters["total"]


CS336.row("027", "FLOP of a token and parameter", flop_per_parameter, printed="6*(B*T)*(P+O(T))", value=2.0)
CS336.leave_out("028", "the range of a number format is not part of a performance model (docs/errata.md has the value)")
CS336.row(
    "029",
    "GQA: values a token and layer, 2*K*H",
    lambda: AttentionLayer(heads=40, kv_heads=8, head_dim=128).cache().per_token,
    printed="",
    value=2 * 8 * 128,
)
CS336.row(
    "030",
    "MLA: values a token and layer, 512 + 64",
    lambda: MlaLayer(heads=128, q_lora=1536, kv_lora=512, nope_dim=128, rope_dim=64, value_dim=128).cache().per_token,
    printed="C + d_rope = 512 + 64 = 576 (DeepSeek-V2; shared by K and V)",
    value=576,
)


def pattern_model(patterns: list[dict[str, object]], repeat: int) -> ModelSpec:
    base = {"kind": "attention", "heads": 16, "kv_heads": 16, "head_dim": 64}
    ffn = {"kind": "mlp", "d_ff": 4096}
    layers = [{"repeat": repeat, "pattern": [{"mixer": base | extra, "ffn": ffn} for extra in patterns]}]
    return ModelSpec.model_validate({"name": "t", "source": "t", "d_model": 1024, "vocab": 8, "layers": layers})


CS336.row(
    "031",
    "cross-layer attention, sharing factor 2: layers with a cache of their own",
    lambda: pattern_model([{}, {"shares_cache": True}], 12).kv_elements_per_token / (2 * 16 * 64),
    printed="layers/s distinct caches",
    value=12,
)


def windowed_cache() -> float:
    """Positions kept over 24 layers for 8192 tokens when five layers in six see a window of 1024."""
    model = pattern_model([{}, *[{"window": 1024}] * 5], 4)
    footprint = Footprint(deployment=deploy(model, H100), batch=1.0, prompt=1.0, context=8192.0)
    return float(footprint.state) / (2 * 16 * 64 * 2)


CS336.row(
    "032",
    "local attention: min(S, w) on five layers of six",
    windowed_cache,
    printed="min(S,w) per local layer; character.ai: 1 global layer in 6",
    value=4 * (8192 + 5 * 1024),
)
CS336.leave_out("033", "an acceptance rule of sampling; it takes no time of its own")


@for_each("row", CS336.rows, ids=lambda row: row.id)
def test_lecture_value(row: Row) -> None:
    assert not row.failure()


def test_linear_constants() -> None:
    """The constants of the lecture's three functions of B (rows 023-025)."""
    assert linear("memory")[1] == pytest.approx(26_030_899_200, rel=1e-9)
    assert linear("latency")[1] == pytest.approx(0.00777041767164179, rel=1e-9)
    assert 1 / linear("latency")[0] == pytest.approx(3993.5, rel=1e-4)  # tokens/s at any batch, from the notes of 025


def test_limits_of_the_intensities() -> None:
    """Rows 020 to 022: B and BT while they are small, S/2 in a prefill, below 1 in decode, times N/K with GQA."""
    assert matmul_intensity(1, 5120, 13824) == pytest.approx(1.0, rel=1e-3)
    assert mlp_intensity(1, 5120, 13824) == pytest.approx(1.0, rel=1e-3)
    assert attention_intensity(4096, 4096) == 4096 / 2
    assert attention_intensity(1 << 20, 1) < 1.0
    assert attention_intensity(1 << 20, 1, heads=40, kv_heads=8) == pytest.approx(40 / 8, rel=1e-4)


def test_real_step_reads_one_row_of_the_embedding_table() -> None:
    """What the lecture charges too much: with two tables of which one is looked up, a step is 1.2 % shorter."""
    model = dense(layers=40, d_model=5120, heads=40, head_dim=128, d_ff=13824, vocab=32000)
    phase = decode_phase(deploy(model, H100), StaticLoad(prompt=S - 1.0, output=2.0), S - 1.0)
    ours = float(phase.mbu * phase.time)
    assert latency(40, 1) - ours == pytest.approx(32000 * 5120 * 2 / 3.35e12, rel=1e-9)


def test_no_batch_of_256_on_80_gb() -> None:
    """The lecture's remark on row 011: 240.8 GB do not fit."""
    footprint = Footprint(
        deployment=deploy(lecture_model(40), chip(3.35e12, 989e12)), batch=256.0, prompt=1.0, context=S
    )
    assert not footprint.fits
    assert footprint.max_batch() < 256


def test_two_segments_share_matmuls() -> None:
    """A mixed step's matmuls see the sum of the tokens: B*T = 64 + 512."""
    both = Step(segments=(Segment(batch=64.0, new=1.0, past=1023.0), Segment(batch=1.0, new=512.0, past=0.0)))
    ops = build(deploy(lecture_model(40), H100), both)[0].ops
    assert {float(op.m) for op in ops if isinstance(op, Matmul) and op.name != "head"} == {576.0}
