"""The device: what it is, which catalogue entry it is, and the hardware that its measured ceilings describe."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from calibrate.kernels.target import target_of
from inferplan.catalog.files import load_hardware, names, validate
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import MissingFactError, UsageError
from inferplan.units import format_bytes, format_quantity

KINDS = ("cuda", "cpu", "mps")
_DEFAULT_CACHE = 32 << 20
_NOISE = {"nvidia", "amd", "intel", "apple", "geforce", "graphics", "gpu", "tesla", "generation", "instinct", "radeon"}
_VARIANTS = {"nvl", "pcie"}
"""Words in a name that make it another product."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device as its runtime reports it. memory, cache in bytes; units are SMs, compute units or cores in use."""

    kind: str
    name: str
    memory: float
    units: int
    cache: float
    software: dict[str, str]

    def describe(self) -> str:
        """One line: name, units, memory, software."""
        software = ", ".join(f"{name} {version}" for name, version in self.software.items())
        return f"{self.name} ({self.units} units, {format_bytes(self.memory)}; {software})"

    def record(self) -> dict[str, Any]:
        """The device as the raw file and the provenance hold it."""
        return asdict(self)

    @property
    def slug(self) -> str:
        """A name for files."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.kind} {self.name}".lower()).strip("-")


def identify(kind: str | None) -> Device:
    """The device asked for, or the best there is. Raises ``UsageError`` when it is not there."""
    if kind not in (None, *KINDS):
        raise UsageError(f"no kind of device named {kind!r}", hint=f"one of {', '.join(KINDS)}")
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if kind is None:
        kind = next(name for name in ("cuda", "mps", "cpu") if there[name])
    if not there[kind]:
        found = ", ".join(name for name, is_there in there.items() if is_there)
        raise UsageError(
            f"torch sees no {kind} device", because=f"torch {torch.__version__} sees: {found}", hint="--device cpu"
        )
    software = {"torch": torch.__version__, "python": platform.python_version()}
    if kind == "cuda":
        return _cuda(software)
    if kind == "mps":
        memory = float(torch.mps.recommended_max_memory())
        name = platform.processor() or "Apple GPU"
        return Device(kind=kind, name=name, memory=memory, units=1, cache=_DEFAULT_CACHE, software=software)
    return Device(
        kind=kind,
        name=_cpu_name(),
        memory=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        units=torch.get_num_threads(),
        cache=_cpu_cache(),
        software=software | {"instructions": str(torch.backends.cpu.get_cpu_capability())},
    )


def _cuda(software: dict[str, str]) -> Device:
    found = torch.cuda.get_device_properties(0)
    software["cuda"] = str(torch.version.cuda or torch.version.hip)
    software["architecture"] = str(target_of("cuda"))
    driver = Path("/proc/driver/nvidia/version")
    if driver.is_file():
        match = re.search(r"Module(?: for \S+)?\s+(\d+[\d.]*)", driver.read_text())
        software["driver"] = match[1] if match else "unknown"
    return Device(
        kind="cuda",
        name=found.name,
        memory=float(found.total_memory),
        units=found.multi_processor_count,
        cache=float(found.L2_cache_size or _DEFAULT_CACHE),
        software=software,
    )


def _cpu_name() -> str:
    table = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*:\s*(.+)", table.read_text()) if table.is_file() else None
    return " ".join((match[1] if match else platform.processor() or platform.machine()).split())


def _cpu_cache() -> float:
    caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    sizes = [float(p.read_text().strip().rstrip("KM")) * (1 << 20 if "M" in p.read_text() else 1 << 10) for p in caches]
    return max(sizes, default=_DEFAULT_CACHE)


def match(device: Device) -> HardwareSpec | None:
    """The catalogue entry of an accelerator: the model's number in the name, and the memory within 7 %.

    ``None`` when there is none, or when several fit equally well. A CPU matches nothing: how many of its cores and
    memory channels a program gets is not its model's to say.
    """
    if device.kind == "cpu":
        return None
    told = _tokens(device.name)
    scored: list[tuple[int, HardwareSpec]] = []
    for name in names("hardware"):
        spec = load_hardware(name)
        own = _tokens(" ".join([spec.name, spec.product, spec.form_factor, *spec.aliases]))
        numbers = {token for token in told if re.search(r"\d", token) and not re.fullmatch(r"\d+gb|hbm\w+", token)}
        usable = spec.memory.usable
        if told & _VARIANTS - own or _tokens(spec.name) & _VARIANTS - told:
            continue
        if not numbers or not numbers & own or usable is None or abs(device.memory / usable - 1) > 0.07:
            continue
        if spec.units is not None and spec.units != device.units:
            continue
        scored.append((len(told & own), spec))
    best = max((score for score, _ in scored), default=0)
    found = [spec for score, spec in scored if score == best]
    return found[0] if len(found) == 1 else None


def _tokens(text: str) -> set[str]:
    return {token for token in re.split(r"[^a-z0-9]+", text.lower()) if token and token not in _NOISE}


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The most that was measured: memory traffic [B/s], matmuls by arithmetic [FLOP/s], a link between two [B/s]."""

    bandwidth: float
    peak: dict[str, float]
    link: float | None = None
    detail: dict[str, float] | None = None


def measured_hardware(device: Device, ceilings: Ceilings, date: str) -> dict[str, Any]:
    """The mapping of a hardware YAML in which every figure is this measurement."""
    source = f"measured on {date}: {device.describe()}"
    data: dict[str, Any] = {
        "name": device.slug,
        "vendor": device.name.split()[0],
        "product": device.name,
        "unit": f"per {'process of ' + str(device.units) + ' threads' if device.kind == 'cpu' else 'device'}",
        "source": source,
        "confidence": "low",
        "notes": [
            "Bandwidth and peaks are what large copies, reads and matmuls reached in torch, not the data sheet's."
        ],
        "memory": {
            "label": format_bytes(device.memory),
            "bandwidth": format_quantity(ceilings.bandwidth, "B/s"),
            "usable": f"{device.memory:.0f} B",
            "usable_basis": "the runtime's report",
        },
        "peak": {name: format_quantity(rate, "FLOP/s") for name, rate in ceilings.peak.items()},
        "units": device.units,
        "cache": f"{device.cache:.0f} B",
    }
    if ceilings.link is not None:
        note = "two processes of this machine, by the largest message"
        link = {"name": "torch.distributed", "bandwidth": format_quantity(ceilings.link, "B/s"), "domain": 2}
        data["links"] = [link | {"note": note}]
    return data


def as_hardware(data: dict[str, Any]) -> HardwareSpec:
    """The mapping as a spec."""
    return validate(Path("(measured hardware)"), data, HardwareSpec)


def ceilings_of(rates: dict[str, float]) -> Ceilings:
    """The ceilings in named rates. Raises ``MissingFactError`` without a bandwidth."""
    memory = [rate for name, rate in rates.items() if name in ("copy", "read")]
    peaks = {name.removeprefix("matmul."): rate for name, rate in rates.items() if name.startswith("matmul.")}
    if not memory or not peaks:
        raise MissingFactError("no ceilings were measured", hint="a longer --budget")
    return Ceilings(bandwidth=max(memory), peak=peaks, link=rates.get("link"), detail=dict(rates))
