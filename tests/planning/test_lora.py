"""Plans with LoRA adapters: the closed form against counts by hand, the plan against a linear search by simulation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.price_lists import price_book
from inferplan.cli import cli
from inferplan.errors import InfeasibleError, InferplanError, SpecError, UsageError
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.planning.adapters import AdapterLoads, slot_wait, slots_tried, with_loads
from inferplan.planning.demand import Demand, demand_of_trace
from inferplan.planning.option import Sizing, Stream
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.planning.search import point, search
from inferplan.planning.space import Space
from inferplan.planning.verify import traffic_of, verify
from inferplan.reports.plan_figures import launch_line
from inferplan.reports.plan_file import planned_of
from inferplan.reports.plan_record import candidate_record, launch_record
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.result import adapters_found
from inferplan.serving.rounds import Decodes, PromptLoad, Round, loaded_rounds
from inferplan.serving.simulator import simulate
from inferplan.traffic.popularity import Popularity
from inferplan.traffic.requests import Lengths, Requests, Slo
from inferplan.work.adapters import LoraAsked
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.serving.plain_time import plain
from tests.serving.test_lora import LOADED, replay

RATE = 25e9
THREE = Popularity(count=3, skew=1.0)
"""Shares of 6/11, 3/11 and 2/11; the sum of their squares is 49/121."""


def demand(adapters: Popularity | None, **changes: Any) -> Demand:
    given = {"prompt": Lengths(mean=512), "output": Lengths(mean=128), "rate": 4.0, "lora_bandwidth": RATE}
    return Demand(**(given | changes), adapters=adapters)


def request(slots: int = 8, **changes: Any) -> Request:
    return Request(**({"model": "llama-3.1-8b", "gpu": "l40s", "lora": LoraAsked(rank=16, slots=slots)} | changes))


def question(slots: tuple[int, ...], asked: Demand, **space: Any) -> Question:
    given = {"gpus": ("l40s",), "quants": ("fp8",), "most": 1, "budgets": (2048,)}
    return Question(
        space=Space(base=request(slots[0], gpu=""), slots=slots, **(given | space)),
        demand=asked,
        slo=Slo(ttft=0.5, tpot=0.06, percentile=95.0),
        sizing=Sizing(),
        prices=price_book(stated=["l40s=1", "h100-sxm=2"]),
    )


# --- how many, and how often one is missed ----------------------------------------------------------------------------


def test_different_adapters_by_hand() -> None:
    """Of two requests the second names another one with a chance of 1 - 49/121."""
    assert THREE.different(1.0) == pytest.approx(1.0, rel=1e-12)
    assert THREE.different(2.0) == pytest.approx(1 + 72 / 121, rel=1e-12)
    assert THREE.different(1.5) == pytest.approx(1 + 36 / 121, rel=1e-12)  # one or two, half of the time each
    assert Popularity(count=4, skew=0.0).different(np.array([[3.0]])) == pytest.approx(4 * (1 - 0.75**3), rel=1e-12)


def test_many_adapters_are_counted_in_groups() -> None:
    many = Popularity(count=100_000, skew=0.8)
    for count in (10, 1000, 30_000):
        exact = float(np.sum(1.0 - (1.0 - many.chances) ** count))
        assert many.different(float(count)) == pytest.approx(exact, rel=1e-4)


def test_misses_are_those_of_a_replay() -> None:
    """One slot: 1 - sum(p^2). Several: 200,000 draws through an LRU cache of a few lines."""
    assert THREE.missed(1) == pytest.approx(72 / 121, rel=1e-12)
    assert THREE.missed(3) == 0.0
    for popularity, slots in ((Popularity(count=100, skew=1.0), 8), (Popularity(count=1000, skew=0.5), 64)):
        drawn = popularity.draw(200_000, seed=1).tolist()
        assert popularity.missed(slots) == pytest.approx(1 - replay(drawn, slots) / len(drawn), rel=0.01)


# --- the closed form --------------------------------------------------------------------------------------------------


def step(adapters: Popularity, slots: int, batch: int) -> float:
    return float(point(assemble(request(slots)), demand(adapters), 95.0, batch, 2048).step_decode[0])


def estimated(active: int, batch: int) -> float:
    lora = LoraAsked(rank=16, slots=8, active=active)
    return float(estimate(assemble(request(lora=lora)), StaticLoad(batch=batch, prompt=512.0, output=128.0)).tpot)


@for_each("batch", [1, 2, 8])
def test_a_step_costs_what_an_estimate_says(batch: int) -> None:
    """One adapter for all, and one for each: 10 million alike are different in any batch."""
    assert step(Popularity(count=1, skew=0.0), 8, batch) == pytest.approx(estimated(1, batch), rel=1e-4)
    each = Popularity(count=10**6, skew=0.0)
    assert step(each, 8, batch) == pytest.approx(estimated(batch, batch), rel=1e-4)


def test_a_step_has_the_adapters_that_its_sequences_name_on_average() -> None:
    """Of two sequences 1 + 72/121 different ones: a step of the simulator's price with so many."""

    def priced(slots: int, active: float, batch: float) -> float:
        deployment = assemble(request(slots))
        assert deployment.lora is not None
        exact = replace(deployment, lora=replace(deployment.lora, active=active, in_step=True))
        return float(Round(decodes=Decodes(batch, 512.0 + 63.0, 512.0)).price(exact).total)

    assert step(THREE, 8, 2) == pytest.approx(priced(8, 1 + 72 / 121, 2.0), rel=1e-12)
    crowd = Popularity(count=10**6, skew=0.0)
    assert step(crowd, 4, 64) == pytest.approx(priced(4, 4.0, 64.0), rel=1e-12)  # slots are the most of a step


def test_a_miss_holds_up_the_step_that_admits_its_request() -> None:
    """One request at a time in one slot: 72/121 of them wait for 83.9 MB over the link on average, the 95th percentile
    for all of it; with a slot for each nobody does."""
    seconds = LOADED / RATE

    def grid(slots: int, bandwidth: float) -> Any:
        asked = demand(THREE, lora_bandwidth=bandwidth, output=Lengths(mean=2000))
        return point(assemble(request(slots)), asked, 95.0, 1, 2048)

    slow, quick = grid(1, RATE), grid(1, 1e18)
    assert slow.ttft_mean - quick.ttft_mean == pytest.approx(72 / 121 * seconds, rel=0.02)
    assert slow.ttft - quick.ttft == pytest.approx(seconds, rel=0.02)
    assert slow.tpot - quick.tpot == pytest.approx(72 / 121 * seconds / 1999, rel=1e-3)
    assert np.array_equal(grid(3, RATE).ttft, grid(3, 1e18).ttft)


def test_the_wait_for_a_slot_by_hand() -> None:
    """Adapters alike, so each is in use for S/K of the time: (E - 1)/(E + w X/K) = S/K, with E = exp(C/K)."""
    count, slots, rate, running = 20, 2, 4.0, 10.0
    lora = assemble(request(slots)).lora
    grown = np.exp(running / count)
    by_hand = ((grown - 1) * count / slots - grown) * count / rate
    asked = demand(Popularity(count=count, skew=0.0))
    found = slot_wait(lora, asked, np.array([[rate, rate]]), np.array([[running, 1.0]]))
    assert np.asarray(found)[0] == pytest.approx([by_hand, 0.0], rel=1e-9)
    assert slot_wait(None, asked, np.ones(1), np.ones(1)) == 0.0
    job = demand(asked.adapters, rate=None, requests=1000, deadline=3600.0)
    assert slot_wait(lora, job, np.ones(1) * rate, np.ones(1) * running) == 0.0


def test_the_wait_is_no_more_than_the_simulated_one() -> None:
    """What a plan is sized by may be too hopeful and not too careful: at a rate at which two slots of 20 adapters are
    just enough, the 95th percentile waits longer."""
    asked, deployment = demand(Popularity(count=20, skew=0.0), rate=2.0), assemble(request(2, quant="fp8"))
    run = simulate(deployment, asked.traffic(2.0, 3000), Flags(), Options(trim=True, lora_bandwidth=RATE))
    here = point(deployment, asked, 95.0, max(round(2.0 * 127 * float(np.mean(run.tpot))), 1), 2048)
    assert 0.3 < float(here.ttft[0, 0]) < np.percentile(run.ttft, 95.0)


# --- plans ------------------------------------------------------------------------------------------------------------

ASKED = demand(Popularity(count=60, skew=0.6), rate=16.0)


@pytest.fixture(scope="module")
def found() -> Plan:
    return plan(question((4, 16, 64), ASKED))


def keeps(slots: int, replicas: int, chosen: Plan) -> bool:
    """Whether so many replicas keep the limits at the load that they are sized for: all of them simulated."""
    deployment = assemble(request(slots, quant="fp8", parallel=Parallelism(replicas=replicas)))
    traffic = ASKED.traffic(16.0 / 0.8, 4000, seed=7)
    flags = Flags(max_num_seqs=256, max_num_batched_tokens=chosen.option.budget)
    run = simulate(deployment, traffic, flags, Options(trim=True, lora_bandwidth=RATE))
    late = [np.percentile(run.ttft, 95.0) > 0.5, np.percentile(run.tpot, 95.0) > 0.06]
    return run.steady and not any(late)


def test_the_plan_is_that_of_a_linear_search_over_slots_and_replicas(found: Plan) -> None:
    """Each number of slots with one replica more and more, until it keeps the limits; whichever needs fewest."""
    fewest = {slots: next((n for n in (1, 2, 3) if keeps(slots, n, found)), 4) for slots in (4, 16, 64)}
    assert found.option.replicas == min(fewest.values()) < fewest[16] <= fewest[4] == 4
    best = found.option.deployment.lora
    assert best is not None and fewest[best.slots] == found.option.replicas


def test_slots_take_the_memory_of_the_cache(found: Plan) -> None:
    """64 slots of rank 16 are 5.4 GB, 16 are 1.3 GB: the pages that the simulation has are fewer by that."""
    searched = search(found.question.space, Stream(ASKED, found.question.slo, Sizing()), found.question.prices)
    grids = {one.grid.deployment.lora.slots: one.grid for one in searched.grids}
    assert sorted(grids) == [4, 16, 64]
    held = {
        slots: simulate(grid.deployment, ASKED.traffic(1.0, 20), Flags(), OPTIONS).capacity
        for slots, grid in grids.items()
    }
    assert (held[16] - held[64]) * 131072 == pytest.approx(48 * LOADED, rel=1e-9)


OPTIONS = Options(lora_bandwidth=RATE)


def test_finalists_are_what_simulate_says_of_the_flags_that_are_emitted() -> None:
    """One replica, its flags read from the command that starts it, through ``inferplan simulate``."""
    asked = question((16,), demand(Popularity(count=60, skew=0.6), rate=3.0))
    best = plan(asked)
    words = str(launch_line(best)).split()
    names = ("max-num-seqs", "max-num-batched-tokens", "max-loras", "max-lora-rank")
    flag = {name: words[words.index(f"--{name}") + 1] for name in names}
    assert best.option.replicas == 1 and (flag["max-loras"], flag["max-lora-rank"]) == ("16", "16")
    first = verify(best.option, asked)
    assert first.rest is not None
    checked = first.rest.whole
    assert checked is not None and checked.result is not None
    line = "simulate llama-3.1-8b --gpu l40s --quant fp8 --rate 3 --prompt 512 --output 128 --loras 60 --lora-skew 0.6"
    line += (
        f" --lora-rank {flag['max-lora-rank']} --max-loras {flag['max-loras']} --lora-bandwidth 25GB/s --format json"
    )
    line += f" --max-num-seqs {flag['max-num-seqs']} --max-num-batched-tokens {flag['max-num-batched-tokens']}"
    line += f" --requests {len(checked.result.records.prompt)}"
    output = CliRunner().invoke(cli, line.split(), catch_exceptions=False)
    said = json.loads(output.output)
    for name in ("ttft", "tpot", "e2el"):
        # the same draws of arrivals: there as they fall, in a plan each quarter of them at its rate
        assert said[f"{name}_s"]["p95"] == pytest.approx(checked.achieved[name], rel=0.01), name


def test_with_a_slot_for_each_they_are_loaded_once() -> None:
    best = plan(question((64,), demand(Popularity(count=20, skew=0.5), rate=3.0)))
    assert best.best.result is not None and best.option.replicas == 1
    record = adapters_found(best.best.result)
    assert record is not None
    assert record["loaded"] <= 20 and record["found"] > 1000


def test_the_file_of_a_plan_says_its_adapters(found: Plan) -> None:
    slots = candidate_record(found, found.best)["max_loras"]
    record = json.loads(json.dumps({"plan": {"deployment": launch_record(found)}}))
    assert planned_of(record, "plan.json").request.lora == LoraAsked(rank=16, slots=slots)
    options = record["plan"]["deployment"]["options"]
    options["lora.modules"] = "q,v"
    assert planned_of(record, "plan.json").request.lora.modules == ("q", "v")
    for name, value in (("lora.rank", "16"), ("lora.active", 3), ("lora.modules", "lm_head")):
        broken = json.loads(json.dumps(record))
        broken["plan"]["deployment"]["options"][name] = value
        with pytest.raises(SpecError, match=r"is not the JSON of a plan"):
            planned_of(broken, "plan.json")


def test_a_trace_names_adapters_as_simulate_does() -> None:
    """Each request keeps its adapter when the trace is divided over replicas."""
    arrival = np.arange(40) / 4.0
    trace = Requests(prompt=np.full(40, 64), output=np.full(40, 8), arrival=arrival)
    asked = replace(demand_of_trace(trace), adapters=Popularity(count=9, skew=0.3), lora_bandwidth=RATE)
    stream, prices = Stream(asked, Slo(ttft=9.0), Sizing()), price_book(stated=["l40s=1"])
    option = search(question((4,), asked).space, stream, prices).options[0]
    drawn = Popularity(count=9, skew=0.3).draw(40, seed=0)
    half = traffic_of(asked, option.sized(2))
    assert isinstance(half, Requests) and half.adapters is not None
    assert half.adapters.tolist() == drawn[::2].tolist()


def test_a_load_holds_up_every_stage() -> None:
    """Half of the prompts miss, 2 s each, 0.3 of them a round: 0.3 s a round, in those that hold prompts."""
    served = plain(parallel=Parallelism(pp=2))
    rounds = loaded_rounds(served, Decodes(np.array([4.0]), 60.0), PromptLoad(np.array([0.3]), 50.0, 0.0), 256.0)
    late = with_loads(rounds, AdapterLoads(missed=0.5, seconds=2.0), np.array([0.3]))
    more = 0.3 / np.asarray(rounds.held.share)
    assert late.own.passage - rounds.own.passage == pytest.approx(more)
    assert late.own.interval - rounds.own.interval == pytest.approx(more)
    assert late.decode is rounds.decode


# --- refused ----------------------------------------------------------------------------------------------------------


@for_each(
    ("lora", "asked", "said"),
    [
        (LoraAsked(), demand(THREE), "the deployments have none"),
        (LoraAsked(rank=16), demand(None, lora_bandwidth=None), "the popularity of adapters"),
        (LoraAsked(), demand(None), "requests name none"),
        (LoraAsked(rank=16, slots=4, active=2), demand(THREE), "counts the adapters of a batch itself"),
        (LoraAsked(rank=16), demand(THREE, queue="priority"), "an order of the queue"),
    ],
)
def test_half_a_question_is_refused(lora: LoraAsked, asked: Demand, said: str) -> None:
    whole = question((1,), demand(THREE))
    with pytest.raises(UsageError, match=said):
        replace(whole, space=replace(whole.space, base=request(lora=lora), slots=()), demand=asked)


def test_what_is_not_simulated_is_refused_or_ruled_out_with_the_reason() -> None:
    base = request(gpu="")
    with pytest.raises(UsageError, match="adapters in sglang are not supported"):
        Space(base=base, gpus=("l40s",), engines=("vllm", "sglang"))
    with pytest.raises(UsageError, match="no adapters were asked for"):
        Space(base=Request(model="llama-3.1-8b", gpu=""), gpus=("l40s",), slots=(8,))
    nowhere = question((4,), demand(THREE, lora_bandwidth=None), gpus=("b200-hgx",))
    with pytest.raises(InfeasibleError, match="the bandwidth from the host to b200-hgx is not on file"):
        plan(nowhere)


@for_each("adapters, tried", [(3, (1, 3)), (8, (1, 8)), (50, (1, 8, 50)), (1000, (1, 8, 64))])
def test_slots_that_are_tried_where_nobody_names_any(adapters: int, tried: tuple[int, ...]) -> None:
    assert slots_tried(adapters) == tried


def test_adapters_that_requests_name_have_the_usual_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's ``max_lora_rank`` is 16 unless it is set; all adapters are asked for alike."""
    asked: list[Question] = []

    def search(found: Question, _: object) -> None:
        asked.append(found)
        raise InfeasibleError("as far as a search")

    monkeypatch.setattr("inferplan.cli.plan.plan", search)
    line = "plan llama-3.1-8b --gpu l40s --rate 1 --prompt 64 --output 8 --ttft 1s --price l40s=1 --loras 10"
    CliRunner().invoke(cli, line.split())
    (found,) = asked
    assert (found.space.base.lora.rank, found.space.slots) == (16, (1, 8, 10))
    assert found.demand.adapters == Popularity(count=10, skew=0.0)


@for_each(
    ("words", "said"),
    [
        ("--lora-rank 16", "the popularity of adapters"),
        ("--lora-bandwidth 25GB/s", "requests name none"),
        ("--max-loras 8", "no adapters were asked for"),
        ("--lora-rank 16 --loras 10 --lora-skew 1 --max-loras 8,none", "none"),
        ("--lora-rank 16 --loras 10 --lora-skew 1 --lora-bandwidth 0GB/s", "not a positive rate"),
    ],
)
def test_options_without_their_other_half(words: str, said: str) -> None:
    line = f"plan llama-3.1-8b --gpu l40s --rate 1 --prompt 64 --output 8 --ttft 1s --price l40s=1 {words}"
    result = CliRunner().invoke(cli, line.split())
    assert isinstance(result.exception, InferplanError) and said in result.exception.render()
