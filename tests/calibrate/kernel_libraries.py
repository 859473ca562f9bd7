"""Stand-ins for the kernel libraries: each demands exactly the call of its sources and computes what that call means.

They share no code with the calibrator: attention is a loop over sequences, queries and heads, a matmul with scales a
product of numbers in float64. ``calls`` counts what was called.
"""

from __future__ import annotations

import itertools
from collections import Counter
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

calls: Counter[str] = Counter()


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, left: int, scale: float) -> Tensor:
    """``q [new, heads, d]`` over ``k [length, kv_heads, d]``: query i is at position length - new + i."""
    new, heads, _ = q.shape
    length, kv_heads, _ = k.shape
    out = torch.zeros(new, heads, v.shape[-1], dtype=torch.float64)
    for i in range(new):
        at = length - new + i
        first = max(0, at - left) if left >= 0 else 0
        last = at + 1 if causal else length
        for h in range(heads):
            g = h * kv_heads // heads
            scores = (k[first:last, g].double() @ q[i, h].double()) * scale
            out[i, h] = torch.softmax(scores, 0) @ v[first:last, g].double()
    return out


def from_pages(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """A sequence's tokens, page by page."""
    return torch.cat([cache[int(page)] for page in table])[:length]


def ints(tensor: Tensor) -> list[int]:
    assert tensor.dtype is torch.int32, "lengths, starts and tables are int32"
    return [int(value) for value in tensor]


def _varlen(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
    assert q.dim() == k.dim() == v.dim() == 3 and q.dtype in (torch.bfloat16, torch.float16)
    calls["varlen"] += 1
    starts, keys = ints(given.pop("cu_seqlens_q")), ints(given.pop("cu_seqlens_k"))
    assert (starts[-1], keys[-1]) == (len(q), len(k))
    assert given.pop("max_seqlen_q") == max(b - a for a, b in itertools.pairwise(starts))
    assert given.pop("max_seqlen_k") == max(b - a for a, b in itertools.pairwise(keys))
    (left, right), causal = given.pop("window_size"), given.pop("causal")
    assert not given and right == (0 if left >= 0 else -1)
    parts = [
        attend(q[a:b], k[c:d], v[c:d], causal, left, q.shape[-1] ** -0.5)
        for a, b, c, d in zip(starts, starts[1:], keys, keys[1:])
    ]
    return torch.cat(parts).to(q.dtype)


def _kvcache(page: int, table: str) -> Any:
    def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, **given: Any) -> Tensor:
        assert q.dim() == k_cache.dim() == 4 and k_cache.stride(-1) == v_cache.stride(-1) == 1
        calls["kvcache"] += 1
        lengths = given.pop("cache_seqlens")
        qv, scale = given.pop("qv", None), given.pop("softmax_scale", q.shape[-1] ** -0.5)
        (left, right), causal = given.pop("window_size", (-1, -1)), given.pop("causal")
        pages = given.pop(table, None)
        assert not given and right == (0 if left >= 0 else -1)
        out = []
        for i in range(len(q)):
            query = q[i]
            if pages is None:
                k, v = k_cache[i, :lengths], v_cache[i, :lengths]
            else:
                assert k_cache.shape[1] == page and len(ints(lengths)) == len(q)
                k, v = (from_pages(cache, pages[i], int(lengths[i])) for cache in (k_cache, v_cache))
            if qv is not None:  # the latents are keys too
                query, k = torch.cat([qv[i], query], -1), torch.cat([v, k], -1)
            out.append(attend(query, k, v, causal, left, scale))
        return torch.stack(out).to(q.dtype)

    return flash_attn_with_kvcache


def flash_attention_3() -> ModuleType:
    return module(
        "flash_attn_interface", flash_attn_varlen_func=_varlen, flash_attn_with_kvcache=_kvcache(16, "page_table")
    )


def flash_attention_2() -> ModuleType:
    """It takes values of the keys' width only, and pages of 256."""

    def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
        assert q.shape[-1] == k.shape[-1] == v.shape[-1]
        return _varlen(q, k, v, **given)

    paged = _kvcache(256, "block_table")
    return module("flash_attn", flash_attn_varlen_func=flash_attn_varlen_func, flash_attn_with_kvcache=paged)


def vllm_flash_attn(*versions: int) -> ModuleType:
    """vLLM's build of both: one call, told which; a cache is in pages of a multiple of 16."""

    def flash_attn_varlen_func(
        q: Tensor, k: Tensor, v: Tensor, *, max_seqlen_q: int, cu_seqlens_q: Tensor, max_seqlen_k: int,
        fa_version: int, causal: bool, cu_seqlens_k: Tensor | None = None, seqused_k: Tensor | None = None,
        block_table: Tensor | None = None, q_v: Tensor | None = None, softmax_scale: float | None = None,
        window_size: list[int] | None = None,
    ) -> Tensor:  # fmt: skip
        assert fa_version in versions and (q_v is None or fa_version == 3)
        assert (cu_seqlens_k is None) != (seqused_k is None) and (block_table is None) == (seqused_k is None)
        starts, left = ints(cu_seqlens_q), -1 if window_size is None else window_size[0]
        assert window_size is None or window_size[1] == (0 if left >= 0 else -1)
        assert max_seqlen_q == max(b - a for a, b in itertools.pairwise(starts)) and starts[-1] == len(q)
        scale, out = softmax_scale or q.shape[-1] ** -0.5, []
        calls[f"vllm fa{fa_version}"] += 1
        for i, (a, b) in enumerate(itertools.pairwise(starts)):
            query = q[a:b]
            if block_table is None:
                assert cu_seqlens_k is not None
                own = slice(*ints(cu_seqlens_k)[i : i + 2])
                keys, values = k[own], v[own]
            else:
                assert seqused_k is not None and k.dim() == 4 and k.shape[1] % 16 == 0
                length = ints(seqused_k)[i]
                assert length <= max_seqlen_k
                keys, values = (from_pages(cache, block_table[i], length) for cache in (k, v))
            if q_v is not None:  # the latents are keys too
                query, keys = torch.cat([q_v[a:b], query], -1), torch.cat([values, keys], -1)
            out.append(attend(query, keys, values, causal, left, scale))
        return torch.cat(out).to(q.dtype)

    return module(
        "vllm.vllm_flash_attn",
        flash_attn_varlen_func=flash_attn_varlen_func,
        is_fa_version_supported=lambda version: version in versions,
        fa_version_unsupported_reason=lambda version: f"FA{version} is only supported on other devices",
    )


def trtllm_gen() -> ModuleType:
    """TensorRT-LLM's kernels by FlashInfer's names; pages have their heads first."""

    def over_pages(q: Tensor, cache: tuple[Tensor, Tensor], given: dict[str, Any], new: int) -> Tensor:
        room = given.pop("workspace_buffer")
        assert room.dtype is torch.uint8 and not room[:4096].any() and given.pop("kv_layout") == "HND"
        assert given.pop("bmm2_scale") == 1.0
        scale, left = given.pop("bmm1_scale"), given.pop("window_left")
        table, lengths = given.pop("block_tables"), ints(given.pop("seq_lens"))
        assert not given and len(q) == new * len(lengths)
        out = []
        for i, length in enumerate(lengths):
            k, v = (from_pages(part.transpose(1, 2), table[i], length) for part in cache)
            out.append(attend(q[i * new : (i + 1) * new], k, v, True, left, scale))
        return torch.cat(out).to(q.dtype)

    def context(query: Tensor, kv_cache: tuple[Tensor, Tensor], max_q_len: int, max_kv_len: int, batch_size: int,
                cum_seq_lens_q: Tensor, cum_seq_lens_kv: Tensor, **given: Any) -> Tensor:  # fmt: skip
        calls["trtllm context"] += 1
        assert ints(cum_seq_lens_q)[1] == max_q_len and ints(cum_seq_lens_kv)[1] == max_kv_len
        assert batch_size == len(cum_seq_lens_q) - 1
        return over_pages(query, kv_cache, given, max_q_len)

    def decode(query: Tensor, kv_cache: tuple[Tensor, Tensor], max_seq_len: int, q_len_per_req: int,
               **given: Any) -> Tensor:  # fmt: skip
        calls["trtllm decode"] += 1
        assert max_seq_len == max(ints(given["seq_lens"]))
        return over_pages(query, kv_cache, given, q_len_per_req)

    def ragged(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tensor:
        calls["trtllm ragged"] += 1
        starts, keys = ints(given.pop("cum_seq_lens_q")), ints(given.pop("cum_seq_lens_kv"))
        assert given["is_causal"] and not given["return_lse"] and given["o_sf_scale"] == given["bmm2_scale"] == 1.0
        edges = zip(starts, starts[1:], keys, keys[1:])
        parts = [attend(query[a:b], key[c:d], value[c:d], True, -1, given["bmm1_scale"]) for a, b, c, d in edges]
        return torch.cat(parts).to(query.dtype)

    def latent(query: Tensor, kv_cache: Tensor, **given: Any) -> Tensor:
        calls["trtllm latent"] += 1
        rank, rope = given["kv_lora_rank"], given["qk_rope_head_dim"]
        assert kv_cache.shape[1] == 1 and kv_cache.shape[-1] == rank + rope == query.shape[-1]
        out = []
        for i, length in enumerate(ints(given["seq_lens"])):
            k = from_pages(kv_cache.transpose(1, 2), given["block_tables"][i], length)
            out.append(attend(query[i], k, k[..., :rank], True, -1, given["bmm1_scale"]))
        return torch.stack(out).to(query.dtype)

    return module(
        "flashinfer",
        trtllm_batch_context_with_kv_cache=context,
        trtllm_batch_decode_with_kv_cache=decode,
        trtllm_ragged_attention_deepseek=ragged,
        trtllm_batch_decode_with_kv_cache_mla=latent,
    )


def flashinfer() -> ModuleType:
    class Ragged:
        def __init__(self, workspace: Tensor, layout: str) -> None:
            assert workspace.dtype is torch.uint8 and layout == "NHD"

        def plan(self, q_starts: Tensor, k_starts: Tensor, *sizes: int, **given: Any) -> None:
            calls["plan"] += 1
            self.starts, self.keys, self.sizes, self.given = ints(q_starts), ints(k_starts), sizes, given

        def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            calls["run"] += 1
            given, (heads, kv_heads, width) = self.given, self.sizes
            assert q.shape == (self.starts[-1], heads, width) and k.shape == (self.keys[-1], kv_heads, width)
            assert v.shape[-1] == given["head_dim_vo"] and q.dtype is given["q_data_type"]
            edges = zip(self.starts, self.starts[1:], self.keys, self.keys[1:])
            causal, left = given["causal"], given["window_left"]
            parts = [attend(q[a:b], k[c:d], v[c:d], causal, left, width**-0.5) for a, b, c, d in edges]
            return torch.cat(parts).to(q.dtype)

    class Paged:
        def __init__(self, workspace: Tensor, layout: str, use_tensor_cores: bool) -> None:
            assert workspace.dtype is torch.uint8 and layout == "NHD"
            self.cores = use_tensor_cores

        def plan(self, starts: Tensor, pages: Tensor, last: Tensor, *sizes: int, q_data_type: torch.dtype) -> None:
            calls["plan"] += 1
            self.starts, self.pages, self.last, self.sizes = ints(starts), pages, ints(last), sizes

        def run(self, q: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
            calls["run"] += 1
            heads, kv_heads, width, page = self.sizes
            assert self.cores == (heads // kv_heads >= 4)
            assert q.shape == (len(self.last), heads, width) and cache[0].shape[1:] == (page, kv_heads, width)
            out = []
            for i, (a, b) in enumerate(zip(self.starts, self.starts[1:])):
                length = (b - a - 1) * page + self.last[i]
                k, v = (from_pages(part, self.pages[a:b], length) for part in cache)
                out.append(attend(q[i][None], k, v, False, -1, width**-0.5)[0])
            return torch.stack(out).to(q.dtype)

    return module("flashinfer", BatchPrefillWithRaggedKVCacheWrapper=Ragged, BatchDecodeWithPagedKVCacheWrapper=Paged)


def flash_mla(name: str = "flash_mla", there: bool = True) -> ModuleType:
    def get_mla_metadata(lengths: Tensor, rows: int, kv_heads: int) -> tuple[Any, None]:
        assert ints(lengths) and rows > 0 and kv_heads == 1
        return SimpleNamespace(made=True), None

    def flash_mla_with_kvcache(
        q: Tensor, k_cache: Tensor, block_table: Tensor, cache_seqlens: Tensor, head_dim_v: int,
        tile_scheduler_metadata: Any, num_splits: None, softmax_scale: float, causal: bool,
    ) -> tuple[Tensor, None]:  # fmt: skip
        assert k_cache.shape[1:] == (64, 1, 576) and head_dim_v == 512 and q.shape[-1] == 576
        assert tile_scheduler_metadata.made and num_splits is None
        calls["flash_mla"] += 1
        out = []
        for i, query in enumerate(q):
            k = from_pages(k_cache, block_table[i], int(cache_seqlens[i]))
            out.append(attend(query, k, k[..., :512], causal, -1, softmax_scale))
        return torch.stack(out).to(q.dtype), None

    def flash_mla_sparse_fwd(
        q: Tensor, kv: Tensor, indices: Tensor, sm_scale: float, d_v: int
    ) -> tuple[Tensor, None, None]:
        """Each query reads the latents of its indices; its heads come by 64 or 128, its indices by 128."""
        calls["sparse"] += 1
        assert q.shape[1] in (64, 128) and kv.shape[1:] == (1, 576) and d_v == 512 and q.shape[2] == 576
        assert indices.dtype is torch.int32 and indices.shape[:2] == (len(q), 1) and indices.shape[2] % 128 == 0
        out = torch.zeros(*q.shape[:2], d_v, dtype=torch.float64)
        for i, chosen in enumerate(indices[:, 0].tolist()):
            real = [place for place in chosen if place >= 0]
            assert len(set(real)) == len(real) > 0
            keys = kv[real, 0].double()
            out[i] = torch.softmax(q[i].double() @ keys.t() * sm_scale, dim=-1) @ keys[:, :d_v]
        return out.to(q.dtype), None, None

    made = {"get_mla_metadata": get_mla_metadata, "flash_mla_with_kvcache": flash_mla_with_kvcache}
    made |= {"flash_mla_sparse_fwd": flash_mla_sparse_fwd}
    if name != "flash_mla":
        made |= {"is_flashmla_sparse_supported": lambda: (there, None if there else "vllm._flashmla_C is missing")}
    return module(name, **made)


def whole(values: Tensor, scales: Tensor, rows: int) -> Tensor:
    """fp8 times its scales, element by element: one for each ``rows`` x 128."""
    i, j = torch.arange(values.shape[0]) // rows, torch.arange(values.shape[1]) // 128
    return values.double() * scales.double()[i][:, j]


def deep_gemm() -> ModuleType:
    """SM90: rows' scales are columns first and 16 bytes aligned, blocks' scales as they are."""

    def ready(scales: Tensor, rows: int, blocks: int) -> None:
        assert scales.shape == (rows, blocks) and scales.dtype is torch.float32
        assert scales.stride() == (1, -(-rows // 4) * 4), "rows first: it would be laid out again in the call"

    def fp8_gemm_nt(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], d: Tensor) -> None:
        (x, xs), (w, ws) = a, b
        calls["fp8_gemm_nt"] += 1
        assert x.dtype is w.dtype is torch.float8_e4m3fn and d.dtype is torch.bfloat16
        ready(xs, x.shape[0], x.shape[1] // 128)
        assert ws.shape == (w.shape[0] // 128, w.shape[1] // 128)
        d.copy_(whole(x, xs, 1) @ whole(w, ws, 128).t())

    def grouped(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], d: Tensor, experts: Tensor) -> None:
        (x, xs), (w, ws) = a, b
        calls["grouped"] += 1
        ready(xs, x.shape[0], x.shape[1] // 128)
        owners = ints(experts)
        assert len(owners) == len(x) == len(d) and len(x) % 128 == 0
        d.fill_(float("nan"))  # rows of no expert are never written
        for start in range(0, len(x), 128):
            here = set(owners[start : start + 128]) - {-1}
            assert len(here) == 1, "the rows of two experts are in one tile"
            (e,) = here
            rows = [row for row in range(start, start + 128) if owners[row] == e]
            assert rows == list(range(start, start + len(rows)))
            d[rows] = (whole(x[rows], xs[rows], 1) @ whole(w[e], ws[e], 128).t()).to(d.dtype)

    return module("deep_gemm", fp8_gemm_nt=fp8_gemm_nt, m_grouped_fp8_gemm_nt_contiguous=grouped)


def fused_moe() -> ModuleType:
    """vLLM's launcher of the fused kernel, by the names of its parameters."""

    def config(w1: Any, w2: Any, top_k: int, dtype: str | None, m: int, block_shape: Any = None) -> dict[str, int]:
        assert w1[0] == w2[0] and top_k == 1
        return {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}

    def invoke_fused_moe_triton_kernel(
        A: Tensor, B: Tensor, C: Tensor, A_scale: Tensor | None, B_scale: Tensor | None, topk_weights: None,
        sorted_token_ids: Tensor, expert_ids: Tensor, num_tokens_post_padded: Tensor, mul_routed_weight: bool,
        top_k: int, config: dict[str, int], compute_type: str, use_fp8_w8a8: bool, use_int8_w8a8: bool,
        use_int8_w8a16: bool, use_int4_w4a16: bool, per_channel_quant: bool, block_shape: list[int] | None = None,
    ) -> None:  # fmt: skip
        calls["fused_moe"] += 1
        tile, ids, owners = config["BLOCK_SIZE_M"], ints(sorted_token_ids), ints(expert_ids)
        assert ints(num_tokens_post_padded) == [len(ids)] and len(ids) == tile * len(owners)
        assert C.shape == (len(A), 1, B.shape[1]) and not mul_routed_weight and top_k == 1
        assert compute_type == str(C.dtype) and (A_scale is not None) == use_fp8_w8a8
        assert per_channel_quant == (use_fp8_w8a8 and block_shape is None)
        C.fill_(float("nan"))
        for at, token in enumerate(ids):
            if token >= len(A):
                continue
            e, x, w = owners[at // tile], A[token].double(), B[owners[at // tile]].double()
            if block_shape is not None:
                x, w = whole(A[token][None], A_scale[token][None], 1)[0], whole(B[e], B_scale[e], 128)
            elif A_scale is not None:
                assert A_scale.shape == (len(A), 1) and B_scale.shape == (*B.shape[:2], 1)
                x, w = x * A_scale[token].double(), w * B_scale[e].double()
            C[token, 0] = (w @ x).to(C.dtype)

    types = SimpleNamespace(bfloat16="torch.bfloat16", float16="torch.float16", float32="torch.float32")
    return module(
        "vllm.model_executor.layers.fused_moe.fused_moe",
        try_get_optimal_moe_config=config,
        invoke_fused_moe_triton_kernel=invoke_fused_moe_triton_kernel,
        tl=types,
    )


CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of fp4 without the sign (OCP Microscaling Formats 1.0, e2m1)."""


def fp4(packed: Tensor) -> Tensor:
    """Packed bytes element by element, the low half first."""
    rows = []
    for row in packed.view(torch.uint8).tolist():
        halves = [half for byte in row for half in (byte % 16, byte // 16)]
        rows.append([CODES[half % 8] * (-1 if half >= 8 else 1) for half in halves])
    return torch.tensor(rows, dtype=torch.float64)


def untiled(scales: Tensor, rows: int, blocks: int) -> Tensor:
    """Scales out of tiles of 128 x 4, each where PTX says that it is (tcgen05.mma, scale_vec::4X)."""
    flat, wide = scales.flatten().to(torch.float32), -(-blocks // 4)
    assert len(flat) == -(-rows // 128) * wide * 512
    found = torch.empty(rows, blocks, dtype=torch.float64)
    for i, j in itertools.product(range(rows), range(blocks)):
        tile = i // 128 * wide + j // 4
        found[i, j] = flat[tile * 512 + i % 32 * 16 + i // 32 % 4 * 4 + j % 4]
    return found


def scaled_mm(mat_a: Tensor, mat_b: Tensor, **given: Any) -> Tensor:
    """``F.scaled_mm`` of two fp4 operands, as torch 2.13 declares it."""
    kinds, pairs = torch.nn.functional.ScalingType, torch.float4_e2m1fn_x2
    assert mat_a.dtype is mat_b.dtype is pairs and mat_b.stride(0) == 1
    assert given["scale_recipe_a"] is given["scale_recipe_b"]
    group = {kinds.BlockWise1x16: 16, kinds.BlockWise1x32: 32}[given["scale_recipe_a"]]
    type_of = torch.float8_e4m3fn if group == 16 else torch.float8_e8m0fnu
    calls[f"scaled_mm 1x{group}"] += 1
    assert given["scale_a"].dtype is given["scale_b"].dtype is type_of
    assert given["swizzle_a"] is given["swizzle_b"] is torch.nn.functional.SwizzleType.SWIZZLE_32_4_4
    whole_of = []
    for packed, scales in ((mat_a, given["scale_a"]), (mat_b.t(), given["scale_b"])):
        values = fp4(packed)
        each = untiled(scales, values.shape[0], values.shape[1] // group)
        whole_of.append(values * each.repeat_interleave(group, dim=1))
    return (whole_of[0] @ whole_of[1].t()).to(given["output_dtype"])


def vllm_ops() -> list[ModuleType]:
    """vLLM's ``_custom_ops`` and what stands around it. What it packs anew here stays as GPTQ packs it."""
    kinds = SimpleNamespace(uint4b8=("int", 4), uint8b128=("int", 8), float4_e2m1f=("fp4", 4))

    def columns(raw: Tensor, kind: tuple[str, int], scales: Tensor) -> Tensor:
        """Weights ``[k, n]``: of each 32 bits the first row is in the lowest."""
        (name, bits), (words, n) = kind, raw.shape
        found = torch.empty(words * 32 // bits, n, dtype=torch.float64)
        for row in range(len(found)):
            word, place = divmod(row, 32 // bits)
            codes = [(int(value) >> bits * place) % 2**bits for value in raw[word]]
            values = [code - 2 ** (bits - 1) for code in codes]
            if name == "fp4":
                values = [CODES[code % 8] * (-1 if code >= 8 else 1) for code in codes]
            found[row] = torch.tensor(values, dtype=torch.float64)
        return found * scales.to(torch.float32).double().repeat_interleave(len(found) // len(scales), dim=0)

    def marlin_gemm(
        a: Tensor, c: None, b_q_weight: Tensor, b_bias: None, b_scales: Tensor, a_scales: None,
        global_scale: Tensor | None, b_zeros: None, workspace: Tensor, b_q_type: tuple[str, int], size_m: int,
        size_n: int, size_k: int, use_atomic_add: bool, use_fp32_reduce: bool,
    ) -> Tensor:  # fmt: skip
        assert a.shape == (size_m, size_k) and size_n % 64 == size_k % 128 == 0 and workspace.dtype is torch.int32
        assert use_fp32_reduce and not use_atomic_add
        calls["marlin"] += 1
        raw = b_q_weight.reshape(size_k * b_q_type[1] // 32, size_n)
        product = a.double() @ columns(raw, b_q_type, b_scales)
        return (product * (1.0 if global_scale is None else float(global_scale))).to(a.dtype)

    def machete_mm(a: Tensor, b_q: Tensor, b_type: tuple[str, int], b_group_scales: Tensor, b_group_zeros: None,
                   b_group_size: int) -> Tensor:  # fmt: skip
        calls["machete"] += 1
        assert b_group_size in (128, -1) and b_type[0] == "int" and b_group_scales.dtype is a.dtype
        assert len(b_group_scales) == (1 if b_group_size < 0 else a.shape[1] // 128)
        return (a.double() @ columns(b_q, b_type, b_group_scales)).to(a.dtype)

    def machete_prepack_B(
        b_q_weight: Tensor, a_type: torch.dtype, b_type: tuple[str, int], group_scales_type: torch.dtype
    ) -> Tensor:
        assert b_q_weight.stride(0) == 1 and a_type is group_scales_type is torch.bfloat16
        return b_q_weight.contiguous()

    def cutlass_scaled_mm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out_dtype: torch.dtype) -> Tensor:
        calls["cutlass"] += 1
        assert b.stride(0) == 1 and scale_a.numel() == len(a) and scale_b.numel() == b.shape[1]
        return ((a.double() * scale_a.double()) @ (b.double() * scale_b.double())).to(out_dtype)

    def cutlass_scaled_fp4_mm(a: Tensor, b: Tensor, block_scale_a: Tensor, block_scale_b: Tensor, alpha: Tensor,
                              out_dtype: torch.dtype) -> Tensor:  # fmt: skip
        calls["cutlass fp4"] += 1
        assert a.dtype is b.dtype is torch.uint8 and block_scale_a.dtype is torch.float8_e4m3fn and float(alpha) == 1.0
        parts = []
        for packed, scales in ((a, block_scale_a), (b, block_scale_b)):
            values = fp4(packed)
            each = untiled(scales, values.shape[0], values.shape[1] // 16)
            parts.append(values * each.repeat_interleave(16, dim=1))
        return (parts[0] @ parts[1].t()).to(out_dtype)

    def cutlass_moe_mm(
        out: Tensor, a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, expert_offsets: Tensor,
        problem_sizes: Tensor, a_strides: Tensor, b_strides: Tensor, c_strides: Tensor, per_act_token: bool,
        per_out_ch: bool,
    ) -> None:  # fmt: skip
        """Weights are ``[experts, n, k]``; problems are (rows, n, k), and (n, rows, k) of 64 rows or fewer."""
        calls["cutlass moe"] += 1
        assert per_act_token and per_out_ch and problem_sizes.dtype is torch.int32
        assert expert_offsets.dtype is torch.int64 and len(expert_offsets) == len(b) == len(problem_sizes)
        assert set(a_strides.tolist()) == set(b_strides.tolist()) == {a.shape[1]}
        assert set(c_strides.tolist()) == {b.shape[1]} and a_strides.dtype is torch.int64
        for e, (first, sizes) in enumerate(zip(expert_offsets.tolist(), problem_sizes.tolist())):
            rows, n = sizes[:2] if len(a) > 64 else (sizes[1], sizes[0])
            assert (n, sizes[2]) == tuple(b.shape[1:])
            own = slice(first, first + rows)
            x = a[own].double() * a_scales[own].double().view(-1, 1)
            out[own] = (x @ (b[e].double() * b_scales[e].double().view(-1, 1)).t()).to(out.dtype)

    def process(scales: Tensor, a_dtype: torch.dtype) -> tuple[Tensor, float]:
        assert a_dtype is torch.bfloat16
        return scales * 4.0, 4.0

    utils = "vllm.model_executor.layers.quantization.utils"
    return [
        module(
            "vllm._custom_ops",
            gptq_marlin_repack=lambda raw, size_k, size_n, num_bits: raw.reshape(size_k // 16, size_n * num_bits // 2),
            marlin_gemm=marlin_gemm,
            machete_mm=machete_mm,
            machete_prepack_B=machete_prepack_B,
            cutlass_scaled_mm=cutlass_scaled_mm,
            cutlass_scaled_fp4_mm=cutlass_scaled_fp4_mm,
            cutlass_moe_mm=cutlass_moe_mm,
        ),
        module("vllm.scalar_type", scalar_types=kinds),
        module(
            f"{utils}.marlin_utils",
            marlin_make_workspace_new=lambda device: torch.zeros(4, dtype=torch.int32),
            marlin_permute_scales=lambda scales, size_k, size_n, group_size: scales,
        ),
        module(
            f"{utils}.marlin_utils_fp4",
            mxfp4_marlin_process_scales=lambda scales: scales.to(torch.float8_e8m0fnu),
            nvfp4_marlin_process_scales=process,
            nvfp4_marlin_process_global_scale=lambda whole: whole,
        ),
    ]


def triton_lora() -> ModuleType:
    """vLLM's LoRA kernels by the tensors of its metadata."""

    class LoRAKernelMeta:
        @staticmethod
        def make(max_loras: int, max_num_tokens: int, device: str) -> LoRAKernelMeta:
            made = LoRAKernelMeta()
            made.slots, made.tokens = max_loras, max_num_tokens  # type: ignore[attr-defined]
            return made

        def prepare_tensors(self, mapping: Tensor) -> None:
            owners = ints(mapping)
            assert len(owners) <= self.tokens and max(owners) < self.slots  # type: ignore[attr-defined]
            self.mapping = mapping

        def meta_args(self, token_nums: int, specialize_active_lora: bool) -> tuple[Any, ...]:
            return (self.mapping[:token_nums], *("meta",) * 6)

    def lora_shrink(x: Tensor, a: list[Tensor], out: Tensor, mapping: Tensor, *rest: Any) -> None:
        *meta, scale = rest
        calls["shrink"] += 1
        assert meta == ["meta"] * 6 and out.dtype is torch.float32 and x.is_contiguous() and out.is_contiguous()
        for token, owner in enumerate(ints(mapping)):
            for piece, weights in enumerate(a):
                out[piece, token] = scale * (weights[owner].double() @ x[token].double())

    def lora_expand(x: Tensor, b: list[Tensor], y: Tensor, mapping: Tensor, *meta: Any, offset_start: int,
                    add_inputs: bool) -> None:  # fmt: skip
        calls["expand"] += 1
        assert meta == ("meta",) * 6 and len(x) == len(b) and add_inputs and y.is_contiguous()
        for token, owner in enumerate(ints(mapping)):
            at = offset_start
            for piece, weights in enumerate(b):
                end = at + weights.shape[1]
                y[token, at:end] += (weights[owner].double() @ x[piece, token].double()).to(y.dtype)
                at = end
            assert at == y.shape[1]

    return module("vllm.lora.ops.triton_ops", LoRAKernelMeta=LoRAKernelMeta, lora_shrink=lora_shrink,
                  lora_expand=lora_expand)  # fmt: skip


def module(name: str, **members: Any) -> ModuleType:
    """A module of some functions."""
    made = ModuleType(name)
    for key, value in members.items():
        setattr(made, key, value)
    return made
