"""Comparisons: ratios, and the resource that moved."""

from __future__ import annotations

import pytest

from inferplan.answers.compare import by_resource, compare
from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import InfeasibleError
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate

LOAD = StaticLoad(batch=4.0, prompt=512.0, output=64.0)


def deployment(gpu: str, quant: str | None = None):
    return assemble(Request(model="llama-3.1-8b", gpu=gpu, quant=quant, ideal=True))


def test_memory_bound_decode_moves_with_the_bandwidth() -> None:
    first, second = deployment("h100-sxm"), deployment("h200-sxm")
    result = compare([first, second], ["h100", "h200"], LOAD)
    ratio = result.ratios(result.candidates[1])["tpot_s"]
    assert ratio == pytest.approx(first.hardware.memory.bandwidth / second.hardware.memory.bandwidth, rel=1e-6)
    assert "decode: memory" in result.why(result.candidates[1])
    assert "bandwidth x 1.43" in result.why(result.candidates[1])
    assert result.why(result.candidates[0]) == "baseline"


def test_resources_sum_to_the_step() -> None:
    result = estimate(deployment("h100-sxm"), LOAD)
    for phase in (result.prefill, result.decode):
        assert sum(by_resource(phase).values()) == pytest.approx(float(phase.time))


def test_a_refused_candidate_stays_with_its_reason() -> None:
    result = compare([deployment("t4", "fp16"), deployment("h100-sxm")], ["t4", "h100"], LOAD)
    assert result.baseline.label == "h100"
    assert "does not fit" in result.why(result.candidates[0])
    frame = result.to_frame()
    assert list(frame["candidate"]) == ["t4", "h100"]


def test_nothing_to_compare_is_infeasible() -> None:
    with pytest.raises(InfeasibleError):
        compare([deployment("t4", "fp16")], ["t4"], LOAD)
