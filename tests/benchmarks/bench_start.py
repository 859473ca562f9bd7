"""What it takes to have an answer: installation and start of inferplan beside tools that are near to it, without a GPU.

``python -m tests.benchmarks.bench_start`` makes a virtual environment for each in a temporary folder, installs the
newest release that pip finds (this checkout of inferplan), and prints the table of docs/performance.md, section
"Start and size". ``--pairs 21`` installs nothing: an estimate over ``import numpy``, here, in turn.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
RUNS = 9
ANSWER = "estimate llama-3.1-8b --gpu h100-sxm"
ANALYSIS = "infer --model_name NousResearch_Llama-2-7b-hf --gpu_name h100-sxm-80gb --dtype_name w16a16e16"


class Tool(NamedTuple):
    """What pip installs, and what is run in the environment's ``bin``: the lightest call, and one estimate."""

    install: str
    start: str
    answer: str | None = None


TOOLS = (
    Tool(str(ROOT), "inferplan --help", f"inferplan {ANSWER}"),
    Tool("llm-analysis", "python -m llm_analysis.analysis infer --help", f"python -m llm_analysis.analysis {ANALYSIS}"),
    Tool("aiperf", "aiperf --help"),
    Tool("guidellm", "guidellm --help"),
)
"""llm-analysis estimates; AIPerf and GuideLLM measure a server and estimate nothing."""


def seconds(words: str, folder: Path) -> float:
    """CPU seconds of a command: the least of several runs, the first not counted."""
    return min([once(words.split(), folder) for _ in range(RUNS + 1)][1:])


def once(words: Sequence[str], folder: Path) -> float:
    """CPU seconds, user and system, of a process and its children. folder: of its environment."""
    program, *arguments = words
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    before = _children()
    subprocess.run(
        [str(folder / "bin" / program), *arguments], cwd=ROOT, env=environment, capture_output=True, check=True
    )
    return _children() - before


def _children() -> float:
    """CPU seconds of every process that has ended. Those of ``os.times`` come in hundredths."""
    usage = getrusage(RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def size(folder: Path) -> tuple[int, int]:
    """Packages in an environment beside pip and setuptools, and the bytes of its files."""
    (site,) = folder.glob("lib/python*/site-packages")
    packages = {one.name.partition("-")[0] for one in site.glob("*.dist-info")} - {"pip", "setuptools"}
    return len(packages), sum(one.lstat().st_size for one in folder.rglob("*") if not one.is_dir())


def measure(tool: Tool, folder: Path) -> str:
    """One row of the table."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    began = time.perf_counter()
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", tool.install], check=True)
    took = time.perf_counter() - began
    packages, kept = size(folder)
    answer = f"{seconds(tool.answer, folder):.2f}" if tool.answer else "-"
    name = Path(tool.install).name if tool.install != str(ROOT) else "inferplan"
    return (
        f"| {name} | {packages} | {kept / 1e6:,.0f} MB | {took:.0f} s | {seconds(tool.start, folder):.2f} | {answer} |"
    )


def over_numpy(pairs: int) -> str:
    """CPU seconds of an estimate over those of ``import numpy`` at the same moment: the median of pairs."""
    folder = Path(sys.executable).parents[1]
    answer, numpy = ["python", "-m", "inferplan", *ANSWER.split()], ["python", "-c", "import numpy"]
    once(answer, folder)  # which keeps what it has read
    found = [(once(answer, folder), once(numpy, folder)) for _ in range(pairs)]
    return f"{median(one / least for one, least in found):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int)
    if pairs := parser.parse_args().pairs:
        print(over_numpy(pairs))
        return
    print("| tool | packages | on disk | installed in | `--help`, CPU s | an estimate, CPU s |")
    print("|---|---:|---:|---:|---:|---:|")
    for tool in TOOLS:
        with TemporaryDirectory() as folder:
            print(measure(tool, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
