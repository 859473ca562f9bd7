"""The device: what it is, which catalogue entry it is, and the hardware that its measured ceilings describe."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from calibrate.device import machine
from calibrate.kernels.libraries import versions
from calibrate.kernels.target import target_of
from inferplan.catalog.files import config_root, load_hardware, names, validate
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import MissingFactError, UsageError
from inferplan.units import format_bytes, format_quantity
from inferplan.work.formats import find_format

KINDS = ("cuda", "cpu", "mps")
REFUSED = {
    "xpu": "an Intel GPU",
    "hpu": "an Intel Gaudi",
    "tpu": "a TPU",
    "npu": "an Ascend NPU",
}
"""Kinds that torch or a plug-in of it knows and that have no timer here, and what they are."""
_NOISE = {"nvidia", "amd", "intel", "apple", "geforce", "graphics", "gpu", "tesla", "generation", "instinct", "radeon"}
_NAMED = {"nvl", "pcie"}
"""Words without which a name is another product: an H200 that does not say NVL is the SXM one."""
_VARIANTS = _NAMED | {"sxm", "laptop", "mobile", "q", "sff"}
"""Words in a name that make it another product than an entry without them (Q: Max-Q, a lower power limit)."""
GFX = {
    "gfx90a": ("mi210", "mi250x-gcd"),
    "gfx942": ("mi300x", "mi325x"),
    "gfx950": ("mi350x", "mi355x"),
    "gfx1100": ("rx-7900-xtx",),
    "gfx1201": ("rx-9070-xt", "radeon-ai-pro-r9700"),
}
"""Catalogue entries of AMD's architectures (``gcnArchName``; LLVM's AMDGPU processors table): containers without the
table of product names report "AMD Radeon Graphics" for all of them."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device as its runtime reports it.

    memory: bytes. units: SMs, compute units or cores in use. cache: bytes that operands must exceed to come from
    memory: the last-level cache, or (not ``cache_known``) a bound that no device of its kind exceeds. software:
    versions of torch, the runtime, the driver and the kernel libraries, and the architecture that kernels are compiled
    for. state: how the device was set and what it did, in words: power cap, clocks, ECC, MIG, and which tool said so
    (:mod:`calibrate.device.health`).
    """

    kind: str
    name: str
    memory: float
    units: int
    cache: float
    software: dict[str, str]
    cache_known: bool = True
    state: dict[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """One line: name, units, memory, software."""
        software = ", ".join(f"{name} {version}" for name, version in self.software.items())
        return f"{self.name} ({self.units} units, {format_bytes(self.memory)}; {software})"

    def record(self) -> dict[str, Any]:
        """The device as the raw file and the provenance hold it."""
        return asdict(self)

    @classmethod
    def of(cls, record: dict[str, Any]) -> Device:
        """The device that :meth:`record` wrote."""
        return cls(**{one.name: record[one.name] for one in fields(cls) if one.name in record})

    @property
    def architecture(self) -> str:
        """What kernels are compiled for (``SM90``, ``gfx942``); empty where nothing says so."""
        return self.software.get("architecture", "")

    @property
    def slug(self) -> str:
        """A name for files."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.kind} {self.name}".lower()).strip("-")


def identify(kind: str | None) -> Device:
    """The device asked for, or the best there is.

    Raises ``UsageError`` when it is not there, and for an accelerator that cannot be timed here: it is never passed
    over for the CPU in silence.
    """
    if kind in REFUSED:
        raise _refusal(kind)
    if kind not in (None, *KINDS):
        raise UsageError(f"no kind of device named {kind!r}", hint=f"one of {', '.join(KINDS)}")
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if kind is None:
        kind = next(name for name in ("cuda", "mps", "cpu") if there[name])
        if kind == "cpu":
            for other in REFUSED:
                if _is_there(other):
                    raise _refusal(other)
    if not there[kind]:
        found = ", ".join(name for name, is_there in there.items() if is_there)
        lacks = kind == "cuda" and not _has_gpu_build()
        other = "a build of torch with CUDA or ROCm (this one has neither), or " if lacks else ""
        raise UsageError(
            f"torch sees no {kind} device",
            because=f"torch {torch.__version__} sees: {found}",
            hint=f"{other}--device cpu",
        )
    software = {"torch": torch.__version__, "python": platform.python_version()}
    kinds: dict[str, Callable[[dict[str, str]], Device]] = {"cuda": _cuda, "mps": _mps, "cpu": _cpu}
    return kinds[kind](software)


def _has_gpu_build() -> bool:
    return bool(torch.version.cuda or torch.version.hip)


def _is_there(kind: str) -> bool:
    backend = getattr(torch, kind, None)
    return bool(backend is not None and hasattr(backend, "is_available") and backend.is_available())


def _refusal(kind: str) -> UsageError:
    return UsageError(
        f"{REFUSED[kind]} ({kind}) cannot be calibrated",
        because="its streams, events and graphs have no timer here, and by the wall clock launches would count as "
        "kernels",
        hint="--device cpu measures the host; the catalogue's entries are priced without a calibration",
    )


def _cuda(software: dict[str, str]) -> Device:
    found = torch.cuda.get_device_properties(0)
    hip = torch.version.hip is not None
    software["hip" if hip else "cuda"] = str(torch.version.hip or torch.version.cuda)
    driver = machine.driver_version()
    if driver is not None:
        software["driver"] = driver
    target = target_of("cuda")
    software["architecture"] = str(target)
    software |= versions(target)
    device = Device(
        kind="cuda",
        name=found.name,
        memory=float(found.total_memory),
        units=found.multi_processor_count,
        cache=float(found.L2_cache_size or 0),
        software=software,
    )
    spec = match(device)
    stated = spec.cache if spec is not None else None
    if stated is None and (hip or not device.cache):  # the runtime tells of L2 only, and there may be more behind it
        return replace(device, cache=max(device.cache, float(machine.UNKNOWN_CACHE)), cache_known=False)
    return replace(device, cache=max(device.cache, stated or 0.0))


def _mps(software: dict[str, str]) -> Device:
    software["macos"] = platform.mac_ver()[0]
    backend = torch.backends.mps
    name = backend.get_name() if hasattr(backend, "get_name") else machine.processor_name()
    cores = backend.get_core_count() if hasattr(backend, "get_core_count") else machine.apple_gpu_cores()
    return Device(
        kind="mps",
        name=name or machine.processor_name(),
        memory=float(torch.mps.recommended_max_memory()),
        units=int(cores),
        cache=float(machine.APPLE_CACHE),
        cache_known=False,
        software=software,
    )


def _cpu(software: dict[str, str]) -> Device:
    cache = machine.processor_cache()
    return Device(
        kind="cpu",
        name=machine.processor_name(),
        memory=machine.memory_size(),
        units=torch.get_num_threads(),
        cache=float(machine.APPLE_CACHE) if cache is None else cache,
        cache_known=cache is not None,
        software=software | {"instructions": str(torch.backends.cpu.get_cpu_capability())},
    )


def match(device: Device) -> HardwareSpec | None:
    """The catalogue entry of an accelerator: the model's number in the name, its units, and the memory within 7 %.

    AMD's go by their architecture where the name has no number. Apple's go by chip and cores, whatever their memory:
    one chip is sold with several sizes of it. ``None`` when there is none, or when several fit equally well. A CPU
    matches nothing: how many of its cores and memory channels a program gets is not its model's to say.
    """
    if device.kind == "cpu":
        return None
    told = _tokens(device.name)
    scored = []
    for spec in _catalogue(config_root()):
        own = _tokens(" ".join([spec.name, spec.product, spec.form_factor, *spec.aliases]))
        if _same_product(device, spec, told, own) and _same_size(device, spec):
            scored.append((len(told & own), spec))
    best = max((score for score, _ in scored), default=0)
    found = [spec for score, spec in scored if score == best]
    return found[0] if len(found) == 1 else None


@cache
def _catalogue(root: Path) -> tuple[HardwareSpec, ...]:
    """Every entry of the hardware catalogue under ``root``."""
    return tuple(map(load_hardware, names("hardware")))


def _same_product(device: Device, spec: HardwareSpec, told: set[str], own: set[str]) -> bool:
    if told & (_VARIANTS - own) or _tokens(spec.name) & (_NAMED - told):
        return False
    numbers = {token for token in told if re.search(r"\d", token) and not re.fullmatch(r"\d+gb?|hbm\w+", token)}
    if not numbers:
        return spec.name in GFX.get(device.architecture, ())
    return bool(numbers & own)


def _same_size(device: Device, spec: HardwareSpec) -> bool:
    """Whether units and memory agree. RDNA's runtime counts pairs of compute units (gfx10 to gfx12)."""
    paired = device.architecture.startswith("gfx1")
    if spec.units is not None and spec.units not in (device.units, 2 * device.units if paired else device.units):
        return False
    if device.kind == "mps":
        return spec.units is not None
    return spec.memory.usable is not None and abs(device.memory / spec.memory.usable - 1) <= 0.07


def _tokens(text: str) -> set[str]:
    words = {re.sub(r"^sxm\d+$", "sxm", token) for token in re.split(r"[^a-z0-9]+", text.lower())}
    return words - _NOISE - {""}


HOST_WAYS = ("device to host", "host to device")
"""Ceilings of copies between the host's pinned memory and the device."""


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The most that was measured: memory traffic [B/s], matmuls by arithmetic [FLOP/s], a link between two [B/s], and
    the slower way between pinned memory of the host and the device [B/s]."""

    bandwidth: float
    peak: dict[str, float]
    link: float | None = None
    host: float | None = None
    detail: dict[str, float] | None = None


def with_wider(peaks: dict[str, float]) -> tuple[dict[str, float], list[str]]:
    """Peaks of which none is below that of a wider format, and a line on each that is raised.

    Values of a narrower format convert to a wider one as they are, so a device multiplies them at least at its rate
    there: a lower figure is that of a library without a kernel for this device.
    """
    found, said = {}, []
    bits = {name: find_format(name).bits for name in peaks}
    for name, rate in peaks.items():
        wider = max((other for other in peaks if bits[other] > bits[name]), key=peaks.__getitem__, default=name)
        found[name] = max(rate, peaks[wider])
        if found[name] > rate:
            said.append(
                f"{name}: torch's matmul reached {format_quantity(rate, 'FLOP/s')}; the peak is that of {wider}, to "
                "which its values convert"
            )
    return found, said


def measured_hardware(device: Device, ceilings: Ceilings, date: str) -> dict[str, Any]:
    """The mapping of a hardware YAML in which every figure is this measurement; peaks by :func:`with_wider`."""
    peaks, raised = with_wider(ceilings.peak)
    source = f"measured on {date}: {device.describe()}"
    data: dict[str, Any] = {
        "name": device.slug,
        "vendor": device.name.split()[0],
        "product": device.name,
        "unit": f"per {'process of ' + str(device.units) + ' threads' if device.kind == 'cpu' else 'device'}",
        "source": source,
        "confidence": "low",
        "measured": True,
        "notes": [
            "Bandwidth and peaks are what large copies, reads and matmuls reached in torch, not the data sheet's: the "
            "device can do at least that.",
            *raised,
        ],
        "memory": {
            "label": format_bytes(device.memory),
            "bandwidth": format_quantity(ceilings.bandwidth, "B/s"),
            "usable": f"{device.memory:.0f} B",
            "usable_basis": "the runtime's report",
        },
        "peak": {name: format_quantity(rate, "FLOP/s") for name, rate in peaks.items()},
        "units": device.units,
    }
    if device.cache_known:
        data["cache"] = f"{device.cache:.0f} B"
    if device.kind == "cpu":
        data["thread_blocks"] = False
    if ceilings.link is not None:
        note = "two processes of this machine, by the largest message"
        link = {"name": "torch.distributed", "bandwidth": format_quantity(ceilings.link, "B/s"), "domain": 2}
        data["links"] = [link | {"note": note}]
    if ceilings.host is not None:
        rate = format_quantity(ceilings.host, "B/s")
        data["host_link"] = {"name": "pinned memory", "bandwidth": rate, "note": "the slower way of large copies"}
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
    ways = [rates[name] for name in HOST_WAYS if name in rates]
    host = min(ways) if len(ways) == len(HOST_WAYS) else None
    return Ceilings(bandwidth=max(memory), peak=peaks, link=rates.get("link"), host=host, detail=dict(rates))
