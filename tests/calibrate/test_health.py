"""Clocks, power and other processes, read from stand-ins of NVML, nvidia-smi, amdsmi and rocm-smi."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from calibrate.device import health_tools  # noqa: E402
from calibrate.device.device import identify  # noqa: E402
from calibrate.device.health import Monitor, Reading, others  # noqa: E402
from calibrate.device.health_tools import AmdSmi, NvidiaSmi, Nvml, RocmSmi, find_tool, reasons  # noqa: E402
from calibrate.device.torch_measurer import TorchMeasurer  # noqa: E402
from tests.cases import for_each  # noqa: E402

UUID = "11111111-2222-3333-4444-555555555555"


class Tool:
    """A tool that tells what it is given, and counts how often it is asked."""

    name = "a tool"

    def __init__(self) -> None:
        self.clock, self.asked = 1755e6, 0
        self.slowed: tuple[str, ...] = ()
        self.found: Mapping[int, float | None] = {}
        self.error: Exception | None = None

    def facts(self) -> dict[str, str]:
        return {"power cap": "700 W"}

    def read(self) -> Reading:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return Reading(clock=self.clock, slowed=self.slowed)

    def processes(self) -> Mapping[int, float | None]:
        return self.found


class Time:
    """A clock that is set; each reading takes ``cost`` seconds of it when a tool is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def watched() -> tuple[Tool, Time, Monitor]:
    tool, clock = Tool(), Time()
    monitor = Monitor(tool, clock)
    monitor.steady = 1755e6
    return tool, clock, monitor


def visit(monitor: Monitor, clock: Time, seconds: float = 0.2) -> str:
    monitor.begin()
    clock.now += seconds
    monitor.look()
    return monitor.end()


def test_a_calm_visit_has_no_words() -> None:
    tool, clock, monitor = watched()
    tool.slowed = ("power cap",)  # at the clock that matmuls hold: that is how it is always
    assert visit(monitor, clock) == ""


def test_fallen_clocks_are_told_with_the_reason() -> None:
    tool, clock, monitor = watched()
    tool.clock, tool.slowed = 1410e6, ("power cap",)
    assert visit(monitor, clock) == "clocks fell to 1410 of 1755 MHz: power cap"
    tool.clock = 1755e6
    assert visit(monitor, clock) == ""


def test_a_hot_device_disturbs_at_any_clock() -> None:
    tool, clock, monitor = watched()
    tool.slowed = ("hardware too hot", "power cap")
    assert visit(monitor, clock) == "the device slowed itself down: hardware too hot"


def test_amds_throttling_may_be_a_power_cap_so_that_its_clock_decides() -> None:
    tool, clock, monitor = watched()
    tool.slowed = ("throttled",)
    assert visit(monitor, clock) == ""
    tool.clock = 1410e6
    assert visit(monitor, clock) == "clocks fell to 1410 of 1755 MHz: throttled"


def test_a_visit_without_a_reading_goes_by_the_last_one() -> None:
    tool, clock, monitor = watched()
    tool.clock = 900e6
    assert "900" in visit(monitor, clock)
    assert "900" in visit(monitor, clock, seconds=0.0)
    assert tool.asked == 1


def test_readings_take_a_hundredth_of_the_time_at_most() -> None:
    """A tool that takes 0.2 s, asked all the time for ten minutes: 30 readings are 6 s."""
    tool, clock, monitor = watched()
    real = tool.read

    def slow() -> Reading:
        clock.now += 0.2
        return real()

    tool.read = slow  # type: ignore[method-assign]
    while clock.now < 600.0:
        visit(monitor, clock, seconds=0.05)
    assert 25 <= tool.asked <= 31


def test_a_tool_that_fails_is_not_asked_again_and_it_is_said() -> None:
    tool, clock, monitor = watched()
    tool.error = RuntimeError("GPU is lost\nmore")
    assert visit(monitor, clock) == ""
    assert visit(monitor, clock) == ""
    assert tool.asked == 1
    assert monitor.facts()["read by"] == "a tool, until it failed: RuntimeError: GPU is lost"


def test_nothing_read_is_said() -> None:
    monitor = Monitor(None)
    monitor.look()
    assert monitor.end() == ""
    assert monitor.facts()["read by"].startswith("nothing: clocks")


@for_each(
    ("found", "words"),
    [
        ({}, ""),
        ({7: 0.9}, ""),  # this program by its own number
        ({7: 0.9, 8: 0.01}, ""),  # one that holds memory and does nothing
        ({7: 0.9, 8: 0.4}, "another process (8) computes"),
        ({7: None, 8: None}, "another process (8) is on the device, and whether it computes is not told"),
        ({4000: 0.9}, ""),  # in a container: this program by the host's number
        ({4000: 0.9, 4001: 0.0}, ""),
        ({4000: 0.9, 4001: 0.5}, "more than one process computes (4000, 4001)"),
    ],
)
def test_other_processes(found: dict[int, float | None], words: str) -> None:
    assert others(found, own=7) == words


def test_another_process_disturbs_a_visit() -> None:
    tool, clock, monitor = watched()
    tool.found = {os.getpid(): 0.5, 999999: 0.5}
    assert visit(monitor, clock) == "another process (999999) computes"


def test_reasons_are_those_of_nvml() -> None:
    """Bits of nvmlClocksEventReasons in nvml.h; idle (1) is no reason while something runs."""
    assert reasons(0x1) == ()
    assert reasons(0x4) == ("power cap",)
    assert set(reasons(0x40 | 0x8)) == {"hardware too hot", "hardware slowdown"}


class FakeNvml(ModuleType):
    """An H200 at 1410 of 1980 MHz under a lowered power cap, with another program on it."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.asked: list[Any] = []
        self.nvmlInit = lambda: None
        self.nvmlSystemGetDriverVersion = lambda: b"580.95.05"
        self.nvmlDeviceGetEnforcedPowerLimit = lambda h: 500000
        self.nvmlDeviceGetPowerManagementDefaultLimit = lambda h: 700000
        self.nvmlDeviceGetMaxClockInfo = lambda h, which: 1980
        self.nvmlDeviceGetEccMode = lambda h: [1, 1]
        self.nvmlDeviceGetClockInfo = lambda h, which: {1: 1410, 2: 3201}[which]
        self.nvmlDeviceGetPowerUsage = lambda h: 498500
        self.nvmlDeviceGetTemperature = lambda h, which: 61
        self.nvmlDeviceGetCurrentClocksThrottleReasons = lambda h: 0x4
        self.nvmlDeviceGetComputeRunningProcesses = lambda h: [SimpleNamespace(pid=p) for p in (os.getpid(), 77)]
        self.nvmlDeviceGetProcessUtilization = lambda h, since: [SimpleNamespace(pid=77, smUtil=30)]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked.append(uuid)
        return "the handle"

    def nvmlDeviceGetMigMode(self, handle: Any) -> Any:
        raise self.NVMLError("Not Supported")


def properties(monkeypatch: pytest.MonkeyPatch, **told: Any) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index=0: SimpleNamespace(**told))


def test_nvml_tells_clocks_power_settings_and_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    properties(monkeypatch, uuid=UUID)
    tool = find_tool("cuda")
    assert isinstance(tool, Nvml)
    assert nvml.asked == [f"GPU-{UUID}"]
    assert tool.read() == Reading(
        clock=1410e6, memory_clock=3201e6, power=498.5, temperature=61.0, slowed=("power cap",)
    )
    assert tool.facts() == {
        "driver": "580.95.05",
        "power cap": "500 W of 700 W",
        "highest clock": "1980 MHz",
        "ECC": "on",
    }
    assert tool.processes() == {os.getpid(): 0.0, 77: 0.3}


def test_nvidia_smi_stands_in_for_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "driver_version": "535.129.03, 700.00, 700.00, 1980, Enabled, [N/A]",
        "clocks.sm": "1755, 2619, 650.12, 55, 0x0000000000000004",
        "clocks_throttle_reasons.active": "0x0000000000000001",
    }

    def run(*command: str) -> str:
        if "--query-compute-apps=pid" in command:
            return f"{os.getpid()}\n88\n"
        asked = next(part for part in command if part.startswith("--query-gpu=")).removeprefix("--query-gpu=")
        if "clocks_event_reasons" in asked:
            raise subprocess.CalledProcessError(2, command)  # a driver that does not know the name yet
        return answers[asked.split(",")[0]] + "\n"

    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(health_tools, "_run", run)
    properties(monkeypatch, uuid=UUID)
    tool = find_tool("cuda")
    assert isinstance(tool, NvidiaSmi)
    assert tool.read() == Reading(
        clock=1755e6, memory_clock=2619e6, power=650.12, temperature=55.0, slowed=("power cap",)
    )
    assert tool.facts() == {
        "driver": "535.129.03",
        "power cap": "700 W of 700 W",
        "highest clock": "1980 MHz",
        "ECC": "on",
    }
    assert tool.processes() == {os.getpid(): None, 88: None}


def test_no_tool_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*command: str) -> str:
        raise FileNotFoundError(command[0])

    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(health_tools, "_run", run)
    properties(monkeypatch)
    assert find_tool("cuda") is None
    assert find_tool("mps") is None


def fake_amdsmi() -> ModuleType:
    smi = ModuleType("amdsmi")
    told = {
        "amdsmi_init": lambda: None,
        "AmdSmiException": type("AmdSmiException", (Exception,), {}),
        "AmdSmiClkType": SimpleNamespace(GFX="gfx", MEM="mem"),
        "AmdSmiTemperatureType": SimpleNamespace(HOTSPOT="hot"),
        "AmdSmiTemperatureMetric": SimpleNamespace(CURRENT="now"),
        "amdsmi_get_processor_handle_from_bdf": lambda bdf: {"0001:2b:00.0": "handle"}[bdf],
        "amdsmi_get_clock_info": lambda h, which: {"clk": {"gfx": 1300, "mem": 1300}[which], "max_clk": 2100},
        "amdsmi_get_power_info": lambda h: {"current_socket_power": 640, "average_socket_power": "N/A"},
        "amdsmi_get_power_cap_info": lambda h: {"power_cap": 750000000, "default_power_cap": 750000000},
        "amdsmi_get_gpu_driver_info": lambda h: {"driver_version": "6.12.12"},
        "amdsmi_get_temp_metric": lambda h, kind, metric: 71,
        "amdsmi_get_gpu_metrics_info": lambda h: {"throttle_status": 4},
        "amdsmi_get_gpu_process_list": lambda h: [{"pid": 5, "name": "python"}, {"pid": "N/A"}],
    }
    for name, value in told.items():
        setattr(smi, name, value)
    return smi


def test_amdsmi_tells_the_same_of_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setitem(sys.modules, "amdsmi", fake_amdsmi())
    properties(monkeypatch, pci_domain_id=1, pci_bus_id=0x2B, pci_device_id=0)
    tool = find_tool("cuda")
    assert isinstance(tool, AmdSmi)
    assert tool.read() == Reading(
        clock=1300e6, memory_clock=1300e6, power=640.0, temperature=71.0, slowed=("throttled",)
    )
    assert tool.facts() == {"driver": "6.12.12", "power cap": "750 W of 750 W", "highest clock": "2100 MHz"}
    assert tool.processes() == {5: None}


def test_rocm_smi_stands_in_for_amdsmi(monkeypatch: pytest.MonkeyPatch) -> None:
    card = {
        "sclk clock speed:": "(132Mhz)",
        "sclk clock level:": "1",
        "mclk clock speed:": "(900Mhz)",
        "Current Socket Graphics Package Power (W)": "139.0",
        "Temperature (Sensor junction) (C)": "42.0",
        "Temperature (Sensor memory) (C)": "39.0",
    }

    def run(*command: str) -> str:
        if "--showmaxpower" in command:
            return json.dumps({"card1": {"Max Graphics Package Power (W)": "750.0"}})
        return json.dumps({"card0": {}, "card1": card})

    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    monkeypatch.setattr(health_tools, "_run", run)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1,2")
    properties(monkeypatch)
    tool = find_tool("cuda")
    assert isinstance(tool, RocmSmi)
    assert tool.read() == Reading(clock=132e6, memory_clock=900e6, power=139.0, temperature=42.0)
    assert tool.facts()["power cap"] == "750 W"


def test_a_tool_that_fails_on_the_way_is_in_the_provenance() -> None:
    """Visits after that are unwatched, and not calm for certain."""
    measurer = TorchMeasurer(identify("cpu"), 0, 1 << 20)
    tool, _, measurer.monitor = watched()
    assert measurer.passed_over() == {}
    tool.error = RuntimeError("GPU is lost")
    measurer.monitor.look()
    told = "told of clocks and other processes until it failed: RuntimeError: GPU is lost"
    assert measurer.passed_over() == {"a tool": told}
