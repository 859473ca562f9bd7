"""inferplan: how large language models run on real hardware, before anyone buys or rents it.

The names in :data:`PUBLIC` are the Python API (docs/python-api.md); each is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

PUBLIC: dict[str, str] = {
    **dict.fromkeys(
        [
            "deploy",
            "estimate_batch",
            "compare_deployments",
            "run_sweep",
            "take_apart",
            "make_plan",
            "to_frame",
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
    "Cost": "answers.cost",
    "Energy": "answers.cost",
    "Rates": "answers.cost",
    "PriceTag": "catalog.price_lists",
    "price_book": "catalog.price_lists",
    "load_model": "catalog.files",
    "load_hardware": "catalog.files",
    "simulate": "serving.simulator",
    "Flags": "serving.flags",
    "Traffic": "traffic.requests",
    "Lengths": "traffic.requests",
    "OpenLoop": "traffic.requests",
    "ClosedLoop": "traffic.requests",
    "Slo": "traffic.requests",
    "InferplanError": "errors",
    "InfeasibleError": "errors",
}
"""Public name to the module that holds it."""

__all__ = ["PUBLIC", "__version__", *PUBLIC]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'inferplan' has no attribute {name!r}")
    value = getattr(import_module(f"inferplan.{PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *PUBLIC])
