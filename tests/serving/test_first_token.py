"""The first token on an idle server: by hand, and one number in every command that prints it."""

from __future__ import annotations

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.serving.first_token import IdlePrompt, first_token
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.serving.steady import UserLoad, steady_state
from inferplan.serving.techniques.speculation import Speculation
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, Traffic
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.conftest import fitted
from tests.serving.conftest import deployment


@for_each(("engine", "late"), [("vllm", 0), ("sglang", 1)])
def test_a_breakdown_by_hand(engine: str, late: int) -> None:
    """Llama-3.1-8B on an H100, 1,024 tokens; constants of configs/engines/*.yaml.

    Latency; a front end for the request and for each of 1,024 tokens; the launches of 32 layers beside the prefill's t
    seconds, together (t^4 + launches^4)^(1/4); under SGLang one decode step until the token is seen, under vLLM none.
    """
    latency, launched = fitted(engine, "latency"), 32 * fitted(engine, "eager_layer")
    front_end = fitted(engine, "front_request") + 1024 * fitted(engine, "front_token")
    served = deployment("llama-3.1-8b", "h100-sxm", ideal=False, engine=engine)
    alone = estimate(served, StaticLoad(prompt=1024.0, output=2.0))
    found = first_token(served, IdlePrompt(new=1024.0, cached=0.0, budget=8192.0))
    prefill, step = float(alone.ttft), float(alone.tpot)
    assert float(found.latency) == pytest.approx(latency)
    assert float(found.front_end) == pytest.approx(front_end)
    assert float(found.alone) == pytest.approx(prefill)
    assert float(found.launches) == pytest.approx((prefill**4 + launched**4) ** 0.25 - prefill, rel=1e-9)
    assert float(found.seen_late) == pytest.approx(late * step, rel=1e-9)
    assert float(found.at_server) == pytest.approx(sum(float(part) for part in found.parts().values()))
    assert float(found.at_server) == pytest.approx(
        latency + front_end + (prefill**4 + launched**4) ** 0.25 + late * step, rel=1e-9
    )


SYSTEMS = [
    ("llama-3.1-8b", "h100-sxm", {}, "vllm", 1024),
    ("llama-3.1-8b", "h100-sxm", {}, "vllm", 9000),  # two pieces
    ("llama-3.1-8b", "h100-sxm", {"dp": 2}, "sglang", 20000),  # three
    ("llama-3.1-8b", "h100-sxm", {}, "trtllm", 1024),
    ("llama-3.1-70b", "h100-sxm", {"tp": 4}, "vllm", 1024),
    ("llama-3.1-70b", "h200-sxm", {"tp": 2, "pp": 2}, "vllm", 9000),  # pieces through a pipeline
    ("deepseek-v3", "h200-sxm", {"tp": 8}, "vllm", 1024),
    ("deepseek-v3", "h200-sxm", {"dp": 8, "ep": 8}, "vllm", 1024),  # seven ranks without a request
    ("qwen3-30b-a3b", "l40s", {"tp": 2}, "vllm", 512),
    ("mistral-7b-v0.1", "a100-80gb-sxm", {}, "vllm", 6000),  # beyond its window
    ("llama-3.1-8b", "h100-sxm", {}, "llama.cpp", 1024),  # no constants on file: nothing is added
]


@for_each(("model", "gpu", "degrees", "engine", "prompt"), SYSTEMS)
def test_one_user_has_one_ttft(model: str, gpu: str, degrees: dict[str, int], engine: str, prompt: int) -> None:
    """``estimate`` alone and what the server adds, ``estimate --concurrency 1``, ``simulate`` with one user or few."""
    served = assemble(Request(model=model, gpu=gpu, engine=engine, parallel=Parallelism(**degrees)))
    budget = float(served.engine.defaults.tier(served.hardware).token_budget)
    found = first_token(served, IdlePrompt(new=float(prompt), cached=0.0, budget=budget))
    static = estimate(served, StaticLoad(prompt=float(prompt), output=64.0))
    steady = steady_state(served, UserLoad(concurrency=1.0, prompt=float(prompt), output=64.0))
    one, few = (
        simulate(
            served, Traffic(arrivals=arrivals, requests_count=10, prompt=Lengths(mean=prompt), output=Lengths(mean=64))
        )
        for arrivals in (ClosedLoop(concurrency=1), OpenLoop(rate=1e-4))
    )
    assert float(static.ttft) == pytest.approx(float(found.alone), rel=1e-9)
    for ttft in (float(steady.ttft), float(np.mean(one.ttft)), float(np.mean(few.ttft))):
        assert float(found.at_server) == pytest.approx(ttft, rel=0.02)
    for tpot in (float(steady.tpot), float(np.mean(one.tpot)), float(np.mean(few.tpot))):
        assert float(static.tpot) == pytest.approx(tpot, rel=0.02)


@for_each("engine", ["vllm", "sglang"])
def test_the_draft_computes_the_prompt_too(engine: str) -> None:
    """An 8B draft of a 70B model at 8,192 tokens: its own prefill comes on top, in each way to the number."""
    parallel = Parallelism(tp=4)
    request = Request(model="llama-3.1-70b", gpu="h100-sxm", quant="fp8", engine=engine, parallel=parallel)
    served, draft = assemble(request), deployment("llama-3.1-8b", "h100-sxm", False, quant="fp8", parallel=parallel)
    drafting = Speculation(length=4, acceptance=0.7, draft=draft)
    prompt = IdlePrompt(new=8192.0, cached=0.0, budget=8192.0)
    plain, drafted = first_token(served, prompt), first_token(served, prompt, drafting)
    alone = float(estimate(draft, StaticLoad(prompt=8192.0)).ttft)
    assert float(drafted.alone) - float(plain.alone) == pytest.approx(alone, rel=1e-6)
    steady = steady_state(served, UserLoad(concurrency=1.0, prompt=8192.0, output=64.0), speculation=drafting)
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=1), requests_count=5, prompt=Lengths(mean=8192), output=Lengths(mean=64)
    )
    run = simulate(served, traffic, options=Options(speculation=drafting))
    without = simulate(served, traffic)
    assert float(steady.ttft) == pytest.approx(float(drafted.at_server), rel=1e-6)
    assert float(np.mean(run.ttft)) == pytest.approx(float(drafted.at_server), rel=0.01)
    assert float(np.mean(run.ttft) - np.mean(without.ttft)) > 0.9 * alone
