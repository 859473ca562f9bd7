"""MusicGen (2306.05284): a text encoder, a decoder of several codes a step, and the codec that makes sound."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.decoder import mlp
from inferplan.models.huggingface.dialect import Dialect, Layer, compress
from inferplan.models.huggingface.encoder_decoder import t5
from inferplan.models.huggingface.reader import Reader

_CODEC = "the codec that makes sound of the codes is in the weights, and its time is in no figure"
_GUIDED = (
    "with guidance (guidance_scale above 1) a request is two sequences of the decoder, with its text and without: "
    "--batch twice as large"
)
_PREFIX = (
    "its text encoder is in the weights, and its time in no figure; what it reads and the melody are tokens of --prompt"
)


def musicgen(r: Reader, d: Dialect) -> dict[str, Any]:
    """MusicGen: the decoder attends to what the text encoder has read, projected where the widths differ."""
    text, sound, decoder = _parts(r)
    width, heads = _heads(decoder)
    decoder.only("cross_attention_hidden_size", None)
    cross = {"kind": "cross_attention", "heads": heads, "kv_heads": heads, "head_dim": width // heads}
    fields = _decoder(decoder, d, {"extras": [cross], "norms": 3})
    vocab, source = text.integer("vocab_size"), text.integer("d_model")
    encoder = t5(text, d)["encoder"] | {"embedding": "own", "vocab": vocab}
    encoder |= {"projected": width} if source != width else {}
    towers = [{"name": "codec", "d_model": width, "tensors": encodec(sound)}]
    _all_read(text, sound, decoder)
    return fields | {"encoder": encoder, "towers": towers, "notes": [_GUIDED, _CODEC]}


def melody(r: Reader, d: Dialect) -> dict[str, Any]:
    """MusicGen Melody: text and chroma stand ahead of the codes as positions of the decoder."""
    text, sound, decoder = _parts(r)
    width, _ = _heads(decoder)
    fields = _decoder(decoder, d, {})
    source, vocab = text.integer("d_model"), text.integer("vocab_size")
    tensors: dict[str, list[int]] = {"embedding": [vocab, source], "final_norm": [source]}
    if source != width:
        tensors |= {"projection": [width, source], "projection.bias": [width]}
    chroma = r.integer("num_chroma")
    if chroma != width:
        tensors |= {"chroma": [width, chroma], "chroma.bias": [width]}
    r.skip("chroma_length")
    reading = t5(text, d)["encoder"]["layers"]
    towers = [
        {"name": "text", "d_model": source, "norm": "rms", "layers": reading, "tensors": tensors},
        {"name": "codec", "d_model": width, "tensors": encodec(sound)},
    ]
    _all_read(text, sound, decoder)
    return fields | {"towers": towers, "notes": [_PREFIX, _GUIDED, _CODEC]}


def _parts(r: Reader) -> tuple[Reader, Reader, Reader]:
    """The configs of the three parts. Raises ``SpecError`` where one is absent or of a kind that is not known."""
    found = []
    for name, kind in (("text_encoder", "t5"), ("audio_encoder", "encodec"), ("decoder", None)):
        part = r.table(name)
        if part is None:
            raise r.refuse(name, "it is absent")
        if kind is not None:
            part.only("model_type", kind)
            part.skip("tie_word_embeddings")  # an encoder alone has no head
            part.only("is_decoder", False)
        found.append(part)
    text, sound, decoder = found
    return text, sound, decoder


def _all_read(*parts: Reader) -> None:
    for part in parts:
        part.require_read()


def _heads(decoder: Reader) -> tuple[int, int]:
    width, heads = decoder.integer("hidden_size"), decoder.integer("num_attention_heads")
    if width % heads:
        raise decoder.refuse("num_attention_heads", f"{heads} heads do not divide the width {width}")
    return width, heads


def _decoder(r: Reader, d: Dialect, more: Layer) -> dict[str, Any]:
    """The decoder: a table and a head for each codebook, each table with a row more for what is not there yet."""
    width, heads = _heads(r)
    mixer = {"kind": "attention", "heads": heads, "kv_heads": heads, "head_dim": width // heads, "rotary": False}
    layer: Layer = {"mixer": mixer, "ffn": mlp(r, d, r.integer("ffn_dim")), **more}
    books, vocab = r.integer("num_codebooks"), r.integer("vocab_size")
    r.only("tie_word_embeddings", False)
    r.skip("max_position_embeddings", "layerdrop", "audio_channels")
    row = {"inputs": width, "outputs": vocab, "bias": False}
    others = [{"name": f"code{index}", "rows": "sequence", "layers": [row]} for index in range(1, books)]
    return {
        "d_model": width,
        "vocab": vocab,
        "max_context": None,
        "norm": "layer",
        "tied": False,
        "layers": compress([layer] * r.integer("num_hidden_layers")),
        "ends": {"tables": {"codes": (books - 1) * (vocab + 1) + 1}, "heads": others},
    }


def encodec(r: Reader) -> dict[str, list[int]]:
    """The tensors of EnCodec (2210.13438): convolutions down to codes and up again, each side with an LSTM."""
    style = r.get("norm_type")
    r.only("norm_type", "weight_norm", "time_group_norm")
    filters, ratios = r.integer("num_filters"), r.need("upsampling_ratios")
    first, last, inner = (r.integer(f"{name}kernel_size") for name in ("", "last_", "residual_"))
    blocks, wide = r.integer("num_residual_layers"), filters * 2 ** len(ratios)
    shortcut, shrink = r.flag("use_conv_shortcut", True), r.integer("compress")
    channels, size, deep = r.integer("audio_channels"), r.integer("hidden_size"), r.integer("num_lstm_layers")
    r.skip("target_bandwidths", "sampling_rate", "normalize", "chunk_length_s", "overlap", "dilation_growth_rate")
    r.skip("use_causal_conv", "pad_mode", "trim_right_ratio", "codebook_size", "codebook_dim", "model_type")
    tensors: dict[str, list[int]] = {}

    def conv(name: str, inputs: int, outputs: int, taps: int, gained: int | None = None) -> None:
        """A convolution with its bias and norm. gained: channels of its weight norm where they are not the outputs."""
        gains = 2 * outputs if style == "time_group_norm" else outputs if gained is None else gained
        tensors[name] = [outputs, inputs, taps]
        tensors[f"{name}.vectors"] = [outputs + gains]

    def residual(name: str, width: int) -> None:
        for index in range(blocks):
            conv(f"{name}.{index}.in", width, width // shrink, inner)
            conv(f"{name}.{index}.out", width // shrink, width, 1)
            if shortcut:
                conv(f"{name}.{index}.shortcut", width, width, 1)

    for side in ("encoder", "decoder"):
        tensors[f"{side}.lstm"] = [deep, 2, 4 * wide, wide]
        tensors[f"{side}.lstm.bias"] = [deep, 2, 4 * wide]
    conv("encoder.in", channels, filters, first)
    conv("encoder.out", wide, size, last)
    conv("decoder.in", size, wide, first)
    conv("decoder.out", filters, channels, last)
    for index, ratio in enumerate(reversed(ratios)):
        narrow = filters * 2**index
        residual(f"encoder.{index}", narrow)
        conv(f"encoder.{index}.down", narrow, 2 * narrow, 2 * ratio)
        residual(f"decoder.{index}", narrow)
        conv(f"decoder.{index}.up", 2 * narrow, narrow, 2 * ratio, 2 * narrow)
    return tensors
