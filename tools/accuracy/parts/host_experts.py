"""Experts that KTransformers computes on hosts of one and two sockets."""

from __future__ import annotations

from pathlib import Path

from tools.accuracy.parts.rows import Part, PartRow
from tools.fitting.host_experts import aside, runs


def host_experts_part(shared: Path) -> Part:
    """Each speed that can be priced, of hosts of the fit and of the others."""
    rows = [
        PartRow(
            source=run.source,
            case=run.case,
            measured=run.measured,
            predicted=run.predicted,
            unit="tokens/s",
            fitted=not aside(run.host),
        )
        for run in runs(shared)
    ]
    return Part(name="Experts on the host, KTransformers", rows=rows)
