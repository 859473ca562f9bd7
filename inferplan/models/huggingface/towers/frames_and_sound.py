"""Towers with what joins them: GOT-OCR 2, VideoLLaMA 3, dots3 Note, Muse Spark, DiffusionGemma."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.beside import AUDIO, VISION, Beside, Media, vision
from inferplan.models.huggingface.towers.joins import gemma4
from inferplan.models.huggingface.towers.parts import (
    Tensors,
    block,
    conv,
    copies,
    feed_forward,
    heads_of,
    linear,
    norm,
    patch_conv,
    tower,
)
from inferplan.models.huggingface.towers.resamplers import muse, muse_vision


def _experts(r: Reader, count: int) -> list[dict[str, Any]]:
    """The feed-forward of every layer; ``per_layer_config`` says how many experts each of the sparse ones has."""
    kinds, other = r.items("mlp_layer_types", count), r.table("per_layer_config")
    if kinds is None or set(kinds) - {"dense", "sparse"}:
        raise r.refuse(f"mlp_layer_types = {kinds!r}", "only dense and sparse are known, one for each layer")
    top_k, width = r.integer("num_experts_per_tok"), r.integer("moe_intermediate_size")
    experts, bias = r.integer("num_local_experts"), r.flag("mlp_bias", False)
    dense = {"kind": "mlp", "d_ff": r.integer("intermediate_size"), "gated": True, "bias": bias}
    found = []
    for place, kind in enumerate(kinds):
        own = None if other is None else other.layer_table(place)
        number, chosen = experts, top_k
        if own is not None:
            number = own.integer("num_local_experts", default=experts)
            chosen = own.integer("num_experts_per_tok", default=top_k)
            own.require_read()
        sparse = {"kind": "moe", "experts": number, "top_k": chosen, "d_ff": width, "gated": True}
        found.append(sparse if kind == "sparse" else dense)
    return found


def dots_vision(r: Reader) -> dict[str, Any]:
    """dots3 Note's: experts in the upper layers, more of them the higher; a merger of four patches."""
    width, heads, count = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("num_hidden_layers")
    style = {"bias": r.flag("attention_bias", False), "rotary": True, "qk_norm": "head"}
    layer = block(heads, heads_of(r, width, heads), r.integer("intermediate_size"), **style)
    layers = [layer | {"ffn": ffn} for ffn in _experts(r, count)]
    joined = width * r.integer("spatial_merge_size") ** 2
    r.only("adapter_in_dim", width)
    r.only("adapter_merge_size", r.integer("spatial_merge_size"))
    r.skip("router_scaling_factor")
    tensors = patch_conv(r, width) | norm("norm.before", width, 1) | norm("norm", width, 1) | norm("merger.norm", width)
    tensors |= feed_forward("merger", [joined, joined, r.integer("adapter_out_dim")])
    return tower(width, layers, tensors, "rms")


def dots_audio(r: Reader) -> dict[str, Any]:
    """dots3 Note's: three convolutions of stride 2 over time and pitch, gated layers, two matrices."""
    width, heads, count = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("num_hidden_layers")
    biased, channels = r.flag("attention_bias", True), r.integer("downsample_hidden_size")
    head_dim = heads_of(r, width, heads)
    style = {"qkv_bias": False, "out_bias": biased, "gated": True, "rotary": True}
    layer = block(heads, head_dim, r.integer("intermediate_size"), **style)
    r.only("num_key_value_heads", heads)
    r.only("head_dim", head_dim)
    r.only("adapter_input_size", width)
    outputs = channels * -(-r.integer("feature_size") // 8)
    r.only("conv_output_size", outputs)
    r.skip("sampling_rate", "hop_length", "samples_per_token", "max_position_embeddings")
    tensors: Tensors = {"layers.qv_bias": [count, 2, width]} if biased else {}
    tensors |= conv("conv.0", 1, channels, 3, 3) | copies(2, conv("conv.1", channels, channels, 3, 3))
    tensors |= linear("conv.out", outputs, width, bias=False) | norm("norm", width, 1) | norm("projector.norm", width)
    out = r.integer("adapter_out_dim")
    return tower(width, [{"repeat": count, **layer}], tensors | feed_forward("projector", [width, out, out]), "rms")


def muse_audio(r: Reader) -> dict[str, Any]:
    """Muse Spark's: the wave in patches of patches, each stage with depthwise convolutions and feed-forwards."""
    widths, sizes, depths = r.need("hidden_sizes"), r.need("patch_sizes"), r.need("depths")
    if not len(widths) == len(sizes) == len(depths) == r.integer("num_hidden_layers"):
        raise r.refuse("hidden_sizes, patch_sizes and depths", "they have no entry for each of num_hidden_layers")
    tensors, inputs = Tensors(), 1
    for stage, (width, size, depth) in enumerate(zip(widths, sizes, depths, strict=True)):
        tensors |= linear(f"stage.{stage}.patch", inputs * size, width) | norm(f"stage.{stage}.patch.norm", width, 1)
        own = conv("depthwise", 1, width, r.integer("conv_kernel_size")) | norm("norm", width, 1)
        own |= feed_forward("mlp", [width, int(width * r.need("mlp_ratio")), width])
        tensors |= {f"stage.{stage}.{name}": shape for name, shape in copies(depth, own).items()}
        inputs = width
    out = r.integer("out_hidden_size")
    tensors |= norm("norm", inputs, 1) | linear("projector", inputs, out) | norm("projector.norm", out, 1)
    return tower(inputs, [], tensors, "rms")


def canvas(m: Media) -> None:
    """Gemma 4's tower and one matrix. Untied, the stack that reads has weights apart from the one that denoises."""
    m.outer.only("tie_word_embeddings", True)
    m.text.only("tie_word_embeddings", True)
    m.outer.skip("canvas_length")
    gemma4(m)


TOWERS = {
    "muse_spark_vision": muse_vision,
    "muse_spark_audio": muse_audio,
    "dots3_note_vision_encoder": dots_vision,
    "dots3_note_audio_encoder": dots_audio,
}

JOINED: dict[str, Beside] = {
    "diffusion_gemma": vision("gemma4_vision", canvas),
    "muse_spark": Beside(towers={VISION: "muse_spark_vision", AUDIO: "muse_spark_audio"}, join=muse),
    "dots3_note": Beside(towers={VISION: "dots3_note_vision_encoder", AUDIO: "dots3_note_audio_encoder"}),
    "cosmos3_omni": vision("qwen3_vl_vision"),
    "qwen4_exp": vision("qwen4_exp_vision"),
}
"""Rows of the table of what stands beside a language model."""
