"""What holds for every layer kind: matmuls read the tensors that are counted, ranks share them, arrays price alike."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import IndivisibleError
from inferplan.estimate.phase import run_step
from inferplan.models.layers import LayerContext, LayerSpec, kinds, parse_layer
from inferplan.models.layers.base import tensor_of
from inferplan.work.formats import uniform
from inferplan.work.ops import Attention, Collective, GroupedMatmul, IndexSelect, Matmul, Op
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment, decode
from tests.cases import for_each

WIDTH = 64
MAMBA2 = {"kind": "mamba2", "heads": 8, "head_dim": 16, "state": 8, "groups": 2}
ATTENTION = {"kind": "attention", "heads": 4, "kv_heads": 2, "head_dim": 16}
MLA = {"kind": "mla", "heads": 4, "q_lora": 24, "kv_lora": 16, "nope_dim": 12, "rope_dim": 8, "value_dim": 10}
INDEXER = {"heads": 2, "head_dim": 16, "top_k": 8}
COMPRESSED = {"kind": "compressed_attention", "heads": 4, "head_dim": 16, "rope_dim": 8, "q_lora": 24, "window": 8}
COMPRESSED |= {"groups": 2, "group_rank": 12}
RWKV7 = {"kind": "rwkv7", "heads": 4, "head_dim": 16, "width": WIDTH, "decay_rank": 8, "rate_rank": 4, "gate_rank": 12}
BLOCKS = {"heads": 2, "head_dim": 16, "block": 4, "top_blocks": 3}
DISENTANGLED = {"kind": "disentangled_attention", "heads": 4, "kv_heads": 4, "head_dim": 16, "span": 8, "terms": 2}
LAYERS: list[dict[str, Any]] = [
    ATTENTION,
    ATTENTION | {"output_gate": True, "window": 8, "value_dim": 12},
    ATTENTION | {"shares_cache": True},
    ATTENTION | {"value_from_key": True},
    {"kind": "cross_attention", "heads": 4, "kv_heads": 2, "head_dim": 16},
    {"kind": "cross_attention", "heads": 4, "kv_heads": 4, "head_dim": 16, "source_width": 48},
    {"kind": "mlp", "d_ff": 96},
    {"kind": "mlp", "d_ff": 96, "gated": False},
    {"kind": "moe", "experts": 8, "top_k": 2, "d_ff": 48, "shared_d_ff": 48},
    {"kind": "moe", "experts": 8, "top_k": 2, "d_ff": 48, "latent": 32},
    {"kind": "moe", "experts": 8, "top_k": 3, "d_ff": 48, "zero_experts": 4},
    {"kind": "moe", "experts": 8, "top_k": 1, "d_ff": 48, "router_width": 12, "out_bias": True},
    {"kind": "moe", "experts": 8, "top_k": 2, "d_ff": 48, "shared_d_ff": 96, "shared_routes": 2},
    MLA | {"gate": "query"},
    ATTENTION | {"late_values": True},
    MLA,
    MLA | {"q_lora": None},
    MLA | {"indexer": INDEXER},
    MLA | {"indexer": INDEXER | {"shared": True}},
    MLA | {"q_lora": None, "position_scale": True, "indexer": INDEXER | {"reads_input": True}},
    MLA | {"indexer": INDEXER | {"pool": 4}},
    {"kind": "mamba1", "inner": 128, "state": 8, "dt_rank": 4},
    MAMBA2,
    {"kind": "rwkv", "inner": 64, "width": WIDTH},
    {"kind": "rwkv_channel_mix", "d_ff": 96, "width": WIDTH},
    {"kind": "rwkv_channel_mix", "d_ff": 96, "width": WIDTH, "receptance": False},
    RWKV7,
    RWKV7 | {"value_rank": 6},
    {"kind": "gated_linear_recurrence", "inner": 64, "blocks": 4},
    {"kind": "gated_delta_net", "key_heads": 2, "value_heads": 4, "key_dim": 8, "value_dim": 12},
    {"kind": "kimi_delta", "heads": 4, "head_dim": 8},
    {"kind": "kimi_delta", "heads": 4, "head_dim": 8, "full_output_gate": True},
    {"kind": "lightning_attention", "heads": 4, "head_dim": 16},
    {"kind": "hyena", "width": WIDTH},
    {"kind": "short_conv", "width": WIDTH},
    MLA | {"gate": "head", "rope_norm": True, "sinks": True, "window": 512},
    ATTENTION | {"head_gate": True, "out_norm": True},
    ATTENTION | {"qk_norm": "plain", "out_norm": "plain", "output_gate": True},
    {"kind": "moe", "experts": 8, "top_k": 2, "d_ff": 48, "latent": 32, "latent_norms": True},
    {"kind": "moe", "experts": 8, "top_k": 2, "d_ff": 48, "latent": 32, "latent_sum_norm": True, "shared_d_ff": 64},
    {"kind": "residual_gate"},
    {"kind": "attention_residual", "blocks": 1, "finishes": True},
    {"kind": "attention_residual", "blocks": 3},
    {"kind": "linear"},
    {"kind": "laurel", "rank": 4},
    {"kind": "per_layer_input", "width": 8},
    {"kind": "parallel", "mixers": [ATTENTION, MAMBA2]},
    {"kind": "shared_block", "heads": 4, "kv_heads": 4, "head_dim": 32, "d_ff": 96, "adapter_rank": 4},
    COMPRESSED,
    COMPRESSED | {"pool": {"rate": 8}},
    COMPRESSED | {"pool": {"rate": 4, "overlap": True}, "indexer": {"heads": 4, "head_dim": 16, "top_k": 8}},
    ATTENTION | {"kind": "block_sparse_attention", "indexer": BLOCKS},
    DISENTANGLED,
    {"kind": "relative_attention", "heads": 4, "kv_heads": 4, "head_dim": 16},
    {"kind": "scales", "vectors": {"residual": [4, WIDTH], "one": [1, 1]}},
    {"kind": "causal_conv", "channels": 64, "taps": 4, "bias": True},
    {"kind": "causal_conv", "channels": 64, "taps": 2, "group": 16, "kept": 0},
    {"kind": "relative_bias", "heads": 4, "rank": 3, "extent": 24},
    {"kind": "gated_norm", "rank": 4},
    {"kind": "conformer_conv", "width": WIDTH, "taps": 5, "bias": True},
    DISENTANGLED | {"terms": 1, "shares_projections": True, "causal": False},
    {"kind": "hyper_connection", "streams": 4},
    {"kind": "altup", "streams": 4},
]
IDS = [f"{i}-{layer['kind']}" for i, layer in enumerate(LAYERS)]
POOLED = ("compress.kv", "compress.gate", "index.kv", "index.gate")
ROUTED = ("router_in", "router_hidden", "conv.grouped", "relative.bank")
MULTIPLIED_BASE = ("router", "index.weights", "hyper.mix", "gates", *POOLED, *ROUTED)
AGAIN = ("attn.position_scores", "attn.shared_positions")
"""Matmuls with what was computed, and with matrices that another one has read."""
RIDES_ON_A_MATMUL = {"hyena": {"in": 3 * WIDTH}}


def context(new: Any = 1.0, tp: int = 1, batch: Any = 2.0) -> LayerContext:
    segment = Segment(batch=batch, new=new, past=20.0, media=True)
    return LayerContext(d_model=WIDTH, precision=uniform(), parallel=Parallelism(tp=tp), segments=(segment,))


def test_every_kind_is_here():
    """But a traced layer, which is never divided (tests/layers/test_traced.py), and one without operators."""
    assert {layer["kind"] for layer in LAYERS} == set(kinds()) - {"traced", "untimed"}


@for_each("layer", LAYERS[:-1], ids=IDS[:-1])
@for_each("new", [1.0, 64.0])
def test_matmuls_read_the_matrices_that_are_counted(layer, new):
    """AltUp apart, whose router runs twice a layer. Biases ride on a matmul and are read with it."""
    part = parse_layer(layer)
    counted = sum(
        prod(weight.shape)
        for weight in part.weights(WIDTH)
        if (weight.role in ("weights", "experts") or weight.name in MULTIPLIED_BASE) and len(weight.shape) > 1
    ) - sum(RIDES_ON_A_MATMUL.get(layer["kind"], {}).values())
    read = 0
    for op in part.ops(context(new)):
        if op.name in AGAIN:
            continue
        if isinstance(op, Matmul):
            read += op.count * op.batch * op.k * op.n
        elif isinstance(op, GroupedMatmul):
            read += op.experts * op.k * op.n
    assert read == counted


@for_each("layer", LAYERS, ids=IDS)
def test_a_matmul_is_named_after_a_tensor(layer):
    """So that an exception of a checkpoint (a tensor kept wide) reaches the operator that reads it."""
    part = parse_layer(layer)
    names = {weight.name for weight in part.weights(WIDTH)}
    matmuls = {op.name for new in (1.0, 64.0) for op in part.ops(context(new)) if isinstance(op, Matmul)}
    absorbed = {"attn.absorb_q", "attn.absorb_v", "attn.position_scores"}
    assert {tensor_of(name) for name in matmuls - absorbed} <= names


@for_each("layer", LAYERS, ids=IDS)
def test_ranks_hold_the_whole_between_them(layer):
    part, two = parse_layer(layer), Parallelism(tp=2)
    part.check(two)
    for weight in part.weights(WIDTH):
        copies = 1 if weight.shard == "none" else 2
        assert weight.per_rank(two) * copies == weight.elements


@for_each("layer", LAYERS, ids=IDS)
def test_ranks_share_the_flop_of_the_tensors_they_divide(layer):
    """Two ranks do at least the work of one, and at most twice it (where every tensor is copied)."""
    part = parse_layer(layer)
    one = sum(float(op.work().flop) for op in part.ops(context()))
    two = 2 * sum(float(op.work().flop) for op in part.ops(context(tp=2)))
    assert one <= two <= 2 * one


@for_each("layer", LAYERS, ids=IDS)
def test_a_grid_prices_as_its_points(layer):
    part, sizes = parse_layer(layer), np.array([32.0, 64.0, 100.0])
    grid = [op.work() for op in part.ops(context(sizes, batch=sizes))]
    for index, size in enumerate(sizes):
        point = [op.work() for op in part.ops(context(float(size), batch=float(size)))]
        for whole, one in zip(grid, point, strict=True):
            assert np.broadcast_to(whole.flop, 3)[index] == pytest.approx(one.flop)
            assert np.broadcast_to(whole.bytes, 3)[index] == pytest.approx(one.bytes)


@for_each("layer", LAYERS, ids=IDS)
def test_live_width_shrinks_with_ranks(layer):
    part = parse_layer(layer)
    assert 0 < part.live_width(WIDTH, Parallelism(tp=2)) <= part.live_width(WIDTH, Parallelism())


@for_each(
    "layer",
    [
        layer
        for layer in LAYERS
        if layer["kind"] in ("attention", "cross_attention", "mla", "mamba2", "kimi_delta", "gated_delta_net")
    ],
    ids=lambda layer: layer["kind"],
)
def test_heads_that_do_not_divide_are_refused(layer):
    with pytest.raises(IndivisibleError, match="does not divide"):
        parse_layer(layer).check(Parallelism(tp=3))


def test_mla_decodes_on_the_latent_and_prefills_in_full():
    part = parse_layer(MLA)
    (decode,) = [op for op in part.ops(context(1.0)) if isinstance(op, Attention)]
    (prefill,) = [op for op in part.ops(context(64.0)) if isinstance(op, Attention)]
    assert (decode.kv_heads, decode.key_dim, decode.value_dim, decode.shared_value) == (1, 24, 16, True)
    assert (prefill.kv_heads, prefill.key_dim, prefill.value_dim, prefill.shared_value) == (4, 20, 10, False)
    assert [part.cache().copies(part.cache().units, tp) for tp in (1, 2, 8)] == [1, 1, 1]


def test_an_indexer_scores_the_whole_context_and_attends_to_its_choice():
    part = parse_layer(MLA | {"indexer": INDEXER})
    ops = list(part.ops(context(1.0, batch=1.0)))
    (select,) = [op for op in ops if isinstance(op, IndexSelect)]
    (core,) = [op for op in ops if isinstance(op, Attention)]
    assert select.work().flop == 2 * 21 * 2 * 17
    assert core.work().flop == 2 * 8 * 4 * (24 + 16)
    shared = parse_layer(MLA | {"indexer": INDEXER | {"shared": True}})
    assert not [op for op in shared.ops(context(1.0)) if isinstance(op, IndexSelect)]


def test_mamba2_copies_its_groups_when_there_are_more_ranks():
    part = parse_layer(MAMBA2 | {"groups": 1})
    by_name = {weight.name: weight.per_rank(Parallelism(tp=4)) for weight in part.weights(WIDTH)}
    assert by_name["in.bc"] == 2 * 8 * WIDTH
    assert by_name["in.zxdt"] == (2 * 128 + 8) * WIDTH / 4
    names = [op.name for op in part.ops(context(tp=4))]
    assert "mamba.norm_all_reduce" in names


def test_a_norm_over_all_heads_adds_up_two_sums_of_squares_a_token() -> None:
    """vLLM's MiniMaxText01RMSNormTP.forward_qk: one all-reduce of two fp32 sums, 8 bytes a token."""
    layer = parse_layer({"kind": "attention", "heads": 8, "kv_heads": 2, "head_dim": 64, "qk_norm": "full"})
    reduced = {op.name: op for op in layer.ops(context(32.0, tp=2)) if isinstance(op, Collective)}
    sums = reduced["attn.qk_norm.all_reduce"]
    assert sums.elements * sums.format.width == 2 * 32 * 8
    assert not any("qk_norm.all_reduce" in op.name for op in layer.ops(context(32.0)))
    head = parse_layer({"kind": "attention", "heads": 8, "kv_heads": 2, "head_dim": 64, "qk_norm": "head"})
    assert not any("qk_norm.all_reduce" in op.name for op in head.ops(context(32.0, tp=2)))


def test_norms_of_queries_and_keys_that_are_kernels_apart() -> None:
    """On each of two ranks 64 tokens of 4 query heads and 1 key head of 64: sums of 256 and 64 squares, 2 FLOP each,
    and norms that work on as much as one for both. One rank adds up its squares in the norm itself; keys that are
    shared with another layer are normalised there."""
    layer = parse_layer({"kind": "attention", "heads": 8, "kv_heads": 2, "head_dim": 64, "qk_norm": "full"})

    def norms(part: LayerSpec, **more: Any) -> dict[str, Op]:
        return {op.name: op for op in part.ops(replace(context(32.0, **more), norms_apart=True)) if "norm" in op.name}

    two = norms(layer, tp=2)
    names = ("attn.q_norm.sums", "attn.k_norm.sums", "attn.qk_norm.all_reduce", "attn.q_norm", "attn.k_norm")
    assert tuple(two) == names
    assert [two[name].work().flop for name in names[:2]] == [64 * 256 * 2, 64 * 64 * 2]
    assert [two[name].work().read for name in names[:2]] == [64 * 256 * 2, 64 * 64 * 2]  # in 16 bits
    both = next(op for op in layer.ops(context(32.0, tp=2)) if op.name == "attn.qk_norm")
    assert two["attn.q_norm"].work().flop + two["attn.k_norm"].work().flop == both.work().flop
    assert tuple(norms(layer)) == ("attn.q_norm", "attn.k_norm")
    assert tuple(norms(layer.model_copy(update={"shares_cache": True}))) == ("attn.q_norm",)
    assert tuple(norms(layer.model_copy(update={"qk_norm": "head"}), tp=2)) == ("attn.qk_norm",)


def test_releases_of_vllm_before_may_2026_normalise_queries_and_keys_apart() -> None:
    """MiniMax-M2.5 has 62 layers: 4 kernels and an all-reduce each on two GPUs, where the newest has one and that."""
    found = {}
    for engine in ("vllm@0.19.1", "vllm"):
        request = Request(model="minimax-m2.5", gpu="b200-hgx", engine=engine, parallel=Parallelism(tp=2))
        phase = run_step(assemble(request), decode(4.0, 1024.0))
        norms = [cost.op for cost in phase.costs if cost.op.name.startswith(("attn.q_", "attn.k_", "attn.qk_"))]
        found[engine] = sum(float(op.count) for op in norms)
    assert found == {"vllm@0.19.1": 62 * 5, "vllm": 62 * 2}
