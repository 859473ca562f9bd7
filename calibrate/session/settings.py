"""What a run may spend: its budget, and the length of a visit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log

from calibrate.designs import CPU, GPU, Design
from calibrate.device.measurer import Measurer

Progress = Callable[[str, float], None]
QUICK = 60.0
"""Seconds below which a run leaves out whole models, collectives and further terms."""
WARM_UP = 0.01
"""Share of the budget in which the device is warmed up at most."""
WRITTEN = 0.5
"""How far off a kernel and format may be on held-out shapes for its constants to be written: measured and predicted are
a factor of 1.5 apart on average (:func:`calibrate.fit.mean_factor`). What stands in for them is on file, carried at the
worst from another library's kernel or another device, and 5 to 50 % off (medians of ``configs/libraries.yaml`` and, but
for sparse attention, ``relatives.yaml``): one that is further off takes away more than it adds. The mean, for a median
of a few shapes says nothing of the others, and of factors, for logarithms make 250 times one of 5.5."""
TAIL = log(10.0)
"""The 90th percentile of an exponential distribution over its mean: how much farther off, in logarithms, the tenth
that is worst may be than shapes are on average."""
FEWEST = 6
"""Shapes of a kernel and format from which it is fitted: five for the constants when each in turn is held out."""
DISTURBED = 0.5
"""The share of visits that may be disturbed; of a run with more, nothing is written unless it is asked for."""
SLACK = 5.0
"""The shortest visit, in multiples of its shape's time by the roofline; shapes too slow for that are left out."""
LONGEST_STEP = 1 / 300
"""The longest step of a whole model that is timed, by the roofline, as a share of the budget: a visit runs it about six
times, really twice as slow, and all of them together have 18 % of the budget."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run may spend and where it begins.

    budget: wall seconds of the whole run. spent: seconds gone before it began (imports). gpu: the catalogue entry that
    the device is, whatever it calls itself. tolerance: largest median error of a kernel that ``check`` accepts.
    written: largest mean factor, less 1, of one whose constants are written (:attr:`largest`). keep_disturbed: fit a
    run of which most was disturbed, too.
    """

    budget: float
    spent: float = 0.0
    seed: int = 0
    gpu: str | None = None
    tolerance: float = 0.2
    written: float = WRITTEN
    keep_disturbed: bool = False
    design: Design | None = None
    models: tuple[str, ...] = ()
    """Models of the user's own, whose shapes are half of those measured."""

    def design_on(self, kind: str) -> Design:
        """The graphs that shapes come from on a kind of device: ``design`` if there is one; with the user's models."""
        design = self.design or (GPU if kind == "cuda" else CPU)
        return replace(design, own=self.models) if self.models else design

    @property
    def largest(self) -> tuple[float, float]:
        """The largest factors between measured and predicted of constants that are written: their mean, and their 90th
        percentile."""
        return 1.0 + self.written, (1.0 + self.written) ** TAIL

    @property
    def quick(self) -> bool:
        """Whether time is short: operators only, and fewer of them."""
        return self.budget < QUICK

    @property
    def rounds(self) -> int:
        """How often every shape is visited at least, when all goes to plan."""
        return 3 if self.quick else 5

    @property
    def visit(self) -> float:
        """Seconds of laps in one visit."""
        return 0.015 if self.quick else 0.04


class Budget:
    """A deadline on the measurer's own clock."""

    def __init__(self, measurer: Measurer, settings: Settings) -> None:
        self._clock = measurer.clock
        self._end = measurer.clock() - settings.spent + settings.budget

    @property
    def left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self._end - self._clock()
