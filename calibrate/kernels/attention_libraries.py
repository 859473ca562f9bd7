"""Attention by the libraries that engines call, in the layouts that engines keep: ragged prompts, paged caches."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch

from calibrate.kernels.attention_load import Load, Pages, first_of, latent, prompt, prompt_exact, starts, workspace
from calibrate.kernels.attention_trtllm import latent_trtllm, paged_trtllm, prompt_trtllm
from calibrate.kernels.attention_vllm import latent_vllm, paged_vllm, sparse_flash_mla
from calibrate.kernels.choice import Option
from calibrate.kernels.kernel import Kernel
from calibrate.kernels.libraries import FLASH_VERSIONS, LIBRARIES, find, is_vllm_flash
from calibrate.kernels.operands import NoKernelError

PAGE = {"flash-attention-3": 16, "flash-attention-2": 256, "flashinfer": 16, "flashmla": 64}
"""Tokens of a page: vLLM's default of 16 where the library takes it; the only size that the others take."""
_RATIO = 4
"""Query heads of a KV head from which SGLang and vLLM run FlashInfer's decode on tensor cores."""


def library_options(load: Load) -> list[Option[Kernel]]:
    """The libraries that run an attention in this form on this generation, those of its engines first."""
    op = load.op
    if load.pool.target.kind != "cuda" or not op.fused or op.base.bits != 16:
        return []
    makers: dict[str, Callable[[str, ModuleType, Load], Kernel]]
    if op.sparse:
        makers = {"flashmla": sparse_flash_mla}
    elif op.mask.kind in ("top", "band") or (op.mask.kind == "chunk" and load.new > 1):
        return []
    elif op.shared_value:
        makers = {"flash-attention-3": _latent_flash, "flashmla": _flash_mla, "trtllm-gen": latent_trtllm}
    elif op.wide:
        makers = {"flash-attention-3": _prompt_flash, "trtllm-gen": prompt_trtllm, "flashinfer": _prompt_flashinfer}
        makers["flash-attention-2"] = _prompt_flash
    else:
        makers = {"flash-attention-3": _paged_flash, "trtllm-gen": paged_trtllm, "flashinfer": _paged_flashinfer}
        makers["flash-attention-2"] = _paged_flash
    names = list(makers)
    if load.pool.target.sm < 90:  # vLLM's choice there
        names.sort(key=lambda name: name != "flash-attention-2")
    return [_option(name, makers[name], load) for name in names if LIBRARIES[name].runs_on(load.pool.target)]


def _option(name: str, make: Callable[[str, ModuleType, Load], Kernel], load: Load) -> Option[Kernel]:
    return Option(name=name, make=lambda: make(name, find(name, load.pool.target), load))


def _prompt_flash(name: str, module: ModuleType, load: Load) -> Kernel:
    """``flash_attn_varlen_func``; version 2 wants keys and values of one width, and vLLM pads the values for it. vLLM's
    build holds both versions, and is told which."""
    op, q_starts, k_starts = load.op, starts(load, load.new), starts(load, load.length)
    missing = op.key_dim - op.value_dim if name == "flash-attention-2" else 0
    told = {"fa_version": FLASH_VERSIONS[name]} if is_vllm_flash(module) else {}

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
            window_size=load.window,
            **told,
        )
        return first_of(out)[..., : op.value_dim]

    return Kernel(
        name=f"{module.__name__}.flash_attn_varlen_func{', version of vLLM' if told else ''}",
        operands=prompt(load),
        run=run,
        reference=prompt_exact(load),
        tolerance=load.tolerance,
        library=name,
    )


def _paged_flash(name: str, module: ModuleType, load: Load) -> Kernel:
    """``flash_attn_with_kvcache`` over pages."""
    if is_vllm_flash(module):
        return paged_vllm(name, module, load)
    op, pages = load.op, Pages(load=load, size=PAGE[name])
    table = {"page_table" if name == "flash-attention-3" else "block_table": pages.table}

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = module.flash_attn_with_kvcache(
            q,
            k,
            v,
            cache_seqlens=pages.lengths,
            causal=load.causal,
            window_size=load.window,
            **table,
        )
        return first_of(out)

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
    wrapper = module.BatchPrefillWithRaggedKVCacheWrapper(workspace(load, name), "NHD")
    wrapper.plan(
        starts(load, load.new),
        starts(load, load.length),
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
        operands=prompt(load),
        run=lambda q, k, v: first_of(wrapper.run(q, k, v)),
        reference=prompt_exact(load),
        tolerance=load.tolerance,
        library=name,
    )


def _paged_flashinfer(name: str, module: ModuleType, load: Load) -> Kernel:
    """``BatchDecodeWithPagedKVCacheWrapper``: one new token a sequence."""
    op, pages = load.op, Pages(load=load, size=PAGE[name])
    if load.new > 1 or op.key_dim != op.value_dim:
        raise NoKernelError("FlashInfer's decode is of one new token, with keys and values of one width")
    cores = op.heads // op.kv_heads >= _RATIO
    wrapper = module.BatchDecodeWithPagedKVCacheWrapper(workspace(load, name), "NHD", use_tensor_cores=cores)
    last = torch.full_like(pages.lengths, (load.length - 1) % pages.size + 1)
    wrapper.plan(
        starts(load, pages.each),
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
        run=lambda q, k, v: first_of(wrapper.run(q, (k, v))),
        reference=lambda q, k, v: load.exact(q[:, None], pages.in_order(k), pages.in_order(v))[:, 0],
        tolerance=load.tolerance,
        library=name,
    )


def _latent_flash(name: str, module: ModuleType, load: Load) -> Kernel:
    """FlashAttention 3 with the latents as values and, times their part of the query (``qv``), as keys; as vLLM."""
    if is_vllm_flash(module):
        return latent_vllm(name, module, load)
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
        return first_of(out)

    call = f"{module.__name__}.flash_attn_with_kvcache with qv, pages of {pages.size}"
    return Kernel(name=call, run=run, library=name, **latent(load, pages))


def _flash_mla(name: str, module: ModuleType, load: Load) -> Kernel:
    """``flash_mla_with_kvcache``; its schedule is made once for the lengths, as engines make it once a step."""
    op, pages = load.op, Pages(load=load, size=PAGE[name])
    if load.pool.target.sm != 90:
        raise NoKernelError(f"FlashMLA reads whole caches on SM90, not on {load.pool.target}")
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
        return first_of(out)

    call = f"{module.__name__}.flash_mla_with_kvcache, pages of {pages.size}"
    return Kernel(name=call, run=run, library=name, **latent(load, pages))
