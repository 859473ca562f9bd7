"""Every operator as a torch call of exactly its shapes and formats, with a float64 reference to check it against.

``build(op, pool)`` gives a :class:`Kernel`: where its operands come from, the best library call there is, and what the
result ought to be. An operator (or a format of it) that torch has no call for is refused with :class:`NoKernelError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F

from calibrate.kernels.adapters import adapter_kernel
from calibrate.kernels.attention import visible
from calibrate.kernels.attention_libraries import library_options
from calibrate.kernels.attention_load import Load
from calibrate.kernels.attention_torch import torch_options
from calibrate.kernels.choice import Option, first_right
from calibrate.kernels.collectives import collective_kernel, exchange_kernel
from calibrate.kernels.experts import grouped_kernel
from calibrate.kernels.kernel import Builder, Kernel, count_of, tolerance_of
from calibrate.kernels.libraries import of_torch
from calibrate.kernels.linear import dense, recipe
from calibrate.kernels.operands import NoKernelError, OperandPool
from calibrate.kernels.recurrence import (
    CHUNK,
    GatedScan,
    causal_convolution,
    exact_convolution,
    exact_long_convolution,
    long_convolution,
)
from calibrate.shapes import small
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
    Matmul,
    Norm,
    Op,
    Scan,
    TopK,
)


def _matmul(op: Matmul, pool: OperandPool) -> Kernel:
    m = count_of(op.m)
    if op.batch == 1:
        return dense(recipe(op.weight, op.input, op.output, pool), m, op.n, op.k)
    if op.weight != op.input:
        raise NoKernelError(
            f"torch has no batched matmul of {op.weight.name} weights and {op.input.name} inputs",
            hint="both in bf16, fp16 or fp32",
        )
    return Kernel(
        name="torch.bmm",
        operands=lambda: (
            pool.normal((op.batch, m, op.k), op.input),
            pool.normal((op.batch, op.n, op.k), op.weight).transpose(1, 2),
        ),
        run=torch.bmm,
        reference=lambda x, w: x.double() @ w.double(),
        tolerance=tolerance_of(op.weight),
        library=of_torch(pool.target),
    )


def _attention(op: Attention, pool: OperandPool) -> Kernel:
    """The first right one: libraries that engines call, torch's flash attention, its dispatch, the explicit form."""
    pool.dtype_of(op.base)
    if op.kv != op.base:
        raise NoKernelError(
            f"torch has no attention of {op.base.name} queries over a {op.kv.name} cache",
            hint=f"a cache in {op.base.name}: the constants of {op.kv.name} stay those shipped",
        )
    if op.query_shards > 1 or (op.key_shards > 1 and count_of(op.new) > 1):
        raise NoKernelError("torch has no attention over a share of the queries (context parallelism)")
    options, probes = _attention_options(op, pool), _attention_options(cast(Attention, small(op)), pool)
    shape = f"{op.key_dim} and {op.value_dim}, {op.heads // op.kv_heads} to a key head"
    several = "several tokens" if count_of(op.new) > 1 else "one token"
    task = f"{op.kernel} {op.label} ({op.mask.kind}, {several}, heads of {shape})"
    return first_right(options, task, pool, lambda index: probes[index].make())


def _attention_options(op: Attention, pool: OperandPool) -> list[Option[Kernel]]:
    new, past = count_of(op.new), round(float(np.max(op.past)))
    length = -(-count_of(op.mask.reach(float(new), float(past))) // op.key_shards)
    load = Load(op=op, pool=pool, batch=count_of(op.batch), new=new, past=past, length=length)
    return [*library_options(load), *torch_options(load)]


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
        return (products * weights[..., None]).sum(2).masked_fill(~seen.to(q.device), float("-inf"))

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
    dtype = pool.dtype_of(op.base)
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
    tokens, dtype = count_of(op.tokens), pool.dtype_of(op.table)
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
    elements, target = count_of(op.elements), pool.dtype_of(op.target)
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
    GroupedMatmul: lambda op, pool: (adapter_kernel if op.adapter else grouped_kernel)(op, pool),
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
