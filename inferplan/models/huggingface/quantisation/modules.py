"""Where a checkpoint keeps each tensor of a model: its modules, and the shapes of what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from inferplan.models.layers import Weight
from inferplan.models.spec import LayerGroup, ModelSpec

Names = dict[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The names of one family.

    names: our tensor, or ``kind:tensor`` where two kinds of part have the same, to its modules in a layer; several
    modules have equal shares of its rows, and ``{}`` stands for the number of an expert. bare: modules that are
    parameters without ``.weight``. outside: the same for tensors outside the layers. layers: what leads to a layer.
    root: what stands ahead of layers and embedding in a checkpoint of the language model alone.
    """

    names: Names
    outside: Names = field(default_factory=dict)
    root: str = "model."
    layers: str = "layers"
    embedding: str = "embed_tokens"
    head: str = "lm_head"
    bare: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Place:
    """One tensor in one layer (``None``: outside the layers), and its modules without the root.

    apart: each of the matrices that it stacks (an expert) is a module of its own. named: the family's layout has the
    tensor; one that it has without a module is no linear layer.
    """

    weight: Weight
    layer: int | None
    modules: tuple[str, ...]
    apart: bool = False
    named: bool = True


NESTED_ROOTS = ("model.language_model.", "language_model.model.")
"""Roots of a language model beside towers: transformers 5 (Qwen3-VL, Gemma 4) and the older one (LLaVA, Llama 4)."""
OLDER_ROOT = frozenset(
    {"llama", "mistral", "ministral3", "llama4_text", "deepseek_v3", "gemma3_text", "mllama_text_model"}
)
"""Families whose checkpoints beside towers have the older root."""


def places(model: ModelSpec, layout: Layout) -> Iterator[Place]:
    """Every tensor of the model, layer by layer, with its modules."""
    for weight in model.input_weights():
        yield _outside(weight, layout)
    for index, layer in enumerate(model.sequence):
        if layer.shared:
            continue
        for weight, names in _layer(layer, model.d_model, layout):
            full = None if names is None else tuple(f"{layout.layers}.{index}.{name}" for name in names)
            yield _place(weight, index, full)
    for weight in model.output_weights():
        yield _outside(weight, layout)


def checkpoint_shapes(model: ModelSpec, layout: Layout, root: str | None = None) -> dict[str, tuple[int, ...]]:
    """The name of every matrix in a checkpoint, with ``.weight`` where it is a module's, and its rows and columns.

    Matrices that a checkpoint joins (``qkv_proj``) are one entry with the rows of all; stacked experts have three
    dimensions. root: what stands ahead of layers and embedding, the family's own by default. A linear layer that is
    stored transposed (GPT-2's Conv1D, gpt-oss' experts) has its dimensions in the order of ``torch.nn.Linear`` here.
    """
    found: dict[str, tuple[int, ...]] = {}
    for place in places(model, layout):
        shape = place.weight.shape[1:] if place.apart else place.weight.shape
        if len(place.weight.shape) < 2 or not place.modules or place.weight.role == "base":
            continue
        split = 1 if place.apart else len(place.modules)
        for module in place.modules:
            name = module if module.split(".", 2)[-1] in layout.bare else f"{module}.weight"
            full = _rooted(name, layout, layout.root if root is None else root)
            rows = shape[-2] // split + (found[full][-2] if full in found else 0)
            found[full] = (*shape[:-2], rows, shape[-1])
    return found


def _rooted(name: str, layout: Layout, root: str) -> str:
    return name if name.partition(".")[0] in (layout.head, layout.head.partition(".")[0]) else root + name


def _outside(weight: Weight, layout: Layout) -> Place:
    known: Names = {"embedding": (layout.embedding,), "head": (layout.head,)} | layout.outside
    return _place(weight, None, known.get(weight.name))


def _place(weight: Weight, layer: int | None, names: tuple[str, ...] | None) -> Place:
    if names is None:
        return Place(weight=weight, layer=layer, modules=(), named=False)
    if any("{}" in name for name in names):
        names = tuple(name.format(number) for name in names for number in range(weight.shape[0]))
        return Place(weight=weight, layer=layer, modules=names, apart=True)
    return Place(weight=weight, layer=layer, modules=names)


def _layer(layer: LayerGroup, d_model: int, layout: Layout) -> Iterator[tuple[Weight, tuple[str, ...] | None]]:
    """The tensors of one layer with the modules they are in, without the layer's own name."""
    slots = [("mixer", layer.mixer), ("ffn", layer.ffn), *(("extra", part) for part in layer.extras)]
    for slot, part in slots:
        if part is None:
            continue
        for weight in part.weights(d_model):
            keys = (f"{slot}:{weight.name}", f"{part.kind}:{weight.name}", weight.name)
            yield weight, next((layout.names[key] for key in keys if key in layout.names), None)
