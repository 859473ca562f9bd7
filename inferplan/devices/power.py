"""What an accelerator draws while kernels run, and what a cap below its TDP leaves of its clock (docs/power.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from inferplan.spec import Field, Spec
from inferplan.units import Array, Num

_CLOSE = 1e-13
"""Share of TDP by which a capped kernel may miss its cap."""
_SLOWEST = 1e-6
"""The lowest clock that is looked at, of a kernel's own: below all that a device has."""
UNMEASURED = "no measurement of this device under a cap is on file"
"""What every report of a cap says."""


class PowerShares(Spec):
    """Shares of TDP: of a device that runs kernels at all, and what full arithmetic and full memory traffic add."""

    source: str
    error: str
    """How far off what these say is, in words."""
    vendors: tuple[str, ...] = ()
    """Of whose devices; none: of all others."""
    running: float = Field(gt=0.0, lt=1.0)
    """While a step runs, whatever it does."""
    standing: float = Field(gt=0.0, lt=1.0)
    """While a server has its model loaded and no step runs."""
    standing_source: str
    arithmetic: float = Field(ge=0.0)
    memory: float = Field(ge=0.0)
    """Of memory traffic what goes by the clock of the memory."""
    moving: float = Field(default=0.0, ge=0.0)
    """Of memory traffic what goes by the clock of the cores that it passes."""
    static: float = Field(ge=0.0)
    """Of ``running`` what does not fall with the clock."""
    voltage: float = Field(ge=0.0, le=2.0)
    """An operation takes energy as the clock to this power: 0 where no clock lowers the voltage further, 2 where the
    voltage is in proportion to the clock."""
    clock_source: str
    """What ``static`` and ``voltage`` rest on."""

    def dynamic(self, math: Num, memory: Num, seconds: Num) -> tuple[Num, Num]:
        """What a kernel draws above ``running`` by the clock of the cores, and by that of the memory, in seconds of
        TDP: no more than is left.

        math, memory: seconds of its FLOP and of its bytes at the device's peaks; it takes ``seconds`` with both.
        """
        left = (1.0 - self.running) * seconds
        moved = np.minimum(self.memory * memory, left)
        return np.minimum(self.arithmetic * math + self.moving * memory, left - moved), moved


@dataclass(frozen=True, kw_only=True)
class PowerCap:
    """A limit on the watts of each device: ``nvidia-smi -pl``. watts, tdp [W] of one device."""

    watts: float
    tdp: float
    shares: PowerShares

    @property
    def holds(self) -> bool:
        """Whether it is below TDP: one at TDP changes nothing."""
        return self.watts < self.tdp

    def drawn(self, clock: Num, work: tuple[Num, Num], seconds: Num) -> Num:
        """Share of TDP that a kernel draws at a share ``clock`` of its own clock, at which it takes ``seconds``.

        work: what it draws by the clocks of the cores and of the memory, in seconds of TDP. What switches in
        every cycle draws in proportion to the clock and the square of the voltage, an operation takes energy as that
        square (``P = a*C*V^2*f``: Chandrakasan, Sheng, Brodersen, Low-power CMOS digital design, IEEE JSSC 27, 1992,
        eq. 1); the memory has a clock of its own.
        """
        shares, energy = self.shares, np.power(clock, self.shares.voltage)
        switched = shares.static + (shares.running - shares.static) * energy * clock
        found: Num = switched + (work[0] * energy + work[1]) / seconds
        return found

    def clock(self, work: tuple[Num, Num], seconds: Callable[[Num], Num]) -> Num:
        """The clock at which a kernel draws the cap, of its own clock; 1 where it draws no more anyway.

        seconds: what it takes at a clock. Found by regula falsi (Illinois), as watts only rise with the clock.
        """
        shape = np.broadcast(*work, seconds(1.0)).shape
        limit = self.watts / self.tdp

        def excess(clock: Array) -> Array:
            return np.asarray(self.drawn(clock, work, seconds(clock)) - limit)

        low, high, found = np.full(shape, _SLOWEST), np.ones(shape), np.ones(shape)
        below, above = excess(low), excess(high)
        over = above > _CLOSE
        while np.any(over):
            with np.errstate(invalid="ignore", divide="ignore"):
                found = np.where(over, (low * above - high * below) / (above - below), found)
            here = excess(found)
            over = over & (np.abs(here) > _CLOSE) & (high - low > 1e-15)
            rises = here > 0
            below = np.where(rises, below / 2, here)
            above = np.where(rises, here, above / 2)
            low, high = np.where(rises, low, found), np.where(rises, found, high)
        return found if shape else float(found)
