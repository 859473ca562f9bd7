"""One price for a step: estimate, planning grid, steady state and the simulator's tables over the whole catalogue.

Models that generate nothing have no decode: tests/planning/test_passes.py holds their one pass to the same.

Every model on every third calibrated GPU, with divisions and engines in turn, so that each model meets several GPUs
and every (division, engine) meets many models. What shares a formula agrees to 1e-9; what reads a table agrees to half
a percent.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import names
from inferplan.catalog.offload import OffloadAsked
from inferplan.devices.engine import EngineFlags
from inferplan.errors import InferplanError, NotFiniteError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import Batches, decode_cycle, price_batches, prompt_drain, time_batches
from inferplan.planning.demand import Demand
from inferplan.planning.grid import Axes, load_grid, load_grids
from inferplan.serving.rounds import Decodes, HeldPrompts, PromptLoad, Round, loaded_rounds
from inferplan.serving.step_times import Chunk, Reach, step_times
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.traffic.requests import Lengths
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment, Step
from tests.cases import for_each

GPUS = sorted(set(names("calibration")) & set(names("hardware")))
DIVISIONS = [
    {},
    {"tp": 2},
    {"tp": 8},
    {"pp": 2},
    {"tp": 2, "pp": 4},
    {"dp": 2, "ep": 2},
    {"dp": 4},
    {"tp": 2, "dp": 4, "ep": 8},
    {"cp": 2},
    {"tp": 2, "cp": 2, "pp": 2},
    {"dp": 2, "ep": 2, "pp": 2},
    {"pp": 3},
]
ENGINES = ["vllm", "sglang", "trtllm", "none"]
SETTINGS = list(product(DIVISIONS, ENGINES, [False, False, True]))
PROMPT, PAST, BATCH = 1000.0, 500.0, 4.0


def deployments(gpu: str) -> list[Deployment]:
    """Each model on one of the GPUs, divided in the first of the settings in turn that divides it."""
    found = []
    for index, model in enumerate(names("models")):
        if (index + GPUS.index(gpu)) % len(GPUS):
            continue
        turn = 37 * index + 101 * GPUS.index(gpu)
        for step in range(len(SETTINGS)):
            division, engine, ideal = SETTINGS[(turn + 7 * step) % len(SETTINGS)]
            try:
                one = assemble(
                    Request(model=model, gpu=gpu, engine=engine, ideal=ideal, parallel=Parallelism(**division))
                )
            except InferplanError:
                continue
            found.append(one)
            break
    return [one for one in found if one.model.generation.kind == "autoregressive"]


HOST = {"host": "epyc-9654", "host_memory": "800GB", "host_link": "63GB/s"}
THERE = [
    ("llama-3.1-70b", "llama.cpp", {"gpu_layers": 40}, {}),
    ("llama-3.1-70b", "llama.cpp", {"gpu_layers": 0}, {}),
    ("gpt-oss-120b", "llama.cpp", {"gpu_layers": 25, "cpu_moe_layers": 20}, {}),
    ("deepseek-v3", "llama.cpp", {"cpu_moe_layers": 61}, {}),
    ("llama-3.1-70b", "vllm", {"cpu_offload_gb": 10.0}, {"tp": 2, "pp": 4}),
    ("gpt-oss-120b", "vllm", {"cpu_offload_gb": 10.0}, {"tp": 4}),
    ("qwen3-30b-a3b", "vllm", {"cpu_offload_gb": 10.0}, {"dp": 2, "ep": 2}),
]
"""Part of a model on the host: model, engine, what lies there, division."""


@for_each("ideal", [True, False])
@for_each(("model", "engine", "asked", "division"), THERE)
def test_layers_and_weights_on_the_host_have_one_price(
    model: str, engine: str, asked: dict[str, Any], division: dict[str, int], ideal: bool
) -> None:
    offload, parallel = OffloadAsked(**HOST, **asked), Parallelism(**division)
    quant = "q4_0" if model != "gpt-oss-120b" and engine == "llama.cpp" else None
    request = Request(model=model, gpu="h200-sxm", quant=quant, engine=engine, ideal=ideal, parallel=parallel)
    assert not disagreements(assemble(replace(request, offload=offload)))


@for_each("ideal", [True, False])
@for_each("engine", ["vllm", "sglang"])
def test_halves_that_overlap_have_one_price(engine: str, ideal: bool) -> None:
    """What overlapping halves hide is counted in both sums of a stage: that of a step, and that of steps together."""
    flags, parallel = EngineFlags(two_batch_overlap=True), Parallelism(dp=8, ep=8)
    request = Request(
        model="deepseek-v3", gpu="h200-sxm", quant="fp8", engine=engine, ideal=ideal, parallel=parallel, flags=flags
    )
    deployment, whole = assemble(request), assemble(replace(request, flags=EngineFlags()))
    for batch in (8.0, 4096.0):
        step = Segment(batch=batch, new=1.0, past=PROMPT)
        batches = Batches(fullest=Step(segments=(step,)))
        together = float(time_batches(deployment, batches).total)
        assert together == pytest.approx(float(price_batches(deployment, batches).time), rel=1e-12)
    assert together < float(time_batches(whole, batches).total), "4096 sequences are cut, and overlap"


@pytest.mark.parametrize("gpu", GPUS)
def test_every_path_gives_the_same_price(gpu: str) -> None:
    every = deployments(gpu)
    assert len(every) > 15
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a division by zero would be one
        wrong = [f"{one.describe()} {one.engine.name}: {said}" for one in every for said in disagreements(one)]
    assert not wrong


def disagreements(deployment: Deployment) -> list[str]:
    """What differs, or is no positive finite number, for a decode, a prompt and a step that holds both."""
    pp, dp = deployment.parallel.pp, deployment.parallel.dp
    each, own = BATCH, BATCH * pp  # sequences of a batch in flight, and of an attention rank
    table = step_times(deployment, Reach(sequences=8, tokens=1100, context=1600))
    said = []

    def agree(what: str, got: float, expected: float, tolerance: float = 1e-9) -> None:
        if not (np.isfinite(got) and got > 0 and abs(got / expected - 1) <= tolerance):
            said.append(f"{what} {got} for {expected}")

    demand = Demand(prompt=Lengths(mean=PROMPT), output=Lengths(mean=2.0), rate=1.0)
    counts = np.array([1.0, 3.0, 5.0, 13.0, own])
    grid = load_grid(deployment, demand, 95.0, Axes(batch=counts, budget=np.array([8192.0])))
    for index, count in enumerate(counts):  # those that fill the batches in flight evenly, and those that do not
        one = decode_cycle(deployment, count * dp, PROMPT)
        agree(f"grid, {count:g} decodes", float(grid.step_decode[index]), float(one.time))
    decode = decode_cycle(deployment, own * dp, PROMPT)
    agree(
        "steady state, decode", float(Round(decodes=Decodes(own, PROMPT)).price(deployment).total), float(decode.time)
    )
    stations = table.stations(each, PROMPT)
    agree("tables, decode", max(sum(stations), pp * (stations[0] + max(stations[1:]))), float(decode.time), 5e-3)
    agree("tables, decode through all stages", table.decode(int(each), PROMPT), float(decode.step_time.passage), 5e-3)

    prompts = HeldPrompts(1.0, PROMPT, PAST)
    alone = Round(prompts=prompts).price(deployment)
    chunk = Chunk(1, PROMPT, PROMPT * PAST + PROMPT * (PROMPT + 1) / 2)
    agree("tables, prompt", table.mixed(0, 0.0, chunk), float(alone.passage), 5e-3)
    whole = Round(prompts=HeldPrompts(1.0, PROMPT, 0.0)).price(deployment).passage
    agree("grid, prompt", float(grid.prompt_alone[0][0]), float(whole))
    if not any(table.floors):  # estimates have no floor of eager launches
        batch = prompt_drain(deployment, float(dp), PROMPT, PAST)
        agree("steady state, prompt", float(alone.passage), float(batch.time))

    both = Round(decodes=Decodes(own, PROMPT), prompts=prompts).price(deployment)
    mixed = table.mixed(int(each), PROMPT, chunk)
    agree("tables, both", mixed, float(both.passage), 5e-3)
    if not any(table.floors):
        segments = (Segment(batch=each, new=1.0, past=PROMPT), Segment(batch=1.0, new=PROMPT, past=PAST, media=True))
        step = price_batches(deployment, Batches(fullest=Step(segments=segments))).time
        agree("steady state, both", float(both.passage), float(step))
        few = (Segment(batch=each, new=1.0, past=PROMPT), Segment(batch=2.0, new=12.0, past=PAST, media=True))
        step = price_batches(deployment, Batches(fullest=Step(segments=few))).time
        piece = Chunk(2, 24.0, 2 * (12.0 * PAST + 12.0 * 13 / 2))
        agree("tables, short prompts beside decodes", table.mixed(int(each), PROMPT, piece), float(step), 5e-3)
    if float(both.passage) < float(decode.step_time.passage) or not np.all(np.isfinite(grid.ttft)):
        said.append("a prompt beside decodes makes the step shorter")
    return said


@for_each("model", ["t5-large", "bart-large", "bert-base-uncased", "modernbert-base"])
@for_each("tokens", [128.0, 512.0])
def test_a_prompt_that_an_encoder_reads_whole(model: str, tokens: float) -> None:
    """Short enough for a captured graph: no floor of eager launches hides the time of the kernels."""
    deployment = assemble(Request(model=model, gpu="h100-sxm"))
    table = step_times(deployment, Reach(sequences=8, tokens=600, context=512))
    assert tokens <= table.graph_tokens
    alone = Round(prompts=HeldPrompts(1.0, tokens, 0.0)).price(deployment)
    assert table.mixed(0, 0.0, Chunk(1, tokens, tokens * (tokens + 1) / 2)) == pytest.approx(alone.passage, rel=2e-3)


def test_a_price_that_is_no_number_names_its_operator() -> None:
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    fits = {kernel: dict(found) for kernel, found in deployment.calibration.constants.items()}
    fits["norm"] = {label: fit.model_copy(update={"overhead": float("nan")}) for label, fit in fits["norm"].items()}
    broken = deployment.calibration.model_copy(update={"constants": fits})
    object.__setattr__(deployment, "calibration", broken)
    with pytest.raises(NotFiniteError, match="norm"):
        _ = decode_cycle(deployment, 8.0, 100.0).time
    with pytest.raises(NotFiniteError, match="norm"):
        step_times(deployment, Reach(sequences=8, tokens=1100, context=1600))


@for_each(("model", "other"), [("llama-3.1-70b", {"tp": 2}), ("mixtral-8x7b", {"dp": 2, "ep": 2})])
@for_each("engine", ["vllm", "sglang"])
def test_a_grid_among_others_is_the_grid_alone(model: str, other: dict[str, int], engine: str) -> None:
    alike = [
        assemble(Request(model=model, gpu="h100-sxm", engine=engine, parallel=Parallelism(pp=pp, **other)))
        for pp in (1, 2, 3, 8)
    ]
    demand = Demand(prompt=Lengths(mean=PROMPT), output=Lengths(mean=50.0), rate=1.0)
    axes = Axes(batch=np.array([1.0, 3.0, 200.0]), budget=np.array([512.0, 8192.0]))
    for deployment, grid in zip(alike, load_grids(alike, demand, 95.0, axes)):
        alone = load_grid(deployment, demand, 95.0, axes)
        for name in ("ttft", "tpot", "rate", "memory_use", "prompt_alone"):
            np.testing.assert_allclose(getattr(grid, name), getattr(alone, name), rtol=1e-12)


@for_each("draft", [PLAIN, Speculation(length=3, acceptance=0.6)], ids=["plain", "drafts"])
@for_each(
    ("model", "division"),
    [("llama-3.1-70b", {"tp": 2, "pp": 4}), ("mixtral-8x7b", {"dp": 2, "ep": 2, "pp": 2}), ("gemma-2-9b", {"pp": 3})],
)
def test_rounds_of_a_grid_are_those_of_its_points(model: str, division: dict[str, int], draft: Speculation) -> None:
    deployment = assemble(Request(model=model, gpu="h100-sxm", parallel=Parallelism(**division)))
    batch, budget = np.array([[1.0], [2.5], [7.0], [150.0]]), np.array([[600.0, 2048.0, 8192.0]])
    load = PromptLoad(0.02 * batch, 900.0, 100.0)
    whole = loaded_rounds(deployment, Decodes(batch, 1100.0), load, budget, draft)
    for row, column in product(range(4), range(3)):
        few, tokens = float(batch[row, 0]), float(budget[0, column])
        one = loaded_rounds(deployment, Decodes(few, 1100.0), PromptLoad(0.02 * few, 900.0, 100.0), tokens, draft)
        for name in ("total", "passage", "interval"):
            decode = np.broadcast_to(getattr(whole.decode, name), (4, 3))[row, column]
            assert decode == pytest.approx(float(getattr(one.decode, name)), rel=1e-12)
            assert getattr(whole.own, name)[row, column] == pytest.approx(float(getattr(one.own, name)), rel=1e-12)
