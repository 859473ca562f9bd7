"""Small reports (sweeps, failures, sessions, classes, prices, anchors, recipes, masks, beams, budgets), by hand."""

from __future__ import annotations

from collections import Counter
from math import inf, log, nan
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.answers.cost import Energy, Rates
from inferplan.columns import Block
from inferplan.errors import InfeasibleError
from inferplan.figures import Figure, labelled_texts, record
from inferplan.reports import (
    anchoring,
    beams,
    budgets,
    classes,
    failures,
    fit_models,
    price_update,
    recipe,
    sessions,
    shown,
    structured,
    sweep,
)
from inferplan.reports import cost as costs
from inferplan.table import Report, Table
from inferplan.traffic.requests import Slo
from tests.cases import for_each


def cells(row: Any) -> dict[str, str]:
    return {one.label: one.shown for one in row if one.label is not None and one.seen}


# --- sweeps


def points(**more: Any) -> Any:
    """Two batches of a model on one GPU."""
    columns = {
        "model": np.array(["m", "m"]), "gpu": np.array(["h100", "h100"]), "batch": np.array([1, 2]),
        "ttft_s": np.array([0.25, 0.5]), "tpot_s": np.array([0.02, 0.04]), "status": np.array(["ok", "memory"]),
        "output_tokens_per_s": np.array([50.0, 1234.5]), "output_tokens_per_s_per_device": np.array([25.0, 600.0]),
    }  # fmt: skip
    return {name: column for name, column in (columns | more).items() if column is not None}


def objects(column: Any) -> Any:
    """Texts as columns hold them."""
    return column.astype(object) if column.dtype.kind == "U" else column


def swept(monkeypatch: pytest.MonkeyPatch, *blocks: Any, **refused: int) -> Report:
    monkeypatch.setattr(sweep, "load_model", lambda name: SimpleNamespace(encodes=name.startswith("encoder")))
    made = [Block(shape=(2,), columns={name: objects(column) for name, column in one.items()}) for one in blocks]
    result: Any = SimpleNamespace(columns=SimpleNamespace(blocks=made), impossible=refused)
    return sweep.sweep_report(result)


def test_points_of_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    found = swept(monkeypatch, points(), memory=3)
    (table,) = found.tables
    assert table.title == "2 points" and list(table.columns) == [
        "batch", "TTFT alone", "TPOT", "tokens/s", "tokens/s/device", "status"
    ]  # fmt: skip
    assert table.right == {
        "TTFT alone",
        "TPOT",
        "tokens/s",
        "tokens/s/device",
        "batch",
        "prompt_tokens",
        "output_tokens",
    }
    assert list(table.rows) == [
        ["1", "250.0 ms", "20.00 ms", "50.0", "25.0", "ok"], ["2", "-", "-", "-", "-", "memory"]
    ]  # fmt: skip
    assert ["2", "-", "-", "-", "-", "memory"] in table.rows and ["3"] not in table.rows and len(table.rows) == 2
    assert found.notes == [
        "3 points cannot exist: memory",
        "static batches: TTFT of the batch alone, no server, no queue; tokens are output tokens of all replicas",
    ]


def test_points_of_other_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing varies; runs; models that generate nothing, alone and beside others; what could not be priced."""
    alone = swept(monkeypatch, points(batch=np.array([1, 1])))
    assert list(alone.tables[0].columns)[:2] == ["model", "gpu"]
    run = swept(monkeypatch, points(verdict=np.array(["stable", "stable"])))
    assert "TTFT at the server" in run.tables[0].columns and run.notes[0].startswith("simulated closed loops")
    none = np.array([nan, nan])
    encoder = swept(monkeypatch, points(model=np.array(["encoder", "encoder"]), tpot_s=none))
    assert "requests/s" in encoder.tables[0].columns and next(iter(encoder.tables[0].rows))[2] == "-"
    assert encoder.notes == [
        "static batches: TTFT of the batch alone, no server, no queue; requests are those of all replicas"
    ]
    mixed = swept(monkeypatch, points(), points(model=np.array(["encoder-b", "encoder-a"])))
    assert list(mixed.tables[0].columns)[:2] == ["model", "batch"] and "tokens/s" in mixed.tables[0].columns
    assert mixed.notes[1] == "encoder-a, encoder-b: nothing is generated, and a request counts as one token"
    bare = {name: column for name, column in points().items() if name in ("model", "gpu", "batch")}
    some = swept(monkeypatch, points(), bare | {"status": np.array(["x", "x"])})
    assert some.tables[0].title == "2 points"


# --- failures


def stretch(**more: Any) -> Any:
    found = {
        "start": 10.0, "stop": inf, "replicas": 2.5, "arrived": 1234, "latencies": {"ttft": 0.25, "tpot": nan,
        "e2el": inf},
        "within": 0.875, "anew": 1500, "most": 2500, "name": "after",
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def outages(**more: Any) -> Any:
    """Three replicas are lost at 60 s, back at 90; the backlog is gone at 100."""
    lost = [SimpleNamespace(anew=5, lost=[0]), SimpleNamespace(anew=7, lost=[1, 2])]
    episode = SimpleNamespace(outages=lost, at=60.0, back=90.0, over=100.0, peak=1500, level=12.5)
    result = SimpleNamespace(
        slo=Slo(ttft=0.5, percentile=95.0), counts={}, basis="measured", conditions={
            "deployment": "m", "failures": {"mode": "cut", "restart_s": 30.0}, "routing": "random", "calibration": "c"},
    )  # fmt: skip
    found = {
        "result": result, "stretches": [stretch(), stretch(arrived=0)], "recovered": True, "level": 12.5,
        "limited": True,
        "episodes": [episode], "bins": lambda count: [stretch(start=55.0)] * (count // 16),
        "stretch": lambda name, span: SimpleNamespace(within=0.5 if span == (60.0, 90.0) else 0.0),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def test_time_around_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    row = failures._stretch(outages(), stretch(), "after")
    assert cells(row) == {
        "requests that arrive": "after", "replicas": "2.50", "requests": "1,234", "TTFT p95": "250 ms",
        "within limits": "87.50%", "restarted": "1,500", "most in the fleet": "2,500",
    }  # fmt: skip
    found = record(row)
    assert (found["start_s"], found["stop_s"], found["tpot_s"], found["e2el_s"]) == (10.0, None, None, None)
    free = outages()
    free.result.slo = Slo(percentile=99.0)
    shown = cells(failures._stretch(free, stretch()))
    assert "TPOT p99" in shown and shown["TPOT p99"] == "-" and "requests that arrive" not in shown
    assert cells(failures._bin(outages(), stretch(start=55.0)))["from the failure"] == "-5 s"
    assert [failures._time(value) for value in (nan, inf, 0.5)] == ["-", "never", "500 ms"]


def test_what_failures_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    row = failures._episode(outages(), outages().episodes[0])
    assert cells(row) == {
        "at": "60.00 s", "replicas lost": "3", "restarted": "12", "back after": "30.00 s",
        "backlog gone after": "40.00 s",
        "most in the fleet": "1,500 (12.5 before, mean)",
    }  # fmt: skip
    assert record(row)["back_s"] == 90.0 and record(row)["within_while_missing"] == 0.5
    table = failures.failure_table([("a", outages()), ("b", outages())], "policy")
    assert [line[0] for line in table.rows] == ["a", "b"] and "within meanwhile" in table.columns
    endless = outages()
    endless.episodes[0].over = inf
    assert cells(failures._episode(endless, endless.episodes[0]))["backlog gone after"] == "not in this run"
    monkeypatch.setattr(failures, "anew_late", lambda seen: (1500, 7))
    notes = failures._notes(outages())
    assert notes[0].startswith("a replica that fails is gone at once") and "30.00 s later; random routing" in notes[0]
    assert notes[3] == "1,500 requests restarted; 7 of them miss a limit" and notes[4] == "basis: measured, constants c"
    assert len(failures._notes(outages(limited=False))) == 4
    monkeypatch.setattr(failures, "anew_late", lambda seen: (0, 0))
    assert len(failures._notes(outages())) == 4
    monkeypatch.setattr(failures, "Outages", lambda result: result)
    seen = outages()
    seen.conditions, seen.slo, seen.counts, seen.basis = seen.result.conditions, seen.result.slo, {}, "measured"
    whole = failures.failure_report(seen)
    assert [len(table.rows) for table in whole.tables] == [1, 1, 2] and len(whole.record["timeline"]) == 25
    assert whole.record["began_anew"] == 0 and whole.record["slo"] == {"ttft_s": 0.5} and len(whole.rows) == 2


# --- sessions and classes


def test_sessions_of_a_run() -> None:
    """A tenth of the mean is not sure."""
    times = {"mean": 60.0, "p50": 0.5, "p90": None, "p95": 1.0, "p99": 2.0}
    amounts = {"mean": 1234.5, "p50": None, "p90": 1.0, "p95": 2.0, "p99": 3.0}
    kinds = [{"name": "chat", "duration_s": times}]
    of: dict[str, Any] = {
        **dict.fromkeys(sessions._TIMES, times), **dict.fromkeys(sessions._AMOUNTS, amounts), "kinds": kinds,
        "finished": 1200, "cancelled": 0, "refused": 34, "begun": 1300, "in_figures": 1100, "sessions_per_h": 3600.0,
        "duration_mean_error_s": 6.0, "within_limit": 0.875, "limit_s": 90.0, "in_system_mean": 21.66,
        "cached_share": 0.5,
    }  # fmt: skip
    spread, whole = sessions.session_tables(of)
    assert next(iter(spread.rows)) == ["duration", "60.00 s", "500.0 ms", "-", "1.000 s", "2.000 s"]
    assert list(spread.rows)[4] == ["calls", "1,234", "-", "1", "2", "3"] and len(spread.rows) == 7
    assert list(whole.rows) == [
        ["sessions", "1,300 begun: 1,200 finished, 34 refused"], ["in the figures", "1,100; mean duration ±10.0%"],
        ["sessions/h that finish", "3,600"], ["under way at a time, mean", "21.7"],
        ["prompt tokens found in the cache", "50.0%"], ["within the limit", "87.5% in 90.00 s"],
    ]  # fmt: skip
    few = of | {
        "kinds": [*kinds, {"name": "batch", "duration_s": times}],
        "within_limit": None,
        "finished": 0,
        "refused": 0,
    }
    spread, whole = sessions.session_tables(few)
    assert [row[0] for row in spread.rows][4:6] == ["duration, chat", "duration, batch"]
    assert next(iter(whole.rows))[1] == "1,300 begun: none ended" and len(whole.rows) == 5
    for unsure in ({"duration_mean_error_s": None}, {"duration_s": times | {"mean": None}}):
        assert list(sessions.session_tables(of | unsure)[1].rows)[1][1] == "1,100"


def kind(**more: Any) -> dict[str, Any]:
    at = {"mean": 0.25, "p95": 0.5}
    found: dict[str, Any] = {
        "name": "chat", "slo": {"ttft_s": 0.5, "tpot_s": 0.02}, "percentile": 95.0, "ttft_s": at, "tpot_s": at,
        "e2el_s": at, "requests": {"arrived": 1234}, "priority": 0, "weight": 1.5, "wait_mean_s": 0.01,
        "slo_attained": 0.875, "goodput_requests_per_s": 12.345, "meets": True, "overloaded": False,
        "at_percentile": {"ttft_s": 0.5, "tpot_s": 0.02},
    }  # fmt: skip
    return found | more


def test_classes_of_a_run() -> None:
    latency, limits = classes.class_tables([kind()])
    assert list(latency.rows) == [
        ["chat", "TTFT", "250.0 ms", "500.0 ms", "p95 < 500 ms"], ["", "TPOT", "250.0 ms", "500.0 ms", "p95 < 20.0 ms"],
        ["", "end to end", "250.0 ms", "500.0 ms", ""],
    ]  # fmt: skip
    assert list(limits.rows) == [["chat", "1,234", "0", "1.5", "10.00 ms", "87.5%", "12.35", "yes"]]
    assert next(iter(classes.class_tables([kind(meets=False)])[1].rows))[-1] == "no"


def test_classes_that_miss_their_limits() -> None:
    assert classes.limits_by_class([kind(), kind(meets=None)]) == "every class meets its limits"
    assert classes.limits_by_class([kind(meets=None)]) == "none of them has limits"
    late = kind(meets=False, name="a", at_percentile={"ttft_s": 0.51, "tpot_s": None})
    full = kind(meets=False, name="b", overloaded=True)
    assert classes.limits_by_class([kind(), late, full]) == (
        "a misses TTFT p95 510.0 ms (limit 500 ms), TPOT p95 - (limit 20.0 ms); b misses its limits: its queue grows"
    )
    assert classes._missed(kind(at_percentile={"ttft_s": 0.5, "tpot_s": 0.021})) == [
        "TPOT p95 21.00 ms (limit 20.0 ms)"
    ]  # fmt: skip


# --- prices, anchors, recipes


def batch_cost(**more: Any) -> Any:
    """20 requests/s of 100 tokens, on a device that is busy half of the time."""
    load = SimpleNamespace(output=100.0, batch=8.0, prompt=512.0)
    model = SimpleNamespace(encodes=False)
    result = SimpleNamespace(load=load, deployment=SimpleNamespace(model=model), ttft=0.25, tpot=0.02,
                             request_rate=20.0)  # fmt: skip
    found = {"result": result, "asked": SimpleNamespace(utilisation=0.5), "largest": False}
    return SimpleNamespace(**found | more)


def test_what_is_served_of_a_batch() -> None:
    one = batch_cost()
    assert cells(costs._service(one)) == {
        "requests per second": "10.00", "output tokens per second": "1,000", "busy": "50% of the time",
        "TTFT of the batch alone": "250 ms", "each further token (TPOT)": "20.0 ms",
    }  # fmt: skip
    found = record(costs._service(one))
    assert (found["requests_per_s"], found["output_tokens_per_s"], found["tpot_s"]) == (10.0, 1000.0, 0.02)
    one.result.load.output = 1.0
    assert record(costs._service(one))["tpot_s"] is None and "TPOT" not in " ".join(cells(costs._service(one)))
    one.result.deployment.model.encodes = True
    assert record(costs._service(one))["output_tokens_per_s"] is None


@for_each("volume, verdict, per_second", [(50.0, "50% of capacity", 2.0), (300.0, "3.0 x capacity: the API", None)])
def test_from_when_on_a_bill_is_less(volume: float, verdict: str, per_second: float | None) -> None:
    """Of 100 requests a month that it carries."""
    cost: Any = SimpleNamespace(
        break_even=lambda api: volume, break_even_rate=lambda api: 2.0, capacity_per_month=100.0,
        rates=SimpleNamespace(requests=1.0, prompt=10.0, output=10.0),
    )  # fmt: skip
    api: Any = SimpleNamespace(input=1.0, output=2.0)
    row = costs._break_even(cost, api)
    (told,) = cells(row).values()
    found = record(row)
    assert verdict in told and found["break_even_requests_per_s"] == per_second
    assert (found["no_break_even"] is None) is (per_second is not None)


def test_prices_that_changed() -> None:
    def sold(price: float, **more: Any) -> Any:
        found = {"gpu": "h100", "name": "box", "gpus": 8, "term": "reserved", "length": "1 year", "per_hour": price}
        return SimpleNamespace(**found | more)

    def change(before: Any, after: Any) -> Any:
        return SimpleNamespace(before=before, after=after, listing="l")

    came, went = change(None, sold(2.0)), change(sold(3.0, name="", length=""), None)
    assert cells(price_update._row(came)) == {
        "list": "l", "GPU": "h100", "instance": "box", "GPUs": "8", "term": "reserved, 1 year", "old": "-",
        "new": "2.00"
    }  # fmt: skip
    assert cells(price_update._row(went))["term"] == "reserved" and cells(price_update._row(went))["instance"] == ""
    assert record(price_update._row(went))["new_per_hour"] is None
    both = change(sold(3.0), sold(2.5))
    listing = SimpleNamespace(name="l", provider="p", date="2026-01-01")
    stored: Any = SimpleNamespace(
        listing=listing, path="x.yaml", replaced=True, changes=[came, went, both, both], unknown=["odd", "older"]
    )
    whole = price_update.updated_report([stored])
    assert whole.notes == [
        "l (p, 2026-01-01): in place of the list of that name; 2 prices changed, 1 new, 1 gone; stored as x.yaml",
        "l: not on file as GPUs: odd, older",
    ]
    assert len(whole.tables[0].rows) == 4 == len(whole.rows)
    stored.replaced, stored.changes, stored.unknown = False, [], []
    bare = price_update.updated_report([stored])
    assert bare.tables == [] and bare.notes[0].startswith("l (p, 2026-01-01): a new list; 0 prices")


def test_ingredients_of_a_recipe() -> None:
    first = {
        "ingredient": "base",
        "output_tokens_per_s_per_device": 1234.5,
        "tpot_s": 0.02,
        "e2el_s": 2.0,
        "batch": 1000.0,
    }
    second = first | {
        "ingredient": "fp8", "throughput_factor": 1.5, "shapley_throughput_factor": 1.25,
        "smallest_throughput_factor": 1.125,
        "largest_throughput_factor": 2.0, "tpot_factor": 0.5,
    }  # fmt: skip
    deployment = SimpleNamespace(
        model=SimpleNamespace(name="m"),
        hardware=SimpleNamespace(name="h100"),
        calibration=SimpleNamespace(basis="roofline", note=""),
    )
    output = SimpleNamespace(average=200.0, kind="fixed")
    result: Any = SimpleNamespace(
        rows=lambda: [first, second], steps=lambda: [("a", SimpleNamespace(rate=1.0)), ("b",
        SimpleNamespace(rate=2345.6))],
        load=SimpleNamespace(users=64, prompt=1000.0, output=output), total=1.5, baseline="b",
        base=SimpleNamespace(deployment=deployment),
    )  # fmt: skip
    whole = recipe.recipe_report(result)
    assert list(whole.tables[0].rows) == [
        ["base", "1,234", "", "", "", "20.0 ms", "", "2.00 s", "1,000"],
        ["fp8", "1,234", "x 1.5", "x 1.25", "1.12 to 2", "20.0 ms", "x 0.5", "2.00 s", "1,000"],
        ["all together", "2,346", "x 1.5", "", "", "", "", "", ""],
    ]
    assert whole.tables[0].title == "m on h100: 64 users, 1000 tokens in, 200 out (fixed)"
    assert whole.notes[1:] == [recipe.IDEAL_NOTE]
    deployment.calibration.basis = "measured"
    assert len(recipe.recipe_report(result).notes) == 1
    deployment.calibration.note = "carried from another device"
    assert recipe.recipe_report(result).notes[1:] == ["carried from another device"]


def anchor(**more: Any) -> Any:
    """TTFT twice and half as long as predicted; the anchor takes in a factor of 1.5."""

    def row(ttft: Any, tpot: Any) -> Any:
        return SimpleNamespace(
            ttft_ln_ratio=ttft, tpot_ln_ratio=tpot, users=4.0, prompt=1000.0, output=128.5, model_dump=lambda: {"a": 1},
            load=SimpleNamespace(parallel=SimpleNamespace(describe=lambda: "tp2")),
        )  # fmt: skip

    errors = {"ttft": [log(2.0), -log(2.0), 0.0], "tpot": [0.1]}
    found = {
        "rows": [row(log(2.0), None), row(log(0.5), 0.0)], "process": SimpleNamespace(clip=log(1.5)),
        "measured": lambda metric: (None, np.array(errors[metric])),
        "system": SimpleNamespace(describe=lambda: "m on h100", model_dump=lambda exclude_none: "system"),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def test_runs_of_an_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchoring, "left_over", lambda anchor, metric: (0.5, 0.25) if metric == "ttft" else None)
    found: Any = SimpleNamespace(anchor=anchor(), left_out=[("row 3", "it failed")])
    whole = anchoring.anchor_report(found, "a.yaml", ["above"])
    assert list(whole.tables[0].rows) == [
        ["4", "1000", "128.5", "tp2", "x 2.000", "-"], ["4", "1000", "128.5", "tp2", "x 0.500", "x 1.000"]
    ]  # fmt: skip
    assert whole.notes[0] == "TTFT: mean error 50.0% as predicted, 25.0% with each run corrected by the others"
    assert whole.notes[1].startswith("TTFT of 2 runs is off by more than x 1.50 and counts as that")
    assert whole.notes[2:] == ["above", "left out: row 3: it failed", "2 runs written; use them with --anchor a.yaml"]
    assert whole.record["mean_error"] == {"ttft": {"predicted": 0.5, "corrected": 0.25}, "tpot": None}
    exact = anchor(measured=lambda metric: (None, np.array([log(1.5)])))
    assert anchoring._clipped("ttft", exact) == ""


def test_the_host_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchoring, "fields", lambda host: [SimpleNamespace(name="step"), SimpleNamespace(name="layer")])
    run = SimpleNamespace(where="row 1", measured=0.1, predicted=0.09, kernels=0.05)
    found: Any = SimpleNamespace(
        host=SimpleNamespace(step=0.001, layer=2.5e-6),
        runs=[run],
        times=1.234,
        share=0.5,
        system="s",
        left_out=[("r", "w")],
    )
    whole = anchoring.host_report(found, ["above"])
    assert list(whole.tables[0].rows) == [["row 1", "100.0 ms", "90.00 ms", "50.00 ms"]]
    options = "1.23 times the host on file: --host-step 1000us --host-layer 2.5us"
    assert whole.notes == [options, "above", "left out: r: w"]
    found.share = 0.49
    assert anchoring.host_report(found, []).notes[1].startswith("the host takes 49% of these first tokens")


def test_runs_to_measure() -> None:
    load = SimpleNamespace(users=4.2, prompt=1000.0, output=128.0, parallel=None)

    def suggested(server: str = "serve", benchmark: str = "bench", note: str = "") -> Any:
        return SimpleNamespace(
            load=load, division="tp2", server=server, benchmark=benchmark, result="r.json", note=note
        )

    found: Any = SimpleNamespace(
        runs=[suggested(), suggested("", "", "by hand"), suggested(), suggested("", "bench", "no server")],
        fit="fit it",
        before={"ttft": (0.5, 2.0), "tpot": (0.8, 1.25)}, after={"ttft": (0.75, 1.5), "tpot": (0.9, 1.1)}, loads=9,
        measured=3, dropped=2, system=anchor().system,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchoring, "asdict", lambda parallel: dict.fromkeys(anchoring.DEGREES, 7))
        whole = anchoring.suggestion_report(found)
    assert whole.notes == [
        "server of 1, 3: serve", "server of 4: no server", "run 1: bench", "run 2: by hand", "run 3: bench",
        "run 4: bench",
        "then: fit it",
        "80 % band, mean over 9 loads, in addition to 3 measured runs: TTFT x 0.50 to 2.00 before, x 0.75 to 1.50 "
        "after, TPOT x 0.80 to 1.25 before, x 0.90 to 1.10 after (docs/anchors.md)",
        "2 loads left out: beyond memory, slots or context",
    ]  # fmt: skip
    assert next(iter(whole.tables[0].rows)) == ["1", "4", "1000", "128", "tp2", "r.json"]
    assert whole.record["runs"][1]["note"] == "by hand" and whole.record["runs"][0]["note"] is None
    assert whole.record["runs"][0]["tp"] == 7
    found.measured = found.dropped = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchoring, "asdict", lambda parallel: dict.fromkeys(anchoring.DEGREES, 7))
        bare = anchoring.suggestion_report(found).notes
    assert bare[-1].startswith("80 % band, mean over 9 loads: TTFT")


# --- masks, beams, budgets


def masked(**more: Any) -> Any:
    """Half of 9 sequences follow a grammar."""
    masks = SimpleNamespace(
        share=0.5, fill=lambda count, filling: int(count) * filling, rests_on=lambda filling: "rests"
    )
    steps = SimpleNamespace(mask_bytes=16_000.0, copied=lambda count: count / 1e3, applied=lambda count: count / 1e4)
    found = {
        "structured": masks, "steps": steps, "load": SimpleNamespace(batch=9.0, output=101.0), "tpot": 0.025,
        "plain_tpot": 0.02, "decode": SimpleNamespace(time=0.021), "deployment": SimpleNamespace(engine="vllm"),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def test_masks_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.5 masks are 4, of 0.25 ms each to fill; 20 of 21 ms are the forward pass."""
    monkeypatch.setattr(structured, "host_seconds", lambda deployment, batch: 0.001 if batch == 9.0 else 0.0)
    monkeypatch.setattr(structured, "mask_filling", lambda engine: 0.00025)
    monkeypatch.setattr(structured, "masks_record", lambda masks, engine: {"share": masks.share})
    monkeypatch.setattr(structured, "server_record", lambda estimate: {"ttft_at_server_s": at_server})
    at_server: float | None = 0.1
    figures = structured.structured_figures(masked(), 0.5)
    assert labelled_texts(figures) == [
        ["masks per step, about", "4 of 16.00 kB"], ["forward pass", "20.00 ms"], ["masks filled in", "1.000 ms"],
        ["masks copied in", "4.000 ms"], ["logits masked in", "400.0 us"], ["added to TPOT, mean", "5.000 ms"],
        ["TTFT at the server, first use of a schema", "600.0 ms"],
    ]  # fmt: skip
    assert record(figures)["share"] == 0.5
    single = masked(load=SimpleNamespace(batch=1.0, output=1.0))
    found = record(structured.structured_figures(single, None))
    assert (found["masks"], found["added_s"], found["ttft_at_server_first_use_s"]) == (1, None, None)
    at_server = None
    assert record(structured.structured_figures(masked(), 0.5))["ttft_at_server_first_use_s"] is None
    monkeypatch.setattr(
        structured,
        "estimate_report",
        lambda estimate: Report(record={"a": 1}, tables=["first", "last"], notes=["note"]),  # type: ignore[list-item]
    )
    whole = structured.masked_report(masked(), None)
    assert whole.notes == ["note", "TTFT at the server excludes masks", "rests"] and whole.record["a"] == 1
    assert [one if isinstance(one, str) else one.title for one in whole.tables] == [
        "first",
        "structured decoding",
        "last",
    ]


def searched(**more: Any) -> Any:
    """4 beams of 2 requests on 3 replicas; 10 bytes a token."""
    model, precision = SimpleNamespace(kv_elements_per_token=5.0), SimpleNamespace(kv=SimpleNamespace(width=2.0))
    found = {
        "bounds": (1000.0, 2000.0), "load": SimpleNamespace(batch=2.0, prompt=900.0, output=100.0), "rounds": [0.5,
        0.02, 0.04],
        "deployment": SimpleNamespace(
            model=model, precision=precision, parallel=SimpleNamespace(replicas=3), describe=lambda: "m on h100"),
        "way": "outside", "width": 4, "cached": 1001.0, "block": 16, "recomputed": [900.0, 10.0, 20.0], "seconds": 3.0,
        "inside": SimpleNamespace(e2el=2.5),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def test_beams_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,001 tokens are 63 pages of 16, apart 4 times: 4,032."""
    assert labelled_texts(beams.beams_figures(searched())) == [
        ["search", "from outside: one request per beam and token"], ["first token of all beams", "500.0 ms"],
        ["each further token, mean", "30.00 ms"], ["computed for it, per beam", "15.00 tokens, mean"],
        ["whole answer", "3.000 s"], ["requests per second", "2.000"], ["the same beams inside an engine", "2.500 s"],
        ["cache per request, at least", "1,000 tokens, 10.00 kB"], ["cache per request, at most",
        "2,000 tokens, 20.00 kB"],
        ["cache per request, nothing shared", "4,032 tokens, 40.32 kB"],
    ]  # fmt: skip
    inside = [label for label, _ in labelled_texts(beams.beams_figures(searched(way="inside")))]
    assert "computed for it, per beam" not in inside and "the same beams inside an engine" not in inside
    single = beams.beams_figures(searched(rounds=[0.5], recomputed=[900.0]))
    assert record(single)["round_s"] is record(single)["recomputed_tokens_mean"] is None
    for name, value in {"estimate_report": Report(record={}, tables=["a", "memory"]),
    "deployment_record": {"model": "m"},  # type: ignore[list-item]
                        "memory_record": "memory"}.items():  # fmt: skip
        monkeypatch.setattr(beams, name, lambda *_, value=value: value)
    whole = beams.beams_report(searched())
    assert (
        whole.tables[0].title == "m on h100: batch 2 x 4 beams, 900 tokens in, 100 out" and whole.tables[1] == "memory"
    )
    assert whole.record["load"] == {"batch": 2, "prompt_tokens": 900, "output_tokens": 100} and len(whole.notes) == 2
    assert len(beams.beams_report(searched(way="inside")).notes) == 1


def test_budgets_of_thoughts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("devices", "shape", "money"):
        monkeypatch.setattr(budgets, name, lambda option, name=name: name)
    words = {"candidate_record": {"c": 1}, "launch_line": "line", "launch_of": None, "base_note": ""}
    for name, value in words.items():
        monkeypatch.setattr(budgets, name, lambda *_, value=value: value)
    monkeypatch.setattr(budgets, "basis_line", lambda plan: plan.basis)
    question: Any = SimpleNamespace(
        slo=Slo(tpot=0.05, percentile=95.0), space=SimpleNamespace(base=SimpleNamespace(model="m")),
        demand=SimpleNamespace(loaded=lambda: "load"),
    )  # fmt: skip

    def planned(budget: int | None, found: Any, cost: float | None = 0.00125) -> Any:
        output = SimpleNamespace(
            budget=budget, cut_share=0.25, before=(1234.5, 0), answer=SimpleNamespace(average=200.0), average=1500.0,
            describe=lambda: {"budget": budget},
        )  # fmt: skip
        return SimpleNamespace(output=output, found=found, cost_per_request=cost)

    def plan(basis: str, currency: str | None = "EUR") -> Any:
        tariff = None if currency is None else SimpleNamespace(currency=currency)
        best = SimpleNamespace(achieved={"tpot": 0.02, "answer_ttft": 1.5})
        return SimpleNamespace(option=SimpleNamespace(tariff=tariff), best=best, basis=basis)

    none = InfeasibleError("nothing fits", because="of memory")
    whole = budgets.budgets_report(
        question, [planned(None, plan("a")), planned(2048, plan("b", None)), planned(64, none)]
    )
    assert whole.tables[0].title == "m: load, answers of 200 tokens after a thought; TPOT p95 < 50.0 ms"
    assert list(whole.tables[0].columns)[-2:] == ["TPOT", "TTFT of the answer"]
    assert list(whole.tables[0].rows) == [
        ["none", "25.0%", "1,234", "devices", "shape", "money", "1.25 EUR", "20.0 ms", "1.50 s"],
        ["2,048", "25.0%", "1,234", "devices", "shape", "money", "1.25", "20.0 ms", "1.50 s"],
        ["64", "25.0%", "1,234", "no plan", "-", "-", "-", "-", "-"],
    ]
    assert whole.notes[0] == "64: nothing fits" and whole.notes[3:] == ["budget none: a", "budget 2,048: b"]
    first, _, last = whole.record["budgets"]
    assert first["plan"] == {"c": 1, "launch": "line", "launch_note": None} and first["infeasible"] is None
    assert last["plan"] is None and last["infeasible"] == {"what": "nothing fits", "because": "of memory"}
    alike = budgets.budgets_report(question, [planned(None, plan("a"), None), planned(64, plan("a"))])
    assert alike.notes[2:] == ["a"] and next(iter(alike.tables[0].rows))[6] == "-"


def test_energy_of_tokens() -> None:
    """Two devices of 500 W over 1,000 tokens/s in and 250 out: 0.8 J each, 4 J an output token, 1.111 kWh a million."""
    energy = Energy(power=500.0, devices=2, rates=Rates(requests=1.0, prompt=1000.0, output=250.0), grid=360.0)
    assert labelled_texts(costs._energy(energy)) == [
        ["power", "1.00 kW"], ["per token, input or output", "0.800 J"],
        ["per output token, counting input as free", "4.000 J"], ["per million output tokens", "1.111 kWh"],
        ["  CO2 in operation", "400 g CO2"],
    ]  # fmt: skip
    encoder = Energy(power=500.0, devices=2, rates=Rates(requests=1.0, prompt=1000.0, output=0.0), grid=360.0)
    assert labelled_texts(costs._energy(encoder)) == [
        ["power", "1.00 kW"], ["per million tokens", "0.277778 kWh"], ["  CO2 in operation", "100.000 g CO2"]
    ]  # fmt: skip
    keys = ("per_output_token_j", "per_million_output_tokens_kwh", "per_million_output_tokens_g_co2")
    assert [record(costs._energy(encoder))[key] for key in keys] == [None] * 3
    dark = Energy(power=500.0, devices=2, rates=Rates(requests=1.0, prompt=1000.0, output=0.0))
    assert [label for label, _ in labelled_texts(costs._energy(dark))] == ["power", "per million tokens"]


# --- in a notebook


def test_points_that_do_not_run() -> None:
    found: Any = SimpleNamespace(refused=Counter(), columns=range(5000))
    assert shown.without_figures(found) == ""
    found.refused = Counter({"memory": 1500, "heads": 30, "a": 2})
    few = "1,532 of 5,000 points do not run: memory (1,500); heads (30); a (2)"
    assert shown.without_figures(found) == few
    found.refused["b"] = 1
    assert shown.without_figures(found) == few.replace("1,532", "1,533") + "; 1 other reasons"


def test_a_table_as_html(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred rows are shown; text is escaped."""

    def html(rows: int, columns: tuple[str, str] = ("a", "b")) -> str:
        table = Table(title="<t>", columns=columns, rows=[["<1>", "2"]] * rows, right=frozenset({"b"}))
        monkeypatch.setattr(shown, "report_of", lambda result: Report(record={}, tables=[table], notes=["x & y", "z"]))
        return shown.html_of("result")

    one = html(1)
    assert "&lt;t&gt;" in one and "<thead>" in one and "x &amp; y<br>z" in one and "more rows" not in one
    assert '<td style="text-align:left">&lt;1&gt;</td><td style="text-align:right">2</td>' in one
    assert html(100).count("<td") == 200 and "more rows" not in html(100)
    assert html(1201).count("<td") == 200 and "<p>1,101 more rows: to_frame() has all of them</p>" in html(1201)
    assert "<thead>" not in html(1, ("", ""))
    assert "<pre" not in one and 'font-weight:bold">' not in one.replace("caption", "").partition("<table")[0]
    monkeypatch.setattr(shown, "Sweep", SimpleNamespace)
    swept = SimpleNamespace(refused=Counter({"memory": 2}), columns=range(3))
    monkeypatch.setattr(shown, "report_of", lambda result: Report(record={}))
    assert '<p style="font-weight:bold">2 of 3 points do not run: memory (2)</p>' in shown.html_of(swept)


# --- models that fit


def model(name: str, requests: int | None) -> Any:
    """8 billion parameters on two GPUs of 8 GB each."""
    fitting = SimpleNamespace(
        deployment=SimpleNamespace(parallel=SimpleNamespace(describe=lambda: "tp2", devices=2)),
        footprint=SimpleNamespace(weights=8e9),
    )  # fmt: skip
    counts = {"total": 8e9, "active": 3e9}
    fits = requests is not None
    return SimpleNamespace(
        model=SimpleNamespace(name=name, parameters=counts),
        option=SimpleNamespace(fitting=fitting if fits else None, reason="too large"),
    )


def test_models_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = [Figure(name.lower(), name, name) for name in ("GPU", "requests", "KV pool", "format")]
    words: dict[str, Any] = {
        "option_figures": figures, "engines_of": "vllm", "device_lines": ["devices"], "load_record": "load",
        "load_tables": [], "year_of": 2024,
    }  # fmt: skip
    for name, value in words.items():
        monkeypatch.setattr(fit_models, name, lambda *_, value=value: value)
    monkeypatch.setattr(fit_models, "of_people", lambda report, asked: report)

    def found(count: int, kinds: int = 1, held: int = 1, have: str = "2x-l4", context: int | None = None) -> Report:
        fitting = [model(f"m{place}", 5) for place in range(count)]
        asked = SimpleNamespace(context=context, held=held, kv=None, quality=None)
        meant = [SimpleNamespace(gpu=f"g{place}") for place in range(kinds)]
        return fit_models.models_report(SimpleNamespace(  # type: ignore[arg-type]
            fitting=fitting, models=[*fitting, model("big", None)], meant=meant, asked=asked, have=have
        ))  # fmt: skip

    one = found(2)
    assert one.tables[0].title == "2 of 3 models on file fit 2x-l4, the largest for their year first"
    assert list(one.tables[0].columns) == ["model", "year", "parameters", "active", "weights", "requests", "format"]
    assert next(iter(one.tables[0].rows))[:5] == ["m0", "2024", "8B", "3B", "16.00 GB"]
    assert one.notes[0].startswith("requests: how many fit at once, each of 8,192 tokens")
    assert one.notes[3].startswith("format: the widest that holds 1 request at once")
    assert one.notes[5:] == ["a model in all its formats: inferplan fit m0 --have 2x-l4", "devices"]
    assert one.record["models"][2] == {"model": "big", "parameters": 8e9, "fits": False, "reason": "too large"}
    assert one.record["models"][0]["gpu"] == "GPU" and one.record["gpus"] == ["g0"]
    many = found(42, kinds=2, held=1500, have="a 24 GB card", context=100_000)
    assert many.notes[:2] == [
        "2 other models fit too: --format csv lists all",
        "each model is shown on the GPU that suits it best among those sold with that memory: g0, g1",
    ]
    assert len(many.tables[0].rows) == 40 and "GPU" in many.tables[0].columns
    assert "1,500 requests at once" in many.notes[5] and "each of 100,000 tokens" in many.notes[2]
    assert "--have 'a 24 GB card'" in many.notes[7] and not any("other models" in line for line in found(40).notes)
