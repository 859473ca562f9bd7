"""The Python API: plain arguments in, result objects out (docs/python-api.md).

Nothing here computes: every function builds the same value objects as the command line and makes one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from inferplan.answers.compare import Comparison, compare
from inferplan.answers.recipe import Load, Recipe, recipe
from inferplan.answers.sweep import Execution, Grid, Sweep, sweep
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_model
from inferplan.catalog.price_lists import price_book
from inferplan.errors import UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.planning.demand import Demand
from inferplan.planning.option import Sizing
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.planning.space import Space, default_gpus, default_quants
from inferplan.table import flatten, frame, plain
from inferplan.traffic.requests import Lengths, Slo, parse_lengths
from inferplan.work.parallel import Parallelism

if TYPE_CHECKING:
    import pandas as pd

_DEGREES = tuple(field.name for field in fields(Parallelism))


def request(model: str, gpu: str, **options: Any) -> Request:
    """What is asked for: ``quant``, ``engine``, ``ideal``, ``calibration``, and degrees such as ``tp=2``."""
    degrees = {name: options.pop(name) for name in _DEGREES if name in options}
    known = {field.name for field in fields(Request)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(f"no option named {', '.join(unknown)}", hint=", ".join(sorted(known | set(_DEGREES))))
    return Request(model=model, gpu=gpu, parallel=Parallelism(**degrees), **options)


def deploy(model: str, gpu: str, **options: Any) -> Deployment:
    """A model on a GPU: the argument of everything else. Options as in :func:`request`."""
    return assemble(request(model, gpu, **options))


def estimate_batch(deployment: Deployment, batch: float = 1, prompt: float = 1024, output: float = 256) -> Estimate:
    """A static batch, prefilled together and decoded together. Raises ``InfeasibleError`` when it does not fit."""
    return estimate(deployment, StaticLoad(batch=float(batch), prompt=float(prompt), output=float(output)))


def compare_deployments(
    deployments: Mapping[str, Deployment], batch: float = 1, prompt: float = 1024, output: float = 256
) -> Comparison:
    """Deployments by label under one static batch; ratios are to the first."""
    load = StaticLoad(batch=float(batch), prompt=float(prompt), output=float(output))
    return compare(list(deployments.values()), list(deployments), load)


def run_sweep(model: str, gpu: Sequence[str], execution: Execution | None = None, **axes: Any) -> Sweep:
    """A grid. ``axes``: lists for ``quant``, ``engine``, ``tp`` and other degrees, ``batch``, ``prompt``, ``output``.

    ``ideal=True`` prices at the speed of light. ``execution`` says where it runs; one process unless it is given.
    """
    ideal = bool(axes.pop("ideal", False))
    load = {name: axes.pop(name) for name in ("batch", "prompt", "output") if name in axes}
    grid = Grid(base=Request(model=model, gpu="", ideal=ideal), structure={"gpu": list(gpu), **axes}, **load)
    return sweep(grid, execution or Execution(backend="serial"))


def take_apart(model: str, gpu: str, ingredients: Sequence[str], baseline: str = "static,bf16", **load: Any) -> Recipe:
    """A speed-up, one ingredient at a time. ``load``: ``users``, ``prompt``, ``output``, ``reserved``."""
    output = _lengths(load.pop("output", 256))
    prompt = float(load.pop("prompt", 1024))
    values = {"users": 64, "reserved": max(2048, int(prompt + 2 * output.average)), **load}
    wanted = Load(prompt=prompt, output=output, **values)
    return recipe(request(model, gpu), baseline, ingredients, wanted)


def make_plan(model: str, prompt: Any, output: Any, gpus: Sequence[str] | None = None, **question: Any) -> Plan:
    """The cheapest deployment that meets the limits under a load.

    Load: ``rate``, ``users``, or ``requests`` with ``deadline`` [s]. Limits: ``ttft``, ``tpot``, ``e2el`` [s] at
    ``percentile``. Sizing: ``utilisation``, ``spare``. Prices: ``prices`` (lists), ``price`` (device to price an hour).
    Space: ``quants``, ``engines``, ``most``, ``ideal``. Raises ``InfeasibleError`` when nothing meets the limits.
    """
    take = question.pop
    demand = Demand(
        prompt=_lengths(prompt),
        output=_lengths(output),
        **{name: take(name) for name in ("rate", "users", "requests", "deadline", "cached") if name in question},
    )
    limits = {name: take(name) for name in ("ttft", "tpot", "e2el") if name in question}
    slo = Slo(percentile=take("percentile", 95.0), **limits)
    sizing = Sizing(utilisation=take("utilisation", 0.95 if demand.offline else 0.8), spare=take("spare", 0))
    stated = [f"{gpu}={value}" for gpu, value in take("price", {}).items()]
    prices = price_book(take("prices", ()), stated)
    space = Space(
        base=Request(model=model, gpu="", ideal=take("ideal", False)),
        gpus=tuple(gpus) if gpus else default_gpus(prices),
        quants=tuple(take("quants", default_quants(load_model(model)))),
        engines=tuple(take("engines", ("vllm",))),
        most=take("most", 8),
    )
    if question:
        raise UsageError(f"a plan has no {', '.join(sorted(question))}", hint="see help(inferplan.make_plan)")
    return plan(Question(space=space, demand=demand, slo=slo, sizing=sizing, prices=prices))


def _lengths(value: Any) -> Lengths:
    if isinstance(value, Lengths):
        return value
    return parse_lengths(value) if isinstance(value, str) else Lengths(mean=float(value))


def to_frame(result: Any) -> pd.DataFrame:
    """Any result as a pandas table: its own ``to_frame``, else its JSON record as one row."""
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
