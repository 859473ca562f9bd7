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
    "Deployment": "deployment",
    "Estimate": "estimate",
    "StaticLoad": "estimate",
    "Comparison": "compare",
    "Sweep": "sweep",
    "Grid": "sweep",
    "Execution": "sweep",
    "Recipe": "recipe",
    "Plan": "planning.plan",
    "Demand": "planning.demand",
    "Cost": "cost",
    "Energy": "cost",
    "Rates": "cost",
    "PriceTag": "prices",
    "price_book": "prices",
    "load_model": "catalog",
    "load_hardware": "catalog",
    "simulate": "serving.simulator",
    "Flags": "serving.flags",
    "Traffic": "traffic",
    "Lengths": "traffic",
    "OpenLoop": "traffic",
    "ClosedLoop": "traffic",
    "Slo": "traffic",
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
