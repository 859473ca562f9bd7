"""What two operators must share to be priced as one."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np

from inferplan.work.formats import FORMATS
from inferplan.work.ops import Attention, Copy, Mask, Matmul

BF16, FP8 = FORMATS["bf16"], FORMATS["fp8"]
TOKENS = np.array([1.0, 600.0])
MATMUL = Matmul(name="mlp.up", m=TOKENS, k=4096, n=14336, weight=BF16, input=BF16, output=BF16)
CORE = Attention(name="attn.core", batch=TOKENS, new=1.0, past=TOKENS, heads=32, kv_heads=8, key_dim=128,
                 value_dim=128, mask=Mask(), base=BF16, kv=BF16)  # fmt: skip


def test_name_and_count_alone_make_no_other_run() -> None:
    for op in (MATMUL, CORE):
        assert replace(op, name="other", count=7.0).run == op.repeated(3.0).run == op.run
        assert hash(op.repeated(3.0).run) == hash(op.run)


def test_every_other_field_makes_another_run() -> None:
    other: dict[str, Any] = {
        "ranks": 2,
        "fusible": True,
        "m": TOKENS.copy(),
        "k": 8192,
        "n": 4096,
        "batch": 2,
        "weight": FP8,
        "input": FP8,
        "output": FP8,
    }
    runs = {replace(MATMUL, **{name: value}).run for name, value in other.items()}
    assert len(runs | {MATMUL.run}) == len(other) + 1


def test_what_an_operator_has_worked_out_makes_no_other_run() -> None:
    fresh = replace(CORE)
    assert CORE.wide is False  # kept by the operator
    assert fresh.run == CORE.run


def test_operators_of_two_classes_are_two_runs() -> None:
    class Move(Copy):
        """The same fields."""

    parts: dict[str, Any] = {"elements": TOKENS, "source": BF16, "target": BF16}
    assert Copy(name="kv.write", **parts).run != Move(name="kv.write", **parts).run


def test_a_run_outlives_its_operator() -> None:
    """Nothing else comes to lie where its objects do, so that no later operator is taken for it."""
    tokens = np.array([3.0, 4.0])
    seen = weakref.ref(tokens)
    run = replace(MATMUL, m=tokens).run
    del tokens
    gc.collect()
    assert seen() is not None
    del run
    gc.collect()
    assert seen() is None
