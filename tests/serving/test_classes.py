"""Several kinds of traffic on one engine: Cobham's priority queue, virtual token counters, figures of each class.

The device is that of ``plain_time``: one second a step and a tenth for each token in it, so that service times are
known by heart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.errors import UsageError
from inferplan.serving.class_results import at_percentile
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult, class_parts
from inferplan.serving.simulator import simulate
from inferplan.serving.waiting import QueueOrder
from inferplan.traffic.classes import require_whole
from inferplan.traffic.requests import ClosedLoop, Lengths, Media, OpenLoop, Requests, Slo, Traffic, TrafficClass
from inferplan.units import Array
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.serving.conftest import deployment
from tests.serving.plain_time import CLOSE, plain, seconds

ONE = Lengths()


def service(prompt: int, output: int) -> float:
    """Seconds of a request alone: a step with its prompt, then one for each further token."""
    return seconds(prompt, *([1] * (output - 1)))


def kind(name: str, share: float, prompt: int, output: int, **more: object) -> TrafficClass:
    return TrafficClass(name=name, share=share, prompt=Lengths(mean=prompt), output=Lengths(mean=output), **more)  # type: ignore[arg-type]


def traffic(classes: Sequence[TrafficClass], rate: float, count: int, seed: int = 0) -> Traffic:
    arrivals = OpenLoop(rate=rate)
    return Traffic(arrivals=arrivals, prompt=ONE, output=ONE, requests_count=count, seed=seed, classes=tuple(classes))


def mean_waits(run: SimulationResult) -> list[float]:
    """Seconds from arrival to admission of each class."""
    of, records = np.asarray(run.records.of), run.records
    waits = np.asarray(records.admitted) - np.asarray(records.arrival)
    return [float(waits[of == place].mean()) for place in range(len(records.classes))]


def given(of: Sequence[int], classes: Sequence[TrafficClass], arrival: Sequence[float]) -> Requests:
    """Requests of stated classes and times, with the lengths of their class."""
    prompt, output = (np.array([int(getattr(classes[one], name).mean) for one in of]) for name in ("prompt", "output"))
    return Requests(
        prompt=prompt, output=output, arrival=np.array(arrival, dtype=float), classes=tuple(classes), of=np.array(of)
    )


def order(run: SimulationResult) -> list[int]:
    """The classes of the requests as they were admitted."""
    return [int(run.records.of[request]) for request in np.argsort(np.asarray(run.records.admitted), kind="stable")]  # type: ignore[index]


# --- two-class non-preemptive priority queue (Cobham, Operations Research 2, 1954, 70-76) -----------------------------


@for_each(
    ("shares", "shapes", "load"),
    [
        ((0.3, 0.7), ((20, 8), (20, 8)), 0.7),  # M/D/1: 10.7 s each
        ((0.8, 0.2), ((20, 8), (200, 12)), 0.6),  # M/G/1: 10.7 s and 33.1 s
        ((0.2, 0.8), ((200, 12), (20, 8)), 0.6),  # the long ones first
    ],
)
def test_two_priorities_wait_as_cobham_says(
    shares: tuple[float, float], shapes: tuple[tuple[int, int], tuple[int, int]], load: float
) -> None:
    classes = [kind(f"{i}", share, *shape, priority=i) for i, (share, shape) in enumerate(zip(shares, shapes))]
    times = [service(*shape) for shape in shapes]
    rate = load / float(np.dot(shares, times))
    residual = rate * float(np.dot(shares, np.square(times))) / 2
    first, both = rate * shares[0] * times[0], load
    expected = [residual / (1 - first), residual / ((1 - first) * (1 - both))]
    runs = [
        simulate(plain(), traffic(classes, rate, 30_000, seed), Flags(max_num_seqs=1, queue="priority"))
        for seed in (1, 2)
    ]
    assert np.mean([mean_waits(run) for run in runs], axis=0) == pytest.approx(expected, rel=0.05)


def test_the_number_on_the_page() -> None:
    """docs/classes.md: 10.7 s of service, 0.0654 requests per second, 3 of 10 first."""
    rate = 0.7 / service(20, 8)
    residual = rate * service(20, 8) ** 2 / 2
    assert service(20, 8) == pytest.approx(10.7)
    assert rate == pytest.approx(0.0654, abs=5e-5)
    assert residual == pytest.approx(3.745)
    assert residual / (1 - 0.21) == pytest.approx(4.74, abs=5e-3)
    assert residual / ((1 - 0.21) * (1 - 0.7)) == pytest.approx(15.80, abs=5e-3)
    waits_of_all = 0.3 * 4.74 + 0.7 * 15.80
    assert waits_of_all == pytest.approx(residual / (1 - 0.7), rel=1e-3)


@for_each("queue", ["priority", "fair"])
def test_with_equal_service_an_order_gives_one_what_it_takes_from_another(queue: QueueOrder) -> None:
    """Kleinrock's conservation law: the load-weighted wait is that of first come, first served."""
    classes = [kind("a", 0.3, 20, 8, priority=0, weight=3), kind("b", 0.7, 20, 8, priority=1)]
    load = traffic(classes, 0.8 / service(20, 8), 20_000)
    plain_order, other = (simulate(plain(), load, Flags(max_num_seqs=1, queue=q)) for q in ("fcfs", queue))
    assert other.wait.mean() == pytest.approx(plain_order.wait.mean(), rel=1e-9)
    assert mean_waits(other)[0] < 0.8 * mean_waits(plain_order)[0]


# --- classes that change nothing --------------------------------------------------------------------------------------


def test_first_come_first_served_knows_no_classes() -> None:
    classes = [
        replace(kind("a", 0.4, 1, 1), prompt=Lengths(kind="lognormal", mean=900, spread=0.8)),
        replace(kind("b", 0.6, 300, 80), output=Lengths(kind="gamma", mean=80, spread=0.5), priority=3),
    ]
    requests = traffic(classes, 30.0, 800).requests()
    with_them = simulate(deployment(), requests)
    without = simulate(deployment(), replace(requests, classes=(), of=None))
    for name in ("admitted", "first", "finish"):
        assert getattr(with_them.records, name).tobytes() == getattr(without.records, name).tobytes()
    record = with_them.to_dict()
    assert {**record, "classes": None} == without.to_dict()


def test_arrivals_are_those_of_a_load_without_classes() -> None:
    classes = traffic([kind("a", 0.5, 100, 10), kind("b", 0.5, 100, 10)], 5.0, 200)
    one = replace(classes, classes=(), prompt=Lengths(mean=100), output=Lengths(mean=10))
    assert np.array_equal(classes.requests().arrival, one.requests().arrival)  # type: ignore[arg-type]


def test_every_class_has_its_share_and_its_lengths() -> None:
    requests = traffic([kind("a", 0.25, 100, 10), kind("b", 0.75, 7, 3)], 5.0, 40_000).requests()
    assert requests.of is not None
    mine = requests.of == 0
    assert mine.mean() == pytest.approx(0.25, abs=4 * np.sqrt(0.25 * 0.75 / 40_000))
    assert set(requests.prompt[mine]) == {100} and set(requests.prompt[~mine]) == {7}
    assert set(requests.output[mine]) == {10} and set(requests.output[~mine]) == {3}


def test_one_class_is_first_come_first_served_in_any_order() -> None:
    load = traffic([kind("a", 1.0, 50, 20)], 0.5, 300)
    runs = [simulate(plain(slots=4), load, Flags(queue=queue)) for queue in ("fcfs", "priority", "fair")]
    assert runs[0].records.finish.tolist() == pytest.approx(runs[1].records.finish.tolist())
    assert runs[0].records.finish.tolist() == pytest.approx(runs[2].records.finish.tolist())


# --- fair queueing (virtual token counters) ---------------------------------------------------------------------------


def served_until(run: SimulationResult, time: float, tokens: Array) -> list[float]:
    """Tokens of each class's requests that were done at ``time``."""
    done, of = np.asarray(run.records.finish) <= time, np.asarray(run.records.of)
    return [float(np.sum(tokens[done & (of == place)])) for place in (0, 1)]


@for_each("shapes", [((20, 8), (20, 8)), ((30, 10), (10, 30))])
def test_backlogged_classes_are_served_by_their_weights(shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """Weights 2 to 1: service (a prompt token 1, an output token 2) is 2 to 1 while both have requests waiting."""
    classes = [kind("a", 0.5, *shapes[0], weight=2), kind("b", 0.5, *shapes[1])]
    count = 6000
    requests = given([0, 1] * (count // 2), classes, [0.0] * count)
    run = simulate(plain(), requests, Flags(max_num_seqs=16, queue="fair"))
    admitted, of = np.asarray(run.records.admitted), requests.of
    until = min(float(np.max(admitted[of == place])) for place in (0, 1))  # when one of them is no longer backlogged
    first, second = served_until(run, until, requests.prompt + 2.0 * requests.output)
    assert first / second == pytest.approx(2.0, rel=0.02)
    if shapes[0] == shapes[1]:
        first, second = served_until(run, until, requests.output.astype(float))
        assert first / second == pytest.approx(2.0, rel=0.02)


def test_turns_by_hand() -> None:
    """One slot, weights 2 and 1, equal service s: counters (0,0) a (s/2,0) b (s/2,s) a (s,s) a (3s/2,s) b."""
    classes = [kind("a", 0.5, 10, 4, weight=2), kind("b", 0.5, 10, 4)]
    run = simulate(plain(), given([0, 1] * 6, classes, [0.0] * 12), Flags(max_num_seqs=1, queue="fair"))
    assert order(run) == [0, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 1]


def test_who_was_away_has_saved_up_nothing() -> None:
    """b comes when a has been served for long: it is lifted to a's counter, and they take turns."""
    classes = [kind("a", 0.5, 10, 4), kind("b", 0.5, 10, 4)]
    late = 5 * service(10, 4) + 0.5
    run = simulate(
        plain(), given([0] * 12 + [1] * 3, classes, [0.0] * 12 + [late] * 3), Flags(max_num_seqs=1, queue="fair")
    )
    assert order(run)[:6] == [0] * 6
    # while the sixth request of a runs its output counts; it was lifted to before that
    assert order(run)[6:11] == [1, 0, 1, 0, 1]


# --- priorities -------------------------------------------------------------------------------------------------------


def test_the_lowest_number_goes_first_and_equal_ones_in_order_of_arrival() -> None:
    classes = [
        kind("a", 0.25, 10, 2, priority=5),
        kind("b", 0.5, 10, 2, priority=-1),
        kind("c", 0.25, 10, 2, priority=5),
    ]
    of = [0, 2, 0, 1, 2, 1]
    run = simulate(plain(), given(of, classes, [0.0, 1, 2, 3, 4, 5]), Flags(max_num_seqs=1, queue="priority"))
    ranked = np.argsort(np.asarray(run.records.admitted)).tolist()
    assert ranked == [0, 3, 5, 1, 2, 4]  # 0 takes 3.1 s: 3 is there by then, and 5 before the next


def test_the_lowest_priority_is_sent_back_when_the_cache_is_full() -> None:
    """Both decode in a cache of 60 tokens; first come, first served sends the last one back, priorities the low one."""
    classes = [kind("low", 0.5, 20, 20, priority=1), kind("high", 0.5, 20, 20, priority=0)]
    requests = given([0, 1], classes, [0.0, 0.5])
    back = {}
    for queue in ("fcfs", "priority"):
        run = simulate(plain(capacity=60), requests, Flags(queue=queue, prefix_caching=False))
        assert run.counts["finished"] == 2
        back[queue] = sorted(run.records.preempted)
    assert back == {"fcfs": [1], "priority": [0]}


@for_each("parallel", [Parallelism(), Parallelism(pp=2)])
def test_who_goes_first_is_not_kept_by_a_head_that_does_not_fit(parallel: Parallelism) -> None:
    """A long prompt waits for room in the cache; a short one of higher priority comes and begins in the next steps."""
    classes = [kind("long", 0.5, 60, 40, priority=1), kind("short", 0.5, 5, 2, priority=0)]
    requests = given([0, 0, 1], classes, [0.0, 0.0, 15.0])
    served = plain(capacity=110, parallel=parallel)
    run = simulate(served, requests, Flags(queue="priority", prefix_caching=False))
    assert run.records.admitted[1] > 40
    assert 15.0 <= run.records.admitted[2] < 15 + 2 * seconds(1)
    behind = simulate(served, requests, Flags(prefix_caching=False))
    assert behind.records.admitted[2] > 40


def test_clients_that_give_up_leave_every_line() -> None:
    classes = [kind("a", 0.5, 10, 20, priority=0), kind("b", 0.5, 10, 20, priority=1)]
    requests = given([0, 1, 0, 1], classes, [0.0, 0.0, 0.1, 0.2])
    run = simulate(plain(), requests, Flags(max_num_seqs=1, queue="priority", client_timeout=30.0))
    assert run.counts["timed_out"] == 3 and run.counts["finished"] == 1
    assert run.records.finish[3] == pytest.approx(30.2)


@for_each("queue", ["priority", "fair"])
def test_engines_in_processes_of_their_own_say_the_same(queue: QueueOrder) -> None:
    classes = [kind("a", 0.5, 40, 20, priority=1, weight=2), kind("b", 0.5, 20, 30)]
    served, load = plain(slots=4, parallel=Parallelism(replicas=2)), traffic(classes, 0.3, 300)
    one, two = (simulate(served, load, Flags(queue=queue), Options(jobs=jobs)) for jobs in (1, 2))
    assert one.records.finish.tobytes() == two.records.finish.tobytes()


@for_each("queue", ["priority", "fair"])
@for_each("parallel", [Parallelism(pp=2), Parallelism(replicas=2)])
def test_tokens_are_conserved(queue: QueueOrder, parallel: Parallelism) -> None:
    classes = [kind("a", 0.5, 300, 40, priority=1, weight=2), kind("b", 0.5, 80, 100)]
    run = simulate(plain(capacity=3000, parallel=parallel), traffic(classes, 0.5, 200), Flags(queue=queue))
    assert run.counts["finished"] == 200
    decoded = sum(meter.decode_tokens for meter in run.meters)
    again = sum(run.records.preempted.values())  # each makes one more token with its prompt, instead of in a step
    assert decoded <= int(np.sum(np.asarray(run.records.output) - 1)) <= decoded + again


# --- figures of each class --------------------------------------------------------------------------------------------


def test_the_figures_of_a_class_are_those_of_its_requests() -> None:
    slo = Slo(ttft=20.0, e2el=60.0, percentile=80)
    classes = [kind("a", 0.5, 40, 20, priority=0, slo=slo), kind("b", 0.5, 20, 30, priority=1)]
    load = traffic(classes, 0.12, 400)
    run = simulate(plain(slots=6), load, Flags(queue="priority"), Options(warmup=50))
    records = run.records
    of, late = np.asarray(records.of), np.arange(400) >= 50
    arrival, first, finish = (np.asarray(getattr(records, name)) for name in ("arrival", "first", "finish"))
    output = np.asarray(records.output)
    found = run.to_dict()["classes"]
    for place, one in enumerate(found):
        mine = late & (of == place)
        assert one["requests"]["finished"] == np.sum(mine)
        assert one["ttft_s"]["p95"] == pytest.approx(np.percentile((first - arrival)[mine], 95))
        assert one["tpot_s"]["mean"] == pytest.approx(np.mean(((finish - first) / (output - 1))[mine]))
        assert one["e2el_s"]["p50"] == pytest.approx(np.percentile((finish - arrival)[mine], 50))
    mine = late & (of == 0)
    good = mine & (first - arrival <= 20) & (finish - arrival <= 60)
    assert 0 < np.sum(good) < np.sum(mine)
    assert found[0]["slo_attained"] == pytest.approx(np.sum(good) / np.sum(mine))
    at = np.percentile((first - arrival)[mine], 80), np.percentile((finish - arrival)[mine], 80)
    assert (found[0]["at_percentile"]["ttft_s"], found[0]["at_percentile"]["e2el_s"]) == pytest.approx(at)
    assert found[0]["meets"] == (at[0] <= 20 and at[1] <= 60)
    assert found[1]["meets"] is None and found[1]["slo_attained"] is None
    assert sum(one["requests_per_s"] for one in found) == pytest.approx(run.request_rate)
    assert found[0]["goodput_requests_per_s"] == pytest.approx(found[0]["requests_per_s"] * found[0]["slo_attained"])


def test_a_class_whose_queue_does_not_grow_keeps_its_percentiles() -> None:
    """Under an overload by the low class alone the high one is served as ever: Cobham's first class."""
    classes = [kind("high", 0.2, 20, 8, priority=0), kind("low", 0.8, 20, 8, priority=1)]
    run = simulate(plain(), traffic(classes, 1.5 / service(20, 8), 3000), Flags(max_num_seqs=1, queue="priority"))
    high, low = run.to_dict()["classes"]
    assert run.verdict == "overloaded"
    assert not high["overloaded"] and low["overloaded"]
    assert low["ttft_s"]["p95"] is None and low["wait_mean_s"] is None
    # the server is never idle: who comes meets half a service, and the first class queues: M/D/1 with 0.3 of load
    expected = service(20, 8) / 2 / (1 - 0.3)
    assert high["wait_mean_s"] == pytest.approx(expected, rel=0.1)
    assert [one.name for one, _ in class_parts(run)] == ["high", "low"]


def test_refused_requests_are_late() -> None:
    classes = [kind("a", 0.5, 20, 8, slo=Slo(ttft=1e3, percentile=90)), kind("b", 0.5, 90, 8, slo=Slo(e2el=1e3))]
    run = simulate(plain(), given([0, 1] * 40, classes, list(range(80))), Flags(max_model_len=60))
    a, b = run.to_dict()["classes"]
    assert a["meets"] is True and b["meets"] is False
    assert (a["slo_attained"], b["slo_attained"]) == (1.0, 0.0)


def test_a_class_of_which_nobody_came_says_nothing() -> None:
    classes = [kind("a", 0.5, 20, 8), kind("b", 0.5, 90, 8, slo=Slo(e2el=1e3))]
    b = simulate(plain(), given([0] * 40, classes, list(range(40)))).to_dict()["classes"][1]
    assert b["meets"] is None and b["slo_attained"] is None and b["ttft_s"]["p95"] is None


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_an_order_needs_classes() -> None:
    load = Traffic(arrivals=ClosedLoop(concurrency=2), prompt=ONE, output=ONE)
    with pytest.raises(UsageError, match="--queue fair needs classes"):
        simulate(plain(), load, Flags(queue="fair"))


def test_classes_know_no_media() -> None:
    with pytest.raises(UsageError, match=r"classes of traffic .* and images"):
        replace(traffic([kind("a", 1.0, 5, 5)], 1.0, 10), media=Media(tokens=16))


def test_shares_make_a_whole() -> None:
    require_whole([kind("a", 0.333, 5, 5), kind("b", 0.667, 5, 5)])
    with pytest.raises(UsageError, match=r"add up to 0\.9, not to 1"):
        require_whole([kind("a", 0.5, 5, 5), kind("b", 0.4, 5, 5)])
    with pytest.raises(UsageError, match="two classes of traffic are named 'a'"):
        require_whole([kind("a", 0.5, 5, 5), kind("a", 0.5, 5, 5)])


def test_a_step_is_as_long_as_it_says() -> None:
    run = simulate(plain(), given([0], [kind("a", 1.0, 20, 8)], [0.0]))
    assert run.e2el[0] == pytest.approx(service(20, 8), rel=CLOSE)


def test_lost_requests_are_the_last_of_all_and_the_others_are_read_as_ever() -> None:
    """Of ten requests nine took 1 to 9 s: the median lies between the fifth and the sixth, the 95th percentile between
    the ninth and one that was lost."""
    seconds = np.arange(1.0, 10.0)

    def served(arrived: int) -> Any:
        return SimpleNamespace(ttft=seconds, counts={"arrived": arrived, "finished": 9})

    assert at_percentile(served(10), "ttft", 50.0) == pytest.approx(5.5, rel=1e-12)
    assert at_percentile(served(10), "ttft", 100 * 8 / 9) == pytest.approx(9.0, rel=1e-12)
    assert at_percentile(served(10), "ttft", 95.0) == np.inf
    assert at_percentile(served(9), "ttft", 50.0) == 5.0
    assert (
        at_percentile(SimpleNamespace(ttft=seconds[:0], counts={"arrived": 1, "finished": 0}), "ttft", 50.0) == np.inf
    )
