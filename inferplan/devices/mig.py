"""Instances of NVIDIA Multi-Instance GPU: a part of a device as a device of its own (docs/mig.md).

The table is ``configs/mig.yaml``. An instance has its multiprocessors at the clock of the whole, and with each memory
slice an eighth of the bandwidth.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from inferplan.devices.hardware import HardwareSpec, Slice
from inferplan.errors import UsageError
from inferplan.spec import Field, Spec
from inferplan.units import Bytes

EIGHTHS = 8
"""Memory slices of a GPU: NVIDIA Multi-Instance GPU User Guide, Concepts."""


class MigProfile(Spec):
    """One row of a table of profiles. units: multiprocessors. cache_slices: eighths of the L2. instances: of a GPU.
    starts: memory slices at which one may begin; nothing where they were not found."""

    units: int = Field(ge=1)
    memory: Bytes
    memory_slices: int = Field(ge=1, le=EIGHTHS)
    cache_slices: int = Field(ge=1, le=EIGHTHS)
    instances: int = Field(ge=1)
    starts: list[int] = []


class Device(Spec):
    """The profiles of a GPU, by name."""

    source: str
    profiles: dict[str, MigProfile]


class MigTable(Spec):
    """``configs/mig.yaml``."""

    source: str
    gpus: dict[str, Device]

    def of(self, whole: HardwareSpec, name: str) -> tuple[Device, MigProfile]:
        """A device's table and one profile in it. Raises ``UsageError`` for what is not on file."""
        if whole.name not in self.gpus:
            known = next(f"{gpu}:{profile}" for gpu, device in self.gpus.items() for profile in device.profiles)
            raise UsageError(
                f"no MIG profiles of {whole.name} are on file",
                because=f"known are those of {', '.join(self.gpus)}",
                hint=f"--gpu {known}, or the whole GPU",
            )
        device = self.gpus[whole.name]
        if name not in device.profiles:
            raise UsageError(
                f"{whole.name} has no MIG profile {name} on file",
                because=f"known are {', '.join(device.profiles)}",
                hint=f"--gpu {whole.name}:{next(iter(device.profiles))}",
            )
        return device, device.profiles[name]


def cuts(profiles: Sequence[MigProfile]) -> list[tuple[int, ...]]:
    """Every way to cut a GPU into instances of these profiles to which none can be added, by how many of each."""

    def further(at: int) -> Iterator[tuple[int, ...]]:
        """Instances from a memory slice on."""
        if at == EIGHTHS:
            yield (0,) * len(profiles)
            return
        yield from further(at + 1)
        for place, one in enumerate(profiles):
            if at in one.starts and at + one.memory_slices <= EIGHTHS:
                for rest in further(at + one.memory_slices):
                    yield (*rest[:place], rest[place] + 1, *rest[place + 1 :])

    return largest(set(further(0)))


def largest(counts: Collection[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Those of which no other has as many of everything."""
    found: list[tuple[int, ...]] = []
    for one in sorted(counts, key=lambda one: (-sum(one), one)):
        if not any(all(more >= mine for more, mine in zip(other, one)) for other in found):
            found.append(one)
    return found


def instance_of(whole: HardwareSpec, name: str, table: MigTable, measured: str) -> HardwareSpec:
    """One instance of a device. Raises ``UsageError`` for a device without profiles on file, or without this one.

    Peaks go with multiprocessors, bandwidth with memory slices; memory and cache are those of the table. Links, power
    and the way to the host are not on file. measured: the device whose constants stand for the whole.
    """
    device, profile = table.of(whole, name)
    units = whole.units or 0
    computing = profile.units / units
    return whole.model_copy(
        update={
            "name": f"{whole.name}:{name}",
            "product": f"{whole.product}, MIG {name}",
            "aliases": [],
            "unit": "per MIG instance",
            "node": None if whole.node is None else whole.node * profile.instances,
            "relative": measured,
            "same_chip": False,
            "source": f"{table.source}; {device.source}; the whole: {whole.source}",
            "confidence": "medium",
            "notes": [_note(whole, profile), *whole.notes],
            "memory": whole.memory.model_copy(update=_memory(whole, name, profile)),
            "peak": {math: peak * computing for math, peak in whole.peak.items()},
            "links": [],
            "host_link": None,
            "units": profile.units,
            "cache": None if whole.cache is None else whole.cache * profile.cache_slices / EIGHTHS,
            "power": None,
            "derivation": {},
            "part": Slice(
                of=whole.name,
                profile=name,
                instances=profile.instances,
                units=profile.units * profile.instances,
                whole_units=units,
                memory_eighths=profile.memory_slices * profile.instances,
            ),
        }
    )


def _memory(whole: HardwareSpec, name: str, profile: MigProfile) -> dict[str, Any]:
    """What differs from the memory of the whole."""
    known = whole.memory.usable
    return {
        "label": f"{name.partition('.')[2].removesuffix('gb')} GB of {whole.memory.label}",
        "bandwidth": whole.memory.bandwidth * (profile.memory_slices / EIGHTHS),
        "usable": profile.memory if known is None else min(profile.memory, known),
        "usable_basis": "nvidia-smi mig -lgip",
    }


def _note(whole: HardwareSpec, profile: MigProfile) -> str:
    return (
        f"One of {profile.instances} such instances of a GPU: {profile.units} of {whole.units} multiprocessors and "
        f"{profile.memory_slices} of {EIGHTHS} memory slices with an eighth of the bandwidth each; none was measured."
    )
