"""The page of ``inferplan web`` in a real browser: its numbers are those that the command line prints.

``inferplan web`` runs as users start it; Debian's Chromium is driven by Playwright. No test may leave an error in the
browser's console: the ``page`` fixture looks.
"""

from __future__ import annotations

import csv
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inferplan.reports.glossary import WORDS
from inferplan.units import format_bytes, format_quantity, format_time
from tests.cases import for_each
from tests.web.browser import CHROMIUM, fragment, printed, row, serving

pytest.importorskip("playwright", reason="the page's tests need playwright (the extra dev)")
pytest.importorskip("fastapi", reason="the server needs the extra web")

from playwright.sync_api import Browser, Locator, Page, Route, expect, sync_playwright

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]

BIG = {"model": "llama-3.1-70b", "gpu": "h100-sxm", "tp": 4, "batch": 32, "prompt": 1024, "output": 256}
SMALL = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "tp": 1, "batch": 8, "prompt": 512, "output": 64}
PATIENCE = 30_000
"""Milliseconds for anything to appear: generous, because a loaded machine is not a broken page."""


def words_of(view: dict[str, Any]) -> list[str]:
    """A deployment and its load as the command line has them."""
    return [
        view["model"],
        *(part for key, value in view.items() if key != "model" for part in (f"--{key}", str(value))),
    ]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as (found, _):
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


Opener = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, address: str) -> Iterator[Opener]:
    """Opens the page at a fragment. refused: whether answers with an error are part of the test.

    The browser itself writes a line for every answer that is an error; no other line of that level may come.
    """
    contexts, errors = [], []

    def open_page(at: str = "", *, refused: bool = False, base: str = address, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        network = "Failed to load resource"
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda said: (
                errors.append(f"{said.text} {said.location}")
                if said.type == "error" and not (refused and said.text.startswith(network))
                else None
            ),
        )
        page.on("request", lambda asked: None if asked.url.startswith((base, "blob:")) else errors.append(asked.url))
        page.goto(base + at)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


def figure(page: Page, name: str) -> Locator:
    """The figure of the headline with this name."""
    return page.locator(".figure", has=page.locator("dt", has_text=re.compile(f"^{re.escape(name)}$")))


def choose(page: Page, label: str, text: str) -> None:
    """Types into a search box and takes the first that it finds."""
    box = page.get_by_role("combobox", name=label, exact=True)
    box.fill(text)
    box.press("Enter")


def settle(page: Page) -> None:
    expect(page.locator("#panel")).to_have_attribute("aria-busy", "false", timeout=PATIENCE)


def test_how_fast_is_it_at_batch_32(opened: Opener) -> None:
    page = opened(refused=True)
    settle(page)
    choose(page, "Model", "llama-3.1-70b")
    choose(page, "Accelerator", "h100-sxm")
    for _ in range(2):
        page.get_by_role("button", name="Double tensor parallel").click()
    page.get_by_label("Batch, sequences at once", exact=True).fill("32")
    expect(page.locator("#answer h2")).to_have_text("llama-3.1-70b on 4 × h100-sxm", timeout=PATIENCE)
    said = printed("estimate", *words_of(BIG))
    big = ".big"
    expect(figure(page, "TTFT of the batch alone").locator(big)).to_have_text(
        row(said, "TTFT of the batch alone (prefill)")[1], timeout=PATIENCE
    )
    expect(figure(page, "Time to first token (TTFT) at the server").locator(big)).to_have_text(
        row(said, "TTFT at the server, one request, idle")[1]
    )
    expect(figure(page, "Time per output token (TPOT)").locator(big)).to_have_text(
        row(said, "time per output token (TPOT), mean")[1]
    )
    expect(figure(page, "Output tokens per second").locator(big)).to_have_text(row(said, "output tokens per second")[1])
    memory = figure(page, "Memory")
    expect(memory.locator(big)).to_have_text("Fits")
    expect(memory).to_contain_text(f"{row(said, 'total')[1]} of {row(said, 'usable')[1]}")
    expect(memory).to_contain_text(f"largest batch {row(said, 'largest batch at this context')[1]}")
    band = re.search(r"TPOT (\S+ \S+) to (\S+ \S+) \(docs", said)
    assert band is not None
    expect(figure(page, "Time per output token (TPOT)")).to_contain_text(f"{band[1]} to {band[2]}")
    operators = page.locator("#operators tr", has_text="ffn.gate_up")
    assert operators.locator("td").all_inner_texts()[:2] == row(said, "ffn.gate_up")[1:3]
    assert page.locator("#panel pre").first.inner_text() == "inferplan estimate " + " ".join(words_of(BIG))


def test_every_number_opens_its_explanation(opened: Opener) -> None:
    page = opened(fragment(**BIG))
    settle(page)
    tpot = figure(page, "Time per output token (TPOT)").locator(".big button")
    tpot.click()
    dialog = page.get_by_role("dialog")
    said = printed("explain", "tpot", *words_of(BIG))
    for name in ("formula", "numbers", "value"):
        expect(dialog).to_contain_text(row(said, name)[1], timeout=PATIENCE)
    page.keyboard.press("Escape")
    expect(tpot).to_be_focused()
    page.locator("#picture-memory tbody button").last.click()
    expect(dialog).to_contain_text("weights + state + activations + reserve", timeout=PATIENCE)
    dialog.get_by_role("button", name="explain memory.weights").click()
    expect(dialog.get_by_role("heading")).to_have_text("memory.weights", timeout=PATIENCE)
    dialog.get_by_role("button", name="Back to total").click()
    expect(dialog.get_by_role("heading")).to_have_text("total", timeout=PATIENCE)
    dialog.get_by_role("button", name="Close").click()
    page.wait_for_timeout(300)  # the answer to "Back" may come now: it opens nothing
    figure(page, "Cost per hour").locator(".big button").click()
    expect(dialog).to_contain_text("4 × one accelerator")


def test_an_answer_that_comes_while_a_button_is_held_leaves_the_click(opened: Opener) -> None:
    page = opened(fragment(**BIG))
    settle(page)
    page.locator("#picture-memory tbody button").last.click()
    dialog = page.get_by_role("dialog")
    inner = dialog.get_by_role("button", name="explain memory.weights")
    expect(inner).to_be_visible(timeout=PATIENCE)
    held: list[Route] = []
    page.route("**/api/explain", lambda route: held.append(route))  # noqa: PLW0108 (Playwright marks the function that it is given)
    inner.click()
    dialog.get_by_role("button", name="Back to total").hover()
    page.mouse.down()
    page.wait_for_timeout(100)
    held.pop().continue_()
    expect(dialog).not_to_contain_text("Asking", timeout=PATIENCE)
    page.unroute("**/api/explain")
    page.mouse.up()
    expect(dialog.get_by_role("heading")).to_have_text("total", timeout=PATIENCE)


def test_what_does_not_fit_is_said_in_the_servers_words(opened: Opener) -> None:
    page = opened(fragment(**{**BIG, "tp": 1}), refused=True)
    card = page.locator(".refusal")
    expect(card).to_contain_text("llama-3.1-70b in bf16 on 1 x h100-sxm does not fit", timeout=PATIENCE)
    expect(card).to_contain_text("167.6 GB > 85.02 GB usable on each device")
    expect(page.locator("#answer .title .soft")).to_have_text("batch 32, 1,024 tokens in, 256 out")
    card.get_by_role("button", name="Use --tp 4").click()
    expect(figure(page, "Memory").locator(".big")).to_have_text("Fits", timeout=PATIENCE)
    assert "tp=4" in page.url or page.wait_for_url("**tp=4**") is None


def test_on_how_many_h100_does_it_fit(opened: Opener) -> None:
    page = opened(fragment(**{**BIG, "tp": 1}, tab="fit", fit__users=1, fit__gpu="h100-sxm"))
    page.get_by_role("button", name="Find what fits").click(timeout=3 * PATIENCE)
    heading = page.locator("#fit-answer")
    expect(heading).to_contain_text("llama-3.1-70b on h100-sxm", timeout=2 * PATIENCE)
    mine = row(printed("fit", "llama-3.1-70b"), "h100-sxm")
    for quant, cell in zip(("native", "fp8", "int8", "w4a16"), mine[1:5], strict=True):
        found = re.fullmatch(r"(\d+) GPUs?, ([\d,]+)", cell)
        assert found is not None, cell
        expect(heading).to_contain_text(f"{found[1]} in {quant}")
        shown = page.locator("#fits .tall tbody tr", has_text=quant).locator("td").all_inner_texts()
        assert (shown[0], shown[4]) == (found[1], found[2])
    shown = page.locator("#fits .tall tbody tr", has_text="native").locator("td").all_inner_texts()
    one = printed("fit", "llama-3.1-70b", "--gpu", "h100-sxm")
    pool, longest = row(one, "left for KV cache and state"), row(one, "longest context of one request")
    assert [shown[2], shown[3], shown[5]] == [row(one, "weights")[1], pool[1], longest[1]]
    assert f"price: {shown[6]} per hour:" in one
    native = shown[0]
    page.locator("#fits .tall").get_by_role("button", name=f"Estimate {native} h100-sxm in native").click()
    expect(page.locator("#answer h2")).to_have_text(f"llama-3.1-70b on {native} × h100-sxm", timeout=PATIENCE)


def test_a_row_of_the_fit_opens_its_explanations(opened: Opener) -> None:
    page = opened(fragment(**{**BIG, "tp": 1}, tab="fit", fit__users=2, fit__context=4096, fit__gpu="h100-sxm"))
    page.get_by_role("button", name="Find what fits").click(timeout=3 * PATIENCE)
    dialog, native = page.get_by_role("dialog"), page.locator("#fits .tall tbody tr", has_text="native")
    expect(native).to_be_visible(timeout=2 * PATIENCE)
    asked = ["llama-3.1-70b", "--gpu", "h100-sxm", "--tp", "4", "--prompt", "4095", "--output", "1"]
    terms = ["memory.weights", "memory.kv_pool", "max_batch", "max_context"]
    legend = page.locator("#fit-legend")
    before = "node => node.compareDocumentPosition(document.querySelector('#fits .tall')) & 4"
    assert legend.evaluate(before) == 4
    expect(page.locator("#fits .tall")).to_have_attribute("aria-describedby", "fit-legend")
    expect(legend).not_to_contain_text("grey")
    page.get_by_label("also show what does not fit").check()
    expect(legend).to_contain_text("A row in grey does not fit, and says why.")
    page.get_by_label("also show what does not fit").uncheck()
    buttons = native.locator("td .number")
    for index, term in enumerate(terms):
        said = printed("explain", term, *asked)
        button = buttons.nth(index)
        assert button.inner_text() in (row(said, "value")[1], row(said, "value")[1].removesuffix(" sequences"))
        button.focus()
        page.keyboard.press("Enter")
        for name in ("formula", "numbers", "value"):
            expect(dialog).to_contain_text(row(said, name)[1], timeout=PATIENCE)
        page.keyboard.press("Escape")
        expect(button).to_be_focused()
    bill = printed("fit", "llama-3.1-70b", "--gpu", "h100-sxm", "--users", "2", "--context", "4096")
    price = buttons.nth(4)
    price.press("Enter")
    found = re.search(r"price: ([\d.]+) USD per hour: .* at .*\((\S+), (\S+), (\d+-\d+-\d+).*list: ([\d.]+) USD", bill)
    assert found is not None
    hour, term, source, date, listed = found.groups()
    for text in (f"{hour} USD", term, f"{source}, {date}", f"{listed} USD"):
        expect(dialog).to_contain_text(text)
    page.keyboard.press("Escape")
    expect(price).to_be_focused()


def test_a_fit_is_found_after_a_reload_and_can_be_cancelled(opened: Opener) -> None:
    page = opened(fragment(**SMALL, tab="fit", fit__users=1, fit__gpu="h100-sxm"))
    start = page.get_by_role("button", name="Find what fits")
    start.click(timeout=3 * PATIENCE)
    expect(page.locator("#fit-result progress, #fit-answer").first).to_be_visible(timeout=PATIENCE)
    page.reload()
    expect(page.locator("#fit-answer")).to_contain_text("llama-3.1-8b on h100-sxm: 1 in native", timeout=3 * PATIENCE)
    page = opened(fragment(**SMALL, tab="fit", fit__users=1))  # every GPU on file: it is not done before the click
    page.get_by_role("button", name="Find what fits").click(timeout=3 * PATIENCE)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#fit-cancelled")).to_be_visible(timeout=PATIENCE)


def test_which_of_two_accelerators_is_cheaper(opened: Opener) -> None:
    page = opened(fragment(**SMALL))
    settle(page)
    page.get_by_role("button", name="+ Compare another").click()
    choose(page, "Accelerator", "l40s")
    table = page.locator("#comparison table").first
    expect(table.locator("thead")).to_contain_text("llama-3.1-8b on 1 × l40s", timeout=PATIENCE)
    dollars = {}
    for index, gpu in enumerate(("h100-sxm", "l40s")):
        said = json.loads(printed("cost", *words_of({**SMALL, "gpu": gpu}), "--format", "json"))
        dollars[gpu] = said["cost"]["per_million_tokens_whole_bill"]
        hour = page.locator("tr", has_text="Cost per hour").locator("td").nth(index)
        text = printed("cost", *words_of({**SMALL, "gpu": gpu}))
        assert re.search(rf"{re.escape(hour.inner_text().split(' USD')[0])}\d* USD/h", text), text
        estimate = printed("estimate", *words_of({**SMALL, "gpu": gpu}))
        tpot = page.locator("tr", has_text=re.compile("^Time per output token")).locator("td").nth(index)
        assert tpot.locator(".number").inner_text() == row(estimate, "time per output token (TPOT), mean")[1]
    cheaper = page.locator("tr", has_text="Cost per million tokens").locator("td .best")
    expect(cheaper).to_have_count(1)
    index = (
        page.locator("tr", has_text="Cost per million tokens")
        .locator("td")
        .evaluate_all("cells => cells.findIndex((cell) => cell.querySelector('.best'))")
    )
    assert list(dollars)[index] == min(dollars, key=lambda gpu: dollars[gpu])
    expect(page.locator("#picture-compared-tpot .legend li")).to_have_count(2)


def test_a_model_that_generates_nothing_has_a_latency(opened: Opener) -> None:
    view = {"model": "bert-base-uncased", "gpu": "l40s", "batch": 8, "prompt": 256}
    page = opened(fragment(**view))
    said = printed("estimate", *words_of(view))
    alone = figure(page, "Latency of the batch alone").locator(".big")
    expect(alone).to_have_text(row(said, "latency of the batch alone (one pass)")[1], timeout=PATIENCE)
    expect(page.locator("#output")).to_be_hidden()
    expect(page.locator("#picture-curve-tpot")).to_be_hidden()
    assert "token" not in page.locator("#answer dl").inner_text().replace("512 tokens", "").replace(
        "million tokens", ""
    )


def test_a_simulation(opened: Opener) -> None:
    page = opened(fragment(**SMALL, tab="simulate", simulate__load="rate", simulate__rate=4))
    page.get_by_label("Requests to simulate").fill("200")
    page.get_by_label("Seed of lengths and arrivals").fill("1")
    page.get_by_role("button", name="Run the simulation").click()
    expect(page.locator("#verdict")).to_have_text("Stable", timeout=2 * PATIENCE)
    load = {key: value for key, value in SMALL.items() if key != "batch"}
    asked = [*words_of(load), "--rate", "4", "--requests", "200", "--seed", "1"]
    said = printed("simulate", *asked)
    names = {"TTFT at the server": "Time to first token at the server", "TPOT": "Time per output token"}
    for ours, theirs in {**names, "end to end": "End to end"}.items():
        shown = page.locator("#simulate-result tr", has=page.get_by_role("rowheader", name=theirs, exact=True))
        assert shown.locator("td").all_inner_texts() == row(said, ours)[1:]
    expect(figure(page, "Requests per second").locator(".big")).to_have_text(row(said, "requests/s")[1])
    means = re.compile(r"mean [\d.]+ ms; 80 % of measured means: [\d.]+ ms to [\d.]+ ms")
    expect(figure(page, "Time to first token, 95th percentile")).to_contain_text(means)
    command = page.locator("#simulate-result pre").inner_text().split()
    assert command[:2] == ["inferplan", "simulate"]
    assert sorted(command[2:]) == sorted(asked)
    page.get_by_label("Prompt, tokens", exact=True).fill("999")  # what is explained stays what was simulated
    page.reload()
    expect(page.locator("#verdict")).to_have_text("Stable", timeout=PATIENCE)
    opens_what_a_figure_is(page, said, " ".join(command))


def opens_what_a_figure_is(page: Page, said: str, command: str) -> None:
    """Each figure of the simulation: words of the glossary, requests, command; and the static estimate behind two."""
    dialog = page.get_by_role("dialog")
    run = re.search(r"(\d+) requests sent, (\d+) left out as warm-up", said)
    finished = re.search(r"\d+", row(said, "requests counted")[1])
    assert run is not None and finished is not None
    numbers = page.locator("#simulate-result .number")
    assert numbers.count() == 7 + 4 * 5
    draws_the_simulation(page, command)
    for index in range(numbers.count()):
        numbers.nth(index).press("Enter")
        expect(dialog).to_contain_text(command)
        expect(dialog).to_contain_text(f"{finished[0]} finished of {finished[0]} that were counted; {run[1]} sent")
        expect(dialog).to_contain_text(f"{run[2]} left out as warm-up")
        page.keyboard.press("Escape")
        expect(numbers.nth(index)).to_be_focused()
    cell = page.get_by_role("button", name=re.compile("^Time per output token, p99: "))
    cell.press("Enter")
    expect(dialog).to_contain_text(row(said, "TPOT")[-1])
    for word in ("TPOT", "p99"):
        expect(dialog).to_contain_text(WORDS[word])
    batch = round(float(row(said, "decode batch, mean")[1].split()[0]))
    dialog.get_by_role("button", name=f"tpot of a batch of {batch}, 512 tokens in, 64 out").press("Enter")
    still = printed("explain", "tpot", *words_of({**SMALL, "batch": batch}))
    for name in ("formula", "numbers", "value"):
        expect(dialog).to_contain_text(row(still, name)[1], timeout=PATIENCE)
    dialog.get_by_role("button", name="Back to Time per output token, p99").press("Enter")
    expect(dialog).to_contain_text(WORDS["p99"])
    page.keyboard.press("Escape")
    expect(cell).to_be_focused()


def test_a_plan(opened: Opener, tmp_path: Path) -> None:
    asked = ["--rate", "1", "--workload", "chat", "--gpu", "h100-sxm", "--quant", "fp8", "--most", "1"]
    options = dict(zip((word.removeprefix("--") for word in asked[::2]), asked[1::2], strict=True))
    page = opened(fragment(**SMALL, tab="plan", **{f"plan__{key}": value for key, value in options.items()}))
    page.get_by_role("button", name="Run the plan").click()
    answer = page.locator("#plan-answer")
    expect(answer).to_be_visible(timeout=3 * PATIENCE)
    said = printed("plan", SMALL["model"], *asked)
    devices = row(said, "replicas")[1]
    assert re.fullmatch(r"(\d+) x \(1 device\)", devices)
    expect(answer.locator("h2")).to_contain_text(f"{devices.split()[0]} × h100-sxm")
    assert (
        figure(page, "Cost").locator(".big").inner_text().replace(" / hour", "/h")
        == row(said, "cost")[1].partition(" (")[0]
    )
    for ours, theirs in (
        ("TTFT p95 (simulated)", "Time to first token"),
        ("TPOT p95 (simulated)", "Time per output token"),
    ):
        exact, limit = row(said, ours)[1].split(", ")
        expect(figure(page, theirs)).to_contain_text(exact)
        expect(figure(page, theirs)).to_contain_text(limit)
    opens_what_stands_behind_the_plan(page, said)
    draws_the_plan(page, json.loads(printed("plan", SMALL["model"], *asked, "--format", "json")))
    expect(page.locator("#plan-result pre").last).to_have_text(f"inferplan plan {SMALL['model']} {' '.join(asked)}")
    with page.context.expect_page() as report:
        page.get_by_role("link", name="Open the report to share").click()
    expect(report.value.locator("#answer")).to_contain_text("h100-sxm")


def draws_the_simulation(page: Page, command: str) -> None:
    """The percentiles of the distributions, and the mean of the timeline, are those of the JSON of the command."""
    said = json.loads(printed(*command.split()[1:], "--format", "json"))
    for name in ("ttft", "tpot", "e2el"):
        done = dict(tabled(page, f"simulation-{name}"))
        for share, at in (("50.0%", "p50"), ("90.0%", "p90"), ("95.0%", "p95"), ("99.0%", "p99")):
            assert done[share] == format_time(said[f"{name}_s"][at])
    with page.expect_download() as saved:
        page.locator("#picture-simulation-timeline").get_by_role("button", name="save as CSV").click()
    head, *lines = Path(saved.value.path()).read_text().splitlines()
    assert head == 'second,"in the batch, mean","in the batch, most","in the queue, mean","in the queue, most"'
    spans = [[float(cell) for cell in line.split(",")] for line in lines]
    served = sum(span[1] + span[3] for span in spans) / len(spans)  # by Little's law, of the whole run
    sent = said["run"]["sent"]
    length = (spans[-1][0] - spans[0][0]) * len(spans) / (len(spans) - 1)
    assert served == pytest.approx(sent / length * said["e2el_s"]["mean"], rel=0.1)
    assert all(span[1] <= span[2] + 1e-9 and span[3] <= span[4] + 1e-9 for span in spans)


def tabled(page: Page, name: str) -> list[list[str]]:
    """The table behind a picture, with the names of its rows."""
    picture = page.locator(f"#picture-{name}")
    picture.locator("details").evaluate("node => node.open = true")
    expect(picture.locator("tbody tr").first).to_be_visible()
    found: list[list[str]] = picture.locator("tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return found


def draws_the_plan(page: Page, said: dict[str, Any]) -> None:
    """The four pictures of a plan, of the figures that the command has in its JSON."""
    plan, slo = said["plan"], said["question"]["slo"]
    bars = [plan, *(row for row in [said["at_the_other_confidence"], said["native_alternative"]] if row)]
    bars += said["alternatives"]
    drawn = page.locator("#picture-plan-costs svg text").all_text_contents()
    for bar in bars:
        assert f"{bar['cost']:,.2f} USD / hour" in drawn, drawn
    assert drawn[0] == f"the plan: {plan['devices']} × h100-sxm in fp8"
    costs = tabled(page, "plan-costs")
    assert [cells[1] for cells in costs[:1]] == [f"{plan['cost']:,.2f} USD / hour"]
    assert {cells[4] for cells in costs} == {"fp8"}
    safety = tabled(page, "plan-safety")
    assert [float(cells[0]) for cells in safety] == [step["confidence"] for step in said["confidence_curve"]]
    for cells, step in zip(safety, said["confidence_curve"], strict=True):
        assert ("–" if step["cost"] is None else f"{step['cost']:,.2f} USD / hour") in cells[1]
    breaks = {cells[0]: cells[1:] for cells in tabled(page, "plan-breaks")}
    runs = {1.0: plan, **{row["load"]: row for row in said["sensitivity"]}}
    assert set(breaks) == {f"{load:.0%}" for load in runs}
    for load, run in runs.items():
        if run["verdict"] != "overloaded":
            shares = [f"{run[f'{name}_s'] / slo[f'{name}_s']:.0%}" for name in ("ttft", "tpot")]
            assert breaks[f"{load:.0%}"][1::2] == shares
    frontier = tabled(page, "plan-frontier")
    rates = [tuple(float(cell.replace(",", "")) for cell in cells[1:]) for cells in frontier]
    assert frontier[0][0] == "the plan, h100-sxm"
    assert rates[0][1] == pytest.approx(plan["screened_output_tokens_per_s_per_device"], abs=0.05)
    meeting = [one for one in said["frontier"] if one["gpu"] == "h100-sxm"]
    assert max(one["output_tokens_per_s_per_device"] for one in meeting) == pytest.approx(
        max(rate for _, rate in rates[1:]), abs=0.05
    )
    for one, two in itertools.pairwise(sorted(rates[1:])):  # a frontier: who is faster for one user carries less
        assert one[1] >= two[1]


def test_a_plan_of_a_model_that_embeds_has_one_latency(opened: Opener) -> None:
    asked = {"rate": "500", "prompt": "256", "e2e": "60ms", "gpu": "l4"}
    state = {f"plan__{key}": value.removesuffix("ms") for key, value in asked.items()}
    page = opened(fragment(model="bert-base-uncased", gpu="l4", tp=1, prompt=256, tab="plan", **state))
    page.get_by_role("button", name="Run the plan").click()
    expect(page.locator("#plan-answer")).to_be_visible(timeout=3 * PATIENCE)
    words = [word for key, value in asked.items() for word in (f"--{key}", value)]
    said = printed("plan", "bert-base-uncased", *words)
    exact, limit = row(said, "end-to-end latency p95 (simulated)")[1].split(", ")
    expect(figure(page, "Latency")).to_contain_text(exact)
    expect(figure(page, "Latency")).to_contain_text(limit)
    expect(page.locator("#plan-result")).not_to_contain_text("Time to first token")
    page.get_by_role("button", name=re.compile("^Latency: ")).click()
    expect(page.get_by_role("dialog")).to_contain_text(exact)


def opens_what_stands_behind_the_plan(page: Page, said: str) -> None:
    """Every number opens something: the bill, the terms that the report prints, the share that replicas are given."""
    dialog = page.get_by_role("dialog")
    for picture in ("costs", "safety"):
        page.locator(f"#picture-plan-{picture} summary").click()
    numbers = page.locator("#plan-result .number")
    assert numbers.count() >= 7 + 3 + 2 * 4
    for index in range(numbers.count()):
        numbers.nth(index).press("Enter")
        expect(dialog.locator("dd").first).not_to_be_empty(timeout=PATIENCE)
        page.keyboard.press("Escape")
        expect(numbers.nth(index)).to_be_focused()
    page.get_by_role("button", name=re.compile("^Cost: ")).click()
    bought = re.search(r"x h100-sxm at (\S+) USD/h \(\S+, (\S+), (\d+-\d+-\d+)", said)
    assert bought is not None
    for text in (f"{bought[1]} USD", f"{bought[2]}, {bought[3]}"):
        expect(dialog).to_contain_text(text)
    expect(dialog).to_contain_text(row(said, "per million output tokens, counting input as free")[1])
    page.keyboard.press("Escape")
    page.get_by_role("button", name=re.compile("^Time per output token: ")).click()
    for text in (WORDS["TPOT"], WORDS["p95"], "share of rounds with prompts * round with prompts"):
        expect(dialog).to_contain_text(text)
    page.keyboard.press("Escape")
    page.get_by_role("button", name=re.compile("^Replicas: ")).click()
    carried = re.search(r"([\d.]+) per replica", said)
    assert carried is not None
    term = dialog.locator("dd", has_text="utilisation").inner_text()
    capacity, share = map(float, re.findall(r"ceil\(1 / \(([\d.]+) \* ([\d.]+)\)", term)[0])
    assert (f"{capacity:.2f}", share) == (carried[1], 0.8)
    page.keyboard.press("Escape")


def test_a_plan_is_cancelled(opened: Opener, address: str) -> None:
    page = opened(fragment(**SMALL, tab="plan", plan__load="rate", plan__rate=50, plan__workload="chat"))
    with page.expect_response("**/api/jobs") as started:
        page.get_by_role("button", name="Run the plan").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.locator("#plan-result")).to_contain_text(re.compile(r"\d+ of \d+ steps, \d+ s"), timeout=2 * PATIENCE)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#plan-cancelled")).to_be_visible(timeout=PATIENCE)
    job = page.request.get(f"{address}api/jobs/{started.value.json()['id']}").json()
    assert job["state"] == "cancelled"
    assert "result" not in job
    expect(page.get_by_role("button", name="Run the plan")).to_be_enabled()
    expect(page.get_by_role("button", name="Run the plan")).to_be_focused()


def test_a_link_holds_the_whole_state(opened: Opener) -> None:
    page = opened(fragment(**SMALL))
    settle(page)
    page.get_by_label("Prompt, tokens", exact=True).fill("777")
    page.get_by_label("KV cache", exact=True).evaluate("node => node.closest('details').open = true")
    page.get_by_label("KV cache", exact=True).select_option("fp8")
    page.get_by_role("button", name="+ Compare another").click()
    page.get_by_label("Batch, sequences at once", exact=True).fill("3")
    expect(page.locator("#comparison tbody tr").first).to_contain_text("3, 777, 64", timeout=PATIENCE)
    settle(page)
    page.get_by_role("button", name="Copy link").click()
    link = page.evaluate("navigator.clipboard.readText()")
    before = page.locator("#comparison table").first.inner_text()
    other = opened(link.partition("/#")[1][1:] + link.partition("/#")[2])
    expect(other.locator("#comparison table").first).to_have_text(re.compile("3, 777, 64"), timeout=PATIENCE)
    settle(other)
    assert other.locator("#comparison table").first.inner_text() == before
    expect(other.get_by_label("KV cache", exact=True)).to_have_value("fp8")
    expect(other.get_by_label("Batch, sequences at once", exact=True)).to_have_value("3")
    other.get_by_role("tab", name="Estimate").click()
    settle(other)
    other.reload()
    expect(other.locator("#answer h2")).to_contain_text("llama-3.1-8b", timeout=PATIENCE)
    assert "kv=fp8" in other.locator("#panel pre").first.inner_text().replace("--kv fp8", "kv=fp8")


def test_what_a_link_cannot_say_is_named(opened: Opener) -> None:
    page = opened(fragment(**{**SMALL, "batch": "1e99"}, nonsense="x", plan__rate="-1") + "&<b>=1&%zz")
    expect(page.locator("#notice")).to_contain_text("batch=1e99", timeout=PATIENCE)
    for part in ("nonsense=x", "plan.rate=-1", "<b>=1", "%zz"):
        expect(page.locator("#notice")).to_contain_text(part)
    expect(page.locator("#answer h2")).to_have_text("llama-3.1-8b on 1 × h100-sxm", timeout=PATIENCE)


def test_a_dead_server_is_said_and_nothing_is_lost(opened: Opener) -> None:
    with serving() as (base, process):
        page = opened(fragment(**SMALL), base=base, refused=True)
        settle(page)
        process.kill()
        process.wait()
    page.get_by_label("Batch, sequences at once", exact=True).fill("16")
    notice = page.get_by_role("alert").filter(has_text="The server does not answer")
    expect(notice).to_be_visible(timeout=PATIENCE)
    expect(page.locator("#answer h2")).to_have_text("llama-3.1-8b on 1 × h100-sxm")
    assert "batch=16" in page.url or page.wait_for_url("**batch=16**") is None
    with serving(int(base.rstrip("/").rpartition(":")[2])):
        page.get_by_role("button", name="Try again now").click()
        expect(page.locator("#panel pre").first).to_contain_text("--batch 16", timeout=PATIENCE)
        expect(notice).to_be_hidden()


def test_a_malformed_reply_is_said(opened: Opener) -> None:
    page = opened(fragment(**SMALL))
    settle(page)
    for reply in ("<html>", "[]", '{"estimate": {}}', '{"error": 3}'):
        answer = {"status": 200, "content_type": "application/json", "body": reply}
        page.route("**/api/view", lambda route, _, answer=answer: route.fulfill(**answer))
        page.get_by_label("Batch, sequences at once", exact=True).fill("16")
        expect(page.locator(".refusal")).to_contain_text("The answer cannot be read", timeout=PATIENCE)
        page.unroute("**/api/view")
        page.get_by_role("button", name="Ask again").click()
        expect(page.locator("#panel pre").first).to_contain_text("--batch 16", timeout=PATIENCE)
        page.get_by_label("Batch, sequences at once", exact=True).fill("8")
        expect(page.locator("#panel pre").first).to_contain_text("--batch 8", timeout=PATIENCE)


def test_a_late_reply_does_not_replace_a_newer_one(opened: Opener) -> None:
    page = opened(fragment(**SMALL))
    settle(page)
    held = []

    def hold(route: Any) -> None:
        if json.loads(route.request.post_data)["batch"] == 2:
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/view", hold)
    batch = page.get_by_label("Batch, sequences at once", exact=True)
    batch.fill("2")
    batch.fill("5")
    command = page.locator("#panel pre").first
    expect(command).to_contain_text("--batch 5", timeout=PATIENCE)
    with page.expect_response("**/api/view"):
        held[0].continue_()
    page.wait_for_timeout(300)
    expect(command).to_contain_text("--batch 5")


def test_a_phone(opened: Opener) -> None:
    second = {f"b__{key}": value for key, value in {**SMALL, "gpu": "l40s"}.items()}
    page = opened(fragment(**BIG, **second), viewport={"width": 360, "height": 780}, has_touch=True, is_mobile=True)
    settle(page)
    expect(page.locator("#strip")).to_contain_text(re.compile(r"TPOT \d+\.\d+ ms"))
    page.locator("#operators").scroll_into_view_if_needed()
    expect(page.locator("#strip")).to_be_in_viewport()
    for tab in ("Estimate", "Compare", "Simulate", "Plan"):
        page.get_by_role("tab", name=tab).click()
        settle(page)
        wide, screen = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert (wide, screen) == (360, 360), tab


def test_with_the_keyboard_alone(opened: Opener) -> None:
    page = opened(refused=True)
    settle(page)
    press = page.keyboard.press
    press("Tab")
    expect(page.get_by_role("button", name="Skip to the answer")).to_be_focused()
    press("Enter")
    expect(page.locator("#panel")).to_be_focused()
    page.locator("#tab-estimate").focus()
    press("ArrowRight")
    expect(page.get_by_role("tab", name="Compare")).to_be_focused()
    expect(page.get_by_role("tab", name="Compare")).to_have_attribute("aria-selected", "true")
    press("ArrowLeft")
    order = []
    for _ in range(9):
        press("Tab")
        order.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert order[:6] == ["copy-link", "theme", "+ Compare another", "model", "gpu", "quant"]
    page.get_by_label("Model", exact=True).focus()
    page.keyboard.type("mixtral 8x7b")
    expect(page.locator("#model-list [role=option]").first).to_have_attribute("aria-selected", "true")
    press("Enter")
    press("Tab")
    expect(page.get_by_label("Accelerator", exact=True)).to_be_focused()
    page.keyboard.type("h200")
    press("ArrowDown")
    press("ArrowUp")
    press("Enter")
    expect(page.locator("#answer h2")).to_have_text(re.compile(r"^mixtral-8x7b.* on 1 × h200"), timeout=PATIENCE)
    expect(page.locator("#ep")).to_be_visible()
    slider = page.get_by_label("Batch, sequences at once: slider")
    slider.focus()
    press("Home")
    press("ArrowRight")
    expect(page.get_by_label("Batch, sequences at once", exact=True)).to_have_value("2")
    expect(slider).to_have_attribute("aria-valuetext", "2")
    expect(page.locator("#panel pre").first).to_contain_text("--batch 2", timeout=PATIENCE)
    expect(page.locator("#live")).to_contain_text("Time per output token", timeout=PATIENCE)


def test_figures_are_written_as_the_command_line_writes_them(opened: Opener) -> None:
    """Every digit, for sizes from nanoseconds to petabytes and for halves, which Python rounds to the even digit."""
    draw = random.Random(0)
    values = [draw.uniform(1, 10) * 10.0 ** draw.randint(-9, 17) for _ in range(400)]
    values += [0.0, 9.9995, 99.995, 999.95, 999.96e6, 1.0005, 2.5, 0.125, 17.125, 1024.5, 35.125e9, 81_920.0, 1e-10]
    page = opened(fragment(**SMALL))
    write = """async (values) => {
      const { time, bytes, decimal, quantity } = await import("/static/units.js");
      return values.map((value) => [time(value), bytes(value), decimal(value, 1), quantity(value, "FLOP/s")]);
    }"""
    for value, shown in zip(values, page.evaluate(write, values), strict=True):
        known = [format_time(value), format_bytes(value), f"{value:,.1f}", format_quantity(value, "FLOP/s")]
        assert shown == known, value


NAMES = """
() => [...document.querySelectorAll("button, input, select, [role=region], svg[role=img]")]
  .filter((node) => node.checkVisibility() && !node.closest("[aria-hidden=true]"))
  .filter((node) => !(node.getAttribute("aria-label") || node.labels?.length || node.textContent.trim()))
  .map((node) => node.outerHTML.slice(0, 120))
"""
CONTRAST = """
() => {
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map((part) => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const found = getComputedStyle(node).backgroundColor;
      if (!/, 0\\)$/.test(found)) return found;
    }
    return "rgb(255, 255, 255)";
  };
  const spoken = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  return [...document.querySelectorAll("main *, header *, form *")]
    .filter((node) => node.checkVisibility() && !node.closest("svg") && spoken(node))
    .map((node) => {
      const [a, b] = [light(getComputedStyle(node).color), light(ground(node))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.outerHTML.slice(0, 90)];
    })
    .filter(([ratio]) => ratio < 4.5);
}
"""
"""Ratio of the luminances of text and ground as WCAG 2.2 defines it; 4.5 is its level AA."""


@for_each("scheme", ["light", "dark"])
def test_light_and_dark_can_be_read(opened: Opener, scheme: str) -> None:
    page = opened(fragment(**SMALL), color_scheme=scheme)
    settle(page)
    ground = "getComputedStyle(document.body).backgroundColor"
    system = page.evaluate(ground)
    assert (sum(map(int, re.findall(r"\d+", system)[:3])) < 200) == (scheme == "dark")
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(NAMES) == []
    page.get_by_label("Theme").select_option("light" if scheme == "dark" else "dark")
    assert page.evaluate(ground) != system
    settle(page)
    assert page.evaluate(CONTRAST) == []
    page.reload()
    assert page.evaluate(ground) != system
    page.get_by_label("Theme").select_option("")
    assert page.evaluate(ground) == system


NAMED = """
async ([dots, box, taken]) => {
  const { labels } = await import("/static/labels.js");
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "12px 'Liberation Sans', sans-serif";
  return labels(dots, box, taken).map(({ text, at: [x, y], anchor }) => {
    const wide = pen.measureText(text).width;
    return [text, anchor === "end" ? x - wide : x, y - 9, wide, 12];
  });
}
"""


def test_names_in_the_roofline_stand_apart(opened: Opener) -> None:
    """None over another, however close the operators lie; what has no place is left out, and the table has it."""
    page = opened(fragment(**BIG))
    settle(page)
    draw = random.Random(1)
    box = {"left": 40, "top": 10, "width": 400, "height": 220}
    taken = [{"text": "ridge 295.3 FLOP/B", "at": [300, 222], "anchor": "start"}]
    counts = []
    for spread in (200, 40, 4, 0):
        places = [[240 + draw.uniform(-1, 1) * spread, 120 + draw.uniform(-0.5, 0.5) * spread] for _ in range(20)]
        dots = [{"x": x, "y": y, "radius": 5, "name": f"ffn.operator_{i}"} for i, (x, y) in enumerate(places)]
        found = page.evaluate(NAMED, [dots, box, taken])
        counts.append(len(found))
        for one, (text, x, y, wide, high) in enumerate(found):
            assert x >= 40 and x + wide <= 440 and y >= 10 and y + high <= 230, text
            assert not (x < 430 and x + wide > 300 and y < 225 and y + high > 213), text
            for _, u, v, w, h in found[one + 1 :]:
                assert x + wide <= u or u + w <= x or y + high <= v or v + h <= y, (text, spread)
    assert counts[0] > counts[3] == 4  # all at one place: a name on each side
    picture = page.locator("#picture-roofline")
    with page.expect_download() as saved:
        picture.get_by_role("button", name="save as SVG").click()
    drawn = Path(saved.value.path()).read_text()
    assert {"attn.core", "ffn.gate_up", "ffn.down"} <= set(re.findall(r">([\w.]+)</text>", drawn))
    picture.locator("details").evaluate("node => node.open = true")
    shown = {text.partition(" ")[2] for text in picture.locator("tbody th").all_inner_texts()}
    said = printed("estimate", *words_of(BIG))
    assert {"attn.qkv", "ffn.activation", "attn.kv_write"} <= shown
    assert all(row(said, name) for name in shown)


DAY = {
    "day__rates": "00:00=0.5,01:00=5", "day__workload": "rag", "day__cold": 90, "day__hours": 2,
    "day__policies": "static,scheduled",
}  # fmt: skip


def saved_rows(page: Page, picture: str) -> list[dict[str, str]]:
    """The CSV of a picture."""
    with page.expect_download() as saved:
        page.locator(f"#picture-{picture}").get_by_role("button", name="save as CSV").click()
    return list(csv.DictReader(Path(saved.value.path()).read_text().splitlines()))


def test_a_day(opened: Opener) -> None:
    """Figures and pictures are those that ``inferplan day`` prints; a reload finds it, with the policy shown."""
    page = opened(fragment(**SMALL, tab="day", **DAY))
    page.get_by_role("button", name="Run the day").click(timeout=PATIENCE)
    expect(page.locator("#day-answer h2")).to_have_text("scheduled costs least within the limits", timeout=4 * PATIENCE)
    command = page.locator("#day-result pre").inner_text()
    asked = ["llama-3.1-8b", "--gpu", "h100-sxm", "--tp", "1", "--profile", "00:00=0.5,01:00=5", "--workload", "rag"]
    asked += ["--cold-start", "90s", "--policy", "static,scheduled", "--duration", "2h"]
    assert command == "inferplan day " + " ".join(asked)
    said, record = printed("day", *asked), json.loads(printed("day", *asked, "--format", "json"))
    for name in ("static", "scheduled"):
        _, peak, hours, cost, *rest = row(said, name)
        cells = page.locator("#day-result tr", has_text=re.compile(f"^{name}")).first.locator("td").all_inner_texts()
        assert [cells[0], cells[3], cells[4]] == [f"{cost} USD / day", peak, hours]
        assert [cells[2], cells[6], cells[7], cells[5]] == [*rest[-4:-3], *rest[-3:-1], rest[-1]]
    static, scheduled = record["policies"]
    expect(figure(page, "Cost per day").locator(".big")).to_have_text(f"{scheduled['cost_per_day']:,.2f} USD")
    expect(figure(page, "Cost per day")).to_contain_text(
        f"{1 - scheduled['cost_per_day'] / static['cost_per_day']:.1%} less"
    )
    page.locator("#day-show").select_option("static")
    page.wait_for_url("**day.show=static**")
    page.reload()
    expect(page.locator("#day-answer h2")).to_have_text("scheduled costs least within the limits", timeout=PATIENCE)
    expect(page.locator("#day-show")).to_have_value("static")
    for name, policy in (("static", static), ("scheduled", scheduled)):
        page.locator("#day-show").select_option(name)
        spans, late = saved_rows(page, "day-load"), saved_rows(page, "day-late")
        assert [float(one["missed"]) for one in late] == [one["missed"] for one in policy["hours"]]
        for one in policy["hours"]:
            of = spans[12 * one["hour"] : 12 * one["hour"] + 12]
            assert sum(float(part["replicas"]) for part in of) / 12 == pytest.approx(one["replicas"], rel=1e-9)
            assert sum(float(part["requests_per_s"]) for part in of) / 12 == pytest.approx(one["requests_per_s"])


def test_a_day_is_cancelled(opened: Opener) -> None:
    page = opened(fragment(**SMALL, tab="day", day__rates="00:00=5", day__workload="chat", day__cold=90))
    start = page.get_by_role("button", name="Run the day")
    start.click(timeout=PATIENCE)
    expect(page.locator("#day-result progress")).to_have_attribute("max", re.compile(r"\d+"), timeout=4 * PATIENCE)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#day-cancelled")).to_be_visible(timeout=PATIENCE)
    expect(start).to_be_focused()


def test_latency_over_load(opened: Opener) -> None:
    """Simulated after the answer at 50 to 150 % of the load, each as the command line does; found after a reload."""
    page = opened(fragment(**SMALL, tab="simulate", simulate__rate=40, simulate__requests=400, simulate__ttft=150))
    page.get_by_role("button", name="Run the simulation").click(timeout=PATIENCE)
    picture = page.locator("#picture-loads-ttft")
    expect(picture.locator("canvas")).to_be_visible(timeout=3 * PATIENCE)
    page.reload()
    expect(picture.locator("canvas")).to_be_visible(timeout=3 * PATIENCE)
    expect(picture).to_contain_text("The limit is 150 ms.")
    for at in ("p95", "p50"):
        page.locator("#loads-at").select_option(at)
        found = saved_rows(page, "loads-ttft")
        assert [float(one["load"]) for one in found] == [0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5]
        for one in found[::3]:
            rate = ["--rate", one["requests per second"], "--requests", "400", "--ttft", "150ms"]
            words = ["llama-3.1-8b", "--gpu", "h100-sxm", "--prompt", "512", "--output", "64", *rate]
            theirs = json.loads(printed("simulate", *words, "--format", "json"))
            assert theirs["verdict"] == one["verdict"]
            assert float(one[f"ttft_s {at}"]) == pytest.approx(theirs["ttft_s"][at], rel=1e-12)


def test_pictures_have_tables_and_are_saved(opened: Opener) -> None:
    page = opened(fragment(**SMALL))
    settle(page)
    heads = {"PNG": b"\x89PNG", "SVG": b"<svg", "CSV": b""}
    asked = {"memory": "PNG", "roofline": "SVG", "curve-ttft": "PNG", "curve-tpot": "SVG", "curve-throughput": "CSV"}
    for name, kind in asked.items():  # Chromium holds back the eleventh download within seconds
        picture = page.locator(f"#picture-{name}")
        picture.locator("details").evaluate("node => node.open = true")
        expect(picture.locator("tbody tr").first).to_be_visible()
        with page.expect_download() as saved:
            picture.get_by_role("button", name=f"save as {kind}").click()
        assert saved.value.suggested_filename == f"{name}.{kind.lower()}"
        content = Path(saved.value.path()).read_bytes()
        assert content.startswith(heads[kind])
        assert len(content) > 100
    curve = json.loads(printed("estimate", *words_of(SMALL), "--format", "json"))
    lines = content.decode().splitlines()
    assert lines[0] == "batch,output_tokens_per_s"
    (mine,) = [line for line in lines if line.startswith("8,")]
    assert float(mine.split(",")[1]) == pytest.approx(curve["output_tokens_per_s"], rel=1e-12)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save the estimate as JSON").click()
    assert json.loads(Path(saved.value.path()).read_text()) == curve
    page.get_by_role("button", name="Copy Python").click()
    text = page.evaluate("navigator.clipboard.readText()")
    space: dict[str, Any] = {}
    exec(text, space)
    assert float(space["found"].tpot) == curve["tpot_s"]


def test_an_api_is_compared(opened: Opener) -> None:
    """Break-even as ``inferplan cost --api-price`` has it, on either side of the load; the address keeps the price."""
    page = opened(fragment(**BIG))
    settle(page)
    card = page.locator("#estimate-api")
    for price, words in (("0.6/0.8", "of this load"), ("0.05/0.1", "times this load: the API costs less")):
        for side, value in zip(("input", "output"), price.split("/"), strict=True):
            card.get_by_label(f"A million {side} tokens at the API").fill(value)
        said = printed("cost", *words_of(BIG), "--api-price", price)
        found = re.match(
            r"([\d,]+) requests per month, [\d.]+[BT] tokens \(([\d.]+(?:%| x))",
            row(said, f"break-even with an API at {price}")[1],
        )
        assert found is not None
        expect(card).to_contain_text(f"Break-even: {found[1]} requests per month, {found[2].replace(' x', '')} {words}")
    assert "api=0.05/0.1" in page.url or page.wait_for_url("**api=0.05/0.1**") is None
    page.reload()
    expect(card.get_by_label("A million input tokens at the API")).to_have_value("0.05", timeout=PATIENCE)
    expect(card.locator("#picture-estimate-hosted canvas")).to_be_visible()
    card.get_by_label("A million input tokens at the API").fill("-1")
    expect(card).to_contain_text("Prices of 0 or more.")


def test_a_number_out_of_range_is_said(opened: Opener) -> None:
    page = opened(fragment(**SMALL))
    settle(page)
    batch = page.get_by_label("Batch, sequences at once", exact=True)
    for typed in ("-3", "0"):
        batch.fill(typed)
        page.keyboard.press("Tab")
        expect(page.locator("#batch-wrong")).to_have_text("A whole number from 1 to 1,000,000,000; it stays 8")
        expect(batch).to_have_value("8")
    batch.fill("9")
    expect(page.locator("#batch-wrong")).to_have_count(0)
    expect(page.locator("#panel pre").first).to_contain_text("--batch 9", timeout=PATIENCE)


@for_each(
    "box, typed, found",
    [
        ("Model", "meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b"),
        ("Model", "gpt oss 120", "gpt-oss-120b"),
        ("Accelerator", "M3 Ultra", "m3-ultra"),
        ("Accelerator", "mac", "m1"),
        ("Accelerator", "RTX 4090", "rtx-4090"),
    ],
)
def test_a_search_box_knows_every_name(opened: Opener, box: str, typed: str, found: str) -> None:
    page = opened(fragment(**SMALL))
    settle(page)
    search = page.get_by_role("combobox", name=box, exact=True)
    search.fill(typed)
    first = page.locator(f"#{'model' if box == 'Model' else 'gpu'}-list [role=option]").first
    expect(first).to_contain_text(found)


def test_the_headline_is_one_row_on_one_line(opened: Opener) -> None:
    page = opened(fragment(**BIG), viewport={"width": 1400, "height": 900})
    settle(page)
    places = (
        page.locator("#answer dl")
        .first.locator(".big")
        .evaluate_all("all => all.map((one) => Math.round(one.getBoundingClientRect().bottom))")
    )
    assert len(places) == 5
    assert len(set(places)) == 1
    value, unit = page.evaluate(
        "['.number', '.unit'].map((of) => parseFloat(getComputedStyle(document.querySelector(`.big ${of}`)).fontSize))"
    )
    assert unit < 0.7 * value


RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
STATES = {
    "estimate": {"api": "0.1/0.2"},
    "compare": {f"b__{key}": value for key, value in {**SMALL, "gpu": "l40s"}.items()},
    "fit": {"fit__users": 1, "fit__gpu": "h100-sxm"},
    "simulate": {"simulate__rate": 4, "simulate__requests": 200, "simulate__ttft": 300},
    "plan": {"plan__rate": 1, "plan__workload": "chat", "plan__gpu": "l40s", "plan__quant": "fp8", "plan__most": 1},
    "day": {"day__rates": "00:00=0.5,00:30=5", "day__workload": "rag", "day__cold": 90, "day__hours": 1},
}


@for_each("tab", list(STATES))
def test_axe_finds_nothing(opened: Opener, tab: str) -> None:
    """axe-core on a tab with its answer and all of its tables, light and dark, from 320 to 1,400 pixels."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core comes with the extra dev").Axe()
    page = opened(fragment(**SMALL, tab=tab, **STATES[tab]))
    if tab in ("fit", "simulate", "plan", "day"):
        page.locator("#panel button.main").first.click()
        expect(page.locator("#fit-answer, #verdict, #plan-answer, #day-answer")).to_be_visible(timeout=3 * PATIENCE)
        if tab == "simulate":
            expect(page.locator("#picture-loads-tpot canvas")).to_be_visible(timeout=3 * PATIENCE)
    else:
        expect(page.locator("#answer .big, #comparison td").first).to_be_visible(timeout=3 * PATIENCE)
    page.evaluate("document.querySelectorAll('#panel details').forEach((one) => (one.open = true))")
    for width in (1400, 900, 390, 320):
        for scheme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(300)
            expect(page.locator("#panel")).not_to_have_attribute("aria-busy", "true", timeout=3 * PATIENCE)
            found = axe.run(page, options={"runOnly": RULES}).response["violations"]
            assert [(one["id"], one["nodes"][0]["html"]) for one in found] == [], (width, scheme)
            assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_link_with_a_token_opens_the_page(opened: Opener) -> None:
    """Its state stands behind it as before, a reload asks for nothing, and a job's events come."""
    with serving(0, "--token", "a-secret-of-16-or-more", "--person", "ada") as (link, _):
        base = link.partition("?")[0]
        page = opened(
            f"?{link.partition('?')[2]}{fragment(**SMALL, tab='simulate', simulate__rate=5)}", base=base, refused=True
        )
        page.get_by_role("button", name="Run the simulation").click()
        expect(page.locator("#verdict")).to_be_visible(timeout=2 * PATIENCE)
        assert "token" not in page.url and "gpu=h100-sxm" in page.url
        page.get_by_role("tab", name="Estimate").click()
        page.reload()
        expect(page.locator("#answer h2")).to_have_text("llama-3.1-8b on 1 × h100-sxm", timeout=PATIENCE)


@for_each("scheme", ["light", "dark"])
def test_the_door_takes_a_token(opened: Opener, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core comes with the extra dev").Axe()
    with serving(0, "--token", "a-secret-of-16-or-more") as (link, _):
        base = link.partition("?")[0]
        page = opened(base=base, refused=True, color_scheme=scheme, viewport={"width": 320, "height": 600})
        expect(page.get_by_role("heading", name="inferplan")).to_be_visible()
        assert axe.run(page, options={"runOnly": RULES}).response["violations"] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_text("this server asks for its token")).to_be_visible()
        page.get_by_label("Token").fill("a-secret-of-16-or-more")
        page.get_by_role("button", name="Open").click()
        expect(page.locator("#answer h2")).to_be_visible(timeout=PATIENCE)
        assert page.url == base
