"""The search against brute force, the plan against its own promises."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inferplan.answers.drafting import Drafting
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.price_lists import PriceBook, price_book
from inferplan.devices.engine import EngineFlags
from inferplan.errors import InfeasibleError, UsageError
from inferplan.planning.demand import Demand, demand_of_trace, sharing
from inferplan.planning.grid import axes_for, load_grid
from inferplan.planning.option import Sizing, Stream
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.planning.search import pareto, point, search
from inferplan.planning.space import Rejections, Space, candidates, default_gpus, divisions
from inferplan.planning.verify import slots_for
from inferplan.reports.plan import plan_report
from inferplan.reports.plan_record import plan_record
from inferplan.serving.flags import Flags
from inferplan.serving.simulator import simulate
from inferplan.serving.steady import UserLoad, steady_state
from inferplan.table import render
from inferplan.traffic.requests import Lengths, Requests, SharedPrefix, Slo, parse_lengths
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.json_page import listed

SLO = Slo(ttft=0.4, tpot=0.03, percentile=95.0)
DEMAND = Demand(prompt=Lengths(mean=700), output=Lengths(mean=200), rate=10.0)


@pytest.fixture(scope="module")
def prices() -> PriceBook:
    return price_book(stated=["h100-sxm=3", "h200-sxm=4", "l40s=1.5"])


@pytest.fixture(scope="module")
def space() -> Space:
    return Space(
        base=Request(model="llama-3.1-8b", gpu="", ideal=True),
        gpus=("h100-sxm", "h200-sxm", "l40s"),
        quants=(None, "fp8"),
        most=2,
        budgets=(512, 2048),
        disaggregate=False,
    )


def brute(space: Space, demand: Demand, slo: Slo, sizing: Sizing, prices: PriceBook):
    """Every point on its own, one after another: the cheapest cost, and the frontier."""
    best, points = math.inf, []
    for _, deployment in candidates(space, Rejections()):
        axes = axes_for(deployment, list(space.budgets))
        for batch, budget in itertools.product(axes.batch[::15], axes.budget):
            one = point(deployment, demand, slo.percentile, int(batch), int(budget))
            if one.memory_use[0, 0] > 1 or one.prefill_use[0, 0] >= 1 or one.concurrency[0, 0] > one.slots:
                continue
            rate = float(one.rate[0, 0])
            devices = deployment.parallel.ranks
            points.append((1 / float(one.tpot[0, 0]), rate * demand.output.average / devices))
            if any(float(getattr(one, name)[0, 0]) > limit for name, limit in slo.limits.items()):
                continue
            replicas = max(math.ceil(demand.requests_per_second / (rate * sizing.utilisation) - 1e-9), 1)
            price = {"h100-sxm": 3.0, "h200-sxm": 4.0, "l40s": 1.5}[deployment.hardware.name]
            best = min(best, (replicas + sizing.spare) * devices * price)
    frontier = [
        p
        for p in points
        if not any(q != p and q[0] >= p[0] and q[1] >= p[1] and (q[0] > p[0] or q[1] > p[1]) for q in points)
    ]
    return best, sorted(set(frontier))


@for_each(
    ("rate", "limits", "sizing"),
    [
        (30.0, {"ttft": 0.4, "tpot": 0.03}, Sizing()),
        (300.0, {"tpot": 0.012}, Sizing(utilisation=0.6, spare=2)),
        (5.0, {"e2el": 2.0}, Sizing(utilisation=1.0)),
    ],
)
def test_the_search_finds_what_brute_force_finds(
    rate: float,
    limits: dict[str, float],
    sizing: Sizing,
    space: Space,
    prices: PriceBook,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    demand, slo = replace(DEMAND, rate=rate), Slo(**limits, percentile=95.0)

    def thinned(deployment, budgets=None, longest: float = 0.0):
        axes = axes_for(deployment, budgets, longest)
        return replace(axes, batch=axes.batch[::15])

    monkeypatch.setattr("inferplan.planning.search.axes_for", thinned)
    found = search(space, Stream(demand, slo, sizing), prices)
    best, frontier = brute(space, demand, slo, sizing, prices)
    assert found.options[0].cost == pytest.approx(best, rel=1e-12)
    seen = sorted((option.per_user, option.per_device) for option in found.frontier)
    assert np.allclose(np.array(seen), np.array(frontier), rtol=1e-9)


@for_each("ideal", [True, False])
@for_each("engine", ["vllm", "sglang", "trtllm"])
@for_each(
    ("model", "parallel"),
    [
        ("llama-3.1-8b", Parallelism(tp=2)),
        ("llama-3.1-8b", Parallelism(pp=2)),
        ("mixtral-8x7b-v0.1", Parallelism(tp=2, dp=2, ep=4)),
    ],
)
def test_the_grid_is_the_steady_state(model: str, parallel: Parallelism, engine: str, ideal: bool) -> None:
    """At the users that the grid derives, the fixed point of the serving model finds the grid's own batch and times."""
    deployment = assemble(Request(model=model, gpu="h200-sxm", parallel=parallel, engine=engine, ideal=ideal))
    demand = Demand(prompt=Lengths(mean=1000), output=Lengths(mean=101), rate=1.0)
    found = load_grid(deployment, demand, 50.0, axes_for(deployment, [2048]))
    for index in (3, 15, 40):
        if found.prefill_use[index, 0] > 0.9 or found.memory_use[index, 0] > 0.9:
            continue
        load = UserLoad(concurrency=float(found.concurrency[index, 0]), prompt=1000.0, output=101.0)
        steady = steady_state(deployment, load, Flags(max_num_batched_tokens=2048))
        assert float(steady.decoding) == pytest.approx(float(found.axes.batch[index]) * parallel.dp, rel=0.04)
        assert float(steady.tpot) == pytest.approx(float(found.tpot[index, 0]), rel=0.04)
        assert float(steady.request_rate) == pytest.approx(float(found.rate[index, 0]), rel=0.04)
        assert float(found.ttft[index, 0]) >= 0.98 * float(steady.ttft)


@for_each("engine", ["vllm", "sglang"])
@for_each("branches", [1, 2])
def test_the_grid_of_drafts_is_the_steady_state(engine: str, branches: int) -> None:
    request = Request(model="llama-3.1-8b", gpu="h200-sxm", engine=engine)
    deployment = assemble(request)
    drafting = Drafting(model="llama-3.2-1b", length=3, acceptance=0.7, branches=branches)
    speculation = drafting.on(request, deployment.parallel)
    demand = Demand(prompt=Lengths(mean=1000), output=Lengths(mean=101), rate=1.0)
    plain = load_grid(deployment, demand, 50.0, axes_for(deployment, [2048]))
    found = load_grid(deployment, demand, 50.0, axes_for(deployment, [2048]), speculation)
    assert np.all(found.memory_use > plain.memory_use)
    assert np.all(found.step_decode > plain.step_decode)
    assert found.tpot[0, 0] < plain.tpot[0, 0]
    for index in (3, 15):
        load = UserLoad(concurrency=float(found.concurrency[index, 0]), prompt=1000.0, output=101.0)
        steady = steady_state(deployment, load, Flags(max_num_batched_tokens=2048), speculation)
        assert float(steady.decoding) == pytest.approx(float(found.axes.batch[index]), rel=0.05)
        assert float(steady.tpot) == pytest.approx(float(found.tpot[index, 0]), rel=0.05)
        assert float(steady.request_rate) == pytest.approx(float(found.rate[index, 0]), rel=0.05)


def test_the_grid_keeps_littles_law_and_its_laws() -> None:
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    found = load_grid(deployment, DEMAND, 50.0, axes_for(deployment))
    good = found.prefill_use < 0.95
    assert np.all(np.diff(found.step_decode) >= -1e-12)
    assert np.all(found.tpot[good] >= np.broadcast_to(found.step_decode[:, None], found.tpot.shape)[good] - 1e-12)
    assert np.all(found.concurrency >= found.axes.batch[:, None] - 1e-9)
    steps = found.rate * (DEMAND.output.average - 1) * found.tpot
    assert np.allclose(steps, np.broadcast_to(found.axes.batch[:, None], steps.shape))


def test_pareto_keeps_exactly_what_is_not_beaten() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.integers(0, 12, 200).astype(float), rng.integers(0, 12, 200).astype(float)
    kept = {(first[i], second[i]) for i in pareto(first, second)}
    every = set(zip(first.tolist(), second.tolist()))
    expected = {p for p in every if not any(q[0] >= p[0] and q[1] >= p[1] and q != p for q in every)}
    assert kept == expected


def question(space: Space, prices: PriceBook, **changes) -> Question:
    values = {"space": space, "demand": DEMAND, "slo": SLO, "sizing": Sizing(), "prices": prices} | changes
    return Question(**values)


@pytest.fixture(scope="module")
def found(space: Space, prices: PriceBook) -> Plan:
    return plan(question(space, prices))


def test_the_plan_meets_its_limits_in_simulation_and_is_the_cheapest(found: Plan) -> None:
    assert found.best.verdict in ("stable", "saturated")
    assert not found.best.violations(SLO)
    costs = [verified.option.cost for verified in [found.best, *found.alternatives]]
    assert costs == sorted(costs)
    assert found.binding in ("ttft", "tpot", "memory", "slots", "prefill")
    cheaper = found.cheaper
    assert cheaper is None or (cheaper.cost < found.option.cost and cheaper.violations(SLO))


def test_counts_add_up(found: Plan) -> None:
    counts = found.searched.rejections.counts
    kept = sum(
        int((entry.grid.possible & (entry.grid.ttft <= SLO.ttft) & (entry.grid.tpot <= SLO.tpot)).sum())
        for entry in found.searched.grids
    )
    ruled_out = sum(counts[reason] for reason in ("memory", "slots", "prefill", "ttft", "tpot", "weights"))
    assert kept + ruled_out == found.searched.evaluated


def test_the_record_is_json_and_the_report_renders(found: Plan) -> None:
    record = json.loads(render(plan_report(found), "json"))
    assert record["plan"]["deployment"]["model"] == "llama-3.1-8b"
    assert record["plan"]["launch"].startswith("vllm serve")
    assert record["cost"]["per_hour"] == pytest.approx(found.option.cost)
    assert {entry["load"] for entry in record["sensitivity"]} == {0.8, 1.1, 1.25, 1.5}
    assert plan_record(found)["frontier"]
    assert len(found.to_frame()) == 1 + len(found.alternatives)
    for row in plan_report(found).rows:
        assert sorted(row) == sorted(listed("plan", "alternatives[]"))


def test_more_load_never_costs_less_and_tighter_limits_neither(space: Space, prices: PriceBook) -> None:
    def cheapest(rate: float, tpot: float) -> float:
        stream = Stream(replace(DEMAND, rate=rate), Slo(tpot=tpot, percentile=95.0), Sizing())
        options = search(space, stream, prices).options
        return options[0].cost if options else math.inf

    by_rate = [cheapest(rate, 0.03) for rate in (1, 10, 50, 200)]
    by_limit = [cheapest(50, tpot) for tpot in (0.1, 0.03, 0.01, 0.005)]
    assert by_rate == sorted(by_rate)
    assert by_limit == sorted(by_limit)


def test_spare_replicas_and_headroom_are_paid_for(space: Space, prices: PriceBook, found: Plan) -> None:
    spared = plan(question(space, prices, sizing=Sizing(spare=1)))
    assert spared.option.spare == 1
    assert spared.option.cost > found.option.cost
    assert spared.deployment.parallel.replicas == spared.option.replicas + 1


def test_a_device_without_a_price_is_on_the_frontier_only(space: Space) -> None:
    only = price_book(stated=["l40s=1.5"], lists=["lambda"], term="spot")
    found = plan(question(space, only))
    assert {v.option.deployment.hardware.name for v in [found.best, *found.alternatives]} == {"l40s"}
    assert {option.deployment.hardware.name for option in found.searched.frontier} - {"l40s"}
    assert any("without a price" in note for note in plan_report(found).notes)


def test_another_gpu_stands_beside_the_plan_for_what_it_costs_alone() -> None:
    """H200 were shown in the checkpoint's own format at 253 USD/h, where half as many do it in fp8 (docs/cases.md)."""
    space = Space(
        base=Request(model="llama-3.1-70b", gpu=""),
        gpus=("h100-sxm", "h200-sxm"),
        quants=(None, "fp8", "int8", "w4a16"),
        most=8,
        disaggregate=False,
    )
    lengths = {"prompt": parse_lengths("lognormal:1155:0.96"), "output": parse_lengths("lognormal:211:0.77")}
    asked = Question(
        space=space,
        demand=Demand(rate=20.0, **lengths),
        slo=Slo(ttft=0.5, tpot=0.04, percentile=95.0),
        sizing=Sizing(confidence=0.9),
        prices=price_book(stated=["h100-sxm=55.04/8", "h200-sxm=63.296/8"]),
    )
    beside = [verified.option for verified in plan(asked).alternatives]
    alone = plan(replace(asked, space=replace(space, gpus=("h200-sxm",)))).option
    assert [option.cost for option in beside if option.deployment.hardware.name == "h200-sxm"] == [alone.cost]


def test_no_plan_is_infeasible_with_the_nearest_miss(space: Space, prices: PriceBook) -> None:
    with pytest.raises(InfeasibleError) as caught:
        plan(question(space, prices, slo=Slo(tpot=0.0005, percentile=95.0)))
    assert caught.value.exit_code == 3
    assert "nearest" in caught.value.because
    relaxed = caught.value.hint.split("--tpot ")[1]
    milliseconds = float(relaxed.removesuffix("ms").removesuffix("us")) / (1000 if relaxed.endswith("us") else 1)
    assert plan(question(space, prices, slo=Slo(tpot=milliseconds * 1.01 / 1000, percentile=50.0))).option.cost


def test_refused_requests_are_not_served_in_time(space: Space, prices: PriceBook) -> None:
    short = replace(space, base=replace(space.base, model="llama-3-8b"), gpus=("h100-sxm",))  # 8192 tokens of context
    demand = replace(DEMAND, prompt=Lengths(kind="lognormal", mean=5000, spread=0.6), rate=2.0)
    loose = Slo(ttft=20.0, tpot=1.0, percentile=95.0)
    with pytest.raises(InfeasibleError, match="no plan") as raised:
        plan(question(short, prices, demand=demand, slo=loose))
    assert "requests are refused: longer than max_model_len 8192" in str(raised.value.because)
    with pytest.raises(InfeasibleError, match="requests are refused: longer than max_model_len 8192"):
        plan(question(short, prices, demand=demand, slo=replace(loose, percentile=50.0)))
    cut = replace(demand, prompt=Lengths(kind="lognormal", mean=5000, spread=0.6, most=7900))
    assert plan(question(short, prices, demand=cut, slo=loose)).best.verdict == "stable"


def test_offline_work_is_counted_in_gpu_hours(space: Space, prices: PriceBook) -> None:
    job = Demand(prompt=Lengths(mean=700), output=Lengths(mean=200), requests=2_000_000, deadline=3600.0)
    found = plan(question(space, prices, demand=job, slo=Slo(percentile=95.0), sizing=Sizing(utilisation=0.95)))
    option = found.option
    assert option.hours <= 1.0
    lasting = option.concurrency / option.rate  # the last request begins so long before the end
    assert (option.hours * 3600 - lasting) * option.rate * option.replicas == pytest.approx(2_000_000)
    assert option.cost == pytest.approx(option.hours * option.purchases[0].per_hour)
    assert plan_record(found)["cost"]["per_request"] == pytest.approx(option.cost / 2_000_000)


def test_limits_of_offline_work_are_kept_in_closed_form(space: Space, prices: PriceBook) -> None:
    """Nothing simulates a job, so a point that misses its limits by a little is no plan, nor beside one."""
    job = Demand(prompt=Lengths(mean=700), output=Lengths(mean=200), requests=200_000, deadline=3600.0)
    loosest = plan(question(space, prices, demand=job, slo=Slo(percentile=95.0)))
    limit = 0.9 * min(option.tpot for option in loosest.searched.options)
    tight = Slo(tpot=limit, percentile=95.0)
    found = plan(question(space, prices, demand=job, slo=tight))
    assert all(option.tpot <= limit for option in found.searched.options)
    assert all(not verified.violations(tight) for verified in [found.best, *found.alternatives])


def test_users_are_a_closed_loop(space: Space, prices: PriceBook) -> None:
    demand = Demand(prompt=Lengths(mean=700), output=Lengths(mean=200), users=300)
    found = plan(question(space, prices, demand=demand))
    assert not found.best.violations(SLO)
    assert found.rate * found.best.result.in_system / 1 > 0


def test_pools_apart_are_sized_for_the_rate(prices: PriceBook, space: Space) -> None:
    found = search(replace(space, disaggregate=True), Stream(DEMAND, SLO, Sizing()), prices)
    apart = [option for option in found.options if option.pools]
    assert apart
    for option in apart:
        assert sum(option.pools) == option.replicas
        assert not option.violations(SLO)


@for_each(("acceptance", "helps"), [(0.9, True), (0.05, False)])
def test_drafts_are_searched_and_judged(space: Space, prices: PriceBook, acceptance: float, helps: bool) -> None:
    small = replace(
        space, gpus=("h100-sxm",), quants=(None,), drafting=(Drafting(model=None, length=3, acceptance=acceptance),)
    )
    found = plan(question(small, prices, slo=Slo(tpot=0.012, percentile=95.0)))
    record = plan_record(found)["speculation"]
    assert record["helps"] is helps is bool(found.option.speculation.length)
    assert found.cheapest(False) is not None
    assert ("speculation" in found.best.result.conditions) is helps
    verdict = "helps at this load" if helps else "does not help at this load"
    assert verdict in " ".join(plan_report(found).notes)


def test_a_draft_that_cannot_be_divided_is_left_out(space: Space, prices: PriceBook) -> None:
    drafting = Drafting(model="qwen2.5-0.5b", length=3, acceptance=0.7)
    small = replace(space, gpus=("h100-sxm",), quants=(None,), most=4, tp=(4,), pp=(1,), drafting=(drafting,))
    found = search(small, Stream(DEMAND, SLO, Sizing()), prices)
    assert found.rejections.counts["drafts"] == 1
    assert found.structures == 1


def test_what_prompts_share_is_cached() -> None:
    own, output = Lengths(mean=320), Lengths(mean=64)
    assert sharing(own, output, SharedPrefix(), 1) == (own, 0)
    whole, cached = sharing(own, output, SharedPrefix(tokens=160), 1)
    assert whole.average == 480
    assert cached == pytest.approx(160, abs=2)
    whole, cached = sharing(own, output, SharedPrefix(turns=2), 1)
    assert whole.average == pytest.approx((320 + 320 + 64 + 320) / 2)
    assert cached == (320 + 48) // 2  # the answer but its last token, in whole blocks of 16
    assert sharing(own, output, SharedPrefix(), 4)[1] == 304 * 3 // 4  # whole blocks before the last token
    demand = Demand(prompt=whole, output=output, rate=8.0, own=own, samples=4, cached=100)
    assert demand.traffic(8.0, 100).arrivals.rate == 2.0
    assert len(demand.traffic(8.0, 100).requests()) == 100
    assert demand.hit_rate == 0.0


@for_each(
    "values",
    [
        {},
        {"rate": 1.0, "users": 3},
        {"requests": 10},
        {"deadline": 10.0},
        {"rate": 0.0},
        {"rate": 9e-6},
        {"rate": 1.0, "cached": 700},
    ],
)
def test_a_demand_must_be_one_question(values: dict) -> None:
    with pytest.raises(UsageError):
        Demand(**({"prompt": Lengths(mean=700), "output": Lengths(mean=200)} | values))


def test_a_model_that_generates_is_not_planned_for_one_token() -> None:
    """An encoder's requests write nothing; between the tokens of a decoder's there must be a time."""
    space, prices = Space(base=Request(model="llama-3.1-8b", gpu="l4"), gpus=("l4",), most=1), price_book()
    demand = Demand(prompt=Lengths(mean=700), output=Lengths(mean=1), rate=1.0)
    with pytest.raises(UsageError, match="two output tokens"):
        search(space, Stream(demand, 95.0, Sizing()), prices)


def test_a_rate_that_is_too_low_is_refused_as_it_was_typed() -> None:
    with pytest.raises(UsageError, match=r"--rate 1e-09 requests/s is less than can be planned for"):
        Demand(prompt=Lengths(mean=700), output=Lengths(mean=200), rate=1e-9)
    with pytest.raises(UsageError, match=r"--rate 7\.5e-06"):  # four answers of a prompt each
        Demand(prompt=Lengths(mean=700), output=Lengths(mean=200), rate=3e-5, samples=4)
    assert Demand(prompt=Lengths(mean=700), output=Lengths(mean=200), rate=1e-5).rate == 1e-5


@for_each(("seconds", "said"), [(86400.0, "24 h"), (5400.0, "1.5 h"), (60.0, "60.00 s"), (1e-6, "1.000 us")])
def test_a_deadline_is_said_in_a_unit_that_suits_it(seconds: float, said: str) -> None:
    job = Demand(prompt=Lengths(mean=700), output=Lengths(mean=200), requests=10, deadline=seconds)
    assert job.describe() == f"10 requests in {said}, 700 tokens in, 200 out"


@for_each(
    ("arrivals", "message"),
    [
        (None, "needs a trace with arrival times"),
        ([3.0], "two requests or more: one has no rate"),
        ([3.0, 3.0], "the 2 requests of the trace arrive at the same time"),
        ([0.0, 1e7], "the mean rate of the trace, 1e-07 requests/s is less"),
    ],
)
def test_a_trace_without_a_rate_is_refused_with_what_it_lacks(arrivals: list[float] | None, message: str) -> None:
    count = len(arrivals or [0.0])
    trace = Requests(
        arrival=None if arrivals is None else np.array(arrivals),
        prompt=np.full(count, 100),
        output=np.full(count, 20),
    )
    with pytest.raises(UsageError, match=message):
        demand_of_trace(trace)


def test_default_space() -> None:
    from inferplan.catalog.files import load_model

    aws = ("t4", "l4", "l40s", "rtx-pro-6000-server", "a100-80gb-sxm", "h100-sxm", "h200-sxm", "b200-hgx", "b300-hgx")
    named = default_gpus(price_book(["aws-us-east-1"]))
    assert named == ("t4", "a10g", "inferentia2", *aws[1:])
    every = default_gpus(price_book())  # of all providers: Azure, RunPod, CoreWeave, Lambda and Google sell others
    assert {*named, "a100-80gb-pcie", "h100-nvl", "mi300x", "gb200", "gh200-96gb", "h100-pcie", "tpu-v6e"} <= {*every}
    assert not {"mi325x", "a10", "rtx-4090"} & {*every}  # a survey's, a serverless one, no GPU of a data centre
    priced = price_book(["runpod-secure"])
    assert set(priced.gpus) - set(default_gpus(priced)) == {"rtx-3090", "rtx-4090", "rtx-5090", "rtx-6000-ada"}
    dense = divisions(load_model("llama-3.1-8b"), Space(base=Request(model="", gpu=""), gpus=()))
    assert all(p.ep == 1 and p.dp == 1 and p.ranks <= 8 for p in dense)
    experts = divisions(load_model("mixtral-8x7b-v0.1"), Space(base=Request(model="", gpu=""), gpus=()))
    assert any(p.ep == 8 and p.dp == 2 for p in experts)


def test_each_pool_is_searched_with_its_own_ways_to_spread_experts() -> None:
    """Half batches and copies that are asked for in one pool are in no other, and in none that does both."""
    base = Request(model="gpt-oss-20b", gpu="", ideal=True)
    space = Space(
        base=base,
        gpus=("h100-sxm",),
        engines=("vllm",),
        tp=(1,),
        pp=(1,),
        dp=(2,),
        ep=(2,),
        budgets=(8192,),
        prefill_redundant=(0, 2),
        prefill_two_batches=True,
    )
    found = [deployment for _, deployment in candidates(space, Rejections())]
    ways = {(d.parallel.redundant, d.two_batches is not None): d for d in found}
    assert set(ways) == {(0, False), (2, False), (0, True), (2, True)}
    assert [way for way, d in ways.items() if space.tries(d)] == [(0, False)]
    assert all(space.tries(d, prompts=True) for d in found)
    demand = Demand(prompt=Lengths(mean=4000), output=Lengths(mean=200), rate=200.0)
    prices = price_book(stated=["h100-sxm=3"])
    options = search(space, Stream(demand, Slo(ttft=1.0, tpot=0.01), Sizing()), prices).options
    pairs = [option.prompts.deployment for option in options if option.prompts is not None]
    assert {(d.parallel.redundant, d.two_batches is not None) for d in pairs} >= {(0, True)}
    assert {(o.deployment.parallel.redundant, o.deployment.two_batches) for o in options} == {(0, None)}


@for_each("engine, compared", [("vllm", True), ("sglang", False), ("trtllm", False)])
def test_pools_start_one_checkpoint_where_the_engine_compares_its_name(engine: str, compared: bool) -> None:
    """vLLM hashes the model's name (pull request 29503): int8 and 4-bit weights are checkpoints of two names, fp8 is
    made of the released one. SGLang compares pages and the format of the cache (``disaggregation/common/conn.py``),
    TensorRT-LLM its shape and type (``CacheFormatter::inquireSupport``)."""
    space = Space(
        base=Request(model="llama-3.3-70b", gpu=""),
        gpus=("h100-sxm",),
        quants=(None, "fp8", "int8", "w4a16"),
        tp=(2, 4),
        pp=(1,),
        engines=(engine,),
    )
    demand = Demand(prompt=Lengths(mean=8000), output=Lengths(mean=500), rate=4.0)
    stream = Stream(demand, Slo(ttft=2.0, tpot=0.04), Sizing())
    options = search(space, stream, price_book(stated=["h100-sxm=3"])).options
    name = {None: "released", "fp8": "released"}
    pairs = [
        {name.get(quant, quant) for quant in (option.request.quant, option.prompts.request.quant)}
        for option in options
        if option.prompts is not None
    ]
    assert pairs and all(len(names) == 1 for names in pairs) is compared


def test_an_interval_between_prompts_is_of_every_candidate_that_heeds_it() -> None:
    """vLLM without pipeline stages; TensorRT-LLM has no such flag, and alone it is refused at once, as is a delayer."""
    base = Request(model="gpt-oss-20b", gpu="", ideal=True, flags=EngineFlags(prefill_schedule_interval=4))
    degrees = {"tp": (1,), "pp": (1, 2), "dp": (1, 2), "ep": (1, 2), "budgets": (8192,), "quants": (None,)}
    asked: dict[str, Any] = {"gpus": ("h100-sxm",), "disaggregate": False, **degrees}
    rejections = Rejections()
    found = [d for _, d in candidates(Space(base=base, engines=("vllm", "trtllm"), **asked), rejections)]
    assert {(d.engine.name, d.parallel.pp) for d in found} == {("vllm", 1)}
    assert {(d.parallel.dp, d.cadence.gap, d.cadence.grid) for d in found} == {(1, 3, 1), (2, 0, 4)}
    with pytest.raises(UsageError, match="trtllm has no --prefill-schedule-interval"):
        Space(base=base, engines=("trtllm",), **asked)
    delayed = replace(base, flags=EngineFlags(enable_prefill_delayer=True))
    with pytest.raises(UsageError, match="plan has no closed form for attention ranks that hold prompts back"):
        Space(base=delayed, engines=("sglang",), **asked)


def test_each_pool_has_a_token_budget_of_its_own() -> None:
    """The fewest tokens that hold the decodes where they are decoded, what keeps TTFT where prompts are computed."""
    base = Request(model="llama-3.1-8b", gpu="", ideal=True)
    space = Space(base=base, gpus=("h100-sxm",), quants=(None,), tp=(1,), pp=(1,))
    demand = Demand(prompt=Lengths(mean=4000), output=Lengths(mean=200), rate=50.0)
    prices = price_book(stated=["h100-sxm=3"])
    options = search(space, Stream(demand, Slo(ttft=1.0, tpot=0.02), Sizing()), prices).options
    apart = [option for option in options if option.pools is not None]
    assert apart
    for option in apart:
        assert option.prompt_budget is not None and option.budget >= option.batch
        roomy = [budget for budget in (512, 1024, 1536, 2048) if 2 * option.batch <= budget < option.budget]
        assert not roomy
        wide = replace(option, concurrency=10_000.0)  # vLLM takes no fewer tokens of a step than sequences
        assert slots_for(wide, demand, 0.8) <= option.budget


@for_each("tokens", [4000, 20000])
def test_a_prompt_that_is_never_cut_has_room_in_a_step(tokens: int) -> None:
    """TensorRT-LLM refuses a prompt longer than a step; one that does not fit beside decodes waits for their end."""
    base = Request(model="llama-3.1-8b", gpu="", ideal=True)
    space = Space(base=base, gpus=("h100-sxm",), quants=(None,), tp=(1,), pp=(1,), engines=("trtllm",))
    demand = Demand(prompt=Lengths(mean=tokens), output=Lengths(mean=200), rate=5.0)
    stream = Stream(demand, Slo(ttft=5.0, tpot=0.05), Sizing())
    options = search(space, stream, price_book(stated=["h100-sxm=3"])).options
    apart = [option.prompt_budget or 0 for option in options if option.pools is not None]
    together = [option.budget - option.batch for option in options if option.pools is None]
    assert apart and together and min(apart + together) >= tokens


def test_users_who_begin_one_after_another_do_not_wait_for_the_last() -> None:
    """Slots are free all the time, so a second request that comes before the last user's first is served at once."""
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    demand = Demand(prompt=Lengths(mean=200), output=Lengths(mean=20), users=40)
    result = simulate(deployment, demand.traffic(40.0, 200, ramp=20.0))
    assert float(np.max(result.ttft)) < 0.5
