"""Grams of CO2 in a kWh of electricity: as a user states them, or the yearly mean of a country on file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from inferplan.catalog.files import config_root, spec_of
from inferplan.errors import UnknownNameError, UsageError
from inferplan.spec import Spec
from inferplan.units import parse_number


class CarbonFile(Spec):
    """``configs/carbon.yaml``: yearly means by country [g/kWh]."""

    source: str
    year: int
    grams: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Carbon:
    """Grams of CO2 equivalent in a kWh, on average over a day, and who says so.

    steps: seconds of a day and the grams from each on, to the next or to 24:00; empty where they are always the same.
    """

    grams: float
    source: str
    steps: tuple[tuple[float, float], ...] = ()

    def between(self, start: float, stop: float) -> float:
        """Mean grams a kWh between two moments, at most a day apart, in seconds since some midnight."""
        if not self.steps:
            return self.grams
        from inferplan.traffic.profile import DAY

        start, stop = start % DAY, start % DAY + stop - start
        if stop > DAY:
            parts = (self.between(start, DAY) * (DAY - start), self.between(0.0, stop - DAY) * (stop - DAY))
            return sum(parts) / (stop - start)
        edges = np.clip([*(time for time, _ in self.steps), DAY], start, stop)
        return float(np.dot(np.diff(edges), [grams for _, grams in self.steps])) / (stop - start)


def grid_of(path: Path) -> Carbon:
    """Grams by the time of day from a CSV (``time,grams``), read as :func:`inferplan.traffic.profile.read_steps` does.

    Raises ``InputFileError``.
    """
    from inferplan.traffic.profile import DAY, read_steps

    steps = read_steps(path, "grams", "CO2 in grams per kWh")
    found = Carbon(grams=0.0, source=f"{path}, by the time of day", steps=steps)
    return replace(found, grams=found.between(0.0, DAY))


@cache
def carbon_file() -> CarbonFile:
    """The yearly means on file."""
    return spec_of(config_root() / "carbon.yaml", CarbonFile)


def carbon_of(text: str | None) -> Carbon | None:
    """``"380"``, grams a kWh, or the three letters of a country (ISO 3166), whose yearly mean is on file.

    Raises ``UsageError`` for a number below 0, ``UnknownNameError`` for a country that is not on file.
    """
    if text is None:
        return None
    try:
        grams = parse_number(text)
    except ValueError:
        known = carbon_file()
        country = text.strip().upper()
        if country in known.grams:
            source = f"mean of {country} in {known.year}: {known.source}"
            return Carbon(grams=known.grams[country], source=source)
        from difflib import get_close_matches

        close = get_close_matches(country, known.grams, n=3, cutoff=0.5)
        names = ", ".join(close or known.grams)
        raise UnknownNameError(
            f"no grams of CO2 a kWh are on file for {text!r}", hint=f"one of {names}, or grams: --carbon 380"
        ) from None
    if not 0 <= grams < float("inf"):
        raise UsageError(f"--carbon {text} is not an amount of CO2", hint="--carbon 380 (grams per kWh)")
    return Carbon(grams=grams, source="stated by the user")
