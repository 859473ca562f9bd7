"""Serving techniques on a static batch, in the head: one second a step and a tenth for each token (plain_time)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_model
from inferplan.errors import InfeasibleError, UsageError
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.run import estimate
from inferplan.models.prediction import prediction_model
from inferplan.serving.flags import Flags, rules_of, with_flags
from inferplan.serving.techniques.applied import ServedEstimate, Techniques, refusal, served_estimate
from inferplan.serving.techniques.offload import HostTier
from inferplan.serving.techniques.speculation import Speculation, acceptance_of
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.serving.plain_time import CLOSE, plain, seconds


def served(prompt: int, batch: int = 1, output: int = 11, **asked: object) -> ServedEstimate:
    load = StaticLoad(batch=float(batch), prompt=float(prompt), output=float(output))
    return served_estimate(plain(), load, Techniques(**asked))  # type: ignore[arg-type]


def test_drafts_take_their_time_and_their_memory() -> None:
    """A verification of 5 tokens in 1.5 s, a first pass of the draft over the same 5, and three of 1.1 s.

    At a = 1/2 they yield 1 + 1/2 + ... + 1/16 = 1.9375 tokens.

    The prompt of 10 takes the model 2 s, and the draft, which is as large here, 2 s more.
    """
    load = StaticLoad(prompt=10.0, output=11.0)
    twin = plain(capacity=1 << 30)
    drafting = Speculation(length=4, acceptance=0.5, draft=twin)
    found = ServedEstimate(deployment=twin, load=load, techniques=Techniques(speculation=drafting))
    assert float(found.ttft) == pytest.approx(4.0, rel=CLOSE)
    assert float(found.tpot) == pytest.approx((3 * 1.1 + 2 * 1.5) / 1.9375, rel=CLOSE)
    assert float(found.e2el) == pytest.approx(4.0 + 10 * 6.3 / 1.9375, rel=CLOSE)
    assert float(found.output_rate) == pytest.approx(11 / (4.0 + 10 * 6.3 / 1.9375), rel=CLOSE)
    alone = found.without.footprint
    assert found.footprint.draft_weights == alone.weights
    assert float(found.footprint.state) == 2 * float(alone.state) == 2 * 4 * 21
    assert float(found.footprint.total) == pytest.approx(float(alone.total) + alone.weights + 4 * 21)


def test_free_drafts_cost_their_verification() -> None:
    found = served(10, speculation=Speculation(length=4, acceptance=0.5))
    assert float(found.ttft) == pytest.approx(2.0, rel=CLOSE)
    assert float(found.tpot) == pytest.approx(1.5 / 1.9375, rel=CLOSE)


def test_what_is_cached_is_not_computed() -> None:
    """Half of 100 tokens; a quarter of 10 is two whole tokens; one token is computed at least."""
    assert float(served(100, hit_rate=0.5).ttft) == pytest.approx(seconds(50), rel=CLOSE)
    assert float(served(10, hit_rate=0.25).ttft) == pytest.approx(seconds(8), rel=CLOSE)
    assert float(served(4, hit_rate=0.999).ttft) == pytest.approx(seconds(1), rel=CLOSE)
    assert float(served(100, hit_rate=0.5).tpot) == pytest.approx(seconds(1), rel=CLOSE)


@for_each(
    ("batch", "prompt", "chunk", "steps"),
    [
        (1, 100, 30, (30, 30, 30, 10)),
        (2, 100, 60, (60, 40, 60, 40)),
        (3, 10, 25, (20, 10)),  # two whole prompts fit, not half of the third
        (3, 10, 1000, (30,)),
        (1, 100, 100, (100,)),
    ],
)
def test_chunks_are_steps(batch: int, prompt: int, chunk: int, steps: tuple[int, ...]) -> None:
    assert float(served(prompt, batch, chunk=chunk).ttft) == pytest.approx(seconds(*steps), rel=CLOSE)


def test_the_cached_part_comes_back_from_the_host() -> None:
    """50 tokens of 4 bytes at 100 bytes a second: 2 s for each of two prompts, then the other 50 tokens of both."""
    host = HostTier(capacity=200.0, bandwidth=100.0)
    assert float(served(100, 2, hit_rate=0.5, host=host).ttft) == pytest.approx(2 * 2.0 + seconds(100), rel=CLOSE)
    with pytest.raises(InfeasibleError, match="host does not hold"):
        served(102, hit_rate=0.5, host=host)
    with pytest.raises(UsageError, match="without cache hits"):
        Techniques(host=host)


def test_a_draft_leaves_room_for_fewer_requests() -> None:
    """Llama-3.1-8B drafts for the 70B on four GPUs: a quarter of its 8,030,261,248 parameters, norms on each device.

    A token takes 80 and 32 layers of 8 heads of 128, keys and values of 2 bytes, over 4 devices. Estimate and simulator
    have the same pool.
    """
    parallel = Parallelism(tp=4)
    big, small = (
        assemble(Request(model=name, gpu="h200-sxm", parallel=parallel)) for name in ("llama-3.1-70b", "llama-3.1-8b")
    )
    load = StaticLoad(batch=1.0, prompt=8000.0, output=192.0)
    drafting = Speculation(length=4, acceptance=0.7, draft=small)
    drafted = served_estimate(big, load, Techniques(speculation=drafting)).footprint
    bare = estimate(big, load).footprint
    norms = 65 * 4096
    weights = ((8_030_261_248 - norms) / 4 + norms) * 2
    token = (80 + 32) * 8 * 128 * 2 * 2 / 4
    assert drafted.draft_weights == pytest.approx(weights, rel=1e-12)
    assert drafted.kv_per_token == token
    assert drafted.kv_pool == pytest.approx(bare.kv_pool - weights, rel=1e-12)
    assert float(drafted.max_batch()) == (bare.kv_pool - weights) // (8192 * token) < float(bare.max_batch())
    rules = rules_of(with_flags(big, Flags()), Flags(), 8000.0, 8192.0, small)
    assert rules.capacity == pytest.approx((bare.kv_pool - weights) / token, rel=1e-9)


def test_acceptance_from_the_length_that_engines_report() -> None:
    """Leviathan et al., 2211.17192, eq. 1: (1 - 0.7^5)/0.3 = 2.7731, (1 - 0.8^9)/0.2 = 4.3289; all accepted: g + 1."""
    assert acceptance_of(2.7731, 4) == pytest.approx(0.7, abs=1e-5)
    assert acceptance_of(4.32891136, 8) == pytest.approx(0.8, abs=1e-9)
    assert acceptance_of(1.0, 3) == pytest.approx(0.0, abs=1e-9)
    assert acceptance_of(4.0, 3) == pytest.approx(1.0, abs=1e-6)
    assert Speculation.of_length(2.7731, 4, branches=3).tokens == pytest.approx(2.7731, rel=1e-9)
    for impossible in (0.9, 4.1, float("nan")):
        with pytest.raises(UsageError, match="yields 1 to 4"):
            acceptance_of(impossible, 3)


def test_a_prediction_module_drafts() -> None:
    """DeepSeek-V3's module: "11.5B unique parameters", embedding and head of 0.9B each shared with the model; 1.5B of
    them active, the head among these (README_WEIGHTS.md, which leaves the projection of 14,336 x 7,168 out of both).

    With both tables, as the checkpoint stores it, it is the 14B of the 685B (README).
    """
    deepseek = load_model("deepseek-v3")
    draft, table = prediction_model(deepseek), 129280 * 7168
    projection = sum(weight.elements * count for weight, count in draft.weights() if weight.name == "joined")
    assert projection == 2 * 7168 * 7168
    assert draft.parameters["total"] - projection == pytest.approx(11.5e9, rel=0.005)
    assert draft.parameters["active"] - projection + table == pytest.approx(1.5e9, rel=0.02)
    assert draft.parameters["total"] + 2 * table == deepseek.mtp_parameters == pytest.approx(14e9, rel=0.04)
    assert deepseek.parameters["total"] + deepseek.mtp_parameters == pytest.approx(685e9, rel=0.001)
    borrowing = prediction_model(load_model("glm-5"))
    assert not [weight for weight, _ in borrowing.weights() if weight.name in ("embedding", "head")]
    assert borrowing.parameters["total"] == load_model("glm-5").mtp_parameters
    with pytest.raises(UsageError, match="no prediction module"):
        prediction_model(load_model("llama-3.1-8b"))


def test_a_prediction_module_gains_and_costs() -> None:
    """One module of 61 layers: a token of two steps of 1.8 tokens costs a little more than 1/1.8 of a step."""
    from inferplan.catalog.drafts import draft_alone

    request = Request(model="deepseek-v3", gpu="h200-sxm", parallel=Parallelism(tp=8))
    served_by, draft = assemble(request), draft_alone(request, "mtp").over(request.parallel).whole
    load = StaticLoad(prompt=1024.0, output=64.0)
    asked = Techniques(speculation=Speculation.of_length(1.8, 1, draft=draft))
    found, plainly = served_estimate(served_by, load, asked), estimate(served_by, load)
    assert 1 / 1.8 < float(found.tpot / plainly.tpot) < 0.75
    assert float(plainly.ttft) < float(found.ttft) < 1.1 * float(plainly.ttft)
    alone = Footprint(deployment=draft, batch=1.0, prompt=1024.0, context=1088.0).stage.weights
    divided, whole = 11.5e9 / 8, 2 * 2 * 7168 * 7168  # fp8 over eight ranks; the projection in bf16 on each
    assert found.footprint.draft_weights == alone == pytest.approx(divided + whole, rel=0.02)


def test_what_an_engine_would_not_run() -> None:
    """Without cut prompts 5,000 tokens are more than a step of 4,096; 65 sequences more than 64 slots."""
    whole = plain(chunked_prefill=False)
    assert "5,000 tokens are more than max_num_batched_tokens 4,096" in refusal(whole, StaticLoad(prompt=5000.0))
    assert not refusal(whole, StaticLoad(prompt=4096.0)) and not refusal(plain(), StaticLoad(prompt=5000.0))
    assert "at most 64 sequences" in refusal(plain(), StaticLoad(batch=65.0))
    assert not refusal(plain(), StaticLoad(batch=64.0))
    spread = replace(plain(parallel=Parallelism(dp=2)))
    assert not refusal(spread, StaticLoad(batch=128.0)) and refusal(spread, StaticLoad(batch=129.0))
