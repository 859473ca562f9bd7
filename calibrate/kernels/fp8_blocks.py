"""fp8 with a scale for 1x128 blocks of the input and 128x128 of the weight (DeepSeek-V3, 2412.19437, section 3.3).

torch has had three layouts of the weight's scales. ``F.scaled_mm`` takes ``[round_up(k/128, 4), n/128]``, first
dimension contiguous; ``torch._scaled_mm`` ``[k/128, n/128]``, in some versions with columns padded to four
(pytorch 2bec3bd aten/src/ATen/native/cuda/ScaledBlas.cpp, _scaled_block1x128_block128x128,
is_blockwise_128x128_scaling). All want cuBLAS 12.9 and SM90. DeepGEMM runs on SM90 and, with scales that are powers of
two, on SM100.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import torch
import torch.nn.functional as F

from calibrate.kernels.choice import Option
from calibrate.kernels.libraries import LIBRARIES, find, of_torch
from calibrate.kernels.linear_recipe import Linear
from calibrate.kernels.operands import NoKernelError, OperandPool, Operands
from inferplan.work.formats import Format

BLOCK = 128
"""Elements of a row, and rows and columns of a weight, that share a scale."""
_FOURS = (BLOCK, 4 * BLOCK)
"""Sizes at which the padded layout and the other are one: where a call takes the one and reads the other."""


def fp8_block_options(output: Format, pool: OperandPool) -> list[Option[Linear]]:
    """DeepGEMM, then torch's call with recipes, then its older call in each layout.

    Raises :class:`NoKernelError` on devices that have none of them.
    """
    target = pool.target
    if target.sm < 90 or target.sm >= 110:
        raise NoKernelError(
            f"no block-scaled fp8 matmul on {target}",
            because="torch has it for SM90 with CUDA 12.9 or later, DeepGEMM for SM90 and SM100",
            hint="fp8 with row scales" if target.sm >= 89 or target.gfx else "bf16, int8 or int4",
        )
    calls: list[tuple[str, Callable[[], Linear]]] = [
        (f"deepgemm ({LIBRARIES['deepgemm'].modules[0]}.fp8_gemm_nt)", lambda: _deep_gemm(output, pool)),
        ("F.scaled_mm (1x128 and 128x128 blocks)", lambda: _with_recipes(output, pool)),
        ("torch._scaled_mm (blocks)", lambda: _older(output, pool)),
        ("torch._scaled_mm (blocks, padded to four)", lambda: _older(output, pool, padded=True)),
        ("torch._scaled_mm (blocks, k in multiples of 512)", lambda: replace(_older(output, pool), multiples=_FOURS)),
    ]
    return [Option(name=name, make=make) for name, make in calls]


def spread(scales: torch.Tensor, rows: int) -> torch.Tensor:
    """Scales in float64 over the elements that share them: ``rows`` of them and 128 columns."""
    return scales.double().repeat_interleave(BLOCK, dim=-1).repeat_interleave(rows, dim=-2)


def exact(x: Operands, w: Operands) -> torch.Tensor:
    """The product in float64: the last of each operand are its scales as they are, one a block."""
    return (x[0].double() * spread(x[-1], 1)) @ (w[0].double() * spread(w[-1], BLOCK)).t()


def columns_first(scales: torch.Tensor, align: int = 1) -> torch.Tensor:
    """The same scales ``[rows, blocks]`` with rows contiguous, and columns ``rows`` (rounded up to ``align``) apart."""
    rows, blocks = scales.shape
    memory = scales.new_ones(blocks, -(-rows // align) * align)
    memory[:, :rows] = scales.t()
    return memory[:, :rows].t()


def _linear(name: str, pool: OperandPool, output: Format, lay: dict[str, Callable[..., torch.Tensor]]) -> Linear:
    """A recipe of torch's, by how it lays out the weight's scales and what it calls."""
    fp8 = torch.float8_e4m3fn

    def weight(n: int, k: int) -> Operands:
        plain = pool.powers((n // BLOCK, k // BLOCK))
        return pool.typed((n, k), fp8), lay["scales"](plain), plain

    def source(m: int, k: int) -> Operands:
        plain = pool.powers((m, k // BLOCK))
        return pool.typed((m, k), fp8), columns_first(plain), plain

    return Linear(
        name=name,
        weight=weight,
        input=source,
        apply=lay["call"],
        exact=exact,
        tolerance=2e-2,
        library=of_torch(pool.target),
        multiples=(BLOCK, BLOCK),
    )


def _padded(plain: torch.Tensor) -> torch.Tensor:
    """Rows of scales, each padded to a multiple of four."""
    rows, blocks = plain.shape
    memory = plain.new_ones(rows, -(-blocks // 4) * 4)
    memory[:, :blocks] = plain
    return memory


def _with_recipes(output: Format, pool: OperandPool) -> Linear:
    if not hasattr(F, "scaled_mm"):
        raise NoKernelError("this torch has no F.scaled_mm", hint="torch 2.10 or later")
    out, kinds = pool.dtype_of(output), F.ScalingType

    def call(x: Operands, w: Operands) -> torch.Tensor:
        return F.scaled_mm(
            x[0],
            w[0].t(),
            scale_a=x[1],
            scale_recipe_a=kinds.BlockWise1x128,
            scale_b=w[1],
            scale_recipe_b=kinds.BlockWise128x128,
            output_dtype=out,
        )

    return _linear(
        "F.scaled_mm (1x128 and 128x128 blocks)", pool, output, {"scales": lambda s: _padded(s).t(), "call": call}
    )


def _older(output: Format, pool: OperandPool, padded: bool = False) -> Linear:
    out = pool.dtype_of(output)

    def call(x: Operands, w: Operands) -> torch.Tensor:
        return torch._scaled_mm(x[0], w[0].t(), x[1], w[1], out_dtype=out)

    def scales(plain: torch.Tensor) -> torch.Tensor:
        return (_padded(plain)[:, : plain.shape[1]] if padded else plain).t()

    name = f"torch._scaled_mm (blocks{', padded to four' if padded else ''})"
    return _linear(name, pool, output, {"scales": scales, "call": call})


def _deep_gemm(output: Format, pool: OperandPool) -> Linear:
    """``fp8_gemm_nt`` on scales that are ready: none is laid out again in the call."""
    module, out, fp8 = find("deepgemm", pool.target), pool.dtype_of(output), torch.float8_e4m3fn
    if out is not torch.bfloat16:
        raise NoKernelError(f"DeepGEMM gives bf16, not {output.name}")

    def source(m: int, k: int) -> Operands:
        plain = pool.powers((m, k // BLOCK))
        return pool.typed((m, k), fp8), ready_rows(module, plain, pool), plain

    def weight(n: int, k: int) -> Operands:
        plain = pool.powers((n // BLOCK, k // BLOCK))
        return pool.typed((n, k), fp8), ready_blocks(module, plain, pool), plain

    def call(x: Operands, w: Operands) -> torch.Tensor:
        y = torch.empty(x[0].shape[0], w[0].shape[0], dtype=out, device=x[0].device)
        module.fp8_gemm_nt((x[0], x[1]), (w[0], w[1]), y)
        return y

    return Linear(
        name="deep_gemm.fp8_gemm_nt",
        weight=weight,
        input=source,
        apply=call,
        exact=exact,
        tolerance=2e-2,
        library="deepgemm",
        multiples=(BLOCK, BLOCK),
    )


def ready_rows(module: ModuleType, scales: torch.Tensor, pool: OperandPool) -> torch.Tensor:
    """Scales of an input as DeepGEMM reads them: columns first and 16 bytes aligned, as exponents on SM100."""
    if pool.target.sm >= 100:
        packed: torch.Tensor = module.get_mn_major_tma_aligned_packed_ue8m0_tensor(scales)
        return packed
    return columns_first(scales, align=4)


def ready_blocks(module: ModuleType, scales: torch.Tensor, pool: OperandPool) -> torch.Tensor:
    """Scales of a weight as DeepGEMM reads them: a block's as they are, or on SM100 an exponent for each row."""
    if pool.target.sm >= 100:
        return ready_rows(module, scales.repeat_interleave(BLOCK, dim=-2), pool)
    return scales
