"""Models that share GPUs by time: processor sharing by hand, half the capacity each, conservation of work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.engine import EngineFlags
from inferplan.errors import UsageError
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.serving.tandem import simulate_tandem
from inferplan.serving.time_shared import Swap, simulate_shared
from inferplan.traffic.requests import Lengths, Requests, Slo
from inferplan.traffic.stages import ModelStage, require_tree
from inferplan.work.parallel import Parallelism
from tests.cases import for_each


def model(name: str = "llama-3.2-1b", share: float = 0.3, **more):
    flags = EngineFlags(memory_fraction=share, max_sequences=more.pop("slots", None))
    return assemble(Request(model=name, gpu="h100-sxm", ideal=more.pop("ideal", True), flags=flags, **more))


ONE = model(slots=1)


def at(*times: float, prompt: int = 300, output: int = 32) -> Requests:
    count = len(times)
    return Requests(prompt=np.full(count, prompt), output=np.full(count, output), arrival=np.array(times))


def finish(*members, swap: Swap | None = None) -> list[np.ndarray]:
    """When the requests of each model finish."""
    runs = simulate_shared([(deployment, requests, Slo()) for deployment, requests in members], swap)
    return [np.asarray(run.records.finish) for run in runs]


SECONDS = float(finish((ONE, at(0.0)))[0][0])
"""A request with the GPU to itself."""


def test_two_requests_by_hand() -> None:
    """The second comes when half of the first is done: the other half takes twice as long, then it is alone."""
    first, second = finish((ONE, at(0.0)), (ONE, at(SECONDS / 2)))
    assert first[0] == pytest.approx(1.5 * SECONDS, rel=1e-9)
    assert second[0] == pytest.approx(2.0 * SECONDS, rel=1e-9)


def test_three_at_once_take_three_times_as_long() -> None:
    assert [one[0] for one in finish(*[(ONE, at(0.0))] * 3)] == pytest.approx([3 * SECONDS] * 3, rel=1e-9)


def test_a_queue_of_one_model_does_not_queue_behind_the_other() -> None:
    """Two requests of the first, one after another, and one of the second: 2 s for the first pair, then 1 s alone."""
    first, second = finish((ONE, at(0.0, 0.0)), (ONE, at(0.0)))
    assert first == pytest.approx([2 * SECONDS, 3 * SECONDS], rel=1e-9)
    assert second[0] == pytest.approx(2 * SECONDS, rel=1e-9)


def test_two_equal_models_have_half_the_capacity_each() -> None:
    """The same backlog in both: whatever happens to one request happens at twice the time that it has alone."""
    rng, one = np.random.default_rng(5), model()
    backlog = Requests(prompt=rng.integers(50, 900, 80), output=rng.integers(2, 90, 80), arrival=np.zeros(80))
    (alone,) = simulate_shared([(one, backlog, Slo())])
    both = simulate_shared([(one, backlog, Slo())] * 2)
    for run in both:
        assert np.asarray(run.records.finish) == pytest.approx(2 * np.asarray(alone.records.finish), rel=1e-9)
        assert np.asarray(run.records.first) == pytest.approx(2 * np.asarray(alone.records.first), rel=1e-9)
        assert np.asarray(run.records.admitted) == pytest.approx(2 * np.asarray(alone.records.admitted), rel=1e-9)


def test_work_is_conserved() -> None:
    """Two backlogs of different models: the last of all is done when both would be one after the other."""
    rng, large = np.random.default_rng(6), model("llama-3.1-8b", 0.6)
    loads = [
        Requests(prompt=rng.integers(50, 900, n), output=rng.integers(2, 90, n), arrival=np.zeros(n)) for n in (60, 90)
    ]
    alone = [float(np.max(finish((one, load))[0])) for one, load in zip((model(), large), loads)]
    together = finish((model(), loads[0]), (large, loads[1]))
    assert max(float(np.max(one)) for one in together) == pytest.approx(sum(alone), rel=1e-9)
    assert min(float(np.max(one)) for one in together) == pytest.approx(2 * min(alone), rel=1e-9)


def test_beside_an_idle_model_nothing_changes() -> None:
    """What the other has comes after the end. Alone it is the simulator's own run, to the price of steps at once."""
    rng = np.random.default_rng(7)
    arrival = np.cumsum(rng.exponential(0.05, 200))
    load = Requests(prompt=rng.integers(50, 900, 200), output=rng.integers(2, 90, 200), arrival=arrival)
    (alone,) = finish((model(), load))
    beside, _ = finish((model(), load), (model(), at(1000.0)))
    assert np.array_equal(alone, beside)
    known = np.asarray(simulate(model(), load, options=Options(trim=True)).records.finish)
    assert np.median(np.abs(alone - known)) < 1e-5


def test_replicas_are_groups_of_their_own() -> None:
    """Two requests of each model at once, on two groups of GPUs: each shares with one other alone."""
    two = replace(ONE, parallel=Parallelism(replicas=2))
    first, second = finish((two, at(0.0, 0.0)), (two, at(0.0, 0.0)))
    assert [*first, *second] == pytest.approx([2 * SECONDS] * 4, rel=1e-9)
    with pytest.raises(UsageError, match="have as many replicas each"):
        finish((two, at(0.0)), (ONE, at(0.0)))


def test_a_cascade_whose_first_model_shares() -> None:
    """Its departures go on at the time at which they leave, beside the other model."""
    stages = [
        ModelStage(name="small", rate=5.0, prompt=Lengths(mean=300), output=Lengths(mean=32)),
        ModelStage(name="beside", rate=5.0, prompt=Lengths(mean=300), output=Lengths(mean=32), shares=0),
        ModelStage(name="large", after=0, share=1.0, output=Lengths(mean=8)),
    ]
    run = simulate_tandem(stages, [model(), model(), model("llama-3.1-8b", 0.9)], [400, 400, 400])
    assert run.asked[2].run is not None
    assert np.asarray(run.asked[2].run.records.arrival) == pytest.approx(np.sort(run.asked[0].finish))
    alone = simulate_tandem(stages[:1], [model()], [400])
    assert np.mean(run.answers[0].e2el) > np.mean(alone.answers[0].e2el)


TURNS = Swap(keep_alive=SECONDS / 4, sleep=(1.0, 2.0), wake=(10.0, 20.0), overhead=100.0)


def test_a_model_wakes_when_the_other_has_nothing_to_do() -> None:
    """Both have a request at 0. The first is done after a service and stays for a quarter of one; it takes 1 s to
    sleep, the other wakes in 20 s, and 100 s go beside. What comes for the first then has to wait for 2 + 10 + 100 s.
    """
    late = 1.25 * SECONDS + 121.0 + SECONDS
    first, second = finish((ONE, at(0.0, 50.0)), (ONE, at(0.0)), swap=TURNS)
    assert (first[0], second[0]) == (pytest.approx(SECONDS, rel=1e-9), pytest.approx(late, rel=1e-9))
    assert first[1] == pytest.approx(late + SECONDS / 4 + 112.0 + SECONDS, rel=1e-9)


def test_a_model_that_stays_awake_serves_what_comes() -> None:
    """The second request comes while it still is: the other model waits for both, and for a quarter more."""
    first, second = finish((ONE, at(0.0, 1.2 * SECONDS)), (ONE, at(0.0)), swap=TURNS)
    assert first == pytest.approx([SECONDS, 2.2 * SECONDS], rel=1e-9)
    assert second[0] == pytest.approx(2.45 * SECONDS + 121.0 + SECONDS, rel=1e-9)
    first, second = finish((ONE, at(0.0, 1.3 * SECONDS)), (ONE, at(0.0)), swap=TURNS)
    assert second[0] == pytest.approx(1.25 * SECONDS + 121.0 + SECONDS, rel=1e-9)


def polled(arrivals: list[np.ndarray], swap: Swap) -> list[list[float]]:
    """Two single servers of which one at a time is awake, request by request: when each is done."""
    now, awake, done = 0.0, 0, [[], []]
    while len(done[0]) < len(arrivals[0]) or len(done[1]) < len(arrivals[1]):
        coming = [float(np.append(one, np.inf)[len(ended)]) for one, ended in zip(arrivals, done)]
        switch = max(coming[1 - awake], now + swap.keep_alive)
        if coming[awake] <= max(now, switch):
            now = max(now, coming[awake]) + SECONDS
            done[awake].append(now)
        else:
            now, awake = switch + swap.seconds(awake, 1 - awake), 1 - awake
    return done


@for_each("keep_alive", [0.0, 0.5, 3.0])
def test_turns_against_a_replay(keep_alive: float) -> None:
    """Some 200 requests of each at random, at half the load beside switches that take 3 services."""
    rng = np.random.default_rng(8)
    arrivals = [np.cumsum(rng.exponential(4 * SECONDS, 200)) for _ in range(2)]
    half = 1.5 * SECONDS
    swap = Swap(keep_alive=keep_alive * SECONDS, sleep=(half / 2, half), wake=(half, half / 2), overhead=0.0)
    loads = [Requests(prompt=np.full(200, 300), output=np.full(200, 32), arrival=one) for one in arrivals]
    found = finish(*((ONE, load) for load in loads), swap=swap)
    for one, expected in zip(found, polled(arrivals, swap)):
        assert one == pytest.approx(expected, rel=1e-9)


def test_what_cannot_share_is_refused() -> None:
    for members, says in (
        ([model(share=0.6), model(share=0.5)], r"take 0.6 \+ 0.5 of their memory"),
        ([model(), model(parallel=Parallelism(tp=2))], "cannot share the GPUs of"),
        ([model(parallel=Parallelism(pp=2))] * 2, "one stage and one rank of attention"),
    ):
        with pytest.raises(UsageError, match=says):
            finish(*((one, at(0.0)) for one in members))


def test_sharing_in_a_tree() -> None:
    first = ModelStage(name="small", rate=5.0, prompt=Lengths(mean=300), output=Lengths(mean=32))
    with pytest.raises(UsageError, match="large is asked after another model and shares GPUs"):
        require_tree([first, ModelStage(name="large", after=0, share=0.5, output=Lengths(mean=8), shares=0)])
    second = replace(first, name="second", shares=0)
    require_tree([first, second, replace(second, name="third")])
    with pytest.raises(UsageError, match="third shares the GPUs of a model that has none of its own"):
        require_tree([first, second, replace(second, name="third", shares=1)])
