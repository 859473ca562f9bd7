"""An explanation: a number, its formula, the numbers put in, and where each input stands."""

from __future__ import annotations

from dataclasses import dataclass

from inferplan.answers.explain.bases import Basis
from inferplan.shown import Shown
from inferplan.terms import show


@dataclass(frozen=True, kw_only=True)
class Input:
    """One number that went in, and where it stands: a file with its line and field, an option, or a formula's name."""

    symbol: str
    value: str
    origin: str
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class ExplainedPart:
    """A result that a number is made of, and how it was made: empty where it has an explanation of its own."""

    name: str
    value: str
    formula: str = ""
    substituted: str = ""

    @property
    def how(self) -> str:
        """The formula, and the same in numbers."""
        return " = ".join(filter(None, (self.formula, self.substituted)))


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanation(Shown):
    """A number, the formula that computed it, and what was put in.

    formula: in names. substituted: the same in numbers, which give ``value`` but for their rounding to six digits.
    """

    name: str
    value: float
    unit: str
    formula: str
    substituted: str
    page: str
    inputs: tuple[Input, ...] = ()
    parts: tuple[ExplainedPart, ...] = ()
    rests_on: tuple[Basis, ...] = ()

    @property
    def shown(self) -> str:
        """The value with its unit."""
        return show(self.value, self.unit)
