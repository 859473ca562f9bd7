"""Every operator as a torch call of exactly its shapes and formats, with a float64 reference to check it against.

``build(op, arena)`` gives a :class:`Kernel`: where its operands come from, the best library call there is, and what the
result ought to be. An operator (or a format of it) that torch has no call for is refused with :class:`NoKernelError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from calibrate.arena import Arena, NoKernelError, dtype_of
from calibrate.attention import (
    FLASH_HEAD,
    explicit_attention,
    flash_attention,
    library_attention,
    pieces,
    visible,
)
from calibrate.linear import Linear, Operands, recipe
from calibrate.recurrence import (
    CHUNK,
    GatedScan,
    causal_convolution,
    exact_convolution,
    exact_long_convolution,
    long_convolution,
)
from inferplan.units import Num
from inferplan.work.formats import Format
from inferplan.work.ops import (
    Attention,
    Collective,
    Conv,
    Copy,
    Elementwise,
    Gather,
    GroupedMatmul,
    IndexSelect,
    LongConv,
    Mask,
    Matmul,
    Norm,
    Op,
    Scan,
)

__all__ = ["KERNELS", "Kernel", "NoKernelError", "build", "check"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Kernel:
    """One operator on a device: ``run(*operands())`` is the call that is timed.

    name: the library call, for the record. operands: a fresh set. reference: the same result in float64 from the same
    operands. tolerance: the relative error (of the Frobenius norm) that the formats allow.
    """

    name: str
    operands: Callable[[], Operands]
    run: Callable[..., Any]
    reference: Callable[..., Any]
    tolerance: float = 1e-2


Builder = Callable[[Any, Arena], Kernel]
KERNELS: dict[type[Op], Builder] = {}
"""The kernel builder of every operator class; a test demands that none is missing."""


def _builds(kind: type[Op]) -> Callable[[Builder], Builder]:
    def register(builder: Builder) -> Builder:
        KERNELS[kind] = builder
        return builder

    return register


def build(op: Op, arena: Arena) -> Kernel:
    """The kernel of an operator. Raises :class:`NoKernelError` when there is none."""
    builder = KERNELS.get(type(op))
    if builder is None:
        raise NoKernelError(f"no kernel for the operator {type(op).__name__}", hint="add one to calibrate/kernels.py")
    return builder(op, arena)


def check(kernel: Kernel) -> float:
    """``|result - reference|/|reference|`` of one run on fresh operands."""
    operands = kernel.operands()
    copies = tuple(_copied(operand) for operand in operands)  # a kernel may bring its state up to date in place
    result = kernel.run(*operands).double().cpu()
    expected = kernel.reference(*copies).double().cpu()
    if result.shape[0] > expected.shape[0]:
        result = result[: expected.shape[0]]
    return float((result - expected).norm() / expected.norm().clamp_min(1e-30))


def _copied(operand: Any) -> Any:
    return tuple(map(_copied, operand)) if isinstance(operand, tuple) else operand.clone()


def whole(number: Num) -> int:
    """A load value as a count of at least one."""
    return max(1, round(float(np.max(number))))


def _tolerance(fmt: Format, wide: float = 1e-2) -> float:
    return 1e-5 if fmt.name == "fp32" else wide


@_builds(Matmul)
def _matmul(op: Matmul, arena: Arena) -> Kernel:
    m = whole(op.m)
    if op.batch == 1:
        linear = recipe(op.weight, op.input, op.output, arena)
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
            arena.normal((op.batch, m, op.k), op.input),
            arena.normal((op.batch, op.n, op.k), op.weight).transpose(1, 2),
        ),
        run=torch.bmm,
        reference=lambda x, w: x.double() @ w.double(),
        tolerance=_tolerance(op.weight),
    )


@_builds(GroupedMatmul)
def _grouped(op: GroupedMatmul, arena: Arena) -> Kernel:
    """Rows dealt evenly over the touched experts; the others get none. All experts of the rank are in memory."""
    m, touched = whole(op.m), min(whole(op.touched), op.experts, whole(op.m))
    ends = [round(m * (i + 1) / touched) for i in range(touched)] + [m] * (op.experts - touched)
    offsets = torch.tensor(ends, dtype=torch.int32, device=arena.device)
    linear = recipe(op.weight, op.input, op.output, arena)
    spans = [(i, slice(a, b)) for i, (a, b) in enumerate(zip([0, *ends], ends)) if b > a]

    def each(call: Callable[[Operands, Operands], torch.Tensor]) -> Callable[..., torch.Tensor]:
        def over_experts(x: Operands, *experts: Operands) -> torch.Tensor:
            return torch.cat([call(_rows(x, rows), experts[i]) for i, rows in spans])

        return over_experts

    if op.weight == op.input and op.weight.bits >= 16:
        return _stacked(op, arena, linear, offsets)
    if op.weight.name == "int8" and arena.device == "cuda":
        raise NoKernelError("torch's integer matmul wants more rows than an expert gets")
    return Kernel(
        name=f"loop of {linear.name}",
        operands=lambda: (linear.input(m, op.k), *(linear.weight(op.n, op.k) for _ in range(op.experts))),
        run=each(linear.apply),
        reference=each(linear.exact),
        tolerance=linear.tolerance,
    )


def _stacked(op: GroupedMatmul, arena: Arena, linear: Linear, offsets: torch.Tensor) -> Kernel:
    """The library's grouped matmul over experts in one tensor."""

    def exact(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        edges = [0, *offsets.tolist()]
        return torch.cat([linear.exact((x[a:b],), (w[i],)) for i, (a, b) in enumerate(pairwise(edges))])

    return Kernel(
        name="torch._grouped_mm",
        operands=lambda: (
            arena.normal((whole(op.m), op.k), op.input),
            arena.normal((op.experts, op.n, op.k), op.weight),
        ),
        run=lambda x, w: torch._grouped_mm(x, w.transpose(1, 2), offs=offsets),
        reference=exact,
        tolerance=linear.tolerance,
    )


def _rows(x: Operands, rows: slice) -> Operands:
    """Some rows of an input and of its scales; a scale for the whole tensor stays as it is."""
    return tuple(part[rows] if part.dim() else part for part in x)


@_builds(Attention)
def _attention(op: Attention, arena: Arena) -> Kernel:
    batch, new, past = whole(op.batch), whole(op.new), round(float(np.max(op.past)))
    dtype_of(op.base)
    if op.kv != op.base:
        raise NoKernelError(f"torch has no attention of {op.base.name} queries over a {op.kv.name} cache")
    if op.query_shards > 1 or (op.key_shards > 1 and new > 1):
        raise NoKernelError("torch has no attention over a share of the queries (context parallelism)")
    if op.mask.kind == "top" and new > 1:
        raise NoKernelError("torch has no attention with a choice of keys for each query")
    length = -(-whole(op.mask.reach(float(new), float(past))) // op.key_shards)

    def operands() -> Operands:
        q = arena.normal((batch, new, op.heads, op.key_dim), op.base)
        k = arena.normal((batch, length, op.kv_heads, op.key_dim), op.kv)
        if op.shared_value:
            return q, k, k[..., : op.value_dim]
        return q, k, arena.normal((batch, length, op.kv_heads, op.value_dim), op.kv)

    def seen() -> torch.Tensor | None:
        if new == 1 or op.mask.kind == "full":
            return None
        return visible(op.mask, new, past, arena.device)[:, -length:]

    name, run = _attention_call(op, new, past, arena)
    if not name:
        mask = seen()
        name, run = "explicit attention", lambda q, k, v: explicit_attention(q, k, v, mask)
    return Kernel(
        name=name,
        operands=operands,
        run=run,
        reference=lambda q, k, v: explicit_attention(q.double(), k.double(), v.double(), seen()),
        tolerance=_tolerance(op.base, 2e-2),
    )


def _attention_call(op: Attention, new: int, past: int, arena: Arena) -> tuple[str, Callable[..., Any]]:
    """The best call for an attention; no name where only the explicit form is left (unfused, or MLA's wide heads)."""
    if not op.fused or (op.shared_value and arena.device != "cpu"):
        return "", explicit_attention
    flash = arena.device == "cuda" and op.base.bits == 16 and op.key_dim == op.value_dim <= FLASH_HEAD
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


@_builds(IndexSelect)
def _index_select(op: IndexSelect, arena: Arena) -> Kernel:
    """Scores of every reachable key, then the best: the scores do reach memory here."""
    batch, new, past = whole(op.batch), whole(op.new), round(float(np.max(op.past)))
    if op.kv != op.base or op.query_shards > 1 or op.key_shards > 1:
        raise NoKernelError("torch has no index selection over another format or a share of the keys")
    length = whole(op.mask.reach(float(new), float(past)))
    best = min(op.top_k, length)
    seen = visible(op.mask, new, past, arena.device)[:, -length:]

    def scores(q: torch.Tensor, weights: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        products = F.relu(q.flatten(1, 2) @ k.transpose(1, 2)).view(batch, new, op.heads, length)
        return (products * weights[..., None]).sum(2).masked_fill(~seen, float("-inf"))

    def sorted_scores(values: torch.Tensor) -> torch.Tensor:
        return values.sort(dim=2, descending=True).values.nan_to_num(neginf=0.0)

    return Kernel(
        name="scores and torch.topk",
        operands=lambda: (
            arena.normal((batch, new, op.heads, op.key_dim), op.base),
            arena.normal((batch, new, op.heads), op.base),
            arena.normal((batch, length, op.key_dim), op.kv),
        ),
        run=lambda q, w, k: sorted_scores(scores(q, w, k).topk(best, dim=2).values),
        reference=lambda q, w, k: sorted_scores(scores(q.double(), w.double(), k.double()))[:, :, :best],
        tolerance=_tolerance(op.base, 2e-2),
    )


@_builds(Norm)
def _norm(op: Norm, arena: Arena) -> Kernel:
    rows, width = whole(op.tokens), (op.width,)
    vectors = {"rms": 1, "layer": 2, "layer_plain": 1, "plain": 0}[op.style]

    def normalise(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        if op.style == "rms":
            return F.rms_norm(x, width, weights[0], 1e-6)
        return F.layer_norm(x, width, *weights)

    return Kernel(
        name="F.rms_norm" if op.style == "rms" else "F.layer_norm",
        operands=lambda: (
            arena.normal((rows, op.width), op.base),
            *(arena.normal(width, op.base) for _ in range(vectors)),
        ),
        run=normalise,
        reference=lambda x, *weights: normalise(x.double(), *(w.double() for w in weights)),
        tolerance=_tolerance(op.base),
    )


@_builds(Elementwise)
def _elementwise(op: Elementwise, arena: Arena) -> Kernel:
    """One pass with the operator's traffic: its FLOP hide under it, so any map of as many inputs will do."""
    elements, reads = whole(op.tokens * op.width), round(op.reads)
    dtype = dtype_of(op.base)
    maps: dict[int, tuple[str, Callable[..., Any]]] = {
        0: ("torch.full", lambda: torch.full((elements,), 0.5, dtype=dtype, device=arena.device)),
        1: ("F.silu", F.silu),
        2: ("torch.mul", torch.mul),
        3: ("torch.addcmul", torch.addcmul),
    }
    if reads not in maps or reads != op.reads:
        raise NoKernelError(f"torch has no single pass over {op.reads:g} inputs for each output")
    name, run = maps[reads]
    return Kernel(
        name=name,
        operands=lambda: tuple(arena.normal((elements,), op.base) for _ in range(reads)),
        run=run,
        reference=lambda *inputs: run(*(x.double() for x in inputs)),
        tolerance=_tolerance(op.base),
    )


@_builds(Gather)
def _gather(op: Gather, arena: Arena) -> Kernel:
    tokens, dtype = whole(op.tokens), dtype_of(op.table)
    if op.table != op.output:
        raise NoKernelError(f"torch has no look-up of {op.table.name} rows that gives {op.output.name}")
    rows = max(min(4 * tokens, arena.capacity(dtype) // op.width // 2), tokens)
    return Kernel(
        name="F.embedding",
        operands=lambda: (arena.integers((tokens,), rows), arena.normal((rows, op.width), op.table)),
        run=F.embedding,
        reference=lambda index, table: table.double()[index],
    )


@_builds(Copy)
def _copy(op: Copy, arena: Arena) -> Kernel:
    elements, target = whole(op.elements), dtype_of(op.target)
    same = op.source == op.target
    return Kernel(
        name="Tensor.clone" if same else "Tensor.to",
        operands=lambda: (arena.normal((elements,), op.source),),
        run=(lambda x: x.clone()) if same else (lambda x: x.to(target)),
        reference=lambda x: x.double() if target.is_floating_point else x.double().trunc(),
        tolerance=5e-2 if op.target.bits == 8 else 1e-2,
    )


@_builds(Conv)
def _conv(op: Conv, arena: Arena) -> Kernel:
    batch, new = whole(op.batch), whole(op.new)
    return Kernel(
        name="multiply and sum" if new == 1 else "F.conv1d",
        operands=lambda: (
            arena.normal((batch, op.channels, new), op.base),
            arena.normal((batch, op.channels, op.taps - 1), op.base).clone(),
            arena.normal((op.channels, op.taps), op.base),
        ),
        run=causal_convolution,
        reference=exact_convolution,
        tolerance=_tolerance(op.base, 2e-2),
    )


@_builds(LongConv)
def _long_conv(op: LongConv, arena: Arena) -> Kernel:
    batch, new, past = whole(op.batch), whole(op.new), round(float(np.max(op.past)))
    if op.kv != op.base:
        raise NoKernelError(f"torch has no long convolution of {op.base.name} inputs over a {op.kv.name} cache")
    return Kernel(
        name="multiply and sum" if new == 1 else "torch.fft",
        operands=lambda: (
            arena.normal((batch, op.channels, past + new), op.base),
            arena.normal((op.channels, past + new), op.base),
        ),
        run=lambda u, filters: long_convolution(u, filters, new),
        reference=lambda u, filters: exact_long_convolution(u, filters, new),
        tolerance=_tolerance(op.base, 2e-2),
    )


@_builds(Scan)
def _scan(op: Scan, arena: Arena) -> Kernel:
    """Outputs are the value channels and ``state/outputs`` is the width of a key."""
    batch, new = whole(op.batch), whole(op.new)
    key = max(1, round(op.state / max(op.outputs, 1)))
    channels = max(1, round(op.state / key))
    value = next(size for size in (128, 64, 32, 16, 8, 4, 2, 1) if channels % size == 0)
    scan = GatedScan(heads=channels // value, value=value, key=key)
    few = new <= CHUNK // 4
    return Kernel(
        name=f"gated linear attention, {'step by step' if few else 'in chunks'}",
        operands=lambda: (
            arena.normal((batch, new, max(op.inputs, 1)), op.base),
            arena.normal((batch, scan.heads, value, key), op.state_format).clone(),
        ),
        run=scan.steps if few else scan.chunks,
        reference=lambda x, state: scan.steps(x.double(), state.double()),
        tolerance=1e-4 if op.base.name == op.state_format.name == "fp32" else 5e-2,
    )


@_builds(Collective)
def _collective(op: Collective, arena: Arena) -> Kernel:
    """A collective of the process group that is up; without one of the operator's size there is nothing to call."""
    group = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if group != op.group:
        raise NoKernelError(
            f"a collective over {op.group} devices needs a process group of that size",
            because=f"there is one of {group}",
        )
    elements = -(-whole(op.elements) // group) * group
    calls: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
        "all_reduce": (_all_reduce, lambda x: x.double() * (1 if arena.device == "cuda" else group)),
        "all_gather": (_all_gather, lambda x: x.double().chunk(group)[0].repeat(group)),
        "reduce_scatter": (_reduce_scatter, lambda x: x.double().chunk(group)[dist.get_rank()] * group),
        "all_to_all": (_all_to_all, lambda x: x.double().chunk(group)[dist.get_rank()].repeat(group)),
        "send": (_send, lambda x: x.double()),
    }
    if op.pattern not in calls:
        raise NoKernelError(f"torch.distributed has no {op.pattern}")
    run, reference = calls[op.pattern]
    return Kernel(
        name=f"torch.distributed {op.pattern} ({dist.get_backend()})",
        operands=lambda: (arena.normal((elements,), op.format).clone(),),
        run=run,
        reference=reference,
        tolerance=2e-2,
    )


def _all_reduce(x: torch.Tensor) -> torch.Tensor:
    """In place where the library can average (a sum would grow without end), else on a copy."""
    if x.device.type == "cuda":
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        return x
    total = x.clone()
    dist.all_reduce(total)
    return total


def _all_gather(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
    gather(out, x.chunk(dist.get_world_size())[0])
    return out


def _reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x[: len(x) // dist.get_world_size()])
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # renamed in torch 2.13
    scatter(out, x)
    return out


def _all_to_all(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out


def _send(x: torch.Tensor) -> torch.Tensor:
    """From every even rank to the next one."""
    rank = dist.get_rank()
    if rank % 2 == 0:
        dist.send(x, rank + 1)
    else:
        dist.recv(x, rank - 1)
    return x
