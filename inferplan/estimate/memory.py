"""Memory of one device: weights, state, activations, the runtime's reserve; and the largest load that fits.

The formulas are in docs/formulas/memory.md. Where an engine is named, activations and reserve are what that version
sets aside at start-up, whatever the load; without one they are those of the static batch itself. A function with a
``name`` argument gives its number with its terms when that is :func:`inferplan.terms.name_term`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from inferplan.devices.engine import EngineVersion
from inferplan.estimate.deployment import Deployment, Offload, found_once
from inferplan.estimate.reserve import memory_fraction, reserve
from inferplan.estimate.shared import Shared
from inferplan.estimate.sharing import ALONE, Sharing
from inferplan.estimate.stage_memory import StageMemory, adapter_terms, weight_terms
from inferplan.terms import Field, Naming, Term, ceil, floor, name_term, named_at, plain
from inferplan.units import Num
from inferplan.work.parallel import split_layers

_CONTEXT_LIMIT = 2**45
"""Longest context searched for a model that states none: at a bit a token more than any device holds."""
_DP: Field = ("parallel", "dp")
_SLOTS: Field = ("engine", "tiers", "max_sequences")
_PAGE: Field = ("engine", "block_size")
_WEIGHTS: Field = ("number", "memory.weights")
_ADAPTERS: Field = ("number", "memory.adapters")


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceMemory:
    """What a load takes of the device that is fullest, in bytes.

    ``batch`` requests of ``context`` tokens; ``prompt`` of them in the longest pass, ``logits`` of those in the head.
    """

    deployment: Deployment
    batch: Num
    prompt: Num
    context: Num
    cached: bool = True
    """Whether keys and values are kept at all; where they are not, the longest pass is the whole context."""
    logits: Num = 1.0
    sharing: Sharing = ALONE
    """How many answers each request has, and what they share."""
    budget: Num | None = None
    """Tokens of a step, where they are not those of the engine."""
    draft: Deployment | None = None
    """A model on the same devices that drafts for it, with weights and a cache of its own."""
    beside: Offload | None = None
    """Where it is the host that is looked at: what the device beside it leaves to it."""

    @cached_property
    def _draft(self) -> StageMemory | None:
        """The fullest stage of the draft, which is taken to lie beside every stage of the model."""
        return None if self.draft is None else replace(self, deployment=self.draft, draft=None).stage

    @property
    def draft_weights(self) -> float:
        """Bytes of the draft's parameters; 0 without one."""
        return 0.0 if self._draft is None else self._draft.weights

    @cached_property
    def stage(self) -> StageMemory:
        """The pipeline stage whose devices are fullest."""
        return max(self.stages, key=lambda stage: float(np.max(self._stage_total(stage))))

    @cached_property
    def stages(self) -> list[StageMemory]:
        """The stages in their order; those inside that hold the same layers in the same formats are the same object."""
        deployment = self.deployment
        if (offload := self.beside or deployment.offload) is not None:
            return [_side(deployment, offload, there=self.beside is not None)]
        sequence, start, stages = deployment.model.sequence, 0, []
        counts = split_layers(len(sequence), deployment.parallel.pp)
        alike = not any(layers for _, _, layers in deployment.precision.exceptions)
        inside: dict[tuple[int, ...], StageMemory] = {}
        for index, layers in enumerate(counts):
            held = sequence[start : start + layers]
            first, last = index == 0, index == len(counts) - 1
            stage = StageMemory(deployment=deployment, layers=held, start=start, first=first, last=last)
            stages.append(inside.setdefault(tuple(map(id, held)), stage) if alike and not (first or last) else stage)
            start += layers
        return stages

    def of_fullest(self, quantity: Callable[[StageMemory], Num]) -> Num:
        """A quantity of the stage whose devices are fullest, which may be another at each point of a grid."""
        first, *others = self.stages
        found, most = quantity(first), self._stage_total(first)
        for stage in others:
            held = self._stage_total(stage)
            found, most = np.where(held > most, quantity(stage), found), np.maximum(most, held)
        return found

    def state_of(self, stage: StageMemory) -> Num:
        """Bytes of KV cache and recurrent state of the whole batch on one stage's devices, as :attr:`state`."""
        return self._state(stage)

    def _stage_total(self, stage: StageMemory) -> Num:
        held = stage.weights + stage.adapters + self.draft_weights + self._activations(stage)
        return held + self._state(stage, pages=True) + self._reserve(stage)

    def step(self, name: Naming = plain) -> tuple[Num, Num]:
        """Tokens and sequences of the step that activations are sized for."""
        engine, hardware = self.deployment.engine, self.deployment.hardware
        if engine.sized_for_batch:
            sequences, (tokens, logits) = self._sequences(name), self._widest(name)
            return sequences * tokens, sequences * logits
        tier = engine.defaults.tier(hardware)
        own = float(tier.token_budget) if self.budget is None else self.budget
        tokens = name(own, "tokens of a step", "", ("engine", "tiers", "token_budget"))
        return tokens, name(float(tier.max_sequences), "sequences of a step", "", _SLOTS)

    def _widest(self, name: Naming = plain) -> tuple[Num, Num]:
        """Tokens of a request in its longest pass, and its logits; in a decode each of its samples has one of both."""
        tokens = name(self.prompt * 1.0, "tokens of the longest pass", "", ("load", "prompt"))
        logits = name(self.logits, "logits of a sequence")
        if self.sharing.samples == 1:
            return tokens, logits
        samples = name(self.sharing.samples, "samples", "", ("load", "samples"))
        return np.maximum(tokens, samples), np.maximum(logits, samples)

    def _sequences(self, name: Naming = plain) -> Num:
        """Requests of the rank that has most."""
        batch, dp = name(self.batch, "batch", "", ("load", "batch")), self.deployment.parallel.dp
        return ceil(batch / name(dp, "dp", "", _DP))

    def _each(self, stage: StageMemory, name: Naming = plain, pages: bool = False) -> Num:
        """Bytes that one request keeps; ``pages``: with its tokens rounded up to whole ones, as it takes them."""
        if not self.cached:
            return name(0.0, "state of a sequence", "B")
        tokens, context = self.context, name(self.context, "tokens of a sequence", "", ("load", "context"))
        if pages and self._page > 1:
            page = name(float(self._page), "tokens of a page", "", _PAGE)
            tokens, context = np.ceil(tokens / self._page) * self._page, ceil(context / page) * page
        own = name(stage.held(context, name=name, sharing=self.sharing), "state of a sequence", "B")
        return own + self._drafted(tokens) if self._draft is not None else own

    @property
    def _page(self) -> int:
        """Tokens that the cache takes at once; 1 where nothing in it grows with the context."""
        grows = self.cached and any(stage.per_token for stage in self.stages)
        return self.deployment.engine.defaults.block_size if grows else 1

    def _drafted(self, context: Num, block: int = 1) -> Num:
        """Bytes that the draft keeps of one sequence, in whole pages of ``block`` tokens."""
        return 0.0 if self._draft is None else self._draft.held(context, block)

    def _in_flight(self, stage: StageMemory, context: Num) -> Num:
        """Bytes that windows take beside the state of all sequences while steps are not settled."""
        if not self.cached:
            return 0.0
        own = self.deployment.engine.defaults.tier(self.deployment.hardware).token_budget
        return stage.in_flight(context, float(own) if self.budget is None else self.budget)

    def _state(self, stage: StageMemory, name: Naming = plain, pages: bool = False) -> Num:
        kept, flight = self._sequences(name) * self._each(stage, name, pages), self._in_flight(stage, self.context)
        return kept + name(flight, "windows of steps in flight", "B") if np.any(flight) else kept

    def _activations(self, stage: StageMemory, name: Naming = plain) -> Num:
        return stage.activations(*self.step(name), name)

    def _reserve(self, stage: StageMemory, name: Naming = plain) -> Num:
        weights = name(stage.weights, "weights", "B", _WEIGHTS)
        if stage.adapters:
            weights = weights + name(stage.adapters, "adapters", "B", _ADAPTERS)
        activations = name(self._activations(stage, name), "activations", "B")
        return reserve(self.deployment, weights, activations, name, self.budget)

    def _pool(self, stage: StageMemory, name: Naming = plain) -> Num:
        """Bytes left for state; without an engine for activations too, which then grow with the batch."""
        usable = name(self.usable, "usable", "B", ("hardware", "memory", "usable"))
        left = usable - name(stage.weights, "weights", "B", _WEIGHTS) - name(self._reserve(stage, name), "reserve", "B")
        left = left - self.draft_weights if self._draft is not None else left
        left = left - name(stage.adapters, "adapters", "B", _ADAPTERS) if stage.adapters else left
        if self.deployment.engine.sized_for_batch:
            return left
        return left - name(self._activations(stage, name), "activations", "B")

    @property
    def weights(self) -> float:
        return self.stage.weights

    @property
    def adapters(self) -> float:
        """Bytes of the slots of LoRA adapters; 0 without any."""
        return self.stage.adapters

    @property
    def keeps_state(self) -> bool:
        """Whether any stage keeps a state of constant size of a sequence."""
        return any(stage.recurrent for stage in self.stages)

    @property
    def state_per_sequence(self) -> float:
        """Bytes of constant size for a sequence: recurrent and convolution state."""
        return self.stage.recurrent

    @property
    def kv_per_token(self) -> float:
        return self.stage.per_token + (0.0 if self._draft is None else self._draft.per_token)

    @property
    def state(self) -> Num:
        """Bytes of KV cache and recurrent state of the whole batch by the engine's rule, if no page is partly empty."""
        return self.state_of(self.stage)

    @property
    def state_allocated(self) -> Num:
        """The same in whole pages of the engine."""
        block = self.deployment.engine.defaults.block_size
        each = self.stage.held(self.context, block, sharing=self.sharing) if self.cached else 0.0
        each = each + self._drafted(self.context, block) if self.cached else each
        return self._sequences() * each + self._in_flight(self.stage, self.context)

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
        return float(memory_fraction(self.deployment, budget=self.budget))

    @property
    def total(self) -> Num:
        return self.weights + self.adapters + self.draft_weights + self.state + self.activations + self.reserve

    @property
    def fits(self) -> bool:
        return all(bool(np.all(self._stage_total(stage) <= self.usable)) for stage in self.stages)

    @property
    def headroom(self) -> Num:
        return self.usable - self.total


def _side(deployment: Deployment, offload: Offload, there: bool) -> StageMemory:
    """What lies on one side of a deployment: ``there`` with its host, else on its device."""
    sequence, layers = deployment.model.sequence, offload.layers
    if there:
        guests = tuple(sequence[layers : max(offload.experts, layers)])
        own, last = sequence[:layers], offload.head
        return StageMemory(deployment=deployment, layers=own, start=0, first=True, last=last, guests=guests)
    lent, last = max(offload.experts - layers, 0), not offload.head
    own = sequence[layers:]
    return StageMemory(deployment=deployment, layers=own, start=layers, first=False, last=last, lent=lent)


@dataclass(frozen=True, kw_only=True, eq=False)
class Footprint(DeviceMemory):
    """What a load takes of the device that is fullest, and the largest load that every device holds.

    Of layers on the host it is what the device takes, and :attr:`host` what the host does; the largest load is that
    which both hold.
    """

    @cached_property
    def host(self) -> Footprint | None:
        """What the same load takes of the host's memory; ``None`` where nothing lies there."""
        offload = self.deployment.offload
        return None if offload is None else replace(self, deployment=offload.host, beside=offload, draft=None)

    @property
    def streamed(self) -> float:
        """Bytes of weights that all devices of a replica read from the host's memory."""
        ranks = self.deployment.parallel.ranks / self.deployment.parallel.pp
        return sum(stage.streamed for stage in self.stages) * ranks

    @property
    def fits(self) -> bool:
        return super().fits and (self.host is None or self.host.fits)

    @property
    def fits_here(self) -> bool:
        """Whether the device holds its own part, whatever the host does."""
        return super().fits

    @cached_property
    def kv_pool(self) -> float:
        """Bytes left for state on the fullest device; negative when not even the weights fit."""
        return self.pool(self.stage)

    def pool(self, stage: StageMemory) -> float:
        """Bytes that a stage has left for state; negative when not even its weights fit."""
        return float(self.pools(stage))

    def pools(self, stage: StageMemory) -> Num:
        """The same for each of several token budgets."""
        return self._pool(stage)

    def max_batch(self) -> Num:
        """The largest batch of requests at this context whose every stage fits; 0 when none does.

        Where sequences keep nothing (no KV cache) memory sets no limit and the engine's slots are the answer.

        Without an engine activations grow with the batch, in proportion, and are paid from the same pool.
        """
        best: Num = np.inf if self.host is None else self.host._max_sequences(self.host.stage)
        for stage in self.stages:
            best = np.minimum(best, self._max_sequences(stage))
        return np.where(np.isinf(best), self._slots(), best) * self.deployment.parallel.dp

    def _slots(self, name: Naming = plain) -> Num:
        slots = self.deployment.engine.defaults.tier(self.deployment.hardware).max_sequences
        return name(float(slots), "sequences of a step", "", _SLOTS)

    def _max_sequences(self, stage: StageMemory, name: Naming = plain) -> Num:
        """The most requests of one rank that a stage's memory holds; where they keep nothing all, or none at all."""
        if not self.deployment.engine.sized_for_batch and not (self.cached and stage.caches):
            return np.inf if self.pool(stage) >= 0 else 0.0
        each = self._each(stage, name, pages=True)
        if self.deployment.engine.sized_for_batch:
            activations = stage.activations(*self._widest(name), name)
            each = each + name(activations, "activations of a sequence", "B")
        pool, flight = name(self._pool(stage, name), "pool", "B"), self._in_flight(stage, self.context)
        if np.any(flight):
            pool = pool - name(flight, "windows of steps in flight", "B")
        return floor(np.maximum(pool, 0.0) / each)

    def max_context(self) -> float:
        """The longest context at this batch, in tokens of whole pages, up to the model's limit; 0 when no page fits.

        Infinite where the model states no limit and keeps nothing that grows with it.
        """
        limit = self.deployment.model.max_context or _CONTEXT_LIMIT
        limit, page = limit if self.host is None else int(min(limit, self.host.max_context())), self._page
        longest = min(self._longest(self.stages, -(-limit // page) * page) // page * page, limit)
        return longest if self.deployment.model.max_context or longest < _CONTEXT_LIMIT else np.inf

    def _longest(self, stages: Sequence[StageMemory], high: int) -> int:
        """The longest context up to ``high`` that the pools of some stages hold, by bisection."""
        low, pools = 0, [(stage, self.pool(stage)) for stage in stages]
        while low < high:
            middle = (low + high + 1) // 2
            fits = all(self._needed(stage, middle) <= pool for stage, pool in pools)
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _needed(self, stage: StageMemory, context: int) -> float:
        """Bytes that the batch needs of a stage's pool at a context."""
        sequences = float(np.max(self._sequences()))
        each = stage.held(float(context), sharing=self.sharing) + self._drafted(float(context))
        held = sequences * float(np.max(each)) if self.cached else 0.0
        held += float(np.max(self._in_flight(stage, float(context))))
        if self.deployment.engine.sized_for_batch:
            tokens, rows = self.step() if self.cached else (sequences * context, sequences * self.logits)
            held += float(np.max(stage.activations(tokens, rows)))
        return held

    def cache_tokens(self, max_model_len: int) -> int:
        """The tokens vLLM's start-up line reports: concurrency at ``max_model_len`` times that length.

        vllm/v1/core/kv_cache_utils.py:1061-1128: blocks over the blocks that one request of that length needs. Versions
        that log blocks give those of the pool instead, shared out among the groups of layers (0.18.1, same file).
        """
        defaults = self.deployment.engine.defaults
        if defaults.windows.logs_blocks and all(stage.per_token for stage in self.stages):
            return int(
                min(stage.logged_tokens(max(self.pool(stage), 0.0), defaults.block_size) for stage in self.stages)
            )
        return int(self.concurrency(max_model_len) * max_model_len + 1e-6)

    def concurrency(self, max_model_len: int) -> float:
        """Requests of ``max_model_len`` tokens that the pool holds: vLLM's ``Maximum concurrency`` line.

        Each counts with what it takes at most while its prompt is computed; requests that decode take less.
        """
        defaults, length = self.deployment.engine.defaults, float(max_model_len)
        budget, block = float(defaults.tier(self.deployment.hardware).token_budget), defaults.block_size
        ratios = [
            self._in_blocks(stage)
            / max(float(stage.reserved(length, budget, block) + self._drafted(length, block)), 1e-9)
            for stage in self.stages
        ]
        return min(ratios)

    def _in_blocks(self, stage: StageMemory) -> float:
        """Bytes of a stage's pool in whole blocks, where all its layers keep the same in one."""
        pool, block = max(self.pool(stage), 0.0), self.deployment.engine.defaults.block_size
        if len({cache.mask for cache, _ in stage.caches}) != 1 or stage.recurrent:
            return pool
        size = float(stage.held(float(block), block) + self._drafted(float(block), block))
        return pool // size * size

    def longest_start(self, tokens: int) -> int:
        """The longest ``max_model_len`` up to ``tokens`` that the engine starts with: the cache holds its pages."""
        low, high = 1, tokens
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.concurrency(middle) >= 1 else (low, middle - 1)
        return low

    def terms(self, number: str) -> Term:
        """One of its numbers with its formula, of the device that decides it.

        number: weights, state, kv_per_token, activations, reserve, kv_pool, total, max_batch or max_context. Raises
        ``KeyError`` for another.
        """
        stage = self.stage
        if number in ("max_batch", "max_context"):
            return self._max_batch_terms() if number == "max_batch" else self._max_context_terms()
        name = name_term if self.beside is None else named_at("host")
        made: dict[str, Callable[[], Any]] = {
            "weights": lambda: weight_terms(stage),
            "adapters": lambda: adapter_terms(stage),
            "state": lambda: self._state(stage, name),
            "kv_per_token": lambda: stage.token_bytes(name),
            "activations": lambda: self._activations(stage, name),
            "reserve": lambda: self._reserve(stage, name),
            "kv_pool": lambda: self._pool(stage, name),
            "total": lambda: (
                name(stage.weights, "weights", "B", _WEIGHTS)
                + (name_term(stage.adapters, "adapters", "B", _ADAPTERS) if stage.adapters else 0.0)
                + sum(self.terms(part) for part in ("state", "activations", "reserve"))
            ),
        }
        term: Term = name_term(made[number](), number, "B")
        return term

    def _max_batch_terms(self) -> Term:
        sides = [(self, name_term), *([] if self.host is None else [(self.host, named_at("host"))])]
        every = [(side, stage, name) for side, name in sides for stage in side.stages]
        side, tightest, name = min(every, key=lambda one: float(np.min(one[0]._max_sequences(one[1]))))
        most = side._max_sequences(tightest, name)
        if isinstance(most, float) and np.isinf(most):  # no stage keeps anything
            most = self._slots(name_term)
        term: Term = name_term(most * name_term(self.deployment.parallel.dp, "dp", "", _DP), "max_batch", "sequences")
        return term

    def _context_terms(self, longest: int, name: Naming) -> list[Any]:
        """The longest context that each stage holds, near ``longest``."""
        found: list[Any] = []
        for stage in self.stages:
            slope = self._needed(stage, longest + 1) - self._needed(stage, longest)
            before = self._needed(stage, longest) - self._needed(stage, max(longest - 1, 0))
            if abs(slope - before) > 1e-6 * max(slope, before) and longest > 1:  # an entry of several tokens: no line
                reached = float(self._longest([stage], _CONTEXT_LIMIT))
                found.append(name_term(reached, "longest whose bytes fit, by bisection: they grow in steps", "tokens"))
            elif slope > 0:
                constant = self._needed(stage, longest) - slope * longest
                pool: Any = name_term(self._pool(stage, name), "pool", "B")
                if self.sharing.samples > 1 and constant < 0:  # a line of so many samples has each prompt too often
                    room = pool + name_term(-constant, "prompts that samples share", "B")
                else:  # rounding may leave less than none
                    room = pool - name_term(max(constant, 0.0), "held by what does not grow", "B")
                found.append(floor(np.maximum(room, 0.0) / name_term(slope, "a token of every sequence", "B")))
        return found

    def _max_context_terms(self) -> Term:
        """The line through the bytes needed at the answer and at one token more, solved for the pool."""
        reached = self.max_context()
        longest = int(reached) if np.isfinite(reached) else _CONTEXT_LIMIT
        limit: Any = name_term(self.deployment.model.max_context or np.inf, "limit", "", ("model", "max_context"))
        found: list[Any] = []
        for side, name in [(self, name_term), *([] if self.host is None else [(self.host, named_at("host"))])]:
            found += side._context_terms(longest, name)
        endless = name_term(np.inf, "no limit of memory")
        tightest = min(found, key=lambda term: float(term.value), default=endless)
        if self._page > 1 and tightest is not endless:
            page = name_term(float(self._page), "tokens of a page", "", _PAGE)
            tightest = floor(tightest / page) * page
        term: Term = name_term(np.minimum(tightest, limit), "max_context", "tokens")
        return term


@found_once
def single(deployment: Deployment) -> Footprint:
    """The footprint of one short request: what is left of a device after the weights."""
    return Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0)


def share_stages(deployment: Deployment, shared: Shared) -> None:
    """Let a deployment count its stages with those of others that keep the same on another device, so that what each
    holds is added up once. Not where a part of the model lies elsewhere, nor beside adapters."""
    if deployment.offload is not None or deployment.streamed is not None or deployment.lora is not None:
        return
    footprint, defaults = single(deployment), deployment.engine.defaults
    beside = deployment.parallel, deployment.precision
    known = shared.of((deployment.model,), beside, list[tuple[EngineVersion, list[StageMemory]]])
    stages = next((stages for other, stages in known if other == defaults), None)
    if stages is None:
        known.append((defaults, stages := footprint.stages))
    vars(footprint)["stages"] = stages
