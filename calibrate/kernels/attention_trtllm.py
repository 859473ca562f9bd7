"""TensorRT-LLM's attention inside FlashInfer (its backend ``trtllm-gen``): what engines run on SM100.

Calls are those of FlashInfer 0.7.4 (``prefill.py``, ``decode.py``, ``mla/_core.py``) as vLLM 0.32.0 makes them
(``v1/attention/backends/flashinfer.py``, ``mla/flashinfer_mla.py``, ``mla/prefill/trtllm_ragged.py``). A cache has its
heads before its tokens: ``[pages, kv_heads, page, d]``.
"""

from __future__ import annotations

from types import ModuleType

import torch

from calibrate.kernels.attention_load import Load, Pages, first_of, latent, prompt, prompt_exact, starts, workspace
from calibrate.kernels.kernel import Kernel
from calibrate.kernels.operands import NoKernelError

PAGE = {"attention": 16, "mla": 64}
_NOPE = 128
"""What of a latent key has no position, in the model's own heads: the call is told, and reads nothing of it."""


def _require_causal(load: Load) -> None:
    if load.op.mask.kind not in ("causal", "window"):
        raise NoKernelError(f"TensorRT-LLM's attention is causal here, not {load.op.mask.kind}")


def paged_trtllm(name: str, module: ModuleType, load: Load) -> Kernel:
    """``trtllm_batch_context_with_kv_cache`` for prompts, ``trtllm_batch_decode_with_kv_cache`` for decodes."""
    _require_causal(load)
    op, pages, room = load.op, Pages(load=load, size=PAGE["attention"]), workspace(load, name)
    scales = {"bmm1_scale": op.key_dim**-0.5, "bmm2_scale": 1.0, "window_left": load.left}
    at, behind = starts(load, load.new), starts(load, load.length)

    def wide(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = module.trtllm_batch_context_with_kv_cache(
            query=q,
            kv_cache=(k, v),
            workspace_buffer=room,
            block_tables=pages.table,
            seq_lens=pages.lengths,
            max_q_len=load.new,
            max_kv_len=load.length,
            batch_size=load.batch,
            cum_seq_lens_q=at,
            cum_seq_lens_kv=behind,
            kv_layout="HND",
            **scales,
        )
        return first_of(out)

    def few(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = module.trtllm_batch_decode_with_kv_cache(
            query=q,
            kv_cache=(k, v),
            workspace_buffer=room,
            block_tables=pages.table,
            seq_lens=pages.lengths,
            max_seq_len=load.length,
            kv_layout="HND",
            q_len_per_req=load.new,
            **scales,
        )
        return first_of(out)

    def in_order(cache: torch.Tensor) -> torch.Tensor:
        return pages.in_order(cache.transpose(1, 2))

    call = "trtllm_batch_context_with_kv_cache" if op.wide else "trtllm_batch_decode_with_kv_cache"
    return Kernel(
        name=f"flashinfer {call}, pages of {pages.size}",
        operands=lambda: (
            load.query().flatten(0, 1),
            pages.heads_first(op.kv_heads, op.key_dim),
            pages.heads_first(op.kv_heads, op.value_dim),
        ),
        run=wide if op.wide else few,
        reference=lambda q, k, v: load.exact(load.by_sequence(q), in_order(k), in_order(v)).flatten(0, 1),
        tolerance=load.tolerance,
        library=name,
    )


def prompt_trtllm(name: str, module: ModuleType, load: Load) -> Kernel:
    """``trtllm_ragged_attention_deepseek`` where keys are wider than values, as of latent attention; else pages."""
    op = load.op
    if op.key_dim == op.value_dim:
        return paged_trtllm(name, module, load)
    _require_causal(load)
    room, at, behind = workspace(load, name), starts(load, load.new), starts(load, load.length)
    lengths = torch.full((load.batch,), load.length, dtype=torch.int32, device=load.pool.device)

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = module.trtllm_ragged_attention_deepseek(
            query=q,
            key=k,
            value=v,
            workspace_buffer=room,
            seq_lens=lengths,
            max_q_len=load.new,
            max_kv_len=load.length,
            bmm1_scale=op.key_dim**-0.5,
            bmm2_scale=1.0,
            o_sf_scale=1.0,
            batch_size=load.batch,
            window_left=load.left,
            cum_seq_lens_q=at,
            cum_seq_lens_kv=behind,
            enable_pdl=False,
            is_causal=True,
            return_lse=False,
        )
        return first_of(out)

    return Kernel(
        name="flashinfer trtllm_ragged_attention_deepseek",
        operands=prompt(load),
        run=run,
        reference=prompt_exact(load),
        tolerance=load.tolerance,
        library=name,
    )


def latent_trtllm(name: str, module: ModuleType, load: Load) -> Kernel:
    """``trtllm_batch_decode_with_kv_cache_mla``."""
    op, pages, room = load.op, Pages(load=load, size=PAGE["mla"]), workspace(load, name)
    if (op.key_dim, op.value_dim) != (576, 512):
        raise NoKernelError(f"its keys are of 576 and values of 512, not {op.key_dim} and {op.value_dim}")

    def run(q: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        out = module.trtllm_batch_decode_with_kv_cache_mla(
            query=q,
            kv_cache=cache.transpose(1, 2),
            workspace_buffer=room,
            qk_nope_head_dim=_NOPE,
            kv_lora_rank=op.value_dim,
            qk_rope_head_dim=op.key_dim - op.value_dim,
            block_tables=pages.table,
            seq_lens=pages.lengths,
            max_seq_len=load.length,
            bmm1_scale=op.key_dim**-0.5,
            bmm2_scale=1.0,
        )
        return first_of(out).view(*q.shape[:-1], op.value_dim)

    call = f"flashinfer trtllm_batch_decode_with_kv_cache_mla, pages of {pages.size}"
    return Kernel(name=call, run=run, library=name, **latent(load, pages))
