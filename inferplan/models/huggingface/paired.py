"""An encoder and a decoder of text, each of its own family: TrOCR, Donut, wav2vec 2.0 with BERT, BERT with GPT-2.

Shapes are those of the classes ``...EncoderDecoderModel`` of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from inferplan.models.huggingface.ctc import RELATIVES, listener
from inferplan.models.huggingface.dialect import Dialect
from inferplan.models.huggingface.encoder_decoder import Bart, bart
from inferplan.models.huggingface.gates_and_norms import walk
from inferplan.models.huggingface.pictures import no_field_left, vit
from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.segments_and_bytes import trocr, untimed
from inferplan.models.huggingface.towers.parts import Tensors, conv, copies, linear, norm, pair

_SHIFTED = "attention in shifted windows of an image whose positions are joined from stage to stage"
_BART = Dialect(build=bart(Bart(offset=2, final_norm=True)), norm="layer", qkv_bias=True, embedding_norm=True)


Halves = Mapping[str, Callable[[Reader], dict[str, Any]]]
"""What builds a half of a pair, by its ``model_type``."""


def vision_pair(rows: dict[str, Dialect]) -> Callable[[Reader, Dialect], dict[str, Any]]:
    """What builds such a pair. rows: families whose decoders attend to an encoder with ``add_cross_attention``."""
    known = {kind: partial(_of_family, row) for kind, row in rows.items()}
    decoders: Halves = {**known, "mbart": _bart_decoder, "trocr": partial(_trocr_decoder, rows["trocr"])}
    return partial(_pair, decoders, _ENCODERS)


def sound_pair(rows: dict[str, Dialect]) -> Callable[[Reader, Dialect], dict[str, Any]]:
    """The same of an encoder of sound: wav2vec 2.0 or a relative."""
    encoders = {kind: partial(listener, style) for kind, style in RELATIVES.items()}
    return partial(_pair, {kind: partial(_of_family, row) for kind, row in rows.items()}, encoders)


def text_pair(rows: dict[str, Dialect], readers: dict[str, Dialect]) -> Callable[[Reader, Dialect], dict[str, Any]]:
    """What builds a pair of two families of text. readers: those of the encoder."""
    encoders = {kind: partial(_reader, row) for kind, row in readers.items()}
    return partial(_pair, {kind: partial(_of_family, row) for kind, row in rows.items()}, encoders)


def _reader(row: Dialect, r: Reader) -> dict[str, Any]:
    """An encoder of text that is a family of its own, with the pooler that nothing reads."""
    r.config["architectures"] = ["Model"]
    fields = row.build(r, row)
    width, tables = fields["d_model"], dict(fields["ends"].get("tables", {}))
    kept = ("d_model", "norm", "final_norm", "embedding_norm", "max_context", "layers", "vocab")
    positions = tables.pop("positions", 0)
    tensors = {name: [rows, width] for name, rows in tables.items()}
    tensors |= {name: shape for name, shape in linear("pooler", width, width).items() if fields["ends"].get("heads")}
    encoder = {name: fields[name] for name in kept}
    return encoder | {"embedding": "own", "positions": positions, "tensors": tensors}


def _pair(decoders: Halves, encoders: Halves, r: Reader, d: Dialect) -> dict[str, Any]:
    """Every layer of the decoder attends to the encoder, whose output is projected where the widths differ."""
    source, own = r.table("encoder"), r.table("decoder")
    if source is None or own is None:
        raise r.refuse("encoder and decoder", "the config of such a pair has a table for each")
    kinds = [str(half.need("model_type")).lower() for half in (source, own)]
    for half, kind, known in ((source, kinds[0], encoders), (own, kinds[1], decoders)):
        if kind not in known:
            raise half.refuse(f"model_type = {kind!r}", f"only {', '.join(known)} are known in such a pair")
        half.config.pop("architectures", None)
    encoder = encoders[kinds[0]](source)
    fields = decoders[kinds[1]](own)
    r.config["tie_word_embeddings"] = own.flag("tie_word_embeddings", True)
    _meet(own, fields, encoder)
    source.skip("tie_word_embeddings")
    no_field_left(source, own)
    longest = encoder["max_context"] + fields["max_context"] if "max_context" in encoder else None
    return fields | {"max_context": longest, "encoder": encoder}


def _meet(own: Reader, fields: dict[str, Any], encoder: dict[str, Any]) -> None:
    """Attention of the decoder to the encoder."""
    width, said = fields["d_model"], own.optional("cross_attention_hidden_size")
    if said is None and encoder["d_model"] != width:
        encoder["projected"] = width
    if said is not None and said != encoder["d_model"]:
        raise own.refuse(f"cross_attention_hidden_size = {said}", f"the encoder is {encoder['d_model']} wide")
    other = {} if said in (None, width) else {"source_width": said}
    if other and own.get("model_type") != "trocr":
        raise own.refuse(f"cross_attention_hidden_size = {said}", "this decoder reads what is as wide as itself")
    for layer in walk(fields["layers"]):
        kept = ("heads", "kv_heads", "head_dim", "qkv_bias", "out_bias")
        layer["extras"] = [{"kind": "cross_attention", **{name: layer["mixer"][name] for name in kept}, **other}]
        layer["norms"] = 3


def _of_family(row: Dialect, r: Reader) -> dict[str, Any]:
    """A decoder that is a family of its own: with ``add_cross_attention`` it attends to an encoder."""
    for name in ("is_decoder", "add_cross_attention"):
        if r.get(name) is not True and (name == "add_cross_attention" or r.get("model_type") != "gpt2"):
            raise r.refuse(f"{name} = {r.get(name)!r}", "without it the decoder does not attend to its encoder")
    return row.build(r, replace(row, fixed={}))


def _bart_decoder(r: Reader) -> dict[str, Any]:
    return _BART.build(r, _BART) | {"max_context": r.integer("max_position_embeddings")}


def _trocr_decoder(row: Dialect, r: Reader) -> dict[str, Any]:
    return trocr(r, row) | {"notes": []}


def _vit(r: Reader) -> dict[str, Any]:
    return _pooled(r, 1)


def _deit(r: Reader) -> dict[str, Any]:
    return _pooled(r, 2)


def _pooled(r: Reader, words: int) -> dict[str, Any]:
    """A ViT with learned words ahead of its patches, and the pooler that nothing reads."""
    encoder, width = vit(r, words), r.integer("hidden_size")
    encoder["tensors"] |= linear("pooler", width, r.integer("pooler_output_size", default=width))
    r.skip("encoder_stride", "pooler_act")
    return encoder


def swin(r: Reader) -> dict[str, Any]:
    """Donut's Swin (2103.14030, 2111.15664 section 2.2): half as many rows and columns, twice the width, each stage."""
    width, depths, heads = r.integer("embed_dim"), r.need("depths"), r.need("num_heads")
    if len(heads) != len(depths):
        raise r.refuse("num_heads", f"{len(heads)} of them for {len(depths)} stages")
    (high, wide), (down, across) = pair(r, "image_size"), pair(r, "patch_size")
    rows, columns = -(-high // down), -(-wide // across)
    tensors = conv("patch", r.integer("num_channels"), width, down, across) | norm("patch.norm", width)
    if r.flag("use_absolute_embeddings", False):
        tensors |= {"positions": [rows * columns + 1, width]}
    for stage, (depth, number) in enumerate(zip(depths, heads, strict=True)):
        if stage:
            tensors |= norm(f"stage.{stage}.norm", 4 * width)
            tensors |= linear(f"stage.{stage}.merge", 4 * width, 2 * width, bias=False)
            width, rows, columns = 2 * width, -(-rows // 2), -(-columns // 2)
        own = copies(depth, _windowed(r, width, number))
        tensors |= {f"stage.{stage}.{name}": shape for name, shape in own.items()}
    r.only("hidden_size", width)
    r.skip("num_layers", "path_norm", "hidden_act", "drop_path_rate")
    return {
        "d_model": width,
        "norm": "layer",
        "final_norm": False,
        "embedding": "none",
        "max_context": rows * columns,
        "frames": rows * columns,
        "layers": [{"mixer": untimed(_SHIFTED, tensors=tensors, width=4 * width), "norms": 0}],
    }


def _windowed(r: Reader, width: int, heads: int) -> Tensors:
    """One layer of a stage."""
    if width % heads:
        raise r.refuse("num_heads", f"{heads} heads do not divide the width {width}")
    inner = int(r.need("mlp_ratio") * width)
    tensors = norm("norms", width, 4) | linear("qkv", width, 3 * width, r.flag("qkv_bias", True))
    tensors |= {"relative": [(2 * r.integer("window_size") - 1) ** 2, heads]} | linear("out", width, width)
    return tensors | linear("up", width, inner) | linear("down", inner, width)


_ENCODERS: dict[str, Callable[[Reader], dict[str, Any]]] = {"vit": _vit, "deit": _deit, "donut-swin": swin}
