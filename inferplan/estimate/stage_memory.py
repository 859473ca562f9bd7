"""Memory of one device of a pipeline stage: its weights, and what its layers keep and need for sequences.

The formulas are in docs/formulas/memory.md. A function with a ``name`` argument gives its number with its terms
when that is :func:`inferplan.terms.named`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from inferplan.estimate.deployment import Deployment
from inferplan.models.layers import Cache, Weight
from inferplan.models.spec import LayerGroup, count_distinct
from inferplan.terms import Naming, Term, named, plain, total
from inferplan.units import Num
from inferplan.work.ops import Mask

_KINDS = "kinds of layer"
_VOCAB_PAD = 64
"""Engines pad the vocabulary to a multiple of 64 before dividing it (vLLM, vocab_parallel_embedding.py)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StageMemory:
    """One device of one pipeline stage: its weights in bytes, and what its layers keep for a sequence."""

    deployment: Deployment
    layers: list[LayerGroup]
    start: int
    first: bool
    last: bool

    @cached_property
    def distinct(self) -> list[tuple[LayerGroup, int]]:
        """Each different layer with its number."""
        return count_distinct(self.layers)

    @cached_property
    def weights(self) -> float:
        """Bytes of parameters, each tensor in the format of its role."""
        return float(sum(self.tensor_bytes(weight, layer) * count for weight, count, layer in self.tensors()))

    def weight_terms(self) -> Term:
        """The same, tensor by tensor."""
        found: dict[str, list[Num]] = defaultdict(list)
        for weight, count, layer in self.tensors():
            found[weight.name].append(self.tensor_bytes(weight, layer, named) * named(count, "copies"))
        tensors = (named(total(sizes, "layers"), tensor, "B") for tensor, sizes in found.items())
        weights: Term = named(total(tensors, "tensors"), "weights", "B")
        return weights

    def tensors(self) -> Iterator[tuple[Weight, int, int | None]]:
        """The tensors of this stage, the number of copies of each, and the layer where that decides its format."""
        model = self.deployment.model
        table = self.last and model.tied and not self.first  # a tied head shares the embedding table
        if self.first or table:
            inputs = (w for w in model.input_weights() if self.first or w.name == "embedding")
            yield from ((weight, 1, None) for weight in inputs)
        if self.first:
            towers = (entry for tower in model.towers for entry in tower.weights())
            renamed = ((replace(weight, role="base", name=f"tower.{weight.name}"), count) for weight, count in towers)
            yield from ((weight, count, None) for weight, count in renamed)
        seen_shared: list[LayerGroup] = []
        for layer, count, number in self._numbered():
            own = layer.model_copy(update={"shared": False})
            copies = count
            if layer.shared:  # a shared block's parameters are kept once on a stage that runs it
                copies = 0 if own in seen_shared else 1
            seen_shared.append(own)
            yield from ((weight, copies, number) for weight in model.layer_weights(layer))
        if self.last:
            yield from ((weight, 1, None) for weight in model.output_weights())

    def _numbered(self) -> Iterator[tuple[LayerGroup, int, int | None]]:
        """Layers with their count; one by one with their number where formats differ from layer to layer."""
        if any(layers for _, _, layers in self.deployment.precision.exceptions):
            yield from ((layer, 1, self.start + index) for index, layer in enumerate(self.layers))
        else:
            yield from ((layer, count, None) for layer, count in self.distinct)

    def tensor_bytes(self, weight: Weight, layer: int | None = None, name: Naming = plain) -> Num:
        """Bytes of one tensor on this device."""
        parallel = self.deployment.parallel
        elements = weight.per_rank(parallel)
        if weight.units == self.deployment.model.vocab and parallel.tp > 1:
            padded = -(-weight.units // _VOCAB_PAD) * _VOCAB_PAD
            elements = weight.elements / weight.units * -(-padded // parallel.tp)
        fmt = self.deployment.precision.stored(weight.role, weight.name, layer)
        multiple = self.deployment.engine.defaults.expert_multiple.get(fmt.name, 1) if weight.role == "experts" else 1
        padded_last = -(-weight.shape[-1] // multiple) * multiple
        stored = fmt.stored(weight.shape) * padded_last / weight.shape[-1] if weight.elements else 0.0
        size: Num = name(elements, "elements") * name(stored / max(weight.elements, 1), "bytes an element")
        return size

    @cached_property
    def caches(self) -> list[tuple[Cache, int]]:
        return [
            (cache, count)
            for layer, count in self.distinct
            for cache in (part.cache() for part in layer.parts)
            if cache.per_token or cache.state
        ]

    def state(self, tokens: Num, block: int = 1, name: Naming = plain) -> Num:
        """Bytes that one sequence of ``tokens`` keeps on this device, in pages of ``block`` tokens."""
        paged = tokens if block == 1 else np.ceil(tokens / block) * block
        sizes = self._sizes if name is plain else self._token_sizes(name)
        cached = total((size * name(mask.cached(paged), "cached tokens") for size, mask in sizes), _KINDS)
        if not self.recurrent:
            return cached
        return cached + name(self.recurrent, "state of constant size", "B")

    @cached_property
    def _sizes(self) -> list[tuple[Num, Mask]]:
        return list(self._token_sizes())

    def _token_sizes(self, name: Naming = plain) -> Iterator[tuple[Num, Mask]]:
        """Bytes of one cached token in each kind of layer, and which tokens that kind keeps."""
        parallel, width = self.deployment.parallel, self.deployment.precision.kv.width
        for cache, count in self.caches:
            if cache.per_token:
                share = name(cache.copies(cache.units, parallel.tp) / parallel.cp, "share of this rank")
                size = name(count, "layers") * name(cache.per_token - cache.apart, "elements") * share
                yield size * name(width, "bytes an element", "", ("format", "kv")), cache.mask
                if cache.apart_format is not None:
                    keys = name(count, "layers") * name(cache.apart, "index elements") * share
                    yield keys * name(cache.apart_format.width, "bytes an index element"), cache.mask

    @cached_property
    def recurrent(self) -> float:
        """Bytes of constant size that one sequence keeps on this device."""
        tp, precision = self.deployment.parallel.tp, self.deployment.precision
        return sum(cache.state_bytes(precision.base, precision.kv, tp) * count for cache, count in self.caches)

    def token_bytes(self, name: Naming = plain) -> Num:
        """Bytes that one more token adds while the context is below every window."""
        return total((size for size, _ in self._token_sizes(name)), _KINDS)

    @cached_property
    def per_token(self) -> float:
        """Bytes that one more token adds while the context is below every window."""
        return float(self.token_bytes())

    @cached_property
    def live_width(self) -> float:
        """Base-format elements a token that are alive at the widest point of a layer: two residuals and its inside."""
        model, parallel = self.deployment.model, self.deployment.parallel
        inside = [part.live_width(model.d_model, parallel) for layer, _ in self.distinct for part in layer.parts]
        return 2 * model.d_model + max(inside)

    def activations(self, tokens: Num, rows: Num, name: Naming = plain) -> Num:
        """Peak bytes of a step of ``tokens`` rows.

        The widest layer, or the logits of ``rows`` sequences with the sampler.
        """
        model, engine = self.deployment.model, self.deployment.engine.defaults
        layer = tokens * name(self.live_width, "live width")
        layer = layer * name(self.deployment.precision.base.width, "bytes an element", "", ("format", "base"))
        if not self.last:
            return layer
        logits = rows * name(model.vocab, "vocab", "", ("model", "vocab"))
        logits = logits * name(
            engine.sampler_bytes_per_logit, "bytes a logit", "", ("engine", "sampler_bytes_per_logit")
        )
        return np.maximum(layer, logits)
