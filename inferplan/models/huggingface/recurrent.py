"""Families with a recurrent state: state-space models, linear attention and their hybrids with attention."""

from __future__ import annotations

from math import ceil
from typing import Any

from inferplan.models.huggingface.decoder import all_sparse, attention, first_dense, mlp, model, moe, qwen_sparse
from inferplan.models.huggingface.dialect import Dialect, Layer
from inferplan.models.huggingface.latent import mla
from inferplan.models.huggingface.reader import EXPERTS, FFN, HEAD_DIM, HEADS, LAYERS, MOE_FFN, WIDTH, Reader


def _rank(r: Reader, name: str) -> int:
    """A step-size rank; ``auto`` is a sixteenth of the width, rounded up."""
    return ceil(r.integer(*WIDTH) / 16) if r.get(name) in (None, "auto") else r.integer(name)


def mamba1(r: Reader, d: Dialect) -> dict[str, Any]:
    """Mamba: one state-space part in every layer. Falcon-Mamba normalises dt, B and C without weights."""
    mixer = {
        "kind": "mamba1",
        "inner": r.optional("intermediate_size") or r.integer("expand") * r.integer(*WIDTH),
        "state": r.integer("state_size"),
        "dt_rank": _rank(r, "time_step_rank"),
        "taps": r.integer("conv_kernel"),
        "bias": r.flag("use_bias", False),
        "conv_bias": r.flag("use_conv_bias", True),
        **d.attention,
    }
    r.skip("expand", "mixer_rms_eps", "use_mambapy", "use_falcon_mambapy", "pad_vocab_size_multiple")
    r.only("rms_norm", True)
    return model(r, d, [{"mixer": mixer}] * r.integer(*LAYERS))


def mamba2(r: Reader, d: Dialect) -> dict[str, Any]:
    """Mamba-2: one state-space part in every layer."""
    heads, dim = r.integer("num_heads"), r.integer("head_dim")
    inner = r.integer("expand") * r.integer(*WIDTH)
    if heads * dim != inner:
        raise r.refuse("num_heads", f"{heads} heads of {dim} are not the inner width {inner}")
    mixer = {
        "kind": "mamba2",
        "heads": heads,
        "head_dim": dim,
        "state": r.integer("state_size"),
        "groups": r.integer("n_groups"),
        "taps": r.integer("conv_kernel"),
        "chunk": r.integer("chunk_size", default=256),
        "bias": r.flag("use_bias", False),
        "conv_bias": r.flag("use_conv_bias", True),
    }
    r.only("norm_before_gate", True, False)
    r.only("rms_norm", True)
    return model(r, d, [{"mixer": mixer}] * r.integer(*LAYERS))


def jamba(r: Reader, d: Dialect) -> dict[str, Any]:
    """Jamba: attention and experts each at their own period and offset."""
    count, width = r.integer(*LAYERS), r.integer(*WIDTH)
    own = attention(r, d)
    state = {
        "kind": "mamba1",
        "inner": r.integer("mamba_expand") * width,
        "state": r.integer("mamba_d_state"),
        "dt_rank": _rank(r, "mamba_dt_rank"),
        "taps": r.integer("mamba_d_conv"),
        "bias": r.flag("mamba_proj_bias", False),
        "conv_bias": r.flag("mamba_conv_bias", True),
        "inner_norms": "rms",
    }
    period, offset = r.integer("attn_layer_period"), r.integer("attn_layer_offset")
    every, first = r.integer("expert_layer_period"), r.integer("expert_layer_offset")
    r.only("mamba_inner_layernorms", True)
    dense = mlp(r, d)
    experts = moe(r, d, r.integer(*FFN)) if r.integer(*EXPERTS) > 1 else dense
    layers: list[Layer] = [
        {
            "mixer": own if index % period == offset else state,
            "ffn": experts if index % every == first else dense,
        }
        for index in range(count)
    ]
    r.skip("sliding_window", "calc_logits_for_entire_prompt")
    return model(r, d, layers)


_NAMES = {"linear_attention": "mamba", "full_attention": "attention"}
_BLOCKS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def nemotron_h(r: Reader, d: Dialect) -> dict[str, Any]:
    """Nemotron-H: each layer is one part, in the order of a pattern of letters or a list of names."""
    names = [_NAMES.get(name, name) for name in r.get("layers_block_type") or []] or [
        _BLOCKS.get(c, c) for c in r.need("hybrid_override_pattern")
    ]
    count = r.optional(*LAYERS)
    if count is not None and count != len(names):
        raise r.refuse("hybrid_override_pattern", f"it has {len(names)} entries for {count} layers")
    builders = {"mamba": _nemotron_state, "attention": _nemotron_attention, "moe": _nemotron_moe, "mlp": _nemotron_mlp}
    parts: dict[str, Layer] = {}
    for name in dict.fromkeys(names):
        if name not in builders:
            raise r.refuse(f"layer kind {name!r}", f"only {', '.join(builders)} are known")
        parts[name] = builders[name](r, d)
    r.skip(*FFN, *MOE_FFN, *EXPERTS, *HEADS, *HEAD_DIM, "hybrid_override_pattern", "expand", "norm_eps", "mlp_bias")
    r.only("tie_word_embeddings", False)
    r.only("attention_bias", False)
    r.skip("mamba_hidden_act", "mamba_proj_bias", "use_bias", "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    r.skip("num_nextn_predict_layers", "moe_shared_expert_overlap", "n_shared_experts", "num_experts_per_tok")
    r.skip("moe_shared_expert_intermediate_size", "moe_latent_size", "attention_bias", "num_key_value_heads")
    return model(r, d, [parts[name] for name in names])


def _nemotron_state(r: Reader, d: Dialect) -> Layer:
    r.only("mamba_proj_bias", r.flag("use_bias", False))
    mixer = {
        "kind": "mamba2",
        "heads": r.integer("mamba_num_heads"),
        "head_dim": r.integer("mamba_head_dim"),
        "state": r.integer("ssm_state_size"),
        "groups": r.integer("n_groups"),
        "taps": r.integer("conv_kernel"),
        "chunk": r.integer("chunk_size", default=128),
        "bias": r.flag("use_bias", False),
        "conv_bias": r.flag("use_conv_bias", True),
    }
    return {"mixer": mixer}


def _nemotron_attention(r: Reader, d: Dialect) -> Layer:
    r.only("sliding_window", None)
    return {"mixer": attention(r, d)}


def _nemotron_mlp(r: Reader, d: Dialect) -> Layer:
    return {"ffn": mlp(r, d)}


def _nemotron_moe(r: Reader, d: Dialect) -> Layer:
    for name, taken in (("n_shared_experts", 1), ("moe_shared_expert_intermediate_size", 7688)):
        if name not in r.config:
            raise r.refuse(name, f"it is absent: its class takes {taken}, and only null or 0 says that there are none")
    number = r.integer("n_shared_experts", default=0)
    if number > 1:
        raise r.refuse(f"n_shared_experts = {number}", "transformers builds one of that width and vLLM as many")
    shared = number * (r.optional("moe_shared_expert_intermediate_size") or 0)
    latent = r.optional("moe_latent_size")
    r.only("mlp_bias", False)
    return {"ffn": moe(r, d, r.integer(*MOE_FFN), shared_d_ff=shared, **({"latent": latent} if latent else {}))}


def delta_state(r: Reader) -> dict[str, Any]:
    """The gated delta net that the ``linear_`` fields describe."""
    return {
        "kind": "gated_delta_net",
        "key_heads": r.integer("linear_num_key_heads"),
        "value_heads": r.integer("linear_num_value_heads"),
        "key_dim": r.integer("linear_key_head_dim"),
        "value_dim": r.integer("linear_value_head_dim"),
        "taps": r.integer("linear_conv_kernel_dim"),
    }


def delta_net(r: Reader, d: Dialect) -> dict[str, Any]:
    """Qwen3-Next and Qwen3.5: gated delta nets, with gated attention in every ``full_attention_interval``-th layer."""
    count = r.integer(*LAYERS)
    own = attention(r, d) | {"output_gate": r.flag("attn_output_gate", True)}
    state = delta_state(r)
    kinds = r.items("layer_types", count)
    interval = r.optional("full_attention_interval")
    if kinds is None:
        step = interval or r.integer("full_attention_interval")
        kinds = ["linear_attention" if (index + 1) % step else "full_attention" for index in range(count)]
    known = {"linear_attention": state, "full_attention": own}
    for kind in kinds:
        if kind not in known:
            raise r.refuse(f"layer_types entry {kind!r}", f"only {', '.join(known)} are known here")
    sparse = qwen_sparse(r, d, count) if r.optional(*EXPERTS) else [None] * count
    dense = mlp(r, d) if None in sparse else None
    r.skip("mlp_only_layers", "linear_conv_bias")
    layers: list[Layer] = [
        {"mixer": known[kind], "ffn": experts or dense} for kind, experts in zip(kinds, sparse, strict=True)
    ]
    tables = r.flag("mtp_use_dedicated_embeddings", False)
    inner = r.integer("mtp_num_hidden_layers", default=0)
    if not inner:
        return model(r, d, layers)
    module = {"mixer": own, "ffn": sparse[-1] or dense, **({"repeat": inner} if inner > 1 else {})}
    return model(r, d, layers) | {"mtp": {"layers": [module], "own_embedding": tables}}


def lightning(r: Reader, d: Dialect) -> dict[str, Any]:
    """MiniMax-Text-01: linear attention with a fixed decay, and full attention where ``attn_type_list`` has a 1."""
    count = r.integer(*LAYERS)
    own = attention(r, d)
    state = {"kind": "lightning_attention", "heads": own["heads"], "head_dim": own["head_dim"]}
    state["chunk"] = r.integer("block_size", default=256)
    kinds = r.items("attn_type_list", count)
    named = r.items("layer_types", count)
    if kinds is None and named is None:
        r.need("attn_type_list")
    full = [bool(kind) for kind in kinds] if kinds is not None else [kind == "full_attention" for kind in named or []]
    r.only("shared_intermediate_size", 0)
    r.skip("postnorm", "shared_moe_mode", "rotary_dim")
    sparse = all_sparse(r, d, count)
    layers: list[Layer] = [{"mixer": own if on else state, "ffn": ffn} for on, ffn in zip(full, sparse, strict=True)]
    return model(r, d, layers)


def rwkv(r: Reader, d: Dialect) -> dict[str, Any]:
    """RWKV-4."""
    width = r.integer(*WIDTH)
    inner = r.integer("attention_hidden_size", default=width)
    layer: Layer = {
        "mixer": {"kind": "rwkv", "inner": inner, "width": width},
        "ffn": {"kind": "rwkv_channel_mix", "d_ff": r.integer(*FFN, default=4 * width), "width": width},
    }
    return model(r, d, [layer] * r.integer(*LAYERS))


def recurrent_gemma(r: Reader, d: Dialect) -> dict[str, Any]:
    """RecurrentGemma: two recurrent blocks and one of local attention; ``intermediate_size`` is twice the width."""
    count, width = r.integer(*LAYERS), r.integer(*WIDTH)
    own = attention(r, d) | {"window": r.integer("attention_window_size")}
    inner = r.optional("lru_width") or width
    state = {
        "kind": "gated_linear_recurrence",
        "inner": inner,
        "blocks": r.integer(*HEADS),
        "taps": r.integer("conv1d_width"),
    }
    kinds = r.get("block_types", "_block_types", "layers_block_type") or ["recurrent", "recurrent", "attention"]
    dense = mlp(r, d, r.integer(*FFN) // 2)
    known = {"recurrent": state, "attention": own}
    layers: list[Layer] = []
    for index in range(count):
        kind = kinds[index % len(kinds)]
        if kind not in known:
            raise r.refuse(f"block_types entry {kind!r}", "only recurrent and attention are known")
        layers.append({"mixer": known[kind], "ffn": dense})
    r.skip("logits_soft_cap", "embeddings_scale_by_sqrt_dim", "w_init_variance_scale", "final_w_init_variance_scale")
    return model(r, d, layers)


def _mamba2_of(r: Reader, **fields: Any) -> dict[str, Any]:
    """The Mamba-2 part of a hybrid, in the field names of Bamba, Falcon-H1 and Granite 4."""
    return {
        "kind": "mamba2",
        "heads": r.integer("mamba_n_heads"),
        "head_dim": r.integer("mamba_d_head"),
        "state": r.integer("mamba_d_state"),
        "groups": r.integer("mamba_n_groups"),
        "taps": r.integer("mamba_d_conv"),
        "chunk": r.integer("mamba_chunk_size", default=256),
        "bias": r.flag("mamba_proj_bias", False),
        "conv_bias": r.flag("mamba_conv_bias", True),
        **fields,
    }


def falcon_h1(r: Reader, d: Dialect) -> dict[str, Any]:
    """Falcon-H1: attention and Mamba-2 heads read the same input in every layer."""
    r.only("mamba_proj_bias", False)
    state = _mamba2_of(r, gated_norm=r.flag("mamba_rms_norm", False))
    inner = r.optional("mamba_d_ssm") or r.integer("mamba_expand") * r.integer(*WIDTH)
    if inner != state["heads"] * state["head_dim"]:
        raise r.refuse("mamba_d_ssm", f"it is {inner}, not {state['heads']} heads of {state['head_dim']}")
    r.skip("mamba_expand", "mamba_norm_before_gate", "mamba_use_mlp", "ssm_multipliers", "attn_layer_indices")
    r.only("projectors_bias", False)
    mixer = {"kind": "parallel", "mixers": [attention(r, d), state]}
    return model(r, d, [{"mixer": mixer, "ffn": mlp(r, d)}] * r.integer(*LAYERS))


def bamba(r: Reader, d: Dialect) -> dict[str, Any]:
    """Bamba: Mamba-2, with attention in the layers of ``attn_layer_indices``."""
    count = r.integer(*LAYERS)
    own, state = attention(r, d), _mamba2_of(r)
    places = r.get("attn_layer_indices") or []
    kinds = r.items("layer_types", count)
    r.skip("mamba_expand")
    ffn = mlp(r, d)
    on = [kind == "full_attention" for kind in kinds] if kinds else [index in places for index in range(count)]
    return model(r, d, [{"mixer": own if full else state, "ffn": ffn} for full in on])


def granite_hybrid(r: Reader, d: Dialect) -> dict[str, Any]:
    """Granite 4: Mamba-2 and attention layers, each with experts and a shared expert, or with the shared one alone."""
    count = r.integer(*LAYERS)
    kinds = r.items("layer_types", count) or r.items("layers_block_type", count)
    if kinds is None:
        kinds = r.need("layer_types")
    own, state = attention(r, d), _mamba2_of(r)
    known = {"attention": own, "full_attention": own, "mamba": state, "linear_attention": state}
    shared = r.integer("shared_intermediate_size")
    r.only("normalization_function", "rmsnorm")
    r.skip("mamba_expand", "position_embedding_type", *FFN)
    if r.integer(*EXPERTS, default=0):
        ffn = moe(r, d, r.integer(*FFN), shared_d_ff=shared)
    else:
        ffn = mlp(r, d, shared)
        r.skip("num_experts_per_tok")
    for kind in kinds:
        if kind not in known:
            raise r.refuse(f"layer_types entry {kind!r}", f"only {', '.join(known)} are known here")
    return model(r, d, [{"mixer": known[kind], "ffn": ffn} for kind in kinds])


def zamba2(r: Reader, d: Dialect) -> dict[str, Any]:
    """Zamba2: Mamba-2 layers; hybrid ones run one of ``num_mem_blocks`` shared blocks first, each use with adapters."""
    width, names = r.integer(*WIDTH), r.need("layers_block_type")
    heads, inner = r.integer("n_mamba_heads"), r.integer("mamba_expand") * width
    state = {
        "kind": "mamba2",
        "heads": heads,
        "head_dim": inner // heads,
        "state": r.integer("mamba_d_state", "state_size"),
        "groups": r.integer("mamba_ngroups"),
        "taps": r.integer("mamba_d_conv"),
        "chunk": r.integer("chunk_size", default=256),
        "bias": r.flag("add_bias_linear", False),
    }
    block = {
        "kind": "shared_block",
        "heads": r.integer(*HEADS),
        "kv_heads": r.integer("num_key_value_heads"),
        "head_dim": 2 * width // r.integer(*HEADS),
        "d_ff": r.integer("intermediate_size", "ffn_hidden_size"),
        "adapter_rank": r.integer("adapter_rank"),
        "attention_adapters": r.flag("use_shared_attention_adapter", False),
        "rotary": r.flag("use_mem_rope", False),
    }
    r.only("use_shared_mlp_adapter", True)
    r.only("use_conv_bias", True)  # the class has one whatever this says
    r.only("tie_word_embeddings", True)  # without it the class shares no block
    r.only("attention_hidden_size", 2 * width)
    r.only("attention_head_dim", block["head_dim"])
    r.skip("hybrid_layer_ids", "kv_channels", "mamba_headdim")
    r.skip("num_query_groups", "use_mem_eff_path", "use_long_context", "num_logits_to_keep")
    blocks, uses = r.integer("num_mem_blocks"), 0
    layers: list[Layer] = []
    for name in names:
        if name not in ("mamba", "linear_attention", "hybrid"):
            raise r.refuse(f"layers_block_type entry {name!r}", "only mamba and hybrid are known")
        extra = [block if uses < blocks else block | {"owner": False}] if name == "hybrid" else []
        uses += len(extra)
        layers.append({"mixer": state, **({"extras": extra} if extra else {})})
    r.skip(*LAYERS)
    return model(r, d, layers)


def kimi_linear(r: Reader, d: Dialect) -> dict[str, Any]:
    """Kimi Linear: Kimi delta attention, with latent attention in the layers of ``full_attn_layers``.

    Kimi-K3 beside it: gates of full rank, experts of a narrower width, attention residuals.
    """
    r.only("tie_word_embeddings", False)
    count = r.integer(*LAYERS)
    table = r.table("linear_attn_config") or r
    state = {
        "kind": "kimi_delta",
        "heads": table.integer("num_heads", "linear_num_heads"),
        "head_dim": table.integer("head_dim", "linear_head_dim") if table is not r else r.integer("linear_head_dim"),
        "taps": table.integer("short_conv_kernel_size", "linear_conv_kernel_dim"),
    }
    kinds = r.items("layer_types", count)
    if kinds is None:
        places = table.need("full_attn_layers")  # counted from 1
        kinds = ["full_attention" if index + 1 in places else "linear_attention" for index in range(count)]
    if table.flag("use_full_rank_gate", False):
        state["full_output_gate"] = True
    own = mla(r, d) | ({"gate": "channel"} if r.flag("mla_use_output_gate", False) else {})
    if r.flag("mla_use_nope", False):
        own["rotary"] = False
    r.skip("kda_layers", "num_expert_group", "moe_renormalize", "moe_router_activation_func")
    r.skip("use_grouped_topk", "moe_router_use_sigmoid")
    r.skip("activation_situ_beta", "activation_situ_linear_beta")
    r.only("num_nextn_predict_layers", 0)
    narrow = r.optional("routed_expert_hidden_size")
    latent = {} if narrow is None else {"latent": narrow, "latent_sum_norm": r.flag("latent_moe_use_norm", False)}
    sparse = [experts and experts | latent for experts in first_dense(r, d, count)]
    dense = mlp(r, d) if None in sparse else None
    layers: list[Layer] = [
        {"mixer": own if kind == "full_attention" else state, "ffn": experts or dense, **residual}
        for kind, experts, residual in zip(kinds, sparse, _residuals(r, count), strict=True)
    ]
    return model(r, d, layers)


def _residuals(r: Reader, count: int) -> list[Layer]:
    """The attention residual of each layer: every ``attn_res_block_size`` of them, from the first on, are a block."""
    size = r.optional("attn_res_block_size")
    if size is None:
        return [{}] * count
    if size < 1:
        raise r.refuse(f"attn_res_block_size = {size}", "it must be at least 1")
    return [
        {
            "extras": [
                {"kind": "attention_residual", "blocks": index // size + 1}
                | ({"finishes": True} if index % size == 0 else {})
            ]
        }
        for index in range(count)
    ]
