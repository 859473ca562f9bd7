"""Language models with mechanisms around attention: gated norms, convolutions, streams, attended residuals.

Shapes are those of the classes of transformers that the configs belong to.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from inferplan.models.huggingface.decoder import attention, mlp, model, moe
from inferplan.models.huggingface.dialect import Dialect, Layer, untimed
from inferplan.models.huggingface.gates_and_norms import kinds_of, walk
from inferplan.models.huggingface.latent import latent
from inferplan.models.huggingface.reader import LAYERS, MOE_FFN, WIDTH, Reader
from inferplan.models.huggingface.recurrent import delta_state


def axk2(r: Reader, d: Dialect) -> dict[str, Any]:
    """A.X K2: DeepSeek-V3.2's layers, whose norms have gates of low rank and whose queries bring a gate."""
    rank = r.integer("gated_norm_rank")
    fields = latent(r, d)
    for layer in walk(fields["layers"]):
        sites = 2 if layer["ffn"]["kind"] == "moe" else 1
        layer["mixer"] = layer["mixer"] | {"gate": "query"}
        layer["extras"] = [{"kind": "gated_norm", "rank": rank, "sites": sites}]
    return fields


def zaya(r: Reader, d: Dialect) -> dict[str, Any]:
    """Zaya (2510.04476): convolved queries and keys, half of each value a token late, and a network for a router."""
    count, width = r.integer(*LAYERS), r.integer(*WIDTH)
    own = attention(r, d)
    size, channels = own["head_dim"], (own["heads"] + own["kv_heads"]) * own["head_dim"]
    if own["kv_heads"] * size % 2:
        raise r.refuse("head_dim", "half of each value is a token late: their width is odd")
    window = r.optional("sliding_window")
    kinds = kinds_of(r, "layer_types", count, "hybrid", "hybrid_sliding") or ["hybrid"] * count
    r.only("num_experts_per_tok", 1)
    inner = r.integer("router_hidden_size")
    experts = moe(r, d, r.integer(*MOE_FFN), zero_experts=1, router_width=inner)
    first, second = r.integer("cca_time0"), r.integer("cca_time1")
    kept = (first - 1) + (second - 1)
    conv: Layer = {"kind": "causal_conv", "channels": channels, "bias": True}
    convs = [conv | {"taps": first, "kept": kept}, conv | {"taps": second, "group": size, "kept": 0}]
    scales = {"residual": [8, width], "temperature": [1, own["kv_heads"]]}
    later = {"kind": "scales", "vectors": scales | {"router": [1, inner]}}
    layers: list[Layer] = []
    for index, kind in enumerate(kinds):
        mixer = own | {"late_values": True} | ({"window": window} if kind == "hybrid_sliding" else {})
        own_scales = later if index else {"kind": "scales", "vectors": scales}
        layers.append({"mixer": mixer, "ffn": experts, "extras": [*convs, own_scales]})
    tensors = {"input_scales": [2, width]}
    return model(r, d, layers) | {"ends": {"tensors": tensors}}


def inkling(r: Reader, d: Dialect) -> dict[str, Any]:
    """Inkling: convolutions behind keys, values, attention and feed-forward, and biases by distance of each token."""
    count, width = r.integer(*LAYERS), r.integer(*WIDTH)
    kinds = _inkling_kinds(r, count)
    taps, rank = r.integer("conv_kernel_size", "sconv_kernel_size"), r.integer("d_rel")
    mixers = {kind: _inkling_attention(r, kind) for kind in dict.fromkeys(kinds)}
    places = kinds_of(r, "mlp_layer_types", count, "dense", "sparse") or ["sparse"] * count
    columns, shared = r.integer(*MOE_FFN), r.integer("n_shared_experts")
    experts = moe(r, d, columns, shared_routes=shared, **({"shared_d_ff": shared * columns} if shared else {}))
    dense = mlp(r, d)
    scale = {"kind": "scales", "vectors": {"global": [1, 1]}}
    extent = {"hybrid": r.integer("rel_extent"), "hybrid_sliding": r.integer("sliding_window_size", "sliding_window")}
    layers: list[Layer] = []
    for kind, place in zip(kinds, places, strict=True):
        mixer = mixers[kind]
        bias = {"kind": "relative_bias", "heads": mixer["heads"], "rank": rank, "extent": extent[kind]}
        keys = {"kind": "causal_conv", "channels": 2 * mixer["kv_heads"] * mixer["head_dim"], "taps": taps}
        stream = {"kind": "causal_conv", "channels": 2 * width, "taps": taps}
        layers.append(
            {"mixer": mixer, "ffn": experts if place == "sparse" else dense, "extras": [bias, keys, stream, scale]}
        )
    r.skip("unpadded_vocab_size", "log_scaling_n_floor", "log_scaling_alpha", "local_layer_ids", "shared_expert_sink")
    r.skip("route_scale", "rms_norm_eps_moe_gate", "chain_hidden_post_norm", "mtp_hidden_states_first", "dense_mlp_idx")
    r.skip("mtp_local_layer_ids", "logits_mup_width_multiplier", "model_max_length", "number_of_conv_states")
    modules = r.integer("num_mtp_layers", default=0)
    notes = {"notes": ["the prediction module (num_mtp_layers) is not counted"]} if modules else {}
    return model(r, d, layers) | {"embedding_norm": True, "tied": False} | notes


def _inkling_kinds(r: Reader, count: int) -> list[str]:
    kinds = kinds_of(r, "layer_types", count, "hybrid", "hybrid_sliding")
    if kinds is None:
        raise r.refuse("layer_types", "it is absent: which layers slide is not guessed")
    return kinds


def _inkling_attention(r: Reader, kind: str) -> Layer:
    """The heads of a kind of layer, and what it sees."""
    slides = kind == "hybrid_sliding"
    begin = "swa_" if slides else ""
    heads, kv = r.integer(f"{begin}num_attention_heads"), r.integer(f"{begin}num_key_value_heads")
    mixer: Layer = {"kind": "attention", "heads": heads, "kv_heads": kv, "head_dim": r.integer(f"{begin}head_dim")}
    mixer |= {"rotary": False, "qk_norm": "head"}
    r.skip(*(f"{other}{name}" for other in ("", "swa_") for name in _HEADS))
    return mixer | ({"window": r.integer("sliding_window_size", "sliding_window")} if slides else {})


_HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim")
_ATTENDED = (
    "each part reads what it chooses of the outputs of earlier blocks of layers, and some convolutions are dynamic"
)


def inkling2(r: Reader, d: Dialect) -> dict[str, Any]:
    """Inkling 2: Inkling's layers with gates, sinks of each token, and attention over the outputs of earlier blocks."""
    count, width = r.integer(*LAYERS), r.integer(*WIDTH)
    kinds = _inkling_kinds(r, count)
    taps, rank = r.integer("conv_kernel_size", "sconv_kernel_size"), r.integer("d_rel")
    experts = moe(r, d, r.integer(*MOE_FFN, "intermediate_size"))
    window, extent = r.integer("sliding_window_size", "sliding_window"), r.integer("rel_extent")
    layers: list[Layer] = []
    for index, kind in enumerate(kinds):
        mixer = _inkling_attention(r, kind) | {"qk_norm": "none"}
        heads, keys = mixer["heads"], mixer["kv_heads"] * mixer["head_dim"]
        slides = kind == "hybrid_sliding"
        tensors = {
            "gate": [heads * mixer["head_dim"], width],
            "sinks": [heads, width],
            "clips": [heads, mixer["head_dim"] + rank],
            "relative": [heads * rank, width],
            "relative.bank": [rank, window if slides else extent],
            "convolutions": [2, width, taps],
            "keys.convolutions": [2, keys, taps],
        }
        reads = (1 if slides else 3) if index else 0
        tensors |= {"residual": [1 + reads, width]}
        if not slides:
            tensors |= {"norms": [2, width], "dynamic": [2, taps * mixer["kv_heads"], width]}
        part = untimed(_ATTENDED, tensors=tensors, state=(2 * keys + 2 * width) * taps, width=4 * width)
        layers.append({"mixer": mixer, "ffn": experts, "extras": [part]})
    r.skip("unpadded_vocab_size", "log_scaling_n_floor", "log_scaling_alpha", "route_scale", "qk_l2_clip_threshold")
    r.skip(
        "n_layers_per_attn_res_block",
        "rel_l2_clip_threshold",
        "mlp_gate_softcap",
        "mlp_up_softcap",
        "number_of_conv_states",
        "model_max_length",
    )
    ends = {"tensors": {"residual": [width]}}
    return model(r, d, layers) | {"embedding_norm": True, "tied": False, "ends": ends}


_STREAMED = "its residual streams are joined by gates of low rank, and an indexer chooses averaged blocks of keys"


def qwen4(r: Reader, d: Dialect) -> dict[str, Any]:
    """Qwen4 Exp: Qwen3.5's mixers and experts on several streams, an indexer of blocks, and tables of n-grams."""
    count, width = r.integer(*LAYERS), r.integer(*WIDTH)
    kinds = kinds_of(r, "layer_types", count, "linear_attention", "indexed_attention", "full_attention")
    if kinds is None:
        step = r.integer("full_attention_interval", default=4)
        kinds = ["linear_attention" if (index + 1) % step else "indexed_attention" for index in range(count)]
    own, state = attention(r, d) | {"output_gate": True}, delta_state(r)
    shared = r.integer("shared_expert_intermediate_size")
    experts = moe(r, d, r.integer(*MOE_FFN), shared_d_ff=shared, shared_gate=True)
    streams, rank = r.integer("hc_count"), r.integer("hc_lowrank")
    wide = streams * width
    join = {"streams.norm": [2, wide], "streams.mix": [4, rank, wide], "streams.inject": [2, streams, wide]}
    index = _qwen4_indexer(r, width) if set(kinds) != {"linear_attention"} else {}
    places = sorted(set(r.get("ple_layer_ids") or []))
    layers: list[Layer] = []
    for position, kind in enumerate(kinds):
        linear = kind == "linear_attention"
        extras = [untimed(_STREAMED, tensors=join, width=wide)]
        if position + 1 in places:
            extras.append(_qwen4_table(r, width, wide, places.index(position + 1)))
        extras += [] if linear else [untimed(_STREAMED, **index)]
        layers.append({"mixer": state if linear else own, "ffn": experts, "norms": 0, "extras": extras})
    r.skip(*(f"indexer_{name}" for name in ("n_heads", "kv_heads", "head_dim", "budget", "compress_ratio")))
    r.skip("ple_embed_dim", "ple_conv_kernel_size", "ngram_size", "heads_per_ngram", "ngram_vocab_size_base", "seed")
    r.skip("make_ngram_vocab_size_divisible_by", "split_ngram_parts", "output_gate_type", "number_of_conv_states")
    r.skip("full_attention_interval")
    mixer = {"streams.norm": [wide], "streams.mix": [2, rank, wide]}
    return model(r, d, layers) | {"final_norm": False, "ends": {"tensors": mixer}}


def _qwen4_indexer(r: Reader, width: int) -> dict[str, Any]:
    heads, size = r.integer("indexer_n_heads"), r.integer("indexer_head_dim")
    r.only("indexer_kv_heads", 1)
    tensors = {"index.qk": [(heads + 1) * size, width], "index.norms": [2, size]}
    return {"tensors": tensors, "per_token": size, "width": (heads + 1) * size}


def _qwen4_table(r: Reader, width: int, wide: int, number: int) -> Layer:
    """The layer's table of hashed n-grams: each head's rows are the next prime beyond the last's."""
    grams, size = r.integer("ngram_size"), r.integer("ple_embed_dim", default=width)
    heads, taps = (grams - 1) * r.integer("heads_per_ngram"), r.integer("ple_conv_kernel_size")
    divisor = r.integer("make_ngram_vocab_size_divisible_by")
    primes = _primes(r.integer("ngram_vocab_size_base") - 1, (number + 1) * heads)[number * heads :]
    rows = -(-sum(primes) // divisor) * divisor
    tensors = {
        "ngrams": [rows, size // heads],
        "ngrams.key": [wide, size],
        "ngrams.value": [width, size],
        "ngrams.norms": [3, wide],
        "ngrams.conv": [wide, taps],
    }
    return untimed("tables of n-grams are looked up", tensors=tensors, state=wide * (taps - 1) * grams, width=2 * wide)


def _primes(after: int, count: int) -> list[int]:
    """The ``count`` primes after a number."""
    found: list[int] = []
    while len(found) < count:
        after += 1
        if after > 1 and all(after % divisor for divisor in range(2, isqrt(after) + 1)):
            found.append(after)
    return found
