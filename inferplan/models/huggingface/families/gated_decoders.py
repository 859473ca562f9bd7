"""Decoders with gates, additional norms and routed experts, dense ones among them: one row each."""

from __future__ import annotations

from dataclasses import replace

from inferplan.models.huggingface import decoder as d
from inferplan.models.huggingface import gates_and_norms, latent
from inferplan.models.huggingface.dialect import Dialect, Flag

_BIAS: Flag = ("attention_bias", False)
_PLAIN = Dialect(build=d.decoder)
_FLAGGED = replace(_PLAIN, qkv_bias=_BIAS, out_bias=_BIAS)
_LLAMA = replace(_FLAGGED, mlp_bias=("mlp_bias", False), kv_default=True)
_LATENT = replace(_PLAIN, build=latent.latent, qkv_bias=_BIAS, moe=d.first_dense, ignored=("rope_interleave",))
_THETA = ("layer_rope_theta",)
_HEAD_NORM: tuple[str, Flag] = ("head", True)

FAMILIES: dict[str, Dialect] = {
    "afmoe": replace(
        _PLAIN,
        build=gates_and_norms.gated,
        qk_norm=_HEAD_NORM,
        kv_default=True,
        norms=4,
        windows=d.last_of(4, "global_attn_every_n_layers"),
        moe=gates_and_norms.shared_experts("num_shared_experts", "num_dense_layers", router_bias=True),
        ignored=("mup_enabled", "route_scale", "route_norm", "score_func", "load_balance_coeff"),
    ),
    "apertus": replace(
        _FLAGGED,
        qk_norm=("head", ("qk_norm", True)),
        kv_default=True,
        gated=False,
        activation="xielu",
        fixed={"mlp_bias": (False,), "post_norm": (False,)},
    ),
    "aria_text": replace(_FLAGGED, kv_default=True, moe=gates_and_norms.aria_sparse, fixed={"mlp_bias": (False,)}),
    "axk1": replace(_LATENT, build=gates_and_norms.post_norm_latent),
    "bailing_hybrid": replace(
        _PLAIN,
        build=gates_and_norms.ling,
        qkv_bias=_BIAS,
        fixed={"attention_bias": (False,)},
        ignored=("rope_interleave",),
    ),
    "dots3_note_text": replace(_LATENT, build=gates_and_norms.dots_note, fixed={"mlp_bias": (False,)}),
    "hy_v4": replace(_LATENT, build=gates_and_norms.streamed, attention={"gate": "channel", "sinks": True}),
    "olmo_hybrid": replace(_FLAGGED, build=gates_and_norms.olmo_hybrid, kv_default=True, qk_norm=("full", True)),
    "step3p5": replace(
        _FLAGGED, build=gates_and_norms.step, qk_norm=_HEAD_NORM, head_dim=True, windows=gates_and_norms.listed
    ),
    "beam": replace(
        _PLAIN,
        build=gates_and_norms.gated,
        qk_norm=_HEAD_NORM,
        norms=4,
        head_dim=True,
        windows=gates_and_norms.and_the_last(6),
        moe=gates_and_norms.by_kind(),
        attention={"gate_bias": True},
    ),
    "bitnet": replace(
        _FLAGGED,
        build=gates_and_norms.every(mixer={"out_norm": True}, ffn={"inner_norm": True}),
        kv_default=True,
        activation="relu2",
    ),
    "cohere2_moe": replace(
        _FLAGGED,
        build=gates_and_norms.cohere_moe,
        tied=True,
        parallel=True,
        norms=1,
        kv_default=True,
        head_dim=True,
        windows=d.last_of(4),
        moe=gates_and_norms.cohere_sparse,
    ),
    "cohere_compass_text": replace(
        _FLAGGED, tied=True, norm="layer_plain", parallel=True, norms=1, kv_default=True, windows=gates_and_norms.listed
    ),
    "flex_olmo": replace(_FLAGGED, kv_default=True, qk_norm=("full", True), moe=d.all_sparse),
    "flint": replace(
        _FLAGGED,
        qk_norm=_HEAD_NORM,
        head_dim=True,
        windows=gates_and_norms.listed,
        moe=gates_and_norms.ungated,
        attention={"sinks": True},
    ),
    "granite_swa": replace(_LLAMA, tied=True, windows=d.first_of(4), attention={"sinks": True}, ignored=_THETA),
    "granitemoe_swa": replace(
        _FLAGGED,
        kv_default=True,
        windows=d.first_of(4),
        moe=d.granite_sparse,
        attention={"sinks": True},
        ignored=_THETA,
    ),
    "hunyuan_v1_moe": replace(
        _FLAGGED, build=gates_and_norms.hunyuan_moe, kv_default=True, qk_norm=("head", ("use_qk_norm", True))
    ),
    "hy_v3": replace(
        _FLAGGED,
        qk_norm=_HEAD_NORM,
        head_dim=True,
        moe=gates_and_norms.shared_experts("num_shared_experts", "first_k_dense_replace", least=1),
        fixed={"mlp_bias": (False,), "qk_norm": (True,)},
        mtp="shared",
        ignored=("router_scaling_factor", "enable_moe_fp32_combine"),
    ),
    "hyperclovax": replace(_LLAMA, build=gates_and_norms.hyperclova),
    "jais2": replace(
        _PLAIN,
        norm="layer",
        qkv_bias=("attention_bias", True),
        out_bias=("attention_bias", True),
        mlp_bias=("mlp_bias", True),
        kv_default=True,
        gated=False,
        activation="relu2",
    ),
    "kolibri1": replace(
        _PLAIN,
        qk_norm=_HEAD_NORM,
        norms=4,
        head_dim=True,
        windows=d.last_of(5),
        moe=gates_and_norms.by_kind("", "shared_expert_intermediate_size"),
    ),
    "laguna": replace(
        _FLAGGED, build=gates_and_norms.laguna, qk_norm=_HEAD_NORM, head_dim=True, windows=gates_and_norms.listed
    ),
    "lfm2": replace(_PLAIN, build=gates_and_norms.conv_hybrid, tied=True, qk_norm=_HEAD_NORM),
    "lfm2_moe": replace(_PLAIN, build=gates_and_norms.conv_hybrid, tied=True, qk_norm=_HEAD_NORM),
    "lfm3": replace(_FLAGGED, build=gates_and_norms.conv_hybrid, tied=True, qk_norm=_HEAD_NORM, head_dim=True),
    "longcat_flash": replace(_LATENT, build=gates_and_norms.longcat, moe=None),
    "hrm_text": replace(
        _PLAIN,
        build=gates_and_norms.looped,
        kv_default=True,
        fixed={"attention_bias": (False,)},
        ignored=("embedding_scale",),
    ),
    "mellum": replace(
        _FLAGGED,
        qk_norm=_HEAD_NORM,
        head_dim=True,
        windows=gates_and_norms.listed,
        moe=gates_and_norms.by_kind(),
        ignored=("mtp_layer_types", "mtp_mlp_layer_types", "intermediate_size"),
    ),
    "mimo_v2_flash": replace(
        _PLAIN, build=gates_and_norms.mimo, qkv_bias=_BIAS, head_dim=True, windows=gates_and_norms.listed
    ),
    "ministral": replace(_PLAIN, windows=d.every_layer),
    "vaultgemma": replace(_FLAGGED, tied=True, head_dim=True, activation="gelu", norms=2, windows=d.alternate),
}

FAMILIES["mimo_v2"] = FAMILIES["mimo_v2_flash"]

ALIASES = {"iquestcoder": "llama", "gpt-sw3": "gpt2"}

UNKNOWN: dict[str, str] = {}
