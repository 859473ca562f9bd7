"""Cold starts: the seconds in which weights are read from storage."""

from __future__ import annotations

from pathlib import Path

from tools.accuracy.parts.rows import Part, PartRow, published

RESTS = """Bytes of the weights over the bandwidth that `--storage-bandwidth` says ([day](day.md#cold-start)), here that of the volume as sold; what
the engine does beside it, `--engine-start` or a start-up log, has no default and is not priced."""
FOUND = """Loaders, not disks, set the pace: a single stream of safetensors reads 0.32 GB/s from a volume of 1 GB/s and of 4.2 GB/s alike, the
streamers of Run:ai and tensorizer 1.0 GB/s from the first with 4 streams and more, and 2.0 and 1.4 GB/s from the second. So give `--storage-bandwidth` as your
loader reaches it. From page cache safetensors reads 5 GB/s and ServerlessLLM 52 GB/s on an H100. The seconds of vLLM 0.5.5 beside them, until it is
ready: 13 to 24 on an A10G. Rows from S3 name no bandwidth."""
VOLUMES = {"gp3 (1000 MiB/s)": 1000 * 2**20, "io2 (4000 MiB/s)": 4000 * 2**20}
"""Bytes a second as sold."""


def cold_start_part(shared: Path) -> Part:
    """The rows of ``cold_start.csv`` that name a volume's bandwidth."""
    rows = [
        PartRow(
            source="runai-model-streamer",
            case=f"{row['model']} from {row['storage']}, {row['loader']}, streams: {row['load_concurrency'] or 'not said'}",
            measured=float(row["value"]),
            predicted=float(row["weights_gb"]) * 1e9 / VOLUMES[row["storage"]],
            unit="s",
        )
        for row in published(shared, "cold_start")
        if row["quantity"] == "weights_load_to_gpu" and row["storage"] in VOLUMES
    ]
    return Part(name="Cold start", rests=RESTS, rows=rows, found=FOUND)
