"""Matmuls of two fp4 operands: nvfp4 (a scale in e4m3 for 16 elements) and mxfp4 (one in e8m0 for 32).

Two elements are in a byte, the first in the low four bits (OCP Microscaling Formats 1.0, section 5.3.3: e2m1). NVIDIA's
tensor cores read the scales in tiles of 128 rows and 4 blocks: of row i and block j at ``(i mod 32)*16 + (i//32 mod
4)*4 + j mod 4`` of its tile (PTX ISA, tcgen05.mma block scaling, scale_vec::4X; ``SWIZZLE_32_4_4`` of torch).

vLLM 0.32.0 (``model_executor/kernels/linear/nvfp4/cutlass.py``) calls ``cutlass_scaled_fp4_mm``; torch has
``F.scaled_mm`` with BlockWise1x16 and BlockWise1x32 (2.10 and later).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from calibrate.kernels.choice import Option
from calibrate.kernels.libraries import find, of_torch
from calibrate.kernels.linear_recipe import E2M1, Linear
from calibrate.kernels.operands import NoKernelError, OperandPool, Operands
from inferplan.work.formats import Format, find_format

GROUPS = {"nvfp4": 16, "mxfp4": 32}
_TILE = (128, 4)


def fp4_options(fmt: Format, output: Format, pool: OperandPool) -> list[Option[Linear]]:
    """vLLM's CUTLASS kernel of nvfp4, then torch's call.

    Raises :class:`NoKernelError` on devices without fp4 arithmetic.
    """
    target = pool.target
    if target.sm < 100 and not (target.gfx == "gfx950" and fmt.name == "mxfp4"):
        raise NoKernelError(
            f"{target} has no {fmt.name} arithmetic",
            because="it came with SM100; mxfp4 with CDNA 4 (gfx950), too",
            hint=f"{fmt.name} weights with bf16 inputs (Marlin)" if target.sm >= 75 else "int4 or int8 weights",
        )
    torchs = Option(name=_call(fmt), make=lambda: _of_torch(fmt, output, pool))
    if fmt.name == "nvfp4" and target.sm:
        return [Option(name="cutlass", make=lambda: _cutlass(output, pool)), torchs]
    return [torchs]


def _call(fmt: Format) -> str:
    return f"F.scaled_mm (1x{GROUPS[fmt.name]} blocks)"


def unpacked(packed: torch.Tensor) -> torch.Tensor:
    """The values of packed bytes, in float64."""
    codes = packed.view(torch.uint8).long()
    return E2M1.to(packed.device)[torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)]


def in_tiles(scales: torch.Tensor) -> torch.Tensor:
    """Scales ``[rows, blocks]`` as tensor cores read them, padded to whole tiles."""
    rows, blocks = (-(-have // of) * of for have, of in zip(scales.shape, _TILE))
    padded = torch.zeros(rows, blocks, dtype=torch.uint8, device=scales.device)
    padded[: scales.shape[0], : scales.shape[1]] = scales.view(torch.uint8)
    tiled = padded.view(rows // 128, 4, 32, blocks // 4, 4).permute(0, 3, 2, 1, 4).contiguous()
    return tiled.view(rows, blocks).view(scales.dtype)


def _scales(fmt: Format, pool: OperandPool, shape: tuple[int, int]) -> torch.Tensor:
    if fmt.name == "mxfp4":
        return pool.powers(shape).to(torch.float8_e8m0fnu)
    return pool.positive(shape).to(torch.float8_e4m3fn)


def exact(x: Operands, w: Operands) -> torch.Tensor:
    """The product in float64: the last of each operand are its scales as they are, one a block."""
    left, right = (unpacked(part[0]) * _spread(part[-1], 2 * part[0].shape[-1]) for part in (x, w))
    return left @ right.t()


def _spread(scales: torch.Tensor, width: int) -> torch.Tensor:
    return scales.to(torch.float32).double().repeat_interleave(width // scales.shape[-1], dim=-1)


def _linear(name: str, fmt: Format, pool: OperandPool, apply: Any, library: str, tiled: bool = True) -> Linear:
    def operand(rows: int, k: int) -> Operands:
        plain = _scales(fmt, pool, (rows, k // GROUPS[fmt.name]))
        packed = pool.integers((rows, k // 2), 256, torch.uint8)
        return packed, in_tiles(plain) if tiled else plain, plain

    return Linear(
        name=name,
        weight=operand,
        input=operand,
        apply=apply,
        exact=exact,
        tolerance=2e-2,
        library=library,
        multiples=(32, 128),
    )


def _of_torch(fmt: Format, output: Format, pool: OperandPool) -> Linear:
    if not hasattr(F, "scaled_mm"):
        raise NoKernelError("this torch has no F.scaled_mm", hint="torch 2.10 or later")
    tiled, pairs, out = bool(pool.target.sm), torch.float4_e2m1fn_x2, pool.dtype_of(output)
    scaling = F.ScalingType.BlockWise1x16 if fmt.name == "nvfp4" else F.ScalingType.BlockWise1x32
    swizzle = F.SwizzleType.SWIZZLE_32_4_4 if tiled else F.SwizzleType.NO_SWIZZLE

    def apply(x: Operands, w: Operands) -> torch.Tensor:
        return F.scaled_mm(
            x[0].view(pairs),
            w[0].view(pairs).t(),
            scale_a=x[1].flatten() if tiled else x[1],
            scale_recipe_a=scaling,
            scale_b=w[1].flatten() if tiled else w[1],
            scale_recipe_b=scaling,
            swizzle_a=swizzle,
            swizzle_b=swizzle,
            output_dtype=out,
        )

    return _linear(_call(fmt), fmt, pool, apply, of_torch(pool.target), tiled)


def _cutlass(output: Format, pool: OperandPool) -> Linear:
    ops, out = find("cutlass", pool.target), pool.dtype_of(output)
    alpha = torch.ones(1, device=pool.device)

    def apply(x: Operands, w: Operands) -> torch.Tensor:
        made: torch.Tensor = ops.cutlass_scaled_fp4_mm(x[0], w[0], x[1], w[1], alpha, out)
        return made

    return _linear("vllm cutlass_scaled_fp4_mm", find_format("nvfp4"), pool, apply, "cutlass")
