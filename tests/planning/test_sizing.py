"""How many replicas, slots and prefill workers: each against figures worked out by hand, from first principles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, log

import numpy as np
import pytest

from inferplan.answers.compare import compare
from inferplan.answers.cost import Cost, Rates
from inferplan.answers.sweep import Grid, sweep
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.bills import Bill, Offer, Tariff
from inferplan.catalog.price_lists import price_book
from inferplan.errors import InferplanError, NotFiniteError
from inferplan.estimate.load import StaticLoad
from inferplan.planning.demand import Demand
from inferplan.planning.grid import Axes, LoadGrid, axes_for, load_grid
from inferplan.planning.option import PlanOption, PricedGrid, Sizing, Stream, bill
from inferplan.planning.pools import (
    Half,
    Halves,
    TtftLimit,
    _seconds_beside_prefill,
    cheapest_pair,
    cheapest_pools,
    decode_pool,
    pareto_front,
    prefill_pool,
)
from inferplan.planning.question import Question
from inferplan.planning.search import cheapest_point, option_order, search
from inferplan.planning.sizing import Simulations, _beyond, next_size
from inferplan.planning.space import Space
from inferplan.planning.verify import QUOTED, SHOWN, slots_for, verify
from inferplan.reports.cost import cost_table
from inferplan.serving.latency import front_end
from inferplan.serving.records import FINISHED, Records
from inferplan.serving.result import SimulationResult
from inferplan.traffic.requests import Lengths, Slo
from inferplan.work.parallel import Parallelism
from tests.cases import for_each

REQUEST = Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True)
DEMAND = Demand(prompt=Lengths(mean=1000), output=Lengths(mean=101), rate=33.0)
OFFER = Offer(gpu="h100-sxm", gpus=None, per_hour=2.0, currency="USD", term="stated", source="--price")
TARIFF = Tariff(offers=(OFFER,), devices=1)
P95 = Slo(ttft=0.4, tpot=0.02, percentile=95.0)


def grid(
    through: tuple[float, float] = (0.12, 0.1), interval: tuple[float, float] = (0.12, 0.1), **changes: object
) -> LoadGrid:
    """Batches 10, 20 and 40 that take 10, 20 and 40 ms; a rank that holds 40 sequences is full.

    through, interval: seconds of a prompt, and between two that follow each other, in two pieces and in one.
    """
    shape = (3, 2)
    values = {
        "deployment": assemble(REQUEST),
        "axes": Axes(batch=np.array([10.0, 20.0, 40.0]), budget=np.array([500.0, 1000.0])),
        "step_decode": np.array([0.01, 0.02, 0.04]),
        "step_mixed": np.full(shape, 0.1),
        "share": np.full(shape, 0.5),
        "ttft_mean": np.full(shape, 0.1),
        "demand": DEMAND,
        "rate": np.full(shape, 10.0),
        "ttft": np.full(shape, 0.1),
        "tpot": np.full(shape, 0.01),
        "e2el": np.full(shape, 1.1),
        "answer_ttft": np.full(shape, 0.1),
        "concurrency": np.array([[10.0, 10.0], [20.0, 20.0], [40.0, 40.0]]),
        "memory_use": np.array([[0.25, 0.25], [0.5, 0.5], [1.0, 1.0]]),
        "prefill_use": np.full(shape, 0.5),
        "slots": 256.0,
    }
    made = LoadGrid(**(values | changes))  # type: ignore[arg-type]
    vars(made)["prompt_alone"] = (np.array(through), np.array(interval))
    return made


PRICED = PricedGrid(REQUEST, grid(), TARIFF)


def asked(**changes: object) -> Question:
    values = {
        "space": Space(base=REQUEST, gpus=("h100-sxm",), most=1),
        "demand": DEMAND,
        "slo": P95,
        "sizing": Sizing(),
        "prices": price_book(stated=["h100-sxm=2"]),
    }
    return Question(**(values | changes))  # type: ignore[arg-type]


def option(**changes: object) -> PlanOption:
    values = {
        "request": REQUEST,
        "deployment": assemble(REQUEST),
        "budget": 2048,
        "batch": 64,
        "concurrency": 100.0,
        "ttft": 0.1,
        "tpot": 0.01,
        "e2el": 1.1,
        "answer_ttft": 0.1,
        "rate": 10.0,
        "output": 101.0,
        "replicas": 3,
        "spare": 0,
        "tariff": TARIFF,
        "cost": 6.0,
    }
    return PlanOption(**(values | changes))  # type: ignore[arg-type]


def test_a_next_size_is_as_much_larger_as_capacities_are_known() -> None:
    """One replica more of up to 33; of 60 two, which is 3 % rounded up."""
    assert [next_size(option(replicas=replicas)).replicas for replicas in (1, 33, 34, 60)] == [2, 34, 36, 62]


@for_each(("utilisation", "replicas"), [(1.0, 4), (0.5, 7), (0.3, 11)])
def test_decode_replicas_are_given_their_share_of_capacity(utilisation: float, replicas: int) -> None:
    """100 steps of 20 ms at a batch of 20 finish 20/(100*0.02) = 10 requests per second; 33 are asked for."""
    pool = decode_pool(grid(), Stream(DEMAND, P95, Sizing(utilisation=utilisation)))
    assert pool is not None
    assert (pool.batch, pool.tpot, pool.concurrency) == (20, 0.02, 20.0)
    assert pool.replicas == replicas == ceil(33 / (10 * utilisation))


def test_the_decode_batch_is_the_largest_that_is_allowed() -> None:
    loose = Slo(tpot=1.0, percentile=95.0)
    assert decode_pool(grid(), Stream(DEMAND, loose, Sizing())).batch == 40  # the cache is exactly full
    fuller = np.array([[0.3, 0.3], [0.6, 0.6], [1.2, 1.2]])
    assert decode_pool(grid(memory_use=fuller), Stream(DEMAND, loose, Sizing())).batch == 20
    assert decode_pool(grid(slots=30.0), Stream(DEMAND, loose, Sizing())).batch == 20
    assert decode_pool(grid(), Stream(DEMAND, Slo(tpot=0.001, percentile=95.0), Sizing())) is None


def test_prefill_replicas_by_hand() -> None:
    """20 prompts a second of 0.1 s are a load of 2: three replicas behind a Poisson stream would wait
    0.1/(2/3)*ln(0.667/0.05) = 0.389 s at the 95th percentile, four 0.1/1*ln(0.5/0.05) = 0.230 s. Fed in turn they wait
    a third and a quarter of that. In two pieces of 0.06 s a prompt takes 0.12 s.
    """
    demand = replace(DEMAND, rate=20.0)
    three, four = 0.1 + 0.1 / (2 / 3) * log(2 / 3 / 0.05) / 3, 0.1 + 0.1 * log(10) / 4
    pool = prefill_pool(grid(), demand, TtftLimit(0.25, 0.05), 0.0, Sizing())
    assert pool is not None
    assert (pool.replicas, pool.budget) == (3, 1000)
    assert pool.ttft == pytest.approx(three)
    pool = prefill_pool(grid(), demand, TtftLimit(0.2, 0.05), 0.0, Sizing())
    assert pool is not None
    assert (pool.replicas, pool.ttft) == (4, pytest.approx(four))
    assert prefill_pool(grid(), demand, TtftLimit(0.3, 0.05), 0.1, Sizing()).replicas == 4  # 0.1 s are spent elsewhere
    assert prefill_pool(grid(), demand, TtftLimit(0.09, 0.05), 0.0, Sizing()) is None  # less than a prompt alone


def test_pools_keep_their_headroom() -> None:
    """A load of 1.9 with no limit to speak of: two replicas at 95 %, but three where each is given 80 %."""
    demand, loose = replace(DEMAND, rate=19.0), TtftLimit(60.0, 0.05)
    for utilisation, replicas in ((1.0, 2), (0.8, 3), (0.4, 5)):
        pool = prefill_pool(grid(), demand, loose, 0.0, Sizing(utilisation=utilisation))
        assert pool is not None and pool.replicas == replicas


def test_prompts_follow_each_other_through_the_stages() -> None:
    """Two stages: a prompt is through after 0.1 s, and the next may follow after 0.05 s, so the load halves: two
    replicas at 0.5, fed in turn, wait half of 0.05/1*ln(10) = 0.115 s.
    """
    staged = grid(through=(9.0, 0.1), interval=(0.06, 0.05))
    pool = prefill_pool(staged, replace(DEMAND, rate=20.0), TtftLimit(0.5, 0.05), 0.0, Sizing())
    assert pool is not None
    assert (pool.replicas, pool.budget) == (2, 1000)
    assert pool.ttft == pytest.approx(0.1 + 0.05 * log(10) / 2)


def test_the_last_piece_of_a_cache_waits_for_its_first_byte_too() -> None:
    """SGLang sends each piece of a prompt when it is computed: of 20,000 tokens of Llama-3.1-8B, 131,072 bytes each
    over 0.74 of 50 GB/s, the last 8,192 of a step, or all of them where one step holds them; 415 us either way."""
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", engine="sglang"))
    demand = Demand(prompt=Lengths(mean=20_000), output=Lengths(mean=100), rate=1.0)
    grid = load_grid(deployment, demand, 95.0, axes_for(deployment, [8192, 32768]))
    found = _seconds_beside_prefill(grid, grid, demand)
    whole = 20_000 * 131_072 / (0.74 * 50e9)
    front = (1 + deployment.engine.apart.asked_twice) * front_end(deployment, 20_000.0).seconds
    expected = {8192.0: 415e-6 + whole * 8192 / 20_000, 32768.0: 415e-6 + whole}
    assert {float(budget): one for budget, one in zip(grid.axes.budget, found - front)} == pytest.approx(expected)


def test_pools_are_billed_together() -> None:
    found = cheapest_pools(PricedGrid(REQUEST, grid(), TARIFF), Stream(DEMAND, P95, Sizing(utilisation=0.8, spare=1)))
    assert found is not None and found.pools is not None
    assert found.request is REQUEST
    assert found.pools[1] == 5  # 33/(10*0.8) = 4.1
    assert found.cost == (sum(found.pools) + 1) * 2.0
    assert found.e2el == pytest.approx(found.ttft + 100 * 0.02)
    assert cheapest_pools(PricedGrid(REQUEST, grid(), None), Stream(DEMAND, P95, Sizing())) is None


def _half(tp: int, price: float, step: float, prompt: float, gpu: str = "h100-sxm") -> PricedGrid:
    """A structure with a price an hour for each GPU, steps so many times as long, and prompts of so many seconds."""
    deployment = assemble(replace(REQUEST, gpu=gpu, parallel=Parallelism(tp=tp)))
    made = grid(deployment=deployment, step_decode=np.array([0.01, 0.02, 0.04]) * step)
    vars(made)["prompt_alone"] = (np.full(2, prompt), np.full(2, prompt))
    offer = replace(OFFER, gpu=gpu, per_hour=price)
    return PricedGrid(replace(REQUEST, gpu=gpu), made, Tariff(offers=(offer,), devices=tp))


def test_two_structures_are_paired_where_each_is_better_at_one() -> None:
    """33 requests per second. Decodes: 10 a second each (a batch of 20 in 20 ms) of 1 GPU, 20 (40 in 20 ms) of 2 dearer
    ones. Prompts: 0.1 s each on 1 GPU, 0.2 s on the others.

    Prompts on the first: a load of 3.3 takes 5 replicas at 80 %, 10 an hour. Decodes on the second: 33/(20*0.8) = 2.06,
    so 3 of 2 GPUs at 0.5, 3 an hour.
    """
    first, second = _half(1, 2.0, 1.0, 0.1), _half(2, 0.5, 0.5, 0.2, "h200-sxm")
    found = cheapest_pair(first, second, Stream(DEMAND, P95, Sizing(utilisation=0.8)))
    assert found is not None and found.prompts is not None
    assert found.pools == (5, 3)
    assert found.cost == pytest.approx(5 * 2.0 + 3 * 2 * 0.5)
    assert found.devices == 5 + 3 * 2
    assert [(each.hardware.name, count) for each, count in found.kinds] == [("h100-sxm", 5), ("h200-sxm", 6)]
    assert [bill.per_hour for bill in found.purchases] == [10.0, 3.0]
    spare = replace(found, spare=1).sized(8, (5, 3))
    assert (spare.cost, spare.devices) == (pytest.approx(6 * 2.0 + 4 * 2 * 0.5), 6 + 4 * 2)  # one in each pool
    assert found.per_device == pytest.approx(33 / 0.8 * 101 / 11)
    halves = Halves(Stream(DEMAND, P95, Sizing(utilisation=0.8)))
    for half in (first, second):
        halves.add(half)
    chosen = halves.pairs(below=np.inf)
    assert chosen[0].pools == (5, 3) and chosen[0].cost == found.cost
    assert all(one.prompts is not None for one in chosen)
    assert not halves.pairs(below=found.bound)


def test_what_no_pool_beats_is_paired() -> None:
    """By cost of carrying and of a replica: of one kind C is beaten by A in both, B carries for less but is coarser."""
    a, b, c = _half(1, 2.0, 1.0, 0.1), _half(2, 2.0, 1.0, 0.1), _half(4, 2.0, 1.0, 0.1)
    halves = [Half(a, 10.0, 2.0), Half(b, 8.0, 4.0), Half(c, 9.0, 8.0)]
    assert [half.priced for half in pareto_front(halves)] == [a, b]
    other = Half(_half(1, 9.0, 1.0, 0.1, "h200-sxm"), 50.0, 9.0)
    assert other in pareto_front([*halves, other])  # the only one of its kind


def test_a_pool_for_prompts_holds_one() -> None:
    """70B in fp8 leaves one H100 room for some 2,000 tokens of 320 KiB, two of them for many more."""
    demand, long = replace(DEMAND, prompt=Lengths(mean=8000)), TtftLimit(60.0, 0.05)
    for tp, holds in ((1, False), (2, True)):
        request = replace(REQUEST, model="llama-3.1-70b", quant="fp8", parallel=Parallelism(tp=tp))
        found = prefill_pool(grid(deployment=assemble(request)), demand, long, 0.0, Sizing())
        assert (found is not None) == holds


def test_the_bill_of_a_grid() -> None:
    """33 requests per second on replicas of 10 at 80 %: 5 and one spare, at 2 an hour each."""
    billed = bill(DEMAND, Sizing(utilisation=0.8, spare=1), PRICED)
    assert np.all(billed.replicas == 5)
    assert np.all(billed.cost == 12.0)
    users = replace(DEMAND, rate=None, users=100)
    assert bill(users, Sizing(utilisation=0.5), PRICED).replicas[:, 0].tolist() == [20.0, 10.0, 5.0]
    job = replace(DEMAND, rate=None, requests=72_000, deadline=7200.0)  # 10 a second
    offline = bill(job, Sizing(utilisation=0.5), PRICED)
    # 10 to 40 requests in a replica of 10 a second last 1 to 4 s: the last one begins so long before the deadline
    assert offline.replicas[:, 0].tolist() == [3.0, 3.0, 3.0]  # 72,000/(10*7199*0.5) is just above 2
    assert offline.hours[:, 0] == pytest.approx([(2400 + lasting) / 3600 for lasting in (1, 2, 4)])
    assert offline.cost[0, 0] == pytest.approx(6 * 2401 / 3600)
    few = bill(replace(job, requests=2, deadline=10.0), Sizing(utilisation=0.01), PRICED)
    assert np.all(few.replicas <= 2)  # no more replicas than requests
    late = bill(replace(job, requests=2, deadline=3.0), Sizing(), PRICED)
    assert np.isfinite(late.replicas[:, 0]).tolist() == [True, True, False]  # 40 at once take 4 s


def test_output_tokens_of_a_device() -> None:
    assert option().per_device == pytest.approx(1010.0)
    assert option(pools=(1, 2)).per_device == pytest.approx(1010.0)


def test_a_large_fleet_is_quoted_from_a_run_of_many_of_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """33 requests a second of 300 s each are 9,900 in pools at once: 24,000 requests would be gone before the system is
    as full as it gets, and no queue that grows is seen. Six times as many as are in it at once are sent, and more where
    that is too short to tell.
    """
    asked_for: list[int] = []

    def seen(*arguments: object) -> None:
        asked_for.append(arguments[-1].most)  # type: ignore[attr-defined]
        raise InferplanError("seen")

    monkeypatch.setattr("inferplan.planning.verify.simulate_steady", seen)
    Simulations(most=1).long(option(e2el=300.0, pools=(1, 2)), asked(), precision=QUOTED)
    Simulations(most=1).long(option(e2el=3.0, pools=(1, 2)), asked(), precision=QUOTED)
    assert asked_for == [6 * 9900, 24_000]


def test_slots_hold_the_fluctuation_of_the_load() -> None:
    """33 requests a second that last 10 s each, on three replicas, are 110 in each; 1.3 times that is 143, and requests
    in an open system are about Poisson: 143 of them on average are hardly ever more than 184.
    """
    slots = slots_for(option(e2el=10.0), DEMAND, 0.8)
    assert slots == 184  # 143 + 3*sqrt(143) = 178.9, in eights
    assert slots_for(option(e2el=10.0), DEMAND, 0.5) == 272  # room for twice the load: 220 + 3*sqrt(220) = 264.5
    assert slots_for(option(e2el=0.01), DEMAND, 0.8) == 8
    assert slots_for(option(), replace(DEMAND, rate=None, users=300), 0.8) == 168  # 130 + 3*sqrt(130) = 164.2
    two_stages = replace(assemble(REQUEST), parallel=Parallelism(pp=2))
    small = option(e2el=100.0, deployment=two_stages, budget=256)  # vLLM's scheduler asks as much of a pipeline
    assert slots_for(small, DEMAND, 0.8) == 256
    drawn = np.random.default_rng(1).poisson(143.0, 100_000)
    assert float(np.mean(drawn > slots)) < 0.002
    assert float(np.mean(drawn > 143)) > 0.4  # what the mean alone would turn away


@for_each(("mean", "spread"), [(1024, 0.8), (100, 0.5), (7, 0.1), (50, 1.0)])
def test_the_variance_of_uniform_lengths(mean: int, spread: float) -> None:
    """Whole numbers from spread*mean to mean, ends included, each as likely."""
    lengths = Lengths(kind="uniform", mean=mean, spread=spread)
    every = np.arange(max(int(spread * mean), 1), mean + 1)
    assert lengths.variance == pytest.approx(float(np.var(every)))
    drawn = lengths.sample(np.random.default_rng(0), 200_000)
    assert lengths.variance == pytest.approx(float(np.var(drawn)), rel=0.02, abs=1e-9)


@for_each("kind", ["lognormal", "gamma", "normal", "fixed"])
def test_the_variance_of_other_lengths(kind: str) -> None:
    lengths = Lengths(kind=kind, mean=1000, spread=0.3)
    drawn = lengths.sample(np.random.default_rng(0), 200_000)
    assert lengths.variance == pytest.approx(float(np.var(drawn)), rel=0.03)


def test_prefix_hits_of_the_warm_up_are_not_counted() -> None:
    """Four requests of 100 tokens; the first two warm up. 10 of the other 200 tokens were found."""
    records = Records(arrival=[0.0, 1.0, 2.0, 3.0], prompt=[100] * 4, output=[1] * 4)
    records.cached = {0: 90, 1: 80, 2: 10}
    records.admitted, records.first, records.finish = ([t + d for t in records.arrival] for d in (0.1, 0.2, 0.3))
    records.status = bytearray([FINISHED] * 4)
    assert SimulationResult(records=records, meters=[], closed=False, warmup=2).hit_rate == pytest.approx(10 / 200)
    assert SimulationResult(records=records, meters=[], closed=False).hit_rate == pytest.approx(180 / 400)


def test_the_label_of_the_month_is_what_was_multiplied() -> None:
    cost = Cost(bill=Bill(offer=OFFER, units=4, devices=4), rates=Rates(requests=2.0, prompt=1000.0, output=500.0))
    label, value = next(row for row in cost_table(cost).rows if "month" in row[0])
    hours = float(label.removeprefix("per month of ").removesuffix(" hours"))
    assert float(value.removesuffix(" USD").replace(",", "")) == pytest.approx(8.0 * hours)


def test_of_points_that_differ_by_rounding_alone_the_fastest_is_chosen() -> None:
    rate = np.full((3, 2), 10.0)
    rate[1, 0] = 10.0 * (1 + 1e-12)  # carries most, by rounding
    speed = np.full((3, 2), 1.1)
    speed[0, 1] = 0.9
    option = cheapest_point(PricedGrid(REQUEST, grid(rate=rate, e2el=speed), TARIFF), Stream(DEMAND, P95, Sizing()))
    assert option is not None and (option.batch, option.budget) == (10, 1000)
    other = replace(option, cost=(option.cost or 0.0) * (1 - 1e-12), e2el=1.1)
    assert sorted([other, option], key=option_order)[0] is option


def test_a_part_that_leaves_a_doubt_goes_on_whatever_the_percentile() -> None:
    """At p99 a second look would be the whole run: a limit at which that lies is not decided by its first third."""
    one = option(replicas=1)
    far = verify(one, asked(slo=Slo(ttft=5.0, percentile=99.0)))
    assert far.rest is not None and far.result is not None
    first, whole = far.achieved["ttft"], far.rest.whole
    assert whole is not None and whole.result is not None
    assert whole.result.counts["arrived"] > 2 * far.result.counts["arrived"]
    near = verify(one, asked(slo=Slo(ttft=first * 0.999, percentile=99.0)))
    assert near.achieved["ttft"] == whole.achieved["ttft"]


def test_whole_answers_are_not_judged_by_a_part_of_a_run() -> None:
    """The longest are not done when it ends: one in a thousand here takes 50 times the median."""
    spread = replace(DEMAND, output=Lengths(kind="lognormal", mean=100, spread=1.3))
    assert verify(option(replicas=1), asked(demand=spread)).rest is not None
    assert verify(option(replicas=1), asked(demand=spread, slo=Slo(e2el=60.0, percentile=95.0))).rest is None


def test_a_price_that_is_no_number_is_an_error_not_a_refused_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise NotFiniteError("the price of attn.kv_b is nan")

    space, prices = Space(base=REQUEST, gpus=("h100-sxm",), most=1), price_book(stated=["h100-sxm=2"])
    load = StaticLoad(batch=1.0, prompt=100.0, output=10.0)
    swallowers: dict[str, Callable[[], object]] = {
        "inferplan.planning.search.load_grids": lambda: search(space, Stream(DEMAND, P95, Sizing()), prices),
        "inferplan.planning.verify.PausedRun": lambda: verify(option(), asked()),
        "inferplan.planning.verify.simulate_steady": lambda: verify(option(), asked(), precision=SHOWN),
        "inferplan.answers.compare.estimate": lambda: compare([assemble(REQUEST)], ["h100"], load),
        "inferplan.answers.sweep.estimate_unchecked": lambda: sweep(Grid(base=REQUEST)),
    }
    for name, ask in swallowers.items():
        with monkeypatch.context() as patch, pytest.raises(NotFiniteError, match=r"attn\.kv_b"):
            patch.setattr(name, broken)
            ask()


def test_a_latency_that_hardly_rises_breaks_its_limit_beyond_every_load():
    # 0.5 of the limit at load 1, a millionth more at 2: a power of ln(1.000001) / ln 2, so at e^480,000 of the load
    assert _beyond(2.0, 3.0, {1.0: 0.5, 2.0: 0.5000005}) == 6.0
    # the square of the load: 0.5 at 1 is at the limit at the root of 2, below the largest that was tried
    assert _beyond(2.0, 3.0, {1.0: 0.125, 2.0: 0.5}) < 6.0
