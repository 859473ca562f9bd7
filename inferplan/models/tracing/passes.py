"""Forward passes of a model on meta tensors: at a load that is recorded, and as long as its cache needs to be known."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch.fx.experimental import _config as fx_config

from inferplan.errors import SpecError
from inferplan.models.layers.base import Mixer
from inferplan.models.tracing.record import Event, Place, Recorder, Stops, quiet

_CACHES = ("past_key_values", "cache_params")
_OTHER_STATES = ("state", "mems", "past_buckets_states", "rnn_state", "past_state")
"""Fields of outputs that carry what other classes keep."""


@dataclass(frozen=True)
class TracedPoint:
    """``batch`` sequences of ``new`` tokens after ``past`` cached ones."""

    batch: int
    new: int
    past: int


@dataclass(frozen=True)
class TracedPass:
    """What one point ran, place by place, and where each parameter was first used."""

    point: TracedPoint
    events: dict[Place, list[Event]]
    touched: dict[str, Place]
    layers: int


class Subject:
    """A model that is run: its layers, its embedding and its head."""

    def __init__(self, model: Any, runs: Any = None) -> None:
        self.model, self.runs = model, model if runs is None else runs
        """runs: the part of the model that is run, where all of it does not run on tokens."""
        self.mixers: dict[str, Mixer] = {}
        """Modules, by name, that a described kind stands for: what they run is not recorded."""
        self.loose = False
        """Whether code that asks which numbers are not zero is told all: it then runs, and not what it would run."""
        self.parameters = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
        takes = dict(inspect.signature(self.runs.forward).parameters)
        hands_on = any(one.kind is one.VAR_KEYWORD for one in takes.values())
        if hands_on and hasattr(self.runs, "get_decoder") and self.runs.get_decoder() is not None:
            inner = inspect.signature(self.runs.get_decoder().forward).parameters
            takes |= {name: one for name, one in inner.items() if name in ("use_cache", *_CACHES)}
        self._takes = {name for name in takes if name in ("use_cache", "logits_to_keep")}
        self._cache = next((name for name in _CACHES if name in takes), None)
        self.decodes = {"decoder_input_ids", "encoder_outputs"} <= set(takes)
        """Whether it is a decoder behind an encoder, which then is not run: what it would put out is given."""
        self.positions = 4
        """Of that."""
        self.takes_ids = "input_ids" in takes or hands_on

    @cached_property
    def caches(self) -> bool:
        """Whether it keeps what it computed of earlier tokens."""
        return self._cache is not None and self.kept(2) is not None

    def run(self, point: TracedPoint, cache: Any = None) -> Any:
        """One pass. Raises whatever the code of the model does."""
        options: dict[str, Any] = {"use_cache": True} if "use_cache" in self._takes else {}
        if "logits_to_keep" in self._takes:
            options["logits_to_keep"] = 1
        if cache is not None and self._cache is not None:
            options[self._cache] = cache
        tokens = "decoder_input_ids" if self.decodes else "input_ids"
        if self.decodes:
            options["encoder_outputs"] = self._encoded(point.batch)
        from transformers.cache_utils import Cache

        loose = fx_config.patch(meta_nonzero_assume_all_nonzero=self.loose)
        with quiet(), torch.no_grad(), torch.device("meta"), loose:
            ids = torch.zeros(point.batch, point.new, dtype=torch.long)
            found = self.runs(**{tokens: ids}, **options)
        for name in _OTHER_STATES:
            if found.get(name) is not None:
                raise SpecError(f"what it keeps of earlier tokens ({name}) is not understood")
        if self._cache is None and any(isinstance(one, Cache) for one in found.values()):
            raise SpecError("it gives back a cache that it does not take")
        return found

    def _encoded(self, batch: int) -> Any:
        """What the encoder puts out: of its own width."""
        from transformers.modeling_outputs import BaseModelOutput

        config = self.model.get_encoder().config
        width = next(
            (found for name in ("hidden_size", "d_model") if isinstance(found := getattr(config, name, None), int)), 0
        )
        states = torch.zeros(batch, self.positions, width, dtype=torch.bfloat16, device="meta")
        found = BaseModelOutput(last_hidden_state=states)
        found.router_logits = None  # asked for where it has experts
        return found

    @contextmanager
    def told_all(self) -> Iterator[None]:
        """For passes whose operators do not count: shapes of caches, and which modules run."""
        before, self.loose = self.loose, True
        try:
            yield
        finally:
            self.loose = before

    @cached_property
    def stops(self) -> Stops:
        """Its layers in the order they ran, found in a pass: the children of the largest list of modules that ran."""
        table, head = self._embedding(), self._head()
        if head is None and self.caches:  # a vocabulary of another form is recorded like all else
            table = None
        return Stops(layers=self._layers(), embedding=table, head=head)

    def _layers(self) -> list[Any]:
        lists = [
            (name, module)
            for name, module in self.model.named_modules()
            if isinstance(module, torch.nn.ModuleList) and len(module)
        ]
        ran: set[int] = set()
        handles = [
            child.register_forward_pre_hook(lambda module, args: ran.add(id(module)))
            for _, found in lists
            for child in found
        ]
        recorder = Recorder(self.model, Stops(layers=[]), loose=True)
        try:
            with recorder.watch(), self.told_all():
                recorder.paused += 1
                self.run(TracedPoint(1, 2, 0))
        finally:
            for handle in handles:
                handle.remove()
        live = [(name, found) for name, found in lists if any(id(child) in ran for child in found)]
        outer = [
            found for name, found in live if not any(name.startswith(f"{other}.") for other, _ in live if other != name)
        ]
        largest = max(outer, key=_elements, default=None)
        if largest is None:
            return []
        alike = {type(child) for child in largest}  # stacks of the same layers, which take turns
        together = [found for found in outer if found is largest or {type(child) for child in found} <= alike]
        return [child for found in together for child in found if id(child) in ran]

    def _embedding(self) -> Any:
        return self._table("get_input_embeddings", self.model.get_decoder() if self.decodes else self.model)

    def _table(self, getter: str, model: Any) -> Any:
        try:
            found = getattr(model, getter)()
        except Exception:
            return None
        weight = getattr(found, "weight", None) if isinstance(found, torch.nn.Module) else None
        return found if weight is not None and weight.dim() == 2 else None

    def _head(self) -> Any:
        """The projection to the vocabulary of the embedding; nothing where it has another shape."""
        table, head = self._embedding(), self._table("get_output_embeddings", self.model)
        if table is None or head is None or head.weight.shape != table.weight.shape:
            return None
        return head

    def record(self, point: TracedPoint) -> tuple[TracedPass, Recorder]:
        """What the model runs at a point. Raises ``SpecError`` where its code asks for numbers, not shapes."""
        mixers = {name: self.model.get_submodule(name) for name in self.mixers}
        recorder = Recorder(self.model, replace(self.stops, mixers=mixers), self.loose)
        with recorder.watch():
            cache = None
            if point.past:
                with recorder.pause():
                    cache = self.run(TracedPoint(point.batch, point.past, 0)).get(self._cache)
                recorder.clear()
            if point.past and cache is None:
                raise SpecError("no cache of earlier tokens came back")
            found = self.run(TracedPoint(point.batch, point.new, point.past), cache)
            if not recorder.headed:
                with recorder.pause():
                    recorder.finish([x for name, x in found.items() if name != self._cache])
        return TracedPass(point, dict(recorder.events), dict(recorder.touched), recorder.ran), recorder

    def kept(self, tokens: int) -> Any:
        """The cache of one sequence after so many tokens."""
        recorder = Recorder(self.model, Stops(layers=[]), loose=True)
        with recorder.watch(), self.told_all():
            recorder.paused += 1
            found = self.run(TracedPoint(1, tokens, 0))
        return found.get(self._cache)


def _elements(module: Any) -> int:
    return sum(tensor.numel() for tensor in module.parameters())


def cache_layers(cache: Any) -> list[Any]:
    """The layers of a cache. Raises ``SpecError`` for one that has none."""
    inner = getattr(cache, "self_attention_cache", cache)
    layers = getattr(inner, "layers", None)
    if not isinstance(layers, list):
        raise SpecError(f"a cache of {type(cache).__name__} is not understood", because="it has no list of layers")
    odd = [name for name, value in vars(inner).items() if name != "layers" and _has_tensors(value)]
    if odd:
        raise SpecError(f"a cache of {type(cache).__name__} is not understood", because=f"it keeps {odd[0]} too")
    return layers


def across(cache: Any) -> list[Any]:
    """The layers that keep what a decoder has of its encoder. Raises ``SpecError`` where there are none."""
    if not hasattr(cache, "cross_attention_cache"):
        raise SpecError(f"a cache of {type(cache).__name__} keeps nothing of the encoder")
    return cache_layers(cache.cross_attention_cache)


def _has_tensors(value: Any) -> bool:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(one, torch.Tensor) and one.dim() > 1 for one in values)


def tensors_of(layer: Any) -> Iterator[tuple[str, Any]]:
    """Every tensor that a layer of a cache keeps, by the attribute that holds it."""
    for name, value in vars(layer).items():
        values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        yield from ((name, one) for one in values if isinstance(one, torch.Tensor) and one.numel() and one.dim() > 1)
