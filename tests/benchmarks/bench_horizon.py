"""``plan_months`` on a fleet of many models: CPU seconds, memory, and how far the answer is from the bound.

    python tests/benchmarks/bench_horizon.py [--models 20] [--kinds 6] [--regions 3] [--months 36] [--jobs 2]

Made up: loads of 5 to 200 requests/s, prices that rise with what a machine carries, three futures, three levels of
load, terms of a year and of three beside on demand; the last kind is sold from the second year on.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from inferplan.horizon.answer import plan_months
from inferplan.horizon.question import Arc, Offer, Pool, Question, Stream


def made_up(models: int, kinds: int, regions: int, months: int, seed: int = 0) -> Question:
    """A question of that size."""
    random = np.random.default_rng(seed)
    pools = tuple(Pool(f"r{region}", f"k{kind}") for region in range(regions) for kind in range(kinds))
    prices, speeds = np.geomspace(8, 110, kinds) * 730, np.geomspace(1, 16, kinds)
    levels, growth = np.array([1.0, 0.6, 0.25]), np.array([0.0, 0.03, 0.06])
    streams, arcs, rates = list[Stream](), list[Arc](), []
    for model in range(models):
        size = random.uniform(0.5, 8)
        for region in range(regions):
            base = random.uniform(5, 200) * (1 + growth * random.uniform(0.5, 1.5)) ** np.arange(months)[:, None]
            rates.append(base[:, :, None] * levels)
            carried = speeds * random.uniform(0.7, 1.4, kinds) * 4 / size
            arcs += [Arc(len(streams), region * kinds + k, one / 8, 1 / 8) for k, one in enumerate(carried)]
            streams.append(Stream(f"m{model}", f"r{region}", 0.05))
    offers = []
    for place in range(len(pools)):
        kind = place % kinds
        price, first = prices[kind] * random.uniform(0.9, 1.2), 12 if kind == kinds - 1 else 0
        offers.append(Offer(row=len(offers), pool=place, term="on-demand", cost=price, first=first))
        for length, share in ((12, 0.66), (36, 0.45)):
            row = len(offers)
            offers.append(Offer(row=row, pool=place, term="reserved", cost=price * share, months=length, first=first))
    return Question(
        months=tuple(map(str, range(months))),
        scenarios=("low", "mid", "high"),
        chance=np.array([0.3, 0.4, 0.3]),
        levels=("busy", "day", "night"),
        hours=np.array([40, 70, 58]) / 168,
        streams=tuple(streams),
        rates=np.array(rates),
        pools=pools,
        arcs=tuple(arcs),
        offers=tuple(offers),
        spot=np.ones(3),
        price=np.ones(3),
        paid=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, usual in (("models", 20), ("kinds", 6), ("regions", 3), ("months", 36), ("jobs", 2)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    asked = parser.parse_args()
    question = made_up(asked.models, asked.kinds, asked.regions, asked.months)
    wall = time.perf_counter()
    found = plan_months(question, asked.jobs)
    wall = time.perf_counter() - wall
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(one) for one in who]
    print(f"CPU {sum(one.ru_utime + one.ru_stime for one in used):.1f} s, wall {wall:.1f} s")
    print("memory of each process", [f"{one.ru_maxrss / 1e6:.2f} GB" for one in used])
    print(f"cost {found.cost:,.0f}, at most {found.gap:.3%} from the cheapest, machines whole: {found.whole}")
    print(f"replicas and hired machines rounded up: {(found.rounded_up or 0.0) / found.cost:.2%} more at most")
    print(f"held and hired in the last month: {found.solved.machines[:, -1].sum():,.0f} machines")
    print(f"on demand {found.on_demand}, reserved {found.reserved}, mean {found.mean}, known {found.certain}")


if __name__ == "__main__":
    main()
