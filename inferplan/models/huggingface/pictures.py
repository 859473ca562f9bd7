"""Encoder-decoders whose encoder reads an image: BLIP's captions, Pix2Struct, UDOP.

Shapes are those of the classes of transformers that the configs belong to.
"""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.conformer import activation
from inferplan.models.huggingface.dialect import Dialect, Layer
from inferplan.models.huggingface.encoder_decoder import decoder_layers, t5
from inferplan.models.huggingface.heads import head, linear
from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.segments_and_bytes import untimed
from inferplan.models.huggingface.towers.beside import left_out
from inferplan.models.huggingface.towers.defaults import DEFAULTS
from inferplan.models.huggingface.towers.documents import sam
from inferplan.models.huggingface.towers.parts import block, conv, copies, feed_forward, heads_of, pair


def blip(r: Reader, d: Dialect) -> dict[str, Any]:
    """BLIP (2201.12086 section 3.1): a ViT whose positions a decoder of BERT's layers attends to."""
    text, vision, notes = _halves(r, "blip_text_model", "blip_vision_model")
    r.skip("projection_dim", "image_text_hidden_size", "logit_scale_init_value")
    text.skip("projection_dim", "label_smoothing")
    vision.skip("projection_dim")
    tied = r.flag("tie_word_embeddings", True) | text.flag("tie_word_embeddings", True)
    r.config["tie_word_embeddings"] = tied  # the class ties where either says so
    width, heads, vocab = text.integer("hidden_size"), text.integer("num_attention_heads"), text.integer("vocab_size")
    encoder = vit(vision)
    text.only("encoder_hidden_size", encoder["d_model"])
    text.only("is_decoder", True)  # else it attends to no image
    mixer = _attends(heads, heads_of(text, width, heads), bias=True, source=encoder["d_model"], width=width)
    ffn = {"kind": "mlp", "d_ff": text.integer("intermediate_size"), "gated": False, "bias": True}
    layers = decoder_layers(mixer, [ffn | {"activation": activation(text)}] * text.integer("num_hidden_layers"))
    longest = text.integer("max_position_embeddings")
    no_field_left(text, vision)
    return {
        "d_model": width,
        "vocab": vocab,
        "norm": "layer",
        "embedding_norm": True,
        "final_norm": False,
        "positions": longest,
        "max_context": encoder["frames"] + longest,
        "head_bias": True,
        "layers": layers,
        "encoder": encoder,
        "ends": {
            "heads": [head("transform", "sequence", linear(width, width, norm=width))],
            "tensors": {} if tied else {"head.second_bias": [vocab]},
        },
        "notes": notes,
    }


def pix2struct(r: Reader, d: Dialect) -> dict[str, Any]:
    """Pix2Struct (2210.03347 section 2.2): patches of an image of any shape, with a row and a column each."""
    text, vision, notes = _halves(r, "pix2struct_text_model", "pix2struct_vision_model")
    r.skip("is_vqa")
    text.skip("tie_word_embeddings", "num_hidden_layers")  # the class takes that of the whole config
    width, heads, size = text.integer("hidden_size"), text.integer("num_heads"), text.integer("d_kv")
    if heads * size != width:
        raise text.refuse("d_kv", f"{heads} heads of {size} are not the width {width}")
    vision.only("hidden_size", width)
    mixer = _attends(heads, size, bias=False, source=width, width=width)
    first = mixer | {"relative_buckets": text.integer("relative_attention_num_buckets")}
    ffn = {"kind": "mlp", "d_ff": text.integer("d_ff"), "activation": activation(text, "dense_act_fn")}
    count = text.integer("num_layers")
    text.skip("relative_attention_max_distance")
    layers = decoder_layers(mixer, [ffn] * count, [first, *[mixer] * (count - 1)])
    encoder, vocab = _flexible(vision), text.integer("vocab_size")
    no_field_left(text, vision)
    return {
        "d_model": width,
        "vocab": vocab,
        "max_context": None,
        "layers": layers,
        "encoder": encoder,
        "notes": notes,
    }


def vit(r: Reader, words: int = 1) -> dict[str, Any]:
    """A ViT as an encoder (2010.11929): a convolution to patches, learned positions, a norm behind.

    words: learned vectors ahead of the patches, a class token and what it is distilled with.
    """
    width, heads, patch = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("patch_size")
    style = {"activation": activation(r), "qkv_bias": r.flag("qkv_bias", True)}
    layer = block(heads, heads_of(r, width, heads), r.integer("intermediate_size"), **style)
    spots = (r.integer("image_size") // patch) ** 2 + words
    inputs = r.integer("num_channels", default=3) * patch**2
    return {
        "d_model": width,
        "norm": "layer",
        "embedding": "none",
        "positions": spots,
        "max_context": spots,
        "frames": spots,
        "layers": [{"repeat": r.integer("num_hidden_layers"), **layer}],
        "convolutions": [{"inputs": inputs, "outputs": width, "taps": 1}],
        "tensors": {"words": [words, width]},
    }


def _flexible(r: Reader) -> dict[str, Any]:
    width, heads = r.integer("hidden_size"), r.integer("num_attention_heads")
    style = {"bias": False, "gated": True, "activation": activation(r, "dense_act_fn")}
    layer = block(heads, r.integer("d_kv"), r.integer("d_ff"), **style)
    r.skip("relative_attention_num_buckets", "relative_attention_max_distance")
    return {
        "d_model": width,
        "embedding": "none",
        "layers": [{"repeat": r.integer("num_hidden_layers"), **layer}],
        "convolutions": [{"inputs": r.integer("patch_embed_hidden_size"), "outputs": width, "taps": 1}],
        "tensors": {"positions": [2, r.integer("seq_len"), width]},
    }


def _halves(r: Reader, text: str, vision: str) -> tuple[Reader, Reader, list[str]]:
    """The tables of both halves with what their classes say where they leave a field out, and notes of that."""
    found, notes = [], []
    for key, kind in (("text_config", text), ("vision_config", vision)):
        table = r.table(key) or Reader({}, r.name, f"{key}.")
        table.only("model_type", kind)
        notes += left_out(table, DEFAULTS[kind])
        found.append(table)
    return found[0], found[1], notes


def _attends(heads: int, size: int, *, bias: bool, source: int, width: int) -> Layer:
    """Attention of a decoder; ``source``: the width of its encoder."""
    mixer = {"kind": "attention", "heads": heads, "kv_heads": heads, "head_dim": size, "rotary": False}
    return mixer | {"qkv_bias": bias, "out_bias": bias} | ({} if source == width else {"source_width": source})


def no_field_left(*tables: Reader) -> None:
    """Refuse the first field of these tables that nobody has read."""
    for table in tables:
        table.require_read()


def udop(r: Reader, d: Dialect) -> dict[str, Any]:
    """UDOP (2212.02623 section 3): a T5 that reads words with their places on a page, joined with patches of it.

    Each half has its own tables of biases by place, and its own matrix of patches, though only the encoder reads any.
    """
    fields, width, heads = t5(r, d), r.integer("d_model"), r.integer("num_heads")
    kinds = r.need("relative_bias_args")
    for one in kinds:
        if not isinstance(one, dict) or set(one) != {"type"} or one["type"] not in ("1d", "horizontal", "vertical"):
            raise r.refuse(f"relative_bias_args entry {one!r}", "only the types 1d, horizontal and vertical are known")
    patches = conv("patch", r.integer("num_channels"), width, *pair(r, "patch_size"))
    own = patches | copies(len(kinds[1:]), {"layout": [32, heads]})  # the first is that of the first layer
    places = {"places": [2, r.integer("max_2d_position_embeddings"), width]}
    r.only("tie_word_embeddings", True)
    r.skip("image_size")
    fields["encoder"] |= {"tensors": own | places}
    return fields | {"ends": {"tensors": own}}


_DISTANCES = "attention in windows of an image with biases of rows and of columns, whose positions are joined behind it"


def formula(r: Reader, d: Dialect) -> dict[str, Any]:
    """PP-FormulaNet (2503.18382): SAM's encoder, two convolutions of stride 2, a decoder of BART's layers."""
    text, vision, notes = _halves(r, "pp_formulanet_text", "pp_formulanet_vision")
    r.config["tie_word_embeddings"] = False  # the class ties nothing, whatever the flags say
    width, heads = text.integer("d_model"), text.integer("decoder_attention_heads")
    mixer = _attends(heads, heads_of(text, width, heads), bias=True, source=width, width=width)
    ffn = {"kind": "mlp", "d_ff": text.integer("decoder_ffn_dim"), "gated": False, "bias": True}
    ffn |= {"activation": activation(text, "activation_function")}
    layers = decoder_layers(mixer, [ffn] * text.integer("decoder_layers"))
    longest, vocab, encoder = (
        text.integer("max_position_embeddings"),
        text.integer("vocab_size"),
        _shrunk(vision, width),
    )
    text.skip("encoder_layers", "encoder_attention_heads", "decoder_layerdrop", "tie_word_embeddings")
    no_field_left(text, vision)
    return {
        "d_model": width,
        "vocab": vocab,
        "norm": "layer",
        "embedding_norm": True,
        "positions": longest + 2,
        "max_context": encoder["frames"] + longest,
        "layers": layers,
        "encoder": encoder,
        "notes": notes,
    }


def _shrunk(r: Reader, width: int) -> dict[str, Any]:
    """SAM's encoder and what makes fewer positions of its own, as wide as the decoder."""
    found, out, last = sam(r), r.integer("output_channels"), r.integer("post_conv_out_channels")
    r.only("post_conv_in_channels", out)
    r.only("decoder_hidden_size", width)
    middle = r.integer("post_conv_mid_channels")
    tensors = found["tensors"] | conv("shrink.0", out, middle, 3, 3, bias=False)
    tensors |= conv("shrink.1", middle, last, 3, 3, bias=False) | feed_forward("projector", [last, last, width])
    side = r.integer("image_size") // r.integer("patch_size")
    side = -(-side // 4)  # two strides of 2
    r.skip("hidden_act")
    return {
        "d_model": found["d_model"],
        "norm": "layer",
        "final_norm": False,
        "embedding": "none",
        "max_context": side**2,
        "frames": side**2,
        "layers": [*found["layers"], {"mixer": untimed(_DISTANCES, tensors=tensors), "norms": 0}],
    }
