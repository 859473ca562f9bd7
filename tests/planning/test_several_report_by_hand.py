"""The report on several models on shared machines, of an answer that is written down here; and bars of progress."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from inferplan.figures import record
from inferplan.planning.machines import OWNED
from inferplan.reports import progress
from inferplan.reports import several as report
from inferplan.traffic.popularity import Popularity
from inferplan.traffic.requests import Slo


class Size(SimpleNamespace):
    """A size that a machine has room for."""

    def __hash__(self) -> int:
        return hash(self.devices)


SIZES = {name: Size(gpu="h100", devices=devices) for name, devices in (("two", 2), ("four", 4))}


def stage(name: str, **more: Any) -> Any:
    found = {
        "name": name, "limits": Slo(ttft=0.5, percentile=95.0), "after": None, "shares": None, "share": 1.0,
        "rate": 10.0, "adapters": None,
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def member(of: Any, size: str = "two", gpu: str = "h100", **more: Any) -> Any:
    deployment = SimpleNamespace(
        model=SimpleNamespace(name=f"{of.name}-model"), parallel=SimpleNamespace(describe=lambda: "tp2"), lora=None
    )
    found = {
        "stage": of, "size": SIZES[size], "gpu": gpu, "deployment": deployment, "replicas": None,
        "request": SimpleNamespace(quant=None), "prompt": SimpleNamespace(average=700.0),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def offer(**more: Any) -> Any:
    found = {"source": "a list", "what": "a box of 8", "instance": "box", "per_hour": 4.0, "remarks": ["a remark"]}
    return SimpleNamespace(**found | more)


def machine(**more: Any) -> Any:
    """Eight GPUs that hold four small replicas or two large ones, for 20 EUR an hour."""
    found = {"holds": {SIZES["two"]: 1, SIZES["four"]: 1}, "offer": offer(), "gpus": 8, "units": 1, "price": 20.0}
    return SimpleNamespace(**found | more)


def run(steady: bool = True) -> Any:
    return SimpleNamespace(
        steady=steady,
        counts={"arrived": 9},
        verdict="stable",
        goodput=9.5,
        percentiles=lambda key: {"mean": 0.25},
        conditions={"adapter_load": None},
    )


def plan(*stages: Any, **more: Any) -> Any:
    """Two models: 3 replicas of 2 GPUs each, and 1,500 of 4."""
    stages = stages or (stage("chat"), stage("judge", after=0, share=0.25))
    members = more.pop("members", [member(one, size) for one, size in zip(stages, ("two", "four"))])
    domain = SimpleNamespace(replicas={0: 3, 1: 1}, used=[(machine(), 2)])
    asked = SimpleNamespace(
        members=members, stages=stages, domains=1, surge=0, utilisation=0.8,
        prices=SimpleNamespace(currency="EUR", remarks=lambda names: [f"remarks on {', '.join(names)}"]),
        swap=lambda place: None, together=lambda place: [place],
    )  # fmt: skip
    found: dict[str, Any] = {
        "asked": asked, "replicas": {0: 3, 1: 1500}, "cost": 40.0, "devices": 6006, "gpus": 6400, "keeps": True,
        "bought": SimpleNamespace(gap=0.0, domains=[domain], used=[(machine(), 2)], least_left=lambda place: place + 1),
        "run": SimpleNamespace(
            stages=stages, asked=[SimpleNamespace(run=run()) for _ in stages], answers={}
        ),
        "lost": {0: 2, 1: 5}, "tried": [], "alone": [], "too_short": False, "binding": ("ttft", "memory"),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


@pytest.fixture(autouse=True)
def parts_of_other_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    at = {"ttft": 0.35, "tpot": 0.02, "e2el": inf}
    monkeypatch.setattr(report, "at_percentile", lambda run, name, percentile: at.get(name, 0.0) if percentile else 0)
    monkeypatch.setattr(report, "keeps_own", lambda run, stage: True)
    monkeypatch.setattr(report, "host_of", lambda stages, place: place)
    monkeypatch.setattr(report, "reach", lambda stages: [1.0, 0.25])
    monkeypatch.setattr(report, "rate_of_stage", lambda stages, place: stages[place].rate)
    monkeypatch.setattr(report, "deployment_record", lambda deployment: {"model": deployment.model.name})
    monkeypatch.setattr(report, "error_record", list)
    monkeypatch.setattr(report, "error_notes", lambda served, unmeasured: [f"errors of {len(served)}: {unmeasured}"])


def cells(row: Any) -> dict[str, str]:
    return {one.label: one.shown for one in row if one.label is not None and one.seen}


def test_a_model_as_a_row() -> None:
    whole = plan()
    first, second = report._model(whole, 0), report._model(whole, 1)
    shown = cells(first)
    assert (shown["model"], shown["replica"], shown["asked"]) == ("chat", "chat-model, h100, tp2, native", "by users")
    assert (shown["requests/s"], shown["replicas"], shown["GPUs"], shown["keeps"]) == ("10", "3", "6", "yes")
    assert shown["TTFT p95"] == "350 ms (< 500 ms)" and "percentile" not in shown
    assert cells(second)["asked"] == "0.25 of chat" and cells(second)["GPUs"] == "6,000"
    found = record(second)
    assert (found["after"], found["share_of_stream"], found["devices"], found["given"]) == ("chat", 0.25, 6000, False)
    assert found["binding"] == "memory"
    assert (found["e2el_s"], found["goodput_requests_per_s"], found["ttft_mean_s"]) == (None, 9.5, 0.25)
    assert found["replicas_needed_while_lost"] is found["replicas_left_while_lost"] is None
    whole.asked.domains = 2
    found = record(report._model(whole, 1))
    assert (found["replicas_needed_while_lost"], found["replicas_left_while_lost"]) == (5, 2)


def test_models_with_other_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Percentiles that differ have a column; a model on the GPUs of another has none of its own."""
    one, other = stage("chat"), stage("titles", shares=0, limits=Slo(percentile=90.0))
    whole = plan(one, other, members=[member(one, replicas=3), member(other)])
    row = report._model(whole, 1)
    shown = cells(row)
    assert (shown["percentile"], shown["GPUs"], shown["keeps"]) == ("90", "with chat", "-")
    assert record(row)["shares_gpus_of"] == "chat" and record(report._model(whole, 0))["given"] is True
    assert "TTFT" in shown and "TTFT p90" not in shown
    monkeypatch.setattr(report, "keeps_own", lambda run, stage: False)
    assert cells(report._model(whole, 0))["keeps"] == cells(report._model(whole, 1))["keeps"] == "no"
    whole.run.asked = [SimpleNamespace(run=run(steady=False)), SimpleNamespace(run=None)]
    grows, none = report._model(whole, 0), report._model(whole, 1)
    assert record(grows)["ttft_s"] is record(none)["ttft_s"] is record(none)["verdict"] is None
    assert record(grows)["verdict"] == "stable" and cells(grows)["TTFT"] == "- (< 500 ms) !"
    quant = member(one, gpu="", request=SimpleNamespace(quant="fp8"))
    assert report._replica(quant) == "chat-model, tp2, fp8"


def test_what_stands_on_machines() -> None:
    """Two boxes hold two replicas of each size: of three small ones a third is left over."""
    whole = plan()
    (content,) = report._contents(whole)
    assert (content.domain, content.number, content.inside) == (1, 2, {"chat": 2, "judge": 1})
    row = report._machine(whole, content)
    assert cells(row) == {
        "machines": "2", "what": "a box of 8", "replicas there": "2 x chat, 1 x judge", "GPUs": "16", "idle": "8",
        "EUR/h": "40.00",
    }  # fmt: skip
    assert record(row)["domain"] is None and record(row)["source"] == "rented"
    content.machine.units = 3
    row = report._machine(whole, content)
    assert (cells(row)["machines"], record(row)["machines"]) == ("6", 6)
    whole.asked.domains, whole.asked.together = 2, lambda place: [0, 1]
    content.machine.offer = offer(source=OWNED, instance="")
    row = report._machine(whole, content)
    assert cells(row)["what"] == "h100, owned" and cells(row)["domain"] == "1"
    assert cells(row)["replicas there"] == "2 x chat + judge, 1 x chat + judge"
    assert record(row)["source"] == "owned" and record(row)["instance"] is None
    roomy = plan()
    roomy.bought.domains = [SimpleNamespace(replicas={0: 3, 1: 0}, used=[(machine(), 5), (machine(), 1)])]
    first, second = report._contents(roomy)
    assert (first.inside, second.inside) == ({"chat": 3}, {})


def answers(**more: Any) -> Any:
    found = {
        "slo": Slo(e2el=5.0, percentile=95.0), "e2el": [1.0, 2.0], "attained": 0.875, "goodput": 9.25, "keeps": True,
        "mean": lambda name: 0.5 if name == "ttft" else inf, "at": lambda name, q: q / 100,
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def test_what_users_see() -> None:
    first, last = (cells(row) for row in report._seen(plan(), 0, answers()))
    assert (first["stream"], first[""], first["mean"], first["p95"]) == (
        "chat",
        "anything seen",
        "500.0 ms",
        "950.0 ms",
    )
    assert (first["limit"], first["within limits"], first["goodput, requests/s"]) == ("", "87.5%", "9.25")
    assert (last["stream"], last[""], last["mean"], last["limit"]) == ("", "end to end", "-", "p95 < 5.00 s")
    assert (last["within limits"], last["goodput, requests/s"]) == ("", "")
    free = answers(slo=Slo(percentile=95.0))
    assert next(cells(row) for row in report._seen(plan(), 0, free))["within limits"] == ""
    found = report._answers(plan(), 0, answers())
    assert (found["stream"], found["requests"], found["slo"]) == ("chat", 2, {"e2el_s": 5.0})
    assert found["ttft_s"]["mean"] == 0.5 and found["e2el_s"]["mean"] is None and found["ttft_s"]["p95"] == 0.95
    assert found["at_percentile"] == {"ttft_s": 0.95, "e2el_s": 0.95}
    assert (found["slo_attained"], found["goodput_requests_per_s"]) == (0.875, 9.25)
    assert report._answers(plan(), 0, free)["slo_attained"] is None


def alone(**more: Any) -> Any:
    found = {
        "member": member(stage("judge")), "replicas": 1234, "cost": 50.0, "cascade": 40.0, "before": 10.0,
        "break_even": 0.8, "missing": "",
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def test_a_cascade_or_its_last_model() -> None:
    table = report._alone_table(plan(alone=[alone(), alone(replicas=None, break_even=None)]))
    assert list(table.rows) == [
        ["cascade up to judge", "", "40.00", "0.8"], ["judge alone", "1,234", "50.00", ""],
        ["cascade up to judge", "", "40.00", "-"], ["judge alone", "keeps no limit", "-", ""],
    ]  # fmt: skip
    found = report._alone(alone(cost=inf, missing="why"))
    assert (found["cost_per_hour"], found["missing"], found["break_even_share"]) == (None, "why", 0.8)


def test_kinds_of_replicas() -> None:
    small, none = member(stage("chat")), member(stage("judge"), "four")
    kinds = [
        SimpleNamespace(member=small, replicas=1500, taken=True, missing=""),
        SimpleNamespace(member=none, replicas=0, taken=False, missing="too slow"),
    ]
    assert list(report._kinds_table(plan(tried=kinds)).rows) == [
        ["chat", "chat-model, h100, tp2, native", "1,500", "3,000", "taken"],
        ["judge", "judge-model, h100, tp2, native", "none", "", "too slow"],
    ]
    found = [report._kind(one) for one in kinds]  # type: ignore[arg-type]
    assert (found[0]["replicas"], found[0]["missing"], found[1]["replicas"]) == (1500, None, None)
    assert (found[1]["missing"], found[1]["devices"], found[0]["taken"]) == ("too slow", 4, True)


SIZED = (
    "replicas are sized for 1.25 times the load (--utilisation 0.8); latencies are for the load itself, in simulation"
)


def notes(of: Any) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "_offers", lambda used, prices: ["offers"])
        return report._notes(of)


def test_adapters_of_a_model() -> None:
    """Nine of twelve requests find theirs in its slot; the others load it, each in 30 ms."""
    whole = plan(stage("chat", adapters=Popularity(count=50, skew=0.0)), stage("plain"))
    whole.asked.members[0].deployment.lora = SimpleNamespace(rank=16, slots=8)
    meters = [SimpleNamespace(adapters_found=found, adapters_loaded=1) for found in (4, 2, 3)]
    whole.run.asked[0].run = SimpleNamespace(conditions={"adapter_load": {"seconds": 0.03}}, meters=meters)
    assert report._adapters(whole) == [
        "chat: 50 adapters, all asked for alike, of rank 16; 75.00% found in 8 slots; 3 loaded, 30.00 ms each"
    ]


def test_sentences_below_several_models() -> None:
    one = stage("chat")
    alone_ = plan(one, members=[member(one)])
    assert notes(alone_) == [SIZED, "errors of 1: ", "offers", "remarks on h100"]
    given = plan(one, members=[member(one, replicas=3)])
    assert notes(given)[0] == "errors of 1: "
    cascade = notes(plan(keeps=False, too_short=True))
    assert cascade[1].startswith("a model whose answers may be passed on") and cascade[2].startswith(
        "! a limit is missed"
    )
    assert cascade[3].startswith("! a run is too short") and cascade[4] == (
        "errors of 2: models in sequence, or on the same GPUs"
    )
    slow = plan()
    slow.bought.gap = 0.01
    assert "! the solver was stopped: cheaper machines may exist" in notes(slow)
    sharer = stage("titles", shares=0)
    both = plan(one, sharer, members=[member(one, replicas=3), member(sharer)])
    assert notes(both)[0].startswith("models on the same GPUs take turns")
    swap = SimpleNamespace(keep_alive=30.0, seconds=lambda gone, come: 1.5 if gone == 0 else 2.5)
    both.asked.swap, both.asked.together = (lambda place: swap), (lambda place: [0, 1])
    assert notes(both)[0] == (
        "one of chat, titles is awake at a time, and stays awake for 30.0 s after its last request; a switch: chat to "
        "titles 1.50 s, titles to chat 2.50 s"
    )
    assert len(report._turns(both)) == 1 and not any("take turns" in line for line in notes(both))


def test_sentences_about_cascades() -> None:
    dear = notes(plan(alone=[alone(cascade=60.0)]))
    assert dear[2] == "! judge alone keeps the limits and is cheaper: the cascade costs 10.00 EUR/h more"
    assert dear[3].startswith("break-even: 1 - 10.00/50.00 = 0.8 of the requests may reach judge")
    even = notes(plan(alone=[alone(cascade=50.0)]))
    assert even[2].startswith("break-even: ")
    never = notes(plan(alone=[alone(break_even=0.0, cascade=60.0)]))
    assert never[3] == "no share pays: the models before judge cost 10.00 without it, judge alone 50.00"
    missing = notes(plan(alone=[alone(break_even=None, cascade=60.0, missing="it is slow")]))
    assert missing[2] == "judge alone keeps its limits with no number of replicas: it is slow"


def test_domains_and_rollouts() -> None:
    whole = plan()
    assert report._spread(whole) == []
    whole.asked.domains, whole.asked.surge = 3, 1
    lost, idle = report._spread(whole)
    assert lost == (
        "while any one of 3 domains is lost, replicas left (needed by the load itself): chat 1 (2), judge 2 (5)"
    )
    assert idle == "idle GPUs hold 1 more replica of any one model for a rollout"
    whole.asked.surge, whole.replicas[1] = 2, 0
    lost, idle = report._spread(whole)
    assert lost.endswith("chat 1 (2)") and idle.startswith("idle GPUs hold 2 more replicas of")


def test_offers_of_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_sold", lambda machine, count, prices: SimpleNamespace(line=f"{count} boxes"))
    used = [
        (machine(), 2), (machine(offer=offer(source=OWNED, per_hour=0.5)), 1),
        (machine(offer=offer(source=OWNED, per_hour=0.0)), 1),
    ]  # fmt: skip
    assert report._offers(used, SimpleNamespace(currency="EUR")) == [  # type: ignore[arg-type]
        "2 boxes", "a remark", "an owned GPU costs 0.50 EUR/h while it works",
        "owned GPUs cost nothing extra (--own-price)"
    ]  # fmt: skip


def test_the_whole_report_on_several_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """730 hours a month."""
    monkeypatch.setattr(report, "_notes", lambda plan: ["note"])
    whole = plan()
    whole.run.answers = {0: answers()}
    found = report.several_report(whole)
    assert [table.title for table in found.tables] == [
        "2 models on 6,006 of 6,400 GPUs: 40.00 EUR/h, 29,200 EUR per month",
        "Latency of whole answers, as users see it", "Machines",
    ]  # fmt: skip
    assert [len(table.rows) for table in found.tables] == [2, 2, 1] and found.notes == [
        "bottleneck, the first that more load of all breaks: chat, the limit on TTFT; judge, memory for the cache",
        "note",
    ]
    assert (found.record["cost_per_month"], found.record["proven_cheapest_packing"]) == (29_200.0, True)
    assert found.record["known_error"] == ["chat", "judge"] and "replica" not in found.rows[0]
    assert report._served(whole)["chat"][1] == 700.0
    whole.tried, whole.alone = (
        [SimpleNamespace(member=member(stage("chat")), replicas=1, taken=True, missing="")],
        [alone()],
    )
    assert [table.title for table in report.several_report(whole).tables][3:] == [
        "Kinds of replica", "Is the cascade worth it?"
    ]  # fmt: skip
    one = stage("chat")
    single = plan(one, members=[member(one)], replicas={0: 3})
    assert report._title(single).startswith("1 model on")


# --- bars of progress


def shown_by(total: int | None, *calls: tuple[int, ...]) -> list[tuple[int, int | None]]:
    seen: list[tuple[int, int | None]] = []
    with progress.ended(lambda done, of: seen.append((done, of)), total) as told:
        for call in calls:
            told(*call)
    return seen


def test_a_bar_reaches_its_end() -> None:
    """Where less was done than was thought, and where nobody knew how much there was."""
    assert shown_by(5, (2,), (5,)) == [(2, 5), (5, 5)]
    assert shown_by(5, (2,)) == [(2, 5), (5, 5)]
    assert shown_by(5, (2, 9)) == [(2, 9), (9, 9)]
    assert shown_by(None, (2,)) == [(2, None), (2, 2)]
    assert shown_by(None) == [] and shown_by(5) == [(5, 5)]


def test_a_bar_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message to the browser each tenth of a second; nothing is left at the end."""
    clock, seen = [0.0], list[Any]()
    handle = SimpleNamespace(update=lambda bar: seen.append((repr(bar), bar._repr_html_())))
    monkeypatch.setattr(progress, "monotonic", lambda: clock[0])
    monkeypatch.setattr(progress, "_display", lambda: lambda bar, display_id: seen.append(repr(bar)) or handle)
    with progress.progress_counter("rows <a>", 2000) as told:
        assert told is not None
        told(1)
        clock[0] = 0.11
        told(1500)
        clock[0] = 0.2
        told(1600)
    assert seen == [
        "0 of 2,000 rows <a>",
        ("1,500 of 2,000 rows <a>", '<progress max="2000" value="1500"></progress> 1,500 of 2,000 rows &lt;a&gt;'),
        ("", ""),
    ]
    assert progress._bar("rows", None, 1234)._repr_html_() == "<progress></progress> 1,234 rows"
    assert 'max="1"' in progress._bar("rows", 0, 0)._repr_html_()
    with progress.progress_counter("rows", 5, wanted=False) as told:
        assert told is None and len(seen) == 3


def test_where_there_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    for shell, found in ((None, None), (SimpleNamespace(), None), (SimpleNamespace(kernel=1), "display")):
        monkeypatch.setitem(progress.sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))  # type: ignore[arg-type]
        monkeypatch.setattr(progress, "import_module", lambda name: SimpleNamespace(display="display"))
        assert progress._display() == found
    monkeypatch.delitem(progress.sys.modules, "IPython")
    assert progress._display() is None
    with progress.progress_counter("rows", 5) as told:  # stderr of tests is no terminal
        assert told is None
