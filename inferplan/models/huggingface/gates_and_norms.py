"""Decoders with gates, sinks, additional norms or convolutions, which need more than a row of the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferplan.models.huggingface.decoder import (
    attention,
    decoder,
    first_dense,
    mlp,
    model,
    moe,
    qwen_sparse,
    sliding,
)
from inferplan.models.huggingface.dialect import Dialect, Layer
from inferplan.models.huggingface.latent import indexers, latent, mla
from inferplan.models.huggingface.reader import EXPERTS, FFN, HEADS, KV_HEADS, LAYERS, MOE_FFN, WIDTH, Reader
from inferplan.models.huggingface.recurrent import delta_state

Rule = Callable[[Reader, Dialect, int], list[Layer | None]]
"""Which layers are mixtures of experts."""
Build = Callable[[Reader, Dialect], dict[str, Any]]


def kinds_of(r: Reader, name: str, count: int, *known: str) -> list[str] | None:
    """A list with one of ``known`` for each layer, ``None`` where absent. Raises ``SpecError`` for another."""
    kinds = r.items(name, count)
    for kind in kinds or []:
        if kind not in known:
            raise r.refuse(f"{name} entry {kind!r}", f"only {', '.join(known)} are known here")
    return kinds


def listed(r: Reader, count: int) -> list[int | None]:
    """Which layers slide is said by ``layer_types`` alone. Raises ``SpecError`` where it is absent."""
    r.skip("sliding_window")
    r.need("layer_types")
    return [None] * count


def and_the_last(period: int) -> Callable[[Reader, int], list[int | None]]:
    """All slide but the last of every ``period`` layers and the very last (Beam)."""

    def rule(r: Reader, count: int) -> list[int | None]:
        window = r.optional("sliding_window")
        return [window if (index + 1) % period and index + 1 < count else None for index in range(count)]

    return rule


def by_kind(first_dense: str = "", shared: str = "", **fields: Any) -> Rule:
    """Which layers are sparse: ``mlp_layer_types``, else all after the first ``first_dense`` (a field's name).

    shared: the field of the columns of a shared expert. fields: further fields of the experts.
    """

    def rule(r: Reader, d: Dialect, count: int) -> list[Layer | None]:
        kinds = kinds_of(r, "mlp_layer_types", count, "dense", "sparse")
        dense = r.integer(first_dense, default=0) if first_dense else 0
        columns = (r.optional(shared) or 0) if shared else 0
        experts = moe(r, d, r.integer(*MOE_FFN), **fields, **({"shared_d_ff": columns} if columns else {}))
        if kinds is None:
            return [None if index < dense else experts for index in range(count)]
        return [experts if kind == "sparse" else None for kind in kinds]

    return rule


def shared_experts(name: str, first_dense: str = "", least: int = 0, **fields: Any) -> Rule:
    """As :func:`by_kind`; ``name`` is the number of shared experts, each as wide as a routed one; ``least`` of them."""

    def rule(r: Reader, d: Dialect, count: int) -> list[Layer | None]:
        number = r.integer(name, default=0)
        if number < least:
            raise r.refuse(f"{name} = {number}", f"its class has a meaning for {least} or more alone")
        columns = number * r.integer(*MOE_FFN)
        more = fields | ({"shared_d_ff": columns} if columns else {})
        return by_kind(first_dense, "", **more)(r, d, count)

    return rule


def ungated(r: Reader, d: Dialect, count: int) -> list[Layer | None]:
    """Qwen's rule, and a shared expert without a gate (Flint)."""
    layers = qwen_sparse(r, d, count)
    return [None if layer is None else {k: v for k, v in layer.items() if k != "shared_gate"} for layer in layers]


def aria_sparse(r: Reader, d: Dialect, count: int) -> list[Layer | None]:
    """Every layer; shared experts as wide as routed ones, whose width is the feed-forward's (Aria, Hunyuan-A13B)."""
    width = r.integer(*FFN)
    shared = r.integer("moe_num_shared_experts", "num_shared_experts", default=0)
    experts = moe(r, d, width, **({"shared_d_ff": shared * width} if shared else {}))
    return [experts] * count


def cohere_sparse(r: Reader, d: Dialect, count: int) -> list[Layer | None]:
    """As Aria's, but for the layers that ``mlp_layer_types`` calls dense (Command A+)."""
    kinds = kinds_of(r, "mlp_layer_types", count, "dense", "sparse")
    first = r.integer("first_k_dense_replace", default=0)
    experts = aria_sparse(r, d, count)
    dense = [kind == "dense" for kind in kinds] if kinds else [index < first for index in range(count)]
    return [None if flag else layer for flag, layer in zip(dense, experts, strict=True)]


def cohere_moe(r: Reader, d: Dialect) -> dict[str, Any]:
    """Command A+: dense layers have a width of their own; RMS norms where the config has their epsilon."""
    rms = r.config.get("rms_norm_eps") is not None
    wide = r.optional("prefix_dense_intermediate_size")
    fields = decoder(r, d) | {"norm": "rms" if rms else "layer_plain"}
    r.only("shared_expert_combination_strategy", "average", "sum")
    r.skip("prefix_dense_sliding_window_pattern", "expert_selection_fn")
    return _with_dense(fields, wide) if wide else fields


def _with_dense(fields: dict[str, Any], width: int) -> dict[str, Any]:
    """The dense feed-forwards of a decoder with another width."""
    for layer in walk(fields["layers"]):
        if layer["ffn"]["kind"] == "mlp":
            layer["ffn"] = layer["ffn"] | {"d_ff": width}
    return fields


def walk(layers: list[Layer]) -> list[Layer]:
    """Every layer of compressed groups, to be changed in place."""
    found: list[Layer] = []
    for layer in layers:
        found += walk(layer["pattern"]) if "pattern" in layer else [layer]
    return found


def hunyuan_moe(r: Reader, d: Dialect) -> dict[str, Any]:
    """Hunyuan-A13B: experts and a shared expert in every layer; numbers may be given layer by layer."""
    count = r.integer(*LAYERS)
    mixer = attention(r, d)
    width = r.integer(*FFN)
    wide = _one_of(r, "moe_intermediate_size") or width
    shared = _one_of(r, "num_shared_expert") or 1
    for name in ("num_experts", "moe_topk"):
        r.config[name] = _one_of(r, name)
    r.only("use_cla", False)
    r.only("use_mixed_mlp_moe", True)
    r.only("moe_layer_num_skipped", 0)
    r.skip("moe_drop_tokens", "moe_random_routing_dropped_token", "norm_type", "use_rotary_pos_emb", "cla_share_factor")
    r.skip("group_limited_greedy", "n_group", "topk_group", "mlp_bias", "eod_token_id", "attention_head_dim")
    ffn = moe(r, d, wide, shared_d_ff=shared * wide)
    return model(r, d, [{"mixer": mixer, "ffn": ffn}] * count)


def _one_of(r: Reader, name: str) -> int | None:
    """A number that a list may give for every layer, where it is the same for all."""
    value = r.get(name)
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise r.refuse(name, "it differs from layer to layer")
        value = value[0]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise r.refuse(name, f"it is {value!r}, not an integer")
    return value


def gated(r: Reader, d: Dialect) -> dict[str, Any]:
    """A gate on the output of attention, as wide as the heads (AFM, Beam): its projection has no bias."""
    r.only("attention_bias", False)
    fields = decoder(r, d)
    for layer in walk(fields["layers"]):
        layer["mixer"] = layer["mixer"] | {"output_gate": True}
    return fields


def every(**changed: dict[str, Any]) -> Build:
    """A decoder whose layers' parts have further fields: ``mixer`` and ``ffn``."""

    def build(r: Reader, d: Dialect) -> dict[str, Any]:
        fields = decoder(r, d)
        for layer in walk(fields["layers"]):
            for part, more in changed.items():
                layer[part] = layer[part] | more
        return fields

    return build


def hyperclova(r: Reader, d: Dialect) -> dict[str, Any]:
    """HyperCLOVA X: norms after attention and feed-forward too, by ``use_post_norm``."""
    fields = decoder(r, d)
    if r.flag("use_post_norm", False):
        for layer in walk(fields["layers"]):
            layer["norms"] = 4
    return fields


def laguna(r: Reader, d: Dialect) -> dict[str, Any]:
    """Laguna: query heads layer by layer, a gate a head or a channel; the router's correction is a parameter."""
    count = r.integer(*LAYERS)
    heads = r.items("num_attention_heads_per_layer", count)
    own, windows, said = attention(r, d), sliding(r, d, count), r.get("gating")
    r.only("gating", True, "per-head", "per-element", False)
    wide = {"head_gate": True} if said in (True, "per-head") else {"output_gate": True}
    if own["qkv_bias"] and "output_gate" in wide:
        raise r.refuse("attention_bias = True", "a gate as wide as the heads has no bias, and queries have one")
    sparse = by_kind("", "shared_expert_intermediate_size", router_bias=True)(r, d, count)
    dense = mlp(r, d) if None in sparse else None
    r.skip("moe_apply_router_weight_on_input", "moe_router_logit_softcapping", "moe_routed_scaling_factor", *FFN)
    layers: list[Layer] = []
    for index, (window, experts) in enumerate(zip(windows, sparse, strict=True)):
        mixer = own | wide | ({"heads": heads[index]} if heads else {}) | ({"window": window} if window else {})
        layers.append({"mixer": mixer, "ffn": experts or dense})
    return model(r, d, layers)


def mimo(r: Reader, d: Dialect) -> dict[str, Any]:
    """MiMo-V2-Flash: windowed layers have twice the KV heads, and sinks; values are narrower than keys."""
    count = r.integer(*LAYERS)
    _mimo_released(r, count)
    own = attention(r, d) | {"value_dim": r.integer("v_head_dim")}
    windows = sliding(r, d, count)
    wide = {"kv_heads": r.integer("swa_num_key_value_heads", default=2 * own["kv_heads"]), "sinks": True}
    sparse = by_kind("first_k_dense_replace")(r, d, count)
    dense = mlp(r, d) if None in sparse else None
    for name, same in (("num_attention_heads", "heads"), ("head_dim", "head_dim"), ("v_head_dim", "value_dim")):
        r.only(f"swa_{name}", own[same])
    r.only("add_swa_attention_sink_bias", True)
    r.only("attention_projection_layout", "split", "fused_qkv")
    r.skip("attention_value_scale", "swa_rope_theta")
    layers: list[Layer] = [
        {"mixer": own | (wide | {"window": window} if window else {}), "ffn": experts or dense}
        for window, experts in zip(windows, sparse, strict=True)
    ]
    return model(r, d, layers)


def _mimo_released(r: Reader, count: int) -> None:
    """The fields of the released config in the names of its class (``configuration_mimo_v2_flash.py``).

    ``sliding_window_size`` counts the tokens before the query, ``sliding_window`` of the class the query too.
    """
    lists = {"hybrid_layer_pattern": ("full_attention", "sliding_attention"), "moe_layer_freq": ("dense", "sparse")}
    for (old, kinds), name in zip(lists.items(), ("layer_types", "mlp_layer_types"), strict=True):
        flags = r.items(old, count)
        if flags is None:
            continue
        if any(flag not in (0, 1) for flag in flags):
            raise r.refuse(old, "its entries are not all 0 or 1")
        said = [kinds[flag] for flag in flags]
        if r.items(name, count) not in (None, said):
            raise r.refuse(f"{old} and {name}", "they disagree")
        r.config[name] = said
    before = r.optional("sliding_window_size")
    if before is not None:
        r.only("sliding_window", before, before + 1)
        r.only("attention_chunk_size", before)
        r.config["sliding_window"] = before + 1


def conv_hybrid(r: Reader, d: Dialect) -> dict[str, Any]:
    """LFM2 and LFM3: gated short convolutions, and attention where ``layer_types`` says."""
    count, width = r.integer(*LAYERS), r.integer(*WIDTH)
    kinds = kinds_of(r, "layer_types", count, "conv", "full_attention", "sliding_attention")
    places = r.get("full_attn_idxs")
    if kinds is None:
        places = r.need("full_attn_idxs") if places is None else places
        kinds = ["full_attention" if index in places else "conv" for index in range(count)]
    own = attention(r, d) | ({"head_gate": True} if r.flag("use_attention_gate", False) else {})
    taps, bias = r.integer("conv_L_cache"), r.flag("conv_bias", False)
    known = {"conv": {"kind": "short_conv", "width": width, "taps": taps, "bias": bias}, "full_attention": own}
    if "sliding_attention" in kinds:
        known["sliding_attention"] = own | {"window": r.integer("sliding_window")}
    r.skip("sliding_window", "conv_dim", "conv_use_xavier_init", "use_pos_enc", "conv_dim_out", "block_use_swiglu")
    r.skip("block_use_xavier_init", "block_mlp_init_scale", "block_out_init_scale", "block_norm_eps", "theta")
    norms = {"norms": 4} if r.flag("use_sandwich_norm", False) else {}
    sparse = _conv_sparse(r, d, count)
    dense = mlp(r, d, _conv_width(r)) if None in sparse else None
    layers: list[Layer] = [
        {"mixer": known[kind], "ffn": experts or dense} | norms for kind, experts in zip(kinds, sparse, strict=True)
    ]
    return model(r, d, layers)


def _conv_sparse(r: Reader, d: Dialect, count: int) -> list[Layer | None]:
    """Experts after the first ``num_dense_layers`` (LFM2-MoE); the correction of its router is a buffer."""
    if r.optional(*EXPERTS) is None:
        return [None] * count
    r.skip("use_expert_bias")
    return by_kind("num_dense_layers")(r, d, count)


def _conv_width(r: Reader) -> int:
    """The columns of LFM2's feed-forward: two thirds, times a factor, rounded up, where it adjusts them."""
    width = r.integer("block_ff_dim", *FFN)
    multiple, factor = r.optional("block_multiple_of"), r.get("block_ffn_dim_multiplier")
    if not r.flag("block_auto_adjust_ff_dim", False):
        return width
    width = int(2 * width / 3)
    if factor is not None:
        width = int(factor * width)
        width = -(-width // (multiple or 1)) * (multiple or 1)
    return width


def post_norm_latent(r: Reader, d: Dialect) -> dict[str, Any]:
    """A.X K1: latent attention, and a norm after the experts."""
    fields = latent(r, d)
    for layer in walk(fields["layers"]):
        if layer["ffn"]["kind"] == "moe":
            layer["norms"] = 3
    return fields


def ling(r: Reader, d: Dialect) -> dict[str, Any]:
    """Ling 3 and Ring: Kimi delta attention with full gates, latent attention with a gate a head every few layers."""
    count, heads = r.integer(*LAYERS), r.integer(*HEADS)
    kinds = kinds_of(r, "layer_types", count, "linear_attention", "full_attention")
    if kinds is None:
        period = r.integer("layer_group_size")
        kinds = ["linear_attention" if (index + 1) % period else "full_attention" for index in range(count)]
    r.only("linear_num_heads", heads)
    r.skip("layer_group_size", "num_key_value_heads", "num_expert_group")
    r.skip("kda_safe_gate", "kda_lower_bound", "moe_renormalize", "mtp_loss_scaling_factor", "first_k_dense_replace")
    # The class writes the width of a linear head beside the one of the rotary key, for which head_dim stands.
    width = r.integer("linear_head_dim") if r.get("linear_head_dim") is not None else r.integer("head_dim")
    state = {"kind": "kimi_delta", "heads": heads, "head_dim": width, "full_gates": True}
    state["taps"] = r.integer("short_conv_kernel_size", "linear_conv_kernel_dim")
    own = mla(r, d) | {"gate": "head"}
    sparse = shared_experts("num_shared_experts", "first_k_dense_replace")(r, d, count)
    dense = mlp(r, d) if None in sparse else None
    r.skip("qk_head_dim", "head_dim")
    layers: list[Layer] = [
        {"mixer": own if kind == "full_attention" else state, "ffn": experts or dense}
        for kind, experts in zip(kinds, sparse, strict=True)
    ]
    modules = r.integer("num_nextn_predict_layers", default=0)
    notes = {"notes": ["the prediction module (num_nextn_predict_layers) is left out"]} if modules else {}
    return model(r, d, layers) | notes


def olmo_hybrid(r: Reader, d: Dialect) -> dict[str, Any]:
    """Olmo Hybrid: gated delta nets, and attention where ``layer_types`` says."""
    count = r.integer(*LAYERS)
    kinds = kinds_of(r, "layer_types", count, "linear_attention", "full_attention") or r.need("layer_types")
    state = delta_state(r)
    r.skip("linear_allow_neg_eigval", *(f"linear_{name}" for name in ("a_log_min", "a_log_max", "dt_min", "dt_max")))
    r.skip("linear_dt_init_floor")
    known, ffn = {"linear_attention": state, "full_attention": attention(r, d)}, mlp(r, d)
    return model(r, d, [{"mixer": known[kind], "ffn": ffn} for kind in kinds])


def streamed(r: Reader, d: Dialect) -> dict[str, Any]:
    """Hy4: latent attention with an indexer, sinks and gates, under hyper-connections whose streams do not mix."""
    streams = r.integer("hc_mult")
    r.skip("hc_eps", "hc_magnitude", "swiglu_limit", "learnable_sink_init")
    fields = latent(r, d)
    hyper = {"kind": "hyper_connection", "streams": streams, "carried": False}
    for layer in walk(fields["layers"]):
        layer["extras"] = [hyper]
    return fields | {"hyper_streams": streams}


def dots_note(r: Reader, d: Dialect) -> dict[str, Any]:
    """dots3 Note: windowed layers have heads of their own (``per_layer_config``), the others an indexer."""
    count, base = r.integer(*LAYERS), mla(r, d) | {"gate": "head", "rope_norm": True}
    kinds = kinds_of(r, "layer_types", count, "indexed_attention", "sliding_attention", "full_attention")
    if kinds is None:
        kinds = r.need("layer_types")
    other, index = r.table("per_layer_config"), indexers(r, count)[0]
    if other is None and "sliding_attention" in kinds:
        raise r.refuse("per_layer_config", "it is absent: its class gives windowed layers heads of their own")
    if index is None:
        r.need("index_n_heads")
    sparse = first_dense(r, d, count)
    wide = r.optional("shared_experts_intermediate_size")
    if wide is not None:
        columns = wide * r.integer("n_shared_experts", default=0)
        sparse = [None if layer is None else layer | {"shared_d_ff": columns} for layer in sparse]
    dense = mlp(r, d) if None in sparse else None
    layers: list[Layer] = []
    for place, (kind, experts) in enumerate(zip(kinds, sparse, strict=True)):
        mixer = base | _own_heads(other, place)
        mixer |= {"indexer": index} if kind == "indexed_attention" else {}
        mixer |= {"window": r.integer("sliding_window")} if kind == "sliding_attention" else {}
        layers.append({"mixer": mixer, "ffn": experts or dense})
    r.skip("sliding_window")
    return model(r, d, layers)


def _own_heads(other: Reader | None, place: int) -> dict[str, Any]:
    """What ``per_layer_config`` says of the latent attention of one layer."""
    own = None if other is None else other.layer_table(place)
    if own is None:
        return {}
    names = {"heads": "num_attention_heads", "kv_lora": "kv_lora_rank", "nope_dim": "qk_nope_head_dim"}
    names |= {"q_lora": "q_lora_rank", "rope_dim": "qk_rope_head_dim", "value_dim": "v_head_dim"}
    found = {ours: own.integer(theirs) for ours, theirs in names.items() if own.get(theirs) is not None}
    own.skip("num_key_value_heads", "head_dim", "qk_head_dim", "rope_parameters")
    own.require_read()
    return found


def step(r: Reader, d: Dialect) -> dict[str, Any]:
    """Step 3.5 and 3.7 Flash: windowed layers have query heads of their own, every layer a gate a head."""
    count = r.integer(*LAYERS)
    modules = _step_released(r, count)
    own, windows = attention(r, d) | {"head_gate": True}, sliding(r, d, count)
    r.only("gating", True, "per-head")
    heads = r.optional("num_sliding_attention_heads")
    layers_of = r.table("per_layer_config")
    r.skip(
        "swiglu_limits", "swiglu_limits_shared", "moe_router_scaling_factor", "mtp_layer_types", "mtp_mlp_layer_types"
    )
    r.only("mlp_bias", False)
    r.only("use_bidirectional_attention", False)
    if r.config.get("n_routed_experts") is not None:
        r.skip("num_local_experts")
        r.config.pop("num_local_experts", None)
    sparse = by_kind("", "share_expert_dim")(r, d, count)
    dense = mlp(r, d) if None in sparse else None
    layers: list[Layer] = []
    for place, (window, experts) in enumerate(zip(windows, sparse, strict=True)):
        mixer = own | ({"window": window, "heads": heads or own["heads"]} if window else {})
        mixer |= _own_count(layers_of, place)
        layers.append({"mixer": mixer, "ffn": experts or dense})
    notes = [f"the prediction modules (num_nextn_predict_layers = {modules}) are not counted"] if modules else []
    return model(r, d, layers) | {"notes": notes}


_STEP = {
    "moe_num_experts": "n_routed_experts",
    "num_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok",
    "num_attention_groups": "num_key_value_heads",
    "share_expert_dims": "share_expert_dim",
}
"""Names of the released configs, and those of the class (its ``attribute_map``)."""


def _step_released(r: Reader, count: int) -> int:
    """The released config in the names of its class (``configuration_step3p7.py``); the number of prediction modules.

    Lists have entries for the modules behind those of the layers.
    """
    for old, name in _STEP.items():
        if (value := r.optional(old)) is not None:
            r.only(name, value)
            r.config[name] = value
            r.config.pop(old)
    modules = r.integer("num_nextn_predict_layers", "num_mtp_layers", default=0)
    for name in ("layer_types", "mlp_layer_types"):
        kinds = r.get(name)
        if isinstance(kinds, list) and len(kinds) == count + modules:
            r.config[name] = kinds[:count]
    if r.get("layer_types") is None:
        r.config["layer_types"] = ["full_attention"] * count
    listed, first = r.get("moe_layers_enum"), r.integer("first_k_dense_replace", default=3)
    if r.get("mlp_layer_types") is None:
        places = {int(one) for one in listed.split(",") if one.strip()} if isinstance(listed, str) else listed
        sparse = range(first, count) if places is None else places
        r.config["mlp_layer_types"] = ["sparse" if index in sparse else "dense" for index in range(count)]
    other = r.table("attention_other_setting")
    if other is not None:
        other.only("attention_type", "sliding_attention")
        other.only("num_attention_groups", r.integer(*KV_HEADS))
        other.only("head_dim", r.integer("head_dim"))
        other.skip("true_head_dim")
        r.config.setdefault("num_sliding_attention_heads", other.integer("num_attention_heads"))
        if other.unread():
            raise other.refuse(other.unread()[0], "this field of a known family is new")
    r.only("n_shared_experts", 1)
    return modules


def muse_spark(r: Reader, d: Dialect) -> dict[str, Any]:
    """Muse Spark: gated attention, experts of a narrower width between norms, a gate a channel on each residual."""
    count = r.integer(*LAYERS)
    own = attention(r, d) | {"qk_norm": "plain", "out_norm": "plain"}
    windows, turned = sliding(r, d, count), r.items("layer_rope_theta", count) or r.need("layer_rope_theta")
    experts = moe(r, d, r.integer(*MOE_FFN), latent=r.integer("moe_hidden_size"), latent_norms=True)
    kinds = kinds_of(r, "mlp_layer_types", count, "dense", "sparse") or r.need("mlp_layer_types")
    parts = {"norms": 4, "norm_scales": 3, "extras": [{"kind": "residual_gate"}]}
    layers: list[Layer] = []
    for window, theta, kind in zip(windows, turned, kinds, strict=True):
        mixer = own | {"rotary": bool(theta)} | ({"window": window} if window else {})
        layers.append({"mixer": mixer, "ffn": experts if kind == "sparse" else mlp(r, d), **parts})
    r.skip(*FFN, "qk_scale_factor", "post_norm_eps", "output_multiplier", "residual_gate_temperature")
    return model(r, d, layers) | {"ends": {"tensors": {"final_norm.scale": [r.integer(*WIDTH)]}}}


def _own_count(other: Reader | None, place: int) -> dict[str, int]:
    own = None if other is None else other.layer_table(place)
    if own is None:
        return {}
    found = {"heads": own.integer("num_attention_heads")}
    own.require_read()
    return found


def longcat(r: Reader, d: Dialect) -> dict[str, Any]:
    """LongCat-Flash: two of latent attention and feed-forward a layer; experts beside the first, some of which copy."""
    r.config |= {"intermediate_size": r.integer("ffn_hidden_size")} | (
        {"num_hidden_layers": r.integer("num_layers")} if r.optional("num_hidden_layers") is None else {}
    )
    r.skip("ffn_hidden_size", "num_layers")
    width = r.integer("expert_ffn_hidden_size")
    r.only("zero_expert_type", "identity")
    r.skip(
        "attention_method", "mla_scale_q_lora", "mla_scale_kv_lora", "moe_topk", "router_bias", "num_key_value_heads"
    )
    zero = r.integer("zero_expert_num", default=0)
    experts = {"kind": "moe", "experts": r.integer("n_routed_experts"), "top_k": r.integer("moe_topk"), "d_ff": width}
    fields = latent(r, d)
    (layer,) = walk(fields["layers"])[:1]
    layer = {key: value for key, value in layer.items() if key != "repeat"}
    pair = [layer | {"extras": [experts | ({"zero_experts": zero} if zero else {})]}, layer]
    return fields | {"layers": [{"repeat": r.integer(*LAYERS), "pattern": pair}]}


def looped(r: Reader, d: Dialect) -> dict[str, Any]:
    """HRM: two stacks run in cycles, ``H_cycles`` times ``L_cycles`` of the lower and one of the higher."""
    depth, high, low = (r.integer(name) for name in ("num_layers_per_stack", "H_cycles", "L_cycles"))
    mixer = attention(r, d) | {"output_gate": True}
    layer: Layer = {"mixer": mixer, "ffn": mlp(r, d), "norms": 0}
    count = r.integer("num_hidden_layers")
    if count != depth * high * (low + 1):
        raise r.refuse("num_hidden_layers", f"it is {count}, not {high} times {low + 1} stacks of {depth}")
    r.only("prefix_lm", True, False)
    r.skip("L_bp_cycles")
    own = {**layer, "repeat": depth}
    again = own | {"shared": True}
    first = [own, *([again] * (low - 1)), own]
    later = [again] * ((high - 1) * (low + 1))
    fields = model(r, d, [layer])
    vector = {"z_L": [r.integer(*WIDTH)]}
    return fields | {"layers": [*first, *later], "final_norm": False, "ends": {"tensors": vector}}
