"""Lengths and limits on latency as files of loads state them."""

from typing import Annotated, Any

from inferplan.spec import Field, Spec
from inferplan.units import Seconds
from inferplan.validators import BeforeValidator


def _as_text(value: Any) -> Any:
    """``1024`` as the text of it, and what is no number of tokens as it is."""
    return str(value) if type(value) is int and value > 0 else value


LengthsText = Annotated[str, BeforeValidator(_as_text)]
"""Lengths as the command line takes them: 1024, lognormal:1155:0.96."""


class LimitsSpec(Spec):
    """Limits of requests, each kept at the ``percentile``."""

    ttft: Seconds | None = Field(default=None, gt=0)
    tpot: Seconds | None = Field(default=None, gt=0)
    e2e: Seconds | None = Field(default=None, gt=0)
    percentile: float = Field(default=95.0, gt=0, lt=100)
