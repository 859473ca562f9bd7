"""The names that checkpoints give their modules: one row a family, the home of module names.

The names are those of the released checkpoints, which transformers' ``save_pretrained`` writes back; a test compares
them with what the installed transformers writes. Families that are not in it: the vendor's modelling file.
"""

from __future__ import annotations

from dataclasses import replace

from inferplan.models.huggingface.quantisation.modules import Layout, Names


def _leaves(parent: str, **leaves: str) -> Names:
    return {tensor: tuple(f"{parent}.{leaf}" for leaf in names.split()) for tensor, names in leaves.items()}


def _experts(parent: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> Names:
    named = {"expert.gate": gate, "expert.up": up, "expert.down": down}
    return {tensor: (f"{parent}.{leaf}",) for tensor, leaf in named.items()} | {"router": ()}


def _gated(parent: str, prefix: str = "") -> Names:
    return {f"{prefix}{name}": (f"{parent}.{name}_proj",) for name in ("gate", "up", "down")}


_QKVO = _leaves("self_attn", q="q_proj", k="k_proj", v="v_proj", o="o_proj")
_MLP = _gated("mlp")
_LLAMA = Layout(names=_QKVO | _MLP)
_LATENT = _leaves("self_attn", q_a="q_a_proj", q_b="q_b_proj", kv_a="kv_a_proj_with_mqa", kv_b="kv_b_proj")
_LATENT |= {"index.q": ("self_attn.indexer.wq_b",), "index.k": ("self_attn.indexer.wk",)}
_SPARSE = _experts("mlp.experts.{}")
_MIXTRAL = _experts("block_sparse_moe.experts.{}", "w1", "w3", "w2")
_SHARED = _gated("mlp.shared_experts", "shared.")
_ROUTED = replace(_LLAMA, names=_LLAMA.names | _SPARSE | _SHARED)
_DEEPSEEK = replace(_ROUTED, names=_ROUTED.names | _LATENT)
_ONE_SHARED = replace(_LLAMA, names=_LLAMA.names | _SPARSE | _gated("mlp.shared_expert", "shared."))
_BLOCK_SPARSE = replace(_LLAMA, names=_QKVO | _MIXTRAL)
_FUSED_QKV = dict.fromkeys("qkv", ("self_attn.qkv_proj",))
_FUSED_MLP = {"gate": ("mlp.gate_up_proj",), "up": ("mlp.gate_up_proj",)}
_GRANITE = _experts("block_sparse_moe", "input_linear", "input_linear", "output_linear")
_GRANITE |= {"shared.gate": ("shared_mlp.input_linear",), "shared.up": ("shared_mlp.input_linear",)}
_GRANITE |= {"shared.down": ("shared_mlp.output_linear",)}
_SHARED_MLP = _leaves("shared_mlp", gate="input_linear", up="input_linear", down="output_linear")


def _transformer(attention: str, qkv: str, out: str, up: str, down: str, **fields: str) -> Layout:
    """GPT-2's descendants: ``transformer.h``, one matrix or three for query, key and value, no gate."""
    names = _leaves(attention, **dict(zip("qkv", qkv.split() * 3, strict=False)), o=out)
    known: dict[str, str] = {"root": "transformer.", "layers": "h", "embedding": "wte"} | fields
    return Layout(names=names | {"up": (up,), "down": (down,)}, **known)  # type: ignore[arg-type]


_GPT2 = _transformer("attn", "c_attn", "c_proj", "mlp.c_fc", "mlp.c_proj")
_BLOOM = _transformer(
    "self_attention", "query_key_value", "dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", embedding="word_embeddings"
)


def _state_space(parent: str) -> Names:
    names = _leaves(parent, **{"in": "in_proj", "x": "x_proj", "dt": "dt_proj", "out": "out_proj"})
    return names | _leaves(parent, **{"in.zxdt": "in_proj", "in.bc": "in_proj"})


_MAMBA = Layout(names=_state_space("mixer"), root="backbone.", embedding="embeddings")
_DELTA = _leaves("linear_attn", **{"in.qk": "in_proj_qkv", "in.vz": "in_proj_qkv in_proj_z", "out": "out_proj"})
_DELTA |= _leaves("linear_attn", **{"in.ba": "in_proj_b in_proj_a"})
_NEXT = _DELTA | _leaves("linear_attn", **{"in.qk": "in_proj_qkvz", "in.vz": "in_proj_qkvz", "in.ba": "in_proj_ba"})
_KDA = _leaves("self_attn", qkv="q_proj k_proj v_proj", gates_a="f_a_proj g_a_proj", gates_b="f_b_proj g_b_proj")
_KDA |= {"b": ("self_attn.b_proj",), "kimi_delta:out": ("self_attn.o_proj",)}
_KDA |= _leaves("self_attn", **{"decay.a": "f_a_proj", "decay.b": "f_b_proj", "output_gate": "g_proj"})
_LIGHTNING = _leaves("self_attn", qkv="qkv_proj", out="out_proj")
_LIGHTNING |= {"lightning_attention:gate": ("self_attn.output_gate",)}
_PER_LAYER = {
    "per_layer_input:gate": ("per_layer_input_gate",),
    "per_layer_input:projection": ("per_layer_projection",),
}
_PER_LAYER_OUTSIDE: Names = {"per_layer.table": ("embed_tokens_per_layer",)}
_PER_LAYER_OUTSIDE |= {"per_layer.projection": ("per_layer_model_projection",)}
_HYBRID_FF = _gated("feed_forward")


_LIKE_LLAMA = """
llama yi granite mistral qwen2 qwen3 gemma gemma2 gemma3_text cohere cohere2 stablelm olmo olmo2 olmo3 internlm smollm3
nemotron seed_oss exaone4 orion arcee ernie4_5 helium internlm3 cwm hunyuan_v1_dense
ministral3 ministral mimo apertus bitnet granite_swa hyperclovax jais2 vaultgemma
"""
_LIKE_QWEN_MOE = "glm4_moe dots1 ernie4_5_moe solar_open exaone_moe deepseek qwen3_moe olmoe " + (
    "glm4v_moe_text qwen3_omni_moe_text cohere2_moe flex_olmo kolibri1 mellum mimo_v2_flash"
)
_LIKE_DEEPSEEK = "deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa minicpm3 youtu axk1"
_LIKE_MIXTRAL = "mixtral phimoe minimax_m2"


def _families() -> dict[str, Layout]:
    rows = dict.fromkeys(_LIKE_LLAMA.split(), _LLAMA)
    rows |= dict.fromkeys(_LIKE_QWEN_MOE.split(), _ROUTED)
    rows |= dict.fromkeys(_LIKE_DEEPSEEK.split(), _DEEPSEEK)
    rows |= dict.fromkeys(_LIKE_MIXTRAL.split(), _BLOCK_SPARSE)
    return rows | _fused() | _older() | _hybrids()


def _fused() -> dict[str, Layout]:
    """Decoders that join matrices, or keep their experts elsewhere."""
    stacked = _experts("mlp.experts", "gate_up_proj", "gate_up_proj")
    crossed = {f"cross.{name}": (f"cross_attn.{name}_proj",) for name in ("q", "k", "v", "o")}
    gated_query: Names = {"q": ("self_attn.q_proj", "self_attn.gate_proj")}
    indexed = _gated("block_sparse_moe.shared_experts", "shared.")
    indexed |= {"index.q": ("self_attn.index_q_proj",), "index.k": ("self_attn.index_k_proj",)}
    gemma4 = _LLAMA.names | _PER_LAYER | _experts("experts", "gate_up_proj", "gate_up_proj")
    llama4 = _QKVO | _gated("feed_forward") | _experts("feed_forward.experts", "gate_up_proj", "gate_up_proj")
    altup = {"streams.in": ("altup_projections.{}",), "streams.out": ("altup_unembed_projections.{}",)}
    linear = {"mixer:linear": ("self_attn.linear_attn",), "ffn:linear": ("mlp.linear_mlp",)}
    laurel = {"left": ("laurel.linear_left",), "right": ("laurel.linear_right",)}
    return {
        "qwen2_moe": _ONE_SHARED,
        "flint": _ONE_SHARED,
        "laguna": replace(_ONE_SHARED, names=_ONE_SHARED.names | {"head_gate": ("self_attn.g_proj",)}),
        "afmoe": replace(_ROUTED, names=_ROUTED.names | gated_query),
        "beam": replace(_ROUTED, names=_ROUTED.names | gated_query),
        "granitemoe_swa": replace(
            _LLAMA,
            names=_QKVO | _experts("block_sparse_moe.experts", "gate_up_proj", "gate_up_proj"),
            bare=frozenset({"block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj"}),
        ),
        "mimo_v2": replace(_ROUTED, names=_ROUTED.names | _FUSED_QKV),
        "mllama_text_model": replace(_LLAMA, names=_LLAMA.names | crossed),
        "dots3_note_text": replace(_DEEPSEEK, names=_DEEPSEEK.names | {"mla:gate": ("self_attn.g_proj",)}),
        "hy_v4": _hunyuan_v4(),
        "minimax_m3_vl_text": replace(_BLOCK_SPARSE, names=_BLOCK_SPARSE.names | _MLP | indexed),
        "deepseek_v4": _deepseek_v4(),
        "phi3": replace(_LLAMA, names=_LLAMA.names | _FUSED_QKV | _FUSED_MLP),
        "glm": replace(_LLAMA, names=_LLAMA.names | _FUSED_MLP),
        "glm4v_text": replace(_LLAMA, names=_LLAMA.names | _FUSED_MLP),
        "glm4": replace(_LLAMA, names=_LLAMA.names | _FUSED_MLP),
        "baichuan": replace(_LLAMA, names=_LLAMA.names | dict.fromkeys("qkv", ("self_attn.W_pack",))),
        "minicpm": replace(_LLAMA, names=_LLAMA.names | _experts("mlp.experts.{}", "w1", "w3", "w2")),
        **dict.fromkeys(
            ("hunyuan", "hunyuan_v1_moe", "hy_v3"),
            replace(_LLAMA, names=_LLAMA.names | _SPARSE | _gated("mlp.shared_mlp", "shared.")),
        ),
        "granitemoe": replace(_LLAMA, names=_QKVO | _GRANITE),
        "granitemoeshared": replace(_LLAMA, names=_QKVO | _GRANITE),
        "nemotron-nas": replace(_LLAMA, names=_LLAMA.names | linear),
        "gpt_oss": replace(
            _LLAMA, names=_QKVO | stacked, bare=frozenset({"mlp.experts.gate_up_proj", "mlp.experts.down_proj"})
        ),
        "gemma4_text": replace(
            _LLAMA,
            names=gemma4,
            outside=_PER_LAYER_OUTSIDE,
            bare=frozenset({"experts.gate_up_proj", "experts.down_proj"}),
        ),
        "gemma4_unified_text": replace(_LLAMA, names=gemma4, outside=_PER_LAYER_OUTSIDE),
        "gemma3n_text": replace(_LLAMA, names=_LLAMA.names | _PER_LAYER | laurel, outside=_PER_LAYER_OUTSIDE | altup),
        "llama4_text": replace(
            _LLAMA,
            names=llama4 | _gated("feed_forward.shared_expert", "shared."),
            bare=frozenset({"feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"}),
        ),
    }


def _hunyuan_v4() -> Layout:
    """Hunyuan V4: gates are ``linear_gate``, experts are stacked."""
    names = _DEEPSEEK.names | {"mla:gate": ("self_attn.linear_gate",), "gate": ("mlp.linear_gate",)}
    names |= _experts("mlp.experts", "gate_up_proj", "gate_up_proj")
    names |= {"shared.gate": ("mlp.shared_experts.linear_gate",)}
    return replace(_LLAMA, names=names, bare=frozenset({"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}))


def _deepseek_v4() -> Layout:
    """DeepSeek's own names, as its inference code and NVIDIA's quantisation lists have them: no root."""
    names = _leaves("attn", q_a="wq_a", q_b="wq_b", kv="wkv", o_a="wo_a", o_b="wo_b") | _experts(
        "ffn.experts.{}", "w1", "w3", "w2"
    )
    names |= {"shared.gate": ("ffn.shared_experts.w1",), "shared.up": ("ffn.shared_experts.w3",)}
    names |= {"shared.down": ("ffn.shared_experts.w2",), "index.q": ("attn.indexer.wq_b",)}
    return Layout(names=names, root="", embedding="embed", head="head")


def _older() -> dict[str, Layout]:
    """The generation of GPT-2, and families with a modelling file of their own."""
    phi = _QKVO | {"o": ("self_attn.dense",), "up": ("mlp.fc1",), "down": ("mlp.fc2",)}
    opt = _QKVO | {"o": ("self_attn.out_proj",), "up": ("fc1",), "down": ("fc2",)}
    qwen = _transformer("attn", "c_attn", "c_proj", "mlp.w1", "mlp.c_proj")
    exaone = _transformer("attn.attention", "q_proj k_proj v_proj", "out_proj", "mlp.c_fc_1", "mlp.c_proj")
    wide = _leaves("attention", q="wqkv", k="wqkv", v="wqkv", o="wo")
    wide |= _leaves("feed_forward", gate="w1", up="w3", down="w2")
    ffn = "ffn.experts.mlp"
    dbrx = _leaves("norm_attn_norm.attn", q="Wqkv", k="Wqkv", v="Wqkv", o="out_proj") | _experts(ffn, "w1", "v1", "w2")
    chatglm = _leaves("self_attention", **dict.fromkeys("qkv", "query_key_value"), o="dense")
    chatglm |= _leaves("mlp", gate="dense_h_to_4h", up="dense_h_to_4h", down="dense_4h_to_h")
    llada: Names = {"q": ("q_proj",), "k": ("k_proj",), "v": ("v_proj",), "o": ("attn_out",)}
    llada |= {"gate": ("ff_proj",), "up": ("up_proj",), "down": ("ff_out",)}
    projections: Names = {"project_in": ("project_in",), "project_out": ("project_out",)}
    return {
        "phi": replace(_LLAMA, names=phi),
        "starcoder2": replace(_LLAMA, names=_QKVO | {"up": ("mlp.c_fc",), "down": ("mlp.c_proj",)}),
        "gpt2": _GPT2,
        "gpt_bigcode": _GPT2,
        "gptj": _transformer("attn", "q_proj k_proj v_proj", "out_proj", "mlp.fc_in", "mlp.fc_out"),
        "codegen": _transformer("attn", "qkv_proj", "out_proj", "mlp.fc_in", "mlp.fc_out"),
        "gpt_neox": _transformer(
            "attention",
            "query_key_value",
            "dense",
            "mlp.dense_h_to_4h",
            "mlp.dense_4h_to_h",
            root="gpt_neox.",
            layers="layers",
            embedding="embed_in",
            head="embed_out",
        ),
        "opt": replace(_LLAMA, names=opt, outside=projections, root="model.decoder."),
        "bloom": _BLOOM,
        "falcon": _BLOOM,
        "mpt": _transformer("attn", "Wqkv", "out_proj", "ffn.up_proj", "ffn.down_proj", layers="blocks"),
        "exaone": replace(exaone, names=exaone.names | {"gate": ("mlp.c_fc_0",)}),
        "qwen": replace(qwen, names=qwen.names | {"gate": ("mlp.w2",)}),
        "internlm2": replace(_LLAMA, names=wide, embedding="tok_embeddings", head="output"),
        "dbrx": Layout(
            names=dbrx,
            root="transformer.",
            layers="blocks",
            embedding="wte",
            bare=frozenset(f"{ffn}.{leaf}" for leaf in ("w1", "v1", "w2")),
        ),
        "chatglm": Layout(
            names=chatglm,
            root="transformer.encoder.",
            embedding="transformer.embedding.word_embeddings",
            head="transformer.output_layer",
        ),
        "llada": Layout(
            names=llada, root="model.transformer.", layers="blocks", embedding="wte", head="model.transformer.ff_out"
        ),
    }


def _hybrids() -> dict[str, Layout]:
    """Families with a recurrent state in some of their layers."""
    mixer = _state_space("mixer") | _leaves("mixer", q="q_proj", k="k_proj", v="v_proj", o="o_proj")
    mixer |= {"up": ("mixer.up_proj",), "down": ("mixer.down_proj",)} | _experts("mixer.experts.{}")
    mixer |= _gated("mixer.shared_experts", "shared.")
    mixer |= {"latent.in": ("mixer.fc1_latent_proj",), "latent.out": ("mixer.fc2_latent_proj",)}
    mamba = _state_space("mamba")
    kimi = _QKVO | _MLP | _LATENT | _KDA | _MIXTRAL | _gated("block_sparse_moe.shared_experts", "shared.")
    kimi |= {"mla:gate": ("self_attn.g_proj",), "latent.in": (), "latent.out": ()}  # K3's files leave these two wide
    time = _leaves("attention", key="key", value="value", receptance="receptance", output="output")
    channel = {f"rwkv_channel_mix:{name}": (f"feed_forward.{name}",) for name in ("key", "receptance", "value")}
    block = _leaves("temporal_block", q="q_proj", k="k_proj", v="v_proj", o="o_proj", out="linear_out")
    block |= {"in": ("temporal_block.linear_x", "temporal_block.linear_y"), "gates": ()} | _gated("mlp_block")
    lfm = _leaves("feed_forward", gate="w1", up="w3", down="w2") | _experts("feed_forward.experts.{}", "w1", "w3", "w2")
    lfm |= _QKVO | {"short_conv:in": ("conv.in_proj",), "short_conv:out": ("conv.out_proj",)}
    lfm3 = lfm | {"head_gate": ("self_attn.gate_proj",)}
    lfm2 = lfm | {"o": ("self_attn.out_proj",)}
    own = _leaves("linear_attn", **{"in.qk": "q_proj k_proj", "in.vz": "v_proj g_proj", "in.ba": "b_proj a_proj"})
    own |= {"gated_delta_net:out": ("linear_attn.o_proj",)}
    ling: Names = {name: (f"attention.{module[0].partition('.')[2]}",) for name, module in (_QKVO | _LATENT).items()}
    ling |= _leaves("attention", qkv="q_proj k_proj v_proj", gates="f_proj g_proj", b="b_proj", o="dense", out="dense")
    ling |= {"mla:gate": ("attention.g_proj",)} | _MLP | _SPARSE | _SHARED
    delta = _LLAMA.names | _SPARSE | _gated("mlp.shared_expert", "shared.")
    return {
        "qwen3_next": replace(_LLAMA, names=delta | _NEXT),
        "qwen3_5_text": replace(_LLAMA, names=delta | _DELTA),
        "qwen3_5_moe_text": replace(_LLAMA, names=delta | _DELTA),
        "olmo_hybrid": replace(_LLAMA, names=_LLAMA.names | own),
        "bailing_hybrid": replace(_LLAMA, names=ling, embedding="word_embeddings"),
        "lfm2": replace(_LLAMA, names=lfm2),
        "lfm2_moe": replace(_LLAMA, names=lfm2),
        "lfm3": replace(_LLAMA, names=lfm3),
        "mamba": _MAMBA,
        "falcon_mamba": _MAMBA,
        "mamba2": _MAMBA,
        "nemotron_h": replace(_MAMBA, names=mixer),
        "jamba": replace(_LLAMA, names=_QKVO | _HYBRID_FF | mamba | _experts("feed_forward.experts.{}")),
        "bamba": replace(_LLAMA, names=_QKVO | _HYBRID_FF | mamba),
        "falcon_h1": replace(_LLAMA, names=_QKVO | _HYBRID_FF | mamba),
        "granitemoehybrid": replace(_LLAMA, names=_QKVO | _GRANITE | _SHARED_MLP | mamba),
        "kimi_linear": replace(_LLAMA, names=kimi),
        "minimax": replace(_LLAMA, names=_QKVO | _MIXTRAL | _LIGHTNING),
        "minimax_text_01": replace(_LLAMA, names=_QKVO | _MIXTRAL | _LIGHTNING),
        "rwkv": Layout(names=time | channel, root="rwkv.", layers="blocks", embedding="embeddings", head="head"),
        "recurrent_gemma": replace(_LLAMA, names=block),
    }


LAYOUTS: dict[str, Layout] = _families()
"""The layout of each family (a row of the importer's table). zamba2 shares blocks between layers: it has no row."""
