"""inferplan: how large language models run on real hardware, before anyone buys or rents it.

The names in :data:`PUBLIC` are the Python API (docs/python-api.md); each is imported when it is first used. Type
checkers see ordinary imports, so that a misspelt name is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from inferplan.shown import PRINTERS

if TYPE_CHECKING:
    from inferplan.answers.compare import Comparison as Comparison
    from inferplan.answers.cost import BatchCost as BatchCost
    from inferplan.answers.cost import Cost as Cost
    from inferplan.answers.cost import Energy as Energy
    from inferplan.answers.cost import Rates as Rates
    from inferplan.answers.explain import Explanation as Explanation
    from inferplan.answers.fit import Fits as Fits
    from inferplan.answers.fit import Fitting as Fitting
    from inferplan.answers.fit_owned import OwnedFits as OwnedFits
    from inferplan.answers.recipe import Recipe as Recipe
    from inferplan.answers.sweep import Execution as Execution
    from inferplan.answers.sweep import Grid as Grid
    from inferplan.answers.sweep import Sweep as Sweep
    from inferplan.api import compare_deployments as compare_deployments
    from inferplan.api import cost as cost
    from inferplan.api import deploy as deploy
    from inferplan.api import emit as emit
    from inferplan.api import estimate_batch as estimate_batch
    from inferplan.api import explain as explain
    from inferplan.api import fit as fit
    from inferplan.api import load_hardware as load_hardware
    from inferplan.api import load_model as load_model
    from inferplan.api import make_plan as make_plan
    from inferplan.api import plot as plot
    from inferplan.api import run_sweep as run_sweep
    from inferplan.api import simulate as simulate
    from inferplan.api import take_apart as take_apart
    from inferplan.api import to_frame as to_frame
    from inferplan.api import validate as validate
    from inferplan.catalog.bills import Bill as Bill
    from inferplan.catalog.bills import Offer as Offer
    from inferplan.catalog.price_lists import price_book as price_book
    from inferplan.errors import InfeasibleError as InfeasibleError
    from inferplan.errors import InferplanError as InferplanError
    from inferplan.estimate.batch import Estimate as Estimate
    from inferplan.estimate.deployment import Deployment as Deployment
    from inferplan.estimate.load import StaticLoad as StaticLoad
    from inferplan.planning.demand import Demand as Demand
    from inferplan.planning.plan import Plan as Plan
    from inferplan.reports.emit import Emitted as Emitted
    from inferplan.serving.flags import Flags as Flags
    from inferplan.serving.result import SimulationResult as SimulationResult
    from inferplan.traffic.reasoning import ReasoningLengths as ReasoningLengths
    from inferplan.traffic.requests import ClosedLoop as ClosedLoop
    from inferplan.traffic.requests import Lengths as Lengths
    from inferplan.traffic.requests import OpenLoop as OpenLoop
    from inferplan.traffic.requests import Slo as Slo
    from inferplan.traffic.requests import Traffic as Traffic
    from inferplan.validation.files import Validation as Validation

__version__ = "0.2.0"

PUBLIC: dict[str, str] = {
    **dict.fromkeys(
        [
            "deploy",
            "estimate_batch",
            "compare_deployments",
            "run_sweep",
            "take_apart",
            "make_plan",
            "simulate",
            "fit",
            "cost",
            "explain",
            "plot",
            "validate",
            "emit",
            "to_frame",
            "load_model",
            "load_hardware",
        ],
        "api",
    ),
    "Deployment": "estimate.deployment",
    "Estimate": "estimate.batch",
    "StaticLoad": "estimate.load",
    "Comparison": "answers.compare",
    "Sweep": "answers.sweep",
    "Grid": "answers.sweep",
    "Execution": "answers.sweep",
    "Recipe": "answers.recipe",
    "Plan": "planning.plan",
    "Demand": "planning.demand",
    "Fits": "answers.fit",
    "Fitting": "answers.fit",
    "OwnedFits": "answers.fit_owned",
    "Explanation": "answers.explain",
    "Emitted": "reports.emit",
    "Validation": "validation.files",
    "BatchCost": "answers.cost",
    "Cost": "answers.cost",
    "Energy": "answers.cost",
    "Rates": "answers.cost",
    "Bill": "catalog.bills",
    "Offer": "catalog.bills",
    "price_book": "catalog.price_lists",
    "SimulationResult": "serving.result",
    "Flags": "serving.flags",
    "Traffic": "traffic.requests",
    "Lengths": "traffic.requests",
    "ReasoningLengths": "traffic.reasoning",
    "OpenLoop": "traffic.requests",
    "ClosedLoop": "traffic.requests",
    "Slo": "traffic.requests",
    "InferplanError": "errors",
    "InfeasibleError": "errors",
}
"""Public name to the module that holds it; the imports above say the same to type checkers."""

if not TYPE_CHECKING:
    __all__ = ["PUBLIC", "__version__", *PUBLIC]  # noqa: PLE0604

    def __getattr__(name: str) -> Any:
        if name not in PUBLIC:
            raise AttributeError(f"module 'inferplan' has no attribute {name!r}")
        value = getattr(import_module(f"inferplan.{PUBLIC[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(["__doc__", "__version__", *PUBLIC])


def _printed(how: str) -> Callable[[Any], Any]:
    """A function of :mod:`inferplan.reports.shown`, which is loaded when a result is first printed."""

    def printed(result: Any) -> Any:
        return getattr(import_module("inferplan.reports.shown"), how)(result)

    return printed


PRINTERS.line, PRINTERS.html, PRINTERS.record, PRINTERS.rows = map(
    _printed, ("short", "html_of", "record_of", "rows_of")
)
