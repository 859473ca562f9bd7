"""Laws of LoRA adapters on random deployments: more adapters, a higher rank and more sequences never make a step
shorter, and adapters that nobody uses cost nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.models.lora import adapters_of
from inferplan.units import Num
from inferplan.work.adapters import MODULES, LoraAsked
from inferplan.work.formats import FORMATS
from tests.properties.test_laws import law, rising
from tests.strategies import deployments, parallelisms

DENSE = ("attention", "mlp")
some_of_them = st.sets(st.sampled_from(sorted(MODULES)), min_size=1).map(lambda names: tuple(sorted(names)))
plain = deployments(kinds=DENSE, parallels=parallelisms(cp=False).map(lambda one: replace(one, ep=1)))


def adapted(deployment: Deployment, modules: tuple[str, ...], rank: int, active: int) -> Deployment:
    asked = LoraAsked(rank=rank, modules=modules, slots=64, active=active)
    return replace(deployment, lora=adapters_of(deployment.model, asked, FORMATS["bf16"], None))


def has(deployment: Deployment, modules: tuple[str, ...]) -> bool:
    """Whether a layer has each of these matrices: feed-forwards without a gate have none to adapt."""
    model = deployment.model
    return set(modules) <= {weight.name for layer in model.sequence for weight in model.layer_weights(layer)}


def tpot(deployment: Deployment, batch: float) -> Num:
    return Estimate(deployment=deployment, load=StaticLoad(batch=batch, prompt=64.0, output=8.0)).tpot


@law
@given(plain, some_of_them, st.integers(1, 300))
def test_more_adapters_never_make_a_token_faster(deployment: Deployment, modules: tuple[str, ...], batch: int) -> None:
    assume(has(deployment, modules))
    times = [float(tpot(adapted(deployment, modules, 16, active), float(batch))) for active in (0, 1, 2, 3, 8, 33, 64)]
    assert rising(np.array(times))


@law
@given(plain, some_of_them, st.integers(1, 300), st.integers(1, 64))
def test_a_higher_rank_never_makes_a_token_faster(
    deployment: Deployment, modules: tuple[str, ...], batch: int, active: int
) -> None:
    assume(has(deployment, modules))
    ranks = (8, 15, 16, 17, 32, 64, 100, 256)
    assert rising(np.array([float(tpot(adapted(deployment, modules, rank, active), float(batch))) for rank in ranks]))


@law
@given(plain, some_of_them, st.sampled_from([8, 16, 64]), st.integers(1, 64))
def test_what_adapters_add_to_a_token_never_falls_with_the_batch(
    deployment: Deployment, modules: tuple[str, ...], rank: int, active: int
) -> None:
    """Of what is added, for a step without adapters may be shorter with more rows by its own constants."""
    assume(has(deployment, modules))
    batch = np.array([1.0, 2.0, 7.0, 31.0, 32.0, 33.0, 63.0, 64.0, 65.0, 127.0, 128.0, 129.0, 500.0])
    with_them = Estimate(
        deployment=adapted(deployment, modules, rank, active), load=StaticLoad(batch=batch, prompt=64.0, output=8.0)
    )
    added = sum(cost.total * cost.op.count for cost in with_them.decode.costs if ".lora_" in cost.op.name)
    assert rising(np.broadcast_to(added, batch.shape))
