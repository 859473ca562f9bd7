"""Every number gives its terms: they come to the number, and so does what is printed, whatever the deployment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferplan.catalog.assemble import Request, assemble
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment, ridge_terms
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.terms import Term
from inferplan.units import Num
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.printed import read
from tests.properties.test_laws import law
from tests.strategies import deployments, loads

RULES = {"vllm": "of_total", "sglang": "static_of_total", "trtllm": "of_free", "llama.cpp": "all", "none": "all"}


Number = tuple[str, Num, Term]


def memory(found: Estimate) -> Iterator[Number]:
    """Every number of the memory as the model computes it, and its terms."""
    footprint = found.footprint
    for name in ("weights", "state", "kv_per_token", "activations", "reserve", "kv_pool", "total"):
        yield name, getattr(footprint, name), footprint.terms(name)
    yield "max_batch", float(footprint.max_batch()), footprint.terms("max_batch")
    yield "max_context", footprint.max_context(), footprint.terms("max_context")


def times(found: Estimate) -> Iterator[Number]:
    """The same of the latencies and of both phases."""
    yield "ridge", found.deployment.ridge, ridge_terms(found.deployment)
    for name in ("ttft", "tpot", "e2el"):
        if name != "tpot" or np.all(np.asarray(found.load.output) > 1):
            yield name, getattr(found, name), found.terms(name)
    yield "output_tokens_per_s", found.output_rate, found.terms("output_tokens_per_s")
    for phase in (found.prefill, found.decode):
        for name in ("time", "flop", "bytes", "intensity", "mfu", "mbu"):
            yield name, getattr(phase, name), phase.terms(name)
        for name, seconds in phase.by_operator().items():
            yield name, seconds, phase.terms(name)


def check(numbers: Iterable[Number]) -> list[float]:
    """The law for every number; how wide the printed ones are, relative to the value."""
    widths = []
    for name, number, term in numbers:
        value = float(np.max(number))
        assert float(np.max(term.value)) == pytest.approx(value, rel=1e-9, abs=1e-300), (name, term.formula)
        assert float(np.max(term.evaluate())) == pytest.approx(value, rel=1e-9, abs=1e-300), (name, term.formula)
        for part in (term, *term.parts()):
            printed, exact = read(part.numbers), float(np.max(part.value))
            if np.isinf(exact):  # a context without a limit
                assert printed.low == printed.high == exact
                continue
            slack = 1e-9 * max(abs(exact), abs(printed.low), abs(printed.high))
            assert printed.low - slack <= exact <= printed.high + slack, (name, part.name, part.numbers)
        printed = read(term.numbers)
        if np.isinf(value):
            continue
        widths.append((printed.high - printed.low) / max(abs(value), 1e-300))
    return widths


@law
@given(st.sampled_from(sorted(RULES)).flatmap(lambda engine: deployments(engine=engine)), loads, st.booleans())
def test_terms_are_the_numbers_of_random_deployments(
    deployment: Deployment, load: dict[str, float], kv_cache: bool
) -> None:
    found = Estimate(deployment=deployment, load=StaticLoad(**load, kv_cache=kv_cache))
    check(memory(found))
    check(times(found))


CATALOGUE = [
    ("llama-3.1-8b", "h100-sxm", {}),
    ("llama-3.1-8b", "h100-sxm", {"tp": 2, "pp": 2, "dp": 2}),
    ("gpt-oss-20b", "h200-sxm", {"pp": 3}),
    ("mixtral-8x7b-v0.1", "b200-hgx", {"tp": 2, "ep": 2}),
    ("deepseek-v2-lite", "h200-sxm", {"dp": 4, "ep": 4}),
    ("falcon-mamba-7b", "h100-sxm", {"pp": 4}),
    ("gemma-3-12b", "l40s", {"tp": 4, "cp": 2}),
]


@for_each(("model", "gpu", "degrees", "ideal"), [*((*one, False) for one in CATALOGUE), (*CATALOGUE[1], True)])
def test_terms_are_the_numbers_of_the_catalogue(model: str, gpu: str, degrees: dict[str, int], ideal: bool) -> None:
    """With every engine's memory; times are the same under all of them."""
    request = Request(model=model, gpu=gpu, ideal=ideal, parallel=Parallelism(**degrees))
    for engine, rule in RULES.items():
        stages = Parallelism(pp=degrees.get("pp", 1)) if engine == "llama.cpp" else request.parallel
        deployment = assemble(replace(request, engine=engine, parallel=stages))
        assert deployment.engine.defaults.kv_rule == rule
        found = Estimate(deployment=deployment, load=StaticLoad(batch=9.0, prompt=1024.0, output=256.0))
        narrow = np.asarray(check(memory(found))) < 1e-4
        assert np.mean(narrow) > 0.8  # printing hides nothing: at most one number by cancellation
    for batch, output in ((1.0, 1.0), (9.0, 256.0)):
        found = Estimate(deployment=deployment, load=StaticLoad(batch=batch, prompt=1024.0, output=output))
        assert max(check(times(found))) < 1e-4


def test_terms_of_a_diffusion_model() -> None:
    request = Request(model="llada-8b", gpu="h100-sxm", generation=(("block", 32), ("steps", 32)))
    found = estimate(assemble(request), StaticLoad(batch=2.0))
    check(memory(found))
    check(times(found))
