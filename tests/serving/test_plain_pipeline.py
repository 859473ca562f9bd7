"""The plain pipeline and plain ranks against the general ones: the same figures to the last bit, whatever the load."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inferplan.serving import plain_pipeline
from inferplan.serving.pipeline import Pipeline
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.simulator import simulate
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.serving.conftest import deployment
from tests.serving.test_plain_replica import CASES, figures_of, open_loop

MODELS = {"windows": "gpt-oss-20b", "states": "granite-4.0-h-small"}
"""Of whose cache a part does not grow."""


def hold_to_the_general_one(name: str, parallel: Parallelism, ideal: bool, model: str = "llama-3.1-8b") -> None:
    """Run a case both ways."""
    traffic, flags, options = CASES[name]
    replicas = 3 if options.fleet.routing == "least-loaded" else 1
    served = deployment(model, ideal=ideal, parallel=replace(parallel, replicas=replicas))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_pipeline, "is_plain", lambda scheduler: False)
        general = figures_of(simulate(served, traffic, flags, options))
    assert figures_of(simulate(served, traffic, flags, options)) == general


@for_each("stages", [2, 3])
@for_each("name", CASES)
def test_the_plain_pipeline_is_the_general_one(name: str, stages: int) -> None:
    hold_to_the_general_one(name, Parallelism(pp=stages), ideal=stages == 3)


@for_each("stages", [1, 2])
@for_each("name", ["open", "short of cache", "few slots", "pieces of prompts", "users", "least loaded", "pools"])
def test_plain_ranks_are_the_general_ones(name: str, stages: int) -> None:
    hold_to_the_general_one(name, Parallelism(dp=2, ep=2, pp=stages), stages == 2, "deepseek-v2-lite")


@for_each("model", MODELS)
def test_with_a_cache_that_is_bounded_in_part(model: str) -> None:
    hold_to_the_general_one("pieces of prompts", Parallelism(pp=2), False, MODELS[model])


def test_usual_loads_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an ordinary run no batch goes the general way, or the comparison above would compare nothing."""

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Scheduler, "plan", never)
    monkeypatch.setattr(Scheduler, "run_decodes", never)
    experts = deployment("deepseek-v2-lite", ideal=False, parallel=Parallelism(dp=2, ep=2))
    assert simulate(experts, open_loop(5.0), None).counts["finished"] == 600
    for name in ("_send", "_take_back", "_run"):
        monkeypatch.setattr(Pipeline, name, never)
    run = simulate(deployment(ideal=False, parallel=Parallelism(pp=2)), open_loop(5.0), None)
    assert run.counts["finished"] == 600
