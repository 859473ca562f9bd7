"""One replica of an engine: its queue, its batch, its cache and its clock; the event loop of the simulator.

Time moves from step to step. A run of steps that are alike (the same requests decode, nobody arrives, nobody finishes)
is one event: its time is the number of steps times the price at the run's mean context. What a policy does in a step is
in :meth:`Replica._plan`; docs/serving.md describes each.

The cache is counted in tokens: a request holds what it has written, half a block that its last block leaves empty on
average, and a fixed part for recurrent state and windows.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf

from inferplan.devices.engine import Admission, Policy, Scheduler
from inferplan.serving.prefix_cache import PrefixCache
from inferplan.serving.records import FINISHED, REJECTED, TIMED_OUT, Meter, Records
from inferplan.serving.step_times import Chunk, StepTimes

FIRST, LAST, HANDOFF = 0, 1, 2
_RECHECK = 32
"""Decode steps after which an admission that depends on how far others have written is tried again."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What an engine does with its queue: flags resolved against the defaults of its version."""

    policy: Policy
    slots: int
    """Requests in a batch (``max_num_seqs``)."""
    budget: int
    """Tokens in a step (``max_num_batched_tokens``)."""
    scheduler: Scheduler
    longest: int
    """Prompt and output of a request together, at most (``max_model_len``)."""
    capacity: float
    """Tokens that the cache holds."""
    overhead: float = 0.0
    """Tokens a request takes beyond those it has: half an empty block."""
    windows: tuple[tuple[float, float], ...] = ()
    """Layers of bounded state: (tokens of capacity that a full window takes, its size); size 0 is constant state."""
    growing: bool = True
    """Whether the cache of a request grows with its tokens at all."""
    overlapped: bool = False
    poll_interval: int = 1
    """Decode steps between two looks at the queue of new requests."""
    wait_steps: int = 0
    """Steps for which a prompt is held back while the step is less than ``wait_fill`` full."""
    wait_fill: float = 0.0
    latency: float = 0.0
    front_request: float = 0.0
    front_token: float = 0.0
    timeout: float = inf
    """Seconds after which a client gives up."""
    tokens_per_step: float = 1.0
    """Tokens that a decode step adds to a request: more than one when drafts are accepted."""
    load_token: float = 0.0
    """Seconds to bring one token's cache back from the host."""
    hit_rate: float = 0.0
    """Share of every prompt that is taken as found in the prefix cache, beside what the cache itself finds."""

    @property
    def admission(self) -> Admission:
        return "reserve" if self.policy == "static" else self.scheduler.admission

    @property
    def mixed(self) -> bool:
        """Decodes and prompts share a step."""
        return self.policy in ("vllm", "trtllm")

    def fixed(self, total: float) -> float:
        """Tokens of capacity that a request takes whatever it has written so far; ``total`` are prompt and output."""
        windows = sum(share * (min(total, size) / size if size else 1.0) for share, size in self.windows)
        return self.overhead + windows

    def held(self, total: float) -> float:
        """Tokens of capacity that a request takes at its end."""
        return (total if self.growing else 0.0) + self.fixed(total)


class Replica:
    """One engine of a deployment.

    ``notify(request, time, finished)`` is called when a client sees the end of a request and, with ``handoff``, when a
    prompt is done and its cache can leave (``finished`` is then false). ``reactive``: a notification may bring a new
    request at once, so no run of steps passes one.
    """

    def __init__(
        self,
        prices: StepTimes,
        rules: Rules,
        records: Records,
        notify: Callable[[int, float, bool], None],
        cache: PrefixCache | None = None,
    ) -> None:
        self.prices, self.rules, self.records, self.notify, self.cache = prices, rules, records, notify, cache
        self.handoff = self.reactive = self.pause = False
        self.meter = Meter()
        self.clock = 0.0
        self.previous = 0.0
        """Start of the last step: what had arrived by then is known to an overlapped scheduler."""
        self.front_free = 0.0
        self.inbox: deque[tuple[float, int]] = deque()
        self.waiting: deque[int] = deque()
        self.running = 0
        """Requests admitted and not yet done."""
        self.batch = 0
        """Requests that decode (under a static policy also those that are done before their batch is)."""
        self.context = 0.0
        """Tokens behind all decodes together."""
        self.used = 0.0
        self.remaining = 0.0
        """Output tokens that admitted requests may still write."""
        self.steps = 0
        """Decode steps so far: a request that enters at step s with n steps to go leaves at step s + n."""
        self.leaving: list[tuple[int, int, int]] = []
        """Heap of (decode step, request, its epoch)."""
        self.order: list[tuple[int, int]] = []
        """(request, epoch) in the order of admission; entries of another epoch are stale."""
        self.epoch: dict[int, int] = {}
        self.epochs = 0
        self.entered: dict[int, tuple[int, int, int]] = {}
        """Decoding requests: (decode step at entry, context at entry, output tokens to write from there)."""
        self.partial: int | None = None
        self.done = 0
        """Tokens of the partial prompt that are in the cache."""
        self.whole: dict[int, int] = {}
        """Tokens to have in the cache before decoding, where that is not the prompt (after preemption)."""
        self.left: dict[int, int] = {}
        """Output tokens still to write, where that is not the whole output."""
        self.made: set[int] = set()
        """Requests whose cache another replica has made."""
        self.held: dict[int, list[int]] = {}
        """Prefix blocks that a request uses."""
        self.silent: dict[int, float] = {}
        """When the last token of a preempted request came."""
        self.pending: list[tuple[int, int]] = []
        """Tokens made but not yet seen by a client: (request, one of FIRST, LAST, HANDOFF)."""
        self.since_poll = self.waited = self.ratio_from = 0
        self.loading = 0.0
        self.fresh: list[float] = []
        """When the requests that have decoded nothing yet got their first token."""
        self.decode_end = 0.0
        self.outstanding = 0
        self.queued_tokens = 0

    # --- arrivals ---------------------------------------------------------------------------------------------------

    def submit(self, request: int, time: float) -> None:
        """A request reaches the front end at ``time``; it is refused when it can never run."""
        records, rules = self.records, self.rules
        prompt = records.prompt[request]
        total = prompt + records.output[request]
        reason = self._refusal(prompt, total)
        if reason:
            records.status[request] = REJECTED
            records.refused[reason] = records.refused.get(reason, 0) + 1
            self.notify(request, time, True)
            return
        self.outstanding += 1
        self.queued_tokens += prompt
        start = self.front_free if self.front_free > time else time
        service = rules.front_request + rules.front_token * prompt
        self.front_free = start + service
        if start > time:
            self.meter.front_backlogged += service
        self.inbox.append((self.front_free + rules.latency, request))

    def _refusal(self, prompt: int, total: int) -> str:
        """Why a request can never run; empty when it can."""
        rules = self.rules
        if total > rules.longest:
            return f"longer than max_model_len {rules.longest}"
        if rules.held(total) > rules.capacity:
            return f"more than the cache holds, {int(rules.capacity)} tokens"
        if not rules.scheduler.chunked_prefill and prompt > rules.budget:
            return f"prompt longer than max_num_batched_tokens {rules.budget}, without chunked prefill"
        return ""

    def receive(self, request: int, time: float) -> None:
        """A request whose prompt another replica has computed; its cache is here at ``time``."""
        self.made.add(request)
        self.left[request] = self.records.output[request] - 1
        self.outstanding += 1
        self.queued_tokens += self.records.prompt[request]
        self.inbox.append((time, request))

    # --- the loop ---------------------------------------------------------------------------------------------------

    def advance(self, until: float) -> None:
        """Run every step that starts before ``until``; stop early when a notification sets ``pause``."""
        self.pause = False
        while not self.pause:
            if not (self.batch or self.waiting or self.partial is not None):
                if self.pending:
                    self._show_last()
                    continue
                if not self._wake(until):
                    return
            if self.clock >= until:
                return
            if self.inbox:
                self._look()
            chunk: Chunk | None = None
            entering: list[int] = []
            if self.waiting or self.partial is not None:
                if self.batch and self.rules.mixed:
                    self._make_room()
                chunk, entering = self._plan()
            if chunk is not None:
                self._prompt_step(chunk, entering)
            elif self.batch:
                self._decode_run(until)
            elif self.waiting and not self.running:
                self._refuse(self.waiting.popleft())

    def _wake(self, until: float) -> bool:
        """From idle to the next visible request; false when there is none before ``until``."""
        if not self.inbox:
            return False
        start = max(self.inbox[0][0], self.clock)
        if start >= until:
            return False
        self.clock = self.previous = start
        self.since_poll = self.rules.poll_interval
        self.ratio_from = self.steps
        self.used = self.context = self.remaining = 0.0
        return True

    def _show_last(self) -> None:
        """The batch is empty: an overlapped scheduler learns so from one more step, which it had launched already."""
        if self.rules.overlapped:
            records, requests = self.records, [request for request, _ in self.pending]
            context = sum(records.prompt[request] + records.output[request] for request in requests) / len(requests)
            self.previous = self.clock
            self.clock += self.prices.decode(len(requests), context)
        self._show(self.clock)

    def earliest(self) -> float:
        """A time before which it cannot notify anyone; infinity when it is idle."""
        if self.pending or self.waiting or self.partial is not None:
            return self.clock
        if self.batch:
            steps = self.leaving[0][0] - self.steps
            bound = self.clock + 0.999 * max(steps - 1, 0) * self.prices.decode(self.batch, self.context / self.batch)
        else:
            bound = inf
        return min(bound, max(self.clock, self.inbox[0][0])) if self.inbox else bound

    def _look(self) -> None:
        """Take the requests that have become visible into the queue."""
        rules = self.rules
        if self.batch and self.since_poll < rules.poll_interval:
            return
        seen = self.previous if rules.overlapped else self.clock
        inbox, waiting = self.inbox, self.waiting
        while inbox and inbox[0][0] <= seen:
            waiting.append(inbox.popleft()[1])
        self.since_poll = 0

    # --- what goes into a step --------------------------------------------------------------------------------------

    def _plan(self) -> tuple[Chunk | None, list[int]]:
        """The prompts of the next step and the requests that complete theirs in it; no chunk means a decode step."""
        rules = self.rules
        if rules.policy == "static" and self.batch:
            return None, []
        if self.partial is None and rules.wait_steps and self._held_back():
            return None, []
        if rules.timeout < inf:
            self._drop_expired()
        budget = rules.budget - self.batch * self.prices.width if rules.mixed else rules.budget
        prompts, tokens, pairs = 0, 0, 0.0
        entering: list[int] = []
        if self.partial is not None:
            tokens, pairs = self._continue(budget, entering)
            prompts, budget = 1, budget - tokens
        while budget > 0 and self.waiting and self.partial is None:
            request = self.waiting[0]
            past = self._admit(request, budget, tokens == 0)
            if past < 0:
                break
            if request in self.made:
                self.made.remove(request)
                self._enter(request, self.clock, emitted=False)
                continue
            need = self._whole(request) - past
            new = need if need < budget else budget
            if new < need:
                self.partial, self.done = request, past + new
            else:
                entering.append(request)
            prompts += 1
            tokens += new
            budget -= new
            pairs += new * past + new * (new + 1) / 2
        return (Chunk(prompts, tokens, pairs) if tokens else None), entering

    def _whole(self, request: int) -> int:
        whole = self.whole.get(request)
        return self.records.prompt[request] if whole is None else whole

    def _continue(self, budget: int, entering: list[int]) -> tuple[int, float]:
        """The next piece of the prompt that is being computed: its tokens and query-key pairs."""
        request = self.partial
        assert request is not None
        whole = self._whole(request)
        new = min(whole - self.done, max(budget, 1))
        pairs = new * self.done + new * (new + 1) / 2
        self.done += new
        if self.done == whole:
            entering.append(request)
            self.partial = None
        return new, pairs

    def _held_back(self) -> bool:
        """Whether prompts wait for more of them, to fill the step (TensorRT-LLM's batch wait)."""
        rules = self.rules
        if not self.batch or self.waited >= rules.wait_steps:
            self.waited = 0
            return False
        tokens = self.batch
        for request in self.waiting:
            tokens += self.records.prompt[request]
            if tokens >= rules.wait_fill * rules.budget:
                self.waited = 0
                return False
        return True

    def _admit(self, request: int, budget: int, first: bool) -> int:
        """Admit the first waiting request. Gives the tokens of it that are cached already, or -1 when it has to wait.

        ``first``: no other prompt is in the step.
        """
        rules, records = self.rules, self.records
        if self.running >= rules.slots:
            return self._blocked("slots")
        whole, left = self._whole(request), self.left.get(request, records.output[request])
        hashes = records.hashes[request] if self.cache is not None and records.hashes is not None else ()
        device = host = 0
        block = 1
        if self.cache is not None and hashes and request not in self.made:
            block = self.cache.block
            self.cache.trim((rules.capacity - self.used) / block)
            device, host = self.cache.match(hashes, whole)
        past = (device + host) * block
        made = request in self.made
        if rules.hit_rate and request not in self.whole and not past and not made:
            past = min(int(whole * rules.hit_rate), whole - 1)
        if not (rules.scheduler.chunked_prefill or made) and whole - past > budget and not (first and not self.batch):
            return self._blocked("budget")
        reserve = rules.admission == "reserve"
        total = records.prompt[request] + records.output[request]
        need = rules.fixed(total) + ((total if reserve else whole) if rules.growing else 0.0)
        room = rules.capacity - self.used
        if not reserve:
            room -= self._growth()
        if rules.admission == "ratio":
            room -= self._expected_growth() + min(left, rules.scheduler.longest_growth)
        shared = sum(1 for name in hashes[:device] if self.cache.users[name]) if self.cache and device else 0
        if need - shared * block > room and self.running:
            return self._blocked("cache")
        self.waiting.popleft()
        self.running += 1
        self.queued_tokens -= records.prompt[request]
        self.used += need - shared * block
        self.remaining += left
        self.epochs += 1
        self.epoch[request] = self.epochs
        self.order.append((request, self.epochs))
        if records.admitted[request] != records.admitted[request]:
            records.admitted[request] = self.clock
        if hashes and self.cache is not None:
            self.held[request], _ = self.cache.take(hashes, device)
            self.loading += host * block * rules.load_token
        if past:
            records.cached[request] = records.cached.get(request, 0) + past
        return past

    def _growth(self) -> float:
        """Tokens that one decode step adds to the cache."""
        return self.batch * self.rules.tokens_per_step if self.rules.growing else 0.0

    def _expected_growth(self) -> float:
        """Tokens held back for requests that are decoding: a share of what they may still write, falling with time."""
        first, last, over = self.rules.scheduler.growth_ratio
        ratio = max(first - (first - last) * (self.steps - self.ratio_from) / over, last)
        return ratio * max(self.remaining, 0.0)

    def _blocked(self, reason: str) -> int:
        blocked = self.meter.blocked_by
        blocked[reason] = blocked.get(reason, 0) + 1
        return -1

    # --- steps ------------------------------------------------------------------------------------------------------

    def _prompt_step(self, chunk: Chunk, entering: list[int]) -> None:
        """One step that holds prompts, beside the decodes where the policy mixes them."""
        rules, meter = self.rules, self.meter
        batch = self.batch if rules.mixed else 0
        start = self.clock
        duration = self.prices.mixed(batch, self.context / batch if batch else 0.0, chunk) + self.loading
        self.loading = 0.0
        self.previous, self.clock = start, start + duration
        self.since_poll = rules.poll_interval
        meter.steps += 1
        meter.prompt_steps += 1
        meter.prompt_tokens += chunk.tokens
        self._measure(start, duration, 1, batch, chunk.tokens)
        if batch:
            self._count_decodes(1, batch, start, duration)
        if self.pending:
            self._show(self.clock)
        if batch:
            self._leave()
        for request in entering:
            self._enter(request, self.clock, emitted=True)
        if not rules.overlapped and self.pending:
            self._show(self.clock)

    def _decode_run(self, until: float) -> None:
        """Steps that are alike, up to the next departure, arrival, shortage of cache or ``until``."""
        rules = self.rules
        leaving, epoch = self.leaving, self.epoch
        while epoch.get(leaving[0][1]) != leaving[0][2]:
            heapq.heappop(leaving)
        batch, each = self.batch, rules.tokens_per_step
        run = leaving[0][0] - self.steps
        growth = 0.0 if rules.admission == "reserve" else self._growth()
        if growth:
            room = rules.capacity - self.used
            if run * growth > room:
                run = int(room // growth)
                if run < 1:
                    self._preempt()
                    return
        mean = self.context / batch
        price = self.prices.decode(batch, mean + (run - 1) * each / 2)
        start = self.clock
        limit = self._steps_until_look(start, price) if self.inbox or self.waiting else run
        if until - start < run * price:
            limit = min(limit, ceil((until - start) / price) or 1)
        if self.pending and self.reactive and any(what for _, what in self.pending):
            limit = 1
        if limit < run:
            run = limit
            price = self.prices.decode(batch, mean + (run - 1) * each / 2)
        duration = run * price
        self.clock = start + duration
        self.previous = self.clock - price
        self.since_poll += run
        self.waited = self.waited + run if self.waiting else 0
        self.meter.steps += run
        self._measure(start, duration, run, batch, 0)
        self._count_decodes(run, batch, start, price)
        if self.pending:
            self._show(start + (price if run == 1 else self.prices.decode(batch, mean)))
        self._leave()
        if not rules.overlapped and self.pending:
            self._show(self.clock)

    def _steps_until_look(self, start: float, price: float) -> int:
        """Decode steps until the queue may change in a way that matters."""
        rules = self.rules
        limit = 1 << 60
        if self.waiting:
            if rules.wait_steps:
                limit = max(rules.wait_steps - self.waited, 1)
            elif rules.admission == "ratio" and self.running < rules.slots:
                limit = _RECHECK
            if not rules.wait_steps:
                return limit  # the queue is first come, first served: who arrives now waits behind
        if self.inbox and self.running < rules.slots and (rules.policy != "static"):
            ahead = ceil((self.inbox[0][0] - start) / price)
            ahead = max(ahead, 0) + 1 if rules.overlapped else max(ahead, 1)
            limit = min(limit, max(ahead, rules.poll_interval - self.since_poll))
        return limit

    def _make_room(self) -> None:
        """Preempt until the decodes of the next step have room."""
        if self.rules.admission != "reserve":
            while self.batch and self.running > 1 and self.used + self._growth() > self.rules.capacity:
                self._preempt()

    def _count_decodes(self, run: int, batch: int, start: float, price: float) -> None:
        """Book ``run`` decode steps of ``batch`` requests, ``price`` seconds each, and the gaps between tokens."""
        each, records = self.rules.tokens_per_step, self.records
        tokens = run * batch * each
        self.steps += run
        self.context += tokens
        self.remaining -= tokens
        self.meter.decode_tokens += tokens
        if self.rules.growing and self.rules.admission != "reserve":
            self.used += tokens
        alive = len(self.entered)
        if start > self.decode_end and not self.rules.mixed:  # prompts have had the device to themselves
            for joined in self.fresh:
                records.gaps.append((start - joined + price) / each)
                records.gap_weights.append(each)
            records.gaps.append((start - self.decode_end + price) / each)
            records.gap_weights.append(max(alive - len(self.fresh), 0) * each)
            run -= 1
        self.fresh.clear()
        if run:
            records.gaps.append(price / each)
            records.gap_weights.append(run * alive * each)
        self.decode_end = self.clock

    def _measure(self, start: float, duration: float, run: int, batch: int, tokens: float) -> None:
        meter = self.meter
        meter.busy += duration
        meter.batch_seconds += batch * duration
        share = self.used / self.rules.capacity
        meter.kv_seconds += share * duration
        meter.kv_peak = max(meter.kv_peak, share)
        if self.waiting:
            meter.backlogged += duration
        if meter.timeline is not None:
            meter.timeline.append((start, duration, run, batch, tokens, len(self.waiting), share))

    # --- requests come and go ---------------------------------------------------------------------------------------

    def _enter(self, request: int, time: float, emitted: bool) -> None:
        """A prompt is in the cache: its request starts to decode. ``emitted``: the step made its next token."""
        records = self.records
        whole = self._whole(request)
        left = self.left.pop(request, records.output[request])
        if emitted:
            left -= 1
            self.remaining -= 1
            last = self.silent.pop(request, None)
            if last is not None:
                records.gaps.append(time - last)
                records.gap_weights.append(1.0)
            if self.handoff and left:
                self.left[request] = left
                self.pending.append((request, HANDOFF))
                self.remaining -= left
                self._release(request, whole)
                return
            self.pending.append((request, FIRST if left else LAST))
        if not left:
            self._release(request, whole)
            return
        self.batch += 1
        self.context += whole
        self.entered[request] = (self.steps, whole, left)
        if not self.rules.mixed:
            self.fresh.append(time)
        steps = left if self.rules.tokens_per_step == 1.0 else ceil(left / self.rules.tokens_per_step)
        heapq.heappush(self.leaving, (self.steps + steps, request, self.epoch[request]))

    def _leave(self) -> None:
        """Requests that have written their last token."""
        leaving, steps, epoch = self.leaving, self.steps, self.epoch
        static = self.rules.policy == "static"
        while leaving and leaving[0][0] <= steps:
            _, request, mark = heapq.heappop(leaving)
            if epoch.get(request) != mark:
                continue
            entry, context, left = self.entered.pop(request)
            written = (steps - entry) * self.rules.tokens_per_step
            self.remaining += written - left
            if not static:
                self.batch -= 1
                self.context -= context + written
            self._release(request, context + written)
            self.pending.append((request, LAST))
            if self.waiting:
                self.meter.backlogged_finishes += 1
        if static and not self.entered:
            self.batch, self.context = 0, 0.0

    def _release(self, request: int, tokens: float) -> None:
        """Give back the cache of a request that holds ``tokens``."""
        rules, records = self.rules, self.records
        total = records.prompt[request] + records.output[request]
        if rules.admission == "reserve":
            tokens = total
        held = rules.fixed(total) + (tokens if rules.growing else 0.0)
        blocks = self.held.pop(request, None)
        if blocks is not None and self.cache is not None:
            held -= self.cache.release(blocks) * self.cache.block
        self.used -= held
        self.running -= 1
        del self.epoch[request]
        self.whole.pop(request, None)

    def _preempt(self) -> None:
        """Send the request admitted last back to the head of the queue; it will be computed again (vLLM V1)."""
        while True:
            request, mark = self.order.pop()
            if self.epoch.get(request) == mark:
                break
        self.meter.preemptions += 1
        self.records.preempted[request] = self.records.preempted.get(request, 0) + 1
        self.ratio_from = self.steps
        if request == self.partial:
            self.partial = None
            whole = self._whole(request)
            self.remaining -= self.left.get(request, self.records.output[request])
            self._release(request, whole)
            self.whole[request] = whole
        else:
            entry, context, left = self.entered.pop(request)
            written = (self.steps - entry) * self.rules.tokens_per_step
            self.batch -= 1
            self.context -= context + written
            self.remaining -= left - written
            self._release(request, context + written)
            self.whole[request] = ceil(context + written) + 1
            self.left[request] = max(ceil(left - written), 1)
            self.silent[request] = self.clock
        self.queued_tokens += self.records.prompt[request]
        self.waiting.appendleft(request)

    def _refuse(self, request: int) -> None:
        """A request that does not fit even alone."""
        self.records.status[request] = REJECTED
        self.outstanding -= 1
        self.queued_tokens -= self.records.prompt[request]
        self.notify(request, self.clock, True)

    def _drop_expired(self) -> None:
        """Forget waiting requests whose client has given up."""
        arrival, timeout = self.records.arrival, self.rules.timeout
        while self.waiting and self.clock - arrival[self.waiting[0]] > timeout:
            request = self.waiting.popleft()
            self.records.status[request] = TIMED_OUT
            self.records.finish[request] = arrival[request] + timeout
            self.outstanding -= 1
            self.queued_tokens -= self.records.prompt[request]
            self.notify(request, self.clock, True)

    def _show(self, time: float) -> None:
        """Clients see the pending tokens at ``time``."""
        records = self.records
        pending, self.pending = self.pending, []
        if len(self.order) > 4 * self.running + 1024:
            self.order = [entry for entry in self.order if self.epoch.get(entry[0]) == entry[1]]
        for request, what in pending:
            if records.first[request] != records.first[request]:
                records.first[request] = time
            if what == FIRST:
                continue
            self.outstanding -= 1
            if what == LAST:
                records.finish[request] = time
                late = time - records.arrival[request] > self.rules.timeout
                records.status[request] = TIMED_OUT if late else FINISHED
            self.notify(request, time, what == LAST)
