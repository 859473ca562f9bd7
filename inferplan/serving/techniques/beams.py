"""Beam search: W hypotheses of an answer that share what they have in common, as two engines run it.

TensorRT-LLM searches inside its engine: a prompt is computed once, each step decodes W sequences of a request, and
every beam has pages of its own behind the whole pages of the prompt (``batch_manager/kvCacheManager.cpp``:
``addSequence``; ``adjustBlocksIfNeeded`` with ``shareAmongBeams = beamWidth == 1``).

vLLM searches from outside (``beam_search/offline.py``, ``_beam_search_step``): for every token each beam is a request
of its own with one token to write and 2 W logprobs, and all of them are waited for. The prefix cache knows the whole
pages of its history; what follows them is computed again, 1 to 16 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from inferplan.errors import UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build, masks
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import prompt_drain
from inferplan.estimate.windows import is_bounded
from inferplan.features import require_together
from inferplan.serving.launches import launch_floors
from inferplan.units import Array
from inferplan.work.step import prefill


@dataclass(frozen=True, kw_only=True, eq=False)
class BeamSearch:
    """A static batch of requests, each with ``width`` beams of ``load.output`` tokens; no beam ends before that.

    Raises ``UsageError`` for engines and models of which it is not known, and for a width below 2.
    """

    deployment: Deployment
    load: StaticLoad
    width: int

    def __post_init__(self) -> None:
        engine, hint = self.deployment.engine, "leave --beams out"
        require_together("estimate", self.deployment.features | self.load.features | {"beams"})
        if self.width < 2:
            raise UsageError(f"--beams must be 2 or more, not {self.width}", hint=hint)
        if engine.beams is None:
            raise UsageError(
                f"beam search in {engine.name} is not modelled",
                because="it is modelled only for trtllm and vllm",
                hint=f"--engine trtllm or --engine vllm, or {hint}",
            )
        step = self.load.decode_step(self.load.prompt)
        if any(is_bounded(mask) for mask in masks(build(self.deployment, step))):
            raise UsageError(
                f"beams of {self.deployment.model.name} are not modelled",
                because="layers see a window or a chunk, and what beams share of it is not counted here",
                hint=hint,
            )
        if self.way == "outside" and not engine.defaults.scheduler.prefix_caching:
            raise UsageError("beams from outside need the prefix cache: without it each computes its whole history")

    @property
    def way(self) -> Literal["inside", "outside"]:
        """Inside the engine, or from outside of it."""
        beams = self.deployment.engine.beams
        assert beams is not None
        return beams.way

    @property
    def block(self) -> int:
        """Tokens of a page."""
        return self.deployment.engine.defaults.block_size

    @property
    def cached(self) -> float:
        """Tokens of a beam's cache at its end: the last token has a place inside, and is not computed from outside."""
        return float(self.load.prompt + self.load.output) - (1.0 if self.way == "outside" else 0.0)

    def tokens(self, shared: float) -> float:
        """Tokens in pages that beams hold of a request at its end whose histories have ``shared`` tokens in common:
        ``s + W ceil((n - s)/b) b`` with the whole pages ``s`` of what they share.
        """
        whole = np.floor(shared / self.block) * self.block
        return float(whole + self.width * np.ceil((self.cached - whole) / self.block) * self.block)

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the most tokens in pages: of beams that part with the last token, and with the first."""
        most = self.tokens(float(self.load.prompt))
        return (most if self.way == "inside" else self.tokens(self.cached - 1.0)), most

    @cached_property
    def recomputed(self) -> Array:
        """Tokens that each beam computes in each round from outside: of ``n``, those behind ``floor((n - 1)/b)`` pages;
        the first round computes whole prompts.
        """
        history = self.load.prompt + np.arange(float(self.load.output))
        new = history - np.floor((history - 1) / self.block) * self.block
        new[0] = self.load.prompt
        return np.asarray(new)

    @cached_property
    def rounds(self) -> Array:
        """Seconds of each token of the answer. Outside: a prompt of every request, then W requests of each."""
        batch, steps = float(self.load.batch), int(self.load.output)
        if self.way == "inside":
            estimate = self.inside
            return np.array([float(estimate.ttft), *([float(estimate.tpot)] * (steps - 1))])
        new, history = self.recomputed, self.load.prompt + np.arange(float(steps))
        sequences = np.array([batch, *([batch * self.width] * (steps - 1))])
        time = prompt_drain(self.deployment, sequences, new, history - new).step_time
        floors = launch_floors(self.deployment, prefill(sequences, new, history - new))
        passage = (time.at_least(floors) if floors else time).passage
        return np.broadcast_to(np.asarray(passage, dtype=np.float64), (steps,))

    @cached_property
    def inside(self) -> Estimate:
        """The same beams decoded together inside an engine: as many samples of each prompt."""
        return Estimate(deployment=self.deployment, load=replace(self.load, samples=float(self.width)))

    @property
    def seconds(self) -> float:
        """Until the answer is there: nothing is certain before the last token."""
        return float(np.sum(self.rounds))
