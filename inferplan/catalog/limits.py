"""Limits on latency as files of loads state them."""

from inferplan.spec import Field, Spec
from inferplan.units import Seconds


class LimitsSpec(Spec):
    """Limits of requests, each kept at the ``percentile``."""

    ttft: Seconds | None = Field(default=None, gt=0)
    tpot: Seconds | None = Field(default=None, gt=0)
    e2e: Seconds | None = Field(default=None, gt=0)
    percentile: float = Field(default=95.0, gt=0, lt=100)
