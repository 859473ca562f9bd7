"""Calls of the tools of ``inferplan mcp`` that nobody means: wrong kinds, unknown names, huge numbers, other files."""

from __future__ import annotations

from typing import Any

TOOLS = (
    *("ask", "fit", "estimate", "compare", "simulate", "plan", "cost", "recipe", "explain", "emit", "validate"),
    *("models", "gpus", "formats", "prices", "show"),
)
_DEEP: Any = "x"
for _ in range(60):
    _DEEP = {"inner": [_DEEP]}
ON_EVERY: dict[str, dict[str, Any]] = {
    "an option that there is not": {"nonsense": 1},
    "a name with dashes": {"--gpu": "h100-sxm"},
    "no name at all": {"": "x"},
    "help": {"help": True},
    "a format that there is not": {"format": "xml"},
    "formats as a list": {"format": ["json"]},
    "processes": {"jobs": 10**9},
    "a file to write": {"o": "stolen.json", "report": "stolen.html"},
    "a nested object": {"model": _DEEP},
    "a path upwards": {"gpu": "../../../../etc/passwd"},
    "a path from the root": {"model": "/etc/passwd"},
    "a path of the home": {"name": "~/.ssh/id_rsa"},
    "a number of 400 digits": {"batch": 10**400},
    "five thousand lists": {"quant": [[]] * 5000},
    "a text of control characters": {"gpu": "\x00\x1b[31m"},
    "a text of 5,000 letters": {"model": "a" * 5000},
}
OF_ONE: list[tuple[str, dict[str, Any]]] = [
    ("estimate", {}),
    ("estimate", {"model": 5, "gpu": True}),
    ("estimate", {"model": "llama-3.1-8b", "gpu": "h100-sxm", "batch": -1}),
    ("estimate", {"model": "llama-3.1-8b", "gpu": "h100-sxm", "batch": 1.5}),
    ("estimate", {"model": "llama-3.1-8b", "gpu": "h100-sxm", "batch": True}),
    ("estimate", {"model": "llama-3.1-8b", "gpu": "h100-sxm", "ideal": "yes"}),
    ("estimate", {"model": "llama-3.1-8b", "gpu": ["h100-sxm", "l4"]}),
    ("estimate", {"model": "--help", "gpu": "h100-sxm"}),
    ("estimate", {"model": "llama-3.1-8b", "gpu": "h100-sxm", "calibration": "own.yaml"}),
    ("fit", {"have": "2x24GB", "verbose": "llama-3.1-8b"}),
    ("plan", {"model": "llama-3.1-8b", "rate": 1e308, "workload": "chat"}),
    ("plan", {"model": "llama-3.1-8b", "rate": "nan", "workload": "chat"}),
    ("simulate", {"model": "llama-3.1-8b", "gpu": "l4", "trace": "trace.csv"}),
    ("validate", {"files": ["a.csv", {"b": 1}]}),
    ("validate", {"files": "rows.csv", "rows": "stolen.csv"}),
    ("prices", {"update": "https://example.org/prices.yaml"}),
    ("ask", {"question": "why"}),
    ("ask", {"question": "slow", "model": "llama-3.1-8b", "have": "l4", "server": "http://127.0.0.1:1"}),
    ("options", {}),
    ("options", {"tool": "rm"}),
    ("options", {"tool": ["plan"]}),
    ("options", {"tool": "plan", "more": 1}),
]
UNKNOWN = ("calibrate", "measure", "web", "import", "", "plan; rm -rf /", "../plan", "x" * 10_000)
"""Names of no tool: the protocol itself answers with an error."""


def hostile_calls() -> list[tuple[str, dict[str, Any]]]:
    """Tools and arguments, each of which is to be answered with an error; unknown tools are :data:`UNKNOWN`."""
    return [*((tool, body) for tool in TOOLS for body in ON_EVERY.values()), *OF_ONE]
