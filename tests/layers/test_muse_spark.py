"""Muse Spark against arithmetic by hand, from the sizes of its class (transformers 5.23 ``models/muse_spark``)."""

from __future__ import annotations

import json

import pytest

from inferplan.models.huggingface import model_from_config
from inferplan.models.layers import LayerContext, parse_layer
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import uniform
from inferplan.work.ops import Norm
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def spark() -> ModelSpec:
    from tests.oracle.built import config_of

    config = json.loads(json.dumps(config_of("muse_spark").to_dict(), default=str))
    return model_from_config(config, "muse-spark", "test")


def test_the_language_model_by_hand(spark):
    """62 layers: 128 query and gate heads of 64, 16 of keys; 256 experts of 4096 in 4096; 3 scales, 2 gates."""
    d, latent = 8192, 4096
    attention = 2 * d * 8192 + 2 * d * 16 * 64 + 8192 * d
    experts = 256 * 3 * latent * 4096 + 256 * d + 2 * d * latent + 2 * latent
    assert spark.parameters["total"] == 62 * (attention + experts + 3 * d + 2 * d) + 2 * 202048 * d + d
    assert spark.kv_elements_per_token == 62 * 2 * 16 * 64
    wide = [i for i, layer in enumerate(spark.sequence) if layer.mixer.mask.kind == "causal"]
    assert wide == [i for i in range(62) if (61 - i) % 4 == 0]
    assert [i for i, layer in enumerate(spark.sequence) if not layer.mixer.rotary] == wide


def test_the_tower_of_sound_by_hand(spark):
    """Patches of 16, 6, 5 and 4 samples or positions; two blocks a stage of a 7-tap convolution and a feed-forward."""
    expected, inputs = 0, 1
    for width, size in ((256, 16), (512, 6), (1024, 5), (2048, 4)):
        expected += inputs * size * width + width + width
        expected += 2 * (7 * width + width + width + 2 * 4 * width * width + 4 * width + width)
        inputs = width
    audio = next(tower for tower in spark.towers if tower.name == "audio")
    assert audio.parameters == expected + 2048 + 2048 * 8192 + 8192 + 8192


def test_norms_and_gates_of_a_layer_are_work():
    """For 10 tokens: 4 norms of the width (of ``norms``), heads before and after, experts before and after."""
    experts = {"kind": "moe", "experts": 8, "top_k": 2, "d_ff": 48, "latent": 32, "latent_norms": True}
    segment = Segment(batch=1.0, new=10.0, past=0.0)
    context = LayerContext(d_model=64, precision=uniform(), parallel=Parallelism(), segments=(segment,))
    before, behind = (op for op in parse_layer(experts).ops(context) if isinstance(op, Norm))
    assert (before.width, before.tokens, behind.width, behind.tokens) == (32, 10.0, 32, 20.0)
    (gate,) = parse_layer({"kind": "residual_gate"}).ops(context)
    assert gate.work().flop * gate.count == 2 * 10 * 64 * 3
