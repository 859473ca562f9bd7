"""Which device it is, what the catalogue calls it, and the hardware that measured ceilings describe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from calibrate.device import machine
from calibrate.device.device import (
    REFUSED,
    Ceilings,
    Device,
    as_hardware,
    ceilings_of,
    identify,
    match,
    measured_hardware,
    with_wider,
)
from calibrate.files import write_yaml
from inferplan.catalog.files import load_hardware
from inferplan.errors import MissingFactError, UsageError
from tests.cases import for_each

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
    ("NVIDIA A100-SXM4-40GB", 42298834944, 108, None),
    ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 42200000000, 42, None),
    ("NVIDIA A100 80GB PCIe MIG 7g.80gb", 84700000000, 98, None),
    ("NVIDIA A30", 25216745472, 56, "a30"),
    ("NVIDIA A40", 47622979584, 84, "a40"),
    ("NVIDIA L20", 47676129280, 92, "l20"),
    ("NVIDIA L40", 47676129280, 142, None),
    ("NVIDIA H20", 102010716160, 78, "h20"),
    ("NVIDIA H800", 85024112640, 132, "h800"),
    ("NVIDIA H800 PCIe", 85024112640, 114, None),
    ("NVIDIA GH200 144G HBM3e", 152600000000, 132, "gh200-144gb"),
    ("NVIDIA GB200", 198674743296, 152, "gb200"),
    ("NVIDIA GB10", 128500000000, 48, "dgx-spark-gb10"),
    ("NVIDIA B300 SXM6 AC", 288400343040, 148, "b300-hgx"),
    ("NVIDIA RTX A6000", 51033931776, 84, "rtx-a6000"),
    ("NVIDIA RTX A5000", 25425608704, 64, "rtx-a5000"),
    ("NVIDIA RTX A4000", 16879058944, 48, "rtx-a4000"),
    ("Quadro RTX 6000", 25390809088, 72, None),
    ("NVIDIA RTX 6000 Ada Generation", 51010207744, 142, "rtx-6000-ada"),
    ("NVIDIA RTX 5000 Ada Generation", 34079899648, 100, "rtx-5000-ada"),
    ("NVIDIA RTX 4000 Ada Generation", 20973551616, 48, "rtx-4000-ada"),
    ("NVIDIA RTX 4000 SFF Ada Generation", 20973551616, 48, None),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 101971984384, 188, "rtx-pro-6000-ws"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 101971984384, 188, "rtx-pro-6000-server"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 101971984384, 188, None),
    ("NVIDIA GeForce RTX 3090", 25438126080, 82, "rtx-3090"),
    ("NVIDIA GeForce RTX 3090 Ti", 25757220864, 84, "rtx-3090-ti"),
    ("NVIDIA GeForce RTX 4060 Laptop GPU", 8585216000, 24, None),
    ("NVIDIA GeForce RTX 4070 Ti SUPER", 17171480576, 66, "rtx-4070-ti-super"),
    ("NVIDIA GeForce RTX 4090 D", 25393692672, 114, None),
    ("NVIDIA GeForce RTX 5090", 33668726784, 170, "rtx-5090"),
    ("Tesla V100-SXM2-16GB", 16935682048, 80, None),
    ("Tesla V100-PCIE-32GB", 34079637504, 80, None),
    ("AMD Instinct MI210", 68702699520, 104, "mi210"),
    ("AMD Instinct MI250X", 68702699520, 110, "mi250x-gcd"),
    ("AMD Instinct MI325X", 274861129728, 304, "mi325x"),
    ("AMD Instinct MI355X", 309220868096, 256, "mi355x"),
]
"""Names as runtimes report them, with memory and units."""
BY_ARCHITECTURE = [
    ("AMD Radeon Graphics", "gfx942", 206141652992, 304, "mi300x"),
    ("AMD Radeon Graphics", "gfx942", 274861129728, 304, "mi325x"),
    ("AMD Radeon Graphics", "gfx90a", 68702699520, 104, "mi210"),
    ("AMD Radeon Graphics", "gfx90a", 68702699520, 110, "mi250x-gcd"),
    ("AMD Radeon Graphics", "gfx950", 309220868096, 256, None),  # MI350X or MI355X: they differ in power alone
    ("AMD Radeon Graphics", "gfx1036", 536870912, 1, None),  # the graphics of a desktop's CPU
    ("AMD Radeon RX 7900 XTX", "gfx1100", 25753026560, 48, "rx-7900-xtx"),  # 96 compute units, told as 48 pairs
    ("AMD Radeon RX 9070 XT", "gfx1201", 17095983104, 32, "rx-9070-xt"),
]
APPLE = [
    ("Apple M3 Max", 40, 27e9, "m3-max"),
    ("Apple M3 Max", 30, 27e9, "m3-max-30core"),
    ("Apple M1", 8, 11.4e9, "m1"),
    ("Apple M2 Ultra", 76, 154.6e9, "m2-ultra"),
    ("Apple M4 Pro", 16, 38e9, "m4-pro-16core"),
    ("Apple M9", 10, 26e9, None),
    ("Apple M3 Max", 0, 27e9, None),  # how many cores it has was not told
]
"""Chips as Metal reports them, with GPU cores and the memory it recommends at most."""


def device(kind: str = "cuda", name: str = "x", memory: float = 1e9, units: int = 2) -> Device:
    return Device(kind=kind, name=name, memory=memory, units=units, cache=32 << 20, software={"torch": "2"})


@for_each(("name", "memory", "units", "expected"), REPORTED)
def test_catalogue_entry_of_a_reported_name(name: str, memory: float, units: int, expected: str | None) -> None:
    found = match(device(name=name, memory=memory, units=units))
    assert (found and found.name) == expected


@for_each(("name", "architecture", "memory", "units", "expected"), BY_ARCHITECTURE)
def test_catalogue_entry_of_an_amd_architecture(
    name: str, architecture: str, memory: float, units: int, expected: str | None
) -> None:
    found = match(replace(device(name=name, memory=memory, units=units), software={"architecture": architecture}))
    assert (found and found.name) == expected


@for_each(("name", "cores", "memory", "expected"), APPLE)
def test_catalogue_entry_of_an_apple_chip(name: str, cores: int, memory: float, expected: str | None) -> None:
    found = match(device("mps", name, memory, cores))
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
    with pytest.raises(UsageError, match="no cuda device") as caught:
        identify("cuda")
    assert ("a build of torch with CUDA" in caught.value.hint) == (torch.version.cuda is None)
    with pytest.raises(UsageError, match="no kind of device"):
        identify("abacus")


@for_each("kind", REFUSED)
def test_what_has_no_timer_is_refused_by_name(kind: str) -> None:
    with pytest.raises(UsageError, match=rf"{REFUSED[kind]} \({kind}\) cannot be calibrated"):
        identify(kind)


def test_an_accelerator_is_not_passed_over_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    monkeypatch.setattr("torch.xpu.is_available", lambda: True)
    with pytest.raises(UsageError, match="an Intel GPU"):
        identify(None)
    assert identify("cpu").kind == "cpu"


PROPERTIES = {
    "T4": ("Tesla T4", 15828320256, 40, 4 << 20, "", "SM75", 4 << 20, True),
    "H200": ("NVIDIA H200", 150109945856, 132, 60 << 20, "", "SM90", 60 << 20, True),
    "unknown": ("NVIDIA X1000", 9e9, 7, 3 << 20, "", "SM90", 3 << 20, True),
    "MI300X": ("AMD Radeon Graphics", 206141652992, 304, 4 << 20, "gfx942:sramecc+:xnack-", "gfx942", 256 << 20, True),
    "unknown AMD": ("AMD Instinct MI999", 9e9, 7, 4 << 20, "gfx999:sramecc+", "gfx999", 512 << 20, False),
}
"""What the runtime tells (name, memory, units, L2, gcnArchName), and what follows: architecture, cache, known."""


@for_each("which", PROPERTIES)
def test_caches_and_architectures_of_accelerators(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Infinity Cache of an MI300X is 64 times the L2 that its runtime tells of."""
    import torch

    name, memory, units, level_two, gfx, architecture, cache, known = PROPERTIES[which]
    told = SimpleNamespace(name=name, total_memory=memory, multi_processor_count=units, L2_cache_size=level_two)
    told.major, told.minor = (7, 5) if which == "T4" else (9, 0)
    if gfx:
        told.gcnArchName = gfx
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index=0: told)
    monkeypatch.setattr(torch.version, "hip", "7.1" if gfx else None)
    monkeypatch.setattr(torch.version, "cuda", None if gfx else "13.0")
    found = identify("cuda")
    assert (found.architecture, found.cache, found.cache_known) == (architecture, cache, known)
    assert found.software["hip" if gfx else "cuda"] == ("7.1" if gfx else "13.0")
    assert ("cache" in measured_hardware(found, Ceilings(bandwidth=1e12, peak={"fp32": 1e13}), "2026-01-01")) == known


def test_the_caches_of_all_dies_count(tmp_path: Path) -> None:
    """Four cores on two dies, each die with 32 MB that its two cores share, each core with 1 MB of its own."""
    for cpu in range(4):
        for index, (level, size, shared) in enumerate(
            [("2", "1024K", f"{cpu}"), ("3", "32768K", "0-1" if cpu < 2 else "2-3")]
        ):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
                (folder / name).write_text(text + "\n")
    assert machine.processor_cache(tmp_path, [0, 1, 2, 3]) == 64 << 20
    assert machine.processor_cache(tmp_path, [1]) == 32 << 20
    assert machine.processor_cache(tmp_path / "none", [0]) is None


def test_memory_is_what_the_container_may_take(tmp_path: Path) -> None:
    assert machine._group_available(tmp_path) == float("inf")
    (tmp_path / "memory.max").write_text("8000\n")
    (tmp_path / "memory.current").write_text("3000\n")
    assert machine._group_available(tmp_path) == 5000
    (tmp_path / "memory.max").write_text("max\n")
    assert machine._group_available(tmp_path) == float("inf")


def test_no_format_is_written_below_a_wider_one() -> None:
    """One thread of a CPU with AVX2, GFLOP/s: fp32 16.7, fp16 2.7, bf16 2.5, torch's ``_int_mm`` 0.59. int8 converts to
    fp32 (and 127 x 127 is exact there), so the processor does int8 at 16.7 at least. With arithmetic of its own for
    bf16 (AMX) nothing is raised but what is below that.
    """
    measured = {"fp32": 16.7e9, "bf16": 2.5e9, "fp16": 2.7e9, "int8": 0.59e9}
    found, said = with_wider(measured)
    assert found == dict.fromkeys(measured, 16.7e9)
    assert [line.partition(":")[0] for line in said] == ["bf16", "fp16", "int8"]
    assert "590.0 MFLOP/s" in said[2] and "that of fp32" in said[2]
    amx = {"fp32": 2e12, "bf16": 1e13, "fp16": 3e12, "int8": 4e12}
    found, said = with_wider(amx)
    assert found == amx | {"int8": 1e13} and "that of bf16" in said[0]
    data = measured_hardware(device("cpu", "AMD EPYC"), Ceilings(bandwidth=27.2e9, peak=measured), "2026-01-01")
    assert as_hardware(data).peak["int8"] == pytest.approx(16.7e9)
    assert as_hardware(data).measured and any("int8: torch's matmul reached" in note for note in data["notes"])


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


def test_the_way_to_the_host_is_the_slower_of_two() -> None:
    rates = {"copy": 4e9, "matmul.bf16": 1e12, "device to host": 26e9, "host to device": 25e9}
    data = measured_hardware(device("cuda", "NVIDIA X"), ceilings_of(rates), "2026-01-01")
    assert as_hardware(data).to_host.bandwidth == pytest.approx(25e9)
    del rates["device to host"]
    assert (
        as_hardware(measured_hardware(device("cuda", "NVIDIA X"), ceilings_of(rates), "2026-01-01")).host_link is None
    )


def test_ceilings_come_from_rates() -> None:
    found = ceilings_of({"copy": 4e9, "read": 5e9, "matmul.bf16": 1e12, "link": 1e9})
    assert (found.bandwidth, found.peak, found.link) == (5e9, {"bf16": 1e12}, 1e9)
    with pytest.raises(MissingFactError, match="no ceilings"):
        ceilings_of({"copy": 1.0})
