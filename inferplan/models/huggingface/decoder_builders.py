"""Decoders of families that need more than a row of the table: one function each, called as ``Dialect.build``."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.decoder import activation, attention, decoder, mlp, model, moe, sliding
from inferplan.models.huggingface.dialect import Dialect, Layer, compress, flag, untimed
from inferplan.models.huggingface.reader import EXPERTS, FFN, HEADS, KV_HEADS, LAYERS, TOP_K, WIDTH, Reader


def falcon(r: Reader, d: Dialect) -> dict[str, Any]:
    """Falcon: parallel or not, one or two norms, multi-query or grouped by ``new_decoder_architecture``."""
    new = r.flag("new_decoder_architecture", False)
    parallel = r.flag("parallel_attn", True) or new
    heads, width, count = r.integer(*HEADS), r.integer(*WIDTH), r.integer(*LAYERS)
    multi = r.flag("multi_query", True)
    grouped = r.optional(*KV_HEADS)
    if new and grouped is None:
        r.need(*KV_HEADS)
    norms = r.integer("num_ln_in_parallel_attn", default=2 if new else 1) if parallel else 2
    bias = r.flag("bias", False)
    r.skip("apply_residual_connection_post_layernorm")
    alibi = r.flag("alibi", False)
    mixer = {
        "kind": "attention",
        "heads": heads,
        "kv_heads": (grouped if new else 1 if multi else heads),
        "head_dim": width // heads,
        "rotary": not alibi,
        "qkv_bias": bias,
        "out_bias": bias,
    }
    ffn = {
        "kind": "mlp",
        "d_ff": r.integer(*FFN, default=4 * width),
        "gated": False,
        "bias": bias,
        "activation": activation(r, d),
    }
    layer: Layer = {"mixer": mixer, "ffn": ffn, "norms": norms, "parallel": parallel}
    return model(r, d, [layer] * count)


def chatglm(r: Reader, d: Dialect) -> dict[str, Any]:
    """ChatGLM 2 and 3, GLM-4-9B: a padded vocabulary, grouped queries by ``multi_query_attention``."""
    r.only("rmsnorm", True)
    r.only("post_layer_norm", True)
    r.only("apply_residual_connection_post_layernorm", False)
    r.skip("apply_query_key_layer_scaling", "original_rope", "fp32_residual_connection", "interleaved_qkv")
    r.skip("pre_seq_len", "prefix_projection", "quantization_bit")
    grouped = r.integer("multi_query_group_num") if r.flag("multi_query_attention", False) else r.integer(*HEADS)
    bias = r.flag("add_bias_linear", False)
    mixer = {
        "kind": "attention",
        "heads": r.integer(*HEADS),
        "kv_heads": grouped,
        "head_dim": r.integer("kv_channels"),
        "qkv_bias": bias or r.flag("add_qkv_bias", False),
        "out_bias": bias,
    }
    vocab = r.integer("padded_vocab_size", "vocab_size")
    r.config["vocab_size"] = vocab
    ffn = mlp(r, d) | {"bias": bias}
    return model(r, d, [{"mixer": mixer, "ffn": ffn}] * r.integer(*LAYERS))


def opt(r: Reader, d: Dialect) -> dict[str, Any]:
    """OPT: positions start at 2. opt-350m has a narrower embedding, and norms after each part, so none at the end."""
    narrow = r.integer("word_embed_proj_dim", default=r.integer(*WIDTH))
    before = r.flag("do_layer_norm_before", True)
    if not r.flag("enable_bias", True) or not r.flag("layer_norm_elementwise_affine", True):
        raise r.refuse(
            "enable_bias or layer_norm_elementwise_affine = False", "only biased layers are known (Galactica)"
        )
    final = before and not r.flag("_remove_final_layer_norm", False)
    return decoder(r, d) | {"final_norm": final, "embedding_width": narrow if narrow != r.integer(*WIDTH) else None}


def bigcode(r: Reader, d: Dialect) -> dict[str, Any]:
    """GPT-BigCode: multi-query unless told otherwise."""
    fields = decoder(r, d)
    for layer in fields["layers"]:  # whatever num_key_value_heads says, which the class writes and does not read
        layer["mixer"]["kv_heads"] = 1 if r.flag("multi_query", True) else layer["mixer"]["heads"]
    return fields


def mpt(r: Reader, d: Dialect) -> dict[str, Any]:
    """MPT: ALiBi, no biases; ``attn_config`` holds the variants."""
    options = r.table("attn_config") or Reader({}, r.name, "attn_config.")
    if not options.flag("alibi", True):
        raise r.refuse("attn_config.alibi = False", "learned positions are not known for this family")
    options.only("attn_type", "multihead_attention")
    options.only("qk_ln", False)
    options.skip("attn_impl", "attn_uses_sequence_id", "softmax_scale", "prefix_lm", "attn_bias_max", "model_type")
    heads = r.integer(*HEADS)
    grouped = options.integer("kv_n_heads", default=heads)
    r.only("no_bias", True)
    r.skip(
        "learned_pos_emb",
        "norm_type",
        "init_config",
        "embedding_fraction",
        "verbose",
        "low_precision_layernorm",
        "layer_norm_type",
    )
    r.only("norm_type", "low_precision_layernorm", "layernorm")
    options.require_read()
    r.only("expansion_ratio", 4)  # transformers builds four widths whatever is said
    mixer = {**attention(r, d), "kv_heads": grouped}
    ffn = mlp(r, d, 4 * r.integer(*WIDTH))
    return model(r, d, [{"mixer": mixer, "ffn": ffn}] * r.integer(*LAYERS))


def qwen1(r: Reader, d: Dialect) -> dict[str, Any]:
    """Qwen 1: ``intermediate_size`` is twice the width of each matrix."""
    fields = decoder(r, d)
    r.only("no_bias", True)
    r.skip("padded_vocab_size")
    for layer in fields["layers"]:
        layer["ffn"]["d_ff"] //= 2
    return fields


def llada(r: Reader, d: Dialect) -> dict[str, Any]:
    """LLaDA: a Llama block without a mask, denoised block by block."""
    fields = decoder(r, d)
    fields["vocab"] = r.integer("embedding_size", "vocab_size")
    if r.flag("include_bias", False) or r.flag("include_qkv_bias", False):
        raise r.refuse("include_bias or include_qkv_bias", "only layers without biases are known")
    # The defaults of the reference generate() (github.com/ML-GSAI/LLaDA, generate.py): 128 steps for 128 tokens in
    # blocks of 32, so 32 steps a block.
    fields["generation"] = {"kind": "diffusion", "block": 32, "steps": 32}
    return fields


def stablelm(r: Reader, d: Dialect) -> dict[str, Any]:
    """StableLM: parallel or not, by ``use_parallel_residual``."""
    fields = decoder(r, d)
    if r.flag("use_parallel_residual", False):
        for layer in fields["layers"]:
            layer |= {"parallel": True, "norms": 1}
    return fields


def neox(r: Reader, d: Dialect) -> dict[str, Any]:
    """GPT-NeoX: two norms whether or not the parts are parallel."""
    fields = decoder(r, d)
    for layer in fields["layers"]:
        layer |= {"parallel": r.flag("use_parallel_residual", True), "norms": 2}
    return fields


def dbrx(r: Reader, d: Dialect) -> dict[str, Any]:
    """DBRX: two nested tables."""
    options, experts = r.need_table("attn_config"), r.need_table("ffn_config")
    options.skip("clip_qkv", "rope_theta", "model_type", "attn_pdrop")
    experts.only("hidden_size", r.integer(*WIDTH))
    experts.skip("moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights", "ffn_act_fn", "model_type")
    mixer = {**attention(r, d), "kv_heads": options.integer("kv_n_heads")}
    ffn = moe(experts, d, experts.integer("ffn_hidden_size"))
    for table in (options, experts):
        table.require_read()
    return model(r, d, [{"mixer": mixer, "ffn": ffn}] * r.integer(*LAYERS))


def llama4(r: Reader, d: Dialect) -> dict[str, Any]:
    """Llama 4: three of four layers attend in chunks with rotary positions, the fourth to everything without."""
    count = r.integer(*LAYERS)
    rotary = r.items("no_rope_layers", count) or [(index + 1) % 4 != 0 for index in range(count)]
    kinds = r.items("layer_types", count)
    chunk, step = r.optional("attention_chunk_size"), r.integer("interleave_moe_layer_step")
    r.flag("use_qk_norm", True)  # an L2 norm without parameters
    sparse = r.get("moe_layers")
    if sparse is None:  # an empty list says that no layer has experts (Llama Guard 4)
        sparse = list(range(step - 1, count, step)) if step else []
    width = r.integer(*FFN)
    r.skip(*EXPERTS, *TOP_K)
    experts = moe(r, d, width, shared_d_ff=width) if sparse else None
    dense = mlp(r, d, r.integer("intermediate_size_mlp"))
    layers: list[Layer] = []
    for index in range(count):
        local = kinds[index] == "chunked_attention" if kinds else bool(rotary[index])
        mixer = attention(r, d) | {"rotary": bool(rotary[index])} | ({"chunk": chunk} if local and chunk else {})
        layers.append({"mixer": mixer, "ffn": experts if index in sparse else dense})
    return model(r, d, layers)


def helium(r: Reader, d: Dialect) -> dict[str, Any]:
    """Helium: the output projection is as wide as the model on both sides."""
    heads, width, dim = r.integer(*HEADS), r.integer(*WIDTH), r.optional("head_dim")
    if dim is not None and heads * dim != width:
        raise r.refuse("head_dim", f"{heads} heads of {dim} are not the width {width} of the output projection")
    return decoder(r, d)


def hunyuan(r: Reader, d: Dialect) -> dict[str, Any]:
    """Hunyuan-Large: with ``use_cla``, the first of every ``cla_share_factor`` layers owns the cache."""
    count = r.integer(*LAYERS)
    share = r.integer("cla_share_factor") if r.flag("use_cla", False) else 1
    mixer, width = attention(r, d), r.integer(*FFN)
    if r.optional(*EXPERTS) in (None, 1):
        ffn = mlp(r, d)
    else:
        shared = r.integer("num_shared_expert") if r.flag("use_mixed_mlp_moe", False) else 0
        ffn = moe(r, d, width, shared_d_ff=shared * width)
    layers: list[Layer] = [
        {"mixer": mixer | ({"shares_cache": True} if index % share else {}), "ffn": ffn} for index in range(count)
    ]
    return model(r, d, layers)


def gemma3n(r: Reader, d: Dialect) -> dict[str, Any]:
    """Gemma 3n: AltUp streams, LAuReL, per-layer embeddings; the last ``num_kv_shared_layers`` have no cache."""
    count = r.integer(*LAYERS)
    own = attention(r, d) | {"value_norm": True}
    windows = sliding(r, d, count)
    widths = r.get(*FFN)
    widths = widths if isinstance(widths, list) else [r.integer(*FFN)] * count
    if len(widths) != count:
        raise r.refuse("intermediate_size", f"it has {len(widths)} entries for {count} layers")
    first_shared = count - r.integer("num_kv_shared_layers")
    streams, rank = r.integer("altup_num_inputs"), r.integer("laurel_rank")
    width, rows = r.integer("hidden_size_per_layer_input"), r.integer("vocab_size_per_layer_input")
    r.only("altup_correct_scale", True)
    r.skip("activation_sparsity_pattern", "altup_active_idx", "altup_coef_clip")
    extras = [
        {"kind": "altup", "streams": streams},
        {"kind": "laurel", "rank": rank},
        {"kind": "per_layer_input", "width": width},
    ]
    layers: list[Layer] = []
    for index in range(count):
        window = {"window": windows[index]} if windows[index] else {}
        shares = {"shares_cache": True} if index >= first_shared else {}
        layers.append({"norms": 4, "mixer": own | window | shares, "ffn": mlp(r, d, widths[index]), "extras": extras})
    return model(r, d, layers) | {"streams": streams, "per_layer_embedding": {"width": width, "vocab": rows}}


def gemma4(r: Reader, d: Dialect) -> dict[str, Any]:
    """Gemma 4: global layers have other heads; some share a cache; per-layer embeddings; experts beside the dense."""
    count = r.integer(*LAYERS)
    kinds = r.items("layer_types", count) or ["full_attention" if index % 6 == 5 else "local" for index in range(count)]
    kinds[-1] = "full_attention"
    window, first_shared = r.integer("sliding_window"), count - r.integer("num_kv_shared_layers", default=0)
    same, wide = r.flag("attention_k_eq_v", False), r.flag("use_double_wide_mlp", False)
    local = attention(r, d)
    other = r.table("per_layer_config")
    r.only("use_bidirectional_attention", "vision")
    # Gemma 4 unified has no such field, and no such embeddings.
    off = r.config.get("hidden_size_per_layer_input", 0) is None or "unified" in str(r.config.get("model_type"))
    width = 0 if off else r.integer("hidden_size_per_layer_input")
    rows = r.integer("vocab_size_per_layer_input") if width else 0
    extras: list[Layer] = [{"kind": "per_layer_input", "width": width}] if width else []
    experts = r.flag("enable_moe_block", False)
    if experts:
        sizes = {"experts": r.integer("num_experts"), "top_k": r.integer("top_k_experts")}
        inner = {"d_ff": r.integer("moe_intermediate_size"), "activation": activation(r, d)}
        extras.append({"kind": "moe", "router_scales": True, **sizes, **inner})
    r.skip("num_experts", "top_k_experts", "moe_intermediate_size", "vocab_size_per_layer_input")
    layers: list[Layer] = []
    for index, kind in enumerate(kinds):
        mixer = local | {"window": window}
        if kind == "full_attention":
            mixer = local | _global_heads(r, local, other, index) | ({"value_from_key": True} if same else {})
        shares = index >= first_shared
        d_ff = r.integer(*FFN) * (2 if shares and wide else 1)
        mixer |= {"shares_cache": True, "value_from_key": False} if shares else {}
        layers.append({"norms": 7 if experts else 4, "mixer": mixer, "ffn": mlp(r, d, d_ff), "extras": extras})
    table = {"per_layer_embedding": {"width": width, "vocab": rows}} if width else {}
    return model(r, d, layers) | table


def _global_heads(r: Reader, local: dict[str, Any], other: Reader | None, index: int) -> dict[str, Any]:
    """The heads of a global layer: from ``per_layer_config``, or from the fields of the released configs."""
    if other is not None:
        own = other.layer_table(index) or Reader({}, r.name)
        return {
            "head_dim": own.integer("head_dim", default=local["head_dim"]),
            "kv_heads": own.integer("num_key_value_heads", default=local["kv_heads"]),
        }
    kv_heads = r.optional("num_global_key_value_heads") if r.flag("attention_k_eq_v", False) else None
    r.skip("num_global_key_value_heads")
    return {"head_dim": r.integer("global_head_dim"), "kv_heads": kv_heads or local["kv_heads"]}


def block_configs(r: Reader, d: Dialect) -> dict[str, Any]:
    """Nemotron-NAS and DeciLM: every layer has its own attention and feed-forward, a matrix instead, or neither."""
    count, heads, width = r.integer(*LAYERS), r.integer(*HEADS), r.integer(*WIDTH)
    blocks = r.items("block_configs", count)
    if blocks is None:
        blocks = r.need("block_configs")
    r.skip(*KV_HEADS, *FFN, "num_key_value_heads_per_layer")
    layers: list[Layer] = []
    for index, block in enumerate(blocks):
        layer: Layer = {}
        mixer = _part(Reader(block, r.name, f"block_configs.{index}."), "attention")
        if mixer is not None and mixer.flag("replace_with_linear", False):
            layer["mixer"] = {"kind": "linear"}
        elif mixer is not None:
            kv_heads = heads // mixer.integer("n_heads_in_group")
            layer["mixer"] = {
                "kind": "attention",
                "heads": heads,
                "kv_heads": kv_heads,
                "head_dim": width // heads,
                "qkv_bias": flag(r, d.qkv_bias),
                "out_bias": flag(r, d.out_bias),
            } | ({"window": mixer.integer("window_length")} if mixer.get("window_length") else {})
        ffn = _part(Reader(block, r.name, f"block_configs.{index}."), "ffn")
        if ffn is not None and ffn.flag("replace_with_linear", False):
            layer["ffn"] = {"kind": "linear"}
        elif ffn is not None:
            d_ff = ffn.optional("intermediate_size") or -(-int(2 * ffn.need("ffn_mult") * width / 3) // 256) * 256
            layer["ffn"] = mlp(r, d, d_ff)
        for part in (mixer, ffn):
            if part is not None:
                part.skip("n_heads_in_group", "ffn_mult")
                part.require_read()
        if layer:
            layers.append(layer)
    return model(r, d, layers)


def _part(block: Reader, name: str) -> Reader | None:
    """The table of one part, ``None`` when it is left out."""
    part = block.table(name)
    if part is None:
        block.need(name)
    return None if part is None or part.flag("no_op", False) else part


_DRAFTS = "it drafts for another model, whose keys and values it attends to"


def assistant(r: Reader, d: Dialect) -> dict[str, Any]:
    """Gemma 4's assistants: Gemma 4's layers without keys and values, between projections from and to their model."""
    text = r.table("text_config")
    if text is None:
        raise r.refuse("text_config", "it is absent, and describes the layers")
    r.config = {**text.config, **r.config}
    count, width, other = r.integer(*LAYERS), r.integer(*WIDTH), r.integer("backbone_hidden_size")
    shared = r.integer("num_kv_shared_layers", default=0)
    if shared not in (0, count):
        raise r.refuse("num_kv_shared_layers", f"it is {shared}, and all {count} layers read another model's cache")
    r.config |= {"num_kv_shared_layers": count, "use_bidirectional_attention": None}
    fields = gemma4(r, d)
    tensors = {"draft.in": [width, 2 * other], "draft.out": [other, width]}
    if r.flag("use_ordered_embeddings", False):
        tensors |= {"centroids": [r.integer("num_centroids"), width]}
    r.skip("num_centroids", "centroid_intermediate_top_k")
    first, *rest = [layer for group in fields["layers"] for layer in _unrolled(group)]
    first = {**first, "extras": [*first.get("extras", []), untimed(_DRAFTS, tensors=tensors, width=2 * other)]}
    return fields | {"layers": compress([first, *rest])}


def _unrolled(group: Layer) -> list[Layer]:
    """The layers that a group stands for."""
    inner = group.get("pattern", [{key: value for key, value in group.items() if key != "repeat"}])
    once = [layer for one in inner for layer in (_unrolled(one) if "pattern" in group else [one])]
    return once * int(group.get("repeat", 1))
