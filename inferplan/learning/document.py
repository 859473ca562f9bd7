"""The file of what was learned: constants of one device and engine, for ``--calibration`` of every command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from inferplan.estimate.anchoring import system_of
from inferplan.learning.factors import is_seconds
from inferplan.learning.fit import Errors, Learned

SOURCE = "inferplan learn"
"""How the source of such a file begins (``provenance.source``)."""


def learned_yaml(found: Learned, files: Sequence[str]) -> str:
    """The constants as ``--calibration`` reads them, with where they are from."""
    deployment, kernels = found.deployment, found.kernels
    constants = {
        kernel: {label: _fit(fit.model_dump(mode="json", exclude_defaults=True)) for label, fit in formats.items()}
        for kernel, formats in kernels.constants(found.values).items()
    }
    whole = {
        "name": deployment.hardware.name,
        "engine": deployment.engine.name,
        "provenance": {
            "source": SOURCE,
            "records": list(files),
            "system": system_of(deployment).model_dump(exclude_none=True),
            "division": deployment.parallel.describe(),
            "factors": {name: float(f"{value:.5g}") for name, value in found.values.items()},
            "measurements": found.fitted[1].steps,
            "held_out": {"last_in_time": found.held_out[1].steps, **_errors(found.held_out)},
        },
        "step": kernels.step(found.values).model_dump(mode="json"),
        "constants": constants,
    }
    head = "# Written by `inferplan learn`: constants of the steps of one server (docs/learn.md).\n"
    return head + yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=120)


def _errors(pair: tuple[Errors, Errors]) -> dict[str, float]:
    return {"mean_error_on_file": round(pair[0].mean, 4), "mean_error": round(pair[1].mean, 4)}


def _fit(stated: dict[str, Any]) -> dict[str, Any]:
    """A kernel's constants without the errors and the origin that they had before they were changed."""
    beside = {"error", "source", "library", "basis", "n", "launch"}
    return {name: value for name, value in stated.items() if name not in beside}


def factor_rows(found: Learned) -> list[dict[str, Any]]:
    """Each factor with its value on file, as learned, and its standard error, in the unit that it has."""
    return [
        {
            "factor": name,
            "unit": "s" if is_seconds(name) else "x",
            "on_file": found.kernels.base[name],
            "learned": value,
            "standard_error": found.sure[name] * (1.0 if is_seconds(name) else value),
        }
        for name, value in found.values.items()
    ]
