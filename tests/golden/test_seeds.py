"""The worked numbers of four introductions to LLM inference, the right ones and the wrong ones (docs/errata.md).

"Inference Basics" (rows 1-11), an inference cheat sheet (12), "why LLM inference is different" (13-27) and notes on
CS336 lecture 10 (28-30).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from inferplan.catalog.files import load_hardware, load_model
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.roofline import price
from inferplan.models.layers.mla import MlaLayer
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import FORMATS
from inferplan.work.ops import Attention, Mask, Matmul
from tests.builders import chip, deploy, of_size
from tests.cases import for_each
from tests.golden.registry import Golden, Row

SEED = Golden("SEED", "introductions to LLM inference")
FP16 = FORMATS["fp16"]
A100 = chip(2e12, 312e12, usable=80e9)
"""The A100 of the texts: 2 TB/s and 312 TFLOP/s."""


def footprint(name: str, batch: float = 1.0, context: float = 2048.0) -> Footprint:
    return Footprint(deployment=deploy(load_model(name), A100, "fp16"), batch=batch, prompt=1.0, context=context)


def of_load(model: ModelSpec, prompt: float, output: float, batch: float = 1.0, all_logits: bool = False) -> Estimate:
    load = StaticLoad(batch=batch, prompt=prompt, output=output, all_logits=all_logits)
    return Estimate(deployment=deploy(model, A100, "fp16"), load=load)


@cache
def eight_billion() -> ModelSpec:
    """Llama-3.1-8B as the text rounds it: 8.0e9 parameters, all of them read for a token."""
    return of_size(8e9, layers=32, d_model=4096, heads=32, kv_heads=8, head_dim=128, d_ff=14336)


def kv_of_a_layer() -> float:
    """What one layer's attention reads in the step whose context reaches 2048."""
    estimate = of_load(load_model("llama-2-7b"), 2047.0, 2.0)
    return next(float(cost.op.resident()) for cost in estimate.decode.costs if cost.op.kind == "attention")


def first_token_twice() -> float:
    """How many decode steps a request of 100 tokens waits for after its first token."""
    estimate = of_load(eight_billion(), 1000.0, 100.0)
    return float((estimate.e2el - estimate.ttft) / estimate.tpot)


def quadratic_crossing(name: str) -> float:
    """The prompt, in model widths, at which attention's FLOP equal those of the matrices."""
    model = load_model(name)
    prompts = np.arange(1.0, 30.0, 0.5) * model.d_model
    costs = of_load(model, prompts, 1.0).prefill.costs  # type: ignore[arg-type]
    sums = {
        kind: sum((c.work.flop * c.op.count for c in costs if c.op.kind == kind and c.op.name != "head"), start=0.0)
        for kind in ("attention", "matmul")
    }
    return float(np.interp(1.0, sums["attention"] / sums["matmul"], prompts) / model.d_model)


def feed_forward_ratio(name: str) -> float:
    model = load_model(name)
    ffn = model.sequence[0].ffn
    return float(ffn.d_ff / model.d_model)  # type: ignore[union-attr]


def streaming_bytes(model: ModelSpec, tokens: float) -> float:
    """Weights read by ``tokens`` decode steps (next to no context)."""
    estimate = of_load(model, 1.0, 2.0)
    costs = [cost for cost in estimate.decode.costs if cost.op.kind == "matmul"]
    return tokens * sum(float(cost.op.resident() * cost.op.count) for cost in costs)


def token_rate(name: str, device: str) -> float:
    """Tokens a second at the full bandwidth, with next to no context."""
    deployment = deploy(load_model(name), load_hardware(device), "bf16")
    decode = Estimate(deployment=deployment, load=StaticLoad(prompt=1.0, output=2.0)).decode
    return float(1 / (decode.mbu * decode.time))


def first_step_ms() -> float:
    estimate = of_load(eight_billion(), 1.0, 2.0)
    return float(estimate.decode.mbu * estimate.decode.time) * 1e3


def prefill_matmul_ms() -> float:
    estimate = of_load(eight_billion(), 1000.0, 1.0, all_logits=True)
    return (
        sum(float(cost.time_math * cost.op.count) for cost in estimate.prefill.costs if cost.op.kind == "matmul") * 1e3
    )


def request() -> Estimate:
    return of_load(eight_billion(), 1000.0, 100.0, all_logits=True)


def square(rows: float) -> Matmul:
    return Matmul(name="x", m=rows, k=4096, n=4096, weight=FP16, input=FP16, output=FP16)


def attention_intensity(keys: float, queries: float, kv_heads: int = 32) -> float:
    op = Attention(
        name="x",
        batch=1.0,
        new=queries,
        past=keys - queries,
        heads=32,
        kv_heads=kv_heads,
        key_dim=128,
        value_dim=128,
        mask=Mask(kind="full"),
        base=FP16,
        kv=FP16,
    )
    return float(price(op, A100, deploy(eight_billion(), A100).calibration).intensity)


MLA = MlaLayer(heads=128, q_lora=1536, kv_lora=512, nope_dim=128, rope_dim=64, value_dim=128)

SEED.row("001", "KV of a layer, Llama-2-7B, 2048", kv_of_a_layer, printed=33e6, value=33_554_432)
SEED.row("002", "KV, Llama-2-7B, 2048", lambda: footprint("llama-2-7b").state, printed=1e9, value=2**30)
SEED.row("003", "weights, Llama-2-7B", lambda: footprint("llama-2-7b").weights, printed=14e9, value=13_476_831_232)
SEED.row(
    "004",
    "weights and KV, Llama-2-7B, 2048 (the text adds 0.5 to 1 GB of activations to 15.0)",
    lambda: footprint("llama-2-7b").weights + footprint("llama-2-7b").state,
    printed=16.5e9,
    value=13_476_831_232 + 2**30,
)
SEED.row("005", "weights, Mistral-7B", lambda: footprint("mistral-7b-v0.1").weights, printed=14e9, value=14_483_464_192)
SEED.row(
    "006",
    "KV, Mistral-7B, 4 x 4096: 2 GiB, for its 8 KV heads",
    lambda: footprint("mistral-7b-v0.1", 4.0, 4096.0).state,
    printed=8e9,
    value=2 * 2**30,
)
SEED.row(
    "007",
    "weights and KV, Mistral-7B, 4 x 4096",
    lambda: footprint("mistral-7b-v0.1").weights + footprint("mistral-7b-v0.1", 4.0, 4096.0).state,
    printed=23e9,
    value=16_630_947_840,
)
SEED.row("008", "decode steps of 100 tokens", first_token_twice, printed="TTFT + N*TPOT", value=99)
SEED.leave_out("009", "the queue before a prefill belongs to the serving model; `estimate` says that its TTFT has none")
SEED.row(
    "010",
    "prompt at which attention outgrows the matrices, Llama-2-7B [d_model]",
    lambda: quadratic_crossing("llama-2-7b"),
    printed="O(n^2 d)",
    value=4 + 3 * 11008 / 4096,
    rel=1e-3,
)
SEED.row("011", "d_ff / d_model", lambda: feed_forward_ratio("llama-2-7b"), printed=4, value=2.6875)
SEED.row(
    "012",
    "KV of two sequences, Llama-3.1-8B, 1000: keys and values, and both sequences",
    lambda: footprint("llama-3.1-8b", 2.0, 1000.0).state,
    printed="seq*layers*kv_heads*head_dim*bytes",
    value=2 * 2 * 1000 * 32 * 8 * 128 * 2,
)
SEED.row("013", "weights, Llama-3.1-8B", lambda: footprint("llama-3.1-8b").weights, printed=16e9, value=16_060_522_496)
SEED.row("014", "bytes read for 100 tokens", lambda: streaming_bytes(eight_billion(), 100), printed=1.6e12, rel=1e-6)
SEED.row("015", "decode step", first_step_ms, printed=8.0, rel=1e-4)
SEED.row("016", "decode rate", lambda: 1e3 / first_step_ms(), printed=125, rel=1e-4)
SEED.row("017", "A100 ridge", lambda: A100.ridge("fp16"), printed=156)
SEED.row(
    "018",
    "FLOP a second that decode achieves",
    lambda: float(request().decode.flop / request().decode.time),
    printed=16e9,
    value=2e12,
    rel=0.05,
)
SEED.row("019", "MFU of decode", lambda: float(request().decode.mfu), printed=5e-5, value=2e12 / 312e12, rel=0.05)
SEED.row("020", "matmuls of a prefill of 1000", prefill_matmul_ms, printed=50, value=51.28, rel=1e-3)
SEED.row(
    "021", "decode of 100 tokens: 99 steps", lambda: (request().e2el - request().ttft) * 1e3, printed=800, rel=0.01
)
SEED.row("022", "total [ms]", lambda: request().e2el * 1e3, printed="850 ms / 6% / 94%", value=850, rel=5e-3)
SEED.row(
    "023", "FLOP a byte of weights, one row", lambda: float(square(1.0).work().flop / square(1.0).resident()), printed=1
)
SEED.row(
    "024",
    "intensity of [1000, 4096] x [4096, 4096]",
    lambda: float(square(1000.0).work().flop / square(1000.0).work().bytes),
    printed=1000,
    value=671.9,
    rel=1e-4,
)


def faster_memory() -> float:
    """Decode speed-up from twice the bandwidth: the speed is bandwidth over size, not size over bandwidth."""
    slow = Estimate(deployment=deploy(eight_billion(), chip(2e12, 1e30)), load=StaticLoad(prompt=1.0, output=2.0))
    fast = Estimate(deployment=deploy(eight_billion(), chip(4e12, 1e30)), load=StaticLoad(prompt=1.0, output=2.0))
    return float(slow.tpot / fast.tpot)


SEED.row("025", "decode speed-up from twice the bandwidth", faster_memory, printed="inverted", value=2.0)
SEED.row(
    "026",
    "bandwidth of an H200 over an A100",
    lambda: load_hardware("h200").memory.bandwidth / load_hardware("a100").memory.bandwidth,
    printed="claimed",
    value=4.8 / 2.039,
)
SEED.leave_out("027", "a cost ratio without a source")
SEED.row(
    "028",
    "MHA over MLA, DeepSeek-V2, values a token and layer",
    lambda: 2 * 128 * 128 / MLA.cache().per_token,
    printed="tens of thousands -> a few hundred",
    value=32768 / 576,
)
SEED.row("029", "H100 ridge", lambda: load_hardware("h100").ridge("bf16"), printed="hundreds", value=295.2, rel=1e-3)
SEED.row(
    "030",
    "attention intensity, 512 queries over 2048 keys",
    lambda: attention_intensity(2048, 512),
    printed="ST/(S+T)",
    value=2048 * 512 / (2048 + 512),
)


@for_each("row", SEED.rows, ids=lambda row: row.id)
def test_seed_value(row: Row) -> None:
    assert not row.failure()


def test_exact_rates_of_8b_on_the_real_a100() -> None:
    """SEED-016 and -017 with exact inputs: 135.9 tok/s when the embedding table is not read; ridges 153.0 and 200.6."""
    assert token_rate("llama-3.1-8b", "a100-80gb-sxm") == pytest.approx(135.9, abs=0.1)
    assert load_hardware("a100-80gb-sxm").ridge("bf16") == pytest.approx(153.0, abs=0.05)
    assert load_hardware("a100-40gb-pcie").ridge("bf16") == pytest.approx(200.6, abs=0.05)


def test_shares_of_the_850_ms() -> None:
    """SEED-022: 6 % prefill, 94 % decode."""
    assert request().ttft / request().e2el == pytest.approx(0.06, abs=0.003)


def test_one_token_has_no_decode_step() -> None:
    """SEED-008 at its edge: a request for one token ends with its prefill."""
    estimate = of_load(eight_billion(), 1000.0, 1.0)
    assert estimate.e2el == estimate.ttft
    assert np.isnan(estimate.tpot)


@for_each(("name", "ratio"), [("mistral-7b-v0.1", 3.5), ("llama-3.1-8b", 3.5)])
def test_gated_feed_forwards_are_not_four_wide(name: str, ratio: float) -> None:
    """SEED-011."""
    assert feed_forward_ratio(name) == ratio


def test_grouped_queries_raise_the_intensity() -> None:
    """SEED-030: times heads over KV heads in decode."""
    assert attention_intensity(4096, 1, kv_heads=8) / attention_intensity(4096, 1) == pytest.approx(4, rel=1e-3)


def test_bandwidths_of_four_generations() -> None:
    """SEED-026: 2.0, 3.35, 4.8 and 8.0 TB/s (the B200's system data sheets say 7.7)."""
    found = [load_hardware(name).memory.bandwidth for name in ("a100", "h100", "h200", "b200")]
    assert found == pytest.approx([2.0e12, 3.35e12, 4.8e12, 8.0e12], rel=0.04)
