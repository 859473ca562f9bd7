"""Mixers of a traced model that a described kind stands for, so that engines' kernels are priced and not transformers'
own: latent attention that expands its cache at every step, and scans that run in chunks (docs/tracing.md).

A module is one only where each of its parameters has the name and the shape that the kind's has in transformers, and
what its layer keeps is what the kind keeps, to the element. Sizes come from those shapes, from the tensors of the cache
and from the attention that ran; where one of them is missing, or another attention or state is beside it, nothing is
taken for anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from inferplan.models.layers.base import Cache, Mixer
from inferplan.models.layers.gated_delta_net import GatedDeltaNetLayer
from inferplan.models.layers.kimi_delta import KimiDeltaLayer
from inferplan.models.layers.mamba2 import Mamba2Layer
from inferplan.models.layers.mla import MlaLayer
from inferplan.models.layers.traced import TracedCache

Shape = tuple[int, ...]


@dataclass(frozen=True)
class MixerFacts:
    """A module inside a layer, and what is known of it.

    shapes: of all its parameters, by their names inside it. keeps: the cache of its layer. conv, state: shapes of one
    sequence's inputs of a convolution and recurrent state, empty where it has none. attention: heads, kv_heads,
    key_dim, value_dim and mask of the one attention that ran in the layer; empty where none or several did.
    """

    module: Any
    shapes: Mapping[str, Shape]
    keeps: TracedCache
    conv: Shape
    state: Shape
    attention: Mapping[str, Any]


def described_mixer(found: MixerFacts, d_model: int) -> Mixer | None:
    """The described layer that the module is in every tensor and in what it keeps; ``None`` where it is none."""
    for sizes, tensors in _KINDS:
        try:
            layer: Mixer = sizes(found)
        except (KeyError, IndexError, ValueError, ZeroDivisionError):  # a size is missing, or there is none that fits
            continue
        if any(dict(found.shapes) == _without_nones(one) for one in tensors(layer, d_model)) and _keeps(layer, found):
            assert sum(weight.elements for weight in layer.weights(d_model)) == sum(map(prod, found.shapes.values()))
            return layer
    return None


def _without_nones(tensors: Mapping[str, Shape | None]) -> dict[str, Shape]:
    return {name: shape for name, shape in tensors.items() if shape is not None}


def _keeps(layer: Mixer, found: MixerFacts) -> bool:
    """Whether the layer keeps all that such a kind would: of tokens, or of constant size."""
    cache, keeps = layer.cache(), found.keeps
    if cache.per_token:
        return (cache.per_token, cache.mask.size or None, 0) == (keeps.per_token, keeps.window, keeps.state)
    return (cache.state, cache.conv) == (keeps.state, keeps.conv)


def without(keeps: TracedCache, taken: Cache) -> TracedCache:
    """What a layer keeps beside a mixer of it that keeps so much."""
    if taken.per_token:
        return TracedCache()
    left = {"state": keeps.state - taken.state, "conv": keeps.conv - taken.conv, "state_bits": None}
    return keeps.model_copy(update=left)


def _exact(whole: int, part: int) -> int:
    """A quotient without a rest. Raises ``ValueError`` where there is one."""
    found, rest = divmod(whole, part)
    if rest or found < 1:
        raise ValueError(f"{whole} is no multiple of {part}")
    return found


def _mla(found: MixerFacts) -> MlaLayer:
    shapes, runs = found.shapes, found.attention
    heads, value = runs["heads"], runs["value_dim"]
    (latent,) = shapes["kv_a_layernorm.weight"]
    rope = found.keeps.per_token - latent
    mask = ("causal", 0) if found.keeps.window is None else ("window", found.keeps.window)
    if runs["kv_heads"] != heads or runs["mask"] != mask:
        raise ValueError("its attention is not that of expanded latents")
    return MlaLayer(
        heads=heads,
        q_lora=shapes["q_a_layernorm.weight"][0] if "q_a_layernorm.weight" in shapes else None,
        kv_lora=latent,
        nope_dim=runs["key_dim"] - rope,
        rope_dim=rope,
        value_dim=value,
        bias="o_proj.bias" in shapes,
        window=found.keeps.window,
    )


def _mla_tensors(one: MlaLayer, d_model: int) -> Iterator[dict[str, Shape | None]]:
    queries, lora, bias = one.heads * one.key_dim, one.q_lora, one.bias
    up: dict[str, Shape | None] = {"q_proj.weight": (queries, d_model)}
    if lora is not None:
        up = {"q_a_proj.weight": (lora, d_model), "q_a_layernorm.weight": (lora,), "q_b_proj.weight": (queries, lora)}
        up |= {"q_a_proj.bias": (lora,) if bias else None}
    yield up | {
        "kv_a_proj_with_mqa.weight": (one.latent_dim, d_model),
        "kv_a_proj_with_mqa.bias": (one.latent_dim,) if bias else None,
        "kv_a_layernorm.weight": (one.kv_lora,),
        "kv_b_proj.weight": (one.heads * (one.nope_dim + one.value_dim), one.kv_lora),
        "o_proj.weight": (d_model, one.heads * one.value_dim),
        "o_proj.bias": (d_model,) if bias else None,
    }


def _mamba2(found: MixerFacts) -> Mamba2Layer:
    _, heads, width, state = found.state
    _, channels, taps = found.conv
    return Mamba2Layer(
        heads=heads,
        head_dim=width,
        state=state,
        groups=_exact(channels - heads * width, 2 * state),
        taps=taps,
        chunk=_stated(found.module, "chunk_size"),
        bias="in_proj.bias" in found.shapes,
        conv_bias="conv1d.bias" in found.shapes,
        gated_norm="norm.weight" in found.shapes,
    )


def _stated(module: Any, name: str) -> int:
    """A size that no tensor shows, as the module states it. Raises ``ValueError`` where it does not."""
    size = getattr(module, name, None)
    if not isinstance(size, int):
        raise ValueError(f"no {name}")
    return size


def _mamba2_tensors(one: Mamba2Layer, d_model: int) -> Iterator[dict[str, Shape | None]]:
    projected, channels = 2 * one.inner + one.shared + one.heads, one.inner + one.shared
    yield {
        "in_proj.weight": (projected, d_model),
        "in_proj.bias": (projected,) if one.bias else None,
        "conv1d.weight": (channels, 1, one.taps),
        "conv1d.bias": (channels,) if one.conv_bias else None,
        "A_log": (one.heads,),
        "D": (one.heads,),
        "dt_bias": (one.heads,),
        "norm.weight": (one.inner,) if one.gated_norm else None,
        "out_proj.weight": (d_model, one.inner),
        "out_proj.bias": (d_model,) if one.bias else None,
    }


def _gated_delta_net(found: MixerFacts) -> GatedDeltaNetLayer:
    _, heads, key, value = found.state
    _, channels, taps = found.conv
    keys = _exact(channels - heads * value, 2)
    return GatedDeltaNetLayer(key_heads=_exact(keys, key), value_heads=heads, key_dim=key, value_dim=value, taps=taps)


def _gated_delta_net_tensors(one: GatedDeltaNetLayer, d_model: int) -> Iterator[dict[str, Shape | None]]:
    """Qwen3-Next has two projections of its input, Qwen3.5 four, OLMo hybrid six."""
    mixed, values, heads = 2 * one.keys + one.values, one.values, one.value_heads
    own: dict[str, Shape | None] = {"conv1d.weight": (mixed, 1, one.taps), "A_log": (heads,), "dt_bias": (heads,)}
    yield own | {
        **{f"{name}_proj.weight": (one.keys, d_model) for name in "qk"},
        **{f"{name}_proj.weight": (values, d_model) for name in "vg"},
        **{f"{name}_proj.weight": (heads, d_model) for name in "ab"},
        "o_norm.weight": (one.value_dim,),
        "o_proj.weight": (d_model, values),
    }
    own |= {"norm.weight": (one.value_dim,), "out_proj.weight": (d_model, values)}
    yield own | {"in_proj_qkvz.weight": (mixed + values, d_model), "in_proj_ba.weight": (2 * heads, d_model)}
    yield own | {
        "in_proj_qkv.weight": (mixed, d_model),
        "in_proj_z.weight": (values, d_model),
        "in_proj_b.weight": (heads, d_model),
        "in_proj_a.weight": (heads, d_model),
    }


def _kimi_delta(found: MixerFacts) -> KimiDeltaLayer:
    _, heads, key, value = found.state
    if key != value:
        raise ValueError("keys and values of one width")
    return KimiDeltaLayer(heads=heads, head_dim=key, taps=found.conv[2])


def _kimi_delta_tensors(one: KimiDeltaLayer, d_model: int) -> Iterator[dict[str, Shape | None]]:
    inner, width = one.inner, one.head_dim
    yield {
        **{f"{name}_proj.weight": (inner, d_model) for name in "qkv"},
        "conv1d.weight": (3 * inner, 1, one.taps),
        "forget_gate.f_a_proj.weight": (width, d_model),
        "forget_gate.f_b_proj.weight": (inner, width),
        "forget_gate.A_log": (1, 1, one.heads, 1),
        "forget_gate.dt_bias": (inner,),
        "b_proj.weight": (one.heads, d_model),
        "g_a_proj.weight": (width, d_model),
        "g_b_proj.weight": (inner, width),
        "o_norm.weight": (width,),
        "o_proj.weight": (d_model, inner),
    }


_KINDS: tuple[tuple[Callable[[MixerFacts], Any], Callable[[Any, int], Iterator[dict[str, Shape | None]]]], ...] = (
    (_mla, _mla_tensors),
    (_mamba2, _mamba2_tensors),
    (_gated_delta_net, _gated_delta_net_tensors),
    (_kimi_delta, _kimi_delta_tensors),
)
