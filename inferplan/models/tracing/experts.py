"""Which experts a token reads: the ids that a router hands to them, whatever runs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

_MATRICES = 3
"""Dimensions of experts in one tensor: their number, rows and columns."""


@dataclass
class RecordedRouting:
    """What routers chose in a pass: of each module of experts how many a token reads, and what the others chose from.

    top: by the module's name, experts that a token reads. tops: by place, of how many a ``topk`` chose how many.
    """

    top: dict[str, int] = field(default_factory=dict)
    tops: dict[Any, set[tuple[int, int]]] = field(default_factory=dict)


def experts_of(model: Any) -> dict[str, tuple[Any, int]]:
    """Modules that may be experts by name, and how many they hold: tensors of matrices, or modules in a container."""
    found = {}
    for name, module in model.named_modules():
        stacked = [tensor.shape[0] for tensor in module.parameters(recurse=False) if tensor.dim() >= _MATRICES]
        if isinstance(module, (torch.nn.ModuleDict, torch.nn.ModuleList)) and "expert" in type(module).__name__.lower():
            stacked = [sum(any(True for _ in one.parameters()) for one in module.children())]
        if stacked and max(stacked) > 1 and not isinstance(module, torch.nn.modules.conv._ConvNd):
            found[name] = module, max(stacked)
    return found


@contextmanager
def watch_routing(model: Any, routing: RecordedRouting, loose: bool) -> Iterator[None]:
    """Sees the ids that modules of experts are given.

    loose: whether only shapes are asked for; experts, which some classes pick by number, then do not run.
    """
    with ExitStack() as stack:
        for name, (module, count) in experts_of(model).items():
            if loose and "forward" in vars(type(module)):
                stack.enter_context(_passed_by(module, count))
            stack.enter_context(_seen(name, module, count, routing))
        yield


def _contains(module: Any) -> bool:
    return isinstance(module, (torch.nn.ModuleDict, torch.nn.ModuleList))


@contextmanager
def _passed_by(module: Any, count: int) -> Iterator[None]:
    run = module.forward

    def forward(hidden: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = _chosen([hidden, *_given(args, kwargs)], count) is not None
        return torch.zeros_like(hidden) if chosen or _contains(module) else run(hidden, *args, **kwargs)

    module.forward = forward
    try:
        yield
    finally:
        vars(module).pop("forward", None)


@contextmanager
def _seen(name: str, module: Any, count: int, routing: RecordedRouting) -> Iterator[None]:

    def enter(module: Any, args: Any, kwargs: Any) -> None:
        top = _chosen(_given(args, kwargs), count)
        if top is not None:
            routing.top[name] = top

    handle = module.register_forward_pre_hook(enter, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _given(args: Any, kwargs: Any) -> list[Any]:
    return [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]


def _chosen(given: list[Any], count: int) -> int | None:
    """Experts a token, from tensors that its module is given: ids ``[tokens, top_k]``, or those as ones of ``count``.

    As many ids as experts would be a mask, which does not say how many are set.
    """
    rows = {one.numel() // one.shape[-1] for one in given if one.is_floating_point() and one.dim() > 1}
    for one in given:
        if one.is_floating_point() or one.dtype == torch.bool:
            continue
        if one.dim() == 2 and one.shape[0] in rows and one.shape[1] < count:
            return int(one.shape[1])
        if one.dim() == 3 and one.shape[0] in rows and one.shape[1] < count == one.shape[2]:
            return int(one.shape[1])
    return None


@dataclass(frozen=True)
class ExpertShare:
    """What a token reads of a tensor of experts; ``None`` where it is not known. matrix: it is no bias or norm."""

    active: float | None
    matrix: bool


def shares(model: Any, routing: RecordedRouting, places: dict[str, Any]) -> dict[str, ExpertShare]:
    """The tensors of experts, by name.

    places: what each layer's names begin with, and its place. Experts that saw no ids are those of a router of their
    layer that chooses from as many, where just one does.
    """
    found: dict[str, ExpertShare] = {}
    for name, (module, count) in experts_of(model).items():
        top = routing.top.get(name)
        inside = _contains(module)
        place = next((place for prefix, place in places.items() if name.startswith(prefix)), None)
        if top is None and place is None:  # of a tower
            continue
        if top is None and not inside:
            tops = {chosen for of, chosen in routing.tops.get(place, ()) if of == count}
            top = tops.pop() if len(tops) == 1 else None
            if top is None:
                continue
        # with experts that give back their input some tensors hold fewer matrices than ids name
        sizes = {one.shape[0] for one in module.parameters(recurse=False) if one.dim() >= _MATRICES}
        for inner, tensor in module.named_parameters(recurse=inside):
            if inside or tensor.shape[0] in sizes:
                matrix = tensor.dim() >= (2 if inside else _MATRICES)
                found[f"{name}.{inner}"] = ExpertShare(None if top is None else top / count, matrix)
    return found
