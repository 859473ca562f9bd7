"""What deployments share while they are priced one after another changes no price."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from inferplan.affine import affine
from inferplan.catalog.assemble import Request, assemble
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.memory import share_stages, single
from inferplan.estimate.shared import Shared
from inferplan.planning.demand import Demand
from inferplan.planning.grid import axes_for, load_grids
from inferplan.traffic.requests import parse_lengths
from inferplan.work.formats import find_format
from inferplan.work.ops import Matmul
from inferplan.work.parallel import Parallelism

DEMAND = Demand(prompt=parse_lengths("1500"), output=parse_lengths("200"), rate=5.0)
GPUS = ("h100-sxm", "b200-hgx", "l40s", "mi300x")


def _groups(model: str, quants: tuple[str | None, ...], **parallel: int) -> list[list[Deployment]]:
    """On each GPU in each format, whole and in two stages."""
    return [
        [
            assemble(Request(model=model, gpu=gpu, quant=quant, parallel=Parallelism(pp=pp, **parallel), engine=engine))
            for pp in (1, 2)
        ]
        for gpu in GPUS
        for quant in quants
        for engine in ("vllm", "sglang")
    ]


def _priced(groups: list[list[Deployment]], shared: Shared | None) -> list[list[np.ndarray]]:
    """Every array of every grid, and what prompts take alone."""
    found = []
    for group in groups:
        for grid in load_grids(group, DEMAND, 95.0, axes_for(group[0]), shared=shared):
            arrays = [getattr(grid, one.name) for one in fields(grid)]
            found.append([*(one for one in arrays if isinstance(one, np.ndarray)), *grid.prompt_alone])
    return found


def _same_prices(groups: list[list[Deployment]]) -> None:
    """In turn with what others have left there, twice, each price is to the last bit what it is alone."""
    alone, shared = _priced(groups, None), Shared()
    for turn in (groups, groups[::-1]):
        priced = _priced(turn, shared)
        expected = alone if turn is groups else [grid for group in _pairs(alone)[::-1] for grid in group]
        for one, other in zip(priced, expected, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def _pairs(grids: list[list[np.ndarray]]) -> list[list[list[np.ndarray]]]:
    return [grids[place : place + 2] for place in range(0, len(grids), 2)]


def test_formats_and_devices_of_a_dense_model_share_no_wrong_price() -> None:
    _same_prices(_groups("llama-3.1-8b", (None, "int8"), tp=2))


def test_latent_attention_chooses_its_form_by_each_device() -> None:
    _same_prices(_groups("deepseek-v2-lite", (None,), tp=1, dp=2, ep=2))


def test_experts_and_windows_share_no_wrong_price() -> None:
    _same_prices(_groups("gpt-oss-20b", (None,), tp=2))


def test_a_run_is_known_by_its_numbers_not_by_its_name() -> None:
    bf16, tokens = find_format("bf16"), np.arange(1.0, 1001.0)

    def matmul(name: str, factor: float, k: int = 64) -> Matmul:
        return Matmul(name=name, m=affine(tokens) * factor, k=k, n=32, weight=bf16, input=bf16, output=bf16)

    assert matmul("one", 2.0).run == matmul("other", 2.0).run
    assert matmul("one", 2.0).run != matmul("one", 3.0).run
    assert matmul("one", 2.0).run != matmul("one", 2.0, k=65).run
    assert matmul("one", 2.0).run != matmul("one", 2.0).at("host").run
    far = matmul("one", 2.0)
    assert far.run != far.reading(0.5).run


def test_stages_on_another_device_are_the_same_and_those_in_another_format_are_not() -> None:
    shared, sizes = Shared(), []
    for gpu, quant in (("h100-sxm", None), ("b200-hgx", None), ("h100-sxm", "fp8")):
        deployment = assemble(Request(model="llama-3.1-8b", gpu=gpu, quant=quant))
        share_stages(deployment, shared)
        sizes.append(single(deployment).stages[0])
    first, elsewhere, narrow = sizes
    assert first is elsewhere
    assert narrow is not first
    # 8.03e9 parameters in two bytes; in fp8 the matrices of the layers take one, the two tables of 128,256 x 4,096 two
    assert round(first.weights / 1e9, 1) == 16.1
    assert round(narrow.weights / 1e9, 1) == round(8.03 + 2 * 0.1283 * 4.096, 1)
