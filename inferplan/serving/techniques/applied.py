"""A static batch with the serving techniques that are asked for: what they do to its latencies, its rate, its memory.

Speculation changes the decode steps, and the first token too, because the draft computes every prompt as well; its
weights and cache lie on the same devices. A hit rate shortens the prompts to compute, and with a host tier the cached
part is brought back first. A chunk cuts the prefill into steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

import numpy as np

from inferplan.errors import InfeasibleError, UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.phase import Phase, decode_cycle, prompt_drain
from inferplan.estimate.resting import PARTS, Resting
from inferplan.estimate.run import require_context, require_memory, require_no_cadence
from inferplan.estimate.support import DRAFTS
from inferplan.features import require_together, those
from inferplan.fields import Real, Whole, ask, part
from inferplan.serving.first_token import FirstToken, IdlePrompt, first_token
from inferplan.serving.techniques.chunked_prefill import drain_in_chunks
from inferplan.serving.techniques.offload import HostTier, bytes_per_token, load_time
from inferplan.serving.techniques.prefix_caching import cached_tokens
from inferplan.serving.techniques.speculation import (
    PLAIN,
    Speculation,
    one_graph,
    prompt_with_drafts,
    step_with_drafts,
)
from inferplan.terms import Naming, plain
from inferplan.units import Num, format_bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class Techniques:
    """What is asked for beside the batch.

    hit_rate: share of every prompt that is cached. host: where that part lies, if not on the device. chunk: tokens of
    the steps in which prompts are computed; ``None`` for all of them in one. Raises ``UsageError`` for a hit rate
    outside [0, 1), and for a host without anything in it.
    """

    speculation: Speculation = PLAIN
    hit_rate: float = ask("--prefix-hit-rate", Real(), "Share of each prompt found in the cache. [0]", 0.0)
    chunk: int | None = ask("--chunk", Whole(), "Compute the prompt in chunks of this many tokens.", None)
    host: HostTier | None = part(HostTier, None)

    def __post_init__(self) -> None:
        if not 0 <= self.hit_rate < 1:
            raise UsageError(f"--prefix-hit-rate is in [0, 1), not {self.hit_rate:g}")
        if self.host is not None and not self.hit_rate:
            raise UsageError(
                "--kv-offload has no effect on a batch without cache hits",
                hint="--prefix-hit-rate 0.9: the share of each prompt that comes back from the host",
            )

    def describe(self) -> str:
        """What is asked for, in words."""
        drafts, found = self.speculation, []
        if drafts.length:
            name = "free drafts" if drafts.draft is None else f"drafts of {drafts.draft.model.name}"
            tree = f" x {drafts.branches}" if drafts.branches > 1 else ""
            found.append(f"{name}, {drafts.length}{tree} token{'s' if drafts.length > 1 or tree else ''} per step")
        if self.hit_rate:
            found.append(f"{self.hit_rate:.0%} of the prompt cached{' on the host' if self.host else ''}")
        if self.chunk:
            found.append(f"chunks of {self.chunk:,}")
        return ", ".join(found)

    @property
    def features(self) -> set[str]:
        """As :mod:`inferplan.features` names them."""
        return those(
            drafts=self.speculation.length > 0,
            hit_rate=self.hit_rate > 0,
            chunk=self.chunk is not None,
            kv_offload=self.host is not None,
        )

    @property
    def any(self) -> bool:
        """Whether anything is asked for."""
        return self.speculation.length > 0 or self.hit_rate > 0 or self.chunk is not None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ServedEstimate(Estimate):
    """A static batch with ``techniques``; ``prefill`` and ``decode`` are the model's own steps, without the draft's.

    ``decode`` is a verification where there are drafts.
    """

    techniques: Techniques

    @property
    def features(self) -> set[str]:
        return super().features | self.techniques.features

    @property
    def forms(self) -> tuple[str, ...]:
        return (DRAFTS,) if self.techniques.speculation.length else ()

    @property
    def without(self) -> Estimate:
        """The same batch without any of them."""
        return Estimate(deployment=self.deployment, load=self.load)

    @cached_property
    def footprint(self) -> Footprint:
        return replace(self.without.footprint, draft=self.techniques.speculation.draft)

    @property
    def rests_on(self) -> dict[str, Resting]:
        found, asked = super().rests_on, self.techniques
        if asked.speculation.length:
            found["speculation"] = asked.speculation.part
        if asked.host is not None:
            found["cache_tiers"] = PARTS["cache_tiers"].on("formula")
        return found

    @cached_property
    def cached(self) -> Num:
        """Tokens of each prompt that need not be computed."""
        return cached_tokens(self.load.prompt, self.techniques.hit_rate)

    @cached_property
    def prefill(self) -> Phase:
        past = self.cached
        return prompt_drain(self.deployment, self.load.batch, self.load.prompt - past, past, self.load.all_logits)

    @cached_property
    def decode(self) -> Phase:
        width = float(self.techniques.speculation.width)
        if width == 1.0:
            return super().decode
        context = self.load.prompt + np.maximum(self.load.output - 2.0, 0.0) / 2
        return decode_cycle(self.deployment, self.load.batch, context, width)

    @cached_property
    def host_loads(self) -> Num:
        """Seconds in which the cached part of all prompts comes back from the host, by the fullest attention rank."""
        sequences = np.ceil(np.asarray(self.load.batch) / self.deployment.parallel.dp)
        return sequences * self._load(self.cached)

    def _load(self, tokens: Num) -> Num:
        host, draft = self.techniques.host, self.techniques.speculation.draft
        if host is None:
            return 0.0
        return sum((load_time(one, host, tokens) for one in (self.deployment, draft) if one is not None), start=0.0)

    @cached_property
    def computed(self) -> Num:
        """Seconds in which the prompts are computed, by the draft too."""
        load, past, chunk = self.load, self.cached, self.techniques.chunk
        drafts = [made.model for made in self.techniques.speculation.passes[:1]]
        if chunk is None and not drafts:
            return self.prefill.time
        if chunk is None:
            return prompt_with_drafts(
                self.deployment, self.techniques.speculation, load.batch, load.prompt - past, past
            ).total
        new = int(load.prompt - past)
        whole = drain_in_chunks(self.deployment, int(load.batch), (new, int(past)), chunk)
        return whole + sum(
            drain_in_chunks(one, int(load.batch), (new, int(past)), chunk, not one_graph(one)) for one in drafts
        )

    def _first(self, name: Naming = plain) -> Num:
        by = ", by the draft too" if self.techniques.speculation.passes else ""
        seconds = name(self.computed, f"prompts computed{by}", "s")
        if self.techniques.host is not None:
            seconds = name(self.host_loads, "cached part read back", "s") + seconds
        return seconds * self._anchor("ttft", name)

    @property
    def _piece(self) -> str:
        return "a token's drafts and verification" if self.techniques.speculation.length else super()._piece

    def _token_seconds(self, past: Num) -> Num:
        speculation = self.techniques.speculation
        if not speculation.length:
            return super()._token_seconds(past)
        return step_with_drafts(self.deployment, speculation, self.load.batch, past).total / speculation.tokens


def served_estimate(deployment: Deployment, load: StaticLoad, techniques: Techniques) -> ServedEstimate:
    """The estimate of a static batch with techniques.

    Raises ``InfeasibleError`` or ``UsageError`` for a load that cannot run, or that a technique has nothing to do with.
    """
    require_no_cadence(deployment)
    result = ServedEstimate(deployment=deployment, load=load, techniques=techniques)
    require_together("estimate", result.features)
    require_context(result)
    require_memory(result)
    _require_room_on_host(result)
    return result


def _require_room_on_host(result: ServedEstimate) -> None:
    host = result.techniques.host
    if host is None:
        return
    needed = float(np.max(result.cached)) * bytes_per_token(result.deployment)
    if needed > host.capacity:
        raise InfeasibleError(
            "the host does not hold the cached part of one prompt",
            because=f"{int(np.max(result.cached)):,} tokens take {format_bytes(needed)} for each device",
            hint=f"--kv-offload {ceil(needed / 1e9)}GB, or a lower --prefix-hit-rate",
        )


def refusal(deployment: Deployment, load: StaticLoad, width: int = 1) -> str:
    """Why the engine would not run this batch as it stands, of ``width`` tokens each in a decode; empty where it
    does."""
    tier, engine = deployment.engine.defaults.tier(deployment.hardware), deployment.engine
    prompt, batch = int(np.max(load.prompt)), ceil(float(np.max(load.sequences)) / deployment.parallel.dp)
    if not engine.defaults.scheduler.chunked_prefill and prompt > tier.token_budget:
        return (
            f"{engine.describe()} rejects these prompts: {prompt:,} tokens are more than max_num_batched_tokens "
            f"{tier.token_budget:,}, and it computes no prompt in pieces (--max-num-batched-tokens {prompt})"
        )
    if batch > tier.max_sequences:
        return (
            f"{engine.describe()} runs at most {tier.max_sequences:,} sequences at once, not {batch:,} "
            f"(--max-num-seqs {batch})"
        )
    verified = -(-batch // deployment.parallel.pp) * width
    if width > 1 and engine.batching.mixed and verified > tier.token_budget:
        return (
            f"{engine.describe()} cuts these drafts short: {verified:,} tokens to verify are more than "
            f"max_num_batched_tokens {tier.token_budget:,} (--max-num-batched-tokens {verified})"
        )
    return ""


def served_first_token(result: Estimate, techniques: Techniques | None = None) -> FirstToken | None:
    """One request of a batch on an idle server; ``None`` where nothing is known of it, or it rejects the prompt.

    The constants of an engine are known where its file names their source; an ideal server costs nothing.
    """
    deployment, asked = result.deployment, techniques or Techniques()
    known = bool(deployment.engine.serving.source) or deployment.calibration.basis == "roofline"
    rejected = refusal(deployment, replace(result.load, batch=1.0, samples=1.0))
    if not known or rejected or deployment.model.generation.kind == "diffusion":
        return None
    past = cached_tokens(result.load.prompt, asked.hit_rate)
    budget = float(asked.chunk or deployment.engine.defaults.tier(deployment.hardware).token_budget)
    load = result._load(past) if isinstance(result, ServedEstimate) else 0.0
    prompt = IdlePrompt(new=result.load.prompt - past, cached=past, budget=budget, load=load)
    found = first_token(deployment, prompt, asked.speculation)
    if asked.chunk is not None:  # then alone is in pieces too, and launches are only launches
        one = ServedEstimate(deployment=deployment, load=replace(result.load, batch=1.0), techniques=asked).computed
        found = replace(found, prompt=one, launches=np.maximum(found.prompt + found.launches - one, 0.0))
    return found.anchored(deployment, result.load.prompt, result.load.output)
