"""The simulator against block-exact replays of vLLM V1's scheduler, request by request.

Two replays, which know nothing of each other: ours (``vllm_replay.py``) and, where the reference data lies beside the
checkout, ``shared/oracles/vllm_v1_replay.py``. On steps whose time is known in the head, and on whole loads at the
simulator's own step prices (``replay_cases.py``).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.serving.simulator import simulate
from inferplan.traffic.conversations import own_names
from tests.cases import for_each
from tests.serving import vllm_replay
from tests.serving.plain_time import EACH, HOST, plain, requests
from tests.serving.replay_cases import CASES, SHARED, Case, agreement
from tests.serving.vllm_replay import Request, replay

PATH = SHARED / "oracles/vllm_v1_replay.py"


def _other() -> Any:
    if not PATH.is_file():
        return pytest.param(None, marks=pytest.mark.skip(reason=f"no {PATH}"))
    spec = importlib.util.spec_from_file_location("vllm_v1_replay", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


both = pytest.mark.parametrize("oracle", [vllm_replay, _other()], ids=["ours", "the other"])
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

# --- the replay itself, by hand -------------------------------------------------------------------------------------


def second(decodes: list[int], pieces: list[tuple[int, int]]) -> float:
    return 1.0


def test_a_prompt_is_cut_to_the_budget_in_the_replay() -> None:
    """40 tokens at 16 a step: done at 3 s; the second prompt has 8 of its 10 in that step, the rest beside a decode."""
    (a, b), steps = replay([Request(0.0, 40, 2), Request(0.0, 10, 1)], second, slots=4, budget=16, blocks=8)
    assert (a.first, a.finish, b.first, steps) == (3.0, 4.0, 4.0, 4)


def test_the_last_one_is_preempted_in_the_replay() -> None:
    """Three blocks, two prompts of one: both grow into a second, one is there, A takes it. B has made 1 token; when A
    is done at 3 s it computes all 17 anew or, where its first block has a name, the one token after it.
    """
    for names, again in (((), (17, 0)), (("b",), (1, 16))):
        pieces: list[tuple[int, int]] = []

        def noted(decodes: list[int], chunks: list[tuple[int, int]], pieces: list[tuple[int, int]] = pieces) -> float:
            pieces.extend(chunks)
            return 1.0

        rows = [Request(0.0, 16, 3), Request(0.0, 16, 3, names)]
        (a, b), _ = replay(rows, noted, slots=4, budget=64, blocks=3)
        assert (a.finish, a.preempted, b.first, b.preempted, b.finish) == (3.0, 0, 1.0, 1, 5.0)
        assert pieces == [(16, 0), (16, 0), again]


def test_a_turn_finds_the_answer_in_the_replay() -> None:
    """100 and 300 tokens, of which 399 are computed: 24 blocks of 16 for the next turn. In a cache of 30 a request of
    401 cached tokens in between takes 26 and leaves the first 4, which are the last to go.
    """
    told = tuple(("told", at) for at in range(24))
    turns = [Request(0.0, 100, 300, told), Request(500.0, 450, 1, told)]
    assert replay(turns, second, slots=4, budget=4096, blocks=100)[0][1].hits == 24 * 16
    turns = [Request(0.0, 100, 300, told), Request(400.0, 400, 2), Request(500.0, 450, 1, told)]
    assert replay(turns, second, slots=4, budget=4096, blocks=30)[0][2].hits == 4 * 16


# --- steps of known time --------------------------------------------------------------------------------------------


def compare(
    oracle: Any, rows: list[tuple[float, int, int]], slots: int, budget: int, blocks: int, cached: bool
) -> None:
    def seconds(decodes: list[int], chunks: list[tuple[int, int]]) -> float:
        return HOST + EACH * (len(decodes) + sum(new for new, _ in chunks))

    sent = [
        oracle.Request(*row, own_names(index, 0, row[1] + row[2] - 1) if cached else ())
        for index, row in enumerate(rows)
    ]
    expected, _ = oracle.replay(sent, seconds, slots=slots, budget=budget, blocks=blocks, block_size=1)
    served = plain(capacity=blocks, slots=slots, budget=budget, prefix_caching=cached)
    run = simulate(served, requests(*rows))
    for name in ("first", "finish"):
        ours, theirs = getattr(run.records, name), [getattr(outcome, name) for outcome in expected]
        assert np.allclose(ours, theirs, rtol=3e-4), (name, ours, theirs)
    assert [run.records.preempted.get(i, 0) for i in range(len(rows))] == [o.preempted for o in expected]


@both
@law
@given(loads, st.integers(1, 8), st.integers(16, 128))
def test_with_room_for_all(oracle: Any, rows: list[tuple[float, int, int]], slots: int, budget: int) -> None:
    compare(oracle, rows, slots, budget, 1 << 20, cached=False)


@both
@law
@given(loads, st.integers(1, 8), st.integers(16, 400), st.integers(121, 300), st.booleans())
def test_with_a_cache_that_runs_full(
    oracle: Any, rows: list[tuple[float, int, int]], slots: int, budget: int, blocks: int, cached: bool
) -> None:
    compare(oracle, rows, slots, budget, blocks, cached)


@both
def test_a_prompt_in_chunks_while_the_cache_runs_full(oracle: Any) -> None:
    """C's 80 tokens come in chunks of 14 and find room as A leaves; were they reserved, C would be preempted."""
    compare(oracle, [(0.0, 1, 7), (0.0, 30, 6), (0.0, 80, 1)], slots=3, budget=16, blocks=121, cached=False)


# --- whole loads ----------------------------------------------------------------------------------------------------


@both
@for_each("case", CASES, ids=lambda case: case.name)
def test_every_request_agrees(case: Case, oracle: Any) -> None:
    if not case.available:
        pytest.skip(f"no {SHARED / 'traces' / case.trace}")
    if case.reacts and oracle is not vllm_replay:
        pytest.skip("the other replay knows no answers")
    found = agreement(case, min(case.count, 150), oracle)
    assert found.agrees, found
    if oracle is vllm_replay:
        assert found.computed[0] == found.computed[1], found
    assert (found.preemptions[0] > 0) == ("preempt" in case.shows)
    assert (found.hits[0] > 0) == ("hits" in case.shows)
