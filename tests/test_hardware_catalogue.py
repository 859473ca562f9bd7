"""Each hardware file loads, cites, agrees with itself, and equals the reference table where there is one."""

from __future__ import annotations

import csv
import math
import os
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from inferplan.catalog.assemble import with_memory
from inferplan.catalog.wired import wired_limits
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import MissingFactError, UsageError
from inferplan.units import parse_quantity
from tests.cases import for_each

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "configs" / "hardware").glob("*.yaml"))


@cache
def specs() -> dict[str, HardwareSpec]:
    return {path.stem: HardwareSpec.model_validate(yaml.safe_load(path.read_text("utf-8"))) for path in FILES}


every_device = for_each("spec", lambda: specs().values(), ids=lambda spec: spec.name)

ARITHMETIC = {"fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4", "int4"}
FP8_AT_BF16_RATE = {"gaudi3", "inferentia2", "tpu-v5p", "tpu-v6e"}
"""Devices that store fp8 but multiply it no faster than bf16."""
FP8_OVER_BF16 = {"trainium3": 2517 / 671, "vr200-preliminary": 17.5 / 4}
"""As their makers print them."""
_BLACKWELL_GEFORCE = ("rtx-5060-ti", "rtx-5070", "rtx-5070-ti", "rtx-5080", "rtx-5090")
FP4_OVER_FP8 = {"b300-hgx": 3, "gb300": 3, "trainium3": 1} | dict.fromkeys(_BLACKWELL_GEFORCE, 4)
"""Blackwell Ultra has more fp4 units; GeForce halves fp8 (fp32 accumulate) but not fp4."""
FP16_IS_SLOWER = {"gaudi3"}
SWITCH_REDUCES = {"h100-sxm", "h200-sxm", "b200-hgx", "b300-hgx", "gb200", "gb300"}
DOMAIN_FROM_ELSEWHERE = {"v100-sxm2-32gb": 8}
"""Rates that the reference table gives without a domain; the domain has a source of its own."""
RATE_WITHOUT_DOMAIN = {"mi250x-card"}
"""Nobody says how many devices the rate joins, so no link is given."""
SOURCED_SINCE = {"m2-ultra", "m3-max", "m3-ultra", "m4-max"}
FP32_SINCE = {"epyc-9654", "xeon-8480plus"}
"""Of these the reference table has a bandwidth alone; peaks, cores and clocks have sources of their own.
The table leaves out the fp32 arithmetic of two processors."""
INFINITY_CACHE = {"mi300x", "mi325x", "mi350x", "mi355x", "rx-7900-xtx"}
"""Devices whose last-level cache is not the L2 of the reference table."""
READ_SINCE = {
    "gaudi2": 94.62 * 2**30,  # vLLM's log on Gaudi 2: "14.97 GiB/94.62 GiB used"
    "gaudi3": 130400 * 2**20,  # hl-smi of an idle HL-325L: 672 of 131072 MiB used
    "tpu-v5e": 15.75 * 2**30,  # vLLM's log: total_hbm_limit_gb=15.75GiB
    "tpu-v6e": 31.24 * 2**30,  # vLLM's log: total_hbm_limit_gb=31.24GiB
}
"""Usable bytes that were found after the reference table was made."""

BUS_ROUNDED = {"h100-pcie": 0.02, "mi300x": 0.005}
"""Data sheets that round the product of the bus: 2 TB/s of 2.039, 5.3 of 5.325."""

NOT_FOR_DATA_CENTRES = {
    "workstation": {
        "arc-pro-b60",
        "dgx-spark-gb10",
        "m1-ultra",
        "m1-ultra-48core",
        "m2-ultra",
        "m2-ultra-60core",
        "m3-ultra",
        "m3-ultra-60core",
        "radeon-ai-pro-r9700",
        "rtx-4000-ada",
        "rtx-4500-ada",
        "rtx-5000-ada",
        "rtx-6000-ada",
        "rtx-a4000",
        "rtx-a5000",
        "rtx-a6000",
        "rtx-pro-5000",
        "rtx-pro-6000-ws",
        "threadripper-7980x",
        "threadripper-pro-5995wx",
        "threadripper-pro-7995wx",
        "threadripper-pro-9995wx",
        "xeon-w9-3495x",
    },
    "consumer": {
        "arc-b580",
        "core-i5-12400",
        "core-i5-13600k",
        "core-i7-14700k",
        "core-i9-12900k",
        "core-i9-14900k",
        "core-ultra-9-285k",
        "m1",
        "m1-7core",
        "m1-max",
        "m1-max-24core",
        "m1-pro",
        "m1-pro-14core",
        "m2",
        "m2-8core",
        "m2-max",
        "m2-max-30core",
        "m2-pro",
        "m2-pro-16core",
        "m3",
        "m3-8core",
        "m3-max",
        "m3-max-30core",
        "m3-pro",
        "m3-pro-14core",
        "m4",
        "m4-8core",
        "m4-max",
        "m4-max-32core",
        "m4-pro",
        "m4-pro-16core",
        "m5",
        "m5-8core",
        "m5-max",
        "m5-max-32core",
        "m5-pro",
        "m5-pro-16core",
        "rtx-3060",
        "rtx-3060-ti",
        "rtx-3070",
        "rtx-3070-ti",
        "rtx-3080",
        "rtx-3080-ti",
        "rtx-3090",
        "rtx-3090-ti",
        "rtx-4060",
        "rtx-4060-ti",
        "rtx-4070",
        "rtx-4070-super",
        "rtx-4070-ti",
        "rtx-4070-ti-super",
        "rtx-4080",
        "rtx-4080-super",
        "rtx-4090",
        "rtx-5060-ti",
        "rtx-5070",
        "rtx-5070-ti",
        "rtx-5080",
        "rtx-5090",
        "rx-7900-xtx",
        "rx-9070-xt",
        "ryzen-5-5600x",
        "ryzen-7-5800x3d",
        "ryzen-7-7800x3d",
        "ryzen-9-5950x",
        "ryzen-9-7900x",
        "ryzen-9-7950x",
        "ryzen-9-9900x",
        "ryzen-9-9950x",
        "strix-halo",
    },
    "embedded": {"jetson-agx-orin-64gb"},
}
"""Every other device on file is sold for data centres: HGX boards, OAM, PCIe server cards, cloud chips, sockets."""


def factor(text: str) -> float:
    """A factor of a derivation: a count, a count of FLOP, a clock (``GHz``) or the rate of a pin (``Gb/s``)."""
    count = re.fullmatch(r"(\d+)( FLOP)?", text)
    if count:
        return float(count[1])
    return parse_quantity(text, "bytes/s" if text.endswith("b/s") else "hertz")


def test_catalogue_is_there() -> None:
    assert len(FILES) >= 56
    assert sum(bool(spec.derivation) for spec in specs().values()) >= 30


@for_each("path", FILES, ids=lambda path: path.stem)
def test_aliases_are_the_first_line(path: Path) -> None:
    """The alias lookup reads that line and no more."""
    first = path.read_text("utf-8").splitlines()[0]
    assert yaml.safe_load(first) == {"aliases": specs()[path.stem].aliases}


@every_device
def test_says_who_it_is(spec: HardwareSpec) -> None:
    assert spec.name in specs() and spec is specs()[spec.name]
    assert spec.source.strip() and spec.memory.label and spec.memory.kind
    assert spec.memory.usable_basis or spec.memory.usable is not None
    for alias in [spec.name, *spec.aliases]:
        assert re.fullmatch(r"[a-z0-9][a-z0-9+-]*", alias), alias
        assert not re.match(r"\d+x-", alias), f"{alias} is read as a number of devices"


def test_segments() -> None:
    for segment, members in NOT_FOR_DATA_CENTRES.items():
        assert {name for name, spec in specs().items() if spec.segment == segment} == members
    others = set(specs()) - set().union(*NOT_FOR_DATA_CENTRES.values())
    assert {specs()[name].segment for name in others} == {"datacenter"}


def test_an_unknown_segment_is_refused() -> None:
    fields = yaml.safe_load((ROOT / "configs" / "hardware" / "l4.yaml").read_text("utf-8"))
    with pytest.raises(ValidationError, match="segment"):
        HardwareSpec.model_validate(fields | {"segment": "gaming"})


def test_a_name_means_one_device() -> None:
    names = Counter([*specs(), *(alias for spec in specs().values() for alias in spec.aliases)])
    assert [name for name, count in names.items() if count > 1] == []


@every_device
def test_peaks_are_dense(spec: HardwareSpec) -> None:
    peak = spec.peak
    assert set(peak) <= ARITHMETIC
    assert all(value > 0 for value in peak.values())
    if "fp16" in peak and "bf16" in peak:
        assert (peak["fp16"] == peak["bf16"]) is (spec.name not in FP16_IS_SLOWER)
    if "fp8" in peak:
        expected = 1 if spec.name in FP8_AT_BF16_RATE else FP8_OVER_BF16.get(spec.name, 2)
        assert peak["fp8"] / peak["bf16"] == pytest.approx(expected, rel=0.03)
    if "fp4" in peak:
        expected = FP4_OVER_FP8.get(spec.name, 2)
        assert peak["fp4"] / peak["fp8"] == pytest.approx(expected, rel=0.01)
    if "fp32" in peak and "bf16" in peak:
        assert peak["fp32"] <= peak["bf16"]


@every_device
def test_derivations_multiply_out(spec: HardwareSpec) -> None:
    for figure, derivation in spec.derivation.items():
        stated = spec.memory.bandwidth if figure == "bandwidth" else spec.peak[figure]
        product = math.prod(factor(text) for text in derivation.factors)
        assert product == pytest.approx(stated, rel=0.02), figure
        assert len(derivation.factors) >= 2 and derivation.note


@every_device
def test_derivations_are_of_the_parts_on_file(spec: HardwareSpec) -> None:
    """A peak counts all units, at the clock on file or the one that its note names; bus x pins is the bandwidth."""
    for figure, derivation in spec.derivation.items():
        factors = [factor(text) for text in derivation.factors]
        if figure == "bandwidth":
            tolerance = BUS_ROUNDED.get(spec.name, 1e-3)
            assert math.prod(factors) == pytest.approx(spec.memory.bandwidth, rel=tolerance)
            continue
        assert spec.units is None or factors[0] == spec.units, figure
        clocks = [text for text in derivation.factors if text.endswith("Hz")]
        if spec.clock is not None and clocks and parse_quantity(clocks[0], "hertz") != spec.clock:
            assert "1830 MHz" in derivation.note and clocks == ["1.83 GHz"], figure


def test_every_processor_multiplies_in_fp32() -> None:
    """Two multiply-adds a cycle, of 8 fp32 in AVX2 (and Zen 4), of 16 in AVX-512: EPYC 9654 96 x 2 x 8 x 2 x 2.4 GHz,
    Xeon 8480+ 56 x 2 x 16 x 2 x 2.0 GHz."""
    processors = [spec for spec in specs().values() if spec.memory.dimms]
    assert len(processors) == 35
    assert [spec.name for spec in processors if "fp32" not in spec.peak] == []
    assert specs()["epyc-9654"].peak["fp32"] == pytest.approx(7372.8e9, rel=1e-4)
    assert specs()["xeon-8480plus"].peak["fp32"] == pytest.approx(7168e9, rel=1e-4)
    with pytest.raises(MissingFactError, match="2x-epyc-9654"):
        specs()["epyc-9654"].link(2)
    with pytest.raises(MissingFactError, match=r"--gpu ryzen-9-7950x --memory 64GB$"):  # boards of one socket
        specs()["ryzen-9-7950x"].link(2)


@for_each("name", lambda: [name for name, spec in specs().items() if spec.vendor == "NVIDIA" and "tf32" in spec.peak])
def test_tensor_cores_take_tf32_at_half_the_rate_of_bf16(name: str) -> None:
    """NVIDIA's white papers of GA100, GA102, AD102, GH100 and GB202, of cards with either rule of accumulation."""
    peak = specs()[name].peak
    assert peak["tf32"] / peak["bf16"] == pytest.approx(0.5, rel=0.025)


@for_each("name", lambda: [name for name in specs() if name.startswith("rtx-")])
def test_geforce_halves_what_it_accumulates_in_fp32(name: str) -> None:
    """GA102, AD102 and GB202 white papers: int8 has twice the rate of fp16 at the full rate, four times the halved."""
    spec = specs()[name]
    expected = 4 if spec.segment == "consumer" else 2
    assert spec.peak["int8"] / spec.peak["bf16"] == pytest.approx(expected, rel=0.01)
    assert spec.peak["bf16"] / spec.peak["fp32"] == pytest.approx(8 / expected, rel=0.03)


# Of TechPowerUp's pages, read on 22 November 2026: SMs, boost clock [MHz], L2 [MiB], power [W], memory bus [bits].
TECHPOWERUP = {
    "rtx-3060": (28, 1777, 3, 170, 192),
    "rtx-3060-ti": (38, 1665, 4, 200, 256),
    "rtx-3070": (46, 1725, 4, 220, 256),
    "rtx-3070-ti": (48, 1770, 4, 290, 256),
    "rtx-3080": (68, 1710, 5, 320, 320),
    "rtx-3080-ti": (80, 1665, 6, 350, 384),
    "rtx-3090-ti": (84, 1860, 6, 450, 384),
    "rtx-4060": (24, 2460, 24, 115, 128),
    "rtx-4060-ti": (34, 2535, 32, 165, 128),
    "rtx-4070": (46, 2475, 36, 200, 192),
    "rtx-4070-super": (56, 2475, 48, 220, 192),
    "rtx-4070-ti": (60, 2610, 48, 285, 192),
    "rtx-4070-ti-super": (66, 2610, 48, 285, 256),
    "rtx-4080": (76, 2505, 64, 320, 256),
    "rtx-4080-super": (80, 2550, 64, 320, 256),
    "rtx-4090": (128, 2520, 72, 450, 384),
    "rtx-5060-ti": (36, 2572, 32, 180, 128),
    "rtx-5070": (48, 2512, 48, 250, 192),
    "rtx-5070-ti": (70, 2452, 48, 300, 256),
    "rtx-5080": (84, 2617, 64, 360, 256),
    "rtx-5090": (170, 2407, 96, 575, 512),
    "rtx-a4000": (48, 1560, 4, 140, 256),
    "rtx-a5000": (64, 1695, 6, 230, 384),
    "rtx-a6000": (84, 1800, 6, 300, 384),
    "rtx-4000-ada": (48, 2175, 48, 130, 160),
    "rtx-4500-ada": (60, 2580, 48, 210, 192),
    "rtx-5000-ada": (100, 2550, 72, 250, 256),
    "rtx-6000-ada": (142, 2505, 96, 300, 384),
}


@for_each("name", TECHPOWERUP)
def test_cards_equal_an_independent_list(name: str) -> None:
    spec = specs()[name]
    assert spec.clock is not None and spec.cache is not None
    bus = int(spec.derivation["bandwidth"].factors[0])
    assert (spec.units, spec.clock / 1e6, spec.cache / 2**20, spec.power, bus) == pytest.approx(TECHPOWERUP[name])


@every_device
def test_links_widen(spec: HardwareSpec) -> None:
    domains = [math.inf if link.domain is None else link.domain for link in spec.links]
    assert domains == sorted(set(domains)), "each link joins more devices than the one before"
    assert any(link.switch_reduces for link in spec.links) is (spec.name in SWITCH_REDUCES)
    for link in spec.links:
        assert link.note if link.switch_reduces else link.name


@for_each(
    ("name", "group", "gigabytes"),
    [("mi300x", 2, 64), ("mi300x", 8, 448), ("h100-sxm", 2, 450), ("h100-sxm", 16, 50), ("h100-pcie", 4, 63)],
)
def test_link_of_a_group(name: str, group: int, gigabytes: float) -> None:
    assert specs()[name].link(group).bandwidth == gigabytes * 1e9


def test_nobody_gives_a_device_memory_that_it_does_not_have() -> None:
    """Of every device: the figure of its label, in GB and in GiB, and what a program was seen to have are taken, a
    byte above them is not, and the refusal proposes the most that is. A GB of memory is a GiB, 1.074e9 B.
    The DIMMs of a socket are its owner's: two of at most 256 GB (DDR4) or 512 GB (DDR5) in each channel."""
    wrong = []
    for spec in specs().values():
        if spec.vendor in ("AMD", "Intel") and "DIMM" in spec.memory.label:
            module = 256 if "DDR4" in spec.memory.label else 512
            slots = 2 * int(spec.memory.kind.rpartition(" x ")[2].removesuffix("ch"))
            assert with_memory(spec, f"{slots * module}GiB").usable == slots * module * 2**30
            with pytest.raises(UsageError):
                with_memory(spec, f"{slots * module + 1}GiB")
            continue
        figure = float(re.sub(r"\D*(\d+) Gi?B.*", r"\1", spec.memory.label))
        label, most = figure * 1e9, figure * 2**30
        taken = most if spec.memory.wired is None else wired_limits()["metal"].usable[f"{figure:g} GB"]
        for size in (label, most, spec.memory.usable or label):
            wrong += [] if with_memory(spec, f"{size:.0f}B").usable == round(size) else [f"{spec.name}: {size:g} B"]
        try:
            with_memory(spec, f"{most + 1:.0f}B")
            wrong.append(f"{spec.name}: a byte more than {spec.memory.label}")
        except UsageError as error:
            hinted = re.search(r"--memory (\S+) or less", error.hint or "")
            wrong += [] if hinted and with_memory(spec, hinted[1]).usable == taken else [f"{spec.name}: {error.hint}"]
    assert wrong == []


@for_each(
    ("text", "usable"),
    [
        ("8GB", 5726.63e6),  # ggml_metal_device_init of an M2
        ("18GB", 14302.25e6),  # of an M3 Pro
        ("48 GB", 40200.90e6),  # of an M4 Pro and an M5 Pro; llama.cpp lists 38338 MiB
        ("64GiB", 55662.79e6),
        ("96GB", 83494.17e6),  # of an M3 Max: 77.76 GiB
        ("128GB", 107.52 * 2**30),  # antirez/ds4#893: an M5 Max on macOS 26
        ("57344MiB", 57344 * 2**20),  # sudo sysctl iogpu.wired_limit_mb=57344
        ("50GB", 50e9),
    ],
)
def test_of_a_mac_the_gpu_has_a_part(text: str, usable: float) -> None:
    """A size on the box is what macOS leaves to the GPU; any other is what the owner has set."""
    assert with_memory(specs()["m4-max"], text).usable == pytest.approx(usable, rel=1e-4)


def test_sizes_of_apples_on_file_are_those_of_the_box() -> None:
    apples = [spec for spec in specs().values() if spec.vendor == "Apple"]
    assert len(apples) == 36
    sizes = wired_limits()["metal"].usable
    assert [one.name for one in apples if sizes[f"{one.memory.labelled:g} GB"] != one.memory.usable] == []
    assert [one.name for one in specs().values() if one.memory.wired and one.vendor != "Apple"] == []


def test_a_refusal_of_memory_says_how_the_label_is_read() -> None:
    """80 * 2^30 B = 85.9e9 B; a label in GiB needs no reading, and a reading above its label is named."""
    memory = specs()["h100-sxm"].memory
    assert memory.most_in_words == ("it is sold with 80 GB, read as GiB (85.9 GB)", "80GiB")
    half = memory.model_copy(update={"label": "31.5 GiB", "usable": None})
    assert half.most_in_words == ("it is sold with 31.5 GiB", "31.5GiB")
    more = memory.model_copy(update={"usable": 86e9})
    assert more.most_in_words == ("it is sold with 80 GB, and 86.00 GB are on file", "86000000000B")


def test_a_host_has_no_more_memory_than_its_slots_take() -> None:
    """An EPYC 9654 has 12 channels: 24 modules of 512 GiB are 12 TiB, on two sockets 24 TiB."""
    host = specs()["epyc-9654"]
    for spec, channels, most in ((host, 12, "12TiB"), (host.joined(2), 24, "24TiB")):
        assert with_memory(spec, most).usable == channels * 2 * 512 * 2**30
        with pytest.raises(UsageError, match=f"--host-memory 1e30GB is more than {spec.name} has") as error:
            with_memory(spec, "1e30GB", "--host-memory")
        assert f"{channels} channels" in error.value.because
        assert error.value.hint == f"--host-memory {most} or less: the memory of one host"


def test_a_label_may_have_a_fraction() -> None:
    """1.5 TB are 1,500 GB, not 5 TB."""
    memory = next(iter(specs().values())).memory
    for label, gigabytes in (("1.5 TB", 1500.0), ("up to 2 TB", 2000.0), ("80 GB", 80.0), ("31.5 GiB", 31.5)):
        assert memory.model_copy(update={"label": label}).labelled == gigabytes


def test_bytes_a_program_sees_on_h100() -> None:
    assert specs()["h100-sxm"].usable == 81082 * 2**20 == 85_020_639_232


@for_each(
    ("name", "devices"),
    [
        ("h100-sxm", 8),  # HGX H100: p5.48xlarge, ND H100 v5
        ("b200-hgx", 8),  # p6-b200.48xlarge
        ("mi300x", 8),  # ND MI300X v5
        ("gb200", 4),  # a compute tray of NVL72: two superchips of two GPUs
        ("dgx-spark-gb10", 1),
        ("trainium2", 16),  # trn2.48xlarge
        ("l40s", None),  # g6e has 1, 4 and 8
        ("t4", None),
        ("rtx-4090", None),
    ],
)
def test_devices_of_a_node(name: str, devices: int | None) -> None:
    assert specs()[name].node == devices


@every_device
def test_the_same_chip_has_as_many_units_at_the_same_clock(spec: HardwareSpec) -> None:
    """Within 5 %, and no lower a power limit: else it is another chip for the errors of carried constants."""
    if not spec.same_chip:
        return
    other = specs()[str(spec.relative)]
    assert spec.units == pytest.approx(other.units, rel=0.05)
    assert spec.clock == pytest.approx(other.clock, rel=0.05)
    assert spec.power is None or other.power is None or spec.power >= other.power


@for_each("name", ["h20", "h20-141gb", "h100-pcie", "b300-hgx", "gb300", "h200-nvl", "b100"])
def test_another_chip_of_the_generation_is_not_the_same(name: str) -> None:
    """Fewer SMs (H20 78, H100 PCIe 114 of 132), a lower power limit (NVL 600, B100 700 W), or Blackwell Ultra."""
    assert specs()[name].relative and not specs()[name].same_chip


@every_device
def test_announced_figures_are_in_the_name(spec: HardwareSpec) -> None:
    """Every command prints the name of the device that it prices."""
    assert spec.preliminary is spec.name.endswith("-preliminary")


@for_each("name", ["tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7", "trainium2", "trainium3"])
def test_a_few_large_cores_take_no_thread_blocks(name: str) -> None:
    assert specs()[name].units in (1, 2, 8) and specs()[name].multiprocessors is None
    assert specs()["h100-sxm"].multiprocessors == 132


ALIKE: dict[str, Callable[[HardwareSpec], bool]] = {
    "all of Apple's": lambda spec: spec.vendor == "Apple",
    "all CPUs": lambda spec: spec.unit == "per socket",
    "all TPUs": lambda spec: spec.name.startswith("tpu-"),
    "all RTX/Radeon/Arc cards": lambda spec: spec.name.startswith(("rtx-", "rx-", "radeon-", "arc-")),
}


def gaps() -> dict[str, set[str]]:
    """The facts that are absent, in the words of docs/hardware.md."""
    absent = {
        "`memory.usable`": lambda spec: spec.memory.usable is None,
        "`peak`, all": lambda spec: not spec.peak,
        "`peak.bf16`": lambda spec: bool(spec.peak) and "bf16" not in spec.peak,
        "`peak.int8`": lambda spec: bool(spec.peak) and "int8" not in spec.peak,
        "`links`, none": lambda spec: not spec.links,
        "`links`, no scale-out": lambda spec: bool(spec.links) and spec.links[-1].domain is not None,
        "`node`": lambda spec: spec.node is None,
        "`units`": lambda spec: spec.units is None,
        "`clock`": lambda spec: spec.clock is None,
        "`cache`": lambda spec: spec.cache is None,
        "`power`": lambda spec: spec.power is None,
        "`year`": lambda spec: spec.year is None,
        "`derivation`": lambda spec: not spec.derivation,
    }
    return {fact: {name for name, spec in specs().items() if missing(spec)} for fact, missing in absent.items()}


def table_of_gaps() -> str:
    """The gaps as docs/hardware.md lists them; a group of which at most one device has the fact goes by its name."""
    lines = ["| absent | on |", "|---|---|"]
    groups = {word: {name for name, spec in specs().items() if alike(spec)} for word, alike in ALIKE.items()}
    for fact, names in gaps().items():
        whole = {word: members - names for word, members in groups.items() if len(members - names) <= 1}
        words = [" but ".join([word, *present]) for word, present in whole.items()]
        alone = names.difference(*(groups[word] for word in whole))
        lines.append(f"| {fact} | {', '.join([*words, *sorted(alone)])} |")
    return "\n".join(lines)


def test_docs_list_the_gaps() -> None:
    page = ROOT / "docs" / "hardware.md"
    between = r"(?<=<!-- gaps -->\n\n)(.*?)(?=\n\n<!-- /gaps -->)"
    before, found, after = re.split(between, page.read_text("utf-8"), flags=re.DOTALL)
    if os.environ.get("INFERPLAN_UPDATE_DOCS"):
        page.write_text(before + table_of_gaps() + after, "utf-8")
    else:
        assert found == table_of_gaps(), "INFERPLAN_UPDATE_DOCS=1 writes the table"


def test_equals_the_reference_table(shared: Path) -> None:
    with (shared / "reference" / "hardware.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["id"] for row in rows} <= set(specs())
    wrong = []
    for row in rows:
        spec = specs()[row["id"]]
        cells: dict[str, tuple[float | None, float]] = {
            "mem_bw_bytes_per_s": (spec.memory.bandwidth, 1),
            "cuda_visible_bytes" if row["cuda_visible_bytes"] else "mem_usable_bytes": (spec.memory.usable, 1),
            "sm_or_cu": (spec.units, 1),
            "boost_mhz": (spec.clock, 1e6),
            "tdp_w": (spec.power, 1),
            "year": (spec.year, 1),
        }
        if spec.name not in INFINITY_CACHE:
            cells["l2_bytes"] = (spec.cache, 1)
        for column in row:
            math_name, _, kind = column.partition("_")
            if math_name in ARITHMETIC and kind in {"flops", "ops"}:
                cells[column] = (spec.peak.get(math_name), 1)
        for column, (ours, scale) in cells.items():
            theirs = float(row[column]) * scale if row[column] else None
            if column == "mem_usable_bytes" and spec.name in READ_SINCE:
                assert spec.usable == pytest.approx(READ_SINCE[spec.name], rel=3e-4)
                continue
            if (spec.name, column) == ("rx-7900-xtx", "int8_ops"):  # GPUOpen's table of WMMA rates has it
                continue
            if (spec.name in FP32_SINCE and column == "fp32_flops") or (
                spec.name in SOURCED_SINCE and column != "mem_bw_bytes_per_s"
            ):
                continue
            if theirs is not ours and (None in {theirs, ours} or theirs != pytest.approx(ours, rel=1e-12)):
                wrong.append(f"{spec.name}: {column} is {row[column]!r}, the file has {ours}")
        if (row["mem_label"], row["mem_type"], row["confidence"]) != (
            "unified" if spec.name == "m3-max" else spec.memory.label,  # Apple's page: up to 128 GB
            spec.memory.kind,
            spec.confidence,
        ):
            wrong.append(f"{spec.name}: label, kind or confidence")
        if row["scaleup_uni_bytes_per_s"] and spec.name not in RATE_WITHOUT_DOMAIN:
            domain = DOMAIN_FROM_ELSEWHERE.get(spec.name) or int(row["scaleup_domain"].split()[0])
            rate = float(row["scaleup_uni_bytes_per_s"])
            if (domain, rate) not in [(link.domain, link.bandwidth) for link in (*spec.links, spec.bridge) if link]:
                wrong.append(f"{spec.name}: no link joins {domain} at {rate}")
    assert wrong == []
