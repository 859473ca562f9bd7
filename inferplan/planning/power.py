"""A budget of watts for a plan: by the nameplates of its devices, or by what they draw on average (docs/power.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from inferplan.catalog.energy import EnergyAsked
from inferplan.catalog.power import standing_watts
from inferplan.estimate.deployment import Deployment
from inferplan.fields import Quantity, Topic, Words, ask, need, part

Provision = Literal["tdp", "mean"]


@dataclass(frozen=True, kw_only=True)
class PowerBudget:
    """The most watts that a plan may take. provision: what is held to it: ``tdp``, the TDP of every device or the cap
    on it, whatever it does; ``mean``, what devices draw at the load. beside: what is counted beside the devices.
    """

    topic: ClassVar = Topic("a power budget", "none is given", "--power-budget 40kW")
    watts: float = field(
        metadata=need(
            "--power-budget", Quantity("watts", above=True), "The most of all devices, spare ones too, such as 40kW."
        )
    )
    provision: Provision = ask(
        "--provision",
        Words(get_args(Provision)),
        "What is held to it: nameplates (TDP, or the cap), or what devices draw on average [tdp].",
        "tdp",
    )
    beside: EnergyAsked = part(EnergyAsked, EnergyAsked(), "pue", "host_watts")

    def least(self, kinds: Iterable[tuple[Deployment, int]]) -> float:
        """Watts that deployments on so many devices take in any case: all of it, or what they draw for being on.

        Raises ``MissingFactError`` for a device whose TDP is not on file.
        """
        named = self.provision == "tdp"
        return sum(self.whole(nameplate(one) if named else standing_watts(one.hardware), n) for one, n in kinds)

    @property
    def fills(self) -> bool:
        """Whether replicas that an instance holds besides may run: each draws watts."""
        return self.provision == "tdp"

    def allows(self, kinds: Iterable[tuple[Deployment, int]]) -> bool:
        """Whether deployments on so many devices take no more, as far as that is known without a run."""
        return self.least(kinds) <= self.watts * (1 + 1e-9)

    def whole(self, watts: float, devices: float) -> float:
        """Watts of so many devices of ``watts`` each, with what is counted beside them."""
        return self.beside.pue * (watts + self.beside.host_watts) * devices

    def describe(self) -> str:
        """In words."""
        how = "nameplate" if self.provision == "tdp" else "mean draw"
        return f"{self.watts / 1e3:,.3g} kW ({how}, {self.beside.scope})"


def nameplate(deployment: Deployment) -> float:
    """The most watts that one of its devices draws: the cap, else TDP."""
    return deployment.hardware.tdp if deployment.cap is None else deployment.cap.watts
