"""The attention that vLLM brings itself: its build of FlashAttention, and FlashMLA's sparse forward.

Calls are those of the wheel of vLLM 0.32.0: ``vllm_flash_attn/flash_attn_interface.py``,
``v1/attention/backends/flash_attn.py`` and ``mla/flashattn_mla.py``, ``mla/flashmla_sparse.py`` and
``v1/attention/ops/flashmla.py``. Pages are of 16 tokens for either version of FlashAttention.
"""

from __future__ import annotations

from types import ModuleType

import torch

from calibrate.kernels.attention import chosen, explicit_attention
from calibrate.kernels.attention_load import Load, Pages, first_of, latent, starts
from calibrate.kernels.kernel import Kernel
from calibrate.kernels.libraries import FLASH_VERSIONS
from calibrate.kernels.operands import NoKernelError, Operands

PAGE = 16
_ROWS = {90: 64}
"""Query heads to which FlashMLA's sparse kernel is padded; 128 elsewhere."""
_CHOSEN = 128
"""Keys of which the chosen ones of a query are a multiple."""


def paged_vllm(name: str, module: ModuleType, load: Load) -> Kernel:
    """``flash_attn_varlen_func`` over pages, of the version that the library's name says."""
    op, pages, at = load.op, Pages(load=load, size=PAGE), starts(load, load.new)
    version = FLASH_VERSIONS[name]

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = module.flash_attn_varlen_func(
            q,
            k,
            v,
            max_seqlen_q=load.new,
            cu_seqlens_q=at,
            max_seqlen_k=load.length,
            seqused_k=pages.lengths,
            block_table=pages.table,
            causal=load.causal,
            window_size=load.window,
            fa_version=version,
        )
        return first_of(out)

    return Kernel(
        name=f"{module.__name__}.flash_attn_varlen_func, version {version}, pages of {PAGE}",
        operands=lambda: (
            load.query().flatten(0, 1),
            pages.cache(op.kv_heads, op.key_dim),
            pages.cache(op.kv_heads, op.value_dim),
        ),
        run=run,
        reference=lambda q, k, v: load.exact(load.by_sequence(q), pages.in_order(k), pages.in_order(v)).flatten(0, 1),
        tolerance=load.tolerance,
        library=name,
    )


def latent_vllm(name: str, module: ModuleType, load: Load) -> Kernel:
    """The same with the latents as values and, times their part of the query (``q_v``), as keys."""
    op, pages, at = load.op, Pages(load=load, size=PAGE), starts(load, load.new)

    def run(q: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        rows = q.flatten(0, 1)
        out = module.flash_attn_varlen_func(
            rows[..., op.value_dim :],
            cache[..., op.value_dim :],
            cache[..., : op.value_dim],
            max_seqlen_q=load.new,
            cu_seqlens_q=at,
            max_seqlen_k=load.length,
            q_v=rows[..., : op.value_dim],
            seqused_k=pages.lengths,
            block_table=pages.table,
            softmax_scale=op.key_dim**-0.5,
            causal=True,
            fa_version=3,
        )
        return load.by_sequence(first_of(out))

    call = f"{module.__name__}.flash_attn_varlen_func with q_v, version 3, pages of {PAGE}"
    return Kernel(name=call, run=run, library=name, **latent(load, pages))


def sparse_flash_mla(name: str, module: ModuleType, load: Load) -> Kernel:
    """``flash_mla_sparse_fwd``: each query reads the latents that an indexer chose for it, -1 where it has fewer.

    Heads and choices are padded before it is timed: an engine keeps them so.
    """
    op, pool = load.op, load.pool
    if (op.key_dim, op.value_dim) != (576, 512) or op.mask.kind != "top":
        raise NoKernelError("FlashMLA's sparse kernel is of the best keys of 576 with values of 512")
    keys, places = load.past + load.new, load.choices()
    heads = max(op.heads, _ROWS.get(pool.target.sm, 128))
    padded = torch.full((load.batch, load.new, -(-op.mask.size // _CHOSEN) * _CHOSEN), -1)
    first = torch.arange(load.batch)[:, None, None] * keys
    padded[..., : op.mask.size] = torch.where(places < 0, -1, places + first)
    indices = padded.flatten(0, 1)[:, None].to(torch.int32).to(pool.device)

    def operands() -> Operands:
        query = pool.normal((load.batch * load.new, heads, op.key_dim), op.base)
        return query, pool.normal((load.batch * keys, 1, op.key_dim), op.kv)

    def run(q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return first_of(module.flash_mla_sparse_fwd(q, kv, indices, op.key_dim**-0.5, d_v=op.value_dim))

    def exact(q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        latents = kv.double().unflatten(0, (load.batch, keys))
        rows = load.by_sequence(q[:, : op.heads].double())
        seen = chosen(places, keys)
        return explicit_attention(rows, latents, latents[..., : op.value_dim], seen).flatten(0, 1)

    return Kernel(
        name=f"{module.__name__}.flash_mla_sparse_fwd, {indices.shape[-1]} keys of a query, {heads} heads",
        operands=operands,
        run=run,
        reference=exact,
        tolerance=load.tolerance,
        library=name,
        compared=lambda out: out[:, : op.heads],
    )
