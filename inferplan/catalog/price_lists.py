"""What accelerators cost by the hour: dated, sourced lists, or what the user states. Nothing else is assumed."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from operator import itemgetter
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from inferplan.catalog.bills import Bill, Offer, Tariff
from inferplan.catalog.files import PROFILE, aliases, load, load_hardware, names
from inferplan.errors import MissingFactError, UnknownNameError, UsageError
from inferplan.fields import Text, Words, ask
from inferplan.spec import Spec
from inferplan.units import parse_number, parse_whole

Contract = Literal["on-demand", "spot", "reserved", "owned"]
CONTRACTS: tuple[Contract, ...] = ("on-demand", "spot", "reserved", "owned")
DEFAULT_LISTS: dict[Contract, str] = {
    "on-demand": "aws-us-east-1",
    "spot": "amd-clouds",
    "reserved": "aws-us-east-1",
    "owned": "owned-neocloud",
}
"""The list that is asked first on each term where the user names none.

The one provider whose price feed was read first-hand, where it has the term; else the list with most devices on it.
"""
CHEAPEST, DEAREST = 1e-4, 1e6
"""The bounds of a price of one device for an hour, in any currency: nothing is let for less or more than that."""
_LARGEST_INSTANCE = 100_000
_CONFIDENCE = ("high", "medium", "low")


class Instance(Spec):
    """What is sold for one price: an instance of so many GPUs, or GPUs one by one."""

    gpu: str
    gpus: Annotated[int, Field(ge=1, le=_LARGEST_INSTANCE)] | Literal["any", "unknown"]
    """GPUs of the instance; ``any`` where GPUs are sold one by one, in any number that a host holds; ``unknown`` where
    the source quotes the price of one GPU and not how many are sold together."""
    per_hour: float = Field(gt=0.0, allow_inf_nan=False)
    """Of the whole instance; of one GPU where ``gpus`` is no number."""
    name: str = ""
    term: Contract = "on-demand"
    length: str = ""
    """For how long it is reserved: 3 years."""
    date: datetime.date | None = None
    """When it held, where that differs from the list's own date."""
    note: str = ""

    @field_validator("gpu")
    @classmethod
    def _canonical(cls, name: str) -> str:
        """An alias as the name it stands for; a device that is not on file, such as the user's own, as it is."""
        low = name.lower()
        return low if low in _on_file() else aliases("hardware").get(low, low)

    @model_validator(mode="after")
    def _price_of_a_device(self) -> Self:
        if not _is_price(self.per_hour, self.gpus if isinstance(self.gpus, int) else 1):
            raise ValueError(f"per_hour of one GPU is {CHEAPEST:g} to {DEAREST:,.0f}")
        return self

    @model_validator(mode="after")
    def _length_of_a_reservation(self) -> Self:
        if (self.term == "reserved") != bool(self.length):
            raise ValueError(
                "length says for how long a reservation runs: it belongs to term: reserved, and only there"
            )
        return self


class PriceList(Spec):
    """One provider's prices, one YAML in ``configs/prices``."""

    name: str
    provider: str
    source: str
    date: datetime.date
    currency: str = Field(pattern="^[A-Z]{3}$")
    confidence: Literal["high", "medium", "low"]
    notes: list[str] = []
    instances: list[Instance]

    def offers(self, gpu: str | None = None, term: Contract | None = None) -> list[Offer]:
        """What the list sells, of one GPU and on one term where they are given."""
        return [
            Offer(
                gpu=sold.gpu,
                gpus=sold.gpus if isinstance(sold.gpus, int) else None,
                per_hour=sold.per_hour,
                currency=self.currency,
                term=sold.term,
                source=self.name,
                date=sold.date or self.date,
                instance=sold.name,
                length=sold.length,
                sized=sold.gpus != "unknown",
                note=sold.note,
            )
            for sold in self.instances
            if gpu in (None, sold.gpu) and term in (None, sold.term)
        ]


@dataclass(frozen=True, kw_only=True)
class PriceBook:
    """The lists to look in, in order, for one term, after what the user stated.

    lists: those that say which devices are looked at when nobody names one. stated: device name to its offers in
    ``currency``. everywhere: a device that these lists do not sell is looked for in every list on file.
    """

    lists: tuple[PriceList, ...] = ()
    term: Contract = "on-demand"
    stated: Mapping[str, tuple[Offer, ...]]
    currency: str = "USD"
    everywhere: bool = False

    def offers(self, gpu: str) -> tuple[Offer, ...]:
        """How a device is sold: as the user stated, else by the first list that sells it; empty when none does."""
        if gpu in self.stated:
            return self.stated[gpu]
        if (whole := whole_of(gpu)) is not None:
            return tuple(instance_offer(offer, gpu) for offer in self.offers(whole))
        found = (listing.offers(gpu, self.term) for listing in self._searched())
        return tuple(next((offers for offers in found if offers), ()))

    def _searched(self) -> Iterator[PriceList]:
        yield from self.lists
        if self.everywhere:
            yield from (listing for listing in every_list() if listing.currency == self.currency)

    def tariff(self, gpu: str, devices: int, together: int = 1) -> Tariff | None:
        """How replicas of ``devices`` GPUs are sold; ``None`` when nobody has given a price.

        together: GPUs of one tensor-parallel group, kept in one instance where that can be.
        """
        offers = self.offers(gpu)
        return Tariff(offers=offers, devices=devices, together=together) if offers else None

    def require(self, gpu: str, devices: int, together: int = 1) -> Tariff:
        """How replicas are sold. Raises ``MissingFactError`` that says which lists sell the device on which terms."""
        found = self.tariff(gpu, devices, together)
        if found is None:
            raise MissingFactError(f"no price of {gpu} is known", because=self.searched, hint=self.hint(gpu))
        return found

    def bill(self, gpu: str, devices: int, replicas: int, together: int = 1) -> Bill:
        """What ``replicas`` of ``devices`` GPUs each cost an hour. Raises ``MissingFactError`` without a price.

        together: GPUs of one tensor-parallel group, as for :meth:`tariff`; it counts where a replica is larger than an
        instance.
        """
        return self.require(gpu, devices, together).bill(replicas)

    @property
    def searched(self) -> str:
        """Where prices are looked for: ``"looked for on-demand prices in every list on file"``."""
        where = "every list on file" if self.everywhere else ", ".join(listing.name for listing in self.lists)
        return f"looked for {self.term} prices in {self.currency} in {where or 'no list'}"

    def hint(self, gpu: str) -> str:
        """Where the price of a device could come from: your own, or lists that sell it on other terms."""
        known = [(offer.term != self.term, offer) for listing in every_list() for offer in listing.offers(gpu)]
        known.sort(key=itemgetter(0))  # the term that is asked for first
        listed = dict.fromkeys(f"--prices {o.source}" + f" --term {o.term}" * other for other, o in known)
        return ", or ".join([f"--price {gpu}=2.49 (yours, for a GPU hour)", *islice(listed, 4)])

    def check(self, gpus: Iterable[str]) -> None:
        """Raises ``UsageError`` for a stated price of no device, neither on file nor one of ``gpus``: a typo."""
        looked_at = list(gpus)
        unknown = [gpu for gpu in self.stated if gpu not in looked_at and gpu not in _on_file()]
        if unknown:
            near = (difflib.get_close_matches(unknown[0], of, n=1, cutoff=0.4) for of in (looked_at, _on_file()))
            close = next((names for names in near if names), [])
            raise UsageError(
                f"--price {unknown[0]} is the price of no GPU on file",
                because=f"this command looks at {', '.join(looked_at)}",
                hint=(f"did you mean --price {close[0]}=...? " if close else "") + "see inferplan gpus",
            )

    def remarks(self, gpus: Iterable[str]) -> list[str]:
        """What a buyer who compares these devices has to know of their prices.

        That they are of several providers, and that a stated one is not used because its device is none of these.
        """
        sources: dict[str, list[str]] = {}
        looked_at = list(gpus)
        unused = [gpu for gpu in self.stated if gpu not in looked_at]
        lines = [f"--price {', '.join(unused)} is not used: it is of no GPU that is looked at"] if unused else []
        for gpu in looked_at:
            if gpu not in self.stated and (offers := self.offers(gpu)):
                sources.setdefault(offers[0].source, []).append(gpu)
        named = "; ".join(f"{source}: {', '.join(sold)}" for source, sold in sources.items())
        return [*lines, f"prices of different lists are compared ({named})"] if len(sources) > 1 else lines

    @property
    def gpus(self) -> list[str]:
        """Every device that is stated or that ``lists`` sell."""
        listed = [offer.gpu for listing in self.lists for offer in listing.offers(term=self.term)]
        return list(dict.fromkeys([*self.stated, *listed]))


@dataclass(frozen=True, kw_only=True)
class PricesAsked:
    """What devices cost, as options say it: of :func:`price_book`."""

    lists: tuple[str, ...] = ask(
        "--prices",
        Text(),
        "Price list: a name (inferplan prices) or a YAML; again for a second choice "
        f"[{DEFAULT_LISTS['on-demand']}, then every other].",
        (),
        metavar="LIST",
        several=True,
    )
    stated: tuple[str, ...] = ask(
        "--price",
        Text(),
        "Your own price for an hour: of a GPU (h100=2.49) or of an instance of 8 (b200=113.93/8).",
        (),
        metavar="GPU=PRICE",
        several=True,
    )
    term: Contract = ask(
        "--term",
        Words(CONTRACTS),
        "Terms: a spot instance may be taken away, a reserved one is paid for busy or idle, owned is an estimate.",
        "on-demand",
        shown=True,
    )
    currency: str | None = ask(
        "--currency", Text(), "Currency of --price and of the lists that are searched [USD].", None
    )

    @property
    def book(self) -> PriceBook:
        """As :func:`price_book`, with its errors."""
        return price_book(self.lists, self.stated, self.term, self.currency)


@cache
def _on_file() -> frozenset[str]:
    return frozenset(names("hardware"))


@cache
def every_list() -> tuple[PriceList, ...]:
    """Every list on file, the best documented first: by confidence, then the newest, then by name."""
    loaded = [load("prices", name, PriceList) for name in names("prices")]
    return tuple(sorted(loaded, key=lambda one: (_CONFIDENCE.index(one.confidence), -one.date.toordinal(), one.name)))


def price_book(
    lists: Iterable[str] = (), stated: Iterable[str] = (), term: Contract = "on-demand", currency: str | None = None
) -> PriceBook:
    """A price book from list names (or paths) and texts: ``gpu=2.49`` for a GPU, ``gpu=113.93/8`` for an instance of 8.

    Where no list is named, the one of :data:`DEFAULT_LISTS` and then every list on file, as far as they are in
    ``currency`` (USD unless it is given). Raises ``UsageError`` for a text that is no price, for a currency that is no
    code of three letters (ISO 4217), and when currencies are mixed: none is converted.
    """
    if currency is not None and not (len(currency) == 3 and currency.isascii() and currency.isalpha()):
        raise UsageError(f"--currency {currency!r} is no currency", hint="a code of three letters, such as EUR")
    named = tuple(load("prices", name, PriceList) for name in lists)
    asked = (currency or "USD").upper()
    given = _by_gpu([parse_stated(text, asked, term) for text in stated])
    units = {listing.currency for listing in named} | ({asked} if given or currency or not named else set())
    if len(units) > 1:
        raise UsageError(f"prices in {' and '.join(sorted(units))} cannot be compared", hint="--currency, or one list")
    (unit,) = units
    default = load("prices", DEFAULT_LISTS[term], PriceList)
    loaded = named or ((default,) if default.currency == unit else ())
    return PriceBook(lists=loaded, term=term, stated=given, currency=unit, everywhere=not named)


def whole_of(gpu: str) -> str | None:
    """The device that a MIG instance is a part of; ``None`` for a whole one."""
    device, colon, profile = gpu.rpartition(":")
    return device if colon and PROFILE.fullmatch(profile) else None


def instance_offer(offer: Offer, gpu: str) -> Offer:
    """An offer of whole devices as one of their MIG instances: as many more for the same price, bought together."""
    part = load_hardware(gpu).part
    assert part is not None
    said = f"{part.instances} instances of {part.profile} on each {part.of}; {part.stranded} are in none of them"
    return replace(
        offer,
        gpu=gpu,
        gpus=offer.size * part.instances,
        instance=offer.instance or f"a whole {part.of}",
        note=f"{offer.note}; {said}" if offer.note else said,
    )


def parse_stated(text: str, currency: str = "USD", term: Contract = "on-demand") -> Offer:
    """``"h100=2.49"``, the price of a GPU for an hour, or ``"b200=113.93/8"``, that of an instance of 8.

    Raises ``UsageError`` for what is no price.
    """
    name, _, price = text.rpartition("=")
    number, slash, size = price.partition("/")
    try:
        per_hour, gpus = parse_number(number), parse_whole(size) if slash else None
    except ValueError:
        per_hour, gpus = 0.0, None
    hint = "--price h100-sxm=2.49 (a GPU), or --price b200-hgx=113.93/8 (an instance of 8)"
    if not name or not 0.0 < per_hour < float("inf") or (gpus is not None and not 0 < gpus <= _LARGEST_INSTANCE):
        raise UsageError(f"--price {text} is not a price", hint=hint)
    if not _is_price(per_hour, gpus or 1):
        because = f"an hour of one GPU costs {CHEAPEST:g} to {DEAREST:,.0f} {currency}"
        raise UsageError(f"--price {text} is not a price", because=because, hint=hint)
    said = "stated" if term == "on-demand" else term
    return Offer(gpu=_device(name), gpus=gpus, per_hour=per_hour, currency=currency, term=said, source="--price")


def _is_price(per_hour: float, gpus: int) -> bool:
    """Whether an instance of so many GPUs may cost that."""
    return CHEAPEST <= per_hour / gpus <= DEAREST


def _by_gpu(offers: list[Offer]) -> dict[str, tuple[Offer, ...]]:
    """Offers by device. Raises ``UsageError`` for two prices of the same instance."""
    found: dict[str, tuple[Offer, ...]] = {}
    for offer in offers:
        others = found.get(offer.gpu, ())
        if any(other.gpus == offer.gpus for other in others):
            raise UsageError(f"--price gives two prices of the same instance of {offer.gpu}", hint="leave one out")
        found[offer.gpu] = (*others, offer)
    return found


def _device(name: str) -> str:
    """The device of a name, an alias or a path; a name that is not on file stays as it is: no device will match it."""
    try:
        return load_hardware(name).name
    except UnknownNameError:
        return name.lower()
