"""Grams of CO2 in a kWh of electricity: as a user states them, or the yearly mean of a country on file."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

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
    """Grams of CO2 equivalent in a kWh, and who says so."""

    grams: float
    source: str


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
        close = get_close_matches(country, known.grams, n=3, cutoff=0.5)
        names = ", ".join(close or known.grams)
        raise UnknownNameError(
            f"no grams of CO2 a kWh are on file for {text!r}", hint=f"one of {names}, or grams: --carbon 380"
        ) from None
    if not 0 <= grams < float("inf"):
        raise UsageError(f"--carbon {text} is no amount of CO2", hint="--carbon 380 (grams a kWh)")
    return Carbon(grams=grams, source="stated by the user")
