"""A server with known timings on loopback: what is measured is what it did, whatever goes wrong beside it."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from inferplan.cli import main
from inferplan.measuring.address import Key, address_of
from inferplan.measuring.figures import load_figures
from inferplan.measuring.loads import Bounds, LoadChoice
from inferplan.measuring.session import MeasuringSettings, Session, measure, start
from inferplan.validation.anchor import anchor_of, load_of
from inferplan.validation.importers import read_file
from inferplan.validation.run import Pricing, price_rows
from tests.cases import for_each
from tests.measuring.stand_in import FIRST, KEY, PER_TOKEN, PER_USER, STEP, StandIn
from tests.measuring.wire import served

ROOT = Path(__file__).parents[2]
QUICK = LoadChoice(lengths=(64,), concurrency=(), output=4, single_requests=3)
FACTS = ["--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--tp", "1", "--quant", "bf16"]
SMALL = ["--lengths", "64,128,256", "--concurrency", "2", "--prompt", "128", "--output", "4", "--warmup", "1",
         "--single-requests", "2", "--rounds", "2"]  # fmt: skip


def run(server: StandIn, **changes: Any) -> Session:
    settings = MeasuringSettings(**{"address": address_of(server.url), "choice": QUICK, "warmup": 1, **changes})
    session = start(settings)
    asyncio.run(measure(session, lambda *_: None))
    return session


def worst(session: Session, server: StandIn) -> float:
    """The largest error of a median TTFT or TPOT beside the server's own notes of the same requests, as a share."""
    errors = []
    for one in session.loads:
        first, last = min(reply.sent for reply in one.replies), max(reply.ended for reply in one.replies)
        truth = [seen for seen in server.seen if first - 0.05 <= seen.read <= last]  # it may read before we note it
        assert len(truth) == len(one.replies)
        errors.append(median(r.ttft for r in one.good) / median(s.ttft for s in truth) - 1)
        errors.append(median(r.tpot or 0.0 for r in one.good) / median(s.tpot for s in truth) - 1)
    return max(map(abs, errors))


@pytest.mark.slow
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_it_recovers_the_timings_of_the_server(api: Any) -> None:
    """Within 2 %, with a queue and pieces of three tokens; measured again where the machine was at other work."""
    choice = LoadChoice(lengths=(64, 512), concurrency=(4,), shared_prompt=128, output=16, single_requests=3, rounds=2)
    for _ in range(4):
        with served(StandIn(piece=3, slots=2)) as server:
            session = run(server, choice=choice, api=api)
        if worst(session, server) < 0.02:
            break
    assert worst(session, server) < 0.02
    assert [len(one.good) for one in session.loads] == [3, 8, 3]  # one of each kind first
    found = [load_figures(one) for one in session.loads]
    single, crowd, longer = (one for one in found if one is not None)
    for one, load in ((single, 64), (longer, 512), (crowd, 128)):
        assert one.osl == 16  # as the server counts, not as pieces came
        assert one.isl == pytest.approx(load, abs=1.0)  # as long as was asked for
        assert one.pieces == pytest.approx(16 / 6)  # five pieces of three and one of one
        assert one.latencies["itl"] == {}  # gaps between pieces are none between tokens
    slope = (longer.latencies["ttft"]["median"] - single.latencies["ttft"]["median"]) / (longer.isl - single.isl)
    assert slope == pytest.approx(PER_TOKEN, rel=0.15)  # of 90 ms
    assert single.latencies["tpot"]["median"] == pytest.approx(STEP + PER_USER, rel=0.15)  # a sleep ends late
    assert crowd.latencies["ttft"]["mean"] > 1.3 * FIRST  # two of four wait for a slot


def test_gaps_between_single_tokens_are_stated() -> None:
    choice = LoadChoice(lengths=(64,), concurrency=(), output=11, single_requests=1)
    with served(StandIn(counts=True)) as server:
        session = run(server, choice=choice)
    found, truth = load_figures(session.loads[0]), server.seen[-1]
    assert found is not None
    gaps = [later - earlier for earlier, later in pairwise(truth.written)]
    assert found.pieces == 1.0
    assert set(found.latencies["itl"]) == {"mean", "median", "p90"}  # of ten gaps
    assert found.latencies["itl"]["mean"] == pytest.approx(sum(gaps) / 10, rel=0.1)
    assert set(found.latencies["ttft"]) == {"mean", "median"}  # of one request


def test_no_two_prompts_begin_alike() -> None:
    with served(StandIn(fast=True)) as server:
        run(server)
        run(server)
    heads = [" ".join(seen.body["prompt"].split()[:16]) for seen in server.seen]
    assert len(set(heads)) == len(heads) == 2 * (1 + 2 + 1 + 3)  # how to ask, two sizes, a warm-up, three requests


def test_warm_up_is_sent_first_and_left_out() -> None:
    with served(StandIn(fast=True)) as server:
        session = run(server, warmup=1)
    assert len(server.seen) == session.budget.requests == session.warmed + 3
    assert len(session.loads[0].replies) == 3
    assert session.loads[0].replies[0].sent > server.seen[-4].written[-1]  # after the warm-up's last token


@for_each(
    ("refuses", "left_out"),
    [
        ((), []),
        (("ignore_eos",), ["ignore_eos"]),
        (("stream_options", "temperature"), ["stream_options", "temperature"]),
        (("max_tokens",), []),
    ],
)
def test_options_that_a_server_refuses_are_left_out(refuses: tuple[str, ...], left_out: list[str]) -> None:
    with served(StandIn(fast=True, counts=True, refuses=refuses)) as server:
        session = run(server)
    assert session.dialect is not None
    assert session.dialect.left_out == left_out
    assert [reply.ok for reply in session.loads[0].replies] == [True] * 3
    found = load_figures(session.loads[0])
    assert found is not None
    assert found.osl == 4  # without usage, too: a reply that ended at the limit has as many as were asked for


def test_a_server_without_completions_is_asked_for_chats() -> None:
    with served(StandIn(fast=True, apis=("/v1/chat/completions",))) as server:
        session = run(server)
    assert session.dialect is not None
    assert session.dialect.api == "chat"
    assert all(reply.ok for reply in session.loads[0].replies)


def test_outputs_that_the_server_ends_count_as_long_as_they_are() -> None:
    choice = LoadChoice(lengths=(64,), concurrency=(), output=40, single_requests=2)
    with served(StandIn(fast=True, refuses=("ignore_eos",), ends_after=7)) as server:
        session = run(server, choice=choice)
    found = load_figures(session.loads[0])
    assert found is not None
    assert found.osl == 7


FAULTS = {
    500: "HTTP 500",
    503: "HTTP 503",
    "cut": "",
    "unended": "",
    "garbage": "not JSON: {not json, ***",
    "error": "the server says: out of memory",
    "plain": "the reply is not streamed",
    "silent": "nothing came for 1 s",
}


@for_each("fault", FAULTS)
def test_a_request_that_fails_is_counted_and_the_run_goes_on(fault: int | str) -> None:
    """The last of three; the two before it are the figures, and the row says that it lost one."""
    with served(StandIn(fast=True, key=KEY, faults={6: fault})) as server:
        session = run(server, key=Key(KEY), timeout=1.0 if fault == "silent" else 30.0)
    (one,) = session.loads
    assert [reply.ok for reply in one.replies] == [True, True, False]
    assert FAULTS[fault] in one.failed[0].error
    assert one.failed[0].error
    assert KEY not in repr(session)
    assert one.suspect == ["1 of 3 requests failed"]
    found = load_figures(one)
    assert found is not None
    assert (found.requests, found.failed) == (2, 1)


def test_a_server_that_dies_ends_the_run_and_keeps_what_was_measured(call: Callable[..., Any]) -> None:
    """The second load (64 tokens took 1 + 2 + 1 + 2 requests) meets nothing but errors: the third is not begun."""
    with served(StandIn(fast=True, faults=dict.fromkeys(range(7, 99), 503))) as server:
        code, out, err = call(server.url, *SMALL, *FACTS, "--out", "own.csv", "--format", "json")
    assert code == 5
    assert "requests failed" in err
    record = json.loads(out)
    assert record["ended"].startswith("no reply to 2 users, 128 tokens in")
    assert [load["measured"] is not None for load in record["loads"]] == [True, False]
    assert len(rows_of(Path("own.csv"))) == 1


SAID = {
    "sglang": (
        {"/get_server_info": {"version": "0.5.6", "tp_size": 4, "context_length": 4096, "api_key": KEY}},
        {"engine": "sglang", "engine_version": "0.5.6", "tp": "4", "max_model_len": "4096"},
    ),
    "llamacpp": (
        {"/props": {"build_info": "b5000", "default_generation_settings": {"n_ctx": 2048}}},
        {"engine": "llama.cpp", "engine_version": "b5000", "max_model_len": "2048"},
    ),
    "atom": ({}, {"engine": "atom"}),  # ROCm/ATOM atom/entrypoints/openai/protocol.py, ModelCard
    "nobody": ({}, {}),
}


@for_each("owner", SAID)
def test_what_a_server_says_of_itself_is_in_its_rows(owner: str, call: Callable[..., Any]) -> None:
    pages, facts = SAID[owner]
    with served(StandIn(fast=True, owner=owner, context=None, pages=pages)) as server:
        code, out, _ = call(server.url, *SMALL, "--format", "csv")
    assert code == 0
    assert KEY not in out
    for row in csv.DictReader(io.StringIO(out)):
        assert {name: row[name] for name in facts} == facts
        assert not {"engine", "engine_version", "tp", "max_model_len"} & (row.keys() - facts.keys())


def test_prompts_are_sized_by_the_tokenizer_at_hand(call: Callable[..., Any], tmp_path: Path) -> None:
    """A vocabulary without any of the words: each letter is a token, so prompts of 128 tokens have some 25 words."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = tokenizers.Tokenizer(tokenizers.models.BPE({"?": 0, **{chr(97 + at): at + 1 for at in range(26)}}, []))
    letters.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    letters.save(str(tmp_path / "tokenizer.json"))
    with served(StandIn(fast=True, usage=False)) as server:
        code, out, _ = call(server.url, "--lengths", "128", "--concurrency", "1", "--prompt", "128", "--output", "4",
                            "--tokenizer", str(tmp_path), "--format", "json")  # fmt: skip
    assert code == 0
    sent = [len(seen.body["prompt"].replace(" ", "")) for seen in server.seen]
    assert len(sent) == 1 + 1 + 5  # how to ask, a warm-up, the load
    assert all(count == pytest.approx(128, rel=0.3) for count in sent[1:])
    assert json.loads(out)["loads"][0]["measured"]["isl"] == sum(sent[2:]) / 5  # counted here, as the server does not


def test_without_the_package_nothing_is_sent(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    code, out, err = call("http://127.0.0.1:9")
    assert (code, out) == (2, "")
    assert err.splitlines() == ["error: measure needs httpx2", "hint: pip install 'httpx2>=2.0'"]


UNKNOWN = {
    "model": (["--model", "gpt-5000"], "gpt-5000"),
    "gpu": (["--gpu", "h100-plus"], "h100-plus"),
    "engine": (["--engine", "warp"], "warp"),
    "count": (["--lengths", "0"], "'0' holds no counts"),
    "word": (["--concurrency", "many"], "many"),
    "constants": (["--gpu", "h100-sxm", "--ideal", "--calibration", "own.yaml"], "exclude each other"),
}


@for_each("case", UNKNOWN)
def test_names_that_cannot_be_priced_are_refused_before_anything_is_sent(case: str, call: Callable[..., Any]) -> None:
    options, said = UNKNOWN[case]
    with served(StandIn(fast=True)) as server:
        code, out, err = call(server.url, *options)
    assert (code, out, server.seen) == (2, "", [])
    assert said in err


def test_constants_that_cannot_be_read_are_said_before_anything_is_sent(call: Callable[..., Any]) -> None:
    with served(StandIn(fast=True)) as server:
        code, out, err = call(server.url, "--gpu", "h100-sxm", "--calibration", "nowhere.yaml")
    assert (code, out, server.seen) == (4, "", [])
    assert "nowhere.yaml" in err


NO_SERVER = {
    "refused": ("http://127.0.0.1:9", "no answer from http://127.0.0.1:9", 5),
    "address": ("127.0.0.1:9", "is not the address of a server", 2),
    "password": (f"http://me:{KEY.replace('/', '')}@127.0.0.1:9", "the URL holds more than an address", 2),
    "query": ("http://127.0.0.1:9/v1?api_key=sk-1", "the URL holds more than an address", 2),
}


@for_each("case", NO_SERVER)
def test_no_server(case: str, call: Callable[..., Any]) -> None:
    url, said, code = NO_SERVER[case]
    left, out, err = call(url)
    assert (left, out) == (code, "")
    assert err.startswith(f"error: {said}") or said in err.splitlines()[0]
    assert "sk-" not in err


REFUSED: dict[str, tuple[dict[str, Any], list[str], str, int]] = {
    "the key": ({"key": "another"}, [], "refuses the key", 5),
    "no such model": ({}, ["--served-model", "huge"], "the server has no model 'huge'", 2),
    "several models": ({"models": ("a", "b")}, [], "the server has several models", 2),
    "others at work": ({"others": 3}, [], "is at work for others", 2),
    "no API": ({"apis": ()}, [], "takes no request for 'tiny'", 5),
    "every request fails": ({"faults": {-1: 500}}, [], "the first request to", 5),
    "nobody counts": ({"usage": False}, [], "does not say how many tokens a prompt has", 5),
    "elsewhere": ({"redirect": "http://127.0.0.1:9/"}, [], "does not answer as it should", 5),
    "bounds": ({}, ["--max-requests", "2"], "the bounds are used up", 2),
}


@for_each("case", REFUSED)
def test_what_cannot_be_measured_is_one_error(
    case: str, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, options, said, code = REFUSED[case]
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with served(StandIn(fast=True, **facts)) as server:
        left, out, err = call(server.url, *SMALL, *options, "--out", "own.csv")
    assert (left, out) == (code, "")
    assert said in err.splitlines()[0]
    assert KEY not in err
    assert list(Path().iterdir()) == []


def test_a_busy_server_is_marked_where_it_is_measured_all_the_same(call: Callable[..., Any]) -> None:
    with served(StandIn(fast=True, others=2)) as server:
        code, out, _ = call(server.url, "--lengths", "64", "--concurrency", "1", "--prompt", "64", "--busy", *FACTS,
                            "--format", "csv")  # fmt: skip
    assert code == 0
    (row,) = csv.DictReader(io.StringIO(out))
    assert row["suspect"] == "2 requests of others were in the server"


@for_each(
    ("metrics", "suspect"),
    [
        ("llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n", "3 requests of others were in the server"),
        (
            'sglang:num_running_reqs{dp_rank="0"} 4.0\nsglang:num_running_reqs{dp_rank="1"} 1.0\n',
            "5 requests of others were in the server",
        ),
        ("atom:requests_running 3.0\natom:requests_waiting 1.0\n", "4 requests of others were in the server"),
        ("# nothing known\nvllm:num_requests_running NaN-ish\nbroken line\n", ""),
    ],
)
def test_metrics_of_several_engines(metrics: str, suspect: str, call: Callable[..., Any]) -> None:
    with served(StandIn(fast=True, owner="somebody", pages={"/metrics": metrics})) as server:
        code, out, _ = call(server.url, "--lengths", "64", "--concurrency", "1", "--prompt", "64", "--busy", "--format",
                            "csv")  # fmt: skip
    assert code == 0
    (row,) = csv.DictReader(io.StringIO(out))
    assert row["suspect"] == suspect


def test_the_key_is_sent_and_appears_nowhere(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the CSV, the JSON, the table, stderr; errors of the server that repeat it (two, of two users) too."""
    monkeypatch.setenv("MY_KEY", KEY)
    said = ""
    for style in ("json", "table", "csv", "markdown"):
        with served(StandIn(fast=True, key=KEY, faults={8: 500, 9: "error"})) as server:
            code, out, err = call(server.url, *SMALL, *FACTS, "--api-key-env", "MY_KEY", "--out", "own.csv", "--force",
                                  "--format", style)  # fmt: skip
        assert code == 0
        assert all(seen.headers["authorization"] == f"Bearer {KEY}" for seen in server.seen)
        said += out + err + Path("own.csv").read_text()
    assert "the key *** is not liked" in said
    assert "out of memory, key ***" in said
    assert KEY not in said


def test_the_key_does_not_follow_a_redirect(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with served(StandIn(fast=True)) as other, served(StandIn(redirect=f"{other.url}/v1/completions")) as server:
        code, _, err = call(server.url)
    assert code == 5
    assert "HTTP 307: the server sends elsewhere" in err
    assert other.seen == []


@for_each("name", ["MY_KEY", "sk-given-in-its-place"])
def test_a_key_that_is_not_in_the_environment(name: str, call: Callable[..., Any]) -> None:
    code, out, err = call("http://127.0.0.1:9", "--api-key-env", name)
    assert (code, out) == (2, "")
    assert name not in err


def test_no_key_is_sent_where_there_is_none(call: Callable[..., Any]) -> None:
    with served(StandIn(fast=True)) as server:
        assert call(server.url, *SMALL)[0] == 0
    assert not any("authorization" in seen.headers for seen in server.seen)


def test_a_load_is_held_out_and_the_csv_is_one_that_validate_reads(call: Callable[..., Any]) -> None:
    """The facts of the server beside those of the options; the anchor is fitted to the other loads alone."""
    with served(StandIn(first=0.03)) as server:
        code, out, err = call(server.url, *SMALL, *FACTS, "--out", "own.csv", "--format", "json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert record["server"]["engine"] == "vllm"
    assert record["server"]["version"] == "0.20.1"
    held = record["held_out"]
    assert held["row"] == "own.csv:5"  # the longest prompts; one load alone has several users
    assert held["loads_in_anchor"] == 3
    rows = rows_of(Path("own.csv"))
    assert [(r["concurrency"], r["engine"], r["engine_version"], r["tp"]) for r in rows] == [
        (users, "vllm", "0.20.1", "1") for users in "1211"
    ]
    measured = record["loads"][3]["measured"]["latencies"]["ttft"]["mean"]
    assert held["ttft"]["measured_s"] == pytest.approx(measured, rel=1e-5)
    tool, read = read_file(Path("own.csv"), {})
    assert (tool, [row.refused for row in read]) == ("csv", [""] * 4)
    others = anchor_of(price_rows(read[:3]), Pricing(), "own.csv").anchor
    assert held["ttft"]["anchored_s"] == pytest.approx(
        held["ttft"]["predicted_s"] * float(others.factor("ttft", load_of(read[3].run, read[3].measured))), rel=1e-3
    )


@pytest.mark.slow
def test_the_commands_of_the_page_run(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of docs/measure.md's example, one after another; the server there is the stand-in here."""
    page = (ROOT / "docs" / "measure.md").read_text(encoding="utf-8").partition("\n## A plan")[0].replace("\\\n", " ")
    lines = [line.split() for line in re.findall(r"^    inferplan (.*)$", page, re.MULTILINE)]
    assert [line[0] for line in lines] == ["measure", "validate", "anchor", "simulate"]
    with served(StandIn(first=0.02)) as server:
        for number, line in enumerate(lines):
            words = [server.url if word == "http://localhost:8000" else word for word in line]
            if not number:
                assert call(*words[1:])[0] == 0
                assert len(rows_of(Path("own.csv"))) == 4
                continue
            monkeypatch.setattr(sys, "argv", ["inferplan", *words])
            main()
    assert Path("own.yaml").exists()


def test_without_facts_it_measures_and_says_what_is_missing(call: Callable[..., Any]) -> None:
    with served(StandIn(fast=True, owner="somebody")) as server:
        code, out, _ = call(server.url, *SMALL, "--out", "own.csv")
    assert code == 0
    assert "nothing held out: model, gpu, engine, weights (or precision), tp are empty; the server does not say" in out
    assert "4 rows written to own.csv" in out and "state the empty cells there with the same options" in out
    assert len(rows_of(Path("own.csv"))) == 4


def test_facts_that_the_server_contradicts_are_said(call: Callable[..., Any]) -> None:
    with served(StandIn(fast=True)) as server:
        _, out, _ = call(server.url, *SMALL, *FACTS, "--engine", "sglang")
    assert "nothing held out: the server says engine vllm, not sglang" in out


def test_a_file_that_is_there_stays(call: Callable[..., Any]) -> None:
    Path("own.csv").write_text("mine")
    code, _, err = call("http://127.0.0.1:9", "--out", "own.csv")
    assert code == 4
    assert "--force" in err
    assert Path("own.csv").read_text() == "mine"


def test_bounds_leave_loads_out(call: Callable[..., Any]) -> None:
    """A request of 4000 + 5 % and 4 is 4204 tokens; four users of four requests and a warm-up are 17 requests."""
    with served(StandIn(fast=True, context=2048)) as server:
        code, out, _ = call(server.url, "--lengths", "64,128,4k", "--concurrency", "4", "--prompt", "64", "--output",
                            "4", "--max-requests", "20", "--warmup", "1", "--single-requests", "2", "--rounds", "4",
                            "--format", "json")  # fmt: skip
    record = json.loads(out)
    assert code == 0
    assert [load["asked"]["prompt"] for load in record["loads"]] == [64, 128]
    reasons = {load["prompt"]: load["reason"] for load in record["left_out"]}
    assert reasons[4000] == "up to 4204 tokens of a request, and the server takes 2048"
    assert reasons[64] == "17 requests more than --max-requests 20 leaves"
    assert record["requests_sent"] == len(server.seen) == 3 + 2 * (1 + 2)


@pytest.mark.slow
def test_time_is_bounded() -> None:
    """Requests of 0.3 s, twenty of them in less than 3 s: the load is cut short, marked, and keeps what it has."""
    choice = LoadChoice(lengths=(64,), concurrency=(), output=16, single_requests=20)
    with served(StandIn(counts=True)) as server:
        session = run(server, choice=choice, warmup=0, bounds=Bounds(seconds=3.0))
    assert session.ended == "--max-minutes 0.05 was over"
    (one,) = session.loads
    assert 0 < len(one.replies) < 20
    assert one.suspect == ["cut short: --max-minutes 0.05 was over"]


AT_A_TERMINAL = """import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
runpy.run_module("inferplan", run_name="__main__")
"""


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    command = ["measure", "--lengths", "64,128", "--concurrency", "1", "--prompt", "64", "--single-requests", "2",
               "--output", "32", "--warmup", "0", "--out", "own.csv", "--format", "json"]  # fmt: skip
    with served(StandIn(counts=True, faults={3: "silent"})) as server:
        child = subprocess.Popen([sys.executable, "-c", AT_A_TERMINAL, *command, server.url], cwd=tmp_path, text=True,
                                 env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)  # fmt: skip
        while len(server.seen) < 4 and child.poll() is None:  # how to ask, two of 64, the first of 128
            pass_time()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
    assert child.returncode == 130, err
    assert json.loads(err)["error"]["what"] == "interrupted"
    record = json.loads(out)
    assert record["ended"] == "interrupted"
    (row,) = rows_of(tmp_path / "own.csv")
    assert row["requests"] == "2"


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def pass_time() -> None:
    asyncio.run(asyncio.sleep(0.02))
