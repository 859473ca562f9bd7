"""``inferplan plan`` and ``inferplan report``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, get_args

import click

from inferplan.answers.drafting import DraftsTried
from inferplan.catalog.assemble import NATIVE, Request, precision_of
from inferplan.catalog.classes import Mix
from inferplan.catalog.files import config_root, find, load_hardware, load_model
from inferplan.catalog.offload import OffloadsTried
from inferplan.catalog.price_lists import PriceBook
from inferplan.catalog.sessions import SessionsAsked
from inferplan.catalog.workloads import WorkloadSpec, load_limits, load_workload
from inferplan.cli.class_options import CLASSES, asked_classes
from inferplan.cli.cold_start_options import cold_start_of
from inferplan.cli.declared import Declared, options_of, quantity, with_options
from inferplan.cli.media_options import asked_of
from inferplan.cli.numbers import Count, Finite
from inferplan.cli.options import (
    BACKEND,
    PROGRESS,
    USUAL,
    command_line,
    known_engines,
    report_options,
    suffixed,
    usual_engines,
)
from inferplan.cli.power_options import caps_of
from inferplan.cli.price_options import price_options
from inferplan.cli.reasoning_options import refuse_thinking, thinking
from inferplan.cli.session_options import asked_sessions, refuse_beside, require_sessions, sessions_of_trace
from inferplan.cli.shared_text_options import TEXT_NAMES, shared_text
from inferplan.cli.tier_options import SIZES_FORM, sizes_of
from inferplan.devices.engine import EngineFlags
from inferplan.errors import UsageError
from inferplan.estimate.structured import Structured
from inferplan.estimate.towers import carried
from inferplan.extras import require
from inferplan.features import require_together
from inferplan.fields import made_if_asked, made_of, option_values
from inferplan.files import save
from inferplan.lists import parse_copies, parse_counts, parse_values
from inferplan.models.media import MediaAsked
from inferplan.models.spec import ModelSpec
from inferplan.planning.agents import demand_of_agents, demand_of_sessions
from inferplan.planning.confidence import MIDDLE
from inferplan.planning.demand import Demand, demand_of_trace, mixed, screened_by, sharing
from inferplan.planning.option import Sizing
from inferplan.planning.plan import Plan, plan, plan_budgets
from inferplan.planning.power import PowerBudget
from inferplan.planning.question import Question, chains_of_sizes
from inferplan.planning.redundancy import Survive
from inferplan.planning.space import Space, default_gpus
from inferplan.reports.budgets import budgets_report
from inferplan.reports.plan import plan_report
from inferplan.serving.cold_start import StartAsked
from inferplan.serving.flags import Flags
from inferplan.serving.routing import Routing
from inferplan.table import Report
from inferplan.traffic.popularity import AdaptersNamed
from inferplan.traffic.reasoning import ThoughtsAsked, parse_budgets
from inferplan.traffic.requests import Media, OpenLoop, SharedPrefix, Slo, arrivals_of, parse_lengths
from inferplan.work.adapters import LoraAsked
from inferplan.work.parallel import MOST_DEGREE

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
    shown, absent = [option for option in _OPTIONS if option.name not in left_out], unasked(left_out)

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(prices: PriceBook, **values: Any) -> Any:
            chosen = {option.name: values.pop(option.name) for option in shown} | absent
            if gpus is not None:
                chosen["gpu"] = ",".join(dict.fromkeys(gpus(chosen | values)))
            return command(question=build_question(values.pop("model"), prices, chosen), **values)

        return click.argument("model")(with_options(shown)(price_options(wrapper)))

    return decorate


def unasked(names: Iterable[str] | None = None) -> dict[str, Any]:
    """The values of options of a plan as if nobody gave them: of those that are named, or of all."""
    of = _OPTIONS if names is None else [option for option in _OPTIONS if option.name in names]
    return {option.name: option.keywords.get("default") for option in of}


_MOST_TRIED = 256
"""Values of a degree or a budget that a search tries: each goes with each of the others."""
_DEGREES = ("tp", "pp", "ep", "dp")
_NOT_CONSTANT = (
    *("quant", "parallel", "calibration", "anchor", "memory", "unfused_attention", "prune", "flags", "expert_skew"),
    *("media", "lora", "offload", "power_cap"),
)
"""Fields of a request that a plan varies, asks in words of its own, or knows nothing of."""
_OPTIONS = [
    Declared("--workload", metavar="NAME", help="Lengths and limits by name or path: chat, rag, code, agent, ..."),
    CLASSES,
    *options_of(Flags, "queue"),
    Declared("--prompt", metavar="LENGTHS", help="Prompt tokens: 1024, uniform:1024:0.8, lognormal:1024:0.6."),
    Declared("--output", "output_tokens", metavar="LENGTHS", help="Generated tokens, in the same way."),
    *options_of(ThoughtsAsked, "tokens"),
    Declared(
        "--thinking-budget",
        metavar="COUNTS",
        help="Most tokens of a thought, which is cut there; of several, 1k,4k,none, what each costs.",
    ),
    *options_of(ThoughtsAsked, "end"),
    Declared("--samples", type=Count(), help="Answers of each prompt; --rate and --requests count prompts [1]."),
    Declared("--cached-prefix", type=Count(0), default=0, help="Prompt tokens always found in the prefix cache [0]."),
    *options_of(MediaAsked),
    *options_of(SharedPrefix),
    Declared("--rate", type=Finite(), help="Requests a second."),
    Declared(
        *("--users", "--concurrency", "users"),
        type=Count(),
        help="Users with one request each at a time, who send the next one --think-time after its answer.",
    ),
    Declared("--trace", metavar="FILE", help="A trace of requests with arrival times, or of sessions of agents."),
    *options_of(SessionsAsked, "sessions", "rate"),
    *options_of(OpenLoop, "kind", "burstiness"),
    Declared("--requests", type=Count(), help="Offline: how many requests."),
    Declared("--deadline", metavar="TIME", help="Offline: time in which they must be done, such as 24h."),
    *options_of(Slo, "ttft", "tpot", "e2el", "answer_ttft", "session"),
    Declared(
        "--slo",
        metavar="NAME",
        help="Limits alone, by the name of a workload: chat, mlperf:llama2-70b-interactive, ...",
    ),
    *options_of(Slo, "percentile"),
    Declared("--gpu", metavar="LIST", help="Accelerators [data-centre GPUs of the first price list]."),
    Declared(
        "--quant",
        metavar="LIST",
        help="Formats; native is the checkpoint's own [native, fp8, nvfp4 or mxfp4 where the device has them].",
    ),
    Declared("--kv", metavar="FORMAT", help="Format of the KV cache [that of --quant: most are wide, also nvfp4's]."),
    Declared("--engine", default="vllm", show_default=USUAL, metavar="LIST", callback=known_engines, help="Engines."),
    BACKEND,
    Declared(
        "--most",
        type=Count(most=MOST_DEGREE),
        help="Largest number of GPUs in one replica [8, or what the degrees make].",
    ),
    Declared("--tp", metavar="COUNTS", help="Tensor parallelism [1,2,4,...]."),
    Declared("--pp", metavar="COUNTS", help="Pipeline stages [1,2,4,...]."),
    Declared("--ep", metavar="COUNTS", help="Expert groups [1 and all ranks]."),
    Declared("--dp", metavar="COUNTS", help="Attention data parallelism [1,2,4,... for experts]."),
    Declared(
        "--redundant-experts",
        metavar="COUNTS",
        help="Copies of popular experts (EPLB) to try, beside none, where experts are spread.",
    ),
    *options_of(Request, "expert_skew"),
    Declared(
        "--two-batch-overlap",
        is_flag=True,
        help="Try two half batches that overlap, beside whole ones, where attention ranks exchange experts' rows.",
    ),
    Declared(
        "--prefill-redundant-experts",
        metavar="COUNTS",
        help="The copies to try in a pool of its own for prompts. [as the others]",
    ),
    Declared(
        "--prefill-two-batch-overlap/--no-prefill-two-batch-overlap",
        "prefill_two_batch_overlap",
        default=None,
        help="Whether two half batches are tried in a pool of its own for prompts. [as the others]",
    ),
    Declared("--token-budget", metavar="COUNTS", help="Tokens of a step [512 to 16384]."),
    *options_of(DraftsTried),
    *options_of(LoraAsked, "rank", "modules"),
    Declared("--max-loras", metavar="COUNTS", help="Adapters in device memory at once, each tried [1]."),
    *options_of(LoraAsked, "folder"),
    *options_of(AdaptersNamed),
    *options_of(Structured),
    *options_of(OffloadsTried),
    Declared("--aggregated", is_flag=True, help="Do not consider separate prefill and decode pools."),
    Declared("--power-cap", metavar="LIST", help="Watts of each device to try, instead of its TDP: 700W,500W,400W."),
    *options_of(PowerBudget),
    Declared(
        "--cache-tier",
        "cache_tiers",
        metavar=SIZES_FORM,
        multiple=True,
        help="A tier for what the devices' caches drop, as in simulate, in one size or several: host:64GB,1TB:50GB/s. "
        "Each is planned for beside none, without separate pools; the answer says what it is worth.",
    ),
    Declared(
        "--routing",
        type=click.Choice(get_args(Routing)),
        help="Which replica gets a request, simulated together; no separate pools then [one after another, later turns "
        "of a conversation where the first went].",
    ),
    Declared("--utilisation", type=Finite(), help="Share of its capacity to load a replica with [0.8; offline 0.95]."),
    Declared(
        "--confidence",
        type=Finite(),
        default=MIDDLE,
        show_default=True,
        help="Chance that the limits are kept, as far as the error is known: 0.5 is the prediction, 0.9 its slow end.",
    ),
    Declared(
        "--spare", type=Count(0, MOST_DEGREE), default=0, help="Replicas beyond those needed, unchecked (N+1) [0]."
    ),
    Declared(
        "--survive",
        metavar="WHAT",
        help="Keep the limits, simulated, while so many replicas are lost at a time, or those of a node: 1, node. No "
        "separate pools then.",
    ),
    Declared("--restart", metavar="TIME", help="With it: until what is lost takes requests again."),
    *options_of(StartAsked),
    Declared("--mtbf", metavar="TIME", help="Mean time between failures of one GPU, whatever stops it, such as 2000d."),
    Declared("--calibration", metavar="FILE", help="Fitted constants [those of each GPU, if any are on file]."),
    Declared(
        "--anchor",
        metavar="FILE",
        help="Measured runs of one of the candidates, which correct it (inferplan anchor fit); no separate pools then.",
    ),
    *options_of(Request, without=_NOT_CONSTANT),
]


def gpu_name(name: str) -> str:
    """The device's own name, whatever alias was typed; a file stays a path, for it may bear the name of one on file."""
    spec = load_hardware(name)
    return spec.name if spec.part or find("hardware", name).is_relative_to(config_root()) else name


def build_question(model: str, prices: PriceBook, values: dict[str, Any]) -> Question:
    """The question that the options ask."""
    named = load_workload(values["workload"]) if values["workload"] else None
    classes = asked_classes(values, alone=False)
    if not (named or values["trace"] or values["sessions"] or classes.classes):
        values = _with_lengths(load_model(model), values)
    budgets = parse_budgets(values["thinking_budget"] or "")
    values = {**values, "thinking_budget": budgets[0] if budgets else None}
    demand = demand_of_classes(classes, values) if classes.classes else _demand(values, named)
    base, demand = _with_media(Request(model=model, gpu="", media=made_of(MediaAsked, values)), demand, named)
    demand = replace(_naming_adapters(demand, values), structured=made_if_asked(Structured, values))
    slots = _tried(values["max_loras"], "--max-loras") or ()
    slo = screened_by(demand.classes) if demand.classes else limits_of(values, named, demand.offline)
    gpus = tuple(gpu_name(name) for name in parse_values(values["gpu"] or "")) or default_gpus(prices)
    prices.check(load_hardware(gpu).name for gpu in gpus)
    engines = usual_engines(values["engine"], (model,), gpus)
    roles = (("kv", values["kv"]),) if values["kv"] else ()
    quants = _formats(model, gpus, values["quant"], roles)
    degrees = {name: _tried(values[name], f"--{name}") for name in _DEGREES}
    survive = _survived(values, gpus)
    one_pool = values["aggregated"] or values["anchor"] or values["routing"]
    drafts = made_if_asked(DraftsTried, values)
    chains = chains_of_sizes([sizes_of(text) for text in values["cache_tiers"] or ()])
    space = Space(
        base=_constant(base, values, slots, roles),
        gpus=gpus,
        quants=quants,
        engines=engines,
        most=_most(values["most"], degrees),
        budgets=_tried(values["token_budget"], "--token-budget"),
        disaggregate=not (one_pool or survive or chains or demand.structured),
        anchor=values["anchor"],
        drafting=() if drafts is None else drafts.draftings(model),
        redundant=_copies(values["redundant_experts"]) or (0,),
        two_batches=values["two_batch_overlap"],
        prefill_redundant=_copies(values["prefill_redundant_experts"]),
        prefill_two_batches=values["prefill_two_batch_overlap"],
        slots=slots,
        caps=caps_of(values),
        placed=made_of(OffloadsTried, values).each(),
        **degrees,
    )
    return Question(
        space=space,
        demand=demand,
        slo=slo,
        sizing=_sizing(values, demand, survive),
        prices=prices,
        chains=chains,
        routing=values["routing"],
        budgets=budgets if len(budgets) > 1 else (),
    )


def _constant(
    base: Request, values: dict[str, Any], slots: tuple[int, ...], roles: tuple[tuple[str, str], ...]
) -> Request:
    """The request that all candidates begin from: what the search does not vary."""
    same = {one.name: values[one.name] for one in options_of(Request, without=_NOT_CONSTANT)}
    return replace(
        base,
        **option_values(Request, same),
        calibration=values["calibration"],
        expert_skew=values["expert_skew"],
        roles=roles,
        flags=EngineFlags(backends=values["backend"] or ()),
        lora=made_of(LoraAsked, {**values, "max_loras": slots[0] if slots else None}),
    )


def _formats(
    model: str, gpus: Sequence[str], text: str | None, roles: tuple[tuple[str, str], ...]
) -> tuple[str | None, ...] | None:
    """The formats that are named, each of which the model can have; ``None`` where none are."""
    quants = tuple(None if q == NATIVE else q for q in parse_values(text or "")) or None
    for quant in quants or ((None,) if roles else ()) if gpus else ():
        request = Request(model=model, gpu=gpus[0], quant=quant, roles=roles)
        precision_of(request, load_model(model), load_hardware(gpus[0]))
    return quants


def _naming_adapters(demand: Demand, values: dict[str, Any]) -> Demand:
    """The demand with the adapters that its requests name, if any."""
    named = made_if_asked(AdaptersNamed, values)
    if named is None:
        return demand
    return replace(demand, adapters=named.popularity, lora_bandwidth=named.bandwidth)


def _with_lengths(model: ModelSpec, values: dict[str, Any]) -> dict[str, Any]:
    """The options with the lengths that only some models leave to be said."""
    if not values["output_tokens"] and model.encodes:
        values = {**values, "output_tokens": "1"}  # the answer of a request
    if model.encoder is not None and model.encoder.frames is not None and not values["prompt"]:
        values = {**values, "prompt": str(model.encoder.frames)}  # the one input that it reads
    return values


def _sizing(values: dict[str, Any], demand: Demand, survive: Survive | None) -> Sizing:
    """How replicas are counted."""
    utilisation = values["utilisation"] if values["utilisation"] is not None else 0.95 if demand.offline else 0.8
    return Sizing(
        utilisation=utilisation,
        spare=values["spare"],
        confidence=values["confidence"],
        power=made_if_asked(PowerBudget, values),
        survive=survive,
    )


def _survived(values: dict[str, Any], gpus: Iterable[str]) -> Survive | None:
    """What shall be survived. Raises ``UsageError`` for options that say nothing without it, and for nodes of GPUs of
    which nobody says how many stand in one.
    """
    what, start = values["survive"], cold_start_of(values, None, "--restart")
    mtbf = quantity(values["mtbf"], "seconds", "--mtbf")
    if what is None:
        if start is not None or mtbf is not None:
            raise UsageError("a time to restart or between failures is of what is survived", hint="--survive 1")
        return None
    if what != "node" and not (what.isdecimal() and 1 <= int(what) <= MOST_DEGREE):
        raise UsageError(f"--survive {what} is neither a number of replicas nor a node", hint="--survive 1")
    unknown = [gpu for gpu in gpus if load_hardware(gpu).node is None]
    if what == "node" and unknown:
        raise UsageError(
            f"nobody says how many {' or '.join(unknown)} stand in one node",
            because="sites differ, and their hardware files have none",
            hint="--survive K for so many replicas, or other devices (--gpu h100-sxm)",
        )
    if start is None:
        raise UsageError(
            "what is lost is back after a time to restart, and none is given",
            because="nobody knows it without your storage and your engine",
            hint="--restart 3min, or --storage-bandwidth 2GB/s with --engine-start 45s (or --startup-log FILE)",
        )
    return Survive(start=start, replicas=None if what == "node" else int(what), mtbf=mtbf)


def _tried(text: str | None, option: str) -> tuple[int, ...] | None:
    """The values of a degree or a budget that are named; ``None`` where none are."""
    return tuple(parse_counts(text, option, _MOST_TRIED)) if text else None


def _copies(text: str | None) -> tuple[int, ...] | None:
    """None and the numbers of copies that are named; ``None`` where none are."""
    return None if text is None else tuple(dict.fromkeys((0, *parse_copies(text))))


def _most(asked: int | None, degrees: dict[str, tuple[int, ...] | None]) -> int:
    """Devices of the largest replica: as many as the degrees make where that is not asked for.

    Raises ``UsageError`` for degrees that need more than is asked for.
    """
    given = {name: counts for name, counts in degrees.items() if counts}
    least = prod(min(counts) for name, counts in given.items() if name != "ep")  # experts live on the same devices
    if asked is None:
        return max(8, least, *(max(counts) for counts in given.values()))
    over = [f"--{name} {max(counts)}" for name, counts in given.items() if max(counts) > asked]
    if not over and least > asked:
        over = [" ".join(f"--{name} {min(counts)}" for name, counts in given.items() if name != "ep")]
    if over:
        raise UsageError(
            f"{over[0]} needs more devices than --most {asked}",
            because="--most is the largest number of GPUs in one replica",
            hint=f"--most {max(least, *(max(counts) for counts in given.values()))}, or smaller degrees",
        )
    return asked


def limits_of(values: dict[str, Any], named: WorkloadSpec | None, offline: bool = False) -> Slo:
    """The limits of ``--slo``, else those of the workload (an offline job has none); options replace them."""
    base = Slo(percentile=95.0)
    if values["slo"]:
        base = load_limits(values["slo"])
    elif named is not None and named.slo is not None and not offline:
        base = named.limits()
    return replace(base, **option_values(Slo, values))


def _require_plain(values: dict[str, Any]) -> None:
    """Raise ``UsageError`` for what a plan for sessions of agents does not know."""
    refuse_beside(values, ("requests", "deadline", "cached_prefix", "users", "answer_ttft"))


def _demand(values: dict[str, Any], named: WorkloadSpec | None) -> Demand:
    if values["trace"] and not values["sessions"]:
        return _traced(values)
    if values["sessions"] is not None:
        _require_plain(values)
    sessions = asked_sessions({**values, "session_count": None, "seed": 0}, None)
    if sessions is not None:
        return demand_of_sessions(sessions)
    prompt, output = values["prompt"], values["output_tokens"]
    if named is not None:
        prompt, output = prompt or named.prompt, output or named.output
    if not prompt or not output:
        missing = " and ".join(option for option, text in (("--prompt", prompt), ("--output", output)) if not text)
        what = f"workload {named.name} states limits only" if named else "the lengths of requests are missing"
        lengths = "--prompt 1024" if output else "--prompt 1024 --output 256"
        raise UsageError(what, because=f"no {missing}", hint=f"{lengths}, or --workload chat, or --trace FILE")
    own, generated = parse_lengths(prompt), thinking(parse_lengths(output), values)
    prefix, samples = shared_text(values, named), values["samples"] or (named.samples if named else 1)
    whole, cached = sharing(own, generated, prefix, samples)
    shared: dict[str, Any] = {} if whole is own else {"own": own, "samples": samples}
    if shared and values["cached_prefix"]:
        raise UsageError(
            "--cached-prefix beside prompts that share text",
            because="what a prefix cache finds of it is simulated",
            hint="leave --cached-prefix out, or what prompts share",
        )
    if named is not None:
        cached = cached or round(named.cached_share * whole.average)
    kind, burstiness = arrivals_of(values["arrivals"], values["burstiness"], named.burstiness if named else 1.0)
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


def demand_of_classes(mix: Mix, values: dict[str, Any]) -> Demand:
    """The demand of several kinds of traffic."""
    if not any(one.slo.limits for one in mix.classes):
        raise UsageError("a plan needs a limit on latency of one class at least", hint="ttft: 500 ms in the file")
    if values["cached_prefix"]:
        raise UsageError(
            "--cached-prefix and --classes exclude each other",
            because="what a prefix cache finds of what their requests share is simulated",
            hint="leave --cached-prefix out, or what prompts share: --shared-prefix 1000, --turns 4",
        )
    own, output = mixed(mix.classes)
    prefix, samples, generated = shared_text(values, None), values["samples"] or 1, thinking(output, values)
    prompt, cached = sharing(own, generated, prefix, samples)
    kind, burstiness = arrivals_of(values["arrivals"], values["burstiness"])
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


def _with_media(request: Request, demand: Demand, named: WorkloadSpec | None) -> tuple[Request, Demand]:
    """What is asked of devices and the demand, with what its requests carry beside text."""
    request, sets = asked_of(request, named, None if demand.trace is not None else demand.prompt.average)
    carrying = carried(load_model(request.model), request.media)
    if carrying is None:
        return request, demand
    media = Media(tokens=carrying.tokens, sets=sets)
    return request, replace(demand, prompt=media.beside(demand.prompt), text=demand.prompt, media=media)


def _traced(values: dict[str, Any]) -> Demand:
    from inferplan.traffic import traces

    refuse_thinking(values, "--trace", "a trace does not say which tokens of an output are thoughts")
    names = ("workload", "prompt", "output_tokens", "samples", "users", "requests", "deadline", *TEXT_NAMES)
    given = [name for name in names if values[name]]
    if given:
        hint = f"--slo {values['workload']} for its limits alone" if given[0] == "workload" else "leave one out"
        raise UsageError(
            f"--trace says everything that --{given[0].removesuffix('_tokens').replace('_', '-')} would", hint=hint
        )
    trace = traces.read(Path(values["trace"]))
    if trace.sessions is not None:
        if values["rate"] is not None:
            raise UsageError("--rate counts requests, and a trace of agents has sessions", hint="--session-rate 0.2/s")
        _require_plain(values)
        return demand_of_agents(sessions_of_trace(trace, {**values, "seed": 0, "session_count": None}, None))
    require_sessions(values)
    demand = demand_of_trace(trace)
    return demand if values["rate"] is None else replace(demand, rate=values["rate"])


def page_file(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Callback of an option that names the page: what it needs is checked before the search, not after it."""
    if value is not None and not ctx.resilient_parsing:
        if value.lower().endswith(".html"):
            require("report", "a page")
        require("plot", "drawing")
    return suffixed((".html", ".md"), "a report")(ctx, param, value)


@contextmanager
def simulations_so_far() -> Iterator[Callable[[int], None] | None]:
    """Says how far the search is: to the program that asked, or on stderr where that is a terminal."""
    told = click.get_current_context().meta.get(PROGRESS)
    if told is not None:
        yield lambda done: told(done, None, "simulations")
    elif sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("pricing every candidate") as status:
            yield lambda done: status.update(f"simulating the cheapest candidates: {done} runs so far")
    else:
        yield None


@click.command("plan")
@question_options
@click.option(
    "--report", "html", metavar="FILE", callback=page_file, help="Also write the report to send on: .html or .md."
)
@report_options
def plan_command(question: Question, html: str | None) -> Report:
    """What to buy and how to run it: the cheapest deployment that meets the limits under the load.

    The load is --rate, --users (with --think-time), --trace, or --requests with --deadline. Every candidate is
    evaluated in closed form; the cheapest are sized by simulation until none that may cost less is left. Two plans are
    shown: one for the prediction itself and one for the slow end of its error (--confidence says which is the
    headline). Without a plan: exit code 3, the nearest miss and the smallest relaxation.

    --workload names lengths and limits, --slo limits alone; --ttft and the others replace single ones.

    Example: inferplan plan llama-3.1-70b --rate 50 --prompt 1024 --output 256 --ttft 500ms --tpot 40ms
    """
    if html:
        require_together("plan", question.features | {"page"})
    if question.budgets:
        with simulations_so_far() as progress:
            report = budgets_report(question, plan_budgets(question, progress))
        return replace(report, record={**report.record, "command": command_line()})
    with simulations_so_far() as progress:
        found = plan(question, progress)
    if html:
        _write(found, html)
    report = plan_report(found)
    return replace(report, record={**report.record, "command": command_line()}, of=found)


@click.command("report")
@question_options
@click.option("-o", "report_file", required=True, metavar="FILE", callback=page_file, help="report.html or report.md")
def report_command(question: Question, report_file: str) -> None:
    """The plan as one self-contained page to send on: question, plan, alternatives, plots, assumptions, formulas.

    Example: inferplan report llama-3.1-70b --rate 50 --prompt 1024 --output 256 --ttft 500ms --tpot 40ms -o plan.html
    """
    require_together("plan", question.features | {"page"})
    with simulations_so_far() as progress:
        found = plan(question, progress)
    _write(found, report_file)


def _write(found: Plan, path: str) -> None:
    from inferplan.reports.plan_page import html_document, markdown_document

    document = html_document if Path(path).suffix.lower() == ".html" else markdown_document
    save(path, document(found, command_line()))
    click.echo(f"report written to {path}", err=True)
