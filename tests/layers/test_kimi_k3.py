"""Kimi-K3: attention residuals, gates of full rank, latent experts; against the tensors that its files hold."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_model
from inferplan.errors import SpecError
from inferplan.estimate.graph import build_rank
from inferplan.estimate.stage_memory import StageMemory
from inferplan.models.huggingface import import_path, model_from_config
from inferplan.models.layers import LayerContext, parse_layer
from inferplan.work.formats import uniform
from inferplan.work.ops import Collective, Elementwise
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment, decode

REPORT = "https://github.com/gogongxt/python/blob/a0d3871ab6f58cbda18c00a8b8c79f84fcc043eb/scripts/models/kimi_k3.md"
D, INNER, EXPERTS, LATENT = 7168, 12288, 896, 3584
DELTA = {
    "q, k, v": 3 * INNER * D,
    "convolutions": 3 * INNER * 4,
    "f_a, f_b": 128 * D + INNER * 128,
    "b": 96 * D,
    "A_log": 96,  # 128 in the files
    "dt_bias": INNER,
    "o_norm": 128,
}
LATENT_ATTENTION = {
    "q_a": 1536 * D + 1536,
    "q_b": 18432 * 1536,
    "kv_a": 576 * D + 512,
    "kv_b": 24576 * 512,
}
EVERY = {"g": INNER * D, "o": D * INNER, "norms": 2 * D, "residuals": 2 * 2 * D}
SPARSE = {
    "experts": 3 * EXPERTS * 3072 * LATENT,
    "latent": 2 * LATENT * D + LATENT,
    "router": EXPERTS * D,
    "shared": 3 * 6144 * D,
}
OUTSIDE = 2 * 163840 * D + D + 2 * D
"""Shapes as the report prints them: 69 layers of the first, 24 of the second, 93 of the third, 92 of experts."""


def context(tp: int = 1, tokens: float = 100.0) -> LayerContext:
    segment = Segment(batch=1.0, new=tokens, past=0.0)
    return LayerContext(d_model=D, precision=uniform(), parallel=Parallelism(tp=tp), segments=(segment,))


def test_every_tensor_of_the_files_is_counted() -> None:
    model = load_model("kimi-k3")
    text = 69 * sum(DELTA.values()) + 24 * sum(LATENT_ATTENTION.values()) + 93 * sum(EVERY.values())
    text += 92 * sum(SPARSE.values()) + 3 * 33792 * D + OUTSIDE
    assert model.parameters["total"] == text
    assert model.published is not None and model.published.source == REPORT
    buffers = 92 * EXPERTS + 69 * (128 - 96)
    packed = 92 * SPARSE["experts"]
    stored = text + buffers - packed + packed // 2 + packed // 32 + model.tower_parameters
    assert stored == 1_503_647_073_024  # two of MXFP4 in a byte, and a scale for 32 of them
    assert model.checkpoint_bytes / 2**30 == pytest.approx(1453.66, abs=0.02)  # convolutions are kept in fp32 there
    active = model.parameters["active"] - model.parameters["embedding"]
    assert round(active / 1e9) == 104  # the model card


def test_the_catalogue_is_the_config_of_the_release(shared: Path) -> None:
    found = import_path(shared / "model_configs" / "real" / "moonshotai--Kimi-K3.json").model
    filed = load_model("kimi-k3")
    for name in ("layers", "towers", "native", "max_context", "vocab"):
        assert getattr(found, name) == getattr(filed, name), name


def test_blocks_are_those_of_a_walk_through_the_layers() -> None:
    """``KimiDecoderLayer`` walked with a list: a snapshot every 12 layers, after the first mixture of the layer."""
    banked: list[int] = []
    walked, ours = [], []
    for index, layer in enumerate(load_model("kimi-k3").sequence):
        sites = [len(banked) + 1] if banked else []
        if index % 12 == 0:
            banked.append(index)
        walked.append([*sites, len(banked) + 1])
        (residual,) = layer.extras
        ops = list(residual.ops(context()))
        ours.append([op.reads for op in ops if isinstance(op, Elementwise) and op.name == "residual.mix"])
    assert ours == walked
    assert banked == [0, 12, 24, 36, 48, 60, 72, 84]


def test_a_mixture_reads_its_sources_once() -> None:
    layer = parse_layer({"kind": "attention_residual", "blocks": 2, "finishes": True})
    first, store, second = layer.ops(context(tokens=10.0))
    assert [op.work().flop for op in (first, second)] == [6 * 2 * D * 10, 6 * 3 * D * 10]
    assert [op.work().bytes for op in (first, store, second)] == [2 * n * D * 10 for n in (3, 2, 4)]
    assert not first.fusible  # nothing keeps the sums of blocks on the chip


def test_the_first_layer_reads_the_embedding_alone() -> None:
    layer = parse_layer({"kind": "attention_residual", "blocks": 1, "finishes": True})
    assert Counter(op.name for op in layer.ops(context())) == {"residual.store": 1, "residual.mix": 1}


def test_sums_of_latent_experts_meet_ahead_of_their_norm() -> None:
    """Shares of a sum cannot be normalised: ranks add up 3,584 routed and 7,168 shared columns, and project then."""
    experts = {"kind": "moe", "experts": 8, "top_k": 2, "d_ff": 64, "latent": LATENT, "latent_sum_norm": True}
    ops = list(parse_layer(experts | {"shared_d_ff": 128}).ops(context(tp=2)))
    names = [op.name for op in ops]
    reduce, norm, out = (names.index(f"ffn.{name}") for name in ("all_reduce", "latent_norm", "latent_out"))
    assert reduce < norm < out and names.count("ffn.all_reduce") == 1
    alone = parse_layer(experts).ops(context(tp=2))
    sums = [[op.elements for op in some if isinstance(op, Collective)] for some in (ops, alone)]
    assert sums == [[100 * (LATENT + D)], [100 * LATENT]]


def test_a_pipeline_sends_the_sums_of_blocks_too() -> None:
    """The second of three stages ends after layer 61, in the sixth block: the stream and six sums."""
    deployment = assemble(Request(model="kimi-k3", gpu="b300-hgx", parallel=Parallelism(tp=4, pp=3)))
    stages = build_rank(deployment, decode(8.0, 100.0))
    sent = [
        [op.elements for op in stage.ops if isinstance(op, Collective) and op.name == "pipeline.send"]
        for stage in stages
    ]
    assert sent == [[8 * D * (1 + 3)], [8 * D * (1 + 6)], []]


def test_activations_hold_the_sums_of_blocks() -> None:
    deployment = assemble(Request(model="kimi-k3", gpu="b300-hgx", parallel=Parallelism(tp=8)))
    model = deployment.model
    bare = [layer.model_copy(update={"extras": []}) for layer in model.sequence]
    without = replace(deployment, model=model.model_copy(update={"layers": bare}))
    widths = [
        StageMemory(deployment=one, layers=one.model.sequence, start=0, first=True, last=True).live_width
        for one in (deployment, without)
    ]
    assert widths[0] - widths[1] == 8 * D


def test_blocks_of_no_layers_are_refused(shared: Path) -> None:
    path = shared / "model_configs" / "real" / "moonshotai--Kimi-K3.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["text_config"]["attn_res_block_size"] = 0
    with pytest.raises(SpecError, match="attn_res_block_size"):
        model_from_config(config, "k3", "test")


def test_gates_of_both_kinds_are_one_too_many() -> None:
    with pytest.raises(ValueError, match="full_gates"):
        parse_layer({"kind": "kimi_delta", "heads": 4, "head_dim": 8, "full_gates": True, "full_output_gate": True})
