"""Factors learned from published benchmark runs, on runs that were held out and on another division of the model."""

from __future__ import annotations

import csv
from pathlib import Path

from inferplan.catalog.assemble import Request, assemble
from inferplan.estimate.deployment import Deployment
from inferplan.learning.factors import Kernels, Priced
from inferplan.learning.fit import Errors, learn
from inferplan.learning.observed import Observed
from inferplan.learning.records import read_records
from inferplan.work.parallel import Parallelism


def runs(tp: int, measured: Path, folder: Path) -> tuple[Deployment, list[Observed]]:
    """Qwen3-32B in bf16 under vLLM 0.12 on H100: loads of 8 to 128 users, 1,024 to 4,096 tokens in."""
    deployment = assemble(
        Request(model="Qwen3-32B", gpu="h100-sxm", engine="vllm@0.12.0", quant="bf16", parallel=Parallelism(tp=tp))
    )
    rows = list(csv.DictReader(measured.read_text(encoding="utf-8").splitlines()))
    with (folder / "own.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(row for row in rows if (row["model"], row["engine"]) == ("Qwen3-32B", "vllm"))
    (found,) = read_records([str(folder / "own.csv")], deployment)
    return deployment, found.observed


def test_what_four_ranks_teach_holds_for_eight(shared: Path, tmp_path: Path) -> None:
    measured = shared / "measured" / "serving.csv"
    four, of_four = runs(4, measured, tmp_path)
    found = learn(four, [of_four], ("host", "sequence", "prompt", "cache"))
    assert found.held_out[1].mean < 0.02 < found.held_out[0].mean
    eight, of_eight = runs(8, measured, tmp_path)
    priced = Priced(of_eight)
    before, after = (
        Errors.of(priced.seconds(one), priced.measured).mean for one in (eight, Kernels(eight).deployed(found.values))
    )
    assert before > 0.05
    assert after < 0.03
