"""``docs/accuracy-parts.md``, written by ``python -m tools.accuracy parts SHARED``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tools.accuracy.parts.cold_start import cold_start_part
from tools.accuracy.parts.host_weights import host_part
from tools.accuracy.parts.lora import lora_part
from tools.accuracy.parts.masks import masks_part
from tools.accuracy.parts.mig import mig_part
from tools.accuracy.parts.power import caps_part, power_part
from tools.accuracy.parts.rows import MEDIAN, NINE_IN_TEN, Part
from tools.accuracy.parts.speculation import speculation_part
from tools.accuracy.parts.tiers import tiers_part
from tools.accuracy.scores import markdown

PARTS: Sequence[Callable[[Path], Part]] = (
    lora_part,
    host_part,
    power_part,
    caps_part,
    mig_part,
    masks_part,
    tiers_part,
    cold_start_part,
    speculation_part,
)
HEAD = f"""# Accuracy of parts

What [adapters](lora.md), weights on the [host](offload.md), [watts](power.md), [MIG](mig.md) instances,
[masks](structured.md), cache [tiers](tiers.md), [cold starts](day.md#cold-start) and drafts add to a price, each
against public rows that name their conditions. Computed on DATE by `python -m tools.accuracy parts
SHARED`. A factor is predicted over measured, or
the reverse where that is more. The goal is a median factor of {MEDIAN} and {NINE_IN_TEN} for nine rows of
ten, on rows that no constant was taken from. *Over measured* is the median of predicted over measured.
"""
HEADS = ("part", "rows", "median factor", "nine in ten", "over measured", "goal met")


def parts_page(shared: Path, today: str) -> str:
    """The page, of the published rows in ``shared``."""
    parts = [part(shared) for part in PARTS]
    table = markdown(HEADS, [line for part in parts for line in part.summary()])
    sections = "\n".join(part.section().rstrip() + "\n" for part in parts)
    return HEAD.replace("DATE", today) + "\n" + table + "\n" + sections
