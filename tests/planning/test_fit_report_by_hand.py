"""What fits, and two pools beside a plan, of answers that are written down here: rows and sentences by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inferplan.catalog.assemble import Request
from inferplan.figures import record
from inferplan.planning.plan import Plan
from inferplan.reports import fit as report
from inferplan.reports import plan_apart as apart
from inferplan.traffic.requests import Lengths, Slo
from inferplan.work.parallel import Parallelism


def deployed(gpu: str = "h100", vendor: str = "NVIDIA", engine: str = "vllm", encodes: bool = False) -> Any:
    return SimpleNamespace(
        hardware=SimpleNamespace(name=gpu, vendor=vendor, size_lines=[f"size of {gpu}"]), formats="formats",
        engine=SimpleNamespace(name=engine, logs_cache=True, describe=lambda: f"{engine} 0.33"), warnings=[],
        parallel=SimpleNamespace(devices=2), describe=lambda: f"m on {gpu}", model_lines=["counted"],
        model=SimpleNamespace(encodes=encodes, name="m", max_context=8192, made_from=SimpleNamespace(to_dict=dict)),
    )  # fmt: skip


def memory(**more: Any) -> Any:
    """16 GB of weights and 8 for requests, of 32."""
    found = {
        "weights": 16e9, "adapters": 0.0, "activations": 2e9, "reserve": 1e9, "kv_pool": 8e9, "usable": 32e9,
        "host": None,
        "streamed": 0.0, "kv_per_token": 131072.0, "state_per_sequence": 1000.0,
        "longest_start": lambda tokens: tokens // 16 * 16, "cache_tokens": lambda length: 10 * length,
        "concurrency": lambda length: 49374 / max(length, 1),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def fitting(of: Any = None, **more: Any) -> Any:
    found = {
        "deployment": of or deployed(), "requests": 1234, "longest": 5000, "context": 4096, "footprint": memory(),
        "prices": None, "asked": None, "users": 3, "fewer": {},
        "typed": "org/m",
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def bill(**more: Any) -> Any:
    offer = SimpleNamespace(what="a box", seller="a list", kind="", currency="EUR")
    found = {"units": 1500, "offer": offer, "across": False, "per_hour": 1234.5, "bought": 3000, "line": "line",
             "remarks": ["remark"]}  # fmt: skip
    return SimpleNamespace(**found | more)


def option(gpu: str, quant: str, held: Any = None, **more: Any) -> Any:
    found = {"gpu": gpu, "quant": quant, "fitting": held or fitting(deployed(gpu)), "bill": None, "devices": 2}
    return SimpleNamespace(**found | more)


def cells(row: Any) -> dict[str, str]:
    return {one.label: one.shown for one in row if one.label is not None and one.seen}


@pytest.fixture(autouse=True)
def quality(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "share_kept", lambda model, quant: (0.99, "99%"))
    monkeypatch.setattr(report, "is_own", lambda model, quant: quant in (None, "native"))
    monkeypatch.setattr(report, "floor_line", lambda model, quants, floor: f"floor {floor}" if floor else "")
    monkeypatch.setattr(report, "bill_record", lambda bill: {"units": bill.units})
    monkeypatch.setattr(report, "start_line", lambda deployment: "a start")


def test_an_option_as_a_row() -> None:
    row = report.option_figures(option("h100", "fp8", bill=bill()))
    assert cells(row) == {
        "GPU": "h100", "GPUs": "2", "format": "fp8", "quality kept": "99%", "weights": "16.00 GB",
        "KV pool": "8.000 GB",
        "requests": "1,234", "longest context": "5,000", "per hour": "1,234.50 EUR",
        "price of": "1,500 x a box, a list",
    }  # fmt: skip
    assert record(row)["cost"] == {"units": 1500, "per_hour": 1234.5} and record(row)["engine"] == "vllm"
    bare = report.option_figures(option("h100", "fp8"))
    assert (cells(bare)["per hour"], cells(bare)["price of"], record(bare)["cost"]) == ("", "", None)
    across = bill(across=True)
    across.offer.kind = "spot"
    assert report._bought(across) == ("1,234.50 EUR (spot)", "1,500 x a box across instances, a list")


def test_engines_by_maker() -> None:
    """By maker where it has one engine, else by GPU."""
    some = [option(gpu, "x", fitting(deployed(gpu, vendor, engine))) for gpu, vendor, engine in (
        ("h100", "NVIDIA", "vllm"), ("4090", "NVIDIA", "llama.cpp"), ("mi300x", "AMD", "vllm"), ("mi355x", "AMD",
        "vllm"),
    )]  # fmt: skip
    assert report.engine_notes(some) == ["engine: vllm on h100, AMD; llama.cpp on 4090"]
    assert report.engine_notes(some[2:]) == [] and report.engines_of(some) == "vllm, llama.cpp"
    some[0].fitting = None
    assert report.engine_notes(some) == ["engine: llama.cpp on NVIDIA; vllm on AMD"]
    assert report.device_lines([option("a", "x"), option("a", "y"), option("b", "x")]) == ["size of a", "size of b"]


def test_quality_in_sentences() -> None:
    asked: Any = SimpleNamespace(quality=None, kv=None)
    assert report.quality_notes(None, [option("a", "native")], asked) == []  # type: ignore[arg-type]
    asked.quality = 0.98
    some = [option("a", "native"), option("a", "fp8")]
    assert report.quality_notes(None, some, asked) == [report.QUALITY_NOTE, "floor 0.98"]  # type: ignore[arg-type]


def load(**more: Any) -> Any:
    found = {
        "people": None,
        "users": 1,
        "think_time": 0.0,
        "answer_time": None,
        "rate": None,
        "timed_by": "",
        "held": 1500,
    }
    return SimpleNamespace(**found | more)


def test_the_load_in_a_table() -> None:
    assert report.load_tables(load(), 4096) == []

    def rows(**more: Any) -> list[list[str]]:
        (table,) = report.load_tables(load(**more), 4096)
        return [list(row) for row in table.rows]

    unknown = ["requests/s", "not known from memory: --answer-time 5s, or inferplan plan"]
    held = ["held at once", "1,500 x 4,096 tokens"]
    assert rows(users=2000) == [["requests in flight", "2,000 at every moment"], unknown, held]
    thinks = "2,000; each thinks 2.5 s between an answer and the next request"
    assert rows(users=2000, think_time=2.5)[0] == ["users", thinks]
    assert rows(think_time=2.5) and rows(answer_time=5.0)
    for thinking in (0.0, 2.5):
        assert rows(people=SimpleNamespace(count=9000), think_time=thinking)[0] == ["people", "9,000"]
    assert rows(rate=1234.0, answer_time=5.0)[1] == ["requests/s", "1,234, where an answer takes 5 s"]
    assert rows(rate=0.5, answer_time=5.0, timed_by="a plan")[1][1].endswith("takes 5 s (a plan)")
    assert report.load_record(load(users=7)) == {
        "users": 7, "think_time_s": 0.0, "answer_time_s": None, "requests_per_s": None, "requests_at_once": 1500
    }  # fmt: skip
    assert report.load_record(load(people=1, think_time=2.5))["users"] is None
    assert report.load_record(load(think_time=None))["think_time_s"] == 0.0


def test_formats_side_by_side() -> None:
    """The checkpoint's own first; an empty cell where a format was not tried."""
    some = [option("a", "int8"), option("a", "native", bill=None), option("b", "fp8", devices=1)]
    some[2].fitting = None
    (table,) = report._rest(some, "title")
    assert (table.title, list(table.columns)) == ("without a price on file", ["GPU", "native", "fp8", "int8"])
    assert list(table.rows) == [["a", "2 GPUs, 1,234", "", "2 GPUs, 1,234"], ["b", "", "1 GPU, 0", ""]]
    some[0].bill = bill()
    first, second = report._rest(some, "title")
    assert first.title == "title; the cheapest first" and list(first.columns) == ["GPU", "int8", "per hour", "price of"]
    assert list(first.rows) == [["a", "2 GPUs, 1,234", "1,234.50 EUR", "1,500 x a box, a list"]]
    assert list(second.columns) == ["GPU", "native", "fp8"]
    (alike,) = report._rest([option("a", "fp8"), option("b", "fp8")], "title")
    assert len(alike.rows) == 2 and "KV pool" in alike.columns


def test_first_choices_in_one_line() -> None:
    """An option that is first in two things is one line; the checkpoint's own format comes first."""
    own, other = option("a", "native"), option("b", "fp8")
    lines = report._merged({"cheapest, fp8": other, "fastest, native": own, "smallest, native": own})
    assert [(why, one.gpu) for why, one in lines] == [("fastest; smallest, native", "a"), ("cheapest, fp8", "b")]


def test_prices_in_sentences() -> None:
    lines = report._prices_notes([option("a", "fp8", bill=bill())], "spot", 1)
    assert len(lines) == 2 and "the cheapest spot bill" in lines[1]
    some = report._prices_notes([option("a", "fp8", bill=bill(across=True)), option("b", "x")], "spot", 2)
    assert some[0].startswith("each cell: ") and some[3].startswith("across instances: ") and len(some) == 4
    assert report._record(option("a", "fp8")) != report._record(
        SimpleNamespace(gpu="a", quant="x", fitting=None, reason="y")
    )
    assert report._record(SimpleNamespace(gpu="a", quant="x", fitting=None, reason="y")) == {  # type: ignore[arg-type]
        "gpu": "a", "quant": "x", "fits": False, "reason": "y"
    }  # fmt: skip


def prices(named: bool = False) -> Any:
    return SimpleNamespace(named=named, remarks=lambda names: [f"on {names[0]}"])


def test_the_price_of_one_option() -> None:
    assert report._price_notes(fitting(), bill()) == []
    told = fitting(prices=prices())
    assert report._price_notes(told, bill()) == [
        "price: 1,234.50 EUR per hour, 0.41 per GPU: line", "remark", "on h100"
    ]  # fmt: skip
    assert report._price_notes(told, bill(bought=1500))[0] == "price: 1,234.50 EUR per hour: line"
    assert report._price_notes(told, None) == ["on h100"]
    assert report._price_notes(fitting(prices=prices(named=True)), None)[1] == (
        "no price: h100 is in none of the lists that --prices names"
    )


def test_what_vllm_logs() -> None:
    """The longest context, of whole pages: 5,000 of 8,192 are 4,992. Of 49,374 tokens that is 9.89 times; 4,096 of
    what is asked for, 12.05 times."""
    assert report._log(fitting()) == {
        "max_model_len": 4992, "kv_cache_tokens": 49920, "concurrency": 49374 / 4992,
        "concurrency_at_context": 49374 / 4096,
    }  # fmt: skip
    assert report._log(fitting(longest=0.5))["max_model_len"] == 0
    endless = fitting(longest=1e9)
    assert report._log(endless)["max_model_len"] == 8192
    endless.deployment.model.max_context = None
    assert report._log(endless)["max_model_len"] == 4096
    assert report.log_lines(fitting(), " of h100") == [
        "vLLM would log of h100:", "  GPU KV cache size: 49,920 tokens",
        "  Maximum concurrency for 4,992 tokens per request: 9.89x; with --max-model-len 4096: 12.05x",
    ]  # fmt: skip
    assert report.log_lines(fitting(context=4992))[2].endswith("9.89x")
    silent = fitting()
    silent.deployment.engine.logs_cache = False
    assert report.log_lines(silent) == report.log_lines(fitting(deployed(encodes=True))) == []


def test_what_a_device_holds() -> None:
    kept = [["KV cache per token, on one device", "131.1 kB"], ["state per sequence, on one device", "1.000 kB"]]
    rest = [["requests of 4,096 tokens", "1,234"], ["longest context of one request", "5,000 tokens"]]
    assert report._capacity(fitting(), None, None) == [*kept, *rest]
    full = report._capacity(fitting(deployed(encodes=True), footprint=memory(streamed=2e9)), "fp8", 27)
    assert full == [
        *rest, ["quality kept", "99%"], ["weights in host memory, all GPUs", "2.000 GB"],
        ["most layers that fit on the GPU (--gpu-layers)", "27"],
    ]  # fmt: skip
    table = report._memory(memory(adapters=1e9), "title", True)
    assert list(table.rows) == [
        ["weights", "16.00 GB", "50.0%"], ["slots of LoRA adapters", "1.000 GB", "3.1%"], ["activations",
        "2.000 GB", "6.2%"],
        ["runtime reserve", "1.000 GB", "3.1%"], ["left for KV cache and state", "8.000 GB", "25.0%"],
        ["usable", "32.00 GB", "100.0%"],
    ]  # fmt: skip
    assert [row[0] for row in report._memory(memory(), "title", False).rows][3] == "left"


def test_fewer_that_do_not_hold_it() -> None:
    def said(**more: Any) -> list[str]:
        told = {"tp": None, "offload": SimpleNamespace(any=False), "line": lambda *words, **quant: f"{words} {quant}"}
        return report._fewer_do_not(fitting(asked=SimpleNamespace(**told | more), fewer=fewer))

    fewer: dict[str, int] = {}
    line = "('m', '--have 2x-h100') {'quant': None}"
    assert said() == [f"2 is the fewest that hold it in this format; what 2 hold, in every format: {line}"]
    fewer = {"fp8": 1500, "int4": 7}
    assert said()[0].startswith("2 is the fewest that hold it in this format (in fp8 1,500, in int4 7); what 2 hold")
    assert said(tp=2) == said(offload=SimpleNamespace(any=True)) == report._fewer_do_not(fitting()) == []
    single = fitting(asked=SimpleNamespace(tp=None, offload=SimpleNamespace(any=False)))
    single.deployment.parallel.devices = 1
    assert report._fewer_do_not(single) == []


def test_one_option_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "bill_of", lambda fitting, prices: bill())
    monkeypatch.setattr(report, "most_layers", lambda footprint: 27 if footprint.batch == 3.0 else 0)
    monkeypatch.setattr(report, "replace", lambda value, **new: SimpleNamespace(**vars(value) | new))
    monkeypatch.setattr(report, "of_people", lambda report, asked: report)
    bare = report.memory_report(fitting())
    assert [table.title for table in bare.tables] == [
        "m on h100: memory of one device (vllm 0.33 defaults)",
        "capacity",
    ]
    assert bare.notes[:3] == ["counted", "size of h100", "a start"] and bare.notes[3] == "vLLM would log:"
    nothing = ("load", "most_gpu_layers", "host", "cost")
    assert [bare.record[name] for name in nothing] == [None] * 4 and bare.record["log"]["max_model_len"] == 4992
    there = memory(weights=4e9, deployment=deployed("a host"))
    asked = load(quant="fp8", quality=0.98, kv=None, tp=1, users=7, request=lambda model, gpu: f"{model} on {gpu}")
    timed: list[Any] = []
    monkeypatch.setattr(report, "tpot_of", lambda *words: timed.append(words) or (0.0125, "measured"))
    full = report.memory_report(fitting(footprint=memory(host=there), asked=asked, prices=prices()))
    assert (
        next(table.title for table in full.tables) == "the load"
        and full.tables[2].title == "memory of the host, a host"
    )
    assert full.record["most_gpu_layers"] == 27 and full.record["host"]["weights_bytes"] == 4e9
    assert full.record["load"]["users"] == 7 and full.record["cost"]["units"] == 1500 and full.notes[:2] == [
        "TPOT: predicted (measured constants); its error: inferplan estimate", "floor 0.98"
    ]  # fmt: skip
    ((request, _, whose, tokens),) = timed
    assert (request, whose, tokens) == ("org/m on h100", asked, 4096)
    assert full.record["tpot_s"] == 0.0125 and bare.record["tpot_s"] is None
    step = ["time per output token (TPOT), 3 requests of 4,096 tokens at once", "12.50 ms"]
    assert list(full.tables[-1].rows)[-1] == step and step not in bare.tables[-1].rows
    assert report._seconds(fitting(asked=asked, context=2)) == (None, "")
    encoder = report.memory_report(fitting(deployed(encodes=True)))
    assert encoder.record["log"] is None and "left" in [row[0] for row in encoder.tables[0].rows]


# --- two pools beside a plan


def pooled(**more: Any) -> Any:
    """Two servers for prompts and five that decode, of 64 sequences each."""
    tier = SimpleNamespace(max_sequences=32)
    of = SimpleNamespace(
        parallel=Parallelism(tp=4),
        engine=SimpleNamespace(defaults=SimpleNamespace(tier=lambda hardware: tier)),
        hardware="",
    )
    found = {
        "deployment": of, "request": Request(model="m", gpu="h100", quant="fp8", parallel=Parallelism(tp=4)),
        "prompts": None,
        "pools": (2, 5), "prompt_budget": None, "purchases": [], "cost": 60.0,
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def demand(**more: Any) -> Any:
    found: dict[str, Any] = {
        "prompt": Lengths(mean=1000.0), "output": Lengths(kind="lognormal", mean=200.0, spread=0.5, most=900),
        "rate": 12.3456,
        "arrivals": "poisson", "burstiness": 1.0, "hit_rate": 0.0, "prefix": SimpleNamespace(turns=1), "classes": (),
    }  # fmt: skip
    found |= dict.fromkeys(("trace", "sessions", "adapters", "structured", "own", "media"))
    return SimpleNamespace(**found | more)


def test_the_command_that_tries_two_pools() -> None:
    plain = (
        "inferplan simulate m --gpu h100 --quant fp8 --tp 4{} --rate 12.35 --prompt 1000 --output lognormal:200:0.5:900"
    )
    assert " ".join(apart._simulate(pooled(), demand())) == plain.format("")
    some = demand(hit_rate=0.25, arrivals="gamma", burstiness=0.5)
    found = apart._simulate(pooled(prompt_budget=8192), some)
    assert " ".join(found) == plain.format(
        " --prefill-max-num-batched-tokens 8192 --arrivals gamma --burstiness 0.5 --prefix-hit-rate 0.25"
    )
    assert "--burstiness" not in apart._simulate(pooled(), demand(arrivals="constant"))
    other = SimpleNamespace(
        deployment=SimpleNamespace(parallel=Parallelism(tp=1, pp=2)),
        request=Request(model="m", gpu="l4", parallel=Parallelism(pp=2)),
    )
    unlike = " ".join(apart._simulate(pooled(prompts=other), demand()))
    assert "--prefill-gpu l4 --prefill-quant native --prefill-tp 1 --prefill-pp 2" in unlike
    ideal = pooled(request=Request(model="m", gpu="h100", parallel=Parallelism(tp=4), ideal=True))
    assert "--ideal" in apart._simulate(ideal, demand()) and "--quant" not in apart._simulate(ideal, demand())
    engine = pooled(request=Request(model="m", gpu="h100", engine="sglang"))
    assert "--engine sglang" in " ".join(apart._simulate(engine, demand()))


def test_loads_that_options_do_not_say() -> None:
    for more in ({"rate": None}, {"media": 1}, {"own": 1}, {"classes": (1,)}, {"prefix": SimpleNamespace(turns=2)},
                 {"prompt": Lengths(mean=1000.5)}, {"output": Lengths(kind="empirical", values=(1, 2))}):  # fmt: skip
        assert apart._simulate(pooled(), demand(**more)) == []
    spread = SimpleNamespace(parallel=Parallelism(tp=2, dp=2, spread_dense=True))
    assert apart._simulate(pooled(deployment=spread), demand()) == []
    assert apart._simulate(pooled(request=Request(model="m", gpu="h100", power_cap=300.0)), demand()) == []


def test_what_tries_two_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        apart, "flags_of", lambda option, question: SimpleNamespace(max_num_batched_tokens=2048, max_num_seqs=64)
    )
    question: Any = SimpleNamespace(demand=demand(), slo=Slo(ttft=0.5, e2el=9.0, percentile=95.0))
    said = apart._tried(SimpleNamespace(option=pooled()), question)  # type: ignore[arg-type]
    assert said.startswith("simulate them: inferplan simulate m --gpu h100") and said.endswith(
        " --prefill-replicas 2 --decode-replicas 5 --max-num-batched-tokens 2048 --max-num-seqs 64 "
        "--prefill-max-num-seqs 32 --ttft 0.5s --e2e 9s"
    )
    one = apart._tried(SimpleNamespace(option=pooled(pools=None)), question)  # type: ignore[arg-type]
    assert " --prefill-replicas 1 --decode-replicas 1 " in one
    question.demand = demand(rate=None)
    assert apart._tried(SimpleNamespace(option=pooled()), question) == (  # type: ignore[arg-type]
        "simulate --prefill-replicas 2 --decode-replicas 5 with this load tries them"
    )


def sold(what: str, units: int, host: Any = None) -> Any:
    return SimpleNamespace(units=units, offer=SimpleNamespace(describe=lambda: what, host=host))


def test_what_is_bought_for_two_pools() -> None:
    two = pooled(purchases=[sold("a box", 1000), sold("another", 2), sold("a box", 500)])
    assert apart._bought(two, pooled(purchases=[sold("a box", 1)])) == "1,500 x a box and 2 x another"
    single = pooled(purchases=[sold("a GPU", 1, host="a host")])
    assert apart._bought(two, single).endswith(
        "and 2 x another; the cache crosses a link, which is not known between GPUs sold one by one"
    )


def plan(**more: Any) -> Any:
    option = SimpleNamespace(pools=None, cost=60.0)
    found: dict[str, Any] = {
        "searched": SimpleNamespace(structures_apart=3), "option": option, "apart": None,
        "apart_at_least": SimpleNamespace(cost=50.0), "best": SimpleNamespace(option=option), "as_predicted": None,
        "question": SimpleNamespace(slo=Slo(ttft=0.5, percentile=95.0)),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def test_two_pools_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "money", lambda option: f"{option.cost:g} EUR/h")
    for name in ("shape", "quants", "_bought", "_tried"):
        monkeypatch.setattr(apart, name, lambda *_, name=name: name)
    what = "prompts and decodes on separate pools"
    assert apart.apart_line(plan(searched=SimpleNamespace(structures_apart=0))) == ""
    assert apart.apart_line(plan(option=SimpleNamespace(pools=(1, 2), cost=60.0))) == ""
    assert apart.apart_line(plan(apart_at_least=None)) == f"{what}: no tried option keeps the limits"
    bound = "at least {} EUR/h in closed form, not simulated"
    no_less = f"{what}: no simulated layout that costs less keeps the limits ({bound.format(50)})"
    assert apart.apart_line(plan()) == f"{no_less}; one pool by the same prediction: 60 EUR/h"
    one = SimpleNamespace(option=SimpleNamespace(cost=70.0, devices=8))
    assert apart.apart_line(plan(as_predicted=one)) == f"{no_less}; one pool by the same prediction: 70 EUR/h"
    for least, more in ((60.0, {}), (61.0, {}), (70.0, {"as_predicted": one})):
        dear = plan(apart_at_least=SimpleNamespace(cost=least), **more)
        assert apart.apart_line(dear) == (
            f"{what} would not cost less: {bound.format(f'{least:g}')}; one pool by the same prediction: "
            f"{70 if more else 60} EUR/h"
        )
    for confidence, what_keeps in ((0.5, "best"), (0.8, "other")):
        both = SimpleNamespace(confidence=confidence, best="best", other="other")
        assert Plan.as_predicted.fget(both) == what_keeps  # type: ignore[attr-defined]
    nearly = plan(apart_at_least=SimpleNamespace(cost=69.0), as_predicted=one)
    assert "would not cost less" not in apart.apart_line(nearly)
    nothing = SimpleNamespace(pools=None, cost=0.0)
    free = plan(apart_at_least=SimpleNamespace(cost=0.0), option=nothing, best=SimpleNamespace(option=nothing))
    assert "would not cost less" in apart.apart_line(free)
    found = SimpleNamespace(option=SimpleNamespace(cost=40.0, devices=6), achieved={"ttft": 0.25})
    assert apart.apart_line(plan(apart=found, as_predicted=one)) == (
        f"{what}: 40 EUR/h (6 GPUs) for shape, in quants, TTFT p95 250 ms (simulated, if the prediction is right); one "
        "pool by the same prediction: 70 EUR/h (8 GPUs) for shape, in quants, 30.00 more; to buy: _bought; _tried"
    )
