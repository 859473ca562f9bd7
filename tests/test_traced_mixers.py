"""Modules of a traced model that a described kind stands for: sizes by hand, and nothing that is one element off."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from inferplan.models.layers.gated_delta_net import GatedDeltaNetLayer
from inferplan.models.layers.mamba2 import Mamba2Layer
from inferplan.models.layers.mla import MlaLayer
from inferplan.models.layers.traced import TracedCache
from inferplan.models.tracing.mixers import MixerFacts, described_mixer
from tests.cases import for_each

DEEPSEEK = MixerFacts(
    module=SimpleNamespace(),
    shapes={
        "q_a_proj.weight": (1536, 7168),
        "q_a_layernorm.weight": (1536,),
        "q_b_proj.weight": (24576, 1536),
        "kv_a_proj_with_mqa.weight": (576, 7168),
        "kv_a_layernorm.weight": (512,),
        "kv_b_proj.weight": (32768, 512),
        "o_proj.weight": (7168, 16384),
    },
    keeps=TracedCache(per_token=576),
    conv=(),
    state=(),
    attention={"heads": 128, "kv_heads": 128, "key_dim": 192, "value_dim": 128, "mask": ("causal", 0)},
)
"""A layer of DeepSeek-V3 (2412.19437 section 4.2), with the shapes of its checkpoint."""
NEMOTRON = MixerFacts(
    module=SimpleNamespace(chunk_size=128),
    shapes={
        "in_proj.weight": (18560, 4096),
        "conv1d.weight": (10240, 1, 4),
        "conv1d.bias": (10240,),
        "A_log": (128,),
        "D": (128,),
        "dt_bias": (128,),
        "norm.weight": (8192,),
        "out_proj.weight": (4096, 8192),
    },
    keeps=TracedCache(state=128 * 64 * 128 + 10240 * 4, conv=10240 * 4),
    conv=(1, 10240, 4),
    state=(1, 128, 64, 128),
    attention={},
)
"""One of Nemotron-H-8B (2504.03624 table 1): 128 heads of 64, states of 128, 8 groups."""
QWEN = MixerFacts(
    module=SimpleNamespace(),
    shapes={
        "in_proj_qkvz.weight": (12288, 2048),
        "in_proj_ba.weight": (64, 2048),
        "conv1d.weight": (8192, 1, 4),
        "A_log": (32,),
        "dt_bias": (32,),
        "norm.weight": (128,),
        "out_proj.weight": (2048, 4096),
    },
    keeps=TracedCache(state=32 * 128 * 128 + 8192 * 4, conv=8192 * 4),
    conv=(1, 8192, 4),
    state=(1, 32, 128, 128),
    attention={},
)
"""One of Qwen3-Next-80B-A3B: 16 key heads and 32 value heads of 128."""
KNOWN = {
    "mla": (
        DEEPSEEK,
        7168,
        MlaLayer(heads=128, q_lora=1536, kv_lora=512, nope_dim=128, rope_dim=64, value_dim=128),
    ),
    "mamba2": (NEMOTRON, 4096, Mamba2Layer(heads=128, head_dim=64, state=128, groups=8, chunk=128)),
    "gated_delta_net": (QWEN, 2048, GatedDeltaNetLayer(key_heads=16, value_heads=32, key_dim=128, value_dim=128)),
}


@for_each("kind", list(KNOWN))
def test_a_module_with_the_tensors_and_the_cache_of_a_kind_is_that_kind(kind: str) -> None:
    facts, width, layer = KNOWN[kind]
    assert described_mixer(facts, width) == layer


@for_each("kind", list(KNOWN))
def test_a_tensor_of_another_shape_or_more_or_fewer_tensors_is_none(kind: str) -> None:
    facts, width, _ = KNOWN[kind]
    for name, shape in facts.shapes.items():
        for axis in range(len(shape)):
            changed = (*shape[:axis], shape[axis] + 1, *shape[axis + 1 :])
            assert described_mixer(replace(facts, shapes={**facts.shapes, name: changed}), width) is None, name
        if not name.endswith(("conv1d.bias", "norm.weight")) or kind != "mamba2":  # which may be there or not
            fewer = {other: size for other, size in facts.shapes.items() if other != name}
            assert described_mixer(replace(facts, shapes=fewer), width) is None, name
    assert described_mixer(replace(facts, shapes={**facts.shapes, "gate.weight": (1,)}), width) is None
    assert described_mixer(facts, width + 1) is None


@for_each("kind", list(KNOWN))
def test_another_cache_is_none(kind: str) -> None:
    facts, width, _ = KNOWN[kind]
    more = ("per_token", "window", "state") if kind == "mla" else ("state", "conv")
    for name in more:
        one_more = facts.keeps.model_copy(update={name: (getattr(facts.keeps, name) or 0) + 1})
        assert described_mixer(replace(facts, keeps=one_more), width) is None, name


@pytest.mark.parametrize("change", [{"heads": 64}, {"kv_heads": 1}, {"key_dim": 256}, {"mask": ("full", 0)}, None])
def test_latents_under_other_attention_are_none(change: dict[str, object] | None) -> None:
    """Not one attention (none, or several) has no heads to go by."""
    attention = {} if change is None else {**DEEPSEEK.attention, **change}
    assert described_mixer(replace(DEEPSEEK, attention=attention), 7168) is None


def test_a_chunk_that_the_module_does_not_state_is_not_guessed() -> None:
    assert described_mixer(replace(NEMOTRON, module=SimpleNamespace()), 4096) is None
