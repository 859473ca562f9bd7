"""The error of a stand-in: constants of one library on the rows of another's, on the same device."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from calibrate.fit import Measurement
from inferplan.catalog.files import load_hardware
from inferplan.catalog.overlay import LibraryErrors
from inferplan.devices.constants import Fit
from inferplan.work.formats import find_format
from inferplan.work.ops import Conv, Matmul, Op
from tools.fitting.tables.calibrations import rest_calibration
from tools.fitting.tables.choose import DeviceTables
from tools.fitting.tables.libraries import carried_ratios, library_errors, write_libraries

BF16 = find_format("bf16")


def matmul(m: int, k: int, n: int) -> Op:
    return Matmul(name="gemm", m=float(m), k=k, n=n, weight=BF16, input=BF16, output=BF16)


def tables(slower: float) -> DeviceTables:
    """vLLM's matmuls take twice the datasheet's time, SGLang's ``slower`` times that, at the same shapes."""
    hardware = load_hardware("h200-sxm")
    shapes = [(m, k, n) for m in (1, 16, 256, 4096) for k in (2048, 8192) for n in (4096, 16384)]

    def rows(factor: float) -> list[Measurement]:
        found = []
        for shape in shapes:
            op = matmul(*shape)
            work = op.work()
            seconds = max(float(work.flop) / 989.4e12, float(work.bytes) / 4.8e12)
            found.append(Measurement(op=op, seconds=2.0 * seconds * factor))
        return found

    group = ("matmul", "bf16")
    libraries = {"vllm": {group: rows(1.0)}, "sglang": {group: rows(slower)}}
    return DeviceTables(hardware=hardware, libraries=libraries, impossible=0, fallbacks=0, rows=32, sources={})


def test_a_library_that_is_slower_everywhere_by_hand() -> None:
    """1.25 times one way and 0.8 times the other, less what a smooth fit rounds off near the ridge."""
    found = {pair: ratios for _, _, pair, ratios in carried_ratios(tables(1.25), rest_calibration(Fit()))}
    assert sorted(found) == ["sglang to vllm", "vllm to sglang"]
    assert len(found["vllm to sglang"]) == 16
    assert found["vllm to sglang"] == pytest.approx([1.25] * 16, rel=0.12)
    assert found["sglang to vllm"] == pytest.approx([0.8] * 16, rel=0.12)


def test_errors_of_both_ways_and_the_file(tmp_path: Path) -> None:
    """|1/1.25 - 1| = 0.2 and |1/0.8 - 1| = 0.25: a mean of 0.225, within 80 % from 0.8 to 1.25."""
    errors, pairs = library_errors([tables(1.25)])
    assert pairs == {"matmul": ["sglang to vllm on h200-sxm", "vllm to sglang on h200-sxm"]}
    assert errors["matmul"]["bf16"]["mape"] == pytest.approx(0.225, abs=0.03)
    assert errors["matmul"]["bf16"]["n"] == 32
    out = tmp_path / "libraries.yaml"
    write_libraries(out, ["NVIDIA"], {"pairs": pairs}, errors)
    read = LibraryErrors.model_validate(yaml.safe_load(out.read_text(encoding="utf-8")))
    band = read.of("matmul", "bf16", "NVIDIA")
    assert band["low"] == pytest.approx(0.8, rel=0.08) and band["high"] == pytest.approx(1.25, rel=0.08)
    assert read.of("matmul", "bf16", "AMD") == read.of("norm", "any", "NVIDIA") == {}


def test_kernels_that_move_data_have_the_error_of_short_convolutions() -> None:
    device = tables(1.25)
    for name, factor in (("vllm", 1.0), ("sglang", 1.5)):
        rows = []
        for batch in (64, 256, 1024, 4096):
            for channels in (2048, 8192):
                op = Conv(name="c", batch=float(batch), new=1.0, channels=channels, taps=4, base=BF16)
                rows.append(Measurement(op=op, seconds=2 * factor * float(op.work().bytes) / 4.8e12, source="update"))
        device.libraries[name]["conv", "any"] = rows
    errors, _ = library_errors([device])
    assert errors["norm"] == errors["copy"] == {"any": errors["conv"]["any"]}
    assert errors["conv"]["any"]["high"] == pytest.approx(1.5, rel=0.05)
