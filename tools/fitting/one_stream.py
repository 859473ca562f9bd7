"""Measured speeds of one stream of requests: of its prompt, or of the tokens behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferplan.estimate.batch import Estimate


@dataclass(frozen=True, kw_only=True)
class OneStream:
    """A speed [tokens/s] behind ``prompt`` tokens, or of them (``of_prompt``)."""

    source: str
    model: str
    quant: str
    prompt: float
    output: float
    of_prompt: bool
    measured: float

    def estimate(self) -> Estimate:
        """As it is priced."""
        raise NotImplementedError

    @property
    def predicted(self) -> float:
        """Tokens per second."""
        found = self.estimate()
        return self.prompt / float(found.ttft) if self.of_prompt else 1.0 / float(found.tpot)


def stated(row: Mapping[str, str]) -> dict[str, Any]:
    """What a row of our own tables says of one: 128 tokens are generated where it does not say how many."""
    return {
        "source": row["source"],
        "model": row["model"],
        "quant": row["format"],
        "prompt": float(row["prompt"]),
        "output": float(row["generated"] or 128),
        "of_prompt": row["quantity"].startswith("prompt"),
        "measured": float(row["value"]),
    }
