"""The host of a step, from maximum throughput and batches: the benchmark's flags, the fit, and what it predicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy")

from inferplan.catalog.assemble import load_engine
from inferplan.serving.flags import Flags
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from inferplan.validation.deploy import deployment_of
from inferplan.validation.rows import Run
from tests.cases import for_each
from tools.fitting.published.batches import batch_traffic, static_run
from tools.fitting.published.host import Case, HostFit
from tools.fitting.published.peaks import Peak, tuned
from tools.fitting.serving_host import closed_loop, open_loop

ROW = {"model": "Llama-2-7b-hf", "hardware": "H100-80GB", "precision": "fp16/bf16", "tp": "1"}


@for_each(
    ("tokens", "prompt", "output", "flags"),
    [
        (1e6, 128, 128, (4096, 8192)),  # 3906.25 -> 16 * 256; 7812.5 -> 16 * 512
        (1e6, 128, 2048, (512, 2048)),  # 459.6 -> 4 * 128; 488.3, of which 2048 is the least
        (1e5, 2048, 2048, (64, 2048)),  # 24.4, of which 64 is the least
        (1e6, 2048, 128, (512, 8192)),  # 459.6; 7812.5
        (1e7, 2048, 128, (4096, 32768)),  # more than 4096; 69,632 tokens are cut at 32,768
        (4e5, 20000, 2000, (64, 2048)),
    ],
)
def test_the_flags_of_trtllm_bench(tokens: float, prompt: float, output: float, flags: tuple[int, int]) -> None:
    """tensorrt_llm/bench/build/tuning.py, by hand."""
    assert tuned(tokens, prompt, output) == flags


def test_a_sequence_costs_the_host_in_every_step() -> None:
    """Four sequences of eight tokens: eight steps of four sequences each."""
    run = static_run({**ROW, "batch": "4", "isl": "128", "osl": "8"}, "trtllm")
    case = Case(deployment=deployment_of(run)[0], traffic=batch_traffic(run), flags=Flags(), seconds=1.0)
    assert case.at(0.0, 1e-3) - case.at(0.0, 0.0) == pytest.approx(8 * 4 * 1e-3, rel=1e-6)
    assert case.at(1e-3, 0.0) - case.at(0.0, 0.0) == pytest.approx(8 * 1e-3, rel=1e-6)


def test_the_fit_finds_the_host_that_was_planted() -> None:
    rng = np.random.default_rng(0)
    steps, batch = rng.uniform(100, 1000, 40), rng.uniform(1, 64, 40)
    slopes, bare = np.stack([steps, steps * batch]).T, 8e-3 * steps
    measured = (bare + slopes @ [2.5e-3, 80e-6]) * np.exp(rng.normal(0.0, 0.01, 40))
    fit = HostFit(
        names=("host", "sequence"), groups=np.array(["a", "b"] * 20), bare=bare, slopes=slopes, measured=measured
    )
    assert fit.fitted(np.arange(40) % 2 == 0) == pytest.approx([2.5e-3, 80e-6], rel=0.1)
    assert "b left out" in fit.report()


MEASURED = [
    ("llama-3.1-8b", "a100-80gb-sxm", "fp16", 1, 1000.0, 1000.0, 3786.83),
    ("llama-3.1-70b", "h200-sxm", "fp8", 4, 128.0, 2048.0, 14156.0),
]


@for_each(("model", "gpu", "weights", "tp", "prompt", "output", "rate"), MEASURED)
def test_maximum_throughput(
    model: str, gpu: str, weights: str, tp: int, prompt: float, output: float, rate: float
) -> None:
    """TensorRT-LLM 0.17, docs/source/performance/perf-overview.md at 258c754."""
    kv = "fp8" if weights == "fp8" else None
    names = {"model": model, "gpu": gpu, "engine": "trtllm", "engine_version": "0.17", "precision": None}
    formats = {"weights": weights, "experts": None, "kv": kv, "activations": None}
    run = Run(**names, **formats, prompt=prompt, output=output, concurrency=3000, tp=tp)
    peak = Peak(run=run, rate=rate)
    deployment = deployment_of(run)[0]
    found = simulate(deployment, peak.traffic(), peak.flags())
    assert found.output_rate == pytest.approx(rate, rel=0.1)
    usual = simulate(
        replace(deployment, engine=deployment.engine.model_copy(update={"step": None})), peak.traffic(), peak.flags()
    )
    assert usual.output_rate < found.output_rate


@for_each(("tp", "users", "interval"), [(2, 32, 0.020064), (4, 8, 0.010596), (4, 128, 0.025631), (8, 128, 0.019277)])
def test_vllm_that_does_not_schedule_ahead(tp: int, users: int, interval: float) -> None:
    """Qwen3-32B with vLLM 0.12.0 on H100, prompts and outputs of 1,024 in a closed loop: measured seconds a token (the
    campaign of fixed lengths). As 0.18, whose host works while the device does, they would be 9 to 25 % shorter."""
    names = {"model": "qwen3-32b", "gpu": "h100-sxm", "engine": "vllm", "precision": "bf16", "tp": tp}
    load = {"prompt": 1024.0, "output": 1024.0, "concurrency": users}

    def predicted(version: str) -> float:
        run = Run(**names, **load, engine_version=version, weights=None, experts=None, kv=None, activations=None)
        traffic = Traffic(
            arrivals=ClosedLoop(concurrency=users),
            prompt=Lengths(mean=1024),
            output=Lengths(mean=1024),
            requests_count=4 * users,
        )
        flags = Flags(max_num_batched_tokens=1024 + users)
        return float(np.mean(simulate(deployment_of(run)[0], traffic, flags).tpot))

    assert predicted("0.12.0") == pytest.approx(interval, rel=0.065)
    assert predicted("0.18.1") < 0.93 * interval


@for_each(("batch", "seconds"), [("1", 7.8385), ("64", 32.6412)])
def test_vllm_of_2024(batch: str, seconds: float) -> None:
    """Argonne's LLM-Inference-Bench, Plots/All_results.csv at 4211f5d; the vLLM of today is faster by a quarter."""
    run = static_run({**ROW, "batch": batch, "isl": "1024", "osl": "1024"}, "vllm")
    old, new = (
        float(simulate(deployment_of(one)[0], batch_traffic(run)).duration)
        for one in (run, replace(run, engine_version=None, kernels=None))
    )
    assert old == pytest.approx(seconds, rel=0.15)
    assert new < 0.9 * old


def test_what_vllm_asks_of_its_host_since_it_schedules_ahead(shared: Path) -> None:
    """82 rows of 0.12.0; ten stages of 0.15.1 that kept up (of 13, three wait for minutes). No model left out makes the
    others ask for as much as is on file for the later, which TensorRT-LLM's larger batches gave.
    """
    assert len(closed_loop(shared / "measured/serving.csv")) == 82
    stages = open_loop(shared / "measured/serving_open_loop.csv")
    assert len(stages) == 10 and {one.group.split("/")[0] for one in stages} == {"codellama", "meta-llama", "mistralai"}
    fit = HostFit.of(stages, ("sequence",))
    left_out = [fit.fitted(fit.groups != group)[0] for group in sorted(set(fit.groups))]
    own, other = stages[0].deployment.engine.step, load_engine("trtllm").step
    assert own is not None and other is not None and own.sequence == other.sequence
    assert max(left_out) < own.sequence < 10e-6
