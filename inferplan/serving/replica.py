"""One replica of an engine: its next step, and what the clock says when that is over.

Time moves from step to step. A run of steps that are alike (the same requests decode, nobody arrives, nobody finishes)
is one event: its time is the number of steps times the price at the run's mean context. What goes into a step is the
scheduler's to say (:mod:`inferplan.serving.scheduler`).
"""

from __future__ import annotations

from math import ceil, inf

from inferplan.serving.clients import ANSWER, FIRST
from inferplan.serving.clock import Engine
from inferplan.serving.decode_batch import steps_within
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.step_times import StepPrice

_RECHECK = 32
"""Decode steps after which an admission that depends on how far others have written is tried again: by the share of
their outputs that is kept free, or by whose turn it is under fair queueing."""


class Replica(Engine):
    """One engine of a deployment that runs one step after another."""

    def __init__(self, times: StepPrice, scheduler: Scheduler) -> None:
        super().__init__()
        self.times, self.scheduler, self.rules = times, scheduler, scheduler.rules
        self.schedulers = [scheduler]
        self.overlapped, self.poll_interval = self.rules.overlapped, self.rules.poll_interval
        self.decodes, self.clients = scheduler.decodes, scheduler.clients
        self.waiting, self.inbox = scheduler.queue.waiting, scheduler.queue.inbox
        self.previous = 0.0
        """Start of the last step: what had arrived by then is known to an overlapped scheduler."""
        self.price = 0.0
        """Seconds of the last step that only decoded."""

    def price_of(self, scheduler: Scheduler) -> StepPrice:
        """The price of the steps of a scheduler."""
        return self.times

    def restart(self, now: float) -> None:
        """All is quiet: the clocks go on from ``now`` with empty meters."""
        self.clock = self.previous = self.scheduler.queue.front_free = now
        self.scheduler.meter.clear()

    def step(self, until: float) -> bool:
        """A step with prompts where any can be computed, else steps that only decode."""
        scheduler, decodes, waiting, inbox = self.scheduler, self.decodes, self.waiting, self.inbox
        if decodes.size or waiting or scheduler.partial is not None or self.clients.unseen:
            if self.clock >= until:
                return False
        elif not self._wake(until):
            return False
        if inbox and inbox[0][0] <= self.clock:
            seen = self.previous if self.overlapped else self.clock  # what had arrived by then is known
            if self.poll_interval > 1 and decodes.size:  # when the engine last looked at the queue
                seen -= scheduler.queue.steps_since_look % self.poll_interval * self.price
            scheduler.queue.look(seen, False)
        if (waiting or scheduler.partial is not None) and self._prompt_step():
            if self.pause or self.clock >= until or (inbox and inbox[0][0] <= self.clock):
                return True
            if waiting or scheduler.partial is not None or not decodes.size:
                return True  # else a run of decode steps follows at once
        if decodes.size:
            self._decode_run(until)
        elif self.clients.unseen:
            self._show_last()
        elif waiting and not scheduler.admitted.running:
            self.clients.refuse_first(self.clock)
        return True

    def _wake(self, until: float) -> bool:
        """From idle to the next visible request; false when there is none before ``until``."""
        scheduler = self.scheduler
        queue, decodes = scheduler.queue, scheduler.decodes
        if not queue.inbox:
            return False
        start = max(queue.inbox[0][0], self.clock)
        if start >= until:
            return False
        self.clock = self.previous = start
        queue.steps_since_look = 0
        scheduler.ratio_reset = decodes.steps
        scheduler.admitted.reset()
        decodes.context = 0.0
        return True

    def _show_last(self) -> None:
        """The batch is empty: who sees tokens late learns so from one more step, which had been launched already."""
        scheduler = self.scheduler
        if self.rules.seen_late:
            records, requests = (
                scheduler.records,
                [one for one, token in scheduler.clients.unseen if token is not ANSWER],
            )
            context = sum(records.prompt[request] + records.output[request] for request in requests) / len(requests)
            self.previous = self.clock
            self.clock += self.times.decode(len(requests), context)
        scheduler.clients.show(self.clock)

    def earliest(self) -> float:
        """A time before which it cannot notify anyone; infinity when it is idle."""
        scheduler, decodes, inbox = self.scheduler, self.scheduler.decodes, self.scheduler.queue.inbox
        if scheduler.clients.unseen or scheduler.queue.waiting or scheduler.partial is not None:
            return self.clock
        bound = inf
        if decodes.size:
            steps = decodes.steps_left()
            bound = self.clock + 0.999 * max(steps - 1, 0) * self.times.decode(
                decodes.size, decodes.context / decodes.size
            )
        return min(bound, max(self.clock, inbox[0][0])) if inbox else bound

    def _prompt_step(self) -> bool:
        """One step that holds prompts, beside the decodes where the policy mixes them; false where none can start."""
        scheduler, rules, start = self.scheduler, self.rules, self.clock
        if scheduler.queue.decodes_first(self.decodes.size):
            return False
        chunk = scheduler.plan(start)
        if chunk is None:
            return False
        decodes, meter, clients = scheduler.decodes, scheduler.meter, scheduler.clients
        batch = decodes.size if scheduler.mixed else 0
        duration = self.times.mixed(batch, decodes.context / batch if batch else 0.0, chunk)
        duration = scheduler.admitted.with_loads(duration)
        self.previous, self.clock = start, start + duration
        scheduler.queue.steps_since_look = 0
        meter.count_prompts(chunk.tokens, batch * scheduler.width)
        if batch:
            scheduler.run_decodes(start, 1, duration)
            decodes.token_time = self.clock
        scheduler.book_time(start, duration, 1, batch, chunk.tokens)
        if clients.unseen:
            clients.show(self.clock)
        if batch and decodes.ends[0][0] <= decodes.steps:
            scheduler.finish_decodes()
        scheduler.finish_prompts(chunk.completed, self.clock)
        if not rules.seen_late and clients.unseen:
            clients.show(self.clock)
        return True

    def _decode_run(self, until: float) -> None:
        """Steps that are alike, once as many requests were sent back as one of them needs."""
        while not self._decode_or_preempt(until):
            pass

    def _decode_or_preempt(self, until: float) -> bool:
        """Steps that are alike, up to the next departure, arrival, shortage of cache or ``until``; false where a
        request was sent back instead and others are left to decode.
        """
        scheduler, rules, start, decode = self.scheduler, self.rules, self.clock, self.times.decode
        decodes, queue, clients = scheduler.decodes, scheduler.queue, scheduler.clients
        batch, each = decodes.size, rules.tokens_per_step
        run = ends = decodes.ends[0][0] - decodes.steps
        if scheduler.grows:
            room = rules.capacity - scheduler.admitted.used
            if (run + rules.page) * batch * each > room:
                run = min(run, steps_within(scheduler.lanes, room))
                if run < 1:  # who is left decodes in this step: a prompt may start in the next one
                    scheduler.preempt(start)
                    return not decodes.size
        mean = decodes.context / batch
        price = decode(batch, mean + (run - 1) * each / 2)
        comes = queue.inbox or queue.waiting or scheduler.partial is not None
        limit = self._steps_until_look(start, price) if comes else run
        if scheduler.short:
            limit, scheduler.short = 1, False
        if until - start < run * price:
            limit = min(limit, ceil((until - start) / price) or 1)
        if self.reactive and clients.unseen and any(token is not FIRST for _, token in clients.unseen):
            limit = 1
        if limit < run:
            run = limit
            price = decode(batch, mean + (run - 1) * each / 2)
        duration = run * price
        self.clock = start + duration
        self.previous, self.price = self.clock - price, price
        queue.steps_since_look += run
        queue.steps_held_back = queue.steps_held_back + run if queue.waiting else 0
        scheduler.run_decodes(start, run, price)
        scheduler.book_time(start, duration, run, batch, 0)
        decodes.token_time = self.clock
        if clients.unseen:
            clients.show(start + (price if run == 1 else decode(batch, mean)))
        if run == ends:
            scheduler.finish_decodes()
            if clients.unseen and not rules.seen_late:
                clients.show(self.clock)
        return True

    def _steps_until_look(self, start: float, price: float) -> int:
        """Decode steps until the queue may change in a way that matters."""
        rules, scheduler, queue = self.rules, self.scheduler, self.scheduler.queue
        limit, held = 1 << 60, queue.decodes_first(self.decodes.size)
        if held and (queue.waiting or scheduler.partial is not None):
            return held
        free_slot = len(scheduler.admitted.running) < rules.slots
        if queue.waiting:
            if rules.wait_steps:
                limit = max(rules.wait_steps - queue.steps_held_back, 1)
            elif free_slot and (rules.admission == "ratio" or rules.queue == "fair"):
                limit = _RECHECK
            in_order = queue.lines is None and scheduler.admitted.adapters is None
            if not rules.wait_steps and in_order:  # arrivals queue behind the head, which is blocked
                return limit
        if queue.inbox and free_slot and rules.policy != "static":
            ahead = ceil((queue.inbox[0][0] - start) / price)
            ahead = (ahead if ahead > 0 else 0) + 1 if rules.overlapped else ahead if ahead > 1 else 1
            if rules.poll_interval > 1:
                ahead += -(queue.steps_since_look + ahead) % rules.poll_interval
            ahead = max(ahead, held)
            return ahead if ahead < limit else limit
        return limit
