"""The entry point of the simulator: a deployment, its traffic and its flags in, a :class:`SimulationResult` out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from math import ceil, isfinite
from typing import Any

import numpy as np

from inferplan.devices.constants import BeginsAs
from inferplan.errors import UsageError
from inferplan.estimate.anchoring import anchored_bands, correction
from inferplan.estimate.bands import serving_bands
from inferplan.estimate.deployment import Deployment, parts_rest_on
from inferplan.estimate.load import Band
from inferplan.estimate.phase import media_seconds, run_step
from inferplan.estimate.resting import PARTS, Resting
from inferplan.estimate.structured import MaskedSteps, masks_record
from inferplan.estimate.support import DRAFTS, POOLS, measured_tail
from inferplan.features import require_together, those
from inferplan.mapped import Spool
from inferplan.models.spec import require_readable, require_tokens
from inferplan.serving.adapter_times import AdapterModifier
from inferplan.serving.admission import Rules
from inferplan.serving.cache_transfer import Links, handoff_of
from inferplan.serving.cluster import EngineKind
from inferplan.serving.cluster_run import ClusterRun
from inferplan.serving.elastic import ElasticReplicas
from inferplan.serving.flags import Flags, rules_of, verifying, with_flags
from inferplan.serving.masked_times import MaskModifier
from inferplan.serving.options import Options
from inferplan.serving.prefix_cache import PrefixCache
from inferplan.serving.records import NAN, Meter, Records
from inferplan.serving.result import SimulationResult
from inferplan.serving.routing import Routing
from inferplan.serving.session_process import SessionProcess
from inferplan.serving.step_price import StepModifier
from inferplan.serving.step_times import DENSE_ROWS, Kept, Reach, StepTimes, step_times
from inferplan.serving.techniques.lora import adapter_bytes, adapter_pool
from inferplan.serving.techniques.speculation import PLAIN, Speculation, one_graph
from inferplan.serving.techniques.tiers import CacheTier, chains_of, nothing_shared, require_tiers
from inferplan.serving.waiting import QueueOrder
from inferplan.traffic.reasoning import ReasoningLengths
from inferplan.traffic.requests import ClosedLoop, Requests, Traffic
from inferplan.work.step import decode

_REQUESTS_TO_TIME = 2
"""Requests of each user that tell how long one takes where all begin at once; in conversations all turns of one."""
_TIMED = 600
"""Requests that tell it, at most, of users who think and begin anywhere in their cycle."""
_LONGEST_TABLE = 1 << 22
"""Contexts beyond this many tokens are priced along the last slope of the table."""


_SEQUENCES = 128
"""Tables are made for multiples of so many sequences, as far as that changes nothing in them."""

MOST_ENGINES = 10_000
"""Engines of one run: replicas times attention data-parallel ranks, of both pools."""


def features_of_run(deployment: Deployment, traffic: Traffic | Requests, flags: Flags, options: Options) -> set[str]:
    """What a run has beyond plain requests on one replica, as :mod:`inferplan.features` names it."""
    found = (
        deployment.features
        | traffic.features
        | options.features
        | those(queue=flags.queue != "fcfs", fair_queue=flags.queue == "fair")
    )
    return found.union(*(other.deployment.features for other in options.fleet.others))


def simulate(
    deployment: Deployment,
    traffic: Traffic | Requests,
    flags: Flags | None = None,
    options: Options | None = None,
    times: StepTimes | None = None,
) -> SimulationResult:
    """Simulate ``traffic`` on a deployment under serving ``flags``; ``times`` of its steps, if somebody has them.

    ``traffic`` is a recipe, or requests with arrival times (a trace). Attention data-parallel ranks and replicas are
    engines of their own behind the router of ``options.fleet``, which also says what the replicas that compute prompts
    are where they differ from ``deployment`` and ``flags``. Raises ``InfeasibleError`` when the weights leave no room
    for a cache, ``UsageError`` for a trace without times.
    """
    run = prepare(deployment, traffic, flags, options, times)
    return run.result(run.cluster.run(run.options.warmup, run.fill, run.options.jobs))


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A run that has not begun: its engines and requests. fill: requests at the head that fill the system; drain: those
    at the end of a closed loop beside which it runs empty; 0 where their times tell."""

    deployment: Deployment
    prompts: Deployment
    """What computes prompts."""
    flags: Flags
    options: Options
    traffic: Traffic | Requests
    closed: ClosedLoop | None
    kind: EngineKind
    cluster: ClusterRun
    elastic: ElasticReplicas | None
    fill: int
    drain: int
    typical: float
    """Tokens of a mean prompt."""

    def result(self, meters: Sequence[Meter]) -> SimulationResult:
        """What the run says when it has ended."""
        cluster, closed, options = self.cluster, self.closed, self.options
        fill = self.fill if isfinite(cluster.metering.span[0]) else 0  # where too few are ever sent all of them count
        records, deployment, rules = cluster.records, self.deployment, self.kind.rules
        traffic = self.traffic if closed is None else _in_loop(self.traffic, closed)
        pools = (self.prompts, deployment, *(one.deployment for one in options.fleet.others))
        found = SimulationResult(
            records=records,
            meters=meters,
            closed=closed is not None,
            slo=options.slo,
            warmup=options.warmup + fill,
            cooldown=((self.drain or _cooldown(records)) if fill else 0) + _never_sent(records),
            metered=(cluster.metering.span[0], cluster.metering.span[1]) if fill else None,
            bases=_bases(pools, self.typical),
            bands=_bands(self.prompts, deployment, self.typical, _forms(options)),
            tail=measured_tail(self.prompts, _load(closed), _forms(options)),
            capacity=rules.capacity if rules.growing else 0.0,
            prompt_pool=(len(cluster.front.pool), cluster.kinds[0].rules.capacity) if cluster.back.pool else (0, 0.0),
            slots=rules.slots,
            lives=() if self.elastic is None else self.elastic.lives,
            outages=() if self.elastic is None else self.elastic.outages,
            conditions=_conditions(cluster, self.flags, traffic, options),
        )
        return _anchored(found, deployment, None if closed is None else closed.concurrency)

    def so_far(self, count: int) -> SimulationResult:
        """What the first ``count`` requests of an open loop in order say as the last of them comes. Those that have
        begun to answer and are not done are left out; of steps only the largest is told.
        """
        whole, rules = self.cluster.records, self.kind.rules
        which = np.zeros(len(whole.prompt), dtype=bool)
        which[:count] = np.isnan(np.asarray(whole.first)[:count]) | ~np.isnan(np.asarray(whole.finish)[:count])
        records = whole.only(which)
        fill = len(records.prompt) // 4 if self.fill else 0
        found = SimulationResult(
            records=records,
            meters=(),
            closed=False,
            slo=self.options.slo,
            warmup=fill,
            cooldown=_cooldown(records) if fill else 0,
            metered=(records.arrival[fill], whole.arrival[count - 1]) if fill else None,
            slots=rules.slots,
        )
        largest = max(meter.largest_step for meter in self.cluster.meters)
        return replace(found, meters=(Meter(waited={"queue": float(np.sum(found.wait))}, largest_step=largest),))


def prepare(
    deployment: Deployment,
    traffic: Traffic | Requests,
    flags: Flags | None = None,
    options: Options | None = None,
    times: StepTimes | None = None,
) -> Prepared:
    """What :func:`simulate` runs, before it does; raises as that."""
    require_tokens(deployment.model, "serving under load")
    flags, options = flags or Flags(), options or Options()
    require_together("simulate", features_of_run(deployment, traffic, flags, options))
    require_tiers(options.tiers)
    _require_engines(deployment, options)
    given, deployment = deployment, with_flags(deployment, flags)
    apart = options.fleet.prompts(given, flags)
    prompts = deployment if apart is None else apart[0]
    requests, closed = _drawn(prompts, traffic, options, flags.queue)
    require_readable(deployment.model, requests.prompt, requests.output)
    starts: list[float] = []
    if closed is not None and not closed.burst and closed.ramp is None:
        closed = replace(closed, ramp=_ramp(given, requests.in_loop(closed), flags, options))
        starts = _starts(requests, closed)
    kind = _kind((deployment, flags), requests, options, times)
    records = _records(requests, options.spool)
    records.tokens_timed = options.tokens_timed
    seed = traffic.seed if isinstance(traffic, Traffic) else 0
    drafts = [options.speculation, *(one.speculation or options.speculation for one in options.fleet.others)]
    paces = [one.paces(len(requests), seed) for one in drafts]
    records.paces = paces[0]
    cluster = ClusterRun(options.fleet, records, closed, options.progress)
    cluster.timeline, cluster.starts, cluster.paces = options.timeline, starts, paces
    if requests.sessions is not None:
        SessionProcess(cluster)
    elastic = None if options.fleet.scaling is None else ElasticReplicas(cluster)
    beside = ((with_flags(one.deployment, one.flags), one.flags) for one in options.fleet.others)
    others = [
        _kind(served, _in_pages(traffic, served[0], requests), replace(options, speculation=drafted))
        for served, drafted in zip(beside, drafts[1:])
    ]
    cluster.build(kind, None if apart is None else _kind(apart, requests, options), others)
    return Prepared(
        deployment=deployment,
        prompts=prompts,
        flags=flags,
        options=options,
        traffic=traffic,
        closed=closed,
        kind=kind,
        cluster=cluster,
        elastic=elastic,
        fill=_fill(requests, None if starts else closed, options),
        drain=0 if closed is None or starts else closed.concurrency * requests.turns,
        typical=float(np.mean(requests.prompt)),
    )


def _records(requests: Requests, spool: Spool | None) -> Records:
    """Of requests that are still to be sent."""
    records = Records(
        arrival=np.full(len(requests), NAN) if requests.arrival is None else requests.arrival,
        prompt=requests.prompt,
        output=requests.output,
        hashes=requests.hashes,
        follows=None if requests.follows is None else requests.follows.tolist(),
        spool=spool,
    )
    if requests.think is not None:
        records.pausing(requests.think)
    records.samples = requests.samples
    if requests.before is not None:
        records.thinking(requests.before)
    if requests.of is not None:
        records.classed(requests.classes, requests.of)
    records.sessions = requests.sessions
    return records


def _encoder(deployment: Deployment, requests: Requests) -> list[float] | None:
    """Seconds that the towers of a deployment take for each request, by itself; ``None`` for text alone."""
    if requests.media is None:
        return None
    counts, which = np.unique(requests.media, return_inverse=True)
    seconds: list[float] = np.asarray(media_seconds(deployment, counts.astype(np.float64)))[which].tolist()
    return seconds


def _require_engines(deployment: Deployment, options: Options) -> None:
    """Raise ``UsageError`` for more of them than are simulated."""
    if (engines := options.fleet.engines(deployment)) > MOST_ENGINES:
        raise UsageError(
            f"{engines:,} engines are more than a run can hold",
            because=f"each replica and attention rank is simulated; {MOST_ENGINES:,} are the most",
            hint="fewer replicas, and as much less load",
        )


def _ramp(deployment: Deployment, requests: Requests, flags: Flags, options: Options) -> float:
    """Seconds over which the users of a closed loop begin: one cycle of a user, from a request (or a conversation) to
    the next, with the think time between the two.

    Users who begin in less come back together: a constant think time keeps them in step for ever. A request is timed
    with users who begin over their think times, or all at once where nobody thinks.
    """
    assert requests.loop is not None
    turns, users = requests.turns, requests.loop.concurrency
    think = _mean_think(requests)
    each = turns if turns > 1 or think else _REQUESTS_TO_TIME
    count, ramp = each * users, turns * think
    if _begins_anywhere(requests) and count > _TIMED:
        count, ramp = _TIMED, ramp * _TIMED / count
    timed = replace(requests.loop, burst=not think, ramp=ramp)
    return request_time(deployment, requests.head(count).in_loop(timed), flags, options) + think


def _begins_anywhere(requests: Requests) -> bool:
    """Whether users of a closed loop begin as those of one that has run for long: they think, and no request of theirs
    goes on from another."""
    return requests.phases is not None and requests.turns == requests.samples == 1


def _starts(requests: Requests, closed: ClosedLoop) -> list[float]:
    """When each user of a closed loop who thinks sends the first request of the run, where the loop has run for long
    before; empty where users begin otherwise.

    A moment falls into a cycle (an answer and the think time after it) with a chance in proportion to its length, and
    anywhere in it (Cox, Renewal Theory, 1962). All answers take as long as that of the ramp.
    """
    if requests.phases is None or requests.think is None or not _begins_anywhere(requests):
        return []
    cycles = requests.think + max((closed.ramp or 0.0) - _mean_think(requests), 0.0)
    ends, (which, left) = np.cumsum(cycles), requests.phases
    chosen = np.minimum(np.searchsorted(ends, which * ends[-1], "right"), len(cycles) - 1)
    starts: list[float] = (left * cycles[chosen]).tolist()
    return starts


def _mean_think(requests: Requests) -> float:
    """Mean seconds from an answer to a user's next request; 0 of sessions, whose gaps are part of them."""
    if requests.think is None or requests.sessions is not None:
        return 0.0
    return float(np.mean(requests.think))


def request_time(
    deployment: Deployment, traffic: Traffic | Requests, flags: Flags, options: Options | None = None
) -> float:
    """Mean seconds of a request, or a conversation, of a closed loop; 0 where none can run."""
    plain = replace(options or Options(), warmup=0, trim=False, timeline=False, progress=None)
    if plain.fleet.failures is not None:
        plain = replace(plain, fleet=replace(plain.fleet, failures=None, scaling=None))
    run = simulate(deployment, traffic, flags, plain)
    return run.records.conversation(float(np.mean(run.e2el))) if len(run.e2el) else 0.0


def require_conversations(routing: Routing, requests: Requests) -> None:
    """Raise ``UsageError`` for a routing by conversations where there are none."""
    if routing == "sticky" and requests.follows is None:
        raise UsageError("sticky routing needs conversations", hint="--turns 4, or --routing round-robin")


def _in_pages(traffic: Traffic | Requests, deployment: Deployment, known: Requests | None = None) -> Requests:
    """The requests, their blocks named in the pages of a deployment; those ``known`` where that changes nothing."""
    block = deployment.engine.defaults.block_size
    if known is not None and (known.hashes is None or block == known.hash_block):
        return known
    return traffic.in_blocks(block) if isinstance(traffic, Requests) else traffic.requests(block)


def _drawn(
    deployment: Deployment, traffic: Traffic | Requests, options: Options, order: QueueOrder
) -> tuple[Requests, ClosedLoop | None]:
    """The requests of a run, and the closed loop that sends them, if it is one."""
    requests = _in_pages(traffic, deployment)
    arrivals = traffic.arrivals if isinstance(traffic, Traffic) else traffic.loop
    closed = arrivals if isinstance(arrivals, ClosedLoop) else None
    if closed is None and requests.arrival is None:
        raise UsageError("requests without arrival times need a closed loop", hint="--in-flight, or times in the trace")
    if order != "fcfs" and requests.of is None:
        raise UsageError(f"--queue {order} needs classes of traffic", hint="--classes FILE, or leave it out")
    require_conversations(options.fleet.routing, requests)
    if options.structured is not None and options.speculation.branches > 1:
        raise UsageError(
            "masks of a tree of drafts are not known",
            because="the engine that is known steps a grammar through one chain of drafted tokens",
            hint="--draft-branches 1, or leave --structured-share out",
        )
    if options.warmup >= len(requests):
        raise UsageError(
            f"--warmup {options.warmup} leaves nothing of {len(requests):,} requests to count", hint="more --requests"
        )
    return requests, closed


def _fill(requests: Requests, closed: ClosedLoop | None, options: Options) -> int:
    """Requests at the head that fill the system: a quarter of an open loop, the first request or conversation of each
    user in a closed one of two or more users with four or more for each, the first two where users think and there are
    six or more; none where nothing is trimmed.

    A first cycle is as even as the ramp. The times of the requests in it spread the users before the third. Users who
    begin anywhere in their cycle fill the system as an open loop does.
    """
    if not options.trim:
        return 0
    count = len(requests) - options.warmup
    if closed is None:
        return count // 4
    round_of_all = closed.concurrency * requests.turns
    if closed.concurrency == 1 or count < 4 * round_of_all:
        return 0
    return round_of_all * (2 if _mean_think(requests) and count >= 6 * round_of_all else 1)


def _cooldown(records: Records) -> int:
    """Requests at the end of an open loop beside which the system runs empty: those that come later than the mean time
    of a request before the last one that begins anything.
    """
    arrival, finish = np.asarray(records.arrival), np.asarray(records.finish)
    times = (finish - arrival)[len(arrival) // 4 :]
    if np.all(np.isnan(times)):
        return 0
    late = arrival > float(np.nanmax(arrival[records.begins])) - float(np.nanmean(times))
    return min(int(np.sum(late)), len(arrival) // 4)


def _never_sent(records: Records) -> int:
    """Calls of sessions that their users gave up before; they stand at the end."""
    return 0 if records.sessions is None else int(np.sum(np.isnan(np.asarray(records.arrival))))


def _in_loop(traffic: Traffic | Requests, closed: ClosedLoop) -> Traffic | Requests:
    """The traffic with the closed loop that sent it."""
    return replace(traffic, arrivals=closed) if isinstance(traffic, Traffic) else traffic.in_loop(closed)


def _kind(
    served: tuple[Deployment, Flags], requests: Requests, options: Options, times: StepTimes | None = None
) -> EngineKind:
    """The engines of a deployment that already has its flags."""
    deployment, flags = served
    speculation = options.speculation.beside(deployment)
    rules = _rules(deployment, flags, replace(options, speculation=speculation), requests)
    priced = partial(times_for, rules=rules, requests=requests, speculation=speculation)
    adapters = adapter_pool(deployment, requests, options.lora_bandwidth, priced)
    if adapters is not None:
        times = adapters.times(1)
    times = times or times_for(deployment, rules, requests, speculation)
    cache = _caches((deployment, speculation.draft), requests, rules, options)
    shares = any(tier.shared for tier in options.tiers)
    modifiers: list[StepModifier] = [] if adapters is None else [AdapterModifier(adapters)]
    if options.structured is not None:
        masks = MaskedSteps(
            deployment=deployment,
            structured=options.structured,
            width=speculation.width,
            together=requests.samples,
        )
        modifiers.append(MaskModifier(masks))
    return EngineKind(
        deployment,
        times,
        rules,
        cache,
        draft=speculation.draft,
        adapters=adapters,
        shares=shares,
        modifiers=tuple(modifiers),
        encoder=_encoder(deployment, requests),
        hashes=requests.hashes,
    )


def _rules(deployment: Deployment, flags: Flags, options: Options, requests: Requests) -> Rules:
    """The rules of the engine's flags, with what speculation, a given hit rate and the host's memory change."""
    speculation = options.speculation
    typical = float(np.mean(requests.prompt)), requests.mean_tokens
    rules, block = rules_of(deployment, flags, *typical, speculation.draft), deployment.engine.defaults.block_size
    rules = verifying(rules, speculation.width, deployment.parallel.pp)
    counted = rules.growing and speculation.tokens == 1.0
    return replace(
        rules,
        page=block if counted else 1,
        overhead=rules.overhead - (block - 1) / 2 if counted else rules.overhead,
        tokens_per_step=speculation.tokens,
        hit_rate=options.hit_rate,
        layers=ceil(len(deployment.model.sequence) / deployment.parallel.pp),
    )


def _no_cache() -> None:
    """No prefix cache."""


def _caches(
    served: tuple[Deployment, Deployment | None], requests: Requests, rules: Rules, options: Options
) -> Callable[[], PrefixCache | None]:
    """Makes the prefix cache of each engine, where it looks for one; preempted requests find their own blocks at least.

    served: the deployment, and what drafts beside it.
    """
    if not rules.scheduler.prefix_caching or not rules.growing:
        if options.tiers:
            raise UsageError(
                "--cache-tier keeps what a prefix cache drops, and there is none",
                hint="--prefix-caching, a model whose cache grows with its tokens, or leave the tiers out",
            )
        return _no_cache
    if options.tiers and requests.hashes is None and requests.sessions is None:
        raise nothing_shared()
    deployment = served[0]
    block = requests.hash_block or deployment.engine.defaults.block_size
    tiers, host = options.tiers, options.host
    if host is not None:
        tiers = (CacheTier(name="host", capacity=host.capacity, bandwidth=host.bandwidth, layered=False),)
        served = deployment, None
    made = chains_of(tiers, served, block)
    return lambda: PrefixCache(block, made())


def times_for(deployment: Deployment, rules: Rules, requests: Requests, speculation: Speculation = PLAIN) -> StepTimes:
    """Times of steps as far as these requests under these rules can reach."""
    count = len(requests)
    longest = requests.most_tokens
    sequences = min(rules.slots, count, max(int(rules.capacity // max(rules.held(1, 1), 1e-9)), 1))
    whole_batch = int(np.max(requests.prompt)) * sequences
    reach = Reach(
        sequences=sequences,
        tokens=min(rules.budget, max(whole_batch, longest)),
        context=min(longest, rules.longest, _LONGEST_TABLE),
        source=None if deployment.model.encoder is None else float(np.mean(requests.prompt)),
    )
    if speculation is PLAIN:
        return _known_times(deployment, replace(reach, sequences=_rounded(reach.sequences)))
    times = step_times(deployment, reach, speculation.width)
    times.drafts = draft_times(speculation, reach)
    return times


def _rounded(sequences: int) -> int:
    """So many sequences or some more, so that one table serves fleets of many sizes. Up to :data:`DENSE_ROWS` each has
    an entry of its own, so that the table of more says the same of fewer."""
    return max(sequences, min(-(-sequences // _SEQUENCES) * _SEQUENCES, DENSE_ROWS))


_KNOWN = Kept[StepTimes](32)


def _known_times(deployment: Deployment, reach: Reach) -> StepTimes:
    """The tables without drafts: the same replicas are simulated under one load after another, and in other numbers."""
    return _KNOWN.get(deployment, reach, lambda: step_times(deployment, reach))


@lru_cache(maxsize=4)
def draft_times(speculation: Speculation, reach: Reach) -> list[tuple[StepTimes, int]]:
    """Times of the passes of a round of drafts, and how many there are of each."""
    found = []
    for model, width, passes in speculation.passes:
        times = step_times(model, reach, width)
        found.append((replace(times, host=0.0, host_sequence=0.0) if one_graph(model) else times, passes))
    return found


_BASES = Kept[str](32)
_BANDS = Kept[dict[str, Band]](32)


def _bases(pools: Iterable[Deployment], context: float) -> tuple[str, ...]:
    """What most of a step's time rests on, in each pool."""

    def made(deployment: Deployment) -> str:
        shares = run_step(deployment, decode(1.0, context)).by_basis()
        return max(shares, key=lambda name: shares[name])

    found = [_BASES.get(one, context, partial(made, one)) for one in dict.fromkeys(pools)]
    return tuple(dict.fromkeys(found))


def _forms(options: Options) -> tuple[str, ...]:
    """What a run has beyond its deployment that measured systems must have had too."""
    forms = {DRAFTS: options.speculation.length > 0, POOLS: options.fleet.disaggregated}
    return tuple(form for form, has in forms.items() if has)


def _bands(prompts: Deployment, decodes: Deployment, context: float, forms: tuple[str, ...]) -> dict[str, Band]:
    """The error of TTFT where prompts are computed, and of TPOT where decoding goes on."""

    def of(deployment: Deployment) -> dict[str, Band]:
        made = partial(serving_bands, deployment, context, forms)
        if deployment.calibration.anchor is not None:  # what it leaves open depends on the engine's slots
            return made()
        return _BANDS.get(deployment, (context, forms), made)

    if prompts is decodes:
        return dict(of(decodes))
    found = {"ttft": of(prompts).get("ttft"), "tpot": of(decodes).get("tpot")}
    return {name: band for name, band in found.items() if band is not None}


def _load(closed: ClosedLoop | None) -> BeginsAs:
    """Whether all users begin at once."""
    return "burst" if closed is not None and closed.burst and closed.concurrency > 1 else "steady"


def _anchored(result: SimulationResult, deployment: Deployment, users: float | None) -> SimulationResult:
    """The run as its anchor corrects it: of so many users, or of those that Little's law counts in the system."""
    if deployment.calibration.anchor is None or not len(result.ttft):
        return result
    engines = result.conditions["replicas"] / deployment.parallel.dp
    here = (result.in_system if users is None else float(users)) / engines
    prompt, output = float(np.mean(result.records.prompt)), float(np.mean(result.records.output))
    measured, bands = correction(deployment, here, prompt, output), anchored_bands(deployment, here, prompt, output)
    return replace(
        result,
        anchor=(float(measured.ttft), float(measured.tpot)),
        bands={name: bands.get(name, band) for name, band in result.bands.items()},
    )


def _conditions(cluster: ClusterRun, flags: Flags, traffic: Traffic | Requests, options: Options) -> dict[str, Any]:
    """Everything that the figures are conditional on. ``prefill``: of replicas that compute prompts and are others."""
    kind, prompts = cluster.kinds[-1], cluster.kinds[0]
    deployment, fleet = kind.deployment, options.fleet
    record: dict[str, Any] = {
        **_engine(kind),
        **_waits(kind.rules),
        "client_timeout_s": flags.client_timeout,
        "latency_s": kind.rules.latency,
        "front_end_s": {"request": kind.rules.front_request, "prompt_token": kind.rules.front_token},
        "deployment": deployment.describe(),
        "warmup": options.warmup,
        "replicas": fleet.engines(deployment),
        "routing": fleet.routing,
        "pools": {"prefill": fleet.prefill, "decode": fleet.decode},
        "prefill": None if fleet.alike else {"deployment": prompts.deployment.describe(), **_engine(prompts)},
        "cache_transfer": None if cluster.links is None else _moved(cluster.links),
        "contiguous": flags.contiguous,
        "structured": None if options.structured is None else masks_record(options.structured, deployment.engine),
        "queue": kind.rules.queue,
        "prefix_hit_rate_given": options.hit_rate,
        "kv_offload": None if options.host is None else asdict(options.host),
        "cache_tiers": _described(prompts, options),
        "adapter_load": None
        if kind.adapters is None
        else {"bytes_a_device": adapter_bytes(deployment), "seconds": kind.adapters.seconds},
    }
    if fleet.failures is not None and fleet.scaling is not None:
        record["failures"] = {
            "mode": fleet.failures.mode,
            "restart_s": fleet.scaling.cold_start,
            "replicas_per_node": fleet.failures.per_node,
        }
    record["rests_on"] = _parts(cluster, options)
    if fleet.others:
        record["weight"] = fleet.weight
        record["others"] = [
            {"deployment": one.deployment.describe(), "replicas": one.replicas, "weight": one.weight}
            for one in fleet.others
        ]
    if options.speculation is not PLAIN:
        drafts = options.speculation
        record["speculation"] = {
            "draft": drafts.draft.model.name if drafts.draft else None,
            "length": drafts.length,
            "branches": drafts.branches,
            "acceptance": drafts.acceptance,
            "acceptance_basis": drafts.basis,
            "tokens_per_step": drafts.tokens,
            "texts": drafts.texts,
        }
    if isinstance(traffic, Traffic):
        record["traffic"] = asdict(traffic)
        record["reasoning"] = traffic.output.describe() if isinstance(traffic.output, ReasoningLengths) else None
    elif traffic.sessions is not None and traffic.sessions.recipe is not None:
        record["traffic"] = traffic.sessions.recipe
    elif traffic.loop is not None:
        record["traffic"] = {"arrivals": asdict(traffic.loop)}
    return record


def _parts(cluster: ClusterRun, options: Options) -> dict[str, Resting]:
    """What the price of each part of a run rests on; of pools, those of the replicas that decode."""
    found = parts_rest_on(cluster.kinds[-1].deployment)
    if options.speculation.length:
        found["speculation"] = options.speculation.part
    if cluster.links is not None:
        found["pools"] = cluster.links.transfer.part
    if options.host is not None or options.tiers:
        found["cache_tiers"] = PARTS["cache_tiers"].on("formula")
    if options.structured is not None:
        found["structured"] = options.structured.part
    return found


def _waits(rules: Rules) -> dict[str, Any]:
    """What prompts wait for, in steps."""
    return {
        "poll_interval_steps": rules.poll_interval,
        "batch_wait_steps": rules.wait_steps,
        "batch_wait_fill": rules.wait_fill,
        "balance_steps": rules.balance_steps,
    }


def _described(prompts: EngineKind, options: Options) -> list[dict[str, Any]] | None:
    """The cache tiers beside the devices that compute prompts; ``None`` without any."""
    parallel = prompts.deployment.parallel
    devices = parallel.ranks * (options.fleet.prefill or parallel.replicas)
    return [tier.describe((prompts.deployment, prompts.draft), devices) for tier in options.tiers] or None


def _engine(kind: EngineKind) -> dict[str, Any]:
    """The engine of a pool and its flags."""
    deployment, rules = kind.deployment, kind.rules
    return {
        "engine": deployment.engine.describe(),
        "kernels": deployment.calibration.note or None,
        "calibration": deployment.calibration.described,
        "policy": rules.policy,
        "max_num_seqs": rules.slots,
        "max_num_batched_tokens": rules.budget if rules.budget < 1 << 50 else None,
        "max_model_len": rules.longest if rules.longest < 1 << 50 else None,
        **deployment.further(),
        "chunked_prefill": rules.scheduler.chunked_prefill,
        "prefix_caching": rules.scheduler.prefix_caching,
        "overlapped": rules.overlapped,
        "seen_late": rules.seen_late,
    }


def _moved(links: Links) -> dict[str, Any]:
    """How the cache of a mean prompt moves between the pools."""
    transfer, tokens = links.transfer, float(np.mean(links.records.prompt))
    sides = (("sent", transfer.sender, transfer.sent), ("received", transfer.receiver, transfer.received))
    return {
        "prompt_tokens": tokens,
        "sending": links.sending,
        "seconds": transfer.seconds(tokens),
        "handoff_steps": handoff_of(transfer.receiver.deployment),
        "first_token": transfer.receiver.deployment.engine.apart.first_token,
        **{f"{name}_bytes_a_rank": float(of(tokens)) for name, _, of in sides},
        **{f"{name}_over": f"{side.link.name} of {side.deployment.hardware.name}" for name, side, _ in sides},
    }
