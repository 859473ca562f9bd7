"""A model: its width, its vocabulary and its layers, as a YAML in ``configs/models`` states them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import isnan
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt

from inferplan.errors import UsageError
from inferplan.features import those
from inferplan.models.convolution import Convolution, convolution_weights
from inferplan.models.ends import Ends
from inferplan.models.layers import AnyMixer, Cache, FeedForward, LayerContext, LayerSpec, Weight, parse_layer
from inferplan.models.layers.attention_residual import mix, mixture_weights
from inferplan.models.layers.hyper_connection import join_ops, join_weights
from inferplan.models.media import MediaRule
from inferplan.models.provenance import ASSUMED, MadeFrom
from inferplan.spec import Field, Spec, field_validator, model_validator
from inferplan.units import Num
from inferplan.validators import BeforeValidator
from inferplan.work.formats import FORMATS, find_format
from inferplan.work.ops import Gather, Op
from inferplan.work.parallel import Parallelism, require_divides, split_layers

NormStyle = Literal["rms", "layer", "layer_plain", "plain"]
"""RMSNorm; LayerNorm with weight and bias; with weight only; without parameters."""
AnyFeedForward = Annotated[FeedForward, BeforeValidator(parse_layer)]
AnyPart = Annotated[LayerSpec, BeforeValidator(parse_layer)]
NORM_VECTORS = {"rms": 1, "layer": 2, "layer_plain": 1, "plain": 0}

MOST_LAYERS = 10_000
"""More layers than this are a mistake in a file, not a model."""


class LayerGroup(Spec):
    """``repeat`` identical layers, or a ``pattern`` of groups repeated."""

    repeat: int = Field(default=1, ge=1, le=MOST_LAYERS)
    mixer: AnyMixer | None = None
    ffn: AnyFeedForward | None = None
    extras: list[AnyPart] = []
    """Further parts: AltUp, LAuReL, per-layer inputs, a shared block, experts beside a dense feed-forward."""
    norms: int | None = Field(default=None, ge=0)
    """Norms over the model width in one layer; by default one before each part."""
    norm_scales: int = Field(default=0, ge=0)
    """Those of its norms that have a scale where the model's norms have none (Muse Spark: three of four)."""
    parallel: bool = False
    """Mixer and feed-forward read the same input, and their outputs share one all-reduce (GPT-J, PaLM, Falcon)."""
    shared: bool = False
    """Its parameters are those of an earlier identical layer (Zamba2): run again, counted once."""
    pattern: list["LayerGroup"] = []

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.pattern and self.parts:
            raise ValueError("a group has either a pattern or a mixer and ffn, not both")
        if not self.pattern and not self.parts:
            raise ValueError("a layer needs a mixer, an ffn or both")
        return self

    @property
    def depth(self) -> int:
        """How many layers it stands for."""
        return self.repeat * (sum(group.depth for group in self.pattern) if self.pattern else 1)

    @property
    def parts(self) -> list[LayerSpec]:
        return [part for part in (self.mixer, self.ffn, *self.extras) if part is not None]

    def caches(self) -> list[Cache]:
        """What its parts keep for a sequence of a model that generates."""
        return [cache for part in self.parts for cache in part.caches() if cache.per_token or cache.state]

    @property
    def norm_count(self) -> int:
        return len(self.parts) - len(self.extras) if self.norms is None else self.norms

    def weights(self, d_model: int, norm: NormStyle) -> Iterator[Weight]:
        """Every parameter tensor of one such layer."""
        for part in self.parts:
            yield from part.weights(d_model)
        if self.norm_count:
            yield Weight(name="norm", shape=(self.norm_count, NORM_VECTORS[norm], d_model), role="base")
        if self.norm_scales:
            yield Weight(name="norm.scale", shape=(self.norm_scales, d_model), role="base")

    def sequence(self) -> Iterator["LayerGroup"]:
        """Its layers one after another, patterns unrolled."""
        one = self if self.repeat == 1 else self.model_copy(update={"repeat": 1})
        for _ in range(self.repeat):
            if self.pattern:
                for group in self.pattern:
                    yield from group.sequence()
            else:
                yield one


class Published(Spec):
    """What the vendor says of the model; one test checks every file against it."""

    source: str
    parameters: float | None = None
    """Total parameters as printed."""
    active: float | None = None
    active_counts: Literal["all", "without_embedding", "without_embedding_and_head"] = "all"
    """Which of the three meanings of "active" the vendor uses (docs/model-coverage.md)."""
    tolerance: float = 0.01
    """The rounding of the printed figures."""
    includes: list[Literal["towers", "mtp"]] = []
    """What the printed total counts beside the model: every element of the released files, say."""


class StoredAs(Spec):
    """Tensors of the layers, by the names that ``weights()`` gives them, whose format is not that of their role."""

    tensors: list[str]
    format: str
    layers: list[int] = []
    """The layers it holds for, counted from 0; empty for all."""


class Native(Spec):
    """The formats that the released checkpoint stores, where they are not the base format."""

    base: Literal["fp32", "fp16", "bf16"] = "bf16"
    weights: str | None = None
    experts: str | None = None
    activations: str | None = None
    kv: str | None = None
    embedding: str | None = None
    head: str | None = None
    exceptions: list[StoredAs] = []
    """Tensors left wider, or narrower, than their role: a checkpoint's ignore list."""
    packed: bool = False
    """Some tensors are counted as the bytes that they are packed in: no other format can be asked for."""

    @field_validator("weights", "experts", "activations", "kv", "embedding", "head")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None and value not in FORMATS:
            raise ValueError(f"no number format named {value!r}; known: {', '.join(FORMATS)}")
        return value

    def stored(self, weight: Weight, layer: int | None = None) -> str:
        """The format that a tensor is stored in; ``layer`` is its layer, ``None`` outside the layers."""
        for entry in self.exceptions:
            if weight.name in entry.tensors and (not entry.layers or layer in entry.layers):
                return entry.format
        experts = self.experts or self.weights
        roles = {"weights": self.weights, "experts": experts, "embedding": self.embedding, "head": self.head}
        return roles.get(weight.role) or self.base


class Generation(Spec):
    """How tokens come out: one after another, or by denoising blocks; or not at all: a pass is all of the work."""

    kind: Literal["autoregressive", "diffusion", "encode"] = "autoregressive"
    block: int = 0
    """Tokens denoised together (diffusion)."""
    steps: int = 0
    """Denoising steps for each block (diffusion)."""
    block_cache: bool = False


class PerLayerEmbedding(Spec):
    """A second table with ``width`` columns for each layer, joined with a projection of the embedding (Gemma 3n)."""

    width: int = Field(ge=1)
    vocab: int = Field(ge=1)

    def weights(self, d_model: int, layers: int) -> Iterator[Weight]:
        columns = layers * self.width
        yield Weight(
            name="per_layer.table", shape=(self.vocab, columns), role="embedding", shard="tp", units=self.vocab
        )
        yield Weight(name="per_layer.projection", shape=(columns, d_model))
        yield Weight(name="per_layer.norm", shape=(self.width,), role="base")

    def ops(self, context: LayerContext, layers: int) -> Iterator[Op]:
        columns = layers * self.width
        yield Gather(
            name="per_layer.embedding",
            ranks=context.ranks,
            tokens=context.tokens,
            width=columns,
            table=context.precision.embedding,
            output=context.precision.base,
        )
        yield from context.linear("per_layer.projection", context.d_model, columns)
        yield context.normalise("per_layer.norm", self.width, rows=context.tokens * layers)
        yield context.pointwise("per_layer.add", columns, reads=2.0, flops=2.0)


class Tower(Spec):
    """An encoder beside the decoder, of images or sound: counted apart; what it puts out are prompt tokens."""

    name: str
    d_model: int = Field(ge=1)
    norm: NormStyle = "layer"
    layers: list[LayerGroup] = []
    tensors: dict[str, list[int]] = {}
    """Every tensor outside the layers with its shape: patch and position embedding, merger, projector."""
    media: MediaRule | None = None
    """What it takes in and what a pass costs; without it the tower is counted, and has no time."""

    @model_validator(mode="after")
    def _known_rows(self) -> Self:
        unknown = sorted(set(self.media.rows) - set(self.tensors)) if self.media is not None else []
        if unknown:
            raise ValueError(f"media.rows names no tensor: {', '.join(unknown)}")
        return self

    def weights(self) -> Iterator[tuple[Weight, int]]:
        """Every parameter tensor, with the number of copies of it."""
        for layer, count in count_distinct([layer for group in self.layers for layer in group.sequence()]):
            yield from ((weight, count) for weight in layer.weights(self.d_model, self.norm))
        for name, shape in self.tensors.items():
            yield Weight(name=f"{self.name}.{name}", shape=tuple(shape), role="base"), 1

    @cached_property
    def parameters(self) -> int:
        return sum(weight.elements * count for weight, count in self.weights())


class EncoderStack(Spec):
    """The encoder of an encoder-decoder: what a request brings goes through it once, and the decoder attends to that.

    embedding: ``shared`` with the decoder, a table of its ``own`` of ``vocab`` rows, or ``none`` where it reads sound
    or an image through ``convolutions``. positions: rows of a learned table. max_context: the longest input, in
    positions. frames: positions of every input: padded to ``seconds`` of sound (Whisper: 1500 for 30 s), or without
    them an image of one size. tensors: what else stands outside the layers, by shape: counted and kept.
    """

    d_model: int = Field(ge=1)
    layers: list[LayerGroup]
    norm: NormStyle = "rms"
    final_norm: bool = True
    embedding: Literal["shared", "own", "none"] = "shared"
    vocab: int | None = Field(default=None, ge=1)
    embedding_norm: bool = False
    positions: int = Field(default=0, ge=0)
    max_context: int | None = Field(default=None, ge=1)
    frames: int | None = Field(default=None, ge=1)
    seconds: float | None = Field(default=None, gt=0)
    convolutions: list[Convolution] = []
    tensors: dict[str, list[int]] = {}
    projected: int | None = Field(default=None, ge=1)
    """Width that its output is projected to."""
    projection_bias: bool = True

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not 1 <= sum(group.depth for group in self.layers) <= MOST_LAYERS:
            raise ValueError(f"layers of an encoder must be 1 to {MOST_LAYERS} in all")
        if (self.embedding == "own") != (self.vocab is not None):
            raise ValueError("an encoder has vocab rows where its embedding is its own, and only there")
        if self.frames is None and self.seconds is not None:
            raise ValueError("seconds of sound are those of frames, which are not given")
        return self

    @cached_property
    def distinct(self) -> list[tuple[LayerGroup, int]]:
        """Each different layer and how many there are."""
        return count_distinct([layer for group in self.layers for layer in group.sequence()])

    @cached_property
    def depth(self) -> int:
        """How many layers it has."""
        return sum(count for _, count in self.distinct)

    def weights(self) -> Iterator[tuple[Weight, int]]:
        """Every parameter tensor, with the number of copies of it; a shared embedding is the decoder's."""
        for weight in self._outside():
            yield replace(weight, name=f"encoder.{weight.name}"), 1
        for layer, count in self.distinct:
            for weight in layer.weights(self.d_model, self.norm):
                yield replace(weight, name=f"encoder.{weight.name}"), count

    def _outside(self) -> Iterator[Weight]:
        if self.vocab is not None:
            table = (self.vocab, self.d_model)
            yield Weight(name="embedding", shape=table, role="embedding", shard="tp", units=self.vocab)
        yield from convolution_weights(self.convolutions)
        if self.positions:
            yield Weight(name="positions", shape=(self.positions, self.d_model), role="embedding")
        norms = [name for name in ("embedding_norm", "final_norm") if getattr(self, name)]
        for name in norms:
            yield Weight(name=name, shape=(NORM_VECTORS[self.norm], self.d_model), role="base")
        if self.projected is not None:
            yield Weight(name="projection", shape=(self.projected, self.d_model), role="base")
        if self.projected is not None and self.projection_bias:
            yield Weight(name="projection.bias", shape=(self.projected,), role="base")
        for name, shape in self.tensors.items():
            yield Weight(name=name, shape=tuple(shape), role="base")


class PredictionHead(Spec):
    """Multi-token prediction (DeepSeek-V3, 2412.19437 eq. 21-23): counted apart from the model's own layers.

    ``modules`` times: its layers, a projection of the joined hidden state and embedding (``2*d_model`` to ``d_model``),
    ``norms``, what joins its residual streams where the model has several (DeepSeek-V4's inference/model.py,
    ``MTPBlock``), and its own copies of the vocabulary tables where the checkpoint stores them.
    """

    layers: list[LayerGroup]
    modules: int = Field(default=1, ge=1)
    projection: bool = True
    norms: int = Field(default=3, ge=0)
    own_embedding: bool = False
    own_head: bool = False
    each_stream: bool = False
    """The embedding and each of the model's residual streams are projected by a square matrix each, in the format of
    the model's matrices, and added (DeepSeek-V4: ``e_proj``, ``h_proj``); otherwise both are joined ahead of one."""
    experts: str | None = None
    """The format of its experts where the model's are NVFP4 and these are not; ``None``: the base format."""

    @field_validator("experts")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        return None if name is None else find_format(name).name

    def weights(self, model: "ModelSpec") -> Iterator[tuple[Weight, int]]:
        """Every parameter tensor, with the number of copies of it."""
        d_model, copies = model.d_model, self.modules
        for layer, count in count_distinct([layer for group in self.layers for layer in group.sequence()]):
            yield from ((weight, count * copies) for weight in layer.weights(d_model, model.norm))
        if self.projection and self.each_stream:
            yield Weight(name="mtp.projection", shape=(2, d_model, d_model)), copies
        elif self.projection:
            yield Weight(name="mtp.projection", shape=(d_model, 2 * d_model), role="base"), copies
        yield Weight(name="mtp.norm", shape=(self.norms, NORM_VECTORS[model.norm], d_model), role="base"), copies
        joins = join_weights(d_model, model.hyper_streams, not model.hyper_mean)
        yield from ((replace(weight, name=f"mtp.{weight.name}"), copies) for weight in joins)
        table = Weight(
            name="mtp.embedding", shape=(model.vocab, d_model), role="embedding", shard="tp", units=model.vocab
        )
        if self.own_embedding:
            yield table, copies
        if self.own_head:
            yield replace(table, name="mtp.head", role="head"), copies


class DraftHead(Spec):
    """A head that drafts for the model from its hidden states, released apart from it (EAGLE-3, 2503.01840; DFlash).

    features: hidden states of the model that are joined and projected to the head's width, once for each token that the
    model has computed. joins_embedding: every pass projects the embedding joined with the hidden state (EAGLE); where
    queries, keys and values read both (EAGLE-3), the mixer has ``input_scale: 2``. vocab: rows of its own head where
    they are fewer than the model's. block: it drafts all tokens in one pass (DFlash, DSpark), and keeps keys and values
    of the projected features. native: the formats that it is stored in.
    """

    name: str
    source: str
    layers: list[LayerGroup]
    d_model: int | None = Field(default=None, ge=1)
    features: int = Field(default=0, ge=0)
    joins_embedding: bool = False
    norms: int = Field(default=1, ge=0)
    """Norms of the width beside those of the layers and the one before the head: of the embedding, the hidden state."""
    vocab: int | None = Field(default=None, ge=1)
    own_embedding: bool = False
    own_head: bool = True
    block: bool = False
    native: Native = Native.default()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.name in ("mtp", "free"):
            raise ValueError(f"{self.name!r} has a meaning of its own: mtp is the model's module, free costs nothing")
        if self.vocab is not None and (self.own_embedding or not self.own_head):
            raise ValueError("a reduced vocabulary is that of a head of its own beside the model's embedding")
        if self.block and not self.features:
            raise ValueError("a block draft attends to features of the model: features: 3")
        return self


class InstructCheckpoint(Spec):
    """The release tuned on instructions of a model whose ``source`` is a base checkpoint: same layers, same vocabulary.

    id: on the Hugging Face hub; ``None`` where no such release is known. source: where that is from.
    """

    id: str | None = None
    source: str


class Yarn(Spec):
    """A longer context that a model's card publishes, by YaRN (arXiv 2309.00071): its positions are scaled, for short
    texts as for long ones, and neither tensors nor arithmetic change.

    context: tokens. factor, original: how often the context of the training. theta: the config's ``rope_theta``.
    used: the model is served so; else with the context of its config.
    """

    context: int = Field(ge=1)
    factor: float = Field(gt=1)
    original: int = Field(ge=1)
    theta: float = Field(gt=0)
    source: str
    used: bool = False

    @model_validator(mode="after")
    def _within(self) -> Self:
        if self.context > self.factor * self.original:
            raise ValueError(f"{self.context:,} tokens are more than {self.factor:g} x {self.original:,}")
        return self

    @property
    def rope(self) -> dict[str, float | int | str]:
        """The fields of a config that ask for it."""
        return {"rope_type": "yarn", "factor": self.factor, "original_max_position_embeddings": self.original}


YARN = "-yarn"
"""Behind the name of a model that is served with its longer context."""


class ModelSpec(Spec):
    """One model. Counts are exact: every parameter tensor is listed by :meth:`weights`."""

    name: str
    aliases: list[str] = []
    family: str = ""
    source: str
    made_from: MadeFrom = MadeFrom.default()
    licence: str = ""
    """As its hub page names it, such as apache-2.0; empty where it is not on file."""
    notes: list[str] = []
    d_model: int = Field(ge=1)
    vocab: int = Field(ge=1)
    tied: bool = False  # the head is the embedding table
    max_context: int | None = Field(default=None, ge=1)
    yarn: Yarn | None = None
    positions: int = Field(default=0, ge=0)
    """Rows of a learned position table."""
    embedding_width: int | None = Field(default=None, ge=1)
    """Columns of the vocabulary tables where they are narrower than the model, with projections in and out (OPT)."""
    norm: NormStyle = "rms"
    final_norm: bool = True
    embedding_norm: bool = False
    head_bias: bool = False
    borrowed: list[Literal["embedding", "head"]] = []
    """Vocabulary tables of another model on the same devices: read, and not kept once more (prediction modules)."""
    joined: list[tuple[int, int]] = []
    """Matrices ahead of the first layer, inputs and outputs: states of another model projected into this one."""
    input_norms: int = Field(default=0, ge=0)
    """Norms of the model width ahead of them."""
    joined_streams: bool = False
    """Ahead of the first layer the embedding and each residual stream of another model have a norm and a square matrix
    of their own, and are added (DeepSeek-V4's prediction module)."""
    bare: bool = False
    """Without embedding and head: a part of a draft that only keeps what others attend to."""
    layers: list[LayerGroup]
    encoder: EncoderStack | None = None
    """What reads the prompt, where the decoder attends to it from its ``cross_attention``."""
    streams: int = Field(default=1, ge=1)
    """Residual streams (AltUp): each but the first has a square projection in and one out."""
    hyper_streams: int = Field(default=1, ge=1)
    """Residual streams of hyper-connections, which a learned sum joins ahead of the final norm (DeepSeek-V4)."""
    hyper_mean: bool = False
    """Their mean joins them, nothing learned (GLM-5.3-Flash)."""
    per_layer_embedding: PerLayerEmbedding | None = None
    towers: list[Tower] = []
    mtp: PredictionHead | None = None
    drafts: list[DraftHead] = []
    """Heads that draft for it, by their name."""
    native: Native = Native.default()
    generation: Generation = Generation.default()
    ends: Ends = Ends.default()
    """What it has around its layers beside the embedding and the output matrix."""
    basis: Literal["described", "traced", "stored"] = "described"
    """Traced: a run of its code on meta tensors gave its layers. Stored: names and shapes of its tensors did."""
    published: Published | None = None
    instruct_checkpoint: InstructCheckpoint | None = None

    @model_validator(mode="after")
    def _finite_stack(self) -> Self:
        if not (0 if self.bare else 1) <= sum(group.depth for group in self.layers) <= MOST_LAYERS:
            raise ValueError(f"layers must be 1 to {MOST_LAYERS} in all")
        _require_cross(self)
        return self

    @property
    def encodes(self) -> bool:
        """Whether it generates nothing: one pass over a request is all of its work."""
        return self.generation.kind == "encode"

    @property
    def predicts(self) -> bool:
        """Whether it ends in logits over the vocabulary."""
        return not self.encodes or self.ends.vocabulary

    @property
    def projected(self) -> int | None:
        """The width that a projection joins the layers to; a traced model has projections among its operators."""
        return self.embedding_width if self.basis == "described" else None

    @property
    def _projects_out(self) -> bool:
        """Whether a matrix of its own goes back to narrower vocabulary tables: a head that predicts has its own."""
        return self.projected is not None and not (self.encodes or self.ends.heads)

    @property
    def table_width(self) -> int:
        """Columns of the vocabulary tables."""
        return self.embedding_width or self.d_model

    @cached_property
    def sequence(self) -> list[LayerGroup]:
        """Every layer in order."""
        return [layer for group in self.layers for layer in group.sequence()]

    @cached_property
    def distinct(self) -> list[tuple[LayerGroup, int]]:
        """Each different layer and how many there are; the order is that of first appearance."""
        return count_distinct(self.sequence)

    @cached_property
    def features(self) -> set[str]:
        """As :mod:`inferplan.features` names them."""
        return those(
            encoder=self.encodes or self.encoder is not None,
            encoder_decoder=self.encoder is not None,
            encodes=self.encodes,
            diffusion=self.generation.kind == "diffusion",
            state=self.state_elements_per_sequence > 0,
        )

    @cached_property
    def has_experts(self) -> bool:
        """Whether any layer's weights are experts, which the ranks of a stage share."""
        return any(weight.shard == "experts" for weight, _ in self.weights())

    @cached_property
    def _stages(self) -> dict[int, list[list[tuple[LayerGroup, int]]]]:
        return {}

    def stages(self, count: int) -> list[list[tuple[LayerGroup, int]]]:
        """The layers of each of ``count`` pipeline stages: each different one with its number.

        Stages that hold the same layers are the same list. Raises ``IndivisibleError`` for more stages than layers.
        """
        if count not in self._stages:
            self._stages[count] = _stages_of(self.sequence, count)
        return self._stages[count]

    def weights(self) -> Iterator[tuple[Weight, int]]:
        """Every parameter tensor, with the number of copies of it in the model."""
        yield from ((weight, 1) for weight in self.input_weights())
        yield from self.encoder.weights() if self.encoder is not None else ()
        for layer, count in self.distinct:
            if not layer.shared:
                yield from ((weight, count) for weight in self.layer_weights(layer))
        yield from ((weight, 1) for weight in self.output_weights())

    def input_weights(self) -> Iterator[Weight]:
        """The tensors before the first layer."""
        table = (self.vocab, self.table_width)
        if "embedding" not in self.borrowed and not self.ends.convolutions:
            yield Weight(name="embedding", shape=table, role="embedding", shard="tp", units=self.vocab)
        if self.projected:
            yield Weight(name="project_in", shape=(self.d_model, self.projected))
        if self.positions:
            yield Weight(name="positions", shape=(self.positions, self.d_model), role="embedding")
        if self.embedding_norm:
            yield Weight(name="embedding_norm", shape=(NORM_VECTORS[self.norm], self.table_width), role="base")
        yield from self.ends.input_weights(self.table_width, self.d_model if self.embedding_width else None)
        if self.per_layer_embedding is not None:
            yield from self.per_layer_embedding.weights(self.d_model, len(self.sequence))
        if self.streams > 1:
            yield Weight(name="streams.in", shape=(self.streams - 1, self.d_model, self.d_model))
        for inputs, outputs in self.joined:
            yield Weight(name="joined", shape=(outputs, inputs), role="base")
        for name in ("e_proj", "h_proj") if self.joined_streams else ():
            yield Weight(name=name, shape=(self.d_model, self.d_model))
        if self.input_norms:
            shape = (self.input_norms, NORM_VECTORS[self.norm], self.d_model)
            yield Weight(name="input_norm", shape=shape, role="base")

    def input_ops(self, context: LayerContext) -> Iterator[Op]:
        """What runs between the embedding and the first layer."""
        yield from _input_ops(self, context)

    def output_ops(self, context: LayerContext) -> Iterator[Op]:
        """What runs between the last layer and the final norm."""
        for _ in range(1, self.streams):
            yield from context.linear("streams.out", self.d_model, self.d_model)
        yield from join_ops(context, self.hyper_streams, not self.hyper_mean)
        if blocks := residual_blocks(self.sequence[-1:]):
            yield mix(context, "residual_join.mix", blocks + 1)
        if self._projects_out:
            yield from context.linear("project_out", self.d_model, self.table_width)

    def layer_weights(self, layer: LayerGroup) -> Iterator[Weight]:
        """The tensors of one layer."""
        return layer.weights(self.d_model, self.norm)

    def output_weights(self) -> Iterator[Weight]:
        """The tensors after the last layer; a tied head is the embedding again and is not listed."""
        if self.streams > 1:
            yield Weight(name="streams.out", shape=(self.streams - 1, self.d_model, self.d_model))
        yield from join_weights(self.d_model, self.hyper_streams, not self.hyper_mean)
        if residual_blocks(self.sequence[-1:]):
            yield from mixture_weights("residual_join", self.d_model, 1)
        if self.final_norm:
            yield Weight(name="final_norm", shape=(NORM_VECTORS[self.norm], self.d_model), role="base")
        if self._projects_out:
            yield Weight(name="project_out", shape=(self.table_width, self.d_model))
        yield from self.ends.output_weights(NORM_VECTORS[self.norm])
        yield from _head_weights(self) if self.predicts else ()

    @cached_property
    def parameters(self) -> dict[str, int]:
        """``total``, ``embedding`` (the input table), ``lm_head`` (0 when tied) and ``active``.

        ``active`` counts every tensor, both vocabulary tables among them, with routed experts scaled by top_k/experts;
        it is left out where a traced model does not say how many of its experts a token reads.
        """
        return _parameters(self)

    @cached_property
    def checkpoint_bytes(self) -> float:
        """Bytes of the released checkpoint in its native formats: model and towers, without prediction modules."""
        return _checkpoint_bytes(self)

    @cached_property
    def tower_parameters(self) -> int:
        """Parameters of the towers, which ``parameters`` leaves out."""
        return sum(tower.parameters for tower in self.towers)

    @cached_property
    def mtp_parameters(self) -> int:
        """Parameters of the multi-token-prediction modules, which ``parameters`` leaves out."""
        return sum(w.elements * count for w, count in self.mtp.weights(self)) if self.mtp is not None else 0

    def caches(self) -> Iterator[tuple[Cache, int]]:
        """What each different layer keeps for a sequence, and how many such layers there are."""
        for layer, count in self.distinct if not self.encodes else ():
            yield from ((cache, count) for cache in layer.caches())

    @cached_property
    def kv_elements_per_token(self) -> float:
        """Elements that one more token adds while the context is below every window; the mean of compressed caches."""
        return _growth(list(self.caches()))

    @cached_property
    def kv_elements_per_token_beyond_windows(self) -> float:
        """Elements that one more token adds when the context is longer than every window."""
        return _growth([entry for entry in self.caches() if entry[0].mask.kind not in ("window", "chunk")])

    @cached_property
    def state_elements_per_sequence(self) -> int:
        """Elements of constant size that each sequence keeps: recurrent and convolution state."""
        return sum(cache.state * count for cache, count in self.caches())

    @cached_property
    def windows(self) -> list[int]:
        """The different window sizes, in tokens."""
        return sorted({cache.mask.size for cache, _ in self.caches() if cache.mask.kind == "window"})

    def check(self, parallel: Parallelism) -> None:
        """Raise ``IndivisibleError`` when a layer cannot be divided so, ``UsageError`` where there are no experts."""
        _check(self, parallel)

    def to_dict(self) -> dict[str, Any]:
        """The mapping its YAML holds."""
        return _dump(self)


def _input_ops(model: ModelSpec, context: LayerContext) -> Iterator[Op]:
    """:meth:`ModelSpec.input_ops`."""
    yield from model.ends.input_ops(context)
    if model.per_layer_embedding is not None:
        yield from model.per_layer_embedding.ops(context, len(model.sequence))
    for _ in range(1, model.streams):
        yield from context.linear("streams.in", model.d_model, model.d_model)
    if model.projected:
        yield from context.linear("project_in", model.projected, model.d_model)
    if model.joined_streams:
        yield from _join_streams(context, model.hyper_streams)
    elif model.input_norms:
        yield context.normalise("input_norm", model.d_model).repeated(model.input_norms)
    for inputs, outputs in model.joined:
        yield from context.linear("joined", inputs, outputs, role="base")


def _join_streams(context: LayerContext, streams: int) -> Iterator[Op]:
    """The embedding and the residual streams of another model, normalised, projected and added (vLLM
    ``deepseek_v4/nvidia/mtp.py``, SGLang ``deepseek_v4_nextn.py``): every stream of a token is a row."""
    width, rows = context.d_model, context.tokens * streams
    yield context.normalise("input_norm", width)
    yield context.normalise("input_norm", width, rows=rows)
    yield from context.linear("mtp.e_proj", width, width)
    yield from context.linear("mtp.h_proj", width, width, rows=rows)
    yield context.pointwise("mtp.join", streams * width, reads=1.0 + 1.0 / streams)


def _stages_of(layers: list[LayerGroup], count: int) -> list[list[tuple[LayerGroup, int]]]:
    """The different layers of each of ``count`` stages, with their numbers; stages that are alike are the same list."""
    stages: list[list[tuple[LayerGroup, int]]] = []
    start = 0
    for size in split_layers(len(layers), count) if layers else [0] * count:
        held = count_distinct(layers[start : start + size])
        stages.append(next((known for known in stages if known == held), held))
        start += size
    return stages


def _head_weights(model: ModelSpec) -> Iterator[Weight]:
    """The output matrix and its bias, as far as they are tensors of their own."""
    if not model.tied and "head" not in model.borrowed:
        shape = (model.vocab, model.table_width)
        yield Weight(name="head", shape=shape, role="head", shard="tp", units=model.vocab)
    if model.head_bias:
        yield Weight(name="head.bias", shape=(model.vocab,), role="head", shard="tp", units=model.vocab)


def _require_cross(model: ModelSpec) -> None:
    """Raise ``ValueError`` for a decoder that attends to an encoder that is not there, or the other way round.

    A request's tokens, those that the encoder has read and those that the decoder has written, are counted together
    wherever a cache is: that is exact where each layer keeps as much for either.
    """
    from inferplan.models.layers.cross_attention import CrossAttentionLayer

    cross = [[part for part in layer.parts if isinstance(part, CrossAttentionLayer)] for layer, _ in model.distinct]
    if model.encoder is None:
        if any(cross):
            raise ValueError("cross_attention needs an encoder to attend to")
        return
    for (layer, _), found in zip(model.distinct, cross):
        own = [cache for cache in (part.cache() for part in layer.parts) if cache.per_token or cache.state]
        source = sum(part.source_elements for part in found)
        if not found or any(cache.state or cache.mask.size for cache in own):
            raise ValueError("each layer of a decoder behind an encoder has attention without a window, and to it")
        if source != sum(cache.per_token for cache in own):
            raise ValueError("keys and values of the encoder must be as wide as those of the decoder, layer by layer")


def require_decoder(model: ModelSpec, what: str, hint: str) -> None:
    """Raise ``UsageError`` for ``what`` is only known of models whose decoder reads the prompt itself."""
    if model.encodes:
        raise UsageError(f"{model.name} has no {what}", because="one pass over a request is all of its work", hint=hint)
    if model.encoder is not None:
        raise UsageError(
            f"{model.name} has no {what}", because="an encoder reads the whole prompt in one pass", hint=hint
        )


def require_readable(
    model: ModelSpec, prompt: Num | npt.NDArray[np.int64], output: Num | npt.NDArray[np.int64]
) -> None:
    """Raise ``UsageError`` for prompts that the encoder of a model does not read, or outputs its decoder cannot hold.

    prompt, output: tokens of requests; scalars or arrays. A model without an encoder has no such limits.
    """
    encoder = model.encoder
    if model.encodes and np.max(output) > 1:
        raise UsageError(
            f"{model.name} generates nothing, so there are no output tokens",
            because="one pass over a request is all of its work",
            hint="leave --output out, or --output 1",
        )
    if encoder is None:
        return
    if encoder.frames is not None and not np.all(np.asarray(prompt) == encoder.frames):
        sound = encoder.seconds is not None
        what = f"{encoder.seconds:g} s of sound, padded if shorter" if sound else "an image of one size"
        more = "longer recordings" if sound else "more images"
        raise UsageError(
            f"{model.name} reads {encoder.frames} positions: {what}",
            because=f"the prompt is {float(np.max(prompt)):,.0f} tokens",
            hint=f"--prompt {encoder.frames}; {more} are several requests (--batch)",
        )
    if encoder.max_context is None:
        return
    limits = [("prompt", prompt, encoder.max_context)]
    limits += [("output", output, model.max_context - encoder.max_context)] if model.max_context else []
    for name, tokens, most in limits:
        if np.max(tokens) > most:
            raise UsageError(
                f"{float(np.max(tokens)):,.0f} tokens of {name} are more than {model.name} has positions for",
                because=f"its {'encoder' if name == 'prompt' else 'decoder'} has {most:,}",
                hint=f"a shorter --{name}",
            )


def _parameters(model: ModelSpec) -> dict[str, int]:
    """:attr:`ModelSpec.parameters`."""
    total = active = 0.0
    for weight, count in model.weights():
        total += count * weight.elements
        active += count * weight.elements * weight.active
    table = model.vocab * model.table_width
    found = {
        "total": round(total),
        "embedding": 0 if model.ends.convolutions else table,
        "lm_head": 0 if model.tied or not model.predicts else table,
    }
    return found if isnan(active) else found | {"active": round(active)}


def _growth(caches: list[tuple[Cache, int]]) -> float:
    """Elements that a token adds to caches in the mean: an integer where it is one."""
    elements = sum(cache.per_token * count / cache.rate for cache, count in caches)
    return int(elements) if elements == int(elements) else elements


def with_yarn(model: ModelSpec) -> ModelSpec | None:
    """The model served with the longer context that its card publishes; ``None`` where none is on file."""
    yarn = model.yarn
    if yarn is None or yarn.used:
        return None
    note = (
        f"YaRN: a context of {yarn.context:,} tokens ({yarn.factor:g} x {yarn.original:,}), as {yarn.source} has it; "
        "it may make answers to short texts worse"
    )
    own = {"name": model.name + YARN, "max_context": yarn.context, "aliases": []}
    return model.model_copy(
        update={**own, "yarn": yarn.model_copy(update={"used": True}), "notes": [*model.notes, note]}
    )


def longer_than(model: ModelSpec, tokens: float) -> str:
    """What has a context of so many tokens, in words for a hint."""
    yarn = model.yarn
    if yarn is None or yarn.used or tokens > yarn.context:
        return "a model with a longer context"
    return f"{model.name}{YARN} in place of {model.name}: {yarn.context:,} tokens by YaRN, as {yarn.source} has it"


def uncounted_notes(model: ModelSpec) -> list[str]:
    """Those of a model's notes for every screen: what no figure counts, what is assumed, what a reading leaves open."""
    return [
        note
        for note in model.notes
        if "not counted" in note or note.startswith(("traced", "told from", "YaRN:", ASSUMED))
    ]


def require_tokens(model: ModelSpec, what: str) -> None:
    """Raise ``UsageError`` for ``what`` is only known of models that decode one token after another."""
    if model.generation.kind == "diffusion":
        raise UsageError(
            f"{model.name} denoises blocks: {what} of such a model is not known here",
            hint="inferplan estimate or sweep: a batch of it alone",
        )


def require_experts(model: ModelSpec, option: str) -> None:
    """Raise ``UsageError`` for an option about routed experts where the model has none."""
    if not model.has_experts:
        raise UsageError(f"{model.name} has no routed experts for {option}", hint=f"leave {option} out")


def _check(model: ModelSpec, parallel: Parallelism) -> None:
    for layer, _ in [*model.distinct, *(model.encoder.distinct if model.encoder is not None else ())]:
        for part in layer.parts:
            part.check(parallel)
    if parallel.ep > 1:
        require_experts(model, "--ep")
    if parallel.tp > 1:
        require_divides("tp", parallel.tp, -(-model.vocab // 64) * 64, "vocabulary rows (padded to 64)")


def as_tower(weight: Weight) -> Weight:
    """A tensor of a tower as it stands among those of the model: in the base format, unless its name has another."""
    return replace(weight, role="base", name=f"tower.{weight.name}")


def _checkpoint_bytes(model: ModelSpec) -> float:
    total = 0.0
    for weight, count in (entry for tower in model.towers for entry in tower.weights()):
        total += count * find_format(model.native.stored(as_tower(weight))).stored(weight.shape)
    outside = [*model.input_weights(), *model.output_weights()]
    for weight, count in model.encoder.weights() if model.encoder is not None else ():
        total += count * find_format(model.native.stored(weight)).stored(weight.shape)
    total += sum(find_format(model.native.stored(weight)).stored(weight.shape) for weight in outside)
    for index, layer in enumerate(model.sequence):
        for weight in [] if layer.shared else model.layer_weights(layer):
            total += find_format(model.native.stored(weight, index)).stored(weight.shape)
    return total


def _dump(model: ModelSpec) -> dict[str, Any]:
    data = model.model_dump(exclude_defaults=True)
    data["layers"] = [_dump_group(group) for group in model.layers]
    for name in model.ends.recorded:
        data["ends"][name] = getattr(model.ends, name).dump()
    for tower, fields in zip(model.towers, data.get("towers", []), strict=False):
        if tower.layers:
            fields["layers"] = [_dump_group(group) for group in tower.layers]
    if model.encoder is not None:
        data["encoder"]["layers"] = [_dump_group(group) for group in model.encoder.layers]
    if model.mtp is not None:
        data["mtp"]["layers"] = [_dump_group(group) for group in model.mtp.layers]
    for head, fields in zip(model.drafts, data.get("drafts", []), strict=True):
        fields["layers"] = [_dump_group(group) for group in head.layers]
    return data


def _dump_group(group: LayerGroup) -> dict[str, Any]:
    data = group.model_dump(exclude_defaults=True, exclude={"mixer", "ffn", "extras", "pattern"})
    if group.mixer is not None:
        data["mixer"] = group.mixer.dump()
    if group.ffn is not None:
        data["ffn"] = group.ffn.dump()
    if group.extras:
        data["extras"] = [part.dump() for part in group.extras]
    if group.pattern:
        data["pattern"] = [_dump_group(inner) for inner in group.pattern]
    return data


def residual_blocks(layers: Iterable[LayerGroup]) -> int:
    """Sums of finished blocks of layers that ``layers``, those of a stage say, leave for what follows (Kimi-K3)."""
    return max((part.residuals_kept for layer in layers for part in layer.parts), default=0)


def count_distinct(layers: Sequence[LayerGroup]) -> list[tuple[LayerGroup, int]]:
    """Each different layer with its number, in order of first appearance."""
    kinds: list[tuple[LayerGroup, int]] = []
    objects = dict(zip(map(id, layers), layers))  # most are the same objects: to compare them is slow
    for key, number in Counter(map(id, layers)).items():
        where = next((index for index, (known, _) in enumerate(kinds) if known == objects[key]), None)
        if where is None:
            kinds.append((objects[key], number))
        else:
            kinds[where] = (kinds[where][0], kinds[where][1] + number)
    return kinds
