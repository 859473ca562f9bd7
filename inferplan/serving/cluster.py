"""Several engines behind a router, and pools that compute prompts apart from decoding: those of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.serving.adapter_slots import AdapterPool
from inferplan.serving.admission import Rules
from inferplan.serving.cache_transfer import Links, Transfer
from inferplan.serving.clock import Clock, Event
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Beside, Fleet
from inferplan.serving.pipeline import Pipeline
from inferplan.serving.plain_pipeline import pipeline_of
from inferplan.serving.plain_replica import replica_of
from inferplan.serving.prefix_cache import PrefixCache
from inferplan.serving.records import Meter, Metering, Records
from inferplan.serving.replica import Replica
from inferplan.serving.routing import Router
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.senders import Senders
from inferplan.serving.step_price import Lane, Modifiers, price_with_modifiers
from inferplan.serving.step_times import StepTimes
from inferplan.traffic.requests import ClosedLoop

SENT, CACHED, ANSWERED, BEGIN, END, AHEAD, THOUGHT, PAUSE = range(8)
"""What may happen: a client sends a request; its cache arrives where it decodes; its user has the answer, and sends the
next one; the meters begin to count; they stop; engines that nothing connects are sent what comes next; a user who
thinks has something to send; engines pause."""


class EngineKind(NamedTuple):
    """What the engines of a pool are: a deployment, the times of its steps, its rules, how each gets its cache, what
    drafts beside it, LoRA adapters, whether their caches share a tier, what changes the price of a step, the seconds
    that its towers take for each request, and the names of their blocks in its pages."""

    deployment: Deployment
    times: StepTimes
    rules: Rules
    cache: Callable[[], PrefixCache | None]
    draft: Deployment | None = None
    adapters: AdapterPool | None = None
    shares: bool = False
    modifiers: Modifiers = ()
    encoder: Sequence[float] | None = None
    hashes: Sequence[Sequence[int]] | None = None

    def way_to(self, decodes: EngineKind, link: str | None) -> Transfer:
        """How caches move from here to ``decodes``."""
        return Transfer.between(self.deployment, decodes.deployment, link, (self.draft, decodes.draft))


def _nothing() -> None:
    """No prefix cache."""


class Process(Protocol):
    """What happens on the clock of a cluster beside its engines: users of sessions, replicas that come and go. It says
    which kinds of event it takes (:attr:`Clock.handlers`), and puts new ones on the heap as they follow.
    """

    @property
    def connects(self) -> bool:
        """Whether what one engine does changes what another is sent."""

    @property
    def watches(self) -> bool:
        """Whether it wants to know which engine has a request, or to be told of its end."""

    def start(self, kind: EngineKind) -> None:
        """The engines are made, of this kind; so is each that comes later."""

    def planned(self) -> list[Event]:
        """What happens whatever is sent."""

    def ended(self, request: int, time: float, rank: int) -> None:
        """A client sees the end of a request at ``time``; ``rank``: the scheduler of the front that had it, or -1."""


def _engine(group: list[Scheduler], kind: EngineKind) -> Replica | Pipeline:
    """What keeps the time of schedulers that step together."""
    first, times, modifiers = group[0], kind.times, kind.modifiers
    if len(group) > 1 or len(first.lanes) > 1:
        prices = [
            [price_with_modifiers(times, modifiers, Lane(one, lane)) for lane in range(len(one.lanes))] for one in group
        ]
        return pipeline_of(times, group, prices)
    return (
        Replica(price_with_modifiers(times, modifiers, Lane(first)), first) if modifiers else replica_of(times, first)
    )


class Cluster(Clock):
    """The engines of a run as a fleet has them, and the processes beside them."""

    def __init__(
        self,
        fleet: Fleet,
        records: Records,
        closed: ClosedLoop | None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__()
        self.fleet, self.records, self.closed, self.progress = fleet, records, closed, progress
        self.front = self.back = Router(fleet.routing, [], records)
        """Who takes new requests, and who only decodes where pools are apart."""
        self.engine_of: dict[Scheduler, int] = {}
        self.senders: Senders = Senders(records, closed)
        self.links: Links | None = None
        """Those of the schedulers of the front, where pools are apart."""
        self.kinds: tuple[EngineKind, ...] = ()
        """What the engines of the front and of the back are."""
        self.shares = False
        """Whether what one engine drops another may find."""
        self.member: list[int] = []
        """Of which deployment each engine of the front is, where they are not alike: see ``served_by`` of records."""
        self.processes: list[Process] = []
        self.timeline = False
        """Whether the meters draw one."""
        self.moved: list[Event] | None = None
        """Caches on their way, where those who decode begin when all prompts are done; ``None``: they are events."""
        self.known: Iterator[Event] = iter(())
        """Arrivals known ahead, in order of time; of them the heap holds the next."""
        self.waiting: list[int] = []
        """Requests that have found no replica."""
        self.sent = self.done = 0
        self.metering = Metering(records, 0)

    def add(self, process: Process, handlers: dict[int, Callable[[Event], None]]) -> None:
        """Something else happens on this clock. handlers: by kind of event."""
        self.processes.append(process)
        self.handlers.update(handlers)

    def notify(self, request: int, time: float, finished: bool) -> None:
        """A client has seen the end of a request, or its prompt is done and its cache can leave."""
        raise NotImplementedError

    def count(self, request: int, time: float, finished: bool) -> None:
        """A request is done: all that is left to say where nobody waits for an answer, or asks where it came from."""
        self.done += 1
        if self.progress is not None and self.done % 64 == 0:
            self.progress(self.done)

    @property
    def meters(self) -> list[Meter]:
        """One for each scheduler, those that compute prompts first."""
        return [scheduler.meter for scheduler in (*self.front.pool, *self.back.pool)]

    def build(self, kind: EngineKind, prompts: EngineKind | None = None, others: Sequence[EngineKind] = ()) -> None:
        """Make the engines: those of ``prompts`` compute prompts where pools are apart, ``None``: as the others.
        others: of the fleet's ``others``, in the same pool.

        Raises what :meth:`Transfer.between` does, and ``UsageError`` for what a process or a weight does not go with.
        """
        self._build(kind, prompts, others)
        for process in self.processes:
            process.start(kind)

    def _build(self, kind: EngineKind, prompts: EngineKind | None, others: Sequence[EngineKind]) -> None:
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

    def _pool(self, kind: EngineKind, ranks: int) -> Router:
        """A pool of so many attention ranks."""
        shared = kind.deployment.coupled_ranks if kind.rules.scheduler.ranks == "tokens" else 1
        return Router(self.fleet.routing, self.made(kind, ranks), self.records, shared)

    def _mixed(self, kinds: Sequence[EngineKind]) -> Router:
        """One pool of replicas that are not alike: those of the run, and the fleet's ``others``. Each gets turns by its
        weight.

        Raises ``UsageError`` for an engine that chooses among the ranks of a replica itself.
        """
        own = Beside(kinds[0].deployment, Flags(), kinds[0].deployment.parallel.replicas, self.fleet.weight)
        pool, weights = list[Scheduler](), list[float]()
        for member, (one, beside) in enumerate(zip(kinds, (own, *self.fleet.others))):
            if one.rules.scheduler.ranks == "tokens" and one.deployment.coupled_ranks > 1:
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

    def made(self, kind: EngineKind, ranks: int) -> list[Scheduler]:
        """The schedulers of so many attention ranks; the engines that keep their time are made too."""
        stages, width = kind.deployment.parallel.pp, kind.times.width
        made = [Scheduler(kind.rules, self.records, self.notify, kind.cache(), width, stages) for _ in range(ranks)]
        together = kind.deployment.coupled_ranks
        for first in range(0, ranks, together):
            group = made[first : first + together]
            for scheduler in group:
                scheduler.meter.timeline = [] if self.timeline else None
                scheduler.admitted.encoder, scheduler.admitted.hashes = kind.encoder, kind.hashes
            engine = _engine(group, kind)
            engine.reactive = self.senders.reacts
            self.engine_of.update(dict.fromkeys(group, self.join(engine)))
        return made

    def receive(self, scheduler: Scheduler, request: int, time: float) -> None:
        """The cache of a request has come: it waits for so many steps of those that decode there now; ranks that step
        together take those of the fullest.
        """
        steps, engine = scheduler.rules.handoff, self.engines[self.engine_of[scheduler]]
        if steps:
            assert isinstance(engine, Replica | Pipeline)
            fullest = max(engine.schedulers, key=lambda one: one.decodes.size)
            lane = fullest.decodes
            context = lane.context / lane.size if lane.size else float(self.records.prompt[request])
            time += steps * engine.price_of(fullest).decode(max(lane.size, 1), context)
        scheduler.receive(request, time)
