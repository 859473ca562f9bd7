"""The table of pairs: every refusal is raised by its question, and what is not refused is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.offload import OffloadAsked
from inferplan.devices.engine import EngineFlags
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.structured import Structured
from inferplan.features import FEATURES, OBJECTS, QUESTIONS, REFUSALS, Refusal
from inferplan.models.media import MediaAsked
from inferplan.serving.autoscaling import Schedule
from inferplan.serving.cluster import Beside, Fleet
from inferplan.serving.failures import Failure, Failures
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.offload import HostTier
from inferplan.serving.techniques.speculation import Speculation
from inferplan.serving.techniques.tiers import CacheTier
from inferplan.traffic.classes import TrafficClass
from inferplan.traffic.conversations import ThinkTime
from inferplan.traffic.popularity import Popularity
from inferplan.traffic.reasoning import ReasoningLengths
from inferplan.traffic.requests import ClosedLoop, Lengths, Media, OpenLoop, Requests, SharedPrefix, Traffic
from inferplan.traffic.sessions import Agent, Reply, SessionKind, SessionTraffic
from inferplan.work.adapters import LoraAsked
from inferplan.work.parallel import Parallelism

DOCS = Path(__file__).parents[1] / "docs"
DENSE, EXPERTS = "llama-3.2-1b", "olmoe-1b-7b-0924"
SHORT, FEW = Lengths(mean=64.0), Lengths(mean=8.0)
AGENT = Agent(turns=Lengths(mean=2.0), first=SHORT, output=FEW, tool=Reply(prompt=SHORT, time=ThinkTime(mean=0.1)))


@cache
def assembled(**request: Any) -> Deployment:
    return assemble(Request(**{"gpu": "h100-sxm", **request}))


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
            kinds, arrivals = (self.sessions,), self.load["arrivals"]
            traffic = SessionTraffic(kinds=kinds, arrivals=arrivals, sessions_count=3).requests()
            told = {"samples": self.load.get("samples", 1), "classes": self.load.get("classes", ())}
            traffic = replace(traffic, **told, of=np.zeros(len(traffic), dtype=np.int64) if told["classes"] else None)
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


def with_queue(run: Run) -> None:
    run.flags = replace(run.flags, queue="fair")


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
    asked = OffloadAsked(gpu_layers=4, host="epyc-9654", host_memory="384GB", host_link="50GB/s")
    run.parts["offload"] = assembled(model=DENSE, quant="q4_k_m", engine="llama.cpp", offload=asked).offload


def with_streamed(run: Run) -> None:
    asked = OffloadAsked(cpu_offload_gb=1, host="epyc-9654", host_memory="384GB", host_link="50GB/s")
    run.parts["streamed"] = assembled(model=DENSE, offload=asked).streamed


def with_two_batches(run: Run) -> None:
    with_coupled_ranks(run)
    run.request["flags"] = EngineFlags(two_batch_overlap=True)


FAILING = Failures(at=(Failure(at=0.1),))
FEATURE: dict[str, Callable[[Run], None]] = {
    "classes": of_load(classes=tuple(TrafficClass(name=n, share=0.5, prompt=SHORT, output=FEW) for n in ("a", "b"))),
    "queue": with_queue,
    "fair-queue": with_queue,
    "adapters": with_adapters,
    "thoughts": of_load(output=ReasoningLengths(thought=FEW, answer=FEW)),
    "turns": with_prefix(turns=2),
    "shared-text": with_prefix(tokens=32),
    "samples": of_load(samples=2),
    "sessions": with_sessions,
    "patience": with_patience,
    "structured": of_options(structured=Structured(share=0.5, mask_time=4e-5, cores=32, bandwidth=63e9)),
    "media": with_media,
    "users": of_load(arrivals=ClosedLoop(concurrency=2)),
    "encoder": of_request(model="t5-small"),
    "encoder-decoder": of_request(model="t5-small"),
    "context-parallel": divided(cp=2),
    "spread-dense": divided(dp=2, spread_dense=True),
    "several-devices": divided(tp=2),
    "mig": of_request(gpu="h100-sxm:3g.40gb"),
    "host-layers": with_host_layers,
    "streamed": with_streamed,
    "two-batches": with_two_batches,
    "power-cap": of_request(power_cap=500.0),
    "drafts": of_options(speculation=Speculation(length=2, acceptance=0.6)),
    "hit-rate": of_options(hit_rate=0.5),
    "kv-offload": of_options(host=HostTier(capacity=1e9, bandwidth=1e10)),
    "tiers": of_options(tiers=(CacheTier(name="host", capacity=1e9, bandwidth=1e10),)),
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


@pytest.mark.parametrize("question", [*OBJECTS, "simulate"])
def test_every_refusal_of_a_run_is_raised(question: str) -> None:
    missing = []
    for row in REFUSALS:
        if question not in row.questions:
            continue
        try:
            simulate(*of_pair(row).asked())
        except UsageError as error:
            if error.render() == row.error(question).render():
                continue
            missing.append((row.one, row.other, error.what))
        else:
            missing.append((row.one, row.other, "answered"))
    assert not missing
