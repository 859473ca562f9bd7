"""The scheduler of one engine: which prompts go into a step, which requests decode in it, who is sent back.

It knows no durations: an event loop (:mod:`inferplan.serving.replica`) asks it for the next step, prices the step and
tells it when the step is over. docs/serving.md describes what each policy does.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from math import ceil, inf
from typing import NamedTuple

from inferplan.serving.admission import Admitted, Candidate, Room, Rules
from inferplan.serving.decode_batch import DecodeBatch
from inferplan.serving.prefix_cache import PrefixCache
from inferplan.serving.records import FINISHED, REJECTED, TIMED_OUT, Meter, Records
from inferplan.serving.request_queue import RequestQueue
from inferplan.serving.step_times import Chunk


class Token(Enum):
    """Which token of a request a step has made."""

    FIRST = 1
    LAST = 2
    HANDOFF = 3
    """The first one, by an engine that only computes prompts: another one makes the rest."""


class Prompts(NamedTuple):
    """The prompts of a step."""

    chunk: Chunk
    completed: list[int]
    """Requests whose prompt is in the cache when the step is over."""


class Scheduler:
    """One engine's queue, the requests that it runs and their cache.

    ``width``: tokens that a decoding request takes of a step. ``notify(request, time, finished)`` is called when a
    client sees the end of a request and, with ``handoff``, when a prompt is done and its cache can leave (``finished``
    is then false).
    """

    def __init__(
        self,
        rules: Rules,
        records: Records,
        notify: Callable[[int, float, bool], None],
        cache: PrefixCache | None = None,
        width: int = 1,
    ) -> None:
        self.rules, self.records, self.notify, self.cache, self.width = rules, records, notify, cache, width
        self.handoff = False
        self.mixed = rules.mixed
        self.grows = rules.growing and rules.admission != "reserve"
        """Whether decode steps take cache that was not reserved at admission."""
        self.meter = Meter()
        self.queue = RequestQueue(rules, records, self.meter)
        self.admitted = Admitted(rules, records, cache)
        self.decodes = DecodeBatch(rules.tokens_per_step, rules.policy == "static", not rules.mixed)
        self.partial: int | None = None
        """The request whose prompt is being computed in several steps."""
        self.computed = 0
        """Tokens of that prompt that are in the cache."""
        self.to_compute: dict[int, int] = {}
        """Tokens to have in the cache before decoding, where that is not the prompt (after preemption)."""
        self.output_left: dict[int, int] = {}
        """Output tokens still to write, where that is not the whole output."""
        self.computed_elsewhere: set[int] = set()
        """Requests that another replica computed the prompt of."""
        self.last_token: dict[int, float] = {}
        """When the last token of a preempted request came."""
        self.unseen: list[tuple[int, Token]] = []
        """Tokens made and not yet seen by a client."""
        self.ratio_reset = 0
        """Decode step at which the reserved share of remaining outputs was last reset (admission by ``ratio``)."""

    # --- arrivals ---------------------------------------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """Requests in the engine."""
        return self.queue.outstanding

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of the requests that do not run yet."""
        return self.queue.queued_tokens

    def submit(self, request: int, time: float) -> None:
        """A request reaches the front end at ``time``; it is refused when it can never run."""
        records = self.records
        prompt = records.prompt[request]
        reason = self.rules.refusal(prompt, prompt + records.output[request])
        if reason:
            records.status[request] = REJECTED
            records.refused[reason] = records.refused.get(reason, 0) + 1
            self.notify(request, time, True)
        else:
            self.queue.submit(request, time)

    def receive(self, request: int, time: float) -> None:
        """A request whose prompt another replica has computed; its cache is here at ``time``."""
        self.computed_elsewhere.add(request)
        self.output_left[request] = self.records.output[request] - 1
        self.queue.receive(request, time)

    # --- what goes into a step --------------------------------------------------------------------------------------

    def plan(self, now: float) -> Prompts | None:
        """The prompts of the step that begins ``now``; none means that the step only decodes."""
        rules, queue, waiting, decodes = self.rules, self.queue, self.queue.waiting, self.decodes
        if rules.policy == "static" and decodes.size:
            return None
        if self.partial is None and rules.wait_steps and queue.hold_back(decodes.size):
            return None
        if rules.timeout < inf:
            for request in queue.expired(now):
                self._give_up(request, now)
        budget = rules.budget - decodes.size * self.width if self.mixed else rules.budget
        prompts, tokens, pairs = 0, 0, 0.0
        completed: list[int] = []
        if self.partial is not None:
            tokens, pairs = self._continue(max(budget, 1), completed)
            prompts, budget = 1, budget - tokens
        while budget > 0 and waiting and self.partial is None:
            request = waiting[0]
            past = self._admit(request, now, budget, not tokens and not decodes.size)
            if past < 0:
                break
            if request in self.computed_elsewhere:
                self.computed_elsewhere.remove(request)
                self._decode(request, self.output_left.pop(request), now)
                continue
            need = self._to_compute(request) - past
            new = need if need < budget else budget
            if new < need:
                self.partial, self.computed = request, past + new
            else:
                completed.append(request)
            prompts += 1
            tokens += new
            budget -= new
            pairs += new * past + new * (new + 1) / 2
        return Prompts(Chunk(prompts, tokens, pairs), completed) if tokens else None

    def _to_compute(self, request: int) -> int:
        tokens = self.to_compute.get(request)
        return self.records.prompt[request] if tokens is None else tokens

    def _continue(self, budget: int, completed: list[int]) -> tuple[int, float]:
        """The next piece of the prompt that is being computed: its tokens and query-key pairs."""
        request = self.partial
        assert request is not None
        whole = self._to_compute(request)
        new = min(whole - self.computed, budget)
        pairs = new * self.computed + new * (new + 1) / 2
        self.computed += new
        if self.computed == whole:
            completed.append(request)
            self.partial = None
        return new, pairs

    def _admit(self, request: int, now: float, budget: int, empty: bool) -> int:
        """Admit the head of the queue: the tokens of it that are cached already, or -1 when it has to wait."""
        records = self.records
        head = Candidate(
            request,
            self._to_compute(request),
            self.output_left.get(request, records.output[request]),
            request in self.computed_elsewhere,
        )
        found = self.admitted.admit(head, Room(budget, empty, self.growth(), self.decodes.steps - self.ratio_reset))
        if isinstance(found, str):
            blocked = self.meter.blocked_by
            blocked[found] = blocked.get(found, 0) + 1
            return -1
        self.queue.take()
        if records.admitted[request] != records.admitted[request]:
            records.admitted[request] = now
        return found

    def growth(self) -> float:
        """Tokens that one decode step adds to what the cache has promised already."""
        return self.decodes.size * self.rules.tokens_per_step if self.grows else 0.0

    def make_room(self, now: float) -> None:
        """Preempt until the decodes of the next step have room."""
        admitted, capacity = self.admitted, self.rules.capacity
        while self.grows and self.decodes.size and len(admitted.running) > 1:
            if admitted.used + self.growth() <= capacity:
                return
            self.preempt(now)

    def preempt(self, now: float) -> None:
        """Send the request admitted last back to the head of the queue; it will be computed again (vLLM V1)."""
        request = next(reversed(self.admitted.running))
        self.meter.preemptions += 1
        self.records.preempted[request] = self.records.preempted.get(request, 0) + 1
        self.ratio_reset = self.decodes.steps
        if request == self.partial:
            self.partial = None
            tokens: float = self._to_compute(request)
            self.admitted.remaining -= self.output_left.get(request, self.records.output[request])
        else:
            tokens, left = self.decodes.remove(request)
            self.admitted.remaining -= left
            self.to_compute[request] = ceil(tokens) + 1  # and the token it made last, which is not in the cache yet
            self.output_left[request] = max(ceil(left), 1)
            self.last_token[request] = now
        self.admitted.release(request, tokens)
        self.queue.put_back(request)

    def book_time(self, start: float, duration: float, steps: int, decodes: int, prompt_tokens: float) -> None:
        """Meter ``duration`` seconds from ``start`` in which ``steps`` steps run, each with ``decodes`` requests."""
        meter, waiting = self.meter, len(self.queue.waiting)
        share = self.admitted.used / self.rules.capacity
        meter.steps += steps
        meter.busy += duration
        meter.batch_seconds += decodes * duration
        meter.kv_seconds += share * duration
        meter.kv_peak = max(meter.kv_peak, share)
        if waiting:
            meter.backlogged += duration
        if meter.timeline is not None:
            meter.timeline.append((start, duration, steps, decodes, prompt_tokens, waiting, share))

    # --- what a step has made ---------------------------------------------------------------------------------------

    def run_decodes(self, start: float, steps: int, price: float) -> None:
        """The batch decodes for ``steps`` steps of ``price`` seconds each, from ``start`` on."""
        tokens, admitted = self.decodes.make(start, steps, price, self.records), self.admitted
        admitted.remaining -= tokens
        self.meter.decode_tokens += tokens
        if self.grows:
            admitted.used += tokens

    def finish_decodes(self) -> None:
        """Requests that have written their last token leave."""
        for request, tokens, overshoot in self.decodes.done():
            self.admitted.remaining += overshoot
            self._release(request, tokens)
            self.unseen.append((request, Token.LAST))
            if self.queue.waiting:
                self.meter.backlogged_finishes += 1

    def finish_prompts(self, completed: list[int], time: float) -> None:
        """Prompts are in the cache at ``time``, and each has made its next token."""
        records, admitted = self.records, self.admitted
        for request in completed:
            left = self.output_left.pop(request, records.output[request]) - 1
            admitted.remaining -= 1
            last = self.last_token.pop(request, None)
            if last is not None:
                records.gaps.append(time - last)
                records.gap_weights.append(1.0)
            if self.handoff and left:
                admitted.remaining -= left
                self.unseen.append((request, Token.HANDOFF))
                self._release(request, self._to_compute(request))
                continue
            self.unseen.append((request, Token.FIRST if left else Token.LAST))
            self._decode(request, left, time)

    def _decode(self, request: int, left: int, time: float) -> None:
        """A request whose prompt is in the cache decodes from now on, if it has output tokens left to write."""
        tokens = self._to_compute(request)
        if left:
            self.decodes.enter(request, tokens, left, time)
        else:
            self._release(request, tokens)

    def _release(self, request: int, tokens: float) -> None:
        self.admitted.release(request, tokens)
        self.to_compute.pop(request, None)

    # --- what clients see -------------------------------------------------------------------------------------------

    def show(self, time: float) -> None:
        """Clients see the tokens made so far at ``time``."""
        records = self.records
        unseen, self.unseen = self.unseen, []
        for request, token in unseen:
            if records.first[request] != records.first[request]:
                records.first[request] = time
            if token is Token.FIRST:
                continue
            self.queue.outstanding -= 1
            if token is Token.LAST:
                records.finish[request] = time
                late = time - records.arrival[request] > self.rules.timeout
                records.status[request] = TIMED_OUT if late else FINISHED
            self.notify(request, time, token is Token.LAST)

    def _give_up(self, request: int, now: float) -> None:
        """The client of a waiting request has given up."""
        self.records.status[request] = TIMED_OUT
        self.records.finish[request] = self.records.arrival[request] + self.rules.timeout
        self.queue.outstanding -= 1
        self.notify(request, now, True)

    def refuse_first(self, now: float) -> None:
        """The first request of the queue does not fit even alone."""
        request = self.queue.waiting[0]
        self.queue.take()
        self.records.status[request] = REJECTED
        self.queue.outstanding -= 1
        self.notify(request, now, True)
