"""How long the page waits: p50 and p95 of ``POST /api/view`` over HTTP, one process that prices, 500 points a curve.

``python -m tests.benchmarks.bench_web`` prints the table of docs/performance.md, section "The page". No two requests
are alike, so that nothing is found ready but what a server has read from its files.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from inferplan.cli.programs import CommandLine
from inferplan.web.limits import LIMITS
from inferplan.web.tasks import Desk

SERVER = """
import sys
from inferplan.cli.programs import CommandLine
from inferplan.web.limits import Limits
from inferplan.web.serve import Place, serve

if __name__ == "__main__":
    print_address = lambda address: print(address, flush=True)
    serve(Place(port=0, limits=Limits(pricing=1)), CommandLine(), print_address)
"""
VIEWS: dict[str, list[dict[str, Any]]] = {
    "a 70B": [
        {"model": "llama-3.1-70b", "gpu": gpu, "tp": tp, "batch": batch, "prompt": prompt, "output": 256, "points": 500}
        for gpu, tp, batch, prompt in product(
            ("h100-sxm", "h200-sxm", "b200-hgx"), (4, 8), (1, 7, 16, 33), (300, 700, 1024, 1500, 1800)
        )
    ],
    "671B of experts": [
        {"model": "deepseek-v3", "gpu": "h200-sxm", "dp": 8, "ep": 8, "batch": batch, "prompt": prompt, "points": 500}
        for batch, prompt in product((8, 16, 64, 128), range(200, 2200, 200))
    ],
}
GOAL = 0.1


def main() -> None:
    """Print the table: seconds of the clock over HTTP, then of the processor alone, which others do not disturb."""
    for name, views in VIEWS.items():
        desk, seconds = Desk(commands=CommandLine(), limits=LIMITS), []
        for view in views:
            start = time.process_time()
            reply = desk.answer("view", view)
            json.dumps(reply.content, allow_nan=False)
            seconds.append(time.process_time() - start)
            assert reply.status == 200, reply.content
        p50, p95 = percentiles(seconds[1:])
        print(f"{name}, processor: p50 {p50 * 1e3:.0f} ms, p95 {p95 * 1e3:.0f} ms of {len(seconds) - 1}")
    over_http()


def percentiles(seconds: list[float]) -> tuple[float, float]:
    """The median, and what 95 in 100 stay below."""
    found = sorted(seconds)
    return found[len(found) // 2], found[int(0.95 * len(found))]


def over_http() -> None:
    """What a browser waits for."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    folder = TemporaryDirectory()
    script = Path(folder.name, "server.py")  # a file: the processes that it starts import the main module
    script.write_text(SERVER, encoding="utf-8")
    server = subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        port = int(server.stdout.readline().strip().rstrip("/").rpartition(":")[2])
        for name, views in VIEWS.items():
            report(name, port, views)
    finally:
        server.terminate()
        server.wait()
        folder.cleanup()


def report(name: str, port: int, views: list[dict[str, Any]]) -> None:
    """One line: the first answer, and the percentiles of the others."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    seconds, size = [], 0
    for view in views:
        start = time.perf_counter()
        connection.request("POST", "/api/view", json.dumps(view), {"Content-Type": "application/json"})
        got = connection.getresponse()
        body = got.read()
        seconds.append(time.perf_counter() - start)
        assert got.status == 200, body
        assert len(json.loads(body)["curves"]["batch"]) == 500 or json.loads(body)["curves"]["largest_batch"] < 500
        size = max(size, len(body))
    p50, p95 = percentiles(seconds[1:])
    verdict = "met" if p95 <= GOAL else "missed"
    print(
        f"{name}, over HTTP: p50 {p50 * 1e3:.0f} ms, p95 {p95 * 1e3:.0f} ms of {len(seconds) - 1}, "
        f"{size / 1e3:.0f} kB; goal of {GOAL * 1e3:.0f} ms {verdict}"
    )


if __name__ == "__main__":
    main()
