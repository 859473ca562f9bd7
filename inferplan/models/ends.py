"""What a model has around its layers beside embedding and output matrix: tables of token types, poolers, other heads.

A model that encodes (BERT, 1810.04805; sentence embeddings, 1908.10084) generates nothing: one pass over a request is
all of its work, so no keys and values are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Annotated, Literal

from inferplan.models.convolution import Convolution, convolution_weights
from inferplan.models.layers import LayerContext, LayerSpec, Weight, parse_layer
from inferplan.spec import Field, Spec
from inferplan.units import Num
from inferplan.validators import BeforeValidator
from inferplan.work.ops import Elementwise, Op


class HeadLayer(Spec):
    """A linear layer of a head, ``[rows, inputs] -> [rows, outputs]``, and the norm that stands before or after it."""

    inputs: int = Field(ge=1)
    outputs: int = Field(ge=1)
    bias: bool = True
    norm: int = Field(default=0, ge=0)
    """Width of its norm; 0 where it has none."""

    def weights(self, name: str, vectors: int) -> Iterator[Weight]:
        """Its tensors. vectors: those of a norm."""
        yield Weight(name=name, shape=(self.outputs, self.inputs), role="base")
        if self.bias:
            yield Weight(name=f"{name}.bias", shape=(self.outputs,), role="base")
        if self.norm:
            yield Weight(name=f"{name}.norm", shape=(vectors, self.norm), role="base")


class OutputHead(Spec):
    """A head over the last hidden states: linear layers, and the vocabulary where it predicts tokens.

    rows: what it works on, every token or one of each sequence. vocabulary: it ends in the logits of every row, by the
    embedding table where the model is ``tied``.
    """

    name: str
    rows: Literal["token", "sequence"] = "sequence"
    layers: list[HeadLayer] = []
    vocabulary: bool = False
    parts: int = Field(default=1, ge=1)
    """Rows that each of its outputs is parted into ahead of the vocabulary, as wide as the model (SEW)."""


Part = Annotated[LayerSpec, BeforeValidator(parse_layer)]


class Ends(Spec):
    """The parts around the layers.

    tables: further tables as wide as the embedding that are added to it, rows of each (positions, token types).
    projection_bias: the projection of a narrower embedding has a bias. inputs: linear layers between the tables and
    the layers. tensors: what else stands outside the layers, by
    shape (a table of relative positions): counted and kept. heads: of a model that encodes nothing where its last
    hidden states are what is asked for; of one that generates, what stands before the matrix of its vocabulary. ahead,
    behind: what a trace recorded before the first layer and after the last.
    """

    convolutions: list[Convolution] = []
    """What reads sound, in place of an embedding."""
    tables: dict[str, int] = {}
    projection_bias: bool = False
    inputs: list[HeadLayer] = []
    tensors: dict[str, list[int]] = {}
    heads: list[OutputHead] = []
    ahead: Part | None = None
    behind: Part | None = None

    @property
    def recorded(self) -> list[str]:
        """The fields that a trace filled."""
        return [name for name in ("ahead", "behind") if getattr(self, name) is not None]

    @property
    def vocabulary(self) -> bool:
        """Whether a head gives logits over the vocabulary."""
        return any(head.vocabulary for head in self.heads)

    @property
    def parts(self) -> int:
        """Rows of the vocabulary's matmul for each position of the layers."""
        return prod(head.parts for head in self.heads)

    def input_weights(self, width: int, projected: int | None) -> Iterator[Weight]:
        """Tensors before the layers beside the usual ones. width: columns of a table; projected: where they go to."""
        yield from convolution_weights(self.convolutions)
        for name, rows in self.tables.items():
            yield Weight(name=name, shape=(rows, width), role="embedding")
        if projected is not None and self.projection_bias:
            yield Weight(name="project_in.bias", shape=(projected,), role="base")
        for index, layer in enumerate(self.inputs):
            yield from layer.weights(f"input.{index}", 0)
        for name, shape in self.tensors.items():
            yield Weight(name=name, shape=tuple(shape), role="base")
        if self.ahead is not None:
            yield from self.ahead.weights(width)

    def output_weights(self, vectors: int) -> Iterator[Weight]:
        """Tensors of the heads, without the vocabulary's. vectors: those of a norm."""
        if self.behind is not None:
            yield from self.behind.weights(0)
        for head in self.heads:
            for index, layer in enumerate(head.layers):
                yield from layer.weights(f"{head.name}.{index}", vectors)

    def input_ops(self, context: LayerContext) -> Iterator[Op]:
        """The operators between the tables and the layers."""
        if self.ahead is not None:
            yield from self.ahead.ops(context)
        for index, layer in enumerate(self.inputs):
            yield from context.linear(f"input.{index}", layer.inputs, layer.outputs, role="base")

    def ops(self, context: LayerContext, sequences: Num, tokens: Num) -> Iterator[Op]:
        """The operators of the heads, the vocabulary's matmul aside."""
        if self.behind is not None:
            yield from self.behind.ops(context)
        for head in self.heads:
            rows = sequences if head.rows == "sequence" else tokens
            for index, layer in enumerate(head.layers):
                name = f"head.{head.name}.{index}"
                yield from context.linear(name, layer.inputs, layer.outputs, rows, role="base")
                yield _activation(f"{name}.activation", context, rows, layer.outputs)
                if layer.norm:
                    yield context.normalise(f"{name}.norm", layer.norm, rows=rows)


def _activation(name: str, context: LayerContext, rows: Num, width: int) -> Op:
    base = context.precision.base
    return Elementwise(name=name, ranks=context.ranks, fusible=True, tokens=rows, width=width, base=base, flops=4.0)
