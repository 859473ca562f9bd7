"""Two half batches that overlap: one computes while the other's rows are on the wire (docs/formulas/step.md)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.engine import EngineFlags
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import Overlap, Phase, decode_cycle, prompt_drain
from inferplan.serving.launches import launch_floors
from inferplan.serving.step_times import Chunk, Reach, step_times
from inferplan.work.parallel import Parallelism
from inferplan.work.step import prefill
from tests.cases import for_each
from tests.conftest import fitted

WIDE = Parallelism(dp=8, ep=8)


def deployment(
    engine: str = "sglang", overlap: bool = True, parallel: Parallelism = WIDE, **more: object
) -> Deployment:
    flags = EngineFlags(two_batch_overlap=overlap)
    request = Request(model="deepseek-v2-lite", gpu="h200-sxm", engine=engine, flags=flags, parallel=parallel)
    return assemble(replace(request, **more))  # type: ignore[arg-type]


def parts(phase: Phase) -> dict[str, float]:
    """Seconds of the parts of the layers, by the names that DeepSeek's operators have."""
    found = dict.fromkeys(("before", "attention", "shared", "dispatch", "experts", "combine", "alone"), 0.0)
    core = ("attn.core", "attn.absorb_v", "attn.out", "residual", "norm", "ffn.router")
    for cost in phase.stages[0]:
        name = cost.op.name
        if name in ("ffn.dispatch", "ffn.combine"):
            part = name.removeprefix("ffn.")
        elif name.startswith(core):
            part = "attention"
        elif name.startswith("attn."):
            part = "before"
        else:
            part = {"expert": "experts", "shared": "shared"}.get(name.split(".")[1] if "." in name else "", "alone")
        found[part] += float(cost.total)
    return found


@for_each(("engine", "ideal"), [("sglang", False), ("vllm", False), ("sglang", True)])
def test_half_batches_change_places(engine: str, ideal: bool) -> None:
    """SGLang's operations_strategy.py: routed experts of decodes beside nothing. vLLM's docs/design/dbo.md and an ideal
    device: attention and experts of one half beside dispatch and combine of the other."""
    whole, cut = deployment(engine, overlap=False, ideal=ideal), deployment(engine, ideal=ideal)
    half, phase = parts(decode_cycle(whole, 8 * 32.0, 4000.0)), decode_cycle(cut, 8 * 64.0, 4000.0)
    busy = 0.0 if ideal else 0.34

    def slot(wire: str, *own: str) -> float:
        return max(half[wire], sum(half[part] for part in own) + busy * half[wire])

    if engine == "sglang" and not ideal:
        kernels = 2 * (slot("dispatch", "shared", "before") + slot("combine", "attention") + half["experts"])
    else:
        kernels = slot("dispatch", "before", "attention") + slot("dispatch", "experts")
        kernels += slot("combine", "experts", "shared") + slot("combine", "before", "attention", "shared")
    kernels += 2 * half["alone"]
    step = cut.step
    assert float(phase.time) == pytest.approx(step.host + 64 * step.sequence + kernels + 27 * step.layer, rel=1e-9)
    assert sum(map(float, phase.by_operator().values())) == pytest.approx(float(phase.time), rel=1e-9)


def test_slots_by_hand() -> None:
    """Of both halves 3 ms of projections, 7 of attention, 1 of shared experts, dispatch 6, routed experts 4, combine 8
    and 2 that nothing is beside. Slots of 10/2, 6/2, 8/2 and 11/2 ms; experts apart 6, 8 and 4 ms.

    Where an exchange computes for half of its time, attention takes 13/2 and 15/2, experts 7/2 and 9/2. Where half of
    the shorter shows, 3/2, 2/2, 2.5/2 and 4/2 more.
    """
    parts = (3.0, 7.0, 1.0, 6.0, 4.0, 8.0, 2.0)
    assert float(Overlap().seconds(*parts)) == pytest.approx((10 + 6 + 8 + 11) / 2 + 2)
    assert float(Overlap(experts_hide=False).seconds(*parts)) == pytest.approx(6 + 8 + 4 + 2)
    assert float(Overlap(computes=0.5).seconds(*parts)) == pytest.approx((13 + 7 + 9 + 15) / 2 + 2)
    assert float(Overlap(shows=0.5).seconds(*parts)) == pytest.approx((13 + 8 + 10.5 + 15) / 2 + 2)


def test_weights_are_read_by_both_halves_and_work_is_conserved() -> None:
    once, twice = (decode_cycle(deployment(overlap=o), 8 * 64.0, 4000.0) for o in (False, True))
    assert float(twice.flop) == pytest.approx(float(once.flop))
    assert float(twice.resident) > float(once.resident)
    assert float(twice.wire) == pytest.approx(float(once.wire))


@for_each(("engine", "least"), [("vllm", 32.0), ("sglang", 2.0)])
def test_small_steps_are_not_cut(engine: str, least: float) -> None:
    """vLLM cuts decodes of 32 tokens and more (``dbo_decode_token_threshold``), SGLang whatever has two."""
    tokens = np.array([1.0, least - 1.0, least])
    plain, cut = (decode_cycle(deployment(engine, overlap=o), 8 * tokens, 4000.0) for o in (False, True))
    assert np.asarray(cut.time)[:2] == pytest.approx(np.asarray(plain.time)[:2], rel=1e-12)
    assert np.asarray(cut.time)[2] != pytest.approx(np.asarray(plain.time)[2], rel=1e-3)


@for_each("engine", ["vllm", "sglang"])
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
        assert sum(unfloored) == pytest.approx(float(prompt_drain(made, 8.0, prompt).time), rel=5e-3)


@for_each(("overlap", "launches"), [(False, 1.0), (True, 2.0)])
def test_kernels_of_halves_are_launched_twice(overlap: bool, launches: float) -> None:
    """27 layers of latent attention and experts: three times a layer's launches of SGLang's (docs/serving.md)."""
    made, step = deployment(overlap=overlap), prefill(1.0, 2000.0, 0.0)
    floor = launches * 27 * fitted("sglang", "eager_layer") * 3
    assert launch_floors(made, step) == [pytest.approx(floor)]
    times, chunk = step_times(made, Reach(sequences=8, tokens=4096, context=4096)), Chunk(1, 2000.0, 2000 * 2001 / 2)
    bare = sum(replace(times, floors=[0.0]).stations(0, 0.0, chunk))
    assert sum(times.stations(0, 0.0, chunk)) == pytest.approx((bare**4 + floor**4) ** 0.25)
    assert times.mixed(0, 0.0, chunk) == pytest.approx((bare**4 + floor**4) ** 0.25)


def test_refused_where_the_engine_has_none_or_nothing_is_exchanged() -> None:
    with pytest.raises(UsageError, match="no two half batches"):
        deployment("trtllm")
    with pytest.raises(UsageError, match="hides the exchange"):
        deployment(parallel=Parallelism(tp=8, ep=8))


def test_steps_in_halves_are_not_priced_the_plain_way() -> None:
    """The price of whole prompts in one piece knows no halves (``plain_replica``)."""
    reach = Reach(sequences=8, tokens=2048, context=4096)
    assert not step_times(deployment(), reach).simple
    one = Request(model="deepseek-v2-lite", gpu="h200-sxm", engine="sglang", parallel=Parallelism(tp=8, ep=8))
    assert step_times(assemble(one), reach).simple
