"""Latent attention in the cheaper of its two forms, and the indexer with a format of its own; values by hand."""

from __future__ import annotations

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build
from inferplan.estimate.memory import Footprint
from inferplan.estimate.roofline import price
from inferplan.models.layers import LayerContext, parse_layer
from inferplan.work.formats import uniform
from inferplan.work.ops import Attention, IndexSelect, Matmul, Op, TopK
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment, Step
from tests.cases import for_each

V3 = {"heads": 128, "q_lora": 1536, "kv_lora": 512, "nope_dim": 128, "rope_dim": 64, "value_dim": 128}
V32 = V3 | {"indexer": {"heads": 64, "head_dim": 128, "top_k": 2048, "format": "fp8-token-head"}}


def ops(layer: dict[str, object], *segments: Segment, **given: object) -> list[Op]:
    context = LayerContext(d_model=7168, precision=uniform(), parallel=Parallelism(), segments=segments, **given)
    return list(parse_layer({"kind": "mla", **layer}).ops(context))


def segment(new: float, past: float, batch: float = 1.0) -> Segment:
    return Segment(batch=batch, new=new, past=past)


def forms(layer: dict[str, object], *segments: Segment, **given: object) -> list[bool]:
    """Whether each attention that runs is absorbed."""
    return [op.shared_value for op in ops(layer, *segments, **given) if isinstance(op, Attention)]


def deploy(model: str, gpu: str = "h200-sxm", **wanted: object) -> Deployment:
    return assemble(Request(model=model, gpu=gpu, **wanted))


def seconds(deployment: Deployment, *segments: Segment, starts: str = "") -> float:
    (stage,) = build(deployment, Step(segments=segments))
    costs = (price(op, deployment.hardware, deployment.calibration) for op in stage.ops if op.name.startswith(starts))
    return sum(float(cost.total) for cost in costs)


def test_the_form_changes_where_both_take_the_same_arithmetic() -> None:
    # absorbed - expanded = pairs*(2*512 - 256) - past*512*256, pairs = new*past + new*(new + 1)/2: at past 10^6 the
    # two are equal at new = 131072/768 = 170.7
    assert forms(V3, segment(170.0, 1e6)) == [True]
    assert forms(V3, segment(171.0, 1e6)) == [False]
    # at past 100: 768*(50*100 + 50*51/2) = 4,819,200 < 13,107,200 = 100*131072 < 768*(110*100 + 110*111/2)
    assert forms(V3, segment(50.0, 100.0)) == [True]
    assert forms(V3, segment(110.0, 100.0)) == [False]
    assert forms(V3, segment(4096.0, 0.0)) == [False]
    assert forms(V3, segment(1.0, 4096.0)) == [True]


@for_each("ideal", [True, False])
def test_one_more_token_never_jumps(ideal: bool) -> None:
    deployment = deploy("deepseek-v3", ideal=ideal, parallel=Parallelism(tp=16))
    times = np.array([seconds(deployment, segment(float(new), 8192.0, 32.0)) for new in range(1, 400)])
    # time is at most proportional to the tokens: one more of n adds one part in n, and where it begins a tile of the
    # kernels (128 rows of a prompt, 64 rows of 8 tokens' heads) no more than that tile
    news = np.arange(1, 399)
    grown, rows = np.diff(times) / times[:-1], np.where(news % 128 == 0, 128, np.where(news % 8 == 0, 8, 1))
    assert np.all(grown >= 0.0)
    assert np.all(grown <= (1.0 if ideal else rows) / news + 0.001)
    assert np.all(grown[news >= 8] <= 1 / 8)  # attention alone is cut in tiles, and it is a part of the step


def test_a_grid_of_both_forms_is_priced_like_its_points() -> None:
    news, pasts = np.array([17.0, 160.0, 400.0, 3000.0]), np.array([64.0, 4096.0, 1e5])
    for layer in (V3, V32):
        for masked in (True, False):
            grid = ops(layer, segment(news[:, None], pasts[None, :]), masked=masked)
            for i, new in enumerate(news):
                for j, past in enumerate(pasts):
                    point = ops(layer, segment(new, past), masked=masked)
                    for what in ("flop", "bytes"):
                        whole, one = (
                            sum((getattr(op.work(), what) * op.count for op in listed), start=0.0)
                            for listed in (grid, point)
                        )
                        assert np.broadcast_to(whole, (4, 3))[i, j] == pytest.approx(one)


def test_alternatives_are_listed_with_a_count_of_nothing() -> None:
    lists = [
        [(op.name, type(op)) for op in ops(V32, segment(1.0, 9.0), segment(new, past), alternatives=True)]
        for new, past in ((20.0, 0.0), (20.0, 1e4), (4096.0, 0.0), (1e5, 0.0))
    ]
    assert all(one == lists[0] for one in lists)


def test_index_keys_are_132_bytes_whatever_the_cache() -> None:
    # DeepSeek-V3.2: 61 layers of 512 + 64 latents and 128 fp8 with a 4-byte scale
    for kv, size in (("bf16", 61 * (576 * 2 + 132)), ("fp8", 61 * (576 + 132)), ("fp8-ds-mla", 61 * (656 + 132))):
        deployment = deploy("deepseek-v3.2", parallel=Parallelism(tp=8), roles=(("kv", kv),))
        assert Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0).kv_per_token == pytest.approx(size)
    # GLM-5.2: 78 layers, of which indexer_types names 3 + 18 full ones
    deployment = deploy("glm-5.2", parallel=Parallelism(tp=8), roles=(("kv", "bf16"),))
    held = Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0).kv_per_token
    assert held == pytest.approx(78 * 576 * 2 + 21 * 132)


def test_scores_run_in_fp8_where_the_device_has_it() -> None:
    prompt = segment(65536.0, 0.0)
    flop = 61 * 2 * (65536 * 65537 / 2) * 64 * 129
    ideal = {"ideal": True, "parallel": Parallelism(tp=8)}
    assert seconds(deploy("deepseek-v3.2", **ideal), prompt, starts="attn.index.select") == pytest.approx(
        flop / 1978.9e12, rel=1e-3
    )
    old = deploy("deepseek-v3.2", "a100-80gb-sxm", **ideal, quant="bf16")
    assert seconds(old, prompt, starts="attn.index.select") == pytest.approx(flop / 312e12, rel=1e-3)


def test_segments_share_the_projections_of_the_indexer() -> None:
    decodes, prompt = segment(1.0, 4000.0, 32.0), segment(1024.0, 0.0)
    shared = [op for op in ops(V32, decodes, prompt) if isinstance(op, Matmul) and op.name.startswith("attn.index")]
    assert [(op.name, op.m) for op in shared] == [
        ("attn.index.q", 1056.0),
        ("attn.index.k", 1056.0),
        ("attn.index.weights", 1056.0),
    ]


def test_below_top_k_sparse_is_dense_and_nothing_is_scored() -> None:
    dense, beyond = ops(V32, segment(2048.0, 0.0)), ops(V32, segment(2049.0, 0.0))
    assert not [op for op in dense if isinstance(op, (IndexSelect, TopK))]
    assert [type(op) for op in beyond if isinstance(op, (IndexSelect, TopK))] == [IndexSelect, TopK]
    assert (forms(V32, segment(2048.0, 0.0)), forms(V32, segment(2049.0, 0.0))) == ([False], [True])
    # an ideal kernel masks the expanded form until S/2*320 = 2048*1088 (less a triangle): about 13.9 thousand tokens
    assert forms(V32, segment(12e3, 0.0), masked=True) == [False]
    assert forms(V32, segment(15e3, 0.0), masked=True) == [True]
    (core,) = [op for op in beyond if isinstance(op, Attention)]
    assert (core.kernel, core.mask.size) == ("mla.sparse", 2048)
    assert core.work().flop == 2 * (2048 * 2049 / 2 + 2048) * 128 * (576 + 512)


def test_sparse_attention_is_faster_at_long_context_where_ranks_share_no_indexer() -> None:
    """DeepSeek serves attention data parallel; with tensor parallelism every rank scores with all index heads."""
    division = Parallelism(dp=8, ep=8)
    dense, sparse = (deploy(f"deepseek-v{name}", ideal=True, parallel=division) for name in ("3", "3.2"))

    def faster(new: float | None, context: float, batch: float) -> float:
        step = segment(context, 0.0, batch) if new is None else segment(new, context, batch)
        return seconds(dense, step) / seconds(sparse, step)

    assert [faster(None, length, 8.0) > least for length, least in ((32768.0, 1.3), (131072.0, 2.0))] == [True, True]
    assert [faster(1.0, length, 256.0) > least for length, least in ((32768.0, 1.5), (131072.0, 2.0))] == [True, True]
    assert faster(None, 131072.0, 8.0) < 4.0 and faster(1.0, 131072.0, 256.0) < 4.0


@for_each("engine", ["none", "vllm", "sglang"])
def test_a_compressed_cache_keeps_windows_and_entries(engine: str) -> None:
    """DeepSeek-V4-Flash at 8,448 tokens: 128 keys of 448 elements in fp8 and 64 rotary ones in bf16 in 43 layers; such
    an entry and an index key of 132 B for each 4 tokens in 21 of them, an entry for each 128 in 20; what waits for its
    entry in fp32."""
    deployment = deploy("deepseek-v4-flash", engine=engine)
    stage = Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0).stage
    key = 448 + 2 * 64
    entries = 21 * (8448 // 4) * (key + 132) + 20 * (8448 // 128) * key
    waiting = 4 * (21 * (6 * 4 - 4) * (512 + 128) + 20 * 2 * 127 * 512)
    assert float(stage.held(8448.0)) == 43 * 128 * key + entries + waiting
    assert float(stage.held(8450.0)) == float(stage.held(8448.0))
    assert float(stage.held(8452.0)) == float(stage.held(8448.0)) + 21 * (key + 132)
