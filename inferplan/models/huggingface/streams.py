"""ProphetNet (2001.04063): an encoder-decoder that predicts several tokens at once, in a stream for each."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.decoder import activation
from inferplan.models.huggingface.dialect import Dialect, Layer
from inferplan.models.huggingface.encoder_decoder import begin, decoder_layers
from inferplan.models.huggingface.gates_and_norms import walk
from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.segments_and_bytes import untimed
from inferplan.models.huggingface.towers.parts import heads_of, linear

_WHY = "its decoder runs a stream for each token that it predicts beside that of the tokens: no operator here does"


def prophetnet(r: Reader, d: Dialect) -> dict[str, Any]:
    """Both halves with a norm behind their tables; attention of the decoder has biases that its input makes."""
    begin(r, d)
    r.only("add_cross_attention", True)
    r.only("is_decoder", False)
    r.skip("relative_max_distance", "disable_ngram_loss", "eps")
    width, vocab, longest = r.integer("hidden_size"), r.integer("vocab_size"), r.integer("max_position_embeddings")
    count, depth = r.integer("num_encoder_layers"), r.integer("num_decoder_layers")
    mixer = _attention(r, width, "encoder") | {"causal": False}
    around = {"norm": "layer", "final_norm": False, "embedding_norm": True, "positions": longest}
    layers = decoder_layers(_attention(r, width, "decoder"), [_feed(r, d, "decoder")] * depth)
    tensors = {name: shape for part in "qkvo" for name, shape in linear(part, width, width).items()}
    buckets = r.integer("num_buckets") * r.integer("num_decoder_attention_heads")
    tensors |= linear("relative", width, buckets)
    for layer in walk(layers):
        layer["mixer"] = untimed(_WHY, tensors=tensors, per_token=2 * width, width=4 * width)
    tied = r.flag("tie_word_embeddings", d.tied)
    table = {} if tied else {"embedding": "own", "vocab": vocab}
    return {
        "d_model": width,
        "vocab": vocab,
        **around,
        "max_context": 2 * longest,
        "layers": layers,
        "encoder": {
            "d_model": width,
            **around,
            "max_context": longest,
            "layers": [{"repeat": count, "mixer": mixer, "ffn": _feed(r, d, "encoder")}],
            "tensors": {"streams": [r.integer("ngram"), width]} | ({} if tied else {"shared": [vocab, width]}),
            **table,
        },
    }


def _attention(r: Reader, width: int, side: str) -> Layer:
    heads = r.integer(f"num_{side}_attention_heads")
    mixer = {"kind": "attention", "heads": heads, "kv_heads": heads, "head_dim": heads_of(r, width, heads)}
    return mixer | {"rotary": False, "qkv_bias": True, "out_bias": True}


def _feed(r: Reader, d: Dialect, side: str) -> Layer:
    width = r.integer(f"{side}_ffn_dim")
    return {"kind": "mlp", "d_ff": width, "gated": False, "bias": True, "activation": activation(r, d)}
