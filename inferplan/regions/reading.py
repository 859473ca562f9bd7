"""A file of regions as a :class:`inferplan.regions.question.Question`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from pathlib import Path
from typing import NoReturn

import numpy as np

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.bills import Offer, Tariff
from inferplan.catalog.carbon import carbon_of, grid_of
from inferplan.catalog.files import at_line, find, spec_of
from inferplan.catalog.price_lists import price_book
from inferplan.catalog.profiles import load_profile
from inferplan.errors import InferplanError, InputFileError, SpecError
from inferplan.planning.design import Design
from inferplan.planning.machines import machines, size_of
from inferplan.regions.file import HOURS, PriceSpec, RegionSpec, RegionsSpec
from inferplan.regions.question import Arc, Question, Site, Sold, Users
from inferplan.regions.replicas import Draw, Replicas
from inferplan.steps import Steps
from inferplan.traffic.profile import DAY, Profile
from inferplan.traffic.requests import Slo
from inferplan.units import Array

_HOUR = 3600.0
_INSTANT = 1e-3
"""Seconds before the end of an hour at which its rate still holds."""
Field = list[str | int]
"""Where something stands in the file."""


def load_regions(name: str) -> tuple[Path, RegionsSpec]:
    """The file of a name or a path. Raises ``SpecError`` with file and line."""
    path = find("regions", name)
    return path, spec_of(path, RegionsSpec)


@dataclass(frozen=True, eq=False)
class Read:
    """What a file says. replicas: of each site."""

    path: Path
    spec: RegionsSpec
    question: Question
    replicas: tuple[Replicas, ...]

    @property
    def slo(self) -> Slo:
        """What users of every region are promised."""
        return self.replicas[0].slo


@dataclass(frozen=True, eq=False)
class _Reader:
    path: Path
    spec: RegionsSpec
    sized: dict[Request, Replicas] = field(default_factory=dict)

    def refuse(self, field: Field, what: str, because: str = "", hint: str = "") -> NoReturn:
        raise SpecError(f"{at_line(self.path, *field)}: {what}", because=because, hint=hint)

    def known(self, field: Field, name: str) -> str:
        """The name of a region."""
        if name not in self.spec.regions:
            self.refuse(field, f"{name!r} is no region of this file", hint=f"one of {', '.join(self.spec.regions)}")
        return name

    def beside(self, name: str) -> str:
        """A file that the file names."""
        path = Path(name)
        return str(path if path.is_absolute() else self.path.parent / path)

    def replicas(self, name: str) -> Replicas:
        """Those of a region; regions with the same replica have the same."""
        service = self.spec.service
        request = (self.spec.regions[name].replica or service).request(service.model)
        if request not in self.sized:
            self.sized[request] = Replicas(service, request, price_book(currency=self.spec.currency))
        return self.sized[request]


def read_regions(path: Path, spec: RegionsSpec, steps: Steps | None = None) -> Read:
    """The question of a file. steps: one for each replica that is sized, behind each delay.

    Raises ``SpecError`` with the line of what nobody can answer, and what sizing a replica does.
    """
    reader, steps = _Reader(path, spec), steps or Steps()
    _require_heard(reader)
    users = tuple(_users(reader, name, one) for name, one in spec.regions.items() if one.load is not None)
    names = [name for name, one in spec.regions.items() if one.hired or one.held]
    sites = [_site(reader, name) for name in names]
    ways = _ways(reader, [one.name for one in users], names)
    wanted = _delays(reader, names, ways)
    steps.more(sum(len(delays) for _, delays in wanted))
    for replicas, delays in wanted:
        try:
            replicas.size(delays, steps)
        except InferplanError as error:
            error.what = f"{at_line(path, 'service')}: {error.what}"
            raise
    draws = {id(one): one.draw() for one in reader.sized.values() if _runs(one)}
    question = Question(
        users=users,
        sites=tuple(_drawing(reader, site, draws) for site in sites),
        arcs=tuple(_arc(reader, names, way) for way in ways),
        currency=spec.currency,
    )
    return Read(path, spec, question, tuple(reader.replicas(name) for name in names))


def _runs(replicas: Replicas) -> bool:
    """Whether a replica keeps the limits for any users."""
    return any(isinstance(one, Design) for one in replicas.designs.values())


_OF_USERS, _OF_MACHINES = ("peak", "access", "stays"), ("most", "replica", "carbon", "pue", "host_watts")
"""Fields of regions that have users, and of those that have machines."""


def _require_heard(reader: _Reader) -> None:
    """Raise ``SpecError`` for what is missing, and for what would change nothing of the answer."""
    spec = reader.spec
    if not any(one.load is not None for one in spec.regions.values()):
        reader.refuse(["regions"], "no region has users", hint="load: [24 numbers], requests/s by hour")
    if not any(one.hired or one.held for one in spec.regions.values()):
        reader.refuse(["regions"], "no region has machines", hint="hired: {per_hour: 4}, or held:")
    if all(limit is None for limit in (spec.service.ttft, spec.service.tpot, spec.service.e2e)):
        reader.refuse(["service"], "a service needs a limit on latency", hint="ttft: 1 s")
    for name, one in spec.regions.items():
        at: Field = ["regions", name]
        machines = one.hired is not None or one.held is not None
        if one.load is None and not machines:
            reader.refuse(at, f"{name} has neither users nor machines", hint="load:, hired: or held:, or leave it out")
        unheard = (*_OF_USERS * (one.load is None), *_OF_MACHINES * (not machines))
        idle = [part for part in unheard if part in one.model_fields_set]
        if idle:
            reader.refuse(
                [*at, idle[0]],
                f"{idle[0]} of {name} changes nothing: it has no {'machines' if one.load is not None else 'users'}",
                hint="leave it out",
            )
        if one.load is not None and one.access is None:
            reader.refuse(
                at, f"the round trip from the users of {name} to their region is missing", hint="access: 20 ms"
            )
        if one.stays is True and not machines:
            reader.refuse([*at, "stays"], f"the data of {name} stay where there are no machines", hint="stays: [eu]")
        if isinstance(one.stays, list):
            for other in one.stays:
                reader.known([*at, "stays"], other)
    _require_pairs(reader)


def _require_pairs(reader: _Reader) -> None:
    seen = set[frozenset[str]]()
    for place, one in enumerate(reader.spec.network):
        for name in one.between:
            reader.known(["network", place], name)
        pair = frozenset(one.between)
        if pair in seen or len(pair) == 1:
            why = "has a round trip of its own: access:" if len(pair) == 1 else "is given twice"
            reader.refuse(["network", place], f"{' and '.join(sorted(pair))} {why}", hint="leave one out")
        seen.add(pair)


def _users(reader: _Reader, name: str, one: RegionSpec) -> Users:
    """The load of a region's users, on the clock of UTC."""
    at: Field = ["regions", name, "load"]
    if isinstance(one.load, list):
        if not any(one.load):
            reader.refuse(at, f"{name} has no requests at all", hint="leave load: out")
        profile = Profile(name=name, starts=tuple(hour * _HOUR for hour in range(HOURS)), rates=tuple(one.load))
    else:
        text = str(one.load)
        try:
            profile = load_profile(reader.beside(text) if text.lower().endswith(".csv") else text)
        except InputFileError:
            raise
        except InferplanError as error:
            reader.refuse(at, error.what, error.because, error.hint)
    if one.peak is not None:
        profile = profile.scaled(one.peak)
    starts = [(hour + one.utc) % HOURS * _HOUR for hour in range(HOURS)]
    most = [max(profile.most(start, min(start + _HOUR, DAY) - _INSTANT), _after(profile, start)) for start in starts]
    mean = [(_until(profile, start + _HOUR) - _until(profile, start)) / _HOUR for start in starts]
    return Users(name, np.array(most), np.array(mean))


def _after(profile: Profile, start: float) -> float:
    """The largest rate of what of an hour lies behind midnight: a clock may be a part of an hour ahead."""
    beyond = start + _HOUR - DAY
    return profile.most(0.0, beyond - _INSTANT) if beyond > _INSTANT else 0.0


def _until(profile: Profile, seconds: float) -> float:
    """Mean number of requests from midnight on; the next day is as this one."""
    days, rest = divmod(seconds, DAY)
    whole = days * profile.expected(DAY) if days else 0.0
    return whole + (profile.expected(rest) if rest else 0.0)


def by_hour(steps: Sequence[tuple[float, float]], utc: float) -> Array:
    """Means by hour of UTC of what changes at steps of a region's day: seconds, and the value from then on."""
    times = np.array([*(time for time, _ in steps), DAY])
    values = np.array([value for _, value in steps])
    edges, every = np.concatenate([times[:-1], times[:-1] + DAY, [2 * DAY]]), np.tile(values, 2)
    starts = [(hour + utc) % HOURS * _HOUR for hour in range(HOURS)]
    found = [float(np.diff(np.clip(edges, start, start + _HOUR)) @ every) / _HOUR for start in starts]
    return np.array(found)


def _steps(values: Sequence[float]) -> list[tuple[float, float]]:
    return [(hour * _HOUR, value) for hour, value in enumerate(values)]


Way = tuple[int, int, float, bool]
"""Users, site, seconds of network, and whether the data may go there."""


def _ways(reader: _Reader, users: Sequence[str], sites: Sequence[str]) -> list[Way]:
    """Who may be served where. Raises ``SpecError`` for a round trip that is needed and not stated."""
    spec, found = reader.spec, list[Way]()
    rtt = {frozenset(one.between): one.rtt for one in spec.network}
    for place, name in enumerate(users):
        one = spec.regions[name]
        for index, site in enumerate(sites):
            stays = [name] if one.stays is True else one.stays or sites
            between = 0.0 if site == name else rtt.get(frozenset((name, site)))
            if between is None:
                if site in stays:
                    reader.refuse(
                        ["network"] if spec.network else ["regions", name],
                        f"the round trip between {name} and {site} is missing",
                        hint=f"network: [{{between: [{name}, {site}], rtt: 90 ms}}], or stays: of {name}",
                    )
                continue
            found.append((place, index, ((one.access or 0.0) + between) * spec.round_trips, site in stays))
    used = {frozenset((users[place], sites[index])) for place, index, *_ in found}
    for place, row in enumerate(spec.network):
        if frozenset(row.between) not in used:
            reader.refuse(
                ["network", place],
                f"nobody goes from {row.between[0]} to {row.between[1]}: no users there, or no machines",
                hint="leave it out",
            )
    return found


def _rounded(delay: float) -> float:
    """Up to whole milliseconds: delays that differ by less are sized once."""
    return ceil(delay * 1000 - 1e-6) / 1000


def _delays(reader: _Reader, names: Sequence[str], ways: Sequence[Way]) -> list[tuple[Replicas, set[float]]]:
    """The delays for which each kind of replica is sized."""
    found: dict[int, tuple[Replicas, set[float]]] = {}
    for _, site, delay, _ in ways:
        replicas = reader.replicas(names[site])
        found.setdefault(id(replicas), (replicas, set()))[1].add(_rounded(delay))
    return [*found.values()]


def _arc(reader: _Reader, names: Sequence[str], way: Way) -> Arc:
    users, site, delay, is_open = way
    replicas = reader.replicas(names[site])
    design = replicas.designs[_rounded(delay)]
    rate = 0.0 if isinstance(design, str) else replicas.rate(_rounded(delay))
    return Arc(users, site, delay, rate, is_open, design if isinstance(design, str) else "")


def _site(reader: _Reader, name: str) -> Site:
    """The machines of a region, its prices and its grid on the clock of UTC."""
    one = reader.spec.regions[name]
    deployment = assemble(reader.replicas(name).request)
    devices = deployment.parallel.ranks
    return Site(
        name=name,
        devices=devices,
        hired=() if one.hired is None else _sold(reader, name, "hired", one.hired),
        held=() if one.held is None else _sold(reader, name, "held", one.held),
        most=inf if one.most is None else float(one.most),
        grams=_grams(reader, name, one),
    )


def _drawing(reader: _Reader, site: Site, draws: Mapping[int, Draw]) -> Site:
    """The same with what its replicas draw, and what is counted beside the devices."""
    one, draw = reader.spec.regions[site.name], draws.get(id(reader.replicas(site.name)))
    if draw is None:  # it serves nobody
        return site
    hosts = one.host_watts * site.devices / 1000
    return replace(site, standing=one.pue * (draw.standing + hosts), request=one.pue * draw.request)


def _sold(reader: _Reader, name: str, term: str, one: PriceSpec) -> tuple[Sold, ...]:
    """The machines that may be had on a term, each with its price by hour of UTC."""
    region = reader.spec.regions[name]
    size = size_of(assemble(reader.replicas(name).request))
    at: Field = ["regions", name, term]
    if (one.per_hour is None) == (one.prices is None):
        twice = one.prices is not None
        reader.refuse(at, f"the price of {term} machines is given {'twice' if twice else 'not at all'}", hint=_PRICE)
    own = [part for part in ("gpus", "term", "length") if part in one.model_fields_set]
    foreign = [part for part in own if (part == "gpus") is (one.prices is not None)]
    if foreign:
        given = "prices" if one.prices is not None else "per_hour"
        reader.refuse([*at, foreign[0]], f"{foreign[0]} does not go with {given}", hint="leave one of them out")
    if one.prices is None:
        offers: tuple[Offer, ...] = (
            Offer(
                gpu=size.gpu,
                gpus=one.gpus,
                per_hour=one.per_hour or 0.0,
                currency=reader.spec.currency,
                term=term,
                source=reader.path.name,
            ),
        )
    else:
        offers = _listed(reader, at, one, size.gpu, size.devices, size.together)
    factor = (
        np.full(HOURS, one.factor) if isinstance(one.factor, float | int) else by_hour(_steps(one.factor), region.utc)
    )
    return tuple(
        Sold(machine.price * factor, machine.holds[size], machine.gpus, machine.offer.describe() if one.prices else "")
        for machine in machines(0, offers, [size])
    )


_PRICE = "per_hour: 4.20 and gpus: of a machine, or prices: aws-us-east-1, a list on file"


def _listed(reader: _Reader, at: Field, one: PriceSpec, gpu: str, devices: int, together: int) -> tuple[Offer, ...]:
    """What a list on file sells."""
    try:
        book = price_book([str(one.prices)], term=one.term, currency=reader.spec.currency)
        tariff: Tariff = book.require(gpu, devices, together)
    except InferplanError as error:
        reader.refuse(at, error.what, error.because, error.hint)
    lengths = [length for length in tariff.lengths if length]
    if one.length is not None or lengths:
        if one.length not in lengths:
            reader.refuse(
                at,
                f"{one.prices} has no such term of {gpu}",
                because=f"its lengths are {', '.join(lengths) or 'none: it is on demand'}",
                hint=f"length: {lengths[0]}" if lengths else "leave length: out",
            )
        tariff = tariff.lasting(str(one.length))
    return tariff.holding


def _grams(reader: _Reader, name: str, one: RegionSpec) -> Array | None:
    """CO2 of a kWh by hour of UTC."""
    if one.carbon is None:
        return None
    if isinstance(one.carbon, list):
        return by_hour(_steps(one.carbon), one.utc)
    text = str(one.carbon)
    try:
        found = grid_of(Path(reader.beside(text))) if text.lower().endswith(".csv") else carbon_of(text)
    except InputFileError:
        raise
    except InferplanError as error:
        reader.refuse(["regions", name, "carbon"], error.what, error.because, error.hint)
    assert found is not None
    return by_hour(found.steps, one.utc) if found.steps else np.full(HOURS, found.grams)


def row_of(read: Read, *field: str | int) -> str:
    """The line of a part of the file, without its folder."""
    return at_line(read.path, *field).rpartition("/")[2]


def pair_of(read: Read, users: str, site: str) -> int | None:
    """The place under ``network`` of the round trip between two regions."""
    pairs = [frozenset(one.between) for one in read.spec.network]
    return next((place for place, pair in enumerate(pairs) if pair == frozenset((users, site))), None)
