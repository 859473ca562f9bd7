"""Cold starts: the seconds in which weights are read from storage."""

from __future__ import annotations

from pathlib import Path

from tools.accuracy.parts.rows import Part, PartRow, published

VOLUMES = {"gp3 (1000 MiB/s)": 1000 * 2**20, "io2 (4000 MiB/s)": 4000 * 2**20}
"""Bytes a second as sold."""


def cold_start_part(shared: Path) -> Part:
    """The rows of ``cold_start.csv`` that name a volume's bandwidth."""
    rows = [
        PartRow(
            source="runai-model-streamer",
            case=f"{row['model']} from {row['storage']}, {row['loader']}, {row['load_concurrency'] or '?'} streams",
            measured=float(row["value"]),
            predicted=float(row["weights_gb"]) * 1e9 / VOLUMES[row["storage"]],
            unit="s",
        )
        for row in published(shared, "cold_start")
        if row["quantity"] == "weights_load_to_gpu" and row["storage"] in VOLUMES
    ]
    return Part(name="Cold start", rows=rows)
