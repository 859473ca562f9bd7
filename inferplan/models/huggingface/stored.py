"""A folder's tensors against what its config promises: names, shapes and bytes of every matrix, then the sum of all."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations

from inferplan.errors import SpecError
from inferplan.models.checkpoint import Checkpoint
from inferplan.models.ends import OutputHead
from inferplan.models.header_bytes import Tensor
from inferplan.models.huggingface.quantisation import LAYOUTS, Layout, checkpoint_shapes, places
from inferplan.models.huggingface.quantisation.modules import NESTED_ROOTS
from inferplan.models.safetensors_header import WIDE_TYPES
from inferplan.models.spec import NORM_VECTORS, ModelSpec
from inferplan.work.formats import find_format

_NOT_PARAMETERS = (
    *("rotary_emb.inv_freq", "rope_freqs.weight", "e_score_correction_bias", "masked_bias", ".attn.bias"),
    *(".attention.bias", "position_ids", "token_type_ids", "final_logits_bias", "k_scale", "v_scale"),
    "EncDecAttention.relative_attention_bias.weight",  # T5's first release; transformers drops it when it loads
)
"""Ends of the names of buffers."""
_BESIDE = re.compile(
    r"(?:^|.*\.)(mtp|mtp_layers)\..*|(?!.*\.(?:layers?|h|blocks?)\.\d+\.)(?:^|.*\.)((?:encoder|decoder)\.embed_tokens"
    r"|shared|lm_head|proj_out|pooler|classifier|score|qa_outputs|cls\.predictions\.decoder|cls\.predictions"
    r"|cls\.seq_relationship)\..*|(head|decoder)\.(?:dense|norm|weight|bias).*"
)
"""Modules that one class of a family stores and another does not read: prediction modules, tables twice, heads."""
_MISTRAL = "layers.0.attention.wq.weight"
"""A tensor of the folders that Mistral writes for its own code (consolidated.safetensors)."""
_PREFIXES = ("", "language_model.", "model.language_model.", "thinker.")
"""What may stand ahead of the head beside towers."""
_CLOSE, _SMALL = 0.02, 1024
"""What a module may store beside its format: a share of its bytes, or a few scales and a code book."""
_NOT_COMPARED = "its module names are not known here: tensors are not compared"
_HINT = "a config of another model, a fine-tune with other tensors, or a quantisation that the config does not state"


@dataclass(frozen=True, kw_only=True)
class _Module:
    """One module of the checkpoint: its matrix, and the bytes that its formats promise."""

    shape: tuple[int, ...]
    size: float
    formats: frozenset[str]


def compare(model: ModelSpec, stored: Checkpoint) -> tuple[list[str], bool]:
    """Notes on what a folder stores beside, or otherwise than, the model of its config; whether it has every element of
    the model, in the types of the config.

    Every matrix must be there, in its shape, and with the bytes of its format (``native``); a checkpoint that is not
    quantised must have the elements of the model's parameters in all. A wide type that is not the config's, tied heads,
    prediction modules and towers that are there or not are noted. Raises ``SpecError`` that names what differs.
    """
    said, odd = [f"the folder stores {stored.size:,} bytes"], []
    layout = LAYOUTS.get(model.family)
    if any(tensor.name == _MISTRAL for tensor in stored.tensors) and (layout is None or layout.root):
        layout, said = None, [*said, "the tensors have the names of mistral-inference"]
    if layout is not None:
        odd = _matrices(model, stored, layout)
    native = model.native
    formats = {
        native.weights,
        native.experts,
        native.embedding,
        native.head,
        *(one.format for one in native.exceptions),
    }
    if formats <= {None, *WIDE_TYPES.values()}:
        beside, lacking = _elements(model, stored)
        return [*said, *odd, *beside], not odd and not lacking
    return [*said, *odd, *([] if layout is not None else [_NOT_COMPARED])], False


def _matrices(model: ModelSpec, stored: Checkpoint, layout: Layout) -> list[str]:
    """Notes on types; raises for matrices that are missing, of another shape or of other bytes."""
    by_module: dict[str, list[Tensor]] = defaultdict(list)
    for tensor in stored.tensors:
        by_module[_module(tensor.name)].append(tensor)
    head = next((name for before in _PREFIXES if (name := before + layout.head) in by_module), layout.head)
    promised = _promised(model, layout, _root(model, layout, set(by_module)), head)
    if model.tied:
        promised = {name: module for name, module in promised.items() if name != head}
    missing = [name for name in promised if name not in by_module]
    if missing:
        raise _differs(stored, f"it lacks {len(missing)} of {len(promised)} matrices, such as {', '.join(missing[:3])}")
    wrong, odd = [], defaultdict(list)
    for name, module in promised.items():
        there = [tensor for tensor in by_module[name] if not tensor.name.endswith(".bias")]
        matrix = max(there, key=lambda tensor: tensor.size)
        if module.formats <= set(WIDE_TYPES.values()) and sorted(matrix.shape) != sorted(module.shape):
            wrong.append(f"{matrix.name} is {_by(matrix.shape)} and the config gives {_by(module.shape)}")
        size = sum(tensor.size for tensor in there)
        if abs(size - module.size) > max(_SMALL, _CLOSE * module.size):
            odd[matrix.dtype, "+".join(sorted(module.formats))].append(name)
    if wrong:
        raise _differs(stored, f"{len(wrong)} matrices have another shape: {'; '.join(wrong[:3])}")
    notes = []
    for (dtype, promised_as), names in odd.items():
        text = f"{len(names)} of {len(promised)} matrices are stored as {dtype} and the config says {promised_as}"
        if dtype not in WIDE_TYPES or promised_as not in WIDE_TYPES.values():
            raise _differs(stored, f"{text}, such as {names[0]}")
        notes.append(f"{text}: engines load them as {promised_as}")
    return notes


def _promised(model: ModelSpec, layout: Layout, root: str, head: str) -> dict[str, _Module]:
    """Every module with a matrix, by its name in the checkpoint."""
    sizes: dict[str, float] = defaultdict(float)
    formats: dict[str, set[str]] = defaultdict(set)
    for place in places(model, layout):
        weight = place.weight
        if len(weight.shape) < 2 or not place.modules or weight.role == "base":
            continue
        name = model.native.stored(weight, place.layer)
        for module in place.modules:
            sizes[module] += find_format(name).stored(weight.shape) / len(place.modules)
            formats[module].add(name)
    shapes = checkpoint_shapes(model, layout, "")
    return {
        (head if name == layout.head else root + name): _Module(
            shape=shapes.get(f"{name}.weight", shapes.get(name, ())), size=size, formats=frozenset(formats[name])
        )
        for name, size in sizes.items()
    }


def _root(model: ModelSpec, layout: Layout, modules: set[str]) -> str:
    """What stands ahead of the layers in this checkpoint; a base model without a head has nothing there."""
    first = next(name for place in places(model, layout) for name in place.modules if place.weight.role != "base")
    roots = dict.fromkeys((layout.root, *NESTED_ROOTS, "language_model.", "decoder.", ""))
    return next((root for root in roots if root + first in modules), layout.root)


def _module(name: str) -> str:
    """The module that a tensor belongs to: ``q_proj`` of ``q_proj.weight_scale``, ``experts.down_proj`` of blocks."""
    stem, _, leaf = name.rpartition(".")
    for ending in ("_blocks", "_scales", "_bias", "_scale_inv", "_scale", "_packed"):
        if leaf.endswith(ending) and not leaf.startswith("weight"):
            return f"{stem}.{leaf.removesuffix(ending)}"
    inner = stem.partition(".weight.")[0] if ".weight." in name else stem
    known = (
        "weight",
        "bias",
        "q",
        "g_idx",
        "scales",
        "biases",
        "SCB",
        "zeros",
        "input_",
        "absmax",
        "nested_",
        "quant_",
    )
    return inner.removesuffix(".weight") if leaf.startswith(known) else name


def _elements(model: ModelSpec, checkpoint: Checkpoint) -> tuple[list[str], bool]:
    """Notes on what is stored beside the parameters of the config, or is not, and whether something is not.

    Raises ``SpecError`` where the sums differ still.
    """
    kept = [t for t in checkpoint.tensors if not t.name.endswith(_NOT_PARAMETERS)]
    difference = sum(t.elements for t in kept) - model.parameters["total"] - model.tower_parameters
    alone = model.tied and model.encoder is None  # copies of a table that two halves share are told by their names
    beside: list[tuple[str, int]] = [
        ("the tied head is stored as well", model.parameters["embedding"] if alone else 0),
        ("prediction modules are stored as well", model.mtp_parameters),
        ("the towers are not in it", -model.tower_parameters),
        *((f"its {head.name} is not in it", -_head(head, NORM_VECTORS[model.norm])) for head in model.ends.heads),
        *((f"{name} is stored as well", elements) for name, elements in _further(kept).items()),
    ]
    kinds = [(said, elements) for said, elements in beside if elements]
    for count in range(len(kinds) + 1):
        for chosen in combinations(kinds, count):
            if sum(elements for _, elements in chosen) == difference:
                return [said for said, _ in chosen], any(elements < 0 for _, elements in chosen)
    raise _differs(
        checkpoint,
        f"it stores {sum(t.elements for t in kept):,} elements and the config has "
        f"{model.parameters['total'] + model.tower_parameters:,} parameters ({difference:+,})",
    )


def _head(head: OutputHead, vectors: int) -> int:
    """Elements of a head's own layers. vectors: those of a norm."""
    return sum(weight.elements for layer in head.layers for weight in layer.weights("", vectors))


def _further(tensors: list[Tensor]) -> dict[str, int]:
    """Elements of each module that may be there or not."""
    sizes: dict[str, int] = defaultdict(int)
    for tensor in tensors:
        found = _BESIDE.fullmatch(tensor.name)
        if found:
            sizes[found[1] or found[2] or found[3]] += tensor.elements
    return dict(sizes)


def _differs(stored: Checkpoint, because: str) -> SpecError:
    return SpecError(f"{stored.path} is not the model of its config", because=because, hint=_HINT)


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
