"""One layer as operators: its norms, its parts, and what is added to the residual stream."""

from __future__ import annotations

from collections.abc import Iterator

from inferplan.models.layers import LayerContext
from inferplan.models.spec import LayerGroup
from inferplan.work.ops import Collective, Elementwise, Op


def layer_ops(layer: LayerGroup, context: LayerContext) -> Iterator[Op]:
    """The operators of one layer on one rank."""
    if layer.norm_count:
        yield context.normalise("norm", context.d_model).repeated(layer.norm_count)
    for part in layer.parts:
        shared_reduce = layer.parallel and part is layer.mixer and layer.ffn is not None
        for op in part.ops(context):
            if not (shared_reduce and isinstance(op, Collective) and op.name == "attn.all_reduce"):
                yield op
        if part.residual:
            yield add_op("residual", context, context.d_model)


def add_op(name: str, context: LayerContext, width: int) -> Op:
    """Two tensors of so many columns are added."""
    return Elementwise(
        name=name,
        ranks=context.ranks,
        fusible=True,
        tokens=context.tokens,
        width=width,
        base=context.precision.base,
        reads=2.0,
    )
