"""Conversations and sessions on replicas that come and go, against a replay of servers of one request at a time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from math import inf, isnan

import numpy as np
import pytest

from inferplan.serving.autoscaling import Losses, Reactive, Scaling, Schedule
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.routing import Router, Routing
from inferplan.serving.simulator import simulate
from inferplan.traffic.conversations import ThinkTime
from inferplan.traffic.requests import OpenLoop, Requests, SharedPrefix, Traffic, parse_lengths
from inferplan.traffic.sessions import SessionTraffic
from tests.cases import for_each
from tests.serving.conftest import deployment
from tests.serving.plain_time import CLOSE, plain, seconds
from tests.serving.test_composition import chat
from tests.serving.test_sessions import given

TURNS, COUNT, COLD = 4, 30, 25.0
CHANGES = ((0.0, 2), (60.0, 4), (230.0, 1), (300.0, 3), (420.0, 2))
TAKES = seconds(30, 1, 1)
"""Seconds of a request of 30 tokens and an answer of three, alone."""


def conversations(seed: int) -> Requests:
    """Of four turns each, all of one length, which begin in 400 s; thinking takes a random time."""
    draw = np.random.default_rng(seed)
    begin = np.sort(draw.random(COUNT) * 400)
    turn = np.arange(COUNT * TURNS) % TURNS
    return Requests(
        prompt=np.full(COUNT * TURNS, 30),
        output=np.full(COUNT * TURNS, 3),
        arrival=np.where(turn == 0, np.repeat(begin, TURNS), np.nan),
        follows=np.where(turn == 0, -1, np.arange(COUNT * TURNS) - 1),
        think=draw.exponential(40.0, COUNT * TURNS),
    )


class Servers:
    """Replicas of one place each, under a timetable: the youngest leave first and finish what they have."""

    def __init__(self, routing: str) -> None:
        self.routing, self.taking, self.turn = routing, list(range(CHANGES[0][1])), 0
        self.there = list(self.taking)
        self.ends: list[list[float]] = [[] for _ in self.taking]
        self.of: dict[int, int] = {}

    def change(self, time: float, wanted: int) -> list[tuple[float, int]]:
        """Gives when which replicas are ready."""
        ready = []
        while len(self.there) < wanted:
            self.there.append(len(self.ends))
            ready.append((time + COLD, len(self.ends)))
            self.ends.append([])
        gone = self.there[wanted:]
        self.there = self.there[:wanted]
        self.taking = [one for one in self.taking if one not in gone]
        return ready

    def serve(self, time: float, conversation: int, answers: int = 1) -> list[float]:
        """Gives when the answers of a request are done."""
        server = self.of.get(conversation) if self.routing == "sticky" else None
        if self.routing == "least-loaded":
            server = min(self.taking, key=lambda one: (sum(end > time for end in self.ends[one]), one))
        elif server not in self.taking:
            server = self.taking[self.turn % len(self.taking)]
            self.turn += 1
        self.of[conversation] = server
        for _ in range(answers):
            self.ends[server].append(max([time, *self.ends[server][-1:]]) + TAKES)
        return self.ends[server][-answers:]


Ends = dict[int, tuple[float, float]]
"""When each request was sent and done."""


def next_turn(done: int, found: Ends) -> dict[int, float]:
    """The next of the conversation, which waits for this one alone."""
    return {done + 1: found[done][1]} if done % TURNS < TURNS - 1 else {}


def next_call(done: int, found: Ends) -> dict[int, float]:
    """Of :func:`agents`: both sub-agents wait for the first call, the last call for both of them."""
    first = done - done % TURNS
    both = {first + 1, first + 2}
    if done == first:
        return dict.fromkeys(both, found[done][1])
    return {first + 3: max(found[one][1] for one in both)} if done in both and both <= found.keys() else {}


def replayed(sent: Requests, routing: str, following: Callable[[int, Ends], dict[int, float]] = next_turn) -> Ends:
    """following: which requests wait for no other once one is served, and since when, before they think."""
    assert sent.arrival is not None and sent.think is not None
    servers, found = Servers(routing), Ends()
    events: list[tuple[float, str, int]] = [(at, "change", count) for at, count in CHANGES[1:]]
    events += [(at, "sent", index) for index, at in enumerate(sent.arrival.tolist()) if not isnan(at)]
    heapq.heapify(events)
    while events:
        time, what, which = heapq.heappop(events)
        if what == "change":
            for at, server in servers.change(time, which):
                heapq.heappush(events, (at, "ready", server))
        elif what == "ready":
            servers.taking += [which] if which in servers.there else []
        else:
            (end,) = servers.serve(time, which // TURNS)
            found[which] = time, end
            for one, ready in following(which, found).items():
                heapq.heappush(events, (ready + float(sent.think[one]), "sent", one))
    return found


@for_each("routing", ["round-robin", "least-loaded", "sticky"])
def test_every_turn_is_sent_and_done_when_a_replay_says(routing: Routing) -> None:
    for seed in range(3):
        sent = conversations(seed)
        fleet = Fleet(routing=routing, scaling=Schedule(changes=CHANGES, cold_start=COLD))
        run = simulate(plain(slots=1), sent, Flags(max_num_seqs=1), Options(fleet=fleet))
        expected = sorted(replayed(sent, routing).values())
        assert len(expected) == COUNT * TURNS == run.counts["finished"]
        found = sorted(zip(run.records.arrival, run.records.finish))
        assert np.array(found) == pytest.approx(np.array(expected), rel=CLOSE, abs=0.05)
        last = max(time for time, _ in found)
        assert last > 420.0 and len(run.lives) == 6  # two more at 60 s, three left at 230 s, two more at 300 s


def agents(seed: int) -> Requests:
    """Sessions of four calls: the first starts two sub-agents, for both of which the last waits."""
    draw = np.random.default_rng(seed)
    gaps, begin = draw.exponential(40.0, COUNT * 4), np.sort(draw.random(COUNT) * 400)
    calls, joins = list[tuple[int, int, int, float]](), list[tuple[int, int]]()
    for first in range(0, COUNT * 4, 4):
        whom = (-1, first, first, first + 1)
        calls += [(30, 3, before, float(gaps[first + place])) for place, before in enumerate(whom)]
        joins.append((first + 3, first + 2))
    return given(calls, joins, patience=[inf] * COUNT, arrival=np.repeat(begin, 4))


@for_each("routing", ["round-robin", "least-loaded", "sticky"])
def test_every_call_is_sent_and_done_when_a_replay_says(routing: Routing) -> None:
    for seed in range(3):
        sent = agents(seed)
        fleet = Fleet(routing=routing, scaling=Schedule(changes=CHANGES, cold_start=COLD))
        run = simulate(plain(slots=1), sent, Flags(max_num_seqs=1), Options(fleet=fleet))
        expected = sorted(replayed(sent, routing, next_call).values())
        assert len(expected) == COUNT * TURNS == run.counts["finished"]
        found = sorted(zip(run.records.arrival, run.records.finish))
        assert np.array(found) == pytest.approx(np.array(expected), rel=CLOSE, abs=0.05)


def test_who_gives_up_before_a_replica_is_there() -> None:
    """The first replica is ordered at 10 s and ready at 35 s. Who waits no longer than 20 s has left by then, and the
    second call is never sent; who waits has an answer TAKES after 35 s, and the second 5 s and TAKES later."""
    calls = [(30, 3, -1, 0.0), (30, 3, 0, 5.0), (30, 3, -1, 0.0), (30, 3, 2, 5.0)]
    sent = given(calls, patience=[20.0, inf], arrival=np.array([1.0, 0.0, 2.0, 0.0]))
    scaling = Schedule(changes=((0.0, 0), (10.0, 1)), cold_start=COLD)
    run = simulate(plain(slots=1), sent, Flags(max_num_seqs=1), Options(fleet=Fleet(scaling=scaling)))
    assert run.counts == {
        "arrived": 3, "finished": 2, "rejected": 0, "timed_out": 0, "cancelled": 1, "waiting": 0
    }  # fmt: skip
    ends = [35.0 + TAKES, 40.0 + 2 * TAKES]
    assert np.sort(np.asarray(run.records.finish))[1:3] == pytest.approx(ends, rel=CLOSE)


def test_answers_of_a_prompt_go_where_a_replay_says() -> None:
    """Three answers each: all go to the server that has fewest as they are sent, one after another."""
    for seed in range(3):
        times = np.sort(np.random.default_rng(seed).random(COUNT) * 500)
        each = np.repeat(times, 3)
        sent = Requests(prompt=np.full(len(each), 30), output=np.full(len(each), 3), arrival=each, samples=3)
        fleet = Fleet(routing="least-loaded", scaling=Schedule(changes=CHANGES, cold_start=COLD))
        run = simulate(plain(slots=1), sent, Flags(max_num_seqs=1), Options(fleet=fleet))
        servers = Servers("least-loaded")
        events = [(at, 0, count) for at, count in CHANGES[1:]] + [(at, 2, 0) for at in times.tolist()]
        heapq.heapify(events)
        expected = []
        while events:
            time, what, which = heapq.heappop(events)
            if what == 0:
                for at, server in servers.change(time, which):
                    heapq.heappush(events, (at, 1, server))
            elif what == 1:
                servers.taking += [which] if which in servers.there else []
            else:
                expected += servers.serve(time, which, 3)
        assert np.asarray(run.records.finish) == pytest.approx(np.array(expected), rel=CLOSE, abs=0.05)


def test_an_empty_replica_gets_requests_when_the_others_have_far_more() -> None:
    """Prompts that share 20 of 30 tokens, faster than one server of one place serves; a second is ready at COLD. It
    gets nothing until the first has more than 64 requests beyond its own; once it has the text, who has fewer."""
    count = 200
    times = np.arange(count) * TAKES / 4
    names = [(*range(20), *range(100 + 20 * place, 110 + 20 * place)) for place in range(count)]
    sent = Requests(prompt=np.full(count, 30), output=np.full(count, 3), arrival=times, hashes=names, hash_block=1)
    fleet = Fleet(routing="cache-aware", scaling=Schedule(changes=((0.0, 1), (1.0, 2)), cold_start=COLD))
    homes: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        send = Router.send
        patch.setattr(Router, "send", lambda *given: (homes.append(send(*given)), homes[-1])[1])
        run = simulate(plain(slots=1, prefix_caching=True), sent, Flags(max_num_seqs=1), Options(fleet=fleet))
    assert len(homes) == count == run.counts["finished"]
    finish, first = np.asarray(run.records.finish), np.asarray(run.records.first)
    home = np.array(homes)
    begun = int(np.argmax(home == 1))
    loads = [
        [int(np.sum((home[:place] == one) & (finish[:place] > times[place]))) for one in (0, 1)]
        for place in range(count)
    ]
    assert loads[begun] == [65, 0] and times[begun] > 1.0 + COLD
    assert all(most <= 64 for most, _ in loads[:begun]) and not np.any(home[:begun])
    after = [place for place in range(begun, count) if times[place] > first[begun]]
    assert after and all(home[place] == int(loads[place][1] < loads[place][0]) for place in after)
    assert all(run.records.cached[place] == 20 for place in range(1, count) if place != begun)


NEVER = Reactive(target=1.0, first=3, cold_start=30.0, least=3, most=4, tolerance=1e9)
"""An autoscaler that looks, and changes nothing."""


@for_each(
    "scaling, routing",
    [
        (Schedule(changes=((0.0, 3),)), "sticky"),
        (Schedule(changes=((0.0, 3), (1e6, 2))), "sticky"),
        (Schedule(changes=((0.0, 3), (1e6, 2))), "least-loaded"),
        (Schedule(changes=((0.0, 3), (1e6, 2))), "cache-aware"),
        (NEVER, "least-loaded"),
    ],
)
def test_a_flat_day_is_the_fleet_to_the_last_bit(scaling: Scaling, routing: Routing) -> None:
    conversation = Traffic(
        arrivals=OpenLoop(rate=10.0),
        prompt=parse_lengths("lognormal:256:0.8"),
        output=parse_lengths("32"),
        requests_count=400,
        prefix=SharedPrefix(tokens=100, distinct=3, turns=4, think=ThinkTime(kind="exponential", mean=5.0)),
    )
    made = deployment()
    fixed = replace(made, parallel=replace(made.parallel, replicas=3))
    leaving = replace(chat(), patience=ThinkTime(kind="exponential", mean=3.0))
    session = SessionTraffic(kinds=(leaving,), arrivals=OpenLoop(rate=3.0), sessions_count=120)
    for sent in (conversation.requests(), session.requests()):
        stays = simulate(fixed, sent, options=Options(fleet=Fleet(routing=routing)))
        comes = simulate(made, sent, options=Options(fleet=Fleet(scaling=scaling, routing=routing)))
        for name in ("arrival", "admitted", "first", "finish", "outcome"):
            one, other = (np.asarray(getattr(run.records, name)) for run in (stays, comes))
            assert one.tobytes() == other.tobytes(), name
        assert stays.records.cached == comes.records.cached and stays.hit_rate > 0.3
    assert stays.counts["cancelled"] > 0


def test_replicas_are_taken_away_only_while_somebody_comes() -> None:
    """One in 100 s, each with another in its place, and the run ends."""
    sent = conversations(5)
    losses = Losses(rate=0.01, notice=5.0, seed=1)
    fleet = Fleet(scaling=Schedule(changes=((0.0, 2),), cold_start=COLD), losses=losses)
    run = simulate(plain(slots=1), sent, Flags(max_num_seqs=1), Options(fleet=fleet))
    assert run.counts["finished"] == COUNT * TURNS
    taken = [life for life in run.lives if life.taken]
    last = max(run.records.finish)
    assert taken and max(life.left for life in taken) <= last
    assert sum(life.left == inf for life in run.lives) == 2


@for_each("samples", [1, 3])
def test_conversations_begin_at_the_times_that_are_given(samples: int) -> None:
    recipe = Traffic(
        arrivals=OpenLoop(rate=2.0),
        prompt=parse_lengths("lognormal:256:0.8"),
        output=parse_lengths("32"),
        requests_count=40,
        samples=samples,
        prefix=SharedPrefix(tokens=100, distinct=3, turns=4, think=ThinkTime(mean=5.0)),
    )
    starts = np.sort(np.random.default_rng(3).random(10) * 20)
    given = recipe.beginning(starts, 16)
    assert given.arrival is not None and given.hashes is not None and given.follows is not None
    assert sorted(given.arrival[given.follows < 0].tolist()) == sorted(np.repeat(starts, samples).tolist())
    assert len(given) == 40 * samples and [len(one) for one in given.hashes] == [
        (prompt + output - 1) // 16 for prompt, output in zip(given.prompt.tolist(), given.output.tolist())
    ]
    for request, before in enumerate(given.follows.tolist()):
        if before >= 0:  # a turn begins with all the blocks of the one before it
            assert given.hashes[request][: len(given.hashes[before])] == given.hashes[before]
    for first in range(0, len(given), samples):  # answers of a prompt have its blocks alone in common, when they begin
        prompt = int(given.prompt[first]) // 16
        names = given.hashes[first : first + samples]
        shared = 100 // 16 if given.follows[first] >= 0 else prompt
        assert len({one[:shared] for one in names}) == 1
        assert len({name for one in names for name in one[prompt:]}) == sum(len(one) - prompt for one in names)
