"""What the simulator costs: python -m tests.benchmarks.bench_simulate [TRACE]. Each case runs in a process of its own.

CPU seconds are those of the whole process, start-up and imports included, from compiled files as an installed package
has them (the first reading compiles them); requests per second are those of the simulation alone, once its tables are
warm; memory is the largest resident set. The best of ``_READINGS`` readings, on one core.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRACE = "traces/azure_llm_2023_conv.csv"
_READINGS = 3
_CASES = {
    "azure": "Azure conversation trace, `inferplan simulate`, Llama-3.1-70B on 4 x H100 (at most 0.6 s)",
    "closed": "500 requests of 64 users, Llama-3.1-8B on one H100 (at most 0.5 s)",
    "round-robin": "10,000 requests on 100 replicas, round robin",
    "least-loaded": "10,000 requests on 100 replicas, least loaded (at least 15,000 requests/s)",
    "prefix-aware": "4,000 requests with 20 prefixes on 100 replicas, prefix-aware (at least 4,000 requests/s)",
    "pools": "10,000 requests, 20 replicas for prompts and 20 for decoding (at least 12,000 requests/s)",
    "pools-least-loaded": "the same, least loaded",
    "stages": "20,000 requests, Llama-3.1-70B on 2 x H100 in each of two stages (at least 9,000 requests/s)",
    "ranks": "20,000 requests, DeepSeek-V2-Lite on eight ranks that share experts (at least 15,000 requests/s)",
    "many": "100,000 requests on one replica, Llama-3.1-70B on 4 x H100 (at most 300 MB)",
    "million": "1,000,000 requests on 20 replicas, round robin (at most 12 s)",
    "million-on-one": "1,000,000 requests on one replica, as 100,000 (compiled, at most 1.5 s of simulation)",
}


def _run(name: str) -> Callable[[], Any]:
    """The simulation of a case."""
    from inferplan.catalog.assemble import Request, assemble
    from inferplan.serving.fleet import Fleet
    from inferplan.serving.options import Options
    from inferplan.serving.simulator import simulate
    from inferplan.traffic.requests import ClosedLoop, OpenLoop, SharedPrefix, Traffic, parse_lengths
    from inferplan.work.parallel import Parallelism

    uniform = {"prompt": parse_lengths("uniform:1024:0.8"), "output": parse_lengths("uniform:256:0.8")}
    lognormal = {"prompt": parse_lengths("lognormal:1024:0.8"), "output": parse_lengths("lognormal:256:0.8")}

    def of(model: str, traffic: Traffic, fleet: Fleet | None = None, **parallel: int) -> Callable[[], Any]:
        served = assemble(Request(model=model, gpu="h100-sxm", parallel=Parallelism(**parallel)))
        return lambda: simulate(served, traffic, None, Options(fleet=fleet or Fleet()))

    def poisson(rate: float, count: int, lengths: dict[str, Any] = lognormal, distinct: int = 0) -> Traffic:
        prefix = SharedPrefix(tokens=256, distinct=distinct) if distinct else SharedPrefix()
        prompt, output = lengths["prompt"], lengths["output"]
        return Traffic(arrivals=OpenLoop(rate=rate), requests_count=count, prefix=prefix, prompt=prompt, output=output)

    small, large = "llama-3.1-8b", "llama-3.1-70b"
    sizes = uniform["prompt"], uniform["output"]
    users = Traffic(arrivals=ClosedLoop(concurrency=64), requests_count=500, prompt=sizes[0], output=sizes[1])
    prefixes = poisson(1000.0, 4000, distinct=20)
    pools = Fleet(prefill=20, decode=20)
    cases: dict[str, Callable[[], Callable[[], Any]]] = {
        "closed": lambda: of(small, users),
        "round-robin": lambda: of(small, poisson(1000.0, 10_000), replicas=100),
        "least-loaded": lambda: of(small, poisson(1000.0, 10_000), Fleet(routing="least-loaded"), replicas=100),
        "prefix-aware": lambda: of(small, prefixes, Fleet(routing="prefix-aware"), replicas=100),
        "pools": lambda: of(small, poisson(400.0, 10_000), pools),
        "pools-least-loaded": lambda: of(
            small, poisson(400.0, 10_000), Fleet(prefill=20, decode=20, routing="least-loaded")
        ),
        "stages": lambda: of(large, poisson(5.0, 20_000, uniform), tp=2, pp=2),
        "ranks": lambda: of("deepseek-v2-lite", poisson(80.0, 20_000, uniform), dp=8, ep=8),
        "many": lambda: of(large, poisson(5.0, 100_000, uniform), tp=4),
        "million": lambda: of(small, poisson(200.0, 1_000_000), replicas=20),
        "million-on-one": lambda: of(large, poisson(5.0, 1_000_000, uniform), tp=4),
    }
    return cases[name]()


def _case(name: str, trace: Path) -> dict[str, float]:
    """Run one case in this process: the number of requests, and CPU seconds of the simulation alone."""
    if name == "azure":
        import io
        from contextlib import redirect_stdout

        from inferplan.cli import cli

        command = ["simulate", "llama-3.1-70b", "--gpu", "h100-sxm", "--tp", "4", "--trace", str(trace)]
        with redirect_stdout(io.StringIO()) as page:
            cli([*command, "--format", "json"], standalone_mode=False)
        return {"requests": json.loads(page.getvalue())["requests"]["arrived"]}
    run = _run(name)
    seconds = []
    once = name in ("many", "million", "million-on-one", "closed")
    for _ in range(1 if once else 2):  # the second reading has warm tables
        start = time.process_time()
        result = run()
        seconds.append(time.process_time() - start)
    assert result.counts["finished"] == result.counts["arrived"]
    return {"requests": result.counts["arrived"], "seconds": min(seconds)}


def peak_megabytes() -> float:
    """Peak memory of this program alone: ``ru_maxrss`` on Linux also holds that of the program that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(float(line.split()[1]) for line in status.read_text().splitlines() if "VmHWM" in line) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


def measure(name: str, trace: Path) -> dict[str, float]:
    """CPU seconds, megabytes, requests and requests per second of a case, in a fresh process."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_simulate", "--case", name, str(trace)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600, env=environment)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    if sys.argv[1:2] == ["--case"]:
        found = _case(sys.argv[2], Path(sys.argv[3]))
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps({**found, "cpu": used.ru_utime + used.ru_stime, "mb": peak_megabytes()}))
        return
    shared = Path(os.environ.get("INFERPLAN_SHARED") or Path(__file__).parents[3] / "shared")
    trace = Path(sys.argv[1]) if len(sys.argv) > 1 else shared / TRACE
    for name, what in _CASES.items():
        readings = [measure(name, trace) for _ in range(1 if name.startswith("million") else _READINGS)]
        best = {key: min(reading[key] for reading in readings) for key in readings[0]}
        rate = f"{best['requests'] / best['seconds']:,.0f} requests/s, " if "seconds" in best else ""
        print(f"{name}: {what}: {rate}{best['cpu']:.2f} s CPU, {best['mb']:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
