"""Weights of 4 and 8 bits beside inputs of 16: Machete on SM90, Marlin from SM75 on, as vLLM runs them.

Calls are those of the wheel of vLLM 0.32.0: ``_custom_ops.py``, ``model_executor/kernels/linear/mixed_precision``
(``machete.py``, ``marlin.py``) and ``layers/quantization/utils/marlin_utils.py``, ``marlin_utils_fp4.py``. Weights come
as GPTQ packs them, ``[k/8, n]`` (``[k/4, n]`` in 8 bits) with the first rows in the lowest bits, and are packed anew.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from calibrate.kernels.choice import Option
from calibrate.kernels.libraries import find
from calibrate.kernels.linear_recipe import E2M1, Linear
from calibrate.kernels.operands import NoKernelError, OperandPool, Operands
from inferplan.work.formats import Format

GROUPS = {"int4": 128, "int8": -1, "mxfp4": 32, "nvfp4": 16}
"""Inputs that share a scale; -1 for all of a column."""
_BITS = {"int4": 4, "int8": 8, "mxfp4": 4, "nvfp4": 4}
_TYPES = {"int4": "uint4b8", "int8": "uint8b128", "mxfp4": "float4_e2m1f", "nvfp4": "float4_e2m1f"}
_UTILS = "vllm.model_executor.layers.quantization.utils"


def narrow_weight_options(weight: Format, output: Format, pool: OperandPool) -> list[Option[Linear]]:
    """Machete, then Marlin; none on other devices than NVIDIA's."""
    if pool.target.kind != "cuda" or pool.target.gfx:
        return []
    makers = {"marlin": lambda: _marlin(weight, output, pool)}
    if weight.name in ("int4", "int8"):
        makers = {"machete": lambda: _machete(weight, output, pool)} | makers
    return [Option(name=name, make=make) for name, make in makers.items()]


class _Packed:
    """Random weights of a format as GPTQ packs them, with their scales ``[groups, n]``, and what they stand for."""

    def __init__(self, weight: Format, output: Format, pool: OperandPool) -> None:
        self.name, self.bits, self.group = weight.name, _BITS[weight.name], GROUPS[weight.name]
        self.type, self.pool = pool.dtype_of(output), pool

    def raw(self, n: int, k: int) -> torch.Tensor:
        """Packed weights, ``[k*bits/32, n]``."""
        return self.pool.integers((k * self.bits // 32, n), 2**31 - 1, torch.int32)

    def scales(self, n: int, k: int) -> torch.Tensor:
        """A scale for each group of inputs and each output."""
        shape = (1 if self.group < 0 else k // self.group, n)
        if self.name == "mxfp4":
            return self.pool.powers(shape).to(torch.float8_e8m0fnu)
        plain = self.pool.positive(shape)
        return plain.to(torch.float8_e4m3fn) if self.name == "nvfp4" else plain.to(self.type)

    def exact(self, x: Operands, w: Operands) -> torch.Tensor:
        """The product in float64; the last of the weights are as GPTQ packs them, with their scales."""
        raw, scales = w[-2], w[-1]
        shifts = torch.arange(0, 32, self.bits, device=raw.device)[:, None]
        whole = ((raw[:, None] >> shifts) & (2**self.bits - 1)).flatten(0, 1)  # [k, n]
        values = E2M1.to(raw.device)[whole] if "fp4" in self.name else whole.double() - 2 ** (self.bits - 1)
        spread = scales.to(torch.float32).double().repeat_interleave(len(values) // len(scales), dim=0)
        return x[0].double() @ (values * spread)


def _ready(packed: _Packed, make: Callable[[torch.Tensor, torch.Tensor, int, int], Operands]) -> Any:
    """Fresh weights of a shape: made once, as it takes long, and then copied to elsewhere in memory."""
    known: dict[tuple[int, int], Operands] = {}

    def weight(n: int, k: int) -> Operands:
        if (n, k) not in known:
            raw, scales = packed.raw(n, k), packed.scales(n, k)
            known[n, k] = (*make(raw, scales, n, k), raw, scales)
        made, rest = known[n, k][:-2], known[n, k][-2:]
        return (*(part.clone() if isinstance(part, torch.Tensor) else part for part in made), *rest)

    return weight


def _utils(name: str) -> ModuleType:
    return importlib.import_module(f"{_UTILS}.{name}")


def _type_of(packed: _Packed) -> Any:
    return getattr(importlib.import_module("vllm.scalar_type").scalar_types, _TYPES[packed.name])


def _marlin(weight: Format, output: Format, pool: OperandPool) -> Linear:
    """``marlin_gemm``, with sums in fp32 and without atomic additions, which are vLLM's defaults."""
    ops, packed = find("marlin", pool.target), _Packed(weight, output, pool)
    utils, kind = _utils("marlin_utils"), _type_of(packed)
    room = utils.marlin_make_workspace_new(torch.device(pool.device))

    def ready(raw: torch.Tensor, scales: torch.Tensor, n: int, k: int) -> Operands:
        group = k if packed.group < 0 else packed.group
        own = utils.marlin_permute_scales(scales.to(packed.type), size_k=k, size_n=n, group_size=group)
        whole = None
        if "fp4" in packed.name:
            own, whole = _fp4_scales(packed, own)
        return ops.gptq_marlin_repack(raw, size_k=k, size_n=n, num_bits=packed.bits), own, whole

    def apply(x: Operands, w: Operands) -> torch.Tensor:
        m, k = x[0].shape
        made: torch.Tensor = ops.marlin_gemm(
            a=x[0],
            c=None,
            b_q_weight=w[0],
            b_bias=None,
            b_scales=w[1],
            a_scales=None,
            global_scale=w[2],
            b_zeros=None,
            workspace=room,
            b_q_type=kind,
            size_m=m,
            size_n=w[-1].shape[1],
            size_k=k,
            use_atomic_add=False,
            use_fp32_reduce=True,
        )
        return made

    return Linear(
        name=f"vllm marlin_gemm, {_TYPES[packed.name]} in groups of {packed.group}",
        weight=_ready(packed, ready),
        input=lambda m, k: (pool.normal((m, k), output),),
        apply=apply,
        exact=packed.exact,
        tolerance=2e-2,
        library="marlin",
        multiples=(64, 128),
    )


def _fp4_scales(packed: _Packed, permuted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scales of fp4 as Marlin reads them, and nvfp4's scale of the whole tensor."""
    utils = _utils("marlin_utils_fp4")
    if packed.name == "mxfp4":
        return utils.mxfp4_marlin_process_scales(permuted), None
    scales, factor = utils.nvfp4_marlin_process_scales(permuted, a_dtype=packed.type)
    whole = torch.tensor([1.0 / factor], dtype=packed.type, device=permuted.device)
    return scales, utils.nvfp4_marlin_process_global_scale(whole)


def _machete(weight: Format, output: Format, pool: OperandPool) -> Linear:
    """``machete_mm``."""
    ops, packed = find("machete", pool.target), _Packed(weight, output, pool)
    kind = _type_of(packed)

    def ready(raw: torch.Tensor, scales: torch.Tensor, n: int, k: int) -> Operands:
        columns = raw.t().contiguous().t()
        own = {"a_type": packed.type, "b_type": kind, "group_scales_type": packed.type}
        return ops.machete_prepack_B(columns, **own), scales

    def apply(x: Operands, w: Operands) -> torch.Tensor:
        made: torch.Tensor = ops.machete_mm(
            a=x[0], b_q=w[0], b_type=kind, b_group_scales=w[1], b_group_zeros=None, b_group_size=packed.group
        )
        return made

    return Linear(
        name=f"vllm machete_mm, {_TYPES[packed.name]} in groups of {packed.group}",
        weight=_ready(packed, ready),
        input=lambda m, k: (pool.normal((m, k), output),),
        apply=apply,
        exact=packed.exact,
        tolerance=2e-2,
        library="machete",
        multiples=(128, 128),
    )


def require_nvidia(weight: Format, pool: OperandPool) -> None:
    """Raise :class:`NoKernelError` where nothing multiplies these weights with inputs of 16 bits."""
    if pool.target.kind != "cuda" or pool.target.gfx:
        raise NoKernelError(
            f"{pool.target} has no matmul of {weight.name} weights and 16-bit inputs",
            because="Marlin runs on NVIDIA's GPUs, and torch has no such call",
            hint="int4 or int8 weights, which torch multiplies"
            if pool.target.kind == "cuda"
            else "int8 or int4 weights",
        )
