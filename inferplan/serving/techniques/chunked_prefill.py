"""Chunked prefill: a prompt computed in pieces, so that no step is longer than its token budget.

The query-key pairs of the pieces add up to those of the whole prompt, and every token passes every matmul once, so the
arithmetic is conserved. What a chunk costs more is the weights, read once for each chunk, the keys and values of
earlier chunks, read again, and the fixed costs of a step. What it buys is a shorter longest gap between two tokens of
those that decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import Batches, StepTime, last_leaves, price_batches
from inferplan.work.step import Segment, Step


def chunks(prompt: int, chunk: int) -> list[tuple[int, int]]:
    """(new, past) tokens of each piece. Raises ``UsageError`` for a chunk below 1."""
    if chunk < 1:
        raise UsageError(f"a chunk has 1 token or more, not {chunk}")
    return [(min(chunk, prompt - past), past) for past in range(0, prompt, chunk)]


def attention_pairs(prompt: int, chunk: int) -> float:
    """Query-key pairs of the pieces: ``sum new*past + new*(new + 1)/2``, always ``prompt*(prompt + 1)/2``."""
    return sum(new * past + new * (new + 1) / 2 for new, past in chunks(prompt, chunk))


@dataclass(frozen=True, kw_only=True)
class ChunkedPrefill:
    """A prompt in chunks beside ``batch`` decodes: seconds."""

    whole: float
    """The prompt in one step, nothing beside it."""
    total: float
    """All chunks: the time to the first token without a queue."""
    longest_gap: float
    """The longest step that a decode waits through."""
    steps: int

    @property
    def cost(self) -> float:
        """Total over whole: what chunking adds to the first token."""
        return self.total / self.whole


def chunked_prefill(
    deployment: Deployment, prompt: int, chunk: int, batch: int = 0, context: float = 1.0
) -> ChunkedPrefill:
    """Price a prompt in chunks of ``chunk`` tokens beside ``batch`` decodes with ``context`` tokens behind them.

    In a pipeline each chunk goes with the decodes of one batch in flight, and chunks follow each other through the
    stages. A decode waits until the batch that has passed them all with a chunk makes room for its next.
    """
    pp, dp = deployment.parallel.pp, deployment.parallel.dp
    own = float(ceil(ceil(batch / dp) / pp))
    beside = (Segment(batch=own, new=1.0, past=context),) if batch else ()

    def price(segments: tuple[Segment, ...]) -> StepTime:
        return price_batches(
            deployment, Batches(fullest=Step(segments=segments), microbatches=float(pp)), "cycle"
        ).step_time

    times = [
        price((*beside, Segment(batch=1.0, new=float(new), past=float(past), media=True)))
        for new, past in chunks(prompt, chunk)
    ]
    alone = price((Segment(batch=1.0, new=float(prompt), past=0.0, media=True),))
    return ChunkedPrefill(
        whole=float(alone.passage),
        total=last_leaves([[float(seconds) for seconds in time.fullest] for time in times], pp),
        longest_gap=max(float(time.total) for time in times),
        steps=len(times),
    )


def drain_in_chunks(
    deployment: Deployment, batch: int, prompt: tuple[int, int], chunk: int, host: bool = True
) -> float:
    """Seconds until a whole batch's prompts are computed in steps of ``chunk`` tokens, nothing beside them.

    prompt: new and cached tokens of each. A step holds as many whole prompts as it has room for, or one piece of one;
    they are computed in turn. host: with what each step takes there, which a draft may not add.
    """
    (new, past), own = prompt, ceil(batch / deployment.parallel.dp)
    if chunk >= new:
        each = min(chunk // new, own)
        steps = [(each, new, past)] * (own // each) + ([(own % each, new, past)] if own % each else [])
    else:
        steps = [(1, tokens, past + before) for tokens, before in chunks(new, chunk)] * own
    known = {step: _stations(deployment, *step) for step in set(steps)}
    if not host:
        known = {step: [0.0, *times[1:]] for step, times in known.items()}
    return last_leaves([known[step] for step in steps], deployment.parallel.pp)


def _stations(deployment: Deployment, prompts: int, new: int, past: int) -> list[float]:
    """Seconds on each station of a step that holds so many prompts."""
    step = Step(segments=(Segment(batch=float(prompts), new=float(new), past=float(past), media=True),))
    return [float(seconds) for seconds in price_batches(deployment, Batches(fullest=step)).step_time.fullest]
