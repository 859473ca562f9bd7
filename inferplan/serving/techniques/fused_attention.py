"""Fused against unfused attention: what FlashAttention buys.

An unfused kernel writes the scores of every query-key pair to memory and reads them back, before and after the softmax
(2205.14135, section 3.1); a fused one keeps them on the chip. :class:`inferplan.estimate.deployment.Deployment` has the
switch ``unfused_attention``, which the graph and so every estimate, steady state and simulation obey; this compares
both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import Phase, run_step
from inferplan.units import Num
from inferplan.work.step import Step


@dataclass(frozen=True, kw_only=True, eq=False)
class FusionGain:
    """The same step with fused and with unfused attention."""

    fused: Phase
    unfused: Phase

    @property
    def speedup(self) -> Num:
        """Of the whole step."""
        return self.unfused.time / self.fused.time

    @property
    def traffic(self) -> Num:
        """Bytes of device memory traffic that fusing saves in the step, over all ranks."""
        return self.unfused.bytes - self.fused.bytes


def fusion_gain(deployment: Deployment, step: Step) -> FusionGain:
    """Price a step with both kinds of attention kernel."""
    return FusionGain(
        fused=run_step(replace(deployment, unfused_attention=False), step),
        unfused=run_step(replace(deployment, unfused_attention=True), step),
    )
