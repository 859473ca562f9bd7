"""Every operator as a torch call of exactly its shapes and formats, with a float64 reference to check it against.

``build(op, pool)`` gives a :class:`Kernel`: where its operands come from, the best library call there is, and what the
result ought to be. An operator (or a format of it) that torch has no call for is refused with :class:`NoKernelError`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from calibrate.kernels.attention import (
    FLASH_HEAD,
    explicit_attention,
    flash_attention,
    library_attention,
    pieces,
    visible,
)
from calibrate.kernels.collectives import collective_kernel, exchange_kernel
from calibrate.kernels.kernel import Builder, Kernel, count_of, tolerance_of
from calibrate.kernels.linear import Linear, recipe
from calibrate.kernels.operands import NoKernelError, OperandPool, Operands, dtype_of
from calibrate.kernels.recurrence import (
    CHUNK,
    GatedScan,
    causal_convolution,
    exact_convolution,
    exact_long_convolution,
    long_convolution,
)
from inferplan.work.ops import (
    Attention,
    Collective,
    Conv,
    Copy,
    Elementwise,
    Exchange,
    Gather,
    GroupedMatmul,
    IndexSelect,
    LongConv,
    Mask,
    Matmul,
    Norm,
    Op,
    Scan,
    TopK,
)


def _matmul(op: Matmul, pool: OperandPool) -> Kernel:
    m = count_of(op.m)
    if op.batch == 1:
        linear = recipe(op.weight, op.input, op.output, pool)
        return Kernel(
            name=linear.name,
            operands=lambda: (linear.input(m, op.k), linear.weight(op.n, op.k)),
            run=linear.apply,
            reference=linear.exact,
            tolerance=linear.tolerance,
        )
    if op.weight != op.input:
        raise NoKernelError(f"torch has no batched matmul of {op.weight.name} weights and {op.input.name} inputs")
    return Kernel(
        name="torch.bmm",
        operands=lambda: (
            pool.normal((op.batch, m, op.k), op.input),
            pool.normal((op.batch, op.n, op.k), op.weight).transpose(1, 2),
        ),
        run=torch.bmm,
        reference=lambda x, w: x.double() @ w.double(),
        tolerance=tolerance_of(op.weight),
    )


def _grouped(op: GroupedMatmul, pool: OperandPool) -> Kernel:
    """Rows dealt evenly over the touched experts; the others get none. All experts of the rank are in memory."""
    m, touched = count_of(op.m), min(count_of(op.touched), op.experts, count_of(op.m))
    ends = [round(m * (i + 1) / touched) for i in range(touched)] + [m] * (op.experts - touched)
    offsets = torch.tensor(ends, dtype=torch.int32, device=pool.device)
    linear = recipe(op.weight, op.input, op.output, pool)
    spans = [(i, slice(a, b)) for i, (a, b) in enumerate(zip([0, *ends], ends)) if b > a]

    def each(call: Callable[[Operands, Operands], torch.Tensor]) -> Callable[..., torch.Tensor]:
        def over_experts(x: Operands, *experts: Operands) -> torch.Tensor:
            return torch.cat([call(_rows(x, rows), experts[i]) for i, rows in spans])

        return over_experts

    if op.weight == op.input and op.weight.bits >= 16:
        return _stacked(op, pool, linear, offsets)
    if op.weight.name == "int8" and pool.device == "cuda":
        raise NoKernelError("torch's integer matmul wants more rows than an expert gets")
    return Kernel(
        name=f"loop of {linear.name}",
        operands=lambda: (linear.input(m, op.k), *(linear.weight(op.n, op.k) for _ in range(op.experts))),
        run=each(linear.apply),
        reference=each(linear.exact),
        tolerance=linear.tolerance,
    )


def _stacked(op: GroupedMatmul, pool: OperandPool, linear: Linear, offsets: torch.Tensor) -> Kernel:
    """The library's grouped matmul over experts in one tensor."""

    def exact(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        edges = [0, *offsets.tolist()]
        return torch.cat([linear.exact((x[a:b],), (w[i],)) for i, (a, b) in enumerate(pairwise(edges))])

    return Kernel(
        name="torch._grouped_mm",
        operands=lambda: (
            pool.normal((count_of(op.m), op.k), op.input),
            pool.normal((op.experts, op.n, op.k), op.weight),
        ),
        run=lambda x, w: torch._grouped_mm(x, w.transpose(1, 2), offs=offsets),
        reference=exact,
        tolerance=linear.tolerance,
    )


def _rows(x: Operands, rows: slice) -> Operands:
    """Some rows of an input and of its scales; a scale for the whole tensor stays as it is."""
    return tuple(part[rows] if part.dim() else part for part in x)


def _attention(op: Attention, pool: OperandPool) -> Kernel:
    batch, new, past = count_of(op.batch), count_of(op.new), round(float(np.max(op.past)))
    dtype_of(op.base)
    if op.kv != op.base:
        raise NoKernelError(f"torch has no attention of {op.base.name} queries over a {op.kv.name} cache")
    if op.query_shards > 1 or (op.key_shards > 1 and new > 1):
        raise NoKernelError("torch has no attention over a share of the queries (context parallelism)")
    if op.mask.kind == "top" and new > 1:
        raise NoKernelError("torch has no attention with a choice of keys for each query")
    length = -(-count_of(op.mask.reach(float(new), float(past))) // op.key_shards)

    def operands() -> Operands:
        q = pool.normal((batch, new, op.heads, op.key_dim), op.base)
        k = pool.normal((batch, length, op.kv_heads, op.key_dim), op.kv)
        if op.shared_value:
            return q, k, k[..., : op.value_dim]
        return q, k, pool.normal((batch, length, op.kv_heads, op.value_dim), op.kv)

    def seen() -> torch.Tensor | None:
        if new == 1 or op.mask.kind == "full":
            return None
        return visible(op.mask, new, past, pool.device)[:, -length:]

    name, run = _attention_call(op, new, past, pool)
    if not name:
        mask = seen()
        name, run = "explicit attention", lambda q, k, v: explicit_attention(q, k, v, mask)
    return Kernel(
        name=name,
        operands=operands,
        run=run,
        reference=lambda q, k, v: explicit_attention(q.double(), k.double(), v.double(), seen()),
        tolerance=tolerance_of(op.base, 2e-2),
    )


def _attention_call(op: Attention, new: int, past: int, pool: OperandPool) -> tuple[str, Callable[..., Any]]:
    """The best call for an attention; no name where only the explicit form is left (unfused, or MLA's wide heads)."""
    if not op.fused or (op.shared_value and pool.device != "cpu"):
        return "", explicit_attention
    flash = pool.device == "cuda" and op.base.bits == 16 and op.key_dim == op.value_dim <= FLASH_HEAD
    call = flash_attention if flash else library_attention
    name = "aten._flash_attention_forward" if flash else "F.scaled_dot_product_attention"
    if op.mask.kind != "chunk" or new == 1:
        return name, lambda q, k, v: call(q, k, v, op.mask)
    cut = pieces(new, past, op.mask.size)

    def chunked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        parts = []
        for start, stop, before in cut:
            last = k.shape[1] - new + stop
            keys = slice(last - (stop - start) - before, last)
            parts.append(call(q[:, start:stop], k[:, keys], v[:, keys], Mask()))
        return torch.cat(parts, dim=1)

    return f"{name}, a chunk at a time", chunked


def _index_select(op: IndexSelect, pool: OperandPool) -> Kernel:
    """Scores of every reachable key, then the best: the scores do reach memory here."""
    batch, new, past = count_of(op.batch), count_of(op.new), round(float(np.max(op.past)))
    if op.kv != op.base or op.query_shards > 1 or op.key_shards > 1:
        raise NoKernelError("torch has no index selection over another format or a share of the keys")
    length = count_of(op.mask.reach(float(new), float(past)))
    best = min(op.top_k, length)
    seen = visible(op.mask, new, past, pool.device)[:, -length:]

    def scores(q: torch.Tensor, weights: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        products = F.relu(q.flatten(1, 2) @ k.transpose(1, 2)).view(batch, new, op.heads, length)
        return (products * weights[..., None]).sum(2).masked_fill(~seen, float("-inf"))

    def sorted_scores(values: torch.Tensor) -> torch.Tensor:
        return values.sort(dim=2, descending=True).values.nan_to_num(neginf=0.0)

    return Kernel(
        name="scores and torch.topk",
        operands=lambda: (
            pool.normal((batch, new, op.heads, op.key_dim), op.base),
            pool.normal((batch, new, op.heads), op.base),
            pool.normal((batch, length, op.key_dim), op.kv),
        ),
        run=lambda q, w, k: sorted_scores(scores(q, w, k).topk(best, dim=2).values),
        reference=lambda q, w, k: sorted_scores(scores(q.double(), w.double(), k.double()))[:, :, :best],
        tolerance=tolerance_of(op.base, 2e-2),
    )


def _top_k(op: TopK, pool: OperandPool) -> Kernel:
    rows = count_of(op.rows)
    length = count_of(op.scores / op.rows)
    best = min(op.top_k, length)
    return Kernel(
        name="torch.topk",
        operands=lambda: (pool.normal((rows, length), op.base),),
        run=lambda scores: scores.topk(best, dim=1).values,
        reference=lambda scores: scores.double().topk(best, dim=1).values,
        tolerance=tolerance_of(op.base, 1e-6),
    )


def _norm(op: Norm, pool: OperandPool) -> Kernel:
    rows, width = count_of(op.tokens), (op.width,)
    vectors = {"rms": 1, "layer": 2, "layer_plain": 1, "plain": 0}[op.style]

    def normalise(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        if op.style == "rms":
            return F.rms_norm(x, width, weights[0], 1e-6)
        return F.layer_norm(x, width, *weights)

    return Kernel(
        name="F.rms_norm" if op.style == "rms" else "F.layer_norm",
        operands=lambda: (
            pool.normal((rows, op.width), op.base),
            *(pool.normal(width, op.base) for _ in range(vectors)),
        ),
        run=normalise,
        reference=lambda x, *weights: normalise(x.double(), *(w.double() for w in weights)),
        tolerance=tolerance_of(op.base),
    )


def _elementwise(op: Elementwise, pool: OperandPool) -> Kernel:
    """One pass with the operator's traffic: its FLOP hide under it, so any map of as many inputs will do."""
    elements, reads = count_of(op.tokens * op.width), round(op.reads)
    dtype = dtype_of(op.base)
    maps: dict[int, tuple[str, Callable[..., Any]]] = {
        0: ("torch.full", lambda: torch.full((elements,), 0.5, dtype=dtype, device=pool.device)),
        1: ("F.silu", F.silu),
        2: ("torch.mul", torch.mul),
        3: ("torch.addcmul", torch.addcmul),
    }
    if reads not in maps or reads != op.reads:
        raise NoKernelError(f"torch has no single pass over {op.reads:g} inputs for each output")
    name, run = maps[reads]
    return Kernel(
        name=name,
        operands=lambda: tuple(pool.normal((elements,), op.base) for _ in range(reads)),
        run=run,
        reference=lambda *inputs: run(*(x.double() for x in inputs)),
        tolerance=tolerance_of(op.base),
    )


def _gather(op: Gather, pool: OperandPool) -> Kernel:
    tokens, dtype = count_of(op.tokens), dtype_of(op.table)
    if op.table != op.output:
        raise NoKernelError(f"torch has no look-up of {op.table.name} rows that gives {op.output.name}")
    rows = max(min(4 * tokens, pool.capacity(dtype) // op.width // 2), tokens)
    return Kernel(
        name="F.embedding",
        operands=lambda: (pool.integers((tokens,), rows), pool.normal((rows, op.width), op.table)),
        run=F.embedding,
        reference=lambda index, table: table.double()[index],
    )


def _copy(op: Copy, pool: OperandPool) -> Kernel:
    elements, target = count_of(op.elements), dtype_of(op.target)
    same = op.source == op.target
    return Kernel(
        name="Tensor.clone" if same else "Tensor.to",
        operands=lambda: (pool.normal((elements,), op.source),),
        run=(lambda x: x.clone()) if same else (lambda x: x.to(target)),
        reference=lambda x: x.double() if target.is_floating_point else x.double().trunc(),
        tolerance=5e-2 if op.target.bits == 8 else 1e-2,
    )


def _conv(op: Conv, pool: OperandPool) -> Kernel:
    batch, new = count_of(op.batch), count_of(op.new)
    return Kernel(
        name="multiply and sum" if new == 1 else "F.conv1d",
        operands=lambda: (
            pool.normal((batch, op.channels, new), op.base),
            pool.normal((batch, op.channels, op.taps - 1), op.base).clone(),
            pool.normal((op.channels, op.taps), op.base),
        ),
        run=causal_convolution,
        reference=exact_convolution,
        tolerance=tolerance_of(op.base, 2e-2),
    )


def _long_conv(op: LongConv, pool: OperandPool) -> Kernel:
    batch, new, past = count_of(op.batch), count_of(op.new), round(float(np.max(op.past)))
    if op.kv != op.base:
        raise NoKernelError(f"torch has no long convolution of {op.base.name} inputs over a {op.kv.name} cache")
    return Kernel(
        name="multiply and sum" if new == 1 else "torch.fft",
        operands=lambda: (
            pool.normal((batch, op.channels, past + new), op.base),
            pool.normal((op.channels, past + new), op.base),
        ),
        run=lambda u, filters: long_convolution(u, filters, new),
        reference=lambda u, filters: exact_long_convolution(u, filters, new),
        tolerance=tolerance_of(op.base, 2e-2),
    )


def _scan(op: Scan, pool: OperandPool) -> Kernel:
    """Outputs are the value channels and ``state/outputs`` is the width of a key."""
    batch, new = count_of(op.batch), count_of(op.new)
    key = max(1, round(op.state / max(op.outputs, 1)))
    channels = max(1, round(op.state / key))
    value = next(size for size in (128, 64, 32, 16, 8, 4, 2, 1) if channels % size == 0)
    scan = GatedScan(heads=channels // value, value=value, key=key)
    few = new <= CHUNK // 4
    return Kernel(
        name=f"gated linear attention, {'step by step' if few else 'in chunks'}",
        operands=lambda: (
            pool.normal((batch, new, max(op.inputs, 1)), op.base),
            pool.normal((batch, scan.heads, value, key), op.state_format).clone(),
        ),
        run=scan.steps if few else scan.chunks,
        reference=lambda x, state: scan.steps(x.double(), state.double()),
        tolerance=1e-4 if op.base.name == op.state_format.name == "fp32" else 5e-2,
    )


KERNELS: dict[type[Op], Builder] = {
    Matmul: _matmul,
    GroupedMatmul: _grouped,
    Attention: _attention,
    IndexSelect: _index_select,
    TopK: _top_k,
    Norm: _norm,
    Elementwise: _elementwise,
    Gather: _gather,
    Copy: _copy,
    Conv: _conv,
    LongConv: _long_conv,
    Scan: _scan,
    Collective: collective_kernel,
    Exchange: exchange_kernel,
}
"""The kernel builder of every operator class; a test demands that none is missing."""


def build(op: Op, pool: OperandPool) -> Kernel:
    """The kernel of an operator. Raises :class:`NoKernelError` when there is none."""
    builder = KERNELS.get(type(op))
    if builder is None:
        hint = "add one to calibrate/kernels/builders.py"
        raise NoKernelError(f"no kernel for the operator {type(op).__name__}", hint=hint)
    return builder(op, pool)
