"""Diffusion language models: blocks of masked tokens, each denoised in several bidirectional passes.

Definitions (docs/diffusion.md). A block of ``block`` tokens takes ``steps`` denoising passes. Without a block cache
each pass runs over the whole sequence, prompt and every position still to come (LLaDA, 2502.09992 section 2.4, and its
reference ``generate``). With one, a pass runs over the block alone and attends to what is cached (Fast-dLLM, 2505.22618
section 3.1); the prompt is encoded once before. ``TTFT`` is when the first block is finished, for no token of it is
final before; ``TPOT`` spreads the rest of the time over the other tokens, so ``TTFT + (output - 1)*TPOT`` stays the
total.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from inferplan.errors import UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import Band, StaticLoad
from inferplan.estimate.phase import Phase, run_step
from inferplan.models.spec import Generation
from inferplan.terms import Naming, name_term, plain
from inferplan.units import Num
from inferplan.work.step import Segment, Step

_TTFT = ("number", "ttft")


@dataclass(frozen=True, kw_only=True, eq=False)
class DiffusionEstimate(Estimate):
    """A static batch of a diffusion model. ``prefill`` is its first pass, ``decode`` a pass at the middle block."""

    @property
    def generation(self) -> Generation:
        return self.deployment.model.generation

    @cached_property
    def blocks(self) -> Num:
        """Blocks of a sequence; the last may be partly empty and costs the same."""
        return np.ceil(self.load.output / self.generation.block)

    def _pass(self, done: Num) -> Step:
        """One denoising pass when ``done`` blocks are finished. Every masked position has its logits."""
        batch: Num = self.load.batch
        block: Num = float(self.generation.block)
        new: Num
        past: Num
        if self.generation.block_cache:
            new, past = block, self.load.prompt + done * block
        else:
            new, past = self.load.prompt + self.blocks * block, done * 0.0
        segment = Segment(batch=batch, new=new, past=past, causal=False)
        return Step(segments=(segment,), logits=batch * new)

    @property
    def _longest_pass(self) -> tuple[Num, Num]:
        block = float(self.generation.block)
        if self.generation.block_cache:
            return np.maximum(self.load.prompt, block), block
        whole = self.load.prompt + self.blocks * block
        return whole, whole

    @cached_property
    def encode(self) -> Phase | None:
        """The pass that encodes the prompt into the block cache."""
        if not self.generation.block_cache:
            return None
        segment = Segment(batch=self.load.batch, new=self.load.prompt, past=0.0, causal=False)
        return run_step(self.deployment, Step(segments=(segment,)))

    @cached_property
    def prefill(self) -> Phase:
        return run_step(self.deployment, self._pass(self.load.prompt * 0.0))

    @cached_property
    def decode(self) -> Phase:
        return run_step(self.deployment, self._pass((self.blocks - 1.0) / 2))

    @cached_property
    def step_time(self) -> Num:
        """Mean seconds of a denoising pass (at the middle block: exact while time is linear in the context)."""
        return self.decode.time

    @cached_property
    def block_time(self) -> Num:
        """Mean seconds of a block."""
        return self.generation.steps * self.step_time

    @cached_property
    def ttft(self) -> Num:
        """Seconds until the first block is finished."""
        return self._first()

    @cached_property
    def e2el(self) -> Num:
        """Seconds until the last block is finished."""
        return self._last()

    @cached_property
    def tpot(self) -> Num:
        """``(total - TTFT)/(output - 1)``; NaN when output is 1."""
        rest = self.load.output - 1.0
        with np.errstate(invalid="ignore", divide="ignore"):
            spread = np.where(rest > 0, (self.e2el - self.ttft) / np.maximum(rest, 1.0), np.nan)
        return float(spread) if spread.ndim == 0 else spread

    def _encode(self, name: Naming) -> Num:
        return 0.0 if self.encode is None else name(self.encode.time, "prompt encoded", "s")

    def _first(self, name: Naming = plain) -> Num:
        steps = name(float(self.generation.steps or 0), "denoising steps", "", ("model", "generation", "steps"))
        return self._encode(name) + steps * name(self.prefill.time, "first pass", "s", ("number", "prefill.time"))

    def _last(self, name: Naming = plain) -> Num:
        steps = name(float(self.generation.steps or 0), "denoising steps", "", ("model", "generation", "steps"))
        passes = name(self.blocks, "blocks") * steps * name(self.step_time, "a pass", "s", ("number", "decode.time"))
        return np.maximum(self._encode(name) + passes, name(self.ttft, "ttft", "s", _TTFT))

    def _mean_terms(self) -> Num:
        total, first = name_term(self.e2el, "e2el", "s", ("number", "e2el")), name_term(self.ttft, "ttft", "s", _TTFT)
        spread: Num = (total - first) / name_term(self.load.output - 1.0, "decode steps", "", ("load", "steps"))
        return spread

    @property
    def tpot_start(self) -> Num:
        """The same for every token: a block appears at once."""
        return self.tpot

    @property
    def tpot_end(self) -> Num:
        return self.tpot

    def band(self, metric: str) -> Band | None:
        """Unknown: no measurement of a diffusion model has been held out."""
        return None

    def bands(self) -> dict[str, tuple[Num, Num]]:
        """Unknown, as :meth:`band`."""
        return dict.fromkeys(("ttft", "tpot", "e2el"), (self.ttft * np.nan, self.ttft * np.nan))


def diffusion_estimate(deployment: Deployment, load: StaticLoad) -> DiffusionEstimate:
    """The estimate of a diffusion model. Raises ``UsageError`` when nobody says the block size and the steps."""
    generation = deployment.model.generation
    if not generation.block or not generation.steps:
        raise UsageError(
            f"{deployment.model.name} is a diffusion model: its block size and denoising steps are not on file",
            hint="--block-tokens 32 --block-steps 32, or generation: {block: 32, steps: 32} in its YAML",
        )
    return DiffusionEstimate(deployment=deployment, load=replace(load, kv_cache=generation.block_cache))
