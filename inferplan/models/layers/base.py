"""What every layer kind answers: which tensors it has, what it caches, which operators it runs."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from math import ceil, prod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np

from inferplan.affine import affine, dense
from inferplan.spec import Field, Spec, model_validator
from inferplan.units import Num
from inferplan.validators import BeforeValidator
from inferplan.work.adapters import Adapters
from inferplan.work.exchange import ExchangeRules
from inferplan.work.formats import Format, Precision, find_format
from inferplan.work.ops import Collective, Conv, Copy, Elementwise, GroupedMatmul, Mask, Matmul, Norm, Op
from inferplan.work.parallel import Parallelism, require_divides
from inferplan.work.routing import UNIFORM, Routing
from inferplan.work.step import Segment

Role = Literal["weights", "experts", "embedding", "head", "base"]
Shard = Literal["none", "tp", "dense", "experts"]
Activation = Literal["silu", "gelu", "relu", "relu2", "swiglu_limited", "situ", "xielu"]


_TENSORS = {
    "attn.qkv": "q",
    "attn.out": "o",
    "attn.kv": "k",
    "attn.positions": "position_key",
    "attn.shared_positions": "q",
    "cross.q": "cross.q",
    "cross.kv": "cross.k",
    "cross.out": "cross.o",
    "attn.qkv_a": "q_a",
    "ffn.gate_up": "gate",
    "ffn.shared.gate_up": "shared.gate",
    "ffn.latent_in": "latent.in",
    "ffn.latent_out": "latent.out",
    "mamba.in_proj": "in.zxdt",
    "gdn.in_qkvz": "in.vz",
    "gdn.in_ba": "in.ba",
    "kda.in_qkv": "qkv",
    "kda.in_b": "b",
    "kda.gates": "gates",
    "kda.decay_a": "gates_a",
    "kda.decay_b": "gates_b",
    "kda.output_a": "gates_a",
    "kda.output_b": "gates_b",
    "linear": "linear",
    "block.ffn.gate_up": "gate",
    "block.ffn.down": "down",
    **{f"rwkv7.{name}_{half}": f"low_{half}" for name in ("decay", "rate", "gate", "residual") for half in "ab"},
    "attn.compress.kv_gate": "compress.kv",
    "attn.index.kv_gate": "index.kv",
    "hyper.mix": "hyper.mix",
    "hyper_head.mix": "hyper_head.mix",
    "altup.predict_router": "router",
    "altup.predict_coefficients": "prediction",
    "altup.correct_router": "router",
    "altup.correct_coefficients": "correction",
}
_TENSORS |= {f"block.{name}_adapter_{half}": f"adapter.{name}" for name in ("q", "k", "v", "ffn") for half in "ab"}
"""The tensor that stands for an operator that multiplies several, or whose dotted name does not end with a tensor's."""


def tensor_of(operator: str) -> str:
    """The name of the tensor that the matmul of this name multiplies."""
    return _TENSORS.get(operator, operator.partition(".")[2])


_RANKS = {"tp": "tp", "dense": "dense_ranks", "experts": "expert_ranks"}
"""What of a division divides tensors of a kind."""


@dataclass(frozen=True, kw_only=True)
class Weight:
    """One parameter tensor.

    shape: its dimensions. role: which format keeps it. shard: what divides it. units: the indivisible pieces along the
    divided dimension (heads, KV heads, feed-forward columns, vocabulary rows, experts); with fewer units than ranks a
    unit is copied. active: the share of it that one token reads (experts: top_k / experts).
    """

    name: str
    shape: tuple[int, ...]
    role: Role = "weights"
    shard: Shard = "none"
    units: int = 1
    active: float = 1.0

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def per_rank(self, parallel: Parallelism) -> float:
        """Elements that one rank keeps."""
        ranks = 1 if self.shard == "none" else getattr(parallel, _RANKS[self.shard])
        if ranks == 1:
            return float(self.elements)
        if self.shard == "experts":
            return self.elements / self.units * parallel.expert_slots(self.units) / parallel.expert_tp
        return self.elements / self.units * max(1, ceil(self.units / ranks))


@dataclass(frozen=True, kw_only=True)
class Cache:
    """What a layer keeps for each sequence.

    per_token: elements for each cached position, all heads; of every ``rate`` positions together where one entry stands
    for so many. mask: which positions stay. units: KV heads over which
    tensor parallelism divides it (1: copied on every rank). state: elements of constant size, as transformers keeps
    them. state_bits: their width, ``None`` for the KV format. conv: those of them that are the last inputs of a short
    convolution, kept in the base format. spare: those of ``conv`` that the next token does not need: transformers keeps
    as many inputs as the filter has taps, vLLM one fewer. apart: those of ``per_token`` that are kept in a format of
    their own, ``apart_format``, whatever the KV format.
    """

    per_token: int = 0
    rate: int = 1
    mask: Mask = Mask()
    units: int = 1
    state: int = 0
    state_units: int = 1
    state_bits: int | None = None
    conv: int = 0
    spare: int = 0
    apart: int = 0
    apart_format: Format | None = None

    def token_bytes(self, width: float) -> float:
        """Bytes of one cached position with a KV format of ``width`` bytes an element."""
        own = 0.0 if self.apart_format is None else self.apart * self.apart_format.width
        return ((self.per_token - self.apart) * width + own) / self.rate

    def state_bytes(self, base: Format, kv: Format, tp: int = 1) -> float:
        """Bytes of constant size that one of ``tp`` ranks needs for a sequence."""
        recurrent = (self.state - self.conv) * (kv.width if self.state_bits is None else self.state_bits / 8)
        return (recurrent + (self.conv - self.spare) * base.width) * self.copies(self.state_units, tp)

    def copies(self, units: int, tp: int) -> float:
        """The share of the whole that one of ``tp`` ranks keeps."""
        return max(1, ceil(units / tp)) / units


def joint_cache(caches: Sequence[Cache]) -> Cache:
    """Caches of which at most one grows with tokens, and at most one keeps a state, as one."""
    tokens = next((c for c in caches if c.per_token), Cache())
    state = next((c for c in caches if c.state), Cache())
    return Cache(
        per_token=tokens.per_token,
        mask=tokens.mask,
        units=tokens.units,
        state=state.state,
        state_units=state.state_units,
        state_bits=state.state_bits,
        conv=state.conv,
        spare=state.spare,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerContext:
    """What a layer needs to write down its operators: widths, formats, division, and the segments of one rank.

    segments: those of one attention rank (data parallelism has divided the batch), the fullest. mean_segments: those of
    the mean rank where ranks differ; experts work on the tokens of all ranks. unfused: attention kernels that send
    scores through memory. routing: how tokens spread over experts. masked: sparse prefills may attend to everything
    under a mask of what was chosen. dense_short: those that would be chosen whole run dense and are not scored. peaks:
    the arithmetic that the device has, ``None`` for all. time: what one run of an operator takes, by which a layer
    chooses between forms; its FLOP where no device is known. alternatives: operators that other loads of this kind
    would run are written down too, with a count of 0, so that the list is the same for all.
    exchange: how tokens travel to their experts. one_kernel: attention of all segments is one kernel. norms_apart: a
    norm over all heads has kernels of its own for queries and for keys
    (:class:`inferplan.devices.engine.EngineVersion`). keeps: keys and values are written for later steps. own_rows:
    rows that are multiplied, where they are not the new tokens of the segments. adapters: LoRA beside the matrices.
    """

    d_model: int
    precision: Precision
    parallel: Parallelism
    segments: tuple[Segment, ...]
    mean_segments: tuple[Segment, ...] | None = None
    norm: str = "rms"
    unfused: bool = False
    routing: Routing = UNIFORM
    masked: bool = False
    dense_short: bool = True
    peaks: Container[str] | None = None
    time: Callable[[Op], Num] = lambda op: op.work().flop
    alternatives: bool = False
    exchange: ExchangeRules = ExchangeRules.default()
    one_kernel: bool = False
    norms_apart: bool = False
    keeps: bool = True
    own_rows: Num | None = None
    adapters: Adapters | None = None

    def computes(self, math: str) -> bool:
        """Whether the device has this arithmetic."""
        return self.peaks is None or math in self.peaks

    def runs(self, count: Num) -> Iterator[Num]:
        """``count`` where something runs at all; nothing where it is 0, unless alternatives are asked for."""
        if self.alternatives or np.any(count):
            yield count

    def present(self, rows: Num, possible: bool) -> Iterator[tuple[Num, Num]]:
        """Rows of an operator and how often it runs: one row, never, where there are none; nothing if not possible."""
        if not possible:
            return
        if np.ndim(rows) == 0:
            pairs: tuple[Num, Num] = (rows, 1.0) if rows else (1.0, 0.0)
        elif np.all(rows):
            pairs = (rows, 1.0)
        else:
            pairs = (np.where(rows, rows, 1.0), np.where(rows, 1.0, 0.0))
        for count in self.runs(pairs[1]):
            yield pairs[0], count

    def rows(self, segment: Segment) -> Num:
        """Rows of a segment that one rank multiplies: context parallelism splits a prefill's queries."""
        return segment.tokens / (self.parallel.cp if segment.wide else 1)

    @cached_property
    def tokens(self) -> Num:
        """Rows that one rank multiplies in this step."""
        if self.own_rows is not None:
            return affine(self.own_rows)
        return affine(sum((self.rows(segment) for segment in self.segments), start=0.0))

    @cached_property
    def stage_tokens(self) -> Num:
        """Rows of all attention ranks of the stage: what its experts work on."""
        if self.mean_segments is None:
            return self.parallel.dp * self.tokens
        return self.parallel.dp * affine(sum((self.rows(segment) for segment in self.mean_segments), start=0.0))

    @cached_property
    def mean_share(self) -> Num:
        """Rows of the mean attention rank over those of this one."""
        if self.mean_segments is None:
            return 1.0
        share: Num = dense(self.stage_tokens) / (self.parallel.dp * dense(self.tokens))
        return share

    @property
    def ranks(self) -> int:
        return self.parallel.stage_ranks

    def state_format(self, bits: int | None) -> Format:
        """The format of a recurrent state of ``bits``; the KV format where none are stated."""
        return self.precision.kv if bits is None else find_format({16: "bf16", 32: "fp32"}[bits])

    def linear(
        self,
        name: str,
        k: int,
        n: int,
        rows: Num | None = None,
        role: Role = "weights",
        adapted: tuple[str, ...] = (),
    ) -> Iterator[Op]:
        """A linear layer ``[rows, k] -> [rows, n]``, and the quantisation of its input where its format asks for it.

        adapted: the matrices side by side in it that an adapter may change, by name.
        """
        weight = self.precision.stored(role, tensor_of(name))
        m = self.tokens if rows is None else rows
        source = self.precision.linear_input(weight)
        if source != self.precision.base:
            yield self.quantise(f"{name}.quantise", m * k, source)
        yield Matmul(
            name=name, ranks=self.ranks, m=m, k=k, n=n, weight=weight, input=source, output=self.precision.base
        )
        if self.adapters is not None and self.adapters.modules.intersection(adapted):
            yield from self._adapt(name, (k, n), m, len(adapted))

    def _adapt(self, name: str, sizes: tuple[int, int], rows: Num, slices: int) -> Iterator[Op]:
        """The two matmuls of each row with its own adapter, of ``slices`` matrices at once (vLLM's ``lora_shrink`` and
        ``lora_expand``, ``lora/punica_wrapper/punica_gpu.py``)."""
        adapters, (k, n) = self.adapters, sizes
        assert adapters is not None
        for way, inputs, outputs in (("shrink", k, slices * adapters.rank), ("expand", adapters.rank, n)):
            yield GroupedMatmul(
                name=f"{name}.lora_{way}",
                ranks=self.ranks,
                m=rows,
                k=inputs,
                n=outputs,
                experts=adapters.slots,
                touched=self._touched,
                weight=adapters.format,
                input=self.precision.base,
                output=self.precision.base,
                adapter="shrink" if way == "shrink" else "expand",
                slices=slices if way == "expand" else 1,
            )

    @cached_property
    def _touched(self) -> Num:
        """Different adapters of the step: no more than it has sequences."""
        assert self.adapters is not None
        return self.adapters.touched(sum((dense(segment.batch) for segment in self.segments), start=0.0))

    def quantise(self, name: str, elements: Num, target: Format) -> Op:
        return Copy(
            name=name, ranks=self.ranks, fusible=True, elements=elements, source=self.precision.base, target=target
        )

    def normalise(self, name: str, width: int, rows: Num | None = None, style: str | None = None) -> Op:
        return Norm(
            name=name,
            ranks=self.ranks,
            fusible=True,
            tokens=self.tokens if rows is None else rows,
            width=width,
            base=self.precision.base,
            style=style or self.norm,
        )

    def pointwise(self, name: str, width: float, reads: float = 1.0, flops: float = 1.0) -> Elementwise:
        """An epilogue over every token: ``width`` outputs of ``reads`` inputs and ``flops`` FLOP each."""
        return Elementwise(
            name=name,
            ranks=self.ranks,
            fusible=True,
            tokens=self.tokens,
            width=width,
            base=self.precision.base,
            reads=reads,
            flops=flops,
        )

    def convolve(self, name: str, channels: int, taps: int) -> Iterator[Op]:
        """A short causal convolution over ``channels``, segment by segment."""
        for segment in self.segments:
            yield Conv(
                name=name,
                ranks=self.ranks,
                batch=segment.batch,
                new=segment.new,
                channels=channels,
                taps=taps,
                base=self.precision.base,
            )

    def collective(self, name: str, pattern: str, elements: Num, group: int, span: int | None = None) -> Iterator[Op]:
        """A collective in the base format; nothing when the group is one rank."""
        if group > 1:
            yield Collective(
                name=name,
                ranks=self.ranks,
                pattern=pattern,
                elements=elements,
                group=group,
                span=span or group,
                format=self.precision.base,
            )

    def all_reduce(self, name: str, width: int) -> Iterator[Op]:
        """The sum of partial outputs over the tensor-parallel ranks."""
        if width not in self._messages:
            self._messages[width] = self.tokens * width
        return self.collective(name, "all_reduce", self._messages[width], self.parallel.tp)

    @cached_property
    def _messages(self) -> dict[int, Num]:
        """Elements of every token by width: reductions of the same message are then the same run."""
        return {}


class LayerSpec(Spec):
    """A mixer or a feed-forward. Subclasses are bound to ``LAYER`` in a module named after their ``kind``."""

    kind: ClassVar[str]
    summary: ClassVar[str] = ""
    residual: ClassVar[bool] = True
    """Whether its output is added to what it read, by an operator that it does not write down itself."""

    @property
    def described(self) -> LayerSpec:
        """The described kind whose kernels read what it keeps: itself, or the one inside a traced layer."""
        return self

    @property
    def residuals_kept(self) -> int:
        """Residuals of the model width that it leaves for the layers after it, beside the stream."""
        return 0

    def dump(self) -> dict[str, object]:
        """The mapping a YAML would hold: the kind and every field that is not its default."""
        return {"kind": self.kind, **self.model_dump(exclude_defaults=True)}

    def weights(self, d_model: int) -> Iterator[Weight]:
        """Every parameter tensor of one such layer."""
        raise NotImplementedError

    def cache(self) -> Cache:
        """What it keeps for a sequence; nothing unless said otherwise."""
        return Cache()

    def caches(self) -> list[Cache]:
        """The same where it keeps several that differ in what stays of them."""
        return [self.cache()]

    def ops(self, context: LayerContext) -> Iterator[Op]:
        """The operators that one rank runs."""
        raise NotImplementedError

    def check(self, parallel: Parallelism) -> None:
        """Raise ``IndivisibleError`` when the division does not work."""

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        """Base-format elements a token that are alive at once inside the layer on one rank, beyond the residual."""
        raise NotImplementedError


class Mixer(LayerSpec):
    """Mixes positions: attention and its relatives."""


def kinds() -> list[str]:
    """Every kind there is a file for."""
    return sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem not in ("__init__", "base"))


def parse_layer(value: Any) -> LayerSpec:
    """A layer spec from its mapping, found by its ``kind``. Raises ``ValueError`` for a kind that has no file."""
    if isinstance(value, LayerSpec):
        return value
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in kinds():
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(kinds())}")
    layer_class: type[LayerSpec] = import_module(f"inferplan.models.layers.{kind}").LAYER
    return layer_class.model_validate({k: v for k, v in value.items() if k != "kind"})


AnyMixer = Annotated[Mixer, BeforeValidator(parse_layer)]


class SharedHeads(Mixer):
    """A mixer whose ``heads`` query heads share ``kv_heads`` keys and values, and how ranks divide them."""

    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)

    @model_validator(mode="after")
    def _in_groups(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} query heads are not a multiple of {self.kv_heads} kv_heads")
        return self

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.heads, "query heads")
        if parallel.tp <= self.kv_heads:
            require_divides("tp", parallel.tp, self.kv_heads, "KV heads")
        else:
            require_divides("tp", self.kv_heads, parallel.tp, "ranks (KV heads are copied evenly or not at all)")

    def rank_heads(self, parallel: Parallelism) -> tuple[int, int]:
        """Query heads and KV heads on one rank: KV heads are copied when there are more ranks than heads."""
        return self.heads // parallel.tp, max(1, self.kv_heads // parallel.tp)


class FeedForward(LayerSpec):
    """Works on each position alone."""
