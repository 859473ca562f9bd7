"""``inferplan learn`` of a Prometheus server that scraped a server of known constants."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.learning.factors import Kernels
from inferplan.measuring.prometheus_api import Kept, is_prometheus, matchers
from tests.cases import for_each
from tests.cli.conftest import Run
from tests.learning.recorded import Users, served, tables, vllm_metrics
from tests.measuring.kept import scraped
from tests.measuring.kept_by_prometheus import Prometheus
from tests.measuring.wire import served as serving

WHAT = ("--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--engine", "vllm", "--quant", "bf16", "--format", "json")
NOW = 1_764_547_200.0
"""1 December 2025, 0:00 UTC."""


@pytest.fixture(scope="module")
def prometheus() -> Prometheus:
    """145 scrapes, each ten seconds until now, of a vLLM with a host of 2 ms a step; beside it one of another job."""
    base = Kernels(assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", quant="bf16")))
    times = tables(base.deployed({"host": 0.002, "prompt": 1.2}))
    loads = [Users(1, 500, 200), Users(64, 1500, 200), Users(8, 3000, 100), Users(128, 400, 150), Users(24, 6000, 100)]
    record = [one for n, users in enumerate(loads * 2) for one in served(times, users, 2000, True, n, 0.03)]
    texts = vllm_metrics(record, 137).split("# HELP")[1:]
    moments = [(NOW - 10.0 * (len(texts) - number), f"# HELP{text}") for number, text in enumerate(texts)]
    return Prometheus(
        [
            *scraped(moments, {"instance": "gpu1:8000", "job": "llm"}),
            *scraped(moments[:3], {"instance": "gpu9:8000", "job": "other"}),
        ],
        under="/prometheus",
    )


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("inferplan.cli.learn.time", lambda: NOW)
    monkeypatch.chdir(tmp_path)


def test_what_prometheus_kept_teaches_what_went_in(run: Run, prometheus: Prometheus) -> None:
    """Asked ten minutes at a time for what was scraped; the file of --record teaches the same."""
    prometheus.asked.clear()
    with serving(prometheus) as server:
        done = run("learn", server.url, *WHAT, "--for", "25min", "--labels", "job=llm", "--record", "kept.json")
    assert done.code == 0, done.err
    assert [at for _, at in server.asked] == [NOW - 1200, NOW - 600, NOW]
    assert [query.rpartition("}")[2] for query, _ in server.asked] == ["[300s]", "[600s]", "[600s]"]
    assert all('job="llm"' in query for query, _ in server.asked)
    found = {one["factor"]: one["learned"] for one in done.json["factors"]}
    assert found["host"] == pytest.approx(0.002, rel=0.03)
    assert found["prompt"] == pytest.approx(1.2, rel=0.03)
    again = run("learn", "kept.json", *WHAT)
    assert {one["factor"]: one["learned"] for one in again.json["factors"]} == found


def test_several_deployments_and_none_are_refused(run: Run, prometheus: Prometheus) -> None:
    with serving(prometheus) as server:
        both = run("learn", server.url, *WHAT, "--for", "25min")
        none = run("learn", server.url, *WHAT, "--labels", "job=absent")
        other = run("learn", server.url.replace("/prometheus", ""), *WHAT)
    assert both.code == 4 and "job is llm, other" in both.err
    assert none.code == 4 and "kept no series of an engine" in none.err and r"job=\"absent\"" in none.err
    assert other.code == 5 and "does not answer as a Prometheus server" in other.err and "HTTP 404" in other.err


def test_a_key_goes_where_it_was_named(run: Run, prometheus: Prometheus, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of an inference server is not sent to whoever keeps its metrics."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-inference-server")
    monkeypatch.setenv("OWN_KEY", "sk-of-a-test-prometheus")
    locked = Prometheus(prometheus.series, key="sk-of-a-test-prometheus", warnings=["one store did not answer"])
    with serving(locked) as server:
        refused = run("learn", server.url, *WHAT, "--labels", "job=llm")
        done = run("learn", server.url, *WHAT, "--labels", "job=llm", "--api-key-env", "OWN_KEY", "--for", "25min")
    assert refused.code == 5 and "refuses the key" in refused.err
    assert done.code == 0 and "warns: one store did not answer" in done.err


REFUSED = {
    "no label": (["--labels", "job"], "job is no label"),
    "the name of a metric": (["--labels", "__name__=x"], "__name__=x is no label"),
    "twice": (["--labels", "job=a,job=b"], "job twice"),
    "steps": (["--every", "15s"], "--every with a Prometheus server"),
}


@for_each("case", REFUSED)
def test_options_that_say_nothing(case: str, run: Run) -> None:
    options, said = REFUSED[case]
    done = run("learn", "http://localhost:9/api/v1/query", *WHAT, *options)
    assert done.code == 2 and said in done.err
    live = run("learn", "http://localhost:9", *WHAT, "--labels", "job=llm")
    assert live.code == 2 and "--labels with a server's own address" in live.err


def test_addresses_and_words_of_a_query() -> None:
    """Quoted as PromQL quotes (prometheus.io, querying basics): a value can end neither its quotes nor the selector."""
    assert is_prometheus("http://p:9090/api/v1/query") and is_prometheus("https://h/prom/api/v1/query_range/")
    assert not is_prometheus("http://h:8000") and not is_prometheus("https://h/api/v1")
    labels = matchers('job="a b", pod = x"}y')
    assert labels == {"job": "a b", "pod": 'x"}y'}
    asked = Kept(url="http://p:9090/x/api/v1/query", lasting=601.0, until=2000.0, labels=labels)
    assert (asked.root, asked.parts()) == ("http://p:9090/x", [(1400.0, 1), (2000.0, 600)])
    assert asked.query(600) == (
        '{__name__=~"(vllm:|sglang:|llamacpp:|tgi_|trtllm_|atom:).+",__name__!~".+_(bucket|created)",'
        'job="a b",pod="x\\"}y"}[600s]'
    )
