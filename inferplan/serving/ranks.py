"""The attention ranks of one replica: they compose their parts of a batch, and make every step together.

Where ranks share experts (attention data parallelism), each has a scheduler, a queue and a cache of its own, and a step
ends with the slowest rank. A rank without requests takes part: it computes its experts for the tokens of the others.
One rank is the plain case.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from operator import add
from typing import NamedTuple

from inferplan.serving.clients import ANSWER
from inferplan.serving.flow_shop import Passage
from inferplan.serving.prompt_delay import PromptDelay, RankState
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.step_times import NO_PROMPTS, Chunk, StepPrice, StepTimes, slowest


class RankLoad(NamedTuple):
    """What one rank has in a batch."""

    decodes: int
    prompts: Chunk | None


class Batch(NamedTuple):
    """A batch in flight."""

    lane: int
    loads: list[RankLoad]
    """Of each rank."""
    back: float
    """When it leaves the last stage, in seconds."""


def _in_flight(rank: int, partial: int | None, flying: Sequence[Batch]) -> bool:
    """TensorRT-LLM schedules no request that is in flight: the next piece of a prompt waits for the one before."""
    if partial is None:
        return False
    pieces = [batch.loads[rank].prompts for batch in flying]
    return any(prompts is not None and prompts.partial == partial for prompts in pieces)


def _state_of(scheduler: Scheduler) -> RankState:
    """What the other attention ranks hear of one before a step, where they wait for each other."""
    waiting, decodes, budget = scheduler.queue.waiting, scheduler.decodes, scheduler.rules.budget
    progress, admitted, partial = scheduler.progress, scheduler.admitted, scheduler.partial
    ready, pending = partial is not None, 0
    if partial is not None:
        pending = progress.compute(partial) - scheduler.computed
    elif waiting and decodes.size < scheduler.lane_slots:
        ready = admitted.may_start(waiting[0], scheduler.growth, scheduler.decode_steps() - scheduler.ratio_reset)
    for request in waiting:
        if pending >= budget:
            break
        pending += progress.compute(request)
    used = admitted.used / scheduler.rules.capacity
    return RankState(ready, len(waiting), min(pending, budget), partial is not None, decodes.size, used)


class RankPrices:
    """The schedulers of a replica's attention ranks, and what their batches take together: a step ends with the
    slowest. prices: of each lane of each rank, where something changes those of ``times``."""

    def __init__(
        self, times: StepTimes, schedulers: Sequence[Scheduler], prices: Sequence[Sequence[StepPrice]] = ()
    ) -> None:
        self.times, self.schedulers, self.rules = times, list(schedulers), schedulers[0].rules
        self.prices = [list(lanes) for lanes in prices] or [[times] * len(one.lanes) for one in schedulers]
        """Of each lane of each rank."""
        self.plain = all(price is times for lanes in self.prices for price in lanes)
        """Nothing changes the prices of the tables."""
        tables = self.plain and isinstance(times, StepTimes) and not (times.drafts or any(times.cut_from))
        self.alike = tables and len(schedulers) > 1
        """Ranks that only decode are priced together."""

    def first_end(self, batch: Batch) -> float:
        """A time before which no request of a batch's lane is done; infinity when it has none."""
        bound = inf
        for scheduler, load, prices in zip(self.schedulers, batch.loads, self.prices):
            lane = scheduler.lanes[batch.lane]
            if load.prompts is not None:
                bound = min(bound, batch.back)
            elif lane.requests:
                step = 0.999 * prices[batch.lane].decode(lane.size, lane.context / lane.size)
                bound = min(bound, batch.back + lane.steps_left() * step)
        return bound

    def decode_pass(self, batch: Batch) -> float:
        """Seconds of a decode step of a batch's lane through all stages, at its present contexts."""
        longest, number = 0.0, batch.lane
        for scheduler, prices in zip(self.schedulers, self.prices):
            lane = scheduler.lanes[number]
            if lane.size:
                longest = max(longest, prices[number].decode(lane.size, lane.context / lane.size))
        return longest

    def price_of(self, scheduler: Scheduler) -> StepPrice:
        """The price of the lane of a rank whose turn it is."""
        return self.prices[self.schedulers.index(scheduler)][scheduler.lanes.index(scheduler.decodes)]

    def passage(self, lane: int, loads: Sequence[RankLoad], later: float = 0.0) -> Passage:
        """A lane's batch on its way: its :meth:`seconds`, and for how long hosts are busy behind it."""
        seconds = self.seconds(lane, loads, later)
        if self.plain:
            return Passage(seconds)
        behind = [
            prices[lane].behind(decodes, NO_PROMPTS if prompts is None else prompts)
            for prices, (decodes, prompts) in zip(self.prices, loads)
        ]
        return Passage(seconds, max(behind))

    def seconds(self, lane: int, loads: Sequence[RankLoad], later: float = 0.0) -> list[float]:
        """Seconds of a lane's batch on the host and on each stage: those of the slowest rank.

        later: tokens by which every context has grown since. Experts see the rows of all ranks, of which the mean rank
        brings its share.
        """
        times, mean, ranks = self.times, None, []
        if len(loads) == 1 and (loads[0].decodes or loads[0].prompts is not None):
            return self._seconds_of(0, lane, loads[0], later)
        if len(loads) > 1:
            rows = sum([times.rows(decodes, prompts) for decodes, prompts in loads if prompts is not None])
            rows += times.width * sum([decodes for decodes, prompts in loads if prompts is None])
            mean = rows / len(loads)
        alone: list[tuple[int, float]] = []
        for rank, (decodes, prompts) in enumerate(loads):
            scheduler = self.schedulers[rank]
            if prompts is None and decodes and self.alike and not scheduler.admitted.loading:
                alone.append((decodes, scheduler.lanes[lane].context / decodes + later))
            elif decodes or prompts is not None:
                ranks.append(self._seconds_of(rank, lane, loads[rank], later, mean))
        if alone and mean is not None:
            ranks.append(slowest(times, alone, mean))
        return ranks[0] if len(ranks) == 1 else list(map(max, *ranks))

    def _seconds_of(self, rank: int, lane: int, load: RankLoad, later: float, mean: float | None = None) -> list[float]:
        """Those of one rank that has something in the batch; the mean one brings ``mean`` rows to the experts."""
        scheduler, (decodes, prompts) = self.schedulers[rank], load
        admitted = scheduler.admitted
        context = scheduler.lanes[lane].context / decodes + later if decodes else 0.0
        stations = self.prices[rank][lane].stations(decodes, context, NO_PROMPTS if prompts is None else prompts, mean)
        if admitted.loading:
            stations[1] = admitted.with_loads(stations[1])
        if admitted.adapters is not None and admitted.adapters.copies:
            stations[1:] = map(add, stations[1:], admitted.adapters.copied())
        return stations


class Ranks(RankPrices):
    """The schedulers of a replica's attention ranks, and what they meter together."""

    def __init__(
        self, times: StepTimes, schedulers: Sequence[Scheduler], prices: Sequence[Sequence[StepPrice]] = ()
    ) -> None:
        super().__init__(times, schedulers, prices)
        self.metered = 0.0
        """Up to when the meters have counted, in seconds."""
        self.sent = 0
        """Batches sent since then."""
        self.unbalanced = 0
        """Batches composed since every rank had a prompt, or none was waited for any longer."""
        self.steps = 0
        """Steps since all ranks were idle."""
        self.gap = 0
        """Steps that only decode before prompts may follow those of any rank."""
        rules, delay = self.rules, self.rules.cadence.delay
        self.delay = None if delay is None else PromptDelay(delay, len(self.schedulers), rules.slots, rules.budget)
        """How ranks wait for each other's prompts, where they do."""
        for scheduler in schedulers:
            for lane in scheduler.lanes:
                lane.interleaved = True

    def restart(self, now: float) -> None:
        """All is quiet: the clocks go on from ``now`` with empty meters."""
        self.metered = now
        for scheduler in self.schedulers:
            scheduler.queue.front_free = now
            scheduler.meter.clear()

    # --- what is there ----------------------------------------------------------------------------------------------

    @property
    def queued(self) -> bool:
        """Whether a request waits, or has a part of its prompt to be computed."""
        return any(scheduler.queue.waiting or scheduler.partial is not None for scheduler in self.schedulers)

    @property
    def busy(self) -> bool:
        """Whether there is anything to schedule that has been seen."""
        return self.queued or any(lane.size for scheduler in self.schedulers for lane in scheduler.lanes)

    @property
    def unseen(self) -> bool:
        """Whether tokens were made that no client has seen yet."""
        return any(scheduler.clients.unseen for scheduler in self.schedulers)

    def next_arrival(self) -> float:
        """When the next request can be seen; infinity when none is on its way."""
        return min((scheduler.queue.inbox[0][0] for scheduler in self.schedulers if scheduler.queue.inbox), default=inf)

    def wake(self, start: float) -> None:
        """All ranks were idle until ``start``, when a request can be seen."""
        self.metered = start
        self.steps = self.gap = 0
        if self.delay is not None:
            self.delay.reset()
        for scheduler in self.schedulers:
            scheduler.queue.steps_since_look = 0
            scheduler.queue.look(start, False)
            scheduler.ratio_reset = scheduler.decode_steps()
            scheduler.admitted.reset()
            for lane in scheduler.lanes:
                lane.context = 0.0

    def look(self, seen: float) -> bool:
        """No rank decodes: queue what could be seen at ``seen``; gives whether that is anything."""
        for scheduler in self.schedulers:
            scheduler.queue.look(seen, False)
        return self.busy

    def refuse_first(self, now: float) -> None:
        """Nothing runs and nothing can start: the first of the queue does not fit even alone."""
        for scheduler in self.schedulers:
            if scheduler.queue.waiting and not scheduler.admitted.running:
                scheduler.clients.refuse_first(now)

    # --- a batch ----------------------------------------------------------------------------------------------------

    def compose(self, lane: int, now: float, seen: float, flying: Sequence[Batch]) -> tuple[list[RankLoad], bool]:
        """What each rank puts into the next batch of a lane; and whether queues or requests have changed.

        ``seen``: what had arrived by then is known; ``flying``: the batches in flight.
        """
        loads, changed = [], False
        apart, capacity = self.rules.batching.pieces_apart, self.rules.capacity
        for scheduler in self.schedulers:
            queue = scheduler.queue
            scheduler.decodes = scheduler.lanes[lane]
            if scheduler.admitted.adapters is not None:
                scheduler.admitted.adapters.turn(lane)
            if queue.inbox and queue.inbox[0][0] <= seen:
                known = len(queue.waiting)
                queue.look(seen, scheduler.decodes.size > 0)
                changed = changed or len(queue.waiting) > known
        held = self.rules.balance_steps > 0 and self._held_back()
        held = held or (self.gap > 0 and any(scheduler.decodes.size for scheduler in self.schedulers))
        late = self.steps % self.rules.cadence.grid > 0
        states = [] if held or self.delay is None else list(map(_state_of, self.schedulers))
        held = held or (len(states) > 0 and self._delayed(states))
        for rank, scheduler in enumerate(self.schedulers):
            decodes, admitted = scheduler.decodes, scheduler.admitted
            running = len(admitted.running)
            waits = not held and (scheduler.queue.waiting or scheduler.partial is not None)
            waits = waits and not (late and decodes.size and not scheduler.queue.backlog)
            waits = waits and (not scheduler.closed or scheduler.partial is not None)
            if waits and not (apart and _in_flight(rank, scheduler.partial, flying)):
                prompts = scheduler.plan(now)
                if prompts is not None:
                    changed = True
                    loads.append(RankLoad(decodes.size if scheduler.mixed else 0, prompts))
                    if admitted.adapters is not None:
                        admitted.adapters.fetch()
                    continue
            if scheduler.grows and decodes.size * decodes.block > capacity - admitted.used:
                scheduler.make_room(now)
            changed = changed or len(admitted.running) != running
            loads.append(RankLoad(decodes.size, None))
            if admitted.adapters is not None and decodes.size:
                admitted.adapters.fetch()
        if self.delay is not None and states:
            self.delay.observe(states, [0 if load.prompts is None else load.prompts.prompts for load in loads])
        return loads, changed

    def _delayed(self, states: Sequence[RankState]) -> bool:
        """Whether prompts wait for other ranks, those that are computed in part too; under SGLang these go on."""
        assert self.delay is not None
        waits, parts = self.delay.holds(states), self.delay.rule.fills is not None
        for scheduler in self.schedulers:
            scheduler.closed = waits and not parts
        return waits and parts

    def _held_back(self) -> bool:
        """Whether prompts wait until every rank has one, for so many steps at most and only while all ranks decode.

        TensorRT-LLM's ``attention_dp_config`` with ``enable_balance`` and ``timeout_iters``: it counts on while nothing
        waits, so a lone prompt waits half of them on average (``PyExecutor._balance_adp_requests``).
        """
        ready = all(scheduler.queue.waiting or scheduler.partial is not None for scheduler in self.schedulers)
        decoding = all(scheduler.decodes.size for scheduler in self.schedulers)
        self.unbalanced += 1
        if ready or not decoding or self.unbalanced >= self.rules.balance_steps:
            self.unbalanced = 0
            return False
        return True

    def book(self, loads: Sequence[RankLoad], back: float) -> None:
        """Count what a batch that was just sent makes by the time it is back."""
        self.sent = 1
        self.steps += 1
        prompts = any(load.prompts is not None for load in loads)
        self.gap = self.rules.cadence.gap if prompts else max(self.gap - 1, 0)
        for scheduler, load in zip(self.schedulers, loads):
            queue = scheduler.queue
            if load.prompts is not None:
                scheduler.meter.count_prompts(load.prompts.tokens, load.decodes * scheduler.width)
                queue.steps_since_look = 0
            else:
                queue.steps_since_look += 1
                queue.steps_held_back = queue.steps_held_back + 1 if queue.waiting else 0
            if load.decodes:
                scheduler.run_decodes(back, 1, 0.0)
                scheduler.decodes.token_time = back

    def book_cycles(self, batch: Batch, was: float, back: float, cycles: int) -> None:
        """Count what a batch makes that goes round ``cycles`` times between two times at which it is back."""
        if self.rules.balance_steps:
            self.unbalanced = (self.unbalanced + cycles) % self.rules.balance_steps
        self.steps, self.gap = self.steps + cycles, max(self.gap - cycles, 0)
        for scheduler, load in zip(self.schedulers, batch.loads):
            queue = scheduler.queue
            queue.steps_since_look += cycles
            queue.steps_held_back = queue.steps_held_back + cycles if queue.waiting else 0
            if load.decodes:
                scheduler.decodes = scheduler.lanes[batch.lane]
                if cycles == 1:
                    scheduler.run_decodes(back, 1, 0.0)
                else:
                    scheduler.run_decodes(was, cycles, (back - was) / cycles)
                scheduler.decodes.token_time = back

    def finish(self, batch: Batch, late: bool) -> bool:
        """A batch is back: requests leave or start to decode, clients see tokens (if ``late``, those of the last one).

        Gives whether any request came or went.
        """
        changed = False
        for scheduler, load in zip(self.schedulers, batch.loads):
            scheduler.decodes = scheduler.lanes[batch.lane]
            if late and scheduler.clients.unseen:
                scheduler.clients.show(batch.back)
            running = len(scheduler.admitted.running)
            ends, there = scheduler.decodes.ends, scheduler.admitted.running
            if load.decodes and ends and ends[0][0] <= scheduler.decodes.steps:
                scheduler.finish_decodes()
            if load.prompts is not None:  # of those that nobody has given up meanwhile
                completed = [request for request in load.prompts.completed if request in there]
                scheduler.finish_prompts(completed, batch.back)
            changed = changed or load.prompts is not None or len(scheduler.admitted.running) < running
            if not late and scheduler.clients.unseen:
                scheduler.clients.show(batch.back)
        return changed

    def last_step(self) -> float:
        """Seconds of a step of those whose last tokens nobody has seen yet."""
        duration = 0.0
        for scheduler in self.schedulers:
            requests = [request for request, token in scheduler.clients.unseen if token is not ANSWER]
            if requests:
                records = scheduler.records
                context = sum(records.prompt[request] + records.output[request] for request in requests)
                duration = max(duration, self.price_of(scheduler).decode(len(requests), context / len(requests)))
        return duration

    def show(self, time: float) -> None:
        """Clients see the tokens made so far at ``time``."""
        for scheduler in self.schedulers:
            scheduler.clients.show(time)

    # --- meters -----------------------------------------------------------------------------------------------------

    def meter(self, now: float, flying: Sequence[Batch]) -> None:
        """Count the time since the last batch was sent, with what each rank has in flight."""
        since, sent = self.metered, self.sent
        if flying and (sent or now > since):
            last, before = flying[-1].loads, list(flying)[:-1] if len(flying) > 1 else ()
            for rank, scheduler in enumerate(self.schedulers):
                decodes, prompts = last[rank]
                busy = decodes > 0 or prompts is not None
                for batch in before:
                    decoding, others = batch.loads[rank]
                    decodes += decoding
                    busy = busy or decoding > 0 or others is not None
                if busy:
                    tokens = 0.0 if prompts is None or not sent else prompts.tokens  # of the batch sent last
                    scheduler.book_time(since, now - since, sent, decodes, tokens)
        self.metered, self.sent = now, 0

    def meter_run(self, last: float, flying: Sequence[Batch], sent: int) -> None:
        """Count the time of a run of ``sent`` batches up to ``last``, when the last one of them was sent."""
        self.sent = sent - 1
        self.meter(last, flying)
        self.sent = 1
