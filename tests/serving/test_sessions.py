"""Sessions of agents: fan-out and join by hand, what a session takes, caches replayed from texts, who gives up, laws.

The device is that of ``plain_time``: one second a step and a tenth for each token in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.records import CANCELLED, FINISHED
from inferplan.serving.result import SimulationResult
from inferplan.serving.session_results import SessionFigures
from inferplan.serving.simulator import simulate
from inferplan.traffic.conversations import ThinkTime
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, Requests, Slo
from inferplan.traffic.session_columns import Sessions
from inferplan.traffic.sessions import Agent, NextCall, SessionKind, SessionTraffic, Subagents
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.serving.conftest import deployment
from tests.serving.plain_time import CLOSE, plain, seconds

NEVER = float("inf")


def fixed(tokens: float) -> Lengths:
    return Lengths(mean=tokens)


def uniform(tokens: float, ratio: float) -> Lengths:
    return Lengths(kind="uniform", mean=tokens, spread=ratio)


def given(
    calls: Sequence[tuple[int, int, int, float]],
    joins: Sequence[tuple[int, int]] = (),
    patience: Sequence[float] = (NEVER,),
    **more: Any,
) -> Requests:
    """Calls of one session: prompt, output, whom each follows, gap; of several where more begin."""
    prompt, output, follows, gap = (np.array(column) for column in zip(*calls))
    count = len(calls)
    starts = np.where(follows < 0, more.pop("arrival", 0.0), np.nan)
    sessions = Sessions(
        of=np.cumsum(follows < 0) - 1,
        joins=np.array(joins, dtype=np.int64).reshape(-1, 2),
        by_user=np.array(more.pop("by_user", [False] * count)),
        patience=np.array(patience),
        kind=np.zeros(len(patience), dtype=np.int64),
        names=("only",),
    )
    return Requests(
        prompt=prompt,
        output=output,
        arrival=starts,
        follows=follows,
        think=gap.astype(float),
        sessions=sessions,
        **more,
    )


def figures(run: SimulationResult) -> SessionFigures:
    found = run.sessions
    assert found is not None
    return found


TINY = [(10, 2, -1, 0.0), (20, 1, 0, 0.0), (30, 2, 0, 0.0), (16, 1, 0, 5.0)]
"""Two turns of an agent; the first starts two sub-agents, and the second waits for both, and a tool."""
TEXTS = [tuple(range(11)), tuple(range(100, 120)), tuple(range(200, 231)), tuple(range(16))]
"""One token a block: the last call finds the eleven tokens that the first has left in the cache."""


def test_two_turns_and_two_subagents_by_hand() -> None:
    """The first call: a step of 10 tokens (2 s) and one of 1 (1.1 s): 3.1 s. Both sub-agents in one step of 50 tokens
    (6 s), then the second decodes once: 9.1 s and 10.2 s. Five seconds later the last call, of whose 16 tokens 5 are
    not cached: 1.5 s, so 16.7 s in all, of which no call is on the way for 5 s.
    """
    run = simulate(plain(prefix_caching=True), given(TINY, [(3, 1), (3, 2)], hashes=TEXTS, hash_block=1))
    finish = dict(zip(run.records.prompt, run.records.finish))
    assert finish[10] == pytest.approx(3.1, rel=CLOSE)
    assert (finish[20], finish[30]) == pytest.approx((9.1, 10.2), rel=CLOSE)
    assert dict(zip(run.records.prompt, run.records.arrival))[16] == pytest.approx(15.2, rel=CLOSE)
    found = figures(run)
    assert found.duration[0] == pytest.approx(16.7, rel=CLOSE)
    assert found.model[0] == pytest.approx(11.7, rel=CLOSE)
    assert found.tools[0] == pytest.approx(5.0, rel=1e-9)
    assert (found.calls[0], found.prompt_tokens[0], found.output_tokens[0], found.cached[0]) == (4, 76, 6, 11)


def test_a_session_of_a_thousand_calls_by_hand() -> None:
    """Each prompt is the one before it, its answer of 3 tokens and 4 new ones, 5 s after that answer. In whole blocks
    of 64 the cache has what was computed, all but the last token of an answer; the rest is a step, and two more of one
    token follow."""
    tool = NextCall(prompt=fixed(4), time=ThinkTime(mean=5.0))
    agent = Agent(turns=fixed(1000), system=0, first=fixed(10), output=fixed(3), tool=tool)
    kind = SessionKind(name="long", share=1.0, agent=agent)
    sent = SessionTraffic(kinds=(kind,), arrivals=ClosedLoop(concurrency=1), sessions_count=1).requests()
    run = simulate(plain(prefix_caching=True), sent)
    prompts = [10 + 7 * call for call in range(1000)]
    cached = [0, *((prompt + 2) // 64 * 64 for prompt in prompts[:-1])]
    model = sum(seconds(prompt - known, 1, 1) for prompt, known in zip(prompts, cached))
    found = figures(run)
    assert sorted(np.asarray(run.records.prompt).tolist()) == prompts
    assert (found.calls[0], found.cached[0], found.tools[0]) == (1000, sum(cached), pytest.approx(999 * 5.0))
    assert found.model[0] == pytest.approx(model, rel=CLOSE)
    assert found.duration[0] == pytest.approx(model + 999 * 5.0, rel=CLOSE)


def test_a_gap_of_a_user_is_told_from_one_of_a_tool() -> None:
    """A user reads for 5 s while a call in the background runs for the first 2 s of it: 3 s of reading alone."""
    calls = [(10, 1, -1, 0.0), (10, 1, 0, 0.0), (10, 1, 0, 5.0)]  # 2 s each; the second is waited for by nobody
    found = figures(simulate(plain(), given(calls, by_user=[False, False, True])))
    assert found.duration[0] == pytest.approx(9.0, rel=CLOSE)
    assert (found.model[0], found.thinking[0]) == pytest.approx((6.0, 3.0), rel=CLOSE)
    assert found.tools[0] == pytest.approx(0.0, abs=1e-9)


AGENT = Agent(
    turns=uniform(6, 0.5),
    system=130,
    first=uniform(80, 0.3),
    output=uniform(12, 0.2),
    tool=NextCall(prompt=uniform(60, 0.2), time=ThinkTime(kind="exponential", mean=20.0)),
    user=NextCall(prompt=uniform(20, 0.2), time=ThinkTime(kind="lognormal", mean=40.0, spread=0.5)),
    user_share=0.3,
)
BELOW = Agent(
    turns=uniform(3, 0.34),
    system=70,
    first=fixed(15),
    output=uniform(9, 0.3),
    tool=NextCall(prompt=fixed(33), time=ThinkTime(kind="exponential", mean=6.0)),
)
KIND = SessionKind(
    name="coder", share=0.6, agent=AGENT, subagents=Subagents(probability=0.4, number=uniform(3, 0.34), agent=BELOW)
)
PLAIN = SessionKind(name="chat", share=0.4, agent=replace(AGENT, system=40))


IMPATIENT = ThinkTime(kind="exponential", mean=120.0)


def load(rate: float = 0.02, count: int = 60, **more: Any) -> SessionTraffic:
    kinds = more.pop("kinds", (KIND, PLAIN))
    return SessionTraffic(kinds=kinds, arrivals=more.pop("arrivals", OpenLoop(rate=rate)), sessions_count=count, **more)


def test_a_session_alone_takes_its_calls_and_gaps_and_a_join_the_longest_branch() -> None:
    """On as many replicas as there are calls each runs alone: the longest way through calls and gaps is the session."""
    requests = replace(load(1e-5, 20).requests(), hashes=None)
    assert requests.sessions is not None
    assert requests.follows is not None
    assert requests.think is not None
    assert len(requests.sessions.joins) > 10
    run = simulate(plain(parallel=Parallelism(replicas=len(requests))), requests)
    before: list[list[int]] = [[b] if b >= 0 else [] for b in requests.follows.tolist()]
    for call, other in requests.sessions.joins.tolist():
        before[call].append(other)
    end: list[float] = []
    for call, (prompt, output) in enumerate(zip(requests.prompt.tolist(), requests.output.tolist())):
        ready = max((end[b] for b in before[call]), default=0.0)
        end.append(ready + requests.think[call] + seconds(prompt, *([1] * (output - 1))))
    longest = np.zeros(20)
    np.maximum.at(longest, requests.sessions.of, np.array(end))
    assert figures(run).duration == pytest.approx(longest, rel=CLOSE)


def texts(requests: Requests, kinds: Sequence[SessionKind]) -> list[list[Any]]:
    """Every prompt with its answer as a list of tokens, from who follows whom: nothing of how blocks are named.

    A call that joins goes on with the text of the one that it follows; others that follow that begin sub-agents.
    """
    sessions, follows = requests.sessions, requests.follows
    assert sessions is not None
    assert follows is not None
    joined = set(sessions.joins[:, 0].tolist())
    starting = {int(follows[call]) for call in joined}
    written: list[list[Any]] = []
    for call, before in enumerate(follows.tolist()):
        kind = int(sessions.kind[sessions.of[call]])
        below = before in starting and call not in joined
        if before >= 0 and not below:
            text = list(written[before])
        else:
            extra = kinds[kind].subagents
            agent = extra.agent if below and extra is not None else kinds[kind].agent
            text = [("system", kind, below, i) for i in range(agent.system)]
        text += [("new", call, i) for i in range(int(requests.prompt[call]) - len(text))]
        assert len(text) == requests.prompt[call]
        written.append(text + [("answer", call, i) for i in range(int(requests.output[call]))])
    return written


def test_what_is_found_in_the_cache_is_what_a_replay_of_the_texts_finds() -> None:
    """Nothing is forgotten, so a call finds every whole block of 16 tokens that an earlier one began with alike."""
    below = replace(BELOW, output=uniform(500, 0.01))
    kind = replace(
        KIND, agent=replace(AGENT, output=uniform(500, 0.01)), subagents=replace(KIND.subagents, agent=below)
    )
    traffic = load(0.001, 40, kinds=(kind, PLAIN), seed=1)
    requests = traffic.requests(block=16)
    written = texts(requests, traffic.kinds)
    run = simulate(deployment(), requests)
    records, sessions = run.records, run.records.sessions
    assert sessions is not None
    assert requests.sessions is not None
    key = {what: call for call, what in enumerate(zip(requests.prompt, requests.output, requests.sessions.of))}
    assert len(key) == len(requests)  # so that calls are known again in another order
    seen: set[tuple[Any, ...]] = set()
    total = 0
    for place in range(len(requests)):
        text = written[key[records.prompt[place], records.output[place], sessions.of[place]]]
        prompt = records.prompt[place]
        found = 0
        while (found + 1) * 16 < prompt and tuple(text[: (found + 1) * 16]) in seen:
            found += 1
        assert records.cached.get(place, 0) == found * 16
        total += found * 16
        seen.update(tuple(text[:end]) for end in range(16, len(text), 16))
    assert figures(run).cached_share == pytest.approx(total / sum(records.prompt), rel=1e-12)


def test_every_call_is_sent_once_and_littles_law_holds_for_sessions() -> None:
    """Mean sessions under way, counted from events alone, are the rate times the mean duration."""
    run = simulate(plain(), load(0.02, 80).requests(block=1))
    found = figures(run)
    assert list(run.records.status) == [FINISHED] * len(run.records.prompt)
    assert found.counts == {"begun": 80, "finished": 80, "cancelled": 0, "refused": 0}
    assert int(np.sum(found.calls)) == len(run.records.prompt)
    changes = sorted([(t, 1) for t in found.start] + [(t, -1) for t in found.start + found.duration])
    area, under_way, last = 0.0, 0, changes[0][0]
    for time, change in changes:
        area, under_way, last = area + under_way * (time - last), under_way + change, time
    span = run.end - run.start
    assert under_way == 0
    assert area / span == pytest.approx(80 / span * float(np.mean(found.duration)), rel=1e-9)
    assert found.in_system == pytest.approx(area / span, rel=1e-9)
    assert found.rate == pytest.approx(80 / span, rel=1e-9)


def test_a_user_who_gives_up_frees_the_cache() -> None:
    """A cache of 120 tokens. Two sessions begin with prompts of 60 and 2: 7.2 s, then steps of 1.2 s. The user of the
    first gives up after 10 s, in the step that ends at 10.8 s. Only then is there room for the 60 tokens of a third,
    which came at 1 s: beside a decode they take 7.1 s, so it has its answer at 17.9 s.
    """
    calls = [(60, 40, -1, 0.0), (70, 1, 0, 0.0), (2, 40, -1, 0.0), (60, 1, -1, 0.0)]
    arrival = np.array([0.0, 0.0, 0.0, 1.0])
    run = simulate(plain(capacity=120), given(calls, patience=[10.0, NEVER, NEVER], arrival=arrival))
    records = run.records
    assert list(records.status) == [CANCELLED, FINISHED, FINISHED, 0]
    assert records.finish[0] == pytest.approx(10.0, rel=1e-12)
    assert records.admitted[2] == pytest.approx(10.8, rel=CLOSE)
    assert records.finish[2] == pytest.approx(17.9, rel=CLOSE)
    assert np.isnan(records.arrival[3])  # what would have followed is never sent
    found = figures(run)
    assert found.counts == {"begun": 3, "finished": 2, "cancelled": 1, "refused": 0}
    assert found.duration[0] == pytest.approx(10.0, rel=1e-12)
    counts = run.counts
    assert (counts["arrived"], counts["finished"], counts["cancelled"], counts["waiting"]) == (3, 2, 1, 0)


@for_each("wait", ["queue", "prompt", "seen too late"])
def test_a_call_is_aborted_wherever_it_is(wait: str) -> None:
    """In the queue behind another (given up at 3 s), in the middle of its prompt (pieces of 40 tokens, 5 s each; given
    up at 6 s), and when its last step is under way, whose answer nobody reads (given up at 4.5 s of 5 s). What comes
    after it is served as if it were not there.
    """
    other = (20, 1, -1, 0.0)
    if wait == "queue":
        calls, starts, patience = [(50, 60, -1, 0.0), (50, 1, -1, 0.0), other], [0.0, 1.0, 2.0], [NEVER, 2.0, NEVER]
        served = plain(slots=1)
        expected = seconds(50, *([1] * 59)) + seconds(20)
    elif wait == "prompt":
        calls, starts, patience = [(120, 5, -1, 0.0), other], [0.0, 7.0], [6.0, NEVER]
        served, expected = plain(budget=40), 10.0 + seconds(20)
    else:
        calls, starts, patience = [(40, 1, -1, 0.0), other], [0.0, 7.0], [4.5, NEVER]
        served, expected = plain(), 7.0 + seconds(20)
    run = simulate(served, given(calls, patience=patience, arrival=np.array(starts)))
    assert sum(status == CANCELLED for status in run.records.status) == 1
    assert max(run.records.finish) == pytest.approx(expected, rel=CLOSE)
    cancelled = list(run.records.status).index(CANCELLED)
    assert run.records.finish[cancelled] == pytest.approx(starts[patience.index(min(patience))] + min(patience))
    assert np.isnan(run.records.first[cancelled])


def test_sessions_that_are_given_up_send_nothing_later_and_leave_nothing_behind() -> None:
    kinds = tuple(replace(kind, patience=IMPATIENT, gives_up=0.7) for kind in (KIND, PLAIN))
    traffic = load(0.05, 80, kinds=kinds)
    run = simulate(plain(parallel=Parallelism(replicas=3), prefix_caching=True), traffic.requests(block=1))
    records, found = run.records, figures(run)
    assert records.sessions is not None
    assert found.counts["cancelled"] == len(records.left) > 20
    assert found.counts["begun"] == found.counts["cancelled"] + found.counts["finished"] == 80
    for call, session in enumerate(records.sessions.of.tolist()):
        left, sent = records.left.get(session, NEVER), records.arrival[call]
        if not np.isnan(sent):
            assert sent <= left
            assert records.status[call] == (FINISHED if records.finish[call] < left else CANCELLED)
            assert records.finish[call] <= left
    assert run.counts["arrived"] == run.counts["finished"] + run.counts["cancelled"]


def test_a_closed_loop_of_sessions_has_the_response_time_law() -> None:
    """X = N/(R + Z) (Lazowska et al., Quantitative System Performance, 1984, 3.5): ten places, R the time in the model
    and Z that of tools and users; what begins and ends is left out.
    """
    agent = replace(AGENT, turns=fixed(5), user=None, user_share=0.0)
    kind = SessionKind(name="one", share=1.0, agent=agent)
    loop = ClosedLoop(concurrency=10, burst=False)
    traffic = SessionTraffic(kinds=(kind,), arrivals=loop, sessions_count=600)
    run = simulate(plain(), traffic.requests(block=1), None, Options(trim=True))
    found = figures(run)
    law = 10 / float(np.mean((found.model + found.tools + found.thinking)[found.counted]))
    assert found.rate == pytest.approx(law, rel=0.02)
    assert found.in_system == pytest.approx(10.0, rel=0.01)


ARRIVALS = [OpenLoop(rate=0.05), ClosedLoop(concurrency=6)]


@for_each("arrivals", ARRIVALS)
def test_sticky_routing_keeps_a_session_and_its_subagents_together(arrivals: OpenLoop | ClosedLoop) -> None:
    """With texts that sessions do not share, a call finds all that its own session has written before."""
    agents = replace(AGENT, system=0), replace(BELOW, system=0)
    below = Subagents(probability=0.4, number=fixed(2), agent=agents[1])
    kind = SessionKind(name="one", share=1.0, agent=agents[0], subagents=below)
    requests = load(count=30, kinds=(kind,), arrivals=arrivals).requests(block=1)
    served = plain(parallel=Parallelism(replicas=4), prefix_caching=True)
    shares = {
        routing: figures(simulate(served, requests, None, Options(fleet=Fleet(routing=routing)))).cached_share  # type: ignore[arg-type]
        for routing in ("sticky", "round-robin", "prefix-aware")
    }
    one = figures(simulate(plain(prefix_caching=True), requests)).cached_share
    assert shares["sticky"] == one  # as on one replica
    assert shares["prefix-aware"] > 0.9 * one
    assert shares["round-robin"] < 0.8 * one


def test_what_is_drawn_is_what_was_asked_for() -> None:
    requests = load(count=4000, kinds=(KIND,)).requests()
    sessions, follows = requests.sessions, requests.follows
    assert sessions is not None
    assert follows is not None
    spawned = len(sessions.joins)
    calls = np.bincount(sessions.of)
    # 3 to 6 turns: 4.5; of the 3.5 that are not the last 0.4 start 1 to 3 (2) sub-agents of 1 to 3 (2) calls
    assert np.mean(calls) == pytest.approx(4.5 + 3.5 * 0.4 * 2 * 2, rel=0.02)
    assert spawned / 4000 == pytest.approx(3.5 * 0.4 * 2, rel=0.03)
    later = np.flatnonzero(sessions.by_user)
    # of the 3.5 later turns those that no sub-agents were waited for, and of them three in ten
    assert len(later) / 4000 == pytest.approx(3.5 * 0.6 * 0.3, rel=0.04)
    assert np.mean(requests.think[later]) == pytest.approx(40.0, rel=0.05)  # type: ignore[index]
    first = follows < 0
    assert np.mean(requests.prompt[first]) == pytest.approx(130 + (24 + 80) / 2, rel=0.01)


def test_a_prompt_grows_by_answers_and_new_text() -> None:
    """1 + 7 tokens, then the answer of 3 and 5 new ones, then the answers of 3 of the call and of 4 of its two
    sub-agents each."""
    agent = Agent(
        turns=fixed(3), system=1, first=fixed(7), output=fixed(3), tool=NextCall(prompt=fixed(5), time=ThinkTime())
    )
    below = Agent(turns=fixed(1), system=2, first=fixed(6), output=fixed(4))
    every = Subagents(probability=1.0, number=fixed(2), agent=below)
    kind = SessionKind(name="one", share=1.0, agent=agent)
    assert load(count=1, kinds=(kind,)).requests().prompt.tolist() == [8, 16, 24]
    spawning = load(count=1, kinds=(replace(kind, subagents=every),)).requests()
    assert spawning.prompt.tolist() == [8, 8, 8, 19, 8, 8, 30]
    assert spawning.follows.tolist() == [-1, 0, 0, 0, 3, 3, 3]  # type: ignore[union-attr]
    assert spawning.sessions.joins.tolist() == [[3, 1], [3, 2], [6, 4], [6, 5]]  # type: ignore[union-attr]


def test_the_same_seed_draws_the_same_sessions() -> None:
    first, again, other = (load(count=30, seed=seed).requests() for seed in (0, 0, 1))
    assert first.prompt.tolist() == again.prompt.tolist() != other.prompt.tolist()
    assert [list(names) for names in first.hashes or ()] == [list(names) for names in again.hashes or ()]


def test_a_refused_call_ends_its_session() -> None:
    run = simulate(
        plain(capacity=50), given([(60, 1, -1, 0.0), (10, 1, 0, 0.0), (10, 1, -1, 0.0)], patience=[NEVER] * 2)
    )
    assert figures(run).counts == {"begun": 2, "finished": 1, "cancelled": 0, "refused": 1}
    assert run.verdict == "rejecting"
    assert int(np.sum(np.isnan(np.asarray(run.records.arrival)))) == 1


@for_each("given_up", [True, False], ids=["given up", "refused"])
def test_rates_count_to_the_last_answer_where_not_all_calls_are_sent(given_up: bool) -> None:
    """Two sessions begin at 0 and fill the system, a quarter of eight calls. Of the second no other call is sent. The
    first has 3.0 s (refused: 2.0 s), a gap of 1 s, 2.0 s, another gap and 2.0 s: rates begin with its second call, and
    two answers come in the 5.0 s until its last one.
    """
    calls = [(10, 1, -1, 0.0), (10, 1, 0, 1.0), (10, 1, 1, 1.0), (10 if given_up else 600, 1, -1, 0.0)]
    calls += [(10, 1, before, 100.0) for before in range(3, 7)]
    patience = [NEVER, 3.5 if given_up else NEVER]
    run = simulate(plain(capacity=500), given(calls, patience=patience), options=Options(trim=True))
    begin = 4.0 if given_up else 3.0
    assert run.window == pytest.approx((begin, begin + 5.0), rel=CLOSE)
    assert run.request_rate == pytest.approx(2 / 5.0, rel=CLOSE)
    assert run.to_dict()["sessions"]["begun"] == 2


def test_the_limit_on_sessions_counts_those_given_up_after_it_as_late() -> None:
    calls = [(10, 1, -1, 0.0)] * 3 + [(10, 90, -1, 0.0)]  # 2 s each alone, and one that is given up after 4 s
    requests = given(calls, patience=[NEVER] * 3 + [4.0], arrival=np.array([0.0, 10.0, 20.0, 30.0]))
    run = simulate(plain(), requests, None, Options(slo=Slo(session=3.0)))
    record = run.to_dict()["sessions"]
    assert record["within_limit"] == 0.75
    assert figures(run).at_percentile(50) == pytest.approx(2.0, rel=CLOSE)
    assert figures(run).at_percentile(95, 3.0) == NEVER  # it was late before it was given up
    assert figures(run).at_percentile(95, 5.0) == pytest.approx(2.0, rel=CLOSE)  # nobody knows


@for_each(
    ("served", "fleet", "said"),
    [
        (plain(policy="static"), Fleet(), "static batches"),
    ],
)
def test_giving_up_is_refused_where_it_is_not_modelled(served: Deployment, fleet: Fleet, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        simulate(served, given([(10, 5, -1, 0.0)], patience=[3.0]), None, Options(fleet=fleet))


def test_warmups_of_requests_are_refused() -> None:
    with pytest.raises(UsageError, match="sessions are not cut"):
        simulate(plain(), given([(10, 5, -1, 0.0)]), None, Options(warmup=1))


def test_how_sure_a_percentile_of_sessions_is_by_hand() -> None:
    """Of 100 in order: 90 - 1.96 x 3 = 84.1 and 90 + 1.96 x 3 = 95.9, so the 84th and the 97th; of ten nobody knows."""
    run = figures(simulate(plain(), given(TINY, [(3, 1), (3, 2)])))
    hundred, ten = (
        replace(run, duration=np.arange(1.0, n + 1), finished=np.ones(n, bool), counted=np.ones(n, bool))
        for n in (100, 10)
    )
    assert hundred.between(90.0) == (84.0, 97.0)
    assert ten.between(90.0) is None
