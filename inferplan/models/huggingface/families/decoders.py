"""Language models of attention and feed-forward, and their hybrids with state-space and linear attention."""

from __future__ import annotations

from dataclasses import replace

from inferplan.models.huggingface import decoder as d
from inferplan.models.huggingface import decoder_builders, latent, recurrent
from inferplan.models.huggingface.dialect import Dialect, Flag

_BIAS: Flag = ("attention_bias", False)
_USE_BIAS: Flag = ("use_bias", False)
_PLAIN = Dialect(build=d.decoder)
_FLAGGED = replace(_PLAIN, qkv_bias=_BIAS, out_bias=_BIAS)
_LLAMA = replace(_FLAGGED, mlp_bias=("mlp_bias", False), kv_default=True)
_QWEN3 = replace(_FLAGGED, qk_norm=("head", True), windows=d.switched)
_GEMMA = replace(_FLAGGED, tied=True, head_dim=True, activation="gelu")
_CAUSAL = {"use_bidirectional_attention": (False,)}
_OLMO2 = replace(_FLAGGED, kv_default=True, qk_norm=("full", True))
_COHERE = replace(_FLAGGED, tied=True, norm="layer_plain", parallel=True, norms=1)
_DEEPSEEK = replace(
    _PLAIN,
    build=latent.latent,
    qkv_bias=_BIAS,
    moe=d.first_dense,
    mtp="own",
    ignored=("rope_interleave",),
)
_DELTA = replace(_FLAGGED, build=recurrent.delta_net, qk_norm=("head", True), head_dim=True)
_BIASED = replace(
    _PLAIN, norm="layer", qkv_bias=True, out_bias=True, mlp_bias=True, gated=False, kv_default=True, ffn_factor=4
)
_GPT2 = replace(_BIASED, tied=True, rotary=False, positions=0)
_GPTJ = replace(_BIASED, qkv_bias=False, out_bias=False, parallel=True, norms=1, head_bias=True, ignored=("n_ctx",))

_ALPHAS = tuple(
    f"{part}_{end}" for part in ("full_attn", "linear_attn", "mlp") for end in ("alpha_factor", "beta_factor")
)

FAMILIES: dict[str, Dialect] = {
    "llama": _LLAMA,
    "yi": _LLAMA,
    "granite": _LLAMA,
    "mistral": replace(_PLAIN, windows=d.every_layer),
    "mixtral": replace(_PLAIN, windows=d.every_layer, moe=d.all_sparse),
    "qwen": replace(_PLAIN, build=decoder_builders.qwen1, qkv_bias=True, kv_default=True),
    "qwen2": replace(_PLAIN, qkv_bias=True, windows=d.switched, fixed={"attention_bias": (True,)}),
    # vLLM's models/mimo.py: Qwen2's layers; its models/mimo_mtp.py: one more of them in each prediction module.
    "mimo": replace(
        _PLAIN,
        qkv_bias=True,
        windows=d.switched,
        mtp="shared",
        fixed={"attention_bias": (True,), "use_mrope": (False,)},
    ),
    "qwen2_moe": replace(_PLAIN, qkv_bias=("qkv_bias", True), windows=d.switched, moe=d.qwen_sparse),
    "qwen3": replace(_QWEN3, head_dim=True),
    "qwen3_moe": replace(_QWEN3, moe=d.qwen_sparse, fixed={"use_qk_norm": (True,)}),
    "gemma": _GEMMA,
    # google/gemma-2-9b and -27b say sliding_window twice; the class reads the one of that name.
    "gemma2": replace(_GEMMA, norms=4, windows=d.alternate, fixed=_CAUSAL, ignored=("sliding_window_size",)),
    "gemma3_text": replace(_GEMMA, norms=4, windows=d.last_of(6), qk_norm=("head", True), fixed=_CAUSAL),
    "gemma4_text": replace(
        _GEMMA, build=decoder_builders.gemma4, qk_norm=("head", True), attention={"value_norm": True}
    ),
    "gemma3n_text": replace(
        _GEMMA, build=decoder_builders.gemma3n, qk_norm=("head", True), windows=d.last_of(5), fixed=_CAUSAL
    ),
    "phi": replace(_BIASED, parallel=True, norms=1, head_bias=True, ffn_factor=None, fixed={"qk_layernorm": (False,)}),
    "phi3": replace(
        _PLAIN,
        kv_default=True,
        windows=d.every_layer,
        fixed={"attention_bias": (False,), "full_attn_mod": (1,)},
        ignored=("interpolate_factor",),
    ),
    "phimoe": replace(
        _FLAGGED,
        norm="layer",
        head_bias=("lm_head_bias", False),
        windows=d.every_layer,
        moe=d.all_sparse,
    ),
    "gpt2": replace(_GPT2, ignored=("n_ctx",), fixed={"add_cross_attention": (False,)}),
    "gpt_bigcode": replace(
        _GPT2,
        build=decoder_builders.bigcode,
        ignored=("inference_runner", "validate_runner_input", "pre_allocate_kv_cache", "max_batch_size"),
    ),
    "gptj": _GPTJ,
    "codegen": _GPTJ,
    "gpt_neox": replace(
        _BIASED, build=decoder_builders.neox, qkv_bias=("attention_bias", True), out_bias=("attention_bias", True)
    ),
    "opt": replace(
        _GPT2, build=decoder_builders.opt, positions=2, ffn_factor=None, activation="relu", ignored=("layerdrop",)
    ),
    "bloom": replace(
        _BIASED,
        tied=True,
        rotary=False,
        embedding_norm=True,
        ignored=("apply_residual_connection_post_layernorm", "offset_alibi"),
    ),
    "falcon": replace(_PLAIN, build=decoder_builders.falcon, tied=True, norm="layer", gated=False),
    "mpt": replace(
        _PLAIN, build=decoder_builders.mpt, tied=True, norm="layer_plain", rotary=False, gated=False, kv_default=True
    ),
    "cohere": replace(_COHERE, kv_default=True, qk_norm=("per_head", ("use_qk_norm", False))),
    "cohere2": replace(
        _COHERE,
        windows=d.last_of(4),
        fixed={"use_qk_norm": (False,), "use_parallel_block": (True,), "use_gated_activation": (True,)},
        ignored=("order_of_interleaved_layers", "position_embedding_type", "use_embedding_sharing", "layer_switch"),
    ),
    "starcoder2": replace(
        _PLAIN,
        tied=True,
        norm="layer",
        qkv_bias=("use_bias", True),
        out_bias=("use_bias", True),
        mlp_bias=("use_bias", True),
        gated=False,
        windows=d.every_layer,
        fixed={"norm_type": ("layer_norm",), "mlp_type": ("default",)},
    ),
    "stablelm": replace(
        _PLAIN,
        build=decoder_builders.stablelm,
        norm="layer",
        qkv_bias=("use_qkv_bias", False),
        fixed={"qk_layernorm": (False,)},
    ),
    "olmo": replace(_FLAGGED, norm="plain", kv_default=True),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, windows=d.last_of(4)),
    "olmoe": replace(_OLMO2, moe=d.all_sparse),
    "granitemoe": replace(_FLAGGED, kv_default=True, moe=d.all_sparse),
    "internlm": replace(_PLAIN, qkv_bias=("bias", True), out_bias=("bias", True), kv_default=True),
    "internlm2": replace(_PLAIN, qkv_bias=("bias", False), out_bias=("bias", False), kv_default=True),
    "baichuan": replace(_PLAIN, kv_default=True),
    "smollm3": replace(
        _FLAGGED, tied=True, mlp_bias=("mlp_bias", False), windows=d.switched, ignored=("no_rope_layers",)
    ),
    "nemotron": replace(_FLAGGED, norm="layer", mlp_bias=("mlp_bias", False), gated=False, activation="relu2"),
    "palm": replace(
        _PLAIN,
        tied=True,
        parallel=True,
        norms=1,
        head_dim=True,
        fixed={"parallel_attn_ffn": (True,), "attention_bias": (False,)},
    ),
    "llada": replace(
        _PLAIN,
        build=decoder_builders.llada,
        kv_default=True,
        attention={"causal": False},
        fixed={
            "block_type": ("llama",),
            "layer_norm_type": ("rms",),
            "rope": (True,),
            "alibi": (False,),
            "attention_layer_norm": (False,),
            "input_emb_norm": (False,),
        },
    ),
    "glm4_moe": replace(
        _PLAIN,
        qkv_bias=_BIAS,
        qk_norm=("head", ("use_qk_norm", False)),
        moe=d.first_dense,
        mtp="own",
    ),
    "dots1": replace(
        _FLAGGED,
        qk_norm=("head", True),
        moe=d.first_dense,
        windows=d.from_layer,
        ignored=("num_nextn_predict_layers",),
    ),
    "minimax_m2": replace(
        _PLAIN,
        qk_norm=("full", ("use_qk_norm", True)),
        head_dim=True,
        moe=d.all_sparse,
        windows=d.every_layer,
        fixed={"shared_intermediate_size": (0,), "qk_norm_type": ("per_layer",)},
        ignored=("attn_type_list", "mtp_transformer_layers", "num_mtp_modules", "use_mtp", "use_routing_bias"),
    ),
    "gpt_oss": replace(
        _PLAIN,
        qkv_bias=("attention_bias", True),
        out_bias=("attention_bias", True),
        head_dim=True,
        windows=d.alternate,
        moe=d.gpt_oss_sparse,
        attention={"sinks": True},
    ),
    "dbrx": replace(_PLAIN, build=decoder_builders.dbrx, norm="layer_plain", kv_default=True),
    "llama4_text": replace(_FLAGGED, build=decoder_builders.llama4, head_dim=True, ignored=("for_llm_compressor",)),
    "nemotron-nas": replace(_FLAGGED, build=decoder_builders.block_configs),
    "deepseek_v2": replace(_DEEPSEEK, mtp="none"),
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "glm4_moe_lite": _DEEPSEEK,
    "glm_moe_dsa": replace(_DEEPSEEK, mtp="shared"),
    "qwen3_next": _DELTA,
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": _DELTA,
    "jamba": replace(_PLAIN, build=recurrent.jamba, rotary=False),
    "nemotron_h": replace(
        _FLAGGED,
        build=recurrent.nemotron_h,
        rotary=False,
        gated=False,
        head_dim=True,
        mlp_bias=("mlp_bias", False),
        activation="relu2",
    ),
    "falcon_h1": replace(_LLAMA, build=recurrent.falcon_h1),
    "bamba": replace(_LLAMA, build=recurrent.bamba),
    "granitemoehybrid": replace(_FLAGGED, build=recurrent.granite_hybrid),
    "zamba2": replace(_PLAIN, build=recurrent.zamba2, tied=True),
    "kimi_linear": replace(_PLAIN, build=recurrent.kimi_linear),
    "glm": replace(_PLAIN, qkv_bias=_BIAS, head_dim=True),
    "glm4": replace(_PLAIN, qkv_bias=_BIAS, head_dim=True, norms=4),
    "seed_oss": replace(
        _PLAIN, qkv_bias=_BIAS, out_bias=("attention_out_bias", False), mlp_bias=("mlp_bias", False), head_dim=True
    ),
    # vLLM's models/exaone.py, as LG's own modeling_exaone.py: Llama's layer under GPT-2's names.
    "exaone": _LLAMA,
    "exaone4": replace(_PLAIN, qk_norm=("head", True), windows=d.last_of(4)),
    "orion": replace(_PLAIN, norm="layer", kv_default=True, fixed={"attention_bias": (False,)}),
    "chatglm": replace(_PLAIN, build=decoder_builders.chatglm),
    "minicpm": replace(_LLAMA, tied=True, moe=d.minicpm_sparse, ignored=("dim_model_base",)),
    "deepseek": replace(_FLAGGED, kv_default=True, moe=d.first_dense),
    "arcee": replace(_LLAMA, gated=False, activation="relu2"),
    "ernie4_5": replace(
        _PLAIN, tied=True, qkv_bias=_USE_BIAS, out_bias=_USE_BIAS, mlp_bias=_USE_BIAS, kv_default=True, head_dim=True
    ),
    "ernie4_5_moe": replace(
        _PLAIN, tied=True, fixed={"use_bias": (False,)}, moe=d.ernie_sparse, ignored=("moe_norm_min", "moe_gate")
    ),
    "helium": replace(_LLAMA, build=decoder_builders.helium, out_bias=False),
    "internlm3": replace(_PLAIN, qkv_bias=("qkv_bias", False), out_bias=("bias", False), mlp_bias=("bias", False)),
    "cwm": replace(_PLAIN, windows=d.first_of(4), fixed={"mlp_bias": (False,)}),
    "granitemoeshared": replace(_FLAGGED, kv_default=True, moe=d.granite_sparse),
    "solar_open": replace(
        replace(_FLAGGED, out_bias=False),
        head_dim=True,
        fixed={"use_qk_norm": (False,)},
        moe=d.always_sparse,
        ignored=("intermediate_size",),
    ),
    "exaone_moe": replace(_PLAIN, qk_norm=("head", True), windows=d.last_of(4), moe=d.first_dense),
    "minicpm3": replace(
        _PLAIN,
        build=latent.latent,
        tied=True,
        qkv_bias=_BIAS,
        fixed={"mlp_bias": (False,)},
        ignored=("dim_model_base",),
    ),
    "youtu": replace(_PLAIN, build=latent.latent, tied=True, qkv_bias=_BIAS, ignored=("rope_interleave",)),
    "hunyuan_v1_dense": replace(_FLAGGED, qk_norm=("head", True), kv_default=True),
    "ministral3": replace(_PLAIN, windows=d.every_layer),
    "mamba": replace(_PLAIN, build=recurrent.mamba1, tied=True),
    "falcon_mamba": replace(_PLAIN, build=recurrent.mamba1, tied=True, attention={"inner_norms": "plain"}),
    "mamba2": replace(_PLAIN, build=recurrent.mamba2),
    "minimax_text_01": replace(_PLAIN, build=recurrent.lightning),
    "minimax": replace(_PLAIN, build=recurrent.lightning, ignored=_ALPHAS),
    "rwkv": replace(_PLAIN, build=recurrent.rwkv, norm="layer", embedding_norm=True),
    "recurrent_gemma": replace(
        _PLAIN,
        build=recurrent.recurrent_gemma,
        tied=True,
        qkv_bias=_BIAS,
        out_bias=True,
        mlp_bias=True,
        kv_default=True,
        activation="gelu",
    ),
    "hunyuan": replace(_LLAMA, build=decoder_builders.hunyuan, tied=True, qk_norm=("head", ("use_qk_norm", False))),
}

ALIASES = {
    "deci": "nemotron-nas",
    "kimi_k2": "deepseek_v3",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "refinedweb": "falcon",
    "refinedwebmodel": "falcon",
    "hunyuan_v1_large": "hunyuan",
}
"""Other names of a row."""

UNKNOWN = {
    "rwkv5": "RWKV-5 has matrix states and gates that the layer kind rwkv (RWKV-4) has not",
    "rwkv6": "RWKV-6 has low-rank decays and matrix states that the layer kind rwkv (RWKV-4) has not",
    "rwkv6qwen2": "its mixers are those of RWKV-6, which no layer kind has",
}
"""Families that are known and not covered, and what they need."""
