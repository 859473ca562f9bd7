"""``inferplan watch`` on servers of loopback, as it is typed; and what it wrote, read again."""

from __future__ import annotations

import csv
import json
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Run
from tests.watching.planned import plan_file
from tests.watching.service import Does, Server


@dataclass
class Page:
    """A server that has worked for as long as it is there, each time that it is asked."""

    does: Does = field(default_factory=lambda: Does(rate=60.0, output=50.0))
    server: Server = field(default_factory=Server)
    asked: int = 0
    last: float = field(default_factory=monotonic)

    def text(self) -> str:
        now = monotonic()
        self.server.work(self.does, now - self.last, np.random.default_rng(self.asked))
        self.asked, self.last = self.asked + 1, now
        return self.server.metrics()


@pytest.fixture
def pages() -> Iterator[list[tuple[str, Page]]]:
    """Two servers: their addresses, and what they say."""
    running: list[tuple[ThreadingHTTPServer, Page]] = []
    for _ in range(2):
        page = Page()

        class Answers(BaseHTTPRequestHandler):
            says = page

            def do_GET(self) -> None:
                body = self.says.text().encode()
                self.send_response(200 if self.path == "/metrics" else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        listening = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        running.append((listening, page))
    yield [(f"http://127.0.0.1:{one.server_address[1]}", page) for one, page in running]
    for one, _ in running:
        one.shutdown()
        one.server_close()


QUICK = ("--every", "200ms", "--window", "400ms", "--for", "2.5s")


def test_two_servers_beside_their_plan(run: Run, tmp_path: Path, pages: list[tuple[str, Page]]) -> None:
    plan, record, profile = plan_file(tmp_path), tmp_path / "minutes.jsonl", tmp_path / "day.csv"
    urls = [url for url, _ in pages]
    done = run("watch", *urls, "--plan", str(plan), *QUICK, "--record", str(record), "--profile", str(profile),
               "--what-if", "replicas=-1", "--format", "jsonl")  # fmt: skip
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert len(lines) >= 2  # a window at least, and the whole
    first, whole = lines[0], lines[-1]
    assert first["servers"] == 2
    assert first["prompt_tokens"] == pytest.approx(1000, rel=0.4)
    assert first["prefix_hits"] == pytest.approx(0.5)
    assert list(first["what_if"]) == ["replicas=-1"]
    assert whole["minutes"] == len(lines) - 1
    kept = [json.loads(line) for line in record.read_text().splitlines()]
    assert len(kept) == whole["minutes"]
    with profile.open(encoding="utf-8") as rows:
        rates = [float(row["rate"]) for row in csv.DictReader(rows)]
    assert len(rates) == 288
    mean = whole["requests"] / sum(one["seconds"] for one in kept)
    assert all(rate == pytest.approx(mean, rel=1e-5) for rate in rates)

    again = run("watch", "--replay", str(record), "--plan", str(plan), "--format", "json")
    assert again.code == 0, again.err
    assert again.json["requests"] == whole["requests"]
    assert again.json["last"]["ttft_mean_s"] == whole["last"]["ttft_mean_s"]
    assert again.json["events"] == whole["events"]


def test_lines_for_people_and_an_end_by_drift(run: Run, tmp_path: Path, pages: list[tuple[str, Page]]) -> None:
    """Prompts of twice the planned length: exit 6, after the report."""
    for _, page in pages:
        page.does = Does(rate=60.0, prompt=2000.0, output=50.0)
    urls = [url for url, _ in pages]
    done = run("watch", *urls, "--plan", str(plan_file(tmp_path)), *QUICK, "--fail-on", "drift")
    assert done.code == 6
    assert "tokens, 2.0" in done.out + done.err or "times the planned" in done.err
    assert done.out.startswith("time ")
    assert "load left" in done.out


def test_an_exporter_beside_it(run: Run, tmp_path: Path, pages: list[tuple[str, Page]]) -> None:
    """The last minute is served while servers are watched."""
    from inferplan.watching.counters import Span
    from inferplan.watching.exporter import Exporter
    from inferplan.watching.minutes import Minute

    exporter = Exporter("127.0.0.1", 0)
    try:
        exporter.show(Minute(number=7, at=0.0, span=Span(seconds=60.0, servers=2)))
        with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        assert "inferplan_minutes_total 7" in text
        assert "inferplan_servers 2" in text
    finally:
        exporter.close()
    busy = run("watch", pages[0][0], "--plan", str(plan_file(tmp_path)), *QUICK, "--listen", "127.0.0.1:99999")
    assert busy.code == 2
    assert "cannot listen" in busy.err


def test_a_dashboard(run: Run, tmp_path: Path) -> None:
    done = run("watch", "--dashboard", str(tmp_path / "watch.json"))
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "watch.json").read_text())["title"] == "inferplan watch"


def test_a_part_of_the_replicas(run: Run, tmp_path: Path, pages: list[tuple[str, Page]]) -> None:
    """One of two is held to half of the load."""
    done = run("watch", pages[0][0], "--plan", str(plan_file(tmp_path)), *QUICK, "--format", "json")
    assert done.code == 0, done.err
    assert "1 of the plan's 2 replicas" in done.err
    load = [one for one in done.json["events"] if one["cause"] == "load"]
    assert [one["held_to"] for one in load] == [10.0]


def test_what_is_refused(run: Run, tmp_path: Path, pages: list[tuple[str, Page]]) -> None:
    plan, url = str(plan_file(tmp_path)), pages[0][0]
    (tmp_path / "cut.jsonl").write_text('{"version":1}\n')
    (tmp_path / "apart").mkdir()
    alone = {"tp": 1, "pp": 1, "ep": 1, "dp": 1, "cp": 1, "replicas": 1}
    prompts = {"gpu": "h100-sxm", "quant": None, "parallel": alone, "token_budget": 8192}
    apart = str(plan_file(tmp_path / "apart", pools={"prefill": 1, "decode": 1}, prefill=prompts))
    for code, said, words in (
        (2, "--plan is missing", [url]),
        (2, "URLs, or --replay", ["--plan", plan]),
        (2, "URLs, or --replay", [url, "--replay", plan, "--plan", plan]),
        (2, "with --replay", ["--replay", plan, "--plan", plan, "--record", str(tmp_path / "x")]),
        (4, "line 1 is not a minute", ["--replay", str(tmp_path / "cut.jsonl"), "--plan", plan]),
        (4, "it is a device", ["--replay", "/dev/zero", "--plan", plan]),
        (2, "named twice", [url, f"{url}/v1", "--plan", plan]),
        (2, "longer than --window", [url, "--plan", plan, "--every", "2min"]),
        (2, "is no ending", [url, "--plan", plan, "--fail-on", "never"]),
        (2, "no host and port", [url, "--plan", plan, "--listen", "9108"]),
        (5, "no metrics at", ["http://127.0.0.1:9", "--plan", plan]),
        (2, "separate servers", [url, "--plan", apart]),
        (4, "nowhere.json", [url, "--plan", str(tmp_path / "nowhere.json")]),
        (2, "watches nothing", [url, "--plan", plan, "--dashboard", str(tmp_path / "d.json")]),
    ):
        done = run("watch", *words)
        assert (done.code, said in done.err) == (code, True), (words, done.code, done.err)
