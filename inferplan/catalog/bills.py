"""Money as it is sold: replicas packed into whole instances, and what those cost an hour (docs/cost.md)."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np

from inferplan.units import HOURS_PER_MONTH, Num

PRICE_AGE = datetime.timedelta(days=45)
"""The age of an older price is said wherever it is shown: in five months (October 2025 to March 2026) a reserved H100
went from 1.70 to 2.35 USD/h (SemiAnalysis index, reported 2026-04-02), at an even pace a tenth in 45 days."""
STATED = "--price"
"""The source of what the user states."""
_MEANING = {
    "spot": "the provider may take a spot instance away at any time; the figures hold while it runs",
    "reserved": "a reservation is paid for whether it is used or not",
    "owned": "an estimate of the hourly cost of ownership, not an offer",
}
_KINDS = {
    "serverless": "containers by the second, not machines; ask what network links them",
    "marketplace": "a marketplace of many owners; ask who runs these GPUs, where, and what happens when they leave",
    "survey": "prices of several sellers as reported by others; not an offer",
}


def today() -> datetime.date:
    """The day against which prices are old; ``SOURCE_DATE_EPOCH`` (reproducible-builds.org) fixes it."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    return (
        datetime.datetime.fromtimestamp(int(fixed), datetime.UTC).date() if fixed.isdigit() else datetime.date.today()
    )


def price_text(price: float) -> str:
    """A price to the cent, or to the tenth of a cent where it has one: ``"113.93"``, ``"63.296"``."""
    if price < 0.01:
        return f"{price:g}"
    text = f"{price:,.3f}"
    return text.removesuffix("0")


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One thing that is sold by the hour: an instance of so many GPUs, or GPUs one by one.

    gpus: GPUs of an instance; ``None`` where GPUs are sold one by one. per_hour: the price of an instance, or of one
    GPU. host: the most GPUs of one host where they are sold one by one; ``None`` where nobody says. sized: the source
    says how many GPUs are sold together; where it does not, they are counted one by one. kind: what kind of list it is
    on (:data:`inferplan.catalog.price_lists.Kind`); empty for a provider's own and for what the user states.
    """

    gpu: str
    gpus: int | None
    per_hour: float
    currency: str
    term: str
    source: str
    date: datetime.date | None = None
    instance: str = ""
    length: str = ""
    host: int | None = None
    sized: bool = True
    kind: str = ""
    note: str = ""

    @property
    def size(self) -> int:
        """GPUs of one unit that is sold."""
        return self.gpus or 1

    @property
    def per_device(self) -> float:
        """The price of an hour over the GPUs that it buys."""
        return self.per_hour / self.size

    @property
    def most_days(self) -> int | None:
        """Days that it is let for at most; ``None`` where its length is not in days."""
        found = re.search(r"(\d+) days?$", self.length)
        return int(found[1]) if found else None

    @property
    def stale(self) -> bool:
        """Whether the price is older than :data:`PRICE_AGE`; one that the user states has no age."""
        return self.date is not None and today() - self.date > PRICE_AGE

    @property
    def age(self) -> str:
        """``"80 days old"``; empty where it is not :attr:`stale`."""
        return f"{(today() - self.date).days} days old" if self.stale and self.date is not None else ""

    def hosts(self, devices: int, together: int = 1) -> int:
        """Hosts of one replica of ``devices`` GPUs: instances, or as many as its GPUs sold one by one take."""
        if self.gpus is not None:
            return int(self.units(1, devices, together))
        return 1 if self.host is None else -(-devices // self.host)

    def units(self, replicas: Num, devices: int, together: int = 1) -> Num:
        """Units to buy for replicas of ``devices`` GPUs each: instances, or GPUs where they are sold one by one.

        As many replicas share an instance as it holds whole. One that is larger than an instance has instances of its
        own, in equal shares; of the possible shares those are taken that keep groups of ``together`` GPUs (one
        tensor-parallel group) in one instance, where there are any.
        """
        if self.gpus is None:
            return replicas * devices
        if devices <= self.gpus:
            shared: Num = np.ceil(replicas / (self.gpus // devices))
            return shared
        return replicas * _instances_of_one(devices, self.gpus, together)

    @property
    def seller(self) -> str:
        """The list it is on, with its kind where that is not a provider's own: ``"marketplace runpod-community"``."""
        return f"{self.kind} {self.source}" if self.kind else self.source

    @property
    def what(self) -> str:
        """What is sold: ``"p6-b200.48xlarge (8 x b200-hgx)"``, or the GPU where GPUs are sold one by one."""
        return self.gpu if self.gpus is None else f"{self.instance or 'instance'} ({self.gpus} x {self.gpu})"

    def describe(self) -> str:
        """``"p6-b200.48xlarge (8 x b200-hgx) at 113.93 USD/h (on-demand, aws-us-east-1, 2026-09-10, 80 days old)"``."""
        term = f"{self.term}, {self.length}" if self.length else self.term
        facts = ", ".join(str(part) for part in (term, self.seller, self.date, self.age) if part)
        return f"{self.what} at {price_text(self.per_hour)} {self.currency}/h ({facts})"

    @property
    def remarks(self) -> list[str]:
        """What a buyer has to know beside the line: the kind of list, its terms, an instance size that is not known."""
        lines = []
        if self.kind in _KINDS:
            lines.append(f"{self.source}: {_KINDS[self.kind]}")
        if not self.sized:
            lines.append(
                f"{self.source} does not say how many {self.gpu} come in one instance: counted one by one; the bill "
                "is larger if only whole instances are sold"
            )
        if self.note:
            lines.append(f"{self.source} on {self.gpu}: {self.note}")
        if self.term in _MEANING:
            lines.append(f"{self.term}: {_MEANING[self.term]}")
        if (days := self.most_days) is not None and days * 24 < HOURS_PER_MONTH:
            lines.append(f"{self.source} lets {self.gpu} for {days} days at most: no month's bill is on offer")
        return lines


def cheapest_of_each_size(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """Of instances of the same size the cheapest, of equals the first; the largest instance first."""
    found: dict[int | None, Offer] = {}
    for offer in offers:
        if offer.gpus not in found or offer.per_hour < found[offer.gpus].per_hour:
            found[offer.gpus] = offer
    return tuple(sorted(found.values(), key=lambda offer: -offer.size))


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What is bought, and its price of an hour.

    units: instances, or GPUs where they are sold one by one. devices: the GPUs that replicas run on. together: those of
    one tensor-parallel group. listed: the same replicas at the list that prices are compared with, where that is
    another list and sells them.
    """

    offer: Offer
    units: int
    devices: int
    together: int = 1
    listed: Bill | None = None

    @property
    def per_hour(self) -> float:
        """The bill of an hour, idle GPUs included."""
        return self.units * self.offer.per_hour

    @property
    def bought(self) -> int:
        """GPUs that are paid for."""
        return self.units * self.offer.size

    @property
    def idle(self) -> int:
        """GPUs that are paid for and run nothing: the rest of the last instance, or of each."""
        return self.bought - self.devices

    @property
    def across(self) -> bool:
        """Whether a tensor-parallel group is spread over instances: none holds as many GPUs."""
        most = self.offer.gpus or self.offer.host
        return most is not None and most < self.together

    @property
    def remarks(self) -> list[str]:
        """What a buyer has to know beside the figure: of the offer, and of a group that one instance does not hold."""
        line = (
            f"across instances: {self.offer.what} does not hold a tensor-parallel group of {self.together} GPUs; ask "
            "what links these instances before buying"
        )
        return [*self.offer.remarks, *([line] if self.across else [])]

    def describe(self) -> str:
        """``"2 x p6-b200.48xlarge (8 x b200-hgx) at 113.93 USD/h (on-demand, aws-us-east-1, 2026-09-10)"``."""
        return f"{self.units:,} x {self.offer.describe()}"

    @property
    def list_price(self) -> str:
        """``"list: 55.04 USD/h at aws-us-east-1"``; empty without one."""
        if self.listed is None:
            return ""
        return f"list: {self.listed.per_hour:,.2f} {self.offer.currency}/h at {self.listed.offer.source}"

    @property
    def line(self) -> str:
        """:meth:`describe` with :attr:`list_price` behind it."""
        return "; ".join(part for part in (self.describe(), self.list_price) if part)


def no_month(bills: Iterable[Bill]) -> str:
    """``"7 days at most"`` where something is let for less than a month; empty where nothing is."""
    days = [bill.offer.most_days for bill in bills]
    least = min((one for one in days if one is not None), default=None)
    return f"{least} days at most" if least is not None and least * 24 < HOURS_PER_MONTH else ""


@dataclass(frozen=True, kw_only=True)
class Tariff:
    """How replicas of one size are sold: every offer of one GPU, of which the cheapest that holds a replica is taken.

    offers: not empty, in one currency. devices: GPUs of a replica. together: GPUs of one tensor-parallel group. listed:
    the offers of the list that the bill is compared with.
    """

    offers: tuple[Offer, ...]
    devices: int
    together: int = 1
    listed: tuple[Offer, ...] = ()

    @cached_property
    def holding(self) -> tuple[Offer, ...]:
        """The offers that compete, the largest instance first.

        Those that hold a whole replica: one spread over hosts is slower than the links it is priced with. Where none
        does, those that spread it over the fewest, instances before GPUs one by one, whose hosts nobody joins.
        """
        hosts = [offer.hosts(self.devices, self.together) for offer in self.offers]
        spread = [(count, count > 1 and offer.host is not None) for count, offer in zip(hosts, self.offers)]
        kept = [offer for offer, hosts in zip(self.offers, spread) if hosts == min(spread)]
        return cheapest_of_each_size(kept)

    @property
    def currency(self) -> str:
        return self.offers[0].currency

    def cost(self, replicas: Num) -> Num:
        """The bill of an hour for whole numbers of replicas, spare ones too; one number or an array of any shape."""
        costs = [offer.units(replicas, self.devices, self.together) * offer.per_hour for offer in self.holding]
        return reduce(np.minimum, costs)

    def bill(self, replicas: int) -> Bill:
        """What to buy for that many replicas; of offers that cost the same the larger instance."""
        bills = [
            Bill(
                offer=offer,
                units=int(offer.units(replicas, self.devices, self.together)),
                devices=replicas * self.devices,
                together=self.together,
            )
            for offer in self.holding
        ]
        found = min(bills, key=lambda bill: bill.per_hour)
        if not self.listed or self.listed[0].source == found.offer.source:
            return found
        return replace(found, listed=replace(self, offers=self.listed, listed=()).bill(replicas))

    @cached_property
    def joined(self) -> Tariff | None:
        """The same without GPUs that come one by one on hosts of their own: what joins those, nobody says. ``None``
        where that leaves nothing."""
        kept = tuple(offer for offer in self.offers if offer.host is None)
        return replace(self, offers=kept) if kept else None

    @property
    def sellers(self) -> frozenset[str]:
        """The lists that its offers are on."""
        return frozenset(offer.source for offer in self.offers)

    @property
    def lengths(self) -> list[str]:
        """For how long its offers run, the empty text for those without an end."""
        return list(dict.fromkeys(offer.length for offer in self.offers))

    def lasting(self, length: str) -> Tariff:
        """The same for so long alone."""
        return replace(self, offers=tuple(offer for offer in self.offers if offer.length == length))

    def of(self, seller: str) -> Tariff:
        """The same by one list alone."""
        return replace(self, offers=tuple(offer for offer in self.offers if offer.source == seller))

    def filled(self, replicas: int) -> int:
        """The replicas that the bill of so many holds: an instance is paid for whole."""
        bill = self.bill(replicas)
        room = bill.offer.gpus
        return replicas if room is None or room < self.devices else bill.units * (room // self.devices)


def _instances_of_one(devices: int, gpus: int, together: int) -> int:
    """Instances of one replica that is larger than an instance: the fewest that it fills in equal shares."""
    fits = [count for count in range(-(-devices // gpus), devices + 1) if devices % count == 0]
    whole = [count for count in fits if devices // count % together == 0]
    return (whole or fits)[0]
