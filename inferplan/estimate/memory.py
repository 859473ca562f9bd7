"""Memory of one device: weights, state, activations, the runtime's reserve; and the largest load that fits.

The formulas are in docs/formulas/memory.md. Where an engine is named, activations and reserve are what that version
sets aside at start-up, whatever the load; without one they are those of the static batch itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from inferplan.estimate.deployment import Deployment
from inferplan.models.layers import Cache, Weight
from inferplan.models.spec import LayerGroup, count_distinct
from inferplan.units import Num
from inferplan.work.parallel import split_layers

_CONTEXT_LIMIT = 2**31
"""Longest context searched for a model that states no limit of its own."""
_UNLIMITED = 1e12
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
        return sum(self.tensor_bytes(weight, layer) * count for weight, count, layer in self.tensors())

    def tensors(self) -> Iterator[tuple[Weight, int, int | None]]:
        """The tensors of this stage, the number of copies of each, and the layer where that decides its format."""
        model = self.deployment.model
        table = self.last and model.tied and not self.first  # a tied head needs the table, and no more of the input
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

    def tensor_bytes(self, weight: Weight, layer: int | None = None) -> float:
        """Bytes of one tensor on this device."""
        parallel = self.deployment.parallel
        elements = weight.per_rank(parallel)
        if weight.units == self.deployment.model.vocab and parallel.tp > 1:
            padded = -(-weight.units // _VOCAB_PAD) * _VOCAB_PAD
            elements = weight.elements / weight.units * -(-padded // parallel.tp)
        fmt = self.deployment.precision.stored(weight.role, weight.name, layer)
        multiple = self.deployment.engine.defaults.expert_multiple.get(fmt.name, 1) if weight.role == "experts" else 1
        padded_last = -(-weight.shape[-1] // multiple) * multiple
        whole = fmt.stored(weight.shape) * padded_last / weight.shape[-1] if weight.elements else 0.0
        return elements / max(weight.elements, 1) * whole

    @cached_property
    def caches(self) -> list[tuple[Cache, int]]:
        return [
            (cache, count)
            for layer, count in count_distinct(self.layers)
            for cache in (part.cache() for part in layer.parts)
            if cache.per_token or cache.state
        ]

    def state(self, tokens: Num, block: int = 1) -> Num:
        """Bytes that one sequence of ``tokens`` keeps on this device, in pages of ``block`` tokens."""
        tp, cp = self.deployment.parallel.tp, self.deployment.parallel.cp
        width = self.deployment.precision.kv.width
        total: Num = self.recurrent
        paged = tokens if block == 1 else np.ceil(tokens / block) * block
        for cache, count in self.caches:
            share = cache.per_token * cache.copies(cache.units, tp) * count * width / cp
            if share:
                total = total + share * cache.mask.cached(paged)
        return total

    @cached_property
    def recurrent(self) -> float:
        """Bytes of constant size that one sequence keeps on this device."""
        tp, precision = self.deployment.parallel.tp, self.deployment.precision
        return sum(cache.state_bytes(precision.base, precision.kv, tp) * count for cache, count in self.caches)

    @cached_property
    def per_token(self) -> float:
        """Bytes that one more token adds while the context is below every window."""
        return float(self.state(1.0) - self.recurrent)

    @cached_property
    def live_width(self) -> float:
        """Base-format elements a token that are alive at the widest point of a layer: two residuals and its inside."""
        model, parallel = self.deployment.model, self.deployment.parallel
        inside = [
            part.live_width(model.d_model, parallel) for layer, _ in count_distinct(self.layers) for part in layer.parts
        ]
        return 2 * model.d_model + max(inside)

    def activations(self, tokens: Num, rows: Num) -> Num:
        """Peak bytes of a step of ``tokens`` rows.

        The widest layer, or the logits of ``rows`` sequences with the sampler.
        """
        deployment = self.deployment
        layer = tokens * self.live_width * deployment.precision.base.width
        if not self.last:
            return layer
        logits = rows * deployment.model.vocab * deployment.engine.defaults.sampler_bytes_per_logit
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
        held = stage.weights + stage.activations(*self.step) + self._sequences(self.batch) * self._state(stage)
        return held + self._reserve(stage)

    @property
    def step(self) -> tuple[Num, Num]:
        """Tokens and sequences of the step that activations are sized for."""
        engine, hardware = self.deployment.engine, self.deployment.hardware
        if engine.name == "none":
            sequences = self._sequences(self.batch)
            return sequences * self.prompt, sequences * self.logits
        tier = engine.defaults.tier(hardware)
        return float(tier.token_budget), float(tier.max_sequences)

    def _sequences(self, batch: Num) -> Num:
        return np.ceil(batch / self.deployment.parallel.dp)

    def _state(self, stage: StageMemory, context: Num | None = None, block: int = 1) -> Num:
        return stage.state(self.context if context is None else context, block) if self.cached else 0.0

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
        return self._sequences(self.batch) * self._state(self.stage)

    @property
    def state_allocated(self) -> Num:
        """The same in whole pages of the engine."""
        return self._sequences(self.batch) * self._state(self.stage, block=self.deployment.engine.defaults.block_size)

    @property
    def activations(self) -> Num:
        return self.stage.activations(*self.step)

    @property
    def usable(self) -> float:
        return self.deployment.hardware.usable

    @cached_property
    def reserve(self) -> float:
        """Bytes the runtime keeps for itself on the fullest device.

        Contexts, communicators, graphs, and what the engine's fraction leaves.
        """
        return self._reserve(self.stage)

    def _reserve(self, stage: StageMemory) -> float:
        engine, parallel = self.deployment.engine.defaults, self.deployment.parallel
        fixed = engine.context + engine.graphs + (engine.communicator if parallel.ranks > 1 else 0.0)
        if engine.kv_rule == "all":
            return fixed
        if engine.kv_rule == "static_of_total":
            held_back = self.usable * (1.0 - self.memory_fraction)
            return max(fixed, held_back - float(np.max(stage.activations(*self.step))))
        fraction = self.memory_fraction
        if engine.kv_rule == "of_free":
            free = self.usable - stage.weights - float(np.max(stage.activations(*self.step))) - fixed
            return fixed + (1.0 - fraction) * max(free, 0.0)
        return fixed + (1.0 - fraction) * self.usable

    @cached_property
    def memory_fraction(self) -> float:
        """The share of memory the engine works with: its default, or SGLang's rule.

        SGLang (memory_hook.py): 1 - (512 + 1.5 max(chunk, 2048) + 128 tp pp + 2 graph batch + graphs MiB)/memory, of
        which at least 10 GiB above 60 GB; rounded to three digits. The graph batch is 256, 512 from four ranks on;
        graphs are 8 MiB for each of 58 sizes, 1536 for latent attention.
        """
        engine, parallel = self.deployment.engine.defaults, self.deployment.parallel
        if engine.memory_fraction is not None:
            return engine.memory_fraction
        mebibytes = self.usable / 2**20
        graph_batch = 512 if parallel.tp >= 4 else 256
        reserved = 512 + 1.5 * max(engine.tier(self.deployment.hardware).token_budget, 2048)
        latent = any(part.kind == "mla" for layer, _ in self.deployment.model.distinct for part in layer.parts)
        reserved += 1536 if latent else 8 * 58
        reserved += parallel.tp * parallel.pp * 128 + 2 * graph_batch
        reserved = max(reserved, 10240) if mebibytes > 60 * 1024 else reserved
        return round((mebibytes - reserved) / mebibytes, 3)

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
        engine = self.deployment.engine
        taken = 0.0 if engine.name == "none" else float(np.max(stage.activations(*self.step)))
        return self.usable - stage.weights - self._reserve(stage) - taken

    def max_batch(self) -> Num:
        """The largest batch at this context whose every stage fits; 0 when none does.

        Where sequences keep nothing (no KV cache) memory sets no limit and the engine's slots are the answer.

        Without an engine activations grow with the batch, in proportion, and are paid from the same pool.
        """
        best: Num = np.inf
        for stage in self.stages:
            per_sequence = self._state(stage)
            if self.deployment.engine.name == "none":
                per_sequence = per_sequence + stage.activations(self.prompt * 1.0, self.logits)
            pool = max(self.pool(stage), 0.0)
            best = np.minimum(best, np.floor(pool / np.maximum(per_sequence, 1e-9) * (1 + 1e-12)))
        slots = float(self.deployment.engine.defaults.tier(self.deployment.hardware).max_sequences)
        best = np.where(best > _UNLIMITED, slots, best)
        return best * self.deployment.parallel.dp

    def max_context(self) -> int:
        """The longest context at this batch, in tokens, up to the model's own limit; 0 when not even one token fits."""
        limit = self.deployment.model.max_context or _CONTEXT_LIMIT
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._context_fits(middle) else (low, middle - 1)
        return low

    def _context_fits(self, context: int) -> bool:
        sequences = float(np.max(self._sequences(self.batch)))
        for stage in self.stages:
            extra = 0.0
            if self.deployment.engine.name == "none":
                tokens, rows = self.step if self.cached else (sequences * context, sequences * self.logits)
                extra = float(np.max(stage.activations(tokens, rows)))
            if sequences * float(np.max(self._state(stage, float(context)))) + extra > self.pool(stage):
                return False
        return True

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
