"""Every operator has a kernel, and every kernel computes what its operator says."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from calibrate.kernels.builders import KERNELS, build  # noqa: E402
from calibrate.kernels.kernel import check  # noqa: E402
from calibrate.kernels.operands import NoKernelError, OperandPool  # noqa: E402
from inferplan.work import ops  # noqa: E402
from inferplan.work.formats import FORMATS  # noqa: E402
from inferplan.work.ops import Attention, Mask, Op  # noqa: E402
from tests.cases import for_each  # noqa: E402

FP32, BF16, FP8, INT8, INT4 = (FORMATS[name] for name in ("fp32", "bf16", "fp8", "int8", "int4"))
CAUSAL = Mask()


def concrete(kind: type[Op] = Op) -> list[type[Op]]:
    """Every operator class that is not the base of another."""
    below = kind.__subclasses__()
    return [leaf for child in below for leaf in concrete(child)] if below else [kind]


def attention(**changes: Any) -> Attention:
    values: dict[str, Any] = {
        "batch": 2.0, "new": 5.0, "past": 0.0, "heads": 4, "kv_heads": 2, "key_dim": 16, "value_dim": 16,
        "mask": CAUSAL, "base": FP32, "kv": FP32,
    }  # fmt: skip
    return Attention(name="attn", **(values | changes))


def matmul(weight: Any, source: Any, output: Any = BF16, m: float = 20.0) -> ops.Matmul:
    return ops.Matmul(name="mm", m=m, k=256, n=128, weight=weight, input=source, output=output)


def grouped(weight: Any, source: Any, output: Any = BF16) -> ops.GroupedMatmul:
    shape: dict[str, Any] = {"m": 24.0, "k": 128, "n": 64, "experts": 6, "touched": 4.2}
    return ops.GroupedMatmul(name="experts", weight=weight, input=source, output=output, **shape)


SCAN: dict[str, Any] = {"name": "scan", "batch": 2.0, "state": 8 * 16 * 4, "flops": 1.0, "inputs": 200, "outputs": 128}
SELECT: dict[str, Any] = {"batch": 2.0, "heads": 4, "key_dim": 16, "top_k": 6, "mask": CAUSAL, "base": FP32, "kv": FP32}
SAMPLES: dict[str, Op] = {
    "matmul fp32": matmul(FP32, FP32, FP32),
    "matmul bf16": matmul(BF16, BF16),
    "matmul batched": ops.Matmul(name="mm", m=7.0, k=32, n=16, batch=3, weight=BF16, input=BF16, output=BF16),
    "matmul fp8": matmul(FP8, FP8),
    "matmul int8": matmul(INT8, INT8),
    "matmul int8 weights": matmul(INT8, BF16),
    "matmul int4 weights": matmul(INT4, BF16),
    "experts fp32": grouped(FP32, FP32, FP32),
    "experts bf16": grouped(BF16, BF16),
    "experts fp8": grouped(FP8, FP8),
    "experts int4": grouped(INT4, BF16),
    "attention prefill": attention(),
    "attention prefill bf16": attention(base=BF16, kv=BF16, new=33.0),
    "attention chunked prefill": attention(past=7.0),
    "attention decode": attention(new=1.0, past=11.0),
    "attention one head each": attention(kv_heads=4, new=1.0, past=11.0),
    "attention window": attention(new=19.0, past=3.0, mask=Mask(kind="window", size=4)),
    "attention window, short": attention(new=3.0, past=9.0, mask=Mask(kind="window", size=4)),
    "attention window, from zero": attention(new=4.0, mask=Mask(kind="window", size=8)),
    "attention window decode": attention(new=1.0, past=30.0, mask=Mask(kind="window", size=4)),
    "attention chunk": attention(new=11.0, past=3.0, mask=Mask(kind="chunk", size=4)),
    "attention full": attention(new=4.0, past=6.0, mask=Mask(kind="full")),
    "attention sparse prompt": attention(mask=Mask(kind="top", size=4), past=9.0),
    "attention sparse latent": attention(
        mask=Mask(kind="top", size=6), past=3.0, kv_heads=1, key_dim=24, value_dim=16, shared_value=True
    ),
    "attention sparse decode": attention(new=1.0, past=30.0, mask=Mask(kind="top", size=8)),
    "attention unfused": attention(past=3.0, fused=False),
    "attention wide values": attention(value_dim=8, kv_heads=4),
    "attention split keys": attention(new=1.0, past=11.0, key_shards=2),
    "mla decode": attention(new=1.0, past=11.0, kv_heads=1, key_dim=24, shared_value=True),
    "mla prefill": attention(kv_heads=1, key_dim=24, shared_value=True),
    "index select": ops.IndexSelect(name="i", new=3.0, past=8.0, **SELECT),
    "top k": ops.TopK(name="t", rows=3.0, scores=3 * 40.0, top_k=8, base=FP32),
    "norm": ops.Norm(name="norm", tokens=5.0, width=64, base=BF16),
    "layer norm": ops.Norm(name="norm", tokens=5.0, width=64, base=FP32, style="layer"),
    "plain norm": ops.Norm(name="norm", tokens=5.0, width=64, base=FP32, style="plain"),
    "elementwise 1": ops.Elementwise(name="e", tokens=5.0, width=64, base=FP32),
    "elementwise 2": ops.Elementwise(name="e", tokens=5.0, width=64, base=BF16, reads=2.0),
    "elementwise 3": ops.Elementwise(name="e", tokens=5.0, width=64, base=BF16, reads=3.0),
    "gather": ops.Gather(name="g", tokens=9.0, width=32, table=BF16, output=BF16),
    "copy": ops.Copy(name="c", elements=100.0, source=BF16, target=BF16),
    "copy to fp8": ops.Copy(name="c", elements=100.0, source=BF16, target=FP8),
    "conv prefill": ops.Conv(name="c", batch=2.0, new=9.0, channels=8, taps=4, base=FP32),
    "conv decode": ops.Conv(name="c", batch=2.0, new=1.0, channels=8, taps=4, base=FP32),
    "long conv prefill": ops.LongConv(name="c", batch=2.0, new=17.0, past=4.0, channels=8, base=FP32, kv=FP32),
    "long conv decode": ops.LongConv(name="c", batch=2.0, new=1.0, past=9.0, channels=8, base=FP32, kv=FP32),
    "scan prefill": ops.Scan(new=150.0, base=FP32, state_format=FP32, **SCAN),
    "scan decode": ops.Scan(new=1.0, base=BF16, state_format=FP32, **SCAN),
}


@pytest.fixture(scope="module")
def pool() -> OperandPool:
    return OperandPool("cpu", 8 << 20)


def test_every_operator_has_a_kernel() -> None:
    missing = [kind.__name__ for kind in concrete() if kind not in KERNELS]
    assert not missing, f"calibrate/kernels/builders.py has no kernel for {missing}"


def test_every_operator_has_a_sample() -> None:
    """A kernel that nothing here runs is not known to be right; collectives run in their own processes, exchanges are
    the kernels of engines (docs/operators/exchange.md)."""
    sampled = {type(op) for op in SAMPLES.values()} | {ops.Collective, ops.Exchange}
    assert not [kind.__name__ for kind in concrete() if kind not in sampled]


@for_each("name", SAMPLES)
def test_result_equals_the_reference(name: str, pool: OperandPool) -> None:
    kernel = build(SAMPLES[name], pool)
    assert check(kernel) <= kernel.tolerance


@for_each("name", [name for name in SAMPLES if name.split()[0] in ("matmul", "norm", "gather", "copy")])
def test_operands_weigh_what_the_operator_reads(name: str, pool: OperandPool) -> None:
    """Bytes of the operands against ``Work.read``, with scales and indices aside."""
    op = SAMPLES[name]
    operands = build(op, pool).operands()
    flat = [t for part in operands for t in (part if isinstance(part, tuple) else (part,))]
    large = sum(t.numel() * t.element_size() for t in flat[: 3 if "int4" not in name else 2])
    if name == "gather":
        large = flat[0].numel() * flat[1].shape[1] * flat[1].element_size()
    assert large == pytest.approx(float(op.work().read), rel=0.06)


@for_each(
    "op",
    [
        matmul(FORMATS["nvfp4"], FORMATS["nvfp4"]),
        matmul(FP8, BF16),
        matmul(FORMATS["tf32"], FORMATS["tf32"]),
        grouped(FORMATS["mxfp4"], BF16),
        attention(kv=FP8),
        attention(query_shards=2),
        ops.Copy(name="c", elements=8.0, source=BF16, target=INT4),
        ops.Elementwise(name="e", tokens=1.0, width=8, base=BF16, reads=1.5),
        ops.Collective(name="c", pattern="all_reduce", elements=8.0, group=2, span=2, format=BF16),
    ],
    ids=lambda op: f"{op.kind}-{op.label}",
)
def test_what_torch_cannot_run_is_refused(op: Op, pool: OperandPool) -> None:
    with pytest.raises(NoKernelError):
        build(op, pool)


def test_operands_move_through_the_pool(pool: OperandPool) -> None:
    first, second = (pool.normal((1000,), BF16) for _ in range(2))
    assert first.data_ptr() != second.data_ptr()
    assert pool.normal((3 << 20,), BF16).numel() == 3 << 20, "an operand larger than the pool has its own memory"
    assert float(first.float().std()) == pytest.approx(1.0, rel=0.1)


def test_samples_name_every_field() -> None:
    """Beyond numbers and text, if any, an operator holds ``Mask`` and formats (the raw file relies on it)."""
    for op in SAMPLES.values():
        for field in fields(op):
            value = getattr(op, field.name)
            assert isinstance(value, (int, float, str, bool, Mask, type(BF16), type(None))), (type(op), field.name)
