"""The formulas of a plan, for its report: written by the functions that compute it, given symbols for numbers."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from inferplan.answers.cost import OUTPUT_TO_INPUT, Cost
from inferplan.devices.cadence import NO_CADENCE
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.roofline import IdealTime, fitted_time
from inferplan.planning.option import Sizing
from inferplan.serving.rounds import departures, holding, in_system, mean_round
from inferplan.terms import name_term


class PlanFormula(NamedTuple):
    """A line of the report: what is computed, and its formula in the symbols of docs/planning.md."""

    title: str
    text: str


def _symbols(*names: str) -> Iterator[Any]:
    """Symbols by their names; their values (2, 3, 4 ...) stand for nothing."""
    return (name_term(2.0 + index, name) for index, name in enumerate(names))


def plan_formulas(deployment: Deployment | None = None) -> list[PlanFormula]:
    """Every formula of the closed form and of the bill, in the order in which they are computed.

    Where the deployment has several batches in flight, their number is ``m``; where attention ranks step together,
    theirs is ``g`` (docs/formulas/step.md). A model that generates nothing has neither rounds nor
    output tokens.
    """
    made: list[tuple[str, str, Any]] = [
        ("Time of an operator", "t", _operator_time()),
        ("Prompts per round", "x", _coming()),
        ("Share of rounds with a prompt", "p", _share(deployment)),
        ("Time per output token", "TPOT", _tpot(deployment)),
        ("Rate of a replica", "X", _rate()),
        ("Requests in the system", "C", _in_system()),
        ("Replicas, without spares", "n", _replicas()),
        ("Cost per million output tokens", "c", _token_cost()),
    ]
    kept = _OF_A_PASS if deployment is not None and deployment.model.encodes else {symbol for _, symbol, _ in made}
    return [PlanFormula(title, f"{symbol} = {term.formula}") for title, symbol, term in made if symbol in kept]


_OF_A_PASS = {"t", "n"}


def _operator_time() -> Any:
    flop, peak, moved, bandwidth = _symbols("FLOP", "peak", "bytes", "bandwidth")
    math, memory, overhead, sharpness = _symbols("math", "memory", "overhead", "s")
    fit: Any = SimpleNamespace(math=math, memory=memory, overhead=overhead, launch=1.0, sharpness=sharpness, terms={})
    return fitted_time(IdealTime(math=flop / peak, memory=moved / bandwidth, wire=0.0, counts={}), fit).total


def _coming() -> Any:
    batch, output = _symbols("B", "O")
    return batch / (output - 1.0)


def _share(deployment: Deployment | None) -> Any:
    coming, prompt, batch, budget, flight, ranks = _symbols("x", "I", "B", "M", "m", "g")
    if deployment is None or deployment.parallel.pp == 1:
        flight = 1.0
    if deployment is None or deployment.coupled_ranks == 1:
        ranks = 1
    own = batch if flight == 1.0 else batch / flight
    cadence, mixed = (
        (NO_CADENCE, True) if deployment is None else (deployment.cadence, deployment.engine.batching.mixed)
    )
    return holding(coming, prompt, budget - own, (flight, ranks), cadence, mixed).share


def _tpot(deployment: Deployment | None) -> Any:
    mixed = deployment is None or deployment.engine.batching.mixed
    share, decode, own = _symbols("p", "t_decode(B)", "t_mixed(B, x*I/p)" if mixed else "t_prompt(x*I/p)")
    return mean_round(share, decode, own, mixed)


def _rate() -> Any:
    batch, output, tpot = _symbols("B", "O", "TPOT")
    return departures(batch, output - 1.0, tpot)


def _in_system() -> Any:
    rate, ttft, output, tpot = _symbols("X", "TTFT", "O", "TPOT")
    return in_system(rate, ttft, output - 1.0, tpot)


def _replicas() -> Any:
    load, rate, utilisation = _symbols("rate", "X", "utilisation")
    return Sizing(utilisation=utilisation).replicas(load, rate)


def _token_cost() -> Any:
    bill, prompt, output = _symbols("bill per hour", "input tokens/s", "output tokens/s")
    rates: Any = SimpleNamespace(input=prompt, generated=output)
    paid: Any = SimpleNamespace(per_hour=bill)
    return Cost(bill=paid, rates=rates, ratio=OUTPUT_TO_INPUT).per_million_output
