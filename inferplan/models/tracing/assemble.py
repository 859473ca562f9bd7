"""A traced model: what its passes ran, its tensors and its caches, as the fields of a :class:`ModelSpec`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferplan.models.layers.base import Mixer
from inferplan.models.layers.traced import TracedCache, TracedLayer, TracedOperator, TracedTensor, operators_width
from inferplan.models.tracing.experts import ExpertShare
from inferplan.models.tracing.fit import fit
from inferplan.models.tracing.kernels import TracedKernel
from inferplan.models.tracing.passes import TracedPoint
from inferplan.models.tracing.record import Place


class Mismatch(Exception):
    """Operators that do not follow the load as a polynomial: the reason in words."""


@dataclass(frozen=True)
class At:
    """A place: what its parameters' names begin with, what operators without parameters are called, and why none is
    known, where none is."""

    prefix: str
    label: str
    why: str


@dataclass(frozen=True)
class Holds:
    """What a place keeps of a sequence, which tensors are those of experts, and its described mixer, which is counted
    apart from both."""

    keeps: TracedCache
    experts: dict[str, ExpertShare]
    mixer: Mixer | None = None


class OtherOperators(Mismatch):
    """Other operators at other loads, which no further load mends."""


def operators(
    points: Sequence[TracedPoint], runs: Sequence[list[TracedKernel]], prefix: str, label: str = ""
) -> list[TracedOperator]:
    """The operators of a place from what each point ran there. label: what their names begin with where no parameter
    names them. Raises :class:`Mismatch`."""
    lists = [[kernel for kernel in run if kernel.runs != "pointwise" or any(kernel.sizes.values())] for run in runs]
    if len({len(run) for run in lists}) > 1:
        lists = [list(run) for run in runs]
    if len({tuple((one.runs, one.names, one.fixed) for one in run) for run in lists}) > 1:
        raise OtherOperators("other operators run at other loads")
    found = []
    for index, column in enumerate(zip(*lists)):
        operator = _operator(points, column, prefix, f"{label}{column[0].runs}.{index}")
        if operator is not None:
            found.append(operator)
    return found


def _operator(
    points: Sequence[TracedPoint], column: Sequence[TracedKernel], prefix: str, unnamed: str
) -> TracedOperator | None:
    first = column[0]
    fixed = dict(first.fixed)
    name = sibling_name([short(one, prefix) for one in first.names]) or unnamed

    def polynomial(size: str) -> dict[str, int]:
        terms = fit(points, [one.sizes[size] for one in column])
        if terms is None:
            raise Mismatch(f"{size} of {name} is no polynomial of sequences, new and cached tokens")
        return terms

    match first.runs:
        case "matmul":
            return TracedOperator(runs="matmul", name=name, rows=polynomial("rows"), **fixed)
        case "experts":
            rows = polynomial("rows")
            if set(rows) != {"bn"}:
                raise Mismatch(f"the rows of {name} do not follow the tokens")
            return TracedOperator(runs="experts", name=name, role="experts", top_k=int(rows["bn"]), **fixed)
        case "attention":
            kind, size = fixed.pop("mask") or _unknown_mask()
            return TracedOperator(runs="attention", name=name, mask=kind, size=size, **fixed)
        case "product":
            return TracedOperator(
                runs="product", name=name, sides=[polynomial(side) for side in ("batch", "m", "k", "n")]
            )
        case "mixer":
            return TracedOperator(runs="mixer", name=name)
        case "copy":
            return TracedOperator(runs="copy", name=name, write=polynomial("elements"))
        case _:
            sizes: dict[str, Any] = {side: polynomial(side) for side in ("flop", "read", "write")}
            return TracedOperator(runs="pointwise", name=name, **sizes) if any(sizes.values()) else None


def _unknown_mask() -> tuple[Any, int]:
    raise Mismatch("the mask of its attention is none of those known")


def short(name: str, prefix: str) -> str:
    """A parameter's name inside its layer, without the word that every weight ends in."""
    return name.removeprefix(prefix).removesuffix(".weight")


def sibling_name(names: Sequence[str]) -> str:
    """Names of siblings as one: ``self_attn.q_proj+k_proj+v_proj``."""
    if not names:
        return ""
    parent = names[0].rpartition(".")[0]
    return "+".join([names[0], *(name.removeprefix(f"{parent}.") for name in names[1:])])


def tensors(
    names: dict[str, tuple[int, ...]],
    prefix: str,
    multiplied: dict[str, TracedOperator | None],
    experts: dict[str, ExpertShare],
) -> list[TracedTensor]:
    """The parameters of a place with their roles: those that a matmul reads, experts, and all others."""
    found = []
    for name, shape in names.items():
        operator, share = multiplied.get(name), experts.get(name)
        role = operator.role if operator is not None else "base"
        if share is not None:
            role = "experts" if share.matrix else "base"
        active = 1.0 if share is None else share.active
        found.append(TracedTensor(name=short(name, prefix), shape=list(shape), role=role, active=active))
    return found


def with_router_format(found: list[TracedOperator]) -> list[TracedOperator]:
    """The same with the router in the base format: the matmul that gives a score to each expert."""
    experts = {one.experts for one in found if one.runs == "experts"}
    return [
        one.model_copy(update={"role": "base"}) if one.runs == "matmul" and one.n in experts else one for one in found
    ]


def layer(
    points: Sequence[TracedPoint],
    runs: Sequence[list[TracedKernel]],
    at: At,
    names: dict[str, tuple[int, ...]],
    holds: Holds,
) -> TracedLayer:
    """A layer from what each point ran in it; without operators, and with the reason, where they do not fit."""
    prefix = at.prefix
    try:
        found, why = ([] if at.why else with_router_format(operators(points, runs, prefix, at.label))), at.why
    except Mismatch as reason:
        found, why = [], str(reason)
    multiplied: dict[str, TracedOperator | None] = dict.fromkeys(
        name for run in runs for kernel in run for name in kernel.names
    )
    for one in found:
        for name in multiplied:
            if short(name, prefix) in unjoined(one.name):
                multiplied[name] = one
    if why:
        multiplied = {name: TracedOperator(runs="matmul", name=name) for name in multiplied}
    own = tensors(names, prefix, multiplied, holds.experts)
    width = operators_width(found)
    return TracedLayer(tensors=own, keeps=holds.keeps, operators=found, width=width, untimed=why, mixer=holds.mixer)


def unjoined(name: str) -> set[str]:
    """The names that :func:`sibling_name` joined."""
    parts = name.split("+")
    parent = parts[0].rpartition(".")[0]
    return {parts[0], *(f"{parent}.{part}" if parent else part for part in parts[1:])}


def of_place(runs: Sequence[dict[Place, list[TracedKernel]]], place: Place) -> list[list[TracedKernel]]:
    """What each point ran at a place."""
    return [run.get(place, []) for run in runs]
