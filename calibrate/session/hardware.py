"""The hardware that measurements are compared with: the catalogue's entry, or the measured ceilings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from calibrate.device.device import Device, as_hardware, ceilings_of, match, measured_hardware
from calibrate.session.raw_file import Session
from inferplan.catalog.files import load_hardware
from inferplan.devices.constants import Calibration
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import MissingFactError, UsageError
from inferplan.units import format_quantity
from inferplan.work.ops import Copy, Elementwise, Matmul

SLOWEST, FASTEST = 0.2, 1.5
"""Share of its stated bandwidth that a device is believed to reach at the least and at the most."""
STREAM = 16e6
"""Bytes of an operator from which its rate counts as one of memory."""
ROWS = 256.0
"""Rows of a matmul from which its rate counts as one of the arithmetic: those of the smallest ceiling."""
CALM = 3
"""Visits that nothing disturbed from which an operator says what can be reached: a lap that is too short is no median
of three."""


def hardware_of(device: Device, session: Session, gpu: str | None) -> tuple[HardwareSpec, dict[str, Any] | None]:
    """The hardware to compare with: the catalogue's, or what the measured ceilings describe (and its mapping).

    Raises ``MissingFactError`` where it is neither in the catalogue nor were ceilings measured, ``UsageError`` where
    the device cannot be the one that ``gpu`` names.
    """
    found = load_hardware(gpu) if gpu else match(device)
    if found is not None:
        if gpu:
            _require_alike(found, device, session)
        return found, None
    if not session.ceilings and "ceilings" in session.failed:
        raise MissingFactError("no ceilings were measured", because=session.failed["ceilings"], hint="--resume")
    data = measured_hardware(device, ceilings_of(reached(session)), _today())
    return as_hardware(data), data


def _require_alike(named: HardwareSpec, device: Device, session: Session) -> None:
    """Raise ``UsageError`` where memory is much slower or faster than that of the device that ``--gpu`` names: its
    constants would be lies about that one."""
    rates = [rate for name, rate in session.ceilings.items() if name in ("copy", "read")]
    share = max(rates, default=named.memory.bandwidth) / named.memory.bandwidth
    if not SLOWEST <= share <= FASTEST:
        raise UsageError(
            f"{device.name} is no {named.name}",
            because=f"it reached {format_quantity(max(rates), 'B/s')}, and the memory of {named.name} has "
            f"{format_quantity(named.memory.bandwidth, 'B/s')}",
            hint="--gpu names the catalogue entry that the device is; --new-hardware FILE describes one that has none",
        )


def reached(session: Session) -> dict[str, float]:
    """The ceilings of a session [B/s, FLOP/s], raised to what its own operators reached.

    A ceiling is what can be reached: a copy that was timed while something else held the memory must not cap kernels
    that were timed a hundred times. Operators count from :data:`CALM` visits that nothing disturbed: with
    :data:`STREAM` bytes or more, whose operands no cache keeps, as memory, and matmuls of :data:`ROWS` rows or more
    with their arithmetic, where a ceiling of that format was measured. Few rows are another kernel, whose rate many
    rows do not reach (bf16 on a CPU without bf16 arithmetic).
    """
    rates = dict(session.ceilings)

    def raised(name: str, rate: float) -> None:
        if name in rates:
            rates[name] = max(rates[name], rate)

    for key, samples in session.samples.items():
        op, work = session.shapes[key], session.shapes[key].work()
        if sum(sample.calm for sample in samples) < CALM or not isinstance(op, (Matmul, Elementwise, Copy)):
            continue
        seconds = session.seconds(key)
        if float(work.bytes) >= STREAM:
            raised("read", float(work.bytes) / seconds)
        if isinstance(op, Matmul) and float(op.m) >= ROWS:
            raised(f"matmul.{op.math}", float(work.flop) / seconds)
    return rates


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
