"""The lines and the JSON that say what a price rests on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run

H100 = {"kernels": "measured", "step": "published"}
"""Its kernels are timed (configs/calibration/h100-sxm.yaml), the host of a step comes from serving rows (step.yaml)."""


def test_what_no_band_covers_is_named_beside_it(run: Run) -> None:
    """A cap of 500 W changes times of which no capped run stands behind the band; a plain estimate has no such part."""
    asked = ("estimate", "llama-3.1-8b", "--gpu", "h100-sxm")
    assert "outside every error band" not in run(*asked).out
    capped = run(*asked, "--power-cap", "500W")
    assert "outside every error band: power cap, published" in capped.out + capped.err
    asked += ("--prefix-hit-rate", "0.5", "--kv-offload", "100GB", "--offload-bandwidth", "50GB/s")
    found, plain = run(*asked, "--format", "json").json["rests_on"], run(*asked)
    assert (found["cache_tiers"]["kind"], found["cache_tiers"]["in_band"]) == ("formula", False)
    assert "cache tiers, formula" in plain.out + plain.err


def test_runs_and_days_say_it_too(run: Run, tmp_path: Path) -> None:
    """A run with drafts and tiers; a day whose replicas start as a published loader reads."""
    tier = ("--turns", "3", "--think-time", "exponential:5s", "--cache-tier", "host:20GB:25GB/s")
    few = ("--rate", "1", "--requests", "30", "--format", "json")
    record = run("simulate", "llama-3.1-8b", "--gpu", "h100-sxm", *few, *tier, "--energy").json
    kinds = {part: one["kind"] for part, one in record["conditions"]["rests_on"].items()}
    assert kinds == H100 | {"cache_tiers": "formula", "energy": "published"}
    profile = tmp_path / "profile.csv"
    profile.write_text("time,rate\n00:00,0.2\n12:00,1\n")
    start = ("--storage-bandwidth", "1GB/s", "--loader", "tensorizer:8", "--engine-start", "60s")
    day = (
        "day",
        "llama-3.1-8b",
        "--gpu",
        "h100-sxm",
        "--profile",
        str(profile),
        "--workload",
        "chat",
        "--duration",
        "20min",
    )
    record = run(*day, "--price", "h100-sxm=2", "--policy", "scheduled", *start, "--format", "json").json
    assert record["rests_on"]["cold_start"]["kind"] == "published"
    assert record["cold_start"]["loader"] == "tensorizer:8"
    assert record["cold_start"]["seconds"] == pytest.approx(2.2 + 2 * 8_030_261_248 / 1e9 + 60.0)
