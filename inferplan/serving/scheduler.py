"""The scheduler of one engine: which prompts go into a step, which requests decode in it, who is sent back.

It knows no durations: an event loop (:mod:`inferplan.serving.replica`) asks it for the next step, prices the step and
tells it when the step is over. docs/serving.md describes what each policy does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, inf

from inferplan.serving.admission import Admitted, Progress, Rules
from inferplan.serving.clients import FIRST, HANDOFF, LAST, Clients
from inferplan.serving.decode_batch import DecodeBatch
from inferplan.serving.prefix_cache import PrefixCache
from inferplan.serving.records import Meter, Records
from inferplan.serving.request_queue import RequestQueue
from inferplan.serving.step_times import Chunk
from inferplan.serving.waiting import to_send_back


class Scheduler:
    """One engine's queue, the requests that it runs and their cache.

    ``width``: tokens that a decoding request takes of a step. ``lanes``: batches that may be in flight at once, each
    with requests of its own (one for each pipeline stage); queue, slots and cache are shared.
    ``notify(request, time, finished)`` is called when a client sees the end of a request and, with ``handoff``, when a
    prompt is done and its cache can leave (``finished`` is then false).
    """

    def __init__(
        self,
        rules: Rules,
        records: Records,
        notify: Callable[[int, float, bool], None],
        cache: PrefixCache | None = None,
        width: int = 1,
        lanes: int = 1,
    ) -> None:
        self.rules, self.records, self.cache, self.width = rules, records, cache, width
        self.handoff, self.mixed = False, rules.mixed
        self.grows = rules.growing and rules.admission != "reserve"
        """Whether decode steps take cache that was not reserved at admission."""
        self.meter = Meter()
        self.queue = RequestQueue(rules, records, self.meter)
        self.clients = Clients(rules, records, self.queue, notify)
        self.progress = Progress(records)
        self.admitted = Admitted(rules, records, self.progress, cache)
        static, interleaved = rules.policy == "static", not rules.mixed
        self.lanes = [DecodeBatch(rules.tokens_per_step, static, interleaved, rules.page) for _ in range(lanes)]
        self.decodes = self.lanes[0]
        """The lane whose turn it is; its requests are not in flight."""
        self.lane_slots = max(rules.slots // lanes, 1) if rules.batching.lanes_share_slots else rules.slots
        """Requests that may decode in one lane: SGLang gives each an equal share of the slots."""
        self.lanes_to_fill = 0
        """Lanes that a static batch which is being formed has still to be spread over."""
        self.partial: int | None = None
        """The request whose prompt is being computed in several steps."""
        self.computed = 0
        """Tokens of that prompt that are in the cache."""
        self.short = self.closed = False
        """Nothing new is admitted to this step: a request was sent back for want of cache; other ranks have none."""
        self.ratio_reset = 0
        """Decode step at which the reserved share of remaining outputs was last reset (admission by ``ratio``)."""

    def submit(self, request: int, time: float) -> None:
        """A request reaches the front end at ``time``; it is refused when it can never run."""
        prompt = self.records.prompt[request]
        if reason := self.rules.refusal(prompt, prompt + self.records.output[request]):
            self.clients.refuse(request, time, reason)
        else:
            self.queue.submit(request, time)

    def receive(self, request: int, time: float) -> None:
        """A request whose prompt another replica has computed; its cache is here at ``time``."""
        self.progress.comes_computed(request)
        self.queue.receive(request, time)

    def plan(self, now: float) -> Chunk | None:
        """The prompts of the step that begins ``now``; none means that the step only decodes."""
        rules, waiting, decodes, progress = self.rules, self.queue.waiting, self.decodes, self.progress
        collecting = rules.policy == "static" and not self._may_form_batch()
        if collecting or (self.partial is None and rules.wait_steps and self.queue.hold_back(decodes.size)):
            self.meter.block("batch")
            return None
        if rules.timeout < inf:
            self.clients.drop_expired(now)
        self.short = self.mixed and decodes.size * decodes.block > self.free and self.make_room(now)
        budget = rules.budget - decodes.size * self.width if self.mixed else rules.budget
        prompts, tokens, pairs = 0, 0, 0.0
        completed, skipped = list[int](), list[int]()
        places, adapters = self.lane_slots - decodes.size, self.admitted.adapters
        if self.partial is not None:
            tokens, pairs = self._continue(max(budget, 1), completed, now)
            prompts, budget = 1, budget - tokens
        while budget > 0 and waiting and self.partial is None and not self.short and not self.closed:
            if not places:
                self.meter.block("slots")
                break
            if adapters is not None and not adapters.seek(waiting, skipped):
                break
            request = waiting[0]
            past = self._admit(request, now, budget, not tokens and not decodes.size)
            if past < 0:
                break
            places -= 1
            if request in progress.computed_elsewhere:
                progress.computed_elsewhere.remove(request)
                self.clients.begin(request, now)
                self._decode(request, progress.output_left.pop(request), now)
                continue
            need = progress.compute(request) - past
            new = need if need < budget else budget
            if new < need:
                self.partial, self.computed = request, past + new
            else:
                completed.append(request)
            prompts += 1
            tokens += new
            budget -= new
            pairs += new * past + new * (new + 1) / 2
        for request in reversed(skipped):
            waiting.appendleft(request)
        self.queue.leave(full=budget <= 0 or self.partial is not None, short=self.short)
        return Chunk(prompts, tokens, pairs, completed, self.partial) if tokens else None

    def _may_form_batch(self) -> bool:
        """Static batching: whether the lane may take its share of a new batch, which starts when the last is done."""
        if len(self.lanes) == 1:
            return not self.decodes.size
        if not self.admitted.running:
            self.lanes_to_fill = len(self.lanes)
            self.lane_slots = ceil(min(len(self.queue.waiting), self.rules.slots) / len(self.lanes))
        if not self.lanes_to_fill or self.decodes.size:
            return False
        self.lanes_to_fill -= 1
        return True

    def _continue(self, budget: int, completed: list[int], now: float) -> tuple[int, float]:
        """The next piece of the partial prompt: tokens and query-key pairs; none when it is preempted for its room."""
        request = self.partial
        assert request is not None
        self.clients.goes_on(request, self.computed, now)
        self.admitted.move(request)
        whole = self.progress.compute(request)
        new = min(whole - self.computed, budget)
        step = self.decodes.taken(1) if self.grows else 0.0
        if not self.admitted.extend(request, self.computed, self.computed + new, self.free - step):
            self.preempt(now)
            self.short = True
            return 0, 0.0
        before, self.computed = self.computed, self.computed + new
        if self.computed == whole:
            completed.append(request)
            self.partial = None
        return new, new * before + new * (new + 1) / 2

    def _admit(self, request: int, now: float, budget: int, empty: bool) -> int:
        """Admit the head of the queue: the tokens of it that are cached already, or -1 when it has to wait."""
        admitted_at = self.records.admitted
        found = self.admitted.admit(request, budget, empty, self.growth, self.decode_steps() - self.ratio_reset)
        if isinstance(found, str):
            self.meter.block(found)
            return -1
        self.queue.take()
        if admitted_at[request] != admitted_at[request]:
            admitted_at[request] = now
            self.queue.service.admit(request, self.records.prompt[request])
            if self.admitted.encoder is not None:
                self.admitted.host_loads += self.admitted.encoder[request] * (1.0 - self.rules.hit_rate)
        return found

    def growth(self) -> float:
        """Tokens that a decode step of every lane adds to what the cache has promised already."""
        kept = self.grows and not self.rules.leaves_none
        return sum([lane.taken(1) for lane in self.lanes]) if kept else 0.0

    @property
    def free(self) -> float:
        """Tokens of the cache that no request holds."""
        return self.rules.capacity - self.admitted.used

    def decode_steps(self) -> int:
        """Steps that lanes have decoded in so far."""
        return self.decodes.steps if len(self.lanes) == 1 else sum(lane.steps for lane in self.lanes)

    def make_room(self, now: float) -> bool:
        """Preempt until the next step of the lane has room; whether that was needed."""
        preempted, most = False, self.decodes.size * self.decodes.block
        while self.grows and most > self.free < self.decodes.taken(1) and len(self.admitted.running) > 1:
            self.preempt(now)
            preempted = True
        return preempted

    def preempt(self, now: float) -> None:
        """Send a request back to the queue; it will be computed again. Those in a batch in flight stay."""
        request = to_send_back(self.admitted.running, self.decodes, self.partial, self.rules.queue, self.records)
        self.meter.preemptions += 1
        self.records.preempted[request] = self.records.preempted.get(request, 0) + 1
        self.ratio_reset = self.decode_steps()
        if request == self.partial:
            self.partial = None
            tokens = float(self.computed)
            left = float(self.progress.output(request))
        else:
            tokens, left = self.decodes.remove(request)
            self.queue.service.decode(request, self.decodes, -1)
            self.progress.interrupt(request, tokens, left, now)
        self.admitted.remaining -= left
        self.admitted.release(request, tokens, again=True)
        self.queue.put_back(request)

    def book_time(self, start: float, duration: float, steps: int, decodes: int, prompt_tokens: float) -> None:
        """Meter ``steps`` steps of ``decodes`` requests from ``start`` on, when all that they write is in the cache."""
        admitted, capacity = self.admitted, self.rules.capacity
        now = decodes, prompt_tokens, len(self.queue.waiting), admitted.used / capacity
        self.meter.book(start, duration, steps, now, admitted.grown / capacity)
        admitted.grown = 0.0

    def run_decodes(self, start: float, steps: int, price: float) -> None:
        """The batch decodes for ``steps`` steps of ``price`` seconds each, from ``start`` on."""
        admitted, decodes = self.admitted, self.decodes
        tokens = steps * decodes.size * decodes.tokens_per_step
        taken = decodes.make(start, steps, price, self.records.gaps, self.records.gap_weights)
        if self.grows:
            admitted.used += taken
            admitted.grown += taken
        admitted.remaining -= tokens
        self.meter.decode_tokens += tokens

    def finish_decodes(self) -> None:
        """Requests that have written their last token leave."""
        for request, tokens, overshoot in self.decodes.done():
            self.admitted.remaining += overshoot
            self.queue.service.decode(request, self.decodes, -1)
            self._release(request, tokens)
            self.clients.unseen.append((request, LAST))
        self.clients.answered(self.decodes.answering)

    def finish_prompts(self, completed: Sequence[int], time: float) -> None:
        """Prompts are in the cache at ``time``, and each has made its next token."""
        records, admitted, progress = self.records, self.admitted, self.progress
        for request in completed:
            left = records.output[request] - 1
            admitted.remaining -= 1
            self.queue.service.write_first(request)
            if progress.output_left:
                left = progress.output_left.pop(request, left + 1) - 1
            if progress.last_token and (last := progress.last_token.pop(request, None)) is not None:
                records.gaps.append(time - last)
                records.gap_weights.append(1.0)
            if self.handoff and left:
                admitted.remaining -= left
                self.clients.unseen.append((request, HANDOFF))
                self._release(request, progress.compute(request))
                continue
            self.clients.unseen.append((request, FIRST if left else LAST))
            self._decode(request, left, time)

    def _decode(self, request: int, left: int, time: float) -> None:
        """A request whose prompt is in the cache decodes from now on, if it has output tokens left to write."""
        tokens, until = self.progress.compute(request), self.clients.until_answer(request, left)
        if left:
            self.decodes.enter(request, tokens, left, time, until)
            self.queue.service.decode(request, self.decodes, 1)
        else:
            self._release(request, tokens)

    def _release(self, request: int, tokens: float) -> None:
        self.admitted.release(request, tokens)
        self.progress.to_compute.pop(request, None)
