"""The folder that ``make site`` builds: in node the interpreter of the browser, in Chromium the page."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from browser import build
from inferplan.cli import COMMANDS
from tests.browser.conftest import lacking
from tests.browser.points import differing, points, printed
from tests.cases import for_each
from tests.web.browser import CHROMIUM

pytestmark = pytest.mark.slow
LARGEST = 45e6
"""Bytes of the folder; docs/browser.md has what it was."""
LINE = "inferplan estimate llama-3.1-8b --gpu h100-sxm --batch 8"
FRAGMENT = "#inferplan+estimate+llama-3.1-8b+--gpu+h100-sxm+--batch+8"
PATIENCE = 120_000
"""Milliseconds for an answer: generous, because a loaded machine is not a broken page."""


class Quiet(SimpleHTTPRequestHandler):
    """A server of files as any host of static pages is one."""

    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript", ".wasm": "application/wasm"}

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder over HTTP: its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_the_interpreter_of_the_browser_prints_the_same(site: Path, tmp_path: Path) -> None:
    """The memory that was written down goes on where it ended; twenty points of every kind."""
    asked = points(seed=11, answered=18, refused=2)
    (tmp_path / "lines.json").write_text(json.dumps(list(asked)))
    command = ["node", "browser/ask.mjs", str(site), str(tmp_path / "lines.json"), str(tmp_path / "said.json")]
    done = subprocess.run(command, cwd=build.ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    wrong = differing(asked, json.loads((tmp_path / "said.json").read_text()))
    assert not wrong, "\n".join(wrong)


def test_the_folder_is_as_large_as_it_may_be_and_names_no_other_place(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < LARGEST
    for path in site.glob("*.*"):
        if path.suffix in (".html", ".css", ".js", ".mjs"):
            assert "http://" not in path.read_text() and "https://" not in path.read_text(), path


def test_a_link_opens_with_its_question_and_asks_no_other_server(site: Path) -> None:
    if CHROMIUM is None:
        lacking("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright (the extra dev)")
    with served(site) as address, playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page()
        errors, asked = [], []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{address}/{FRAGMENT}")
        page.wait_for_function("document.body.dataset.answered", timeout=PATIENCE)
        expected = printed(LINE)
        ago = "days old"  # the page has today's date, the tests another
        mine = [line for line in expected.stdout.splitlines() if ago not in line]
        assert [line for line in page.inner_text("#said").splitlines() if ago not in line] == mine
        assert page.input_value("#line") == LINE
        page.select_option("#question", "fit")
        page.fill("#gpu", "rtx-4090")
        assert page.input_value("#line") == "inferplan fit llama-3.1-8b --gpu rtx-4090 --context 1280 --in-flight 1"
        page.fill("#line", "inferplan web")
        page.click("#run")
        page.wait_for_function("document.body.dataset.answered === 'inferplan web'", timeout=PATIENCE)
        assert "does not run in the browser" in page.inner_text("#notes")
        assert page.url.endswith("#inferplan+web")
        page.go_back()
        page.wait_for_function(f"document.body.dataset.answered === {LINE!r}", timeout=PATIENCE)
        chromium.close()
    assert not errors and all(url.startswith(address) for url in asked), (errors, asked)


BROKEN = {
    "an answer": ("start.mjs", "return JSON.parse(", "throw Error('lost'); ("),
    "a load": ("snapshot.bin.gz", "", ""),
}


@for_each("what", list(BROKEN))
def test_the_page_says_what_failed(what: str, site: Path, tmp_path: Path) -> None:
    """An answer that throws, and files that are not there: the hint is for these alone."""
    if CHROMIUM is None:
        lacking("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright (the extra dev)")
    folder, (name, old, new) = tmp_path / what, BROKEN[what]
    shutil.copytree(site, folder)
    if old:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))
    else:
        (folder / name).unlink()
    with served(folder) as address, playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page()
        page.goto(f"{address}/{FRAGMENT}")
        page.wait_for_function("document.getElementById('state').textContent === 'Failed'", timeout=PATIENCE)
        said = page.inner_text("#notes")
        assert ("lost" if old else "404") in said and ("over HTTP" in said) == (not old), said
        chromium.close()


EXAMPLE = "<!doctype html><pre><code>$ inferplan estimate llama-3.1-8b \\\n    --gpu h100-sxm\n</code></pre>"


def test_examples_of_the_documentation_run_below_themselves(site: Path) -> None:
    if CHROMIUM is None:
        lacking("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright (the extra dev)")
    script = (build.ROOT / "docs" / "run.js").read_text()
    (site.parent / "run.js").write_text(script)
    (site.parent / "page.html").write_text(
        f'{EXAMPLE}<pre><code>inferplan web</code></pre><script src="run.js"></script>'
    )
    with served(site.parent) as address, playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page()
        page.goto(f"{address}/page.html")
        page.click("button")  # one: what does not run there has none
        frame = page.frame_locator("iframe")
        frame.locator("#said", has_text="longest context").wait_for(timeout=PATIENCE)
        assert frame.locator("#asked").inner_text() == "inferplan estimate llama-3.1-8b --gpu h100-sxm"
        assert not frame.locator("#line").is_visible()
        chromium.close()


def test_commands_that_run_there_are_commands() -> None:
    from browser import boot

    assert set(boot.HERE) < set(COMMANDS)
    assert set(build.choices()["commands"]) == set(boot.HERE)
    rows = re.findall(r"^\| (`.*`) \| yes", (build.ROOT / "docs" / "browser.md").read_text(), flags=re.MULTILINE)
    assert sorted(re.findall(r"`([\w-]+)`", " ".join(rows))) == sorted(boot.HERE)


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    for place in (tmp_path, tmp_path / "letter.txt"):
        with pytest.raises(build.BuildError, match="is not replaced"):
            build.build(place, tmp_path / "cache")
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_an_unpacking_that_was_interrupted_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of Pyodide's core is there as a whole or not at all."""
    archive = tmp_path / f"pyodide-{build.PYODIDE}.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in build.CORE[:-1]:
            tar.addfile(tarfile.TarInfo(f"package/{name}"))
    digest = hashlib.sha512(archive.read_bytes()).digest()
    monkeypatch.setattr(build, "INTEGRITY", "sha512-" + base64.b64encode(digest).decode())
    with pytest.raises(KeyError):
        build.pyodide(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]
    monkeypatch.setattr(build, "CORE", build.CORE[:-1])
    assert (build.pyodide(tmp_path) / build.CORE[0]).is_file()
