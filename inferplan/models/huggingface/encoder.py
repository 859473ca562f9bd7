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
    linear layer behind the pooler; ``dense``, two layers; ``mlm``, one behind the transform of its masked language
    model. transform: the layer ahead of the vocabulary's. ends: last words of the classes that are known; default:
    where no class is named. discriminates: it was trained to tell replaced tokens (ELECTRA).
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
    classifier: Literal["pooled", "dense", "mlm"] = "dense"
    transform: bool = True
    transform_bias: bool | str = True
    vocabulary_bias: bool | str = True
    ends: tuple[str, ...] = ENDS
    default: str = "ForMaskedLM"
    discriminates: bool = False
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
    if kind is not None and kind != "absolute":
        raise r.refuse(f"position_embedding_type = {kind!r}", "only 'absolute' is known for this family")
    tables = {"positions": r.integer(*CONTEXT)} if style.positions else {}
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
        transform = [linear(width, narrow, bias, narrow)] if style.transform else []
        predictions = head("predictions", "token", *transform, vocabulary=True)
        more = [pooler, head("next", "sequence", linear(width, 2))] if end == "ForPreTraining" else []
        return [predictions, *more]
    if end == "Model":
        return [pooler] if style.pooled else []
    number = 1 if end == "ForMultipleChoice" else labels(r)
    if end in ("ForQuestionAnswering", "ForNextSentencePrediction") and number != 2:
        raise r.refuse("num_labels", f"it is {number}, and {end} has 2")
    label = linear(width, number)
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


def alternating(window: str, spans: Callable[[int], int]) -> Callable[..., list[Layer]]:
    """Layers of which some see a window only, by ``layer_types`` or every so many (ModernBERT, 2412.13663).

    window: its field; spans: how many tokens that is for a layer. The first layer has no norm ahead of its attention.
    """

    def layers(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
        count, every = r.integer(*LAYERS), r.integer("global_attn_every_n_layers", default=3)
        usual = ["sliding_attention" if index % every else "full_attention" for index in range(count)]
        kinds = r.items("layer_types", count) or usual
        mixer, ffn = attention(r, d) | {"causal": causal}, mlp(r, d)
        found = []
        for index, kind in enumerate(kinds):
            if kind not in ("full_attention", "sliding_attention"):
                raise r.refuse(
                    f"layer_types entry {kind!r}", "only full_attention and sliding_attention are known here"
                )
            span = {"window": spans(r.integer(window))} if kind == "sliding_attention" else {}
            norms = {} if index else {"norms": 1}
            found.append({"mixer": mixer | span, "ffn": ffn, **norms})
        return found

    return layers


def gte(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """Those of GTE, whose feed-forward has a bias on its way out alone."""
    return [layer | {"ffn": layer["ffn"] | {"out_bias": True}} for layer in plain(r, d, causal)]


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


def relative_bias(r: Reader) -> dict[str, Any]:
    """MPNet's table of biases, a number for each distance and head, which all layers add to their scores."""
    buckets = r.integer("relative_attention_num_buckets", default=32)
    return {"tensors": {"relative_bias": [buckets, r.integer(*HEADS)]}}


def task_types(r: Reader) -> dict[str, Any]:
    """ERNIE's table of tasks."""
    number = r.integer("task_type_vocab_size", default=3)
    return {"tables": {"task_types": number}} if r.flag("use_task_id", False) else {}
