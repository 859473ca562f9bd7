"""Families whose mixer is a mechanism of its own: DeepSeek-V4, GLM-5.3-Flash, MiniMax-M3, Mistral Large 4, RWKV-7."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.decoder import attention, first_dense, mlp, model, moe
from inferplan.models.huggingface.dialect import Dialect, Layer
from inferplan.models.huggingface.gates_and_norms import kinds_of
from inferplan.models.huggingface.latent import INDEX_KEYS, indexers, mla
from inferplan.models.huggingface.reader import EXPERTS, FFN, HEAD_DIM, HEADS, LAYERS, MOE_FFN, TOP_K, WIDTH, Reader

_SLIDING, _SPARSE, _HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_OF_RATE = {0: _SLIDING, 4: _SPARSE, 128: _HEAVY}
"""``compress_ratios`` of released configs (transformers ``configuration_deepseek_v4.py``)."""


def deepseek_v4(r: Reader, d: Dialect) -> dict[str, Any]:
    """DeepSeek-V4: a window, or a window beside entries compressed at one of two rates, in every layer."""
    count = r.integer(*LAYERS)
    kinds, rates = _v4_kinds(r, count), _v4_rates(r)
    mixers = {kind: _v4_mixer(r, kind, rates) for kind in dict.fromkeys(kinds)}
    streams, iterations = r.integer("hc_mult"), r.integer("hc_sinkhorn_iters")
    hyper = {"kind": "hyper_connection", "streams": streams, "iterations": iterations}
    r.only("n_shared_experts", 1)  # the class builds one, whatever the field says
    width = r.integer(*MOE_FFN)
    experts = moe(r, d, width, shared_d_ff=width)
    r.skip("hc_eps", "compress_rope_theta", "topk_method")
    _v4_hashed(r, count)
    layers: list[Layer] = [{"mixer": mixers[kind], "ffn": experts, "extras": [hyper]} for kind in kinds]
    fields = model(r, d, layers) | {"hyper_streams": streams}
    modules = r.integer("num_nextn_predict_layers", default=0)
    # A whole layer (MTPBlock of DeepSeek's inference/model.py); released configs state the rate of the last: 0.
    last = (r.get("compress_ratios") or [])[count : count + 1]
    mixer = _v4_mixer(r, _OF_RATE[last[0]] if last else _SLIDING, rates)
    fields |= _v4_module(r, modules, {"mixer": mixer, "ffn": experts, "extras": [hyper]})
    return fields | _v4_formats(r)


def _v4_expert_format(r: Reader) -> str | None:
    """``expert_dtype``: what DeepSeek's release stores the experts in."""
    stored = r.get("expert_dtype") or (r.get("quantization_config") or {}).get("expert_dtype")
    if stored not in (None, "fp4", "fp8"):
        raise r.refuse(f"expert_dtype = {stored!r}", "only fp4 (MXFP4) and fp8 are known for this family")
    return stored


def _v4_formats(r: Reader) -> dict[str, Any]:
    """Keys and values in fp8 but for their rotary elements (2606.19348, and the only cache that vLLM's layout
    ``fp8_ds_mla`` takes). Experts in MXFP4 where the config says so, unless its table has a format of its own for them
    (NVIDIA's)."""
    table = r.get("quantization_config") or {}
    if _v4_expert_format(r) != "fp4" or table.get("quant_algo"):
        return {"native": {"kv": "fp8"}}
    if table:
        r.config["quantization_config"] = table | {"expert_dtype": "fp4"}
    return {"native": {"kv": "fp8", "experts": "mxfp4"}}


def _v4_module(r: Reader, modules: int, layer: Layer) -> dict[str, Any]:
    """The prediction module; where the config describes a DSpark draft the released files hold that in its place."""
    if r.optional("dspark_block_size") is None:
        kept = {"experts": "mxfp4"} if _v4_expert_format(r) == "fp4" else {}  # NVIDIA's tables leave out mtp.*
        return {"mtp": {"layers": [layer], "modules": modules, "each_stream": True, **kept}} if modules else {}
    r.skip("dspark_noise_token_id", "dspark_markov_rank")
    named = len(r.need("dspark_target_layer_ids"))
    return {"notes": [f"its files hold a DSpark draft of {named} layers in place of a prediction module: not counted"]}


def _v4_kinds(r: Reader, count: int) -> list[str]:
    """What each layer attends to, by its name or by its rate; last entries more are those of what drafts."""
    named, rates = r.items("layer_types", count), r.get("compress_ratios")
    if named is None and rates is None:
        raise r.refuse("layer_types", "it is absent, and compress_ratios too")
    if named is None:
        further = r.integer("num_nextn_predict_layers", default=0), len(r.get("dspark_target_layer_ids") or [])
        if not isinstance(rates, list) or len(rates) - count not in (0, *further):
            raise r.refuse("compress_ratios", f"it is no list with an entry for each of {count} layers")
        if unknown := [rate for rate in rates if rate not in _OF_RATE]:
            raise r.refuse(f"compress_ratios entry {unknown[0]!r}", "only 0, 4 and 128 are known")
        named = [_OF_RATE[rate] for rate in rates[:count]]
    for kind in named:
        if kind not in _OF_RATE.values():
            raise r.refuse(f"layer_types entry {kind!r}", f"only {', '.join(_OF_RATE.values())} are known here")
    return named


def _v4_rates(r: Reader) -> dict[str, int]:
    """Tokens of an entry in each kind of layer; those of the class where the config does not say."""
    table = r.table("compress_rates")
    rates = {}
    for kind, old, default in ((_SPARSE, "compress_rate_csa", 4), (_HEAVY, "compress_rate_hca", 128)):
        said = table.optional(kind) if table is not None else None
        rates[kind] = r.optional(old) or said or default
    return rates


def _v4_mixer(r: Reader, kind: str, rates: dict[str, int]) -> dict[str, Any]:
    r.only("num_key_value_heads", 1)
    head_dim = r.integer(*HEAD_DIM)
    share = r.get("partial_rotary_factor")
    rope = r.optional("qk_rope_head_dim") or int(head_dim * (64 / 512 if share is None else share))
    index: dict[str, Any] = {"heads": r.integer("index_n_heads"), "head_dim": r.integer("index_head_dim")}
    index |= {"top_k": r.integer("index_topk"), "format": INDEX_KEYS}
    mixer: dict[str, Any] = {
        "kind": "compressed_attention",
        "heads": r.integer(*HEADS),
        "head_dim": head_dim,
        "rope_dim": rope,
        "q_lora": r.integer("q_lora_rank"),
        "window": r.integer("sliding_window"),
        "groups": r.integer("o_groups"),
        "group_rank": r.integer("o_lora_rank"),
    }
    if kind == _SPARSE:
        return mixer | {"pool": {"rate": rates[kind], "overlap": True}, "indexer": index}
    return mixer | ({"pool": {"rate": rates[kind]}} if kind == _HEAVY else {})


def _v4_hashed(r: Reader, count: int) -> None:
    """Layers that route by a table of token ids: the same parameters and work as those that route by score."""
    for kind in r.items("mlp_layer_types", count) or []:
        if kind not in ("hash_moe", "moe"):
            raise r.refuse(f"mlp_layer_types entry {kind!r}", "only hash_moe and moe are known here")
    r.skip("num_hash_layers")


def glm5_next(r: Reader, d: Dialect) -> dict[str, Any]:
    """GLM-5.3-Flash: Kimi delta attention, and latent attention whose indexer chooses pools of keys, under
    hyper-connections."""
    count = r.integer(*LAYERS)
    kinds = kinds_of(r, "layer_types", count, "linear_attention", "indexed_attention") or r.need("layer_types")
    state = {"kind": "kimi_delta", "heads": r.integer("linear_num_heads"), "head_dim": r.integer("linear_head_dim")}
    state["taps"] = r.integer("linear_conv_kernel_dim")
    pool = r.integer("index_kpool")
    r.only("index_kpool_always_select_tail", True)
    if pool < 2:
        raise r.refuse(f"index_kpool = {pool}", "pools of one key, whose gates change nothing, are not known here")
    pooled = {"format": None, "pool": pool}
    own, sparse = mla(r, d), first_dense(r, d, count)
    dense = mlp(r, d) if None in sparse else None
    streams, iterations = r.integer("hc_mult"), r.integer("hc_sinkhorn_iters")
    hyper = {"kind": "hyper_connection", "streams": streams, "iterations": iterations}
    r.skip("hc_eps", "swiglu_limit", "linear_lower_bound")
    layers: list[Layer] = []
    for kind, index, experts in zip(kinds, indexers(r, count), sparse, strict=True):
        chosen = {"indexer": index | pooled} if index else {}
        mixer = state if kind == "linear_attention" else own | chosen
        layers.append({"mixer": mixer, "ffn": experts or dense, "extras": [hyper]})
    return model(r, d, layers) | {"hyper_streams": streams, "hyper_mean": True}


_CHOSEN = "minimax_m3_sparse"


def minimax_m3(r: Reader, d: Dialect) -> dict[str, Any]:
    """MiniMax-M3: grouped-query attention, in most layers to blocks that an indexer chooses; dense layers first."""
    count = r.integer(*LAYERS)
    old = r.table("sparse_attention_config")
    own = attention(r, d)
    kinds = _m3_kinds(r, old, count)
    mixers = {"full_attention": own}
    if _CHOSEN in kinds:
        mixers[_CHOSEN] = own | {"kind": "block_sparse_attention", "indexer": _m3_indexer(r, old)}
    if old is not None:
        _m3_released(old, kinds)
    r.skip("rotary_dim", "use_routing_bias", "use_gemma_norm", *_M3_INDEX)  # a buffer, and a norm of the same weight
    r.only("use_qk_norm", True)
    r.only("qk_norm_type", "per_head")
    r.only("n_shared_experts", 1)
    limited = {"activation": "swiglu_limited"}  # whatever hidden_act says (MiniMaxM3VLDenseMLP)
    r.only("hidden_act", "silu", "swigluoai")
    columns = {"d_ff": r.integer("intermediate_size"), "shared_d_ff": r.integer("shared_intermediate_size")}
    experts = {"kind": "moe", "experts": r.integer(*EXPERTS), "top_k": r.integer(*TOP_K), **columns, **limited}
    dense = {"kind": "mlp", "d_ff": r.integer("dense_intermediate_size"), **limited}
    sparse = _m3_sparse(r, count)
    layers: list[Layer] = [
        {"mixer": mixers[kind], "ffn": experts if on else dense} for kind, on in zip(kinds, sparse, strict=True)
    ]
    return model(r, d, layers) | {"notes": _m3_undrafted(r)}


def _m3_released(old: Reader, kinds: list[str]) -> None:
    """What else ``sparse_attention_config`` of released configs says: the one way of choosing that the class has."""
    old.only("use_sparse_attention", True)
    old.only("sparse_score_type", "max")
    old.only("sparse_init_block", 0)
    valueless = old.items("sparse_disable_index_value", len(kinds))
    if valueless is not None and any(kind == _CHOSEN and not off for kind, off in zip(kinds, valueless, strict=True)):
        raise old.refuse("sparse_disable_index_value", "an indexer with values of its own is not known here")
    old.require_read()


def _m3_undrafted(r: Reader) -> list[str]:
    """A note where the config counts prediction modules: no file of a release has their tensors."""
    said = {name: r.optional(name) for name in ("num_mtp_modules", "num_nextn_predict_layers")}
    named = " and ".join(f"{name} = {count}" for name, count in said.items() if count)
    return [f"{named}: no tensors of prediction modules are in the released files; none is counted"] if named else []


_M3_INDEX = {
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size",
    "index_topk_blocks": "sparse_topk_blocks",
    "index_local_blocks": "sparse_local_block",
}
"""Fields of the indexer, and their names in the ``sparse_attention_config`` of released configs."""


def _m3_indexer(r: Reader, old: Reader | None) -> dict[str, int]:
    found = {}
    for name, nested in _M3_INDEX.items():
        said = old.optional(nested) if old is not None else None
        found[name] = r.integer(name) if said is None else said
    if found["index_local_blocks"] > found["index_topk_blocks"]:
        raise r.refuse("index_local_blocks", "more blocks than are chosen")
    names = ("heads", "head_dim", "block", "top_blocks")
    return dict(zip(names, (found[name] for name in list(_M3_INDEX)[:4]), strict=True))


def _m3_kinds(r: Reader, old: Reader | None, count: int) -> list[str]:
    """What each layer attends to: ``layer_types``, else the ones of ``sparse_attention_freq``, else everything."""
    kinds = r.items("layer_types", count)
    flags = old.items("sparse_attention_freq", count) if old is not None else None
    if kinds is None:
        kinds = [_CHOSEN if on else "full_attention" for on in flags or [0] * count]
    for kind in kinds:
        if kind not in (_CHOSEN, "full_attention"):
            raise r.refuse(f"layer_types entry {kind!r}", f"only {_CHOSEN} and full_attention are known here")
    return kinds


def _m3_sparse(r: Reader, count: int) -> list[bool]:
    """Which layers are mixtures of experts: all, unless the config says."""
    kinds, flags = r.items("mlp_layer_types", count), r.items("moe_layer_freq", count)
    for kind in kinds or []:
        if kind not in ("sparse", "dense"):
            raise r.refuse(f"mlp_layer_types entry {kind!r}", "only sparse and dense are known here")
    if kinds is not None:
        return [kind == "sparse" for kind in kinds]
    return [bool(flag) for flag in flags] if flags is not None else [True] * count


def rwkv7(r: Reader, d: Dialect) -> dict[str, Any]:
    """RWKV-7 in the fields of flash-linear-attention; the first layer has no residual of values."""
    count, width = r.integer(*LAYERS), r.integer(*WIDTH)
    head_dim = r.integer("head_dim", "head_size")
    if width % head_dim:
        raise r.refuse("head_dim", f"heads of {head_dim} do not divide the width {width}")
    r.only("hidden_act", "sqrelu", "relu2")
    r.only("norm_first", True)
    r.only("norm_bias", True)
    r.only("num_heads", width // head_dim)
    ratio = r.get("hidden_ratio")
    own = r.optional(*FFN)
    if own is None and ratio is None:
        raise r.refuse("intermediate_size", "it is absent, and hidden_ratio too")
    mixer: dict[str, Any] = {
        "kind": "rwkv7",
        "heads": width // head_dim,
        "head_dim": head_dim,
        "width": width,
        "decay_rank": r.integer("decay_low_rank_dim"),
        "rate_rank": r.integer("a_low_rank_dim"),
        "gate_rank": r.integer("gate_low_rank_dim"),
    }
    value = {"value_rank": r.integer("v_low_rank_dim")}
    d_ff = int(width * ratio) if own is None else own
    mix = {"kind": "rwkv_channel_mix", "d_ff": d_ff, "width": width, "receptance": False}
    layers: list[Layer] = [{"mixer": mixer | (value if index else {}), "ffn": mix} for index in range(count)]
    return model(r, d, layers)


def mistral_large4(r: Reader, d: Dialect) -> dict[str, Any]:
    """Mistral Large 4: latent attention without a query latent, an indexer that reads the input, some layers without
    positions."""
    count = r.integer(*LAYERS)
    own = mla(r, d) | {"position_scale": True}
    sources = r.items("kv_source_layers", count)
    if sources is not None and sources != list(range(count)):
        raise r.refuse("kv_source_layers", "layers that attend to another layer's latents are not known here")
    for kind in r.items("layer_types", count) or []:
        if kind != "indexed_attention":
            raise r.refuse(f"layer_types entry {kind!r}", "only indexed_attention is known here")
    interval = r.integer("no_rope_layer_interval", default=4)
    rotated = r.items("no_rope_layers", count) or [(index + 1) % interval for index in range(count)]
    still = own | {"nope_dim": own["nope_dim"] + own["rope_dim"], "rope_dim": 0}
    sparse = first_dense(r, d, count)
    dense = mlp(r, d) if None in sparse else None
    layers: list[Layer] = []
    for index, turned, experts in zip(indexers(r, count), rotated, sparse, strict=True):
        chosen = {"indexer": index | {"reads_input": True}} if index else {}
        layers.append({"mixer": (own if turned else still) | chosen, "ffn": experts or dense})
    return model(r, d, layers)
