"""The development environment has the CPU build of torch, whatever machine makes it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from tests.cases import for_each

ROOT = Path(__file__).parents[1]
WHEELS = {
    "linux": "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
    "darwin": "torch-2.13.0-cp311-none-macosx_11_0_arm64.whl",
    "win32": "torch-2.13.0-cp311-cp311-win_amd64.whl",
}
"""Of the CPU builds the names that their publisher gives them; the CUDA build of the package index for Linux states the
version alone."""


@for_each("system", WHEELS)
def test_only_a_cpu_build_satisfies_the_pin(system: str) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line.startswith("torch==")]
    (pin,) = (pin for pin in pins if pin.marker is None or pin.marker.evaluate({"sys_platform": system}))
    assert pin.specifier.contains(parse_wheel_filename(WHEELS[system])[1])
    assert pin.specifier.contains("2.13.0") == (system != "linux"), "the index's own wheel for Linux is the CUDA build"


def test_what_make_installed_has_no_cuda() -> None:
    torch = pytest.importorskip("torch")
    if not (Path(sys.prefix) / ".installed").exists():
        pytest.skip("not an environment that make has made: its torch is the machine's own")
    assert torch.version.cuda is None and torch.version.hip is None
