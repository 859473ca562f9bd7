"""Plans against brute force over small spaces: ``python -m tests.benchmarks.compare_plans [scenario numbers]``.

Brute force knows nothing of bounds, bisection or closed forms: of every division, format and token budget (and every
pair of pools) it simulates the whole fleet, one size after another, for at least 20,000 requests, until a size keeps
the limits at ``load/utilisation`` or costs more than the best so far. Its engines admit as many sequences as they do by
default. The plan of the same question is then simulated as a whole fleet under the load itself, with three seeds.
"""

from __future__ import annotations

import itertools
import sys
import time
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np

from inferplan.catalog.assemble import Request
from inferplan.catalog.price_lists import PriceBook, price_book
from inferplan.errors import InferplanError
from inferplan.estimate.deployment import Deployment
from inferplan.planning.demand import Demand
from inferplan.planning.option import Sizing
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.planning.space import Rejections, Space, candidates
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import Slo, parse_lengths
from inferplan.work.parallel import Parallelism

BUDGETS = (512, 2048, 8192)
REQUESTS = 20_000
SEEDS = (11, 12, 13)


@dataclass(frozen=True)
class Scenario:
    """A question small enough for brute force. prices: as ``--price`` takes them, by the device or by the box."""

    model: str
    gpus: tuple[str, ...]
    prompt: str
    output: str
    rate: float
    ttft: float
    tpot: float
    prices: tuple[str, ...]
    most: int = 2
    quants: tuple[str | None, ...] = (None, "fp8")
    pools: bool = False
    utilisation: float = 0.8


SCENARIOS = [
    Scenario("llama-3.1-8b", ("h100-sxm",), "1024", "256", 40, 0.3, 0.02, ("h100-sxm=3",)),
    Scenario("llama-3.1-8b", ("h100-sxm",), "lognormal:1024:0.8", "lognormal:256:0.8", 60, 0.5, 0.03, ("h100-sxm=3",)),
    Scenario("llama-3.1-8b", ("l40s",), "512", "128", 20, 0.5, 0.05, ("l40s=1",)),
    Scenario("llama-3.1-8b", ("l40s", "h100-sxm"), "512", "128", 30, 0.4, 0.04, ("l40s=1", "h100-sxm=3.5")),
    Scenario("llama-3.1-8b", ("h200-sxm",), "8000", "200", 4, 1.0, 0.03, ("h200-sxm=4",)),
    Scenario("llama-3.1-8b", ("h100-sxm",), "1024", "256", 1, 0.2, 0.012, ("h100-sxm=3",)),
    Scenario("llama-3.1-8b", ("h100-sxm",), "1024", "256", 40, 0.3, 0.02, ("h100-sxm=24/8",)),
    Scenario("llama-3.1-8b", ("b200-hgx",), "2048", "512", 40, 0.5, 0.015, ("b200-hgx=6",)),
    Scenario("llama-3.1-70b", ("h200-sxm",), "1024", "256", 6, 1.0, 0.05, ("h200-sxm=4",), most=4, quants=("fp8",)),
    Scenario("llama-3.1-70b", ("b200-hgx",), "1024", "256", 12, 0.5, 0.04, ("b200-hgx=6",), quants=("fp8",)),
    Scenario("llama-3.1-70b", ("h100-sxm",), "1024", "256", 8, 0.6, 0.04, ("h100-sxm=24/8",), most=4, quants=("fp8",)),
    Scenario("llama-3.1-70b", ("b200-hgx",), "4096", "300", 5, 1.0, 0.03, ("b200-hgx=6",), 1, ("fp8",), pools=True),
    Scenario("llama-3.1-8b", ("h100-sxm",), "4096", "200", 20, 0.4, 0.012, ("h100-sxm=3",), most=1, pools=True),
    Scenario("llama-3.1-8b", ("l40s",), "2048", "200", 5, 0.8, 0.03, ("l40s=1",), most=1, pools=True),
    Scenario("qwen3-32b", ("h100-sxm",), "1500", "300", 6, 0.6, 0.03, ("h100-sxm=3",)),
    Scenario("qwen3-32b", ("h200-sxm", "b200-hgx"), "1500", "300", 10, 0.5, 0.025, ("h200-sxm=4", "b200-hgx=6")),
    Scenario("qwen3-30b-a3b", ("h100-sxm",), "1024", "256", 30, 0.5, 0.02, ("h100-sxm=3",)),
    Scenario("gpt-oss-20b", ("h100-sxm",), "1024", "512", 30, 0.3, 0.015, ("h100-sxm=3",), quants=(None,)),
    Scenario("gpt-oss-120b", ("b200-hgx",), "1024", "512", 40, 0.4, 0.02, ("b200-hgx=6",), quants=(None,)),
    Scenario("mixtral-8x7b-v0.1", ("h100-sxm",), "700", "200", 12, 0.5, 0.03, ("h100-sxm=3",), quants=("fp8",)),
    Scenario("llama-3.1-8b", ("a100-80gb-sxm",), "1024", "256", 15, 0.5, 0.03, ("a100-80gb-sxm=1.6",), quants=(None,)),
    Scenario(
        "llama-3.1-8b", ("h100-sxm",), "gamma:600:1", "gamma:300:1", 50, 0.4, 0.02, ("h100-sxm=3",), utilisation=0.6
    ),
    Scenario("llama-3.1-8b", ("h100-sxm",), "1024", "256", 80, 0.3, 0.02, ("h100-sxm=3",), utilisation=1.0),
    Scenario("qwen3-30b-a3b", ("h200-sxm",), "3000", "400", 25, 0.6, 0.02, ("h200-sxm=32/8",)),
    Scenario(
        "llama-3.1-8b",
        ("h100-sxm", "h200-sxm"),
        "4096",
        "500",
        20,
        0.4,
        0.01,
        ("h100-sxm=2", "h200-sxm=2.5"),
        1,
        (None,),
        pools=True,
    ),
]


def question(scenario: Scenario) -> Question:
    space = Space(
        base=Request(model=scenario.model, gpu=""),
        gpus=scenario.gpus,
        quants=scenario.quants,
        most=scenario.most,
        budgets=BUDGETS,
        disaggregate=scenario.pools,
    )
    return Question(
        space=space,
        demand=Demand(
            prompt=parse_lengths(scenario.prompt), output=parse_lengths(scenario.output), rate=float(scenario.rate)
        ),
        slo=Slo(ttft=scenario.ttft, tpot=scenario.tpot, percentile=95.0),
        sizing=Sizing(utilisation=scenario.utilisation),
        prices=price_book(stated=scenario.prices),
    )


@dataclass(frozen=True)
class Service:
    """A fleet and its flags; ``slots`` of one attention rank, absent for the engine's own. prompts: what computes them
    where it is not what decodes, and the token budget of the pool that does."""

    deployment: Deployment
    budget: int
    replicas: int
    pools: tuple[int, int] | None = None
    slots: int | None = None
    prompts: tuple[Deployment | None, int] | None = None

    def run(self, demand: Demand, rate: float, seed: int) -> SimulationResult:
        """The whole fleet, fed in turn."""
        apart = Fleet(prefill=self.pools[0], decode=self.pools[1]) if self.pools else Fleet()
        if self.prompts:
            own = Flags(max_num_batched_tokens=self.prompts[1])
            apart = replace(apart, prefill_deployment=self.prompts[0], prefill_flags=own)
        count = 1 if self.pools else self.replicas
        deployment = Deployment(**(vars_of(self.deployment) | {"parallel": replicated(self.deployment, count)}))
        flags = Flags(max_num_seqs=self.slots, max_num_batched_tokens=self.budget)
        return simulate(deployment, demand.traffic(rate, REQUESTS, seed=seed), flags, Options(fleet=apart, trim=True))


def vars_of(deployment: Deployment) -> dict[str, object]:
    return {name: getattr(deployment, name) for name in deployment.__dataclass_fields__}


def replicated(deployment: Deployment, replicas: int) -> Parallelism:
    parallel = deployment.parallel
    return Parallelism(tp=parallel.tp, pp=parallel.pp, dp=parallel.dp, ep=parallel.ep, replicas=replicas)


def keeps(result: SimulationResult, slo: Slo) -> bool:
    late = [np.percentile(getattr(result, name), slo.percentile) > limit for name, limit in slo.limits.items()]
    return result.verdict in ("stable", "saturated") and not any(late)


def brute(asked: Question, prices: PriceBook) -> tuple[float, str, int]:
    """The cheapest cost, what it buys, and how many fleets were simulated."""
    best, what, runs = inf, "nothing", 0
    demand, load = asked.demand, (asked.demand.rate or 0.0) / asked.sizing.utilisation
    for _, deployment in candidates(asked.space, Rejections()):
        parallel = deployment.parallel
        tariff = prices.tariff(deployment.hardware.name, parallel.ranks, parallel.tp)
        assert tariff is not None
        for budget in BUDGETS:
            sizes: list[tuple[int, tuple[int, int] | None]] = [(n, None) for n in range(1, 64)]
            if asked.space.disaggregate:
                pairs = itertools.product(range(1, 12), repeat=2)
                sizes = [*sorted((p + d, (p, d)) for p, d in pairs), *sizes]
            hopeless = 0
            for replicas, pools in sizes:
                if float(tariff.cost(replicas)) >= best:
                    continue
                try:
                    result = Service(deployment, budget, replicas, pools).run(demand, load, 3)
                except InferplanError:  # no link joins the pools of such devices; or nothing fits
                    if pools is not None:
                        continue
                    break
                runs += 1
                if keeps(result, asked.slo):
                    best, what = float(tariff.cost(replicas)), f"{pools or replicas} x {deployment.describe()} {budget}"
                # more replicas only shorten queues: when twice in a row nothing gets better, no size will do
                idle = result.mean_batch < 0.3
                hopeless = hopeless + 1 if idle else 0
                if hopeless >= 2 and pools is None:
                    break
    return brute_pairs(asked, prices, (best, what, runs)) if asked.space.disaggregate else (best, what, runs)


def brute_pairs(asked: Question, prices: PriceBook, so_far: tuple[float, str, int]) -> tuple[float, str, int]:
    """Every pair of two structures, size after size, that costs less than the best so far."""
    best, what, runs = so_far
    demand, load = asked.demand, (asked.demand.rate or 0.0) / asked.sizing.utilisation
    found = [deployment for _, deployment in candidates(asked.space, Rejections())]
    for (first, second), budget in itertools.product(itertools.permutations(found, 2), BUDGETS):
        costs = [prices.tariff(one.hardware.name, one.parallel.ranks, one.parallel.tp) for one in (first, second)]
        sizes = [
            (sum(float(tariff.cost(size)) for tariff, size in zip(costs, pools) if tariff), pools)
            for pools in itertools.product(range(1, 24), range(1, 12))
        ]
        for cost, pools in sorted(sizes):
            if cost >= best:
                break
            try:
                result = Service(second, budget, sum(pools), pools, prompts=(first, budget)).run(demand, load, 3)
            except InferplanError:  # no cache can go from one to the other, or nothing fits
                break
            runs += 1
            if keeps(result, asked.slo):
                best, what = cost, f"{pools} x {first.describe()} and {second.describe()} {budget}"
    return best, what, runs


def long_runs(found: Plan) -> list[bool]:
    """Whether the plan keeps its limits as a whole fleet under the load itself, seed by seed."""
    option, asked = found.option, found.question
    service = Service(
        option.deployment,
        option.budget,
        option.replicas,
        option.pools,
        ceil(found.best.slots / option.deployment.parallel.dp),
        None if option.prompt_budget is None else (option.prompts and option.prompts.deployment, option.prompt_budget),
    )
    return [keeps(service.run(asked.demand, asked.demand.rate or 0.0, seed), asked.slo) for seed in SEEDS]


def main(arguments: list[str]) -> None:
    """One line a scenario, and the totals."""
    chosen = [int(text) for text in arguments] or list(range(len(SCENARIOS)))
    within = kept = 0
    for number in chosen:
        scenario, start = SCENARIOS[number], time.process_time()
        asked = question(scenario)
        found = plan(asked)
        seconds = time.process_time() - start
        best, what, runs = brute(asked, asked.prices)
        held = long_runs(found)
        cost = found.option.cost or inf
        within += cost <= 1.02 * best
        kept += all(held)
        option = found.option
        bought = f"{option.pools or option.replicas} x {option.deployment.describe()} {option.budget}"
        bought += f", prompts on {option.prompts.deployment.describe()}" if option.prompts else ""
        load = f"{scenario.prompt}/{scenario.output} {scenario.rate:g}/s"
        print(
            f"{number:2} {scenario.model} {'+'.join(scenario.gpus)} {load}: plan {cost:.2f} ({bought}), "
            f"brute force {best:.2f} ({what}) in {runs} runs; limits kept by {sum(held)} of {len(held)} seeds; "
            f"plan {seconds:.1f} s, all {time.process_time() - start:.0f} s",
            flush=True,
        )
    print(
        f"within 2 % of the cheapest: {within} of {len(chosen)}; limits kept in every long run: {kept} of {len(chosen)}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
