"""Anchors: one scalar a phase from one's own measured rows, shrunk by how few they are.

The scalar is ``exp(median(log(measured/predicted)) * n/(n + k))``: with no rows 1, with many their median ratio. It
corrects what all rows of one system share (clocks, a kernel of its own, a front end), so it holds for that model on
that GPU under that engine, and for what was measured: a latency under load, or a static batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import yaml

from inferplan.devices.constants import Anchor, Calibration
from inferplan.errors import UsageError
from inferplan.validation.score import Scored

SHRINKAGE = {"ttft": 3.0, "tpot": 0.5}
"""Rows' worth of doubt: a system's rows scatter more around their scalar in TTFT, where queues and clients matter, than
in TPOT. Chosen by the error that is left on the other rows of a system (docs/accuracy.md)."""


def shrunk(ratios: Sequence[float], doubt: float) -> float:
    """The scalar of measured over predicted ``ratios``."""
    if not ratios:
        return 1.0
    return float(np.exp(np.median(np.log(ratios)) * len(ratios) / (len(ratios) + doubt)))


def anchor_of(scored: Sequence[Scored], before: Anchor | None = None) -> Anchor:
    """The scalars of rows of one system; ``before``: the anchor that their predictions hold already.

    Rows that are suspect or faster than light are left out. Raises ``UsageError`` when there is no usable row, or more
    than one system.
    """
    usable = [one for one in scored if one.prediction is not None and not one.impossible and not one.suspect]
    systems = {(*one.row.run.pair, one.row.run.engine) for one in usable if one.row.run}
    if len(systems) > 1:
        named = "; ".join(" on ".join(system[:2]) + f" under {system[2]}" for system in sorted(systems)[:4])
        raise UsageError(
            f"an anchor is of one system, not of {len(systems)}",
            because=named,
            hint="a file with the rows of one of them",
        )
    held = {"ttft": before.prefill if before else 1.0, "tpot": before.decode if before else 1.0}
    ratios = {
        metric: [held[metric] / (1.0 + error) for one in usable if (error := one.error(metric)) is not None]
        for metric in ("ttft", "tpot")
    }
    if not any(ratios.values()):
        raise UsageError("no row to anchor to", because=f"{len(scored)} rows, none usable with a TTFT or a TPOT")
    return Anchor(
        prefill=shrunk(ratios["ttft"], SHRINKAGE["ttft"]),
        decode=shrunk(ratios["tpot"], SHRINKAGE["tpot"]),
        rows=max(len(values) for values in ratios.values()),
    )


def anchored_yaml(calibration: Calibration, anchor: Anchor, source: str) -> str:
    """The constants with the anchor, as a file for ``--calibration``."""
    record: dict[str, Any] = calibration.model_dump(mode="json", exclude_defaults=True)
    record["name"] = f"{calibration.name}, anchored"
    record["provenance"] = {**calibration.provenance, "anchor": source}
    record["anchor"] = {
        "prefill": float(f"{anchor.prefill:.5g}"),
        "decode": float(f"{anchor.decode:.5g}"),
        "rows": anchor.rows,
    }
    return yaml.safe_dump(record, sort_keys=False, allow_unicode=True, width=120)
