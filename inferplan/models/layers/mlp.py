"""The dense feed-forward: plain (1706.03762 section 3.3) or gated (GLU variants, 2002.05202 eq. 6)."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from inferplan.models.layers.base import Activation, FeedForward, LayerContext, Weight
from inferplan.spec import Field
from inferplan.units import Num
from inferplan.work.ops import Elementwise, Op
from inferplan.work.parallel import Parallelism, require_divides


class MlpLayer(FeedForward):
    """``down(act(gate x) * up x)``, or ``down(act(up x))`` when not gated: 3 or 2 matrices of ``d_model x d_ff``."""

    kind: ClassVar[str] = "mlp"
    summary: ClassVar[str] = "dense feed-forward, plain or gated"

    d_ff: int = Field(ge=1)
    gated: bool = True
    bias: bool = False
    out_bias: bool = False
    """A bias of the way out alone."""
    activation: Activation = "silu"
    """``xielu`` has two parameters (2411.13010)."""
    inner_norm: bool | Literal["layer"] = False
    """An RMS norm of the ``d_ff`` columns before the last matrix (BitNet), or a layer norm (Kosmos-2)."""

    def weights(self, d_model: int) -> Iterator[Weight]:
        for name in ("gate", "up") if self.gated else ("up",):
            yield Weight(name=name, shape=(self.d_ff, d_model), shard="dense", units=self.d_ff)
            if self.bias:
                yield Weight(name=f"{name}.bias", shape=(self.d_ff,), role="base", shard="dense", units=self.d_ff)
        yield Weight(name="down", shape=(d_model, self.d_ff), shard="dense", units=self.d_ff)
        if self.bias or self.out_bias:
            yield Weight(name="down.bias", shape=(d_model,), role="base")
        if self.activation == "xielu":
            yield Weight(name="activation", shape=(2,), role="base")
        if self.inner_norm:
            vectors = 2 if self.inner_norm == "layer" else 1
            yield Weight(name="inner_norm", shape=(vectors * self.d_ff,), role="base", shard="dense", units=self.d_ff)

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.dense_ranks, self.d_ff, "feed-forward columns (d_ff)")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return (
            (3 if self.gated else 2) * self.d_ff / parallel.dense_ranks * (parallel.dp if parallel.spread_dense else 1)
        )

    def ops(self, context: LayerContext) -> Iterator[Op]:
        parallel, rows = context.parallel, None
        if parallel.spread_dense:  # SGLang's default: the tokens of all attention ranks meet, and their sums part again
            rows = context.stage_tokens
            yield from context.collective("ffn.gather", "all_gather", rows * context.d_model, parallel.dense_ranks)
        yield from mlp_ops(context, "ffn", self.d_ff // parallel.dense_ranks, self.gated, rows=rows)
        if self.inner_norm:
            style = "layer" if self.inner_norm == "layer" else "rms"
            yield context.normalise("ffn.inner_norm", self.d_ff // parallel.dense_ranks, rows=rows, style=style)
        if rows is None:
            yield from context.all_reduce("ffn.all_reduce", context.d_model)
        else:
            yield from context.collective("ffn.scatter", "reduce_scatter", rows * context.d_model, parallel.dense_ranks)


def mlp_ops(context: LayerContext, prefix: str, width: int, gated: bool, rows: Num | None = None) -> Iterator[Op]:
    """The matmuls of a feed-forward of ``width`` columns on one rank; gate and up are one matmul, as engines run it.

    rows: tokens it works on, where they are not those of its attention rank.
    """
    up = f"{prefix}.{'gate_up' if gated else 'up'}"
    inner = prefix.partition(".")[2]
    names = tuple(f"{inner}.{name}".lstrip(".") for name in (("gate", "up") if gated else ("up",)))
    yield from context.linear(up, context.d_model, width * (1 + gated), rows, adapted=names)
    yield Elementwise(
        name=f"{prefix}.activation",
        ranks=context.ranks,
        fusible=True,
        tokens=context.tokens if rows is None else rows,
        width=width,
        base=context.precision.base,
        reads=1.0 + gated,
        flops=4.0 + gated,
    )
    yield from context.linear(f"{prefix}.down", width, context.d_model, rows, adapted=(f"{inner}.down".lstrip("."),))


LAYER = MlpLayer
