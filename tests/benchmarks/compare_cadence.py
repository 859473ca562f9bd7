"""``python -m tests.benchmarks.compare_cadence``: what an interval between prompts is worth, measured and predicted.

The rows are those of the pull request that brought ``--prefill-schedule-interval`` to vLLM (#44558, 2026-06-04,
workload A): DeepSeek-R1-0528 in FP4 with a cache in FP8, eight attention ranks that share experts on two trays of four
GB200, 1,024 tokens in and 200 out, Poisson arrivals, 24 requests/s. A pre-release; nothing here was fitted to them.
Behind them stand those of a comment on #54627, which states the times of its steps: what the schedule alone makes of
these.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from inferplan.catalog.assemble import Request, assemble, load_engine
from inferplan.devices.cadence import Cadence
from inferplan.devices.engine import EngineFlags, SchedulerDefaults
from inferplan.serving.admission import Rules
from inferplan.serving.records import Records
from inferplan.serving.replica import Replica
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.simulator import simulate
from inferplan.serving.step_times import Chunk
from inferplan.traffic.requests import Lengths, OpenLoop, Traffic
from inferplan.work.parallel import Parallelism

MEASURED = {
    ("itl_s", "p50"): (0.2749, 0.0321),
    ("itl_s", "mean"): (0.2367, 0.1394),
    ("tpot_s", "mean"): (0.2405, 0.1402),
    ("ttft_s", "mean"): (0.813, 0.502),
    ("ttft_s", "p99"): (2.476, 1.475),
}
"""Seconds at an interval of 1 and of 2, by latency and statistic."""


def predicted(interval: int) -> dict[tuple[str, str], float | None]:
    """The same figures of a simulation of 1,500 requests; ``None`` of a queue that grows."""
    ranks = Parallelism(dp=8, ep=8)
    asked = Request(
        model="deepseek-r1",
        gpu="gb200",
        engine="vllm@0.24",
        quant="nvfp4",
        roles=(("kv", "fp8"),),
        parallel=ranks,
        flags=EngineFlags(prefill_schedule_interval=interval),
    )
    traffic = Traffic(
        arrivals=OpenLoop(rate=24.0), prompt=Lengths(mean=1024), output=Lengths(mean=200), requests_count=1500
    )
    result = simulate(assemble(asked), traffic)
    found = {name: result.percentiles(name) for name, _ in MEASURED}
    return {(name, which): figures[which] for name, which in MEASURED if (figures := found[name]) is not None}


class Stated(NamedTuple):
    """What the comment on vLLM's #54627 says of a run: GLM-5.3-Flash on four GB10, prompts of some 6,000 tokens that
    come at once, 300 tokens out; of ``users`` at an interval, tokens/s of all and seconds to the first token.
    """

    users: int
    interval: int
    rate: float
    mean: float
    last: float


STATED = (
    Stated(8, 1, 49.1, 18.5, 24.1),
    Stated(8, 2, 49.0, 18.5, 24.2),
    Stated(8, 8, 39.9, 23.7, 34.0),
    Stated(4, 8, 40.7, 10.2, 12.1),
    Stated(1, 8, 25.3, 2.9, 2.9),
)
"""A fork that heeds the interval without attention ranks, and lets no backlog end the waiting (2026-09-02). The last
two are set aside: nothing of them is used."""
TOKENS, PROMPT, STEP = 6000, 2.6, 0.25
"""Of a prompt; seconds of a step with one, and of one without, with eight users: the comment's, "about"."""
STEPS = 100
"""That an answer takes: with an interval of 1, 300 tokens in the (8*300/49.1 - 24.1) s behind the last first token, at
0.25 s a step."""


class StatedTimes:
    """Steps that take what the comment says."""

    width, drafts = 1, False

    def decode(self, batch: int, context: float) -> float:
        return STEP

    def mixed(self, batch: int, context: float, chunk: Chunk) -> float:
        return PROMPT * chunk.tokens / TOKENS


def of_schedule(run: Stated) -> Stated:
    """The same figures of our event loop under that rule, with those times."""
    users = [0.0] * run.users
    records = Records(arrival=users, prompt=[TOKENS] * run.users, output=[STEPS] * run.users)
    rules = Rules(
        policy="vllm",
        batching=load_engine("vllm").batching,
        slots=64,
        budget=TOKENS + run.users,  # one prompt a step: the fork computes one in part at a time
        scheduler=SchedulerDefaults.default(),
        longest=1 << 30,
        capacity=1e9,
        cadence=Cadence(gap=run.interval - 1),
    )
    engine = Replica(StatedTimes(), scheduler := Scheduler(rules, records, lambda *_: None))  # type: ignore[arg-type]
    for request in range(run.users):
        scheduler.submit(request, 0.0)
    engine.advance(inf)
    first = records.first
    return Stated(run.users, run.interval, 300 * run.users / max(records.finish), sum(first) / run.users, max(first))


def the_schedule_alone() -> None:
    """Their figures beside ours, and what the interval changes."""
    print("\n| users, interval | | measured | predicted | error |\n|---|---|---:|---:|---:|")
    errors: dict[bool, list[float]] = {False: [], True: []}
    for run in STATED:
        found = of_schedule(run)
        for name in ("rate", "mean", "last"):
            theirs, ours = getattr(run, name), getattr(found, name)
            errors[run.users < 8].append(abs(ours / theirs - 1))
            label = {"rate": "tokens/s", "mean": "TTFT mean, s", "last": "TTFT max, s"}[name]
            print(f"| {run.users}, {run.interval} | {label} | {theirs:g} | {ours:.1f} | {ours / theirs - 1:+.0%} |")
    seen, aside = (sum(found) / len(found) for found in errors.values())
    print(f"\nmean error: {seen:.0%} of {len(errors[False])} figures, {aside:.0%} of {len(errors[True])} set aside")


def main() -> None:
    """Each figure at both intervals, measured and predicted, and by how much the interval changes it."""
    every, second = predicted(1), predicted(2)
    print("| | measured, 1 and 2 | change | predicted, 1 and 2 | change |\n|---|---:|---:|---:|---:|")
    for name, (before, after) in MEASURED.items():
        was, now = every[name], second[name]
        assert was is not None and now is not None
        print(
            f"| {name[0].removesuffix('_s').upper()} {name[1]} | {before * 1e3:.0f}, {after * 1e3:.0f} ms | "
            f"{after / before - 1:+.0%} | {was * 1e3:.0f}, {now * 1e3:.0f} ms | {now / was - 1:+.0%} |"
        )
    the_schedule_alone()


if __name__ == "__main__":
    main()
