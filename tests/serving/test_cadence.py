"""Prompts kept out of most steps: schedules written out, a replay step by step, and what engines are refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.cadence import Cadence, DelayRule
from inferplan.devices.engine import EngineFlags, FilledSteps
from inferplan.errors import UsageError
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.rounds import holding
from inferplan.serving.simulator import simulate
from inferplan.serving.steady import UserLoad, steady_state
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from inferplan.validation.rows import row_of
from inferplan.validation.run import price_rows
from inferplan.work.parallel import Parallelism
from tests.benchmarks.compare_steady_state import Point, compare
from tests.cases import for_each
from tests.serving.test_pipeline import Even, rules, serve

VLLM, RANKS = Cadence(gap=3, yields=True), Cadence(grid=4, yields=True)
A = (0.0, 10, 20)
"""Its prompt takes ten seconds, then it decodes: a step takes a second for each token in it."""


def firsts(
    requests: list[tuple[float, int, int]], cadence: Cadence, ranks: list[int] | None = None, **more: int
) -> list[float]:
    """When each first token is there, under vLLM."""
    records, _ = serve(requests, Even(1), rules(cadence=cadence, **more), ranks=ranks, plain=ranks is None)
    return list(records.first)


def firsts_of_sglang(
    requests: list[tuple[float, int, int]], gap: int, ranks: list[int] | None = None, **more: int
) -> list[float]:
    asked = rules("sglang", cadence=Cadence(gap=gap), **more)
    return list(serve(requests, Even(1), asked, ranks=ranks, plain=ranks is None)[0].first)


def test_three_steps_of_four_only_decode() -> None:
    """A is there at 10 and decodes to 11, 12, 13; then B's ten tokens beside A's one. Without: from 12 on."""
    late = (11.5, 10, 2)
    assert firsts([A, late], Cadence()) == [10.0, 12.0 + 11.0]
    assert firsts([A, late], VLLM) == [10.0, 13.0 + 11.0]


def test_a_piece_of_a_prompt_waits_as_a_prompt_does() -> None:
    """Six tokens per step: at 13 A's and five of B's, to 19; three steps of A, to 22; the other five, to 28."""
    assert firsts([A, (11.5, 10, 2)], VLLM, budget=6) == [10.0, 28.0]


def test_what_could_not_start_ends_the_waiting() -> None:
    """Twelve tokens a step. At 13: A, B's ten, one of C's, and D waits; so at 25 A, B, nine of C's and one of D's. None
    waits any more: three steps of A, B and C from 37 to 46, then D's nine beside them."""
    late = (11.5, 10, 30)
    assert firsts([(0.0, 10, 40), late, late, late], VLLM, budget=12) == [10.0, 25.0, 37.0, 46.0 + 12.0]


def test_where_nobody_decodes_nobody_waits() -> None:
    assert firsts([(0.0, 10, 2), (11.5, 10, 2)], VLLM) == [10.0, 21.5]
    assert firsts_of_sglang([(0.0, 10, 2), (10.5, 10, 2)], 9) == [10.0, 21.0]


def test_ranks_that_step_together_count_together() -> None:
    """Steps 1 to 3 from 10 to 13 only decode; C enters step 4 on the second rank, beside B: 11 s. Then it decodes two:
    steps 5 to 7 from 24 to 30; D enters step 8 on the first. After a pause the count starts again."""
    sent = [A, A, (10.5, 10, 30), (24.5, 10, 20), (1000.0, 10, 1)]
    assert firsts(sent, RANKS, [0, 1, 1, 0, 0]) == [10.0, 10.0, 24.0, 41.0, 1010.0]


def test_a_rank_that_decodes_nothing_takes_a_prompt_in_any_step() -> None:
    """At 11, in the second step after A's prompt on the other rank."""
    assert firsts([A, (10.5, 10, 2)], RANKS, [0, 1]) == [10.0, 21.0]


def test_a_backlog_of_one_rank_ends_the_waiting_there() -> None:
    """As without ranks, on the first of two that both decode; the other's prompt of 25.5 waits for step 8, at 43."""
    late = (10.5, 10, 30)
    sent = [(0.0, 10, 40), late, late, late, (0.0, 10, 90), (25.5, 10, 2)]
    assert firsts(sent, RANKS, [0, 0, 0, 0, 1, 1], budget=12) == [10.0, 25.0, 37.0, 55.0, 10.0, 55.0]


def test_sglang_decodes_so_many_times_behind_a_batch_of_prompts() -> None:
    """Prompts are alone in their step: at 11 without; behind three steps of A with; in pieces of five: 13 to 18, three
    steps of A, 21 to 26."""
    late = (10.5, 10, 2)
    assert firsts_of_sglang([A, late], 0) == [10.0, 21.0]
    assert firsts_of_sglang([A, late], 3) == [10.0, 23.0]
    assert firsts_of_sglang([(0.0, 5, 20), (5.5, 10, 2)], 3, budget=5) == [5.0, 8.0 + 5.0 + 3.0 + 5.0]


def test_a_prompt_of_one_rank_makes_all_decode_under_sglang() -> None:
    """C, on the first rank, at 12 behind two steps, beside B's token on the second: to 22. The first rank decodes two,
    to 24 and 26, so D starts at 26 on the second."""
    sent = [A, A, (10.5, 10, 20), (21.0, 10, 2)]
    assert firsts_of_sglang(sent, 0, [0, 1, 0, 1])[2] == 21.0
    assert firsts_of_sglang(sent, 2, [0, 1, 0, 1]) == [10.0, 10.0, 22.0, 36.0]


# --- a replay of one engine, step by step ---------------------------------------------------------------------------


def replayed(sent: Sequence[tuple[float, int, int]], gap: int, budget: int, mixed: bool) -> list[float]:
    """First tokens under one cadence: what is there when a step begins takes part in it, in the order of arrival."""
    now, since, backlog = 0.0, 1 << 30, False
    left = [prompt for _, prompt, _ in sent]
    owed = [output for _, _, output in sent]
    first = [0.0] * len(sent)
    started: set[int] = set()
    while any(owed):
        here = [i for i, (arrival, _, _) in enumerate(sent) if arrival <= now and owed[i]]
        decoding = [i for i in here if not left[i]]
        prompts = [i for i in here if left[i]]
        if not here:
            now, since, backlog = min(one[0] for one, out in zip(sent, owed) if out), 1 << 30, False
            continue
        holds = bool(decoding) and since < gap and not backlog
        room = budget - len(decoding) if mixed else budget
        done: list[int] = []
        tokens = 0
        for i in [] if holds else prompts:
            take = min(left[i], room)
            if take <= 0:
                break
            started.add(i)
            left[i] -= take
            room -= take
            tokens += take
            done += [i] if not left[i] else []
        if not holds:
            backlog = mixed and any(i not in started for i in prompts)
        writing = decoding if mixed or not tokens else []
        now += tokens + len(writing)
        since = 0 if tokens else since + 1
        for i in done:
            first[i] = now
        for i in [*writing, *done]:
            owed[i] -= 1
    return first


REQUESTS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=9)


@given(sent=REQUESTS, gap=st.integers(0, 5), budget=st.integers(10, 16), mixed=st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_replay_agrees(sent: list[tuple[int, int, int]], gap: int, budget: int, mixed: bool) -> None:
    """vLLM and SGLang, requests in their order, a half second off the ends of steps."""
    asked = sorted([(arrival + 0.5, prompt, output) for arrival, prompt, output in sent], key=lambda one: one[0])
    found = (
        firsts(asked, Cadence(gap, 1, True), budget=budget) if mixed else firsts_of_sglang(asked, gap, budget=budget)
    )
    assert found == pytest.approx(replayed(asked, gap, budget, mixed), rel=1e-9)


@given(sent=REQUESTS, gap=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_one_rank_is_the_plain_case(sent: list[tuple[int, int, int]], gap: int) -> None:
    asked = sorted([(arrival + 0.5, prompt, output) for arrival, prompt, output in sent], key=lambda one: one[0])
    alone, ranked = (firsts_of_sglang(asked, gap, ranks) for ranks in (None, [0] * len(asked)))
    assert alone == pytest.approx(ranked, rel=1e-9)


# --- ranks that wait for each other ---------------------------------------------------------------------------------

WAIT = DelayRule(3)
FILL = DelayRule(9, FilledSteps(target=0.9, stall=2, partial=4, full=0.9))


def waited(sent: list[tuple[float, int, int]], ranks: list[int], rule: DelayRule, **more: int) -> list[float]:
    return list(serve(sent, Even(1), rules("sglang", cadence=Cadence(delay=rule), **more), ranks=ranks)[0].first)


def test_a_prompt_waits_for_one_on_the_other_rank() -> None:
    """Both decode from 10 on. C comes at 10.5 and is held at 11 and 12. D comes on the other rank: at 13 both start."""
    sent = [A, A, (10.5, 10, 5), (12.5, 10, 5)]
    assert waited(sent, [0, 1, 0, 1], DelayRule(0)) == [10.0, 10.0, 21.0, 31.0]
    assert waited(sent, [0, 1, 0, 1], WAIT) == [10.0, 10.0, 23.0, 23.0]


def test_nobody_waits_for_longer_than_so_many_steps_nor_where_nobody_decodes() -> None:
    """Alone C is held at 11, 12 and 13; after all is quiet the next prompt starts at once."""
    assert waited([A, A, (10.5, 10, 1), (1000.0, 10, 1)], [0, 1, 0, 0], WAIT) == [10.0, 10.0, 24.0, 1010.0]


def test_prompts_wait_for_free_slots_as_many_as_the_largest_batch_of_late_took() -> None:
    """Four slots a rank. Two prompts start together on each rank, and decode from 20 on, two seconds a step. One more
    on each rank at 21: two slots are free, as many as that batch took: nobody waits. Then one is: the next two are held
    for three steps of three seconds, from 43 to 52, beside three requests that decode 60 tokens."""
    two = [(0.0, 10, 60)] * 2
    sent = [*two, *two, (21.0, 11, 60), (21.0, 11, 60), (33.5, 10, 60), (33.5, 10, 60)]
    found = waited(sent, [0, 0, 1, 1, 0, 1, 0, 1], WAIT, slots=4)
    assert found == [20.0] * 4 + [22.0 + 11.0] * 2 + [36.0 + 3 * 3.0 + 10.0] * 2


def test_atom_waits_until_a_step_is_full() -> None:
    """Budget 20. Each rank has ten tokens at 11: half of both budgets. C and D come at 11.5, so at 12 both are full."""
    late = [(10.5, 10, 5), (10.5, 10, 5), (11.5, 10, 5), (11.5, 10, 5)]
    found = waited([A, A, *late], [0, 1, 0, 1, 0, 1], FILL, budget=20)
    assert found == [10.0, 10.0] + [32.0] * 4


def test_atom_gives_up_where_no_more_come() -> None:
    """At 11 it begins to count; at 12 and 13 nothing has come: at 13 they start."""
    assert waited([A, A, (10.5, 10, 5), (10.5, 10, 5)], [0, 1, 0, 1], FILL, budget=20)[2:] == [23.0, 23.0]


class Theirs:
    """Both rules as their sources have them, step by step, told of each rank what waits and what decodes."""

    def __init__(self, rule: DelayRule, slots: int, budget: int) -> None:
        self.rule, self.slots, self.budget = rule, slots, budget
        self.count = self.stall = 0
        self.before = -1
        self.sizes: dict[int, list[int]] = {}

    def allows(self, ready: list[bool], decoding: list[int], pending: list[int], partial: bool) -> bool:
        go = self._sglang(ready, decoding) if self.rule.fills is None else self._atom(ready, decoding, pending, partial)
        self.count = 0 if go else self.count + 1
        if go:
            self.stall, self.before = 0, -1
        return go

    def _sglang(self, ready: list[bool], decoding: list[int]) -> bool:
        largest = max([max(sizes[-16:]) for sizes in self.sizes.values()], default=0)
        short = self.slots - max(decoding) < largest
        if not any(ready) or not any(decoding) or (all(ready) and not short):
            return True
        return self.count >= self.rule.most

    def _atom(self, ready: list[bool], decoding: list[int], pending: list[int], partial: bool) -> bool:
        fills = self.rule.fills
        assert fills is not None
        if not any(ready) or not sum(decoding) or self.count >= self.rule.most:
            return True
        if partial and self.count >= fills.partial:
            return True
        if not all(ready):
            return False
        if sum(pending) / (len(ready) * self.budget) >= fills.target:
            return True
        self.stall = self.stall + 1 if sum(pending) <= self.before else 0
        self.before = sum(pending)
        return self.stall >= fills.stall


def in_step(
    sent: Sequence[tuple[float, int, int]], on: Sequence[int], rule: DelayRule, gap: int, slots: int, budget: int
) -> list[float]:
    """First tokens of ranks in lockstep: a step takes a second for each token of the rank that has most in it."""
    theirs, now, behind, ranks = Theirs(rule, slots, budget), 0.0, 1 << 30, range(max(on) + 1)
    left, owed = [prompt for _, prompt, _ in sent], [output for _, _, output in sent]
    whole, first = list(left), [0.0] * len(sent)
    while any(owed):
        here = [i for i, (arrival, _, _) in enumerate(sent) if arrival <= now and owed[i]]
        if not here:
            now, behind = min(one[0] for one, out in zip(sent, owed) if out), 1 << 30
            theirs.count, theirs.stall, theirs.before = 0, 0, -1
            continue
        decoding = [[i for i in here if on[i] == rank and not left[i]] for rank in ranks]
        queue = [[i for i in here if on[i] == rank and left[i]] for rank in ranks]
        cut = [[i for i in one if left[i] < whole[i]] for one in queue]
        ready = [bool(part) or (bool(one) and len(busy) < slots) for part, one, busy in zip(cut, queue, decoding)]
        protected = behind < gap and any(decoding)
        pending = [min(sum(left[i] for i in one), budget) for one in queue]
        go = not protected and theirs.allows(ready, [len(one) for one in decoding], pending, any(map(bool, cut)))
        longest, done, some = 0, list[int](), False
        for rank in ranks:
            chosen = [] if protected else queue[rank] if go else cut[rank] if rule.fills is None else []
            room, free, tokens, count = budget, slots - len(decoding[rank]), 0, 0
            for i in chosen:
                if room <= 0 or free <= 0:
                    break
                take = min(left[i], room)
                left[i] -= take
                room, free, tokens, count = room - take, free - 1, tokens + take, count + 1
                done += [] if left[i] else [i]
            if not protected and ready[rank]:
                waits, places = len(queue[rank]) - len(cut[rank]), slots - len(decoding[rank])
                theirs.sizes.setdefault(rank, []).append(count or min(max(waits, 1), max(places, 1)))
            some = some or tokens > 0
            done += [] if tokens else decoding[rank]
            longest = max(longest, tokens or len(decoding[rank]))
        behind = 0 if some else behind + 1
        now += longest
        for i in done:
            first[i] = first[i] or now
            owed[i] -= 1
    return first


ON_RANKS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 12), st.integers(1, 9), st.integers(0, 2)), min_size=2, max_size=14
)


@given(
    sent=ON_RANKS,
    most=st.integers(0, 6),
    fills=st.booleans(),
    gap=st.integers(0, 3),
    slots=st.integers(2, 6),
    budget=st.integers(10, 30),
)
@settings(max_examples=150, deadline=None)
def test_ranks_wait_as_their_sources_say(
    sent: list[tuple[int, int, int, int]], most: int, fills: bool, gap: int, slots: int, budget: int
) -> None:
    asked = sorted((arrival + 0.5, prompt, output, rank) for arrival, prompt, output, rank in sent)
    requests, on = [one[:3] for one in asked], [one[3] for one in asked]
    on[0] = 2  # as many ranks in each
    rule = DelayRule(most, FILL.fills if fills else None)
    cadence = Cadence(gap=gap, delay=rule)
    served = serve(requests, Even(1), rules("sglang", cadence=cadence, slots=slots, budget=budget), ranks=on)[0]
    assert list(served.first) == pytest.approx(in_step(requests, on, rule, gap, slots, budget), rel=1e-9)


# --- the closed form ------------------------------------------------------------------------------------------------


def counted(coming: float, ranks: int, cadence: Cadence, mixed: bool, rounds: int = 200_000) -> tuple[float, float]:
    """Shares of rounds in which any rank, and the first one, starts prompts, by counting: prompts come by chance, every
    rank decodes all the time, and a round has room for all that wait."""
    came = np.random.default_rng(7).poisson(coming, (rounds, ranks))
    waiting, held, behind = [0] * ranks, [0, 0], 1 << 30
    for number, new in enumerate(came.tolist()):
        opens = number % cadence.grid == 0 and behind >= cadence.gap
        starts = [opens and some > 0 for some in waiting]
        waiting = [(0 if start else some) + more for start, some, more in zip(starts, waiting, new)]
        if any(starts):
            held = [held[0] + 1, held[1] + starts[0]]
            behind = 0 if mixed else 1  # a round of SGLang decodes behind its prompts
        else:
            behind += 1
    return held[0] / rounds, held[1] / rounds


@for_each(
    ("coming", "ranks", "cadence", "mixed"),
    [
        (0.05, 1, Cadence(gap=3, yields=True), True),
        (0.4, 1, Cadence(gap=7, yields=True), True),
        (0.1, 1, Cadence(gap=4), False),
        (0.02, 8, Cadence(gap=4), False),
        (0.02, 8, Cadence(grid=4, yields=True), True),
        (0.3, 2, Cadence(grid=2, yields=True), True),
    ],
)
def test_rounds_with_prompts_are_as_many_as_are_counted(
    coming: float, ranks: int, cadence: Cadence, mixed: bool
) -> None:
    any_rank, one = counted(coming, ranks, cadence, mixed)
    held = holding(coming, 1.0, 1e9, (1.0, ranks), cadence, mixed)
    assert held.share == pytest.approx(any_rank, rel=0.03)
    assert held.share * held.fill == pytest.approx(one, rel=0.04)


def test_where_prompts_fill_their_rounds_vllm_opens_all_and_sglang_none() -> None:
    """Half of a step's room comes with every round, behind a gap of three: under vLLM every second round holds prompts,
    and under SGLang one of three, which has room for two thirds of what comes."""
    ours = holding(0.5, 100.0, 100.0, (1.0, 1), Cadence(gap=3, yields=True), True)
    assert (float(ours.share), float(ours.filled)) == pytest.approx((0.5, 0.5))
    theirs = holding(0.5, 100.0, 100.0, (1.0, 1), Cadence(gap=3), False)
    assert (float(theirs.share), float(theirs.filled)) == pytest.approx((1 / 3, 1.5))


@for_each(
    ("engine", "name", "interval", "lengths", "users"),
    [
        ("vllm", "prefill_schedule_interval", 8, (2048, 256), 32),
        ("sglang", "prefill_decode_interval", 8, (512, 512), 128),
        ("sglang", "prefill_decode_interval", 3, (8192, 1024), 16),
    ],
)
def test_the_closed_form_follows_the_event_loop(
    engine: str, name: str, interval: int, lengths: tuple[int, int], users: int
) -> None:
    point = Point(("llama-3.1-8b", "h100-sxm", 1, engine), lengths, users, False)
    tpot, rate = compare(point, flags=EngineFlags(**{name: interval}))
    assert abs(tpot) < 0.05 and abs(rate) < 0.05


@for_each(("engine", "name"), [("vllm", "prefill_schedule_interval"), ("sglang", "prefill_decode_interval")])
def test_first_tokens_in_closed_form_wait_as_in_the_event_loop(engine: str, name: str) -> None:
    """Of 16 users with 768 tokens in and 96 out a first token takes a half more behind seven steps of decodes."""
    ttft = {}
    for interval in (1, 8):
        flags = EngineFlags(**{name: interval})
        made = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", engine=engine, flags=flags))
        sent = Traffic(
            arrivals=ClosedLoop(concurrency=16, burst=True, ramp=0.0),
            prompt=Lengths(kind="uniform", mean=1024, spread=0.5),
            output=Lengths(kind="uniform", mean=128, spread=0.5),
            requests_count=600,
        )
        seen = simulate(made, sent, Flags(), Options()).ttft[150:500]
        closed = steady_state(made, UserLoad(concurrency=16.0, prompt=768.0, output=96.0))
        assert closed.ttft == pytest.approx(float(np.mean(seen)), rel=0.06)
        ttft[interval] = float(closed.ttft)
    assert 1.4 < ttft[8] / ttft[1] < 1.7


# --- engines --------------------------------------------------------------------------------------------------------


def made(engine: str, model: str = "llama-3.1-8b", dp: int = 1, **flags: int) -> Cadence:
    own = "prefill_schedule_interval" if engine.startswith("vllm") else "prefill_decode_interval"
    asked = EngineFlags(**(flags or {own: 4}))
    parallel = Parallelism(dp=dp, ep=dp)
    return assemble(Request(model=model, gpu="h100-sxm", engine=engine, parallel=parallel, flags=asked)).cadence


def test_each_engine_has_its_own_flag() -> None:
    assert made("vllm") == VLLM and made("vllm", "gpt-oss-20b", 2) == RANKS == made("vllm@0.24", "gpt-oss-20b", 2)
    assert made("sglang") == Cadence(gap=4) == made("sglang@0.5.19")
    assert not made("vllm", prefill_schedule_interval=1).any and not made("sglang", prefill_decode_interval=0).any
    assert not made("trtllm", max_sequences=64).any


@for_each(
    ("engine", "words"),
    [
        ("vllm@0.20", "vllm 0.20 has no --prefill-schedule-interval"),
        ("vllm@0.24", "does not obey --prefill-schedule-interval here"),
        ("vllm@0", "has no --prefill-schedule-interval"),
        ("sglang@0.5.18", "has no --prefill-decode-interval"),
        ("trtllm", "trtllm has no --prefill-decode-interval"),
    ],
)
def test_releases_without_it_are_refused(engine: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        made(engine)


def test_the_flag_of_another_engine_names_its_own() -> None:
    """At its neutral value, too: its command line does not take it (docs.sglang.io, server arguments)."""
    for interval in (1, 2):
        with pytest.raises(UsageError, match="sglang has no --prefill-schedule-interval; it has --prefill-decode-inte"):
            made("sglang", prefill_schedule_interval=interval)
    with pytest.raises(UsageError, match="vllm has no --prefill-decode-interval; it has --prefill-schedule-interval"):
        made("vllm", prefill_decode_interval=0)
    with pytest.raises(UsageError, match=r"vllm 0\.20 has no --prefill-schedule-interval"):
        made("vllm@0.20", prefill_schedule_interval=1)
    facts = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": "sglang", "weights": "bf16", "isl": "64", "osl": "8"}
    asked = row_of("here", {**facts, "concurrency": "8", "tp": "1", "prefill_schedule_interval": "1"}, {})
    assert "sglang has no --prefill-schedule-interval" in price_rows([asked])[0].refused


def test_a_static_batch_has_no_cadence() -> None:
    facts = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": "vllm", "weights": "bf16", "isl": "64", "osl": "8"}
    asked = row_of("here", {**facts, "batch": "8", "tp": "1", "tpot_ms": "9", "prefill_schedule_interval": "8"}, {})
    assert "a static batch is computed at once" in price_rows([asked])[0].refused
