"""Language models with a mechanism that no other family has: routed heads, learned masks, segments, patches of bytes.

Shapes are those of the classes of transformers that the configs belong to; what has no time is an ``untimed`` part.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from inferplan.models.huggingface.decoder import attention, every_layer, mlp, model, moe
from inferplan.models.huggingface.decoder_builders import gemma4
from inferplan.models.huggingface.dialect import Dialect, Layer, compress
from inferplan.models.huggingface.reader import FFN, HEADS, KV_HEADS, LAYERS, WIDTH, Reader


def untimed(why: str, **fields: Any) -> Layer:
    """A part that is counted and has no time."""
    return {"kind": "untimed", "why": why, **fields}


def jetmoe(r: Reader, d: Dialect) -> dict[str, Any]:
    """JetMoE: queries and outputs of attention are experts too, each with as many heads as there are keys."""
    kv, top = r.integer(*KV_HEADS), r.integer("num_experts_per_tok")
    r.only("num_attention_heads", kv * top)
    mixer = {
        "kind": "routed_attention",
        "heads": kv * top,
        "kv_heads": kv,
        "head_dim": r.integer("kv_channels", "head_dim"),
        "experts": r.integer("num_local_experts"),
        "top_k": top,
        "out_bias": True,
    }
    experts = moe(r, d, r.integer(*FFN), out_bias=True)
    return model(r, d, [{"mixer": mixer, "ffn": experts}] * r.integer(*LAYERS))


_MASKED = "a mask that it learns of every cached value chooses what a token attends to"
_KEYED = "its experts are rows of two tables, found by product keys"


def doge(r: Reader, d: Dialect) -> dict[str, Any]:
    """Doge: dynamic masks, scaled residuals, and experts that are single rows."""
    width, own = r.integer(*WIDTH), attention(r, d)
    kv, bias = own["kv_heads"], own["qkv_bias"]
    window = every_layer(r, 1)[0]
    tensors: dict[str, list[int]] = {"mask.scale": [kv], "mask.projection": [kv, kv * own["head_dim"]]}
    tensors |= {"residual": [2, width]} | ({"mask.bias": [kv]} if bias else {})
    extras = [untimed(_MASKED, tensors=tensors, width=kv)]
    r.skip("keep_window_size")
    if r.flag("is_moe", False):
        experts, top = r.integer("num_experts"), r.integer("num_experts_per_tok")
        rows = {f"expert.{name}": [experts, width] for name in ("down", "up")}
        share = dict.fromkeys(rows, top / experts)
        keys = {"router": [2 * isqrt(experts), width]}
        extras.append(untimed(_KEYED, tensors=keys | rows, active=share, width=2 * top * width))
    r.skip("num_experts", "num_experts_per_tok")
    mixer = own | ({"window": window} if window else {})
    return model(r, d, [{"mixer": mixer, "ffn": mlp(r, d), "extras": extras}] * r.integer(*LAYERS))


def xlnet(r: Reader, d: Dialect) -> dict[str, Any]:
    """XLNet (1906.08237) in one pass over a text: keys of distances, and biases for two segments."""
    width, heads, size = r.integer("d_model"), r.integer("n_head"), r.integer("d_head")
    mixer = {"kind": "relative_attention", "heads": heads, "kv_heads": heads, "head_dim": size, "causal": False}
    mixer |= {"rotary": False, "segments": 2}
    r.only("attn_type", "bi", "uni")
    r.skip("mem_len", "reuse_len", "use_mems_eval", "use_mems_train", "bi_data", "clamp_len", "same_length")
    r.skip("start_n_top", "end_n_top", "untie_r")
    r.config |= {"hidden_act": r.get("ff_activation")}
    layer: Layer = {"mixer": mixer, "ffn": mlp(r, d, r.integer("d_inner"))}
    note = (
        "one pass over a text is priced: what it would generate token by token with states of earlier segments is not"
    )
    return {
        "d_model": width,
        "vocab": r.integer("vocab_size"),
        "max_context": None,
        "norm": "layer",
        "final_norm": False,
        "layers": compress([layer] * r.integer("n_layer")),
        "generation": {"kind": "encode"},
        "head_bias": True,
        "ends": {"tensors": {"mask": [width]}, "heads": [{"name": "lm_loss", "rows": "token", "vocabulary": True}]},
        "notes": [note],
    }


def cpmant(r: Reader, d: Dialect) -> dict[str, Any]:
    """CPM-Ant: a table of biases by distance and by pair of segments, and a prompt of its own ahead of each request."""
    heads, segments = r.integer(*HEADS), r.integer("segment_types")
    length = r.integer("prompt_length")
    rows = r.integer("position_bias_num_buckets") + segments**2
    mixer = {"kind": "attention", "heads": heads, "kv_heads": heads, "head_dim": r.integer("dim_head")}
    mixer |= {"rotary": False}
    ffn = mlp(r, d, r.integer("dim_ff"))
    layers = [
        {"mixer": mixer | ({} if index else {"relative_buckets": rows}), "ffn": ffn}
        for index in range(r.integer(*LAYERS))
    ]
    r.skip("position_bias_max_distance", "eps", "dropout_p")
    note = f"each request has {length} tokens of the model's own ahead of it (prompt_length): add them to --prompt"
    return model(r, d, layers) | {
        "tied": False,  # the class ties tables of different rows, which leaves them two
        "ends": {"tables": {"segments": segments, "prompts": r.integer("prompt_types") * length}},
        "notes": [note],
    }


_IMAGES = "its decoder attends to an encoder of images that its own config does not describe"


def trocr(r: Reader, d: Dialect) -> dict[str, Any]:
    """TrOCR's decoder (2109.10282): BART's, which attends to an image's encoder of whatever width."""
    width, heads = r.integer("d_model", "hidden_size"), r.integer("decoder_attention_heads")
    if width % heads:
        raise r.refuse("decoder_attention_heads", f"{heads} heads do not divide the width {width}")
    source = r.integer("cross_attention_hidden_size", default=width)
    mixer = {"kind": "attention", "heads": heads, "kv_heads": heads, "head_dim": width // heads, "rotary": False}
    mixer |= {"qkv_bias": True, "out_bias": True}
    square, bias = [width, width], [4, width]
    cross = {"cross.q": square, "cross.k": [width, source], "cross.v": [width, source], "cross.o": square}
    layer: Layer = {
        "mixer": mixer,
        "ffn": mlp(r, d, r.integer("decoder_ffn_dim")),
        "extras": [untimed(_IMAGES, tensors=cross | {"cross.bias": bias}, width=4 * width)],
        "norms": 3,
    }
    rows = r.integer("max_position_embeddings")
    r.skip("num_hidden_layers", "decoder_layerdrop", "num_attention_heads")
    return {
        "d_model": width,
        "vocab": r.integer("vocab_size"),
        "max_context": rows,
        "positions": rows + 2 if r.flag("use_learned_position_embeddings", True) else 0,
        "norm": "layer",
        "final_norm": False,
        "embedding_norm": r.flag("layernorm_embedding", True),
        "layers": compress([layer] * r.integer("decoder_layers")),
        "notes": [
            f"keys and values of an image, {2 * width} elements a position and layer, come on top of the cache: the "
            "config does not say how many positions an image has"
        ],
    }


_PATCHES = "it works on patches of bytes, whose length follows the text"


def blt(r: Reader, d: Dialect) -> dict[str, Any]:
    """BLT (2412.09871): a local encoder and decoder of bytes around a transformer of patches, and what cuts them."""
    local = [r.table(f"{part}_config") for part in ("encoder", "decoder", "global", "patcher")]
    if None in local:
        raise r.refuse("encoder_config, decoder_config, global_config, patcher_config", "a BLT config has all four")
    encoder, decoder, patches, cutter = (table for table in local if table is not None)
    width, wide = decoder.integer("hidden_size"), patches.integer("hidden_size")
    if encoder.integer("hidden_size") != width or decoder.integer("hidden_size_global") != wide:
        raise r.refuse("hidden_size", "encoder and decoder of bytes are of one width, and know that of patches")
    window, size, entries = r.optional("local_attention_window_len"), r.integer("patch_size"), encoder.integer(_ENTRIES)
    layers = [_bytes(r, d, encoder, window) for _ in range(encoder.integer("num_hidden_layers"))]
    crossed = layers if encoder.flag("cross_attn_all_layers", False) else layers[-1:]
    joined = [{**layer, "extras": [_across(r, width, encoder)]} for layer in crossed]
    layers = layers[: len(layers) - len(joined)] + joined
    own = [_bytes(r, d, decoder, window) for _ in range(decoder.integer("num_hidden_layers"))]
    every = decoder.flag("cross_attn_all_layers", True)
    own = [
        {**one, "extras": [_across(r, width, decoder)]} if every or not index else one for index, one in enumerate(own)
    ]
    outside = {
        "encoder.patches": [width * entries, width],
        "decoder.patches": [width * decoder.integer(_ENTRIES), wide],
    }
    r.only(_ENTRIES, entries)  # the class widens patches by this one, and cuts them by its encoder's
    if entries * width != wide:
        outside["patches.in"] = [wide, entries * width]
    whole = [untimed(_PATCHES, tensors=outside), _stack(r, patches, rate=size)]
    if r.flag("patch_in_forward", True):
        if "sliding_window" not in cutter.config:
            raise cutter.refuse("sliding_window", "it is absent: its class takes 512, and only null says that none is")
        whole.append(_stack(r, cutter, window=cutter.optional("sliding_window"), vocab=cutter.integer("vocab_size")))
    own[0] = {**own[0], "extras": [*own[0].get("extras", []), *whole]}
    groups = r.get("encoder_hash_byte_group_size") or r.need("encoder_hash_byte_group_size")
    rows = r.integer("encoder_hash_byte_group_vocab") * r.integer("encoder_hash_byte_group_nb_functions") * len(groups)
    if encoder.integer("vocab_size") != r.integer("vocab_size"):
        raise r.refuse("vocab_size", "it is not that of the encoder of bytes")
    r.skip("patching_mode", "patching_threshold", "patching_batch_size", "max_patch_length")
    note = f"a patch is taken to have {size} bytes (patch_size), and one position of the transformer's cache"
    return {
        "d_model": width,
        "vocab": r.integer("vocab_size"),
        "max_context": r.integer("max_position_embeddings"),
        "layers": compress([*layers, *own]),
        "ends": {"tables": {"hashes": rows}},
        "notes": [note],
    }


_ENTRIES = "cross_attn_k"


def _bytes(r: Reader, d: Dialect, part: Reader, window: int | None) -> Layer:
    """A layer of the local encoder or decoder."""
    heads, head_dim = _heads(part, part.integer("hidden_size"))
    kv = part.integer("num_key_value_heads", default=heads)
    mixer: Layer = {"kind": "attention", "heads": heads, "kv_heads": kv, "head_dim": head_dim}
    ffn = mlp(part, d, part.integer("intermediate_size"))
    return {"mixer": mixer | ({"window": window} if window else {}), "ffn": ffn}


def _heads(part: Reader, width: int) -> tuple[int, int]:
    """Heads and their width."""
    heads = part.integer("num_attention_heads")
    if heads < 1 or width % heads:
        raise part.refuse("num_attention_heads", f"{heads} heads do not divide the width {width}")
    return heads, width // heads


def _across(r: Reader, width: int, part: Reader) -> Layer:
    """Attention between bytes and patches."""
    heads, head_dim = _heads(part, width)
    kv = part.integer("num_key_value_heads", default=heads) * head_dim
    tensors = {"cross.q": [width, width], "cross.kv": [2, kv, width], "cross.o": [width, width], "norms": [2, width]}
    return untimed(_PATCHES, tensors=tensors, width=2 * width)


def _stack(r: Reader, part: Reader, vocab: int = 0, **kept: Any) -> Layer:
    """A whole transformer inside: its layers, and the tables of one that has a vocabulary."""
    count, width = part.integer("num_hidden_layers"), part.integer("hidden_size")
    heads, head_dim = _heads(part, width)
    kv = part.integer("num_key_value_heads", default=heads) * head_dim
    inner = part.integer("intermediate_size")
    tensors = {
        "attention": [count, 2, width, width],
        "keys": [count, 2, kv, width],
        "feed_forward": [count, 3, inner, width],
        "norms": [2 * count, width],
    }
    if vocab:
        tensors |= {"tables": [2, vocab, width], "norm": [width]}
    return untimed(_PATCHES, tensors=tensors, per_token=2 * kv * count, width=3 * inner, **kept)


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
