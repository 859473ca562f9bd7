"""Whether a service that runs does what its plan said: each latency against its limit and against the plan's band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AsPlanned:
    """One latency at the percentile of a plan, in seconds.

    planned: what the plan quotes. measured: of the running service; error: half its 95 % confidence interval, ``None``
    where there are too few values. limit: that it was planned for, if any. band: between which 80 % of measurements lie
    of plans like this; ``None`` where nobody knows.
    """

    name: str
    planned: float
    measured: float
    error: float | None = None
    limit: float | None = None
    band: tuple[float, float] | None = None

    @property
    def ratio(self) -> float:
        """Measured over planned."""
        return self.measured / self.planned

    @property
    def kept(self) -> bool:
        """Whether the limit is kept."""
        return self.limit is None or self.measured <= self.limit

    @property
    def inside(self) -> bool | None:
        """Whether the measurement is within the band; ``None`` where there is none."""
        return None if self.band is None else self.band[0] <= self.measured <= self.band[1]

    @property
    def good(self) -> bool:
        """As planned: the limit is kept, and the band is, where one is known."""
        return self.kept and self.inside is not False

    @property
    def words(self) -> str:
        """What is to be said of it."""
        side = ""
        if self.inside is False and self.band is not None:
            side = "faster than the band" if self.measured < self.band[0] else "slower than the band"
        found = [*([] if self.kept else ["over the limit"]), *([side] if side else [])]
        return ", ".join(found) or ("as planned" if self.inside else "within the limit; no band is known")


def all_as_planned(found: Sequence[AsPlanned]) -> bool:
    """The verdict on a service."""
    return all(one.good for one in found)
