"""What an estimate costs: the README's command as a whole process, and points of a grid a second.

``python tests/benchmarks/bench_estimate.py`` prints the table of docs/performance.md, section "Estimate".
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.constants import IDEAL
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.work.parallel import Parallelism

COMMAND = "estimate llama-3.1-8b --gpu h100-sxm --batch 8 --prompt 1024 --output 256"
RUNS = 15
TARGETS = {"cpu": 0.26, "memory": 90e6, "ideal": 1e6, "calibrated": 3e6}


def whole_process(*arguments: str) -> tuple[float, float]:
    """Median CPU seconds (user and system) and largest resident memory in bytes of a process of its own.

    The modules are byte code on disk, as in an installed package: the first run writes it and is not counted.
    """
    command = [sys.executable, "-c", "from inferplan.cli import main; main()", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=True)
    seconds, memory = [], 0
    for _ in range(RUNS):
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        assert status == 0
        seconds.append(usage.ru_utime + usage.ru_stime)
        memory = max(memory, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
    return statistics.median(seconds), float(memory)


def grid(batches: int = 500, prompts: int = 1000) -> StaticLoad:
    """Half a million different (batch, prompt) points, 256 tokens out."""
    batch, prompt = np.meshgrid(np.arange(1.0, batches + 1), np.linspace(64, 65536, prompts).round())
    return StaticLoad(batch=batch.ravel(), prompt=prompt.ravel(), output=np.full(batch.size, 256.0))


def points_per_second(deployment: Deployment, load: StaticLoad) -> float:
    """TTFT, TPOT, latency, footprint and the largest batch of every point, on one core; the best of five runs."""
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        estimate = Estimate(deployment=deployment, load=load)
        results = (
            estimate.ttft,
            estimate.tpot,
            estimate.e2el,
            estimate.footprint.total,
            estimate.footprint.max_batch(),
        )
        best = min(best, time.process_time() - start)
        assert all(np.all(np.isfinite(result)) for result in results)
    return np.size(load.batch) / best


def main() -> None:
    cpu, memory = whole_process(*COMMAND.split())
    bare = statistics.median(numpy_alone() for _ in range(5))
    deployment = assemble(Request(model="llama-3.1-70b", gpu="h100-sxm", parallel=Parallelism(tp=4)))
    load = grid()
    ideal = points_per_second(replace(deployment, calibration=IDEAL), load)
    rows = [
        ("README's estimate, CPU seconds of the whole process", f"{cpu:.2f}", f"{TARGETS['cpu']:.2f}"),
        ("  of which Python and `import numpy`", f"{bare:.2f}", ""),
        ("README's estimate, peak memory", f"{memory / 1e6:.0f} MB", f"{TARGETS['memory'] / 1e6:.0f} MB"),
        ("points a second, ideal", f"{ideal:.2e}", f"{TARGETS['ideal']:.0e}"),
    ]
    if deployment.calibration.name != "ideal":
        calibrated = points_per_second(deployment, load)
        rows.append(("points a second, calibrated", f"{calibrated:.2e}", f"{TARGETS['calibrated']:.0e}"))
    print("| what | measured | target |\n|---|---:|---:|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"\n{np.size(load.batch):,} points; this process peaked at {own / 1e6:.0f} MB")


def numpy_alone() -> float:
    child = subprocess.Popen([sys.executable, "-c", "import numpy"])
    _, _, usage = os.wait4(child.pid, 0)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
