"""A plain replica: the events of the usual case, each in one function, with the same results as the general ones.

Nearly all steps of nearly all runs are of two kinds: prompts that are admitted whole or computed in pieces, in order,
and decode steps of a batch that fits the cache. Both are written out here in one piece each, because a call of Python
costs as much as the arithmetic of an event. Whatever else may happen (a shortage of cache or slots, requests sent
back) is left to :mod:`inferplan.serving.replica` and :mod:`inferplan.serving.scheduler`, which share all state with
this module and say what every line here stands for. ``tests/serving/test_plain_replica.py`` holds both to the same last
bit.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import ceil, inf

from inferplan.serving.clients import FIRST, HANDOFF, LAST
from inferplan.serving.decode_batch import steps_within
from inferplan.serving.replica import Replica
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.step_times import StepTimes


def is_plain(scheduler: Scheduler) -> bool:
    """Whether an engine does nothing but admit prompts in order, mix them with decodes, and count blocks.

    Not so: what wants a hook in every step (polling, waiting for more prompts, client timeouts, a timeline), steps that
    make more than a token, thoughts, named blocks to look for, and cache not counted in blocks of what was written, but
    for a part that a request keeps from its start to its end.
    """
    rules, records = scheduler.rules, scheduler.records
    return (
        scheduler.mixed
        and scheduler.queue.lines is None
        and rules.admission == "prompt"
        and rules.scheduler.chunked_prefill
        and (rules.growing and not rules.overhead)
        and (rules.tokens_per_step == scheduler.width == rules.poll_interval == len(scheduler.lanes) == 1)
        and not (rules.wait_steps or rules.hit_rate or rules.cadence.any)
        and rules.timeout == inf
        and records.hashes is None
        and records.encoder is None
        and records.before is None
        and scheduler.meter.timeline is None
    )


def replica_of(times: StepTimes, scheduler: Scheduler) -> Replica:
    """The replica of an engine, a plain one where it can be."""
    return (PlainReplica if times.simple and is_plain(scheduler) else Replica)(times, scheduler)


class PlainReplica(Replica):
    """A replica that looks for the plain case first. What only the general case reads is not kept up to date: steps
    since the queue was looked at or prompts were held back, output still to be written, when tokens came.
    """

    times: StepTimes

    def _prompt_step(self) -> bool:
        """A step with prompts that wait, as many as its budget holds and the last of them in part, where it takes no
        more ado.
        """
        scheduler, rules, waiting = self.scheduler, self.rules, self.waiting
        admitted, decodes, prompt, page = scheduler.admitted, self.decodes, scheduler.records.prompt, rules.page
        if scheduler.progress.output_left or admitted.own:
            return super()._prompt_step()
        batch, cut, piece, count = decodes.size, scheduler.partial, scheduler.computed, len(admitted.running)
        room, tokens, used, pairs, begun = rules.budget - batch, 0, admitted.used, 0.0, 0
        requests: list[int] = []
        bounded, capacity, output = bool(rules.windows), rules.capacity, scheduler.records.output
        if cut is not None:
            left, room = prompt[cut] - piece, room if room > 1 else 1
            tokens = left if left < room else room
            pairs = tokens * piece + tokens * (tokens + 1) / 2
            used += -(-(piece + tokens) // page) * page - -(-piece // page) * page
            piece += tokens
            room -= tokens
            if tokens == left:
                requests.append(cut)
                cut = None
        if cut is None and room > 0:
            for request in waiting:
                new = prompt[request]
                begun += 1
                used += -(-new // page) * page + (rules.fixed(new + output[request]) if bounded else 0)
                if count + begun > rules.slots or used + (count + begun) * page > capacity:
                    return super()._prompt_step()
                if rules.in_flight and used + (count + begun) * page + rules.unsettled(new) > capacity:
                    return super()._prompt_step()
                if new > room:
                    used -= -(-new // page) * page - -(-room // page) * page
                    new = piece = room
                    cut = request
                else:
                    requests.append(request)
                tokens += new
                room -= new
                pairs += new * (new + 1) / 2
                if room <= 0:
                    break
        if not tokens or used + (count + begun + 1) * page > capacity:
            return super()._prompt_step()
        if scheduler.partial is not None:
            scheduler.clients.goes_on(scheduler.partial, scheduler.computed, self.clock)
        scheduler.short, scheduler.partial, scheduler.computed = False, cut, piece
        if begun:
            self._begin(begun)
        prompts, context = len(requests) + (cut is not None), decodes.context / batch if batch else 0.0
        duration = self.times.with_prompts(batch, context, prompts, tokens, pairs)
        self.previous = self.clock
        self.clock += duration
        admitted.used = used
        self._meter_prompts(batch, tokens, duration)
        if requests or scheduler.clients.unseen or (batch and decodes.ends[0][0] <= decodes.steps):
            self._after_prompts(requests)
        return True

    def _begin(self, count: int) -> None:
        """The first requests of the queue run."""
        waiting, queue, running = self.waiting, self.scheduler.queue, self.scheduler.admitted.running
        prompt, begun, now = self.scheduler.records.prompt, self.scheduler.records.admitted, self.clock
        for _ in range(count):
            request = waiting.popleft()
            queue.queued_tokens -= prompt[request]
            running[request] = None
            if begun[request] != begun[request]:
                begun[request] = now

    def _meter_prompts(self, batch: int, tokens: int, duration: float) -> None:
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
            meter.block("budget")
            meter.wait("budget", len(waiting) * duration)

    def _after_prompts(self, requests: list[int]) -> None:
        """Their prompts are in the cache, and each has made its first token; requests that decoded may be done."""
        scheduler, clock = self.scheduler, self.clock
        decodes, clients, records = scheduler.decodes, scheduler.clients, scheduler.records
        steps, phases, ends, page = decodes.steps, decodes.phases, decodes.ends, self.rules.page
        if clients.unseen:
            clients.show(clock)
        if ends and ends[0][0] <= steps:
            self._finish()
        unseen, prompt, output, entered = clients.unseen, records.prompt, records.output, decodes.requests
        handoff = scheduler.handoff
        for request in requests:
            tokens, left = prompt[request], output[request] - 1
            if left and not handoff:
                unseen.append((request, FIRST))
                decodes.size += 1
                decodes.context += tokens
                phases[(tokens - steps) % page] += 1
                entered[request] = (steps, tokens, left)
                heappush(ends, (steps + left, request))
            else:
                unseen.append((request, HANDOFF if left else LAST))
                scheduler.admitted.release(request, tokens)
        if not self.rules.seen_late:
            clients.show(clock)

    def _decode_run(self, until: float) -> None:
        """Runs of steps that are alike, until there may be something to plan."""
        scheduler, rules, times = self.scheduler, self.rules, self.times
        decodes, clients, inbox, waiting = self.decodes, self.clients, self.inbox, self.waiting
        admitted, running = scheduler.admitted, scheduler.admitted.running
        capacity, page, overlapped, lines_of = rules.capacity, rules.page, rules.overlapped, times.cache
        while True:
            batch, start = decodes.size, self.clock
            run = decodes.ends[0][0] - decodes.steps
            if (run + page) * batch > capacity - admitted.used:
                run = min(run, steps_within(scheduler.lanes, capacity - admitted.used))
            if run < 1 or scheduler.short:
                super()._decode_run(until)
                return
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
                self._finish()
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

    def _finish(self) -> None:
        """Requests that have written their last token leave, and give back their blocks."""
        scheduler, page = self.scheduler, self.rules.page
        decodes, admitted, unseen = scheduler.decodes, scheduler.admitted, scheduler.clients.unseen
        if scheduler.progress.to_compute or (admitted.cache is not None and admitted.cache.idle):
            scheduler.finish_decodes()
            return
        steps, ends, phases, requests = decodes.steps, decodes.ends, decodes.phases, decodes.requests
        records, rules = scheduler.records, self.rules
        while ends and ends[0][0] <= steps:
            request = heappop(ends)[1]
            entry, context, _ = requests.pop(request)
            held = context + steps - entry
            decodes.size -= 1
            decodes.context -= held
            phases[int(context - entry) % page] -= 1
            held = -(-held // page) * page
            if rules.windows:
                held += rules.fixed(records.prompt[request] + records.output[request])
            admitted.used -= held
            del admitted.running[request]
            unseen.append((request, LAST))
