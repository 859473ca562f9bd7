"""``inferplan simulate``."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from inferplan.answers.drafting import DraftsAsked
from inferplan.answers.emit.checkpoint import require_one_checkpoint
from inferplan.catalog.assemble import Request, assemble, assembled
from inferplan.catalog.classes import ClassesAsked, asked_classes
from inferplan.catalog.energy import EnergyAsked
from inferplan.catalog.people import PeopleAsked, people_load
from inferplan.catalog.sessions import SessionsAsked, asked_sessions, people_of, require_sessions, sessions_of_trace
from inferplan.catalog.workloads import (
    WorkloadSpec,
    asked_arrivals,
    asked_lengths,
    asked_limits,
    carried_media,
    load_workload,
    shared_text,
)
from inferplan.cli.declared import (
    Declared,
    asks,
    gets,
    options_of,
    quantity,
    speculation_of,
    with_options,
)
from inferplan.cli.ends import EndsAsked, end
from inferplan.cli.layers import Layered
from inferplan.cli.numbers import Count, Finite, WholeNumber, Within
from inferplan.cli.options import (
    asks_of_request,
    counting,
    deployment_options,
    option_group,
    picture,
    report_options,
    suffix_callback,
)
from inferplan.cli.restarts import with_failures
from inferplan.cli.unheard import unheard_of_load
from inferplan.devices.engine import EngineFlags
from inferplan.errors import InferplanError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.structured import Structured
from inferplan.features import those
from inferplan.fields import declared_keys, first_given, option_values, question_if_asked, question_of
from inferplan.files import save
from inferplan.reports.estimate import idle_note
from inferplan.reports.people import with_people
from inferplan.reports.simulation import simulation_report, timeline_csv, timeline_trace, timeline_tracks
from inferplan.serving.cold_start import StartAsked
from inferplan.serving.failures import FailuresAsked
from inferplan.serving.flags import Flags, with_flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.outages import simulate_failures
from inferplan.serving.result import SimulationResult
from inferplan.serving.run_length import simulate_load
from inferplan.serving.techniques.applied import ServedEstimate, Techniques
from inferplan.serving.techniques.tiers import curve_records
from inferplan.table import Report
from inferplan.traffic.block_names import of_file
from inferplan.traffic.people import IN_FLIGHT, IN_FLIGHT_HELP, People, in_flight_line
from inferplan.traffic.popularity import AdaptersNamed
from inferplan.traffic.reasoning import written_for
from inferplan.traffic.requests import (
    ClosedLoop,
    Media,
    OpenLoop,
    Requests,
    SharedPrefix,
    Slo,
    Traffic,
    parse_lengths,
)
from inferplan.traffic.thoughts import ThoughtsAsked, refuse_thoughts_of_trace
from inferplan.work.parallel import Parallelism

_PROMPT, _OUTPUT = "1024", "256"


def _no_turn_gap(_: click.Context, __: click.Parameter, value: str | None) -> None:
    """Refuse the option of earlier versions, which counted from a turn's arrival."""
    if value is not None:
        raise UsageError("--turn-gap is gone: turns follow the answer before them", hint=f"--think-time {value}")


traffic_options = option_group(
    click.option("--workload", metavar="NAME", help="A named workload or a path to one: chat, rag, code, agent, ..."),
    click.option(
        "--trace",
        metavar="FILE",
        help="Replay a trace: Azure 2023 CSV, Mooncake JSONL, a CSV as of day --replay; for agents Bailian JSONL, "
        "Weka JSON or a folder of it. With --in-flight its requests, or sessions, follow one another.",
    ),
    asks(PeopleAsked),
    click.option("--rate", type=Finite(), help="Open loop: requests per second."),
    click.option(
        *(*IN_FLIGHT, "concurrency"),
        type=Count(),
        help=f"Closed loop. {IN_FLIGHT_HELP}",
    ),
    with_options(options_of(OpenLoop, "kind", "burstiness")),
    click.option(
        "--burst/--no-burst",
        default=None,
        help="Closed loop: all users start at once, and every request counts, as in most benchmark clients.",
    ),
    click.option(
        "--ramp", metavar="TIME", help="Time over which the users start [the time of one request plus the think time]."
    ),
    click.option("--prompt", metavar="LENGTHS", help=f"1024, uniform:1024:0.8, lognormal:1024:0.9, ... [{_PROMPT}]"),
    click.option("--output", metavar="LENGTHS", help=f"Generated tokens, the same way. [{_OUTPUT}]"),
    click.option(
        "--length-ratio-min",
        type=Within(0, 1, min_open=True),
        help="Plain lengths: uniform from this share of them. [1]",
    ),
    click.option(
        "--requests",
        type=Count(),
        help="Number of requests [10 x in flight x turns; in an open loop as many as the figures need, at most "
        "200,000].",
    ),
    with_options(options_of(Options, "warmup")),
    click.option("--seed", type=WholeNumber(0, 2**31 - 1), default=0, help="Seed of lengths and arrivals. [0]"),
    asks(SharedPrefix),
    click.option("--turn-gap", metavar="TIME", hidden=True, callback=_no_turn_gap),
    click.option("--samples", type=Count(), help="Completions per prompt. [1]"),
    asks(ClassesAsked),
    asks(AdaptersNamed),
)
_PREFILL_DEGREES = ("tp", "pp", "ep", "dp", "cp", "redundant")
_PREFILL_FLAGS = ("token_budget", "max_sequences", "memory_fraction", "two_batch_overlap")
_OF_PREFILL = (
    Declared("--gpu"),
    *options_of(Request, "quant"),
    *options_of(Parallelism, *_PREFILL_DEGREES),
    *options_of(EngineFlags, *_PREFILL_FLAGS),
    *options_of(Flags, "chunked_prefill"),
)
"""Options of replicas that compute prompts where they differ from those that decode."""


def _for_prompts(one: Declared) -> Declared:
    """An option as it is asked of the replicas that compute prompts; one that is absent is as of the others."""
    name = one.names[0].partition("/")[0].removeprefix("--")
    switch = "/" in one.names[0] or one.keywords.get("is_flag")
    keywords = {
        "type": one.keywords.get("type"),
        "help": f"--{name} of the replicas that compute prompts. [as the others]",
    }
    typed = f"--prefill-{name}/--no-prefill-{name}" if switch else f"--prefill-{name}"
    return Declared(typed, f"prefill_{one.name}", **({**keywords, "default": None} if switch else keywords))


loss_options = option_group(
    asks(FailuresAsked),
    click.option("--restart", metavar="TIME", help="From a failure until the replica takes requests again."),
    asks(StartAsked),
)
output_options = option_group(
    with_options(options_of(Slo, "ttft", "tpot", "e2el", "answer_ttft")),
    click.option("--slo", metavar="NAME", help="The SLO of a named workload, such as mlperf:llama2-70b-interactive."),
    click.option(
        "--hit-curve",
        is_flag=True,
        help="Also show the hits of one LRU cache by size, where requests share text.",
    ),
    click.option(
        "--timeline",
        metavar="FILE",
        callback=suffix_callback((".csv", ".json"), "a timeline"),
        help="Per-step record: .csv, or .json for a Chrome trace.",
    ),
    click.option(
        "--plot",
        "plot_file",
        metavar="FILE",
        callback=picture,
        help="Batch, queue and cache over time: .png, .svg, .pdf.",
    ),
)


@click.command("simulate", cls=Layered)
@deployment_options
@asks_of_request("media")
@asks_of_request("lora")
@asks_of_request("offload")
@traffic_options
@asks(SessionsAsked)
@with_options(options_of(Slo, "session"))
@asks(ThoughtsAsked)
@asks(Structured)
@asks(Flags, Fleet)
@with_options(options_of(Options, "jobs"))
@with_options(map(_for_prompts, _OF_PREFILL))
@loss_options
@asks(DraftsAsked)
@with_options(options_of(Techniques, "hit_rate", "host"))
@with_options(options_of(Options, "tiers"))
@output_options
@asks(EndsAsked)
@asks_of_request("host", "power_cap", "sampling")
@gets(energy=EnergyAsked)
@report_options
def simulate_command(
    request: Request, energy: EnergyAsked | None, timeline: str | None, plot_file: str | None, **values: Any
) -> Report:
    """What users experience on a deployment under load: latency percentiles, rates, queue, cache.

    The load is --people, --trace, --rate (open loop) or --in-flight (closed loop), or sessions of agents: --sessions
    with --people, --session-rate or --in-flight. Flags left out have the defaults of the engine's version. After the
    report the exit code is 3 for an overloaded run, for a load that the engine rejects in part, and, with limits, for
    a saturated run (--fail-on). With --prefill-replicas, prompts are computed separately from decoding: the
    --prefill-... options state the differences there, and all others describe the replicas that decode.

    Example: inferplan simulate llama-3.1-70b --gpu h200-sxm --tp 4 --rate 4 --prompt 1024 --output 256
    """
    people = people_of(values, _named(values))
    values = people_load(values, people, "concurrency")
    carried, sets = carried_media(request.media, _named(values), _text(values))
    request = replace(request, media=carried)
    deployment = assembled(request)
    flags = _flags(values)
    options = with_failures(_run_options(values, request, deployment, flags), values, deployment)
    _require_thoughts(values)
    _require_balance(flags, deployment, options.fleet.prefill_deployment)
    figures = those(energy=energy is not None, hit_curve=values["hit_curve"])
    options = replace(options, timeline=bool(timeline or plot_file), figures=frozenset(figures))
    if energy is not None:
        for pool in (deployment, options.fleet.prefill_deployment):
            _ = None if pool is None else pool.hardware.tdp  # an error without one, before the run
    own = values["workload"] is None and values["classes"] is None and values["sessions"] is None
    if own and deployment.model.encoder is not None and deployment.model.encoder.frames is not None:
        values["prompt"] = values["prompt"] or str(deployment.model.encoder.frames)
    if deployment.model.encodes and own:
        values["output"] = values["output"] or "1"  # the answer of a request
    media = None if deployment.media is None else Media(tokens=deployment.media.tokens, sets=sets)
    load = functools.partial(_load, media)
    traffic = load(values)
    run = simulate_load if options.fleet.failures is None else simulate_failures
    total = len(traffic) if isinstance(traffic, Requests) else traffic.requests_count
    with counting("requests", total) as progress:
        result = run(deployment, traffic, flags, replace(options, progress=progress))
    _write_timeline(result, timeline, plot_file)
    report = _report(result, (deployment, flags, options), traffic, values, energy)
    vain = unheard_of_load(values, load, bool(options.hit_rate or _cached_share({**values, "prefix_caching": None})))
    ends = functools.partial(end, result, question_of(EndsAsked, values))
    report = replace(report, notes=[*report.notes, *vain], ends=ends)
    return _with_load(report, people, result, values)


def _with_load(report: Report, people: People | None, result: SimulationResult, values: dict[str, Any]) -> Report:
    """The report behind what the load is, where people make it or may have been meant to."""
    named = _named(values)
    if people is None:
        meant = named is not None and named.people is not None and values["concurrency"] is not None
        if meant and not values["think_time"] and not named.shared_prefix().think.mean:  # type: ignore[union-attr]
            return replace(report, opening=[in_flight_line(values["concurrency"], True), *report.opening])
        return report
    if not len(result.e2el):
        return report
    response = float(result.e2el.mean())
    if result.verdict != "overloaded":  # where answers take ever longer, they say nothing of people
        people.require_one_each(response)
    sessions, lasts = report.record.get("sessions"), None
    if sessions is not None:
        lasts = sessions["duration_s"]["mean"]
        drawn = f"the sessions that this run drew (--seed {values['seed']}) make {result.request_rate:.2g} requests/s"
        report = replace(report, opening=[drawn, *report.opening])
    return with_people(report, people, people.rate(response), response, lasts)


def _report(
    result: SimulationResult,
    run: tuple[Deployment, Flags, Options],
    traffic: Traffic | Requests,
    values: dict[str, Any],
    energy: EnergyAsked | None,
) -> Report:
    """What a run has to say, with what was asked for beside it. run: what was simulated."""
    deployment, flags, options = run
    if options.fleet.failures is not None:
        from inferplan.reports.failures import failure_report

        return _with_energy(failure_report(result), run, result, energy)
    prompts = options.fleet.prefill_deployment or deployment
    report = simulation_report(result, _hit_curve(result, prompts, traffic, options) if values["hit_curve"] else ())
    report = replace(report, notes=[*report.notes, *_finer(prompts, traffic)]) if values["hit_curve"] else report
    report = _with_energy(report, run, result, energy)
    plain = not options.fleet.prefill and result.records.sessions is None
    note = _idle(with_flags(deployment, flags), options, result.records.prompt) if plain else ""
    return replace(report, notes=[*report.notes, note]) if note else report


def _with_energy(
    report: Report,
    run: tuple[Deployment, Flags, Options],
    result: SimulationResult,
    energy: EnergyAsked | None,
) -> Report:
    """The report with the joules of the run, where they are asked for."""
    if energy is None:
        return report
    from inferplan.reports.energy import with_run_energy

    return with_run_energy(report, (run[0], run[2]), result, energy)


def _require_thoughts(values: dict[str, Any]) -> None:
    """Raise ``UsageError`` for a limit behind thoughts where nobody thinks."""
    if values["thinking_tokens"] is None and values["answer_ttft"] is not None:
        raise UsageError(
            "--answer-ttft limits the first token after a thought, and there are no thoughts",
            hint="--thinking-tokens lognormal:4k:0.8 as well, or --ttft",
        )


def _require_balance(flags: Flags, *pools: Deployment | None) -> None:
    """Raise ``UsageError`` where prompts are to be held back for ranks that there are not."""
    ranks = [pool.coupled_ranks for pool in pools if pool is not None and pool.engine.batching.holds_prompts_for_ranks]
    if flags.balance_steps and max(ranks, default=1) == 1:
        raise UsageError(
            "--balance-steps holds prompts back until each attention rank has one; no part of this deployment does so",
            because="it is attention_dp_config of TensorRT-LLM, for ranks that share experts",
            hint="--engine trtllm with --dp 2 or more and a model that has experts, or leave it out",
        )


def _hit_curve(
    result: SimulationResult, deployment: Deployment, traffic: Traffic | Requests, options: Options
) -> list[dict[str, Any]]:
    """What caches of some sizes would find of the requests of a run."""
    given = traffic.hash_block if isinstance(traffic, Requests) else 0
    block = given or deployment.engine.defaults.block_size
    return curve_records(result, (deployment, options.speculation.draft), block)


def _finer(deployment: Deployment, traffic: Traffic | Requests) -> list[str]:
    """That the curve of a trace is in blocks of its file, where the run counts in those of the engine: names of these
    are many times as many."""
    names = of_file(traffic.hashes) if isinstance(traffic, Requests) else None
    block = deployment.engine.defaults.block_size
    if names is None or names.every == block:
        return []
    return [f"the caches by size count in the file's blocks of {names.every} tokens, the run in those of {block}"]


def _idle(deployment: Deployment, options: Options, prompts: Sequence[int]) -> str:
    """What the TTFT of the mean prompt is made of when nobody else is there."""
    asked = Techniques(speculation=options.speculation, hit_rate=options.hit_rate)
    load = StaticLoad(prompt=float(round(sum(prompts) / len(prompts))))
    return idle_note(ServedEstimate(deployment=deployment, load=load, techniques=asked))


def _named(values: dict[str, Any]) -> WorkloadSpec | None:
    return load_workload(values["workload"]) if values["workload"] else None


def _text(values: dict[str, Any]) -> float | None:
    """Mean prompt tokens of a request's own text and the text that it shares; ``None`` with a trace."""
    if values["trace"] is not None:
        return None
    named = _named(values)
    text = asked_lengths(values, named)[0] or _PROMPT
    shared = named.shared_prefix().tokens if named and values["shared_prefix"] is None else values["shared_prefix"] or 0
    return parse_lengths(text, _ratio(values)).average + shared


def _ratio(values: dict[str, Any]) -> float:
    """The share of plain lengths from which on they are uniform."""
    return 1.0 if values["length_ratio_min"] is None else values["length_ratio_min"]


def _require_open(values: dict[str, Any]) -> None:
    """Raise ``UsageError`` for gaps between requests where users send one when they have their answer."""
    if values["concurrency"] is None:
        return
    for name in ("arrivals", "burstiness"):
        if values[name] is not None:
            raise UsageError(
                f"--{name} needs an open loop: --in-flight and --people send a request after each answer",
                hint="--rate instead, or leave it out; --think-time sets the time between requests",
            )


def _require_plain(ratio: float, texts: Sequence[str | None]) -> None:
    """Raise ``UsageError`` for a ratio of plain lengths where no length is plain."""
    given = [text for text in texts if text]
    if ratio < 1 and all(parse_lengths(text).kind != "fixed" for text in given):
        raise UsageError(
            "--length-ratio-min makes plain lengths uniform, and no length here is plain",
            because=f"they are {' and '.join(given)}",
            hint="--prompt 1024 --output 256, or leave it out",
        )


def _traffic(values: dict[str, Any], media: Media | None) -> Traffic | Requests:
    """The load that the options describe."""
    from inferplan.traffic import traces

    classes = asked_classes(values, alone=False)
    if classes.rate is not None:
        values = {**values, "rate": classes.rate}
    given = [name for name in ("trace", "rate", "concurrency") if values[name] is not None]
    if values["sessions"] is None and len(given) != 1 and given != ["trace", "concurrency"]:
        raise UsageError(
            "simulate needs one kind of load" + (f", not {' and '.join(f'--{n}' for n in given)}" if given else ""),
            hint="one of them" if given else "--people 2000, --rate 4, --in-flight 64, or --trace FILE",
        )
    named = _named(values)
    ramp = quantity(values["ramp"], "seconds", "--ramp")
    if values["burst"] and ramp is not None:
        raise UsageError("--burst and --ramp exclude each other", hint="--ramp TIME alone spreads the users")
    began = [("ramp", ramp is not None), ("burst", values["burst"] is True), ("no-burst", values["burst"] is False)]
    if values["concurrency"] is None and (given := [name for name, there in began if there]):
        raise UsageError(
            f"--{given[0]} sets how the users of a closed loop start, and there are none",
            hint="--in-flight 64, or leave it out",
        )
    _require_open(values)
    closed = None
    if values["concurrency"] is not None:
        closed = ClosedLoop(concurrency=values["concurrency"], burst=bool(values["burst"]), ramp=ramp)
    sessions = asked_sessions(values, closed)
    if sessions is not None:
        return sessions.requests()
    if values["trace"] is not None:
        _refuse_with_trace(values)
        trace = traces.read_trace(Path(values["trace"]))
        if trace.sessions is not None:
            return sessions_of_trace(trace, values, closed)
        require_sessions(values)
        if option := first_given(values, ("arrivals", "burstiness")):
            raise UsageError(f"{option} and --trace exclude each other", hint="a trace brings its own times")
        trace = trace.head(values["requests"]) if values["requests"] else trace
        return trace if closed is None else trace.in_loop(closed)
    prompt, output = asked_lengths(values, named)
    ratio = _ratio(values)
    _require_plain(ratio, (prompt or _PROMPT, output or _OUTPUT, values["thinking_tokens"]))
    kind, burstiness = asked_arrivals(values, named)
    return Traffic(
        classes=classes.classes,
        arrivals=closed or OpenLoop(rate=values["rate"], kind=kind, burstiness=burstiness),
        prompt=parse_lengths(prompt or _PROMPT, ratio),
        output=written_for(parse_lengths(output or _OUTPUT, ratio), values, ratio),
        requests_count=values["requests"],
        prefix=shared_text(values, named),
        samples=values["samples"] or (named.samples if named else 1),
        seed=values["seed"],
        media=media,
    )


def _load(media: Media | None, values: dict[str, Any]) -> Traffic | Requests:
    """The load that the options describe, with the adapters that its requests name."""
    return _naming(_traffic(values, media), values)


def _naming(traffic: Traffic | Requests, values: dict[str, Any]) -> Traffic | Requests:
    """The load with an adapter for each request, where adapters are asked for."""
    named = question_if_asked(AdaptersNamed, values)
    if named is None:
        return traffic
    if isinstance(traffic, Traffic):
        return replace(traffic, adapters=named.popularity)
    return traffic.naming(named.popularity, values["seed"])


def _cached_share(values: dict[str, Any]) -> float:
    """The share of prompts that the workload's prefix cache finds, unless there is none."""
    if not values["workload"] or values["prefix_caching"] is False:
        return 0.0
    return load_workload(values["workload"]).cached_share


def _refuse_with_trace(values: dict[str, Any]) -> None:
    """Raise ``UsageError`` for options that describe requests where a trace brings them."""
    names = ("prompt", "output", *declared_keys(SharedPrefix), "samples", "length_ratio_min")
    if option := first_given(values, names):
        raise UsageError(f"{option} and --trace exclude each other", hint="a trace brings its own requests")
    refuse_thoughts_of_trace(values)


def _flags(values: dict[str, Any]) -> Flags:
    if bool(values["batch_wait_steps"]) != bool(values["batch_wait_fill"]):
        raise UsageError(
            f"--batch-wait-{'steps' if values['batch_wait_steps'] else 'fill'} alone holds no prompt back",
            because="prompts wait for at most that many steps until they fill that share of one; each is 0 by default",
            hint="both of them: --batch-wait-steps 8 --batch-wait-fill 0.5",
        )
    return question_of(Flags, values)


def _prefill_request(values: dict[str, Any], request: Request) -> Request | None:
    """What computes prompts, where options say that it is not what decodes; a file of constants and a memory that are
    stated belong to one accelerator.
    """
    given = {one.name: values[f"prefill_{one.name}"] for one in _OF_PREFILL if one.name != "chunked_prefill"}
    if all(value is None for value in given.values()):
        return None
    flags = option_values(EngineFlags, given)
    if given["two_batch_overlap"] is not None:
        flags["two_batch_overlap"] = given["two_batch_overlap"]
    found = replace(
        request,
        quant=given["quant"] or request.quant,
        parallel=replace(request.parallel, **option_values(Parallelism, given)),
        flags=request.flags.model_copy(update=flags),
    )
    return found if given["gpu"] is None else replace(found, gpu=given["gpu"], calibration=None, memory=None)


def _computing_prompts(request: Request, decodes: tuple[Request, Deployment]) -> Deployment:
    """What computes prompts for what decodes. Errors name its own options."""
    try:
        found = assemble(request)
    except InferplanError as error:
        own = re.compile(rf"--({'|'.join(one.name.replace('_', '-') for one in _OF_PREFILL)})\b")
        what, because, hint = (own.sub(r"--prefill-\1", text) for text in (error.what, error.because, error.hint))
        raise type(error)(what, because, hint) from None
    require_one_checkpoint((request, found), decodes)
    return found


def _run_options(values: dict[str, Any], request: Request, deployment: Deployment, flags: Flags) -> Options:
    prompts, cut = _prefill_request(values, request), values["prefill_chunked_prefill"]
    return Options(
        fleet=Fleet(
            **option_values(Fleet, values),
            prefill_deployment=None if prompts is None else _computing_prompts(prompts, (request, deployment)),
            prefill_flags=None if cut is None else replace(flags, chunked_prefill=cut),
        ),
        slo=asked_limits(values, _named(values), Slo()),
        **option_values(Options, values),
        trim=values["warmup"] is None,
        speculation=speculation_of(values, request),
        hit_rate=values["prefix_hit_rate"] or _cached_share(values),
        lora_bandwidth=None if (adapters := question_if_asked(AdaptersNamed, values)) is None else adapters.bandwidth,
    )


def _write_timeline(result: SimulationResult, timeline: str | None, plot_file: str | None) -> None:
    meters = list(result.meters)
    if timeline is not None:
        table = Path(timeline).suffix.lower() == ".csv"
        save(timeline, timeline_csv(meters) if table else timeline_trace(meters))
    if plot_file is not None:
        from inferplan.reports import plots

        plots.save(plots.timeline(timeline_tracks(meters[0]), "One engine over time"), plot_file)
