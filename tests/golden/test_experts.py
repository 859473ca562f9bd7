"""Experts that a step reads, against every possible routing table."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import Phase, decode_phase
from inferplan.work.ops import GroupedMatmul
from inferplan.work.parallel import Parallelism
from tests.builders import chip, dense, deploy

EXPERTS, TOP_K, WIDTH, D_FF = 4, 2, 64, 32
ONE_EXPERT = 3 * WIDTH * D_FF * 2
"""Bytes of one gated bf16 expert."""


def phase(tokens: int, parallel: Parallelism | None = None) -> Phase:
    ffn = {"kind": "moe", "experts": EXPERTS, "top_k": TOP_K, "d_ff": D_FF}
    model = dense(layers=1, d_model=WIDTH, heads=4, kv_heads=4, d_ff=1, vocab=256, ffn=ffn)
    deployment = deploy(model, chip(1e12, 1e15, link=1e11), parallel=parallel or Parallelism())
    return decode_phase(deployment, StaticLoad(batch=float(tokens), prompt=1.0, output=2.0), 1.0)


def distinct_by_enumeration(tokens: int) -> float:
    """Mean number of distinct experts over every table of equally likely choices."""
    choices = list(combinations(range(EXPERTS), TOP_K))
    tables = list(product(choices, repeat=tokens))
    return sum(len(set().union(*table)) for table in tables) / len(tables)


def expert_failures() -> list[str]:
    """Where the expert traffic or FLOP of a decode step are not those of the enumeration."""
    failures = []
    for parallel in (Parallelism(), Parallelism(tp=2), Parallelism(tp=4, ep=2), Parallelism(tp=4, ep=4)):
        for tokens in (1, 2, 3, 4):
            costs = [cost for cost in phase(tokens, parallel).costs if isinstance(cost.op, GroupedMatmul)]
            read = sum(float(cost.op.resident() * cost.op.ranks) for cost in costs) / ONE_EXPERT
            if read != pytest.approx(distinct_by_enumeration(tokens)):
                failures.append(f"{tokens} tokens, {parallel.describe()}: {read} experts read")
            flop = sum(float(cost.work.flop * cost.op.ranks) for cost in costs)
            if flop != pytest.approx(2 * tokens * TOP_K * 3 * WIDTH * D_FF):
                failures.append(f"{tokens} tokens, {parallel.describe()}: {flop} FLOP")
    return failures


def test_experts_read_are_those_of_every_routing_table() -> None:
    assert not expert_failures()


def test_enumeration_by_hand() -> None:
    """One token reads its two; two tokens read three of four on average: 4 (1 - (1/2)^2)."""
    assert distinct_by_enumeration(1) == 2
    assert distinct_by_enumeration(2) == 3
