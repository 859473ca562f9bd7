"""Reads a printed formula back: ``floor((80.5 GB - 16 GB) / 167.772 MB)`` is between 384 and 385.

Written without the code that prints them: numbers with units, the usual operators, and interval arithmetic, because a
printed number stands for every number that rounds to it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

DIGITS = 6
PREFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
UNITS = {f"{prefix}{unit}": factor for unit in ("B", "s", "FLOP", "J", "W") for prefix, factor in PREFIXES.items()}
UNITS |= {f"{name}/s": factor for name, factor in UNITS.items() if not name.endswith("s")}
NUMBER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf)(?: ([A-Za-z]+(?:/s)?)(?![\w/]))?")


@dataclass(frozen=True)
class Between:
    """Every number from ``low`` to ``high``."""

    low: float
    high: float

    def _all(self, other: Between, values: list[float]) -> Between:
        return Between(min(values), max(values))

    def __add__(self, other: Between) -> Between:
        return Between(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Between) -> Between:
        return Between(self.low - other.high, self.high - other.low)

    def __mul__(self, other: Between) -> Between:
        return self._all(other, [a * b for a in (self.low, self.high) for b in (other.low, other.high)])

    def __truediv__(self, other: Between) -> Between:
        assert other.low > 0.0, "a formula that divides by nothing"
        return self._all(other, [a / b for a in (self.low, self.high) for b in (other.low, other.high)])

    def __pow__(self, other: Between) -> Between:
        assert self.low >= 0.0
        return self._all(other, [a**b for a in (self.low, self.high) for b in (other.low, other.high)])


FUNCTIONS = {
    "max": lambda a, b: Between(max(a.low, b.low), max(a.high, b.high)),
    "min": lambda a, b: Between(min(a.low, b.low), min(a.high, b.high)),
    "floor": lambda a: Between(float(math.floor(a.low * (1 - 1e-12))), float(math.floor(a.high * (1 + 1e-12)))),
    "ceil": lambda a: Between(float(math.ceil(a.low)), float(math.ceil(a.high))),
}


def number(match: re.Match[str]) -> str:
    """A printed number as the interval that rounds to it; a whole number without a unit is itself."""
    text, unit = match.groups()
    if unit is not None and unit not in UNITS:
        raise ValueError(f"{unit} in {match.group()}")
    value = float(text)
    exact = unit is None and re.fullmatch(r"\d+|inf", text)
    half = 0.0 if exact or value == 0.0 else 0.5 * 10.0 ** (math.floor(math.log10(value)) - DIGITS + 1)
    factor = UNITS[unit or "s"]
    return f"Between({(value - half) * factor!r}, {(value + half) * factor!r})"


def read(text: str) -> Between:
    """What a printed formula comes to. Raises ``SyntaxError`` or ``NameError`` for what is none."""
    expression = NUMBER.sub(number, text).replace("^", "**")
    found = eval(expression, {"__builtins__": {}}, {"Between": Between, "inf": math.inf} | FUNCTIONS)
    assert isinstance(found, Between)
    return found
