"""The hardware that measurements are compared with: the catalogue's entry, or the measured ceilings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from calibrate.device.device import Device, as_hardware, ceilings_of, match, measured_hardware
from calibrate.session.raw_file import Session
from inferplan.catalog.files import load_hardware
from inferplan.devices.constants import Calibration
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import MissingFactError


def hardware_of(device: Device, session: Session, gpu: str | None) -> tuple[HardwareSpec, dict[str, Any] | None]:
    """The hardware to compare with: the catalogue's, or what the measured ceilings describe (and its mapping)."""
    found = load_hardware(gpu) if gpu else match(device)
    if found is not None:
        return found, None
    data = measured_hardware(device, ceilings_of(session.ceilings), _today())
    return as_hardware(data), data


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


def hardware_behind(stored: Calibration, device: Device, gpu: str | None) -> HardwareSpec:
    """The hardware that stored constants refer to: the one measured with them, or the catalogue's.

    Raises ``MissingFactError`` when the device is no entry of the catalogue.
    """
    data = stored.provenance.get("hardware")
    if data is not None:
        return as_hardware(data)
    found = load_hardware(gpu) if gpu else match(device)
    if found is None:
        raise MissingFactError(
            f"the constants of {stored.name} refer to hardware that {device.name} does not match",
            hint="--gpu NAME of the catalogue entry",
        )
    return found
