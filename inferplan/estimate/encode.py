"""Models that generate nothing: one pass over every request, and nothing kept of it.

Definitions (docs/encoders.md). A batch of prompts goes through the layers together; the heads work on what is asked of
them. The latency is that pass, and stands where a generating model has its TTFT and its total latency; there is no time
per output token. A load counts one output for each request: its answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from inferplan.errors import UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.phase import Phase
from inferplan.terms import Naming, plain
from inferplan.units import Num

_USUAL = 256.0
"""Output tokens where nobody asks for others: those of a load that was made without a thought of encoders."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodeEstimate(Estimate):
    """A static batch of a model that encodes. ``prefill`` is the pass, and so is ``decode``: there is no other."""

    @cached_property
    def footprint(self) -> Footprint:
        load = self.load
        return Footprint(
            deployment=self.deployment, batch=load.batch, prompt=load.prompt, context=load.prompt, cached=False
        )

    @cached_property
    def decode(self) -> Phase:
        return self.prefill

    @cached_property
    def tpot(self) -> Num:
        """NaN: no token is generated."""
        return self.ttft * np.nan

    @property
    def tpot_start(self) -> Num:
        return self.tpot

    @property
    def tpot_end(self) -> Num:
        return self.tpot

    def _last(self, name: Naming = plain) -> Num:
        return name(self.ttft, "ttft", "s", ("number", "ttft"))

    @property
    def total_rate(self) -> Num:
        """Tokens read a second over all replicas."""
        return self.request_rate * self.load.prompt


def encoder_load(deployment: Deployment, load: StaticLoad) -> StaticLoad:
    """The load with one answer a request, and a prompt that the model can read where nobody asked for one.

    Raises ``UsageError`` for generated tokens.
    """
    model, output = deployment.model, np.asarray(load.output)
    if not np.all((output == 1) | (output == _USUAL)):
        raise UsageError(
            f"{model.name} generates nothing, so there are no {int(np.max(output)):,} output tokens",
            because="one pass over a request is all of its work",
            hint="leave --output out, or --output 1",
        )
    prompt: Num = load.prompt
    if load.usual and model.max_context is not None:
        prompt = np.minimum(prompt, float(model.max_context))
    return replace(load, output=np.minimum(load.output, 1.0), prompt=prompt)


def encode_estimate(deployment: Deployment, load: StaticLoad) -> EncodeEstimate:
    """The estimate of a model that encodes."""
    return EncodeEstimate(deployment=deployment, load=encoder_load(deployment, load))
