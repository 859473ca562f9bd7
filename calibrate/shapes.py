"""The shapes to measure: operators of real models' graphs, half of them drawn from what serving runs, half spread out.

A model's graph is built by the very builder that an estimate uses; operators of equal work in equal formats are one
shape. Of each kernel and format, every other shape is one that serving runs, drawn by its share of the time of a step;
the rest are those farthest from the ones already chosen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from typing import Literal

import numpy as np

from calibrate.designs import ADAPTERS, HELD, Design, Loads, find_model, largest_step, rank_bytes
from calibrate.samples import key_of
from inferplan.catalog.assemble import load_engine, routing_of
from inferplan.devices.constants import Calibration
from inferplan.devices.hardware import HardwareSpec, Link
from inferplan.errors import IndivisibleError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build
from inferplan.estimate.roofline import price
from inferplan.models.lora import adapters_of
from inferplan.units import Array
from inferplan.work.adapters import LoraAsked
from inferplan.work.formats import Precision, parse_precision
from inferplan.work.ops import Attention, Copy, GroupedMatmul, Mask, Matmul, Op, Wired
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Step

Group = tuple[str, str]
Part = Literal["usual", "own", "held out"]
"""Whose a shape is: the design's models', those of the user, or the model that nothing is fitted to."""
UNFUSED = Calibration(name="none", basis="roofline", fused=False)
"""Every operator that an engine runs, epilogues among them."""
MULTIPLES: dict[str, tuple[int, int]] = {
    "fp8": (16, 16),
    "fp8-block": (128, 128),
    "int8": (8, 8),
    "int4": (128, 64),
    "nvfp4": (128, 32),
    "mxfp4": (128, 32),
}
"""What the rows and columns (k, n) of a weight must be multiples of in torch's matmul of a format; any else."""


@dataclass(kw_only=True, eq=False)
class Candidate:
    """A shape that could be measured.

    served: its share of the time of a step, added up over the steps that serving runs; 0 for a corner.
    """

    op: Op
    part: Part = "usual"
    served: float = 0.0


Found = dict[str, Candidate]
"""Candidates by the key of their shape."""


def candidates(design: Design, hardware: HardwareSpec) -> Found:
    """Every different shape of a design, by its key; collectives aside, which need several devices.

    Formats without arithmetic on the hardware are left out: there would be nothing to compare with. So are sizes that
    torch has no kernel for in a format, and steps of more tokens than an engine takes on that device. A shape of the
    model that is held out belongs to it, whichever other model has it too.
    """
    design = design.on(hardware)
    if design.base not in hardware.peak:
        return {}
    made = _Collection(design, hardware)
    usual = [name for name in design.models if name != design.stranger]
    for name in usual:
        made.base(name, "usual")
    for other in design.others if usual else ():
        made.corners(usual[0], parse_precision(other, frozenset(hardware.peak), other), design.tp[:2])
    for name in design.quantised_models:
        if name != design.stranger:
            made.quantised(name, "usual")
    for name in design.adapted:
        if name != design.stranger:
            made.adapted(name, "usual")
    for name in design.own:
        made.base(name, "own")
        made.quantised(name, "own")
    return made.found | _stranger(design, hardware)


def held_out_shapes(design: Design, hardware: HardwareSpec) -> frozenset[str]:
    """The keys of the shapes of the model that nothing is fitted to; empty for a design that holds none out."""
    return frozenset(_stranger(design.on(hardware), hardware))


def _stranger(design: Design, hardware: HardwareSpec) -> Found:
    """What serving runs of the model that is held out, in the base format."""
    made = _Collection(design, hardware)
    if design.stranger is not None and design.base in hardware.peak:
        made.base(design.stranger, "held out")
    return made.found


class _Collection:
    """The shapes of a design on hardware, as they are found."""

    def __init__(self, design: Design, hardware: HardwareSpec) -> None:
        self.design, self.hardware, self.largest = design, hardware, largest_step(hardware)
        self._found: dict[tuple[object, ...], Candidate] = {}
        self._times: dict[tuple[object, ...], float] = {}
        usable = hardware.memory.usable
        self._room = float("inf") if usable is None else HELD * usable

    @property
    def found(self) -> Found:
        """What was found, by key."""
        return {key_of(candidate.op): candidate for candidate in self._found.values()}

    def base(self, name: str, part: Part) -> None:
        """A model in the base format: what serving runs of it, and corners if it is one of the design's."""
        precision = parse_precision(self.design.base, frozenset(self.hardware.peak))
        self.served(name, precision, self.design.served, part)
        if part == "usual":
            self.corners(name, precision, self.design.tp)

    def quantised(self, name: str, part: Part) -> None:
        """Linear layers, experts and the copies between formats: what a quantised model runs in other kernels."""
        kinds: tuple[type[Op], ...] = (Matmul, GroupedMatmul, Copy)
        for quantised in self.design.quantised:
            precision = self._quantised(quantised)
            if precision is not None:
                self.served(name, precision, self.design.served.once(), part, kinds)
                if part == "usual":
                    self.corners(name, precision, self.design.tp, kinds)

    def _quantised(self, name: str) -> Precision | None:
        """A quantised format as the hardware multiplies it; ``None`` where it does not.

        Of fp4 that is the maker's own format; where there is no such arithmetic, weights beside inputs in the base
        format.
        """
        peaks = frozenset(self.hardware.peak)
        precision = parse_precision(name, peaks, self.design.base)
        fp4 = precision.weights.math == "fp4"
        if precision.linear_input(precision.weights).math in peaks:
            return None if fp4 and name != self.hardware.four_bits else precision
        return replace(precision, activations=precision.base) if fp4 else None

    def adapted(self, name: str, part: Part) -> None:
        """The matmuls of LoRA adapters beside a model in the base format."""
        precision = parse_precision(self.design.base, frozenset(self.hardware.peak))
        for rank, slots in ADAPTERS:
            asked = LoraAsked(rank=rank, slots=slots)
            lora = adapters_of(find_model(name), asked, precision.base, None)
            for deployment in self._deployments(name, precision, self.design.tp[:1]):
                for step in self.design.served.once().steps(self.largest):
                    made = [op for op in _ops(replace(deployment, lora=lora), step) if op.kernel.endswith(".adapter")]
                    times = [self._time(op) * float(op.count) for op in made]
                    for op, time in zip(made, times):
                        self._add(op, part).served += time / sum(times)

    def served(
        self, name: str, precision: Precision, loads: Loads, part: Part, kinds: tuple[type[Op], ...] = (Op,)
    ) -> None:
        """What serving runs: each operator counts by its share of the ideal time of its step.

        A model divided over twice as many devices as it needs counts half. A step whose cache does not fit beside the
        weights is left out.
        """
        made = self._deployments(name, precision, self.design.tp)
        for deployment, step in product(made, list(loads.steps(self.largest))):
            tp, ops = deployment.parallel.tp, _ops(deployment, step)
            cache = sum(float(op.resident() * op.count) for op in ops if isinstance(op, Attention))
            if rank_bytes(deployment.model, tp) + cache > self._room:
                continue
            times = [self._time(op) * float(op.count) for op in ops]
            whole = sum(times) * tp / made[0].parallel.tp
            for op, time in zip(ops, times, strict=True):
                if isinstance(op, kinds) and holds(op):
                    self._add(op, part).served += time / whole

    def corners(
        self, name: str, precision: Precision, degrees: tuple[int, ...], kinds: tuple[type[Op], ...] = (Op,)
    ) -> None:
        """The grid that spans the range; at one context for linear layers, which do not see it."""
        if precision.base.name not in self.hardware.peak:
            return
        grid = self.design.corners()
        steps = list((grid if kinds == (Op,) else grid.once()).steps(self.largest))
        for deployment, step in product(self._deployments(name, precision, degrees), steps):
            for op in _ops(deployment, step):
                if isinstance(op, kinds) and holds(op):
                    self._add(op, "usual")

    def _deployments(self, name: str, precision: Precision, degrees: tuple[int, ...]) -> list[Deployment]:
        """One model in one precision, divided in every way that it can be and that brings its weights into memory."""
        model, engine, made = find_model(name), load_engine("none"), []
        for tp in degrees:
            parallel = Parallelism(tp=tp)
            try:
                model.check(parallel)
            except IndivisibleError:
                continue
            if rank_bytes(model, tp) > self._room:
                continue
            made.append(
                Deployment(
                    model=model,
                    hardware=_linked(self.hardware, tp),
                    precision=precision,
                    parallel=parallel,
                    engine=engine,
                    calibration=UNFUSED,
                    routing=routing_of(),
                )
            )
        return made

    def _add(self, op: Op, part: Part) -> Candidate:
        """The candidate of an operator; a model of the user's takes over the shapes that others have too."""
        taken = self._found.setdefault(_signature(op), Candidate(op=op, part=part))
        if part == "own":
            taken.part = part
        return taken

    def _time(self, op: Op) -> float:
        """Ideal seconds of one run."""
        signature = _signature(op)
        if signature not in self._times:
            self._times[signature] = float(price(op, self.hardware, UNFUSED).time)
        return self._times[signature]


def _signature(op: Op) -> tuple[object, ...]:
    """What tells shapes apart, as :func:`calibrate.samples.key_of` does but quicker."""
    fields = ((v.kind, v.size) if isinstance(v, Mask) else v for k, v in vars(op).items() if k not in _PLACE)
    return type(op), *fields


_PLACE = frozenset(("name", "count", "ranks", "fusible"))


def _ops(deployment: Deployment, step: Step) -> list[Op]:
    """The operators of a step; experts get their rows by the popularity that said how many of them are reached."""
    skew = deployment.routing.skew_of(None)
    ops = (op for stage in build(deployment, step) for op in stage.ops if not isinstance(op, Wired))
    return [replace(op, skew=skew) if isinstance(op, GroupedMatmul) else op for op in ops]


def holds(op: Op) -> bool:
    """Whether torch's kernels take the sizes of an operator in its format (:data:`MULTIPLES`)."""
    if not isinstance(op, Matmul | GroupedMatmul):
        return True
    rows, columns = MULTIPLES.get(op.weight.name, (1, 1))
    return op.k % rows == 0 and op.n % columns == 0


def _linked(hardware: HardwareSpec, tp: int) -> HardwareSpec:
    """The hardware with a link between any devices: shapes of one rank are wanted, whatever joins the ranks."""
    if tp == 1:
        return hardware
    link = Link.model_validate({"name": "any", "bandwidth": "1 B/s"})
    return hardware.model_copy(update={"links": [link]})


def group_of(op: Op) -> Group:
    """The kernel and format whose constants it helps to fit."""
    return op.kernel, op.label


def spread(shapes: Iterable[Op], seed: int = 0) -> list[Op]:
    """Shapes in the order in which each is the farthest, in log FLOP and log bytes, from all before it.

    The first is the one nearest the middle; ties (equal work, different shapes) are broken by chance.
    """
    pool = [Candidate(op=op) for op in shapes]
    return ordered(pool, len(pool), seed)


def ordered(pool: list[Candidate], most: int, seed: int = 0) -> list[Op]:
    """At most ``most`` shapes of one kernel and format: in turn one that serving runs and the one farthest, in log FLOP
    and log bytes, from all before it. When there are no more of the first kind, the farthest only.
    """
    if not pool:
        return []
    points = _points([candidate.op for candidate in pool])
    chance = np.random.default_rng(seed).uniform(0.0, 1e-3, len(pool))
    middle = np.sum((points - np.median(points, axis=0)) ** 2, axis=1) + chance
    distance = np.full(len(pool), np.inf)
    order: list[int] = []
    served = drawn(pool, seed)
    for place in range(min(most, len(pool))):
        at = next((index for index in served if distance[index] >= 0.0), None) if place % 2 == 0 else None
        if at is None:
            at = int(np.argmin(middle) if not order else np.argmax(distance))
        order.append(at)
        distance = np.minimum(distance, np.sum((points - points[at]) ** 2, axis=1) + chance)
        distance[at] = -1.0
    return [pool[index].op for index in order]


def drawn(pool: list[Candidate], seed: int = 0) -> Iterator[int]:
    """Places in ``pool`` of shapes that serving runs: by turns of each class (:func:`stratum`), the most served class
    first, and of a class by chance in proportion to what they are served (Efraimidis and Spirakis, 2006)."""
    chance = np.random.default_rng(seed).exponential(size=len(pool))
    classes: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, candidate in enumerate(pool):
        if candidate.served > 0.0:
            classes[stratum(candidate.op)].append(index)
    for members in classes.values():
        members.sort(key=lambda index: chance[index] / pool[index].served)
    first = sorted(classes.values(), key=lambda members: -sum(pool[index].served for index in members))
    return (index for turn in zip_longest(*first) for index in turn if index is not None)


def stratum(op: Op) -> tuple[object, ...]:
    """The class that a shape is drawn from: heads and mask of an attention, elsewhere its rows as a power of eight."""
    if isinstance(op, Attention):
        return op.heads, op.kv_heads, op.mask.kind, op.mask.size
    return (int(np.log2(max(float(_rows(op)), 1.0)) // 3),)


def _rows(op: Op) -> float:
    """Tokens or rows of an operator, by whatever name; elements where it has neither."""
    named = (getattr(op, name) for name in ("m", "tokens", "rows", "elements") if hasattr(op, name))
    return float(np.max(next(named, getattr(op, "batch", 1.0))))


def _points(pool: list[Op]) -> Array:
    works = [op.work() for op in pool]
    table = np.array([[float(w.flop), float(w.bytes + w.wire)] for w in works])
    logs: Array = np.log2(np.maximum(table, 1.0))
    return logs


WEIGHT = {"matmul": 6.0, "grouped_matmul": 2.0, "attention.prefill": 6.0, "attention.decode": 6.0}
"""How many more shapes a kernel gets than the plain ones."""
PLAIN = 7
"""Shapes of every kernel and format before any gets more: enough to fit and to hold some out."""
FIRST = ("matmul", "attention.decode", "attention.prefill", "elementwise", "norm", "copy", "gather", "grouped_matmul")
"""Kernels in the order in which they are worth the time of a short run."""


def importance(group: Group, base: str) -> tuple[bool, int, Group]:
    """What sorts kernels and formats by how much a short run needs them: the base format's by :data:`FIRST`, then the
    other formats'."""
    kernel, label = group
    place = FIRST.index(kernel) if kernel in FIRST else len(FIRST)
    return label not in ("any", base) and not label.startswith(f"{base}-"), place, group


def worth(group: Group, base: str) -> float:
    """How many more shapes a kernel and format gets than another: twice as many in the base format of the design, half
    in another 16 or 32 bits, which few serve."""
    kernel, label = group
    formats = label.split("-")[0]
    share = 2.0 if formats == base else 0.5 if formats in ("bf16", "fp16", "fp32") else 1.0
    return share * WEIGHT.get(kernel, 0.2)


HELD_OUT_SHARE = 0.125
"""Share of the shapes that are of the model that nothing is fitted to."""
OWN_SHARE = 0.5
"""Share of the shapes that are of the user's own models, when there are any."""


def choose(found: Iterable[Candidate], count: int, base: str, seed: int = 0) -> list[Op]:
    """At most ``count`` shapes, in the order to measure: a run cut short has some of each kernel and of each part.

    Of the user's models half of them, of the model that is held out an eighth, the others of the design's models. None
    of the model held out when there is not time for :data:`PLAIN` of its shapes.
    """
    parts: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in found:
        parts[candidate.part].append(candidate)
    own = round(OWN_SHARE * count) if parts["own"] else 0
    stranger = round(HELD_OUT_SHARE * count) if parts["held out"] else 0
    stranger = stranger if stranger >= PLAIN else 0
    counts = {"own": own, "held out": stranger, "usual": count - own - stranger}
    turns = []
    for part, share in counts.items():
        chosen = _rounds(parts[part], share, base, seed)
        turns += [((place + 0.5) / len(chosen), part, op) for place, op in enumerate(chosen)]
    return [op for _, _, op in sorted(turns, key=lambda turn: turn[:2])]


def _rounds(found: list[Candidate], count: int, base: str, seed: int) -> list[Op]:
    """At most ``count`` shapes: :data:`PLAIN` of each kernel and format, then more by :data:`WEIGHT`.

    When there is no time for every group, the most important ones (in the base format first) get their shapes and the
    others none. They come a round of all groups again and again.
    """
    if not found or count <= 0:
        return []
    groups: dict[Group, list[Candidate]] = defaultdict(list)
    for candidate in found:
        groups[group_of(candidate.op)].append(candidate)

    kept = sorted(groups, key=lambda group: importance(group, base))[: max(1, count // PLAIN)]
    unit = max(0.0, count - PLAIN * len(kept)) / sum(worth(group, base) for group in kept)
    quota = {group: PLAIN + unit * worth(group, base) for group in kept}
    queues = {group: ordered(groups[group], round(quota[group]), seed) for group in kept}
    turns = [(place / quota[group], group, op) for group, ops in queues.items() for place, op in enumerate(ops)]
    return [op for _, _, op in sorted(turns, key=lambda turn: turn[:2])][:count]


def operand_bytes(op: Op) -> float:
    """Memory that one set of operands takes: all experts of a rank, not only those touched; a table to look up in."""
    if isinstance(op, GroupedMatmul):
        return float(op.m * op.k * op.input.width + op.experts * op.k * op.n * op.weight.width)
    return float(op.work().read) * (5.0 if op.kind == "gather" else 1.0)


def small(op: Op, most: int = 256) -> Op:
    """The operator at a size at which a float64 reference takes no time: its formats and ratios stay."""
    limits = {"m": 48, "new": 40, "past": 64, "batch": 2, "tokens": 8, "elements": 4096, "experts": 4, "touched": 3}
    limits |= {"k": most, "n": most, "channels": 64, "top_k": 16}
    changes = {}
    for name, limit in limits.items():
        value = getattr(op, name, None)
        if value is not None and value > limit and not (name == "new" and value <= 1):
            changes[name] = type(value)(limit)
    if isinstance(op, Attention) and op.mask.kind == "top":
        changes["mask"] = replace(op.mask, size=min(op.mask.size, 24))
    if op.kind in ("norm", "gather"):
        changes["width"] = min(op.width, most)  # type: ignore[attr-defined]
    return replace(op, **changes)
