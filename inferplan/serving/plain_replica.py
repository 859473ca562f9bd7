"""A plain replica: the events of the usual case, each in one function, with the same results as the general ones.

They are steps with the prompts of :func:`inferplan.serving.plain_scheduler.plan_prompts`, and decode steps of a batch
that fits the cache. Both are written out here in one piece each, because a call of Python costs as much as the
arithmetic of an event. Whatever else may happen is left to :mod:`inferplan.serving.replica`, which shares all state
with this module and says what every line here stands for. ``tests/serving/test_plain_replica.py`` holds both to the
same last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from inferplan.serving.clients import FIRST
from inferplan.serving.decode_batch import steps_within
from inferplan.serving.plain_scheduler import finish_decodes, finish_prompts, is_plain, plan_prompts
from inferplan.serving.replica import Replica
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.step_times import StepTimes


def replica_of(times: StepTimes, scheduler: Scheduler) -> Replica:
    """The replica of an engine, a plain one where it can be."""
    plain = times.simple and is_plain(scheduler)
    return PlainReplica(times, scheduler) if plain else Replica(times, scheduler)


class PlainReplica(Replica):
    """A replica that looks for the plain case first. What only the general case reads is not kept up to date: steps
    since the queue was looked at or prompts were held back, output still to be written, when tokens came.
    """

    def __init__(self, times: StepTimes, scheduler: Scheduler) -> None:
        super().__init__(times, scheduler)
        self.tables = times

    def _prompt_step(self) -> bool:
        """A step with prompts that wait, as many as its budget holds and the last of them in part, where it takes no
        more ado.
        """
        scheduler, decodes = self.scheduler, self.decodes
        chunk = plan_prompts(scheduler, self.clock)
        if chunk is None:
            return super()._prompt_step()
        prompts, tokens, pairs, completed, _ = chunk
        batch = decodes.size
        duration = self.tables.with_prompts(batch, decodes.context / batch if batch else 0.0, prompts, tokens, pairs)
        self.previous = self.clock
        self.clock += duration
        self._meter_prompts(batch, tokens, duration)
        if completed or scheduler.clients.unseen or (batch and decodes.ends[0][0] <= decodes.steps):
            self._after_prompts(completed)
        return True

    def _meter_prompts(self, batch: int, tokens: float, duration: float) -> None:
        """A step with so many prompt tokens has taken ``duration``, and ``batch`` requests have made a token in it."""
        scheduler, waiting, capacity = self.scheduler, self.waiting, self.rules.capacity
        meter, admitted = scheduler.meter, scheduler.admitted
        meter.prompt_steps += 1
        meter.prompt_tokens += tokens
        if batch + tokens > meter.largest_step:  # noqa: PLR1730 (a call takes five times as long)
            meter.largest_step = batch + tokens
        if batch:
            decodes, records, page = self.decodes, scheduler.records, self.rules.page
            admitted.used += decodes.phases[-decodes.steps % page] * page
            decodes.steps += 1
            decodes.context += batch
            records.gaps.append(duration)
            records.gap_weights.append(batch)
            meter.decode_tokens += batch
            meter.batch_seconds += batch * duration
        share = admitted.used / capacity
        meter.steps += 1
        meter.busy += duration
        meter.kv_seconds += share * duration
        if share > meter.kv_peak:  # noqa: PLR1730 (a call takes five times as long)
            meter.kv_peak = share
        if waiting:
            meter.wait("budget", len(waiting) * duration)

    def _after_prompts(self, completed: Sequence[int]) -> None:
        """Their prompts are in the cache, and each has made its first token; requests that decoded may be done."""
        scheduler, clock = self.scheduler, self.clock
        decodes, clients = scheduler.decodes, scheduler.clients
        if clients.unseen:
            clients.show(clock)
        if decodes.ends and decodes.ends[0][0] <= decodes.steps:
            finish_decodes(scheduler)
        finish_prompts(scheduler, completed, clock)
        if not self.rules.seen_late:
            clients.show(clock)

    def _decode_run(self, until: float) -> None:
        """Runs of steps that are alike, until there may be something to plan."""
        scheduler, rules, times = self.scheduler, self.rules, self.tables
        decodes, clients, inbox, waiting = self.decodes, self.clients, self.inbox, self.waiting
        admitted, running = scheduler.admitted, scheduler.admitted.running
        capacity, page, overlapped, lines_of = rules.capacity, rules.page, rules.overlapped, times.cache
        while True:
            batch, start = decodes.size, self.clock
            run = decodes.ends[0][0] - decodes.steps
            if (run + page) * batch > capacity - admitted.used:
                run = min(run, steps_within(scheduler.lanes, capacity - admitted.used))
            if run < 1 or scheduler.short:
                if self._decode_or_preempt(until):
                    return
                continue
            mean, lines = decodes.context / batch, lines_of.get(batch) or times.decode_lines(batch)
            low, high, at = times.segment
            context = mean + (run - 1) / 2
            base, slope = lines[at if low <= context < high else times.line_at(context)]
            price = base + slope * context
            limit = run
            if inbox and not waiting and len(running) < rules.slots:
                limit = ceil((inbox[0][0] - start) / price)
                limit = (limit if limit > 0 else 0) + 1 if overlapped else limit if limit > 1 else 1
            if until - start < run * price:
                limit = min(limit, ceil((until - start) / price) or 1)
            if self.reactive and clients.unseen and any(token is not FIRST for _, token in clients.unseen):
                limit = 1
            if limit < run:
                run = limit
                context = mean + (run - 1) / 2
                base, slope = lines[at if low <= context < high else times.line_at(context)]
                price = base + slope * context
            clock = self.clock = start + run * price
            self.previous = clock - price
            self._make(run, price)
            if clients.unseen:
                first = price
                if run > 1:
                    base, slope = lines[at if low <= mean < high else times.line_at(mean)]
                    first = base + slope * mean
                clients.show(start + first)
            if decodes.ends[0][0] == decodes.steps:
                finish_decodes(scheduler)
                if not rules.seen_late:
                    clients.show(clock)
            if self.pause or waiting or clock >= until or not decodes.size or (inbox and inbox[0][0] <= clock):
                return

    def _make(self, run: int, price: float) -> None:
        """The batch has made ``run`` steps of ``price`` seconds: what it wrote and took, in caches and meters."""
        scheduler, rules = self.scheduler, self.rules
        decodes, admitted, records, meter = self.decodes, scheduler.admitted, scheduler.records, scheduler.meter
        batch, steps, page, phases = decodes.size, decodes.steps, rules.page, decodes.phases
        made, duration = run * batch, run * price
        decodes.steps = steps + run
        decodes.context += made
        records.gaps.append(price)
        records.gap_weights.append(made)
        cycles, rest = divmod(run, page)
        blocks, first = cycles * batch, -steps % page + 1
        if rest > first:
            blocks += sum(phases[:first]) + sum(phases[first - rest :])
        elif rest:
            blocks += sum(phases[first - rest : first])
        taken = blocks * page
        used = admitted.used = admitted.used + taken
        share = used / rules.capacity
        meter.steps += run
        meter.busy += duration
        meter.decode_tokens += made
        meter.batch_seconds += batch * duration
        grown = taken / rules.capacity
        meter.kv_seconds += (share - grown * (run - 1) / (2 * run) if run > 1 else share) * duration
        if share > meter.kv_peak:  # noqa: PLR1730 (a call takes five times as long)
            meter.kv_peak = share
        if self.waiting:
            meter.wait(meter.blocking, len(self.waiting) * duration)
