"""Families of multi-head latent attention: DeepSeek-V2 and later, Kimi-K2, GLM-5."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.decoder import mlp, model
from inferplan.models.huggingface.dialect import Dialect, Layer, flag
from inferplan.models.huggingface.reader import HEADS, LAYERS, Reader


def mla(r: Reader, d: Dialect) -> dict[str, Any]:
    """The latent attention mixer."""
    r.skip("num_key_value_heads", "head_dim")  # every head has its own key and value
    r.only("qk_head_dim", r.integer("qk_nope_head_dim") + r.integer("qk_rope_head_dim"))
    return {
        "kind": "mla",
        "heads": r.integer(*HEADS),
        "q_lora": r.optional("q_lora_rank"),
        "kv_lora": r.integer("kv_lora_rank"),
        "nope_dim": r.integer("qk_nope_head_dim"),
        "rope_dim": r.integer("qk_rope_head_dim"),
        "value_dim": r.integer("v_head_dim"),
        "bias": flag(r, d.qkv_bias),
    }


def latent(r: Reader, d: Dialect) -> dict[str, Any]:
    """Latent attention in every layer, dense feed-forwards first, then mixtures of experts; an indexer where given."""
    count = r.integer(*LAYERS)
    mixer = mla(r, d)
    for kind in r.items("layer_types", count) or []:
        if kind not in ("full_attention", "indexed_attention", "deepseek_sparse_attention"):
            raise r.refuse(f"layer_types entry {kind!r}", "only full_attention and indexed_attention are known here")
    if "full_attention" in (r.items("layer_types", count) or []) and r.optional("index_n_heads") is not None:
        raise r.refuse("layer_types entry 'full_attention'", "beside index_n_heads, which gives every layer an indexer")
    sparse = d.moe(r, d, count) if d.moe else [None] * count
    dense = mlp(r, d) if None in sparse else None
    layers: list[Layer] = []
    for index, experts in zip(indexers(r, count), sparse, strict=True):
        layers.append({"mixer": mixer | d.attention | ({"indexer": index} if index else {}), "ffn": experts or dense})
    fields = model(r, d, layers)
    if fields["mtp"] and indexers(r, count)[-1]:  # a prediction module has an indexer of its own
        fields["mtp"]["layers"] = [{**layers[-1], "mixer": mixer | {"indexer": _own_indexer(r)}}]
    return fields


INDEX_KEYS = "fp8-token-head"
"""128 fp8 and an fp32 scale, 132 bytes: DeepSeek-V3.2-Exp's inference/model.py (``k_cache``, ``k_scale_cache``), vLLM's
``DeepseekV32IndexerCache`` and SGLang's ``index_k_with_scale_buffer`` alike, whatever ``--kv-cache-dtype``."""


def _own_indexer(r: Reader) -> dict[str, Any]:
    sizes = {"heads": r.integer("index_n_heads"), "head_dim": r.integer("index_head_dim")}
    return sizes | {"top_k": r.integer("index_topk"), "format": INDEX_KEYS}


def indexers(r: Reader, count: int) -> list[dict[str, Any] | None]:
    """The indexer of each layer; a shared one takes the choice of the layer before it (GLM-5.2)."""
    if r.optional("index_n_heads") is None:
        return [None] * count
    own = _own_indexer(r)
    r.skip("indexer_rope_interleave", "rope_interleave", "indexer_rope_interleaved", "index_skip_topk_offset")
    r.skip("index_share_for_mtp_iteration", "index_topk_freq", "index_topk_pattern")
    kinds = r.items("indexer_types", count)
    for kind in kinds or []:
        if kind not in ("full", "shared"):
            raise r.refuse(f"indexer_types entry {kind!r}", "only full and shared are known")
    return [own | ({"shared": True} if kinds and kinds[index] == "shared" else {}) for index in range(count)]
