"""Cold starts: the seconds in which weights are read from storage, and until an engine is ready."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from inferplan.catalog.loaders import loading_of
from inferplan.serving.cold_start import ColdStart
from tools.accuracy.parts.rows import Part, PartRow, published

VOLUMES = {"gp3 (1000 MiB/s)": 1000 * 2**20, "io2 (4000 MiB/s)": 2e9}
"""Bytes a second: as the volume was sold, and no more than the 16 Gbit/s between a g5.12xlarge and its volumes (AWS,
Amazon EBS-optimized instance types)."""
FITTED = "gp3 (1000 MiB/s)"
"""The volume whose rows ``configs/loaders.yaml`` was taken from."""
MANY = "16"
"""Streams of the runs of the whole engine, whose number is not told: from 8 on it changes nothing."""
SIZES = {"Qwen/Qwen3-32B": 65.52e9, "DeepSeek-R1-Distill-Qwen-32B": 65.53e9, "Llama-3.1-8B-Instruct": 16.06e9}
"""Bytes of checkpoints in bf16: parameters on their cards, two bytes each."""
OTHER = "Qwen/Qwen3-32B"
"""The model from whose rows the rates of memory and of the disk are taken."""


def cold_start_part(shared: Path) -> Part:
    """The rows of ``cold_start.csv`` that name their storage."""
    rows = published(shared, "cold_start")
    return Part(name="Cold start", rows=[*_volumes(rows), *_engines(rows), *_near(rows)])


def _read(row: dict[str, str]) -> ColdStart:
    """The start of a loader that reads a volume."""
    name = row["loader"].removeprefix("hf-")
    loading = loading_of(name if name == "safetensors" else f"{name}:{row['load_concurrency'] or MANY}")
    return ColdStart(
        rest=0.0,
        weights=float(row["weights_gb"]) * 1e9,
        bandwidth=VOLUMES[row["storage"]],
        start=loading.start,
        loader=loading.name,
        each=loading.bandwidth,
    )


def _volumes(rows: list[dict[str, str]]) -> Iterator[PartRow]:
    for row in rows:
        if row["quantity"] == "weights_load_to_gpu" and row["storage"] in VOLUMES:
            start = _read(row)
            yield PartRow(
                source="runai-model-streamer",
                case=f"{row['model']} from {row['storage']}, {start.loader}",
                measured=float(row["value"]),
                predicted=start.seconds,
                unit="s",
                fitted=row["storage"] == FITTED,
            )


def _engines(rows: list[dict[str, str]]) -> Iterator[PartRow]:
    """vLLM until it is ready; ``--engine-start`` is the median of what the runs from one volume took besides."""
    ready = [row for row in rows if row["quantity"] == "engine_ready" and row["storage"] in VOLUMES]
    besides = median(float(row["value"]) - _read(row).seconds for row in ready if row["storage"] == FITTED)
    for row in ready:
        start = replace(_read(row), rest=besides)
        what = f"{row['model']} from {row['storage']}, {start.loader}, {besides:.1f} s besides"
        yield PartRow(
            source="runai-model-streamer",
            case=f"vLLM 0.5.5 ready, A10G, {what}",
            measured=float(row["value"]),
            predicted=start.seconds,
            unit="s",
            fitted=row["storage"] == FITTED,
        )


def _near(rows: list[dict[str, str]]) -> Iterator[PartRow]:
    """Loaders from memory and from a disk, each at the rate of one model's row."""
    near = [row for row in rows if row["quantity"] == "weights_load_to_gpu_mean"]
    rates = {(row["loader"], row["cache"]): SIZES[OTHER] / float(row["value"]) for row in near if row["model"] == OTHER}
    for row in near:
        rate = rates[row["loader"], row["cache"]]
        yield PartRow(
            source="ServerlessLLM",
            case=f"{row['model']}, H100, {row['loader']}, {row['cache']}, {rate / 1e9:.3g} GB/s",
            measured=float(row["value"]),
            predicted=ColdStart(rest=0.0, weights=SIZES[row["model"]], bandwidth=rate).seconds,
            unit="s",
            fitted=row["model"] == OTHER,
        )
