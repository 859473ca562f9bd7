"""Encoder-decoders: T5 and its relatives, BART, and those that read sound.

Shapes are those of the classes of transformers that the configs belong to.
"""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.conformer import activation as hidden_activation
from inferplan.models.huggingface.conformer import fast_encoder
from inferplan.models.huggingface.decoder import ACTIVATIONS, activation
from inferplan.models.huggingface.dialect import Dialect, Layer, compress, flag
from inferplan.models.huggingface.reader import Reader

_HEADS = ("ForCausalLM", "ForSequenceClassification", "ForQuestionAnswering", "ForTokenClassification", "EncoderModel")
_DEAD = (
    "num_hidden_layers", "encoder_layerdrop", "decoder_layerdrop", "add_bias_logits", "add_final_layer_norm",
    "normalize_before", "normalize_embedding", "static_position_embeddings", "extra_pos_embeddings", "save_step",
    "force_bos_token_to_be_generated", "layernorm_variant", "blenderbot_variant", "unk_token_id", "num_beams", "langs",
    "forced_decoder_ids", "n_positions", "output_past", "relative_attention_max_distance",
    "scale_decoder_outputs", "gradient_checkpointing", "tie_encoder_decoder",
)  # fmt: skip
"""Fields that the classes do not read, or that change no shape."""


def bart(r: Reader, d: Dialect, offset: int, final_norm: bool = False) -> dict[str, Any]:
    """BART (1910.13461) and what has its layers.

    offset: rows of the position table beyond the longest input. final_norm: a norm behind the last layer.
    """
    begin(r, d)
    width, vocab = r.integer("d_model"), r.integer("vocab_size")
    longest = r.optional("max_position_embeddings")
    own, source = r.optional("max_decoder_position_embeddings"), r.optional("max_encoder_position_embeddings")
    own, source = own or longest or r.integer("max_position_embeddings"), source or longest
    mixer = side_attention(r, d, width, "encoder") | {"causal": False}
    encoder, decoder = ([_feed(r, d, side)] * r.integer(f"{side}_layers") for side in ("encoder", "decoder"))
    around = {"d_model": width, "norm": "layer", "final_norm": final_norm, "embedding_norm": d.embedding_norm}
    return {
        **around,
        "vocab": vocab,
        "positions": own + offset,
        "max_context": (source or own) + own,
        "layers": decoder_layers(side_attention(r, d, width, "decoder"), decoder),
        "encoder": {
            **around,
            "positions": (source or own) + offset,
            "max_context": source or own,
            "layers": compress([{"mixer": mixer, "ffn": feed} for feed in encoder]),
            **_tables(r, d, vocab, width),
        },
    }


def begin(r: Reader, d: Dialect) -> None:
    """Refuse the class of another task, and take note of what does not matter."""
    for name in r.get("architectures") or []:
        if name.endswith(_HEADS):
            raise r.refuse(f"architectures = {name}", "only the whole encoder-decoder with its head is known")
    for name, allowed in d.fixed.items():
        r.only(name, *allowed)
    r.skip(*_DEAD, *d.ignored)


def _tables(r: Reader, d: Dialect, vocab: int, width: int) -> dict[str, Any]:
    """The encoder's embedding: the decoder's, or without ties its own beside one that is stored and not read."""
    if r.flag("tie_word_embeddings", d.tied):
        return {}
    return {"embedding": "own", "vocab": vocab, "tensors": {"shared": [vocab, width]}}


def side_attention(r: Reader, d: Dialect, width: int, side: str) -> Layer:
    heads = r.integer(f"{side}_attention_heads")
    if width % heads:
        raise r.refuse(f"{side}_attention_heads", f"{heads} heads do not divide the width {width}")
    bias = flag(r, d.qkv_bias)
    mixer = {"kind": "attention", "heads": heads, "kv_heads": heads, "head_dim": width // heads, "rotary": False}
    return mixer | {"qkv_bias": bias, "out_bias": bias, **d.attention}


def _feed(r: Reader, d: Dialect, side: str) -> Layer:
    width = r.integer(f"{side}_ffn_dim")
    return {"kind": "mlp", "d_ff": width, "gated": False, "bias": True, "activation": activation(r, d)}


def decoder_layers(mixer: Layer, feeds: list[Layer], mixers: list[Layer] | None = None) -> list[Layer]:
    """Layers of attention to what is written, attention to the encoder, and a feed-forward."""
    kept = ("heads", "kv_heads", "head_dim", "qkv_bias", "key_bias", "out_bias", "source_width")
    cross = {"kind": "cross_attention", **{name: mixer[name] for name in kept if name in mixer}}
    own = {name: value for name, value in mixer.items() if name != "source_width"}
    every = mixers or [own] * len(feeds)
    layers = [
        {"mixer": one, "ffn": feed, "extras": [cross], "norms": 3} for one, feed in zip(every, feeds, strict=True)
    ]
    return compress(layers)


# T5 (1910.10683) and its relatives: RMS norms, no biases, a table of biases by distance.


def t5(r: Reader, d: Dialect, *, every: bool = False) -> dict[str, Any]:
    """T5, its gated variants, and with ``every`` those whose layers all have a table of biases by distance (UMT5)."""
    begin(r, d)
    width, heads, size = r.integer("d_model"), r.integer("num_heads"), r.integer("d_kv")
    buckets = r.integer("relative_attention_num_buckets")
    count = r.integer("num_layers")
    depth = r.integer("num_decoder_layers", default=count)
    mixer: Layer = {"kind": "attention", "heads": heads, "kv_heads": heads, "head_dim": size, "rotary": False}

    def mixers(layers: int, more: Layer) -> list[Layer]:
        first = mixer | more | {"relative_buckets": buckets}
        return [first if every or not index else mixer | more for index in range(layers)]

    feed = _t5_feed(r)
    layers = [{"mixer": one, "ffn": feed} for one in mixers(count, {"causal": False})]
    encoder = {"d_model": width, "layers": compress(layers)}
    decoder = decoder_layers(mixer, [feed] * depth, mixers(depth, {}))
    vocab = r.integer("vocab_size")
    return {"d_model": width, "vocab": vocab, "max_context": None, "layers": decoder, "encoder": encoder}


def _t5_feed(r: Reader) -> Layer:
    """``relu``, ``gated-gelu`` and the like, which fields of their own overrule."""
    said = str(r.get("feed_forward_proj") or r.get("dense_act_fn") or r.need("feed_forward_proj", "dense_act_fn"))
    gate, _, name = said.rpartition("-")
    name = str(r.get("dense_act_fn") or name)
    if gate not in ("", "gated") or name not in ACTIVATIONS:
        raise r.refuse(f"feed_forward_proj = {said!r}", f"only {', '.join(ACTIVATIONS)} are known, or gated- and one")
    gated = r.flag("is_gated_act", bool(gate))
    return {"kind": "mlp", "d_ff": r.integer("d_ff"), "gated": gated, "activation": ACTIVATIONS[name]}


# Those that read sound.


def whisper(r: Reader, d: Dialect) -> dict[str, Any]:
    """Whisper (2212.04356 section 2.2): two convolutions, 1500 positions for 30 s of sound, keys without a bias."""
    r.skip("use_weighted_layer_sum", "classifier_proj_size", "apply_spec_augment", "median_filter_width")
    r.skip(*(name for name in r.config if name.startswith("mask_")), "alignment_heads", "lang_ids")
    width, bins, frames = r.integer("d_model"), r.integer("num_mel_bins"), r.integer("max_source_positions")
    target = r.integer("max_target_positions")
    r.config |= {"max_position_embeddings": target}
    fields = bart(r, d, 0, final_norm=True)
    fields["encoder"] |= {
        "embedding": "none",
        "vocab": None,
        "tensors": {},
        "positions": frames,
        "max_context": frames,
        "frames": frames,
        "seconds": frames / 50,  # a mel frame is 10 ms, and the second convolution has stride 2
        "convolutions": [
            {"inputs": bins, "outputs": width, "taps": 3},
            {"inputs": width, "outputs": width, "taps": 3, "stride": 2},
        ],
    }
    return fields | {"max_context": frames + target}


def moonshine(r: Reader, d: Dialect) -> dict[str, Any]:
    """Moonshine (2410.15608): three convolutions over the samples, rotary positions, a gated decoder."""
    begin(r, d)
    width, inner = r.integer("hidden_size"), r.integer("intermediate_size")
    longest, bias = r.integer("max_position_embeddings"), r.flag("attention_bias", False)
    r.skip("pad_head_dim_to_multiple_of", "partial_rotary_factor")

    def mixer(side: str) -> Layer:
        heads = r.integer(f"{side}_num_attention_heads")
        own = r.integer(f"{side}_num_key_value_heads", default=heads)
        size = width // r.integer("decoder_num_attention_heads")
        return {"kind": "attention", "heads": heads, "kv_heads": own, "head_dim": size, "qkv_bias": bias}

    def feed(side: str, gated: bool) -> Layer:
        name = str(r.need(f"{side}_hidden_act"))
        if name not in ACTIVATIONS:
            raise r.refuse(f"{side}_hidden_act = {name!r}", f"only {', '.join(ACTIVATIONS)} are known")
        return {"kind": "mlp", "d_ff": inner, "gated": gated, "bias": True, "activation": ACTIVATIONS[name]}

    depth = r.integer("decoder_num_hidden_layers")
    layer = {"mixer": mixer("encoder") | {"causal": False}, "ffn": feed("encoder", gated=False)}
    return {
        "d_model": width,
        "vocab": r.integer("vocab_size"),
        "norm": "layer_plain",
        "max_context": 2 * longest,
        "layers": decoder_layers(mixer("decoder"), [feed("decoder", gated=True)] * depth),
        "encoder": {
            "d_model": width,
            "norm": "layer_plain",
            "embedding": "none",
            "max_context": longest,
            "layers": [{"repeat": r.integer("encoder_num_hidden_layers"), **layer}],
            "tensors": {"group_norm": [2, width]},
            "convolutions": [
                {"inputs": 1, "outputs": width, "taps": 127, "stride": 64, "bias": False},
                {"inputs": width, "outputs": 2 * width, "taps": 7, "stride": 3},
                {"inputs": 2 * width, "outputs": width, "taps": 3, "stride": 2},
            ],
        },
    }


def cohere_asr(r: Reader, d: Dialect) -> dict[str, Any]:
    """Cohere's transcriber: a Parakeet's encoder, projected to the width of a decoder with a table of positions."""
    encoder = r.table("encoder_config")
    if encoder is None:
        raise r.refuse("encoder_config", "it is not there, and the counts depend on it")
    begin(r, d)
    fields = _transcriber(r, fast_encoder(encoder))
    fields["encoder"] |= {"projected": fields["d_model"]}
    return fields | {"positions": r.integer("max_position_embeddings")}


def _transcriber(r: Reader, encoder: dict[str, Any]) -> dict[str, Any]:
    """A decoder beside the encoder of a Parakeet."""
    width, heads, bias = r.integer("hidden_size"), r.integer("num_attention_heads"), r.flag("attention_bias", True)
    longest = r.integer("max_position_embeddings")
    size = r.integer("head_dim", default=width // heads)
    own = r.integer("num_key_value_heads", default=heads)
    mixer = {"kind": "attention", "heads": heads, "kv_heads": own, "head_dim": size, "rotary": False}
    mixer |= {"qkv_bias": bias, "out_bias": bias}
    ffn = {"kind": "mlp", "d_ff": r.integer("intermediate_size"), "gated": False, "bias": True}
    layers = decoder_layers(mixer, [ffn | {"activation": hidden_activation(r)}] * r.integer("num_hidden_layers"))
    return {
        "d_model": width,
        "vocab": r.integer("vocab_size"),
        "norm": "layer",
        "embedding_norm": True,
        "head_bias": True,
        "max_context": encoder["max_context"] + longest,
        "layers": layers,
        "encoder": encoder,
    }
