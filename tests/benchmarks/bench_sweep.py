"""What a sweep costs: ``python -m tests.benchmarks.bench_sweep``. Each case runs in a process of its own, on one core.

Points a second are priced into columns; written are rows a second of the text on disk. Memory is the largest resident
set of the process, start-up included. The journal is timed with so many structures of 500 points: it is linear where
the milliseconds of each stay the same.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.bench_simulate import peak_megabytes

_JOURNAL = (50, 100, 200, 400)
CASES = {
    "8,192 points of one structure": "small",
    "1,000,000 points of one structure": "points",
    "1,000,000 points, written as CSV": "csv",
    "1,000,000 points, written as JSON": "json",
    "200,000 points of 100 structures": "structures",
}


def _grid(name: str) -> object:
    from inferplan.answers.sweep import Grid
    from inferplan.catalog.assemble import Request

    base = Request(model="llama-3.1-70b", gpu="h100-sxm")
    if name == "small":
        load = {"batch": range(1, 513), "prompt": (512, 1024, 2048, 4096), "output": (64, 128, 256, 512)}
        return Grid(base=base, structure={"tp": [4]}, **load)
    if name == "structures":
        replicas = list(range(1, 101))
        return Grid(base=base, structure={"replicas": replicas}, batch=range(1, 501), prompt=(512, 1024, 2048, 4096))
    load = {"batch": range(1, 501), "prompt": range(64, 20064, 100), "output": range(16, 176, 16)}
    return Grid(base=base, structure={"tp": [4]}, **load)


def _case(name: str) -> None:
    """Run one case in this process; print points, CPU seconds of the best of three sweeps and of writing, megabytes."""
    from inferplan.answers.sweep import sweep
    from inferplan.table import Report, pieces

    grid, best = _grid(name), float("inf")
    for _ in range(1 if name in ("csv", "json") else 3):
        start = time.process_time()
        found = sweep(grid)
        best = min(best, time.process_time() - start)
    written = 0.0
    if name in ("csv", "json"):
        start = time.process_time()
        with tempfile.TemporaryFile("w", encoding="utf-8") as file:
            file.writelines(pieces(Report(record={"points": found.columns}, rows=found.columns), name))
        written = time.process_time() - start
    print(json.dumps({"points": len(found.columns), "cpu": best, "written": written, "mb": peak_megabytes()}))


def measure(name: str) -> dict[str, float]:
    """Figures of a case in a fresh process."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_sweep", "--case", name]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def journal(structures: int) -> tuple[float, float, int]:
    """CPU seconds of writing a journal of so many structures and of resuming from it; its bytes."""
    from inferplan.answers.sweep import Execution, Grid, structure_rows, sweep
    from inferplan.catalog.assemble import Request

    base = Request(model="llama-3.1-70b", gpu="h100-sxm")
    grid = Grid(base=base, structure={"replicas": list(range(1, structures + 1))}, batch=range(1, 501))
    priced = structure_rows(grid.tasks()[0])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        seconds = []
        for _ in range(2):
            start = time.process_time()
            sweep(grid, Execution(backend="serial", journal=path), runner=lambda task: priced)
            seconds.append(time.process_time() - start)
        return seconds[0], seconds[1], path.stat().st_size


def main() -> None:
    if sys.argv[1:2] == ["--case"]:
        _case(sys.argv[2])
        return
    print("| what | points/s | written, rows/s | peak |\n|---|---:|---:|---:|")
    for label, name in CASES.items():
        found = measure(name)
        rows = f"{found['points'] / found['written']:,.0f}" if found["written"] else ""
        print(f"| {label} | {found['points'] / found['cpu']:,.0f} | {rows} | {found['mb']:.0f} MB |")
    print("\n| structures in the journal | written, s | resumed, s | ms each | kB each |\n|---:|---:|---:|---:|---:|")
    for structures in _JOURNAL:
        write, read, size = journal(structures)
        each = f"{(write + read) / structures * 1e3:.2f} | {size / structures / 1e3:.1f}"
        print(f"| {structures} | {write:.3f} | {read:.3f} | {each} |")
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"\nCPU of this process: {used.ru_utime + used.ru_stime:.1f} s")


if __name__ == "__main__":
    main()
