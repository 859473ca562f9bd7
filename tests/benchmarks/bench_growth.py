"""How CPU time and memory grow: ``python -m tests.benchmarks.bench_growth [AXIS ...]``, for docs/performance.md.

Each size is a command in a process of its own, by ``--jobs 1`` where it has that. CPU seconds and the largest resident
set are what the kernel counted of it. The exponent is the slope of log(CPU seconds) over log(size) between the last
two sizes, after the CPU time of the smallest size, which is mostly start-up, is taken off both: "-" where it is most.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

LOAD = ("--prompt", "512", "--output", "128")
SIMULATED = ("simulate", "llama-3.1-8b", "--gpu", "h100-sxm")
DEVICES = (
    *("h100-sxm", "l40s", "a100-80gb-sxm", "h200-sxm", "b200-hgx", "l4", "a10g", "mi300x"),
    *("h100-pcie", "a100-40gb-pcie", "rtx-4090", "t4", "rtx-6000-ada", "rtx-a6000", "mi325x", "gb200"),
)
ROWS = "model,gpu,engine,weights,isl,osl,concurrency,tp,requests,max_num_batched_tokens,ttft_ms,tpot_ms"


class Axis(NamedTuple):
    """what: its unit. sizes: from the smallest. words: of the command for a size, and a folder for files."""

    what: str
    sizes: tuple[int, ...]
    words: Callable[[int, Path], tuple[str, ...]]


def _rows(count: int, folder: Path) -> tuple[str, ...]:
    """A benchmark file in which no two rows are alike."""
    lines = [ROWS]
    for place in range(count):
        lengths = f"{128 + place % 997},{32 + place // 997}"
        lines.append(f"llama-3.1-8b,h100-sxm,vllm,bf16,{lengths},4,1,8,2048,40,8")
    path = folder / f"{count}.csv"
    path.write_text("\n".join(lines) + "\n")
    return "validate", str(path)


def _plan(count: int, _: Path) -> tuple[str, ...]:
    limits = ("--rate", "20", "--prompt", "1024", "--output", "256", "--ttft", "1s", "--tpot", "50ms")
    return "plan", "llama-3.1-8b", "--gpu", ",".join(DEVICES[:count]), *limits, "--most", "8", "--jobs", "1"


def _requests(count: int, *words: object) -> tuple[str, ...]:
    return *SIMULATED, *map(str, words), "--requests", str(count)


AXES = {
    "requests": Axis(
        "one replica, open loop", (1_000, 30_000, 100_000, 300_000), lambda n, _: _requests(n, "--rate", 8, *LOAD)
    ),
    "users": Axis(
        "20,000 requests of a closed loop", (1, 16, 64, 256), lambda n, _: _requests(20_000, "--in-flight", n, *LOAD)
    ),
    "context": Axis(
        "prompt tokens of 2,000 requests, one at a time",
        (500, 10_000, 30_000, 100_000),
        lambda n, _: _requests(2_000, "--in-flight", 1, "--prompt", n, "--output", 128),
    ),
    "replicas": Axis(
        "50,000 requests, least loaded",
        (1, 10, 100, 1_000),
        lambda n, _: _requests(50_000, "--rate", 8 * n, *LOAD, "--replicas", n, "--routing", "least-loaded"),
    ),
    "candidates": Axis("kinds of GPU of a plan", (1, 4, 8, 16), _plan),
    "points": Axis(
        "points of a sweep, written as CSV",
        (100, 10_000, 100_000, 1_000_000),
        lambda n, folder: (
            *("sweep", "llama-3.1-8b", "--gpu", "h100-sxm", "--batch", "1-100", "--prompt", f"1-{n // 100}"),
            *("--jobs", "1", "-o", str(folder / "points.csv")),
        ),
    ),
    "rows": Axis("rows of validate", (10, 300, 1_000, 3_000), _rows),
}


def cost(words: tuple[str, ...]) -> tuple[float, float]:
    """CPU seconds and megabytes of ``inferplan`` with these words. Raises ``SystemExit`` where it fails."""
    silent = [(os.POSIX_SPAWN_OPEN, one, os.devnull, os.O_WRONLY, 0) for one in (1,)]
    command = [sys.executable, "-m", "inferplan", *words]
    child = os.posix_spawn(sys.executable, command, os.environ, file_actions=silent)
    _, status, used = os.wait4(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"inferplan {' '.join(words)} exits with {code}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


def main() -> None:
    print("| axis | sizes | CPU s | exponent | MB |\n|---|---|---|---:|---|")
    for name in sys.argv[1:] or AXES:
        axis, taken = AXES[name], []
        with tempfile.TemporaryDirectory() as folder:
            taken = [cost(axis.words(size, Path(folder))) for size in axis.sizes]
        (first, _), *_, (last, _), (most, _) = taken
        grows = min(last, most) > 1.3 * first  # else it is within what a reading varies by
        exponent = "-"
        if grows:
            exponent = f"{math.log((most - first) / (last - first)) / math.log(axis.sizes[-1] / axis.sizes[-2]):.2f}"
        sizes, seconds, memory = (
            ", ".join(f"{one:{style}}" for one in values)
            for values, style in (
                (axis.sizes, ","),
                ([one for one, _ in taken], ".1f"),
                ([one for _, one in taken], ",.0f"),
            )
        )
        print(f"| {name}: {axis.what} | {sizes} | {seconds} | {exponent} | {memory} |", flush=True)


if __name__ == "__main__":
    main()
