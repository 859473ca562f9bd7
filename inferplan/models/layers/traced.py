"""A layer that nobody described: tensors, cache and operators as a run of its code on meta tensors gave them.

:mod:`inferplan.models.tracing` makes it. Sizes that follow the load are polynomials in
``b`` sequences of ``n`` new and ``p`` cached tokens: ``{bn: 4096}`` is 4096 elements for each new token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np

from inferplan.errors import MissingFactError, UsageError
from inferplan.models.layers.base import AnyMixer, Cache, LayerContext, LayerSpec, Mixer, Role, Weight, joint_cache
from inferplan.spec import Field, Spec, model_validator
from inferplan.units import Num
from inferplan.validators import AfterValidator
from inferplan.work.ops import Attention, Copy, Elementwise, GroupedMatmul, Mask, Matmul, Op
from inferplan.work.parallel import Parallelism
from inferplan.work.routing import distinct_experts
from inferplan.work.step import Segment

MONOMIALS = ("1", "b", "n", "p", "bn", "bp", "np", "nn", "bnn", "bnp")
"""Products of sequences, new and cached tokens."""


def _known(polynomial: dict[str, int]) -> dict[str, int]:
    unknown = [name for name in polynomial if name not in MONOMIALS]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is none of {', '.join(MONOMIALS)}")
    return polynomial


Polynomial = Annotated[dict[str, int], AfterValidator(_known)]
_TOKENS = {"bn": 1}


def value(polynomial: Mapping[str, int], batch: Num, new: Num, past: Num) -> Num:
    """A polynomial at ``batch`` sequences of ``new`` and ``past`` tokens."""
    sizes = {"b": batch, "n": new, "p": past}
    found: Num = 0.0
    for name, factor in polynomial.items():
        term: Num = factor
        for letter in name.replace("1", ""):
            term = term * sizes[letter]
        found = found + term
    return found


def segments_total(polynomial: Mapping[str, int], segments: tuple[Segment, ...]) -> Num:
    """The same over the segments of a step, which share what does not follow the load."""
    growing = {name: factor for name, factor in polynomial.items() if name != "1"}
    return polynomial.get("1", 0) + sum(value(growing, one.batch, one.new, one.past) for one in segments)


def _together(segments: tuple[Segment, ...], *polynomials: Mapping[str, int]) -> list[tuple[Segment, ...]]:
    """The segments that one operator sees: all of them where it follows their tokens alone, else each by itself."""
    if all(set(terms) <= {"1", "bn"} for terms in polynomials):
        return [segments]
    return [(one,) for one in segments]


class TracedTensor(Spec):
    """A parameter tensor. experts: one of so many along its first axis is read by a token that chose it."""

    name: str
    shape: list[int]
    role: Role = "weights"
    active: float | None = Field(default=1.0, ge=0.0, le=1.0)
    """The share of it that one token reads; none where experts share it and how many a token reads is not known."""


class TracedCache(Spec):
    """What the layer keeps of a sequence: elements for each token, up to ``window`` of them, and of constant size."""

    per_token: int = Field(default=0, ge=0)
    window: int | None = Field(default=None, ge=1)
    heads: int = Field(default=1, ge=1)
    state: int = Field(default=0, ge=0)
    conv: int = Field(default=0, ge=0)
    """Those of ``state`` that are inputs of a short convolution, in the base format."""
    state_bits: int | None = None
    unknown: str = ""
    """Why it is not known what is kept, where it is not."""


class TracedOperator(Spec):
    """One operator of the layer. Which fields it has follows from what it ``runs``.

    matmul: ``rows`` times ``k`` times ``n``, with weights of ``role``. experts: ``top_k`` rows a token, each with one
    of ``experts`` matrices. attention: ``heads`` over ``kv_heads``. product: ``m*k*n`` for ``batch``, of activations
    with each other. pointwise: ``flop``, ``read`` and ``write`` elements between two others, as one kernel. copy:
    elements that go into the cache. mixer: the operators of the layer's described mixer.
    """

    runs: Literal["matmul", "experts", "attention", "product", "pointwise", "copy", "mixer"]
    name: str
    role: Role = "weights"
    rows: Polynomial = _TOKENS
    k: int = 1
    n: int = 1
    copies: int = Field(default=1, ge=1)
    """Products of such a matmul that share nothing, each with a matrix of its own."""
    experts: int = Field(default=1, ge=1)
    top_k: int = Field(default=1, ge=1)
    heads: int = 1
    kv_heads: int = 1
    key_dim: int = 1
    value_dim: int = 1
    mask: Literal["causal", "window", "chunk", "full", "band"] = "causal"
    size: int = 0
    sides: list[Polynomial] = []
    """Of a product: its batch, m, k and n."""
    flop: Polynomial = {}
    read: Polynomial = {}
    write: Polynomial = {}


class TracedLayer(Mixer):
    """One whole decoder layer: mixer, feed-forward, norms and residuals, as transformers runs it."""

    kind: ClassVar[str] = "traced"
    residual: ClassVar[bool] = False
    summary: ClassVar[str] = "a layer nobody described, recorded from a run of its code"

    tensors: list[TracedTensor] = []
    keeps: TracedCache = TracedCache()
    operators: list[TracedOperator] = []
    width: int = Field(default=0, ge=0)
    """Elements a token that are alive at once inside it, beyond the residual."""
    untimed: str = ""
    """Why its operators are not known, where they are not."""
    mixer: AnyMixer | None = None
    """The described kind that one of its modules is, tensor by tensor: counted, kept and run as that."""

    @model_validator(mode="after")
    def _runs_its_mixer(self) -> Self:
        if sum(one.runs == "mixer" for one in self.operators) != (self.mixer is not None and not self.untimed):
            raise ValueError("a traced layer runs the one mixer that it has")
        return self

    @property
    def described(self) -> LayerSpec:
        return self if self.mixer is None else self.mixer

    def dump(self) -> dict[str, object]:
        found = super().dump()
        return found if self.mixer is None else found | {"mixer": self.mixer.dump()}

    def weights(self, d_model: int) -> Iterator[Weight]:
        if self.mixer is not None:
            yield from self.mixer.weights(d_model)
        for one in self.tensors:
            active = math.nan if one.active is None else one.active
            yield Weight(name=one.name, shape=tuple(one.shape), role=one.role, active=active)

    def cache(self) -> Cache:
        kept = self.keeps
        if kept.unknown:
            raise MissingFactError(
                "what this model keeps of a sequence is not known",
                because=kept.unknown,
                hint="its weights are: inferplan show; let transformers build it: inferplan import --trace",
            )
        mask = Mask() if kept.window is None else Mask(kind="window", size=kept.window)
        own = Cache(
            per_token=kept.per_token,
            mask=mask,
            units=kept.heads,
            state=kept.state,
            conv=kept.conv,
            state_bits=kept.state_bits,
        )
        return own if self.mixer is None else joint_cache([own, self.mixer.cache()])

    def check(self, parallel: Parallelism) -> None:
        """Raise ``UsageError`` for what would divide its tensors: a trace does not say which dimension."""
        if parallel.stage_ranks > 1:
            raise UsageError(
                "a traced layer is divided by pipeline stages alone",
                because="how its tensors are divided is not written down",
                hint="--pp, or describe the model as a YAML (docs/models.md)",
            )

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return max(float(self.width), 0.0 if self.mixer is None else self.mixer.live_width(d_model, parallel))

    def ops(self, context: LayerContext) -> Iterator[Op]:
        if self.untimed:
            raise MissingFactError(
                "the time of this traced model is not known",
                because=self.untimed,
                hint="its memory is: inferplan fit; or describe the model as a YAML (docs/models.md)",
            )
        for one in self.operators:
            yield from getattr(self, f"_{one.runs}")(one, context)

    def _matmul(self, one: TracedOperator, context: LayerContext) -> Iterator[Op]:
        if one.rows == _TOKENS:
            yield from self._multiplied(one, context, context.tokens)
            return
        for seen in _together(context.segments, one.rows):
            yield from self._multiplied(one, context, segments_total(one.rows, seen))

    def _multiplied(self, one: TracedOperator, context: LayerContext, rows: Num) -> Iterator[Op]:
        if one.copies == 1:
            yield from context.linear(f"traced.{one.name}", one.k, one.n, rows, one.role)
            return
        precision = context.precision
        yield Matmul(
            name=f"traced.{one.name}",
            ranks=context.ranks,
            m=rows,
            k=one.k,
            n=one.n,
            batch=one.copies,
            weight=precision.stored(one.role, one.name),
            input=precision.base,
            output=precision.base,
        )

    def _experts(self, one: TracedOperator, context: LayerContext) -> Iterator[Op]:
        weight = context.precision.stored("experts", one.name)
        source, rows = context.precision.linear_input(weight), context.tokens * one.top_k
        if source != context.precision.base:
            yield context.quantise(f"traced.{one.name}.quantise", rows * one.k, source)
        yield GroupedMatmul(
            name=f"traced.{one.name}",
            ranks=context.ranks,
            m=rows,
            k=one.k,
            n=one.n,
            experts=one.experts,
            touched=distinct_experts(one.experts, one.top_k, context.tokens, context.routing.skew_of(None)),
            weight=weight,
            input=source,
            output=context.precision.base,
        )

    def _attention(self, one: TracedOperator, context: LayerContext) -> Iterator[Op]:
        for place, segment in enumerate(context.segments):
            mask = Mask(kind=one.mask, size=one.size) if segment.causal else Mask(kind="full")
            yield Attention(
                name=f"traced.{one.name}",
                ranks=context.ranks,
                batch=segment.batch,
                new=segment.new,
                past=segment.past,
                heads=one.heads,
                kv_heads=one.kv_heads,
                key_dim=one.key_dim,
                value_dim=one.value_dim,
                mask=mask,
                base=context.precision.base,
                kv=context.precision.kv,
                fused=not context.unfused,
                joined=context.one_kernel and place > 0,
            )

    def _product(self, one: TracedOperator, context: LayerContext) -> Iterator[Op]:
        base = context.precision.base
        for segment in context.segments:
            sides: list[Any] = [value(side, segment.batch, segment.new, segment.past) for side in one.sides]
            batch, m, k, n = sides  # which all may follow the load, as no matmul of weights does
            name = f"traced.{one.name}"
            yield Matmul(
                name=name, ranks=context.ranks, m=m, k=k, n=n, batch=batch, weight=base, input=base, output=base
            )

    def _pointwise(self, one: TracedOperator, context: LayerContext) -> Iterator[Op]:
        for seen in _together(context.segments, one.flop, one.read, one.write):
            sizes: list[Any] = [segments_total(terms, seen) for terms in (one.flop, one.read, one.write)]
            flop, read, write = sizes
            least = np.maximum(write, 1.0)  # a kernel that writes nothing at this load still reads
            yield Elementwise(
                name=f"traced.{one.name}",
                ranks=context.ranks,
                fusible=True,
                tokens=least,
                width=1.0,
                base=context.precision.base,
                reads=read / least,
                flops=flop / least,
            )

    def _mixer(self, one: TracedOperator, context: LayerContext) -> Iterator[Op]:
        if self.mixer is not None:
            yield from self.mixer.ops(context)

    def _copy(self, one: TracedOperator, context: LayerContext) -> Iterator[Op]:
        yield Copy(
            name=f"traced.{one.name}",
            ranks=context.ranks,
            fusible=True,
            elements=segments_total(one.write, context.segments),
            source=context.precision.base,
            target=context.precision.kv,
        )


def operators_width(found: Sequence[TracedOperator]) -> int:
    """Elements a token that the operator with most reads and writes."""
    most = 0.0
    for one in found:
        match one.runs:
            case "matmul":
                most = max(most, one.rows.get("bn", 0.0) * one.copies * (one.k + one.n))
            case "experts":
                most = max(most, one.top_k * (one.k + one.n))
            case "pointwise":
                most = max(most, one.read.get("bn", 0.0) + one.write.get("bn", 0.0))
    return int(most)


def layer_groups(layers: Sequence[TracedLayer]) -> list[dict[str, Any]]:
    """Layers one after another as groups of a model file: runs of equal ones, and a pattern where one repeats."""
    kinds: list[TracedLayer] = []
    order = []
    for one in layers:
        if one not in kinds:
            kinds.append(one)
        order.append(kinds.index(one))

    def runs(part: list[int]) -> list[dict[str, Any]]:
        return [{"repeat": len(list(same)), "norms": 0, "mixer": kinds[kind].dump()} for kind, same in groupby(part)]

    for period in range(2, len(order) // 2 + 1):
        whole = len(order) // period * period
        if len(set(order[:period])) > 1 and order[:whole] == order[:period] * (whole // period):
            found = [{"repeat": whole // period, "pattern": runs(order[:period])}]
            return found + runs(order[whole:])
    return runs(order)


LAYER = TracedLayer
