"""What the names and labels of a row stand for: those of the catalogue, and the formats that a label means."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from inferplan.catalog.files import find, load_hardware, load_model
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import InferplanError
from inferplan.estimate.formats import native_precision
from inferplan.work.formats import Precision, parse_precision

_WEIGHT_ONLY = 4
"""Formats of this many bits run in the base arithmetic where a device has none for them."""

model_of = cache(load_model)
hardware_of = cache(load_hardware)


def formats_of_label(label: str, native: Precision, hardware: HardwareSpec) -> Precision:
    """The formats of a label such as ``fp8``: the checkpoint's own where it has such, ``fp4`` otherwise nvfp4."""
    own = [fmt for fmt in (native.weights, native.experts) if fmt.bits == _WEIGHT_ONLY]
    eight = [fmt for fmt in (native.weights, native.experts) if fmt.math == "fp8"]
    if (label in ("fp4", "int4", "mxfp4") and own) or (label == "fp8" and eight):
        return native
    return parse_precision("nvfp4" if label == "fp4" else label, frozenset(hardware.peak), native.base.name)


def resolve_names(facts: Mapping[str, str]) -> dict[str, str]:
    """The facts with the catalogue's names for model and GPU, and the format of the weights where a label says it.

    What is unknown stays as it is: the row is refused for it elsewhere.
    """
    model, gpu = (
        catalogue_name(kind, str(facts.get(name) or "")) for kind, name in (("models", "model"), ("hardware", "gpu"))
    )
    found = {**facts, "model": model, "gpu": gpu}
    if not facts.get("weights") and facts.get("precision"):
        found["weights"] = _weights(model, gpu, str(facts["precision"]).lower())
    return found


@cache
def catalogue_name(kind: str, name: str) -> str:
    """The catalogue's name of a model or of hardware; one that is unknown as it is."""
    try:
        return find(kind, name).stem if name else ""
    except InferplanError:
        return name


@cache
def _weights(model: str, gpu: str, label: str) -> str:
    try:
        return formats_of_label(label, native_precision(model_of(model)), hardware_of(gpu)).weights.name
    except InferplanError:
        return ""
