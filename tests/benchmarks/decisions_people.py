"""Plans for people against a simulation of the planned fleet and a replay of vLLM's scheduler.

``python -m tests.benchmarks.bench_decisions people`` prints the table of docs/planning.md: for each named workload that
says what people do ``inferplan plan --people 2000``, ``inferplan simulate --people 2000`` on the planned replicas with
another seed, and one replica's share of the people, served by ``tests/serving/vllm_replay.py`` at the same prices of
steps. The replay knows no front end: its latencies stand against those of a simulation without one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from inferplan.catalog.files import names
from inferplan.catalog.workloads import load_workload
from inferplan.cli.plan import question_options
from inferplan.cli.programs import run_command, words_of
from inferplan.devices.engine import ServingConstants
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.serving.flags import Flags, rules_of
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate, times_for
from inferplan.traffic.requests import ClosedLoop, Requests
from inferplan.work.parallel import Parallelism
from tests.serving import vllm_replay
from tests.serving.replay_cases import BLOCK, Users, prices

PEOPLE, MODEL = 2000, "llama-3.1-8b"
WHERE: dict[str, Any] = {"gpu": "h100-sxm", "quant": "fp8", "most": 1, "aggregated": True, "confidence": 0.5}
OWN_LIMITS = {"reasoning": {"ttft": "2s", "tpot": "40ms"}, "long-chat": {"ttft": "2s"}}
"""Of a workload that states none, and of one whose own a single GPU of this kind does not keep."""
COLUMNS = ("requests/s", "TTFT p95", "TPOT p95")
_TIMES = ("arrival", "first", "finish", "output")
_FEWEST = 10_000
"""Requests of a replay: of a given hit rate it finds whole blocks, and from the first of them on goes its own way."""
_REQUESTS = 40
"""Requests of each person in the simulation: with the usual 10 its p95 of TTFT may be 6 % off by chance."""
_LIVES = 6
"""Requests of each person in the replay, of which the first and the last quarter are left out."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One workload: GPUs, and requests/s, TTFT and TPOT at p95 [s] by who says them."""

    workload: str
    gpus: int
    plan: tuple[float, float, float]
    simulated: tuple[float, float, float]
    replayed: tuple[float, float, float]
    alike: tuple[float, float, float]
    """A simulation of what is replayed."""

    @property
    def off(self) -> dict[str, tuple[float, float, float]]:
        """How far the simulation is from the plan, and the replay from the simulation of the same, as shares."""
        pairs = {"simulate": (self.simulated, self.plan), "replay": (self.replayed, self.alike)}
        return {name: tuple(one / other - 1 for one, other in zip(*pair)) for name, pair in pairs.items()}  # type: ignore[misc]


@click.command("plan")
@question_options
def _question(question: Question) -> Question:
    """The question of a plan, without what its report simulates beside it."""
    return question


def compared(workload: str, people: int = PEOPLE, fewest: int = _FEWEST, **more: Any) -> Compared:
    """A plan for so many people with a workload, held against both."""
    asked = {"model": MODEL, **WHERE, "workload": workload, "people": people, **OWN_LIMITS.get(workload, {}), **more}
    found = plan(_question.main(words_of(_question, asked), standalone_mode=False))
    option, served = found.option, found.best.achieved
    run = run_command(
        "simulate",
        {
            **{key: asked[key] for key in ("model", "gpu", "quant", "workload", "people")},
            "replicas": option.replicas,
            "max-num-seqs": found.best.slots,
            "max-num-batched-tokens": option.budget,
            "seed": 7,
            "requests": _REQUESTS * people,
        },
    )
    assert run.report is not None, run.error
    record = run.report.record
    replayed, alike = _replayed(found, people, fewest)
    return Compared(
        workload=workload,
        gpus=option.devices,
        plan=(found.rate, served["ttft"], served["tpot"]),
        simulated=(record["people"]["requests_per_s"], record["ttft_s"]["p95"], record["tpot_s"]["p95"]),
        replayed=replayed,
        alike=alike,
    )


def _replayed(found: Plan, people: int, fewest: int) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """One replica's share of the people: replayed, and simulated without a front end."""
    option, demand = found.option, found.question.demand
    share = round(people / option.replicas)
    plain = option.deployment.engine.model_copy(update={"serving": ServingConstants()})
    deployment = replace(option.deployment, engine=plain, parallel=Parallelism())
    flags = Flags(max_num_seqs=found.best.slots, max_num_batched_tokens=option.budget)
    loop = ClosedLoop(concurrency=share, burst=True)
    drawn = demand.traffic(share, max(_LIVES * share, fewest), seed=3).requests(BLOCK)
    requests = _spread(drawn, share)
    typical = float(np.mean(requests.prompt)), float(np.mean(requests.prompt + requests.output))
    times = times_for(deployment, rules_of(deployment, flags, *typical), requests)
    run = simulate(deployment, requests.in_loop(loop), flags, Options(hit_rate=demand.hit_rate), times=times)
    sent = [
        vllm_replay.Request(float("nan"), int(prompt), int(output), _names(index, prompt, output, demand.hit_rate))
        for index, (prompt, output) in enumerate(zip(requests.prompt, requests.output))
    ]
    vllm_replay.replay(
        sent,
        prices(times),
        slots=run.slots,
        budget=run.conditions["max_num_batched_tokens"],
        blocks=int(run.capacity // BLOCK),
        answered=Users(sent, requests, loop).answered,
    )
    records = run.records
    ours = _figures(*(np.asarray(getattr(records, name)) for name in _TIMES))
    theirs = _figures(*(np.array([getattr(one, name) for one in sent]) for name in _TIMES))
    return _fleet(theirs, found), _fleet(ours, found)


def _spread(requests: Requests, people: int) -> Requests:
    """The requests of people who do not all begin at once: the first of each answers with one token to a prompt of
    one, and is followed by a think time."""
    prompt, output = requests.prompt.copy(), requests.output.copy()
    prompt[:people], output[:people] = 1, 1
    return replace(requests, prompt=prompt, output=output)


def _names(request: int, prompt: int, output: int, hit_rate: float) -> list[Hashable]:
    """Blocks of which a share of the prompt's is the same in all."""
    common = round(hit_rate * prompt / BLOCK)
    return [*range(common), *((request, at) for at in range(common, (prompt + output - 1) // BLOCK))]


def _figures(arrival: Any, first: Any, finish: Any, output: Any) -> tuple[float, float, float]:
    """Mean seconds of a request, TTFT and TPOT at p95, of the middle half by arrival."""
    low, high = np.quantile(arrival, [0.25, 0.75])
    mine = (arrival >= low) & (arrival <= high)
    several = mine & (output > 1)
    tpot = (finish - first)[several] / (output - 1)[several]
    ttft = (first - arrival)[mine]
    return float(np.mean((finish - arrival)[mine])), float(np.percentile(ttft, 95)), float(np.percentile(tpot, 95))


def _fleet(seen: tuple[float, float, float], found: Plan) -> tuple[float, float, float]:
    """With the requests/s of all people, by their number and the mean time of a request."""
    response, ttft, tpot = seen
    people = found.question.demand.people
    assert people is not None
    return people.rate(response), ttft, tpot


def figures(_: Path | None = None, workloads: Sequence[str] = ()) -> None:
    """Print the table, and the largest differences."""
    found = []
    print("| workload | GPUs | requests/s | TTFT p95 | TPOT p95 | simulate | replay |")
    print("|---|---:|---:|---:|---:|---|---|")
    for name in workloads or [one for one in names("workloads") if load_workload(one).people is not None]:
        one = compared(name)
        found.append(one)
        rate, ttft, tpot = one.plan
        off = [", ".join(f"{value:+.1%}" for value in one.off[who]) for who in ("simulate", "replay")]
        print(
            f"| {name} | {one.gpus} | {rate:.3g} | {ttft * 1e3:.0f} ms | {tpot * 1e3:.1f} ms | {off[0]} | {off[1]} |",
            flush=True,
        )
    for who in ("simulate", "replay"):
        worst = [max(abs(one.off[who][place]) for one in found) for place in range(len(COLUMNS))]
        print(f"{who}, largest: " + ", ".join(f"{name} {value:.1%}" for name, value in zip(COLUMNS, worst)))
