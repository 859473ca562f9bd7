"""One pass of an encoder: FLOP counted by hand, and what follows from nothing being generated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import UsageError
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from tests.cases import for_each
from tests.test_encoding import bert


def deployment(gpu="h100-sxm", model=None, **request):
    made = model or bert()
    return assemble(Request(model="bert", gpu=gpu, **request), model_loader=lambda _: made)


def test_the_flop_of_a_pass_of_512_tokens_by_hand():
    """12 layers: four matrices of 768 x 768, two of 768 x 3072, and 512 x 512 scores of 12 heads, times values."""
    linear = 2 * 512 * (4 * 768 * 768 + 2 * 768 * 3072)
    scores = 2 * 512 * 512 * 12 * (64 + 64)
    pooler = 2 * 768 * 768
    assert (linear, scores, pooler) == (7_247_757_312, 805_306_368, 1_179_648)
    phase = estimate(deployment(), StaticLoad(prompt=512.0)).prefill
    by_hand = 12 * (linear + scores) + pooler
    matmuls = sum(
        cost.op.work().flop * cost.op.count for cost in phase.costs if cost.op.kind in ("matmul", "attention")
    )
    assert matmuls == by_hand == 96_637_943_808
    assert phase.flop == pytest.approx(by_hand, rel=2e-3)  # norms, residuals and activations are the rest


def test_no_cache_is_written_and_no_logits_are_drawn():
    names = {cost.op.name for cost in estimate(deployment(), StaticLoad(prompt=512.0)).prefill.costs}
    assert "attn.core" in names and "head.pooler.0" in names
    assert not names & {"attn.kv_write", "head", "sampling"}
    masked = bert(heads=[{"name": "predictions", "rows": "token", "vocabulary": True}])
    costs = estimate(deployment(model=masked), StaticLoad(prompt=512.0)).prefill.costs
    (head,) = [cost.op for cost in costs if cost.op.name == "head"]
    assert head.work().flop == 2 * 512 * 768 * 30522
    assert "sampling" not in {cost.op.name for cost in costs}


def test_the_whole_context_is_for_the_prompt():
    found = estimate(deployment(), StaticLoad(prompt=512.0))
    assert found.footprint.state == 0
    assert found.footprint.kv_per_token == 0
    assert found.e2el == found.ttft
    assert np.isnan(found.tpot)
    assert estimate(deployment(), StaticLoad(usual=True)).load.prompt == 512
    with pytest.raises(UsageError, match="513 tokens"):
        estimate(deployment(), StaticLoad(prompt=513.0))


@for_each("load", [StaticLoad(prompt=64.0, output=7.0), StaticLoad(kv_cache=False), StaticLoad(all_logits=True)])
def test_what_only_generation_has_is_refused(load):
    with pytest.raises(UsageError, match=r"generates nothing|a model with an encoder"):
        estimate(deployment(), load)


@for_each("asked", [{"roles": (("kv", "fp8"),)}, {"quant": "w8a8kv8"}])
def test_a_format_of_keys_and_values_is_refused(asked):
    with pytest.raises(UsageError, match="keeps no keys and values"):
        deployment(**asked)


def test_weights_in_fp8_leave_the_head_as_it_is():
    wide, narrow = (estimate(deployment(quant=quant), StaticLoad(prompt=64.0)).footprint for quant in (None, "fp8"))
    layers = 12 * (4 * 768 * 768 + 2 * 768 * 3072)
    assert wide.weights == 2 * 109_482_240
    assert wide.weights - narrow.weights == pytest.approx(layers, rel=0.01)  # scales are the rest


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 64), st.integers(1, 512), st.sampled_from(["l4", "h100-sxm", "mi300x"]), st.sampled_from([1, 2, 4])
)
def test_two_requests_are_never_faster_than_one_nor_dearer_than_two(batch, prompt, gpu, tp):
    from inferplan.work.parallel import Parallelism

    where = deployment(gpu, parallel=Parallelism(tp=tp), ideal=True)
    one, more, two = (
        estimate(where, StaticLoad(batch=float(size), prompt=float(prompt))) for size in (batch, batch + 1, 2 * batch)
    )
    assert one.ttft <= more.ttft <= two.ttft <= 2 * one.ttft * (1 + 1e-9)
    assert two.prefill.flop == pytest.approx(2 * one.prefill.flop)
    assert two.footprint.state == one.footprint.state == 0
