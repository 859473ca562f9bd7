"""Random layers of every kind that a model file can name: dimensions that tensor and expert parallelism divide.

``MIXERS``, ``FEED_FORWARDS`` and ``EXTRAS`` hold one strategy for each kind; a kind without one fails
tests/properties/test_strategies.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from inferplan.work.parallel import Parallelism

Layer = dict[str, Any]
Draw = Callable[[st.DrawFn, Parallelism, int], Layer]
"""Draws a layer as a model file states it, for a division and a model width."""


def powers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high).map(lambda exponent: 2**exponent)


STATE_BITS = st.sampled_from([None, 16, 32])
MASKS = ("causal", "window", "chunk")


def _heads(draw: st.DrawFn, parallel: Parallelism) -> tuple[int, int]:
    """Query heads and KV heads; fewer KV heads than ranks are copied."""
    kv = draw(st.sampled_from([1, parallel.tp, 2 * parallel.tp]))
    return kv * draw(st.integers(1, 4)) * (1 if kv % parallel.tp == 0 else parallel.tp), kv


def attention(draw: st.DrawFn, parallel: Parallelism, masks: tuple[str, ...] = MASKS) -> Layer:
    heads, kv = _heads(draw, parallel)
    layer: Layer = {"kind": "attention", "heads": heads, "kv_heads": kv, "head_dim": draw(powers(4, 7))}
    mask = draw(st.sampled_from(masks))
    if mask != "causal":
        layer[mask] = draw(st.integers(64, 3000))
    layer |= {"qkv_bias": draw(st.booleans()), "qk_norm": draw(st.sampled_from(["none", "head", "full"]))}
    return layer | {"output_gate": draw(st.booleans()), "rotary": draw(st.booleans())}


def mla(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    """Dense, with an indexer of its own, or with the positions that an earlier layer chose."""
    q_lora = draw(st.sampled_from([None, 48, 192]))
    layer: Layer = {
        "kind": "mla",
        "heads": parallel.tp * draw(st.integers(1, 8)),
        "q_lora": q_lora,
        "kv_lora": draw(powers(4, 9)),
        "nope_dim": draw(powers(4, 7)),
        "rope_dim": draw(st.sampled_from([0, 16, 64])),
        "value_dim": draw(powers(4, 7)),
    }
    if q_lora is not None and draw(st.sampled_from([True, True, False])):
        layer["indexer"] = {
            "heads": draw(st.integers(1, 64)),
            "head_dim": draw(powers(4, 7)),
            "top_k": draw(st.integers(64, 3000)),
            "shared": draw(st.booleans()),
        }
    return layer


def mamba1(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    return {
        "kind": "mamba1",
        "inner": parallel.tp * draw(powers(5, 10)),
        "state": draw(powers(3, 7)),
        "dt_rank": draw(st.integers(1, 256)),
        "inner_norms": draw(st.sampled_from(["none", "rms", "plain"])),
        "state_bits": draw(STATE_BITS),
    }


def mamba2(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    groups = draw(st.sampled_from([1, parallel.tp, 2 * parallel.tp]))
    return {
        "kind": "mamba2",
        "heads": 2 * parallel.tp * draw(st.integers(1, 8)),
        "head_dim": draw(powers(4, 7)),
        "state": draw(powers(4, 8)),
        "groups": groups,
        "chunk": draw(powers(5, 8)),
        "gated_norm": draw(st.booleans()),
        "state_bits": draw(STATE_BITS),
    }


def linear(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    return {"kind": "linear"}


def parallel_mixers(draw: st.DrawFn, parallel: Parallelism, d_model: int) -> Layer:
    """Falcon-H1: attention beside a recurrence."""
    recurrence = draw(st.sampled_from([mamba1, mamba2, kimi_delta]))
    beside = attention(draw, parallel, ("causal", "window"))
    return {"kind": "parallel", "mixers": [beside, recurrence(draw, parallel, d_model)]}


def shared_block(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    heads, kv = _heads(draw, parallel)
    return {
        "kind": "shared_block",
        "heads": heads,
        "kv_heads": kv,
        "head_dim": draw(powers(4, 7)),
        "d_ff": parallel.tp * draw(powers(4, 8)),
        "adapter_rank": draw(st.integers(1, 128)),
        "attention_adapters": draw(st.booleans()),
    }


def hyena(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    return {"kind": "hyena", "width": parallel.tp * draw(powers(4, 8)), "order": draw(st.integers(2, 3))}


def short_conv(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    return {"kind": "short_conv", "width": parallel.tp * draw(powers(4, 8)), "taps": draw(st.integers(2, 7))}


def rwkv(draw: st.DrawFn, parallel: Parallelism, d_model: int) -> Layer:
    return {
        "kind": "rwkv",
        "inner": parallel.tp * draw(powers(4, 9)),
        "width": d_model,
        "state_bits": draw(STATE_BITS),
    }


def rwkv7(draw: st.DrawFn, parallel: Parallelism, d_model: int) -> Layer:
    return {
        "kind": "rwkv7",
        "heads": parallel.tp * draw(st.integers(1, 8)),
        "head_dim": draw(powers(4, 7)),
        "width": d_model,
        "decay_rank": draw(st.integers(1, 64)),
        "rate_rank": draw(st.integers(1, 64)),
        "gate_rank": draw(st.integers(1, 128)),
        "value_rank": draw(st.sampled_from([None, 16])),
        "state_bits": draw(STATE_BITS),
    }


def gated_linear_recurrence(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    blocks = parallel.tp * draw(st.integers(1, 4))
    return {
        "kind": "gated_linear_recurrence",
        "inner": blocks * draw(powers(4, 7)),
        "blocks": blocks,
        "state_bits": draw(STATE_BITS),
    }


def kimi_delta(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    return {
        "kind": "kimi_delta",
        "heads": parallel.tp * draw(st.integers(1, 8)),
        "head_dim": draw(powers(4, 7)),
        "full_output_gate": draw(st.booleans()),
        "state_bits": draw(STATE_BITS),
    }


def gated_delta_net(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    keys = parallel.tp * draw(st.integers(1, 4))
    return {
        "kind": "gated_delta_net",
        "key_heads": keys,
        "value_heads": keys * draw(st.integers(1, 3)),
        "key_dim": draw(powers(4, 7)),
        "value_dim": draw(powers(4, 7)),
        "state_bits": draw(STATE_BITS),
    }


def lightning_attention(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    return {
        "kind": "lightning_attention",
        "heads": parallel.tp * draw(st.integers(1, 8)),
        "head_dim": draw(powers(4, 7)),
        "state_bits": draw(STATE_BITS),
    }


def compressed_attention(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    """A window alone, beside all entries, or beside those that an indexer chooses."""
    groups = parallel.tp * draw(st.integers(1, 3))
    layer: Layer = {
        "kind": "compressed_attention",
        "heads": groups * draw(st.integers(1, 8)),
        "head_dim": draw(powers(4, 9)),
        "rope_dim": 0,  # rotary elements stay bf16, whatever halves
        "q_lora": draw(st.sampled_from([48, 192])),
        "window": draw(st.integers(16, 300)),
        "groups": groups,
        "group_rank": draw(powers(4, 7)),
        "state_bits": draw(STATE_BITS),
    }
    if draw(st.sampled_from([True, True, False])):
        layer["pool"] = {"rate": draw(st.sampled_from([2, 4, 128])), "overlap": draw(st.booleans())}
        if draw(st.booleans()):
            layer["indexer"] = {
                "heads": draw(st.integers(1, 64)),
                "head_dim": draw(powers(4, 7)),
                "top_k": draw(st.integers(16, 700)),
            }
    return layer


def block_sparse_attention(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    heads, kv = _heads(draw, parallel)
    return {
        "kind": "block_sparse_attention",
        "heads": heads,
        "kv_heads": kv,
        "head_dim": draw(powers(4, 7)),
        "qk_norm": "head",
        "indexer": {
            "heads": kv,
            "head_dim": draw(powers(4, 7)),
            "block": draw(st.sampled_from([16, 128])),
            "top_blocks": draw(st.integers(1, 20)),
        },
    }


def hyper_connection(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    return {"kind": "hyper_connection", "streams": draw(st.integers(2, 5))}


def mlp(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    return {"kind": "mlp", "d_ff": parallel.tp * draw(powers(4, 8)), "gated": draw(st.booleans())}


def moe(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    experts = parallel.ep * draw(powers(0, 3))
    return {
        "kind": "moe",
        "experts": experts,
        "top_k": draw(st.integers(1, experts)),
        "d_ff": parallel.expert_tp * draw(powers(4, 8)),
        "shared_d_ff": draw(st.sampled_from([0, 64 * parallel.tp])),
        "gated": draw(st.booleans()),
        "latent": draw(st.sampled_from([None, None, 32])),
    }


def rwkv_channel_mix(draw: st.DrawFn, parallel: Parallelism, d_model: int) -> Layer:
    return {"kind": "rwkv_channel_mix", "d_ff": parallel.tp * draw(powers(4, 8)), "width": d_model}


def laurel(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    return {"kind": "laurel", "rank": draw(st.integers(1, 128))}


def altup(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    return {"kind": "altup", "streams": draw(st.integers(2, 4))}


def per_layer_input(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    return {"kind": "per_layer_input", "width": draw(powers(4, 8))}


def attention_residual(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    return {"kind": "attention_residual", "blocks": draw(st.integers(1, 8)), "finishes": draw(st.booleans())}


def residual_gate(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    return {"kind": "residual_gate"}


def disentangled_attention(draw: st.DrawFn, parallel: Parallelism, width: int) -> Layer:
    heads = parallel.tp * draw(st.integers(1, 3))
    return {
        "kind": "disentangled_attention",
        "heads": heads,
        "kv_heads": heads,
        "head_dim": draw(powers(4, 6)),
        "span": draw(st.integers(8, 300)),
        "terms": draw(st.integers(1, 2)),
        "shares_projections": draw(st.booleans()),
    }


def relative_attention(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    heads = parallel.tp * draw(st.integers(1, 3))
    return {"kind": "relative_attention", "heads": heads, "kv_heads": heads, "head_dim": draw(powers(4, 6))}


def scales(draw: st.DrawFn, parallel: Parallelism, width: int) -> Layer:
    return {"kind": "scales", "vectors": {"residual": [draw(st.integers(1, 8)), width]}}


def causal_conv(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    group = draw(st.sampled_from([1, 1, 8]))
    channels = parallel.tp * group * draw(st.integers(1, 16))
    return {"kind": "causal_conv", "channels": channels, "taps": draw(st.integers(1, 5)), "group": group}


def relative_bias(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    heads = parallel.tp * draw(st.integers(1, 4))
    return {"kind": "relative_bias", "heads": heads, "rank": draw(st.integers(1, 16)), "extent": draw(powers(4, 9))}


def gated_norm(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    return {"kind": "gated_norm", "rank": draw(st.integers(1, 32)), "sites": draw(st.integers(1, 2))}


def conformer_conv(draw: st.DrawFn, parallel: Parallelism, _: int) -> Layer:
    width = parallel.tp * draw(powers(3, 7))
    return {"kind": "conformer_conv", "width": width, "taps": draw(st.integers(1, 31)), "bias": draw(st.booleans())}


MIXERS: dict[str, Draw] = {
    "relative_attention": relative_attention,
    "conformer_conv": conformer_conv,
    "disentangled_attention": disentangled_attention,
    "compressed_attention": compressed_attention,
    "mla": mla,
    "mamba1": mamba1,
    "mamba2": mamba2,
    "linear": linear,
    "parallel": parallel_mixers,
    "shared_block": shared_block,
    "hyena": hyena,
    "short_conv": short_conv,
    "rwkv": rwkv,
    "rwkv7": rwkv7,
    "gated_linear_recurrence": gated_linear_recurrence,
    "kimi_delta": kimi_delta,
    "gated_delta_net": gated_delta_net,
    "lightning_attention": lightning_attention,
    "block_sparse_attention": block_sparse_attention,
}
"""Mixers beside ``attention``, whose masks a law may choose."""
FEED_FORWARDS: dict[str, Draw] = {"mlp": mlp, "moe": moe, "rwkv_channel_mix": rwkv_channel_mix, "linear": linear}
EXTRAS: dict[str, Draw] = {"laurel": laurel, "altup": altup, "per_layer_input": per_layer_input, "mlp": mlp}
EXTRAS |= {
    "hyper_connection": hyper_connection,
    "residual_gate": residual_gate,
    "attention_residual": attention_residual,
    "scales": scales,
    "causal_conv": causal_conv,
}
EXTRAS |= {"relative_bias": relative_bias, "gated_norm": gated_norm}
RESET = frozenset({"block_sparse_attention"})
"""Mixers whose reach falls back at times, as that of chunks does."""
EVERY_KIND = frozenset({"attention", *MIXERS, *FEED_FORWARDS, *EXTRAS})
