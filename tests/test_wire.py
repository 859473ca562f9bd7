"""Which link a group of ranks talks over, and what a message costs on it, by hand."""

from __future__ import annotations

import pytest

from inferplan.devices.hardware import HardwareSpec, Link
from inferplan.estimate.phase import run_step
from inferplan.estimate.roofline import OpCost
from inferplan.work.ops import Collective
from inferplan.work.parallel import Parallelism
from inferplan.work.step import decode, prefill
from tests.builders import chip, dense, deploy
from tests.cases import for_each

WIDTH = 1024
NODE, RAIL = 450e9, 50e9


def node(switch_reduces: bool = False) -> HardwareSpec:
    """Eight devices behind a fast switch, any number over a slow rail."""
    fast = Link(name="fast", bandwidth="450 GB/s", domain=8, switch_reduces=switch_reduces)
    return chip(1e12, 1e15, link=[fast, Link(name="rail", bandwidth="50 GB/s")])


def costs(step: object, hardware: HardwareSpec, **degrees: int) -> dict[str, OpCost]:
    model = dense(layers=2, d_model=WIDTH, heads=16, d_ff=2048, vocab=256)
    phase = run_step(deploy(model, hardware, parallel=Parallelism(**degrees)), step)  # type: ignore[arg-type]
    return {cost.op.name: cost for cost in phase.costs}


@for_each(("tp", "bandwidth"), [(2, NODE), (4, NODE), (8, RAIL)])
def test_a_stage_sends_to_the_next_over_the_link_that_joins_both(tp: int, bandwidth: float) -> None:
    """Two stages of 4 share a node of 8; two stages of 8 do not, so 512 x 1024 bf16 go over the rail."""
    sent = costs(prefill(1.0, 512.0), node(), tp=tp, pp=2)["pipeline.send"]
    assert float(sent.time) == pytest.approx(512 * WIDTH * 2 / bandwidth, rel=1e-12)


@for_each(("tp", "switch", "factor"), [(2, False, 1.0), (8, False, 2 * 7 / 8), (2, True, 1.0), (8, True, 1.0)])
def test_an_all_reduce_sends_each_byte_twice_round_a_ring_or_once_to_a_switch(
    tp: int, switch: bool, factor: float
) -> None:
    reduced = costs(decode(6.0, 100.0), node(switch), tp=tp)["attn.all_reduce"]
    assert float(reduced.time) == pytest.approx(factor * 6 * WIDTH * 2 / NODE, rel=1e-12)


@for_each(("pattern", "share"), [("all_gather", 0.75), ("reduce_scatter", 0.75), ("all_to_all", 0.75), ("send", 1.0)])
def test_bytes_on_the_wire_of_a_rank(pattern: str, share: float) -> None:
    bf16 = deploy(dense(layers=1, d_model=64, heads=4, d_ff=64, vocab=64), chip(1e12, 1e15)).precision.base
    op = Collective(name="x", pattern=pattern, elements=1000.0, group=4, format=bf16, span=4)
    assert op.work().wire == share * 2000
