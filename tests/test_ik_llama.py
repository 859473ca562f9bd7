"""ik_llama.cpp: prompts of a processor by hand, and against published speeds that no constant was taken from."""

from __future__ import annotations

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.offload import OffloadAsked
from inferplan.errors import UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from tests.cases import for_each


def of_prompt(request: Request, tokens: float) -> Estimate:
    return Estimate(deployment=assemble(request), load=StaticLoad(prompt=tokens, output=32.0))


def experts_away(model: str, gpu: str, host: str, layers: int, engine: str = "ik_llama.cpp") -> Request:
    away = OffloadAsked(cpu_moe_layers=layers, host=host, host_memory="700GB")
    return Request(model=model, gpu=gpu, quant="q4_k_m", engine=engine, offload=away)


def test_matmuls_of_a_processor_by_hand() -> None:
    """Llama 3.1 8B: 32 x (2 x 4,096 x 4,096 + 2 x 4,096 x 1,024 + 3 x 4,096 x 14,336) weights, 512 rows, on 16 cores of
    4.5 GHz at 55.5 FLOP: 1.79 s; the published prompt took 512/273.54 = 1.87 s."""
    request = Request(model="llama-3.1-8b", gpu="ryzen-9-7950x", quant="q4_0", engine="ik_llama.cpp", memory="60GB")
    costs = of_prompt(request, 512.0).prefill.costs
    seconds = sum(float(cost.total) for cost in costs if cost.op.kernel == "matmul" and cost.op.name != "head")
    weights = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert seconds == pytest.approx(2 * weights * 512 / (16 * 4.5e9 * 55.5), rel=0.01)


@for_each(
    "model, gpu, host, layers, tokens, published",
    [
        ("deepseek-v3", "rtx-4090", "epyc-9355", 61, 512.0, 134.15),
        ("deepseek-v3", "rtx-4090", "epyc-9355", 61, 4096.0, 159.89),
        ("qwen3-235b-a22b", "rtx-pro-6000-ws", "xeon-8480plus", 94, 2048.0, 192.02),
        ("qwen3-235b-a22b", "rtx-pro-6000-ws", "xeon-8480plus", 94, 16384.0, 185.33),
    ],
)
def test_prompts_of_hosts_that_were_kept_aside(
    model: str, gpu: str, host: str, layers: int, tokens: float, published: float
) -> None:
    """ik_llama.cpp discussion 258 and issue 437."""
    found = of_prompt(experts_away(model, gpu, host, layers), tokens)
    assert tokens / float(found.ttft) == pytest.approx(published, rel=0.12)


def test_llama_cpp_copies_what_its_fork_computes() -> None:
    """Copies of 370 GB over 31 GB/s for 512 tokens: a quarter of the fork's speed."""
    own = of_prompt(experts_away("deepseek-v3", "rtx-4090", "epyc-9355", 61), 512.0)
    copied = of_prompt(experts_away("deepseek-v3", "rtx-4090", "epyc-9355", 61, "llama.cpp"), 512.0)
    assert 3.0 < float(copied.ttft) / float(own.ttft) < 4.5
    assert float(copied.tpot) == pytest.approx(float(own.tpot), rel=0.01)


def test_two_sockets_are_not_known() -> None:
    with pytest.raises(UsageError, match="ik_llama"):
        assemble(experts_away("deepseek-v3", "rtx-4090", "2x-epyc-9355", 61))
