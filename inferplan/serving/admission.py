"""Who may start: an engine's rules, the room that a request needs, and the requests that were admitted.

The cache is counted in tokens: a request holds the blocks of what it has written, and a fixed part for recurrent state
and windows. Where steps make fractions of tokens (drafts that are accepted), it holds half an empty block instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Literal, NamedTuple

import numpy as np

from inferplan.devices.cadence import Cadence
from inferplan.devices.engine import Admission, Batching, Policy, SchedulerDefaults
from inferplan.serving.adapter_slots import AdapterSlots
from inferplan.serving.cache_tiers import beside_loads
from inferplan.serving.prefix_cache import PrefixCache
from inferplan.serving.records import Records
from inferplan.serving.waiting import QueueOrder
from inferplan.traffic.conversations import own_names
from inferplan.units import Num

Reason = Literal["slots", "budget", "cache", "batch", "adapters"]
"""Why the first request of the queue waits: every slot of the batch is taken, the step has no room for its prompt, the
cache has none for its tokens, a whole batch is being run or collected, or all slots of adapters are in use."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What an engine does with its queue: flags resolved against the defaults of its version."""

    policy: Policy
    batching: Batching
    slots: int
    """Requests in a batch (``max_num_seqs``)."""
    budget: int
    """Tokens in a step (``max_num_batched_tokens``)."""
    scheduler: SchedulerDefaults
    longest: int
    """Prompt and output of a request together, at most (``max_model_len``)."""
    capacity: float
    """Tokens that the cache holds."""
    overhead: float = 0.0
    """Tokens a request takes beyond those it has: half an empty block, where blocks are not counted."""
    page: int = 1
    """Tokens of a block, where blocks are counted."""
    windows: tuple[tuple[float, float], ...] = ()
    """Layers of bounded state: (tokens of capacity that a full window takes, its size); size 0 is constant state."""
    in_flight: tuple[tuple[float, float, float], ...] = ()
    """Layers with windows: (tokens of capacity that a token of theirs takes, window, tokens beyond it that are kept
    until the steps that compute them are settled). A request must find that room when it starts, and gives it back."""
    growing: bool = True
    """Whether the cache of a request grows with its tokens at all."""
    overlapped: bool = False
    """Arrivals join one step late (:func:`inferplan.serving.rounds.overlaps`)."""
    seen_late: bool = False
    """Clients see tokens one step late (:func:`inferplan.serving.rounds.seen_late`)."""
    poll_interval: int = 1
    """Decode steps between two looks at the queue of new requests."""
    wait_steps: int = 0
    """Steps for which a prompt is held back while the step is less than ``wait_fill`` full."""
    wait_fill: float = 0.0
    balance_steps: int = 0
    """Steps for which attention ranks hold prompts back until each of them has one; 0 for not at all."""
    cadence: Cadence = Cadence()
    """How prompts are kept out of most steps while requests decode."""
    latency: float = 0.0
    front_request: float = 0.0
    front_token: float = 0.0
    timeout: float = inf
    """Seconds after which a client gives up."""
    tokens_per_step: float = 1.0
    """Tokens that a decode step adds to a request: more than one when drafts are accepted."""
    handoff: float = 0.0
    """Decode steps that a request whose prompt was computed elsewhere waits when its cache has come."""
    asked_twice: bool = False
    """A request whose prompt was computed elsewhere passes the front end here, too."""
    layers: int = 1
    """Layers of a pipeline stage: in so many pieces its cache is loaded while it computes."""
    hit_rate: float = 0.0
    """Share of every prompt that is taken as found in the prefix cache, beside what the cache itself finds."""
    queue: QueueOrder = "fcfs"
    """Which of the waiting requests is admitted next."""
    known: dict[float, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What :meth:`fixed` has said before, by tokens."""

    @property
    def admission(self) -> Admission:
        return "reserve" if self.policy == "static" else self.scheduler.admission

    @property
    def leaves_none(self) -> bool:
        """A prompt takes the room of all its tokens when it is admitted, and need leave none for the next decodes
        (ATOM: ``can_allocate`` and ``allocate`` of ``block_manager.py``)."""
        return not self.mixed and self.admission == "prompt"

    @property
    def mixed(self) -> bool:
        """Decodes and prompts share a step."""
        return self.batching.mixed

    def fixed(self, total: float) -> float:
        """Tokens of capacity that a request takes whatever it has written so far; ``total`` are prompt and output."""
        if not self.windows:
            return self.overhead
        tokens = self.known.get(total)
        if tokens is None:
            windows = sum(
                [share * ((total if total < size else size) / size if size else 1.0) for share, size in self.windows]
            )
            tokens = self.known[total] = self.overhead + windows
        return tokens

    def unsettled(self, prompt: Num) -> Num:
        """Tokens of capacity that a prompt takes for a while beside :meth:`held`: windows let go of what is settled."""
        if isinstance(prompt, np.ndarray):
            return sum(
                (share * np.clip(prompt - window, 0.0, most) for share, window, most in self.in_flight), start=0.0
            )
        return sum([share * min(max(prompt - window, 0.0), most) for share, window, most in self.in_flight])

    def paged(self, tokens: float) -> float:
        """Tokens of capacity in the blocks of ``tokens``; none where the cache does not grow with them."""
        return -(-tokens // self.page) * self.page if self.growing else 0.0

    def held(self, total: float, written: float) -> float:
        """Tokens of capacity that a request takes when it has ``written`` so many; at its end, that is ``total``."""
        if self.windows or not self.growing:
            return self.paged(written) + self.fixed(total)
        return -(-written // self.page) * self.page + self.overhead

    def refusal(self, prompt: int, total: int) -> str:
        """Why a request of ``prompt`` and, with its output, ``total`` tokens can never run; empty when it can."""
        if total > self.longest:
            return f"longer than max_model_len {self.longest}"
        if self.held(total, total) + (self.unsettled(prompt) if self.in_flight else 0.0) > self.capacity:
            return f"more than the cache holds, {int(self.capacity)} tokens"
        if not self.scheduler.chunked_prefill and prompt > self.budget:
            return f"prompt longer than max_num_batched_tokens {self.budget}, without chunked prefill"
        return ""


class Progress:
    """How far requests are that do not start from nothing: they were preempted, or their prompt came from elsewhere."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.to_compute: dict[int, int] = {}
        """Tokens to have in the cache before decoding, where that is not the prompt."""
        self.output_left: dict[int, int] = {}
        """Output tokens still to write, where that is not the whole output."""
        self.computed_elsewhere: set[int] = set()
        """Requests that another replica computed the prompt of."""
        self.last_token: dict[int, float] = {}
        """When the last token of a preempted request came, in seconds."""

    def output(self, request: int) -> int:
        """Output tokens that it has still to write, when it does not decode."""
        left = self.output_left.get(request)
        return self.records.output[request] if left is None else left

    def compute(self, request: int) -> int:
        """Tokens to have in the cache before it decodes: its prompt, after a preemption also what it had made."""
        tokens = self.to_compute.get(request)
        return self.records.prompt[request] if tokens is None else tokens

    def comes_computed(self, request: int) -> None:
        """Another replica has computed the prompt, and made the first token."""
        self.computed_elsewhere.add(request)
        self.output_left[request] = self.records.output[request] - 1

    def interrupt(self, request: int, cached: float, left: float, now: float) -> None:
        """It loses its ``cached`` tokens while it decodes, with ``left`` output tokens to go."""
        self.to_compute[request] = ceil(cached) + 1  # and the token made last, which was not in the cache yet
        self.output_left[request] = max(ceil(left), 1)
        self.last_token[request] = now

    def forget(self, request: int) -> None:
        """It is gone for good."""
        for kept in (self.to_compute, self.output_left, self.last_token):
            kept.pop(request, None)


class PrefixHit(NamedTuple):
    """What the prefix cache has of a request."""

    blocks: int
    """Leading blocks on the device."""
    below: int
    """Blocks after them in the tiers below it."""
    tokens: int
    """Tokens that need not be computed."""
    shared: int
    """Tokens in blocks that other requests are using, which take no further room."""


_NOTHING = PrefixHit(0, 0, 0, 0)


class Admitted:
    """The requests that run, in order of admission, and the tokens of cache that they hold.

    ``used``, ``remaining`` are tokens: held by the running requests, and still to be written by them.
    """

    def __init__(self, rules: Rules, records: Records, progress: Progress, cache: PrefixCache | None) -> None:
        self.rules, self.records, self.progress, self.cache = rules, records, progress, cache
        self.chunked = rules.scheduler.chunked_prefill
        self.ratio = rules.admission == "ratio"
        """SGLang: a share of the output that is still to be written is kept free."""
        self.block = rules.page * rules.tokens_per_step
        """Tokens of cache that a decoding request takes at a time."""
        self.reserves = rules.admission == "reserve"
        """A request takes the room of its whole output when it is admitted."""
        self.at_once = self.reserves or rules.leaves_none
        """It takes that of its whole prompt then, too, though it is cut."""
        self.running: dict[int, None] = {}
        """Requests admitted and not yet done; a dictionary keeps the order of admission."""
        self.used = 0.0
        self.remaining = 0.0
        self.grown = 0.0
        """Tokens by which decode steps have raised ``used`` since time was metered last."""
        self.held: dict[int, int] = {}
        """Named blocks that a request uses, from its first on."""
        self.own: dict[int, Sequence[int]] = {}
        """Names of all blocks of requests that were preempted, which may find them again."""
        self.host_loads = 0.0
        """Seconds that the next step waits for blocks and adapters from the host's memory, and for towers."""
        self.layer_loads = 0.0
        """Seconds in which blocks are loaded layer by layer while the next step computes."""
        self.adapters: AdapterSlots | None = None
        self.hashes = records.hashes
        """Names of the blocks of each request, in the pages of this engine."""
        self.encoder: Sequence[float] | None = None
        """Seconds that the towers take here for each request, where requests carry media."""

    def admit(
        self, request: int, budget: int, empty: bool, growth: Callable[[], float], ratio_steps: int
    ) -> int | Reason:
        """Admit the head of the queue: the tokens of it that are cached already, or why it has to wait.

        budget: tokens that the step has left for prompts. empty: nothing else is in the step, so a prompt beyond the
        budget may have it for itself. growth: tokens that the next step of every decoding request adds to the cache, at
        most a block each. ratio_steps: decode steps since the reserved share of remaining outputs was last reset
        (admission by ``ratio``).
        """
        rules, records, progress = self.rules, self.records, self.progress
        if len(self.running) >= rules.slots:
            return "slots"
        compute, output = progress.compute(request), progress.output(request)
        elsewhere = request in progress.computed_elsewhere
        cache = None if elsewhere else self.cache
        names = self._names(request) if cache is not None and (self.own or self.hashes is not None) else ()
        found = self._find(request, compute, names, growth()) if names or rules.hit_rate else _NOTHING
        chunked = self.chunked or elsewhere
        if not chunked and compute - found.tokens > budget and not empty:
            return "budget"
        total = records.prompt[request] + records.output[request]
        whole = total if self.reserves else compute
        need = rules.held(total, whole) - found.shared
        if self.running and self._no_room(request, need, growth, ratio_steps):
            return "cache"
        self.running[request] = None
        if self.adapters is not None:
            self.host_loads += self.adapters.enter(request)
        self.remaining += output
        self.used += need
        computed = compute
        if not elsewhere and compute > found.tokens + budget:
            computed = found.tokens + budget
            if not self.at_once:
                self.used -= rules.paged(whole) - rules.paged(computed)
        if cache is not None and names:
            if found.below:
                self._load(request, cache, names[found.blocks : found.blocks + found.below])
            held = cache.take(names, found.blocks)
            self.held[request] = cache.register(held, names, computed // cache.block)
        if found.tokens and request not in records.preempted:
            records.cached[request] = found.tokens
        return found.tokens

    def may_start(self, request: int, growth: Callable[[], float], ratio_steps: int) -> bool:
        """Whether there is a slot for the head of the queue and, where nothing of it is cached, room."""
        if not self.running:
            return True
        total = self.records.prompt[request] + self.records.output[request]
        need = self.rules.held(total, total if self.reserves else self.progress.compute(request))
        return len(self.running) < self.rules.slots and not self._no_room(request, need, growth, ratio_steps)

    def _no_room(self, request: int, need: float, growth: Callable[[], float], ratio_steps: int) -> bool:
        """Whether a request that takes so many tokens of cache has to wait for others to leave."""
        rules = self.rules
        room = need + rules.unsettled(self.progress.compute(request)) if rules.in_flight else need
        tight = self.ratio or room > rules.capacity - self.used - len(self.running) * self.block
        return bool(tight and room > self._free(self.progress.output(request), growth(), ratio_steps))

    def _load(self, request: int, cache: PrefixCache, names: Sequence[int]) -> None:
        """Blocks come up from the tiers, from one after another: they end on the same link of the device."""
        loaded = tuple(blocks * cache.block for blocks in cache.by_tier(names))
        for tier, tokens in zip(cache.tiers, loaded):
            self.host_loads += tier.latency if tokens else 0.0
            if tier.layered:
                self.layer_loads += tokens * tier.token_time
            else:
                self.host_loads += tokens * tier.token_time
        if request not in self.records.preempted:
            self.records.loaded[request] = loaded

    def turn(self, lane: int) -> None:
        """The next batch of a lane is composed."""
        if self.adapters is not None:
            self.adapters.turn(lane)

    def move(self, request: int) -> None:
        """The next piece of a prompt is in the batch that is composed."""
        if self.adapters is not None:
            self.adapters.move(request)

    @property
    def loading(self) -> bool:
        """Whether the next step has something to load, or to wait for."""
        return self.host_loads > 0 or self.layer_loads > 0

    def with_loads(self, compute: float) -> float:
        """Seconds of a step that computes for ``compute``, with all that is loaded for it; nothing is left to load."""
        if self.layer_loads:
            compute, self.layer_loads = beside_loads(compute, self.layer_loads, self.rules.layers), 0.0
        compute, self.host_loads = compute + self.host_loads, 0.0
        return compute

    def extend(self, request: int, before: int, after: int, free: float) -> bool:
        """The next piece of a prompt of which ``before`` tokens are cached; false when it needs more than ``free``."""
        rules = self.rules
        need = 0.0 if self.at_once else rules.paged(after) - rules.paged(before)
        if not self.at_once and need > free and len(self.running) > 1:
            return False
        self.used += need
        if self.cache is not None and request in self.held:
            held, names = self.held[request], self._names(request)
            self.held[request] = self.cache.register(held, names, after // self.cache.block)
        return True

    def _names(self, request: int) -> Sequence[int]:
        """Names of the blocks of a request, in order, as far as others or it itself may look for them."""
        hashes, own = self.hashes, self.own.get(request)
        return own if own is not None else hashes[request] if hashes is not None else ()

    def _find(self, request: int, compute: int, names: Sequence[int], growth: float) -> PrefixHit:
        """What of a head's tokens is cached; a given hit rate stands in where the cache itself finds nothing."""
        rules, cache = self.rules, self.cache
        if cache is not None and names:
            self._evict(cache, growth)
            device, host = cache.match(names, compute)
            if device or host:
                shared = cache.in_use(names, device) * cache.block
                return PrefixHit(device, host, (device + host) * cache.block, shared)
        elsewhere = request in self.progress.computed_elsewhere
        if rules.hit_rate and not elsewhere and request not in self.records.preempted:
            return PrefixHit(0, 0, min(int(compute * rules.hit_rate), compute - 1), 0)
        return _NOTHING

    def _free(self, output: int, growth: float, ratio_steps: int) -> float:
        """Tokens of cache for a new request, less what is kept for the growth of those that run."""
        rules = self.rules
        free = rules.capacity - self.used - growth
        if self.ratio:  # the reserved share of remaining output decays with decode steps
            first, last, over = rules.scheduler.growth_ratio
            ratio = max(first - (first - last) * ratio_steps / over, last)
            free -= ratio * max(self.remaining, 0.0) + min(output, rules.scheduler.longest_growth)
        return free

    def _evict(self, cache: PrefixCache, growth: float = 0.0) -> None:
        """Idle blocks make room for what is in use, and for the next step of those that decode."""
        if cache.idle:
            cache.trim((self.rules.capacity - self.used - growth) // cache.block)

    def release(self, request: int, tokens: float, again: bool = False) -> None:
        """Give back the cache of a request that has ``tokens`` in it; it runs no longer, unless ``again``, later.

        What it has written since its prompt is registered now: before, nobody could look for it.
        """
        rules, records, cache = self.rules, self.records, self.cache
        total = records.prompt[request] + records.output[request]
        freed = rules.held(total, total if self.reserves else tokens)
        del self.running[request]
        if self.adapters is not None:
            self.adapters.leave(request)
        if cache is not None and (again or cache.idle or self.hashes is not None):
            self._evict(cache)
            full, names = int(tokens) // cache.block, self._names(request)
            if again and len(names) < full:
                names = self.own[request] = [*names, *own_names(request, len(names), full)]
            elif not again:
                self.own.pop(request, None)
            if full > len(names):
                cache.leave(full - len(names))
            if names:
                held = cache.register(self.held.pop(request, 0), names, full)
                freed -= cache.release(held, names) * cache.block
        self.used -= freed

    def reset(self) -> None:
        """Nothing runs: sums of floats start again at an exact zero."""
        self.used = self.remaining = 0.0
