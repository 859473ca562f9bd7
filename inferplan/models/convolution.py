"""Convolutions over time: what encoders of sound have in place of an embedding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from inferplan.models.layers import LayerContext, Weight
from inferplan.spec import Field, Spec
from inferplan.units import Num
from inferplan.work.ops import Elementwise, Matmul, Op


class Convolution(Spec):
    """A convolution over time, ``[outputs, inputs/groups, taps]``; with one tap and stride 1 a linear layer."""

    inputs: int = Field(ge=1)
    outputs: int = Field(ge=1)
    taps: int = Field(ge=1)
    stride: int = Field(default=1, ge=1)
    groups: int = Field(default=1, ge=1)
    """Equal parts of the channels that do not see each other."""
    bias: bool = True
    bands: int = Field(default=1, ge=1)
    """Outputs for each position of a convolution over time and pitch, whose ``taps`` are those of both."""


def convolution_weights(convolutions: Sequence[Convolution]) -> Iterator[Weight]:
    """The tensors of a stack of convolutions."""
    for index, conv in enumerate(convolutions):
        shape = (conv.outputs, conv.inputs // conv.groups, conv.taps)
        yield Weight(name=f"conv.{index}", shape=shape, role="base")
        if conv.bias:
            yield Weight(name=f"conv.{index}.bias", shape=(conv.outputs,), role="base")


def convolution_ops(convolutions: Sequence[Convolution], context: LayerContext, tokens: Num) -> Iterator[Op]:
    """The operators of a stack whose last convolution puts out ``tokens`` positions: a matmul each, and its activation.

    Each reads as many positions as it puts out, times its stride.
    """
    base = context.precision.base
    for index, conv in enumerate(convolutions):
        rows = tokens * prod(later.stride for later in convolutions[index + 1 :]) * conv.bands
        yield Matmul(
            name=f"conv.{index}",
            ranks=context.ranks,
            m=rows,
            k=conv.inputs // conv.groups * conv.taps,
            n=conv.outputs // conv.groups,
            weight=base,
            input=base,
            output=base,
            batch=conv.groups,
        )
        yield Elementwise(
            name=f"conv.{index}.activation",
            ranks=context.ranks,
            fusible=True,
            tokens=rows,
            width=conv.outputs,
            base=base,
            flops=4.0,
        )
