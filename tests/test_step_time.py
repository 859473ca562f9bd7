"""How batches pass the stations of a step: by hand, and against the recursion of a flow shop written out here."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from inferplan.devices.constants import StepConstants
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import StepTime, decode_phase, launch_times, prefill_phase, run_step
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment, Step
from tests.cases import for_each
from tests.serving.conftest import deployment as served
from tests.serving.plain_time import CLOSE, HOST, plain, seconds

STATIONS = [(1.0, 2.0, 3.0), (3.0, 1.0, 1.0), (2.0, 2.0, 2.0), (0.0, 5.0, 4.0, 1.0)]
"""Seconds of a batch on the host and on each stage."""


def passes(free: list[float], start: float, stations: tuple[float, ...]) -> float:
    """When a batch that is ready at ``start`` leaves the last station.

    The host composes it, then its stages follow; a stage needs the host's time to prepare it once the batch before has
    left, while it is still on its way.
    """
    clock = free[0] = max(start, free[0]) + stations[0]
    for stage in range(1, len(stations)):
        clock = free[stage] = max(clock, free[stage] + stations[0]) + stations[stage]
    return clock


def last_leaves(batches: list[tuple[float, ...]]) -> list[float]:
    """When each batch leaves the last station, all sent at once."""
    free = [-inf] * len(batches[0])
    return [passes(free, 0.0, batch) for batch in batches]


@for_each("stations", STATIONS)
def test_a_batch_alone_passes_every_station(stations: tuple[float, ...]) -> None:
    for flow in ("pass", "drain", "cycle"):
        assert float(StepTime(fullest=stations, mean=stations, flow=flow).total) == sum(stations)  # type: ignore[arg-type]


@for_each("stations", STATIONS)
@for_each("count", [1, 2, 3, 5])
def test_batches_fill_and_drain_the_stages(stations: tuple[float, ...], count: int) -> None:
    """The last of so many equal batches is through: 1 + 2 + 3 + 2 x (1 + 3) = 14 s for three of 1, 2 and 3 s."""
    drained = StepTime(fullest=stations, mean=stations, microbatches=float(count), flow="drain")
    assert float(drained.total) == pytest.approx(last_leaves([stations] * count)[-1])


@for_each("shares", [(2.0, 1.0), (4.0, 1.0, 1.0), (3.0, 2.0, 2.0, 2.0)])
@for_each("stations", STATIONS)
def test_the_fullest_batch_drains_first(stations: tuple[float, ...], shares: tuple[float, ...]) -> None:
    """Batches of several lengths, the longest first: 4 + 4 + 1 + 1 = 10 s for 4, 1 and 1 s on two stages alone."""
    batches = [tuple(share * seconds for seconds in stations) for share in shares]
    mean = tuple(sum(each) / len(each) for each in zip(*batches))
    drained = StepTime(fullest=batches[0], mean=mean, microbatches=float(len(batches)), flow="drain")
    exact = last_leaves(batches)[-1]
    if stations == STATIONS[3]:  # its slowest stage is its first: a short batch has less behind it than the longest had
        assert exact <= float(drained.total) <= 1.25 * exact
    else:
        assert float(drained.total) == pytest.approx(exact)


@for_each("stations", STATIONS)
@for_each("count", [1, 2, 3])
def test_batches_that_take_turns(stations: tuple[float, ...], count: int) -> None:
    """So many batches go round and round: in the long run each is back after the time of a cycle."""
    free, back, starts = [-inf] * len(stations), [0.0] * count, [0.0] * count
    for _ in range(200):
        for lane in range(count):
            starts[lane] = back[lane]
            back[lane] = passes(free, back[lane], stations)
    cycle = StepTime(fullest=stations, mean=stations, microbatches=float(count), flow="cycle")
    assert float(cycle.total) == pytest.approx(back[0] - starts[0])


@for_each("stations", STATIONS)
def test_batches_follow_each_other(stations: tuple[float, ...]) -> None:
    """With as many in flight as there are stages: the slowest station, or a share of the pass, sets the interval."""
    stages = len(stations) - 1
    back, free = [0.0] * stages, [-inf] * len(stations)
    ends = []
    for turn in range(200):
        back[turn % stages] = passes(free, back[turn % stages], stations)
        ends.append(back[turn % stages])
    measured = (ends[-1] - ends[-1 - 10 * stages]) / (10 * stages)
    assert float(StepTime(fullest=stations, mean=stations).interval) == pytest.approx(measured)


def test_launches_are_hidden_where_kernels_take_longer() -> None:
    """(3^4 + 3^4)^(1/4) on one stage with its host; on two stages each on its own, beside the host."""
    assert sum(launch_times((1.0, 2.0), [3.0])) == pytest.approx(3.0 * 2**0.25)
    assert launch_times((1.0, 3.0, 2.0), [3.0, 0.0]) == pytest.approx((1.0, 3.0 * 2**0.25, 2.0))


# Of a deployment: a second of the host, a tenth for each token over all stages ----------------------------------------


def test_a_prompt_on_two_stages_is_its_pass() -> None:
    """Sixty-five layers, one or two halves of them at a time: 6 s for 50 tokens, and for two prompts half as much more.

    The second prompt follows the first: its stages need a second each to prepare it.
    """
    one, two = (plain(parallel=Parallelism(pp=pp)) for pp in (1, 2))
    for deployment in (one, two):
        alone = prefill_phase(deployment, StaticLoad(batch=1.0, prompt=50.0))
        assert float(alone.time) == pytest.approx(seconds(50), rel=CLOSE)
    first, second = 5.0 * 33 / 65, 5.0 * 32 / 65  # the split of layers, one of them attention of no weight
    both = prefill_phase(two, StaticLoad(batch=2.0, prompt=50.0))
    expected = last_leaves([(HOST, first, second)] * 2)[-1]
    assert float(both.time) == pytest.approx(expected, rel=0.02)


def test_each_rank_has_a_scheduler_of_its_own() -> None:
    """Four ranks of four sequences: 1 s, 0.01 s for each of four sequences, and four tokens."""
    deployment = plain(parallel=Parallelism(dp=4))
    step = StepConstants(host=HOST, sequence=0.01)
    deployment = replace(deployment, calibration=deployment.calibration.model_copy(update={"step": step}))
    phase = decode_phase(deployment, StaticLoad(batch=16.0), 10.0)
    assert float(phase.time) == pytest.approx(1.0 + 0.04 + 0.4, rel=CLOSE)


@for_each(("batch", "fullest"), [(1.0, 1), (4.0, 1), (5.0, 2), (8.0, 2), (9.0, 3)])
def test_the_fullest_rank_ends_the_step(batch: float, fullest: int) -> None:
    """Sequences are whole: five on four ranks are two on one of them."""
    phase = decode_phase(plain(parallel=Parallelism(dp=4)), StaticLoad(batch=batch), 10.0)
    assert float(phase.time) == pytest.approx(seconds(fullest), rel=CLOSE)


@for_each(
    ("engine", "gpu", "kv", "saved"),
    [
        ("vllm", "h100-sxm", "bf16", 32),  # FlashAttention 3: one call over all tokens
        ("vllm", "a100-80gb-sxm", "bf16", 32),
        ("vllm", "h100-sxm", "fp8", 32),
        ("vllm", "a100-80gb-sxm", "fp8", 0),  # FlashAttention 2 reads no fp8: FlashInfer
        ("vllm", "b200-hgx", "bf16", 0),  # FlashInfer: one call for the decodes, one for the prompts
        ("trtllm", "h100-sxm", "bf16", 0),  # a context and a generation kernel
    ],
)
def test_a_mixed_step_launches_attention_once_or_twice(engine: str, gpu: str, kv: str, saved: int) -> None:
    """Llama-3.1-8B, 32 layers, kernels of a constant 4 us overhead: a mixed step's attention is that of its decodes and
    that of its prompts, less 4 us a layer where one kernel takes both."""
    made = served("llama-3.1-8b", gpu, ideal=False, engine=engine, roles=(("kv", kv),))
    decodes, prompts = Segment(batch=40.0, new=1.0, past=900.0), Segment(batch=2.0, new=300.0, past=0.0)
    alone = sum(float(run_step(made, Step(segments=(one,))).by("attn.core")) for one in (decodes, prompts))
    both = float(run_step(made, Step(segments=(decodes, prompts))).by("attn.core"))
    assert alone - both == pytest.approx(saved * 4e-6, abs=1e-9)


def test_latent_attention_is_called_for_decodes_and_prompts_apart() -> None:
    """DeepSeek-V2-Lite under vLLM (v1/attention/backends/mla): the same operators in a mixed step as in two steps."""
    made = served("deepseek-v2-lite", "h100-sxm", ideal=False)
    decodes, prompts = Segment(batch=40.0, new=1.0, past=900.0), Segment(batch=2.0, new=300.0, past=0.0)
    alone = sum(float(run_step(made, Step(segments=(one,))).by("attn.core")) for one in (decodes, prompts))
    assert float(run_step(made, Step(segments=(decodes, prompts))).by("attn.core")) == pytest.approx(alone, rel=1e-9)
