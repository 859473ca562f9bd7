"""Ratios of measured runs that differ in one thing, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml

from inferplan.validation.rows import Run
from tools.fitting.forms import DIFFERENCES, Configuration, Pair, Ratios, Rule, forms_yaml, output_rate, pairs

BASE: dict[str, Any] = {
    "model": "deepseek-r1",
    "gpu": "b200-hgx",
    "engine": "trtllm",
    "engine_version": "1.2.0",
    "precision": None,
    "weights": "nvfp4",
    "experts": "nvfp4",
    "kv": "fp8",
    "activations": None,
    "prompt": 1024.0,
    "output": 1024.0,
    "concurrency": 8,
    "ratio_min": 0.8,
}


def measured(made: float, said: float, **changes: Any) -> Configuration:
    """A run that makes so many tokens/s a GPU, and is predicted to make so many."""
    return Configuration(
        run=Run(**{**BASE, "tp": 4, **changes}),
        measured=made,
        predicted=said,
        latencies=(0.1, 0.01),
        said=(0.1, 0.01),
        suspect=False,
    )


def test_what_a_closed_loop_makes() -> None:
    """8 users, outputs of 0.9 x 1,024 = 921.6 tokens on average: 0.5 s and 920.6 times 10 ms each, on 4 GPUs."""
    assert output_rate(Run(**BASE, tp=4), 0.5, 0.01) == pytest.approx(8 * 921.6 / (0.5 + 9.206) / 4)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("expert parallelism", {"ep": 4}),
        ("attention data parallelism", {"tp": 1, "dp": 4}),
        ("drafts", {"draft": "mtp", "draft_tokens": 3}),
        ("engine release", {"engine_version": "1.3.0"}),
        ("tensor parallelism", {"tp": 8}),
        ("format", {"weights": "fp8-block", "experts": "fp8-block"}),
        ("GPU", {"gpu": "h200-sxm"}),
        ("engine", {"engine": "vllm"}),
    ],
)
def test_a_pair_differs_in_one_thing(name: str, change: dict[str, Any]) -> None:
    """Twice as good when measured, 1.5 times when predicted, whichever comes first; a run of more users is no pair."""
    simple, other = measured(100.0, 100.0), measured(200.0, 150.0, **change)
    elsewhere = measured(999.0, 1.0, **{**change, "concurrency": 16})
    for order in ([simple, other, elsewhere], [elsewhere, other, simple]):
        (found,) = pairs(order, DIFFERENCES[name])
        assert abs(found.measured) == pytest.approx(np.log(2)) and abs(found.predicted) == pytest.approx(np.log(1.5))
        assert found.right is True
        if name in ("expert parallelism", "attention data parallelism", "drafts"):
            assert found.measured > 0
    others = [one for one in DIFFERENCES if one != name]
    assert not [pair for one in others for pair in pairs([simple, other], DIFFERENCES[one])]


def test_attention_data_parallelism_is_over_as_many_gpus() -> None:
    assert not list(
        pairs([measured(1.0, 1.0), measured(2.0, 2.0, tp=1, dp=8)], DIFFERENCES["attention data parallelism"])
    )


def pair(model: str, made: float, said: float) -> Pair:
    return Pair(model=model, system=model, measured=float(np.log(made)), predicted=float(np.log(said)), suspect=False)


def test_how_well_ratios_are_predicted() -> None:
    """Off by 0, 10, 20 % and a factor 2; one pair is equal, one of the others in the wrong order."""
    found = Ratios.of([pair("a", 1.5, 1.5), pair("a", 1.0, 1.1), pair("b", 1.2, 1.44), pair("b", 1.4, 0.7)])
    assert (found.pairs, found.models, found.apart, found.right) == (4, 2, 3, 2)
    # each of two models with two pairs: four of one weight, whose middles are at 1/8, 3/8, 5/8 and 7/8
    assert found.median == pytest.approx((np.log(1.1) + np.log(1.2)) / 2)
    assert found.error == pytest.approx(0.3 * np.log(1.2) + 0.7 * np.log(2))
    assert found.bias == pytest.approx((0.0 + np.log(1.1)) / 2)


def test_the_rule_is_judged_by_the_errors_of_other_models() -> None:
    """Five pairs of "a" are off by a fifth. Of "b", 1.1 times predicted is within it and the simpler form is taken,
    which is right where it makes 10 % more and gives a half away where it makes half of the other; 1.5 times is
    beyond. Of the five of "a" nothing is said, for "b" has three."""
    known = [pair("a", 1.0, 1.2)] * 5
    found = Rule.of([*known, pair("b", 1 / 1.1, 1.1), pair("b", 2.0, 1.1), pair("b", 2.0, 1.5)])
    assert found is not None
    assert (found.pairs, found.right, found.ruled) == (3, 2, 2)
    assert found.lost == pytest.approx((1 - 1 / 1.1) / 3)
    assert found.ruled_lost == pytest.approx(0.5 / 3)
    assert Rule.of(known) is None


def test_what_is_written() -> None:
    text = forms_yaml({"drafts": Ratios.of([pair("a", 1.0, 1.1)] * 5)}, "the command")
    found = yaml.safe_load(text)
    assert found["provenance"]["command"] == "the command"
    assert found["forms"]["drafts"] == {"error": 1.1, "pairs": 5, "models": 1, "right": 0, "apart": 0}
