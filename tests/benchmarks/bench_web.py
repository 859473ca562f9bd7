"""How long the page waits: p50 and p95 of ``POST /api/view``, one process that prices, 500 points a curve; and in the
browser, from a slider that moves to the picture that is drawn.

``python -m tests.benchmarks.bench_web`` prints the table of docs/performance.md, section "The page". No two requests
are alike, so that nothing is found ready but what a server has read from its files. The browser is Chromium without a
screen, which draws on the processor; without one, or without playwright, its line is left out and says so.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
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
from inferplan.web.keys import Keys
from inferplan.web.limits import Limits
from inferplan.web.serve import Place, serve

if __name__ == "__main__":
    print_address = lambda address: print(address, flush=True)
    serve(Place(port=0, limits=Limits(pricing=1), keys=Keys(token=None)), CommandLine(), print_address)
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
PAGE = "#model=llama-3.1-70b&gpu=h100-sxm&tp=4&batch=8&prompt=1024&output=256"
SLIDERS = ("Batch, sequences at once: slider", "Prompt, tokens: slider", "Output, tokens: slider")
MOVES = 40
"""Of each slider: steps to the right of it."""
WATCH = """() => {
  window.taken = [];
  const panel = document.querySelector("#panel");
  document.addEventListener("input", () => { window.began = performance.now(); }, true);
  new MutationObserver(() => {
    if (panel.getAttribute("aria-busy") !== "false" || window.began === undefined) return;
    const began = window.began;
    window.began = undefined;
    requestAnimationFrame(() => setTimeout(() => window.taken.push(performance.now() - began)));
  }).observe(panel, { attributes: true, attributeFilter: ["aria-busy"] });
}"""
"""Notes the time from an input to behind the frame in which its answer is drawn."""


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
        in_browser(port)
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


def in_browser(port: int) -> None:
    """The line of the page: sliders are moved with the arrow keys, each when the picture of the last one is there."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        print("in the browser: not measured, no Chromium or no playwright here")
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"http://127.0.0.1:{port}/{PAGE}")
        page.wait_for_selector("#answer h2")
        page.evaluate(WATCH)
        for label in SLIDERS:
            slider = page.get_by_label(label)
            slider.focus()
            slider.press("Home")
            for _ in range(MOVES):
                done = page.evaluate("window.taken.length")
                page.keyboard.press("ArrowRight")
                page.wait_for_timeout(250)  # moves while one is asked for are joined: each is to be one
                if page.evaluate("window.taken.length") == done:
                    break  # at the end of its range
        seconds = [one / 1e3 for one in page.evaluate("window.taken")]
        browser.close()
    p50, p95 = percentiles(seconds[1:])
    verdict = "met" if p95 <= GOAL else "missed"
    print(
        f"a 70B, slider to picture in the browser: p50 {p50 * 1e3:.0f} ms, p95 {p95 * 1e3:.0f} ms of "
        f"{len(seconds) - 1}; goal of {GOAL * 1e3:.0f} ms {verdict}"
    )


if __name__ == "__main__":
    main()
