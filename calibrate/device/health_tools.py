"""The tools that tell a device's health: NVML and ``nvidia-smi``, ``amdsmi`` and ``rocm-smi``."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from calibrate.device.health import Reading, Tool

T = TypeVar("T")
REASONS = {
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "synchronised with other devices",
    0x020: "too hot",
    0x040: "hardware too hot",
    0x080: "power brake",
    0x002: "set by the user",
    0x100: "set for a display",
}
"""NVML's ``nvmlClocksEventReasons`` (nvml.h), but for "idle" (1), which is none while laps run."""
LIMIT = 5.0
"""Seconds after which a command line tool is taken to hang."""


def find_tool(kind: str) -> Tool | None:
    """The first tool that answers for torch's first device of a kind; ``None`` when none does."""
    if kind != "cuda":
        return None
    tools: tuple[Callable[[], Tool], ...] = (AmdSmi, RocmSmi) if torch.version.hip else (Nvml, NvidiaSmi)
    for tool in tools:
        try:
            found = tool()
            found.read()
        except Exception:  # no such module, no such command, no permission, no driver behind it
            continue
        return found
    return None


def reasons(bits: int) -> tuple[str, ...]:
    """Why an NVIDIA device's clocks are not higher, in words."""
    return tuple(words for bit, words in REASONS.items() if bits & bit)


def address() -> str | None:
    """The PCI address of torch's first device (``0000:3b:00.0``); ``None`` where torch does not tell."""
    found = torch.cuda.get_device_properties(0)
    if not all(hasattr(found, name) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")):
        return None
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def _uuid() -> str | None:
    told = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    return None if told is None else f"GPU-{str(told).removeprefix('GPU-')}"


def _visible(*variables: str) -> int:
    """The index of the first device that an environment variable leaves visible."""
    for variable in variables:
        first = os.environ.get(variable, "").split(",")[0].strip()
        if first.isdigit():
            return int(first)
    return 0


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class Nvml:
    """NVIDIA's management library by ``pynvml`` (package ``nvidia-ml-py``)."""

    name = "NVML"

    def __init__(self) -> None:
        self.nvml = importlib.import_module("pynvml")
        self.nvml.nvmlInit()
        self._handle = self._found()

    def _found(self) -> Any:
        uuid, pci = _uuid(), address()
        if uuid is not None:
            for name in (uuid, uuid.replace("GPU-", "MIG-", 1)):
                handle = self._ask(lambda name=name: self.nvml.nvmlDeviceGetHandleByUUID(name))  # type: ignore[misc]
                if handle is not None:
                    return handle
        if pci is not None:
            return self.nvml.nvmlDeviceGetHandleByPciBusId(pci)
        return self.nvml.nvmlDeviceGetHandleByIndex(_visible("CUDA_VISIBLE_DEVICES"))

    def _ask(self, call: Callable[[], T]) -> T | None:
        """An answer, or ``None`` where this device does not give it."""
        try:
            return call()
        except (self.nvml.NVMLError, AttributeError):  # not supported by the device, or by this release of the module
            return None

    def facts(self) -> dict[str, str]:
        """Driver, power cap, highest clocks, ECC and MIG."""
        nvml, handle = self.nvml, self._handle
        cap = self._ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        usual = self._ask(lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
        top = self._ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))
        ecc = self._ask(lambda: nvml.nvmlDeviceGetEccMode(handle)[0])
        mig = self._ask(lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
        told = {
            "driver": self._ask(lambda: _text(nvml.nvmlSystemGetDriverVersion())),
            "power cap": None if cap is None else _cap(cap / 1e3, None if usual is None else usual / 1e3),
            "highest clock": None if top is None else f"{top} MHz",
            "ECC": None if ecc is None else ("on" if ecc else "off"),
            "MIG": None if mig is None else ("on" if mig else "off"),
        }
        return {name: value for name, value in told.items() if value is not None}

    def read(self) -> Reading:
        """Clocks, power, temperature, and what holds the clocks down. Raises what NVML raises without a clock."""
        nvml, handle = self.nvml, self._handle
        clock = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
        memory = self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
        power = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        heat = self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        bits = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        if bits is None:
            bits = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        return Reading(
            clock=clock * 1e6,
            memory_clock=None if memory is None else memory * 1e6,
            power=None if power is None else power / 1e3,
            temperature=None if heat is None else float(heat),
            slowed=reasons(bits or 0),
        )

    def processes(self) -> Mapping[int, float | None]:
        """Processes that compute on the device, with the share of its SMs that they used in the last second."""
        nvml, handle = self.nvml, self._handle
        running = self._ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
        found: dict[int, float | None] = {int(process.pid): None for process in running}
        if len(found) > 1:
            since = int((time.time() - 1.0) * 1e6)
            try:
                uses = nvml.nvmlDeviceGetProcessUtilization(handle, since)
            except (nvml.NVMLError, AttributeError) as error:
                if type(error).__name__ != "NVMLError_NotFound":  # not told on this device
                    return found
                uses = []  # nobody computed in that second
            found = dict.fromkeys(found, 0.0)
            for use in uses:
                if use.pid in found:
                    found[use.pid] = max(found[use.pid] or 0.0, use.smUtil / 100)
        return found


def _cap(watts: float, usual: float | None) -> str:
    return f"{watts:.0f} W" + ("" if usual is None else f" of {usual:.0f} W")


def _run(*command: str) -> str:
    """What a command prints. Raises ``OSError`` or ``SubprocessError`` when there is none or it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
    return done.stdout


class NvidiaSmi:
    """``nvidia-smi``: the same by a command, some tenths of a second each, so asked a few times a minute."""

    name = "nvidia-smi"
    FACTS = (
        "driver_version",
        "enforced.power.limit",
        "power.default_limit",
        "clocks.max.sm",
        "ecc.mode.current",
        "mig.mode.current",
    )
    READ = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")

    def __init__(self) -> None:
        self._device = _uuid() or address() or str(_visible("CUDA_VISIBLE_DEVICES"))
        self._command = shutil.which("nvidia-smi") or "nvidia-smi"
        self._reasons = "clocks_event_reasons.active"
        try:
            self._query(self._reasons)
        except subprocess.CalledProcessError:  # drivers before R535 know them by another name
            self._reasons = "clocks_throttle_reasons.active"

    def _query(self, *fields: str) -> list[str | None]:
        told = _run(
            self._command, f"--id={self._device}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"
        )
        values = [value.strip() for value in told.strip().splitlines()[0].split(",")]
        return [
            None if not value or value.strip("[]").upper().startswith(("N/A", "NOT")) else value for value in values
        ]

    def facts(self) -> dict[str, str]:
        """Driver, power cap, highest clock, ECC and MIG."""
        driver, cap, usual, top, ecc, mig = self._query(*self.FACTS)
        told = {
            "driver": driver,
            "power cap": None if cap is None else _cap(float(cap), None if usual is None else float(usual)),
            "highest clock": None if top is None else f"{top} MHz",
            "ECC": None if ecc is None else ("on" if ecc == "Enabled" else "off"),
            "MIG": None if mig is None else ("on" if mig == "Enabled" else "off"),
        }
        return {name: value for name, value in told.items() if value is not None}

    def read(self) -> Reading:
        """Clocks, power, temperature, and what holds the clocks down. Raises ``SubprocessError`` when it fails."""
        clock, memory, power, heat, bits = self._query(*self.READ, self._reasons)
        return Reading(
            clock=None if clock is None else float(clock) * 1e6,
            memory_clock=None if memory is None else float(memory) * 1e6,
            power=None if power is None else float(power),
            temperature=None if heat is None else float(heat),
            slowed=reasons(0 if bits is None else int(bits, 16)),
        )

    def processes(self) -> Mapping[int, float | None]:
        """Processes that compute on the device; how much, it does not tell."""
        told = _run(self._command, f"--id={self._device}", "--query-compute-apps=pid", "--format=csv,noheader")
        return {int(line): None for line in told.split() if line.isdigit()}


class AmdSmi:
    """AMD's management library by its own Python module, ``amdsmi``."""

    name = "amdsmi"

    def __init__(self) -> None:
        self.smi = importlib.import_module("amdsmi")
        self.smi.amdsmi_init()
        pci = address()
        if pci is not None:
            self._handle = self.smi.amdsmi_get_processor_handle_from_bdf(pci)
        else:
            index = _visible("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
            self._handle = self.smi.amdsmi_get_processor_handles()[index]

    def _ask(self, name: str, *arguments: Any) -> Any:
        """An answer, or ``None`` where this device or this release does not give it."""
        try:
            return getattr(self.smi, name)(self._handle, *arguments)
        except (self.smi.AmdSmiException, AttributeError):
            return None

    def facts(self) -> dict[str, str]:
        """Driver, power cap and highest clock."""
        driver = (self._ask("amdsmi_get_gpu_driver_info") or {}).get("driver_version")
        caps = self._ask("amdsmi_get_power_cap_info") or {}
        cap, usual = _watts(caps.get("power_cap")), _watts(caps.get("default_power_cap", caps.get("power_cap_default")))
        top = _number(self._clocks("GFX").get("max_clk"))
        told = {
            "driver": driver,
            "power cap": None if cap is None else _cap(cap, usual),
            "highest clock": None if top is None else f"{top:.0f} MHz",
        }
        return {name: str(value) for name, value in told.items() if value is not None}

    def _clocks(self, which: str) -> dict[str, Any]:
        told = self._ask("amdsmi_get_clock_info", getattr(self.smi.AmdSmiClkType, which))
        return told if isinstance(told, dict) else {}

    def read(self) -> Reading:
        """Clocks, power and temperature. Raises ``LookupError`` where no clock is told."""
        graphics, memory = self._clocks("GFX"), self._clocks("MEM")
        clock = _number(graphics.get("clk", graphics.get("cur_clk")))
        if clock is None:
            raise LookupError("amdsmi tells no clock of this device")
        power = self._ask("amdsmi_get_power_info") or {}
        drawn = [_number(power.get(name)) for name in ("current_socket_power", "average_socket_power")]
        kind, metric = (
            getattr(self.smi.AmdSmiTemperatureType, "HOTSPOT", None),
            self.smi.AmdSmiTemperatureMetric.CURRENT,
        )
        heat = None if kind is None else _number(self._ask("amdsmi_get_temp_metric", kind, metric))
        status = (self._ask("amdsmi_get_gpu_metrics_info") or {}).get("throttle_status")
        slowed = isinstance(status, int) and status not in (0, 0xFFFFFFFF)
        speed = _number(memory.get("clk", memory.get("cur_clk")))
        return Reading(
            clock=clock * 1e6,
            memory_clock=None if speed is None else speed * 1e6,
            power=next((value for value in drawn if value), None),
            temperature=heat,
            slowed=("throttled",) if slowed else (),
        )

    def processes(self) -> Mapping[int, float | None]:
        """Processes on the device; how much they compute, it does not tell."""
        listed = self._ask("amdsmi_get_gpu_process_list") or []
        return {int(one["pid"]): None for one in listed if isinstance(one, dict) and str(one.get("pid", "")).isdigit()}


def _number(value: Any) -> float | None:
    """A number; ``None`` for "N/A" and the like, and for the largest of 16 bits, AMD's way to say the same."""
    return float(value) if isinstance(value, int | float) and value != 0xFFFF else None


def _watts(value: Any) -> float | None:
    """Power in W: newer releases of ``amdsmi`` tell microwatts."""
    told = _number(value)
    return told / 1e6 if told is not None and told > 1e5 else told


class RocmSmi:
    """``rocm-smi``: the same by a command."""

    name = "rocm-smi"

    def __init__(self) -> None:
        self._command = shutil.which("rocm-smi") or "/opt/rocm/bin/rocm-smi"
        index = _visible("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
        self._card = f"card{index}"

    def _told(self, *options: str) -> dict[str, str]:
        told = json.loads(_run(self._command, *options, "--json"))
        return {str(name): str(value) for name, value in told.get(self._card, {}).items()}

    def facts(self) -> dict[str, str]:
        """The power cap."""
        told = self._told("--showmaxpower")
        cap = _first(told, r"Max Graphics Package Power", r"([\d.]+)")
        said = {"other processes": "not told by rocm-smi for one device"}
        return said if cap is None else said | {"power cap": _cap(cap, None)}

    def read(self) -> Reading:
        """Clocks, power and temperature. Raises ``LookupError`` where no clock is told."""
        told = self._told("--showclocks", "--showpower", "--showtemp")
        clock = _first(told, r"sclk clock speed", r"(\d+)\s*Mhz")
        if clock is None:
            raise LookupError("rocm-smi tells no clock of this device")
        memory = _first(told, r"mclk clock speed", r"(\d+)\s*Mhz")
        return Reading(
            clock=clock * 1e6,
            memory_clock=None if memory is None else memory * 1e6,
            power=_first(told, r"(?:Average|Current Socket) Graphics Package Power", r"([\d.]+)"),
            temperature=_first(told, r"Temperature \(Sensor junction\)", r"([\d.]+)"),
        )

    def processes(self) -> Mapping[int, float | None]:
        """None: it lists the processes of all accelerators of the machine, not of one."""
        return {}


def _first(told: dict[str, str], name: str, value: str) -> float | None:
    for key, text in told.items():
        found = re.search(value, text, re.IGNORECASE) if re.match(name, key, re.IGNORECASE) else None
        if found is not None:
            return float(found[1])
    return None
