"""Rows of large services: ranks, pools, drafts, percentiles, watts (InferenceX, DeepSeek-R1)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.answers.power import prompt_pieces
from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import UsageError
from inferplan.estimate.phase import decode_cycle, run_step
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import Requests
from inferplan.validation.deploy import deployment_of, drafts_of, prompts_of
from inferplan.validation.importers import read_file
from inferplan.validation.predict import Prediction, _bands, _figures, row_options
from inferplan.validation.rows import Measured, Row, row_of
from inferplan.validation.run import Pricing, price_rows
from inferplan.validation.score import Scored, by, score, statistics
from inferplan.work.ops import Collective, Exchange
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment, Step
from tests.cases import for_each

NODE = {
    "model": "DeepSeek-R1",
    "gpu": "h200-sxm",
    "engine": "trtllm",
    "weights": "fp8-block",
    "experts": "fp8-block",
    "kv": "fp8",
    "isl": "8192",
    "osl": "1024",
    "concurrency": "64",
    "tp": "8",
    "ep": "8",
    "decode_ranks": "8.0",
    "requests": "640",
    "length_ratio_min": "0.8",
    "warmup_requests": "128",
    "workers": "1",
    "disaggregated": "0",
    "max_num_batched_tokens": "8320.0",
    "memory_fraction": "0.75",
    "dp_attention": "1",
    "campaign": "inferencex",
    "ttft_median_ms": "3385.83",
    "ttft_p99_ms": "16363.55",
    "tpot_median_ms": "49.09",
    "tpot_p99_ms": "52.4833",
}
"""Row ix0749 of the campaign (serving_inferencex.csv): one node of H200, attention-DP over 8."""
RACK = {
    "model": "DeepSeek-R1",
    "gpu": "gb200",
    "engine": "trtllm",
    "weights": "fp8-block",
    "experts": "fp8-block",
    "kv": "fp8",
    "isl": "1024",
    "osl": "1024",
    "concurrency": "1127",
    "disaggregated": "1",
    "campaign": "inferencex",
    "tp": "32",
    "ep": "32",
    "dp_attention": "1",
    "workers": "1",
    "decode_ranks": "32.0",
    "redundant_experts": "288",
    "prefill_tp": "8",
    "prefill_ep": "8",
    "prefill_dp_attention": "1",
    "prefill_workers": "1",
    "prefill_ranks": "8.0",
    "decode_batch_per_rank": "64",
    "tpot_median_ms": "19.44",
}
"""As rows of a rack are labelled."""
_EXCHANGES = ("ffn.dispatch", "ffn.combine")


def row(facts: dict[str, str], **changes: str) -> Row:
    return row_of("here", {**facts, **changes}, {})


def test_ranks_are_data_parallel_attention_or_tensor_parallel() -> None:
    spread, sliced = row(NODE).run, row(NODE, dp_attention="0", ep="1").run
    assert spread is not None and (spread.tp, spread.dp, spread.ep, spread.devices) == (1, 8, 8, 8)
    assert sliced is not None and (sliced.tp, sliced.dp, sliced.ep, sliced.devices) == (8, 1, 1, 8)
    assert (spread.form, sliced.form) == ("aggregated, attention-DP", "aggregated")


def test_pools_have_divisions_and_experts_of_their_own() -> None:
    run = row(RACK).run
    assert run is not None and run.prefill is not None
    assert (run.dp, run.ep, run.slots, run.spread.slots) == (32, 32, 64, 288)
    assert (run.prefill.workers, run.prefill.dp, run.prefill.ep, run.devices) == (1, 8, 8, 40)
    decodes, _ = deployment_of(run)
    prompts = prompts_of(run, decodes)
    assert decodes.parallel.redundant == 32  # 288 places for the 256 experts of DeepSeek-R1
    assert prompts is not None and prompts.parallel == Parallelism(dp=8, ep=8)


def test_a_run_of_pools_has_their_workers_and_flags() -> None:
    changes = {"prefill_workers": "3", "prefill_max_num_tokens": "4096", "workers": "2", "warmup_requests": "7"}
    run = row(RACK, **changes).run
    assert run is not None and run.prefill is not None
    options = row_options(run, deployment_of(run)[0])
    fleet = options.fleet
    assert (options.warmup, fleet.prefill, fleet.decode) == (7, 3, 2)
    assert fleet.prefill_deployment is not None and fleet.prefill_deployment.parallel == Parallelism(dp=8, ep=8)
    alone = row(NODE).run
    assert alone is not None
    assert row_options(alone, deployment_of(alone)[0]) == Options(warmup=128)


def test_figures_of_a_run_by_hand() -> None:
    """100 requests of 0.01 to 1 s: numpy's percentiles lie between the two that a rank falls on. 64 + 32 tokens a
    second on 8 GPUs of prompts and 32 that decode are 2.4 a GPU, and 1 of an output for each that decodes."""
    run = row(RACK).run
    assert run is not None and (run.devices, run.decoding_devices) == (40, 32)
    seconds = np.arange(1, 101) / 100
    result: Any = SimpleNamespace(
        ttft=seconds, tpot=seconds[:0], e2el=10 * seconds, output_rate=32.0, input_rate=64.0, band=_BANDS.get
    )
    found = _figures(result, run)
    assert {name: value for (metric, name), value in found.items() if metric == "ttft"} == pytest.approx(
        {"mean": 0.505, "median": 0.505, "p90": 0.901, "p95": 0.9505, "p99": 0.9901}
    )
    assert found["e2el", "p99"] == pytest.approx(9.901) and ("tpot", "mean") not in found
    rates = {name: found[name, "mean"] for name in ("rate", "throughput", "output")}
    assert rates == {"rate": 32.0, "throughput": 2.4, "output": 1.0}
    assert _bands(result) == {"ttft": pytest.approx((0.5 * 0.505, 2 * 0.505))}  # no request has a TPOT, e2el no band


_BANDS = {"ttft": (0.5, 2.0), "tpot": (0.9, 1.1)}


def test_a_label_that_is_not_the_ranks_says_nothing_of_experts() -> None:
    told = row(RACK, tp="1", ep="1", engine="sglang", gpu="h200-sxm", redundant_experts="")
    assert told.run is not None and (told.run.dp, told.run.ep) == (32, 32)
    assert any("ep not labelled" in note for note in told.notes)


def test_workers_that_are_not_known_are_refused() -> None:
    assert row(RACK, workers="0").refused == "disaggregated, and the number of workers of a pool is not known"


def test_drafts_are_the_models_own_head_accepted_as_was_measured() -> None:
    run = row(NODE, dp_attention="0", ep="1", speculation="mtp", draft_tokens="3.0").run
    assert run is not None and run.form == "aggregated, MTP"
    drafts = drafts_of(run, deployment_of(run)[0])
    assert drafts.tokens == pytest.approx(2.44)  # LMSYS, 2025-07-17: MTP with windows of 4 tokens
    assert (drafts.width, drafts.draft is not None) == (4, True)


@for_each(("spread", "drafted"), [("0", 3), ("1", 1)])
def test_drafts_that_are_not_stated_are_those_of_the_scripts(spread: str, drafted: int) -> None:
    told = row(NODE, dp_attention=spread, speculation="mtp")
    assert told.run is not None and told.run.draft_tokens == drafted
    assert any("_trt_mtp.sh" in note for note in told.notes)


def test_what_the_run_script_sets_stands_in_for_the_table() -> None:
    told = row(NODE, engine="sglang", dp_attention="0", ep="1")
    assert told.run is not None and told.run.kv == "auto"  # dsr1_fp8_h200.sh sets no --kv-cache-dtype
    assert any("dsr1_fp8_h200.sh" in note for note in told.notes)
    other = row(NODE, engine="sglang", dp_attention="0", ep="1", campaign="my own")
    assert other.run is not None and other.run.kv == "fp8"


@for_each(
    ("changes", "budget"),
    [
        ({"concurrency": "64", "date": "2025-11-02"}, 1152),
        ({"concurrency": "128", "date": "2025-11-02"}, 1216),
        ({"concurrency": "256", "date": "2025-11-02", "gpu": "b200-hgx", "dp_attention": "1"}, 1344),
        ({"concurrency": "8", "date": "2026-01-14"}, 1152),
        ({"concurrency": "64", "date": "2026-01-28"}, 8192),
        ({"concurrency": "64"}, 8192),  # of no day
        ({"concurrency": "32", "speculation": "mtp"}, 1216),
        ({"concurrency": "256", "isl": "8192", "speculation": "mtp"}, 9280),
        ({"concurrency": "256", "dp_attention": "1", "speculation": "mtp"}, 1152),
        ({"concurrency": "32", "speculation": "mtp", "isl": "many"}, None),
    ],
)
def test_budgets_that_scripts_compute(changes: dict[str, str], budget: int | None) -> None:
    """Rows without drafts: as the campaign's table of means states them (serving.csv, TensorRT-LLM, DeepSeek-R1). With
    drafts: ``$(( ((MTP+1)*MAX_BATCH_SIZE+ISL+64+63)/64*64 ))`` by hand, 32 places of 4 tokens are 128, 256 users over 8
    ranks 64 tokens."""
    facts = {"isl": "1024", "dp_attention": "0", "ep": "1", "max_num_batched_tokens": "8192", "date": ""}
    run = row(NODE, **(facts | changes)).run
    assert (run and run.token_budget) == budget


@for_each(("weights", "ranks", "in_order"), [("fp8-block", 32, True), ("fp8-block", 48, False), ("nvfp4", 48, True)])
def test_recipes_without_a_balancer_keep_copies_in_order(weights: str, ranks: int, in_order: bool) -> None:
    """--init-expert-location was given for 48 ranks of decodes in fp8 alone, --enable-eplb never."""
    told = row(
        RACK, engine="sglang", weights=weights, experts=weights, decode_ranks=str(ranks), tp=str(ranks), ep=str(ranks)
    )
    assert told.run is not None and told.run.spread.in_order == in_order
    decodes, _ = deployment_of(told.run)
    prompts = prompts_of(told.run, decodes)
    assert prompts is not None and decodes.routing.in_order == prompts.routing.in_order == in_order


def test_tokens_travel_in_the_format_that_the_recipe_sets() -> None:
    """SGLANG_MOE_NVFP4_DISPATCH=1: 7,168 values of 4 bits and a byte of scale for 16 of them are 4,032 bytes; bf16 is
    14,336, in which nvfp4 inputs travel without it."""
    changes = {"engine": "sglang", "weights": "nvfp4", "experts": "nvfp4"}
    for campaign, sent in (("inferencex", 4032.0), ("my own", 14336.0)):
        run = row(RACK, **changes, campaign=campaign).run
        assert run is not None
        costs = decode_cycle(deployment_of(run)[0], 32.0, 1000.0).costs
        op = next(cost.op for cost in costs if cost.op.name == "ffn.dispatch")
        assert isinstance(op, Exchange) and 7168 * op.format.width == sent


def test_pools_without_an_all_to_all_gather_tokens() -> None:
    """Four ranks of 100 tokens: a rank sends 300 of 7,168 values in nvfp4 (4,032 bytes), their sums in bf16 (14,336).

    The decodes of the same recipe have DeepEP; another campaign's prompts have it too."""
    facts = {"engine": "sglang", "weights": "nvfp4", "experts": "nvfp4", "prefill_tp": "4", "prefill_ep": "4"}
    facts |= {"prefill_ranks": "4"}
    step = Step(segments=(Segment(batch=4.0, new=100.0, past=0.0),))
    for campaign, patterns in (("inferencex", ["all_gather", "reduce_scatter"]), ("my own", [])):
        run = row(RACK, **facts, campaign=campaign).run
        assert run is not None
        decodes, _ = deployment_of(run)
        prompts = prompts_of(run, decodes)
        assert prompts is not None and decodes.engine.exchange.decode == "low_latency"
        found = [cost.op for cost in run_step(prompts, step).costs if cost.op.name in _EXCHANGES]
        assert [op.pattern for op in found if isinstance(op, Collective)] == patterns
        assert not patterns or [op.work().wire for op in found] == [300 * 4032.0, 300 * 14336.0]


def test_sums_of_buffers_of_all_tokens_take_two_all_reduces() -> None:
    """Eight ranks of 50 tokens in bf16, a ring: 2*7/8 of 400*14,336 bytes each way; in decodes half as much."""
    told = row(
        RACK, engine="sglang", gpu="h200-sxm", decode_ranks="8", tp="8", ep="8", kernels="", redundant_experts=""
    )
    assert told.run is not None and told.run.prefill is not None
    assert (told.run.spread.exchange, told.run.prefill.exchange) == ("gather", "all_reduce")
    decodes, _ = deployment_of(told.run)
    prompts = prompts_of(told.run, decodes)
    assert prompts is not None
    for deployment, new, share in ((prompts, 50.0, 7 / 4), (decodes, 1.0, 7 / 8)):
        step = Step(segments=(Segment(batch=400.0 / new, new=new, past=0.0 if new > 1 else 1000.0),))
        wires = [cost.op.work().wire for cost in run_step(deployment, step).costs if cost.op.name in _EXCHANGES]
        assert wires == [share * 400 * 14336.0] * 2


@for_each(
    ("isl", "workers", "spread", "users", "places", "prompts"),
    [
        ("1024", "9", "0", "11", 1, (8192, 8)),  # c1_ctx1_gen9_tep8_batch1
        ("1024", "9", "0", "36", 256, (8192, 8)),  # c4_ctx1_gen9_tep8_batch256
        ("1024", "7", "1", "3584", 512, (8192, 8)),  # c512_ctx2_gen7_dep8_batch512
        ("8192", "7", "0", "9", 1, (16640, 2)),  # c1_ctx1_gen7_tep8_batch1
        ("8192", "7", "0", "28", 32, (16640, 2)),  # c4_ctx1_gen7_tep8_batch32
        ("8192", "3", "0", "48", 32, (16640, 2)),  # c16_ctx1_gen3_tep8_batch32
        ("8192", "3", "1", "768", 256, (16640, 2)),  # c256_ctx5_gen3_dep8_batch256
    ],
)
def test_every_row_of_a_campaign_has_the_settings_of_its_recipe(
    isl: str, workers: str, spread: str, users: str, places: int, prompts: tuple[int, int]
) -> None:
    """max_batch_size of decodes, max_num_tokens and max_batch_size of prompts in srt-slurm recipes/trtllm/h200."""
    facts = {"gpu": "h200-sxm", "isl": isl, "workers": workers, "dp_attention": spread, "concurrency": users, "tp": "8"}
    told = row(RACK, **facts, ep="8", decode_ranks="8", decode_batch_per_rank="", redundant_experts="")
    assert told.run is not None and told.run.prefill is not None
    assert (told.run.slots, told.run.prefill.token_budget, told.run.prefill.slots) == (places, *prompts)


def test_an_exchange_that_nobody_knows_is_refused() -> None:
    told = row(RACK, prefill_exchange="telepathy")
    assert told.refused == "prefill_exchange is 'telepathy', not one of normal, low_latency, nvlink, gather, all_reduce"


def test_prompts_of_a_recipe_without_attention_dp_are_tensor_parallel() -> None:
    """recipies/gb200-fp4/8k1k/max-tpt.yaml of 2025 (10p_tp4/1d_dep32): rows of it are labelled data-parallel. With
    8,192 users of ten such workers ix1504 waits 108.8 s."""
    facts = {"engine": "sglang", "weights": "nvfp4", "experts": "nvfp4", "isl": "8192", "concurrency": "8192"}
    facts |= {"prefill_tp": "4", "prefill_ep": "1", "prefill_ranks": "4", "prefill_workers": "10"}
    told = row(RACK, **facts, decode_batch_per_rank="")
    assert told.run is not None and told.run.prefill is not None
    assert (told.run.prefill.tp, told.run.prefill.dp, told.run.prefill.ep) == (4, 1, 1)
    assert told.run.prefill.token_budget == 131072


def test_a_recipe_of_tensor_parallel_decodes_is_priced_as_one() -> None:
    """ctx1_gen4_tep8_batch16: row ix1590 is labelled data-parallel; 64 places for 76 users, who wait 1.69 s."""
    facts = {"weights": "nvfp4", "experts": "nvfp4", "isl": "8192", "concurrency": "76", "workers": "4", "tp": "8"}
    facts |= {"ep": "8", "decode_ranks": "8.0", "decode_batch_per_rank": "16", "redundant_experts": "0"}
    facts |= {"prefill_tp": "4", "prefill_ep": "4", "prefill_ranks": "4.0", "requests": "760", "warmup_requests": "152"}
    told = row(RACK, **facts, length_ratio_min="0.8")
    assert told.run is not None and (told.run.tp, told.run.dp, told.run.slots) == (8, 1, 16)
    found = price_rows([told])[0].prediction
    assert found is not None and found.at("ttft", "median") == pytest.approx(1.6857, rel=0.25)


def test_batches_that_rows_do_not_state_are_those_of_the_campaigns_settings() -> None:
    """DECODE_MAX_BATCH_SIZE=32 and PREFILL_MAX_BATCH_SIZE=1 of 8k/1k on three workers of 8 (tep), December 2025."""
    facts = {"weights": "nvfp4", "experts": "nvfp4", "isl": "8192", "workers": "3", "tp": "8", "ep": "8"}
    facts |= {"dp_attention": "0", "decode_ranks": "8", "decode_batch_per_rank": "", "prefill_dp_attention": "0"}
    told = row(RACK, **facts, prefill_tp="4", prefill_ep="4", prefill_ranks="4", redundant_experts="")
    assert told.run is not None and told.run.prefill is not None
    assert (told.run.slots, told.run.prefill.slots, told.run.prefill.token_budget) == (32, 1, 8448)


def test_a_flag_that_the_engine_never_reads_is_not_simulated() -> None:
    """Row ix1104: 126 ms measured at 64 users whose steps take 26 ms; eight steps a look would be 100 ms more."""
    told = row(
        NODE,
        gpu="mi355x",
        engine="sglang",
        dp_attention="0",
        ep="1",
        isl="1024",
        poll_interval_steps="8",
        max_num_batched_tokens="196608",
        memory_fraction="0.8",
    )
    assert told.run is not None and told.run.waits.poll == 1 and told.run.token_budget == 16384
    assert price_rows([told])[0].prediction.at("ttft", "median") == pytest.approx(0.1261, rel=0.25)  # type: ignore[union-attr]


def test_json_and_table_of_one_run_find_the_same_scripts(tmp_path: Path) -> None:
    """A node of B200 as its JSON names it: 60 steps of balance and one draft, as dsr1_fp8_b200_trt_mtp.sh has them."""
    record = {
        "hw": "b200",
        "conc": 256,
        "model": "deepseek-ai/DeepSeek-R1-0528",
        "framework": "trt",
        "precision": "fp8",
        "spec_decoding": "mtp",
        "isl": 1024,
        "osl": 8192,
        "tp": 8,
        "ep": 8,
        "dp_attention": "true",
        "median_ttft": 2.512,
        "output_tput_per_gpu": 1000.0,
        "image": "tensorrt-llm/release:1.2.0rc6",
    }
    path = tmp_path / "agg.json"
    path.write_text(json.dumps(record))
    told = read_file(path, {})[1][0]
    table = {"model": "DeepSeek-R1", "gpu": "b200-hgx", "speculation": "mtp", "isl": "1024", "osl": "8192"}
    listed = row(NODE, **table, concurrency="256", redundant_experts="")
    for run in (told.run, listed.run):
        assert run is not None
        assert (run.dp, run.ep, run.tp, run.draft_tokens, run.waits.balance) == (8, 8, 1, 1, 60)
    assert told.measured.at("output") == 1000.0
    assert row(NODE, speculation="mtp", dp_attention="0").run.draft_tokens == 3  # type: ignore[union-attr]


def test_what_would_have_to_be_guessed_is_refused() -> None:
    assert "draft_tokens" in row(NODE, speculation="mtp", campaign="").refused
    few = row(NODE, redundant_experts="100").run
    assert few is not None
    with pytest.raises(UsageError, match="256 experts"):
        deployment_of(few)


def test_statistics_stand_side_by_side() -> None:
    measured = row(NODE).measured
    assert measured.at("ttft", "median") == pytest.approx(3.38583)
    assert measured.at("ttft", "p99") == pytest.approx(16.36355)
    assert measured.at("ttft", "mean") is None
    assert (measured.statistic, measured.tpot) == ("median", pytest.approx(0.04909))
    both = row(NODE, ttft_mean_ms="4000").measured
    assert (both.statistic, both.ttft) == ("mean", pytest.approx(4.0))


def test_every_statistic_has_its_score() -> None:
    measured = Measured(figures={("ttft", "median"): 2.0, ("ttft", "p99"): 10.0}, statistic="median")
    found = Prediction(figures={("ttft", "median"): 1.0, ("ttft", "p99"): 11.0}, statistic="median")
    one = Scored(row=Row(where="", cells={}, run=None, measured=measured), prediction=found)
    assert [(name, value.bias) for name, value in statistics([one], "ttft")] == [
        ("median", pytest.approx(-0.5)),
        ("p99", pytest.approx(0.1)),
    ]
    headline = score([one], "ttft")
    assert headline is not None and headline.bias == pytest.approx(-0.5)


def test_a_score_by_hand() -> None:
    """Predictions 1, -2, 3, ... -20 % off (21 of them with one that is not): |error| has median 10 % and its 90th
    percentile is the 19th of 21, 18 %; a 95th would be 19 %. The mean is 10 %, signed -10/21 %."""
    signs = [0.0, *((-1.0) ** (index + 1) * index for index in range(1, 21))]
    measured = Measured(figures={("ttft", "mean"): 1.0}, statistic="mean")
    row = Row(where="", cells={}, run=None, measured=measured)
    rows = [
        Scored(row=row, prediction=Prediction(figures={("ttft", "mean"): 1.0 + off / 100}, statistic="mean"))
        for off in signs
    ]
    found = score(rows, "ttft")
    assert found is not None and found.n == 21 and found.coverage is None
    assert (found.mape, found.median, found.p90) == pytest.approx((0.10, 0.10, 0.18))
    assert found.bias == pytest.approx(-0.10 / 21)
    halves = by([*rows, Scored(row=row, prediction=None)], lambda one: "up" if one in rows[::2] else "down", "ttft")
    assert {name: one.n for name, one in halves.items()} == {"up": 11, "down": 10}


def test_coverage_is_of_the_headline_statistic() -> None:
    """A band of 0.9 to 1.1 s: of a mean of 1 s it holds, of a median of 2 s it does not. A statistic that is asked for
    counts rows whose headline it is."""

    def one(statistic: str, seconds: float) -> Scored:
        measured = Measured(figures={("ttft", statistic): seconds, ("ttft", "p99"): 3.0}, statistic=statistic)
        figures = {("ttft", name): 1.0 for name in ("mean", "median", "p99")}
        made = Prediction(figures=figures, statistic="mean", bands={"ttft": (0.9, 1.1)})
        return Scored(row=Row(where="", cells={}, run=None, measured=measured), prediction=made)

    rows = [one("mean", 1.0), one("median", 2.0)]
    shares = {asked: score(rows, "ttft", asked) for asked in (None, "mean", "median", "p99")}
    assert {asked: found and (found.n, found.coverage) for asked, found in shares.items()} == {
        None: (2, 0.5),
        "mean": (1, 1.0),
        "median": (1, 0.0),
        "p99": (2, None),
    }


def test_inferencex_json_of_several_nodes(tmp_path: Path) -> None:
    record = {
        "hw": "gb200",
        "conc": 1127,
        "model": "DeepSeek-R1",
        "framework": "dynamo-trt",
        "precision": "fp8",
        "spec_decoding": "none",
        "disagg": True,
        "is_multinode": True,
        "isl": 1024,
        "osl": 1024,
        "prefill_tp": 8,
        "prefill_ep": 8,
        "prefill_dp_attention": "true",
        "prefill_num_workers": 1,
        "decode_tp": 32,
        "decode_ep": 32,
        "decode_dp_attention": "true",
        "decode_num_workers": 1,
        "num_prefill_gpu": 8,
        "num_decode_gpu": 32,
        "tput_per_gpu": 2398.0,
        "image": "dynamo/trtllm:0.8.1",
        "mean_ttft": 2.0,
        "median_ttft": 1.77344,
        "p99_ttft": 14.56367,
        "median_tpot": 0.01944,
        "p99_tpot": 0.03,
    }
    path = tmp_path / "agg.json"
    path.write_text(json.dumps(record))
    found = read_file(path, {})[1][0]
    run = found.run
    assert run is not None and run.prefill is not None
    assert (run.engine, run.engine_version, run.dp, run.ep, run.workers) == ("trtllm", None, 32, 32, 1)
    assert (run.prefill.dp, run.prefill.ep, run.prefill.workers, run.devices) == (8, 8, 1, 40)
    assert found.measured.at("ttft", "p99") == pytest.approx(14.56367)
    assert found.measured.at("throughput") == 2398.0


def _late(balance: int, both: bool) -> float:
    """Time to the first token of a prompt that comes while both attention ranks decode; ``both``: to each of them."""
    deployment = assemble(
        Request(model="gpt-oss-20b", gpu="h100-sxm", engine="trtllm", parallel=Parallelism(dp=2, ep=2))
    )
    arrivals = [0.0, 0.0, 0.5, 0.5] if both else [0.0, 0.0, 0.5]
    count = len(arrivals)
    requests = Requests(
        prompt=np.full(count, 64),
        output=np.array([1000, 1000, *[8] * (count - 2)]),
        arrival=np.array(arrivals),
        hashes=None,
    )
    return float(simulate(deployment, requests, Flags(balance_steps=balance)).ttft[2])


def test_attention_ranks_wait_for_a_prompt_each() -> None:
    step = 0.02  # per step of two sequences takes less
    alone, held = _late(0, False), _late(50, False)
    assert alone < held < alone + 50 * step
    assert _late(50, True) == pytest.approx(_late(0, True), rel=1e-6)  # both ranks have one: nothing to wait for


def _rows(shared: Path) -> list[Row]:
    return read_file(shared / "measured" / "serving_inferencex.csv", {})[1]


def test_every_row_that_is_not_suspect_can_be_deployed(shared: Path) -> None:
    rows = [one for one in _rows(shared) if not one.cells["suspect"]]
    assert len(rows) == 1069
    for run in {one.run for one in rows}:
        assert run is not None
        decodes, _ = deployment_of(run)
        prompts_of(run, decodes)
        drafts_of(run, decodes)


def test_watts_of_a_device_that_no_constant_saw(shared: Path) -> None:
    rows = [one for one in _rows(shared) if one.cells["power_w"]]
    found = price_rows(rows, Pricing(processes=1))
    power = score(found, "power")
    assert {one.cells["gpu"] for one in rows} == {"mi355x"}
    assert power is not None and power.n == 9 and power.mape < 0.15


def test_attention_dp_on_one_node_is_within_15_percent(shared: Path) -> None:
    rows = [one for one in _rows(shared) if one.cells["newest"] == "1" and one.run and one.run.prefill is None]
    spread = [one for one in rows if one.run and one.run.dp > 1 and one.run.draft is None]
    found = price_rows(spread, Pricing(processes=1))
    tpot, throughput = score(found, "tpot", "median"), score(found, "throughput")
    assert tpot is not None and tpot.n == 8 and tpot.mape < 0.15
    assert throughput is not None and throughput.mape < 0.15


def test_the_pieces_of_a_prompt_add_up_to_it() -> None:
    """FLOP of causal attention are in proportion to new*(past + new/2): eight pieces behind each other are the whole.

    8192 tokens in pieces of 1024: the mean piece has 3584 tokens behind it; of a prompt of which half is cached, 6144.
    """
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True))

    def flop(segment: Segment) -> float:
        return float(run_step(deployment, Step(segments=(segment,), logits=0.0)).flop)

    piece = prompt_pieces(8192.0, 0.0, 1024.0)
    assert (piece.batch, piece.new, piece.past) == (1.0, 1024.0, 3584.0)
    assert 8 * flop(piece) == pytest.approx(flop(Segment(batch=1.0, new=8192.0, past=0.0)), rel=1e-3)
    half = prompt_pieces(8192.0, 4096.0, 512.0)
    assert (half.new, half.past) == (512.0, 4096.0 + 1792.0)
    several = prompt_pieces(1000.0, 0.0, 3000.0)
    assert (several.batch, several.new, several.past) == (3.0, 1000.0, 0.0)
