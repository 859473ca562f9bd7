"""Attention ranks of which each is plain: what they do together, with the same results as the general code.

:mod:`inferplan.serving.ranks` shares all state with this module, says what every line here stands for and does what is
rare. ``tests/serving/test_plain_pipeline.py`` holds both to the same last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferplan.serving.plain_scheduler import (
    finish_decodes,
    finish_prompts,
    make_runs,
    make_tokens,
    plan_prompts,
)
from inferplan.serving.ranks import Batch, RankLoad, Ranks


class PlainRanks(Ranks):
    """The schedulers of a replica's attention ranks, each plain."""

    @property
    def busy(self) -> bool:
        for scheduler in self.schedulers:
            if scheduler.queue.waiting or scheduler.partial is not None:
                return True
            for lane in scheduler.lanes:
                if lane.size:
                    return True
        return False

    def compose(self, lane: int, now: float, seen: float, flying: Sequence[Batch]) -> tuple[list[RankLoad], bool]:
        loads, changed, capacity = [], False, self.rules.capacity
        for scheduler in self.schedulers:
            inbox, waiting, admitted = scheduler.queue.inbox, scheduler.queue.waiting, scheduler.admitted
            scheduler.decodes = decodes = scheduler.lanes[lane]
            if inbox and inbox[0][0] <= seen:
                changed = True
                while inbox and inbox[0][0] <= seen:
                    waiting.append(inbox.popleft()[1])
            running = len(admitted.running)
            if waiting or scheduler.partial is not None:
                chunk = plan_prompts(scheduler, now) or scheduler.plan(now)
                if chunk is not None:
                    changed = True
                    loads.append(RankLoad(decodes.size, chunk))
                    continue
            if decodes.size * decodes.block > capacity - admitted.used:
                scheduler.make_room(now)
            changed = changed or len(admitted.running) != running
            loads.append(RankLoad(decodes.size, None))
        return loads, changed

    def book(self, loads: Sequence[RankLoad], back: float) -> None:
        self.sent = 1
        for scheduler, (decodes, prompts) in zip(self.schedulers, loads):
            if prompts is not None:
                scheduler.meter.count_prompts(prompts.tokens, decodes)
            if decodes:
                make_tokens(scheduler, scheduler.decodes, back)

    def book_cycles(self, batch: Batch, was: float, back: float, cycles: int) -> None:
        lane = batch.lane
        for scheduler, (decodes, _) in zip(self.schedulers, batch.loads):
            if not decodes:
                continue
            scheduler.decodes = here = scheduler.lanes[lane]
            if cycles == 1:
                make_tokens(scheduler, here, back)
            else:
                make_runs(scheduler, here, was, cycles, back)

    def finish(self, batch: Batch, late: bool) -> bool:
        changed, (lane, loads, back) = False, batch
        for scheduler, (decoding, prompts) in zip(self.schedulers, loads):
            scheduler.decodes = decodes = scheduler.lanes[lane]
            if late and scheduler.clients.unseen:
                scheduler.clients.show(back)
            if decoding and decodes.ends and decodes.ends[0][0] <= decodes.steps:
                finish_decodes(scheduler)
                changed = True
            if prompts is not None:
                progress, running, changed = scheduler.progress, scheduler.admitted.running, True
                completed = [request for request in prompts.completed if request in running]
                if progress.output_left or progress.to_compute:
                    scheduler.finish_prompts(completed, back)
                else:
                    finish_prompts(scheduler, completed, back)
            if not late and scheduler.clients.unseen:
                scheduler.clients.show(back)
        return changed

    def meter(self, now: float, flying: Sequence[Batch]) -> None:
        since, sent = self.metered, self.sent
        if flying and (sent or now > since):
            duration = now - since
            for rank, scheduler in enumerate(self.schedulers):
                decodes, busy = 0, False
                for _, loads, _ in flying:
                    here, prompts = loads[rank]
                    decodes += here
                    busy = busy or here > 0 or prompts is not None
                if busy:
                    scheduler.book_time(since, duration, sent, decodes, 0.0)
        self.metered, self.sent = now, 0
