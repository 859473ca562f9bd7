"""RWKV-7's time mixing (2503.14456, section 4): a delta rule with a decay for each channel and low-rank gates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.base import Cache, LayerContext, Mixer, Weight
from inferplan.spec import Field
from inferplan.work.ops import Op, Scan
from inferplan.work.parallel import Parallelism, require_divides


class Rwkv7Layer(Mixer):
    """``S_t = S_{t-1} (diag(w_t) - k'^T (a_t * k')) + v_t^T k_t``, ``o_t = S_t r_t^T`` for each of ``heads``.

    Decay, in-context rate, value residual and output gate are low-rank maps of the mixed input. A sequence keeps
    ``heads*head_dim^2`` elements and the last input.
    """

    kind: ClassVar[str] = "rwkv7"
    summary: ClassVar[str] = "RWKV-7 time mixing"

    heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    decay_rank: int = Field(ge=1)
    rate_rank: int = Field(ge=1)
    """Of the in-context learning rate a."""
    gate_rank: int = Field(ge=1)
    value_rank: int | None = Field(default=None, ge=1)
    """Of the residual of the first layer's values; ``None`` in that layer."""
    width: int = Field(ge=1)
    """Model width: the last input that is kept for the shift."""
    state_bits: int | None = 32

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def ranks(self) -> dict[str, int]:
        """The low-rank maps and their ranks."""
        found = {"decay": self.decay_rank, "rate": self.rate_rank, "gate": self.gate_rank}
        return found | ({} if self.value_rank is None else {"residual": self.value_rank})

    def weights(self, d_model: int) -> Iterator[Weight]:
        heads, inner, ranks = self.heads, self.inner, sum(self.ranks.values())
        yield Weight(name="mix", shape=(6, d_model), role="base")
        vectors = 3 + 2 + len(self.ranks) - 1  # k', k and r; the norm's two; every map's offset but the gate's
        yield Weight(name="vectors", shape=(vectors, inner), role="base", shard="tp", units=heads)
        for name in ("receptance", "key", "value"):
            yield Weight(name=name, shape=(inner, d_model), shard="tp", units=heads)
        yield Weight(name="low_a", shape=(ranks, d_model))
        yield Weight(name="low_b", shape=(inner, ranks), shard="tp", units=heads)
        yield Weight(name="output", shape=(d_model, inner), shard="tp", units=heads)

    def cache(self) -> Cache:
        state = self.inner * self.head_dim + self.width
        return Cache(state=state, state_units=self.heads, state_bits=self.state_bits, conv=self.width)

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.heads, "heads of the recurrence")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return 6 * d_model + 8 * self.inner / parallel.tp + sum(self.ranks.values())

    def ops(self, context: LayerContext) -> Iterator[Op]:
        heads, width, d_model = self.heads // context.parallel.tp, self.head_dim, context.d_model
        inner = heads * width
        yield context.pointwise("rwkv7.shift", 6 * d_model, reads=2.0, flops=3.0)
        for name in ("receptance", "key", "value"):
            yield from context.linear(f"rwkv7.{name}", d_model, inner)
        for name, rank in self.ranks.items():
            yield from context.linear(f"rwkv7.{name}_a", d_model, rank)
            yield from context.linear(f"rwkv7.{name}_b", rank, inner)
        yield context.normalise("rwkv7.key_norm", width, rows=context.tokens * heads, style="plain")
        for segment in context.segments:
            yield Scan(
                name="rwkv7.scan",
                ranks=context.ranks,
                batch=segment.batch,
                new=segment.new,
                state=inner * width,
                flops=9.0 * inner * width,
                inputs=6 * inner,
                outputs=inner,
                base=context.precision.base,
                state_format=context.state_format(self.state_bits),
            )
        yield context.normalise("rwkv7.norm", width, rows=context.tokens * heads, style="layer")
        yield context.pointwise("rwkv7.gate", inner, reads=5.0, flops=6.0)
        yield from context.linear("rwkv7.output", inner, d_model)
        yield from context.all_reduce("rwkv7.all_reduce", d_model)


LAYER = Rwkv7Layer
