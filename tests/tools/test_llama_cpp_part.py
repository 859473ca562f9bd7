"""The part of the CPU's page that is about a server, beside the command that writes the rest; and the model served."""

from __future__ import annotations

from pathlib import Path

import yaml

from inferplan.catalog.files import load_model
from inferplan.work.ops import Matmul
from tools.accuracy.llama_cpp import kernels
from tools.accuracy.llama_cpp.gguf_model import WEIGHTS
from tools.accuracy.llama_cpp.parts import HEADING, part_of, with_part
from tools.accuracy.llama_cpp.run import SIZES


def test_the_part_is_replaced_and_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert part_of(page) == ""
    page.write_text("# CPU\n\nold\n")
    page.write_text(with_part(page, f"{HEADING}\n\nfirst\n"))
    page.write_text(with_part(page, f"{HEADING}\n\nsecond\n"))
    assert page.read_text() == f"# CPU\n\nold\n\n{HEADING}\n\nsecond\n"
    assert "# CPU\n\nnew\n" + part_of(page) == f"# CPU\n\nnew\n\n{HEADING}\n\nsecond\n"


def test_the_model_is_of_the_size_that_the_page_says(tmp_path: Path) -> None:
    """16 layers of 2 x 1024 x 1024 + 2 x 1024 x 512 + 3 x 1024 x 2816, and 2 x 8192 x 1024."""
    path = tmp_path / "model.yaml"
    path.write_text(yaml.safe_dump(SIZES.described()))
    matrices = 16 * (2 * 1024 * 1024 + 2 * 1024 * 512 + 3 * 1024 * 2816) + 2 * 8192 * 1024
    assert SIZES.parameters == matrices
    assert load_model(str(path)).parameters["total"] == matrices + (2 * 16 + 1) * 1024  # and the norms


def test_no_shape_that_is_timed_is_one_of_the_served_model(tmp_path: Path) -> None:
    hardware = tmp_path / "cpu.yaml"
    hardware.write_text(kernels.hardware_text(1e10, dict.fromkeys(("fp32", "bf16", "fp16", "int8"), 1e10), 1e10, 1))
    found = {}
    for name, sizes in (("served", SIZES), ("timed", kernels.OTHER)):
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(sizes.described()))
        shapes = [one for fmt in WEIGHTS for one in kernels.shapes(kernels.deployed(str(path), hardware, fmt))]
        found[name] = {(one.n, one.k) for one in shapes if isinstance(one, Matmul)}
    assert len(found["timed"]) == 5  # of queries, keys and values; output; gate and up; down; head
    assert not found["timed"] & found["served"]
