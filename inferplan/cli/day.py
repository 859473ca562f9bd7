"""``inferplan day``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click
import numpy as np

from inferplan.answers.drafting import DraftsAsked
from inferplan.catalog.assemble import Request, assemble, require_precision
from inferplan.catalog.classes import ClassesAsked, ClassMix, asked_classes
from inferplan.catalog.energy import EnergyOfDay
from inferplan.catalog.people import PeopleAsked
from inferplan.catalog.price_lists import PricesAsked
from inferplan.catalog.profiles import load_profile
from inferplan.catalog.sessions import SessionsAsked, people_of, sessions_of_profile
from inferplan.catalog.workloads import (
    WorkloadSpec,
    asked_arrivals,
    asked_lengths,
    asked_limits,
    load_workload,
    shared_text,
)
from inferplan.cli.candidates import changed, labels_of, split_names
from inferplan.cli.declared import asks, gets, options_of, speculation_of, with_options
from inferplan.cli.layers import Layered
from inferplan.cli.missing import Lack, lacks_of_load, refuse_lacks
from inferplan.cli.numbers import Count, Positive, Within
from inferplan.cli.options import (
    asks_of_request,
    counting,
    deployment_options,
    option_group,
    report_options,
    usual_engines,
    without,
    worker_options,
)
from inferplan.cli.replay import Replayed, replay_of, replay_options, require_times
from inferplan.cli.restarts import cold_start_of
from inferplan.compiled import state
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.structured import Structured
from inferplan.features import require_together
from inferplan.fields import first_given, option_values, question_if_asked
from inferplan.planning.agents import demand_of_sessions
from inferplan.planning.asked import SizingAsked
from inferplan.planning.carried import with_media, with_named
from inferplan.planning.confidence import MIDDLE, USUAL
from inferplan.planning.day import (
    EVERY_POLICY,
    POLICIES,
    ROUTINGS,
    DayAsked,
    DayDesign,
    LossesAsked,
    Policy,
    simulate_days,
)
from inferplan.planning.demand import Demand, demand_of_trace, lengths_of_classes, screened_by, sharing
from inferplan.planning.design import answer_alone
from inferplan.planning.option import Sizing
from inferplan.planning.processes import Jobs, StoppedError
from inferplan.planning.question import Question
from inferplan.planning.space import Space
from inferplan.reports.day import days_report
from inferplan.reports.people import with_people
from inferplan.serving.cold_start import StartAsked
from inferplan.serving.failures import FailuresAsked
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.routing import Routing
from inferplan.serving.techniques.tiers import CacheTier, nothing_shared
from inferplan.table import Report
from inferplan.traffic import traces
from inferplan.traffic.people import People
from inferplan.traffic.popularity import AdaptersNamed
from inferplan.traffic.profile import DAY, Profile, profile_of, require_classes
from inferplan.traffic.reasoning import written_for
from inferplan.traffic.request_log import Log, fold_days, read_log, way_of
from inferplan.traffic.requests import OpenLoop, Requests, SharedPrefix, Slo, parse_lengths
from inferplan.traffic.sessions import SessionTraffic
from inferplan.traffic.thoughts import ThoughtsAsked, refuse_thoughts_of_trace

_OPTIONS_OF: tuple[tuple[tuple[str, ...], frozenset[str]], ...] = (
    (("target", "interval", "tolerance", "stabilisation"), frozenset({"reactive"})),
    (("min_replicas", "max_replicas"), frozenset({"reactive", "scheduled"})),
)
"""Options that some policies alone follow, and those."""
_LONG, _EACH = 1_000_000, 25e-6
"""Requests of which a note says how long they take, and seconds of each in Python (docs/performance.md, A day)."""
_SIZED = 20_000
"""Requests of a log whose prompts share text on which a replica is sized, the first: it is replayed some ten times."""
_STARTS = (
    ("cold_start", "storage_bandwidth", "loader", "engine_start", "startup_log", "minimum_bill"),
    frozenset({"recorded", "reactive", "scheduled"}),
)
"""Those of a replica that is ordered: static replicas are there from the beginning, unless some are taken away."""

load_options = option_group(
    click.option(
        "--profile",
        metavar="NAME",
        help="Rates by time of day: a name (burstgpt-conv, azure-2024-conv), a CSV (time,rate[,class]), a YAML, or "
        "00:00=0.1,07:00=2.",
    ),
    click.option(
        "--profile-from",
        metavar="FILE",
        help="Rates (over five minutes) and lengths from a trace, which repeats; or rates from a log "
        "(timestamp[,class]).",
    ),
    *replay_options,
    click.option(
        "--fold", metavar="WAY", help="How one day is made of the days in that file: mean, or a percentile such as p95."
    ),
    click.option(
        "--peak",
        type=Positive(),
        metavar="RATE",
        help="Scale the profile to this peak, in requests/s [the load of --people].",
    ),
    asks(PeopleAsked),
    with_options(options_of(SharedPrefix, "tokens", "distinct", "turns", "think")),
    click.option("--workload", metavar="NAME", help="Lengths and limits by name or path: chat, rag, code, agent, ..."),
    click.option("--prompt", metavar="LENGTHS", help="Prompt tokens: 1024, uniform:1024:0.8, lognormal:1024:0.6."),
    click.option("--output", metavar="LENGTHS", help="Generated tokens, in the same way."),
    click.option("--samples", type=Count(), help="Answers per prompt; the profile counts prompts [1]."),
    with_options(options_of(SessionsAsked, "sessions")),
    asks(ClassesAsked),
    asks(ThoughtsAsked),
    asks(AdaptersNamed),
    asks(Structured),
    with_options(options_of(Flags, "queue")),
    with_options(options_of(OpenLoop, "kind", "burstiness")),
    with_options(options_of(Slo, "ttft", "tpot", "e2el")),
    click.option("--slo", metavar="NAME", help="Limits only, by the name of a workload: chat, code, ..."),
    with_options(options_of(Slo, "percentile")),
)
policy_options = option_group(
    click.option(
        "--utilisation",
        type=Within(0, 1, min_open=True),
        default=0.8,
        help="Load per replica, as a share of its capacity [0.8].",
    ),
    with_options(options_of(SizingAsked, "confidence")),
    click.option("--cold-start", metavar="TIME", help="From the order of a replica until it takes requests."),
    asks(StartAsked, LossesAsked, FailuresAsked, DayAsked),
    with_options(options_of(Options, "tiers")),
    click.option(
        "--vs",
        "others",
        multiple=True,
        metavar="KEY=VALUE,...",
        help="Another design, as the options it changes: gpu=l40s,tp=2, or routing=round-robin.",
    ),
    worker_options,
)


@click.command("day", cls=Layered)
@deployment_options
@load_options
@policy_options
@asks(DraftsAsked)
@gets(prices=PricesAsked)
@asks_of_request("media", "host", "power_cap", "sampling", "lora", "offload")
@gets(energy=EnergyOfDay)
@report_options
def day_command(
    request: Request,
    prices: PricesAsked,
    energy: EnergyOfDay | None,
    others: tuple[str, ...],
    jobs: Jobs,
    **values: Any,
) -> Report:
    """A load that rises and falls: the cost of replicas that run all day, on a timetable, or by an autoscaler.

    Every policy serves the same requests. static runs the peak's replicas all day. scheduled follows the profile and
    starts replicas ahead of each step. reactive follows the rule of Kubernetes' autoscaler. The load per replica is
    the largest rate within the limits at a confidence (--confidence, as in plan), by simulation, times --utilisation.
    --replay serves the requests of a log, of hours to weeks; --vs adds other GPUs, divisions or
    routings.

    Example: inferplan day llama-3.1-8b --gpu l4 --profile 00:00=0.1,08:00=2,20:00=0.5 --workload chat --ttft 2s
    --tpot 120ms --cold-start 90s
    """
    load = _load(values, request)
    designs = _designs(load, prices, values, others)
    if energy is not None:
        for one in designs:
            _ = one.deployment.hardware.tdp  # an error without one, before the day
            require_together("day", one.deployment.features | {"energy"})
    total = load.requests(designs[0].asked.span) * sum(len(one.asked.policies) for one in designs)
    if total >= _LONG and state() != "in use":
        seconds = (
            f"{total * _EACH / 60:.0f} min of a quiet core; ten times faster: inferplan compile (a C compiler, 5 s)"
        )
        click.echo(f"note: {total:,.0f} requests under all policies, about {seconds}", err=True)
    try:
        with counting("requests", total) as progress:
            days = simulate_days(designs, progress, jobs, lambda said: click.echo(f"note: {said}", err=True))
    except StoppedError:
        _interrupted(designs)
    prompts = load.profile.peak / load.demand.samples
    report = with_people(days_report(days, energy), load.people, prompts, load.response, most=True)
    lost = [one for one in designs if one.label not in [day.label for day in days]]
    stopped = lost or any(day.undone for day in days)
    return replace(report, ends=partial(_interrupted, lost)) if stopped else report


def _interrupted(lost: Sequence[DayDesign]) -> NoReturn:
    """Exit 130, after what is done has been written. lost: designs of which nothing is."""
    if lost:
        of = ", ".join(one.label for one in lost if one.label)
        click.echo(f"interrupted: no policy{of and f' of {of}'} was simulated to the end", err=True)
    raise click.Abort


class _Load(NamedTuple):
    """What comes, and what is asked of devices with it. response: seconds of a mean request alone, of people."""

    request: Request
    profile: Profile
    demand: Demand
    slo: Slo
    people: People | None = None
    response: float = 0.0
    replayed: Replayed | None = None

    def requests(self, span: float) -> int:
        """How many come, about, for a bar."""
        return round(self.profile.expected(span))


def _load(values: dict[str, Any], request: Request) -> _Load:
    """The requests of the day: of a log, or of a profile."""
    deployment, replayed = assemble(request), replay_of(values)
    if replayed is not None:
        slo = asked_limits(values, None, Slo(percentile=95.0))
        refuse_thoughts_of_trace(values)
        request, demand = with_media(request, _as_they_came(values, replayed), None, traced=True)
        return _Load(request, replayed.profile, with_named(demand, values), slo, replayed=replayed)
    log = read_log(Path(values["profile_from"])) if values["profile_from"] else None
    trace = traces.read_trace(Path(values["profile_from"])) if values["profile_from"] and log is None else None
    if trace is not None:
        require_times(trace)
        require_together("day", trace.features | {"elastic"})
    sessions = sessions_of_profile(values)
    named = load_workload(values["workload"]) if values["workload"] else None
    _require_said(values, named, deployment)
    people = people_of(values, named)
    if people is None and values["think_time"] is not None and not (values["turns"] or 1) > 1:
        raise UsageError(
            "--think-time needs people, or turns that follow an answer",
            hint="--people 2000 instead of --peak, or --turns 4",
        )
    if (values["turns"] or 1) > 1 and values["think_time"] is None:
        raise UsageError(
            "--turns needs the time from an answer to the next turn",
            because="it decides which replica is free then, and what its cache still holds",
            hint="--think-time 60s, or 0s where programs ask",
        )
    profile, mix = _with_classes(_profile(values, trace, log), values)
    if mix.classes:
        demand, slo = _of_classes(mix, values), screened_by(mix.classes)
    elif sessions is not None:
        demand, slo = demand_of_sessions(sessions), _limits(values, sessions)
    else:
        demand = _demand(_answering(values, named, deployment), named, trace)
        slo = asked_limits(values, named, Slo(percentile=95.0))
    of_trace = trace is not None and not (values["prompt"] and values["output"])
    request, demand = with_media(request, demand, named, of_trace)
    demand = with_named(demand, values)
    response = 0.0 if people is None else answer_alone(assemble(request), demand)
    if people is not None:
        people.require_one_each(response)
        profile = profile.scaled(people.rate(response))
    return _Load(request, profile.scaled(profile.peak * demand.samples), demand, slo, people, response)


def _limits(values: dict[str, Any], sessions: SessionTraffic) -> Slo:
    """The limits of the calls of sessions: those that are stated, else those of their file."""
    stated = asked_limits(values, None, Slo(percentile=95.0))
    return stated if stated.limits or sessions.usual is None else asked_limits(values, None, sessions.usual)


def _require_said(values: dict[str, Any], named: WorkloadSpec | None, deployment: Deployment) -> None:
    """Raise ``UsageError`` that names all that is missing of a day, where that is a limit or more than one thing."""
    traced = values["profile_from"] is not None
    whole = "--profile burstgpt-conv" + ("" if values["peak"] else " --peak 2")
    lacks = [] if traced or values["profile"] else [Lack("a profile of its load", whole)]
    if not values["classes"] and not values["sessions"]:
        lacks += lacks_of_load(deployment.model.name, values, named, traced)
    changing = set(option_values(DayAsked, values).get("policies", POLICIES)) != {"static"}
    lost = question_if_asked(FailuresAsked, values) or question_if_asked(LossesAsked, values)
    if (changing or lost) and cold_start_of(values, None, "--cold-start") is None:
        lacks.append(Lack("the time that a replica takes to start", "--cold-start 90s"))
    if len(lacks) > 1 or (lacks and lacks[0].of_limits):
        refuse_lacks("a day", lacks, "the start depends on your storage and your engine" if changing or lost else "")


def _as_they_came(values: dict[str, Any], replayed: Replayed) -> Demand:
    """What a replica is sized for: the lengths of the log, with arrivals of its own."""
    kind, burstiness = asked_arrivals(values)
    requests = replayed.log.requests
    if requests.hashes is None:
        found = demand_of_trace(requests)
        return replace(found, trace=None, rate=1.0, arrivals=kind, burstiness=burstiness)
    option = first_given(values, ("arrivals", "burstiness"))
    if option:
        raise UsageError(
            f"{option} and a log whose prompts share text exclude each other",
            because="a replica is sized on the log itself, faster or slower",
        )
    return demand_of_trace(requests.head(_SIZED))


def _designs(load: _Load, prices: PricesAsked, values: dict[str, Any], others: tuple[str, ...]) -> list[DayDesign]:
    """The design that is asked for, and those that change some of its options."""
    request, routed = load.request, [_routed(text) for text in others]
    requests = [request, *(changed(request, text) for text, _ in routed)]
    usual_engines(
        request.engine,
        [one.model for one, text in zip(requests, ("", *others)) if "engine=" not in text],
        [one.gpu for one, text in zip(requests, ("", *others)) if "engine=" not in text],
        [one.quant for one, text in zip(requests, ("", *others)) if "engine=" not in text],
    )
    usual: Routing = option_values(DayAsked, values).get("routing", DayAsked.routing)
    routings = [usual, *(way or usual for _, way in routed)]
    labels = labels_of(requests) if others else [""]
    if len(set(routings)) > 1:
        labels = [f"{label} {way}" for label, way in zip(labels, routings)]
    found = []
    for one, label, routing in zip(requests, labels, routings):
        require_precision(one.quant)
        deployment = assemble(one)
        carried, media = deployment.media, load.demand.media
        if media is not None and (carried is None or carried.tokens != media.tokens):
            raise UsageError(
                f"--vs {label} makes other tokens of what requests carry than {request.model}",
                because="all designs serve the same requests",
                hint="inferplan day for each model",
            )
        question = Question(
            space=Space(base=one, gpus=(one.gpu,), disaggregate=False),
            demand=load.demand,
            slo=load.slo,
            sizing=_sizing(values, one),
            prices=prices.book,
        )
        question.prices.check([deployment.hardware.name])
        asked = replace(_asked(values, load, deployment), routing=routing)
        found.append(
            DayDesign(
                request=one,
                deployment=deployment,
                question=question,
                asked=asked,
                label=label,
                speculation=speculation_of(values, one),
            )
        )
    return found


def _sizing(values: dict[str, Any], request: Request) -> Sizing:
    """How replicas are counted, by the rule of a plan (:meth:`SizingAsked.sizing`)."""
    confidence = values["confidence"]
    usual = MIDDLE if request.ideal else USUAL
    return Sizing(
        utilisation=values["utilisation"],
        confidence=usual if confidence is None else confidence,
        insists=confidence is not None,
    )


def _routed(text: str) -> tuple[str, Routing | None]:
    """A candidate without its routing, and that, if it names one."""
    parts = split_names(text)
    ways = [part.removeprefix("routing=") for part in parts if part.startswith("routing=")]
    if wrong := [way for way in ways if way not in ROUTINGS]:
        raise UsageError(f"--vs routing={wrong[0]:.40} is no routing of a day", hint=f"routing={' or '.join(ROUTINGS)}")
    way = next((one for one in ROUTINGS if one in ways), None)
    return ",".join(part for part in parts if not part.startswith("routing=")), way


without(day_command, "anchor")


def _profile(values: dict[str, Any], trace: Requests | None, log: Log | None) -> Profile:
    """The profile that is named, or that of the trace or the log."""
    given = trace is not None or log is not None
    if (values["profile"] is None) is not given:
        raise UsageError(
            "a day needs a profile of its load" + (", one alone" if given else ""),
            hint="--profile burstgpt-conv --peak 2, --profile 00:00=5,08:00=40,20:00=15, --profile day.csv, or "
            "--profile-from TRACE",
        )
    if trace is not None and values["workload"] is not None:
        raise UsageError(
            "--profile-from and --workload both state the lengths of requests",
            hint=f"--slo {values['workload']} for its limits alone, or --profile for rates alone",
        )
    found = _made(values, trace, log) if given else load_profile(values["profile"])
    if values["fold"] is not None and not given:
        raise UsageError(
            "--fold needs a file of requests over several days", hint="--profile-from FILE, or leave it out"
        )
    return found if values["peak"] is None else found.scaled(values["peak"])


def _made(values: dict[str, Any], trace: Requests | None, log: Log | None) -> Profile:
    """The profile of when requests came: of the whole time, or of one day. The day of a trace begins with its first
    request, that of a log at midnight."""
    name = Path(values["profile_from"]).stem
    if values["fold"] is None:
        if log is not None:
            raise UsageError(
                f"{values['profile_from']} is a log of several days; one day must be made of it",
                hint="--fold mean, or --fold p95 for a busy one",
            )
        assert trace is not None
        return profile_of(trace, name)
    percentile = way_of(values["fold"])
    if log is None:
        assert trace is not None
        if trace.arrival is None or np.any(np.isnan(trace.arrival)):
            raise UsageError("a profile needs a trace with arrival times", hint="--profile with a file of rates")
        log = Log(np.sort(trace.arrival), np.zeros(len(trace), dtype=np.int64))
    days = (log.seconds[-1] - log.seconds[0]) / DAY if len(log.seconds) else 0.0
    source = f"{values['profile_from']}, {values['fold']} of {days:.3g} days"
    return fold_days(log, name, percentile, source)


def _with_classes(profile: Profile, values: dict[str, Any]) -> tuple[Profile, ClassMix]:
    """The profile with the rates of the classes that are asked for, if any are, and those with their shares of it.

    Raises ``InputFileError`` for a profile with other classes, ``UsageError`` for rates that are said twice.
    """
    mix = asked_classes(values, rated=bool(profile.classes))
    if not mix.classes:
        return profile, mix
    names = [one.name for one in mix.classes]
    if values["profile_from"] is not None and not profile.classes:
        raise UsageError(
            "--profile-from takes lengths from a trace, and classes have their own lengths",
            hint="--profile FILE, with the columns time, class and rate",
        )
    if mix.rate is not None:
        raise UsageError(
            "the classes and the profile both state rates",
            because=f"they make {mix.rate:g} requests per second",
            hint="share: instead of rate: in the file, or a column class in the profile",
        )
    if not any(one.slo.limits for one in mix.classes):
        raise UsageError("a day needs a latency limit for at least one class", hint="ttft: 500 ms in the file")
    if profile.classes:
        require_classes(profile, names, Path(values["profile"] or values["profile_from"]))
        profile = profile.ordered(names)
    else:
        profile = profile.divided(names, [one.share for one in mix.classes])
    shares = profile.shares_until(option_values(DayAsked, values).get("span", DAY))
    if nothing := [name for name, share in zip(names, shares) if not share]:
        raise UsageError(
            f"no request of class {nothing[0]!r} comes in the time that is simulated",
            hint="a longer --duration, or leave the class out of both files",
        )
    return profile, mix._replace(classes=tuple(replace(one, share=share) for one, share in zip(mix.classes, shares)))


def _of_classes(mix: ClassMix, values: dict[str, Any]) -> Demand:
    """The demand of several kinds of traffic, in the shares of the day."""
    prompt, output = lengths_of_classes(mix.classes)
    kind, burstiness = asked_arrivals(values)
    return Demand(
        prompt=prompt,
        output=written_for(output, values),
        rate=1.0,
        arrivals=kind,
        burstiness=burstiness,
        classes=mix.classes,
        queue=values["queue"],
    )


def _answering(values: dict[str, Any], named: WorkloadSpec | None, deployment: Deployment) -> dict[str, Any]:
    """The options of a load; a request of a model that generates nothing has one output token, its answer."""
    if named or values["output"] or not deployment.model.encodes:
        return values
    return {**values, "output": "1"}


def _demand(values: dict[str, Any], named: WorkloadSpec | None, trace: Requests | None) -> Demand:
    """Lengths and arrivals; the rate is of no account."""
    kind, burstiness = asked_arrivals(values, named)
    prompt, output = asked_lengths(values, named)
    if trace is not None and not (prompt or output):
        if trace.hashes is not None:
            raise UsageError(
                "prompts that share text, as in this trace, are not supported by day",
                hint="--prompt and --output state lengths; the rates of the trace are still used",
            )
        refuse_thoughts_of_trace(values)
        found = demand_of_trace(trace)
        own, generated = found.prompt, found.output
    elif prompt and output:
        own, generated = parse_lengths(prompt), written_for(parse_lengths(output), values)
    else:
        raise UsageError(
            "the lengths of requests are missing",
            hint="--prompt 1024 --output 256, --workload chat, or --profile-from TRACE",
        )
    prefix, samples = shared_text(values, named), values["samples"] or (1 if named is None else named.samples)
    whole, cached = sharing(own, generated, prefix, samples)
    if named is not None:
        cached = cached or round(named.cached_share * whole.average)
    return Demand(
        prompt=whole,
        output=generated,
        cached=cached,
        own=None if whole is own else own,
        prefix=prefix,
        samples=samples,
        rate=1.0,
        arrivals=kind,
        burstiness=burstiness,
    )


def _asked(values: dict[str, Any], load: _Load, deployment: Deployment) -> DayAsked:
    given, lossy, spot = (
        option_values(DayAsked, values),
        question_if_asked(FailuresAsked, values),
        question_if_asked(LossesAsked, values),
    )
    if load.replayed is not None:
        given = {"span": load.profile.end, "policies": EVERY_POLICY if load.replayed.ran else POLICIES} | given
        given |= load.replayed.asked
    policies = given.get("policies", POLICIES)
    if "scheduled" not in policies and load.replayed is not None and load.replayed.timetable is not None:
        raise UsageError("--fold makes the timetable of a replay", hint="--policy scheduled as well, or leave it out")
    _require_used(policies, _OPTIONS_OF if spot or lossy else (*_OPTIONS_OF, _STARTS))
    return DayAsked(
        profile=load.profile,
        cold_start=cold_start_of(values, deployment, "--cold-start"),
        tiers=_tiers(values, load),
        losses=None if spot is None else spot.losses(given.get("seed", 0)),
        failures=None if lossy is None else lossy.on(deployment),
        **given,
    )


def _tiers(values: dict[str, Any], load: _Load) -> tuple[CacheTier, ...]:
    """The cache tiers that are asked for. Raises ``UsageError`` where nothing is ever found in them."""
    found: tuple[CacheTier, ...] = option_values(Options, values).get("tiers", ())
    logged = load.replayed is not None and load.replayed.log.requests.hashes is not None
    shared = load.demand.prefix.tokens or load.demand.prefix.turns > 1 or load.demand.sessions is not None
    if found and not logged and not shared:
        raise nothing_shared()
    return found


def _require_used(policies: tuple[Policy, ...], options: tuple[tuple[tuple[str, ...], frozenset[str]], ...]) -> None:
    """Raise ``UsageError`` for an option of policies that are not asked for."""
    source = click.get_current_context().get_parameter_source
    for names, of in options:
        given = [name for name in names if source(name) is click.core.ParameterSource.COMMANDLINE]
        if given and not of.intersection(policies):
            raise UsageError(
                f"--{given[0].replace('_', '-')} changes nothing under the policy {', '.join(policies)}",
                hint=f"--policy {' or '.join(sorted(of))} as well, or leave it out",
            )
