"""The Python API: plain arguments in, result objects out (docs/python-api.md).

Nothing here computes: every function builds the same value objects as the command line and makes one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack, overload

from inferplan.answers.compare import Comparison, compare
from inferplan.answers.cost import BatchCost, CostAsked, cost_of_batch, parse_api_price, parse_kwh_price
from inferplan.answers.explain import Explainer, Explanation
from inferplan.answers.fit import FitLoad, Fits, Fitting, fit_asked, fit_everywhere, fit_on
from inferplan.answers.fit_owned import OwnedFits, fit_owned
from inferplan.answers.recipe import Recipe, UsersAtATime, recipe
from inferplan.answers.sweep import Execution, Grid, Sweep, sweep
from inferplan.arguments import (
    Count,
    Counts,
    Few,
    Fews,
    Formats,
    Names,
    Numbers,
    Seconds,
    Watts,
    check_arguments,
    count,
    instance,
    read_argument,
)
from inferplan.arguments import (
    Flags as Switches,
)
from inferplan.catalog import files
from inferplan.catalog.assemble import Request, assemble_with_request, request_of, usual_engine, usual_engines
from inferplan.catalog.counted import counted
from inferplan.catalog.host_times import HostTimes
from inferplan.catalog.offload import OffloadAsked
from inferplan.catalog.people import people_load, with_most
from inferplan.catalog.price_lists import PriceBook, Term, price_book
from inferplan.catalog.sessions import people_of
from inferplan.catalog.workloads import load_workload
from inferplan.devices.engine import EngineFlags
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import carrying, estimate
from inferplan.models.media import MediaAsked
from inferplan.models.spec import ModelSpec
from inferplan.planning.asked import SizingAsked
from inferplan.planning.demand import Demand
from inferplan.planning.plan import Plan, plan
from inferplan.planning.power import PowerBudget
from inferplan.planning.question import Question
from inferplan.planning.space import Space, default_gpus
from inferplan.serving import simulator
from inferplan.serving.cold_start import ColdStart
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.serving.step_times import StepTimes
from inferplan.serving.techniques.applied import ServedEstimate, Techniques, served_estimate
from inferplan.steps import Steps
from inferplan.table import flatten, frame, plain
from inferplan.traffic.conversations import ThinkTime, parse_think_time
from inferplan.traffic.people import People
from inferplan.traffic.requests import Lengths, Requests, SharedPrefix, Slo, Traffic, parse_lengths
from inferplan.work.adapters import LoraAsked
from inferplan.work.parallel import Parallelism

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from inferplan.reports.emit import Emitted
    from inferplan.validation.files import Validation

_DEGREES = tuple(field.name for field in fields(Parallelism))
_COUNTED_BY = ("utilisation", "spare", "confidence", "miss_cost", "max_cost", "mtbf")
"""What says how replicas are counted."""

Tokens = float | str | Lengths
"""Tokens of a request: a number, a distribution as text (``"lognormal:1024:0.6"``), or ``Lengths``."""


class DeployOptions(TypedDict, total=False):
    """What :func:`deploy` takes by keyword: the fields of ``Request``, and those of ``Parallelism`` beside them.

    quant: formats of all roles, ``"fp8"``. roles: pairs of a tensor role and its format, which win over ``quant``.
    engine: the usual one unless given (llama.cpp for GGUF files and Apple's chips, else vLLM); ``"vllm@0.20"``.
    calibration: a file of constants; those of the GPU otherwise. ideal: without
    fitted constants. memory: usable memory as text, ``"64GB"``. nvlink_bridge: whether NVLink bridges, which are sold
    apart, join the cards. unfused_attention: scores go to memory and back.
    prune: what to cut from the model, ``"layers=24,d_ff=0.75"``. generation: fields of a diffusion model's generation.
    flags: what replaces the engine's defaults. expert_skew: how popularity of experts varies. anchor: a file
    of measured runs. media: what every request carries beside text. lora: adapters beside the model. offload: what lies
    in host memory. host: seconds of a host of one's own. power_cap: watts of each device. sampling: what requests
    sample with, ``"top-k,top-p"``. tp, pp, ep, dp, cp: degrees of parallelism. replicas: copies. redundant: slots for
    copies of experts. spread_dense: dense layers over all attention ranks.
    """

    quant: str | None
    roles: tuple[tuple[str, str], ...]
    engine: str
    calibration: str | None
    ideal: bool
    memory: str | None
    nvlink_bridge: bool
    unfused_attention: bool
    prune: str | None
    generation: tuple[tuple[str, int | bool], ...]
    flags: EngineFlags
    expert_skew: float | None
    anchor: str | None
    media: MediaAsked
    lora: LoraAsked
    offload: OffloadAsked
    host: HostTimes
    power_cap: Watts | None
    sampling: str | None
    tp: Count
    pp: Count
    ep: Count
    dp: Count
    cp: Count
    replicas: Count
    redundant: Few
    spread_dense: bool


class SweepAxes(TypedDict, total=False):
    """What :func:`run_sweep` takes by keyword: values of each axis, and ``ideal`` for the whole grid."""

    ideal: bool
    quant: Formats
    engine: Names
    tp: Counts
    pp: Counts
    ep: Counts
    dp: Counts
    cp: Counts
    replicas: Counts
    redundant: Fews
    two_batch_overlap: Switches
    expert_skew: Numbers
    batch: Counts
    prompt: Counts
    output: Counts


class RecipeLoad(TypedDict, total=False):
    """What :func:`take_apart` takes by keyword. prompt, output: tokens. reserved: tokens set aside without paging."""

    users: Count
    prompt: float
    output: Tokens
    reserved: Count


class PriceOptions(TypedDict, total=False):
    """What devices cost. price: GPU to the price of its hour, or ``"113.93/8"`` for an instance of 8. prices: names of
    lists, in order. term: on which terms. currency: of ``price`` and of the lists that are searched.
    """

    price: Mapping[str, float | str]
    prices: Names
    term: Term
    currency: str | None


class FitOptions(PriceOptions, total=False):
    """What :func:`fit` takes by keyword: the fields of ``FitAsked`` and ``FitLoad``, and prices. users: requests in
    flight; with ``think_time`` each user sends the next one so much later than an answer, which takes ``answer_time``.
    people: those at work in the busy hour, with what ``workload`` says of them; with ``sessions`` those who begin them.
    engine: the usual one of the GPU unless it is given; of GPUs that you ``have``, the faster of several.
    """

    quant: str | None
    kv: str | None
    quality: float | None
    tp: Count | None
    context: Count | None
    users: Count
    people: Count
    sessions_a_day: float
    workload: str
    sessions: str
    think_time: Seconds | None
    answer_time: Seconds | None
    most: Count
    engine: str
    memory: str | None
    lora: LoraAsked
    offload: OffloadAsked


class CostOptions(PriceOptions, total=False):
    """What :func:`cost` takes by keyword, beside prices. utilisation: share of the time that is busy. ratio: the price
    of an output token over that of an input token. api_price: of a hosted API for a million input and output tokens,
    ``"3/15"``. user_requests: of one user a day. power_share: of TDP drawn on average. pue: power of the facility over
    that of the GPUs. grid: grams of CO2 a kWh. kwh_price: what a kWh costs, ``"0.30EUR"``.
    """

    utilisation: float
    ratio: float | None
    api_price: str | None
    user_requests: float | None
    power_share: float
    pue: float
    grid: float | None
    kwh_price: str | None


class EmitOptions(TypedDict, total=False):
    """What :func:`emit` takes by keyword, as the command. context: tokens of the longest request. checkpoint,
    draft_checkpoint: repositories or paths of weights; quantised: they hold the formats modelled. extra: a file for
    what has no flag of trtllm. gpus_per_node: that one node holds. image, cache_claim: of Kubernetes.
    """

    context: Count | None
    checkpoint: str | None
    quantised: bool
    draft_checkpoint: str | None
    extra: str | None
    gpus_per_node: Count | None
    image: str | None
    cache_claim: str | None


class ValidateOptions(TypedDict, total=False):
    """What :func:`validate` takes by keyword. model to memory_fraction: facts that the files may leave out, by the
    names of the command's options (docs/validate.md). calibration, anchor, ideal: with which constants rows are priced.
    jobs: processes that simulate.
    """

    model: str
    gpu: str
    engine: str
    quant: str
    weights: str
    experts: str
    kv: str
    tp: Count
    pp: Count
    ep: Count
    dp: Count
    isl: Count
    osl: Count
    concurrency: Count
    requests: Count
    length_ratio_min: float
    max_num_batched_tokens: Count
    max_num_seqs: Count
    max_model_len: Count
    memory_fraction: float
    calibration: str | None
    anchor: str | None
    ideal: bool
    jobs: Count | None


class PlotOptions(DeployOptions, total=False):
    """What :func:`plot` takes by keyword. slo: a line at this latency. The rest belongs to pictures of no result:
    model, gpu and quant (several, where the picture compares them), batch, prompt, output, the other options of a
    deployment; rate: requests a second of a timeline.
    """

    model: Names
    gpu: Names
    batch: Count
    prompt: Count
    output: Count
    slo: Seconds | None
    rate: float | None


class SimulateOptions(TypedDict, total=False):
    """What :func:`simulate` takes by keyword. progress: ``False`` for no bar. timeline: keep every step."""

    progress: bool
    timeline: bool


class PlanQuestion(PriceOptions, total=False):
    """What :func:`make_plan` takes by keyword; times in seconds, or text such as ``"500ms"``.

    The load: people (at work in the busy hour, with the think time of ``workload``, or ``think_time``, also
    ``"exponential:30s"``; sessions_a_day: that each begins), or rate (requests a second), or users (requests in
    flight, each ``think_time`` behind the answer before it), or requests with a deadline; cached: prompt tokens
    that are always in the prefix cache. "most" in place of a number of people, a rate or users is the most that
    numbered GPUs (``gpus="2x-h100"``) carry, or max_cost, the most that an hour may cost. chat: requests are
    messages, so that a checkpoint tuned on instructions is started, as for users who think. Limits: ttft, tpot,
    e2el, answer_ttft, and the percentile of the requests that must meet them. Sizing: utilisation (the share of its
    capacity to load a replica with), spare (replicas beyond those needed), confidence, miss_cost (of an hour in
    which a limit is missed). survive: keep the limits while so many replicas are lost at a time (or ``"node"``),
    which are back after restart; mtbf: between failures of one GPU. power_budget: the most watts of all GPUs, by
    their nameplates. Prices: as in :class:`PriceOptions`. Space: quants, quality (the least published
    share that they keep), engines, most (GPUs of one replica), power_caps (watts of a GPU to try, instead of its
    TDP), ideal. prefill_schedule_interval, prefill_decode_interval: steps that keep prompts out, as vLLM and SGLang
    name them.
    """

    people: Count | Literal["most"]
    sessions_a_day: float
    workload: str
    rate: float | Literal["most"]
    users: Count | Literal["most"]
    think_time: float | str
    requests: Count
    deadline: Seconds
    cached: Few
    chat: bool
    ttft: Seconds
    tpot: Seconds
    e2el: Seconds
    answer_ttft: Seconds
    percentile: float
    utilisation: float
    spare: Few
    confidence: float
    miss_cost: float
    max_cost: float | str
    survive: int | str
    restart: Seconds
    mtbf: Seconds
    power_budget: Watts
    quants: Formats
    quality: float
    engines: Names
    most: Count
    power_caps: Numbers
    ideal: bool
    prefill_schedule_interval: Count
    prefill_decode_interval: Few


class Tabular(Protocol):
    """A result of many rows."""

    def to_frame(self) -> pd.DataFrame: ...


class Recorded(Protocol):
    """A result that is one record."""

    def to_dict(self) -> dict[str, Any]: ...


def load_model(name: str) -> ModelSpec:
    """A model by name, alias or path; a config, a checkpoint folder, a GGUF file or a hub id is imported.

    A copy of the caller's own: a list in it that is changed changes no later answer.
    """
    return files.load_model(read_argument("name", name, str)).model_copy(deep=True)


def load_hardware(name: str) -> HardwareSpec:
    """An accelerator by name, alias or path; a copy of the caller's own, as :func:`load_model` gives."""
    return files.load_hardware(read_argument("name", name, str)).model_copy(deep=True)


def request(model: str, gpu: str, **values: Unpack[DeployOptions]) -> Request:
    """What is asked for: ``quant``, ``engine``, ``ideal``, ``calibration``, and degrees such as ``tp=2``.

    Raises ``UsageError`` for an unknown option and for a value of another type.
    """
    given = check_arguments(values, DeployOptions, "no option named")
    degrees = {name: given.pop(name) for name in _DEGREES if name in given}
    model, gpu = read_argument("model", model, str), read_argument("gpu", gpu, str)
    given.setdefault("engine", usual_engine(model, gpu, given.get("quant")))
    return Request(model=model, gpu=gpu, parallel=Parallelism(**degrees), **given)


def deploy(model: str, gpu: str, **options: Unpack[DeployOptions]) -> Deployment:
    """A model on a GPU: the argument of everything else. Options as in :class:`DeployOptions`.

    Raises ``UsageError`` for an unknown option, ``UnknownNameError`` for a model or GPU that is not on file,
    ``IndivisibleError`` for degrees that do not divide the model.
    """
    return assemble_with_request(request(model, gpu, **options))


def _static(batch: Count, prompt: Count, output: Count, samples: Count = 1) -> StaticLoad:
    """Raises ``UsageError`` for what is no count."""
    return StaticLoad(
        batch=float(count("batch", batch)),
        prompt=float(count("prompt", prompt)),
        output=float(count("output", output)),
        samples=float(count("samples", samples)),
    )


def estimate_batch(
    deployment: Deployment,
    batch: Count = 1,
    prompt: Count = 1024,
    output: Count = 256,
    techniques: Techniques | None = None,
    samples: Count = 1,
) -> Estimate:
    """A static batch, prefilled together and decoded together. Raises ``InfeasibleError`` when it does not fit.

    techniques: drafts, a hit rate, chunks, a host tier; all figures are then those with them. samples: answers of each
    prompt, which share it.
    """
    techniques = read_argument("techniques", techniques, Techniques | None)
    own, load = carrying(_deployment(deployment), _static(batch, prompt, output, samples))
    return estimate(own, load) if techniques is None else served_estimate(own, load, techniques)


def _deployment(value: Deployment) -> Deployment:
    return instance(value, Deployment, "inferplan.deploy(model, gpu)")


def compare_deployments(
    deployments: Mapping[str, Deployment], batch: Count = 1, prompt: Count = 1024, output: Count = 256
) -> Comparison:
    """Deployments by label under one static batch; ratios are to the first."""
    if not isinstance(deployments, Mapping) or not deployments:
        raise UsageError("deployments are compared by label", hint='{"one": inferplan.deploy(...), "other": ...}')
    load = _static(batch, prompt, output)
    return compare([_deployment(one) for one in deployments.values()], [*map(str, deployments)], load)


@overload
def fit(model: str, gpu: None = None, **options: Unpack[FitOptions]) -> Fits: ...
@overload
def fit(model: str, gpu: str, **options: Unpack[FitOptions]) -> Fitting: ...
@overload
def fit(model: str, *, have: str, **options: Unpack[FitOptions]) -> OwnedFits: ...
def fit(
    model: str, gpu: str | None = None, *, have: str | None = None, **values: Unpack[FitOptions]
) -> Fits | Fitting | OwnedFits:
    """Which GPUs hold a model, how many, in which format, with how many requests; of one GPU, what holds it there; of
    GPUs that you ``have`` (``"2x-a6000"``, ``"2x24GB"``) what all of them hold, and the time per token.

    Raises ``InfeasibleError`` when nothing does.
    """
    given = check_arguments(values, FitOptions, "fit has no")
    prices, model = _prices(given), read_argument("model", model, str)
    load = FitLoad(**{field.name: given.pop(field.name) for field in fields(FitLoad) if field.name in given})
    gpu, have = read_argument("gpu", gpu, str | None), read_argument("have", have, str | None)
    if gpu is not None and (have is not None or counted(gpu).number is not None):
        raise UsageError("one GPU, or those that you have", hint=f"have={(have or gpu)!r}, and no gpu")
    if have is not None:
        return fit_owned(model, have, fit_asked(load, **given), prices)
    if gpu is None:
        return fit_everywhere(model, fit_asked(load, **given), prices)
    return fit_on(model, gpu, fit_asked(load, **given), prices)


def _prices(given: dict[str, Any]) -> PriceBook:
    """Takes the options of prices."""
    stated = [f"{gpu}={value}" for gpu, value in given.pop("price", {}).items()]
    return price_book(given.pop("prices", ()), stated, given.pop("term", "on-demand"), given.pop("currency", None))


def cost(
    deployment: Deployment,
    batch: Count | None = None,
    prompt: Count = 1024,
    output: Count = 256,
    **values: Unpack[CostOptions],
) -> BatchCost:
    """What a static batch costs that runs again and again, in money and energy.

    batch: the largest that memory and engine hold unless it is given. Raises ``MissingFactError`` without a price.
    """
    given = check_arguments(values, CostOptions, "cost has no")
    prices, load = _prices(given), _static(1 if batch is None else batch, prompt, output)
    given["api"] = parse_api_price(given.pop("api_price", None))
    given["share"] = given.pop("power_share", 1.0)
    price = given.pop("kwh_price", None)
    given["tariff"] = None if price is None else parse_kwh_price(price)
    return cost_of_batch(_deployment(deployment), load, prices, CostAsked(**given), batch is None)


def explain(
    what: Estimate | Deployment, number: str, batch: Count = 1, prompt: Count = 1024, output: Count = 256
) -> Explanation:
    """Where a number comes from: formula, inputs, the lines of the files that they stand on, sources.

    what: an estimate, or a deployment whose batch the other arguments are. number: ``"tpot"``, ``"decode.ffn.down"``
    and so on. Raises ``UnknownNameError`` for one that there is not, with those that there are.
    """
    techniques, load = Techniques(), _static(batch, prompt, output)
    if isinstance(what, Estimate):
        load = replace(what.load, prompt=what.load.prompt - what.load.media_tokens, media_tokens=0.0)
        techniques = what.techniques if isinstance(what, ServedEstimate) else techniques
        what = what.deployment
    asked = request_of(_deployment(what))
    return Explainer(request=asked, load=load, techniques=techniques).explain(read_argument("number", number, str))


def emit(target: str, what: Deployment | Plan | str | PathLike[str], **values: Unpack[EmitOptions]) -> Emitted:
    """What starts a deployment, a plan or the JSON file of a plan: ``str`` of it is a command, or Kubernetes objects.

    target: ``"vllm"``, ``"sglang"``, ``"trtllm"``, ``"atom"``, ``"llama.cpp"``, ``"ktransformers"`` or
    ``"k8s"``. Raises ``UsageError`` for an engine that is not the deployment's own.
    """
    from inferplan.reports.emit import EmitAsked, launch_text
    from inferplan.reports.plan_file import planned_of, read_plan
    from inferplan.reports.plan_record import plan_record

    asked = EmitAsked(**check_arguments(values, EmitOptions, "emit has no"))
    if isinstance(what, Plan):
        return launch_text(target, planned_of(plain(plan_record(what)), "the plan"), asked)
    if isinstance(what, (str, PathLike)):
        return launch_text(target, read_plan(read_argument("plan", what, str)), asked)
    return launch_text(target, request_of(_deployment(what)), asked)


def validate(
    files: str | PathLike[str] | Sequence[str | PathLike[str]],
    progress: bool = True,
    **values: Unpack[ValidateOptions],
) -> Validation:
    """Predicted against measured for every row of benchmark files, or for the memory that start-up logs name.

    Raises ``InputFileError`` where a file cannot be read or no row can be priced.
    """
    from inferplan.reports.progress import progress_counter
    from inferplan.validation.files import facts, validate_files
    from inferplan.validation.run import Pricing

    given = check_arguments(values, ValidateOptions, "validate has no")
    paths = [read_argument("files", one, str) for one in ([files] if isinstance(files, (str, PathLike)) else files)]
    jobs = given.pop("jobs", None)
    priced = {name: given.pop(name) for name in ("calibration", "anchor", "ideal") if name in given}
    stated = facts({name: f"{value:.15g}" if isinstance(value, float) else str(value) for name, value in given.items()})
    found = validate_files(
        paths, stated, Pricing(processes=jobs, **priced), lambda what, total: progress_counter(what, total, progress)
    )
    found.require_answers()
    return found


def plot(what: object, kind: str | None = None, **values: Unpack[PlotOptions]) -> Figure:
    """A picture as a matplotlib ``Figure``, of a result or by name.

    Of a result: ``kind`` says which of its pictures. By name, ``what`` is one of the kinds of ``inferplan plot``, of
    the deployments that the options name: ``plot("memory", model="llama-3.1-8b", gpu=["h100-sxm", "l40s"])``. Raises
    ``UsageError`` for a picture that there is not, ``MissingExtraError`` without matplotlib.
    """
    from inferplan.reports.pictures import Wanted, draw, picture_of

    given = check_arguments(values, PlotOptions, "plot has no")
    wanted = Wanted(slo=given.pop("slo", None), rate=given.pop("rate", None))
    if not isinstance(what, str):
        if given:
            raise UsageError(f"a result has {', '.join(given)} already", hint="kind= and slo= alone")
        return picture_of(what, read_argument("kind", kind, str | None), wanted)
    load = _static(**{name: given.pop(name, usual) for name, usual in _USUAL.items()})
    models, gpus = (",".join(given.pop(name, ())) for name in ("model", "gpu"))
    if not models or kind is not None:
        raise UsageError(f"{what} is drawn of the models that are named", hint=f'plot("{what}", model="llama-3.1-8b")')
    return draw(what, request(models, gpus, **given), load, wanted)


_USUAL = {"batch": 1, "prompt": 1024, "output": 256}


def run_sweep(
    model: str,
    gpu: Names,
    execution: Execution | None = None,
    progress: bool = True,
    **axes: Unpack[SweepAxes],
) -> Sweep:
    """A grid. ``axes``: values of ``quant``, ``engine``, ``tp`` and other degrees, ``redundant``,
    ``two_batch_overlap``, ``expert_skew``, ``batch``, ``prompt``, ``output``.

    ``ideal=True`` leaves the fitted constants out. ``execution`` says where it runs; one process unless it is given.
    Points that do not run stay, with the reason in ``status``. Raises ``UsageError`` for an unknown axis, and where no
    point can exist.
    """
    from inferplan.reports.progress import progress_counter

    given = check_arguments(axes, SweepAxes, "no axis named")
    ideal = given.pop("ideal", False)
    load = {name: given.pop(name) for name in ("batch", "prompt", "output") if name in given}
    model, gpus = read_argument("model", model, str), read_argument("gpu", gpu, Names)
    structure = {"gpu": gpus, "engine": usual_engines((model,), gpus, given.get("quant")), **given}
    base = Request(model=model, gpu="", ideal=ideal)
    grid = Grid(base=base, structure={name: [*values] for name, values in structure.items()}, **load)
    where = read_argument("execution", execution, Execution | None) or Execution(backend="serial")
    with progress_counter("structures", len(grid.tasks()), progress) as told:
        found = sweep(grid, where if where.progress else replace(where, progress=told))
    found.require_points()
    return found


def take_apart(
    model: str, gpu: str, ingredients: Names, baseline: str = "static,bf16", **load: Unpack[RecipeLoad]
) -> Recipe:
    """A speed-up, one ingredient at a time. ``load``: see :class:`RecipeLoad`; 64 users, 1024 tokens in, 256 out.

    Raises ``UsageError`` for an ingredient that there is not.
    """
    given = check_arguments(load, RecipeLoad, "a recipe has no")
    output = _lengths("output", given.pop("output", 256))
    prompt = float(given.pop("prompt", 1024))
    values = {"users": 64, "reserved": max(2048, int(prompt + 2 * output.average)), **given}
    wanted = UsersAtATime(prompt=prompt, output=output, **values)
    return recipe(
        request(model, gpu),
        read_argument("baseline", baseline, str),
        read_argument("ingredients", ingredients, Names),
        wanted,
    )


def make_plan(
    model: str,
    prompt: Tokens,
    output: Tokens,
    gpus: Names | None = None,
    progress: bool = True,
    **question: Unpack[PlanQuestion],
) -> Plan:
    """The cheapest deployment that meets the limits under a load.

    Load: ``people`` (with ``workload``, or ``think_time``, and ``sessions_a_day``), ``rate``, ``users`` (in flight), or
    ``requests`` with ``deadline`` [s]. Limits: ``ttft``, ``tpot``, ``e2el`` and, behind a thought
    (``ReasoningLengths``), ``answer_ttft`` [s] at ``percentile``. Sizing: ``utilisation``, ``spare``, ``confidence``,
    ``miss_cost``, ``survive`` with ``restart`` and ``mtbf``, ``power_budget`` [W]. Prices: ``prices``, ``price``.
    Space: ``quants``, ``quality``, ``engines``, ``most``, ``power_caps`` [W], ``ideal``, ``prefill_schedule_interval``
    (vLLM), ``prefill_decode_interval`` (SGLang). Raises ``InfeasibleError`` when nothing meets the limits.
    """
    from inferplan.reports.progress import progress_counter

    given, most = with_most(check_arguments(question, PlanQuestion, "a plan has no"))
    take = given.pop
    people, load = _load_of_people(given)
    demand = Demand(
        prompt=_lengths("prompt", prompt),
        output=_lengths("output", output),
        prefix=_thinking(load.get("think_time") or 0.0),
        people=people,
        **{name: load[name] for name in ("rate", "users", "requests", "deadline") if name in load},
        **{name: take(name) for name in ("cached", "chat") if name in given},
    )
    limits = {name: take(name) for name in ("ttft", "tpot", "e2el", "answer_ttft") if name in given}
    slo = Slo(percentile=take("percentile", 95.0), **limits)
    prices = _prices(given)
    numbered = [counted(gpu) for gpu in (default_gpus(prices) if gpus is None else read_argument("gpus", gpus, Names))]
    looked_at = tuple(dict.fromkeys(one.gpu for one in numbered))
    prices.check(files.load_hardware(gpu).name for gpu in looked_at)
    model, restart, ideal = read_argument("model", model, str), take("restart", None), take("ideal", False)
    counted_by = {name: take(name) for name in _COUNTED_BY if name in given}
    asked = SizingAsked(survive=str(take("survive")) if "survive" in given else None, **counted_by)
    sizing = asked.sizing(
        prices,
        PowerBudget(watts=take("power_budget")) if "power_budget" in given else None,
        None if restart is None else ColdStart(rest=restart),
        [one._replace(gpu=files.load_hardware(one.gpu).name) for one in numbered],
        demand.offline,
        ideal,
    )
    flags = EngineFlags(**{name: take(name) for name in _INTERVALS if name in given})
    own: dict[str, Any] = {name: take(name) for name in ("quants", "quality", "engines") if name in given}
    space = Space(
        base=Request(model=model, gpu="", ideal=ideal, flags=flags),
        gpus=looked_at,
        engines=own.pop("engines", None) or usual_engines((model,), looked_at, own.get("quants")),
        **own,
        most=take("most", 8),
        disaggregate=sizing.survive is None and not flags.keeps_prompts_out,
        caps=take("power_caps", ()),
    )
    with progress_counter("steps", None, progress) as told:
        return plan(Question(space=space, demand=demand, slo=slo, sizing=sizing, prices=prices, most=most), Steps(told))


_INTERVALS = ("prefill_schedule_interval", "prefill_decode_interval")
_LOAD = ("people", "sessions_a_day", "workload", "think_time", "rate", "users", "requests", "deadline")


def _load_of_people(given: dict[str, Any]) -> tuple[People | None, dict[str, Any]]:
    """The people of a plan, and its load with what they make of it. Takes what says it."""
    values = {name: given.pop(name) for name in _LOAD if name in given}
    named = load_workload(values["workload"]) if "workload" in values else None
    if named is not None and "people" not in values:
        raise UsageError("workload says what people do here, and there are none", hint="people=2000, or leave it out")
    people = people_of(values, named)
    return people, people_load(values, people, "users")


def _thinking(time: float | str | ThinkTime) -> SharedPrefix:
    """What users do between an answer and the next request."""
    if isinstance(time, ThinkTime):
        return SharedPrefix(think=time)
    return SharedPrefix(think=parse_think_time(time) if isinstance(time, str) else ThinkTime(mean=time))


def _lengths(name: str, value: Tokens) -> Lengths:
    found = read_argument(name, value, Tokens)
    if isinstance(found, str):
        return parse_lengths(found)
    if isinstance(found, Lengths):
        return found
    return parse_lengths(f"{found:.0f}") if found.is_integer() else Lengths(mean=found)


def simulate(
    deployment: Deployment,
    traffic: Traffic | Requests,
    flags: Flags | None = None,
    options: Options | None = None,
    times: StepTimes | None = None,
    **watched: Unpack[SimulateOptions],
) -> SimulationResult:
    """``traffic`` on a deployment under serving ``flags``, event by event.

    options: what is not the engine's, such as pools and limits. times: of its steps, if somebody has them. Raises
    ``UsageError`` for what the engine cannot run.
    """
    from inferplan.reports.progress import progress_counter

    seen = _watched(watched)
    traffic = _traffic(traffic)
    asked = read_argument("options", options, Options | None) or Options()
    asked = replace(asked, timeline=asked.timeline or seen.get("timeline", False))
    total = len(traffic) if isinstance(traffic, Requests) else traffic.requests_count
    with progress_counter("requests", total, seen.get("progress", True)) as told:
        asked = asked if asked.progress else replace(asked, progress=told)
        return simulator.simulate(
            _deployment(deployment), traffic, read_argument("flags", flags, Flags | None), asked, times
        )


def _watched(given: Mapping[str, Any]) -> dict[str, Any]:
    return check_arguments(given, SimulateOptions, "simulate has no")


def _traffic(traffic: Any) -> Traffic | Requests:
    return (
        traffic
        if isinstance(traffic, Requests)
        else instance(traffic, Traffic, "inferplan.Traffic(arrivals, prompt, output)")
    )


def to_frame(result: Tabular | Recorded) -> pd.DataFrame:
    """Any result as a pandas table: its own ``to_frame``, else its JSON record as one row.

    Raises ``MissingExtraError`` without pandas, ``UsageError`` for what is no result.
    """
    if hasattr(result, "to_frame"):
        table: pd.DataFrame = result.to_frame()
        return table
    if not hasattr(result, "to_dict"):
        raise UsageError(f"{type(result).__name__} is no result of a calculation")
    return frame([plain(flatten(result.to_dict()))])
