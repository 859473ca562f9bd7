"""A plain pipeline: one attention rank on several stages, the events of the usual case each in one function.

The results are those of :mod:`inferplan.serving.pipeline` and :mod:`inferplan.serving.ranks`, which share all state
with this module, say what every line here stands for and do what is rare. A call of Python costs as much as the
arithmetic of an event. ``tests/serving/test_plain_pipeline.py`` holds both to the same last bit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from math import ceil, inf

from inferplan.estimate.phase import send
from inferplan.serving.decode_batch import steps_within
from inferplan.serving.flow_shop import Passage
from inferplan.serving.pipeline import Pipeline
from inferplan.serving.plain_ranks import PlainRanks
from inferplan.serving.plain_scheduler import (
    finish_decodes,
    finish_prompts,
    is_plain,
    make_runs,
    make_tokens,
    plan_prompts,
)
from inferplan.serving.ranks import Batch, RankLoad
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.step_times import StepPrice, StepTimes

NATIVE: type[Pipe] | None = None
"""The loop below in C, where that is compiled."""
try:
    from inferplan.serving.plain_native import Pipe

    NATIVE = Pipe
except ImportError:
    pass


def pipeline_of(times: StepTimes, group: Sequence[Scheduler], prices: Sequence[Sequence[StepPrice]]) -> Pipeline:
    """The pipeline of schedulers that step together, a plain one where it can be."""
    rules = group[0].rules
    usual = all(price is times for lanes in prices for price in lanes) and not times.drafts
    pipeline = Pipeline(times, group, prices)
    if usual and not (rules.batching.pieces_apart or rules.balance_steps) and all(map(is_plain, group)):
        if len(group) == 1 and times.staged is not None:
            return PlainPipeline(times, group[0])
        pipeline.ranks = PlainRanks(times, group, prices)
    return pipeline


class PlainPipeline(Pipeline):
    """A pipeline that looks for the plain case first."""

    def __init__(self, times: StepTimes, scheduler: Scheduler) -> None:
        super().__init__(times, [scheduler])
        self.scheduler = scheduler
        self.waiting, self.inbox = scheduler.queue.waiting, scheduler.queue.inbox
        self.native = None if NATIVE is None else NATIVE(self)

    def advance(self, until: float) -> None:
        self.pause = False
        if self.native is not None and self.scheduler.clients.held is None:
            self.native.advance(until)
            return
        while not self.pause:
            if not self.flying:
                if not self.step(until):
                    return
                continue
            if self.waits:
                if self.clock >= until or self.flying[0].back >= until:
                    return
                if self.flying[0].loads[0].prompts is not None or not (self._run(until) or self._again(until)):
                    self._take_back()
                continue
            if self.clock >= until:
                return
            sent = self._send()
            self.tried = not sent or len(self.flying) == self.lanes
            self.waits = self.tried or self.flying[0].back <= self.clock

    def _meter(self, now: float, flying: Sequence[Batch]) -> None:
        """Count the time since the last batch was sent."""
        ranks, scheduler = self.ranks, self.scheduler
        since, sent = ranks.metered, ranks.sent
        if flying and (sent or now > since):
            decodes = 0
            for _, loads, _ in flying:
                decodes += loads[0][0]
            scheduler.book_time(since, now - since, sent, decodes, 0.0)
        ranks.metered, ranks.sent = now, 0

    def _send(self) -> bool:
        lane, now, scheduler, inbox, waiting = self.idle[0], self.clock, self.scheduler, self.inbox, self.waiting
        if self.ranks.sent or now > self.ranks.metered:
            self._meter(now, self.flying)
        scheduler.decodes = decodes = scheduler.lanes[lane]
        admitted, chunk = scheduler.admitted, None
        running = len(admitted.running)
        if inbox and inbox[0][0] <= now:
            self.unchanged = 0
            while inbox and inbox[0][0] <= now:
                waiting.append(inbox.popleft()[1])
        if waiting or scheduler.partial is not None:
            chunk = plan_prompts(scheduler, now) or scheduler.plan(now)
        size = decodes.size
        if chunk is not None:
            self.unchanged = 0
            scheduler.meter.count_prompts(chunk.tokens, size)
        else:
            if size * decodes.block > self.rules.capacity - admitted.used:
                scheduler.make_room(now)
                size = decodes.size
            if len(admitted.running) != running:
                self.unchanged = 0
            if not size:
                return False
        self.idle.popleft()
        context, load = decodes.context / size if size else 0.0, RankLoad(size, chunk)
        if admitted.host_loads or admitted.layer_loads:
            stations: Sequence[float] = self.ranks.passage(lane, [load]).stations
        elif chunk is None:
            stations = self._pass(size, context)
        else:
            stations = self.times.staged_with_prompts(size, context, chunk)
        back = send(self.shop.free, now, stations)
        self.previous, self.clock = now, self.shop.free[0]
        self.unchanged += 1
        self.ranks.sent = 1
        if size:
            make_tokens(scheduler, decodes, back)
        self.flying.append(Batch(lane, [load], back))
        return True

    def _pass(self, batch: int, context: float) -> list[float]:
        """Seconds on each station of a step that only decodes."""
        times = self.times
        assert times.staged is not None
        lines = times.staged.get(batch)
        if lines is None:
            return times.stations(batch, context)
        made = [times.host + times.host_sequence * batch]
        made += [base + slope * context for base, slope in lines[bisect_right(times.contexts, context)]]
        return made

    def _take_back(self) -> None:
        batch, scheduler = self.flying[0], self.scheduler
        lane, ((decoding, prompts),), back = batch
        if back > self.clock:  # noqa: PLR1730 (a call takes five times as long)
            self.clock = back
        self._meter(self.clock, self.flying)
        self.flying.popleft()
        self.idle.appendleft(lane)
        self.waits = False
        scheduler.decodes = decodes = scheduler.lanes[lane]
        if decoding and decodes.ends and decodes.ends[0][0] <= decodes.steps:
            finish_decodes(scheduler)
            self.unchanged = 0
        if prompts is not None:
            progress, running = scheduler.progress, scheduler.admitted.running
            completed = [request for request in prompts.completed if request in running]
            self.unchanged = 0
            if progress.output_left or progress.to_compute:
                scheduler.finish_prompts(completed, back)
            else:
                finish_prompts(scheduler, completed, back)
        if scheduler.clients.unseen:
            scheduler.clients.show(back)

    def _again(self, until: float) -> bool:
        """The oldest batch comes back and goes round once more; false where anything is to be done in between."""
        scheduler, flying, inbox, clock = self.scheduler, self.flying, self.inbox, self.clock
        lane, loads, back = flying[0]
        now, decodes, admitted = back if back > clock else clock, scheduler.lanes[lane], scheduler.admitted
        if self.waiting or scheduler.partial is not None or scheduler.clients.unseen:
            return False
        if now >= until or (inbox and inbox[0][0] <= now) or loads[0][1] is not None or admitted.loading:
            return False
        size = decodes.size
        if size != loads[0][0] or decodes.ends[0][0] <= decodes.steps:
            return False
        if size * decodes.block > self.rules.capacity - admitted.used:
            return False
        self._meter(now, flying)
        flying.popleft()
        scheduler.decodes = decodes
        back = send(self.shop.free, now, self._pass(size, decodes.context / size))
        self.previous, self.clock = now, self.shop.free[0]
        self.unchanged += 1
        self.ranks.sent = 1
        make_tokens(scheduler, decodes, back)
        flying.append(Batch(lane, loads, back))
        self.tried = len(flying) == self.lanes
        self.waits = self.tried or flying[0].back <= self.clock
        return True

    def _run(self, until: float) -> bool:
        count, bound = self._alike(until)
        if count < 1:
            return False
        flying, scheduler, times = self.flying, self.scheduler, self.times
        back, batches = [batch.back for batch in flying], [scheduler.lanes[batch.lane] for batch in flying]
        first = back[0] if back[0] > self.clock else self.clock
        if first >= bound:
            return False
        if bound < inf:
            longest = 0.0
            for decodes in batches:
                seconds = times.decode(decodes.size, decodes.context / decodes.size)
                longest = seconds if seconds > longest else longest
            count = min(count, ceil((bound - first) / longest))
        later = (count - 1) / 2
        passages = [Passage(self._pass(one.size, one.context / one.size + later)) for one in batches]
        if len(back) < self.lanes:
            bound -= max([passage.stations[0] for passage in passages])
            if first >= bound:
                return False
        self._meter(first, flying)
        done = 0
        for repeats, left in self.shop.cycles(back, passages, count, bound):
            for decodes, was, now in zip(batches, back, left):
                if repeats == 1:
                    make_tokens(scheduler, decodes, now)
                else:
                    make_runs(scheduler, decodes, was, repeats, now)
            back, done = left, done + repeats
        if not done:
            return False
        scheduler.decodes = batches[-1]
        self.flying = deque([Batch(batch.lane, batch.loads, time) for batch, time in zip(flying, back)])
        self.clock = self.shop.free[0]
        self.previous = self.clock - passages[-1].stations[0]
        self.ranks.sent = done * len(back) - 1
        self._meter(self.previous, self.flying)
        self.ranks.sent = 1
        return True

    def _alike(self, until: float) -> tuple[int, float]:
        scheduler, rules, waiting, flying = self.scheduler, self.rules, self.waiting, self.flying
        if scheduler.partial is not None or scheduler.short or scheduler.clients.unseen:
            return 0, until
        if waiting and (self.unchanged < len(flying) or not self.tried):
            return 0, until
        count, lanes, admitted = 1 << 60, scheduler.lanes, scheduler.admitted
        for lane, ((decoding, prompts),), _ in flying:
            if prompts is not None:
                return (0, until) if prompts.completed else super()._alike(until)
            decodes = lanes[lane]
            if decodes.size < decoding:  # somebody has given up
                return 0, until
            left = decodes.ends[0][0] - decodes.steps
            count = left if left < count else count
        if count < 1:
            return 0, until
        size, free = sum([lane.size for lane in lanes]), rules.capacity - admitted.used
        if (count + rules.page) * size > free:
            count = min(count, steps_within(lanes, free))
        if self.inbox and not waiting and len(admitted.running) < rules.slots:
            until = min(until, self.inbox[0][0])
        return count, until
