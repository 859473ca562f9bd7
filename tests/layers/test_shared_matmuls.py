"""A step's segments share every matmul: one launch for the rows of all of them, as engines batch them."""

from __future__ import annotations

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import names
from inferplan.estimate.graph import build
from inferplan.work.ops import GroupedMatmul, Matmul
from inferplan.work.step import Segment, Step
from tests.cases import for_each

FIRST, SECOND = Segment(batch=3.0, new=1.0, past=100.0), Segment(batch=5.0, new=1.0, past=7.0)


@for_each("model", names("models"))
def test_two_segments_launch_the_matmuls_of_one(model: str) -> None:
    deployment = assemble(Request(model=model, gpu="b200-hgx", ideal=True))

    def matmuls(*segments: Segment) -> list[tuple[str, float, float]]:
        (stage,) = build(deployment, Step(segments=segments))
        return [(op.name, op.count, float(op.m)) for op in stage.ops if isinstance(op, (Matmul, GroupedMatmul))]

    both, first, second = matmuls(FIRST, SECOND), matmuls(FIRST), matmuls(SECOND)
    assert [name for name, *_ in both] == [name for name, *_ in first]
    for (name, count, rows), (_, one, a), (_, _, b) in zip(both, first, second):
        assert (count, rows) == (one, pytest.approx(a + b)), name
