"""A file of months as a :class:`inferplan.horizon.question.Question`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np

from inferplan.catalog.files import at_line, find, spec_of
from inferplan.catalog.price_lists import price_book
from inferplan.errors import InferplanError, InputFileError, SpecError
from inferplan.horizon.capacity import Capacities
from inferplan.horizon.file import (
    HOURS_OF_A_WEEK,
    DemandSpec,
    HorizonSpec,
    OfferSpec,
)
from inferplan.horizon.forecast import forecast
from inferplan.horizon.question import Arc, Have, Limits, Offer, Pool, Question, Stream
from inferplan.units import HOURS_PER_MONTH, Array

_Value = TypeVar("_Value")
Field = list[str | int]
"""Where something stands in the file."""
_ALWAYS = "all hours"
"""The level of a file without levels."""


def load_horizon(name: str) -> tuple[Path, HorizonSpec]:
    """The file of a name or a path. Raises ``SpecError`` with file and line."""
    path = find("horizons", name)
    return path, spec_of(path, HorizonSpec)


@dataclass(frozen=True)
class _Reader:
    """A file and its path, for errors with a line."""

    path: Path
    spec: HorizonSpec

    def refuse(self, field: Field, what: str, because: str = "", hint: str = "") -> NoReturn:
        raise SpecError(f"{at_line(self.path, *field)}: {what}", because=because, hint=hint)

    def known(self, field: Field, what: str, name: str, names: Sequence[str]) -> str:
        """A name that has to be one of these."""
        if name not in names:
            self.refuse(field, f"{name!r} is no {what} of this file", hint=f"one of {', '.join(names)}")
        return name

    def month(self, text: str) -> int:
        """Months from the beginning; before it negative."""

        def count(month: str) -> int:
            return int(month[:4]) * 12 + int(month[5:])

        return count(text) - count(self.spec.begin)

    @property
    def months(self) -> tuple[str, ...]:
        first = int(self.spec.begin[:4]) * 12 + int(self.spec.begin[5:]) - 1
        return tuple(f"{one // 12:04d}-{one % 12 + 1:02d}" for one in range(first, first + self.spec.months))

    @property
    def scenarios(self) -> list[str]:
        return list(self.spec.scenarios)

    @property
    def hours(self) -> dict[str, float]:
        """The share of all hours of each level."""
        found = self.spec.hours or {_ALWAYS: HOURS_OF_A_WEEK}
        total = sum(found.values())
        if any(not isfinite(one) or one <= 0 for one in found.values()) or abs(total - HOURS_OF_A_WEEK) > 1e-6:
            self.refuse(
                ["hours"],
                f"the hours of the levels are {total:g} in a week, which has {HOURS_OF_A_WEEK:g}",
                hint="hours: {busy: 25, day: 75, night: 68}",
            )
        return {name: one / HOURS_OF_A_WEEK for name, one in found.items()}

    @property
    def regions(self) -> list[str]:
        """Those in which something is sold or there."""
        sold = [region for offer in self.spec.offers for region in _listed(offer.region)]
        return list(dict.fromkeys([*sold, *(one.region for one in self.spec.have)]))

    def pools(self) -> tuple[Pool, ...]:
        """Kinds in regions that somebody sells, or that are there."""
        found = [Pool(region, offer.kind) for offer in self.spec.offers for region in _listed(offer.region)]
        found += [Pool(one.region, one.kind) for one in self.spec.have]
        return tuple(dict.fromkeys(found))

    def by_scenario(self, field: Field, value: float | Mapping[str, float]) -> Array:
        """One number for all scenarios, or one of each."""
        if not isinstance(value, Mapping):
            return np.full(len(self.scenarios), float(value))
        for name in value:
            self.known([*field, name], "scenario", name, self.scenarios)
        if missing := [name for name in self.scenarios if name not in value]:
            self.refuse(field, f"nothing is said of scenario {missing[0]!r}", hint="a number of each, or one of all")
        return np.array([float(value[name]) for name in self.scenarios])


def _listed(value: _Value | list[_Value]) -> list[_Value]:
    return value if isinstance(value, list) else [value]


def question_of(path: Path, spec: HorizonSpec, capacities: Capacities) -> Question:
    """The question of a file. Raises ``SpecError`` with the line of what nobody can answer, and as ``capacities``."""
    reader = _Reader(path, spec)
    chance = np.array([one.chance for one in spec.scenarios.values()])
    if abs(chance.sum() - 1) > 1e-6:
        reader.refuse(
            ["scenarios"], f"the chances of the scenarios make {chance.sum():g}, not 1", hint="low: {chance: 0.3}"
        )
    pools, hours = reader.pools(), reader.hours
    named: list[tuple[Field, str]] = [(["offers", place], one.kind) for place, one in enumerate(spec.offers)]
    named += [(["have", place], one.kind) for place, one in enumerate(spec.have)]
    for field, kind in named:
        reader.known(field, "kind", kind, list(spec.kinds))
    _require_heard(reader)
    streams, rates = _streams(reader, hours)
    return Question(
        months=reader.months,
        scenarios=tuple(spec.scenarios),
        chance=chance / chance.sum(),
        levels=tuple(hours),
        hours=np.array([*hours.values()]),
        streams=streams,
        rates=rates,
        pools=pools,
        arcs=_arcs(reader, pools, capacities),
        offers=_offers(reader, pools),
        have=_have(reader, pools),
        limits=_limits(reader, pools),
        spot=np.array([one.spot for one in spec.scenarios.values()]),
        price=np.array([one.price for one in spec.scenarios.values()]),
        paid=spec.beyond == "paid",
        currency=spec.currency,
    )


_PLANNED = ("model", "prompt", "output", "ttft", "tpot", "e2e", "percentile", "utilisation")
"""Fields of a model that replicas without a rate are planned by."""


def _require_heard(reader: _Reader) -> None:
    """Raise ``SpecError`` for what would change nothing of the answer."""
    spec = reader.spec
    spots = [place for place, one in enumerate(spec.offers) if one.term == "spot"]
    endless = [place for place in spots if spec.offers[place].most is None]
    for name, scenario in spec.scenarios.items():
        if scenario.spot < 1 and (endless or not spots):
            field: Field = ["offers", endless[0]] if endless else ["scenarios", name]
            reader.refuse(
                field,
                f"scenario {name!r} has a share of a stock of spot machines that has no end" * bool(endless)
                or "spot is a share of the stock of spot machines, and no offer has any",
                hint="most: 20 of the offer" if endless else "leave spot out",
            )
        if scenario.quantile is not None and all(one.log is None for one in spec.demand):
            reader.refuse(["scenarios", name], "quantile needs the forecast of a log, and there is none")
    sold = {one.kind for one in spec.offers} | {one.kind for one in spec.have}
    if idle := [kind for kind in spec.kinds if kind not in sold]:
        reader.refuse(
            ["kinds", idle[0]],
            f"no offer sells {idle[0]}, and there is none in stock",
            hint="an offer, or leave it out",
        )
    for name, model in spec.models.items():
        rated = [kind for kind, one in model.replicas.items() if one.rate is not None]
        given = [one for one in _PLANNED if one in model.model_fields_set]
        if given and len(rated) == len(model.replicas):
            reader.refuse(
                ["models", name, given[0]],
                f"{given[0]} plans replicas, and all of {name} have a rate",
                hint="leave it out",
            )
        if quantised := [kind for kind in rated if model.replicas[kind].quant is not None]:
            at: Field = ["models", name, "replicas", quantised[0]]
            reader.refuse(at, "quant plans a replica, and this one has a rate", hint="leave it out")


def _streams(reader: _Reader, hours: Mapping[str, float]) -> tuple[tuple[Stream, ...], Array]:
    """Who asks, and requests a second by month, scenario and level."""
    spec, streams, rates = reader.spec, list[Stream](), list[Array]()
    for place, one in enumerate(spec.demand):
        field: Field = ["demand", place]
        model = spec.models[reader.known(field, "model", one.model, list(spec.models))]
        stream = Stream(one.model, one.region, model.penalty)
        if any((other.model, other.region) == (one.model, one.region) for other in streams):
            reader.refuse(field, f"the demand for {stream.name} is given twice", hint="one row of each")
        streams.append(stream)
        rates.append(_from_log(reader, place, one, hours) if one.log is not None else _path(reader, place, one, hours))
    if silent := [name for name in spec.models if all(one.model != name for one in spec.demand)]:
        reader.refuse(
            ["models", silent[0]], f"there is no demand for {silent[0]}", hint="a row of demand, or leave it out"
        )
    return tuple(streams), np.array(rates)


def _path(reader: _Reader, place: int, one: DemandSpec, hours: Mapping[str, float]) -> Array:
    """The rate of the first month, compounded, with its steps, at each level."""
    field: Field = ["demand", place]
    months = np.arange(reader.spec.months)
    if (one.rate is None) == (one.people is None):
        reader.refuse(
            field,
            "the busy hour's load is given " + ("twice" if one.rate is not None else "not at all"),
            hint="rate: 12, or people: 2000 and requests_an_hour: 6, or log: requests.csv",
        )
    if (one.people is None) != (one.requests_an_hour is None):
        reader.refuse(field, "people and requests_an_hour go together", hint="people: 2000 and requests_an_hour: 6")
    rate = one.rate if one.people is None else one.people * (one.requests_an_hour or 0.0) / 3600
    assert rate is not None
    growth = reader.by_scenario([*field, "growth"], one.growth)
    found = rate * (1 + growth[None, :]) ** months[:, None]
    found = found * _stepped(reader, place, one)
    for level in one.levels:
        reader.known([*field, "levels", level], "level", level, list(hours))
    if missing := [level for level in hours if level not in one.levels] if one.levels else []:
        reader.refuse([*field, "levels"], f"nothing is said of level {missing[0]!r}", hint="a share of the busy hour")
    if not one.levels and len(hours) > 1:
        reader.refuse(
            field, "the load of each level is not known", hint=f"levels: {{{', '.join(f'{n}: 1' for n in hours)}}}"
        )
    levels = np.array([one.levels.get(level, 1.0) for level in hours])
    path: Array = found[:, :, None] * levels[None, None, :]
    if not np.all(np.isfinite(path)) or path.max() > 1e9:
        reader.refuse(field, f"the load grows to {path.max():.3g} requests/s", hint="growth: of a month, such as 0.03")
    return path


def _from_log(reader: _Reader, place: int, one: DemandSpec, hours: Mapping[str, float]) -> Array:
    """The forecast of a log at the quantile of each scenario."""
    field: Field = ["demand", place]
    given = [name for name in ("rate", "people", "growth", "levels") if name in one.model_fields_set]
    if given:
        reader.refuse(field, f"log and {given[0]} both state the demand", hint=f"leave {given[0]} out")
    quantiles = [one.quantile for one in reader.spec.scenarios.values()]
    if None in quantiles:
        name = reader.scenarios[quantiles.index(None)]
        reader.refuse(
            ["scenarios", name],
            f"the forecast of a log needs the quantile of scenario {name!r}",
            hint="low: {chance: 0.3, quantile: 0.1}",
        )
    path = Path(one.log or "")
    path = path if path.is_absolute() else reader.path.parent / path
    try:
        found = forecast(path, reader.spec.begin, reader.spec.months, [*filter(None, quantiles)], [*hours.values()])
    except InputFileError:
        raise
    except InferplanError as error:
        reader.refuse([*field, "log"], error.what, error.because, error.hint)
    for other in reader.spec.demand:
        rising = [other.levels.get(level, 1.0) for level in hours]
        if rising != sorted(rising, reverse=True):
            reader.refuse(
                ["hours"], "a log deals its hours to the levels by rank, the busiest first", hint="busy first"
            )
    stepped: Array = found * _stepped(reader, place, one)[:, :, None]
    return stepped


def _stepped(reader: _Reader, place: int, one: DemandSpec) -> Array:
    """The factors of steps, by month and scenario."""
    field: Field = ["demand", place]
    months, found = np.arange(reader.spec.months), np.ones((reader.spec.months, len(reader.scenarios)))
    for step, jump in enumerate(one.steps):
        at: Field = [*field, "steps", step]
        if not 0 < reader.month(jump.month) < reader.spec.months:
            reader.refuse(
                at, f"a step in {jump.month} is not between the first month and the last", hint="another month"
            )
        factor = reader.by_scenario([*at, "factor"], jump.factor)
        found[months >= reader.month(jump.month)] *= factor
    return found


def _arcs(reader: _Reader, pools: Sequence[Pool], capacities: Capacities) -> tuple[Arc, ...]:
    """Which replicas may serve whom."""
    capacities.expect(reader.spec)
    spec, found = reader.spec, list[Arc]()
    for place, one in enumerate(spec.demand):
        field: Field = ["demand", place]
        regions = [one.region] if one.served_in is None else list(dict.fromkeys(one.served_in))
        for region in regions:
            if region not in reader.regions:
                because = "there are no machines, neither offered nor in stock" if region == one.region else ""
                if because and one.served_in is None:
                    reader.refuse(field, f"{region}: {because}", hint=f"served_in: [{', '.join(reader.regions)}]")
                reader.known([*field, "served_in"], "region with machines", region, reader.regions)
        mine = [
            (index, pool)
            for index, pool in enumerate(pools)
            if pool.region in regions and pool.kind in spec.models[one.model].replicas
        ]
        if not mine:
            reader.refuse(
                field,
                f"no machine in {', '.join(regions)} has replicas of {one.model}",
                because=f"it runs on {', '.join(spec.models[one.model].replicas)}",
                hint="an offer of one of these kinds there, or another kind under replicas:",
            )
        for index, pool in mine:
            replica = spec.models[one.model].replicas[pool.kind]
            fit = spec.kinds[pool.kind].gpus // replica.gpus
            at: Field = ["models", one.model, "replicas", pool.kind]
            if not fit:
                reader.refuse(
                    at,
                    f"a replica on {replica.gpus} GPUs is larger than a machine of {spec.kinds[pool.kind].gpus}",
                    hint=f"gpus: {replica.gpus} of the kind, because the machines of one kind have the same size",
                )
            try:
                rate = capacities.rate(spec, one.model, pool.kind)
            except InferplanError as error:
                error.what = f"{at_line(reader.path, *at)}: {error.what}"
                raise
            found.append(Arc(place, index, rate, 1.0 / fit))
    for name, model in spec.models.items():
        for kind in model.replicas:
            reader.known(["models", name, "replicas", kind], "kind", kind, list(spec.kinds))
    return tuple(found)


def _offers(reader: _Reader, pools: Sequence[Pool]) -> tuple[Offer, ...]:
    found, seen = list[Offer](), set[tuple[object, ...]]()
    for place, one in enumerate(reader.spec.offers):
        _require_term(reader, place, one)
        per_hour = _price(reader, place, one)
        cost = per_hour * HOURS_PER_MONTH + one.hosting
        if one.term == "owned":
            assert one.price is not None and one.months is not None and one.power is not None
            energy = one.power / 1000 * one.pue * (one.energy or 0.0) * HOURS_PER_MONTH
            cost = one.price / one.months + energy + one.hosting
        first = max(0 if one.first is None else reader.month(one.first), 0) + one.lead
        last = 10**6 if one.last is None else reader.month(one.last) - 1 + one.lead
        if one.last is not None and one.first is not None and reader.month(one.last) <= reader.month(one.first):
            reader.refuse(["offers", place], f"it ends in {one.last}, before it begins in {one.first}")
        if first >= reader.spec.months or last < 0:
            when = "after the last month" if first >= reader.spec.months else "before the first"
            reader.refuse(["offers", place], f"this offer can never be used: it is {when}", hint="leave it out")
        ratio = 1.0
        if one.term == "spot":
            assert one.interruptions is not None and one.restart is not None
            ratio = exp(min(one.interruptions * one.restart / 3600, 700.0))
            if ratio > 100:
                reader.refuse(
                    ["offers", place],
                    f"a spot machine is up for {1 / ratio:.2g} of its time",
                    because=f"{one.interruptions:g} interruptions an hour, and {one.restart:g} s to start again",
                    hint="leave the offer out",
                )
        for region in _listed(one.region):
            key = (one.kind, region, one.term, one.months, one.first, one.last, cost)
            if key in seen:
                reader.refuse(["offers", place], "the same offer is given twice", hint="leave one out")
            seen.add(key)
            found.append(
                Offer(
                    row=place,
                    pool=pools.index(Pool(region, one.kind)),
                    term=one.term,
                    cost=cost,
                    months=one.months,
                    first=first,
                    last=last,
                    most=inf if one.most is None else one.most,
                    power=one.power or 0.0,
                    ratio=ratio,
                    interruptions=(one.interruptions or 0.0) / 3600,
                    restart=one.restart or 0.0,
                )
            )
    return tuple(found)


_NEEDED = {
    "on-demand": (),
    "spot": ("interruptions", "restart"),
    "reserved": ("months",),
    "owned": ("months", "price", "power", "energy"),
}
"""Fields that an offer of each term needs; of those of others it has none."""


def _require_term(reader: _Reader, place: int, one: OfferSpec) -> None:
    """Raise ``SpecError`` for fields that a term lacks, or that mean nothing of it."""
    needed = _NEEDED[one.term]
    values = {name: getattr(one, name) for name in ("months", "price", "power", "energy", "interruptions", "restart")}
    if missing := [name for name in needed if values[name] is None]:
        reader.refuse(["offers", place], f"an offer that is {one.term} needs {missing[0]}", hint=f"{missing[0]}: ...")
    foreign = [name for name, value in values.items() if value is not None and name not in (*needed, "power")]
    foreign += [name for name in ("per_hour", "prices") if one.term == "owned" and getattr(one, name) is not None]
    foreign += [name for name in ("pue", "hosting") if one.term != "owned" and name in one.model_fields_set]
    foreign += ["lead"] if one.lead and one.term in ("on-demand", "spot") else []
    if foreign:
        reader.refuse(
            ["offers", place], f"{foreign[0]} does not apply to an offer that is {one.term}", hint="leave it out"
        )
    if one.term != "owned" and (one.per_hour is None) == (one.prices is None):
        reader.refuse(
            ["offers", place],
            "the price is given " + ("twice" if one.prices is not None else "not at all"),
            hint="per_hour: 55.04 of a machine, or prices: aws-us-east-1, a list on file",
        )


def _price(reader: _Reader, place: int, one: OfferSpec) -> float:
    """Of a machine for an hour: as stated, or the bill of its GPUs at a list. Raises ``SpecError`` without one."""
    if one.prices is None:
        return one.per_hour or 0.0
    kind = reader.spec.kinds[one.kind]
    if kind.gpu is None:
        reader.refuse(["kinds", one.kind], "a price list is searched by the GPU's name", hint="gpu: h100-sxm")
    try:
        book = price_book([one.prices], term=one.term, currency=reader.spec.currency)
        tariff = book.require(kind.gpu, kind.gpus)
    except InferplanError as error:
        reader.refuse(["offers", place], error.what, error.because, error.hint)
    if one.months is not None:
        length = f"{one.months // 12} year" + ("s" if one.months > 12 else "")
        if one.months % 12 or length not in tariff.lengths:
            reader.refuse(
                ["offers", place],
                f"{one.prices} has no term of {one.months} months of {kind.gpu}",
                because=f"its terms are {', '.join(filter(None, tariff.lengths)) or 'of no length'}",
                hint="per_hour: your own price",
            )
        tariff = tariff.lasting(length)
    return float(tariff.bill(1).per_hour)


def _have(reader: _Reader, pools: Sequence[Pool]) -> tuple[Have, ...]:
    found = []
    for place, one in enumerate(reader.spec.have):
        if one.until is not None and reader.month(one.until) <= 0:
            reader.refuse(["have", place], f"they are gone by {one.until}, before the first month", hint="leave it out")
        if one.release and not one.per_hour:
            reader.refuse(["have", place], "releasing machines that cost nothing saves nothing", hint="per_hour: 12")
        found.append(
            Have(
                row=place,
                pool=pools.index(Pool(one.region, one.kind)),
                machines=one.machines,
                until=10**6 if one.until is None else max(reader.month(one.until), 0),
                cost=one.per_hour * HOURS_PER_MONTH,
                power=one.power or 0.0,
                releases=one.release,
            )
        )
    return tuple(found)


def _limits(reader: _Reader, pools: Sequence[Pool]) -> Limits:
    spec, quotas = reader.spec, dict[int, float]()
    for place, one in enumerate(spec.quotas):
        pool = Pool(one.region, one.kind)
        if pool not in pools or pools.index(pool) in quotas:
            why = "given twice" if pool in pools else "for machines that no offer sells"
            reader.refuse(["quotas", place], f"the quota of {pool.name} is {why}", hint="leave it out")
        quotas[pools.index(pool)] = one.machines
    for region in spec.power:
        reader.known(["power", region], "region with machines", region, reader.regions)
        drawn = any(one.power and region in _listed(one.region) for one in spec.offers)
        if not drawn and not any(one.power and region == one.region for one in spec.have):
            reader.refuse(
                ["power", region], f"no machine in {region} states its power", hint="power: 10.2 kW of an offer"
            )
    return Limits(
        month=inf if spec.budget.month is None else spec.budget.month,
        whole=inf if spec.budget.whole is None else spec.budget.whole,
        power=tuple(spec.power.items()),
        quotas=tuple(quotas.items()),
        unserved=tuple((name, one.unserved) for name, one in spec.models.items() if one.unserved is not None),
    )
