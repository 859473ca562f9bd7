"""The simulator against an independent, block-exact replay of vLLM V1's scheduler, on steps of known time.

The replay is reference data (``shared/oracles/vllm_v1_replay.py``); nothing of it is used here but its rules. Blocks
are one token, so that both count the same cache.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.serving.simulator import simulate
from tests.conftest import ROOT
from tests.serving.plain_time import EACH, HOST, plain, requests

PATH = Path(os.environ.get("INFERPLAN_SHARED") or ROOT.parent / "shared") / "oracles/vllm_v1_replay.py"
pytestmark = pytest.mark.skipif(not PATH.is_file(), reason=f"no {PATH}")
law = settings(
    max_examples=int(os.environ.get("INFERPLAN_LAW_EXAMPLES", "40")),
    deadline=None,
    derandomize="INFERPLAN_LAW_EXAMPLES" not in os.environ,
)
rows_of = st.lists(st.tuples(st.integers(0, 600), st.integers(1, 80), st.integers(1, 40)), min_size=1, max_size=12)
loads = rows_of.map(
    lambda rows: [
        (tenths / 10 + 0.003 * index, prompt, output)  # no arrival coincides with the end of a step
        for index, (tenths, prompt, output) in enumerate(sorted(rows))
    ]
)


def oracle() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vllm_v1_replay", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def compare(rows: list[tuple[float, int, int]], slots: int, budget: int, blocks: int) -> None:
    replay = oracle()

    def seconds(decodes: list[int], chunks: list[tuple[int, int]]) -> float:
        return HOST + EACH * (len(decodes) + sum(new for new, _ in chunks))

    expected, _ = replay.replay(
        [replay.Request(*row) for row in rows], seconds, slots=slots, budget=budget, blocks=blocks, block_size=1
    )
    run = simulate(plain(capacity=blocks, slots=slots, budget=budget), requests(*rows))
    for name in ("first", "finish"):
        ours, theirs = getattr(run.records, name), [getattr(outcome, name) for outcome in expected]
        assert np.allclose(ours, theirs, rtol=3e-4), (name, ours, theirs)
    assert [run.records.preempted.get(i, 0) for i in range(len(rows))] == [o.preempted for o in expected]


@law
@given(loads, st.integers(1, 8), st.integers(16, 128))
def test_with_room_for_all(rows: list[tuple[float, int, int]], slots: int, budget: int) -> None:
    compare(rows, slots, budget, 1 << 20)


@law
@given(loads, st.integers(1, 8), st.integers(1000, 2000), st.integers(121, 300))
def test_with_a_cache_that_runs_full(rows: list[tuple[float, int, int]], slots: int, budget: int, blocks: int) -> None:
    compare(rows, slots, budget, blocks)


def test_a_prompt_in_chunks_while_the_cache_runs_full() -> None:
    """C's 80 tokens come in chunks of 14 and find room as A leaves; were they reserved, C would be preempted."""
    compare([(0.0, 1, 7), (0.0, 30, 6), (0.0, 80, 1)], slots=3, budget=16, blocks=121)
