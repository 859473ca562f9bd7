"""The shares of TDP on file, and caps as they are asked for."""

from __future__ import annotations

from functools import cache
from typing import Any

from inferplan.catalog.files import config_root, spec_of
from inferplan.devices.hardware import HardwareSpec
from inferplan.devices.power import PowerCap, PowerShares
from inferplan.errors import UsageError
from inferplan.spec import Spec, model_validator

CLOCKS = "clocks"
"""Where the file says what is the same of all devices: how they draw at another clock."""


class _OnFile(Spec):
    """The file: the first whose ``vendors`` have a device's, or that names none."""

    shares: tuple[PowerShares, ...]

    @model_validator(mode="before")
    @classmethod
    def _with_clocks(cls, read: Any) -> Any:
        """Each of the shares with what all have in common."""
        return {"shares": [{**read[CLOCKS], **one} for one in read["shares"]]}


@cache
def _on_file() -> tuple[PowerShares, ...]:
    return spec_of(config_root() / "power.yaml", _OnFile).shares


def power_place(hardware: HardwareSpec) -> int:
    """Which of the shares on file (``configs/power.yaml``) are a device's: its maker's, or those of all others."""
    return next(place for place, one in enumerate(_on_file()) if not one.vendors or hardware.vendor in one.vendors)


def power_shares(hardware: HardwareSpec) -> PowerShares:
    """The shares of TDP that a device draws."""
    return _on_file()[power_place(hardware)]


def standing_watts(hardware: HardwareSpec) -> float:
    """What a device draws while its server has a model loaded and runs no step [W]. Raises ``MissingFactError`` without
    a TDP."""
    return hardware.tdp * power_shares(hardware).standing


def power_cap(hardware: HardwareSpec, watts: float) -> PowerCap:
    """A cap on each device. Raises ``UsageError`` for one above TDP, or so low that the clock alone cannot keep it."""
    tdp, shares = hardware.tdp, power_shares(hardware)
    lowest = (shares.static + shares.memory) * tdp
    if watts > tdp:
        raise UsageError(
            f"a cap of {watts:g} W is above what {hardware.name} draws",
            because=f"its TDP is {tdp:g} W",
            hint=f"--power-cap {tdp:g}W or less",
        )
    if watts <= lowest:
        raise UsageError(
            f"a cap of {watts:g} W is below what the law of clocks covers on {hardware.name}",
            because=f"{shares.static + shares.memory:.1%} of its TDP of {tdp:g} W, {lowest:.1f} W, are drawn at any "
            "clock by a kernel that reads memory at full rate",
            hint=f"--power-cap {int(lowest) + 1}W or more, up to {tdp:g}W",
        )
    return PowerCap(watts=watts, tdp=tdp, shares=shares)
