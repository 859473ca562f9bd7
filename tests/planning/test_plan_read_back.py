"""A plan's file read back, and measurements beside it: requests, limits and doubts of files that are written here."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferplan.errors import InfeasibleError, InferplanError, InputFileError, SpecError, UsageError
from inferplan.measuring.address import key_of
from inferplan.measuring.definitions import DEFINITIONS, statistics
from inferplan.planning.demand import Demand
from inferplan.reports import known_error
from inferplan.reports import plan_measured as measured
from inferplan.reports.plan_file import _Deployment as Deployed
from inferplan.reports.plan_file import _planned, _shown, checked_part, planned_of
from inferplan.reports.plan_load import _lengths_record, load_record, planned_demand, planned_load
from inferplan.traffic.conversations import ThinkTime
from inferplan.traffic.requests import Lengths, SharedPrefix
from inferplan.validation.as_planned import AsPlanned
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.measuring.test_by_hand import reply

PARALLEL = {"tp": 2, "pp": 1, "ep": 1, "dp": 3, "cp": 1, "replicas": 4}
DEPLOYMENT: dict[str, Any] = {
    "model": "llama-3.1-8b", "gpu": "h100-sxm", "quant": "fp8", "engine": "vllm 0.33", "parallel": PARALLEL,
    "pools": None, "context_tokens": 4096, "concurrency": 100, "token_budget": 2048, "speculation": None,
}  # fmt: skip


def deployed(**more: Any) -> Any:
    return _planned("plan.json", checked_part("plan.json", Deployed, DEPLOYMENT | more, "plan.deployment"))


def test_what_a_plan_says_is_started() -> None:
    """100 sequences on three attention ranks are 34 each."""
    found = deployed()
    request = found.request
    assert (request.model, request.gpu, request.quant, request.engine) == (
        "llama-3.1-8b",
        "h100-sxm",
        "fp8",
        "vllm@0.33",
    )
    assert request.parallel == Parallelism(tp=2, dp=3, replicas=4)
    assert (request.flags.token_budget, request.flags.max_sequences) == (2048, 34)
    assert (found.name, found.context, found.pools, found.prefill, found.drafting) == (
        "plan.json",
        4096,
        None,
        None,
        None,
    )
    assert (found.queue, found.chat) == ("fcfs", False) and found.drafts(request).speculation.length == 0
    asked = deployed(queue="priority", chat=True)
    assert (asked.queue, asked.chat) == ("priority", True)


def test_servers_of_both_pools() -> None:
    prefill = {"gpu": "h200-sxm", "quant": None, "parallel": PARALLEL | {"tp": 4}, "token_budget": 8192}
    pools = {"prefill": 2, "decode": 3}
    apart = deployed(pools=pools, prefill=prefill, options={"flags.block_size": 32})
    assert (
        (apart.pools.prefill, apart.pools.decode) == (2, 3)
        and apart.prefill.gpu == "h200-sxm"
        and apart.prefill.quant is None
    )
    assert (apart.prefill.parallel.tp, apart.prefill.flags.token_budget) == (4, 8192)
    assert apart.prefill.flags.max_sequences == 34 and apart.prefill.flags.block_size == 32  # as those that decode
    own = deployed(pools=pools, prefill=prefill | {"max_num_seqs": 7, "options": {}}, options={"flags.block_size": 32})
    assert own.prefill.flags.max_sequences == 7 and own.prefill.flags.block_size is None
    assert deployed(prefill=prefill).prefill is None  # without pools there is none


OPTIONS: dict[str, tuple[Any, Any]] = {
    "flags.block_size": (32, lambda request: request.flags.block_size),
    "power_cap": (400.0, lambda request: request.power_cap),
    "ideal": (True, lambda request: request.ideal),
    "sampling": ("top-k,top-p", lambda request: request.sampling),
    "memory": ("40GB", lambda request: request.memory),
    "host.step": (0.005, lambda request: request.host.step),
    "offload.gpu_layers": (20, lambda request: request.offload.gpu_layers),
    "offload.cpu_offload_gb": (4, lambda request: request.offload.cpu_offload_gb),
    "lora.rank": (16, lambda request: request.lora.rank),
}


@for_each("name", OPTIONS)
def test_options_of_a_plan(name: str) -> None:
    value, of = OPTIONS[name]
    assert of(deployed(options={name: value}).request) == value


def test_options_with_parts() -> None:
    request = deployed(options={"roles.kv": "fp8", "lora.modules": "q,v", "lora.rank": 16, "lora.slots": 4}).request
    assert request.roles == (("kv", "fp8"),)
    assert (request.lora.modules, request.lora.rank, request.lora.slots) == (("q", "v"), 16, 4)
    chosen = deployed(options={"flags.backends.experts": "triton", "flags.backends.attention": "fa3"}).request
    assert set(chosen.flags.backends) == {("experts", "triton"), ("attention", "fa3")}
    blocks = deployed(options={"generation.block_tokens": 32}).request
    assert blocks.generation == (("block_tokens", 32),)


@for_each(
    ("name", "value", "said"),
    [
        ("unknown", 3, "was planned with unknown, which is not known here"),
        ("power_cap", "x", "options.power_cap cannot be 'x'"),
        ("ideal", "x", "options.ideal cannot be 'x'"),
        ("flags.block_size", "x", "is not the JSON of a plan"),
        ("lora.rank", True, "options.lora.rank cannot be True"),
        ("lora.unknown", 3, "options.lora.unknown cannot be 3"),
        ("offload.gpu_layers", True, "was planned with offload.gpu_layers"),
        ("host.step", 3, "was planned with host.step"),
        ("generation.block_tokens", -1, "cannot be -1"),
        ("generation.block_tokens", 10**9, "cannot be 1000000000"),
    ],
)
def test_options_that_are_none(name: str, value: Any, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        deployed(options={name: value})
    assert said in refused.value.what


def test_files_that_are_no_plans(tmp_path: Path) -> None:
    whole: dict[str, Any] = {"schema_version": 2, "plan": {"deployment": DEPLOYMENT}}
    assert planned_of(whole, "x").request.model == "llama-3.1-8b"
    assert planned_of({"plan": {"deployment": DEPLOYMENT}}, "x").context == 4096
    for wrong in ({"schema_version": 1}, {"plan": []}, {"plan": {"deployment": []}}, {"plan": {"deployment": {}}}):
        with pytest.raises(SpecError):
            planned_of(whole | wrong, "x")
    with pytest.raises(UsageError, match="cache tiers"):
        planned_of({"plan": {"deployment": DEPLOYMENT | {"cache_tiers": [{}]}}}, "x")
    with pytest.raises(SpecError) as refused:
        checked_part("x", Deployed, DEPLOYMENT | {"gpu": 3, "token_budget": 0}, "plan.deployment")
    assert refused.value.what.startswith("x is not the JSON of a plan: plan.deployment.gpu: ")
    assert refused.value.what.endswith("not 3") and refused.value.because.startswith("token_budget: ")
    assert _shown(10**40) == "a number that large" and _shown("x" * 50) == "'" + "x" * 39
    path = tmp_path / "plan.json"
    for text, good in (('{"plan": {}, "question": {}}', True), ('{"plan": {}}', False), ("[]", False), ("{", False)):
        path.write_text(text)
        assert measured.is_plan(str(path)) is good
    assert not measured.is_plan(str(tmp_path / "none.json")) and not measured.is_plan("x.csv")


DEMAND = Demand(prompt=Lengths(mean=1000), output=Lengths(kind="lognormal", mean=100, spread=0.5), rate=10.0)


def test_a_load_that_is_stated_and_read_back() -> None:
    stated = load_record(DEMAND)
    assert stated == {
        "prompt": {"kind": "fixed", "mean": 1000, "spread": 0.0, "most": None},
        "output": {"kind": "lognormal", "mean": 100, "spread": 0.5, "most": None},
        "requests_per_s": 10.0, "users": None, "arrivals": "poisson", "burstiness": 1.0,
        "think_time": {"kind": "constant", "mean_s": 0.0, "spread": 0.0}, "shared_prefix_tokens": 0,
        "distinct_prefixes": 1, "not_sent": [],
    }  # fmt: skip
    people = Demand(prompt=DEMAND.prompt, output=DEMAND.output, users=8)
    assert (load_record(people)["users"], load_record(people)["not_sent"]) == (8, [])
    floats = {**stated, **{name: stated[name] | {"mean": float(stated[name]["mean"])} for name in ("prompt", "output")}}
    assert planned_demand({"question": {"load": floats}}, "x").rate == 10.0
    with pytest.raises(SpecError, match="does not state the load"):
        planned_demand({"question": {}}, "x")
    with pytest.raises(UsageError) as refused:
        planned_demand({"question": {"load": floats | {"not_sent": ["sessions", "media"]}}}, "x")
    assert refused.value.because == "it has sessions, media"
    with pytest.raises(UsageError) as refused:
        planned_demand({"question": {"load": floats | {"prompt": None}}}, "x")
    assert refused.value.because == "it has lengths of no known kind"
    assert _lengths_record(Lengths(kind="empirical", values=(1, 2))) is None


def test_the_share_of_a_load_that_is_sent() -> None:
    """A quarter of 40 users; each sends two requests at the least, and begins as the others do, over a cycle."""
    thinkers = Demand(
        prompt=Lengths(mean=1000), output=Lengths(mean=100), users=40,
        prefix=SharedPrefix(tokens=64, distinct=3, think=ThinkTime(mean=30.0)),
    )  # fmt: skip
    load = planned_load(thinkers, 4, 10.0, (95.0, 25))
    assert (load.users, load.requests, load.head_tokens, load.fill) == (10, 25, 64, 6)
    assert load.starts == tuple(4.0 * user for user in range(10)) and load.seconds == 25 / 10 * 40.0
    assert len(load.heads) == 25 and set(load.heads) <= {0, 1, 2} and set(load.think) == {30.0}
    assert set(load.outputs) == {100} and not load.arrivals
    for wrong, shares in ((19, 4), (1, 40)):
        with pytest.raises(UsageError):
            planned_load(thinkers, shares, 10.0, (95.0, wrong))
    with pytest.raises(UsageError, match="less than one"):
        planned_load(thinkers, 100, 10.0, (95.0, None))
    rate = planned_load(DEMAND, 2, 1.0, (95.0, 40))
    assert rate.users == 0 and rate.arrivals[0] == 0.0 and rate.seconds == rate.arrivals[-1]
    assert rate.requests_per_s == pytest.approx(5.0, rel=0.1) and not rate.heads and rate.fill == 10
    assert planned_load(DEMAND, 1, 1.0, (95.0, None)).requests > planned_load(DEMAND, 1, 1.0, (90.0, None)).requests


def held(**more: Any) -> Any:
    """A plan for TTFT 500 ms and TPOT 20 ms at the 95th percentile on four replicas, with a band of TTFT."""
    found: dict[str, Any] = {
        "path": "plan.json", "percentile": 95.0, "replicas": 4, "limits": {"ttft": 0.5, "tpot": 0.02},
        "quoted": {"ttft": 0.4, "tpot": 0.01, "e2el": 2.0}, "bands": {"ttft": (0.3, 0.5)}, "demand": DEMAND,
        "data": {"plan": {"deployment": DEPLOYMENT}},
        "planned": SimpleNamespace(request=deployed().request, pools=None),
    }  # fmt: skip
    one = object.__new__(measured.PlanFile)
    vars(one).update(found | more)
    return one


def one_of(**more: Any) -> Any:
    found: dict[str, Any] = {
        "at": "", "url": "http://a", "replicas": 4, "requests": 1200, "failed": 0, "percentile": 95.0,
        "prompt_tokens": 1000.0, "output_tokens": 100.0, "requests_per_s": 10.0, "ttft_s": 0.45, "tpot_s": 0.012,
        "half_width_s": {"ttft": 0.01, "tpot": 0.001},
    }  # fmt: skip
    return measured._Measurement.model_validate(found | more)


def test_latencies_beside_a_plan() -> None:
    first, second = held().judged(one_of())
    assert first == AsPlanned(name="ttft", planned=0.4, measured=0.45, error=0.01, limit=0.5, band=(0.3, 0.5))
    assert (second.name, second.band, second.error) == ("tpot", None, 0.001)
    with pytest.raises(InputFileError, match="http://a was measured without TPOT"):
        held().judged(one_of(tpot_s=None))
    assert held().answer == 2.0 and held(quoted={}).answer == 0.0


@for_each(("load", "percentile", "good"), [(1, 95.0, True), (2, 95.0, False), (1, 99.0, False)])
def test_measurements_in_another_copy(load: int, percentile: float, good: bool) -> None:
    """They are of the plan where the copy has its load and its percentile."""
    copy = SimpleNamespace(
        data={"question": {"load": load}}, percentile=percentile, measurements=["one"], facts={},
        require_own=lambda facts, path: None,
    )  # fmt: skip
    own = SimpleNamespace(**vars(copy) | {"data": {"question": {"load": 1}}, "percentile": 95.0, "measurements": []})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured, "PlanFile", lambda path: own if path == "plan" else copy)
        patch.setattr(measured, "is_plan", lambda path: True)
        if good:
            assert measured.measurements_of(["plan", "copy"]) == (own, ["one"])
            return
        with pytest.raises(InputFileError, match="copy was measured under another load than plan"):
            measured.measurements_of(["plan", "copy"])


def test_measurements_of_another_deployment() -> None:
    facts = held().facts
    assert facts == {
        "model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": "vllm", "engine_version": "0.33", "tp": "2", "pp": "1",
        "ep": "1", "dp": "3", "precision": "fp8",
    }  # fmt: skip
    held().require_own({"model": "", "gpu": "H100-SXM", "engine": "VLLM", "engine_version": "0.1", "tp": ""}, "x")
    for name, other in (("gpu", "l4"), ("engine", "sglang"), ("tp", "4"), ("precision", "native")):
        with pytest.raises(InputFileError, match="x measures another deployment than plan") as refused:
            held().require_own({name: other}, "x")
        assert refused.value.because == f"{name} {other}, and {facts[name]} was planned"
    assert held().unlike(None) == held().unlike(SimpleNamespace(source="nobody/knows", model="this")) == ""
    assert held().unlike(SimpleNamespace(source="", model="llama-3.1-8b")) == ""
    other = held().unlike(SimpleNamespace(source="llama-3.1-70b", model="x"))
    assert other == "the server has llama-3.1-70b (llama-3.1-70b), and llama-3.1-8b was planned"


@for_each(
    ("changes", "users", "said"),
    [
        ({}, None, ""),
        ({"prompt_tokens": 1099.0, "output_tokens": 124.0, "requests_per_s": 10.9}, None, ""),
        ({"prompt_tokens": 1101.0}, None, "1,101 prompt tokens, and 1,000 were planned"),
        ({"output_tokens": 74.0}, None, "74 output tokens, and 100 were planned"),
        ({"requests_per_s": 5.0, "replicas": 2}, None, ""),
        ({"requests_per_s": 5.0}, None, "5 requests/s, and 10 were planned"),
    ],
)
def test_measurements_under_another_load(changes: dict[str, Any], users: float | None, said: str) -> None:
    refused = None
    try:
        held().require_load(one_of(**changes), users)
    except InputFileError as error:
        refused = error.because
    assert (refused or "") == said


def test_users_of_a_measurement() -> None:
    crowd = held(demand=Demand(prompt=Lengths(mean=1000), output=Lengths(mean=100), users=40))
    crowd.require_load(one_of(requests_per_s=0.0), None)
    crowd.require_load(one_of(replicas=2), 21.0)
    with pytest.raises(InputFileError) as refused:
        crowd.require_load(one_of(replicas=2), 40.0)
    assert refused.value.because == "40 users, and 20 were planned"
    assert measured._replicas_of(0.0, 20.0, crowd) == 2 and measured._replicas_of(0.0, None, crowd) == 4
    assert measured._replicas_of(2.4, None, held()) == 1 and measured._replicas_of(0.1, None, held()) == 1


HEAD = "url,gpu,ttft_p95_ms,tpot_p95_ms,isl,osl,rate_per_s,requests,failed_requests,suspect\n"


def rows(tmp_path: Path, *lines: str, head: str = HEAD) -> Any:
    path = tmp_path / "rows.csv"
    path.write_text(head + "\n".join(lines) + "\n")
    return measured.rows_as_measurements(str(path), held())


def test_rows_beside_a_plan(tmp_path: Path) -> None:
    (one,) = rows(tmp_path, "a,h100-sxm,450,12,1000,100,10,1200,3,cold")
    assert (one.ttft_s, one.tpot_s, one.e2el_s) == (0.45, 0.012, None)
    assert (one.requests, one.failed, one.suspect, one.replicas, one.percentile) == (1200, 3, ["cold"], 4, 95.0)
    assert (one.prompt_tokens, one.output_tokens, one.requests_per_s) == (1000.0, 100.0, 10.0)
    assert one.url.endswith("rows.csv: line 2")
    (bare,) = rows(tmp_path, "a,,450,,1000,100,5,,,")
    assert (bare.requests, bare.failed, bare.suspect, bare.replicas, bare.tpot_s) == (0, 0, [], 2, None)
    for line, said in (
        ("a,,0,12,1000,100,10,,,", "line 2 has no time"),
        ("a,,inf,12,1000,100,10,,,", "line 2 has no time"),
        ("a,,,,1000,100,10,,,", ("line 2 has no ttft_p95_ms, tpot_p95_ms")),
        ("a,,450,12,,100,10,,,", "line 2 has no isl"),
        ("a,,450,12,1000,x,10,,,", "line 2 has no osl"),
        ("a,l4,450,12,1000,100,10,,,", "line 2 measures another"),
        ("a,,450,12,1000,0,10,,,", "line 2 has no osl"),
    ):
        with pytest.raises(InputFileError) as refused:
            rows(tmp_path, line)
        assert said in refused.value.what


def test_verdicts_on_a_service() -> None:
    """TTFT is within its band; TPOT is over the limit of a second measurement, of two replicas."""
    good, bad = (
        one_of(),
        one_of(url="http://b", replicas=2, tpot_s=0.03, failed=4, half_width_s={"ttft": None}, requests=0),
    )
    report = measured.verdict_report(held(), [good, bad])
    assert [table.title for table in report.tables] == [
        "as planned: http://a, 1,200 requests of the plan's load", "not as planned: http://b on 2 of 4 replicas"
    ]  # fmt: skip
    assert report.headline == "; ".join(table.title for table in report.tables)
    first, second = report.record["verdicts"]
    assert (first["as_planned"], second["as_planned"], first["at"]) == (True, False, None)
    assert report.notes == [
        "4 of 4 requests failed, and are left out of all figures",
        "0 requests are too few for the error of a 95th percentile",
    ]
    assert [row["metric"] for row in report.rows] == ["ttft", "tpot", "ttft", "tpot"]  # type: ignore[index]
    lines = [list(row) for row in report.tables[0].rows]
    assert lines[0] == [
        "TTFT",
        "400.0 ms",
        "300.0 ms to 500.0 ms",
        "500.0 ms",
        "450.0 ms",
        "10.00 ms",
        "1.125",
        "as planned",
    ]
    assert lines[1][2] == "unknown"
    measured.require_as_planned(held(), [good])
    with pytest.raises(InfeasibleError) as refused:
        measured.require_as_planned(held(), [good, bad])
    assert refused.value.because == "TPOT 30.00 ms, planned 10.00 ms (x 3.00, over the limit)"
    doubted = one_of(suspect=["cold"])
    with pytest.raises(InfeasibleError, match="no verdict on http://a"):
        measured.require_as_planned(held(), [doubted])
    assert measured.verdict_report(held(), [doubted], {"x": 1}).record["x"] == 1
    assert measured._title(held(), doubted, held().judged(doubted)).startswith("no verdict: http://a")
    assert measured._notes(held(), doubted) == ["suspect: cold"]


def test_rates_and_percentiles_of_replies() -> None:
    """Three requests in 4 s are 0.5 a second, whatever became of them."""
    replies = [reply(sent=at) for at in (4.0, 0.0, 1.0)]
    assert measured._rate(SimpleNamespace(replies=replies)) == 0.5  # type: ignore[arg-type]
    for few in ([], replies[:1], [replies[0]] * 2):
        assert measured._rate(SimpleNamespace(replies=few)) == 0.0  # type: ignore[arg-type]
    values, errors = measured._latencies(SimpleNamespace(judged=replies), 50.0)  # type: ignore[arg-type]
    assert values == {"ttft": 0.5, "tpot": 0.25, "e2el": 1.0} and set(errors) == set(values)
    alone = [reply(output=1)]
    assert "tpot" not in measured._latencies(SimpleNamespace(judged=alone), 50.0)[0]  # type: ignore[arg-type]


def test_latencies_as_clients_define_them() -> None:
    """Of 3 tokens, and of 5 in three pieces: GuideLLM weighs replies by their tokens."""
    two = [reply(), reply(sent=1.0, times=(0.5, 1.0, 2.5), output=5)]
    found = {tool: {one.name: one.values(two) for one in definitions} for tool, definitions in DEFINITIONS.items()}
    assert found["vllm"]["tpot"] == [(0.25, 1.0), (0.5, 1.0)]
    assert found["vllm"]["itl"] == [(0.25, 1.0), (0.25, 1.0), (0.5, 1.0), (1.5, 1.0)]
    assert found["guidellm"]["inter_token_latency"] == [(0.25, 2.0), (0.5, 4.0)]
    assert found["guidellm"]["time_per_output_token"] == [(1 / 3, 3.0), (0.5, 5.0)]
    assert found["guidellm"]["request_latency"] == [(9.0, 1.0), (8.0, 1.0)]
    assert found["aiperf"]["time_to_second_token"] == [(0.25, 1.0), (0.5, 1.0)]
    weighed = statistics("guidellm", [(0.25, 2.0), (0.5, 4.0)])
    assert weighed == {"mean": 2.5 / 6, "median": 0.5, "p90": 0.5, "p95": 0.5, "p99": 0.5}
    hundred = [(float(place), 1.0) for place in range(1, 101)]
    assert statistics("guidellm", hundred)["p90"] == 90.0 and statistics("guidellm", hundred)["median"] == 50.0
    assert statistics("vllm", hundred)["p90"] == pytest.approx(90.1) and statistics("vllm", []) == {}
    assert reply(output=1).tpot is None and found["genai-perf"]["inter_token_latency"] == [(0.25, 1.0), (0.5, 1.0)]


def test_keys_of_the_environment() -> None:
    assert key_of("A_1", {"A_1": " secret "}, True).headers() == {"Authorization": "Bearer secret"}
    assert not key_of("A", {}, False)
    for variable, text in (("1A", "q7q"), ("A", "q7 q"), ("A", "q7é"), ("A", "q7\x1bq"), ("A", ""), ("A B", "q7q")):
        with pytest.raises(UsageError) as refused:
            key_of(variable, {variable: text}, True)
        assert "q7" not in refused.value.render()


def test_whose_times_rest_on_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_error, "_basis", lambda deployment, prompt: f"basis {deployment}")
    one, two = ("a", 1.0), ("b", 1.0)
    said = known_error.error_notes
    assert said({"x": one, "y": one}) == ["basis: basis a"]  # type: ignore[dict-item]
    assert said({"x": one, "y": two, "z": one}, "this") == [  # type: ignore[dict-item]
        "basis of x, z: basis a", "basis of y: basis b",
        "no measurement of this is on file: how much this adds to the error is not known",
    ]  # fmt: skip


def test_a_plan_without_a_limit_is_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"plan": {"deployment": {}}, "question": {}}))
    with pytest.raises(InferplanError):
        measured.PlanFile(str(path))
