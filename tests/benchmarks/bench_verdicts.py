"""Whether verdicts and quoted percentiles hold: python -m tests.benchmarks.bench_verdicts [--count 500].

Random open loops at 0.5 to 1.5 times the capacity of a deployment. The verdict of ``simulate_steady`` is held against
the truth: a run of 200,000 requests with another seed where the load is within 15 % of capacity, the capacity beyond.
The p95 of TTFT and TPOT of the first stable ones (``--references``) are held against such runs too.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace

import numpy as np

from inferplan.catalog.assemble import Request, assemble
from inferplan.estimate.deployment import Deployment
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.serving.run_length import capacity_rate, simulate_steady
from inferplan.serving.simulator import simulate
from inferplan.serving.verdict import flow_of
from inferplan.traffic.requests import Lengths, OpenLoop, Traffic
from inferplan.work.parallel import Parallelism

LONG = 200_000
NEAR = 0.15
SHARP = 0.03
"""A load this close to the place at which the long run tips is called either way: its own long run barely knows."""
DEPLOYMENTS = [
    ("llama-3.1-8b", "h100-sxm", 1, None),
    ("llama-3.1-8b", "l40s", 1, "fp8"),
    ("llama-3.1-70b", "h100-sxm", 4, "fp8"),
    ("llama-3.1-70b", "h200-sxm", 2, "fp8"),
    ("qwen3-30b-a3b", "h100-sxm", 1, "fp8"),
    ("gpt-oss-120b", "h200-sxm", 1, None),
]


@dataclass(frozen=True)
class Case:
    """A load and what is called of it."""

    load: float
    truth: str
    sure: bool
    """Whether the truth is: a long run whose queue neither grows clearly nor stays clearly is no judge."""
    called: str
    converged: bool
    requests: int
    cpu: float
    errors: tuple[float, ...]
    """Relative errors of the quoted p95 of TTFT and TPOT, where they were looked up."""
    name: str


def draw(rng: np.random.Generator) -> tuple[Deployment, Traffic, str]:
    """A deployment and its lengths; the rate is still open."""
    model, gpu, tp, quant = DEPLOYMENTS[rng.integers(len(DEPLOYMENTS))]
    replicas = int(rng.choice([1, 1, 2, 4]))
    kind = str(rng.choice(["fixed", "uniform", "lognormal"]))
    spread = {"fixed": 0.0, "uniform": 0.5, "lognormal": float(rng.choice([0.4, 0.8]))}[kind]
    prompt, output = int(rng.choice([256, 1024, 2048, 4096])), int(rng.choice([32, 128, 256]))
    served = assemble(Request(model=model, gpu=gpu, quant=quant, parallel=Parallelism(tp=tp, replicas=replicas)))
    traffic = Traffic(
        arrivals=OpenLoop(rate=1.0),
        prompt=Lengths(kind=kind, mean=prompt, spread=spread),  # type: ignore[arg-type]
        output=Lengths(kind=kind, mean=output, spread=spread),  # type: ignore[arg-type]
        seed=int(rng.integers(1 << 30)),
    )
    return served, traffic, f"{model} {gpu} x{tp} x{replicas} {kind}:{spread:g} {prompt}/{output}"


def long_run(served: Deployment, traffic: Traffic) -> SimulationResult:
    """200,000 requests of another seed, without the fill and the drain."""
    arrivals = replace(traffic.arrivals, exact=True)  # type: ignore[type-var]
    other = replace(traffic, arrivals=arrivals, requests_count=LONG, seed=traffic.seed + 1)
    return simulate(served, other, None, Options(trim=True))


def judge(rng: np.random.Generator, references: int) -> Case:
    """One load."""
    served, traffic, name = draw(rng)
    capacity = capacity_rate(served, traffic)
    assert capacity is not None
    load = float(rng.uniform(0.5, 1.5))
    traffic = replace(traffic, arrivals=OpenLoop(rate=load * capacity))
    start = time.process_time()
    found = simulate_steady(served, traffic)
    cpu = time.process_time() - start
    truth, sure, errors, reference = "stable" if load < 1 else "overloaded", True, [], None
    if abs(load - 1) < NEAR:
        reference = long_run(served, traffic)
        flow = flow_of(reference)
        assert flow is not None
        truth = "overloaded" if flow.grows else "stable"
        sure = flow.later_growth > SHARP if flow.grows else flow.later_growth < 3 * flow.later_error
    if references > 0 and truth == "stable" and found.steady:
        reference = reference or long_run(served, traffic)
        for values, true in ((found.ttft, reference.ttft), (found.tpot, reference.tpot)):
            errors.append(float(np.percentile(values, 95) / np.percentile(true, 95)) - 1)
    called = "overloaded" if found.verdict == "overloaded" else "stable"
    count = len(found.records.prompt)
    return Case(load, truth, sure, called, bool(found.converged), count, cpu, tuple(errors), name)


def report(cases: list[Case]) -> None:
    """The figures of docs/serving.md."""
    for truth, called in (("overloaded", "stable"), ("stable", "overloaded")):
        wrong = [case for case in cases if (case.truth, case.called) == (truth, called)]
        print(f"{truth} and called {called}: {len(wrong)}, of which the long run is sure: {sum(c.sure for c in wrong)}")
        for case in wrong:
            print(f"  load {case.load:.3f} {'sure' if case.sure else 'not sure'} {case.converged=} {case.name}")
    print(f"{len(cases)} loads, {sum(case.truth == 'overloaded' for case in cases)} overloaded")
    seconds = [case.cpu for case in cases]
    print(f"CPU seconds of a run: mean {np.mean(seconds):.2f}, p95 {np.percentile(seconds, 95):.2f}")
    looked = [case for case in cases if case.errors]
    for label, group in (("all", looked), ("converged", [case for case in looked if case.converged])):
        for metric, at in (("TTFT", 0), ("TPOT", 1)):
            errors = np.abs([case.errors[at] for case in group])
            inside = float(np.mean(errors <= 0.03)) if len(errors) else float("nan")
            worst = float(np.max(errors)) if len(errors) else float("nan")
            print(f"p95 {metric}, {label}: {len(errors)} runs, within 3 %: {inside:.1%}, largest error {worst:.1%}")
    for case in looked:
        if max(map(abs, case.errors)) > 0.03:
            print(f"  load {case.load:.3f} {case.converged=} {case.requests} {case.errors} {case.name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--references", type=int, default=20, help="stable loads whose p95 are held against a long run")
    parser.add_argument("--seed", type=int, default=11)
    given = parser.parse_args()
    rng, cases = np.random.default_rng(given.seed), []
    for _ in range(given.count):
        cases.append(judge(rng, given.references - sum(bool(case.errors) for case in cases)))
        last = cases[-1]
        print(
            f"load {last.load:.3f}: {last.truth}, called {last.called}; p95 off by {last.errors} {last.name}",
            flush=True,
        )
    report(cases)


if __name__ == "__main__":
    main()
