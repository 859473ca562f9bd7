"""What limits choices among measured configurations, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inferplan.validation.rows import Run
from tests.benchmarks.decisions_choices import Choice, able_at
from tests.benchmarks.decisions_limits import behind_own_runs, by_value, errors_of, smaller
from tools.fitting.forms import Configuration

BASE: dict[str, Any] = {
    "gpu": "h100-sxm",
    "engine": "vllm",
    "engine_version": "0.18.0",
    "precision": None,
    "weights": "fp8",
    "experts": None,
    "kv": "bf16",
    "activations": None,
    "prompt": 1024.0,
    "output": 1024.0,
    "tp": 1,
}
LIMITS = 1.0, 0.010


def choice(model: str, took: tuple[float, float], said: tuple[float, float], users: int = 16) -> Choice:
    """A run that took so long for its first token and for each, and was said to."""
    run = Run(**BASE, model=model, concurrency=users)
    one = Configuration(run=run, measured=100.0, predicted=100.0, latencies=took, said=said, suspect=False)
    return Choice(one, frozenset(), None, {})


OTHERS = [choice("qwen3-32b", (0.1, 0.010 * off), (0.1, 0.010)) for off in (1.0, 1.0, 1.2, 1.2)]
"""Of another model: TTFT as predicted, TPOT 1.2 times as long in half of the runs."""


@pytest.mark.parametrize(
    ("makes", "loss", "chosen"),
    [(150.0, 0.0, 0), (220.0, 0.0, 1), (220.0, 0.5, 0)],
    ids=["150 x 1/2 < 100", "220 x 1/2 > 100", "220 x (1/2 - 0.5 x 1/2) < 100"],
)
def test_the_value_of_a_choice_is_its_worth_times_its_chance(makes: float, loss: float, chosen: int) -> None:
    """Under 10 ms a run that is said to take 9 keeps the limit where it is off by 1, and breaks it where by 1.2; one
    that is said to take 8 keeps it in either case, and makes 100."""
    group = [choice("llama-3.1-8b", (0.1, 0.008), (0.1, 0.008)), choice("llama-3.1-8b", (0.1, 0.009), (0.1, 0.009))]
    worth = {id(group[0]): 100.0, id(group[1]): makes}
    errors = errors_of([*OTHERS, *group])
    assert by_value(errors, loss)(group, LIMITS, lambda one: worth[id(one)]) is group[chosen]
    assert by_value(errors, loss)([group[1]], (0.05, 0.010), lambda one: makes) is None, "TTFT is never kept"


def test_errors_are_those_of_other_models_and_none_makes_faster() -> None:
    """Of four equal weights 0.9 lies beyond the middle of the last: 1.2; a factor below one is one."""
    fast = [choice("llama-3.1-8b", (0.05, 0.005), (0.1, 0.010)) for _ in range(4)]
    errors = errors_of([*OTHERS, *fast])
    assert errors["llama-3.1-8b"].slow()[0.9] == pytest.approx((1.0, 1.2))
    assert errors["qwen3-32b"].slow()[0.9] == (1.0, 1.0)
    slow = fast[0]._replace(slow=errors["llama-3.1-8b"].slow())
    assert able_at(0.9)([slow], (1.0, 0.0121), lambda one: 1.0) is slow
    assert able_at(0.9)([slow], (1.0, 0.0119), lambda one: 1.0) is None


def test_a_run_of_ones_own_corrects_the_others_of_its_form() -> None:
    """That of 16 users was twice as late as said, and 1.1 times as slow; it is no candidate itself."""
    own, other = (
        choice("qwen3-32b", (0.2, 0.011), (0.1, 0.010)),
        choice("qwen3-32b", (1.0, 0.03), (0.3, 0.02), users=64),
    )
    (found,) = behind_own_runs([own, other])
    assert found.one.said == pytest.approx((0.6, 0.022))
    assert found.one.predicted == pytest.approx(64 * 1024 / (0.6 + 1023 * 0.022), rel=1e-6)


def test_smaller_errors_are_shares_of_logarithms() -> None:
    """Four times as late as said, and a half of the error: said to be half as late."""
    one = choice("qwen3-32b", (0.4, 0.010), (0.1, 0.010))
    (found,) = smaller([one], 0.5)
    assert found.one.said == pytest.approx((0.2, 0.010))
    (same,) = smaller([one], 1.0)
    assert np.allclose(same.one.said, one.one.said) and replace(same.one, said=one.one.said, predicted=100.0) == one.one
