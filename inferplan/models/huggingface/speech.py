"""Encoder-decoders that read sound by what other families have: conformers, convolutions over samples, T5's layers.

Shapes are those of the classes of transformers that the configs belong to; what has no time is an ``untimed`` part.
"""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface import encoder_decoder as e
from inferplan.models.huggingface.conformer import activation, block, positioned
from inferplan.models.huggingface.ctc import TRAINING, Sound, convolved_positions, masked, samples
from inferplan.models.huggingface.dialect import Dialect, Layer, compress
from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.segments_and_bytes import untimed
from inferplan.models.huggingface.towers.parts import Tensors, copies, linear

_SPEAKING = (
    "speech_decoder_prenet_layers", "speech_decoder_prenet_units", "speaker_embedding_dim", "reduction_factor",
    "speech_decoder_postnet_layers", "speech_decoder_postnet_units", "speech_decoder_postnet_kernel",
    "guided_attention_loss_num_heads", "guided_attention_loss_sigma", "guided_attention_loss_scale", "num_mel_bins",
    "num_attention_heads",
)  # fmt: skip
"""Fields of SpeechT5's networks for other tasks."""


def _ffn(width: int, kind: str) -> Layer:
    return {"kind": "mlp", "d_ff": width, "gated": False, "bias": True, "activation": kind}


def speecht5(r: Reader, d: Dialect) -> dict[str, Any]:
    """SpeechT5 (2110.07205) as it writes down what it hears: keys of distances are one table for the whole encoder."""
    for name in r.get("architectures") or []:
        if name != "SpeechT5ForSpeechToText":
            raise r.refuse(f"architectures = {name}", "only the class that reads sound and writes text is known")
    e.begin(r, d)
    r.skip(*TRAINING, *_SPEAKING)
    width, vocab, rows = r.integer("hidden_size"), r.integer("vocab_size"), r.integer("encoder_max_relative_position")
    longest, written = r.integer("max_speech_positions"), r.integer("max_text_positions")
    convolutions, tensors = samples(Sound(), r, width)
    positions, more = convolved_positions(Sound(), r, width)
    more |= masked(r, width)
    keyed = {"kind": "relative_attention", "causal": False, "distances": 2 * rows}
    mixer, kind = e.side_attention(r, d, width, "encoder") | keyed, activation(r)
    ffn, count = _ffn(r.integer("encoder_ffn_dim"), kind), r.integer("encoder_layers")
    layers = [{"mixer": mixer | {"shares_distances": index > 0}, "ffn": ffn} for index in range(count)]
    feeds = [_ffn(r.integer("decoder_ffn_dim"), kind)] * r.integer("decoder_layers")
    return {
        "d_model": width,
        "vocab": vocab,
        "norm": "layer",
        "final_norm": False,
        "max_context": longest + written,
        "layers": e.decoder_layers(e.side_attention(r, d, width, "decoder"), feeds),
        "encoder": {
            "d_model": width,
            "norm": "layer",
            "embedding": "none",
            "max_context": longest,
            "layers": compress(layers),
            "convolutions": [*convolutions, *positions],
            "tensors": tensors | more,
        },
    }


def moonshine_streaming(r: Reader, d: Dialect) -> dict[str, Any]:
    """Moonshine Streaming: frames of samples, and positions that see so many before and after them in each layer."""
    e.begin(r, d)
    inner = r.table("encoder_config")
    if inner is None:
        raise r.refuse("encoder_config", "it is not there, and the counts depend on it")
    width, longest = r.integer("hidden_size"), r.integer("max_position_embeddings")
    r.skip("pad_head_dim_to_multiple_of")
    own, mixer = _streaming_encoder(inner), _streaming_attention(r)
    own |= {"positions": longest, "max_context": longest}
    if own["d_model"] != width:
        own |= {"projected": width, "projection_bias": False}
    ffn = _ffn(r.integer("intermediate_size"), activation(r)) | {"gated": True}
    layers = e.decoder_layers(mixer, [ffn] * r.integer("num_hidden_layers"))
    fields = {"d_model": width, "vocab": r.integer("vocab_size"), "norm": "layer_plain", "max_context": 2 * longest}
    return fields | {"layers": layers, "encoder": own}


def _streaming_attention(r: Reader) -> Layer:
    heads, bias = r.integer("num_attention_heads"), r.flag("attention_bias", False)
    size = r.integer("head_dim", default=r.integer("hidden_size") // heads)
    mixer = {"kind": "attention", "heads": heads, "kv_heads": r.integer("num_key_value_heads"), "head_dim": size}
    return mixer | {"qkv_bias": bias}


def _streaming_encoder(r: Reader) -> dict[str, Any]:
    width, count, windows = r.integer("hidden_size"), r.integer("num_hidden_layers"), r.need("sliding_windows")
    if len(windows) < count:
        raise r.refuse("sliding_windows", f"it has {len(windows)} entries for {count} layers")
    mixer = _streaming_attention(r) | {"causal": False, "rotary": False}
    mixer |= {"out_bias": mixer["qkv_bias"]}
    ffn = _ffn(r.integer("intermediate_size"), activation(r))
    frame = round(r.integer("sample_rate") * float(r.need("frame_ms")) / 1000)
    sizes = [before + max(after - 1, 0) for before, after in windows[:count]]
    r.skip("max_position_embeddings")
    r.require_read()
    return {
        "d_model": width,
        "norm": "layer_plain",
        "embedding": "none",
        "layers": compress([{"mixer": mixer | {"window": size + 1 - size % 2}, "ffn": ffn} for size in sizes]),
        "convolutions": [
            {"inputs": 1, "outputs": width, "taps": frame, "stride": frame, "bias": False},
            {"inputs": width, "outputs": 2 * width, "taps": 5, "stride": 2},
            {"inputs": 2 * width, "outputs": width, "taps": 5, "stride": 2},
        ],
        "tensors": {"compression": [1]},
    }


def pop2piano(r: Reader, d: Dialect) -> dict[str, Any]:
    """Pop2Piano (2211.00895): T5's layers read a spectrum as wide as the model behind a vector of the composer."""
    fields = e.t5(r, d)
    composers = {"composers": [r.integer("composer_vocab_size"), fields["d_model"]]}
    fields["encoder"] |= {"embedding": "none", "tensors": composers}
    return fields | {"tied": False}


_STRIDED = "an adapter behind its conformers makes one position of several"


def seamless(r: Reader, d: Dialect) -> dict[str, Any]:
    """SeamlessM4T (2308.11596, 2312.05187) as it writes down what it hears: a Wav2Vec2-BERT and NLLB's decoder."""
    for name in r.get("architectures") or []:
        if not name.endswith("ForSpeechToText"):
            raise r.refuse(f"architectures = {name}", "only the class that reads sound and writes text is known")
    width, vocab, longest = r.integer("hidden_size"), r.integer("vocab_size"), r.integer("max_position_embeddings")
    r.skip(*(name for name in r.config if name.startswith(_UNITS)), *_UNIT_FIELDS)
    r.config |= {"d_model": width}
    fields = e.bart(e.Bart(final_norm=True))(r, d)
    encoder = _listening(r, width)
    if not r.flag("tie_word_embeddings", d.tied):
        encoder["tensors"] |= {"shared": [vocab, width]}
    return fields | {"encoder": encoder | {"max_context": longest}}


_UNITS = ("t2u_", "vocoder_", "unit_", "upsample_", "resblock_", "variance_", "var_pred_", "lang_", "spkr_", "char_")
_UNIT_FIELDS = (
    "leaky_relu_slope", "sampling_rate", "max_new_tokens", "speech_encoder_layerdrop", "max_source_positions",
    "num_conv_pos_embeddings", "num_conv_pos_embedding_groups", "speech_encoder_chunk_size",
    "speech_encoder_left_chunk_num",
)  # fmt: skip
"""Fields of what speaks, and those that change no shape."""


def _listening(r: Reader, width: int) -> dict[str, Any]:
    """Conformers, a feed-forward, and adapters that shorten: a position of this encoder is one of the last adapter."""
    heads, d_ff = r.integer("speech_encoder_attention_heads"), r.integer("speech_encoder_intermediate_size")
    r.config["hidden_act"] = r.need("speech_encoder_hidden_act")
    if width % heads:
        raise r.refuse("speech_encoder_attention_heads", f"{heads} heads do not divide the width {width}")
    mixer = {"kind": "attention", "heads": heads, "kv_heads": heads, "head_dim": width // heads, "causal": False}
    mixer |= {"rotary": False, "qkv_bias": True, "out_bias": True}
    convolution = {"width": width, "taps": r.integer("conv_depthwise_kernel_size")}
    layer = block(positioned(r, mixer), _ffn(d_ff, activation(r)), convolution)
    inputs = r.integer("feature_projection_input_dim")
    layers = [{"repeat": r.integer("speech_encoder_layers"), **layer}]
    tensors = {"projection.norm": [2, inputs], "inner_norm": [2, width]}
    tensors |= {"feed.up": [d_ff, width], "feed.up.bias": [d_ff], "feed.down": [width, d_ff], "feed.down.bias": [width]}
    taps = r.integer("adaptor_kernel_size")
    r.skip("adaptor_stride")
    count = r.integer("num_adapter_layers")
    if r.flag("add_adapter", True) and count:
        joined = {f"convolution.{name}": [2 * width, width * taps + 1] for name in ("residual", "attention")}
        adapter = {"mixer": mixer, "ffn": _ffn(d_ff, "relu"), "norms": 3, "extras": [untimed(_STRIDED, tensors=joined)]}
        layers.append({"repeat": count, **adapter})
    return {
        "d_model": width,
        "norm": "layer",
        "embedding": "none",
        "layers": layers,
        "convolutions": [{"inputs": inputs, "outputs": width, "taps": 1}],
        "tensors": tensors,
    }


_CHANNELS = "a step reads and writes a code of sound in every channel, and attends to a text read by another encoder"


def dia(r: Reader, d: Dialect) -> dict[str, Any]:
    """Dia: codes of several channels at once. Keys and values of the text are kept for the longest that it reads."""
    e.begin(r, d)
    source, own = r.table("encoder_config"), r.table("decoder_config")
    if source is None or own is None:
        raise r.refuse("encoder_config and decoder_config", "the counts depend on both, and one is not there")
    r.skip("delay_pattern")
    width, rows = own.integer("hidden_size"), own.integer("vocab_size") * own.integer("num_channels")
    heads, kv, size = (
        own.integer(f"cross_{name}") for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    read, longest = own.integer("cross_hidden_size"), source.integer("max_position_embeddings")
    cross: Tensors = {"cross.norm": [1, width]}
    for name, inputs, outputs in (("q", width, heads), ("k", read, kv), ("v", read, kv)):
        cross |= linear(f"cross.{name}", inputs, outputs * size, bias=False)
    cross |= linear("cross.o", heads * size, width, bias=False)
    beside = untimed(_CHANNELS, tensors=cross, state=2 * kv * size * longest)
    layers = [{"repeat": own.integer("num_hidden_layers"), **_dia_layer(own), "extras": [beside]}]
    tensors = _stacked(source, _dia_layer(source))
    fields = {"d_model": width, "vocab": rows, "tied": False, "layers": layers, "ends": {"tensors": tensors}}
    fields |= {"max_context": own.integer("max_position_embeddings")}
    for half in (source, own):
        half.require_read()
    note = f"keys and values of the text that it speaks are kept for {longest:,} tokens, the most that it reads"
    return fields | {"notes": [note]}


def _dia_layer(r: Reader) -> Layer:
    heads = r.integer("num_attention_heads")
    kv, size = r.integer("num_key_value_heads"), r.integer("head_dim")
    mixer = {"kind": "attention", "heads": heads, "kv_heads": kv, "head_dim": size}
    return {"mixer": mixer, "ffn": {"kind": "mlp", "d_ff": r.integer("intermediate_size"), "activation": activation(r)}}


def _stacked(r: Reader, layer: Layer) -> Tensors:
    """The tensors of Dia's encoder, which reads bytes."""
    width, mixer = r.integer("hidden_size"), layer["mixer"]
    q, kv = mixer["heads"] * mixer["head_dim"], mixer["kv_heads"] * mixer["head_dim"]
    own = {"norms": [2, width]} | linear("q", width, q, bias=False) | linear("o", q, width, bias=False)
    own |= linear("kv", width, 2 * kv, bias=False) | {"mlp": [3 * layer["ffn"]["d_ff"], width]}
    found = {"embedding": [r.integer("vocab_size"), width], "norm": [width]} | copies(
        r.integer("num_hidden_layers"), own
    )
    return {f"text.{name}": shape for name, shape in found.items()}
