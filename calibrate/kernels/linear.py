"""Linear layers in every pair of formats that torch can multiply: one recipe for matmuls, experts and whole models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from calibrate.kernels.operands import DTYPES, NoKernelError, OperandPool, Operands, dtype_of
from inferplan.work.formats import Format


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear:
    """``x [m, k] -> y [m, n]`` in a pair of formats: how operands are made, multiplied, and multiplied exactly.

    name: the library call. weight(n, k), input(m, k): fresh operands. tolerance: the relative error the formats allow.
    """

    name: str
    weight: Callable[[int, int], Operands]
    input: Callable[[int, int], Operands]
    apply: Callable[[Operands, Operands], torch.Tensor]
    exact: Callable[[Operands, Operands], torch.Tensor]
    tolerance: float = 1e-2


def recipe(weight: Format, source: Format, output: Format, pool: OperandPool) -> Linear:
    """The recipe for weights and inputs in a pair of formats. Raises :class:`NoKernelError` when torch has none."""
    special = _RECIPES.get((weight.name, source.name))
    if special is not None:
        return special(output, pool)
    if weight != source or weight.name not in DTYPES:
        raise NoKernelError(f"torch has no matmul of {weight.name} weights and {source.name} inputs")
    return _plain(weight, pool)


def _plain(fmt: Format, pool: OperandPool) -> Linear:
    if fmt.name == "tf32" and pool.device != "cuda":
        raise NoKernelError(f"torch has no tf32 on {pool.device}")

    def tensor_cores(x: Operands, w: Operands) -> torch.Tensor:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        result = F.linear(x[0], w[0])
        torch.set_float32_matmul_precision(before)
        return result

    return Linear(
        name="F.linear",
        weight=lambda n, k: (pool.normal((n, k), fmt),),
        input=lambda m, k: (pool.normal((m, k), fmt),),
        apply=tensor_cores if fmt.name == "tf32" else lambda x, w: F.linear(x[0], w[0]),
        exact=lambda x, w: x[0].double() @ w[0].double().t(),
        tolerance={"fp32": 1e-5, "tf32": 2e-3}.get(fmt.name, 1e-2),
    )


def _fp8(output: Format, pool: OperandPool) -> Linear:
    """Scaled matmul: a scale for each row and column on CUDA, one for each tensor on a CPU."""
    out, rowwise = dtype_of(output), pool.device == "cuda"

    def weight(n: int, k: int) -> Operands:
        _require_multiple("fp8", 16, n, k)
        return pool.typed((n, k), torch.float8_e4m3fn), pool.positive((1, n) if rowwise else ())

    return Linear(
        name=f"torch._scaled_mm ({'row' if rowwise else 'tensor'} scales)",
        weight=weight,
        input=lambda m, k: (pool.typed((m, k), torch.float8_e4m3fn), pool.positive((m, 1) if rowwise else ())),
        apply=lambda x, w: torch._scaled_mm(x[0], w[0].t(), x[1], w[1], out_dtype=out, use_fast_accum=rowwise),
        exact=lambda x, w: (x[0].double() * x[1].double()) @ (w[0].double().t() * w[1].double()),
        tolerance=2e-2,
    )


def _fp8_block(output: Format, pool: OperandPool) -> Linear:
    """Scales for 1x128 blocks of the input and 128x128 blocks of the weight (DeepSeek-V3, 2412.19437, section 3.3)."""
    if pool.device != "cuda":
        raise NoKernelError(f"torch has no block-scaled fp8 matmul on {pool.device}")
    out = dtype_of(output)

    def weight(n: int, k: int) -> Operands:
        _require_multiple("fp8-block", 128, n, k)
        blocks = k // 128  # the library wants the scales of a row padded to four
        return pool.typed((n, k), torch.float8_e4m3fn), pool.positive((n // 128, -(-blocks // 4) * 4))[:, :blocks]

    def spread(scales: torch.Tensor, rows: int) -> torch.Tensor:
        return scales.double().repeat_interleave(128, dim=1).repeat_interleave(rows, dim=0)

    return Linear(
        name="torch._scaled_mm (block scales)",
        weight=weight,
        input=lambda m, k: (pool.typed((m, k), torch.float8_e4m3fn), pool.positive((k // 128, m)).t()),
        apply=lambda x, w: torch._scaled_mm(x[0], w[0].t(), x[1], w[1].t(), out_dtype=out),
        exact=lambda x, w: (x[0].double() * spread(x[1], 1)) @ (w[0].double() * spread(w[1], 128)).t(),
        tolerance=2e-2,
    )


def _int8(output: Format, pool: OperandPool) -> Linear:
    """Integer matmul, then one scale a column. CUDA wants more than 16 rows: fewer are padded to 32."""
    out = dtype_of(output)

    def weight(n: int, k: int) -> Operands:
        _require_multiple("int8", 8, n, k)
        return pool.typed((n, k), torch.int8), pool.positive((n,)).to(out)

    def rows(m: int) -> int:
        return 32 if pool.device == "cuda" and m <= 16 else m

    return Linear(
        name="torch._int_mm and column scales",
        weight=weight,
        input=lambda m, k: (pool.typed((rows(m), k), torch.int8),),
        apply=lambda x, w: torch.mul(torch._int_mm(x[0], w[0].t()), w[1]),
        exact=_exact_int8,
    )


def _int8_weight(output: Format, pool: OperandPool) -> Linear:
    out = dtype_of(output)
    return Linear(
        name="torch._weight_int8pack_mm",
        weight=lambda n, k: (pool.typed((n, k), torch.int8), pool.positive((n,)).to(out)),
        input=lambda m, k: (pool.normal((m, k), output),),
        apply=lambda x, w: torch._weight_int8pack_mm(x[0], w[0], w[1]),
        exact=_exact_int8,
    )


def _exact_int8(x: Operands, w: Operands) -> torch.Tensor:
    return (x[0].double() @ w[0].double().t()) * w[1].double()


def _int4_weight(output: Format, pool: OperandPool) -> Linear:
    """Groups of 128 with a scale and a zero point: ``(q - 8)*scale + zero``. The values stay for the reference."""
    cpu = pool.device == "cpu"
    call = torch._weight_int4pack_mm_for_cpu if cpu else torch._weight_int4pack_mm

    packed: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def pack(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        values = pool.integers((n, k), 16, torch.int32)
        if cpu:
            return torch._convert_weight_to_int4pack_for_cpu(values, 1), values.to(torch.uint8)
        nibbles = ((values[:, ::2] << 4) | values[:, 1::2]).to(torch.uint8)
        return torch._convert_weight_to_int4pack(nibbles, 8), values.to(torch.uint8)

    def weight(n: int, k: int) -> Operands:
        """Packing takes long, so further operands of a shape are copies: of the same values, elsewhere in memory."""
        _require_multiple("int4", 128, k)
        _require_multiple("int4", 64, n)
        if (n, k) not in packed:
            packed[n, k] = pack(n, k)
        weights, values = packed[n, k]
        return weights.clone(), pool.normal((k // 128, n, 2), output), values

    def exact(x: Operands, w: Operands) -> torch.Tensor:
        scale, zero = (part.double().t().repeat_interleave(128, dim=1) for part in w[1].unbind(-1))
        result: torch.Tensor = x[0].double() @ ((w[2].double() - 8) * scale + zero).t()
        return result

    return Linear(
        name=f"torch.{'_weight_int4pack_mm_for_cpu' if cpu else '_weight_int4pack_mm'}",
        weight=weight,
        input=lambda m, k: (pool.normal((m, k), output),),
        apply=lambda x, w: call(x[0], w[0], 128, w[1]),
        exact=exact,
        tolerance=2e-2,
    )


def _require_multiple(fmt: str, of: int, *sizes: int) -> None:
    if any(size % of for size in sizes):
        raise NoKernelError(f"torch's {fmt} matmul wants multiples of {of}, not {' x '.join(map(str, sizes))}")


_RECIPES: dict[tuple[str, str], Callable[[Format, OperandPool], Linear]] = {
    ("fp8", "fp8"): _fp8,
    ("fp8-block", "fp8"): _fp8_block,
    ("int8", "int8"): _int8,
    ("int8", "bf16"): _int8_weight,
    ("int4", "bf16"): _int4_weight,
}
