"""``docs/accuracy-parts.md``, written by ``python -m tools.accuracy parts SHARED``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from inferplan.estimate.resting import PARTS as PRICED
from tools.accuracy.parts.agents import agents_part
from tools.accuracy.parts.cold_start import cold_start_part
from tools.accuracy.parts.filters import filters_part
from tools.accuracy.parts.host_experts import host_experts_part
from tools.accuracy.parts.host_weights import host_part, host_prompts_part
from tools.accuracy.parts.lora import lora_part
from tools.accuracy.parts.masks import hidden_part, masks_part
from tools.accuracy.parts.mig import mig_part
from tools.accuracy.parts.power import caps_part, power_part
from tools.accuracy.parts.processors import processors_part
from tools.accuracy.parts.replay import replay_part
from tools.accuracy.parts.rows import MEDIAN, NINE_IN_TEN, Part
from tools.accuracy.parts.speculation import heads_part, speculation_part
from tools.accuracy.parts.tiers import tiers_part, writing_part
from tools.accuracy.scores import markdown

PARTS: Sequence[Callable[[Path], Part]] = (
    lora_part,
    host_part,
    host_prompts_part,
    processors_part,
    host_experts_part,
    power_part,
    caps_part,
    mig_part,
    masks_part,
    hidden_part,
    filters_part,
    tiers_part,
    writing_part,
    replay_part,
    cold_start_part,
    speculation_part,
    heads_part,
    agents_part,
)
HEAD = f"""# Accuracy of parts

What [adapters](lora.md), weights on the [host](offload.md), [watts](power.md), [MIG](mig.md) instances,
[masks](structured.md), [top-k and top-p](sampling.md#top-k-top-p-and-penalties), cache [tiers](tiers.md),
[cold starts](day.md#cold-start) and drafts add to a price, each against public rows that name their conditions.
Computed on DATE by `python -m tools.accuracy parts SHARED`. A factor is predicted over measured, or
the reverse where that is more. The goal is a median factor of {MEDIAN} and {NINE_IN_TEN} for nine rows of
ten, on rows that no constant was taken from. *Over measured* is the median of predicted over measured.
"""
RESTING = """`explain`, `rests_on` in JSON and the lines on errors read this table
(`inferplan/estimate/resting.py`). What is asked for decides the kind: *measured*, constants of that very part;
*published*, public figures; *carried*, constants of something else that was measured; *formula*, geometry and rates as
told. A part that is not within the band is named in a line of its own: *outside every error band*."""
HEADS = ("part", "rows", "median factor", "nine in ten", "over measured", "goal met")


def resting_table() -> str:
    """Every part with each kind that its price may rest on."""
    rows = [
        [
            name.replace("_", " "),
            kind,
            said.replace("{device}", "the device").replace("{constants}", "on file"),
            f"[{part.page.removeprefix('docs/')}]({part.page.removeprefix('docs/').removeprefix('accuracy-parts.md')})",
            "yes" if part.in_band else "no",
        ]
        for name, part in PRICED.items()
        for kind, said in part.said.items()
    ]
    return markdown(("part", "kind", "what", "source", "within the band"), rows)


def parts_page(shared: Path, today: str) -> str:
    """The page, of the published rows in ``shared``."""
    parts = [part(shared) for part in PARTS]
    table = markdown(HEADS, [line for part in parts for line in part.summary()])
    resting = f"## What each part rests on\n\n{RESTING}\n\n{resting_table()}\n"
    sections = "\n".join(part.section().rstrip() + "\n" for part in parts)
    return HEAD.replace("DATE", today) + "\n" + table + "\n" + resting + "\n" + sections
