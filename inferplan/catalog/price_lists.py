"""What accelerators cost by the hour: dated, sourced lists, or what the user states. Nothing else is assumed."""

from __future__ import annotations

import datetime
import difflib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, Self

from inferplan.catalog.bills import STATED, Bill, Offer, Tariff, today
from inferplan.catalog.files import PROFILE, aliases, find, load, load_hardware, names, spec_of
from inferplan.errors import MissingFactError, SpecError, UnknownNameError, UsageError
from inferplan.fields import Text, Words, ask
from inferplan.money import CURRENCIES, Money, parse_money, require_one_amount
from inferplan.spec import Field, Spec, field_validator, model_validator
from inferplan.units import parse_whole

Contract = Literal["on-demand", "spot", "reserved", "owned"]
CONTRACTS: tuple[Contract, ...] = ("on-demand", "spot", "reserved", "owned")
Term = Literal["on-demand", "spot", "reserved", "reserved-1y", "reserved-3y", "owned"]
"""What may be asked for: a contract, or a reservation of a length."""
ASKED_TERMS: tuple[Term, ...] = ("on-demand", "spot", "reserved", "reserved-1y", "reserved-3y", "owned")
_RESERVED: dict[str, str] = {"reserved-1y": "1 year", "reserved-3y": "3 years"}
"""The lengths of those, as the lists write them."""
GPU_HOURS = "GPU hours"
"""What a bill counts of GPUs that are owned and have no price."""
TERMS: tuple[Contract, ...] = ("on-demand", "spot", "reserved")
"""On which things are let."""
Kind = Literal["provider", "serverless", "marketplace", "survey"]
"""provider: what a provider asks for machines of its own. serverless: for containers by the second. marketplace: for
machines of many owners under one roof. survey: what somebody writes that several sellers ask."""
KINDS: tuple[Kind, ...] = ("provider", "serverless", "marketplace", "survey")
"""In the order in which lists are asked that nobody has named: the next kind only for a GPU that the ones before it do
not sell on the term."""
DEFAULT_LISTS: dict[Contract, str] = {
    "on-demand": "aws-us-east-1",
    "spot": "gcp",
    "reserved": "aws-us-east-1",
    "owned": "owned-neocloud",
}
"""The list whose bill stands beside the cheapest one where the user names no list.

The one provider whose price feed was read first-hand, where it has the term; else the list with most devices on it.
What ownership costs depends on who owns: there it is the only one that is asked.
"""
CHEAPEST, DEAREST = 1e-4, 1e6
"""The bounds of a price of one device for an hour, in any currency: nothing is let for less or more than that."""
_LENGTH = re.compile(r"(?:reserv\w+|commit\w+)?[\s:,=_-]*(\d{1,4}|one|three)[\s_-]*(y|yrs?|years?|mo|months?)")
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

    @property
    def line(self) -> tuple[str, ...]:
        """What a list sells once, at one price."""
        return self.gpu, str(self.gpus), self.name, self.term, self.length

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
    kind: Kind = "provider"
    host: Annotated[int, Field(ge=1, le=_LARGEST_INSTANCE)] | None = None
    """The most GPUs of one host, where they are sold one by one; left out where the source does not say."""
    notes: list[str] = []
    instances: list[Instance]

    @model_validator(mode="after")
    def _one_price_of_each(self) -> Self:
        """Bills would take the cheaper of two prices, whichever of them still holds."""
        twice = [line for line, count in Counter(sold.line for sold in self.instances).items() if count > 1]
        if twice:
            gpu, gpus, name, *contract = twice[0]
            said = " ".join(filter(None, (gpu, f"x {gpus}", name, *contract)))
            raise ValueError(f"instances has {said} more than once; names or terms tell two instances apart")
        return self

    @property
    def seller(self) -> str:
        """Its name, with its kind where that is not a provider: ``"survey rental-3-year"``."""
        return self.name if self.kind == "provider" else f"{self.kind} {self.name}"

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
                host=self.host if sold.gpus == "any" else None,
                kind="" if self.kind == "provider" else self.kind,
                sized=sold.gpus != "unknown",
                note=sold.note,
            )
            for sold in self.instances
            if gpu in (None, sold.gpu) and term in (None, sold.term)
        ]


@dataclass(frozen=True, kw_only=True)
class PriceBook:
    """The lists to look in for one term, beside what the user stated: of what they sell the cheapest bill is taken.

    lists: in the order of equals. named: the user has chosen them; else they are asked by :data:`KINDS`. reference: the
    list whose bill stands beside. length: of the reservations that count; empty for any. stated: device name to its
    offers in ``currency``.
    """

    lists: tuple[PriceList, ...] = ()
    named: bool = False
    reference: PriceList | None = None
    term: Contract = "on-demand"
    length: str = ""
    stated: Mapping[str, tuple[Offer, ...]]
    currency: str = "USD"

    def offers(self, gpu: str) -> tuple[Offer, ...]:
        """How a device is sold: as the user stated, else by every list that is asked; empty when none sells it."""
        if gpu in self.stated:
            return self.stated[gpu]
        if (whole := whole_of(gpu)) is not None:
            return tuple(instance_offer(offer, gpu) for offer in self.offers(whole))
        return tuple(next((offers for lists in self._asked if (offers := self._sold(lists, gpu))), ()))

    @property
    def _asked(self) -> list[tuple[PriceList, ...]]:
        """The lists in the groups in which they are asked, one after another."""
        if self.named:
            return [self.lists]
        return [tuple(listing for listing in self.lists if listing.kind == kind) for kind in KINDS]

    def _sold(self, lists: Iterable[PriceList], gpu: str | None = None) -> list[Offer]:
        return [offer for listing in lists for offer in listing.offers(gpu, self.term) if self._lasts(offer)]

    def _lasts(self, offer: Offer) -> bool:
        return self.length in ("", offer.length)

    def on(self, term: Contract) -> PriceBook:
        """The same lists on other terms, without what the user stated."""
        reference = self.reference if self.named else _reference(term, self.currency)
        return replace(self, term=term, length="", reference=reference, stated={})

    def tariff(self, gpu: str, devices: int, together: int = 1) -> Tariff | None:
        """How replicas of ``devices`` GPUs are sold; ``None`` when nobody has given a price.

        together: GPUs of one tensor-parallel group, kept in one instance where that can be.
        """
        offers = self.offers(gpu)
        if not offers:
            return None
        return Tariff(offers=offers, devices=devices, together=together, listed=self.listed(gpu))

    def listed(self, gpu: str) -> tuple[Offer, ...]:
        """How ``reference`` sells a device whose price the user has not stated."""
        if self.reference is None or gpu in self.stated:
            return ()
        return replace(self, lists=(self.reference,), named=True, reference=None).offers(gpu)

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
        where = ", ".join(listing.name for listing in self.lists) if self.named else "every list on file"
        return f"looked for {self.asked} prices in {self.currency} in {where or 'no list'}"

    @property
    def asked(self) -> str:
        """The term as it is asked for: ``"reserved-3y"``."""
        return _term_of(self.term, self.length)

    def hint(self, gpu: str) -> str:
        """Where the price of a device could come from: your own, or lists that sell it on other terms."""
        lists = [listing for listing in every_list() if listing.currency == self.currency]
        known = [offer for listing in lists for offer in listing.offers(gpu)]
        same = [offer.term == self.term and self._lasts(offer) for offer in known]
        terms = [self.asked if alike else _term_of(offer.term, offer.length) for alike, offer in zip(same, known)]
        found = sorted(zip(terms, known), key=lambda one: (one[0] != self.asked, one[1].term != self.term))
        listed = dict.fromkeys(f"--prices {o.source}" + f" --term {term}" * (term != self.asked) for term, o in found)
        others = [] if lists else ["without --currency: prices on file are in " + ", ".join(_currencies())]
        own = f"--price {gpu}=2.49 (yours, in {self.currency} for a GPU hour)"
        return ", or ".join([own, *islice(listed, 4), *others])

    def require_currency(self, option: str, named: str | None) -> None:
        """Raise ``UsageError`` for money in a currency that is not that of the prices: none is converted."""
        if named is not None and named != self.currency:
            raise UsageError(
                f"{option} is in {named}, and the prices are in {self.currency}",
                because="no currency is converted",
                hint=f"the amount in {self.currency}, or --currency {named} with prices in it",
            )

    def per_hour(self, option: str, cost: Money | float | None) -> float | None:
        """A cost of an option in the currency of the prices. Raises ``UsageError`` for another currency."""
        if not isinstance(cost, Money):
            return cost
        self.require_currency(option, cost.currency)
        return cost.per_hour

    def counting(self, owned: Iterable[str]) -> PriceBook:
        """The same; where all GPUs are owned and no price of any is on file, with each of their hours counted as one.

        The plan then takes the fewest of them, and its bill is in hours of GPUs. What the user states of prices stays.
        """
        names = list(owned)
        if not names or self.named or self.stated or any(self.offers(gpu) for gpu in names):
            return self
        stated = {
            gpu: (Offer(gpu=gpu, gpus=None, per_hour=1.0, currency=GPU_HOURS, term="yours", source="no price given"),)
            for gpu in names
        }
        return replace(self, lists=(), named=False, reference=None, stated=stated, currency=GPU_HOURS)

    def check(self, gpus: Iterable[str]) -> None:
        """Raises ``UsageError`` for a stated price of no device, neither on file nor one of ``gpus``: a typo."""
        looked_at = list(gpus)
        unknown = [gpu for gpu in self.stated if gpu not in looked_at and gpu not in _on_file()]
        if unknown:
            near = (difflib.get_close_matches(unknown[0], of, n=1, cutoff=0.4) for of in (looked_at, _on_file()))
            close = next((names for names in near if names), [])
            raise UsageError(
                f"--price {unknown[0]}: no GPU of that name is on file",
                because=f"this command looks at {', '.join(looked_at)}",
                hint=(f"did you mean --price {close[0]}=...? " if close else "") + "see inferplan gpus",
            )

    def remarks(self, gpus: Iterable[str]) -> list[str]:
        """What a buyer who compares these devices has to know of their prices.

        That lists are compared, that a stated price is not used because its device is none of these, and that lists
        which were named are not because prices of all of them are stated.
        """
        looked_at = list(gpus)
        if self.currency == GPU_HOURS:
            known = " ".join(f"--price {gpu}=0.50" for gpu in self.stated)
            return [f"no price of {', '.join(self.stated)}: costs count hours of GPUs; {known} for money"]
        unused = [gpu for gpu in self.stated if gpu not in looked_at]
        years = self.without_years(looked_at) if self.term == "reserved" else []
        lines = [f"--price {', '.join(unused)} is not used: no candidate has that GPU"] if unused else []
        if self.named and looked_at and all(gpu in self.stated for gpu in looked_at):
            lines.append("--prices is not used: --price states the price of every GPU considered")
        lists = {offer.source for gpu in looked_at if gpu not in self.stated for offer in self.offers(gpu)}
        if len(lists) > 1:
            where = f"the {len(lists)} lists" if self.named else f"{len(lists)} price lists on file"
            lines.append(
                f"the cheapest {self.asked} bill of {where} ({', '.join(sorted(lists))}); --prices NAME for one"
            )
        return [*lines, *years]

    def without_years(self, gpus: Iterable[str]) -> list[str]:
        """The devices whose reservations here all run for days, and the lists that have them for years."""
        found: dict[str, list[str]] = {}
        for gpu in gpus:
            offers = [] if gpu in self.stated else self.offers(gpu)
            if not offers or any("year" in offer.length for offer in offers):
                continue
            elsewhere = {
                f"; {listing.seller} has {offer.length}: --prices {listing.name}": None
                for listing in every_list()
                if listing.currency == self.currency
                for offer in listing.offers(whole_of(gpu) or gpu, "reserved")
                if "year" in offer.length
            }
            found.setdefault("".join(elsewhere), []).append(gpu)
        where = "in the lists asked" if self.named else "from a provider is on file"
        return [
            f"no 1-year or 3-year price {where if other else 'is on file'} for {', '.join(names)}{other}"
            for other, names in found.items()
        ]

    @property
    def gpus(self) -> list[str]:
        """Every device that is stated, or that the first lists to be asked sell: where none is named, providers."""
        listed = next((offers for lists in self._asked if (offers := self._sold(lists))), [])
        return list(dict.fromkeys([*self.stated, *(offer.gpu for offer in listed)]))


@dataclass(frozen=True, kw_only=True)
class PricesAsked:
    """What devices cost, as options say it: of :func:`price_book`."""

    lists: tuple[str, ...] = ask(
        "--prices",
        Text(),
        "Price list: a name (inferplan prices) or a YAML; repeat for more. The cheapest bill is taken [all lists on "
        "file].",
        (),
        metavar="LIST",
        several=True,
    )
    stated: tuple[str, ...] = ask(
        "--price",
        Text(),
        "Your own price per hour: for a GPU (h100=2.49) or an instance of 8 (b200=113.93/8).",
        (),
        metavar="GPU=PRICE",
        several=True,
    )
    term: Term = ask(
        "--term",
        Words(ASKED_TERMS),
        "Terms: a spot instance may be taken away, a reserved one is paid for busy or idle (-1y, -3y: so long alone), "
        "owned is an estimate.",
        "on-demand",
        shown=True,
    )
    currency: str | None = ask("--currency", Text(), "Currency of --price and of the price lists [USD].", None)

    @property
    def book(self) -> PriceBook:
        """As :func:`price_book`, with its errors."""
        return price_book(self.lists, self.stated, self.term, self.currency)


@cache
def _on_file() -> frozenset[str]:
    return frozenset(names("hardware"))


def own_folder() -> Path | None:
    """Where price lists of the user's own lie: ``INFERPLAN_PRICE_FOLDER``, else ``inferplan/prices`` in
    ``XDG_CONFIG_HOME`` or ``~/.config``. ``None`` where the first is empty, or nobody's home is known.
    """
    named, configs = os.environ.get("INFERPLAN_PRICE_FOLDER"), os.environ.get("XDG_CONFIG_HOME", "")
    if named == "":
        return None
    with suppress(RuntimeError):  # nobody's home
        return Path(named or Path(configs if os.path.isabs(configs) else Path.home() / ".config") / "inferplan/prices")
    return None


def _own_files() -> dict[str, Path]:
    """The user's own lists by name."""
    folder = own_folder()
    try:
        return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    except OSError:
        return {}


def every_list() -> tuple[PriceList, ...]:
    """Every list on file, the best documented first: by confidence, then the newest, then by name. One of the user's
    own stands for the shipped one of its name.
    """
    own = [(str(path), path.stat().st_mtime_ns) for path in _own_files().values()]
    return _lists(tuple(own))


@cache
def _lists(own: tuple[tuple[str, int], ...]) -> tuple[PriceList, ...]:
    files = {name: find("prices", name) for name in names("prices")} | {Path(path).stem: Path(path) for path, _ in own}
    loaded = [spec_of(path, PriceList) for path in files.values()]
    return tuple(sorted(loaded, key=lambda one: (_CONFIDENCE.index(one.confidence), -one.date.toordinal(), one.name)))


def _list_of(name: str) -> PriceList:
    """The list of a name, the user's own before a shipped one, or of a path."""
    own = _own_files().get(name)
    if own is not None:
        return spec_of(own, PriceList)
    found = load("prices", name, PriceList)
    if name not in names("prices"):  # shipped lists were checked when they were shipped, whatever the clock says
        require_dated(found, name)
    return found


def _currencies() -> list[str]:
    """The currencies of the lists on file."""
    return sorted({listing.currency for listing in every_list()})


def require_dated(listing: PriceList, where: str) -> None:
    """Raise ``SpecError`` for prices of a day to come, which would never be old; tomorrow is today further east."""
    newest = max((sold.date for sold in listing.instances if sold.date), default=listing.date)
    if (day := max(newest, listing.date)) > (now := today()) + datetime.timedelta(days=1):
        because = f"today is {now}"
        raise SpecError(f"{where}: the date {day} of {listing.name!r} is yet to come", because, f"date: {now}")


def price_book(
    lists: Iterable[str] = (), stated: Iterable[str] = (), term: Term = "on-demand", currency: str | None = None
) -> PriceBook:
    """A price book from list names (or paths) and texts: ``gpu=2.49`` for a GPU, ``gpu=113.93/8`` for an instance of 8.

    Where no list is named, every list on file that is in ``currency`` (USD unless it is given). Raises ``UsageError``
    for a text that is no price, for a currency that is none of ISO 4217, and when currencies are
    mixed: none is converted.
    """
    if currency is not None and currency.upper() not in CURRENCIES:
        raise UsageError(f"--currency {currency!r} is no currency", hint="a code of three letters, such as EUR")
    named = tuple(map(_list_of, lists))
    asked, (contract, length) = (currency or "USD").upper(), _contract_of(term)
    given = _by_gpu([parse_stated(text, asked, contract) for text in stated])
    units = {listing.currency for listing in named} | ({asked} if given or currency or not named else set())
    if len(units) > 1:
        own = {listing.currency for listing in named}
        hint = f"--currency {own.pop()}, or leave it out" if len(own) == 1 else "lists in one currency"
        raise UsageError(f"prices in {' and '.join(sorted(units))} cannot be compared", hint=hint)
    (unit,) = units
    reference = named[0] if named else _reference(contract, unit)
    every = tuple(listing for listing in every_list() if listing.currency == unit)
    if contract == "owned":
        every = () if reference is None else (reference,)
    return PriceBook(
        lists=named or every,
        named=bool(named),
        reference=reference,
        term=contract,
        length=length,
        stated=given,
        currency=unit,
    )


def _contract_of(term: Term) -> tuple[Contract, str]:
    """The contract of a term, and the length of a reservation where it states one."""
    if term in _RESERVED:
        return "reserved", _RESERVED[term]
    return next(one for one in CONTRACTS if one == term), ""


def _term_of(contract: str, length: str) -> str:
    """The term that asks for a contract of a length."""
    return next((one for one in ASKED_TERMS if length and _RESERVED.get(one) == length), contract)


def term_in_words(text: str) -> Term | None:
    """``"reserved-3y"`` of the ways to write it: ``3y``, ``3-year``, ``reserved, 3 years``, ``36 months``. ``None`` for
    what is none of them."""
    found = _LENGTH.fullmatch(text.strip().lower())
    if found is None:
        return None
    months = {"one": 1, "three": 3}.get(found[1]) or int(found[1])
    months *= 12 if found[2].startswith("y") else 1
    return next((one for one in ASKED_TERMS if one == f"reserved-{months // 12}y" and months % 12 == 0), None)


def _reference(term: Contract, currency: str) -> PriceList | None:
    """The list of :data:`DEFAULT_LISTS`, where it is in the currency."""
    found = _list_of(DEFAULT_LISTS[term])
    return found if found.currency == currency else None


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
    number, _, size = price.rpartition("/")
    sized = number and size.strip().isdigit()
    try:
        gpus = parse_whole(size) if sized else None
        money = parse_money(number if sized else price, (gpus or 1) * _dearest(currency))
    except ValueError as error:
        require_one_amount("--price", text, error)
        money, gpus = Money(0.0), None
    per_hour, unit = money.per_hour, money.currency
    hint = "--price h100-sxm=2.49 (a GPU), or --price b200-hgx=113.93/8 (an instance of 8)"
    if not name or not 0.0 < per_hour < float("inf") or (gpus is not None and not 0 < gpus <= _LARGEST_INSTANCE):
        raise UsageError(f"--price {text} is not a price", hint=hint)
    if unit not in (None, currency):
        raise UsageError(f"--price {text} is in {unit}, and prices are in {currency}", hint=f"--currency {unit}")
    if not _is_price(per_hour, gpus or 1):
        because = f"an hour of one GPU costs {CHEAPEST:g} to {DEAREST:,.0f} {currency}"
        raise UsageError(f"--price {text} is not a price", because=because, hint=hint)
    said = "stated" if term == "on-demand" else term
    return Offer(gpu=_device(name), gpus=gpus, per_hour=per_hour, currency=currency, term=said, source=STATED)


def _dearest(currency: str) -> float:
    """What nobody pays for an hour of one GPU, so that 1.006 is a dollar and a little."""
    return 1000.0 if currency in ("USD", "EUR", "GBP") else DEAREST


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
