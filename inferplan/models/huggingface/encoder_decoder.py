"""Encoder-decoders: T5 and its relatives, BART and its relatives, and those that read sound.

Shapes are those of the classes of transformers that the configs belong to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from inferplan.models.huggingface.conformer import activation as hidden_activation
from inferplan.models.huggingface.conformer import fast_encoder
from inferplan.models.huggingface.decoder import ACTIVATIONS, activation
from inferplan.models.huggingface.dialect import Dialect, Layer, compress, flag
from inferplan.models.huggingface.gates_and_norms import walk
from inferplan.models.huggingface.reader import Reader

Experts = Callable[[Reader, str, int], list[Layer | None]]
"""The mixture of experts of each layer of ``encoder`` or ``decoder``, ``None`` where it is dense."""

_HEADS = ("ForCausalLM", "ForSequenceClassification", "ForQuestionAnswering", "ForTokenClassification", "EncoderModel")
_DEAD = (
    "num_hidden_layers", "encoder_layerdrop", "decoder_layerdrop", "add_bias_logits", "add_final_layer_norm",
    "normalize_before", "normalize_embedding", "static_position_embeddings", "extra_pos_embeddings", "save_step",
    "force_bos_token_to_be_generated", "layernorm_variant", "blenderbot_variant", "unk_token_id", "num_beams", "langs",
    "forced_decoder_ids", "n_positions", "output_past", "relative_attention_max_distance",
    "scale_decoder_outputs", "gradient_checkpointing", "tie_encoder_decoder",
)  # fmt: skip
"""Fields that the classes do not read, or that change no shape."""


@dataclass(frozen=True, kw_only=True)
class Bart:
    """What tells the relatives of BART (1910.13461) apart.

    offset: rows of a learned or stored position table beyond the longest input, ``None`` where there is no table.
    final_norm: a norm behind the last layer. experts: which layers are mixtures of experts.
    """

    offset: int | None = None
    final_norm: bool = False
    experts: Experts | None = None
    encoder_attention: Callable[[Reader, int, Layer], list[Layer]] | None = None
    norms: int = 2
    """Norms in a layer of the encoder."""


def bart(style: Bart) -> Callable[[Reader, Dialect], dict[str, Any]]:
    """What builds a relative of BART."""
    return partial(_bart, style)


def _bart(style: Bart, r: Reader, d: Dialect) -> dict[str, Any]:
    begin(r, d)
    width, vocab = r.integer("d_model"), r.integer("vocab_size")
    longest = r.optional("max_position_embeddings")
    own, source = r.optional("max_decoder_position_embeddings"), r.optional("max_encoder_position_embeddings")
    own, source = own or longest or r.integer("max_position_embeddings"), source or longest
    count, depth = r.integer("encoder_layers"), r.integer("decoder_layers")
    mixer = side_attention(r, d, width, "encoder") | {"causal": False}
    mixers = [mixer] * count
    tensors: dict[str, list[int]] = {}
    if style.encoder_attention is not None:
        mixers = style.encoder_attention(r, count, mixer)
    if r.config.get("model_type") == "led":
        tensors = {"global": [count, 3, width, width], "global.bias": [count, 3, width]}
    if r.config.get("model_type") == "pegasus_x":
        tensors = {"global": [r.integer("num_global_tokens"), width]}
    feeds, others = (_feeds(style, r, d, side, layers) for side, layers in (("encoder", count), ("decoder", depth)))
    layers = [{"mixer": one, "ffn": feed, "norms": style.norms} for one, feed in zip(mixers, feeds, strict=True)]
    rows = None if style.offset is None else style.offset
    return {
        "d_model": width,
        "vocab": vocab,
        "norm": "layer",
        "final_norm": style.final_norm,
        "embedding_norm": d.embedding_norm,
        "positions": 0 if rows is None else own + rows,
        "max_context": (source or own) + own,
        "layers": decoder_layers(side_attention(r, d, width, "decoder"), others),
        "encoder": {
            "d_model": width,
            "norm": "layer",
            "final_norm": style.final_norm,
            "embedding_norm": d.embedding_norm,
            "positions": 0 if rows is None else (source or own) + rows,
            "max_context": source or own,
            "layers": compress(layers),
            **_tables(r, d, vocab, width, tensors),
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


def _tables(r: Reader, d: Dialect, vocab: int, width: int, tensors: dict[str, list[int]]) -> dict[str, Any]:
    """The encoder's embedding: the decoder's, or without ties its own beside one that is stored and not read."""
    if r.flag("tie_word_embeddings", d.tied):
        return {"tensors": tensors}
    return {"embedding": "own", "vocab": vocab, "tensors": {**tensors, "shared": [vocab, width]}}


def side_attention(r: Reader, d: Dialect, width: int, side: str) -> Layer:
    heads = r.integer(f"{side}_attention_heads")
    if width % heads:
        raise r.refuse(f"{side}_attention_heads", f"{heads} heads do not divide the width {width}")
    bias = flag(r, d.qkv_bias)
    mixer = {"kind": "attention", "heads": heads, "kv_heads": heads, "head_dim": width // heads, "rotary": False}
    return mixer | {"qkv_bias": bias, "out_bias": bias, **d.attention}


def _feeds(style: Bart, r: Reader, d: Dialect, side: str, count: int) -> list[Layer]:
    """The feed-forward of each layer."""
    width = r.integer(f"{side}_ffn_dim")
    dense = {"kind": "mlp", "d_ff": width, "gated": False, "bias": True, "activation": activation(r, d)}
    if style.experts is None:
        return [dense] * count
    return [sparse or dense for sparse in style.experts(r, side, count)]


def decoder_layers(mixer: Layer, feeds: list[Layer], mixers: list[Layer] | None = None, norms: int = 3) -> list[Layer]:
    """Layers of attention to what is written, attention to the encoder, and a feed-forward."""
    kept = ("heads", "kv_heads", "head_dim", "qkv_bias", "key_bias", "out_bias", "source_width")
    cross = {"kind": "cross_attention", **{name: mixer[name] for name in kept if name in mixer}}
    own = {name: value for name, value in mixer.items() if name != "source_width"}
    every = mixers or [own] * len(feeds)
    layers = [
        {"mixer": one, "ffn": feed, "extras": [cross], "norms": norms} for one, feed in zip(every, feeds, strict=True)
    ]
    return compress(layers)


def banded(positions: Callable[[Reader, int], list[int]]) -> Callable[[Reader, int, Layer], list[Layer]]:
    """Attention of an encoder to so many positions about each, in every layer."""

    def mixers(r: Reader, count: int, attention: Layer) -> list[Layer]:
        return [attention | {"window": size + 1 - size % 2} for size in positions(r, count)]

    return mixers


def led_windows(r: Reader, count: int) -> list[int]:
    """LED (2004.05150): half of ``attention_window`` to either side; one value, or one a layer."""
    window = r.need("attention_window")
    return (
        [r.integer("attention_window")] * count if isinstance(window, int) else r.items("attention_window", count) or []
    )


def big_bird_blocks(r: Reader, count: int) -> list[int]:
    """BigBird (2007.14062): three blocks about its own, two at the ends and some at random, for each block."""
    return [(5 + r.integer("num_random_blocks")) * r.integer("block_size")] * count


def pegasus_x_blocks(r: Reader, count: int) -> list[int]:
    """PEGASUS-X (2208.04347): its own block and the global tokens."""
    r.skip("stagger_local_blocks")
    return [r.integer("block_size") + r.integer("num_global_tokens")] * count


def nllb_experts(r: Reader, side: str, count: int) -> list[Layer | None]:
    """NLLB-MoE (2207.04672): two of the experts in every ``sparse_step``-th layer."""
    step = r.integer(f"{side}_sparse_step")
    r.skip("expert_capacity", "second_expert_policy", "normalize_router_prob_before_dropping", "moe_token_dropout")
    r.skip("batch_prioritized_routing", "moe_eval_capacity_token_fraction", "router_ignore_padding_tokens")
    r.skip("router_type", "num_local_experts", "max_position_embeddings")
    experts = {
        "kind": "moe",
        "experts": r.integer("num_experts"),
        "top_k": 2,
        "d_ff": r.integer(f"{side}_ffn_dim"),
        "gated": False,
        "expert_bias": True,
        "router_bias": r.flag("router_bias", False),
        "activation": "relu",
    }
    return [experts if step > 0 and (index + 1) % step == 0 else None for index in range(count)]


def marian(r: Reader, d: Dialect) -> dict[str, Any]:
    """Marian (1804.00344): the tables of both sides may be one, and each side has sinusoids that the class keeps."""
    fields = _bart(Bart(offset=0), r, d)
    shared, tied = r.flag("share_encoder_decoder_embeddings", True), r.flag("tie_word_embeddings", d.tied)
    vocab = r.integer("vocab_size")
    other = r.integer("decoder_vocab_size", default=vocab)
    if shared and other != vocab:
        raise r.refuse("decoder_vocab_size", "it is not vocab_size, and both sides share one table")
    if not shared:
        fields["vocab"] = other
        fields["encoder"] |= {"embedding": "own", "vocab": vocab, "tensors": {}}
    elif tied:
        fields["encoder"] |= {"tensors": {}}
    return fields


def fsmt(r: Reader, d: Dialect) -> dict[str, Any]:
    """FSMT (1907.06616): a vocabulary for each side; both tables and the head are one only where all are tied."""
    source, target = r.integer("src_vocab_size"), r.integer("tgt_vocab_size")
    r.config |= {"vocab_size": target}
    r.skip("decoder")
    fields = _bart(Bart(offset=2), r, d)
    tied = r.flag("tie_word_embeddings", d.tied)
    if tied and source != target:
        raise r.refuse("tie_word_embeddings", f"the vocabularies differ: {source} and {target} rows")
    if not tied:
        fields["encoder"] |= {"embedding": "own", "vocab": source, "tensors": {}}
    return fields


def mvp(r: Reader, d: Dialect) -> dict[str, Any]:
    """MVP (2206.12131) without its prompts."""
    r.only("use_prompt", False)
    r.skip("prompt_length", "prompt_mid_dim")
    return _bart(Bart(offset=2), r, d)


# T5 (1910.10683) and its relatives: RMS norms, no biases, a table of biases by distance.


def t5(r: Reader, d: Dialect, *, every: bool = False, experts: Experts | None = None) -> dict[str, Any]:
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
    feeds = {side: [feed] * layers for side, layers in (("encoder", count), ("decoder", depth))}
    if experts is not None:
        feeds = {side: [one or feed for one in experts(r, side, len(own))] for side, own in feeds.items()}
    vocab = r.integer("vocab_size")
    layers = zip(mixers(count, {"causal": False, **_local(r)}), feeds["encoder"], strict=True)
    encoder = {"d_model": width, "layers": compress([{"mixer": one, "ffn": own} for one, own in layers])}
    if experts is not None:
        encoder |= _tables(r, d, vocab, width, {})
    decoder = decoder_layers(mixer, feeds["decoder"], mixers(depth, {}))
    return {"d_model": width, "vocab": vocab, "max_context": None, "layers": decoder, "encoder": encoder}


def _t5_feed(r: Reader) -> Layer:
    """``relu``, ``gated-gelu`` and the like, which fields of their own overrule; Switch names the activation alone."""
    said = str(r.get("feed_forward_proj") or r.get("dense_act_fn") or r.need("feed_forward_proj", "dense_act_fn"))
    gate, _, name = said.rpartition("-")
    name = str(r.get("dense_act_fn") or name)
    if gate not in ("", "gated") or name not in ACTIVATIONS:
        raise r.refuse(f"feed_forward_proj = {said!r}", f"only {', '.join(ACTIVATIONS)} are known, or gated- and one")
    gated = r.flag("is_gated_act", bool(gate))
    return {"kind": "mlp", "d_ff": r.integer("d_ff"), "gated": gated, "activation": ACTIVATIONS[name]}


def _local(r: Reader) -> Layer:
    """LongT5 (2112.07916): each position sees ``local_radius`` to either side."""
    radius = r.optional("local_radius")
    if radius is None:
        return {}
    r.only("encoder_attention_type", "local")
    r.skip("global_block_size")
    return {"window": 2 * radius + 1}


def switch_experts(r: Reader, side: str, count: int) -> list[Layer | None]:
    """Switch (2101.03961): one expert, in the second of every ``layers // sparse layers`` layers."""
    sparse = r.integer(f"num_sparse_{side}_layers")
    r.skip("expert_capacity", "add_router_probs")
    r.skip("router_ignore_padding_tokens", "router_type", "num_selected_experts", "batch_prioritized_routing")
    step = r.integer(f"{side}_sparse_step", default=count // sparse if sparse > 0 else count)
    experts = {
        **_t5_feed(r),
        "kind": "moe",
        "experts": r.integer("num_experts"),
        "top_k": 1,
        "router_bias": r.flag("router_bias", False),
    }
    return [experts if step == 1 or (step > 0 and index % step == 1) else None for index in range(count)]


# T5Gemma (2504.06225): both halves are Gemma 2's.


def t5gemma(r: Reader, d: Dialect) -> dict[str, Any]:
    """Two stacks of Gemma 2: windows of the encoder see both ways, and the decoder writes no more than its own."""
    begin(r, d)
    r.skip("dropout_rate", "classifier_dropout_rate", "vocab_size")
    halves = [table for side in ("encoder", "decoder") if (table := r.table(side)) is not None]
    if len(halves) != 2:
        raise r.refuse("encoder and decoder", "a T5Gemma config has a table for each")
    source, own = halves
    width, vocab, other = own.integer("hidden_size"), own.integer("vocab_size"), source.integer("hidden_size")
    rows, count = source.integer("vocab_size"), own.integer("num_hidden_layers")
    read, written = (half.integer("max_position_embeddings") for half in halves)
    windows = [_gemma_windows(half) for half in halves]
    mixers, feeds = zip(*(_gemma_layer(half) for half in halves))
    narrow = [size for size in windows[1] if size is not None]
    written = min([written, *narrow])  # beyond it layers let go of tokens that they wrote, and of none that they read
    layers = [
        {
            "mixer": mixers[0] | {"causal": False} | ({"window": 2 * size + 1} if size else {}),
            "ffn": feeds[0],
            "norms": 4,
        }
        for size in windows[0]
    ]
    decoder = mixers[1] | ({} if other == width else {"source_width": other})
    own.only("cross_attention_hidden_size", other)
    for half in halves:
        half.skip("tie_word_embeddings", "dropout_rate")
        half.require_read()
    return {
        "d_model": width,
        "vocab": vocab,
        "max_context": read + written,
        "layers": decoder_layers(decoder, [feeds[1]] * count, norms=6),
        "encoder": {
            "d_model": other,
            "embedding": "own",
            "vocab": rows,
            "max_context": read,
            "layers": compress(layers),
        },
    }


def t5gemma2(r: Reader, d: Dialect) -> dict[str, Any]:
    """T5Gemma 2 (2512.14856): Gemma 3's halves; the decoder attends to itself and to the encoder in one softmax."""
    outer, own = r.table("encoder"), r.table("decoder")
    text = outer.table("text_config") if outer is not None else None
    if outer is None or own is None or text is None:
        raise r.refuse("encoder and decoder", "a T5Gemma 2 config has a table for each, and a text_config in the first")
    outer.skip("mm_tokens_per_image", "tie_word_embeddings")
    outer.require_read()
    for half in (text, own):
        count, step = half.integer("num_hidden_layers"), half.integer("sliding_window_pattern", default=6)
        kinds = ["sliding_attention" if (index + 1) % step else "full_attention" for index in range(count)]
        half.config["layer_types"] = half.config.get("layer_types") or kinds
    halves = Reader(r.config | {"encoder": text.config, "decoder": own.config}, r.name)
    fields = t5gemma(halves, d)
    r.skip(*halves.read, *halves.skipped)
    tied, width, encoder = r.flag("tie_word_embeddings", d.tied), fields["d_model"], fields["encoder"]
    for layer in walk(encoder["layers"]):
        layer["mixer"] = layer["mixer"] | {"qk_norm": "head"}
        if size := layer["mixer"].get("window"):
            layer["mixer"]["window"] = size // 2 + 1 - size // 2 % 2  # half of it to either side
    for layer in walk(fields["layers"]):
        cross = {name: layer["extras"][0][name] for name in ("kind", "heads", "kv_heads", "head_dim")}
        layer |= {"mixer": layer["mixer"] | {"qk_norm": "head"}, "extras": [cross | {"merged": True}], "norms": 4}
    if tied:
        encoder |= {"embedding": "shared", "vocab": None}
    encoder["tensors"] = {"end_of_image": [1 if tied else 2, width]}
    return fields


def _gemma_layer(half: Reader) -> tuple[Layer, Layer]:
    bias, heads = half.flag("attention_bias", False), half.integer("num_attention_heads")
    mixer = {
        "kind": "attention",
        "heads": heads,
        "kv_heads": half.integer("num_key_value_heads"),
        "head_dim": half.integer("head_dim"),
        "qkv_bias": bias,
        "out_bias": bias,
    }
    name = str(half.need("hidden_activation"))
    if name not in ACTIVATIONS:
        raise half.refuse(f"hidden_activation = {name!r}", f"only {', '.join(ACTIVATIONS)} are known")
    return mixer, {"kind": "mlp", "d_ff": half.integer("intermediate_size"), "activation": ACTIVATIONS[name]}


def _gemma_windows(half: Reader) -> list[int | None]:
    """The window of each layer: even ones slide unless ``layer_types`` say otherwise."""
    count, window = half.integer("num_hidden_layers"), half.optional("sliding_window")
    kinds = half.items("layer_types", count)
    if kinds is None:
        kinds = ["full_attention" if index % 2 else "sliding_attention" for index in range(count)]
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise half.refuse(f"layer_types entry {kind!r}", "only full_attention and sliding_attention are known here")
    return [window if kind == "sliding_attention" else None for kind in kinds]


# Those that read sound.


def whisper(r: Reader, d: Dialect) -> dict[str, Any]:
    """Whisper (2212.04356 section 2.2): two convolutions, 1500 positions for 30 s of sound, keys without a bias."""
    r.skip("use_weighted_layer_sum", "classifier_proj_size", "apply_spec_augment", "median_filter_width")
    r.skip(*(name for name in r.config if name.startswith("mask_")), "alignment_heads", "lang_ids")
    width, bins, frames = r.integer("d_model"), r.integer("num_mel_bins"), r.integer("max_source_positions")
    target = r.integer("max_target_positions")
    r.config |= {"max_position_embeddings": target}
    fields = _bart(Bart(offset=0, final_norm=True), r, d)
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


def speech_to_text(r: Reader, d: Dialect) -> dict[str, Any]:
    """Speech2Text (2010.05171): convolutions of stride 2 with gated outputs, no stored positions."""
    count, width, middle = r.integer("num_conv_layers"), r.integer("d_model"), r.integer("conv_channels")
    sizes = r.items("conv_kernel_sizes", count)
    if sizes is None:
        raise r.refuse("conv_kernel_sizes", "it is absent")
    first = r.integer("input_feat_per_channel") * r.integer("input_channels")
    convolutions = [
        {
            "inputs": middle // 2 if index else first,
            "outputs": middle if index < count - 1 else 2 * width,
            "taps": size,
            "stride": 2,
        }
        for index, size in enumerate(sizes)
    ]
    longest = -(-r.integer("max_source_positions") // 2**count)
    r.config |= {"max_position_embeddings": r.integer("max_target_positions")}
    fields = _bart(Bart(final_norm=True), r, d)
    fields["encoder"] |= {"embedding": "none", "vocab": None, "tensors": {}, "max_context": longest}
    fields["encoder"] |= {"convolutions": convolutions}
    return fields | {"max_context": longest + r.integer("max_target_positions")}


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


def canary(r: Reader, d: Dialect) -> dict[str, Any]:
    """Canary (2509.14128): a Parakeet's encoder, sinusoids that are not kept, and a decoder of its width."""
    encoder, inner = r.table("encoder_config"), r.table("decoder_config")
    if encoder is None or inner is None:
        raise r.refuse("encoder_config and decoder_config", "the counts depend on both")
    begin(r, d)
    if r.integer("vocab_size", default=inner.integer("vocab_size")) != inner.integer("vocab_size"):
        raise r.refuse("vocab_size", "it is not that of decoder_config")
    fields = _transcriber(inner, fast_encoder(encoder))
    if fields["encoder"]["d_model"] != fields["d_model"]:
        raise r.refuse("encoder_config.hidden_size", "it is not the decoder's")
    inner.require_read()
    return fields


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
