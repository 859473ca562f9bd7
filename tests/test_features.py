"""The table of pairs: every refusal is raised by its question, and what is not refused is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from inferplan.answers.drafting import Drafting
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.offload import OffloadAsked
from inferplan.catalog.price_lists import price_book
from inferplan.cli import cli
from inferplan.devices.engine import EngineFlags
from inferplan.errors import InferplanError, UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.estimate.structured import Structured, StructuredEstimate
from inferplan.features import FEATURES, OBJECTS, QUESTIONS, REFUSALS, Refusal, goes_together
from inferplan.models.media import MediaAsked
from inferplan.planning.day import simulate_day
from inferplan.planning.demand import Demand
from inferplan.planning.fleet import plan_fleet
from inferplan.planning.option import Sizing
from inferplan.planning.plan import plan
from inferplan.planning.power import PowerBudget
from inferplan.planning.question import Question
from inferplan.planning.redundancy import Survive
from inferplan.planning.space import Space
from inferplan.serving.autoscaling import Schedule
from inferplan.serving.cold_start import ColdStart
from inferplan.serving.failures import Failure, Failures
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Beside, Fleet
from inferplan.serving.options import Options
from inferplan.serving.simulator import features_of_run, simulate
from inferplan.serving.techniques.applied import Techniques, served_estimate
from inferplan.serving.techniques.offload import HostTier
from inferplan.serving.techniques.speculation import Speculation
from inferplan.serving.techniques.tiers import CacheTier
from inferplan.traffic.conversations import ThinkTime
from inferplan.traffic.popularity import Popularity
from inferplan.traffic.reasoning import ReasoningLengths
from inferplan.traffic.requests import (
    ClosedLoop,
    Lengths,
    Media,
    OpenLoop,
    Requests,
    SharedPrefix,
    Slo,
    Traffic,
    TrafficClass,
)
from inferplan.traffic.sessions import Agent, NextCall, SessionKind, SessionTraffic
from inferplan.work.adapters import LoraAsked
from inferplan.work.parallel import Parallelism

DOCS = Path(__file__).parents[1] / "docs"
DENSE, EXPERTS = "llama-3.2-1b", "olmoe-1b-7b-0924"
SHORT, FEW = Lengths(mean=64.0), Lengths(mean=8.0)
AGENT = Agent(turns=Lengths(mean=2.0), first=SHORT, output=FEW, tool=NextCall(prompt=SHORT, time=ThinkTime(mean=0.1)))


@cache
def assembled(**request: Any) -> Deployment:
    return assemble(Request(**{"gpu": "h100-sxm", **request}))


def sessions_of(kind: SessionKind, arrivals: ClosedLoop | OpenLoop = OpenLoop(rate=20.0)) -> SessionTraffic:  # noqa: B008
    return SessionTraffic(kinds=(kind,), arrivals=arrivals, sessions_count=3)


class Run:
    """What ``simulate`` is asked, changed feature by feature."""

    def __init__(self) -> None:
        self.request: dict[str, Any] = {"model": DENSE, "engine": "vllm", "parallel": Parallelism()}
        self.load: dict[str, Any] = {
            "arrivals": OpenLoop(rate=20.0),
            "prompt": SHORT,
            "output": FEW,
            "requests_count": 12,
        }
        self.sessions: SessionKind | None = None
        self.parts: dict[str, Any] = {}
        """Of the deployment, as it is made."""
        self.anchored = False
        self.flags = Flags()
        self.fleet: dict[str, Any] = {}
        self.options: dict[str, Any] = {}

    def divide(self, **degrees: int) -> None:
        self.request["parallel"] = replace(self.request["parallel"], **degrees)

    def asked(self) -> tuple[Deployment, Traffic | Requests, Flags, Options]:
        deployment = assembled(**self.request)
        if self.anchored:
            anchored = deployment.calibration.model_copy(update={"anchor": object()})
            deployment = replace(deployment, calibration=anchored)
        deployment = replace(deployment, **self.parts)
        if self.sessions is None:
            traffic: Traffic | Requests = Traffic(**self.load)
        else:
            traffic = sessions_of(self.sessions, self.load["arrivals"]).requests()
            told = {"samples": self.load.get("samples", 1), "classes": self.load.get("classes", ())}
            traffic = replace(traffic, **told, of=np.zeros(len(traffic), dtype=np.int64) if told["classes"] else None)
            if "adapters" in self.load:
                traffic = traffic.naming(self.load["adapters"], 0)
        return deployment, traffic, self.flags, Options(**{**self.options, "fleet": Fleet(**self.fleet)})


def of_request(**more: Any) -> Callable[[Run], None]:
    return lambda run: run.request.update(more)


def of_load(**more: Any) -> Callable[[Run], None]:
    return lambda run: run.load.update(more)


def of_fleet(**more: Any) -> Callable[[Run], None]:
    return lambda run: run.fleet.update(more)


def of_options(**more: Any) -> Callable[[Run], None]:
    return lambda run: run.options.update(more)


def divided(**degrees: int) -> Callable[[Run], None]:
    return lambda run: run.divide(**degrees)


def with_prefix(**more: int) -> Callable[[Run], None]:
    return lambda run: run.load.update(prefix=replace(run.load.get("prefix", SharedPrefix()), **more))


def with_adapters(run: Run) -> None:
    run.request["lora"] = LoraAsked(rank=16, slots=2, modules=("q", "v"))
    run.load["adapters"] = Popularity(count=4, skew=1.0)
    run.options["lora_bandwidth"] = 63e9


def with_queue(run: Run) -> None:
    run.flags = replace(run.flags, queue="fair")


def with_cadence(run: Run) -> None:
    run.request["flags"] = EngineFlags(prefill_schedule_interval=4)


def with_sessions(run: Run) -> None:
    run.sessions = run.sessions or SessionKind(name="one", share=1.0, agent=AGENT)


def with_patience(run: Run) -> None:
    run.sessions = SessionKind(name="one", share=1.0, agent=AGENT, patience=ThinkTime(mean=5.0))


def with_media(run: Run) -> None:
    run.request.update(model="qwen2.5-vl-3b", media=MediaAsked(images=1, image_size=(64, 64)))
    carried = assembled(**run.request).media
    assert carried is not None
    run.load["media"] = Media(tokens=carried.tokens)


def with_coupled_ranks(run: Run) -> None:
    run.request["model"] = EXPERTS
    run.divide(dp=2, ep=2)


def with_anchor(run: Run) -> None:
    run.anchored = True


def with_host_layers(run: Run) -> None:
    made = assembled(model=DENSE, quant="q4_k_m", engine="llama.cpp", offload=ON_HOST)
    run.parts["offload"] = made.offload


def with_host_experts(run: Run) -> None:
    run.request["model"] = EXPERTS
    run.parts["offload"] = assembled(model=EXPERTS, engine="llama.cpp", offload=EXPERTS_ON_HOST).offload


def with_streamed(run: Run) -> None:
    run.parts["streamed"] = assembled(model=DENSE, offload=STREAMED).streamed


def with_two_batches(run: Run) -> None:
    with_coupled_ranks(run)
    run.request["flags"] = EngineFlags(two_batch_overlap=True)


ON_HOST = OffloadAsked(gpu_layers=4, host="epyc-9654", host_memory="384GB", host_link="50GB/s")
EXPERTS_ON_HOST = replace(ON_HOST, gpu_layers=None, cpu_moe_layers=4)
STREAMED = OffloadAsked(cpu_offload_gb=1, host="epyc-9654", host_memory="384GB", host_link="50GB/s")
STRUCTURED = Structured(share=0.5, mask_time=4e-5, cores=32, bandwidth=63e9)
HOST = CacheTier(name="host", capacity=1e9, bandwidth=1e10)
CLASSES = tuple(TrafficClass(name=name, share=0.5, prompt=SHORT, output=FEW) for name in ("a", "b"))
FAILING = Failures(at=(Failure(at=0.1),))
FEATURE: dict[str, Callable[[Run], None]] = {
    "classes": of_load(classes=CLASSES),
    "queue": with_queue,
    "fair-queue": with_queue,
    "adapters": with_adapters,
    "thoughts": of_load(output=ReasoningLengths(thought=FEW, answer=FEW)),
    "turns": with_prefix(turns=2),
    "shared-text": with_prefix(tokens=32),
    "samples": of_load(samples=2),
    "sessions": with_sessions,
    "patience": with_patience,
    "structured": of_options(structured=STRUCTURED),
    "media": with_media,
    "users": of_load(arrivals=ClosedLoop(concurrency=2)),
    "encoder": of_request(model="t5-small"),
    "encoder-decoder": of_request(model="t5-small"),
    "context-parallel": divided(cp=2),
    "spread-dense": divided(dp=2, spread_dense=True),
    "several-devices": divided(tp=2),
    "mig": of_request(gpu="h100-sxm:3g.40gb"),
    "host-layers": with_host_layers,
    "host-experts": with_host_experts,
    "streamed": with_streamed,
    "two-batches": with_two_batches,
    "power-cap": of_request(power_cap=500.0),
    "filters": of_request(sampling="top-p"),
    "encodes": of_request(model="bge-m3"),
    "diffusion": of_request(model="llada-8b"),
    "cadence": with_cadence,
    "drafts": of_options(speculation=Speculation(length=2, acceptance=0.6)),
    "hit-rate": of_options(hit_rate=0.5),
    "kv-offload": of_options(host=HostTier(capacity=1e9, bandwidth=1e10)),
    "tiers": of_options(tiers=(HOST,)),
    "shared-tiers": of_options(tiers=(CacheTier(name="store", capacity=1e9, bandwidth=1e10, shared=True),)),
    "pipelines": divided(pp=2),
    "attention-dp": divided(dp=2),
    "coupled-ranks": with_coupled_ranks,
    "static-batches": of_request(engine="none"),
    "anchor": with_anchor,
    "replicas": divided(replicas=2),
    "pools": of_fleet(prefill=1, decode=1),
    "failures": of_fleet(failures=FAILING, scaling=Schedule(changes=((0.0, 2),), cold_start=0.2)),
    "elastic": of_fleet(scaling=Schedule(changes=((0.0, 1), (0.2, 2)), cold_start=0.1)),
    "unlike": of_fleet(others=(Beside(assembled(model=DENSE), Flags(), 1, 1.0),)),
    "prefix-aware": of_fleet(routing="prefix-aware"),
    "cache-aware": of_fleet(routing="cache-aware"),
    "sticky": of_fleet(routing="sticky"),
    "energy": of_options(figures=frozenset({"energy"})),
    "hit-curve": of_options(figures=frozenset({"hit-curve"})),
    "warmup": of_options(warmup=2),
    "trim": of_options(trim=True),
    "jobs": of_options(jobs=2),
}


def of_pair(row: Refusal) -> Run:
    """A run that has both features; failures come last, for they bring a schedule of their own."""
    run = Run()
    for name in sorted((row.one, row.other), key=["encoder", "media", "failures"].__contains__):
        FEATURE[name](run)
    return run


def test_the_table_names_each_pair_once() -> None:
    pairs = [(*sorted((row.one, row.other)), q) for row in REFUSALS for q in row.questions]
    assert len(set(pairs)) == len(pairs)
    assert {name for one, other, _ in pairs for name in (one, other)} <= set(FEATURES)
    assert {question for *_, question in pairs} == set(QUESTIONS)
    assert all(row.one != row.other and row.because and row.hint for row in REFUSALS)


def test_every_feature_has_its_page() -> None:
    assert not [feature for feature in FEATURES.values() if not (DOCS / feature.page).is_file()]


def rows(*questions: str) -> list[tuple[Refusal, str]]:
    return [(row, question) for row in REFUSALS for question in row.questions if question in questions]


def unlike(row: Refusal, question: str, ask: Callable[[], object]) -> str:
    """What is wrong with the answer to a pair that the table refuses; empty where it is refused as it says."""
    try:
        ask()
    except InferplanError as error:
        # a plan has no candidate left where every one is refused, and says why
        return "" if row.error(question).what in error.render() else f"{row.one} + {row.other}: {error.what}"
    return f"{row.one} + {row.other} is answered in {question}"


def test_every_refusal_of_a_run_is_raised() -> None:
    found = [unlike(row, q, lambda row=row: simulate(*of_pair(row).asked())) for row, q in rows(*OBJECTS, "simulate")]
    assert not [wrong for wrong in found if wrong]


HOST_MEMORY = "--host epyc-9654 --host-memory 384GB --host-link 50GB/s"
BATCH = {
    "structured": "--structured-share 0.5 --mask-time 40us --host-cores 32 --mask-bandwidth 63GB/s",
    "drafts": "--draft free --draft-tokens 2 --acceptance 0.6",
    "hit-rate": "--prefix-hit-rate 0.5",
    "kv-offload": "--prefix-hit-rate 0.5 --kv-offload 10GB --offload-bandwidth 50GB/s",
    "chunk": "--chunk 64",
    "recompute": "--no-kv-cache",
    "all-logits": "--all-logits",
    "users": "--concurrency 4",
    "thoughts": "--thinking-tokens 50",
    "samples": "--samples 2",
    "energy": "--energy",
    "beams": "--beams 4",
    "filters": "--sampling top-p",
    "adapters": "--lora-rank 16",
    "cadence": "--prefill-schedule-interval 4 --concurrency 4",
    "pipelines": "--pp 2",
    "attention-dp": "--dp 2",
    "media": "--images 1 --image-size 64x64",
    "host-layers": f"--gpu-layers 4 --engine llama.cpp --quant q4_k_m {HOST_MEMORY}",
    "host-experts": f"--cpu-moe-layers 4 --engine llama.cpp {HOST_MEMORY}",
}
"""The options of features of a batch."""
MODEL = {
    "encoder": "t5-small",
    "encodes": "bge-m3",
    "diffusion": "llada-8b",
    "state": "mamba2-2.7b",
    "media": "qwen2.5-vl-3b",
    "host-experts": EXPERTS,
}


def estimated(row: Refusal) -> None:
    """A batch that has both features, asked for on the command line, where all of them meet."""
    pair = (row.one, row.other)
    model = next((MODEL[name] for name in pair if name in MODEL), DENSE)
    words = " ".join(BATCH.get(name, "") for name in pair)
    result = CliRunner().invoke(cli, ["estimate", model, "--gpu", "h100-sxm", *words.split()])
    if isinstance(result.exception, InferplanError):
        raise result.exception


def test_every_refusal_of_a_batch_is_raised() -> None:
    asked = [(row, q) for row, q in rows("estimate") if "anchor" not in (row.one, row.other)]
    found = [unlike(row, q, lambda row=row: estimated(row)) for row, q in asked]
    found = [wrong for wrong in found if wrong and "a given hit rate" not in wrong]  # KV offload is of what is found
    assert not found


def test_measured_runs_are_of_one_answer_that_nobody_thought_about() -> None:
    run = Run()
    run.anchored = True
    deployment = run.asked()[0]
    for load in (StaticLoad(samples=2.0), StaticLoad(before=8.0)):
        with pytest.raises(UsageError, match="an anchor"):
            estimate(deployment, load)


class Planned:
    """What ``plan`` is asked, changed feature by feature."""

    def __init__(self) -> None:
        self.base: dict[str, Any] = {"model": DENSE, "gpu": ""}
        self.space: dict[str, Any] = {
            "gpus": ("h100-sxm",),
            "tp": (1,),
            "pp": (1,),
            "dp": (1,),
            "most": 1,
            "budgets": (2048,),
            "disaggregate": False,
        }
        self.demand: dict[str, Any] = {"prompt": SHORT, "output": Lengths(mean=16.0), "rate": 4.0}
        self.sizing: dict[str, Any] = {}
        self.question: dict[str, Any] = {"slo": Slo(ttft=5.0, tpot=0.1, percentile=95.0)}

    def users(self) -> None:
        self.demand.update(rate=None, users=10)

    def job(self) -> None:
        self.demand.update(rate=None, requests=100, deadline=100.0)

    def prefix(self, **more: Any) -> None:
        self.demand.update(prefix=replace(self.demand.get("prefix", SharedPrefix()), **more), own=SHORT)

    def think(self) -> None:
        if "deadline" in self.demand:
            self.prefix(turns=2)
        else:
            self.users()
        self.prefix(think=ThinkTime(mean=5.0))

    def adapters(self) -> None:
        self.base["lora"] = LoraAsked(rank=16, slots=2, modules=("q", "v"))
        self.demand.update(adapters=Popularity(count=4, skew=1.0), lora_bandwidth=63e9)

    def asked(self) -> Question:
        space = Space(base=Request(**self.base), **self.space)
        demand, sizing = Demand(**self.demand), Sizing(**self.sizing)
        return Question(space=space, demand=demand, sizing=sizing, prices=price_book(), **self.question)


TRACE = Requests(prompt=np.array([64, 64]), output=np.array([16, 16]), arrival=np.array([0.0, 0.2]))
PLANNED: dict[str, Callable[[Planned], None]] = {
    "classes": lambda of: of.demand.update(classes=CLASSES),
    "queue": lambda of: of.demand.update(queue="fair"),
    "adapters": Planned.adapters,
    "thoughts": lambda of: of.demand.update(output=ReasoningLengths(thought=FEW, answer=FEW)),
    "budgets": lambda of: of.question.update(budgets=(100, 200)),
    "turns": lambda of: of.prefix(turns=2),
    "shared-text": lambda of: of.prefix(tokens=32),
    "samples": lambda of: of.demand.update(samples=2, own=SHORT),
    "think-time": Planned.think,
    "sessions": lambda of: of.demand.update(sessions=sessions_of(SessionKind(name="one", share=1.0, agent=AGENT))),
    "structured": lambda of: of.demand.update(structured=STRUCTURED),
    "media": lambda of: of.demand.update(media=Media(tokens=32)),
    "users": Planned.users,
    "trace": lambda of: of.demand.update(trace=TRACE),
    "job": Planned.job,
    "hit-rate": lambda of: of.demand.update(cached=16),
    "encoder": lambda of: of.base.update(model="t5-small"),
    "encodes": lambda of: (of.base.update(model="bge-m3"), of.demand.update(output=Lengths(mean=1.0))),
    "drafts": lambda of: of.space.update(drafting=(Drafting(model=None, length=2, acceptance=0.6),)),
    "tiers": lambda of: of.question.update(chains=((HOST,),)),
    "shared-tiers": lambda of: (of.prefix(turns=2), of.question.update(chains=((replace(HOST, shared=True),),))),
    "cadence": lambda of: of.base.update(flags=EngineFlags(prefill_schedule_interval=4)),
    "pipelines": lambda of: of.space.update(pp=(2,), most=2),
    "attention-dp": lambda of: (of.base.update(model=EXPERTS), of.space.update(dp=(2,), ep=(2,), most=2)),
    "coupled-ranks": lambda of: (of.base.update(model=EXPERTS), of.space.update(dp=(2,), ep=(2,), most=2)),
    "host-layers": lambda of: of.space.update(engines=("vllm", "llama.cpp"), placed=(ON_HOST,)),
    "host-experts": lambda of: (
        of.base.update(model=EXPERTS),
        of.space.update(engines=("vllm", "llama.cpp"), placed=(EXPERTS_ON_HOST,)),
    ),
    "streamed": lambda of: of.space.update(placed=(STREAMED,)),
    "anchor": lambda of: of.space.update(anchor="own.yaml"),
    "power-cap": lambda of: of.space.update(caps=(500.0,)),
    "filters": lambda of: of.base.update(sampling="top-p"),
    "pools": lambda of: of.space.update(disaggregate=True),
    "prompt-pool": lambda of: of.space.update(disaggregate=True, prefill_two_batches=False),
    "failures": lambda of: of.sizing.update(survive=Survive(start=ColdStart(rest=60.0))),
    "spare": lambda of: of.sizing.update(spare=1),
    "power-budget": lambda of: of.sizing.update(power=PowerBudget(watts=1e6)),
    "mean-power": lambda of: of.sizing.update(power=PowerBudget(watts=1e6, provision="mean")),
    "routing": lambda of: of.question.update(routing="least-loaded"),
    "confidence": lambda of: of.sizing.update(confidence=0.9),
    "miss-cost": lambda of: of.sizing.update(miss_cost=50.0),
    "ideal": lambda of: of.base.update(ideal=True),
}


def planned(row: Refusal, ask: Callable[[Question], object]) -> None:
    """A question that has both features; a job comes before what its users think."""
    of = Planned()
    for name in sorted((row.one, row.other), key=lambda name: name != "job"):
        PLANNED.get(name, lambda of: None)(of)
    ask(of.asked())


def test_every_refusal_of_a_plan_is_raised() -> None:
    asked = [(row, q) for row, q in rows("plan") if row.one != "page"]
    found = [unlike(row, q, lambda row=row: planned(row, plan)) for row, q in asked]
    assert not [wrong for wrong in found if wrong]


def test_a_page_is_of_a_plain_plan() -> None:
    for row, question in rows("plan"):
        if row.one == "page":
            words = {"tiers": "--cache-tier host:1GB:25GB/s --turns 4", "classes": "--classes chat-and-batch"}
            words |= {"sessions": "--sessions coding-agent --session-rate 1/s"}
            words |= {"budgets": "--thinking-tokens 100 --thinking-budget 50,100"}
            load = "--rate 4" if row.other != "sessions" else ""
            load += " --prompt 64 --output 16" if row.other in ("tiers", "budgets") else ""
            load += "" if row.other == "classes" else " --ttft 1s"
            line = f"report {DENSE} --gpu h100-sxm {load} {words[row.other]} -o plan.md"
            result = CliRunner().invoke(cli, line.split())
            assert isinstance(result.exception, UsageError), line
            assert result.exception.render() == row.error(question).render()


def test_every_refusal_of_a_fleet_and_of_a_day_is_raised() -> None:
    missing: Any = None  # the table is read before anything else
    deployment = assembled(model=DENSE)
    several = assembled(model=DENSE, parallel=Parallelism(replicas=2))
    found = [
        unlike(row, q, lambda row=row: planned(row, lambda of: plan_fleet(of, missing))) for row, q in rows("fleet")
    ]
    for row, q in rows("day"):
        if row.one == "energy":
            continue
        on = several if row.other == "replicas" else deployment
        ask = lambda of, on=on: simulate_day(missing, on, of, missing)  # noqa: E731
        found.append(unlike(row, q, lambda row=row, ask=ask: planned(row, ask)))
    assert not [wrong for wrong in found if wrong]


# --- what the table does not refuse -----------------------------------------------------------------------------------

DRAWN = (
    *(
        "classes",
        "adapters",
        "thoughts",
        "turns",
        "shared-text",
        "samples",
        "sessions",
        "structured",
        "users",
        "drafts",
    ),
    *(
        "hit-rate",
        "tiers",
        "pipelines",
        "attention-dp",
        "replicas",
        "pools",
        "failures",
        "elastic",
        "prefix-aware",
        "cache-aware",
    ),
)
"""Features of a run of one small dense model, of which sets are drawn."""
NEEDS = ("cache tiers keep text", "needs conversations", "requests without arrival times")
"""Errors that say what is missing beside a feature, not that two do not go together."""


def drawn_sets(count: int) -> list[tuple[str, ...]]:
    draw = Random(7)
    return [tuple(draw.sample(DRAWN, draw.randint(1, 4))) for _ in range(count)]


def test_random_features_are_refused_by_the_table_or_answered() -> None:
    wrong, answered = [], 0
    for names in drawn_sets(60):
        run = Run()
        for name in names:
            FEATURE[name](run)
        try:
            asked = run.asked()
            present = features_of_run(*asked)
            found = simulate(*asked)
        except UsageError as error:
            if "do not go together" not in error.what and not error.what.startswith(NEEDS):
                wrong.append((names, error.what))
            continue
        answered += 1
        if not goes_together("simulate", present) or len(found.ttft) == 0 or not np.all(np.isfinite(found.ttft)):
            wrong.append((names, "answered"))
    assert not wrong
    assert answered > 15


ALONE = ("thoughts", "samples", "structured", "drafts", "pipelines", "power-cap", "several-devices", "filters")
"""Features of one request on an idle replica, which a batch of one has too."""


def alone(names: tuple[str, ...]) -> tuple[float, float]:
    """TPOT of one request at a time in simulation, and of a batch of one."""
    run = Run()
    run.load.update(arrivals=ClosedLoop(concurrency=1), output=Lengths(mean=32.0), requests_count=1)
    for name in names:
        FEATURE[name](run)
    if "thoughts" in names:
        run.load["output"] = ReasoningLengths(thought=Lengths(mean=15.0), answer=Lengths(mean=16.0))
    deployment, traffic, flags, options = run.asked()
    simulated = simulate(deployment, traffic, flags, options)
    load = StaticLoad(prompt=64.0, output=32.0, samples=2.0 if "samples" in names else 1.0)
    if options.structured is not None:
        batch: Estimate = StructuredEstimate(deployment=deployment, load=load, structured=options.structured)
    elif options.speculation.length:
        batch = served_estimate(deployment, load, Techniques(speculation=options.speculation))
    else:
        batch = estimate(deployment, load)
    return float(np.mean(simulated.tpot)), float(batch.tpot)


def test_estimate_and_simulate_price_an_idle_replica_alike() -> None:
    apart = []
    for names in (*((name,) for name in ALONE), *combinations(ALONE, 2)):
        if not goes_together("estimate", names):  # as a run has them a batch has not
            continue
        if names == ("samples", "pipelines"):  # two batches in flight of a static batch; a run has both in one step
            continue
        try:
            simulated, priced = alone(names)
        except UsageError as error:
            assert "do not go together" in error.what, names
            continue
        if simulated != pytest.approx(priced, rel=0.02):
            apart.append((names, simulated, priced))
    assert not apart


STAYING = Schedule(changes=((0.0, 1),), cold_start=5.0)
NEUTRAL: dict[str, Callable[[Run], None]] = {
    "drafts": of_options(speculation=Speculation(length=0)),
    "hit-rate": of_options(hit_rate=0.0),
    "tiers": of_options(tiers=()),
    "samples": of_load(samples=1),
    "shared-text": with_prefix(tokens=0, turns=1),
    "power-cap": of_request(power_cap=700.0),
    "replicas": divided(pp=1, dp=1, cp=1, replicas=1),
    "elastic": of_fleet(scaling=STAYING),
    "failures": of_fleet(failures=Failures(at=(Failure(at=1e6),)), scaling=STAYING),
    "prefix-aware": of_fleet(routing="least-loaded"),
    "cache-aware": of_fleet(routing="cache-aware"),
    "jobs": of_options(jobs=1),
    "queue": of_load(classes=()),
}


def test_a_feature_at_its_neutral_value_is_none() -> None:
    plain = simulate(*Run().asked())
    wrong = []
    for name, change in NEUTRAL.items():
        run = Run()
        change(run)
        same = simulate(*run.asked())
        for of in ("first", "finish"):
            seen, expected = list(getattr(same.records, of)), list(getattr(plain.records, of))
            if name == "failures":  # the general event loop adds up the same steps in another order
                expected = pytest.approx(expected, rel=1e-15, abs=0.0)
            if seen != expected:
                wrong.append(name)
    assert not wrong
