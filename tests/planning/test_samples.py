"""Plans for several answers of each prompt: the cache and the steps of an estimate, the percentiles of a simulation."""

from __future__ import annotations

import json
from math import sqrt
from typing import Any

import pytest
from click.testing import CliRunner

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.price_lists import price_book
from inferplan.cli import cli
from inferplan.errors import InferplanError
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.planning.demand import Demand, sharing
from inferplan.planning.grid import single
from inferplan.planning.option import Sizing
from inferplan.planning.question import Question
from inferplan.planning.search import point, search
from inferplan.planning.space import Space
from inferplan.planning.verify import verify
from inferplan.traffic.requests import Lengths, SharedPrefix, Slo
from tests.cases import for_each

TOKEN = 2 * 8 * 128 * 32 * 2
"""Bytes of a token in the cache of Llama 3.1 8B in bf16."""


def demand(samples: int, rate: float = 8.0, **lengths: int) -> Demand:
    own, output = Lengths(mean=lengths.get("prompt", 1024)), Lengths(mean=lengths.get("output", 256))
    whole, cached = sharing(own, output, SharedPrefix(), samples)
    shared: dict[str, Any] = {} if samples == 1 else {"own": own, "samples": samples}
    return Demand(prompt=whole, output=output, rate=rate, cached=cached, **shared)


@for_each(("batch", "samples"), [(8, 4), (3, 2)])
def test_a_step_is_that_of_an_estimate_with_as_many_answers(batch: int, samples: int) -> None:
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    grid = point(deployment, demand(samples), 95.0, batch * samples, 2048)
    load = StaticLoad(batch=batch, prompt=1024.0, output=256.0, samples=samples)
    assert float(grid.step_decode[0]) == pytest.approx(float(estimate(deployment, load).tpot), rel=1e-4)


@for_each("samples", [1, 4])
def test_answers_keep_their_prompt_once(samples: int) -> None:
    """Of each answer a quarter of 1024 tokens and what it has written: 128, and two deviations of the mean age of all,
    256/sqrt(12 C)."""
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    grid = point(deployment, demand(samples), 95.0, 32, 2048)
    held = float(grid.concurrency[0, 0])
    written = 128 + 2 * 256 / sqrt(12 * held)
    state = TOKEN * (1024 / samples + written)
    assert grid.memory_use[0, 0] == pytest.approx(held * state / single(deployment).kv_pool, rel=1e-9)


def test_a_state_of_constant_size_is_shared_by_nobody() -> None:
    """Of a model with recurrent layers every answer has its own, as of requests apart."""
    deployment = assemble(Request(model="mamba-2.8b", gpu="h100-sxm"))
    four, one = (
        point(deployment, Demand(prompt=Lengths(mean=64), output=Lengths(mean=64), rate=1.0, samples=n), 95.0, 8, 2048)
        for n in (4, 1)
    )
    assert four.memory_use[0, 0] == one.memory_use[0, 0] > 0


def test_finalists_are_what_simulate_says() -> None:
    """``--rate`` counts prompts in both commands: 1 prompt a second is 4 answers a second."""
    asked = Question(
        space=Space(base=Request(model="llama-3.1-8b", gpu=""), gpus=("l40s",), quants=("fp8",), most=1),
        demand=demand(4, rate=4.0, output=64),
        slo=Slo(ttft=1.0, tpot=0.06, percentile=95.0),
        sizing=Sizing(),
        prices=price_book(stated=["l40s=1"]),
    )
    option = search(asked.space, asked.stream, asked.prices).options[0]
    assert option.replicas == 1 and option.pools is None
    checked = verify(option, asked)
    assert checked.result is not None
    count = len(checked.result.records.prompt) // 4
    line = "simulate llama-3.1-8b --gpu l40s --quant fp8 --rate 1 --prompt 1024 --output 64 --samples 4 --format json"
    line += f" --max-num-seqs {checked.slots} --max-num-batched-tokens {option.budget} --requests {count}"
    said = json.loads(CliRunner().invoke(cli, line.split(), catch_exceptions=False).output)
    for name in ("ttft", "tpot", "e2el"):
        assert said[f"{name}_s"]["p95"] == checked.achieved[name], name


PLAN = "plan llama-3.1-8b --gpu l40s --quant fp8 --most 1 --aggregated --price l40s=1"


def test_a_job_is_counted_in_prompts() -> None:
    line = f"{PLAN} --samples 4 --requests 1000 --deadline 1h --prompt 1024 --output 64 --format json"
    question = json.loads(CliRunner().invoke(cli, line.split(), catch_exceptions=False).output)["question"]
    assert question["samples"] == 4
    assert question["requests_per_s"] == pytest.approx(4 * 1000 / 3600)
    assert question["demand"].startswith("1,000 prompts in 1 h, 4 answers each, 1,024 tokens in (756 of")


@for_each(
    ("words", "said"),
    [
        ("--samples 2 --cached-prefix 100 --rate 1 --prompt 1024 --output 64", "--cached-prefix with prompts"),
        ("--samples 2 --trace t.csv", "--trace already states --samples"),
        ("--samples 2 --rate 1e-9 --prompt 64 --output 8", "--rate 1e-09 requests/s"),
    ],
)
def test_samples_beside_what_says_it_already(words: str, said: str) -> None:
    result = CliRunner().invoke(cli, f"{PLAN} --ttft 1s {words}".split())
    assert isinstance(result.exception, InferplanError) and said in result.exception.render()
