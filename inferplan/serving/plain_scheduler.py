"""What a scheduler does in the plain case, each in one piece, with the same results as the general code.

Nearly all steps of nearly all runs hold prompts that are admitted whole or computed in pieces, in order, or decode a
batch that fits the cache. A call of Python costs as much as the arithmetic of such an event, so what a scheduler has to
do for it is written out here, for :mod:`inferplan.serving.plain_replica` and :mod:`inferplan.serving.plain_pipeline`.
Whatever else may happen (a shortage of cache or slots, requests sent back) is left to
:mod:`inferplan.serving.scheduler`, which shares all state with this module and says what every line here stands for.
What only the general case reads is not kept up to date: steps since the queue was looked at or prompts were held back,
output still to be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from inferplan.serving.clients import FIRST, HANDOFF, LAST
from inferplan.serving.decode_batch import DecodeBatch
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.step_times import Chunk


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
        and (rules.tokens_per_step == scheduler.width == rules.poll_interval == 1)
        and not (rules.wait_steps or rules.hit_rate or rules.cadence.any)
        and rules.timeout == inf
        and records.hashes is None
        and scheduler.admitted.encoder is None
        and records.before is None
        and scheduler.meter.timeline is None
    )


def plan_prompts(scheduler: Scheduler, now: float) -> Chunk | None:
    """The prompts of the step that begins ``now``: as many as its budget holds, the last of them in part.

    ``None`` where it takes more ado (:meth:`inferplan.serving.scheduler.Scheduler.plan`); then nothing has changed.
    """
    rules, admitted, waiting = scheduler.rules, scheduler.admitted, scheduler.queue.waiting
    if scheduler.progress.output_left or admitted.own:
        return None
    prompt, output, page, capacity = scheduler.records.prompt, scheduler.records.output, rules.page, rules.capacity
    batch, cut, piece, count = scheduler.decodes.size, scheduler.partial, scheduler.computed, len(admitted.running)
    room, tokens, used, pairs, begun = rules.budget - batch, 0, admitted.used, 0.0, 0
    completed: list[int] = []
    slots = min(rules.slots, count + scheduler.lane_slots - batch)
    if cut is not None:
        left, room = prompt[cut] - piece, room if room > 1 else 1
        tokens = left if left < room else room
        pairs = tokens * piece + tokens * (tokens + 1) / 2
        used += -(-(piece + tokens) // page) * page - -(-piece // page) * page
        piece += tokens
        room -= tokens
        if tokens == left:
            completed.append(cut)
            cut = None
    if cut is None and room > 0:
        for request in waiting:
            new = prompt[request]
            begun += 1
            used += -(-new // page) * page + (rules.fixed(new + output[request]) if rules.windows else 0)
            if count + begun > slots or used + (count + begun) * page > capacity:
                return None
            if rules.in_flight and used + (count + begun) * page + rules.unsettled(new) > capacity:
                return None
            if new > room:
                used -= -(-new // page) * page - -(-room // page) * page
                new = piece = room
                cut = request
            else:
                completed.append(request)
            tokens += new
            room -= new
            pairs += new * (new + 1) / 2
            if room <= 0:
                break
    if not tokens or used + (count + begun + 1) * page > capacity:
        return None
    if scheduler.partial is not None:
        scheduler.clients.goes_on(scheduler.partial, scheduler.computed, now)
    scheduler.short, scheduler.partial, scheduler.computed = False, cut, piece
    admitted.used = used
    if begun:
        _begin(scheduler, begun, now)
    if waiting:
        scheduler.meter.block("budget")
    return Chunk(len(completed) + (cut is not None), tokens, pairs, completed, cut)


def _begin(scheduler: Scheduler, count: int, now: float) -> None:
    """The first requests of the queue run."""
    queue, running, records = scheduler.queue, scheduler.admitted.running, scheduler.records
    waiting, prompt, begun = queue.waiting, records.prompt, records.admitted
    for _ in range(count):
        request = waiting.popleft()
        queue.queued_tokens -= prompt[request]
        running[request] = None
        if begun[request] != begun[request]:
            begun[request] = now


def finish_prompts(scheduler: Scheduler, completed: Sequence[int], time: float) -> None:
    """Prompts that :func:`plan_prompts` planned are in the cache at ``time``, and each has made its first token."""
    decodes, records, page = scheduler.decodes, scheduler.records, scheduler.rules.page
    unseen = scheduler.clients.unseen
    steps, phases, ends, entered = decodes.steps, decodes.phases, decodes.ends, decodes.requests
    prompt, output, handoff = records.prompt, records.output, scheduler.handoff
    for request in completed:
        tokens, left = prompt[request], output[request] - 1
        if left and not handoff:
            unseen.append((request, FIRST))
            decodes.size += 1
            decodes.context += tokens
            phases[(tokens - steps) % page] += 1
            entered[request] = (steps, tokens, left)
            heappush(ends, (steps + left, request))
            if decodes.interleaved:
                decodes.joined[request] = time
        else:
            unseen.append((request, HANDOFF if left else LAST))
            scheduler.admitted.release(request, tokens)


def finish_decodes(scheduler: Scheduler) -> None:
    """Requests that have written their last token leave, and give back their blocks."""
    rules, admitted, decodes = scheduler.rules, scheduler.admitted, scheduler.decodes
    if scheduler.progress.to_compute or (admitted.cache is not None and admitted.cache.idle):
        scheduler.finish_decodes()
        return
    page, unseen, records = rules.page, scheduler.clients.unseen, scheduler.records
    steps, ends, phases, requests = decodes.steps, decodes.ends, decodes.phases, decodes.requests
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


def make_tokens(scheduler: Scheduler, decodes: DecodeBatch, time: float) -> None:
    """Each request of an interleaved batch has made a token at ``time``, later than the one before."""
    records, admitted, page = scheduler.records, scheduler.admitted, scheduler.rules.page
    size, steps, gaps, weights = decodes.size, decodes.steps, records.gaps, records.gap_weights
    others = size
    if decodes.joined:
        for joined in decodes.joined.values():
            gaps.append(time - joined)
            weights.append(1.0)
        others -= len(decodes.joined)
        decodes.joined.clear()
    gaps.append(time - decodes.token_time)
    weights.append(others)
    decodes.token_time = time
    taken = decodes.phases[-steps % page] * page
    decodes.steps = steps + 1
    decodes.context += size
    admitted.used += taken
    admitted.grown += taken
    scheduler.meter.decode_tokens += size


def make_runs(scheduler: Scheduler, decodes: DecodeBatch, since: float, steps: int, time: float) -> None:
    """Each request of an interleaved batch has made ``steps`` tokens from its last one at ``since`` up to ``time``."""
    records, admitted, made = scheduler.records, scheduler.admitted, steps * decodes.size
    records.gaps.append((time - since) / steps)
    records.gap_weights.append(made)
    decodes.token_time = time
    taken = decodes.taken(steps)
    decodes.steps += steps
    decodes.context += made
    admitted.used += taken
    admitted.grown += taken
    scheduler.meter.decode_tokens += made
