"""``python -m tests.benchmarks.examine_fleets [part[:number] ...]``: ``fleet`` and ``several`` examined.

The questions are those of ``examined.yaml``. A part of a mix is run by ``inferplan simulate`` as a fleet of its own
with its share of the stream, as regular as every so manieth request; models of a file one after another, here, from the
departures of each. Both with another seed, under the load and under ``load/utilisation``. What costs less, by price
lists read here and packed by trying everything, is run under the latter too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from itertools import product
from math import ceil, inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from inferplan.catalog.price_lists import price_book
from inferplan.catalog.services import load_service
from inferplan.planning.several import Member, SeveralAsked, members_of
from inferplan.serving.simulator import simulate
from inferplan.serving.tandem import ask_together
from inferplan.traffic.requests import Requests
from inferplan.traffic.stages import Draw
from tests.benchmarks.examine_plans import REQUESTS, SEED, ask, main, options

PRICES = Path(__file__).parents[2] / "configs" / "prices"
TRIED, MORE = 3, 4
"""Cheaper mixes that are run, those that carry most first; replicas that a cheaper fleet may have more of a model."""
Counts = tuple[int, ...]


class Priced(NamedTuple):
    """GPUs that are sold together, an hour; ``None``: one by one."""

    gpus: int | None
    price: float


def sold(words: list[str], gpu: str) -> list[Priced]:
    """What providers sell on demand, of the lists that a question names, or of all."""
    named = [value for name, value in options(words) if name == "--prices"]
    lists = [
        yaml.safe_load((PRICES / f"{name}.yaml").read_text())
        for name in named or (p.stem for p in PRICES.glob("*.yaml"))
    ]
    own = dict(value.split("=") for name, value in options(words) if name == "--price")
    if gpu in own:
        price, _, size = own[gpu].partition("/")
        return [Priced(int(size) if size else None, float(price))]
    return [
        Priced(None if one["gpus"] == "any" else one["gpus"], one["per_hour"])
        for listed in lists
        if named or "kind" not in listed
        for one in listed["instances"]
        if one["gpu"] == gpu and "term" not in one and one["gpus"] != "unknown"
    ]


def packed(offers: tuple[Priced, ...], sizes: Counts, counts: Counts) -> float:
    """The cheapest machines for so many replicas of each size, all contents of each machine tried."""

    @cache
    def least(left: Counts) -> float:
        place = next((one for one, count in enumerate(left) if count), None)
        if place is None:
            return 0.0
        found = inf
        for offer in offers:
            if offer.gpus is None or offer.gpus < sizes[place]:
                number = sizes[place] / (offer.gpus or 1)
                whole = min((-(-sizes[place] // (one.gpus or 1)) for one in offers if one.gpus), default=None)
                fits = any(one.gpus is None or one.gpus >= sizes[place] for one in offers)
                if offer.gpus is None or (not fits and ceil(number) == whole):
                    found = min(found, ceil(number) * offer.price + least(without(left, place, 1)))
            else:
                for inside in product(*(range(count + 1) for count in left)):
                    if inside[place] and sum(n * size for n, size in zip(inside, sizes)) <= offer.gpus:
                        found = min(found, offer.price + least(tuple(a - b for a, b in zip(left, inside))))
        return found

    return least(counts)


def without(counts: Counts, place: int, number: int) -> Counts:
    return tuple(count - number * (one == place) for one, count in enumerate(counts))


# a fleet


class Source(NamedTuple):
    """A design from one source, and what a replica may be given."""

    gpu: str
    owned: bool
    most: float
    design: dict[str, Any]
    rate: float


def sources(words: list[str], answer: dict[str, Any]) -> list[Source]:
    return [
        Source(
            kind["gpu"],
            kind["source"] == "owned",
            kind["most"] or inf,
            one,
            answer["utilisation"] * one["requests_per_s"],
        )
        for kind in answer["stock"]
        for one in answer["designs"]
        if one["gpu"] == kind["gpu"]
    ]


def bill(words: list[str], answer: dict[str, Any], there: list[Source], counts: Counts) -> float:
    """Of a mix, infinite where a stock does not hold it; replicas of two designs have instances of their own."""
    total, taken = 0.0, dict[tuple[str, bool], int]()
    for one, count in zip(there, counts):
        gpus = count * one.design["devices"]
        total += (
            gpus * answer["own_price_per_device_hour"] if one.owned else rented(tuple(sold(words, one.gpu)), one, count)
        )
        taken[one.gpu, one.owned] = taken.get((one.gpu, one.owned), 0) + gpus
    over = any(taken[one.gpu, one.owned] > one.most for one in there)
    return inf if over else total


@cache
def _rented(offers: tuple[Priced, ...], devices: int, count: int) -> float:
    return packed(offers, (devices,), (count,))


def rented(offers: tuple[Priced, ...], one: Source, count: int) -> float:
    return _rented(offers, one.design["devices"], count)


def parts_run(
    model: str, words: list[str], there: list[Source], counts: Counts, factor: float
) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Every part as a fleet of its own at its share of so many times the load."""
    given, asked = sum(one.rate * count for one, count in zip(there, counts)), dict(options(words))
    rate, shape = float(asked["--rate"]), float(asked.get("--burstiness", 1))
    for place, (one, count) in enumerate(zip(there, counts)):
        if count:
            share, replica = one.rate * count / given, one.design["replica"]
            run = ["simulate", model, "--gpu", one.gpu, "--quant", asked["--quant"], "--replicas", str(count)]
            run += [word for name in ("tp", "pp", "ep", "dp") for word in (f"--{name}", str(replica["parallel"][name]))]
            run += [
                "--max-num-seqs",
                str(replica["max_num_seqs"]),
                "--max-num-batched-tokens",
                str(replica["max_num_batched_tokens"]),
            ]
            run += [
                "--rate",
                f"{factor * share * rate:.9g}",
                "--arrivals",
                "gamma",
                "--burstiness",
                f"{shape / share:.9g}",
            ]
            run += [
                word
                for name in ("--prompt", "--output", "--ttft", "--tpot", "--e2e")
                if name in asked
                for word in (name, asked[name])
            ]
            _, found, said = ask([*run, "--requests", str(REQUESTS), "--seed", str(SEED)])
            yield place, found, said


def broken(run: dict[str, Any], percentile: str) -> list[str]:
    """The limits that a run breaks, and a queue that grows."""
    if not run:
        return ["no run"]
    at = {name: run[name][f"p{percentile}"] or inf for name in run["slo"]}
    over = [f"{name} {at[name]:.4g} > {most:.4g}" for name, most in run["slo"].items() if at[name] > most]
    return over + [run["verdict"]] * (run["verdict"] not in ("stable", "saturated"))


def examine_fleet(model: str, words: list[str], answer: dict[str, Any]) -> Iterator[str]:
    there, percentile = sources(words, answer), f"{answer['percentile']:g}"
    bought = {(one["gpu"], one["source"] == "owned", str(one["replica"]["parallel"])): one for one in answer["parts"]}
    picked = [bought.get((one.gpu, one.owned, str(one.design["replica"]["parallel"]))) for one in there]
    counts = tuple(0 if one is None else one["replicas"] for one in picked)
    mix = [
        f"{count} x {one.design['devices']} {one.gpu}{' owned' * one.owned}"
        for one, count in zip(there, counts)
        if count
    ]
    yield f"{answer['cost_per_hour']:.4g} by hand {bill(words, answer, there, counts):.4g}, {' + '.join(mix)}"
    yield f", keeps {answer['keeps_the_limits']}"
    for factor in (1, 1 / answer["utilisation"]):
        for place, run, why in parts_run(model, words, there, counts, factor):
            quoted = picked[place]
            off = (
                [f"{name} {run[name][f'p{percentile}'] / quoted[name] - 1:+.1%}" for name in answer["slo"]]
                if run and quoted and factor == 1
                else []
            )
            over = broken(run, percentile) or "keeps"
            yield f"; x{factor:g} {there[place].gpu} {', '.join(off)} {over if run else why[:200]}"
    load = answer["requests_per_s"]
    ranges = [range(min(ceil(load / one.rate), int(min(one.most, 1e6)) // one.design["devices"]) + 1) for one in there]
    here = (answer["cost_per_hour"] + 1e-6, answer["devices"])
    cheaper = []
    for other in product(*ranges):
        if any(other):
            key = bill(words, answer, there, other), sum(n * one.design["devices"] for n, one in zip(other, there))
            if key[0] < here[0] - 1e-5 or (key[0] <= here[0] and key[1] < here[1]):
                cheaper.append((sum(n * one.rate for n, one in zip(other, there)), key, other))
    cheaper.sort(reverse=True)
    most = cheaper[0][0] / load if cheaper else 0
    yield f"; {len(cheaper)} cheaper mixes, the most of them carries {most:.3f} of the load"
    for carried, key, other in cheaper[:TRIED]:
        runs = list(parts_run(model, words, there, other, 1 / answer["utilisation"]))
        over = [f"{there[place].gpu} {one}" for place, run, _ in runs for one in broken(run, percentile)]
        yield f"; {other} of {counts} at {key[0]:.4g} carries {carried / load:.3f}: {over or 'KEEPS'}"


# several models


class Times(NamedTuple):
    """Of the requests of a stream, at one model: NaN for those that do not come."""

    first: np.ndarray
    finish: np.ndarray
    steady: bool


class Tandem:
    """A stream after another through models, with draws of its own."""

    def __init__(self, members: tuple[Member, ...], factor: float, requests: int = 2 * REQUESTS) -> None:
        self.members, self.known = members, dict[tuple[int, Counts], Times]()
        self.rng = np.random.default_rng(SEED)
        self.drawn: list[Draw] = []
        longest = min(one.stage.rate for one in members if one.stage.rate)
        left: dict[int, np.ndarray] = {}
        for place, one in enumerate(members):
            stage = one.stage
            if stage.after is None:
                assert stage.rate
                count = min(ceil(requests * stage.rate / longest), 6 * requests)
                arrival, here = np.cumsum(self.rng.exponential(1 / (factor * stage.rate), count)), np.ones(count, bool)
                prompt = one.prompt.sample(self.rng, count)
                left[place] = self.rng.permutation(count)
            else:
                before = self.drawn[stage.after]
                arrival, count = before.arrival, len(before.arrival)
                # of those before it, in an order of chance, the next ones
                number = round(stage.share * before.asked.sum())
                order = left[stage.after]
                chosen, left[stage.after] = order[:number], order[number:]
                here = np.zeros(count, bool)
                here[chosen] = True
                prompt = before.prompt if stage.prompt is None else stage.prompt.sample(self.rng, count)
                left[place] = self.rng.permutation(chosen)
            self.drawn.append(
                Draw(asked=here, prompt=prompt, output=one.stage.output.sample(self.rng, count), arrival=arrival)
            )

    def path(self, place: int) -> list[int]:
        after = self.members[place].stage.after
        return [*([] if after is None else self.path(after)), place]

    def at(self, place: int, counts: Counts, swap: Any) -> Times:
        """One model behind those before it, with so many replicas of each."""
        key = place, tuple(counts[one] for one in self.path(place))
        if key not in self.known:
            stage, draw = self.members[place].stage, self.drawn[place]
            host = place if stage.shares is None else stage.shares
            beside = [n for n, one in enumerate(self.members) if host in (n, one.stage.shares)]
            if len(beside) > 1:
                found = ask_together(
                    [
                        (self.members[n].served(counts[host]), self.drawn[n], self.members[n].stage.limits)
                        for n in beside
                    ],
                    swap,
                )
                for n, one in zip(beside, found):
                    assert one.run
                    self.known[n, (counts[n],)] = Times(one.first, one.finish, one.run.steady)
            else:
                came = draw.arrival if stage.after is None else self.at(stage.after, counts, swap).finish
                who = np.flatnonzero(draw.asked & np.isfinite(came))
                who = who[np.argsort(came[who], kind="stable")]
                run = simulate(
                    self.members[place].served(counts[place]),
                    Requests(prompt=draw.prompt[who], output=draw.output[who], arrival=came[who]),
                )
                first, finish = np.full(len(came), np.nan), np.full(len(came), np.nan)
                first[who], finish[who] = np.asarray(run.records.first), np.asarray(run.records.finish)
                self.known[key] = Times(first, finish, run.steady)
        return self.known[key]

    def figures(self, counts: Counts, swap: Any) -> Iterator[tuple[str, str, float, float | None]]:
        """Each model's latencies and those of whole answers at their percentiles: whose, name, seconds, limit."""
        for place, one in enumerate(self.members):
            draw, times, stage = self.drawn[place], self.at(place, counts, swap), one.stage
            came = draw.arrival if stage.after is None else self.at(stage.after, counts, swap).finish
            count = int(draw.asked.sum())
            who = np.flatnonzero(draw.asked)[np.argsort(came[draw.asked])][count // 4 : -max(count // 20, 1)]
            tpot = (times.finish - times.first)[who] / np.maximum(draw.output[who] - 1, 1)
            found = {
                "ttft": (times.first - came)[who],
                "tpot": tpot[draw.output[who] > 1],
                "e2el": (times.finish - came)[who],
            }
            for name, values in found.items():
                seconds = (
                    float(np.percentile(np.nan_to_num(values, nan=inf), stage.limits.percentile))
                    if len(values) and times.steady
                    else inf
                )
                yield stage.name, name, seconds, stage.limits.limits.get(name)
            if stage.after is None and stage.answer.limits:
                yield from self.whole(place, counts, swap)

    def whole(self, root: int, counts: Counts, swap: Any) -> Iterator[tuple[str, str, float, float | None]]:
        stage, arrival = self.members[root].stage, self.drawn[root].arrival
        seen, end, steady = np.full(len(arrival), np.nan), np.full(len(arrival), np.nan), True
        for place in range(len(self.members)):
            if self.path(place)[0] == root:
                times, here = self.at(place, counts, swap), self.drawn[place].asked
                goes_on = any(other.stage.after == place and other.stage.share for other in self.members)
                end[here], seen[here] = times.finish[here], (times.finish if goes_on else times.first)[here]
                steady &= times.steady
        who = slice(len(arrival) // 4, -(len(arrival) // 20))
        for name, values in (("ttft", seen - arrival), ("e2el", end - arrival)):
            seconds = (
                float(np.percentile(np.nan_to_num(values[who], nan=inf), stage.answer.percentile)) if steady else inf
            )
            yield f"{stage.name} whole", name, seconds, stage.answer.limits.get(name)


def machines_bill(words: list[str], members: tuple[Member, ...], counts: Counts) -> float:
    """The cheapest machines for so many replicas of each model; owned GPUs as far as they pay, every way tried."""
    given, total = options(words), 0.0
    own = {name: int(n) for option, value in given if option == "--own" for name, n in [value.split("=")]}
    own_price = float(dict(given).get("--own-price", 0))
    rented_too = {value.partition("=")[0] for option, value in given if option == "--rent"}
    stocked = bool(own or rented_too)
    for gpu in dict.fromkeys(one.gpu for one in members):
        sizes = dict[int, int]()
        for one, count in zip(members, counts):
            if one.gpu == gpu and one.stage.shares is None:
                sizes[one.size.devices] = sizes.get(one.size.devices, 0) + count
        may_rent = gpu in rented_too or not (stocked and gpu in own)
        found = inf
        for held in product(*(range(count + 1) for count in sizes.values())):
            gpus, rest = (
                sum(n * size for n, size in zip(held, sizes)),
                tuple(c - n for c, n in zip(sizes.values(), held)),
            )
            if gpus <= own.get(gpu, 0) and (may_rent or not any(rest)):
                found = min(found, gpus * own_price + packed(tuple(sold(words, gpu)), tuple(sizes), rest))
        total += found
    return total


def over_limits(run: Tandem, counts: Counts, swap: Any) -> list[str]:
    return [
        f"{whose} {name} {value:.4g} > {most:.4g}"
        for whose, name, value, most in run.figures(counts, swap)
        if most and value > most
    ]


def growing(run: Tandem, counts: Counts, swap: Any) -> list[str]:
    return [
        f"{one.stage.name} grows" for place, one in enumerate(run.members) if not run.at(place, counts, swap).steady
    ]


def examine_several(file: str, words: list[str], answer: dict[str, Any]) -> Iterator[str]:
    members = members_of(load_service(file))
    swaps = [
        found for n in range(len(members)) if (found := SeveralAsked(members=members, prices=price_book()).swap(n))
    ]
    swap = swaps[0] if swaps else None
    counts = tuple(one["replicas"] for one in answer["models"])
    named = ", ".join(f"{count} x {one.size.devices} {one.gpu} {one.stage.name}" for one, count in zip(members, counts))
    cost = answer["cost_per_hour"]
    yield f"{cost:.4g} by hand {machines_bill(words, members, counts):.4g}, {named}, keeps {answer['keeps_the_limits']}"
    quoted = {one["name"]: one for one in answer["models"]}
    quoted |= {f"{one['stream']} whole": one["at_percentile"] for one in answer["answers"]}
    long = Tandem(members, 1.0)
    for whose, name, value, most in long.figures(counts, swap):
        before = quoted[whose][f"{name}_s"]
        if before:
            yield f"; {whose} {name} {value / before - 1:+.1%}" + (
                f" {'keeps' if value <= most else 'BREAKS'} {most:g}" if most else ""
            )
    tight = Tandem(members, 1 / answer["utilisation"])
    over = over_limits(tight, counts, swap) + growing(tight, counts, swap)
    yield f"; x{1 / answer['utilisation']:g} {over or 'keeps'}"
    free = [not one["given"] and one["shares_gpus_of"] is None for one in answer["models"]]
    whole = any(one.stage.answer.limits for one in members)
    ranges = [range(1, n + 1 + MORE * whole) if may else [n] for n, may in zip(counts, free)]
    cheaper = []
    for other in product(*ranges):
        own = tuple(other[n if one.stage.shares is None else one.stage.shares] for n, one in enumerate(members))
        if (
            own != counts
            and machines_bill(words, members, own) <= cost + 1e-9
            and (sum(own) < sum(counts) or machines_bill(words, members, own) < cost - 1e-9)
        ):
            cheaper.append(own)
    largest = [
        one for one in cheaper if not any(one != other and all(a <= b for a, b in zip(one, other)) for other in cheaper)
    ]
    yield f"; {len(cheaper)} cheaper fleets"
    for other in largest:
        over = over_limits(tight, other, swap) + growing(tight, other, swap)
        yield f"; {other} at {machines_bill(words, members, other):.4g}: {over[:2] or 'KEEPS'}"


if __name__ == "__main__":
    main(sys.argv[1:], {"fleet": examine_fleet, "several": examine_several})
