"""A plan as programs read it, and the pictures of results: of plans and curves that are written down here."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.answers.drafting import Drafting
from inferplan.errors import UsageError
from inferplan.figures import Figure
from inferplan.reports import pictures, plots
from inferplan.reports import plan_record as report
from inferplan.traffic.requests import Slo
from inferplan.work.parallel import Parallelism


def option(**more: Any) -> Any:
    """Three replicas of 8 GPUs that answer with 200 tokens."""
    deployment = SimpleNamespace(
        model=SimpleNamespace(encodes=False, made_from=SimpleNamespace(to_dict=lambda: "counts")),
        engine=SimpleNamespace(name="vllm", defaults=SimpleNamespace(version="0.33")), warnings=["one"],
        calibration=SimpleNamespace(anchor=None, basis="measured"), parallel=Parallelism(tp=8, replicas=3),
    )  # fmt: skip
    found: dict[str, Any] = {
        "deployment": deployment, "request": SimpleNamespace(model="m", gpu="h100", quant="fp8"), "pools": None,
        "prompts": None, "tiers": (), "budget": 2048, "speculation": "drafts", "output": 200.0, "devices": 24,
        "slow": SimpleNamespace(step=1.25, tail=0.5), "cost": 60.0,
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def verified(name: str, **more: Any) -> Any:
    found = {"name": name, "slots": 64, "result": None, "option": option(), "achieved": {"tpot": 0.02}, "classes": []}
    return SimpleNamespace(**found | more)


def demand(**more: Any) -> Any:
    found: dict[str, Any] = {
        "classes": (), "users": None, "think": 1.5, "requests_per_second": 12.0, "queue": "fcfs", "adapters": None,
        "samples": 1, "structured": None, "lora_bandwidth": None, "of_messages": True, "offline": False,
        "prompt": SimpleNamespace(average=700.0), "output": SimpleNamespace(average=200.0), "describe": lambda: "load",
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def plan(**more: Any) -> Any:
    """12 requests/s on 24 GPUs."""
    space = SimpleNamespace(
        base=SimpleNamespace(model="m", media=SimpleNamespace(describe=lambda: "")), runs=None, quality=None,
        left_out=[], drafting_of=lambda speculation: None,
    )  # fmt: skip
    sizing = SimpleNamespace(utilisation=0.8, spare=1, confidence=0.8, miss_cost=None, max_cost=None)
    question = SimpleNamespace(
        demand=more.pop("demand", demand()), slo=Slo(ttft=0.5, percentile=95.0), space=space, sizing=sizing,
        most=False, routing="round-robin", borrowed=None,
    )  # fmt: skip
    chosen = more.pop("option", option())
    rejections = SimpleNamespace(counts=SimpleNamespace(most_common=lambda: [("memory", 9), ("ttft", 2)]))
    found: dict[str, Any] = {
        "question": question, "option": chosen, "deployment": chosen.deployment, "best": verified("best"), "rate": 12.0,
        "waiting": 3.5, "binding": "ttft", "confidence": 0.8, "supported": True, "has_confidences": True, "miss": None,
        "holds_at_the_slow_end": False, "other": None, "other_confidence": 0.5, "measured": None, "native": None,
        "unknown": None, "in_proportion": None, "curve": [], "unseen": 4, "alternatives": [], "sensitivity": ["row"],
        "searched": SimpleNamespace(
            evaluated=7, structures=5, structures_apart=3, rejections=rejections, frontier=[], options=[]
        ),
        "bands": {"ttft": (0.8, 1.25)}, "measured_between": {"ttft": (0.1, 0.2)}, "drafts_help": True,
        "capacity": None,
    }  # fmt: skip
    return SimpleNamespace(**found | more)


@pytest.fixture(autouse=True)
def parts_of_other_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = {
        "cost_of": None, "energy_of": None, "power": None, "people_record": None, "launch_line": "line",
        "survival_record": None, "error_unknown": "", "quality_record": None, "tiers_record": None,
        "forgone_form": None, "terms_of": [], "runners": [[Figure("gpu", "a")]], "capacity_record": "capacity",
        "launch_of": SimpleNamespace(context=None), "base_note": "", "launch_record": "launch", "load_record": "load",
        "prompts_launch_of": None, "beside_api": "beside", "cheapest_drafting": None, "_cheaper_record": None,
    }  # fmt: skip
    for name, value in empty.items():
        monkeypatch.setattr(report, name, lambda *_, value=value: value)
    monkeypatch.setattr(report, "candidate", lambda plan, found: [Figure("candidate", found.name)])
    monkeypatch.setattr(report, "load_cost_record", lambda cost, api: [cost, api])
    monkeypatch.setattr(report, "cost_energy_record", lambda energy: [energy])


LAUNCH_RECORD = report.launch_record


def test_a_plan_for_programs() -> None:
    """12 requests/s of 200 tokens on 24 GPUs are 100 tokens/s each."""
    found = report.plan_record(plan())
    assert found.pop("question")["model"] == "m"
    assert found.pop("plan") == {
        "candidate": "best", "requests_per_s": 12.0, "users_waiting": 3.5, "people": None, "classes": None,
        "deployment": "launch", "launch": "line", "launch_note": None, "survival": None, "binding": "ttft",
        "capacity": "capacity", "confidence": 0.8, "error_unknown": None, "miss": None, "quality": None,
        "measured": True, "meets_at_the_slow_end": False, "output_tokens_per_s_per_device": 100.0, "simulation": None,
        "simulation_time_scale": 1.25, "late_at_p99_s": 0.5,
    }  # fmt: skip
    nothing = (
        "cost", "energy", "power", "cache_tiers", "at_the_other_confidence", "measured_alternative",
        "native_alternative", "unknown_alternative", "limit_in_proportion", "forgone", "other_gpus", "speculation",
        "next_cheaper", "anchor",
    )  # fmt: skip
    assert [found.pop(name) for name in nothing] == [None] * len(nothing)
    assert found == {
        "terms": [], "confidence_curve": [], "not_simulated": 4, "alternatives": [], "frontier": [],
        "candidates": {"evaluated": 7, "structures": 5, "structures_apart": 3}, "rejected": {"memory": 9, "ttft": 2},
        "sensitivity": ["row"], "bands": {"ttft": (0.8, 1.25)}, "band_s": {"ttft_s": [0.1, 0.2]},
    }  # fmt: skip


@dataclass
class Forgone:
    cost: float


def test_what_stands_beside_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("other", "measured", "native", "unknown")
    result = SimpleNamespace(to_dict=lambda: "run", bases=("measured", "transferred"))
    whole = plan(
        **{name: verified(name) for name in names}, alternatives=[verified("a"), verified("b")],
        best=verified("best", result=result),
    )  # fmt: skip
    whole.question.most = True
    for name, value in {"cost_of": "cost", "energy_of": "energy", "power": [Figure("w", 1)]}.items():
        monkeypatch.setattr(report, name, lambda plan, value=value: value)
    monkeypatch.setattr(report, "terms_of", lambda plan: [[Figure("term", 1)]])
    monkeypatch.setattr(report, "forgone_form", lambda plan: Forgone(cost=2.5))
    monkeypatch.setattr(report, "error_unknown", lambda plan: "why")
    monkeypatch.setattr(report, "base_note", lambda launch: "a base checkpoint")
    found = report.plan_record(whole)
    assert found["at_the_other_confidence"] == {"confidence": 0.5, "candidate": "other"}
    beside = [found[f"{name}_alternative"] for name in names[1:]]
    assert beside == [{"candidate": name} for name in names[1:]]
    assert found["alternatives"] == [{"candidate": "a"}, {"candidate": "b"}]
    assert (found["cost"], found["energy"], found["power"]) == (["cost", "beside"], ["energy"], {"w": 1})
    assert found["forgone"] == {"cost": 2.5}
    assert (found["terms"], found["other_gpus"]) == ([{"term": 1}], [{"gpu": "a"}])
    chosen = found["plan"]
    assert (chosen["simulation"], chosen["measured"], chosen["error_unknown"]) == ("run", False, "why")
    assert chosen["launch_note"] == "a base checkpoint"
    whole.option.deployment.model.encodes = True
    whole.question.demand.offline = True
    found = report.plan_record(whole)
    assert found["plan"]["output_tokens_per_s_per_device"] is None and found["sensitivity"] == []
    for change in ({"supported": False}, {"has_confidences": False}):
        assert report.plan_record(plan(**change))["plan"]["confidence"] is None
    assert report.plan_record(plan(supported=False))["plan"]["measured"] is False


def test_what_was_asked_for_programs() -> None:
    found = report.question_record(plan())
    assert found == {
        "model": "m", "media": None, "model_counts": "counts", "model_notes": ["one"], "demand": "load", "load": "load",
        "prompt_tokens": 700.0, "output_tokens": 200.0, "requests_per_s": 12.0, "users": None, "think_time_s": None,
        "slo": {"ttft_s": 0.5}, "percentile": 95.0, "classes": None, "queue": "fcfs", "adapters": None, "samples": 1,
        "structured": None, "lora_bandwidth_bytes_per_s": None, "routing": "round-robin", "utilisation": 0.8,
        "spare": 1, "confidence": 0.8, "miss_cost_per_h": None, "max_cost": None, "most": False, "quality": None,
        "formats_left_out": None,
    }  # fmt: skip
    drafting = Drafting(model=None, length=3, acceptance=0.5)
    structured = SimpleNamespace(to_dict=lambda: "masks")
    users = plan(demand=demand(users=40, adapters=drafting, structured=structured))
    users.question.space.left_out, users.question.space.base.media.describe = ["int4"], lambda: "4 images"
    found = report.question_record(users)
    assert (found["users"], found["think_time_s"], found["structured"]) == (40, 1.5, "masks")
    assert found["adapters"]["length"] == 3 and found["formats_left_out"] == ["int4"] and found["media"] == "4 images"


def test_a_limit_in_proportion() -> None:
    assert report.limit_record(plan()) is None
    borrowed = SimpleNamespace(workload="chat", own=500, scaled=2.5)
    one = plan()
    one.question.borrowed = borrowed
    expected = {"workload": "chat", "prompt_tokens": 500, "ttft_s": 2.5, "alternative": None}
    assert report.limit_record(one) == expected
    one.in_proportion = verified("cheaper")
    assert report.limit_record(one) == expected | {"alternative": {"candidate": "cheaper"}}


def test_what_emit_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two pools the shorter context."""
    monkeypatch.setattr(report, "changed_options", lambda request: request.changed)
    monkeypatch.setattr(report, "_prefill_record", lambda option: "prefill")
    changed = {
        "model": "m", "flags.token_budget": 1, "parallel.tp": 8, "media.images": 2, "prune": "layers=4",
        "lora.modules": ("q", "v"), "power_cap": 500.0,
    }  # fmt: skip
    asked = SimpleNamespace(model="m", gpu="h100", quant="fp8", changed=changed)
    found = LAUNCH_RECORD(plan(option=option(request=asked)))
    assert found.pop("parallel")["tp"] == 8
    assert found == {
        "model": "m", "gpu": "h100", "quant": "fp8", "engine": "vllm 0.33", "pools": None, "prefill": "prefill",
        "context_tokens": None, "concurrency": 64, "token_budget": 2048, "queue": "fcfs", "chat": True,
        "speculation": None, "cache_tiers": None,
        "options": {"prune": "layers=4", "lora.modules": "q,v", "power_cap": 500.0},
    }  # fmt: skip
    for decodes, prompts, context in ((8192, None, 8192), (8192, 4096, 4096), (None, 4096, 4096), (2048, 4096, 2048)):
        monkeypatch.setattr(report, "launch_of", lambda plan, context=decodes: SimpleNamespace(context=context))
        monkeypatch.setattr(report, "prompts_launch_of", lambda plan, most=prompts: SimpleNamespace(context=most))
        tier = SimpleNamespace(stated=lambda: "host:1TB")
        whole = plan(option=option(request=asked, pools=(2, 5), tiers=(tier,)))
        whole.question.space.drafting_of = lambda speculation: Drafting(model="d", length=3, acceptance=0.5)
        found = LAUNCH_RECORD(whole)
        assert found["context_tokens"] == context and found["pools"] == {"prefill": 2, "decode": 5}
        assert found["cache_tiers"] == ["host:1TB"] and found["speculation"]["model"] == "d"


def test_drafts_beside_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 + 0.5 + 0.25 + 0.125 tokens a round."""
    assert report.speculation_record(plan()) is None
    calls: list[Any] = []
    monkeypatch.setattr(report, "cheapest_drafting", lambda plan: Drafting(model=None, length=3, acceptance=0.5))
    monkeypatch.setattr(report, "screened_costs", lambda plan: {0: 50.0, 3: None})
    monkeypatch.setattr(report, "break_even_batch", lambda plan, found: calls.append(found) or 99)
    drafts, bare = verified("with"), verified("without", option=option(cost=70.0), achieved={"tpot": 0.03})
    found = report.speculation_record(plan(cheapest=lambda drafted: drafts if drafted else bare))
    assert found is not None and found["tokens_per_step"] == pytest.approx(1.875)
    assert found["tried"] == [
        {"draft_tokens": 0, "screened_cost": 50.0}, {"draft_tokens": 3, "screened_cost": None}
    ]  # fmt: skip
    assert (found["cost_with"], found["cost_without"], found["tpot_with_s"], found["tpot_without_s"]) == (
        60.0, 70.0, 0.02, 0.03
    )  # fmt: skip
    assert (found["helps"], found["break_even_batch"], calls) == (True, 99, [drafts])
    found = report.speculation_record(plan(cheapest=lambda drafted: None if drafted else bare))
    assert found is not None and found["cost_with"] is found["tpot_with_s"] is None and calls[1:] == [bare]


# --- pictures of results


WANTED = pictures.Wanted(slo=0.05)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What each form of picture is given."""
    found: dict[str, Any] = {}
    for name in ("memory_stack", "tradeoff", "against_rate", "kv_context", "timeline", "waterfall"):
        monkeypatch.setattr(plots, name, lambda *words, name=name: found.update({name: words}) or name)
    return found


def rows(*gpus: str, **more: Any) -> list[dict[str, Any]]:
    """Two batches of each."""
    return [
        {"gpu": gpu, "tp": 1, "batch": batch, "status": "ok", "tpot_s": batch / 100,
         "output_tokens_per_s_per_device": 10.0 * batch} | more
        for gpu in gpus for batch in (1, 2)
    ]  # fmt: skip


def test_lines_of_a_sweep() -> None:
    """A line for each GPU and division; what did not fit or generates nothing has no point."""
    failed = {"gpu": "c", "tp": 1, "batch": 1, "status": "memory"}
    some = [*rows("a", "b"), *rows("a", tp=2), failed, *rows("d", tpot_s=None)]
    curves = pictures._curves(SimpleNamespace(rows=some))  # type: ignore[arg-type]
    assert [(one.label, list(one.x), list(one.y)) for one in curves] == [
        (label, [10.0, 20.0], [0.01, 0.02]) for label in ("a, tp 1", "b, tp 1", "a, tp 2")
    ]
    (alone,) = pictures._curves(SimpleNamespace(rows=rows("a")))  # type: ignore[arg-type]
    assert alone.label == "a"
    assert len(pictures._curves(SimpleNamespace(rows=rows(*map(str, range(12)))))) == 12  # type: ignore[arg-type]
    for none_or_many in (rows(*map(str, range(13))), []):
        with pytest.raises(UsageError, match="a picture of"):
            pictures._curves(SimpleNamespace(rows=none_or_many))  # type: ignore[arg-type]


def test_a_picture_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"first": lambda wanted: f"first {wanted.slo}", "empty": lambda wanted: None}
    monkeypatch.setattr(pictures, "pictures_of", lambda result: known)
    assert pictures.picture_of("x", None, WANTED) == pictures.picture_of("x", "first", WANTED) == "first 0.05"
    for kind, said in (("other", "str has no picture named 'other'"), ("empty", "nothing to draw as empty")):
        with pytest.raises(UsageError, match=said):
            pictures.picture_of("x", kind, WANTED)
    with pytest.raises(UsageError, match="no picture named 'x'"):
        pictures.draw("x", SimpleNamespace(gpu="a"), None, WANTED)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--gpu is missing"):
        pictures.draw("memory", SimpleNamespace(gpu=""), None, WANTED)  # type: ignore[arg-type]


def test_models_without_tokens_have_fewer_pictures(monkeypatch: pytest.MonkeyPatch, drawn: dict[str, Any]) -> None:
    monkeypatch.setattr(pictures, "load_model", lambda name: SimpleNamespace(encodes=name == "encoder", name=name))
    asked: Any = SimpleNamespace(gpu="", model="encoder")
    for kind in ("kv", "tradeoff", "rate", "timeline"):
        with pytest.raises(UsageError, match="nothing to draw of encoder"):
            pictures._require_generation(kind, asked)
    pictures._require_generation("memory", asked)
    pictures._require_generation("rate", SimpleNamespace(model="a,encoder"))  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        pictures._require_generation("kv", SimpleNamespace(model="a,encoder"))  # type: ignore[arg-type]
    pictures.draw("kv", SimpleNamespace(gpu="", model="a,b"), None, WANTED)  # type: ignore[arg-type]
    assert [one.name for one in drawn["kv_context"][0]] == ["a", "b"]


def test_pictures_of_devices_and_formats(monkeypatch: pytest.MonkeyPatch, drawn: dict[str, Any]) -> None:
    """Over batches that fit: 1 to 4, each once; per device of two."""

    class Estimated:
        def __init__(self, deployment: Any, load: Any) -> None:
            self.footprint = SimpleNamespace(name=deployment.name, max_batch=lambda: 4.2)
            self.output_rate, self.tpot = 100.0 * np.asarray(load.batch), 0.01 * np.asarray(load.batch)

    monkeypatch.setattr(pictures, "Estimate", Estimated)
    monkeypatch.setattr(pictures, "replace", lambda value, **new: SimpleNamespace(**vars(value) | new))
    monkeypatch.setattr(
        pictures, "assemble",
        lambda request: SimpleNamespace(name=f"{request.gpu} {request.quant}", parallel=SimpleNamespace(devices=2)),
    )  # fmt: skip
    asked: Any = SimpleNamespace(gpu="a,b", quant="fp8,int8", model="m")
    load: Any = SimpleNamespace(prompt=1000.0, output=100.0, batch=1.0)
    pictures._memory(asked, load, WANTED)
    (stacks,) = drawn["memory_stack"]
    assert {label: one.name for label, one in stacks.items()} == {
        "a, fp8": "a fp8", "a, int8": "a int8", "b, fp8": "b fp8", "b, int8": "b int8"
    }  # fmt: skip
    asked.quant = None
    pictures._tradeoff(asked, load, WANTED)
    curves, title, slo = drawn["tradeoff"]
    assert (title, slo) == ("m: static batches, 1000 tokens in, 100 out", 0.05)
    assert [one.label for one in curves] == ["a, native", "b, native"]
    assert curves[0].x.tolist() == [50.0, 100.0, 150.0, 200.0] and curves[0].y.tolist() == [0.01, 0.02, 0.03, 0.04]


def test_first_tokens_against_the_rate(monkeypatch: pytest.MonkeyPatch, drawn: dict[str, Any]) -> None:
    """Points that can be, by their rate."""
    calls: list[Any] = []
    grid = SimpleNamespace(
        possible=np.array([[True], [False], [True]]), rate=np.array([[3.0], [2.0], [1.0]]),
        ttft=np.array([[0.3], [0.2], [0.1]]),
    )  # fmt: skip
    tier = SimpleNamespace(token_budget=2048)
    deployment = SimpleNamespace(
        engine=SimpleNamespace(defaults=SimpleNamespace(tier=lambda hardware: tier)), hardware=""
    )
    monkeypatch.setattr(pictures, "assemble", lambda request: deployment)
    monkeypatch.setattr(pictures, "replace", lambda value, **new: value)
    monkeypatch.setattr(pictures, "axes_for", lambda deployment, budgets: budgets)
    monkeypatch.setattr(pictures, "load_grid", lambda *words: calls.append(words) or grid)
    load: Any = SimpleNamespace(prompt=1000.0, output=100.0)
    pictures._against_rate(SimpleNamespace(gpu="a", quant=None, model="m"), load, WANTED)  # type: ignore[arg-type]
    (curve,), title, slo = drawn["against_rate"]
    assert (curve.label, list(curve.x), list(curve.y)) == ("a, native, p95", [1.0, 3.0], [0.1, 0.3])
    assert (title, slo) == ("m: 1000 tokens in, 100 out, one replica, closed form", 0.05)
    (_, asked, percentile, budgets) = calls[0]
    assert (asked.prompt.mean, asked.output.mean, asked.rate, percentile, budgets) == (1000.0, 100.0, 1.0, 95.0, [2048])


def test_timelines(monkeypatch: pytest.MonkeyPatch, drawn: dict[str, Any]) -> None:
    """Users at once, or a rate: 200 requests, or four of each user."""
    calls: list[Any] = []
    monkeypatch.setattr(pictures, "assemble", lambda request: SimpleNamespace(describe=lambda: "the GPU"))
    meters = [SimpleNamespace(timeline="first"), SimpleNamespace(timeline="other")]
    monkeypatch.setattr(pictures, "simulate", lambda *words: calls.append(words) or SimpleNamespace(meters=meters))
    monkeypatch.setattr(pictures, "timeline_tracks", lambda meter: meter.timeline)

    def timeline(batch: float, rate: float | None) -> tuple[str, Any]:
        load: Any = SimpleNamespace(batch=batch, prompt=1000.0, output=100.0)
        pictures._timeline(SimpleNamespace(), load, pictures.Wanted(rate=rate))  # type: ignore[arg-type]
        tracks, title = drawn["timeline"]
        assert tracks == "first" and calls[-1][3].timeline
        return title, calls[-1][1]

    title, traffic = timeline(1.0, None)
    assert (title, traffic.arrivals.concurrency, traffic.requests_count) == ("the GPU: 1 user", 1, 200)
    assert (traffic.prompt.mean, traffic.output.mean) == (1000.0, 100.0)
    title, traffic = timeline(51.0, None)
    assert (title, traffic.requests_count) == ("the GPU: 51 users", 204)
    title, traffic = timeline(51.0, 2.5)
    assert (title, traffic.arrivals.rate) == ("the GPU: 2.5 requests/s", 2.5)


def test_what_ingredients_are_worth(drawn: dict[str, Any]) -> None:
    steps = [("base", SimpleNamespace(rate=1.0)), ("fp8", SimpleNamespace(rate=2.0))]
    base = SimpleNamespace(deployment=SimpleNamespace(
        model=SimpleNamespace(name="m"), hardware=SimpleNamespace(name="h100")
    ))  # fmt: skip
    pictures.waterfall_of(SimpleNamespace(steps=lambda: steps, base=base, total=2.3456))  # type: ignore[arg-type]
    assert drawn["waterfall"] == ([("base", 1.0), ("fp8", 2.0)], "m on h100: 2.35x", "output tokens/s per GPU")
