"""Linear layers in every pair of formats that a device can multiply: for matmuls, experts and whole models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from calibrate.kernels.choice import Option, first_right
from calibrate.kernels.fp4_blocks import fp4_options
from calibrate.kernels.fp8_blocks import fp8_block_options
from calibrate.kernels.kernel import Kernel
from calibrate.kernels.libraries import find, of_torch
from calibrate.kernels.linear_recipe import Linear
from calibrate.kernels.marlin import narrow_weight_options, require_nvidia
from calibrate.kernels.operands import DTYPES, NoKernelError, OperandPool, Operands
from inferplan.work.formats import Format, find_format

_TRIAL = {"fp8-block": (272, 384, 640), "nvfp4": (272, 256, 384), "mxfp4": (272, 256, 384)}
_TRIAL_SIZE = (48, 256, 256)
"""Rows, columns and depth at which recipes are tried: several blocks where there are blocks, and five of them deep, so
that no two layouts are one."""


def recipe(weight: Format, source: Format, output: Format, pool: OperandPool) -> Linear:
    """The recipe for weights and inputs in a pair of formats: the first that is right on the device.

    Raises :class:`NoKernelError` when there is none.
    """
    make = _OPTIONS.get((weight.name, source.name))
    if make is not None:
        options = make(output, pool)
    elif weight != source or weight.name not in DTYPES:
        raise NoKernelError(
            f"torch has no matmul of {weight.name} weights and {source.name} inputs",
            hint="both in bf16, fp16, fp32, fp8, int8, nvfp4 or mxfp4; int8, int4, nvfp4 or mxfp4 weights with bf16 "
            "inputs; fp8-block with fp8",
        )
    else:
        options = [Option(name="F.linear", make=lambda: _plain(weight, pool))]
    task = f"matmul {weight.name} x {source.name}"
    size = _TRIAL.get(weight.name, _TRIAL_SIZE)
    return first_right(options, task, pool, lambda index: _trial(options[index].make(), size))


def _trial(linear: Linear, size: tuple[int, int, int]) -> Kernel:
    """A recipe at a small size, the next one that its layout can hold."""
    m, n, k = size
    return dense(linear, m, *(-(-x // of) * of for x, of in zip((n, k), linear.multiples)))


def dense(linear: Linear, m: int, n: int, k: int) -> Kernel:
    """A recipe at one size. Raises :class:`NoKernelError` for a size that its layout cannot hold."""
    linear.demand(n, k)
    return Kernel(
        name=linear.name,
        operands=lambda: (linear.input(m, k), linear.weight(n, k)),
        run=linear.apply,
        reference=linear.exact,
        tolerance=linear.tolerance,
        library=linear.library,
    )


def _plain(fmt: Format, pool: OperandPool) -> Linear:
    if fmt.name == "tf32" and pool.target.kind != "cuda":
        raise NoKernelError(f"torch has no tf32 on {pool.target}", hint="fp32, bf16 or fp16")

    def tensor_cores(x: Operands, w: Operands) -> torch.Tensor:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            return F.linear(x[0], w[0])
        finally:  # also when there is no memory: later fp32 would run as tf32
            torch.set_float32_matmul_precision(before)

    return Linear(
        name="F.linear",
        weight=lambda n, k: (pool.normal((n, k), fmt),),
        input=lambda m, k: (pool.normal((m, k), fmt),),
        apply=tensor_cores if fmt.name == "tf32" else lambda x, w: F.linear(x[0], w[0]),
        exact=lambda x, w: x[0].double() @ w[0].double().t(),
        tolerance={"fp32": 1e-5, "tf32": 2e-3}.get(fmt.name, 1e-2),
        library=of_torch(pool.target),
    )


def _fp8(output: Format, pool: OperandPool) -> list[Option[Linear]]:
    """A scale for each row and column, or one for each tensor where there are no others (a CPU)."""
    target = pool.target
    pool.dtype_of(_FP8)
    if target.kind == "cuda" and target.sm < 89 and not target.gfx:
        raise NoKernelError(f"{target} has no fp8 arithmetic", hint="SM89 or later, CDNA 3 or later; int8 or int4 here")
    rows = Option(name="torch._scaled_mm (row scales)", make=lambda: _fp8_scaled(output, pool, rowwise=True))
    whole = Option(name="torch._scaled_mm (tensor scales)", make=lambda: _fp8_scaled(output, pool, rowwise=False))
    return [whole] if target.kind == "cpu" else [*_cutlass(_FP8, output, pool), rows, whole]


def _cutlass(fmt: Format, output: Format, pool: OperandPool) -> list[Option[Linear]]:
    """vLLM's kernel of fp8 and of int8, with a scale for each row and column in the same pass; NVIDIA's alone."""
    target, dtype, out = pool.target, pool.dtype_of(fmt), pool.dtype_of(output)
    if not target.sm or (fmt.bits == 8 and fmt.name == "int8" and target.sm >= 100):  # int8 left it with SM100
        return []

    def make() -> Linear:
        ops = find("cutlass", target)
        return Linear(
            name="vllm cutlass_scaled_mm (row scales)",
            weight=lambda n, k: (pool.typed((n, k), dtype), pool.positive((1, n))),
            input=lambda m, k: (pool.typed((m, k), dtype), pool.positive((m, 1))),
            apply=lambda x, w: ops.cutlass_scaled_mm(x[0], w[0].t(), scale_a=x[1], scale_b=w[1], out_dtype=out),
            exact=lambda x, w: (x[0].double() * x[1].double()) @ (w[0].double().t() * w[1].double()),
            tolerance=2e-2,
            library="cutlass",
            multiples=(16, 16),
        )

    return [Option(name="cutlass", make=make)]


def _fp8_scaled(output: Format, pool: OperandPool, rowwise: bool) -> Linear:
    out, fp8, fast = pool.dtype_of(output), pool.dtype_of(_FP8), pool.target.sm >= 89
    return Linear(
        name=f"torch._scaled_mm ({'row' if rowwise else 'tensor'} scales)",
        weight=lambda n, k: (pool.typed((n, k), fp8), pool.positive((1, n) if rowwise else ())),
        input=lambda m, k: (pool.typed((m, k), fp8), pool.positive((m, 1) if rowwise else ())),
        apply=lambda x, w: torch._scaled_mm(x[0], w[0].t(), x[1], w[1], out_dtype=out, use_fast_accum=fast),
        exact=lambda x, w: (x[0].double() * x[1].double()) @ (w[0].double().t() * w[1].double()),
        tolerance=2e-2,
        library=of_torch(pool.target),
        multiples=(16, 16),
    )


def _int8(output: Format, pool: OperandPool) -> list[Option[Linear]]:
    """Integer matmul, then one scale a column, in a pass of its own. CUDA wants more than 16 rows: fewer are padded."""
    if pool.target.kind == "mps":
        raise NoKernelError("torch has no int8 matmul on MPS", hint="int8 or int4 weights with bf16 inputs")
    if 0 < pool.target.sm < 75:
        raise NoKernelError(f"{pool.target} has no int8 matmul", hint="SM75 or later; fp16 here")
    out, least = pool.dtype_of(output), 32 if pool.target.kind == "cuda" else 1

    def apply(x: Operands, w: Operands) -> torch.Tensor:
        return torch.mul(torch._int_mm(x[0], w[0].t()), w[1])

    linear = Linear(
        name="torch._int_mm, then column scales in a second pass",
        weight=lambda n, k: (pool.typed((n, k), torch.int8), pool.positive((n,)).to(out)),
        input=lambda m, k: (pool.typed((max(m, least) if m <= 16 else m, k), torch.int8),),
        apply=apply,
        exact=_exact_int8,
        multiples=(8, 8),
    )
    plain = Option(name=linear.name, make=lambda: linear)
    return [*_cutlass(find_format("int8"), output, pool), plain]


def _int8_weight(output: Format, pool: OperandPool) -> list[Option[Linear]]:
    out = pool.dtype_of(output)
    linear = Linear(
        name="torch._weight_int8pack_mm",
        weight=lambda n, k: (pool.typed((n, k), torch.int8), pool.positive((n,)).to(out)),
        input=lambda m, k: (pool.normal((m, k), output),),
        apply=lambda x, w: torch._weight_int8pack_mm(x[0], w[0], w[1]),
        exact=_exact_int8,
    )
    plain = Option(name=linear.name, make=lambda: linear)
    return [*narrow_weight_options(find_format("int8"), output, pool), plain]


def _exact_int8(x: Operands, w: Operands) -> torch.Tensor:
    return (x[0].double() @ w[0].double().t()) * w[1].double()


def _int4_weight(output: Format, pool: OperandPool) -> list[Option[Linear]]:
    """Groups of 128 with a scale and a zero point: ``(q - 8)*scale + zero``. The values stay for the reference."""
    cpu, target = pool.target.kind == "cpu", pool.target
    if target.kind == "cuda" and target.sm < 80 and not target.gfx:
        raise NoKernelError(f"torch's int4 matmul wants SM80 or later, not {target}", hint="int8 or fp16 there")
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
        if (n, k) not in packed:
            packed[n, k] = pack(n, k)
        weights, values = packed[n, k]
        return weights.clone(), pool.normal((k // 128, n, 2), output), values

    def exact(x: Operands, w: Operands) -> torch.Tensor:
        scale, zero = (part.double().t().repeat_interleave(128, dim=1) for part in w[1].unbind(-1))
        result: torch.Tensor = x[0].double() @ ((w[2].double() - 8) * scale + zero).t()
        return result

    linear = Linear(
        name=f"torch.{'_weight_int4pack_mm_for_cpu' if cpu else '_weight_int4pack_mm'}",
        weight=weight,
        input=lambda m, k: (pool.normal((m, k), output),),
        apply=lambda x, w: call(x[0], w[0], 128, w[1]),
        exact=exact,
        tolerance=2e-2,
        multiples=(64, 128),
    )
    plain = Option(name=linear.name, make=lambda: linear)
    return [*narrow_weight_options(find_format("int4"), output, pool), plain]


def _fp4_weight(name: str, output: Format, pool: OperandPool) -> list[Option[Linear]]:
    weight = find_format(name)
    require_nvidia(weight, pool)
    return narrow_weight_options(weight, output, pool)


_FP8 = find_format("fp8")
_OPTIONS: dict[tuple[str, str], Callable[[Format, OperandPool], list[Option[Linear]]]] = {
    ("fp8", "fp8"): _fp8,
    ("fp8-block", "fp8"): fp8_block_options,
    ("int8", "int8"): _int8,
    ("int8", "bf16"): _int8_weight,
    ("int4", "bf16"): _int4_weight,
    ("nvfp4", "nvfp4"): partial(fp4_options, find_format("nvfp4")),
    ("mxfp4", "mxfp4"): partial(fp4_options, find_format("mxfp4")),
    ("nvfp4", "bf16"): partial(_fp4_weight, "nvfp4"),
    ("mxfp4", "bf16"): partial(_fp4_weight, "mxfp4"),
}
