"""From what torch dispatched to what a fused engine launches.

Matmuls of one input whose weights are siblings are one (q, k and v; gate and up). Everything pointwise between two of
them is one kernel that reads what it needs once and writes what others need once. ``Q K^T``, softmax and ``P V`` are
attention, however a model spells them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from inferplan.models.tracing.passes import TracedPass, TracedPoint
from inferplan.models.tracing.record import Event, Place


@dataclass
class TracedKernel:
    """One operator at one point. sizes: numbers that follow the load; names: the parameters it multiplies by."""

    runs: str
    names: tuple[str, ...] = ()
    sizes: dict[str, int] = field(default_factory=dict)
    fixed: tuple[Any, ...] = ()
    """What two kernels must share to be the same one at two loads."""


def kernels(run: TracedPass) -> dict[Place, list[TracedKernel]]:
    """The kernels of each place of a pass; what runs between two layers belongs to the first."""
    last = run.layers - 1
    places: dict[Place, list[Event]] = {}
    for (kind, index), events in run.events.items():
        home = ("layer", index) if kind == "behind" and index < last else (kind, index)
        places.setdefault(home, []).extend(events)
    places = {place: _attentions(_joined(events), run.point) for place, events in places.items()}
    readers: dict[int, set[int]] = {}
    for events in places.values():
        for event in events:
            for root, _ in event.reads:
                readers.setdefault(root, set()).add(id(event))
    return {place: list(_kernels(events, readers)) for place, events in places.items()}


def _joined(events: list[Event]) -> list[Event]:
    """Matmuls of the same rows by parameters of modules side by side, as one at the place of the first."""
    found: list[Event] = []
    first: dict[tuple[Any, ...], Event] = {}
    for event in events:
        key = _siblings(event)
        if key in first:
            own = first[key]
            own.name = f"{own.name} {event.name}"
            own.sizes["n"] += event.sizes["n"]
            own.writes += event.writes
            continue
        copied = replace(event, sizes=dict(event.sizes), writes=list(event.writes))
        found.append(copied)
        if key is not None:
            first[key] = copied
    return found


def _siblings(event: Event) -> tuple[Any, ...] | None:
    if event.runs != "matmul" or event.sizes["copies"] > 1 or event.source is None:
        return None
    return event.name.rsplit(".", 2)[0], event.source, event.sizes["m"], event.sizes["k"]


def _attentions(events: list[Event], point: TracedPoint) -> list[Event]:
    """Two products about a softmax as one attention."""
    found: list[Event] = []
    index = 0
    while index < len(events):
        folded = _folded(events, index, point)
        if folded is None:
            found.append(events[index])
            index += 1
        else:
            attention, index = folded
            found.append(attention)
    return found


def _folded(events: list[Event], index: int, point: TracedPoint) -> tuple[Event, int] | None:
    scores = events[index]
    if scores.runs != "product":
        return None
    end = next((i for i in range(index + 1, len(events)) if events[i].runs not in ("light", "copy")), None)
    if end is None or events[end].runs != "product":
        return None
    values, between = events[end], events[index + 1 : end]
    batch, m, k, n = (scores.sizes[name] for name in ("batch", "m", "k", "n"))
    if not any(event.softmax for event in between) or n != point.past + point.new:
        return None
    if (values.sizes["batch"], values.sizes["m"], values.sizes["k"]) != (batch, m, n):
        return None
    heads, rest = divmod(batch * m, point.batch * point.new)
    if rest:
        return None
    cached = [event for event in events[:index] if event.runs == "copy"]
    wide = k + values.sizes["n"]
    kept = cached[-1].sizes["elements"] // (point.batch * point.new * wide) if cached else heads
    sizes = {"heads": heads, "kv_heads": kept or heads, "key_dim": k, "value_dim": values.sizes["n"], "keys": n}
    mask = ("causal", 0) if cached else ("full", 0)
    return Event(
        "attention", "attention", sizes, [*scores.reads, *values.reads], list(values.writes), mask=mask
    ), end + 1


def _kernels(events: list[Event], readers: dict[int, set[int]]) -> Iterable[TracedKernel]:
    light: list[Event] = []
    chosen = {event.sizes["of"]: event.sizes["top"] for event in events if "top" in event.sizes}
    for event in events:
        if event.runs == "light":
            light.append(event)
            continue
        if event.runs == "end":
            continue
        yield _pointwise(light, readers)
        light = []
        yield _heavy(_routed(event, chosen))
    yield _pointwise(light, readers)


def _routed(event: Event, chosen: dict[int, int]) -> Event:
    """Experts that transformers runs on every token and masks are run on the tokens that chose them."""
    top = chosen.get(event.sizes.get("copies", 1))
    if event.runs != "matmul" or event.sizes["copies"] == 1 or top is None:
        return event
    sizes = {"m": event.sizes["m"] * top, "k": event.sizes["k"], "n": event.sizes["n"]}
    return replace(event, runs="experts", sizes=sizes | {"experts": event.sizes["copies"]})


def _heavy(event: Event) -> TracedKernel:
    sizes, names = dict(event.sizes), tuple(event.name.split())
    match event.runs:
        case "matmul":
            rows = sizes.pop("m")
            fixed: tuple[Any, ...] = tuple(sizes.items())
            return TracedKernel("matmul", names, {"rows": rows}, fixed)
        case "experts":
            rows = sizes.pop("m")
            return TracedKernel("experts", names, {"rows": rows}, tuple(sizes.items()))
        case "attention":
            fixed = tuple((name, sizes[name]) for name in ("heads", "kv_heads", "key_dim", "value_dim"))
            return TracedKernel("attention", (), {"keys": sizes["keys"]}, (*fixed, ("mask", event.mask)))
        case "product":
            return TracedKernel("product", (), sizes)
        case "mixer":
            return TracedKernel("mixer", names)
        case _:
            return TracedKernel("copy", (), sizes)


def _pointwise(events: list[Event], readers: dict[int, set[int]]) -> TracedKernel:
    """Elements that a run of pointwise operators reads from before it and leaves for after it."""
    own = {id(event) for event in events}
    made: set[int] = set()
    read: dict[int, int] = {}
    wrote: dict[int, int] = {}
    for event in events:
        for root, size in event.reads:
            if root not in made:
                read[root] = max(read.get(root, 0), size)
        for root, size in event.writes:
            if root in read and root not in made:  # in place
                wrote[root] = wrote.get(root, 0) + size
            else:
                made.add(root)
                if readers.get(root, set()) - own:
                    wrote[root] = max(wrote.get(root, 0), size)
    flop = sum(event.flop for event in events)
    return TracedKernel("pointwise", (), {"flop": flop, "read": sum(read.values()), "write": sum(wrote.values())})
