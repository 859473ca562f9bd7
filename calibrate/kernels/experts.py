"""Matmuls of routed rows with the weights of their experts: fused kernels, torch's grouped matmul, or one by one.

Rows come sorted by expert. How many each expert gets is dealt by :func:`rows_of_experts`, as a router of that
popularity would, and is the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from calibrate.kernels.choice import Option, first_right
from calibrate.kernels.fp8_blocks import BLOCK, ready_blocks, ready_rows, spread
from calibrate.kernels.kernel import Kernel, count_of, tolerance_of
from calibrate.kernels.libraries import find
from calibrate.kernels.linear import recipe
from calibrate.kernels.operands import NoKernelError, OperandPool, Operands
from calibrate.kernels.rows import rows_of_experts
from inferplan.work.ops import GroupedMatmul

_SWAPPED = 64
"""Rows up to which vLLM's CUTLASS kernel multiplies the other way round."""
_ALIGNED = 128
"""Rows to which DeepGEMM's contiguous layout rounds those of an expert (get_mk_alignment_for_contiguous_layout)."""


def grouped_kernel(op: GroupedMatmul, pool: OperandPool) -> Kernel:
    """The first kernel that is right for experts of these formats; all experts of the rank are in memory."""
    small = replace(
        op,
        m=min(count_of(op.m), 48.0),
        experts=min(op.experts, 4),
        touched=min(count_of(op.touched), 3.0),
        k=512,
        n=384,
    )
    options = _options(op, pool)
    probes = _options(small, pool)
    task = f"experts {op.weight.name} x {op.input.name}"
    return first_right(options, task, pool, lambda index: probes[index].make())


def _options(op: GroupedMatmul, pool: OperandPool) -> list[Option[Kernel]]:
    """The fused kernels of engines, where they run, then torch's."""
    counts = rows_of_experts(count_of(op.m), op.experts, count_of(op.touched), op.skew)
    one_by_one = Option(name="one matmul for each expert", make=lambda: _one_by_one(op, pool, counts))
    if pool.target.kind != "cuda":
        stacked = [Option(name="torch._grouped_mm", make=lambda: _stacked(op, pool, counts))]
        return stacked if _wide(op) and pool.target.kind == "cpu" else [*stacked[: _wide(op)], one_by_one]
    options: list[Option[Kernel]] = []
    if op.weight.name == "fp8-block":
        options.append(
            Option(name="deepgemm (m_grouped_fp8_gemm_nt_contiguous)", make=lambda: _deep_gemm(op, pool, counts))
        )
    if _wide(op) or op.weight.name in ("fp8", "fp8-block"):
        options += [_cutlass_option(op, pool, counts)] if op.weight.name == "fp8" and pool.target.sm >= 90 else []
        options.append(Option(name="triton (vLLM fused_moe_kernel)", make=lambda: _triton(op, pool, counts)))
    if _wide(op):
        options.append(Option(name="torch._grouped_mm", make=lambda: _stacked(op, pool, counts)))
    if op.weight.name == "fp8":
        options.append(Option(name="torch._scaled_grouped_mm", make=lambda: _scaled_stack(op, pool, counts)))
    return [*options, one_by_one]


def _wide(op: GroupedMatmul) -> bool:
    """Weights and inputs of one format of 16 bits or more."""
    return op.weight == op.input and op.weight.bits >= 16


def _spans(counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """Expert, first row and row after the last, of each expert that has rows."""
    ends = list(accumulate(counts))
    return [(i, end - count, end) for i, (count, end) in enumerate(zip(counts, ends)) if count]


def _offsets(counts: Sequence[int], pool: OperandPool) -> torch.Tensor:
    return torch.tensor(list(accumulate(counts)), dtype=torch.int32, device=pool.device)


def _by_expert(
    counts: Sequence[int], product: Callable[[Any, Any], torch.Tensor]
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The reference of experts in one tensor: each one's rows times its weights."""
    return lambda x, w: torch.cat([product(x[a:b], w[i]) for i, a, b in _spans(counts)])


def _one_by_one(op: GroupedMatmul, pool: OperandPool, counts: Sequence[int]) -> Kernel:
    """A loop over the touched experts, which no engine runs: its launches are most of it at a few rows each."""
    linear = recipe(op.weight, op.input, op.output, pool)
    linear.demand(op.n, op.k)
    spans = _spans(counts)

    def each(call: Callable[[Operands, Operands], torch.Tensor]) -> Callable[..., torch.Tensor]:
        def over_experts(x: tuple[Operands, ...], *experts: Operands) -> torch.Tensor:
            return torch.cat([call(rows, experts[i])[: b - a] for rows, (i, a, b) in zip(x, spans)])

        return over_experts

    return Kernel(
        name=f"loop of {linear.name}",
        operands=lambda: (
            tuple(linear.input(b - a, op.k) for _, a, b in spans),
            *(linear.weight(op.n, op.k) for _ in range(op.experts)),
        ),
        run=each(linear.apply),
        reference=each(linear.exact),
        tolerance=linear.tolerance,
    )


def _stacked(op: GroupedMatmul, pool: OperandPool, counts: Sequence[int]) -> Kernel:
    """torch's grouped matmul over experts in one tensor: CUTLASS on SM90 and later, a loop inside torch elsewhere."""
    offsets = _offsets(counts, pool)
    return Kernel(
        name="torch._grouped_mm",
        operands=lambda: (
            pool.normal((count_of(op.m), op.k), op.input),
            pool.normal((op.experts, op.n, op.k), op.weight),
        ),
        run=lambda x, w: torch._grouped_mm(x, w.transpose(1, 2), offs=offsets),
        reference=_by_expert(counts, lambda x, w: x.double() @ w.double().t()),
        tolerance=tolerance_of(op.weight),
        library="cutlass" if pool.target.sm >= 90 else "torch",
    )


def _scaled_stack(op: GroupedMatmul, pool: OperandPool, counts: Sequence[int]) -> Kernel:
    """The same in fp8, with a scale for each row of the inputs and of every expert's weights."""
    fp8, offsets = pool.dtype_of(op.weight), _offsets(counts, pool)
    if pool.target.sm < 90 and not pool.target.gfx:
        raise NoKernelError(f"torch._scaled_grouped_mm wants SM90 or later, not {pool.target}")
    if op.n % 16 or op.k % 16:
        raise NoKernelError(f"torch._scaled_grouped_mm wants multiples of 16, not n = {op.n}, k = {op.k}")

    def run(x: Operands, w: Operands) -> torch.Tensor:
        return torch._scaled_grouped_mm(
            x[0], w[0].transpose(1, 2), x[1], w[1], offs=offsets, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    def exact(x: Operands, w: Operands) -> torch.Tensor:
        product = _by_expert(counts, lambda rows, weights: rows @ weights.t())
        return product(x[0].double() * x[1].double()[:, None], w[0].double() * w[1].double()[:, :, None])

    return Kernel(
        name="torch._scaled_grouped_mm (row scales)",
        operands=lambda: (
            (pool.typed((count_of(op.m), op.k), fp8), pool.positive((count_of(op.m),))),
            (pool.typed((op.experts, op.n, op.k), fp8), pool.positive((op.experts, op.n))),
        ),
        run=run,
        reference=exact,
        tolerance=2e-2,
        library="cutlass" if pool.target.sm else "torch",
    )


def _cutlass_option(op: GroupedMatmul, pool: OperandPool, counts: Sequence[int]) -> Option[Kernel]:
    return Option(name="cutlass", make=lambda: _cutlass(op, pool, counts))


def _cutlass(op: GroupedMatmul, pool: OperandPool, counts: Sequence[int]) -> Kernel:
    """vLLM's ``cutlass_moe_mm`` in fp8, a scale for each row and each output. Up to 64 rows it multiplies the other
    way round, for which rows and columns of a problem change places (``fused_moe/experts/cutlass_moe.py``)."""
    ops, m = find("cutlass", pool.target), count_of(op.m)
    fp8, device = pool.dtype_of(op.weight), pool.device
    sizes = [(count, op.n, op.k) if m > _SWAPPED else (op.n, count, op.k) for count in counts]
    problems = torch.tensor(sizes, dtype=torch.int32, device=device)
    first = torch.tensor([0, *accumulate(counts)][:-1], dtype=torch.int64, device=device)
    inner, outer = (torch.full((op.experts,), width, dtype=torch.int64, device=device) for width in (op.k, op.n))

    def operands() -> Operands:
        x = pool.typed((m, op.k), fp8), pool.positive((m, 1))
        return x, (pool.typed((op.experts, op.n, op.k), fp8), pool.positive((op.experts, op.n)))

    def run(x: Operands, w: Operands) -> torch.Tensor:
        y = torch.empty(m, op.n, dtype=torch.bfloat16, device=device)
        ops.cutlass_moe_mm(y, x[0], w[0], x[1], w[1], first, problems, inner, inner, outer, True, True)
        return y

    def exact(x: Operands, w: Operands) -> torch.Tensor:
        product = _by_expert(counts, lambda rows, weights: rows @ weights.t())
        return product(x[0].double() * x[1].double(), w[0].double() * w[1].double()[:, :, None])

    return Kernel(name="vllm cutlass_moe_mm (row scales)", operands=operands, run=run, reference=exact, tolerance=2e-2,
                  library="cutlass")  # fmt: skip


def _block_weights(op: GroupedMatmul, pool: OperandPool) -> tuple[torch.Tensor, torch.Tensor]:
    """fp8 weights of all experts ``[experts, n, k]`` and a scale for each 128 x 128 of them."""
    if op.n % BLOCK or op.k % BLOCK:
        raise NoKernelError(f"blocks of {BLOCK} do not divide n = {op.n}, k = {op.k}", hint="another division (tp)")
    scales = pool.powers((op.experts, op.n // BLOCK, op.k // BLOCK))
    return pool.typed((op.experts, op.n, op.k), torch.float8_e4m3fn), scales


def _exact_blocks(counts: Sequence[int]) -> Callable[..., torch.Tensor]:
    def exact(x: Operands, w: Operands) -> torch.Tensor:
        product = _by_expert(counts, lambda rows, weights: rows @ weights.t())
        return product(x[0].double() * spread(x[-1], 1), w[0].double() * spread(w[-1], BLOCK))

    return exact


def _deep_gemm(op: GroupedMatmul, pool: OperandPool, counts: Sequence[int]) -> Kernel:
    """DeepGEMM's contiguous layout: the rows of each expert begin at a multiple of 128, and each row names its expert;
    those between are -1 and left out."""
    module = find("deepgemm", pool.target)
    room = [-(-count // _ALIGNED) * _ALIGNED for count in counts]
    total, experts = sum(room), torch.full((sum(room),), -1, dtype=torch.int32)
    for i, start, _ in _spans(room):
        experts[start : start + counts[i]] = i
    of_row = experts.to(pool.device)
    real = (experts >= 0).nonzero().flatten()

    def operands() -> Operands:
        scales = pool.powers((total, op.k // BLOCK))
        weights, blocks = _block_weights(op, pool)
        x = pool.typed((total, op.k), torch.float8_e4m3fn)
        return (x, ready_rows(module, scales, pool), scales), (weights, ready_blocks(module, blocks, pool), blocks)

    def run(x: Operands, w: Operands) -> torch.Tensor:
        y = torch.empty(total, op.n, dtype=torch.bfloat16, device=x[0].device)
        module.m_grouped_fp8_gemm_nt_contiguous((x[0], x[1]), (w[0], w[1]), y, of_row)
        return y

    def reference(x: Operands, w: Operands) -> torch.Tensor:
        return _exact_blocks(counts)((x[0][real], x[-1][real]), w)

    return Kernel(
        name="deep_gemm.m_grouped_fp8_gemm_nt_contiguous",
        operands=operands,
        run=run,
        reference=reference,
        tolerance=2e-2,
        library="deepgemm",
        compared=lambda y: y.cpu()[real],
    )


def _triton(op: GroupedMatmul, pool: OperandPool, counts: Sequence[int]) -> Kernel:
    """vLLM's fused kernel over rows sorted by expert, with the tiles that vLLM takes for this size and device."""
    module = find("triton", pool.target)
    m, output = count_of(op.m), pool.dtype_of(op.output)
    eight, blocks = op.weight.name != op.input.name or op.weight.bits == 8, op.weight.name == "fp8-block"
    shapes = (op.experts, op.n, op.k), (op.experts, op.k, max(op.n // 2, 1))
    kind, block = ("fp8_w8a8" if eight else None), ([BLOCK, BLOCK] if blocks else None)
    config = module.try_get_optimal_moe_config(*shapes, 1, kind, m, block_shape=block)
    rows, tiles = _tiles(counts, config["BLOCK_SIZE_M"])
    ids, owners = rows.to(pool.device), tiles.to(pool.device)
    padded = torch.tensor([len(rows)], dtype=torch.int32, device=pool.device)
    invoke = getattr(module, "invoke_fused_moe_triton_kernel", None) or module.invoke_fused_moe_kernel

    def operands() -> Operands:
        if blocks:
            weights, scales = _block_weights(op, pool)
            return (pool.typed((m, op.k), torch.float8_e4m3fn), pool.powers((m, op.k // BLOCK))), (weights, scales)
        x, w = pool.normal((m, op.k), op.input), pool.normal((op.experts, op.n, op.k), op.weight)
        if not eight:
            return (x, None), (w, None)
        return (x, pool.positive((m, 1))), (w, pool.positive((op.experts, op.n, 1)))

    def run(x: Operands, w: Operands) -> torch.Tensor:
        y = torch.empty(m, 1, op.n, dtype=output, device=x[0].device)
        invoke(
            A=x[0], B=w[0], C=y, A_scale=x[1], B_scale=w[1], topk_weights=None, sorted_token_ids=ids,
            expert_ids=owners, num_tokens_post_padded=padded, mul_routed_weight=False, top_k=1, config=config,
            compute_type=getattr(module.tl, str(output).removeprefix("torch.")), use_fp8_w8a8=eight,
            use_int8_w8a8=False, use_int8_w8a16=False, use_int4_w4a16=False, per_channel_quant=eight and not blocks,
            block_shape=block,
        )  # fmt: skip
        return y[:, 0]

    def exact(x: Operands, w: Operands) -> torch.Tensor:
        if blocks:
            return _exact_blocks(counts)(x, w)
        inputs, weights = (part[0].double() * (part[1].double() if eight else 1.0) for part in (x, w))
        return _by_expert(counts, lambda some, own: some @ own.t())(inputs, weights)

    return Kernel(
        name=f"vLLM {getattr(invoke, '__name__', 'fused_moe_kernel')}",
        operands=operands,
        run=run,
        reference=exact,
        tolerance=2e-2 if eight else tolerance_of(op.weight),
        library="triton",
    )


def _tiles(counts: Sequence[int], block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row numbers, each expert's padded to tiles of ``block`` with a number past the last; each tile's expert."""
    rows: list[int] = []
    owners: list[int] = []
    for i, a, b in _spans(counts):
        tiles = -(-(b - a) // block)
        rows += [*range(a, b), *[sum(counts)] * (tiles * block - (b - a))]
        owners += [i] * tiles
    return torch.tensor(rows, dtype=torch.int32), torch.tensor(owners, dtype=torch.int32)
