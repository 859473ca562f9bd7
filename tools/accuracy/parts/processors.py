"""Models that llama.cpp runs on a processor alone."""

from __future__ import annotations

from pathlib import Path

from tools.accuracy.parts.rows import Part, PartRow
from tools.fitting.processors import runs


def processors_part(shared: Path) -> Part:
    """Each speed of ``processors.csv``."""
    rows = [
        PartRow(
            source=run.source,
            case=run.case,
            measured=run.measured,
            predicted=run.predicted,
            unit="tokens/s",
            fitted=run.fitted,
        )
        for run in runs()
    ]
    return Part(name="A processor alone", rows=rows)
