"""Matrix LSTM of xLSTM (2405.04517 eq. 19-27), in the block of xLSTM 7B (2503.13427 section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from pydantic import Field

from inferplan.models.layers.base import Cache, LayerContext, Mixer, Weight
from inferplan.units import Num
from inferplan.work.ops import Op, Scan
from inferplan.work.parallel import Parallelism, require_divides
from inferplan.work.step import Segment


class MlstmLayer(Mixer):
    """``C_t = f C_{t-1} + i v_t k_t^T``, ``n_t = f n_{t-1} + i k_t``, ``h_t = C_t q_t / max(|n_t q_t|, 1)`` a head.

    A sequence keeps ``heads*(key_dim*value_dim + key_dim + 1)`` elements: the matrix, its norm and the gates' maximum.
    """

    kind: ClassVar[str] = "mlstm"
    summary: ClassVar[str] = "matrix LSTM with exponential gates"

    heads: int = Field(ge=1)
    key_dim: int = Field(ge=1)
    value_dim: int = Field(ge=1)
    chunk: int = Field(default=64, ge=1)
    """Tokens that the prefill algorithm multiplies at once."""
    state_bits: int | None = 32

    @property
    def keys(self) -> int:
        return self.heads * self.key_dim

    @property
    def values(self) -> int:
        return self.heads * self.value_dim

    def weights(self, d_model: int) -> Iterator[Weight]:
        heads, wide = self.heads, 2 * self.keys + 2 * self.values
        yield Weight(name="qkvo", shape=(wide, d_model), shard="tp", units=heads)
        yield Weight(name="gates", shape=(2 * heads, d_model), role="base", shard="tp", units=heads)
        yield Weight(name="gates.bias", shape=(2 * heads,), role="base", shard="tp", units=heads)
        yield Weight(name="norm", shape=(self.values,), role="base", shard="tp", units=heads)
        yield Weight(name="out", shape=(d_model, self.values), shard="tp", units=heads)

    def cache(self) -> Cache:
        state = self.heads * (self.key_dim * self.value_dim + self.key_dim + 1)
        return Cache(state=state, state_units=self.heads, state_bits=self.state_bits)

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.heads, "matrix-LSTM heads")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return (2 * self.keys + 3 * self.values) / parallel.tp

    def ops(self, context: LayerContext) -> Iterator[Op]:
        tp = context.parallel.tp
        keys, values, heads = self.keys // tp, self.values // tp, self.heads // tp
        yield from context.linear("mlstm.qkvo", context.d_model, 2 * keys + 2 * values)
        yield from context.linear("mlstm.gates", context.d_model, 2 * heads, role="base")
        for segment in context.segments:
            yield Scan(
                name="mlstm.scan",
                ranks=context.ranks,
                batch=segment.batch,
                new=segment.new,
                state=heads * (self.key_dim * self.value_dim + self.key_dim + 1),
                flops=self.scan_flops(segment, heads),
                inputs=2 * keys + values + 2 * heads,
                outputs=values,
                parameters=0,
                base=context.precision.base,
                state_format=context.state_format(self.state_bits),
                tensor=segment.wide,
            )
        yield context.normalise("mlstm.norm", self.value_dim, rows=context.tokens * heads, style="rms")
        yield context.pointwise("mlstm.gate", values, reads=2.0, flops=5.0)
        yield from context.linear("mlstm.out", values, context.d_model)
        yield from context.all_reduce("mlstm.all_reduce", context.d_model)

    def scan_flops(self, segment: Segment, heads: int) -> Num:
        """FLOP a token: the recurrence, or chunks of C tokens (2503.14376 section 3).

        One by one ``5KV`` for the matrix (decay, outer product, sum, product with q), ``5K`` for its norm (decay, gated
        key, sum, product with q), ``V`` for the division. In chunks scores cost ``2CK``, their use ``2CV``; the state
        is read and added to for ``2KV`` each, its norm for ``2K`` each.
        """
        key, value = self.key_dim, self.value_dim
        if not segment.wide:
            return float(heads * (5 * key * value + 5 * key + value))
        c = np.minimum(segment.new, self.chunk)
        return heads * (2.0 * c * key + 2.0 * c * value + 4.0 * key * value + 4.0 * key)


LAYER = MlstmLayer
