"""The formats of a traced model's tensors: what its config says of its quantisation, asked module by module.

transformers builds a model unquantised. Which modules a checkpoint has packed, and how, the readers of
:mod:`inferplan.models.huggingface.quantisation` tell by the names that the checkpoint gives them: those that
transformers itself writes (``revert_weight_conversion``). A module that no rule is made for is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from inferplan.errors import SpecError
from inferplan.models.huggingface.quantisation import LAYOUTS, Scheme, sum_up, towers_note
from inferplan.models.huggingface.quantisation.modules import Place
from inferplan.models.huggingface.quantisation.rules import Module, without_root
from inferplan.models.huggingface.quantisation.scheme import HEADS
from inferplan.models.layers.base import Mixer, Weight
from inferplan.models.layers.traced import TracedLayer, layer_groups
from inferplan.models.spec import ModelSpec, Native
from inferplan.models.tracing.assemble import unjoined
from inferplan.models.tracing.build import Traced, first_line
from inferplan.work.formats import FORMATS, Format

_LIKE = ("deepseek_v3", "mamba2", "nemotron_h", "qwen3_next", "qwen3_5_text", "olmo_hybrid", "kimi_linear")
"""Families whose checkpoints between them have every spelling of the modules in a described mixer."""
_EXPERT = re.compile(r"(?<=\.)\d+(?=\.[^.]+$)")
_HINT = "take quantization_config out, and say the formats with --weights or --quant; or describe the model as a YAML"

Placed = tuple[Place, list[Module]]


@dataclass(frozen=True)
class _Stored:
    """A matrix as a checkpoint has it: its modules, none where it stays wide, and its shape in the order of
    ``torch.nn.Linear``, one dimension more where an expert has several matrices in it."""

    modules: list[Module]
    shape: tuple[int, ...]


def quantised(found: ModelSpec, scheme: Scheme, traced: Traced) -> ModelSpec:
    """The traced model in the formats of its checkpoint.

    Raises ``SpecError`` that names the module whose format the scheme does not tell.
    """
    said = _Said(found, scheme, traced)
    native, notes = sum_up(scheme, found, said.placed())
    if any(said.is_stored(name) for name in said.towers()):
        notes = [*notes, towers_note(found)]
    fields = found.to_dict() | {"native": Native.model_validate(native).model_dump(exclude_defaults=True)}
    fields |= {"layers": layer_groups(said.layers), "notes": [*found.notes, *notes]}
    return ModelSpec.model_validate(fields)


class _Said:
    """What a scheme says of the tensors of a traced model."""

    def __init__(self, found: ModelSpec, scheme: Scheme, traced: Traced) -> None:
        self.found, self.scheme, self.traced = found, scheme, traced
        self.parameters = dict(traced.built.named_parameters(remove_duplicate=False))
        self.layers: list[TracedLayer] = []
        """Those of the model, with matrices in the shape that they are stored in, once they are placed."""

    def placed(self) -> Iterator[Placed]:
        """Every matrix with its modules, in the order of the model."""
        for weight in self.found.input_weights():
            yield from self._outside(weight)
        for index, layer in enumerate(self.found.sequence):
            assert isinstance(layer.mixer, TracedLayer)
            yield from self._layer(index, layer.mixer)
        for weight in self.found.output_weights():
            yield from self._outside(weight)

    def towers(self) -> Iterator[str]:
        """The linear layers that are counted in towers."""
        for tower in self.found.towers:
            for name, module in self.traced.built.named_modules():
                if isinstance(module, torch.nn.Linear) and name.startswith(f"{tower.name}."):
                    yield name

    def is_stored(self, name: str) -> bool:
        """Whether the scheme has a linear layer in a format of its own."""
        return self.scheme.stored(_module(name)) is not None

    def _outside(self, weight: Weight) -> Iterator[Placed]:
        if len(weight.shape) < 2:
            return
        place = Place(weight=weight, layer=None, modules=())
        if weight.name == "embedding":
            yield place, [_module(name, "Embedding") for name in self._checkpoint(f"{self.traced.embedding}.weight")]
        elif weight.name == "head":
            modules = [_module(name) for name in self._checkpoint(f"{self.traced.head}.weight")]
            if any(one.name not in HEADS and self.scheme.stored(one) is not None for one in modules):
                raise self._refused(self.traced.head, "whether a head of that name is left out is not known")
            yield place, modules
        else:
            stored = self._stored(self._full("", weight.name), weight)
            yield from [] if stored is None else [(place, stored.modules)]

    def _layer(self, index: int, layer: TracedLayer) -> Iterator[Placed]:
        prefix, parts, tensors = self.traced.prefixes[index], {}, []
        routes = {one.shape[0] for one in layer.tensors if one.role == "experts"}
        for one in layer.tensors:
            weight = Weight(name=one.name, shape=tuple(one.shape), role=one.role)
            if routes and len(one.shape) == 2 and one.shape[0] in {1, *routes} and one.role != "experts":
                # a router, or the gate of a shared expert: engines keep both wide, whatever the list says
                stored = None if one.role == "base" else _Stored([], weight.shape)
            else:
                stored = self._stored(self._full(prefix, one.name), weight)
            if stored is None:
                tensors.append(one)
                continue
            parts[one.name] = stored
            weight = Weight(name=one.name, shape=stored.shape, role=one.role)
            tensors.append(one.model_copy(update={"shape": list(stored.shape)}))
            yield Place(weight=weight, layer=index, modules=()), stored.modules
        for operator in layer.operators:
            names = [name for name in unjoined(operator.name) if name in parts]
            if len(names) > 1:  # multiplied together: all in one format
                modules = [module for name in names for module in parts[name].modules]
                shape = (0, parts[names[0]].shape[-1])
                weight = Weight(name=operator.name, shape=shape, role=operator.role)
                yield Place(weight=weight, layer=index, modules=()), modules
        if layer.mixer is not None:
            yield from self._mixer(index, layer.mixer)
        self.layers.append(layer.model_copy(update={"tensors": tensors}))

    def _mixer(self, index: int, mixer: Mixer) -> Iterator[Placed]:
        """The matrices of a described mixer, in the modules of a family that spells all of them as this one does."""
        inside = f"{self.traced.mixers[index]}."
        own = [name for full in self.parameters if full.startswith(inside) for name in self._checkpoint(full)]
        leaves = {name.rpartition(".")[2]: name for name in own}
        wanted = [one for one in mixer.weights(self.found.d_model) if one.role != "base" and len(one.shape) > 1]
        for family in _LIKE:
            names = LAYOUTS[family].names
            modules = [names.get(f"{mixer.kind}:{one.name}", names.get(one.name, ("?",))) for one in wanted]
            spelt = [[leaves.get(name.rpartition(".")[2]) for name in each] for each in modules]
            if all(None not in each for each in spelt):
                for weight, each in zip(wanted, spelt, strict=True):
                    found = [_module(name) for name in each if name is not None]
                    yield Place(weight=weight, layer=index, modules=()), found
                return
        raise self._refused(inside[:-1], f"the names that checkpoints give a {mixer.kind} like it are not known")

    def _full(self, prefix: str, name: str) -> str:
        """The parameter that a tensor of a traced layer is."""
        return next(full for full in (f"{prefix}{name}.weight", f"{prefix}{name}") if full in self.parameters)

    def _stored(self, full: str, weight: Weight) -> _Stored | None:
        """A matrix as it is stored; nothing for one that no method packs. Raises ``SpecError`` where that is open."""
        owner = self.traced.built.get_submodule(full.rpartition(".")[0])
        known = isinstance(owner, torch.nn.Linear) or type(owner).__name__ == "Conv1D" or weight.role == "experts"
        other = isinstance(owner, torch.nn.modules.conv._ConvNd | torch.nn.Embedding) or len(weight.shape) < 2
        if other or (weight.role == "base" and not known):
            return None if weight.role == "base" else _Stored([], weight.shape)
        shapes = self._checkpoint(full)
        modules = [_module(name) for name in (shapes if self.scheme.by_expert else _one_each(shapes))]
        packed = {name for name in map(self.scheme.stored, modules) if name is not None}
        if packed and (weight.role == "base" or not known):
            why = "no matmul of a token was seen to read it" if weight.role == "base" else "it is no linear layer"
            raise self._refused(next(iter(shapes)), f"the method may pack it or not: {why}")
        if weight.role == "base":
            return None
        across = type(owner).__name__ == "Conv1D" or getattr(owner, "is_transposed", False) is True
        shape = _matrices(weight.shape, across, list(shapes.values())) if packed else weight.shape
        told = hasattr(owner, "is_transposed") or isinstance(owner, torch.nn.Linear) or weight.role != "experts"
        if shape is None or not (told or all(_is_square(FORMATS[name], shape) for name in packed)):
            raise self._refused(next(iter(shapes)), "which of its dimensions is that of its inputs is not known")
        return _Stored(modules, shape)

    def _checkpoint(self, full: str) -> dict[str, tuple[int, ...]]:
        """The modules in a checkpoint that a parameter is made of, with the shapes of their weights."""
        from transformers.core_model_loading import revert_weight_conversion

        try:
            with torch.no_grad():
                found = revert_weight_conversion(self.traced.built, {full: self.parameters[full]})
        except Exception as error:
            raise self._refused(full, f"what a checkpoint calls it is not known: {first_line(error)}") from None
        return {name.removesuffix(".weight"): tuple(one.shape) for name, one in found.items()}

    def _refused(self, module: str, because: str) -> SpecError:
        return SpecError(f"{self.found.source}: the quantisation of {module} is not understood", because, _HINT)


def _module(name: str, kind: Any = "Linear") -> Module:
    return Module(without_root(name), name, kind)


def _one_each(names: Mapping[str, Any]) -> list[str]:
    """Of the same matrix of several experts, that of the first."""
    return list({_EXPERT.sub("0", name): name for name in reversed(list(names))}.values())


def _turned(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


def _is_square(stored: Format, shape: tuple[int, ...]) -> bool:
    """Whether a format has as many bytes for it whichever dimension is that of its inputs."""
    return stored.stored(shape) == stored.stored(_turned(shape))


def _matrices(shape: tuple[int, ...], across: bool, stored: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of a tensor, a dimension more where it is several matrices; nothing where these are not alike.

    across: its last two dimensions are those of ``torch.nn.Linear`` turned. stored: the matrices of a checkpoint.
    """
    own = _turned(shape) if across else shape
    if len(stored) == 1:
        return own
    (rows, columns), *others = {one[-2:] for one in stored}
    parts = own[-2] // rows
    if others or columns != own[-1] or prod(own) != len(stored) * rows * columns:
        return None
    return own if parts == 1 else (*own[:-2], parts, rows, columns)
