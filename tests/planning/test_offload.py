"""Plans with weights in host memory: an estimate's steps, both sides' memory, a linear search by simulation."""

from __future__ import annotations

import json
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from inferplan.answers.drafting import Drafting
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_hardware
from inferplan.catalog.offload import OffloadAsked, _of_one_host
from inferplan.catalog.price_lists import price_book
from inferplan.cli import cli
from inferplan.errors import InferplanError, SpecError, UsageError
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.run import estimate
from inferplan.planning.demand import Demand
from inferplan.planning.option import Sizing, Stream
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.planning.search import point, search
from inferplan.planning.space import Space
from inferplan.planning.verify import verify
from inferplan.reports.plan_figures import launch_line
from inferplan.reports.plan_file import planned_of
from inferplan.reports.plan_notes import host_lines
from inferplan.reports.plan_record import candidate_record, launch_record
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import Lengths, Slo
from inferplan.work.adapters import LoraAsked
from inferplan.work.parallel import Parallelism
from tests.cases import for_each

HOST = {"host": "epyc-9654", "host_memory": "480GB"}
DEMAND = Demand(prompt=Lengths(mean=512), output=Lengths(mean=64), rate=1.6)
HALF = OffloadAsked(gpu_layers=40, **HOST)
AWAY = OffloadAsked(cpu_offload_gb=60.0, **HOST)


def layers(asked: OffloadAsked = HALF) -> Request:
    return Request(model="llama-3.1-70b", gpu="rtx-4090", quant="q4_k_m", engine="llama.cpp", offload=asked)


def read(asked: OffloadAsked = AWAY, **changes: Any) -> Request:
    return Request(**({"model": "llama-3.1-70b", "gpu": "gh200-96gb", "offload": asked} | changes))


def question(**space: Any) -> Question:
    sizes = tuple(replace(AWAY, cpu_offload_gb=size) for size in (52.0, 64.0))
    given: dict[str, Any] = {"gpus": ("gh200-96gb",), "quants": (None,), "most": 1, "budgets": (2048,), "placed": sizes}
    return Question(
        space=Space(**({"base": Request(model="llama-3.1-70b", gpu="")} | given | space)),
        demand=DEMAND,
        slo=Slo(ttft=3.0, tpot=0.3, percentile=95.0),
        sizing=Sizing(),
        prices=price_book(stated=["gh200-96gb=3", "h100-sxm=2", "rtx-4090=0.5"]),
    )


@for_each("request_of", [layers, read])
@for_each("batch", [1, 4])
def test_a_step_is_that_of_an_estimate(request_of: Any, batch: int) -> None:
    deployment = assemble(request_of())
    found = estimate(deployment, StaticLoad(batch=batch, prompt=512.0, output=64.0))
    assert float(point(deployment, DEMAND, 95.0, batch, 2048).step_decode[0]) == pytest.approx(
        float(found.tpot), rel=1e-3
    )


@for_each(("memory", "tight"), [("384GB", "device"), ("23GB", "host")])
def test_the_fuller_side_says_how_many_requests_there_are(memory: str, tight: str) -> None:
    """Of 80 layers 41 lie on the host and 39 on the card; a layer keeps 2 x 8 x 128 x 2 = 4096 bytes a token. A request
    keeps its prompt, half its answer and two deviations of the mean age of all, 64/sqrt(12 C)."""
    deployment = assemble(layers(replace(HALF, host_memory=memory)))
    grid = point(deployment, DEMAND, 95.0, 2, 512)
    here = Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0, budget=512.0)
    assert here.host is not None
    pools = {"device": here.kv_pool / (39 * 4096), "host": here.host.kv_pool / (41 * 4096)}
    assert min(pools, key=lambda side: pools[side]) == tight and min(pools.values()) > 0
    count = float(grid.concurrency[0, 0])
    held = 512 + 32 + 2 * 64 / sqrt(12 * max(count, 1.0))
    assert float(grid.memory_use[0, 0]) == pytest.approx(count * held / pools[tight], rel=1e-6)
    whole = point(replace(deployment, offload=None), DEMAND, 95.0, 2, 512)
    assert np.isinf(whole.memory_use[0, 0])  # 40 GB do not lie on a card of 24


@pytest.fixture(scope="module")
def found() -> Plan:
    return plan(question())


def keeps(size: float, replicas: int, budget: int) -> bool:
    """Whether so many replicas keep the limits at the load that they are sized for, all of them simulated."""
    deployment = assemble(read(replace(AWAY, cpu_offload_gb=size), parallel=Parallelism(replicas=replicas)))
    flags = Flags(max_num_seqs=256, max_num_batched_tokens=budget)
    run = simulate(deployment, DEMAND.traffic(1.6 / 0.8, 3000, seed=3), flags, Options(trim=True))
    return run.steady and np.percentile(run.ttft, 95.0) <= 3.0 and np.percentile(run.tpot, 95.0) <= 0.3


def test_the_plan_is_that_of_a_linear_search(found: Plan) -> None:
    fewest = {size: next(n for n in range(1, 9) if keeps(size, n, found.option.budget)) for size in (52.0, 64.0)}
    streamed = found.option.deployment.streamed
    assert streamed is not None
    assert found.option.replicas == min(fewest.values()) == fewest[streamed.bytes / 2.0**30]


def test_finalists_are_what_simulate_says_of_the_flags_that_are_emitted(found: Plan) -> None:
    asked = question()
    option = replace(found.option, replicas=1)
    alone = replace(asked, demand=replace(DEMAND, rate=0.2))
    first = verify(option, alone)
    assert first.rest is not None
    checked = first.rest.whole
    assert checked is not None and checked.result is not None
    words = str(launch_line(found)).split()
    size = words[words.index("--cpu-offload-gb") + 1]
    line = f"simulate llama-3.1-70b --gpu gh200-96gb --cpu-offload-gb {size} --host epyc-9654 --host-memory 480GB"
    line += f" --rate 0.2 --prompt 512 --output 64 --max-num-seqs {checked.slots} --format json"
    line += f" --max-num-batched-tokens {option.budget} --requests {len(checked.result.records.prompt)}"
    said = json.loads(CliRunner().invoke(cli, line.split(), catch_exceptions=False).output)
    for name in ("ttft", "tpot", "e2el"):
        # the same draws of arrivals: there as they fall, in a plan each quarter of them at its rate
        assert said[f"{name}_s"]["p95"] == pytest.approx(checked.achieved[name], rel=0.01), name


def test_a_device_that_fits_needs_no_host_and_an_unknown_link_is_said() -> None:
    """In fp8 70.6 GB lie on a GH200; no file says how a B200 reaches its host."""
    fits = question(quants=("fp8",), placed=(replace(AWAY, cpu_offload_gb=30.0),))
    searched = search(fits.space, Stream(DEMAND, fits.slo, fits.sizing), fits.prices)
    kept = {bool(one.grid.deployment.elsewhere) for one in searched.grids}
    assert kept == {False, True} and not searched.options[0].deployment.elsewhere
    both = question(gpus=("b200-hgx", "gh200-96gb"))
    known = search(both.space, Stream(DEMAND, both.slo, both.sizing), both.prices).rejections
    assert known.counts["host"] == 2
    assert known.examples["host"] == "how b200-hgx reaches the memory of its host is not on file"


def test_the_plan_says_its_host(found: Plan) -> None:
    assert "its own host" in host_lines(found)[0]
    size = found.option.request.offload.cpu_offload_gb
    assert candidate_record(found, found.best)["on_host"] == [
        f"up to {size * 2**30 / 1e9:.2f} GB of the layers of each in the memory of epyc-9654"
    ]
    record = json.loads(json.dumps({"plan": {"deployment": launch_record(found)}}))
    assert planned_of(record, "plan.json").request.offload == found.option.request.offload
    record["plan"]["deployment"]["options"]["offload.host"] = 3
    with pytest.raises(SpecError):
        planned_of(record, "plan.json")


def test_layers_are_tried_beside_all_on_the_card() -> None:
    line = "plan llama-3.1-8b --quant q4_k_m --gpu rtx-4090 --engine llama.cpp --most 1 --gpu-layers 10,20"
    line += " --host epyc-9654 --host-memory 384GB --requests 100 --deadline 24h --prompt 512 --output 64"
    line += " --price rtx-4090=0.5 --format json"
    said = json.loads(CliRunner().invoke(cli, line.split(), catch_exceptions=False).output)
    assert said["candidates"]["structures"] == 3
    assert said["plan"]["on_host"] is None


def test_gpus_of_one_host_are_those_of_a_node_or_of_its_slots() -> None:
    """A GB200 tray has four, an L40S server eight slots; what nothing says is one."""
    held = {"cpu_offload_gb": 2.0, **HOST}
    two = assemble(read(OffloadAsked(**held), gpu="l40s", quant="fp8", parallel=Parallelism(tp=8)))
    assert two.streamed is not None
    for gpu, tp, most in (("gb200", 8, 4), ("l40s", 16, 8)):
        with pytest.raises(InferplanError) as error:
            assemble(read(OffloadAsked(**held), gpu=gpu, quant="fp8", parallel=Parallelism(tp=tp)))
        assert f"up to {most}" in error.value.render() or "link" in error.value.render()
    cards = load_hardware("l40s")
    assert (_of_one_host(cards), _of_one_host(load_hardware("gb200"))) == (8, 4)
    assert _of_one_host(cards.model_copy(update={"links": []})) == 1


@for_each(
    ("changes", "said"),
    [
        ({"engines": ("llama.cpp",)}, "--cpu-offload-gb is of vllm"),
        ({"placed": (HALF,)}, "are of llama.cpp"),
        ({"drafting": (Drafting(model=None, length=2, acceptance=0.6),)}, "drafts"),
        ({"base": Request(model="llama-3.1-70b", gpu="", lora=LoraAsked(rank=16))}, "adapters"),
    ],
)
def test_what_is_not_planned_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        question(**changes)


@for_each(
    ("words", "said"),
    [
        ("--host epyc-9654", "no option places weights on the host"),
        ("--cpu-offload-gb 20", "need a host"),
        ("--cpu-offload-gb 20,much --host epyc-9654", "--cpu-offload-gb"),
        ("--cpu-offload-gb 9999 --host epyc-9654", "0 to 4,096 GiB"),
        ("--gpu-layers 40 --host epyc-9654", "--engine llama.cpp"),
    ],
)
def test_options_without_their_other_half(words: str, said: str) -> None:
    line = f"plan llama-3.1-70b --gpu gh200-96gb --rate 1 --prompt 64 --output 8 --ttft 1s --price gh200-96gb=3 {words}"
    result = CliRunner().invoke(cli, line.split())
    assert isinstance(result.exception, InferplanError) and said in result.exception.render()
