"""The Python API: plain arguments in, result objects out (docs/python-api.md).

Nothing here computes: every function builds the same value objects as the command line and makes one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

from inferplan.answers.compare import Comparison, compare
from inferplan.answers.recipe import Load, Recipe, recipe
from inferplan.answers.sweep import Execution, Grid, Sweep, sweep
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_hardware
from inferplan.catalog.price_lists import Contract, price_book
from inferplan.devices.engine import EngineFlags
from inferplan.errors import UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import carrying, estimate
from inferplan.models.media import MediaAsked
from inferplan.planning.confidence import MIDDLE
from inferplan.planning.demand import Demand
from inferplan.planning.option import Sizing
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.planning.space import Space, default_gpus
from inferplan.serving.techniques.applied import Techniques, served_estimate
from inferplan.table import flatten, frame, plain
from inferplan.traffic.requests import Lengths, Slo, parse_lengths
from inferplan.work.parallel import Parallelism

if TYPE_CHECKING:
    import pandas as pd

_DEGREES = tuple(field.name for field in fields(Parallelism))

Tokens = float | str | Lengths
"""Tokens of a request: a number, a distribution as text (``"lognormal:1024:0.6"``), or ``Lengths``."""


class DeployOptions(TypedDict, total=False):
    """What :func:`deploy` takes by keyword: the fields of ``Request``, and those of ``Parallelism`` beside them.

    quant: formats of all roles, ``"fp8"``. roles: pairs of a tensor role and its format, which win over ``quant``.
    engine: ``"vllm"`` unless given, on any device (the command line takes llama.cpp for GGUF files and Apple's chips);
    ``"vllm@0.20"``. calibration: a file of constants; those of the GPU otherwise. ideal: without
    fitted constants. memory: usable memory as text, ``"64GB"``. unfused_attention: scores go to memory and back.
    prune: what to cut from the model, ``"layers=24,d_ff=0.75"``. generation: fields of a diffusion model's generation.
    flags: what replaces the engine's defaults. expert_skew: how popularity of experts varies. anchor: a file
    of measured runs. media: what every request carries beside text. tp, pp, ep, dp, cp:
    degrees of parallelism. replicas: copies. redundant: slots for copies of experts. spread_dense: dense layers over
    all attention ranks.
    """

    quant: str | None
    roles: tuple[tuple[str, str], ...]
    engine: str
    calibration: str | None
    ideal: bool
    memory: str | None
    unfused_attention: bool
    prune: str | None
    generation: tuple[tuple[str, int | bool], ...]
    flags: EngineFlags
    expert_skew: float | None
    anchor: str | None
    media: MediaAsked
    tp: int
    pp: int
    ep: int
    dp: int
    cp: int
    replicas: int
    redundant: int
    spread_dense: bool


class SweepAxes(TypedDict, total=False):
    """What :func:`run_sweep` takes by keyword: a list for each axis, and ``ideal`` for the whole grid."""

    ideal: bool
    quant: Sequence[str | None]
    engine: Sequence[str]
    tp: Sequence[int]
    pp: Sequence[int]
    ep: Sequence[int]
    dp: Sequence[int]
    cp: Sequence[int]
    replicas: Sequence[int]
    redundant: Sequence[int]
    two_batch_overlap: Sequence[bool]
    expert_skew: Sequence[float]
    batch: Sequence[int]
    prompt: Sequence[int]
    output: Sequence[int]


class RecipeLoad(TypedDict, total=False):
    """What :func:`take_apart` takes by keyword. prompt, output: tokens. reserved: tokens set aside without paging."""

    users: int
    prompt: float
    output: Tokens
    reserved: int


class PlanQuestion(TypedDict, total=False):
    """What :func:`make_plan` takes by keyword; times in seconds.

    The load: rate (requests a second), or users, or requests with a deadline; cached: prompt tokens that are always in
    the prefix cache. Limits: ttft, tpot, e2el, and the percentile of the requests that must meet them. Sizing:
    utilisation (the share of its capacity to load a replica with), spare (replicas beyond those needed), confidence.
    Prices: price (GPU to USD an hour, or "113.93/8" for an instance of 8), prices (names of lists), term. Space:
    quants, engines, most (GPUs of one replica), ideal.
    """

    rate: float
    users: int
    requests: int
    deadline: float
    cached: int
    ttft: float
    tpot: float
    e2el: float
    percentile: float
    utilisation: float
    spare: int
    confidence: float
    price: Mapping[str, float | str]
    prices: Sequence[str]
    term: Contract
    quants: Sequence[str | None]
    engines: Sequence[str]
    most: int
    ideal: bool


class Tabular(Protocol):
    """A result of many rows."""

    def to_frame(self) -> pd.DataFrame: ...


class Recorded(Protocol):
    """A result that is one record."""

    def to_dict(self) -> dict[str, Any]: ...


def request(model: str, gpu: str, **options: Unpack[DeployOptions]) -> Request:
    """What is asked for: ``quant``, ``engine``, ``ideal``, ``calibration``, and degrees such as ``tp=2``.

    Raises ``UsageError`` for an unknown option.
    """
    given: dict[str, Any] = {**options}
    degrees = {name: given.pop(name) for name in _DEGREES if name in given}
    known = {field.name for field in fields(Request)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise UsageError(f"no option named {', '.join(unknown)}", hint=", ".join(sorted(known | set(_DEGREES))))
    return Request(model=model, gpu=gpu, parallel=Parallelism(**degrees), **given)


def deploy(model: str, gpu: str, **options: Unpack[DeployOptions]) -> Deployment:
    """A model on a GPU: the argument of everything else. Options as in :class:`DeployOptions`.

    Raises ``UsageError`` for an unknown option, ``UnknownNameError`` for a model or GPU that is not on file,
    ``IndivisibleError`` for degrees that do not divide the model.
    """
    return assemble(request(model, gpu, **options))


def estimate_batch(
    deployment: Deployment,
    batch: float = 1,
    prompt: float = 1024,
    output: float = 256,
    techniques: Techniques | None = None,
) -> Estimate:
    """A static batch, prefilled together and decoded together. Raises ``InfeasibleError`` when it does not fit.

    techniques: drafts, a hit rate, chunks, a host tier; all figures are then those with them.
    """
    load = StaticLoad(batch=float(batch), prompt=float(prompt), output=float(output))
    deployment, load = carrying(deployment, load)
    return estimate(deployment, load) if techniques is None else served_estimate(deployment, load, techniques)


def compare_deployments(
    deployments: Mapping[str, Deployment], batch: float = 1, prompt: float = 1024, output: float = 256
) -> Comparison:
    """Deployments by label under one static batch; ratios are to the first."""
    load = StaticLoad(batch=float(batch), prompt=float(prompt), output=float(output))
    return compare(list(deployments.values()), list(deployments), load)


def run_sweep(model: str, gpu: Sequence[str], execution: Execution | None = None, **axes: Unpack[SweepAxes]) -> Sweep:
    """A grid. ``axes``: lists for ``quant``, ``engine``, ``tp`` and other degrees, ``redundant``,
    ``two_batch_overlap``, ``expert_skew``, ``batch``, ``prompt``, ``output``.

    ``ideal=True`` leaves the fitted constants out. ``execution`` says where it runs; one process unless it is given.
    Raises ``UsageError`` for an unknown axis.
    """
    given: dict[str, Any] = {**axes}
    ideal = bool(given.pop("ideal", False))
    load = {name: given.pop(name) for name in ("batch", "prompt", "output") if name in given}
    grid = Grid(base=Request(model=model, gpu="", ideal=ideal), structure={"gpu": list(gpu), **given}, **load)
    return sweep(grid, execution or Execution(backend="serial"))


def take_apart(
    model: str, gpu: str, ingredients: Sequence[str], baseline: str = "static,bf16", **load: Unpack[RecipeLoad]
) -> Recipe:
    """A speed-up, one ingredient at a time. ``load``: see :class:`RecipeLoad`; 64 users, 1024 tokens in, 256 out.

    Raises ``UsageError`` for an ingredient that there is not.
    """
    given: dict[str, Any] = {**load}
    output = _lengths(given.pop("output", 256))
    prompt = float(given.pop("prompt", 1024))
    values = {"users": 64, "reserved": max(2048, int(prompt + 2 * output.average)), **given}
    wanted = Load(prompt=prompt, output=output, **values)
    return recipe(request(model, gpu), baseline, ingredients, wanted)


def make_plan(
    model: str,
    prompt: Tokens,
    output: Tokens,
    gpus: Sequence[str] | None = None,
    **question: Unpack[PlanQuestion],
) -> Plan:
    """The cheapest deployment that meets the limits under a load.

    Load: ``rate``, ``users``, or ``requests`` with ``deadline`` [s]. Limits: ``ttft``, ``tpot``, ``e2el`` [s] at
    ``percentile``. Sizing: ``utilisation``, ``spare``, ``confidence``. Prices: ``prices`` (lists), ``price`` (device to
    price an hour).
    Space: ``quants``, ``engines``, ``most``, ``ideal``. Raises ``InfeasibleError`` when nothing meets the limits.
    """
    given: dict[str, Any] = {**question}
    take = given.pop
    demand = Demand(
        prompt=_lengths(prompt),
        output=_lengths(output),
        **{name: take(name) for name in ("rate", "users", "requests", "deadline", "cached") if name in given},
    )
    limits = {name: take(name) for name in ("ttft", "tpot", "e2el") if name in given}
    slo = Slo(percentile=take("percentile", 95.0), **limits)
    sizing = Sizing(
        utilisation=take("utilisation", 0.95 if demand.offline else 0.8),
        spare=take("spare", 0),
        confidence=take("confidence", MIDDLE),
    )
    stated = [f"{gpu}={value}" for gpu, value in take("price", {}).items()]
    prices = price_book(take("prices", ()), stated, take("term", "on-demand"))
    looked_at = tuple(gpus) if gpus else default_gpus(prices)
    prices.check(load_hardware(gpu).name for gpu in looked_at)
    space = Space(
        base=Request(model=model, gpu="", ideal=take("ideal", False)),
        gpus=looked_at,
        quants=tuple(take("quants")) if "quants" in given else None,
        engines=tuple(take("engines", ("vllm",))),
        most=take("most", 8),
    )
    if given:
        raise UsageError(f"a plan has no {', '.join(sorted(given))}", hint="see help(inferplan.make_plan)")
    return plan(Question(space=space, demand=demand, slo=slo, sizing=sizing, prices=prices))


def _lengths(value: Tokens) -> Lengths:
    if isinstance(value, Lengths):
        return value
    return parse_lengths(value) if isinstance(value, str) else Lengths(mean=float(value))


def to_frame(result: Estimate | Tabular | Recorded) -> pd.DataFrame:
    """Any result as a pandas table: its own ``to_frame``, else its JSON record as one row.

    Raises ``MissingExtraError`` without pandas, ``UsageError`` for what is no result.
    """
    if hasattr(result, "to_frame"):
        table: pd.DataFrame = result.to_frame()
        return table
    if isinstance(result, Estimate):
        from inferplan.reports.estimate import estimate_record

        record = estimate_record(result)
    elif hasattr(result, "to_dict"):
        record = result.to_dict()
    else:
        raise UsageError(f"{type(result).__name__} is no result of a calculation")
    return frame([plain(flatten(record))])
