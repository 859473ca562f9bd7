"""Attention by the libraries that engines call, in the layouts that engines keep: ragged prompts, paged caches.

Queries are ``[batch, new, heads, d]``. A paged cache is ``[pages, page, kv_heads, d]`` with a table of each sequence's
pages ``[batch, pages of a sequence]``; the pages lie in any order, as in a cache that was in use for long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import torch

from calibrate.kernels.attention import explicit_attention, visible
from calibrate.kernels.choice import Option
from calibrate.kernels.kernel import Kernel, tolerance_of
from calibrate.kernels.libraries import LIBRARIES, find
from calibrate.kernels.operands import NoKernelError, OperandPool, Operands
from inferplan.work.ops import Attention

PAGE = {"flash-attention-3": 16, "flash-attention-2": 256, "flashinfer": 16, "flashmla": 64}
"""Tokens of a page: vLLM's default of 16 where the library takes it; the only size that the others take."""
_WORKSPACE = 128 << 20
"""Bytes of FlashInfer's workspace, as its documentation says."""
_RATIO = 4
"""Query heads of a KV head from which SGLang and vLLM run FlashInfer's decode on tensor cores."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """One attention operator at a size: ``length`` keys are reachable, the last of which is the last query's own."""

    op: Attention
    pool: OperandPool
    batch: int
    new: int
    past: int
    length: int

    @cached_property
    def causal(self) -> bool:
        """Whether queries see different keys; a single one sees all that are kept."""
        return self.op.mask.kind in ("causal", "window") and self.new > 1

    @property
    def left(self) -> int:
        """Keys before its own that a query sees; -1 for all."""
        return self.op.mask.size - 1 if self.op.mask.kind == "window" and self.new > 1 else -1

    @property
    def masked(self) -> torch.Tensor | None:
        """The mask of the reference, on the CPU; ``None`` where every key is visible."""
        if self.new == 1 or self.op.mask.kind == "full":
            return None
        return visible(self.op.mask, self.new, self.past, "cpu")[:, -self.length :]

    @property
    def tolerance(self) -> float:
        """The relative error that the format allows."""
        return tolerance_of(self.op.base, 2e-2)

    def query(self) -> torch.Tensor:
        """Fresh queries."""
        return self.pool.normal((self.batch, self.new, self.op.heads, self.op.key_dim), self.op.base)

    def exact(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention in float64."""
        return explicit_attention(q.double(), k.double(), v.double(), self.masked)


@dataclass(frozen=True, kw_only=True)
class Pages:
    """Where the pages of a load lie. size: tokens of a page."""

    load: Load
    size: int

    @property
    def each(self) -> int:
        """Pages of a sequence."""
        return -(-self.load.length // self.size)

    @property
    def count(self) -> int:
        """Pages of all sequences."""
        return self.each * self.load.batch

    @cached_property
    def table(self) -> torch.Tensor:
        """Each sequence's pages, int32."""
        return self.load.pool.order(self.count).view(self.load.batch, self.each)

    @cached_property
    def lengths(self) -> torch.Tensor:
        """Each sequence's tokens, int32."""
        return torch.full((self.load.batch,), self.load.length, dtype=torch.int32, device=self.load.pool.device)

    def cache(self, heads: int, width: int) -> torch.Tensor:
        """Fresh pages."""
        return self.load.pool.normal((self.count, self.size, heads, width), self.load.op.kv)

    def in_order(self, cache: torch.Tensor) -> torch.Tensor:
        """The cache as one tensor, ``[batch, length, heads, width]``."""
        return cache[self.table.cpu().long()].flatten(1, 2)[:, : self.load.length]


def library_options(load: Load) -> list[Option[Kernel]]:
    """The libraries that run an attention in this form on this generation, those of its engines first."""
    op = load.op
    if load.pool.target.kind != "cuda" or not op.fused or op.base.bits != 16:
        return []
    if op.mask.kind in ("top", "band") or (op.mask.kind == "chunk" and load.new > 1):
        return []
    makers: dict[str, Callable[[str, ModuleType, Load], Kernel]]
    if op.shared_value:
        makers = {"flash-attention-3": _latent_flash, "flashmla": _flash_mla}
    elif op.wide:
        makers = {"flash-attention-3": _prompt_flash, "flashinfer": _prompt_flashinfer}
        makers["flash-attention-2"] = _prompt_flash
    else:
        makers = {"flash-attention-3": _paged_flash, "flashinfer": _paged_flashinfer}
        makers["flash-attention-2"] = _paged_flash
    names = list(makers)
    if load.pool.target.sm < 90:  # vLLM's choice there
        names.sort(key=lambda name: name != "flash-attention-2")
    return [_option(name, makers[name], load) for name in names if LIBRARIES[name].runs_on(load.pool.target)]


def _option(name: str, make: Callable[[str, ModuleType, Load], Kernel], load: Load) -> Option[Kernel]:
    return Option(name=name, make=lambda: make(name, find(name, load.pool.target), load))


def _result(returned: Any) -> torch.Tensor:
    """The output, of a version that returns other things beside it."""
    output: torch.Tensor = returned[0] if isinstance(returned, tuple) else returned
    return output


def _starts(load: Load, length: int) -> torch.Tensor:
    """First rows of each sequence in a ragged tensor, and the row after the last."""
    return torch.arange(load.batch + 1, dtype=torch.int32, device=load.pool.device) * length


def _prompt(load: Load) -> Callable[[], Operands]:
    """Queries, keys and values of prompts, each a tensor of all sequences' tokens one after another."""
    op, pool = load.op, load.pool

    def operands() -> Operands:
        tokens = load.batch * load.length
        keys = pool.normal((tokens, op.kv_heads, op.key_dim), op.kv)
        return load.query().flatten(0, 1), keys, pool.normal((tokens, op.kv_heads, op.value_dim), op.kv)

    return operands


def _prompt_exact(load: Load) -> Callable[..., torch.Tensor]:
    def exact(*ragged: torch.Tensor) -> torch.Tensor:
        return load.exact(*(part.unflatten(0, (load.batch, -1)) for part in ragged)).flatten(0, 1)

    return exact


def _prompt_flash(name: str, module: ModuleType, load: Load) -> Kernel:
    """``flash_attn_varlen_func``; version 2 wants keys and values of one width, and vLLM pads the values for it."""
    op, q_starts, k_starts = load.op, _starts(load, load.new), _starts(load, load.length)
    missing = op.key_dim - op.value_dim if name == "flash-attention-2" else 0

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = module.flash_attn_varlen_func(
            q,
            k,
            torch.nn.functional.pad(v, (0, missing)) if missing else v,
            cu_seqlens_q=q_starts,
            cu_seqlens_k=k_starts,
            max_seqlen_q=load.new,
            max_seqlen_k=load.length,
            causal=load.causal,
            window_size=(load.left, 0 if load.left >= 0 else -1),
        )
        return _result(out)[..., : op.value_dim]

    return Kernel(
        name=f"{module.__name__}.flash_attn_varlen_func",
        operands=_prompt(load),
        run=run,
        reference=_prompt_exact(load),
        tolerance=load.tolerance,
        library=name,
    )


def _paged_flash(name: str, module: ModuleType, load: Load) -> Kernel:
    """``flash_attn_with_kvcache`` over pages."""
    op, pages = load.op, Pages(load=load, size=PAGE[name])
    table = {"page_table" if name == "flash-attention-3" else "block_table": pages.table}

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = module.flash_attn_with_kvcache(
            q,
            k,
            v,
            cache_seqlens=pages.lengths,
            causal=load.causal,
            window_size=(load.left, 0 if load.left >= 0 else -1),
            **table,
        )
        return _result(out)

    return Kernel(
        name=f"{module.__name__}.flash_attn_with_kvcache, pages of {pages.size}",
        operands=lambda: (
            load.query(),
            pages.cache(op.kv_heads, op.key_dim),
            pages.cache(op.kv_heads, op.value_dim),
        ),
        run=run,
        reference=lambda q, k, v: load.exact(q, pages.in_order(k), pages.in_order(v)),
        tolerance=load.tolerance,
        library=name,
    )


def _prompt_flashinfer(name: str, module: ModuleType, load: Load) -> Kernel:
    """``BatchPrefillWithRaggedKVCacheWrapper``, planned before it is timed, as engines plan once for all layers."""
    op, dtype = load.op, load.pool.dtype_of(load.op.base)
    wrapper = module.BatchPrefillWithRaggedKVCacheWrapper(_workspace(load), "NHD")
    wrapper.plan(
        _starts(load, load.new),
        _starts(load, load.length),
        op.heads,
        op.kv_heads,
        op.key_dim,
        head_dim_vo=op.value_dim,
        causal=load.causal,
        window_left=load.left,
        q_data_type=dtype,
    )
    return Kernel(
        name="flashinfer.BatchPrefillWithRaggedKVCacheWrapper.run",
        operands=_prompt(load),
        run=lambda q, k, v: _result(wrapper.run(q, k, v)),
        reference=_prompt_exact(load),
        tolerance=load.tolerance,
        library=name,
    )


def _paged_flashinfer(name: str, module: ModuleType, load: Load) -> Kernel:
    """``BatchDecodeWithPagedKVCacheWrapper``: one new token a sequence."""
    op, pages = load.op, Pages(load=load, size=PAGE[name])
    if load.new > 1 or op.key_dim != op.value_dim:
        raise NoKernelError("FlashInfer's decode is of one new token, with keys and values of one width")
    cores = op.heads // op.kv_heads >= _RATIO
    wrapper = module.BatchDecodeWithPagedKVCacheWrapper(_workspace(load), "NHD", use_tensor_cores=cores)
    last = torch.full_like(pages.lengths, (load.length - 1) % pages.size + 1)
    wrapper.plan(
        _starts(load, pages.each),
        pages.table.flatten(),
        last,
        op.heads,
        op.kv_heads,
        op.key_dim,
        pages.size,
        q_data_type=load.pool.dtype_of(op.base),
    )
    return Kernel(
        name=f"flashinfer.BatchDecodeWithPagedKVCacheWrapper.run, pages of {pages.size}",
        operands=lambda: (
            load.query()[:, 0],
            pages.cache(op.kv_heads, op.key_dim),
            pages.cache(op.kv_heads, op.value_dim),
        ),
        run=lambda q, k, v: _result(wrapper.run(q, (k, v))),
        reference=lambda q, k, v: load.exact(q[:, None], pages.in_order(k), pages.in_order(v))[:, 0],
        tolerance=load.tolerance,
        library=name,
    )


def _workspace(load: Load) -> torch.Tensor:
    return torch.zeros(_WORKSPACE, dtype=torch.uint8, device=load.pool.device)


def _latent(load: Load, pages: Pages) -> dict[str, Any]:
    """Operands and reference of latent attention: one key head, whose first elements are the values."""
    op = load.op

    def exact(q: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        keys = pages.in_order(cache)
        return load.exact(q, keys, keys[..., : op.value_dim])

    return {
        "operands": lambda: (load.query(), pages.cache(op.kv_heads, op.key_dim)),
        "reference": exact,
        "tolerance": load.tolerance,
    }


def _latent_flash(name: str, module: ModuleType, load: Load) -> Kernel:
    """FlashAttention 3 with the latents as values and, times their part of the query (``qv``), as keys; as vLLM."""
    op, pages = load.op, Pages(load=load, size=PAGE[name])
    scale = op.key_dim**-0.5

    def run(q: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        out = module.flash_attn_with_kvcache(
            q[..., op.value_dim :],
            cache[..., op.value_dim :],
            cache[..., : op.value_dim],
            qv=q[..., : op.value_dim],
            cache_seqlens=pages.lengths,
            page_table=pages.table,
            softmax_scale=scale,
            causal=load.causal,
        )
        return _result(out)

    call = f"{module.__name__}.flash_attn_with_kvcache with qv, pages of {pages.size}"
    return Kernel(name=call, run=run, library=name, **_latent(load, pages))


def _flash_mla(name: str, module: ModuleType, load: Load) -> Kernel:
    """``flash_mla_with_kvcache``; its schedule is made once for the lengths, as engines make it once a step."""
    op, pages = load.op, Pages(load=load, size=PAGE[name])
    if (op.key_dim, op.value_dim) != (576, 512):
        raise NoKernelError(f"FlashMLA is of keys of 576 and values of 512, not {op.key_dim} and {op.value_dim}")
    schedule, splits = module.get_mla_metadata(pages.lengths, load.new * op.heads // op.kv_heads, op.kv_heads)

    def run(q: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        out = module.flash_mla_with_kvcache(
            q,
            cache,
            pages.table,
            pages.lengths,
            op.value_dim,
            schedule,
            splits,
            softmax_scale=op.key_dim**-0.5,
            causal=load.causal,
        )
        return _result(out)

    call = f"flash_mla.flash_mla_with_kvcache, pages of {pages.size}"
    return Kernel(name=call, run=run, library=name, **_latent(load, pages))
