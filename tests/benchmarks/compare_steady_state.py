"""Closed form against simulator over 200 stable points: ``python -m tests.benchmarks.compare_steady_state [STAGES]``.

With a number of pipeline stages the users come one after another over ten seconds: a burst of equal prompts would fill
the batches in flight evenly, which arrivals that know nothing of each other do not. ``full``: drawn loads of which the
cache holds a part, and how far TTFT, TPOT and the rate are then, by users over what fits.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.engine import EngineFlags
from inferplan.serving.simulator import simulate
from inferplan.serving.steady import UserLoad, steady_state
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from inferplan.work.parallel import Parallelism

DEPLOYMENTS = (
    ("llama-3.1-8b", "h100-sxm", 1, "vllm"),
    ("llama-3.1-70b", "h200-sxm", 4, "vllm"),
    ("qwen3-32b", "h100-sxm", 2, "trtllm"),
    ("mixtral-8x7b-v0.1", "h100-sxm", 4, "vllm"),
    ("llama-3.1-8b", "h100-sxm", 1, "sglang"),
)
LENGTHS = ((512, 512), (1024, 128), (2048, 256), (8192, 1024), (256, 1024))
USERS = (4, 16, 64, 256)


class Point(NamedTuple):
    """A deployment (ideal or with the constants on file) and a closed loop on it."""

    deployment: tuple[str, str, int, str]
    lengths: tuple[int, int]
    users: int
    ideal: bool


class Errors(NamedTuple):
    """Closed form over simulator, less one."""

    ttft: float
    tpot: float
    rate: float


def grid() -> list[Point]:
    """All 200 points."""
    return [Point(*point) for point in itertools.product(DEPLOYMENTS, LENGTHS, USERS, (True, False))]


def compare(point: Point, stages: int = 1, flags: EngineFlags | None = None) -> tuple[float, float]:
    """Relative differences of TPOT and of request rate, closed form over simulator, first wave and tail left out."""
    model, gpu, tp, engine = point.deployment
    parallel = Parallelism(tp=tp, pp=stages)
    asked = Request(model=model, gpu=gpu, engine=engine, ideal=point.ideal, parallel=parallel)
    served = assemble(asked if flags is None else replace(asked, flags=flags))
    prompt, output = point.lengths
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=point.users, burst=stages == 1, ramp=0.0 if stages == 1 else 10.0),
        prompt=Lengths(kind="uniform", mean=prompt, spread=0.5),
        output=Lengths(kind="uniform", mean=output, spread=0.5),
        requests_count=max(20 * point.users, 200) * (1 if stages == 1 else 3),
    )
    run = simulate(served, traffic)
    state = steady_state(
        served,
        UserLoad(concurrency=float(point.users), prompt=traffic.prompt.average, output=traffic.output.average),
    )
    finish = np.sort(np.asarray(run.records.finish))
    early, late = int((0.25 if stages == 1 else 0.5) * len(finish)), int(0.85 * len(finish))
    rate = (late - early) / (finish[late] - finish[early])
    tpot = float(np.mean(run.tpot[early:late]))
    return float(state.tpot) / tpot - 1.0, float(state.request_rate) / rate - 1.0


def beyond_the_cache(deployment: tuple[str, str, int, str], lengths: tuple[int, int], over: float) -> Errors | None:
    """Differences of TTFT, TPOT and rate as shares, with ``over`` times the users that fit and equal requests; None
    where more than 300 would have to be followed."""
    model, gpu, tp, engine = deployment
    served = assemble(Request(model=model, gpu=gpu, engine=engine, parallel=Parallelism(tp=tp)))
    prompt, output = lengths
    fits = steady_state(served, UserLoad(concurrency=1.0, prompt=float(prompt), output=float(output))).admissible
    users = int(np.ceil(float(fits) * over))
    if fits < 1 or users > 300:
        return None
    loop, equal = ClosedLoop(concurrency=users), (Lengths(mean=prompt), Lengths(mean=output))
    traffic = Traffic(arrivals=loop, prompt=equal[0], output=equal[1], requests_count=max(20 * users, 200))
    run = simulate(served, traffic).to_dict()
    state = steady_state(served, UserLoad(concurrency=float(users), prompt=float(prompt), output=float(output)))
    found = (run["ttft_s"]["mean"], run["tpot_s"]["mean"], run["throughput"]["requests_per_s"])
    predicted = (float(state.ttft), float(state.tpot), float(state.request_rate))
    return Errors(*(mine / theirs - 1.0 for mine, theirs in zip(predicted, found)))


def full_caches(seed: int = 1, draws: int = 24) -> None:
    rng = np.random.default_rng(seed)
    devices = [("llama-3.1-8b", "rtx-4090", 1), ("qwen3-32b", "h100-sxm", 1), ("llama-3.1-70b", "h200-sxm", 2)]
    for over in (1.1, 1.3, 2.0, 4.0):
        found: list[Errors] = []
        while len(found) < draws:
            lengths = tuple(int(np.exp(rng.uniform(*np.log(ends)))) for ends in ((200, 8000), (50, 2000)))
            device = (*devices[rng.integers(3)], ("vllm", "sglang", "trtllm")[rng.integers(3)])
            one = beyond_the_cache(device, lengths, over)
            found += [one] if one is not None else []
        size = np.abs(np.array(found))
        shares = ", ".join(
            f"{name} {middle:.1%} and {high:.1%}"
            for name, middle, high in zip(Errors._fields, np.median(size, axis=0), np.percentile(size, 90, axis=0))
        )
        print(f"{over} times what fits, median and p90 of {draws}: {shares}")


def main(stages: int = 1) -> None:
    points = grid()
    errors = np.abs([compare(point, stages) for point in points])
    for name, column in zip(("TPOT", "throughput"), errors.T):
        worst = points[int(np.argmax(column))]
        print(
            f"{name}: median {np.median(column):.2%}, p90 {np.percentile(column, 90):.2%}, largest {column.max():.2%} "
            f"({worst.deployment[0]}, {worst.deployment[3]}, {worst.lengths}, {worst.users} users) over {len(points)}"
        )


if __name__ == "__main__":
    full_caches() if sys.argv[1:] == ["full"] else main(*map(int, sys.argv[1:]))
