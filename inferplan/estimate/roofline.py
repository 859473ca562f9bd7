"""The roofline: work in, time out. No model words in this file.

Uncalibrated, ``t = max(flop/peak, bytes/bandwidth, wire/link)`` (Williams, Waterman, Patterson 2009, eq. 1).
Calibrated, ``t = overhead + sum(c*count) + ((flop/(math*peak))^p + (bytes/(memory*bandwidth))^p)^(1/p)``, never less
(docs/formulas/roofline.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from inferplan.affine import FEWEST, affine, dense, maximum, minimum, root, root_of_squares
from inferplan.devices.constants import Calibration, Fit
from inferplan.devices.hardware import HardwareSpec
from inferplan.devices.power import PowerCap
from inferplan.errors import SpecError
from inferplan.terms import Naming, Term, name_term, named_at, plain
from inferplan.units import BoolArray, Num
from inferplan.work.ops import (
    Attention,
    Collective,
    Elementwise,
    Exchange,
    GroupedMatmul,
    IndexSelect,
    Matmul,
    Op,
    Scan,
    Switched,
    TopK,
    Widths,
    Wired,
    Work,
    at_loads,
    rising,
)

Basis = Literal["roofline", "calibrated", "transferred", "extrapolated"]
Bound = Literal["math", "memory", "wire", "overhead"]
Effect = Literal["seconds", "math", "memory", "wire", "stage", "blocks"]
_IDEAL_FIT = Fit.default()
_BANDWIDTH = ("hardware", "memory", "bandwidth")
TILE = 128
"""Rows and columns that one thread block of a matmul works on, queries and keys that one of an attention does."""

OWN_LIMIT = 8 * 2**20
"""Bytes: the largest message that vLLM's own all-reduce takes (``CustomAllreduce(max_size=8192 * 1024)``)."""


class IdealTime(NamedTuple):
    """What one run of a kernel asks of a device: seconds at the datasheet's rates, and what further terms count."""

    math: Num
    memory: Num
    wire: Num
    """On the innermost links of its group."""
    counts: dict[str, Num]
    outer: Num = 0.0
    """On the slowest of the links beyond."""
    launches: float = 1.0
    """Kernels of one run: 0 for what runs within a kernel that is launched for something else."""
    far: Num = 0.0
    """Of the reads: weights in the host's memory, over the link to it."""
    direct: Num = 0.0
    """On the links of its one domain where each rank of an all-reduce reads the whole message of every other."""

    def at(self, clock: Num) -> IdealTime:
        """The same at a share of the clock: the arithmetic takes longer, and nothing else does."""
        return self._replace(math=self.math / clock)


class FittedTime(NamedTuple):
    """A demand under the constants of a fit, in seconds."""

    math: Num
    memory: Num
    wire: Num
    overhead: Num
    total: Num


@dataclass(frozen=True, kw_only=True)
class FurtherTerm:
    """A further physical constant ``c``: what it multiplies (``count``, zero or more) and what the product does.

    seconds: ``c*count`` is added. wire: it is added to the time on the innermost links, which links beyond may hide.
    stage: the same for an all-reduce in two stages; one stage is taken where that is faster.
    blocks: seconds of the thread blocks that carry an exchange, which links of any kind may hide.
    memory: the memory takes that long at least, at the share of it that the kernel reaches.
    math: its time grows by the factor ``1 + c*count``. scale: a usual size of the constant. limit: the largest that the
    physics allows. counted: what ``count`` is the number of.
    """

    effect: Effect
    scale: float
    limit: float = float("inf")
    counted: str
    unit: str = "s"
    count: Callable[[Op, HardwareSpec], Num]


@dataclass(frozen=True, kw_only=True, eq=False)
class OpCost:
    """The price of one run of an operator on one rank, in seconds, and what its numbers rest on.

    band: factors on ``time`` between which 80 % of measurements lie; ``None`` where no held-out error is known.
    """

    op: Op
    work: Work
    spent: FittedTime
    fit: Fit | None
    """The fitted constants; ``None`` where it is priced by the datasheet alone."""
    carried: bool
    """The constants are those of another device."""
    clock: Num = 1.0
    """Of the device's own clock at this kernel; below 1 where a power cap holds it back."""

    def of(self, op: Op) -> OpCost:
        """The price of another operator that makes the same run."""
        return OpCost(op=op, work=self.work, spent=self.spent, fit=self.fit, carried=self.carried, clock=self.clock)

    @property
    def time_math(self) -> Num:
        return dense(self.spent.math)

    @property
    def time_memory(self) -> Num:
        return dense(self.spent.memory)

    @property
    def time_wire(self) -> Num:
        return dense(self.spent.wire)

    @property
    def overhead(self) -> Num:
        return dense(self.spent.overhead)

    @property
    def time(self) -> Num:
        """Seconds of one run."""
        return dense(self.spent.total)

    @property
    def basis(self) -> Basis:
        """What the constants rest on, and whether the work lies in the range that their fit saw."""
        if self.fit is None:
            return "roofline"
        if not self.fit.covers(self.work.flop, self.work.bytes + self.work.wire):
            return "extrapolated"
        return "transferred" if self.carried or self.fit.basis == "transferred" else "calibrated"

    @property
    def band(self) -> tuple[float, float] | None:
        """Of its kind where that was measured; none of weights that are read from the host's memory was."""
        return None if self.fit is None or self.op.far else self.fit.band

    @property
    def total(self) -> Num:
        """Seconds of all its runs in the step."""
        return dense(self.all_runs)

    @property
    def all_runs(self) -> Num:
        """The same for use in sums (:mod:`inferplan.affine`)."""
        return self.spent.total * self.op.count

    @property
    def intensity(self) -> Num:
        """FLOP per byte of device memory traffic."""
        return self.work.flop / np.maximum(self.work.bytes, 1e-300)

    @property
    def bound(self) -> Bound:
        """What binds it (of a grid: its largest point)."""
        parts: dict[Bound, Num] = {
            "math": self.time_math,
            "memory": self.time_memory,
            "wire": self.time_wire,
            "overhead": self.overhead,
        }
        return max(parts, key=lambda name: float(np.max(parts[name])))


def soft_maximum(a: Num, b: Num, sharpness: float) -> Num:
    """``(a^p + b^p)^(1/p)``: the sum at p = 1, the larger at infinity. Roots, not powers, at the usual p."""
    if isinstance(a, float) and a == 0.0:
        return b
    given: Any = a
    if isinstance(given, Term):
        return cast("Num", _soft_maximum_terms(given, b, sharpness))
    if np.isinf(sharpness):
        return maximum(a, b)
    if sharpness == 1.0:
        return a + b
    if sharpness == 2.0:
        return root_of_squares(a, b)
    a, b = dense(a), dense(b)
    if sharpness == 4.0:
        return np.sqrt(root_of_squares(a * a, b * b))
    if sharpness == 1.5:
        total = a * np.sqrt(a) + b * np.sqrt(b)
        return np.cbrt(total * total)
    high = np.maximum(a, b)
    ratio = np.minimum(a, b) / np.maximum(high, 1e-300)
    return high * np.power(1.0 + np.power(ratio, sharpness), 1.0 / sharpness)


def ideal_time(
    op: Op, work: Work, hardware: HardwareSpec, terms: Iterable[str] = (), name: Naming = plain
) -> IdealTime:
    """What ``op`` asks of ``hardware``, with the counts of the named terms.

    Raises ``MissingFactError`` when the device has no peak for the arithmetic, or no link for the group, ``SpecError``
    for a term that is none.
    """
    unknown = [term for term in terms if term not in TERMS]
    if unknown:
        raise SpecError(
            f"the constants of {op.kernel} have a term {unknown[0]!r} that no kernel has",
            hint=f"one of {', '.join(TERMS)}",
        )
    wire, outer = _wire_seconds(op, hardware, name) if isinstance(op, Wired) else (0.0, 0.0)
    math: Num = 0.0
    if op.math is not None:
        peak = name(hardware.peak_of(op.math), "peak", "FLOP/s", ("hardware", "peak", op.math))
        math = name(work.flop, "FLOP", "FLOP") / peak
    far, near = _far_seconds(op, work, hardware, name)
    return IdealTime(
        math=math,
        memory=near / name(hardware.memory.bandwidth, "bandwidth", "B/s", _BANDWIDTH),
        wire=wire,
        counts={term: name(TERMS[term].count(op, hardware), TERMS[term].counted) for term in terms},
        outer=outer,
        launches=_launches(op),
        far=far,
        direct=_direct_seconds(op, hardware, name),
    )


def _launches(op: Op) -> float:
    if isinstance(op, GroupedMatmul):
        return op.launches
    return 0.0 if isinstance(op, Attention) and op.joined else 1.0


def _far_seconds(op: Op, work: Work, hardware: HardwareSpec, name: Naming) -> tuple[Num, Num]:
    """Seconds in which weights are read over the link to the host, and the bytes that are left to the own memory."""
    if not op.far:
        return 0.0, name(work.bytes, "bytes", "B")
    over, link = op.far * op.resident(), hardware.to_host
    seconds: Num = name(over, "weights in host memory", "B") / name(link.bandwidth, link.name, "B/s", ("link", "rate"))
    return seconds, name(work.bytes + (-1.0) * over, "bytes of its own memory", "B")


def _wire_seconds(op: Wired, hardware: HardwareSpec, name: Naming = plain) -> tuple[Num, Num]:
    """Seconds on the innermost links of a group, and on the slowest of those beyond (zero where there are none)."""
    inner, *beyond = (
        name(sent, "wire bytes", "B")
        / name(level.bandwidth, level.link.name, "B/s", ("hardware", "links", level.link.name))
        + level.link.latency
        for level, sent in zip(hardware.levels(op.group, op.span), _sent(op, hardware))
    )
    return inner, reduce(maximum, beyond) if beyond else 0.0


def _direct_seconds(op: Op, hardware: HardwareSpec, name: Naming = plain) -> Num:
    """Seconds in which a rank of an all-reduce in one domain reads the messages of all others: one stage, no more."""
    if not isinstance(op, Collective) or op.pattern != "all_reduce":
        return 0.0
    level, *beyond = hardware.levels(op.group, op.span)
    if beyond:
        return 0.0
    sent = name((op.group - 1) * op.elements * op.format.width, "bytes of the other ranks", "B")
    seconds: Num = sent / name(level.bandwidth, level.link.name, "B/s", ("hardware", "links", level.link.name))
    return seconds + level.link.latency


def fitted_time(asked: IdealTime, fit: Fit) -> FittedTime:
    """The one formula: a demand priced with the constants of a fit."""
    overhead: Num = fit.overhead * fit.launch if asked.launches else 0.0
    if asked.launches > 1.0:
        overhead = overhead * asked.launches
    stretch: Num = 1.0
    least: Num = 0.0
    blocks: Num = 0.0
    wire: Num = asked.wire / fit.memory
    stage: Num = 0.0
    for name, constant in fit.terms.items():
        spent = constant * asked.counts[name]
        if TERMS[name].effect == "seconds":
            overhead = overhead + spent
        elif TERMS[name].effect == "wire":
            wire = wire + spent
        elif TERMS[name].effect == "stage":
            stage = stage + spent
        elif TERMS[name].effect == "memory":
            least = least + spent
        elif TERMS[name].effect == "blocks":
            blocks = blocks + spent
        else:
            stretch = stretch + spent
    memory = asked.memory
    if not (isinstance(least, float) and least == 0.0):
        memory = maximum(memory, least)
    math, memory = asked.math * (stretch / fit.math), memory / fit.memory
    if not (isinstance(asked.far, float) and asked.far == 0.0):
        memory = memory + asked.far
    if not (isinstance(stage, float) and stage == 0.0):
        wire = _stages(wire + stage, asked.direct / fit.memory)
    if not (isinstance(blocks, float) and blocks == 0.0):
        wire = soft_maximum(wire, blocks, fit.sharpness)
    if not (isinstance(asked.outer, float) and asked.outer == 0.0):
        wire = soft_maximum(wire, asked.outer / fit.scale_out, fit.sharpness)
    total = affine(soft_maximum(math, memory, fit.sharpness)) + (overhead + wire)
    return FittedTime(math=math, memory=memory, wire=wire, overhead=overhead, total=total)


def _stages(two: Num, one: Num) -> Num:
    """Seconds of an all-reduce whose kernel is chosen by size: in two stages, or in one where there is such a one."""
    return two if isinstance(one, float) and one == 0.0 else minimum(two, one)


def time_terms(op: Op, hardware: HardwareSpec, calibration: Calibration, cap: PowerCap | None = None) -> Term:
    """The time of one run as :func:`price` computes it, with its formula. Raises what that raises."""
    found: Any = _one_kernel_terms(op, hardware, calibration, cap)
    kernels = _kernels_beside(op, calibration)
    if kernels is None or not np.any(price(op, hardware, calibration, cap).time != found.value):
        return cast("Term", found)

    def named(other: Op, tokens: Num) -> Any:
        return name_term(
            _one_kernel_terms(other, hardware, calibration, cap),
            f"{other.kernel} of {float(np.max(tokens)):g} tokens",
            "s",
        )

    if kernels.wide:
        return cast("Term", np.maximum(found, named(kernels.narrowest, kernels.narrowest.new)))
    most = np.maximum(named(kernels.widest, kernels.widest.new), named(kernels.narrowest, kernels.narrowest.new))
    return cast("Term", np.minimum(name_term(found, f"{op.kernel} of its own", "s"), most))


def _one_kernel_terms(op: Op, hardware: HardwareSpec, calibration: Calibration, cap: PowerCap | None) -> Any:
    """The time of one run by the operator's own kernel, whatever other kernels take."""
    fit, name = calibration.fit(op.kernel, op.label), named_at(op.place)
    chosen: Any = _IDEAL_FIT if fit is None else fit_terms(op, fit, name)
    asked = ideal_time(op, op.work(), hardware, chosen.terms, name)
    clock = _one_kernel(op, op.work(), hardware, calibration, cap)[1]
    if np.any(clock < 1.0):
        asked = asked.at(name(clock, "clock", "", ("power", "cap")))
    return fitted_time(asked, chosen).total


def _soft_maximum_terms(a: Any, b: Any, p: Any) -> Any:
    """:func:`soft_maximum` as it is written, without the roots that are faster at the usual p."""
    sharpness = p.value if isinstance(p, Term) else p
    if np.isinf(sharpness):
        return np.maximum(a, b)
    return a + b if sharpness == 1.0 else (a**p + b**p) ** (1.0 / p)


def fit_terms(op: Op, fit: Fit, name: Naming = name_term) -> SimpleNamespace:
    """The constants of a fit as terms; their field is ``("calibration", kernel, label, ...)``."""
    where = ("calibration", op.kernel, op.label)
    called = {"math": "share of peak", "memory": "share of bandwidth", "overhead": "overhead", "sharpness": "p"}
    called["scale_out"] = "share of the links beyond"
    units = {"overhead": "s"}
    stated = fit.model_fields_set & set(called)
    constants = {key: getattr(fit, key) for key in called} | {
        key: name(getattr(fit, key), called[key], units.get(key, ""), (*where, key)) for key in stated
    }
    return SimpleNamespace(
        **constants,
        launch=name(fit.launch, "share of overhead in a step", "", ("step", "launch")) if fit.launch < 1.0 else 1.0,
        terms={
            term: name(constant, term, TERMS[term].unit, (*where, "terms", term))
            for term, constant in fit.terms.items()
        },
    )


def price(op: Op, hardware: HardwareSpec, calibration: Calibration, cap: PowerCap | None = None) -> OpCost:
    """The time of one run of ``op`` on one rank of ``hardware``, which draws no more than ``cap``.

    Where few and many new tokens a sequence have kernels of their own, one token more never takes less time
    (docs/continuity.md): few take no longer than 17 do, which a kernel of many may be given instead, and many
    no less than one.

    Raises ``MissingFactError`` when the device has no peak for the arithmetic, or no link for the group.
    """
    work = op.work()
    spent, clock = _one_kernel(op, work, hardware, calibration, cap)
    kernels = _kernels_beside(op, calibration)
    if kernels is not None:

        def seconds(other: Op) -> Num:
            return dense(_one_kernel(other, other.work(), hardware, calibration, cap)[0].total)

        if kernels.wide:
            total = _at_least(dense(spent.total), kernels.narrowest, seconds)
        else:
            most = np.maximum(seconds(kernels.widest), seconds(kernels.narrowest))
            total = np.minimum(dense(spent.total), most)
        spent = spent._replace(total=total)
    return OpCost(
        op=op,
        work=work,
        spent=spent,
        fit=calibration.fit(op.kernel, op.label),
        carried=calibration.basis == "transferred",
        clock=clock,
    )


def _one_kernel(
    op: Op, work: Work, hardware: HardwareSpec, calibration: Calibration, cap: PowerCap | None
) -> tuple[FittedTime, Num]:
    """What one run takes by the operator's own kernel, and its share of the device's own clock."""
    chosen = calibration.fit(op.kernel, op.label) or _IDEAL_FIT
    asked = ideal_time(op, work, hardware, chosen.terms)
    spent, clock = fitted_time(asked, chosen), cast("Num", 1.0)
    if cap is not None and cap.holds:
        clock = _clock_under(cap, asked, spent, chosen)
        if np.any(clock < 1.0):
            spent = fitted_time(asked.at(clock), chosen)
    return spent, clock


def _kernels_beside(op: Op, calibration: Calibration) -> Widths | None:
    """The neighbours of an operator that another kernel runs at another width; ``None`` where all have one's constants,
    and for one token, by which the others are held."""
    beside = op.beside
    if beside is None:
        return None
    places = (calibration.place(one.kernel, one.label) for one in (beside.narrowest, beside.widest))
    return beside if len(set(places)) > 1 else None


def _at_least(total: Num, op: Switched, seconds: Callable[[Op], Num]) -> Num:
    """``total``, and the seconds of ``op`` where those are more. Of a grid only points that its longest reaches are
    priced."""
    if not isinstance(total, np.ndarray) or total.size < FEWEST or not rising(op):
        return np.maximum(total, seconds(op))
    near: BoolArray = total < seconds(at_loads(op, lambda numbers: float(np.max(numbers))))
    if not np.any(near):
        return total
    found = total.copy()
    chosen = at_loads(op, lambda numbers: np.broadcast_to(numbers, total.shape)[near] if np.ndim(numbers) else numbers)
    found[near] = np.maximum(found[near], seconds(chosen))
    return found


def _clock_under(cap: PowerCap, asked: IdealTime, spent: FittedTime, fit: Fit) -> Num:
    """The share of its own clock at which a kernel draws no more than a cap: its arithmetic slows down with it, its
    memory traffic, its launch and its messages do not."""
    own = asked._replace(math=dense(asked.math), memory=dense(asked.memory))
    work = cap.shares.dynamic(own.math, own.memory, dense(spent.total))
    return cap.clock(work, lambda clock: dense(fitted_time(own.at(clock), fit).total))


def _tiles(size: Num) -> Num:
    return np.ceil(size / TILE)


def _spread(op: Op, hardware: HardwareSpec) -> Num:
    """SMs (streaming multiprocessors) for each thread block; above one, some SMs have no block.

    Blocks are counted in parts of a tile beyond the first, so that one more row never makes a kernel faster.
    """
    if not hardware.multiprocessors:
        return 0.0
    if isinstance(op, Matmul):
        blocks = op.batch * np.maximum(op.m / TILE, 1.0) * np.maximum(op.n / TILE, 1.0)
    elif isinstance(op, GroupedMatmul):
        blocks = np.maximum(op.m / TILE, op.touched) * np.maximum(op.n / TILE, 1.0)
    elif isinstance(op, Attention):
        tiles = np.maximum(op.new / op.query_shards / TILE, 1.0)
        blocks = op.batch * op.new / op.query_shards if op.sparse and op.wide else op.batch * op.heads * tiles
    elif isinstance(op, IndexSelect) and op.wide:
        blocks = op.batch * np.maximum(op.new / op.query_shards * op.heads / TILE, 1.0)
    else:
        return 0.0
    share: Num = hardware.multiprocessors / blocks
    return share


def _depth(op: Op, hardware: HardwareSpec) -> Num:
    """Steps of 128 that one thread block takes one after the other."""
    if isinstance(op, (Matmul, GroupedMatmul)):
        return _tiles(op.k)
    if isinstance(op, Scan):
        return _tiles(op.new)
    if isinstance(op, TopK):
        return op.scores / op.rows / TILE
    return _tiles(_reach(op)) if isinstance(op, Attention) else 0.0


def _merges(op: Op, hardware: HardwareSpec) -> Num:
    """Rounds in which the partial results of a split context are merged: ``log2(1 + S/128)``."""
    return np.log2(1.0 + _reach(op) / TILE) if isinstance(op, Attention) else 0.0


def _reach(op: Attention) -> Num:
    return op.mask.reach(op.new, op.past) / op.key_shards


def _items(op: Op, hardware: HardwareSpec) -> Num:
    """Work items (a sequence's KV head, 16 query heads at a time) for each multiprocessor."""
    if not isinstance(op, Attention):
        return 0.0
    items = op.batch * op.new * op.kv_heads * np.ceil(op.heads / op.kv_heads / 16)
    return items / hardware.multiprocessors if hardware.multiprocessors else 0.0


def _blocks(op: Op, hardware: HardwareSpec) -> Num:
    """Thread blocks of 128 queries of a head for each multiprocessor."""
    if not isinstance(op, Attention) or not hardware.multiprocessors:
        return 0.0
    return op.batch * op.heads * _tiles(op.new / op.query_shards) / hardware.multiprocessors


def _windowed(op: Op, hardware: HardwareSpec) -> Num:
    """Thread blocks of :func:`_blocks` for attention under a window: some libraries give each query head its own."""
    return _blocks(op, hardware) if isinstance(op, Attention) and op.mask.size else 0.0


def _packed(op: Op, hardware: HardwareSpec) -> Num:
    """Bytes of weights that a processor without thread blocks copies into the layout of its matrix product.

    None for one or two rows, which are products of a vector; all of them from eight rows on.
    """
    if not isinstance(op, Matmul) or hardware.thread_blocks:
        return 0.0
    several = np.clip(np.log2(np.maximum(op.m, 1.0) / 2.0) / 2.0, 0.0, 1.0)
    return several * (op.batch * op.k * op.n * op.weight.width)


def _padding(op: Op, hardware: HardwareSpec) -> Num:
    """FLOP spent on the padding of tiles, as a share of the useful ones."""
    if isinstance(op, Matmul):
        return _tiles(op.m) * _tiles(op.n) * TILE * TILE / (op.m * op.n) - 1.0
    if isinstance(op, GroupedMatmul):
        return op.touched * TILE / op.m
    if not isinstance(op, Attention):
        return 0.0
    if op.shared_value:
        return _padded_heads(op)
    if not op.wide:
        return float(np.ceil(op.heads / 64)) * 64 / op.heads - 1.0
    new = op.new / op.query_shards
    queries, keys, before = _tiles(new), _tiles(op.past + op.new), _tiles(op.past)
    tiles = queries * keys if op.mask.kind == "full" else queries * before + queries * (queries + 1) / 2
    if op.mask.size:
        seen = op.mask.size * (op.mask.top if op.mask.kind == "blocks" else 1)
        tiles = np.minimum(tiles, queries * (_tiles(seen) + 1))
    pairs = op.mask.pairs(op.new, op.past) / op.query_shards
    extra: Num = np.maximum(tiles * TILE * TILE / pairs - 1.0, 0.0)
    return extra


def _padded_heads(op: Attention) -> Num:
    """Padding of attention on latents: 64 query rows at a time, of several tokens where they look at the same keys.

    A sparse kernel takes the heads of one token, and always as many keys as may be chosen.
    """
    useful: Num = op.heads * op.new
    taken = np.ceil(useful / 64) * 64
    if op.sparse:
        useful = op.mask.pairs(op.new, op.past)
        taken = np.ceil(op.heads / 64) * 64 / op.heads * op.new * op.mask.taken(op.new, op.past)
    return taken / useful - 1.0


def _alone(op: Op, hardware: HardwareSpec) -> Num:
    """Seconds in which a block of a LoRA kernel moves its bytes at its multiprocessor's share of the bandwidth."""
    if not isinstance(op, GroupedMatmul) or not hardware.multiprocessors:
        return 0.0
    return op.in_block() * (hardware.multiprocessors / hardware.memory.bandwidth)


def _rows(op: Op, hardware: HardwareSpec) -> Num:
    """Input rows to quantise, or rows of scores to choose from, for each multiprocessor: a thread block takes one."""
    if isinstance(op, TopK) and hardware.multiprocessors:
        return op.rows / hardware.multiprocessors
    if not isinstance(op, Matmul) or op.input.bits >= op.output.bits or not hardware.multiprocessors:
        return 0.0
    return op.m / hardware.multiprocessors


def _swept(op: Op, hardware: HardwareSpec) -> Num:
    """Numbers of a pointwise map's rows that each thread block runs through where it takes whole rows, at least one.
    All wait for the longest of the rows that run at once."""
    if not isinstance(op, Elementwise) or op.blocks is None:
        return 0.0
    rows = dense(op.tokens)
    longest = op.spread * np.log(np.clip(rows, 1.0, op.blocks)) if op.spread else 0.0
    return op.width * (np.maximum(rows / op.blocks, 1.0) + longest)


def _experts(op: Op, hardware: HardwareSpec) -> Num:
    """Experts touched; of an exchange all experts, whose counts the ranks tell each other."""
    if isinstance(op, Exchange):
        return float(op.experts)
    return op.touched if isinstance(op, GroupedMatmul) else 0.0


def _sorting(op: Op, hardware: HardwareSpec) -> Num:
    """Numbers of the routed rows for each multiprocessor: an engine whose matmul needs the rows one expert after the
    other sorts, pads and narrows them, and adds up what comes out, in kernels of its own.
    """
    if not isinstance(op, GroupedMatmul) or not op.reordered or not hardware.multiprocessors:
        return 0.0
    return op.m * ((op.k if op.reordered == "input" else op.n) / hardware.multiprocessors)


def _hops(op: Op, hardware: HardwareSpec) -> Num:
    """Doublings of the group: ``log2(n)``."""
    return float(np.log2(op.group)) if isinstance(op, Wired) else 0.0


def _nodes(op: Op, hardware: HardwareSpec) -> Num:
    """Doublings of the innermost domains that a group spans: ``log2(n/n_0)``."""
    return float(np.log2(op.group / hardware.levels(op.group, op.span)[0].size)) if isinstance(op, Wired) else 0.0


def _carriers(op: Exchange, hardware: HardwareSpec) -> float:
    """Thread blocks that carry an exchange: those of normal mode, else one an expert on as many SMs as there are."""
    units = float(hardware.multiprocessors or op.blocks)
    return {"normal": float(op.blocks), "low_latency": min(float(op.experts), units)}.get(op.mode, units)


def _handled(op: Op, hardware: HardwareSpec) -> Num:
    """Bytes of its own tokens that each thread block of an exchange packs or adds up."""
    if not isinstance(op, Exchange):
        return 0.0
    return op.tokens * (op.width * op.format.width) / _carriers(op, hardware)


def _copied(op: Op, hardware: HardwareSpec) -> Num:
    """Bytes that each thread block of an exchange sends, over links of any kind."""
    if not isinstance(op, Exchange):
        return 0.0
    return sum(_sent(op, hardware), start=0.0) / _carriers(op, hardware)


def _forwarded(op: Op, hardware: HardwareSpec) -> Num:
    """Bytes that each thread block of an exchange passes on between the links of a domain and those beyond."""
    if not isinstance(op, Exchange):
        return 0.0
    return sum(_sent(op, hardware)[1:], start=0.0) / _carriers(op, hardware)


def _sent(op: Wired, hardware: HardwareSpec) -> tuple[Num, ...]:
    levels = hardware.levels(op.group, op.span)
    return op.sent([level.size for level in levels], [level.link.switch_reduces for level in levels])


def _ramp(op: Op, hardware: HardwareSpec) -> Num:
    """Square root of the seconds on the slowest wire: cut into chunks, a message pays ``2*sqrt(latency*wire)``."""
    return root(maximum(*_wire_seconds(op, hardware))) if isinstance(op, Collective) else 0.0


def _second(op: Op, hardware: HardwareSpec) -> Num:
    """One for an all-reduce, whose second stage waits for the first of all ranks."""
    return float(isinstance(op, Collective) and op.pattern == "all_reduce")


def _fallback(op: Op, hardware: HardwareSpec) -> Num:
    """One for an all-reduce of a message over :data:`OWN_LIMIT`, which an engine leaves to the collective library."""
    if not isinstance(op, Collective) or op.pattern != "all_reduce":
        return 0.0
    return np.where(dense(op.elements) * op.format.width > OWN_LIMIT, 1.0, 0.0)


TERMS: dict[str, FurtherTerm] = {
    "spread": FurtherTerm(effect="math", scale=0.3, unit="", counted="SMs for each thread block", count=_spread),
    "depth": FurtherTerm(effect="seconds", scale=1e-7, counted="serial steps of a thread block", count=_depth),
    "merges": FurtherTerm(effect="seconds", scale=5e-7, counted="rounds that merge a split context", count=_merges),
    "items": FurtherTerm(effect="seconds", scale=1e-6, counted="work items of an SM", count=_items),
    "blocks": FurtherTerm(effect="seconds", scale=1e-6, counted="query blocks of an SM", count=_blocks),
    "windowed": FurtherTerm(effect="seconds", scale=1e-6, counted="windowed query blocks of an SM", count=_windowed),
    "padding": FurtherTerm(
        effect="math", scale=0.5, limit=1.0, unit="", counted="padding over useful FLOP", count=_padding
    ),
    "packing": FurtherTerm(
        effect="seconds", scale=1e-10, unit="s/B", counted="bytes of weights copied for several rows", count=_packed
    ),
    "alone": FurtherTerm(
        effect="memory", scale=1.0, limit=1.0, unit="", counted="seconds of a thread block alone", count=_alone
    ),
    "rows": FurtherTerm(effect="seconds", scale=1e-7, counted="rows of an SM", count=_rows),
    "swept": FurtherTerm(effect="seconds", scale=1e-9, counted="numbers of an SM's rows", count=_swept),
    "experts": FurtherTerm(effect="seconds", scale=1e-7, counted="experts touched", count=_experts),
    "sorting": FurtherTerm(effect="seconds", scale=1e-10, counted="numbers of an SM's routed rows", count=_sorting),
    "hops": FurtherTerm(effect="seconds", scale=1e-6, counted="doublings of the group", count=_hops),
    "nodes": FurtherTerm(effect="seconds", scale=1e-5, counted="doublings of the innermost domains", count=_nodes),
    "handled": FurtherTerm(
        effect="wire", scale=1e-10, unit="s/B", counted="own bytes of a thread block", count=_handled
    ),
    "copied": FurtherTerm(
        effect="blocks", scale=1e-11, unit="s/B", counted="sent bytes of a thread block", count=_copied
    ),
    "forwarded": FurtherTerm(
        effect="blocks", scale=1e-11, unit="s/B", counted="bytes that a thread block passes on", count=_forwarded
    ),
    "ramp": FurtherTerm(
        effect="seconds", scale=1e-3, unit="s^0.5", counted="square root of the wire seconds", count=_ramp
    ),
    "second": FurtherTerm(effect="stage", scale=1e-5, counted="second stages", count=_second),
    "pieces": FurtherTerm(
        effect="stage", scale=1e-3, unit="s^0.5", counted="square root of the wire seconds", count=_ramp
    ),
    "fallback": FurtherTerm(effect="seconds", scale=1e-5, counted="messages over 8 MiB", count=_fallback),
}
