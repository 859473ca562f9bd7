"""The points of a curve, and what a process may not do: without a server."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inferplan.devices.constants import IDEAL
from inferplan.estimate.roofline import price
from inferplan.planning.confidence import USUAL
from inferplan.web.view import _run, batches
from inferplan.work.formats import find_format
from inferplan.work.ops import Matmul
from tests.builders import chip
from tests.cases import for_each

ROOT = Path(__file__).parents[2]


@given(largest=st.integers(0, 10**6), points=st.integers(1, 2000))
@example(largest=501, points=500)
@example(largest=0, points=1)
def test_batches_are_whole_numbers_that_grow_to_the_largest(largest: int, points: int) -> None:
    found = batches(largest, points)
    assert len(found) == max(min(largest, points), 1)
    assert found[0] == 1 and (points == 1 or found[-1] == max(largest, 1))
    assert np.all(np.diff(found) >= 1) and np.all(found == np.round(found))


def test_the_page_names_the_confidence_that_a_plan_has_unasked() -> None:
    words = (ROOT / "inferplan" / "web" / "static" / "plan.js").read_text(encoding="utf-8")
    assert f'["", "an {USUAL * 100:.0f} % chance of keeping each limit"]' in words


def test_an_operator_that_runs_often_counts_as_often() -> None:
    """Under one name three runs of 10 x 20 x 30 in two bytes and one of twice as many rows: 3*12,000 + 24,000 FLOP,
    3*2,200 + 3,200 bytes. At 1e6 FLOP/s a run takes 12 ms, and the longer one here 64: 0.1 s in all.
    """
    bf16 = find_format("bf16")
    ops = [
        Matmul(name="ffn", m=rows, k=20, n=30, weight=bf16, input=bf16, output=bf16, count=count)
        for rows, count in ((10.0, 3), (20.0, 1))
    ]
    short, long = (price(op, chip(1e9, 1e6), IDEAL) for op in ops)
    row = _run([short, replace(long, spent=long.spent._replace(total=0.064))])
    assert row["intensity"] == pytest.approx(60_000 / 9_800)
    assert row["achieved_flop_per_s"] == pytest.approx(600_000)


@for_each(
    "call",
    [
        "__import__('socket').create_connection(('127.0.0.1', 9))",
        "__import__('socket').getaddrinfo('example.org', 80)",
        "__import__('subprocess').run(['true'])",
        "__import__('os').system('true')",
        "open('written.txt', 'w')",
        "open('own.yaml', 'a')",
        "__import__('os').open('own.yaml', __import__('os').O_RDWR)",
        "__import__('os').remove('own.yaml')",
        "__import__('pathlib').Path('own.yaml').rename('other.yaml')",
        "open('../outside.yaml')",
        "open('link.yaml')",
    ],
)
def test_a_confined_process_cannot(call: str, tmp_path: Path) -> None:
    """It reads the folder, and the files of the program itself; nothing else of what requests can name."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "own.yaml").write_text("inside")
    (tmp_path / "outside.yaml").write_text("outside")
    (folder / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    script = f"""
from pathlib import Path
from inferplan.catalog.files import load_model
from inferplan.web.confine import confine
confine(Path("."))
assert open("own.yaml").read() == "inside" and load_model("llama-3.1-8b").vocab == 128256
try:
    {call}
except PermissionError:
    print("refused")
"""
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    assert ran.stdout == "refused\n"
    assert {path.name for path in folder.iterdir()} == {"own.yaml", "link.yaml"}
