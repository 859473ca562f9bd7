"""Two half batches that overlap: one computes while the other's rows are on the wire (docs/formulas/step.md)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.engine import EngineFlags
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import Phase, decode_cycle, overlapped, prompt_drain
from inferplan.serving.step_times import Chunk, Reach, step_times
from inferplan.work.ops import Exchange
from inferplan.work.parallel import Parallelism

WIDE = Parallelism(dp=8, ep=8)


def deployment(
    engine: str = "sglang", overlap: bool = True, parallel: Parallelism = WIDE, **more: object
) -> Deployment:
    flags = EngineFlags(two_batch_overlap=overlap)
    request = Request(model="deepseek-v2-lite", gpu="h200-sxm", engine=engine, flags=flags, parallel=parallel)
    return assemble(replace(request, **more))  # type: ignore[arg-type]


def parts(phase: Phase) -> dict[str, float]:
    """Seconds of dispatch, combine, routed experts and the rest."""
    found = dict.fromkeys(("attn", "dispatch", "experts", "combine"), 0.0)
    for cost in phase.stages[0]:
        name = cost.op.name.removeprefix("ffn.")
        part = name if name in found else "experts" if name.startswith("expert.") else "attn"
        found[part] += float(cost.total)
    return found


@pytest.mark.parametrize("ideal", [True, False])
def test_half_batches_change_places(ideal: bool) -> None:
    """Both halves of DeepEP's overlap: attention and experts of one beside dispatch and combine of the other."""
    whole, cut = deployment(overlap=False, ideal=ideal), deployment(ideal=ideal)
    half, phase = parts(decode_cycle(whole, 8 * 32.0, 4000.0)), decode_cycle(cut, 8 * 64.0, 4000.0)
    held = max(
        cost.op.blocks if cost.op.mode == "normal" else 0 for cost in phase.costs if isinstance(cost.op, Exchange)
    )
    slots = [(own, wire) for wire in ("dispatch", "combine") for own in ("attn", "experts")]
    kernels = sum(max(half[wire], half[own] + held / 132 * half[wire]) for own, wire in slots)
    step = cut.calibration.step
    assert float(phase.time) == pytest.approx(step.host + 64 * step.sequence + kernels + 27 * step.layer, rel=1e-9)
    assert sum(map(float, phase.by_operator().values())) == pytest.approx(float(phase.time), rel=1e-9)


def test_slots_by_hand() -> None:
    """10 ms of attention, 4 of experts, dispatch 6, combine 8, of both halves: slots of 10/2, 6/2, 10/2 and 8/2 ms.

    With a tenth of the multiprocessors held attention takes 10.6 and 10.8, and experts stay hidden."""
    assert float(overlapped(0.0, 10.0, 6.0, 4.0, 8.0)) == pytest.approx((10 + 6 + 10 + 8) / 2)
    assert float(overlapped(0.1, 10.0, 6.0, 4.0, 8.0)) == pytest.approx((10.6 + 6 + 10.8 + 8) / 2)


def test_weights_are_read_by_both_halves_and_work_is_conserved() -> None:
    once, twice = (decode_cycle(deployment(overlap=o), 8 * 64.0, 4000.0) for o in (False, True))
    assert float(twice.flop) == pytest.approx(float(once.flop))
    assert float(twice.resident) > float(once.resident)
    assert float(twice.wire) == pytest.approx(float(once.wire))


@pytest.mark.parametrize(("engine", "least"), [("vllm", 32.0), ("sglang", 2.0)])
def test_small_steps_are_not_cut(engine: str, least: float) -> None:
    """vLLM cuts decodes of 32 tokens and more (``dbo_decode_token_threshold``), SGLang whatever has two."""
    tokens = np.array([1.0, least - 1.0, least])
    plain, cut = (decode_cycle(deployment(engine, overlap=o), 8 * tokens, 4000.0) for o in (False, True))
    assert np.asarray(cut.time)[:2] == pytest.approx(np.asarray(plain.time)[:2], rel=1e-12)
    assert np.asarray(cut.time)[2] != pytest.approx(np.asarray(plain.time)[2], rel=1e-3)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_simulator_has_the_same_price(engine: str) -> None:
    made = deployment(engine)
    times = step_times(made, Reach(sequences=256, tokens=8192, context=8192))
    for batch in (1, 20, 64, 200):
        wanted = float(decode_cycle(made, 8.0 * batch, 4000.0).time)
        assert sum(times.stations(batch, 4000.0)) == pytest.approx(wanted, rel=5e-3)
        assert times.decode(batch, 4000.0) == pytest.approx(wanted, rel=5e-3)
    for prompt in (256.0, 4096.0):
        stations = times.stations(0, 0.0, Chunk(1, prompt, prompt * (prompt + 1) / 2))
        unfloored = replace(times, floors=[0.0]).stations(0, 0.0, Chunk(1, prompt, prompt * (prompt + 1) / 2))
        assert sum(stations) >= sum(unfloored)
        # halves of 128 tokens fill a tile of the kernel exactly, and the table's next knots do not
        near = 2.5e-2 if prompt == 256 else 1e-2
        assert sum(unfloored) == pytest.approx(float(prompt_drain(made, 8.0, prompt).time), rel=near)


def test_refused_where_the_engine_has_none_or_nothing_is_exchanged() -> None:
    with pytest.raises(UsageError, match="no two half batches"):
        deployment("trtllm")
    with pytest.raises(UsageError, match="there is none"):
        deployment(parallel=Parallelism(tp=8, ep=8))


def test_steps_in_halves_are_not_priced_the_plain_way() -> None:
    """The price of whole prompts in one piece knows no halves (``plain_replica``)."""
    reach = Reach(sequences=8, tokens=2048, context=4096)
    assert not step_times(deployment(), reach).simple
    one = Request(model="deepseek-v2-lite", gpu="h200-sxm", engine="sglang", parallel=Parallelism(tp=8, ep=8))
    assert step_times(assemble(one), reach).simple
