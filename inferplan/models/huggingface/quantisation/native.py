"""A scheme and a model to ``native``: a format for each role, and the tensors that differ from it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from inferplan.errors import SpecError
from inferplan.models.huggingface.quantisation.layouts import LAYOUTS
from inferplan.models.huggingface.quantisation.modules import NESTED_ROOTS, OLDER_ROOT, Layout, Place, places
from inferplan.models.huggingface.quantisation.rules import Module
from inferplan.models.huggingface.quantisation.scheme import Decision, Scheme
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import FORMATS

Stored = Mapping[tuple[str, str], Mapping[Any, str]]


def apply(scheme: Scheme, model: ModelSpec, nested: bool = False) -> tuple[dict[str, Any], list[str]]:
    """The ``native`` table of a model, and notes. nested: the language model stands beside towers.

    Raises ``SpecError`` for a family whose module names are not known, and where some of the experts of a layer, or a
    part of one tensor, is in another format than the rest.
    """
    layout = LAYOUTS.get(model.family)
    if layout is None:
        raise SpecError(
            f"{model.name}: its quantisation is not understood",
            because=f"the names that checkpoints of {model.family} give their modules are not known here",
            hint="a row of huggingface/quantisation/layouts.py; or the model as a YAML (docs/models.md)",
        )
    root = NESTED_ROOTS[model.family in OLDER_ROOT] if nested and layout.root == "model." else layout.root
    native, notes = sum_up(scheme, model, _described(scheme, model, layout, root))
    return native, [*notes, *_towers(scheme, model)]


def _described(scheme: Scheme, model: ModelSpec, layout: Layout, root: str) -> Iterator[tuple[Place, list[Module]]]:
    """Every matrix with its modules, as the layout of the family has them."""
    for place in places(model, layout):
        weight = place.weight
        if weight.role == "base" or len(weight.shape) < 2:
            continue
        if not place.named and weight.role in ("weights", "experts"):
            raise SpecError(
                f"{model.name}: its quantisation is not understood",
                because=f"the module of {weight.name} in checkpoints of {model.family} is not known here",
                hint="a row of huggingface/quantisation/layouts.py; or the model as a YAML (docs/models.md)",
            )
        some = place.modules if scheme.by_expert or not place.apart else (place.modules[0], place.modules[-1])
        yield place, [_module(name, layout, root, weight.role) for name in some]


def sum_up(
    scheme: Scheme, model: ModelSpec, placed: Iterable[tuple[Place, list[Module]]]
) -> tuple[dict[str, Any], list[str]]:
    """The ``native`` table of a model whose matrices are in such modules, and notes. placed: a matrix without modules
    stays wide; one without elements is the name under which several are multiplied together.

    Raises ``SpecError`` where a part of one tensor is in another format than the rest.
    """
    found: dict[tuple[str, str], dict[int | None, str]] = defaultdict(dict)
    sizes: dict[str, Counter[str]] = defaultdict(Counter)
    tables: dict[str, str] = {}
    differ: list[int] = []
    for place, modules in placed:
        weight = place.weight
        stored = _one(scheme.stored, modules, place, model, scheme.divides) or model.native.base
        if scheme.elsewhere is not None and modules and weight.elements:
            other = {scheme.elsewhere(module) or model.native.base for module in modules}
            differ += [weight.elements] if other != {stored} else []
        if weight.role in ("embedding", "head"):
            tables |= {weight.role: stored} if weight.name in ("embedding", "head") else {}
            continue
        sizes[weight.role][stored] += weight.elements
        _keep(found, place, stored)
    native = _roles(scheme, model, sizes, tables)
    native["exceptions"] = exceptions(found, native)
    wide = model.native.base
    kept = {k: v for k, v in native.items() if v is not None and (v != wide or k in ("base", "experts"))}
    return kept, _notes(scheme, differ)


def _module(name: str, layout: Layout, root: str, role: str) -> Module:
    outside = name == layout.head or name.startswith("transformer.")
    full = name if outside else root + name
    return Module(name, full, "Embedding" if role == "embedding" else "Linear")


def _one(decide: Decision, modules: list[Module], place: Place, model: ModelSpec, divides: bool) -> str | None:
    """The format that all modules of a tensor have."""
    found = {decide(module) for module in modules} if modules else {None}
    if len(found) > 1:
        where = "" if place.layer is None else f" of layer {place.layer}"
        said = ", ".join(str(name or model.native.base) for name in sorted(found, key=str))
        raise SpecError(
            f"{model.name}: its quantisation is not understood",
            because=f"{place.weight.name}{where} is one tensor here, and its modules are in {said}",
            hint="formats that differ between experts, or between joined matrices, cannot be priced",
        )
    name = found.pop()
    if name is not None and divides and place.weight.shape[-1] % FORMATS[name].group:
        return None
    return name


def _keep(found: dict[tuple[str, str], dict[int | None, str]], place: Place, stored: str) -> None:
    """Two parts of a layer may call a tensor alike (Gemma 4's gates): the larger one, which comes first, decides."""
    found[place.weight.role, place.weight.name].setdefault(place.layer, stored)


def _roles(scheme: Scheme, model: ModelSpec, sizes: dict[str, Counter[str]], tables: dict[str, str]) -> dict[str, Any]:
    """The most common format of each role, and those of the vocabulary tables."""
    base = model.native.base
    native: dict[str, Any] = {"base": base, "activations": scheme.activations, "kv": scheme.kv}
    for role, counts in sizes.items():
        native[role] = counts.most_common(1)[0][0]
    wide = {name for counts in sizes.values() for name in counts} <= {base}
    if wide:
        native["activations"] = None
    for role, name in tables.items():
        if name != base and not (role == "head" and model.tied):
            native[role] = name
    return native


def _notes(scheme: Scheme, differ: list[int]) -> list[str]:
    if not differ:
        return scheme.notes
    taken, other = scheme.loaders
    what = f"{sum(differ):,} weights in {len(differ)} tensors"
    return [
        *scheme.notes,
        f"modules left out of the quantisation: as {taken} reads the list; {other} differs in {what}",
    ]


_IN_TOWERS = (
    *("visual.blocks.0.mlp.fc1", "model.visual.blocks.0.mlp.fc1", "vision_model.model.layers.0.mlp.fc1"),
    *("vision_tower.vision_model.encoder.layers.0.mlp.fc1", "model.vision_tower.encoder.layers.0.mlp.fc1"),
)
"""Where towers keep a linear layer, in one family or another."""


def _towers(scheme: Scheme, model: ModelSpec) -> list[str]:
    """Towers are counted in the base format; a table that leaves none of them out may have them quantised."""
    stored = [scheme.stored(Module(name, name)) for name in _IN_TOWERS] if model.towers else [None]
    return [] if None in stored else [towers_note(model)]


def towers_note(model: ModelSpec) -> str:
    """What is said of towers that a table does not leave out."""
    return f"towers are counted in {model.native.base}: the quantisation does not leave them out, and may hold for them"


def exceptions(stored: Stored, native: dict[str, Any]) -> list[dict[str, Any]]:
    """Tensors whose format is not their role's, those with the same layers and format together."""
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
    for (role, tensor), by_layer in stored.items():
        odd: dict[str, list[int | None]] = defaultdict(list)
        for index, name in by_layer.items():
            if name != native[role]:
                odd[name].append(index)
        for name, layers in odd.items():
            known = tuple(layer for layer in layers if layer is not None)
            groups[name, () if len(layers) == len(by_layer) else known].append(tensor)
    return [
        {"tensors": tensors, "format": name, **({"layers": list(layers)} if layers else {})}
        for (name, layers), tensors in groups.items()
    ]
