"""Replicas that are not alike behind one router: turns by weight, and each as if it were alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.offload import OffloadAsked
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import media_seconds
from inferplan.estimate.structured import Structured
from inferplan.models.media import MediaAsked
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Beside, Fleet
from inferplan.serving.options import Options
from inferplan.serving.records import Records
from inferplan.serving.result import SimulationResult
from inferplan.serving.routing import Router, Routing
from inferplan.serving.simulator import simulate
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
    Traffic,
    TrafficClass,
    parse_lengths,
)
from inferplan.traffic.sessions import Agent, NextCall, SessionKind, SessionTraffic
from inferplan.units import Array
from inferplan.work.adapters import LoraAsked
from tests.cases import for_each
from tests.serving.plain_time import CLOSE, plain, seconds

FAST = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True))
SLOW = assemble(Request(model="llama-3.1-8b", gpu="l4", ideal=True))
FEW = Flags(max_num_seqs=8)
RECIPE = Traffic(
    arrivals=OpenLoop(rate=8.0),
    prompt=Lengths(kind="uniform", mean=300, spread=0.5),
    output=Lengths(kind="uniform", mean=40, spread=0.5),
    requests_count=400,
    seed=3,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 200))
def test_turns_follow_the_weights(weights: list[int], count: int) -> None:
    """After any number of requests every engine has had its share, to less than one turn for each of the others."""
    records = Records(arrival=[0.0] * count, prompt=[1] * count, output=[1] * count)
    router = Router("round-robin", [None] * len(weights), records, weights=weights)  # type: ignore[list-item]
    had = np.bincount([router.send(request, 0.0) for request in range(count)], minlength=len(weights))
    due = count * np.array(weights) / sum(weights)
    assert np.all(np.abs(had - due) <= len(weights) / 2)


def test_turns_by_hand() -> None:
    """Weights 2 and 1: turns are due at 1/4, 3/4, 5/4, ... and at 1/2, 3/2, ..."""
    records = Records(arrival=[0.0] * 6, prompt=[1] * 6, output=[1] * 6)
    router = Router("round-robin", [None, None], records, weights=[2, 1])  # type: ignore[list-item]
    assert [router.send(request, 0.0) for request in range(6)] == [0, 1, 0, 0, 1, 0]


def test_conversations_stay_where_their_first_turn_went_by_weight() -> None:
    """Weights 2 and 1, as above; of four conversations a second turn follows the first. The turns of the router are
    those of conversations alone."""
    follows = [-1, -1, 0, -1, 1, -1, 3, 5]
    records = Records(arrival=[0.0] * 8, prompt=[1] * 8, output=[1] * 8, follows=follows)
    router = Router("sticky", [None, None], records, weights=[2, 1])  # type: ignore[list-item]
    assert [router.send(request, 0.0) for request in range(8)] == [0, 1, 0, 0, 1, 0, 0, 0]


def test_turns_of_equal_weights_are_evenly_apart() -> None:
    """Weights 2, 1, 1: turns are due at 1/4, 3/4, ..., at 1/4, 5/4, ... and at 3/4, 7/4, ... By turns the first has
    every other request, where both others at 1/2 would leave it two of four in a row."""
    records = Records(arrival=[0.0] * 8, prompt=[1] * 8, output=[1] * 8)
    router = Router("round-robin", [None] * 3, records, weights=[2, 1, 1])  # type: ignore[list-item]
    assert [router.send(request, 0.0) for request in range(8)] == [0, 1, 0, 2, 0, 1, 0, 2]


def test_others_that_are_alike_are_more_replicas() -> None:
    three = replace(FAST, parallel=replace(FAST.parallel, replicas=3))
    mixed = Fleet(others=(Beside(FAST, FEW, 2, 1.0),))
    here = simulate(FAST, RECIPE, FEW, Options(fleet=mixed))
    there = simulate(three, RECIPE, FEW, Options())
    assert here.e2el == pytest.approx(there.e2el, rel=1e-9)
    assert here.ttft == pytest.approx(there.ttft, rel=1e-9)
    assert here.records.served_by == [min(request % 3, 1) for request in range(400)]
    assert there.records.served_by is None


@for_each("routing", ["round-robin", "least-loaded"])
def test_each_kind_serves_what_it_is_sent(routing: str) -> None:
    """Its requests alone, in a run of their own, take the same times."""
    fleet = Fleet(routing=routing, weight=5.0, others=(Beside(SLOW, FEW, 1, 1.0),))  # type: ignore[arg-type]
    run = simulate(FAST, RECIPE, FEW, Options(fleet=fleet))
    by = np.asarray(run.records.served_by)
    if routing == "round-robin":
        assert np.sum(by == 0) == pytest.approx(400 * 5 / 6, abs=1)
    assert min(np.bincount(by)) > 20
    for member, deployment in enumerate((FAST, SLOW)):
        mine = by == member
        own = Requests(
            prompt=np.asarray(run.records.prompt)[mine],
            output=np.asarray(run.records.output)[mine],
            arrival=np.asarray(run.records.arrival)[mine],
        )
        alone = simulate(deployment, own, FEW)
        assert np.asarray(run.records.finish)[mine] == pytest.approx(np.asarray(alone.records.finish), rel=1e-9)
        assert np.asarray(run.records.first)[mine] == pytest.approx(np.asarray(alone.records.first), rel=1e-9)
    assert [one["replicas"] for one in run.conditions["others"]] == [1]


LORA = LoraAsked(rank=16, slots=2)
ON_HOST = OffloadAsked(cpu_offload_gb=2, host="epyc-9654", host_memory="384GB", host_link="50GB/s")
DRAFTED = Speculation(length=3, acceptance=0.7, texts=0.5)
URGENT = tuple(
    TrafficClass(name=name, share=0.5, priority=rank, prompt=Lengths(mean=400), output=Lengths(mean=60))
    for rank, name in enumerate(("first", "last"))
)
WITH: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "thoughts": ({"output": ReasoningLengths(thought=Lengths(mean=30), answer=Lengths(mean=10))}, {}, {}),
    "adapters": (
        {"adapters": Popularity(count=6, skew=1.0)},
        {"lora": LORA},
        {"lora_bandwidth": 25e9},
    ),
    "classes": ({"classes": URGENT}, {}, {}),
    "host weights": ({}, {"offload": ON_HOST}, {}),
    "drafts": ({}, {}, {"speculation": DRAFTED}),
    "masks": ({}, {}, {"structured": Structured(share=0.5, mask_time=4e-5, cores=32, bandwidth=63e9)}),
}
"""What a load, the deployments and the run have."""


@for_each("name", WITH)
def test_each_kind_serves_what_it_is_sent_with(name: str) -> None:
    """Its requests alone, with what it has of this, take the same times; of drafts each kind has its own."""
    of_load, of_request, of_run = WITH[name]
    kinds = [assemble(Request(model="llama-3.1-8b", gpu=gpu, ideal=True, **of_request)) for gpu in ("h100-sxm", "l4")]
    load = replace(RECIPE, requests_count=200, **of_load)
    plain = Speculation(length=1, acceptance=0.5) if name == "drafts" else None
    flags = replace(FEW, max_num_seqs=2, queue="priority") if name == "classes" else FEW
    fleet = Fleet(weight=3.0, others=(Beside(kinds[1], flags, 1, 1.0, plain),))
    run = simulate(kinds[0], load, flags, Options(fleet=fleet, **of_run))
    by, sent = np.asarray(run.records.served_by), load.requests()
    assert np.bincount(by).tolist() == [150, 50] and run.counts["finished"] == 200
    for member, (deployment, drafts) in enumerate(zip(kinds, (None, plain))):
        mine = by == member
        columns = ("prompt", "output", "arrival", "before", "adapters", "of")
        own = {one: getattr(sent, one)[mine] for one in columns if getattr(sent, one) is not None}
        changed = of_run if drafts is None else of_run | {"speculation": drafts}
        alone = simulate(deployment, Requests(**own, classes=load.classes), flags, Options(**changed)).records
        for column in ("first", "finish"):
            seen = np.asarray(getattr(run.records, column))[mine]
            assert seen == pytest.approx(np.asarray(getattr(alone, column)), rel=1e-9)
    if name == "drafts":
        assert run.records.paces is not None
        assert np.all(run.records.paces[by == 1] == 1.0) and np.ptp(run.records.paces[by == 0]) > 0.1


OTHER = assemble(Request(model="llama-3.1-8b", gpu="l4", engine="trtllm", ideal=True))
"""Its pages hold 32 tokens, those of the others 16."""
PAUSE = ThinkTime(mean=0.7)
TEXT: dict[str, tuple[dict[str, Any], Routing]] = {
    "samples": ({"samples": 3}, "round-robin"),
    "shared text": ({"prefix": SharedPrefix(tokens=200, distinct=3)}, "round-robin"),
    "conversations": ({"prefix": SharedPrefix(turns=4, think=PAUSE)}, "sticky"),
    "turns anywhere": ({"prefix": SharedPrefix(turns=3, tokens=100, think=PAUSE)}, "round-robin"),
    "turns where they are known": ({"prefix": SharedPrefix(turns=3, think=PAUSE)}, "prefix-aware"),
    "conversations of users": (
        {"prefix": SharedPrefix(turns=3, think=PAUSE), "arrivals": ClosedLoop(concurrency=12)},
        "sticky",
    ),
    "answers of shared text": ({"prefix": SharedPrefix(tokens=200, distinct=3), "samples": 2}, "least-loaded"),
}
"""Loads that share text, and how they are routed."""


@for_each("name", TEXT)
def test_each_kind_serves_what_it_is_sent_of_shared_text(name: str) -> None:
    """Its requests alone, at the times at which they came, find the same pages of its own size and take the same times;
    what finds them is told by their names, drawn for each size."""
    changes, routing = TEXT[name]
    load = replace(RECIPE, requests_count=240, **changes)
    fleet = Fleet(routing=routing, weight=3.0, others=(Beside(OTHER, FEW, 1, 1.0),))
    run = simulate(FAST, load, FEW, Options(fleet=fleet))
    whole, by = run.records, np.asarray(run.records.served_by)
    assert min(np.bincount(by)) > 30 and len(by) == 240 * load.samples == run.counts["finished"]
    before = np.asarray([-1] * len(by) if whole.follows is None else whole.follows)
    if routing == "sticky":
        assert np.all((by == by[before])[before >= 0]) and np.mean(by[before < 0] == 0) == pytest.approx(0.75, abs=0.02)
    pages = [one.engine.defaults.block_size for one in (FAST, OTHER)]
    drawn = [load.requests(page).hashes or () for page in pages]
    place = {tuple(names): index for index, names in enumerate(drawn[0])}
    order = [place[tuple(names)] for names in whole.hashes or ()]  # in which they were sent
    for member, deployment in enumerate((FAST, OTHER)):
        mine = by == member
        prompt, output, arrival = (np.asarray(column)[mine] for column in (whole.prompt, whole.output, whole.arrival))
        own = Requests(
            prompt=prompt,
            output=output,
            arrival=arrival,
            hashes=[drawn[member][order[request]] for request in np.flatnonzero(mine)],
            hash_block=pages[member],
        )
        alone = simulate(deployment, own, FEW).records
        assert sum(alone.cached.values()) > 0
        assert {np.flatnonzero(mine)[at]: found for at, found in alone.cached.items()} == {
            request: found for request, found in whole.cached.items() if mine[request]
        }
        assert np.asarray(whole.first)[mine] == pytest.approx(np.asarray(alone.first), rel=1e-9)
        assert np.asarray(whole.finish)[mine] == pytest.approx(np.asarray(alone.finish), rel=1e-9)


SEEING = [
    assemble(
        Request(
            model="qwen2.5-vl-3b", gpu=gpu, ideal=True, media=MediaAsked(images=1, image_size=(640, 480), text=200.0)
        )
    )
    for gpu in ("h100-sxm", "l4")
]


def of_pages(tokens: int) -> Deployment:
    """A second per step and a tenth per token, with a cache in pages of so many."""
    made = plain(prefix_caching=True)
    pages = made.engine.defaults.model_copy(update={"block_size": tokens})
    return replace(made, engine=made.engine.model_copy(update={"defaults": pages}))


BY_HAND: list[tuple[SharedPrefix, int, list[list[float]]]] = [
    # 15 tokens each; the second one finds the 10 that are shared, or 8 of them
    (SharedPrefix(tokens=10), 5, [[15, 5], [15, 7]]),
    # 10, then 10 + 2 + 10; of the first turn 11 are computed, or 8 in whole pages
    (SharedPrefix(turns=2, think=ThinkTime(mean=7.0)), 10, [[10, 11], [10, 14]]),
]
"""Prompts, and the tokens that each kind computes of its first and its second."""


@for_each("prefix, own, computed", BY_HAND)
def test_pages_of_two_kinds_by_hand(prefix: SharedPrefix, own: int, computed: list[list[float]]) -> None:
    """Pages of one token and of four: a request alone waits a second and a tenth per token that it computes."""
    load = Traffic(
        arrivals=OpenLoop(rate=0.1, kind="constant"),
        prompt=Lengths(mean=own),
        output=Lengths(mean=2),
        requests_count=4,
        prefix=prefix,
    )
    fleet = Fleet(
        routing="sticky" if prefix.turns > 1 else "round-robin", others=(Beside(of_pages(4), Flags(), 1, 1.0),)
    )
    run = simulate(of_pages(1), load, Flags(), Options(fleet=fleet))
    waits, by = np.asarray(run.records.first) - np.asarray(run.records.arrival), np.asarray(run.records.served_by)
    for member, tokens in enumerate(computed):
        assert waits[by == member] == pytest.approx([seconds(count) for count in tokens], rel=CLOSE)


def test_each_kind_keeps_what_it_drops_in_a_tier_of_its_own() -> None:
    """Of 40 texts of 1,500 tokens either device holds some: the tier of a kind has what this kind has dropped."""
    tier = CacheTier(name="host", capacity=8e9, bandwidth=2e10)
    kinds = [(FAST, replace(FEW, gpu_memory_utilization=0.25)), (OTHER, replace(FEW, gpu_memory_utilization=0.85))]
    load = replace(RECIPE, requests_count=300, prefix=SharedPrefix(tokens=1500, distinct=40))
    fleet = Fleet(weight=2.0, others=(Beside(*kinds[1], 1, 1.0),))
    run = simulate(kinds[0][0], load, kinds[0][1], Options(fleet=fleet, tiers=(tier,)))
    by = np.asarray(run.records.served_by)
    for member, (deployment, flags) in enumerate(kinds):
        drawn, mine = load.requests(deployment.engine.defaults.block_size), np.flatnonzero(by == member)
        own = replace(
            drawn,
            prompt=drawn.prompt[mine],
            output=drawn.output[mine],
            arrival=np.asarray(run.records.arrival)[mine],
            hashes=[(drawn.hashes or ())[request] for request in mine],
        )
        alone = simulate(deployment, own, flags, Options(tiers=(tier,))).records
        assert len(alone.loaded) > 5
        assert {int(mine[at]): found for at, found in alone.loaded.items()} == {
            request: found for request, found in run.records.loaded.items() if by[request] == member
        }
        assert np.asarray(run.records.finish)[mine] == pytest.approx(np.asarray(alone.finish), rel=1e-9)


def test_sessions_stay_where_their_first_call_went_by_weight() -> None:
    """Each kind gets its share of the sessions, whole; every call is sent once. What a kind is sent takes the same
    times in a run of its own."""
    agent = Agent(
        turns=Lengths(kind="uniform", mean=4, spread=0.5),
        first=Lengths(mean=400),
        output=Lengths(mean=30),
        tool=NextCall(prompt=Lengths(mean=100), time=ThinkTime(mean=0.9)),
    )
    kinds = (SessionKind(name="one", share=1.0, agent=agent),)
    calls = SessionTraffic(kinds=kinds, arrivals=OpenLoop(rate=3.0), sessions_count=120, seed=5).requests()
    fleet = Fleet(routing="sticky", weight=3.0, others=(Beside(OTHER, FEW, 1, 1.0),))
    run = simulate(FAST, calls, FEW, Options(fleet=fleet))
    whole, by = run.records, np.asarray(run.records.served_by)
    assert whole.sessions is not None and run.counts["finished"] == len(by) == len(calls)
    of = [by[whole.sessions.of == session] for session in range(120)]
    assert all(len(set(one)) == 1 for one in of)
    assert sum(one[0] == 0 for one in of) == 90
    for member, deployment in enumerate((FAST, OTHER)):
        page, mine = deployment.engine.defaults.block_size, np.flatnonzero(by == member)
        names = replace(calls, hashes=whole.hashes).in_blocks(page)
        own = Requests(
            prompt=np.asarray(whole.prompt)[mine],
            output=np.asarray(whole.output)[mine],
            arrival=np.asarray(whole.arrival)[mine],
            hashes=[list((names.hashes or ())[request]) for request in mine],
            hash_block=names.hash_block,
        )
        alone = simulate(deployment, own, FEW).records
        assert np.asarray(whole.finish)[mine] == pytest.approx(np.asarray(alone.finish), rel=1e-9)


def test_each_kind_looks_at_images_at_its_own_pace() -> None:
    """A request at a time: a kind takes for images of 1 to 4 what it takes for as much text, and its own towers."""
    load = replace(RECIPE, arrivals=OpenLoop(rate=0.2), media=Media(tokens=391, sets=parse_lengths("uniform:4:0.25")))
    load = replace(load, prompt=Lengths(mean=200), output=Lengths(mean=40), requests_count=40)
    fleet = Fleet(others=(Beside(SEEING[1], FEW, 1, 1.0),))
    run, text = (simulate(SEEING[0], sent, FEW, Options(fleet=fleet)) for sent in (load, of_text(load)))
    sets, by = load.requests().media, np.asarray(run.records.served_by)
    assert sets is not None and set(sets.tolist()) == {1, 2, 3, 4} and by.tolist() == [0, 1] * 20
    takes = [times_of(one) for one in (run, text)]
    for member, deployment in enumerate(SEEING):
        towers = np.array([float(media_seconds(deployment, float(count))) for count in sets[by == member]])
        assert takes[0][by == member] - takes[1][by == member] == pytest.approx(towers, rel=1e-6)


def times_of(run: SimulationResult) -> Array:
    return np.asarray(run.records.finish) - np.asarray(run.records.arrival)


def of_text(load: Traffic) -> Requests:
    """The same requests, with text in the place of media."""
    return replace(load.requests(), media=None)


def test_what_a_mixed_pool_is_not_simulated_with() -> None:
    other = Beside(SLOW, FEW, 1, 1.0)
    with pytest.raises(UsageError, match="weight"):
        Fleet(others=(other._replace(weight=0.0),))
    with pytest.raises(UsageError, match="--jobs 2"):
        simulate(FAST, RECIPE, FEW, Options(fleet=Fleet(others=(other,)), jobs=2))
