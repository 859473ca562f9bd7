"""How long the browser's build takes to its first answer, and how large it is.

``python -m tests.benchmarks.bench_browser [FOLDER]`` prints the table of docs/performance.md, section "In the browser".
FOLDER is what ``make site`` or ``python -m browser.build`` has built. Each cold answer is that of a Chromium of its
own, without cache: from the address until the answer stands on the page. A warm one is the next question of that page.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from statistics import median

from playwright.sync_api import Page, sync_playwright

from tests.browser.test_site import FRAGMENT, PATIENCE, served
from tests.web.browser import CHROMIUM

RUNS = 5
TICKS = os.sysconf("SC_CLK_TCK")
NEXT = {
    "estimate, another model": "inferplan estimate qwen3-32b --gpu h200-sxm --batch 16",
    "fit over all GPUs": "inferplan fit llama-3.1-70b",
    "compare of three GPUs": "inferplan compare llama-3.1-8b --gpu a100-80gb-sxm,h100-sxm,h200-sxm",
    "simulate, 300 requests": "inferplan simulate llama-3.1-8b --gpu h100-sxm --rate 5 --requests 300",
}


def processor_seconds() -> float:
    """Of every process that this one has started, and that runs."""
    parent, used = dict[int, int](), dict[int, float]()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        parent[int(folder.name)], used[int(folder.name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS
    mine = {os.getpid()}
    while more := {one for one, above in parent.items() if above in mine} - mine:
        mine |= more
    return sum(used[one] for one in mine - {os.getpid()})


def answered(page: Page, line: str) -> float:
    """Seconds until the answer of a question stands there."""
    begin = time.perf_counter()
    page.fill("#line", line)
    page.click("#run")
    page.wait_for_function(f"document.body.dataset.answered === {line!r}", timeout=PATIENCE)
    return time.perf_counter() - begin


def main(folder: Path) -> None:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"| size of the folder | {size / 1e6:.1f} MB |")
    cold, used, warm = list[float](), list[float](), dict[str, float]()
    for _ in range(RUNS):
        with served(folder) as address, sync_playwright() as driver:
            chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            page = chromium.new_page()
            before, begin = processor_seconds(), time.perf_counter()
            page.goto(f"{address}/{FRAGMENT}")
            page.wait_for_function("document.body.dataset.answered", timeout=PATIENCE)
            cold.append(time.perf_counter() - begin)
            used.append(processor_seconds() - before)
            if len(cold) == RUNS:
                warm = {name: answered(page, line) for name, line in NEXT.items()}
            chromium.close()
    print(f"| first answer, cold: median of {RUNS}, least | {median(cold):.1f} s, {min(cold):.1f} s |")
    print(f"| of which processor time | {median(used):.1f} s, {min(used):.1f} s |")
    for name, seconds in warm.items():
        print(f"| {name} | {seconds:.1f} s |")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/site-browser"))
