"""Operators: each knows its work (geometry), never its time.

An operator is what one rank runs, ``count`` times in a step, on ``ranks`` ranks. ``work()`` is for one run on one rank.
FLOP counts a multiply-add as two. Bytes are those of the operands as stored: every input element is read once and every
output element written once, which is the least any kernel can do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from itertools import accumulate, pairwise
from math import ceil
from operator import attrgetter, mul
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast, get_args

import numpy as np

from inferplan.affine import Affine, affine, dense
from inferplan.units import Num
from inferplan.work.formats import Format, arithmetic
from inferplan.work.routes import chance_reached, route
from inferplan.work.step import WIDE


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """What an operator does: FLOP, bytes read and written in device memory, bytes sent on the wire by a rank."""

    flop: Num = 0.0
    read: Num = 0.0
    write: Num = 0.0
    wire: Num = 0.0

    @property
    def bytes(self) -> Num:
        return self.read + self.write

    def __add__(self, other: Work) -> Work:
        return Work(
            flop=self.flop + other.flop,
            read=self.read + other.read,
            write=self.write + other.write,
            wire=self.wire + other.wire,
        )

    def __mul__(self, factor: Num) -> Work:
        return Work(
            flop=self.flop * factor, read=self.read * factor, write=self.write * factor, wire=self.wire * factor
        )


@dataclass(frozen=True, kw_only=True)
class Mask:
    """Which cached positions a new token may look at.

    kind: ``causal`` (all before it and itself), ``window`` (the last ``size``, itself included), ``chunk`` (from the
    last multiple of ``size``), ``top`` (the best ``size`` chosen by an indexer), ``full`` (every position, both ways),
    ``band`` (``size`` positions about itself, an odd number: as many before it as after it), ``compressed`` (the last
    ``size``, and of the entries that stand for ``rate`` whole positions each the best ``top``, or all), ``blocks`` (its
    own block of ``size`` positions and the best others, ``top`` blocks in all).
    """

    kind: str = "causal"
    size: int = 0
    rate: int = 1
    top: int = 0

    def pairs(self, new: Num, past: Num) -> Num:
        """Query-key pairs of one sequence and head.

        Causal: ``new*past + new*(new + 1)/2``. Window and top: ``sum_j min(past + j, size)``. Chunk: ``sum_j ((past + j
        - 1) mod size + 1)``. Full: the rectangle ``new*(past + new)``. Band of ``2h + 1``: ``sum_j
        (min(past + j - 1, h) + 1 + min(new - j, h))``. Compressed: those of the window and ``sum_j min(floor((past +
        j)/rate), top)``. Blocks: ``past + j`` up to ``top*size`` positions, beyond them those of ``top - 1`` blocks and
        of a chunk.
        """
        if self.kind == "causal":
            return new * past + new * (new + 1) / 2
        if self.kind == "full":
            return new * (past + new)
        if self.kind == "chunk":
            return _sawtooth(past + new, self.size) - _sawtooth(past, self.size)
        if self.kind == "band":
            half = self.size // 2
            window = Mask(kind="window", size=half + 1)
            return window.pairs(new, past) + window.pairs(new, 0.0) - new
        if self.kind == "compressed":
            return self._capped(new, past) + self._entries_seen(past + new) - self._entries_seen(past)
        if self.kind == "blocks":
            return self._block_sum(past + new) - self._block_sum(past)
        return self._capped(new, past)

    def _capped(self, new: Num, past: Num) -> Num:
        """``sum_j min(past + j, size)``."""
        growing: Num = np.clip(self.size - past, 0.0, new)
        return growing * past + growing * (growing + 1) / 2 + (new - growing) * self.size

    def _entries_seen(self, tokens: Num) -> Num:
        """``sum_i min(floor(i/rate), top)`` over the first ``tokens`` positions."""
        most = np.minimum(tokens, float(self.rate * self.top)) if self.top else tokens
        whole = np.floor(most / self.rate)
        growing: Num = self.rate * whole * (whole - 1) / 2 + whole * (most - whole * self.rate + 1)
        return growing + (tokens - most) * self.top

    def _block_sum(self, tokens: Num) -> Num:
        """Positions that the first ``tokens`` look at together."""
        dense: Num = np.minimum(tokens, float(self.size * self.top))
        beyond: Num = tokens - dense
        return dense * (dense + 1) / 2 + beyond * ((self.top - 1) * self.size) + _sawtooth(beyond, self.size)

    def reach(self, new: Num, past: Num) -> Num:
        """Distinct positions (new ones included) that the new tokens look at: the keys and values that are read."""
        if self.kind in ("window", "band"):
            return np.minimum(past, self.size - 1 if self.kind == "window" else self.size // 2) + new
        if self.kind == "chunk":
            return np.mod(past, self.size) + new
        if self.kind == "top":
            return np.minimum(past + new, self.size * new)
        if self.kind == "compressed":
            window: Num = np.minimum(past, self.size - 1) + new if self.size else 0.0
            entries = np.floor((past + new) / self.rate)
            return window + (np.minimum(entries, self.top * new) if self.top else entries)
        if self.kind == "blocks":
            return np.minimum(past + new, self.pairs(new, past))
        return past + new

    def taken(self, new: Num, past: Num) -> Num:
        """Positions that a kernel that takes a fixed number of chosen ones takes for each token."""
        if self.kind == "compressed":
            return self.size + (self.top or np.floor((past + new) / self.rate))
        return float(self.size)

    def kinks(self, low: float, high: float) -> list[float]:
        """Contexts between ``low`` and ``high`` at which a decode step sees more at another pace; stairs apart."""
        if self.kind == "chunk":
            return [float(place * self.size) for place in range(int(low // self.size) + 1, int(high // self.size) + 1)]
        ends = {self.size, self.rate * self.top} if self.kind == "compressed" else {self.size * max(self.top, 1)}
        return [float(end) for end in ends if low < end < high]

    @property
    def stair(self) -> tuple[int, int] | None:
        """Where what a decode step looks at comes whole: how often, and at which context first; else ``None``."""
        if self.kind == "compressed":
            return self.rate, self.rate - 1
        return (self.size, 0) if self.kind == "blocks" else None

    def cached(self, tokens: Num) -> Num:
        """Positions that must be kept for a sequence of ``tokens``; of compressed ones those that have an entry."""
        if self.kind == "compressed":
            return np.floor(tokens / self.rate) * self.rate
        if self.kind not in ("window", "chunk"):
            return tokens
        kept: Num = np.minimum(tokens, self.size)
        return kept


def _sawtooth(tokens: Num, size: int) -> Num:
    """Sum of ``(i mod size) + 1`` over the first ``tokens`` positions."""
    whole = np.floor(tokens / size)
    rest = tokens - whole * size
    return whole * size * (size + 1) / 2 + rest * (rest + 1) / 2


_WORKED_OUT = ("run", "beside")
"""What an operator keeps of what it worked out: another place makes it another."""

Place = Literal["device", "host", "link"]
"""Where an operator runs: on the accelerator, on its host's processor, or on the link between both."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Op:
    """One operator as one rank runs it.

    name: dotted, such as ``attn.core``. count: runs in the step. ranks: ranks that run it. fusible: an epilogue that an
    ideal kernel folds into its neighbour, with no traffic of its own (priced only where an engine really runs it).
    place: where it runs. far: of the weights that it reads, the share that lies in the host's memory.
    """

    kind: ClassVar[str] = "op"
    name: str
    count: Num = 1.0
    ranks: int = 1
    fusible: bool = False
    place: Place = "device"
    far: float = 0.0

    def work(self) -> Work:
        """FLOP and bytes of one run on one rank."""
        raise NotImplementedError

    def resident(self) -> Num:
        """Bytes of weights or cached state that one run reads: the useful traffic that MBU counts."""
        return 0.0

    def repeated(self, times: Num) -> Self:
        """The same operator, run so many times as often."""
        other = object.__new__(type(self))  # dataclasses.replace would check every field again: 5 us, in a hot path
        vars(other).update(vars(self), count=self.count * times)
        return other

    def reading(self, far: float) -> Self:
        """The same operator with such a share of its weights in the host's memory."""
        return self._elsewhere(far=far)

    def at(self, place: Place) -> Self:
        """The same operator, run elsewhere."""
        return self._elsewhere(place=place)

    def _elsewhere(self, **changes: Any) -> Self:
        other = object.__new__(type(self))
        kept = {name: value for name, value in vars(self).items() if name not in _WORKED_OUT}
        vars(other).update(kept, **changes)
        return other

    @cached_property
    def beside(self) -> Widths | None:
        """Its :func:`widths`, worked out once."""
        return widths(self)

    @cached_property
    def run(self) -> OperatorRun:
        """What one run is, whatever its name and count: operators with the same numbers and objects in every other
        field make the same."""
        kind: Any = type(self)
        held = _of_a_run(kind)(self)
        run = OperatorRun((kind, *map(_same, held)))
        run.held = held
        return run

    @property
    def math(self) -> str | None:
        """The arithmetic its FLOP run in; ``None`` where vector units hide them under the traffic."""
        return None

    @property
    def kernel(self) -> str:
        """What kernel it is, for calibrated constants: its kind, and its phase where kernels differ by phase."""
        return self.kind

    @property
    def label(self) -> str:
        """The formats that choose the kernel."""
        return self.math or "any"


def _same(value: object) -> object:
    """A number or text, the line over arrays that a number is, or where another object lies."""
    kind = type(value)
    if kind is Affine:
        line = cast("Affine", value)
        return line.constant, *((place, factor) for place, (_, factor) in line.factors.items())
    return value if kind is int or kind is float or kind is str else id(value)


class OperatorRun(tuple[object, ...]):
    """The class of an operator and its fields, of arrays where they lie. It keeps these: no other object comes
    there."""

    held: tuple[object, ...]


@cache
def _of_a_run(kind: Any) -> Callable[[Op], tuple[object, ...]]:
    """What reads every field but the name and the count, of an operator of a class."""
    return attrgetter(*(field.name for field in fields(kind) if field.name not in ("name", "count")))


def _operands(weight: Format, inputs: Format) -> str:
    """The label of a matmul: its arithmetic, or both operands' formats where they differ."""
    same = weight.kernel == inputs.kernel
    return arithmetic(weight, inputs) if same else f"{weight.kernel}x{inputs.kernel}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Matmul(Op):
    """``Y[m, n] = X[m, k] W[k, n]``: FLOP ``2mkn``; reads X and W, writes Y.

    ``batch`` independent products share nothing (per-head projections). Source: any; see docs/operators/matmul.md.
    """

    kind: ClassVar[str] = "matmul"
    m: Num
    k: int
    n: int
    weight: Format
    input: Format
    output: Format
    batch: int = 1

    def work(self) -> Work:
        return Work(
            flop=2.0 * self.batch * self.m * self.k * self.n,
            read=self.batch * (self.m * self.k * self.input.width + self.k * self.n * self.weight.width),
            write=self.batch * self.m * self.n * self.output.width,
        )

    def resident(self) -> Num:
        return self.batch * self.k * self.n * self.weight.width

    @property
    def math(self) -> str:
        return arithmetic(self.weight, self.input)

    @property
    def label(self) -> str:
        return _operands(self.weight, self.input)


def _split(k: int, parts: int, whole: int) -> int:
    """The largest part of ``k`` in ``parts``, each of whole ``whole``."""
    return min(k, ceil(k / (parts * whole)) * whole)


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupedMatmul(Op):
    """``Y[i, n] = X[i, k] W[e(i), k, n]`` over ``m`` routed rows: FLOP ``2mkn``; reads X and the touched experts.

    experts: how many the rank holds. touched: how many distinct ones the rows reach, on average. exchanged: the rows
    came from other ranks, grouped by expert: engines have kernels of their own for that. skew: how a measurement deals
    rows to the touched experts (the deviation of their popularity's logarithm); the work is the same. adapter: the
    experts are LoRA adapters (2106.09685), and this is their way in (``shrink``) or out (``expand``), whose product is
    added to what is in the output already. slices: parts of ``n`` that each have ``k`` inputs of their own. reordered:
    the side whose rows other operators keep in the order of the tokens: an input is brought into the experts' order, an
    output back into the tokens'.
    """

    kind: ClassVar[str] = "grouped_matmul"
    m: Num
    k: int
    n: int
    experts: int
    touched: Num
    weight: Format
    input: Format
    output: Format
    exchanged: bool = False
    skew: float = 0.0
    adapter: Literal["", "shrink", "expand"] = ""
    slices: int = 1
    reordered: Literal["", "input", "output"] = ""

    def work(self) -> Work:
        write = self.m * self.n * self.output.width
        read = self.m * self.k * self.slices * self.input.width + self.touched * self.k * self.n * self.weight.width
        return Work(
            flop=2.0 * self.m * self.k * self.n, read=read + write if self.adapter == "expand" else read, write=write
        )

    def resident(self) -> Num:
        return self.touched * self.k * self.n * self.weight.width

    @property
    def launches(self) -> float:
        """Kernels of one run: the output of a shrink is zeroed first, for the parts of ``k`` are added up in it."""
        return 2.0 if self.adapter == "shrink" else 1.0

    def in_block(self) -> Num:
        """Bytes that one thread block of an adapter's kernel moves; 0 for experts.

        The blocks are those of vLLM's defaults (``lora/ops/triton_ops/utils.py``, ``get_lora_op_configs``). A
        shrink: 32 rows x 16 columns, and ``k`` split in 64 parts of whole 256 below 128 rows, in 8 parts of whole 32
        from there on. An expand: 64 rows x 128 columns (64 where matrices are merged), ``k`` (the rank) not split.
        More adapters are more blocks and no larger ones, so the rows are all rows of the step, up to a block's.
        """
        if not self.adapter:
            return 0.0
        most, columns, k = 64, min(self.n, 64 if self.slices > 1 else 128), self.k
        deep: Num = float(k)
        if self.adapter == "shrink":
            most, columns, k = 32, min(self.n, 16), _split(self.k, parts=64, whole=256)
            deep = np.where(dense(self.m) < 128, k, max(k, _split(self.k, parts=8, whole=32)))
        rows = np.minimum(dense(self.m), most)
        output = (2.0 if self.adapter == "expand" else 1.0) * rows * columns * self.output.width
        return deep * (rows * self.input.width + columns * self.weight.width) + output

    @property
    def kernel(self) -> str:
        if self.adapter:
            return f"{self.kind}.adapter"
        return f"{self.kind}.exchanged" if self.exchanged else self.kind

    @property
    def math(self) -> str:
        return arithmetic(self.weight, self.input)

    @property
    def label(self) -> str:
        return _operands(self.weight, self.input)


MULTI_HEAD = "-multi-head"
"""The end of the label of decodes whose query heads share no keys."""
BLOCKS = "-blocks"
"""The end of the label of attention to chosen blocks of keys."""
COMPRESSED = "-compressed"
"""The end of the label of attention to a window and to compressed entries."""
HYPER = ("hyper-collapse", "hyper-spread")
"""Labels of what hyper-connections do with residual streams: into a part's input, and its output over them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention(Op):
    """``softmax(Q[b,q,h,d] K[b,s,g,d]^T) V[b,s,g,e]``: FLOP ``2*pairs*h*(d + e)`` a sequence, softmax not counted.

    Reads Q, the reachable K and V once for each KV head and writes the output (FlashAttention, 2205.14135, section 3:
    scores never reach memory). ``shared_value``: V is a slice of K (MLA's absorbed form), so it is read once.
    ``fused = False`` writes and reads the score matrix twice (before and after softmax), as an unfused kernel does.
    query_shards, key_shards: context parallelism divides a prefill's queries or a decode's keys. joined: it runs within
    the kernel of the segment before it, which one launch starts for both. whole: no cache is kept, so that a ``past``
    stands for sequences of several lengths.
    """

    kind: ClassVar[str] = "attention"
    batch: Num
    new: Num
    past: Num
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    mask: Mask
    base: Format
    kv: Format
    shared_value: bool = False
    fused: bool = True
    query_shards: int = 1
    key_shards: int = 1
    joined: bool = False
    whole: bool = False

    def work(self) -> Work:
        pairs = affine(self.batch * self.mask.pairs(self.new, self.past)) / (self.query_shards * self.key_shards)
        queries = affine(self.batch * self.new) / self.query_shards
        scores = 0.0 if self.fused else 2.0 * pairs * self.heads * self.base.width
        return Work(
            flop=2.0 * pairs * self.heads * (self.key_dim + self.value_dim),
            read=queries * self.heads * self.key_dim * self.base.width + self.resident() + scores,
            write=queries * self.heads * self.value_dim * self.base.width + scores,
        )

    def resident(self) -> Num:
        keys = affine(self.batch * self.mask.reach(self.new, self.past)) / self.key_shards
        kv_dim = self.key_dim if self.shared_value else self.key_dim + self.value_dim
        return keys * self.kv_heads * kv_dim * self.kv.width

    @property
    def math(self) -> str:
        return self.base.math

    @cached_property
    def wide(self) -> bool:
        return bool(np.max(self.new) > WIDE)

    @property
    def sparse(self) -> bool:
        """Each token attends to latents of its own choice: no key block serves several of them."""
        return self.shared_value and self.mask.kind in ("top", "compressed")

    @property
    def encoder(self) -> bool:
        """Every token of a whole sequence looks both ways: no block of keys is left out, and nothing was cached."""
        both = self.mask.kind in ("full", "band") and self.key_dim == self.value_dim
        return both and self.wide and (self.whole or not np.any(self.past))

    @property
    def kernel(self) -> str:
        if self.shared_value:
            return f"mla.sparse{'' if self.wide else '.decode'}" if self.sparse else "mla.decode"
        if self.encoder:
            return "attention.encoder"
        mla = "mla" if self.key_dim != self.value_dim else "attention"
        return f"{mla}.{'prefill' if self.wide else 'decode'}"

    @property
    def label(self) -> str:
        """Formats, then the head size that the kernel is compiled for (128 unless said): ``bf16-kv-fp8-d64``.

        A decode of 128 with a key for every query head is ``bf16-multi-head``: libraries have another kernel for it. So
        they have for chosen blocks of keys (``bf16-blocks``) and for windows beside compressed entries
        (``bf16-compressed``).
        """
        formats = self.base.name if self.kv == self.base else f"{self.base.name}-kv-{self.kv.name}"
        if self.kernel.startswith("mla"):
            return f"{formats}{COMPRESSED}" if self.mask.kind == "compressed" else formats
        if self.mask.kind == "blocks":
            return f"{formats}{BLOCKS}"
        if 64 < self.key_dim <= 128:
            return f"{formats}{MULTI_HEAD}" if self.heads == self.kv_heads and not self.wide else formats
        return f"{formats}-d{64 if self.key_dim <= 64 else 256}"


@dataclass(frozen=True, kw_only=True, eq=False)
class IndexSelect(Op):
    """``I[t,s] = sum_j w[t,j] relu(q[t,j] k[s]^T)``, then the ``top_k`` best s (DeepSeek-V3.2 eq. 1): FLOP
    ``2*pairs*h*(d + 1)``.

    Reads the queries, the weight of each head and every reachable key once; writes the chosen positions (int32). The
    scores never reach memory here; where a kernel stores them, that traffic is an operator of its own. block: keys
    whose best score stands for all, of which each head chooses ``top_k`` by itself: nothing is weighted or added up,
    FLOP ``2*pairs*h*d`` (MiniMax-M3).
    """

    kind: ClassVar[str] = "index_select"
    batch: Num
    new: Num
    past: Num
    heads: int
    key_dim: int
    top_k: int
    mask: Mask
    base: Format
    kv: Format
    query_shards: int = 1
    key_shards: int = 1
    block: int = 1

    @property
    def pairs(self) -> Num:
        """Query-key pairs of all sequences on one rank."""
        return self.batch * self.mask.pairs(self.new, self.past) / (self.query_shards * self.key_shards)

    def work(self) -> Work:
        queries = self.batch * self.new / self.query_shards
        length = self.past + self.new
        if self.mask.kind == "compressed":
            length = np.floor(length / self.mask.rate)
        weighted = 0 if self.block > 1 else 1
        if self.block > 1:  # a part of a block counts as one, a part of a position is between two steps
            length = np.ceil(length / self.block)
        choices = queries * (1 if weighted else self.heads) * np.minimum(length, self.top_k)
        return Work(
            flop=2.0 * self.pairs * self.heads * (self.key_dim + weighted),
            read=queries * self.heads * (self.key_dim + weighted) * self.base.width + self.resident(),
            write=choices * 4.0,
        )

    def resident(self) -> Num:
        keys = self.batch * self.mask.reach(self.new, self.past) / self.key_shards
        return keys * self.key_dim * self.kv.width

    @property
    def math(self) -> str:
        return self.base.math

    @cached_property
    def wide(self) -> bool:
        return bool(np.max(self.new) > WIDE)

    @property
    def kernel(self) -> str:
        return self.kind if self.wide else f"{self.kind}.decode"

    @property
    def label(self) -> str:
        """The arithmetic, then what is scored unless it is every key: ``fp8-compressed``, ``bf16-blocks``."""
        if self.mask.kind == "compressed":
            return f"{self.math}{COMPRESSED}"
        return f"{self.math}{BLOCKS}" if self.block > 1 else self.math


@dataclass(frozen=True, kw_only=True, eq=False)
class TopK(Op):
    """The ``top_k`` largest of each row of scores in memory: reads every score once, writes the positions (int32).

    rows: rows of all sequences. scores: their scores in all. No FLOP; see docs/operators/top_k.md.
    """

    kind: ClassVar[str] = "top_k"
    rows: Num
    scores: Num
    top_k: int
    base: Format

    def work(self) -> Work:
        return Work(read=self.scores * self.base.width, write=np.minimum(self.scores, self.rows * self.top_k) * 4.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Norm(Op):
    """RMSNorm (1910.07467, equation 4) or LayerNorm over ``width``: 4 or 7 FLOP an element; reads x and its weights."""

    kind: ClassVar[str] = "norm"
    tokens: Num
    width: int
    base: Format
    style: str = "rms"

    def work(self) -> Work:
        elements = self.tokens * self.width
        vectors = {"rms": 1, "layer": 2, "layer_plain": 1, "plain": 0}[self.style]
        return Work(
            flop=elements * (4.0 if self.style in ("rms", "plain") else 7.0),
            read=(elements + vectors * self.width) * self.base.width,
            write=elements * self.base.width,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Elementwise(Op):
    """A pointwise map over ``tokens x width`` outputs with ``reads`` inputs and ``flops`` FLOP for each.

    form: the label of a kernel with constants of its own. blocks: thread blocks at once, where one takes a whole row.
    spread: by how many times the mean the longest of ``e`` rows takes more than one.
    """

    kind: ClassVar[str] = "elementwise"
    tokens: Num
    width: float
    base: Format
    reads: float = 1.0
    flops: float = 1.0
    form: str = "any"
    blocks: int | None = None
    spread: float = 0.0

    def work(self) -> Work:
        elements = self.tokens * self.width
        return Work(
            flop=elements * self.flops,
            read=elements * self.reads * self.base.width,
            write=elements * self.base.width,
        )

    @property
    def label(self) -> str:
        return self.form


@dataclass(frozen=True, kw_only=True, eq=False)
class Gather(Op):
    """Row look-ups in a table: reads and writes ``tokens`` rows of ``width``; no FLOP."""

    kind: ClassVar[str] = "gather"
    tokens: Num
    width: int
    table: Format
    output: Format

    def work(self) -> Work:
        elements = self.tokens * self.width
        return Work(read=elements * self.table.width, write=elements * self.output.width)


@dataclass(frozen=True, kw_only=True, eq=False)
class Copy(Op):
    """A move of ``elements`` from one format to another: KV writes, quantisation of activations, layout changes."""

    kind: ClassVar[str] = "copy"
    elements: Num
    source: Format
    target: Format

    def work(self) -> Work:
        return Work(read=self.elements * self.source.width, write=self.elements * self.target.width)


@dataclass(frozen=True, kw_only=True, eq=False)
class Conv(Op):
    """Causal depthwise convolution of ``taps`` over ``channels``: FLOP ``2*taps`` an element; carries ``taps - 1``
    inputs.

    Reads the tokens, the carried state and the filter; writes the output and the state back.
    """

    kind: ClassVar[str] = "conv"
    batch: Num
    new: Num
    channels: int
    taps: int
    base: Format

    def work(self) -> Work:
        elements = self.batch * self.new * self.channels
        state = self.batch * self.channels * (self.taps - 1)
        return Work(
            flop=2.0 * self.taps * elements,
            read=(elements + state + self.taps * self.channels) * self.base.width,
            write=(elements + state) * self.base.width,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Scan(Op):
    """A linear recurrence over ``new`` tokens with ``state`` elements a sequence.

    flops: FLOP a token and sequence of the algorithm used; inputs, outputs: elements a token that are read and written;
    the state is read and written once a sequence; ``parameters`` elements (decays, skips) are read once. ``tensor``
    marks chunked algorithms whose FLOP are matmuls.
    """

    kind: ClassVar[str] = "scan"
    batch: Num
    new: Num
    state: int
    flops: Num
    inputs: int
    outputs: int
    base: Format
    state_format: Format
    parameters: int = 0
    tensor: bool = False

    def work(self) -> Work:
        tokens = self.batch * self.new
        state = self.batch * self.state * self.state_format.width
        return Work(
            flop=tokens * self.flops,
            read=(tokens * self.inputs + self.parameters) * self.base.width + state,
            write=tokens * self.outputs * self.base.width + state,
        )

    def resident(self) -> Num:
        return self.batch * self.state * self.state_format.width

    @property
    def math(self) -> str | None:
        return self.base.math if self.tensor else None

    @property
    def kernel(self) -> str:
        return f"scan.{'prefill' if np.max(self.new) > WIDE else 'decode'}"


Switched = Attention | IndexSelect | Scan
"""Operators whose kernel is chosen by the new tokens of a sequence."""


def at_width(op: Switched, new: float) -> Switched:
    """The same operator with so many new tokens a sequence: those of many divide queries, others divide keys, and a
    recurrence of few runs no matmuls."""
    if isinstance(op, Scan):
        return replace(op, new=new, tensor=op.tensor and new > WIDE)
    shards = op.query_shards * op.key_shards
    return replace(op, new=new, query_shards=shards if new > WIDE else 1, key_shards=1 if new > WIDE else shards)


def at_loads(op: Switched, change: Callable[[Num], Num]) -> Switched:
    """The same operator with its sequences, and what each brings beside new tokens, as ``change`` makes them."""
    if isinstance(op, Scan):
        return replace(op, batch=change(op.batch), flops=change(op.flops))
    return replace(op, batch=change(op.batch), past=change(op.past))


def rising(op: Switched) -> bool:
    """Whether more tokens behind a sequence never mean fewer that are looked at: no chunk or block begins anew."""
    return isinstance(op, Scan) or op.mask.kind not in ("chunk", "blocks")


class Widths(NamedTuple):
    """An operator with one new token a sequence, and with the fewest that its kernel of many takes. wide: it has as
    many itself."""

    narrowest: Switched
    widest: Switched
    wide: bool


def widths(op: Op) -> Widths | None:
    """The neighbours of an operator whose kernel is chosen by its new tokens; ``None`` of others, and of one token."""
    if not isinstance(op, Switched) or not np.any(np.asarray(op.new) > 1.0):
        return None
    return Widths(at_width(op, 1.0), at_width(op, WIDE + 1.0), bool(np.max(op.new) > WIDE))


@dataclass(frozen=True, kw_only=True, eq=False)
class LongConv(Op):
    """``y[t,c] = sum_{s<=t} h[t-s,c] u[s,c]``: a causal depthwise convolution as long as the context (Hyena,
    2302.10866).

    Many new tokens: two FFTs and an inverse of length ``n = 2*(past + new)``, each ``2.5*n*log2 n`` FLOP on real data
    (Cooley-Tukey), and ``3n`` for the product. Few: the sum itself, ``2*pairs``. Reads the filter and every input so
    far.
    """

    kind: ClassVar[str] = "long_conv"
    batch: Num
    new: Num
    past: Num
    channels: int
    base: Format
    kv: Format

    def work(self) -> Work:
        length = self.past + self.new
        direct = 2.0 * Mask().pairs(self.new, self.past)
        padded = 2.0 * length
        transforms = 3 * 2.5 * padded * np.log2(padded) + 3.0 * padded
        flop = np.where(np.asarray(self.new) > WIDE, transforms, direct)
        return Work(
            flop=self.batch * self.channels * flop,
            read=self.channels
            * (length * self.base.width + self.batch * (self.new * self.base.width + self.past * self.kv.width)),
            write=self.batch * self.new * self.channels * self.base.width,
        )

    @property
    def kernel(self) -> str:
        return f"long_conv.{'prefill' if np.max(self.new) > WIDE else 'decode'}"


class Wired(Op):
    """An operator whose work is on the links of ``group`` ranks, evenly spaced over ``span`` devices."""

    group: int
    span: int

    def sent(self, sizes: Sequence[float], reduces: Sequence[bool]) -> tuple[Num, ...]:
        """Bytes that a rank sends on each level of nested domains (:mod:`inferplan.work.routes`)."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, eq=False)
class Collective(Wired):
    """A collective over ``group`` ranks of a message of ``elements`` (the full tensor, not a shard).

    Wire bytes a rank sends in a flat group: all-reduce ``2(n-1)/n*M`` on a ring and ``M`` where the switch reduces;
    all-gather and reduce-scatter ``(n-1)/n*M``; all-to-all ``(n-1)/n*M`` of a rank's own message; send ``M``.
    """

    kind: ClassVar[str] = "collective"
    pattern: str
    elements: Num
    group: int
    format: Format
    span: int
    """How many consecutive devices the group reaches over: it chooses the links."""

    def work(self) -> Work:
        return Work(wire=self.sent((self.group,), (False,))[0])

    def factor(self, switch_reduces: bool) -> float:
        """Bytes on the wire of a flat group for each byte of the message."""
        return route(self.pattern, (self.group,), (switch_reduces,))[0]

    def sent(self, sizes: Sequence[float], reduces: Sequence[bool]) -> tuple[Num, ...]:
        return tuple(factor * self.elements * self.format.width for factor in route(self.pattern, sizes, reduces))

    @property
    def kernel(self) -> str:
        return f"collective.{self.pattern}"

    @property
    def label(self) -> str:
        return "any"


Direction = Literal["dispatch", "combine"]
ExchangeMode = Literal["normal", "low_latency", "nvlink"]
"""How tokens travel to the ranks of their experts. normal: once to each domain, on from there to each rank.
low_latency: to each expert by itself. nvlink: once to each rank, through memory that all can address."""
Meeting = Literal[ExchangeMode, "gather", "all_reduce"]
"""How tokens and the ranks of their experts meet, by an :class:`Exchange` or by collectives. gather: every rank gets
the tokens of all (all-gather), and sums part again (reduce-scatter). all_reduce: both as sums of buffers of all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Exchange(Wired):
    """Tokens to the ranks that hold their experts (dispatch), or partial sums back (combine): the same routes reversed.

    Each of ``group`` ranks sends ``tokens`` of ``width`` elements; each token has ``top_k`` of ``experts``, which lie
    evenly in ``parts`` expert groups of ``group/parts`` ranks that share each expert. A token crosses once for each
    domain that holds one of its experts (:func:`inferplan.work.routes.chance_reached`), and in low-latency mode once
    for each of its experts: DeepSeek-V3 (2412.19437) section 3.2.2; DeepEP README. groups, top_groups: group-limited
    routing. balanced: a token's experts are dealt over the ranks as evenly as they can be. blocks: thread blocks that
    carry it in normal mode. mean_share: tokens of the mean rank over those of this one, which has most. crowding: rows
    of the rank that receives most over those of the mean one. All wait for who sends most and who receives most,
    ``max(1, crowding*mean_share)`` times these tokens; a domain gets one copy of every token at most.
    """

    kind: ClassVar[str] = "exchange"
    direction: Direction
    mode: ExchangeMode
    tokens: Num
    width: int
    experts: int
    top_k: int
    parts: int
    group: int
    span: int
    format: Format
    groups: int = 1
    top_groups: int = 1
    balanced: bool = False
    blocks: int = 20
    crowding: Num = 1.0
    mean_share: Num = 1.0

    def work(self) -> Work:
        return Work(wire=self.sent((self.group,), (False,))[0])

    def sent(self, sizes: Sequence[float], reduces: Sequence[bool]) -> tuple[Num, ...]:
        message = self.tokens * (self.width * self.format.width)
        if isinstance(self.crowding, float) and self.crowding == 1.0:
            return tuple(copies * message for copies in self.copies(sizes))
        if self.mode == "low_latency":
            most = np.maximum(self.crowding * self.mean_share, 1.0)
            return tuple(copies * message * most for copies in self.copies(sizes))
        domains = accumulate(sizes[:-1], mul, initial=1.0)  # ranks of those that a level joins
        crowded = (np.minimum(self.crowding, 1.0 / self._reached(ranks)) for ranks in domains)
        times = (np.maximum(most * self.mean_share, 1.0) for most in crowded)
        return tuple(copies * message * more for copies, more in zip(self.copies(sizes), times))

    def copies(self, sizes: Sequence[float]) -> tuple[float, ...]:
        """Copies of a token that cross each level.

        Of a level: the expected domains below it with an expert of the token, less those at its own height, without the
        token's own: what arrives in a domain is carried on from there, and lands on a rank that wanted it.
        """
        inside = [1.0, *accumulate(sizes, mul)]  # ranks below each level
        if self.mode == "low_latency":
            copies = self.top_k * self.group / self.parts
            return tuple(copies * (above - below) / self.group for below, above in pairwise(inside))
        away = [(self.group / ranks - 1.0) * self._reached(ranks) for ranks in inside]
        return tuple(max(below - above, 0.0) for below, above in pairwise(away))

    def _reached(self, ranks: float) -> float:
        """The chance that a domain of so many ranks holds an expert of a token."""
        share = max(ranks / self.group, 1.0 / self.parts)
        if self.balanced:
            return min(1.0, self.top_k * share)
        return chance_reached(self.experts, self.top_k, share, self.groups, self.top_groups)

    @property
    def kernel(self) -> str:
        return f"{self.direction}.{self.mode}"

    @property
    def label(self) -> str:
        return self.format.kernel


KERNELS = frozenset(
    {
        *("matmul", "grouped_matmul", "grouped_matmul.exchanged", "grouped_matmul.adapter"),
        *("norm", "elementwise", "gather", "copy", "conv"),
        *("attention.prefill", "attention.decode", "attention.encoder", "mla.prefill", "mla.decode", "mla.sparse"),
        *("mla.sparse.decode", "index_select", "index_select.decode", "top_k", "scan.prefill", "scan.decode"),
        *("long_conv.prefill", "long_conv.decode"),
        *(f"collective.{name}" for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")),
        *(f"{direction}.{mode}" for direction in get_args(Direction) for mode in get_args(ExchangeMode)),
    }
)
"""Every kernel that an operator can be (:attr:`Op.kernel`): those that constants can be of."""
