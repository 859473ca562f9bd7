"""``python -m tests.benchmarks.compare_cadence``: what an interval between prompts is worth, measured and predicted.

The rows are those of the pull request that brought ``--prefill-schedule-interval`` to vLLM (#44558, 2026-06-04,
workload A): DeepSeek-R1-0528 in FP4 with a cache in FP8, eight attention ranks that share experts on two trays of four
GB200, 1,024 tokens in and 200 out, Poisson arrivals, 24 requests/s. A pre-release; nothing here was fitted to them.
"""

from __future__ import annotations

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.engine import EngineFlags
from inferplan.serving.simulator import simulate
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


if __name__ == "__main__":
    main()
