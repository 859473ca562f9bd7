"""Encoders that mix their tokens otherwise than by attention, or by an attention of their own.

Their parts are those of transformers 5.23, ``models/*/modeling_*.py``. Where no operator here does what a part does,
its tensors are counted and its time is refused.
"""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.decoder import attention, mlp
from inferplan.models.huggingface.dialect import Dialect, Layer
from inferplan.models.huggingface.encoder import Encoder, build
from inferplan.models.huggingface.heads import architecture, linear
from inferplan.models.huggingface.listed import Listing
from inferplan.models.huggingface.reader import (
    ACTIVATION,
    CONTEXT,
    FFN,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    WIDTH,
    Reader,
)


def _heads(r: Reader, width: int) -> tuple[int, int]:
    """Heads, and the width of one."""
    heads = r.integer(*HEADS)
    if width % heads:
        raise r.refuse("num_attention_heads", f"{heads} heads do not divide the width {width}")
    return heads, width // heads


def _grouped(r: Reader, name: str, *widths: int) -> int:
    """Groups of a linear layer. Raises ``SpecError`` where they do not divide what it reads and writes."""
    groups = r.integer(name)
    if groups < 1 or any(width % groups for width in widths):
        raise r.refuse(name, f"{groups} groups do not divide {' and '.join(map(str, widths))}")
    return groups


def _projections(listing: Listing, width: int, names: tuple[str, ...] = ("q", "k", "v")) -> None:
    for name in names:
        listing.matmul(name, width, width)


def _mixed(listing: Listing, width: int, untimed: str = "") -> Layer:
    """A mixer with the projection of its output and its residual."""
    listing.matmul("o", width, width)
    listing.residual(width)
    return listing.part(4 * width, untimed)


def _feed(r: Reader, listing: Listing, width: int, names: tuple[str, str]) -> None:
    """A feed-forward with matrices in groups. names: the fields of the groups of its first and its second."""
    inner = r.integer(*FFN)
    r.skip(*ACTIVATION)
    listing.matmul("up", width, inner, groups=_grouped(r, names[0], width, inner))
    listing.map("activation", inner, flops=4)
    listing.matmul("down", inner, width, groups=_grouped(r, names[1], inner, width))
    listing.residual(width)


def squeeze(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """SqueezeBERT's (2006.11316): BERT's, with linear layers in groups."""
    width, listing = r.integer(*WIDTH), Listing()
    heads, size = _heads(r, width)
    r.only("embedding_size", width)
    for name in ("q", "k", "v"):
        listing.matmul(name, width, width, groups=_grouped(r, f"{name}_groups", width))
    listing.attention(heads, size)
    listing.matmul("o", width, width, groups=_grouped(r, "post_attention_groups", width))
    listing.residual(width)
    _feed(r, listing, width, ("intermediate_groups", "output_groups"))
    part = listing.part(max(4 * width, 2 * r.integer(*FFN)))
    return [{"mixer": part, "norms": 2}] * r.integer(*LAYERS)


def fourier(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """FNet's (2105.03824): the real part of a Fourier transform over tokens and width, without parameters."""
    untimed = "its mixers are Fourier transforms over tokens and width: no operator here is one"
    part = Listing().part(2 * r.integer(*WIDTH), untimed)
    return [{"mixer": part, "ffn": mlp(r, d), "norms": 2}] * r.integer(*LAYERS)


def projected_input(r: Reader) -> dict[str, Any]:
    """FNet's matrix between its tables and its layers."""
    width = r.integer(*WIDTH)
    return {"inputs": [linear(width, width)]}


def convolved(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """ConvBERT's (2008.02496): half of the width from attention, half from convolutions whose filters tokens make."""
    width, heads, taps = r.integer(*WIDTH), r.integer(*HEADS), r.integer("conv_kernel_size")
    heads = max(1, heads // r.integer("head_ratio"))
    if width % (2 * heads):
        raise r.refuse("num_attention_heads and head_ratio", f"{heads} pairs of heads do not divide the width {width}")
    half, size, listing = width // 2, width // heads // 2, Listing()
    for name in ("q", "k", "v"):
        listing.matmul(name, width, half)
    listing.tensor("depthwise", width, taps)
    listing.map("depthwise", width, flops=2 * taps)
    listing.matmul("pointwise", width, half)
    listing.map("filter_input", half, reads=2)
    listing.matmul("filters", half, heads * taps)
    listing.map("softmax", heads * taps, flops=5)
    listing.matmul("values", width, half)
    listing.map("convolution", half, reads=2, flops=2 * taps)
    listing.attention(heads, size)
    mixer = _mixed(listing, width)
    if r.integer("num_groups") == 1:
        return [{"mixer": mixer, "ffn": mlp(r, d), "norms": 2}] * r.integer(*LAYERS)
    _feed(r, listing, width, ("num_groups", "num_groups"))
    return [{"mixer": listing.part(max(4 * width, 2 * r.integer(*FFN))), "norms": 2}] * r.integer(*LAYERS)


def landmarks(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """Nystroemformer's (2102.03902): through landmarks, the means of segments, unless each token is one."""
    width, listing = r.integer(*WIDTH), Listing()
    heads, size = _heads(r, width)
    marks, tokens = r.integer("num_landmarks"), r.integer("segment_means_seq_len")
    r.skip("inv_coeff_init_option")
    _projections(listing, width)
    if marks == tokens:
        listing.attention(heads, size)
    else:
        _landmarks(listing, heads, size, marks)
    _depthwise(listing, r.integer("conv_kernel_size"), width, heads)
    layer = {"mixer": _mixed(listing, width), "ffn": mlp(r, d), "norms": 2}
    return [layer] * r.integer(*LAYERS)


def _landmarks(listing: Listing, heads: int, size: int, marks: int) -> None:
    """Three softmaxes of scores with landmarks, the inverse of one of them in six rounds of four products."""
    batch, every, one, few = {"b": heads}, {"n": 1}, {"1": size}, {"1": marks}
    scores, square = heads * marks, {"b": heads * marks * marks}
    listing.map("landmarks", 2 * heads * size)
    listing.product("queries_to_landmarks", batch, every, one, few)
    listing.map("softmax_1", scores, flops=5)
    listing.product("landmarks_to_landmarks", batch, few, one, few)
    listing.pointwise("softmax_2", {name: 5 * n for name, n in square.items()}, square, square)
    listing.product("landmarks_to_keys", batch, few, one, every)
    listing.map("softmax_3", scores, flops=5)
    for turn in range(6):
        for place in range(4):
            listing.product(f"inverse.{turn}.{place}", batch, few, few, few)
        listing.pointwise(f"inverse.{turn}.terms", {name: 7 * n for name, n in square.items()}, square, square)
    listing.product("weights", batch, every, few, few)
    listing.product("values", batch, few, every, one)
    listing.product("outputs", batch, every, few, one)


def _depthwise(listing: Listing, taps: int | None, width: int, heads: int) -> None:
    """A convolution of the values along the tokens, one filter a head, added to the output."""
    if taps is not None:
        listing.tensor("filters", heads, taps)
        listing.map("convolution", width, reads=2, flops=2 * taps)


def hashed(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """YOSO's (2111.09714): the chance that a query and a key have one hash for a weight, or hashes drawn."""
    width, listing = r.integer(*WIDTH), Listing()
    heads, size = _heads(r, width)
    r.skip("num_hash", "hash_code_len", "use_fast_hash", "lsh_backward")
    _projections(listing, width)
    if expected := r.flag("use_expectation", True):
        pairs, batch, every = {"bnn": heads}, {"b": heads}, {"n": 1}
        listing.map("normalise", 2 * width, flops=3)
        listing.product("scores", batch, every, {"1": size}, every)
        listing.pointwise("chances", {"bnn": 6 * heads}, pairs, pairs)
        listing.product("values", batch, every, every, {"1": size})
        listing.map("normalise_output", width, flops=3)
    _depthwise(listing, r.optional("conv_window"), width, heads)
    untimed = "" if expected else "its attention draws hashes (use_expectation is false): no operator here does"
    return [{"mixer": _mixed(listing, width, untimed), "ffn": mlp(r, d), "norms": 2}] * r.integer(*LAYERS)


def resolutions(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """MRA's (2207.10284): blocks of scores at two resolutions, the fine ones chosen by the coarse."""
    width, listing = r.integer(*WIDTH), Listing()
    _heads(r, width)
    r.skip("block_per_row", "approx_mode", "initial_prior_first_n_blocks", "initial_prior_diagonal_n_blocks")
    _projections(listing, width)
    untimed = "its attention chooses blocks of scores to refine: no operator here does"
    return [{"mixer": _mixed(listing, width, untimed), "ffn": mlp(r, d), "norms": 2}] * r.integer(*LAYERS)


def two_more(r: Reader) -> dict[str, Any]:
    """Two rows of positions ahead of the first."""
    return {"tables": {"positions": r.integer(*CONTEXT) + 2}}


def funnel(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """Funnel's (2006.03236): blocks, each of half the positions of the one before, and a decoder of all of them."""
    width, heads, size, inner = (r.integer(name) for name in ("d_model", "n_head", "d_head", "d_inner"))
    blocks = r.need("block_sizes")
    if not isinstance(blocks, list) or not all(isinstance(one, int) and one > 0 for one in blocks):
        raise r.refuse(f"block_sizes = {blocks!r}", "it is no list of layers")
    r.skip("block_repeats", "pooling_type", "attention_type", "separate_cls", "truncate_seq", "pool_q_only")
    listing, every = Listing(), heads * size
    for name in ("q", "k", "v"):
        listing.matmul(name, width, every, bias=name != "q")
    listing.tensor("position", width, every)
    listing.tensor("biases", 5, every)  # of tokens, distances and segments, and two segments
    listing.matmul("o", every, width)
    listing.matmul("up", width, inner)
    listing.matmul("down", inner, width)
    part = listing.part(
        max(4 * every, 2 * inner), "its blocks halve the positions: no operator here shortens a sequence"
    )
    decodes = not str(architecture(r) or "").endswith(("BaseModel", "SequenceClassification", "MultipleChoice"))
    count = sum(blocks) + (r.integer("num_decoder_layers") if decodes else 0)
    r.skip("num_decoder_layers", *ACTIVATION)
    return [{"mixer": part, "norms": 2}] * count


# NeoMME, whose layers read what went into the first, and values of a second table.


def neomme(style: Encoder, r: Reader, d: Dialect) -> dict[str, Any]:
    """A narrow table and one of values; logits by the way back through the narrow table's projection."""
    width, narrow = r.integer(*WIDTH), r.integer("embedding_rank")
    r.skip("patch_size", "embedding_dim", "norm_eps", "residual_multiplier")
    fields = build(style)(r, d)
    values, ends = r.integer(*KV_HEADS) * r.integer(*HEAD_DIM), fields["ends"]
    ahead = Listing()
    ahead.tensor("values", r.integer("vocab_size"), values, role="embedding")
    ahead.map("values", values, flops=0)
    ahead.map("embedding_norm", width, flops=4)
    ends["ahead"] = ahead.part(values)
    fields |= {"embedding_width": narrow, "norm": "plain"}
    if not any(one["vocabulary"] for one in ends.get("heads", [])):
        return fields
    behind = Listing()
    behind.matmul("unembedding", width, narrow, bias=False)
    if r.flag("tie_word_embeddings", d.tied):
        behind.tensors.clear()  # the projection of the embedding
    return fields | {"head_bias": False, "ends": ends | {"behind": behind.part(narrow)}}


def exclusive(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """NeoMME's: gated attention without the part of it that is the token's own value; windows short and long."""
    count, short = r.integer(*LAYERS), r.optional("sliding_window")
    kinds, own = r.items("layer_types", count), r.get("per_layer_config") or {}
    if kinds is None or "full_attention" not in kinds:
        raise r.refuse("layer_types", "some layers must be full_attention")
    windows = {int(key): value.get("sliding_window", short) for key, value in own.items()}
    mixer, layers = attention(r, d) | {"causal": False, "output_gate": True}, []
    width, heads, kv, biased = r.integer(*WIDTH), mixer["heads"], mixer["kv_heads"], r.flag("attention_bias", False)
    whole = [index for index, kind in enumerate(kinds) if kind == "full_attention"]
    for index, kind in enumerate(kinds):
        if kind not in ("full_attention", "sliding_attention"):
            raise r.refuse(f"layer_types entry {kind!r}", "only full_attention and sliding_attention are known here")
        beside = Listing()
        beside.tensor("residual", 2)
        if biased:  # none on the gate, which stands with the queries
            beside.tensor("biases", (heads + 2 * kv) * mixer["head_dim"] + width)
        beside.map("mixed", width, reads=2, flops=3)
        beside.map("qk_norm", (heads + kv) * mixer["head_dim"], flops=4)
        if index in (whole[0], whole[-1]):
            beside.map("values", kv * mixer["head_dim"], reads=2)
        beside.tensor("exclusive", heads)
        beside.map("exclusive", heads * mixer["head_dim"], reads=2, flops=8)
        size = windows.get(index, short) if kind == "sliding_attention" else None
        span = {} if size is None else {"window": 2 * size + 1}
        part = beside.part(width)
        layers.append({"mixer": mixer | span, "ffn": mlp(r, d), "extras": [part], "norms": 2})
    return layers


# Reformer (2001.04451).


def reformer(style: Encoder, r: Reader, d: Dialect) -> dict[str, Any]:
    """Two residual streams, which are joined under one norm ahead of what stands behind."""
    width, types = r.integer(*WIDTH), r.need("attn_layers")
    if not isinstance(types, list) or not types or not set(types) <= {"lsh", "local"}:
        raise r.refuse(f"attn_layers = {types!r}", "it is no list of lsh and local")
    r.skip(*(name for name in r.config if name.startswith(("lsh_", "local_"))))
    r.skip("axial_norm_std", "chunk_size_lm_head", "hash_seed", "num_buckets", "num_hashes")
    fields = build(style)(r, d)
    for one in fields["ends"].get("heads", []):
        one["layers"][0]["inputs"] = 2 * width
    positions = [r.integer(*CONTEXT), width]
    if r.flag("axial_pos_embds", True):
        shape, widths = r.need("axial_pos_shape"), r.need("axial_pos_embds_dim")
        positions = [sum(rows * columns for rows, columns in zip(shape, widths, strict=True))]
    r.skip("axial_pos_shape", "axial_pos_embds_dim")
    fields["ends"]["tensors"] = {"positions": positions, "final_norm": [2, 2 * width]}
    return fields


def hashes(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """Reformer's: attention among tokens of one hash, whose queries are their keys, or in chunks."""
    width, heads, count = r.integer(*WIDTH), r.integer(*HEADS), r.integer(*LAYERS)
    types = r.need("attn_layers")
    kinds = types if len(set(types)) > 1 else types[:1] * count
    if len(kinds) < count:
        raise r.refuse("attn_layers", f"it has {len(kinds)} entries for {count} layers")
    every, feed = heads * r.integer("attention_head_size"), mlp(r, d, r.integer("feed_forward_size"))
    untimed = "its attention sorts tokens by hashes and works in chunks: no operator here does"
    layers = []
    for kind in kinds[:count]:
        listing = Listing()
        for name in ("qk", "v") if kind == "lsh" else ("q", "k", "v"):
            listing.matmul(name, width, every, bias=False)
        listing.matmul("o", every, width, bias=False)
        layers.append({"mixer": listing.part(4 * every, untimed), "ffn": feed, "norms": 2})
    return layers


def doubled(r: Reader) -> list[dict[str, Any]]:
    """Reformer's matrix over both streams, which is never the embedding."""
    return [linear(2 * r.integer(*WIDTH), r.integer("vocab_size"))]


# MobileBERT (2004.02984).


def mobile(style: Encoder, r: Reader, d: Dialect) -> dict[str, Any]:
    """Narrow embeddings, those of the neighbours beside each, and a vocabulary that is read in two parts."""
    width, narrow, rows = r.integer(*WIDTH), r.integer("embedding_size"), r.integer("vocab_size")
    fields = build(style)(r, d)
    ends, ahead = fields["ends"], Listing()
    if narrow >= width:
        raise r.refuse("embedding_size", f"{narrow} is not below the width {width}, and the rest makes the vocabulary")
    if r.flag("trigram_input", True):
        ahead.matmul("neighbours", 2 * narrow, width, bias=False)
    ahead.tensor("positions", r.integer(*CONTEXT), width, role="embedding")
    ahead.tensor("token_types", r.integer("type_vocab_size"), width, role="embedding")
    ahead.norm("norm", width, plain=_plain_norm(r))
    ends["ahead"] = ahead.part(2 * width)
    for one in ends.get("heads", []):
        if one["vocabulary"]:
            one["layers"] = [linear(width, width, norm=width), linear(width - narrow, rows, bias=False)]
    pools = r.flag("classifier_activation", True)
    for one in ends.get("heads", []):
        if one["name"] == "pooler" and not pools:
            one["layers"] = []
    ends["heads"] = [one for one in ends.get("heads", []) if one["layers"]]
    return fields


def _plain_norm(r: Reader) -> bool:
    kind = r.get("normalization_type") or "no_norm"
    if kind not in ("no_norm", "layer_norm"):
        raise r.refuse(f"normalization_type = {kind!r}", "only no_norm and layer_norm are known")
    return bool(kind == "no_norm")


def _narrowed(listing: Listing, name: str, widths: tuple[int, int], plain: bool) -> None:
    listing.matmul(f"bottleneck.{name}", *widths)
    listing.norm(f"bottleneck.{name}.norm", widths[1], plain=plain)


def bottlenecks(r: Reader, d: Dialect, causal: bool) -> list[Layer]:
    """MobileBERT's: attention and several feed-forwards in a narrower width, between two projections."""
    outer, inner = r.integer(*WIDTH), r.integer(*FFN)
    narrows = r.flag("use_bottleneck", True)
    r.skip("intra_bottleneck_size")
    width = r.integer("intra_bottleneck_size") if narrows else outer
    r.only("true_hidden_size", width)
    heads, size = _heads(r, width)
    plain, listing = _plain_norm(r), Listing()
    into_all, shared = r.flag("use_bottleneck_attention", False), r.flag("key_query_shared_bottleneck", True)
    if narrows and not (into_all or shared) and width != outer:
        raise r.refuse("key_query_shared_bottleneck", "without it queries and keys read another width than they have")
    r.skip(*ACTIVATION)
    if narrows:
        _narrowed(listing, "input", (outer, width), plain)
    if narrows and shared and into_all:  # stored, and not read
        listing.tensor("bottleneck.shared", outer + 3, width)
    elif narrows and shared:
        _narrowed(listing, "shared", (outer, width), plain)
    for name in ("q", "k", "v"):
        listing.matmul(name, width if name != "v" or into_all else outer, width)
    listing.attention(heads, size)
    listing.matmul("o", width, width)
    listing.residual(width)
    listing.norm("o.norm", width, plain=plain)
    for turn in range(max(1, r.integer("num_feedforward_networks"))):
        listing.matmul(f"up.{turn}", width, inner)
        listing.map(f"activation.{turn}", inner)
        listing.matmul(f"down.{turn}", inner, width)
        listing.residual(width)
        listing.norm(f"down.{turn}.norm", width, plain=plain)
    if narrows:
        listing.matmul("bottleneck.output", width, outer)
        listing.residual(outer)
        listing.norm("bottleneck.output.norm", outer, plain=plain)
    return [{"mixer": listing.part(outer + max(4 * width, 2 * inner)), "norms": 0}] * r.integer(*LAYERS)
