"""Encoders of sound that label every position (CTC, 2006 Graves et al.): wav2vec 2.0 (2006.11477) and its relatives.

Shapes are those of the classes ``...ForCTC`` of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from inferplan.models.huggingface.conformer import activation, block, labelled, positioned
from inferplan.models.huggingface.dialect import Dialect, Layer
from inferplan.models.huggingface.encoder import distance_tensors, terms_of_position
from inferplan.models.huggingface.reader import Reader

TRAINING = (
    "apply_spec_augment", "mask_time_length", "mask_time_min_masks", "mask_feature_length", "mask_feature_min_masks",
    "num_codevectors_per_group", "num_codevector_groups", "contrastive_logits_temperature", "num_negatives",
    "codevector_dim", "proj_codevector_dim", "classifier_proj_size", "tdnn_dim", "tdnn_kernel", "tdnn_dilation",
    "xvector_output_dim", "adapter_kernel_size", "adapter_stride", "num_adapter_layers", "output_hidden_size",
    "num_feat_extract_layers", "use_weighted_layer_sum", "layerdrop", "feat_extract_activation",
    "ctc_loss_reduction", "ctc_zero_infinity", "num_ctc_classes", "replace_prob", "num_clusters",
    "do_stable_layer_norm", "feat_proj_dropout", "freeze_feat_extract_train", "no_mask_channel_overlap",
    "no_mask_time_overlap", "mask_channel_length", "mask_channel_min_space", "mask_channel_other",
    "mask_channel_prob", "mask_channel_selection", "mask_min_space", "mask_other", "mask_selection",
    "mask_time_min_space", "mask_time_other", "mask_time_selection",
)  # fmt: skip
"""Fields of pretraining, of other heads, and of where norms stand."""


@dataclass(frozen=True, kw_only=True)
class Sound:
    """What tells the relatives of wav2vec 2.0 apart.

    stacked: positions come from several convolutions with a norm without parameters between them, and every
    convolution over samples has a norm (data2vec, 2202.03555). masked: the vector that stands for masked positions is
    there even where nothing is masked (UniSpeech-SAT).
    """

    stacked: bool = False
    masked: bool = False
    conformer: bool = False
    """Layers are conformers."""
    gated: bool = False
    """Biases by distance that a gate of each head scales (WavLM, 2110.13900)."""
    squeezed: bool = False
    """Layers between a convolution that joins ``squeeze_factor`` positions and a matrix that parts them (SEW)."""
    disentangled: bool = False
    """DeBERTa's layers (SEW-D)."""


RELATIVES = {
    "wav2vec2": Sound(),
    "hubert": Sound(),
    "unispeech": Sound(),
    "unispeech-sat": Sound(masked=True),
    "wavlm": Sound(gated=True),
    "data2vec-audio": Sound(stacked=True),
    "wav2vec2-conformer": Sound(conformer=True),
}
"""Those that put out as many positions as their layers have."""


def listener(style: Sound, r: Reader) -> dict[str, Any]:
    """One of them without labels, as the encoder of a pair."""
    fields = _ctc(style, r, Dialect(build=ctc(style)))
    r.only("output_hidden_size", fields["d_model"])
    kept = {name: fields[name] for name in ("d_model", "norm", "final_norm", "layers")}
    return kept | {"embedding": "none"} | {name: fields["ends"][name] for name in ("convolutions", "tensors")}


def ctc(style: Sound) -> Any:
    """What builds a relative of wav2vec 2.0."""
    return partial(_ctc, style)


def _ctc(style: Sound, r: Reader, d: Dialect) -> dict[str, Any]:
    for name in r.get("architectures") or []:
        if not name.endswith("ForCTC"):
            raise r.refuse(f"architectures = {name}", "only the class that labels every position (ForCTC) is known")
    for name in ("add_adapter", "conv_pos_batch_norm"):
        r.only(name, False)
    r.only("adapter_attn_dim", 0)
    width, heads = r.integer("hidden_size"), r.integer("num_attention_heads")
    if width % heads:
        raise r.refuse("num_attention_heads", f"{heads} heads do not divide the width {width}")
    convolutions, tensors = samples(style, r, width)
    positions, more = convolved_positions(style, r, width)
    layers, own = _layers(style, r, width, heads)
    tensors |= more | own | (masked(r, width) or ({"masked": [width]} if style.masked else {}))
    r.skip(*TRAINING, *d.ignored)
    labels: dict[str, Any] = {"name": "labels", "rows": "token", "vocabulary": True}
    if style.squeezed:
        parts = r.integer("squeeze_factor")
        labels |= {"layers": [{"inputs": width, "outputs": width * parts}], "parts": parts}
    return {
        "d_model": width,
        "vocab": r.integer("vocab_size"),
        "max_context": None,
        "norm": "layer",
        "tied": False,
        "head_bias": True,
        "final_norm": not style.disentangled,
        "layers": layers,
        "ends": {"convolutions": [*convolutions, *positions], "tensors": tensors, "heads": [labels]},
        "generation": {"kind": "encode"},
    }


def _layers(style: Sound, r: Reader, width: int, heads: int) -> tuple[list[Layer], dict[str, list[int]]]:
    """The layers, and what they share."""
    mixer = {"kind": "attention", "heads": heads, "kv_heads": heads, "head_dim": width // heads, "causal": False}
    mixer |= {"rotary": False, "qkv_bias": True, "out_bias": True}
    ffn = {"kind": "mlp", "d_ff": r.integer("intermediate_size"), "gated": False, "bias": True}
    layer = {"mixer": mixer, "ffn": ffn | {"activation": activation(r)}}
    count, tensors = r.integer("num_hidden_layers"), {}
    if style.conformer:
        taps = r.integer("conv_depthwise_kernel_size")
        layer = block(positioned(r, mixer), layer["ffn"], {"width": width, "taps": taps})
    if style.disentangled:
        r.only("relative_attention", True)
        for name in ("position_buckets", "share_att_key", "norm_rel_ebd"):
            r.need(name)  # those of DeBERTa's class, where they are absent, are not those of SEW-D's
        span, terms = terms_of_position(r)
        shared, tensors = r.flag("share_att_key", False), distance_tensors(r, span, width)
        mixer |= {"kind": "disentangled_attention", "span": span, "terms": terms, "shares_projections": shared}
    if not style.gated:
        return [{"repeat": count, **layer}], tensors
    mixer |= {"kind": "relative_attention", "gated": True}
    first = layer | {"mixer": mixer | {"relative_buckets": r.integer("num_buckets")}}
    r.skip("max_bucket_distance")
    return [first, *([{"repeat": count - 1, **layer}] if count > 1 else [])], tensors


def features(r: Reader, d: Dialect) -> dict[str, Any]:
    """Wav2Vec2-BERT (2312.05187, appendix): conformers over features of the spectrum, without convolutions ahead."""
    for name in r.get("architectures") or []:
        if not name.endswith("ForCTC"):
            raise r.refuse(f"architectures = {name}", "only the class that labels every position (ForCTC) is known")
    for name in ("add_adapter", "use_intermediate_ffn_before_adapter"):
        r.only(name, False)
    r.skip(*TRAINING, "adapter_act")
    width, heads, inputs = r.integer("hidden_size"), r.integer("num_attention_heads"), "feature_projection_input_dim"
    if width % heads:
        raise r.refuse("num_attention_heads", f"{heads} heads do not divide the width {width}")
    mixer = {"kind": "attention", "heads": heads, "kv_heads": heads, "head_dim": width // heads, "causal": False}
    mixer |= {"rotary": False, "qkv_bias": True, "out_bias": True}
    ffn = {"kind": "mlp", "d_ff": r.integer("intermediate_size"), "gated": False, "bias": True}
    convolution = {"width": width, "taps": r.integer("conv_depthwise_kernel_size")}
    layer = block(positioned(r, mixer), ffn | {"activation": activation(r)}, convolution)
    tensors = {"projection.norm": [2, r.integer(inputs)]} | masked(r, width)
    ends = {"convolutions": [{"inputs": r.integer(inputs), "outputs": width, "taps": 1}], "tensors": tensors}
    layers = [{"repeat": r.integer("num_hidden_layers"), **layer}]
    return labelled(r, width, {"norm": "layer", "final_norm": False, "layers": layers, "ends": ends})


def masked(r: Reader, width: int) -> dict[str, list[int]]:
    """The vector that stands for masked positions, where training masks any."""
    shares = (r.need("mask_time_prob"), r.get("mask_feature_prob") or 0)
    return {"masked": [width]} if any(float(share) > 0 for share in shares) else {}


def samples(style: Sound, r: Reader, width: int) -> tuple[list[dict[str, Any]], dict[str, list[int]]]:
    """Convolutions over samples and the projection of what they put out; their norms."""
    channels = r.need("conv_dim")
    count = len(channels)
    strides, taps = r.items("conv_stride", count), r.items("conv_kernel", count)
    if strides is None or taps is None:
        raise r.refuse("conv_stride and conv_kernel", f"{count} entries are needed, as in conv_dim")
    bias, kind = r.flag("conv_bias", False), r.get("feat_extract_norm") or ("layer" if style.stacked else None)
    if kind not in ("group", "layer"):
        raise r.refuse(f"feat_extract_norm = {kind!r}", "only group (of the first) and layer (of each) are known")
    found: list[dict[str, Any]] = []
    tensors: dict[str, list[int]] = {}
    for index, (outputs, stride, size) in enumerate(zip(channels, strides, taps, strict=True)):
        inputs = channels[index - 1] if index else 1
        found.append({"inputs": inputs, "outputs": outputs, "taps": size, "stride": stride, "bias": bias})
        if kind == "layer" or not index:
            tensors[f"conv.{index}.norm"] = [2, outputs]
    if r.flag("feat_proj_layer_norm", True):
        tensors["projection.norm"] = [2, channels[-1]]
    if not (style.squeezed and channels[-1] == width):
        found.append({"inputs": channels[-1], "outputs": width, "taps": 1})
    return found, tensors


def convolved_positions(style: Sound, r: Reader, width: int) -> tuple[list[dict[str, Any]], dict[str, list[int]]]:
    """Convolutions over positions; the norm of a weight-normalised one's taps."""
    groups, number = r.integer("num_conv_pos_embedding_groups"), r.integer("num_conv_pos_embeddings")
    if width % groups:
        raise r.refuse("num_conv_pos_embedding_groups", f"{groups} groups do not divide the width {width}")
    if style.stacked:
        one = {"inputs": width, "outputs": width, "taps": r.integer("conv_pos_kernel_size"), "groups": groups}
        return [one] * number, {}
    one = {"inputs": width, "outputs": width, "taps": number, "groups": groups}
    one |= {"stride": r.integer("squeeze_factor")} if style.squeezed else {}
    return [one], {"positions.norm": [number]}
