"""Decoders of attention and feed-forward, dense and mixture of experts: what the rows of the table build.

Families that need a function of their own are in :mod:`inferplan.models.huggingface.decoder_builders`.
"""

from __future__ import annotations

import re
from typing import Any

from inferplan.models.huggingface.dialect import Dialect, Layer, compress, flag
from inferplan.models.huggingface.reader import (
    ACTIVATION,
    CONTEXT,
    EXPERTS,
    FFN,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    MOE_FFN,
    TOP_K,
    WIDTH,
    Reader,
)

ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "swiglu": "silu", "gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu", "gelu_python": "gelu", "gelu_10": "gelu", "quick_gelu": "gelu", "geglu": "gelu",
    "relu": "relu", "relu2": "relu2", "relu_squared": "relu2", "situ": "situ", "xielu": "xielu",
}  # fmt: skip


def model(r: Reader, d: Dialect, layers: list[Layer]) -> dict[str, Any]:
    """The fields of a ModelSpec around its layers."""
    for name, allowed in d.fixed.items():
        r.only(name, *allowed)
    r.skip(*d.ignored)
    context, notes = longest_context(r) if d.positions is None else (r.optional(*CONTEXT), [])
    modules = r.integer("num_nextn_predict_layers", default=0) if d.mtp != "none" else 0
    own = d.mtp == "own"
    mtp = {"layers": [layers[-1]], "modules": modules, "own_embedding": own, "own_head": own}
    return {
        "d_model": r.integer(*WIDTH),
        "vocab": r.integer("vocab_size"),
        "max_context": context,
        "positions": 0 if d.positions is None else r.integer(*CONTEXT) + d.positions,
        "norm": d.norm,
        "embedding_norm": d.embedding_norm,
        "head_bias": flag(r, d.head_bias),
        "layers": compress(layers),
        "mtp": mtp if modules else None,
        **({"notes": notes} if notes else {}),
    }


def longest_context(r: Reader) -> tuple[int | None, list[str]]:
    """The longest context that the config states, and a note where its fields disagree.

    The rule of vLLM (``_get_and_verify_max_len`` of ``vllm/config/model.py``): ``model_max_length`` where it is there,
    else the smallest.
    """
    found = {name: r.integer(name) for name in CONTEXT if r.get(name) is not None}
    longest = r.optional("model_max_length")
    taken = longest if longest is not None else min(found.values(), default=None)
    if len({*found.values(), taken}) < 2 or not found:
        return taken, []
    fields = ", ".join(f"{name} = {value:,}" for name, value in found.items())
    fields += f", model_max_length = {longest:,}" if longest is not None else ""
    return taken, [f"context: the config says {fields}: {taken:,} is taken, as vLLM does"]


def decoder(r: Reader, d: Dialect) -> dict[str, Any]:
    """Attention and a feed-forward in every layer."""
    count = r.integer(*LAYERS)
    mixer = attention(r, d)
    windows = sliding(r, d, count)
    sparse = d.moe(r, d, count) if d.moe else [None] * count
    dense = mlp(r, d) if None in sparse else None
    layers = []
    for window, experts in zip(windows, sparse, strict=True):
        layer: Layer = {"mixer": mixer | ({"window": window} if window else {}), "ffn": experts or dense}
        layers.append(layer | style(d))
    return model(r, d, layers)


def style(d: Dialect) -> Layer:
    """What a family says of every layer."""
    return ({} if d.norms is None else {"norms": d.norms}) | ({"parallel": True} if d.parallel else {})


def attention(r: Reader, d: Dialect) -> dict[str, Any]:
    """The attention mixer that the config describes."""
    width, heads = r.integer(*WIDTH), r.integer(*HEADS)
    kv_heads = r.integer(*KV_HEADS, default=heads) if d.kv_default else r.integer(*KV_HEADS)
    head_dim = r.integer(*HEAD_DIM) if d.head_dim else r.optional(*HEAD_DIM)
    if head_dim is None and width % heads:
        raise r.refuse("head_dim", f"it is absent, and {heads} heads do not divide the width {width}")
    kind, switch = d.qk_norm
    return {
        "kind": "attention",
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim or width // heads,
        "rotary": d.rotary,
        "qkv_bias": flag(r, d.qkv_bias),
        "out_bias": flag(r, d.out_bias),
        "qk_norm": kind if flag(r, switch) else "none",
        **d.attention,
    }


def activation(r: Reader, d: Dialect) -> str:
    """The activation, by its own name or the family's."""
    said = {name: value for name in ACTIVATION if (value := r.get(name))}
    for name, value in said.items():
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise r.refuse(f"{name} = {value!r}", f"only {', '.join(ACTIVATIONS)} are known")
    kinds = {ACTIVATIONS[value] for value in said.values()}  # gelu and its approximation are one
    if len(kinds) > 1:
        raise r.refuse(" and ".join(said), f"they disagree: {', '.join(map(str, said.values()))}")
    return kinds.pop() if kinds else ACTIVATIONS[d.activation or ("silu" if d.gated else "gelu")]


def mlp(r: Reader, d: Dialect, d_ff: int | None = None) -> dict[str, Any]:
    """The dense feed-forward."""
    if d_ff is None:
        width = r.optional(*FFN)
        d_ff = d.ffn_factor * r.integer(*WIDTH) if width is None and d.ffn_factor else r.integer(*FFN)
    return {
        "kind": "mlp",
        "d_ff": d_ff,
        "gated": d.gated,
        "bias": flag(r, d.mlp_bias),
        "activation": activation(r, d),
    }


def moe(r: Reader, d: Dialect, d_ff: int, **fields: Any) -> dict[str, Any]:
    """The mixture of experts."""
    return {
        "kind": "moe",
        "experts": r.integer(*EXPERTS),
        "top_k": r.integer(*TOP_K),
        "d_ff": d_ff,
        **expert_groups(r),
        "gated": d.gated,
        "activation": activation(r, d),
        **fields,
    }


def expert_groups(r: Reader) -> dict[str, int]:
    """Group-limited routing (DeepSeek): nothing where a token may choose among all experts."""
    groups, top = r.integer("n_group", default=1), r.integer("topk_group", default=1)
    if groups == 1 or r.get("topk_method") == "greedy":
        return {}
    return {"groups": groups, "top_groups": top}


# Which layers slide. ``layer_types`` in the config wins over the family's rule.


def sliding(r: Reader, d: Dialect, count: int) -> list[int | None]:
    """The window of each layer."""
    kinds = r.items("layer_types", count)
    if kinds is None:
        return d.windows(r, count) if d.windows else [None] * count
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise r.refuse(f"layer_types entry {kind!r}", "only full_attention and sliding_attention are known here")
    if d.windows:
        d.windows(r, count)  # marks the fields that layer_types overrules
    else:
        r.skip("sliding_window")
    if "sliding_attention" not in kinds:
        return [None] * count
    window = r.integer("sliding_window")
    return [window if kind == "sliding_attention" else None for kind in kinds]


def every_layer(r: Reader, count: int) -> list[int | None]:
    """``sliding_window``, when given, holds for all layers (Mistral, Phi-3)."""
    return [r.optional("sliding_window")] * count


def switched(r: Reader, count: int) -> list[int | None]:
    """``sliding_window`` is dead unless ``use_sliding_window``; then from layer ``max_window_layers`` on (Qwen)."""
    if not r.flag("use_sliding_window", False):
        r.skip("sliding_window", "max_window_layers")
        return [None] * count
    window, first = r.optional("sliding_window"), r.optional("max_window_layers")
    if window is None:
        return [None] * count
    if first is None:
        raise r.refuse("use_sliding_window", "it needs max_window_layers")
    return [window if index >= first else None for index in range(count)]


def from_layer(r: Reader, count: int) -> list[int | None]:
    """``sliding_window``, when given, holds from layer ``max_window_layers`` on (dots1)."""
    window, first = r.optional("sliding_window"), r.optional("max_window_layers")
    if window is None:
        return [None] * count
    return [window if index >= (first or 0) else None for index in range(count)]


def alternate(r: Reader, count: int) -> list[int | None]:
    """Even layers slide (Gemma 2, gpt-oss)."""
    window = r.integer("sliding_window")
    return [window if index % 2 == 0 else None for index in range(count)]


def last_of(period: int, *names: str) -> Any:
    """All but the last of every ``sliding_window_pattern`` layers slide. names: other names of that field."""

    def rule(r: Reader, count: int) -> list[int | None]:
        said = ("sliding_window_pattern", "_sliding_window_pattern", *names)
        word = r.get(*said)
        if isinstance(word, str) and re.fullmatch("L+G", word):  # Exaone 4 writes LLLG for 4
            r.config |= {name: len(word) for name in said if name in r.config}
        step = r.integer(*said, default=period)
        window = r.optional("sliding_window")
        return [window if (index + 1) % step else None for index in range(count)]

    return rule


def first_of(period: int) -> Any:
    """All but the first of every ``period`` layers slide."""

    def rule(r: Reader, count: int) -> list[int | None]:
        window = r.optional("sliding_window")
        return [window if index % period else None for index in range(count)]

    return rule


# Which layers are mixtures of experts.


def all_sparse(r: Reader, d: Dialect, count: int) -> list[Layer | None]:
    """Every layer; the experts have the config's feed-forward width (Mixtral)."""
    return [moe(r, d, r.integer(*MOE_FFN, *FFN))] * count


def qwen_sparse(r: Reader, d: Dialect, count: int) -> list[Layer | None]:
    """Every ``decoder_sparse_step``-th layer that is not in ``mlp_only_layers``; a shared expert with a gate."""
    step = r.integer("decoder_sparse_step", default=1)
    dense = r.get("mlp_only_layers") or []
    shared = r.optional("shared_expert_intermediate_size")
    experts = moe(r, d, r.integer(*MOE_FFN), **({"shared_d_ff": shared, "shared_gate": True} if shared else {}))
    r.skip(*FFN)
    return [experts if index not in dense and (index + 1) % step == 0 else None for index in range(count)]


def first_dense(r: Reader, d: Dialect, count: int) -> list[Layer | None]:
    """The first ``first_k_dense_replace`` layers are dense; shared experts as wide as routed ones (DeepSeek, GLM)."""
    width = r.integer(*MOE_FFN)
    shared = _shared(r)
    experts = moe(r, d, width, **({"shared_d_ff": shared * width} if shared else {}))
    kinds = r.items("mlp_layer_types", count)
    r.skip(*FFN)  # dead where no layer is dense
    first = r.optional("first_k_dense_replace")
    frequency = r.get("moe_layer_freq")
    if kinds is not None:
        return [experts if kind == "sparse" else None for kind in kinds]
    if isinstance(frequency, list):
        if len(frequency) != count:
            raise r.refuse("moe_layer_freq", f"it has {len(frequency)} entries for {count} layers")
        return [experts if on else None for on in frequency]
    if first is None:
        first = r.integer("first_k_dense_replace")
    step = frequency or 1
    return [experts if index >= first and index % step == 0 else None for index in range(count)]


def _shared(r: Reader) -> int:
    """Shared experts: null says that there are none, and an absent field nothing, since classes differ."""
    names = ("n_shared_experts", "num_shared_experts")
    if not r.config.keys() & set(names):
        raise r.refuse(names[0], "it is absent, and only null or 0 says that there are none")
    return r.integer(*names, default=0)


def gpt_oss_sparse(r: Reader, d: Dialect, count: int) -> list[Layer | None]:
    """Every layer, with biases on the router and on the experts."""
    experts = moe(r, d, r.integer(*FFN), router_bias=True, expert_bias=True)
    return [experts | {"activation": "swiglu_limited"}] * count


def ernie_sparse(r: Reader, d: Dialect, count: int) -> list[Layer | None]:
    """Every ``moe_layer_interval``-th layer between a first and a last; the correction bias is a parameter (ERNIE)."""
    width, shared = r.integer(*MOE_FFN), r.integer("moe_num_shared_experts", default=0)
    first, last = r.integer("moe_layer_start_index"), r.integer("moe_layer_end_index", default=-1)
    step = r.integer("moe_layer_interval", default=1)
    columns = {"shared_d_ff": shared * width} if shared else {}
    experts = moe(r, d, width, router_bias=True, **columns)
    last = count - 1 if last == -1 else last
    return [experts if (index + 1) % step == 0 and first <= index <= last else None for index in range(count)]


def granite_sparse(r: Reader, d: Dialect, count: int) -> list[Layer | None]:
    """Every layer, with a shared expert of ``shared_intermediate_size`` (Granite 3 and 4 without Mamba)."""
    shared = r.integer("shared_intermediate_size", default=0)
    return [moe(r, d, r.integer(*FFN), **({"shared_d_ff": shared} if shared else {}))] * count


def always_sparse(r: Reader, d: Dialect, count: int) -> list[Layer | None]:
    """Every layer, with shared experts as wide as routed ones (Solar Open)."""
    r.only("first_k_dense_replace", 0)
    width, shared = r.integer(*MOE_FFN), r.integer("n_shared_experts", default=0)
    return [moe(r, d, width, **({"shared_d_ff": shared * width} if shared else {}))] * count


def minicpm_sparse(r: Reader, d: Dialect, count: int) -> list[Layer | None]:
    """No layer without ``num_experts``, else every one (MiniCPM-MoE)."""
    return all_sparse(r, d, count) if r.integer(*EXPERTS, default=0) else [None] * count
