"""A built model and its passes as a :class:`ModelSpec` with basis ``traced``."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from math import prod
from typing import Any

from inferplan.errors import SpecError
from inferplan.models.huggingface import model_from_config
from inferplan.models.huggingface.reader import DTYPES
from inferplan.models.layers.base import Mixer
from inferplan.models.layers.traced import TracedCache, TracedLayer, TracedTensor, layer_groups
from inferplan.models.spec import ModelSpec
from inferplan.models.tracing import assemble as parts
from inferplan.models.tracing.build import Asked, Traced, first_line
from inferplan.models.tracing.experts import ExpertShare, shares
from inferplan.models.tracing.fit import FEW, MORE, NO_PAST
from inferplan.models.tracing.growth import growth
from inferplan.models.tracing.kernels import TracedKernel, kernels
from inferplan.models.tracing.mixers import MixerFacts, described_mixer, without
from inferplan.models.tracing.passes import Subject, TracedPass, TracedPoint, cache_layers, tensors_of
from inferplan.models.tracing.record import Place, Recorder

EXPANDS = (
    "traced: matmuls run over all cached tokens at every step (latent attention as transformers runs it, and none that "
    "is described); engines absorb them, so the time of a decode step is far above theirs"
)

UNKNOWN = "traced: the number of experts per token is not known, nor the number of active parameters"
BEHIND = (
    "traced: the encoder is counted as a tower; each of its positions keeps as much as a token that the decoder writes"
)


def _expands(layer: TracedLayer) -> bool:
    return any(one.runs == "matmul" and "bp" in one.rows for one in layer.operators)


@dataclass
class TracedPasses:
    """The passes of a model, or why there are none."""

    points: tuple[TracedPoint, ...] = ()
    passes: list[TracedPass] = field(default_factory=list)
    kernels: list[dict[Place, list[TracedKernel]]] = field(default_factory=list)
    recorder: Recorder | None = None
    why: str = ""
    """Why the operators that it has are not those of real numbers."""


def assemble(model: Any, config: Any, asked: Asked) -> tuple[ModelSpec, Traced]:
    """The traced model in its base format, and which of its tensors is which module.

    Raises ``SpecError`` where the class runs no tokens, or keeps what is not understood."""
    import transformers

    source = asked.source
    try:
        subject, recorded, caches = passes(model, asked.timed)
    except SpecError as error:
        raise SpecError(f"{source}: {error.what}", error.because, error.hint) from None
    except Exception as error:
        raise SpecError(f"{source}: {type(model).__name__} does not run on tokens alone", first_line(error)) from None
    version = f"transformers {transformers.__version__}, {type(model).__name__}"
    text = config.get_text_config()
    try:
        assembly = Assembly(subject, recorded, caches, int(getattr(text, "vocab_size", 1) or 1))
        spec = assembly.fields()
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(
            f"{source}: the modules of {type(model).__name__} are not understood", first_line(error)
        ) from None
    try:
        found = ModelSpec.model_validate(
            {
                "name": asked.name,
                "family": str(config.model_type),
                "source": source,
                "basis": "traced",
                "made_from": {"file": source, "traced": f"{version} run on meta tensors; {_beside(config)}"},
                "native": {"base": _format(text.dtype or config.dtype, source)},
                "max_context": getattr(text, "max_position_embeddings", None),
                **spec,
            }
        )
    except ValueError as error:
        raise SpecError(
            f"{source}: the code that ran is not a model that can be described", first_line(error)
        ) from None
    counted, held = found.parameters["total"] + found.tower_parameters, sum(map(prod, subject.parameters.values()))
    if counted != held:  # layers that run more than once, say
        raise SpecError(f"{source}: a trace counts {counted:,} parameters of {held:,}")
    return found, assembly.traced()


def _format(dtype: Any, source: str) -> str:
    """The format of a type of torch; bf16 where the config names none, as a described model has it."""
    named = "bfloat16" if dtype is None else str(dtype)
    if named not in DTYPES:
        raise SpecError(f"{source}: dtype = {named} is not understood", because=f"only {', '.join(DTYPES)} are known")
    return DTYPES[named]


def _beside(config: Any) -> str:
    """In words: whether the config is read without a trace as well."""
    try:
        model_from_config(json.loads(json.dumps(config.to_dict(), default=str)), "", "")
    except SpecError:
        return "this model is not described"
    return "it is described too: without --trace its config is read"


def passes(model: Any, timed: bool = True) -> tuple[Subject, TracedPasses, list[TracedCache]]:
    """What a model runs and keeps; what its decoder does, where all of it does not run on tokens alone."""
    try:
        return _passes(Subject(model), timed)
    except SpecError:
        raise
    except Exception:
        decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
        if decoder in (None, model):
            raise
        found = Subject(model, decoder)
        if not found.takes_ids or "encoder_hidden_states" in signature(decoder.forward).parameters:
            raise  # it attends to what text does not bring, whose cache would not be seen
        return _passes(found, timed)


def _passes(subject: Subject, timed: bool) -> tuple[Subject, TracedPasses, list[TracedCache]]:
    recorded = record(subject, timed)
    caches = growth(subject) if subject.caches else []
    if caches and not recorded.why:
        subject.mixers = _mixers(subject, recorded, caches)
    if subject.mixers:
        again = record(subject)
        ran = [(place, one) for place, run in again.kernels[0].items() for one in run if one.runs == "mixer"]
        if (
            again.why  # a layer that has no time with them has none at all
            or sorted(one.names[0] for _, one in ran) != sorted(subject.mixers)  # not called, or more than once
            or any(is_untimed(again, place) for place, _ in ran)
        ):
            subject.mixers = {}
        else:
            recorded = again
    return subject, recorded, caches


def _mixers(subject: Subject, recorded: TracedPasses, caches: list[TracedCache]) -> dict[str, Mixer]:
    """The modules, one in a layer, that a described kind stands for, by their names."""
    recorder, kernels_of = recorded.recorder, recorded.kernels[0]
    assert recorder is not None
    held = cache_layers(subject.kept(2))
    layers = list(recorder.layer_of.values())
    found: dict[str, Mixer] = {}
    for place, layer in recorder.layer_of.items():
        filled = filled_by(recorded, caches, place)
        if len(filled) != 1 or sum(one is layer for one in layers) > 1:
            continue
        states = list(tensors_of(held[filled[0]]))
        attention = [dict(one.fixed) for one in kernels_of.get(place, ()) if one.runs == "attention"]
        alike, prefix = {}, prefix_of(subject.model, layer)
        for name, module in layer.named_modules(prefix=prefix.removesuffix(".")):
            if module is layer or any(
                f"{name}.{own}" not in subject.parameters for own, _ in module.named_parameters()
            ):
                continue  # its tensors are shared with another module
            facts = MixerFacts(
                module=module,
                shapes={own: tuple(tensor.shape) for own, tensor in module.named_parameters()},
                keeps=caches[filled[0]],
                conv=_only([tuple(tensor.shape) for own, tensor in states if "conv" in own]),
                state=_only([tuple(tensor.shape) for own, tensor in states if "recurrent" in own]),
                attention=attention[0] if len(attention) == 1 else {},
            )
            mixer = described_mixer(facts, recorder.width)
            if mixer is not None:
                alike[name] = mixer
        found |= alike if len(alike) == 1 else {}
    return found


def _only(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    return shapes[0] if len(shapes) == 1 else ()


def filled_by(recorded: TracedPasses, caches: list[TracedCache], place: Place) -> list[int]:
    """Which layers of the cache a layer fills.

    One that a layer fills by itself, unseen, is that of the layer with its number.
    """
    assert recorded.recorder is not None
    seen = recorded.recorder.cached
    filled = sorted(seen.get(place, ()))
    alike = len(caches) == recorded.passes[0].layers
    if not filled and alike and not any(place[1] in others for others in seen.values()):
        filled = [place[1]]
    return filled if caches else []


def prefix_of(model: Any, module: Any) -> str:
    """What the names of a module's parameters begin with in a model."""
    return next(f"{name}." for name, one in model.named_modules() if one is module)


def record(subject: Subject, timed: bool = True) -> TracedPasses:
    """What the model runs at a few loads (one where it is not timed); at more where no short polynomial goes through.

    Raises what its code does. Code that asks for numbers runs once, told that none are zero: which modules are its
    layers is known so, no work.
    """
    found = TracedPasses(why="" if timed else "its operators were not asked for")
    if subject.decodes:
        found.why = "the time of a decoder behind an encoder is not traced"
    if found.why:
        with subject.told_all():
            _run(subject, found, (TracedPoint(1, 2, 0),))
        return found
    try:
        _run(subject, found, FEW if subject.caches else NO_PAST)
    except Exception as error:
        found = TracedPasses(why=f"its code does not run on shapes alone: {first_line(error)}")
        with subject.told_all():
            _run(subject, found, (TracedPoint(1, 2, 0),))
        return found
    if subject.caches and any(is_untimed(found, place) for place in found.kernels[0]):
        _run(subject, found, MORE)
    return found


def _run(subject: Subject, found: TracedPasses, points: tuple[TracedPoint, ...]) -> None:
    for point in points:
        run, found.recorder = subject.record(point)
        found.passes.append(run)
        found.kernels.append(kernels(run))
    found.points += points


def is_untimed(found: TracedPasses, place: Place) -> bool:
    """Whether the operators of a place follow the load as no polynomial that the points so far decide."""
    try:
        parts.operators(found.points, parts.of_place(found.kernels, place), "")
    except parts.OtherOperators:
        return False
    except parts.Mismatch:
        return True
    return False


@dataclass
class Assembly:
    """The fields of a model file from passes and caches."""

    subject: Subject
    recorded: TracedPasses
    caches: list[TracedCache]
    vocab: int

    def fields(self) -> dict[str, Any]:
        """Everything but its name and source."""
        stops, first = self.subject.stops, self.recorded.passes[0]
        assert self.recorded.recorder is not None
        layers = [self._layer(index) for index in range(first.layers)]
        for name in ("per_token", "state"):
            found, whole = (
                sum(getattr(one, name) for one in them) for them in ([x.cache() for x in layers], self.caches)
            )
            if found != whole:
                raise SpecError(f"{whole - found} elements of the cache ({name}) belong to no layer that ran")
        table, width = stops.embedding, self.recorded.recorder.width
        rows, columns = (self.vocab, width) if table is None else table.weight.shape
        fields: dict[str, Any] = {
            "d_model": width,
            "vocab": rows,
            "embedding_width": columns if columns != width else None,
            "bare": table is None,
            "borrowed": ["embedding", "head"] if table is None else [],
            "tied": stops.head is not None and stops.head.weight is table.weight,
            "head_bias": stops.head is not None and stops.head.bias is not None,
            "final_norm": False,
            "layers": layer_groups(layers),
            "notes": [*([EXPANDS] if any(map(_expands, layers)) else []), *self._said()],
        }
        around = self._around()
        fields["ends"] = {name: around.pop(name) for name in ("ahead", "behind") if name in around}
        if not self.caches:
            fields["generation"] = {"kind": "encode"}
            if stops.head is not None:
                fields["ends"] |= {"heads": [{"name": "tokens", "rows": "token", "vocabulary": True}]}
        return {key: value for key, value in fields.items() if value is not None} | around

    def traced(self) -> Traced:
        """What tells which tensor of its layers is which module."""
        assert self.recorded.recorder is not None
        modules = {id(module): name for name, module in self.subject.model.named_modules()}
        layer_of = self.recorded.recorder.layer_of
        prefixes = [f"{modules[id(layer_of['layer', index])]}." for index in range(self.recorded.passes[0].layers)]
        mixers = {
            index: name
            for index, prefix in enumerate(prefixes)
            for name in self.subject.mixers
            if name.startswith(prefix)
        }
        ends = (modules.get(id(one), "") for one in (self.subject.stops.embedding, self.subject.stops.head))
        return Traced(self.subject.model, prefixes, mixers, *ends)

    @cached_property
    def experts(self) -> dict[str, ExpertShare]:
        """The tensors of experts, and what a token reads of them."""
        recorder = self.recorded.recorder
        assert recorder is not None
        places = {self._prefix(module): place for place, module in recorder.layer_of.items()}
        return shares(self.subject.model, recorder.routing, places)

    def _said(self) -> list[str]:
        found = [BEHIND] if self.subject.decodes else []
        if self.subject.runs is not self.subject.model:
            found.append(f"traced: {type(self.subject.runs).__name__} ran alone: not all of the model runs on tokens")
        if kinds := sorted({one.kind for one in self.subject.mixers.values()}):
            found.append(
                f"traced: {len(self.subject.mixers)} modules are {', '.join(kinds)} in every tensor and in what they "
                "keep; they are priced as engines run those"
            )
        return found + ([UNKNOWN] if any(one.active is None for one in self.experts.values()) else [])

    def _names(self, prefix: str) -> dict[str, tuple[int, ...]]:
        return {name: shape for name, shape in self.subject.parameters.items() if name.startswith(prefix)}

    def _prefix(self, module: Any) -> str:
        return prefix_of(self.subject.model, module)

    def _layer(self, index: int) -> TracedLayer:
        place: Place = ("layer", index)
        assert self.recorded.recorder is not None
        layer_of = self.recorded.recorder.layer_of
        prefix = self._prefix(layer_of[place])
        again = any(layer_of["layer", other] is layer_of[place] for other in range(index))  # its tensors are counted
        runs = parts.of_place(self.recorded.kernels, place)
        place_of = parts.At(prefix, "", self.recorded.why)
        names = {} if again else self._names(prefix)
        mixers = {name: one for name, one in self.subject.mixers.items() if name.startswith(prefix)}
        names = {name: shape for name, shape in names.items() if not any(name.startswith(f"{x}.") for x in mixers)}
        keeps = self._kept(place)
        for one in mixers.values():
            keeps = without(keeps, one.cache())
        holds = parts.Holds(keeps, self.experts, next(iter(mixers.values()), None))
        return parts.layer(self.recorded.points, runs, place_of, names, holds)

    def _kept(self, place: Place) -> TracedCache:
        """The cache that a layer filled; nothing for one that filled none."""
        filled = filled_by(self.recorded, self.caches, place)
        if not filled:
            return TracedCache()
        first, *others = [self.caches[one] for one in filled]
        if any(other != first for other in others):
            raise SpecError(f"layer {place[1]} fills {len(filled)} layers of the cache, which are not alike")
        sums = {name: len(filled) * getattr(first, name) for name in ("per_token", "state", "conv")}
        return first.model_copy(update=sums)

    def _around(self) -> dict[str, Any]:
        """What stands before and after the layers, and what no token reaches: towers."""
        stops, first = self.subject.stops, self.recorded.passes[0]
        assert self.recorded.recorder is not None
        inside = {self._prefix(module) for module in self.recorded.recorder.layer_of.values()}
        ends = [getattr(stops.embedding, "weight", None), *(stops.head.parameters() if stops.head is not None else ())]
        own = {id(tensor) for tensor in ends if tensor is not None}
        early = {id(tensor) for tensor in stops.embedding.parameters()} if stops.embedding is not None else set()
        reached = first.touched | {
            name: ("ahead", 0) for name, tensor in self.subject.model.named_parameters() if id(tensor) in early
        }
        outside = {
            name: tuple(tensor.shape)
            for name, tensor in self.subject.model.named_parameters()
            if id(tensor) not in own and not name.startswith(tuple(inside))
        }
        found: dict[str, Any] = {}
        last = first.layers - 1
        for field_name, place in (("ahead", ("ahead", 0)), ("behind", ("behind", last))):
            used = {name: shape for name, shape in outside.items() if reached.get(name, ("", 0))[0] == place[0]}
            runs = parts.of_place(self.recorded.kernels, place)
            at = parts.At("", f"{field_name}.", self.recorded.why)
            holds = parts.Holds(TracedCache(), self.experts)
            part = parts.layer(self.recorded.points, runs, at, used, holds)
            if part.tensors or part.operators:
                found[field_name] = part.dump()
            outside = {name: shape for name, shape in outside.items() if name not in used}
        if outside:
            found["towers"] = self._towers(outside)
        return found

    def _towers(self, unused: dict[str, tuple[int, ...]]) -> list[dict[str, Any]]:
        """Modules that no token reaches, each counted apart."""
        used = set(self.recorded.passes[0].touched)
        towers: dict[str, dict[str, tuple[int, ...]]] = {}
        for name, shape in unused.items():
            steps = name.split(".")
            depth = next(
                (n for n in range(1, len(steps)) if not any(u.startswith(".".join(steps[:n]) + ".") for u in used)),
                len(steps),
            )
            towers.setdefault(".".join(steps[:depth]), {})[name] = shape
        assert self.recorded.recorder is not None
        return [
            {"name": name, "d_model": self.recorded.recorder.width, **_stacked(name, tensors)}
            for name, tensors in towers.items()
        ]


def _stacked(name: str, tensors: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """The tensors of a tower: those of numbered modules as layers, the rest by name."""
    loose: dict[str, list[int]] = {}
    numbered: dict[tuple[str, int], dict[str, tuple[int, ...]]] = {}
    for full, shape in tensors.items():
        steps = full.removeprefix(f"{name}.").split(".")
        at = next((n for n, step in enumerate(steps) if step.isdigit()), None)
        if at is None:
            loose[".".join(steps)] = list(shape)
        else:
            inner = numbered.setdefault((".".join(steps[:at]), int(steps[at])), {})
            inner[".".join(steps[at + 1 :])] = shape
    layers = [
        TracedLayer(
            tensors=[TracedTensor(name=own, shape=list(shape), role="base") for own, shape in inner.items()],
            untimed="no token of text reaches a tower",
        )
        for inner in numbered.values()
    ]
    return {"layers": layer_groups(layers), "tensors": loose}
