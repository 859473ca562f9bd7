"""Constants of the nearest relative: which device takes whose, with which error, and what stands in for the rest."""

from __future__ import annotations

import numpy as np
import pytest

from calibrate.fit import Measurement
from inferplan.catalog.calibrations import load_kernels, relatives
from inferplan.catalog.files import config_root, load_hardware, names
from inferplan.devices.constants import ANY, Calibration, Fit
from inferplan.work.formats import find_format
from inferplan.work.ops import Matmul
from tests.cases import for_each
from tools.fitting.tables.choose import DeviceTables
from tools.fitting.tables.relatives import carried_ratios, others_of, pooled_errors

BF16 = find_format("bf16")


@for_each("name", names("hardware"))
def test_a_relative_has_constants_of_its_own_and_the_same_maker(name: str) -> None:
    device = load_hardware(name)
    if device.relative is not None:
        relative = load_hardware(device.relative)
        assert (config_root() / "calibration" / f"{device.relative}.yaml").is_file()
        assert (relative.vendor, relative.memory.kind[:3]) == (device.vendor, device.memory.kind[:3])


@for_each(
    ("name", "relative"), [("gb300", "b200-hgx"), ("h20", "h100-sxm"), ("mi325x", "mi300x"), ("mi350x", "mi355x")]
)
def test_a_device_takes_the_constants_of_its_relative(name: str, relative: str) -> None:
    own, carried = (load_kernels(load_hardware(one), None, "sglang") for one in (relative, name))
    fit, other = own.fit("matmul", "bf16"), carried.fit("matmul", "bf16")
    assert fit is not None and other is not None
    assert (other.math, other.memory, other.overhead) == (fit.math, fit.memory, fit.overhead)
    assert (carried.basis, other.basis, other.source) == ("transferred", "transferred", f"{relative}'s constants")


@for_each(
    ("name", "kind"),
    [("gh200-144gb", "same_chip"), ("h800", "same_chip"), ("h20", "other_chip"), ("h100-pcie", "other_chip")],
)
def test_its_band_is_that_of_chips_as_alike_that_were_measured(name: str, kind: str) -> None:
    fit = load_kernels(load_hardware(name), None, "vllm").fit("attention.decode", "bf16")
    assert fit is not None and fit.error == getattr(relatives(), kind)["vllm"]["attention.decode"]["bf16"]


@for_each(
    ("library", "kernel"),
    [("trtllm", "attention.decode"), ("trtllm", "collective.all_reduce"), ("sglang", "grouped_matmul")],
)
def test_another_chip_is_further_off_than_the_same(library: str, kernel: str) -> None:
    """H100 and H200, and Hopper and Blackwell: decode attention 9 and 26 %, all-reduce 9 and 42, experts 13 and 30."""
    same, other = (pairs[library][kernel] for pairs in (relatives().same_chip, relatives().other_chip))
    assert all(other[label]["median"] > same[label]["median"] for label in same.keys() & other.keys())


def test_amd_has_bands_of_what_was_measured_and_of_nothing_else() -> None:
    amd = load_kernels(load_hardware("mi325x"), None, "vllm").fit("matmul", "bf16")
    assert amd is not None and amd.band is not None  # each way to the other GPU, which is 24 and 34 % off
    assert amd.band[0] < 0.8 and amd.band[1] > 1.2
    for name in ("mi300x", "mi325x", "mi355x"):  # nobody published a run of theirs with experts over ranks
        found = load_kernels(load_hardware(name), None, "sglang")
        for kernel in ("dispatch.normal", "combine.low_latency", "grouped_matmul.exchanged", "mla.sparse"):
            fit = found.fit(kernel, "fp8-blockxfp8")
            assert fit is not None and fit.band is None, (name, kernel)


def test_no_error_is_known_of_announced_figures() -> None:
    found = load_kernels(load_hardware("vr200"), None, "vllm")
    assert not any(fit.error for formats in found.constants.values() for fit in formats.values())


def test_what_the_relative_lacks_is_that_of_the_class() -> None:
    own = Calibration(name="a", constants={"matmul": {"bf16": Fit(math=0.5)}})
    rest = Calibration(name="class", constants={"matmul": {"bf16": Fit(), "fp8": Fit(math=0.25)}, "conv": {ANY: Fit()}})
    found = own.beside(rest)
    kept, filled = found.fit("matmul", "bf16"), found.fit("matmul", "fp8")
    assert kept is not None and filled is not None
    assert (kept.math, filled.math, filled.source) == (0.5, 0.25, "class constants")
    assert found.fit("conv", ANY) is not None


def test_errors_of_carried_constants_by_hand() -> None:
    """A device whose matmuls take 1.1 and 1.3 times what the other's constants say: 1 - 1/1.1 and 1 - 1/1.3 off."""
    device = load_hardware("h200-sxm")
    op = Matmul(name="gemm", m=4096.0, k=4096, n=4096, weight=BF16, input=BF16, output=BF16)
    ideal = float(op.work().flop) / device.peak_of("bf16")
    rows = [Measurement(op=op, seconds=ideal / 0.5 * factor) for factor in (1.1, 1.3)]
    tables = DeviceTables(
        hardware=device, libraries={"vllm": {("matmul", "bf16"): rows}}, impossible=0, fallbacks=0, rows=2, sources={}
    )
    vector = {"norm": {ANY: Fit()}}
    found = Calibration(name="h100-sxm", constants=vector, libraries={"vllm": {"matmul": {"bf16": Fit(math=0.5)}}})
    assert others_of(device) == [("same_chip", "h100-sxm"), ("other_chip", "b200-hgx")]
    ratios = carried_ratios(tables, found)
    assert ratios["vllm"]["matmul"]["bf16"] == pytest.approx(np.array([1.1, 1.3]))
    error = pooled_errors([ratios])["vllm"]["matmul"]["bf16"]
    assert error["mape"] == pytest.approx(((1 - 1 / 1.1) + (1 - 1 / 1.3)) / 2, rel=1e-3) and error["n"] == 2
