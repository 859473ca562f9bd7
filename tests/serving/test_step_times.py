"""The step tables are the roofline's own prices: every step within half a percent of ``run_step``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferplan.api import deploy
from inferplan.devices.constants import IDEAL
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import Batches, price_batches, run_step
from inferplan.serving.flags import Flags, rules_of, with_flags
from inferplan.serving.simulator import times_for
from inferplan.serving.step_times import Chunk, Reach, StepTimes, group_operators, step_times, steps_alike
from inferplan.traffic.requests import Requests
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment, Step, decode
from tests.cases import for_each
from tests.serving.conftest import deployment

REACH = Reach(sequences=128, tokens=8192, context=33000)
CASES = [
    ("llama-3.1-70b", Parallelism(tp=4)),
    ("mixtral-8x7b-v0.1", Parallelism(tp=4)),
    ("gemma-3-27b", Parallelism(tp=2)),
    ("gpt-oss-120b", Parallelism(tp=2)),
    ("qwen3-30b-a3b", Parallelism(dp=2, ep=2)),
]


@for_each("ideal", [True, False])
@for_each(("model", "parallel"), CASES)
def test_steps_cost_what_the_roofline_says(model: str, parallel: Parallelism, ideal: bool) -> None:
    served = deployment(model, "h200-sxm", ideal, parallel=parallel)
    prices = step_times(served, REACH)
    prices.floors = [0.0] * parallel.pp  # the host's part is not the roofline's
    rng = np.random.default_rng(1)
    dp = parallel.dp
    for _ in range(40):
        batch, context = int(rng.integers(1, 129)), float(rng.integers(1, 32000))
        new, past = float(rng.integers(20, 4000)), float(rng.choice([0, rng.integers(0, 20000)]))
        prompts = int(rng.integers(1, 5))
        alone = float(run_step(served, decode(float(batch * dp), context)).time)
        assert prices.decode(batch, context) == pytest.approx(alone, rel=5e-3)
        segments = (
            Segment(batch=float(batch * dp), new=1.0, past=context),
            Segment(batch=float(prompts * dp), new=new, past=past),
        )
        both = float(run_step(served, Step(segments=segments)).time)
        chunk = Chunk(prompts, prompts * new, prompts * (new * past + new * (new + 1) / 2))
        assert prices.mixed(batch, context, chunk) == pytest.approx(both, rel=5e-3)


@for_each("share", [1 / 8, 0.5, 0.8, 0.95])
@for_each("new", [600.0, 4096.0])
def test_ranks_that_hold_different_batches(new: float, share: float) -> None:
    """8 decodes beside a prompt on the fullest of 8 ranks, the mean one with a share of it. Just below an even share
    the tables leave out what a rank's own rows cost it while it waits for who receives most: 1 % of a step."""
    served = deployment("deepseek-v3", "gb200", False, engine="sglang", parallel=Parallelism(dp=8, ep=8))
    times = step_times(served, Reach(sequences=64, tokens=8192, context=8192))
    times.floors = [0.0]

    def step(part: float) -> Step:
        segments = (Segment(batch=8 * part, new=1.0, past=2000.0), Segment(batch=part, new=new, past=0.0))
        return Step(segments=segments, logits=9 * part)

    wanted = price_batches(served, Batches(fullest=step(1.0), beside=step(share))).time
    stations = times.stations(8, 2000.0, Chunk(1, new, new * (new + 1) / 2), share * (new + 8))
    assert sum(stations) == pytest.approx(float(wanted), rel=1e-2)


@for_each("new", [12.0, 300.0])
def test_prompts_alone_launch_what_they_share_with_decodes(new: float) -> None:
    """Llama-3.1-8B on an H100 under vLLM, short prompts after long prefixes: alone, beside decodes, and whole."""
    served = deployment(ideal=False)
    prices = step_times(served, REACH)
    prices.floors = [0.0]
    for past in (0.0, 5000.0):
        chunk = Chunk(2, 2 * new, 2 * (new * past + new * (new + 1) / 2))
        prompts, decodes = Segment(batch=2.0, new=new, past=past), Segment(batch=40.0, new=1.0, past=900.0)
        alone, both = (float(run_step(served, Step(segments=made)).time) for made in ((prompts,), (decodes, prompts)))
        assert prices.mixed(0, 0.0, chunk) == pytest.approx(alone, rel=2e-3)
        assert prices.mixed(40, 900.0, chunk) == pytest.approx(both, rel=2e-3)
        assert sum(prices.stations(0, 0.0, chunk)) == pytest.approx(alone, rel=2e-3)
        if not past:
            assert prices.with_prompts(0, 0.0, 2, int(2 * new), chunk.pairs) == pytest.approx(alone, rel=2e-3)
            assert prices.with_prompts(40, 900.0, 2, int(2 * new), chunk.pairs) == pytest.approx(both, rel=2e-3)


@for_each("stages", [2, 3])
def test_a_batch_passes_every_station_of_a_pipeline(stages: int) -> None:
    """Host and stages as the roofline prices them for one batch; a batch alone takes their sum."""
    served = deployment("llama-3.1-70b", ideal=False, quant="fp8", parallel=Parallelism(pp=stages))
    times = step_times(served, REACH)
    for batch, context in ((1, 100.0), (2, 5000.0), (64, 2000.0)):
        alone = run_step(served, decode(float(batch), context))
        assert times.stations(batch, context) == pytest.approx([float(t) for t in alone.step_time.fullest], rel=5e-3)
        assert times.decode(batch, context) == pytest.approx(float(alone.time), rel=5e-3)


def test_a_window_bends_the_price_where_it_should() -> None:
    served = deployment("mistral-7b-v0.1")  # every layer has a window of 4096 tokens
    prices = step_times(served, REACH)
    for context in (4000.0, 4095.0, 4096.0, 4200.0, 30000.0):
        expected = float(run_step(served, decode(32.0, context)).time)
        assert prices.decode(32, context) == pytest.approx(expected, rel=2e-3)


def test_chunks_of_a_prompt_cost_at_least_the_whole_and_work_is_conserved() -> None:
    served = deployment()
    prices = step_times(served, REACH)
    whole = prices.mixed(0, 0.0, Chunk(1, 8192.0, 8192.0 * 8193 / 2))
    pairs = [new * past + new * (new + 1) / 2 for past, new in ((p, 1024.0) for p in range(0, 8192, 1024))]
    assert sum(pairs) == 8192 * 8193 / 2
    parts = sum(prices.mixed(0, 0.0, Chunk(1, 1024.0, pair)) for pair in pairs)
    assert whole <= parts <= 1.1 * whole


def test_fleets_of_many_sizes_share_their_tables() -> None:
    """Two sizes of a fleet with other flags, to the last bit; another format has tables of its own."""
    one = deployment(ideal=False)
    few = Flags(max_num_seqs=72, max_num_batched_tokens=4096, block_size=32, gpu_memory_utilization=0.8)
    many, lengths = replace(few, max_num_seqs=100, chunked_prefill=False, block_size=16), np.full(4000, 512)
    requests = Requests(prompt=lengths, output=lengths // 4, arrival=np.zeros(4000))

    def times(served: Deployment, flags: Flags) -> StepTimes:
        flagged = with_flags(served, flags)
        return times_for(flagged, rules_of(flagged, flags, 512.0, 640.0), requests)

    fleet = replace(one, parallel=replace(one.parallel, replicas=3))
    shared = times(one, few)
    assert times(fleet, many) is shared
    assert times(deployment(ideal=False, quant="fp8"), few) is not shared
    for served, flags, sequences in ((one, few, 72), (fleet, many, 100)):
        own = step_times(with_flags(served, flags), Reach(sequences=sequences, tokens=4096, context=640))
        for batch, context, tokens in ((1, 64.0, 512.0), (70, 300.0, 1024.0), (sequences, 639.0, 3000.0)):
            chunk = Chunk(1, tokens, tokens * (tokens + 1) / 2)
            assert shared.decode(batch, context) == own.decode(batch, context)
            assert shared.mixed(batch, context, chunk) == own.mixed(batch, context, chunk)


@for_each(("model", "parallel"), CASES)
def test_flags_and_replicas_change_no_price(model: str, parallel: Parallelism) -> None:
    """So tables are kept for deployments that differ in these alone; what else differs has tables of its own."""
    served = deployment(model, "h200-sxm", False, parallel=parallel)
    flags = Flags(max_num_batched_tokens=512, max_num_seqs=9, gpu_memory_utilization=0.7, block_size=64)
    other = with_flags(replace(served, parallel=replace(parallel, replicas=3)), replace(flags, prefix_caching=False))
    assert steps_alike(served, other)
    asked = deploy("llama-3.1-8b", "h100-sxm")  # has its request, too
    assert steps_alike(asked, asked) and not steps_alike(asked, served) and not steps_alike(served, asked)
    assert group_operators(served, 1.0) == group_operators(other, 1.0)
    ours, theirs = step_times(served, REACH), step_times(other, REACH)
    chunk = Chunk(2, 700.0, 2 * 350 * 351 / 2)
    for step in ((1, 5.0), (60, 777.0), (128, 30000.0)):
        assert ours.stations(*step) == theirs.stations(*step)
        assert ours.stations(*step, chunk) == theirs.stations(*step, chunk)
    different = [deployment(model, "h100-sxm", False, parallel=parallel), replace(served, calibration=IDEAL)]
    different += [replace(served, engine=deployment(model, engine="sglang").engine)]
    assert not any(steps_alike(served, one) for one in different)
