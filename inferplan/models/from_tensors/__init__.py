"""A model that nobody has described, from the tensors of its checkpoint: ``docs/models.md`` says how far they tell.

Weights are exact: every stored byte is counted, in the type that it is stored in. What a sequence keeps, and which
matmuls a token takes, are told by the usual names of attention, feed-forward and experts; where a layer has others they
are named, and what depends on them is refused.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from inferplan.errors import SpecError
from inferplan.models.checkpoint import Checkpoint
from inferplan.models.from_tensors.config import Config, config_of_gguf
from inferplan.models.from_tensors.layer import Said, Told
from inferplan.models.from_tensors.modules import format_of, modules_of
from inferplan.models.header_bytes import Tensor
from inferplan.models.huggingface.quantisation import exceptions
from inferplan.models.huggingface.reader import HEAD_DIM, HEADS, KV_HEADS, LAYERS, WIDTH
from inferplan.models.layers.traced import TracedLayer, TracedTensor, layer_groups
from inferplan.models.safetensors_header import WIDE_TYPES
from inferplan.models.spec import ModelSpec

__all__ = ["Config", "config_of_gguf", "model_of_tensors"]

_BESIDE = re.compile(
    r"(.*_)?(vision|visual|vit|vpm|image|audio|speech|sound|encoder|tower|siglip|clip|mtp|draft|talker|code2wav|token2wav"
    r"|projector|merger|resampler|connector|v|mm|a)(_.*)?"
)
"""Parts of names of what no token of text passes."""
_EMBEDDING = (
    *("embed_tokens", "wte", "word_embeddings", "tok_embeddings", "embed_in", "token_embd"),
    *("embedding", "embeddings", "word_embedding", "tokens_embed", "input_embedding"),
)
_HEAD = ("lm_head", "output", "embed_out", "output_layer", "head")
_BEHIND = ("norm", "ln_f", "norm_f", "final_layernorm", "final_layer_norm", "output_norm", "final_norm")
_DIGITS = 4
"""Of the longest number of a layer."""
Named = dict[str, Tensor]


class _Formats:
    """The format of each tensor, by role and name, and of each role the one that most of its bytes are in."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], dict[int | None, str]] = defaultdict(dict)
        self.bytes: dict[str, Counter[str]] = defaultdict(Counter)
        self.packed = False

    def add(self, role: str, name: str, layer: int | None, tensor: Tensor, copies: int = 1) -> list[int]:
        """Keep the format of a tensor that is there so many times; its shape."""
        fmt, shape, packed = format_of(tensor)
        self.stored[role, name][layer] = fmt
        self.bytes[role][fmt] += tensor.size * copies
        self.packed |= packed
        return shape

    def native(self, base: str | None) -> dict[str, Any]:
        """The fields of :class:`Native`. base: the format of activations, where a config says it."""
        wide: Counter[str] = Counter()
        for counts in self.bytes.values():
            wide.update({fmt: size for fmt, size in counts.items() if fmt in WIDE_TYPES.values()})
        usual = wide.most_common(1)[0][0] if wide else "bf16"
        found = {role: counts.most_common(1)[0][0] for role, counts in self.bytes.items()} | {"base": base or usual}
        return {**found, "exceptions": exceptions(self.stored, found), "packed": self.packed}


def model_of_tensors(stored: Checkpoint, config: Config, fields: dict[str, Any], why: str) -> ModelSpec:
    """The model that a checkpoint stores; of GGUF with the rows of its shapes first.

    fields: ``name``, ``source`` and ``family``. why: why its config alone does not say it. Raises ``SpecError`` where
    tensors have no layers or no embedding. Of a size that the config has otherwise that of the tensors is taken, with a
    note.
    """
    try:
        model = ModelSpec.model_validate(fields | _fields(stored, config, str(fields["name"]), why))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"
        raise SpecError(f"{fields['name']}: its tensors or its config are those of no model", because=reason) from None
    if model.checkpoint_bytes != stored.size:
        apart = f"{model.checkpoint_bytes:,.0f}"
        raise SpecError(f"{model.name}: of {stored.size:,} bytes of tensors {apart} were told apart")
    return model


def _fields(stored: Checkpoint, config: Config, name: str, why: str) -> dict[str, Any]:
    """Those of :class:`ModelSpec` that tensors tell."""
    formats = _Formats()
    stacks, outside = _stacks(stored.tensors)
    main, several = _main(stacks, config, name)
    inside = _layers_of(stacks.pop(main), name)
    modules = config.layers is not None and len(inside) == config.layers + config.modules
    count = len(inside) - (config.modules if modules else 0)
    vocab, columns, tied = _vocabulary(outside, formats, name)
    width = _width(inside, columns, config)
    said = config.said(count, width)
    if several:
        said = replace(said, unkept=f"it has several stacks of layers: {', '.join([main, *several])}")
    if _strange(inside):
        said = replace(said, untimed="its matrices are stored in a form that names alone do not explain")
    layers = _layers(inside[:count], said, formats)
    stacks[main] = dict(enumerate(inside[count:], count))  # prediction modules
    beside = {
        f"{stack}.{index}.{own}": tensor
        for stack, each in stacks.items()
        for index, tensors in each.items()
        for own, tensor in tensors.items()
    }
    beside |= {own: outside.pop(own) for own in list(outside) if any(map(_BESIDE.fullmatch, own.split(".")))}
    behind = {own: outside.pop(own) for own in list(outside) if _module(own) in _BEHIND}
    ends = {"ahead": outside, "behind": behind}
    return {
        "basis": "stored",
        "made_from": {"told": True},
        "d_model": width,
        "vocab": vocab,
        "embedding_width": columns if columns != width else None,
        "tied": tied,
        "max_context": config.context,
        "final_norm": False,
        "layers": layer_groups(layers),
        "ends": {at: TracedLayer(tensors=_loose(held, formats)).dump() for at, held in ends.items() if held},
        "towers": _towers(beside, main, width, formats),
        "native": formats.native(config.base),
        "notes": [
            f"told from its tensors: {why}",
            *_contradiction(config, layers, vocab, width),
            *_notes(stored, layers, config, formats.packed),
        ],
    }


def _width(inside: list[Named], columns: int, config: Config) -> int:
    """How wide the layers are: as the config says, unless none of their tensors is and the embedding is as wide as one.

    columns: those of the embedding.
    """
    sizes = {size for layer in inside for tensor in layer.values() for size in tensor.shape}
    said = config.width
    return columns if said is None or (said not in sizes and columns in sizes) else said


def _contradiction(config: Config, layers: list[TracedLayer], vocab: int, width: int) -> list[str]:
    """A note of the sizes that the config has otherwise than the tensors, which are taken."""
    attention = [one for layer in layers for one in layer.operators if one.runs == "attention"]
    found = config.contradicted(
        {
            ("vocab_size",): {vocab},
            WIDTH: {width},
            LAYERS: {len(layers)},
            HEADS: {one.heads for one in attention},
            KV_HEADS: {one.kv_heads for one in attention},
            HEAD_DIM[:1]: {one.key_dim for one in attention},
        }
    )
    return [f"told from its tensors, which its config contradicts: {'; '.join(found)}"] if found else []


def _vocabulary(outside: Named, formats: _Formats, name: str) -> tuple[int, int, bool]:
    """Rows and columns of the embedding, and whether no head is stored; both are taken out of ``outside``."""
    embedding = _table(outside, _EMBEDDING, None)
    if embedding is None or format_of(outside[embedding])[2]:
        wide = [one for one, tensor in outside.items() if len(tensor.shape) == 2]
        raise SpecError(
            f"{name}: which of its tensors is the embedding is not understood",
            because=f"outside the layers it has {', '.join(wide[:4]) or 'no matrix'}",
        )
    vocab, columns = formats.add("embedding", "embedding", None, outside.pop(embedding))
    head = _table(outside, _HEAD, vocab)
    if head is not None:
        formats.add("head", "head", None, outside.pop(head))
    return vocab, columns, head is None


def _layers(inside: list[Named], said: Said, formats: _Formats) -> list[TracedLayer]:
    layers = []
    for index, tensors in enumerate(inside):
        told = Told(index, modules_of(tensors.items()), said)
        layers.append(told.layer())
        for module in told.modules.values():
            for placed, tensor in told.placed(module):
                formats.add(placed.role, placed.name, index, tensor, max(module.experts, 1))
    return layers


def _stacks(tensors: list[Tensor]) -> tuple[dict[str, dict[int, Named]], Named]:
    """Tensors by the stack of numbered modules that they are in, its number and their name there; those in none."""
    stacks: dict[str, dict[int, Named]] = {}
    outside: Named = {}
    for tensor in tensors:
        steps = tensor.name.split(".")
        at = next((n for n, step in enumerate(steps) if n and step.isascii() and step.isdecimal()), None)
        if at is None or at + 1 == len(steps) or len(steps[at]) > _DIGITS:
            outside[tensor.name] = tensor
        else:
            stack = stacks.setdefault(".".join(steps[:at]), {})
            stack.setdefault(int(steps[at]), {})[".".join(steps[at + 1 :])] = tensor
    return stacks, outside


def _main(stacks: dict[str, dict[int, Named]], config: Config, name: str) -> tuple[str, list[str]]:
    """The stack that tokens pass, and others that could be it: that with as many layers as the config says, or the
    largest."""
    own = [stack for stack in stacks if not any(map(_BESIDE.fullmatch, stack.split(".")))] or list(stacks)
    if not own:
        raise SpecError(f"{name}: its tensors have no layers", because="none of their names has a number in it")
    said = [
        stack for stack in own if config.layers is not None and len(stacks[stack]) == config.layers + config.modules
    ]
    sizes = {stack: sum(t.size for each in stacks[stack].values() for t in each.values()) for stack in said or own}
    main = max(sizes, key=lambda stack: sizes[stack])
    return main, [stack for stack in own if stack != main]


def _layers_of(stack: dict[int, Named], name: str) -> list[Named]:
    """Its layers in order. Raises ``SpecError`` for one that is not there."""
    lacking = [index for index in range(len(stack)) if index not in stack]
    if lacking:
        raise SpecError(f"{name}: layer {lacking[0]} is not stored", because=f"layer {max(stack)} is")
    return [stack[index] for index in range(len(stack))]


def _strange(layers: list[Named]) -> bool:
    """Whether a matrix of theirs is in a type that says nothing of how it is multiplied."""
    formats = {format_of(tensor)[::2] for layer in layers for tensor in layer.values() if len(tensor.shape) > 1}
    return any(packed or name == "fp8" for name, packed in formats)


def _module(name: str) -> str:
    """The last part of a module's name."""
    return name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]


def _table(outside: Named, names: tuple[str, ...], rows: int | None) -> str | None:
    """The largest matrix outside the layers with one of these names, and with so many rows."""
    found = [
        name
        for name, tensor in outside.items()
        if _module(name) in names and name.endswith(".weight") and len(tensor.shape) == 2
        if rows in (None, tensor.shape[0]) and not any(map(_BESIDE.fullmatch, name.split(".")))
    ]
    return max(found, key=lambda name: outside[name].size, default=None)


def _loose(tensors: Named, formats: _Formats) -> list[TracedTensor]:
    """Tensors that no token multiplies in a layer."""
    return [
        TracedTensor(name=name, shape=formats.add("base", name, None, tensor), role="base")
        for name, tensor in tensors.items()
    ]


def _towers(beside: Named, main: str, width: int, formats: _Formats) -> list[dict[str, Any]]:
    """What no token of text passes, by the first part of its name that says so: counted and kept."""
    found: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for name, tensor in beside.items():
        steps = name.split(".")
        at = next((n for n, step in enumerate(steps) if _BESIDE.fullmatch(step)), 0)
        tower = main if name.startswith(f"{main}.") else ".".join(steps[: at + 1])
        own = name.removeprefix(f"{tower}.")
        found[tower][own] = formats.add("base", f"tower.{tower}.{own}", None, tensor)
    return [{"name": name, "d_model": width, "tensors": tensors} for name, tensors in found.items()]


def _notes(stored: Checkpoint, layers: list[TracedLayer], config: Config, packed: bool) -> list[str]:
    """What is stored, and how far it tells."""
    types = ", ".join(f"{dtype} {size:,}" for dtype, size in stored.by_dtype.items())
    notes = [f"the tensors have {stored.size:,} bytes: {types}"]
    if packed:
        notes.append("told from its tensors: those that are packed are counted as bytes, not as parameters")
    unkept = next((layer.keeps.unknown for layer in layers if layer.keeps.unknown), "")
    untimed = next((layer.untimed for layer in layers if layer.untimed), "")
    if unkept:
        notes.append(f"told from its tensors: what it keeps of a sequence is not known: {unkept}")
    elif not config.given:
        notes.append("told from its tensors: no config says that a layer has a window, so each keeps every token")
    if untimed:
        notes.append(f"told from its tensors: its time is not known: {untimed}")
    else:
        notes.append(
            "told from its tensors: a time is that of its matmuls and of attention to what it keeps; norms, "
            "activations and what else its code does are not in it, and no measured system stands behind it"
        )
    return notes
