"""One unit of work more never takes less time; a time leaps only where ``explain`` says why (docs/continuity.md)."""

from __future__ import annotations

import random

import numpy as np
import pytest

from inferplan.devices.constants import Calibration, Fit
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build, masks
from inferplan.estimate.roofline import price, time_terms
from inferplan.work.formats import FORMATS
from inferplan.work.ops import Attention, Mask
from inferplan.work.step import decode
from tests.benchmarks.bench_continuity import NAMED, breaks, drawn, walks
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


def _whole_masks(deployment: Deployment) -> bool:
    """No mask begins anew on the way: where one does, its work falls (docs/continuity.md)."""
    return all(mask.kind in ("causal", "full", "window") for mask in masks(build(deployment, decode(1.0, 100.0))))


def test_drawn_deployments_neither_fall_nor_leap_without_a_name() -> None:
    """Of steps and idle first tokens; users are in the table of docs/continuity.md."""
    wrong = []
    for number, (asked, deployment) in enumerate(drawn(16, 32)):
        for walk in walks(deployment, chosen=random.Random(number)) if _whole_masks(deployment) else ():
            found = breaks(walk) if "users" not in walk.name else []
            wrong += [f"{asked} {one}" for one in found if one.kind == "fall" or not one.cause.startswith(NAMED)]
    assert not wrong, "\n".join(wrong)
