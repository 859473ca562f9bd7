"""Each planted bug is caught by at least one golden value or law; the honest model by none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from inferplan.work.formats import FORMATS
from inferplan.work.parallel import Parallelism
from tests.builders import all_in, chip, dense, deploy
from tests.golden.test_cs336 import CS336
from tests.golden.test_experts import expert_failures
from tests.golden.test_kipply import KIP
from tests.golden.test_scaling_book import SB
from tests.golden.test_seeds import SEED
from tests.mutants import MUTANTS, Mutant, planted
from tests.properties import test_laws as laws

POINT = {"batch": 8.0, "prompt": 300.0, "output": 40.0}


def sample(parallel: Parallelism) -> laws.Deployment:
    """One fixed deployment for the laws: grouped queries, a window, four ways."""
    model = dense(layers=2, d_model=256, heads=8, kv_heads=4, d_ff=512, vocab=1024, mixer={"window": 100}, norm="rms")
    return deploy(model, chip(1e12, 1e14, link=1e10), all_in(FORMATS["bf16"]), parallel)


def law(test: Callable[..., None], *arguments: object) -> Callable[[], list[str]]:
    """A law's body on one deployment, as a check that lists what it finds wrong."""

    def check() -> list[str]:
        try:
            test.hypothesis.inner_test(*arguments)  # type: ignore[attr-defined]
        except AssertionError as error:
            return [f"{test.__name__}: {error}"]
        return []

    return check


def window_check() -> list[str]:
    estimate = Estimate(deployment=sample(Parallelism()), load=StaticLoad(**POINT))
    expected = 8 * 100 * 2 * 4 * 32 * 2 * 2  # sequences, window, K and V, heads, width, layers, bytes
    return [] if estimate.footprint.state == expected else [f"KV {estimate.footprint.state}, not {expected}"]


CHECKS: dict[str, Callable[[], list[str]]] = {
    "CS336": CS336.failures,
    "Scaling Book": SB.failures,
    "kipply": KIP.failures,
    "seeds": SEED.failures,
    "experts": expert_failures,
    "window": window_check,
    "law of shards": law(laws.test_shards_conserve_flop, sample(Parallelism(tp=4)), POINT),
    "law of weight bytes": law(laws.test_shards_conserve_weight_bytes, sample(Parallelism(tp=4)), POINT),
    "law of saturation": law(laws.test_ideal_saturates_a_resource_in_every_operator, sample(Parallelism(tp=4)), POINT),
    "law of widths": law(laws.test_half_the_width_is_half_the_bytes, sample(Parallelism()), POINT, "bf16"),
}


def caught(mutant: Mutant | None) -> dict[str, int]:
    """How many values each check finds wrong."""
    with planted(mutant):
        found = {name: len(check()) for name, check in CHECKS.items()}
    return {name: number for name, number in found.items() if number}


def test_honest_model_passes_every_check() -> None:
    assert caught(None) == {}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    assert caught(mutant), f"no check notices: {mutant.name}"


def test_honest_model_passes_again() -> None:
    """Planting leaves nothing behind."""
    assert caught(None) == {}
