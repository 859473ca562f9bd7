"""llama.cpp on a processor alone, against published speeds (``tests/benchmarks/processors.csv``) and by hand."""

from __future__ import annotations

import pytest

from inferplan.catalog.assemble import Request, assemble, usual_engine
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from tools.fitting.processors import Run, off, runs

LAYER = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
"""Weights of a layer of Llama 3.1 8B."""


def some(fitted: bool, of_prompt: bool) -> list[Run]:
    return [run for run in runs() if (run.fitted, run.of_prompt) == (fitted, of_prompt)]


def test_published_speeds_of_other_authors() -> None:
    """Constants of GPUs were 4 to 10 times too fast for prompts. The largest factor is that of q8_0 on a Threadripper
    PRO 7995WX under llamafile; a processor with 96 cores is worst served by one FLOP of a core."""
    assert len(some(fitted=False, of_prompt=True)) == 7
    middle, most = off(some(fitted=False, of_prompt=True))
    assert middle < 1.3 and most < 2.3
    middle, most = off(some(fitted=False, of_prompt=False))
    assert middle < 1.25 and most < 1.4
    assert off(some(fitted=True, of_prompt=True))[1] < 1.25


def test_the_flop_of_a_core_and_cycle_by_hand() -> None:
    """78.58 tokens/s of Llama 3.1 8B in bf16 on 16 cores of 4.5 GHz: 32 layers at two FLOP a weight; what is no matmul
    takes a few percent of the time, which makes it more."""
    (run,) = (run for run in runs() if run.quant == "bf16" and "7950X" in run.case)
    by_hand = 2 * 32 * LAYER * 78.58 / (16 * 4.5e9)
    assert 1.0 < run.flop["matmul"] / by_hand < 1.06


def test_experts_of_a_prompt_by_hand() -> None:
    """DeepSeek-R1 on a Xeon 6980P: 58 layers x 8 experts x 3 x 7,168 x 2,048 weights x 2 FLOP x 1,024 tokens are 41.9
    TFLOP, at 128 cores x 2.0 GHz x 14.6 FLOP 11.2 s."""
    assert usual_engine("deepseek-r1", "xeon-6980p") == "llama.cpp"
    request = Request(model="deepseek-r1", gpu="xeon-6980p", quant="q4_k_m", memory="768GB", engine="llama.cpp")
    found = Estimate(deployment=assemble(request), load=StaticLoad(prompt=1024.0, output=256.0))
    experts = sum(float(one.total) for one in found.prefill.costs if one.op.kernel == "grouped_matmul")
    assert experts == pytest.approx(58 * 8 * 3 * 7168 * 2048 * 2 * 1024 / (128 * 2.0e9 * 14.6), rel=0.01)


def test_avx2_multiplies_more_slowly() -> None:
    """Threadripper PRO 5995WX, 64 cores of 2.7 GHz with 32 FLOP a cycle: 0.64 of 15.6; the Ryzen 7950X has 64."""
    cores = {"threadripper-pro-5995wx": 0.64, "ryzen-9-7950x": 1.0}
    for name, share in cores.items():
        found = assemble(Request(model="llama-3.1-8b", gpu=name, memory="64GB", engine="llama.cpp"))
        fit = found.calibration.fit("matmul", "bf16")
        assert fit is not None and found.hardware.core_cycles is not None
        flop = fit.math * found.hardware.peak["bf16"] / found.hardware.core_cycles
        assert flop == pytest.approx(share * 15.6, rel=1e-6)


def test_another_engine_says_whose_constants_it_takes() -> None:
    found = assemble(Request(model="llama-3.1-8b", gpu="ryzen-9-7950x", memory="64GB", engine="vllm"))
    assert "those of GPUs stand" in found.calibration.note
