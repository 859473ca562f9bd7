"""Q-Formers and resamplers: learned queries that attend to what an encoder puts out, counted as tensors.

Their layers attend to themselves and to the encoder: no layer kind of the towers has both.
"""

from __future__ import annotations

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.parts import Tensors, copies, linear, norm


def qformer(r: Reader, source: int, text: bool) -> Tensors:
    """BLIP-2's (2301.12597 section 3.1): every ``cross_attention_frequency``-th layer attends to the encoder.

    source: the width of the encoder. text: whether layers have a feed-forward for text beside that for queries.
    """
    width, inner = r.integer("hidden_size"), r.integer("intermediate_size")
    count = r.integer("num_hidden_layers")
    crossing = -(-count // r.integer("cross_attention_frequency"))
    own = norm("attention.norm", width)
    for name in "qkvo":
        own |= linear(f"attention.{name}", width, width)
    for name in ("queries", "text") if text else ("queries",):
        own |= linear(f"{name}.up", width, inner) | linear(f"{name}.down", inner, width) | norm(f"{name}.norm", width)
    cross = norm("cross.norm", width) | linear("cross.q", width, width) | linear("cross.o", width, width)
    cross |= linear("cross.k", source, width) | linear("cross.v", source, width)
    if width % r.integer("num_attention_heads"):
        raise r.refuse("num_attention_heads", f"they do not divide the width {width}")
    r.skip("position_embedding_type", "tie_word_embeddings")
    return {f"qformer.{name}": shape for name, shape in (copies(count, own) | copies(crossing, cross)).items()}


def perceiver(r: Reader, width: int) -> Tensors:
    """Idefics 2's resampler (2405.02246): latents attend to the image and to themselves."""
    heads, kv_heads = r.integer("resampler_n_heads"), r.integer("num_key_value_heads")
    head_dim, depth = r.integer("resampler_head_dim"), r.integer("resampler_depth")
    r.only("hidden_size", width)
    own = norm("norms", width, 3)
    for name, inputs, outputs in (
        ("q", width, heads * head_dim),
        ("k", width, kv_heads * head_dim),
        ("v", width, kv_heads * head_dim),
        ("o", heads * head_dim, width),
        ("gate", width, 4 * width),
        ("up", width, 4 * width),
        ("down", 4 * width, width),
    ):
        own |= linear(name, inputs, outputs, bias=False)
    tensors: Tensors = {"latents": [r.integer("resampler_n_latents"), width], **norm("norm", width, 1)}
    return {f"resampler.{name}": shape for name, shape in (tensors | copies(depth, own)).items()}
