"""Where a checkpoint keeps each tensor: one name a tensor and family, the home of module names.

The names are those of the released checkpoints, which transformers' ``save_pretrained`` writes back; a test compares
them with what the installed transformers writes. Families that are not in it: the vendor's modelling file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from inferplan.models.layers import Weight
from inferplan.models.spec import LayerGroup, ModelSpec

Names = dict[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The names of one family.

    names: our tensor, or ``kind:tensor`` where two kinds of part have the same, to its modules in a layer; several
    modules have equal shares of its rows, and ``{}`` stands for the number of an expert. bare: modules that are
    parameters without ``.weight``. outside: the same for tensors outside the layers. layers: what leads to a layer.
    root: what stands ahead of layers and embedding in a checkpoint of the language model alone.
    """

    names: Names
    outside: Names = field(default_factory=dict)
    root: str = "model."
    layers: str = "layers"
    embedding: str = "embed_tokens"
    head: str = "lm_head"
    bare: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Place:
    """One tensor in one layer (``None``: outside the layers), and its modules without the root; none: not known.

    apart: each of the matrices that it stacks (an expert) is a module of its own.
    """

    weight: Weight
    layer: int | None
    modules: tuple[str, ...]
    apart: bool = False


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
nemotron seed_oss exaone4 orion arcee ernie4_5 helium internlm3 cwm hunyuan_v1_dense ministral3
"""
_LIKE_QWEN_MOE = "glm4_moe dots1 ernie4_5_moe solar_open exaone_moe deepseek qwen3_moe olmoe"
_LIKE_DEEPSEEK = "deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa minicpm3 youtu"
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
    gemma4 = _LLAMA.names | _PER_LAYER | _experts("experts", "gate_up_proj", "gate_up_proj")
    llama4 = _QKVO | _gated("feed_forward") | _experts("feed_forward.experts", "gate_up_proj", "gate_up_proj")
    altup = {"streams.in": ("altup_projections.{}",), "streams.out": ("altup_unembed_projections.{}",)}
    linear = {"mixer:linear": ("self_attn.linear_attn",), "ffn:linear": ("mlp.linear_mlp",)}
    laurel = {"left": ("laurel.linear_left",), "right": ("laurel.linear_right",)}
    return {
        "qwen2_moe": _ONE_SHARED,
        "phi3": replace(_LLAMA, names=_LLAMA.names | _FUSED_QKV | _FUSED_MLP),
        "glm": replace(_LLAMA, names=_LLAMA.names | _FUSED_MLP),
        "glm4": replace(_LLAMA, names=_LLAMA.names | _FUSED_MLP),
        "baichuan": replace(_LLAMA, names=_LLAMA.names | dict.fromkeys("qkv", ("self_attn.W_pack",))),
        "minicpm": replace(_LLAMA, names=_LLAMA.names | _experts("mlp.experts.{}", "w1", "w3", "w2")),
        "hunyuan": replace(_LLAMA, names=_LLAMA.names | _SPARSE | _gated("mlp.shared_mlp", "shared.")),
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
        "gemma3n_text": replace(_LLAMA, names=_LLAMA.names | _PER_LAYER | laurel, outside=_PER_LAYER_OUTSIDE | altup),
        "llama4_text": replace(
            _LLAMA,
            names=llama4 | _gated("feed_forward.shared_expert", "shared."),
            bare=frozenset({"feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"}),
        ),
    }


def _older() -> dict[str, Layout]:
    """The generation of GPT-2, and families with a modelling file of their own."""
    phi = _QKVO | {"o": ("self_attn.dense",), "up": ("mlp.fc1",), "down": ("mlp.fc2",)}
    opt = _QKVO | {"o": ("self_attn.out_proj",), "up": ("fc1",), "down": ("fc2",)}
    qwen = _transformer("attn", "c_attn", "c_proj", "mlp.w1", "mlp.c_proj")
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
    time = _leaves("attention", key="key", value="value", receptance="receptance", output="output")
    channel = {f"rwkv_channel_mix:{name}": (f"feed_forward.{name}",) for name in ("key", "receptance", "value")}
    block = _leaves("temporal_block", q="q_proj", k="k_proj", v="v_proj", o="o_proj", out="linear_out")
    block |= {"in": ("temporal_block.linear_x", "temporal_block.linear_y"), "gates": ()} | _gated("mlp_block")
    delta = _LLAMA.names | _SPARSE | _gated("mlp.shared_expert", "shared.")
    return {
        "qwen3_next": replace(_LLAMA, names=delta | _NEXT),
        "qwen3_5_text": replace(_LLAMA, names=delta | _DELTA),
        "qwen3_5_moe_text": replace(_LLAMA, names=delta | _DELTA),
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
NESTED_ROOTS = ("model.language_model.", "language_model.model.")
"""Roots of a language model beside towers: transformers 5 (Qwen3-VL, Gemma 4) and the older one (LLaVA, Llama 4)."""
OLDER_ROOT = frozenset({"llama", "mistral", "ministral3", "llama4_text", "deepseek_v3", "gemma3_text"})
"""Families whose checkpoints beside towers have the older root."""


def places(model: ModelSpec, layout: Layout) -> Iterator[Place]:
    """Every tensor of the model, layer by layer, with its modules."""
    for weight in model.input_weights():
        yield _outside(weight, layout)
    for index, layer in enumerate(model.sequence):
        if layer.shared:
            continue
        for weight, names in _layer(layer, model.d_model, layout):
            yield _place(weight, index, tuple(f"{layout.layers}.{index}.{name}" for name in names))
    for weight in model.output_weights():
        yield _outside(weight, layout)


def checkpoint_shapes(model: ModelSpec, layout: Layout, root: str | None = None) -> dict[str, tuple[int, ...]]:
    """The name of every matrix in a checkpoint, with ``.weight`` where it is a module's, and its rows and columns.

    Matrices that a checkpoint joins (``qkv_proj``) are one entry with the rows of all; stacked experts have three
    dimensions. root: what stands ahead of layers and embedding, the family's own by default. A linear layer that is
    stored transposed (GPT-2's Conv1D, gpt-oss' experts) has its dimensions in the order of ``torch.nn.Linear`` here.
    """
    found: dict[str, tuple[int, ...]] = {}
    for place in places(model, layout):
        shape = place.weight.shape[1:] if place.apart else place.weight.shape
        if len(place.weight.shape) < 2 or not place.modules or place.weight.role == "base":
            continue
        split = 1 if place.apart else len(place.modules)
        for module in place.modules:
            name = module if module.split(".", 2)[-1] in layout.bare else f"{module}.weight"
            full = _rooted(name, layout, layout.root if root is None else root)
            rows = shape[-2] // split + (found[full][-2] if full in found else 0)
            found[full] = (*shape[:-2], rows, shape[-1])
    return found


def _rooted(name: str, layout: Layout, root: str) -> str:
    return name if name.partition(".")[0] in (layout.head, layout.head.partition(".")[0]) else root + name


def _outside(weight: Weight, layout: Layout) -> Place:
    known: Names = {"embedding": (layout.embedding,), "head": (layout.head,)} | layout.outside
    return _place(weight, None, known.get(weight.name, ()))


def _place(weight: Weight, layer: int | None, names: tuple[str, ...]) -> Place:
    if any("{}" in name for name in names):
        names = tuple(name.format(number) for name in names for number in range(weight.shape[0]))
        return Place(weight=weight, layer=layer, modules=names, apart=True)
    return Place(weight=weight, layer=layer, modules=names)


def _layer(layer: LayerGroup, d_model: int, layout: Layout) -> Iterator[tuple[Weight, tuple[str, ...]]]:
    """The tensors of one layer with the modules they are in, without the layer's own name."""
    slots = [("mixer", layer.mixer), ("ffn", layer.ffn), *(("extra", part) for part in layer.extras)]
    for slot, part in slots:
        if part is None:
            continue
        for weight in part.weights(d_model):
            keys = (f"{slot}:{weight.name}", f"{part.kind}:{weight.name}", weight.name)
            yield weight, next((layout.names[key] for key in keys if key in layout.names), ())
