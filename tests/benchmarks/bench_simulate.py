"""What the simulator costs: python -m tests.benchmarks.bench_simulate [TRACE]. Each case runs in a process of its own.

CPU seconds are those of the whole process, start-up and imports included; memory is its largest resident set.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

TRACE = "traces/azure_llm_2023_conv.csv"
_LIMITS = {"azure": 2.5, "closed": 0.5, "many": None, "stages": None, "ranks": None}


def _case(name: str, trace: Path) -> int:
    """Run one case in this process; gives the number of requests."""
    from inferplan.catalog.assemble import Request, assemble
    from inferplan.serving.simulator import simulate
    from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, Traffic
    from inferplan.work.parallel import Parallelism

    lengths = {
        "prompt": Lengths(kind="uniform", mean=1024, spread=0.8),
        "output": Lengths(kind="uniform", mean=256, spread=0.8),
    }
    if name == "closed":
        served = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
        run = simulate(served, Traffic(arrivals=ClosedLoop(concurrency=64), requests_count=500, **lengths))
    elif name in ("stages", "ranks"):
        model, parallel, rate = {
            "stages": ("llama-3.1-70b", Parallelism(tp=2, pp=2), 5.0),
            "ranks": ("deepseek-v2-lite", Parallelism(dp=8, ep=8), 80.0),
        }[name]
        served = assemble(Request(model=model, gpu="h100-sxm", parallel=parallel))
        run = simulate(served, Traffic(arrivals=OpenLoop(rate=rate), requests_count=20_000, **lengths))
    else:
        served = assemble(Request(model="llama-3.1-70b", gpu="h100-sxm", parallel=Parallelism(tp=4)))
        if name == "azure":
            from inferplan.traffic import traces

            run = simulate(served, traces.read(trace))
        else:
            run = simulate(served, Traffic(arrivals=OpenLoop(rate=5.0), requests_count=100_000, **lengths))
    assert run.to_dict()["requests"]["finished"] == run.counts["arrived"]
    return run.counts["arrived"]


def peak_megabytes() -> float:
    """Peak memory of this program alone: ``ru_maxrss`` on Linux also holds that of the program that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(float(line.split()[1]) for line in status.read_text().splitlines() if "VmHWM" in line) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


def measure(name: str, trace: Path) -> dict[str, float]:
    """CPU seconds, megabytes and requests of a case, in a fresh process."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_simulate", "--case", name, str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    if sys.argv[1:2] == ["--case"]:
        requests = _case(sys.argv[2], Path(sys.argv[3]))
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps({"requests": requests, "cpu": used.ru_utime + used.ru_stime, "mb": peak_megabytes()}))
        return
    shared = Path(os.environ.get("INFERPLAN_SHARED") or Path(__file__).parents[3] / "shared")
    trace = Path(sys.argv[1]) if len(sys.argv) > 1 else shared / TRACE
    for name, limit in _LIMITS.items():
        result = measure(name, trace)
        note = f" (at most {limit} s)" if limit else " (at most 300 MB)"
        print(f"{name}: {result['requests']:,} requests, {result['cpu']:.2f} s CPU, {result['mb']:.0f} MB{note}")


if __name__ == "__main__":
    main()
