"""Memory of one device: weights, state, activations, the runtime's reserve; and the largest load that fits.

The formulas are in docs/formulas/memory.md. Where an engine is named, activations and reserve are what that version
sets aside at start-up, whatever the load; without one they are those of the static batch itself. A function with a
``name`` argument gives its number with its terms when that is :func:`inferplan.terms.named`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from inferplan.estimate.deployment import Deployment
from inferplan.estimate.reserve import memory_fraction, reserve
from inferplan.models.layers import Cache, Weight
from inferplan.models.spec import LayerGroup, count_distinct
from inferplan.terms import Field, Naming, Term, ceil, floor, named, plain, total
from inferplan.units import Num
from inferplan.work.ops import Mask
from inferplan.work.parallel import split_layers

_CONTEXT_LIMIT = 2**31
"""Longest context searched for a model that states no limit of its own."""
_DP: Field = ("parallel", "dp")
_SLOTS: Field = ("engine", "tiers", "max_sequences")
_WEIGHTS: Field = ("number", "memory.weights")
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
            yield from ((layer, count, None) for layer, count in count_distinct(self.layers))

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
            for layer, count in count_distinct(self.layers)
            for cache in (part.cache() for part in layer.parts)
            if cache.per_token or cache.state
        ]

    def state(self, tokens: Num, block: int = 1, name: Naming = plain) -> Num:
        """Bytes that one sequence of ``tokens`` keeps on this device, in pages of ``block`` tokens."""
        paged = tokens if block == 1 else np.ceil(tokens / block) * block
        cached = total(
            (size * name(mask.cached(paged), "cached tokens") for size, mask in self._token_sizes(name)), _KINDS
        )
        if not self.recurrent:
            return cached
        return cached + name(self.recurrent, "state of constant size", "B")

    def _token_sizes(self, name: Naming = plain) -> Iterator[tuple[Num, Mask]]:
        """Bytes of one cached token in each kind of layer, and which tokens that kind keeps."""
        parallel, width = self.deployment.parallel, self.deployment.precision.kv.width
        for cache, count in self.caches:
            if cache.per_token:
                share = name(cache.copies(cache.units, parallel.tp) / parallel.cp, "share of this rank")
                size = name(count, "layers") * name(cache.per_token, "elements") * share
                yield size * name(width, "bytes an element", "", ("format", "kv")), cache.mask

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
        inside = [
            part.live_width(model.d_model, parallel) for layer, _ in count_distinct(self.layers) for part in layer.parts
        ]
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Footprint:
    """Bytes on the device that is fullest.

    ``batch`` sequences of ``context`` tokens; ``prompt`` of them in the longest pass, ``logits`` of those in the head.
    """

    deployment: Deployment
    batch: Num
    prompt: Num
    context: Num
    cached: bool = True
    """Whether keys and values are kept at all; where they are not, the longest pass is the whole context."""
    logits: Num = 1.0

    @cached_property
    def stage(self) -> StageMemory:
        """The pipeline stage whose devices are fullest."""
        return max(self.stages, key=lambda stage: float(np.max(self._stage_total(stage))))

    @cached_property
    def stages(self) -> list[StageMemory]:
        deployment = self.deployment
        sequence, start, stages = deployment.model.sequence, 0, []
        counts = split_layers(len(sequence), deployment.parallel.pp)
        for index, layers in enumerate(counts):
            stages.append(
                StageMemory(
                    deployment=deployment,
                    layers=sequence[start : start + layers],
                    start=start,
                    first=index == 0,
                    last=index == len(counts) - 1,
                )
            )
            start += layers
        return stages

    def _stage_total(self, stage: StageMemory) -> Num:
        held = stage.weights + self._activations(stage) + self._state(stage)
        return held + self._reserve(stage)

    def step(self, name: Naming = plain) -> tuple[Num, Num]:
        """Tokens and sequences of the step that activations are sized for."""
        engine, hardware = self.deployment.engine, self.deployment.hardware
        if engine.name == "none":
            sequences = self._sequences(name)
            tokens = name(self.prompt, "tokens of the longest pass", "", ("load", "prompt"))
            return sequences * tokens, sequences * name(self.logits, "logits of a sequence")
        tier = engine.defaults.tier(hardware)
        tokens = name(float(tier.token_budget), "tokens of a step", "", ("engine", "tiers", "token_budget"))
        return tokens, name(float(tier.max_sequences), "sequences of a step", "", _SLOTS)

    def _sequences(self, name: Naming = plain) -> Num:
        """Sequences of the rank that has most."""
        batch, dp = name(self.batch, "batch", "", ("load", "batch")), self.deployment.parallel.dp
        return ceil(batch / name(dp, "dp", "", _DP))

    def _each(self, stage: StageMemory, name: Naming = plain) -> Num:
        """Bytes that one sequence keeps."""
        if not self.cached:
            return name(0.0, "state of a sequence", "B")
        context = name(self.context, "tokens of a sequence", "", ("load", "context"))
        return name(stage.state(context, name=name), "state of a sequence", "B")

    def _state(self, stage: StageMemory, name: Naming = plain) -> Num:
        return self._sequences(name) * self._each(stage, name)

    def _activations(self, stage: StageMemory, name: Naming = plain) -> Num:
        return stage.activations(*self.step(name), name)

    def _reserve(self, stage: StageMemory, name: Naming = plain) -> Num:
        weights = name(stage.weights, "weights", "B", _WEIGHTS)
        return reserve(self.deployment, weights, name(self._activations(stage, name), "activations", "B"), name)

    def _pool(self, stage: StageMemory, name: Naming = plain) -> Num:
        """Bytes left for state; without an engine for activations too, which then grow with the batch."""
        usable = name(self.usable, "usable", "B", ("hardware", "memory", "usable"))
        left = usable - name(stage.weights, "weights", "B", _WEIGHTS) - name(self._reserve(stage, name), "reserve", "B")
        if self.deployment.engine.name == "none":
            return left
        return left - name(self._activations(stage, name), "activations", "B")

    @property
    def weights(self) -> float:
        return self.stage.weights

    @property
    def state_per_sequence(self) -> float:
        """Bytes of constant size for a sequence: recurrent and convolution state."""
        return self.stage.recurrent

    @property
    def kv_per_token(self) -> float:
        return self.stage.per_token

    @property
    def state(self) -> Num:
        """Bytes of KV cache and recurrent state of the whole batch, ideal: no page is partly empty."""
        return self._state(self.stage)

    @property
    def state_allocated(self) -> Num:
        """The same in whole pages of the engine."""
        each = self.stage.state(self.context, self.deployment.engine.defaults.block_size) if self.cached else 0.0
        return self._sequences() * each

    @property
    def activations(self) -> Num:
        return self._activations(self.stage)

    @property
    def usable(self) -> float:
        return self.deployment.hardware.usable

    @cached_property
    def reserve(self) -> float:
        """Bytes the runtime keeps for itself on the fullest device, by :func:`inferplan.estimate.reserve.reserve`."""
        return float(self._reserve(self.stage))

    @cached_property
    def memory_fraction(self) -> float:
        """The share of memory the engine works with: its default, or SGLang's rule."""
        return float(memory_fraction(self.deployment))

    @property
    def total(self) -> Num:
        return self.weights + self.state + self.activations + self.reserve

    @property
    def fits(self) -> bool:
        return all(bool(np.all(self._stage_total(stage) <= self.usable)) for stage in self.stages)

    @property
    def headroom(self) -> Num:
        return self.usable - self.total

    @cached_property
    def kv_pool(self) -> float:
        """Bytes left for state on the fullest device; negative when not even the weights fit."""
        return self.pool(self.stage)

    def pool(self, stage: StageMemory) -> float:
        """Bytes that a stage has left for state; negative when not even its weights fit."""
        return float(self._pool(stage))

    def max_batch(self) -> Num:
        """The largest batch at this context whose every stage fits; 0 when none does.

        Where sequences keep nothing (no KV cache) memory sets no limit and the engine's slots are the answer.

        Without an engine activations grow with the batch, in proportion, and are paid from the same pool.
        """
        best: Num = np.inf
        for stage in self.stages:
            best = np.minimum(best, self._max_sequences(stage))
        return np.where(np.isinf(best), self._slots(), best) * self.deployment.parallel.dp

    def _slots(self, name: Naming = plain) -> Num:
        slots = self.deployment.engine.defaults.tier(self.deployment.hardware).max_sequences
        return name(float(slots), "sequences of a step", "", _SLOTS)

    def _max_sequences(self, stage: StageMemory, name: Naming = plain) -> Num:
        """The most sequences of one rank that a stage's memory holds; infinite where they keep nothing."""
        if self.deployment.engine.name != "none" and not (self.cached and stage.caches):
            return np.inf
        each = self._each(stage, name)
        if self.deployment.engine.name == "none":
            tokens = name(self.prompt * 1.0, "tokens of the longest pass", "", ("load", "prompt"))
            activations = stage.activations(tokens, name(self.logits, "logits of a sequence"), name)
            each = each + name(activations, "activations of a sequence", "B")
        return floor(np.maximum(name(self._pool(stage, name), "pool", "B"), 0.0) / each)

    def max_context(self) -> int:
        """The longest context at this batch, in tokens, up to the model's own limit; 0 when not even one token fits."""
        low, high = 0, self.deployment.model.max_context or _CONTEXT_LIMIT
        pools = [(stage, self.pool(stage)) for stage in self.stages]
        while low < high:
            middle = (low + high + 1) // 2
            fits = all(self._needed(stage, middle) <= pool for stage, pool in pools)
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _needed(self, stage: StageMemory, context: int) -> float:
        """Bytes that the batch needs of a stage's pool at a context."""
        sequences = float(np.max(self._sequences()))
        held = sequences * float(np.max(stage.state(float(context)))) if self.cached else 0.0
        if self.deployment.engine.name == "none":
            tokens, rows = self.step() if self.cached else (sequences * context, sequences * self.logits)
            held += float(np.max(stage.activations(tokens, rows)))
        return held

    def cache_tokens(self, max_model_len: int) -> int:
        """The tokens vLLM's start-up line reports: concurrency at ``max_model_len`` times that length.

        vllm/v1/core/kv_cache_utils.py:1061-1128: blocks over the blocks that one request of that length needs.
        """
        return int(self.concurrency(max_model_len) * max_model_len)

    def concurrency(self, max_model_len: int) -> float:
        """Requests of ``max_model_len`` tokens that the pool holds: vLLM's ``Maximum concurrency`` line."""
        block = self.deployment.engine.defaults.block_size
        ratios = [
            max(self.pool(stage), 0.0) / max(float(stage.state(float(max_model_len), block)), 1e-9)
            for stage in self.stages
        ]
        return min(ratios)

    def terms(self, number: str) -> Term:
        """One of its numbers with its formula, of the device that decides it.

        number: weights, state, kv_per_token, activations, reserve, total, max_batch or max_context. Raises ``KeyError``
        for another.
        """
        stage = self.stage
        if number in ("max_batch", "max_context"):
            return self._max_batch_terms() if number == "max_batch" else self._max_context_terms()
        made: dict[str, Callable[[], Any]] = {
            "weights": stage.weight_terms,
            "state": lambda: self._state(stage, named),
            "kv_per_token": lambda: stage.token_bytes(named),
            "activations": lambda: self._activations(stage, named),
            "reserve": lambda: self._reserve(stage, named),
            "total": lambda: (
                named(stage.weights, "weights", "B", _WEIGHTS)
                + sum(self.terms(part) for part in ("state", "activations", "reserve"))
            ),
        }
        term: Term = named(made[number](), number, "B")
        return term

    def _max_batch_terms(self) -> Term:
        tightest = min(self.stages, key=lambda stage: float(np.min(self._max_sequences(stage))))
        most = self._max_sequences(tightest, named)
        if isinstance(most, float):  # infinite: no stage keeps anything
            most = self._slots(named)
        term: Term = named(most * named(self.deployment.parallel.dp, "dp", "", _DP), "max_batch", "sequences")
        return term

    def _max_context_terms(self) -> Term:
        """The line through the bytes needed at the answer and at one token more, solved for the pool."""
        longest = self.max_context()
        limit: Any = named(self.deployment.model.max_context or _CONTEXT_LIMIT, "limit", "", ("model", "max_context"))
        found: list[Any] = []
        for stage in self.stages:
            slope = self._needed(stage, longest + 1) - self._needed(stage, longest)
            if slope > 0:
                fixed = named(self._needed(stage, longest) - slope * longest, "held by what does not grow", "B")
                pool = named(self._pool(stage, named), "pool", "B")
                found.append(floor(np.maximum(pool - fixed, 0.0) / named(slope, "a token of every sequence", "B")))
        endless = named(np.inf, "no limit of memory")
        tightest = min(found, key=lambda term: float(term.value), default=endless)
        term: Term = named(np.minimum(tightest, limit), "max_context", "tokens")
        return term
