"""Joules and CO2 of a day under a policy, hour by hour (docs/power.md).

A device draws its idle share of TDP from the order of its replica until that is gone. What kernels add to it is that of
the mean steps of the whole run, and is spread over the hours as their requests are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np

from inferplan.answers.energy import JOULES_PER_KWH, EnergyAsked
from inferplan.answers.power import run_energy
from inferplan.catalog.power import power_shares
from inferplan.planning.day import HOUR, Day, PolicyDay


@dataclass(frozen=True, kw_only=True, eq=False)
class DayEnergy:
    """The energy of one policy in the span that is simulated."""

    day: Day
    policy: PolicyDay
    asked: EnergyAsked

    @cached_property
    def worked(self) -> float:
        """Joules that kernels add to what devices draw for being on: none where no request was served. Raises
        ``MissingFactError`` without a TDP; models whose energy is not known are refused before a day is simulated.
        """
        found = run_energy(self.day.work.design.deployment, self.policy.result)
        return 0.0 if found is None else found.joules - found.on

    @cached_property
    def hours(self) -> list[tuple[float, float]]:
        """Of every hour what the devices draw for being on and what they work, in joules of the devices alone."""
        deployment, arrival = self.day.work.design.deployment, self.day.requests.arrival
        assert arrival is not None  # a day has arrivals
        on = deployment.hardware.tdp * power_shares().idle * deployment.parallel.ranks
        found = []
        for start, stop in self.edges:
            first, last = (int(np.searchsorted(arrival, time)) for time in (start, stop))
            share = (last - first) / len(arrival)
            found.append((on * self.policy.mean_replicas(start, stop) * (stop - start), self.worked * share))
        return found

    @property
    def edges(self) -> list[tuple[float, float]]:
        """Where the hours begin and end, in seconds."""
        span = self.day.asked.span
        return [(hour * HOUR, min((hour + 1) * HOUR, span)) for hour in range(ceil(span / HOUR))]

    @cached_property
    def kwh(self) -> list[float]:
        """Of every hour, with what is counted beside the devices."""
        ranks = self.day.work.design.deployment.parallel.ranks
        return [
            self.asked.whole(on + worked, ranks, self.policy.mean_replicas(start, stop) * (stop - start))
            / JOULES_PER_KWH
            for (on, worked), (start, stop) in zip(self.hours, self.edges)
        ]

    @property
    def grams(self) -> list[float] | None:
        """CO2 of every hour; ``None`` where nobody says what a kWh has."""
        carbon = self.asked.carbon
        if carbon is None:
            return None
        return [kwh * carbon.between(start, stop) for kwh, (start, stop) in zip(self.kwh, self.edges)]

    @property
    def idle_share(self) -> float:
        """Of the devices' joules what they take for being on."""
        on, worked = (sum(hour[part] for hour in self.hours) for part in (0, 1))
        return on / (on + worked)

    @property
    def per_output_token(self) -> float:
        """Joules over the output tokens of the span."""
        return sum(self.kwh) * JOULES_PER_KWH / float(np.sum(self.day.requests.output))
