"""The metadata and the blocks of a GGUF file, read so that what nobody asked for is known at the end.

Names: ``gguf-py/gguf/constants.py`` of llama.cpp (``Keys``, ``TENSOR_NAMES``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from math import isfinite
from typing import Any

from inferplan.errors import SpecError
from inferplan.models.header_bytes import Tensor

Shape = tuple[int, ...]
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_BUFFERS = re.compile(
    r"rope_freqs\.weight|rope_factors_(long|short)\.weight|attn_rot_embd\.weight|exp_probs_b(\.bias)?|"
    r"layer_output_scale\.weight|output_scale|(?!ffn_gate_inp\.|ffn_down_exps\.).*\.(input_)?scale"
)
"""What is no parameter: frequencies, correction biases, scales of the file."""


class Metadata:
    """The fields of one architecture."""

    def __init__(self, fields: dict[str, Any], name: str) -> None:
        self.fields, self.name = fields, name
        self.architecture = str(fields.get("general.architecture"))

    def get(self, key: str) -> Any:
        """A field of the architecture, ``None`` where the file does not state it."""
        return self.fields.get(f"{self.architecture}.{key}")

    def need(self, key: str, layer: int = 0) -> int:
        """A number, or that of a layer where the field is a list. Raises ``SpecError`` where it is absent or none."""
        value = self.get(key)
        if isinstance(value, list):
            value = value[layer] if layer < len(value) else None
        if value is None:
            raise SpecError(
                f"{self.name}: the file has no {self.architecture}.{key}", because="the counts depend on it"
            )
        if not isinstance(value, (int, float)) or not isfinite(value) or value % 1:
            raise SpecError(f"{self.name}: {self.architecture}.{key} = {value!r} is not a number")
        return int(value)

    def optional(self, key: str, layer: int = 0) -> int | None:
        """As :meth:`need`; ``None`` where it is absent."""
        return None if self.get(key) is None else self.need(key, layer)


class LayerTensors:
    """The tensors of one layer, by their names without ``blk.N.``; shapes as GGUF writes them, columns first."""

    def __init__(self, tensors: dict[str, Shape], name: str, index: int) -> None:
        self.tensors = {key: shape for key, shape in tensors.items() if not _BUFFERS.fullmatch(key)}
        self.name, self.index = name, index
        self.read: set[str] = set()

    def has(self, tensor: str) -> bool:
        """Whether ``tensor.weight`` is there; reading it is another matter."""
        return f"{tensor}.weight" in self.tensors

    def take(self, tensor: str) -> Shape | None:
        """The shape of a tensor with its ending, ``None`` where it is absent."""
        self.read.add(tensor)
        return self.tensors.get(tensor)

    def weight(self, tensor: str) -> Shape:
        """The shape of ``tensor.weight``. Raises ``SpecError`` where it is absent."""
        shape = self.take(f"{tensor}.weight")
        if shape is None:
            raise SpecError(
                f"{self.name}: the file has no blk.{self.index}.{tensor}.weight", because="its layer needs it"
            )
        return shape

    def bias(self, *tensors: str) -> bool:
        """Whether these have biases, all or none. Raises ``SpecError`` for some."""
        there = [self.take(f"{tensor}.bias") is not None for tensor in tensors if self.has(tensor)]
        if any(there) and not all(there):
            raise SpecError(f"{self.name}: blk.{self.index}: only some of {', '.join(tensors)} have a bias")
        return any(there)

    def norms(self, width: int) -> int:
        """How many norms over the width of the model it has."""
        names = [
            key.removesuffix(".weight")
            for key, shape in self.tensors.items()
            if key not in self.read and re.fullmatch(r"\w*norm(_\d)?\.weight", key) and shape == (width,)
        ]
        for norm in names:
            self.read |= {f"{norm}.weight", f"{norm}.bias"}
        return len(names)

    def finish(self) -> None:
        """Raise ``SpecError`` for a tensor that nobody has read."""
        unread = [key for key in self.tensors if key not in self.read]
        if unread:
            raise SpecError(
                f"{self.name}: tensors of the file are not understood: {', '.join(unread[:4])} (blk.{self.index})",
                because="no part of a layer is known that has them",
                hint="give the model by name; the file's bytes are exact all the same",
            )


def blocks(tensors: Iterable[Tensor], name: str) -> tuple[list[LayerTensors], dict[str, Shape]]:
    """The layers in order, and the tensors outside them. Raises ``SpecError`` for a layer that is not there."""
    inside: dict[int, dict[str, Shape]] = defaultdict(dict)
    outside: dict[str, Shape] = {}
    for tensor in tensors:
        place = _BLOCK.fullmatch(tensor.name)
        if place:
            inside[int(place[1])][place[2]] = tensor.shape
        elif not _BUFFERS.fullmatch(tensor.name):
            outside[tensor.name] = tensor.shape
    lacking = [index for index in range(len(inside)) if index not in inside]
    if lacking:
        raise SpecError(f"{name}: the file has no blk.{lacking[0]}", because=f"it has blk.{max(inside)}")
    return [LayerTensors(inside[index], name, index) for index in sorted(inside)], outside


def parameters(tensors: Iterable[Tensor]) -> int:
    """Elements of every tensor that is a parameter."""
    found = 0
    for tensor in tensors:
        place = _BLOCK.fullmatch(tensor.name)
        found += 0 if _BUFFERS.fullmatch(place[2] if place else tensor.name) else tensor.elements
    return found
