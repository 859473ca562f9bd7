"""A traced layer: its work by hand, its polynomials, what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from inferplan.errors import MissingFactError, UsageError
from inferplan.estimate.graph import build
from inferplan.models.huggingface.emit import to_yaml
from inferplan.models.layers import LayerContext, parse_layer
from inferplan.models.layers.traced import MONOMIALS, value
from inferplan.models.spec import ModelSpec, uncounted_notes
from inferplan.work.formats import uniform
from inferplan.work.ops import Attention, GroupedMatmul
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment, Step, decode
from tests.builders import chip, deploy
from tests.cases import for_each

LAYER: dict[str, Any] = {
    "kind": "traced",
    "tensors": [
        {"name": "qkv", "shape": [96, 64]},
        {"name": "experts.up", "shape": [8, 32, 64], "role": "experts", "active": 0.25},
        {"name": "norm", "shape": [64], "role": "base"},
    ],
    "keeps": {"per_token": 32, "window": 16, "heads": 2, "state": 12},
    "operators": [
        {"runs": "matmul", "name": "qkv", "k": 64, "n": 96},
        {"runs": "copy", "name": "kv", "write": {"bn": 32}},
        {"runs": "attention", "name": "core", "heads": 4, "kv_heads": 2, "key_dim": 8, "value_dim": 8, "mask": "window"}
        | {"size": 16},
        {"runs": "experts", "name": "experts.up", "k": 64, "n": 32, "experts": 8, "top_k": 2},
        {"runs": "product", "name": "mix", "sides": [{"b": 4}, {"n": 1}, {"1": 8}, {"n": 1, "p": 1}]},
        {"runs": "pointwise", "name": "tail", "flop": {"bn": 7}, "read": {"1": 64, "bn": 128}, "write": {"bn": 64}},
    ],
    "width": 160,
}
MODEL: dict[str, Any] = {"name": "m", "source": "test", "d_model": 64, "vocab": 100, "final_norm": False}
MODEL |= {"basis": "traced", "notes": ["traced: by hand"], "layers": [{"repeat": 3, "norms": 0, "mixer": LAYER}]}


def context(*segments: Segment) -> LayerContext:
    return LayerContext(d_model=64, precision=uniform(), parallel=Parallelism(), segments=segments)


def work(batch: Any, new: Any, past: Any) -> dict[str, tuple[float, float]]:
    """FLOP and bytes of each operator."""
    ops = parse_layer(LAYER).ops(context(Segment(batch=batch, new=new, past=past)))
    works = {op.name: op.work() for op in ops}
    return {name: (one.flop, one.bytes) for name, one in works.items()}


def test_the_work_of_a_step_is_that_of_its_operators_by_hand() -> None:
    """2 sequences of 3 tokens after 20: queries of a window of 16 see 16 keys each, and reach 15 + 3 of them."""
    found = work(2.0, 3.0, 20.0)
    assert found["traced.qkv"] == (2 * 6 * 64 * 96, 2 * (6 * 64 + 64 * 96 + 6 * 96))
    assert found["traced.kv"] == (0, 6 * 32 * (2 + 2))
    pairs, keys = 2 * 3 * 16, 2 * 18
    assert found["traced.core"] == (2 * pairs * 4 * 16, 2 * (6 * 4 * 8 + keys * 2 * 16 + 6 * 4 * 8))
    assert found["traced.mix"] == (2 * 8 * 3 * 8 * 23, 2 * 8 * (3 * 8 + 8 * 23 + 3 * 23))
    assert found["traced.tail"] == (7 * 6, 2 * (64 + 128 * 6 + 64 * 6))


def test_tokens_reach_their_experts() -> None:
    """12 rows of 6 tokens with 2 of 8 experts each; an expert is missed by all with (3/4)^6."""
    ops = parse_layer(LAYER).ops(context(Segment(batch=2.0, new=3.0, past=0.0)))
    (op,) = [op for op in ops if op.name.endswith("up")]
    assert isinstance(op, GroupedMatmul)
    assert (op.m, op.k, op.n, op.experts) == (12, 64, 32, 8)
    assert op.touched == pytest.approx(8 * (1 - 0.75**6))


def test_segments_share_matmuls_and_what_does_not_follow_the_load() -> None:
    """A prompt and decodes in one step: one matmul of all rows, attention apart, the norm's weights once."""
    segments = Segment(batch=1.0, new=40.0, past=0.0), Segment(batch=4.0, new=1.0, past=30.0)
    ops = list(parse_layer(LAYER).ops(context(*segments)))
    named = {op.name: op for op in ops}
    assert named["traced.qkv"].m == 44
    assert [op.batch for op in ops if isinstance(op, Attention)] == [1, 4]
    assert named["traced.tail"].work().bytes == pytest.approx(2 * (64 + 192 * 44))


def test_what_follows_sequences_is_an_operator_of_each_segment() -> None:
    """Latents of one prompt and of four decodes: 16 rows, and 64."""
    rows = [{"runs": "matmul", "name": "latents", "rows": {"b": 16}, "k": 8, "n": 4}]
    rows += [{"runs": "pointwise", "name": "scores", "write": {"bnn": 3}}]
    segments = Segment(batch=1.0, new=40.0, past=0.0), Segment(batch=4.0, new=2.0, past=30.0)
    ops = list(parse_layer({"kind": "traced", "operators": rows}).ops(context(*segments)))
    assert [op.work().flop for op in ops[:2]] == [2 * 16 * 8 * 4, 2 * 64 * 8 * 4]
    assert [op.work().write for op in ops[2:]] == [2 * 3 * 40 * 40, 2 * 3 * 4 * 2 * 2]


@given(st.integers(1, 9), st.integers(1, 70), st.integers(0, 90))
def test_a_grid_prices_as_its_points(batch: int, new: int, past: int) -> None:
    sizes = [np.array([float(x), x + 5.0]) for x in (batch, new, past)]
    grid, point = work(*sizes), work(float(batch), float(new), float(past))
    for name, found in point.items():
        assert [np.broadcast_to(x, 2)[0] for x in grid[name]] == pytest.approx(list(found))


def test_a_polynomial_multiplies_what_its_letters_say() -> None:
    found = {name: value({name: 1}, 3.0, 5.0, 7.0) for name in MONOMIALS}
    assert found == {"1": 1, "b": 3, "n": 5, "p": 7, "bn": 15, "bp": 21, "np": 35, "nn": 25, "bnn": 75, "bnp": 105}


def test_counts_and_cache() -> None:
    model = ModelSpec.model_validate(MODEL)
    one = 96 * 64 + 8 * 32 * 64 + 64
    assert model.parameters["total"] == 3 * one + 2 * 100 * 64
    assert model.parameters["active"] == 3 * (96 * 64 + 8 * 32 * 64 // 4 + 64) + 2 * 100 * 64
    assert (model.kv_elements_per_token, model.kv_elements_per_token_beyond_windows) == (96, 0)
    assert model.state_elements_per_sequence == 36
    assert uncounted_notes(model) == ["traced: by hand"]


def test_nothing_is_added_to_what_was_recorded() -> None:
    """Norms and residuals are among the operators of a trace: the graph adds none of its own."""
    (stage,) = build(deploy(ModelSpec.model_validate(MODEL), chip(1e12, 1e15)), decode(4.0, 10.0))
    names = [op.name for op in stage.ops]
    assert "residual" not in names
    assert "norm" not in names
    assert names.count("traced.qkv") == 1


def test_a_model_survives_its_own_file() -> None:
    behind = {"kind": "traced", "tensors": LAYER["tensors"]}
    model = ModelSpec.model_validate(MODEL | {"ends": {"ahead": LAYER, "behind": behind}})
    assert ModelSpec.model_validate(model.to_dict()) == model
    assert ModelSpec.model_validate(yaml.safe_load(to_yaml(model))) == model


@for_each("division", [{"tp": 2}, {"dp": 2}, {"cp": 2}, {"tp": 2, "pp": 3}])
def test_what_would_divide_a_layer_is_refused(division: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="divided by pipeline stages alone"):
        deploy(ModelSpec.model_validate(MODEL), chip(1e12, 1e15, link=1e9), parallel=Parallelism(**division))


def test_pipeline_stages_are_not() -> None:
    deployment = deploy(ModelSpec.model_validate(MODEL), chip(1e12, 1e15, link=1e9), parallel=Parallelism(pp=3))
    assert len(build(deployment, decode(4.0, 10.0))) == 3


def test_a_layer_without_operators_has_no_time() -> None:
    layers = [{"repeat": 2, "norms": 0, "mixer": {"kind": "traced", "tensors": LAYER["tensors"], "untimed": "why"}}]
    model = ModelSpec.model_validate(MODEL | {"layers": layers})
    with pytest.raises(MissingFactError, match="time of this traced model is not known") as error:
        build(deploy(model, chip(1e12, 1e15)), Step(segments=(Segment(batch=1.0, new=1.0, past=0.0),)))
    assert error.value.because == "why"


@for_each(
    ("field", "wrong"),
    [("rows", {"bx": 1}), ("rows", {"pp": 1}), ("runs", "magic"), ("mask", "spiral"), ("experts", 0)],
)
def test_nonsense_is_refused(field: str, wrong: Any) -> None:
    operator = {"runs": "matmul", "name": "qkv", "k": 64, "n": 96} | {field: wrong}
    with pytest.raises(ValidationError):
        parse_layer({"kind": "traced", "operators": [operator]})


def test_a_mixer_inside_is_counted_kept_run_and_written_as_itself() -> None:
    """Latent attention of Llama's place: its operators stand where the layer runs it; the rest stays the trace's."""
    mixer = {"kind": "mla", "heads": 4, "kv_lora": 16, "nope_dim": 8, "rope_dim": 4, "value_dim": 8}
    rest = {"runs": "matmul", "name": "up", "k": 64, "n": 96}
    layer = {"kind": "traced", "tensors": [{"name": "up", "shape": [96, 64]}], "mixer": mixer}
    layer |= {"operators": [{"runs": "mixer", "name": "self_attn"}, rest]}
    model = ModelSpec.model_validate(MODEL | {"layers": [{"repeat": 3, "norms": 0, "mixer": layer}]})
    assert ModelSpec.model_validate(yaml.safe_load(to_yaml(model))) == model
    own = 4 * 12 * 64 + (16 + 4) * 64 + 16 + 4 * 16 * 16 + 64 * 32
    assert sum(one.elements for one in model.layer_weights(model.sequence[0])) == 96 * 64 + own
    assert model.kv_elements_per_token == 3 * 20
    found = [op.name for op in model.sequence[0].mixer.ops(context(Segment(batch=2.0, new=1.0, past=9.0)))]
    wanted = [op.name for op in parse_layer(mixer).ops(context(Segment(batch=2.0, new=1.0, past=9.0)))]
    assert found == [*wanted, "traced.up"]
    with pytest.raises(ValidationError, match="runs the one mixer that it has"):
        parse_layer(layer | {"operators": [rest]})
