"""Attention by torch itself: its copy of flash attention, its dispatch (SDPA), or two products and a softmax."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from calibrate.kernels.attention import (
    FLASH_HEAD,
    chosen,
    chosen_attention,
    explicit_attention,
    flash_attention,
    library_attention,
    pieces,
    visible,
)
from calibrate.kernels.attention_load import Load
from calibrate.kernels.choice import Option
from calibrate.kernels.kernel import Kernel
from calibrate.kernels.libraries import of_torch_flash
from calibrate.kernels.operands import Operands
from inferplan.work.ops import Mask


def torch_options(load: Load) -> list[Option[Kernel]]:
    """What torch has for an attention on this device, the best first.

    Unfused attention and, on a GPU, the wide heads of latent attention have the explicit form alone: its scores are
    written to memory and read again.
    """
    op, target = load.op, load.pool.target
    if op.mask.kind == "top" and (op.sparse or load.new > 1):
        return [_gathered(load)]
    if not op.fused or (op.shared_value and target.kind != "cpu"):
        return [_explicit(load)]
    options = []
    if target.flash and op.base.bits == 16 and op.key_dim == op.value_dim <= FLASH_HEAD:
        name, library = "aten._flash_attention_forward", of_torch_flash(target)
        options.append(_option(load, name, flash_attention, library))
    name = "F.scaled_dot_product_attention"
    if target.kind == "cuda" and not target.flash:
        name += f" ({target} has no flash attention)"
    options.append(_option(load, name, partial(library_attention, repeat=target.kind == "cuda"), "torch"))
    return options if target.kind == "cpu" else [*options, _explicit(load)]


def _operands(load: Load) -> Callable[[], Operands]:
    op, pool = load.op, load.pool

    def operands() -> Operands:
        q, k = load.query(), pool.normal((load.batch, load.length, op.kv_heads, op.key_dim), op.kv)
        if op.shared_value:
            return q, k, k[..., : op.value_dim]
        return q, k, pool.normal((load.batch, load.length, op.kv_heads, op.value_dim), op.kv)

    return operands


def _kernel(load: Load, name: str, run: Callable[..., Any], library: str) -> Kernel:
    return Kernel(
        name=name,
        operands=_operands(load),
        run=run,
        reference=load.exact,
        tolerance=load.tolerance,
        library=library,
    )


def _explicit(load: Load) -> Option[Kernel]:
    name = "explicit attention, scores in memory"

    def make() -> Kernel:
        seen = None
        if load.masked is not None:
            seen = visible(load.op.mask, load.new, load.past, load.pool.device)[:, -load.length :]
        return _kernel(load, name, lambda q, k, v: explicit_attention(q, k, v, seen), "torch")

    return Option(name=name, make=make)


def _gathered(load: Load) -> Option[Kernel]:
    """The keys that an indexer chose for each query, gathered and multiplied; torch has no kernel that does both."""
    op, pool, keys, places = load.op, load.pool, load.past + load.new, load.choices()
    name = "gathered keys, scores in memory"

    def operands() -> Operands:
        k = pool.normal((load.batch, keys, op.kv_heads, op.key_dim), op.kv)
        if op.shared_value:
            return load.query(), k, k[..., : op.value_dim]
        return load.query(), k, pool.normal((load.batch, keys, op.kv_heads, op.value_dim), op.kv)

    def make() -> Kernel:
        own, seen = places.to(pool.device), chosen(places, keys)
        return Kernel(
            name=name,
            operands=operands,
            run=lambda q, k, v: chosen_attention(q, k, v, own),
            reference=lambda q, k, v: explicit_attention(q.double(), k.double(), v.double(), seen),
            tolerance=load.tolerance,
        )

    return Option(name=name, make=make)


def _option(load: Load, name: str, call: Callable[..., torch.Tensor], library: str) -> Option[Kernel]:
    """A call that knows causal masks and windows; a chunked mask is cut at its chunks."""
    if load.op.mask.kind != "chunk" or load.new == 1:
        mask = load.op.mask
        return Option(name=name, make=lambda: _kernel(load, name, lambda q, k, v: call(q, k, v, mask), library))
    cut = pieces(load.new, load.past, load.op.mask.size)

    def chunked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        parts = []
        for start, stop, before in cut:
            last = k.shape[1] - load.new + stop
            keys = slice(last - (stop - start) - before, last)
            parts.append(call(q[:, start:stop], k[:, keys], v[:, keys], Mask()))
        return torch.cat(parts, dim=1)

    name = f"{name}, a chunk at a time"
    return Option(name=name, make=lambda: _kernel(load, name, chunked, library))
