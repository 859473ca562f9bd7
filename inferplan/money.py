"""Money as people write it: an amount, its currency, and the span of time that it is for."""

from __future__ import annotations

import re
from math import inf
from typing import NamedTuple

from inferplan.errors import UsageError
from inferplan.units import HOURS_PER_MONTH

_CODES = (
    "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CLP CNY",
    "COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD HNL HTG HUF IDR",
    "ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK",
    "MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF",
    "SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD UYU",
    "UZS VED VES VND VUV WST XAF XCD XCG XOF XPF YER ZAR ZMW ZWG",
)
CURRENCIES = frozenset(" ".join(_CODES).split())
"""The currencies of countries by their codes (ISO 4217, list one, with the deletion of ANG in 2025 and of BGN in 2026):
any other three letters beside a number are no money, neither funds and metals nor codes for tests and for none."""
HOURS = {
    **dict.fromkeys(("h", "hr", "hour"), 1.0),
    **dict.fromkeys(("d", "day"), 24.0),
    "week": 168.0,
    **dict.fromkeys(("mo", "month"), HOURS_PER_MONTH),
    **dict.fromkeys(("yr", "year"), 8760.0),
}
"""Hours of the spans that a cost may be of."""
_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP"}
_SCALES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6}
_MONEY = re.compile(
    r"^\s*(?P<before>[$€£]|[a-zA-Z]{3}(?=[\s\d.]))?\s*(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*(?:[eE][-+]?\d+)?|"
    r"\.\d+)\s*(?P<scale>[kKM]?)\s*(?P<after>[$€£]|[a-zA-Z]{3})?\s*(?:(?:/|\b(?i:per|an?)\s)\s*(?P<span>[a-zA-Z]+)\s*)?$",
    re.ASCII,
)
_EITHER = re.compile(r"(?<![\d.,])[1-9]\d{0,2}\.\d{3}(?![\d.,eE])", re.ASCII)
"""A number with a dot before three digits: one and a part, or, as in much of Europe, so many thousands."""


class Money(NamedTuple):
    """An amount. currency: its code (ISO 4217), ``None`` where none is named. hours: of the span that it is for,
    ``None`` where none is named."""

    amount: float
    currency: str | None = None
    hours: float | None = None

    @property
    def per_hour(self) -> float:
        """Of an hour, as which it counts where no span is named."""
        return self.amount / (self.hours or 1.0)


class EitherAmountError(ValueError):
    """A text that may be one amount, or a thousand times that."""


def parse_money(text: str, most: float = inf) -> Money:
    """``"20"``, ``"$20"``, ``"3,000 EUR"``, ``"500/day"``, ``"3000 USD per month"``.

    most: what costs more per hour is not meant. Raises ``ValueError`` for other text; :class:`EitherAmountError` where
    a dot may stand before decimals or before thousands, and both are meant by somebody.
    """
    found = _MONEY.match(text)
    names = [] if found is None else [name for name in (found["before"], found["after"]) if name]
    currency = _SIGNS.get(names[0], names[0].upper()) if names else None
    span = None if found is None or found["span"] is None else found["span"].lower()
    if found is None or len(names) > 1 or (currency and currency not in CURRENCIES) or (span and span not in HOURS):
        raise ValueError(f"{text[:40]!r} is not an amount of money")
    number, scale = found["number"], _SCALES[found["scale"]]
    money = Money(float(number.replace(",", "")) * scale, currency, HOURS[span] if span else None)
    if _EITHER.fullmatch(number) and 1e3 * money.per_hour <= most:
        raise EitherAmountError(f"{text[:40]!r} may be either")
    return money


def require_one_amount(option: str, text: str, error: ValueError) -> None:
    """Raise ``UsageError`` for an option whose text may be two amounts."""
    if not isinstance(error, EitherAmountError):
        return
    small = _EITHER.sub(lambda found: _with_decimals(found[0]), text)
    large = _EITHER.sub(lambda found: found[0].replace(".", ""), text)
    raise UsageError(
        f"{option} {text} may be {small} or {large}",
        because="a dot before three digits stands before decimals in some countries, before thousands in others",
        hint=f"{option} {small} or {option} {large}",
    ) from None


def _with_decimals(number: str) -> str:
    """A number that nobody takes for thousands."""
    short = number.rstrip("0")
    return f"{short}0" if short.endswith(".") or short == number else short


def read_cost(option: str, text: str) -> Money:
    """A cost per hour, or per a longer span. Raises ``UsageError`` that names the option."""
    try:
        found = parse_money(text)
    except ValueError as error:
        require_one_amount(option, text, error)
        raise UsageError(
            f"{option} {text[:60]!r} is no cost",
            hint="20 (per hour, in the currency of the prices), 20USD/h, 500/day or 3000/month",
        ) from None
    if not found.amount < inf:
        raise UsageError(f"{option} must be a finite number, not {found.amount:g}")
    return found
