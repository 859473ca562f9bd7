"""A plain replica: the events of the usual case in one loop, with the same results as the general code.

They are steps with prompts that are admitted in order, whole or in pieces, and runs of decode steps of a batch that
fits the cache. What such events read and write are local variables of the loop: an attribute costs Python as much as
the arithmetic, and a call as much as ten of them. Whatever else may happen is left to
:mod:`inferplan.serving.replica`, which shares all state with this module between two events and says what every line
here stands for. ``tests/serving/test_plain_replica.py`` holds both to the same last bit.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import ceil
from typing import Final

from inferplan.serving.clients import FIRST, HANDOFF, LAST, Token
from inferplan.serving.decode_batch import steps_within
from inferplan.serving.plain_scheduler import is_plain
from inferplan.serving.records import FINISHED
from inferplan.serving.replica import Replica
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.step_times import StepTimes
from inferplan.work.step import WIDE

NATIVE: type[Plain] | None = None
"""The loop below in C, where that is compiled."""
try:
    from inferplan.serving.plain_native import Plain

    NATIVE = Plain
except ImportError:
    pass

_QUIET: Final = 0
_PROMPTS: Final = 1
_DECODES: Final = 2
_EMPTY: Final = 3
"""What is left to do: nothing before the time that was asked for; prompts to plan, or steps that only decode, that take
more ado; nothing can be computed, and somebody waits."""


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
        self.native = None if NATIVE is None else NATIVE(self)

    def advance(self, until: float) -> None:
        self.pause = planned = False
        if self.native is not None and self.clients.held is None:
            self.native.advance(until)
            return
        while not self.pause:
            if self.clients.held is not None:  # others slow its steps
                if not self.step(until):
                    return
                continue
            left = _events(self, until, planned)
            if left == _QUIET:
                return
            planned = self.rest(left, until)

    def rest(self, left: int, until: float) -> bool:
        """What :func:`_events` has left to do; whether the step that comes next is known to hold no prompt."""
        if left == _PROMPTS:
            return not self._prompt_step()
        if left == _DECODES:
            return not self._decode_or_preempt(until)
        if self.clients.unseen:
            self._show_last()
        elif self.waiting and not self.scheduler.admitted.running:
            self.clients.refuse_first(self.clock)
        return False


def _events(replica: PlainReplica, until: float, planned: bool) -> int:
    """All plain events that begin before ``until``, up to a pause; gives what is left to do then. planned: no
    prompt can be computed in the next step.
    """
    scheduler, rules, times, records = replica.scheduler, replica.rules, replica.tables, replica.scheduler.records
    admitted, decodes, clients, meter = scheduler.admitted, scheduler.decodes, scheduler.clients, scheduler.meter
    queue, progress, inbox, waiting = scheduler.queue, scheduler.progress, replica.inbox, replica.waiting
    prompt, output, begun, first = records.prompt, records.output, records.admitted, records.first
    finish, status, gaps, weights = records.finish, records.status, records.gaps, records.gap_weights
    running, ends, phases, entered = admitted.running, decodes.ends, decodes.phases, decodes.requests
    capacity, page, slots, windows = rules.capacity, rules.page, rules.slots, rules.windows
    overlapped, late, handoff, notify = rules.overlapped, rules.seen_late, scheduler.handoff, clients.notify
    clock, previous, size, context, steps = (
        replica.clock,
        replica.previous,
        decodes.size,
        decodes.context,
        decodes.steps,
    )
    used, short, piece = admitted.used, scheduler.short, scheduler.computed
    cut = -1 if scheduler.partial is None else scheduler.partial
    all_steps, prompt_steps, busy, computed = meter.steps, meter.prompt_steps, meter.busy, meter.prompt_tokens
    decoded, batch_seconds, kv_seconds = meter.decode_tokens, meter.batch_seconds, meter.kv_seconds
    kv_peak, largest = meter.kv_peak, meter.largest_step
    host, host_sequence, alike, known = times.host, times.host_sequence, times.prompt_share == 1.0, times.cache.get
    narrow, wide, budget, in_flight = times.narrow[0], times.wide[0], rules.budget, rules.in_flight
    elsewhere = bool(progress.output_left or admitted.own)
    gap, weigh = gaps.append, weights.append
    low, high, at = times.segment
    fresh: list[int] = []  # requests whose first token nobody has seen, and other tokens that nobody has
    others: list[tuple[int, Token]] = []
    for request, token in clients.unseen:
        if token is FIRST:
            fresh.append(request)
        else:
            others.append((request, token))
    early = bool(clients.unseen) and not late  # the next step shows what a prompt elsewhere has made
    left = _QUIET
    while not replica.pause:
        prompts = 0
        completed: list[int] = []
        if planned:
            planned = False
        else:
            if size or waiting or cut >= 0 or fresh or others:
                if clock >= until:
                    break
            elif not inbox or inbox[0][0] >= until or clock >= until:
                break
            else:
                if inbox[0][0] > clock:  # noqa: PLR1730
                    clock = inbox[0][0]
                previous, used, context = clock, 0.0, 0.0
            if inbox and inbox[0][0] <= clock:
                seen = previous if overlapped else clock
                while inbox and inbox[0][0] <= seen:
                    waiting.append(inbox.popleft()[1])
            if waiting or cut >= 0:
                if elsewhere:
                    left = _PROMPTS
                    break
                # how many prompts, and how much of the last one: plan_prompts of plain_scheduler
                going, reached, taken, tokens, pairs, starts = cut, piece, used, 0, 0.0, 0
                count, room = len(running), budget - size
                if going >= 0:
                    remains, room = prompt[going] - reached, room if room > 1 else 1
                    tokens = remains if remains < room else room
                    pairs = tokens * reached + tokens * (tokens + 1) / 2
                    taken += -(-(reached + tokens) // page) * page - -(-reached // page) * page
                    reached += tokens
                    room -= tokens
                    if tokens == remains:
                        completed.append(going)
                        going = -1
                fits = True
                if going < 0 and room > 0:
                    for request in waiting:
                        new = prompt[request]
                        starts += 1
                        taken += -(-new // page) * page + (rules.fixed(new + output[request]) if windows else 0)
                        if count + starts > slots or taken + (count + starts) * page > capacity:
                            fits = False
                            break
                        if in_flight and taken + (count + starts) * page + rules.unsettled(new) > capacity:
                            fits = False
                            break
                        if new > room:
                            taken -= -(-new // page) * page - -(-room // page) * page
                            new = reached = room
                            going = request
                        else:
                            completed.append(request)
                        tokens += new
                        room -= new
                        pairs += new * (new + 1) / 2
                        if room <= 0:
                            break
                if not fits or not tokens or taken + (count + starts + 1) * page > capacity:
                    left = _PROMPTS
                    break
                if cut >= 0:
                    clients.goes_on(cut, piece, clock)
                short, cut, piece, used = False, going, reached, taken
                for _ in range(starts):
                    request = waiting.popleft()
                    queue.queued_tokens -= prompt[request]
                    running[request] = None
                    if begun[request] != begun[request]:
                        begun[request] = clock
                if waiting:
                    meter.block("budget")
                prompts = len(completed) + (cut >= 0)
        if prompts:
            # the price: with_prompts of step_times
            mean, row, last = context / size if size else 0.0, size + tokens, size + prompts
            table = wide if tokens > WIDE * prompts else narrow
            if alike and row < len(table.shared) - 1 and last < len(table.head):
                seconds = table.layers + table.shared[row] + table.head[last]
                if prompts == 1 and pairs + pairs == tokens * (tokens + 1):
                    seconds += table.alone.get(tokens) or times._alone(table, tokens)
                else:
                    seconds += times._prompts(table, prompts, tokens, pairs)
                if size:
                    lines = table.segments.get(size) or times._segment_lines(table, size)
                    if not low <= mean < high:
                        at = times.line_at(mean)
                        low, high, _ = times.segment
                    base, slope = lines[at]
                    seconds += base + slope * mean
                else:
                    seconds += table.launch[tokens > WIDE * prompts]
                duration = host + host_sequence * last + seconds
                floor = (times.floors if row > times.graph_tokens else times.graph_floors)[0]
                if floor:
                    duration = (duration**4 + floor**4) ** 0.25
            else:
                duration = times.with_prompts(size, mean, prompts, tokens, pairs)
            previous, clock = clock, clock + duration
            shown = clock
            prompt_steps += 1
            computed += tokens
            if row > largest:
                largest = float(row)
            if size:
                used += phases[-steps % page] * page
                steps += 1
                context += size
                gap(duration)
                weigh(size)
                decoded += size
                batch_seconds += size * duration
            share = used / capacity
            all_steps += 1
            busy += duration
            kv_seconds += share * duration
            if share > kv_peak:  # noqa: PLR1730
                kv_peak = share
            if waiting:
                meter.wait("budget", len(waiting) * duration)
        elif not size:
            left = _EMPTY
            break
        else:
            # a run of steps: _decode_or_preempt of replica
            run = ends[0][0] - steps
            if (run + page) * size > capacity - used:
                decodes.size, decodes.steps = size, steps
                run = min(run, steps_within(scheduler.lanes, capacity - used))
            if run < 1 or short or early:
                left = _DECODES
                break
            mean, lines = context / size, known(size) or times.decode_lines(size)
            middle = mean + (run - 1) / 2
            if not low <= middle < high:
                at = times.line_at(middle)
                low, high, _ = times.segment
            base, slope = lines[at]
            price = base + slope * middle
            limit = run
            if inbox and not waiting and len(running) < slots:
                limit = ceil((inbox[0][0] - clock) / price)
                limit = (limit if limit > 0 else 0) + 1 if overlapped else limit if limit > 1 else 1
            if until - clock < run * price:
                limit = min(limit, ceil((until - clock) / price) or 1)
            if others and replica.reactive:
                limit = 1
            if limit < run:
                run = limit
                middle = mean + (run - 1) / 2
                if not low <= middle < high:
                    at = times.line_at(middle)
                    low, high, _ = times.segment
                base, slope = lines[at]
                price = base + slope * middle
            duration = run * price
            shown = clock
            clock += duration
            previous = clock - price
            made = run * size
            gap(price)
            weigh(made)
            cycles, rest = divmod(run, page)
            blocks, until_next = cycles * size, -steps % page + 1
            if rest > until_next:
                blocks += sum(phases[:until_next]) + sum(phases[until_next - rest :])
            elif rest:
                blocks += sum(phases[until_next - rest : until_next])
            steps += run
            context += made
            used += blocks * page
            share = used / capacity
            all_steps += run
            busy += duration
            decoded += made
            batch_seconds += size * duration
            grown = blocks * page / capacity
            kv_seconds += (share - grown * (run - 1) / (2 * run) if run > 1 else share) * duration
            if share > kv_peak:  # noqa: PLR1730
                kv_peak = share
            if waiting:
                meter.wait(meter.blocking, len(waiting) * duration)
            if not late:
                shown = clock
            elif fresh or others:
                if run > 1:
                    if not low <= mean < high:
                        at = times.line_at(mean)
                        low, high, _ = times.segment
                    base, slope = lines[at]
                    price = base + slope * mean
                shown += price
        # what was made: finish_decodes and finish_prompts of plain_scheduler, and who sees it: show of clients
        first_seen, others_seen = fresh, others
        if late:
            fresh, others = [], []
        if ends and ends[0][0] <= steps:
            if progress.to_compute or (admitted.cache is not None and admitted.cache.idle):
                decodes.size, decodes.context, decodes.steps, admitted.used = size, context, steps, used
                clients.unseen = []
                scheduler.finish_decodes()
                others += clients.unseen
                size, context, used = decodes.size, decodes.context, admitted.used
            while ends and ends[0][0] <= steps:
                request = heappop(ends)[1]
                entry, held, _ = entered.pop(request)
                phases[int(held - entry) % page] -= 1
                held += steps - entry
                size -= 1
                context -= held
                held = -(-held // page) * page
                if windows:
                    held += rules.fixed(prompt[request] + output[request])
                used -= held
                del running[request]
                others.append((request, LAST))
        for request in completed:
            tokens, remains = prompt[request], output[request] - 1
            if remains and not handoff:
                fresh.append(request)
                size += 1
                context += tokens
                phases[(tokens - steps) % page] += 1
                entered[request] = (steps, tokens, remains)
                heappush(ends, (steps + remains, request))
            else:
                others.append((request, HANDOFF if remains else LAST))
                admitted.used = used
                admitted.release(request, tokens)
                used = admitted.used
        for request in first_seen:
            if first[request] != first[request]:
                first[request] = shown
        for request, token in others_seen:
            if first[request] != first[request] and (clients.answers or token is not HANDOFF):
                first[request] = shown
            if token is LAST:
                finish[request] = shown
                status[request] = FINISHED
            notify(request, shown, token is LAST)
        if not late:
            fresh, others, early = [], [], False
    replica.clock, replica.previous = clock, previous
    decodes.size, decodes.context, decodes.steps, admitted.used = size, context, steps, used
    scheduler.short, scheduler.partial, scheduler.computed = short, None if cut < 0 else cut, piece
    meter.steps, meter.prompt_steps, meter.busy, meter.prompt_tokens = all_steps, prompt_steps, busy, computed
    meter.decode_tokens, meter.batch_seconds, meter.kv_seconds = decoded, batch_seconds, kv_seconds
    meter.kv_peak, meter.largest_step = kv_peak, largest
    clients.unseen = [*others, *((request, FIRST) for request in fresh)]
    return left
