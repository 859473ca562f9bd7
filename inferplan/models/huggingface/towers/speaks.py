"""What speaks beside Qwen2.5-Omni (2503.20215) and Qwen3-Omni (2509.17765): a talker, and what makes sound of codes."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.beside import Media
from inferplan.models.huggingface.towers.parts import Tensors, block, conv, copies, heads_of, linear, norm, tower

_TALKER, _SOUND = "talker_config", "token2wav_config"


def qwen25_omni(m: Media) -> None:
    """The talker and its vocoder, where the config has them and does not switch them off."""
    if _silent(m, _TALKER, _SOUND):
        return
    sound = m.part(_SOUND, "")
    waves = m.within(sound, "dit_config", "qwen2_5_omni_dit"), m.within(sound, "bigvgan_config", "qwen2_5_omni_bigvgan")
    m.towers[_TALKER] = _talker(m.part(_TALKER, "qwen2_5_omni_talker"))
    m.towers[_SOUND] = _diffusion(waves[0])
    m.add(_SOUND, _vocoder(waves[1]))
    m.notes.append(f"no time is given for what speaks ({_TALKER}, {_SOUND})")


def _silent(m: Media, *tables: str) -> bool:
    """Whether the config has no such tables, or switches them off."""
    off = not m.outer.flag("enable_audio_output", True)
    if off:
        m.outer.skip(*tables)
    return off or not all(isinstance(m.outer.config.get(name), dict) for name in tables)


def _talker(r: Reader) -> dict[str, Any]:
    """Qwen2's layers over hidden states of the thinker."""
    width, heads, read = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("embedding_size")
    rows, size = r.integer("vocab_size"), r.integer("head_dim", default=0) or heads_of(r, width, heads)
    style = {"bias": False, "qkv_bias": True, "gated": True, "rotary": True, "causal": True}
    kv_heads = r.integer("num_key_value_heads")
    layer = block(heads, size, r.integer("intermediate_size"), kv_heads=kv_heads, **style)
    tensors = linear("thinker", read, width) | norm("norm", width, 1)
    tensors |= {"codes": [rows, read], "head": [rows, width]}
    r.only("tie_word_embeddings", False)
    r.skip("use_sliding_window", "sliding_window", "max_window_layers", "layer_types", "max_position_embeddings")
    r.skip("position_id_per_seconds", "seconds_per_chunk", "spatial_merge_size", "use_cache", "hidden_act")
    return tower(width, [{"repeat": r.integer("num_hidden_layers"), **layer}], tensors, "rms")


def _diffusion(r: Reader) -> dict[str, Any]:
    """Layers whose norms follow the step of diffusion, over codes, a spectrum and a speaker."""
    width, heads, pitch = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("mel_dim")
    layer = block(heads, r.integer("head_dim"), width * r.integer("ff_mult"), norms=0)
    count, coded = r.integer("num_hidden_layers"), r.integer("emb_dim")
    tensors = linear("time.0", _SINUSOIDS, width) | linear("time.1", width, width)
    tensors |= {"codes": [r.integer("num_embeds") + 1, coded]}
    tensors |= linear("input", pitch + r.integer("enc_dim") + r.integer("enc_emb_dim") + coded, width)
    tensors |= linear("norm.out", width, 2 * width) | linear("out", width, pitch)
    own = copies(count, linear("modulation", width, 6 * width))
    tensors |= {f"layers.{name}": shape for name, shape in own.items()} | _speaker(r, pitch)
    r.skip("repeats", "block_size", "look_ahead_layers", "look_backward_layers", "max_position_embeddings")
    r.skip("enc_dilations", "dropout")
    return tower(width, [{"repeat": count, **layer}], tensors)


_SINUSOIDS = 256
"""Of a step of diffusion."""


def _speaker(r: Reader, pitch: int) -> Tensors:
    """ECAPA-TDNN (2005.07143): convolutions in parts of the channels, and statistics of them all."""
    channels, kernels = r.need("enc_channels"), r.need("enc_kernel_sizes")
    scale, narrow = r.integer("enc_res2net_scale"), r.integer("enc_se_channels")
    tensors = conv("first", pitch, channels[0], kernels[0])
    for place in range(1, len(channels) - 1):
        wide = channels[place]
        own = conv("in", channels[place - 1], wide, 1) | conv("out", wide, wide, 1)
        own |= copies(scale - 1, conv("parts", wide // scale, wide // scale, kernels[place]))
        own |= conv("squeeze", wide, narrow, 1) | conv("excite", narrow, wide, 1)
        tensors |= {f"{place}.{name}": shape for name, shape in own.items()}
    last, middle = channels[-1], r.integer("enc_attention_channels")
    tensors |= conv("joined", last, last, kernels[-1]) | conv("statistics", 3 * last, middle, 1)
    tensors |= conv("weights", middle, last, 1) | conv("speaker", 2 * last, r.integer("enc_dim"), 1)
    return {f"speaker.{name}": shape for name, shape in tensors.items()}


def _vocoder(r: Reader) -> Tensors:
    """BigVGAN (2206.04658): steps up to samples with residual blocks of every kernel, whose activations learn."""
    width, kernels = r.integer("upsample_initial_channel"), r.need("resblock_kernel_sizes")
    steps, dilations = r.need("upsample_kernel_sizes"), r.need("resblock_dilation_sizes")
    tensors = conv("first", r.integer("mel_dim"), width, 7)
    for stage, taps in enumerate(steps[: len(r.need("upsample_rates"))]):
        narrow = width // 2 ** (stage + 1)
        own: Tensors = {"up": [width // 2**stage, narrow, taps], "up.bias": [narrow]}
        for kernel, steps_apart in zip(kernels, dilations):
            count = 2 * len(steps_apart)
            own |= {
                f"{kernel}.{name}": shape for name, shape in copies(count, conv("conv", narrow, narrow, kernel)).items()
            }
            own |= {f"{kernel}.activations": [count, 2, narrow]}
        tensors |= {f"{stage}.{name}": shape for name, shape in own.items()}
    last = width // 2 ** len(r.need("upsample_rates"))
    tensors |= {"activation": [2, last], "last": [1, last, 7]}
    return {f"samples.{name}": shape for name, shape in tensors.items()}


_PREDICTOR, _CODES = "code_predictor_config", "code2wav_config"


def qwen3_omni(m: Media) -> None:
    """Qwen3-Omni's: a talker with experts, what predicts further codes, and a vocoder."""
    if _silent(m, _TALKER, _CODES):
        return
    whole = m.part(_TALKER, "qwen3_omni_moe_talker")
    text = m.within(whole, "text_config", "qwen3_omni_moe_talker_text", kept="talker.text_config")
    further = m.within(whole, _PREDICTOR, "qwen3_omni_moe_talker_code_predictor")
    m.towers[_TALKER], read = _experts(text), whole.integer("thinker_hidden_size")
    width, inner = m.width(_TALKER), text.integer("intermediate_size")
    for name in ("text", "hidden"):
        m.add(_TALKER, linear(f"{name}.0", read, inner) | linear(f"{name}.1", inner, width))
    m.towers[_PREDICTOR] = _predictor(further)
    m.towers[_CODES] = _waves(m.part(_CODES, "qwen3_omni_moe_code2wav"))
    whole.skip("num_code_groups", "accept_hidden_layer", "position_id_per_seconds", "speaker_id", "spatial_merge_size")
    whole.skip("codec_nothink_id", "codec_think_bos_id", "codec_think_eos_id", "codec_pad_id", "codec_bos_id")
    whole.skip("tie_word_embeddings", "use_cache")
    m.notes.append(f"no time is given for what speaks ({_TALKER}, {_CODES})")


def _normed(r: Reader, size: int) -> dict[str, Any]:
    """Qwen3's attention."""
    heads, bias = r.integer("num_attention_heads"), r.flag("attention_bias", False)
    style = {"bias": False, "qkv_bias": bias, "out_bias": bias, "gated": True, "rotary": True, "causal": True}
    kv_heads = r.integer("num_key_value_heads")
    r.skip("max_position_embeddings", "max_window_layers", "sliding_window", "layer_types", "use_sliding_window")
    r.skip("use_cache", "hidden_act")
    r.only("tie_word_embeddings", False)
    return block(heads, size, r.integer("intermediate_size"), kv_heads=kv_heads, qk_norm="head", **style)


def _experts(r: Reader) -> dict[str, Any]:
    width, heads = r.integer("hidden_size"), r.integer("num_attention_heads")
    layer = _normed(r, r.integer("head_dim", default=0) or heads_of(r, width, heads))
    layer["ffn"] = {
        "kind": "moe",
        "experts": r.integer("num_experts", "num_local_experts"),
        "top_k": r.integer("num_experts_per_tok"),
        "d_ff": r.integer("moe_intermediate_size"),
        "shared_d_ff": r.integer("shared_expert_intermediate_size"),
        "shared_gate": True,
    }
    r.skip("decoder_sparse_step", "mlp_only_layers", "norm_topk_prob", "router_aux_loss_coef")
    rows = r.integer("vocab_size")
    tensors = norm("norm", width, 1) | {"codes": [rows, width], "head": [rows, width]}
    return tower(width, [{"repeat": r.integer("num_hidden_layers"), **layer}], tensors, "rms")


def _predictor(r: Reader) -> dict[str, Any]:
    """Dense layers, with a table and a head for each further code."""
    width, rows, further = r.integer("hidden_size"), r.integer("vocab_size"), r.integer("num_code_groups") - 1
    layer = _normed(r, r.integer("head_dim"))
    tensors = norm("norm", width, 1) | copies(further, {"codes": [rows, width], "heads": [rows, width]})
    return tower(width, [{"repeat": r.integer("num_hidden_layers"), **layer}], tensors, "rms")


def _waves(r: Reader) -> dict[str, Any]:
    """Layers over codes, and causal convolutions up to samples with activations that learn."""
    width, heads, count = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("num_hidden_layers")
    bias, top = r.flag("attention_bias", False), r.integer("decoder_dim")
    style = {"bias": False, "qkv_bias": bias, "out_bias": bias, "gated": True, "rotary": True, "causal": True}
    kv_heads, size = r.integer("num_key_value_heads"), heads_of(r, width, heads)
    layer = block(heads, size, r.integer("intermediate_size"), kv_heads=kv_heads, **style)
    tensors = norm("norm", width, 1) | {"layer_scales": [2 * count, width]}
    tensors |= {"codes": [r.integer("codebook_size") * r.integer("num_quantizers"), width]}
    for stage, factor in enumerate(r.need("upsampling_ratios")):
        own = conv("up", width, width, factor) | {"scale": [width]} | conv("depthwise", 1, width, 7)
        own |= norm("norm", width) | linear("wide", width, 4 * width) | linear("narrow", 4 * width, width)
        tensors |= {f"join.{stage}.{name}": shape for name, shape in own.items()}
    tensors |= conv("first", width, top, 7)
    for stage, rate in enumerate(r.need("upsample_rates")):
        wide, narrow = top // 2**stage, top // 2 ** (stage + 1)
        own = {"activation": [2, wide], "up": [wide, narrow, 2 * rate], "up.bias": [narrow]}
        own |= copies(3, {"activations": [4, narrow]} | conv("0", narrow, narrow, 7) | conv("1", narrow, narrow, 1))
        tensors |= {f"samples.{stage}.{name}": shape for name, shape in own.items()}
    last = top // 2 ** len(r.need("upsample_rates"))
    tensors |= {"activation": [2, last]} | conv("last", last, 1, 7)
    r.skip("sliding_window", "max_position_embeddings", "layer_scale_initial_scale", "hidden_act", "use_cache")
    r.skip("tie_word_embeddings")
    return tower(width, [{"repeat": count, **layer}], tensors, "rms")
