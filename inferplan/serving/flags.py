"""An engine's flags: what a user sets, resolved against the defaults of its version and the memory of the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, get_args

import numpy as np

from inferplan.devices.engine import Engine, MemoryTier
from inferplan.errors import InfeasibleError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.memory import Footprint
from inferplan.estimate.remedies import what_would_fit
from inferplan.estimate.stage_memory import StageMemory
from inferplan.fields import Quantity, Real, Switch, Whole, Words, ask, require_limits
from inferplan.models.spec import require_decoder
from inferplan.serving.admission import Rules
from inferplan.serving.rounds import overlaps, seen_late
from inferplan.serving.waiting import QueueOrder
from inferplan.units import format_bytes

_UNLIMITED = 1 << 60


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Serving flags; ``None`` is the default of the engine's version. Names as on the command line.

    poll_interval_steps: decode steps between looks at the request queue. batch_wait_steps, batch_wait_fill: hold
    prompts back up to so many steps until they fill so much of the token budget. balance_steps: attention ranks hold
    prompts back up to so many steps until each has one (TensorRT-LLM ``attention_dp_config``).
    client_timeout: seconds.
    queue: which of the waiting requests is admitted next; all but fcfs need classes of traffic.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    client_timeout: float | None = ask(
        "--client-timeout", Quantity("seconds", above=True), "Time after which clients give up.", None
    )
    queue: QueueOrder = ask(
        "--queue",
        Words(get_args(QueueOrder)),
        "Order of admission with --classes: first come first served, by priority, or fair by tokens served.",
        "fcfs",
        shown=True,
    )
    max_model_len: int | None = ask(
        "--max-model-len", Whole(), "Most tokens per request, prompt and output together.", None
    )
    chunked_prefill: bool | None = ask("--chunked-prefill", Switch(both=True), "Cut prompts to fit into steps.", None)
    prefix_caching: bool | None = ask(
        "--prefix-caching", Switch(both=True), "Keep prompts in the cache for requests that share them.", None
    )
    contiguous: bool = ask(
        "--contiguous", Switch(), "No paging: every request reserves memory for --max-model-len tokens.", False
    )
    """Every request takes room for ``max_model_len`` tokens at once, as engines did before paging."""
    poll_interval_steps: int = ask("--poll-interval-steps", Whole(), "Decode steps between checks of the queue. [1]", 1)
    batch_wait_steps: int = ask("--batch-wait-steps", Whole(0), "Most steps for which prompts are held back. [0]", 0)
    balance_steps: int = ask(
        "--balance-steps",
        Whole(0),
        "TensorRT-LLM with --dp: attention ranks hold prompts back until each has one, for at most this many steps. "
        "[0]",
        0,
    )
    batch_wait_fill: float = ask(
        "--batch-wait-fill", Real(), "Prompts are no longer held back once they fill this share of a step. [0]", 0.0
    )

    def __post_init__(self) -> None:
        require_limits(self)
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be 1 or more, not {value}")
        if self.gpu_memory_utilization is not None and not 0 < self.gpu_memory_utilization <= 1:
            raise UsageError(f"--gpu-memory-utilization is in (0, 1], not {self.gpu_memory_utilization:g}")
        if not 0 <= self.batch_wait_fill <= 1:
            raise UsageError(f"--batch-wait-fill is in [0, 1], not {self.batch_wait_fill:g}")


def with_flags(deployment: Deployment, flags: Flags) -> Deployment:
    """The deployment whose engine has these flags for defaults, so that memory is sized as that engine would."""
    if flags.chunked_prefill:
        require_decoder(deployment.model, "chunked prefill", "leave --chunked-prefill out")
    if flags.prefix_caching:
        require_decoder(deployment.model, "prefix cache", "leave --prefix-caching out")
    defaults = deployment.engine.defaults
    tier = defaults.tier(deployment.hardware)
    tier = MemoryTier.model_construct(
        memory_at_least=0.0,
        token_budget=flags.max_num_batched_tokens or tier.token_budget,
        max_sequences=flags.max_num_seqs or tier.max_sequences,
    )
    scheduler = defaults.scheduler.model_copy(
        update={
            name: value
            for name, value in (("chunked_prefill", flags.chunked_prefill), ("prefix_caching", flags.prefix_caching))
            if value is not None
        }
    )
    defaults = defaults.model_copy(
        update={
            "tiers": [tier],
            "scheduler": scheduler,
            "block_size": flags.block_size or defaults.block_size,
            "memory_fraction": flags.gpu_memory_utilization or defaults.memory_fraction,
        }
    )
    return replace(deployment, engine=deployment.engine.model_copy(update={"defaults": defaults}))


def rules_of(
    deployment: Deployment, flags: Flags, prompt: float, total: float, draft: Deployment | None = None
) -> Rules:
    """The rules of one attention rank of a deployment that already has its flags (:func:`with_flags`).

    ``prompt``, ``total``: tokens of a typical prompt, and of prompt and output. ``draft``: a model whose weights and
    cache lie on the same devices. Raises ``InfeasibleError`` when the weights leave no room for a cache.
    """
    engine, ideal = deployment.engine, deployment.calibration.basis == "roofline"
    defaults = engine.defaults
    tier = defaults.tier(deployment.hardware)
    stage, pool = _tightest_stage(deployment, total)
    unit = _slope(stage, total)
    if draft is not None:
        beside = Footprint(deployment=draft, batch=1.0, prompt=total, context=total).stage
        pool, unit = pool - beside.weights, unit + _slope(beside, total)
        if pool <= 0:
            raise InfeasibleError(
                f"{deployment.describe()} has no memory left for its draft model {draft.model.name}",
                because=f"its weights take {format_bytes(beside.weights)} of {format_bytes(pool + beside.weights)}",
                hint="a smaller --draft-model, or more devices (--tp)",
            )
    growing = unit > 0
    longest = flags.max_model_len or deployment.model.max_context or _UNLIMITED
    if deployment.model.encodes:
        longest += 1  # the answer of a request counts as one token, and takes no position
    unit = unit if growing else 1.0
    activations = float(np.max(stage.activations(prompt, 1.0))) if engine.sized_for_batch else 0.0
    return Rules(
        policy=engine.policy,
        batching=engine.batching,
        slots=tier.max_sequences,
        budget=_UNLIMITED if engine.policy == "static" else tier.token_budget,
        scheduler=defaults.scheduler,
        longest=longest,
        capacity=pool / unit,
        overhead=((defaults.block_size - 1) / 2 if growing else 0.0) + activations / unit,
        windows=((float(longest), 0.0),)
        if flags.contiguous
        else tuple((share / unit, size) for share, size in _bounded(stage, total)),
        in_flight=tuple(
            (float(size) / unit, window, float(most))
            for size, window, most in stage.flights(float(tier.token_budget))
            if window < total and not flags.contiguous
        ),
        growing=growing and not flags.contiguous,
        overlapped=overlaps(deployment),
        seen_late=seen_late(deployment),
        poll_interval=flags.poll_interval_steps,
        wait_steps=flags.batch_wait_steps,
        wait_fill=flags.batch_wait_fill,
        balance_steps=flags.balance_steps,
        cadence=deployment.cadence,
        **({} if ideal else _outside(engine)),
        timeout=flags.client_timeout or inf,
        queue=flags.queue,
    )


def _outside(engine: Engine) -> dict[str, Any]:
    """What a request takes outside the steps of an engine, and on its way to a pool that decodes."""
    serving, apart = engine.serving, engine.apart
    return {
        "latency": serving.latency,
        "front_request": serving.front_request,
        "front_token": serving.front_token,
        "handoff": apart.handoff,
        "asked_twice": apart.asked_twice,
    }


def verifying(rules: Rules, width: int, lanes: int = 1) -> Rules:
    """The rules where each decoding request takes ``width`` tokens of a step, of ``lanes`` that are in flight.

    Where decodes take of the token budget, no more requests run than it holds verifications: engines would cut drafts
    short instead, of which no acceptance is known. Raises ``UsageError`` where it does not hold one.
    """
    if width == 1 or not rules.mixed:
        return rules
    if width > rules.budget:
        raise UsageError(
            f"a verification of {width:,} tokens is more than a step of {rules.budget:,}",
            because="the drafts of a request are verified in one step",
            hint=f"--max-num-batched-tokens {width} or more, or fewer --draft-tokens",
        )
    return replace(rules, slots=min(rules.slots, rules.budget // width * lanes))


def remedy(reasons: Iterable[str], longest: int) -> str:
    """What admits requests that the rules refuse (:meth:`Rules.refusal`), prompts of up to ``longest`` tokens."""
    hints = {
        "max_num_batched_tokens": f"--max-num-batched-tokens {1 << (longest - 1).bit_length()} or --chunked-prefill",
        "max_model_len": "shorter requests, or a longer --max-model-len where the model allows it",
        "cache": "shorter requests, more devices (--tp), or --kv fp8",
    }
    texts = list(reasons)
    return "; ".join(hint for name, hint in hints.items() if any(name in reason for reason in texts))


def _tightest_stage(deployment: Deployment, total: float) -> tuple[StageMemory, float]:
    """The pipeline stage, or the host, that holds the fewest requests of ``total`` tokens, and its bytes for them."""
    footprint = Footprint(deployment=deployment, batch=1.0, prompt=total, context=total)
    best: tuple[float, StageMemory, float, Footprint] | None = None
    sides = [footprint, *([] if footprint.host is None else [footprint.host])]
    for side, stage in ((one, stage) for one in sides for stage in one.stages):
        pool = side.pool(stage)
        requests = pool / max(float(stage.held(total)), 1e-9)
        if best is None or requests < best[0]:
            best = (requests, stage, pool, side)
    assert best is not None
    if best[2] <= 0:
        where = "each device" if best[3] is footprint else best[3].deployment.hardware.name
        raise InfeasibleError(
            f"{deployment.describe()} has no memory left for a cache",
            because=f"weights {format_bytes(best[1].weights)} and the engine's reserve leave {format_bytes(best[2])} "
            f"of {format_bytes(best[3].usable)} usable on {where}",
            hint=what_would_fit(footprint)
            if best[3] is footprint
            else "a host with more memory, or a narrower --quant",
        )
    return best[1], best[2]


def _slope(stage: StageMemory, total: float) -> float:
    """Bytes that one more token adds to a sequence that ends with ``total`` tokens, before its end.

    A window that such a sequence does not fill grows with it like any other cache.
    """
    return float(stage.held(total) - stage.held(total - 1.0))


def _bounded(stage: StageMemory, total: float) -> list[tuple[float, float]]:
    """State that stops growing before ``total`` tokens: (bytes when full, tokens at which it is full).

    Constant state is (bytes, 0); what starts to grow where a memory of windows is full is negative.
    """
    bounded = []
    for size in (size for size in stage.bends if size < total):
        bend = float(stage.held(size) - stage.held(size - 1)) - float(stage.held(size + 1) - stage.held(size))
        bounded.append((bend * size, size))
    if stage.recurrent:
        bounded.append((stage.recurrent, 0.0))
    return bounded
