"""Memory of one device of a pipeline stage: its weights, and what its layers keep and need for sequences.

The formulas are in docs/formulas/memory.md. A function with a ``name`` argument gives its number with its terms
when that is :func:`inferplan.terms.name_term`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from inferplan.devices.engine import Windows
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.sharing import ALONE, Sharing
from inferplan.estimate.windows import Kind, in_pages, is_bounded, kind_of, kinds, padding, reach
from inferplan.models.layers import Cache, Weight
from inferplan.models.lora import slot_bytes
from inferplan.models.spec import EncoderStack, LayerGroup, ModelSpec, as_tower, count_distinct, residual_blocks
from inferplan.terms import Naming, Term, name_term, plain, total
from inferplan.units import Num
from inferplan.work.ops import Mask

_KINDS = "kinds of layer"
_VOCAB_PAD = 64
"""Engines pad the vocabulary to a multiple of 64 before dividing it (vLLM, vocab_parallel_embedding.py)."""


Share = Literal["whole", "rest", "experts"]
"""What of a layer lies in a memory: all of it, its routed experts, or what is not of them."""


def _lies(weight: Weight, share: Share) -> bool:
    return share == "whole" or (weight.role == "experts") is (share == "experts")


@dataclass(frozen=True, kw_only=True, eq=False)
class StageMemory:
    """One device of one pipeline stage: its weights in bytes, and what its layers keep for a sequence.

    lent: of the first so many of its layers the routed experts lie elsewhere. guests: layers behind its own of which it
    has the routed experts and nothing else.
    """

    deployment: Deployment
    layers: list[LayerGroup]
    start: int
    first: bool
    last: bool
    lent: int = 0
    guests: tuple[LayerGroup, ...] = ()

    @cached_property
    def distinct(self) -> list[tuple[LayerGroup, int]]:
        """Each different layer with its number."""
        return count_distinct(self.layers)

    @cached_property
    def weights(self) -> float:
        """Bytes of parameters, each tensor in the format of its role."""
        whole = float(sum(self.tensor_bytes(weight, layer) * count for weight, count, layer in self.tensors()))
        return whole - self.streamed if self.deployment.streamed is not None else whole

    @cached_property
    def streamed(self) -> float:
        """Bytes of its layers that lie in the host's memory; 0 where they are not read from there."""
        return float(sum(size * share for _, size, share in streamed_layers(self)))

    @cached_property
    def adapters(self) -> float:
        """Bytes of the slots of all LoRA adapters; 0 without any."""
        return float(adapter_terms(self, plain))

    def tensors(self) -> Iterator[tuple[Weight, int, int | None]]:
        """The tensors of this stage, the number of copies of each, and the layer where that decides its format."""
        model = self.deployment.model
        table = self.last and model.tied and model.predicts and not self.first  # a tied head shares the embedding table
        if self.first or table:
            inputs = (w for w in model.input_weights() if self.first or w.name == "embedding")
            yield from ((weight, 1, None) for weight in inputs)
        if self.first and model.encoder is not None:
            yield from ((weight, count, None) for weight, count in model.encoder.weights())
        if self.first:
            towers = (entry for tower in model.towers for entry in tower.weights())
            yield from ((as_tower(weight), count, None) for weight, count in towers)
        seen_shared: list[LayerGroup] = []
        shares = any(layer.shared for layer in (*self.layers, *self.guests))
        for layer, count, number, part in _numbered(self):
            copies = count
            if shares:  # a shared block's parameters are kept once on a stage that runs it
                own = layer.model_copy(update={"shared": False})
                if layer.shared:
                    copies = 0 if own in seen_shared else 1
                seen_shared.append(own)
            kept = (one for one in model.layer_weights(layer) if _lies(one, part))
            yield from ((weight, copies, number) for weight in kept)
        if self.last:
            yield from ((weight, 1, None) for weight in model.output_weights())

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
        size: Num = name(elements, "elements") * name(stored / max(weight.elements, 1), "bytes per element")
        return size

    @cached_property
    def caches(self) -> list[tuple[Cache, int]]:
        if self.deployment.model.encodes:
            return []  # one pass over a request: nothing outlives it
        return [(cache, count) for layer, count in self.distinct for cache in layer.caches()]

    def state(self, tokens: Num) -> Num:
        """Bytes of one sequence of ``tokens`` that layers of this device may still look at, whatever is kept."""
        return total((size * mask.cached(tokens) for size, mask in self._sizes), _KINDS) + self.recurrent

    def held(self, tokens: Num, block: int = 1, name: Naming = plain, sharing: Sharing = ALONE) -> Num:
        """Bytes of the engine's cache that one request of ``tokens`` takes, in pages of ``block`` tokens.

        All its tokens are settled: what a step keeps beside that is :meth:`in_flight`.
        """
        sizes = self._kept if name is plain else self._token_sizes(name, padded=True)
        if self._pooled:
            cached = self._in_pools(tokens, block, name, sharing)
        else:
            kept = ((size, sharing.tokens(self._windows, mask, tokens, block, name)) for size, mask in sizes)
            cached = total((size * tokens_of for size, tokens_of in kept), _KINDS)
        if not self.recurrent:
            return cached
        return cached + name(self.recurrent, "state of constant size", "B")

    def in_flight(self, tokens: Num, budget: Num) -> Num:
        """Bytes that windows take beside :meth:`held`, once for all, for steps of ``budget`` tokens in flight."""
        return total(
            (size * np.clip(tokens - window, 0.0, most) for size, window, most in self.flights(budget)), _KINDS
        )

    def flights(self, budget: Num) -> list[tuple[Num, float, Num]]:
        """Of each kind with a window: bytes of a token, the window, and the tokens beyond it that may be in flight."""
        windowed = [(size, mask) for size, mask in self._kept if is_bounded(mask)]
        if self._pooled or not windowed:
            return []
        flight = self._windows.flight(budget, self.deployment.parallel.pp)
        return [(size, float(mask.size), reach(mask, np.inf, flight) - mask.size) for size, mask in windowed]

    def reserved(self, tokens: Num, budget: Num, block: int = 1) -> Num:
        """Bytes that one sequence of ``tokens`` takes at most while steps of ``budget`` tokens compute it."""
        if self._pooled:
            return self.held(tokens, block)
        flight = self._windows.flight(budget, self.deployment.parallel.pp)
        kept = ((size, in_pages(self._windows, mask, reach(mask, tokens, flight), block)) for size, mask in self._kept)
        return total((size * tokens_of for size, tokens_of in kept), _KINDS) + self.recurrent

    @cached_property
    def bends(self) -> list[float]:
        """Tokens from which on a further one adds less to :meth:`held`, or more."""
        sizes = sorted({float(mask.size) for _, mask in self._kept if is_bounded(mask)})
        return sorted({*sizes, *(size / self._windows.share for size in sizes)}) if self._pooled else sizes

    def logged_tokens(self, pool: float, block: int) -> float:
        """Tokens of ``pool`` bytes where all its blocks are shared out among the kinds of layer (vLLM until 0.19)."""
        layers = self._layers_paid
        widest = max(kind[0] for kind in layers)
        elements = sum(widest * count for count in layers.values())
        per_token = elements * self.per_token / sum(kind[0] * count for kind, count in self._kinds.items())
        return pool // (per_token * block) * block

    @cached_property
    def _windows(self) -> Windows:
        windows = self.deployment.engine.defaults.windows.of(self.deployment.model.name)
        compressed = any(cache.mask.kind == "compressed" for cache, _ in self.caches)
        return windows.beside_entries if compressed else windows

    @cached_property
    def _pooled(self) -> bool:
        """Whether layers with windows have a memory of their own beside that of others."""
        return self._windows.keeps == "pool" and len({is_bounded(mask) for _, mask in self._sizes}) == 2

    def _in_pools(self, tokens: Num, block: int, name: Naming, sharing: Sharing) -> Num:
        """Of two memories the fuller one decides: ``(full + share*windowed) * max(n, min(n, window)/share)`` bytes."""
        share = self._windows.share
        windowed = [(size, mask) for size, mask in self._kept if is_bounded(mask)]
        full = sum(size for size, mask in self._kept if not is_bounded(mask))
        widest = max((mask for _, mask in windowed), key=lambda mask: mask.size)
        short = sharing.tokens(self._windows, widest, tokens, block) / share
        fuller = np.maximum(sharing.tokens(self._windows, Mask(), tokens, block), short)
        unit = full + share * sum(size for size, _ in windowed)
        return name(unit, "bytes per token of both pools", "B") * name(fuller, "tokens of the fuller pool")

    @cached_property
    def _kinds(self) -> Counter[Kind]:
        return kinds(self.caches)

    @cached_property
    def _paid(self) -> dict[Kind, float]:
        """Layers paid for each layer of a kind."""
        if not self._windows.grouped or self.recurrent:
            return dict.fromkeys(self._kinds, 1.0)
        return padding(kinds(self.deployment.model.caches()), self._kinds)

    @property
    def _layers_paid(self) -> dict[Kind, float]:
        return {kind: self._paid[kind] * count for kind, count in self._kinds.items()}

    @cached_property
    def _sizes(self) -> list[tuple[Num, Mask]]:
        return list(self._token_sizes())

    @cached_property
    def _kept(self) -> list[tuple[Num, Mask]]:
        return list(self._token_sizes(padded=True))

    def _token_sizes(self, name: Naming = plain, padded: bool = False) -> Iterator[tuple[Num, Mask]]:
        """Bytes of a cached token in each kind of layer, and which tokens it looks at; ``padded``: the engine keeps."""
        parallel, width = self.deployment.parallel, self.deployment.precision.kv.width
        for cache, count in self.caches:
            if cache.per_token:
                layers = count * self._paid[kind_of(cache)] if padded else count
                mask = Mask() if padded and self._windows.keeps == "all" and is_bounded(cache.mask) else cache.mask
                share = name(cache.copies(cache.units, parallel.tp) / parallel.cp, "share of this rank")
                share = share / name(cache.rate, "tokens of an entry") if cache.rate > 1 else share
                size = name(layers, "layers") * name(cache.per_token - cache.apart, "elements") * share
                yield size * name(width, "bytes per element", "", ("format", "kv")), mask
                if cache.apart_format is not None:
                    keys = name(layers, "layers") * name(cache.apart, "index elements") * share
                    yield keys * name(cache.apart_format.width, "bytes per index element"), mask

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
        """Base-format elements a token that are alive at the widest point of a layer: two residuals and its inside.

        Of hyper-connections every stream is a residual; sums of finished blocks of layers stay beside them.
        """
        model, parallel = self.deployment.model, self.deployment.parallel
        stack: ModelSpec | EncoderStack = model
        layers = self.distinct
        if model.encoder is not None:  # the decoder has one row of each sequence, the encoder all of the prompt
            stack, layers = model.encoder, model.encoder.distinct
        inside = [part.live_width(stack.d_model, parallel) for layer, _ in layers for part in layer.parts]
        inside += [layer.ffn.live_width(stack.d_model, parallel) for layer in self.guests if layer.ffn is not None]
        blocks = residual_blocks(layer for layer, _ in layers)
        return stack.d_model * (2 * model.hyper_streams + blocks) + max(inside, default=0.0)

    def activations(self, tokens: Num, rows: Num, name: Naming = plain) -> Num:
        """Peak bytes of a step of ``tokens`` rows.

        The widest layer, or the logits of ``rows`` sequences with the sampler.
        """
        model, engine = self.deployment.model, self.deployment.engine.defaults
        if not (self.layers or self.guests or self.last):
            return tokens * 0.0
        layer = tokens * name(self.live_width, "live width")
        base = name(self.deployment.precision.base.width, "bytes per element", "", ("format", "base"))
        layer = layer * base
        if not (self.last and model.predicts):
            return layer
        if model.encodes:  # logits of every token, as they leave the head, with no sampler
            return np.maximum(layer, tokens * name(model.vocab, "vocab", "", ("model", "vocab")) * base)
        logits = rows * name(model.vocab, "vocab", "", ("model", "vocab"))
        logits = logits * name(
            engine.sampler_bytes_per_logit, "bytes per logit", "", ("engine", "sampler_bytes_per_logit")
        )
        return np.maximum(layer, logits)


def adapter_terms(stage: StageMemory, name: Naming = name_term) -> Num:
    """Bytes of the slots of all LoRA adapters on one device of a stage, with their terms."""
    lora, deployment = stage.deployment.lora, stage.deployment
    if lora is None:
        return 0.0
    each = slot_bytes(lora, deployment.model, stage.layers, deployment.parallel)
    size: Num = name(lora.slots, "slots", "", ("lora", "slots")) * name(each, "bytes per slot", "B")
    return size


def weight_terms(stage: StageMemory) -> Term:
    """Its bytes of parameters, tensor by tensor."""
    found: dict[str, list[Num]] = defaultdict(list)
    for weight, count, layer in stage.tensors():
        found[weight.name].append(stage.tensor_bytes(weight, layer, name_term) * name_term(count, "copies"))
    tensors = (name_term(total(sizes, "layers"), tensor, "B") for tensor, sizes in found.items())
    whole: Any = total(tensors, "tensors")
    if stage.deployment.streamed is not None:
        whole = name_term(whole, "all weights", "B") - name_term(stage.streamed, "of them in host memory", "B")
    weights: Term = name_term(whole, "weights", "B")
    return weights


def streamed_layers(stage: StageMemory) -> list[tuple[LayerGroup, float, float]]:
    """The layers in their order, each with its bytes and the share of them in the host's memory: the first of all, up
    to what is asked for (vLLM's ``maybe_offload_to_cpu``, which goes on tensor by tensor; here a layer is cut)."""
    streamed, model = stage.deployment.streamed, stage.deployment.model
    left, found = (0.0 if streamed is None else streamed.bytes), []
    if not left:
        return []
    sizes: dict[tuple[int, int | None], float] = {}
    by_number = any(layers for _, _, layers in stage.deployment.precision.exceptions)
    for index, layer in enumerate(stage.layers):
        number = stage.start + index if by_number else None
        if (id(layer), number) not in sizes:
            weights = model.layer_weights(layer)
            sizes[id(layer), number] = float(sum(stage.tensor_bytes(weight, number) for weight in weights))
        size = sizes[id(layer), number]
        share = min(left / size, 1.0) if size else 0.0
        left -= share * size
        found.append((layer, size, share))
    return found


def _numbered(stage: StageMemory) -> Iterator[tuple[LayerGroup, int, int | None, Share]]:
    """The layers of a stage with their count, and what of one lies there.

    One by one with their number where formats differ from layer to layer.
    """
    one_by_one, number = any(layers for _, _, layers in stage.deployment.precision.exceptions), stage.start
    lent, own = stage.layers[: stage.lent], stage.layers[stage.lent :]
    parts: list[tuple[Share, Sequence[LayerGroup]]] = [("rest", lent), ("whole", own), ("experts", stage.guests)]
    for share, layers in parts:
        if one_by_one:
            yield from ((layer, 1, number + index, share) for index, layer in enumerate(layers))
            number += len(layers)
        else:
            yield from ((layer, count, None, share) for layer, count in count_distinct(layers))
