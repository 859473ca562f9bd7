"""Replicas of several models on machines in racks or zones, any one of which may be lost, with room for a rollout.

It is one integer programme, :class:`Placing`; docs/several-models.md has it in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Any, NamedTuple

import numpy as np

from inferplan.planning.machines import Bought, Machine, Size
from inferplan.planning.programme import Limit, Programme


class Wanted(NamedTuple):
    """Replicas of one kind for one model. needed: in all; left: while a domain is lost."""

    size: Size
    needed: int
    left: int = 0


class Placed(NamedTuple):
    """A solution. domains: what stands in each rack or zone, with replicas of each model. gap: the share of the cost
    by which a cheaper one might exist; 0 where this one is proven to be the cheapest.
    """

    domains: tuple[Bought, ...]
    gap: float = 0.0

    @property
    def used(self) -> tuple[tuple[Machine, int], ...]:
        """Machines of all domains, and how many of each."""
        found: list[tuple[Machine, int]] = []
        for machine, count in (one for domain in self.domains for one in domain.used):
            at = next((index for index, (known, _) in enumerate(found) if known == machine), None)
            if at is None:
                found.append((machine, count))
            else:
                found[at] = machine, found[at][1] + count
        return tuple(found)

    @property
    def cost(self) -> float:
        """The bill of an hour, idle GPUs included."""
        return sum(domain.cost for domain in self.domains)

    @property
    def gpus(self) -> int:
        """GPUs that are paid for."""
        return sum(domain.gpus for domain in self.domains)

    def replicas(self, model: Any) -> int:
        """Replicas of a model in all domains."""
        return sum(domain.replicas.get(model, 0) for domain in self.domains)

    def least_left(self, model: Any) -> int:
        """Replicas of a model that are left in the worst case, while one domain is lost."""
        return self.replicas(model) - max((domain.replicas.get(model, 0) for domain in self.domains), default=0)


@dataclass(frozen=True, kw_only=True)
class Placing:
    """What has to be placed. stocks: GPUs of each kind, infinite where there is no limit. surge: replicas of a new
    version that have room beside all others, of any one model at a time. one_of: groups of what is wanted, of each of
    which one is taken, ``y = 1``, and nothing of the others, ``y = 0``; ``y`` is 1 of what is in no group.

    With ``n[m, d]`` replicas of a model in a domain, ``u[p, d]`` machines, ``r[s, d]`` places of a size that are left
    free, whole numbers, it is

        minimise sum(price*u)
        with     sum over d of n[m, d] >= needed[m]*y[m]
                 sum over d except e of n[m, d] >= left[m]*y[m]                  for each domain e
                 sum over m of size s of n[m, d] + r[s, d] <= sum(holds[p, s]*u[p, d])
                 sum over t >= s of floor(t/s)*r[t, d], and over d, >= surge*y   a free place holds smaller replicas
                 sum of y = 1                                                    of each group
                 sum(gpus*u) <= stock of each kind of GPU

    then ``sum(gpus*u)`` at that cost, and then ``sum(devices*n)``.
    """

    machines: Sequence[Machine]
    stocks: Sequence[float]
    wanted: Mapping[Any, Wanted]
    domains: int = 1
    surge: int = 0
    one_of: Sequence[Sequence[Any]] = ()

    @property
    def _models(self) -> list[Any]:
        return [model for model, wanted in self.wanted.items() if wanted.needed or wanted.left]

    @property
    def _sizes(self) -> list[Size]:
        return list(dict.fromkeys(self.wanted[model].size for model in self._models))

    def cheapest(self) -> Placed | None:
        """The machines and what stands where; ``None`` where the stocks do not hold what is wanted. Raises
        ``InferplanError`` where the solver fails.
        """
        models, machines = self._models, list(enumerate(self.machines))
        if not models:
            return Placed((Bought({}, (), 0.0),) * self.domains)
        if not machines:
            return None
        everywhere = range(self.domains)
        keys: list[tuple[str, Any, int]] = [
            *(("n", model, domain) for model, domain in product(models, everywhere)),
            *(("u", place, domain) for (place, _), domain in product(machines, everywhere)),
            *(("r", size, domain) for size, domain in product(self._sizes if self.surge else [], everywhere)),
            *(("y", model, 0) for group in self.one_of for model in group),
        ]
        at = {key: place for place, key in enumerate(keys)}

        def over(weights: Mapping[tuple[str, Any, int], float]) -> list[float]:
            row = [0.0] * len(keys)
            for key, weight in weights.items():
                row[at[key]] = weight
            return row

        of_machines = {
            name: {
                ("u", place, domain): float(getattr(one, name))
                for (place, one), domain in product(machines, everywhere)
            }
            for name in ("price", "gpus")
        }
        of_replicas = {
            ("n", model, domain): float(self.wanted[model].size.devices)
            for model, domain in product(models, everywhere)
        }
        rows = [Limit(over(weights), least, most) for weights, least, most in self._rows()]
        # without domains to lose, more replicas than are wanted are of no use
        most = [
            1.0 if key[0] == "y" else self.wanted[key[1]].needed if key[0] == "n" and self.domains == 1 else inf
            for key in keys
        ]
        then = [of_machines["gpus"], *([of_replicas] if self.domains > 1 else [])]
        found = Programme(rows, np.array(most)).cheapest(over(of_machines["price"]), *map(over, then))
        if found is None:
            return None
        counts = dict(zip(keys, found.counts))
        return Placed(
            tuple(
                Bought(
                    {model: counts["n", model, domain] for model in models},
                    tuple((one, n) for place, one in machines if (n := counts["u", place, domain])),
                    found.gap,
                )
                for domain in everywhere
            ),
            found.gap,
        )

    def _rows(self) -> Iterator[tuple[dict[tuple[str, Any, int], float], float, float]]:
        """Weights of the numbers, and the least and the most that their sum may be."""
        everywhere, sizes = range(self.domains), self._sizes
        choices = {model for group in self.one_of for model in group}

        def at_least(
            weights: dict[tuple[str, Any, int], float], least: int, model: Any
        ) -> tuple[dict[tuple[str, Any, int], float], float, float]:
            return (weights | {("y", model, 0): -float(least)}, 0.0, inf) if model in choices else (weights, least, inf)

        for group in self.one_of:
            yield {("y", model, 0): 1.0 for model in group}, 1.0, 1.0
        for model in self._models:
            wanted, everything = self.wanted[model], {("n", model, domain): 1.0 for domain in everywhere}
            yield at_least(everything, wanted.needed, model)
            for lost in everywhere if self.domains > 1 else ():
                left = {("n", model, domain): 1.0 for domain in everywhere if domain != lost}
                yield at_least(left, wanted.left, model)
        for size, domain in product(sizes, everywhere):
            row = {("n", model, domain): 1.0 for model in self._models if self.wanted[model].size == size}
            row |= {("u", place, domain): -float(one.holds.get(size, 0)) for place, one in enumerate(self.machines)}
            yield row | ({("r", size, domain): 1.0} if self.surge else {}), -inf, 0.0
        for model in self._models if self.surge else ():
            size = self.wanted[model].size
            larger = [one for one in sizes if one.gpu == size.gpu and one.devices >= size.devices]
            free = {
                ("r", one, domain): float(one.devices // size.devices) for one, domain in product(larger, everywhere)
            }
            yield at_least(free, self.surge, model)
        for kind, stock in enumerate(self.stocks):
            taken = {
                ("u", place, domain): float(one.gpus)
                for (place, one), domain in product(enumerate(self.machines), everywhere)
                if one.kind == kind
            }
            if stock < inf and taken:
                yield taken, -inf, stock
        priced = [(place, one.price) for place, one in enumerate(self.machines)]
        for domain in range(self.domains - 1):  # which domain is which makes no difference: the dearest come first
            yield (
                {("u", place, domain): price for place, price in priced}
                | {("u", place, domain + 1): -price for place, price in priced},
                0.0,
                inf,
            )
