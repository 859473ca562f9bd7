"""Several engines behind a router, and pools that compute prompts apart from decoding; the clock they share."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import NamedTuple, Protocol, get_args

import numpy as np

from inferplan.devices.engine import CacheSending
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.features import those
from inferplan.fields import Text, Whole, Words, ask
from inferplan.serving.adapter_slots import AdapterPool
from inferplan.serving.admission import Rules
from inferplan.serving.apart import Apart, Event, Incoming
from inferplan.serving.autoscaling import Losses, Scaling
from inferplan.serving.cache_transfer import Links, Transfer
from inferplan.serving.failures import Failures
from inferplan.serving.flags import Flags, with_flags
from inferplan.serving.pipeline import Pipeline
from inferplan.serving.prefix_cache import PrefixCache
from inferplan.serving.records import CANCELLED, Meter, Metering, Records
from inferplan.serving.replica import Replica
from inferplan.serving.rounds import coupled_ranks
from inferplan.serving.routing import Router, Routing
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.senders import Senders
from inferplan.serving.step_price import Modifiers
from inferplan.serving.step_times import StepTimes
from inferplan.traffic.requests import ClosedLoop

_MOMENT = 1e-9
"""Seconds by which engines pass an event, so that rounding cannot keep it ahead of them."""

SENT, _CACHED, ANSWERED, _BEGIN, END = range(5)
"""What may happen: a client sends a request; its cache arrives where it decodes; its user has the answer, and sends the
next one; the meters begin to count; they stop."""


class Beside(NamedTuple):
    """Other replicas behind the same router. weight: requests that one gets, by proportion."""

    deployment: Deployment
    flags: Flags
    replicas: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """How many engines there are, what they are and how requests find one.

    prefill, decode: with both, that many replicas compute prompts and that many decode; the cache of a request moves
    over ``kv_link``, a link of the hardware by name, when ``kv_sending`` says (``None``: as the engine does it).
    Without, all ``--replicas`` do both. prefill_deployment, prefill_flags: of the replicas that compute prompts, where
    they are not those of the run, which are those of the replicas that decode.
    """

    routing: Routing = ask(
        "--routing", Words(get_args(Routing)), "Which replica gets a request.", "round-robin", shown=True
    )
    prefill: int = ask(
        "--prefill-replicas",
        Whole(0),
        "Disaggregated: replicas that compute prompts; the cache has one format in both pools (--kv).",
        0,
    )
    decode: int = ask("--decode-replicas", Whole(0), "Disaggregated: replicas that decode.", 0)
    kv_link: str | None = ask(
        "--kv-link", Text(), "Link that the cache moves over [the widest of the accelerator].", None, metavar="NAME"
    )
    kv_sending: CacheSending | None = ask(
        "--kv-sending",
        Words(get_args(CacheSending)),
        "When it leaves: after the prompt, piece by piece, or layer by layer [as the engine does it].",
        None,
    )
    prefill_deployment: Deployment | None = None
    prefill_flags: Flags | None = None
    scaling: Scaling | None = None
    """Who has replicas come and go during the run; ``None``: the deployment's replicas are there all the time."""
    losses: Losses | None = None
    """How often such replicas are taken away."""
    failures: Failures | None = None
    """Which are lost at stated times; they are back after the cold start of ``scaling``."""
    others: tuple[Beside, ...] = ()
    """Replicas that are not alike, behind those of the run; round robin then gives each turns by its weight."""
    weight: float = 1.0
    """That of a replica of the run."""

    def __post_init__(self) -> None:
        if self.failures is not None and self.scaling is None:
            raise UsageError("what fails is back after a time to restart, and none is given", hint="--restart 3min")
        if not all(weight > 0 for weight in (self.weight, *(beside.weight for beside in self.others))):
            raise UsageError("the weight of a replica must be more than 0")
        if (self.prefill > 0) != (self.decode > 0) or self.prefill < 0:
            raise UsageError("disaggregated pools need at least one prefill and one decode replica")
        described = (self.prefill_deployment, self.prefill_flags, self.kv_link, self.kv_sending)
        if not self.prefill and any(given is not None for given in described):
            raise UsageError(
                "replicas that compute prompts apart, or the way from them, are described, and there are none",
                hint="--prefill-replicas 1 --decode-replicas 1",
            )

    @property
    def features(self) -> set[str]:
        """As :mod:`inferplan.features` names them."""
        return those(
            pools=self.disaggregated,
            failures=self.failures is not None,
            elastic=self.changes or (self.scaling is not None and self.failures is None),
            unlike=bool(self.others),
            prefix_aware=self.routing == "prefix-aware",
            sticky=self.routing == "sticky",
        )

    @property
    def changes(self) -> bool:
        """Whether somebody orders replicas or takes them away while the run lasts, failures aside."""
        return self.losses is not None or (self.scaling is not None and self.scaling.looks)

    @property
    def disaggregated(self) -> bool:
        return self.prefill > 0

    @property
    def alike(self) -> bool:
        """Whether all replicas are the same deployment under the same flags."""
        return self.prefill_deployment is None and self.prefill_flags is None

    def prompts(self, deployment: Deployment, flags: Flags) -> tuple[Deployment, Flags] | None:
        """The replicas that compute prompts, with their flags, beside others of ``deployment`` under ``flags``; when
        clients give up is the run's to say. ``None`` where all are alike.
        """
        if self.alike:
            return None
        flags = replace(self.prefill_flags or flags, client_timeout=flags.client_timeout)
        return with_flags(self.prefill_deployment or deployment, flags), flags

    def engines(self, deployment: Deployment) -> int:
        """Engines that requests are spread over: replicas times attention data-parallel ranks."""
        ranks = deployment.parallel.dp
        if not self.disaggregated:
            own = (deployment.parallel.replicas if self.scaling is None else self.scaling.first) * ranks
            return own + sum(beside.replicas * beside.deployment.parallel.dp for beside in self.others)
        return self.prefill * (self.prefill_deployment or deployment).parallel.dp + self.decode * ranks


class Kind(NamedTuple):
    """What the engines of a pool are: a deployment, the times of its steps, its rules, how each gets its cache, what
    drafts beside it, LoRA adapters, whether their caches share a tier, and what changes the price of a step."""

    deployment: Deployment
    times: StepTimes
    rules: Rules
    cache: Callable[[], PrefixCache | None]
    draft: Deployment | None = None
    adapters: AdapterPool | None = None
    shares: bool = False
    modifiers: Modifiers = ()

    def way_to(self, decodes: Kind, link: str | None) -> Transfer:
        """How caches move from here to ``decodes``."""
        return Transfer.between(self.deployment, decodes.deployment, link, (self.draft, decodes.draft))


def _nothing() -> None:
    """No prefix cache."""


def _connected(jobs: int, fleet: Fleet, senders: Senders) -> UsageError:
    """What an engine does changes what another is sent or finds."""
    if senders.reacts:
        because = "requests that follow answers connect them"
    elif fleet.failures is not None:
        because = "what a replica loses goes to another"
    else:
        because = f"{fleet.routing} routing looks at all of them before each request"
    return UsageError(
        f"--jobs {jobs} cannot divide these replicas among processes",
        because=because,
        hint="leave --jobs out; it is for arrivals known ahead (--rate, --trace) that are sent round robin",
    )


class Process(Protocol):
    """What happens on the clock of a cluster beside its engines: users of sessions, replicas that come and go. It says
    which kinds of event it takes (:attr:`Cluster.handlers`), and puts new ones on the heap as they follow.
    """

    @property
    def connects(self) -> bool:
        """Whether what one engine does changes what another is sent."""

    def start(self, kind: Kind) -> None:
        """The engines are made, of this kind; so is each that comes later."""

    def planned(self) -> list[Event]:
        """What happens whatever is sent."""

    def ended(self, request: int, time: float, rank: int) -> None:
        """A client sees the end of a request at ``time``; ``rank``: the scheduler of the front that had it, or -1."""


class Engines(Apart):
    """The engines of a run as a fleet has them, and the processes beside them."""

    def __init__(
        self,
        fleet: Fleet,
        records: Records,
        closed: ClosedLoop | None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(records, Router(fleet.routing, [], records), progress)
        self.fleet, self.closed = fleet, closed
        self.senders: Senders = Senders(records, closed)
        self.links: Links | None = None
        """Those of the schedulers of the front, where pools are apart."""
        self.kinds: tuple[Kind, ...] = ()
        """What the engines of the front and of the back are."""
        self.member: list[int] = []
        """Of which deployment each engine of the front is, where they are not alike: see ``served_by`` of records."""
        self.processes: list[Process] = []

    def notify(self, request: int, time: float, finished: bool) -> None:
        """A client has seen the end of a request, or its prompt is done and its cache can leave."""
        raise NotImplementedError

    def build(self, kind: Kind, prompts: Kind | None = None, others: Sequence[Kind] = ()) -> None:
        """Make the engines: those of ``prompts`` compute prompts where pools are apart, ``None``: as the others.
        others: of the fleet's ``others``, in the same pool.

        Raises what :meth:`Transfer.between` does, and ``UsageError`` for what a process or a weight does not go with.
        """
        self._build(kind, prompts, others)
        for process in self.processes:
            process.start(kind)

    def _build(self, kind: Kind, prompts: Kind | None, others: Sequence[Kind]) -> None:
        fleet = self.fleet
        self.shares = kind.shares
        self.kinds = tuple(one._replace(cache=_nothing) for one in (prompts or kind, kind))  # for other processes too
        if others:
            self.front = self._mixed((kind, *others))
        elif not fleet.disaggregated:
            self.front = self._pool(kind, fleet.engines(kind.deployment))
        else:
            prompts = prompts or kind
            transfer = prompts.way_to(kind, fleet.kv_link)
            rules = replace(prompts.rules, scheduler=prompts.rules.scheduler.model_copy(update={"admission": "prompt"}))
            self.front = self._pool(prompts._replace(rules=rules), fleet.prefill * prompts.deployment.parallel.dp)
            ranks = fleet.decode * kind.deployment.parallel.dp
            self.back = self._pool(kind._replace(cache=_nothing), ranks)
            self.links = Links(transfer, self.records, len(self.front.pool), fleet.kv_sending)
            for rank, scheduler in enumerate(self.front.pool):
                scheduler.handoff = True
                if self.links.sending != "after":
                    scheduler.clients.goes_on = partial(self.links.send, rank)
                scheduler.clients.answers = kind.deployment.engine.apart.first_token == "prompts"
            for scheduler in self.back.pool:
                scheduler.clients.answers = kind.deployment.engine.apart.first_token != "decodes"

    def _pool(self, kind: Kind, ranks: int) -> Router:
        """A pool of so many attention ranks."""
        shared = coupled_ranks(kind.deployment) if kind.rules.scheduler.ranks == "tokens" else 1
        return Router(self.fleet.routing, self.made(kind, ranks), self.records, shared)

    def _mixed(self, kinds: Sequence[Kind]) -> Router:
        """One pool of replicas that are not alike: those of the run, and the fleet's ``others``. Each gets turns by its
        weight.

        Raises ``UsageError`` for an engine that chooses among the ranks of a replica itself.
        """
        own = Beside(kinds[0].deployment, Flags(), kinds[0].deployment.parallel.replicas, self.fleet.weight)
        pool, weights = list[Scheduler](), list[float]()
        for member, (one, beside) in enumerate(zip(kinds, (own, *self.fleet.others))):
            if one.rules.scheduler.ranks == "tokens" and coupled_ranks(one.deployment) > 1:
                raise UsageError(
                    "replicas that are not alike are fed by weight, which knows nothing of ranks",
                    hint="replicas without attention data parallelism",
                )
            ranks = one.deployment.parallel.dp
            count = beside.replicas * ranks
            pool += self.made(one, count)
            weights += [beside.weight / ranks] * count
            self.member += [member] * count
        return Router(self.fleet.routing, pool, self.records, weights=weights)

    def made(self, kind: Kind, ranks: int) -> list[Scheduler]:
        """The schedulers of so many attention ranks; the engines that keep their time are made too."""
        stages, width = kind.deployment.parallel.pp, kind.times.width
        made = [Scheduler(kind.rules, self.records, self.notify, kind.cache(), width, stages) for _ in range(ranks)]
        there = len(self.engines)
        self.keep_time(made, (kind.times, kind.modifiers), coupled_ranks(kind.deployment))
        for engine in self.engines[there:]:
            engine.reactive = self.senders.reacts
        return made

    @property
    def _one_way(self) -> bool:
        """Nothing that an engine does changes what another is sent or finds, but for caches from front to back."""
        if self.senders.reacts or self.shares or any(process.connects for process in self.processes):
            return False
        return self.front.blind and self.back.blind

    def planned(self) -> list[Event]:
        """What happens whatever is sent."""
        return [event for process in self.processes for event in process.planned()]


class Cluster(Engines):
    """The events between the engines of a run, and what happens beside them: one heap, one clock."""

    def __init__(
        self,
        fleet: Fleet,
        records: Records,
        closed: ClosedLoop | None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(fleet, records, closed, progress)
        self.known: Iterator[Event] = iter(())
        """Arrivals known ahead, in order of time."""
        self.sent = 0
        self.running: Replica | Pipeline | None = None
        """The engine that advances."""
        self.now = 0.0
        """When what happened last did, beside the engines."""
        self.waiting: list[int] = []
        """Requests that have found no replica."""
        self.handlers: dict[int, Callable[[Event], int | None]] = {
            SENT: self.sends,
            _CACHED: self._cached,
            ANSWERED: self._answered,
            _BEGIN: self._marks,
            END: self._marks,
        }
        """What is done about each kind of event: gives the index of the engine that it reaches, if there is one."""

    def add(self, process: Process, handlers: dict[int, Callable[[Event], int | None]]) -> None:
        """Something else happens on this clock. handlers: by kind of event."""
        self.processes.append(process)
        self.handlers.update(handlers)

    def run(self, warmup: int = 0, fill: int = 0, jobs: int = 1) -> list[Meter]:
        """Send every request and run until all is quiet; engines that nothing connects in ``jobs`` processes.

        In a closed loop the first ``warmup`` requests are waited for before the rest is sent, and leave no trace in the
        meters; ``fill`` requests are sent and not waited for, and the meters begin after them. Raises ``UsageError``
        for ``jobs`` where something connects the engines.
        """
        if jobs > 1 and not self._one_way:
            raise _connected(jobs, self.fleet, self.senders)
        total = len(self.records.prompt)
        self.metering = Metering(self.records, warmup + fill if fill else 0)
        if self.closed is None:
            self._run_open(jobs)
        elif 0 < warmup < total:
            self._phase(0, warmup)
            now = max(engine.clock for engine in self.engines)
            del self.records.gaps[:], self.records.gap_weights[:]
            for engine in self.engines:
                engine.restart(now)
            for meter in self.meters:
                meter.timeline = None if meter.timeline is None else []
            self._phase(warmup, total)
        else:
            self._phase(0, total)
        self.metering.close(self.meters)
        if self.senders.following:
            self.records.in_order()
        if self.member:
            went, count = self.front.went, len(self.records.prompt)
            self.records.served_by = [self.member[went[request]] if request in went else -1 for request in range(count)]
        return self.meters

    def _run_open(self, jobs: int) -> None:
        """Arrivals are known ahead, but for those that follow answers."""
        arrival, fill = self.records.arrival, self.metering.fill
        order = np.argsort(np.asarray(arrival), kind="stable")
        if self.senders.reacts:
            first = set(self.senders.begin(0, len(arrival)))
            starts = [request for request in order.tolist() if request in first]
            self.known = ((arrival[request], request, SENT) for request in starts)
            self.events = sorted([(arrival[starts[-1]], -1, END), *self.planned()])  # what comes later only continues
            self._run_together()
            return
        window = (arrival[order[fill]], arrival[order[-1]]) if fill else None
        if not self._one_way:
            self.known = ((arrival[request], request, SENT) for request in order.tolist())
            marks = [(window[0], -1, _BEGIN), (window[1], -1, END)] if window else []
            self.events = sorted([*marks, *self.planned()])
            self._run_together()
            return
        if not self.back.pool:
            for scheduler in self.front.pool:  # nobody waits for an answer, or asks where it came from
                scheduler.clients.notify = self.count
        # the front runs to its end, then the back with the caches that it was sent
        self.serve(Incoming(order, np.array(arrival)[order], False, window), jobs)
        if self.events:
            times, requests, _ = zip(*sorted(self.events))
            self.events.clear()
            self.serve(Incoming(np.asarray(requests), np.asarray(times), True, window), jobs)
        if window:
            self.metering.span = list(window)

    def _phase(self, start: int, stop: int) -> None:
        """Users of a closed loop send requests ``start`` to ``stop`` until all is quiet."""
        assert self.closed is not None
        first = self.senders.begin(start, stop)
        ramp = 0.0 if self.closed.burst else self.closed.ramp or 0.0
        now = max(engine.clock for engine in self.engines)
        self.events = [(now + ramp * user / len(first), request, SENT) for user, request in enumerate(first)]
        planned = self.planned()
        self.events = sorted([*self.events, *planned])
        alone = len(self.engines) == len(self.front.pool) == 1 and not planned
        if alone and not ramp and self.records.think is None:
            self._run_alone()
        else:  # with a ramp or a think time, an arrival submitted early would overtake those before it
            self._run_together()

    def _run_alone(self) -> None:
        """One engine: an arrival is submitted as soon as it is known."""
        engine, events = self.engines[0], self.events
        self.running = engine
        while True:
            while events:
                self._deliver(heapq.heappop(events))
            engine.advance(inf)
            if not events:
                return

    def _run_together(self) -> None:
        """Several engines: each advances to the next event that it depends on, or that others may, and no further.

        Only the engine that may notify first advances: up to the next arrival, and not past the time from which another
        engine may cause one.
        """
        engines, events = self.engines, self.events
        # all arrivals are known ahead, and what an engine finds is its own
        sealed = not (self.senders.reacts or self.back.pool or self.shares)
        due = [engine.earliest() for engine in engines]
        heap = [(time, index) for index, time in enumerate(due)]
        heapq.heapify(heap)
        self._next_known()
        while True:
            while heap and due[heap[0][1]] != heap[0][0]:
                heapq.heappop(heap)
            first, index = heap[0] if heap else (inf, -1)
            coming = events[0][0] if events else inf
            if coming == first == inf:
                return
            if coming <= first:
                reached = self._deliver(heapq.heappop(events))
                if reached is None:
                    continue
                index = reached
                due += [inf] * (len(engines) - len(due))  # of replicas that have come since
            else:
                heapq.heappop(heap)
                until = coming if sealed else min(coming, heap[0][0]) if heap else coming
                self.running = engines[index]
                engines[index].advance(max(until, first * (1 + 1e-12) + _MOMENT))
            due[index] = engines[index].earliest()
            heapq.heappush(heap, (due[index], index))

    def _next_known(self) -> None:
        """The next of the arrivals known ahead joins the events."""
        arrival = next(self.known, None)
        if arrival is not None:
            heapq.heappush(self.events, arrival)

    def _deliver(self, event: Event) -> int | None:
        """Something happens: gives the index of the engine that it reaches, if there is one."""
        self.now = event[0]
        return self.handlers[event[2]](event)

    def _cached(self, event: Event) -> int | None:
        """The cache of a request arrives where it decodes."""
        time, request, _ = event
        if self.records.status[request] == CANCELLED:  # its user has given up meanwhile
            return None
        scheduler = self.back.pool[self.back.send(request, time)]
        self.receive(scheduler, request, time)
        return self.engine_of[scheduler]

    def _marks(self, event: Event) -> None:
        """The meters begin to count, or stop."""
        self._mark(event[0], event[2] == _BEGIN)

    def _answered(self, event: Event) -> int | None:
        """A user has an answer, and sends what follows it, if there is anything."""
        time, request, _ = event
        following = self.senders.next(request)
        if following is None:
            if self.closed is not None:
                self._mark(time, False)
            return None
        request, later = following
        if later:
            heapq.heappush(self.events, (time + later, request, SENT))
            return None
        return self.sends((time, request, SENT))

    def sends(self, event: Event) -> int | None:
        """A client sends a request: it reaches the engine that the router chooses."""
        time, request, _ = event
        if self.senders.reacts and self.sent == self.metering.fill > 0:
            self._mark(time, True)
        self.sent += 1
        if self.closed is None and self.senders.reacts and self.sent == self.senders.limit:
            self._mark(time, False)
        self._next_known()
        self.records.arrival[request] = time
        return self.submit(request, time)

    def submit(self, request: int, time: float) -> int | None:
        """A request reaches the engine that the router chooses, or waits for one: gives its index."""
        if not self.front.taking:
            self.waiting.append(request)
            return None
        scheduler = self.front.pool[self.front.send(request, time)]
        scheduler.submit(request, time)
        return self.engine_of[scheduler]

    def _mark(self, time: float, begin: bool) -> None:
        """The meters begin to count, or stop, if they do not count all the time; all engines are brought up to it."""
        if not self.senders.limit > self.metering.fill > 0 or self.metering.ended:
            return
        if not begin and self.sent <= self.metering.fill:  # nothing counts yet
            return
        for engine in self.engines:
            self.running = engine
            engine.advance(time)
        (self.metering.begin if begin else self.metering.end)(time, self.meters)

    def notify(self, request: int, time: float, finished: bool) -> None:
        """A client has seen the end of a request, or its prompt is done and its cache can leave."""
        rank = self.front.home.get(request, -1)
        home = (self.back if request in self.back.home else self.front).leave(request, time)
        if not finished:
            assert self.links is not None
            self.front.pool[home].meter.wait("link", max(self.links.free[home] - time, 0.0))
            there = self.links.send(home, request, self.records.prompt[request], time)
            heapq.heappush(self.events, (there, request, _CACHED))
            return
        self.count(request, time, finished)
        if self.senders.reacts:
            heapq.heappush(self.events, (self.senders.after(request, time), request, ANSWERED))
            if self.running is not None:
                self.running.pause = True
        for process in self.processes:
            process.ended(request, time, rank)
