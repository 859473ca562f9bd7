"""Engines with several batches in flight (pipeline stages), or whose attention ranks step together: their steps.

Every stage works on a batch of its own. The scheduler composes a batch, sends it through the stages and composes the
next one at once, as long as fewer batches than stages are in flight and there is anything to schedule; otherwise it
waits for the oldest batch to come back (vLLM ``EngineCore.step_with_batch_queue``; docs/serving.md, Pipelines). The
requests of a batch can decode again when it is back; the next piece of a prompt may follow in the next batch.

Attention ranks that share experts send their batches together: see :mod:`inferplan.serving.ranks`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil, inf

from inferplan.serving.clock import Engine
from inferplan.serving.decode_batch import steps_within
from inferplan.serving.flow_shop import FlowShop, Passage
from inferplan.serving.ranks import Batch, RankLoad, Ranks
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.step_times import StepPrice, StepTimes

_RECHECK = 32
"""Decode steps after which an admission that depends on how far others have written is tried again."""


class Pipeline(Engine):
    """The ranks of one replica, and the stages that their batches pass.

    ``schedulers``: one for each attention rank, all with as many lanes as there are stages. ``prices``: of each lane of
    each rank, where something changes those of ``times``. A notification never comes later than the event that causes
    it, so nothing asks whether it is ``reactive``.
    """

    def __init__(
        self, times: StepTimes, schedulers: Sequence[Scheduler], prices: Sequence[Sequence[StepPrice]] = ()
    ) -> None:
        super().__init__()
        self.schedulers = schedulers
        self.times, self.ranks = times, Ranks(times, schedulers, prices)
        self.rules = schedulers[0].rules
        self.lanes = len(schedulers[0].lanes)
        self.overlapped = self.rules.overlapped and self.lanes == 1
        """With several batches in flight, composing one is always hidden behind the others."""
        self.seen_late = self.rules.seen_late and self.lanes == 1
        self.previous = 0.0
        """When it composed the last one: what had arrived by then is known to an overlapped scheduler."""
        self.shop = FlowShop(self.lanes + 1)
        self.flying: deque[Batch] = deque()
        """Batches in flight, in the order they were sent."""
        self.idle = deque(range(self.lanes))
        """Lanes that are not in flight; the first is the next to be sent."""
        self.waits = False
        """The oldest batch is taken back before another one is sent."""
        self.tried = False
        """Nothing more could be sent: every lane is in flight, or there was nothing to schedule."""
        self.unchanged = 0
        """Batches sent since the requests of a lane or the queue last changed."""

    def price_of(self, scheduler: Scheduler) -> StepPrice:
        """The price of the steps of the lane whose turn it is."""
        return self.ranks.price_of(scheduler)

    def restart(self, now: float) -> None:
        """All is quiet: the clocks go on from ``now`` with empty meters."""
        self.clock = self.previous = now
        self.ranks.restart(now)

    # --- one batch --------------------------------------------------------------------------------------------------

    def step(self, until: float) -> bool:
        """Take the oldest batch back, where that is waited for, or send the next one."""
        if self.waits:
            if self.clock >= until or self.flying[0].back >= until:
                return False
            if not self._run(until):
                self._take_back()
            return True
        idle = not self.flying and not self.ranks.busy
        if idle and not self.ranks.unseen:
            return self._wake(until)
        if self.clock >= until:
            return False
        if idle:
            if not self.ranks.look(self.previous if self.overlapped else self.clock):
                self._show_last()
            return True
        sent = self._send()
        self.tried = not sent or len(self.flying) == self.lanes
        self.waits = len(self.flying) > 0 and (self.tried or self.flying[0].back <= self.clock)
        if not self.flying:
            self.ranks.refuse_first(self.clock)
        return True

    def earliest(self) -> float:
        """A time before which it cannot notify anyone; infinity when it is idle."""
        now = max(self.clock, self.flying[0].back) if self.waits else self.clock
        ready = any(scheduler.lanes[lane].size for scheduler in self.ranks.schedulers for lane in self.idle)
        if ready or self.ranks.unseen or self.ranks.queued:
            return now
        bound = max(now, self.ranks.next_arrival())
        for batch in self.flying:
            bound = min(bound, max(now, self.ranks.first_end(batch)))
        return bound

    def _wake(self, until: float) -> bool:
        """From idle to the next visible request; false when there is none before ``until``."""
        start = max(self.ranks.next_arrival(), self.clock)
        if start >= until:
            return False
        self.clock = self.previous = start
        self.ranks.wake(start)
        return True

    def _show_last(self) -> None:
        """Nothing runs: who sees tokens late learns so from one more step, which had been launched already."""
        self.previous = self.clock
        self.clock += self.ranks.last_step() if self.seen_late else 0.0
        self.ranks.show(self.clock)

    def _send(self) -> bool:
        """Compose a batch of the next lane and send it through the stages; false when there is nothing to schedule."""
        lane, now = self.idle[0], self.clock
        self.ranks.meter(now, self.flying)
        loads, changed = self.ranks.compose(lane, now, self.previous if self.overlapped else now, self.flying)
        if changed:
            self.unchanged = 0
        if not any(load.decodes or load.prompts for load in loads):
            return False
        self.idle.popleft()
        back = self.shop.send(now, self.ranks.passage(lane, loads))
        self.previous, self.clock = now, self.shop.free[0]
        self.unchanged += 1
        self.ranks.book(loads, back)
        self.flying.append(Batch(lane, loads, back))
        return True

    def _take_back(self) -> None:
        """The oldest batch has left the last stage."""
        batch = self.flying[0]
        self.clock = max(self.clock, batch.back)
        self.ranks.meter(self.clock, self.flying)
        self.flying.popleft()
        self.idle.appendleft(batch.lane)
        self.waits = False
        if self.ranks.finish(batch, self.seen_late):
            self.unchanged = 0

    # --- cycles that are alike --------------------------------------------------------------------------------------

    def _run(self, until: float) -> bool:
        """Let the batches in flight go round while nobody comes or goes; false when that is not even one cycle.

        All cycles of a run take the contexts of their middle.
        """
        count, bound = self._alike(until)
        if count < 1:
            return False
        ranks, back = self.ranks, [batch.back for batch in self.flying]
        first = max(back[0], self.clock)
        if first >= bound:
            return False
        if bound < inf:  # a cycle takes no less than the longest pass of a lane
            count = min(count, ceil((bound - first) / max(ranks.decode_pass(batch) for batch in self.flying)))
        seconds = self._cycle_seconds(count)
        if len(back) < self.lanes:  # a free lane takes what arrives before the host is done with the batch just sent
            bound -= max(lane.stations[0] + lane.behind for lane in seconds)
            if first >= bound:
                return False
        ranks.meter(first, self.flying)
        done = 0
        for repeats, left in self.shop.cycles(back, seconds, count, bound):
            for batch, was, now in zip(self.flying, back, left):
                ranks.book_cycles(batch, was, now, repeats)
            back, done = left, done + repeats
        if not done:
            return False
        self.flying = deque(
            Batch(batch.lane, [RankLoad(load.decodes, None) for load in batch.loads], time)
            for batch, time in zip(self.flying, back)
        )
        self.clock = self.shop.free[0]
        self.previous = self.clock - seconds[-1].stations[0] - seconds[-1].behind
        ranks.meter_run(self.previous, self.flying, done * len(self.flying))
        return True

    def _cycle_seconds(self, count: int) -> list[Passage]:
        """The passage of each lane's batch, in the middle of ``count`` cycles."""
        later = (count - 1) * self.rules.tokens_per_step / 2
        return [
            self.ranks.passage(batch.lane, [RankLoad(load.decodes, None) for load in batch.loads], later)
            for batch in self.flying
        ]

    def _alike(self, until: float) -> tuple[int, float]:
        """How many cycles the batches in flight could go round unchanged, and before when each must be sent."""
        rules, count, bound = self.rules, 1 << 60, until
        lanes = len(self.flying)
        for scheduler in self.ranks.schedulers:  # mostly one of many ranks has a piece of a prompt
            adapters = scheduler.admitted.adapters
            if scheduler.partial is not None or scheduler.short or scheduler.clients.unseen:
                return 0, bound
            if adapters is not None and adapters.crowded:
                return 0, bound
        for batch in self.flying:
            for load in batch.loads:
                if load.prompts is not None and (load.prompts.completed or not self.rules.mixed):
                    return 0, bound
        for rank, scheduler in enumerate(self.ranks.schedulers):
            queue, running = scheduler.queue, len(scheduler.admitted.running)
            if queue.waiting:
                if (
                    rules.wait_steps
                    or rules.balance_steps
                    or rules.cadence.any
                    or self.unchanged < lanes
                    or not self.tried
                ):
                    return 0, bound
                if (rules.admission == "ratio" or rules.queue == "fair") and running < rules.slots:
                    count = min(count, max(_RECHECK // lanes, 1))
            behind = bool(queue.waiting) and queue.lines is None
            if queue.inbox and not behind and running < rules.slots and not (rules.policy == "static" and running):
                bound = min(bound, queue.inbox[0][0])
            for batch in self.flying:
                lane = scheduler.lanes[batch.lane]
                if lane.size < batch.loads[rank].decodes:  # somebody has given up
                    return 0, bound
                if lane.size and (left := lane.ends[0][0] - lane.steps) < count:
                    count = left
            if scheduler.grows:
                size = sum([lane.size for lane in scheduler.lanes])
                if (count + rules.page) * size * rules.tokens_per_step > scheduler.free:
                    count = min(count, steps_within(scheduler.lanes, scheduler.free))
        return count, bound
