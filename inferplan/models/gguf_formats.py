"""llama.cpp's file types: which format ``llama-quantize`` gives each tensor of a model.

A ``Q4_K_M`` file is a mix: most matrices are q4_k, the head is q6_k, half of the value and down projections too, and
a row that is no multiple of a block takes another format. The rules are those of ``llama_tensor_get_type`` in
llama.cpp's ``src/llama-quant.cpp``, without an importance matrix. ``q4_k-pure`` is ``llama-quantize --pure``: every
matrix in one format.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from inferplan.errors import UsageError
from inferplan.models.layers import Weight
from inferplan.models.layers.attention import AttentionLayer
from inferplan.models.layers.mla import MlaLayer
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import GGUF_BLOCKS, Format, Precision, find_format

FILE_TYPES = {
    "q2_k": "q2_k",
    "q3_k_s": "q3_k",
    "q3_k_m": "q3_k",
    "q3_k_l": "q3_k",
    "q4_0": "q4_0",
    "q4_1": "q4_1",
    "q4_k_s": "q4_k",
    "q4_k_m": "q4_k",
    "q5_0": "q5_0",
    "q5_1": "q5_1",
    "q5_k_s": "q5_k",
    "q5_k_m": "q5_k",
    "q6_k": "q6_k",
    "q8_0": "q8_0",
}
"""File type to the format of most of its matrices."""
_FALLBACK = {"q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
_FALLBACK |= {name: "iq4_nl" for name in GGUF_BLOCKS if name.startswith("iq") and name != "iq4_nl"}
"""What a matrix takes whose rows are no multiple of 256."""
_FUSED = frozenset(
    {"phi3", "gpt2", "gpt_bigcode", "gpt_neox", "codegen", "bloom", "falcon", "mpt", "dbrx", "qwen", "refinedweb"}
)
"""Families whose files keep q, k and v as one matrix, which the rules treat as a value projection."""
_SEVENTY = frozenset({"llama", "qwen2", "nemotron-nas"})
"""Families in which llama.cpp calls a model of 80 layers and fewer KV heads than heads a 70B."""
_CATEGORIES = {
    "q": "q",
    "k": "k",
    "index.k": "k",
    "v": "v",
    "in.qk": "qkv",
    "o": "o",
    "down": "down",
    "expert.down": "down",
    "shared.down": "down",
}
_WIDE_MATRICES = frozenset({"left", "right", "per_layer.projection", "streams.in", "streams.out"})
"""Matrices that are left in the base format."""
_QUANTISED_SMALL = frozenset({"index.weights"})
"""Tensors of the base role that are matrices in the file."""


_MODULE_MATRIX = "mtp.projection"
"""A prediction module's, which engines keep in the base format and the file (``nextn.eh_proj``) does not."""


def is_file_type(name: str) -> bool:
    """Whether a ``--quant`` is a file type of llama.cpp, or a format with ``-pure`` behind it."""
    return name in FILE_TYPES or (name.endswith("-pure") and name.removesuffix("-pure") in GGUF_BLOCKS)


def narrow_types(most: float) -> list[str]:
    """File types whose matrices have 2 to 5 bits per weight, and at most ``most``. Without the formats of models that
    are trained with three values."""
    files = {**FILE_TYPES, **{f"{name}-pure": name for name in GGUF_BLOCKS if not name.startswith("tq")}}
    bits = {name: find_format(main).width * 8 for name, main in files.items()}
    return [name for name in bits if 2 <= bits[name] < min(5, most)]


def file_precision(model: ModelSpec, file_type: str) -> Precision:
    """The formats of a GGUF file of ``file_type``. Raises ``UsageError`` for one that is not known.

    A tensor whose format changes from layer to layer gets their mean, so that bytes are exact for the whole model.
    Norms, biases, routers and the like are fp32; activations and the KV cache stay in the model's base format.
    """
    if not is_file_type(file_type):
        raise UsageError(f"no GGUF file type {file_type!r}", hint=", ".join([*FILE_TYPES, "q4_k-pure"]))
    rules = _Rules(model, file_type)
    base = find_format(model.native.base)
    main = find_format(rules.default)
    elements: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for tensor, layer in _tensors(model):
        for name, share in rules.formats(tensor, layer):
            elements[tensor.name][name] += share
    found = {tensor: blend(parts) for tensor, parts in elements.items() if any(parts.values())}  # norms without weights
    embedding = found.pop("embedding")
    head = found.pop("head", embedding)
    return Precision(
        weights=main,
        experts=main,
        activations=base,
        kv=base,
        embedding=embedding,
        head=head,
        base=base,
        exceptions=(
            *((tensor, fmt, frozenset()) for tensor, fmt in found.items() if fmt != main),
            *(((_MODULE_MATRIX, main, frozenset()),) if model.mtp else ()),
        ),
    )


def blend(parts: dict[str, int]) -> Format:
    """One format with the mean bytes of several, weighted by their elements."""
    formats = {find_format(name): count for name, count in parts.items() if count}
    if len(formats) == 1:
        return next(iter(formats))
    total = sum(formats.values())
    bits = sum(fmt.width * 8 * count for fmt, count in formats.items()) / total
    names = sorted(formats, key=lambda fmt: (-formats[fmt], fmt.name))
    return Format(
        name="+".join(fmt.name for fmt in names),
        bits=bits,
        math=names[0].math,
        like=names[0].name,
        source="mean of " + ", ".join(f"{formats[fmt] / total:.0%} {fmt.name}" for fmt in names),
    )


def _tensors(model: ModelSpec) -> Iterator[tuple[Weight, int]]:
    """Every tensor with its layer; -1 outside the layers."""
    yield from ((weight, -1) for weight in (*model.input_weights(), *model.output_weights()))
    for index, layer in enumerate(model.sequence):
        if not layer.shared:
            yield from ((weight, index) for weight in model.layer_weights(layer))


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a matrix stands among those that the rules count: its index and how many there are."""

    index: int
    count: int

    @property
    def more_bits(self) -> bool:
        """The first and last eighth, and every third between them."""
        eighth = self.count // 8
        return self.index < eighth or self.index >= 7 * self.count // 8 or (self.index - eighth) % 3 == 2


class _Rules:
    """The rules for one model and one file type."""

    def __init__(self, model: ModelSpec, file_type: str) -> None:
        self.pure = file_type.endswith("-pure")
        self.file_type = file_type
        self.default = file_type.removesuffix("-pure") if self.pure else FILE_TYPES[file_type]
        self.model = model
        self.layers = len(model.sequence) + (model.mtp.modules if model.mtp else 0)
        parts = [part for layer in model.sequence for part in layer.parts]
        self.experts = max((getattr(part, "experts", 0) for part in parts), default=0)
        self.falcon = model.family == "falcon"
        self.groups = next((part.heads // part.kv_heads for part in parts if isinstance(part, AttentionLayer)), 1)
        self.seventy = model.family in _SEVENTY and len(model.sequence) == 80 and self.groups > 1
        self.values = self._places(model, {"v", "in.qk"})
        self.downs = self._places(model, {"down"})

    @staticmethod
    def _places(model: ModelSpec, tensors: set[str]) -> dict[int, int]:
        """Layer to its number among the layers that have one of these tensors."""
        having = [
            index
            for index, layer in enumerate(model.sequence)
            if any(weight.name in tensors for weight in model.layer_weights(layer))
        ]
        return {index: place for place, index in enumerate(having)}

    def formats(self, weight: Weight, layer: int) -> Iterator[tuple[str, int]]:
        """The formats of a tensor with the elements in each."""
        matrix = weight.role != "base" or weight.name in _QUANTISED_SMALL
        if not matrix or weight.name in ("positions", "head.bias", "expert.bias"):
            yield "fp32", weight.elements
        elif weight.name in _WIDE_MATRICES:
            yield self.model.native.base, weight.elements
        elif weight.name == "kv_b":  # two matrices in the file: one of rows as wide as a head's key, one as the latent
            latent = next(part for part in self.model.sequence[layer].parts if isinstance(part, MlaLayer))
            key = weight.elements * latent.nope_dim // (latent.nope_dim + latent.value_dim)
            yield self._fitting(self.default, latent.nope_dim), key
            yield self._fitting(self.default, weight.shape[-1]), weight.elements - key
        elif weight.name == "in.vz":  # the value half is in the file's attn_qkv, the gate half apart
            for category in ("qkv", "other"):
                yield self._fitting(self._target(category, layer, weight), weight.shape[-1]), weight.elements // 2
        else:
            category = _CATEGORIES.get(weight.name, "other")
            if category in ("q", "k", "v") and self.model.family in _FUSED:
                category = "qkv"
            target = self._target(category, layer, weight)
            yield self._fitting(target, weight.shape[-1]), weight.elements

    def _fitting(self, target: str, columns: int) -> str:
        """The format itself, or what takes its place where a row is no multiple of its block."""
        if columns % find_format(target).group == 0:
            return target
        narrow = _FALLBACK.get(target, "fp16")
        return narrow if columns % find_format(narrow).group == 0 else "fp16"

    def _target(self, category: str, layer: int, weight: Weight) -> str:
        if self.pure:
            return self.default
        if weight.name == "head" or (weight.name == "embedding" and self.model.tied):
            if self.falcon or weight.shape[-1] % find_format(self.default).group:
                return "q8_0"
            return "q8_0" if self.default == "q8_0" else "q6_k"
        if category in ("v", "qkv"):
            return self._value(layer)
        if category == "k" and self.experts == 8:
            return "q8_0"
        if category == "down":
            return self._down(layer)
        if category == "o":
            return self._output()
        return self.default

    def _value(self, layer: int) -> str:
        place = _Place(index=self.values.get(layer, layer), count=max(len(self.values), 1))
        found = {
            "q2_k": "q4_k" if self.groups >= 4 else "q3_k",
            "q3_k_m": "q5_k" if place.index < 2 else "q4_k",
            "q3_k_l": "q5_k",
            "q4_k_m": "q6_k" if place.more_bits else self.default,
            "q5_k_m": "q6_k" if place.more_bits else self.default,
            "q4_k_s": "q5_k" if place.index < 4 else self.default,
        }.get(self.file_type, self.default)
        if self.seventy and found in ("q3_k", "q4_k"):
            found = "q5_k"
        return "q8_0" if self.experts == 8 else found

    def _down(self, layer: int) -> str:
        index = layer if self.experts > 1 else self.downs.get(layer, layer)
        place = _Place(index=index, count=self.layers)
        falcon, more = self.falcon, place.more_bits
        early = index < self.layers // 16
        medium = ("q6_k" if early else "q5_k" if more else "q4_k") if falcon else ("q6_k" if more else "q4_k")
        return {
            "q2_k": "q3_k",
            "q3_k_m": "q5_k" if early else "q4_k" if not falcon or more else "q3_k",
            "q3_k_l": "q4_k" if falcon else "q5_k",
            "q4_k_m": medium,
            "q5_k_m": "q6_k" if more else "q5_k",
            "q4_k_s": "q5_k" if not falcon and index < self.layers // 8 else "q4_k",
        }.get(self.file_type, self.default)

    def _output(self) -> str:
        if self.falcon:
            return "q4_k" if self.file_type == "q3_k_l" else self.default
        if self.experts == 8:
            eight = ("q2_k", "q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m")
            return "q5_k" if self.file_type in eight else self.default
        return {"q2_k": "q3_k", "q3_k_m": "q4_k", "q3_k_l": "q5_k"}.get(self.file_type, self.default)
