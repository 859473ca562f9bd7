"""Energy by phase: joules of the prompts, of every output token and of a request of a static batch (docs/power.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from inferplan.catalog.energy import EnergyAsked
from inferplan.catalog.power import power_shares
from inferplan.estimate.batch import Estimate
from inferplan.estimate.draw import step_joules
from inferplan.estimate.encode import EncodeEstimate
from inferplan.estimate.phase import Phase
from inferplan.features import require_together
from inferplan.terms import Naming, Term, name_term
from inferplan.units import Num

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, kw_only=True)
class PhaseEnergy:
    """Joules of all devices of a replica in a phase of ``seconds``: for being on, and for what they work."""

    on: float
    worked: float
    seconds: float
    devices: int

    @property
    def joules(self) -> float:
        """Of all its devices."""
        return self.on + self.worked

    @property
    def watts(self) -> float:
        """Mean of a device."""
        return self.joules / self.seconds / self.devices


@dataclass(frozen=True, kw_only=True, eq=False)
class StaticEnergy:
    """The energy of a static batch of one replica. Raises ``UsageError`` for one whose energy is not known."""

    estimate: Estimate
    asked: EnergyAsked = EnergyAsked()

    def __post_init__(self) -> None:
        require_together("estimate", self.estimate.features | {"energy"})

    @cached_property
    def prefill(self) -> PhaseEnergy:
        """Of the prompts of the whole batch."""
        return self._phase(self.estimate.prefill, self.estimate.ttft)

    @cached_property
    def decode(self) -> PhaseEnergy | None:
        """Of the mean decode step; ``None`` where there is none."""
        if isinstance(self.estimate, EncodeEstimate) or self.estimate.load.output <= 1:
            return None
        return self._phase(self.estimate.decode, self.estimate.tpot)

    def _phase(self, phase: Phase, seconds: Num) -> PhaseEnergy:
        on, worked = step_joules(phase, power_shares(phase.deployment.hardware), seconds)
        ranks = self.estimate.deployment.parallel.ranks
        return PhaseEnergy(on=float(on), worked=float(worked), seconds=float(seconds), devices=ranks)

    def whole(self, phase: PhaseEnergy) -> float:
        """Joules of a phase with what is counted beside the devices."""
        return self.asked.whole(phase.joules, phase.devices, phase.seconds)

    @property
    def steps(self) -> float:
        """Decode steps of a request."""
        return 0.0 if self.decode is None else float(self.estimate.load.output) - 1.0

    @property
    def per_token(self) -> float | None:
        """Joules of an output token while decoding."""
        return None if self.decode is None else self.whole(self.decode) / float(self.estimate.load.sequences)

    @property
    def per_request(self) -> float:
        """Joules of a request: its share of the prefill and of every decode step."""
        decoded = 0.0 if self.decode is None else self.steps * self.whole(self.decode)
        return (self.whole(self.prefill) + decoded) / float(self.estimate.load.batch)

    @property
    def per_output_token(self) -> float | None:
        """Joules of a request over its output tokens."""
        load = self.estimate.load
        return None if self.estimate.deployment.model.encodes else self.per_request / float(load.samples * load.output)

    @property
    def idle_share(self) -> float:
        """Of the devices' joules what they take for being on."""
        on, joules = self.prefill.on, self.prefill.joules
        if self.decode is not None:
            on, joules = on + self.steps * self.decode.on, joules + self.steps * self.decode.joules
        return on / joules

    def grams(self, joules: float) -> float | None:
        """Grams of CO2 in operation; ``None`` where nobody said how much a kWh has."""
        return None if self.asked.carbon is None else joules / JOULES_PER_KWH * self.asked.carbon.grams

    def terms(self, number: str) -> Term:
        """A number with its formula, of the devices alone: energy.prefill, energy.decode, energy.request, watts.prefill
        or watts.decode. Raises ``KeyError`` for another, or one that the batch does not have.
        """
        made: dict[str, Any] = {
            "energy.prefill": lambda: self._joules("prefill", name_term),
            "energy.request": lambda: self._request(name_term),
            "watts.prefill": lambda: self._watts("prefill", name_term),
        }
        if self.decode is not None:
            made["energy.decode"] = lambda: self._token(name_term)
            made["watts.decode"] = lambda: self._watts("decode", name_term)
        term: Term = name_term(made[number](), number, "W" if number.startswith("watts") else "J")
        return term

    def numbers(self) -> list[str]:
        """What :meth:`terms` knows of this batch."""
        decode = [] if self.decode is None else ["energy.decode", "watts.decode"]
        return ["energy.prefill", "energy.request", "watts.prefill", *decode]

    def _joules(self, phase: str, name: Naming) -> Num:
        """Of all devices in a phase."""
        which, latency = getattr(self.estimate, phase), "ttft" if phase == "prefill" else "tpot"
        seconds = name(float(getattr(self.estimate, latency)), latency, "s", ("number", latency))
        on, worked = step_joules(which, power_shares(which.deployment.hardware), seconds, name)
        return name(on, "for being on", "J") + name(worked, "for what they work", "J")

    def _token(self, name: Naming) -> Num:
        rows = name(float(self.estimate.load.batch), "batch", "", ("load", "batch"))
        if self.estimate.load.samples > 1:
            rows = rows * name(float(self.estimate.load.samples), "samples", "", ("load", "samples"))
        return name(self._joules("decode", name), "a decode step", "J") / rows

    def _request(self, name: Naming) -> Num:
        load = self.estimate.load
        batch = name(float(load.batch), "batch", "", ("load", "batch"))
        found = name(self.prefill.joules, "energy.prefill", "J", ("number", "energy.prefill")) / batch
        if self.decode is None:
            return found
        joules = self.decode.joules / float(load.sequences)
        token = name(joules, "energy.decode", "J", ("number", "energy.decode"))
        if load.samples > 1:
            token = token * name(float(load.samples), "samples", "", ("load", "samples"))
        return found + name(self.steps, "decode steps", "", ("load", "steps")) * token

    def _watts(self, phase: str, name: Naming) -> Num:
        latency = "ttft" if phase == "prefill" else "tpot"
        seconds = name(float(getattr(self.estimate, latency)), latency, "s", ("number", latency))
        ranks = name(self.estimate.deployment.parallel.ranks, "ranks", "", ("parallel", "ranks"))
        return name(self._joules(phase, name), "joules", "J") / (seconds * ranks)


def quickest(estimate: Estimate) -> tuple[float, float]:
    """TTFT under a cap if no clock lowers the voltage, and if voltage is in proportion to the clock [s]."""
    deployment, cap = estimate.deployment, estimate.deployment.cap
    assert cap is not None  # the caller has looked
    found = []
    for voltage in (0.0, 2.0):
        shares = cap.shares.model_copy(update={"voltage": voltage})
        other = replace(estimate, deployment=replace(deployment, cap=replace(cap, shares=shares)))
        found.append(float(np.max(other.ttft)))
    return found[0], found[1]
