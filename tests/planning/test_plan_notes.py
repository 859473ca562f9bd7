"""Sentences about a plan that is written down here, word by word: what is said, and when nothing is."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.answers.drafting import Drafting
from inferplan.catalog import quality
from inferplan.catalog.bills import Offer, Tariff
from inferplan.catalog.workloads import BorrowedLimit, borrowed_limit, load_workload
from inferplan.figures import Figure
from inferplan.planning.demand import Demand
from inferplan.planning.edges import Edge
from inferplan.planning.option import OwnedGpus, Sizing
from inferplan.planning.plan import Plan
from inferplan.planning.power import PowerBudget
from inferplan.reports import plan_figures, plan_notes, plan_record
from inferplan.reports.plan_notes import KeyFigure
from inferplan.serving.techniques.speculation import Speculation
from inferplan.serving.techniques.tiers import CacheTier, TierPrice
from inferplan.traffic.conversations import ThinkTime
from inferplan.traffic.people import People
from inferplan.traffic.requests import Lengths, SharedPrefix, Slo
from tests.cases import for_each
from tests.planning.test_sizing import OFFER, REQUEST, asked, option

LENGTHS: dict[str, Any] = {"prompt": Lengths(mean=1000), "output": Lengths(mean=101)}
USERS = Demand(**LENGTHS, users=40)
THINKERS = Demand(**LENGTHS, users=2000, prefix=SharedPrefix(think=ThinkTime(mean=60.0)))
JOB = Demand(**LENGTHS, requests=7200, deadline=36000.0)
CALIBRATION = {"basis": "measured", "name": "h100", "described": "h100-sxm", "anchor": None, "vendors": ()}
FP8 = replace(REQUEST, quant="fp8")
DATED = {"ttft": 0.35, "tpot": 0.012, "e2el": 1.5}


def verified(which: Any = None, **more: Any) -> Any:
    """A finalist: TTFT 350 ms and TPOT 12 ms at the percentile, stable."""
    found: dict[str, Any] = {
        "option": which or option(), "achieved": dict(DATED), "result": None, "verdict": "stable", "slots": 64,
        "watts": None, "kept": lambda slo: [SimpleNamespace(name="", slo=slo, achieved=DATED)],
        "violations": lambda slo: {}, "survival": None,
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def plan(which: Any = None, **more: Any) -> Any:
    """Three GPUs at 6 USD an hour for 33 requests/s; a band is known, and the other confidence is not spoken of."""
    chosen = which or option()
    best = more.pop("best", None) or verified(chosen)
    question = more.pop("question", None) or asked()
    found: dict[str, Any] = {
        "option": chosen, "best": best, "question": question, "deployment": chosen.deployment, "confidence": 0.8,
        "supported": True, "has_confidences": True, "unkept": None, "other": None, "other_confidence": 0.5,
        "native": None, "unknown": None, "measured": None, "miss": None, "bands": {"ttft": (0.81, 1.19)},
        "capacity": None, "rate": 33.0, "response": 1.5, "waiting": None, "alternatives": [], "outranked": [],
        "cheaper_verified": None, "unseen": 0, "drafts_help": True, "tiered": [], "curve": [],
        "searched": searched(), "apart": None, "apart_at_least": None, "in_proportion": None, "edges": [],
    }  # fmt: skip
    found |= more
    found.setdefault("as_predicted", found["best"] if found["confidence"] == 0.5 else found["other"])
    return SimpleNamespace(**found | more)


def searched(*grids: Any, **rejected: tuple[int, str]) -> Any:
    return SimpleNamespace(
        grids=grids,
        options=[],
        structures_apart=0,
        rejections=SimpleNamespace(
            examples={name: said for name, (_, said) in rejected.items()},
            counts={name: count for name, (count, _) in rejected.items()},
        ),
    )


def on(calibration: dict[str, Any], **more: Any) -> Any:
    """An option on such constants, whose deployment is written down too."""
    real = option().deployment
    parts: dict[str, Any] = {
        name: getattr(real, name) for name in ("hardware", "parallel", "engine", "model", "formats")
    }
    parts |= {
        "calibration": SimpleNamespace(**CALIBRATION | calibration), "cap": None, "elsewhere": (), "lora": None,
        "division": "1 device", "describe": lambda: "the deployment",
        "replicated": lambda count: f"{count} replicas of it",
    }  # fmt: skip
    found: dict[str, Any] = {
        name: getattr(option(), name) for name in ("request", "tariff", "cost", "hours", "prompts")
    }
    found |= {"lacking": {}, "deployment": SimpleNamespace(**parts), "slow": SimpleNamespace(step=1.0, tail=0.0)}
    found |= {"speculation": Speculation(), "pools": None, "replicas": 3, "spare": 0, "purchases": [], "tiers": ()}
    found |= {"kinds": [(found["deployment"], 3)], "devices": 3}
    return SimpleNamespace(**found | more)


def test_the_answer_begins_with_what_is_not_known() -> None:
    """A format other than the checkpoint's is named, with what was published of it (model card of RedHatAI: OpenLLM v1
    73.6 of 73.8, HumanEval 67.3 of 67.3, OpenLLM v2 28.0 of 27.6); the confidence where the error is known."""
    kept = "99.7% of OpenLLM v1, 100.0% of HumanEval, 101.4% of OpenLLM v2 (the lowest 3 of 4 published scores)"
    native = "In the checkpoint's own format no tried option keeps the limits."
    found = plan_notes.answer(plan(option(request=FP8)))
    held = "TTFT p95 of 350 ms (limit 400 ms), TPOT p95 of 12.0 ms (limit 20.0 ms)"
    assert found == (
        f"3 x h100-sxm in fp8 at 6.00 USD/h for {held}, at a confidence of 0.8. Quality in fp8: it keeps {kept}. "
        f"{native} No option with a known error keeps the limits at a confidence of 0.5."
    )
    bare = plan_notes.answer(plan(on({}), supported=False, has_confidences=True, measured=None))
    assert bare.startswith("The error of this plan is not known: no held-out measurements of its kernels.")
    assert "3 x h100-sxm at 6.00 USD/h for TTFT p95" in bare and "confidence of 0.8" not in bare


def carried(found: Any, **load: Any) -> float:
    """:attr:`Plan.carried` of a plan that serves 31.25 requests/s, planned for at most 80 % of capacity."""
    question = SimpleNamespace(
        demand=SimpleNamespace(**{"users": None, "think": 0.0} | load), sizing=SimpleNamespace(utilisation=0.8)
    )
    factors: list[float] = []

    def at(factor: float) -> Any:
        factors.append(factor)
        return SimpleNamespace(response=5.0)

    rate: float = Plan.carried.func(SimpleNamespace(capacity=found, question=question, rate=31.25, _at=at))
    assert factors == ([pytest.approx(0.8 * found.factor)] if load else [])
    return rate


def test_what_a_plan_carries_within_its_limits_by_hand() -> None:
    """80 % of 1.5 times 31.25 are 37.5. 2,000 people: 80 % of 1.3 times are 2,080, who each ask every 65 s."""
    assert carried(SimpleNamespace(factor=1.5, open=False)) == pytest.approx(37.5)
    assert carried(SimpleNamespace(factor=1.3, open=False), users=2000, think=60.0) == pytest.approx(32.0)
    assert carried(SimpleNamespace(factor=9.0, open=True)) == inf  # nothing broke a limit
    assert carried(SimpleNamespace(factor=1.2, open=False)) == 31.25  # never less than it was given
    assert carried(None) == 31.25  # a job


def test_the_answer_has_the_api_and_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    same = [Figure("api_per_month", 1.0, "an API at 1/2", text="1 USD"), Figure("break_even_requests_per_s", 2.0)]
    monkeypatch.setattr(plan_notes, "beside_api", lambda plan: same)
    monkeypatch.setattr(plan_notes, "launch_line", lambda plan: None)
    monkeypatch.setattr(plan_notes, "launch_of", lambda plan: "launch")
    monkeypatch.setattr(plan_notes, "checkpoint_needs", lambda launch: "fp8 weights")
    known = SimpleNamespace(checkpoint="org/own", shares={})
    monkeypatch.setattr(plan_notes, "quantised_checkpoint", lambda model, quant: known)
    said = plan_notes.answer(plan(option(request=FP8)))
    start = "To start it: inferplan emit vllm FILE --checkpoint org/own (it must hold fp8 weights)."
    assert said.endswith(f" An API at 1/2: 1 USD. {start}")


def test_the_answer_names_users_and_jobs() -> None:
    said = plan_notes.answer(plan(question=asked(demand=USERS), waiting=31.0))
    assert (
        "The load: 40 requests in flight at all times" in said and "31 users waiting for an answer at a time." in said
    )
    hours = option(hours=2.5, cost=15.0)
    job = plan(hours, question=asked(demand=JOB, slo=Slo()), best=verified(hours, kept=lambda slo: []))
    assert plan_notes.answer(job).startswith("3 x h100-sxm at 15.00 USD, done in 2.5 hours.")


def test_a_confidence_that_no_option_has() -> None:
    unkept = plan(unkept=object())
    said = "no option with a known error keeps the limits at a confidence of 0.8"
    tail = "This plan keeps them if real times are no longer than predicted, which is an even chance"
    assert plan_notes.error_unknown(unkept) == f"{said}. {tail}"
    assert plan_notes.error_unknown(plan()) == ""
    assert plan_notes.error_unknown(plan(unkept=object(), has_confidences=False)) == ""


@for_each(
    ("seconds", "percentile", "said"),
    [(0.5, 99.0, True), (0.4, 99.0, True), (0.39, 99.0, False), (0.5, 95.0, False)],
)
def test_first_tokens_that_come_too_late_for_any_number(seconds: float, percentile: float, said: bool) -> None:
    """The limit is 400 ms; up to the 95th percentile first tokens are no later than the mean."""
    tail = SimpleNamespace(at=lambda share: {0.8: seconds}[share])
    best = verified(result=SimpleNamespace(tail=tail))
    late = plan(unkept=object(), best=best, question=asked(slo=Slo(ttft=0.4, percentile=percentile)))
    text = f" (first tokens at p99 were measured up to {1e3 * seconds:.0f} ms later than predicted: no number of GPUs "
    assert (f"{text}keeps 400 ms)" in plan_notes.error_unknown(late)) is said
    for other in (verified(), verified(result=SimpleNamespace(tail=None))):
        assert "(first tokens" not in plan_notes.error_unknown(plan(unkept=object(), best=other))
    no_limit = plan(unkept=object(), best=best, question=asked(slo=Slo(tpot=0.02, percentile=99.0)))
    assert "(first tokens" not in plan_notes.error_unknown(no_limit)


def test_why_an_error_is_not_known() -> None:
    said = plan_notes.error_unknown
    start = "the error of this plan is not known: "
    ideal = plan(on({"basis": "roofline"}), supported=False)
    assert said(ideal) == f"{start}no measurements support it: times of an ideal device, and real ones are longer"
    few = "a band needs 3 measured systems or models of each; there are"
    assert said(plan(on({}, lacking={"pp": 2, "ep": 0}), supported=False)) == (
        f"{start}too few measurements support pp and ep ({few} 2 of pp, 0 of ep)"
    )
    assert said(plan(on({}, lacking={"pp": 0}), supported=False)).startswith(f"{start}no measurements support pp (")
    kernels = f"{start}no held-out measurements of its kernels"
    assert said(plan(on({}), supported=False, unkept=object())) == kernels
    assert said(plan(on({}), supported=False, unkept=object(), measured=verified())) == (
        f"{kernels}; no option with a known error keeps the limits at a confidence of 0.8"
    )
    assert said(plan(on({}), supported=False, measured=verified())) == kernels


def test_the_other_confidence() -> None:
    said = plan_notes.confidence_line
    assert said(plan(has_confidences=False)) == said(plan(unkept=object())) == ""
    assert said(plan()) == "no option with a known error keeps the limits at a confidence of 0.5"
    cheaper = verified(option(replicas=2, cost=4.0))
    what = "2 x (1 device) on h100-sxm at 4.00 USD/h"
    assert said(plan(other=cheaper)) == f"if the prediction were right, {what} would do (--confidence 0.5)"
    assert said(plan(other=verified())) == ""
    fp8 = verified(option(request=FP8))
    assert "on h100-sxm, in fp8 at 6.00 USD/h would do" in said(plan(other=fp8))
    safe = said(plan(other=cheaper, other_confidence=0.8, confidence=0.5))
    assert safe == f"at a confidence of 0.8 it takes {what} (--confidence 0.8)"


def test_the_checkpoints_own_format() -> None:
    said, own = plan_notes.native_line, verified(option(replicas=5, cost=10.0))
    assert said(plan()) == said(plan(option(request=FP8), question=asked(demand=JOB, slo=Slo()))) == ""
    space = asked().space
    closed = asked(space=replace(space, quants=("fp8",)))
    assert said(plan(option(request=FP8), question=closed)) == ""
    both = asked(space=replace(space, quants=("fp8", None)))
    none = "in the checkpoint's own format no tried option keeps the limits"
    assert said(plan(option(request=FP8), question=both)) == said(plan(option(request=FP8))) == none
    owned = asked(sizing=Sizing(owned=OwnedGpus({"h100-sxm": 3})))
    fewer = " at this load for 3 x h100-sxm; for the most that it carries: --rate most --quant native"
    assert said(plan(option(request=FP8), question=owned)) == none + fewer
    known = "in the checkpoint's own format: 5 x (1 device) on 5 x h100-sxm at 10.00 USD/h"
    assert said(plan(option(request=FP8), native=own)) == f"{known}, 1.67 times the cost"
    unpriced = verified(option(replicas=5, cost=None, tariff=None))
    assert said(plan(option(request=FP8), native=unpriced)).endswith("on 5 x h100-sxm at no price")


def test_what_is_cheaper_with_an_unknown_error() -> None:
    """By the prediction alone, beside what keeps the limits by it: 5.50 - 4.50, and 6 where that is the plan."""
    assert plan_notes.unknown_line(plan()) == "" == plan_notes.unknown_line(plan(unknown=verified(), as_predicted=None))
    cheaper, other = verified(on({}, cost=4.5, replicas=2, lacking={"pp": 1})), verified(option(cost=5.5))
    assert plan_notes.unknown_line(plan(unknown=cheaper, other=other)) == (
        "cheaper by 1.00 USD/h than 3 x (1 device) on h100-sxm at 5.50 USD/h if the prediction is right, with an "
        "unknown error: 2 x (1 device) on h100-sxm at 4.50 USD/h (a band needs 3 measured systems or models of each; "
        "there are 1 of pp)"
    )
    bare = plan_notes.unknown_line(plan(unknown=verified(on({}, cost=None, tariff=None)), other=verified()))
    said = "if the prediction is right, with an unknown error: 3 x (1 device) on h100-sxm at no price"
    assert bare == f"cheaper by 6.00 /h {said}"


def test_a_measured_alternative() -> None:
    said, what = plan_notes.measured_line, "3 x (1 device) on h100-sxm at 6.00 USD/h"
    assert said(plan(has_confidences=False)) == said(plan()) == ""
    assert said(plan(measured=verified())) == f"measured alternative: {what}, on constants of its own device"
    unknown = plan(supported=False)
    assert said(unknown) == "no option with a known error keeps the limits: measure before buying"
    unknown.measured = verified()
    assert said(unknown) == f"measured alternative: {what}, of a kind with a known error, if the prediction is right"


def test_the_chance_of_a_miss() -> None:
    said = plan_notes.miss_line
    stated = SimpleNamespace(sizing=Sizing(miss_cost=500.0))
    unknown = "--miss-cost changes nothing: the chance of a miss of this plan is not known"
    assert said(plan()) == "" and said(plan(question=stated)) == unknown
    one = SimpleNamespace(metrics=["ttft"], chance=0.1, held=0.9, cost=20.0, expected=2.0)
    paid = "a miss costs 20.00 USD/h (more replicas, which would keep it), which is 2.00 USD/h on average"
    assert said(plan(miss=one)) == f"chance of a miss under the load itself: at most 10%; {paid}"
    unpriced = plan(option(tariff=None, cost=None), miss=one)
    assert said(unpriced) == ""
    two = SimpleNamespace(metrics=["tpot", "ttft"], chance=0.3, held=0.85, cost=500.0, expected=150.0)
    assert said(plan(miss=two, question=stated)) == (
        "chance of a miss under the load itself: at most 30% (15% for each of TTFT and TPOT); a miss costs 500.00 "
        "USD/h (--miss-cost), which is 150.00 USD/h on average"
    )
    for chance, known in ((0.995, False), (0.994, True)):
        sure = SimpleNamespace(metrics=["ttft"], chance=chance, held=0.5, cost=1.0, expected=1.0)
        assert ("not bounded by what was measured" in said(plan(miss=sure))) is not known


def test_constants_and_bands() -> None:
    said = plan_notes.basis_line
    assert said(plan(on({"basis": "roofline"}))).startswith("basis: roofline of an ideal device: no measurement stands")
    known = "basis: h100-sxm constants (measured)"
    assert said(plan(on({}, lacking={"pp": 1}))).startswith(f"{known}; no error band: a band needs 3")
    assert said(plan(on({}), supported=False)) == f"{known}; no error band is known for its kernels"
    assert said(plan(on({}), bands={})) == f"{known}; no error band is known for the limited latencies"
    job = plan(on({}), bands={}, question=asked(demand=JOB, slo=Slo()))
    assert said(job) == f"{known}; no error band is known for the time of a job"
    both = {"ttft": (0.81, 1.19), "tpot": (0.9, 1.105)}
    within = "TTFT x 0.81 to x 1.19, TPOT x 0.90 to x 1.10"
    assert (
        said(plan(on({}), bands=both)) == f"{known}; 80 % of held-out means lie within {within} of the predicted means"
    )
    anchored = on({"anchor": SimpleNamespace(rows=[1, 2, 3])})
    assert said(plan(anchored, bands=both)) == (
        f"{known}, anchored to 3 measured runs; 80 % of the means of others lie within {within}"
    )


def test_how_late_first_tokens_are() -> None:
    said, p99 = plan_notes.tail_line, asked(slo=Slo(ttft=0.4, tpot=0.02, percentile=99.0))
    tail = SimpleNamespace(at=lambda share: {0.5: 0.02, 0.9: 0.11}[share], rows=40, systems=5)
    late = verified(result=SimpleNamespace(tail=tail))
    known = (
        "p99: in the middle of 40 measured rows (5 systems) first tokens come 20 ms later than predicted, in 1 of 10 "
        "more than 110 ms later"
    )
    assert said(plan(best=late, question=p99)) == known
    slow = on({}, slow=SimpleNamespace(step=1.0, tail=0.05))
    assert said(plan(slow, best=late, question=p99)).endswith("; 50 ms are kept free for it")
    assert "kept free" not in said(plan(on({}), best=late, question=p99))
    assert said(plan(best=late)) == said(plan(question=p99)) == ""
    assert said(plan(best=late, question=asked(slo=Slo(tpot=0.02, percentile=99.0)))) == ""
    assert said(plan(best=late, question=p99, supported=False)) == said(plan(best=late, question=p99, bands={})) == ""
    none = verified(result=SimpleNamespace(tail=None))
    assert said(plan(best=none, question=p99)) == (
        "p99: how much later first tokens come than predicted is not known: fewer than 3 systems of vllm in this form "
        "were measured"
    )


def test_runs_of_a_server_of_ones_own() -> None:
    said = plan_notes.anchor_lines
    assert said(plan()) == []
    system = SimpleNamespace(describe=lambda: "a server")
    runs = SimpleNamespace(rows=[1, 2], system=system, origin="runs.csv", told=["one", "two"])
    question = SimpleNamespace(space=SimpleNamespace(runs=runs))
    told = ["anchor: one", "anchor: two"]
    line = "anchor: 2 runs of a server, runs.csv; "
    assert said(plan(on({}), question=question)) == [
        f"{line}this plan is of another system, which it does not correct", *told
    ]  # fmt: skip
    own = on({"anchor": object()})
    assert said(plan(own, question=question)) == [f"{line}it corrects this plan", *told]


def test_hosts_and_what_could_not_lie_on_one() -> None:
    assert plan_notes.host_lines(plan(on({}))) == []
    hosted = on({})
    hosted.deployment.elsewhere = (object(),)
    found = plan_notes.host_lines(plan(hosted, searched=searched(host=(1200, "too large"))))
    assert found == [
        "each replica has its own host; the bill covers GPUs, and a host that does not come with them is extra",
        "not tried with weights on the host: 1,200 candidates, such as: too large",
    ]


def sessions(**more: Any) -> Any:
    found: dict[str, Any] = {
        "percentiles": lambda name: {"duration": {"mean": 30.0}}[name], "cached_share": 0.625, "in_system": 12.0,
        "between": lambda percentile: (50.0, 70.0), "whole": SimpleNamespace(sum=lambda: 1500),
    }  # fmt: skip
    return verified(result=SimpleNamespace(sessions=SimpleNamespace(**found | more)))


def test_sessions_of_a_plan() -> None:
    """12 sessions on each of three replicas; devices that are 1.5 times as slow make 30 s 45 s."""
    said, slow = plan_notes.session_line, on({}, slow=SimpleNamespace(step=1.5, tail=0.0))
    assert said(plan()) == said(plan(best=verified(result=SimpleNamespace(sessions=None)))) == ""
    found = (
        "sessions: route all calls of a session to the same replica; 62.5% of prompt tokens are found in its prefix "
        "cache; 36 sessions under way at a time"
    )
    assert said(plan(slow, best=sessions())) == f"{found}, which take 45.0 s on average"
    assert said(plan(slow, best=sessions(percentiles=lambda name: {"mean": None}))) == found
    limited = asked(slo=Slo(ttft=0.4, session=90.0, percentile=95.0))
    what = "; the time of a session p95 is of 1,500 sessions"
    sure = said(plan(slow, best=sessions(), question=limited))
    assert sure.endswith(f"{what} and lies between 75.0 s and 105 s (95 % confidence)")
    unsure = said(plan(slow, best=sessions(between=lambda percentile: None), question=limited))
    assert unsure.endswith(f"{what}, too few to say how sure it is")


def test_what_is_cheaper_and_what_it_would_take() -> None:
    said = plan_notes.cheaper_line
    assert said(plan()) == "no candidate with a known error costs less, whatever the limits"
    assert said(plan(confidence=0.5)) == "no candidate costs less, whatever the limits"
    missed = {"ttft": 1.25, "tpot": 1.1}
    cheap = on({}, cost=4.0, replicas=2, violations=lambda slo: missed)
    what = "2 replicas of it at 4.00 USD/h"
    assert said(plan(cheaper_verified=verified(cheap))) == (
        f"cheaper if the limit on TTFT were 500 ms (x 1.25) and TPOT were 22.0 ms (x 1.10): {what} (closed form)"
    )
    unseen = verified(cheap, violations=lambda slo: {"ttft": 2.0})
    assert said(plan(cheaper_verified=unseen)).endswith("(closed form)")
    seen = verified(cheap, result=object(), violations=lambda slo: {"ttft": 2.0})
    assert said(plan(cheaper_verified=seen)) == f"cheaper if the limit on TTFT were 800 ms (x 2.00): {what} (simulated)"
    short = verified(cheap, result=object(), verdict="too short to tell")
    assert said(plan(cheaper_verified=short)) == f"{what} costs less: too short to tell whether it keeps the limits"
    assert said(plan(cheaper_verified=verified(cheap, result=object()))) == ""
    never = verified(cheap, violations=lambda slo: {"ttft": inf})
    closest = f"the cheaper candidate that comes closest, {what}, cannot keep up with the load"
    assert said(plan(cheaper_verified=never)) == closest
    drafted = on({}, cost=4.0, replicas=2, violations=lambda slo: missed, speculation=SimpleNamespace(length=3))
    assert "2 replicas of it with 3 drafts at 4.00" in said(plan(cheaper_verified=verified(drafted)))
    tiered = plan(on({}, tiers=(object(),)), cheaper_verified=verified(cheap))
    assert "2 replicas of it without cache tiers at 4.00" in said(tiered)
    classes = asked()
    demand = SimpleNamespace(classes=(object(),))
    of_classes = plan(cheaper_verified=verified(cheap), question=SimpleNamespace(demand=demand, slo=classes.slo))
    assert "the limit on TTFT were 1.25 times as long and TPOT were 1.10 times as long" in said(of_classes)


def priced(quant: str | None, gpu: str = "h100-sxm", tariff: Any = "sold") -> Any:
    hardware = SimpleNamespace(hardware=SimpleNamespace(name=gpu))
    return SimpleNamespace(
        request=SimpleNamespace(quant=quant), grid=SimpleNamespace(deployment=hardware), tariff=tariff
    )


def test_what_was_tried() -> None:
    said = plan_notes.search_line
    grids = searched(priced(None), priced("fp8"), priced("fp8"))
    assert said(plan(searched=grids)) == "formats tried: native, fp8 (--quant)"
    assert said(plan(option(request=FP8), searched=grids, unseen=7)) == (
        "formats tried: native, fp8 (--quant); check answers in fp8 on prompts of your own; --quant native leaves "
        "narrower "
        "formats out; 7 structures that might be cheaper were not simulated (fewer --gpu or --quant)"
    )
    rough = verified(result=SimpleNamespace(converged=False, counts={"arrived": 12000}))
    assert said(plan(searched=grids, best=rough)).endswith(
        "; the quoted percentiles come from 12,000 requests and are known within 3 % at best"
    )
    for converged in (True, None):
        fine = verified(result=SimpleNamespace(converged=converged, counts={"arrived": 12000}))
        assert "requests" not in said(plan(searched=grids, best=fine))


def test_what_is_bought() -> None:
    """Three GPUs one by one; an instance of eight holds five that nobody uses."""
    assert plan_notes.price_line(plan(option(tariff=None, cost=None))) == ""
    assert plan_notes.price_line(plan()).startswith("to buy: 3 x h100-sxm ")
    assert "idle" not in plan_notes.price_line(plan())
    eight = Offer(gpu="h100-sxm", gpus=8, per_hour=30.0, currency="USD", term="stated", source="--price")
    whole = option(tariff=Tariff(offers=(eight,), devices=1))
    assert "; you pay for 5 idle GPUs of 8" in plan_notes.price_line(plan(whole))


def test_what_is_taken_for_granted() -> None:
    said = plan_notes.assumptions
    first, second, *rest = said(plan(question=asked(sizing=Sizing(utilisation=0.75, spare=2))))
    assert first == "lengths: prompt fixed 1,000, output fixed 101 tokens; Poisson arrivals"
    assert second == "each replica is loaded to at most 75% of its capacity; 2 spare"
    assert rest == [
        "latencies hold for the engine's flags and the traffic above",
        "prices are as of their dates; energy counts the devices at full TDP, without the building",
    ]
    assert said(plan(question=asked(demand=USERS)))[0].endswith("; 40 requests in flight at all times")
    even = Demand(**LENGTHS, rate=1.0, arrivals="constant")
    assert said(plan(question=asked(demand=even)))[0].endswith("; evenly spaced arrivals")
    bursts = Demand(**LENGTHS, rate=1.0, arrivals="gamma", burstiness=0.5)
    assert said(plan(question=asked(demand=bursts)))[0].endswith("; gamma arrivals of burstiness 0.5")
    apart = said(plan(option(pools=(1, 2))))
    assert apart[-1] == "prompts and decodes on separate pools; the cache moves over the scale-out link"


def test_money_per_month_and_what_to_do() -> None:
    """6 USD an hour are 4,380 in 730 hours."""
    assert plan_notes.monthly(option()) == "4,380 USD per month"
    assert plan_notes.monthly(option(hours=2.0, cost=12.4)) == "12 USD in total"
    assert plan_notes.monthly(option(cost=None)) == plan_notes.monthly(option(tariff=None)) == ""
    bought = "3 x h100-sxm from --price"
    limits = "the first word of an answer within 350 ms, then one token every 12.0 ms or faster"
    assert plan_notes.recommendation(plan()) == (
        f"Run 3 x h100-sxm: 4,380 USD per month ({bought}). At 33 requests per second, 95 of 100 requests get {limits}."
    )
    fp8 = plan(option(request=FP8, tariff=None, cost=None), question=asked(demand=USERS), rate=1234.56)
    assert plan_notes.recommendation(fp8) == (
        "Run 3 x h100-sxm in fp8: no price is on file. With 40 requests in flight at all times (1,235 requests per "
        f"second), 95 of 100 requests get {limits}."
    )
    job = plan(option(hours=2.5, cost=15.0), question=asked(demand=JOB, slo=Slo()))
    assert (
        plan_notes.recommendation(job) == f"Run 3 x h100-sxm: 15 USD in total ({bought}). The job is done in 2.5 hours."
    )


def test_what_may_be_wrong() -> None:
    said = plan_notes.risk
    assert said(plan(on({"basis": "roofline"}))).startswith("No measurement exists for this GPU or a similar one.")
    assert said(plan(on({}), supported=False)).startswith("The error of these times is not known")
    text = said(plan(on({}), bands={"ttft": (0.81, 1.19), "tpot": (0.9, 1.1)}))
    assert text == (
        "These are predictions. In 8 of 10 comparable measurements the mean time to the first token was between "
        "0.81 and "
        "1.19 times the predicted mean and the mean time for each further token was between 0.90 and 1.10 times the "
        "predicted mean. Each limit is kept with a chance of 80%, as far as the error is known."
    )
    assert said(plan(on({}), bands={}, confidence=0.5)) == (
        "These are predictions. No error band is known for the limited latencies."
    )
    job = plan(on({}), bands={}, has_confidences=False, question=asked(demand=JOB, slo=Slo()))
    assert said(job) == "These are predictions. No error band is known for the time of a job."
    for held, kept in ((0.9, "still kept"), (0.89, "missed")):
        text = said(plan(on({}), bands={}, confidence=0.5, miss=SimpleNamespace(held=held)))
        assert text.endswith(f"On devices as slow as the slowest tenth, the limits are {kept} under this load.")


def test_a_format_that_was_chosen_is_named_as_a_risk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_notes, "format_line", lambda plan: "quality in fp8: good")
    assert plan_notes.risk(plan(on({}, request=FP8), supported=False)) == (
        "The error of these times is not known: there are no measurements of a service of this kind. Measure "
        "first. The "
        "model runs in fp8: check that its answers are good enough. In the checkpoint's own format no tried "
        "option keeps "
        "the limits. Quality in fp8: good."
    )


def test_the_plan_at_the_other_confidence() -> None:
    said, two = plan_notes.alternative, verified(option(replicas=2, cost=4.0))
    assert said(plan(has_confidences=False, other=two)) == said(plan()) == ""
    assert said(plan(confidence=0.5)) == (
        "A safer plan cannot be named: no option with a known error keeps the limits at a confidence of 0.8."
    )
    what = "2 x (1 device) on 2 x h100-sxm, 2,920 USD per month"
    assert said(plan(other=two)) == f"If the prediction is right, this would do: {what}."
    assert said(plan(other=two, confidence=0.5)) == f"To keep each limit with a chance of 80%: {what}."
    same = "If the prediction is right, this would do: the same purchase."
    assert said(plan(other=verified())) == same
    fp8 = verified(option(request=FP8, cost=None, tariff=None))
    assert said(plan(other=fp8)).endswith("this would do: 3 x (1 device) on 3 x h100-sxm, in fp8, no price.")


def test_the_first_screen_in_figures() -> None:
    cost, gpus = KeyFigure("cost", "4,380 USD per month", "6.00 USD/h"), KeyFigure("GPUs", "3 x h100-sxm")
    times = [
        KeyFigure("first token, p95", "350 ms", "limit 400 ms"),
        KeyFigure("each further token, p95", "12.0 ms", "limit 20.0 ms"),
    ]
    assert plan_notes.key_figures(plan()) == [cost, gpus, *times]
    known = plan(capacity=SimpleNamespace(factor=1.6, open=False))
    assert plan_notes.key_figures(known)[-1] == KeyFigure("load", "62% of capacity", "carries 1.60 x this")
    wide = plan(capacity=SimpleNamespace(factor=4.0, open=True))
    assert plan_notes.key_figures(wide)[-1] == KeyFigure("load", "25% of capacity", "carries at least 4.00 x this")
    assert len(plan_notes.key_figures(plan(capacity=SimpleNamespace(factor=0.0, open=False)))) == 4
    job = plan(option(hours=2.5, cost=None), question=asked(demand=JOB, slo=Slo()))
    assert plan_notes.key_figures(job) == [
        KeyFigure("cost", "no price", "no price"), gpus, KeyFigure("time of the job", "2.5 h", "limit 10 h")
    ]  # fmt: skip


def lengths(**changes: Any) -> Any:
    return plan(question=asked(demand=replace(Demand(**LENGTHS, rate=1.0), **changes)))


def test_requests_that_are_longer_than_the_context() -> None:
    """The context has 131,072 tokens. Of uniform prompts of 75,000 to 150,000 tokens, with 101 more, 25.4 % are longer:
    (150,000 - 130,971)/75,000, which is about one in four."""
    said = plan_notes.context_line
    assert said(plan()) == said(lengths(prompt=Lengths(kind="uniform", mean=1000, spread=0.5))) == ""
    long = lengths(prompt=Lengths(kind="uniform", mean=150000, spread=0.5))
    start = "about 1 request in 4 is longer than the context of 131,072 tokens and is refused; to cap lengths: "
    assert said(long) == f"{start}lognormal:1500:1.2:16k"
    assert said(lengths(prompt=Lengths(mean=200000))) == ""  # no draw: the model refuses it


def test_formats_and_their_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    said = plan_notes.format_line
    monkeypatch.setattr(plan_notes, "quality_of", lambda model, quant: f"{quant} is good")
    monkeypatch.setattr(plan_notes, "launch_of", lambda plan: "launch")
    needs: list[str] = [""]
    monkeypatch.setattr(plan_notes, "checkpoint_needs", lambda launch: needs[0])
    monkeypatch.setattr(plan_notes, "quantised_checkpoint", lambda model, quant: None)
    chosen = plan(option(request=FP8))
    assert said(plan()) == ""
    assert said(chosen) == "quality in fp8: fp8 is good; the engine converts the released checkpoint"
    needs[0] = "fp8 weights"
    assert said(chosen) == "quality in fp8: fp8 is good"
    start = "start it: inferplan plan ... -o plan.json && inferplan emit vllm plan.json"
    monkeypatch.setattr(plan_notes, "launch_line", lambda plan: None)
    assert plan_notes.start_line(chosen) == f"{start} --checkpoint ORG/NAME (it must hold fp8 weights)"
    known = SimpleNamespace(checkpoint="org/own", shares={"MMLU": 0.99})
    monkeypatch.setattr(plan_notes, "quantised_checkpoint", lambda model, quant: known)
    assert said(chosen) == "quality in fp8: fp8 is good; checkpoint: org/own"
    assert plan_notes.start_line(chosen) == f"{start} --checkpoint org/own (it must hold fp8 weights)"
    needs[0] = ""
    assert (
        said(chosen)
        == "quality in fp8: fp8 is good; evaluated was org/own; the engine converts the released checkpoint"
    )
    known.shares = {}
    assert said(chosen) == "quality in fp8: fp8 is good; the engine converts the released checkpoint"
    known.checkpoint, needs[0] = "", "fp8 weights"
    assert said(chosen) == "quality in fp8: fp8 is good"
    assert plan_notes.start_line(chosen) == f"{start} --checkpoint ORG/NAME (it must hold fp8 weights)"
    needs[0] = ""
    assert plan_notes.start_line(chosen) == f"{start} (prints the commands of its nodes, or why vllm has none)"
    assert (
        plan_notes.start_line(plan(option(pools=(1, 1))))
        == f"{start} (prints the servers of both pools and their router)"
    )
    monkeypatch.setattr(plan_notes, "launch_line", lambda plan: "vllm serve x")
    assert plan_notes.start_line(chosen) == "start each replica: vllm serve x"


def test_a_cache_in_a_narrower_format() -> None:
    """SGLang's documentation, Qwen3-235B-A22B: GSM8K 0.9181 with a cache in fp8 and 0.9168 in 16 bits."""
    said = quality.cache_line
    assert said(None) == said("bf16", 0.9) == ""
    assert said("fp8_e4m3").startswith("quality with a cache in fp8_e4m3: of Qwen3-235B-A22B")
    assert "all of GSM8K" in said("fp8") and "--quality" in said("fp8", 0.9)
    assert said("int8-token-head") == "quality with a cache in int8-token-head: nothing published is on file"


def test_notes_name_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs that nobody measured, and those without a price, but for the plan's own."""
    for name in ("format_line", "start_line", "base_note", "launch_of", "price_line", "media_note"):
        monkeypatch.setattr(plan_notes, name, lambda *_: "")
    monkeypatch.setattr(plan_notes, "host_lines", lambda plan: [])
    grids = searched(
        priced(None, "l4", None), priced(None, "a10g", None), priced(None, "h100-sxm", None), priced(None, "l40s"),
        unmeasured=(3, "mi210"),
    )  # fmt: skip
    found = plan_notes.notes(plan(searched=grids))
    assert "" not in found
    assert found[-2:] == [
        "not compared, because neither it nor a similar GPU was measured: mi210 (to plan for it: --gpu NAME)",
        "without a price, on the frontier only: a10g, l4 (--price a10g=...)",
    ]
    fewer = plan_notes.notes(plan(searched=searched(priced(None))))
    assert not any("not compared" in line or "without a price" in line for line in fewer)


def test_drafts_at_this_load(monkeypatch: pytest.MonkeyPatch) -> None:
    said, drafting = plan_notes.speculation_line, SimpleNamespace(describe=lambda: "3 drafts of x")
    sides = {True: None, False: verified(achieved={"tpot": 0.02})}
    monkeypatch.setattr(plan_notes, "break_even_batch", lambda plan, drafted: 96)
    monkeypatch.setattr(plan_notes, "screened_costs", lambda plan: {0: 6.0, 3: 4.0})
    monkeypatch.setattr(plan_notes, "cheapest_drafting", lambda plan: None)
    drafted = plan(cheapest=lambda drafts: sides[drafts], drafts_help=False)
    assert said(drafted) == ""
    monkeypatch.setattr(plan_notes, "cheapest_drafting", lambda plan: drafting)
    where = " by the prediction itself (the error with drafts is not known)"
    without = "6.00 USD/h and TPOT p95 20.0 ms without"
    assert said(drafted) == (
        f"speculation (3 drafts of x) does not help at this load{where}: no option meets the limits with them; "
        f"{without}"
    )
    sides[True] = verified(option(cost=4.0), achieved={"tpot": 0.01})
    drafted.drafts_help, drafted.confidence = True, 0.5
    assert said(drafted) == (
        f"speculation (3 drafts of x) helps at this load: 4.00 USD/h and TPOT p95 10.0 ms with them; {without}; on "
        "h100-sxm, 1 device the drafts slow down batches of 96 or more (here 64 per rank)"
    )
    monkeypatch.setattr(plan_notes, "screened_costs", lambda plan: {0: 6.0, 3: 4.0, 5: None})
    tried = "; by drafted tokens, before simulation, in USD: 0: 6.00, 3: 4.00, 5: no plan"
    assert tried in said(drafted)
    drafted.option = option(tariff=None)
    assert "by drafted tokens" not in said(drafted)
    monkeypatch.setattr(plan_notes, "break_even_batch", lambda plan, drafted: None)
    assert said(drafted).endswith("without")


def test_costs_by_drafted_tokens() -> None:
    """The cheapest of each number, 0 for none; none of what has no price or was not tried."""
    tried = [option(cost=7.0), option(cost=6.0), option(cost=None), option(cost=6.5)]
    three, five = (SimpleNamespace(speculation=SimpleNamespace(length=n), cost=c) for n, c in ((3, 4.0), (5, None)))
    space = SimpleNamespace(drafting=[SimpleNamespace(length=3), SimpleNamespace(length=5)])
    found = plan(
        question=SimpleNamespace(space=space), searched=SimpleNamespace(options=[*tried, three, five])
    )  # fmt: skip
    assert plan_figures.screened_costs(found) == {0: 6.0, 3: 4.0, 5: None}


def test_users_of_a_load() -> None:
    said = plan_figures.load_of_users
    assert said(plan(question=asked(demand=USERS))) == ""
    waiting = plan(question=asked(demand=THINKERS), waiting=130.4, rate=31.0)
    assert said(waiting) == "31 requests/s, 130 users waiting for an answer at a time"
    for count, words in ((0.99, "fewer than 1 user"), (1.0, "1 user"), (1.49, "1 user"), (1234.0, "1,234 users")):
        waiting.waiting = count
        assert words in said(waiting)
    samples = plan(question=asked(demand=replace(THINKERS, samples=2)), waiting=2.0, rate=4.0)
    assert said(samples).startswith("4 answers/s, 2 users")
    office = replace(USERS, prefix=THINKERS.prefix, people=People(count=9, think=ThinkTime(mean=60.0)))
    assert said(plan(question=asked(demand=office), waiting=2.0)) == ""


def test_how_much_of_the_load_is_carried() -> None:
    said, bounded = plan_figures.served_line, asked(sizing=Sizing(max_cost=8.0))
    known = SimpleNamespace(factor=1.25, open=False)
    assert said(plan(capacity=known)) == said(plan(question=bounded)) == ""
    found = said(plan(question=bounded, capacity=known))
    assert found == (
        "yes, at a confidence of 0.8: 33 requests/s are 80% of the capacity of 3 x h100-sxm in settings for this "
        "load; the most for 8.00 USD/h: --rate most"
    )
    even = said(plan(question=bounded, capacity=known, unkept=object(), confidence=0.5))
    assert even.startswith("not at a confidence of 0.8; if the prediction is right (an even chance), 33 requests/s are")
    nobody = said(plan(question=bounded, capacity=known, unkept=object(), confidence=0.5, supported=False))
    assert "even chance" not in nobody and "yes" not in nobody
    most = said(plan(question=replace(bounded, most=True), capacity=known))
    assert most.startswith("the most for 8.00 USD/h: 33 requests/s, with ")
    assert most.endswith(", at a confidence of 0.8, at 80% of capacity")
    full = asked(sizing=Sizing(max_cost=8.0, utilisation=1.0))
    whole = said(plan(question=replace(full, most=True), capacity=known, has_confidences=False))
    assert "confidence" not in whole and "of capacity" not in whole


def test_a_cost_beside_another() -> None:
    assert [plan_notes.times_the_cost(factor) for factor in (1.004, 0.996, 1.25)] == [
        ", at the same cost", ", at the same cost", ", 1.25 times the cost"
    ]  # fmt: skip


def test_energy_at_full_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three devices of 700 W (NVIDIA's data sheet of the H100 SXM) for 33 x 101 tokens a second."""
    found = plan_figures.energy_of(plan())
    assert found is not None and (found.power, found.devices, found.share) == (700.0, 3, 1.0)
    monkeypatch.setattr(plan_figures, "PowerBudget", lambda watts: SimpleNamespace(least=lambda kinds: 525.0))
    capped = plan_figures.energy_of(plan())
    assert capped is not None and capped.share == 0.25  # 525 W of 2,100 W
    monkeypatch.undo()
    nameplate = {one.key: one for one in plan_figures.power(plan(best=verified(watts=1500.0))) or []}
    assert nameplate["nameplate_w"].value == 2100.0 and nameplate["nameplate_w"].shown == "2.1 kW"
    assert nameplate["mean_w"].value == 1500.0 and nameplate["mean_w"].shown.startswith("1.5 kW, 450")
    assert nameplate["j_per_output_token"].value == pytest.approx(1500 / (33 * 101))
    assert nameplate["budget_w"].value is None and nameplate["provision"].value is None
    budget = SimpleNamespace(
        beside=PowerBudget(watts=1.0).beside, describe=lambda: "3 kW", watts=3000.0, provision="mean"
    )  # fmt: skip
    bounded = plan(question=SimpleNamespace(sizing=SimpleNamespace(power=budget)))
    held = {one.key: one for one in plan_figures.power(bounded) or []}
    assert held["nameplate_w"].shown == "2.1 kW, budget 3 kW"
    assert (held["budget_w"].value, held["provision"].value) == (3000.0, "mean")
    unknown = {one.key: one for one in plan_figures.power(plan()) or []}
    assert not unknown["mean_w"].seen and unknown["j_per_output_token"].value is None


def test_a_drafting_is_named_where_it_was_tried() -> None:
    tried = (Drafting, SimpleNamespace(name="first"))
    space = SimpleNamespace(drafting=[], drafting_of=lambda speculation: None)
    found = plan(question=SimpleNamespace(space=space), cheapest=lambda drafts: None)
    assert plan_figures.cheapest_drafting(found) is None
    space.drafting = [tried[1]]
    assert plan_figures.cheapest_drafting(found) is tried[1]
    found.cheapest = lambda drafts: verified() if drafts else None
    assert plan_figures.cheapest_drafting(found) is tried[1]
    space.drafting_of = lambda speculation: "its own"
    assert plan_figures.cheapest_drafting(found) == "its own"


def test_the_price_of_a_plan_has_its_age() -> None:
    import datetime

    old = replace(OFFER, date=datetime.date(2020, 1, 1), source="aws")
    assert plan_figures.dated_money(option()) == "6.00 USD/h"
    assert plan_figures.dated_money(option(tariff=Tariff(offers=(old,), devices=1))).startswith("6.00 USD/h (prices ")
    assert plan_figures.money(option(hours=1.0)) == "6.00 USD"
    assert plan_figures.money(option(cost=1234.5)) == "1,234.50 USD/h"


def test_devices_of_both_kinds() -> None:
    assert plan_figures.devices(option(replicas=2, spare=1)) == "3 x h100-sxm"
    assert plan_figures.gpus(option()) == "h100-sxm"
    assert plan_figures.shape(option(pools=(1, 2))) == "1 prefill + 2 decode, each 1 device"
    assert plan_figures.shape(option(speculation=Speculation(length=3))).startswith("3 x (1 device, 3 drafts")


PRICED = CacheTier(name="host", capacity=256e9, bandwidth=25e9, price=TierPrice(0.004 / 730, "USD"))


def test_tiers_in_their_lines() -> None:
    from inferplan.reports.plan_tiers import chain_text, tier_lines

    shared = CacheTier(name="store", capacity=20e12, bandwidth=5e9, shared=True)
    assert chain_text((PRICED, shared)) == "host 256.0 GB + store 20.00 TB, shared" and chain_text(()) == "none"
    assert tier_lines(plan()) == []


def test_notes_become_sentences() -> None:
    assert plan_notes.sentence("") == "" and plan_notes.sentence("a b") == "A b."


def test_what_separate_pools_would_cost() -> None:
    """Nothing is said where none were tried, or where the plan is one of them. The closed form is a lower bound: it
    names no layout, and nothing to run."""
    said, tried = plan_notes.apart_line, SimpleNamespace(structures_apart=1)
    what = "prompts and decodes on separate pools"
    assert said(plan(apart_at_least=option(cost=9.0))) == ""
    assert said(plan(option(pools=(1, 1)), searched=tried)) == ""
    assert said(plan(searched=tried)) == f"{what}: no tried option keeps the limits"
    least = option(cost=9.0, pools=(2, 1))
    dear = f"{what} would not cost less: at least 9.00 USD/h in closed form, not simulated; one pool by the same"
    one = {"other": verified(option(cost=8.0)), "searched": tried}
    assert said(plan(option(cost=12.0), **one, apart_at_least=least)) == f"{dear} prediction: 8.00 USD/h"
    bound = "(at least 4.00 USD/h in closed form, not simulated); one pool by the same prediction: 8.00 USD/h"
    assert said(plan(**one, apart_at_least=option(cost=4.0, pools=(1, 1)))) == (
        f"{what}: no simulated layout that costs less keeps the limits {bound}"
    )


def test_the_command_that_simulates_separate_pools() -> None:
    """It has the lengths, the flags of both pools and the limits. vLLM admits 1,024 sequences on an H100 unless it is
    told (vllm/engine/arg_utils.py); two GPUs at 2 USD an hour each cost 4."""
    said, tried = plan_notes.apart_line, SimpleNamespace(structures_apart=1)
    apart = option(cost=4.0, replicas=2, pools=(1, 1), slots=64, prompt_budget=8192)
    other = verified(option(cost=5.0, request=FP8))
    found = {"searched": tried, "apart_at_least": apart, "apart": verified(apart), "other": other}
    line = said(plan(**found))
    assert line.startswith(
        "prompts and decodes on separate pools: 4.00 USD/h (2 GPUs) for 1 prefill + 1 decode, each 1 device, in "
        "native, TTFT p95 350 ms, TPOT p95 12.0 ms (simulated, if the prediction is right); one pool by the same "
        "prediction: 5.00 USD/h (3 GPUs) for 3 x (1 device), in fp8, 1.00 more; to buy: 2 x h100-sxm at 2.00 USD/h"
    )
    pools = "--prefill-replicas 1 --decode-replicas 1 --max-num-batched-tokens 2048 --max-num-seqs 64"
    flags = f"{pools} --prefill-max-num-seqs 1024 --ttft 0.4s --tpot 0.02s"
    first = (
        "simulate them: inferplan simulate llama-3.1-8b --gpu h100-sxm --ideal --prefill-max-num-batched-tokens 8192"
    )
    assert line.endswith(f"; {first} --rate 33 --prompt 1000 --output 101 {flags}")
    spread = {
        "prompt": Lengths(kind="lognormal", mean=1155, spread=0.96),
        "output": Lengths(kind="gamma", mean=9, spread=2),
    }
    bursts = asked(demand=Demand(**spread, rate=2.5, arrivals="gamma", burstiness=0.5))
    more = "--arrivals gamma --burstiness 0.5 --rate 2.5 --prompt lognormal:1155:0.96 --output gamma:9:2"
    assert said(plan(**found, question=bursts)).endswith(f"{more} {flags}")
    part = "simulate --prefill-replicas 1 --decode-replicas 1 with this load tries them"
    turns = asked(demand=Demand(**LENGTHS, rate=2.5, prefix=SharedPrefix(turns=4, think=ThinkTime(mean=60.0))))
    assert said(plan(**found, question=turns)).endswith(part)
    found["apart"] = verified(replace(apart, request=replace(REQUEST, prune="layers=4")))  # which no option there says
    assert said(plan(**found)).endswith(part)


def test_a_limit_made_for_shorter_prompts_is_said_first() -> None:
    """500 ms for 4,096 tokens are 3.9 s for 32,000, 4 s in one digit; a plan that would save less than 5 % is not worth
    a line."""
    limit = BorrowedLimit(workload="rag", ttft=0.5, own=4096, prompt=32000)
    assert 0.5 * 32000 / 4096 == 3.90625 and limit.scaled == 4.0
    assert BorrowedLimit(workload="rag", ttft=0.3, own=1000, prompt=2300).scaled == 0.69
    question = replace(asked(), borrowed=limit)
    whose = "The TTFT limit of 500 ms is that of workload rag for its prompts of 4,096 tokens; these have 32,000"
    cheap = plan(question=question, in_proportion=verified(option(cost=2.0)))
    cost = "in proportion, with --ttft 4s, a plan costs 2.00 USD/h or less, not 6.00 USD/h; state --ttft to choose"
    assert plan_notes.answer(cheap).startswith(f"{whose}; {cost}. 3 x h100-sxm at 6.00 USD/h")
    assert plan_notes.limit_line(plan(question=question)).endswith(
        "; in proportion it is --ttft 4s; state --ttft to choose"
    )
    assert plan_notes.limit_line(plan(question=question, in_proportion=verified(option(cost=5.8)))) == ""
    assert plan_notes.limit_line(plan(in_proportion=verified(option(cost=2.0)))) == ""


def test_whose_limit_is_made_for_shorter_prompts() -> None:
    """rag has 500 ms for 4,096 tokens (configs/workloads/rag.yaml): more than 8,192 are much longer."""
    rag, values = load_workload("rag"), {"prompt": "8193", "ttft": None, "slo": None}
    found = borrowed_limit(values, rag)
    assert found == BorrowedLimit(workload="rag", ttft=0.5, own=4096, prompt=8193)
    for other in ({"prompt": "8192"}, {"prompt": None}, {"ttft": 0.5}, {"slo": "chat"}):
        assert borrowed_limit({**values, **other}, rag) is None
    assert borrowed_limit(values, None) is None
    assert borrowed_limit(values, load_workload("reasoning")) is None  # it has no limits


def test_a_checkpoint_beside_the_file_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the command needs one; an encoder-decoder has no command."""
    line: list[Any] = [None]
    monkeypatch.setattr(plan_notes, "launch_line", lambda plan: line[0])
    monkeypatch.setattr(plan_notes, "_checkpoint", lambda plan: "--checkpoint org/fp8")

    def said(quant: str | None = "fp8", encoder: Any = None) -> str:
        engine = SimpleNamespace(name="vllm")
        deployment = SimpleNamespace(model=SimpleNamespace(encoder=encoder), engine=engine)
        of: Any = SimpleNamespace(option=SimpleNamespace(request=SimpleNamespace(quant=quant), deployment=deployment))
        return plan_notes.checkpoint_line(of)

    assert said() == "to start it: inferplan emit vllm FILE --checkpoint org/fp8"
    assert said(quant=None) == said(encoder="encoder") == ""
    line[0] = "vllm serve"
    assert said() == ""


def test_the_order_in_which_classes_are_admitted() -> None:
    def said(queue: str, engine: str) -> str:
        demand, engine_of = SimpleNamespace(queue=queue), SimpleNamespace(name=engine)
        of: Any = SimpleNamespace(question=SimpleNamespace(demand=demand), deployment=SimpleNamespace(engine=engine_of))
        return plan_notes.queue_line(of)

    assert said("priority", "vllm").startswith("classes: vLLM is started with --scheduling-policy priority")
    assert said("fcfs", "vllm") == ""


def test_prices_of_lists_and_of_the_user() -> None:
    def of(gpu: str, source: str) -> Any:
        return SimpleNamespace(offer=SimpleNamespace(gpu=gpu, source=source))

    assert plan_notes._listed([of("h100", "a list"), of("l4", plan_notes.STATED)]) == ["h100"]


def test_requests_longer_than_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 in 4 of half of the requests; a trace and sessions have their own lengths."""
    monkeypatch.setattr(plan_notes, "above_at_most", lambda lengths, context: 1.0)
    draws = SimpleNamespace(kind="lognormal", sample=lambda rng, count: np.where(np.arange(count) % 4 == 0, 900, 100))
    short = SimpleNamespace(kind="fixed", sample=lambda rng, count: np.full(count, 50))
    kinds = [
        SimpleNamespace(share=0.5, prompt=draws, output=short),
        SimpleNamespace(share=0.5, prompt=short, output=short),
    ]

    def said(context: int | None = 800, **more: Any) -> str:
        told = {"trace": None, "sessions": None, "classes": kinds, "prompt": short, "output": short}
        deployment = SimpleNamespace(model=SimpleNamespace(max_context=context))
        of: Any = SimpleNamespace(
            option=SimpleNamespace(deployment=deployment),
            question=SimpleNamespace(demand=SimpleNamespace(**told | more)),
        )
        return plan_notes.context_line(of)

    assert said().startswith("about 1 request in 8 is longer than the context of 800 tokens")
    assert said(classes=(), prompt=draws).startswith("about 1 request in 4 is longer")
    assert said(950) == said(None) == said(trace=1) == said(sessions=1) == said(classes=()) == ""


def test_limits_that_an_idle_replica_barely_keeps() -> None:
    """What twice the limit saves is said where it is a tenth or more."""
    edge = Edge("ttft", 0.25, 0.4)
    said = "! the limit on TTFT is near what an idle replica takes, 250 ms of 400 ms for the prompt of p95 alone"
    cheaper, hardly = option(cost=2.0), option(cost=5.8)
    lines = [plan_notes.edge_lines(plan(edges=[(edge, looser)]))[0] for looser in (cheaper, hardly, None)]
    assert all(line.startswith(said) for line in lines)
    assert "with --ttft 800ms a plan is" in lines[0] and lines[1] == lines[2] and "--ttft" not in lines[1]


def test_a_looser_limit_that_costs_less_is_said_once() -> None:
    """4.00 USD/h at 2.5 times the limit is no news where twice the limit takes as little; at 1.9 times, or where that
    takes 4.50, it is."""
    edge, said = Edge("ttft", 0.25, 0.4), plan_notes.cheaper_line
    far, near = ({"ttft": factor} for factor in (2.5, 1.9))
    for missed, looser, told in ((far, 2.0, False), (far, 4.0, False), (far, 4.5, True), (near, 2.0, True)):
        cheap = verified(on({}, cost=4.0, replicas=2, violations=lambda slo, missed=missed: missed))
        asked = plan(cheaper_verified=cheap, edges=[(edge, on({}, cost=looser, replicas=3))])
        assert bool(said(asked)) is told
        record = plan_record._cheaper_record(asked)
        assert record is not None
        assert (record["cost"], record["replicas"]) == ((4.0, 2) if told else (looser, 3))
        assert record["relax"] == (missed if told else {"ttft": 2.0})
