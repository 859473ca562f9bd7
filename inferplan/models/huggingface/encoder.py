"""Encoders: BERT and its relatives, as embedding, reranking, classifying and masked language models.

What each class has after its layers is read off transformers 5.23, ``models/*/modeling_*.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from inferplan.models.huggingface.decoder import attention, mlp
from inferplan.models.huggingface.dialect import Dialect, Layer, compress
from inferplan.models.huggingface.encoder_decoder import big_bird_blocks
from inferplan.models.huggingface.heads import architecture, head, labels, linear
from inferplan.models.huggingface.reader import CONTEXT, HEADS, LAYERS, WIDTH, Reader

_CLASS = re.compile(
    r"\w*?(?P<end>ForMaskedLM|ForSequenceClassification|ForTokenClassification|ForQuestionAnswering|ForMultipleChoice"
    r"|ForPreTraining|ForNextSentencePrediction|ForCausalLM|WithLMHeadModel|LMHeadModel|Model|Encoder|Decoder)"
)
_SAME = {"WithLMHeadModel": "ForMaskedLM", "LMHeadModel": "ForCausalLM", "Decoder": "ForCausalLM", "Encoder": "Model"}
ENDS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "Model")
PRETRAINED = (*ENDS, "ForMultipleChoice", "ForPreTraining", "ForNextSentencePrediction")


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """How an encoder differs from BERT.

    names: its own words for fields. embedding: the field with the width of its tables, which are projected where that
    is not the model's, or always (``projects``). embedding_norm (or the flag for it), final_norm: norms around the
    layers. positions, token_types: its tables. pooled: the class without a head has a pooler. classifier: ``pooled``, a
    linear layer behind the pooler; ``dense``, two layers; ``plain``, one; ``mlm``, one behind the transform of its
    masked language model. transform: the layer ahead of the vocabulary's, or what makes the whole way there, its
    vocabulary's matrix with it. ends: last words of the classes that are known; default: where no class is named.
    discriminates: it was trained to tell replaced tokens (ELECTRA). keeps_pooler: classes that have the pooler
    and do not need it.
    spare_bias: its head keeps a second bias over the vocabulary, which is another tensor where the head is not tied.
    decodes: with ``is_decoder`` it generates; causal: its tokens never see what is after them. padded: positions count
    from the one past the padding token's index. extra: further ends.
    """

    names: dict[str, str] = field(default_factory=dict)
    embedding: str | None = None
    projects: bool = False
    embedding_norm: bool | str = True
    final_norm: bool = False
    positions: bool = True
    token_types: bool = True
    pooled: bool = True
    classifier: Literal["pooled", "dense", "plain", "mlm"] = "dense"
    transform: bool | Callable[[Reader], list[dict[str, Any]]] = True
    transform_bias: bool | str = True
    label_bias: bool | str = True
    vocabulary_bias: bool | str = True
    ends: tuple[str, ...] = ENDS
    default: str = "ForMaskedLM"
    discriminates: bool = False
    keeps_pooler: tuple[str, ...] = ()
    spare_bias: bool = False
    decodes: bool = False
    causal: bool = False
    padded: bool = False
    layers: Callable[[Reader, Dialect, bool], list[Layer]] | None = None
    extra: Callable[[Reader], dict[str, Any]] | None = None


def build(style: Encoder) -> Callable[[Reader, Dialect], dict[str, Any]]:
    """The builder of a family's row."""
    return partial(_build, style)


def _build(style: Encoder, r: Reader, d: Dialect) -> dict[str, Any]:
    for own, name in style.names.items():
        if own in r.config:
            r.config.setdefault(name, r.config.pop(own))
    for name, allowed in d.fixed.items():
        r.only(name, *allowed)
    r.skip(*d.ignored)
    end = _end(style, r)
    generates = end == "ForCausalLM"
    width = r.integer(*WIDTH)
    narrow = r.integer(style.embedding) if style.embedding else width
    projected = style.projects or narrow != width
    layers = (style.layers or plain)(r, d, generates or style.causal)
    heads = _heads(style, r, end, (width, narrow))
    if end in style.keeps_pooler and not any(one["name"] == "pooler" for one in heads):
        heads.append(head("pooler", "sequence", linear(width, width)))
    ends: dict[str, Any] = {"tables": _tables(style, r), "projection_bias": projected, "heads": heads}
    more = style.extra(r) if style.extra else {}
    notes = more.pop("notes", [])
    for key, value in more.items():
        ends[key] = {**ends.get(key, {}), **value} if isinstance(value, dict) else value
    fields: dict[str, Any] = {
        "d_model": width,
        "vocab": r.integer("vocab_size"),
        "max_context": _longest(style, r),
        "embedding_width": narrow if projected else None,
        "norm": "layer" if d.norm == "layer_plain" and r.flag("norm_bias", False) else d.norm,
        "embedding_norm": _switch(style.embedding_norm, r),
        "final_norm": style.final_norm,
        "layers": compress(layers),
        "ends": {key: value for key, value in ends.items() if value},
        "generation": {} if generates else {"kind": "encode"},
        "notes": notes,
    }
    if any(one["vocabulary"] for one in heads):
        if style.spare_bias and not r.flag("tie_word_embeddings", d.tied):
            fields["ends"].setdefault("tensors", {})["spare_bias"] = [fields["vocab"]]
        return fields | {"head_bias": _switch(style.vocabulary_bias, r)}
    return fields | {"tied": False}


def _longest(style: Encoder, r: Reader) -> int | None:
    """The longest request; none where positions have no table and the config no field for them."""
    longest = r.integer(*CONTEXT) if style.positions else r.optional(*CONTEXT)
    return None if longest is None else longest - (r.integer("pad_token_id", default=1) + 1 if style.padded else 0)


def _switch(value: bool | str, r: Reader) -> bool:
    return value if isinstance(value, bool) else r.flag(value, value == "decoder_bias")


def _end(style: Encoder, r: Reader) -> str:
    """The last words of the class, which say what stands after the layers."""
    name, decodes = architecture(r), r.flag("is_decoder", False)
    if name is None:
        return "ForCausalLM" if decodes else style.default
    found = _CLASS.fullmatch(name)
    end = None if found is None else _SAME.get(found["end"], found["end"])
    generates = style.decodes or style.default == "ForCausalLM"
    known = (*style.ends, *(("ForCausalLM",) if generates else ()))
    if end is None or end not in known:
        raise r.refuse(
            f"architectures = [{name!r}]",
            "the class decides which head a model has, and the end of this one is not known",
            f"known for this family: {', '.join(f'...{one}' for one in known)}",
        )
    if (end == "ForCausalLM") != decodes and style.default != "ForCausalLM":
        because = "it generates with is_decoder alone" if not decodes else f"{name} generates nothing"
        raise r.refuse(f"architectures = [{name!r}] with is_decoder = {str(decodes).lower()}", because)
    return end


def _tables(style: Encoder, r: Reader) -> dict[str, int]:
    kind = r.get("position_embedding_type")
    if kind is not None and kind != "absolute" and not (kind == "rotary" and style.layers is esm):
        raise r.refuse(f"position_embedding_type = {kind!r}", "only 'absolute' is known for this family")
    tables = {"positions": r.integer(*CONTEXT)} if style.positions and kind != "rotary" else {}
    types = r.integer("type_vocab_size") if style.token_types else 0
    return tables | ({"token_types": types} if types else {})


def _heads(style: Encoder, r: Reader, end: str, widths: tuple[int, int]) -> list[dict[str, Any]]:
    """What stands after the layers. widths: of the model, and of its vocabulary tables."""
    width, narrow = widths
    pooler = head("pooler", "sequence", linear(width, width))
    bias = _switch(style.transform_bias, r)
    if end == "ForPreTraining" and style.discriminates:
        return [head("discriminator", "token", linear(width, width), linear(width, 1))]
    if end in ("ForMaskedLM", "ForCausalLM", "ForPreTraining"):
        if callable(style.transform):
            return [head("predictions", "token", *style.transform(r))]
        transform = [linear(width, narrow, bias, narrow)] if style.transform else []
        predictions = head("predictions", "token", *transform, vocabulary=True)
        more = [pooler, head("next", "sequence", linear(width, 2))] if end == "ForPreTraining" else []
        return [predictions, *more]
    if end == "Model":
        return [pooler] if style.pooled else []
    number = 1 if end == "ForMultipleChoice" else labels(r)
    if end in ("ForQuestionAnswering", "ForNextSentencePrediction") and number != 2:
        raise r.refuse("num_labels", f"it is {number}, and {end} has 2")
    label = linear(width, number, _switch(style.label_bias, r))
    before = [linear(width, width, bias, width)] if style.classifier == "mlm" else []
    if end in ("ForTokenClassification", "ForQuestionAnswering"):
        return [head("classifier", "token", *before, label)]
    if style.classifier == "pooled" or end in ("ForMultipleChoice", "ForNextSentencePrediction"):
        return [pooler, head("classifier", "sequence", label)]
    return [head("classifier", "sequence", *([linear(width, width)] if style.classifier == "dense" else before), label)]


# Layers.


def plain(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """Attention and a feed-forward, both ways unless it generates."""
    mixer = attention(r, d) | {"causal": causal}
    return [{"mixer": mixer, "ffn": mlp(r, d)}] * r.integer(*LAYERS)


def shared(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """Layers in groups whose parameters are one layer's (ALBERT, 1909.11942, section 3.1)."""
    count, groups = r.integer(*LAYERS), r.integer("num_hidden_groups", default=1)
    r.only("inner_group_num", 1)
    if not 1 <= groups <= count:
        raise r.refuse(f"num_hidden_groups = {groups}", f"{count} layers are in 1 to {count} groups")
    layer = plain(r, d, causal)[0]
    of = [int(index / (count / groups)) for index in range(count)]
    return [layer if index == 0 or of[index] != of[index - 1] else layer | {"shared": True} for index in range(count)]


def alternating(
    window: str, spans: Callable[[int], int], first_norms: int = 2, first: int = 0
) -> Callable[..., list[Layer]]:
    """Layers of which some see a window only, by ``layer_types`` or every so many (ModernBERT, 2412.13663).

    window: its field; spans: how many tokens that is for a layer. first_norms: norms of the first layer. first: the
    first layer that sees all.
    """

    def layers(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
        count, every = r.integer(*LAYERS), r.integer("global_attn_every_n_layers", default=3)
        usual = ["sliding_attention" if (index - first) % every else "full_attention" for index in range(count)]
        kinds = r.items("layer_types", count) or usual
        mixer, ffn = attention(r, d) | {"causal": causal}, mlp(r, d)
        found = []
        for index, kind in enumerate(kinds):
            if kind not in ("full_attention", "sliding_attention"):
                raise r.refuse(
                    f"layer_types entry {kind!r}", "only full_attention and sliding_attention are known here"
                )
            span = {"window": spans(r.integer(window))} if kind == "sliding_attention" else {}
            norms = {"norms": first_norms} if index == 0 and first_norms != 2 else {}
            found.append({"mixer": mixer | span, "ffn": ffn, **norms})
        return found

    return layers


def xlm(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """XLM's and FlauBERT's: feed-forwards four times as wide as the model."""
    width, heads = r.integer(*WIDTH), r.integer(*HEADS)
    mixer = attention(r, d) | {"causal": causal, "head_dim": width // heads}
    activation = "gelu" if r.flag("gelu_activation", True) else "relu"
    ffn = {"kind": "mlp", "d_ff": 4 * width, "gated": False, "bias": True, "activation": activation}
    return [{"mixer": mixer, "ffn": ffn}] * r.integer(*LAYERS)


def gte(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """Those of GTE, whose feed-forward has a bias on its way out alone."""
    return [layer | {"ffn": layer["ffn"] | {"out_bias": True}} for layer in plain(r, d, causal)]


def esm(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """Those of ESM, with rotary positions where the config says so."""
    rotary = r.get("position_embedding_type") == "rotary"
    return [layer | {"mixer": layer["mixer"] | {"rotary": rotary}} for layer in plain(r, d, causal)]


def terms_of_position(r: Reader) -> tuple[int, int]:
    """DeBERTa's distances on either side that have an embedding, and its terms of position; none where it has none."""
    kinds = r.get("pos_att_type") or []
    kinds = [part.strip() for part in kinds.lower().split("|")] if isinstance(kinds, str) else list(kinds)
    furthest, buckets = r.integer("max_relative_positions", default=-1), r.integer("position_buckets", default=-1)
    if not r.flag("relative_attention", False):
        return 0, 0
    if not set(kinds) <= {"c2p", "p2c"} or not kinds:
        raise r.refuse(f"pos_att_type = {kinds}", "only c2p and p2c are known")
    return buckets if buckets > 0 else furthest if furthest > 0 else r.integer(*CONTEXT), len(set(kinds))


def disentangled(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """DeBERTa's: with terms of position where the config has them."""
    span, terms = terms_of_position(r)
    shared = r.flag("share_att_key", False)
    if not span:
        return plain(r, d, causal)
    relative = {"kind": "disentangled_attention", "span": span, "terms": terms, "shares_projections": shared}
    return [layer | {"mixer": layer["mixer"] | relative} for layer in plain(r, d, causal)]


def disentangled_first(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """Those of the first DeBERTa: no bias on keys, nor on positions as keys; distances within the sequence alone."""
    to_keys = "c2p" in (r.get("pos_att_type") or ())
    layers = []
    for layer in disentangled(r, d, causal):
        mixer = layer["mixer"] | {"key_bias": False}
        if mixer["kind"] != "attention":
            mixer |= {"key_position_bias": not to_keys, "within_sequence": True}
        layers.append(layer | {"mixer": mixer})
    return layers


def banded(positions: Callable[[Reader, int], list[int]]) -> Callable[..., list[Layer]]:
    """Layers that attend to so many positions about each."""

    def layers(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
        layer, count = plain(r, d, causal)[0], r.integer(*LAYERS)
        return [layer | {"mixer": layer["mixer"] | {"window": size + 1 - size % 2}} for size in positions(r, count)]

    return layers


def big_bird(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """BigBird's (2007.14062): blocks about each, at the ends and at random, or everything."""
    kind = r.get("attention_type") or "block_sparse"
    if kind not in ("block_sparse", "original_full"):
        raise r.refuse(f"attention_type = {kind!r}", "only block_sparse and original_full are known")
    if kind == "original_full":
        r.skip("block_size", "num_random_blocks")
        return plain(r, d, causal)
    return banded(big_bird_blocks)(r, d, causal)


def adapted(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """X-MOD's (2205.06266): behind the feed-forward an adapter for each language, of which a request runs one."""
    width = r.integer(*WIDTH)
    own = r.flag("adapter_layer_norm", False)
    layer = plain(r, d, causal)[0]
    adapter = layer["ffn"] | {"d_ff": width // r.integer("adapter_reduction_factor")}
    return [layer | {"extras": [adapter], "norms": 3 if own else 2}] * r.integer(*LAYERS)


def protein(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """ESM-C's: queries and keys with norms over all heads."""
    width, heads = r.integer(*WIDTH), r.integer(*HEADS)
    layers = plain(r, d, causal)
    if layers[0]["mixer"]["kv_heads"] != heads or layers[0]["mixer"]["head_dim"] * heads != width:
        raise r.refuse("num_key_value_heads or head_dim", "its norms are as wide as the model, and its heads are not")
    return [layer | {"mixer": layer["mixer"] | {"qk_norm": "full"}} for layer in layers]


# What else lies around the layers.


def distances(r: Reader) -> dict[str, Any]:
    """DeBERTa's tables: positions unless they enter through attention alone, token types, embeddings of distances."""
    span, _ = terms_of_position(r)
    width, types = r.integer(*WIDTH), r.integer("type_vocab_size", default=0)
    if r.integer("pooler_hidden_size", default=width) != width:
        raise r.refuse("pooler_hidden_size", "only a pooler as wide as the model is known")
    tables = {"positions": r.integer(*CONTEXT)} if r.flag("position_biased_input", True) else {}
    tables |= {"token_types": types} if types else {}
    return {"tables": tables, "tensors": distance_tensors(r, span, width)}


def distance_tensors(r: Reader, span: int, width: int) -> dict[str, list[int]]:
    """The embeddings of distances that every layer projects, and their norm."""
    norm = str(r.get("norm_rel_ebd") or "none").lower()
    if norm not in ("none", "layer_norm"):
        raise r.refuse(f"norm_rel_ebd = {norm!r}", "only none and layer_norm are known")
    if not span:
        return {}
    return {"distances": [2 * span, width]} | ({"distances.norm": [2, width]} if norm == "layer_norm" else {})


def own_vocabulary(r: Reader) -> list[dict[str, Any]]:
    """RemBERT's way to its logits: an output table of its own, wider than that of the inputs (2010.12821)."""
    width, wide = r.integer(*WIDTH), r.integer("output_embedding_size", default=1664)
    return [linear(width, wide, norm=wide), linear(wide, r.integer("vocab_size"))]


def bottleneck(r: Reader) -> list[dict[str, Any]]:
    """UltraBERT's way to its logits: through a narrow layer, with a matrix of its own."""
    width, narrow = r.integer(*WIDTH), r.integer("prediction_head_size", default=768)
    return [linear(width, narrow, False), linear(narrow, width, False), linear(width, r.integer("vocab_size"), False)]


def glyphs(r: Reader) -> dict[str, Any]:
    """RoCBERT's tables of sounds and shapes, joined with the embedding and projected to the model's width."""
    for name in ("enable_pronunciation", "enable_shape", "concat_input"):
        r.only(name, True)
    width = r.integer(*WIDTH)
    sounds, shapes = r.integer("pronunciation_embed_dim"), r.integer("shape_embed_dim")
    tables = {
        "sounds": [r.integer("pronunciation_vocab_size"), sounds],
        "shapes": [r.integer("shape_vocab_size"), shapes],
    }
    return {"tensors": tables, "inputs": [linear(width + sounds + shapes, width)]}


def relative_bias(r: Reader) -> dict[str, Any]:
    """MPNet's table of biases, a number for each distance and head, which all layers add to their scores."""
    buckets = r.integer("relative_attention_num_buckets", default=32)
    return {"tensors": {"relative_bias": [buckets, r.integer(*HEADS)]}}


def rotary_table(r: Reader) -> dict[str, Any]:
    """RoFormer's sines and cosines, which it keeps as a parameter."""
    return {"tensors": {"rotary": [r.integer(*CONTEXT), r.integer(*WIDTH) // r.integer(*HEADS)]}}


def task_types(r: Reader) -> dict[str, Any]:
    """ERNIE's table of tasks."""
    number = r.integer("task_type_vocab_size", default=3)
    return {"tables": {"task_types": number}} if r.flag("use_task_id", False) else {}


def boxes(r: Reader) -> dict[str, Any]:
    """LayoutLM's tables of places on a page: left and right edge, top and bottom edge, height, width."""
    rows = r.integer("max_2d_position_embeddings", default=1024)
    return {"tables": {f"{axis}_positions": rows for axis in "xyhw"}}


def cells(r: Reader) -> dict[str, Any]:
    """TAPAS's tables of what a token is in its table of cells."""
    sizes = r.need("type_vocab_sizes")
    if not isinstance(sizes, list):
        raise r.refuse("type_vocab_sizes", f"it is {sizes!r}, not a list")
    return {"tables": {f"token_types_{index}": int(size) for index, size in enumerate(sizes)}}


def languages(r: Reader) -> dict[str, Any]:
    """XLM's and FlauBERT's table of languages."""
    number = r.integer("n_langs", default=1)
    return {"tables": {"languages": number}} if number > 1 and r.flag("use_lang_emb", True) else {}


def global_projections(r: Reader) -> dict[str, Any]:
    """Longformer's projections of tokens that see all others, which are kept and not priced (2004.05150, 3.1)."""
    count, width = r.integer(*LAYERS), r.integer(*WIDTH)
    note = "no token is taken to see all others: the projections of those that do are kept and take no time"
    tensors = {"global": [count, 3, width, width], "global.bias": [count, 3, width]}
    return {"tensors": tensors, "notes": [note]}


def entities(r: Reader) -> dict[str, Any]:
    """LUKE's tables and queries of entities (2010.01057), which a request of words alone does not read."""
    width, narrow, number = r.integer(*WIDTH), r.integer("entity_emb_size"), r.integer("entity_vocab_size")
    rows = number * narrow + (r.integer(*CONTEXT) + r.integer("type_vocab_size") + 2) * width
    tensors = {"entities": [rows + (narrow * width if narrow != width else 0)]}
    if r.flag("use_entity_aware_attention", True):
        tensors |= {"entity_queries": [r.integer(*LAYERS), 3, width + 1, width]}
    if str(architecture(r) or "MaskedLM").endswith("MaskedLM"):
        copies = 0 if r.flag("tie_word_embeddings", True) else 1
        tensors |= {"entity_predictions": [(width + 3 + copies * number) * narrow + number]}
        if copies:
            tensors |= {"spare_bias": [r.integer("vocab_size")]}
    return {"tensors": tensors, "notes": ["a request is taken to have words alone: what entities need takes no time"]}


def words(r: Reader) -> list[dict[str, Any]]:
    """LUKE's and ESM-C's way to their logits, by a matrix that their classes never share with the embedding."""
    width = r.integer(*WIDTH)
    return [linear(width, width, norm=width), linear(width, r.integer("vocab_size"))]


def other_languages(r: Reader) -> dict[str, Any]:
    """The adapters of X-MOD's other languages, which a request does not run."""
    languages = r.need("languages")
    if not isinstance(languages, list) or not languages:
        raise r.refuse("languages", f"it is {languages!r}, not a list of languages")
    width = r.integer(*WIDTH)
    narrow = width // r.integer("adapter_reduction_factor")
    one = 2 * width * narrow + narrow + width
    others = len(set(map(str, languages))) - 1
    return {"tensors": {"other_adapters": [r.integer(*LAYERS), others, one]}} if others else {}


def norm_biases(r: Reader) -> dict[str, Any]:
    """The biases of ESM-C's norms in its layers, which the last one has not."""
    width = r.integer(*WIDTH)
    tensors = {"norms.bias": [2 * r.integer(*LAYERS), width]}
    if str(architecture(r) or "MaskedLM").endswith("MaskedLM"):
        tensors |= {"predictions.norm.bias": [width]}
    return {"tensors": tensors}


def contacts(r: Reader) -> dict[str, Any]:
    """ESM's regression from every attention map to contacts, which is stored and runs only when asked for."""
    maps = r.integer(*LAYERS) * r.integer(*HEADS)
    return {"tensors": {"contact_head": [maps], "contact_head.bias": [1]}}
