"""Requests on their way into an engine: the front end, then the queue of the scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from inferplan.serving.admission import Rules
from inferplan.serving.records import Meter, Records
from inferplan.serving.waiting import FairLines, Lines, Service, lines_for


class RequestQueue:
    """What has been sent to one engine and does not run yet, in the order in which it is admitted.

    The front end (tokeniser, server) takes requests one after another; what has passed it lies in ``inbox`` until the
    scheduler looks, then in ``waiting``.
    """

    def __init__(self, rules: Rules, records: Records, meter: Meter) -> None:
        self.rules, self.records, self.meter = rules, records, meter
        self.front_free = 0.0
        """When the front end is free again, in seconds."""
        self.inbox: deque[tuple[float, int]] = deque()
        """(when it can be seen, request), in order of time."""
        self.lines = lines_for(rules.queue, records, rules.tokens_per_step)
        """Of waiting requests by class; ``None`` where they are first come, first served."""
        self.waiting: deque[int] | Lines = deque() if self.lines is None else self.lines
        self.service: Service | FairLines = self.lines if isinstance(self.lines, FairLines) else Service()
        self.queued_tokens = 0
        """Prompt tokens of the requests that do not run yet."""
        self.steps_since_look = 0
        """Decode steps since the engine began, or computed prompts: every so many of them it looks at the queue."""
        self.steps_held_back = 0
        self.backlog = False
        """A step that might hold prompts left some waiting: no cadence keeps them out until none wait."""

    def submit(self, request: int, time: float) -> None:
        """A request reaches the front end at ``time``, and the scheduler when that is done with it."""
        self.submit_all((request,), (time,))

    def submit_all(self, requests: Iterable[int], times: Iterable[float]) -> None:
        """Requests reach the front end one after another, each as in :meth:`submit`."""
        rules, inbox, prompt, meter = self.rules, self.inbox, self.records.prompt, self.meter
        free, latency, fixed, each = self.front_free, rules.latency, rules.front_request, rules.front_token
        queued, waited = 0, meter.waited.get("front end", 0.0)
        for request, time in zip(requests, times):
            tokens = prompt[request]
            queued += tokens
            if free > time:
                waited += free - time
            else:
                free = time
            free += fixed + each * tokens
            inbox.append((free + latency, request))
        self.front_free = free
        self.queued_tokens += queued
        if waited:
            meter.waited["front end"] = waited

    def receive(self, request: int, time: float) -> None:
        """A request that is past the front end of another engine; it can be seen from ``time`` on, in its turn, or
        once it is past that of this one."""
        rules = self.rules
        if rules.asked_twice:
            tokens = self.records.prompt[request]
            self.front_free = max(self.front_free, time) + rules.front_request + rules.front_token * tokens
            time = self.front_free + rules.latency
        self.queued_tokens += self.records.prompt[request]
        self.inbox.append((max(time, self.inbox[-1][0]) if self.inbox else time, request))

    def look(self, seen: float, decoding: bool) -> None:
        """Queue what could be seen at ``seen``; while requests decode, only every ``poll_interval`` steps."""
        if decoding and self.steps_since_look % self.rules.poll_interval:
            return
        inbox, waiting = self.inbox, self.waiting
        while inbox and inbox[0][0] <= seen:
            waiting.append(inbox.popleft()[1])

    def take(self) -> None:
        """The first request of the queue leaves it: it starts to run, or is given up."""
        self.queued_tokens -= self.records.prompt[self.waiting.popleft()]

    def put_back(self, request: int) -> None:
        """A preempted request is the first of the queue again."""
        self.queued_tokens += self.records.prompt[request]
        self.waiting.appendleft(request)

    def drop(self, request: int) -> None:
        """A request that does not run yet leaves, from wherever it waits."""
        self.queued_tokens -= self.records.prompt[request]
        coming = next((entry for entry in self.inbox if entry[1] == request), None)
        if coming is not None:
            self.inbox.remove(coming)
        else:
            self.waiting.remove(request)  # type: ignore[union-attr]  # sessions have no classes, which have lines

    def hold_back(self, decodes: int) -> bool:
        """Whether prompts wait for more of them, to fill the step (TensorRT-LLM's batch wait)."""
        rules = self.rules
        if not decodes or self.steps_held_back >= rules.wait_steps:
            self.steps_held_back = 0
            return False
        tokens = decodes
        for request in self.waiting:
            tokens += self.records.prompt[request]
            if tokens >= rules.wait_fill * rules.budget:
                self.steps_held_back = 0
                return False
        return True

    def decodes_first(self, decodes: int) -> int:
        """Steps that only decode before one may hold prompts, while so many requests do: by those since the last."""
        gap = self.rules.cadence.gap
        return max(gap - self.steps_since_look, 0) if gap and decodes and not self.backlog else 0

    def leave(self, full: bool, short: bool) -> None:
        """A step that might hold prompts is composed; full, short of cache: why those that wait go on waiting."""
        self.backlog = self.rules.cadence.yields and bool(self.waiting)
        if self.waiting and (full or short):
            self.meter.block("cache" if short else "budget")

    def expired(self, now: float) -> Iterator[int]:
        """Take the requests from the head of each line whose client has given up."""
        arrival, timeout, lines = self.records.arrival, self.rules.timeout, self.lines
        for place, line in enumerate([self.waiting] if lines is None else lines.lines):
            while line and now - arrival[line[0]] > timeout:
                request = line.popleft() if lines is None else lines.remove_first(place)
                self.queued_tokens -= self.records.prompt[request]
                yield request
