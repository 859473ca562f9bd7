"""Selective and continuous batching (Orca, OSDI 2022): what a static batch computes for nothing.

A static batch pads every prompt to the longest and decodes until the last request is done. Selective batching computes
every matmul over the tokens there are and attention for each request alone; iteration-level scheduling gives the slot
of a finished request to the next one. The functions count tokens; the simulator plays both (``--engine none``: static).

Nothing is priced with these: they say how much of a static batch is padding, for people (docs/techniques/batching.md)
and for tests, which hold the simulator against them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferplan.traffic.conversations import Ints


@dataclass(frozen=True, kw_only=True)
class StaticWaste:
    """Token slots of one static batch, and how many of them do something."""

    prompt_slots: int
    prompt_tokens: int
    decode_slots: int
    decode_tokens: int

    @property
    def useful_prompt(self) -> float:
        """Share of the prompt slots that hold a token."""
        return self.prompt_tokens / self.prompt_slots

    @property
    def useful_decode(self) -> float:
        """Share of the decode slots whose request still writes."""
        return self.decode_tokens / self.decode_slots if self.decode_slots else 1.0


def static_waste(prompt: Ints, output: Ints) -> StaticWaste:
    """What a static batch of these requests pads. The first token comes from the prompt's step."""
    prompt, output = np.asarray(prompt), np.asarray(output)
    return StaticWaste(
        prompt_slots=int(prompt.max()) * len(prompt),
        prompt_tokens=int(prompt.sum()),
        decode_slots=int(output.max() - 1) * len(output),
        decode_tokens=int((output - 1).sum()),
    )
