"""LoRA adapters beside a matrix: every row times the adapter of its own, into the rank and out of it.

vLLM 0.32.0 runs ``lora_shrink`` and ``lora_expand`` (``lora/ops/triton_ops``) over rows that its metadata sorts by
adapter, once a step for all layers (``lora/punica_wrapper/punica_gpu.py``). A shrink writes fp32 of each slice; an
expand adds to what is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from calibrate.kernels.choice import Option, first_right
from calibrate.kernels.kernel import Kernel, count_of, tolerance_of
from calibrate.kernels.libraries import find
from calibrate.kernels.operands import NoKernelError, OperandPool, Operands
from calibrate.kernels.rows import rows_of_experts
from inferplan.work.ops import GroupedMatmul


def adapter_kernel(op: GroupedMatmul, pool: OperandPool) -> Kernel:
    """The first kernel that is right for adapters of these formats; all slots are in memory."""
    if op.weight != op.input or op.weight.bits < 16:
        raise NoKernelError(f"adapters of {op.weight.name} beside {op.input.name} are timed in no library here")
    small = replace(op, m=min(count_of(op.m), 40.0), experts=min(op.experts, 3), touched=min(count_of(op.touched), 2.0),
                    k=min(op.k, 256), n=min(op.n, 64 * op.slices))  # fmt: skip
    options, probes = _options(op, pool), _options(small, pool)
    task = f"adapters {op.adapter} {op.weight.name}"
    return first_right(options, task, pool, lambda index: probes[index].make())


def _options(op: GroupedMatmul, pool: OperandPool) -> list[Option[Kernel]]:
    torchs = Option(name="one matmul for each adapter", make=lambda: _one_by_one(op, pool))
    if pool.target.kind != "cuda" or op.weight.bits != 16:
        return [torchs]
    return [Option(name="vllm-lora", make=lambda: _vllm(op, pool)), torchs]


def _owners(op: GroupedMatmul) -> torch.Tensor:
    """The adapter of each row, in any order: rows of a step are in that of its sequences."""
    counts = torch.tensor(rows_of_experts(count_of(op.m), op.experts, count_of(op.touched), op.skew))
    sorted_rows = torch.arange(op.experts).repeat_interleave(counts)
    return sorted_rows[torch.randperm(len(sorted_rows), generator=torch.Generator().manual_seed(len(sorted_rows)))]


def _widths(op: GroupedMatmul) -> list[int]:
    """Columns of each slice."""
    each = op.n // op.slices
    return [op.n - each * (op.slices - 1), *[each] * (op.slices - 1)]


def _operands(op: GroupedMatmul, pool: OperandPool) -> Callable[[], Operands]:
    m = count_of(op.m)

    def shrink() -> Operands:
        return pool.normal((m, op.k), op.input), (pool.normal((op.experts, op.n, op.k), op.weight),)

    def expand() -> Operands:
        weights = tuple(pool.normal((op.experts, width, op.k), op.weight) for width in _widths(op))
        return pool.normal((op.slices, m, op.k), op.input).float(), weights, pool.normal((m, op.n), op.output).clone()

    return shrink if op.adapter == "shrink" else expand


def _product(x: torch.Tensor, weights: torch.Tensor, owners: torch.Tensor) -> torch.Tensor:
    """Each row times the weights of its adapter, one adapter after another."""
    out = x.new_empty(len(x), weights.shape[1])
    for owner in owners.unique().tolist():
        rows = (owners == owner).nonzero().flatten()
        out[rows] = x[rows] @ weights[owner].t()
    return out


def _exact(op: GroupedMatmul, owners: torch.Tensor) -> Callable[..., torch.Tensor]:
    def shrink(x: torch.Tensor, weights: Any) -> torch.Tensor:
        return torch.einsum("mk,mnk->mn", x.double(), weights[0].double()[owners])

    def expand(x: torch.Tensor, weights: Any, y: torch.Tensor) -> torch.Tensor:
        parts = [torch.einsum("mk,mnk->mn", x[i].double(), part.double()[owners]) for i, part in enumerate(weights)]
        return y.double() + torch.cat(parts, dim=1)

    return shrink if op.adapter == "shrink" else expand


def _kernel(op: GroupedMatmul, pool: OperandPool, name: str, run: Callable[..., Any], library: str) -> Kernel:
    return Kernel(
        name=name,
        operands=_operands(op, pool),
        run=run,
        reference=_exact(op, _owners(op)),
        tolerance=tolerance_of(op.weight, 2e-2),
        library=library,
    )


def _one_by_one(op: GroupedMatmul, pool: OperandPool) -> Kernel:
    owners = _owners(op).to(pool.device)

    def shrink(x: torch.Tensor, weights: Any) -> torch.Tensor:
        return _product(x, weights[0], owners)

    def expand(x: torch.Tensor, weights: Any, y: torch.Tensor) -> torch.Tensor:
        narrow = x.to(weights[0].dtype)
        return y.add_(torch.cat([_product(narrow[i], part, owners) for i, part in enumerate(weights)], dim=1))

    return _kernel(op, pool, "loop of matmuls", shrink if op.adapter == "shrink" else expand, "torch")


def _vllm(op: GroupedMatmul, pool: OperandPool) -> Kernel:
    module, m = find("vllm-lora", pool.target), count_of(op.m)
    meta = module.LoRAKernelMeta.make(op.experts, m, device=pool.device)
    meta.prepare_tensors(_owners(op).to(torch.int32).to(pool.device))
    told = meta.meta_args(m, False)

    def shrink(x: torch.Tensor, weights: Any) -> torch.Tensor:
        out = torch.empty(1, m, op.n, dtype=torch.float32, device=x.device)
        module.lora_shrink(x, list(weights), out, *told, 1.0)
        return out[0]

    def expand(x: torch.Tensor, weights: Any, y: torch.Tensor) -> torch.Tensor:
        module.lora_expand(x, list(weights), y, *told, offset_start=0, add_inputs=True)
        return y

    run = shrink if op.adapter == "shrink" else expand
    return _kernel(op, pool, f"vllm lora_{op.adapter}", run, "vllm-lora")
