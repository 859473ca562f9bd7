"""What an accelerator costs by the hour: dated, sourced lists, or what the user states. Nothing else is assumed."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from inferplan.catalog.files import aliases, load, names
from inferplan.errors import MissingFactError, UsageError
from inferplan.spec import Spec

Contract = Literal["on-demand", "spot", "reserved", "owned"]
CONTRACTS: tuple[Contract, ...] = ("on-demand", "spot", "reserved", "owned")
DEFAULT_LIST = "aws-us-east-1"
"""The one provider whose price feed was read first-hand; reports name it with its date wherever it is used."""


class Price(Spec):
    """The price of one device for one hour."""

    gpu: str
    per_hour: float = Field(gt=0.0)
    term: Contract = "on-demand"
    date: datetime.date | None = None
    """When it held, where that differs from the list's own date."""
    note: str = ""


class PriceList(Spec):
    """One provider's prices, one YAML in ``configs/prices``."""

    name: str
    provider: str
    source: str
    date: datetime.date
    currency: str
    confidence: Literal["high", "medium", "low"]
    notes: list[str] = []
    prices: list[Price]


@dataclass(frozen=True, kw_only=True)
class PriceTag:
    """A price with where it is from."""

    gpu: str
    per_hour: float
    currency: str
    term: str
    date: datetime.date | None
    source: str

    def describe(self) -> str:
        """``"6.88 USD/h (on-demand, aws-us-east-1, 2026-09-10)"``."""
        facts = ", ".join(str(part) for part in (self.term, self.source, self.date) if part)
        return f"{self.per_hour:g} {self.currency}/h ({facts})"


@dataclass(frozen=True, kw_only=True)
class PriceBook:
    """The lists to look in, in order, for one term, after what the user stated.

    stated: device name to price an hour in ``currency``.
    """

    lists: tuple[PriceList, ...] = ()
    term: Contract = "on-demand"
    stated: Mapping[str, float]
    currency: str = "USD"

    def find(self, gpu: str) -> PriceTag | None:
        """The price of a device, or ``None`` when nobody has given one."""
        if gpu in self.stated:
            return PriceTag(
                gpu=gpu, per_hour=self.stated[gpu], currency=self.currency, term="stated", date=None, source="--price"
            )
        for listing in self.lists:
            for price in listing.prices:
                if price.gpu == gpu and price.term == self.term:
                    return PriceTag(
                        gpu=gpu,
                        per_hour=price.per_hour,
                        currency=listing.currency,
                        term=price.term,
                        date=price.date or listing.date,
                        source=listing.name,
                    )
        return None

    def require(self, gpu: str) -> PriceTag:
        """The price of a device. Raises ``MissingFactError`` that says which lists have one."""
        found = self.find(gpu)
        if found is not None:
            return found
        known = [f"--prices {name} --term {price.term}" for name, price in offers(gpu)]
        where = f"--price {gpu}=2.49" + (", or " + ", or ".join(known[:4]) if known else "")
        looked = ", ".join(listing.name for listing in self.lists) or "no list"
        raise MissingFactError(f"no price of {gpu} is known", because=f"looked for {self.term} in {looked}", hint=where)

    @property
    def gpus(self) -> list[str]:
        """Every device that has a price."""
        listed = [price.gpu for listing in self.lists for price in listing.prices if price.term == self.term]
        return list(dict.fromkeys([*self.stated, *listed]))


def offers(gpu: str) -> list[tuple[str, Price]]:
    """Every price of a device on file, with the name of its list."""
    found = []
    for name in names("prices"):
        listing = load("prices", name, PriceList)
        found += [(name, price) for price in listing.prices if price.gpu == gpu]
    return found


def price_book(
    lists: Iterable[str] = (), stated: Iterable[str] = (), term: Contract = "on-demand", currency: str = "USD"
) -> PriceBook:
    """A price book from list names (or paths) and ``gpu=price`` texts; :data:`DEFAULT_LIST` when no list is named.

    Raises ``UsageError`` for a text that is no price, and when currencies are mixed: nothing is converted.
    """
    loaded = tuple(load("prices", name, PriceList) for name in (list(lists) or [DEFAULT_LIST]))
    given = dict(_stated(text) for text in stated)
    units = {listing.currency for listing in loaded} | ({currency} if given else set())
    if len(units) > 1:
        raise UsageError(f"prices in {' and '.join(sorted(units))} cannot be compared", hint="--currency, or one list")
    return PriceBook(lists=loaded, term=term, stated=given, currency=currency)


def _stated(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        price = float(number)
    except ValueError:
        price = 0.0
    if not name or not 0.0 < price < float("inf"):
        raise UsageError(f"--price {text} is not a price", hint="--price h100-sxm=2.49")
    known = aliases("hardware")
    return known.get(name.lower(), name.lower()), price
