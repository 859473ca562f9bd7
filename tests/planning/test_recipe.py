"""Recipes: factors multiply to the whole, Shapley values share it out, counterfactuals are of the same model."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from inferplan.answers.recipe import Recipe, UsersAtATime, cross_layer, multi_head, recipe, with_query_groups
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_model
from inferplan.devices.engine import EngineFlags
from inferplan.errors import InfeasibleError, UsageError
from inferplan.reports.recipe import recipe_report
from inferplan.traffic.requests import Lengths
from tests.cases import for_each

LOAD = UsersAtATime(users=64, prompt=512.0, output=Lengths(kind="lognormal", mean=128, spread=0.6), reserved=2048)
H100 = Request(model="llama-3.1-8b", gpu="h100-sxm")


@pytest.fixture(scope="module")
def made() -> Recipe:
    return recipe(H100, "static,bf16", ["continuous-batching", "paged-kv", "fp8", "gqa"], LOAD)


def test_the_factors_multiply_to_the_whole(made: Recipe) -> None:
    rows = made.rows()
    assert [row["ingredient"] for row in rows[1:]] == ["continuous-batching", "paged-kv", "fp8", "gqa"]
    assert math.prod(row["throughput_factor"] for row in rows[1:]) == pytest.approx(made.total)
    assert math.prod(row["shapley_throughput_factor"] for row in rows[1:]) == pytest.approx(made.total)
    for row in rows[1:]:
        low, high = row["smallest_throughput_factor"], row["largest_throughput_factor"]
        assert low * (1 - 1e-12) <= row["throughput_factor"] <= high * (1 + 1e-12)
        assert low * (1 - 1e-12) <= row["shapley_throughput_factor"] <= high * (1 + 1e-12)
    assert len(made.to_frame()) == 5


def test_kernels_that_were_chosen_are_said() -> None:
    asked = replace(H100, flags=EngineFlags(backends=(("linear", "@0.19"),)))
    made = [recipe(one, "static,bf16", ["continuous-batching"], LOAD) for one in (asked, H100)]
    said = ["linear by @0.19" in " ".join(recipe_report(one).notes) for one in made]
    assert said == [True, False]


def test_shapley_is_the_mean_over_every_order(made: Recipe) -> None:
    count = len(made.ingredients)
    logs = []
    for order in itertools.permutations(range(count)):
        before = frozenset(order[: order.index(2)])
        logs.append(math.log(made.outcomes[before | {2}].rate / made.outcomes[before].rate))
    assert made.shapley(2)[0] == pytest.approx(math.exp(sum(logs) / len(logs)))


def test_the_order_changes_the_steps_and_not_the_whole(made: Recipe) -> None:
    other = recipe(H100, "static,bf16", ["gqa", "fp8", "paged-kv", "continuous-batching"], LOAD)
    assert other.total == pytest.approx(made.total)
    assert other.rows()[1]["throughput_factor"] != pytest.approx(made.rows()[4]["throughput_factor"], rel=1e-3)


def test_static_batches_wait_for_the_longest_output() -> None:
    fixed = UsersAtATime(users=64, prompt=512.0, output=Lengths(mean=128), reserved=2048)
    even = recipe(H100, "static,bf16", ["continuous-batching"], fixed).total
    uneven = recipe(H100, "static,bf16", ["continuous-batching"], LOAD).total
    assert uneven > 1.5 * even
    assert LOAD.longest(1) == pytest.approx(128, rel=0.1)
    assert LOAD.longest(64) > 2.5 * 128


def test_counterfactuals_change_the_cache_and_little_else() -> None:
    llama = load_model("llama-3.1-8b")
    assert multi_head(llama).kv_elements_per_token == 4 * llama.kv_elements_per_token
    assert cross_layer(llama).kv_elements_per_token == llama.kv_elements_per_token // 2
    assert len(multi_head(llama).sequence) == len(llama.sequence)
    older = load_model("llama-2-7b")
    assert with_query_groups(older).kv_elements_per_token == older.kv_elements_per_token // 8
    grown = multi_head(llama).parameters["total"] - llama.parameters["total"]
    assert grown == 32 * 2 * 24 * 128 * 4096  # 24 more KV heads of 128, keys and values, in each of 32 layers
    latent = load_model("deepseek-v3")
    heads = multi_head(latent)
    assert heads.kv_elements_per_token == 61 * 128 * (192 + 128)
    assert latent.kv_elements_per_token == 61 * 576


def test_without_a_cache_everything_is_computed_again() -> None:
    small = UsersAtATime(users=4, prompt=256.0, output=Lengths(mean=64), reserved=2048)
    total = recipe(H100, "static,bf16", ["kv-cache"], small).total
    assert total > 3


def test_latency_and_throughput_can_part_ways() -> None:
    row = recipe(H100, "continuous,bf16", ["tensor-parallel:tp=2"], LOAD).rows()[1]
    assert row["tpot_factor"] < 1
    assert row["throughput_factor"] < 1  # a device: two share the work of one


def test_a_draft_is_priced() -> None:
    few = UsersAtATime(users=1, prompt=256.0, output=Lengths(mean=128), reserved=2048)
    words = ["speculative:draft=llama-3.2-1b:length=4:acceptance=0.8"]
    assert recipe(H100, "continuous,bf16", words, few).total > 1.2
    never = ["speculative:draft=llama-3.2-1b:length=4:acceptance=0.0"]
    assert recipe(H100, "continuous,bf16", never, few).total < 1


def test_free_drafts_only_widen_the_step() -> None:
    """All of three drafts accepted: four tokens from a step that reads the same weights, at most 4 times as fast."""
    few = UsersAtATime(users=1, prompt=256.0, output=Lengths(mean=128), reserved=2048)
    free = recipe(H100, "continuous,bf16", ["speculative:draft=free:length=3:acceptance=1"], few).total
    paid = recipe(H100, "continuous,bf16", ["speculative:draft=llama-3.2-1b:length=3:acceptance=1"], few).total
    assert 3 < free <= 4
    assert paid < free


@for_each(
    ("baseline", "wanted", "message"),
    [
        ("static,bf16", ["magic"], "no ingredient"),
        ("static,bf16", [], "1 to 9"),
        ("static,bf16", ["fp8", "fp8"], "different"),
        ("static,bf16,fp8", ["gqa"], "2 formats"),
        ("static", ["mla"], "no latent attention"),
        ("static", ["prefix-cache:hit=2"], "hit rate"),
        ("static", ["tensor-parallel:tp=x"], "cannot be read"),
        ("static", ["tensor-parallel:tp=3"], "does not divide"),
        ("static", ["tensor-parallel"], "lacks tp"),
        ("static", ["prefix-cache:hits=0.5"], "lacks hit; it has no hits"),
        ("static", ["fp8:hit=0.5"], "has no hit"),
        ("static", ["gqa:groups=4"], "has no groups"),
        ("static", ["continuous-batching:x"], "has no x"),
        ("static", ["speculative:draft=llama-3.2-1b"], "lacks acceptance, length"),
        ("static", ["speculative:length=4:acceptance=0.7"], "lacks draft"),
        ("static", ["speculative:draft=mtp:length=1:acceptance=0.7"], "no prediction module"),
        ("static", ["speculative:draft=qwen3-0.6b:length=1:acceptance=0.7"], "cannot draft for llama-3.1-8b"),
    ],
)
def test_mistakes_are_refused(baseline: str, wanted: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipe(H100, baseline, wanted, LOAD).rows()


def test_a_request_that_does_not_fit_is_infeasible() -> None:
    with pytest.raises(InfeasibleError):
        recipe(Request(model="llama-3.1-70b", gpu="h100-sxm"), "static,bf16", ["gqa"], LOAD).rows()


def test_what_is_named_is_missing_before() -> None:
    made = recipe(H100, "static,bf16", ["fused-attention"], LOAD)
    assert made.total >= 1
    assert assemble(H100).unfused_attention is False
