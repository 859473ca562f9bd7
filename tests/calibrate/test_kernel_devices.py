"""Kernels by device: the layouts of fp8 blocks, fnuz fp8 on CDNA 3, no float64 on MPS, no flash attention before SM80;
and how many rows each expert gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from calibrate.kernels.attention import library_attention  # noqa: E402
from calibrate.kernels.builders import build  # noqa: E402
from calibrate.kernels.experts import rows_of_experts  # noqa: E402
from calibrate.kernels.kernel import check  # noqa: E402
from calibrate.kernels.operands import NoKernelError, OperandPool  # noqa: E402
from calibrate.kernels.target import Target, target_of  # noqa: E402
from inferplan.work.formats import find_format  # noqa: E402
from inferplan.work.ops import Attention, Copy, GroupedMatmul, Mask, Matmul, Op  # noqa: E402
from tests.calibrate.kernel_libraries import attend, whole  # noqa: E402
from tests.calibrate.standin import standin  # noqa: E402
from tests.calibrate.test_kernels import SAMPLES  # noqa: E402
from tests.cases import for_each  # noqa: E402

BF16, FP16, FP8, FP8_BLOCK, INT8, INT4 = (
    find_format(name) for name in ("bf16", "fp16", "fp8", "fp8-block", "int8", "int4")
)
HOPPER = Target(kind="cuda", sm=90)


def matmul(weight: Any, source: Any, m: float = 20.0, k: int = 256, n: int = 128) -> Matmul:
    return Matmul(name="mm", m=m, k=k, n=n, weight=weight, input=source, output=BF16)


BLOCKS = matmul(FP8_BLOCK, FP8, m=37.0, k=640, n=256)
"""Five blocks deep, two wide: no multiple of four."""


def reach(x: Any, w: Any, scale_x: Any, scale_w: Any) -> Any:
    """The product by the scales of blocks ``[m, k/128]`` and ``[n/128, k/128]``."""
    return (whole(x, scale_x, 1) @ whole(w.t(), scale_w, 128).t()).bfloat16()


def recipes(x: Any, w: Any, *, scale_a: Any, scale_b: Any, **rest: Any) -> Any:
    """ScaledBlas.cpp ``_scaled_block1x128_block128x128``: A's scales ``[m, k/128]``, rows first, B's
    ``[round_up(k/128, 4), n/128]``."""
    m, k, n = *x.shape, w.shape[1]
    padded = -(-k // 128 // 4) * 4
    assert rest.pop("scale_recipe_a") == F.ScalingType.BlockWise1x128
    assert rest.pop("scale_recipe_b") == F.ScalingType.BlockWise128x128
    assert rest == {"output_dtype": torch.bfloat16}
    if scale_a.shape != (m, k // 128) or scale_a.stride() != (1, m):
        raise ValueError("scale_a must have strides")
    if scale_b.shape != (padded, n // 128) or scale_b.stride() != (1, padded):
        raise ValueError(f"scale_b must have shape {padded} x {n // 128} Float elements, got {list(scale_b.shape)}")
    return reach(x, w, scale_a, scale_b[: k // 128].t())


def older(rounded: int) -> Callable[..., Any]:
    """``is_blockwise_128x128_scaling``: rows of B's scales are ceil(k/128) apart, in older versions a multiple of 4."""

    def scaled_mm(x: Any, w: Any, scale_a: Any, scale_b: Any, out_dtype: Any) -> Any:
        blocks = -(-x.shape[1] // 128)
        apart = -(-blocks // rounded) * rounded
        scales = scale_b.t()
        if scales.shape != (w.shape[1] // 128, blocks) or scales.stride() != (apart, 1):
            raise RuntimeError("Invalid scaling configuration.")
        assert out_dtype is torch.bfloat16 and scale_a.stride() == (1, len(x))
        return reach(x, w, scale_a, scales)

    return scaled_mm


def refuses(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("DeepSeek style (1x128, 128x128) scaling requires cublasLt >= 12.9")


@for_each(
    ("new", "old", "name"),
    [
        (recipes, refuses, "F.scaled_mm (1x128 and 128x128 blocks)"),
        (refuses, older(1), "torch._scaled_mm (blocks)"),
        (refuses, older(4), "torch._scaled_mm (blocks, padded to four)"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_block_scales_in_the_layout_that_this_torch_wants(
    new: Any, old: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five blocks deep the three layouts differ; four deep two of them are one."""
    monkeypatch.setattr(F, "scaled_mm", new)
    monkeypatch.setattr(torch, "_scaled_mm", old)
    kernel = build(BLOCKS, OperandPool("cpu", 4 << 20, target=HOPPER))
    assert (kernel.name, kernel.library) == (name, "cublas")
    assert check(kernel) <= kernel.tolerance


def test_block_scales_that_no_call_takes_are_refused_with_every_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "scaled_mm", refuses)
    monkeypatch.setattr(torch, "_scaled_mm", refuses)
    with pytest.raises(NoKernelError) as refused:
        build(BLOCKS, OperandPool("cpu", 4 << 20, target=HOPPER))
    assert "cublasLt >= 12.9" in refused.value.because and "deepgemm" in refused.value.because
    with pytest.raises(NoKernelError, match=r"SM90 with CUDA 12\.9 or later"):
        build(BLOCKS, OperandPool("cpu", 4 << 20, target=Target(kind="cuda", sm=80)))


def test_blackwell_has_exponents_for_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepGEMM packs what is a power of two; a scale of the weight's block stands for each of its 128 rows."""
    import sys

    from tests.calibrate.kernel_libraries import module

    def pack(scales: Any) -> Any:
        assert bool((scales.log2() == scales.log2().round()).all())
        return scales.log2().to(torch.int32)

    def gemm(a: Any, b: Any, d: Any) -> None:
        assert a[1].shape == (37, 5) or a[1].shape == (272, 5)
        assert len(b[1]) == len(b[0]), "a row's exponents"
        d.copy_(whole(a[0], a[1].double().exp2(), 1) @ whole(b[0], b[1].double().exp2(), 1).t())

    fake = module("deep_gemm", fp8_gemm_nt=gemm, get_mn_major_tma_aligned_packed_ue8m0_tensor=pack)
    monkeypatch.setitem(sys.modules, "deep_gemm", fake)
    kernel = build(BLOCKS, OperandPool("cpu", 4 << 20, target=Target(kind="cuda", sm=100)))
    assert kernel.library == "deepgemm" and check(kernel) <= kernel.tolerance


@for_each(
    ("op", "words"),
    [
        (matmul(INT4, BF16, n=96), "n in multiples of 64"),
        (matmul(INT8, INT8, k=100), "k in multiples of 8"),
        (matmul(FP8, FP8, n=100), "n in multiples of 16"),
        (replace(BLOCKS, n=96), "n in multiples of 128"),
    ],
)
def test_a_size_that_a_layout_cannot_hold_is_refused_when_the_kernel_is_built(
    op: Op, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when its operands are made: by then a run has begun to measure it."""
    monkeypatch.setattr(F, "scaled_mm", recipes)
    target = HOPPER if "fp8-block" in str(op) else Target(kind="cpu")
    with pytest.raises(NoKernelError, match=words):
        build(op, OperandPool("cpu", 4 << 20, target=target))


def test_fp8_of_cdna_3_has_no_infinities() -> None:
    """gfx942 computes in e4m3fnuz, gfx950 in e4m3fn (hipBLASLt); every fp8 operand is of that type."""
    for gfx, dtype in (("gfx942", torch.float8_e4m3fnuz), ("gfx950", torch.float8_e4m3fn)):
        pool = OperandPool("cpu", 4 << 20, target=Target(kind="cuda", gfx=gfx))
        kernel = build(Copy(name="c", elements=100.0, source=BF16, target=FP8), pool)
        assert kernel.run(*kernel.operands()).dtype is dtype
    with standin("mi300x"):
        pool = OperandPool("cuda", 1 << 24)
        assert pool.target == Target(kind="cuda", gfx="gfx942")
        kernel = build(matmul(FP8, FP8), pool)
        assert kernel.name == "torch._scaled_mm (row scales)" and kernel.library == "hipblaslt"
        assert {part[0].dtype for part in kernel.operands()} == {torch.float8_e4m3fnuz}
        with pytest.raises(NoKernelError, match="no block-scaled fp8 matmul on gfx942"):
            build(BLOCKS, pool)


def test_mps_needs_no_float64_and_has_no_fp8() -> None:
    """Every kernel that is not refused by name is checked: its reference is computed on the CPU."""
    refused = {}
    with standin("m3"):
        pool = OperandPool("mps", 1 << 24)
        for name, op in SAMPLES.items():
            try:
                check(build(op, pool))
            except NoKernelError as error:
                refused[name] = error.what
    assert set(refused) == {"matmul fp8", "matmul int8", "experts fp8", "copy to fp8"}
    assert all("MPS" in what for what in refused.values())


def attention(**changes: Any) -> Attention:
    values: dict[str, Any] = {
        "batch": 2.0, "new": 20.0, "past": 5.0, "heads": 4, "kv_heads": 2, "key_dim": 16, "value_dim": 16,
        "mask": Mask(), "base": FP16, "kv": FP16,
    }  # fmt: skip
    return Attention(name="attn", **(values | changes))


@for_each(("chip", "says"), [("t4", "SM75"), ("v100-sxm2-32gb", "SM70")])
def test_before_sm80_attention_goes_through_sdpa_and_says_so(chip: str, says: str) -> None:
    with standin(chip):
        pool = OperandPool("cuda", 1 << 24)
        kernel = build(attention(), pool)
        assert (kernel.library, says in kernel.name) == ("torch", True)
        assert "scaled_dot_product_attention" in kernel.name
        kernel.run(*kernel.operands())
        assert target_of("cuda").base == "fp16"
        with pytest.raises(NoKernelError, match="no fp8 arithmetic"):
            build(matmul(FP8, FP8), pool)
    assert (Target(kind="cuda", sm=80).base, Target(kind="mps").base) == ("bf16", "bf16")


def test_heads_that_are_copied_see_what_shared_ones_see() -> None:
    q, k, v = (torch.randn(2, n, heads, 16) for n, heads in ((6, 6), (9, 2), (9, 2)))
    for mask, left in ((Mask(), -1), (Mask(kind="window", size=4), 3)):
        found = library_attention(q, k, v, mask, repeat=True)
        for i in range(2):
            torch.testing.assert_close(
                found[i].double(), attend(q[i], k[i], v[i], True, left, 0.25), rtol=1e-4, atol=1e-5
            )


# Rows of experts


def test_rows_are_dealt_evenly_without_skew() -> None:
    assert rows_of_experts(10, 6, 4) == [2, 3, 3, 2, 0, 0], "10/4 is 2.5: ends at 2, 5, 8 and 10 (rounded to even)"


def test_popular_experts_get_more_rows() -> None:
    """Four of four experts, deviation 1: popularity exp(z) of the quantiles z = 1.15, 0.32, -0.32, -1.15, so 3.16,
    1.375, 0.727 and 0.317 of 5.578. Of 100 rows each gets one, and of the other 96 its share is 54.4, 23.7, 12.5 and
    5.4: 54, 24, 13 (the largest remainders) and 5."""
    assert sorted(rows_of_experts(100, 4, 4, 1.0)) == [6, 14, 25, 55]


@given(
    rows=st.integers(1, 5000),
    experts=st.integers(1, 64),
    touched=st.integers(1, 64),
    skew=st.sampled_from([0.0, 0.5, 1.2]),
)
def test_every_row_goes_to_one_of_the_touched_experts(rows: int, experts: int, touched: int, skew: float) -> None:
    dealt = rows_of_experts(rows, experts, touched, skew)
    assert (sum(dealt), len(dealt)) == (rows, experts) and min(dealt) >= 0
    assert sum(count > 0 for count in dealt) == min(rows, experts, touched)
    assert dealt == rows_of_experts(rows, experts, touched, skew)


def test_skew_reaches_the_kernel() -> None:
    op = GroupedMatmul(
        name="e", m=64.0, k=32, n=32, experts=8, touched=8.0, weight=BF16, input=BF16, output=BF16, skew=1.5
    )
    pool = OperandPool("cpu", 1 << 20)
    kernel = build(op, pool)
    seen: list[Any] = []
    real = torch._grouped_mm
    torch._grouped_mm = lambda *a, offs: seen.append(offs) or real(*a, offs=offs)
    try:
        assert check(kernel) <= kernel.tolerance
    finally:
        torch._grouped_mm = real
    counts = torch.diff(seen[0], prepend=torch.zeros(1, dtype=torch.int32)).tolist()
    assert counts == rows_of_experts(64, 8, 8, 1.5) and max(counts) > 4 * min(counts)
