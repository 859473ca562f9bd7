"""Which device it is, what the catalogue calls it, and the hardware that measured ceilings describe."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from calibrate.device.device import Ceilings, Device, as_hardware, ceilings_of, identify, match, measured_hardware
from calibrate.files import write_yaml
from inferplan.catalog.files import load_hardware
from inferplan.errors import MissingFactError, UsageError

REPORTED = [
    ("NVIDIA H200", 150109945856, 132, "h200-sxm"),
    ("NVIDIA H200 NVL", 150109945856, 132, "h200-nvl"),
    ("NVIDIA H100 80GB HBM3", 85020639232, 132, "h100-sxm"),
    ("NVIDIA H100 PCIe", 84943044608, 114, "h100-pcie"),
    ("NVIDIA H100 NVL", 99456909312, 132, "h100-nvl"),
    ("NVIDIA GH200 480GB", 102005473280, 132, "gh200-96gb"),
    ("NVIDIA A100-SXM4-80GB", 85094825984, 108, "a100-80gb-sxm"),
    ("NVIDIA A100 80GB PCIe", 85094825984, 108, "a100-80gb-pcie"),
    ("NVIDIA A100-PCIE-40GB", 42298834944, 108, "a100-40gb-pcie"),
    ("NVIDIA A10", 23684186112, 72, "a10"),
    ("NVIDIA A10G", 23684186112, 80, "a10g"),
    ("NVIDIA L4", 23664459776, 58, "l4"),
    ("NVIDIA L40S", 47803531264, 142, "l40s"),
    ("Tesla T4", 15828320256, 40, "t4"),
    ("Tesla V100-SXM2-32GB", 34079637504, 80, "v100-sxm2-32gb"),
    ("NVIDIA GeForce RTX 4090", 25393692672, 128, "rtx-4090"),
    ("NVIDIA B200", 191502483456, 148, "b200-hgx"),
    ("AMD Instinct MI300X", 206141652992, 304, "mi300x"),
    ("NVIDIA GeForce GTX 1080", 8500000000, 20, None),
]
"""Names as runtimes report them, with memory and units."""


def device(kind: str = "cuda", name: str = "x", memory: float = 1e9, units: int = 2) -> Device:
    return Device(kind=kind, name=name, memory=memory, units=units, cache=32 << 20, software={"torch": "2"})


@pytest.mark.parametrize(("name", "memory", "units", "expected"), REPORTED)
def test_catalogue_entry_of_a_reported_name(name: str, memory: float, units: int, expected: str | None) -> None:
    found = match(device(name=name, memory=memory, units=units))
    assert (found and found.name) == expected


def test_a_cpu_matches_nothing() -> None:
    """How many cores and memory channels a program gets is not on the box."""
    assert match(device("cpu", "AMD EPYC 9654 96-Core Processor", 4e11, 96)) is None


def test_this_cpu_is_identified() -> None:
    found = identify("cpu")
    assert found.name
    assert found.memory > 1e8
    assert found.units >= 1
    assert "torch" in found.software


def test_a_device_that_is_not_there_is_an_error() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(UsageError, match="no cuda device"):
        identify("cuda")
    with pytest.raises(UsageError, match="no kind of device"):
        identify("tpu")


def test_measured_hardware_is_a_hardware_file(tmp_path: Path) -> None:
    ceilings = Ceilings(bandwidth=27.2e9, peak={"fp32": 95e9, "bf16": 4.1e11}, link=1.5e9)
    data = measured_hardware(device("cpu", "AMD EPYC"), ceilings, "2026-01-01")
    write_yaml(tmp_path / "cpu.yaml", data)
    spec = load_hardware(str(tmp_path / "cpu.yaml"))
    assert spec == as_hardware(data)
    assert spec.memory.bandwidth == pytest.approx(27.2e9)
    assert spec.peak == {"fp32": pytest.approx(95e9), "bf16": pytest.approx(4.1e11)}
    assert spec.link(2).bandwidth == pytest.approx(1.5e9)
    assert "2026-01-01" in spec.source


def test_ceilings_come_from_rates() -> None:
    found = ceilings_of({"copy": 4e9, "read": 5e9, "matmul.bf16": 1e12, "link": 1e9})
    assert (found.bandwidth, found.peak, found.link) == (5e9, {"bf16": 1e12}, 1e9)
    with pytest.raises(MissingFactError, match="no ceilings"):
        ceilings_of({"copy": 1.0})
