"""A real llama.cpp server with a random-weight GGUF: measured, read and learned from; where the wheel is installed."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("xllamacpp")
pytest.importorskip("gguf")

from inferplan.catalog.assemble import Request, assemble
from inferplan.learning.records import read_records
from tools.accuracy.llama_cpp import kernels
from tools.accuracy.llama_cpp.gguf_model import WEIGHTS, Sizes, write_gguf
from tools.accuracy.llama_cpp.run import SERVE

TINY = Sizes(width=128, layers=2, heads=4, kv_heads=2, head_dim=32, inner=256, vocab=1024)
ALIKE = dict.fromkeys(("fp32", "bf16", "fp16", "int8"), 1e11)


@contextmanager
def server(folder: Path, fmt: str) -> Iterator[tuple[str, Path]]:
    """A server of a tiny model, and its log."""
    write_gguf(folder / "tiny.gguf", TINY, fmt)
    log = folder / "server.log"
    command = [sys.executable, str(SERVE), str(folder / "tiny.gguf"), "1", "2", "512"]
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT)
        try:
            for _ in range(300):
                found = [line for line in log.read_text().splitlines() if line.startswith("serving at ")]
                if found or process.poll() is not None:
                    break
                time.sleep(0.1)
            assert found, log.read_text()
            yield found[0].removeprefix("serving at "), log
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=30)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", WEIGHTS)
def test_a_server_of_each_format(fmt: str, call: Callable[..., Any], tmp_path: Path) -> None:
    """It says engine, tokens and context; prompts are as long as they were meant to be, by its own tokenizer; its log
    holds a prompt and the steps behind it of each request that was alone."""
    with server(tmp_path, fmt) as (url, log):
        code, out, err = call(url, "--lengths", "64,200", "--concurrency", "2", "--prompt", "64", "--output", "8",
                              "--single-requests", "3", "--rate", "20", "--rate-requests", "4", "--warmup", "1",
                              "--out", "own.csv", "--format", "json")  # fmt: skip
        assert code == 0, err
    record = json.loads(out)
    assert (record["server"]["engine"], record["server"]["context"]) == ("llama.cpp", 512)
    with Path("own.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["failed_requests"] for row in rows] == ["0"] * 4
    assert [row["rate_per_s"] for row in rows] == ["", "", "20", ""]
    assert [float(row["osl"]) for row in rows] == [8.0] * 4
    assert [float(row["isl"]) for row in rows] == pytest.approx([64, 64, 64, 200], rel=0.4)  # of long and short words
    hardware, model = tmp_path / "cpu.yaml", tmp_path / "tiny.yaml"
    hardware.write_text(kernels.hardware_text(1e10, ALIKE, 1e10, 1), encoding="utf-8")
    model.write_text(yaml.safe_dump(TINY.described()), encoding="utf-8")
    deployment = assemble(Request(model=str(model), gpu=str(hardware), quant=WEIGHTS[fmt], engine="llama.cpp"))
    (found,) = read_records([str(log)], deployment)
    prompts = [load.new for one in found.observed for _, load in one.steps if load.prompts]
    assert max(prompts) == pytest.approx(200, rel=0.4)
    assert len(prompts) >= 3 + 3  # of single users
