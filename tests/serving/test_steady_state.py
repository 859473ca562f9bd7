"""The closed form against the simulator, and its own laws. The whole grid: tests/benchmarks/compare_steady_state.py."""

from __future__ import annotations

import numpy as np
import pytest

from inferplan.estimate.memory import Footprint
from inferplan.serving.flags import Flags, rules_of, with_flags
from inferplan.serving.steady import UserLoad, admissible, steady_state
from inferplan.work.parallel import Parallelism
from tests.benchmarks.compare_steady_state import compare, grid
from tests.cases import for_each
from tests.serving.conftest import deployment


def test_closed_form_and_simulator_agree() -> None:
    points = grid()
    assert len(points) == 200
    chosen = [points[index] for index in np.random.default_rng(3).permutation(len(points))[:24]]
    errors = np.array([compare(point) for point in chosen])
    tpot, rate = np.abs(errors[:, 0]), np.abs(errors[:, 1])
    assert np.median(tpot) <= 0.03 and np.median(rate) <= 0.03
    assert np.percentile(tpot, 90) <= 0.10 and np.percentile(rate, 90) <= 0.10


def test_one_call_prices_a_grid() -> None:
    served = deployment(ideal=False)
    users = np.array([1.0, 8.0, 64.0, 512.0])[:, None]
    prompt = np.array([256.0, 4096.0])[None, :]
    state = steady_state(served, UserLoad(concurrency=users, prompt=prompt, output=200.0))
    assert np.shape(state.tpot) == (4, 2)
    one = steady_state(served, UserLoad(concurrency=64.0, prompt=4096.0, output=200.0))
    assert float(np.asarray(state.tpot)[2, 1]) == pytest.approx(float(one.tpot), rel=1e-5)
    assert np.all(np.diff(np.asarray(state.tpot), axis=0) > 0)
    assert np.all(np.diff(np.asarray(state.output_rate), axis=0) > -1e-6)


def test_who_does_not_fit_waits() -> None:
    served = deployment("llama-3.1-70b", "h200-sxm", ideal=False, quant="fp8", roles=(("kv", "fp8"),))
    free = steady_state(served, UserLoad(concurrency=16.0, prompt=8192.0, output=1024.0))
    full = steady_state(served, UserLoad(concurrency=128.0, prompt=8192.0, output=1024.0))
    assert free.queue == 0 and free.wait == 0
    assert full.admitted == full.admissible < 128
    assert full.queue == pytest.approx(128 - float(full.admitted))
    assert float(full.wait) > 10
    assert float(full.request_rate) * float(full.e2el) == pytest.approx(128, rel=1e-6)  # Little's law


def test_slots_limit_the_batch() -> None:
    state = steady_state(deployment(), UserLoad(concurrency=64.0, prompt=512.0, output=512.0), Flags(max_num_seqs=8))
    assert state.admitted == 8 and state.queue == 56


def test_cached_prompts_are_cheaper() -> None:
    served = deployment(ideal=False)
    load = {"concurrency": 32.0, "prompt": 4096.0, "output": 128.0}
    cold, warm = (steady_state(served, UserLoad(hit_rate=rate, **load)) for rate in (0.0, 0.75))
    assert float(warm.ttft) < 0.6 * float(cold.ttft)
    assert float(warm.request_rate) > float(cold.request_rate)


def test_a_window_that_no_request_fills_is_cache_like_any_other() -> None:
    """Requests of 2,500 tokens under a window of 4,096 hold what they have written, as without a window.

    By hand: 2 * 8 heads * 128 * 32 layers * 2 bytes = 131,072 bytes a token; a request holds 2,000 + 500/2 tokens on
    average and half a block of 16 more.
    """
    served = with_flags(deployment("mistral-7b-v0.1", "l40s", ideal=False, quant="fp8"), Flags(max_num_seqs=4000))
    rules = rules_of(served, Flags(), 2000.0, 2500.0)
    pool = Footprint(deployment=served, batch=1.0, prompt=2500.0, context=2500.0).kv_pool
    assert rules.growing and rules.windows == ()
    assert float(admissible(rules, 2000.0, 500.0)) == pytest.approx(pool / 131072 / (2250 + 7.5), rel=1e-9)
    longer = rules_of(served, Flags(), 6000.0, 8000.0)  # the window is full long before the end: held from the start
    assert not longer.growing
    # two steps of 2,048 tokens may be in flight, more than the 6,000 - 4,096 of the prompt that the window lets go of
    assert longer.unsettled(6000.0) == pytest.approx(1904 * 131072)
    assert float(admissible(longer, 6000.0, 2000.0)) == (pool - 1904 * 131072) // (4096 * 131072)


@for_each(
    ("model", "degrees", "lengths"),
    [
        ("qwen-72b", {"tp": 8, "dp": 4}, (4000.0, 64.0)),  # half steps towards the batch went round in a ring here
        ("opt-350m", {}, (8000.0 / 4, 64.0)),
        ("mixtral-8x7b-v0.1", {"tp": 2, "dp": 2, "ep": 4, "pp": 2}, (1000.0, 200.0)),
    ],
)
def test_more_users_never_start_sooner(model: str, degrees: dict[str, int], lengths: tuple[float, float]) -> None:
    served = deployment(model, "a100-80gb-sxm", ideal=False, parallel=Parallelism(**degrees))
    users = served.parallel.dp * np.array([1.0, 2, 4, 8, 16, 24, 32, 40, 44, 46, 48, 56, 64, 96, 128])
    state = steady_state(served, UserLoad(concurrency=users, prompt=lengths[0], output=lengths[1]))
    for latency in (state.ttft, state.tpot):
        assert np.all(np.diff(np.asarray(latency)) >= -2e-3 * np.asarray(latency)[:-1])
