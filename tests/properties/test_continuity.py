"""One unit of work more never takes less time; a time leaps only where ``explain`` says why (docs/continuity.md)."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from inferplan.api import deploy
from inferplan.devices.constants import Calibration, Fit
from inferplan.estimate.phase import prompt_drain
from inferplan.estimate.roofline import price, time_terms
from inferplan.serving.first_token import IdlePrompt, first_token
from inferplan.serving.launches import launch_floors
from inferplan.serving.rounds import holding
from inferplan.work.formats import FORMATS
from inferplan.work.ops import Attention, Mask
from inferplan.work.step import prefill
from tests.benchmarks.bench_continuity import breaks, drawn, walks
from tests.builders import chip

BF16 = FORMATS["bf16"]
HARDWARE = chip(1e12, {"bf16": 1e15})


def _attention(new: float) -> Attention:
    return Attention(
        name="attn.core",
        batch=4.0,
        new=new,
        past=1000.0,
        heads=32,
        kv_heads=8,
        key_dim=128,
        value_dim=128,
        mask=Mask(kind="causal"),
        base=BF16,
        kv=BF16,
    )


def _constants(one: float, many: float) -> Calibration:
    """Kernels that take nothing but a fixed time: that of few tokens and that of many."""
    fits = {"attention.decode": {"bf16": Fit(overhead=one)}, "attention.prefill": {"bf16": Fit(overhead=many)}}
    return Calibration(name="by hand", constants=fits)


def _beyond_overhead(new: float) -> float:
    """Seconds of the bytes: queries and outputs of 32 heads, keys and values of 8, of 128 in bf16, at 1 TB/s."""
    return 4 * (2 * new * 32 * 128 + 2 * (1000 + new) * 8 * 128) * 2 / 1e12


def test_kernels_of_few_and_of_many_tokens_hold_each_other() -> None:
    """Of 1 ms for few and 0.2 ms for many, 2 to 17 tokens take what one does; of 0.2 and 1 ms each has its own."""
    slow_decode = _constants(1e-3, 2e-4)
    one = 1e-3 + _beyond_overhead(1)
    for new in (1.0, 2.0, 16.0, 17.0):
        assert float(price(_attention(new), HARDWARE, slow_decode).time) == pytest.approx(one, rel=1e-9), new
    slow_prefill = _constants(2e-4, 1e-3)
    for new, overhead in ((1.0, 2e-4), (16.0, 2e-4), (17.0, 1e-3)):
        expected = overhead + _beyond_overhead(new)
        assert float(price(_attention(new), HARDWARE, slow_prefill).time) == pytest.approx(expected, rel=1e-9), new


def test_the_formula_of_a_held_kernel_gives_its_time() -> None:
    op, constants = _attention(16.0), _constants(1e-3, 2e-4)
    term = time_terms(op, HARDWARE, constants)
    assert float(np.max(term.evaluate())) == pytest.approx(float(price(op, HARDWARE, constants).time))
    assert "attention.prefill of 17 tokens" in term.formula


def test_a_grid_of_prompts_is_priced_as_each_of_its_points() -> None:
    """Of 600 prompts those alone are put to the kernel of one token that its longest could reach."""
    slow_decode = _constants(20e-6, 1e-6)
    new, batch = np.arange(17.0, 317.0), np.array([[1.0], [500.0]])
    grid = price(replace(_attention(1.0), new=new, batch=batch), HARDWARE, slow_decode).time
    each = [
        [float(price(replace(_attention(one), batch=many), HARDWARE, slow_decode).time) for one in new]
        for many in (1.0, 500.0)
    ]
    assert grid == pytest.approx(np.array(each), rel=1e-12)
    assert each[0][0] == pytest.approx(20e-6 + _beyond_overhead(1) / 4, rel=1e-9)


def test_pieces_of_a_prompt_under_chunks_take_what_each_takes() -> None:
    """Llama 4 looks at chunks of 8192: 20000 tokens at 2048 a step, one step after the other."""
    deployment = deploy("llama-4-scout-17b-16e", "b200-hgx", engine="vllm", tp=4)
    steps = [(min(2048.0, 20000.0 - past), float(past)) for past in range(0, 20000, 2048)]
    each = [
        prompt_drain(deployment, 1.0, *step).step_time.at_least(launch_floors(deployment, prefill(1.0, *step))).passage
        for step in steps
    ]
    first = first_token(deployment, IdlePrompt(new=20000.0, cached=0.0, budget=2048.0))
    assert float(first.prompt + first.launches) == pytest.approx(sum(map(float, each)))


def test_a_prompt_of_whole_tokens_has_none_behind_it() -> None:
    """Prompts that come 0.00795 a step into two batches in flight: 1.002 a batch that holds any, each whole."""
    held = holding(0.00795, 1022.0, 8192.0, (2.0, 1))
    prompts = held.prompts(1022.0, 0.0)
    assert (float(prompts.new), float(prompts.past)) == (1022.0, 0.0)
    assert float(prompts.number) == pytest.approx(0.003975 / (1 - math.exp(-0.003975)))


def test_drawn_deployments_neither_fall_nor_leap_without_a_name() -> None:
    """Of steps and idle first tokens; users are in the table of docs/continuity.md."""
    wrong = []
    for number, (asked, deployment) in enumerate(drawn(16, 32)):
        for walk in walks(deployment, chosen=random.Random(number)):
            found = breaks(walk) if "users" not in walk.name else []
            wrong += [f"{asked} {one}" for one in found if not one.explained]
    assert not wrong, "\n".join(wrong)
