"""A day of a load that rises and falls, served by replicas that come and go: what each policy pays and misses.

static: replicas for the largest rate, all day. scheduled: those of every step of the profile, ordered ahead of time by
the cold start. reactive: an autoscaler that knows nothing ahead (:mod:`inferplan.serving.autoscaling`). recorded: those
that a log says there were. Every policy serves the same requests, drawn from the profile or those of a log, in one
simulation of the whole span; docs/day.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from math import ceil, inf
from typing import ClassVar, Literal

import numpy as np

from inferplan.answers.energy import JOULES_PER_KWH
from inferplan.answers.power import run_energy
from inferplan.catalog.assemble import Request
from inferplan.catalog.bills import Tariff
from inferplan.catalog.energy import EnergyAsked
from inferplan.catalog.power import power_shares, standing_watts
from inferplan.errors import InfeasibleError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.features import require_together
from inferplan.fields import Quantity, Real, Text, Topic, Whole, Words, ask, need, part
from inferplan.lists import parse_values
from inferplan.mapped import Spool, spool_for
from inferplan.planning.agents import calls_of
from inferplan.planning.confidence import AS_PREDICTED
from inferplan.planning.day_work import DayWork, ReplicaExtras, work_of
from inferplan.planning.demand import Demand, require_turns
from inferplan.planning.happened import Happened
from inferplan.planning.paid import HOUR, Paid
from inferplan.planning.processes import Jobs, Progress, StoppedError, run_beside
from inferplan.planning.question import Question
from inferplan.planning.verify import options_of
from inferplan.serving.autoscaling import Life, Losses, Reactive, Scaling, Schedule, require_some
from inferplan.serving.cold_start import ColdStart
from inferplan.serving.failures import Failures
from inferplan.serving.flags import Flags, with_flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.outages import Outages
from inferplan.serving.pieces import percentile_in_pieces, pieces
from inferplan.serving.records import FINISHED
from inferplan.serving.result import SimulationResult, class_parts
from inferplan.serving.routing import Routing
from inferplan.serving.simulator import require_conversations, simulate
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.serving.techniques.tiers import CacheTier, require_currency
from inferplan.traffic.block_names import Streams
from inferplan.traffic.conversations import Floats
from inferplan.traffic.profile import DAY, Profile
from inferplan.traffic.requests import MOST_REQUESTS, OpenLoop, Requests, Traffic, TrafficClass, drawn_of
from inferplan.traffic.traces import Recorded
from inferplan.units import Array, BoolArray, format_time

Policy = Literal["recorded", "static", "scheduled", "reactive"]
POLICIES: tuple[Policy, ...] = ("static", "scheduled", "reactive")
"""Those that are compared where nobody names any."""
EVERY_POLICY: tuple[Policy, ...] = ("recorded", *POLICIES)
ROUTINGS: tuple[Routing, ...] = ("least-loaded", "round-robin", "sticky", "cache-aware")
"""Those of a day."""
_INSTANT = 1e-6
"""Seconds behind the edge of a step at which its rate holds, whatever the rounding of the edge."""


@dataclass(frozen=True, kw_only=True)
class Autoscaler:
    """The reactive policy as it is asked for. target: requests in a replica, waiting and running; ``None``: those in
    one that has its share of its capacity. The others are of :class:`inferplan.serving.autoscaling.Reactive`.
    """

    target: float | None = ask(
        "--target",
        Real(0, above=True),
        "Reactive: target of requests per replica, waiting and running [as many as at its share of its capacity].",
        None,
    )
    interval: float = ask("--interval", Quantity("seconds"), "Reactive: time between checks. [15s]", 15.0)
    tolerance: float = ask("--tolerance", Real(0), "Reactive: tolerated deviation from the target.", 0.1, shown=True)
    stabilisation: float = ask(
        "--stabilisation",
        Quantity("seconds"),
        "Reactive: scale down only after fewer replicas were enough for this long. [300s]",
        300.0,
    )


@dataclass(frozen=True, kw_only=True)
class LossesAsked:
    """Spot instances as they are asked for. per_hour: how often each replica is taken away."""

    topic: ClassVar = Topic(
        "a spot instance",
        "none is taken away",
        "--preemptions 0.05 --notice 120s: once in 20 hours, with the two minutes of AWS",
        "no provider states how often it reclaims a spot instance",
    )
    per_hour: float = field(
        metadata=need(
            "--preemptions", Real(0, above=True), "Times per hour that each replica is taken away (spot).", "PER_HOUR"
        )
    )
    notice: float = field(
        metadata=need("--notice", Quantity("seconds"), "Notice before that: 120s at AWS, 30s at others.")
    )

    def losses(self, seed: int) -> Losses:
        """As a run takes them."""
        return Losses(rate=self.per_hour / HOUR, notice=self.notice, seed=seed)


def _policies(text: str) -> tuple[Policy, ...]:
    names = list(dict.fromkeys(parse_values(text)))
    if unknown := [name for name in names if name not in EVERY_POLICY]:
        hint = f"--policy {','.join(POLICIES)}, or some of them"
        raise UsageError(f"no policy is named {unknown[0]!r}", hint=hint)
    return tuple(next(one for one in EVERY_POLICY if one == name) for name in names)


@dataclass(frozen=True, kw_only=True)
class DayAsked:
    """What is asked of a day. span: seconds that are simulated. least, most: replicas, of the policies that change
    their number; 0 where no requests come. cold_start: ``None`` where nobody needs one. losses: of spot. failures: at
    times of the day, of every policy. minimum_bill: seconds that a replica is paid for at least. replay: the log whose
    requests come as they came, in the place of those that are drawn; ``profile`` has its rates. ran: seconds, and the
    replicas that took requests from then on. timetable: rates that ``scheduled`` goes by where they are not those of
    the profile. tiers: below the caches of the replicas.
    """

    profile: Profile
    span: float = ask("--duration", Quantity("seconds"), "Time simulated [24h, or all of --replay].", DAY)
    seed: int = ask("--seed", Whole(0, 2**31 - 1), "Seed of lengths and arrivals. [0]", 0)
    policies: tuple[Policy, ...] = ask(
        "--policy", Text(_policies), f"Policies to compare [{','.join(POLICIES)}].", POLICIES, metavar="LIST"
    )
    cold_start: ColdStart | None = None
    losses: Losses | None = None
    failures: Failures | None = None
    replay: Recorded | None = None
    ran: tuple[tuple[float, int], ...] = ()
    timetable: Profile | None = None
    tiers: tuple[CacheTier, ...] = ()
    minimum_bill: float = ask(
        "--minimum-bill",
        Quantity("seconds"),
        "Shortest time billed per replica: 60s at AWS and Google Cloud. [0s]",
        0.0,
    )
    least: int = ask("--min-replicas", Whole(0), "Fewest replicas; 0: none while no request arrives.", 1, shown=True)
    most: int = ask("--max-replicas", Whole(most=10_000), "Most replicas at once.", 1000, shown=True)
    autoscaler: Autoscaler = part(Autoscaler, Autoscaler())
    routing: Routing = ask(
        "--routing",
        Words(ROUTINGS),
        "How requests are routed to replicas; sticky: later turns of a conversation where the first went.",
        "least-loaded",
        shown=True,
    )

    def __post_init__(self) -> None:
        require_some(self.least, self.most)
        if not self.policies:
            raise UsageError("no policy is named", hint=f"--policy {','.join(POLICIES)}")
        lost = self.losses is not None or self.failures is not None
        if self.cold_start is None and (set(self.policies) != {"static"} or lost):
            raise UsageError(
                "replicas that come and go need a start-up time",
                because="it depends on your storage and your engine",
                hint="--cold-start 90s, or --storage-bandwidth 2GB/s with --engine-start 45s (or --startup-log FILE)",
            )
        if not 0 < self.span <= (DAY if self.replay is None else self.profile.end):
            raise UsageError(f"--duration is more than 0 and at most {'24h' if self.replay is None else 'the log'}")
        if "recorded" in self.policies and not self.ran:
            raise UsageError(
                "the policy recorded needs the replicas that there were", hint="--replay FILE --replay-replicas FILE"
            )
        if self.failures is not None and self.failures.at[-1].at >= self.span:
            raise UsageError(
                f"a failure at {self.failures.at[-1].at:g} s is outside the simulated time",
                because=f"that is {self.span:g} s",
                hint="an earlier --fail, or a longer --duration",
            )
        expected = self.profile.expected(self.span) if self.replay is None else len(self.replay.requests)
        if expected > MOST_REQUESTS:
            raise UsageError(
                f"about {expected:,.0f} requests are more than a run can hold",
                because=f"each request is simulated by itself, of {MOST_REQUESTS:,} at most",
                hint="a shorter --duration, or a lower --peak with as many times fewer replicas",
            )

    @property
    def arrived(self) -> Requests | None:
        """The requests of the log that come in the time simulated; ``None`` where they are drawn."""
        return None if self.replay is None else self.replay.first(self.span).requests


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyDay(Paid):
    """What one policy makes of the day."""

    policy: Policy
    scaling: Scaling
    result: SimulationResult
    work: float
    """Seconds of replicas within the limits that the requests take."""
    minimum_bill: float = 0.0
    """Seconds that a replica is paid for at least."""

    @cached_property
    def lives(self) -> list[Life]:
        """The replicas, from their order until they are gone and paid for, as far as that lies in the span."""
        least = self.minimum_bill
        whole = [life._replace(gone=min(max(life.gone, life.ordered + least), self.span)) for life in self.result.lives]
        return [life for life in whole if life.ordered < self.span]

    @cached_property
    def paid(self) -> tuple[Array, Array]:
        """Times at which the number of replicas that are paid for changes, and the number from each on; the last is the
        end of the span."""
        changes: dict[float, int] = {0.0: 0, self.span: 0}
        for life in self.lives:
            changes[life.ordered] = changes.get(life.ordered, 0) + 1
            changes[life.gone] = changes.get(life.gone, 0) - 1
        times = np.array(sorted(changes))
        return times, np.cumsum([changes[time] for time in times])[:-1]

    @property
    def taken(self) -> int:
        """Replicas that were taken away in the span."""
        return sum(life.taken for life in self.result.lives)

    @property
    def resent(self) -> int:
        """Requests that began anew because their replica was taken away."""
        return sum(life.resent for life in self.result.lives)

    @cached_property
    def outages(self) -> Outages:
        """The failures; the backlog of each is gone when no more requests are in the fleet than for as long before it
        as a replica takes to start, on average."""
        return Outages(self.result, self.scaling.cold_start)

    @cached_property
    def late(self) -> BoolArray:
        """Which of the requests that were sent miss a limit, of their class where there are some; those that never
        finish are among them."""
        records, sent = self.result.records, self.result.counted
        done = records.outcome[sent] == FINISHED
        kept = np.zeros(len(done), dtype=bool)
        if records.of is None:
            kept[done] = np.concatenate([piece.attained for piece in pieces(self.result)])
        of = np.zeros(0) if records.of is None else np.asarray(records.of)[sent]
        for place, (_, result) in enumerate(self.parts):
            kept[done & (of == place)] = result.attained
        return ~kept

    def within(self, start: float, stop: float) -> slice:
        """The requests that come between two times; under each policy later turns come at times of their own."""
        first, last = np.searchsorted(np.asarray(self.result.records.arrival), (start, stop))
        return slice(int(first), int(last))

    @property
    def missed(self) -> float:
        """Share of the requests that are late."""
        return float(np.mean(self.late))

    @cached_property
    def parts(self) -> list[tuple[TrafficClass, SimulationResult]]:
        """The day as each class of traffic sees it; nothing without classes."""
        return class_parts(self.result)

    @property
    def utilisation(self) -> float:
        """What the requests take over what the replicas that are paid for have."""
        paid = self.replica_hours * HOUR
        return self.work / paid if paid else inf

    def percentile(self, name: str, percentile: float) -> float | None:
        """Of ``ttft``, ``tpot`` or ``e2el``, with requests that never finish infinitely late; ``None`` for infinity."""
        value = percentile_in_pieces(self.result, name, percentile)
        return value if value < inf else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Day:
    """The answer: the replica, and the policies in the order in which they were asked for, as far as they are done.
    label: what tells it from the others, where several designs are compared. undone: policies that somebody stopped,
    and the share of their requests that was simulated by then, as far as that was counted."""

    asked: DayAsked
    question: Question
    work: DayWork
    target: float
    tariff: Tariff
    requests: Requests
    policies: list[PolicyDay]
    label: str = ""
    undone: Mapping[Policy, float] = field(default_factory=dict)

    @cached_property
    def happened(self) -> Happened | None:
        """What the log says happened, where it says anything."""
        asked = self.asked
        if asked.replay is None:
            return None
        log = asked.replay.first(asked.span)
        found = Happened(
            log=log,
            ran=asked.ran,
            slo=self.question.slo,
            span=asked.span,
            tariff=self.tariff,
            ranks=self.work.design.deployment.parallel.ranks,
            tiers=asked.tiers,
        )
        return found if found.known else None

    @cached_property
    def hourly(self) -> list[tuple[float, float, slice]]:
        """Where the hours begin and end, in seconds, and which requests come in each under the first policy."""
        span = self.asked.span
        edges = [(hour * HOUR, min((hour + 1) * HOUR, span)) for hour in range(ceil(span / HOUR))]
        return [(start, stop, self.policies[0].within(start, stop)) for start, stop in edges]

    def needed(self, start: float, stop: float) -> int:
        """Replicas that the most of the load between two times takes."""
        return int(self.question.sizing.replicas(self.work.load.most(start, stop - _INSTANT), 1.0))

    @property
    def days(self) -> float:
        """What of the span is multiplied by to be of a day."""
        return DAY / self.asked.span


@dataclass(frozen=True, kw_only=True, eq=False)
class DayEnergy:
    """Joules and CO2 of one policy in the span that is simulated, hour by hour (docs/power.md).

    A device stands by from the order of its replica until that is gone. What steps add to it is that of the mean steps
    of the whole run, and is spread over the hours as their requests are.
    """

    day: Day
    policy: PolicyDay
    asked: EnergyAsked

    @cached_property
    def steps(self) -> tuple[float, float]:
        """Joules that steps add: to what devices draw for being on, and by what their kernels work. None where no
        request was served. Raises ``MissingFactError`` without a TDP; models whose energy is not known are refused
        before a day is simulated.
        """
        deployment = self.day.work.design.deployment
        found, shares = run_energy(deployment, self.policy.result), power_shares(deployment.hardware)
        if found is None:
            return 0.0, 0.0
        return deployment.hardware.tdp * (shares.running - shares.standing) * found.busy, found.joules - found.on

    @cached_property
    def hours(self) -> list[tuple[float, float]]:
        """Of every hour what the devices draw for being on and what they work, in joules of the devices alone."""
        deployment, requests = self.day.work.design.deployment, len(self.policy.late)
        running, worked = self.steps
        standing = standing_watts(deployment.hardware) * deployment.parallel.ranks
        found = []
        for start, stop, _ in self.day.hourly:
            which = self.policy.within(start, stop)
            share = (which.stop - which.start) / requests
            on = standing * self.policy.mean_replicas(start, stop) * (stop - start) + running * share
            found.append((on, worked * share))
        return found

    @cached_property
    def kwh(self) -> list[float]:
        """Of every hour, with what is counted beside the devices."""
        ranks = self.day.work.design.deployment.parallel.ranks
        return [
            self.asked.whole(on + worked, ranks, self.policy.mean_replicas(start, stop) * (stop - start))
            / JOULES_PER_KWH
            for (on, worked), (start, stop, _) in zip(self.hours, self.day.hourly)
        ]

    @property
    def grams(self) -> list[float] | None:
        """CO2 of every hour; ``None`` where nobody says what a kWh has."""
        carbon = self.asked.carbon
        if carbon is None:
            return None
        replay = self.day.asked.replay
        begins = replay.began if replay is not None and replay.dated else 0.0
        return [
            kwh * carbon.between(begins + start, begins + stop)
            for kwh, (start, stop, _) in zip(self.kwh, self.day.hourly)
        ]

    @property
    def idle_share(self) -> float:
        """Of the devices' joules what they take for being on."""
        on, worked = (sum(hour[part] for hour in self.hours) for part in (0, 1))
        return on / (on + worked)

    @property
    def per_output_token(self) -> float:
        """Joules over the output tokens of the span."""
        return sum(self.kwh) * JOULES_PER_KWH / float(np.sum(self.day.requests.output))


@dataclass(frozen=True, kw_only=True, eq=False)
class DayDesign:
    """A replica, with what is asked of a day with it: of the same requests as others, where several are compared."""

    request: Request
    deployment: Deployment
    question: Question
    asked: DayAsked
    label: str = ""
    speculation: Speculation = PLAIN

    @property
    def tariff(self) -> Tariff:
        """What replicas cost."""
        parallel = self.deployment.parallel
        return self.question.prices.require(self.deployment.hardware.name, parallel.ranks, parallel.tp)

    def work(self) -> DayWork:
        """What a replica carries, by simulation; where turns are :func:`scattered`, as if they found nothing."""
        profile, extras = self.asked.profile, ReplicaExtras(self.asked.tiers, self.speculation)
        if not scattered(self.asked, self.question):
            return work_of(self.request, self.deployment, self.question, profile, extras)
        uncached = with_flags(self.deployment, Flags(prefix_caching=False))
        try:
            return work_of(self.request, uncached, self.question, profile, extras)
        except InfeasibleError as error:
            because = f"{error.because}, and {self.asked.routing} routing sends later turns to replicas without them"
            raise InfeasibleError(error.what, because=because, hint=f"--routing sticky, or {error.hint}") from None

    def target(self, work: DayWork) -> float:
        """Requests in a replica that the reactive policy aims at."""
        return self.asked.autoscaler.target or work.design.requests

    def scaling(self, policy: Policy, work: DayWork) -> Scaling:
        """How replicas come and go under a policy."""
        load, timetable = work.load, self.asked.timetable
        if policy == "scheduled" and timetable is not None:
            load = timetable.weighted([1 / work.design.rate] * len(timetable.rates))
        return scaling_of(policy, self.asked, self.question, load, self.target(work))

    def served(
        self,
        policy: Policy,
        work: DayWork,
        requests: Requests,
        spool: Spool | None,
        progress: Callable[[int], None] | None,
    ) -> SimulationResult:
        """The day under one policy, on devices as predicted. spool: where its records are kept, if not in memory."""
        scaling = self.scaling(policy, work)
        asked = self.asked
        fleet = Fleet(routing=asked.routing, scaling=scaling, losses=asked.losses, failures=asked.failures)
        options = options_of(replace(work.design.option, slow=AS_PREDICTED), self.question, fleet)
        options = replace(options, progress=progress, tokens_timed=False, spool=spool)
        return simulate(self.deployment, requests, work.design.flags, options)

    def day(
        self,
        work: DayWork,
        requests: Requests,
        results: Mapping[Policy, SimulationResult],
        undone: Mapping[Policy, float],
    ) -> Day:
        """The answer from what each policy gives, of those that were simulated to the end, and how far others came."""
        taken = work.seconds(len(requests), self.asked.profile, self.asked.span)
        policies = [
            PolicyDay(
                policy=policy,
                scaling=self.scaling(policy, work),
                result=result,
                span=self.asked.span,
                tariff=self.tariff,
                ranks=self.deployment.parallel.ranks,
                tiers=self.asked.tiers,
                work=taken,
                minimum_bill=self.asked.minimum_bill,
            )
            for policy, result in results.items()
        ]
        return Day(
            asked=self.asked,
            question=self.question,
            work=work,
            target=self.target(work),
            tariff=self.tariff,
            requests=requests,
            policies=policies,
            label=self.label,
            undone=undone,
        )


def simulate_day(
    request: Request,
    deployment: Deployment,
    question: Question,
    asked: DayAsked,
    progress: Callable[[int], None] | None = None,
) -> Day:
    """:func:`simulate_days` of one design."""
    design = DayDesign(request=request, deployment=deployment, question=question, asked=asked)
    return simulate_days([design], progress)[0]


def simulate_days(
    designs: Sequence[DayDesign],
    progress: Callable[[int], None] | None = None,
    jobs: Jobs = 1,
    warn: Callable[[str], object] | None = None,
) -> list[Day]:
    """Serve the profile, or the log, under each policy with each design. jobs: who does it; the answer is the same for
    any of them. The rate of the question's demand does not matter.

    progress: called with the requests that are done, of all policies together. warn: told what takes more memory than
    it should. Ctrl-C ends it: the answer then has the policies that are done, and the designs that have any. Raises
    ``InfeasibleError`` where a replica keeps the limits under no load, ``KeyboardInterrupt`` where no policy is done.
    """
    for one in designs:
        require_together("day", one.deployment.features | one.question.features | {"elastic"})
        _ = one.tariff  # an error without a price, before the day
        require_currency(one.asked.tiers, one.question.prices.currency)
        _require_short(one.question.demand, one.asked.span, one.deployment.model.max_context)
    first = designs[0]
    requests = day_requests(first.question, first.asked, first.deployment.engine.defaults.block_size)
    for one in designs:
        require_conversations(one.asked.routing, requests)
    kept = [requests, *designs, *(one.deployment for one in designs), *(one.question for one in designs)]
    works: list[DayWork] = run_beside([one.work for one in designs], jobs, kept)
    runs = [(place, policy) for place, one in enumerate(designs) for policy in one.asked.policies]
    told = Progress(len(runs), progress)
    far = isinstance(jobs, str)  # other machines do not see files of this one
    asks = progress is not None or isinstance(jobs, str) or 1 < jobs < len(runs)
    known = [requests.arrival if requests.follows is None else None, requests.prompt, requests.output]
    told_once = None if warn is None else cache(warn)
    spools = [None if far else spool_for(known, told_once) for _ in runs]
    kept = [*kept, *works, *(one for spool in spools if spool for one in (spool, *spool.columns))]
    tasks = [
        partial(designs[place].served, policy, works[place], requests, spools[run], told.of(run) if asks else None)
        for run, (place, policy) in enumerate(runs)
    ]
    try:
        results = dict(enumerate(run_beside(tasks, jobs, kept, told)))
    except StoppedError as stopped:
        results = stopped.found
        if not results:
            raise
    days = []
    for place, (one, work) in enumerate(zip(designs, works)):
        mine = {policy: run for run, (design, policy) in enumerate(runs) if design == place}
        done = {policy: results[run] for policy, run in mine.items() if run in results}
        undone = {policy: told.done(run) / len(requests) for policy, run in mine.items() if run not in results}
        if done:
            days.append(one.day(work, requests, done, undone))
    return days


def day_requests(question: Question, asked: DayAsked, block: int = 16) -> Requests:
    """The requests of the day, each with its adapter where they name some. block: tokens of the names of shared text.
    Raises ``UsageError`` without any."""
    found, demand = _requests_of(question, asked, block), question.demand
    return found if demand.adapters is None else found.naming(demand.adapters, asked.seed, demand.samples)


def _requests_of(question: Question, asked: DayAsked, block: int) -> Requests:
    """Those of the log; or arrivals by the profile, lengths and media of the demand, or of the class of each, which is
    drawn by the rates of the moment; or sessions that begin by it."""
    if (recorded := asked.arrived) is not None:
        return recorded
    demand, classes = question.demand, question.demand.classes
    if demand.sessions is not None:
        return replace(demand.sessions, seed=asked.seed).beginning(_begins(demand, asked, calls_of(demand.sessions)))
    if not classes and (demand.prefix.turns > 1 or demand.samples > 1):
        return _conversations(demand, asked, block)
    arrival, step = asked.profile.placed(asked.span, demand.arrivals, demand.burstiness, asked.seed)
    if not len(arrival):
        raise UsageError("no request arrives in the simulated time", hint="a longer --duration, or a higher --peak")
    if classes:
        of, prompt, output = drawn_of(classes, asked.seed, asked.profile.shares, step)
        before = demand.output.thoughts(np.random.default_rng((asked.seed, 6)), len(arrival))
        output = output if before is None else output + before
        return Requests(prompt=prompt, output=output, arrival=arrival, classes=classes, of=of, before=before)
    rng = np.random.default_rng((asked.seed, 1))
    own = demand.own or demand.text or demand.prompt
    prompt, (output, before) = own.sample(rng, len(arrival)), demand.output.sample_parts(rng, len(arrival))
    if demand.media is not None:
        sets = demand.media.sets.sample(np.random.default_rng((asked.seed, 3)), len(arrival))
        prompt = prompt + sets * demand.media.tokens
        return Requests(prompt=prompt, output=output, arrival=arrival, media=sets, before=before)
    if not demand.prefix.tokens:
        return Requests(prompt=prompt, output=output, arrival=arrival, before=before)
    prompt = prompt + demand.prefix.tokens
    texts = np.random.default_rng((asked.seed, 2)).integers(demand.prefix.distinct, size=len(arrival)).tolist()
    common, full = [demand.prefix.tokens // block] * len(arrival), ((prompt + output - 1) // block).tolist()
    names = Streams(texts, common, range(len(arrival)), full)
    return Requests(prompt=prompt, output=output, arrival=arrival, hashes=names, hash_block=block, before=before)


def _require_short(demand: Demand, span: float, context: int | None) -> None:
    """Conversations of a day end within it, and in the context of its model. Raises ``UsageError`` for longer ones."""
    require_turns(demand.prompt if demand.own is None else demand.own, demand.output, demand.prefix, context)
    if (lasts := (demand.prefix.turns - 1) * demand.prefix.think.mean) > span:
        raise UsageError(
            f"a conversation thinks for {format_time(lasts, 3)} in all, and {format_time(span, 3)} are simulated",
            hint="fewer --turns, a shorter --think-time, or a longer --duration",
        )


def scattered(asked: DayAsked, question: Question) -> bool:
    """Whether later turns of conversations go to any replica, and find little of what the others keep."""
    kept = asked.routing in ("sticky", "cache-aware") or any(tier.shared for tier in asked.tiers)
    return (question.demand.prefix.turns > 1 or question.demand.of_sessions) and not kept


def _conversations(demand: Demand, asked: DayAsked, block: int) -> Requests:
    """Conversations that begin by the profile, which has the rate of all answers of all their turns; every turn after
    the first comes a think time after the answer before it."""
    turns = demand.prefix.turns
    starts = _begins(demand, asked, turns * demand.samples)
    traffic = Traffic(
        arrivals=OpenLoop(rate=1.0),
        prompt=demand.prompt if demand.own is None else demand.own,
        output=demand.output,
        requests_count=len(starts) * turns,
        prefix=demand.prefix,
        samples=demand.samples,
        seed=asked.seed,
    )
    return traffic.beginning(starts, block)


def _begins(demand: Demand, asked: DayAsked, requests: float) -> Floats:
    """When conversations, or sessions, of so many requests begin: the profile has the rate of requests."""
    begin = asked.profile.scaled(asked.profile.peak / requests)
    starts, _ = begin.placed(asked.span, demand.arrivals, demand.burstiness, asked.seed)
    if not len(starts):
        raise UsageError("no conversation begins in the simulated time", hint="a longer --duration, or a higher --peak")
    return starts


def replicas_for(load: float, asked: DayAsked, question: Question) -> int:
    """Replicas for a load of so many busy ones, each given its share of what it carries, within the bounds; none for no
    requests."""
    count = int(question.sizing.replicas(load, 1.0)) if load else 0
    return min(max(count, asked.least), asked.most)


def scaling_of(policy: Policy, asked: DayAsked, question: Question, load: Profile, target: float) -> Scaling:
    """How replicas come and go under a policy. load: the replicas that the profile would keep busy, over time.

    Scheduled: at any time those for the largest rate from then until a replica that is ordered then would be ready. All
    that are there at the beginning are ready.
    """
    seconds = asked.cold_start.seconds if asked.cold_start is not None else 0.0
    if policy == "static":
        peak = load.most(0.0, asked.span - _INSTANT)
        return Schedule(changes=((0.0, int(question.sizing.replicas(peak, 1.0))),), cold_start=seconds)
    if policy == "scheduled":
        return _timetable(load, lambda busy: replicas_for(busy, asked, question), asked.span, seconds)
    if policy == "recorded":
        starts, counts = zip(*asked.ran)
        ran = Profile(name="replicas", starts=starts, rates=counts, end=max(asked.span, starts[-1] + 1.0))
        return _timetable(ran, round, asked.span, seconds)
    first = replicas_for(load.rates[0], asked, question)
    rule = asked.autoscaler
    return Reactive(
        target=target,
        first=first,
        cold_start=seconds,
        least=asked.least,
        most=asked.most,
        interval=rule.interval,
        tolerance=rule.tolerance,
        stabilisation=rule.stabilisation,
        until=asked.span,
    )


def _timetable(load: Profile, replicas: Callable[[float], int], span: float, seconds: float) -> Schedule:
    """At any time the replicas for the most from then until one that is ordered then is ready, ``seconds`` later."""
    edges = {start for start, _ in load.steps(span)}
    edges |= {start - seconds for start, _ in load.steps(span + seconds) if start > seconds}
    changes: list[tuple[float, int]] = []
    for time in sorted(edges):
        wanted = replicas(load.most(time + _INSTANT, time + seconds + _INSTANT))
        if not changes or wanted != changes[-1][1]:
            changes.append((time, wanted))
    return Schedule(changes=tuple(changes), cold_start=seconds)
