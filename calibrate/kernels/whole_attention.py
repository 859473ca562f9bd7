"""The attention of whole models: the library that the kernels were measured with, where it is right, else torch's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from calibrate.kernels.attention import FLASH_HEAD, explicit_attention, flash_attention, library_attention
from calibrate.kernels.attention_load import first_of
from calibrate.kernels.libraries import FLASH_VERSIONS, find, is_vllm_flash, of_torch_flash
from calibrate.kernels.operands import NoKernelError
from calibrate.kernels.target import Target
from inferplan.work.ops import Mask

Call = Callable[[Tensor, Tensor, Tensor, Mask], Tensor]
"""Queries ``[batch, new, heads, d]``, keys and values ``[batch, length, kv_heads, d]``, and which keys they see."""


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Sizes of an attention layer, and the type of its numbers."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype


def attention_of(target: Target, sizes: Heads) -> tuple[str, Call]:
    """The library and its call for a layer with a contiguous cache; an optional one is tried on a few numbers first."""
    narrow = sizes.dtype.itemsize == 2
    for name in ("flash-attention-3", "flash-attention-2") if narrow and target.kind == "cuda" else ():
        try:
            call = partial(_over_cache, find(name, target), FLASH_VERSIONS[name])
            if _is_right(call, target.kind, sizes):
                return name, call
        except NoKernelError:
            continue
    if target.flash and narrow and sizes.key_dim == sizes.value_dim <= FLASH_HEAD:
        return of_torch_flash(target), flash_attention
    return "torch", partial(library_attention, repeat=target.kind == "cuda")


def _over_cache(module: ModuleType, version: int, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """``flash_attn_with_kvcache`` on a cache without pages; of vLLM's build ``flash_attn_varlen_func``."""
    several = q.shape[1] > 1
    left = mask.size - 1 if mask.kind == "window" and several else -1
    causal, window = several and mask.kind != "full", [left, 0 if left >= 0 else -1]
    if is_vllm_flash(module):
        ends = (torch.arange(len(q) + 1, dtype=torch.int32, device=q.device) * part.shape[1] for part in (q, k))
        out = module.flash_attn_varlen_func(
            *(part.flatten(0, 1) for part in (q, k, v)),
            max_seqlen_q=q.shape[1],
            cu_seqlens_q=next(ends),
            max_seqlen_k=k.shape[1],
            cu_seqlens_k=next(ends),
            causal=causal,
            window_size=window,
            fa_version=version,
        )
        return first_of(out).unflatten(0, q.shape[:2])
    return first_of(
        module.flash_attn_with_kvcache(
            q, k, v, cache_seqlens=k.shape[1], causal=causal, window_size=(window[0], window[1])
        )
    )


def _is_right(call: Call, kind: str, sizes: Heads) -> bool:
    """Whether a call gives what float64 gives for one new token of two sequences."""
    shapes = (1, sizes.heads, sizes.key_dim), (32, sizes.kv_heads, sizes.key_dim), (32, sizes.kv_heads, sizes.value_dim)
    q, k, v = (torch.randn(2, *shape, device=kind, dtype=torch.float32).to(sizes.dtype) for shape in shapes)
    try:
        found = call(q, k, v, Mask()).cpu().double()
    except Exception:  # another version, another signature: the next library is taken
        if kind == "cuda":
            torch.cuda.synchronize()  # an error that sticks is raised again here
        return False
    expected = explicit_attention(q.cpu().double(), k.cpu().double(), v.cpu().double(), None)
    return bool((found - expected).norm() <= 2e-2 * expected.norm())
