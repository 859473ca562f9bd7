"""Steady state of a closed loop in closed form: what users feel when the first burst is long over.

With ``B`` requests decoding and ``O`` output tokens each, ``x = B/(O - 1)`` prompts come with every decode step.
Arrivals are taken as independent, so a share ``p = 1 - exp(-x)`` of the steps holds prompts, more where the budget
``M`` spreads them: ``p = max(1 - exp(-x), x*I/(M - B))``, at most 1. Such a step holds ``x*I/p`` prompt tokens. Then

    TPOT = (1 - p)*t_decode(B) + p*t_mixed(B, x*I/p)      decodes and prompts share a step (vllm, trtllm)
    TPOT = t_decode(B) + p*t_prompt(x*I/p)                prompts run alone, decodes stand still (sglang)
    TTFT = wait for a place + the terms of :mod:`inferplan.serving.latency`
    rate = C/(TTFT + (O - 1)*TPOT)                        Little's law: every one of C users has one request

and ``B = rate*(O - 1)*TPOT`` closes the loop. The batch is what slots and cache admit, never more: the
others are queued, and their wait is part of TTFT. Steps are priced by :class:`inferplan.serving.rounds.Round`, which
also says what batches in flight, ranks that step together and a cadence of prompts change; everything broadcasts.

A user meets what the *others* do: of ``N`` in the batch ``N - 1`` are there when one arrives, so a user alone finds no
step in progress, waits for nobody and sees the idle server's times (:mod:`inferplan.serving.first_token`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from inferplan.devices.cadence import require_closed_form
from inferplan.errors import UsageError
from inferplan.estimate.anchoring import anchored_bands, correction
from inferplan.estimate.bands import serving_bands
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import Band
from inferplan.features import require_together, those
from inferplan.models.spec import require_readable, require_tokens
from inferplan.serving.admission import Rules
from inferplan.serving.first_token import IdlePrompt, first_token
from inferplan.serving.flags import Flags, rules_of, verifying, with_flags
from inferplan.serving.latency import prompt_path, user_company
from inferplan.serving.rounds import Decodes, PromptLoad, loaded_rounds
from inferplan.serving.techniques.speculation import PLAIN, Speculation, step_with_drafts
from inferplan.units import Num

_ROUNDS = 60
_HALVINGS = 40
_TOLERANCE = 1e-7
_FULL = 1e-3
"""Room that is left where that bounds the batch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class UserLoad:
    """``concurrency`` users over all replicas, each with one request of ``prompt`` and ``output`` tokens at a time.

    hit_rate: share of the prompt that is found in the prefix cache.
    """

    concurrency: Num
    prompt: Num
    output: Num
    hit_rate: Num = 0.0

    def __post_init__(self) -> None:
        for name in ("concurrency", "prompt", "output"):
            if np.any(np.asarray(getattr(self, name)) < 1):
                raise UsageError(f"--{name} must be 1 or more")
        if np.any(np.asarray(self.hit_rate) < 0) or np.any(np.asarray(self.hit_rate) >= 1):
            raise UsageError("a prefix-cache hit rate is in [0, 1)")


@dataclass(frozen=True, kw_only=True, eq=False)
class SteadyState:
    """The steady state of a load: seconds, tokens a second, requests. Scalars or arrays, as the load."""

    load: UserLoad
    tpot: Num
    ttft: Num
    request_rate: Num
    """Requests a second over all replicas."""
    admitted: Num
    """Requests in the batch over all replicas: decoding or computing their prompt."""
    decoding: Num
    wait: Num
    """Seconds a request waits for a slot or for cache; part of TTFT."""
    queue: Num
    """Users who wait so."""
    admissible: Num
    """The most that slots and cache admit, over all replicas, whatever the concurrency."""
    kv_use: Num
    """Share of the cache in use."""
    prompt_share: Num
    """Share of the steps that hold prompts."""

    @property
    def e2el(self) -> Num:
        """``TTFT + (output - 1)*TPOT``."""
        return self.ttft + (self.load.output - 1.0) * self.tpot

    @property
    def output_rate(self) -> Num:
        """Output tokens a second over all replicas."""
        return self.request_rate * self.load.output

    @property
    def total_rate(self) -> Num:
        """Input and output tokens a second over all replicas."""
        return self.request_rate * (self.load.prompt + self.load.output)

    def to_dict(self) -> dict[str, Any]:
        """The figures with their units in the keys."""
        return {
            "concurrency": self.load.concurrency,
            "ttft_s": self.ttft,
            "tpot_s": self.tpot,
            "e2el_s": self.e2el,
            "requests_per_s": self.request_rate,
            "output_tokens_per_s": self.output_rate,
            "total_tokens_per_s": self.total_rate,
            "admitted": self.admitted,
            "decoding": self.decoding,
            "admissible": self.admissible,
            "queue": self.queue,
            "wait_s": self.wait,
            "kv_use": self.kv_use,
            "prompt_step_share": self.prompt_share,
        }


def steady_state(
    deployment: Deployment, load: UserLoad, flags: Flags | None = None, speculation: Speculation = PLAIN
) -> SteadyState:
    """The steady state of ``load`` on a deployment under serving ``flags``; vectorised over the load.

    Raises ``InfeasibleError`` when the weights leave no room for a cache.
    """
    require_tokens(deployment.model, "serving under load")
    require_together("estimate", deployment.features | those(users=True, drafts=speculation is not PLAIN))
    require_readable(deployment.model, load.prompt, load.output)
    require_closed_form(deployment.cadence, "the steady state")
    flags = flags or Flags()
    deployment = with_flags(deployment, flags)
    total = load.prompt + load.output
    rules = rules_of(deployment, flags, float(np.mean(load.prompt)), float(np.mean(total)), speculation.draft)
    rules = verifying(rules, speculation.width, deployment.parallel.pp)
    return _Loop(deployment=deployment, rules=rules, load=load, speculation=speculation).solve()


def steady_bands(deployment: Deployment, load: UserLoad, forms: Sequence[str] = ()) -> dict[str, Band]:
    """The bands of TTFT and TPOT of a load that is a single point: as of every served request, and with measured runs
    of its own what they leave open at so many users. ``forms`` as in :func:`inferplan.estimate.support.lacking`."""
    found = serving_bands(deployment, float(load.prompt), forms)
    here = load.concurrency / deployment.parallel.replicas
    measured = anchored_bands(deployment, here, load.prompt, load.output) if found else {}
    return {name: measured.get(name, band) for name, band in found.items()}


def admissible(rules: Rules, prompt: Num, output: Num) -> Num:
    """Requests that one engine admits: slots, and what the cache holds when their ages are evenly spread.

    ``prompt`` admission fills the cache with requests that hold ``prompt + output/2`` on average;
    ``reserve`` keeps ``prompt + output`` for each; ``ratio`` keeps back a share of what all may still write. The room
    that windows take while a prompt is computed stays free for the next one.
    """
    total = prompt + output
    fixed = rules.overhead + sum(
        (share * (np.minimum(total, size) / size if size else 1.0) for share, size in rules.windows), start=0.0
    )
    capacity = rules.capacity - rules.unsettled(prompt)
    if not rules.growing:
        return np.minimum(float(rules.slots), np.floor(np.maximum(capacity, 0.0) / np.maximum(fixed, 1e-9)))
    held: Num
    if rules.admission == "reserve":
        held = np.floor(capacity / (total + fixed))
    elif rules.admission == "ratio":
        last = rules.scheduler.growth_ratio[1]
        reserve = prompt + np.minimum(output, float(rules.scheduler.longest_growth))
        held = 1.0 + np.maximum(capacity - reserve - fixed, 0.0) / (prompt + output / 2 * (1 + last) + fixed)
    else:
        held = capacity / (prompt + output / 2 + fixed)
    fits = (total + fixed) <= capacity
    limited: Num = np.where(fits, np.minimum(float(rules.slots), np.maximum(held, 1.0)), 0.0)
    return limited


@dataclass(frozen=True, kw_only=True, eq=False)
class _Loop:
    """One fixed point: prices of a step under a guess of the batch, and the batch that follows."""

    deployment: Deployment
    rules: Rules
    load: UserLoad
    speculation: Speculation

    def solve(self) -> SteadyState:
        rules, load = self.rules, self.load
        engines = self.deployment.parallel.replicas * self.deployment.parallel.dp
        prompt, output, users = (np.asarray(v, dtype=np.float64) for v in (load.prompt, load.output, load.concurrency))
        users, prompt, output = np.broadcast_arrays(users / engines, prompt, output)
        limit = np.asarray(admissible(rules, prompt, output))
        inside = np.minimum(users, limit)
        steps = np.maximum(output - 1.0, 1e-9) / self.speculation.tokens
        batch = self._batch(inside, steps)
        step, before, after, (share, filled) = self._times(batch, inside)
        tpot = step / self.speculation.tokens
        held = before + after + steps * step
        if (
            self._narrow
        ):  # who waits for room in the steps that hold prompts is inside, and neither decodes nor computes
            crowd = np.maximum(inside * steps * step / batch - held, 0.0) * (filled > 1.0 - _FULL)
            before, held = before + crowd, held + crowd
        rate = np.where(inside > 0, inside / held, 0.0)
        queue = users - inside
        wait = np.where(queue > 0, queue / np.maximum(rate, 1e-300), 0.0)
        fixed = rules.overhead
        use = (
            inside * (prompt + output / 2 + fixed) / rules.capacity
            if rules.growing
            else inside / np.maximum(limit, 1.0)
        )
        nothing = inside <= 0
        measured = correction(self.deployment, users * self.deployment.parallel.dp, prompt, output)
        ttft, tpot = (wait + before + after) * measured.ttft, tpot * measured.tpot
        if measured.any:  # Little's law over what users feel
            rate = np.where(nothing, 0.0, users / (ttft + steps * self.speculation.tokens * tpot))
        return SteadyState(
            load=load,
            tpot=_plain(np.where(nothing, np.nan, tpot)),
            ttft=_plain(np.where(nothing, np.nan, ttft)),
            request_rate=_plain(rate * engines),
            admitted=_plain(inside * engines),
            decoding=_plain(batch * engines),
            wait=_plain(np.where(nothing, np.nan, wait)),
            queue=_plain(queue * engines),
            admissible=_plain(limit * engines),
            kv_use=_plain(np.minimum(use, 1.0)),
            prompt_share=_plain(share),
        )

    @property
    def _narrow(self) -> bool:
        """Whether prompts have so little room that fewer can decode than are there: steps that only decode follow each
        with prompts, whatever waits."""
        return self.rules.cadence.gap > 0 and not self.rules.cadence.yields

    def _batch(self, inside: Num, steps: Num) -> Num:
        """Requests that decode: where as many are decoding as the times at that batch make of those ``inside``.

        Half steps towards it; where they do not settle, because a step grows by leaps, the batch is bisected to the
        place at which more decode than the times allow.
        """

        def allowed(batch: Num) -> Num:
            step, before, after, (_, filled) = self._times(batch, inside)
            held = before + after + steps * step  # from admission (or arrival, if nobody waits) to the last token
            found = np.where(inside > 0, inside * steps * step / held, 0.0)
            return np.minimum(found, batch / np.maximum(filled, 1e-9)) if self._narrow else found

        batch = np.maximum(inside * 0.9, 1e-6)
        for _ in range(_ROUNDS):
            new = allowed(batch)
            change = np.abs(new - batch) / np.maximum(inside, 1e-9)
            batch = np.maximum(0.5 * batch + 0.5 * new, 1e-9)
            if float(np.max(change, initial=0.0)) < _TOLERANCE:
                return batch
        settled, low, high = change < _TOLERANCE, np.full_like(batch, 1e-9), np.maximum(inside, 1e-9)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            fewer = allowed(middle) < middle
            low, high = np.where(fewer, low, middle), np.where(fewer, middle, high)
        return np.where(settled, batch, high)

    def _times(self, batch: Num, inside: Num) -> tuple[Num, Num, Num, tuple[Num, Num]]:
        """Mean decode step; time before a prompt's first step; its own time to the first token seen; the share of steps
        with prompts, and how full those are."""
        deployment, load = self.deployment, self.load
        prompt, output = np.asarray(load.prompt, float), np.asarray(load.output, float)
        new = prompt * (1.0 - np.asarray(load.hit_rate, float))
        steps = np.maximum(output - 1.0, 1e-9) / self.speculation.tokens
        coming = np.where(output > 1, batch / steps, inside)  # prompts that come with every decode step
        seen = np.maximum(batch, np.minimum(inside, 1.0))  # whoever decodes is in the batch that he sees himself
        decodes = Decodes(seen, prompt + np.maximum(output - 2.0, 0.0) / 2, prompt)
        prompts = PromptLoad(coming, new, prompt - new)
        rounds = loaded_rounds(deployment, decodes, prompts, float(self.rules.budget), self.speculation)
        path, ranks = prompt_path(deployment, rounds, prompt), deployment.coupled_ranks
        first = path.mean(user_company(batch, inside, ranks))
        step, before, after = path.round, first.before, first.own
        others = np.minimum(np.maximum(inside * ranks - 1.0, 0.0), 1.0)
        if not np.all(others == 1.0):
            alone = self._alone[0], path.front_end, self._alone[1]
            mixed = zip((step, before, after), alone, strict=True)
            step, before, after = (others * crowd + (1.0 - others) * single for crowd, single in mixed)
        return step, before, after, (rounds.held.share, rounds.held.filled)

    @cached_property
    def _alone(self) -> tuple[Num, Num]:
        """Seconds of a decode step of one user alone, and of the prompt's steps to the first token seen."""
        deployment, load = self.deployment, self.load
        prompt, output = np.asarray(load.prompt, float), np.asarray(load.output, float)
        past = prompt * np.asarray(load.hit_rate, float)
        idle = first_token(
            deployment, IdlePrompt(new=prompt - past, cached=past, budget=float(self.rules.budget)), self.speculation
        )
        context = prompt + np.maximum(output - 2.0, 0.0) / 2
        step = step_with_drafts(deployment, self.speculation, 1.0, context).total
        return step, idle.prompt + idle.launches + idle.seen_late


def _plain(value: Num) -> Num:
    array = np.asarray(value, dtype=np.float64)
    return float(array) if array.ndim == 0 else array
