"""Takes the pictures of docs/web.md and docs/planning.md anew.

``python docs/generate_screenshots.py``, with Chromium and the extra dev.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from tests.web.browser import CHROMIUM, fragment, printed, serving

FOLDER = Path(__file__).with_name("images")
LOAD = {"batch": 32, "prompt": 1024, "output": 256}
HOPPER = {"model": "llama-3.1-70b", "gpu": "h100-sxm", "tp": 4, **LOAD}
BLACKWELL = {f"b__{key}": value for key, value in {**HOPPER, "gpu": "b200-hgx", "tp": 2}.items()}
HOURS = "00:00=0.5,06:00=2,08:00=6,10:00=9,12:00=7,14:00=9,17:00=5,20:00=2,23:00=0.5"
PICTURES = {
    "web-estimate": ({"width": 1280, "height": 1060}, "light", fragment(**HOPPER)),
    "web-compare": ({"width": 1280, "height": 1060}, "dark", fragment(**HOPPER, **BLACKWELL, tab="compare")),
    "web-plan": (
        {"width": 1280, "height": 1500},
        "light",
        fragment(**HOPPER, tab="plan", plan__rate=50, plan__workload="chat", plan__gpu="h100-sxm,h200-sxm"),
    ),
    "web-simulate": (
        {"width": 1280, "height": 1500},
        "dark",
        fragment(
            **HOPPER, tab="simulate", simulate__rate=6, simulate__workload="chat", simulate__ttft=500, simulate__tpot=40
        ),
    ),
    "web-day": (
        {"width": 1280, "height": 1150},
        "light",
        fragment(**HOPPER, tab="day", day__rates=HOURS, day__workload="chat", day__cold=120, day__show="scheduled"),
    ),
    "web-phone": ({"width": 390, "height": 844}, "light", fragment(**HOPPER)),
}
"""Name to size, scheme and the state that the address holds."""
PLAN = "plan llama-3.1-70b --workload chat --rate 50 --ttft 500ms --tpot 40ms"
REPORTS = {
    "report-page": ({"width": 1000, "height": 1000}, "light"),
    "report-phone": ({"width": 390, "height": 844}, "dark"),
}
"""Of the page that this plan writes: name to size and scheme."""
COLOURS = 128
"""Of a picture: enough for a page of greys and five colours, and a third of the bytes."""
PATIENCE = 600_000
"""Milliseconds for a simulation or a plan."""
TO_THE_RESULT = "document.querySelector('.job').scrollIntoView()"
TO_THE_ANSWER = "document.querySelector('#answer').scrollIntoView(); scrollBy(0, -50)"


def take(browser: Browser, address: str) -> None:
    """Every picture of ``inferplan web``, one after another."""
    for name, (size, scheme, state) in PICTURES.items():
        page = browser.new_page(viewport=size, color_scheme=scheme)
        page.goto(address + state)
        if any(f"tab={tab}" in state for tab in ("plan", "simulate", "day")):
            page.locator("#panel button.main").first.click(timeout=PATIENCE)
            done = "#picture-loads-tpot canvas" if "tab=simulate" in state else "#plan-answer, #day-answer"
            page.wait_for_selector(done, timeout=PATIENCE)
            page.evaluate(TO_THE_RESULT)
        else:
            page.wait_for_selector("#panel[aria-busy=false] canvas")
        if size["width"] < 500:
            page.evaluate(TO_THE_ANSWER)
        page.wait_for_timeout(500)
        save(page, name)


def take_reports(browser: Browser) -> None:
    """The first screen of a plan's page."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "plan.html"
        printed(*PLAN.split(), "--report", str(report))
        for name, (size, scheme) in REPORTS.items():
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.goto(report.as_uri())
            save(page, name)


def save(page: Page, name: str) -> None:
    """What the window shows, in few colours."""
    shot = Image.open(io.BytesIO(page.screenshot()))
    shot.convert("RGB").quantize(COLOURS).save(FOLDER / f"{name}.png", optimize=True)


if __name__ == "__main__":
    with sync_playwright() as playwright, serving() as (found, _):
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        take(chromium, found)
        take_reports(chromium)
        chromium.close()
