"""``inferplan plan`` and ``inferplan report``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferplan.answers.cost import CostAsked, parse_api_price
from inferplan.answers.drafting import DraftsTried
from inferplan.catalog.assemble import Request
from inferplan.catalog.classes import ClassesAsked, ClassMix, asked_classes
from inferplan.catalog.counted import Counted
from inferplan.catalog.files import load_hardware, load_model
from inferplan.catalog.offload import OffloadsTried
from inferplan.catalog.people import MOST_LOAD, PeopleAsked, people_load, with_most
from inferplan.catalog.price_lists import PriceBook, PricesAsked
from inferplan.catalog.sessions import (
    NOT_PLANNED,
    SessionsAsked,
    asked_sessions,
    people_of,
    refuse_beside,
    require_sessions,
    sessions_of_trace,
)
from inferplan.catalog.workloads import (
    WorkloadSpec,
    asked_arrivals,
    asked_lengths,
    asked_limits,
    borrowed_limit,
    load_workload,
    shared_text,
)
from inferplan.cli.declared import Declared, gets, options_of, quantity, with_options
from inferplan.cli.from_server import FromAsked, anchored, from_options
from inferplan.cli.layers import Layered
from inferplan.cli.missing import Lack, lacks_of_load, refuse_lacks
from inferplan.cli.numbers import Count, Finite, OrMost, share
from inferplan.cli.options import (
    BACKEND,
    USUAL,
    command_line,
    counting,
    known_engines,
    rank_served,
    report_options,
    suffix_callback,
    usual_engines,
    worker_options,
)
from inferplan.cli.restarts import cold_start_of
from inferplan.devices.engine import CADENCE, EngineFlags
from inferplan.errors import UsageError
from inferplan.estimate.structured import Structured
from inferplan.extras import require
from inferplan.features import require_together
from inferplan.fields import declared_keys, first_given, option_values, question_if_asked, question_of
from inferplan.files import save
from inferplan.models.media import MediaAsked
from inferplan.models.spec import ModelSpec
from inferplan.planning.adapters import slots_tried
from inferplan.planning.agents import demand_of_agents, demand_of_sessions
from inferplan.planning.asked import SizingAsked, SpaceAsked
from inferplan.planning.carried import with_media, with_named
from inferplan.planning.demand import Demand, demand_of_trace, lengths_of_classes, screened_by, sharing
from inferplan.planning.plan import PARTS, Plan, complete, plan, plan_budgets
from inferplan.planning.power import PowerBudget
from inferplan.planning.processes import Jobs
from inferplan.planning.question import Question, TiersTried, chains_of_sizes
from inferplan.planning.space import Space, default_gpus
from inferplan.reports.budgets import budgets_report
from inferplan.reports.plan import plan_report
from inferplan.serving.cold_start import StartAsked
from inferplan.serving.flags import Flags
from inferplan.steps import Steps
from inferplan.table import Report
from inferplan.traffic.people import IN_FLIGHT, IN_FLIGHT_HELP
from inferplan.traffic.popularity import AdaptersNamed
from inferplan.traffic.reasoning import written_for
from inferplan.traffic.requests import ArrivalKind, OpenLoop, SharedPrefix, Slo, parse_lengths
from inferplan.traffic.thoughts import ThoughtsAsked, parse_budgets, refuse_thoughts_of_trace
from inferplan.work.adapters import LoraAsked

if TYPE_CHECKING:
    from inferplan.reports.plan_against import Earlier

Command = Callable[..., Any]


def question_options(command: Command) -> Command:
    """Adds everything that a plan answers to; the command gets one ``question``."""
    return question_options_without()(command)


def question_options_without(
    *left_out: str, gpus: Callable[[dict[str, Any]], Iterable[str]] | None = None
) -> Callable[[Command], Command]:
    """Adds what a plan answers to, but for some options, which are as if nobody gave them.

    gpus: the GPUs by the values of all options, where ``--gpu`` is left out.
    """
    shown = [option for option in _OPTIONS if option.name not in left_out]
    absent = {option.name: option.keywords.get("default") for option in _OPTIONS if option.name in left_out}

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(prices: PricesAsked, **values: Any) -> Any:
            chosen = {option.name: values.pop(option.name) for option in shown} | absent
            if gpus is not None:
                chosen["gpu"] = ",".join(dict.fromkeys(gpus(chosen | values)))
            closed = None if "users" in left_out else "users"
            return command(question=build_question(values.pop("model"), prices.book, chosen, closed), **values)

        return click.argument("model")(with_options(shown)(gets(prices=PricesAsked)(wrapper)))

    return decorate


_NOT_CONSTANT = (
    *("quant", "parallel", "calibration", "anchor", "memory", "unfused_attention", "prune", "flags", "expert_skew"),
    *("media", "lora", "offload", "power_cap"),
)
"""Fields of a request that a plan varies, asks in words of its own, or knows nothing of."""
_OPTIONS = [
    Declared("--workload", metavar="NAME", help="Lengths and limits by name or path: chat, rag, code, agent, ..."),
    *options_of(ClassesAsked),
    *options_of(Flags, "queue"),
    Declared("--prompt", metavar="LENGTHS", help="Prompt tokens: 1024, or lognormal:1024:0.6."),
    Declared("--output", metavar="LENGTHS", help="Generated tokens, in the same way."),
    *options_of(ThoughtsAsked, "tokens"),
    Declared(
        "--thinking-budget",
        metavar="COUNTS",
        help="Most tokens per thought, which is cut there; several, such as 1k,4k,none, compare their costs.",
    ),
    *options_of(ThoughtsAsked, "end"),
    Declared("--samples", type=Count(), help="Answers per prompt; --rate and --requests count prompts [1]."),
    Declared(
        "--cached-prefix", type=Count(0), default=0, help="Tokens of each prompt always found in the prefix cache [0]."
    ),
    *options_of(MediaAsked),
    *options_of(SharedPrefix),
    Declared(
        "--people",
        type=OrMost(Count(most=10**9)),
        help="People at work in the busy hour, with pauses of --think-time [of the workload]. most: as many as "
        "--gpu 2x-h100, or --max-cost, serves.",
    ),
    *options_of(PeopleAsked, without=["people"]),
    Declared("--rate", type=OrMost(Finite()), help="Requests per second, or most."),
    Declared(
        *(*IN_FLIGHT, "users"),
        type=OrMost(Count()),
        help=f"{IN_FLIGHT_HELP} A number, or most.",
    ),
    Declared("--trace", metavar="FILE", help="A trace of requests with arrival times, or of sessions of agents."),
    *options_of(SessionsAsked, "sessions", "rate"),
    *options_of(OpenLoop, "kind", "burstiness"),
    Declared("--requests", type=Count(), help="Offline: number of requests."),
    Declared("--deadline", metavar="TIME", help="Offline: time by which they must be done, such as 24h."),
    *options_of(Slo, "ttft", "tpot", "e2el", "answer_ttft", "session"),
    Declared(
        "--slo",
        metavar="NAME",
        help="Limits only, by the name of a workload: chat, mlperf:llama2-70b-interactive, ...",
    ),
    *options_of(Slo, "percentile"),
    Declared("--engine", default="vllm", show_default=USUAL, metavar="LIST", callback=known_engines, help="Engines."),
    BACKEND,
    *options_of(SpaceAsked, without=["slots"]),
    *options_of(EngineFlags, *CADENCE),
    *options_of(Request, "expert_skew"),
    *options_of(DraftsTried),
    *options_of(LoraAsked, "rank", "modules"),
    *options_of(SpaceAsked, "slots"),
    *options_of(LoraAsked, "folder"),
    *options_of(AdaptersNamed),
    *options_of(Structured),
    *options_of(OffloadsTried),
    *options_of(PowerBudget),
    *options_of(TiersTried),
    *options_of(SizingAsked),
    *options_of(CostAsked, "api"),
    *options_of(StartAsked),
    *options_of(Request, without=_NOT_CONSTANT),
]


def build_question(model: str, prices: PriceBook, values: dict[str, Any], closed: str | None = "users") -> Question:
    """The question that the options ask. closed: the key of requests in flight; ``None`` where a load is a rate."""
    named = load_workload(values["workload"]) if values["workload"] else None
    values, most = _with_most(values, closed)
    classes = asked_classes(values, alone=False)
    if not (named or values["trace"] or values["sessions"] or classes.classes):
        values = _with_lengths(load_model(model), values)
    _require_said(model, values, named, closed)
    people = people_of(values, named)
    values = people_load(values, people, closed)
    budgets = parse_budgets(values["thinking_budget"] or "")
    values = {**values, "thinking_budget": budgets[0] if budgets else None}
    demand = _of_classes(classes, values) if classes.classes else _demand(values, named)
    if people is None:
        _note_replaced(values, named)
    base, demand = with_media(Request(model=model, gpu="", media=question_of(MediaAsked, values)), demand, named)
    demand = replace(with_named(demand, values), people=people)
    limits = _limits(model, values, named, demand)
    slo = screened_by(demand.classes) if demand.classes else limits
    asked = question_of(SpaceAsked, values)
    counted = asked.gpus or tuple(Counted(None, gpu) for gpu in default_gpus(prices))
    gpus = tuple(dict.fromkeys(one.gpu for one in counted))
    prices.check(load_hardware(gpu).name for gpu in gpus)
    asked.require_formats(model, gpus)
    start, power = cold_start_of(values, None, "--restart"), question_if_asked(PowerBudget, values)
    sized = question_of(SizingAsked, values)
    drafts = question_if_asked(DraftsTried, values)
    chains = chains_of_sizes(question_of(TiersTried, values).sizes)
    one_pool = asked.aggregated or asked.anchor or asked.routing or sized.survive or chains or demand.structured
    space = Space(
        base=_constant(base, values, asked),
        gpus=gpus,
        engines=usual_engines(values["engine"], (model,), gpus, asked.quants),
        most=asked.largest,
        budgets=asked.budgets,
        disaggregate=not (one_pool or any(_of_cadence(values).values())),
        anchor=asked.anchor,
        drafting=() if drafts is None else drafts.draftings(model),
        redundant=asked.redundant,
        two_batches=asked.two_batches,
        prefill_redundant=asked.prefill_redundant,
        prefill_two_batches=asked.prefill_two_batches,
        slots=_slots(values, asked),
        caps=asked.caps,
        placed=question_of(OffloadsTried, values).each(),
        **asked.of_space,
    )
    return Question(
        space=space,
        demand=demand,
        slo=slo,
        sizing=sized.sizing(prices, power, start, counted, demand.offline, values["ideal"]),
        prices=prices,
        chains=chains,
        routing=asked.routing,
        budgets=budgets if len(budgets) > 1 else (),
        most=most,
        borrowed=None if demand.offline or demand.trace or demand.of_sessions else borrowed_limit(values, named),
        api=parse_api_price(values["api_price"]),
    )


def _require_said(model: str, values: dict[str, Any], named: WorkloadSpec | None, closed: str | None) -> None:
    """Raise ``UsageError`` that names all that is missing of the load, where that is a limit or more than one thing.

    A trace says its own, and files of sessions or classes do.
    """
    if any(values[name] for name in ("trace", "sessions", "classes")):
        return
    job = values["deadline"] is not None
    lacks = [one for one in lacks_of_load(model, values, named, traced=False) if not (job and one.of_limits)]
    loads = ("rate", "people", "requests", closed or "rate")
    if not (job or any(values[name] is not None for name in loads)):
        lacks.append(Lack("a load", "--rate 10"))
    if len(lacks) > 1 or (lacks and lacks[0].of_limits and values["requests"] is None):
        refuse_lacks("a plan", lacks)


def _limits(model: str, values: dict[str, Any], named: WorkloadSpec | None, demand: Demand) -> Slo:
    """The limits that are stated or of the workload; where there are none, those of a file of sessions."""
    if demand.trace is not None and named is None:
        refuse_lacks("a plan", lacks_of_load(model, values, None, traced=True))
    limits = asked_limits(values, None if demand.offline else named, Slo(percentile=95.0))
    usual = None if demand.sessions is None else demand.sessions.usual
    return limits if limits.limits or usual is None else asked_limits(values, None, usual)


def _with_most(values: dict[str, Any], closed: str | None) -> tuple[dict[str, Any], bool]:
    """As :func:`with_most`. Raises ``UsageError`` for a command that buys for a load that is known."""
    values, most = with_most(values)
    if most and closed is None:
        raise UsageError(
            f"{MOST_LOAD} is a load of plan",
            because="what is bought here is for a load that is known",
            hint=f"inferplan plan MODEL --gpu 2x-h100 --people {MOST_LOAD}, or a number",
        )
    return values, most


def _note_replaced(values: dict[str, Any], named: WorkloadSpec | None) -> None:
    """Say so where other options replace all that a workload says of the load and its limits."""
    if named is None or named.media or not (values["prompt"] and values["output"]):
        return
    lengths, usual = [replace(_demand(values, one), chat=False) for one in (named, None)], Slo(percentile=95.0)
    if lengths[0] == lengths[1] and asked_limits(values, named, usual) == asked_limits(values, None, usual):
        left = "only that requests are chat messages is its own" if named.chat else "nothing of it is left"
        click.echo(f"note: lengths and limits are yours, not those of workload {named.name}; {left}", err=True)


def _of_cadence(values: dict[str, Any]) -> dict[str, Any]:
    """The options that keep prompts out of most steps."""
    return {name: values[name] for name in CADENCE}


def _constant(base: Request, values: dict[str, Any], asked: SpaceAsked) -> Request:
    """The request that all candidates begin from: what the search does not vary."""
    same = {one.name: values[one.name] for one in options_of(Request, without=_NOT_CONSTANT)}
    chosen = {"backends": values["backend"]} if values["backend"] else {}
    return replace(
        base,
        **option_values(Request, same),
        calibration=asked.calibration,
        expert_skew=values["expert_skew"],
        roles=asked.roles,
        flags=EngineFlags(**chosen, **option_values(EngineFlags, _of_cadence(values))),
        lora=_adapters(values, _slots(values, asked)),
    )


def _slots(values: dict[str, Any], asked: SpaceAsked) -> tuple[int, ...]:
    """Adapters in device memory: the numbers that are named, else the usual ones where requests name adapters."""
    return asked.slots or (slots_tried(values["loras"]) if values["loras"] is not None else ())


def _adapters(values: dict[str, Any], slots: tuple[int, ...]) -> LoraAsked:
    """The adapters of the deployments: where requests name some, of the usual rank unless another is given."""
    rank = rank_served(values, values["loras"])
    return question_of(LoraAsked, {**values, "max_loras": slots[0] if slots else None, "lora_rank": rank})


def _with_lengths(model: ModelSpec, values: dict[str, Any]) -> dict[str, Any]:
    """The options with the lengths that only some models leave to be said."""
    if not values["output"] and model.encodes:
        values = {**values, "output": "1"}  # the answer of a request
    if model.encoder is not None and model.encoder.frames is not None and not values["prompt"]:
        values = {**values, "prompt": str(model.encoder.frames)}  # the one input that it reads
    return values


def _demand(values: dict[str, Any], named: WorkloadSpec | None) -> Demand:
    if values["trace"] and not values["sessions"]:
        return _traced(values)
    sessions = asked_sessions(values, None, NOT_PLANNED)
    if sessions is not None:
        return demand_of_sessions(sessions)
    prompt, output = asked_lengths(values, named)
    if not prompt or not output:
        missing = " and ".join(option for option, text in (("--prompt", prompt), ("--output", output)) if not text)
        what = f"workload {named.name} has only limits" if named else "the lengths of requests are missing"
        lengths = " ".join(one for one, text in (("--prompt 1024", prompt), ("--output 256", output)) if not text)
        hint = f"{lengths}, or --trace FILE" if prompt or output else f"{lengths}, or --workload chat, or --trace FILE"
        raise UsageError(what, because=f"no {missing}", hint=hint)
    own, generated = parse_lengths(prompt), written_for(parse_lengths(output), values)
    prefix, samples = shared_text(values, named), values["samples"] or (named.samples if named else 1)
    whole, cached = sharing(own, generated, prefix, samples)
    shared: dict[str, Any] = {} if whole is own else {"own": own, "samples": samples}
    if shared and values["cached_prefix"]:
        raise UsageError(
            "--cached-prefix with prompts that share text",
            because="hits of the prefix cache are simulated",
            hint="leave --cached-prefix out, or the shared text",
        )
    if named is not None:
        cached = cached or round(named.cached_share * whole.average)
    kind, burstiness = _arrivals(values, named)
    return Demand(
        prompt=whole,
        output=generated,
        cached=values["cached_prefix"] or cached,
        arrivals=kind,
        burstiness=burstiness,
        **shared,
        prefix=prefix,
        rate=None if values["rate"] is None else values["rate"] * samples,
        users=values["users"],
        requests=None if values["requests"] is None else values["requests"] * samples,
        deadline=quantity(values["deadline"], "seconds", "--deadline"),
        chat=named is not None and named.chat,
    )


def _arrivals(values: dict[str, Any], named: WorkloadSpec | None) -> tuple[ArrivalKind, float]:
    """Gaps between requests. Raises ``UsageError`` where they are asked for and nothing arrives by itself."""
    option = first_given(values, ("arrivals", "burstiness"))
    if option and values["users"] is not None:
        because = "users send a request after each answer, with --think-time in between"
        raise UsageError(
            f"{option} and {'--people' if values['people'] else IN_FLIGHT[0]} exclude each other",
            because=because,
            hint="--rate instead of them, or leave it out",
        )
    if option and values["deadline"]:
        raise UsageError(
            f"{option} and --deadline exclude each other", because="all requests of a job are there from the start"
        )
    return asked_arrivals(values, named)


def _of_classes(mix: ClassMix, values: dict[str, Any]) -> Demand:
    """The demand of several kinds of traffic."""
    if not any(one.slo.limits for one in mix.classes):
        raise UsageError("a plan needs a latency limit for at least one class", hint="ttft: 500 ms in the file")
    if values["cached_prefix"]:
        raise UsageError(
            "--cached-prefix and --classes exclude each other",
            because="hits of the prefix cache are simulated from the text they share",
            hint="leave --cached-prefix out, or the shared text: --shared-prefix 1000, --turns 4",
        )
    own, output = lengths_of_classes(mix.classes)
    prefix, samples, generated = shared_text(values, None), values["samples"] or 1, written_for(output, values)
    prompt, cached = sharing(own, generated, prefix, samples)
    kind, burstiness = _arrivals(values, None)
    rate = values["rate"] if mix.rate is None else mix.rate
    return Demand(
        prompt=prompt,
        output=generated,
        cached=cached,
        own=None if prompt is own else own,
        samples=samples,
        prefix=prefix,
        arrivals=kind,
        burstiness=burstiness,
        rate=None if rate is None else rate * samples,
        users=values["users"],
        requests=None if values["requests"] is None else values["requests"] * samples,
        classes=mix.classes,
        queue=values["queue"],
    )


def _traced(values: dict[str, Any]) -> Demand:
    from inferplan.traffic import traces

    refuse_thoughts_of_trace(values)
    own = ("workload", "prompt", "output", "samples", "users", "requests", "deadline", *declared_keys(SharedPrefix))
    if option := first_given(values, own):
        hint = f"--slo {values['workload']} for its limits alone" if option == "--workload" else "leave one out"
        raise UsageError(f"--trace already states {option}", hint=hint)
    pace = first_given(values, ("rate", "arrivals", "burstiness", "cached_prefix"))
    trace = traces.read_trace(Path(values["trace"]))
    if trace.sessions is not None:
        if values["rate"] is not None:
            raise UsageError("--rate counts requests; a trace of agents has sessions", hint="--session-rate 0.2/s")
        refuse_beside(values)
        return demand_of_agents(sessions_of_trace(trace, values, None))
    require_sessions(values)
    if pace:
        because = "it is replayed at its own times, and cache hits are simulated"
        raise UsageError(f"--trace already states {pace}", because=because, hint="leave one out")
    return demand_of_trace(trace)


def page_file(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Callback of an option that names the page: what it needs is checked before the search, not after it."""
    if value is not None and not ctx.resilient_parsing:
        if value.lower().endswith(".html"):
            require("report", "a page")
        require("plot", "drawing")
    return suffix_callback((".html", ".md"), "a report")(ctx, param, value)


@click.command("plan", cls=Layered)
@question_options
@click.option(
    "--report", "html", metavar="FILE", callback=page_file, help="Also write the report to share: .html or .md."
)
@click.option("--against", metavar="FILE", help="An earlier plan's JSON: how much more or less this one costs.")
@click.option("--max-rise", metavar="SHARE", help="Exit 6 when the cost is above --against by more: 5% or 0.05.")
@worker_options
@gets(server=FromAsked)
@from_options
@report_options
def plan_command(
    question: Question,
    html: str | None,
    against: str | None,
    max_rise: str | None,
    jobs: Jobs,
    server: FromAsked | None,
    **files: str,
) -> Report:
    """What to buy and how to run it: the cheapest deployment that meets the limits under the load.

    The load is --people, --rate, --in-flight, --trace, or --requests with --deadline. The cheapest candidates in closed
    form are sized by simulation. The plan keeps each limit with a chance of 80 % (--confidence), as far as the error of
    the prediction is known; where it is not, the plan rests on the prediction itself and says so first. Without a plan:
    exit code 3 and the nearest miss.

    --workload sets lengths and limits, --slo only limits; --ttft and similar options replace single ones. --from URL:
    a running server corrects the plan.

    Example: inferplan plan llama-3.1-70b --rate 50 --prompt 1024 --output 256 --ttft 500ms --tpot 40ms
    """
    if html:
        require_together("plan", question.features | {"page"})
    earlier, most = _earlier(question, against, max_rise)
    question = anchored(question, server, **files)
    if question.budgets:
        given = click.get_current_context().params
        if asked := [name for name in ("jobs", "scheduler") if given[name] is not None]:
            raise UsageError(
                f"--{asked[0]} does not go with several --thinking-budget",
                because="each budget has a plan of its own, one after another, which is not divided among processes",
                hint=f"one --thinking-budget, or no --{asked[0]}",
            )
        with counting("steps") as progress:
            report = budgets_report(question, plan_budgets(question, Steps(progress)))
        return replace(report, record={**report.record, "command": command_line()})
    found = _planned(question, jobs)
    if html:
        _write(found, html)
    formed = any(click.get_current_context().params[name] for name in ("report_file", "style"))
    report = plan_report(found, None if formed else command_line())
    if earlier is not None:
        from inferplan.reports.plan_against import cost_change, with_change

        change = cost_change(found, earlier)
        report = with_change(report, change)
        if most is not None:
            report = replace(report, ends=lambda: change.require_at_most(most))
    return replace(report, record={**report.record, "command": command_line()}, of=found)


@click.command("report", cls=Layered)
@question_options
@click.option("-o", "report_file", required=True, metavar="FILE", callback=page_file, help="report.html or report.md")
@worker_options
def report_command(question: Question, report_file: str, jobs: Jobs) -> None:
    """The plan as one self-contained page to share: question, plan, alternatives, plots, assumptions, formulas.

    Example: inferplan report llama-3.1-70b --rate 50 --prompt 1024 --output 256 --ttft 500ms --tpot 40ms -o plan.html
    """
    require_together("plan", question.features | {"page"})
    found = _planned(question, jobs)
    _write(found, report_file)


def _earlier(question: Question, path: str | None, rise: str | None) -> tuple[Earlier | None, float | None]:
    """The plan of ``--against``, which is read before anything is searched, and the share of ``--max-rise``."""
    most = share("--max-rise", rise)
    if path is None:
        if most is not None:
            raise UsageError("--max-rise says from what the cost may rise", hint="--against base.json, or leave it out")
        return None, None
    if question.budgets:
        raise UsageError("--against takes one plan, not several", hint="one --thinking-budget")
    from inferplan.reports.plan_against import read_earlier

    return read_earlier(path), most


def _planned(question: Question, jobs: Jobs) -> Plan:
    """The plan, and what is shown beside it in so many processes."""
    with counting("steps") as progress:
        steps = Steps(progress)
        steps.more(PARTS)
        found = plan(question, steps)
        complete(found, jobs, steps)
    return found


def _write(found: Plan, path: str) -> None:
    from inferplan.reports.plan_page import html_document, markdown_document

    document = html_document if Path(path).suffix.lower() == ".html" else markdown_document
    save(path, document(found, command_line()))
    click.echo(f"report written to {path}", err=True)
