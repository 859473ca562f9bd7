"""One run: kernels of ggml timed, a server measured under two sets of loads, the second set predicted in three ways.

The first set anchors, and its requests in the server's log teach; the second is unseen. The kernels are of a model of
other widths, timed alone in the library that the server runs.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import InferplanError, InputFileError
from inferplan.estimate.deployment import Deployment
from inferplan.learning.document import learned_yaml
from inferplan.learning.fit import Learned, learn
from inferplan.learning.records import read_records
from inferplan.measuring.figures import csv_text
from inferplan.validation.anchor import anchor_of, anchor_yaml
from inferplan.validation.importers import plain
from inferplan.validation.run import Pricing, price_rows
from inferplan.validation.score import Scored
from tools.accuracy.llama_cpp import kernels
from tools.accuracy.llama_cpp.gguf_model import WEIGHTS, Sizes, write_gguf

SERVE = Path(__file__).with_name("serve.py")
SIZES = Sizes(width=1024, layers=16, heads=16, kv_heads=8, head_dim=64, inner=2816, vocab=8192)
"""The served model."""
SLOTS, CONTEXT = 4, 1024
OUTPUT = 64
FIRST = ["--lengths", "32,192", "--concurrency", "1", "--prompt", "32", "--single-requests", "4", "--output",
         str(OUTPUT)]  # fmt: skip
TOGETHER = ["--lengths", "32", "--concurrency", "4", "--prompt", "64", "--single-requests", "1", "--rounds", "1",
            "--output", "384"]  # fmt: skip
SECOND = ["--lengths", "96", "--concurrency", "1,4", "--prompt", "96", "--single-requests", "4", "--rounds", "3",
          "--rate", "0.25", "--rate-requests", "8", "--output", str(OUTPUT)]  # fmt: skip
EVERY = 8.0
"""Seconds between two scrapes of ``/metrics`` while :data:`TOGETHER` is sent."""
BEHIND = 256
"""Mean tokens behind a decode then: the prompt and half of the answer."""
FACTORS = (("host", "sequence", "prompt", "cache"), ("host", "sequence", "prompt"), ("host", "prompt"))
"""What is learned: the first of these that the record can tell apart."""
METRICS = ("ttft", "tpot")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where it runs: the Python with xllamacpp, threads of the server, and words in front of what is timed."""

    python: Path
    threads: int
    before: tuple[str, ...]


@dataclass(kw_only=True)
class Served:
    """A format's rows, by the way in which they are predicted. waited: the share of the second set's time in which the
    server's threads waited for a core. failed: ways that were refused, with the reason."""

    fmt: str
    waited: float
    by: dict[str, list[Scored]] = field(default_factory=dict)
    learned: Learned | None = None
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ran:
    """All of a run. timed: the kernels; fits: their constants, with errors on the shapes that they are from."""

    machine: Machine
    timed: list[kernels.Timed]
    bandwidth: float
    peaks: dict[str, float]
    fits: list[Any]
    served: list[Served]
    seconds: float


def run(folder: Path, machine: Machine, formats: Sequence[str], say: Any) -> Ran:
    """Everything, with files in a folder."""
    began = time.monotonic()
    hardware, constants, model, other = (
        folder / name for name in ("this-cpu.yaml", "kernels.yaml", "model.yaml", "other.yaml")
    )
    model.write_text(yaml.safe_dump(SIZES.described()), encoding="utf-8")
    other.write_text(yaml.safe_dump(kernels.OTHER.described()), encoding="utf-8")
    memory, cores = _memory(), machine.threads
    guess = dict.fromkeys(("fp32", "bf16", "fp16", "int8"), 1e10)
    hardware.write_text(kernels.hardware_text(1e10, guess, memory, cores), encoding="utf-8")
    say("kernels")
    deployments = {fmt: kernels.deployed(str(other), hardware, fmt) for fmt in formats}
    timed = kernels.timed(machine.python, machine.threads, machine.before, deployments)
    bandwidth, peaks = kernels.ceilings(timed)
    hardware.write_text(kernels.hardware_text(bandwidth, peaks, memory, cores), encoding="utf-8")
    fits = list(kernels.constants(timed, kernels.deployed(str(other), hardware, formats[0]).hardware))
    constants.write_text(kernels.constants_text(fits, "kernels of ggml, timed alone"), encoding="utf-8")
    served = [_served(folder, machine, fmt, (hardware, constants, model), say) for fmt in formats]
    return Ran(
        machine=machine, timed=timed, bandwidth=bandwidth, peaks=peaks, fits=fits, served=served,
        seconds=time.monotonic() - began,
    )  # fmt: skip


def _memory() -> float:
    """Bytes of this machine."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemTotal"):
            return float(line.split()[1]) * 1024
    raise InputFileError("/proc/meminfo has no MemTotal")


def _served(folder: Path, machine: Machine, fmt: str, files: tuple[Path, Path, Path], say: Any) -> Served:
    """A server in one format: measured twice, then predicted."""
    weights, log = (folder / f"{fmt}.{kind}" for kind in ("gguf", "log"))
    say(f"writing {weights.name}")
    write_gguf(weights, SIZES, fmt)
    with _server(machine, weights, log) as (url, process):
        say(f"measuring {fmt}: first loads")
        _measure(machine, url, folder / f"{fmt}-first.csv", FIRST)
        (folder / f"{fmt}-first.log").write_text(log.read_text(encoding="utf-8"), encoding="utf-8")
        with _scraped(url, folder / f"{fmt}-metrics.txt"):
            _measure(machine, url, folder / f"{fmt}-together.csv", TOGETHER)
        say(f"measuring {fmt}: second loads")
        began, waiting = time.monotonic(), _waited(process)
        _measure(machine, url, folder / f"{fmt}-second.csv", SECOND)
        waited = (_waited(process) - waiting) / (time.monotonic() - began)
    weights.unlink()
    return predicted(folder, fmt, waited, files)


@contextmanager
def _scraped(url: str, path: Path) -> Iterator[None]:
    """A server's ``/metrics``, again and again while the block runs."""
    stop = threading.Event()

    def read() -> None:
        with path.open("w", encoding="utf-8") as file:
            while not stop.wait(EVERY):
                with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
                    file.write(answer.read().decode())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        stop.set()
        reader.join()


def predicted(folder: Path, fmt: str, waited: float, files: tuple[Path, Path, Path]) -> Served:
    """What was measured of a format in a folder, predicted in each way."""
    hardware, constants, model = files
    second, anchor = folder / f"{fmt}-second.csv", folder / f"{fmt}-anchor.yaml"
    facts = {"model": str(model), "gpu": str(hardware), "engine": "llama.cpp", "tp": "1", "weights": WEIGHTS[fmt]}
    alone, found = Pricing(calibration=str(constants), processes=1), Served(fmt=fmt, waited=waited)
    found.by["kernels"] = _priced(second, facts, alone)
    try:
        first = [one for name in ("first", "together") for one in _priced(folder / f"{fmt}-{name}.csv", facts, alone)]
        fitted = anchor_of(first, alone, "the first loads")
        anchor.write_text(anchor_yaml(fitted.anchor), encoding="utf-8")
        anchored = Pricing(calibration=str(constants), anchor=str(anchor), processes=1)
        found.by["anchored"] = _priced(second, facts, anchored)
    except InferplanError as error:
        found.failed["anchored"] = error.render()
    request = Request(
        model=str(model), gpu=str(hardware), quant=WEIGHTS[fmt], engine="llama.cpp", calibration=str(constants)
    )
    for factors in FACTORS:
        found.failed.pop("learned", None)
        try:
            found.learned = _learned(folder, fmt, assemble(request), factors)
            learned = Pricing(calibration=str(folder / f"{fmt}-learned.yaml"), processes=1)
            found.by["learned"] = _priced(second, facts, learned)
            break
        except InferplanError as error:
            found.failed["learned"] = f"{', '.join(factors)}: {error.what}"
    return found


def _learned(folder: Path, fmt: str, deployment: Deployment, factors: Sequence[str]) -> Learned:
    """What the log and the scrapes of the first loads say, written as constants."""
    paths = [str(folder / f"{fmt}-{name}") for name in ("first.log", "metrics.txt")]
    records = read_records(paths, deployment, BEHIND)
    found = learn(deployment, [one.observed for one in records], factors)
    (folder / f"{fmt}-learned.yaml").write_text(
        learned_yaml(found, [Path(path).name for path in paths]), encoding="utf-8"
    )
    return found


def _priced(path: Path, facts: dict[str, str], pricing: Pricing) -> list[Scored]:
    """The rows of a file with what was deployed, which a server of random weights does not know."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = [{name: cell for name, cell in line.items() if name != "served_model"} for line in csv.DictReader(file)]
    return price_rows(plain.read(path, csv_text([{**line, **facts} for line in lines]), {}), pricing)


@contextmanager
def _server(machine: Machine, weights: Path, log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server with its address, until the block ends."""
    command = [*machine.before, str(machine.python), str(SERVE), str(weights), str(machine.threads), str(SLOTS),
               str(CONTEXT)]  # fmt: skip
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT)
        try:
            yield _address(process, log), process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=60)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(600):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("serving at "):
                return line.removeprefix("serving at ")
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise InputFileError("the server did not start", because=log.read_text(encoding="utf-8", errors="replace")[-500:])


def _waited(process: subprocess.Popen[bytes]) -> float:
    """Seconds for which the threads of a process have waited for a core."""
    found = 0
    for path in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
        found += int(path.read_text(encoding="ascii").split()[1])
    return found * 1e-9


def _measure(machine: Machine, url: str, out: Path, loads: Sequence[str]) -> None:
    """``inferplan measure``, as a user runs it. It must leave rows."""
    command = [*machine.before, sys.executable, "-m", "inferplan", "measure", url, *loads, "--warmup", "1",
               "--max-minutes", "3", "--out", str(out), "--force"]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if not out.exists():
        raise InputFileError("the server was not measured", because=ended.stderr.strip()[-500:])
