"""Structured pruning as arithmetic on a model spec: fewer layers, narrower everything.

``layers=24,d_ff=0.75`` keeps 24 layers and three quarters of every feed-forward's columns. What accuracy it costs, and
the distillation that recovers it (Minitron, 2407.14679), are outside this library.
"""

from __future__ import annotations

from itertools import groupby
from math import isfinite
from typing import Any

from inferplan.errors import SpecError, UsageError
from inferplan.models.spec import ModelSpec
from inferplan.units import parse_number

_FIELDS = {
    "d_ff": ("d_ff", "shared_d_ff"),
    "heads": ("heads",),
    "kv_heads": ("kv_heads",),
    "head_dim": ("head_dim", "value_dim"),
    "experts": ("experts",),
    "top_k": ("top_k",),
}
AXES = ("layers", "d_model", "vocab", *_FIELDS)


def parse_prune(text: str) -> dict[str, float]:
    """``"layers=24,d_ff=0.75"`` as a mapping. Raises ``UsageError`` for an axis or a number that is none."""
    wanted: dict[str, float] = {}
    for part in text.split(","):
        axis, _, number = part.partition("=")
        try:
            wanted[axis.strip()] = size = parse_number(number)
        except ValueError:
            size = float("nan")
        if not isfinite(size):
            raise UsageError(f"cannot read {part!r} in --prune", hint="axis=number, such as layers=24,d_ff=0.75")
    return wanted


def prune(model: ModelSpec, wanted: dict[str, float], name: str | None = None) -> ModelSpec:
    """The model with ``wanted`` axes cut: a number up to 1 is the share kept, a larger one the size kept.

    Layers are dropped evenly over the depth, in the same share of every kind of layer. Raises ``UsageError`` for an
    unknown axis, a size that grows, or an axis that the model does not have, and ``SpecError`` when the result is no
    valid model.
    """
    unknown = [axis for axis in wanted if axis not in AXES]
    if unknown:
        raise UsageError(f"cannot prune {', '.join(unknown)}", hint=f"one of {', '.join(AXES)}")
    if model.encoder is not None:
        raise UsageError(f"the half of {model.name} to prune is not stated", because="it has an encoder and a decoder")
    data = model.to_dict()
    if "layers" in wanted:
        data["layers"] = _drop_layers(model, wanted["layers"])
    for axis in ("d_model", "vocab"):
        if axis in wanted:
            data[axis] = _kept(axis, getattr(model, axis), wanted[axis])
    inner = {axis: number for axis, number in wanted.items() if axis in _FIELDS}
    cut = {axis: _cut(data["layers"], axis, number) for axis, number in inner.items()}
    missing = [axis for axis, hits in cut.items() if not hits]
    if missing:
        raise UsageError(f"{model.name} has no {', '.join(missing)} to prune", hint="inferplan show lists its layers")
    data.pop("published", None)
    data.pop("aliases", None)
    data["made_from"] = model.made_from.of_another(model.name).model_dump(exclude_defaults=True)
    data["name"] = name or f"{model.name}-pruned"
    try:
        return ModelSpec.model_validate(data)
    except ValueError as error:
        reasons = "; ".join(str(detail["msg"]) for detail in getattr(error, "errors", list)()) or str(error)
        raise SpecError(f"{model.name} pruned to {_text(wanted)} is no valid model", because=reasons) from None


def _text(wanted: dict[str, float]) -> str:
    return ",".join(f"{axis}={number:g}" for axis, number in wanted.items())


def _kept(axis: str, size: int, number: float) -> int:
    kept = round(size * number) if number <= 1 else int(number)
    if not 1 <= kept <= size or (number > 1 and number != kept):
        raise UsageError(f"cannot prune {axis} from {size} to {number:g}", hint=f"a share up to 1, or 2 to {size}")
    return kept


def _cut(groups: list[dict[str, Any]], axis: str, number: float) -> int:
    """Cut an axis in every layer of the mapping; how many fields were cut."""
    hits = 0
    for group in groups:
        hits += _cut(group.get("pattern", []), axis, number)
        for part in (group.get("mixer"), group.get("ffn")):
            for field in _FIELDS[axis]:
                if part and part.get(field):
                    part[field] = _kept(axis, part[field], number)
                    hits += 1
    return hits


def _drop_layers(model: ModelSpec, number: float) -> list[dict[str, Any]]:
    """The layers that stay: each kind keeps its share (largest remainders first), evenly over its places."""
    sequence = model.sequence
    kept = _kept("layers", len(sequence), number)
    places: list[list[int]] = [
        [index for index, layer in enumerate(sequence) if layer == kind] for kind, _ in model.distinct
    ]
    quotas = [len(where) * kept / len(sequence) for where in places]
    counts = [int(quota) for quota in quotas]
    for index in sorted(range(len(quotas)), key=lambda i: counts[i] - quotas[i])[: kept - sum(counts)]:
        counts[index] += 1
    chosen = sorted(where[i * len(where) // count] for where, count in zip(places, counts) for i in range(count))
    groups = [
        layer.model_copy(update={"repeat": len(list(run))}) for layer, run in groupby(sequence[i] for i in chosen)
    ]
    whole: list[dict[str, Any]] = model.model_copy(update={"layers": groups}).to_dict()["layers"]
    return whole
